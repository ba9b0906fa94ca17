/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proxy against direct calls of the same engine: a server of this process that answers at once,
 * so every microsecond of the proxy shows. The engine, the proxy and the clients share the machine.
 */
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "net/http_fetch.h"
#include "net/server/serve.h"
#include "proxy/proxy.h"

#define CALLS        64u  /* of one round, by one client at a time */
#define CLIENTS      32u  /* at once */
#define EVENTS       200u /* of a stream */
#define ROUTES       2u
#define GOAL         0.3 /* of direct calls of an engine that computes nothing */
#define PROMPT       4096u
#define ORIGIN_BYTES 64u

static const char event[] = "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"choices\":"
                            "[{\"index\":0,\"text\":\" token\",\"finish_reason\":null}]}\n\n";
static const char done_event[] = "data: [DONE]\n\n";
static const char answer[] =
    "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\" a "
    "few words\",\"finish_reason\":\"length\"}],\"kv_transfer_params\":{\"do_remote_prefill\":true,"
    "\"remote_host\":\"127.0.0.1\",\"remote_port\":1}}";

struct bench_proxy {
    const struct tierce__bench *bench;
    struct tierce__server *engine;
    struct tierce__route routes[ROUTES];
    struct tierce__fetcher *fetcher;
    char whole[PROMPT + 256], streamed[PROMPT + 256]; /* the requests */
    char engine_url[ORIGIN_BYTES];
};

/* ---- the engine ------------------------------------------------------------------------------ */

static void serve_health(void *arg, struct tierce__call *call)
{
    (void)arg;
    tierce__call_reply_text(call, 200, "");
}

static void serve_completion(void *arg, struct tierce__call *call)
{
    const struct tierce__call_info *info = tierce__call_info(call);
    (void)arg;
    if (memmem(info->body, info->body_bytes, "\"stream\":true", 13) == NULL) {
        tierce__call_reply(call, &(struct tierce__reply){
                                     .status = 200, .body = answer, .bytes = sizeof(answer) - 1});
        return;
    }
    struct tierce__http_stream *stream = tierce__call_stream(call, "text/event-stream");
    if (stream == NULL) {
        tierce__call_reply_text(call, 500, "no memory\n");
        return;
    }
    bool ok = true;
    for (uint32_t i = 0; i < EVENTS && ok; i++)
        ok = tierce__stream_write(stream, event, sizeof(event) - 1);
    if (ok)
        (void)tierce__stream_write(stream, done_event, sizeof(done_event) - 1);
    tierce__stream_end(stream);
}

static int start_engine(struct bench_proxy *b)
{
    char why[256];
    b->routes[0] = (struct tierce__route){
        .path = "/v1/completions", .method = "POST", .serve = serve_completion};
    b->routes[1] =
        (struct tierce__route){.path = "/health", .method = "GET", .serve = serve_health};
    struct tierce__listener http = {.protocol = TIERCE__SERVE_HTTP,
                                    .host = "127.0.0.1",
                                    .threads = 1,
                                    .routes = b->routes,
                                    .route_count = ROUTES};
    int rc = tierce__server_start(
        &b->engine,
        &(struct tierce__server_opts){.size = sizeof(struct tierce__server_opts),
                                      .listeners = &http,
                                      .listener_count = 1,
                                      .loops = 1,
                                      .workers = 1},
        why);
    if (rc != 0)
        return tierce__bench_fail(b->bench, "the engine: %s", why);
    snprintf(b->engine_url, sizeof(b->engine_url), "http://127.0.0.1:%u",
             tierce__server_port(b->engine, 0));
    return 0;
}

/* ---- clients --------------------------------------------------------------------------------- */

/* Requests of one kind to one server. */
struct side {
    struct bench_proxy *b;
    const char *origin, *body;
    uint32_t at_once, total; /* of a round */
    bool first_byte;         /* the time to the first byte counts, else the whole round */
    size_t bytes;            /* of each answer */
    struct client {
        struct side *side;
        struct tierce__fetch *fetch;
        uint64_t begun_ns;
        size_t bytes;
    } clients[CLIENTS];
    uint32_t begun, ended;
    uint64_t waited_ns;
    int rc;
};

static void begin(struct client *client);

static size_t take(void *arg, const char *bytes, size_t count)
{
    struct client *client = arg;
    (void)bytes;
    if (client->bytes == 0)
        client->side->waited_ns += tierce__now_ns() - client->begun_ns;
    client->bytes += count;
    return count;
}

static void done(void *arg, int rc, const char *why)
{
    struct client *client = arg;
    struct side *side = client->side;
    long status = tierce__fetch_status(client->fetch);
    side->ended++;
    if (rc != 0 || status != 200 || client->bytes != side->bytes)
        side->rc = tierce__bench_fail(side->b->bench, "an answer of %zu bytes, status %ld: %s",
                                      client->bytes, status, why);
    else if (side->begun < side->total)
        begin(client);
}

static void begin(struct client *client)
{
    struct side *side = client->side;
    char url[ORIGIN_BYTES + 32];
    snprintf(url, sizeof(url), "%s/v1/completions", side->origin);
    client->bytes = 0;
    client->begun_ns = tierce__now_ns();
    side->begun++;
    int rc = tierce__fetch_begin(&client->fetch, side->b->fetcher,
                                 &(struct tierce__fetch_request){.url = url,
                                                                 .body = side->body,
                                                                 .body_bytes = strlen(side->body),
                                                                 .take = take,
                                                                 .done = done,
                                                                 .arg = client});
    if (rc != 0)
        side->rc = rc;
}

/* One round; the nanoseconds of one request. */
static int64_t run_side(void *arg)
{
    struct side *side = arg;
    side->begun = side->ended = 0;
    side->waited_ns = 0;
    uint64_t start = tierce__now_ns();
    for (uint32_t i = 0; i < side->at_once; i++) {
        side->clients[i].side = side;
        begin(&side->clients[i]);
    }
    while (side->rc == 0 && side->ended < side->total) {
        tierce__fetcher_step(side->b->fetcher);
        if (side->ended < side->total)
            tierce__fetcher_wait(side->b->fetcher, 1000);
    }
    if (side->rc != 0)
        return side->rc;
    uint64_t ns = side->first_byte ? side->waited_ns : tierce__now_ns() - start;
    return (int64_t)(ns / side->total);
}

/* ---- cases ----------------------------------------------------------------------------------- */

struct proxy_case {
    const char *name;
    bool streams, first_byte;
    uint32_t at_once;
    double per_request; /* what counts in a second; 0: microseconds of a request */
    const char *unit;
    double direct; /* direct calls that one through the proxy stands for*/
};

static const struct proxy_case cases[] = {
    {"whole answer; 1 client", false, false, 1, 0, "us", 1},
    {"first byte of a stream; 1 client", true, true, 1, 0, "us", 1},
    {"whole answers; 32 clients", false, false, CLIENTS, 1, "requests/s", 1},
    {"events of streams; 32 clients", true, false, CLIENTS, EVENTS, "events/s", 1},
};

static const struct proxy_case prefill_case = {
    .name = "whole answer after a prefill; 1 client; against two calls",
    .at_once = 1,
    .unit = "us",
    .direct = 2};

static int run_case(struct bench_proxy *b, const struct proxy_case *c, const char *proxy)
{
    struct side sides[2];
    struct tierce__bench_side both[2];
    for (int i = 0; i < 2; i++) {
        sides[i] = (struct side){.b = b,
                                 .origin = i == 0 ? proxy : b->engine_url,
                                 .body = c->streams ? b->streamed : b->whole,
                                 .at_once = c->at_once,
                                 .total = c->at_once == 1 ? CALLS : 4 * CLIENTS,
                                 .first_byte = c->first_byte,
                                 .bytes = c->streams ? EVENTS * (sizeof(event) - 1) +
                                                           sizeof(done_event) - 1
                                                     : sizeof(answer) - 1};
        both[i] = (struct tierce__bench_side){.run = run_side, .arg = &sides[i]};
    }
    int rc = tierce__bench_alternate(both, 2, b->bench->seconds);
    if (rc < 0)
        return rc;
    bool is_rate = c->per_request > 0;
    tierce__bench_emit(
        b->bench,
        &(struct tierce__bench_row){
            .case_name = c->name,
            .unit = c->unit,
            .sense = is_rate ? TIERCE__BENCH_MORE_IS_BETTER : TIERCE__BENCH_LESS_IS_BETTER,
            .value = is_rate ? c->per_request * 1e9 / both[0].median_ns : both[0].median_ns / 1e3,
            .limit = is_rate ? c->per_request * 1e9 / both[1].median_ns
                             : c->direct * both[1].median_ns / 1e3,
            .goal = GOAL});
    return 0;
}

/* With prefill, the engine is asked twice for each request. */
static int run_proxy(struct bench_proxy *b, bool has_prefill)
{
    char decode[ORIGIN_BYTES + 32], prefill[ORIGIN_BYTES + 32], origin[ORIGIN_BYTES], why[256];
    snprintf(decode, sizeof(decode), "--decode.urls=%s", b->engine_url);
    snprintf(prefill, sizeof(prefill), "--prefill.urls=%s", b->engine_url);
    char port[] = "--listen.port=0";
    char *argv[] = {port, decode, prefill};
    struct tierce__proxy_config config;
    struct tierce__config_error error;
    struct tierce__proxy *proxy;
    char *env[] = {NULL};
    if (tierce__proxy_config_load(&config, has_prefill ? 3 : 2, argv, env, &error) < 0)
        return tierce__bench_fail(b->bench, "%s", error.text);
    int rc = tierce__proxy_start(&proxy, &config, why);
    if (rc < 0) {
        tierce__proxy_config_clear(&config);
        return tierce__bench_fail(b->bench, "the proxy: %s", why);
    }
    snprintf(origin, sizeof(origin), "http://127.0.0.1:%u", tierce__proxy_port(proxy));
    if (has_prefill)
        rc = run_case(b, &prefill_case, origin);
    for (size_t i = 0; rc == 0 && !has_prefill && i < sizeof(cases) / sizeof(cases[0]); i++)
        rc = run_case(b, &cases[i], origin);
    tierce__proxy_stop(proxy);
    tierce__proxy_config_clear(&config);
    return rc;
}

static void write_requests(struct bench_proxy *b)
{
    char prompt[PROMPT];
    memset(prompt, 'x', sizeof(prompt) - 1);
    prompt[sizeof(prompt) - 1] = '\0';
    snprintf(b->whole, sizeof(b->whole),
             "{\"model\":\"m\",\"max_tokens\":16,\"stream\":false,\"prompt\":\"%s\"}", prompt);
    snprintf(b->streamed, sizeof(b->streamed),
             "{\"model\":\"m\",\"max_tokens\":200,\"stream\":true,\"prompt\":\"%s\"}", prompt);
}

int tierce__bench_proxy(const struct tierce__bench *bench)
{
    struct bench_proxy *b = tierce__calloc(1, sizeof(*b));
    if (b == NULL)
        return -ENOMEM;
    b->bench = bench;
    write_requests(b);
    int rc = start_engine(b);
    if (rc == 0)
        rc = tierce__fetcher_create(&b->fetcher, &(struct tierce__fetcher_opts){0});
    if (rc == 0)
        rc = run_proxy(b, false);
    if (rc == 0)
        rc = run_proxy(b, true);
    tierce__fetcher_destroy(b->fetcher);
    tierce__server_stop(b->engine, 1000);
    tierce__free(b);
    return rc;
}
