/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/kv_tokens.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/list.h"
#include "base/map.h"
#include "base/threads/lock.h"

/* The tokens of a chunk. Hash and length name them: with one algorithm, chunks of all namespaces
 * that have this hash and length have these tokens. */
struct entry {
    struct tierce__map_node node;
    struct tierce__list use; /* in `uses` */
    uint8_t hash[TIERCE_HASH_BYTES];
    uint32_t count;
    uint32_t tokens[];
};

struct tierce__kv_tokens {
    struct tierce__lock lock; /* KV_TOKENS: below */
    struct tierce__map entries;
    struct tierce__list uses; /* the entry that a request used last is the last one */
    uint64_t bytes, bytes_max;
};

int tierce__kv_tokens_create(struct tierce__kv_tokens **out, uint64_t bytes_max)
{
    struct tierce__kv_tokens *t = tierce__calloc(1, sizeof(*t));
    if (t == NULL)
        return -ENOMEM;
    tierce__lock_init(&t->lock, TIERCE__LOCK_KV_TOKENS);
    tierce__list_init(&t->uses);
    t->bytes_max = bytes_max;
    *out = t;
    return 0;
}

static uint64_t bytes_of(const struct entry *e)
{
    return sizeof(*e) + e->count * sizeof(e->tokens[0]);
}

static void forget(struct tierce__kv_tokens *t, struct entry *e)
{
    TIERCE_ASSERT(t->bytes >= bytes_of(e));
    t->bytes -= bytes_of(e);
    tierce__map_remove(&t->entries, &e->node);
    tierce__list_remove(&e->use);
    tierce__free(e);
}

static void forget_oldest(struct tierce__kv_tokens *t, uint64_t bytes_max)
{
    while (t->bytes > bytes_max && !tierce__list_empty(&t->uses))
        forget(t, TIERCE__CONTAINER_OF(t->uses.next, struct entry, use));
}

void tierce__kv_tokens_destroy(struct tierce__kv_tokens *tokens)
{
    if (tokens == NULL)
        return;
    forget_oldest(tokens, 0);
    tierce__map_fini(&tokens->entries);
    tierce__lock_fini(&tokens->lock);
    tierce__free(tokens);
}

static uint64_t spread_of(const uint8_t hash[TIERCE_HASH_BYTES])
{
    uint64_t a;
    memcpy(&a, hash, sizeof(a)); /* of both algorithms a half that differs */
    return tierce__mix(a);
}

static struct entry *find(struct tierce__kv_tokens *t, const uint8_t hash[TIERCE_HASH_BYTES],
                          uint32_t count)
{
    tierce__lock_assert_held(&t->lock);
    struct tierce__map_node *node = tierce__map_find(&t->entries, spread_of(hash));
    for (; node != NULL; node = tierce__map_find_next(node)) {
        struct entry *e = TIERCE__CONTAINER_OF(node, struct entry, node);
        if (e->count == count && memcmp(e->hash, hash, TIERCE_HASH_BYTES) == 0)
            return e;
    }
    return NULL;
}

static void use(struct tierce__kv_tokens *t, struct entry *e)
{
    tierce__list_remove(&e->use);
    tierce__list_push_back(&t->uses, &e->use);
}

static void add(struct tierce__kv_tokens *t, const uint8_t hash[TIERCE_HASH_BYTES],
                const int32_t *tokens, uint32_t count)
{
    size_t bytes = sizeof(struct entry) + count * sizeof(tokens[0]);
    struct entry *e = bytes <= t->bytes_max ? tierce__alloc(bytes) : NULL;
    if (e == NULL)
        return;
    memcpy(e->hash, hash, TIERCE_HASH_BYTES);
    memcpy(e->tokens, tokens, count * sizeof(e->tokens[0]));
    e->count = count;
    t->bytes += bytes_of(e);
    tierce__map_put(&t->entries, &e->node, spread_of(hash));
    tierce__list_init(&e->use);
    tierce__list_push_back(&t->uses, &e->use);
    forget_oldest(t, t->bytes_max);
}

static void note(struct tierce__kv_tokens *t, const uint8_t hash[TIERCE_HASH_BYTES],
                 const int32_t *tokens, uint32_t count)
{
    tierce__lock_take(&t->lock);
    struct entry *e = find(t, hash, count);
    if (e != NULL)
        use(t, e);
    else
        add(t, hash, tokens, count);
    tierce__lock_drop(&t->lock);
}

/* Notes the chunks in `blocks` blocks from `from_block` on, whose tokens are at `tokens`. */
static void note_chunks(struct tierce__kv_tokens *t, const struct tierce_view *view,
                        const struct tierce_chain *chain, size_t from_block, size_t blocks,
                        const int32_t *tokens)
{
    size_t step = view->chunk_blocks, block_tokens = view->full.geometry.block_tokens;
    TIERCE_DASSERT(from_block % step == 0);
    for (size_t done = 0, n; done < blocks; done += n) {
        n = blocks - done < step ? blocks - done : step;
        note(t, tierce_chain_hash(chain, from_block + done + n - 1), tokens + done * block_tokens,
             (uint32_t)(n * block_tokens));
    }
}

void tierce__kv_tokens_note(struct tierce__kv_tokens *tokens, const struct tierce_view *view,
                            const struct tierce_chain *chain, uint64_t to_block, bool tail)
{
    if (tokens == NULL || tierce__view_is_sparse(view) || to_block > tierce_chain_blocks(chain) ||
        !tierce__chain_fits(chain, view->algo, view->full.geometry.block_tokens))
        return;
    const int32_t *kept = tierce__chain_tokens(chain);
    size_t blocks = (size_t)(tail ? to_block : to_block - to_block % view->chunk_blocks);
    if (kept != NULL)
        note_chunks(tokens, view, chain, 0, blocks, kept);
}

int tierce__kv_tokens_claim(struct tierce__kv_tokens *tokens, const struct tierce_view *view,
                            const struct tierce_chain *chain, uint64_t from_block, uint64_t blocks,
                            const int32_t *claimed)
{
    if (from_block % view->chunk_blocks != 0)
        return TIERCE_E_ARGUMENT;
    int rc = tierce__chain_verify(chain, (size_t)from_block, claimed, (size_t)blocks);
    if (rc == 0 && tokens != NULL && !tierce__view_is_sparse(view))
        note_chunks(tokens, view, chain, (size_t)from_block, (size_t)blocks, claimed);
    return rc;
}

bool tierce__kv_tokens_get(struct tierce__kv_tokens *tokens, const uint8_t hash[TIERCE_HASH_BYTES],
                           uint32_t *out, uint32_t count)
{
    if (tokens == NULL || count == 0)
        return false;
    tierce__lock_take(&tokens->lock);
    struct entry *e = find(tokens, hash, count);
    if (e != NULL)
        memcpy(out, e->tokens, count * sizeof(e->tokens[0]));
    tierce__lock_drop(&tokens->lock);
    return e != NULL;
}
