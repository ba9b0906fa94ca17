/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "manager/locate/locator_private.h"
#include "manager_harness.h"

#include <errno.h>

static const int64_t chain[] = {11, 22, 33, 44, 55, 66, 77, 88};

START_TEST(what_was_written_is_found)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, 4);
    ck_assert_uint_eq(strlen(started.session), TIERCE__SESSION_ID_BYTES);
    ck_assert(!started.mask.is_values);
    ck_assert_int_eq(started.mask.offset, 0);
    ck_assert_uint_eq(started.count, 4);
    ck_assert_uint_eq(started.locations[0].spec_count, 2);
    ck_assert_str_eq(started.locations[0].specs[0].name, "a");
    ck_assert_uint_eq(harness_prefix(&h, chain, 4), 0); /* not before it is finished */
    harness_finish(&h, &started);
    struct tierce__got got = harness_get(&h, TIERCE__QUERY_PREFIX, chain, 8, 0);
    ck_assert_uint_eq(got.count, 4);
    for (size_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(got.found[i].type, TIERCE__STORAGE_NFS);
        ck_assert_str_eq(got.found[i].specs[1].uri, started.locations[i].specs[1].uri);
    }
    harness_close(&h);
}
END_TEST

START_TEST(every_place_is_another_one)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){.keys_per_file = 3});
    struct tierce__started started = harness_start(&h, chain, 8);
    for (size_t i = 0; i < 16; i++) {
        for (size_t j = 0; j < i; j++)
            ck_assert_str_ne(started.locations[i / 2].specs[i % 2].uri,
                             started.locations[j / 2].specs[j % 2].uri);
    }
    harness_close(&h);
}
END_TEST

START_TEST(batches_have_an_entry_for_each_key)
{
    static const int64_t asked[] = {22, 1, 11, 2};
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    harness_store(&h, chain, 2);
    struct tierce__got got = harness_get(&h, TIERCE__QUERY_BATCH, asked, 4, 0);
    ck_assert_uint_eq(got.count, 4);
    ck_assert_uint_eq(got.hits, 2);
    ck_assert_uint_eq(got.found[0].type, TIERCE__STORAGE_NFS);
    ck_assert_uint_eq(got.found[1].type, 0);
    ck_assert_uint_eq(got.found[1].spec_count_all, 2);
    ck_assert_str_eq(got.found[1].specs[0].name, "a");
    ck_assert_str_eq(got.found[1].specs[0].uri, "");
    harness_close(&h);
}
END_TEST

/* The last run of `window` keys that serve, by trying all. */
static size_t model_window(const bool *served, size_t count, size_t window)
{
    for (size_t base = count - window + 1; base-- > 0;) {
        size_t n = 0;
        while (n < window && served[base + n])
            n++;
        if (n == window)
            return base;
    }
    return SIZE_MAX;
}

START_TEST(windows_are_found_from_the_end)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    for (unsigned set = 0; set < 256; set++) {
        int64_t keys[8];
        bool served[8];
        for (int i = 0; i < 8; i++) {
            keys[i] = (int64_t)(set * 8 + (unsigned)i + 1000);
            served[i] = (set >> i & 1) != 0;
            if (served[i])
                harness_store(&h, &keys[i], 1);
        }
        for (int32_t window = 1; window <= 8; window++) {
            struct tierce__got got = harness_get(&h, TIERCE__QUERY_WINDOW, keys, 8, window);
            size_t base = model_window(served, 8, (size_t)window);
            for (size_t i = 0; i < 8; i++) {
                bool in = base != SIZE_MAX && i >= base && i < base + (size_t)window;
                ck_assert_msg((got.found[i].type != 0) == in, "set %u window %d key %zu", set,
                              window, i);
            }
        }
        tierce__arena_clear(&h.arena);
    }
    harness_close(&h);
}
END_TEST

START_TEST(a_window_of_no_size_or_too_large_is_refused)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    for (int32_t window = -1; window <= 9; window += 1) {
        struct tierce__got got;
        int rc = tierce__locator_get(h.locator,
                                     &(struct tierce__get_request){.instance_id = "i",
                                                                   .query = TIERCE__QUERY_WINDOW,
                                                                   .keys = chain,
                                                                   .count = 8,
                                                                   .window = window},
                                     &h.arena, &got, h.why);
        ck_assert_int_eq(rc, window >= 1 && window <= 8 ? 0 : TIERCE_E_ARGUMENT);
    }
    harness_close(&h);
}
END_TEST

START_TEST(masks_say_what_need_not_be_written)
{
    static const int64_t mixed[] = {1, 11, 2, 22, 3, 3};
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    harness_store(&h, chain, 2);
    struct tierce__started started = harness_start(&h, chain, 5);
    ck_assert(!started.mask.is_values);
    ck_assert_int_eq(started.mask.offset, 2);
    ck_assert_uint_eq(started.count, 3);
    harness_finish(&h, &started);
    started = harness_start(&h, chain, 5);
    ck_assert_int_eq(started.mask.offset, 5);
    ck_assert_uint_eq(started.count, 0);
    harness_finish(&h, &started);
    started = harness_start(&h, mixed, 6);
    ck_assert(started.mask.is_values);
    static const uint8_t expected[] = {0, 1, 0, 1, 0, 1}; /* the same key twice counts once */
    ck_assert_mem_eq(started.mask.values, expected, 6);
    ck_assert_uint_eq(started.count, 3);
    harness_close(&h);
}
END_TEST

START_TEST(nobody_writes_what_another_is_writing)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started first = harness_start(&h, chain, 4);
    struct tierce__started second = harness_start(&h, chain, 6);
    ck_assert_int_eq(second.mask.offset, 4);
    ck_assert_uint_eq(second.count, 2);
    harness_finish(&h, &second);
    harness_finish(&h, &first);
    ck_assert_uint_eq(harness_prefix(&h, chain, 8), 6);
    harness_close(&h);
}
END_TEST

START_TEST(a_mask_of_another_length_leaves_the_session)
{
    struct harness h;
    uint8_t values[5] = {1, 1, 1, 1, 1};
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, 4);
    const struct tierce__mask wrong[] = {
        {.offset = 5},
        {.offset = -1},
        {.is_values = true, .values = values, .count = 5},
        {.is_values = true, .values = values, .count = 3},
    };
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(
            tierce__locator_finish_write(h.locator, "i", started.session, &wrong[i], h.why),
            TIERCE_E_ARGUMENT);
    values[1] = 0;
    struct tierce__mask good = {.is_values = true, .values = values, .count = 4};
    ck_assert_int_eq(tierce__locator_finish_write(h.locator, "i", started.session, &good, h.why),
                     0);
    ck_assert_int_eq(tierce__locator_finish_write(h.locator, "i", started.session, &good, h.why),
                     -ESRCH);
    ck_assert_uint_eq(harness_prefix(&h, chain, 4), 1);
    ck_assert_uint_eq(harness_get(&h, TIERCE__QUERY_BATCH, chain, 4, 0).hits, 3);
    harness_close(&h);
}
END_TEST

/* A writer's sums are a part of the places, in answers and in what clients report. */
START_TEST(sums_of_a_write_are_kept)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, 3);
    const char *spec = started.locations[0].specs[0].name;
    struct tierce__written_sum wrong[] = {{.key = 3, .spec = spec, .sum = {1}},
                                          {.key = 0, .spec = "other", .sum = {1}}};
    struct tierce__written_sum sum = {.key = 1, .spec = spec, .sum = {0xab, [15] = 0x0c}};
    struct tierce__mask all = {.offset = 3};
    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(tierce__locator_finish_write_noted(
                             h.locator, "i", started.session, &all,
                             &(struct tierce__written_notes){&wrong[i], 1, 0}, h.why),
                         TIERCE_E_ARGUMENT);
        ck_assert_msg(strstr(h.why, "does not write") != NULL, "%s", h.why);
    }
    ck_assert_int_eq(tierce__locator_finish_write_noted(h.locator, "i", started.session, &all,
                                                        &(struct tierce__written_notes){&sum, 1, 0},
                                                        h.why),
                     0);
    struct tierce__got got = harness_get(&h, TIERCE__QUERY_BATCH, chain, 3, 0);
    ck_assert_uint_eq(got.hits, 3);
    for (size_t i = 0; i < 3; i++) {
        const char *uri = got.found[i].specs[0].uri;
        const char *at = strstr(uri, "&sum=");
        ck_assert_msg((at != NULL) == (i == 1), "%s", uri);
        if (at != NULL)
            ck_assert_str_eq(at, "&sum=ab00000000000000000000000000000c");
    }
    harness_close(&h);
}
END_TEST

START_TEST(a_session_ends_by_its_time)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, 3);
    harness_write_files(started.locations, started.count);
    ck_assert_int_eq(tierce__locator_next_expiry(h.locator), h.now_us + 30000000);
    h.now_us += 29999999;
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 0);
    h.now_us += 1;
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 1);
    struct tierce__mask all = {.offset = 3};
    ck_assert_int_eq(tierce__locator_finish_write(h.locator, "i", started.session, &all, h.why),
                     -ESRCH);
    ck_assert_uint_eq(harness_usage(&h).deleting_bytes, 3 * BLOCK_BYTES);
    struct tierce__started again = harness_start(&h, chain, 3); /* at once, at other places */
    ck_assert_str_ne(again.locations[0].specs[0].uri, started.locations[0].specs[0].uri);
    ck_assert_uint_eq(harness_count_files(&h), 6);
    ck_assert_uint_eq(tierce__deleter_step(h.locator->deleter, 10), 1);
    ck_assert_uint_eq(harness_count_files(&h), 0);
    ck_assert_uint_eq(harness_usage(&h).deleting_bytes, 0);
    /* A late client still writes: its files are deleted once more. */
    harness_write_files(started.locations, started.count);
    h.now_us += 600 * 1000000LL;
    ck_assert_uint_eq(tierce__deleter_step(h.locator->deleter, 10), 1);
    ck_assert_uint_eq(harness_count_files(&h), 0);
    harness_close(&h);
}
END_TEST

/* While a call ends a session, others whose time has passed end too. */
START_TEST(a_session_that_a_call_ends_does_not_keep_others)
{
    struct harness h;
    struct tierce__live *live;
    struct tierce__write_session *ending;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started first = harness_start(&h, chain, 1);
    for (size_t i = 1; i < 5; i++) {
        h.now_us++;
        harness_start(&h, chain + i, 1);
    }
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    ck_assert_int_eq(tierce__live_begin_finish(live, first.session, NULL, &ending, h.why), 0);
    h.now_us += 30000000;
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 4);
    tierce__live_unfinish(live, ending);
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 1);
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 0);
    tierce__live_release(live);
    harness_close(&h);
}
END_TEST

START_TEST(files_of_late_writers_are_swept_at_their_time_by_the_next_leader_too)
{
    struct harness h;
    char index[] = "/tmp/tierce_indexXXXXXX";
    temp_folder_make(index);
    harness_open(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = index});
    struct tierce__started started = harness_start(&h, chain, 3);
    h.now_us += 30000000;
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 1);
    ck_assert_uint_eq(tierce__deleter_step(h.locator->deleter, 10), 1);
    tierce__locator_drop(h.locator);
    ck_assert_int_eq(tierce__locator_recover(h.locator, 2, h.why), 0);
    ck_assert_uint_eq(tierce__deleter_step(h.locator->deleter, 10), 0);
    harness_write_files(started.locations, started.count);
    h.now_us += 600 * 1000000LL;
    ck_assert_uint_eq(tierce__deleter_step(h.locator->deleter, 10), 1);
    ck_assert_uint_eq(harness_count_files(&h), 0);
    harness_close(&h);
    temp_folder_remove(index);
}
END_TEST

static struct tierce__write_session *find_session(struct tierce__live *live, const char *id)
{
    tierce__lock_take(&live->lock);
    struct tierce__write_session *session = tierce__live_session(live, id);
    tierce__lock_drop(&live->lock);
    return session;
}

/* Replaces the session's note by one in which the second key has these places. */
static void damage_note(struct harness *h, const char *id, const struct tierce__spec_place *places,
                        uint16_t count)
{
    struct tierce__live *live;
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, "i", h->why), 0);
    struct tierce__write_session *session = find_session(live, id);
    ck_assert_ptr_nonnull(session);
    struct tierce__session_key *key = &session->keys[1], good = *key;
    key->places = places;
    key->place_count = count;
    struct tierce__meta_note note = {.kind = TIERCE__NOTE_SESSION, .number = session->note};
    ck_assert_int_eq(tierce__session_write(session, &h->arena, &note.value, &note.bytes), 0);
    *key = good;
    struct tierce__meta_space *space = tierce__meta_index_space(live->index);
    ck_assert_int_eq(
        space->ops->write(space, &(struct tierce__meta_batch){.notes = &note, .note_count = 1}), 0);
    tierce__live_release(live);
}

/* The note of a session is damaged and well-formed: a spec that the instance does not have, a key
 * without a place, or a size that no sum can hold. The next leader does not take the session up; it
 * does with a good note. */
START_TEST(a_damaged_note_of_a_session_is_left_alone)
{
    static const struct tierce__spec_place good = {.spec = 1, .file = 1}, beyond = {.spec = 9},
                                           huge = {.spec = 1, .file = 1, .bytes = UINT64_MAX};
    for (int round = 0; round < 4; round++) {
        struct harness h;
        struct tierce__live *live;
        char index[] = "/tmp/tierce_indexXXXXXX";
        temp_folder_make(index);
        harness_open(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = index});
        struct tierce__started started = harness_start(&h, chain, 3);
        damage_note(&h, started.session,
                    round == 1   ? &beyond
                    : round == 3 ? &huge
                                 : &good,
                    round != 2);
        tierce__locator_drop(h.locator);
        ck_assert_int_eq(tierce__locator_recover(h.locator, 2, h.why), 0);
        ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
        ck_assert((find_session(live, started.session) != NULL) == (round == 0));
        tierce__live_release(live);
        harness_close(&h);
        temp_folder_remove(index);
    }
}
END_TEST

START_TEST(a_timeout_of_nothing_ends_at_once_and_less_is_refused)
{
    static const int64_t wrong_s[] = {-1, INT32_MIN, INT64_MIN};
    struct harness h;
    struct tierce__started started;
    struct tierce__write_request request = {.instance_id = "i", .keys = chain, .count = 1};
    harness_open(&h, &(struct harness_opts){0});
    ck_assert_int_eq(tierce__locator_start_write(h.locator, &request, &h.arena, &started, h.why),
                     0);
    ck_assert_int_eq(tierce__locator_next_expiry(h.locator), h.now_us);
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 1);
    for (size_t i = 0; i < 3; i++) {
        request.timeout_s = wrong_s[i];
        ck_assert_int_eq(
            tierce__locator_start_write(h.locator, &request, &h.arena, &started, h.why),
            TIERCE_E_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(h.why, "write_timeout_seconds is -"));
    }
    harness_close(&h);
}
END_TEST

START_TEST(whoever_does_not_lead_says_so)
{
    struct harness h;
    struct tierce__got got;
    struct tierce__get_request request = {
        .instance_id = "i", .query = TIERCE__QUERY_PREFIX, .keys = chain, .count = 1};
    harness_open(&h, &(struct harness_opts){0});
    tierce__locator_drop(h.locator);
    ck_assert_int_eq(tierce__locator_get(h.locator, &request, &h.arena, &got, h.why),
                     TIERCE_E_CLOSED);
    ck_assert_int_eq(tierce__locator_add_instance(h.locator, "i", h.why), TIERCE_E_CLOSED);
    ck_assert_int_eq(tierce__locator_recover(h.locator, 2, h.why), 0);
    ck_assert_int_eq(tierce__locator_get(h.locator, &request, &h.arena, &got, h.why), 0);
    harness_close(&h);
}
END_TEST

START_TEST(what_is_removed_is_gone_and_its_files_go)
{
    struct harness h;
    struct tierce__mask first = {.offset = 1};
    struct tierce__looked *looked;
    size_t count;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, 3);
    harness_write_files(started.locations, started.count);
    harness_finish(&h, &started);
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", chain, 3, &first, h.why), 0);
    ck_assert_uint_eq(harness_prefix(&h, chain, 3), 1); /* the mask is honoured */
    ck_assert_int_eq(tierce__locator_look(h.locator,
                                          &(struct tierce__look_request){
                                              .instance_id = "i", .keys = chain, .count = 4},
                                          &h.arena, &looked, &count, h.why),
                     0);
    ck_assert_uint_eq(count, 4);
    ck_assert_int_eq(looked[0].state, TIERCE__LOOK_SERVING);
    ck_assert_int_eq(looked[1].state, TIERCE__LOOK_DELETING);
    ck_assert_uint_eq(strlen(looked[1].id), TIERCE__LOCATION_ID_BYTES);
    ck_assert_int_eq(looked[3].state, TIERCE__LOOK_NOT_FOUND);
    ck_assert_str_eq(looked[3].id, "");
    ck_assert_uint_eq(harness_count_files(&h), 6);
    ck_assert_uint_eq(tierce__deleter_step(h.locator->deleter, 10), 1);
    ck_assert_uint_eq(harness_count_files(&h), 2);
    ck_assert_int_eq(tierce__locator_look(h.locator,
                                          &(struct tierce__look_request){
                                              .instance_id = "i", .keys = chain, .count = 3},
                                          &h.arena, &looked, &count, h.why),
                     0);
    ck_assert_int_eq(looked[1].state, TIERCE__LOOK_NOT_FOUND);
    harness_close(&h);
}
END_TEST

START_TEST(what_is_removed_while_it_is_written_does_not_serve)
{
    struct harness h;
    struct tierce__mask first = {.offset = 1};
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, 3);
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", chain, 2, &first, h.why), 0);
    harness_finish(&h, &started);
    ck_assert_uint_eq(harness_get(&h, TIERCE__QUERY_BATCH, chain, 3, 0).hits, 2);
    ck_assert_uint_eq(harness_usage(&h).deleting_bytes, BLOCK_BYTES);
    harness_close(&h);
}
END_TEST

/* So many keys for that reason, and none for another. */
static void check_rejected(struct harness *h, enum tierce__rejection reason, uint64_t keys)
{
    struct tierce__usage usage = harness_usage(h);
    for (int r = 0; r < TIERCE__REJECTIONS; r++)
        ck_assert_uint_eq(usage.rejected_keys[r], r == (int)reason ? keys : 0);
}

START_TEST(quotas_are_hard)
{
    struct harness h;
    struct tierce__mask none = {0};
    struct tierce__started started;
    harness_open(&h, &(struct harness_opts){.capacity = 5 * BLOCK_BYTES + 1});
    started = harness_start(&h, chain, 3);
    harness_finish(&h, &started);
    started = harness_start(&h, chain, 8); /* two more fit; the rest need not be written */
    ck_assert_uint_eq(started.count, 2);
    ck_assert(started.mask.is_values);
    ck_assert_uint_eq(harness_usage(&h).writing_bytes, 2 * BLOCK_BYTES);
    int rc = tierce__locator_start_write(
        h.locator,
        &(struct tierce__write_request){
            .instance_id = "i", .keys = &chain[5], .count = 3, .timeout_s = 30},
        &h.arena, &started, h.why);
    ck_assert_int_eq(rc, TIERCE_E_FULL);
    ck_assert_ptr_nonnull(strstr(h.why, "group"));
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", chain, 1, &none, h.why), 0);
    rc = tierce__locator_start_write(
        h.locator,
        &(struct tierce__write_request){
            .instance_id = "i", .keys = &chain[5], .count = 3, .timeout_s = 30},
        &h.arena, &started, h.why);
    ck_assert_int_eq(rc, TIERCE_E_FULL); /* its bytes are still there */
    tierce__deleter_step(h.locator->deleter, 10);
    started = harness_start(&h, &chain[5], 3);
    ck_assert_uint_eq(started.count, 1);
    /* Three of eight, three and three, two of three. */
    check_rejected(&h, TIERCE__REJECTED_BY_GROUP, 3 + 3 + 3 + 2);
    harness_close(&h);
}
END_TEST

START_TEST(an_index_has_a_largest_number_of_keys)
{
    struct harness h;
    struct tierce__started started;
    harness_open(&h, &(struct harness_opts){.keys_max = 4});
    harness_store(&h, chain, 4);
    int rc = tierce__locator_start_write(
        h.locator,
        &(struct tierce__write_request){
            .instance_id = "i", .keys = &chain[4], .count = 1, .timeout_s = 30},
        &h.arena, &started, h.why);
    ck_assert_int_eq(rc, TIERCE_E_FULL);
    ck_assert_uint_eq(harness_usage(&h).writing_bytes, 0);
    check_rejected(&h, TIERCE__REJECTED_BY_KEYS, 1);
    harness_close(&h);
}
END_TEST

START_TEST(spec_groups_choose_the_parts)
{
    struct harness h;
    const char *groups[] = {"A", "AB", "A"}, *wrong[] = {"A", "C", "A"};
    struct tierce__write_request request = {
        .instance_id = "i", .keys = chain, .count = 3, .timeout_s = 30, .spec_groups = wrong};
    struct tierce__started started;
    harness_open(&h, &(struct harness_opts){0});
    ck_assert_int_eq(tierce__locator_start_write(h.locator, &request, &h.arena, &started, h.why),
                     TIERCE_E_ARGUMENT);
    request.spec_groups = groups;
    ck_assert_int_eq(tierce__locator_start_write(h.locator, &request, &h.arena, &started, h.why),
                     0);
    ck_assert_uint_eq(started.locations[0].spec_count, 1);
    ck_assert_uint_eq(started.locations[1].spec_count, 2);
    ck_assert_uint_eq(harness_usage(&h).writing_bytes, 3 * PART_A_BYTES + PART_B_BYTES);
    harness_finish(&h, &started);
    harness_close(&h);
}
END_TEST

/* A client may name a spec group that has no specs: the block has no parts then. */
START_TEST(a_block_without_parts_does_not_lose_its_session)
{
    struct harness h;
    char id[] = "n", group[] = "g", a[] = "a", with[] = "A", without[] = "none", none[] = "";
    char *specs_of_a[] = {a}, index[] = "/tmp/tierce_indexXXXXXX";
    struct tierce__spec_info specs[] = {{a, PART_A_BYTES}};
    struct tierce__spec_group spec_groups[] = {{with, specs_of_a, 1}, {without, NULL, 0}};
    struct tierce__instance instance = {
        .id = id,
        .group_name = group,
        .quota_group_name = none,
        .block_size = 4,
        .specs = specs,
        .spec_count = 1,
        .spec_groups = spec_groups,
        .spec_group_count = 2,
        .user_data = none,
        .model = {.model_name = a, .dtype = a, .lora_name = none, .extra = none, .user_data = none},
    };
    const char *groups[] = {with, without};
    struct tierce__mask all = {.offset = 2};
    struct tierce__started started;
    temp_folder_make(index);
    harness_open(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = index});
    ck_assert_int_eq(tierce__registry_add_instance(h.registry, &instance, h.why), 0);
    ck_assert_int_eq(tierce__locator_add_instance(h.locator, "n", h.why), 0);
    struct tierce__write_request request = {
        .instance_id = "n", .keys = chain, .count = 2, .timeout_s = 30, .spec_groups = groups};
    ck_assert_int_eq(tierce__locator_start_write(h.locator, &request, &h.arena, &started, h.why),
                     0);
    ck_assert_uint_eq(started.count, 2);
    tierce__locator_drop(h.locator);
    ck_assert_int_eq(tierce__locator_recover(h.locator, 2, h.why), 0);
    int rc = tierce__locator_finish_write(h.locator, "n", started.session, &all, h.why);
    ck_assert_msg(rc == 0, "%s", h.why);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, PART_A_BYTES);
    harness_close(&h);
    temp_folder_remove(index);
}
END_TEST

START_TEST(a_trim_takes_what_was_stored_in_its_time)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    int64_t start_s = h.now_us / 1000000;
    for (size_t i = 0; i < 5; i++) {
        harness_store(&h, &chain[i], 1);
        h.now_us += 10000000;
    }
    ck_assert_int_eq(
        tierce__locator_trim(h.locator, "i", TIERCE__TRIM_TIME, start_s + 10, start_s + 30, h.why),
        0);
    struct tierce__got got = harness_get(&h, TIERCE__QUERY_BATCH, chain, 5, 0);
    for (size_t i = 0; i < 5; i++)
        ck_assert_int_eq(got.found[i].type != 0, i == 0 || i == 4);
    ck_assert_int_eq(tierce__locator_trim(h.locator, "i", TIERCE__TRIM_META, 0, 0, h.why), 0);
    ck_assert_uint_eq(harness_usage(&h).keys, 0);
    ck_assert_uint_eq(harness_usage(&h).deleting_bytes, 3 * BLOCK_BYTES);
    ck_assert_int_eq(tierce__locator_trim(h.locator, "i", 0, 0, 0, h.why), TIERCE_E_ARGUMENT);
    harness_close(&h);
}
END_TEST

START_TEST(a_disabled_storage_is_not_written_to_nor_chosen)
{
    struct harness h;
    struct tierce__started started;
    harness_open(&h, &(struct harness_opts){0});
    harness_store(&h, chain, 2);
    ck_assert_int_eq(tierce__registry_enable_storage(h.registry, "s", false, h.why), 0);
    ck_assert_uint_eq(harness_prefix(&h, chain, 2), 0);
    int rc = tierce__locator_start_write(
        h.locator,
        &(struct tierce__write_request){
            .instance_id = "i", .keys = &chain[4], .count = 1, .timeout_s = 30},
        &h.arena, &started, h.why);
    ck_assert_int_eq(rc, TIERCE_E_DOWN);
    check_rejected(&h, TIERCE__REJECTED_NO_STORAGE, 1);
    ck_assert_int_eq(tierce__registry_enable_storage(h.registry, "s", true, h.why), 0);
    ck_assert_uint_eq(harness_prefix(&h, chain, 2), 2);
    harness_close(&h);
}
END_TEST

START_TEST(names_with_one_key_are_told_apart)
{
    static const char *const one[] = {"one"}, *const other[] = {"other"};
    struct harness h;
    struct tierce__started started;
    struct tierce__got got;
    struct tierce__get_request get = {
        .instance_id = "i", .query = TIERCE__QUERY_BATCH, .keys = chain, .count = 1};
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__write_request write = {
        .instance_id = "i", .keys = chain, .key_texts = one, .count = 1, .timeout_s = 30};
    ck_assert_int_eq(tierce__locator_start_write(h.locator, &write, &h.arena, &started, h.why), 0);
    /* While it is written, and after that. */
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(tierce__locator_remove_entries(h.locator, "i", chain, other, 1, h.why), 0);
        if (i == 0)
            harness_finish(&h, &started);
        get.key_texts = one;
        ck_assert_int_eq(tierce__locator_get(h.locator, &get, &h.arena, &got, h.why), 0);
        ck_assert_uint_eq(got.hits, 1);
        get.key_texts = other;
        ck_assert_int_eq(tierce__locator_get(h.locator, &get, &h.arena, &got, h.why), 0);
        ck_assert_uint_eq(got.hits, 0);
    }
    write.key_texts = other; /* one of the two is held */
    ck_assert_int_eq(tierce__locator_start_write(h.locator, &write, &h.arena, &started, h.why), 0);
    ck_assert_uint_eq(started.count, 0);
    ck_assert_int_eq(tierce__locator_remove_entries(h.locator, "i", chain, one, 1, h.why), 0);
    ck_assert_int_eq(tierce__locator_start_write(h.locator, &write, &h.arena, &started, h.why), 0);
    ck_assert_uint_eq(started.count, 1);
    ck_assert_int_eq(tierce__locator_remove_entries(h.locator, "i", chain, other, 1, h.why), 0);
    harness_finish(&h, &started);
    ck_assert_int_eq(tierce__locator_get(h.locator, &get, &h.arena, &got, h.why), 0);
    ck_assert_uint_eq(got.hits, 0);
    harness_close(&h);
}
END_TEST

CHECK_MAIN("locator",
           .tests = {what_was_written_is_found,
                     every_place_is_another_one,
                     batches_have_an_entry_for_each_key,
                     windows_are_found_from_the_end,
                     a_window_of_no_size_or_too_large_is_refused,
                     masks_say_what_need_not_be_written,
                     nobody_writes_what_another_is_writing,
                     sums_of_a_write_are_kept,
                     a_mask_of_another_length_leaves_the_session,
                     a_session_ends_by_its_time,
                     a_session_that_a_call_ends_does_not_keep_others,
                     files_of_late_writers_are_swept_at_their_time_by_the_next_leader_too,
                     a_damaged_note_of_a_session_is_left_alone,
                     a_timeout_of_nothing_ends_at_once_and_less_is_refused,
                     whoever_does_not_lead_says_so,
                     what_is_removed_is_gone_and_its_files_go,
                     what_is_removed_while_it_is_written_does_not_serve,
                     quotas_are_hard,
                     an_index_has_a_largest_number_of_keys,
                     spec_groups_choose_the_parts,
                     a_block_without_parts_does_not_lose_its_session,
                     a_trim_takes_what_was_stored_in_its_time,
                     a_disabled_storage_is_not_written_to_nor_chosen,
                     names_with_one_key_are_told_apart})
