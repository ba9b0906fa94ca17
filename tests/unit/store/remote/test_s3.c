/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connector of S3 on bad days: what answers in place of S3 rejects, is busy, lies about
 * lengths, has another time, cuts, and says nothing.
 */
#include "check_main.h"
#include "s3_case.h"

/* ---- errors ---------------------------------------------------------------------------------- */

#define MISS TIERCE_E_MISS
#define DOWN TIERCE_E_DOWN
#define REFU TIERCE_E_REFUSED
#define FORM TIERCE_E_FORMAT
#define FULL TIERCE_E_FULL
#define LIMI TIERCE_E_LIMIT

static const struct refusal {
    const char *status, *code;
    int get, put, exists, remove, list;
    const char *why; /* of the PUT */
} refusals[] = {
    {"404 Not Found", "NoSuchKey", MISS, DOWN, 0, 0, DOWN, "404 NoSuchKey"},
    {"404 Not Found", "NoSuchBucket", DOWN, DOWN, 0, DOWN, DOWN, "no such bucket"},
    {"404 Not Found", "", MISS, DOWN, 0, 0, DOWN, "check endpoint="},
    {"403 Forbidden", "AccessDenied", REFU, REFU, REFU, REFU, REFU, "403 AccessDenied: these"},
    {"403 Forbidden", "SignatureDoesNotMatch", REFU, REFU, REFU, REFU, REFU,
     "secret key is invalid"},
    {"403 Forbidden", "InvalidAccessKeyId", REFU, REFU, REFU, REFU, REFU, "access key is unknown"},
    {"400 Bad Request", "ExpiredToken", REFU, REFU, FORM, REFU, REFU, "token has expired"},
    {"403 Forbidden", "Evil <&\n", REFU, REFU, REFU, REFU, REFU, "PutObject: 403: the cred"},
    {"403 Forbidden", "QuotaExceeded", FULL, FULL, REFU, FULL, FULL, "no room"},
    {"507 Insufficient Storage", "x", FULL, FULL, FULL, FULL, FULL, "no room"},
    {"400 Bad Request", "EntityTooLarge", LIMI, LIMI, FORM, LIMI, LIMI, "larger"},
    {"301 Moved Permanently", "PermanentRedirect", DOWN, DOWN, DOWN, DOWN, DOWN, "region"},
    {"416 Range Not Satisfiable", "InvalidRange", FORM, FORM, FORM, FORM, FORM, "range"},
    {"418 Teapot", "Teapot", FORM, FORM, FORM, FORM, FORM, "418 Teapot"},
    {"503 Slow Down", "SlowDown", DOWN, DOWN, DOWN, DOWN, DOWN, "503 SlowDown: too many"},
    {"500 Oops", "", DOWN, DOWN, DOWN, DOWN, DOWN, "PutObject: 500"},
};

static const struct refusal *refusal;

static bool refuse(int fd, const struct s3_request *request)
{
    if (strcmp(request->method, "HEAD") == 0)
        return s3_fake_text(fd, refusal->status, "");
    return s3_fake_error(fd, refusal->status, refusal->code);
}

START_TEST(refusals_are_told)
{
    refusal = &refusals[_i];
    start(refuse, "&retries=0");
    ck_assert_int_eq(run(TIERCE__STORE_GET, 10000), refusal->get);
    ck_assert_int_eq(run(TIERCE__STORE_LOOKUP, 10000), refusal->exists);
    ck_assert_int_eq(run(TIERCE__STORE_DELETE, 10000), refusal->remove);
    ck_assert_int_eq(run(TIERCE__STORE_LIST, 10000), refusal->list);
    ck_assert_int_eq(run(TIERCE__STORE_PING, 10000), refusal->list);
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 10000), refusal->put);
    expect_why(refusal->why);
    expect_why("s3://bucket: ");
    end();
}
END_TEST

/* ---- redirections ---------------------------------------------------------------------------- */

static const char *const locations[] = {
    "http://127.0.0.1:%u/bucket/n", "//127.0.0.1:%u/n", "http+unix://%%2Ftmp%%2Fs/n",
    "file:///etc/passwd",           "/other-bucket/n",  "n?x=1",
    "gopher://127.0.0.1:%u/_x"};
static const char *redirection;
static uint16_t elsewhere_port;

static bool redirect(int fd, const struct s3_request *request)
{
    char headers[512], location[128];
    const char *body = "<Error><Code>TemporaryRedirect</Code><Endpoint>"
                       "bucket.s3.eu-west-7.example.com</Endpoint></Error>";
    snprintf(location, sizeof(location), redirection, (unsigned)elsewhere_port);
    snprintf(headers, sizeof(headers), "Location: %s\r\nx-amz-bucket-region: eu-west-7\r\n",
             location);
    size_t bytes = strcmp(request->method, "HEAD") == 0 ? 0 : strlen(body);
    static const char *const statuses[] = {"301 Moved", "302 Found", "303 See Other",
                                           "307 Temporary Redirect", "308 Permanent Redirect"};
    return s3_fake_reply(fd, statuses[request->number % 5], headers, body, bytes);
}

/* Redirects are not followed: signed requests go only to the configured endpoint. */
START_TEST(redirections_are_told_and_not_followed)
{
    static const enum tierce__store_op ops[] = {TIERCE__STORE_GET,    TIERCE__STORE_PUT,
                                                TIERCE__STORE_LOOKUP, TIERCE__STORE_LIST,
                                                TIERCE__STORE_PING,   TIERCE__STORE_DELETE};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int elsewhere = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(bind(elsewhere, (struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(listen(elsewhere, 8), 0);
    ck_assert_int_eq(getsockname(elsewhere, (struct sockaddr *)&address, &length), 0);
    elsewhere_port = ntohs(address.sin_port);
    redirection = locations[_i];
    start(redirect, "&region=us-east-9");
    for (uint32_t i = 0; i < 30; i++) {
        ck_assert_int_eq(run(ops[i % 6], 10000), DOWN);
        ck_assert_uint_eq(atomic_load(&fake.requests), i + 1);
        expect_why("eu-west-7");
        expect_why("us-east-9");
        expect_why("http://127.0.0.1:");
        if (ops[i % 6] != TIERCE__STORE_LOOKUP)
            expect_why("bucket.s3.eu-west-7.example.com");
    }
    ck_assert_int_eq(accept(elsewhere, NULL, NULL), -1);
    close(elsewhere);
    end();
}
END_TEST

static const char *place;

static bool name_a_place(int fd, const struct s3_request *request)
{
    char headers[4096], body[4096];
    (void)request;
    snprintf(headers, sizeof(headers), "x-amz-bucket-region: %s\r\n", place);
    snprintf(body, sizeof(body),
             "<Error><Code>AuthorizationHeaderMalformed</Code><Region>%s</Region>"
             "<Endpoint>%s</Endpoint></Error>",
             place, place);
    return s3_fake_reply(fd, "400 Bad Request", headers, body, strlen(body));
}

START_TEST(only_names_of_places_are_told)
{
    char text[1500];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    const char *const places[] = {"AKID/hidden", "eu west", "%s%n", "\x1b[2J", text};
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        place = places[i];
        start(name_a_place, "&region=us-east-9");
        ck_assert_int_eq(run(TIERCE__STORE_PUT, 10000), REFU);
        expect_why("us-east-9");
        ck_assert_ptr_null(strstr(connector_why(connector), places[i]));
        end();
    }
}
END_TEST

/* ---- lengths --------------------------------------------------------------------------------- */

static const struct lie {
    const char *answer; /* raw */
    int get, put, exists, list;
} lies[] = {
    {"HTTP/1.1 206 P\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/9\r\n\r\n12345", 0, 0, 1,
     FORM},
    {"HTTP/1.1 200 K\r\nContent-Length: 5\r\n\r\n12345", 0, 0, 1, FORM},
    {"HTTP/1.1 206 P\r\nContent-Length: 5\r\n\r\n12345", FORM, 0, 1, FORM},
    {"HTTP/1.1 206 P\r\nContent-Length: 5\r\nContent-Range: bytes 1-5/9\r\n\r\n12345", FORM, 0, 1,
     FORM},
    {"HTTP/1.1 206 P\r\nContent-Length: 4\r\nContent-Range: bytes 0-3/4\r\n\r\n1234", FORM, 0, 1,
     FORM},
    {"HTTP/1.1 206 P\r\nContent-Length: 5\r\nContent-Range: bytes 0-18446744073709551615/9\r\n\r\n"
     "12345",
     FORM, 0, 1, FORM},
    {"HTTP/1.1 206 P\r\nContent-Length: 6\r\nContent-Range: bytes 0-4/9\r\n\r\n123456", FORM, 0, 1,
     FORM},
    {"HTTP/1.1 206 P\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-4/9\r\n\r\n"
     "3\r\n123\r\n4\r\n4567\r\n0\r\n\r\n",
     FORM, 0, 1, FORM},
    {"HTTP/1.1 206 P\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-4/9\r\n\r\n"
     "3\r\n123\r\n2\r\n45\r\n0\r\n\r\n",
     0, 0, 1, FORM},
    {"HTTP/1.1 200 K\r\nContent-Length: 6\r\n\r\n123456", FORM, 0, 1, FORM},
    {"HTTP/1.1 200 K\r\nContent-Length: 0\r\n\r\n", FORM, 0, 1, FORM},
    {"HTTP/1.1 206 P\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/9\r\n\r\n123", DOWN, DOWN, 1,
     DOWN},
    {"HTTP/1.1 200 K\r\nContent-Length: 5\r\n\r\n", DOWN, DOWN, 1, DOWN},
    {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 206 P\r\nContent-Length: 5\r\n"
     "Content-Range: bytes 0-4/9\r\n\r\n12345",
     0, 0, 1, FORM},
    {"HTTP/1.1 2", DOWN, DOWN, DOWN, DOWN},
    {"", DOWN, DOWN, DOWN, DOWN},
    {"-ERR unknown command\r\n", FORM, FORM, FORM, FORM},
    {"\xff\xfe\r\n\r\n", FORM, FORM, FORM, FORM},
    {"HTTP/1.1 200 K\r\nContent-Length: 93\r\n\r\n<ListBucketResult><IsTruncated>true</IsTruncated>"
     "<Contents><Key>!41</Key></Contents></ListBuck",
     FORM, 0, 1, FORM},
    {"HTTP/1.1 200 K\r\nContent-Length: 69\r\n\r\n<ListBucketResult><IsTruncated>true</IsTruncated>"
     "</ListBucketResult> ",
     FORM, 0, 1, FORM},
    {"HTTP/1.1 200 K\r\nContent-Length: "
     "70\r\n\r\n<ListBucketResult><Contents><Key>~</Key></Contents>"
     "</ListBucketResult>",
     FORM, 0, 1, 0},
};

static const struct lie *lie;

static bool tell_lie(int fd, const struct s3_request *request)
{
    const char *answer = lie->answer;
    size_t bytes = strlen(answer);
    const char *body = strstr(answer, "\r\n\r\n");
    if (strcmp(request->method, "HEAD") == 0 && body != NULL && strstr(answer, "Continue") == NULL)
        bytes = (size_t)(body + 4 - answer);
    s3_fake_write(fd, answer, bytes);
    return false;
}

START_TEST(lies_are_seen)
{
    lie = &lies[_i];
    start(tell_lie, "&retries=0");
    /* The bytes that are right are those of no version. */
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_GET, "n", 0);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, 4096), 0);
    memset(call.req.buf->data, 0xa5, 4096);
    call.req.length = 5;
    ck_assert_int_eq(connector_call_run(connector, &call), lie->get);
    if (lie->get == 0)
        ck_assert_mem_eq(call.req.buf->data, "12345", 5);
    ck_assert_uint_eq(call.req.buf->data[5], 0xa5); /* nothing beyond the range */
    tierce__buf_release(call.req.buf);
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 10000), lie->put);
    ck_assert_int_eq(run(TIERCE__STORE_LOOKUP, 10000), lie->exists);
    ck_assert_int_eq(run(TIERCE__STORE_LIST, 10000), lie->list);
    end();
}
END_TEST

/* ---- busy, late and lost --------------------------------------------------------------------- */

static uint32_t busy_for;

static bool be_busy(int fd, const struct s3_request *request)
{
    if (request->number < busy_for)
        return s3_fake_error(fd, "503 Slow Down", "SlowDown");
    ck_assert_uint_eq(request->body_bytes, 100000); /* the whole body again */
    ck_assert(connector_is_object(request->body, 7, 0, 100000));
    return s3_fake_reply(fd, "200 OK", "ETag: \"e\"\r\n", "", 0);
}

START_TEST(a_busy_store_is_asked_again)
{
    busy_for = 3;
    start(be_busy, "");
    ck_assert_int_eq(connector_put(connector, pool, "n", 7, 100000), 0);
    ck_assert_uint_eq(atomic_load(&fake.requests), 4);
    busy_for = 100;
    ck_assert_int_eq(connector_put(connector, pool, "n", 7, 100000), TIERCE_E_DOWN);
    ck_assert_uint_eq(atomic_load(&fake.requests), 8);
    expect_why("503 SlowDown");
    /* It does not come back after the deadline. */
    int rc = run(TIERCE__STORE_DELETE, 40);
    ck_assert(rc == TIERCE_E_DOWN || rc == TIERCE_E_DEADLINE);
    ck_assert_uint_le(atomic_load(&fake.requests), 9); /* not sent at all by a slow machine */
    end();
}
END_TEST

static bool say_nothing(int fd, const struct s3_request *request)
{
    (void)fd;
    (void)request;
    s3_fake_sleep(60000);
    return false;
}

/* Each byte takes its time. */
static bool trickle(int fd, const struct s3_request *request)
{
    const char *head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    (void)request;
    for (const char *at = head; *at != '\0'; at++) {
        if (!s3_fake_write(fd, at, 1))
            return false;
        s3_fake_sleep(20);
    }
    return false;
}

START_TEST(a_silent_store_costs_the_deadline)
{
    static const enum tierce__store_op ops[] = {TIERCE__STORE_GET,    TIERCE__STORE_PUT,
                                                TIERCE__STORE_LOOKUP, TIERCE__STORE_DELETE,
                                                TIERCE__STORE_LIST,   TIERCE__STORE_PING};
    start(_i == 0 ? say_nothing : trickle, "");
    for (size_t i = 0; i < 6; i++) {
        uint64_t begin = tierce__now_ns();
        ck_assert_int_eq(run(ops[i], 100), TIERCE_E_DEADLINE);
        ck_assert_uint_ge(tierce__now_ns() - begin, 100 * TIERCE__MS_NS);
        expect_why("no answer by the deadline");
    }
    ck_assert_uint_eq(connector_stats(connector).calls_hanging, 0);
    ck_assert_uint_eq(connector_stats(connector).waiting, 0);
    end();
}
END_TEST

static void begin_put(struct connector_call *call, struct tierce__buf *buf)
{
    connector_call_init(call, TIERCE__STORE_PUT, "n", 0);
    call->req.buf = buf;
    call->req.length = 5;
    connector->ops->submit(connector, &call->req);
}

START_TEST(connections_are_kept_for_lookups)
{
    struct connector_call calls[4], lookup;
    start(say_nothing, "&connections=3");
    struct tierce__buf *buf = connector_object(pool, 1, 5);
    for (int i = 0; i < 4; i++) {
        begin_put(&calls[i], buf);
    }
    while (atomic_load(&fake.requests) < 2) /* two are with the store, and no more */
        poll(NULL, 0, 1);
    connector_call_init(&lookup, TIERCE__STORE_LOOKUP, "n", 0);
    connector->ops->submit(connector, &lookup.req);
    while (atomic_load(&fake.requests) < 3)
        poll(NULL, 0, 1);
    ck_assert_uint_eq(connector_stats(connector).waiting, 2);
    ck_assert_uint_eq(connector_stats(connector).connections, 3);
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(50)));
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(connector_call_wait(&calls[i]), TIERCE_E_CANCELLED);
    ck_assert_int_eq(connector_call_wait(&lookup), TIERCE_E_CANCELLED);
    tierce__buf_release(buf);
    s3_fake_stop();
    tierce__pool_destroy(pool);
}
END_TEST

static bool hang_up(int fd, const struct s3_request *request)
{
    (void)fd;
    (void)request;
    return false;
}

static bool hang_up_if_used(int fd, const struct s3_request *request)
{
    return request->is_first && s3_fake_reply(fd, "200 OK", "", "", 0);
}

START_TEST(what_was_sent_and_not_answered_is_not_sent_again)
{
    start(hang_up, "");
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 10000), TIERCE_E_DOWN);
    ck_assert_uint_eq(atomic_load(&fake.requests), 1);
    ck_assert_int_eq(run(TIERCE__STORE_DELETE, 10000), TIERCE_E_DOWN);
    ck_assert_uint_eq(atomic_load(&fake.requests), 2);
    ck_assert_uint_eq(connector_stats(connector).connections, 0);
    end();
    /* But for a connection that was kept, and proves closed. */
    start(hang_up_if_used, "");
    ck_assert_int_eq(connector_put(connector, pool, "n", 1, 300000), 0);
    ck_assert_int_eq(connector_put(connector, pool, "n", 1, 300000), 0);
    ck_assert_uint_eq(atomic_load(&fake.requests), 3);
    end();
}
END_TEST

/* Until all that came beside it have come. */
static bool hang_up_if_used_later(int fd, const struct s3_request *request)
{
    while (request->is_first && atomic_load(&fake.requests) < 12)
        s3_fake_sleep(5);
    return hang_up_if_used(fd, request);
}

/* As after a pause in which the store closes what is idle, and TLS does not show it. */
START_TEST(all_kept_connections_prove_closed)
{
    struct connector_call calls[12];
    start(hang_up_if_used_later, "&connections=16");
    struct tierce__buf *buf = connector_object(pool, 1, 5);
    for (int i = 0; i < 12; i++) {
        begin_put(&calls[i], buf);
    }
    for (int i = 0; i < 12; i++)
        ck_assert_int_eq(connector_call_wait(&calls[i]), 0);
    tierce__buf_release(buf);
    int rc = run(TIERCE__STORE_DELETE, 10000);
    ck_assert_msg(rc == 0, "%s", connector_why(connector));
    end();
}
END_TEST

START_TEST(nobody_there)
{
    s3_fake_start(hang_up);
    s3_fake_stop();
    pool = connector_pool();
    open_fake("");
    ck_assert_int_eq(run(TIERCE__STORE_PING, 10000), TIERCE_E_DOWN);
    expect_why("connect");
    close_connector();
    open_url("s3://a:hidden@bucket?endpoint=https://no-such-host.invalid&timeout_ms=3000");
    ck_assert_int_eq(run(TIERCE__STORE_PING, 10000), TIERCE_E_DOWN);
    expect_why("no-such-host.invalid");
    close_connector();
    tierce__pool_destroy(pool);
}
END_TEST

/* ---- clocks, credentials, places ------------------------------------------------------------- */

#define AHEAD_S 7200

static uint64_t signed_s(const struct s3_request *request)
{
    const char *date = strcasestr(request->head, "\r\nx-amz-date: ");
    struct tm tm = {0};
    ck_assert_ptr_nonnull(date);
    ck_assert_ptr_nonnull(strptime(date + 14, "%Y%m%dT%H%M%SZ", &tm));
    return (uint64_t)timegm(&tm);
}

/* A store two hours ahead. */
static bool be_ahead(int fd, const struct s3_request *request)
{
    time_t now = time(NULL) + AHEAD_S;
    char date[64];
    strftime(date, sizeof(date), "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", gmtime(&now));
    bool is_far = llabs((int64_t)signed_s(request) - now) > 900;
    const char *body = "<Error><Code>RequestTimeTooSkewed</Code></Error>";
    if (!is_far)
        return s3_fake_reply(fd, "200 OK", date, "", 0);
    return s3_fake_reply(fd, "403 Forbidden", date, body, strlen(body));
}

START_TEST(the_clock_of_the_store_counts)
{
    start(be_ahead, "");
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 10000), 0);
    ck_assert_uint_eq(atomic_load(&fake.requests), 2);
    expect_why(" s behind the store's");
    ck_assert_int_eq(run(TIERCE__STORE_DELETE, 10000), 0);
    ck_assert_uint_eq(atomic_load(&fake.requests), 3); /* it is remembered */
    end();
}
END_TEST

static bool always_skewed(int fd, const struct s3_request *request)
{
    const char *body = "<Error><Code>RequestTimeTooSkewed</Code></Error>";
    (void)request;
    return s3_fake_reply(fd, "403 Forbidden", "Date: Sat, 01 Jan 2000 00:00:00 GMT\r\n", body,
                         strlen(body));
}

START_TEST(a_clock_is_corrected_once)
{
    start(always_skewed, "");
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 10000), TIERCE_E_REFUSED);
    ck_assert_uint_eq(atomic_load(&fake.requests), 2);
    expect_why("clock differs too much");
    end();
}
END_TEST

static char folder[64];

static void write_credentials(const char *access, const char *token)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/credentials", folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "[p]\naws_access_key_id=%s\naws_secret_access_key=hidden\naws_session_token=%s\n",
            access, token);
    fclose(file);
}

static bool want_new(int fd, const struct s3_request *request)
{
    bool is_new = strstr(request->head, "Credential=NEW/") != NULL &&
                  strcasestr(request->head, "\r\nx-amz-security-token: t2\r\n") != NULL &&
                  strstr(request->head, "SignedHeaders=host;x-amz-content-sha256;x-amz-date;"
                                        "x-amz-security-token,") != NULL;
    return is_new ? s3_fake_text(fd, "200 OK", "")
                  : s3_fake_error(fd, "400 Bad Request", "ExpiredToken");
}

START_TEST(credentials_are_read_again)
{
    char more[256];
    snprintf(folder, sizeof(folder), "/tmp/tierce-s3-XXXXXX");
    temp_folder_make(folder);
    write_credentials("OLD", "t1");
    pool = connector_pool();
    s3_fake_start(want_new);
    snprintf(more, sizeof(more),
             "s3://bucket?endpoint=http://127.0.0.1:%u&credentials_file=%s/credentials&profile=p",
             (unsigned)fake.port, folder);
    open_url(more);
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 10000), TIERCE_E_REFUSED);
    ck_assert_uint_eq(atomic_load(&fake.requests), 1);
    expect_why("token has expired");
    write_credentials("NEW", "t2");
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 10000), 0);
    ck_assert_uint_eq(atomic_load(&fake.requests), 3);
    end();
    snprintf(more, sizeof(more), "rm -r %s", folder);
    ck_assert_int_eq(system(more), 0);
}
END_TEST

static bool look_at_place(int fd, const struct s3_request *request)
{
    char host[64];
    snprintf(host, sizeof(host), "\r\nHost: bucket.localhost:%u\r\n", (unsigned)fake.port);
    bool ok =
        strcasestr(request->head, host) != NULL && strcmp(request->target, "/a/b/n%2120%21FF") == 0;
    return s3_fake_text(fd, ok ? "200 OK" : "400 Bad Request", "");
}

START_TEST(a_bucket_in_the_host_name)
{
    char url[256];
    pool = connector_pool();
    s3_fake_start(look_at_place);
    snprintf(url, sizeof(url),
             "s3://a:hidden@bucket/a/b?endpoint=http://localhost:%u&path_style=false",
             (unsigned)fake.port);
    open_url(url);
    ck_assert_int_eq(connector_delete(connector, "n \xff"), 0);
    end();
}
END_TEST

CHECK_MAIN(
    "s3", .seconds = 120, .at_once = true,
    .tests = {only_names_of_places_are_told, a_busy_store_is_asked_again,
              connections_are_kept_for_lookups, what_was_sent_and_not_answered_is_not_sent_again,
              all_kept_connections_prove_closed, nobody_there, the_clock_of_the_store_counts,
              a_clock_is_corrected_once, credentials_are_read_again, a_bucket_in_the_host_name},
    .loops = {{refusals_are_told, 0, sizeof(refusals) / sizeof(*refusals)},
              {redirections_are_told_and_not_followed, 0, sizeof(locations) / sizeof(*locations)},
              {lies_are_seen, 0, sizeof(lies) / sizeof(*lies)},
              {a_silent_store_costs_the_deadline, 0, 2}})
