/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_kv.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/view.h"
#include "engine/engine.h"
#include "core/key/namespaces.h"

static void shuffle_ids(int32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (int32_t)i;
    for (uint32_t left = count; left > 1; left--) {
        uint32_t j = (uint32_t)(tierce__bench_random(1, left - 1) % left);
        int32_t id = ids[left - 1];
        ids[left - 1] = ids[j];
        ids[j] = id;
    }
}

static int alloc_memory(struct tierce__kv *kv)
{
    uint32_t blocks = kv->windows * kv->window_blocks;
    kv->window_bytes = (uint64_t)TIERCE__KV_LAYERS * kv->window_blocks * kv->cell_bytes;
    kv->bytes = kv->windows * kv->window_bytes;
    kv->memory = tierce__bench_map(kv->bytes);
    kv->ids = tierce__calloc(blocks, sizeof(*kv->ids));
    kv->hashes = tierce__calloc(kv->window_blocks, TIERCE_HASH_BYTES);
    if (kv->memory == NULL || kv->ids == NULL || kv->hashes == NULL)
        return -ENOMEM;
    tierce__bench_fill(kv->memory, kv->bytes, kv->cell_bytes);
    shuffle_ids(kv->ids, blocks);
    for (uint32_t i = 0; i < TIERCE__KV_LAYERS; i++)
        kv->layers[i] =
            (struct tierce_paged_layer){.base = kv->memory + (uint64_t)i * blocks * kv->cell_bytes,
                                        .block_stride = kv->cell_bytes,
                                        .block_bytes = kv->cell_bytes};
    kv->paged = (struct tierce_paged){.size = sizeof(kv->paged),
                                      .layers = kv->layers,
                                      .layer_count = TIERCE__KV_LAYERS,
                                      .block_count = blocks};
    return 0;
}

int tierce__kv_open(struct tierce__kv *kv, const struct tierce__bench_param *params, size_t count)
{
    uint32_t cells[TIERCE__KV_LAYERS];
    for (uint32_t i = 0; i < TIERCE__KV_LAYERS; i++)
        cells[i] = kv->cell_bytes;
    struct tierce_namespace ns = {.size = sizeof(ns),
                                  .weights = "00",
                                  .kv_dtype = "bfloat16",
                                  .layout = "bench",
                                  .layer_count = TIERCE__KV_LAYERS,
                                  .cell_bytes = cells,
                                  .block_tokens = TIERCE__KV_BLOCK_TOKENS,
                                  .chunk_blocks = TIERCE__KV_CHUNK_BLOCKS,
                                  .algo = TIERCE_CHAIN_XXH3_128};
    int rc = alloc_memory(kv);
    if (rc == 0)
        rc = tierce__bench_engine(&kv->engine, kv->bench, params, count);
    if (rc == 0)
        rc = tierce_view_open(&kv->view, kv->engine, &ns, &(struct tierce_shard){0, 1, 0, 1});
    return rc;
}

void tierce__kv_close(struct tierce__kv *kv)
{
    tierce_view_close(kv->view);
    tierce_engine_close(kv->engine);
    tierce__bench_unmap(kv->memory, kv->bytes);
    tierce__free(kv->ids);
    tierce__free(kv->hashes);
}

uint8_t *tierce__kv_block(const struct tierce__kv *kv, uint32_t layer, int32_t id)
{
    return (uint8_t *)kv->layers[layer].base + (uint64_t)(uint32_t)id * kv->cell_bytes;
}

int tierce__kv_renew(struct tierce__kv *kv, struct tierce_chain *chain)
{
    tierce__bench_fill(kv->hashes, (uint64_t)kv->window_blocks * TIERCE_HASH_BYTES, ++kv->prompts);
    tierce_chain_reset(chain);
    int64_t rc = tierce_chain_append_hashes(chain, kv->hashes, kv->window_blocks);
    return rc < 0 ? (int)rc : 0;
}

static struct tierce_transfer_opts transfer_of(const struct tierce__kv *kv,
                                               const struct tierce_chain *chain, const int32_t *ids)
{
    return (struct tierce_transfer_opts){.size = sizeof(struct tierce_transfer_opts),
                                         .chain = chain,
                                         .to_block = tierce_chain_blocks(chain),
                                         .paged = &kv->paged,
                                         .block_ids = ids};
}

int64_t tierce__kv_store(struct tierce__kv *kv, const struct tierce_chain *chain,
                         const int32_t *ids, uint64_t to_block, uint64_t blocks)
{
    struct tierce_transfer_opts what = transfer_of(kv, chain, ids);
    what.to_block = to_block;
    uint64_t start = tierce__now_ns();
    int64_t stored = tierce_store(kv->view, &what);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    if (stored != (int64_t)blocks)
        return tierce__bench_fail(kv->bench, "a store took %lld of %llu blocks", (long long)stored,
                                  (unsigned long long)blocks);
    return ns;
}

int64_t tierce__kv_load(struct tierce__kv *kv, const struct tierce_chain *chain, const int32_t *ids,
                        enum tierce_origin origin)
{
    struct tierce_transfer_opts what = transfer_of(kv, chain, ids);
    uint8_t *origins = tierce__calloc(what.to_block, 1);
    if (origins == NULL)
        return -ENOMEM;
    uint64_t start = tierce__now_ns();
    int64_t blocks = tierce_load(kv->view, &what, origins);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    uint64_t right = 0;
    for (uint64_t i = 0; blocks > 0 && i < what.to_block; i++)
        right += origins[i] == origin;
    tierce__free(origins);
    if (right != what.to_block)
        return tierce__bench_fail(kv->bench, "a load gave %lld of %llu blocks, %llu from that tier",
                                  (long long)blocks, (unsigned long long)what.to_block,
                                  (unsigned long long)right);
    return ns;
}

int tierce__kv_names(const struct tierce__kv *kv, const struct tierce_chain *chain,
                     char (*texts)[TIERCE__KEY_TEXT_BYTES], struct tierce_plugin_name *names,
                     size_t count)
{
    const struct tierce__key *key = &kv->view->key;
    for (size_t i = 0; i < count; i++) {
        int bytes = tierce__key_text_format(
            texts[i], tierce__namespaces_digest(kv->engine->namespaces, key->ns), &key->shard,
            tierce_chain_hash(chain, (i + 1) * TIERCE__KV_CHUNK_BLOCKS - 1));
        if (bytes < 0)
            return bytes;
        names[i] = (struct tierce_plugin_name){texts[i], (size_t)bytes};
    }
    return 0;
}
