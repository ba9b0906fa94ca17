/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/addresses.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/lock.h"
#include "base/mix.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>

#define CAPACITY_MIN 64u /* a power of two, as every capacity is */

/* An address without connections stays until the table is rebuilt. */
struct entry {
    struct tierce__address address;
    uint32_t count;
    bool is_used;
};

struct tierce__addresses {
    struct tierce__lock lock; /* SERVE_ADDRESSES */
    uint64_t seed; /* clients must not be able to choose addresses that collide in the table */
    uint32_t max;
    struct entry *entries;
    size_t capacity, used;
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

/* Returns the address's entry, or the free one for it. */
static struct entry *find(const struct tierce__addresses *addresses,
                          const struct tierce__address *address)
{
    size_t at = hash(addresses, address) & (addresses->capacity - 1);
    while (addresses->entries[at].is_used &&
           memcmp(&addresses->entries[at].address, address, sizeof(*address)) != 0)
        at = (at + 1) & (addresses->capacity - 1);
    return &addresses->entries[at];
}

/* Rebuilds the table with the addresses that have connections; afterwards at least half of it is
 * empty. */
static bool make_anew(struct tierce__addresses *addresses)
{
    const struct entry *old = addresses->entries;
    size_t old_capacity = addresses->capacity, live = 0, capacity = CAPACITY_MIN;
    for (size_t i = 0; i < old_capacity; i++)
        live += old[i].count > 0;
    while (capacity < 4 * (live + 1))
        capacity *= 2;
    struct entry *entries = tierce__calloc(capacity, sizeof(*entries));
    if (entries == NULL)
        return false;
    addresses->entries = entries;
    addresses->capacity = capacity;
    addresses->used = live;
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i].count > 0)
            *find(addresses, &old[i].address) = old[i];
    tierce__free((void *)(uintptr_t)old);
    return true;
}

int tierce__addresses_create(struct tierce__addresses **out, uint32_t max)
{
    struct tierce__addresses *addresses = tierce__calloc(1, sizeof(*addresses));
    if (addresses == NULL)
        return -ENOMEM;
    addresses->max = max;
    if (getrandom(&addresses->seed, sizeof(addresses->seed), 0) != sizeof(addresses->seed))
        addresses->seed = (uint64_t)(uintptr_t)addresses;
    if (!make_anew(addresses)) {
        tierce__free(addresses);
        return -ENOMEM;
    }
    tierce__lock_init(&addresses->lock, TIERCE__LOCK_SERVE_ADDRESSES);
    *out = addresses;
    return 0;
}

void tierce__addresses_destroy(struct tierce__addresses *addresses)
{
    if (addresses == NULL)
        return;
    tierce__lock_fini(&addresses->lock);
    tierce__free(addresses->entries);
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
    tierce__lock_take(&addresses->lock);
    struct entry *entry = find(addresses, &address);
    bool entered = entry->count < addresses->max;
    if (entered && !entry->is_used) {
        entered = 2 * (addresses->used + 1) <= addresses->capacity || make_anew(addresses);
        entry = find(addresses, &address);
        addresses->used += entered;
    }
    if (entered) {
        entry->address = address;
        entry->is_used = true;
        entry->count++;
    }
    tierce__lock_drop(&addresses->lock);
    if (entered)
        *out = address;
    return entered;
}

void tierce__addresses_leave(struct tierce__addresses *addresses,
                             const struct tierce__address *address)
{
    tierce__lock_take(&addresses->lock);
    struct entry *entry = find(addresses, address);
    TIERCE_ASSERT(entry->count > 0);
    entry->count--;
    tierce__lock_drop(&addresses->lock);
}
