/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_WHY_CHUNK_H
#define TIERCE_ENGINE_WHY_CHUNK_H

#include "base/text/line.h"
#include "core/key/key.h"
#include "core/key/namespaces.h"
#include "store/tier.h"

#include <tierce/why.h>

/*
 * Locates chunks by the beginning of their hash: in an engine here, in a store folder by `tierce
 * why`. Thread: any.
 */

/* The beginning of a hash. */
struct tierce__hash_prefix {
    uint8_t bytes[TIERCE_HASH_BYTES];
    uint32_t digits; /* of hex, 1 .. 64 */
};

TIERCE_MUSTUSE bool tierce__hash_prefix(struct tierce__hash_prefix *out, const char *hex);

#define TIERCE__SIGHTINGS_MAX 64u

struct tierce__sighting {
    const char *tier;
    struct tierce__key key;
    uint64_t object_bytes, token_start;
    uint32_t block_count;
};

/* The chunks whose hash begins with the prefix. */
struct tierce__sightings {
    const struct tierce__hash_prefix *prefix; /* [borrow] */
    const char *tier;                         /* that is being searched */
    uint64_t count; /* may exceed TIERCE__SIGHTINGS_MAX; `items` has the first ones */
    struct tierce__sighting items[TIERCE__SIGHTINGS_MAX];
    const struct tierce_miss *miss; /* the reason if there is none; NULL: unknown */
};

/* Adds a chunk of `tier` if its hash has the prefix; a visitor of a tier's scan. */
void tierce__sightings_add(void *sightings, const struct tierce__tier_event *seen);

/* One JSON object; its member "text" holds lines of text. */
void tierce__sightings_json(struct tierce__line *out, const struct tierce__sightings *sightings,
                            struct tierce__namespaces *namespaces);

/* Searches the tiers of an engine. If no tier has a chunk of a whole hash, the answer has the
 * reason. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__why_chunk(struct tierce__line *json, struct tierce_engine *engine,
                                     const struct tierce__hash_prefix *prefix);

#endif
