/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "core/key/chain_hash.h"
#include "core/key/key.h"
#include "core/key/sha256.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define CHAIN_MAGIC      0x5443484eu
#define BLOCK_TOKENS_MAX 65536u

/* Domain strings: no two uses of SHA-256 here can see the same message. */
static const char root_domain[] = "tierce-chain-root-1";
static const uint8_t fold_domain[TIERCE_HASH_BYTES] = "tierce-chain-fold-1";

enum chain_feed { FEED_NONE, FEED_TOKENS, FEED_HASHES };

struct tierce_chain {
    uint32_t magic;
    uint32_t block_tokens;
    enum tierce_chain_algo algo;
    tierce__chain_run_fn *run;
    bool rooted;                              /* a part of the root was not empty */
    bool folds_own;                           /* hashes of append are folded as well */
    enum chain_feed feed;                     /* which append was used since the last reset */
    uint8_t root_hash[TIERCE_HASH_BYTES];     /* the public parent of block 0 */
    uint8_t first_parent[TIERCE_HASH_BYTES];  /* the algorithm's parent of block 0 */
    uint8_t last_unfolded[TIERCE_HASH_BYTES]; /* of the newest block, where folds_own */
    uint8_t *hashes;                          /* block_count of hash_room are in use */
    size_t block_count;
    size_t hash_room;
    bool keeps_tokens;
    bool has_extras; /* since the last reset */
    int32_t *tokens; /* token_count of token_room are in use; where they are kept */
    size_t token_count, token_room;
    int32_t *waiting; /* block_tokens long */
    uint32_t waiting_count;
    uint8_t *scratch;
    struct tierce__chain_told *told;
};

/* ---- algorithms ----------------------------------------------------------------------------- */

static const struct {
    enum tierce_chain_algo algo;
    const char *name;
    tierce__chain_run_fn *run;
} algos[] = {
    {TIERCE_CHAIN_SHA256, "sha256", tierce__chain_run_sha256},
    {TIERCE_CHAIN_XXH3_128, "xxh3-128", tierce__chain_run_xxh3},
    {TIERCE_CHAIN_VLLM_SHA256_CBOR, "vllm-sha256-cbor", tierce__chain_run_vllm},
};

#define ALGO_COUNT (sizeof(algos) / sizeof(algos[0]))

const char *tierce_chain_algo_name(enum tierce_chain_algo algo)
{
    for (size_t i = 0; i < ALGO_COUNT; i++)
        if (algos[i].algo == algo)
            return algos[i].name;
    return NULL;
}

int tierce_chain_algo_parse(enum tierce_chain_algo *out, const char *name)
{
    for (size_t i = 0; name != NULL && i < ALGO_COUNT; i++) {
        if (strcmp(algos[i].name, name) == 0) {
            *out = algos[i].algo;
            return 0;
        }
    }
    return TIERCE_E_CONFIG;
}

static tierce__chain_run_fn *algo_run_fn(enum tierce_chain_algo algo)
{
    for (size_t i = 0; i < ALGO_COUNT; i++)
        if (algos[i].algo == algo)
            return algos[i].run;
    return NULL;
}

/* ---- root ----------------------------------------------------------------------------------- */

static void feed_part(struct tierce__sha256 *sha, const void *data, size_t size)
{
    uint8_t length[8];
    tierce__store_le64(length, size);
    tierce__sha256_update(sha, length, sizeof(length));
    tierce__sha256_update(sha, data, size);
}

static bool part_ok(const void *data, size_t size)
{
    return data != NULL || size == 0;
}

static bool root_ok(const struct tierce_chain_root *root)
{
    return root == NULL ||
           (root->size == sizeof(*root) && part_ok(root->lora, root->lora_bytes) &&
            part_ok(root->salt, root->salt_bytes) && part_ok(root->other, root->other_bytes));
}

static void set_root(struct tierce_chain *chain, const struct tierce_chain_root *root)
{
    TIERCE_DASSERT(chain->block_count == 0);
    static const struct tierce_chain_root no_root;
    if (root == NULL)
        root = &no_root;
    const char *name = tierce_chain_algo_name(chain->algo);
    bool vllm = chain->algo == TIERCE_CHAIN_VLLM_SHA256_CBOR;
    chain->rooted = root->lora_bytes > 0 || root->salt_bytes > 0 || root->other_bytes > 0;
    chain->folds_own = vllm && chain->rooted;

    struct tierce__sha256 sha;
    tierce__sha256_init(&sha);
    tierce__sha256_update(&sha, root_domain, sizeof(root_domain));
    feed_part(&sha, name, strlen(name));
    feed_part(&sha, root->lora, root->lora_bytes);
    feed_part(&sha, root->salt, root->salt_bytes);
    feed_part(&sha, root->other, root->other_bytes);
    tierce__sha256_final(&sha, chain->root_hash);

    if (vllm)
        tierce__chain_vllm_none_hash(chain->first_parent);
    else
        memcpy(chain->first_parent, chain->root_hash, TIERCE_HASH_BYTES);
    if (vllm && !chain->rooted)
        memcpy(chain->root_hash, chain->first_parent, TIERCE_HASH_BYTES);
}

/* The published hash of a block whose engine does not know the root. */
static void fold(uint8_t out[TIERCE_HASH_BYTES], const struct tierce_chain *chain,
                 const uint8_t *engine_hash)
{
    TIERCE_DASSERT(chain->rooted);
    uint8_t message[3 * TIERCE_HASH_BYTES];
    memcpy(message, fold_domain, TIERCE_HASH_BYTES);
    memcpy(message + TIERCE_HASH_BYTES, chain->root_hash, TIERCE_HASH_BYTES);
    memcpy(message + 2 * TIERCE_HASH_BYTES, engine_hash, TIERCE_HASH_BYTES);
    tierce__sha256(out, message, sizeof(message));
}

/* ---- object --------------------------------------------------------------------------------- */

int tierce_chain_create(struct tierce_chain **out, const struct tierce_chain_opts *opts)
{
    if (out == NULL || opts == NULL || opts->size != sizeof(*opts) ||
        algo_run_fn(opts->algo) == NULL || opts->block_tokens < 1 ||
        opts->block_tokens > BLOCK_TOKENS_MAX || !root_ok(opts->root))
        return TIERCE_E_ARGUMENT;

    struct tierce_chain *chain = tierce__calloc(1, sizeof(*chain));
    if (chain == NULL)
        return -ENOMEM;
    chain->magic = CHAIN_MAGIC;
    chain->algo = opts->algo;
    chain->run = algo_run_fn(opts->algo);
    chain->block_tokens = opts->block_tokens;
    chain->waiting = tierce__alloc(chain->block_tokens * sizeof(int32_t));
    chain->scratch = tierce__alloc(tierce__chain_scratch_bytes(chain->block_tokens));
    chain->told = tierce__calloc(1, sizeof(*chain->told));
    if (chain->waiting == NULL || chain->scratch == NULL || chain->told == NULL) {
        tierce_chain_destroy(chain);
        return -ENOMEM;
    }
    static _Atomic uint64_t numbers;
    chain->told->number = atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed) + 1;
    set_root(chain, opts->root);
    *out = chain;
    return 0;
}

int tierce__chain_create_hashed(struct tierce_chain **out, enum tierce_chain_algo algo,
                                uint32_t block_tokens, const uint8_t root_hash[TIERCE_HASH_BYTES])
{
    if (algo_run_fn(algo) == NULL || block_tokens < 1 || block_tokens > BLOCK_TOKENS_MAX)
        return TIERCE_E_ARGUMENT;
    struct tierce_chain *chain = tierce__calloc(1, sizeof(*chain));
    if (chain == NULL)
        return -ENOMEM;
    chain->magic = CHAIN_MAGIC;
    chain->algo = algo;
    chain->block_tokens = block_tokens;
    chain->feed = FEED_HASHES; /* never tokens: they would need memory to wait in */
    memcpy(chain->root_hash, root_hash, TIERCE_HASH_BYTES);
    *out = chain;
    return 0;
}

void tierce__chain_cut(struct tierce_chain *chain, size_t blocks)
{
    TIERCE_CHECK_MAGIC(chain, CHAIN_MAGIC);
    TIERCE_DASSERT(!chain->folds_own && chain->token_count == 0);
    TIERCE_ASSERT(blocks <= chain->block_count && chain->feed == FEED_HASHES);
    chain->block_count = blocks;
}

void tierce_chain_destroy(struct tierce_chain *chain)
{
    if (chain == NULL)
        return;
    TIERCE_CHECK_MAGIC(chain, CHAIN_MAGIC);
    tierce__free(chain->hashes);
    tierce__free(chain->tokens);
    tierce__free(chain->waiting);
    tierce__free(chain->scratch);
    tierce__free(chain->told);
    chain->magic = 0;
    tierce__free(chain);
}

void tierce_chain_reset(struct tierce_chain *chain)
{
    TIERCE_CHECK_MAGIC(chain, CHAIN_MAGIC);
    chain->block_count = 0;
    chain->waiting_count = 0;
    chain->token_count = 0;
    chain->has_extras = false;
    chain->feed = FEED_NONE;
    atomic_store_explicit(&chain->told->blocks, 0, memory_order_relaxed);
    atomic_store_explicit(&chain->told->tokens_blocks, 0, memory_order_relaxed);
}

struct tierce__chain_told *tierce__chain_told(const struct tierce_chain *chain)
{
    TIERCE_CHECK_MAGIC(chain, CHAIN_MAGIC);
    return chain->told;
}

bool tierce__chain_fits(const struct tierce_chain *chain, enum tierce_chain_algo algo,
                        uint32_t block_tokens)
{
    TIERCE_CHECK_MAGIC(chain, CHAIN_MAGIC);
    return chain->algo == algo && chain->block_tokens == block_tokens;
}

size_t tierce_chain_blocks(const struct tierce_chain *chain)
{
    TIERCE_CHECK_MAGIC(chain, CHAIN_MAGIC);
    return chain->block_count;
}

const uint8_t *tierce_chain_hash(const struct tierce_chain *chain, size_t index)
{
    TIERCE_CHECK_MAGIC(chain, CHAIN_MAGIC);
    TIERCE_DASSERT(chain->block_count <= chain->hash_room);
    TIERCE_ASSERT(index < chain->block_count);
    return chain->hashes + index * TIERCE_HASH_BYTES;
}

const uint8_t *tierce_chain_root_hash(const struct tierce_chain *chain)
{
    TIERCE_CHECK_MAGIC(chain, CHAIN_MAGIC);
    return chain->root_hash;
}

/* ---- tokens --------------------------------------------------------------------------------- */

void tierce__chain_keep_tokens(struct tierce_chain *chain)
{
    TIERCE_CHECK_MAGIC(chain, CHAIN_MAGIC);
    TIERCE_DASSERT(chain->block_count == 0 && chain->waiting_count == 0);
    TIERCE_ASSERT(chain->feed == FEED_NONE);
    chain->keeps_tokens = true;
}

const int32_t *tierce__chain_tokens(const struct tierce_chain *chain)
{
    TIERCE_CHECK_MAGIC(chain, CHAIN_MAGIC);
    bool is_plain = !chain->rooted && !chain->has_extras && chain->feed == FEED_TOKENS;
    return is_plain && chain->keeps_tokens ? chain->tokens : NULL;
}

static int reserve_tokens(struct tierce_chain *chain, size_t more)
{
    TIERCE_DASSERT(chain->token_count <= chain->token_room);
    if (!chain->keeps_tokens || more <= chain->token_room - chain->token_count)
        return 0;
    size_t room = 2 * chain->token_room + more;
    int32_t *grown = tierce__realloc(chain->tokens, room * sizeof(*grown));
    if (grown == NULL)
        return -ENOMEM;
    TIERCE_DASSERT(room - chain->token_count >= more);
    chain->tokens = grown;
    chain->token_room = room;
    return 0;
}

static void keep_tokens(struct tierce_chain *chain, const int32_t *tokens, size_t count,
                        const struct tierce_chain_extras *extras)
{
    chain->has_extras = chain->has_extras || (extras != NULL && extras->count > 0);
    if (!chain->keeps_tokens || count == 0)
        return;
    TIERCE_DASSERT(chain->token_count + count <= chain->token_room);
    memcpy(chain->tokens + chain->token_count, tokens, count * sizeof(*tokens));
    chain->token_count += count;
}

/* ---- appending ------------------------------------------------------------------------------ */

/* Makes room for `more` hashes. Growth doubles, so that appending one block at a time stays
 * linear. */
static int reserve_hashes(struct tierce_chain *chain, size_t more)
{
    size_t need;
    if (__builtin_add_overflow(chain->block_count, more, &need) ||
        need > SIZE_MAX / 2 / TIERCE_HASH_BYTES)
        return -ENOMEM;
    if (need <= chain->hash_room)
        return 0;
    size_t room = chain->hash_room < 8 ? 8 : 2 * chain->hash_room;
    if (room < need)
        room = need;
    uint8_t *grown = tierce__realloc(chain->hashes, room * TIERCE_HASH_BYTES);
    if (grown == NULL)
        return -ENOMEM;
    chain->hashes = grown;
    chain->hash_room = room;
    TIERCE_DASSERT(need <= chain->hash_room);
    return 0;
}

static bool extras_ok(const struct tierce_chain_extras *extras)
{
    if (extras == NULL)
        return true;
    if (extras->items == NULL && extras->count > 0)
        return false;
    for (size_t i = 0; i < extras->count; i++) {
        const struct tierce_chain_extra *extra = &extras->items[i];
        if (extra->bytes == NULL || extra->bytes_len < 1 || extra->bytes_len > UINT32_MAX)
            return false;
        if (i > 0 && extra->block <= extras->items[i - 1].block)
            return false;
    }
    return true;
}

static void fold_own(struct tierce_chain *chain, uint8_t *hashes, size_t count)
{
    TIERCE_DASSERT(count > 0);
    memcpy(chain->last_unfolded, hashes + (count - 1) * TIERCE_HASH_BYTES, TIERCE_HASH_BYTES);
    for (size_t i = 0; i < count; i++, hashes += TIERCE_HASH_BYTES)
        fold(hashes, chain, hashes);
}

/* Hashes `count` blocks that lie at `tokens`, the first with `extra` (or NULL). */
static void append_run(struct tierce_chain *chain, const int32_t *tokens, size_t count,
                       const struct tierce_chain_extra *extra)
{
    TIERCE_DASSERT(extra == NULL || count == 1);
    TIERCE_DASSERT(count > 0 && chain->block_count + count <= chain->hash_room);
    uint8_t *hashes = chain->hashes + chain->block_count * TIERCE_HASH_BYTES;
    const uint8_t *parent = chain->first_parent;
    if (chain->block_count > 0)
        parent = chain->folds_own ? chain->last_unfolded : hashes - TIERCE_HASH_BYTES;
    chain->run(&(struct tierce__block_run){
        .tokens = tokens,
        .block_tokens = chain->block_tokens,
        .block_count = count,
        .parent = parent,
        .extra = extra != NULL ? extra->bytes : NULL,
        .extra_bytes = extra != NULL ? extra->bytes_len : 0,
        .scratch = chain->scratch,
        .hashes = hashes,
    });
    if (chain->folds_own)
        fold_own(chain, hashes, count);
    chain->block_count += count;
}

/* Hashes `count` whole blocks: runs without extras at once, a block with one alone. */
static void append_blocks(struct tierce_chain *chain, const int32_t *tokens, size_t count,
                          const struct tierce_chain_extras *extras)
{
    TIERCE_DASSERT(count == 0 || chain->feed == FEED_TOKENS);
    size_t next = 0, extra_count = extras != NULL ? extras->count : 0;
    while (count > 0) {
        while (next < extra_count && extras->items[next].block < chain->block_count)
            next++;
        const struct tierce_chain_extra *extra = next < extra_count ? &extras->items[next] : NULL;
        size_t run = count;
        if (extra != NULL && extra->block == chain->block_count)
            run = 1;
        else if (extra != NULL && extra->block - chain->block_count < count)
            run = (size_t)(extra->block - chain->block_count);
        bool own = extra != NULL && extra->block == chain->block_count;
        TIERCE_DASSERT(run > 0 && run <= count);
        append_run(chain, tokens, run, own ? extra : NULL);
        tokens += run * chain->block_tokens;
        count -= run;
    }
}

int64_t tierce_chain_append(struct tierce_chain *chain, const int32_t *tokens, size_t count,
                            const struct tierce_chain_extras *extras)
{
    TIERCE_CHECK_MAGIC(chain, CHAIN_MAGIC);
    if (chain->feed == FEED_HASHES || (tokens == NULL && count > 0) || !extras_ok(extras))
        return TIERCE_E_ARGUMENT;
    TIERCE_DASSERT(chain->waiting_count < chain->block_tokens);
    size_t missing = chain->block_tokens - chain->waiting_count;
    size_t new_blocks = count < missing ? 0 : 1 + (count - missing) / chain->block_tokens;
    int rc = reserve_hashes(chain, new_blocks);
    if (rc == 0)
        rc = reserve_tokens(chain, count);
    if (rc < 0)
        return rc;

    /* From here on nothing can fail. */
    if (count > 0)
        chain->feed = FEED_TOKENS;
    keep_tokens(chain, tokens, count, extras);
    if (chain->waiting_count > 0 && new_blocks > 0) {
        TIERCE_ASSERT(tokens != NULL); /* a block became full */
        memcpy(chain->waiting + chain->waiting_count, tokens, missing * sizeof(int32_t));
        append_blocks(chain, chain->waiting, 1, extras);
        chain->waiting_count = 0;
        tokens += missing;
        count -= missing;
        new_blocks--;
    }
    append_blocks(chain, tokens, new_blocks, extras);
    size_t rest = count - new_blocks * chain->block_tokens;
    if (rest > 0)
        memcpy(chain->waiting + chain->waiting_count, tokens + new_blocks * chain->block_tokens,
               rest * sizeof(int32_t));
    chain->waiting_count += (uint32_t)rest;
    TIERCE_DASSERT(chain->waiting_count < chain->block_tokens &&
                   chain->block_count <= chain->hash_room);
    TIERCE_DASSERT(!chain->keeps_tokens ||
                   chain->token_count ==
                       chain->block_count * chain->block_tokens + chain->waiting_count);
    return (int64_t)chain->block_count;
}

int64_t tierce_chain_append_hashes(struct tierce_chain *chain, const uint8_t *hashes, size_t count)
{
    TIERCE_CHECK_MAGIC(chain, CHAIN_MAGIC);
    if (chain->feed == FEED_TOKENS || (hashes == NULL && count > 0))
        return TIERCE_E_ARGUMENT;
    int rc = reserve_hashes(chain, count);
    if (rc < 0)
        return rc;
    if (count == 0)
        return (int64_t)chain->block_count;
    TIERCE_DASSERT(chain->waiting_count == 0);
    chain->feed = FEED_HASHES;
    uint8_t *out = chain->hashes + chain->block_count * TIERCE_HASH_BYTES;
    if (chain->rooted) {
        for (size_t i = 0; i < count; i++)
            fold(out + i * TIERCE_HASH_BYTES, chain, hashes + i * TIERCE_HASH_BYTES);
    } else {
        memcpy(out, hashes, count * TIERCE_HASH_BYTES);
    }
    chain->block_count += count;
    TIERCE_DASSERT(chain->block_count <= chain->hash_room);
    return (int64_t)chain->block_count;
}

/* ---- tokens from elsewhere ------------------------------------------------------------------- */

int tierce__chain_verify(const struct tierce_chain *chain, size_t from_block, const int32_t *tokens,
                         size_t blocks)
{
    enum { STEP = 64 };
    TIERCE_CHECK_MAGIC(chain, CHAIN_MAGIC);
    if (from_block > chain->block_count || blocks > chain->block_count - from_block)
        return TIERCE_E_ARGUMENT;
    struct tierce_chain *plain;
    int rc = tierce_chain_create(
        &plain, &(struct tierce_chain_opts){.size = sizeof(struct tierce_chain_opts),
                                            .algo = chain->algo,
                                            .block_tokens = chain->block_tokens});
    if (rc < 0)
        return rc;
    uint8_t hashes[STEP * TIERCE_HASH_BYTES];
    if (memcmp(plain->root_hash, chain->root_hash, TIERCE_HASH_BYTES) != 0)
        rc = TIERCE_E_ARGUMENT;
    for (size_t done = 0, n; rc == 0 && done < blocks; done += n) {
        const uint8_t *expected = chain->hashes + (from_block + done) * TIERCE_HASH_BYTES;
        n = blocks - done < STEP ? blocks - done : STEP;
        plain->run(&(struct tierce__block_run){
            .tokens = tokens + done * chain->block_tokens,
            .block_tokens = chain->block_tokens,
            .block_count = n,
            .parent = from_block + done > 0 ? expected - TIERCE_HASH_BYTES : plain->first_parent,
            .scratch = plain->scratch,
            .hashes = hashes,
        });
        if (memcmp(hashes, expected, n * TIERCE_HASH_BYTES) != 0)
            rc = TIERCE_E_ARGUMENT;
    }
    tierce_chain_destroy(plain);
    return rc;
}
