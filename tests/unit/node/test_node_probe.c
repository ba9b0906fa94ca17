/* SPDX-License-Identifier: Apache-2.0 */
/* The probe behind /readyz and the watchdog ends by one deadline, however long a store takes. */
#include "base/clock.h"
#include "check_main.h"
#include "engine/engine.h"
#include "node_harness.h"
#include "silent_log.h"
#include "temp_folder.h"
#include "tier_fault.h"

#include <stdlib.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct node_harness h;
static char folder[64], why[TIERCE__NODE_WHY_BYTES];

/* A node without a disk, whose remote store follows the rule when it deletes. */
static void start(const struct tierce__fault_rule *rule)
{
    char url[96];
    struct tierce__tier *fault;
    silence_log();
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
    snprintf(url, sizeof(url), "--remote.urls=file://%s/store", folder);
    char *arguments[] = {url, (char *)"--timeout.load=40s"};
    harness_start(&h, COUNT(arguments), arguments);
    struct tierce__level *level = &h.node->engine->levels[1];
    ck_assert_int_eq(tierce__fault_create(&fault, level->tier), 0);
    level->tier = fault;
    tierce__fault_set(fault, TIERCE__STORE_DELETE, rule);
}

static void stop(void)
{
    harness_stop(&h);
    temp_folder_remove(folder);
    unsetenv("WATCHDOG_USEC");
}

START_TEST(test_a_store_that_does_not_answer)
{
    setenv("WATCHDOG_USEC", "1500000", 1);
    start(&(struct tierce__fault_rule){.kind = TIERCE__FAULT_HANG});
    uint64_t late_ns = tierce__deadline_in_ms(20000);
    ck_assert(!tierce__node_is_ready(h.node, why));
    ck_assert_uint_lt(tierce__now_ns(), late_ns);
    ck_assert_str_eq(why, "a probe of the data path with a small value failed: no answer within "
                          "500 ms: waited for a disk or a remote store while storing the value");
    stop();
}
END_TEST

/* Each deletion alone is fast enough, and there are four. */
START_TEST(test_a_store_that_is_slow)
{
    setenv("WATCHDOG_USEC", "4500000", 1);
    start(&(struct tierce__fault_rule){.kind = TIERCE__FAULT_DELAY, .delay_ms = 500});
    ck_assert(!tierce__node_is_ready(h.node, why));
    ck_assert_msg(strstr(why, "no answer within 1500 ms: waited for a disk or a remote store "
                              "while ") != NULL,
                  "%s", why);
    setenv("WATCHDOG_USEC", "180000000", 1);
    ck_assert_msg(tierce__node_is_ready(h.node, why), "%s", why);
    unsetenv("WATCHDOG_USEC");
    ck_assert_msg(tierce__node_is_ready(h.node, why), "%s", why);
    stop();
}
END_TEST

CHECK_MAIN("the probe of a node", .seconds = 120,
           .tests = {test_a_store_that_does_not_answer, test_a_store_that_is_slow})
