/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/memcached/memcached_client.h"
#include "base/assert.h"
#include "base/config/config_parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ITEM_BYTES     (1u << 20) /* memcached's own, where the server does not tell */
#define ITEM_BYTES_MIN 1024u      /* memcached's least */
#define ITEM_BYTES_MAX (1u << 30) /* memcached's most */
#define STATS_MAX      1000u

void tierce__memcached_init(struct tierce__memcached *client,
                            const struct tierce__peer_place *place)
{
    tierce__peer_init(&client->peer, place);
    client->awaited = 0;
    client->in_at = client->in_end = client->out_used = 0;
}

/* ---- commands -------------------------------------------------------------------------------- */

void tierce__memcached_add(struct tierce__memcached *client, const char *format, ...)
{
    TIERCE_DASSERT(tierce__peer_is_connected(&client->peer));
    va_list arguments;
    size_t room = sizeof(client->out) - client->out_used;
    va_start(arguments, format);
    int bytes = vsnprintf(client->out + client->out_used, room, format, arguments);
    va_end(arguments);
    TIERCE_ASSERT(bytes > 0 && (size_t)bytes + 2 < room); /* see TIERCE__MEMCACHED_AT_ONCE */
    client->out_used += (size_t)bytes;
    client->out[client->out_used++] = '\r';
    client->out[client->out_used++] = '\n';
    client->awaited++;
    TIERCE_ASSERT(client->awaited <= TIERCE__MEMCACHED_AT_ONCE);
}

int tierce__memcached_send(struct tierce__memcached *client, const uint8_t *bytes, size_t count,
                           uint64_t deadline_ns)
{
    TIERCE_DASSERT(client->awaited > 0);
    static char end[] = "\r\n";
    struct iovec pieces[3] = {{.iov_base = client->out, .iov_len = client->out_used},
                              {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count},
                              {.iov_base = end, .iov_len = 2}};
    TIERCE_DASSERT(client->out_used <= sizeof(client->out));
    client->out_used = 0;
    return tierce__peer_send(&client->peer, pieces, bytes != NULL ? 3 : 1, deadline_ns);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* More bytes behind those that are there. */
static int fill(struct tierce__memcached *client, uint64_t deadline_ns)
{
    size_t got = 0;
    TIERCE_DASSERT(client->in_at <= client->in_end && client->in_end <= sizeof(client->in));
    if (client->in_at > 0) {
        memmove(client->in, client->in + client->in_at, client->in_end - client->in_at);
        client->in_end -= client->in_at;
        client->in_at = 0;
    }
    if (client->in_end == sizeof(client->in))
        return tierce__peer_misunderstood(&client->peer, "a line without an end");
    struct iovec piece = {.iov_base = client->in + client->in_end,
                          .iov_len = sizeof(client->in) - client->in_end};
    int rc = tierce__peer_receive(&client->peer, &piece, 1, 1, &got, deadline_ns);
    client->in_end += got;
    TIERCE_DASSERT(client->in_end <= sizeof(client->in));
    return rc;
}

int tierce__memcached_read(struct tierce__memcached *client, struct tierce__memcached_line *line,
                           uint64_t deadline_ns)
{
    TIERCE_DASSERT(client->awaited > 0);
    for (;;) {
        const char *text = client->in + client->in_at;
        const char *end = memchr(text, '\n', client->in_end - client->in_at);
        if (end != NULL) {
            client->in_at += (size_t)(end - text) + 1;
            if (end > text && end[-1] == '\r' &&
                tierce__memcached_parse(line, text, (size_t)(end - text) - 1) == 0)
                return 0;
            return tierce__peer_misunderstood(&client->peer, "not an answer of memcached");
        }
        int rc = fill(client, deadline_ns);
        if (rc != 0)
            return rc;
    }
}

/* Bytes that are there already. */
static uint64_t take(struct tierce__memcached *client, uint8_t *memory, uint64_t count)
{
    size_t there = client->in_end - client->in_at;
    TIERCE_DASSERT(client->in_at <= client->in_end);
    size_t n = count < there ? (size_t)count : there;
    if (memory != NULL && n > 0)
        memcpy(memory, client->in + client->in_at, n);
    client->in_at += n;
    return n;
}

static int throw_away(struct tierce__memcached *client, uint64_t count, uint64_t deadline_ns)
{
    int rc = 0;
    while ((count -= take(client, NULL, count)) > 0 && rc == 0)
        rc = fill(client, deadline_ns);
    return rc;
}

/* Bytes after the value go to the line buffer, so that one call reads both. */
static int read_bytes(struct tierce__memcached *client, uint8_t *memory, uint64_t count,
                      uint64_t deadline_ns)
{
    uint64_t taken = take(client, memory, count);
    size_t left = (size_t)(count - taken), got = 0;
    if (left == 0)
        return 0;
    TIERCE_ASSERT(client->in_at == client->in_end);
    client->in_at = client->in_end = 0;
    struct iovec pieces[2] = {{.iov_base = memory + taken, .iov_len = left},
                              {.iov_base = client->in, .iov_len = sizeof(client->in)}};
    int rc = tierce__peer_receive(&client->peer, pieces, 2, left, &got, deadline_ns);
    TIERCE_DASSERT(rc != 0 || got >= left);
    if (rc == 0)
        client->in_end = got - left;
    return rc;
}

int tierce__memcached_read_value(struct tierce__memcached *client,
                                 const struct tierce__memcached_line *line, uint8_t *memory,
                                 uint64_t skipped, uint64_t count, uint64_t deadline_ns)
{
    TIERCE_DASSERT(line->kind == TIERCE__MEMCACHED_VALUE);
    uint8_t end[2];
    uint64_t bytes = line->bytes;
    TIERCE_ASSERT(skipped <= bytes && count <= bytes - skipped);
    int rc = throw_away(client, skipped, deadline_ns);
    if (rc == 0)
        rc = read_bytes(client, memory, count, deadline_ns);
    if (rc == 0)
        rc = throw_away(client, bytes - skipped - count, deadline_ns);
    if (rc == 0)
        rc = read_bytes(client, end, sizeof(end), deadline_ns);
    if (rc == 0 && memcmp(end, "\r\n", 2) != 0)
        rc = tierce__peer_misunderstood(&client->peer, "a value with an unexpected length");
    return rc;
}

void tierce__memcached_answered(struct tierce__memcached *client)
{
    TIERCE_ASSERT(client->awaited > 0);
    client->awaited--;
}

int tierce__memcached_refused(struct tierce__memcached *client,
                              const struct tierce__memcached_line *line)
{
    char text[128], shown[128];
    bool is_error = line->kind == TIERCE__MEMCACHED_ERROR || line->kind == TIERCE__MEMCACHED_FULL ||
                    line->kind == TIERCE__MEMCACHED_TOO_LARGE;
    if (!is_error)
        return tierce__peer_misunderstood(&client->peer, "an answer to another request");
    size_t bytes = line->name_bytes < sizeof(text) - 1 ? line->name_bytes : sizeof(text) - 1;
    memcpy(text, line->name, bytes);
    text[bytes] = '\0';
    tierce__text_for_message(shown, sizeof(shown), text);
    (void)tierce__peer_misunderstood(&client->peer, shown);
    return strncmp(text, "SERVER_ERROR", 12) == 0 ? TIERCE_E_DOWN : TIERCE_E_FORMAT;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void take_stat(struct tierce__memcached *client, const struct tierce__memcached_line *line)
{
    TIERCE_DASSERT(client->item_bytes >= ITEM_BYTES_MIN && client->item_bytes <= ITEM_BYTES_MAX);
    static const char name[] = "item_size_max";
    char text[24];
    uint64_t value;
    if (line->name_bytes != sizeof(name) - 1 || memcmp(line->name, name, sizeof(name) - 1) != 0 ||
        line->text_bytes >= sizeof(text))
        return;
    memcpy(text, line->text, line->text_bytes);
    text[line->text_bytes] = '\0';
    if (tierce__parse_count(&value, text) && value >= ITEM_BYTES_MIN)
        client->item_bytes = value < ITEM_BYTES_MAX ? value : ITEM_BYTES_MAX;
}

/* Queried for each new connection, because the server may have been restarted with another size. */
static int ask_for_item_size(struct tierce__memcached *client, uint64_t deadline_ns)
{
    TIERCE_DASSERT(client->awaited == 0 && client->out_used == 0);
    struct tierce__memcached_line line;
    client->item_bytes = ITEM_BYTES;
    tierce__memcached_add(client, "stats settings");
    int rc = tierce__memcached_send(client, NULL, 0, deadline_ns);
    for (unsigned i = 0; i < STATS_MAX && rc == 0; i++) {
        rc = tierce__memcached_read(client, &line, deadline_ns);
        if (rc == 0 && line.kind == TIERCE__MEMCACHED_STAT) {
            take_stat(client, &line);
            continue;
        }
        /* Proxies do not support the command. */
        if (rc == 0 && line.kind != TIERCE__MEMCACHED_END && line.kind != TIERCE__MEMCACHED_ERROR)
            rc = tierce__memcached_refused(client, &line);
        if (rc == 0)
            tierce__memcached_answered(client);
        return rc;
    }
    return rc == 0 ? tierce__peer_misunderstood(&client->peer, "too many settings") : rc;
}

int tierce__memcached_begin(struct tierce__memcached *client, uint64_t deadline_ns)
{
    if (client->awaited > 0 || client->in_at < client->in_end)
        tierce__peer_close(&client->peer);
    uint64_t connects = client->peer.connects;
    client->awaited = 0;
    client->in_at = client->in_end = client->out_used = 0;
    int rc = tierce__peer_begin(&client->peer, deadline_ns);
    return rc == 0 && client->peer.connects > connects ? ask_for_item_size(client, deadline_ns)
                                                       : rc;
}
