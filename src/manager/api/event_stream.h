/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_EVENT_STREAM_H
#define TIERCE_MANAGER_EVENT_STREAM_H

#include "manager/manager_private.h"

/*
 * GET /events: the event log as it is written, without an end. A caller whose scope is not all
 * groups gets the events of its instances and of its group's storages. The stream ends when the
 * caller's credentials or scope are changed or removed. Threads: any.
 */
void tierce__event_stream_serve(struct tierce__manager *manager, struct tierce__call *call,
                                const struct tierce__caller *caller);

/* Whether a grant sees an event, by the first members of its line. Public for tests. */
bool tierce__event_is_seen(const struct tierce__grant *grant, const struct tierce__catalog *catalog,
                           const char *line, size_t bytes);

#endif
