/* SPDX-License-Identifier: Apache-2.0 */
/* nixl://: libraries that are missing or wrong, transfers by NIXL and failed ones. Its store is
 * that of file://, and passes tests/conformance/test_nixl_connector.c. */
#include "base/alloc.h"
#include "check_main.h"
#include "connector_harness.h"
#include "log_record.h"
#include "nixl_here.h"
#include "plugin_file.h"
#include "store/remote/nixl/nixl_agents.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>

#define OBJECT_BYTES 300000u
#define THREADS      4
#define ROUNDS       20u

static char root[64], why[TIERCE__CONNECTOR_WHY_BYTES];
static struct tierce__pool *pool;
static struct tierce__connector *connector;
static struct tierce__nixl_agents *agents;
static struct plugin_file file;

static void setup(void)
{
    setenv("NIXL_LOG_LEVEL", "FATAL", 1); /* it logs each failed transfer */
    snprintf(root, sizeof(root), "/tmp/tierce-nixl-XXXXXX");
    temp_folder_make(root);
    pool = connector_pool();
}

static void teardown(void)
{
    tierce__pool_destroy(pool);
    temp_folder_remove(root);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static int open_url(const char *scheme, const char *params)
{
    char url[700];
    snprintf(url, sizeof(url), "%s://%s/store%s", scheme, root, params);
    return tierce__connector_open(&connector, url,
                                  &(struct tierce__connector_opts){
                                      .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                  why);
}

static int open_library(const char *path)
{
    char params[600];
    snprintf(params, sizeof(params), "?library=%s", path);
    return open_url("nixl", params);
}

static void close_connector(void)
{
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(10000)));
}

static void expect_refused(int rc, const char *words)
{
    ck_assert_int_eq(rc, TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, words) != NULL, "\"%s\" is not in \"%s\"", words, why);
}

/* ---- libraries ------------------------------------------------------------------------------- */

START_TEST(missing_and_wrong_libraries_are_refused)
{
    expect_refused(open_library("libnixl_capi.so"), "absolute path");
    expect_refused(open_library("/nothing/libnixl_capi.so"), "No such file");
    expect_refused(open_url("nixl", ""), "library=");
    expect_refused(open_url("nixl", "?names=path"), "names");
    plugin_file_make(&file, TIERCE_PLUGIN_MEMORY);
    expect_refused(open_library(file.path), "lacks the function nixl_capi_");
    ck_assert_int_eq(chmod(file.path, 0666), 0);
    expect_refused(open_library(file.path), "is writable for others");
    plugin_file_remove(&file);
}
END_TEST

/* A library, under the name that NIXL's has. */
static int open_copy(const char *from)
{
    char path[100], command[700];
    snprintf(path, sizeof(path), "%s/libnixl_capi.so", root);
    snprintf(command, sizeof(command), "cp '%s' %s && chmod 0644 %s", from, path, path);
    ck_assert_int_eq(system(command), 0);
    int rc = open_library(path);
    ck_assert_int_eq(unlink(path), 0);
    return rc;
}

START_TEST(other_versions_are_refused)
{
    expect_refused(open_copy(TIERCE_NIXL_OLD),
                   "must be " TIERCE__NIXL_VERSION "; the library has 1.4.0");
}
END_TEST

START_TEST(unknown_versions_are_refused)
{
    expect_refused(open_copy(TIERCE_NIXL_UNKNOWN), "is unknown; it must be " TIERCE__NIXL_VERSION);
}
END_TEST

START_TEST(a_missing_plugin_is_refused)
{
    setenv("NIXL_PLUGIN_DIR", root, 1);
    expect_refused(open_library(nixl_library()), "plug-in POSIX: the plug-in is missing");
}
END_TEST

/* ---- transfers ------------------------------------------------------------------------------- */

static void open_agents(void)
{
    struct tierce__nixl_agents_opts opts = {
        .size = sizeof(opts), .library = nixl_library(), .plugin = "POSIX"};
    tierce__pool_mapping(pool, &opts.memory, &opts.memory_bytes);
    ck_assert_msg(tierce__nixl_agents_open(&agents, &opts, why) == 0, "%s", why);
}

static int open_object(const char *name)
{
    char path[100];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static int transfer(enum tierce__nixl_operation operation, int fd, uint8_t *memory, uint64_t bytes,
                    uint64_t offset)
{
    return tierce__nixl_transfer(
        agents,
        &(struct tierce__nixl_transfer){
            .operation = operation, .fd = fd, .memory = memory, .bytes = bytes, .offset = offset});
}

START_TEST(a_failed_transfer_is_an_error_and_the_next_one_works)
{
    uint8_t outside[16];
    int fd = open_object("object");
    open_agents();
    struct tierce__buf *buf = connector_object(pool, 1, OBJECT_BYTES);
    ck_assert(tierce__nixl_agents_have(agents, buf->data, OBJECT_BYTES));
    ck_assert(!tierce__nixl_agents_have(agents, outside, sizeof(outside)));
    ck_assert(!tierce__nixl_agents_have(agents, buf->data, UINT64_MAX));
    ck_assert_int_eq(transfer(TIERCE__NIXL_WRITE, fd, buf->data, OBJECT_BYTES, 0), 0);
    for (unsigned i = 0; i < 3; i++) {
        memset(buf->data, 0, OBJECT_BYTES);
        ck_assert_int_eq(transfer(TIERCE__NIXL_READ, fd, buf->data, OBJECT_BYTES, 1), -EIO);
        ck_assert_int_eq(transfer(TIERCE__NIXL_READ, fd, buf->data + 77, 5000, 77), 0);
        ck_assert(connector_is_object(buf->data, 1, 77, 5000));
    }
    tierce__buf_release(buf);
    tierce__nixl_agents_close(agents);
    close(fd);
}
END_TEST

static void *run_thread(void *arg)
{
    uint32_t version = *(uint32_t *)arg;
    char name[16];
    snprintf(name, sizeof(name), "object%u", (unsigned)version);
    int fd = open_object(name);
    struct tierce__buf *buf = connector_object(pool, version, OBJECT_BYTES);
    ck_assert_int_eq(transfer(TIERCE__NIXL_WRITE, fd, buf->data, OBJECT_BYTES, 0), 0);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t from = 4096ull * i + i;
        memset(buf->data, 0, OBJECT_BYTES);
        ck_assert_int_eq(transfer(TIERCE__NIXL_READ, fd, buf->data, OBJECT_BYTES, from + 1), -EIO);
        ck_assert_int_eq(
            transfer(TIERCE__NIXL_READ, fd, buf->data + from, OBJECT_BYTES - from, from), 0);
        ck_assert(connector_is_object(buf->data, version, from, OBJECT_BYTES - from));
    }
    tierce__buf_release(buf);
    close(fd);
    return NULL;
}

START_TEST(failures_of_other_threads_do_no_harm)
{
    pthread_t threads[THREADS];
    uint32_t versions[THREADS];
    open_agents();
    for (uint32_t i = 0; i < THREADS; i++) {
        versions[i] = i + 1;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_thread, &versions[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tierce__nixl_agents_close(agents);
}
END_TEST

/* ---- the store ------------------------------------------------------------------------------- */

START_TEST(file_and_nixl_share_a_folder)
{
    ck_assert_int_eq(open_library(nixl_library()), 0);
    ck_assert_int_eq(connector_put(connector, pool, "by nixl", 1, OBJECT_BYTES), 0);
    close_connector();
    ck_assert_int_eq(open_url("file", ""), 0);
    ck_assert_int_eq(connector_get(connector, pool, "by nixl", 1, 5, OBJECT_BYTES - 5), 0);
    ck_assert_int_eq(connector_put(connector, pool, "by file", 2, OBJECT_BYTES), 0);
    close_connector();
    ck_assert_int_eq(open_library(nixl_library()), 0);
    ck_assert_int_eq(connector_get(connector, pool, "by file", 2, 5, OBJECT_BYTES - 5), 0);
    close_connector();
}
END_TEST

START_TEST(a_failed_write_has_a_reason_and_leaves_nothing)
{
    const struct rlimit least = {.rlim_cur = OBJECT_BYTES / 2, .rlim_max = RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(open_library(nixl_library()), 0);
    ck_assert_int_eq(connector_put(connector, pool, "small", 1, 5000), 0);
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &least), 0);
    ck_assert_int_eq(connector_put(connector, pool, "large", 1, OBJECT_BYTES), TIERCE_E_LIMIT);
    ck_assert_msg(strstr(connector_why(connector), "File too large") != NULL, "%s",
                  connector_why(connector));
    ck_assert(strstr(log_record.text, "nixl_failed op=write") != NULL);
    ck_assert_int_eq(connector_exists(connector, "large"), 0);
    ck_assert_int_eq(connector_get(connector, pool, "small", 1, 0, 5000), 0);
    close_connector();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nixl");
    TCase *refused = tcase_create("refused"), *real = tcase_create("real");
    tcase_add_checked_fixture(refused, setup, teardown);
    tcase_add_test(refused, missing_and_wrong_libraries_are_refused);
    tcase_add_test(refused, other_versions_are_refused);
    tcase_add_test(refused, unknown_versions_are_refused);
    suite_add_tcase(suite, refused);
    tcase_add_checked_fixture(real, setup, teardown);
    tcase_set_timeout(real, 60);
    tcase_add_test(real, a_missing_plugin_is_refused);
    tcase_add_test(real, a_failed_transfer_is_an_error_and_the_next_one_works);
    tcase_add_test(real, failures_of_other_threads_do_no_harm);
    tcase_add_test(real, file_and_nixl_share_a_folder);
    tcase_add_test(real, a_failed_write_has_a_reason_and_leaves_nothing);
    if (nixl_library() != NULL)
        suite_add_tcase(suite, real);
    else
        printf("skipped in part: no NIXL (tools/setup python installs it)\n");
    return check_main(suite);
}
