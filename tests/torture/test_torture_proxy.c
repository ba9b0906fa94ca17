/* SPDX-License-Identifier: Apache-2.0 */
/* Each allocation of a proxy fails once: at its start, and while it serves a request through all of
 * its steps. Nothing leaks, each client gets an answer or sees the connection end, and the next
 * request is served. */
#include "base/alloc.h"
#include "check_main.h"
#include "net/http_client.h"
#include "net/server/serve.h"
#include "proxy/proxy.h"
#include "temp_folder.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { ROUTES = 4, STEPS_MAX = 400 };

static struct tierce__server *engine;
static struct tierce__route routes[ROUTES];
static char url[64], folder[64];

static void reply(struct tierce__call *call, const char *text)
{
    tierce__call_reply(call,
                       &(struct tierce__reply){.status = 200, .body = text, .bytes = strlen(text)});
}

static void serve_health(void *arg, struct tierce__call *call)
{
    (void)arg;
    reply(call, "");
}

static void serve_tokens(void *arg, struct tierce__call *call)
{
    (void)arg;
    reply(call, "{\"tokens\":[1,2,3]}");
}

static void serve_query(void *arg, struct tierce__call *call)
{
    (void)arg;
    reply(call, "{\"instances\":{\"1\":{\"longest_matched\":2}}}");
}

static void serve_completion(void *arg, struct tierce__call *call)
{
    const struct tierce__call_info *info = tierce__call_info(call);
    (void)arg;
    if (memmem(info->body, info->body_bytes, "\"stream\":true", 13) == NULL) {
        reply(call, "{\"kv_transfer_params\":{\"a\":1}}");
        return;
    }
    struct tierce__http_stream *stream = tierce__call_stream(call, "text/event-stream");
    if (stream == NULL) {
        tierce__call_reply_text(call, 500, "no memory\n");
        return;
    }
    (void)tierce__stream_write(stream, "data: [DONE]\n\n", 14);
    tierce__stream_end(stream);
}

static void setup(void)
{
    char why[256];
    const struct tierce__route all[ROUTES] = {
        {.path = "/v1/completions", .method = "POST", .serve = serve_completion},
        {.path = "/tokenize", .method = "POST", .serve = serve_tokens},
        {.path = "/query", .method = "POST", .serve = serve_query},
        {.path = "/health", .method = "GET", .serve = serve_health}};
    memcpy(routes, all, sizeof(all));
    struct tierce__listener http = {.protocol = TIERCE__SERVE_HTTP,
                                    .host = "127.0.0.1",
                                    .threads = 1,
                                    .routes = routes,
                                    .route_count = ROUTES};
    ck_assert_int_eq(tierce__server_start(
                         &engine,
                         &(struct tierce__server_opts){.size = sizeof(struct tierce__server_opts),
                                                       .listeners = &http,
                                                       .listener_count = 1,
                                                       .loops = 1,
                                                       .workers = 1},
                         why),
                     0);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", tierce__server_port(engine, 0));
    snprintf(folder, sizeof(folder), "/tmp/tierce-proxy-XXXXXX");
    temp_folder_make(folder);
}

static void teardown(void)
{
    tierce__server_stop(engine, 5000);
    temp_folder_remove(folder);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void configure(struct tierce__proxy_config *config)
{
    char decode[96], prefill[96], router[96], token_file[96];
    snprintf(token_file, sizeof(token_file), "%s/token", folder);
    FILE *file = fopen(token_file, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs("a-secret-of-the-router-index\n", file), 0);
    ck_assert_int_eq(fchmod(fileno(file), 0600), 0);
    ck_assert_int_eq(fclose(file), 0);
    snprintf(token_file, sizeof(token_file), "--router.token_file=%s/token", folder);
    snprintf(decode, sizeof(decode), "--decode.urls=%s#1", url);
    snprintf(prefill, sizeof(prefill), "--prefill.urls=%s#2", url);
    snprintf(router, sizeof(router), "--router.url=%s", url);
    char port[] = "--listen.port=0", loops[] = "--serve.loops=1",
         interval[] = "--health.interval=1h";
    char *argv[] = {port, loops, interval, decode, prefill, router, token_file};
    char *env[] = {NULL};
    struct tierce__config_error error = {0};
    int rc = tierce__proxy_config_load(config, 7, argv, env, &error);
    ck_assert_msg(rc == 0, "%s", error.text);
}

/* The answer's status, or an error of the connection or of this client's own memory. */
static int ask(const struct tierce__proxy *proxy, bool is_streamed)
{
    char why[256], to[96];
    struct tierce__curl *client = NULL;
    struct tierce__curl_answer answer = {0};
    snprintf(to, sizeof(to), "http://127.0.0.1:%u/v1/completions", tierce__proxy_port(proxy));
    int rc = tierce__curl_create(&client, &(struct tierce__curl_opts){.timeout_ms = 20000});
    if (rc == 0)
        rc = tierce__curl_call(&answer, client,
                               &(struct tierce__curl_request){
                                   .url = to,
                                   .body = is_streamed ? "{\"prompt\":\"x\",\"stream\":true}"
                                                       : "{\"prompt\":\"x\",\"stream\":false}",
                                   .bytes_max = 4096},
                               why);
    int status = rc == 0 ? (int)answer.status : rc;
    tierce__curl_answer_clear(&answer);
    tierce__curl_destroy(client);
    return status;
}

START_TEST(starts_that_fail)
{
    struct tierce__proxy_config config;
    struct tierce__proxy *proxy;
    char why[256];
    int rc = -1;
    configure(&config);
    for (uint64_t nth = 1; rc != 0; nth++) {
        ck_assert_uint_lt(nth, STEPS_MAX);
        tierce__alloc_fail_nth(nth);
        rc = tierce__proxy_start(&proxy, &config, why);
        tierce__alloc_fail_nth(0);
        ck_assert(rc <= 0);
    }
    ck_assert_int_eq(ask(proxy, false), 200);
    tierce__proxy_stop(proxy);
    tierce__proxy_config_clear(&config);
}
END_TEST

START_TEST(requests_that_fail)
{
    struct tierce__proxy_config config;
    struct tierce__proxy *proxy;
    char why[256];
    configure(&config);
    ck_assert_int_eq(tierce__proxy_start(&proxy, &config, why), 0);
    for (int streamed = 0; streamed < 2; streamed++) {
        tierce__alloc_fail_nth(0);
        ck_assert_int_eq(ask(proxy, streamed), 200);
        uint64_t count = tierce__alloc_fail_nth(0); /* of a whole request */
        ck_assert_uint_lt(count, STEPS_MAX);
        for (uint64_t nth = 1; nth <= count; nth++) {
            tierce__alloc_fail_nth(nth);
            int status = ask(proxy, streamed);
            tierce__alloc_fail_nth(0);
            ck_assert_msg(status != TIERCE_E_DEADLINE, "allocation %u: no answer", (unsigned)nth);
            ck_assert_int_eq(ask(proxy, streamed), 200);
        }
    }
    tierce__proxy_stop(proxy);
    tierce__proxy_config_clear(&config);
}
END_TEST

CHECK_MAIN("torture_proxy", .setup = setup, .teardown = teardown,
           .tests = {starts_that_fail, requests_that_fail})
