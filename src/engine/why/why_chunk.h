/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_WHY_CHUNK_H
#define TIERCE_ENGINE_WHY_CHUNK_H

#include "base/text/line.h"
#include "core/key/key.h"
#include "core/key/namespaces.h"

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
bool tierce__hash_begins(const uint8_t *hash, const struct tierce__hash_prefix *prefix);

#define TIERCE__SIGHTINGS_MAX 64u

struct tierce__sighting {
    const char *tier;
    struct tierce__key key;
    uint64_t object_bytes, token_start;
    uint32_t block_count;
};

struct tierce__sightings {
    uint64_t count; /* there may be more than are kept */
    struct tierce__sighting items[TIERCE__SIGHTINGS_MAX];
    const struct tierce_miss *miss; /* why there is none; NULL: unknown */
};

/* One JSON object; "text" holds lines for people. */
void tierce__sightings_json(struct tierce__line *out, const struct tierce__sightings *sightings,
                            struct tierce__namespaces *namespaces);

/* Asks an engine; of a whole hash that is nowhere, why. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__why_chunk(struct tierce__line *json, struct tierce_engine *engine,
                                     const struct tierce__hash_prefix *prefix);

#endif
