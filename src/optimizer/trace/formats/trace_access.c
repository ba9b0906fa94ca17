/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tierce's own access log, docs/inside/format/trace.md: one JSON object a line, a lookup or a
 * store. A lookup and the stores of the same request are one turn, at the time of the lookup, and
 * stores without a lookup one write.
 */
#include "base/alloc.h"
#include "base/bytes.h"
#include "optimizer/trace/trace_fields.h"
#include "optimizer/trace/trace_private.h"
#include "optimizer/trace/trace_waiting.h"

#include <string.h>

struct access {
    uint64_t version, session, block_tokens, request, held;
    int64_t time_us;
    struct tierce__name op, space;
    struct tierce__ids blocks;
    struct tierce__trace_mask mask;
    struct tierce__waiting requests; /* by their number and instance */
};

struct request_name {
    uint64_t request, instance;
};

enum { VERSION, TIME, OP, NAMESPACE, SESSION, TOKENS, REQUEST, HELD, BLOCKS, TIERS, FIELDS };

static const struct tierce__trace_field fields[FIELDS] = {
    [VERSION] = TIERCE__FIELD("tierce_access", COUNT, access, version),
    [TIME] = TIERCE__FIELD("time_us", TIME_US, access, time_us),
    [OP] = TIERCE__FIELD("op", NAME, access, op),
    [NAMESPACE] = TIERCE__FIELD("namespace", NAME, access, space),
    [SESSION] = TIERCE__FIELD("session", COUNT, access, session),
    [TOKENS] = TIERCE__FIELD("block_tokens", COUNT, access, block_tokens),
    [REQUEST] = TIERCE__FIELD("request", COUNT, access, request),
    [HELD] = TIERCE__FIELD("held", COUNT, access, held),
    [BLOCKS] = TIERCE__FIELD("blocks", HEX_IDS, access, blocks),
    [TIERS] = TIERCE__FIELD("tiers", OBJECT, access, version),
};

#define WANTED (1u << VERSION | 1u << TIME | 1u << OP | 1u << BLOCKS)

static bool probe(const char *head, size_t length)
{
    return (tierce__fields_probe(head, length, fields, FIELDS) & 1u << VERSION) != 0;
}

/* Marks the first `held` of a request's blocks. */
static int mark_held(struct access *a, struct tierce__trace_request *request, uint64_t held)
{
    a->mask = (struct tierce__trace_mask){.is_offset = true,
                                          .offset = (int64_t)held,
                                          .flags = a->mask.flags,
                                          .capacity = a->mask.capacity};
    return tierce__mask_apply(&a->mask, &request->internal, request->count);
}

static uint64_t held_of(const struct tierce__trace_request *request)
{
    uint32_t held = 0;
    while (request->internal != NULL && held < request->count && request->internal[held] != 0)
        held++;
    return held;
}

/* Adds these blocks to a waiting request: a lookup, perhaps with earlier stores. TIERCE_E_MISS: it
 * was returned already, or this is another chain. */
static int join_store(struct tierce__trace *trace, struct access *a,
                      struct tierce__order_ticket ticket, const struct tierce__trace_request *store)
{
    const struct tierce__trace_request *waiting = tierce__trace_look(trace, ticket);
    if (waiting == NULL)
        return TIERCE_E_MISS;
    uint32_t both = waiting->count < store->count ? waiting->count : store->count;
    if (both > 0 && memcmp(waiting->blocks, store->blocks, both * sizeof(*store->blocks)) != 0)
        return TIERCE_E_MISS;
    uint32_t stored = waiting->kind == TIERCE__TRACE_READ ? 0 : waiting->count - waiting->unstored;
    struct tierce__trace_request turn = *waiting;
    stored = store->count > stored ? store->count : stored;
    if (turn.kind == TIERCE__TRACE_READ)
        turn.kind = TIERCE__TRACE_TURN;
    if (store->count > turn.count) {
        turn.count = store->count;
        turn.blocks = store->blocks;
    }
    turn.unstored = turn.count - stored;
    int rc = mark_held(a, &turn, held_of(waiting));
    return rc < 0 ? rc : tierce__trace_replace(trace, ticket, &turn);
}

static int hand_on(struct tierce__trace *trace, struct access *a,
                   const struct tierce__trace_request *request)
{
    struct request_name name = {a->request, request->instance};
    struct tierce__order_ticket ticket;
    int rc = TIERCE_E_MISS;
    if (a->request != 0 && request->kind == TIERCE__TRACE_WRITE &&
        tierce__waiting_find(&a->requests, &ticket, &name, sizeof(name)))
        rc = join_store(trace, a, ticket, request);
    if (rc != TIERCE_E_MISS)
        return rc == 0 ? TIERCE__TRACE_JOINED : rc;
    rc = tierce__trace_emit(trace, request, NULL);
    if (rc < 0 || a->request == 0)
        return rc;
    return tierce__waiting_put(&a->requests, trace, &name, sizeof(name),
                               tierce__trace_emitted(trace));
}

static int record(struct tierce__trace *trace, void *state, const char *line, size_t length)
{
    struct access *a = state;
    uint32_t seen;
    int rc = tierce__fields_read(trace, line, length, fields, FIELDS, WANTED, a, &seen);
    if (rc < 0)
        return rc;
    if (a->version != 1)
        return tierce__trace_bad(trace, "is of version %llu, which this build does not read",
                                 (unsigned long long)a->version);
    struct tierce__trace_request request = {.time_us = a->time_us,
                                            .session = a->session,
                                            .kind = TIERCE__TRACE_WRITE,
                                            .count = (uint32_t)a->blocks.count,
                                            .blocks = a->blocks.at};
    if (strcmp(a->op.text, "lookup") == 0) {
        request.kind = TIERCE__TRACE_READ;
        request.read_count = request.count;
        if (!tierce__mul_ok(&request.input_tokens, request.count, a->block_tokens))
            return tierce__trace_bad(trace, "\"block_tokens\" is too large a number");
    } else if (strcmp(a->op.text, "store") != 0) {
        return tierce__trace_bad(trace, "\"op\" is neither lookup nor store");
    }
    if (a->held > a->blocks.count)
        return tierce__trace_bad(trace, "\"held\" is more than there are blocks");
    rc = mark_held(a, &request, a->held);
    if (rc == 0)
        rc = tierce__trace_instance_index(trace, &request.instance, a->space.text, a->space.length);
    return rc < 0 ? rc : hand_on(trace, a, &request);
}

static void fini(void *state)
{
    struct access *a = state;
    tierce__free(a->blocks.at);
    tierce__free(a->mask.flags);
    tierce__waiting_fini(&a->requests);
}

const struct tierce__trace_format tierce__trace_format_access = {
    .state_bytes = sizeof(struct access),
    .probe = probe,
    .record = record,
    .fini = fini,
};
