/* SPDX-License-Identifier: Apache-2.0 */
#include "net/resolve.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct tierce__resolve {
    struct gaicb lookup;
    struct addrinfo hints;
    char service[8];
    int code; /* of getaddrinfo; EAI_INPROGRESS: a thread looks it up */
    char host[256];
};

int tierce__resolve_begin(struct tierce__resolve **out, const char *host, uint16_t port)
{
    struct tierce__resolve *r = tierce__calloc(1, sizeof(*r));
    if (r == NULL)
        return -ENOMEM;
    snprintf(r->host, sizeof(r->host), "%s", host);
    snprintf(r->service, sizeof(r->service), "%u", (unsigned)port);
    r->hints = (struct addrinfo){.ai_family = AF_UNSPEC,
                                 .ai_socktype = SOCK_STREAM,
                                 .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST};
    r->lookup =
        (struct gaicb){.ar_name = r->host, .ar_service = r->service, .ar_request = &r->hints};
    r->code = getaddrinfo(r->host, r->service, &r->hints, &r->lookup.ar_result);
    if (r->code == EAI_NONAME && strlen(host) < sizeof(r->host)) {
        struct gaicb *list[] = {&r->lookup};
        r->hints.ai_flags = AI_NUMERICSERV;
        r->code = getaddrinfo_a(GAI_NOWAIT, list, 1, NULL);
        if (r->code == 0)
            r->code = EAI_INPROGRESS;
    }
    *out = r;
    return 0;
}

int tierce__resolve_poll(struct tierce__resolve *resolve, const struct addrinfo **list, char *why,
                         size_t why_room)
{
    if (resolve->code == EAI_INPROGRESS)
        resolve->code = gai_error(&resolve->lookup);
    if (resolve->code == EAI_INPROGRESS)
        return -EINPROGRESS;
    if (resolve->code == 0) {
        TIERCE_DASSERT(resolve->lookup.ar_result != NULL);
        *list = resolve->lookup.ar_result;
        return 0;
    }
    snprintf(why, why_room, "%s: %s", resolve->host, gai_strerror(resolve->code));
    return resolve->code == EAI_MEMORY ? -ENOMEM : -EHOSTUNREACH;
}

void tierce__resolve_end(struct tierce__resolve *resolve)
{
    if (resolve == NULL)
        return;
    bool runs = resolve->code == EAI_INPROGRESS && gai_error(&resolve->lookup) == EAI_INPROGRESS;
    if (runs && gai_cancel(&resolve->lookup) == EAI_NOTCANCELED &&
        gai_error(&resolve->lookup) == EAI_INPROGRESS)
        return;
    if (resolve->lookup.ar_result != NULL)
        freeaddrinfo(resolve->lookup.ar_result);
    tierce__free(resolve);
}
