/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines and scripts of the Redis store. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log_repeat.h"
#include "manager/meta_redis_private.h"

/*
 * Every script begins with KEYS[1], the fence, and ARGV[1], the writer's token, "" for none. Tokens
 * are padded to one length, so that they compare as texts: numbers of Lua are doubles.
 */
#define CHECK_FENCE                                                                                \
    "local seen = redis.call('GET', KEYS[1])\n"                                                    \
    "if ARGV[1] ~= '' and seen and seen > ARGV[1] then\n"                                          \
    "  return redis.error_reply('FENCED by a later leader')\n"                                     \
    "end\n"

static const char fence_script[] = CHECK_FENCE "if ARGV[1] ~= '' then\n"
                                               "  redis.call('SET', KEYS[1], ARGV[1])\n"
                                               "end\n"
                                               "return 1\n";

/*
 * KEYS: fence, metadata, sorted set. ARGV: token, prefix of records, prefix of notes; puts, each a
 * key, its place in the order, and the fields' values; deletes, each a key and its place; notes,
 * each a kind, a number, whether it stays, and its value; counters, each a number and what is
 * added. A count stands before each kind.
 */
static const char write_script[] = CHECK_FENCE
    "local at = 4\n"
    "local function take() local v = ARGV[at]; at = at + 1; return v end\n"
    "for i = 1, tonumber(take()) do\n"
    "  local key = ARGV[2] .. take()\n"
    "  redis.call('ZADD', KEYS[3], 0, take())\n"
    "  local form, uri, lru, hits, prev = take(), take(), take(), take(), take()\n"
    "  redis.call('DEL', key)\n"
    "  redis.call('HSET', key, '__tierce__', form, '__lru_time__', lru, '__hit_count__', hits,\n"
    "    '_prev_key_', prev)\n"
    "  if uri ~= '' then redis.call('HSET', key, '__uri__', uri) end\n"
    "end\n"
    "for i = 1, tonumber(take()) do\n"
    "  redis.call('DEL', ARGV[2] .. take())\n"
    "  redis.call('ZREM', KEYS[3], take())\n"
    "end\n"
    "for i = 1, tonumber(take()) do\n"
    "  local notes, number, stays, value = ARGV[3] .. take(), take(), take(), take()\n"
    "  if stays == '1' then redis.call('HSET', notes, number, value)\n"
    "  else redis.call('HDEL', notes, number) end\n"
    "end\n"
    "for i = 1, tonumber(take()) do\n"
    "  local field, added = 'tierce:' .. take(), take()\n"
    "  redis.call('HINCRBY', KEYS[2], field, added)\n"
    "  if field == 'tierce:0' then\n"
    "    redis.call('HSET', KEYS[2], '__key_count__', redis.call('HGET', KEYS[2], field))\n"
    "  end\n"
    "end\n"
    "return 1\n";

/* KEYS: fence. ARGV: token, then a key of a record, a time and a number of uses each. */
static const char touch_script[] =
    CHECK_FENCE "for i = 2, #ARGV, 3 do\n"
                "  if redis.call('EXISTS', ARGV[i]) == 1 then\n"
                "    local lru = redis.call('HGET', ARGV[i], '__lru_time__')\n"
                "    if not lru or (tonumber(lru) or 0) < tonumber(ARGV[i + 1]) then\n"
                "      redis.call('HSET', ARGV[i], '__lru_time__', ARGV[i + 1])\n"
                "    end\n"
                "    redis.call('HINCRBY', ARGV[i], '__hit_count__', ARGV[i + 2])\n"
                "  end\n"
                "end\n"
                "return 1\n";

static const char *const script_texts[TIERCE__REDIS_SCRIPTS] = {
    [TIERCE__REDIS_FENCE] = fence_script,
    [TIERCE__REDIS_WRITE] = write_script,
    [TIERCE__REDIS_TOUCH] = touch_script,
};

/* ---- commands ------------------------------------------------------------------------------- */

static int grow(struct tierce__redis_command *command)
{
    enum { FIRST = 64 };
    size_t capacity = command->capacity > 0 ? command->capacity * 2 : FIRST;
    const char **texts = tierce__arena_alloc(command->arena, capacity * sizeof(char *));
    size_t *bytes = tierce__arena_alloc(command->arena, capacity * sizeof(*bytes));
    if (texts == NULL || bytes == NULL)
        return -ENOMEM;
    if (command->count > 0) {
        memcpy((void *)texts, (const void *)command->texts, command->count * sizeof(char *));
        memcpy(bytes, command->bytes, command->count * sizeof(*bytes));
    }
    command->texts = texts;
    command->bytes = bytes;
    command->capacity = capacity;
    return 0;
}

void tierce__redis_add(struct tierce__redis_command *command, const char *text, size_t bytes)
{
    if (command->rc == 0 && command->count == command->capacity)
        command->rc = grow(command);
    if (command->rc < 0)
        return;
    command->texts[command->count] = text;
    command->bytes[command->count++] = bytes;
}

void tierce__redis_add_text(struct tierce__redis_command *command, const char *text)
{
    tierce__redis_add(command, text, strlen(text));
}

void tierce__redis_addf(struct tierce__redis_command *command, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int bytes = vsnprintf(NULL, 0, format, args);
    char *text = bytes < 0 ? NULL : tierce__arena_alloc(command->arena, (size_t)bytes + 1);
    if (text != NULL) {
        (void)vsnprintf(text, (size_t)bytes + 1, format, again);
        tierce__redis_add(command, text, (size_t)bytes);
    } else if (command->rc == 0) {
        command->rc = -ENOMEM;
    }
    va_end(again);
    va_end(args);
}

bool tierce__redis_read_hex(uint64_t *out, const struct tierce__resp_value *value)
{
    enum { DIGITS = 16 };
    uint64_t number = 0;
    if (value->type != TIERCE__RESP_STRING || value->bytes != DIGITS)
        return false;
    for (unsigned i = 0; i < DIGITS; i++) {
        char c = value->text[i];
        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f'))
            return false;
        number = number << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *out = number;
    return true;
}

/* ---- pipelines ------------------------------------------------------------------------------ */

int tierce__redis_begin(struct tierce__redis *redis, struct tierce__resp **out)
{
    struct tierce__resp *resp;
    int rc = tierce__resp_pool_take(redis->pool, &resp, 0);
    if (rc < 0)
        return rc;
    rc = tierce__resp_begin(resp);
    if (rc < 0) {
        tierce__log_repeated(TIERCE_LOG_WARN, "meta_redis_failed", "err=\"%s\"",
                             tierce__resp_why(resp));
        tierce__redis_end(redis, resp);
        return rc;
    }
    *out = resp;
    return 0;
}

void tierce__redis_end(struct tierce__redis *redis, struct tierce__resp *resp)
{
    tierce__resp_pool_give(redis->pool, resp);
}

/* What an error reply means: the server is there, but does not serve now, or does not like what it
 * was asked. */
static int refused(const struct tierce__resp_value *value)
{
    static const char *const passing[] = {"LOADING", "MASTERDOWN", "READONLY",
                                          "BUSY",    "TRYAGAIN",   "CLUSTERDOWN"};
    tierce__log_repeated(TIERCE_LOG_WARN, "meta_redis_failed", "err=\"%.200s\"", value->text);
    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++)
        if (tierce__resp_is_error(value, passing[i]))
            return TIERCE_E_DOWN;
    return -EIO;
}

int tierce__redis_read(struct tierce__resp *resp, struct tierce__resp_value *out)
{
    int rc = tierce__resp_read(resp, out, 0);
    if (rc < 0) {
        tierce__log_repeated(TIERCE_LOG_WARN, "meta_redis_failed", "err=\"%s\"",
                             tierce__resp_why(resp));
        return rc;
    }
    return out->type == TIERCE__RESP_ERROR ? refused(out) : 0;
}

int tierce__redis_ask(struct tierce__redis *redis, const struct tierce__redis_command *command,
                      tierce__redis_take_fn take, void *arg)
{
    struct tierce__resp *resp = NULL;
    struct tierce__resp_value value;
    int rc = command->rc < 0 ? command->rc : tierce__redis_begin(redis, &resp);
    if (rc < 0)
        return rc;
    rc = tierce__resp_append(resp, command->texts, command->bytes, command->count);
    if (rc == 0)
        rc = tierce__resp_flush(resp, 0);
    if (rc == 0)
        rc = tierce__redis_read(resp, &value);
    if (rc == 0 && take != NULL)
        rc = take(arg, &value);
    tierce__redis_end(redis, resp);
    return rc;
}

/* ---- scripts -------------------------------------------------------------------------------- */

int tierce__redis_load_scripts(struct tierce__redis *redis, struct tierce__resp *resp)
{
    for (unsigned i = 0; i < TIERCE__REDIS_SCRIPTS; i++) {
        struct tierce__redis_script *script = &redis->scripts[i];
        script->text = script_texts[i];
        const char *texts[] = {"SCRIPT", "LOAD", script->text};
        size_t bytes[] = {6, 4, strlen(script->text)};
        struct tierce__resp_value value;
        int rc = tierce__resp_call(resp, texts, bytes, 3, &value, 0);
        if (rc < 0)
            return rc;
        if (value.type != TIERCE__RESP_STRING || value.bytes != sizeof(script->sha) - 1)
            return -EPROTO;
        memcpy(script->sha, value.text, sizeof(script->sha));
    }
    return 0;
}

void tierce__redis_start_script(struct tierce__redis *redis, enum tierce__redis_script_id id,
                                struct tierce__redis_command *command,
                                const struct tierce__redis_keys *keys)
{
    char token[TIERCE__REDIS_TOKEN_BYTES + 1];
    tierce__lock_take(&redis->lock);
    memcpy(token, redis->token, sizeof(token));
    tierce__lock_drop(&redis->lock);
    tierce__redis_add_text(command, "EVALSHA");
    tierce__redis_add_text(command, redis->scripts[id].sha);
    tierce__redis_add_text(command, keys != NULL ? "3" : "1");
    tierce__redis_add_text(command, "kvcache:tierce:fence");
    if (keys != NULL) {
        tierce__redis_add_text(command, keys->metadata);
        tierce__redis_add_text(command, keys->keys);
    }
    tierce__redis_addf(command, "%s", token);
}

static int send_script(struct tierce__resp *resp, const struct tierce__redis_command *command,
                       struct tierce__resp_value *value)
{
    int rc = tierce__resp_begin(resp);
    if (rc == 0)
        rc = tierce__resp_append(resp, command->texts, command->bytes, command->count);
    if (rc == 0)
        rc = tierce__resp_flush(resp, 0);
    return rc == 0 ? tierce__resp_read(resp, value, 0) : rc;
}

int tierce__redis_run_script(struct tierce__redis *redis, enum tierce__redis_script_id id,
                             struct tierce__redis_command *command)
{
    struct tierce__resp *resp = NULL;
    struct tierce__resp_value value = {.type = TIERCE__RESP_NIL};
    int rc = command->rc < 0 ? command->rc : tierce__redis_begin(redis, &resp);
    if (rc < 0)
        return rc;
    rc = send_script(resp, command, &value);
    if (rc == 0 && tierce__resp_is_error(&value, "NOSCRIPT")) {
        /* Nothing was done. The text itself is known under the same hash from then on. */
        command->texts[0] = "EVAL";
        command->bytes[0] = 4;
        command->texts[1] = redis->scripts[id].text;
        command->bytes[1] = strlen(redis->scripts[id].text);
        rc = send_script(resp, command, &value);
    }
    if (rc < 0) {
        tierce__log_repeated(TIERCE_LOG_WARN, "meta_redis_failed", "err=\"%s\"",
                             tierce__resp_why(resp));
    } else if (tierce__resp_is_error(&value, "FENCED")) {
        rc = TIERCE_E_REFUSED;
    } else if (value.type == TIERCE__RESP_ERROR) {
        rc = refused(&value);
    }
    tierce__redis_end(redis, resp);
    return rc;
}
