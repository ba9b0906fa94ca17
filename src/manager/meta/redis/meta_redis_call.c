/* SPDX-License-Identifier: Apache-2.0 */
/* Scripts of the Redis store, and what their errors mean. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/log/log_repeat.h"
#include "manager/meta/redis/meta_redis_private.h"

/*
 * ARGV[1] is the writer's token, "" for none; `seen` is the largest one so far. Tokens are padded
 * to one length so that they compare as texts, because Lua's numbers are doubles.
 */
#define CHECK_TOKEN(seen)                                                                          \
    "local seen = redis.call(" seen ")\n"                                                          \
    "if ARGV[1] ~= '' and seen and seen > ARGV[1] then\n"                                          \
    "  return redis.error_reply('FENCED by a later leader')\n"                                     \
    "end\n"

/* With a single server KEYS[1] is the fence, in a cluster a space's metadata. */
#define CHECK_FENCE       CHECK_TOKEN("'GET', KEYS[1]")
#define CHECK_SPACE_FENCE CHECK_TOKEN("'HGET', KEYS[1], 'tierce:fence'")

/* Takes arguments from the fourth on. take_rest takes notes, each a kind, a number, whether it
 * stays, and its value; then counters, each a number and what is added. A count precedes both. */
#define TAKE                                                                                       \
    "local at = 4\n"                                                                               \
    "local function take() local v = ARGV[at]; at = at + 1; return v end\n"                        \
    "local function take_rest(metadata, key_of)\n"                                                 \
    "  for i = 1, tonumber(take()) do\n"                                                           \
    "    local notes, number, stays, value = key_of(take()), take(), take(), take()\n"             \
    "    if stays == '1' then redis.call('HSET', notes, number, value)\n"                          \
    "    else redis.call('HDEL', notes, number) end\n"                                             \
    "  end\n"                                                                                      \
    "  for i = 1, tonumber(take()) do\n"                                                           \
    "    local field, added = 'tierce:' .. take(), take()\n"                                       \
    "    redis.call('HINCRBY', metadata, field, added)\n"                                          \
    "    if field == 'tierce:0' then\n"                                                            \
    "      redis.call('HSET', metadata, '__key_count__', redis.call('HGET', metadata, field))\n"   \
    "    end\n"                                                                                    \
    "  end\n"                                                                                      \
    "end\n"

/* Notes a time, a number of uses and a hint in a record, if it exists: as tierce__record_touch. */
#define TOUCH                                                                                      \
    "local function touch(key, used_us, uses, hint)\n"                                             \
    "  if redis.call('EXISTS', key) == 0 then return end\n"                                        \
    "  local lru = tonumber(redis.call('HGET', key, '__lru_time__') or '') or 0\n"                 \
    "  if uses == '0' or lru <= tonumber(used_us) then\n"                                          \
    "    if hint == '0' then redis.call('HDEL', key, '__hint__')\n"                                \
    "    else redis.call('HSET', key, '__hint__', hint) end\n"                                     \
    "  end\n"                                                                                      \
    "  if uses == '0' then return end\n"                                                           \
    "  if lru < tonumber(used_us) then redis.call('HSET', key, '__lru_time__', used_us) end\n"     \
    "  redis.call('HINCRBY', key, '__hit_count__', uses)\n"                                        \
    "end\n"

static const char fence_script[] =
    CHECK_FENCE "if ARGV[1] ~= '' then redis.call('SET', KEYS[1], ARGV[1]) end\n"
                "return 1\n";

/*
 * KEYS: fence, metadata, sorted set. ARGV: token, prefix of records, prefix of notes; puts, each a
 * key, its place in the order, and the fields' values; deletes, each a key and its place; notes and
 * counters. A count precedes each kind.
 */
static const char write_script[] = CHECK_FENCE TAKE
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
    "take_rest(KEYS[2], function(kind) return ARGV[3] .. kind end)\n"
    "return 1\n";

/* KEYS: fence. ARGV: token, then a key of a record, a time, a number of uses and a hint each. */
static const char touch_script[] = CHECK_FENCE TOUCH
    "for i = 2, #ARGV, 4 do touch(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) end\n"
    "return 1\n";

/* ---- in a cluster (meta_redis_cluster.c) ---------------------------------------------------- */

/*
 * KEYS: metadata, sorted set, journal, notes by kind. ARGV: token, era, the journal's entry ("":
 * none); entries that are finished; places in the order of what is put, and of what is deleted;
 * notes and counters. A count precedes each kind. Returns the batch's number.
 */
static const char commit_script[] = CHECK_SPACE_FENCE TAKE
    "if redis.call('HGET', KEYS[1], 'tierce:era') ~= ARGV[2] then\n"
    "  return redis.error_reply('STALE era')\n"
    "end\n"
    "for i = 1, tonumber(take()) do redis.call('HDEL', KEYS[3], take()) end\n"
    "for i = 1, tonumber(take()) do redis.call('ZADD', KEYS[2], 0, take()) end\n"
    "for i = 1, tonumber(take()) do redis.call('ZREM', KEYS[2], take()) end\n"
    "take_rest(KEYS[1], function(kind) return KEYS[3 + kind] end)\n"
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

/* KEYS: a record. ARGV: a time, a number of uses and a hint. Touches of an older leader are
 * harmless. */
static const char touch_one_script[] = TOUCH "touch(KEYS[1], ARGV[1], ARGV[2], ARGV[3])\n"
                                             "return 1\n";

static const char *const script_texts[TIERCE__REDIS_SCRIPTS] = {
    [TIERCE__REDIS_FENCE] = fence_script,         [TIERCE__REDIS_WRITE] = write_script,
    [TIERCE__REDIS_TOUCH] = touch_script,         [TIERCE__REDIS_COMMIT] = commit_script,
    [TIERCE__REDIS_SETTLE] = settle_script,       [TIERCE__REDIS_REDO] = redo_script,
    [TIERCE__REDIS_TOUCH_ONE] = touch_one_script,
};

/* ---- calls ---------------------------------------------------------------------------------- */

void tierce__redis_script(struct tierce__redis *redis, struct tierce__resp_pipeline *batch,
                          enum tierce__redis_script_id id, const char *const *keys, size_t count)
{
    TIERCE_DASSERT(id < TIERCE__REDIS_SCRIPTS);
    TIERCE_DASSERT(redis->scripts[id].sha[0] != '\0');
    tierce__resp_pipeline_script(batch, &redis->scripts[id], keys, count);
    if (id >= TIERCE__REDIS_REDO)
        return;
    tierce__lock_take(&redis->lock);
    tierce__resp_pipeline_addf(batch, "%s", redis->token);
    tierce__lock_drop(&redis->lock);
}

/* The server answers, but does not serve now or rejects a command. */
static int refused(const struct tierce__resp_value *error)
{
    static const char *const passing[] = {"LOADING", "MASTERDOWN", "READONLY",
                                          "BUSY",    "TRYAGAIN",   "CLUSTERDOWN"};
    TIERCE_DASSERT(error->type == TIERCE__RESP_ERROR);
    if (tierce__resp_is_error(error, "FENCED"))
        return TIERCE_E_REFUSED;
    if (tierce__resp_is_error(error, "STALE"))
        return -ESTALE;
    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++)
        if (tierce__resp_is_error(error, passing[i]))
            return TIERCE_E_DOWN;
    return -EIO;
}

int tierce__redis_load_scripts(struct tierce__redis *redis, char why[256])
{
    struct tierce__resp_pipeline batch;
    tierce__resp_pipeline_begin(&batch, redis->pool);
    for (unsigned i = 0; i < TIERCE__REDIS_SCRIPTS; i++) {
        redis->scripts[i].text = script_texts[i];
        TIERCE__RESP_COMMAND(&batch, "SCRIPT", "LOAD", script_texts[i]);
    }
    int rc = 0;
    for (size_t server = 0; rc == 0; server++) {
        rc = tierce__resp_pipeline_run_at(&batch, server);
        for (unsigned i = 0; rc == 0 && i < TIERCE__REDIS_SCRIPTS; i++) {
            const struct tierce__resp_value *sha = &batch.values[i];
            if (sha->type != TIERCE__RESP_STRING || sha->bytes != sizeof(redis->scripts[i].sha) - 1)
                rc = -EPROTO;
            else
                memcpy(redis->scripts[i].sha, sha->text, sizeof(redis->scripts[i].sha));
        }
    }
    rc = rc == -ENOENT ? 0 : rc;
    TIERCE_DASSERT(batch.error == NULL || (batch.values != NULL && rc < 0));
    if (batch.error != NULL && refused(batch.error) == TIERCE_E_DOWN)
        rc = TIERCE_E_DOWN; /* for a moment */
    if (rc < 0)             /* without values the connection failed */
        snprintf(why, 256, "%s%.200s",
                 batch.values != NULL ? "the server cannot load scripts: " : "",
                 batch.why[0] != '\0' ? batch.why : "invalid answer to SCRIPT LOAD");
    tierce__resp_pipeline_end(&batch);
    return rc == -EACCES ? TIERCE_E_REFUSED : rc;
}

/* The result of a run, which is logged. */
static int conclude(const struct tierce__resp_pipeline *batch, int rc)
{
    if (batch->error != NULL)
        rc = refused(batch->error);
    TIERCE_DASSERT(batch->error == NULL || rc < 0);
    if (rc < 0 && rc != TIERCE_E_REFUSED && rc != -ESTALE && rc != -ENOENT)
        tierce__log_repeated(TIERCE_LOG_WARN, "meta_redis_failed", "err=\"%.200s\"", batch->why);
    return rc;
}

int tierce__redis_run(struct tierce__resp_pipeline *batch)
{
    return conclude(batch, tierce__resp_pipeline_run(batch));
}

int tierce__redis_run_at(struct tierce__resp_pipeline *batch, size_t i)
{
    return conclude(batch, tierce__resp_pipeline_run_at(batch, i));
}

int tierce__redis_read(struct tierce__redis_space *space, struct tierce__resp_pipeline *batch)
{
    int rc = tierce__redis_settle(space);
    return rc == 0 ? tierce__redis_run(batch) : rc;
}

int tierce__redis_do(struct tierce__resp_pipeline *batch)
{
    int rc = tierce__redis_run(batch);
    tierce__resp_pipeline_end(batch);
    return rc;
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
