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
#include "engine/observe/kv_readers.h"

enum {
    KEPT_MAX = 16384,   /* batches */
    COPY_MAX = 64,      /* batches under one hold of the lock, and in a turn of a replay */
    READERS_MAX = 64,   /* replays in progress; further requests wait */
    REPLAY_MS = 10000,  /* until a reader must have taken the next batch of its replay */
    STALLED_MS = 10,    /* between two attempts if no reader in progress reads */
    FRAME_BYTES = 8192, /* of a topic or a request: longer ones end the connection */
    FRAMES = 3,         /* of a request */
    NUMBER_BYTES = 8,
};

/* A replay in progress. */
struct kv_replay {
    zmq_msg_t id;         /* the reader's */
    uint64_t sequence;    /* of its next batch */
    uint64_t deadline_ns; /* for the reader to take it */
};

struct tierce__kv_stream {
    const char *topic;
    void *context, *pub, *router;
    struct tierce__kv_readers *readers; /* or NULL: every reader may connect */
    int wake_fd;
    bool was_refused;                      /* an invalid request was logged */
    struct kv_replay replays[READERS_MAX]; /* [replay_count], in the order of their requests */
    size_t replay_count;

    struct tierce__lock lock; /* KV_STREAM: below */
    uint64_t next, bytes, bytes_max;
    uint32_t head, count;
    /* [KEPT_MAX]: the last `count` batches, before `next`; an empty one was left out. */
    zmq_msg_t *kept;
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

/* Numbers the batch, and keeps a reference to its bytes. NULL if it is left out. */
static uint64_t keep(struct tierce__kv_stream *s, zmq_msg_t *batch)
{
    tierce__lock_take(&s->lock);
    if (s->count == KEPT_MAX)
        drop_oldest(s);
    zmq_msg_t *place = &s->kept[(s->head + s->count) % KEPT_MAX];
    zmq_msg_init(place);
    if (batch != NULL)
        (void)zmq_msg_copy(place, batch); /* fails for messages that are not valid only */
    s->count++;
    s->bytes += zmq_msg_size(place);
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

static void free_bytes(void *bytes, void *arg)
{
    (void)arg;
    tierce__free(bytes);
}

int tierce__kv_stream_send(struct tierce__kv_stream *stream, const void *batch, size_t bytes)
{
    zmq_msg_t message;
    TIERCE_ASSERT(bytes > 0);
    void *copy = tierce__alloc(bytes);
    if (copy != NULL)
        memcpy(copy, batch, bytes);
    if (copy == NULL || zmq_msg_init_data(&message, copy, bytes, free_bytes, NULL) != 0) {
        tierce__free(copy);
        (void)keep(stream, NULL);
        return -ENOMEM;
    }
    uint64_t sequence = keep(stream, &message);
    send_batch(stream->pub, stream->topic, sequence, &message);
    return 0;
}

void tierce__kv_stream_skip(struct tierce__kv_stream *stream)
{
    (void)keep(stream, NULL);
}

/* ---- replay ---------------------------------------------------------------------------------- */

/* Returns 1, 0 if the reader's queue is full, or -1 if the reader is gone. After 1, the further
 * frames of the message have room. */
static int send_id(struct tierce__kv_stream *s, const zmq_msg_t *id)
{
    zmq_msg_t *frame = (zmq_msg_t *)(uintptr_t)id; /* zmq_msg_data changes nothing */
    if (zmq_send(s->router, zmq_msg_data(frame), zmq_msg_size(frame), ZMQ_SNDMORE | ZMQ_DONTWAIT) <
        0)
        return zmq_errno() == EAGAIN || zmq_errno() == EINTR ? 0 : -1;
    (void)zmq_send(s->router, "", 0, ZMQ_SNDMORE);
    return 1;
}

/* Sends as many of the batches as the reader's queue takes; returns as send_id. */
static int send_kept(struct tierce__kv_stream *s, struct kv_replay *r, zmq_msg_t *batches,
                     uint32_t count)
{
    int sent = 1;
    for (uint32_t i = 0; i < count; i++) {
        bool is_left_out = zmq_msg_size(&batches[i]) == 0;
        if (sent == 1 && !is_left_out)
            sent = send_id(s, &r->id);
        if (sent == 1 && !is_left_out)
            send_batch(s->router, s->topic, r->sequence, &batches[i]);
        else
            zmq_msg_close(&batches[i]);
        r->sequence += sent == 1;
    }
    return sent;
}

enum turn { ENDED, STALLED, ADVANCED };

/* Sends the next batches, or the end. */
static enum turn advance(struct tierce__kv_stream *s, struct kv_replay *r)
{
    zmq_msg_t batches[COPY_MAX], end;
    uint32_t count = copy_kept(s, batches, &r->sequence);
    uint64_t before = r->sequence; /* after those that are not kept any more: none was sent */
    int sent = count > 0 ? send_kept(s, r, batches, count) : send_id(s, &r->id);
    if (count == 0 && sent == 1) {
        zmq_msg_init(&end);
        send_batch(s->router, "", UINT64_MAX, &end);
        return ENDED;
    }
    if (r->sequence > before)
        r->deadline_ns = tierce__deadline_in_ms(REPLAY_MS);
    if (sent < 0 || tierce__now_ns() >= r->deadline_ns)
        return ENDED;
    return sent == 1 ? ADVANCED : STALLED;
}

static bool has_same_id(zmq_msg_t *a, zmq_msg_t *b)
{
    return zmq_msg_size(a) == zmq_msg_size(b) &&
           memcmp(zmq_msg_data(a), zmq_msg_data(b), zmq_msg_size(a)) == 0;
}

/* The second request of a reader is answered after its first one. */
static bool is_first_of_reader(struct tierce__kv_stream *s, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (has_same_id(&s->replays[k].id, &s->replays[i].id))
            return false;
    }
    return true;
}

static void end_replay(struct tierce__kv_stream *s, size_t i)
{
    TIERCE_DASSERT(i < s->replay_count);
    for (; i + 1 < s->replay_count; i++) {
        struct kv_replay *r = &s->replays[i];
        (void)zmq_msg_move(&r->id, &r[1].id); /* closes the id before */
        r->sequence = r[1].sequence;
        r->deadline_ns = r[1].deadline_ns;
    }
    zmq_msg_close(&s->replays[--s->replay_count].id);
}

/* A turn of each reader. Returns whether one of them advanced. */
static bool advance_all(struct tierce__kv_stream *s)
{
    bool has_advanced = false;
    for (size_t i = 0; i < s->replay_count;) {
        if (!is_first_of_reader(s, i)) {
            s->replays[i++].deadline_ns = tierce__deadline_in_ms(REPLAY_MS);
            continue;
        }
        enum turn turn = advance(s, &s->replays[i]);
        has_advanced |= turn != STALLED;
        if (turn == ENDED)
            end_replay(s, i);
        else
            i++;
    }
    return has_advanced;
}

static void begin_replay(struct tierce__kv_stream *s, zmq_msg_t *id, uint64_t sequence)
{
    TIERCE_ASSERT(s->replay_count < READERS_MAX);
    struct kv_replay *r = &s->replays[s->replay_count++];
    zmq_msg_init(&r->id);
    (void)zmq_msg_move(&r->id, id);
    r->sequence = sequence;
    r->deadline_ns = tierce__deadline_in_ms(REPLAY_MS);
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
static bool take_request(struct tierce__kv_stream *s)
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
        begin_replay(s, &frames[0], first);
    } else if (count > 0 && !s->was_refused) {
        s->was_refused = true;
        tierce__log(TIERCE_LOG_WARN, "kv_replay_refused",
                    "frames=%u requires=\"an empty frame and 8 bytes\"", count - 1);
    }
    for (unsigned i = 0; i < count && i < FRAMES; i++)
        zmq_msg_close(&frames[i]);
    return count > 0;
}

/* Returns whether the stream was woken. */
static bool is_woken(struct tierce__kv_stream *s)
{
    uint64_t times;
    return read(s->wake_fd, &times, sizeof(times)) == (ssize_t)sizeof(times);
}

/* How long the next request may be waited for. A router cannot be asked which queue has room, so
 * readers that do not read are tried again after a while. */
static long wait_ms(const struct tierce__kv_stream *s, bool has_advanced, uint64_t until_ns)
{
    uint64_t now_ns = tierce__now_ns();
    long ms = -1;
    if (until_ns != TIERCE__DEADLINE_NEVER)
        ms = until_ns <= now_ns ? 0 : (long)((until_ns - now_ns) / TIERCE__MS_NS) + 1;
    if (s->replay_count == 0)
        return ms;
    long turn_ms = has_advanced ? 0 : STALLED_MS;
    return ms < 0 || ms > turn_ms ? turn_ms : ms;
}

void tierce__kv_stream_serve(struct tierce__kv_stream *stream, uint64_t until_ns)
{
    bool has_advanced = true;
    while (!is_woken(stream) && tierce__now_ns() < until_ns) {
        bool has_room = stream->router != NULL && stream->replay_count < READERS_MAX;
        zmq_pollitem_t items[3] = {{.fd = stream->wake_fd, .events = ZMQ_POLLIN}};
        int count = 1;
        if (stream->readers != NULL)
            items[count++] = (zmq_pollitem_t){.socket = tierce__kv_readers_socket(stream->readers),
                                              .events = ZMQ_POLLIN};
        if (has_room)
            items[count++] = (zmq_pollitem_t){.socket = stream->router, .events = ZMQ_POLLIN};
        (void)zmq_poll(items, count, wait_ms(stream, has_advanced, until_ns));
        tierce__kv_readers_answer(stream->readers);
        /* Invalid requests count too, so that they keep nobody from the rest. */
        for (uint32_t i = 0; has_room && i < READERS_MAX && stream->replay_count < READERS_MAX; i++)
            has_room = take_request(stream);
        has_advanced = advance_all(stream);
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

static int bind_socket(void **out, void *context, int type, const char *endpoint,
                       const struct tierce__zmq_curve_pair *curve, char why[256])
{
    int behind = TIERCE__KV_BEHIND_MAX, linger = 0, mandatory = 1;
    int is_v6 = strchr(endpoint, '[') != NULL;
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
    (void)zmq_setsockopt(socket, ZMQ_IPV6, &is_v6, sizeof(is_v6));
    (void)zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &bytes, sizeof(bytes));
    if (type == ZMQ_ROUTER)
        (void)zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof(mandatory));
    int rc = curve != NULL ? tierce__zmq_curve_serve(socket, curve) : 0;
    if (rc < 0)
        return rc;
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
    int rc = 0;
    if (opts->curve != NULL)
        rc = tierce__kv_readers_open(&s->readers, s->context, opts->readers, why);
    if (rc == 0)
        rc = bind_socket(&s->pub, s->context, ZMQ_PUB, opts->endpoint, opts->curve, why);
    if (rc == 0 && opts->replay[0] != '\0')
        rc = bind_socket(&s->router, s->context, ZMQ_ROUTER, opts->replay, opts->curve, why);
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
    while (stream->replay_count > 0)
        end_replay(stream, stream->replay_count - 1);
    if (stream->pub != NULL)
        zmq_close(stream->pub);
    if (stream->router != NULL)
        zmq_close(stream->router);
    tierce__kv_readers_close(stream->readers);
    if (stream->context != NULL)
        zmq_ctx_term(stream->context);
    if (stream->wake_fd >= 0)
        close(stream->wake_fd);
    tierce__lock_fini(&stream->lock);
    tierce__free(stream->kept);
    tierce__free(stream);
}
