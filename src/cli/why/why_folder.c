/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "cli/cli.h"
#include "cli/inspect/inspect.h"
#include "cli/why/why_folder.h"
#include "cli/why/why_fork.h"
#include "core/key/namespace.h"
#include "engine/why/why.h"
#include "store/index.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The blocks of a prompt by their hashes, and which of them the folder has. */
struct folder_wanted {
    struct tierce__index *index; /* of keys that hold a hash alone */
    uint32_t *blocks;            /* [block_count] by slot */
    uint8_t *held;               /* [block_count] a chunk of the namespace ends with this block */
    uint32_t *twins; /* [block_count] id + 1 of another namespace that has the chunk, or 0 */
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
    return tierce__namespace_other_group(text, other);
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

struct folder_run {
    const struct folder_wanted *w;
    uint32_t chunk_blocks;
    uint64_t to_block;
    size_t missing; /* in the run of to_block blocks */
};

static size_t count_held(void *arg, const struct tierce__run *run)
{
    struct folder_run *of = arg;
    size_t found = 0;
    while (found < run->count &&
           of->w->held[last_block(of->w, of->chunk_blocks, (uint32_t)(run->from + found))])
        found++;
    if (found < run->count && run->blocks == of->to_block)
        of->missing = run->from + found;
    return found;
}

/* Counts the held blocks. Returns the index of the first missing chunk, or `chunks`. */
static size_t find_missing(struct tierce__answer *a, const struct folder_wanted *w, size_t chunks)
{
    const struct tierce__layer_group *group = &a->naming.group;
    struct folder_run of = {w, group->chunk_blocks, a->blocks, chunks};
    if (tierce__group_is_sparse(group->kind)) {
        a->held_blocks = tierce__run_find(group, 0, a->blocks, count_held, &of).blocks;
        return of.missing;
    }
    struct tierce__run all = {.blocks = a->blocks, .count = chunks};
    size_t first = count_held(&of, &all);
    a->held_blocks = first < chunks ? (uint64_t)first * group->chunk_blocks : a->blocks;
    return first;
}

static void conclude(struct tierce__answer *a, const struct folder_wanted *w,
                     const struct tierce_chain *chain)
{
    uint64_t step = a->naming.group.chunk_blocks;
    size_t chunks = (size_t)((a->blocks + step - 1) / step);
    uint32_t first = (uint32_t)find_missing(a, w, chunks);
    if (first == chunks)
        return;
    uint32_t block = last_block(w, (uint32_t)step, first), twin = w->twins[block];
    bool is_tail = block + 1 - first * step < step;
    if (twin == 0 && is_tail)
        return; /* tails are stored only on request */
    a->miss.reason = TIERCE_MISS_NEVER_STORED;
    a->miss.block = first * step;
    memcpy(a->miss.hash, tierce_chain_hash(chain, block), TIERCE_HASH_BYTES);
    if (twin > 0)
        tierce__why_twin(&a->miss, w->namespaces, twin - 1);
    for (uint32_t i = first + 1; i < chunks; i++)
        a->later = a->later || w->held[last_block(w, (uint32_t)step, i)];
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

/* Returns the number of chosen namespaces, or a negated exit status. */
static int choose_groups(uint32_t ids[TIERCE__GROUPS_MAX], const struct tierce__inspect *inspect,
                         const struct tierce__prompt *prompt)
{
    char why[TIERCE__PROMPT_WHY_BYTES];
    uint64_t *counts = tierce__calloc(inspect->count, sizeof(*counts));
    if (counts == NULL)
        return -tierce__cli_fail("why", "no memory");
    for (size_t i = 0; i < inspect->count; i++)
        counts[i] = inspect->items[i].sums.chunks;
    int count =
        tierce__prompt_groups(ids, prompt->ns, inspect->namespaces, counts, inspect->count, why);
    tierce__free(counts);
    return count > 0 ? count : -tierce__cli_fail("why", "%.300s: %s", inspect->path, why);
}

/* ---- the answers ----------------------------------------------------------------------------- */

struct folder_group {
    struct folder_wanted wanted;
    struct tierce_chain *chain; /* NULL until the folder was searched for it */
};

struct folder_asking {
    const struct tierce__inspect *inspect;
    const struct tierce__prompt *prompt;
    int status; /* of the last failure */
    uint32_t ids[TIERCE__GROUPS_MAX];
    struct folder_group groups[TIERCE__GROUPS_MAX];
    struct tierce__answers answers;
};

/* Reads the folder a second time, now that the wanted keys are known. */
static int search(struct folder_group *group, const struct folder_asking *asking,
                  const struct tierce__naming *naming)
{
    const struct tierce__inspect *inspect = asking->inspect;
    int rc = tierce__prompt_chain(&group->chain, asking->prompt, naming);
    if (rc < 0)
        return tierce__cli_fail("why", "%s", tierce_strerror(rc));
    rc = list_blocks(&group->wanted, group->chain);
    if (rc == 0)
        rc = tierce__disk_scan(inspect->path, inspect->namespaces, visit, &group->wanted);
    return rc == 0 ? TIERCE__CLI_OK : tierce__inspect_explain("why", inspect->path, rc);
}

static struct folder_group *group_of(struct folder_asking *asking, uint32_t id)
{
    size_t at = 0;
    while (asking->ids[at] != id)
        at++;
    return &asking->groups[at];
}

/* Finds where the prompt diverges from the stored ones. If later chunks are stored, it does not. */
static int find_fork(struct tierce__answer *a, const struct tierce__inspect *inspect,
                     const struct folder_group *group)
{
    if (a->miss.reason != TIERCE_MISS_NEVER_STORED || a->later ||
        tierce__group_is_sparse(a->naming.group.kind))
        return TIERCE__CLI_OK;
    int rc = tierce__why_fork(a, inspect, group->wanted.ns, group->chain);
    return rc == 0 ? TIERCE__CLI_OK : tierce__inspect_explain("why", inspect->path, rc);
}

/* Errors: -EIO, with the exit status in `status`. */
static int ask(void *arg, struct tierce__answer *a, uint32_t id, uint64_t tokens)
{
    struct folder_asking *asking = arg;
    const struct tierce__inspect *inspect = asking->inspect;
    struct folder_group *group = group_of(asking, id);
    struct folder_wanted *w = &group->wanted;
    *a = (struct tierce__answer){.ns_text = tierce__namespaces_text(inspect->namespaces, id),
                                 .ns_digest = tierce__namespaces_digest(inspect->namespaces, id),
                                 .tokens = tokens,
                                 .is_folder = true,
                                 .now_s = inspect->now_s};
    w->ns = id;
    w->namespaces = inspect->namespaces;
    if (tierce__naming_of(&a->naming, a->ns_text) < 0)
        asking->status =
            tierce__cli_fail("why",
                             "%.300s: the text of that namespace is missing, so its tokens cannot "
                             "be converted to keys; an engine writes it again at its next store",
                             inspect->path);
    if (asking->status == TIERCE__CLI_OK && group->chain == NULL)
        asking->status = choose_shard(&w->shard, &inspect->items[id], asking->prompt);
    if (asking->status == TIERCE__CLI_OK && group->chain == NULL)
        asking->status = search(group, asking, &a->naming);
    if (asking->status != TIERCE__CLI_OK)
        return -EIO;
    a->shard = w->shard;
    a->blocks = tokens / a->naming.group.block_tokens;
    conclude(a, w, group->chain);
    asking->status = find_fork(a, inspect, group);
    return asking->status == TIERCE__CLI_OK ? 0 : -EIO;
}

static int ask_groups(struct tierce__line *json, struct folder_asking *asking)
{
    int count = choose_groups(asking->ids, asking->inspect, asking->prompt);
    if (count < 0)
        return -count;
    asking->answers.tokens = asking->prompt->count;
    if (tierce__why_groups(&asking->answers, asking->ids, (size_t)count, ask, asking) == 0)
        tierce__why_json(json, &asking->answers);
    for (int i = 0; i < count; i++) {
        tierce_chain_destroy(asking->groups[i].chain);
        clear(&asking->groups[i].wanted);
    }
    return asking->status;
}

int tierce__why_folder(struct tierce__line *json, const char *folder,
                       const struct tierce__prompt *prompt)
{
    struct tierce__inspect inspect;
    struct folder_asking *asking = tierce__calloc(1, sizeof(*asking));
    if (asking == NULL)
        return tierce__cli_fail("why", "no memory");
    asking->inspect = &inspect;
    asking->prompt = prompt;
    int rc = tierce__inspect_scan(&inspect, folder);
    int status = rc == 0 ? ask_groups(json, asking) : tierce__inspect_explain("why", folder, rc);
    tierce__inspect_clear(&inspect);
    tierce__free(asking);
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
