/* SPDX-License-Identifier: Apache-2.0 */
/* Adjacent waiting ranges of one object are read in one request and answered one by one. */
#include "check_main.h"
#include "s3_case.h"

#include <inttypes.h>

#define RANGE   (1ull << 20)
#define RANGES  16u
#define OBJECT  (RANGES * RANGE)
#define PART    (8ull << 20) /* the connector's */
#define VERSION 3u

static struct {
    struct tierce__buf *object;
    uint64_t bytes;           /* of it */
    _Atomic uint64_t stop_at; /* of a range: no more of it is sent until it is let go */
    _Atomic uint64_t cut_at;  /* of the next range: its connection is closed there */
    _Atomic bool held;        /* requests of "busy" */
    _Atomic uint32_t gets;    /* of the object */
    _Atomic uint64_t longest; /* range */
} store;

static void wait_while(const _Atomic bool *held)
{
    while (atomic_load(held) && !atomic_load(&fake.ending))
        s3_fake_sleep(2);
}

static bool send_range(int fd, uint64_t first, uint64_t last)
{
    char head[256];
    uint64_t count = last - first + 1, stop = atomic_load(&store.stop_at);
    snprintf(head, sizeof(head),
             "HTTP/1.1 206 Partial Content\r\nContent-Length: %" PRIu64 "\r\nETag: \"1\"\r\n"
             "Content-Range: bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64 "\r\n\r\n",
             count, first, last, store.bytes);
    uint64_t cut = atomic_exchange(&store.cut_at, UINT64_MAX);
    stop = stop < cut ? stop : cut;
    uint64_t now = stop < count ? stop : count;
    if (!s3_fake_write(fd, head, strlen(head)) ||
        !s3_fake_write(fd, store.object->data + first, now) || cut < count)
        return false;
    while (atomic_load(&store.stop_at) < count && !atomic_load(&fake.ending))
        s3_fake_sleep(2);
    return s3_fake_write(fd, store.object->data + first + now, count - now);
}

static bool serve_ranges(int fd, const struct s3_request *request)
{
    uint64_t first = 0, last = 0;
    const char *range = strcasestr(request->head, "\r\nRange: bytes=");
    ck_assert_ptr_nonnull(range);
    ck_assert_int_eq(sscanf(range + 15, "%" SCNu64 "-%" SCNu64, &first, &last), 2);
    if (strstr(request->target, "busy") != NULL) {
        wait_while(&store.held);
        return s3_fake_error(fd, "404 Not Found", "NoSuchKey");
    }
    atomic_fetch_add(&store.gets, 1);
    if (strstr(request->target, "forbidden") != NULL)
        return s3_fake_error(fd, "403 Forbidden", "AccessDenied");
    if (last - first + 1 > atomic_load(&store.longest))
        atomic_store(&store.longest, last - first + 1);
    if (first >= store.bytes)
        return s3_fake_error(fd, "416 Range Not Satisfiable", "InvalidRange");
    return send_range(fd, first, last < store.bytes ? last : store.bytes - 1);
}

static struct connector_call busy[2], calls[RANGES];
static struct tierce__buf *into, *small;

static void begin_get(struct connector_call *call, const char *name, struct tierce__buf *buf,
                      uint64_t offset, uint64_t length, uint32_t ms)
{
    connector_call_init(call, TIERCE__STORE_GET, name, 0);
    call->req.buf = buf;
    call->req.offset = offset;
    call->req.length = length;
    call->req.deadline_ns = tierce__deadline_in_ms(ms);
    connector->ops->submit(connector, &call->req);
}

/* Makes an object of `bytes` bytes, and a connector whose two connections are busy until `let_go`,
 * so that later requests wait. */
static void start_busy(uint64_t bytes)
{
    start(serve_ranges, "&connections=2");
    store.object = connector_object(pool, VERSION, OBJECT);
    store.bytes = bytes;
    atomic_store(&store.stop_at, UINT64_MAX);
    atomic_store(&store.cut_at, UINT64_MAX);
    atomic_store(&store.held, true);
    ck_assert_int_eq(tierce__pool_alloc(pool, &into, OBJECT), 0);
    ck_assert_int_eq(tierce__pool_alloc(pool, &small, 10), 0);
    memset(into->data, 0xa5, OBJECT);
    for (size_t i = 0; i < 2; i++)
        begin_get(&busy[i], "busy", small, 0, 10, 60000);
    while (atomic_load(&fake.requests) < 2)
        poll(NULL, 0, 1);
}

static void let_go(void)
{
    atomic_store(&store.held, false);
    for (size_t i = 0; i < 2; i++)
        ck_assert_int_eq(connector_call_wait(&busy[i]), TIERCE_E_MISS);
}

static void begin_ranges(uint32_t ms)
{
    for (uint64_t i = 0; i < RANGES; i++)
        begin_get(&calls[i], "object", into, i * RANGE, RANGE, ms);
}

static void end_busy(void)
{
    tierce__buf_release(store.object);
    tierce__buf_release(into);
    tierce__buf_release(small);
    end();
}

START_TEST(waiting_ranges_are_one_request)
{
    start_busy(OBJECT);
    begin_ranges(60000);
    let_go();
    for (size_t i = 0; i < RANGES; i++) {
        ck_assert_int_eq(connector_call_wait(&calls[i]), 0);
        ck_assert(!calls[i].req.connected);
    }
    ck_assert(busy[0].req.connected && busy[1].req.connected);
    ck_assert(connector_is_object(into->data, VERSION, 0, OBJECT));
    ck_assert_uint_eq(atomic_load(&store.gets), OBJECT / PART);
    ck_assert_uint_eq(atomic_load(&store.longest), PART);
    ck_assert_uint_eq(connector_stats(connector).waiting, 0);
    end_busy();
}
END_TEST

/* No request waits for the bytes after its own range. */
START_TEST(a_range_is_answered_when_it_is_there)
{
    start_busy(OBJECT);
    atomic_store(&store.stop_at, 3 * RANGE);
    begin_ranges(60000);
    let_go();
    for (size_t i = 0; i < RANGES; i += i == 2 ? 6 : 1) {
        if (i % 8 < 3)
            ck_assert_int_eq(connector_call_wait(&calls[i]), 0);
        if (i == 10)
            break;
    }
    ck_assert(connector_is_object(into->data, VERSION, 0, 3 * RANGE));
    ck_assert(connector_is_object(into->data, VERSION, PART, 3 * RANGE));
    for (size_t i = 0; i < RANGES; i++)
        ck_assert_int_eq(atomic_load(&calls[i].done_count), i % 8 < 3);
    atomic_store(&store.stop_at, UINT64_MAX);
    for (size_t i = 0; i < RANGES; i++) {
        if (i % 8 >= 3)
            ck_assert_int_eq(connector_call_wait(&calls[i]), 0);
    }
    ck_assert(connector_is_object(into->data, VERSION, 0, OBJECT));
    end_busy();
}
END_TEST

/* Ranges of other objects or buffers, and ranges that are not adjacent, are read separately. */
START_TEST(only_neighbours_are_joined)
{
    struct tierce__buf *other = NULL;
    struct connector_call more[4];
    start_busy(OBJECT);
    ck_assert_int_eq(tierce__pool_alloc(pool, &other, OBJECT), 0);
    begin_get(&more[0], "object", into, 0, RANGE, 60000);
    begin_get(&more[1], "object", into, 2 * RANGE, RANGE, 60000);
    begin_get(&more[2], "object-2", into, RANGE, RANGE, 60000);
    begin_get(&more[3], "object", other, 3 * RANGE, RANGE, 60000);
    let_go();
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(connector_call_wait(&more[i]), 0);
    ck_assert_uint_eq(atomic_load(&store.gets), 4);
    ck_assert_uint_eq(atomic_load(&store.longest), RANGE);
    ck_assert(connector_is_object(into->data, VERSION, 0, 3 * RANGE));
    ck_assert(connector_is_object(other->data, VERSION, 3 * RANGE, RANGE));
    tierce__buf_release(other);
    end_busy();
}
END_TEST

/* The object ends inside of a joined range: the ranges before its end are there. */
START_TEST(a_shorter_object)
{
    start_busy(4 * RANGE + 5);
    begin_ranges(60000);
    let_go();
    for (size_t i = 0; i < RANGES; i++) {
        int rc = connector_call_wait(&calls[i]);
        ck_assert_int_eq(rc, i < 4 ? 0 : TIERCE_E_FORMAT);
    }
    ck_assert(connector_is_object(into->data, VERSION, 0, 4 * RANGE));
    end_busy();
}
END_TEST

START_TEST(a_missing_object)
{
    start_busy(OBJECT);
    for (uint64_t i = 0; i < 4; i++)
        begin_get(&calls[i], "busy", into, i * RANGE, RANGE, 60000);
    let_go();
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(connector_call_wait(&calls[i]), TIERCE_E_MISS);
    ck_assert_uint_eq(atomic_load(&fake.requests), 3);
    end_busy();
}
END_TEST

/* The failure of one request is marked as known in the answers of all ranges but the first. */
START_TEST(a_rejected_request)
{
    start_busy(OBJECT);
    for (uint64_t i = 0; i < 4; i++)
        begin_get(&calls[i], "forbidden", into, i * RANGE, RANGE, 60000);
    let_go();
    for (size_t i = 0; i < 4; i++) {
        ck_assert_int_eq(connector_call_wait(&calls[i]), TIERCE_E_REFUSED);
        ck_assert_int_eq(calls[i].req.repeats, i > 0);
    }
    ck_assert_uint_eq(atomic_load(&store.gets), 1);
    end_busy();
}
END_TEST

/* A range whose time is over while it rides along has its answer, is not written any more, and the
 * others come all the same. `_i`: the range. */
START_TEST(one_range_is_late)
{
    start_busy(OBJECT);
    atomic_store(&store.stop_at, 2 * RANGE);
    for (uint64_t i = 0; i < 8; i++)
        begin_get(&calls[i], "object", into, i * RANGE, RANGE,
                  i == (uint64_t)_i && _i >= 2 ? 300 : 60000);
    let_go();
    int rc = connector_call_wait(&calls[_i]);
    ck_assert_int_eq(rc, _i < 2 ? 0 : TIERCE_E_DEADLINE);
    memset(into->data + (uint64_t)_i * RANGE, 0x11, RANGE);
    atomic_store(&store.stop_at, UINT64_MAX);
    for (uint64_t i = 0; i < 8; i++) {
        if (i == (uint64_t)_i)
            continue;
        ck_assert_int_eq(connector_call_wait(&calls[i]), 0);
        ck_assert(connector_is_object(into->data, VERSION, i * RANGE, RANGE));
    }
    uint64_t untouched = 0;
    while (untouched < RANGE && into->data[(uint64_t)_i * RANGE + untouched] == 0x11)
        untouched++;
    ck_assert_uint_eq(untouched, RANGE);
    end_busy();
}
END_TEST

/* One connection that breaks is not a failure of all the ranges that were to come over it: so many
 * at once would open the breaker of a store that is well. `_i`: ranges that have come before. */
START_TEST(a_connection_breaks)
{
    start_busy(OBJECT);
    atomic_store(&store.cut_at, (uint64_t)_i * RANGE + RANGE / 2);
    begin_ranges(60000);
    let_go();
    for (size_t i = 0; i < RANGES; i++)
        ck_assert_int_eq(connector_call_wait(&calls[i]), 0);
    ck_assert(connector_is_object(into->data, VERSION, 0, OBJECT));
    /* The two joined ones, and each that was left of the first. */
    ck_assert_uint_le(atomic_load(&store.gets), 2 + 8);
    ck_assert_uint_ge(atomic_load(&store.gets), 2 + 8 - (uint32_t)_i);
    end_busy();
}
END_TEST

START_TEST(close_while_they_ride)
{
    start_busy(OBJECT);
    atomic_store(&store.stop_at, 2 * RANGE);
    begin_ranges(60000);
    let_go();
    ck_assert_int_eq(connector_call_wait(&calls[1]), 0);
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(200)));
    for (size_t i = 0; i < RANGES; i++) {
        ck_assert_int_eq(atomic_load(&calls[i].done_count), 1);
        ck_assert(calls[i].req.status == 0 || calls[i].req.status == TIERCE_E_CANCELLED);
    }
    open_fake("");
    end_busy();
}
END_TEST

/* ---- deletions ------------------------------------------------------------------------------- */

#define DELETIONS 40u

static struct {
    _Atomic uint32_t many, single, keys;
    const char *many_status; /* "200 OK", or an error */
    const char *many_text;
} deletions;

#define ALL_ARE_GONE "<DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"/>"
#define ONE_IS_THERE                                                                               \
    "<DeleteResult><Error><Key>a/n1</Key><Code>InternalError</Code></Error></DeleteResult>"
#define AN_ERROR "<Error><Code>InternalError</Code></Error>" /* with 200, as S3 may send it */
#define A_PAGE   "<html><body><p>Welcome</p></body></html>"

static uint32_t count_keys(const char *body)
{
    uint32_t count = 0;
    for (const char *at = body; (at = strstr(at, "<Object><Key>a/n")) != NULL; at++)
        count++;
    return count;
}

static bool take_deletions(int fd, const struct s3_request *request)
{
    if (strstr(request->target, "busy") != NULL) {
        wait_while(&store.held);
        return s3_fake_error(fd, "404 Not Found", "NoSuchKey");
    }
    if (strcmp(request->method, "DELETE") == 0) {
        atomic_fetch_add(&deletions.single, 1);
        return s3_fake_text(fd, "204 No Content", "");
    }
    ck_assert_str_eq(request->method, "POST");
    ck_assert_str_eq(request->target, "/bucket?delete=");
    ck_assert_ptr_nonnull(strcasestr(request->head, "\r\nContent-MD5: "));
    request->body[request->body_bytes] = '\0';
    atomic_fetch_add(&deletions.many, 1);
    atomic_fetch_add(&deletions.keys, count_keys((const char *)request->body));
    if (strcmp(deletions.many_status, "200 OK") != 0)
        return s3_fake_error(fd, deletions.many_status, "NotImplemented");
    return s3_fake_text(fd, "200 OK", deletions.many_text);
}

static void delete_all(struct connector_call *all)
{
    for (uint32_t i = 0; i < DELETIONS; i++) {
        char name[8];
        snprintf(name, sizeof(name), "n%u", i);
        connector_call_init(&all[i], TIERCE__STORE_DELETE, name, 0);
        connector->ops->submit(connector, &all[i].req);
    }
}

/* Both connections are busy, so that what is to be deleted waits: of stores one is kept free. */
START_TEST(waiting_deletions_are_one_request)
{
    static const struct {
        const char *status, *text;
        uint32_t single; /* deletions on their own */
    } rows[] = {{"200 OK", ALL_ARE_GONE, 0},
                {"200 OK", ONE_IS_THERE, DELETIONS},
                {"501 Not Implemented", "", DELETIONS},
                {"200 OK", AN_ERROR, DELETIONS},
                {"200 OK", A_PAGE, DELETIONS}};
    struct connector_call all[DELETIONS];
    char url[128];
    deletions.many_status = rows[_i].status;
    deletions.many_text = rows[_i].text;
    pool = connector_pool();
    s3_fake_start(take_deletions);
    snprintf(url, sizeof(url),
             "s3://AKID:hidden@bucket/a?connections=2&endpoint=http://127.0.0.1:%u",
             (unsigned)fake.port);
    open_url(url);
    atomic_store(&store.held, true);
    ck_assert_int_eq(tierce__pool_alloc(pool, &small, 10), 0);
    for (size_t i = 0; i < 2; i++)
        begin_get(&busy[i], "busy", small, 0, 10, 60000);
    while (atomic_load(&fake.requests) < 2)
        poll(NULL, 0, 1);
    delete_all(all);
    let_go();
    for (uint32_t i = 0; i < DELETIONS; i++)
        ck_assert_int_eq(connector_call_wait(&all[i]), 0);
    ck_assert_uint_eq(atomic_load(&deletions.many), 1);
    ck_assert_uint_eq(atomic_load(&deletions.keys), DELETIONS);
    ck_assert_uint_eq(atomic_load(&deletions.single), rows[_i].single);
    ck_assert_uint_eq(connector_stats(connector).waiting, 0);
    tierce__buf_release(small);
    end();
}
END_TEST

CHECK_MAIN("s3_join", .seconds = 100,
           .tests = {waiting_ranges_are_one_request, a_range_is_answered_when_it_is_there,
                     only_neighbours_are_joined, a_shorter_object, a_missing_object,
                     a_rejected_request, close_while_they_ride},
           .loops = {{one_range_is_late, 0, 8},
                     {a_connection_breaks, 0, 8},
                     {waiting_deletions_are_one_request, 0, 5}})
