/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "silent_log.h"
#include "test_random.h"
#include "tier_fault.h"

#include <errno.h>

/*
 * Random prompts that diverge from each other at random blocks, stored up to random ends with and
 * without their tails, looked up from and to anywhere, loaded, evicted, under a disk that now and
 * then fails, is late or lies. The model knows the blocks of every chunk that was ever stored and
 * asks the tiers which are there: a lookup must find as many leading blocks as they have between
 * them, never more, and a load must give those, with the right bytes, and write nothing else.
 */

enum {
    PROMPTS = 24,
    STEPS = 250,
    BLOCKS_MAX = 40,
    CHUNKS_MAX = PROMPTS * BLOCKS_MAX * 2,
    SESSIONS = 3,
};

static struct fixture fx;
static struct tierce__tier *memory, *disk;
static struct test_random random_;
static uint32_t step; /* blocks of a chunk */

struct prompt {
    struct tierce_chain *chain;
    size_t blocks;
    int32_t tokens[BLOCKS_MAX * FX_BLOCK_TOKENS];
};

static struct prompt prompts[PROMPTS];
static uint32_t prompt_count;

/* A chunk that was stored: blocks [first, first + count) of a prompt. */
struct piece {
    const struct prompt *prompt;
    size_t first, count;
    bool held[2]; /* by level, when it was last asked */
};

static struct piece pieces[CHUNKS_MAX];
static size_t piece_count;

static uint32_t below(uint32_t bound)
{
    return test_random_below(&random_, bound);
}

static void open_all(bool with_disk)
{
    static const char *const sets[] = {"breaker.errors",
                                       "1000000",
                                       "breaker.window",
                                       "0",
                                       "timeout.lookup",
                                       "2s",
                                       "cost.check",
                                       "false",
                                       "memory.size",
                                       "1MiB",
                                       NULL};
    silence_log();
    fx_open(&fx, with_disk, sets);
    tierce_view_close(fx.view);
    struct tierce_namespace ns = fx_namespace();
    ns.chunk_blocks = step = 1u << below(4);
    ck_assert_int_eq(tierce_view_open(&fx.view, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    memory = fx.engine->levels[0].tier;
    disk = NULL;
    if (!with_disk)
        return;
    disk = fx_wrap(&fx, 1);
}

/* A chain that equals another up to some block, and diverges from there on. */
static void make_prompt(void)
{
    struct prompt *p = &prompts[prompt_count];
    const struct prompt *other = prompt_count > 0 ? &prompts[below(prompt_count)] : p;
    size_t shared = below((uint32_t)other->blocks + 1);
    p->blocks = 1 + below(BLOCKS_MAX);
    for (size_t i = 0; i < p->blocks * FX_BLOCK_TOKENS; i++)
        p->tokens[i] = i < shared * FX_BLOCK_TOKENS ? other->tokens[i] : (int32_t)below(1u << 30);
    ck_assert_int_eq(tierce_view_chain(&p->chain, fx.view, NULL), 0);
    ck_assert_int_ge(tierce_chain_append(p->chain, p->tokens, p->blocks * FX_BLOCK_TOKENS, NULL),
                     0);
    prompt_count++;
}

static const uint8_t *name_of(const struct piece *piece)
{
    return tierce_chain_hash(piece->prompt->chain, piece->first + piece->count - 1);
}

static struct piece *find_piece(const uint8_t *hash)
{
    for (size_t i = 0; i < piece_count; i++) {
        if (memcmp(name_of(&pieces[i]), hash, TIERCE_HASH_BYTES) == 0)
            return &pieces[i];
    }
    return NULL;
}

static void note_piece(const struct prompt *prompt, size_t first, size_t count)
{
    struct piece piece = {.prompt = prompt, .first = first, .count = count};
    if (find_piece(name_of(&piece)) == NULL)
        pieces[piece_count++] = piece;
}

static void store(void)
{
    const struct prompt *p = &prompts[below(prompt_count)];
    size_t end = 1 + below((uint32_t)p->blocks);
    bool tail = below(2) == 0;
    ck_assert_int_ge(fx_store(&fx, p->chain, end, fx_ids, tail), 0);
    for (size_t first = 0; first < end; first += step) {
        size_t count = end - first < step ? end - first : step;
        if (count == step || tail)
            note_piece(p, first, count);
    }
}

static void hold(void *arg, const struct tierce__tier_event *event)
{
    struct piece *piece = find_piece(event->key->hash);
    ck_assert_ptr_nonnull(piece);
    ck_assert_uint_eq(piece->count, event->block_count);
    piece->held[*(const int *)arg] = true;
}

static void ask_tiers(void)
{
    for (size_t i = 0; i < piece_count; i++)
        pieces[i].held[0] = pieces[i].held[1] = false;
    for (int level = 0; level < (disk != NULL ? 2 : 1); level++) {
        struct tierce__tier *tier = fx.engine->levels[level].tier;
        uint32_t cursor = 0;
        while (tier->ops->scan(tier, &cursor, UINT32_MAX, hold, &level))
            ;
    }
}

static bool is_held(const struct piece *piece, int levels)
{
    return piece != NULL && (piece->held[0] || (levels > 1 && piece->held[1]));
}

/* Leading blocks of a piece that are those of the prompt; 0 if it lies elsewhere. */
static size_t common(const struct piece *piece, const struct prompt *p, size_t first)
{
    size_t n = 0;
    if (piece->first != first)
        return 0;
    while (n < piece->count && first + n < p->blocks &&
           memcmp(tierce_chain_hash(piece->prompt->chain, first + n),
                  tierce_chain_hash(p->chain, first + n), TIERCE_HASH_BYTES) == 0)
        n++;
    return n;
}

/* How many leading blocks of p[0, to) the first `levels` tiers have; *sure: the tiers name all
 * chunks that matter. Chunks that end before `from` are not requested. */
static size_t expect_found(const struct prompt *p, size_t from, size_t to, int levels, bool *sure)
{
    size_t at = from / step * step;
    *sure = true;
    for (; at < to; at += step) {
        size_t end = at + step <= p->blocks ? at + step : p->blocks;
        const struct piece *piece = find_piece(tierce_chain_hash(p->chain, end - 1));
        if (!is_held(piece, levels) || piece->first != at)
            break;
    }
    if (at >= to)
        return to;
    size_t best = 0, family[2] = {0, 0};
    for (size_t i = 0; i < piece_count; i++) {
        size_t n = common(&pieces[i], p, at);
        family[0] += n > 0 && pieces[i].held[0];
        family[1] += n > 0 && pieces[i].held[1];
        if (is_held(&pieces[i], levels) && n > best)
            best = n;
    }
    *sure = family[0] <= TIERCE__SIBLINGS_MAX && family[1] <= TIERCE__SIBLINGS_MAX;
    size_t end = at + best < to ? at + best : to;
    return end > from ? end : at;
}

static void check_load(const struct prompt *p, size_t from, size_t to, size_t found, bool exact,
                       uint64_t session)
{
    int32_t ids[BLOCKS_MAX];
    uint8_t origins[BLOCKS_MAX];
    for (int32_t b = 0; b < BLOCKS_MAX; b++)
        ids[b] = 100 + b;
    struct tierce_transfer_opts what = fx_what(&fx, p->chain, from, to, ids);
    what.session = session;
    fx_wipe(&fx);
    int64_t loaded = tierce_load(fx.view, &what, origins);
    ck_assert_int_ge(loaded, 0);
    if (exact)
        ck_assert_int_eq(loaded, found > from ? (int64_t)(found - from) : 0);
    for (size_t b = 0; b < BLOCKS_MAX; b++) {
        bool good = b >= from && b < to && origins[b - from] != TIERCE_ORIGIN_FAILED;
        const uint8_t *at = (const uint8_t *)fx.layers[0].base + (size_t)ids[b] * 1024;
        if (good)
            ck_assert_msg(fx_right(&fx, p->chain, b, ids[b]), "block %zu", b);
        else if (exact)
            ck_assert_msg(*at == 0x5a, "block %zu was written", b);
    }
}

static void ask(bool faulty)
{
    const struct prompt *p = &prompts[below(prompt_count)];
    size_t to = 1 + below((uint32_t)p->blocks), from = below(3) == 0 ? below((uint32_t)to) : 0;
    bool memory_only = below(4) == 0, pin = below(2) == 0, sure;
    if (disk != NULL)
        ck_assert_int_ge(tierce_engine_flush(fx.engine, 60000), faulty ? -1000000 : 0);
    ask_tiers();
    size_t want = expect_found(p, from, to, memory_only || disk == NULL ? 1 : 2, &sure);
    struct tierce_found found;
    struct tierce_lookup_opts opts = {.size = sizeof(opts),
                                      .flags = (memory_only ? TIERCE_LOOKUP_MEMORY_ONLY : 0) |
                                               (pin ? TIERCE_LOOKUP_PIN : 0),
                                      .session = 1 + below(SESSIONS),
                                      .from_block = from};
    ck_assert_int_eq(tierce_lookup(fx.view, p->chain, to, &opts, &found), 0);
    ck_assert_uint_le(found.memory_blocks, found.blocks);
    ck_assert_uint_le(found.blocks, want);
    if (sure && !faulty)
        ck_assert_uint_eq(found.blocks, want);
    if (memory_only)
        ck_assert_uint_eq(found.memory_blocks, found.blocks);
    /* Promised blocks are loaded, and a load provides no other blocks than a lookup in all tiers
     * would find. */
    bool exact = sure && !faulty && !(memory_only && disk != NULL);
    check_load(p, from, to, found.blocks, exact, pin ? opts.session : 0);
}

/* Cells that no load wanted have not been verified: a flipped bit in one may have been promoted to
 * memory, where a later load finds it. */
static void forget_flips(void)
{
    for (uint64_t session = 1; session <= SESSIONS; session++)
        tierce_unpin(fx.view, session);
    memory->ops->evict(memory, UINT64_MAX);
}

static void set_fault(bool on)
{
    static bool flips;
    static const enum tierce__fault_kind kinds[] = {TIERCE__FAULT_ERROR, TIERCE__FAULT_DELAY,
                                                    TIERCE__FAULT_FLIP};
    static const enum tierce__store_op ops[] = {TIERCE__STORE_SIBLINGS, TIERCE__STORE_GET};
    struct tierce__fault_rule rule = {.kind = kinds[below(3)],
                                      .status = -EIO,
                                      .delay_ms = below(3),
                                      .skip = below(3),
                                      .times = 1 + below(4),
                                      .bit = below(6000 * 8)};
    enum tierce__store_op op = ops[below(2)];
    if (op == TIERCE__STORE_SIBLINGS && rule.kind == TIERCE__FAULT_FLIP)
        rule.kind = TIERCE__FAULT_ERROR;
    for (size_t i = 0; i < 2; i++)
        tierce__fault_set(disk, ops[i], NULL);
    if (flips)
        forget_flips();
    flips = on && rule.kind == TIERCE__FAULT_FLIP;
    if (on)
        tierce__fault_set(disk, op, &rule);
}

START_TEST(a_lookup_finds_what_there_is)
{
    random_ = test_random_start("prop_sibling");
    fx = (struct fixture){0};
    piece_count = prompt_count = 0;
    open_all(_i > 0);
    make_prompt();
    for (unsigned i = 0; i < STEPS * test_scale(); i++) {
        uint32_t dice = below(100);
        bool faulty = disk != NULL && _i == 2 && below(3) == 0;
        if (disk != NULL)
            set_fault(faulty);
        if (dice < 8 && prompt_count < PROMPTS)
            make_prompt();
        else if (dice < 35)
            store();
        else if (dice < 42)
            memory->ops->evict(memory, below(200) * 1024);
        else
            ask(faulty);
    }
    if (disk != NULL)
        set_fault(false);
    ck_assert_int_gt(fx_stats(&fx).lookup_sibling_blocks, step > 1 ? 0 : -1);
    for (uint32_t i = 0; i < prompt_count; i++)
        tierce_chain_destroy(prompts[i].chain);
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

CHECK_MAIN("prop_sibling", .seconds = 200, .loops = {{a_lookup_finds_what_there_is, 0, 3}})
