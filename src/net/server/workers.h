/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_WORKERS_H
#define TIERCE_SERVE_WORKERS_H

#include <stdbool.h>
#include <stdint.h>

#include "net/server/loop.h"

/* Threads that run tasks which may block, behind a queue with a limit. */

struct tierce__workers;

/* Errors: -ENOMEM, -EAGAIN (no thread). */
TIERCE_MUSTUSE int tierce__workers_create(struct tierce__workers **out, uint32_t threads,
                                          uint32_t queue_max);

/* Runs the queued tasks, and ends. NULL is accepted. */
void tierce__workers_destroy(struct tierce__workers *workers);

/* False: the queue is full. Thread: any. */
bool tierce__workers_submit(struct tierce__workers *workers, struct tierce__task *task);

/* The number of queued tasks. Thread: any. */
uint32_t tierce__workers_waiting(struct tierce__workers *workers);

#endif
