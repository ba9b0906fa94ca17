/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "cli/cli.h"
#include "cli/inspect/inspect.h"
#include "cli/why_folder.h"
#include "core/key/namespace.h"
#include "engine/why/why.h"
#include "store/index.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The blocks of a prompt, by their hashes, and those that the folder has. */
struct folder_wanted {
    struct tierce__index *index; /* of keys that hold a hash alone */
    uint32_t *blocks;            /* [block_count] by slot */
    uint8_t *held;               /* [block_count] a chunk of the namespace ends with this block */
    uint32_t *twins;             /* [block_count] another namespace has one: its id + 1 */
    uint32_t block_count;
    uint32_t ns;
    struct tierce_shard shard;
    struct tierce__namespaces *namespaces; /* of the scan */
};

static struct tierce__key hash_alone(const uint8_t *hash)
{
    struct tierce__key key = {0};
    memcpy(key.hash, hash, sizeof(key.hash));
    return key;
}

static int list_blocks(struct folder_wanted *w, const struct tierce_chain *chain)
{
    size_t count = tierce_chain_blocks(chain);
    if (count > UINT32_MAX / 2)
        return TIERCE_E_LIMIT;
    w->block_count = (uint32_t)count;
    w->blocks = tierce__calloc(count, sizeof(*w->blocks));
    w->held = tierce__calloc(count, 1);
    w->twins = tierce__calloc(count, sizeof(*w->twins));
    if (w->blocks == NULL || w->held == NULL || w->twins == NULL)
        return -ENOMEM;
    int rc = tierce__index_create(&w->index, count > 0 ? w->block_count : 1);
    for (uint32_t i = 0; rc == 0 && i < w->block_count; i++) {
        struct tierce__key key = hash_alone(tierce_chain_hash(chain, i));
        uint32_t slot = tierce__index_insert(w->index, &key);
        TIERCE_ASSERT(slot < w->block_count);
        w->blocks[slot] = i;
    }
    return rc;
}

/* Chunks of other groups of the same model have the same hashes. */
static bool is_other_group(const struct folder_wanted *w, uint32_t ns)
{
    const char *text = tierce__namespaces_text(w->namespaces, w->ns);
    const char *other = tierce__namespaces_text(w->namespaces, ns);
    return text != NULL && other != NULL && tierce__namespace_other_group(text, other);
}

static bool visit(void *arg, const struct tierce__disk_entry *entry)
{
    struct folder_wanted *w = arg;
    struct tierce__key key = hash_alone(entry->key.hash);
    uint32_t slot = tierce__index_find(w->index, &key);
    if (slot == TIERCE__INDEX_NONE || memcmp(&entry->key.shard, &w->shard, sizeof(w->shard)) != 0)
        return true;
    if (entry->key.ns == w->ns)
        w->held[w->blocks[slot]] = 1;
    else if (!is_other_group(w, entry->key.ns))
        w->twins[w->blocks[slot]] = entry->key.ns + 1;
    return true;
}

static void clear(struct folder_wanted *w)
{
    tierce__index_destroy(w->index);
    tierce__free(w->blocks);
    tierce__free(w->held);
    tierce__free(w->twins);
}

/* The last block of chunk `index`. */
static uint32_t last_block(const struct folder_wanted *w, uint32_t chunk_blocks, uint32_t index)
{
    uint64_t end = (uint64_t)(index + 1) * chunk_blocks;
    return (end < w->block_count ? (uint32_t)end : w->block_count) - 1;
}

struct folder_asking {
    const struct folder_wanted *w;
    uint32_t chunk_blocks;
    uint64_t to_block;
    size_t missing; /* in the run of to_block blocks */
};

static size_t count_held(void *arg, const struct tierce__run *run)
{
    struct folder_asking *asking = arg;
    size_t found = 0;
    while (
        found < run->count &&
        asking->w->held[last_block(asking->w, asking->chunk_blocks, (uint32_t)(run->from + found))])
        found++;
    if (found < run->count && run->blocks == asking->to_block)
        asking->missing = run->from + found;
    return found;
}

/* The first missing chunk, and how many blocks are held; `chunks` if none is missing. */
static size_t find_missing(struct tierce__answer *a, const struct folder_wanted *w, size_t chunks)
{
    struct folder_asking asking = {w, a->naming.group.chunk_blocks, w->block_count, chunks};
    if (tierce__group_is_sparse(a->naming.group.kind)) {
        a->held_blocks =
            tierce__run_find(&a->naming.group, 0, w->block_count, count_held, &asking).blocks;
        return asking.missing;
    }
    struct tierce__run all = {.blocks = w->block_count, .count = chunks};
    size_t first = count_held(&asking, &all);
    a->held_blocks =
        first < chunks ? (uint64_t)first * a->naming.group.chunk_blocks : w->block_count;
    return first;
}

static void conclude(struct tierce__answer *a, const struct folder_wanted *w,
                     struct tierce__namespaces *namespaces, const struct tierce_chain *chain)
{
    uint32_t step = a->naming.group.chunk_blocks;
    uint32_t chunks = w->block_count / step + (w->block_count % step > 0);
    uint32_t first = (uint32_t)find_missing(a, w, chunks);
    if (first == chunks)
        return;
    uint32_t block = last_block(w, step, first), twin = w->twins[block];
    bool is_tail = block + 1 - first * step < step;
    if (twin == 0 && is_tail)
        return; /* tails are stored only on request */
    a->miss.reason = TIERCE_MISS_NEVER_STORED;
    a->miss.block = (uint64_t)first * step;
    memcpy(a->miss.hash, tierce_chain_hash(chain, block), TIERCE_HASH_BYTES);
    if (twin > 0)
        tierce__why_twin(&a->miss, namespaces, twin - 1);
    for (uint32_t i = first + 1; i < chunks; i++)
        a->later = a->later || w->held[last_block(w, step, i)];
}

static int choose_shard(struct tierce_shard *out, const struct tierce__inspect_namespace *item,
                        const struct tierce__prompt *prompt)
{
    *out = prompt->shard;
    if (prompt->shard.tp_size > 0)
        return TIERCE__CLI_OK;
    TIERCE_ASSERT(item->shard_count > 0);
    *out = item->shards[0].shard;
    if (item->shard_count == 1)
        return TIERCE__CLI_OK;
    return tierce__cli_usage("why",
                             "the namespace has chunks of %zu shards (`tierce inspect` lists "
                             "them): name one with --shard",
                             item->shard_count);
}

static int choose_namespace(uint32_t *out, const struct tierce__inspect *inspect,
                            const struct tierce__prompt *prompt)
{
    char why[TIERCE__PROMPT_WHY_BYTES];
    uint64_t *counts = tierce__calloc(inspect->count, sizeof(*counts));
    if (counts == NULL)
        return tierce__cli_fail("why", "no memory");
    for (size_t i = 0; i < inspect->count; i++)
        counts[i] = inspect->items[i].sums.chunks;
    int64_t id =
        tierce__prompt_namespace(prompt->ns, inspect->namespaces, counts, inspect->count, why);
    tierce__free(counts);
    if (id < 0)
        return tierce__cli_fail("why", "%.300s: %s", inspect->path, why);
    *out = (uint32_t)id;
    return TIERCE__CLI_OK;
}

/* Reads the folder a second time, now that the wanted keys are known. */
static int search(struct tierce__answer *a, struct folder_wanted *w,
                  const struct tierce__inspect *inspect, const struct tierce__prompt *prompt)
{
    struct tierce_chain *chain;
    int rc = tierce__naming_of(&a->naming, a->ns_text);
    if (rc < 0)
        return tierce__cli_fail(
            "why",
            "%.300s: the text of that namespace is missing, so its tokens cannot "
            "be converted to keys; an engine writes it again at its next store",
            inspect->path);
    rc = tierce__prompt_chain(&chain, prompt, &a->naming);
    if (rc < 0)
        return tierce__cli_fail("why", "%s", tierce_strerror(rc));
    a->blocks = tierce_chain_blocks(chain);
    w->namespaces = inspect->namespaces;
    rc = list_blocks(w, chain);
    if (rc == 0)
        rc = tierce__disk_scan(inspect->path, inspect->namespaces, visit, w);
    if (rc == 0)
        conclude(a, w, inspect->namespaces, chain);
    tierce_chain_destroy(chain);
    clear(w);
    return rc == 0 ? TIERCE__CLI_OK : tierce__inspect_explain("why", inspect->path, rc);
}

int tierce__why_folder(struct tierce__line *json, const char *folder,
                       const struct tierce__prompt *prompt)
{
    struct tierce__inspect inspect;
    struct folder_wanted wanted = {0};
    int rc = tierce__inspect_scan(&inspect, folder);
    int status = rc == 0 ? TIERCE__CLI_OK : tierce__inspect_explain("why", folder, rc);
    if (status == TIERCE__CLI_OK)
        status = choose_namespace(&wanted.ns, &inspect, prompt);
    if (status == TIERCE__CLI_OK)
        status = choose_shard(&wanted.shard, &inspect.items[wanted.ns], prompt);
    if (status == TIERCE__CLI_OK) {
        struct tierce__answer answer = {
            .ns_text = tierce__namespaces_text(inspect.namespaces, wanted.ns),
            .ns_digest = tierce__namespaces_digest(inspect.namespaces, wanted.ns),
            .shard = wanted.shard,
            .tokens = prompt->count,
            .is_folder = true,
            .now_s = inspect.now_s};
        status = search(&answer, &wanted, &inspect, prompt);
        if (status == TIERCE__CLI_OK)
            tierce__why_json(json, &answer);
    }
    tierce__inspect_clear(&inspect);
    return status;
}

/* ---- one chunk ------------------------------------------------------------------------------- */

static bool note(void *arg, const struct tierce__disk_entry *entry)
{
    struct tierce__tier_event seen = {.key = &entry->key,
                                      .object_bytes = entry->object_bytes,
                                      .token_start = entry->token_start,
                                      .block_count = entry->block_count};
    tierce__sightings_add(arg, &seen);
    return true;
}

int tierce__why_folder_hash(struct tierce__line *json, const char *folder,
                            const struct tierce__hash_prefix *prefix)
{
    struct tierce__namespaces *namespaces = NULL;
    struct tierce__sightings *found = tierce__calloc(1, sizeof(*found));
    int rc = found != NULL ? tierce__namespaces_create(&namespaces) : -ENOMEM;
    if (rc == 0) {
        found->prefix = prefix;
        found->tier = "disk";
        rc = tierce__disk_scan(folder, namespaces, note, found);
    }
    if (rc == 0)
        tierce__sightings_json(json, found, namespaces);
    tierce__namespaces_destroy(namespaces);
    tierce__free(found);
    return rc == 0 ? TIERCE__CLI_OK : tierce__inspect_explain("why", folder, rc);
}
