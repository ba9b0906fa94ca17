/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/node/peer.h"
#include "base/assert.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- places ---------------------------------------------------------------------------------- */

static bool is_unix_scheme(const char *scheme)
{
    const char *plus = strchr(scheme, '+');
    return plus != NULL && strcmp(plus, "+unix") == 0;
}

/* Returns the error, or NULL. */
static const char *find_wrong(const struct tierce__url *url, bool is_unix, uint16_t port)
{
    if (url->user != NULL)
        return "this protocol accepts no user name";
    if (is_unix)
        return url->host_count == 0 && url->path[0] == '/' && url->path[1] != '\0'
                   ? NULL
                   : "a socket must be an absolute path: three slashes";
    if (url->host_count != 1 || url->hosts[0].name[0] == '\0')
        return "exactly one host is required";
    if (url->path[0] != '\0' && strcmp(url->path, "/") != 0)
        return "the URL accepts no path after the host";
    return url->hosts[0].port == 0 && port == 0 ? "a port is needed" : NULL;
}

int tierce__peer_place_parse(struct tierce__peer_place *out, const struct tierce__url *url,
                             uint16_t port, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    bool is_unix = is_unix_scheme(url->scheme);
    const char *wrong = find_wrong(url, is_unix, port);
    const char *host = wrong != NULL ? "" : is_unix ? url->path : url->hosts[0].name;
    if (strlen(host) >= sizeof(out->host))
        wrong = "host or path is longer than 255 bytes";
    if (wrong != NULL) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "URL: %s", wrong);
        return TIERCE_E_CONFIG;
    }
    snprintf(out->host, sizeof(out->host), "%s", host);
    out->port = is_unix ? 0 : url->hosts[0].port != 0 ? url->hosts[0].port : port;
    TIERCE_DASSERT(is_unix || out->port != 0);
    return 0;
}

/* ---- connections ----------------------------------------------------------------------------- */

void tierce__peer_init(struct tierce__peer *peer, const struct tierce__peer_place *place)
{
    *peer = (struct tierce__peer){.place = place, .channel = {.fd = -1}};
}

void tierce__peer_close(struct tierce__peer *peer)
{
    tierce__channel_close(&peer->channel);
}

static int failed(struct tierce__peer *peer, int rc, const char *what)
{
    TIERCE_DASSERT(rc < 0);
    tierce__peer_close(peer);
    snprintf(peer->why, sizeof(peer->why), "%s: %s", what, tierce_strerror(rc));
    return rc == TIERCE_E_DEADLINE || rc == -ENOMEM ? rc : TIERCE_E_DOWN;
}

bool tierce__peer_is_connected(const struct tierce__peer *peer)
{
    TIERCE_DASSERT(peer->channel.fd < 0 || peer->connects > 0);
    return peer->channel.fd >= 0;
}

struct tierce__link_state tierce__peer_state(const struct tierce__peer *peer)
{
    return (struct tierce__link_state){.connects = peer->connects,
                                       .is_connected = tierce__peer_is_connected(peer)};
}

int tierce__peer_begin(struct tierce__peer *peer, uint64_t deadline_ns)
{
    const struct tierce__peer_place *place = peer->place;
    if (tierce__peer_is_connected(peer) && tierce__channel_is_quiet(&peer->channel))
        return 0;
    tierce__peer_close(peer);
    int rc = tierce__channel_connect(&peer->channel, place->host, place->port, place->tls,
                                     deadline_ns, peer->why);
    if (rc != 0)
        return rc == TIERCE_E_DEADLINE || rc == -ENOMEM ? rc : TIERCE_E_DOWN;
    peer->connects++;
    TIERCE_DASSERT(tierce__peer_is_connected(peer));
    return 0;
}

int tierce__peer_send(struct tierce__peer *peer, struct iovec *pieces, int count,
                      uint64_t deadline_ns)
{
    TIERCE_DASSERT(count > 0);
    TIERCE_DASSERT(tierce__peer_is_connected(peer));
    int rc = tierce__channel_send(&peer->channel, pieces, count, deadline_ns);
    return rc == 0 ? 0 : failed(peer, rc, "sending");
}

int tierce__peer_receive(struct tierce__peer *peer, struct iovec *pieces, int count, size_t least,
                         size_t *got, uint64_t deadline_ns)
{
    TIERCE_DASSERT(tierce__peer_is_connected(peer));
    int rc = tierce__channel_receive(&peer->channel, pieces, count, least, got, deadline_ns);
    TIERCE_DASSERT(rc != 0 || *got >= least);
    return rc == 0 ? 0 : failed(peer, rc, "receiving");
}

int tierce__peer_misunderstood(struct tierce__peer *peer, const char *what)
{
    tierce__peer_close(peer);
    snprintf(peer->why, sizeof(peer->why), "%s", what);
    return TIERCE_E_FORMAT;
}
