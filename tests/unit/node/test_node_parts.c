/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "base/alloc.h"
#include "net/notify.h"
#include "node/node_config.h"
#include "node/resp/glob.h"
#include "node/node.h"
#include "log_record.h"
#include "silent_log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <tierce/log.h>

static bool matches(const char *pattern, const char *text)
{
    return tierce__glob_match(pattern, strlen(pattern), text, strlen(text));
}

START_TEST(test_patterns)
{
    ck_assert(matches("*", "") && matches("", "") && matches("a*c", "abbc") &&
              matches("a?c", "abc"));
    ck_assert(matches("*b*", "abc") && matches("[a-c]x", "bx") && matches("[^a]x", "bx"));
    ck_assert(matches("[c-a]x", "bx") && matches("\\*", "*") && matches("[\\]]", "]"));
    ck_assert(matches("a**b", "ab") && matches("*a*a", "aaa"));
    ck_assert(!matches("a", "") && !matches("", "a") && !matches("a*c", "ab") && !matches("?", ""));
    ck_assert(!matches("[a-c]", "d") && !matches("[^a]", "a") && !matches("\\*", "a"));
    ck_assert(!matches("[", "a") && !matches("[a", "b") && matches("[a", "a"));
}
END_TEST

START_TEST(test_a_pattern_that_would_take_for_ever)
{
    char pattern[200], text[1000];
    for (size_t i = 0; i < sizeof(pattern) - 1; i++)
        pattern[i] = i % 2 == 0 ? '*' : 'a';
    pattern[sizeof(pattern) - 1] = 'b';
    memset(text, 'a', sizeof(text));
    ck_assert(!tierce__glob_match(pattern, sizeof(pattern), text, sizeof(text)));
}
END_TEST

static int load(const char *const *arguments, struct tierce__config_error *error)
{
    struct tierce__node_config config = {0};
    char *argv[16];
    int argc = 0;
    for (; arguments[argc] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)arguments[argc];
    int rc = tierce__node_config_load(&config, argc, argv, NULL, error);
    if (rc == 0)
        tierce__node_config_clear(&config);
    return rc;
}

#define LOAD(...) load((const char *const[]){__VA_ARGS__, NULL}, &error)

START_TEST(test_whom_a_configuration_lets_in)
{
    struct tierce__config_error error = {""};
    ck_assert_int_eq(LOAD("--memory.size=1GiB", "--disk.size=2GiB"), 0);
    ck_assert_int_eq(LOAD("--listen.host=0.0.0.0"), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(error.text, "listen.insecure"));
    ck_assert_int_eq(LOAD("--listen.host=0.0.0.0", "--listen.lm=false"), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(error.text, "auth.token_file"));
    ck_assert_int_eq(LOAD("--listen.host=::", "--listen.lm=false", "--auth.token_file=t"),
                     TIERCE_E_CONFIG);
    ck_assert_int_eq(LOAD("--listen.host=::", "--listen.lm=false", "--auth.token_file=t",
                          "--tls.certificate=c", "--tls.key=k"),
                     0);
    ck_assert_int_eq(LOAD("--listen.host=::", "--listen.insecure=true"), 0);
    ck_assert_int_eq(LOAD("--listen.host=127.0.0.2"), 0);
    ck_assert_int_eq(LOAD("--tls.key=k"), TIERCE_E_CONFIG);
    ck_assert_int_eq(LOAD("--tls.client_ca=a"), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(error.text, "tls.certificate"));
    ck_assert_int_eq(LOAD("--listen.host=::", "--tls.client_ca=a", "--tls.certificate=c",
                          "--tls.key=k", "--listen.resp=false"),
                     0);
    ck_assert_int_eq(
        LOAD("--listen.host=::", "--tls.client_ca=a", "--tls.certificate=c", "--tls.key=k"),
        TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(error.text, "auth.token_file"));
    ck_assert_int_eq(LOAD("--listen.resp_port=7", "--listen.lm_port=7"), TIERCE_E_CONFIG);
    ck_assert_int_eq(LOAD("--listen.resp_prt=7"), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(error.text, "listen.resp_port"));
    ck_assert_int_eq(LOAD("nonsense"), TIERCE_E_CONFIG);
    ck_assert_int_eq(LOAD("--config"), TIERCE_E_CONFIG);
    ck_assert_int_eq(LOAD("--users"), TIERCE_E_CONFIG);
    ck_assert_str_eq(error.text, "--users requires a file");
    ck_assert_int_eq(LOAD("--users", "/a=b"), 0);
}
END_TEST

static bool may_wait(const char *argument)
{
    struct tierce__config_error error = {""};
    struct tierce__node_config config = {0};
    char *argv[] = {(char *)(uintptr_t)argument};
    ck_assert_int_eq(tierce__node_config_load(&config, 1, argv, NULL, &error), 0);
    bool may = config.may_wait;
    tierce__node_config_clear(&config);
    return may;
}

START_TEST(test_whose_loops_may_not_wait)
{
    ck_assert(!may_wait("--memory.size=1GiB"));
    ck_assert(may_wait("--disk.path=/tmp"));
    ck_assert(may_wait("--remote.urls=redis://127.0.0.1:1"));
}
END_TEST

/* Whatever fails, nothing is left of a node that could not start. */
START_TEST(test_each_allocation_of_a_start_fails_once)
{
    char folder[] = "/tmp/tierce-test-XXXXXX", listen[128], disk[128];
    char *argv[] = {listen,
                    disk,
                    (char *)"--listen.resp_port=0",
                    (char *)"--listen.lm_port=0",
                    (char *)"--listen.http_port=0",
                    (char *)"--control.socket=",
                    (char *)"--memory.size=4MiB",
                    (char *)"--disk.size=16MiB",
                    (char *)"--limit.connections_per_address=3",
                    (char *)"--serve.loops=2",
                    (char *)"--disk.lock_wait=0"};
    struct tierce__config_error error = {""};
    struct tierce__node_config config = {0};
    silence_log();
    temp_folder_make(folder);
    snprintf(listen, sizeof(listen), "--listen.native=%s/node", folder);
    snprintf(disk, sizeof(disk), "--disk.path=%s/disk", folder);
    int rc = tierce__node_config_load(&config, sizeof(argv) / sizeof(argv[0]), argv, NULL, &error);
    ck_assert_msg(rc == 0, "%s", error.text);
    uint64_t live = tierce__alloc_live(), nth = 1;
    for (bool failed = true; failed; nth++) {
        char why[TIERCE_CONFIG_ERROR_BYTES] = "";
        struct tierce__node *node = NULL;
        tierce__alloc_fail_nth(nth);
        rc = tierce__node_start(&node, &config, why);
        failed = tierce__alloc_fail_nth(0) >= nth;
        ck_assert_msg(rc == 0 || (rc == -ENOMEM && why[0] != '\0'), "%d: %s", rc, why);
        tierce__node_stop(node);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    ck_assert_uint_gt(nth, 80);
    tierce__node_config_clear(&config);
    temp_folder_remove(folder);
}
END_TEST

START_TEST(test_systemd_is_told)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char got[64], folder[] = "/tmp/tierce-notify-XXXXXX";
    temp_folder_make(folder);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", folder);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    unsetenv("NOTIFY_SOCKET");
    ck_assert(!tierce__notify("READY=1"));
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    ck_assert(tierce__notify("READY=1"));
    ssize_t n = recv(fd, got, sizeof(got), 0);
    ck_assert_int_eq(n, 7);
    ck_assert_mem_eq(got, "READY=1", 7);
    close(fd);
    unlink(address.sun_path);
    temp_folder_remove(folder);
    ck_assert(!tierce__notify("READY=1"));

    unsetenv("WATCHDOG_PID");
    setenv("WATCHDOG_USEC", "3000000", 1);
    ck_assert_uint_eq(tierce__notify_watchdog_ms(), 1500);
    setenv("WATCHDOG_PID", "1", 1);
    ck_assert_uint_eq(tierce__notify_watchdog_ms(), 0);
    unsetenv("WATCHDOG_PID");
    setenv("WATCHDOG_USEC", "soon", 1);
    ck_assert_uint_eq(tierce__notify_watchdog_ms(), 0);
}
END_TEST

/* A node without the descriptors that it needs does not start, and blames nothing else. */
START_TEST(test_a_start_without_descriptors_says_so)
{
    char *arguments[] = {(char *)"--listen.resp_port=0", (char *)"--listen.lm_port=0",
                         (char *)"--listen.http_port=0", (char *)"--control.socket="};
    char *const no_environment[] = {NULL};
    struct tierce__config_error error;
    struct tierce__node_config config;
    struct rlimit before, now;
    unsigned hints = 0;
    int rc = tierce__node_config_load(&config, 4, arguments, no_environment, &error);
    ck_assert_int_eq(rc, 0);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    rc = -EMFILE;
    for (rlim_t n = (rlim_t)dup(0); rc < 0; n++) {
        char why[TIERCE_CONFIG_ERROR_BYTES] = "";
        struct tierce__node *node;
        now = (struct rlimit){.rlim_cur = n, .rlim_max = before.rlim_max};
        ck_assert_uint_lt(n, 100);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &now), 0);
        rc = tierce__node_start(&node, &config, why);
        if (rc == 0)
            tierce__node_stop(node);
        ck_assert_msg(rc == 0 || rc == -ENOMEM || strstr(why, "memory") == NULL, "%s", why);
        hints += strstr(why, "ulimit -n") != NULL;
    }
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_uint_gt(hints, 0);
    tierce__node_config_clear(&config);
}
END_TEST

START_TEST(test_the_start_line_has_codec_and_encryption)
{
    char folder[] = "/tmp/tierce-test-XXXXXX", disk[128];
    char *argv[] = {(char *)"--disk.gpu_direct=1MiB",
                    disk,
                    (char *)"--listen.resp_port=0",
                    (char *)"--listen.lm_port=0",
                    (char *)"--listen.http_port=0",
                    (char *)"--control.socket=",
                    (char *)"--memory.size=4MiB",
                    (char *)"--memory.coded_size=2MiB",
                    (char *)"--disk.size=16MiB",
                    (char *)"--disk.codec=lossless",
                    (char *)"--disk.encryption=aes-256-gcm",
                    (char *)"--encryption.key_command=printf '1 %064d\\n' 1"};
    struct tierce__config_error error = {""};
    struct tierce__node_config config = {0};
    struct tierce__node *node = NULL;
    char why[TIERCE_CONFIG_ERROR_BYTES] = "", text[TIERCE__NODE_TEXT_BYTES];
    temp_folder_make(folder);
    snprintf(disk, sizeof(disk), "--disk.path=%s/disk", folder);
    int rc = tierce__node_config_load(&config, sizeof(argv) / sizeof(argv[0]), argv, NULL, &error);
    ck_assert_msg(rc == 0, "%s", error.text);
    record_log(TIERCE_LOG_WARN);
    rc = tierce__node_start(&node, &config, why);
    ck_assert_msg(rc == 0, "%s", why);
    ck_assert_uint_eq(recorded_with("setting_without_effect", "only engines without a node"), 1);
    ck_assert_uint_eq(recorded("setting_without_effect"), 1);
    silence_log();
    tierce__node_describe(node, text);
    ck_assert_msg(strstr(text, "memory 4MiB, compressed copies 2MiB, disk ") != NULL &&
                      strstr(text, "with 0 chunks (new chunks: lossless, aes-256-gcm)") != NULL,
                  "%s", text);
    tierce__node_stop(node);
    tierce__node_config_clear(&config);
    temp_folder_remove(folder);
}
END_TEST

START_TEST(test_settings_that_a_node_does_not_use_are_logged)
{
    static const char *const settings[] = {"codec.lossy", "blend.enabled", "plugins.start",
                                           "disk.gpu_direct", "disk.encryption"};
    char *argv[] = {(char *)"--listen.resp_port=0",
                    (char *)"--listen.lm_port=0",
                    (char *)"--listen.http_port=0",
                    (char *)"--control.socket=",
                    (char *)"--memory.size=4MiB",
                    (char *)"--codec.lossy=int8",
                    (char *)"--blend.enabled=true",
                    (char *)"--plugins.start=/srv/kv/exporter.py",
                    (char *)"--disk.gpu_direct=1MiB",
                    (char *)"--disk.encryption=aes-256-gcm",
                    (char *)"--encryption.key_command=printf '1 %064d\\n' 1"};
    struct tierce__config_error error = {""};
    struct tierce__node_config config = {0};
    struct tierce__node *node = NULL;
    char why[TIERCE_CONFIG_ERROR_BYTES] = "", line[64];
    int rc = tierce__node_config_load(&config, sizeof(argv) / sizeof(argv[0]), argv, NULL, &error);
    ck_assert_msg(rc == 0, "%s", error.text);
    record_log(TIERCE_LOG_WARN);
    rc = tierce__node_start(&node, &config, why);
    ck_assert_msg(rc == 0, "%s", why);
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        snprintf(line, sizeof(line), "setting=%s ", settings[i]);
        ck_assert_msg(recorded_with("setting_without_effect", line) == 1, "%s", settings[i]);
    }
    ck_assert_uint_eq(recorded("setting_without_effect"), sizeof(settings) / sizeof(settings[0]));
    tierce__node_stop(node);
    /* A vLLM that starts a node uses its own settings. */
    config.users_path = "/dev/null";
    record_log(TIERCE_LOG_WARN);
    rc = tierce__node_start(&node, &config, why);
    ck_assert_msg(rc == 0, "%s", why);
    ck_assert_uint_eq(recorded_with("setting_without_effect", "setting=disk."), 2);
    ck_assert_uint_eq(recorded("setting_without_effect"), 2);
    silence_log();
    tierce__node_stop(node);
    tierce__node_config_clear(&config);
}
END_TEST

CHECK_MAIN("node_parts", .seconds = 120,
           .tests = {test_patterns, test_a_pattern_that_would_take_for_ever,
                     test_whom_a_configuration_lets_in, test_whose_loops_may_not_wait,
                     test_settings_that_a_node_does_not_use_are_logged,
                     test_the_start_line_has_codec_and_encryption,
                     test_each_allocation_of_a_start_fails_once,
                     test_a_start_without_descriptors_says_so, test_systemd_is_told})
