/* SPDX-License-Identifier: Apache-2.0 */
/* A client of a node that lies in its statuses, numbers, rows, memory and bytes. */
#include "check_main.h"
#include "engine/node_client/shared.h"
#include "liar.h"

#include <fcntl.h>
#include <sys/stat.h>

/* ---- statuses -------------------------------------------------------------------------------- */

START_TEST(statuses)
{
    static const int32_t others[] = {1, 2, 3, INT32_MAX, INT32_MIN, -1, -22, -104, -110, -4095};
    enum { OURS = 40 };
#ifdef __SANITIZE_THREAD__ /* each status of some operations; the address sanitizer sees all of    \
                              them */
    enum { STEP = 8 };
#else
    enum { STEP = 1 };
#endif
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    ck_assert_int_eq(check_load(chain), BLOCKS);
    for (int op = TIERCE__NATIVE_PING; op < TIERCE__NATIVE_OPS; op++) {
        for (int i = op % STEP; i < OURS + (int)(sizeof(others) / sizeof(*others)); i += STEP) {
            int32_t status = i < OURS ? -5001 - i : others[i - OURS];
            lie_with((struct lie){(enum tierce__native_op)op, tell_status, .status = status});
            check_all(chain, (uint32_t)(1000 * op + i));
        }
    }
    tell_the_truth();
    close_client(); /* what it was not told of is given back */
    open_client();
    int64_t loaded = 0;
    for (int i = 0; i < 3000 && loaded < BLOCKS; i++) {
        ck_assert_int_ge(fx_store(&fx, chain, BLOCKS, fx_ids, true), 0);
        loaded = check_load(chain);
        if (loaded < BLOCKS)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    ck_assert_int_eq(loaded, BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* ---- numbers --------------------------------------------------------------------------------- */

static void only_load(const struct tierce_chain *chain, uint32_t seed)
{
    (void)seed;
    (void)check_load(chain);
}

static void only_store(const struct tierce_chain *chain, uint32_t seed)
{
    (void)chain;
    check_store(seed);
}

static void only_prefetch(const struct tierce_chain *chain, uint32_t seed)
{
    (void)seed;
    check_prefetch(chain);
}

START_TEST(numbers_of_loans)
{
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    try_numbers(TIERCE__NATIVE_LOAD_BEGIN, 0, 4, 4, only_load, chain);
    for (size_t row = 0; row < 4; row++) {
        size_t at = 16 + row * TIERCE__NATIVE_LENT_BYTES;
        try_numbers(TIERCE__NATIVE_LOAD_BEGIN, at, 8, 2, only_load, chain);
        try_numbers(TIERCE__NATIVE_LOAD_BEGIN, at + 16, 4, 4, only_load, chain);
        try_numbers(TIERCE__NATIVE_LOAD_BEGIN, at + 32, 1, 10, only_load, chain);
    }
    ck_assert_int_eq(check_load(chain), BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

START_TEST(numbers_of_stores)
{
    start(NULL);
    try_numbers(TIERCE__NATIVE_STORE_BEGIN, 0, 4, 4, only_store, NULL);
    for (size_t row = 0; row < 4; row++) {
        size_t at = 16 + row * TIERCE__NATIVE_RESERVED_BYTES;
        try_numbers(TIERCE__NATIVE_STORE_BEGIN, at, 8, 2, only_store, NULL);
        try_numbers(TIERCE__NATIVE_STORE_BEGIN, at + 16, 4, 2, only_store, NULL);
    }
    try_numbers(TIERCE__NATIVE_STORE_END, 0, 8, 1, only_store, NULL);
    end();
}
END_TEST

static const struct {
    enum tierce__native_op op;
    size_t at, width, count;
    void (*check)(const struct tierce_chain *, uint32_t);
} everything_else[] = {
    {TIERCE__NATIVE_LOOKUP, 0, 8, 2, check_all},
    {TIERCE__NATIVE_DURABLE, 0, 8, 2, check_all},
    {TIERCE__NATIVE_VIEW, 0, 8, 1, check_all},
    {TIERCE__NATIVE_PREFETCH_BEGIN, 0, 8, 1, only_prefetch},
    {TIERCE__NATIVE_PREFETCH_POLL, 0, 8, 2, only_prefetch},
    {TIERCE__NATIVE_PREFETCH_POLL, 16, 4, 2, only_prefetch},
};

START_TEST(numbers_of_everything_else)
{
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    try_numbers(everything_else[_i].op, everything_else[_i].at, everything_else[_i].width,
                everything_else[_i].count, everything_else[_i].check, chain);
    ck_assert_int_eq(check_load(chain), BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* ---- rows ------------------------------------------------------------------------------------ */

static void swap_rows(uint8_t *rows, size_t i, size_t j, size_t bytes)
{
    uint8_t kept[TIERCE__NATIVE_LENT_BYTES];
    memcpy(kept, rows + i * bytes, bytes);
    memcpy(rows + i * bytes, rows + j * bytes, bytes);
    memcpy(rows + j * bytes, kept, bytes);
}

static void tell_other_order(const struct lie *lie, struct answer *answer)
{
    bool is_load = lie->op == TIERCE__NATIVE_LOAD_BEGIN;
    size_t row = is_load ? TIERCE__NATIVE_LENT_BYTES : TIERCE__NATIVE_RESERVED_BYTES;
    if (answer->status == 0 && 16 + 4 * row <= answer->bytes)
        swap_rows(answer->body + 16, lie->a, lie->b, row);
}

/* One chunk in the place of another one. */
static void tell_other_place(const struct lie *lie, struct answer *answer)
{
    uint8_t *rows = answer->body + 16;
    if (answer->status == 0 && 16 + 4 * TIERCE__NATIVE_LENT_BYTES <= answer->bytes)
        memmove(rows + lie->a * TIERCE__NATIVE_LENT_BYTES,
                rows + lie->b * TIERCE__NATIVE_LENT_BYTES, 8);
}

static void tell_fewer(const struct lie *lie, struct answer *answer)
{
    if (answer->status == 0)
        answer->say.load_begin.chunks.count = (uint32_t)lie->a;
}

/* With none of them, too: an honest node numbers no such store. */
static void tell_fewer_rooms(const struct lie *lie, struct answer *answer)
{
    if (answer->status == 0 && answer->say.store_begin.chunks.count > lie->a)
        answer->say.store_begin.chunks.count = (uint32_t)lie->a;
}

START_TEST(rows)
{
    static const struct lie lies[] = {{TIERCE__NATIVE_LOAD_BEGIN, .tell = tell_other_order},
                                      {TIERCE__NATIVE_STORE_BEGIN, .tell = tell_other_order},
                                      {TIERCE__NATIVE_LOAD_BEGIN, .tell = tell_other_place},
                                      {TIERCE__NATIVE_LOAD_BEGIN, .tell = tell_fewer},
                                      {TIERCE__NATIVE_STORE_BEGIN, .tell = tell_fewer_rooms}};
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    for (uint32_t i = 0; i < 5 * 16; i++) {
        struct lie lie = lies[i / 16];
        lie.a = i / 4 % 4;
        lie.b = i % 4;
        lie_with(lie);
        (void)check_load(chain);
        check_store(2 + i);
        ck_assert_uint_ge(tell_the_truth(), 1);
    }
    ck_assert_int_eq(check_load(chain), BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* A whole chunk becomes the one of that number. */
static void tell_earlier_chunk(const struct lie *lie, struct answer *answer)
{
    struct tierce__native_reserved room;
    if (answer->status != 0 ||
        tierce__native_get_reserved(&room, &answer->say.store_begin.chunks, 0) != 0)
        return;
    room.index = (uint32_t)lie->number;
    tierce__native_put_reserved(answer->body + 16, &room);
}

/* The engine no longer keeps the blocks before from_block, and passes no ids for them. */
START_TEST(a_chunk_before_the_blocks_of_the_store)
{
    enum { FROM = 2 * FX_CHUNK_BLOCKS };
    static const uint32_t layer_numbers[FX_LAYERS] = {0, 1, 2, 3};
    struct tierce_namespace ns = fx_namespace();
    int32_t ids[BLOCKS];
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    fx_fill(&fx, chain, 0, BLOCKS, fx_ids);
    for (int32_t i = 0; i < (int32_t)BLOCKS; i++)
        ids[i] = i < FROM ? INT32_MIN : fx_ids[i];
    ns.group = TIERCE_GROUP_WINDOW;
    ns.window = 3 * FX_BLOCK_TOKENS;
    ns.layers = layer_numbers;
    struct tierce_view *window;
    ck_assert_int_eq(tierce_view_open(&window, client, &ns, &(struct tierce_shard){0, 1, 0, 1}), 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, FROM, BLOCKS, ids);
    for (uint64_t index = 0; index < 2; index++) {
        lie_with((struct lie){TIERCE__NATIVE_GROUP_STORE_BEGIN, .tell = tell_earlier_chunk,
                              .number = index});
        ck_assert_int_eq(tierce_store(window, &what), 0);
        ck_assert_uint_eq(tell_the_truth(), 1);
    }
    int64_t stored = 0; /* the client returns to a node that has lied when it has connected again */
    for (int i = 0; i < 3000 && stored == 0; i++) {
        stored = tierce_store(window, &what);
        nanosleep(&(struct timespec){.tv_nsec = stored == 0 ? 10000000 : 0}, NULL);
    }
    ck_assert_int_eq(stored, FX_CHUNK_BLOCKS);
    tierce_view_close(window);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* ---- prefetches that do not end, memory that is none ----------------------------------------- */

static void tell_unfinished(const struct lie *lie, struct answer *answer)
{
    (void)lie;
    answer->status = 0;
    answer->say.prefetch_poll.flags = 0;
}

START_TEST(a_prefetch_that_never_ends)
{
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    lie_with((struct lie){TIERCE__NATIVE_PREFETCH_POLL, .tell = tell_unfinished});
    check_prefetch(chain);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

static void replace(int *fd, int with)
{
    close(*fd);
    *fd = with;
}

static void give_none(int *fd)
{
    replace(fd, -1);
}

static void give_null(int *fd)
{
    replace(fd, open("/dev/null", O_RDWR | O_CLOEXEC));
}

static int make_memory(off_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(fd, bytes), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void give_short(int *fd)
{
    struct stat status;
    ck_assert_int_eq(fstat(*fd, &status), 0);
    replace(fd, make_memory(status.st_size - 4096, F_SEAL_SHRINK | F_SEAL_GROW));
}

static void give_open(int *fd)
{
    struct stat status;
    ck_assert_int_eq(fstat(*fd, &status), 0);
    replace(fd, make_memory(status.st_size, F_SEAL_GROW));
}

static void give_empty(int *fd)
{
    struct stat status;
    ck_assert_int_eq(fstat(*fd, &status), 0);
    replace(fd, make_memory(status.st_size, F_SEAL_SHRINK | F_SEAL_GROW));
}

/* The first chunk as near to the end of the pool as it can lie, or `number` bytes nearer. */
static void tell_end_of_pool(const struct lie *lie, struct answer *answer)
{
    struct tierce__engine_memory memory;
    struct tierce__native_lent lent;
    tierce__engine_memory(fx.engine, &memory);
    if (answer->status != 0 ||
        tierce__native_get_lent(&lent, &answer->say.load_begin.chunks, 0) != 0)
        return;
    uint8_t *base = (uint8_t *)(uintptr_t)memory.base;
    uint64_t offset = memory.bytes - lent.bytes + lie->number;
    memmove(base + offset, base + lent.offset, lent.bytes - lie->number);
    lent.offset = offset;
    tierce__native_put_lent(answer->body + 16, &lent);
}

START_TEST(a_chunk_at_the_end_of_the_pool)
{
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    lie_with((struct lie){TIERCE__NATIVE_LOAD_BEGIN, .tell = tell_end_of_pool});
    ck_assert_int_eq(check_load(chain), BLOCKS);
    lie_with((struct lie){TIERCE__NATIVE_LOAD_BEGIN, .tell = tell_end_of_pool, .number = 1});
    ck_assert_int_eq(check_load(chain), BLOCKS - FX_CHUNK_BLOCKS);
    tell_the_truth();
    ck_assert_int_eq(check_load(chain), BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

static void tell_much_memory(const struct lie *lie, struct answer *answer)
{
    answer->say.hello.pool_bytes = lie->number;
}

START_TEST(memory_that_is_none)
{
    static const struct lie lies[] = {
        {TIERCE__NATIVE_HELLO, .fd = give_none},  {TIERCE__NATIVE_HELLO, .fd = give_null},
        {TIERCE__NATIVE_HELLO, .fd = give_short}, {TIERCE__NATIVE_HELLO, .fd = give_open},
        {TIERCE__NATIVE_HELLO, .fd = give_empty}, {TIERCE__NATIVE_HELLO, .tell = tell_much_memory}};
    static const uint64_t sizes[] = {0, 5u << 20, 1ull << 40, 1ull << 63, UINT64_MAX};
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
        for (size_t j = 0; j < (lies[i].tell != NULL ? sizeof(sizes) / sizeof(*sizes) : 1); j++) {
            struct lie lie = lies[i];
            lie.number = sizes[j];
            close_client();
            lie_with(lie);
            open_client();
            ck_assert_int_eq(check_load(chain), 0);
            check_store(5);
            ck_assert_uint_ge(tell_the_truth(), 1);
        }
    }
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* ---- versions -------------------------------------------------------------------------------- */

/* A node of the version before this one serves everything but notes of requests. */
START_TEST(an_older_node)
{
    static const struct lie old = {.op = TIERCE__NATIVE_NOTE_REQUEST,
                                   .version = TIERCE__NATIVE_VERSION_OLD};
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    close_client();
    lie_with(old);
    open_client();
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    ck_assert_int_eq(check_load(chain), BLOCKS);
    check_all(chain, 9);
    ck_assert_uint_eq(lie_with(old), 0); /* no note was sent */
    close_client();
    lie_with((struct lie){.op = TIERCE__NATIVE_NOTE_REQUEST});
    open_client();
    check_all(chain, 10);
    ck_assert_uint_eq(tell_the_truth(), 1);
    close_client();
    lie_with((struct lie){.version = 1}); /* one that is older still is not used */
    open_client();
    ck_assert_int_eq(check_load(chain), 0);
    tell_the_truth();
    tierce_chain_destroy(chain);
    end();
}
END_TEST

static void take_hints_away(const struct lie *lie, struct answer *answer)
{
    (void)lie;
    answer->say.hello.tiers &= ~TIERCE__NATIVE_TAKES_HINTS;
}

/* A node without SESSION_HINT would end the connection. */
START_TEST(a_node_without_hints)
{
    start(NULL);
    ck_assert_int_eq(tierce_session_hint(fx.view, 7, TIERCE_HINT_OPEN), 0);
    close_client();
    lie_with((struct lie){.op = TIERCE__NATIVE_HELLO, .tell = take_hints_away});
    open_client();
    ck_assert_int_eq(tierce_session_hint(fx.view, 7, TIERCE_HINT_OPEN), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(tierce_session_hint(fx.view, 0, TIERCE_HINT_OPEN), TIERCE_E_ARGUMENT);
    ck_assert_uint_ge(tell_the_truth(), 1);
    end();
}
END_TEST

/* ---- bytes ----------------------------------------------------------------------------------- */

static void tell_mutated(const struct lie *lie, struct answer *answer)
{
    uint32_t changes = answer->bytes > 0 ? 1 + test_random_below(&liar.random, 4) : 0;
    for (; changes > 0; changes--)
        answer->body[test_random_below(&liar.random, answer->bytes)] =
            (uint8_t)test_random_u64(&liar.random);
    take_bytes(lie, answer);
}

START_TEST(mutated_answers)
{
    static const enum tierce__native_op ops[] = {
        TIERCE__NATIVE_LOAD_BEGIN,    TIERCE__NATIVE_STORE_BEGIN,    TIERCE__NATIVE_LOOKUP,
        TIERCE__NATIVE_PREFETCH_POLL, TIERCE__NATIVE_PREFETCH_BEGIN, TIERCE__NATIVE_STORE_END};
    liar.random = test_random_start("mutated_answers");
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    for (uint32_t i = 0; i < TEST_ROUNDS(600u); i++) {
        lie_with((struct lie){ops[i % (sizeof(ops) / sizeof(*ops))], .tell = tell_mutated});
        check_all(chain, 10 + i);
    }
    tierce_chain_destroy(chain);
    end();
}
END_TEST

CHECK_MAIN("client_lies", .seconds = 240, .at_once = true,
           .tests = {statuses, numbers_of_loans, numbers_of_stores, rows,
                     a_chunk_before_the_blocks_of_the_store, a_prefetch_that_never_ends,
                     a_chunk_at_the_end_of_the_pool, memory_that_is_none, an_older_node,
                     a_node_without_hints, mutated_answers},
           .loops = {
               {numbers_of_everything_else, 0, sizeof(everything_else) / sizeof(*everything_else)}})
