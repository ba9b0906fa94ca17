/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/lmcache/controller_sockets.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "base/text/host_port.h"
#include "base/threads/threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define FRAME_BYTES_MAX ((int64_t)4 << 20)
#define WAITING_MAX     1000 /* messages in ZMQ's queue of one worker; then the worker waits */
#define TURN_MESSAGES   256u /* of one socket, before another has its turn */
#define TICK_MS         1000u
#define IDENTITY_BYTES  256u

enum which { PULL, REPLY, HEARTBEAT, SOCKETS };

struct tierce__controller_sockets {
    struct tierce__controller_sockets_opts opts;
    void *context;
    void *sockets[SOCKETS]; /* of the thread, once it runs; NULL: no port */
    struct tierce__line reply;
    uint32_t tick_ms;
    uint64_t tick_ns; /* when the next one is due */
    bool has_thread;
    pthread_t thread;
};

/* ---- messages -------------------------------------------------------------------------------- */

/* Drops the rest of a message. */
static void drop_frames(void *socket, zmq_msg_t *frame)
{
    while (zmq_msg_more(frame) != 0 && zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) >= 0)
        continue;
}

static bool leads(const struct tierce__controller_sockets *s)
{
    return s->opts.leads(s->opts.arg);
}

/* Every frame is a message. False: there was none. */
static bool take_reports(struct tierce__controller_sockets *s)
{
    bool more = true, some = false;
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    while (more && zmq_msg_recv(&frame, s->sockets[PULL], ZMQ_DONTWAIT) >= 0) {
        some = true;
        (void)tierce__controller_take(s->opts.controller, zmq_msg_data(&frame),
                                      zmq_msg_size(&frame), leads(s), tierce__now_ns(), NULL);
        more = zmq_msg_more(&frame) != 0;
    }
    zmq_msg_close(&frame);
    return some;
}

/* An answer that cannot be sent at once is dropped: the worker is gone, or takes none. */
static void send_answer(struct tierce__controller_sockets *s, void *socket, const uint8_t *identity,
                        size_t bytes)
{
    if (s->reply.failed)
        return;
    if (zmq_send(socket, identity, bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_send(socket, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_send(socket, s->reply.text, s->reply.bytes, ZMQ_DONTWAIT) < 0)
        tierce__log_repeated(TIERCE_LOG_WARN, "lmcache.no_answer", "error=\"%s\"",
                             zmq_strerror(errno));
}

/* [identity, "", message]. False: there was none. */
static bool take_request(struct tierce__controller_sockets *s, void *socket)
{
    uint8_t identity[IDENTITY_BYTES];
    size_t bytes = 0;
    unsigned count = 0;
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    for (bool more = true; more && count < 3; count++) {
        if (zmq_msg_recv(&frame, socket, ZMQ_DONTWAIT) < 0)
            break;
        more = zmq_msg_more(&frame) != 0;
        bytes = count == 0 ? zmq_msg_size(&frame) : bytes;
        if (count == 0 && bytes <= sizeof(identity))
            memcpy(identity, zmq_msg_data(&frame), bytes);
    }
    if (count == 3 && bytes <= sizeof(identity)) {
        s->reply.bytes = 0;
        (void)tierce__controller_take(s->opts.controller, zmq_msg_data(&frame),
                                      zmq_msg_size(&frame), leads(s), tierce__now_ns(), &s->reply);
        drop_frames(socket, &frame);
        send_answer(s, socket, identity, bytes);
        if (s->reply.failed)
            tierce__line_clear(&s->reply);
    } else if (count > 0) {
        drop_frames(socket, &frame);
        tierce__log_repeated(TIERCE_LOG_WARN, "lmcache.invalid",
                             "a request has too few frames; accepted are an empty one and the "
                             "message, behind the sender's identity");
    }
    zmq_msg_close(&frame);
    return count > 0;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* False: the context ends. */
static bool wait(struct tierce__controller_sockets *s, bool is_ready[SOCKETS])
{
    zmq_pollitem_t items[SOCKETS];
    enum which of[SOCKETS];
    int count = 0;
    uint64_t now_ns = tierce__now_ns();
    for (unsigned i = 0; i < SOCKETS; i++) {
        is_ready[i] = false;
        if (s->sockets[i] == NULL)
            continue;
        of[count] = (enum which)i;
        items[count++] = (zmq_pollitem_t){.socket = s->sockets[i], .events = ZMQ_POLLIN};
    }
    long wait_ms = s->tick_ns > now_ns ? (long)((s->tick_ns - now_ns) / 1000000) + 1 : 0;
    int rc = zmq_poll(items, count, wait_ms);
    for (int i = 0; rc > 0 && i < count; i++)
        is_ready[of[i]] = (items[i].revents & ZMQ_POLLIN) != 0;
    return rc >= 0 || errno != ETERM;
}

static void *run(void *arg)
{
    struct tierce__controller_sockets *s = arg;
    bool is_ready[SOCKETS];
    while (wait(s, is_ready)) {
        for (unsigned i = 0; i < TURN_MESSAGES && is_ready[HEARTBEAT]; i++)
            is_ready[HEARTBEAT] = take_request(s, s->sockets[HEARTBEAT]);
        for (unsigned i = 0; i < TURN_MESSAGES && is_ready[REPLY]; i++)
            is_ready[REPLY] = take_request(s, s->sockets[REPLY]);
        for (unsigned i = 0; i < TURN_MESSAGES && is_ready[PULL]; i++)
            is_ready[PULL] = take_reports(s);
        if (tierce__now_ns() >= s->tick_ns) {
            tierce__controller_tick(s->opts.controller, leads(s), tierce__now_ns());
            s->tick_ns = tierce__deadline_in_ms(s->tick_ms);
        }
    }
    for (unsigned i = 0; i < SOCKETS; i++) {
        if (s->sockets[i] != NULL)
            zmq_close(s->sockets[i]);
        s->sockets[i] = NULL;
    }
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int set(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof(value));
}

static int open_socket(struct tierce__controller_sockets *s, enum which which, const char *name,
                       uint16_t port, char why[256])
{
    char endpoint[300] = "tcp://";
    const char *host = s->opts.host;
    int64_t bytes = FRAME_BYTES_MAX;
    if (port == 0)
        return 0;
    void *socket = zmq_socket(s->context, which == PULL ? ZMQ_PULL : ZMQ_ROUTER);
    bool is_v6 = strchr(host, ':') != NULL;
    size_t used = strlen(endpoint);
    (void)tierce__host_port_format(endpoint + used, sizeof(endpoint) - used, host, port);
    if (socket != NULL && set(socket, ZMQ_LINGER, 0) == 0 &&
        set(socket, ZMQ_RCVHWM, WAITING_MAX) == 0 && set(socket, ZMQ_IPV6, is_v6) == 0 &&
        zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &bytes, sizeof(bytes)) == 0 &&
        zmq_bind(socket, endpoint) == 0) {
        s->sockets[which] = socket;
        return 0;
    }
    int error = errno;
    snprintf(why, 256, "%s: %.160s cannot be bound: %s", name, endpoint, zmq_strerror(error));
    if (socket != NULL)
        zmq_close(socket);
    return error < ZMQ_HAUSNUMERO ? -error : -EINVAL;
}

int tierce__controller_sockets_start(struct tierce__controller_sockets **out,
                                     const struct tierce__controller_sockets_opts *opts,
                                     char why[256])
{
    TIERCE_DASSERT(opts->size == sizeof(*opts));
    struct tierce__controller_sockets *s = tierce__calloc(1, sizeof(*s));
    int rc = s != NULL ? 0 : -ENOMEM;
    snprintf(why, 256, "no memory");
    if (rc == 0) {
        s->opts = *opts;
        s->tick_ms = TICK_MS;
        if (opts->silence_ms > 0 && opts->silence_ms / 4 < TICK_MS)
            s->tick_ms = opts->silence_ms >= 4 ? opts->silence_ms / 4 : 1;
        s->context = zmq_ctx_new();
        rc = s->context != NULL ? 0 : -ENOMEM;
    }
    if (rc == 0)
        rc = open_socket(s, PULL, "lmcache.pull_port", opts->pull_port, why);
    if (rc == 0)
        rc = open_socket(s, REPLY, "lmcache.reply_port", opts->reply_port, why);
    if (rc == 0)
        rc = open_socket(s, HEARTBEAT, "lmcache.heartbeat_port", opts->heartbeat_port, why);
    if (rc == 0) {
        s->tick_ns = tierce__deadline_in_ms(s->tick_ms);
        rc = tierce__thread_start(&s->thread, run, s);
        s->has_thread = rc == 0;
        if (rc < 0)
            snprintf(why, 256, "a thread for LMCache's workers cannot be started: %s",
                     tierce_strerror(rc));
    }
    if (rc == 0)
        *out = s;
    else
        tierce__controller_sockets_stop(s);
    return rc;
}

void tierce__controller_sockets_stop(struct tierce__controller_sockets *sockets)
{
    if (sockets == NULL)
        return;
    if (sockets->has_thread) {
        zmq_ctx_shutdown(sockets->context); /* the thread sees the end, and closes the sockets */
        pthread_join(sockets->thread, NULL);
    }
    for (unsigned i = 0; i < SOCKETS; i++) {
        if (sockets->sockets[i] != NULL)
            zmq_close(sockets->sockets[i]);
    }
    if (sockets->context != NULL)
        zmq_ctx_term(sockets->context);
    tierce__line_clear(&sockets->reply);
    tierce__free(sockets);
}
