/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores in Python on bad days (tests/support/python_stores.py): classes that cannot be loaded, and
 * methods that raise, keep their memory, hang or end their process.
 */
#include "base/alloc.h"
#include "check_main.h"
#include "connector_harness.h"
#include "mooncake_server.h"
#include "plugin_file.h"

static struct tierce__pool *pool;
static struct tierce__connector *connector;

static int try_url(const char *short_url, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char url[400];
    snprintf(url, sizeof(url), "%s%spython=" TIERCE_PYTHON, short_url,
             strchr(short_url, '?') != NULL ? "&" : "?");
    return tierce__connector_open(&connector, strstr(short_url, "python=") ? short_url : url,
                                  &(struct tierce__connector_opts){
                                      .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                  why);
}

static void use_modules(void)
{
    setenv("PYTHONPATH", TIERCE_PYTHON_EXAMPLE ":" TIERCE_PYTHON_STORES, 1);
    pool = connector_pool();
}

static void open_url(const char *url)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    use_modules();
    int rc = try_url(url, why);
    ck_assert_msg(rc == 0, "%s", why);
}

static size_t count_processes(pid_t *pid)
{
    return mooncake_children("seats=", pid);
}

static void close_connector(void)
{
    pid_t pid;
    struct tierce__pool_stats stats;
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    tierce__pool_stats(pool, &stats);
    ck_assert_uint_eq(stats.bufs, 0);
    ck_assert_uint_eq(count_processes(&pid), 0);
    tierce__pool_destroy(pool);
}

static void expect_refused(const char *url, const char *part)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    ck_assert_msg(try_url(url, why) == TIERCE_E_CONFIG, "%s", url);
    ck_assert_msg(strstr(why, part) != NULL, "%s: %s", url, why);
}

/* A GET of 1000 bytes, which are not looked at. */
static int get(const char *name)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_GET, name, 0);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, 1000), 0);
    call.req.length = 1000;
    int rc = connector_run_and_return(connector, &call);
    tierce__buf_release(call.req.buf);
    return rc;
}

static void expect_why(const char *part)
{
    ck_assert_msg(strstr(connector_why(connector), part) != NULL, "%s", connector_why(connector));
}

/* ---- opening --------------------------------------------------------------------------------- */

START_TEST(stores_that_are_not_opened)
{
    static const struct {
        const char *url, *why;
    } cases[] = {
        {"python:///a.py", "python:///path/of/file.py:Class"},
        {"python:///a.py:", "python:///path/of/file.py:Class"},
        {"python:///a:b/c.py", "python:///path/of/file.py:Class"},
        {"python://module", "python:///path/of/file.py:Class"},
        {"python://module/", "python:///path/of/file.py:Class"},
        {"python://module/a/B", "python:///path/of/file.py:Class"},
        {"python://module:7/B", "python:///path/of/file.py:Class"},
        {"python://user@module/B", "python:///path/of/file.py:Class"},
        {"python://a,b/B", "python:///path/of/file.py:Class"},
        {"python:///nothing/is/here.py:A", "plug-in /nothing/is/here.py: No such file"},
        {"python:///tmp:A", "is not a regular file"},
        {"python://m/A?log=here", "log must be the absolute path"},
        {"python://m/A?x=1&x=2", "given twice"},
        {"python://m/A?timeout=1ms", "timeout"},
        {"python://m/A?connections=1", "connections"},
        {"python://m/A?python=/nowhere/python", "/nowhere/python cannot be started: No such file"},
        {"python://not_there/A",
         "the bridge: not_there: ModuleNotFoundError: No module named 'not_there'"},
        {"python://python_stores/Nobody", "the bridge: python_stores has no class Nobody"},
        {"python://python_stores/not_a_class", "python_stores has no class not_a_class"},
        {"python://python_stores/Short", "class Short has no method exists"},
        {"python://python_stores/Raises",
         "the bridge: Raises: RuntimeError: the parameter server is missing"},
        {"python://folder_store/FolderStore?folder=/x&size=7",
         "ValueError: unknown parameter size"},
    };
    pid_t pid;
    use_modules();
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        expect_refused(cases[i].url, cases[i].why);
    ck_assert_uint_eq(count_processes(&pid), 0);
    tierce__pool_destroy(pool);
    struct tierce__pool_opts opts = {.size = sizeof(opts), .cap_bytes = 1 << 20};
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    ck_assert_int_eq(tierce__pool_create(&pool, &opts), 0);
    ck_assert_int_eq(try_url("python://folder_store/FolderStore?folder=/x", why),
                     TIERCE_E_UNSUPPORTED);
    tierce__pool_destroy(pool);
}
END_TEST

static void write_text(const char *path, const char *text)
{
    FILE *out = fopen(path, "w");
    ck_assert(out != NULL && fputs(text, out) >= 0 && fclose(out) == 0);
}

/* The rules of plugin://; and code that lies beside a file is not used. */
START_TEST(files_that_others_can_write)
{
    struct plugin_file file;
    char url[200], path[100], why[TIERCE__CONNECTOR_WHY_BYTES];
    use_modules();
    plugin_file_make(&file, TIERCE_PYTHON_EXAMPLE "/folder_store.py");
    snprintf(url, sizeof(url), "python://%s:FolderStore?folder=/tmp/x", file.path);
    snprintf(path, sizeof(path), "%s/hashlib.py", file.folder);
    write_text(path, "raise RuntimeError('not this one')\n");
    ck_assert_msg(try_url(url, why) == 0, "%s", why);
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    ck_assert_int_eq(access(path, F_OK), 0);
    snprintf(path, sizeof(path), "%s/__pycache__", file.folder);
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_int_eq(chmod(file.path, 0666), 0);
    expect_refused(url, "belongs to another user, or is writable for others");
    ck_assert_int_eq(chmod(file.path, 0644), 0);
    write_text(file.path, "class FolderStore\n");
    expect_refused(url, "SyntaxError");
    plugin_file_remove(&file);
    tierce__pool_destroy(pool);
}
END_TEST

/* Arguments of a process can be seen by all users of the host. */
START_TEST(options_reach_the_class_alone)
{
    pid_t pid;
    open_url("python://python_stores/Named?secret=a%20b%3Dc&empty=&connections=2&log=/dev/null");
    ck_assert_uint_eq(count_processes(&pid), 1);
    ck_assert_uint_eq(mooncake_children("a b=c", &pid), 0);
    ck_assert_int_eq(get("options_are"), 0);
    close_connector();
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    uint64_t made = 1;
    pool = connector_pool();
    uint64_t live = tierce__alloc_live();
    for (uint64_t nth = 1; nth <= made; nth++) {
        tierce__alloc_fail_nth(nth);
        int rc = try_url("python://m/A?log=/tmp/x&python=/nowhere&option=1", why);
        uint64_t count = tierce__alloc_fail_nth(0);
        ck_assert(rc == -ENOMEM || rc == TIERCE_E_CONFIG);
        made = count >= nth ? nth + 1 : nth;
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    ck_assert_uint_gt(made, 8);
    tierce__pool_destroy(pool);
}
END_TEST

/* ---- methods --------------------------------------------------------------------------------- */

static int length_of(const char *name, uint64_t *bytes)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_LOOKUP, name, 0);
    int rc = connector_call_run(connector, &call);
    *bytes = call.req.object_bytes;
    return rc == 0 && call.req.found == 0 ? TIERCE_E_MISS : rc;
}

START_TEST(results_and_exceptions)
{
    static const struct {
        const char *name, *why;
        int status;
    } cases[] = {
        {"well", "", 0},
        {"miss", "", TIERCE_E_MISS},
        {"short", "get: 999 bytes instead of 1000", TIERCE_E_FORMAT},
        {"raises", "get: KeyError: 'nothing\\x1bherexxx", TIERCE_E_DOWN},
        {"full", "get: OSError: [Errno 28] no room", TIERCE_E_FULL},
        {"rejected", "get: PermissionError: not for you", TIERCE_E_REFUSED},
        {"late", "get: TimeoutError", TIERCE_E_DEADLINE},
        {"text", "get: ValueError: invalid literal for int()", TIERCE_E_DOWN},
        {"cycle", "", 0},
        {"absent", "get: AttributeError: 'Named' object has no", TIERCE_E_DOWN},
    };
    pid_t first, last;
    uint64_t bytes;
    open_url("python://python_stores/Named");
    ck_assert_uint_eq(count_processes(&first), 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int rc = get(cases[i].name);
        ck_assert_msg(rc == cases[i].status, "%s: %d", cases[i].name, rc);
        if (rc < 0 && rc != TIERCE_E_MISS)
            expect_why(cases[i].why);
    }
    ck_assert_int_eq(connector_delete(connector, "x"), TIERCE_E_DOWN);
    expect_why("delete: ConnectionError: the server has?closed?it");
    ck_assert_int_eq(connector_put(connector, pool, "x", 1, 1000), TIERCE_E_DOWN);
    expect_why("put: TypeError: cannot modify read-only memory");
    ck_assert_int_eq(length_of("seven", &bytes), 0);
    ck_assert_uint_eq(bytes, 7);
    ck_assert_int_eq(length_of("none", &bytes), TIERCE_E_MISS);
    ck_assert_int_eq(length_of("negative", &bytes), TIERCE_E_DOWN);
    expect_why("length: ValueError: -3 was returned");
    ck_assert_uint_eq(count_processes(&last), 1);
    ck_assert_int_eq(first, last);
    close_connector();
}
END_TEST

START_TEST(lookups_that_fail)
{
    uint64_t bytes;
    open_url("python://python_stores/Unsized");
    ck_assert_int_eq(length_of("missing", &bytes), TIERCE_E_MISS);
    ck_assert_int_eq(length_of("fails", &bytes), TIERCE_E_REFUSED);
    expect_why("exists: PermissionError: not for you");
    ck_assert_int_eq(length_of("more", &bytes), TIERCE_E_FORMAT);
    expect_why("the bridge sent an invalid answer (2)");
    WAIT_FOR(length_of("missing", &bytes) == TIERCE_E_MISS);
    close_connector();
}
END_TEST

/* The pool gives the memory to others: nobody may have a view of it. */
START_TEST(methods_that_keep_their_buffer)
{
    pid_t pid;
    open_url("python://python_stores/Named");
    ck_assert_int_eq(get("keeps_view"), 0); /* it was released */
    ck_assert_int_eq(get(_i == 0 ? "keeps_part" : "keeps_user"), TIERCE_E_DOWN);
    expect_why("has kept its buffer");
    ck_assert_uint_eq(count_processes(&pid), 0);
    WAIT_FOR(get("well") == 0);
    close_connector();
}
END_TEST

START_TEST(methods_that_end_their_process)
{
    pid_t first, second;
    open_url("python://python_stores/Named");
    ck_assert_uint_eq(count_processes(&first), 1);
    ck_assert_int_eq(get(_i == 0 ? "dies" : "exits"), TIERCE_E_DOWN);
    expect_why("ended during a request");
    WAIT_FOR(get("well") == 0);
    ck_assert_uint_eq(count_processes(&second), 1);
    ck_assert_int_ne(first, second);
    close_connector();
}
END_TEST

START_TEST(a_method_that_hangs)
{
    open_url("python://python_stores/Named?timeout=100ms");
    ck_assert_int_eq(get("hangs"), TIERCE_E_DOWN);
    expect_why("did not answer in time");
    WAIT_FOR(get("well") == 0);
    close_connector();
}
END_TEST

CHECK_MAIN("python_store", .seconds = 60, .at_once = true,
           .tests = {stores_that_are_not_opened, files_that_others_can_write,
                     options_reach_the_class_alone, each_allocation_fails_once,
                     results_and_exceptions, lookups_that_fail, a_method_that_hangs},
           .loops = {{methods_that_keep_their_buffer, 0, 2},
                     {methods_that_end_their_process, 0, 2}})
