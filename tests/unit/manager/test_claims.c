/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that write the same keys at the same time: claims are by key and spec. */
#include "check_main.h"
#include "manager_harness.h"

static const int64_t chain[] = {11, 22, 33, 44};
static const char *const only_a[] = {"A", "A", "A", "A"};
static const char *const only_b[] = {"B", "B", "B", "B"};
static const char *const both[] = {"AB", "AB", "AB", "AB"};

static int try_start(struct harness *h, const int64_t *keys, size_t count,
                     const char *const *groups, struct tierce__started *out)
{
    *out = (struct tierce__started){0};
    return tierce__locator_start_write(h->locator,
                                       &(struct tierce__write_request){.instance_id = "i",
                                                                       .keys = keys,
                                                                       .count = count,
                                                                       .timeout_s = 30,
                                                                       .spec_groups = groups},
                                       &h->arena, out, h->why);
}

static struct tierce__started start(struct harness *h, const int64_t *keys, size_t count,
                                    const char *const *groups)
{
    struct tierce__started started;
    int rc = try_start(h, keys, count, groups, &started);
    ck_assert_msg(rc == 0, "%s", h->why);
    return started;
}

static void finish_none(struct harness *h, const struct tierce__started *started)
{
    struct tierce__mask none = {0};
    int rc = tierce__locator_finish_write(h->locator, "i", started->session, &none, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
}

/* The leading blocks of the chain that have a spec. */
static size_t prefix(struct harness *h, const char *spec)
{
    struct tierce__got got;
    int rc = tierce__locator_get(h->locator,
                                 &(struct tierce__get_request){.instance_id = "i",
                                                               .query = TIERCE__QUERY_PREFIX,
                                                               .keys = chain,
                                                               .count = 4,
                                                               .spec_names = &spec,
                                                               .spec_name_count = 1},
                                 &h->arena, &got, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    return got.count;
}

static void check_all_given(const struct tierce__started *started, size_t count, const char *spec)
{
    ck_assert(!started->mask.is_values);
    ck_assert_int_eq(started->mask.offset, 0);
    ck_assert_uint_eq(started->count, count);
    for (size_t i = 0; i < count; i++) {
        ck_assert_uint_eq(started->locations[i].spec_count, 1);
        ck_assert_str_eq(started->locations[i].specs[0].name, spec);
    }
}

START_TEST(ranks_write_their_specs_of_one_block_at_once)
{
    for (int round = 0; round < 2; round++) {
        struct harness h;
        harness_open(&h, &(struct harness_opts){0});
        struct tierce__started first = start(&h, chain, 3, only_a);
        struct tierce__started second = start(&h, chain, 3, only_b);
        check_all_given(&first, 3, "a");
        check_all_given(&second, 3, "b");
        ck_assert_uint_eq(harness_usage(&h).writing_bytes, 3 * BLOCK_BYTES);
        harness_finish(&h, round == 0 ? &first : &second);
        ck_assert_uint_eq(prefix(&h, "a"), round == 0 ? 3 : 0);
        ck_assert_uint_eq(prefix(&h, "b"), round == 0 ? 0 : 3);
        harness_finish(&h, round == 0 ? &second : &first);
        ck_assert_uint_eq(prefix(&h, "a"), 3);
        ck_assert_uint_eq(prefix(&h, "b"), 3);
        ck_assert_uint_eq(harness_usage(&h).keys, 3);
        ck_assert_uint_eq(harness_usage(&h).serving_bytes, 3 * BLOCK_BYTES);
        ck_assert_uint_eq(harness_usage(&h).writing_bytes, 0);
        struct tierce__got got = harness_get(&h, TIERCE__QUERY_PREFIX, chain, 4, 0);
        ck_assert_uint_eq(got.count, 3);
        ck_assert_str_eq(got.found[2].specs[0].uri, first.locations[2].specs[0].uri);
        ck_assert_str_eq(got.found[2].specs[1].uri, second.locations[2].specs[0].uri);
        harness_close(&h);
    }
}
END_TEST

START_TEST(what_another_session_writes_is_left_to_it)
{
    static const char *const mixed[] = {"A", "AB", "B"};
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started first = start(&h, chain, 3, mixed);
    struct tierce__started rest = start(&h, chain, 4, both);
    ck_assert(rest.mask.is_values);
    static const uint8_t expected[] = {0, 1, 0, 0};
    ck_assert_mem_eq(rest.mask.values, expected, 4);
    ck_assert_uint_eq(rest.count, 3);
    ck_assert_uint_eq(rest.locations[0].spec_count, 1);
    ck_assert_str_eq(rest.locations[0].specs[0].name, "b");
    ck_assert_str_eq(rest.locations[1].specs[0].name, "a");
    ck_assert_uint_eq(rest.locations[2].spec_count, 2);
    struct tierce__started none = start(&h, chain, 4, both);
    ck_assert_int_eq(none.mask.offset, 4); /* all of it is being written */
    harness_finish(&h, &none);
    harness_finish(&h, &rest);
    harness_finish(&h, &first);
    ck_assert_uint_eq(prefix(&h, "a"), 4);
    ck_assert_uint_eq(prefix(&h, "b"), 4);
    harness_close(&h);
}
END_TEST

/* Stored specs are not claimed, so that they do not mask others' writes once they are gone. */
START_TEST(only_missing_specs_are_claimed)
{
    struct harness h;
    struct tierce__mask none = {0};
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started stored = start(&h, chain, 2, only_a);
    harness_finish(&h, &stored);
    struct tierce__started first = start(&h, chain, 2, both);
    check_all_given(&first, 2, "b");
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", chain, 2, &none, h.why), 0);
    struct tierce__started second = start(&h, chain, 2, both);
    check_all_given(&second, 2, "a");
    harness_finish(&h, &first); /* removed while it was written */
    harness_finish(&h, &second);
    ck_assert_uint_eq(prefix(&h, "a"), 2);
    ck_assert_uint_eq(prefix(&h, "b"), 0);
    harness_close(&h);
}
END_TEST

START_TEST(a_spec_that_was_not_written_is_missing_alone)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started first = start(&h, chain, 2, only_a);
    struct tierce__started second = start(&h, chain, 2, only_b);
    finish_none(&h, &second);
    harness_finish(&h, &first);
    ck_assert_uint_eq(prefix(&h, "a"), 2);
    ck_assert_uint_eq(prefix(&h, "b"), 0);
    first = start(&h, chain, 2, only_a);
    ck_assert_int_eq(first.mask.offset, 2);
    second = start(&h, chain, 2, both);
    check_all_given(&second, 2, "b");
    h.now_us += 30000000;
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 1);
    ck_assert_uint_eq(prefix(&h, "a"), 2);
    second = start(&h, chain, 2, both); /* its claims are gone, too */
    check_all_given(&second, 2, "b");
    harness_close(&h);
}
END_TEST

START_TEST(a_removal_reaches_all_sessions)
{
    struct harness h;
    struct tierce__mask first_stays = {.offset = 1};
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started first = start(&h, chain, 2, only_a);
    struct tierce__started second = start(&h, chain, 2, only_b);
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", chain, 2, &first_stays, h.why), 0);
    harness_finish(&h, &first);
    harness_finish(&h, &second);
    ck_assert_uint_eq(prefix(&h, "a"), 1);
    ck_assert_uint_eq(prefix(&h, "b"), 1);
    ck_assert_uint_eq(harness_usage(&h).keys, 1);
    ck_assert_uint_eq(harness_usage(&h).deleting_bytes, BLOCK_BYTES);
    harness_close(&h);
}
END_TEST

static struct tierce__looked look(struct harness *h, int64_t key)
{
    struct tierce__looked *looked;
    size_t count;
    struct tierce__look_request request = {.instance_id = "i", .keys = &key, .count = 1};
    int rc = tierce__locator_look(h->locator, &request, &h->arena, &looked, &count, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    ck_assert_uint_eq(count, 1);
    return looked[0];
}

START_TEST(a_look_shows_what_all_sessions_write)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started first = start(&h, chain, 1, only_a);
    ck_assert_int_eq(look(&h, chain[0]).state, TIERCE__LOOK_WRITING);
    ck_assert_uint_eq(look(&h, chain[0]).found.spec_count, 1);
    struct tierce__started second = start(&h, chain, 1, only_b);
    ck_assert_int_eq(look(&h, chain[0]).state, TIERCE__LOOK_WRITING);
    ck_assert_uint_eq(look(&h, chain[0]).found.spec_count, 2);
    finish_none(&h, &first);
    struct tierce__looked looked = look(&h, chain[0]);
    ck_assert_int_eq(looked.state, TIERCE__LOOK_WRITING);
    ck_assert_str_eq(looked.found.specs[0].name, "b");
    finish_none(&h, &second);
    ck_assert_int_eq(look(&h, chain[0]).state, TIERCE__LOOK_DELETING);
    harness_close(&h);
}
END_TEST

/* A key that several sessions write is one key of the index. */
START_TEST(keys_that_are_written_by_several_sessions_count_once)
{
    struct harness h;
    struct tierce__started second;
    harness_open(&h, &(struct harness_opts){.keys_max = 3});
    struct tierce__started first = start(&h, chain, 2, only_a);
    second = start(&h, chain, 4, only_b);
    ck_assert_uint_eq(second.count, 3); /* two that have room, and one more */
    harness_finish(&h, &second);
    harness_finish(&h, &first);
    ck_assert_uint_eq(harness_usage(&h).keys, 3);
    ck_assert_int_eq(try_start(&h, chain + 3, 1, only_a, &second), TIERCE_E_FULL);
    harness_close(&h);
}
END_TEST

/* Runs once, where a session has claimed its keys and does not know yet whether they have room. */
static struct harness *between;
static int between_status;

void __real_tierce__meta_index_stats(struct tierce__meta_index *index,
                                     struct tierce__meta_index_stats *out);
void __wrap_tierce__meta_index_stats(struct tierce__meta_index *index,
                                     struct tierce__meta_index_stats *out);
void __wrap_tierce__meta_index_stats(struct tierce__meta_index *index,
                                     struct tierce__meta_index_stats *out)
{
    struct harness *h = between;
    struct tierce__started started;
    between = NULL;
    if (h != NULL)
        between_status = try_start(h, chain + 1, 1, only_b, &started);
    __real_tierce__meta_index_stats(index, out);
}

/* Ranks that begin at once must not count each other's keys as indexed. */
START_TEST(sessions_that_begin_at_once_need_room)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){.keys_max = 1});
    struct tierce__started other, first = start(&h, chain, 1, only_a);
    harness_finish(&h, &first);
    between = &h;
    ck_assert_int_eq(try_start(&h, chain + 1, 1, only_a, &other), TIERCE_E_FULL);
    ck_assert_int_eq(between_status, TIERCE_E_FULL);
    ck_assert_uint_eq(harness_usage(&h).keys, 1);
    harness_close(&h);
}
END_TEST

START_TEST(a_repeated_key_counts_once_whatever_its_groups)
{
    static const int64_t twice[] = {11, 11, 22};
    static const char *const groups[] = {"A", "B", "AB"}, *const others[] = {"B", "AB", "A"};
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = start(&h, twice, 3, groups);
    static const uint8_t expected[] = {0, 1, 0};
    ck_assert_mem_eq(started.mask.values, expected, 3);
    ck_assert_uint_eq(started.count, 2);
    struct tierce__started other = start(&h, twice, 3, others);
    ck_assert_uint_eq(other.count, 1);
    ck_assert_str_eq(other.locations[0].specs[0].name, "b");
    harness_finish(&h, &started);
    harness_finish(&h, &other);
    ck_assert_uint_eq(harness_usage(&h).keys, 2);
    harness_close(&h);
}
END_TEST

START_TEST(the_next_leader_keeps_all_claims)
{
    struct harness h;
    char index[] = "/tmp/tierce_indexXXXXXX";
    temp_folder_make(index);
    harness_open(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = index});
    struct tierce__started first = start(&h, chain, 3, only_a);
    struct tierce__started second = start(&h, chain, 3, only_b);
    tierce__locator_drop(h.locator);
    ck_assert_int_eq(tierce__locator_recover(h.locator, 2, h.why), 0);
    struct tierce__started none = start(&h, chain, 3, both);
    ck_assert_int_eq(none.mask.offset, 3);
    harness_finish(&h, &first);
    none = start(&h, chain, 3, both);
    ck_assert_int_eq(none.mask.offset, 3);
    finish_none(&h, &second);
    struct tierce__started again = start(&h, chain, 3, both);
    check_all_given(&again, 3, "b");
    harness_finish(&h, &again);
    ck_assert_uint_eq(prefix(&h, "a"), 3);
    ck_assert_uint_eq(prefix(&h, "b"), 3);
    harness_close(&h);
    temp_folder_remove(index);
}
END_TEST

/* Makes an instance with a spec group of a, and one without specs. */
static void add_instance_with_empty_group(struct harness *h)
{
    char id[] = "n", group[] = "g", a[] = "a", with[] = "A", without[] = "none", none[] = "";
    char *specs_of_a[] = {a};
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
    ck_assert_int_eq(tierce__registry_add_instance(h->registry, &instance, h->why), 0);
    ck_assert_int_eq(tierce__locator_add_instance(h->locator, "n", h->why), 0);
}

/* A block without specs needs no second claim; specs may be written beside it. */
START_TEST(a_claim_without_specs)
{
    static const char *const groups[] = {"none", "A"};
    struct harness h;
    struct tierce__started started[3];
    struct tierce__mask all = {.offset = 1};
    harness_open(&h, &(struct harness_opts){0});
    add_instance_with_empty_group(&h);
    struct tierce__write_request request = {
        .instance_id = "n", .keys = chain, .count = 1, .timeout_s = 30};
    for (int i = 0; i < 3; i++) {
        request.spec_groups = &groups[i / 2]; /* none, none, A */
        ck_assert_int_eq(
            tierce__locator_start_write(h.locator, &request, &h.arena, &started[i], h.why), 0);
    }
    ck_assert_uint_eq(started[0].count, 1);
    ck_assert_uint_eq(started[0].locations[0].spec_count, 0);
    ck_assert_uint_eq(started[1].count, 0);
    ck_assert_uint_eq(started[2].count, 1);
    ck_assert_uint_eq(started[2].locations[0].spec_count, 1);
    for (int i = 0; i < 3; i += 2)
        ck_assert_int_eq(
            tierce__locator_finish_write(h.locator, "n", started[i].session, &all, h.why), 0);
    ck_assert_uint_eq(harness_usage(&h).keys, 1);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, PART_A_BYTES);
    harness_close(&h);
}
END_TEST

CHECK_MAIN("claims", .seconds = 60,
           .tests = {ranks_write_their_specs_of_one_block_at_once,
                     what_another_session_writes_is_left_to_it, only_missing_specs_are_claimed,
                     a_spec_that_was_not_written_is_missing_alone, a_removal_reaches_all_sessions,
                     a_look_shows_what_all_sessions_write,
                     keys_that_are_written_by_several_sessions_count_once,
                     sessions_that_begin_at_once_need_room,
                     a_repeated_key_counts_once_whatever_its_groups,
                     the_next_leader_keeps_all_claims, a_claim_without_specs})
