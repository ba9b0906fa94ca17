/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/handover/handover_hosts.h"

#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log/log.h"
#include "base/text/host_port.h"

#define NAME_MAX_BYTES 253u /* of a host's name, by RFC 1035 */

static const char blanks[] = " \t\r\n";

static void log_ignored(const char *name, const char *why)
{
    tierce__log(TIERCE_LOG_WARN, "inbox_host_ignored",
                "host=\"%.300s\" err=\"%s\" consequence=\"it cannot push chunks\"", name, why);
}

static bool has_host(const struct tierce__hosts *hosts, const char *host)
{
    for (size_t i = 0; i < hosts->count; i++)
        if (strcmp(hosts->items[i], host) == 0)
            return true;
    return false;
}

static void add_address(struct tierce__hosts *hosts, const char *name, const struct addrinfo *at)
{
    char host[TIERCE__HOST_BYTES];
    int rc = getnameinfo(at->ai_addr, at->ai_addrlen, host, sizeof(host), NULL, 0, NI_NUMERICHOST);
    if (rc != 0)
        log_ignored(name, gai_strerror(rc));
    else if (has_host(hosts, host))
        return;
    else if (hosts->count == TIERCE__HOSTS_MAX)
        log_ignored(name, "handover.allow has more than 64 addresses; shorten it");
    else
        memcpy(hosts->items[hosts->count++], host, sizeof(host));
}

static void add_name(struct tierce__hosts *hosts, const char *name)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *places = NULL;
    int rc = getaddrinfo(name, NULL, &hints, &places);
    if (rc != 0) {
        log_ignored(name, gai_strerror(rc));
        return;
    }
    for (struct addrinfo *it = places; it != NULL; it = it->ai_next)
        add_address(hosts, name, it);
    freeaddrinfo(places);
}

void tierce__hosts_add(struct tierce__hosts *hosts, const char *names)
{
    char name[NAME_MAX_BYTES + 2];
    for (const char *at = names + strspn(names, blanks); *at != '\0'; at += strspn(at, blanks)) {
        size_t bytes = strcspn(at, blanks),
               taken = bytes < sizeof(name) - 1 ? bytes : sizeof(name) - 1;
        memcpy(name, at, taken);
        name[taken] = '\0';
        if (bytes > NAME_MAX_BYTES)
            log_ignored(name, "a name has at most 253 bytes");
        else
            add_name(hosts, name);
        at += bytes;
    }
}

bool tierce__hosts_allow(const struct tierce__hosts *hosts, const char *peer)
{
    static const char mapped[] = "::ffff:";
    char host[sizeof(mapped) + TIERCE__HOST_BYTES];
    uint16_t port;
    if (!tierce__host_port_read(host, sizeof(host), &port, peer))
        return false;
    bool is_mapped = strncmp(host, mapped, sizeof(mapped) - 1) == 0;
    return has_host(hosts, is_mapped ? host + sizeof(mapped) - 1 : host);
}
