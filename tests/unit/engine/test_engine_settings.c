/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of codecs and encryption reach the tiers that they are of, or are logged. */
#include "check_main.h"
#include "engine_fixture.h"
#include "log_record.h"
#include "silent_log.h"
#include "store/coded/coded_connector.h"
#include "store/coded/coded_tier.h"

static struct fixture fx;

/* codec.load_time is the bound of the disk and of each remote store. */
START_TEST(the_bound_of_the_load_time_is_configured)
{
    static const char *const bounds[] = {"95%", "250%"};
    static const double values[] = {0.95, 2.5};
    char folder[] = "/tmp/tierce-settings-XXXXXX", url[64];
    struct tierce__coded_stats stats;
    temp_folder_make(folder);
    snprintf(url, sizeof(url), "file://%s", folder);
    fx_open(&fx, true,
            (const char *const[]){"disk.codec", "lossless", "remote.codec", "lossless",
                                  "remote.urls", url, "codec.load_time", bounds[_i], NULL});
    tierce__coded_tier_stats(fx.engine->levels[1].coded, &stats);
    ck_assert_double_eq_tol(stats.load_time_max, values[_i], 1e-9);
    tierce__coded_connector_stats(fx.engine->levels[2].connector, &stats);
    ck_assert_double_eq_tol(stats.load_time_max, values[_i], 1e-9);
    fx_close(&fx);
    fx_remove(&fx);
    temp_folder_remove(folder);
}
END_TEST

/* "15% is 0.15" is a hint only where that is accepted. */
START_TEST(a_hint_is_within_the_bounds)
{
    struct tierce_config *config;
    char why[TIERCE_CONFIG_ERROR_BYTES];
    ck_assert_int_eq(tierce_config_create(&config), 0);
    ck_assert_int_eq(tierce_config_set(config, "codec.load_time", "10%", why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "accepted are values from 0.2") != NULL && strstr(why, "15%") == NULL,
                  "%s", why);
    tierce_config_destroy(config);
}
END_TEST

/* Keys without encryption only decrypt: one line for each tier. _i: bit 0: the disk encrypts; bit
 * 1: the remote stores do. */
START_TEST(tiers_in_the_clear_are_logged)
{
    char folder[] = "/tmp/tierce-clear-XXXXXX", url[64];
    temp_folder_make(folder);
    snprintf(url, sizeof(url), "file://%s", folder);
    const char *sets[] = {"remote.urls",
                          url,
                          "encryption.key_command",
                          "printf '1 %064d\\n' 1",
                          "disk.encryption",
                          (_i & 1) != 0 ? "aes-256-gcm" : "none",
                          "remote.encryption",
                          (_i & 2) != 0 ? "aes-256-gcm" : "none",
                          NULL};
    record_log(TIERCE_LOG_WARN);
    fx_open(&fx, true, sets);
    ck_assert_uint_eq(recorded_with("not_encrypted", "setting=disk.encryption"), (_i & 1) == 0);
    ck_assert_uint_eq(recorded_with("not_encrypted", "setting=remote.encryption"), (_i & 2) == 0);
    fx_close(&fx);
    silence_log();
    fx_remove(&fx);
    temp_folder_remove(folder);
}
END_TEST

START_TEST(settings_of_tiers_that_are_not_there_are_logged)
{
    static const char *const sets[] = {"disk.codec",
                                       "lossless",
                                       "disk.encryption",
                                       "aes-256-gcm",
                                       "encryption.key_command",
                                       "printf '1 %064d\\n' 1",
                                       "disk.gpu_direct",
                                       "1MiB",
                                       "remote.codec",
                                       "lossless",
                                       "remote.encryption",
                                       "aes-256-gcm",
                                       NULL};
    record_log(TIERCE_LOG_WARN);
    fx_open(&fx, false, sets);
    ck_assert_uint_eq(recorded_with("setting_without_effect", "setting=disk.codec value=lossless "),
                      1);
    ck_assert_uint_eq(recorded_with("setting_without_effect", "setting=disk.encryption value=aes"),
                      1);
    ck_assert_uint_eq(
        recorded_with("setting_without_effect", "setting=disk.gpu_direct value=1048576 "), 1);
    ck_assert_uint_eq(
        recorded_with("setting_without_effect", "setting=remote.codec value=lossless "), 1);
    ck_assert_uint_eq(
        recorded_with("setting_without_effect", "setting=remote.encryption value=aes"), 1);
    fx_close(&fx);
    fx_open(&fx, false, NULL);
    ck_assert_uint_eq(recorded("setting_without_effect"), 5);
    fx_close(&fx);
    silence_log();
    fx_remove(&fx);
}
END_TEST

CHECK_MAIN("engine_settings", .seconds = 60,
           .tests = {a_hint_is_within_the_bounds, settings_of_tiers_that_are_not_there_are_logged},
           .loops = {{the_bound_of_the_load_time_is_configured, 0, 2},
                     {tiers_in_the_clear_are_logged, 0, 4}})
