/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event log of KVCM, and of `tierce manager`, one JSON object a line.
 *
 *     GetCacheLocation     a read
 *     StartWriteCache      a write of all its keys, which stores those that were there already
 *     FinishWriteCache     the end of that write, and the other keys that it stored
 *     CacheReclaimSubmit   a removal
 *     RemoveCache          a removal, by a client
 *
 * A write stores only the leading keys that existed or were written: keys after a failed one are a
 * suffix without its prefix. Without a FinishWriteCache nothing was written, and the write is taken
 * to end 100 ms after it began. (KVCM replays all keys of every write, and so do kvcm.c and its
 * policies.)
 *
 * Entries by name do not follow each other. Their writes have sizes at the end, not at the
 * beginning, and become writes of the entries that were written.
 *
 * A write whose end has not been read waits in the sorting window, with its existing keys marked as
 * internal.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "optimizer/trace/trace_fields.h"
#include "optimizer/trace/formats/trace_kvcm.h"
#include "optimizer/trace/trace_private.h"
#include "optimizer/trace/trace_waiting.h"

#include <errno.h>
#include <string.h>

#define UNFINISHED_US 100000

struct kvcm_log {
    int64_t time_us, window;
    uint64_t tokens, block_tokens;
    struct tierce__name type, source, query, session;
    struct tierce__name kind, family, layers, group; /* of the instance */
    uint64_t window_tokens, every_tokens;
    struct tierce__ids keys, gone, bytes;
    struct tierce__trace_mask mask, success;
    struct tierce__waiting begun; /* writes, by their session */
};

enum {
    TYPE,
    TIME,
    SOURCE,
    QUERY,
    KEYS,
    TOKENS,
    MASK,
    WINDOW,
    SESSION,
    SUCCESS,
    GONE,
    BLOCK_SIZE,
    BLOCK_BYTES,
    KIND,
    WINDOW_TOKENS,
    EVERY_TOKENS,
    FAMILY,
    LAYERS,
    GROUP,
    FIELDS
};

static const struct tierce__trace_field fields[FIELDS] = {
    [TYPE] = TIERCE__FIELD("type", NAME, kvcm_log, type),
    [TIME] = TIERCE__FIELD("trigger_time_us", TIME_US, kvcm_log, time_us),
    [SOURCE] = TIERCE__FIELD("source", NAME, kvcm_log, source),
    [QUERY] = TIERCE__FIELD("query_type", NAME, kvcm_log, query),
    [KEYS] = TIERCE__FIELD("keys", IDS, kvcm_log, keys),
    [TOKENS] = TIERCE__FIELD("tokens", LENGTH, kvcm_log, tokens),
    [MASK] = TIERCE__FIELD("block_mask", MASK, kvcm_log, mask),
    [WINDOW] = TIERCE__FIELD("sw_size", INTEGER, kvcm_log, window),
    [SESSION] = TIERCE__FIELD("write_session_id", NAME, kvcm_log, session),
    [SUCCESS] = TIERCE__FIELD("success_block", MASK, kvcm_log, success),
    [GONE] = TIERCE__FIELD("block_keys", IDS, kvcm_log, gone),
    [BLOCK_SIZE] = TIERCE__FIELD("block_size", COUNT, kvcm_log, block_tokens),
    [BLOCK_BYTES] = TIERCE__FIELD("block_bytes", SIZES, kvcm_log, bytes),
    [KIND] = TIERCE__FIELD("attention_kind", NAME, kvcm_log, kind),
    [WINDOW_TOKENS] = TIERCE__FIELD("window_tokens", COUNT, kvcm_log, window_tokens),
    [EVERY_TOKENS] = TIERCE__FIELD("every_tokens", COUNT, kvcm_log, every_tokens),
    [FAMILY] = TIERCE__FIELD("attention_family", NAME, kvcm_log, family),
    [LAYERS] = TIERCE__FIELD("attention_layers", NAME, kvcm_log, layers),
    [GROUP] = TIERCE__FIELD("instance_group", NAME, kvcm_log, group),
};

#define WANTED (1u << TYPE | 1u << TIME)

static bool probe(const char *head, size_t length)
{
    return (tierce__fields_probe(head, length, fields, FIELDS) & WANTED) == WANTED;
}

/* ---- records -------------------------------------------------------------------------------- */

/* Fewer tokens than a block yield no key; more tokens without a key mean a block of unknown
 * length. */
static int check_keys(struct tierce__trace *trace, const struct kvcm_log *k)
{
    if (k->keys.count == 0 && k->tokens > 0 && k->tokens >= k->block_tokens)
        return tierce__trace_bad(trace,
                                 "has tokens and no keys, and the length of a block is not given");
    return 0;
}

static int note_layers(struct tierce__trace *trace, const struct kvcm_log *k, uint32_t instance)
{
    if (k->kind.length == 0)
        return 0;
    if (k->window_tokens > UINT32_MAX || k->every_tokens > UINT32_MAX ||
        k->block_tokens > UINT32_MAX)
        return tierce__trace_bad(trace, "\"block_size\", \"window_tokens\" or \"every_tokens\" is "
                                        "too large a number");
    return tierce__trace_set_layers(
        trace, instance,
        &(struct tierce__trace_layers){.kind = k->kind.text,
                                       .group = k->group.text,
                                       .family = k->family.text,
                                       .layers = k->layers.text,
                                       .block_tokens = (uint32_t)k->block_tokens,
                                       .window_tokens = (uint32_t)k->window_tokens,
                                       .every_tokens = (uint32_t)k->every_tokens});
}

/* The common part of all requests. */
static int begin(struct tierce__trace *trace, struct kvcm_log *k,
                 struct tierce__trace_request *request, enum tierce__trace_kind kind)
{
    *request = (struct tierce__trace_request){.time_us = k->time_us,
                                              .kind = kind,
                                              .count = (uint32_t)k->keys.count,
                                              .blocks = k->keys.at};
    int rc = check_keys(trace, k);
    if (rc == 0)
        rc = tierce__mask_apply(&k->mask, &request->internal, request->count);
    if (rc == 0)
        rc = tierce__trace_instance_index(trace, &request->instance, k->source.text,
                                          k->source.length);
    return rc < 0 ? rc : note_layers(trace, k, request->instance);
}

static int read_lookup(struct tierce__trace *trace, struct kvcm_log *k)
{
    struct tierce__trace_request request;
    int rc = begin(trace, k, &request, TIERCE__TRACE_READ);
    if (rc == 0)
        rc = tierce__kvcm_read_query(trace, &request, k->query.text, k->window);
    if (rc < 0)
        return rc;
    request.read_count = request.count;
    request.input_tokens = k->tokens;
    if (k->tokens == 0 && !tierce__mul_ok(&request.input_tokens, request.count, k->block_tokens))
        return tierce__trace_bad(trace, "\"block_size\" is too large a number");
    return tierce__trace_emit(trace, &request, NULL);
}

/* The sizes of a write's blocks; a single size applies to all. */
static int read_sizes(struct tierce__trace *trace, struct kvcm_log *k,
                      struct tierce__trace_request *request)
{
    if (k->bytes.count == 0 || request->count == 0)
        return 0;
    if (k->bytes.count != 1 && k->bytes.count != request->count)
        return tierce__trace_bad(trace, "\"block_bytes\" is neither one size nor one for each key");
    uint64_t first = k->bytes.at[0];
    bool is_one = k->bytes.count == 1;
    while (k->bytes.count < request->count) {
        if (tierce__ids_reserve(&k->bytes) < 0)
            return -ENOMEM;
        k->bytes.at[k->bytes.count++] = first;
    }
    for (size_t i = 0; i < (is_one ? 1 : k->bytes.count); i++)
        tierce__trace_note_block(trace, k->bytes.at[i]);
    request->bytes = k->bytes.at;
    return 0;
}

/* In logs of older KVCM versions writes have no mask, so it is unknown which keys `success_block`
 * refers to: as in KVCM, all keys count as stored. */
static int read_start(struct tierce__trace *trace, struct kvcm_log *k, bool has_mask)
{
    struct tierce__trace_request request;
    struct tierce__order_ticket ticket;
    uint32_t there = 0;
    if (k->session.length == 0 || k->session.length > TIERCE__WAITING_NAME_MAX)
        return tierce__trace_bad(trace, "\"write_session_id\" is missing or longer than %u bytes",
                                 TIERCE__WAITING_NAME_MAX);
    if (k->time_us > INT64_MAX - UNFINISHED_US)
        return tierce__trace_bad(trace, "\"trigger_time_us\" is too large a number");
    int rc = begin(trace, k, &request, TIERCE__TRACE_WRITE);
    if (rc == 0)
        rc = read_sizes(trace, k, &request);
    if (rc < 0)
        return rc;
    while (request.internal != NULL && there < request.count && request.internal[there] != 0)
        there++;
    request.unstored = has_mask ? request.count - there : 0;
    request.time_us += UNFINISHED_US;
    rc = tierce__trace_emit(trace, &request, &ticket);
    /* The same session again: the write before stays unfinished. */
    return rc < 0
               ? rc
               : tierce__waiting_put(&k->begun, trace, k->session.text, k->session.length, ticket);
}

/* Whether the `index`-th of the keys that a session had to write was written. */
static bool is_written(const struct tierce__trace_mask *success, uint32_t index)
{
    if (success->is_offset)
        return success->offset < 0 || index < (uint64_t)success->offset;
    return index < success->count && success->flags[index] != 0;
}

/* Returns the number of leading keys of a write that are stored at its end. */
static uint32_t count_stored(const struct tierce__trace_mask *success,
                             const struct tierce__trace_request *write)
{
    uint32_t at = 0, own = 0;
    for (; at < write->count; at++) {
        bool was_there = write->internal != NULL && write->internal[at] != 0;
        if (!was_there && !is_written(success, own++))
            break;
    }
    return at;
}

/* Keeps those of the entries of a write that were written, in k->keys, with their sizes, in
 * k->bytes. */
static int keep_written(struct tierce__trace *trace, struct kvcm_log *k,
                        struct tierce__trace_request *write)
{
    size_t own = 0, kept = 0;
    k->keys.count = 0;
    for (uint32_t i = 0; i < write->count; i++) {
        if (write->internal != NULL && write->internal[i] != 0)
            continue;
        if (own == k->bytes.count)
            return tierce__trace_bad(trace, "\"block_bytes\" has no size for each key");
        uint64_t bytes = k->bytes.at[own];
        if (!is_written(&k->success, (uint32_t)own++))
            continue;
        if (tierce__ids_reserve(&k->keys) < 0)
            return -ENOMEM;
        tierce__trace_note_block(trace, bytes);
        k->keys.at[k->keys.count++] = write->blocks[i];
        k->bytes.at[kept++] = bytes; /* kept < own */
    }
    write->count = (uint32_t)kept;
    write->blocks = k->keys.at;
    write->bytes = k->bytes.at;
    write->unstored = 0;
    return 0;
}

/* Blocks of windows and states can be used without the blocks before them. */
static bool is_sparse(const struct tierce__trace *trace, uint32_t instance)
{
    const struct tierce__trace_layers *layers = tierce__trace_layers(trace, instance);
    return layers != NULL && strcmp(layers->kind, "all") != 0 && strcmp(layers->kind, "full") != 0;
}

/* Keeps those of the keys of a write that are stored at its end, in k->keys, with their sizes, in
 * k->bytes. */
static int keep_stored(struct kvcm_log *k, struct tierce__trace_request *write)
{
    uint32_t own = 0, kept = 0;
    k->keys.count = k->bytes.count = 0;
    for (uint32_t i = 0; i < write->count; i++) {
        bool was_there = write->internal != NULL && write->internal[i] != 0;
        if (!was_there && !is_written(&k->success, own++))
            continue;
        if (tierce__ids_reserve(&k->keys) < 0 || tierce__ids_reserve(&k->bytes) < 0)
            return -ENOMEM;
        k->keys.at[k->keys.count++] = write->blocks[i];
        k->bytes.at[k->bytes.count++] = write->bytes != NULL ? write->bytes[i] : 0;
        kept++;
    }
    TIERCE_ASSERT(kept <= write->count);
    write->count = kept;
    write->blocks = k->keys.at;
    write->bytes = write->bytes != NULL ? k->bytes.at : NULL;
    write->unstored = 0;
    return 0;
}

/* Sets the stored blocks of a waiting write. TIERCE_E_MISS: it was returned already. */
static int end_write(struct tierce__trace *trace, struct kvcm_log *k,
                     struct tierce__order_ticket ticket, bool has_success)
{
    const struct tierce__trace_request *waiting = tierce__trace_look(trace, ticket);
    if (waiting == NULL)
        return TIERCE_E_MISS;
    struct tierce__trace_request write = *waiting;
    if (k->bytes.count > 0 && has_success) {
        int bad = keep_written(trace, k, &write);
        if (bad < 0)
            return bad;
    } else if (write.unstored > 0 && has_success && is_sparse(trace, write.instance)) {
        if (keep_stored(k, &write) < 0)
            return -ENOMEM;
    } else if (write.unstored > 0) {
        write.unstored = has_success ? write.count - count_stored(&k->success, waiting) : 0;
    }
    write.internal = NULL;
    int rc = tierce__trace_replace(trace, ticket, &write);
    return rc < 0 ? rc : tierce__trace_retime(trace, ticket, k->time_us);
}

static int read_finish(struct tierce__trace *trace, struct kvcm_log *k, bool has_success)
{
    if (k->session.length == 0)
        return tierce__trace_bad(trace, "\"write_session_id\" is missing");
    /* The keys are in the write's beginning, which is missing: the log begins later, or the window
     * is too small. */
    struct tierce__order_ticket ticket;
    if (!tierce__waiting_find(&k->begun, &ticket, k->session.text, k->session.length))
        return TIERCE__TRACE_SKIPPED;
    int rc = end_write(trace, k, ticket, has_success);
    if (rc == 0 || rc == TIERCE_E_MISS)
        tierce__waiting_forget(&k->begun, k->session.text, k->session.length);
    return rc == TIERCE_E_MISS ? TIERCE__TRACE_SKIPPED : rc == 0 ? TIERCE__TRACE_JOINED : rc;
}

static int read_removal(struct tierce__trace *trace, const struct kvcm_log *k,
                        const struct tierce__ids *gone)
{
    struct tierce__trace_request request = {.time_us = k->time_us,
                                            .kind = TIERCE__TRACE_DROP,
                                            .count = (uint32_t)gone->count,
                                            .blocks = gone->at};
    if (gone->count == 0)
        return TIERCE__TRACE_NOTICE; /* a removal that names no block removes all */
    int rc =
        tierce__trace_instance_index(trace, &request.instance, k->source.text, k->source.length);
    return rc < 0 ? rc : tierce__trace_emit(trace, &request, NULL);
}

/* Events of a manager's leadership and storages, and removals that name no block: no request. */
static bool is_notice(const char *type)
{
    static const char *const notices[] = {"LeaderPromoted", "LeaderDemoted", "StorageWell",
                                          "StorageUnwell", "TrimCache"};
    for (size_t i = 0; i < sizeof(notices) / sizeof(notices[0]); i++) {
        if (strcmp(type, notices[i]) == 0)
            return true;
    }
    return false;
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
        return read_start(trace, k, (seen & 1u << MASK) != 0);
    if (strcmp(k->type.text, "FinishWriteCache") == 0)
        return read_finish(trace, k, (seen & 1u << SUCCESS) != 0);
    if (strcmp(k->type.text, "CacheReclaimSubmit") == 0)
        return read_removal(trace, k, &k->gone);
    if (strcmp(k->type.text, "RemoveCache") == 0)
        return read_removal(trace, k, &k->keys);
    return is_notice(k->type.text) ? TIERCE__TRACE_NOTICE : TIERCE__TRACE_SKIPPED;
}

static void fini(void *state)
{
    struct kvcm_log *k = state;
    tierce__free(k->keys.at);
    tierce__free(k->gone.at);
    tierce__free(k->bytes.at);
    tierce__free(k->mask.flags);
    tierce__free(k->success.flags);
    tierce__waiting_fini(&k->begun);
}

const struct tierce__trace_format tierce__trace_format_kvcm_log = {
    .state_bytes = sizeof(struct kvcm_log),
    .probe = probe,
    .record = record,
    .fini = fini,
};
