/* SPDX-License-Identifier: Apache-2.0 */
/* Hints of clients through a manager. */
#include "fleet_case.h"
#include "log_record.h"

#include "core/key/group.h"

static struct tierce_plugin_name *names;
static char (*texts)[TIERCE__KEY_TEXT_BYTES];

enum { KEYS = TIERCE__LOOKUP_ROW + 10 };

/* A hint about blocks from `first` on: KEYS different ones at most. */
static void hint(uint32_t first, uint32_t count, enum tierce__policy_hint kind)
{
    names = calloc(count, sizeof(*names));
    texts = calloc(count, sizeof(*texts));
    ck_assert(names != NULL && texts != NULL);
    for (uint32_t i = 0; i < count; i++) {
        snprintf(texts[i], sizeof(texts[i]), "%s", name(first + i % KEYS));
        names[i] = (struct tierce_plugin_name){.text = texts[i], .bytes = strlen(texts[i])};
    }
    connector->ops->hint(connector, names, count, kind);
    free(names);
    free(texts);
}

static void put_all(uint32_t count)
{
    submit_many(TIERCE__STORE_PUT, 0, count, LATE_MS);
    expect_many(count, 0);
}

START_TEST(used_blocks_get_their_hint)
{
    static const struct {
        enum tierce__policy_hint kind;
        const char *is;
    } kinds[] = {{TIERCE__HINT_CLOSED, "closed"},
                 {TIERCE__HINT_OPEN, "open"},
                 {TIERCE__HINT_SOON, "soon"},
                 {TIERCE__HINT_LATER, "later"}};
    put_all(3);
    ck_assert_str_eq(fleet_fake_hint(0), "");
    hint(0, 2, kinds[_i].kind);
    WAIT_FOR(strcmp(fleet_fake_hint(0), kinds[_i].is) == 0);
    ck_assert_str_eq(fleet_fake_hint(1), kinds[_i].is);
    ck_assert_str_eq(fleet_fake_hint(2), "");
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_HINT), 1);
}
END_TEST

/* Without a time, and without a statement, there is nothing to be said. */
START_TEST(a_time_to_live_is_not_sent)
{
    put_all(1);
    hint(0, 1, TIERCE__HINT_TTL);
    hint(0, 1, TIERCE__HINT_NONE);
    hint(0, 1, TIERCE__HINT_OPEN);
    WAIT_FOR(strcmp(fleet_fake_hint(0), "open") == 0);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_HINT), 1);
}
END_TEST

/* A call has the keys of one row. */
START_TEST(a_long_prompt_is_hinted_in_rows)
{
    fleet_fake_set(0, FLEET_FAKE_SERVING);
    fleet_fake_set(KEYS - 1, FLEET_FAKE_SERVING);
    ck_assert_int_eq(connector_exists(connector, name(0)), 1);
    hint(0, KEYS, TIERCE__HINT_CLOSED);
    WAIT_FOR(strcmp(fleet_fake_hint(KEYS - 1), "closed") == 0);
    ck_assert_str_eq(fleet_fake_hint(0), "closed");
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_HINT), 2);
}
END_TEST

/* Puts of a chain share a session only if they have the same hint. */
START_TEST(new_blocks_get_their_hint)
{
    make_many(TIERCE__STORE_PUT, 0, 6, LATE_MS);
    for (uint32_t i = 0; i < 6; i++)
        many[i].req.origin.hint = i < 4 ? TIERCE__HINT_CLOSED : TIERCE__HINT_NONE;
    send_many(6);
    expect_many(6, 0);
    for (uint32_t i = 0; i < 6; i++)
        ck_assert_str_eq(fleet_fake_hint(i), i < 4 ? "closed" : "");
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_START), 2);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_HINT), 0);
}
END_TEST

START_TEST(a_hint_that_fails_is_lost)
{
    put_all(1);
    fleet_fake_fail(FLEET_FAKE_HINT, TIERCE_E_DOWN, "nobody is there", 1, false);
    hint(0, 1, TIERCE__HINT_OPEN);
    WAIT_FOR(strstr(connector_why(connector), "nobody is there") != NULL);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_HINT), 1);
    ck_assert_str_eq(fleet_fake_hint(0), "");
    hint(0, 1, TIERCE__HINT_CLOSED);
    WAIT_FOR(strcmp(fleet_fake_hint(0), "closed") == 0);
}
END_TEST

START_TEST(an_older_manager_gets_no_more_hints)
{
    record_log(TIERCE_LOG_WARN);
    put_all(1);
    fleet_fake_fail(FLEET_FAKE_HINT, TIERCE_E_UNSUPPORTED, "no such call", 1, false);
    hint(0, 1, TIERCE__HINT_OPEN);
    WAIT_FOR(recorded("fleet_no_hints") == 1);
    hint(0, 1, TIERCE__HINT_OPEN);
    ck_assert_int_eq(connector_ping(connector), 0);
    ck_assert_int_eq(get(0), 0);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_HINT), 1);
}
END_TEST

/* While the manager does not answer, hints wait up to a limit. */
START_TEST(too_many_hints_are_lost)
{
    enum { MOST = 16384 };
    fleet_fake_set(0, FLEET_FAKE_SERVING);
    ck_assert_int_eq(connector_exists(connector, name(0)), 1);
    fleet_fake_hold(FLEET_FAKE_HINT);
    hint(0, MOST, TIERCE__HINT_OPEN);
    hint(0, 1, TIERCE__HINT_CLOSED);
    ck_assert_int_eq(connector_ping(connector), 0);
    WAIT_FOR(strstr(connector_why(connector), "1 hints were lost") != NULL);
    fleet_fake_let_go();
    WAIT_FOR(fleet_fake_count(FLEET_FAKE_HINT) == MOST / TIERCE__LOOKUP_ROW);
    ck_assert_str_eq(fleet_fake_hint(0), "open");
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("fleet hint");
    TCase *tcase = tcase_create("hints");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, used_blocks_get_their_hint, 0, 4);
    tcase_add_test(tcase, a_time_to_live_is_not_sent);
    tcase_add_test(tcase, a_long_prompt_is_hinted_in_rows);
    tcase_add_test(tcase, new_blocks_get_their_hint);
    tcase_add_test(tcase, a_hint_that_fails_is_lost);
    tcase_add_test(tcase, an_older_manager_gets_no_more_hints);
    tcase_add_test(tcase, too_many_hints_are_lost);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(make_suite());
}
