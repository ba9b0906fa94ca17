/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of chunks for KV events: which are noted, how many, and which claims are rejected. */
#include "engine_fixture.h"
#include "silent_log.h"

#include "base/text/line.h"
#include "engine/observe/kv_batch.h"

enum {
    BLOCKS = 32,
    CHUNK_TOKENS = FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS,
    ALL_TOKENS = BLOCKS * FX_BLOCK_TOKENS
};

static struct fixture fx;
static struct tierce__kv_tokens *tokens;
static struct tierce_chain *chain; /* with tokens */
static int32_t all[ALL_TOKENS];
static uint32_t found[CHUNK_TOKENS];

static void open_store(uint64_t bytes_max)
{
    fx_open(&fx, false, NULL);
    ck_assert_int_eq(tierce__kv_tokens_create(&tokens, bytes_max), 0);
    for (size_t i = 0; i < ALL_TOKENS; i++)
        all[i] = (int32_t)(i * 40503u);
    ck_assert_int_eq(tierce_view_chain(&chain, fx.view, NULL), 0);
    tierce__chain_keep_tokens(chain);
    ck_assert_int_ge(tierce_chain_append(chain, all, ALL_TOKENS, NULL), 0);
}

static void end_all(void)
{
    tierce_chain_destroy(chain);
    tierce__kv_tokens_destroy(tokens);
    fx_close(&fx);
}

/* The tokens of the chunk that ends with block `end` - 1, if they are known. */
static bool is_known(const struct tierce_chain *of, size_t end, uint32_t count)
{
    bool is = tierce__kv_tokens_get(tokens, tierce_chain_hash(of, end - 1), found, count);
    if (is)
        ck_assert_mem_eq(found, all + end * FX_BLOCK_TOKENS - count, count * sizeof(*found));
    return is;
}

static size_t known_chunks(const struct tierce_chain *of)
{
    size_t count = 0;
    for (size_t end = FX_CHUNK_BLOCKS; end <= BLOCKS; end += FX_CHUNK_BLOCKS)
        count += is_known(of, end, CHUNK_TOKENS);
    return count;
}

/* The tokens that were used least recently are forgotten. */
START_TEST(they_are_bounded)
{
    open_store(4 * 200);
    tierce__kv_tokens_note(tokens, fx.view, chain, BLOCKS, false);
    size_t kept = known_chunks(chain);
    ck_assert_uint_gt(kept, 1);
    ck_assert_uint_lt(kept, BLOCKS / FX_CHUNK_BLOCKS);
    ck_assert(is_known(chain, BLOCKS, CHUNK_TOKENS)); /* the newest */
    ck_assert(!is_known(chain, FX_CHUNK_BLOCKS, CHUNK_TOKENS));
    tierce__kv_tokens_note(tokens, fx.view, chain, FX_CHUNK_BLOCKS, false);
    ck_assert(is_known(chain, FX_CHUNK_BLOCKS, CHUNK_TOKENS)); /* it was noted anew */
    ck_assert_uint_eq(known_chunks(chain), kept);
    end_all();
}
END_TEST

/* Whether the first `chunks` chunks are known together within a bound. */
static bool fit(uint64_t bytes_max, size_t chunks)
{
    tierce__kv_tokens_destroy(tokens);
    ck_assert_int_eq(tierce__kv_tokens_create(&tokens, bytes_max), 0);
    tierce__kv_tokens_note(tokens, fx.view, chain, chunks * FX_CHUNK_BLOCKS, false);
    return known_chunks(chain) == chunks;
}

START_TEST(the_bound_is_used_in_full)
{
    uint64_t bytes = 1;
    open_store(1);
    while (!fit(bytes, 1))
        bytes++;
    ck_assert(fit(3 * bytes, 3));
    ck_assert(!fit(3 * bytes - 1, 3));
    end_all();
}
END_TEST

/* Snapshots and contents that are sent again read all tokens: the order of requests stays. A chunk
 * that needs more than the bound leaves the others in place. */
START_TEST(readers_change_no_order)
{
    enum { LAST = BLOCKS, BEFORE = BLOCKS - FX_CHUNK_BLOCKS };
    open_store(2 * 200);
    tierce__kv_tokens_note(tokens, fx.view, chain, BLOCKS, false);
    size_t kept = known_chunks(chain);
    ck_assert_uint_eq(kept, 2);
    ck_assert(is_known(chain, BEFORE, CHUNK_TOKENS)); /* the older one, which is read last */
    tierce__kv_tokens_note(tokens, fx.view, chain, FX_CHUNK_BLOCKS, false);
    ck_assert(!is_known(chain, BEFORE, CHUNK_TOKENS));
    ck_assert(is_known(chain, LAST, CHUNK_TOKENS));
    tierce__kv_tokens_destroy(tokens);
    ck_assert_int_eq(tierce__kv_tokens_create(&tokens, 100), 0);
    tierce__kv_tokens_note(tokens, fx.view, chain, 1, true); /* a short chunk fits */
    ck_assert(is_known(chain, 1, FX_BLOCK_TOKENS));
    tierce__kv_tokens_note(tokens, fx.view, chain, FX_CHUNK_BLOCKS, false);
    ck_assert(is_known(chain, 1, FX_BLOCK_TOKENS));
    ck_assert(!is_known(chain, FX_CHUNK_BLOCKS, CHUNK_TOKENS));
    end_all();
}
END_TEST

/* A slow subscriber has many batches in memory: each has a bound in bytes, however many tokens
 * there are, and all events are in them. */
START_TEST(batches_are_bounded)
{
    enum { EVENTS = 2048 };
    static struct tierce_event events[EVENTS];
    static const uint8_t digest[TIERCE_HASH_BYTES];
    struct tierce__kv_form form = {.namespaces = ""};
    struct tierce__line out = {0};
    size_t hashes = 0, batches = 0;
    open_store(1 << 20);
    tierce__kv_tokens_note(tokens, fx.view, chain, BLOCKS, false);
    form.tokens = tokens;
    for (size_t i = 0; i < EVENTS; i++) {
        size_t end = (i * FX_CHUNK_BLOCKS) % BLOCKS + FX_CHUNK_BLOCKS;
        events[i] = (struct tierce_event){.sequence = i + 1,
                                          .kind = TIERCE_EVENT_ADMIT,
                                          .tier = "memory",
                                          .ns_text = "tierce-namespace=1\nblock_tokens=4\n",
                                          .ns_digest = digest,
                                          .shard = {0, 1, 0, 1},
                                          .has_parent = end > FX_CHUNK_BLOCKS,
                                          .block_count = FX_CHUNK_BLOCKS};
        memcpy(events[i].hash, tierce_chain_hash(chain, end - 1), TIERCE_HASH_BYTES);
        if (events[i].has_parent)
            memcpy(events[i].parent, events[i - 1].hash, TIERCE_HASH_BYTES);
    }
    for (size_t i = 0, n; i < EVENTS; i += n, batches++) {
        n = EVENTS - i;
        out.bytes = 0;
        hashes += tierce__kv_batch_write(&out, &form, events + i, &n, 0);
        ck_assert_uint_gt(n, 0);
        ck_assert_uint_le(out.bytes, TIERCE__KV_BATCH_BYTES);
        if (i + n < EVENTS) /* they are not much shorter: 16 tokens of 5 bytes */
            ck_assert_uint_gt(out.bytes, TIERCE__KV_BATCH_BYTES / 2);
    }
    ck_assert_uint_eq(hashes, EVENTS);
    ck_assert_uint_gt(batches, EVENTS * CHUNK_TOKENS * 5 / TIERCE__KV_BATCH_BYTES);
    tierce__line_clear(&out);
    tierce__kv_form_fini(&form);
    end_all();
}
END_TEST

/* A chunk that is shorter than others is one of its own; a chain with a root or given hashes has
 * none. */
START_TEST(only_of_tokens_alone)
{
    static const uint8_t salt[] = "salt";
    const struct tierce_chain_root root = {
        .size = sizeof(root), .salt = salt, .salt_bytes = sizeof(salt)};
    struct tierce_chain *salted, *hashed;
    open_store(1 << 20);
    tierce__kv_tokens_note(tokens, fx.view, chain, BLOCKS - 1, false);
    ck_assert_uint_eq(known_chunks(chain), BLOCKS / FX_CHUNK_BLOCKS - 1);
    uint32_t rest = CHUNK_TOKENS - FX_BLOCK_TOKENS;
    ck_assert(!is_known(chain, BLOCKS - 1, rest));
    tierce__kv_tokens_note(tokens, fx.view, chain, BLOCKS - 1, true);
    ck_assert(is_known(chain, BLOCKS - 1, rest) && !is_known(chain, BLOCKS - 1, CHUNK_TOKENS));
    tierce__kv_tokens_note(tokens, fx.view, chain, BLOCKS + 1, false); /* more than it has */
    ck_assert_int_eq(tierce_view_chain(&salted, fx.view, &root), 0);
    tierce__chain_keep_tokens(salted);
    ck_assert_int_ge(tierce_chain_append(salted, all, ALL_TOKENS, NULL), 0);
    tierce__kv_tokens_note(tokens, fx.view, salted, BLOCKS, true);
    ck_assert_uint_eq(known_chunks(salted), 0);
    ck_assert_int_eq(tierce_view_chain(&hashed, fx.view, NULL), 0);
    ck_assert_int_ge(tierce_chain_append_hashes(hashed, tierce_chain_hash(chain, 0), BLOCKS), 0);
    tierce__kv_tokens_note(tokens, fx.view, hashed, BLOCKS, true);
    ck_assert(!is_known(hashed, BLOCKS, CHUNK_TOKENS));
    tierce_chain_destroy(salted);
    tierce_chain_destroy(hashed);
    end_all();
}
END_TEST

static int claim(const struct tierce_chain *of, size_t from, size_t blocks, const int32_t *claimed)
{
    return tierce__kv_tokens_claim(tokens, fx.view, of, from, blocks, claimed);
}

/* Tokens of a client are compared with the hashes of its chunks, so readers can rely on them. */
START_TEST(claims_are_checked)
{
    static const uint8_t salt[] = "salt";
    const struct tierce_chain_root root = {
        .size = sizeof(root), .salt = salt, .salt_bytes = sizeof(salt)};
    struct tierce_chain *hashed, *salted;
    size_t last = BLOCKS - FX_CHUNK_BLOCKS;
    open_store(1 << 20);
    ck_assert_int_eq(tierce__chain_create_hashed(&hashed, fx.view->algo, FX_BLOCK_TOKENS,
                                                 tierce_chain_root_hash(chain)),
                     0);
    ck_assert_int_ge(tierce_chain_append_hashes(hashed, tierce_chain_hash(chain, 0), BLOCKS), 0);
    for (size_t wrong = 0; wrong < ALL_TOKENS; wrong += FX_BLOCK_TOKENS + 1) {
        all[wrong] ^= 1;
        ck_assert_int_eq(claim(hashed, 0, BLOCKS, all), TIERCE_E_ARGUMENT);
        all[wrong] ^= 1;
    }
    ck_assert_int_eq(claim(hashed, last, FX_CHUNK_BLOCKS, all), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(claim(hashed, 1, 1, all + FX_BLOCK_TOKENS), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(claim(hashed, 0, BLOCKS + 1, all), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(claim(hashed, UINT64_MAX - FX_CHUNK_BLOCKS + 1, FX_CHUNK_BLOCKS, all),
                     TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce_view_chain(&salted, fx.view, &root), 0);
    ck_assert_int_ge(tierce_chain_append(salted, all, ALL_TOKENS, NULL), 0);
    ck_assert_int_eq(claim(salted, 0, BLOCKS, all), TIERCE_E_ARGUMENT);
    ck_assert_uint_eq(known_chunks(chain) + known_chunks(salted), 0);
    ck_assert_int_eq(claim(hashed, last, FX_CHUNK_BLOCKS, all + last * FX_BLOCK_TOKENS), 0);
    ck_assert_uint_eq(known_chunks(chain), 1);
    ck_assert_int_eq(claim(hashed, 0, BLOCKS, all), 0);
    ck_assert_uint_eq(known_chunks(chain), BLOCKS / FX_CHUNK_BLOCKS);
    tierce_chain_destroy(salted);
    tierce_chain_destroy(hashed);
    end_all();
}
END_TEST

CHECK_MAIN("kv tokens", .seconds = 60, .setup = silence_log,
           .tests = {they_are_bounded, the_bound_is_used_in_full, readers_change_no_order,
                     batches_are_bounded, only_of_tokens_alone, claims_are_checked})
