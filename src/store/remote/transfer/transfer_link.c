/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/transfer/transfer_link.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "store/remote/transfer/transfer_client_private.h"

struct tierce__transfer_link {
    struct transfer_link link;
    struct transfer_store store;
};

int tierce__transfer_link_create(struct tierce__transfer_link **out, const char *host,
                                 uint16_t port, const char *space, struct tierce__tls_context *tls)
{
    struct tierce__transfer_link *link = tierce__calloc(1, sizeof(*link));
    if (link == NULL)
        return -ENOMEM;
    struct transfer_store *store = &link->store;
    if (strlen(host) >= sizeof(store->place.host) || strlen(space) >= sizeof(store->space)) {
        tierce__free(link);
        return TIERCE_E_ARGUMENT;
    }
    memcpy(store->place.host, host, strlen(host) + 1);
    memcpy(store->space, space, strlen(space) + 1);
    store->place.port = port;
    store->place.tls = tls;
    link->link.store = store;
    tierce__peer_init(&link->link.peer, &store->place);
    link->link.peer.channel.silence_ms = TIERCE__TRANSFER_LINK_SILENCE_MS;
    *out = link;
    return 0;
}

void tierce__transfer_link_stop_by(struct tierce__transfer_link *link,
                                   struct tierce__stopper *stopper)
{
    link->link.peer.channel.stopper = stopper;
}

void tierce__transfer_link_destroy(struct tierce__transfer_link *link)
{
    if (link == NULL)
        return;
    tierce__peer_close(&link->link.peer);
    tierce__free(link);
}

int tierce__transfer_link_reach(struct tierce__transfer_link *link, const char *token,
                                uint64_t deadline_ns)
{
    if (strlen(token) > TIERCE__TRANSFER_TOKEN_MAX)
        return TIERCE_E_ARGUMENT;
    link->store.token = token; /* of the calls until it is cleared */
    int rc = tierce__transfer_begin(&link->link, deadline_ns);
    link->store.token = NULL;
    return rc;
}

int tierce__transfer_link_get(struct tierce__transfer_link *link, const char *token,
                              const struct tierce__link_get *get, uint64_t deadline_ns)
{
    if (strlen(token) > TIERCE__TRANSFER_TOKEN_MAX)
        return TIERCE_E_ARGUMENT;
    link->store.token = token;
    int rc = tierce__transfer_read(&link->link, get, deadline_ns);
    if (rc == TIERCE_E_REFUSED && !link->link.lacks_space) {
        tierce__peer_close(&link->link.peer); /* it was greeted with an older token, perhaps */
        rc = tierce__transfer_read(&link->link, get, deadline_ns);
    }
    link->store.token = NULL;
    return rc;
}

bool tierce__transfer_link_lacks_space(const struct tierce__transfer_link *link)
{
    return link->link.lacks_space;
}

int tierce__transfer_link_send_gets(struct tierce__transfer_link *link,
                                    const struct tierce__link_get *gets, size_t count,
                                    uint64_t deadline_ns)
{
    if (!tierce__transfer_link_is_open(link))
        return TIERCE_E_DOWN;
    TIERCE_ASSERT(link->link.sent == link->link.awaited);
    return tierce__transfer_send_reads(&link->link, gets, count, deadline_ns);
}

int tierce__transfer_link_read_get(struct tierce__transfer_link *link,
                                   const struct tierce__link_get *get, uint64_t deadline_ns)
{
    if (!tierce__transfer_link_is_open(link))
        return TIERCE_E_DOWN;
    TIERCE_ASSERT(link->link.sent != link->link.awaited);
    return tierce__transfer_read_read(&link->link, get, deadline_ns);
}

void tierce__transfer_link_close(struct tierce__transfer_link *link)
{
    tierce__peer_close(&link->link.peer);
}

bool tierce__transfer_link_is_open(const struct tierce__transfer_link *link)
{
    return tierce__peer_is_connected(&link->link.peer);
}

int tierce__transfer_link_write(struct tierce__transfer_link *link,
                                const struct tierce_plugin_name *name,
                                const struct tierce__link_range *range, const void *bytes,
                                uint64_t deadline_ns)
{
    if (!tierce__transfer_link_is_open(link))
        return TIERCE_E_DOWN;
    TIERCE_ASSERT((uint16_t)(link->link.sent - link->link.awaited) < TIERCE__TRANSFER_PIPELINE);
    return tierce__transfer_send_write(
        &link->link, name,
        (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_WRITE,
                                          .offset = range->offset,
                                          .length = range->length,
                                          .total = range->total},
        bytes, deadline_ns);
}

int tierce__transfer_link_written(struct tierce__transfer_link *link, uint64_t deadline_ns)
{
    struct tierce__transfer_reply reply;
    if (!tierce__transfer_link_is_open(link))
        return TIERCE_E_DOWN;
    TIERCE_ASSERT(link->link.sent != link->link.awaited);
    return tierce__transfer_read_reply(&link->link, &reply, TIERCE__TRANSFER_OP_WRITE, deadline_ns);
}

int tierce__transfer_link_remove(struct tierce__transfer_link *link,
                                 const struct tierce_plugin_name *name, uint64_t deadline_ns)
{
    struct tierce__transfer_reply reply;
    if (!tierce__transfer_link_is_open(link))
        return TIERCE_E_DOWN;
    return tierce__transfer_ask(&link->link, &reply,
                                (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_DROP},
                                name, deadline_ns);
}

const char *tierce__transfer_link_why(const struct tierce__transfer_link *link)
{
    return link->link.peer.why;
}
