/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_CUDA_FAKE_PRIVATE_H
#define TIERCE_TESTS_CUDA_FAKE_PRIVATE_H

#include <pthread.h>

#include "core/device/kernels/decode.h"
#include "core/device/kernels/distances.h"
#include "core/device/kernels/launch.h"
#include "core/device/kernels/rotate.h"
#include "core/device/kernels/spin.h"
#include "cuda_fake.h"

enum { FAKE_DEVICES = 2, FAKE_ACTORS = 32, FAKE_HOST = 0, FAKE_RANGES = 3 };

/* One lock and one condition for everything. */
extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed;

/* The number of steps of each actor (the host, or a stream) that precede an operation. */
struct fake_clock {
    uint64_t of[FAKE_ACTORS];
};

/* ---- a call (cuda_fake.c) -------------------------------------------------------------------- */

/* Takes the lock. Returns the code with which the call fails at once, or 0. */
TIERCE__CU_RESULT fake_begin(const char *call, bool needs_context);
/* Releases the lock and returns the code. */
TIERCE__CU_RESULT fake_end(TIERCE__CU_RESULT code);
void fake_violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same for a call that may not be made while another thread captures a graph. */
TIERCE__CU_RESULT fake_begin_unsafe(const char *call);
bool fake_is_held(void);
bool fake_is_broken(void);
uint64_t fake_random(void);
unsigned fake_delay_us(void);
void fake_count_copy(bool batch);
void fake_count_launch(void);
void fake_count_host(void);

/* ---- order (cuda_fake_order.c) --------------------------------------------------------------- */

void fake_clock_join(struct fake_clock *clock, const struct fake_clock *other);
struct fake_clock *fake_host_clock(void);
/* A step of an actor, whose clock is given, touches memory. The actor has counted the step. False:
 * a violation; the step must not touch the memory, or the thread sanitizer would report it too. */
bool fake_access(const struct fake_clock *clock, unsigned actor, uintptr_t from, size_t bytes,
                 bool writes, const char *what);
/* Whether the host has not yet seen an event after all accesses to this memory. */
bool fake_in_progress(uintptr_t from, size_t bytes);
/* Forgets the accesses to memory that is allocated again. */
void fake_forget_accesses(uintptr_t from, size_t bytes);

/* ---- memory and contexts (cuda_fake_memory.c) ------------------------------------------------ */

struct tierce__cu_context {
    int device;
    unsigned retained;
};

TIERCE__CU_CONTEXT fake_current(void);
unsigned fake_stack_depth(void);
unsigned fake_slices(void);
unsigned fake_retained(void);
/* Where the processor finds device memory; NULL if all of it is not in one allocation. */
uint8_t *fake_alias(TIERCE__CU_ADDRESS address, size_t bytes);
/* Whether host memory lies in one registration; reports otherwise. */
bool fake_check_pinned(const void *memory, size_t bytes, const char *call);
/* Where the processor finds memory that a kernel uses: of the device, or registered and mapped.
 * NULL, reported: neither. */
uint8_t *fake_kernel_memory(uint64_t address, size_t bytes);
unsigned fake_memories(void);
unsigned fake_host_memories(void);

/* ---- streams and events (cuda_fake_stream.c) ------------------------------------------------- */

unsigned fake_streams(void);
unsigned fake_events(void);
bool fake_captures(void);
void fake_set_capture(TIERCE__CU_STREAM stream, bool captured);

/* A launch of one of our kernels, with the addresses that the processor uses. */
struct fake_launch {
    struct tierce__launch what;
    unsigned blocks;
    enum cuda_fake_flip flip;
    struct tierce__spin spin; /* instead, if its time is not 0 */
    /* Instead, if it has items or tokens; and the memory that it uses, with the device's
     * addresses: the first is written. */
    struct tierce__rotate_launch rotate;
    struct tierce__distances_launch distances;
    struct fake_range {
        uint64_t at;
        size_t bytes;
    } used[FAKE_RANGES];
    const char *name;                    /* of such a kernel */
    struct tierce__decode_launch decode; /* instead, if it has blocks */
};

/* Under the lock: enqueues a launch [copied]. `device`, `decode`: the same with the addresses of
 * the device. */
TIERCE__CU_RESULT fake_enqueue_launch(TIERCE__CU_STREAM stream, const struct fake_launch *launch,
                                      const struct tierce__launch *device,
                                      const struct tierce__decode_launch *decode);

/* ---- modules and kernels (cuda_fake_module.c) ------------------------------------------------ */

unsigned fake_modules(void);
/* Fills the destinations with garbage. */
void fake_launch_spoil(const struct fake_launch *launch);
void fake_launch_run(const struct fake_launch *launch);

/* The kernel that rotates (cuda_fake_rotate.c), one thread block. */
void fake_rotate(const struct tierce__rotate_launch *what, uint32_t block, uint32_t blocks);

/* The kernel that computes distances (cuda_fake_distances.c), one thread block. */
void fake_distances(const struct tierce__distances_launch *what, uint32_t block, uint32_t blocks);

/* ---- the kernel that decodes (cuda_fake_decode.c) -------------------------------------------- */

/* A launch with the addresses that the processor uses. False, reported: it is invalid. */
bool fake_decode_translate(struct tierce__decode_launch *to,
                           const struct tierce__decode_launch *in);
/* As fake_access, of all that it uses, with the device's addresses. */
bool fake_decode_access(const struct fake_clock *clock, unsigned actor,
                        const struct tierce__decode_launch *device);
void fake_decode_spoil(const struct tierce__decode_launch *what);
void fake_decode_run(const struct tierce__decode_launch *what, uint32_t blocks,
                     enum cuda_fake_flip flip);

#endif
