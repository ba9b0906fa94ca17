/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event log of KVCM, one JSON object a line. A GetCacheLocation that matches prefixes is a
 * read. A StartWriteCache and the FinishWriteCache of its session are one write of all keys of the
 * first at the time of the second; without a FinishWriteCache it is taken to end 100 ms after it
 * began. Other types, and lookups that match otherwise, are nothing that is replayed.
 *
 * A write whose end is still to come waits in the window of requests that are sorted.
 */
#include "base/alloc.h"
#include "optimizer/trace_fields.h"
#include "optimizer/trace_private.h"
#include "optimizer/trace_waiting.h"

#include <string.h>

#define UNFINISHED_US 100000

struct kvcm_log {
    int64_t time_us;
    uint64_t tokens;
    struct tierce__name type, source, query, session;
    struct tierce__ids keys;
    struct tierce__mask mask;
    struct tierce__waiting begun; /* writes, by their session */
};

enum { TYPE, TIME, SOURCE, QUERY, KEYS, TOKENS, MASK, SESSION, FIELDS };

static const struct tierce__field fields[FIELDS] = {
    [TYPE] = TIERCE__FIELD("type", NAME, kvcm_log, type),
    [TIME] = TIERCE__FIELD("trigger_time_us", TIME_US, kvcm_log, time_us),
    [SOURCE] = TIERCE__FIELD("source", NAME, kvcm_log, source),
    [QUERY] = TIERCE__FIELD("query_type", NAME, kvcm_log, query),
    [KEYS] = TIERCE__FIELD("keys", IDS, kvcm_log, keys),
    [TOKENS] = TIERCE__FIELD("tokens", LENGTH, kvcm_log, tokens),
    [MASK] = TIERCE__FIELD("block_mask", MASK, kvcm_log, mask),
    [SESSION] = TIERCE__FIELD("write_session_id", NAME, kvcm_log, session),
};

#define WANTED (1u << TYPE | 1u << TIME)

static bool probe(const char *head, size_t length)
{
    return (tierce__fields_probe(head, length, fields, FIELDS) & WANTED) == WANTED;
}

/* ---- records -------------------------------------------------------------------------------- */

static int check_keys(struct tierce__trace *trace, const struct kvcm_log *k)
{
    if (k->keys.count == 0 && k->tokens > 0)
        return tierce__trace_bad(trace, "has tokens and no keys: how long a block is is not told");
    return 0;
}

static int read_lookup(struct tierce__trace *trace, struct kvcm_log *k)
{
    struct tierce__trace_request request = {.time_us = k->time_us,
                                            .kind = TIERCE__TRACE_READ,
                                            .count = (uint32_t)k->keys.count,
                                            .read_count = (uint32_t)k->keys.count,
                                            .blocks = k->keys.at};
    if (strcmp(k->query.text, "prefix_match") != 0)
        return TIERCE__TRACE_SKIPPED;
    int rc = check_keys(trace, k);
    if (rc == 0)
        rc = tierce__mask_apply(&k->mask, &request.internal, k->keys.count);
    if (rc == 0)
        rc = tierce__trace_instance_index(trace, &request.instance, k->source.text,
                                          k->source.length);
    return rc < 0 ? rc : tierce__trace_emit(trace, &request, NULL);
}

static int read_start(struct tierce__trace *trace, struct kvcm_log *k)
{
    struct tierce__trace_request request = {.time_us = k->time_us + UNFINISHED_US,
                                            .kind = TIERCE__TRACE_WRITE,
                                            .count = (uint32_t)k->keys.count,
                                            .blocks = k->keys.at};
    struct tierce__order_ticket ticket;
    if (k->session.length == 0 || k->session.length > TIERCE__WAITING_NAME_MAX)
        return tierce__trace_bad(trace, "\"write_session_id\" is missing or longer than %u bytes",
                                 TIERCE__WAITING_NAME_MAX);
    if (k->time_us > INT64_MAX - UNFINISHED_US)
        return tierce__trace_bad(trace, "\"trigger_time_us\" is too large a number");
    int rc = check_keys(trace, k);
    if (rc == 0)
        rc = tierce__trace_instance_index(trace, &request.instance, k->source.text,
                                          k->source.length);
    if (rc == 0)
        rc = tierce__trace_emit(trace, &request, &ticket);
    /* The same session again: the write before stays unfinished. */
    return rc < 0
               ? rc
               : tierce__waiting_put(&k->begun, trace, k->session.text, k->session.length, ticket);
}

static int read_finish(struct tierce__trace *trace, struct kvcm_log *k)
{
    if (k->session.length == 0)
        return tierce__trace_bad(trace, "\"write_session_id\" is missing");
    /* Without its beginning it has no keys: the log was cut there, or the window is too small. */
    struct tierce__order_ticket ticket;
    if (!tierce__waiting_find(&k->begun, &ticket, k->session.text, k->session.length))
        return TIERCE__TRACE_SKIPPED;
    int rc = tierce__trace_retime(trace, ticket, k->time_us);
    if (rc == 0 || rc == TIERCE_E_MISS)
        tierce__waiting_forget(&k->begun, k->session.text, k->session.length);
    return rc == TIERCE_E_MISS ? TIERCE__TRACE_SKIPPED : rc;
}

static int record(struct tierce__trace *trace, void *state, const char *line, size_t length)
{
    struct kvcm_log *k = state;
    uint32_t seen;
    int rc = tierce__fields_read(trace, line, length, fields, FIELDS, WANTED, k, &seen);
    if (rc < 0)
        return rc;
    if (strcmp(k->type.text, "GetCacheLocation") == 0)
        return read_lookup(trace, k);
    if (strcmp(k->type.text, "StartWriteCache") == 0)
        return read_start(trace, k);
    if (strcmp(k->type.text, "FinishWriteCache") == 0)
        return read_finish(trace, k);
    return TIERCE__TRACE_SKIPPED;
}

static void fini(void *state)
{
    struct kvcm_log *k = state;
    tierce__free(k->keys.at);
    tierce__free(k->mask.flags);
    tierce__waiting_fini(&k->begun);
}

const struct tierce__trace_format tierce__trace_format_kvcm_log = {
    .state_bytes = sizeof(struct kvcm_log),
    .probe = probe,
    .record = record,
    .fini = fini,
};
