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
#include "net/loopback.h"
#include "net/tokens.h"
#include "proto/msgpack/msgpack_write.h"

enum {
    BATCH_MAX = 256,     /* events of a batch */
    INTERVAL_MS = 10,    /* that an event may wait for others */
    SEQUENCE_SHIFT = 20, /* sequences that a millisecond has */
    VERSION = 1,         /* of snapshots */
    /* From a loss until all contents are sent again: twice as long each time, because the reason
     * may last; from the beginning again after contents that were followed by no loss for QUIET_MS.
     */
    PAUSE_MS = 100,
    DOUBLINGS_MAX = 9,
    QUIET_MS = 60000,
};

struct tierce__kv_publisher {
    struct tierce_engine *engine;
    struct tierce_subscription *subscription;
    struct tierce__kv_stream *stream;
    struct tierce__control *pages; /* or NULL */
    struct tierce__tokens *tokens; /* or NULL: none is required */
    char *topic_copy, *namespaces_copy;
    uint64_t instance;
    pthread_t thread;
    bool has_thread;
    _Atomic bool is_ending; /* relaxed: a flag alone; a wake follows */

    struct tierce__lock lock; /* KV_PUBLISHER: below */
    struct tierce__cond changed;
    bool is_sending;        /* a thread has the turn */
    bool has_sent_contents; /* changes wait for the first contents */

    /* Of the thread that has the turn. */
    struct tierce__kv_form form;
    struct tierce__line line;
    uint64_t
        covered; /* number of the last event that is contained in the contents that were sent */
    uint64_t complete_ns; /* when contents were last complete */
    uint32_t losses;      /* see PAUSE_MS */

    _Atomic uint64_t due_ns; /* when all contents are to be sent; relaxed: a wake follows */
};

static bool is_ending(const struct tierce__kv_publisher *p)
{
    return atomic_load_explicit(&p->is_ending, memory_order_relaxed);
}

/* ---- sending --------------------------------------------------------------------------------- */

static void take_turn(struct tierce__kv_publisher *p, bool with_contents)
{
    tierce__lock_take(&p->lock);
    while (p->is_sending || (with_contents && !p->has_sent_contents))
        tierce__cond_wait(&p->changed, &p->lock, TIERCE__DEADLINE_NEVER);
    p->is_sending = true;
    tierce__lock_drop(&p->lock);
}

static void give_turn(struct tierce__kv_publisher *p)
{
    tierce__lock_take(&p->lock);
    p->is_sending = false;
    tierce__cond_broadcast(&p->changed);
    tierce__lock_drop(&p->lock);
}

/* Readers lack something, and see a gap in the sequences: those that read snapshots are exact again
 * at once, the others with the contents. */
static void note_loss(struct tierce__kv_publisher *p, const char *why)
{
    if (atomic_load_explicit(&p->due_ns, memory_order_relaxed) != TIERCE__DEADLINE_NEVER)
        return;
    if (tierce__now_ns() - p->complete_ns >= QUIET_MS * TIERCE__MS_NS)
        p->losses = 0;
    uint32_t pause_ms = (uint32_t)PAUSE_MS
                        << (p->losses < DOUBLINGS_MAX ? p->losses : DOUBLINGS_MAX);
    p->losses++;
    if ((p->losses & (p->losses - 1)) == 0)
        tierce__log(TIERCE_LOG_WARN, "kv_events_lost",
                    "err=\"%s\" times=%u pause_ms=%u consequence=\"all contents are sent again\"",
                    why, (unsigned)p->losses, (unsigned)pause_ms);
    atomic_store_explicit(&p->due_ns, tierce__deadline_in_ms(pause_ms), memory_order_relaxed);
    tierce__kv_stream_wake(p->stream);
}

/* Sends the line, and empties it. False: it was lost. */
static bool send_line(struct tierce__kv_publisher *p)
{
    int rc = p->line.failed ? -ENOMEM : 0;
    if (rc < 0) {
        tierce__kv_stream_skip(p->stream);
        tierce__line_clear(&p->line);
    } else if (p->line.bytes > 0) {
        rc = tierce__kv_stream_send(p->stream, p->line.text, p->line.bytes);
    }
    p->line.bytes = 0;
    if (rc < 0)
        note_loss(p, tierce_strerror(rc));
    return rc == 0;
}

struct contents {
    struct tierce__kv_publisher *p;
    bool is_lost;
};

/* Sends the events above `after`, in as many batches as they need. False: some were lost. */
static bool send_events(struct tierce__kv_publisher *p, const struct tierce_event_batch *batch,
                        uint64_t after)
{
    bool is_sent = true;
    for (size_t i = 0, n; i < batch->count; i += n) {
        n = batch->count - i;
        (void)tierce__kv_batch_write(&p->line, &p->form, batch->events + i, &n, after);
        is_sent &= send_line(p);
    }
    return is_sent;
}

static void on_contents(void *arg, const struct tierce_event_batch *batch)
{
    struct contents *c = arg;
    c->is_lost = !send_events(c->p, batch, 0);
}

static void send_contents(struct tierce__kv_publisher *p)
{
    struct contents c = {.p = p};
    struct tierce__events_scan *scan = NULL;
    uint64_t covered;
    take_turn(p, false);
    atomic_store_explicit(&p->due_ns, TIERCE__DEADLINE_NEVER, memory_order_relaxed);
    int rc = tierce__events_scan_begin(&scan, p->subscription, &covered);
    if (rc == 0) {
        tierce__kv_batch_clear(&p->line, &p->form);
        c.is_lost = !send_line(p);
    }
    while (rc == 0 && !c.is_lost && !is_ending(p) &&
           tierce__events_scan_next(scan, on_contents, &c))
        ;
    tierce__events_scan_end(scan);
    if (rc < 0)
        note_loss(p, tierce_strerror(rc));
    if (rc == 0 && !c.is_lost) {
        p->covered = covered;
        p->complete_ns = tierce__now_ns();
    }
    tierce__lock_take(&p->lock);
    p->has_sent_contents = true;
    tierce__lock_drop(&p->lock);
    give_turn(p);
}

/* Of the subscription. */
static void on_events(void *arg, const struct tierce_event_batch *batch)
{
    struct tierce__kv_publisher *p = arg;
    take_turn(p, true);
    if (is_ending(p)) {
        give_turn(p);
        return;
    }
    if (batch->gap && batch->events[0].sequence > p->covered + 1) {
        tierce__kv_stream_skip(p->stream);
        note_loss(p, "more changes than events.ring holds");
    }
    (void)send_events(p, batch, p->covered);
    give_turn(p);
}

static void *run(void *arg)
{
    struct tierce__kv_publisher *p = arg;
    while (!is_ending(p)) {
        uint64_t due_ns = atomic_load_explicit(&p->due_ns, memory_order_relaxed);
        if (tierce__now_ns() >= due_ns)
            send_contents(p);
        else
            tierce__kv_stream_serve(p->stream, due_ns);
    }
    return NULL;
}

/* ---- snapshots ------------------------------------------------------------------------------- */

/* A snapshot that a reader is reading, piece by piece. */
struct snapshot {
    struct tierce__line *body; /* of the piece in progress */
    struct tierce__events_scan *scan;
    struct tierce__kv_form form;
    uint64_t hashes;
};

static void put_piece(void *arg, const struct tierce_event_batch *batch)
{
    struct snapshot *s = arg;
    for (size_t i = 0, n; i < batch->count; i += n) {
        n = batch->count - i;
        s->hashes += tierce__kv_batch_write(s->body, &s->form, batch->events + i, &n, 0);
    }
}

static bool put_next(void *arg, struct tierce__line *body)
{
    struct snapshot *s = arg;
    s->body = body;
    if (s->scan == NULL)
        return false;
    if (tierce__events_scan_next(s->scan, put_piece, s))
        return true;
    tierce__events_scan_end(s->scan);
    s->scan = NULL;
    tierce__msgpack_put_map(body, 1);
    tierce__msgpack_put_text(body, "end");
    tierce__msgpack_put_uint(body, s->hashes);
    return true;
}

static void end_snapshot(void *arg)
{
    struct snapshot *s = arg;
    tierce__events_scan_end(s->scan);
    tierce__kv_form_fini(&s->form);
    tierce__free(s);
}

static void put_head(struct tierce__line *body, const struct tierce__kv_publisher *p,
                     uint64_t sequence)
{
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
}

/* The sequence is read first: the effect of its batch, and of those before, is in the contents. */
static void answer_snapshot(void *arg, const struct tierce__control_query *query,
                            struct tierce__control_answer *answer)
{
    (void)query;
    struct tierce__kv_publisher *p = arg;
    uint64_t sequence = tierce__kv_stream_next(p->stream) - 1, covered;
    struct snapshot *s = tierce__calloc(1, sizeof(*s));
    answer->type = "application/msgpack";
    if (s == NULL || tierce__events_scan_begin(&s->scan, p->subscription, &covered) < 0) {
        tierce__free(s);
        answer->body.failed = true;
        return;
    }
    s->form = (struct tierce__kv_form){.arrays = p->form.arrays,
                                       .dp_rank = p->form.dp_rank,
                                       .namespaces = p->namespaces_copy,
                                       .tokens = p->form.tokens};
    put_head(&answer->body, p, sequence);
    answer->next = put_next;
    answer->end = end_snapshot;
    answer->state = s;
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

static bool read_role(uint32_t *out, const char *word)
{
    *out = 1;
    return strcmp(word, "read") == 0;
}

static int read_tokens(struct tierce__kv_publisher *p, const struct tierce_config *config,
                       char why[256])
{
    const char *path = tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_TOKEN_FILE);
    if (path[0] == '\0')
        return 0;
    return tierce__tokens_load(
        &p->tokens,
        &(struct tierce__tokens_opts){.size = sizeof(struct tierce__tokens_opts),
                                      .path = path,
                                      .param = "kv_events.token_file",
                                      .rights = read_role,
                                      .rights_text = "the role must be read"},
        why);
}

static int open_pages(struct tierce__kv_publisher *p, const struct tierce_config *config,
                      char why[256])
{
    char host[256], fault[256];
    const char *certificate = tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_CERTIFICATE);
    const char *key = tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_KEY);
    uint64_t port = tierce__engine_number(config, TIERCE__ENGINE_KV_EVENTS_SNAPSHOT_PORT);
    if (port == 0)
        return 0;
    int rc = read_tokens(p, config, why);
    if (rc < 0)
        return rc;
    host_of(host, tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_ENDPOINT));
    const struct tierce__control_opts opts = {.size = sizeof(opts),
                                              .socket = "",
                                              .host = host,
                                              .port = (uint16_t)port,
                                              .routes = routes,
                                              .route_count = 1,
                                              .arg = p,
                                              .tokens = p->tokens,
                                              .certificate = certificate,
                                              .key = key};
    rc = tierce__control_start(&p->pages, &opts, fault);
    if (rc < 0)
        snprintf(why, 256, "kv_events.snapshot_port: %.220s", fault);
    return rc;
}

static bool has_text(const struct tierce_config *config, enum tierce__engine_param row)
{
    return tierce__engine_text(config, row)[0] != '\0';
}

static int open_stream(struct tierce__kv_publisher *p, const struct tierce_config *config,
                       char why[256])
{
    const char *key = tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_CURVE_KEY_FILE);
    struct tierce__zmq_curve_pair curve = {0};
    char fault[256] = "";
    int rc = 0;
    if (key[0] != '\0')
        rc = tierce__zmq_curve_read(&curve, "kv_events.curve_key_file", key, why);
    if (rc < 0)
        return rc;
    const struct tierce__kv_stream_opts stream = {
        .size = sizeof(stream),
        .endpoint = tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_ENDPOINT),
        .replay = tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_REPLAY_ENDPOINT),
        .topic = p->topic_copy,
        .first = (tierce__wall_us() / 1000) << SEQUENCE_SHIFT,
        .bytes_max = tierce__engine_number(config, TIERCE__ENGINE_KV_EVENTS_REPLAY),
        .curve = key[0] != '\0' ? &curve : NULL,
        .readers = tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_CURVE_READERS_FILE)};
    rc = tierce__kv_stream_open(&p->stream, &stream, fault);
    if (rc < 0 && fault[0] != '\0')
        snprintf(why, 256, "%s%.240s",
                 strncmp(fault, "kv_events", 9) == 0 ? "" : "kv_events: ", fault);
    tierce__zmq_curve_wipe(&curve);
    return rc;
}

/* An endpoint that other hosts reach, and that nothing protects, is allowed, but not in silence:
 * with tokens, prompts can be read there. */
static void warn_of_open(const struct tierce_config *config, enum tierce__engine_param endpoint,
                         enum tierce__engine_param protection)
{
    char host[256];
    const char *text = tierce__engine_text(config, endpoint);
    bool has_tokens = tierce__engine_number(config, TIERCE__ENGINE_KV_EVENTS_TOKENS) > 0;
    host_of(host, text);
    if (text[0] != '\0' && !tierce__is_loopback_host(host) && !has_text(config, protection))
        tierce__log(TIERCE_LOG_WARN, "kv_events_open",
                    "endpoint=%.200s contents=%s "
                    "readers=\"every program of every host that reaches it\" "
                    "hint=\"set %s, or use an address of 127.0.0.1%s\"",
                    text, has_tokens ? "prompts" : "hashes",
                    tierce__engine_params()[protection].name,
                    has_tokens ? "; kv_events.tokens=0 publishes hashes only" : "");
}

static void warn_of_all_open(const struct tierce_config *config)
{
    warn_of_open(config, TIERCE__ENGINE_KV_EVENTS_ENDPOINT,
                 TIERCE__ENGINE_KV_EVENTS_CURVE_KEY_FILE);
    warn_of_open(config, TIERCE__ENGINE_KV_EVENTS_REPLAY_ENDPOINT,
                 TIERCE__ENGINE_KV_EVENTS_CURVE_KEY_FILE);
    if (tierce__engine_number(config, TIERCE__ENGINE_KV_EVENTS_SNAPSHOT_PORT) != 0)
        warn_of_open(config, TIERCE__ENGINE_KV_EVENTS_ENDPOINT,
                     TIERCE__ENGINE_KV_EVENTS_TOKEN_FILE);
}

static int open_publisher(struct tierce__kv_publisher *p, const struct tierce_config *config,
                          char why[256])
{
    const struct tierce_events_opts events = {.size = sizeof(events),
                                              .fn = on_events,
                                              .arg = p,
                                              .batch_max = BATCH_MAX,
                                              .interval_ms = INTERVAL_MS};
    p->topic_copy = tierce__strdup(tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_TOPIC));
    p->namespaces_copy =
        tierce__strdup(tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_NAMESPACES));
    if (p->topic_copy == NULL || p->namespaces_copy == NULL)
        return -ENOMEM;
    p->form.namespaces = p->namespaces_copy;
    if (getrandom(&p->instance, sizeof(p->instance), 0) != (ssize_t)sizeof(p->instance))
        return -EIO;
    int rc = open_stream(p, config, why);
    if (rc == 0)
        rc = tierce__events_subscribe(&p->subscription, p->engine, &events);
    if (rc == 0)
        rc = tierce__thread_start(&p->thread, run, p);
    p->has_thread = rc == 0;
    if (rc == 0)
        rc = open_pages(p, config, why);
    if (rc == 0)
        warn_of_all_open(config);
    return rc;
}

/* Returns 0, 1 if there is a publisher, or TIERCE_E_CONFIG. */
static int is_wanted(const struct tierce_config *config, char why[256])
{
    bool has_certificate = has_text(config, TIERCE__ENGINE_KV_EVENTS_CERTIFICATE);
    bool has_port = tierce__engine_number(config, TIERCE__ENGINE_KV_EVENTS_SNAPSHOT_PORT) != 0;
    bool has_tokens = has_text(config, TIERCE__ENGINE_KV_EVENTS_TOKEN_FILE);
    bool has_replay = has_text(config, TIERCE__ENGINE_KV_EVENTS_REPLAY_ENDPOINT);
    const char *namespaces = tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_NAMESPACES);
    bool has_curve = has_text(config, TIERCE__ENGINE_KV_EVENTS_CURVE_KEY_FILE);
    why[0] = '\0';
    if (has_certificate != has_text(config, TIERCE__ENGINE_KV_EVENTS_KEY))
        snprintf(why, 256, "kv_events.certificate and kv_events.key must be set together");
    else if (has_curve != has_text(config, TIERCE__ENGINE_KV_EVENTS_CURVE_READERS_FILE))
        snprintf(why, 256,
                 "kv_events.curve_key_file and kv_events.curve_readers_file must be set together");
    else if (namespaces[0] != '\0' && !tierce__kv_namespaces_are_valid(namespaces))
        snprintf(why, 256,
                 "kv_events.namespaces '%.100s' is not a list of digests: each is 8 to 64 hex "
                 "digits, separated by commas",
                 namespaces);
    else if ((has_certificate || has_tokens) && !has_port)
        snprintf(why, 256, "%s requires kv_events.snapshot_port",
                 has_certificate ? "kv_events.certificate" : "kv_events.token_file");
    else if ((has_replay || has_port || has_curve) &&
             !has_text(config, TIERCE__ENGINE_KV_EVENTS_ENDPOINT))
        snprintf(why, 256, "%s requires kv_events.endpoint",
                 has_replay ? "kv_events.replay_endpoint"
                 : has_port ? "kv_events.snapshot_port"
                            : "kv_events.curve_key_file");
    if (why[0] != '\0')
        return TIERCE_E_CONFIG;
    return has_text(config, TIERCE__ENGINE_KV_EVENTS_ENDPOINT);
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
    p->complete_ns = tierce__now_ns();
    p->form.tokens = engine->kv_tokens;
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
    tierce__lock_take(&publisher->lock);
    publisher->has_sent_contents = true; /* on_events may wait for them */
    tierce__cond_broadcast(&publisher->changed);
    tierce__lock_drop(&publisher->lock);
    if (publisher->subscription != NULL)
        tierce__events_unsubscribe(publisher->subscription);
    tierce__kv_stream_close(publisher->stream);
    tierce__cond_fini(&publisher->changed);
    tierce__lock_fini(&publisher->lock);
    tierce__line_clear(&publisher->line);
    tierce__kv_form_fini(&publisher->form);
    tierce__tokens_destroy(publisher->tokens);
    tierce__free(publisher->topic_copy);
    tierce__free(publisher->namespaces_copy);
    tierce__free(publisher);
}
