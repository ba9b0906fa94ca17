/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/tier_conformance.h"
#include "store/coded/coded_tier.h"
#include "store/memory/copies.h"

static struct tierce__namespaces *namespaces;

static int open_copies(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    (void)pool;
    (void)ctx;
    return tierce__copies_open(
        out, &(struct tierce__copies_opts){.size = sizeof(struct tierce__copies_opts),
                                           .cap_bytes = 16u << 20,
                                           .policy = tierce__policy_find("lru"),
                                           .no_touch = true});
}

static struct tierce__buf *alloc_coded(void *arg, uint64_t bytes)
{
    struct tierce__buf *buf;
    return tierce__pool_alloc(arg, &buf, bytes) == 0 ? buf : NULL;
}

/* The suite's objects are no chunks, so they stay raw. */
static int open_encoding(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    struct tierce__tier *inner;
    int rc = tierce__namespaces_create(&namespaces);
    if (rc == 0)
        rc = open_copies(&inner, pool, ctx);
    if (rc < 0)
        return rc;
    return tierce__coded_tier_open(
        out, &(struct tierce__coded_opts){.size = sizeof(struct tierce__coded_opts),
                                          .tier = inner,
                                          .codec = tierce__codec_find("lossless"),
                                          .namespaces = namespaces,
                                          .alloc = alloc_coded,
                                          .alloc_arg = pool,
                                          .queue_bytes_max = 256u << 20});
}

/* A namespace whose elements are known, so that its puts go through the thread that encodes. */
static uint32_t intern_values(void *ctx, unsigned which)
{
    (void)ctx;
    static const uint32_t cell = 4096;
    struct tierce_namespace ns = {.size = sizeof(ns),
                                  .weights = which == 0 ? "00" : "11",
                                  .model = "{}",
                                  .kv_dtype = "bfloat16",
                                  .layout = "test/1",
                                  .layer_count = 1,
                                  .cell_bytes = &cell,
                                  .block_tokens = 16,
                                  .chunk_blocks = 4,
                                  .algo = TIERCE_CHAIN_SHA256};
    uint8_t digest[TIERCE_HASH_BYTES];
    char *text;
    ck_assert_int_eq(tierce_namespace_text(&text, &ns), 0);
    tierce_namespace_digest(digest, text);
    int64_t id = tierce__namespaces_intern(namespaces, digest, text);
    tierce_free(text);
    ck_assert_int_ge(id, 0);
    return (uint32_t)id;
}

static void destroy_namespaces(void *ctx)
{
    (void)ctx;
    tierce__namespaces_destroy(namespaces);
}

static const struct tier_factory factories[] = {
    {.name = "copies in memory", .open = open_copies},
    {"copies behind the tier that encodes", open_encoding, destroy_namespaces, intern_values, NULL},
};

int main(void)
{
    return tier_conformance_main(factories, sizeof(factories) / sizeof(factories[0]));
}
