/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/event_stream.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/json/json.h"
#include "manager/event_log.h"

#include <string.h>

/* A subscriber. The log's thread uses it. */
struct event_stream {
    struct tierce__manager *manager;
    struct tierce__http_stream *http;
    struct tierce__caller caller; /* holds its grant */
    uint64_t check_ns, send_ns; /* when the caller is checked again; when something must be sent */
};

/* A closed connection is only detected by sending. */
enum { CHECK_MS = 200, SEND_MS = 1000 };

static void destroy_stream(struct event_stream *stream)
{
    tierce__caller_clear(&stream->caller);
    tierce__free(stream);
}

/* ---- which events ---------------------------------------------------------------------------- */

static bool is_named(struct tierce__text name, const char *wanted)
{
    return name.length == strlen(wanted) && memcmp(name.at, wanted, name.length) == 0;
}

/* The first members of a line (event_log.c): "id", "source", "component". The text behind them,
 * which holds thousands of keys, is not read. */
static bool read_head(const char *line, size_t bytes, char source[1024], char component[64])
{
    struct tierce__json json;
    struct tierce__text name;
    size_t length;
    char id[64];
    tierce__json_start(&json, line, bytes);
    return tierce__json_object(&json) && tierce__json_member(&json, &name) &&
           is_named(name, "id") && tierce__json_text(&json, id, sizeof(id), &length) &&
           tierce__json_member(&json, &name) && is_named(name, "source") &&
           tierce__json_text(&json, source, 1024, &length) && tierce__json_member(&json, &name) &&
           is_named(name, "component") && tierce__json_text(&json, component, 64, &length);
}

bool tierce__event_is_seen(const struct tierce__grant *grant, const struct tierce__catalog *catalog,
                           const char *line, size_t bytes)
{
    char source[1024], component[64], copy[2048 + TIERCE__JSON_SLACK] = "";
    size_t head = bytes < 2048 ? bytes : 2048;
    if (tierce__grant_has_all(grant))
        return true;
    memcpy(copy, line, head);
    if (!read_head(copy, head, source, component))
        return false;
    if (strcmp(component, "data_storage") == 0)
        return tierce__grant_has_storage(grant, catalog, source);
    if (strcmp(component, "cache_manager") != 0 && strcmp(component, "cache_reclaimer") != 0)
        return false;
    const struct tierce__instance *instance = tierce__catalog_instance(catalog, source);
    return instance != NULL &&
           tierce__grant_has_instance(grant, instance->group_name, instance->id);
}

/* ---- sending --------------------------------------------------------------------------------- */

static bool send_text(struct event_stream *stream, const char *text, size_t bytes)
{
    stream->send_ns = tierce__deadline_in_ms(SEND_MS);
    return tierce__stream_write(stream->http, text, bytes);
}

/* Sends the lines that the caller sees, neighbours together. */
static bool send_seen(struct event_stream *stream, const char *lines, size_t bytes)
{
    const char *from = lines, *end = lines + bytes;
    const struct tierce__catalog *catalog = tierce__registry_acquire(stream->manager->registry);
    bool is_open = true;
    for (const char *line = lines; line < end && is_open;) {
        const char *next = (const char *)memchr(line, '\n', (size_t)(end - line)) + 1;
        if (!tierce__event_is_seen(stream->caller.grant, catalog, line, (size_t)(next - line))) {
            is_open = line == from || send_text(stream, from, (size_t)(line - from));
            from = next;
        }
        line = next;
    }
    tierce__registry_release(stream->manager->registry, catalog);
    return is_open && (from == end || send_text(stream, from, (size_t)(end - from)));
}

static bool is_current(struct event_stream *stream)
{
    if (tierce__now_ns() < stream->check_ns)
        return true;
    stream->check_ns = tierce__deadline_in_ms(CHECK_MS);
    return tierce__auth_is_current(stream->manager->auth, &stream->caller);
}

/* Returns whether the stream goes on. */
static bool send_on(struct event_stream *stream, const char *lines, size_t bytes)
{
    if (!is_current(stream) || !send_seen(stream, lines, bytes))
        return false;
    return tierce__now_ns() < stream->send_ns || send_text(stream, "\n", 1);
}

/* The subscription (tierce__line_log_fn). */
static bool send_lines(void *arg, const char *lines, size_t bytes)
{
    struct event_stream *stream = arg;
    bool ends = lines == NULL && bytes == 0;
    TIERCE_DASSERT(bytes == 0 || (lines != NULL && lines[bytes - 1] == '\n'));
    if (!ends && send_on(stream, lines, bytes))
        return true;
    tierce__stream_end(stream->http);
    destroy_stream(stream);
    return false;
}

void tierce__event_stream_serve(struct tierce__manager *manager, struct tierce__call *call,
                                const struct tierce__caller *caller)
{
    struct event_stream *stream = tierce__alloc(sizeof(*stream));
    if (stream == NULL) {
        tierce__call_reply(call, &(struct tierce__reply){.status = 500, .body = "{}", .bytes = 2});
        return;
    }
    *stream = (struct event_stream){.manager = manager, .caller = *caller};
    (void)tierce__grant_hold(stream->caller.grant);
    (void)tierce__meter_hold(stream->caller.meter);
    stream->http = tierce__call_stream(call, "application/x-ndjson");
    if (stream->http == NULL) {
        destroy_stream(stream);
        tierce__call_reply(call, &(struct tierce__reply){.status = 500, .body = "{}", .bytes = 2});
        return;
    }
    if (tierce__line_log_subscribe(manager->events, send_lines, stream) < 0) {
        tierce__stream_end(stream->http);
        destroy_stream(stream);
    }
}
