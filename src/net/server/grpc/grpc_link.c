/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/server/grpc/grpc_client_private.h"
#include "net/stream.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The socket of a client's connection, and the bytes between it and the session. */

/* ---- connecting ------------------------------------------------------------------------------ */

static int shake_hands(struct tierce__grpc_link *link, uint64_t deadline_ns)
{
    while (!tierce__tls_is_ready(link->tls)) {
        /* Data after the handshake stays in the session; it is not read here. */
        if (tierce__tls_read(link->tls, link->client->plain, 0) < 0)
            return TIERCE_E_REFUSED;
        tierce__grpc_link_write(link);
        if (link->has_failed)
            return TIERCE_E_REFUSED;
        if (tierce__tls_is_ready(link->tls))
            return 0;
        int rc = tierce__stream_wait(link->fd, POLLIN, NULL, deadline_ns);
        if (rc != 0)
            return rc;
        ssize_t n = recv(link->fd, link->client->in, sizeof(link->client->in), 0);
        if (n <= 0)
            return TIERCE_E_REFUSED;
        if (tierce__tls_feed(link->tls, link->client->in, (size_t)n) != 0)
            return -ENOMEM;
    }
    return 0;
}

int tierce__grpc_link_open(struct tierce__grpc_client *client, char why[256])
{
    uint64_t deadline_ns = tierce__deadline_in_ms(client->connect_timeout_ms);
    struct tierce__grpc_link *link = tierce__calloc(1, sizeof(*link));
    snprintf(why, 256, "no memory");
    if (link == NULL)
        return -ENOMEM;
    TIERCE_DASSERT(client->connect_timeout_ms > 0);
    link->fd = -1;
    link->client = client;
    tierce__list_init(&link->calls);
    tierce__list_push_back(&client->links, &link->node);
    int rc = tierce__stream_connect(&link->fd, client->host, client->port, deadline_ns, why, 256);
    if (rc == 0 && client->tls != NULL) {
        rc = tierce__tls_session_create(&link->tls, client->tls, client->server_name);
        if (rc == 0)
            rc = shake_hands(link, deadline_ns);
    }
    if (rc == 0)
        rc = tierce__grpc_link_session(link);
    if (rc != 0) {
        snprintf(why, 256, "%.150s: %s", client->authority, tierce_strerror(rc));
        tierce__grpc_link_close(link, false);
    }
    return rc;
}

void tierce__grpc_link_close(struct tierce__grpc_link *link, bool tell)
{
    tierce__list_remove(&link->node);
    nghttp2_session_del(link->session);
    link->session = NULL;
    tierce__grpc_link_end_calls(link, tell);
    TIERCE_ASSERT(link->in_flight == 0);
    tierce__tls_session_destroy(link->tls);
    if (link->fd >= 0)
        close(link->fd);
    tierce__free(link);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Fills an empty buffer. */
static void refill(struct tierce__grpc_link *link)
{
    TIERCE_ASSERT(link->out_begin == link->out_end);
    link->out_begin = link->out_end = 0;
    if (link->tls != NULL) {
        link->out_end = tierce__tls_take(link->tls, link->out, sizeof(link->out));
        if (link->out_end > 0 || link->session == NULL)
            return;
    }
    uint8_t *to = link->tls != NULL ? link->client->plain : link->out;
    size_t count = 0;
    /* The session gives pieces of at most one frame; a whole one fits into the rest. */
    while (TIERCE__CLIENT_BUFFER - count >= (20u << 10)) {
        const uint8_t *bytes;
        ssize_t n = nghttp2_session_mem_send(link->session, &bytes);
        if (n < 0 || (size_t)n > TIERCE__CLIENT_BUFFER - count)
            link->has_failed = true;
        if (n <= 0 || link->has_failed)
            break;
        memcpy(to + count, bytes, (size_t)n);
        count += (size_t)n;
    }
    TIERCE_ASSERT(count <= TIERCE__CLIENT_BUFFER);
    if (link->tls == NULL) {
        link->out_end = count;
        return;
    }
    if (count > 0 && tierce__tls_write(link->tls, to, count) != 0)
        link->has_failed = true;
    link->out_end = tierce__tls_take(link->tls, link->out, sizeof(link->out));
}

void tierce__grpc_link_write(struct tierce__grpc_link *link)
{
    while (!link->has_failed) {
        if (link->out_begin == link->out_end)
            refill(link);
        if (link->out_begin == link->out_end)
            return;
        ssize_t n = send(link->fd, link->out + link->out_begin, link->out_end - link->out_begin,
                         MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0)
            link->has_failed = true;
        else
            link->out_begin += (size_t)n;
        TIERCE_ASSERT(link->out_begin <= link->out_end);
    }
}

bool tierce__grpc_link_wants_write(const struct tierce__grpc_link *link)
{
    TIERCE_ASSERT(link->out_begin <= link->out_end);
    return link->out_begin < link->out_end;
}

static void feed(struct tierce__grpc_link *link, const uint8_t *bytes, size_t count)
{
    if (nghttp2_session_mem_recv(link->session, bytes, count) < 0)
        link->has_failed = true;
    if (nghttp2_session_want_read(link->session) == 0 &&
        nghttp2_session_want_write(link->session) == 0)
        link->is_leaving = true;
}

void tierce__grpc_link_read(struct tierce__grpc_link *link)
{
    struct tierce__grpc_client *client = link->client;
    ssize_t n = recv(link->fd, client->in, sizeof(client->in), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        link->has_failed = true;
        return;
    }
    if (link->tls == NULL) {
        feed(link, client->in, (size_t)n);
        return;
    }
    if (tierce__tls_feed(link->tls, client->in, (size_t)n) != 0)
        link->has_failed = true;
    while (!link->has_failed) {
        n = tierce__tls_read(link->tls, client->plain, sizeof(client->plain));
        if (n < 0)
            link->has_failed = true;
        if (n <= 0)
            break;
        feed(link, client->plain, (size_t)n);
    }
}
