/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/access_log.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/json/json_write.h"

#include <tierce/engine.h>
#include <tierce/key.h>

#define BUFFER_MAX ((uint64_t)4 << 20)
#define ID_DIGITS  16u
#define HEAD_BYTES 256u /* of a line before its blocks, and more */
#define TAIL_BYTES 512u /* behind them */
#define WRITE_MS   200u /* how long a line waits at most */
#define TIERS_MAX  8u

int tierce__access_open(struct tierce__line_log **out, const char *path, uint64_t bytes_max)
{
    char why[256]; /* the caller has the path and the error */
    TIERCE_DASSERT(bytes_max >= 2);
    struct tierce__line_log_opts opts = {.size = sizeof(opts),
                                         .path = path,
                                         .file_bytes_max = bytes_max / 2,
                                         .files = 1,
                                         .queue_bytes_max = bytes_max / 2,
                                         .wait_ms = WRITE_MS,
                                         .is_alone = true,
                                         .failure = "access_log_not_written"};
    if (opts.queue_bytes_max > BUFFER_MAX)
        opts.queue_bytes_max = BUFFER_MAX;
    return tierce__line_log_open(out, &opts, why);
}

/* Here and not in base/bytes.h, so that the loop is unrolled: 0.95x on bench lookup otherwise. */
static void put_id(char out[ID_DIGITS], const uint8_t *hash)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < ID_DIGITS / 2; i++) {
        out[2 * i] = digits[hash[i] >> 4];
        out[2 * i + 1] = digits[hash[i] & 15];
    }
}

/* A writer for members of the line, which was begun. */
static struct tierce__json_write go_on(struct tierce__line *line)
{
    TIERCE_DASSERT(line->bytes > 0 && !line->failed);
    return (struct tierce__json_write){.line = line, .depth = 1, .comma = true};
}

void tierce__access_begin(struct tierce__line_log *log, struct tierce__line *line, const char *op,
                          const struct tierce__access_what *what)
{
    *line = (struct tierce__line){0};
    if (log == NULL)
        return;
    TIERCE_DASSERT(what->count > 0);
    size_t ids_bytes = (size_t)what->count * ID_DIGITS;
    size_t room = HEAD_BYTES + ids_bytes + TAIL_BYTES;
    line->text = tierce__alloc(room);
    line->failed = line->text == NULL;
    if (line->failed)
        return;
    line->room = line->bytes_max = room;
    char id[ID_DIGITS + 1] = "";
    struct tierce__json_write json = {.line = line};
    put_id(id, what->ns_digest);
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_count(&json, "tierce_access", 1);
    tierce__json_write_count(&json, "time_us", tierce__wall_us());
    tierce__json_write_text(&json, "op", op);
    tierce__json_write_text(&json, "namespace", id);
    tierce__json_write_count(&json, "block_tokens", what->block_tokens);
    if (what->request != 0)
        tierce__json_write_count(&json, "request", what->request);
    if (what->held > 0)
        tierce__json_write_count(&json, "held",
                                 what->held < what->count ? what->held : what->count);
    tierce__json_write_name(&json, "blocks");
    tierce__line_put(line, "\"");
    TIERCE_ASSERT(ids_bytes < line->room - line->bytes);
    for (uint64_t i = 0; i < what->count; i++)
        put_id(line->text + line->bytes + i * ID_DIGITS, what->hashes + i * TIERCE_HASH_BYTES);
    line->bytes += ids_bytes;
    tierce__line_put(line, "\"");
    TIERCE_DASSERT(line->room - line->bytes >= TAIL_BYTES);
}

void tierce__access_tag(struct tierce__line *line, const char *tag)
{
    char plain[TIERCE_TAG_BYTES_MAX + 1];
    size_t n = 0;
    if (line->text == NULL || tag == NULL)
        return;
    for (; n < TIERCE_TAG_BYTES_MAX && tag[n] != '\0'; n++) {
        bool bad = tag[n] < ' ' || tag[n] > '~' || tag[n] == '"' || tag[n] == '\\';
        plain[n] = bad ? '_' : tag[n];
    }
    plain[n] = '\0';
    struct tierce__json_write json = go_on(line);
    tierce__json_write_text(&json, "tag", plain);
}

void tierce__access_end(struct tierce__line_log *log, struct tierce__line *line,
                        const struct tierce__access_tier *tiers, size_t tier_count)
{
    TIERCE_ASSERT(tier_count <= TIERS_MAX);
    if (line->text == NULL && !line->failed)
        return;
    if (!line->failed) {
        struct tierce__json_write json = go_on(line);
        tierce__json_write_open(&json, "tiers", '{');
        for (size_t i = 0; i < tier_count; i++)
            tierce__json_write_count(&json, tiers[i].name, tiers[i].blocks);
        tierce__json_write_close(&json, '}');
        tierce__json_write_close(&json, '}');
        TIERCE_ASSERT(!line->failed);
    }
    tierce__line_end(line, log);
}
