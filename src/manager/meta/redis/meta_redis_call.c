/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines and scripts of the Redis store. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log_repeat.h"
#include "manager/meta/redis/meta_redis_private.h"

/*
 * Every script begins with KEYS[1], the fence, and ARGV[1], the writer's token, "" for none. Tokens
 * are padded to one length so that they compare as texts, because Lua's numbers are doubles.
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
 * added. A count precedes each kind.
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

/* ---- in a cluster (meta_redis_cluster.c) ---------------------------------------------------- */

/* For a space's metadata, KEYS[1]. */
#define CHECK_SPACE_FENCE                                                                          \
    "local seen = redis.call('HGET', KEYS[1], 'tierce:fence')\n"                                   \
    "if ARGV[1] ~= '' and seen and seen > ARGV[1] then\n"                                          \
    "  return redis.error_reply('FENCED by a later leader')\n"                                     \
    "end\n"

/*
 * KEYS: metadata, sorted set, journal, notes by kind. ARGV: token, era, the journal's entry ("":
 * none); entries that are finished; places in the order of what is put, and of what is deleted;
 * notes and counters as of write_script. A count precedes each kind. Returns the batch's number.
 */
static const char commit_script[] = CHECK_SPACE_FENCE
    "if redis.call('HGET', KEYS[1], 'tierce:era') ~= ARGV[2] then\n"
    "  return redis.error_reply('STALE era')\n"
    "end\n"
    "local at = 4\n"
    "local function take() local v = ARGV[at]; at = at + 1; return v end\n"
    "for i = 1, tonumber(take()) do redis.call('HDEL', KEYS[3], take()) end\n"
    "for i = 1, tonumber(take()) do redis.call('ZADD', KEYS[2], 0, take()) end\n"
    "for i = 1, tonumber(take()) do redis.call('ZREM', KEYS[2], take()) end\n"
    "for i = 1, tonumber(take()) do\n"
    "  local notes, number, stays, value = KEYS[3 + take()], take(), take(), take()\n"
    "  if stays == '1' then redis.call('HSET', notes, number, value)\n"
    "  else redis.call('HDEL', notes, number) end\n"
    "end\n"
    "for i = 1, tonumber(take()) do\n"
    "  local field, added = 'tierce:' .. take(), take()\n"
    "  redis.call('HINCRBY', KEYS[1], field, added)\n"
    "  if field == 'tierce:0' then\n"
    "    redis.call('HSET', KEYS[1], '__key_count__', redis.call('HGET', KEYS[1], field))\n"
    "  end\n"
    "end\n"
    "local number = redis.call('HINCRBY', KEYS[1], 'tierce:batch', 1)\n"
    "if ARGV[3] ~= '' then\n"
    "  redis.call('HSET', KEYS[3], string.format('%.0f', number), ARGV[3])\n"
    "end\n"
    "return number\n";

/*
 * KEYS: metadata, journal. ARGV: token, the least era, the least number of a last batch. If there
 * is no number, or a smaller one than was already returned, numbers continue from the era: none is
 * assigned twice. Returns era, number of the last batch, journal.
 */
static const char settle_script[] = CHECK_SPACE_FENCE
    "if ARGV[1] ~= '' then redis.call('HSET', KEYS[1], 'tierce:fence', ARGV[1]) end\n"
    "local era, last = ARGV[2], redis.call('HGET', KEYS[1], 'tierce:era')\n"
    "if last and last >= era then era = string.format('%020.0f', tonumber(last) + 1) end\n"
    "redis.call('HSET', KEYS[1], 'tierce:era', era)\n"
    "local batch = redis.call('HGET', KEYS[1], 'tierce:batch')\n"
    "if not batch or tonumber(batch) < tonumber(ARGV[3]) then\n"
    "  redis.call('HSET', KEYS[1], 'tierce:batch', string.format('%.0f', tonumber(era)))\n"
    "end\n"
    "return {era, batch or '', redis.call('HGETALL', KEYS[2])}\n";

/*
 * KEYS: a record, the guard of its slot. ARGV: era, whether it is a journal's; and what is put. A
 * journal's record raises the guard, so that records sent in an earlier era have no effect. The
 * guard expires after a week: longer than any message can be delayed.
 */
static const char redo_script[] =
    "local guard = redis.call('GET', KEYS[2])\n"
    "if guard and guard > ARGV[1] then return redis.error_reply('STALE ' .. guard) end\n"
    "if ARGV[2] == '1' then redis.call('SET', KEYS[2], ARGV[1], 'EX', 604800) end\n"
    "redis.call('DEL', KEYS[1])\n"
    "if #ARGV > 2 then\n"
    "  redis.call('HSET', KEYS[1], '__tierce__', ARGV[3], '__lru_time__', ARGV[5],\n"
    "    '__hit_count__', ARGV[6], '_prev_key_', ARGV[7])\n"
    "  if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], '__uri__', ARGV[4]) end\n"
    "end\n"
    "return 1\n";

/* KEYS: a record. ARGV: a time and a number of uses. Touches of an older leader are harmless. */
static const char touch_one_script[] =
    "if redis.call('EXISTS', KEYS[1]) == 1 then\n"
    "  local lru = redis.call('HGET', KEYS[1], '__lru_time__')\n"
    "  if not lru or (tonumber(lru) or 0) < tonumber(ARGV[1]) then\n"
    "    redis.call('HSET', KEYS[1], '__lru_time__', ARGV[1])\n"
    "  end\n"
    "  redis.call('HINCRBY', KEYS[1], '__hit_count__', ARGV[2])\n"
    "end\n"
    "return 1\n";

static const char *const script_texts[TIERCE__REDIS_SCRIPTS] = {
    [TIERCE__REDIS_FENCE] = fence_script,         [TIERCE__REDIS_WRITE] = write_script,
    [TIERCE__REDIS_TOUCH] = touch_script,         [TIERCE__REDIS_COMMIT] = commit_script,
    [TIERCE__REDIS_SETTLE] = settle_script,       [TIERCE__REDIS_REDO] = redo_script,
    [TIERCE__REDIS_TOUCH_ONE] = touch_one_script,
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

static char *print_text(struct tierce__arena *arena, size_t *bytes, const char *format,
                        va_list args)
{
    va_list again;
    va_copy(again, args);
    int count = vsnprintf(NULL, 0, format, args);
    char *text = count < 0 ? NULL : tierce__arena_alloc(arena, (size_t)count + 1);
    if (text != NULL)
        *bytes = (size_t)vsnprintf(text, (size_t)count + 1, format, again);
    va_end(again);
    return text;
}

void tierce__redis_addf(struct tierce__redis_command *command, const char *format, ...)
{
    va_list args;
    size_t bytes = 0;
    va_start(args, format);
    char *text = print_text(command->arena, &bytes, format, args);
    va_end(args);
    if (text != NULL)
        tierce__redis_add(command, text, bytes);
    else if (command->rc == 0)
        command->rc = -ENOMEM;
}

char *tierce__redis_textf(struct tierce__arena *arena, const char *format, ...)
{
    va_list args;
    size_t bytes = 0;
    va_start(args, format);
    char *text = print_text(arena, &bytes, format, args);
    va_end(args);
    return text;
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

int tierce__redis_begin(struct tierce__redis *redis, struct tierce__resp_link **out)
{
    struct tierce__resp_link *link;
    int rc = tierce__resp_pool_take(redis->pool, &link, 0);
    if (rc < 0)
        return rc;
    rc = tierce__resp_link_begin(link);
    if (rc < 0) {
        tierce__log_repeated(TIERCE_LOG_WARN, "meta_redis_failed", "err=\"%s\"",
                             tierce__resp_link_why(link));
        tierce__redis_end(redis, link);
        return rc;
    }
    *out = link;
    return 0;
}

void tierce__redis_end(struct tierce__redis *redis, struct tierce__resp_link *link)
{
    tierce__resp_pool_give(redis->pool, link);
}

/* The server answers, but does not serve now or rejects the command. */
int tierce__redis_refused(const struct tierce__resp_value *value)
{
    static const char *const passing[] = {"LOADING", "MASTERDOWN", "READONLY",
                                          "BUSY",    "TRYAGAIN",   "CLUSTERDOWN"};
    tierce__log_repeated(TIERCE_LOG_WARN, "meta_redis_failed", "err=\"%.200s\"",
                         tierce__resp_words(value));
    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++)
        if (tierce__resp_is_error(value, passing[i]))
            return TIERCE_E_DOWN;
    return -EIO;
}

static int log_failure(const struct tierce__resp_link *link, int rc)
{
    if (rc < 0)
        tierce__log_repeated(TIERCE_LOG_WARN, "meta_redis_failed", "err=\"%s\"",
                             tierce__resp_link_why(link));
    return rc;
}

int tierce__redis_read(struct tierce__resp_link *link, struct tierce__resp_value *out)
{
    int rc = log_failure(link, tierce__resp_link_read(link, out, 0));
    if (rc < 0)
        return rc;
    return out->type == TIERCE__RESP_ERROR ? tierce__redis_refused(out) : 0;
}

int tierce__redis_ask(struct tierce__redis *redis, const struct tierce__redis_command *command,
                      tierce__redis_take_fn take, void *arg)
{
    struct tierce__resp_link *link = NULL;
    struct tierce__resp_value value;
    int rc = command->rc < 0 ? command->rc : tierce__redis_begin(redis, &link);
    if (rc < 0)
        return rc;
    rc = tierce__resp_link_append(link, 1, command->texts, command->bytes, command->count);
    if (rc == 0)
        rc = log_failure(link, tierce__resp_link_flush(link, 0));
    if (rc == 0)
        rc = tierce__redis_read(link, &value);
    if (rc == 0 && take != NULL)
        rc = take(arg, &value);
    tierce__redis_end(redis, link);
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

void tierce__redis_token(struct tierce__redis *redis, char out[TIERCE__REDIS_TOKEN_BYTES + 1])
{
    tierce__lock_take(&redis->lock);
    memcpy(out, redis->token, TIERCE__REDIS_TOKEN_BYTES + 1);
    tierce__lock_drop(&redis->lock);
}

void tierce__redis_start_script(struct tierce__redis *redis, enum tierce__redis_script_id id,
                                struct tierce__redis_command *command, const char *const *keys,
                                size_t count)
{
    tierce__redis_add_text(command, "EVALSHA");
    tierce__redis_add_text(command, redis->scripts[id].sha);
    tierce__redis_addf(command, "%zu", count);
    for (size_t i = 0; i < count; i++)
        tierce__redis_add_text(command, keys[i]);
}

/* Scripts of a pipeline, and their results. */
struct scripts {
    struct tierce__redis *redis;
    enum tierce__redis_script_id id;
    struct tierce__redis_command *commands;
    size_t count;
    bool *is_lost; /* the server does not know the script; nothing was done */
    size_t lost_count;
    tierce__redis_take_fn take;
    void *arg;
};

static int take_script(struct scripts *scripts, size_t i, const struct tierce__resp_value *value)
{
    scripts->is_lost[i] = tierce__resp_is_error(value, "NOSCRIPT");
    scripts->lost_count += scripts->is_lost[i];
    if (scripts->is_lost[i])
        return 0;
    if (scripts->take != NULL)
        return scripts->take(scripts->arg, value);
    if (value->type != TIERCE__RESP_ERROR)
        return 0;
    return tierce__resp_is_error(value, "FENCED") ? TIERCE_E_REFUSED : tierce__redis_refused(value);
}

/* Sends the scripts that have no answer yet, and reads all their answers, so that none is left in
 * the connection. */
static int send_lost(struct scripts *scripts, struct tierce__resp_link *link)
{
    int rc = 0, first = 0;
    for (size_t i = 0; rc == 0 && i < scripts->count; i++) {
        const struct tierce__redis_command *command = &scripts->commands[i];
        if (scripts->is_lost[i])
            rc = tierce__resp_link_append(link, TIERCE__REDIS_SCRIPT_KEY, command->texts,
                                          command->bytes, command->count);
    }
    tierce__resp_link_writes(link);
    if (rc == 0)
        rc = tierce__resp_link_flush(link, 0);
    scripts->lost_count = 0;
    for (size_t i = 0; rc == 0 && i < scripts->count; i++) {
        struct tierce__resp_value value;
        if (!scripts->is_lost[i])
            continue;
        rc = tierce__resp_link_read(link, &value, 0);
        if (rc == 0 && first == 0)
            first = take_script(scripts, i, &value);
    }
    return rc < 0 ? log_failure(link, rc) : first;
}

/* From then on the server knows the script under the same hash. */
static void use_text(struct scripts *scripts)
{
    const struct tierce__redis_script *script = &scripts->redis->scripts[scripts->id];
    for (size_t i = 0; i < scripts->count; i++) {
        struct tierce__redis_command *command = &scripts->commands[i];
        command->texts[0] = "EVAL";
        command->bytes[0] = 4;
        command->texts[1] = script->text;
        command->bytes[1] = strlen(script->text);
    }
}

int tierce__redis_run_scripts(struct tierce__redis *redis, enum tierce__redis_script_id id,
                              struct tierce__redis_command *commands, size_t count,
                              tierce__redis_take_fn take, void *arg)
{
    struct scripts scripts = {redis, id, commands, count, NULL, 0, take, arg};
    struct tierce__resp_link *link = NULL;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = commands[i].rc;
    if (rc < 0)
        return rc;
    scripts.is_lost = tierce__alloc(count * sizeof(*scripts.is_lost));
    if (scripts.is_lost == NULL)
        return -ENOMEM;
    memset(scripts.is_lost, true, count);
    rc = tierce__redis_begin(redis, &link);
    if (rc == 0)
        rc = send_lost(&scripts, link);
    if (rc == 0 && scripts.lost_count > 0) {
        use_text(&scripts);
        rc = tierce__resp_link_begin(link);
        if (rc == 0)
            rc = send_lost(&scripts, link);
        if (rc == 0 && scripts.lost_count > 0)
            rc = -EIO;
    }
    if (link != NULL)
        tierce__redis_end(redis, link);
    tierce__free(scripts.is_lost);
    return rc;
}
