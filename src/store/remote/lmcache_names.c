/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/lmcache_names.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/threads/lock.h"
#include "core/key/key_text.h"
#include "core/key/namespace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SETS 2048u
#define WAYS 4u

struct lmcache_entry {
    struct tierce__lmcache_chunk chunk;
    uint8_t *block_hashes; /* form.chunk_blocks of them; NULL: the entry is free */
    uint64_t used;         /* when it was, by the count of uses */
};

struct tierce__lmcache_names {
    struct tierce__lmcache_names_opts opts;
    struct tierce__lock lock; /* LMCACHE_NAMES: all below */
    uint64_t uses;
    struct lmcache_entry entries[SETS][WAYS];
};

/* ---- layouts --------------------------------------------------------------------------------- */

static const struct dtype {
    const char *name;
    int32_t number;
    uint32_t bytes;
} dtypes[] = {{"half", 2, 2},  {"bfloat16", 3, 2},   {"float", 4, 4},   {"double", 5, 8},
              {"uint8", 6, 1}, {"fp8_e4m3fn", 7, 1}, {"fp8_e5m2", 8, 1}};

static const struct dtype *find_dtype(const char *name, size_t bytes)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++) {
        if (strlen(dtypes[i].name) == bytes && memcmp(dtypes[i].name, name, bytes) == 0)
            return &dtypes[i];
    }
    return NULL;
}

static int refuse(char why[TIERCE__LMCACHE_WHY_BYTES], const char *what)
{
    snprintf(why, TIERCE__LMCACHE_WHY_BYTES, "LMCache cannot read it: %s", what);
    return TIERCE_E_UNSUPPORTED;
}

int tierce__lmcache_form_of(struct tierce__lmcache_form *out, const struct tierce_namespace *ns,
                            char why[TIERCE__LMCACHE_WHY_BYTES])
{
    static const char prefix[] = "lmcache:KV_2LTD:";
    const char *text = ns->layout != NULL ? ns->layout : "";
    uint64_t hidden = 0;
    if (tierce__namespace_group(ns) != TIERCE_GROUP_ALL)
        return refuse(why, "the namespace describes one group of layers only");
    if (strncmp(text, prefix, sizeof(prefix) - 1) != 0)
        return refuse(why, "the namespace's layout is not lmcache:KV_2LTD:DTYPE:HIDDEN");
    text += sizeof(prefix) - 1;
    const struct dtype *dtype = find_dtype(text, strcspn(text, ":"));
    const char *colon = strchr(text, ':');
    if (dtype == NULL || colon == NULL || !tierce__parse_count(&hidden, colon + 1) || hidden == 0 ||
        hidden > INT32_MAX)
        return refuse(why, "the namespace's layout has no type or size that LMCache supports");
    if (ns->quantization != NULL && ns->quantization[0] != '\0')
        return refuse(why, "the namespace's KV is quantized");
    for (uint32_t i = 0; i < ns->layer_count; i++) {
        if (ns->cell_bytes[i] != 2 * hidden * dtype->bytes * ns->block_tokens)
            return refuse(why, "the namespace's cells differ in length from its layout");
    }
    if (ns->chunk_blocks > TIERCE__LMCACHE_BLOCKS_MAX)
        return refuse(why, "the namespace's chunks have more than 256 blocks");
    *out = (struct tierce__lmcache_form){.algo = ns->algo,
                                         .dtype = dtype->name,
                                         .dtype_number = dtype->number,
                                         .hidden = (uint32_t)hidden,
                                         .layer_count = ns->layer_count,
                                         .block_tokens = ns->block_tokens,
                                         .chunk_blocks = ns->chunk_blocks,
                                         .cell_bytes = ns->cell_bytes[0]};
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

int tierce__lmcache_names_create(struct tierce__lmcache_names **out,
                                 const struct tierce__lmcache_names_opts *opts)
{
    struct tierce__lmcache_names *names = tierce__calloc(1, sizeof(*names));
    if (names == NULL)
        return -ENOMEM;
    names->opts = *opts;
    tierce__lock_init(&names->lock, TIERCE__LOCK_LMCACHE_NAMES);
    *out = names;
    return 0;
}

void tierce__lmcache_names_destroy(struct tierce__lmcache_names *names)
{
    if (names == NULL)
        return;
    for (size_t i = 0; i < (size_t)SETS * WAYS; i++)
        tierce__free(names->entries[i / WAYS][i % WAYS].block_hashes);
    tierce__lock_fini(&names->lock);
    tierce__free(names);
}

static struct lmcache_entry *set_of(struct tierce__lmcache_names *names, const uint8_t *hash)
{
    uint64_t spread;
    memcpy(&spread, hash, sizeof(spread));
    return names->entries[spread % SETS];
}

static struct lmcache_entry *find(struct tierce__lmcache_names *names, const uint8_t *ns_digest,
                                  const struct tierce_shard *shard, const uint8_t *hash)
{
    tierce__lock_assert_held(&names->lock);
    struct lmcache_entry *set = set_of(names, hash);
    for (size_t i = 0; i < WAYS; i++) {
        const struct tierce__lmcache_chunk *chunk = &set[i].chunk;
        if (set[i].block_hashes != NULL &&
            memcmp(chunk->chunk_hash, hash, TIERCE_HASH_BYTES) == 0 &&
            memcmp(chunk->form.ns_digest, ns_digest, TIERCE_HASH_BYTES) == 0 &&
            memcmp(&chunk->shard, shard, sizeof(*shard)) == 0)
            return &set[i];
    }
    return NULL;
}

static void insert(struct tierce__lmcache_names *names, const struct tierce__lmcache_chunk *chunk,
                   const uint8_t *block_hashes)
{
    TIERCE_DASSERT(chunk->form.chunk_blocks > 0);
    tierce__lock_assert_held(&names->lock);
    struct lmcache_entry *entry =
        find(names, chunk->form.ns_digest, &chunk->shard, chunk->chunk_hash);
    struct lmcache_entry *set = set_of(names, chunk->chunk_hash);
    size_t bytes = (size_t)chunk->form.chunk_blocks * TIERCE_HASH_BYTES;
    TIERCE_DASSERT(chunk->form.chunk_blocks <= TIERCE__LMCACHE_BLOCKS_MAX);
    if (entry == NULL) {
        entry = set;
        for (size_t i = 1; i < WAYS; i++)
            entry = set[i].used < entry->used ? &set[i] : entry;
        TIERCE_DASSERT(entry->used <= names->uses);
        uint8_t *copy = tierce__realloc(entry->block_hashes, bytes);
        if (copy == NULL)
            return;
        entry->block_hashes = copy;
    }
    entry->chunk = *chunk;
    entry->used = ++names->uses;
    memcpy(entry->block_hashes, block_hashes, bytes);
}

void tierce__lmcache_names_learn(struct tierce__lmcache_names *names,
                                 const struct tierce__lmcache_form *form,
                                 const struct tierce_chain *chain, const struct tierce__key *keys,
                                 size_t count)
{
    TIERCE_DASSERT(count * form->chunk_blocks <= tierce_chain_blocks(chain));
    const int32_t *tokens = tierce__chain_tokens(chain);
    const struct tierce__lmcache_opts opts = {.algo = names->opts.algo,
                                              .chunk_tokens =
                                                  form->block_tokens * form->chunk_blocks,
                                              .none_hash = names->opts.none_hash};
    struct tierce__lmcache_int *hashes =
        tokens != NULL && count > 0 ? tierce__calloc(count, sizeof(*hashes)) : NULL;
    if (hashes == NULL)
        return;
    tierce__lmcache_hash_chunks(hashes, &opts, tokens, count * opts.chunk_tokens);
    tierce__lock_take(&names->lock);
    for (size_t i = 0; i < count; i++) {
        size_t first = i * form->chunk_blocks;
        struct tierce__lmcache_chunk chunk = {.form = *form,
                                              .hash = hashes[i],
                                              .shard = keys[i].shard,
                                              .token_start = i * opts.chunk_tokens};
        memcpy(chunk.chunk_hash, keys[i].hash, TIERCE_HASH_BYTES);
        memcpy(chunk.parent,
               first > 0 ? tierce_chain_hash(chain, first - 1) : tierce_chain_root_hash(chain),
               TIERCE_HASH_BYTES);
        insert(names, &chunk, tierce_chain_hash(chain, first));
    }
    tierce__lock_drop(&names->lock);
    tierce__free(hashes);
}

bool tierce__lmcache_names_find(struct tierce__lmcache_names *names,
                                struct tierce__lmcache_chunk *out, uint8_t *block_hashes,
                                const char *key_text, size_t key_bytes)
{
    uint8_t digest[TIERCE_HASH_BYTES], hash[TIERCE_HASH_BYTES];
    struct tierce_shard shard;
    if (tierce__key_text_parse(digest, &shard, hash, key_text, key_bytes) < 0)
        return false;
    tierce__lock_take(&names->lock);
    struct lmcache_entry *entry = find(names, digest, &shard, hash);
    if (entry != NULL) {
        TIERCE_DASSERT(entry->used <= names->uses &&
                       entry->chunk.form.chunk_blocks <= TIERCE__LMCACHE_BLOCKS_MAX);
        entry->used = ++names->uses;
        *out = entry->chunk;
        if (block_hashes != NULL)
            memcpy(block_hashes, entry->block_hashes,
                   (size_t)out->form.chunk_blocks * TIERCE_HASH_BYTES);
    }
    tierce__lock_drop(&names->lock);
    return entry != NULL;
}
