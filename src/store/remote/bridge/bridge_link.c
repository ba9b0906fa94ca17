/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/bridge/bridge_link.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PREFIX_BYTES_MAX 512u

_Static_assert(TIERCE__BRIDGE_SEATS_MAX >= TIERCE__LINKS_MAX, "a seat for each link");

/* ---- calls ----------------------------------------------------------------------------------- */

int tierce__bridge_link_call(struct tierce__bridge_link *link, uint64_t *result,
                             const struct tierce__bridge_ask *ask)
{
    int64_t answered = 0;
    int rc = tierce__bridge_call(link->store->bridge, link->seat, ask, &answered, link->why);
    if (rc == 0 && answered < 0)
        rc = link->store->status_of(link, ask->op, answered);
    *result = rc == 0 ? (uint64_t)answered : 0;
    return rc;
}

int tierce__bridge_link_misunderstood(struct tierce__bridge_link *link, int64_t result)
{
    snprintf(link->why, sizeof(link->why), "the bridge sent an invalid answer (%" PRId64 ")",
             result);
    tierce__bridge_end(link->store->bridge, link->seat);
    return TIERCE_E_FORMAT;
}

int tierce__bridge_link_exists(void *opened, const struct tierce_plugin_name *names, size_t count,
                               size_t *found, uint64_t deadline_ns)
{
    TIERCE_DASSERT(count > 0 && count <= TIERCE__BRIDGE_NAMES_MAX);
    struct tierce__bridge_link *link = opened;
    uint64_t result;
    (void)deadline_ns;
    int rc = tierce__bridge_link_call(link, &result,
                                      &(struct tierce__bridge_ask){.op = TIERCE__BRIDGE_EXISTS,
                                                                   .names = names,
                                                                   .name_count = count});
    if (result > count)
        rc = tierce__bridge_link_misunderstood(link, (int64_t)result);
    *found = rc == 0 ? (size_t)result : 0;
    return rc == TIERCE_E_MISS ? 0 : rc;
}

int tierce__bridge_link_ask_get(struct tierce__bridge_link *link, uint64_t *result,
                                const struct tierce__link_get *get)
{
    const uint8_t *base = link->store->pool_base;
    TIERCE_DASSERT(get->length > 0 && get->length <= INT64_MAX);
    TIERCE_DASSERT(get->memory >= base);
    return tierce__bridge_link_call(
        link, result,
        &(struct tierce__bridge_ask){.op = TIERCE__BRIDGE_GET,
                                     .names = get->name,
                                     .name_count = 1,
                                     .place = (uint64_t)(get->memory - base),
                                     .offset = get->offset,
                                     .length = get->length});
}

/* A call whose only result is 0. */
static int change(struct tierce__bridge_link *link, const struct tierce__bridge_ask *ask)
{
    uint64_t result;
    int rc = tierce__bridge_link_call(link, &result, ask);
    return result > 0 ? tierce__bridge_link_misunderstood(link, (int64_t)result) : rc;
}

int tierce__bridge_link_put(void *opened, const struct tierce_plugin_name *name, const void *memory,
                            uint64_t length, uint64_t deadline_ns)
{
    TIERCE_DASSERT(length > 0);
    struct tierce__bridge_link *link = opened;
    const uint8_t *base = link->store->pool_base, *bytes = memory;
    (void)deadline_ns;
    TIERCE_DASSERT(bytes >= base);
    int rc = change(link, &(struct tierce__bridge_ask){.op = TIERCE__BRIDGE_PUT,
                                                       .names = name,
                                                       .name_count = 1,
                                                       .place = (uint64_t)(bytes - base),
                                                       .length = length});
    return rc == TIERCE_E_MISS ? TIERCE_E_DOWN : rc;
}

int tierce__bridge_link_remove(void *opened, const struct tierce_plugin_name *name,
                               uint64_t deadline_ns)
{
    (void)deadline_ns;
    int rc = change(opened, &(struct tierce__bridge_ask){
                                .op = TIERCE__BRIDGE_DELETE, .names = name, .name_count = 1});
    return rc == TIERCE_E_MISS ? 0 : rc;
}

int tierce__bridge_link_ping(void *opened, uint64_t deadline_ns)
{
    struct tierce__bridge_link *link = opened;
    char text[PREFIX_BYTES_MAX];
    int bytes = snprintf(text, sizeof(text), "%sping", link->store->prefix);
    TIERCE_ASSERT(bytes > 0 && (size_t)bytes < sizeof(text));
    struct tierce_plugin_name name = {.text = text, .bytes = (size_t)bytes};
    size_t found;
    return tierce__bridge_link_exists(link, &name, 1, &found, deadline_ns);
}

/* ---- links ----------------------------------------------------------------------------------- */

int tierce__bridge_link_open(void **out, void *store)
{
    struct tierce__bridge_link *link = *out;
    link->store = store;
    link->seat = link->store->links_made++;
    TIERCE_DASSERT(link->store->links_made <= TIERCE__BRIDGE_SEATS_MAX);
    return 0;
}

struct tierce__link_state tierce__bridge_link_state(const void *opened)
{
    const struct tierce__bridge_link *link = opened;
    const struct tierce__bridge *bridge = link->store->bridge;
    return (struct tierce__link_state){.connects = tierce__bridge_starts(bridge, link->seat),
                                       .is_connected = tierce__bridge_is_up(bridge, link->seat)};
}

const char *tierce__bridge_link_why(void *opened)
{
    const struct tierce__bridge_link *link = opened;
    return link->why;
}

/* ---- life ------------------------------------------------------------------------------------ */

int tierce__bridge_store_open(struct tierce__bridge_store *store,
                              const struct tierce__connector_source *source,
                              const struct tierce__bridge_opts *opts,
                              char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__bridge_opts own = *opts;
    uint64_t pool_bytes;
    own.pool = source->opts->pool;
    if (tierce__pool_fd(own.pool) < 0) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "the memory cannot be shared with another process");
        return TIERCE_E_UNSUPPORTED;
    }
    tierce__pool_mapping(own.pool, &store->pool_base, &pool_bytes);
    TIERCE_DASSERT(pool_bytes > 0);
    return tierce__bridge_create(&store->bridge, &own);
}

void tierce__bridge_store_abort(void *opened)
{
    struct tierce__bridge_store *store = opened;
    tierce__bridge_abort(store->bridge);
}

void tierce__bridge_store_close(void *opened)
{
    struct tierce__bridge_store *store = opened;
    if (store->bridge != NULL)
        tierce__bridge_destroy(store->bridge);
    tierce__free(store);
}
