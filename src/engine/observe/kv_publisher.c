/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/kv_publisher.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/observe/engine_events.h"
#include "engine/observe/kv_batch.h"
#include "engine/observe/kv_stream.h"
#include "net/control/control.h"
#include "proto/msgpack/msgpack_write.h"

enum {
    BATCH_MAX = 256,     /* events of a batch */
    INTERVAL_MS = 10,    /* that an event may wait for others */
    SEQUENCE_SHIFT = 20, /* sequences that a millisecond has */
    VERSION = 1,         /* of snapshots */
};
#define SNAPSHOT_BYTES_MAX ((size_t)1 << 30)

struct tierce__kv_publisher {
    struct tierce_engine *engine;
    struct tierce_subscription *subscription;
    struct tierce__kv_stream *stream;
    struct tierce__control *pages; /* or NULL */
    char *topic_copy;
    uint64_t instance;
    pthread_t thread;
    bool has_thread;
    _Atomic bool is_ending; /* relaxed: a flag alone; a wake follows */

    /* Of the thread until the first contents are sent, then of the subscription's. */
    struct tierce__kv_form form;
    struct tierce__line line;
    uint64_t
        covered;    /* number of the last event that is contained in the contents that were sent */
    bool is_behind; /* subscribers lack events: all contents must be sent */

    struct tierce__lock lock; /* KV_PUBLISHER: below */
    struct tierce__cond changed;
    bool may_send; /* the first contents are sent */
};

/* ---- sending --------------------------------------------------------------------------------- */

/* Sends the line, and empties it. */
static void send_line(struct tierce__kv_publisher *p)
{
    int rc = p->line.failed ? -ENOMEM : 0;
    if (rc == 0 && p->line.bytes > 0)
        rc = tierce__kv_stream_send(p->stream, p->line.text, p->line.bytes);
    if (rc < 0 && !p->is_behind) {
        p->is_behind = true;
        tierce__log(TIERCE_LOG_WARN, "kv_events_lost",
                    "err=\"%s\" consequence=\"all contents are sent again\"", tierce_strerror(rc));
    }
    if (p->line.failed)
        tierce__line_clear(&p->line);
    p->line.bytes = 0;
}

static void on_contents(void *arg, const struct tierce_event_batch *batch)
{
    struct tierce__kv_publisher *p = arg;
    if (atomic_load_explicit(&p->is_ending, memory_order_relaxed) || p->is_behind)
        return;
    (void)tierce__kv_batch_write(&p->line, &p->form, batch->events, batch->count, 0);
    send_line(p);
}

static void send_contents(struct tierce__kv_publisher *p)
{
    p->is_behind = false;
    tierce__kv_batch_clear(&p->line, &p->form);
    send_line(p);
    if (tierce_events_snapshot(p->subscription, &p->covered, on_contents, p) < 0)
        p->is_behind = true;
}

/* Waits until the first contents are sent. */
static void wait_for_turn(struct tierce__kv_publisher *p)
{
    tierce__lock_take(&p->lock);
    while (!p->may_send)
        tierce__cond_wait(&p->changed, &p->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&p->lock);
}

static void give_turn(struct tierce__kv_publisher *p)
{
    tierce__lock_take(&p->lock);
    p->may_send = true;
    tierce__cond_signal(&p->changed);
    tierce__lock_drop(&p->lock);
}

/* Of the subscription. */
static void on_events(void *arg, const struct tierce_event_batch *batch)
{
    struct tierce__kv_publisher *p = arg;
    wait_for_turn(p);
    if (atomic_load_explicit(&p->is_ending, memory_order_relaxed))
        return;
    if (batch->gap || p->is_behind)
        send_contents(p);
    if (p->is_behind)
        return;
    (void)tierce__kv_batch_write(&p->line, &p->form, batch->events, batch->count, p->covered);
    send_line(p);
}

static void *run(void *arg)
{
    struct tierce__kv_publisher *p = arg;
    send_contents(p);
    give_turn(p);
    tierce__kv_stream_serve(p->stream, &p->is_ending);
    return NULL;
}

/* ---- snapshots ------------------------------------------------------------------------------- */

struct snapshot {
    struct tierce__line *body;
    struct tierce__kv_form form;
    uint64_t hashes;
};

static void put_snapshot(void *arg, const struct tierce_event_batch *batch)
{
    struct snapshot *s = arg;
    s->hashes += tierce__kv_batch_write(s->body, &s->form, batch->events, batch->count, 0);
}

/* The sequence is read first: the effect of its batch, and of those before, is in the contents. */
static void answer_snapshot(void *arg, const struct tierce__control_query *query,
                            struct tierce__control_answer *answer)
{
    (void)query;
    struct tierce__kv_publisher *p = arg;
    struct tierce__line *body = &answer->body;
    uint64_t sequence = tierce__kv_stream_next(p->stream) - 1, covered;
    struct snapshot s = {.body = body,
                         .form = {.arrays = p->form.arrays, .dp_rank = p->form.dp_rank}};
    answer->type = "application/msgpack";
    body->bytes_max = SNAPSHOT_BYTES_MAX;
    tierce__msgpack_put_map(body, 5);
    tierce__msgpack_put_text(body, "version");
    tierce__msgpack_put_uint(body, VERSION);
    tierce__msgpack_put_text(body, "instance");
    tierce__msgpack_put_uint(body, p->instance);
    tierce__msgpack_put_text(body, "sequence");
    tierce__msgpack_put_uint(body, sequence);
    tierce__msgpack_put_text(body, "topic");
    tierce__msgpack_put_text(body, p->topic_copy);
    tierce__msgpack_put_text(body, "dp_rank");
    tierce__msgpack_put_uint(body, p->form.dp_rank);
    if (tierce_events_snapshot(p->subscription, &covered, put_snapshot, &s) < 0)
        body->failed = true;
    tierce__msgpack_put_map(body, 1);
    tierce__msgpack_put_text(body, "end");
    tierce__msgpack_put_uint(body, s.hashes);
}

static const struct tierce__control_route routes[] = {
    {TIERCE__CONTROL_GET, "/kv_events/snapshot", true, answer_snapshot},
};

/* The address that serves snapshots: that of the endpoint. */
static void host_of(char out[256], const char *endpoint)
{
    const char *at = endpoint + strlen("tcp://"), *end = strrchr(endpoint, ':');
    bool is_tcp = strncmp(endpoint, "tcp://", 6) == 0 && end > at;
    bool has_brackets = is_tcp && *at == '[' && end[-1] == ']';
    if (!is_tcp)
        snprintf(out, 256, "127.0.0.1");
    else if (*at == '*')
        snprintf(out, 256, "::");
    else
        snprintf(out, 256, "%.*s", (int)(end - at) - 2 * has_brackets, at + has_brackets);
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int open_pages(struct tierce__kv_publisher *p, const struct tierce_config *config,
                      char why[256])
{
    char host[256], fault[256];
    uint64_t port = tierce__engine_number(config, TIERCE__ENGINE_KV_EVENTS_SNAPSHOT_PORT);
    if (port == 0)
        return 0;
    host_of(host, tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_ENDPOINT));
    const struct tierce__control_opts opts = {.size = sizeof(opts),
                                              .socket = "",
                                              .host = host,
                                              .port = (uint16_t)port,
                                              .routes = routes,
                                              .route_count = 1,
                                              .arg = p};
    int rc = tierce__control_start(&p->pages, &opts, fault);
    if (rc < 0)
        snprintf(why, 256, "kv_events.snapshot_port: %.220s", fault);
    return rc;
}

static int open_publisher(struct tierce__kv_publisher *p, const struct tierce_config *config,
                          char why[256])
{
    const struct tierce_events_opts events = {.size = sizeof(events),
                                              .fn = on_events,
                                              .arg = p,
                                              .batch_max = BATCH_MAX,
                                              .interval_ms = INTERVAL_MS};
    char fault[256] = "";
    p->topic_copy = tierce__strdup(tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_TOPIC));
    if (p->topic_copy == NULL)
        return -ENOMEM;
    if (getrandom(&p->instance, sizeof(p->instance), 0) != (ssize_t)sizeof(p->instance))
        return -EIO;
    const struct tierce__kv_stream_opts stream = {
        .size = sizeof(stream),
        .endpoint = tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_ENDPOINT),
        .replay = tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_REPLAY_ENDPOINT),
        .topic = p->topic_copy,
        .first = (tierce__wall_us() / 1000) << SEQUENCE_SHIFT,
        .bytes_max = tierce__engine_number(config, TIERCE__ENGINE_KV_EVENTS_REPLAY)};
    int rc = tierce__kv_stream_open(&p->stream, &stream, fault);
    if (rc < 0 && fault[0] != '\0')
        snprintf(why, 256, "kv_events: %.240s", fault);
    if (rc == 0)
        rc = tierce__events_subscribe(&p->subscription, p->engine, &events);
    if (rc == 0)
        rc = tierce__thread_start(&p->thread, run, p);
    p->has_thread = rc == 0;
    return rc == 0 ? open_pages(p, config, why) : rc;
}

/* Returns 0, 1 if there is a publisher, or TIERCE_E_CONFIG. */
static int is_wanted(const struct tierce_config *config, char why[256])
{
    if (tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_ENDPOINT)[0] != '\0')
        return 1;
    bool has_replay =
        tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_REPLAY_ENDPOINT)[0] != '\0';
    if (!has_replay && tierce__engine_number(config, TIERCE__ENGINE_KV_EVENTS_SNAPSHOT_PORT) == 0)
        return 0;
    snprintf(why, 256, "%s requires kv_events.endpoint",
             has_replay ? "kv_events.replay_endpoint" : "kv_events.snapshot_port");
    return TIERCE_E_CONFIG;
}

int tierce__kv_publisher_start(struct tierce__kv_publisher **out, struct tierce_engine *engine,
                               const struct tierce_config *config, char why[256])
{
    why[0] = '\0';
    int rc = is_wanted(config, why);
    if (rc <= 0)
        return rc;
    struct tierce__kv_publisher *p = tierce__calloc(1, sizeof(*p));
    if (p == NULL)
        return -ENOMEM;
    tierce__lock_init(&p->lock, TIERCE__LOCK_KV_PUBLISHER);
    tierce__cond_init(&p->changed);
    p->engine = engine;
    p->form.arrays =
        strcmp(tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_FORM), "arrays") == 0;
    p->form.dp_rank = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_KV_EVENTS_DP_RANK);
    rc = open_publisher(p, config, why);
    if (rc < 0 && why[0] == '\0')
        snprintf(why, 256, "kv_events: %s", tierce_strerror(rc));
    if (rc == 0)
        *out = p;
    else
        tierce__kv_publisher_stop(p);
    return rc;
}

void tierce__kv_publisher_stop(struct tierce__kv_publisher *publisher)
{
    if (publisher == NULL)
        return;
    atomic_store_explicit(&publisher->is_ending, true, memory_order_relaxed);
    tierce__control_stop(publisher->pages);
    if (publisher->has_thread) {
        tierce__kv_stream_wake(publisher->stream);
        (void)pthread_join(publisher->thread, NULL);
    }
    give_turn(publisher);
    if (publisher->subscription != NULL)
        tierce__events_unsubscribe(publisher->subscription);
    tierce__kv_stream_close(publisher->stream);
    tierce__cond_fini(&publisher->changed);
    tierce__lock_fini(&publisher->lock);
    tierce__line_clear(&publisher->line);
    tierce__free(publisher->topic_copy);
    tierce__free(publisher);
}
