/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/peer/peers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/log/log_repeat.h"
#include "base/text/host_port.h"
#include "base/text/url.h"
#include "engine/engine_config.h"
#include "net/resolve.h"
#include "net/stream.h"
#include "store/remote/peers/peers_self.h"
#include "store/remote/peers/peers_table.h"

#define SCHEME "peers"
enum {
    STOP_MS = 1000, /* for requests in progress, while an engine is closed */
    NAME_MS = 1000, /* for the addresses of a manager */
};
static const char blanks[] = " \t\r\n";

struct tierce__peers {
    struct tierce__peers_self self;
    struct tierce__peer_tls *tls; /* or NULL; [borrow] */
    struct tierce_engine *engine;
    _Atomic(struct tierce__peer_server *) server; /* release, acquire */
    char *url;                                    /* of the managers, for a reporter: fleet://... */
    struct {
        char host[64];
        uint16_t port;
    } listens[TIERCE__PEER_LISTENS_MAX];      /* of peers.listen */
    uint32_t listen_count;                    /* 0: that which reaches a manager */
    char address[TIERCE__PEER_ADDRESS_BYTES]; /* of the server; the reporter's after start */
};

struct tierce__peer_server *tierce__peers_server(struct tierce__peers *peers)
{
    return peers != NULL ? atomic_load_explicit(&peers->server, memory_order_acquire) : NULL;
}

/* ---- the URLs -------------------------------------------------------------------------------- */

static bool is_ours(const char *url)
{
    return strncmp(url, SCHEME "://", sizeof(SCHEME "://") - 1) == 0 ||
           strncmp(url, SCHEME "+tls://", sizeof(SCHEME "+tls://") - 1) == 0;
}

/* The first peers:// URL of the list, and how many there are. */
static const char *find_url(const char *urls, size_t *count)
{
    const char *first = NULL;
    *count = 0;
    for (const char *at = urls + strspn(urls, blanks); *at != '\0'; at += strspn(at, blanks)) {
        if (is_ours(at)) {
            first = first == NULL ? at : first;
            (*count)++;
        }
        at += strcspn(at, blanks);
    }
    return first;
}

/* The same managers as fleet://..., with the parameters that are about them. [transfer] */
static char *managers_of(const char *url)
{
    size_t bytes = strcspn(url, blanks), used = strcspn(url, "? \t\r\n");
    char *out = tierce__alloc(bytes + 1), separator = '?';
    if (out == NULL)
        return NULL;
    memcpy(out, url, used);
    memcpy(out, "fleet", sizeof(SCHEME) - 1);
    for (size_t at = used; at < bytes && url[at] != '\0';) {
        const char *param = url + at + 1; /* behind '?' or '&' */
        size_t length = strcspn(param, "& \t\r\n");
        if (strncmp(param, "token_file=", 11) == 0 || strncmp(param, "ca_file=", 8) == 0) {
            out[used++] = separator;
            memcpy(out + used, param, length);
            used += length;
            separator = '&';
        }
        at += 1 + length;
    }
    out[used] = '\0';
    return out;
}

/* ---- create ---------------------------------------------------------------------------------- */

static bool is_wildcard(const char *host)
{
    struct in_addr four;
    struct in6_addr six;
    return (inet_aton(host, &four) != 0 && four.s_addr == INADDR_ANY) ||
           (inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_UNSPECIFIED(&six));
}

static int take_address(struct tierce__peers *peers, const char *text,
                        char why[TIERCE_CONFIG_ERROR_BYTES])
{
    char *into = peers->listens[peers->listen_count].host;
    struct tierce__host_port at;
    if (!tierce__host_port_split(&at, text, strlen(text)) ||
        at.host_bytes >= sizeof(peers->listens[0].host)) {
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES,
                 "peers.listen: '%.60s' is not an address; it must be HOST or HOST:PORT, with an "
                 "IPv6 address in brackets; several are separated by commas",
                 text);
        return TIERCE_E_CONFIG;
    }
    memcpy(into, at.host, at.host_bytes);
    into[at.host_bytes] = '\0';
    peers->listens[peers->listen_count++].port = at.port;
    if (!is_wildcard(into))
        return 0;
    snprintf(why, TIERCE_CONFIG_ERROR_BYTES,
             "peers.listen: other engines connect to this address, so '%.60s' will not do; it must "
             "be an address of this host",
             into);
    return TIERCE_E_CONFIG;
}

static int check_zone(const char *zone, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    uint32_t prefixes[TIERCE__ZONE_PARTS_MAX];
    if (tierce__zone_parse(prefixes, zone, 0) < 0) {
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES,
                 "peers.zone: '%.60s' is invalid; accepted are " TIERCE__ZONE_ACCEPTED, zone);
        return TIERCE_E_CONFIG;
    }
    return 0;
}

/* Addresses separated by commas, or nothing. */
static int take_listen(struct tierce__peers *peers, const char *list,
                       char why[TIERCE_CONFIG_ERROR_BYTES])
{
    char text[128];
    int rc = 0;
    for (bool is_last = list[0] == '\0'; rc == 0 && !is_last;) {
        size_t bytes = strcspn(list, ",");
        if (peers->listen_count == TIERCE__PEER_LISTENS_MAX) {
            snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "peers.listen: at most %u addresses",
                     TIERCE__PEER_LISTENS_MAX);
            return TIERCE_E_CONFIG;
        }
        snprintf(text, sizeof(text), "%.*s", (int)bytes, list);
        rc = take_address(peers, text, why);
        is_last = list[bytes] == '\0';
        list += bytes + !is_last;
    }
    return rc;
}

int tierce__peers_create(struct tierce__peers **out, const struct tierce_config *config,
                         struct tierce__peer_tls *tls, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    size_t count;
    const char *url = find_url(tierce__engine_text(config, TIERCE__ENGINE_REMOTE_URLS), &count);
    const char *zone = tierce__engine_text(config, TIERCE__ENGINE_PEERS_ZONE);
    *out = NULL;
    int rc = check_zone(zone, why);
    if (rc < 0 || url == NULL)
        return rc;
    if (count > 1) {
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES,
                 "remote.urls: only one URL may be peers://; several managers are separated by "
                 "commas in it");
        return TIERCE_E_CONFIG;
    }
    struct tierce__peers *peers = tierce__calloc(1, sizeof(*peers));
    if (peers == NULL)
        return -ENOMEM;
    tierce__peers_self_init(&peers->self);
    peers->tls = tls;
    peers->self.tls = tierce__peer_tls_client(tls);
    memcpy(peers->self.zone, zone, strlen(zone) + 1); /* check_zone has bounded it */
    rc = tierce__peers_table_create(&peers->self.table);
    peers->url = managers_of(url);
    if (rc == 0 && peers->url == NULL)
        rc = -ENOMEM;
    if (rc == 0)
        rc = take_listen(peers, tierce__engine_text(config, TIERCE__ENGINE_PEERS_LISTEN), why);
    if (rc == 0)
        *out = peers;
    else
        tierce__peers_destroy(peers);
    return rc;
}

void tierce__peers_destroy(struct tierce__peers *peers)
{
    if (peers == NULL)
        return;
    TIERCE_ASSERT(tierce__peers_server(peers) == NULL);
    tierce__peers_table_destroy(peers->self.table);
    tierce__peers_self_fini(&peers->self);
    tierce__free(peers->url);
    tierce__free(peers);
}

struct tierce__peers_self *tierce__peers_self_of(struct tierce__peers *peers)
{
    return peers != NULL ? &peers->self : NULL;
}

/* ---- the address ----------------------------------------------------------------------------- */

/* The address of this host from which packets to that place leave. Sends none. */
static bool take_source(char host[64], const struct addrinfo *place)
{
    struct sockaddr_storage own;
    socklen_t bytes = sizeof(own);
    int fd = socket(place->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool is_known =
        fd >= 0 && connect(fd, place->ai_addr, place->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&own, &bytes) == 0 &&
        getnameinfo((struct sockaddr *)&own, bytes, host, 64, NULL, 0, NI_NUMERICHOST) == 0;
    if (fd >= 0)
        (void)close(fd);
    return is_known && strchr(host, '%') == NULL; /* a zone means nothing on other hosts */
}

/* The same for one manager, whose name may not be known yet. */
static bool find_source_to(char host[64], const char *name, uint16_t port)
{
    struct tierce__resolve *resolve;
    const struct addrinfo *places = NULL;
    char why[256];
    uint64_t deadline_ns = tierce__deadline_in_ms(NAME_MS);
    if (tierce__resolve_begin(&resolve, name, port) != 0)
        return false;
    int rc = tierce__resolve_poll(resolve, &places, why, sizeof(why));
    if (rc == -EINPROGRESS &&
        tierce__stream_wait(tierce__resolve_fd(resolve), POLLIN, NULL, deadline_ns) == 0) {
        do /* the thread has written, and is about to end */
            rc = tierce__resolve_poll(resolve, &places, why, sizeof(why));
        while (rc == -EINPROGRESS);
    }
    bool is_known = false;
    for (const struct addrinfo *it = rc == 0 ? places : NULL; !is_known && it != NULL;
         it = it->ai_next)
        is_known = take_source(host, it);
    tierce__resolve_end(resolve);
    return is_known;
}

static bool find_source(char host[64], const char *managers)
{
    char why[TIERCE__URL_WHY_BYTES];
    struct tierce__url url = {0};
    bool is_known = false;
    if (tierce__url_parse(&url, managers, why) != 0)
        return false;
    for (size_t i = 0; !is_known && i < url.host_count; i++)
        is_known = find_source_to(host, url.hosts[i].name, url.hosts[i].port);
    tierce__url_clear(&url);
    return is_known;
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int serve(struct tierce__peers *peers, const char *host, char why[256])
{
    struct tierce__peer_server *server;
    const struct tierce__peer_server_opts opts = {.size = sizeof(opts),
                                                  .host = host,
                                                  .port = peers->listens[0].port,
                                                  .tls = peers->tls,
                                                  .keeper =
                                                      tierce__peer_keeper_bounds(peers->engine)};
    int rc = tierce__peer_server_start(&server, peers->engine, &opts, why);
    if (rc != 0)
        return rc;
    for (uint32_t i = 1; rc == 0 && i < peers->listen_count; i++)
        rc =
            tierce__peer_server_listen(server, peers->listens[i].host, peers->listens[i].port, why);
    if (rc != 0) {
        tierce__peer_server_stop(server, 0);
        return rc;
    }
    tierce__peer_server_address(server, peers->address);
    atomic_store_explicit(&peers->server, server, memory_order_release);
    tierce__log(TIERCE_LOG_INFO, "peers_served", "address=%s tls=%s", peers->address,
                peers->tls != NULL ? "true" : "false");
    return 0;
}

int tierce__peers_start(struct tierce__peers *peers, struct tierce_engine *engine,
                        char why[TIERCE_CONFIG_ERROR_BYTES])
{
    char host[64], fault[256];
    if (peers == NULL)
        return 0;
    peers->engine = engine;
    bool is_chosen = peers->listen_count > 0;
    if (is_chosen) {
        memcpy(host, peers->listens[0].host, sizeof(host));
    } else if (!find_source(host, peers->url)) {
        tierce__log(TIERCE_LOG_WARN, "peers_not_served",
                    "err=\"no address of this host reaches a manager of peers://\" "
                    "consequence=\"other engines do not read this engine's chunks until one "
                    "does\" cure=\"set peers.listen\"");
        return 0;
    }
    int rc = serve(peers, host, fault);
    if (rc == 0)
        return 0;
    snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "%s%s",
             is_chosen ? "peers.listen: " : "peers: ", fault);
    return rc == -ENOMEM ? rc : TIERCE_E_CONFIG;
}

/* The address that reaches a manager was not found at the start, as while a name is unknown. */
static const char *find_address(void *arg)
{
    struct tierce__peers *peers = arg;
    char host[64], fault[256];
    if (!find_source(host, peers->url))
        return NULL;
    int rc = serve(peers, host, fault);
    if (rc == 0)
        return peers->address;
    tierce__log_repeated(TIERCE_LOG_ERROR, "peers_not_served",
                         "err=\"%s\" consequence=\"other engines do not read this engine's "
                         "chunks\" cure=\"set peers.listen\"",
                         fault);
    return NULL;
}

static void joined(void *arg, const struct tierce__reporter_place *place)
{
    struct tierce__peers *peers = arg;
    struct tierce__peer_server *server = tierce__peers_server(peers);
    int rc = server != NULL ? tierce__peer_server_set_secret(server, place->secret) : 0;
    if (rc != 0)
        tierce__log_repeated(TIERCE_LOG_ERROR, "peers_not_served",
                             "err=\"the manager's secret is empty or too long\" "
                             "cure=\"a manager of this version\"");
    tierce__peers_self_set(&peers->self, place->session, place->slot, place->secret);
}

static uint32_t load(void *arg)
{
    struct tierce__peer_server *server = tierce__peers_server(arg);
    struct tierce__transfer_stats sent;
    struct tierce__peer_keeper_stats kept = {.reads_max = 1};
    if (server != NULL)
        tierce__peer_server_stats(server, &sent, &kept);
    return (uint32_t)(1000 * kept.reads_now / kept.reads_max);
}

void tierce__peers_reporter(struct tierce__peers *peers, struct tierce__reporter_opts *opts)
{
    if (peers == NULL)
        return;
    if (opts->url == NULL || opts->url[0] == '\0')
        opts->url = peers->url;
    bool is_served = tierce__peers_server(peers) != NULL;
    opts->transfer_address = is_served ? peers->address : NULL;
    opts->find_address = is_served ? NULL : find_address;
    opts->uses_tls = peers->tls != NULL;
    opts->zone = peers->self.zone;
    opts->joined = joined;
    opts->load = load;
    opts->arg = peers;
}

void tierce__peers_stop(struct tierce__peers *peers, uint64_t deadline_ns)
{
    if (peers == NULL)
        return;
    uint64_t soon_ns = tierce__deadline_in_ms(STOP_MS);
    struct tierce__peer_server *server = tierce__peers_server(peers);
    atomic_store_explicit(&peers->server, NULL, memory_order_release);
    tierce__peer_server_stop(server, soon_ns < deadline_ns ? soon_ns : deadline_ns);
}

bool tierce__peers_stats(struct tierce__peers *peers, struct tierce__peers_stats *out)
{
    *out = (struct tierce__peers_stats){0};
    if (peers == NULL)
        return false;
    tierce__peers_table_stats(peers->self.table, &out->read);
    struct tierce__peer_server *server = tierce__peers_server(peers);
    if (server != NULL)
        tierce__peer_server_stats(server, &out->transfers, &out->served);
    return true;
}
