/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/event_log.h"

#include "manager/line_log.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static void put_id(struct tierce__line *line)
{
    enum { LETTERS = 36, ID_BYTES = 32 };
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char random[ID_BYTES];
    char id[ID_BYTES + 1];
    if (getrandom(random, sizeof(random), GRND_NONBLOCK) != (ssize_t)sizeof(random))
        line->failed = true;
    for (size_t i = 0; i < ID_BYTES && !line->failed; i++)
        id[i] = letters[random[i] % LETTERS];
    id[ID_BYTES] = '\0';
    if (!line->failed)
        tierce__line_put_string(line, id);
}

/* The first fields of all events, in KVCM's order. */
static void begin(struct tierce__line *line, const char *source, const char *component,
                  const char *type, int64_t now_us)
{
    tierce__line_put(line, "{\"id\":");
    put_id(line);
    tierce__line_put(line, ",\"source\":");
    tierce__line_put_string(line, source);
    tierce__line_put(line, ",\"component\":");
    tierce__line_put_string(line, component);
    tierce__line_put(line, ",\"type\":");
    tierce__line_put_string(line, type);
    tierce__line_put(line, ",\"trigger_time_us\":");
    tierce__line_put_int(line, now_us);
}

static void end(struct tierce__line *line, struct tierce__line_log *log)
{
    tierce__line_put(line, "}");
    tierce__line_end(line, log);
}

static void put_numbers(struct tierce__line *line, const char *name, const int64_t *numbers,
                        size_t count)
{
    tierce__line_put(line, ",\"");
    tierce__line_put(line, name);
    tierce__line_put(line, "\":[");
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            tierce__line_put(line, ",");
        tierce__line_put_int(line, numbers[i]);
    }
    tierce__line_put(line, "]");
}

static void put_strings(struct tierce__line *line, const char *name, const char *const *texts,
                        size_t count)
{
    tierce__line_put(line, ",\"");
    tierce__line_put(line, name);
    tierce__line_put(line, "\":[");
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            tierce__line_put(line, ",");
        tierce__line_put_string(line, texts[i]);
    }
    tierce__line_put(line, "]");
}

static void put_mask(struct tierce__line *line, const char *name, const struct tierce__mask *mask)
{
    tierce__line_put(line, ",\"");
    tierce__line_put(line, name);
    tierce__line_put(line, "\":");
    if (!mask->is_values) {
        tierce__line_put_int(line, mask->offset);
        return;
    }
    tierce__line_put(line, "[");
    for (size_t i = 0; i < mask->count; i++) {
        if (i > 0)
            tierce__line_put(line, ",");
        tierce__line_put(line, mask->values[i] ? "true" : "false");
    }
    tierce__line_put(line, "]");
}

static const char *query_name(int query)
{
    return query == TIERCE__QUERY_BATCH    ? "batch_get"
           : query == TIERCE__QUERY_PREFIX ? "prefix_match"
                                           : "reverse_roll_sw_match";
}

static void put_block_size(struct tierce__line *line, int32_t block_size)
{
    tierce__line_put(line, ",\"block_size\":");
    tierce__line_put_int(line, block_size > 0 ? block_size : 0);
}

/* A single number if all blocks have the same size, which is the case unless spec groups are
 * named. */
static void put_block_bytes(struct tierce__line *line, const uint64_t *bytes, size_t count)
{
    size_t same = 0;
    while (same < count && bytes[same] == bytes[0])
        same++;
    if (count == 0)
        return;
    tierce__line_put(line, same == count ? ",\"block_bytes\":" : ",\"block_bytes\":[");
    for (size_t i = 0; i < (same == count ? 1 : count); i++) {
        tierce__line_put(line, i > 0 ? "," : "");
        tierce__line_put_int(line, (int64_t)bytes[i]);
    }
    tierce__line_put(line, same == count ? "" : "]");
}

void tierce__events_get(struct tierce__line_log *log, int64_t now_us,
                        const struct tierce__get_request *request, const int64_t *tokens,
                        size_t token_count, const struct tierce__got *got)
{
    struct tierce__line line = {0};
    if (!tierce__line_log_is_read(log))
        return;
    begin(&line, request->instance_id, "cache_manager", "GetCacheLocation", now_us);
    tierce__line_put(&line, ",\"query_type\":");
    tierce__line_put_string(&line, query_name(request->query));
    put_numbers(&line, "keys", request->keys, request->count);
    put_numbers(&line, "tokens", tokens, token_count);
    put_mask(&line, "block_mask", &request->mask);
    tierce__line_put(&line, ",\"sw_size\":");
    tierce__line_put_int(&line, request->window);
    put_strings(&line, "location_spec_names", request->spec_names, request->spec_name_count);
    put_block_size(&line, got->block_size);
    end(&line, log);
}

void tierce__events_start(struct tierce__line_log *log, int64_t now_us,
                          const struct tierce__write_request *request, const int64_t *tokens,
                          size_t token_count, const struct tierce__started *started)
{
    struct tierce__line line = {0};
    if (!tierce__line_log_is_read(log))
        return;
    begin(&line, request->instance_id, "cache_manager", "StartWriteCache", now_us);
    tierce__line_put(&line, ",\"write_session_id\":");
    tierce__line_put_string(&line, started->session);
    put_numbers(&line, "keys", request->keys, request->count);
    put_numbers(&line, "tokens", tokens, token_count);
    put_mask(&line, "block_mask", &started->mask);
    put_strings(&line, "location_spec_group_names", request->spec_groups,
                request->spec_groups != NULL ? request->count : 0);
    tierce__line_put(&line, ",\"write_timeout_seconds\":");
    tierce__line_put_int(&line, request->timeout_s);
    put_block_size(&line, started->block_size);
    put_block_bytes(&line, started->bytes, request->count);
    end(&line, log);
}

void tierce__events_finish(struct tierce__line_log *log, int64_t now_us, const char *instance_id,
                           const char *session, const struct tierce__mask *written)
{
    struct tierce__line line = {0};
    if (!tierce__line_log_is_read(log))
        return;
    begin(&line, instance_id, "cache_manager", "FinishWriteCache", now_us);
    tierce__line_put(&line, ",\"write_session_id\":");
    tierce__line_put_string(&line, session);
    put_mask(&line, "success_block", written);
    end(&line, log);
}

void tierce__events_reclaim(struct tierce__line_log *log, int64_t now_us, const char *instance_id,
                            const struct tierce__reclaimed *gone, size_t count, int64_t delay_us)
{
    struct tierce__line line = {0};
    char id[TIERCE__LOCATION_ID_BYTES + 1] = "";
    if (!tierce__line_log_is_read(log))
        return;
    begin(&line, instance_id, "cache_reclaimer", "CacheReclaimSubmit", now_us);
    tierce__line_put(&line, ",\"block_keys\":[");
    for (size_t i = 0; i < count; i++) {
        tierce__line_put(&line, i > 0 ? "," : "");
        tierce__line_put_int(&line, gone[i].key);
    }
    tierce__line_put(&line, "],\"location_ids\":[");
    for (size_t i = 0; i < count; i++) {
        tierce__line_put(&line, i > 0 ? "," : "");
        memcpy(id, gone[i].location_id, TIERCE__LOCATION_ID_BYTES);
        tierce__line_put_string(&line, id);
    }
    tierce__line_put(&line, "],\"delay_us\":");
    tierce__line_put_int(&line, delay_us);
    end(&line, log);
}

void tierce__events_other(struct tierce__line_log *log, int64_t now_us, const char *source,
                          const char *component, const char *type, const char *fields)
{
    struct tierce__line line = {0};
    if (!tierce__line_log_is_read(log))
        return;
    begin(&line, source, component, type, now_us);
    tierce__line_put(&line, fields);
    end(&line, log);
}
