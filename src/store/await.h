/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_STORE_AWAIT_H
#define TIERCE_STORE_AWAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/threads/lock.h"

/*
 * One thread waits for the answers of one or more requests to tiers.
 *
 *     struct tierce__await await;
 *     tierce__await_begin(&await);
 *     tierce__await_expect(&await);
 *     submit(req);                                 // done: (void)tierce__await_answer(req->arg);
 *     tierce__await_end(&await, TIERCE__DEADLINE_NEVER);
 *
 * Answers that arrive before the wait begins, as those of the memory tier do, cost no lock. A wait
 * with a deadline may end before the answers; then the memory belongs to the last answer.
 */

struct tierce__await {
    /* The number of expected answers, plus 1 until the waiter sleeps. Zero is reached once;
     * acq_rel: the last to leave sees the earlier stores of the others. */
    _Atomic uint32_t left;
    struct tierce__lock lock; /* TRANSFER; from here on only if the waiter sleeps */
    struct tierce__cond answered;
    bool is_answered;
    bool is_abandoned;
};

/* Before the first request. */
void tierce__await_begin(struct tierce__await *await);

/* Before each submit, by the waiter. */
void tierce__await_expect(struct tierce__await *await);

/*
 * An expected request was answered, or was not submitted after all. True: the waiter left before
 * this last answer, so the caller must free the memory that holds `await`. False: the caller must
 * not touch that memory again. Thread: any. Does not block.
 */
bool tierce__await_answer(struct tierce__await *await);

/*
 * Blocks until all expected requests are answered or deadline_ns (clock.h) has passed. False: not
 * all are; the memory that holds `await` belongs to the last answer from now on.
 * TIERCE__DEADLINE_NEVER always yields true. Thread: that of begin.
 */
bool tierce__await_end(struct tierce__await *await, uint64_t deadline_ns);

#endif
