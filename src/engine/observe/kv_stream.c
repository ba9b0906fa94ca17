/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/kv_stream.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/threads/lock.h"

enum {
    KEPT_MAX = 16384,   /* batches */
    COPY_MAX = 64,      /* batches under one hold of the lock */
    REPLAY_MS = 10000,  /* until a reader must have taken the next batch of its replay */
    SEND_MS = 100,      /* between two checks whether the stream ends */
    FRAME_BYTES = 8192, /* of a topic or a request: longer ones end the connection */
    FRAMES = 3,         /* of a request */
    NUMBER_BYTES = 8,
};

struct tierce__kv_stream {
    const char *topic;
    void *context, *pub, *router;
    int wake_fd;
    bool was_refused; /* an invalid request was logged */

    struct tierce__lock lock; /* KV_STREAM: below */
    uint64_t next, bytes, bytes_max;
    uint32_t head, count;
    zmq_msg_t *kept; /* [KEPT_MAX]: the last `count` batches, before `next` */
};

/* ---- the last batches ------------------------------------------------------------------------ */

/* Under the lock. */
static void drop_oldest(struct tierce__kv_stream *s)
{
    TIERCE_DASSERT(s->count > 0);
    s->bytes -= zmq_msg_size(&s->kept[s->head]);
    zmq_msg_close(&s->kept[s->head]);
    s->head = (s->head + 1) % KEPT_MAX;
    s->count--;
}

/* Numbers the batch, and keeps a reference to its bytes. */
static uint64_t keep(struct tierce__kv_stream *s, zmq_msg_t *batch)
{
    tierce__lock_take(&s->lock);
    if (s->count == KEPT_MAX)
        drop_oldest(s);
    zmq_msg_t *place = &s->kept[(s->head + s->count) % KEPT_MAX];
    zmq_msg_init(place);
    (void)zmq_msg_copy(place, batch); /* fails for messages that are not valid only */
    s->count++;
    s->bytes += zmq_msg_size(batch);
    while (s->bytes > s->bytes_max && s->count > 1)
        drop_oldest(s);
    uint64_t sequence = s->next++;
    tierce__lock_drop(&s->lock);
    return sequence;
}

/* References to the batches from *sequence on, which is raised to the first one that is kept. */
static uint32_t copy_kept(struct tierce__kv_stream *s, zmq_msg_t *out, uint64_t *sequence)
{
    uint32_t count = 0;
    tierce__lock_take(&s->lock);
    uint64_t first = s->next - s->count;
    if (*sequence < first)
        *sequence = first;
    for (uint64_t n = *sequence; n < s->next && count < COPY_MAX; n++, count++) {
        zmq_msg_init(&out[count]);
        (void)zmq_msg_copy(&out[count], &s->kept[(s->head + (uint32_t)(n - first)) % KEPT_MAX]);
    }
    tierce__lock_drop(&s->lock);
    return count;
}

uint64_t tierce__kv_stream_next(struct tierce__kv_stream *stream)
{
    tierce__lock_take(&stream->lock);
    uint64_t next = stream->next;
    tierce__lock_drop(&stream->lock);
    return next;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void write_number(uint8_t out[NUMBER_BYTES], uint64_t n)
{
    for (unsigned i = 0; i < NUMBER_BYTES; i++)
        out[i] = (uint8_t)(n >> 8 * (NUMBER_BYTES - 1 - i));
}

/* PUB never blocks: it drops the message for a subscriber whose queue is full. */
static void send_batch(void *socket, const char *topic, uint64_t sequence, zmq_msg_t *batch)
{
    uint8_t number[NUMBER_BYTES];
    write_number(number, sequence);
    (void)zmq_send(socket, topic, strlen(topic), ZMQ_SNDMORE);
    (void)zmq_send(socket, number, sizeof(number), ZMQ_SNDMORE);
    if (zmq_msg_send(batch, socket, 0) < 0)
        zmq_msg_close(batch);
}

int tierce__kv_stream_send(struct tierce__kv_stream *stream, const void *batch, size_t bytes)
{
    zmq_msg_t message;
    if (zmq_msg_init_size(&message, bytes) != 0)
        return -ENOMEM;
    memcpy(zmq_msg_data(&message), batch, bytes);
    uint64_t sequence = keep(stream, &message);
    send_batch(stream->pub, stream->topic, sequence, &message);
    return 0;
}

/* ---- replay ---------------------------------------------------------------------------------- */

static bool is_ending(const _Atomic bool *flag)
{
    return atomic_load_explicit(flag, memory_order_relaxed);
}

/* Waits for the reader's queue. Returns false if the reader is gone, or does not read. */
static bool send_id(struct tierce__kv_stream *s, zmq_msg_t *id, uint64_t deadline_ns,
                    const _Atomic bool *ending)
{
    while (zmq_send(s->router, zmq_msg_data(id), zmq_msg_size(id), ZMQ_SNDMORE) < 0) {
        if (zmq_errno() != EAGAIN && zmq_errno() != EINTR)
            return false;
        if (is_ending(ending) || tierce__now_ns() >= deadline_ns)
            return false;
    }
    return zmq_send(s->router, "", 0, ZMQ_SNDMORE) >= 0;
}

static void replay(struct tierce__kv_stream *s, zmq_msg_t *id, uint64_t sequence,
                   const _Atomic bool *ending)
{
    zmq_msg_t batches[COPY_MAX], end;
    uint64_t deadline_ns = tierce__deadline_in_ms(REPLAY_MS);
    uint32_t count;
    bool is_read = true;
    while (is_read && (count = copy_kept(s, batches, &sequence)) > 0) {
        for (uint32_t i = 0; i < count; i++) {
            is_read = is_read && send_id(s, id, deadline_ns, ending);
            deadline_ns = tierce__deadline_in_ms(REPLAY_MS);
            if (is_read)
                send_batch(s->router, s->topic, sequence + i, &batches[i]);
            else
                zmq_msg_close(&batches[i]);
        }
        sequence += count;
    }
    if (is_read && send_id(s, id, deadline_ns, ending)) {
        zmq_msg_init(&end);
        send_batch(s->router, "", UINT64_MAX, &end);
    }
}

/* Receives a whole request; further frames than FRAMES are dropped. Returns how many it had; 0:
 * none waits. */
static unsigned receive(void *router, zmq_msg_t frames[FRAMES])
{
    unsigned count = 0;
    bool more = true;
    while (more) {
        zmq_msg_t rest, *frame = count < FRAMES ? &frames[count] : &rest;
        zmq_msg_init(frame);
        if (zmq_msg_recv(frame, router, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(frame);
            break;
        }
        more = zmq_msg_more(frame) != 0;
        if (count++ >= FRAMES)
            zmq_msg_close(frame);
    }
    return count;
}

/* Returns whether there was a request. */
static bool answer_request(struct tierce__kv_stream *s, const _Atomic bool *ending)
{
    zmq_msg_t frames[FRAMES];
    unsigned count = receive(s->router, frames);
    bool is_valid = count == FRAMES && zmq_msg_size(&frames[1]) == 0 &&
                    zmq_msg_size(&frames[2]) == NUMBER_BYTES;
    if (is_valid) {
        const uint8_t *bytes = zmq_msg_data(&frames[2]);
        uint64_t first = 0;
        for (unsigned i = 0; i < NUMBER_BYTES; i++)
            first = first << 8 | bytes[i];
        replay(s, &frames[0], first, ending);
    } else if (count > 0 && !s->was_refused) {
        s->was_refused = true;
        tierce__log(TIERCE_LOG_WARN, "kv_replay_refused",
                    "frames=%u requires=\"an empty frame and 8 bytes\"", count - 1);
    }
    for (unsigned i = 0; i < count && i < FRAMES; i++)
        zmq_msg_close(&frames[i]);
    return count > 0;
}

void tierce__kv_stream_serve(struct tierce__kv_stream *stream, const _Atomic bool *ending)
{
    while (!is_ending(ending)) {
        zmq_pollitem_t items[] = {{.fd = stream->wake_fd, .events = ZMQ_POLLIN},
                                  {.socket = stream->router, .events = ZMQ_POLLIN}};
        (void)zmq_poll(items, stream->router != NULL ? 2 : 1, -1);
        while (stream->router != NULL && !is_ending(ending) && answer_request(stream, ending))
            ;
    }
}

void tierce__kv_stream_wake(struct tierce__kv_stream *stream)
{
    uint64_t one = 1;
    ssize_t n = write(stream->wake_fd, &one, sizeof(one));
    (void)n; /* the counter is full at worst, and then it wakes too */
}

/* ---- open and close -------------------------------------------------------------------------- */

static bool is_endpoint(const char *text)
{
    return strncmp(text, "tcp://", 6) == 0 || strncmp(text, "ipc://", 6) == 0;
}

static int bind_socket(void **out, void *context, int type, const char *endpoint, char why[256])
{
    int behind = TIERCE__KV_BEHIND_MAX, linger = 0, mandatory = 1, wait_ms = SEND_MS;
    int64_t bytes = FRAME_BYTES;
    if (!is_endpoint(endpoint)) {
        snprintf(why, 256, "'%.160s' is not tcp://ADDRESS:PORT or ipc://PATH", endpoint);
        return TIERCE_E_CONFIG;
    }
    void *socket = *out = zmq_socket(context, type);
    if (socket == NULL)
        return -zmq_errno();
    (void)zmq_setsockopt(socket, ZMQ_SNDHWM, &behind, sizeof(behind));
    (void)zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
    (void)zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &bytes, sizeof(bytes));
    if (type == ZMQ_ROUTER) {
        (void)zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof(mandatory));
        (void)zmq_setsockopt(socket, ZMQ_SNDTIMEO, &wait_ms, sizeof(wait_ms));
    }
    if (zmq_bind(socket, endpoint) == 0)
        return 0;
    snprintf(why, 256, "'%.160s' cannot be bound: %s", endpoint, zmq_strerror(zmq_errno()));
    return TIERCE_E_CONFIG;
}

static int open_sockets(struct tierce__kv_stream *s, const struct tierce__kv_stream_opts *opts,
                        char why[256])
{
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake_fd < 0)
        return -errno;
    s->context = zmq_ctx_new();
    if (s->context == NULL)
        return -ENOMEM;
    int rc = bind_socket(&s->pub, s->context, ZMQ_PUB, opts->endpoint, why);
    if (rc == 0 && opts->replay[0] != '\0')
        rc = bind_socket(&s->router, s->context, ZMQ_ROUTER, opts->replay, why);
    return rc;
}

int tierce__kv_stream_open(struct tierce__kv_stream **out,
                           const struct tierce__kv_stream_opts *opts, char why[256])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__kv_stream *s = tierce__calloc(1, sizeof(*s));
    if (s == NULL)
        return -ENOMEM;
    tierce__lock_init(&s->lock, TIERCE__LOCK_KV_STREAM);
    s->topic = opts->topic;
    s->next = opts->first;
    s->bytes_max = opts->bytes_max;
    s->wake_fd = -1;
    s->kept = tierce__calloc(KEPT_MAX, sizeof(*s->kept));
    int rc = s->kept != NULL ? open_sockets(s, opts, why) : -ENOMEM;
    if (rc == 0)
        *out = s;
    else
        tierce__kv_stream_close(s);
    return rc;
}

void tierce__kv_stream_close(struct tierce__kv_stream *stream)
{
    if (stream == NULL)
        return;
    while (stream->count > 0)
        drop_oldest(stream);
    if (stream->pub != NULL)
        zmq_close(stream->pub);
    if (stream->router != NULL)
        zmq_close(stream->router);
    if (stream->context != NULL)
        zmq_ctx_term(stream->context);
    if (stream->wake_fd >= 0)
        close(stream->wake_fd);
    tierce__lock_fini(&stream->lock);
    tierce__free(stream->kept);
    tierce__free(stream);
}
