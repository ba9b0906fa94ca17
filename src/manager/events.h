/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_EVENTS_H
#define TIERCE_MANAGER_EVENTS_H

#include "manager/locator.h"
#include "manager/reclaimer.h"

/*
 * What happened, one JSON object a line, in KVCM's form (the optimizer reads it): GetCacheLocation,
 * StartWriteCache, FinishWriteCache, CacheReclaimSubmit; and our own: storage and leader changes.
 * Lines go to a file (event_publisher.log, rotated by size) by a thread, and to subscribers (an
 * HTTP stream); what does not fit into the queue is dropped and counted.
 *
 * Threads: any; never blocks.
 */

struct tierce__line_log;

void tierce__events_get(struct tierce__line_log *log, int64_t now_us,
                        const struct tierce__get_request *request, const int64_t *tokens,
                        size_t token_count);
void tierce__events_start(struct tierce__line_log *log, int64_t now_us,
                          const struct tierce__write_request *request, const int64_t *tokens,
                          size_t token_count, const struct tierce__started *started);
void tierce__events_finish(struct tierce__line_log *log, int64_t now_us, const char *instance_id,
                           const char *session, const struct tierce__mask *written);
void tierce__events_reclaim(struct tierce__line_log *log, int64_t now_us, const char *instance_id,
                            const struct tierce__reclaimed *gone, size_t count, int64_t delay_us);
/* Any other: `fields` is JSON text from ',' on, or "". */
void tierce__events_other(struct tierce__line_log *log, int64_t now_us, const char *source,
                          const char *component, const char *type, const char *fields);

#endif
