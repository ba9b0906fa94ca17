/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/http/http_private.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/*
 * Any web page can make its reader's browser send a request to a loopback port. The browser sends
 * the page's origin, so requests of other origins are rejected by Origin. A page whose name
 * resolves to 127.0.0.1 (DNS rebinding) has the same origin, and is rejected by Host: the only
 * valid name of a loopback port is localhost. Other clients send no Origin, and use the address or
 * localhost.
 */

/* The length of the host in "host:port" or "[::1]:port", without brackets. */
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

/* Returns whether "http://host:port" matches the Host header. */
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
        return "the Origin header names another site; only this server's own pages are accepted";
    if (call->http->is_loopback && host != NULL && !is_loopback_name(host))
        return "the Host header of a loopback port must be localhost or a loopback address";
    return NULL;
}
