/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/addresses.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "base/map.h"
#include "base/mix.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>

/* An address with connections. */
struct address_entry {
    struct tierce__map_node node;
    struct tierce__address address;
    uint32_t count;
};

struct tierce__addresses {
    struct tierce__lock lock; /* SERVE_ADDRESSES */
    uint64_t seed; /* clients must not be able to choose addresses that collide in the map */
    uint32_t max;
    struct tierce__map entries;
};

static uint64_t hash(const struct tierce__addresses *addresses,
                     const struct tierce__address *address)
{
    uint64_t half[2];
    memcpy(half, address->bytes, sizeof(half));
    uint64_t h = addresses->seed;
    for (int i = 0; i < 2; i++)
        h = tierce__mix(h ^ half[i]);
    return h;
}

/* The address's entry, or NULL. */
static struct address_entry *find(const struct tierce__addresses *addresses, uint64_t of_address,
                                  const struct tierce__address *address)
{
    struct tierce__map_node *node = tierce__map_find(&addresses->entries, of_address);
    tierce__lock_assert_held(&addresses->lock);
    for (; node != NULL; node = tierce__map_find_next(node)) {
        struct address_entry *entry = TIERCE__CONTAINER_OF(node, struct address_entry, node);
        if (memcmp(&entry->address, address, sizeof(*address)) == 0)
            return entry;
    }
    return NULL;
}

int tierce__addresses_create(struct tierce__addresses **out, uint32_t max)
{
    struct tierce__addresses *addresses = tierce__calloc(1, sizeof(*addresses));
    if (addresses == NULL)
        return -ENOMEM;
    if (tierce__map_reserve(&addresses->entries, 64) < 0) {
        tierce__free(addresses);
        return -ENOMEM;
    }
    addresses->max = max;
    if (getrandom(&addresses->seed, sizeof(addresses->seed), 0) != sizeof(addresses->seed))
        addresses->seed = (uint64_t)(uintptr_t)addresses;
    tierce__lock_init(&addresses->lock, TIERCE__LOCK_SERVE_ADDRESSES);
    *out = addresses;
    return 0;
}

void tierce__addresses_destroy(struct tierce__addresses *addresses)
{
    if (addresses == NULL)
        return;
    tierce__lock_fini(&addresses->lock);
    TIERCE__MAP_FOR_EACH (node, &addresses->entries)
        tierce__free(TIERCE__CONTAINER_OF(node, struct address_entry, node));
    tierce__map_fini(&addresses->entries);
    tierce__free(addresses);
}

static void read_address(struct tierce__address *out, const struct sockaddr *from)
{
    static const uint8_t v4_prefix[12] = {[10] = 0xff, [11] = 0xff};
    memset(out, 0, sizeof(*out));
    if (from->sa_family == AF_INET) {
        memcpy(out->bytes, v4_prefix, sizeof(v4_prefix));
        memcpy(out->bytes + 12, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    } else if (from->sa_family == AF_INET6) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
        memcpy(out->bytes, in6, IN6_IS_ADDR_V4MAPPED(in6) ? 16 : 8);
    }
}

bool tierce__addresses_enter(struct tierce__addresses *addresses, struct tierce__address *out,
                             const struct sockaddr *from)
{
    struct tierce__address address;
    read_address(&address, from);
    uint64_t of_address = hash(addresses, &address);
    tierce__lock_take(&addresses->lock);
    struct address_entry *entry = find(addresses, of_address, &address);
    if (entry == NULL && addresses->max > 0) {
        entry = tierce__calloc(1, sizeof(*entry));
        if (entry != NULL) {
            entry->address = address;
            tierce__map_put(&addresses->entries, &entry->node, of_address);
        }
    }
    bool entered = entry != NULL && entry->count < addresses->max;
    TIERCE_ASSERT(entry == NULL || entry->count <= addresses->max);
    if (entered)
        entry->count++;
    tierce__lock_drop(&addresses->lock);
    if (entered)
        *out = address;
    return entered;
}

void tierce__addresses_leave(struct tierce__addresses *addresses,
                             const struct tierce__address *address)
{
    tierce__lock_take(&addresses->lock);
    struct address_entry *entry = find(addresses, hash(addresses, address), address);
    TIERCE_ASSERT(entry != NULL && entry->count > 0);
    if (--entry->count == 0) {
        tierce__map_remove(&addresses->entries, &entry->node);
        tierce__free(entry);
    }
    tierce__lock_drop(&addresses->lock);
}
