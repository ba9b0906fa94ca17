/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/peer/peer_server.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/text/host_port.h"
#include "base/threads/lock.h"

enum { REQUEST_MS = 10000, STALL_MS = 1000, CONNECTIONS_MAX = 1024, IDLE_MS = 120000 };

struct peer_secret {
    size_t bytes; /* 0: none */
    char text[TIERCE__PEER_SECRET_MAX];
};

struct listen {
    struct tierce__transfer_server *server;
    char host[64];
};

struct tierce__peer_server {
    struct tierce__peer_keeper *keeper;
    struct tierce__peer_tls *tls; /* or NULL */
    struct listen listens[TIERCE__PEER_LISTENS_MAX];
    uint32_t listen_count;
    uint32_t request_ms;
    struct tierce__lock lock; /* PEER_SERVER: all below */
    struct peer_secret secret, before;
    uint64_t before_until_ns;
};

static bool is_equal(const struct peer_secret *secret, const char *token, size_t bytes)
{
    return secret->bytes > 0 && secret->bytes == bytes &&
           tierce__secrets_equal(secret->text, token, bytes);
}

static uint32_t rights_of(void *arg, const char *token, size_t token_bytes)
{
    struct tierce__peer_server *s = arg;
    tierce__lock_take(&s->lock);
    bool is_known =
        is_equal(&s->secret, token, token_bytes) ||
        (tierce__now_ns() < s->before_until_ns && is_equal(&s->before, token, token_bytes));
    tierce__lock_drop(&s->lock);
    return is_known ? TIERCE__TRANSFER_READ : 0;
}

/* "HOST:PORT" behind the texts before. False: there is no room. */
static bool add_address(char out[TIERCE__PEER_ADDRESS_BYTES], const char *host, uint16_t port)
{
    size_t used = strlen(out), room = TIERCE__PEER_ADDRESS_BYTES - used;
    size_t comma = used > 0 ? (size_t)snprintf(out + used, room, ",") : 0;
    return comma < room &&
           tierce__host_port_format(out + used + comma, room - comma, host, port) < room - comma;
}

/* Why there can be no further address, or 0. */
static int check_address(const struct tierce__peer_server *s, const char *host, char why[256])
{
    char all[TIERCE__PEER_ADDRESS_BYTES];
    if (strlen(host) >= sizeof(s->listens[0].host)) {
        snprintf(why, 256, "'%.100s' is no address", host);
        return TIERCE_E_ARGUMENT;
    }
    tierce__peer_server_address(s, all);
    if (s->listen_count < TIERCE__PEER_LISTENS_MAX && add_address(all, host, UINT16_MAX))
        return 0;
    snprintf(why, 256, "there are too many addresses: at most %u, of fewer than %u bytes together",
             TIERCE__PEER_LISTENS_MAX, TIERCE__PEER_ADDRESS_BYTES);
    return TIERCE_E_LIMIT;
}

int tierce__peer_server_listen(struct tierce__peer_server *s, const char *host, uint16_t port,
                               char why[256])
{
    int rc = check_address(s, host, why);
    if (rc != 0)
        return rc;
    struct listen *listen = &s->listens[s->listen_count];
    struct tierce__transfer_server_opts transfer = {.size = sizeof(transfer),
                                                    .host = host,
                                                    .port = port,
                                                    .keeper = tierce__peer_keeper_get(s->keeper),
                                                    .connections_max = CONNECTIONS_MAX,
                                                    .request_ms = s->request_ms,
                                                    .stall_ms = STALL_MS,
                                                    .idle_ms = IDLE_MS,
                                                    .rights = rights_of,
                                                    .rights_arg = s};
    if (getrandom(transfer.incarnation, sizeof(transfer.incarnation), 0) !=
        (ssize_t)sizeof(transfer.incarnation)) {
        snprintf(why, 256, "the kernel gives no random bytes");
        return -EIO;
    }
    rc = tierce__peer_tls_server(&transfer.tls, s->tls, host, why);
    if (rc == 0)
        rc = tierce__transfer_server_start(&listen->server, &transfer, why);
    if (rc != 0)
        return rc;
    snprintf(listen->host, sizeof(listen->host), "%s", host);
    s->listen_count++;
    return 0;
}

int tierce__peer_server_start(struct tierce__peer_server **out, struct tierce_engine *engine,
                              const struct tierce__peer_server_opts *opts, char why[256])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    why[0] = '\0';
    struct tierce__peer_server *s = tierce__calloc(1, sizeof(*s));
    if (s == NULL)
        return -ENOMEM;
    tierce__lock_init(&s->lock, TIERCE__LOCK_PEER_SERVER);
    s->tls = opts->tls;
    s->request_ms = opts->request_ms > 0 ? opts->request_ms : REQUEST_MS;
    int rc = tierce__peer_keeper_create(&s->keeper, engine, &opts->keeper);
    if (rc == 0)
        rc = tierce__peer_server_listen(s, opts->host, opts->port, why);
    if (rc == 0) {
        *out = s;
        return 0;
    }
    if (why[0] == '\0')
        snprintf(why, 256, "%s", tierce_strerror(rc));
    tierce__peer_server_stop(s, 0);
    return rc;
}

void tierce__peer_server_stop(struct tierce__peer_server *server, uint64_t deadline_ns)
{
    if (server == NULL)
        return;
    for (uint32_t i = 0; i < server->listen_count; i++)
        tierce__transfer_server_stop(server->listens[i].server, deadline_ns);
    tierce__peer_keeper_destroy(server->keeper);
    tierce__lock_fini(&server->lock);
    explicit_bzero(server, sizeof(*server));
    tierce__free(server);
}

void tierce__peer_server_address(const struct tierce__peer_server *server,
                                 char out[TIERCE__PEER_ADDRESS_BYTES])
{
    out[0] = '\0';
    for (uint32_t i = 0; i < server->listen_count; i++)
        (void)add_address(out, server->listens[i].host,
                          tierce__transfer_server_port(server->listens[i].server));
}

int tierce__peer_server_set_secret(struct tierce__peer_server *server, const char *secret)
{
    size_t bytes = strlen(secret);
    if (bytes == 0 || bytes > TIERCE__PEER_SECRET_MAX)
        return TIERCE_E_ARGUMENT;
    tierce__lock_take(&server->lock);
    if (!is_equal(&server->secret, secret, bytes)) {
        server->before = server->secret;
        server->before_until_ns = tierce__deadline_in_ms(TIERCE__PEER_OLD_SECRET_MS);
        server->secret.bytes = bytes;
        memcpy(server->secret.text, secret, bytes);
    }
    tierce__lock_drop(&server->lock);
    return 0;
}

void tierce__peer_server_stats(struct tierce__peer_server *server,
                               struct tierce__transfer_stats *transfers,
                               struct tierce__peer_keeper_stats *keeper)
{
    *transfers = (struct tierce__transfer_stats){0};
    for (uint32_t i = 0; i < server->listen_count; i++) {
        struct tierce__transfer_stats one;
        tierce__transfer_server_stats(server->listens[i].server, &one);
        transfers->connections += one.connections;
        transfers->accepted += one.accepted;
        transfers->refused += one.refused;
        transfers->reads += one.reads;
        transfers->read_bytes += one.read_bytes;
        transfers->misses += one.misses;
        transfers->errors += one.errors;
    }
    tierce__peer_keeper_stats(server->keeper, keeper);
}
