/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blend_keys rotate DTYPE HEAD_ELEMENTS neox|gptj PARAMETERS DELTA < keys > rotated
 * blend_keys select DTYPE TOKEN_ELEMENTS KEEP < computed and reused keys > indices
 *
 * The kernels of blending for tools/kv_blend.py and tests. `rotate` rotates heads that lie one
 * after another by DELTA positions; PARAMETERS are rope_parameters of a model's configuration.
 * `select` reads the keys of tokens twice, computed and reused, and writes the indices of the KEEP
 * tokens that differ most, a line each.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/blend/select.h"

static uint8_t *read_all(size_t *bytes)
{
    size_t room = 1 << 20;
    uint8_t *values = malloc(room);
    *bytes = 0;
    for (size_t got = 1; values != NULL && got > 0; *bytes += got) {
        if (*bytes == room) {
            room *= 2;
            uint8_t *more = realloc(values, room);
            if (more == NULL)
                exit(2);
            values = more;
        }
        got = fread(values + *bytes, 1, room - *bytes, stdin);
    }
    return values;
}

static int fail(const char *why, const char *value)
{
    fprintf(stderr, "blend_keys: %s: %s\n", why, value);
    return 2;
}

static int rotate(char **argv, enum tierce__blend_dtype dtype, uint32_t elements, uint8_t *keys,
                  size_t bytes)
{
    struct tierce__rope_layout layout = {.row_elements = elements, .width = elements};
    if (strcmp(argv[4], "neox") != 0 && strcmp(argv[4], "gptj") != 0)
        return fail("the style must be neox or gptj", argv[4]);
    layout.style = argv[4][0] == 'n' ? TIERCE__ROPE_NEOX : TIERCE__ROPE_GPTJ;
    struct tierce__rope rope;
    struct tierce__rotation rotation;
    char why[TIERCE__ROPE_WHY_BYTES];
    if (tierce__rope_init(&rope, why, argv[5], strlen(argv[5]), &layout) < 0)
        return fail(argv[5], why);
    tierce__rotation_init(&rotation, &rope, strtoll(argv[6], NULL, 10));
    size_t head_bytes = elements * (size_t)tierce__blend_dtype_bytes(dtype);
    struct tierce__key_rows rows = {keys, head_bytes, head_bytes};
    tierce__rotate(&rotation, dtype, &rows, &rows, bytes / head_bytes, 1);
    return fwrite(keys, 1, bytes, stdout) == bytes && fflush(stdout) == 0 ? 0 : 1;
}

static int choose(char **argv, enum tierce__blend_dtype dtype, uint32_t elements, uint8_t *keys,
                  size_t bytes)
{
    size_t token_bytes = elements * (size_t)tierce__blend_dtype_bytes(dtype);
    size_t count = bytes / 2 / token_bytes, keep = strtoull(argv[4], NULL, 10);
    uint32_t *tokens = calloc(count + 1, sizeof(*tokens));
    float *distances = calloc(count + 1, sizeof(*distances));
    if (tokens == NULL || distances == NULL)
        return fail("no memory", argv[1]);
    struct tierce__key_rows computed = {keys, token_bytes, 0}, reused = computed;
    reused.at = keys + bytes / 2;
    tierce__key_distances(distances, dtype, &computed, &reused, count, 1, elements);
    for (size_t i = 0; i < count; i++)
        tokens[i] = (uint32_t)i;
    keep = tierce__blend_select(tokens, distances, count, keep);
    for (size_t i = 0; i < keep; i++)
        printf("%u\n", tokens[i]);
    free(tokens);
    free(distances);
    return fflush(stdout) == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    bool is_rotate = argc == 7 && strcmp(argv[1], "rotate") == 0;
    if (!is_rotate && (argc != 5 || strcmp(argv[1], "select") != 0))
        return fail("usage", "rotate DTYPE HEAD_ELEMENTS neox|gptj PARAMETERS DELTA, or select "
                             "DTYPE TOKEN_ELEMENTS KEEP");
    enum tierce__blend_dtype dtype = tierce__blend_dtype_of(argv[2]);
    uint32_t elements = (uint32_t)strtoul(argv[3], NULL, 10);
    if (dtype == TIERCE__BLEND_DTYPES)
        return fail("the dtype must be bfloat16, float16 or float32", argv[2]);
    size_t bytes, row = elements * (size_t)tierce__blend_dtype_bytes(dtype) * (is_rotate ? 1 : 2);
    uint8_t *keys = read_all(&bytes);
    if (keys == NULL || row == 0 || bytes % row != 0)
        return fail("the input is not a whole number of rows", argv[3]);
    int rc = (is_rotate ? rotate : choose)(argv, dtype, elements, keys, bytes);
    free(keys);
    return rc;
}
