/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/grpc/grpc_client_private.h"
#include "net/stream.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The socket of a client's connection, and the bytes between it and the session. */

/* ---- connecting ------------------------------------------------------------------------------ */

static void fail(struct tierce__grpc_link *link, int error, const char *text)
{
    TIERCE_DASSERT(!link->has_failed && error < 0);
    snprintf(link->why, sizeof(link->why), "%.100s: %.90s", link->client->authority, text);
    link->error = error;
    link->has_failed = true;
}

static void deadline_expired(struct tierce__deadline *deadline)
{
    struct tierce__grpc_link *link =
        TIERCE__CONTAINER_OF(deadline, struct tierce__grpc_link, deadline);
    if (link->state == TIERCE__GRPC_LINK_READY)
        link->is_leaving = true; /* its calls have deadlines of their own */
    else if (!link->has_failed)
        fail(link, TIERCE_E_DEADLINE,
             link->state == TIERCE__GRPC_LINK_RESOLVING ? "its name was not resolved in time"
             : link->state == TIERCE__GRPC_LINK_SHAKING ? "no TLS handshake in time"
                                                        : "no connection in time");
}

void tierce__grpc_link_doubt(struct tierce__grpc_link *link)
{
    TIERCE_DASSERT(link->state == TIERCE__GRPC_LINK_READY);
    if (link->is_leaving || link->has_failed || link->deadline.place != 0)
        return;
    /* Without memory for a question there is no answer. */
    link->is_leaving =
        nghttp2_submit_ping(link->session, NGHTTP2_FLAG_NONE, NULL) != 0 ||
        tierce__deadline_set(&link->client->deadlines, &link->deadline,
                             tierce__deadline_in_ms(link->client->connect_timeout_ms)) != 0;
}

static void is_ready(struct tierce__grpc_link *link)
{
    link->state = TIERCE__GRPC_LINK_READY;
    tierce__deadline_unset(&link->client->deadlines, &link->deadline);
    tierce__resolve_end(link->resolve);
    link->resolve = NULL;
}

static void fail_in_tls(struct tierce__grpc_link *link)
{
    char text[100];
    snprintf(text, sizeof(text), "TLS: %.90s", tierce__tls_problem(link->tls));
    fail(link, TIERCE_E_REFUSED, text);
}

/* The TLS handshake, as far as the received bytes go. Data behind it stays in the TLS session. */
static void shake_hands(struct tierce__grpc_link *link)
{
    TIERCE_DASSERT(link->state == TIERCE__GRPC_LINK_SHAKING);
    if (tierce__tls_read(link->tls, link->client->plain, 0) < 0)
        fail_in_tls(link);
    else if (tierce__tls_is_ready(link->tls))
        is_ready(link);
    else
        tierce__grpc_link_write(link); /* our part of it */
}

static void is_connected(struct tierce__grpc_link *link)
{
    struct tierce__grpc_client *client = link->client;
    if (client->tls == NULL) {
        is_ready(link);
        return;
    }
    link->state = TIERCE__GRPC_LINK_SHAKING;
    int rc = tierce__tls_session_create(&link->tls, client->tls, client->server_name);
    if (rc != 0)
        fail(link, rc, tierce_strerror(rc));
    else
        shake_hands(link);
}

/* Tries the addresses that are left, in their order. */
static void connect_next(struct tierce__grpc_link *link, int rc)
{
    TIERCE_DASSERT(link->fd < 0);
    while (link->next != NULL && rc != 0 && rc != -EINPROGRESS) {
        const struct addrinfo *address = link->next;
        link->next = address->ai_next;
        rc = tierce__stream_connect_begin(&link->fd, address->ai_addr, address->ai_addrlen);
    }
    link->state = TIERCE__GRPC_LINK_CONNECTING;
    if (rc == 0)
        is_connected(link);
    else if (rc != -EINPROGRESS)
        fail(link, rc, tierce_strerror(rc));
}

static void look_up(struct tierce__grpc_link *link)
{
    char why[128];
    int rc = tierce__resolve_poll(link->resolve, &link->next, why, sizeof(why));
    if (rc == 0)
        connect_next(link, -EHOSTUNREACH);
    else if (rc != -EINPROGRESS)
        fail(link, rc, why);
}

void tierce__grpc_link_advance(struct tierce__grpc_link *link, short events)
{
    if (link->has_failed)
        return;
    if (link->state == TIERCE__GRPC_LINK_RESOLVING) {
        look_up(link);
    } else if (link->state == TIERCE__GRPC_LINK_CONNECTING && events != 0) {
        int rc = tierce__stream_connect_end(link->fd);
        if (rc == 0) {
            is_connected(link);
            return;
        }
        close(link->fd);
        link->fd = -1;
        connect_next(link, rc);
    }
}

int tierce__grpc_link_open(struct tierce__grpc_client *client)
{
    struct tierce__grpc_link *link = tierce__calloc(1, sizeof(*link));
    if (link == NULL)
        return -ENOMEM;
    TIERCE_DASSERT(client->connect_timeout_ms > 0);
    link->fd = -1;
    link->client = client;
    link->deadline.expired = deadline_expired;
    tierce__list_init(&link->calls);
    tierce__list_push_back(&client->links, &link->node);
    int rc = tierce__grpc_link_session(link);
    if (rc == 0)
        rc = tierce__resolve_begin(&link->resolve, client->host, client->port);
    if (rc == 0)
        rc = tierce__deadline_set(&client->deadlines, &link->deadline,
                                  tierce__deadline_in_ms(client->connect_timeout_ms));
    if (rc != 0) {
        tierce__grpc_link_close(link, false);
        return rc;
    }
    look_up(link);
    return 0;
}

void tierce__grpc_link_close(struct tierce__grpc_link *link, bool tell)
{
    tierce__list_remove(&link->node);
    nghttp2_session_del(link->session);
    link->session = NULL;
    tierce__deadline_unset(&link->client->deadlines, &link->deadline);
    tierce__grpc_link_end_calls(link, tell);
    TIERCE_ASSERT(link->in_flight == 0);
    tierce__tls_session_destroy(link->tls);
    tierce__resolve_end(link->resolve);
    if (link->fd >= 0)
        close(link->fd);
    tierce__free(link);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* The peer has gone: `rc` of what was tried, 0 for the end of the stream. */
static void lose(struct tierce__grpc_link *link, int rc)
{
    char text[128];
    bool was_ready = link->state == TIERCE__GRPC_LINK_READY;
    /* Not HTTP/2, whose servers begin: they have TLS, for example. */
    if (was_ready && link->tls == NULL && link->received == 0) {
        fail(link, -ECONNRESET, "the server closed the connection and sent nothing");
        return;
    }
    snprintf(text, sizeof(text), "the connection is lost%s: %.60s",
             was_ready ? "" : " during the TLS handshake",
             rc < 0 ? tierce_strerror(rc) : "the server closed it");
    fail(link, was_ready ? -ECONNRESET : TIERCE_E_REFUSED, text);
}

static void fail_in_session(struct tierce__grpc_link *link, ssize_t code)
{
    fail(link, code == NGHTTP2_ERR_NOMEM ? -ENOMEM : -EPROTO, nghttp2_strerror((int)code));
}

/* After GOAWAY, or when the peer has violated the protocol, the session ends. */
static void check_end(struct tierce__grpc_link *link)
{
    if (link->has_failed || link->state != TIERCE__GRPC_LINK_READY ||
        nghttp2_session_want_read(link->session) != 0 ||
        nghttp2_session_want_write(link->session) != 0)
        return;
    link->is_leaving = true;
    if (link->in_flight > 0)
        fail(link, -EPROTO, "the server does not speak HTTP/2, or has violated it");
}

/* Fills an empty buffer. */
static void refill(struct tierce__grpc_link *link)
{
    TIERCE_ASSERT(link->out_begin == link->out_end);
    link->out_begin = link->out_end = 0;
    if (link->tls != NULL) {
        link->out_end = tierce__tls_take(link->tls, link->out, sizeof(link->out));
        if (link->out_end > 0 || link->state != TIERCE__GRPC_LINK_READY)
            return;
    }
    uint8_t *to = link->tls != NULL ? link->client->plain : link->out;
    size_t count = 0;
    /* The session gives pieces of at most one frame; a whole one fits into the rest. */
    while (TIERCE__CLIENT_BUFFER - count >= (20u << 10)) {
        const uint8_t *bytes;
        ssize_t n = nghttp2_session_mem_send(link->session, &bytes);
        if (n < 0 || (size_t)n > TIERCE__CLIENT_BUFFER - count) {
            fail_in_session(link, n < 0 ? n : NGHTTP2_ERR_FRAME_SIZE_ERROR);
            return;
        }
        if (n == 0)
            break;
        memcpy(to + count, bytes, (size_t)n);
        count += (size_t)n;
    }
    TIERCE_ASSERT(count <= TIERCE__CLIENT_BUFFER);
    if (link->tls == NULL) {
        link->out_end = count;
        return;
    }
    if (count > 0 && tierce__tls_write(link->tls, to, count) != 0) {
        fail_in_tls(link);
        return;
    }
    link->out_end = tierce__tls_take(link->tls, link->out, sizeof(link->out));
}

void tierce__grpc_link_write(struct tierce__grpc_link *link)
{
    while (!link->has_failed && link->state >= TIERCE__GRPC_LINK_SHAKING) {
        if (link->out_begin == link->out_end)
            refill(link);
        if (link->has_failed || link->out_begin == link->out_end)
            break;
        ssize_t n = send(link->fd, link->out + link->out_begin, link->out_end - link->out_begin,
                         MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0)
            lose(link, -errno);
        else
            link->out_begin += (size_t)n;
        TIERCE_ASSERT(link->out_begin <= link->out_end);
    }
    check_end(link);
}

bool tierce__grpc_link_wants_write(const struct tierce__grpc_link *link)
{
    TIERCE_ASSERT(link->out_begin <= link->out_end);
    return link->out_begin < link->out_end || (link->state == TIERCE__GRPC_LINK_READY &&
                                               nghttp2_session_want_write(link->session) != 0);
}

static void feed(struct tierce__grpc_link *link, const uint8_t *bytes, size_t count)
{
    ssize_t n = nghttp2_session_mem_recv(link->session, bytes, count);
    if (n < 0)
        fail_in_session(link, n);
    check_end(link);
}

static void feed_tls(struct tierce__grpc_link *link, size_t count)
{
    struct tierce__grpc_client *client = link->client;
    if (tierce__tls_feed(link->tls, client->in, count) != 0)
        fail(link, -ENOMEM, tierce_strerror(-ENOMEM));
    else if (link->state == TIERCE__GRPC_LINK_SHAKING)
        shake_hands(link);
    while (!link->has_failed && link->state == TIERCE__GRPC_LINK_READY) {
        ssize_t n = tierce__tls_read(link->tls, client->plain, sizeof(client->plain));
        if (n < 0)
            fail_in_tls(link);
        if (n <= 0)
            break;
        feed(link, client->plain, (size_t)n);
    }
}

/* The first bytes of a server that took our first bytes for a bad TLS handshake. */
static bool is_tls_alert(const uint8_t *bytes, size_t count)
{
    return count >= 2 && bytes[0] == 0x15 && bytes[1] == 0x03;
}

void tierce__grpc_link_read(struct tierce__grpc_link *link)
{
    struct tierce__grpc_client *client = link->client;
    ssize_t n = recv(link->fd, client->in, sizeof(client->in), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        lose(link, n < 0 ? -errno : 0);
        return;
    }
    if (link->tls == NULL && link->received == 0 && is_tls_alert(client->in, (size_t)n)) {
        fail(link, -EPROTO, "the server requires TLS");
        return;
    }
    link->received++;
    if (link->state == TIERCE__GRPC_LINK_READY)
        tierce__deadline_unset(&client->deadlines, &link->deadline);
    if (link->tls != NULL)
        feed_tls(link, (size_t)n);
    else
        feed(link, client->in, (size_t)n);
}
