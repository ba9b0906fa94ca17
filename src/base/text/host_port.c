/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text/host_port.h"

#include "base/assert.h"

#include <stdio.h>
#include <string.h>

static bool take_port(uint16_t *port, const char *text, size_t bytes)
{
    uint32_t number = 0;
    for (size_t i = 0; i < bytes && number <= UINT16_MAX; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        number = number * 10 + (uint32_t)(text[i] - '0');
    }
    *port = (uint16_t)number;
    return bytes > 0 && number <= UINT16_MAX;
}

bool tierce__host_port_split(struct tierce__host_port *out, const char *text, size_t bytes)
{
    const char *end = text + bytes, *colon = memchr(text, ':', bytes), *host = text,
               *host_end = end;
    if (bytes > 0 && text[0] == '[') {
        host++;
        host_end = memchr(text, ']', bytes);
        if (host_end == NULL || (host_end + 1 < end && host_end[1] != ':'))
            return false;
        colon = host_end + 1 < end ? host_end + 1 : NULL;
    } else if (colon != NULL && memchr(colon + 1, ':', (size_t)(end - colon - 1)) != NULL) {
        colon = NULL;
    } else if (colon != NULL) {
        host_end = colon;
    }
    *out = (struct tierce__host_port){
        .host = host, .host_bytes = (size_t)(host_end - host), .has_port = colon != NULL};
    return host_end > host &&
           (colon == NULL || take_port(&out->port, colon + 1, (size_t)(end - colon - 1)));
}

bool tierce__host_port_read(char *host, size_t room, uint16_t *port, const char *text)
{
    struct tierce__host_port at;
    if (!tierce__host_port_split(&at, text, strlen(text)) || at.port == 0 || at.host_bytes >= room)
        return false;
    memcpy(host, at.host, at.host_bytes);
    host[at.host_bytes] = '\0';
    *port = at.port;
    return true;
}

size_t tierce__host_port_format(char *out, size_t room, const char *host, uint16_t port)
{
    bool is_ipv6 = strchr(host, ':') != NULL;
    int bytes = snprintf(out, room, is_ipv6 ? "[%s]:%u" : "%s:%u", host, (unsigned)port);
    TIERCE_ASSERT(bytes > 0);
    return (size_t)bytes;
}
