/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_config.h"
#include "base/alloc.h"
#include "check_main.h"
#include <tierce/engine.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct tierce_config *config;
static char why[TIERCE_CONFIG_ERROR_BYTES];

static void set_up(void)
{
    unsetenv("TIERCE_CONFIG");
    ck_assert_int_eq(tierce_config_create(&config), 0);
}

static void tear_down(void)
{
    tierce_config_destroy(config);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* A message names the parameter that was meant, unless many have such a value. */
START_TEST(a_value_of_another_parameter_is_named)
{
    static const struct {
        const char *name, *value, *end;
    } wrong[] = {
        {"disk.codec", "fp8", "none|lossless|plugin://...; that is a value of codec.lossy"},
        {"remote.codec", "int8", "none|lossless|plugin://...; that is a value of codec.lossy"},
        {"codec.lossy", "lossless",
         "none|int8|int4|fp8|cachegen; that is a value of disk.codec and remote.codec"},
        {"disk.codec", "fp9", "none|lossless|plugin://..."},
        {"log.level", "none", NULL}, /* of more than two */
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ck_assert_int_eq(tierce_config_set(config, wrong[i].name, wrong[i].value, why),
                         TIERCE_E_CONFIG);
        const char *end = wrong[i].end;
        if (end == NULL)
            ck_assert_msg(strstr(why, "value of") == NULL, "%s", why);
        else
            ck_assert_msg(strlen(why) > strlen(end) &&
                              strcmp(why + strlen(why) - strlen(end), end) == 0,
                          "%s", why);
    }
}
END_TEST

START_TEST(defaults_are_those_of_the_table)
{
    ck_assert_uint_eq(tierce__engine_number(config, TIERCE__ENGINE_MEMORY_SIZE), 1ull << 30);
    ck_assert_uint_eq(tierce__engine_number(config, TIERCE__ENGINE_CHUNK_TOKENS), 256);
    ck_assert_uint_eq(tierce__engine_number(config, TIERCE__ENGINE_TIMEOUT_LOAD), 10000);
    ck_assert(tierce__engine_share(config, TIERCE__ENGINE_MEMORY_PINS) == 0.5);
    ck_assert(tierce__engine_bool(config, TIERCE__ENGINE_DISK_DIRECT));
    ck_assert_str_eq(tierce__engine_text(config, TIERCE__ENGINE_DISK_PATH), "");
    ck_assert_str_eq(tierce_config_get(config, "log.level"), "warn");
    ck_assert_ptr_null(tierce_config_get(config, "log.levels"));
    for (size_t row = 0; row < TIERCE__ENGINE_PARAMS; row++)
        ck_assert_ptr_nonnull(tierce_config_get(config, tierce__engine_params()[row].name));
}
END_TEST

/* The names of two parameters may not fall together in the environment. */
START_TEST(every_parameter_has_a_variable_of_its_own)
{
    for (size_t row = 0; row < TIERCE__ENGINE_PARAMS; row++) {
        const struct tierce__param *param = &tierce__engine_params()[row];
        char name[128], canonical[128];
        snprintf(name, sizeof(name), "TIERCE_%s", param->name);
        for (char *p = name; *p != '\0'; p++)
            *p = *p == '.' ? '_' : (char)(*p >= 'a' && *p <= 'z' ? *p - 32 : *p);
        snprintf(canonical, sizeof(canonical), "%s", tierce_config_get(config, param->name));
        ck_assert_int_eq(setenv(name, canonical, 1), 0);
        ck_assert_msg(tierce_config_load_env(config, why) == 0, "%s", why);
        ck_assert_int_eq(unsetenv(name), 0);
    }
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    tierce_config_print(config, out);
    fclose(out);
    ck_assert_ptr_null(strstr(text, "# default"));
    free(text);
}
END_TEST

START_TEST(file_environment_and_values_override_in_this_order)
{
    char path[] = "/tmp/tierce_engine_config_XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    static const char yaml[] = "memory: {size: 2GiB}\ndisk: {size: 3GiB, depth: 8}\n";
    ck_assert_int_eq(write(fd, yaml, sizeof(yaml) - 1), (ssize_t)sizeof(yaml) - 1);
    close(fd);
    setenv("TIERCE_DISK_SIZE", "4GiB", 1);
    setenv("TIERCE_TEST_DATA", "/x", 1);
    setenv("TIERCE_CONFIG", path, 1);
    setenv("TIERCE_EXECUTABLE", "/x", 1);
    setenv("TIERCE_PROXY_LISTEN_PORT", "1", 1);
    setenv("TIERCE_ROUTER_INDEX_CONFIG", "/x", 1);
    ck_assert_int_eq(tierce_config_load_file(config, path, why), 0);
    ck_assert_int_eq(tierce_config_load_env(config, why), 0);
    ck_assert_int_eq(tierce_config_set(config, "disk.depth", "9", why), 0);
    ck_assert_str_eq(tierce_config_get(config, "memory.size"), "2GiB");
    ck_assert_str_eq(tierce_config_get(config, "disk.size"), "4GiB");
    ck_assert_str_eq(tierce_config_get(config, "disk.depth"), "9");
    ck_assert_int_eq(tierce_config_set(config, "disk.dpeth", "9", why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "\"disk.depth\""));
    setenv("TIERCE_DISC_SIZE", "4GiB", 1);
    ck_assert_int_eq(tierce_config_load_env(config, why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "TIERCE_DISK_SIZE"));
    unlink(path);
}
END_TEST

/* Also an engine that is not strict does not open without its policy. */
START_TEST(a_policy_that_cannot_be_loaded_is_refused)
{
    static const char *const names[] = {"memory.policy", "disk.policy"};
    for (size_t i = 0; i < 2; i++) {
        struct tierce_engine *engine = NULL;
        char expected[64];
        snprintf(expected, sizeof(expected), "%s: plug-in /nothing/is/here.so: No such file",
                 names[i]);
        ck_assert_int_eq(tierce_config_set(config, names[i], "plugin:///nothing/is/here.so", why),
                         0);
        ck_assert_int_eq(tierce_engine_open(&engine, config, why), TIERCE_E_CONFIG);
        ck_assert_msg(strstr(why, expected) != NULL, "%s", why);
        ck_assert_int_eq(tierce_config_set(config, names[i], "plugin:///a\nb", why),
                         TIERCE_E_CONFIG);
        ck_assert_int_eq(tierce_config_set(config, names[i], "plugin://", why), TIERCE_E_CONFIG);
        ck_assert_ptr_nonnull(strstr(why, "plugin://..."));
        ck_assert_int_eq(tierce_config_set(config, names[i], "lru", why), 0);
    }
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    for (uint64_t nth = 1;; nth++) {
        struct tierce_config *made = NULL;
        tierce__alloc_fail_nth(nth);
        int rc = tierce_config_create(&made);
        if (rc == 0)
            rc = tierce_config_set(made, "disk.path", "/kv", why);
        uint64_t used = tierce__alloc_fail_nth(0);
        tierce_config_destroy(made);
        ck_assert(rc == 0 || rc == -12);
        if (rc == 0 && used < nth)
            break;
    }
}
END_TEST

CHECK_MAIN("engine_config", .setup = set_up, .teardown = tear_down,
           .tests = {a_value_of_another_parameter_is_named, defaults_are_those_of_the_table,
                     every_parameter_has_a_variable_of_its_own,
                     file_environment_and_values_override_in_this_order,
                     a_policy_that_cannot_be_loaded_is_refused, every_allocation_may_fail})
