/* SPDX-License-Identifier: Apache-2.0 */
#include "node/connection.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "net/listen.h"
#include "node/node_private.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#define TEXT_BYTES_FIRST  512u
#define TEXT_BYTES_KEPT   (16u << 10) /* a larger buffer goes when it is empty */
#define TEXT_BYTES_FULL   (64u << 10)
#define ROUNDS_AT_ONCE    16u
#define SENDS_AT_ONCE     4u
#define TLS_BYTES_AT_ONCE (32u << 10)
#define PROGRESS_BYTES    (1u << 20)
/* The bytes of a value sent at a time. The reader sleeps while a piece is verified, and waking it
 * costs more than the piece: 1.25x at 4 MiB against one piece each (2 cores of a virtual machine,
 * 2026-11). */
#define SEND_BYTES (4u * TIERCE__OBJECT_PIECE)
/* The amount of a value that must arrive before epoll reports it: 1.1x to 1.6x for SETs of 1 to 16
 * MiB, whose writer need not wake us for each packet (ibidem). */
#define LOW_WATER_BYTES     TIERCE__OBJECT_PIECE
#define LOW_WATER_BYTES_MIN (64u << 10) /* below this it is not worth the call */

/* ---- the end --------------------------------------------------------------------------------- */

static void free_connection(struct tierce__task *task)
{
    struct tierce__connection *c = TIERCE__CONTAINER_OF(task, struct tierce__connection, task);
    struct tierce__poll_loop *loop = c->loop;
    TIERCE_ASSERT(c->is_closing && !c->is_busy);
    if (c->gone != NULL)
        c->gone(c);
    tierce__list_remove(&c->member);
    tierce__tls_session_destroy(c->tls);
    tierce__free(c->cipher);
    tierce__free(c->kept);
    tierce__free(c->text);
    tierce__free(c);
    atomic_fetch_sub_explicit(&loop->member_count, 1, memory_order_release);
}

/* Nothing is under way: the session goes now, the memory after the round of events, which may still
 * name it. */
static void bury(struct tierce__connection *c)
{
    TIERCE_ASSERT(c->is_closing && !c->is_busy);
    c->protocol->close(c->session);
    c->task.run = free_connection;
    tierce__loop_post(&c->loop->base, &c->task);
}

static void close_connection(struct tierce__connection *c)
{
    if (c->is_closing)
        return;
    c->is_closing = true;
    tierce__poll_close(&c->source);
    tierce__deadline_unset(&c->loop->base.deadlines, &c->deadline);
    tierce__object_release(c->value);
    c->value = NULL;
    if (!c->is_busy)
        bury(c);
}

static void note_end(const struct tierce__connection *c, const char *why)
{
    tierce__log(TIERCE_LOG_INFO, "node_connection_closed", "protocol=%s peer=%s why=\"%s\"",
                c->protocol->name, c->peer, why);
}

static void close_noted(struct tierce__connection *c, const char *why)
{
    note_end(c, why);
    close_connection(c);
}

/* Discards arrived bytes. Closing a socket with unread bytes resets it, and the client could lose
 * our last answer. */
static void drop_arrived(struct tierce__connection *c)
{
    (void)shutdown(c->source.fd, SHUT_WR);
    for (unsigned i = 0; i < ROUNDS_AT_ONCE; i++) {
        if (read(c->source.fd, c->loop->scratch, sizeof(c->loop->scratch)) <= 0)
            break;
    }
}

/* ---- out ------------------------------------------------------------------------------------- */

static bool has_output(const struct tierce__connection *c)
{
    TIERCE_DASSERT(c->text_at <= c->text_bytes && c->text_bytes <= c->text_room);
    return c->text_at < c->text_bytes || c->value != NULL || c->tail_bytes > 0 || c->cipher != NULL;
}

bool tierce__connection_is_waiting(const struct tierce__connection *c)
{
    bool is_full =
        c->value != NULL || c->tail_bytes > 0 || c->text_bytes - c->text_at >= TEXT_BYTES_FULL;
    return is_full || c->is_busy || c->is_ending;
}

static bool make_text_room(struct tierce__connection *c, size_t count)
{
    TIERCE_DASSERT(c->text_at <= c->text_bytes && c->text_bytes <= c->text_room);
    if (c->text_at == c->text_bytes)
        c->text_at = c->text_bytes = 0;
    if (count <= c->text_room - c->text_bytes)
        return true;
    if (TIERCE__GROW(c->text, c->text_room, c->text_bytes + count, TEXT_BYTES_FIRST) < 0)
        return false;
    TIERCE_ASSERT(count <= c->text_room - c->text_bytes);
    return true;
}

void tierce__connection_put(struct tierce__connection *c, const void *bytes, size_t count)
{
    TIERCE_ASSERT(c->value == NULL && c->tail_bytes == 0);
    if (count == 0)
        return;
    if (!make_text_room(c, count)) {
        c->failure = -ENOMEM;
        return;
    }
    TIERCE_ASSERT(c->text_bytes + count <= c->text_room);
    memcpy(c->text + c->text_bytes, bytes, count);
    c->text_bytes += count;
}

void tierce__connection_put_value(struct tierce__connection *c, struct tierce__object *object,
                                  uint64_t from, uint64_t to, const char *tail)
{
    TIERCE_ASSERT(c->value == NULL && c->tail_bytes == 0 && from <= to);
    TIERCE_ASSERT(to <= object->what.value_bytes);
    c->value = object;
    c->value_at = from;
    c->value_end = to;
    c->tail = tail;
    c->tail_bytes = tail != NULL ? strlen(tail) : 0;
}

void tierce__connection_go_on(struct tierce__connection *c)
{
    c->goes_on = true;
}

void tierce__connection_end(struct tierce__connection *c)
{
    c->is_ending = true;
}

void tierce__connection_acknowledge(struct tierce__connection *c)
{
    int yes = 1;
    (void)setsockopt(c->source.fd, IPPROTO_TCP, TCP_QUICKACK, &yes, sizeof(yes));
}

/* Up to where the value is sent next: whole pieces, or its end. The first one goes alone, so that
 * its reader does not wait for more to be verified. */
static uint64_t next_value_end(const struct tierce__connection *c)
{
    TIERCE_DASSERT(c->value_at <= c->value_end);
    uint64_t bytes = c->value_at < TIERCE__OBJECT_PIECE ? TIERCE__OBJECT_PIECE : SEND_BYTES;
    uint64_t to = (c->value_at + bytes) / TIERCE__OBJECT_PIECE * TIERCE__OBJECT_PIECE;
    return to < c->value_end ? to : c->value_end;
}

/* Up to three ranges: text, verified pieces of the value, and the text after the last piece. */
static int gather(struct tierce__connection *c, struct iovec iov[3])
{
    int count = 0;
    uint64_t end = c->value_end;
    if (c->text_at < c->text_bytes)
        iov[count++] = (struct iovec){c->text + c->text_at, c->text_bytes - c->text_at};
    if (c->value != NULL && c->value_at < end) {
        uint64_t to = next_value_end(c);
        TIERCE_ASSERT(to > c->value_at && to <= c->value->what.value_bytes);
        if (!tierce__object_verified(c->value, to))
            return TIERCE_E_CHECKSUM;
        iov[count++] = (struct iovec){c->value->value + c->value_at, (size_t)(to - c->value_at)};
        if (to < end)
            return count;
    }
    if (c->tail_bytes > 0)
        iov[count++] = (struct iovec){(void *)(uintptr_t)c->tail, c->tail_bytes};
    TIERCE_DASSERT(count <= 3);
    return count;
}

static void let_text_go(struct tierce__connection *c)
{
    TIERCE_DASSERT(c->text_at == c->text_bytes);
    c->text_at = c->text_bytes = 0;
    if (c->text_room <= TEXT_BYTES_KEPT)
        return;
    tierce__free(c->text);
    c->text = NULL;
    c->text_room = 0;
}

/* `count` bytes of the gathered ranges have been sent. */
static void advance(struct tierce__connection *c, size_t count)
{
    size_t n = c->text_bytes - c->text_at;
    n = n < count ? n : count;
    c->text_at += n;
    count -= n;
    if (c->text_at == c->text_bytes)
        let_text_go(c);
    if (c->value != NULL && c->text_bytes == 0) {
        uint64_t left = c->value_end - c->value_at;
        n = left < count ? (size_t)left : count;
        c->value_at += n;
        TIERCE_ASSERT(c->value_at <= c->value_end);
        count -= n;
        if (c->value_at == c->value_end) {
            tierce__object_release(c->value);
            c->value = NULL;
        }
    }
    if (count > 0) {
        TIERCE_ASSERT(count <= c->tail_bytes);
        TIERCE_ASSERT(c->text_bytes == 0 && c->value == NULL);
        c->tail += count;
        c->tail_bytes -= count;
    }
}

/* Sends ranges, as much of them as the socket takes. Returns how much, or 0: none now, or it is
 * closed. */
static size_t send_some(struct tierce__connection *c, struct iovec *iov, int parts)
{
    TIERCE_DASSERT(parts > 0 && parts <= 3 && !c->is_closing);
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)parts};
    ssize_t n;
    do
        n = sendmsg(c->source.fd, &message, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        c->is_writable = false;
    else if (n < 0)
        close_connection(c);
    if (n <= 0)
        return 0;
    c->progress_bytes += (size_t)n;
    tierce__node_count(c->node, TIERCE__NODE_sent_bytes, (uint64_t)n);
    return (size_t)n;
}

static void close_unverified(struct tierce__connection *c)
{
    close_noted(c, "a value failed its checksum while it was sent");
}

static void send_plain(struct tierce__connection *c)
{
    struct iovec iov[3];
    int parts = gather(c, iov);
    if (parts < 0)
        close_unverified(c);
    else if (parts == 0) /* an empty value without a tail */
        advance(c, 0);
    else
        advance(c, send_some(c, iov, parts));
}

/* One range, as ciphertext to be sent. */
static void encrypt_some(struct tierce__connection *c)
{
    struct iovec iov[3];
    int parts = gather(c, iov), rc = 0;
    size_t count = parts > 0 ? iov[0].iov_len : 0;
    count = count < TLS_BYTES_AT_ONCE ? count : TLS_BYTES_AT_ONCE;
    if (parts >= 0 && count > 0)
        rc = tierce__tls_write(c->tls, iov[0].iov_base, count);
    if (parts < 0)
        close_unverified(c);
    else if (rc < 0)
        close_noted(c, "TLS failed");
    else
        advance(c, count);
}

/* Takes TLS's output into a buffer to send. False: there is none. */
static bool take_cipher(struct tierce__connection *c)
{
    uint8_t *scratch = c->loop->scratch;
    size_t count = tierce__tls_take(c->tls, scratch, sizeof(c->loop->scratch));
    TIERCE_ASSERT(count <= sizeof(c->loop->scratch));
    if (count == 0)
        return false;
    c->cipher = tierce__alloc(count);
    if (c->cipher == NULL) {
        c->failure = -ENOMEM;
        return false;
    }
    memcpy(c->cipher, scratch, count);
    c->cipher_at = 0;
    c->cipher_bytes = count;
    return true;
}

static void send_cipher(struct tierce__connection *c)
{
    TIERCE_ASSERT(c->cipher_at < c->cipher_bytes);
    struct iovec iov = {c->cipher + c->cipher_at, c->cipher_bytes - c->cipher_at};
    c->cipher_at += send_some(c, &iov, 1);
    TIERCE_ASSERT(c->cipher_at <= c->cipher_bytes);
    if (c->is_closing || c->cipher_at < c->cipher_bytes)
        return;
    tierce__free(c->cipher);
    c->cipher = NULL;
}

/* Verifies the next piece while the client reads the previous one. */
static void look_ahead(struct tierce__connection *c)
{
    if (c->value != NULL && !tierce__object_verified(c->value, next_value_end(c)))
        close_unverified(c);
}

/* True: everything is sent. False: the socket takes no more, it is closed, or others have waited
 * long enough. */
static bool flush(struct tierce__connection *c)
{
    for (unsigned i = 0; !c->is_closing && c->failure == 0; i++) {
        if (c->tls != NULL && c->cipher == NULL)
            (void)take_cipher(c);
        if (!has_output(c)) {
            c->has_taken |= i > 0;
            return true;
        }
        if (i == SENDS_AT_ONCE)
            tierce__poll_again(c->loop, &c->source);
        if (!c->is_writable)
            look_ahead(c);
        if (!c->is_writable || i == SENDS_AT_ONCE)
            return false;
        if (c->cipher != NULL)
            send_cipher(c);
        else if (c->tls != NULL)
            encrypt_some(c);
        else
            send_plain(c);
    }
    return false;
}

/* ---- in -------------------------------------------------------------------------------------- */

static void keep(struct tierce__connection *c, const uint8_t *bytes, size_t count)
{
    TIERCE_ASSERT(count > 0 && c->kept == NULL);
    c->kept = tierce__alloc(count);
    if (c->kept == NULL) {
        c->failure = -ENOMEM;
        return;
    }
    memcpy(c->kept, bytes, count);
    c->kept_at = 0;
    c->kept_bytes = count;
}

static void feed(struct tierce__connection *c, const uint8_t *bytes, size_t count)
{
    size_t used = 0;
    c->goes_on = false;
    int rc = c->protocol->feed(c->session, bytes, count, &used);
    TIERCE_ASSERT(used <= count);
    if (rc < 0)
        c->is_ending = true;
    else if (used < count)
        keep(c, bytes + used, count - used);
}

static void feed_kept(struct tierce__connection *c)
{
    size_t used = 0;
    c->goes_on = false;
    int rc = c->protocol->feed(c->session, c->kept + c->kept_at, c->kept_bytes - c->kept_at, &used);
    c->kept_at += used;
    TIERCE_ASSERT(c->kept_at <= c->kept_bytes);
    if (rc < 0)
        c->is_ending = true;
    if (rc == 0 && c->kept_at < c->kept_bytes)
        return;
    tierce__free(c->kept);
    c->kept = NULL;
}

/* The end of the stream, an error, or nothing now. */
static bool read_nothing(struct tierce__connection *c, ssize_t n)
{
    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        c->is_readable = false;
    else
        close_connection(c);
    return false;
}

/* Reads decrypted bytes from TLS: into the value's memory, or into the loop's memory and on to the
 * session. */
static void read_plain(struct tierce__connection *c)
{
    size_t room_bytes = 0;
    uint8_t *room = c->protocol->room(c->session, &room_bytes), *plain = c->loop->plain;
    size_t capacity = room != NULL ? room_bytes : sizeof(c->loop->plain);
    ssize_t n = tierce__tls_read(c->tls, room != NULL ? room : plain,
                                 capacity < TIERCE__OBJECT_PIECE ? capacity : TIERCE__OBJECT_PIECE);
    TIERCE_ASSERT(n < 0 || (size_t)n <= capacity);
    if (n < 0) {
        if (room != NULL)
            c->protocol->filled(c->session, 0);
        tierce__node_count(c->node, TIERCE__NODE_protocol_errors, 1);
        note_end(c, "it violates the TLS protocol");
        c->is_ending = c->has_said_bye = true; /* once it has been sent the alert */
        return;
    }
    c->has_plain = n > 0;
    if (room != NULL)
        c->protocol->filled(c->session, (size_t)n);
    if (n > 0)
        feed(c, plain, room != NULL ? 0 : (size_t)n);
}

static bool read_cipher(struct tierce__connection *c)
{
    ssize_t n = read(c->source.fd, c->loop->scratch, sizeof(c->loop->scratch));
    if (n <= 0)
        return read_nothing(c, n);
    c->progress_bytes += (size_t)n;
    tierce__node_count(c->node, TIERCE__NODE_received_bytes, (uint64_t)n);
    c->failure = tierce__tls_feed(c->tls, c->loop->scratch, (size_t)n);
    c->has_plain = true;
    return true;
}

/* Reads into the value's memory up to its end, and further bytes into the loop's memory. A piece at
 * a time, so that its sum is taken while it is in the processor's cache. */
static bool read_some(struct tierce__connection *c)
{
    size_t room_bytes = 0, wanted;
    void *room = c->protocol->room(c->session, &room_bytes);
    struct iovec iov[2];
    int parts = 0;
    if (room != NULL) {
        room_bytes = room_bytes < TIERCE__OBJECT_PIECE ? room_bytes : TIERCE__OBJECT_PIECE;
        iov[parts++] = (struct iovec){room, room_bytes};
    } else {
        room_bytes = 0;
    }
    wanted = c->protocol->wanted(c->session);
    wanted = wanted < sizeof(c->loop->scratch) ? wanted : sizeof(c->loop->scratch);
    TIERCE_DASSERT(room_bytes + wanted > 0);
    iov[parts++] = (struct iovec){c->loop->scratch, wanted};
    ssize_t n = readv(c->source.fd, iov, parts);
    if (n <= 0) {
        if (room != NULL)
            c->protocol->filled(c->session, 0);
        return read_nothing(c, n);
    }
    if (!c->has_hung_up && (size_t)n < room_bytes + wanted)
        c->is_readable = false; /* the socket is empty; epoll reports new bytes */
    size_t count = (size_t)n, direct = count < room_bytes ? count : room_bytes;
    c->progress_bytes += count;
    tierce__node_count(c->node, TIERCE__NODE_received_bytes, count);
    if (room != NULL)
        c->protocol->filled(c->session, direct);
    feed(c, c->loop->scratch, count - direct);
    return true;
}

/* One thing that there is to do. False: nothing until something happens. */
static bool step(struct tierce__connection *c)
{
    TIERCE_DASSERT(!c->is_busy && !c->is_closing && !c->is_ending);
    if (c->kept != NULL)
        feed_kept(c);
    else if (c->goes_on)
        feed(c, NULL, 0);
    else if (c->has_plain)
        read_plain(c);
    else if (c->is_readable)
        return c->tls != NULL ? read_cipher(c) : read_some(c);
    else
        return false;
    return true;
}

/* ---- patience -------------------------------------------------------------------------------- */

static enum tierce__patience kind_of(const struct tierce__connection *c)
{
    if (has_output(c))
        return TIERCE__PATIENCE_ANSWER;
    if (c->protocol->is_within(c->session))
        return TIERCE__PATIENCE_REQUEST;
    if (!c->is_open || (c->tls != NULL && !tierce__tls_is_ready(c->tls)))
        return TIERCE__PATIENCE_OPENING;
    return c->node->limits.idle_ms > 0 ? TIERCE__PATIENCE_IDLE : TIERCE__PATIENCE_NONE;
}

static void out_of_patience(struct tierce__deadline *deadline)
{
    struct tierce__connection *c =
        TIERCE__CONTAINER_OF(deadline, struct tierce__connection, deadline);
    static const char *const whys[] = {
        [TIERCE__PATIENCE_NONE] = "",
        [TIERCE__PATIENCE_OPENING] = "it did not authenticate in time",
        [TIERCE__PATIENCE_IDLE] = "idle",
        [TIERCE__PATIENCE_REQUEST] = "its request did not arrive in time",
        [TIERCE__PATIENCE_ANSWER] = "it did not read its answer in time",
    };
    enum tierce__patience kind = c->patience;
    TIERCE_ASSERT(kind != TIERCE__PATIENCE_NONE && !c->is_closing);
    c->patience = TIERCE__PATIENCE_NONE;
    if (c->is_busy) /* it waits for us; set again when it goes on */
        return;
    tierce__node_count(c->node, TIERCE__NODE_connections_late, 1);
    close_noted(c, whys[kind]);
}

/* The deadline is set again when the awaited event changes, for each transferred MiB, and when the
 * client has read all its answers: a pipeline that always ends in half a request is not one late
 * request. */
static void be_patient(struct tierce__connection *c)
{
    TIERCE_ASSERT(!c->is_closing);
    enum tierce__patience kind = kind_of(c);
    bool moved = c->progress_bytes >= PROGRESS_BYTES || (c->has_taken && c->is_open) ||
                 (kind == TIERCE__PATIENCE_IDLE && c->progress_bytes > 0);
    c->has_taken = false;
    if (kind == c->patience && !(moved && kind != TIERCE__PATIENCE_OPENING))
        return;
    if (c->patience == TIERCE__PATIENCE_OPENING && kind == TIERCE__PATIENCE_REQUEST && !c->is_open)
        return; /* half a word of who it is buys no time */
    c->patience = kind;
    c->progress_bytes = 0;
    if (kind == TIERCE__PATIENCE_NONE) {
        tierce__deadline_unset(&c->loop->base.deadlines, &c->deadline);
        return;
    }
    uint32_t ms =
        kind == TIERCE__PATIENCE_IDLE ? c->node->limits.idle_ms : c->node->limits.request_ms;
    if (tierce__deadline_set(&c->loop->base.deadlines, &c->deadline, tierce__deadline_in_ms(ms)) !=
        0)
        close_connection(c);
}

/* ---- low water ------------------------------------------------------------------------------- */

/* While much of a value is missing, epoll reports it only when a piece has arrived, or the end of
 * the stream. */
static void set_low_water(struct tierce__connection *c)
{
    size_t room_bytes = 0;
    if (c->tls != NULL || c->is_readable)
        return;
    bool has_room = c->protocol->room(c->session, &room_bytes) != NULL;
    int bytes = 1;
    if (has_room)
        c->protocol->filled(c->session, 0);
    if (has_room && room_bytes >= LOW_WATER_BYTES_MIN)
        bytes = (int)(room_bytes < LOW_WATER_BYTES ? room_bytes : LOW_WATER_BYTES);
    TIERCE_ASSERT(bytes > 0 && bytes <= (int)LOW_WATER_BYTES);
    if (bytes == c->low_water)
        return;
    c->low_water = bytes;
    (void)setsockopt(c->source.fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes));
}

/* ---- turning --------------------------------------------------------------------------------- */

/* A little text may wait until the other connections of the round have had their turn. Then all
 * answers are sent together, and their reader is woken once: 1.3x on pipelined small commands (2
 * cores of a virtual machine, 2026-11). */
static bool may_hold(const struct tierce__connection *c)
{
    return c->tls == NULL && c->value == NULL && c->tail_bytes == 0 &&
           c->text_bytes - c->text_at < TEXT_BYTES_KEPT;
}

static void run(struct tierce__connection *c, bool holds)
{
    unsigned round;
    for (round = 0; round < ROUNDS_AT_ONCE && !c->is_closing; round++) {
        bool is_held = holds && !c->is_ending && may_hold(c);
        if (c->failure < 0 || (!is_held && !flush(c)) || c->is_busy) {
            break;
        } else if (c->is_ending && c->tls != NULL && !c->has_said_bye) {
            tierce__tls_end(c->tls);
            c->has_said_bye = true;
        } else if (c->is_ending) {
            if (c->tls != NULL)
                drop_arrived(c);
            close_connection(c);
        } else if (!step(c)) {
            break;
        }
    }
    if (c->failure < 0 && !c->is_closing)
        close_noted(c, "no memory");
    if (c->is_closing)
        return;
    if (round == ROUNDS_AT_ONCE || (holds && c->is_writable && has_output(c)))
        tierce__poll_again(c->loop, &c->source);
    set_low_water(c);
    be_patient(c);
}

static void on_ready(struct tierce__poll_source *source, uint32_t events)
{
    struct tierce__connection *c = TIERCE__CONTAINER_OF(source, struct tierce__connection, source);
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
        c->is_readable = true;
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
        c->has_hung_up = true;
    if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0)
        c->is_writable = true;
    run(c, events != 0);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The operation in progress has ended. */
static void on_answer(struct tierce__task *task)
{
    struct tierce__connection *c = TIERCE__CONTAINER_OF(task, struct tierce__connection, task);
    TIERCE_ASSERT(c->is_busy);
    c->is_busy = false;
    if (c->is_closing) {
        if (c->find.object != NULL)
            tierce__object_release(c->find.object);
        c->find.object = NULL;
        bury(c);
        return;
    }
    c->protocol->answered(c->session);
    run(c, false);
}

static void on_found(struct tierce__object_find *find)
{
    struct tierce__connection *c = find->arg;
    c->task.run = on_answer;
    tierce__loop_post(&c->loop->base, &c->task);
}

int tierce__connection_find(struct tierce__connection *c, struct tierce__objects *space,
                            const void *name, size_t name_bytes)
{
    TIERCE_ASSERT(!c->is_busy);
    /* One by one, because most of a find is scratch. */
    c->find.name = name;
    c->find.name_bytes = name_bytes;
    c->find.deadline_ns =
        c->node->may_wait ? tierce__deadline_in_ms(c->node->find_ms) : TIERCE__DEADLINE_NEVER;
    c->find.done = on_found;
    c->find.arg = c;
    int rc = tierce__object_find(space, &c->find);
    c->is_busy = rc == -EINPROGRESS;
    return rc;
}

static void run_work(struct tierce__task *task)
{
    struct tierce__connection *c = TIERCE__CONTAINER_OF(task, struct tierce__connection, work_task);
    c->work(c->session);
    c->task.run = on_answer;
    tierce__loop_post(&c->loop->base, &c->task);
}

int tierce__connection_work(struct tierce__connection *c, void (*work)(void *session))
{
    TIERCE_ASSERT(!c->is_busy);
    if (!c->node->may_wait) {
        work(c->session);
        return 0;
    }
    c->find.object = NULL;
    c->work = work;
    c->work_task.run = run_work;
    if (!tierce__workers_submit(c->node->workers, &c->work_task))
        return -EBUSY;
    c->is_busy = true;
    return -EINPROGRESS;
}

static void on_settled(struct tierce__object_settle *settle)
{
    struct tierce__connection *c = settle->arg;
    c->task.run = on_answer;
    tierce__loop_post(&c->loop->base, &c->task);
}

void tierce__connection_settle(struct tierce__connection *c, struct tierce__objects *space)
{
    TIERCE_ASSERT(!c->is_busy);
    c->find.object = NULL;
    c->settle.done = on_settled;
    c->settle.arg = c;
    c->is_busy = true;
    tierce__objects_settle_begin(space, &c->settle);
}

/* ---- the beginning --------------------------------------------------------------------------- */

int tierce__connection_open(const struct tierce__connection_opts *opts)
{
    struct tierce__connection *c = tierce__calloc(1, sizeof(*c) + opts->protocol->session_bytes);
    if (c == NULL) {
        close(opts->fd);
        return -ENOMEM;
    }
    c->source = (struct tierce__poll_source){.fd = opts->fd, .ready = on_ready};
    c->loop = opts->loop;
    c->node = opts->node;
    c->protocol = opts->protocol;
    c->gone = opts->gone;
    c->id = opts->id;
    c->low_water = 1;
    c->deadline.expired = out_of_patience;
    snprintf(c->peer, sizeof(c->peer), "%s", opts->peer);
    c->address = opts->address;
    tierce__listen_tune(opts->fd);
    int rc = opts->tls != NULL ? tierce__tls_session_create(&c->tls, opts->tls, NULL) : 0;
    if (rc == 0)
        rc = c->protocol->open(c->session, c);
    if (rc == 0 && (rc = tierce__poll_watch(c->loop, &c->source)) < 0)
        c->protocol->close(c->session);
    if (rc < 0) {
        tierce__tls_session_destroy(c->tls);
        close(opts->fd);
        tierce__free(c);
        return rc;
    }
    tierce__list_push_back(&c->loop->members, &c->member);
    be_patient(c);
    return 0;
}

void tierce__connections_end(struct tierce__poll_loop *loop, bool at_once)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &loop->members) {
        struct tierce__connection *c = TIERCE__CONTAINER_OF(it, struct tierce__connection, member);
        TIERCE_ASSERT(c->loop == loop);
        bool is_within = !c->is_closing && (c->is_busy || has_output(c) || c->kept != NULL ||
                                            c->goes_on || c->protocol->is_within(c->session));
        if (at_once || !is_within)
            close_connection(c);
    }
}
