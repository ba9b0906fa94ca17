/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_HOLDINGS_H
#define TIERCE_MANAGER_HOLDINGS_H

#include "directory/directory.h"
#include "manager/holdings/worker_commands.h"

/*
 * A manager's directory of the chunks that workers hold (directory/directory.h), for the calls of
 * api/api_directory.c. Beside the table it bounds how many workers send their contents at once: a
 * new leader knows nobody, so that all of them begin within seconds of each other.
 *
 *     rc = tierce__directory_join(tierce__holdings_directory(holdings), &worker, now_ns, &id);
 *     answer = tierce__holdings_begin(holdings, id, sending, now_ns, &wait_ms);    // perhaps LATER
 *     answer = tierce__holdings_add(holdings, id, sending, contents, count, now_ns);
 *     answer = tierce__holdings_end(holdings, id, sending, covered, now_ns);
 *
 * Thread: any. No call blocks on I/O.
 */

struct tierce__holdings;

struct tierce__holdings_opts {
    size_t size;
    uint32_t workers_max, silence_ms; /* 0: 4096, 10000 */
    uint32_t senders_max;             /* that send their contents at once; 0: 8 */
    uint64_t bytes_max;               /* of the table; 0: no limit */
    uint32_t group_percent;           /* of workers and table for one group; 0: 100 */
};

struct tierce__holdings_stats {
    uint64_t displaced; /* senders whose place was given to another */
};
void tierce__holdings_stats(struct tierce__holdings *holdings, struct tierce__holdings_stats *out);

/* Errors: TIERCE_E_ARGUMENT (workers_max), -ENOMEM, -EIO (no random numbers). */
TIERCE_MUSTUSE int tierce__holdings_create(struct tierce__holdings **out,
                                           const struct tierce__holdings_opts *opts);
/* NULL is accepted. */
void tierce__holdings_destroy(struct tierce__holdings *holdings);

struct tierce__directory *tierce__holdings_directory(const struct tierce__holdings *holdings);
struct tierce__worker_commands *tierce__holdings_commands(const struct tierce__holdings *holdings);
uint32_t tierce__holdings_silence_ms(const struct tierce__holdings *holdings);

/* The secret by which the workers of a group recognise each other: hex digits, of the group and of
 * a random key. tierce__holdings_clear changes the key, so that each term of a leader has its own:
 * a worker should accept the secret before its present one, too. */
#define TIERCE__HOLDINGS_SECRET_BYTES 65u
void tierce__holdings_secret(struct tierce__holdings *holdings, const char *group,
                             char out[TIERCE__HOLDINGS_SECRET_BYTES]);

/*
 * The worker sends its contents, if it is one of senders_max that do. `sending`: as in
 * tierce__directory_sending_begin. A sender that sends nothing for half of the silence loses its
 * place, and so does one that has left. If all places are taken, the worker gets that of the oldest
 * sender of the group with the most of them, if that group has two more than the worker's own, or
 * that of a sender that has had it for six times the silence: no group keeps others out. LATER: it
 * must begin after *wait_ms.
 */
enum tierce__directory_answer tierce__holdings_begin(struct tierce__holdings *holdings,
                                                     struct tierce__directory_id id,
                                                     uint64_t sending, uint64_t now_ns,
                                                     uint32_t *wait_ms);
/* RESYNC also for a worker that has lost its place: it must restart its sending. */
enum tierce__directory_answer tierce__holdings_add(struct tierce__holdings *holdings,
                                                   struct tierce__directory_id id, uint64_t sending,
                                                   const struct tierce__directory_change *contents,
                                                   size_t count, uint64_t now_ns);
enum tierce__directory_answer tierce__holdings_end(struct tierce__holdings *holdings,
                                                   struct tierce__directory_id id, uint64_t sending,
                                                   uint64_t covered, uint64_t now_ns);

/* All workers leave, and commands are forgotten: this manager begins or ceases to lead. */
void tierce__holdings_clear(struct tierce__holdings *holdings);

/* Removes silent workers, ends their commands, and frees a part of what others held. Logs
 * directory_incomplete if changes were left out, once a minute at most. Called every 50 ms or so,
 * by one thread. */
void tierce__holdings_tick(struct tierce__holdings *holdings, uint64_t now_ns);

#endif
