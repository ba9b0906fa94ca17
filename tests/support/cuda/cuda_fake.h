/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_CUDA_FAKE_H
#define TIERCE_TESTS_CUDA_FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/device/cuda/cuda_driver.h"

/*
 * A libcuda.so.1 without a GPU, for tests that are linked with it. "Device memory" is memory that
 * the processor cannot access at the address that a test receives. A stream is a thread that runs
 * its operations in order, each after a random delay. The destination of a copy holds garbage from
 * the start of the copy to its end. Our own kernels are compiled as C, from their sources: a launch
 * runs one thread block after another, and the blocks of `spin` at the same time. A host function
 * is the one of cuda_bounce.c.
 *
 * The fake reports a violation, in words, for
 *
 *   - two accesses to the same memory, one of them a write, that no event orders: a copy that reads
 *     what a kernel may still be writing, a kernel that overwrites what a copy may still be
 * reading, the host using a destination before the copy's event (tell_host_access);
 *   - a call without a current context, or before cuInit, or with a handle that does not exist;
 *   - an asynchronous copy from or to memory that is not registered, or across two registrations,
 *     and a kernel that uses memory that is neither the device's nor registered and mapped;
 *   - memory that is allocated, registered or released, a module that is loaded or unloaded, and an
 *     event or a stream that is queried, while a stream is being captured and the thread's mode of
 *     captures is not relaxed;
 *   - memory that is unregistered, and a stream that is destroyed, while copies are in progress.
 *
 * Violations do not depend on timing: clocks of all streams and of the host (all its threads count
 * as one) are compared when an operation is enqueued. An operation that is not ordered touches no
 * memory.
 *
 * Thread: any.
 */

#pragma GCC visibility push(default)

/* Seeds the delays, each of up to `delay_us`; by default 50, or CUDA_FAKE_DELAY_US of the
 * environment. */
void cuda_fake_seed(uint64_t seed, unsigned delay_us);

/* While held, no stream runs an operation. */
void cuda_fake_hold(bool held);

/* While stopped, this stream runs no operation. */
void cuda_fake_stop_stream(TIERCE__CU_STREAM stream, bool stopped);

/* Sets the version that the driver reports. Must precede the first call of the driver. */
void cuda_fake_set_version(int version);

/* The nth call of the driver from now on fails with this code and has no effect; 0 switches it off.
 * Returns how many calls were made since the last time. cuGetErrorName does not count. */
uint64_t cuda_fake_fail_nth(uint64_t nth, TIERCE__CU_RESULT code);

/* While patient, the second query of an event or a stream waits until it is complete, unless
 * streams are held or stopped: so the number of calls does not depend on the speed of the machine.
 */
void cuda_fake_be_patient(bool patient);

/* One registration has at most so many bytes; 0: any number. */
void cuda_fake_limit_registration(size_t bytes_max);

/* All registrations together have at most so many bytes; 0: any number. */
void cuda_fake_limit_locked(size_t bytes_max);

/* While held, registrations do not return. */
void cuda_fake_hold_registrations(bool held);

/* Fails like an illegal address in a kernel: no operation runs any more, and all calls fail. */
void cuda_fake_break(void);

/* Whether the device can use registered memory at the host's addresses (by default it can). */
void cuda_fake_set_host_pointers(bool usable);

/* Makes the kernels wrong: each launch flips a bit of the last sum, or of the last byte; or only
 * launches that decode do, of the last verdict or the last byte. */
enum cuda_fake_flip {
    CUDA_FAKE_RIGHT,
    CUDA_FAKE_FLIP_SUM,
    CUDA_FAKE_FLIP_BYTE,
    CUDA_FAKE_FLIP_VERDICT,
    CUDA_FAKE_FLIP_DECODED
};
void cuda_fake_flip(enum cuda_fake_flip flip);

/* A launch returns only after this time, in which other threads continue. */
void cuda_fake_pause_launches(unsigned pause_us);

/* Marks a stream as being captured into a graph. */
void cuda_fake_capture(TIERCE__CU_STREAM stream, bool captured);

/* Calls of the driver in all, of cuMemcpyBatchAsync, of single copies, of cuLaunchKernel, and of
 * cuLaunchHostFunc. */
struct cuda_fake_calls {
    uint64_t all, batches, copies, launches, host_functions;
};
struct cuda_fake_calls cuda_fake_calls(void);

/* Calls of the driver by this thread, except cuInit. */
uint64_t cuda_fake_calls_here(void);

/* The objects that exist now, and the depth of this thread's stack of contexts. */
struct cuda_fake_live {
    unsigned streams, events, slices, contexts, stack;
    unsigned memories, host_memories, modules;
};
struct cuda_fake_live cuda_fake_live(void);

/* The violations so far, one line each; "" for none. */
const char *cuda_fake_report(void);

/* Forgets violations. */
void cuda_fake_forgive(void);

/* ---- what an engine does --------------------------------------------------------------------- */

/* A kernel that writes these bytes, read now, to device memory. */
void cuda_fake_kernel_write(TIERCE__CU_STREAM stream, TIERCE__CU_ADDRESS to, const void *bytes,
                            size_t n, const char *what);

/* A kernel that reads device memory; `out` is valid once the stream has been synchronised. */
void cuda_fake_kernel_read(TIERCE__CU_STREAM stream, void *out, TIERCE__CU_ADDRESS from, size_t n,
                           const char *what);

/* The host reads or writes its memory now. */
void cuda_fake_tell_host_access(const void *memory, size_t n, bool writes, const char *what);

/* The host writes to device memory, as cuFile does (cufile_fake.c). It requires a current context.
 * A write that is not ordered, or is not to device memory, is a violation, and touches no memory.
 */
void cuda_fake_write_device(TIERCE__CU_ADDRESS to, const void *bytes, size_t n, const char *what);

/* Where the processor finds memory of the device, for a test that computes on it after it has
 * synchronised the streams; NULL: it is not all in one allocation. */
void *cuda_fake_processor_address(TIERCE__CU_ADDRESS address, size_t bytes);

/* Reports a violation of a rule of another library. */
void cuda_fake_violate(const char *what);

/* Calls of the driver that only an inference engine makes. A graph has no content. */
TIERCE__CU_RESULT cuStreamSynchronize(TIERCE__CU_STREAM stream);
TIERCE__CU_RESULT cuStreamBeginCapture_v2(TIERCE__CU_STREAM stream, TIERCE__CU_CAPTURE_MODE mode);
TIERCE__CU_RESULT cuStreamEndCapture(TIERCE__CU_STREAM stream, void **graph);
TIERCE__CU_RESULT cuGraphDestroy(void *graph);
#define TIERCE_CUDA_CALL(name, symbol, arguments)           TIERCE__CU_RESULT symbol arguments;
#define TIERCE_CUDA_NEWER(name, symbol, version, arguments) TIERCE__CU_RESULT symbol arguments;
#include "core/device/cuda/cuda_calls.def"
#undef TIERCE_CUDA_CALL
#undef TIERCE_CUDA_NEWER

#pragma GCC visibility pop

#endif
