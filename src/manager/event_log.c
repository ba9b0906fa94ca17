/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/event_log.h"
#include "base/assert.h"

#include "base/json/json_write.h"
#include "base/log/line_log.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static void put_id(struct tierce__json_write *json)
{
    enum { LETTERS = 36, ID_BYTES = 32 };
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char random[ID_BYTES];
    char id[ID_BYTES + 1];
    if (getrandom(random, sizeof(random), GRND_NONBLOCK) != (ssize_t)sizeof(random))
        json->line->failed = true;
    for (size_t i = 0; i < ID_BYTES && !json->line->failed; i++)
        id[i] = letters[random[i] % LETTERS];
    id[ID_BYTES] = '\0';
    if (!json->line->failed)
        tierce__json_write_text(json, "id", id);
}

/* The first fields of all events, in KVCM's order. */
static struct tierce__json_write begin(struct tierce__line *line, const char *source,
                                       const char *component, const char *type, int64_t now_us)
{
    struct tierce__json_write json = {.line = line};
    tierce__json_write_open(&json, NULL, '{');
    put_id(&json);
    tierce__json_write_text(&json, "source", source);
    tierce__json_write_text(&json, "component", component);
    tierce__json_write_text(&json, "type", type);
    tierce__json_write_signed(&json, "trigger_time_us", now_us);
    return json;
}

static void end(struct tierce__json_write *json, struct tierce__line_log *log)
{
    TIERCE_DASSERT(json->depth == 1);
    tierce__json_write_close(json, '}');
    tierce__line_end(json->line, log);
}

static void put_numbers(struct tierce__json_write *json, const char *name, const int64_t *numbers,
                        size_t count)
{
    tierce__json_write_open(json, name, '[');
    for (size_t i = 0; i < count; i++)
        tierce__json_write_signed(json, NULL, numbers[i]);
    tierce__json_write_close(json, ']');
}

static void put_strings(struct tierce__json_write *json, const char *name, const char *const *texts,
                        size_t count)
{
    tierce__json_write_open(json, name, '[');
    for (size_t i = 0; i < count; i++)
        tierce__json_write_text(json, NULL, texts[i]);
    tierce__json_write_close(json, ']');
}

static void put_mask(struct tierce__json_write *json, const char *name,
                     const struct tierce__mask *mask)
{
    if (!mask->is_values) {
        tierce__json_write_signed(json, name, mask->offset);
        return;
    }
    TIERCE_DASSERT(mask->count == 0 || mask->values != NULL);
    tierce__json_write_open(json, name, '[');
    for (size_t i = 0; i < mask->count; i++)
        tierce__json_write_bool(json, NULL, mask->values[i]);
    tierce__json_write_close(json, ']');
}

static const char *query_name(int query)
{
    TIERCE_DASSERT(query >= TIERCE__QUERY_BATCH && query <= TIERCE__QUERY_WINDOW);
    return query == TIERCE__QUERY_BATCH    ? "batch_get"
           : query == TIERCE__QUERY_PREFIX ? "prefix_match"
                                           : "reverse_roll_sw_match";
}

/* Nothing if the instance has no kind of attention, so that KVCM's lines are as KVCM writes them.
 */
static void put_layers(struct tierce__json_write *json, const struct tierce__layers_note *layers)
{
    if (layers == NULL)
        return;
    TIERCE_DASSERT(layers->attention.kind[0] != '\0');
    tierce__json_write_text(json, "attention_kind", layers->attention.kind);
    tierce__json_write_signed(json, "window_tokens", layers->attention.window_tokens);
    tierce__json_write_signed(json, "every_tokens", layers->attention.every_tokens);
    tierce__json_write_text(json, "attention_family", layers->attention.family);
    tierce__json_write_text(json, "attention_layers", layers->attention.layers);
    tierce__json_write_text(json, "instance_group", layers->group);
}

static void put_block_size(struct tierce__json_write *json, int32_t block_size)
{
    tierce__json_write_signed(json, "block_size", block_size > 0 ? block_size : 0);
}

/* A single number if all blocks have the same size, which is the case unless spec groups are
 * named. `bytes` NULL: unknown. */
static void put_block_bytes(struct tierce__json_write *json, const uint64_t *bytes, size_t count)
{
    size_t same = 0;
    if (count == 0 || bytes == NULL)
        return;
    while (same < count && bytes[same] == bytes[0])
        same++;
    if (same == count) {
        tierce__json_write_count(json, "block_bytes", bytes[0]);
        return;
    }
    tierce__json_write_open(json, "block_bytes", '[');
    for (size_t i = 0; i < count; i++)
        tierce__json_write_count(json, NULL, bytes[i]);
    tierce__json_write_close(json, ']');
}

void tierce__events_get(struct tierce__line_log *log, int64_t now_us,
                        const struct tierce__get_request *request, const int64_t *tokens,
                        size_t token_count, const struct tierce__got *got)
{
    struct tierce__line line = {0};
    if (!tierce__line_log_is_read(log))
        return;
    struct tierce__json_write json =
        begin(&line, request->instance_id, "cache_manager", "GetCacheLocation", now_us);
    tierce__json_write_text(&json, "query_type", query_name(request->query));
    put_numbers(&json, "keys", request->keys, request->count);
    put_numbers(&json, "tokens", tokens, token_count);
    put_mask(&json, "block_mask", &request->mask);
    tierce__json_write_signed(&json, "sw_size", request->window);
    put_strings(&json, "location_spec_names", request->spec_names, request->spec_name_count);
    put_block_size(&json, got->block_size);
    tierce__json_write_count(&json, "hits", got->hits);
    put_layers(&json, got->layers);
    TIERCE_DASSERT(got->count <= request->count);
    end(&json, log);
}

void tierce__events_start(struct tierce__line_log *log, int64_t now_us,
                          const struct tierce__write_request *request, const int64_t *tokens,
                          size_t token_count, const struct tierce__started *started)
{
    struct tierce__line line = {0};
    if (!tierce__line_log_is_read(log))
        return;
    struct tierce__json_write json =
        begin(&line, request->instance_id, "cache_manager", "StartWriteCache", now_us);
    tierce__json_write_text(&json, "write_session_id", started->session);
    put_numbers(&json, "keys", request->keys, request->count);
    put_numbers(&json, "tokens", tokens, token_count);
    put_mask(&json, "block_mask", &started->mask);
    put_strings(&json, "location_spec_group_names", request->spec_groups,
                request->spec_groups != NULL ? request->count : 0);
    tierce__json_write_signed(&json, "write_timeout_seconds", request->timeout_s);
    put_block_size(&json, started->block_size);
    put_block_bytes(&json, started->bytes, request->count);
    put_layers(&json, started->layers);
    end(&json, log);
    TIERCE_DASSERT(started->count <= request->count);
}

void tierce__events_finish(struct tierce__line_log *log, int64_t now_us, const char *instance_id,
                           const char *session, const struct tierce__mask *written)
{
    struct tierce__line line = {0};
    if (!tierce__line_log_is_read(log))
        return;
    struct tierce__json_write json =
        begin(&line, instance_id, "cache_manager", "FinishWriteCache", now_us);
    tierce__json_write_text(&json, "write_session_id", session);
    put_mask(&json, "success_block", written);
    end(&json, log);
}

void tierce__events_finish_entries(struct tierce__line_log *log, int64_t now_us,
                                   const char *instance_id, const char *session,
                                   const struct tierce__entries_ended *ended)
{
    struct tierce__line line = {0};
    struct tierce__mask written = {
        .is_values = true, .values = ended->written, .count = ended->count};
    if (!tierce__line_log_is_read(log))
        return;
    struct tierce__json_write json =
        begin(&line, instance_id, "cache_manager", "FinishWriteCache", now_us);
    tierce__json_write_text(&json, "write_session_id", session);
    put_mask(&json, "success_block", &written);
    tierce__json_write_open(&json, "block_bytes", '[');
    for (size_t i = 0; i < ended->count; i++)
        tierce__json_write_count(&json, NULL, ended->bytes[i]);
    tierce__json_write_close(&json, ']');
    end(&json, log);
}

void tierce__events_remove(struct tierce__line_log *log, int64_t now_us, const char *instance_id,
                           const int64_t *keys, size_t count, const struct tierce__mask *mask)
{
    struct tierce__line line = {0};
    if (!tierce__line_log_is_read(log))
        return;
    struct tierce__json_write json =
        begin(&line, instance_id, "cache_manager", "RemoveCache", now_us);
    TIERCE_DASSERT(count == 0 || keys != NULL);
    tierce__json_write_open(&json, "keys", '[');
    for (size_t i = 0; i < count; i++) {
        if (!tierce__mask_has(mask, i))
            tierce__json_write_signed(&json, NULL, keys[i]);
    }
    tierce__json_write_close(&json, ']');
    end(&json, log);
}

void tierce__events_trim(struct tierce__line_log *log, int64_t now_us, const char *instance_id,
                         int trim, int64_t begin_s, int64_t end_s)
{
    static const char *const names[] = {[TIERCE__TRIM_ALL] = "remove_all_cache",
                                        [TIERCE__TRIM_META] = "remove_all_meta",
                                        [TIERCE__TRIM_TIME] = "timestamp"};
    struct tierce__line line = {0};
    TIERCE_DASSERT(trim >= TIERCE__TRIM_ALL && trim <= TIERCE__TRIM_TIME);
    if (!tierce__line_log_is_read(log))
        return;
    struct tierce__json_write json =
        begin(&line, instance_id, "cache_manager", "TrimCache", now_us);
    tierce__json_write_text(&json, "strategy", names[trim]);
    if (trim == TIERCE__TRIM_TIME) {
        tierce__json_write_signed(&json, "begin_timestamp", begin_s);
        tierce__json_write_signed(&json, "end_timestamp", end_s);
    }
    end(&json, log);
}

void tierce__events_reclaim(struct tierce__line_log *log, int64_t now_us, const char *instance_id,
                            const struct tierce__reclaimed *gone, size_t count, int64_t delay_us)
{
    struct tierce__line line = {0};
    char id[TIERCE__LOCATION_ID_BYTES + 1] = "";
    if (!tierce__line_log_is_read(log))
        return;
    struct tierce__json_write json =
        begin(&line, instance_id, "cache_reclaimer", "CacheReclaimSubmit", now_us);
    TIERCE_DASSERT(count > 0 && delay_us >= 0);
    tierce__json_write_open(&json, "block_keys", '[');
    for (size_t i = 0; i < count; i++)
        tierce__json_write_signed(&json, NULL, gone[i].key);
    tierce__json_write_close(&json, ']');
    tierce__json_write_open(&json, "location_ids", '[');
    for (size_t i = 0; i < count; i++) {
        memcpy(id, gone[i].location_id, TIERCE__LOCATION_ID_BYTES);
        tierce__json_write_text(&json, NULL, id);
    }
    tierce__json_write_close(&json, ']');
    tierce__json_write_signed(&json, "delay_us", delay_us);
    end(&json, log);
}

void tierce__events_other(struct tierce__line_log *log, int64_t now_us, const char *source,
                          const char *component, const char *type, const char *fields)
{
    TIERCE_DASSERT(fields[0] == '\0' || fields[0] == ',');
    struct tierce__line line = {0};
    if (!tierce__line_log_is_read(log))
        return;
    struct tierce__json_write json = begin(&line, source, component, type, now_us);
    tierce__line_put(&line, fields);
    end(&json, log);
}
