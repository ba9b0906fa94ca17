/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/http_private.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/*
 * Any web page may have its reader's browser send a request to a port that only this machine
 * reaches. A browser says from where: a page of another origin is refused by its Origin. A page
 * whose own name was made to mean 127.0.0.1 (DNS rebinding) is of the same origin, and is refused
 * by the name: no name but localhost is a loopback port's. Who is no browser sends no Origin, and
 * calls a loopback port by its address or as localhost.
 */

/* The bytes of a host in "host:port", "[::1]:port"; the latter's brackets are not of it. */
static size_t split_host(const char **host)
{
    if (**host == '[') {
        ++*host;
        return strcspn(*host, "]");
    }
    return strcspn(*host, ":");
}

static bool is_address(const char *host, size_t bytes)
{
    char text[INET6_ADDRSTRLEN];
    struct in6_addr address;
    if (bytes >= sizeof(text))
        return false;
    snprintf(text, sizeof(text), "%.*s", (int)bytes, host);
    return inet_pton(AF_INET, text, &address) == 1 || inet_pton(AF_INET6, text, &address) == 1;
}

static bool is_loopback_name(const char *host)
{
    static const char local[] = "localhost";
    size_t bytes = split_host(&host);
    return is_address(host, bytes) ||
           (bytes == strlen(local) && strncasecmp(host, local, bytes) == 0);
}

/* Whether "http://host:port" is what the client calls us. */
static bool is_own_origin(const char *origin, const char *host)
{
    const char *rest = strstr(origin, "://");
    return rest != NULL && host != NULL && strcasecmp(rest + 3, host) == 0;
}

const char *tierce__http_refuses(const struct tierce__http_call *call)
{
    const char *host = tierce__call_header(&call->base, "host");
    const char *origin = tierce__call_header(&call->base, "origin");
    if (origin != NULL && !is_own_origin(origin, host))
        return "a page of another origin asks; only this server's own may";
    if (call->http->is_loopback && host != NULL && !is_loopback_name(host))
        return "a loopback port is called localhost or by its address, not as the Host header says";
    return NULL;
}
