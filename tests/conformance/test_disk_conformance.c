/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/tier_conformance.h"
#include "store/coded/coded_tier.h"
#include "store/disk/disk.h"
#include "tier_fault.h"
#include "temp_folder.h"

#include <stdio.h>
#include <stdlib.h>

struct place {
    bool buffered;
    bool threads;
    uint32_t depth;
    uint32_t io_bytes;
    char folder[64];
    struct tierce__namespaces *namespaces;
};

static int open_disk(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    struct place *place = (struct place *)ctx;
    snprintf(place->folder, sizeof(place->folder), "test_disk_conformance.XXXXXX");
    int rc = mkdtemp(place->folder) != NULL ? 0 : -1;
    if (rc == 0)
        rc = tierce__namespaces_create(&place->namespaces);
    struct tierce__vfs *vfs = NULL;
    if (rc == 0 && place->threads)
        rc = tierce__vfs_threads_create(&vfs, 4);
    if (rc < 0)
        return rc;
    return tierce__disk_open(out,
                             &(struct tierce__disk_opts){.size = sizeof(struct tierce__disk_opts),
                                                         .path = place->folder,
                                                         .cap_bytes = 16u << 20,
                                                         .policy = tierce__policy_find("lru"),
                                                         .namespaces = place->namespaces,
                                                         .pool = pool,
                                                         .vfs = vfs,
                                                         .io_depth = place->depth,
                                                         .io_bytes = place->io_bytes,
                                                         .queue_bytes = 256u << 20,
                                                         .buffered = place->buffered});
}

static int open_wrapped(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    struct tierce__tier *inner;
    int rc = open_disk(&inner, pool, ctx);
    return rc == 0 ? tierce__fault_create(out, inner) : rc;
}

static struct tierce__buf *alloc_coded(void *arg, uint64_t bytes)
{
    struct tierce__buf *buf;
    return tierce__pool_alloc(arg, &buf, bytes) == 0 ? buf : NULL;
}

/* All puts go through the queue of the thread that encodes. The suite's objects are no chunks, so
 * they stay raw. */
static int open_encoding(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    struct tierce__tier *inner;
    struct place *place = (struct place *)ctx;
    int rc = open_disk(&inner, pool, ctx);
    if (rc < 0)
        return rc;
    return tierce__coded_tier_open(
        out, &(struct tierce__coded_opts){.size = sizeof(struct tierce__coded_opts),
                                          .tier = inner,
                                          .codec = tierce__codec_find("lossless"),
                                          .namespaces = place->namespaces,
                                          .alloc = alloc_coded,
                                          .alloc_arg = pool,
                                          .queue_bytes_max = 256u << 20});
}

/* A namespace whose elements are known. */
static uint32_t intern_values(void *ctx, unsigned which)
{
    struct place *place = (struct place *)ctx;
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
    int64_t id = tierce__namespaces_intern(place->namespaces, digest, text);
    tierce_free(text);
    ck_assert_int_ge(id, 0);
    return (uint32_t)id;
}

/* Answers come late and out of order, from the wrapper's thread. */
static int open_late(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    int rc = open_wrapped(out, pool, ctx);
    struct tierce__fault_rule late = {
        .kind = TIERCE__FAULT_DELAY, .delay_ms = 3, .seed = 1, .per_mille = 100};
    for (int op = TIERCE__STORE_LOOKUP; rc == 0 && op <= TIERCE__STORE_SIBLINGS; op++)
        tierce__fault_set(*out, (enum tierce__store_op)op, &late);
    return rc;
}

static uint32_t intern(void *ctx, unsigned which)
{
    struct place *place = (struct place *)ctx;
    uint8_t digest[TIERCE_HASH_BYTES] = {(uint8_t)(which + 1)};
    int64_t id = tierce__namespaces_intern(place->namespaces, digest, NULL);
    ck_assert_int_ge(id, 0);
    return (uint32_t)id;
}

static void cleanup(void *ctx)
{
    struct place *place = (struct place *)ctx;
    tierce__namespaces_destroy(place->namespaces);
    temp_folder_remove(place->folder);
}

static struct place direct;
static struct place small = {.depth = 2, .io_bytes = 8192};
static struct place plain = {.buffered = true, .threads = true};

static struct place wrapped, late, encoding;

static const struct tier_factory factories[] = {
    {"disk", open_disk, cleanup, intern, &direct},
    {"disk with a depth of two", open_disk, cleanup, intern, &small},
    {"disk buffered over threads", open_disk, cleanup, intern, &plain},
    {"disk behind the tier that encodes", open_encoding, cleanup, intern_values, &encoding},
    {"disk behind a wrapper", open_wrapped, cleanup, intern, &wrapped},
    {"disk behind a wrapper that is late", open_late, cleanup, intern, &late},
};

int main(void)
{
    return tier_conformance_main(factories, sizeof(factories) / sizeof(factories[0]));
}
