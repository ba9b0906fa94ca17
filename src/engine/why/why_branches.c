/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/why/why_branches.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "engine/view.h"
#include "engine/why/why_answer.h"
#include "engine/waterfall.h"

#define SCAN_PLACES 1024u

/* ---- searching ------------------------------------------------------------------------------- */

struct branch {
    struct tierce__key key;
    uint8_t first_block[TIERCE_HASH_BYTES];
};

struct branch_search {
    struct tierce__key place; /* namespace and shard; its hash is that of the chunk before */
    bool is_first;            /* there is no chunk before */
    uint64_t token_start;
    uint32_t count;
    struct branch items[TIERCE__BRANCHES_MAX];
};

static bool is_here(const struct branch_search *search, const struct tierce__tier_event *seen)
{
    const struct tierce__key *key = seen->key;
    if (seen->token_start != search->token_start || key->ns != search->place.ns ||
        memcmp(&key->shard, &search->place.shard, sizeof(key->shard)) != 0 ||
        (seen->parent == NULL) != search->is_first)
        return false;
    return search->is_first || memcmp(seen->parent, search->place.hash, TIERCE_HASH_BYTES) == 0;
}

/* A visitor of a tier's scan. */
static void add_branch(void *arg, const struct tierce__tier_event *seen)
{
    struct branch_search *search = arg;
    if (search->count == TIERCE__BRANCHES_MAX || !is_here(search, seen))
        return;
    for (uint32_t i = 0; i < search->count; i++) {
        if (memcmp(search->items[i].first_block, seen->first_block, TIERCE_HASH_BYTES) == 0)
            return;
    }
    struct branch *branch = &search->items[search->count++];
    branch->key = *seen->key;
    memcpy(branch->first_block, seen->first_block, TIERCE_HASH_BYTES);
}

static void search_tiers(struct branch_search *search, struct tierce_engine *engine)
{
    for (size_t level = 0; level < engine->level_count; level++) {
        struct tierce__tier *tier = engine->levels[level].tier;
        uint32_t cursor = 0;
        if (engine->levels[level].health.shared)
            continue;
        while (tier->ops->scan(tier, &cursor, SCAN_PLACES, add_branch, search))
            ;
    }
}

/* Whether a first chunk follows another root than `root`, as far as memory holds its header. */
static bool has_other_root(struct tierce_engine *engine, const struct tierce__key *key,
                           const uint8_t *root)
{
    struct tierce__chunk_info info;
    struct tierce__buf *buf = tierce__storage_lease(engine, key);
    if (buf == NULL)
        return false;
    bool is_other = tierce__chunk_parse(&info, buf->data, buf->bytes) == 0 &&
                    memcmp(info.parent, root, TIERCE_HASH_BYTES) != 0;
    tierce__buf_release(buf);
    return is_other;
}

static void search_branches(struct branch_search *search, struct tierce__branches *out,
                            struct tierce_view *view, const struct tierce_chain *chain)
{
    uint64_t chunk = out->from_block / view->chunk_blocks;
    search->place = view->key;
    search->is_first = chunk == 0;
    search->token_start = out->from_block * view->full.geometry.block_tokens;
    if (chunk > 0)
        memcpy(search->place.hash, tierce_chain_hash(chain, (size_t)out->from_block - 1),
               TIERCE_HASH_BYTES);
    search_tiers(search, view->engine);
    out->count = search->count;
    for (uint32_t i = 0; search->is_first && i < search->count; i++)
        out->other_root +=
            has_other_root(view->engine, &search->items[i].key, tierce_chain_root_hash(chain));
}

void tierce__branches_find(struct tierce__answer *answer, struct tierce_view *view,
                           const struct tierce_chain *chain)
{
    struct tierce__branches *out = &answer->branches;
    TIERCE_DASSERT(answer->miss.reason == TIERCE_MISS_NEVER_STORED);
    bool inside = answer->miss.block % view->chunk_blocks != 0;
    /* If siblings are used, a stored chunk with the same first block would have been found. */
    uint64_t width = inside || view->engine->settings.siblings ? 1 : view->chunk_blocks;
    *out = (struct tierce__branches){.from_block = answer->miss.block,
                                     .to_block = answer->miss.block + width};
    if (inside) { /* a sibling has the blocks before */
        out->known = true;
        out->count = 1;
        return;
    }
    struct branch_search *search = tierce__calloc(1, sizeof(*search));
    if (search == NULL)
        return;
    search_branches(search, out, view, chain);
    out->known = true;
    tierce__free(search);
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* Other roots come first: then the tokens do not matter. */
static void put_words(char *out, size_t size, const struct tierce__branches *b,
                      uint32_t block_tokens)
{
    uint64_t from = b->from_block * block_tokens, to = b->to_block * block_tokens - 1;
    const char *more = b->count == TIERCE__BRANCHES_MAX ? "at least " : "";
    if (b->count == 0 && from == 0)
        snprintf(out, size, "departs    nowhere: no prompt of this namespace is stored\n");
    else if (b->count == 0)
        snprintf(out, size,
                 "departs    nowhere: no stored prompt continues after token %" PRIu64 "\n", from);
    else if (b->other_root == b->count)
        snprintf(out, size,
                 "departs    before the first token; stored prompts with another salt or LoRA "
                 "adapter: %s%" PRIu32 "\n",
                 more, b->count);
    else
        snprintf(out, size,
                 "departs    between tokens %" PRIu64 " and %" PRIu64
                 "; other stored continuations: %s%" PRIu32 "\n",
                 from, to, more, b->count - b->other_root);
}

void tierce__branches_text(struct tierce__line *out, const struct tierce__answer *answer)
{
    char text[256];
    if (!answer->branches.known)
        return;
    put_words(text, sizeof(text), &answer->branches, answer->naming.group.block_tokens);
    tierce__line_put(out, text);
}

void tierce__branches_json(struct tierce__json_write *out, const struct tierce__answer *answer)
{
    const struct tierce__branches *b = &answer->branches;
    uint64_t block_tokens = answer->naming.group.block_tokens;
    if (!b->known)
        return;
    tierce__json_write_open(out, "departs", '{');
    tierce__json_write_count(out, "from_token", b->from_block * block_tokens);
    tierce__json_write_count(out, "to_token", b->to_block * block_tokens);
    tierce__json_write_count(out, "branches", b->count);
    tierce__json_write_count(out, "other_root", b->other_root);
    tierce__json_write_close(out, '}');
}
