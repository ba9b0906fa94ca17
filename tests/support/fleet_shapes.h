/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TEST_FLEET_SHAPES_H
#define TIERCE_TEST_FLEET_SHAPES_H

#include "check_main.h"

#include "core/key/key_text.h"
#include "core/key/namespaces.h"
#include "store/remote/fleet/fleet_private.h"

#include <stdlib.h>
#include <string.h>

/* Names of chunks of small namespaces, as a connector through a manager gets them. */

struct shape {
    const char *weights, *model, *dtype;
    uint32_t cell, block_tokens, chunk_blocks;
    enum tierce_group group;
    uint32_t window;
};

static const struct shape plain_shape = {
    "aabbccddee", "{\"model_type\":\"tiny\"}", "bfloat16", 512, 16, 4, TIERCE_GROUP_ALL, 0};
static const struct tierce_shard whole_shard = {0, 1, 0, 1};

/* The text of a namespace of two layers, or of layers 1 and 3 for a group. The caller frees it. */
static inline char *shape_text(const struct shape *shape)
{
    static const uint32_t numbers[] = {1, 3};
    const uint32_t cells[] = {shape->cell, shape->cell};
    const struct tierce_namespace ns = {.size = sizeof(ns),
                                        .weights = shape->weights,
                                        .model = shape->model,
                                        .kv_dtype = shape->dtype,
                                        .layout = "l",
                                        .layer_count = 2,
                                        .cell_bytes = cells,
                                        .block_tokens = shape->block_tokens,
                                        .chunk_blocks = shape->chunk_blocks,
                                        .algo = TIERCE_CHAIN_SHA256,
                                        .group = shape->group,
                                        .window = shape->window,
                                        .layers =
                                            shape->group != TIERCE_GROUP_ALL ? numbers : NULL};
    char *text;
    ck_assert_int_eq(tierce_namespace_text(&text, &ns), 0);
    return text;
}

/* The name of a chunk whose hash begins with 1 .. 7, 0x88. Its namespace's text is put into
 * `namespaces`, unless that is NULL. */
static inline struct tierce_plugin_name shape_name(char room[TIERCE__KEY_TEXT_BYTES],
                                                   const struct shape *shape,
                                                   struct tierce_shard shard,
                                                   struct tierce__namespaces *namespaces)
{
    static const uint8_t hash[TIERCE_HASH_BYTES] = {1, 2, 3, 4, 5, 6, 7, 0x88, 9};
    uint8_t digest[TIERCE_HASH_BYTES];
    char *text = shape_text(shape);
    tierce_namespace_digest(digest, text);
    if (namespaces != NULL)
        ck_assert_int_ge(tierce__namespaces_intern(namespaces, digest, text), 0);
    tierce_free(text);
    int bytes = tierce__key_text_format(room, digest, &shard, hash);
    ck_assert_int_gt(bytes, 0);
    return (struct tierce_plugin_name){.text = room, .bytes = (size_t)bytes};
}

static const int64_t shape_block_key = (int64_t)0x8807060504030201;

#endif
