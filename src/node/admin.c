/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/json/json_write.h"
#include "engine/observe/engine_metrics.h"
#include "node/native/native_server.h"
#include "node/node.h"
#include "node/node_private.h"
#include "node/part/node_mover.h"
#include "node/part/node_pool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <tierce/operate.h>
#include <tierce/version.h>

/* HTTP for administrators, on loopback: pages that every user of the machine may read, and calls
 * that change the node, which require a token with the scope admin. */

static void release_c(void *body)
{
    free(body); /* open_memstream's */
}

/* ---- alive and ready ------------------------------------------------------------------------- */

static void serve_livez(void *arg, struct tierce__call *call)
{
    (void)arg;
    tierce__call_reply_text(call, 200, "ok\n");
}

static void serve_readyz(void *arg, struct tierce__call *call)
{
    struct tierce__node *node = arg;
    char why[TIERCE__NODE_WHY_BYTES], text[TIERCE__NODE_WHY_BYTES + 64];
    const char *word = "";
    if (!tierce__call_info(call)->is_deferred) {
        tierce__call_defer(call); /* the probe may wait for a device */
        return;
    }
    if (atomic_load_explicit(&node->is_draining, memory_order_relaxed)) {
        tierce__call_reply_text(call, 503, "the node is shutting down\n");
        return;
    }
    bool is_ready =
        tierce__node_is_ready(node, why) && !tierce__node_pool_fails(node->pool, why, sizeof(why));
    if (is_ready && !tierce__node_has_disk(node, why)) {
        is_ready = node->config->disk_is_optional;
        word = is_ready ? "memory only: " : "";
    } else if (is_ready) { /* it serves, perhaps with less disk than configured */
        struct tierce_engine_stats stats = {.size = sizeof(stats)};
        tierce_engine_stats(node->engine, &stats);
        enum tierce__engine_condition state = tierce__engine_condition(&stats);
        word = tierce__engine_condition_name(state);
        if (state == TIERCE__ENGINE_DEGRADED) {
            why[0] = ':';
            why[1] = ' ';
            tierce__engine_condition_reason(node->engine, state, why + 2);
        }
    }
    snprintf(text, sizeof(text), "%s%s\n", word, why);
    tierce__call_reply_text(call, is_ready ? 200 : 503, text);
}

/* ---- description ---------------------------------------------------------------------------- */

static const char *value_of(const struct tierce__node *node, enum tierce__engine_param row)
{
    return tierce__config_canonical(node->config->values, row);
}

/* How chunks that are stored from now on are on disk: " (new chunks: lossless, aes-256-gcm)", or
 * "". */
static void describe_form(char *text, size_t room, const struct tierce__node *node)
{
    const struct tierce__config *values = node->config->values;
    const char *codec = tierce__config_text(values, TIERCE__ENGINE_DISK_CODEC);
    const char *cipher = tierce__config_text(values, TIERCE__ENGINE_DISK_ENCRYPTION);
    if (strstr(codec, "://") != NULL)
        codec = "by a plug-in";
    bool has_codec = strcmp(codec, "none") != 0, has_cipher = strcmp(cipher, "none") != 0;
    text[0] = '\0';
    if (has_codec || has_cipher)
        snprintf(text, room, " (new chunks: %s%s%s)", has_codec ? codec : "",
                 has_codec && has_cipher ? ", " : "", has_cipher ? cipher : "");
}

void tierce__node_describe(const struct tierce__node *node, char text[TIERCE__NODE_TEXT_BYTES])
{
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    char disk[700] = "no disk", form[64], copies[64] = "", remotes[64] = "";
    const char *path = tierce__config_text(node->config->values, TIERCE__ENGINE_DISK_PATH);
    tierce_engine_stats(node->engine, &stats);
    describe_form(form, sizeof(form), node);
    if (stats.disk_open_status < 0)
        snprintf(disk, sizeof(disk), "memory only: disk %.512s cannot be used: %s", path,
                 tierce_strerror((int)stats.disk_open_status));
    else if (path[0] != '\0')
        snprintf(disk, sizeof(disk), "disk %.512s %s with %lld chunks%s", path,
                 value_of(node, TIERCE__ENGINE_DISK_SIZE), (long long)stats.disk_chunks_now, form);
    if (tierce__config_number(node->config->values, TIERCE__ENGINE_MEMORY_CODED_SIZE) > 0)
        snprintf(copies, sizeof(copies), ", compressed copies %s",
                 value_of(node, TIERCE__ENGINE_MEMORY_CODED_SIZE));
    if (stats.remotes_now > 0)
        snprintf(remotes, sizeof(remotes), ", remote stores %lld", (long long)stats.remotes_now);
    snprintf(text, TIERCE__NODE_TEXT_BYTES, "version %s, memory %s%s, %s%s", tierce_version(),
             value_of(node, TIERCE__ENGINE_MEMORY_SIZE), copies, disk, remotes);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static const struct {
    const char *name, *text;
} counters[] = {
#define TIERCE_COUNTER(name, text) {"node." #name, text},
#include "node/counters.def"
#undef TIERCE_COUNTER
};

static void put_gauge(struct tierce__prometheus *text, const char *name, const char *help,
                      double value)
{
    TIERCE_ASSERT(value >= 0);
    tierce__prometheus_put(text,
                           &(struct tierce__metric){.name = name, .help = help, .value = value});
}

static void put_native(struct tierce__prometheus *text, struct tierce__node *node)
{
    struct tierce__native_stats stats;
    if (node->native == NULL)
        return;
    tierce__native_stats(node->native, &stats);
    put_gauge(text, "node.native_clients_now", "Clients that map the pool.", (double)stats.clients);
    put_gauge(text, "node.native_connections_now", "Connections of clients that map the pool.",
              (double)stats.connections);
    put_gauge(text, "node.native_views_now", "Views of clients that map the pool.",
              (double)stats.views);
    put_gauge(text, "node.native_loads_now", "Loads in progress of clients that map the pool.",
              (double)stats.loads);
    put_gauge(text, "node.native_stores_now", "Stores in progress of clients that map the pool.",
              (double)stats.stores);
    put_gauge(text, "node.native_prefetches_now", "Open prefetches of clients that map the pool.",
              (double)stats.prefetches);
    put_gauge(text, "node.native_held_bytes",
              "Bytes in memory held by loads and stores of clients that map the pool.",
              (double)stats.held_bytes);
    put_gauge(text, "node.native_chain_bytes",
              "Bytes of block hashes of clients that map the pool.", (double)stats.chain_bytes);
}

static char *node_metrics(struct tierce__node *node, size_t *bytes)
{
    struct tierce__prometheus text = {0};
    for (size_t i = 0; i < TIERCE__NODE_COUNTERS; i++) {
        tierce__prometheus_put(
            &text, &(struct tierce__metric){.name = counters[i].name,
                                            .help = counters[i].text,
                                            .is_counter = true,
                                            .value = (double)atomic_load_explicit(
                                                &node->counters[i], memory_order_relaxed)});
    }
    put_gauge(&text, "node.connections_now", "Connections of clients.",
              atomic_load_explicit(&node->connections_now, memory_order_relaxed));
    put_gauge(&text, "node.incoming_bytes", "Bytes of values that are arriving.",
              (double)tierce__uploads_bytes(&node->uploads));
    tierce__prometheus_put(
        &text,
        &(struct tierce__metric){
            .name = "node.uploads_dropped",
            .help = "Stalled uploads whose memory was given to other values.",
            .is_counter = true,
            .value = (double)atomic_load_explicit(&node->uploads.dropped, memory_order_relaxed)});
    put_gauge(&text, "node.grace_bytes",
              "Bytes of values that are kept because EXISTS has reported them.",
              (double)tierce__short_leases_bytes(node->leases));
    put_native(&text, node);
    tierce__node_pool_metrics(node->pool, &text);
    tierce__node_mover_metrics(node->mover, &text);
    return tierce__prometheus_end(&text, bytes);
}

static void serve_metrics(void *arg, struct tierce__call *call)
{
    struct tierce__node *node = arg;
    struct tierce__line page = {0};
    size_t engine_bytes = 0, node_bytes = 0;
    char *engine = tierce__engine_metrics(node->engine, &engine_bytes);
    char *own = node_metrics(node, &node_bytes);
    if (engine != NULL && own != NULL) {
        tierce__line_put_bytes(&page, engine, engine_bytes);
        tierce__line_put_bytes(&page, own, node_bytes);
    }
    if (page.failed)
        tierce__line_clear(&page);
    tierce__call_reply_heap(call, "text/plain; version=0.0.4", page.text, page.bytes);
    tierce__free(engine);
    tierce__free(own);
}

static void put_native_status(struct tierce__json_write *json, struct tierce__node *node)
{
    struct tierce__native_stats stats;
    tierce__native_stats(node->native, &stats);
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {{"native_clients_now", stats.clients},
                {"native_connections_now", stats.connections},
                {"native_loads_now", stats.loads},
                {"native_stores_now", stats.stores},
                {"native_held_bytes", stats.held_bytes}};
    for (size_t i = 0; node->native != NULL && i < sizeof(rows) / sizeof(rows[0]); i++)
        tierce__json_write_count(json, rows[i].name, rows[i].value);
}

static void serve_status(void *arg, struct tierce__call *call)
{
    struct tierce__node *node = arg;
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    TIERCE_ASSERT(node->started_ns <= tierce__now_ns());
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_open(&json, "node", '{');
    tierce__json_write_count(&json, "uptime_s",
                             (tierce__now_ns() - node->started_ns) / (1000 * TIERCE__MS_NS));
    tierce__json_write_bool(&json, "is_draining",
                            atomic_load_explicit(&node->is_draining, memory_order_relaxed));
    tierce__json_write_signed(&json, "connections_now",
                              atomic_load_explicit(&node->connections_now, memory_order_relaxed));
    for (size_t i = 0; i < TIERCE__NODE_COUNTERS; i++)
        tierce__json_write_count(&json, counters[i].name + strlen("node."),
                                 atomic_load_explicit(&node->counters[i], memory_order_relaxed));
    put_native_status(&json, node);
    tierce__node_pool_status(node->pool, &json);
    tierce__node_mover_status(node->mover, &json);
    tierce__json_write_close(&json, '}');
    tierce__json_write_name(&json, "engine");
    tierce__engine_status(node->engine, &line);
    tierce__json_write_close(&json, '}');
    if (line.failed)
        tierce__line_clear(&line);
    tierce__call_reply_heap(call, NULL, line.text, line.bytes);
}

/* ---- configuration --------------------------------------------------------------------------- */

static void serve_config(void *arg, struct tierce__call *call)
{
    struct tierce__node *node = arg;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    if (file != NULL)
        tierce__config_print(node->config->values, file);
    if (file == NULL || fclose(file) != 0) {
        free(text);
        tierce__call_reply_text(call, 500, "no memory\n");
        return;
    }
    tierce__call_reply(call, &(struct tierce__reply){.status = 200,
                                                     .type = "text/plain; charset=utf-8",
                                                     .body = text,
                                                     .bytes = bytes,
                                                     .release = release_c});
}

/* ---- changes --------------------------------------------------------------------------------- */

static bool may_change(struct tierce__node *node, struct tierce__call *call)
{
    const char *shown = tierce__call_header(call, "authorization");
    struct tierce__identity who;
    bool is_known = shown != NULL && strncasecmp(shown, "Bearer ", 7) == 0 &&
                    tierce__access_token(node->access, TIERCE__SPACE_RESP, NULL, 0, shown + 7,
                                         strlen(shown + 7), &who);
    if (is_known && (who.scopes & TIERCE__SCOPE_ADMIN) != 0)
        return true;
    if (is_known)
        tierce__call_reply_text(call, 403, "the token lacks the scope admin\n");
    else
        tierce__call_reply_unknown(call, "Bearer", "a token of auth.token_file is required\n");
    return false;
}

static void serve_mode(void *arg, struct tierce__call *call)
{
    struct tierce__node *node = arg;
    const struct tierce__call_info *info = tierce__call_info(call);
    char text[64];
    if (!may_change(node, call))
        return;
    for (int mode = TIERCE_MODE_NORMAL; mode <= TIERCE_MODE_BYPASS; mode++) {
        const char *name = tierce_mode_name((enum tierce_mode)mode);
        if (info->body_bytes != strlen(name) || memcmp(info->body, name, info->body_bytes) != 0)
            continue;
        int rc = tierce_engine_set_mode(node->engine, (enum tierce_mode)mode);
        snprintf(text, sizeof(text), "%s\n", rc == 0 ? name : tierce_strerror(rc));
        tierce__call_reply_text(call, rc == 0 ? 200 : 500, text);
        return;
    }
    tierce__call_reply_text(call, 400, "the body must be normal, freeze or bypass\n");
}

static void serve_clear(void *arg, struct tierce__call *call)
{
    struct tierce__node *node = arg;
    char text[64];
    if (!may_change(node, call))
        return;
    if (tierce__call_info(call)->query[0] != '\0') {
        tierce__call_reply_text(call, 400, "clear deletes everything and accepts no parameters\n");
        return;
    }
    if (!tierce__call_info(call)->is_deferred) {
        tierce__call_defer(call);
        return;
    }
    int64_t count = tierce_engine_clear(node->engine, 0, NULL);
    if (count < 0)
        snprintf(text, sizeof(text), "%s\n", tierce_strerror((int)count));
    else
        snprintf(text, sizeof(text), "{\"forgotten\":%lld}\n", (long long)count);
    tierce__call_reply_text(call, count < 0 ? 500 : 200, text);
}

/* ---- routes ---------------------------------------------------------------------------------- */

int tierce__node_http_start(struct tierce__server **out, struct tierce__node *node, uint16_t port,
                            char why[256])
{
    const struct tierce__route routes[TIERCE__NODE_ROUTES] = {
        {.path = "/livez", .method = "GET", .serve = serve_livez},
        {.path = "/readyz", .method = "GET", .serve = serve_readyz},
        {.path = "/metrics", .method = "GET", .serve = serve_metrics},
        {.path = "/status", .method = "GET", .serve = serve_status},
        {.path = "/config", .method = "GET", .serve = serve_config},
        {.path = "/mode", .method = "POST", .serve = serve_mode},
        {.path = "/clear", .method = "POST", .serve = serve_clear},
    };
    for (size_t i = 0; i < TIERCE__NODE_ROUTES; i++) {
        node->routes[i] = routes[i];
        node->routes[i].arg = node;
    }
    struct tierce__listener http = {.protocol = TIERCE__SERVE_HTTP,
                                    .host = "127.0.0.1",
                                    .port = port,
                                    .threads = 1,
                                    .name = "listen.http_port",
                                    .routes = node->routes,
                                    .route_count = TIERCE__NODE_ROUTES};
    return tierce__server_start(
        out,
        &(struct tierce__server_opts){.size = sizeof(struct tierce__server_opts),
                                      .listeners = &http,
                                      .listener_count = 1,
                                      .loops = 1,
                                      .workers = 1,
                                      .queue_max = 64,
                                      .message_bytes_max = 64 << 10,
                                      .connections_max = 64},
        why);
}
