/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "base/alloc.h"
#include "manager/manager_config.h"
#include "manager/config_kvcm.h"
#include "manager/registry/startup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARGS(...)                                                                                  \
    (char *const[])                                                                                \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }
#define ENV(...)                                                                                   \
    (char *const[])                                                                                \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static struct tierce__manager_config config;
static struct tierce__config_error error;
static char *warnings;
static uint64_t live;

static void set_up(void)
{
    live = tierce__alloc_live();
}

static void forget(void)
{
    tierce__manager_config_clear(&config);
    tierce__free(warnings);
    warnings = NULL;
}

static void tear_down(void)
{
    forget();
    ck_assert_uint_eq(tierce__alloc_live(), live);
}

static int load(char *const *args, char *const *env)
{
    int argc = 0;
    forget();
    while (args != NULL && args[argc] != NULL)
        argc++;
    return tierce__manager_config_load(&config, argc, args, env, &warnings, &error);
}

static void take(char *const *args, char *const *env)
{
    int rc = load(args, env);
    ck_assert_msg(rc == 0, "%s", error.text);
}

static void assert_refused(char *const *args, char *const *env, const char *part)
{
    ck_assert_int_eq(load(args, env), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(error.text, part) != NULL, "%s", error.text);
}

/* A file in /tmp, gone with the test. */
static char *write_file(const char *text)
{
    static char path[40];
    snprintf(path, sizeof(path), "/tmp/tierce-config-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    return path;
}

START_TEST(test_nothing_said)
{
    take(NULL, NULL);
    ck_assert_int_eq(config.action, TIERCE__MANAGER_RUN);
    ck_assert_str_eq(config.host, "127.0.0.1");
    ck_assert_uint_eq(config.grpc_port, 6381);
    ck_assert_uint_eq(config.http_port, 6382);
    ck_assert_uint_eq(config.admin_grpc_port, 6491);
    ck_assert_uint_eq(config.admin_http_port, 6492);
    ck_assert(!config.shares_grpc && !config.has_debug && !config.is_insecure);
    ck_assert_uint_eq(config.debug_http_port, 9382);
    ck_assert_uint_eq(config.message_bytes_max, 64u << 20);
    ck_assert_str_eq(config.registry_uri, "");
    ck_assert_str_eq(config.startup_file, "");
    ck_assert_uint_eq(config.elector_lease_ms, 10000);
    ck_assert_uint_eq(config.elector_interval_ms, 100);
    ck_assert_uint_eq(config.delete_threads, 8);
    ck_assert_int_eq(config.log_level, TIERCE_LOG_INFO);
    ck_assert_str_eq(config.log_folder, "logs");
    ck_assert(config.logs_metrics && !config.logs_to_console);
    ck_assert_uint_eq(config.metrics_interval_ms, 20000);
    ck_assert_ptr_null(warnings);
}
END_TEST

/* Every source beats the ones before it. */
START_TEST(test_precedence)
{
    char yaml[40], kvcm[40];
    char dotted[] = "kvcm.leader_elector.node_id=dotted",
         upper[] = "TIERCE_MANAGER_ELECTOR_NODE_ID=upper";
    snprintf(yaml, sizeof(yaml), "%s", write_file("elector:\n  node_id: yaml\nserve.workers: 7\n"));
    snprintf(kvcm, sizeof(kvcm), "%s", write_file("kvcm.leader_elector.node_id = file\n"));
    take(ARGS("--config", yaml), NULL);
    ck_assert_str_eq(config.node_id, "yaml");
    ck_assert_uint_eq(config.workers, 7);
    take(ARGS("--config", yaml, "-c", kvcm), NULL);
    ck_assert_str_eq(config.node_id, "file");
    ck_assert_uint_eq(config.workers, 7);
    take(ARGS("-e", "kvcm.leader_elector.node_id=one", "--env=kvcm.leader_elector.node_id=two",
              "--config_file", kvcm),
         NULL);
    ck_assert_str_eq(config.node_id, "one");
    take(ARGS("-e", "kvcm.leader_elector.node_id=one", "-c", kvcm), ENV(dotted));
    ck_assert_str_eq(config.node_id, "dotted");
    take(ARGS("-c", kvcm), ENV(dotted, upper));
    ck_assert_str_eq(config.node_id, "upper");
    take(ARGS("-c", kvcm, "--elector.node_id=flag"), ENV(dotted, upper));
    ck_assert_str_eq(config.node_id, "flag");
    char variable[80];
    snprintf(variable, sizeof(variable), "TIERCE_MANAGER_CONFIG=%s", yaml);
    take(NULL, ENV(variable));
    ck_assert_str_eq(config.node_id, "yaml");
    ck_assert_msg(
        strstr(tierce__config_source(config.values, TIERCE__MANAGER_ELECTOR_NODE_ID), yaml) != NULL,
        "%s", tierce__config_source(config.values, TIERCE__MANAGER_ELECTOR_NODE_ID));
    unlink(yaml);
    unlink(kvcm);
}
END_TEST

/* The configuration shipped with KVCM, and all its other keys. */
START_TEST(test_kvcm_keys)
{
    char *path = write_file("# what a server listens at\n"
                            "kvcm.service.rpc_port = 7001   # gRPC\n"
                            "kvcm.service.http_port=7002\r\n"
                            "  kvcm.service.admin_rpc_port\t=  7003\n"
                            "kvcm.service.admin_http_port = 7004\n"
                            "kvcm.service.io_thread_num = 2\n"
                            "kvcm.service.enable_debug_service = true\n"
                            "\n"
                            "kvcm.registry_storage.uri = redis://u:p#w@h:1?cluster_name=c\n"
                            "kvcm.distributed_lock.uri = file:///tmp/lock\n"
                            "kvcm.leader_elector.lease_ms = 5000\n"
                            "kvcm.leader_elector.loop_interval_ms = 50\n"
                            "kvcm.logger.log_level = 5\n"
                            "kvcm.startup_config = /etc/startup.json\n"
                            "kvcm.schedule_plan_executor_thread_count = 0\n"
                            "kvcm.metrics.reporter_type = dummy\n"
                            "kvcm.metrics.reporter_config =\n"
                            "kvcm.metrics.report_interval_ms = 1000\n"
                            "kvcm.event.event_publishers_configs =\n"
                            "tierce.serve.workers = 9\n"
                            "kvcm.metrics.report_interval_ms = 2000");
    take(ARGS("-c", path, "-d"), NULL);
    ck_assert(config.is_daemon);
    ck_assert_uint_eq(config.grpc_port, 7001);
    ck_assert_uint_eq(config.http_port, 7002);
    ck_assert_uint_eq(config.admin_grpc_port, 7003);
    ck_assert_uint_eq(config.admin_http_port, 7004);
    ck_assert_uint_eq(config.debug_http_port, 10002);
    ck_assert(config.has_debug);
    ck_assert_str_eq(config.registry_uri, "redis://u:p#w@h:1?cluster_name=c");
    ck_assert_str_eq(config.elector_uri, "file:///tmp/lock");
    ck_assert_uint_eq(config.elector_lease_ms, 5000);
    ck_assert_uint_eq(config.elector_interval_ms, 50);
    ck_assert_int_eq(config.log_level, TIERCE_LOG_DEBUG);
    ck_assert_str_eq(config.startup_file, "/etc/startup.json");
    ck_assert_uint_eq(config.delete_threads, 1);
    ck_assert(!config.logs_metrics);
    ck_assert_uint_eq(config.metrics_interval_ms, 2000); /* the last of a file */
    ck_assert_uint_eq(config.workers, 9);
    ck_assert_ptr_null(warnings);
    unlink(path);
}
END_TEST

/* As in the original: a port that is not named is 0, and without one of its own administration
 * shares. */
START_TEST(test_ports)
{
    take(ARGS("-ekvcm.service.rpc_port=7001", "-e", "kvcm.service.http_port=7002"), NULL);
    ck_assert_uint_eq(config.grpc_port, 7001);
    ck_assert(config.shares_grpc);
    ck_assert_uint_eq(config.admin_grpc_port, 7001);
    ck_assert_uint_eq(config.admin_http_port, 0);
    take(ARGS("--listen.admin_grpc_port=6381"), NULL);
    ck_assert(config.shares_grpc);
    take(ARGS("--listen.http_port=0", "--listen.debug=true"), NULL);
    ck_assert_uint_eq(config.debug_http_port, 0);
    assert_refused(ARGS("--listen.http_port=6381"), NULL,
                   "listen.grpc_port and listen.http_port are both 6381");
    assert_refused(ARGS("--listen.debug=on", "--listen.admin_http_port=9382"), NULL, "9382");
    take(ARGS("--listen.admin_http_port=9382"), NULL);
    assert_refused(ARGS("--listen.debug=on", "--listen.http_port=62536"), NULL, "62536");
    assert_refused(ARGS("--listen.grpc_port=65536"), NULL, "65535");
}
END_TEST

START_TEST(test_who_may_reach_it)
{
    static char *const hosts[] = {"0.0.0.0",      "::",        "10.1.2.3", "example.org",
                                  "127.evil.org", "128.0.0.1", ""};
    char flag[60];
    for (size_t i = 0; i < sizeof(hosts) / sizeof(*hosts); i++) {
        snprintf(flag, sizeof(flag), "--listen.host=%s", hosts[i]);
        assert_refused(ARGS(flag), NULL, "listen.insecure: true");
        assert_refused(ARGS(flag), NULL, "auth.required with tls.certificate and tls.key");
        assert_refused(ARGS(flag, "--auth.required=true", "--auth.token_file=t"), NULL,
                       "listen.insecure");
        assert_refused(ARGS(flag, "--tls.certificate=c", "--tls.key=k"), NULL, "listen.insecure");
        take(ARGS(flag, "--listen.insecure=true"), NULL);
        take(ARGS(flag, "--auth.required=true", "--auth.token_file=t", "--tls.certificate=c",
                  "--tls.key=k"),
             NULL);
    }
    assert_refused(ARGS("--auth.required=true"), NULL, "auth.token_file");
    take(ARGS("--auth.required=true", "--registry.uri=local:///r"), NULL);
    take(ARGS("--listen.host=127.0.0.2"), NULL);
    take(ARGS("--listen.host=::1"), NULL);
    take(ARGS("--listen.host=localhost"), NULL);
    assert_refused(ARGS("--tls.key=k"), NULL, "must be set together");
    assert_refused(ARGS("--tls.client_ca=k"), NULL, "tls.client_ca");
    assert_refused(ARGS("--elector.lease=150ms"), NULL, "elector.lease");
}
END_TEST

START_TEST(test_workers_of_lmcache)
{
    take(ARGS("--listen.host=localhost"), NULL);
    ck_assert_uint_eq(config.lmcache_pull_port, 0);
    ck_assert_uint_eq(config.lmcache_http_port, 0);
    ck_assert(config.has_lmcache_hash && config.lmcache_hash.chunk_tokens == 256);
    take(ARGS("--lmcache.pull_port=8300", "--lmcache.reply_port=8400", "--lmcache.hash=off"), NULL);
    ck_assert(!config.has_lmcache_hash);
    assert_refused(ARGS("--lmcache.pull_port=8300", "--lmcache.reply_port=8300"), NULL,
                   "lmcache.pull_port and lmcache.reply_port are both 8300");
    assert_refused(ARGS("--lmcache.pull_port=8300", "--lmcache.host=10.0.0.1"), NULL,
                   "listen.insecure: true");
    assert_refused(ARGS("--lmcache.pull_port=8300", "--lmcache.host="), NULL, "lmcache.host");
    take(ARGS("--lmcache.pull_port=8300", "--lmcache.host=10.0.0.1", "--listen.insecure=true"),
         NULL);
    assert_refused(
        ARGS("--lmcache.heartbeat_port=8300", "--lmcache.host=0.0.0.0", "--listen.insecure=true"),
        NULL, "lmcache.address");
    take(ARGS("--lmcache.heartbeat_port=8300", "--lmcache.host=::", "--lmcache.address=10.0.0.1",
              "--listen.insecure=true"),
         NULL);
    assert_refused(ARGS("--lmcache.group="), NULL, "lmcache.group has 0 bytes");
    assert_refused(ARGS("--lmcache.none_hash=x"), NULL, "lmcache.none_hash is \"x\"");
    take(ARGS("--lmcache.hash=sha256_cbor", "--lmcache.none_hash=vllm"), NULL);
    ck_assert_uint_ne(config.lmcache_hash.none_hash.magnitude, 0);
    take(ARGS("--lmcache.none_hash=-ff"), NULL);
    ck_assert(config.lmcache_hash.none_hash.negative);
    ck_assert_uint_eq(config.lmcache_hash.none_hash.magnitude, 255);
}
END_TEST

START_TEST(test_warnings)
{
    char typo[] = "kvcm.service.rpc_prt=1";
    take(ARGS("-e", "other=1", "-e", "kvcm.metrics.reporter_type=kmonitor", "-l", "log.conf"),
         ENV(typo));
    ck_assert_ptr_nonnull(warnings);
    ck_assert_msg(strstr(warnings, "\"kvcm.service.rpc_prt\"; the nearest one is "
                                   "\"kvcm.service.rpc_port\"") != NULL,
                  "%s", warnings);
    ck_assert_ptr_nonnull(strstr(warnings, "\"other\""));
    ck_assert_ptr_nonnull(strstr(warnings, "kmonitor"));
    ck_assert_ptr_nonnull(strstr(warnings, "log.conf"));
    ck_assert_uint_eq(config.grpc_port, 6381);
}
END_TEST

START_TEST(test_log_variables)
{
    char level[] = "KVCM_LOG_LEVEL=WARN", console[] = "KVCM_LOG_TO_CONSOLE=1";
    take(NULL, ENV(level, console));
    ck_assert_int_eq(config.log_level, TIERCE_LOG_WARN);
    ck_assert(config.logs_to_console);
    static const enum tierce_log_level levels[] = {TIERCE_LOG_INFO,  TIERCE_LOG_ERROR,
                                                   TIERCE_LOG_ERROR, TIERCE_LOG_WARN,
                                                   TIERCE_LOG_INFO,  TIERCE_LOG_DEBUG};
    for (int i = 0; i < 6; i++) {
        char pair[40];
        snprintf(pair, sizeof(pair), "kvcm.logger.log_level=%d", i);
        take(ARGS("-e", pair), NULL);
        ck_assert_int_eq(config.log_level, levels[i]);
    }
    assert_refused(ARGS("-e", "kvcm.logger.log_level=6"), NULL, "log.level");
}
END_TEST

START_TEST(test_refused)
{
    char unknown[] = "TIERCE_MANAGER_LISTEN_HSOT=x";
    char *path = write_file("kvcm.service.rpc_port 7001\n");
    assert_refused(ARGS("-c", path), NULL, ":1: \"kvcm.service.rpc_port 7001\" is not");
    unlink(path);
    path = write_file("\n\nkvcm.service.rpc_port = many\n");
    assert_refused(ARGS("-c", path), NULL, "listen.grpc_port");
    assert_refused(ARGS("-c", path), NULL, ":3 kvcm.service.rpc_port");
    unlink(path);
    ck_assert_int_eq(load(ARGS("-c", "/nowhere/at/all"), NULL), -ENOENT);
    ck_assert_ptr_nonnull(strstr(error.text, "/nowhere/at/all"));
    ck_assert_int_eq(load(ARGS("--config=/nowhere/at/all"), NULL), -ENOENT);
    assert_refused(ARGS("-e", "novalue"), NULL, "KEY=VALUE");
    assert_refused(ARGS("-e", "tierce.listen.hots=x"), NULL, "listen.host");
    assert_refused(ARGS("-c"), NULL, "-c requires a value");
    assert_refused(ARGS("--env"), NULL, "--env requires a value");
    assert_refused(ARGS("--listen.hots=x"), NULL, "listen.host");
    assert_refused(ARGS("serve"), NULL, "serve");
    assert_refused(ARGS("--listen.host"), NULL, "--listen.host");
    assert_refused(NULL, ENV(unknown), "TIERCE_MANAGER_LISTEN_HOST");
}
END_TEST

START_TEST(test_help_and_version)
{
    char broken[] = "TIERCE_MANAGER_NO_SUCH=1";
    take(ARGS("-h"), ENV(broken));
    ck_assert_int_eq(config.action, TIERCE__MANAGER_HELP);
    take(ARGS("--version"), ENV(broken));
    ck_assert_int_eq(config.action, TIERCE__MANAGER_VERSION);
}
END_TEST

START_TEST(test_no_memory)
{
    char env[] = "kvcm.foo=1";
    char *path = write_file("kvcm.service.rpc_port = 7001\n# none\nkvcm.x=1\n");
    for (uint64_t nth = 1, failed = 1; failed > 0; nth++) {
        forget();
        tierce__alloc_fail_nth(nth);
        int rc = load(ARGS("-c", path, "-e", "kvcm.y=1", "--serve.workers=2"), ENV(env));
        failed = tierce__alloc_fail_nth(0) >= nth;
        ck_assert_int_eq(rc, failed ? -ENOMEM : 0);
    }
    unlink(path);
}
END_TEST

START_TEST(test_the_state_folder)
{
    static const struct {
        char *env[4];
        const char *folder; /* NULL: none */
    } cases[] = {
        {{"STATE_DIRECTORY=/var/lib/a", "XDG_STATE_HOME=/x", "HOME=/h"}, "/var/lib/a"},
        {{"STATE_DIRECTORY=/var/lib/a:/var/lib/b"}, "/var/lib/a"},
        {{"XDG_STATE_HOME=/x", "HOME=/h"}, "/x/tierce/manager"},
        {{"XDG_STATE_HOME=x", "STATE_DIRECTORY=", "HOME=/h"}, "/h/.local/state/tierce/manager"},
        {{"HOME=here"}, NULL},
        {{NULL}, NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        take(NULL, cases[i].env);
        if (cases[i].folder != NULL)
            ck_assert_str_eq(config.state_folder, cases[i].folder);
        else
            ck_assert_ptr_null(config.state_folder);
    }
}
END_TEST

START_TEST(test_the_state_folder_is_made)
{
    char folder[] = "/tmp/tierce-state-XXXXXX", path[64];
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "%s/a/b/c", folder);
    ck_assert_int_eq(tierce__state_folder_make(path), 0);
    ck_assert_int_eq(tierce__state_folder_make(path), 0);
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert(S_ISDIR(info.st_mode) && (info.st_mode & 077) == 0);
    ck_assert_int_eq(tierce__state_folder_make("/dev/null/a"), -ENOTDIR);
    for (size_t n = strlen(path); n >= strlen(folder); n -= 2) {
        path[n] = '\0';
        ck_assert_int_eq(rmdir(path), 0);
    }
}
END_TEST

CHECK_MAIN("manager_config", .setup = set_up, .teardown = tear_down,
           .tests = {test_nothing_said, test_precedence, test_kvcm_keys, test_ports,
                     test_who_may_reach_it, test_workers_of_lmcache, test_warnings,
                     test_log_variables, test_refused, test_help_and_version, test_no_memory,
                     test_the_state_folder, test_the_state_folder_is_made})
