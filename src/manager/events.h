/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_EVENTS_H
#define TIERCE_MANAGER_EVENTS_H

#include "manager/locator.h"

/*
 * What happened, one JSON object a line, in KVCM's form (the optimizer reads it): GetCacheLocation,
 * StartWriteCache, FinishWriteCache, CacheReclaimSubmit; and our own: storage and leader changes.
 * Lines go to a file (event_publisher.log, rotated by size) by a thread, and to subscribers (an
 * HTTP stream); what does not fit into the queue is dropped and counted.
 *
 * Threads: any; never blocks.
 */

struct tierce__events;

struct tierce__events_opts {
    size_t size;
    const char *path;        /* or NULL: subscribers only */
    uint64_t file_bytes_max; /* then a new one is begun; 0: 256 MiB */
    uint32_t files;          /* that are kept; 0: 4 */
};

TIERCE_MUSTUSE int tierce__events_open(struct tierce__events **out,
                                       const struct tierce__events_opts *opts, char why[256]);
void tierce__events_close(struct tierce__events *events);

void tierce__events_get(struct tierce__events *events, int64_t now_us,
                        const struct tierce__get_request *request, const int64_t *tokens,
                        size_t token_count);
void tierce__events_start(struct tierce__events *events, int64_t now_us,
                          const struct tierce__write_request *request, const int64_t *tokens,
                          size_t token_count, const struct tierce__started *started);
void tierce__events_finish(struct tierce__events *events, int64_t now_us, const char *instance_id,
                           const char *session, const struct tierce__mask *written);
void tierce__events_reclaim(struct tierce__events *events, int64_t now_us, const char *instance_id,
                            const int64_t *keys, size_t count, int64_t delay_us);
/* Any other: `fields` is JSON text from ',' on, or "". */
void tierce__events_other(struct tierce__events *events, int64_t now_us, const char *source,
                          const char *component, const char *type, const char *fields);

/* `line` is called on the events' thread with each line (newline included) from now on, until it
 * returns false or unsubscribe. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__events_subscribe(struct tierce__events *events,
                                            bool (*line)(void *arg, const char *text, size_t bytes),
                                            void *arg);
void tierce__events_unsubscribe(struct tierce__events *events, void *arg);

struct tierce__events_stats {
    uint64_t written, dropped;
};
void tierce__events_stats(struct tierce__events *events, struct tierce__events_stats *out);

#endif
