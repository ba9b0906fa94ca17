/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_EVENTS_H
#define TIERCE_MANAGER_EVENTS_H

#include "manager/locate/locator.h"
#include "manager/reclaim/reclaimer.h"

/*
 * The event log: one JSON object per line, in KVCM's form (the optimizer reads it):
 * GetCacheLocation, StartWriteCache, FinishWriteCache, CacheReclaimSubmit. Our own events report
 * changes of storages and of the leader, and removals. After KVCM's fields, lookups and writes have
 * `block_size`, the tokens of a block, or 0 for entries by name; lookups have `hits`; writes have
 * `block_bytes`, the bytes of each block or of all blocks. Both name the layers of an instance with
 * a kind of attention. The sizes of entries are known at the
 * end of their write only, so FinishWriteCache has them (docs/inside/format/trace.md). A thread
 * writes the lines to a file (event_publisher.log, rotated by size) and to subscribers (an HTTP
 * stream). When the queue is full, lines are dropped and counted.
 *
 * Threads: any; never blocks.
 */

struct tierce__line_log;

void tierce__events_get(struct tierce__line_log *log, int64_t now_us,
                        const struct tierce__get_request *request, const int64_t *tokens,
                        size_t token_count, const struct tierce__got *got);
void tierce__events_start(struct tierce__line_log *log, int64_t now_us,
                          const struct tierce__write_request *request, const int64_t *tokens,
                          size_t token_count, const struct tierce__started *started);
void tierce__events_finish(struct tierce__line_log *log, int64_t now_us, const char *instance_id,
                           const char *session, const struct tierce__mask *written);
/* The same for entries by name. */
void tierce__events_finish_entries(struct tierce__line_log *log, int64_t now_us,
                                   const char *instance_id, const char *session,
                                   const struct tierce__entries_ended *ended);
/* A client removes the keys that are not masked. */
void tierce__events_remove(struct tierce__line_log *log, int64_t now_us, const char *instance_id,
                           const int64_t *keys, size_t count, const struct tierce__mask *mask);
void tierce__events_trim(struct tierce__line_log *log, int64_t now_us, const char *instance_id,
                         int trim, int64_t begin_s, int64_t end_s);
void tierce__events_reclaim(struct tierce__line_log *log, int64_t now_us, const char *instance_id,
                            const struct tierce__reclaimed *gone, size_t count, int64_t delay_us);
/* Any other event. `fields` is JSON text that begins with ',', or "". */
void tierce__events_other(struct tierce__line_log *log, int64_t now_us, const char *source,
                          const char *component, const char *type, const char *fields);

#endif
