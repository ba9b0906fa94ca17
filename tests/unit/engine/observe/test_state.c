/* SPDX-License-Identifier: Apache-2.0 */
/* The reported state of an engine whose disk is full or cannot be used, and `strict`. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine/observe/engine_metrics.h"
#include "engine_fixture.h"
#include "log_record.h"
#include "object_fixture.h"
#include "small_disk.h"
#include "tier_fault.h"

#include <errno.h>

#include <tierce/log.h>
#include <tierce/operate.h>

static struct fixture fx;
static void set_up(void)
{
    fx = (struct fixture){0};
}

static const char *state(void)
{
    struct tierce_engine_stats stats = fx_stats(&fx);
    return tierce__engine_condition_name(tierce__engine_condition(&stats));
}

static int64_t metric(const char *name)
{
    char text[64];
    size_t bytes;
    char *page = tierce__engine_metrics(fx.engine, &bytes);
    int n = snprintf(text, sizeof(text), "\n%s ", name);
    const char *at = strstr(page, text);
    ck_assert_ptr_nonnull(at);
    int64_t value = strtoll(at + n, NULL, 10);
    tierce__free(page);
    return value;
}

static int open_strictly(const char *name, const char *value, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    struct tierce_config *config;
    struct tierce_engine *engine;
    ck_assert_int_eq(tierce_config_create(&config), 0);
    ck_assert_int_eq(tierce_config_set(config, name, value, why), 0);
    int rc = tierce_engine_open(&engine, config, why);
    ck_assert_int_eq(rc, 0); /* not strict: it goes on with what there is */
    tierce_engine_close(engine);
    ck_assert_int_eq(tierce_config_set(config, "strict", "true", why), 0);
    rc = tierce_engine_open(&engine, config, why);
    tierce_config_destroy(config);
    return rc;
}

START_TEST(strict_requires_the_folder)
{
    char why[TIERCE_CONFIG_ERROR_BYTES];
    ck_assert_int_eq(open_strictly("disk.path", "/proc/none", why), -ENOENT);
    ck_assert_str_eq(why, "disk.path: /proc/none cannot be used: No such file or directory; "
                          "the parent folder must exist: create it");
}
END_TEST

START_TEST(strict_requires_the_node)
{
    char why[TIERCE_CONFIG_ERROR_BYTES];
    ck_assert_int_eq(open_strictly("node.socket", "/proc/none", why), TIERCE_E_DOWN);
    ck_assert_str_eq(why, "node.socket: no node answers on /proc/none within timeout.lookup");
}
END_TEST

START_TEST(a_disk_that_is_refused)
{
    snprintf(fx.folder, sizeof(fx.folder), "/proc/none");
    fx_open(&fx, true, NULL);
    fx.folder[0] = '\0';
    ck_assert_str_eq(state(), "memory only");
    ck_assert_int_eq(metric("tierce_memory_only_now"), 1);
    fx_close(&fx);
    fx_remove(&fx);
    fx_open(&fx, false, NULL);
    ck_assert_str_eq(state(), "ok"); /* none was wanted */
    fx_close(&fx);
}
END_TEST

/* Stores prompts until the state is what is waited for: room is looked for once in a while. */
static void store_until(const char *wanted, uint32_t seed)
{
    uint64_t deadline_ns = tierce__deadline_in_ms(60000);
    while (strcmp(state(), wanted) != 0 && tierce__now_ns() < deadline_ns) {
        struct tierce_chain *chain = fx_chain(&fx, seed++, 4, 0);
        ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
        tierce_chain_destroy(chain);
    }
    ck_assert_str_eq(state(), wanted);
}

START_TEST(a_disk_that_is_full)
{
    snprintf(fx.folder, sizeof(fx.folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(fx.folder);
    small_disk_mount(fx.folder, 40 << 20);
    fx_open(&fx, true, NULL); /* 16 MiB */
    ck_assert_str_eq(state(), "ok");
    small_disk_fill(fx.folder, 4 << 20);
    store_until("disk full", 1);
    ck_assert_int_eq(metric("tierce_disk_full_now"), 1);
    ck_assert_int_eq(metric("tierce_memory_only_now"), 0);
    small_disk_free(fx.folder);
    store_until("ok", 1000);
    ck_assert_int_eq(metric("tierce_disk_full_now"), 0);
    fx_close(&fx);
    umount(fx.folder);
    temp_folder_remove(fx.folder);
}
END_TEST

/* One line when a tier is lost, and one when it returns, however much it is used in between. */
START_TEST(a_tier_that_returns_is_told_once)
{
    struct tierce__objects *space;
    struct tierce__tier *fault;
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = -EIO};
    uint64_t deadline_ns = tierce__deadline_in_ms(60000);
    fx_open(&fx, true, (const char *const[]){"breaker.errors", "2", "breaker.retry", "20ms", NULL});
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
    fault = fx_wrap(&fx, 1);
    ck_assert_int_eq(ox_put(space, "x", 1, 300000), 0);
    ox_empty_memory(&fx);
    record_log(TIERCE_LOG_DEBUG);
    for (unsigned round = 1; round <= 3; round++) {
        tierce__fault_set(fault, TIERCE__STORE_GET, &rule);
        tierce__fault_set(fault, TIERCE__STORE_PING, &rule);
        while (recorded("tier_out_of_service") < round && tierce__now_ns() < deadline_ns)
            ck_assert_int_eq(ox_get(space, "x", NULL), 0);
        ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 0);
        ck_assert_str_eq(state(), "memory only");
        for (int i = 0; i < 20; i++)
            ck_assert_int_eq(ox_get(space, "x", NULL), 0);
        ck_assert_uint_eq(recorded("tier_in_service"), round - 1);
        tierce__fault_set(fault, TIERCE__STORE_GET, NULL);
        tierce__fault_set(fault, TIERCE__STORE_PING, NULL);
        while (fx_stats(&fx).disk_in_service_now == 0 && tierce__now_ns() < deadline_ns)
            (void)ox_get(space, "x", NULL);
        ck_assert_str_eq(state(), "ok");
        for (int i = 0; i < 20; i++) {
            ck_assert_int_eq(ox_get(space, "x", NULL), 1);
            ox_empty_memory(&fx);
        }
        ck_assert_uint_eq(recorded("tier_out_of_service"), round);
        ck_assert_uint_eq(recorded("tier_in_service"), round);
    }
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    tierce__objects_close(space);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(roles)
{
    fx_open(&fx, false, NULL);
    ck_assert_int_eq(tierce_engine_set_role(fx.engine, "vllm"), 0);
    struct tierce__line text = {0};
    tierce__engine_status(fx.engine, &text);
    ck_assert_ptr_nonnull(strstr(text.text, "\"role\":\"vllm\",\"state\":\"ok\""));
    tierce__line_clear(&text);
    static const char *const bad[] = {"", "a\"b", "a\x1b", "0123456789012345678901234567890x"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_int_eq(tierce_engine_set_role(fx.engine, bad[i]), TIERCE_E_ARGUMENT);
    fx_close(&fx);
}
END_TEST

int main(void)
{
    bool mounts = small_disk_permitted();
    Suite *suite = suite_create("state");
    TCase *t = tcase_create("state");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, set_up, NULL);
    tcase_add_test(t, strict_requires_the_folder);
    tcase_add_test(t, strict_requires_the_node);
    tcase_add_test(t, a_disk_that_is_refused);
    if (mounts)
        tcase_add_test(t, a_disk_that_is_full);
    tcase_add_test(t, a_tier_that_returns_is_told_once);
    tcase_add_test(t, roles);
    suite_add_tcase(suite, t);
    return small_disk_status(check_main(suite), mounts);
}
