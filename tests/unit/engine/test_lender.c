/* SPDX-License-Identifier: Apache-2.0 */
/* The two lenders of an engine: which one it has, and that neither lacks a call. */
#include <string.h>

#include "base/alloc.h"
#include "check_main.h"
#include "engine/lender.h"
#include "engine_fixture.h"

typedef void (*call_fn)(void);

static size_t calls_missing(const struct tierce__lender *lender)
{
    call_fn calls[sizeof(*lender) / sizeof(call_fn)];
    size_t missing = 0;
    memcpy(calls, lender, sizeof(*lender));
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        missing += calls[i] == NULL;
    return missing;
}

START_TEST(no_call_is_missing)
{
    ck_assert_uint_eq(calls_missing(&tierce__own_tiers), 0);
    ck_assert_uint_eq(calls_missing(&tierce__node_client), 0);
    struct tierce__lender lacking = tierce__own_tiers;
    lacking.flush = NULL;
    ck_assert_uint_eq(calls_missing(&lacking), 1);
}
END_TEST

static const struct tierce__lender *lender_with(const char *name, const char *value)
{
    char why[TIERCE_CONFIG_ERROR_BYTES];
    struct tierce_config *config = NULL;
    ck_assert_int_eq(tierce_config_create(&config), 0);
    ck_assert_int_eq(tierce_config_set(config, name, value, why), 0);
    struct tierce_engine *engine = NULL;
    ck_assert_int_eq(tierce_engine_open(&engine, config, why), 0);
    const struct tierce__lender *lender = engine->lender;
    ck_assert_uint_eq(engine->level_count > 0, lender == &tierce__own_tiers);
    tierce_engine_close(engine);
    tierce_config_destroy(config);
    return lender;
}

START_TEST(the_configuration_chooses)
{
    ck_assert_ptr_eq(lender_with("memory.size", "16MiB"), &tierce__own_tiers);
    ck_assert_ptr_eq(lender_with("node.socket", "/nowhere/node.sock"), &tierce__node_client);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

CHECK_MAIN("lender", .tests = {no_call_is_missing, the_configuration_chooses})
