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
           .tests = {settings_of_tiers_that_are_not_there_are_logged},
           .loops = {{the_bound_of_the_load_time_is_configured, 0, 2}})
