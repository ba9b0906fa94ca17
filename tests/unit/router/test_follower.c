/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "log_record.h"
#include "msgpack_write.h"
#include "router/follower.h"
#include "router/standard_hash.h"

/* A follower's recoveries, step by step: what a property test meets by chance only. */

#define MODEL  "m"
#define SECOND 1000000000ULL

static struct tierce__directory *directory;
static struct tierce__follower *follower;
static struct tierce__follower_about about;
static struct tierce__line out;
static uint64_t now_ns, from;

static void start(bool has_replay, bool has_snapshot, uint64_t blocks_max, uint64_t bytes_max)
{
    now_ns = SECOND;
    struct tierce__directory_opts opts = {
        .size = sizeof(opts), .workers_max = 4, .bytes_max = bytes_max};
    ck_assert_int_eq(tierce__directory_create(&directory, &opts), 0);
    struct tierce__follower_opts of_follower = {.size = sizeof(of_follower),
                                                .directory = directory,
                                                .group = "",
                                                .name = "0",
                                                .model = MODEL,
                                                .endpoint = "tcp://127.0.0.1:5557",
                                                .has_replay = has_replay,
                                                .has_snapshot = has_snapshot,
                                                .blocks_max = blocks_max,
                                                .gone_ns = 100 * SECOND,
                                                .retry_ns = SECOND};
    ck_assert_int_eq(tierce__follower_create(&follower, &of_follower, now_ns), 0);
    tierce__follower_connected(follower, true, now_ns);
}

static void teardown(void)
{
    tierce__follower_destroy(follower);
    tierce__directory_destroy(directory);
    tierce__line_clear(&out);
    follower = NULL;
    directory = NULL;
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* ---- batches --------------------------------------------------------------------------------- */

static void begin(uint32_t events)
{
    out.bytes = 0;
    pack_array(&out, 2);
    pack_real(&out, 1.5);
    pack_array(&out, events);
}

/* `listed` tokens are in the event. */
static void put_stored_with(uint64_t first, uint32_t count, uint32_t tokens, uint32_t listed)
{
    pack_map(&out, 4);
    pack_text(&out, "type");
    pack_text(&out, "BlockStored");
    pack_text(&out, "block_hashes");
    pack_array(&out, count);
    for (uint32_t i = 0; i < count; i++)
        pack_uint(&out, first + i);
    pack_text(&out, "token_ids");
    pack_array(&out, listed);
    for (uint32_t i = 0; i < listed; i++)
        pack_uint(&out, i);
    pack_text(&out, "block_size");
    pack_uint(&out, tokens);
}

static void put_stored(uint64_t first, uint32_t count, uint32_t tokens)
{
    put_stored_with(first, count, tokens, 0);
}

static void store(uint64_t hash)
{
    begin(1);
    put_stored(hash, 1, 16);
}

static void removed(uint64_t hash)
{
    begin(1);
    pack_array(&out, 2);
    pack_text(&out, "BlockRemoved");
    pack_array(&out, 1);
    pack_uint(&out, hash);
}

static void live(uint64_t number)
{
    tierce__follower_batch(follower, number, out.text, out.bytes, now_ns);
}

static void replayed(uint64_t number)
{
    tierce__follower_replayed(follower, number, out.text, out.bytes, now_ns);
}

static enum tierce__follower_need needs(void)
{
    return tierce__follower_needs(follower, &from, now_ns);
}

/* The answer to a request for a snapshot: blocks from 1000 on. `later`: the sequence in its last
 * map, where it means nothing; 0: none. */
static void answer_snapshot_with(uint64_t covered, uint32_t blocks, uint64_t later)
{
    out.bytes = 0;
    pack_map(&out, 2);
    pack_text(&out, "version");
    pack_uint(&out, 1);
    pack_text(&out, "sequence");
    pack_uint(&out, covered);
    pack_array(&out, 2);
    pack_real(&out, 1);
    pack_array(&out, 1);
    put_stored(1000, blocks, 16);
    pack_map(&out, later > 0 ? 2 : 1);
    pack_text(&out, "end");
    pack_uint(&out, blocks);
    if (later > 0) {
        pack_text(&out, "sequence");
        pack_uint(&out, later);
    }
    for (size_t at = 0; at < out.bytes; at += 1000)
        ck_assert(tierce__follower_snapshot(follower, out.text + at,
                                            out.bytes - at < 1000 ? out.bytes - at : 1000));
    tierce__follower_snapshot_end(follower, true, now_ns);
}

static void answer_snapshot(uint64_t covered, uint32_t blocks)
{
    answer_snapshot_with(covered, blocks, 0);
}

static uint32_t work(void)
{
    uint32_t parts = 0;
    for (; needs() == TIERCE__FOLLOWER_WORK; parts++)
        tierce__follower_work(follower, now_ns);
    return parts;
}

static bool is_shown(uint64_t hash)
{
    struct tierce__directory_key key = {tierce__engine_scope(MODEL), hash};
    struct tierce__directory_found found;
    ck_assert_int_eq(
        tierce__directory_find(directory, &key, 1,
                               &(struct tierce__directory_asker){.group = "", .host = ""}, &found),
        0);
    return found.prefix_count == 1;
}

static bool is_exact(void)
{
    tierce__follower_about(follower, &about);
    return about.is_exact;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* The publisher is replaced while the follower asks the one before: the answer, which is of the old
 * one, says nothing about the new one. */
START_TEST(a_connection_during_a_step_is_verified)
{
    start(true, false, 100, 0);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_REPLAY);
    store(1);
    replayed(0);
    tierce__follower_replay_end(follower, true, now_ns);
    ck_assert(is_exact() && is_shown(1));
    tierce__follower_connected(follower, false, now_ns);
    tierce__follower_connected(follower, true, now_ns);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_REPLAY);
    ck_assert_uint_eq(from, 0);
    replayed(0); /* of the old one, which ends then */
    tierce__follower_connected(follower, false, now_ns);
    tierce__follower_connected(follower, true, now_ns);
    tierce__follower_replay_end(follower, true, now_ns);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_REPLAY); /* VERIFY again */
    ck_assert_uint_eq(from, 0);
    store(2);
    replayed(0);
    tierce__follower_replay_end(follower, true, now_ns);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_REPLAY); /* another life: START */
    replayed(0);
    tierce__follower_replay_end(follower, true, now_ns);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_NOTHING);
    ck_assert(is_exact() && !is_shown(1) && is_shown(2));
}
END_TEST

/* The step was the first one, and has found contents. They are of the publisher before if the new
 * one does not have them: that it does not answer is no proof. */
START_TEST(a_connection_during_the_first_step_is_verified)
{
    start(true, false, 100, 0);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_REPLAY);
    tierce__follower_connected(follower, false, now_ns);
    tierce__follower_connected(follower, true, now_ns);
    store(1);
    replayed(0);
    store(2);
    replayed(1);
    tierce__follower_replay_end(follower, true, now_ns);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_REPLAY);
    ck_assert_uint_eq(from, 1); /* VERIFY */
    tierce__follower_replay_end(follower, false, now_ns);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_REPLAY);
    ck_assert_uint_eq(from, 0); /* START */
    tierce__follower_replay_end(follower, true, now_ns);
    ck_assert(is_exact() && !is_shown(1) && !is_shown(2));
}
END_TEST

/* The same for a snapshot, before its end and while its blocks go to the directory. */
START_TEST(a_connection_during_a_snapshot_is_verified)
{
    start(false, true, 100, 0);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
    for (int during_publish = 0; during_publish < 2; during_publish++) {
        if (during_publish)
            answer_snapshot(7, 5);
        ck_assert_int_eq(needs(), during_publish ? TIERCE__FOLLOWER_WORK : TIERCE__FOLLOWER_BUSY);
        tierce__follower_connected(follower, false, now_ns);
        tierce__follower_connected(follower, true, now_ns);
        if (!during_publish)
            answer_snapshot(7, 5);
        ck_assert_uint_eq(work(), (unsigned)during_publish); /* and a snapshot is requested */
        ck_assert_int_eq(needs(), TIERCE__FOLLOWER_BUSY);
    }
    answer_snapshot(9, 2);
    ck_assert_uint_eq(work(), 1);
    ck_assert(is_exact() && is_shown(1001) && !is_shown(1002));
    ck_assert_uint_eq(about.next, 10);
}
END_TEST

/* The contents go to the directory in parts, and what others ask waits for none of them. */
START_TEST(contents_are_published_in_parts)
{
    start(false, true, 100000, 0);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
    answer_snapshot(3, 20000);
    ck_assert(!is_exact());
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_WORK);
    tierce__follower_work(follower, now_ns);
    ck_assert(!is_exact() && is_shown(1000) && !is_shown(1000 + 19999));
    ck_assert_uint_ge(work(), 4);
    ck_assert(is_exact() && is_shown(1000 + 19999));
    ck_assert_uint_eq(about.blocks, 20000);
    store(5);
    live(4);
    ck_assert(is_exact() && is_shown(5));
}
END_TEST

static void expect_snapshot_after(uint64_t pause_ns)
{
    now_ns += pause_ns - 1;
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_NOTHING);
    now_ns++;
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
}

/* An invalid batch makes a publisher inexact. Its snapshot is requested without a gap, after a
 * pause that grows while it stays so; meanwhile its blocks are shown. */
START_TEST(an_invalid_batch_is_repaired)
{
    start(true, true, 100, 0);
    store(1);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
    answer_snapshot(0, 1);
    ck_assert_uint_eq(work(), 1);
    tierce__follower_replay_end(follower, true, now_ns);
    ck_assert(is_exact());
    uint64_t pause_ns = SECOND;
    for (uint64_t number = 1; number < 9; number++) {
        out.bytes = 0;
        pack_nil(&out);
        live(number);
        ck_assert(!is_exact() && is_shown(1000));
        ck_assert_uint_eq(about.refused, number);
        expect_snapshot_after(pause_ns);
        if (number % 2 == 1) { /* it fails: the blocks stay */
            tierce__follower_snapshot_end(follower, false, now_ns);
            ck_assert(!is_exact() && is_shown(1000));
            pause_ns = pause_ns < 32 * SECOND ? 2 * pause_ns : pause_ns;
            expect_snapshot_after(pause_ns);
        }
        answer_snapshot(number, 1);
        ck_assert_uint_eq(work(), 1);
        tierce__follower_replay_end(follower, true, now_ns);
        ck_assert(is_exact());
        pause_ns = pause_ns < 32 * SECOND ? 2 * pause_ns : pause_ns;
    }
    now_ns += 32 * SECOND; /* exact for so long: the pause is short again */
    begin(1);
    pack_nil(&out);
    live(9);
    ck_assert(!is_exact());
    expect_snapshot_after(SECOND);
}
END_TEST

/* Blocks for which limit.blocks has no room: the snapshot brings them when there is room. */
START_TEST(blocks_left_out_are_repaired)
{
    start(false, true, 3, 0);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
    answer_snapshot(0, 3);
    ck_assert_uint_eq(work(), 1);
    store(1);
    live(1);
    ck_assert(!is_exact() && !is_shown(1) && is_shown(1000));
    ck_assert_uint_eq(about.counts.left_out, 1);
    expect_snapshot_after(SECOND);
    answer_snapshot(1, 4); /* as many as before: what is shown stays */
    ck_assert(!is_exact() && is_shown(1000));
    removed(1000);
    live(2);
    expect_snapshot_after(2 * SECOND);
    answer_snapshot(2, 2);
    ck_assert_uint_eq(work(), 1);
    ck_assert(is_exact() && is_shown(1001));
}
END_TEST

/* A table without memory for all blocks gets them once more later. */
START_TEST(blocks_without_memory_are_published_again)
{
    struct tierce__directory_stats stats;
    start(false, true, 1000000, 4 << 20);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
    answer_snapshot(0, 400000);
    work();
    ck_assert(!is_exact());
    tierce__directory_stats(directory, &stats);
    ck_assert_uint_gt(stats.left_out, 0);
    begin(1); /* others are removed meanwhile */
    pack_array(&out, 2);
    pack_text(&out, "BlockRemoved");
    pack_array(&out, 399990);
    for (uint32_t i = 0; i < 399990; i++)
        pack_uint(&out, 1010 + i);
    live(1);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_NOTHING);
    now_ns += 32 * SECOND;
    while (tierce__directory_clean(directory, 1 << 20))
        ;
    ck_assert_uint_ge(work(), 1);
    ck_assert(is_exact() && is_shown(1000) && is_shown(1009));
}
END_TEST

/* The last block of a prompt is shorter than the others. Lengths are of whole blocks, so it does
 * not count; and it may come before the first whole one. */
START_TEST(shorter_blocks_do_not_count)
{
    start(false, false, 100, 0);
    begin(2);
    put_stored(1, 1, 5);
    put_stored(2, 1, 0); /* of unknown length */
    live(0);
    ck_assert(is_shown(1) && is_shown(2));
    begin(2);
    put_stored(3, 2, 16);
    put_stored(5, 1, 7);
    live(1);
    ck_assert(!is_shown(1) && is_shown(2) && is_shown(3) && is_shown(4) && !is_shown(5));
    removed(5);
    live(2);
    removed(3);
    live(3);
    ck_assert(!is_shown(3) && is_exact());
    ck_assert_uint_eq(about.blocks, 3);
    begin(2); /* a new life with smaller blocks */
    pack_map(&out, 1);
    pack_text(&out, "type");
    pack_text(&out, "AllBlocksCleared");
    put_stored(6, 1, 8);
    live(4);
    ck_assert(is_exact() && is_shown(6) && !is_shown(4));
}
END_TEST

/* A publisher whose blocks have no tokens gives no hits to a router that asks by tokens: one line
 * says so, and one only. */
START_TEST(blocks_without_tokens_are_logged_once)
{
    record_log(TIERCE_LOG_WARN);
    start(false, true, 100, 0);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
    ck_assert_uint_eq(recorded_with("kv_events_without_tokens", ""), 0);
    answer_snapshot(0, 2);
    work();
    ck_assert_uint_eq(recorded_with("kv_events_without_tokens", "kv_events.tokens"), 1);
    store(1);
    live(1);
    ck_assert(is_shown(1));
    ck_assert_uint_eq(recorded_with("kv_events_without_tokens", ""), 1);
    teardown();

    record_log(TIERCE_LOG_WARN);
    start(false, false, 100, 0);
    begin(1); /* the same from the stream alone */
    put_stored(1, 1, 16);
    live(0);
    ck_assert_uint_eq(recorded_with("kv_events_without_tokens", "endpoint=tcp://127.0.0.1:5557"),
                      1);
    teardown();

    record_log(TIERCE_LOG_WARN);
    start(false, false, 100, 0);
    begin(1);
    put_stored_with(1, 1, 2, 2);
    live(0);
    ck_assert(is_shown(1));
    ck_assert_uint_eq(recorded_with("kv_events_without_tokens", ""), 0);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
}
END_TEST

/* Invalid events before AllBlocksCleared, in the same batch too, leave the publisher exact. */
START_TEST(cleared_blocks_are_exact)
{
    start(false, false, 2, 0);
    begin(3);
    put_stored(1, 5, 16);
    pack_map(&out, 1);
    pack_text(&out, "type");
    pack_text(&out, "AllBlocksCleared");
    put_stored(9, 1, 16);
    live(0);
    ck_assert(is_exact() && !is_shown(1) && is_shown(9));
    begin(2);
    pack_map(&out, 1);
    pack_text(&out, "type");
    pack_text(&out, "AllBlocksCleared");
    pack_nil(&out);
    live(1);
    ck_assert(!is_exact() && !is_shown(9));
}
END_TEST

/* The number that a snapshot covers stands in its first map; batches after it are not skipped. */
START_TEST(only_the_first_map_of_a_snapshot_has_its_sequence)
{
    start(false, true, 100, 0);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
    answer_snapshot_with(4, 2, 7);
    ck_assert_uint_eq(work(), 1);
    ck_assert(is_exact());
    ck_assert_uint_eq(about.next, 5);
    store(5);
    live(5);
    ck_assert(is_exact() && is_shown(5));
}
END_TEST

/* After a snapshot, and after all blocks were cleared, the memory of the blocks before is free. */
START_TEST(replaced_contents_are_freed)
{
    start(false, true, 100000, 0);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
    answer_snapshot(0, 5000);
    ck_assert_uint_ge(work(), 1);
    uint64_t once = tierce__alloc_live();
    for (uint64_t number = 1; number < 4; number++) {
        out.bytes = 0;
        pack_nil(&out);
        live(number); /* invalid: a snapshot is requested */
        now_ns += 32 * SECOND;
        ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
        answer_snapshot(number, number == 2 ? 4000 : 5000);
        ck_assert_uint_ge(work(), 1);
        ck_assert(is_exact());
        ck_assert_uint_eq(tierce__alloc_live(), once);
    }
    begin(1);
    pack_map(&out, 1);
    pack_text(&out, "type");
    pack_text(&out, "AllBlocksCleared");
    live(4);
    ck_assert(is_exact());
    ck_assert_uint_eq(tierce__alloc_live(), once - 2); /* the blocks and their table */
}
END_TEST

/* A snapshot that fails leaves no memory behind. */
START_TEST(a_failed_snapshot_is_freed)
{
    start(false, true, 100000, 0);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
    answer_snapshot(0, 5000);
    ck_assert_uint_ge(work(), 1);
    uint64_t before = tierce__alloc_live();
    out.bytes = 0;
    pack_nil(&out);
    live(1);
    now_ns += SECOND;
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
    out.bytes = 0;
    pack_map(&out, 2);
    pack_text(&out, "version");
    pack_uint(&out, 1);
    pack_text(&out, "sequence");
    pack_uint(&out, 9);
    pack_array(&out, 2);
    pack_real(&out, 1);
    pack_array(&out, 1);
    put_stored(1000, 5000, 16);
    ck_assert(tierce__follower_snapshot(follower, out.text, out.bytes));
    ck_assert_uint_gt(tierce__alloc_live(), before);
    tierce__follower_snapshot_end(follower, false, now_ns);
    ck_assert(is_shown(1000 + 4999));
    ck_assert_uint_eq(tierce__alloc_live(), before);
}
END_TEST

/* As many blocks as there is room for, and the others from there on. */
START_TEST(blocks_are_read_in_pages)
{
    struct tierce__contents_block blocks[3] = {0};
    uint32_t at = 0;
    start(false, true, 100, 0);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
    answer_snapshot(3, 3);
    (void)work();
    ck_assert_uint_eq(tierce__follower_blocks(follower, &at, blocks, 2), 2);
    ck_assert_uint_eq(blocks[2].media, 0);
    ck_assert_uint_eq(tierce__follower_blocks(follower, &at, blocks + 2, 1), 1);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_uint_eq(blocks[i].hash, 1000 + i);
    ck_assert_uint_eq(tierce__follower_blocks(follower, &at, blocks, 2), 0);
}
END_TEST

/* A part that found no memory would leave a hole: the others are not taken. */
START_TEST(a_snapshot_without_memory_is_invalid)
{
    start(false, true, 100, 0);
    ck_assert_int_eq(needs(), TIERCE__FOLLOWER_SNAPSHOT);
    tierce__alloc_fail_nth(1);
    ck_assert(!tierce__follower_snapshot(follower, "\x80", 1));
    tierce__alloc_fail_nth(0);
    tierce__follower_snapshot_end(follower, false, now_ns);
    ck_assert(!is_exact());
    expect_snapshot_after(SECOND);
    answer_snapshot(3, 1);
    ck_assert_uint_eq(work(), 1);
    ck_assert(is_exact() && is_shown(1000));
}
END_TEST

CHECK_MAIN("follower", .seconds = 60, .teardown = teardown,
           .tests = {a_connection_during_a_step_is_verified,
                     a_connection_during_the_first_step_is_verified,
                     a_connection_during_a_snapshot_is_verified, contents_are_published_in_parts,
                     an_invalid_batch_is_repaired, blocks_left_out_are_repaired,
                     blocks_without_memory_are_published_again, shorter_blocks_do_not_count,
                     blocks_without_tokens_are_logged_once, cleared_blocks_are_exact,
                     only_the_first_map_of_a_snapshot_has_its_sequence, replaced_contents_are_freed,
                     a_failed_snapshot_is_freed, blocks_are_read_in_pages,
                     a_snapshot_without_memory_is_invalid})
