/* SPDX-License-Identifier: Apache-2.0 */
/* Hits inside a chunk: what a prompt shares with a chunk that goes on otherwise, or ends sooner. */
#include "base/clock.h"
#include "check_main.h"
#include "core/chunk/header.h"
#include "engine/load/sibling.h"
#include "engine_fixture.h"
#include "silent_log.h"
#include "test_random.h"
#include "tier_fault.h"
#include "wait_for.h"

#include <errno.h>
#include <pthread.h>

static struct fixture fx;

/* A prompt of which the first `shared` blocks are those of every other one with as many. */
static struct tierce_chain *prompt(uint32_t n, size_t blocks, size_t shared)
{
    return fx_chain(&fx, n * 1000 + 7, blocks, shared);
}

static void end(struct tierce_chain *a, struct tierce_chain *b)
{
    tierce_chain_destroy(a);
    tierce_chain_destroy(b);
    fx_close(&fx);
    fx_remove(&fx);
}

/* Loads [from, to) and checks that just [from, good) is there, from `origin`. */
static void expect(const struct tierce_chain *chain, size_t from, size_t to, size_t good,
                   enum tierce_origin origin, uint64_t session)
{
    uint8_t origins[FX_BLOCKS];
    struct tierce_transfer_opts what = fx_what(&fx, chain, from, to, fx_ids);
    what.session = session;
    fx_wipe(&fx);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), (int64_t)(good - from));
    for (size_t b = from; b < to; b++) {
        ck_assert_msg(origins[b - from] == (b < good ? origin : TIERCE_ORIGIN_FAILED), "block %zu",
                      b);
        if (b < good)
            ck_assert_msg(fx_right(&fx, chain, b, fx_ids[b]), "block %zu", b);
        else /* nothing was written to where nothing is */
            ck_assert_int_eq(((uint8_t *)fx.layers[0].base)[(size_t)fx_ids[b] * 1024], 0x5a);
    }
}

static void empty_memory(void)
{
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    while (fx.engine->levels[0].tier->ops->evict(fx.engine->levels[0].tier, 1) > 0)
        ;
    uint64_t give_up = tierce__deadline_in_ms(60000);
    while (fx_stats(&fx).memory_bytes_now > 0 && tierce__now_ns() < give_up)
        usleep(100);
}

START_TEST(the_blocks_before_prompts_part)
{
    for (size_t shared = 0; shared <= 8; shared++) {
        for (int on_disk = 0; on_disk < 2; on_disk++) {
            fx = (struct fixture){0};
            fx_open(&fx, on_disk != 0, NULL);
            struct tierce_chain *a = prompt(1, 12, shared), *b = prompt(2, 11, shared);
            ck_assert_int_eq(fx_store(&fx, a, 12, fx_ids, false), 12);
            if (on_disk)
                empty_memory();
            uint64_t memory;
            ck_assert_uint_eq(fx_found(&fx, b, 11, 0, 0, &memory), shared);
            ck_assert_uint_eq(memory, on_disk ? 0 : shared);
            ck_assert_int_eq(fx_stats(&fx).lookup_sibling_blocks, (int64_t)(shared % 4));
            expect(b, 0, 11, shared, on_disk ? TIERCE_ORIGIN_DISK : TIERCE_ORIGIN_MEMORY, 0);
            ck_assert_int_eq(fx_stats(&fx).blocks_loaded_siblings, (int64_t)(shared % 4));
            /* The chunk that was read is now in memory, complete. */
            ck_assert_uint_eq(fx_found(&fx, b, 11, 0, 0, &memory), shared);
            ck_assert_uint_eq(memory, shared);
            /* And the prompt's own chunks are stored whole, beside it. */
            ck_assert_int_eq(fx_store(&fx, b, 11, fx_ids, false), 8 - (int64_t)(shared / 4 * 4));
            ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 8);
            expect(b, 0, 8, 8, TIERCE_ORIGIN_MEMORY, 0);
            end(a, b);
        }
    }
}
END_TEST

START_TEST(the_engine_holds_some_of_them)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *a = prompt(1, 12, 7), *b = prompt(2, 12, 7);
    ck_assert_int_eq(fx_store(&fx, a, 12, fx_ids, false), 12);
    struct tierce_found found;
    for (uint64_t from = 0; from < 12; from++) {
        struct tierce_lookup_opts opts = {.size = sizeof(opts), .from_block = from};
        ck_assert_int_eq(tierce_lookup(fx.view, b, 12, &opts, &found), 0);
        /* What ends before is of no use, and not promised. */
        ck_assert_uint_eq(found.blocks, from < 7 ? 7 : from < 8 ? 4 : 8);
    }
    expect(b, 5, 12, 7, TIERCE_ORIGIN_MEMORY, 0);
    expect(b, 6, 7, 7, TIERCE_ORIGIN_MEMORY, 0);
    /* The whole chunk is loaded from where the engine stands, too. */
    expect(a, 5, 12, 12, TIERCE_ORIGIN_MEMORY, 0);
    /* Fewer are asked for than there are. */
    ck_assert_uint_eq(fx_found(&fx, b, 6, 0, 0, NULL), 6);
    expect(b, 0, 6, 6, TIERCE_ORIGIN_MEMORY, 0);
    end(a, b);
}
END_TEST

START_TEST(a_prompt_that_ended_sooner)
{
    fx_open(&fx, _i == 1, NULL);
    struct tierce_chain *a = prompt(1, 7, 7), *b = prompt(2, 16, 7);
    ck_assert_int_eq(fx_store(&fx, a, 7, fx_ids, true), 7);
    if (_i == 1)
        empty_memory();
    ck_assert_uint_eq(fx_found(&fx, b, 16, 0, 0, NULL), 7);
    expect(b, 0, 16, 7, _i == 1 ? TIERCE_ORIGIN_DISK : TIERCE_ORIGIN_MEMORY, 0);
    end(a, b);
}
END_TEST

START_TEST(the_best_of_several)
{
    struct tierce_chain *chains[6];
    fx_open(&fx, true, NULL);
    struct tierce_chain *want = prompt(9, 8, 7);
    /* Prompt n shares 4 + n blocks, but for the last, which shares as many as the best. */
    static const size_t shared[] = {4, 5, 7, 6, 5, 7};
    for (uint32_t n = 0; n < 6; n++) {
        chains[n] = prompt(n + 1, 8, shared[n]);
        ck_assert_int_ge(fx_store(&fx, chains[n], 8, fx_ids, false), 4);
    }
    uint64_t memory;
    ck_assert_uint_eq(fx_found(&fx, want, 8, 0, 0, &memory), 7);
    ck_assert_uint_eq(memory, 7);
    /* Memory has five of them, the disk all. */
    empty_memory();
    expect(chains[4], 0, 8, 8, TIERCE_ORIGIN_DISK, 0);
    ck_assert_uint_eq(fx_found(&fx, want, 8, 0, 0, &memory), 7);
    ck_assert_uint_eq(memory, 4);
    /* As many on disk as in memory: memory. */
    struct tierce_chain *five = prompt(10, 8, 5);
    ck_assert_uint_eq(fx_found(&fx, five, 8, 0, 0, &memory), 5);
    ck_assert_uint_eq(memory, 5);
    tierce_chain_destroy(five);
    for (uint32_t n = 0; n < 6; n++)
        tierce_chain_destroy(chains[n]);
    end(want, NULL);
}
END_TEST

START_TEST(another_salt_or_position_is_no_sibling)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *a = prompt(1, 8, 6), *b = NULL;
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    struct tierce_chain_root root = {.size = sizeof(root), .salt = "other", .salt_bytes = 5};
    ck_assert_int_eq(tierce_view_chain(&b, fx.view, &root), 0);
    for (size_t i = 0; i < 8 * FX_BLOCK_TOKENS; i++) {
        uint32_t s = i < 6 * FX_BLOCK_TOKENS ? 7 : 1007;
        int32_t token = (int32_t)((s * 2654435761u + i * 40503u) & 0xffff);
        ck_assert_int_ge(tierce_chain_append(b, &token, 1, NULL), 0);
    }
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 0);
    end(a, b);
}
END_TEST

START_TEST(it_can_be_turned_off)
{
    const char *sets[] = {"chunk.siblings", "false", NULL};
    fx_open(&fx, false, sets);
    struct tierce_chain *a = prompt(1, 8, 6), *b = prompt(2, 8, 6);
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 4);
    expect(b, 0, 8, 4, TIERCE_ORIGIN_MEMORY, 0);
    end(a, b);
}
END_TEST

/* ---- pins ---- */

START_TEST(a_sibling_is_pinned)
{
    fx_open(&fx, false, NULL);
    /* With `whole` leading chunks of its own, and with none. */
    size_t shared = _i == 0 ? 6 : 2;
    struct tierce_chain *a = prompt(1, 8, shared), *b = prompt(2, 8, shared);
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    uint64_t memory;
    ck_assert_uint_eq(fx_found(&fx, b, 8, TIERCE_LOOKUP_PIN, 5, &memory), shared);
    ck_assert_uint_eq(memory, shared);
    ck_assert_int_gt(fx_stats(&fx).pinned_bytes_now, 0);
    fx.engine->levels[0].tier->ops->evict(fx.engine->levels[0].tier, UINT64_MAX);
    /* More siblings than a tier names, all newer. */
    for (uint32_t n = 10; n < 24; n++) {
        struct tierce_chain *other = prompt(n, 8, shared - 1);
        ck_assert_int_ge(fx_store(&fx, other, 8, fx_ids, false), 4);
        tierce_chain_destroy(other);
    }
    expect(b, 0, 8, shared, TIERCE_ORIGIN_MEMORY, 5);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
    ck_assert_int_eq(fx_stats(&fx).identity_failures, 0);
    end(a, b);
}
END_TEST

/* A lookup has pinned the sibling; then the chunk itself comes to the disk, and leaves memory. */
START_TEST(a_pinned_sibling_is_loaded_though_the_chunk_has_come)
{
    uint8_t origins[8];
    uint64_t memory;
    fx_open(&fx, true, NULL);
    struct tierce_chain *a = prompt(1, 4, 2), *b = prompt(2, 4, 2);
    ck_assert_int_eq(fx_store(&fx, a, 4, fx_ids, false), 4);
    ck_assert_uint_eq(fx_found(&fx, b, 4, TIERCE_LOOKUP_PIN, 5, &memory), 2);
    ck_assert_uint_eq(memory, 2);
    ck_assert_int_eq(fx_store(&fx, b, 4, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce__tier *tier = fx.engine->levels[0].tier, *disk;
    tier->ops->evict(tier, UINT64_MAX); /* all but what is pinned */
    disk = fx_wrap(&fx, 1);
    tierce__fault_set(disk, TIERCE__STORE_GET,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO});
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, b, 0, 2, fx_ids);
    what.session = 5;
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), 2);
    ck_assert_uint_eq(origins[0], TIERCE_ORIGIN_MEMORY);
    for (size_t block = 0; block < 2; block++)
        ck_assert(fx_right(&fx, b, block, fx_ids[block]));
    end(a, b);
}
END_TEST

START_TEST(a_pin_lasts_as_long_as_was_asked_for)
{
    fx_open(&fx, false, NULL);
    size_t shared = _i == 0 ? 6 : 2; /* with a chunk of its own before it, and alone */
    struct tierce_chain *a = prompt(1, 8, shared), *b = prompt(2, 8, shared);
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    struct tierce_found found;
    struct tierce_lookup_opts opts = {
        .size = sizeof(opts), .flags = TIERCE_LOOKUP_PIN, .session = 5, .pin_ms = 300};
    ck_assert_int_eq(tierce_lookup(fx.view, b, 8, &opts, &found), 0);
    ck_assert_uint_eq(found.memory_blocks, shared);
    ck_assert_int_gt(fx_stats(&fx).pinned_bytes_now, 0);
    WAIT_WITHIN(20000, fx_stats(&fx).pinned_bytes_now == 0); /* timeout.pin is longer */
    end(a, b);
}
END_TEST

/* As whole chunks are: it was promised before. */
START_TEST(what_is_pinned_is_loaded_in_bypass)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *a = prompt(1, 8, 6), *b = prompt(2, 8, 6);
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    ck_assert_uint_eq(fx_found(&fx, b, 8, TIERCE_LOOKUP_PIN, 5, NULL), 6);
    ck_assert_int_eq(tierce_engine_set_mode(fx.engine, TIERCE_MODE_BYPASS), 0);
    expect(b, 0, 8, 6, TIERCE_ORIGIN_MEMORY, 5);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
    expect(b, 0, 8, 0, TIERCE_ORIGIN_MEMORY, 5);
    end(a, b);
}
END_TEST

START_TEST(what_cannot_be_pinned_is_not_promised_as_memory)
{
    const char *sets[] = {"memory.pins", "0", NULL};
    fx_open(&fx, false, sets);
    struct tierce_chain *a = prompt(1, 8, 2), *b = prompt(2, 8, 2);
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    uint64_t memory;
    unsigned flags = TIERCE_LOOKUP_PIN;
    ck_assert_uint_eq(fx_found(&fx, b, 8, flags, 5, &memory), 2);
    ck_assert_uint_eq(memory, 0);
    flags |= TIERCE_LOOKUP_MEMORY_ONLY;
    ck_assert_uint_eq(fx_found(&fx, b, 8, flags, 5, &memory), 0);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
    end(a, b);
}
END_TEST

START_TEST(memory_only)
{
    fx_open(&fx, true, NULL);
    struct tierce_chain *a = prompt(1, 8, 6), *b = prompt(2, 8, 6);
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    ck_assert_uint_eq(fx_found(&fx, b, 8, TIERCE_LOOKUP_MEMORY_ONLY, 0, NULL), 6);
    empty_memory();
    ck_assert_uint_eq(fx_found(&fx, b, 8, TIERCE_LOOKUP_MEMORY_ONLY, 0, NULL), 0);
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 6);
    end(a, b);
}
END_TEST

/* ---- what goes wrong ---- */

START_TEST(evicted_between_lookup_and_load)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *a = prompt(1, 8, 6), *b = prompt(2, 8, 6);
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 6);
    fx.engine->levels[0].tier->ops->evict(fx.engine->levels[0].tier, UINT64_MAX);
    expect(b, 0, 6, 0, TIERCE_ORIGIN_MEMORY, 0);
    end(a, b);
}
END_TEST

static struct tierce__key key_of(const struct tierce_chain *chain, size_t last)
{
    struct tierce__key key = fx.inner->key;
    memcpy(key.hash, tierce_chain_hash(chain, last), sizeof(key.hash));
    return key;
}

static void flip_byte(struct tierce__buf *buf, size_t at, bool seal)
{
    buf->data[at] ^= 1;
    if (seal)
        tierce__chunk_seal(buf->data, tierce__chunk_header_bytes(buf->data));
}

/* Each byte of the header that says who the chunk is, changed under a right sum. */
START_TEST(a_header_that_lies)
{
    static const struct {
        size_t at;
        uint64_t found; /* with this lie; 4: the chunk is taken out of service */
    } lies[] = {{32, 4},
                {64, 4},
                {95, 4},
                {96, 4},
                {128, 4},
                {130, 4},
                {136, 4},
                {152, 4},
                {156, 4},
                {160, 4},
                {164, 4},
                {168, 4},
                {256, 4},
                {272, 4},
                {271 + 32, 4},
                /* of the second block's hash: one block is the same */
                {272 + 32, 5},
                /* of the third's, which is not the wanted one: nothing that matters */
                {272 + 64, 6},
                /* of the last's, by which the chunk is named */
                {272 + 96, 4}};
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        fx = (struct fixture){0};
        fx_open(&fx, false, NULL);
        struct tierce_chain *a = prompt(1, 8, 6), *b = prompt(2, 8, 6);
        ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
        struct tierce__key key = key_of(a, 7);
        struct tierce__buf *buf = tierce__storage_lease(fx.engine, &key);
        ck_assert_ptr_nonnull(buf);
        flip_byte(buf, lies[i].at, true);
        tierce__buf_release(buf);
        ck_assert_msg(fx_found(&fx, b, 8, 0, 0, NULL) == lies[i].found, "byte %zu", lies[i].at);
        bool out = lies[i].found == 4;
        ck_assert_int_eq(fx_stats(&fx).identity_failures + fx_stats(&fx).checksum_failures, out);
        ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, out ? 1 : 2);
        expect(b, 0, 8, lies[i].found, TIERCE_ORIGIN_MEMORY, 0);
        end(a, b);
    }
}
END_TEST

/* A header that was right when it was looked at, and is not when it is used. */
START_TEST(a_header_that_changes)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *a = prompt(1, 8, 6), *b = prompt(2, 8, 6);
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    struct tierce__key key = key_of(a, 7);
    struct tierce__buf *buf = tierce__storage_lease(fx.engine, &key);
    struct tierce_transfer_opts what = fx_what(&fx, b, 0, 6, fx_ids);
    struct tierce_load *load;
    uint8_t origins[6];
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    flip_byte(buf, 272 + 32, true);
    for (uint32_t layer = 0; layer < FX_LAYERS; layer++)
        ck_assert_int_eq(tierce_load_layer(load, layer), 0);
    ck_assert_int_eq(tierce_load_end(load, origins), 4);
    ck_assert_int_eq(origins[4], TIERCE_ORIGIN_FAILED);
    ck_assert_int_eq(origins[5], TIERCE_ORIGIN_FAILED);
    ck_assert_int_eq(fx_stats(&fx).identity_failures, 1);
    tierce__buf_release(buf);
    end(a, b);
}
END_TEST

START_TEST(a_cell_that_is_not_right)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *a = prompt(1, 8, 6), *b = prompt(2, 8, 6);
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    struct tierce__key key = key_of(a, 7);
    struct tierce__buf *buf = tierce__storage_lease(fx.engine, &key);
    uint64_t second = tierce__shape_offset(&fx.view->full, 0) + fx_cells[0];
    flip_byte(buf, second + 5, false);
    tierce__buf_release(buf);
    uint8_t origins[8];
    struct tierce_transfer_opts what = fx_what(&fx, b, 0, 8, fx_ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), 5);
    ck_assert_int_eq(origins[4], TIERCE_ORIGIN_MEMORY);
    ck_assert_int_eq(origins[5], TIERCE_ORIGIN_FAILED);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 1);
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 4);
    end(a, b);
}
END_TEST

START_TEST(a_disk_that_fails_or_lies)
{
    const char *sets[] = {"timeout.lookup", "5s", "timeout.load", "20s", NULL};
    fx_open(&fx, true, sets);
    struct tierce_chain *a = prompt(1, 8, 6), *b = prompt(2, 8, 6);
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    empty_memory();
    struct tierce__tier *disk = fx_wrap(&fx, 1);
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = -EIO};
    tierce__fault_set(disk, TIERCE__STORE_SIBLINGS, &rule);
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 4);
    tierce__fault_set(disk, TIERCE__STORE_SIBLINGS, NULL);
    rule.times = 1;
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 4);
    tierce__fault_set(disk, TIERCE__STORE_GET, NULL);
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 6);
    /* A header that is read wrong: out of service. */
    rule =
        (struct tierce__fault_rule){.kind = TIERCE__FAULT_FLIP, .bit = 8 * (272 + 32), .times = 1};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 4);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 1);
    tierce__fault_set(disk, TIERCE__STORE_GET, NULL);
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 4);
    end(a, b);
}
END_TEST

/* A header that is late costs a lookup its time and no more, and is not a fault of the tier. */
START_TEST(a_disk_that_is_slow)
{
    const char *sets[] = {"timeout.lookup", "1s", "breaker.errors", "1", NULL};
    fx_open(&fx, true, sets);
    struct tierce_chain *a = prompt(1, 8, 6), *b = prompt(2, 8, 6);
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    empty_memory();
    struct tierce__tier *disk = fx_wrap(&fx, 1);
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_DELAY, .delay_ms = 3000};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 4);
    tierce__fault_set(disk, TIERCE__STORE_GET, NULL);
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 6);
    ck_assert_int_eq(fx_stats(&fx).deadline_failures, 0);
    ck_assert_int_eq(fx_stats(&fx).breaker_trips, 0);
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 4);
    end(a, b); /* while a read is on its way that nobody waits for */
}
END_TEST

/* ---- reasons and cost ---- */

START_TEST(the_reason_is_that_of_the_chunk)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *a = prompt(1, 8, 6), *b = prompt(2, 8, 6);
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    struct tierce_miss miss = {.size = sizeof(miss)};
    ck_assert_int_eq(tierce_why(fx.inner, b, 0, 8, &miss), 0);
    ck_assert_int_eq(miss.reason, TIERCE_MISS_NEVER_STORED);
    ck_assert_uint_eq(miss.block, 6);
    ck_assert_mem_eq(miss.hash, tierce_chain_hash(b, 7), TIERCE_HASH_BYTES);
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 6);
    ck_assert_int_eq(fx_stats(&fx).misses_never_stored, 1);
    /* All that is asked for is there. */
    miss = (struct tierce_miss){.size = sizeof(miss)};
    ck_assert_int_eq(tierce_why(fx.inner, b, 0, 6, &miss), 0);
    ck_assert_int_eq(miss.reason, TIERCE_MISS_NONE);
    ck_assert_uint_eq(fx_found(&fx, b, 6, 0, 0, NULL), 6);
    ck_assert_int_eq(fx_stats(&fx).misses_never_stored, 1);
    end(a, b);
}
END_TEST

START_TEST(what_is_sooner_computed_is_not_promised)
{
    /* A chunk is some 12 KiB of payload and 16 tokens: at 12 KB/s and 10 tokens/s reading takes a
     * second, computing two blocks less, and all of it more. */
    const char *sets[] = {"cost.read", "12000", "cost.prefill", "10", NULL};
    fx_open(&fx, true, sets);
    struct tierce_chain *a = prompt(1, 8, 6), *b = prompt(2, 8, 6);
    ck_assert_int_eq(fx_store(&fx, a, 8, fx_ids, false), 8);
    empty_memory();
    ck_assert_uint_eq(fx_found(&fx, a, 8, 0, 0, NULL), 8);
    ck_assert_uint_eq(fx_found(&fx, b, 8, 0, 0, NULL), 4);
    end(a, b);
}
END_TEST

/* ---- many at once ---- */

enum { THREADS = 4, ROUNDS = 60 };

/* Stores, looks up with pins and loads prompts that part from those of the others. */
static void *hammer(void *arg)
{
    int32_t ids[12], first = *(const int32_t *)arg;
    uint8_t origins[12];
    struct test_random random = {(uint64_t)first + 1};
    for (int32_t b = 0; b < 12; b++)
        ids[b] = first + b;
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct tierce_chain *chain =
            prompt(test_random_below(&random, 40), 12, 1 + test_random_below(&random, 8));
        uint64_t session = (uint64_t)first + 1 + i % 3;
        struct tierce_found found;
        struct tierce_lookup_opts opts = {
            .size = sizeof(opts), .flags = TIERCE_LOOKUP_PIN, .session = session};
        ck_assert_int_eq(tierce_lookup(fx.view, chain, 12, &opts, &found), 0);
        struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 12, ids);
        what.session = session;
        int64_t loaded = tierce_load(fx.view, &what, origins);
        ck_assert_int_ge(loaded, (int64_t)found.memory_blocks); /* which are pinned */
        for (size_t b = 0; b < 12; b++)
            ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, chain, b, ids[b]));
        if (i % 2 == 0)
            ck_assert_int_ge(fx_store(&fx, chain, 12, ids, i % 4 == 0), 0);
        if (i % 16 == 15)
            fx.engine->levels[0].tier->ops->evict(fx.engine->levels[0].tier, UINT64_MAX);
        tierce_chain_destroy(chain);
    }
    return NULL;
}

START_TEST(many_at_once)
{
    static int32_t firsts[THREADS] = {0, 100, 200, 300};
    pthread_t threads[THREADS];
    fx_open(&fx, true, NULL);
    for (size_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, hammer, &firsts[i]), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    struct tierce_engine_stats stats = fx_stats(&fx);
    ck_assert_int_gt(stats.blocks_loaded_siblings, 0);
    ck_assert_int_eq(stats.pinned_bytes_now, 0);
    ck_assert_int_eq(stats.identity_failures + stats.checksum_failures, 0);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

int main(void)
{
    silence_log();
    return CHECK_RUN(
        "sibling", .seconds = 60, .at_once = true,
        .tests = {the_blocks_before_prompts_part, the_engine_holds_some_of_them,
                  the_best_of_several, another_salt_or_position_is_no_sibling, it_can_be_turned_off,
                  a_pinned_sibling_is_loaded_though_the_chunk_has_come,
                  what_is_pinned_is_loaded_in_bypass,
                  what_cannot_be_pinned_is_not_promised_as_memory, memory_only,
                  evicted_between_lookup_and_load, a_header_that_lies,
                  FX_EMBEDDED(a_header_that_changes), a_cell_that_is_not_right,
                  a_disk_that_fails_or_lies, a_disk_that_is_slow, the_reason_is_that_of_the_chunk,
                  what_is_sooner_computed_is_not_promised, many_at_once},
        .loops = {{a_prompt_that_ended_sooner, 0, 2},
                  {a_sibling_is_pinned, 0, 2},
                  {a_pin_lasts_as_long_as_was_asked_for, 0, 2}});
}
