/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keep_engine PARAMETER=VALUE...: an engine of these settings that looks up and stores a prompt of
 * 128 equal tokens, says its process id, and stays until its standard input ends. token=N: which
 * token; dtype=NAME: that of the namespace; window=N: a namespace of a window group, which stores
 * the second half alone; full=1: one of a full group of the same model; request=NAME: the lookup
 * and the store are those of a served request with this name.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tierce/tierce.h>

#define BLOCKS       8u
#define CELL         4096u
#define BLOCK_TOKENS 16u
#define SESSION      17u /* of a request */

static void must(int64_t rc, const char *what)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "%s: %s\n", what, tierce_strerror((int)rc));
    exit(1);
}

static struct tierce_namespace some_namespace(const char *dtype, uint32_t window, bool full)
{
    static const uint32_t cells[] = {CELL, CELL}, layers_of[2][2] = {{0, 1}, {2, 3}};
    return (struct tierce_namespace){.size = sizeof(struct tierce_namespace),
                                     .weights = "aabb",
                                     .model = "{}",
                                     .kv_dtype = dtype,
                                     .layout = "test",
                                     .layer_count = 2,
                                     .cell_bytes = cells,
                                     .block_tokens = BLOCK_TOKENS,
                                     .chunk_blocks = 4,
                                     .algo = TIERCE_CHAIN_SHA256,
                                     .group = window > 0 ? TIERCE_GROUP_WINDOW
                                              : full     ? TIERCE_GROUP_FULL
                                                         : TIERCE_GROUP_ALL,
                                     .window = window,
                                     .layers = window > 0 || full ? layers_of[window > 0] : NULL};
}

static void note(struct tierce_engine *engine, const char *name, uint64_t found_blocks)
{
    struct tierce_request served = {.size = sizeof(served),
                                    .name = name,
                                    .session = SESSION,
                                    .tokens = BLOCKS * BLOCK_TOKENS,
                                    .unit_tokens = BLOCK_TOKENS,
                                    .looked_tokens = BLOCKS * BLOCK_TOKENS,
                                    .found_tokens = found_blocks * BLOCK_TOKENS};
    must(tierce_request_note(engine, &served), "note");
}

int main(int argc, char **argv)
{
    char why[TIERCE_CONFIG_ERROR_BYTES];
    struct tierce_config *config;
    const char *dtype = "bf16", *request = NULL;
    int32_t token = 0;
    uint32_t window = 0;
    bool full = false;
    must(tierce_config_create(&config), "config");
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        *value++ = '\0';
        if (strcmp(argv[i], "token") == 0)
            token = (int32_t)strtol(value, NULL, 10);
        else if (strcmp(argv[i], "dtype") == 0)
            dtype = value;
        else if (strcmp(argv[i], "window") == 0)
            window = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "full") == 0)
            full = true;
        else if (strcmp(argv[i], "request") == 0)
            request = value;
        else
            must(tierce_config_set(config, argv[i], value, why), why);
    }
    struct tierce_engine *engine;
    must(tierce_engine_open(&engine, config, why), why);
    tierce_config_destroy(config);

    struct tierce_namespace ns = some_namespace(dtype, window, full);
    struct tierce_view *view;
    must(tierce_view_open(&view, engine, &ns, &(struct tierce_shard){0, 1, 0, 1}), "view");
    struct tierce_chain *chain;
    must(tierce_view_chain(&chain, view, NULL), "chain");
    int32_t tokens[BLOCKS * BLOCK_TOKENS], ids[BLOCKS];
    for (size_t i = 0; i < BLOCKS * BLOCK_TOKENS; i++)
        tokens[i] = token;
    must(tierce_chain_append(chain, tokens, BLOCKS * BLOCK_TOKENS, NULL), "tokens");
    static uint8_t memory[2][BLOCKS * CELL];
    struct tierce_paged_layer layers[] = {
        {.base = memory[0], .block_stride = CELL, .block_bytes = CELL},
        {.base = memory[1], .block_stride = CELL, .block_bytes = CELL}};
    struct tierce_paged paged = {
        .size = sizeof(paged), .layers = layers, .layer_count = 2, .block_count = BLOCKS};
    for (uint32_t i = 0; i < BLOCKS; i++)
        ids[i] = (int32_t)i;
    struct tierce_transfer_opts what = {.size = sizeof(what),
                                        .chain = chain,
                                        .from_block = window > 0 ? BLOCKS / 2 : 0,
                                        .to_block = BLOCKS,
                                        .paged = &paged,
                                        .block_ids = ids};
    struct tierce_lookup_opts opts = {.size = sizeof(opts),
                                      .session = request != NULL ? SESSION : 0};
    what.session = opts.session;
    struct tierce_found found;
    must(tierce_lookup(view, chain, BLOCKS, &opts, &found), "lookup");
    must(tierce_store(view, &what), "store");
    if (request != NULL)
        note(engine, request, found.blocks);
    opts.session = 0;
    must(tierce_lookup(view, chain, BLOCKS, &opts, &found), "lookup");
    printf("%ld\n", (long)getpid());
    fflush(stdout);
    while (getchar() != EOF)
        ;
    tierce_chain_destroy(chain);
    tierce_view_close(view);
    tierce_engine_close(engine);
    return 0;
}
