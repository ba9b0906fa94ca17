/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a hand-over that need no engine: the hosts that may write, and the ranges of an object
 * that have arrived. */
#include "check_main.h"
#include "engine/handover/handover_hosts.h"
#include "engine/handover/handover_ranges.h"
#include "silent_log.h"
#include "test_random.h"

#include <stdio.h>
#include <string.h>

/* Names without an address, and those without room, are ignored; the others write. */
START_TEST(hosts_are_read)
{
    char names[400] = "", *at = names;
    struct tierce__hosts hosts = {0};
    memset(at, 'a', 300);
    snprintf(at + 300, 40, "  127.0.0.2\t::1 127.0.0.2");
    tierce__hosts_add(&hosts, names);
    ck_assert_uint_eq(hosts.count, 2);
    ck_assert(tierce__hosts_allow(&hosts, "127.0.0.2:1"));
    ck_assert(tierce__hosts_allow(&hosts, "[::ffff:127.0.0.2]:1"));
    ck_assert(tierce__hosts_allow(&hosts, "[::1]:1"));
    ck_assert(!tierce__hosts_allow(&hosts, "127.0.0.1:1"));
    ck_assert(!tierce__hosts_allow(&hosts, "127.0.0.2"));
    for (unsigned i = 3; i < 100; i++) {
        snprintf(names, sizeof(names), "127.0.0.%u", i);
        tierce__hosts_add(&hosts, names);
    }
    ck_assert_uint_eq(hosts.count, TIERCE__HOSTS_MAX);
    ck_assert(tierce__hosts_allow(&hosts, "127.0.0.64:9"));
    ck_assert(!tierce__hosts_allow(&hosts, "127.0.0.99:9"));
}
END_TEST

START_TEST(claims_against_a_model)
{
    struct test_random random = test_random_start("claims_against_a_model");
    for (unsigned round = 0; round < TEST_ROUNDS(400u) * test_scale(); round++) {
        bool taken[256] = {false};
        struct tierce__ranges ranges = {.total = sizeof(taken)};
        for (unsigned i = 0; i < 200; i++) {
            uint64_t offset = test_random_below(&random, 280);
            uint64_t length = test_random_below(&random, 12);
            bool fits = length > 0 && offset + length <= sizeof(taken);
            for (uint64_t b = offset; fits && b < offset + length; b++)
                fits = !taken[b];
            int rc = tierce__ranges_claim(&ranges, offset, length);
            ck_assert(fits ? rc == 0 || (rc == TIERCE_E_LIMIT && ranges.count == TIERCE__RANGES_MAX)
                           : rc == TIERCE_E_FORMAT);
            for (uint64_t b = offset; rc == 0 && b < offset + length; b++)
                taken[b] = true;
        }
        uint64_t bytes = 0, model = 0;
        for (size_t i = 0; i < sizeof(taken); i++)
            model += taken[i];
        for (size_t i = 0; i < ranges.count; i++) {
            ck_assert(i == 0 || ranges.items[i - 1].to < ranges.items[i].from);
            bytes += ranges.items[i].to - ranges.items[i].from;
        }
        ck_assert_uint_eq(bytes, model);
        ck_assert_int_eq(tierce__ranges_claim(&ranges, UINT64_MAX, 2), TIERCE_E_FORMAT);
        ck_assert_int_eq(tierce__ranges_claim(&ranges, 1, UINT64_MAX), TIERCE_E_FORMAT);
    }
}
END_TEST

CHECK_MAIN("handover_parts", .seconds = 60, .setup = silence_log,
           .tests = {hosts_are_read, claims_against_a_model})
