/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake: {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}.
 * The ids are prefix ids already; each line is a turn. Our own fields: "session_id", and "hint":
 * the name of a client's hint (docs/using/policies.md).
 */
#include "base/alloc.h"
#include "core/policy/policy.h"
#include "optimizer/trace/trace_fields.h"
#include "optimizer/trace/trace_private.h"

#include <string.h>

struct mooncake_trace {
    int64_t time_us;
    uint64_t input_tokens, output_tokens, session;
    struct tierce__name hint;
    struct tierce__ids ids;
};

enum { TIMESTAMP, INPUT, OUTPUT, HASH_IDS, SESSION, HINT, FIELDS };

static const struct tierce__trace_field fields[FIELDS] = {
    [TIMESTAMP] = TIERCE__FIELD("timestamp", TIME_MS, mooncake_trace, time_us),
    [INPUT] = TIERCE__FIELD("input_length", COUNT, mooncake_trace, input_tokens),
    [OUTPUT] = TIERCE__FIELD("output_length", COUNT, mooncake_trace, output_tokens),
    [HASH_IDS] = TIERCE__FIELD("hash_ids", IDS, mooncake_trace, ids),
    [SESSION] = TIERCE__FIELD("session_id", SESSION, mooncake_trace, session),
    [HINT] = TIERCE__FIELD("hint", NAME, mooncake_trace, hint),
};

static uint8_t hint_of(const struct mooncake_trace *m)
{
    static const char *const names[TIERCE__HINTS] = {
        [TIERCE__HINT_CLOSED] = "closed", [TIERCE__HINT_OPEN] = "open",
        [TIERCE__HINT_SOON] = "soon",     [TIERCE__HINT_LATER] = "later",
        [TIERCE__HINT_TTL] = "ttl",
    };
    for (uint8_t i = 1; i < TIERCE__HINTS; i++) {
        if (m->hint.length == strlen(names[i]) &&
            memcmp(m->hint.text, names[i], m->hint.length) == 0)
            return i;
    }
    return TIERCE__HINT_NONE;
}

#define WANTED (1u << TIMESTAMP | 1u << HASH_IDS)

static bool probe(const char *head, size_t length)
{
    return (tierce__fields_probe(head, length, fields, FIELDS) & WANTED) == WANTED;
}

static int record(struct tierce__trace *trace, void *state, const char *line, size_t length)
{
    struct mooncake_trace *m = state;
    uint32_t seen;
    int rc = tierce__fields_read(trace, line, length, fields, FIELDS, WANTED, m, &seen);
    if (rc < 0)
        return rc;
    return tierce__trace_emit(trace,
                              &(struct tierce__trace_request){
                                  .time_us = m->time_us,
                                  .session = m->session,
                                  .kind = TIERCE__TRACE_TURN,
                                  .count = (uint32_t)m->ids.count,
                                  .read_count = (uint32_t)m->ids.count,
                                  .blocks = m->ids.at,
                                  .input_tokens = m->input_tokens,
                                  .output_tokens = m->output_tokens,
                                  .hint = hint_of(m),
                              },
                              NULL);
}

static void fini(void *state)
{
    struct mooncake_trace *m = state;
    tierce__free(m->ids.at);
}

const struct tierce__trace_format tierce__trace_format_mooncake = {
    .state_bytes = sizeof(struct mooncake_trace),
    .probe = probe,
    .record = record,
    .fini = fini,
};
