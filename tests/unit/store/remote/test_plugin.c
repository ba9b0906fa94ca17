/* SPDX-License-Identifier: Apache-2.0 */
/* Plug-ins that are not there, that others could exchange, and that are wrong. What one does that
 * is right is tests/conformance/test_plugin_connector.c. */
#include "check_main.h"
#include "connector_harness.h"
#include "plugin_file.h"

static struct tierce__pool *pool;
static struct tierce__connector *connector;
static struct plugin_file file;
static char why[TIERCE__CONNECTOR_WHY_BYTES];

static int open_url(const char *url)
{
    return tierce__connector_open(&connector, url,
                                  &(struct tierce__connector_opts){
                                      .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                  why);
}

static int open_file(const char *params)
{
    char url[128];
    snprintf(url, sizeof(url), "plugin://%s%s", file.path, params);
    return open_url(url);
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

/* ---- files ----------------------------------------------------------------------------------- */

START_TEST(what_is_no_file_is_told)
{
    expect_refused(open_url("plugin://lib.so"), "absolute path");
    expect_refused(open_url("plugin://host/lib.so"), "absolute path");
    expect_refused(open_url("plugin://"), "absolute path");
    expect_refused(open_url("plugin:///nothing/is/here.so"), "No such file");
    expect_refused(open_url("plugin:///tmp"), "not a regular file");
    plugin_file_make(&file, "/etc/passwd");
    expect_refused(open_file(""), "invalid ELF header");
    expect_refused(open_file("?connections=1"), "accepted are 2 to 150");
    plugin_file_remove(&file);
}
END_TEST

START_TEST(what_others_may_write_is_not_loaded)
{
    char link[64], url[128];
    plugin_file_make(&file, TIERCE_PLUGIN_MEMORY);
    static const mode_t modes[] = {0664, 0646, 0666};
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(chmod(file.path, modes[i]), 0);
        expect_refused(open_file(""), "is writable for others");
    }
    ck_assert_int_eq(chmod(file.path, 0600), 0);
    ck_assert_int_eq(chmod(file.folder, 0777), 0);
    expect_refused(open_file(""), "folder");
    ck_assert_int_eq(chmod(file.folder, 0770), 0);
    expect_refused(open_file(""), "folder");
    snprintf(link, sizeof(link), "%.40s-link", file.folder); /* what a link leads to counts */
    ck_assert_int_eq(symlink(file.path, link), 0);
    snprintf(url, sizeof(url), "plugin://%s", link);
    expect_refused(open_url(url), "folder");
    ck_assert_int_eq(chmod(file.folder, 01777), 0);
    pool = connector_pool();
    ck_assert_int_eq(open_url(url), 0);
    close_connector();
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(file.path, 65534, 0), 0);
        expect_refused(open_file(""), "another user");
    }
    tierce__pool_destroy(pool);
    unlink(link);
    plugin_file_remove(&file);
}
END_TEST

/* ---- tables ---------------------------------------------------------------------------------- */

static const struct {
    const char *path, *words;
} wrong[] = {
    {TIERCE_WRONG_PLUGINS "/libwrong_plugin_1.so", "exports no function tierce_plugin"},
    {TIERCE_WRONG_PLUGINS "/libwrong_plugin_2.so", "tierce_plugin() returns NULL"},
    {TIERCE_WRONG_PLUGINS "/libwrong_plugin_3.so",
     "was built for version 2 of plugin.h; this is version 1"},
    {TIERCE_WRONG_PLUGINS "/libwrong_plugin_4.so", "are required"},
    {TIERCE_WRONG_PLUGINS "/libwrong_plugin_5.so", "has unknown caps: 0x40"},
    {TIERCE_WRONG_PLUGINS "/libwrong_plugin_6.so", "has no function remove"},
    {TIERCE_WRONG_PLUGINS "/libwrong_plugin_7.so", "xxxxxxxx"},
    {TIERCE_WRONG_PLUGINS "/libwrong_plugin_8.so", ": "},
};

START_TEST(wrong_tables_are_told)
{
    plugin_file_make(&file, wrong[_i].path);
    expect_refused(open_file(""), wrong[_i].words);
    plugin_file_remove(&file);
}
END_TEST

START_TEST(links_that_do_not_open)
{
    plugin_file_make(&file, TIERCE_WRONG_PLUGINS "/libwrong_plugin_9.so");
    ck_assert_int_eq(open_file(""), TIERCE_E_FORMAT);
    plugin_file_remove(&file);
}
END_TEST

START_TEST(parameters_are_the_plugins)
{
    pool = connector_pool();
    plugin_file_make(&file, TIERCE_WRONG_PLUGINS "/libwrong_plugin_10.so");
    ck_assert_int_eq(open_file("?a%20b=c%26d&connections=3"), 0);
    close_connector();
    expect_refused(open_file("?b=1"), "unknown parameter b");
    expect_refused(open_file("?a%20b=c%26d&a%20b=c%26d"), "is given twice");
    tierce__pool_destroy(pool);
    plugin_file_remove(&file);
}
END_TEST

/* ---- answers --------------------------------------------------------------------------------- */

static unsigned told;

static void tell(void *arg, const struct tierce_plugin_name *name)
{
    (void)arg;
    ck_assert_uint_eq(name->bytes, 2);
    ck_assert_int_eq(memcmp(name->text, "p1", 2), 0);
    told++;
}

START_TEST(wrong_answers)
{
    struct connector_call call;
    pool = connector_pool();
    plugin_file_make(&file, TIERCE_WRONG_PLUGINS "/libwrong_plugin_10.so");
    ck_assert_int_eq(open_file("?connections=2"), 0);
    ck_assert_int_eq(connector_exists(connector, "n"), TIERCE_E_FORMAT);
    ck_assert_int_eq(connector_get(connector, pool, "n", 0, 0, 10), TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(connector_why(connector), "returned 5, which is not a status"));
    ck_assert_int_eq(connector_get(connector, pool, "n", 0, 0, 10), TIERCE_E_FORMAT);
    ck_assert_int_eq(connector_delete(connector, "n"), 0);
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_DOWN);
    ck_assert_ptr_nonnull(strstr(connector_why(connector), "in its own words"));
    connector_call_init(&call, TIERCE__STORE_LIST, "p", 0);
    call.req.each = tell;
    ck_assert_int_eq(connector_call_run(connector, &call), 0);
    ck_assert_uint_eq(told, 1);
    connector_call_init(&call, TIERCE__STORE_PUT, "n", 0);
    call.req.buf = connector_object(pool, 1, 10);
    call.req.length = 10;
    call.req.deadline_ns = tierce__deadline_in_ms(100);
    ck_assert_int_eq(connector_call_run(connector, &call), TIERCE_E_DEADLINE);
    close_connector();
    ck_assert_uint_eq(atomic_load(&call.req.buf->refs), 1);
    tierce__buf_release(call.req.buf);
    tierce__pool_destroy(pool);
    plugin_file_remove(&file);
}
END_TEST

CHECK_MAIN("plugin", .seconds = 60,
           .tests = {what_is_no_file_is_told, what_others_may_write_is_not_loaded,
                     links_that_do_not_open, parameters_are_the_plugins, wrong_answers},
           .loops = {{wrong_tables_are_told, 0, sizeof(wrong) / sizeof(*wrong)}})
