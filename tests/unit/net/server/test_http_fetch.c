/* SPDX-License-Identifier: Apache-2.0 */
/* Many requests on one thread, and streams whose writer waits for room, from a server of this
 * process. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "net/http_fetch.h"
#include "net/server/serve.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { ROUTES = 2, MANY = 50, STREAM_BYTES = 4 << 20, BUFFER_BYTES = 64 << 10, WAIT_S = 20 };

static struct tierce__server *server;
static struct tierce__route routes[ROUTES];
static struct tierce__fetcher *fetcher;
static struct tierce__call *_Atomic held; /* by serve_held, until the test answers it */
static atomic_uint drained;

static void serve_echo(void *arg, struct tierce__call *call)
{
    const struct tierce__call_info *info = tierce__call_info(call);
    const struct tierce__reply_header headers[] = {{"X-Name", tierce__call_header(call, "x-name")},
                                                   {"X-Other", "other"}};
    (void)arg;
    tierce__call_reply(call, &(struct tierce__reply){.status = 201,
                                                     .headers = headers,
                                                     .header_count = 2,
                                                     .body = info->body,
                                                     .bytes = info->body_bytes});
}

static void serve_held(void *arg, struct tierce__call *call)
{
    (void)arg;
    atomic_store(&held, call);
}

static void on_drained(void *arg)
{
    (void)arg;
    atomic_fetch_add(&drained, 1);
}

static void setup(void)
{
    char why[256];
    const struct tierce__route all[ROUTES] = {
        {.path = "/echo", .method = "POST", .serve = serve_echo},
        {.path = "/held", .method = "GET", .serve = serve_held}};
    memcpy(routes, all, sizeof(all));
    struct tierce__listener http = {.protocol = TIERCE__SERVE_HTTP,
                                    .host = "127.0.0.1",
                                    .threads = 2,
                                    .routes = routes,
                                    .route_count = ROUTES};
    ck_assert_int_eq(tierce__server_start(
                         &server,
                         &(struct tierce__server_opts){.size = sizeof(struct tierce__server_opts),
                                                       .listeners = &http,
                                                       .listener_count = 1,
                                                       .stream_buffer_max = BUFFER_BYTES,
                                                       .loops = 1},
                         why),
                     0);
    ck_assert_int_eq(tierce__fetcher_create(&fetcher, &(struct tierce__fetcher_opts){0}), 0);
    atomic_store(&held, NULL);
    atomic_store(&drained, 0);
}

static void teardown(void)
{
    tierce__fetcher_destroy(fetcher);
    tierce__server_stop(server, 5000);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* ---- one request ----------------------------------------------------------------------------- */

struct ask {
    struct tierce__fetch *fetch;
    char body[4096];
    size_t bytes;
    long status;
    char name[32];
    bool pauses, refuses, is_paused, is_done;
    int rc;
};

static size_t take(void *arg, const char *bytes, size_t count)
{
    struct ask *ask = arg;
    ck_assert_uint_le(count, TIERCE__FETCH_PART_BYTES);
    if (ask->refuses)
        return 0;
    if (ask->pauses) {
        ask->is_paused = true;
        return TIERCE__CURL_PAUSE;
    }
    for (size_t i = 0; i < count; i++)
        ask->body[(ask->bytes + i) % sizeof(ask->body)] = bytes[i];
    ask->bytes += count;
    return count;
}

static void done(void *arg, int rc, const char *why)
{
    struct ask *ask = arg;
    const char *name = tierce__fetch_header(ask->fetch, "x-name");
    ck_assert_ptr_nonnull(why);
    ask->status = tierce__fetch_status(ask->fetch);
    snprintf(ask->name, sizeof(ask->name), "%s", name != NULL ? name : "");
    ask->rc = rc;
    ask->is_done = true;
}

static void begin(struct ask *ask, const char *path, const char *body, const char *name)
{
    char url[64];
    struct tierce__curl_header header = {"X-Name", name};
    snprintf(url, sizeof(url), "http://127.0.0.1:%u%s", tierce__server_port(server, 0), path);
    ck_assert_int_eq(tierce__fetch_begin(&ask->fetch, fetcher,
                                         &(struct tierce__fetch_request){
                                             .url = url,
                                             .body = body,
                                             .body_bytes = body != NULL ? strlen(body) : 0,
                                             .headers = &header,
                                             .header_count = 1,
                                             .take = take,
                                             .done = done,
                                             .arg = ask}),
                     0);
}

static void step(void)
{
    tierce__fetcher_step(fetcher);
    tierce__fetcher_wait(fetcher, 1);
}

#define STEP_UNTIL(condition)                                                                      \
    do {                                                                                           \
        uint64_t step_until_ns_ = tierce__deadline_in_ms(WAIT_S * 1000);                           \
        while (!(condition)) {                                                                     \
            ck_assert_msg(tierce__now_ns() < step_until_ns_, "never: %s", #condition);             \
            step();                                                                                \
        }                                                                                          \
    } while (0)

START_TEST(many_at_once)
{
    static struct ask asks[MANY];
    static char bodies[MANY][32], names[MANY][32];
    memset(asks, 0, sizeof(asks));
    for (int i = 0; i < MANY; i++) {
        snprintf(bodies[i], sizeof(bodies[i]), "body %d", i);
        snprintf(names[i], sizeof(names[i]), "name %d", i);
        begin(&asks[i], "/echo", bodies[i], names[i]);
    }
    for (int i = 0; i < MANY; i++) {
        STEP_UNTIL(asks[i].is_done);
        ck_assert_int_eq(asks[i].rc, 0);
        ck_assert_int_eq(asks[i].status, 201);
        ck_assert_str_eq(asks[i].name, names[i]);
        ck_assert_uint_eq(asks[i].bytes, strlen(bodies[i]));
        ck_assert_int_eq(memcmp(asks[i].body, bodies[i], asks[i].bytes), 0);
    }
}
END_TEST

START_TEST(pauses_and_refusals)
{
    struct ask ask = {.pauses = true};
    begin(&ask, "/echo", "text", "a");
    STEP_UNTIL(ask.is_paused);
    for (int i = 0; i < 10; i++)
        step();
    ck_assert(!ask.is_done);
    ask.pauses = false;
    tierce__fetch_resume(ask.fetch);
    STEP_UNTIL(ask.is_done);
    ck_assert_int_eq(ask.rc, 0);
    ck_assert_uint_eq(ask.bytes, 4);
    struct ask other = {.refuses = true};
    begin(&other, "/echo", "text", "a");
    STEP_UNTIL(other.is_done);
    ck_assert_int_eq(other.rc, TIERCE_E_CANCELLED);
    ck_assert_int_eq(other.status, 201);
}
END_TEST

START_TEST(a_cancelled_request_is_noticed_by_the_server)
{
    struct ask ask = {0};
    begin(&ask, "/held", NULL, "a");
    STEP_UNTIL(atomic_load(&held) != NULL);
    ck_assert(!tierce__call_is_over(atomic_load(&held)));
    ck_assert(tierce__fetch_was_sent(ask.fetch));
    tierce__fetch_cancel(ask.fetch);
    STEP_UNTIL(tierce__call_is_over(atomic_load(&held)));
    ck_assert(!ask.is_done);
    tierce__call_reply_text(atomic_load(&held), 200, "");
}
END_TEST

static int ask_nobody(void)
{
    struct ask ask = {0};
    ck_assert_int_eq(
        tierce__fetch_begin(
            &ask.fetch, fetcher,
            &(struct tierce__fetch_request){
                .url = "http://127.0.0.1:1/", .take = take, .done = done, .arg = &ask}),
        0);
    ck_assert(!tierce__fetch_was_sent(ask.fetch));
    STEP_UNTIL(ask.is_done);
    ck_assert_int_eq(ask.status, 0);
    return ask.rc;
}

START_TEST(nobody_listens)
{
    ck_assert_int_eq(ask_nobody(), -ECONNREFUSED);
}
END_TEST

/* A process without descriptors is no server that refuses, after one that did. */
START_TEST(no_descriptors)
{
    struct rlimit before, few;
    ck_assert_int_eq(ask_nobody(), -ECONNREFUSED);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){.rlim_cur = 3, .rlim_max = before.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    int rc = ask_nobody();
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_int_eq(rc, -EMFILE);
    ck_assert(tierce__fetch_is_local(rc) && tierce__fetch_is_local(-ENOMEM));
    ck_assert(!tierce__fetch_is_local(0) && !tierce__fetch_is_local(-ECONNREFUSED));
    ck_assert_int_eq(ask_nobody(), -ECONNREFUSED);
}
END_TEST

/* The reader pauses: the writer sees that there is no room, and hears once that there is again. */
START_TEST(a_stream_whose_writer_waits)
{
    static char part[16 << 10];
    struct ask ask = {.pauses = true};
    size_t written = 0;
    begin(&ask, "/held", NULL, "a");
    STEP_UNTIL(atomic_load(&held) != NULL);
    struct tierce__http_stream *stream = tierce__call_stream_with(
        atomic_load(&held), &(struct tierce__stream_opts){
                                .status = 202, .type = "text/event-stream", .drained = on_drained});
    ck_assert_ptr_nonnull(stream);
    uint64_t until_ns = tierce__deadline_in_ms(WAIT_S * 1000);
    for (unsigned waits = 0; written < STREAM_BYTES;) {
        ck_assert(tierce__now_ns() < until_ns);
        if (tierce__stream_room(stream, sizeof(part)) >= sizeof(part)) {
            memset(part, (int)('a' + written / sizeof(part) % 26), sizeof(part));
            ck_assert(tierce__stream_write(stream, part, sizeof(part)));
            written += sizeof(part);
            continue;
        }
        if (ask.pauses && ask.is_paused && ++waits == 3) {
            ask.pauses = false;
            tierce__fetch_resume(ask.fetch);
        }
        step();
    }
    tierce__stream_end(stream);
    STEP_UNTIL(ask.is_done);
    ck_assert_int_eq(ask.rc, 0);
    ck_assert_int_eq(ask.status, 202);
    ck_assert_uint_eq(ask.bytes, STREAM_BYTES);
    ck_assert_uint_gt(atomic_load(&drained), 0);
}
END_TEST

CHECK_MAIN("http_fetch", .setup = setup, .teardown = teardown,
           .tests = {many_at_once, pauses_and_refusals,
                     a_cancelled_request_is_noticed_by_the_server, nobody_listens, no_descriptors,
                     a_stream_whose_writer_waits})
