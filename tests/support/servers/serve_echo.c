/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/serve.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/*
 * A server for the tests of src/net/server, and for measuring it: it answers with what it was sent.
 *
 *     serve_echo [--loops N] [--workers N] [--message-max BYTES] [--transfer MS] [--drain MS]
 *                [--cert F --key F [--ca F]] [--descriptors F] [--unhealthy SERVICE]
 *                [--connections-max N] [--connections-per-address N] [--streams-max N] [--queue-max
 * N] [--held-max N] [--host H]
 *
 * prints "grpc PORT http PORT" and serves until SIGTERM; SIGHUP has it read its certificates again,
 * and print "read" or why not. gRPC methods of /test.Echo/ and HTTP paths
 * are the same words: Echo; Wait (on a worker, milliseconds in the header x-wait-ms; gives up when
 * the call is over); Late (answers from another thread); Fail (status and text from x-status and
 * x-message); Info (what the server knows of the call); Big (x-bytes bytes of an answer); Begun and
 * Over (how many calls have waited, and how many of those learnt that they were over); Answered
 * (how many Late calls were answered); GET /events (a stream).
 */

static atomic_ulong begun_count, over_count, answered_count, served_count;

static long number(struct tierce__call *call, const char *name, long otherwise)
{
    const char *text = tierce__call_header(call, name);
    return text != NULL ? strtol(text, NULL, 10) : otherwise;
}

static void reply_bytes(struct tierce__call *call, const void *body, size_t bytes)
{
    bool is_http = tierce__call_info(call)->protocol == TIERCE__SERVE_HTTP;
    atomic_fetch_add(&served_count, 1);
    tierce__call_reply(call, &(struct tierce__reply){.status = is_http ? 200 : TIERCE__GRPC_OK,
                                                     .type = "application/octet-stream",
                                                     .body = body,
                                                     .bytes = bytes});
}

static void echo(void *arg, struct tierce__call *call)
{
    (void)arg;
    const struct tierce__call_info *info = tierce__call_info(call);
    reply_bytes(call, info->body, info->body_bytes);
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void wait(void *arg, struct tierce__call *call)
{
    if (!tierce__call_info(call)->is_deferred) {
        tierce__call_defer(call);
        return;
    }
    atomic_fetch_add(&begun_count, 1);
    for (long left = number(call, "x-wait-ms", 10); left > 0; left -= 5) {
        if (tierce__call_is_over(call)) {
            atomic_fetch_add(&over_count, 1);
            break;
        }
        pause_ms(5);
    }
    echo(arg, call);
}

static void *answer_late(void *arg)
{
    struct tierce__call *call = arg;
    pause_ms(number(call, "x-wait-ms", 10));
    echo(NULL, call);
    atomic_fetch_add(&answered_count, 1);
    return NULL;
}

static void late(void *arg, struct tierce__call *call)
{
    (void)arg;
    pthread_t thread;
    if (pthread_create(&thread, NULL, answer_late, call) != 0)
        abort();
    pthread_detach(thread);
}

static void fail(void *arg, struct tierce__call *call)
{
    (void)arg;
    tierce__call_reply(call,
                       &(struct tierce__reply){.status = (uint32_t)number(call, "x-status", 2),
                                               .message = "f\xc3\xbcnf % und\nmehr",
                                               .header_name = "x-more",
                                               .header_value = "yes",
                                               .body = "{}",
                                               .bytes = 2});
}

static void info(void *arg, struct tierce__call *call)
{
    (void)arg;
    const struct tierce__call_info *i = tierce__call_info(call);
    const char *header = tierce__call_header(call, "x-test");
    char text[1024];
    int n = snprintf(text, sizeof(text), "%s|%s|%s|%s|%s|%s|%d", i->method, i->path, i->query,
                     i->peer, i->certificate != NULL ? i->certificate : "-",
                     header != NULL ? header : "-", i->deadline_ns != UINT64_MAX);
    reply_bytes(call, text, (size_t)n);
}

static void big(void *arg, struct tierce__call *call)
{
    (void)arg;
    bool is_http = tierce__call_info(call)->protocol == TIERCE__SERVE_HTTP;
    size_t bytes = (size_t)number(call, "x-bytes", 1 << 20);
    char *body = malloc(bytes + 1);
    if (body == NULL)
        abort();
    memset(body, 'b', bytes);
    tierce__call_reply(
        call, &(struct tierce__reply){
                  .status = is_http ? 200 : 0, .body = body, .bytes = bytes, .release = free});
}

static void count(void *arg, struct tierce__call *call)
{
    char text[64];
    int n = snprintf(text, sizeof(text), "%lu", atomic_load((atomic_ulong *)arg));
    reply_bytes(call, text, (size_t)n);
}

static void *write_events(void *arg)
{
    struct tierce__http_stream *stream = arg;
    char text[64];
    for (int i = 0;; i++) {
        int n = snprintf(text, sizeof(text), "data: %d\n\n", i);
        if (!tierce__stream_write(stream, text, (size_t)n))
            break;
        pause_ms(10);
    }
    atomic_fetch_add(&over_count, 1);
    tierce__stream_end(stream);
    return NULL;
}

static void events(void *arg, struct tierce__call *call)
{
    (void)arg;
    pthread_t thread;
    struct tierce__http_stream *stream = tierce__call_stream(call, "text/event-stream");
    if (stream == NULL || pthread_create(&thread, NULL, write_events, stream) != 0)
        abort();
    pthread_detach(thread);
}

/* Three events, and the end. */
static void few(void *arg, struct tierce__call *call)
{
    (void)arg;
    struct tierce__http_stream *stream = tierce__call_stream(call, "text/event-stream");
    for (int i = 0; i < 3; i++)
        if (!tierce__stream_write(stream, "data: x\n\n", 9))
            break;
    tierce__stream_end(stream);
}

static const struct tierce__route grpc_routes[] = {
    {"/test.Echo/Echo", NULL, echo, NULL},
    {"/test.Echo/Wait", NULL, wait, NULL},
    {"/test.Echo/Late", NULL, late, NULL},
    {"/test.Echo/Fail", NULL, fail, NULL},
    {"/test.Echo/Info", NULL, info, NULL},
    {"/test.Echo/Big", NULL, big, NULL},
    {"/test.Echo/Over", NULL, count, &over_count},
    {"/test.Echo/Begun", NULL, count, &begun_count},
    {"/test.Echo/Answered", NULL, count, &answered_count},
    {"/any/*", NULL, info, NULL},
};

static const struct tierce__route http_routes[] = {
    {"/Echo", "POST", echo, NULL},        {"/Wait", "POST", wait, NULL},
    {"/Late", "POST", late, NULL},        {"/Fail", NULL, fail, NULL},
    {"/Info", "GET", info, NULL},         {"/Big", "GET", big, NULL},
    {"/Over", "GET", count, &over_count}, {"/Begun", "GET", count, &begun_count},
    {"/events", "GET", events, NULL},     {"/few", "GET", few, NULL},
    {"/any/*", NULL, info, NULL},         {"/Answered", "GET", count, &answered_count},
};

static const char *unhealthy;

static bool is_serving(void *arg, const char *service)
{
    (void)arg;
    return unhealthy == NULL || strcmp(unhealthy, service) != 0;
}

struct settings {
    struct tierce__server_opts opts;
    struct tierce__listener listeners[2];
    uint32_t drain_ms;
};

static void *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *content = malloc(1 << 20);
    if (file == NULL || content == NULL)
        abort();
    *bytes = fread(content, 1, 1 << 20, file);
    fclose(file);
    return content;
}

static void set(struct settings *s, const char *name, const char *value)
{
    uint32_t n = (uint32_t)strtoul(value, NULL, 10);
    struct tierce__tls *tls = &s->listeners[0].tls;
    if (strcmp(name, "--loops") == 0)
        s->opts.loops = n;
    else if (strcmp(name, "--workers") == 0)
        s->opts.workers = n;
    else if (strcmp(name, "--queue-max") == 0)
        s->opts.queue_max = n;
    else if (strcmp(name, "--message-max") == 0)
        s->opts.message_bytes_max = n;
    else if (strcmp(name, "--held-max") == 0)
        s->opts.held_bytes_max = n;
    else if (strcmp(name, "--transfer") == 0)
        s->opts.transfer_ms = n;
    else if (strcmp(name, "--connections-max") == 0)
        s->opts.connections_max = n;
    else if (strcmp(name, "--connections-per-address") == 0)
        s->opts.connections_per_address = n;
    else if (strcmp(name, "--streams-max") == 0)
        s->opts.streams_max = n;
    else if (strcmp(name, "--host") == 0)
        s->listeners[0].host = s->listeners[1].host = value;
    else if (strcmp(name, "--drain") == 0)
        s->drain_ms = n;
    else if (strcmp(name, "--cert") == 0)
        tls->certificate = value;
    else if (strcmp(name, "--key") == 0)
        tls->key = value;
    else if (strcmp(name, "--ca") == 0)
        tls->client_ca = value;
    else if (strcmp(name, "--unhealthy") == 0)
        unhealthy = value;
    else if (strcmp(name, "--descriptors") == 0)
        s->opts.descriptors = read_file(value, &s->opts.descriptor_bytes);
}

int main(int argc, char **argv)
{
    struct settings s = {
        .opts = {.size = sizeof(s.opts), .listener_count = 2, .is_serving = is_serving},
        .listeners = {{.protocol = TIERCE__SERVE_GRPC,
                       .host = "127.0.0.1",
                       .routes = grpc_routes,
                       .route_count = sizeof(grpc_routes) / sizeof(*grpc_routes)},
                      {.protocol = TIERCE__SERVE_HTTP,
                       .host = "127.0.0.1",
                       .routes = http_routes,
                       .route_count = sizeof(http_routes) / sizeof(*http_routes)}},
        .drain_ms = 5000};
    for (int i = 1; i + 1 < argc; i += 2)
        set(&s, argv[i], argv[i + 1]);
    s.opts.listeners = s.listeners;
    s.listeners[1].tls = s.listeners[0].tls;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    struct tierce__server *server;
    char why[256];
    int rc = tierce__server_start(&server, &s.opts, why);
    if (rc != 0) {
        fprintf(stderr, "%s\n", why);
        return EXIT_FAILURE;
    }
    printf("grpc %u http %u\n", tierce__server_port(server, 0), tierce__server_port(server, 1));
    fflush(stdout);
    int got;
    while (sigwait(&signals, &got) == 0 && got == SIGHUP) {
        puts(tierce__server_reload(server, why) == 0 ? "read" : why);
        fflush(stdout);
    }
    tierce__server_stop(server, s.drain_ms);
    printf("served %lu\n", atomic_load(&served_count));
    free((void *)(uintptr_t)s.opts.descriptors);
    return EXIT_SUCCESS;
}
