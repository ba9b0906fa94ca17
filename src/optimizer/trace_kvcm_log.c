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

#include <errno.h>
#include <string.h>
#include <xxhash.h>

#define UNFINISHED_US 100000
#define SESSION_MAX   64u
#define OPEN_MIN      64u

/* A write that has begun. Open addressing by the hash of its session; a place is free when its
 * name is empty. */
struct opened {
    uint64_t hash;
    struct tierce__order_ticket ticket;
    uint8_t length;
    char session[SESSION_MAX];
};

struct kvcm_log {
    int64_t time_us;
    uint64_t tokens;
    struct tierce__name type, source, query, session;
    struct tierce__ids keys;
    struct tierce__mask mask;
    struct opened *opened; /* [capacity], at most half of them taken */
    size_t capacity, count;
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

/* ---- writes that have begun ----------------------------------------------------------------- */

static bool is_session(const struct opened *opened, uint64_t hash, const struct tierce__name *name)
{
    return opened->hash == hash && opened->length == name->length &&
           memcmp(opened->session, name->text, name->length) == 0;
}

/* Where a session is, or the free place where it belongs. */
static size_t find_opened(const struct kvcm_log *k, uint64_t hash, const struct tierce__name *name)
{
    size_t at = hash & (k->capacity - 1);
    while (k->opened[at].length != 0 && !is_session(&k->opened[at], hash, name))
        at = (at + 1) & (k->capacity - 1);
    return at;
}

/* Takes a place out of its run: what belongs at or before it moves up. */
static void forget_opened(struct kvcm_log *k, size_t hole)
{
    size_t mask = k->capacity - 1;
    k->count--;
    for (size_t at = (hole + 1) & mask; k->opened[at].length != 0; at = (at + 1) & mask) {
        size_t home = k->opened[at].hash & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            k->opened[hole] = k->opened[at];
            hole = at;
        }
    }
    k->opened[hole].length = 0;
}

/* Room for one more. Sessions that are given out unfinished are dropped first. */
static int reserve_opened(const struct tierce__trace *trace, struct kvcm_log *k)
{
    if (k->count < k->capacity / 2)
        return 0;
    size_t waiting = 0;
    for (size_t i = 0; i < k->capacity; i++)
        waiting += k->opened[i].length != 0 && tierce__trace_waits(trace, k->opened[i].ticket);
    struct opened *old = k->opened;
    size_t old_capacity = k->capacity, capacity = OPEN_MIN;
    while (capacity / 4 <= waiting)
        capacity *= 2;
    struct opened *opened = tierce__calloc(capacity, sizeof(*opened));
    if (opened == NULL)
        return -ENOMEM;
    k->opened = opened;
    k->capacity = capacity;
    k->count = waiting;
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i].length == 0 || !tierce__trace_waits(trace, old[i].ticket))
            continue;
        size_t at = old[i].hash & (capacity - 1);
        while (opened[at].length != 0)
            at = (at + 1) & (capacity - 1);
        opened[at] = old[i];
    }
    tierce__free(old);
    return 0;
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
    if (k->session.length == 0 || k->session.length > SESSION_MAX)
        return tierce__trace_bad(trace, "\"write_session_id\" is missing or longer than %u bytes",
                                 SESSION_MAX);
    if (k->time_us > INT64_MAX - UNFINISHED_US)
        return tierce__trace_bad(trace, "\"trigger_time_us\" is too large a number");
    int rc = check_keys(trace, k);
    if (rc == 0)
        rc = tierce__trace_instance_index(trace, &request.instance, k->source.text,
                                          k->source.length);
    if (rc == 0)
        rc = reserve_opened(trace, k);
    if (rc == 0)
        rc = tierce__trace_emit(trace, &request, &ticket);
    if (rc < 0)
        return rc;
    uint64_t hash = XXH3_64bits(k->session.text, k->session.length);
    struct opened *opened = &k->opened[find_opened(k, hash, &k->session)];
    k->count += opened->length == 0;
    /* The same session again: the write before stays unfinished. */
    *opened = (struct opened){.hash = hash, .ticket = ticket, .length = (uint8_t)k->session.length};
    memcpy(opened->session, k->session.text, k->session.length);
    return 0;
}

static int read_finish(struct tierce__trace *trace, struct kvcm_log *k)
{
    if (k->session.length == 0)
        return tierce__trace_bad(trace, "\"write_session_id\" is missing");
    /* Without its beginning it has no keys: the log was cut there, or the window is too small. */
    if (k->capacity == 0 || k->session.length > SESSION_MAX)
        return TIERCE__TRACE_SKIPPED;
    uint64_t hash = XXH3_64bits(k->session.text, k->session.length);
    size_t at = find_opened(k, hash, &k->session);
    if (k->opened[at].length == 0)
        return TIERCE__TRACE_SKIPPED;
    int rc = tierce__trace_retime(trace, k->opened[at].ticket, k->time_us);
    if (rc == 0 || rc == TIERCE_E_MISS)
        forget_opened(k, at);
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
    tierce__free(k->opened);
}

const struct tierce__trace_format tierce__trace_format_kvcm_log = {
    .state_bytes = sizeof(struct kvcm_log),
    .probe = probe,
    .record = record,
    .fini = fini,
};
