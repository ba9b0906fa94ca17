/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of an index without blocks: which models it knows, and that it keeps nothing of them. */
#include "check_main.h"
#include "silent_log.h"

#include "base/alloc.h"
#include "router/query.h"

#include <stdio.h>

static struct tierce__directory *directory;
static struct tierce__router_config config;
static struct tierce__tenant_words tokens, keys;
static struct tierce__sources *sources;

static void setup(void)
{
    char *argv[] = {(char *)(uintptr_t) "--limit.publishers=1"}, *env[] = {NULL};
    struct tierce__config_error error = {0};
    struct tierce__directory_opts opts = {.size = sizeof(opts), .workers_max = 4};
    silence_log();
    ck_assert_msg(tierce__router_config_load(&config, 1, argv, env, &error) == 0, "%s", error.text);
    ck_assert_int_eq(tierce__directory_create(&directory, &opts), 0);
    tierce__tenant_words_init(&tokens);
    tierce__tenant_words_init(&keys);
    ck_assert_int_eq(tierce__sources_create(&sources, directory, &config, &tokens, &keys), 0);
}

static void teardown(void)
{
    tierce__sources_destroy(sources);
    tierce__tenant_words_fini(&tokens);
    tierce__tenant_words_fini(&keys);
    tierce__directory_destroy(directory);
    tierce__router_config_clear(&config);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static int add(const char *instance, char why[256])
{
    struct tierce__source_opts opts = {.block_size = 4, .endpoint = "ipc:///nobody/is/there"};
    snprintf(opts.instance, sizeof(opts.instance), "%s", instance);
    snprintf(opts.model, sizeof(opts.model), "m");
    return tierce__sources_add(sources, &opts, why);
}

START_TEST(models_that_are_registered)
{
    static struct tierce__query_answer answer;
    static const uint32_t prompt[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const uint64_t hashes[2] = {1, 2};
    char why[256];
    const struct tierce__query queries[] = {
        {.tenant = "", .model = "m", .tokens = prompt, .count = 8},
        {.tenant = "", .model = "m", .hashes = hashes, .count = 2},
        {.tenant = "", .model = "m", .hashes = hashes, .count = 2, .is_standard = true},
        {.tenant = "", .model = "other", .tokens = prompt, .count = 8},
        {.tenant = "other", .model = "m", .tokens = prompt, .count = 8}};
    ck_assert_msg(add("1", why) == 0, "%s", why);
    ck_assert_int_eq(add("1", why), 0); /* the same one */
    ck_assert_int_eq(add("2", why), TIERCE_E_LIMIT);
    ck_assert_ptr_nonnull(strstr(why, "limit.publishers"));
    for (size_t i = 0; i < sizeof(queries) / sizeof(*queries); i++) {
        ck_assert_int_eq(tierce__query_run(&answer, sources, directory, &queries[i]), 0);
        ck_assert(answer.has_model == (i < 3));
        ck_assert_uint_eq(answer.count, 0);
    }
}
END_TEST

CHECK_MAIN("query", .setup = setup, .teardown = teardown, .tests = {models_that_are_registered})
