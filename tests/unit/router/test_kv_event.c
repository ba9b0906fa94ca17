/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/mix.h"
#include "check_main.h"
#include "msgpack_write.h"
#include "router/contents.h"
#include "router/standard_hash.h"

/* Batches of KV events in all their forms, and what contents make of them. */

static struct tierce__line out;
static struct tierce__kv_batch batch;
static struct tierce__kv_event event;

static void teardown(void)
{
    tierce__line_clear(&out);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void begin(uint32_t events)
{
    out.bytes = 0;
    pack_array(&out, 3);
    pack_real(&out, 1.5);
    pack_array(&out, events);
}

static void open_batch(void)
{
    pack_nil(&out); /* no dp_rank */
    ck_assert(tierce__kv_batch_open(&batch, out.text, out.bytes));
    ck_assert(tierce__kv_batch_next(&batch, &event));
}

static void put(const char *name)
{
    pack_text(&out, name);
}

static void put_hashes(void)
{
    uint8_t digest[32] = {[24] = 1, [31] = 9};
    put("block_hashes");
    pack_array(&out, 2);
    pack_uint(&out, UINT64_MAX);
    pack_bytes(&out, digest, sizeof(digest));
}

static void expect_hashes(void)
{
    uint64_t hash = 0;
    ck_assert_uint_eq(event.hash_count, 2);
    ck_assert(tierce__kv_take_hash(&event.hashes, &hash));
    ck_assert_uint_eq(hash, UINT64_MAX);
    ck_assert(tierce__kv_take_hash(&event.hashes, &hash));
    ck_assert_uint_eq(hash, 0x0100000000000009);
}

START_TEST(maps_with_unknown_fields)
{
    begin(2);
    pack_map(&out, 9);
    put("type"), put("BlockStored");
    put_hashes();
    put("parent_block_hash"), pack_uint(&out, 7);
    put("token_ids"), pack_array(&out, 0);
    put("block_size"), pack_uint(&out, 16);
    put("lora_id"), pack_nil(&out);
    put("medium"), put("STORAGE");
    put("shard"), pack_array(&out, 4), pack_uint(&out, 1), pack_uint(&out, 2), pack_uint(&out, 0),
        pack_uint(&out, 1);
    put("later"), pack_map(&out, 1), put("a"), pack_array(&out, 1), pack_nil(&out);
    pack_map(&out, 1);
    put("type"), put("BlockMoved");
    open_batch();
    ck_assert_int_eq(event.type, TIERCE__KV_STORED);
    ck_assert_int_eq(event.medium, TIERCE__KV_DISK);
    ck_assert(event.has_parent && event.parent == 7 && event.block_size == 16);
    ck_assert(event.is_other_shard && !event.is_keyed && !event.is_partial);
    expect_hashes();
    ck_assert(tierce__kv_batch_next(&batch, &event));
    ck_assert_int_eq(event.type, TIERCE__KV_UNKNOWN);
    ck_assert(!tierce__kv_batch_next(&batch, &event));
}
END_TEST

START_TEST(arrays)
{
    begin(2);
    pack_array(&out, 9);
    put("BlockStored");
    pack_array(&out, 1), pack_uint(&out, 5);
    pack_nil(&out);
    pack_array(&out, 1), pack_uint(&out, 3);
    pack_uint(&out, 1), pack_nil(&out), put("CPU"), put("adapter");
    pack_array(&out, 2), pack_nil(&out), pack_array(&out, 1), put("adapter");
    pack_array(&out, 1);
    put("AllBlocksCleared");
    open_batch();
    ck_assert_int_eq(event.type, TIERCE__KV_STORED);
    ck_assert_int_eq(event.medium, TIERCE__KV_CPU);
    ck_assert(!event.has_parent && event.token_count == 1 && event.hash_count == 1);
    ck_assert(!event.is_keyed && event.lora.length == 7);
    ck_assert(tierce__kv_batch_next(&batch, &event));
    ck_assert_int_eq(event.type, TIERCE__KV_CLEARED);
    ck_assert(tierce__kv_batch_clears(out.text, out.bytes));
}
END_TEST

/* A field of each kind that is wrong: the event is invalid, the next one is read. */
START_TEST(invalid_fields)
{
    static const char *const names[] = {"block_hashes", "parent_block_hash", "token_ids",
                                        "block_size",   "group_idx",         "extra_keys",
                                        "shard"};
    begin(2);
    pack_map(&out, 3);
    put("type"), put("BlockStored");
    put_hashes();
    put(names[_i]), put("text");
    pack_map(&out, 3);
    put("type"), put("BlockRemoved");
    put("medium"), put("SHARED_STORAGE");
    put_hashes();
    open_batch();
    ck_assert_int_eq(event.type, TIERCE__KV_INVALID);
    ck_assert(tierce__kv_batch_next(&batch, &event));
    ck_assert_int_eq(event.type, TIERCE__KV_REMOVED);
    ck_assert_int_eq(event.medium, TIERCE__KV_ELSEWHERE);
    for (size_t cut = 0; cut < out.bytes; cut++)
        ck_assert(!tierce__kv_batch_open(&batch, out.text, cut));
}
END_TEST

START_TEST(keys_beside_tokens)
{
    begin(3);
    for (int i = 0; i < 3; i++) {
        pack_map(&out, i == 2 ? 4 : 3);
        put("type"), put("BlockStored");
        put_hashes();
        if (i == 0) {
            put("extra_keys"), pack_array(&out, 1), pack_array(&out, 1), put("salt");
        } else if (i == 1) {
            put("lora_id"), pack_uint(&out, 3);
        } else {
            put("group_idx"), pack_uint(&out, 1);
            put("kv_cache_spec_kind"), put("sliding_window");
        }
    }
    open_batch();
    ck_assert(event.is_keyed);
    ck_assert(tierce__kv_batch_next(&batch, &event) && event.is_keyed);
    ck_assert(tierce__kv_batch_next(&batch, &event) && !event.is_keyed && event.is_partial);
    ck_assert_uint_eq(event.group, 1);
}
END_TEST

static uint32_t given;

static void count_given(void *arg, const struct tierce__directory_change *changes, size_t count)
{
    (void)arg, (void)changes;
    given += (uint32_t)count;
}

static void store_as(struct tierce__contents *c, uint64_t hash, uint64_t space, bool admitted)
{
    begin(1);
    pack_map(&out, admitted ? 5 : 3);
    put("type"), put(admitted ? "BlockStored" : "BlockRemoved");
    put("block_hashes"), pack_array(&out, 1), pack_uint(&out, hash);
    put("namespace"), pack_uint(&out, space);
    if (admitted) {
        put("token_ids"), pack_array(&out, 2), pack_uint(&out, 1), pack_uint(&out, 2);
        put("block_size"), pack_uint(&out, 2);
    }
    pack_nil(&out);
    ck_assert(tierce__contents_apply(c, out.text, out.bytes));
}

/* The same hash in two namespaces, and two hashes of the same tokens: the directory is told when
 * the last one leaves. */
START_TEST(twins)
{
    static struct tierce__contents c;
    c = (struct tierce__contents){.model = "m", .blocks_max = 2, .give = count_given};
    given = 0;
    store_as(&c, 1, 0, true);
    ck_assert_uint_eq(given, 4);
    store_as(&c, 1, 0, true);
    ck_assert_uint_eq(given, 4); /* known */
    store_as(&c, 1, 8, true);
    ck_assert_uint_eq(given, 8);
    store_as(&c, 1, 0, false);
    ck_assert_uint_eq(given, 8); /* its twin stays */
    store_as(&c, 2, 0, true);
    store_as(&c, 3, 0, true);
    ck_assert_uint_eq(c.counts.left_out, 1); /* blocks_max */
    ck_assert_uint_eq(given, 12);
    store_as(&c, 1, 8, false);
    ck_assert_uint_eq(given, 14); /* the hash; the tokens are those of 2 as well */
    store_as(&c, 2, 0, false);
    ck_assert_uint_eq(given, 18);
    ck_assert_uint_eq(c.count, 0);
    tierce__contents_fini(&c);
}
END_TEST

/* A block of `count` tokens behind another one (0: the first), in a batch that is open. */
static void put_child(uint64_t hash, uint64_t parent, uint32_t count)
{
    pack_map(&out, parent != 0 ? 5 : 4);
    put("type"), put("BlockStored");
    put("block_hashes"), pack_array(&out, 1), pack_uint(&out, hash);
    if (parent != 0)
        put("parent_block_hash"), pack_uint(&out, parent);
    put("token_ids"), pack_array(&out, count);
    for (uint32_t i = 0; i < count; i++)
        pack_uint(&out, (uint32_t)hash);
    put("block_size"), pack_uint(&out, count);
}

static void put_removal(uint64_t hash)
{
    pack_map(&out, 2);
    put("type"), put("BlockRemoved");
    put("block_hashes"), pack_array(&out, 1), pack_uint(&out, hash);
}

static void apply(struct tierce__contents *c)
{
    pack_nil(&out);
    ck_assert(tierce__contents_apply(c, out.text, out.bytes));
}

static void store_child(struct tierce__contents *c, uint64_t hash, uint64_t parent, uint32_t count)
{
    begin(1);
    put_child(hash, parent, count);
    apply(c);
}

/* A system prompt whose children came before it, as in a snapshot: they have one cell of the hash
 * table, so that no step walks over all of them. */
START_TEST(many_orphans_of_one_parent)
{
    enum { CHILDREN = 100000, STEP = 1000, PARENT = 1 };
    static struct tierce__contents c;
    c = (struct tierce__contents){.model = "m", .blocks_max = CHILDREN + 1};
    for (uint32_t child = 0; child < CHILDREN;) {
        begin(STEP);
        for (uint32_t i = 0; i < STEP; i++, child++)
            put_child(PARENT + 1 + child, PARENT, 2);
        apply(&c);
        ck_assert_uint_eq(c.by_parent.count, 1);
    }
    begin(STEP);
    for (uint32_t i = 0; i < STEP; i++) /* from the middle, the beginning and the end */
        put_removal(PARENT + 1 + (i % 3 == 0 ? CHILDREN / 2 + i : i % 3 == 1 ? i : CHILDREN - i));
    apply(&c);
    ck_assert_uint_eq(c.count, CHILDREN - STEP);
    ck_assert_uint_eq(c.by_standard.count, 0);
    store_child(&c, PARENT, 0, 2);
    ck_assert_uint_eq(c.by_standard.count, CHILDREN - STEP + 1);
    ck_assert_uint_eq(c.by_parent.count, 0);
    ck_assert_uint_eq(c.counts.left_out, 0);
    tierce__contents_fini(&c);
}
END_TEST

/* The last block of a prompt is shorter than its parent, so that it is never known by tokens: it
 * does not wait for them, whether it came before its parent or after it. */
START_TEST(short_last_blocks_are_no_orphans)
{
    static struct tierce__contents c;
    c = (struct tierce__contents){.model = "m", .blocks_max = 10};
    store_child(&c, 3, 2, 1);
    store_child(&c, 4, 2, 2);
    store_child(&c, 2, 1, 2);
    ck_assert_uint_eq(c.by_parent.count, 2);
    store_child(&c, 1, 0, 2);
    ck_assert_uint_eq(c.by_parent.count, 0);
    store_child(&c, 5, 2, 1);
    store_child(&c, 3, 2, 1);
    ck_assert_uint_eq(c.by_parent.count, 0);
    ck_assert_uint_eq(c.by_standard.count, 3); /* 1, 2 and 4 */
    ck_assert_uint_eq(c.count, 5);
    ck_assert_ptr_nonnull(tierce__contents_find(&c, 3, 0));
    ck_assert_uint_eq(tierce__contents_find(&c, 3, 0)->standard, 0);
    tierce__contents_fini(&c);
}
END_TEST

/* Of the published example: XXH3-64 with seed 1337, of numbers as they lie in memory. */
START_TEST(standard_hashes)
{
    uint32_t tokens[4] = {1, 2, 3, 4};
    uint64_t first = tierce__standard_hash(NULL, tokens, 4);
    uint64_t second = tierce__standard_hash(&first, tokens, 4);
    ck_assert_uint_ne(first, second);
    ck_assert_uint_eq(first, 14643705804678351452ULL);
    ck_assert_uint_ne(tierce__standard_scope("m", (struct tierce__text){"", 0}, 4),
                      tierce__standard_scope("m", (struct tierce__text){"a", 1}, 4));
    ck_assert_uint_ne(tierce__standard_scope("m", (struct tierce__text){"", 0}, 4),
                      tierce__standard_scope("m", (struct tierce__text){"", 0}, 8));
}
END_TEST

/* Every first byte: an item is skipped whole, by the way for numbers too, and never beyond the end.
 */
START_TEST(items_of_every_kind_are_skipped)
{
    for (unsigned first = 0; first < 256; first++) {
        uint8_t bytes[600] = {(uint8_t)first}; /* lengths of 0, numbers of 0 */
        struct tierce__msgpack whole = {bytes, bytes + sizeof(bytes)}, item_by_item = whole;
        struct tierce__msgpack_item item = {0};
        enum tierce__msgpack_result result = tierce__msgpack_next(&item_by_item, &item);
        uint64_t within = item.type == TIERCE__MSGPACK_ARRAY ? item.count
                          : item.type == TIERCE__MSGPACK_MAP ? 2ULL * item.count
                                                             : 0;
        item_by_item.at += result == TIERCE__MSGPACK_OK ? within : 0; /* each one byte: 0 */
        ck_assert_int_eq(tierce__msgpack_skip(&whole), result);
        ck_assert_ptr_eq(whole.at, item_by_item.at);
        for (size_t n = 0; result == TIERCE__MSGPACK_OK && n < (size_t)(whole.at - bytes); n++) {
            struct tierce__msgpack cut = {bytes, bytes + n};
            ck_assert_int_eq(tierce__msgpack_skip(&cut), TIERCE__MSGPACK_SHORT);
            ck_assert_ptr_eq(cut.at, bytes);
        }
    }
}
END_TEST

START_TEST(numbers_of_every_width)
{
    static const uint8_t bytes[] = {5, 0xcc, 200, 0xcd, 1, 2, 0xce, 1, 2,    3, 4,    0xcf,
                                    0, 0,    0,   0,    1, 2, 3,    4, 0xd0, 7, 0xd1, 1,
                                    2, 0xcf, 0,   0,    0, 1, 0,    0, 0,    0};
    static const uint32_t expected[] = {5, 200, 0x102, 0x1020304, 0x1020304, 7, 0x102};
    uint32_t got[8];
    struct tierce__msgpack m = {bytes, bytes + sizeof(bytes)};
    ck_assert_uint_eq(tierce__msgpack_u32s(&m, got, 8), 7);
    ck_assert_int_eq(memcmp(got, expected, sizeof(expected)), 0);
    ck_assert_ptr_eq(m.at, bytes + sizeof(bytes) - 9); /* the next one is too large */
    for (size_t n = 0; n < 11; n++) {
        struct tierce__msgpack cut = {bytes, bytes + n};
        ck_assert_uint_eq(tierce__msgpack_u32s(&cut, NULL, 8),
                          (n > 0) + (n > 2) + (n > 5) + (n > 10));
    }
}
END_TEST

/* Runs of numbers of any widths, cut anywhere: as many as there are whole ones, with the values
 * that are read one by one, and skipped up to the same place. */
START_TEST(runs_of_numbers)
{
    static const uint8_t firsts[] = {5, 0xcc, 0xcd, 0xce, 0xce, 0xce, 0xcf, 0xd2, 0xd3};
    static const uint8_t widths[] = {0, 1, 2, 4, 4, 4, 8, 4, 8};
    for (uint64_t round = 0; round < 200; round++) {
        uint8_t bytes[40 * 9 + 3] = {0xdc, 0, 40};
        size_t at = 3, ends[40];
        for (uint64_t i = 0; i < 40; i++) {
            uint64_t random = tierce__mix(round * 40 + i);
            /* Few widths in most rounds, as in real ones. */
            size_t form = (random >> 8) % (round % 9 + 1);
            bytes[at++] = firsts[form];
            for (unsigned j = 0; j < widths[form]; j++)
                bytes[at++] =
                    j + 4 < widths[form] ? 0 : (uint8_t)(random >> (16 + 8 * (j % 4))) & 0x7f;
            ends[i] = at;
        }
        struct tierce__msgpack all = {bytes, bytes + at};
        ck_assert_int_eq(tierce__msgpack_skip(&all), TIERCE__MSGPACK_OK);
        ck_assert_ptr_eq(all.at, all.end);
        for (size_t length = 3; length <= at; length++) {
            uint32_t got[40], whole = 0;
            struct tierce__msgpack m = {bytes + 3, bytes + length}, one = m, cut = {bytes, m.end};
            while (whole < 40 && ends[whole] <= length)
                whole++;
            ck_assert_uint_eq(tierce__msgpack_u32s(&m, got, 40), whole);
            ck_assert_ptr_eq(m.at, whole > 0 ? bytes + ends[whole - 1] : bytes + 3);
            for (uint32_t i = 0; i < whole; i++) {
                struct tierce__msgpack_item item;
                ck_assert_int_eq(tierce__msgpack_next(&one, &item), TIERCE__MSGPACK_OK);
                ck_assert_uint_eq(item.number, got[i]);
            }
            ck_assert_int_eq(tierce__msgpack_skip(&cut),
                             whole == 40 ? TIERCE__MSGPACK_OK : TIERCE__MSGPACK_SHORT);
        }
    }
}
END_TEST

CHECK_MAIN("kv event", .teardown = teardown,
           .tests = {items_of_every_kind_are_skipped, numbers_of_every_width, runs_of_numbers,
                     maps_with_unknown_fields, arrays, keys_beside_tokens, twins, standard_hashes,
                     many_orphans_of_one_parent, short_last_blocks_are_no_orphans},
           .loops = {{invalid_fields, 0, 7}})
