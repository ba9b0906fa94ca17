/* SPDX-License-Identifier: Apache-2.0 */
/* Policies in shared objects that are missing or wrong. A right one is tested by
 * tests/conformance/test_policy_conformance.c, the file's owner and permissions by
 * test_plugin.c. */
#include "check_main.h"
#include "core/policy/policy.h"
#include "plugin_file.h"
#include "test_random.h"

static char why[TIERCE__POLICY_WHY_BYTES];
static const struct tierce__policy_ops *ops;

static int open_file(const char *path, const char *params)
{
    char url[256];
    struct plugin_file file;
    plugin_file_make(&file, path);
    snprintf(url, sizeof(url), "plugin://%s%s", file.path, params);
    int rc = tierce__policy_open(&ops, url, why);
    plugin_file_remove(&file);
    return rc;
}

static void expect_refused(int rc, const char *words)
{
    ck_assert_int_eq(rc, TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, words) != NULL, "\"%s\" is not in \"%s\"", words, why);
}

static const struct {
    const char *path, *params, *words;
} wrong[] = {
    {TIERCE_WRONG_POLICIES "/libwrong_policy_1.so", "", "no function tierce_plugin_policy"},
    {TIERCE_PLUGIN_MEMORY, "", "exports no function tierce_plugin_policy"},
    {TIERCE_WRONG_POLICIES "/libwrong_policy_2.so", "", "tierce_plugin_policy() returns NULL"},
    {TIERCE_WRONG_POLICIES "/libwrong_policy_3.so", "",
     "was built for version 2 of plugin_policy.h; this is version 1"},
    {TIERCE_WRONG_POLICIES "/libwrong_policy_4.so", "", "are required"},
    {TIERCE_WRONG_POLICIES "/libwrong_policy_5.so", "", "has unknown caps: 0x40"},
    {TIERCE_WRONG_POLICIES "/libwrong_policy_6.so", "", "has no function victim"},
    {TIERCE_WRONG_POLICIES "/libwrong_policy_7.so", "", "its name is not 1 to 31 lower-case"},
    {TIERCE_WRONG_POLICIES "/libwrong_policy_8.so", "", "lru, is that of a policy of Tierce"},
    {TIERCE_WRONG_POLICIES "/libwrong_policy_9.so", "", "xxxxxxxx"},
    {TIERCE_PLUGIN_POLICY, "?usses=1", "unknown parameter usses; accepted is uses"},
    {TIERCE_PLUGIN_POLICY, "?uses=0", "uses is \"0\"; accepted are 1 to 255"},
    {TIERCE_PLUGIN_POLICY, "?uses=1&uses=2", "a parameter is given twice"},
};

START_TEST(wrong_plugins_are_refused)
{
    expect_refused(open_file(wrong[_i].path, wrong[_i].params), wrong[_i].words);
}
END_TEST

START_TEST(wrong_names_are_refused)
{
    expect_refused(tierce__policy_open(&ops, "no-such", why), "there is no policy \"no-such\"");
    expect_refused(tierce__policy_open(&ops, "plugin://lib.so", why), "absolute path");
    expect_refused(tierce__policy_open(&ops, "plugin:///nothing/is/here.so", why), "No such file");
    ck_assert_int_eq(tierce__policy_open(&ops, "lru", why), 0);
    ck_assert_ptr_eq(ops, tierce__policy_find("lru"));
}
END_TEST

START_TEST(a_url_is_loaded_once)
{
    char url[256];
    struct plugin_file file;
    const struct tierce__policy_ops *again;
    plugin_file_make(&file, TIERCE_PLUGIN_POLICY);
    snprintf(url, sizeof(url), "plugin://%s?uses=2", file.path);
    ck_assert_int_eq(tierce__policy_open(&ops, url, why), 0);
    ck_assert_str_eq(ops->name, "fifo_reinsertion");
    plugin_file_remove(&file);
    ck_assert_int_eq(tierce__policy_open(&again, url, why), 0);
    ck_assert_ptr_eq(again, ops);
}
END_TEST

/* At most 16, with a message; the failed one leaves room. */
START_TEST(many_are_refused)
{
    char url[256];
    struct plugin_file file;
    plugin_file_make(&file, TIERCE_PLUGIN_POLICY);
    for (unsigned i = 1; i <= 17; i++) {
        snprintf(url, sizeof(url), "plugin://%s?uses=%u", file.path, i);
        int rc = tierce__policy_open(&ops, url, why);
        if (i == 17)
            expect_refused(rc, "at most 16 different plug-ins");
        else
            ck_assert_int_eq(rc, 0);
    }
    plugin_file_remove(&file);
}
END_TEST

/* Wrong answers never name a slot that is free or pinned, and every entry can be evicted. */
START_TEST(wrong_victims_are_replaced)
{
    enum { SLOTS = 50 };
    bool in[SLOTS] = {false}, pinned[SLOTS] = {false};
    struct tierce__policy *policy;
    struct test_random random = test_random_start("wrong victims");
    uint32_t count = 0, slot;
    ck_assert_int_eq(open_file(TIERCE_WRONG_POLICIES "/libwrong_policy_10.so", ""), 0);
    struct tierce__policy_opts opts = {
        .size = sizeof(opts), .slot_count = SLOTS, .capacity = SLOTS, .ops = ops};
    ck_assert_int_eq(ops->create(&policy, &opts), 0);
    for (unsigned i = 0; i < 20000; i++) {
        uint32_t at = test_random_below(&random, SLOTS);
        if (!in[at]) {
            ops->insert(policy, at,
                        &(struct tierce__policy_entry){.bytes = 1, .parent = TIERCE__NO_SLOT});
            in[at] = true;
            count++;
        } else if (test_random_below(&random, 2) == 0) {
            pinned[at] = !pinned[at];
            ops->set_evictable(policy, at, !pinned[at]);
        }
        bool expires = test_random_below(&random, 4) == 0;
        if (expires ? tierce__policy_expired(policy, i, &slot) : ops->victim(policy, i, &slot)) {
            ck_assert(in[slot] && !pinned[slot]);
            ops->remove(policy, slot, true);
            in[slot] = false;
            count--;
        }
    }
    for (slot = 0; slot < SLOTS; slot++) {
        if (in[slot])
            ops->set_evictable(policy, slot, true);
    }
    for (; ops->victim(policy, 0, &slot); count--)
        ops->remove(policy, slot, true);
    ck_assert_uint_eq(count, 0);
    ops->destroy(policy);
}
END_TEST

CHECK_MAIN("plugin policy",
           .tests = {wrong_names_are_refused, a_url_is_loaded_once, many_are_refused,
                     wrong_victims_are_replaced},
           .loops = {{wrong_plugins_are_refused, 0, sizeof(wrong) / sizeof(*wrong)}})
