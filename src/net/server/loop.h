/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_LOOP_H
#define TIERCE_NET_LOOP_H

#include <stdbool.h>

#include "base/list.h"
#include "base/threads/lock.h"
#include "base/threads/deadlines.h"
#include "base/threads/threads.h"

/*
 * The interface of the thread that owns connections: deadlines, and messages from other threads.
 * The implementation (poll_loop.c, or a test) is hidden.
 */

struct tierce__loop {
    struct tierce__deadlines deadlines; /* owner only */
    struct tierce__lock lock;           /* the inbox */
    struct tierce__list inbox;
    void (*wake)(struct tierce__loop *loop); /* Thread: any */
};

void tierce__loop_init(struct tierce__loop *loop, void (*wake)(struct tierce__loop *loop));
void tierce__loop_fini(struct tierce__loop *loop);

/* Makes the calling thread the owner of the loop. NULL: it owns none any more. */
void tierce__loop_enter(struct tierce__loop *loop);
bool tierce__loop_is_here(const struct tierce__loop *loop);

/* Makes the owner call `run`. Thread: any. */
void tierce__loop_post(struct tierce__loop *loop, struct tierce__task *task);

/* Makes the owner call run(arg), and blocks until it has returned. Not on the loop. */
void tierce__loop_call(struct tierce__loop *loop, void (*run)(void *arg), void *arg);

/* Runs the posted functions. Owner only. */
void tierce__loop_run_inbox(struct tierce__loop *loop);

#endif
