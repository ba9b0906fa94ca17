/* SPDX-License-Identifier: Apache-2.0 */
/* Against a real redis-server: over TCP, over its Unix socket, by TLS, as a user with a password,
 * by a sentinel; and against a cluster. */
#include "conformance/connector_conformance.h"
#include "redis_sentinels.h"

#include <stdlib.h>

static struct redis_server server;
static struct redis_sentinels sentinels;
static struct redis_cluster cluster;

#define CAPS (TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS | TIERCE__CONNECTOR_EMPTY_MISSES)

/* A busy machine does not make a server late, nor has a sentinel a reason to change the master. */
#define PATIENT "timeout_ms=60000"

static char plain[] = "?" PATIENT, by_tls[] = "&" PATIENT,
            many[] = "?db=2&connections=40&prefix=a*%3F%5B%5C&" PATIENT,
            user[] = "?prefix=kv:&ttl=1h&" PATIENT;

static bool start_tcp(char *url, size_t room, void *ctx)
{
    if (!redis_start(&server, NULL))
        return false;
    snprintf(url, room, "redis://127.0.0.1:%u%s", (unsigned)server.port, (const char *)ctx);
    return true;
}

static bool start_unix(char *url, size_t room, void *ctx)
{
    if (!redis_start(&server, NULL))
        return false;
    snprintf(url, room, "redis+unix://%s%s", server.socket, (const char *)ctx);
    return true;
}

static bool start_user(char *url, size_t room, void *ctx)
{
    static const char *const more[] = {"--user", "kv",     "on",      ">se%cret", "~kv:*",
                                       "+@all",  "--user", "default", "off",      NULL};
    if (!redis_start(&server, more))
        return false;
    snprintf(url, room, "valkey://kv:se%%25cret@127.0.0.1:%u/3%s", (unsigned)server.port,
             (const char *)ctx);
    return true;
}

static bool start_tls(char *url, size_t room, void *ctx)
{
    static const char *const more[] = {"--tls-cert-file",
                                       "s.pem",
                                       "--tls-key-file",
                                       "s.key",
                                       "--tls-ca-cert-file",
                                       "ca.pem",
                                       "--tls-auth-clients",
                                       "yes",
                                       NULL};
    if (!redis_start(&server, NULL))
        return false;
    redis_kill(&server);
    if (!tls_make_certificates(server.dir) || !redis_run(&server, true, more))
        return false;
    snprintf(url, room,
             "rediss://127.0.0.1:%u?ca_file=%s/ca.pem&client_certificate=%s/s.pem&client_key=%s/"
             "s.key%s",
             (unsigned)server.port, server.dir, server.dir, server.dir, (const char *)ctx);
    return true;
}

static bool renew(char *url, size_t room, void *ctx)
{
    (void)url;
    (void)room;
    return redis_flush(&server, ctx == user ? "--user kv --pass se%cret --no-auth-warning" : "");
}

static void stop(void *ctx)
{
    (void)ctx;
    redis_stop(&server);
}

#define NEVER_DOWN "sentinel down-after-milliseconds m 600000\n"

static bool start_sentinel(char *url, size_t room, void *ctx)
{
    if (!redis_sentinels_start(&sentinels, 1, NULL, NEVER_DOWN))
        return false;
    snprintf(url, room, "valkey+sentinel://%s/m/4%s", sentinels.hosts, (const char *)ctx);
    return true;
}

static bool renew_sentinel(char *url, size_t room, void *ctx)
{
    char answer[64];
    (void)url;
    (void)room;
    (void)ctx;
    return redis_tell(sentinels.data[0].port, answer, sizeof(answer), "FLUSHALL");
}

static void stop_sentinel(void *ctx)
{
    (void)ctx;
    redis_sentinels_stop(&sentinels);
}

/* All by TLS: clients, replication, sentinels, the cluster's bus. */
static char tls_dir[64];

static void finish_tls(char *url, size_t room, const char *more)
{
    size_t used = strlen(url);
    snprintf(url + used, room - used,
             "?ca_file=%s/ca.pem&client_certificate=%s/s.pem&client_key=%s/s.key%s", tls_dir,
             tls_dir, tls_dir, more);
}

static bool make_tls(void)
{
    snprintf(tls_dir, sizeof(tls_dir), "/tmp/tierce-tls-XXXXXX");
    sentinels.tls_dir = cluster.tls_dir = tls_dir;
    return mkdtemp(tls_dir) != NULL && tls_make_certificates(tls_dir);
}

static void remove_tls(void)
{
    server_remove(tls_dir);
}

static bool start_tls_sentinel(char *url, size_t room, void *ctx)
{
    if (!make_tls() || !redis_sentinels_start(&sentinels, 1, NULL, NEVER_DOWN))
        return false;
    snprintf(url, room, "rediss+sentinel://%s/m", sentinels.hosts);
    finish_tls(url, room, ctx);
    return true;
}

static void stop_tls_sentinel(void *ctx)
{
    stop_sentinel(ctx);
    remove_tls();
}

static bool start_tls_cluster(char *url, size_t room, void *ctx)
{
    if (!make_tls() || !redis_cluster_start(&cluster, 3, 0, 60000))
        return false;
    snprintf(url, room, "rediss+cluster://%s", strchr(cluster.uri, '/') + 2);
    finish_tls(url, room, ctx);
    return true;
}

static bool start_cluster(char *url, size_t room, void *ctx)
{
    if (!redis_cluster_start(&cluster, 3, 0, 60000))
        return false;
    snprintf(url, room, "redis+cluster://%s%s", strchr(cluster.uri, '/') + 2, (const char *)ctx);
    return true;
}

static bool renew_cluster(char *url, size_t room, void *ctx)
{
    (void)url;
    (void)room;
    (void)ctx;
    return redis_cluster_flush(&cluster);
}

static void stop_cluster(void *ctx)
{
    (void)ctx;
    redis_cluster_stop(&cluster);
}

static void stop_tls_cluster(void *ctx)
{
    stop_cluster(ctx);
    remove_tls();
}

static const struct connector_factory factories[] = {
    {.name = "redis", .start = start_tcp, .renew = renew, .stop = stop, .ctx = plain, .caps = CAPS},
    {.name = "redis by a socket",
     .start = start_unix,
     .renew = renew,
     .stop = stop,
     .ctx = many,
     .caps = CAPS,
     .is_twin = true},
    {.name = "redis by TLS",
     .start = start_tls,
     .renew = renew,
     .stop = stop,
     .ctx = by_tls,
     .caps = CAPS},
    {.name = "redis for a user",
     .start = start_user,
     .renew = renew,
     .stop = stop,
     .ctx = user,
     .caps = CAPS,
     .is_twin = true},
    {.name = "redis by a sentinel",
     .start = start_sentinel,
     .renew = renew_sentinel,
     .stop = stop_sentinel,
     .ctx = plain,
     .caps = CAPS,
     .is_twin = true},
    {.name = "redis cluster",
     .start = start_cluster,
     .renew = renew_cluster,
     .stop = stop_cluster,
     .ctx = user,
     .caps = CAPS},
    {.name = "redis by a sentinel and TLS",
     .start = start_tls_sentinel,
     .renew = renew_sentinel,
     .stop = stop_tls_sentinel,
     .ctx = by_tls,
     .caps = CAPS,
     .is_twin = true},
    {.name = "redis cluster by TLS",
     .start = start_tls_cluster,
     .renew = renew_cluster,
     .stop = stop_tls_cluster,
     .ctx = by_tls,
     .caps = CAPS,
     .is_twin = true},
};

int main(void)
{
    return connector_conformance_main(factories, sizeof(factories) / sizeof(factories[0]));
}
