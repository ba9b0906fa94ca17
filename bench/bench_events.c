/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV events from the records of an engine to a reader: batches are encoded, numbered, kept for
 * replays and published over loopback; then the same thread receives and parses them, so the times
 * of both are added. The limit is the goal of docs/inside/design/014-between-engines.md; the peer
 * is a bare PUB and a bare SUB socket with as many bytes, which nobody makes, keeps or parses.
 */
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text/line.h"
#include "engine/observe/kv_batch.h"
#include "engine/observe/kv_stream.h"
#include "net/listen.h"
#include "router/kv_event.h"

#define BATCH        256u     /* events of an engine, as the publisher takes them */
#define PROMPT       8u       /* chunks of a prompt: one KV event */
#define ROUND        1024u    /* batches; a reader may be 4096 behind */
#define EVENT_BLOCKS 500000.0 /* each second */
#define WAIT_MS      30000
#define JOIN_MS      10
#define KEPT_BYTES   (64u << 20)
#define FRAMES       3u

/* A way from a publisher to a reader. */
struct event_way {
    struct bench_events *events;
    void *sub;
    void *pub; /* NULL: the stream of `events` */
};

struct bench_events {
    const struct tierce__bench *bench;
    void *context;
    struct tierce__kv_stream *stream;
    struct tierce__kv_form form;
    struct tierce_event records[BATCH];
    uint64_t made; /* blocks */
    struct tierce__line line;
    struct event_way ours, bare;
};

static const char ns_text[] = "tierce-namespace=1\nmodel=bench\nblock_tokens=16\n";
static const uint8_t ns_digest[TIERCE_HASH_BYTES] = "bench";

/* ---- publishing ------------------------------------------------------------------------------ */

/* The next admissions: prompts of PROMPT chunks. */
static void make_records(struct bench_events *e)
{
    for (uint32_t i = 0; i < BATCH; i++, e->made++) {
        struct tierce_event *r = &e->records[i];
        *r = (struct tierce_event){.sequence = e->made + 1,
                                   .kind = TIERCE_EVENT_ADMIT,
                                   .tier = "memory",
                                   .ns_text = ns_text,
                                   .ns_digest = ns_digest,
                                   .shard = {0, 1, 0, 1},
                                   .has_parent = e->made % PROMPT > 0,
                                   .block_count = 16};
        for (unsigned k = 0; k < TIERCE_HASH_BYTES / 8; k++) {
            uint64_t word = tierce__bench_random(k, e->made);
            memcpy(r->hash + 8 * k, &word, sizeof(word));
        }
        if (r->has_parent && i > 0)
            memcpy(r->parent, e->records[i - 1].hash, sizeof(r->parent));
    }
}

static int publish(struct bench_events *e)
{
    e->line.bytes = 0;
    size_t count = BATCH;
    (void)tierce__kv_batch_write(&e->line, &e->form, e->records, &count, 0);
    return e->line.failed || count < BATCH
               ? -ENOMEM
               : tierce__kv_stream_send(e->stream, e->line.text, e->line.bytes);
}

static int publish_bare(void *pub, const struct tierce__line *line)
{
    zmq_msg_t message;
    uint64_t number = 0;
    if (zmq_msg_init_size(&message, line->bytes) != 0)
        return -ENOMEM;
    memcpy(zmq_msg_data(&message), line->text, line->bytes);
    (void)zmq_send(pub, "", 0, ZMQ_SNDMORE);
    (void)zmq_send(pub, &number, sizeof(number), ZMQ_SNDMORE);
    if (zmq_msg_send(&message, pub, 0) >= 0)
        return 0;
    zmq_msg_close(&message);
    return -EIO;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* The blocks of a batch; 0: it is not what was published. */
static uint64_t parse(zmq_msg_t *frame)
{
    struct tierce__kv_batch batch;
    struct tierce__kv_event event;
    uint64_t blocks = 0, hash;
    if (!tierce__kv_batch_open(&batch, zmq_msg_data(frame), zmq_msg_size(frame)))
        return 0;
    while (tierce__kv_batch_next(&batch, &event)) {
        for (uint32_t i = 0; i < event.hash_count; i++) {
            if (event.type != TIERCE__KV_STORED || !tierce__kv_take_hash(&event.hashes, &hash))
                return 0;
        }
        blocks += event.hash_count;
    }
    return blocks;
}

/* Returns the blocks of the next batch, or a negative error. */
static int64_t receive(struct event_way *way)
{
    uint64_t blocks = 0;
    for (unsigned i = 0; i < FRAMES; i++) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, way->sub, 0) < 0)
            return tierce__bench_fail(way->events->bench, "a batch did not arrive: %s",
                                      zmq_strerror(zmq_errno()));
        if (i + 1 == FRAMES)
            blocks = way->pub == NULL ? parse(&frame) : BATCH;
        zmq_msg_close(&frame);
    }
    return (int64_t)blocks;
}

static int64_t run_round(void *arg)
{
    struct event_way *way = arg;
    struct bench_events *e = way->events;
    int64_t ns = 0;
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < ROUND; i++) {
        make_records(e);
        uint64_t start = tierce__now_ns();
        int rc = way->pub == NULL ? publish(e) : publish_bare(way->pub, &e->line);
        ns += (int64_t)(tierce__now_ns() - start);
        if (rc < 0)
            return rc;
    }
    uint64_t start = tierce__now_ns();
    for (uint32_t i = 0; i < ROUND; i++) {
        int64_t got = receive(way);
        if (got < 0)
            return got;
        blocks += (uint64_t)got;
    }
    ns += (int64_t)(tierce__now_ns() - start);
    if (blocks != (uint64_t)ROUND * BATCH)
        return tierce__bench_fail(e->bench, "%llu blocks of %u arrived", (unsigned long long)blocks,
                                  ROUND * BATCH);
    return ns;
}

/* ---- the sockets ----------------------------------------------------------------------------- */

/* Connects the reader, and publishes until it receives: a PUB socket drops earlier batches. */
static int join(struct event_way *way, const char *endpoint)
{
    struct bench_events *e = way->events;
    int zero = 0, wait_ms = WAIT_MS, count = 0;
    way->sub = zmq_socket(e->context, ZMQ_SUB);
    if (way->sub == NULL)
        return -ENOMEM;
    zmq_pollitem_t item = {.socket = way->sub, .events = ZMQ_POLLIN};
    (void)zmq_setsockopt(way->sub, ZMQ_SUBSCRIBE, "", 0);
    (void)zmq_setsockopt(way->sub, ZMQ_RCVHWM, &zero, sizeof(zero));
    (void)zmq_setsockopt(way->sub, ZMQ_RCVTIMEO, &wait_ms, sizeof(wait_ms));
    if (zmq_connect(way->sub, endpoint) != 0)
        return tierce__bench_fail(e->bench, "%s: %s", endpoint, zmq_strerror(zmq_errno()));
    do {
        make_records(e);
        int rc = publish(e);
        if (rc == 0 && way->pub != NULL)
            rc = publish_bare(way->pub, &e->line);
        if (rc < 0)
            return rc;
        if (++count > WAIT_MS / JOIN_MS)
            return tierce__bench_fail(e->bench, "%s: no batch arrived", endpoint);
    } while (zmq_poll(&item, 1, JOIN_MS) == 0);
    do {
        int64_t got = receive(way);
        if (got < 0)
            return (int)got;
    } while (zmq_poll(&item, 1, JOIN_MS) > 0);
    return 0;
}

static int open_ways(struct bench_events *e)
{
    char endpoint[128], bare[128], why[256];
    size_t bytes = sizeof(bare);
    int linger = 0, behind = TIERCE__KV_BEHIND_MAX;
    uint16_t port = 0;
    int fd, rc = tierce__listen_tcp(&fd, &port, "127.0.0.1", why);
    if (rc < 0)
        return tierce__bench_fail(e->bench, "%s", why);
    close(fd); /* a free port */
    snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", (unsigned)port);
    const struct tierce__kv_stream_opts opts = {.size = sizeof(opts),
                                                .endpoint = endpoint,
                                                .replay = "",
                                                .topic = "",
                                                .first = 1,
                                                .bytes_max = KEPT_BYTES};
    if (tierce__kv_stream_open(&e->stream, &opts, why) < 0)
        return tierce__bench_fail(e->bench, "%s", why);
    e->bare.pub = zmq_socket(e->context, ZMQ_PUB);
    if (e->bare.pub == NULL)
        return -ENOMEM;
    (void)zmq_setsockopt(e->bare.pub, ZMQ_LINGER, &linger, sizeof(linger));
    (void)zmq_setsockopt(e->bare.pub, ZMQ_SNDHWM, &behind, sizeof(behind));
    if (zmq_bind(e->bare.pub, "tcp://127.0.0.1:*") != 0 ||
        zmq_getsockopt(e->bare.pub, ZMQ_LAST_ENDPOINT, bare, &bytes) != 0)
        return tierce__bench_fail(e->bench, "a bare socket: %s", zmq_strerror(zmq_errno()));
    rc = join(&e->ours, endpoint);
    return rc == 0 ? join(&e->bare, bare) : rc;
}

static void close_ways(struct bench_events *e)
{
    void *const sockets[] = {e->ours.sub, e->bare.sub, e->bare.pub};
    for (size_t i = 0; i < sizeof(sockets) / sizeof(sockets[0]); i++) {
        if (sockets[i] != NULL)
            zmq_close(sockets[i]);
    }
    tierce__kv_stream_close(e->stream);
    if (e->context != NULL)
        zmq_ctx_term(e->context);
}

static double per_second(double ns)
{
    return (double)ROUND * BATCH * 1e9 / ns;
}

static int measure(struct bench_events *e)
{
    struct tierce__bench_side sides[] = {{.run = run_round, .arg = &e->ours},
                                         {.run = run_round, .arg = &e->bare}};
    int rc = tierce__bench_alternate(sides, 2, e->bench->seconds);
    if (rc < 0)
        return rc;
    tierce__bench_emit(e->bench,
                       &(struct tierce__bench_row){.case_name = "published and received",
                                                   .unit = "blocks/s",
                                                   .value = per_second(sides[0].median_ns),
                                                   .limit = EVENT_BLOCKS,
                                                   .goal = 1,
                                                   .peer = "bare sockets",
                                                   .peer_value = per_second(sides[1].median_ns),
                                                   .value_min = per_second(sides[0].max_ns),
                                                   .value_max = per_second(sides[0].min_ns)});
    return 0;
}

int tierce__bench_events(const struct tierce__bench *bench)
{
    struct bench_events *e = tierce__calloc(1, sizeof(*e));
    if (e == NULL)
        return -ENOMEM;
    e->bench = bench;
    e->ours.events = e->bare.events = e;
    e->context = zmq_ctx_new();
    int rc = e->context != NULL ? open_ways(e) : -ENOMEM;
    if (rc == 0)
        rc = measure(e);
    close_ways(e);
    tierce__line_clear(&e->line);
    tierce__free(e);
    return rc;
}
