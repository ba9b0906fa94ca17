/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_PART_WAITS_H
#define TIERCE_NODE_PART_WAITS_H

#include "store/transfer/transfer.h"

/*
 * A bounded queue of finds that wait for a buffer, with a thread that begins them in the order of
 * their arrival. A find that was not begun in time is answered "busy" (TIERCE_E_LIMIT), a little
 * before its deadline, so that the answer reaches the client while it still waits.
 *
 * Thread: any.
 */

struct tierce__part_waits;

struct tierce__part_waits_opts {
    size_t size;        /* sizeof(struct tierce__part_waits_opts) */
    uint32_t calls_max; /* that may wait */
    /* Begins or answers a call, which then belongs to the callee. False: there is still no buffer,
     * and the call was not touched. Runs on the queue's thread, without a lock. */
    bool (*begin)(void *arg, struct tierce__keeper_call *call);
    void *arg;
};

/* Errors: -ENOMEM, -EAGAIN (no thread). */
TIERCE_MUSTUSE int tierce__part_waits_create(struct tierce__part_waits **out,
                                             const struct tierce__part_waits_opts *opts);
/* Answers all calls TIERCE_E_CLOSED, and ends the thread. Later calls are not accepted. NULL is
 * accepted. */
void tierce__part_waits_end(struct tierce__part_waits *waits);
/* After end. NULL is accepted. */
void tierce__part_waits_destroy(struct tierce__part_waits *waits);

/* Errors, and the call is the caller's: TIERCE_E_LIMIT (too many wait), TIERCE_E_CLOSED, -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__part_waits_add(struct tierce__part_waits *waits,
                                          struct tierce__keeper_call *call);
/* Whether a call waits. */
bool tierce__part_waits_any(const struct tierce__part_waits *waits);
/* A buffer has become free. */
void tierce__part_waits_tell(struct tierce__part_waits *waits);

#endif
