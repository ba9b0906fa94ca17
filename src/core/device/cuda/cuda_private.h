/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_PRIVATE_H
#define TIERCE_CUDA_PRIVATE_H

#include <stdatomic.h>

#include "core/device/cuda/cuda_driver.h"
#include "core/device/cuda/cuda_ways.h"
#include "core/device/device_private.h"
#include "core/device/pinned.h"

#define TIERCE__CUDA_MAGIC       0x54634456u
#define TIERCE__CUDA_EVENT_MAGIC 0x54634576u

struct tierce__cuda_kernel;
struct tierce__cuda_module_what;
struct tierce__cuda_sums;
struct tierce__bounce_job;

/* The buffers of cuda_bounce.c, one for each direction. */
struct tierce__cuda_bounce {
    struct tierce__lock lock[2]; /* BOUNCE: while a transfer that uses the buffer is enqueued */
    uint8_t *memory[2];
    atomic_bool usable; /* the store (release) publishes memory to transfers (acquire) */
    struct tierce__bounce_job *_Atomic kept; /* until close; pushed (release), read by close */
};

/* Of cuda_files.c. */
struct tierce__cuda_looks {
    struct tierce__lock lock; /* LOOKS: the fields below, and a look from its start to its end */
    uint8_t *memory;          /* pinned; NULL until the first buffer */
    TIERCE__CU_STREAM stream;
};

enum tierce__cuda_module_state {
    TIERCE__CUDA_MODULE_NEW, /* the kernel was not tried yet */
    TIERCE__CUDA_MODULE_USABLE,
    TIERCE__CUDA_MODULE_REFUSED,
};

/* Of cuda_module.c. */
struct tierce__cuda_module {
    const struct tierce__cuda_module_what *what;
    struct tierce__lock lock; /* the fields below, until the kernel is usable or refused; they do
                                 not change then */
    enum tierce__cuda_module_state state;
    TIERCE__CU_MODULE module;
    TIERCE__CU_FUNCTION function;
    unsigned blocks_max; /* thread blocks of a launch */
};

/* Of cuda_keys.c: a kernel on keys. */
struct tierce__cuda_keys {
    struct tierce__cuda_module module; /* ROTATIONS or DISTANCES */
    /* Of the trial, under the lock of the module; after a failure, until close. */
    TIERCE__CU_STREAM stream;
    uint8_t *memory; /* pinned */
};

enum { TIERCE__CUDA_LANES = 2 };

/* Of cuda_decode.c: the memory of one call. */
struct tierce__cuda_lane {
    struct tierce__lock lock; /* DECODE_LANE: while a call uses the lane */
    TIERCE__CU_STREAM stream;
    uint8_t *memory;            /* pinned; NULL: the lane does not exist */
    TIERCE__CU_ADDRESS staging; /* on the device */
};

struct tierce__cuda_decoder {
    struct tierce__cuda_module module; /* DECODER: also the creation of the lanes */
    struct tierce__cuda_lane lanes[TIERCE__CUDA_LANES];
    atomic_bool
        has_lanes; /* stored (release) after their trial, unless it has refused the kernel */
    _Atomic unsigned calls; /* relaxed: which lane they try first */
    uint8_t *trial;         /* pinned; as that of rotations */
};

struct tierce__cuda {
    struct tierce__device base;
    uint32_t magic;
    const struct tierce__cuda_api *api;
    TIERCE__CU_DEVICE device;
    TIERCE__CU_CONTEXT context; /* the primary one, retained */
    /* One for each direction: they use different copy engines, and loads do not queue behind
     * stores. Neither synchronises with the default stream. */
    TIERCE__CU_STREAM streams[2];
    struct tierce__pinned pinned;
    struct tierce__pinned buffers; /* on the device, into which files are read */
    struct tierce__cuda_looks looks;
    struct tierce__cuda_keys rotations, distances;
    struct tierce__cuda_decoder decoder;
    struct tierce__cuda_bounce bounce;
    /* NULL until tune has found that it works. The pointer is stored (release) and loaded by
     * transfers (acquire), which publishes the kernel's fields to them. */
    struct tierce__cuda_kernel *_Atomic kernel;
    atomic_bool tuned; /* relaxed: the first call of tune works, others return */
    /* Used by tune, and then by close, which frees the memory that a failure has left allocated. */
    struct tierce__cuda_kernel *own_kernel;
    TIERCE__CU_ADDRESS trial_blocks;
    uint8_t *trial_cells;
    atomic_bool failed;   /* relaxed: a call that misses it fails by itself */
    _Atomic size_t alive; /* events; relaxed: only close, the last call, reads it */
};

enum tierce__cuda_state {
    TIERCE__CUDA_PENDING,
    TIERCE__CUDA_COME,
};

/* The cells of a row until they are settled. */
struct tierce__cuda_row {
    struct tierce__cells cells;
    uint8_t *good; /* NULL for a gather */
    uint32_t cell_bytes;
    uint32_t first; /* the number of its first cell among the device's sums */
    bool bounces;   /* its cells are not all pinned: cuda_bounce.c copies them */
};

struct tierce__cuda_event {
    uint32_t magic;
    TIERCE__CU_EVENT event;
    /* A store (release) of COME follows the driver's answer; settle loads it (acquire), perhaps on
     * another thread. */
    _Atomic int state;
    /* The sums that the device writes; NULL: the host computes them. The sum of cell i is in slot
     * slots[i / TIERCE__LAUNCH_CELLS]. */
    struct tierce__cuda_sums *sums;
    struct tierce__bounce_job *bounce; /* NULL: no row bounces */
    size_t slot_count;
    uint32_t *slots;                /* [slot_count], after the rows in the same allocation */
    size_t count;                   /* 0 for an event of `record` */
    struct tierce__cuda_row rows[]; /* [count] */
};

/* The stream for copies in this direction. */
static inline TIERCE__CU_STREAM tierce__cuda_own_stream(const struct tierce__cuda *cuda,
                                                        enum tierce__direction direction)
{
    return cuda->streams[direction == TIERCE__DIRECTION_GATHER ? 0 : 1];
}

struct tierce__cuda *tierce__cuda_of(struct tierce__device *device);
struct tierce__cuda_event *tierce__cuda_event_of(struct tierce__device_event *event);

/*
 * Makes the context current, and relaxes the calling thread's mode of captures. While another
 * thread captures a graph, a call that allocates memory, or queries an event or a stream, fails in
 * other modes, and makes the capture fail. An inference engine captures its graphs when it likes:
 * while we pin, and while copies are in progress. A thread must leave before it enters again.
 * Errors: TIERCE_E_CLOSED, -EIO.
 */
TIERCE_MUSTUSE int tierce__cuda_enter(struct tierce__cuda *cuda);

/* The same, but only if the device has not failed. */
TIERCE_MUSTUSE int tierce__cuda_enter_good(struct tierce__cuda *cuda);

/* Restores the context and the mode that the thread had before enter. Returns rc, or -EIO if rc is
 * not an error and one of them cannot be restored. */
int tierce__cuda_leave(struct tierce__cuda *cuda, int rc);

/* Whether the driver has refused a single call, with no effect: an invalid argument, no memory, an
 * operation that it cannot do. All other errors may be those of earlier work, after which the
 * context cannot be used any more. */
bool tierce__cuda_is_refusal(TIERCE__CU_RESULT code);

/* The status of a call. Returns 0; -ENOMEM if the driver lacks memory; -ECANCELED if it has refused
 * the call; or -EIO, and the device has failed. */
int tierce__cuda_check(struct tierce__cuda *cuda, const char *call, TIERCE__CU_RESULT code);

/* The same for a call that would have enqueued work: -ECANCELED also if the driver lacks memory.
 * The work of earlier calls may be in progress. */
int tierce__cuda_enqueued(struct tierce__cuda *cuda, const char *call, TIERCE__CU_RESULT code);

/* The same for a call without which nothing is right any more, such as the event of copies that are
 * in progress. Returns 0, or -EIO, and the device has failed. */
int tierce__cuda_required(struct tierce__cuda *cuda, const char *call, TIERCE__CU_RESULT code);

/* An event with rows and slots, whose numbers the caller writes. NULL: no memory. */
struct tierce__cuda_event *tierce__cuda_event_create(struct tierce__cuda *cuda, size_t count,
                                                     size_t slot_count);
void tierce__cuda_event_free(struct tierce__cuda *cuda, struct tierce__cuda_event *event);

/* Between enter and leave: creates an event of the driver after all work on the stream. Errors,
 * *out untouched: TIERCE_E_UNSUPPORTED (a capture), -ENOMEM, -EIO. */
TIERCE_MUSTUSE int tierce__cuda_event_record(struct tierce__cuda *cuda, TIERCE__CU_EVENT *out,
                                             TIERCE__CU_STREAM stream);

/* Between enter and leave: work on our stream from now on begins after the work that is on the
 * caller's stream now. Errors: as of tierce__cuda_event_record, -ECANCELED. */
TIERCE_MUSTUSE int tierce__cuda_follow(struct tierce__cuda *cuda, TIERCE__CU_STREAM ours,
                                       TIERCE__CU_STREAM callers);

/* A gather or scatter with a given copy method. kernel: NULL for `copies`. Errors: as of gather. */
TIERCE_MUSTUSE int
tierce__cuda_transfer(struct tierce__cuda *cuda, struct tierce__device_event **out,
                      const struct tierce__device_copy *copy, enum tierce__direction direction,
                      struct tierce__cuda_kernel *kernel, enum tierce__cuda_way way);

/* The operations of other files (device.h). */
void tierce__cuda_tune(struct tierce__device *device);
int tierce__cuda_gather(struct tierce__device *device, struct tierce__device_event **event,
                        const struct tierce__device_copy *copy);
int tierce__cuda_scatter(struct tierce__device *device, struct tierce__device_event **event,
                         const struct tierce__device_copy *copy);
int64_t tierce__cuda_settle(struct tierce__device *device, struct tierce__device_event *event,
                            size_t from, size_t to);
int tierce__cuda_record(struct tierce__device *device, struct tierce__device_event **event,
                        void *stream);
int tierce__cuda_stream_wait(struct tierce__device *device,
                             const struct tierce__device_event *event, void *stream);
int tierce__cuda_query(struct tierce__device *device, struct tierce__device_event *event);
int tierce__cuda_wait(struct tierce__device *device, struct tierce__device_event *event,
                      uint64_t deadline_ns);
void tierce__cuda_forget(struct tierce__device *device, struct tierce__device_event *event);
extern const struct tierce__device_files tierce__cuda_files;

/* Between enter and leave, when no copy is in progress: frees the memory of looks. */
void tierce__cuda_looks_close(struct tierce__cuda *cuda);

/* Waits until all work on a stream has ended, or the deadline. Returns the driver's last answer. */
TIERCE__CU_RESULT tierce__cuda_drain(struct tierce__cuda *cuda, TIERCE__CU_STREAM stream,
                                     uint64_t deadline_ns);

/* Sleeps before poll number `polls`: the driver has no wait with a deadline. */
void tierce__cuda_pause(unsigned polls);

#endif
