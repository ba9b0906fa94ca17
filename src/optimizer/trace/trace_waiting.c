/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/trace/trace_waiting.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/trace/trace_private.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

#define CAPACITY_MIN 64u

/* Open addressing by the hash of the name; a slot with an empty name is free. */
struct tierce__waiting_place {
    uint64_t hash;
    struct tierce__order_ticket ticket;
    uint8_t length;
    char name[TIERCE__WAITING_NAME_MAX];
};

static bool is_named(const struct tierce__waiting_place *place, uint64_t hash, const void *name,
                     size_t length)
{
    return place->hash == hash && place->length == length && memcmp(place->name, name, length) == 0;
}

/* The slot of a name, or the free slot for it. */
static size_t place_of(const struct tierce__waiting *w, uint64_t hash, const void *name,
                       size_t length)
{
    size_t at = hash & (w->capacity - 1);
    while (w->places[at].length != 0 && !is_named(&w->places[at], hash, name, length))
        at = (at + 1) & (w->capacity - 1);
    return at;
}

/* Room for one more. */
static int reserve(struct tierce__waiting *w, const struct tierce__trace *trace)
{
    if (w->count < w->capacity / 2)
        return 0;
    size_t waiting = 0;
    for (size_t i = 0; i < w->capacity; i++)
        waiting += w->places[i].length != 0 && tierce__trace_waits(trace, w->places[i].ticket);
    struct tierce__waiting_place *old = w->places;
    size_t old_capacity = w->capacity, capacity = CAPACITY_MIN;
    while (capacity / 4 <= waiting)
        capacity *= 2;
    struct tierce__waiting_place *places = tierce__calloc(capacity, sizeof(*places));
    if (places == NULL)
        return -ENOMEM;
    *w = (struct tierce__waiting){.places = places, .capacity = capacity, .count = waiting};
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i].length == 0 || !tierce__trace_waits(trace, old[i].ticket))
            continue;
        places[place_of(w, old[i].hash, old[i].name, old[i].length)] = old[i];
    }
    tierce__free(old);
    return 0;
}

int tierce__waiting_put(struct tierce__waiting *waiting, const struct tierce__trace *trace,
                        const void *name, size_t length, struct tierce__order_ticket ticket)
{
    TIERCE_ASSERT(length > 0 && length <= TIERCE__WAITING_NAME_MAX);
    int rc = reserve(waiting, trace);
    if (rc < 0)
        return rc;
    uint64_t hash = XXH3_64bits(name, length);
    struct tierce__waiting_place *place = &waiting->places[place_of(waiting, hash, name, length)];
    waiting->count += place->length == 0;
    *place =
        (struct tierce__waiting_place){.hash = hash, .ticket = ticket, .length = (uint8_t)length};
    memcpy(place->name, name, length);
    return 0;
}

bool tierce__waiting_find(const struct tierce__waiting *waiting, struct tierce__order_ticket *out,
                          const void *name, size_t length)
{
    if (waiting->capacity == 0 || length > TIERCE__WAITING_NAME_MAX)
        return false;
    size_t at = place_of(waiting, XXH3_64bits(name, length), name, length);
    if (waiting->places[at].length == 0)
        return false;
    *out = waiting->places[at].ticket;
    return true;
}

/* Moves later entries of the probe sequence into the hole. */
void tierce__waiting_forget(struct tierce__waiting *waiting, const void *name, size_t length)
{
    struct tierce__order_ticket ticket;
    if (!tierce__waiting_find(waiting, &ticket, name, length))
        return;
    size_t mask = waiting->capacity - 1;
    size_t hole = place_of(waiting, XXH3_64bits(name, length), name, length);
    waiting->count--;
    for (size_t at = (hole + 1) & mask; waiting->places[at].length != 0; at = (at + 1) & mask) {
        size_t home = waiting->places[at].hash & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            waiting->places[hole] = waiting->places[at];
            hole = at;
        }
    }
    waiting->places[hole].length = 0;
}

void tierce__waiting_fini(struct tierce__waiting *waiting)
{
    tierce__free(waiting->places);
    *waiting = (struct tierce__waiting){0};
}
