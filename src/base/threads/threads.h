/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_THREADS_H
#define TIERCE_BASE_THREADS_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

#include "base/list.h"

/*
 * Threads, and a queue of tasks for a fixed number of them.
 *
 *     rc = tierce__workers_create(&workers, 4, 1000);
 *     task->run = run_task;
 *     if (!tierce__workers_submit(workers, task))
 *         ... the queue is full ...
 *     tierce__workers_destroy(workers);
 *
 * All signals are blocked in these threads except those that a fault raises: signals are for the
 * application's threads.
 */

/* Errors: negative errno. */
TIERCE_MUSTUSE int tierce__thread_start(pthread_t *out, void *(*run)(void *arg), void *arg);

/*
 * The processors that a thread may use, which threads that it starts inherit. A part that starts
 * threads later, on its callers' threads, notes them when it is opened: an inference engine binds
 * the threads that call it to few processors, and computes there. Zeroed: those of the starting
 * thread.
 */
struct tierce__affinity {
    bool is_known;
    cpu_set_t processors;
};

/* Those of the calling thread. Unknown on a machine with more processors than a cpu_set_t has. */
void tierce__affinity_note(struct tierce__affinity *out);

/* The same as tierce__thread_start, on the noted processors. If the system rejects these, as when
 * they were taken from the process, the thread uses those of the calling thread. */
TIERCE_MUSTUSE int tierce__thread_start_on(pthread_t *out, const struct tierce__affinity *on,
                                           void *(*run)(void *arg), void *arg);

/* Threads that run the same function. Owned by one thread. Zeroed: none. */
struct tierce__threads {
    uint32_t count;
    pthread_t *ids;
};

/* Errors: -ENOMEM, negative errno. Then `count` threads run; the caller makes them return, and
 * joins them. */
TIERCE_MUSTUSE int tierce__threads_start(struct tierce__threads *threads, uint32_t count,
                                         void *(*run)(void *arg), void *arg);
/* The same, on the noted processors. */
TIERCE_MUSTUSE int tierce__threads_start_on(struct tierce__threads *threads, uint32_t count,
                                            const struct tierce__affinity *on,
                                            void *(*run)(void *arg), void *arg);

/* Blocks until all have returned. `threads` is zeroed. */
void tierce__threads_join(struct tierce__threads *threads);

/*
 * From now on, the calling thread does not interrupt other threads when it wakes (SCHED_BATCH). Its
 * share of the processors is unchanged. For threads that move bytes for a thread that must not
 * wait: a thread that wakes others would be interrupted by them for milliseconds, in the middle of
 * the call that gave them work. A kernel that rejects it changes nothing.
 */
void tierce__thread_does_not_interrupt(void);

/* How many processors are online, at least 1. */
uint32_t tierce__processors(void);

struct tierce__task {
    struct tierce__list node;
    void (*run)(struct tierce__task *task);
};

struct tierce__workers;

/* At most `queue_max` tasks wait for a thread. Errors: -ENOMEM, negative errno. */
TIERCE_MUSTUSE int tierce__workers_create(struct tierce__workers **out, uint32_t threads,
                                          uint32_t queue_max);

/* Runs the queued tasks, and ends. NULL is accepted. Not on a worker. */
void tierce__workers_destroy(struct tierce__workers *workers);

/* Tasks begin in the order of their submission. A task may free itself. False: the queue is full.
 * Thread: any. */
bool tierce__workers_submit(struct tierce__workers *workers, struct tierce__task *task);

/*
 * Calls each(arg, from, to) for parts that together cover [0, count): on the calling thread, and at
 * the same time on workers that are idle or become idle. Returns when all calls have returned; what
 * they wrote is visible then. Does not wait for workers that are busy with other tasks. `workers`
 * NULL: one call on the calling thread. Does not allocate. Thread: any but a worker.
 */
void tierce__workers_share(struct tierce__workers *workers, size_t count,
                           void (*each)(void *arg, size_t from, size_t to), void *arg);

/* The number of queued tasks. Thread: any. */
uint32_t tierce__workers_waiting(struct tierce__workers *workers);

#endif
