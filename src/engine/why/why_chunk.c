/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/why/why_chunk.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/json/json_write.h"
#include "engine/why/why.h"
#include "core/key/key_text.h"

#define SCAN_PLACES 1024u

bool tierce__hash_prefix(struct tierce__hash_prefix *out, const char *hex)
{
    char padded[2 * TIERCE_HASH_BYTES + 2];
    size_t digits = strlen(hex);
    if (digits < 1 || digits > 2 * TIERCE_HASH_BYTES)
        return false;
    memset(padded, '0', sizeof(padded));
    memcpy(padded, hex, digits);
    padded[(digits + 1) / 2 * 2] = '\0';
    *out = (struct tierce__hash_prefix){.digits = (uint32_t)digits};
    return tierce__hex_decode(out->bytes, (digits + 1) / 2, padded);
}

static bool has_prefix(const uint8_t *hash, const struct tierce__hash_prefix *prefix)
{
    uint32_t whole = prefix->digits / 2;
    TIERCE_DASSERT(prefix->digits >= 1 && prefix->digits <= 2 * TIERCE_HASH_BYTES);
    return memcmp(hash, prefix->bytes, whole) == 0 &&
           (prefix->digits % 2 == 0 || hash[whole] >> 4 == prefix->bytes[whole] >> 4);
}

void tierce__sightings_add(void *arg, const struct tierce__tier_event *seen)
{
    struct tierce__sightings *sightings = arg;
    TIERCE_DASSERT(sightings->tier != NULL);
    if (!has_prefix(seen->key->hash, sightings->prefix))
        return;
    uint64_t at = sightings->count++;
    if (at < TIERCE__SIGHTINGS_MAX)
        sightings->items[at] = (struct tierce__sighting){.tier = sightings->tier,
                                                         .key = *seen->key,
                                                         .object_bytes = seen->object_bytes,
                                                         .token_start = seen->token_start,
                                                         .block_count = seen->block_count};
}

/* ---- answering ---------------------------------------------------------------------------------
 */

static void put_sighting(struct tierce__json_write *json, struct tierce__line *text,
                         const struct tierce__sighting *s, struct tierce__namespaces *namespaces)
{
    char key[TIERCE__KEY_TEXT_BYTES], line[512];
    if (tierce__key_text_format(key, tierce__namespaces_digest(namespaces, s->key.ns),
                                &s->key.shard, s->key.hash) < 0)
        key[0] = '\0';
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_text(json, "tier", s->tier);
    tierce__json_write_text(json, "key", key);
    tierce__json_write_count(json, "token_start", s->token_start);
    tierce__json_write_count(json, "block_count", s->block_count);
    tierce__json_write_count(json, "object_bytes", s->object_bytes);
    tierce__json_write_close(json, '}');
    snprintf(line, sizeof(line), "%-8s  %s  %u blocks from token %" PRIu64 " on\n", s->tier, key,
             s->block_count, s->token_start);
    tierce__line_put(text, line);
}

void tierce__sightings_json(struct tierce__line *out, const struct tierce__sightings *sightings,
                            struct tierce__namespaces *namespaces)
{
    struct tierce__json_write json = {.line = out};
    struct tierce__line text = {0};
    char line[256];
    enum tierce_miss_reason reason = TIERCE_MISS_NONE;
    uint64_t kept = sightings->count;
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_open(&json, "chunks", '[');
    if (kept > TIERCE__SIGHTINGS_MAX)
        kept = TIERCE__SIGHTINGS_MAX;
    for (uint64_t i = 0; i < kept; i++)
        put_sighting(&json, &text, &sightings->items[i], namespaces);
    if (sightings->count > kept)
        tierce__line_put(&text, "and more: give more digits\n");
    if (sightings->count == 0) {
        reason = sightings->miss != NULL ? sightings->miss->reason : TIERCE_MISS_NEVER_STORED;
        snprintf(line, sizeof(line), "nowhere    %s: %s\n", tierce_miss_name(reason),
                 tierce_miss_text(reason));
        tierce__line_put(&text, line);
    }
    tierce__line_put_bytes(&text, "", 1);
    tierce__json_write_close(&json, ']');
    tierce__json_write_text(&json, "reason", tierce_miss_name(reason));
    tierce__json_write_text(&json, "text", text.failed ? "" : text.text);
    tierce__json_write_close(&json, '}');
    tierce__line_put(out, "\n");
    tierce__line_clear(&text);
}

/* ---- searching ---------------------------------------------------------------------------------
 */

int tierce__why_chunk(struct tierce__line *json, struct tierce_engine *engine,
                      const struct tierce__hash_prefix *prefix)
{
    struct tierce_miss miss = {0};
    struct tierce__sightings *found = tierce__calloc(1, sizeof(*found));
    if (found == NULL)
        return -ENOMEM;
    found->prefix = prefix;
    for (size_t level = 0; level < engine->level_count; level++) {
        struct tierce__tier *tier = engine->levels[level].tier;
        found->tier = tier->ops->name;
        uint32_t cursor = 0;
        while (tier->ops->scan(tier, &cursor, SCAN_PLACES, tierce__sightings_add, found))
            ;
    }
    if (found->count == 0 && prefix->digits == 2 * TIERCE_HASH_BYTES &&
        tierce__why_departed(engine, prefix->bytes, &miss))
        found->miss = &miss;
    tierce__sightings_json(json, found, engine->namespaces);
    tierce__free(found);
    return 0;
}
