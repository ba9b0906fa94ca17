/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Qwen-Bailian: {"chat_id", "parent_chat_id", "timestamp": s, "input_length", "output_length",
 * "type", "turn", "hash_ids": [...]}. The ids are hashes of the content of 16 tokens each. A block
 * is numbered by (number of the block before, content): exactly, so that equal content behind
 * different prefixes is different blocks.
 *
 * A conversation is named by the chat that it began with.
 */
#include "base/alloc.h"
#include "optimizer/trace/intern.h"
#include "optimizer/trace/trace_fields.h"
#include "optimizer/trace/trace_private.h"

#include <errno.h>

struct qwen {
    int64_t time_us, chat, parent;
    uint64_t input_tokens, output_tokens;
    struct tierce__ids ids;
    struct tierce__intern *blocks; /* (number of the block before + 1, content) */
    struct tierce__intern *chats;  /* chat -> index of its session */
    struct tierce__ids sessions;
};

enum { CHAT, PARENT, TIMESTAMP, INPUT, OUTPUT, HASH_IDS, FIELDS };

static const struct tierce__trace_field fields[FIELDS] = {
    [CHAT] = TIERCE__FIELD("chat_id", INTEGER, qwen, chat),
    [PARENT] = TIERCE__FIELD("parent_chat_id", INTEGER, qwen, parent),
    [TIMESTAMP] = TIERCE__FIELD("timestamp", TIME_S, qwen, time_us),
    [INPUT] = TIERCE__FIELD("input_length", COUNT, qwen, input_tokens),
    [OUTPUT] = TIERCE__FIELD("output_length", COUNT, qwen, output_tokens),
    [HASH_IDS] = TIERCE__FIELD("hash_ids", IDS, qwen, ids),
};

#define WANTED (1u << TIMESTAMP | 1u << HASH_IDS)
#define TELLING                                                                                    \
    (1u << CHAT | 1u << PARENT) /* at least one of them, otherwise it is Mooncake's format */

static bool probe(const char *head, size_t length)
{
    uint32_t seen = tierce__fields_probe(head, length, fields, FIELDS);
    return (seen & WANTED) == WANTED && (seen & TELLING) != 0;
}

static int init(void *state)
{
    struct qwen *q = state;
    int rc = tierce__intern_create(&q->blocks);
    return rc == 0 ? tierce__intern_create(&q->chats) : rc;
}

/* Replaces the content hashes by the numbers of blocks. */
static int chain_ids(struct qwen *q)
{
    uint32_t number = TIERCE__INTERN_NONE;
    for (size_t i = 0; i < q->ids.count; i++) {
        int rc = tierce__intern_one(q->blocks, number + 1, q->ids.at[i], &number);
        if (rc < 0)
            return rc;
        q->ids.at[i] = number;
    }
    return 0;
}

/* The session of a chat: its parent's, if that is known. */
static int find_session(struct qwen *q, uint32_t seen, uint64_t *out)
{
    *out = 0;
    if ((seen & 1u << CHAT) == 0)
        return 0;
    uint64_t session = (uint64_t)q->chat + 1;
    if ((seen & 1u << PARENT) != 0 && q->parent >= 0) {
        uint32_t index = tierce__intern_find(q->chats, 0, (uint64_t)q->parent);
        session = index != TIERCE__INTERN_NONE ? q->sessions.at[index] : (uint64_t)q->parent + 1;
    }
    uint32_t index;
    if (tierce__ids_reserve(&q->sessions) < 0)
        return -ENOMEM;
    int rc = tierce__intern_one(q->chats, 0, (uint64_t)q->chat, &index);
    if (rc < 0)
        return rc;
    if (index == q->sessions.count)
        q->sessions.at[q->sessions.count++] = session != 0 ? session : 1;
    *out = q->sessions.at[index];
    return 0;
}

static int record(struct tierce__trace *trace, void *state, const char *line, size_t length)
{
    struct qwen *q = state;
    uint32_t seen;
    uint64_t session = 0;
    int rc = tierce__fields_read(trace, line, length, fields, FIELDS, WANTED, q, &seen);
    if (rc == 0 && (seen & TELLING) == 0)
        return tierce__trace_bad(trace,
                                 "has neither \"chat_id\" nor \"parent_chat_id\": is it of the "
                                 "format mooncake?");
    if (rc == 0)
        rc = find_session(q, seen, &session);
    if (rc == 0)
        rc = chain_ids(q);
    if (rc == TIERCE_E_LIMIT)
        return tierce__trace_bad(trace, "the trace has more different blocks than 2^32");
    if (rc < 0)
        return rc;
    return tierce__trace_emit(trace,
                              &(struct tierce__trace_request){
                                  .time_us = q->time_us,
                                  .session = session,
                                  .kind = TIERCE__TRACE_TURN,
                                  .count = (uint32_t)q->ids.count,
                                  .read_count = (uint32_t)q->ids.count,
                                  .blocks = q->ids.at,
                                  .input_tokens = q->input_tokens,
                                  .output_tokens = q->output_tokens,
                              },
                              NULL);
}

static void fini(void *state)
{
    struct qwen *q = state;
    tierce__free(q->ids.at);
    tierce__free(q->sessions.at);
    tierce__intern_destroy(q->blocks);
    tierce__intern_destroy(q->chats);
}

const struct tierce__trace_format tierce__trace_format_qwen = {
    .state_bytes = sizeof(struct qwen),
    .probe = probe,
    .init = init,
    .record = record,
    .fini = fini,
};
