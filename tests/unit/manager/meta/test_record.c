/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/meta/record.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/bytes.h"
#include "check_main.h"
#include "test_random.h"

#include <errno.h>
#include <string.h>

static struct tierce__arena arena;

static void teardown(void)
{
    tierce__arena_clear(&arena);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static uint8_t *compact(const struct tierce__record *record, size_t *bytes)
{
    *bytes = tierce__record_size(record);
    uint8_t *out = tierce__arena_alloc(&arena, *bytes);
    tierce__record_write(record, out);
    return out;
}

static struct tierce__record sample(void)
{
    static const struct tierce__spec_place first[] = {
        {.spec = 0, .file = 0x1234567890, .slot = 3, .bytes = 4096},
        {.spec = 65535, .file = UINT64_MAX, .slot = UINT32_MAX, .bytes = UINT64_MAX / 4}};
    static const struct tierce__spec_place second[] = {
        {.spec = 1, .bytes = 100, .uri = "hf3fs://store/a?size=100"}, {.spec = 2}};
    static const struct tierce__location locations[] = {
        {.id = "0az9bbbb", .storage = 7, .type = 4, .place_count = 2, .places = first},
        {.id = "zzzzzzzz", .storage = 65535, .type = 101, .place_count = 2, .places = second},
        {.id = "00000000"}};
    return (struct tierce__record){.used_us = 1700000000000001,
                                   .stored_us = -1,
                                   .uses = UINT32_MAX - 1,
                                   .children = 4,
                                   .has_parent = true,
                                   .parent = INT64_MIN,
                                   .key_text = "a\0b",
                                   .key_text_bytes = 3,
                                   .location_count = 3,
                                   .locations = locations};
}

START_TEST(comes_back_as_it_was)
{
    struct tierce__record in = sample(), out;
    size_t bytes;
    const uint8_t *form = compact(&in, &bytes);
    ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes), 0);
    ck_assert_int_eq(out.used_us, in.used_us);
    ck_assert_int_eq(out.stored_us, -1);
    ck_assert_uint_eq(out.uses, UINT32_MAX - 1);
    ck_assert_uint_eq(out.children, 4);
    ck_assert(out.has_parent);
    ck_assert_int_eq(out.parent, INT64_MIN);
    ck_assert_uint_eq(out.key_text_bytes, 3);
    ck_assert_mem_eq(out.key_text, "a\0b", 4);
    ck_assert_uint_eq(out.location_count, 3);
    ck_assert_mem_eq(out.locations[1].id, "zzzzzzzz", 8);
    ck_assert_uint_eq(out.locations[1].storage, 65535);
    ck_assert_uint_eq(out.locations[1].type, 101);
    ck_assert_uint_eq(out.locations[0].places[1].file, UINT64_MAX);
    ck_assert_uint_eq(out.locations[0].places[1].slot, UINT32_MAX);
    ck_assert_uint_eq(out.locations[0].places[1].spec, 65535);
    ck_assert_ptr_null(out.locations[0].places[0].uri);
    ck_assert_str_eq(out.locations[1].places[0].uri, "hf3fs://store/a?size=100");
    ck_assert_ptr_null(out.locations[1].places[1].uri);
    ck_assert_uint_eq(out.locations[2].place_count, 0);
    ck_assert_uint_eq(tierce__record_bytes(&out), 4096 + UINT64_MAX / 4 + 100);
    ck_assert_uint_eq(tierce__location_bytes(&out.locations[1]), 100);
}
END_TEST

START_TEST(a_child_comes_back)
{
    struct tierce__record in = sample(), out;
    size_t bytes, without = tierce__record_size(&in);
    in.has_child = true;
    in.child = INT64_MIN + 1;
    in.expires_us = 5;
    uint8_t *form = compact(&in, &bytes);
    ck_assert_uint_eq(bytes, without + 16);
    ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes), 0);
    ck_assert(out.has_child && out.child == INT64_MIN + 1 && out.expires_us == 5);
    ck_assert_mem_eq(out.key_text, "a\0b", 4);
    form[1] &= (uint8_t)~16; /* its bytes are the key's text then */
    ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes), TIERCE_E_FORMAT);
}
END_TEST

START_TEST(sums_come_back)
{
    struct tierce__record in = sample(), out;
    struct tierce__spec_place places[2] = {in.locations[0].places[0], in.locations[0].places[1]};
    struct tierce__location locations[3] = {in.locations[0], in.locations[1], in.locations[2]};
    size_t bytes, without = tierce__record_size(&in);
    memset(places[1].sum, 0xa5, sizeof(places[1].sum));
    locations[0].places = places;
    in.locations = locations;
    uint8_t *form = compact(&in, &bytes);
    ck_assert_uint_eq(bytes, without + 4 * 16);
    ck_assert_uint_eq(form[1] & 8, 8);
    ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes), 0);
    ck_assert(!tierce__place_has_sum(&out.locations[0].places[0]));
    ck_assert_mem_eq(out.locations[0].places[1].sum, places[1].sum, 16);
    ck_assert_str_eq(out.locations[1].places[0].uri, "hf3fs://store/a?size=100");
    ck_assert(!tierce__place_has_sum(&out.locations[1].places[1]));
    for (size_t cut = 0; cut < bytes; cut++) {
        uint8_t *copy = tierce__arena_alloc(&arena, cut + 1);
        memcpy(copy, form, cut);
        ck_assert_int_eq(tierce__record_read(&out, &arena, copy, cut), TIERCE_E_FORMAT);
    }
    form[1] &= (uint8_t)~8; /* a record has one form */
    ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes), TIERCE_E_FORMAT);
    form[1] |= 8;
    for (size_t i = 0; i < bytes; i++) {
        if (form[i] == 0xa5)
            form[i] = 0;
    }
    ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes), TIERCE_E_FORMAT);
}
END_TEST

START_TEST(an_empty_record_and_text)
{
    struct tierce__record out;
    size_t bytes;
    const uint8_t *form = compact(&(struct tierce__record){.key_text = ""}, &bytes);
    ck_assert_uint_eq(bytes, 29);
    ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes), 0);
    ck_assert_str_eq(out.key_text, "");
    form = compact(&(struct tierce__record){.used_us = 1}, &bytes);
    ck_assert_uint_eq(bytes, 28);
    ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes), 0);
    ck_assert_ptr_null(out.key_text);
    ck_assert_ptr_null(out.locations);
}
END_TEST

START_TEST(every_cut_is_refused)
{
    struct tierce__record in = sample(), out = {.uses = 99};
    size_t bytes;
    const uint8_t *form = compact(&in, &bytes);
    for (size_t cut = 0; cut < bytes; cut++) {
        /* On the heap of its own, so that a read beyond it is seen. */
        uint8_t *part = tierce__alloc(cut);
        memcpy(part, form, cut);
        ck_assert_int_eq(tierce__record_read(&out, &arena, part, cut), TIERCE_E_FORMAT);
        tierce__free(part);
    }
    uint8_t *more = tierce__arena_alloc(&arena, bytes + 1);
    memcpy(more, form, bytes);
    more[bytes] = 0;
    ck_assert_int_eq(tierce__record_read(&out, &arena, more, bytes + 1), TIERCE_E_FORMAT);
    ck_assert_uint_eq(out.uses, 99);
}
END_TEST

/* One byte of the form of `sample` changed. */
static int changed(size_t at, uint8_t to)
{
    struct tierce__record in = sample(), out;
    size_t bytes;
    uint8_t *form = compact(&in, &bytes);
    form[at] = to;
    return tierce__record_read(&out, &arena, form, bytes);
}

START_TEST(each_field_is_checked)
{
    enum { KEY_TEXT = 36, LOCATION = KEY_TEXT + 4 };
    ck_assert_int_eq(changed(0, 2), TIERCE_E_VERSION);
    ck_assert_int_eq(changed(0, 0), TIERCE_E_VERSION);
    ck_assert_int_eq(changed(1, 7), TIERCE_E_FORMAT);
    ck_assert_int_eq(changed(2, 4), TIERCE_E_FORMAT);
    ck_assert_int_eq(changed(2, 2), TIERCE_E_FORMAT);
    ck_assert_int_eq(changed(3, 255), TIERCE_E_FORMAT);
    ck_assert_int_eq(changed(KEY_TEXT, 127), TIERCE_E_FORMAT);
    ck_assert_int_eq(changed(LOCATION, 'A'), TIERCE_E_FORMAT);
    ck_assert_int_eq(changed(LOCATION, 0), TIERCE_E_FORMAT);
    ck_assert_int_eq(changed(LOCATION, 'b'), 0);
    ck_assert_int_eq(changed(LOCATION + 8, 0x87), TIERCE_E_FORMAT);
    ck_assert_int_eq(changed(LOCATION + 10, 3), TIERCE_E_FORMAT);
}
END_TEST

START_TEST(a_touch_in_place)
{
    struct tierce__record in = sample(), out;
    size_t bytes;
    uint8_t *form = compact(&in, &bytes);
    tierce__record_touch(form, bytes, &(struct tierce__record_use){in.used_us - 1, 1, 0});
    ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes), 0);
    ck_assert_int_eq(out.used_us, in.used_us);
    ck_assert_uint_eq(out.uses, UINT32_MAX);
    tierce__record_touch(form, bytes, &(struct tierce__record_use){in.used_us + 5, 1, 0});
    ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes), 0);
    ck_assert_int_eq(out.used_us, in.used_us + 5);
    ck_assert_uint_eq(out.uses, UINT32_MAX);
    uint8_t other[3] = {1, 0, 0};
    tierce__record_touch(other, sizeof(other), &(struct tierce__record_use){5, 1, 0});
}
END_TEST

/* The hint shares eight bytes with the time of the last use. */
START_TEST(a_hint_comes_back)
{
    struct tierce__record in = sample(), out;
    size_t bytes;
    uint8_t *form = compact(&in, &bytes), plain[256];
    memcpy(plain, form, bytes);
    for (unsigned kind = 1; kind < TIERCE__HINTS; kind++) {
        in.hint = tierce__hint_make((enum tierce__policy_hint)kind, 300);
        ck_assert_uint_eq(tierce__record_size(&in), bytes);
        tierce__record_write(&in, form);
        ck_assert_uint_eq(form[1], plain[1] | 64);
        ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes), 0);
        ck_assert_uint_eq(tierce__hint_kind(out.hint), kind);
        ck_assert_int_eq(out.used_us, in.used_us);
        ck_assert_int_eq(tierce__hint_ttl_s(out.hint), kind == TIERCE__HINT_TTL ? 304 : 0);
    }
    for (unsigned bad = 0; bad < 1 << TIERCE__HINT_BITS; bad++) {
        form[14] = (uint8_t)((form[14] & 15) | bad << 4);
        form[15] = (uint8_t)(bad >> 4);
        bool good =
            bad != 0 && bad % 8 < TIERCE__HINTS && (bad % 8 == TIERCE__HINT_TTL) == (bad > 7);
        ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes),
                         good ? 0 : TIERCE_E_FORMAT);
    }
    /* A time that leaves no room for it. */
    in.used_us = INT64_C(1) << 52;
    tierce__record_write(&in, form);
    ck_assert_uint_eq(form[1], plain[1]);
    ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes), 0);
    ck_assert(out.used_us == in.used_us && out.hint == 0);
}
END_TEST

/* The first code that is not below a time is at most a sixteenth above it. */
START_TEST(a_time_to_live_is_rounded_up)
{
    struct test_random random = test_random_start("a_time_to_live_is_rounded_up");
    for (unsigned i = 0; i < 20000; i++) {
        int64_t ttl_s =
            1 + (int64_t)(test_random_u64(&random) >> 30 >> test_random_below(&random, 34));
        uint16_t hint = tierce__hint_make(TIERCE__HINT_TTL, ttl_s);
        int64_t shown_s = tierce__hint_ttl_s(hint);
        ck_assert(tierce__hint_is_valid(hint));
        ck_assert_msg(shown_s >= ttl_s && shown_s - ttl_s <= ttl_s / 16, "%lld: %lld",
                      (long long)ttl_s, (long long)shown_s);
        ck_assert_uint_eq(tierce__hint_make(TIERCE__HINT_TTL, shown_s), hint);
    }
}
END_TEST

START_TEST(a_touch_replaces_the_hint)
{
    struct tierce__record in = sample(), out;
    const uint16_t closed = tierce__hint_make(TIERCE__HINT_CLOSED, 0);
    const uint16_t open = tierce__hint_make(TIERCE__HINT_OPEN, 0);
    static const struct {
        int64_t later_us;
        uint32_t uses;
        bool has_hint, is_closed; /* the touch's, and then the record's */
    } steps[] = {
        {1, 1, true, true},          /* set */
        {-5, 1, false, true},        /* an older use */
        {-1000000, 0, false, false}, /* a hint alone has no time: this one is none */
        {-1000000, 0, true, true},   {2, 1, false, false}, /* a later use without one */
        {3, 1, true, true},
    };
    size_t bytes;
    in.uses = 7;
    in.hint = open;
    uint8_t *form = compact(&in, &bytes);
    uint32_t uses = in.uses;
    int64_t used_us = in.used_us;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        struct tierce__record_use use = {in.used_us + steps[i].later_us, steps[i].uses,
                                         steps[i].has_hint ? closed : 0};
        tierce__record_touch(form, bytes, &use);
        uses += use.uses;
        used_us = use.uses > 0 && use.used_us > used_us ? use.used_us : used_us;
        ck_assert_int_eq(tierce__record_read(&out, &arena, form, bytes), 0);
        ck_assert_uint_eq(out.hint, steps[i].is_closed ? closed : 0);
        ck_assert_int_eq(out.used_us, used_us);
        ck_assert_uint_eq(out.uses, uses);
    }
    /* Without a hint its bytes are those of a record that never had one. */
    tierce__record_touch(form, bytes, &(struct tierce__record_use){used_us, 1, 0});
    in.hint = 0;
    in.used_us = used_us;
    in.uses = uses + 1;
    uint8_t plain[256];
    tierce__record_write(&in, plain);
    ck_assert_mem_eq(form, plain, bytes);
}
END_TEST

START_TEST(no_memory_is_told)
{
    struct tierce__record in = sample(), out = {.uses = 99};
    size_t bytes;
    const uint8_t *form = compact(&in, &bytes);
    struct tierce__arena empty = {0};
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__record_read(&out, &empty, form, bytes), -ENOMEM);
    tierce__alloc_fail_nth(0);
    ck_assert_uint_eq(out.uses, 99);
    tierce__arena_clear(&empty);
}
END_TEST

START_TEST(random_bytes_do_no_harm)
{
    struct test_random random = test_random_start("random_bytes_do_no_harm");
    struct tierce__record in = sample(), out;
    size_t bytes;
    const uint8_t *form = compact(&in, &bytes);
    for (unsigned i = 0; i < 20000 * test_scale(); i++) {
        uint8_t bad[256];
        memcpy(bad, form, bytes);
        for (unsigned n = test_random_below(&random, 4); n-- > 0;)
            bad[test_random_below(&random, (uint32_t)bytes)] = (uint8_t)test_random_u64(&random);
        struct tierce__arena scratch = {0};
        if (tierce__record_read(&out, &scratch, bad, bytes) == 0) {
            uint8_t again[256];
            ck_assert_uint_eq(tierce__record_size(&out), bytes);
            tierce__record_write(&out, again);
            ck_assert_mem_eq(again, bad, bytes);
        }
        tierce__arena_clear(&scratch);
    }
}
END_TEST

CHECK_MAIN("record", .teardown = teardown,
           .tests = {comes_back_as_it_was, a_child_comes_back, sums_come_back,
                     an_empty_record_and_text, every_cut_is_refused, each_field_is_checked,
                     a_touch_in_place, a_hint_comes_back, a_time_to_live_is_rounded_up,
                     a_touch_replaces_the_hint, no_memory_is_told, random_bytes_do_no_harm})
