/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_DEVICE_H
#define TIERCE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/blend/rope.h"
#include "core/paged/paged.h"

/*
 * The memory in which an inference engine keeps its paged KV: memory of the host, or of a GPU.
 *
 *     const struct tierce__device_ops *ops = tierce__device_find("cuda");
 *     rc = ops->open(&device, paged.layers[0].base);
 *     ops->tune(device);                               // in the background
 *     rc = ops->allow_unpinned(device);                // copies work from here on, more slowly
 *     rc = ops->pin(device, slice, slice_bytes);       // each slice of the pool, in the background
 *     ...
 *     rc = ops->gather(device, &event, &copy);         // begins after the work on copy.stream
 *     rc = ops->wait(device, event, deadline_ns);
 *     if (rc == 0)
 *         rc = ops->settle(device, event, 0, copy.count); // the sums are in place from here on
 *     ops->forget(device, event);
 *     ...
 *     stopped = ops->close(device, deadline_ns);
 *
 * A gather or scatter enqueues its copies and returns an event. Four rules follow:
 *
 * - Bytes, sums and verdicts are valid only after `query` or `wait` has returned 0 for the event
 *   and `settle` has returned for the row. Nothing may be published before that.
 * - The cells of a copy, their sums and verdicts, and the blocks in the engine's memory stay in use
 *   until `query` or `wait` has returned 0, also if a deadline has passed.
 * - -EIO means that the device failed. Nothing is known about the bytes then: they must be neither
 *   published nor reported as loaded, and a chunk must not be removed as damaged. All later calls
 *   but query, wait, idle, unpin, forget and close return -EIO too. Memory of copies whose event
 *   has not completed stays in use until `idle` has returned 0 or `close` true.
 * - The copies begin after all work that was enqueued on copy.stream before the call. Only
 *   `stream_wait` orders later work on that stream after the copies.
 *
 * Streams are handles of the device's driver (CUstream; NULL for the default stream) of the context
 * that the device was opened in. The host ignores them.
 *
 * Thread: any for every function, several at the same time; `close` must be the last call.
 * wait, settle (it may compute the sums), tune, allow_unpinned, pin, unpin, open, close, decode,
 * the first rotate and the first distances block; no other function does.
 */

struct tierce__device;
struct tierce__device_event;

/* A slice of pinned memory begins and ends at multiples of it. */
#define TIERCE__PIN_ALIGN 4096u

/* Cells of one chunk in one layer, and the blocks that they are copied from or to. */
struct tierce__device_row {
    uint32_t layer;
    const int32_t *ids;         /* [cells.count] [borrow for the call]: the blocks */
    struct tierce__cells cells; /* [borrow until the event has completed and the row is settled];
                                   `sums` is always memory of the host */
    uint8_t *good; /* scatter: [cells.count], borrowed as cells; settle writes 0 for a cell whose
                      sum differs, and nothing for other cells */
};

struct tierce__device_copy {
    const struct tierce_paged *paged; /* [borrow for the call]: addresses of this device's memory */
    const struct tierce__device_row *rows; /* [count] [borrow for the call] */
    size_t count;                          /* > 0 */
    void *stream;                          /* of the caller */
};

#define TIERCE__DEVICE_HEADS_MAX 16384u

/* Keys in the device's memory that are rotated in place (core/blend/rope.h). */
struct tierce__device_keys {
    const struct tierce__rotation *rotation; /* [borrow for the call] */
    enum tierce__blend_dtype dtype;
    struct tierce__key_rows rows; /* addresses of the device; rows must not overlap */
    size_t tokens;
    uint32_t heads; /* 1 .. TIERCE__DEVICE_HEADS_MAX */
    void *stream;   /* of the caller */
};

/* Whether keys are valid, as `rotate` requires. Errors: TIERCE_E_ARGUMENT. */
TIERCE_MUSTUSE int tierce__device_check_keys(const struct tierce__device_keys *keys);

#define TIERCE__DEVICE_ELEMENTS_MAX (1u << 20)

/* Keys in the device's memory whose distances are computed (core/blend/select.h). All addresses are
 * the device's. Keys are only read: a and b may overlap. */
struct tierce__device_distances {
    enum tierce__blend_dtype dtype;
    struct tierce__key_rows a, b;
    float *to; /* [tokens], aligned to its size; it overlaps no key */
    size_t tokens;
    uint32_t heads;        /* 1 .. TIERCE__DEVICE_HEADS_MAX */
    uint32_t row_elements; /* 1 .. TIERCE__DEVICE_ELEMENTS_MAX */
    void *stream;          /* of the caller */
};

/* Whether they are valid, as `distances` requires. Errors: TIERCE_E_ARGUMENT. */
TIERCE_MUSTUSE int tierce__device_check_distances(const struct tierce__device_distances *keys);

/* Bytes for the device's memory: a run of the lossless codec (core/codec), or plain bytes. */
struct tierce__device_run {
    uint8_t *to; /* [bytes] of the device's memory */
    size_t bytes;
    const uint8_t *from; /* [coded] [borrow for the call] of the host; it need not be pinned */
    size_t coded;
    bool is_plain; /* `from` has the bytes themselves; coded equals bytes */
};

/* Whether runs are valid, as `decode` requires. Errors: TIERCE_E_ARGUMENT. */
TIERCE_MUSTUSE int tierce__device_check_runs(const struct tierce__device_run *runs, size_t count);

/*
 * Files that are read into the device's own memory, without memory of the host:
 *
 *     rc = files->alloc(device, &base, bytes);          // once; `free` at the end
 *     rc = files->open(device, &file, base, fd);
 *     rc = files->read(device, file, to, bytes, offset); // to: in [base, base + bytes)
 *     rc = files->look(device, host, to, bytes, deadline_ns);
 *     ... scatter from cells in the buffer, in copies that have no other cells ...
 *     files->close(device, file);
 *
 * The addresses are the device's: the host must not access them. The device computes the sums of
 * cells that are scattered from there, and the host compares them in `settle`, as for other copies.
 * Such a scatter may also fail with -ECANCELED because too many copies are in progress.
 *
 * Thread: any. All functions block.
 */
struct tierce__device_file;

struct tierce__device_files {
    /* Allocates a buffer, aligned to TIERCE__PIN_ALIGN. Errors, logged, *out untouched:
     * TIERCE_E_UNSUPPORTED (there is no library for it, or no kernel that computes sums; `tune`
     * first), -ENOMEM, -ECANCELED, -EIO, TIERCE_E_CLOSED. */
    TIERCE_MUSTUSE int (*alloc)(struct tierce__device *device, uint8_t **out, size_t bytes);

    /* No read and no copy may be in progress, except what a call that failed with -EIO has begun.
     * False: the buffer still exists (logged), or the device has failed and is not idle; then the
     * device must not be closed. */
    bool (*free)(struct tierce__device *device, uint8_t *base, size_t bytes);

    /* A file, for reads into the buffer. The descriptor stays the caller's, open until `close`.
     * Errors, logged: TIERCE_E_UNSUPPORTED, -ENOMEM. */
    TIERCE_MUSTUSE int (*open)(struct tierce__device *device, struct tierce__device_file **out,
                               uint8_t *base, int fd);
    void (*close)(struct tierce__device *device, struct tierce__device_file *file);

    /* Reads all of a range; offset and bytes are multiples of 4096. 0, or a negative errno of the
     * file; -ENODATA beyond its end. TIERCE_E_UNSUPPORTED: the library or the device has failed
     * (logged); the file may be readable otherwise. */
    TIERCE_MUSTUSE int (*read)(struct tierce__device *device, struct tierce__device_file *file,
                               uint8_t *to, size_t bytes, uint64_t offset);

    /* Copies bytes of the buffer, whose read has returned, to the host. Errors: TIERCE_E_DEADLINE,
     * -ECANCELED, -EIO, TIERCE_E_CLOSED. */
    TIERCE_MUSTUSE int (*look)(struct tierce__device *device, uint8_t *to, const uint8_t *from,
                               size_t bytes, uint64_t deadline_ns);
};

struct tierce__device_ops {
    const char *name;

    /* NULL: files cannot be read into the device's memory. */
    const struct tierce__device_files *files;

    /* Whether the bytes of cells must lie in memory that `pin` has registered, unless
     * allow_unpinned has returned 0. */
    bool pins;

    /*
     * Opens the device to which the memory at `address` belongs. Its context must exist already.
     * Errors, with a log line, *out untouched:
     *   TIERCE_E_ARGUMENT     the address is not memory of such a device
     *   TIERCE_E_UNSUPPORTED  the driver is missing or too old, or was used before a fork
     *   -ENOMEM, -ECANCELED, -EIO
     */
    TIERCE_MUSTUSE int (*open)(struct tierce__device **out, const void *address);

    /* 1: the address is of this device's memory, so that `open` would open it again. 0: it is not.
     * -EIO: it cannot be determined. TIERCE_E_CLOSED. */
    TIERCE_MUSTUSE int (*has)(struct tierce__device *device, const void *address);

    /* The NUMA node that is nearest to the device. -1: the machine has one node only, the node is
     * unknown, or it cannot be determined, which is logged. May read a file. */
    int (*numa_node)(struct tierce__device *device);

    /*
     * Measures on the device which copy method is the fastest, and uses it from then on. Without
     * this call, the default method is used. If the other methods do not work, the default stays in
     * use, and this is logged. After a failure of the device, later calls return -EIO. Blocks for a
     * second at most, or longer if the driver compiles: call it once, from a thread that nothing
     * waits for.
     */
    void (*tune)(struct tierce__device *device);

    /*
     * Waits for the copies in progress, unpins all slices, frees the device. All events must have
     * been forgotten. False: the device did not stop by the deadline, or did not release a slice,
     * or this process is a child of fork. The device then still exists, only close may be called,
     * and the memory of copies in progress must be neither freed nor used.
     */
    bool (*close)(struct tierce__device *device, uint64_t deadline_ns);

    /*
     * From now on cells may lie in any memory of the host. A row of cells that are not all pinned
     * is copied through a pinned buffer, which takes a second copy by the processor, and the host
     * computes its sums. A slice may be pinned while such copies are in progress. Later calls
     * change nothing. Errors: -ENOMEM, -ECANCELED, -EIO, TIERCE_E_CLOSED. Blocks.
     */
    TIERCE_MUSTUSE int (*allow_unpinned)(struct tierce__device *device);

    /*
     * Registers a slice of host memory, so that the device can copy from and to it directly. The
     * slice is aligned to TIERCE__PIN_ALIGN and does not overlap another slice. Slices may be
     * adjacent, and cells may cross their borders. Takes about 0.1 s per GB on a GPU: call it for
     * one slice after another, from a thread that nothing waits for.
     *
     * Several devices of the process may pin the same memory.
     *
     * Errors: TIERCE_E_ARGUMENT (alignment, overlap, registered by another library), -ENOMEM (the
     * limit of locked memory, for example), TIERCE_E_UNSUPPORTED (memory that the driver cannot
     * register), -EIO, TIERCE_E_CLOSED (in a child of fork). After -ENOMEM, a smaller slice may
     * succeed.
     */
    TIERCE_MUSTUSE int (*pin)(struct tierce__device *device, void *memory, size_t bytes);

    /* Ends the registration of a slice; the arguments equal those of pin. No copy may use it.
     * Errors: TIERCE_E_ARGUMENT (it was not pinned), -ECANCELED, -EIO, TIERCE_E_CLOSED. */
    TIERCE_MUSTUSE int (*unpin)(struct tierce__device *device, void *memory, size_t bytes);

    /* Whether all of this range is registered. */
    bool (*is_pinned)(struct tierce__device *device, const void *memory, size_t bytes);

    /*
     * Copies blocks to cells. Rows must not overlap. *event [out] [transfer]: free it by forget.
     * Errors, nothing enqueued and *event untouched:
     *   TIERCE_E_ARGUMENT     a row is invalid (paged.h), or its bytes are not pinned and were not
     *                         allowed to be
     *   TIERCE_E_UNSUPPORTED  the stream is being captured into a graph
     *   TIERCE_E_CLOSED       in a child of fork
     *   -ENOMEM
     * -ECANCELED: the driver has refused a call, and the device works. If *event was set, some of
     * the copies are in progress, and end with it: wait for it, do not settle it, and forget it.
     * The bytes are unknown. -EIO, *event untouched: the device failed, and copies may be in
     * progress (see above).
     */
    TIERCE_MUSTUSE int (*gather)(struct tierce__device *device, struct tierce__device_event **event,
                                 const struct tierce__device_copy *copy);

    /* Copies cells to blocks: as gather. The blocks of a bad cell hold wrong bytes afterwards. The
     * sums and bytes of the cells must not change until the rows are settled. */
    TIERCE_MUSTUSE int (*scatter)(struct tierce__device *device,
                                  struct tierce__device_event **event,
                                  const struct tierce__device_copy *copy);

    /*
     * Rotates keys in place: after the work that is on keys->stream now, and before the work that
     * is enqueued on this stream later. The bytes are those of tierce__rotate. The first rotation
     * of a device blocks: it loads the kernel, perhaps compiles it, and compares its results with
     * the host's. All memory must be the device's; this is not checked.
     * Errors:
     *   TIERCE_E_ARGUMENT     the keys are invalid
     *   TIERCE_E_UNSUPPORTED  the stream is being captured into a graph; or the device cannot
     *                         rotate keys exactly (logged once)
     *   TIERCE_E_CLOSED       in a child of fork
     *   -ENOMEM
     * With these, no key was rotated. -ECANCELED: the driver has refused a call, and the device
     * works; -EIO: the device failed. The bytes of the keys are unknown then.
     */
    TIERCE_MUSTUSE int (*rotate)(struct tierce__device *device,
                                 const struct tierce__device_keys *keys);

    /*
     * Writes the distance of the keys of each token: ordered on keys->stream as a rotation. The
     * numbers are those of tierce__key_distances, bit by bit; the bits of a NaN may differ. The
     * first call on a device blocks as the first rotation does. All memory must be the device's;
     * this is not checked. Errors: those of rotate, for distances instead of keys.
     */
    TIERCE_MUSTUSE int (*distances)(struct tierce__device *device,
                                    const struct tierce__device_distances *keys);

    /*
     * Decodes runs into the device's memory: on the device, to which coded bytes are copied. The
     * result is that of the codec's own decoder, and any bytes may be decoded: nothing else is read
     * or written. All memory `to` must be the device's, and no work on it may be in progress; this
     * is not checked. All bytes are in place when the call returns, for work that is enqueued
     * later, and nothing of the call is in progress then, whatever it returns, except after -EIO.
     * So it may block beyond the deadline, until the device has done what has begun. The first call
     * of a device loads the kernel, perhaps compiles it, and compares its results with the host's.
     * Errors; the bytes at `to` are unknown then:
     *   TIERCE_E_ARGUMENT     a run is invalid
     *   TIERCE_E_FORMAT       the coded bytes are invalid, or decode to another length
     *   TIERCE_E_UNSUPPORTED  the device cannot decode exactly (logged once)
     *   TIERCE_E_DEADLINE, TIERCE_E_CLOSED (in a child of fork), -ENOMEM
     *   -ECANCELED            the driver has refused a call, and the device works
     *   -EIO                  the device failed
     */
    TIERCE_MUSTUSE int (*decode)(struct tierce__device *device,
                                 const struct tierce__device_run *runs, size_t count,
                                 uint64_t deadline_ns);

    /* Creates an event that completes after all work that is enqueued on a stream now. Errors,
     * *event untouched:
     * TIERCE_E_UNSUPPORTED (as gather), TIERCE_E_CLOSED, -ENOMEM, -ECANCELED, -EIO. */
    TIERCE_MUSTUSE int (*record)(struct tierce__device *device, struct tierce__device_event **event,
                                 void *stream);

    /* Work that is enqueued on the stream from now on begins after the event. Errors:
     * TIERCE_E_UNSUPPORTED (as gather), TIERCE_E_CLOSED, -EIO. */
    TIERCE_MUSTUSE int (*stream_wait)(struct tierce__device *device,
                                      const struct tierce__device_event *event, void *stream);

    /* 0: the event has completed. -EAGAIN: not yet. -EIO: unknown, the device has failed.
     * TIERCE_E_CLOSED: in a child of fork. */
    TIERCE_MUSTUSE int (*query)(struct tierce__device *device, struct tierce__device_event *event);

    /* The same, but blocks until the event has completed, or returns TIERCE_E_DEADLINE. */
    TIERCE_MUSTUSE int (*wait)(struct tierce__device *device, struct tierce__device_event *event,
                               uint64_t deadline_ns);

    /*
     * Whether no copy is in progress on the device: for copies without an event, which a failed
     * call may have left behind. Once this has returned 0 for a device that has failed, memory of
     * its copies may be used again. 0; -EAGAIN: there are copies. -EIO: it is not known.
     * TIERCE_E_CLOSED.
     */
    TIERCE_MUSTUSE int (*idle)(struct tierce__device *device);

    /*
     * Finishes rows [from, to) of a gather or scatter whose event has completed: writes the sums or
     * the verdicts. Settle each row once; several threads may settle different rows at the same
     * time.
     * Returns the number of bad cells in these rows (0 for a gather), or -EAGAIN if query or wait
     * has not returned 0 for the event.
     */
    TIERCE_MUSTUSE int64_t (*settle)(struct tierce__device *device,
                                     struct tierce__device_event *event, size_t from, size_t to);

    /* Frees an event. An event of a gather or scatter must have completed, or its device must have
     * failed. NULL is accepted. */
    void (*forget)(struct tierce__device *device, struct tierce__device_event *event);
};

/* First member of every implementation. */
struct tierce__device {
    const struct tierce__device_ops *ops;
};

/* The implementations in the order of devices.def; NULL past the end. */
const struct tierce__device_ops *tierce__device_at(size_t index);

/* The implementation of that name, or NULL. */
const struct tierce__device_ops *tierce__device_find(const char *name);

#endif
