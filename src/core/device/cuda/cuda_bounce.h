/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_BOUNCE_H
#define TIERCE_CUDA_BOUNCE_H

#include "core/device/cuda/cuda_private.h"

/*
 * Copies between the device and cells in memory that is not pinned, through a pinned buffer of ours
 * for each direction:
 *
 *     gather     blocks ─copy engine─► buffer ─host function─► cells
 *     scatter    cells ─host function─► buffer ─copy engine─► blocks
 *
 * The driver calls the host function, on a thread of its own, when the work before it on the stream
 * has ended, and begins the work behind it when the function has returned. So all uses of a buffer
 * are one sequence on the stream of its direction, the event of such a transfer means the same as
 * that of others, and no call blocks. The host computes the sums.
 *
 * A transfer lists all pieces before it enqueues anything, so that nothing is in progress if there
 * is no memory for the list. The list exists until the last host function has run.
 */

#define TIERCE__BOUNCE_BYTES ((size_t)4 << 20)

/* Thread: any. Blocks. Errors: -ENOMEM, -ECANCELED, -EIO, TIERCE_E_CLOSED. */
TIERCE_MUSTUSE int tierce__cuda_allow_unpinned(struct tierce__device *device);

/* Whether cells need not be pinned. */
static inline bool tierce__cuda_bounces(const struct tierce__cuda *cuda)
{
    return atomic_load_explicit(&cuda->bounce.usable, memory_order_acquire);
}

void tierce__cuda_bounce_init(struct tierce__cuda_bounce *bounce);
void tierce__cuda_bounce_fini(struct tierce__cuda_bounce *bounce);

/* Lists the pieces of an event's rows that bounce; event->bounce is NULL if there is none. Errors:
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__cuda_bounce_plan(const struct tierce__cuda *cuda,
                                            struct tierce__cuda_event *event,
                                            enum tierce__direction direction);

/* Between enter and leave: enqueues the copies that were planned. Errors: -ECANCELED, -EIO. */
TIERCE_MUSTUSE int tierce__cuda_bounce_enqueue(struct tierce__cuda *cuda,
                                               const struct tierce__cuda_event *event,
                                               const struct tierce__device_copy *copy,
                                               enum tierce__direction direction);

/* Frees the list of an event, or keeps it until close if host functions may still run. */
void tierce__cuda_bounce_forget(struct tierce__cuda *cuda, struct tierce__bounce_job *job,
                                bool is_over);

/* Between enter and leave, when no copy is in progress: frees the buffers and the lists that were
 * kept. */
void tierce__cuda_bounce_close(struct tierce__cuda *cuda);

#endif
