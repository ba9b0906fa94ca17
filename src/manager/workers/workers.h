/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_WORKERS_H
#define TIERCE_MANAGER_WORKERS_H

#include "directory/directory.h"

/*
 * A manager's directory of the chunks that workers hold (directory/directory.h), for the calls of
 * api/api_directory.c. Beside the table it bounds how many workers send their contents at once: a
 * new leader knows nobody, so that all of them begin within seconds of each other.
 *
 *     rc = tierce__directory_join(tierce__workers_directory(workers), &worker, now_ns, &id);
 *     answer = tierce__workers_begin(workers, id, now_ns, &wait_ms);    // perhaps LATER
 *     answer = tierce__workers_contents(workers, id, contents, count, now_ns);
 *     answer = tierce__workers_end(workers, id, covered, now_ns);
 *
 * Thread: any. No call blocks on I/O.
 */

struct tierce__workers;

struct tierce__workers_opts {
    size_t size;
    uint32_t workers_max, silence_ms; /* 0: 4096, 10000 */
    uint32_t senders_max;             /* that send their contents at once; 0: 8 */
    uint64_t bytes_max;               /* of the table; 0: no limit */
};

/* Errors: TIERCE_E_ARGUMENT (workers_max), -ENOMEM, -EIO (no random numbers). */
TIERCE_MUSTUSE int tierce__workers_create(struct tierce__workers **out,
                                          const struct tierce__workers_opts *opts);
/* NULL is accepted. */
void tierce__workers_destroy(struct tierce__workers *workers);

struct tierce__directory *tierce__workers_directory(const struct tierce__workers *workers);
uint32_t tierce__workers_silence_ms(const struct tierce__workers *workers);

/*
 * The worker sends its contents, if it is one of senders_max that do. A sender that sends nothing
 * for half of the silence loses its place. LATER: it must begin after *wait_ms, and counts as heard
 * until then.
 */
enum tierce__directory_answer tierce__workers_begin(struct tierce__workers *workers,
                                                    struct tierce__directory_id id, uint64_t now_ns,
                                                    uint32_t *wait_ms);
/* RESYNC also for a worker that has lost its place: it must begin again. */
enum tierce__directory_answer
tierce__workers_contents(struct tierce__workers *workers, struct tierce__directory_id id,
                         const struct tierce__directory_change *contents, size_t count,
                         uint64_t now_ns);
enum tierce__directory_answer tierce__workers_end(struct tierce__workers *workers,
                                                  struct tierce__directory_id id, uint64_t covered,
                                                  uint64_t now_ns);

/* All workers leave: this manager begins or ceases to lead. */
void tierce__workers_clear(struct tierce__workers *workers);

/* Removes silent workers, and frees a part of what others held. Called every 50 ms or so. */
void tierce__workers_tick(struct tierce__workers *workers, uint64_t now_ns);

#endif
