/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_KV_SHAPE_H
#define TIERCE_CLI_KV_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * How many bytes of KV a token has in each layer of a model, from its config.json.
 *
 * Thread: any.
 */

#define TIERCE__KV_SHAPE_WHY_BYTES 320u

struct tierce__kv_shape {
    char name[64];         /* the architecture, or "" */
    uint32_t layers;       /* with KV for each token, windows included */
    uint32_t state_layers; /* with a recurrent state instead, whose bytes are not known */
    uint32_t kv_heads;     /* 0: latent attention (MLA) */
    uint32_t values;       /* of a head of keys, or of the latent vector */
    uint64_t layer_values; /* of a token in a layer, keys and values together */
};

/*
 * Reads the text of a config.json. Errors, *out untouched and `why` a sentence: TIERCE_E_FORMAT (no
 * JSON, a field is missing or out of range), TIERCE_E_UNSUPPORTED (the layers differ in shape, or
 * are not stored), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__kv_shape_read(struct tierce__kv_shape *out, const char *text,
                                         size_t bytes, char why[TIERCE__KV_SHAPE_WHY_BYTES]);

#endif
