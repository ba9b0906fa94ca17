/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "node/config.h"
#include "node/glob.h"
#include "node/notify.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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
    ck_assert_int_eq(LOAD("--listen.resp_port=7", "--listen.lm_port=7"), TIERCE_E_CONFIG);
    ck_assert_int_eq(LOAD("--listen.resp_prt=7"), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(error.text, "listen.resp_port"));
    ck_assert_int_eq(LOAD("nonsense"), TIERCE_E_CONFIG);
    ck_assert_int_eq(LOAD("--config"), TIERCE_E_CONFIG);
}
END_TEST

START_TEST(test_systemd_is_told)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char got[64], folder[] = "/tmp/tierce-notify-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
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
    rmdir(folder);
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

static Suite *suite(void)
{
    Suite *s = suite_create("node_parts");
    TCase *t = tcase_create("parts");
    tcase_add_test(t, test_patterns);
    tcase_add_test(t, test_a_pattern_that_would_take_for_ever);
    tcase_add_test(t, test_whom_a_configuration_lets_in);
    tcase_add_test(t, test_systemd_is_told);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return check_main(suite());
}
