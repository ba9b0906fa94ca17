/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV events as vLLM publishes them over ZMQ: messages of three frames, the topic, a number of 64
 * bits, big-endian, that goes up by one, and a batch in MessagePack. The concatenated batches are a
 * trace of the format `events`. Other messages are counted and skipped, because they would damage
 * the rest of the trace. A gap in the numbers means lost messages, a smaller number a restarted
 * publisher.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/live/live_private.h"
#include "proto/msgpack/msgpack.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define FRAMES      3
#define NUMBER_AT   1
#define BATCH_AT    2
#define WAITING_MAX 100000 /* messages queued in ZMQ; further ones are lost, which is detected */
#define BYTES_MAX   ((int64_t)64 << 20)

struct live_zmq {
    struct tierce__live_source base;
    void *context, *socket;
    zmq_msg_t batch; /* the batch being returned */
    size_t given;
    bool has_batch;
    uint64_t next; /* the next expected number; 0: any */
};

static struct live_zmq *zmq_of(struct tierce__live_source *source)
{
    return (struct live_zmq *)(void *)source;
}

static void zmq_close_source(struct tierce__live_source *source)
{
    struct live_zmq *z = zmq_of(source);
    if (z->has_batch)
        zmq_msg_close(&z->batch);
    if (z->socket != NULL)
        zmq_close(z->socket);
    if (z->context != NULL)
        zmq_ctx_term(z->context);
    tierce__free(z);
}

static int connect_socket(struct live_zmq *z, const char *url)
{
    int waiting = WAITING_MAX, linger = 0;
    int64_t bytes = BYTES_MAX;
    z->context = zmq_ctx_new();
    z->socket = z->context != NULL ? zmq_socket(z->context, ZMQ_SUB) : NULL;
    if (z->socket == NULL || zmq_setsockopt(z->socket, ZMQ_SUBSCRIBE, "", 0) != 0 ||
        zmq_setsockopt(z->socket, ZMQ_RCVHWM, &waiting, sizeof(waiting)) != 0 ||
        zmq_setsockopt(z->socket, ZMQ_MAXMSGSIZE, &bytes, sizeof(bytes)) != 0 ||
        zmq_setsockopt(z->socket, ZMQ_LINGER, &linger, sizeof(linger)) != 0 ||
        zmq_connect(z->socket, url) != 0)
        return -zmq_errno();
    return 0;
}

static int zmq_open_source(struct tierce__live_source **out, const char *url,
                           char why[TIERCE__TRACE_WHY_BYTES])
{
    struct live_zmq *z = tierce__calloc(1, sizeof(*z));
    if (z == NULL) {
        snprintf(why, TIERCE__TRACE_WHY_BYTES, "no memory");
        return -ENOMEM;
    }
    int rc = connect_socket(z, url);
    if (rc < 0) {
        snprintf(why, TIERCE__TRACE_WHY_BYTES, "cannot be reached: %s%s", zmq_strerror(-rc),
                 rc == -EINVAL ? "; an address is tcp://HOST:PORT or ipc://PATH" : "");
        zmq_close_source(&z->base);
        return rc;
    }
    *out = &z->base;
    return 0;
}

/* ---- messages -------------------------------------------------------------------------------- */

static bool is_batch(zmq_msg_t *frame)
{
    const uint8_t *at = zmq_msg_data(frame);
    struct tierce__msgpack whole = {at, at + zmq_msg_size(frame)};
    return tierce__msgpack_skip(&whole) == TIERCE__MSGPACK_OK && whole.at == whole.end;
}

static void count_number(struct live_zmq *z, zmq_msg_t *frame)
{
    const uint8_t *bytes = zmq_msg_data(frame);
    uint64_t number = 0;
    TIERCE_ASSERT(zmq_msg_size(frame) == sizeof(number));
    for (size_t i = 0; i < sizeof(number); i++)
        number = number << 8 | bytes[i];
    struct tierce__live_counts *counts = &z->base.counts;
    if (counts->messages > 0 && number > z->next)
        counts->lost += number - z->next;
    else if (counts->messages > 0 && number < z->next)
        counts->restarts++;
    z->next = number + 1;
    counts->messages++;
}

static bool take_frame(struct live_zmq *z, zmq_msg_t *frame)
{
    zmq_msg_init(frame);
    if (zmq_msg_recv(frame, z->socket, ZMQ_DONTWAIT) >= 0)
        return true;
    zmq_msg_close(frame);
    return false;
}

/* Receives a whole message, keeps its first FRAMES frames, and sets *count to its number of frames.
 * False: no message; no frame is held. */
static bool take_frames(struct live_zmq *z, zmq_msg_t frames[FRAMES], int *count)
{
    *count = 0;
    for (bool more = true; more; ++*count) {
        zmq_msg_t rest = {{0}}, *frame = *count < FRAMES ? &frames[*count] : &rest;
        if (!take_frame(z, frame))
            break; /* only the first can be missing: ZMQ delivers whole messages */
        more = zmq_msg_more(frame) != 0;
        if (*count >= FRAMES)
            zmq_msg_close(frame);
    }
    return *count > 0;
}

/* Receives a message and keeps its batch in z->batch. False: no message, or an invalid one. */
static bool take_message(struct live_zmq *z)
{
    zmq_msg_t frames[FRAMES];
    int count;
    TIERCE_ASSERT(!z->has_batch);
    if (!take_frames(z, frames, &count))
        return false;
    bool good = count == FRAMES && zmq_msg_size(&frames[NUMBER_AT]) == sizeof(uint64_t);
    if (good)
        count_number(z, &frames[NUMBER_AT]);
    good = good && is_batch(&frames[BATCH_AT]);
    if (good) {
        zmq_msg_init(&z->batch);
        zmq_msg_move(&z->batch, &frames[BATCH_AT]);
        z->given = 0;
        z->has_batch = true;
    } else {
        z->base.counts.refused++;
    }
    for (int i = 0; i < count && i < FRAMES; i++)
        zmq_msg_close(&frames[i]);
    return good;
}

static ssize_t give_out(struct live_zmq *z, void *out, size_t size)
{
    TIERCE_ASSERT(z->has_batch && z->given <= zmq_msg_size(&z->batch));
    TIERCE_DASSERT(size > 0 && z->given < zmq_msg_size(&z->batch));
    size_t left = zmq_msg_size(&z->batch) - z->given, n = left < size ? left : size;
    memcpy(out, (const char *)zmq_msg_data(&z->batch) + z->given, n);
    z->given += n;
    if (n == left) {
        zmq_msg_close(&z->batch);
        z->has_batch = false;
    }
    return (ssize_t)n;
}

static ssize_t zmq_read(struct tierce__live_source *source, void *out, size_t size,
                        char why[TIERCE__TRACE_WHY_BYTES])
{
    TIERCE_DASSERT(source->ops == &tierce__live_zmq_ops);
    struct live_zmq *z = zmq_of(source);
    if (z->has_batch)
        return give_out(z, out, size);
    zmq_pollitem_t item = {.socket = z->socket, .events = ZMQ_POLLIN};
    int ready = zmq_poll(&item, 1, TIERCE__LIVE_WAIT_MS);
    if (ready < 0 && zmq_errno() != EINTR) {
        snprintf(why, TIERCE__TRACE_WHY_BYTES, "cannot be read: %s", zmq_strerror(zmq_errno()));
        return -zmq_errno();
    }
    return ready > 0 && take_message(z) ? give_out(z, out, size) : -EAGAIN;
}

const struct tierce__live_ops tierce__live_zmq_ops = {
    .format = "events",
    .open = zmq_open_source,
    .read = zmq_read,
    .close = zmq_close_source,
};
