/* SPDX-License-Identifier: Apache-2.0 */
/* s3+nixl:// before a server of the test: which requests go through NIXL, and failures of NIXL. It
 * passes tests/conformance/test_nixl_connector.c with a real server. */
#include "check_main.h"
#include "connector_harness.h"
#include "log_record.h"
#include "nixl_here.h"
#include "s3_fake.h"
#include "store/remote/nixl/nixl_agents.h"
#include "store/remote/nixl/nixl_connector.h"

#include "base/alloc.h"

#define OBJECT_BYTES 300000u

#ifdef __SANITIZE_ADDRESS__
/* gcc 12's search for leaks takes the length of a library's thread-local memory from the bytes in
 * front of it if it begins 16 bytes into a page, and crashes if glibc has not written it there. The
 * place is chance, and NIXL has many libraries. Without thread-local memory, the search does not
 * see the table in which glibc keeps it. */
#pragma GCC visibility push(default)
const char *__lsan_default_options(void);
const char *__lsan_default_suppressions(void);
#pragma GCC visibility pop

const char *__lsan_default_options(void)
{
    return "use_tls=0:print_suppressions=0";
}

const char *__lsan_default_suppressions(void)
{
    return "leak:_dl_resize_dtv\n";
}
#endif

static struct tierce__pool *pool;
static struct tierce__connector *connector;
static char why[TIERCE__CONNECTOR_WHY_BYTES];

/* One object. */
static struct {
    pthread_mutex_t lock;
    uint8_t *data; /* NULL: it is missing */
    size_t bytes;
    atomic_bool refuses_nixl, refuses_us;
    atomic_bool ignores_nixl;        /* its requests are answered when this is false again */
    _Atomic unsigned by_nixl, by_us; /* transfers */
} store = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool give_range(int fd, const struct s3_request *request)
{
    unsigned long long first = 0, last = 0;
    char headers[128];
    const char *range = strcasestr(request->head, "\r\nRange: bytes=");
    ck_assert(range != NULL && sscanf(range + 15, "%llu-%llu", &first, &last) == 2);
    if (store.data == NULL)
        return s3_fake_error(fd, "404 Not Found", "NoSuchKey");
    if (first >= store.bytes)
        return s3_fake_error(fd, "416 Range", "InvalidRange");
    last = last < store.bytes ? last : store.bytes - 1;
    snprintf(headers, sizeof(headers), "ETag: \"1\"\r\nContent-Range: bytes %llu-%llu/%zu\r\n",
             first, last, store.bytes);
    return s3_fake_reply(fd, "206 Partial", headers, store.data + first, last - first + 1);
}

static bool take_object(int fd, const struct s3_request *request)
{
    free(store.data);
    store.bytes = request->body_bytes;
    store.data = (uint8_t *)malloc(store.bytes);
    memcpy(store.data, request->body, store.bytes);
    return s3_fake_reply(fd, "200 OK", "ETag: \"1\"\r\n", "", 0);
}

static bool serve(int fd, const struct s3_request *request)
{
    bool is_nixl = strcasestr(request->head, "\r\nUser-Agent: aws-sdk-cpp") != NULL;
    bool is_transfer = strcmp(request->method, "GET") == 0 || strcmp(request->method, "PUT") == 0;
    ck_assert(is_transfer);
    atomic_fetch_add(is_nixl ? &store.by_nixl : &store.by_us, 1);
    while (is_nixl && store.ignores_nixl && !fake.ending)
        s3_fake_sleep(1);
    if (is_nixl ? store.refuses_nixl : store.refuses_us)
        return s3_fake_error(fd, "403 Forbidden", "AccessDenied");
    pthread_mutex_lock(&store.lock);
    bool ok = request->method[0] == 'G' ? give_range(fd, request) : take_object(fd, request);
    pthread_mutex_unlock(&store.lock);
    return ok;
}

static int open_url(const char *library, const char *more)
{
    char url[900];
    snprintf(url, sizeof(url), "s3+nixl://AKID:hidden@bucket/a?endpoint=http://127.0.0.1:%u%s%s%s",
             (unsigned)fake.port, library != NULL ? "&library=" : "",
             library != NULL ? library : "", more);
    return tierce__connector_open(&connector, url,
                                  &(struct tierce__connector_opts){
                                      .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                  why);
}

static void setup(void)
{
    setenv("NIXL_LOG_LEVEL", "FATAL", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    pool = connector_pool();
    s3_fake_start(serve);
    record_log(TIERCE_LOG_DEBUG);
}

static void teardown(void)
{
    s3_fake_stop();
    tierce__pool_destroy(pool);
    free(store.data);
    store.data = NULL;
    ck_assert_uint_eq(recorded_with("", "hidden"), 0);
}

static void setup_open(void)
{
    setup();
    int rc = open_url(nixl_library(), "");
    ck_assert_msg(rc == 0, "%s", why);
}

static void close_open(void)
{
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(10000)));
}

static void teardown_open(void)
{
    ck_assert_ptr_null(strstr(connector_why(connector), "hidden"));
    close_open();
    teardown();
}

static void expect_transfers(unsigned by_nixl, unsigned by_us)
{
    ck_assert_uint_eq(atomic_exchange(&store.by_nixl, 0), by_nixl);
    ck_assert_uint_eq(atomic_exchange(&store.by_us, 0), by_us);
}

/* ---- the plug-in's parameters ---------------------------------------------------------------- */

static char *told; /* not NULL: the next agents are not opened, and their parameters go here */

int __real_tierce__nixl_agents_open(struct tierce__nixl_agents **out,
                                    const struct tierce__nixl_agents_opts *opts, char reason[]);
int __wrap_tierce__nixl_agents_open(struct tierce__nixl_agents **out,
                                    const struct tierce__nixl_agents_opts *opts, char reason[]);

int __wrap_tierce__nixl_agents_open(struct tierce__nixl_agents **out,
                                    const struct tierce__nixl_agents_opts *opts, char reason[])
{
    if (told == NULL)
        return __real_tierce__nixl_agents_open(out, opts, reason);
    *told = '\0';
    for (size_t i = 0; i < opts->param_count; i++) {
        const struct tierce__nixl_param *param = &opts->params[i];
        if (strcmp(param->name, "bucket") == 0 || strcmp(param->name, "endpoint_override") == 0 ||
            strcmp(param->name, "use_virtual_addressing") == 0)
            snprintf(told + strlen(told), 300 - strlen(told), "%s=%s ", param->name, param->value);
    }
    return TIERCE_E_CONFIG;
}

/* Its client puts the bucket in front of the host again. */
START_TEST(the_plugin_gets_the_host_without_the_bucket)
{
    static const struct {
        const char *url, *told;
    } urls[] = {
        {"s3+nixl://AKID:hidden@bucket/a?region=eu-west-1",
         "bucket=bucket endpoint_override=https://s3.eu-west-1.amazonaws.com "
         "use_virtual_addressing=true "},
        {"s3+nixl://AKID:hidden@bucket/a?endpoint=http://127.0.0.1:9000",
         "bucket=bucket endpoint_override=http://127.0.0.1:9000 use_virtual_addressing=false "},
        {"s3+nixl://AKID:hidden@bucket/a?endpoint=https://store.lan:9000&path_style=false",
         "bucket=bucket endpoint_override=https://store.lan:9000 use_virtual_addressing=true "}};
    char text[300];
    told = text;
    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        ck_assert_int_eq(tierce__nixl_check(urls[i].url, why), TIERCE_E_CONFIG);
        ck_assert_str_eq(text, urls[i].told);
    }
    told = NULL;
}
END_TEST

/* ---- refused URLs ---------------------------------------------------------------------------- */

static void expect_refused(int rc, const char *words)
{
    ck_assert_int_eq(rc, TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, words) != NULL, "\"%s\" is not in \"%s\"", words, why);
    ck_assert_ptr_null(strstr(why, "hidden"));
}

/* With the credentials of the environment. */
static int open_bucket(void)
{
    return tierce__connector_open(&connector, "s3+nixl://bucket?library=/nothing",
                                  &(struct tierce__connector_opts){
                                      .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                  why);
}

START_TEST(urls_that_cannot_work_are_refused)
{
    expect_refused(open_url("libnixl_capi.so", ""), "absolute path");
    expect_refused(open_url("/nothing/libnixl_capi.so", ""), "No such file");
    expect_refused(open_url(NULL, ""), "library=");
    expect_refused(open_url("/nothing", "&remember=60s"), "does not accept remember");
    expect_refused(open_url("/nothing", "&size=1MiB"), "unknown parameter \"size\"");
    setenv("AWS_ACCESS_KEY_ID", "ASIA", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hidden", 1);
    setenv("AWS_SESSION_TOKEN", "hidden-too", 1);
    expect_refused(open_bucket(), "access keys that do not expire");
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    unsetenv("AWS_SESSION_TOKEN");
    setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r", 1);
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nothing/token", 1);
    expect_refused(open_bucket(), "access keys that do not expire");
}
END_TEST

/* The text is printed: it must never be memory that nothing has written. */
START_TEST(a_check_without_memory_has_a_reason)
{
    uint64_t nth = 0, made;
    unsigned failed = 0;
    int rc;
    do {
        snprintf(why, sizeof(why), "not written");
        (void)tierce__alloc_fail_nth(++nth);
        rc = tierce__nixl_check("s3+nixl://AKID:hidden@bucket/a?library=/nothing/libnixl_capi.so",
                                why);
        made = tierce__alloc_fail_nth(0);
        ck_assert_int_ne(rc, 0);
        ck_assert_ptr_null(strstr(why, "not written"));
        ck_assert_ptr_null(strstr(why, "hidden"));
        failed += rc == -ENOMEM;
    } while (made >= nth);
    ck_assert_uint_gt(failed, 2);
    expect_refused(rc, "No such file");
}
END_TEST

START_TEST(a_missing_plugin_is_refused)
{
    setenv("NIXL_PLUGIN_DIR", "/nothing", 1);
    expect_refused(open_url(nixl_library(), ""), "plug-in OBJ: the plug-in is missing");
}
END_TEST

/* ---- transfers ------------------------------------------------------------------------------- */

/* The server has the bytes, and nothing before or after them. */
static void expect_stored(uint32_t version, size_t bytes)
{
    pthread_mutex_lock(&store.lock);
    ck_assert_uint_eq(store.bytes, bytes);
    ck_assert(connector_is_object(store.data, version, 0, bytes));
    pthread_mutex_unlock(&store.lock);
}

/* Reports that a connection was made for it. */
static void put_first(void)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_PUT, "n", 0);
    call.req.buf = connector_object(pool, 1, OBJECT_BYTES);
    call.req.length = OBJECT_BYTES;
    ck_assert_int_eq(connector_run_and_return(connector, &call), 0);
    ck_assert(call.req.connected);
    tierce__buf_release(call.req.buf);
}

START_TEST(registered_memory_goes_through_nixl)
{
    put_first();
    expect_stored(1, OBJECT_BYTES);
    ck_assert_int_eq(connector_get(connector, pool, "n", 1, 0, OBJECT_BYTES), 0);
    ck_assert_int_eq(connector_get(connector, pool, "n", 1, 4097, 5000), 0);
    ck_assert_int_eq(connector_get(connector, pool, "n", 1, 5, 3), 0);
    expect_transfers(4, 0);
    ck_assert_uint_eq(recorded(""), 0);
}
END_TEST

/* A missing object is a miss. NIXL reports success for the first two reads beyond the end. */
START_TEST(reads_of_missing_bytes_are_no_failures_of_nixl)
{
    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_eq(connector_get(connector, pool, "n", 1, 0, 5000), TIERCE_E_MISS);
    expect_transfers(3, 3);
    ck_assert_int_eq(connector_put(connector, pool, "n", 1, 5000), 0);
    ck_assert_int_eq(connector_get(connector, pool, "n", 1, 0, 5001), TIERCE_E_FORMAT);
    ck_assert_int_eq(connector_get(connector, pool, "n", 1, 4096, 4096), TIERCE_E_FORMAT);
    ck_assert_int_ne(connector_get(connector, pool, "n", 1, 5000, 10), 0);
    ck_assert_int_eq(connector_get(connector, pool, "n", 1, 0, 5000), 0);
    expect_transfers(5, 3);
    ck_assert_uint_eq(recorded("nixl_failed"), 0);
}
END_TEST

/* The mark of a read that was too short may be a byte of the object. */
START_TEST(each_last_byte_is_read)
{
    ck_assert_int_eq(connector_put(connector, pool, "n", 1, 5000), 0);
    for (uint64_t bytes = 1; bytes <= 256; bytes++)
        ck_assert_int_eq(connector_get(connector, pool, "n", 1, 0, bytes), 0);
    expect_transfers(257, 1);
    ck_assert_uint_eq(recorded(""), 0);
}
END_TEST

START_TEST(a_transfer_that_nixl_cannot_make_is_repeated_without_it)
{
    store.refuses_nixl = true;
    ck_assert_int_eq(connector_put(connector, pool, "n", 1, OBJECT_BYTES), 0);
    ck_assert_uint_eq(recorded_with("nixl_failed", "op=write"), 1);
    ck_assert_int_eq(connector_get(connector, pool, "n", 1, 77, 5000), 0);
    expect_transfers(2, 2);
    store.refuses_nixl = false;
    ck_assert_int_eq(connector_get(connector, pool, "n", 1, 77, 5000), 0);
    expect_transfers(1, 0);
}
END_TEST

/* A GET that NIXL does not end, with this deadline. [transfer] call->req.buf */
static void submit_late(struct connector_call *call, uint64_t ms)
{
    connector_call_init(call, TIERCE__STORE_GET, "n", 0);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call->req.buf, 5000), 0);
    call->req.length = 5000;
    call->req.deadline_ns = tierce__deadline_in_ms(ms);
    connector->ops->submit(connector, &call->req);
}

static void expect_why(const char *words)
{
    const char *text = connector_why(connector);
    ck_assert_msg(strstr(text, words) != NULL, "\"%s\" is not in \"%s\"", words, text);
}

static void expect_denied(void)
{
    store.refuses_us = true;
    ck_assert_int_ne(connector_get(connector, pool, "n", 1, 77, 5000), 0);
    expect_why("AccessDenied");
    store.refuses_us = false;
}

static void lose_object(void)
{
    pthread_mutex_lock(&store.lock);
    free(store.data);
    store.data = NULL;
    pthread_mutex_unlock(&store.lock);
}

/* NIXL cannot end a transfer: its late one costs a request its deadline, and no more. The reason is
 * that of the last failure, also if S3 had the same failure before and has it again, and if S3 has
 * answered since that an object is missing. */
START_TEST(a_server_that_does_not_answer_nixl_is_used_without_it)
{
    struct connector_call late;
    ck_assert_int_eq(connector_put(connector, pool, "n", 1, OBJECT_BYTES), 0);
    store.refuses_nixl = true;
    expect_denied();
    store.refuses_nixl = false;
    store.ignores_nixl = true;
    do { /* on a busy machine, perhaps no thread takes the request by its deadline */
        submit_late(&late, 200);
        ck_assert_int_eq(connector_call_wait(&late), TIERCE_E_DEADLINE);
        tierce__buf_release(late.req.buf);
        expect_why("deadline");
    } while (connector_stats(connector).calls_hanging == 0);
    lose_object();
    ck_assert_int_eq(connector_get(connector, pool, "n", 1, 77, 5000), TIERCE_E_MISS);
    expect_why("deadline");
    ck_assert_int_eq(connector_put(connector, pool, "n", 1, OBJECT_BYTES), 0);
    expect_denied();
    atomic_store(&store.by_us, 0);
    ck_assert_int_eq(connector_get(connector, pool, "n", 1, 77, 5000), 0);
    ck_assert_int_eq(connector_put(connector, pool, "n", 2, OBJECT_BYTES), 0);
    ck_assert_uint_eq(atomic_exchange(&store.by_us, 0), 2);
    expect_stored(2, OBJECT_BYTES);
    store.ignores_nixl = false;
    WAIT_FOR(connector_stats(connector).calls_hanging == 0);
    atomic_store(&store.by_nixl, 0);
    ck_assert_int_eq(connector_get(connector, pool, "n", 2, 77, 5000), 0);
    expect_transfers(1, 0);
}
END_TEST

/* A connector that is opened and closed. Returns how many allocations an open makes. */
static uint64_t open_once(void)
{
    (void)tierce__alloc_fail_nth(0);
    ck_assert_int_eq(open_url(nixl_library(), ""), 0);
    uint64_t made = tierce__alloc_fail_nth(0);
    close_open();
    return made;
}

/* The call of NIXL outlives the connector, and frees NIXL's half when it returns. */
static void close_during_a_transfer(void)
{
    struct connector_call late;
    ck_assert_int_eq(open_url(nixl_library(), ""), 0);
    ck_assert_int_eq(connector_put(connector, pool, "n", 1, OBJECT_BYTES), 0);
    store.ignores_nixl = true;
    submit_late(&late, 100000);
    WAIT_FOR(atomic_load(&store.by_nixl) > 1);
    ck_assert(!connector->ops->close(connector, tierce__deadline_in_ms(50)));
    ck_assert_int_eq(connector_call_wait(&late), TIERCE_E_CANCELLED);
    store.ignores_nixl = false;
    WAIT_FOR(atomic_load(&late.req.buf->refs) == 1);
    tierce__buf_release(late.req.buf);
}

START_TEST(failed_opens_and_late_transfers_leave_nothing)
{
    uint64_t made = open_once(), live = tierce__alloc_live();
    ck_assert_uint_gt(made, 4);
    for (uint64_t nth = 1; nth <= made; nth++) {
        (void)tierce__alloc_fail_nth(nth);
        int rc = open_url(nixl_library(), "");
        (void)tierce__alloc_fail_nth(0);
        ck_assert_int_eq(rc, -ENOMEM);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    close_during_a_transfer();
    WAIT_FOR(tierce__alloc_live() == live);
}
END_TEST

static void get_without_memory_for_a_task(void)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_GET, "n", 0);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, 5000), 0);
    call.req.length = 5000;
    (void)tierce__alloc_fail_nth(1);
    connector->ops->submit(connector, &call.req);
    ck_assert_int_eq(connector_call_wait(&call), 0);
    ck_assert_uint_gt(tierce__alloc_fail_nth(0), 0);
    ck_assert(connector_is_object(call.req.buf->data, 1, 0, 5000));
    tierce__buf_release(call.req.buf);
}

START_TEST(some_requests_are_not_given_to_nixl)
{
    struct tierce__pool *other = connector_pool();
    ck_assert_int_eq(connector_put(connector, other, "n", 1, OBJECT_BYTES), 0);
    ck_assert_int_eq(connector_get(connector, other, "n", 1, 0, OBJECT_BYTES), 0);
    expect_transfers(0, 2);
    tierce__pool_destroy(other);
    get_without_memory_for_a_task();
    expect_transfers(0, 1);
    ck_assert_uint_eq(recorded("nixl_failed"), 0);
}
END_TEST

START_TEST(a_server_that_is_down_is_reported)
{
    s3_fake_stop();
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_DOWN);
    ck_assert(connector_why(connector)[0] != '\0');
    s3_fake_start(serve); /* for teardown */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nixl_objects");
    TCase *refused = tcase_create("refused"), *closed = tcase_create("closed");
    TCase *open = tcase_create("open");
    tcase_add_checked_fixture(refused, setup, teardown);
    tcase_add_test(refused, the_plugin_gets_the_host_without_the_bucket);
    tcase_add_test(refused, urls_that_cannot_work_are_refused);
    tcase_add_test(refused, a_check_without_memory_has_a_reason);
    suite_add_tcase(suite, refused);
    tcase_add_checked_fixture(closed, setup, teardown);
    tcase_add_test(closed, a_missing_plugin_is_refused);
    tcase_add_test(closed, failed_opens_and_late_transfers_leave_nothing);
    tcase_set_timeout(closed, 60);
    tcase_add_checked_fixture(open, setup_open, teardown_open);
    tcase_set_timeout(open, 60);
    tcase_add_test(open, registered_memory_goes_through_nixl);
    tcase_add_test(open, reads_of_missing_bytes_are_no_failures_of_nixl);
    tcase_add_test(open, each_last_byte_is_read);
    tcase_add_test(open, a_transfer_that_nixl_cannot_make_is_repeated_without_it);
    tcase_add_test(open, a_server_that_does_not_answer_nixl_is_used_without_it);
    tcase_add_test(open, some_requests_are_not_given_to_nixl);
    tcase_add_test(open, a_server_that_is_down_is_reported);
    if (nixl_library() != NULL) {
        suite_add_tcase(suite, closed);
        suite_add_tcase(suite, open);
    } else {
        printf("skipped in part: no NIXL (tools/setup python installs it)\n");
    }
    return check_main(suite);
}
