/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/map.h"
#include "base/mix.h"
#include "store/remote/fleet/fleet_requests.h"

#include <errno.h>
#include <string.h>

#define PLACES_MAX 32768u
#define PLACE_S    10u
#define URI_MAX    1023u /* bounds the memory of all places to 100 MB */

struct fleet_place {
    struct tierce__fleet_spot base;
    struct tierce__map_node in_map;
    struct tierce__list in_order;
    const struct tierce__fleet_part *part;
    int64_t key;
    uint64_t at_ns;
    uint32_t holders; /* gets that read there, and `places` */
    char texts[];     /* the URI, and the object's name */
};

struct tierce__fleet_places {
    struct tierce__map map;
    struct tierce__list order; /* the oldest first */
};

int tierce__fleet_places_open(struct tierce__fleet_places **out)
{
    struct tierce__fleet_places *places = tierce__calloc(1, sizeof(*places));
    if (places == NULL)
        return -ENOMEM;
    tierce__list_init(&places->order);
    *out = places;
    return 0;
}

static struct fleet_place *place_of(struct tierce__fleet_spot *spot)
{
    struct fleet_place *place = TIERCE__CONTAINER_OF(spot, struct fleet_place, base);
    TIERCE_ASSERT(place->holders > 0);
    return place;
}

void tierce__fleet_spot_hold(struct tierce__fleet_spot *spot)
{
    place_of(spot)->holders++;
}

void tierce__fleet_spot_release(struct tierce__fleet_spot *spot)
{
    struct fleet_place *place = spot != NULL ? place_of(spot) : NULL;
    if (place != NULL && --place->holders == 0)
        tierce__free(place);
}

static void drop(struct tierce__fleet_places *places, struct fleet_place *place)
{
    TIERCE_DASSERT(places->map.count > 0);
    tierce__map_remove(&places->map, &place->in_map);
    tierce__list_remove(&place->in_order);
    tierce__fleet_spot_release(&place->base);
}

static struct fleet_place *oldest(struct tierce__fleet_places *places)
{
    TIERCE_DASSERT(!tierce__list_empty(&places->order));
    return TIERCE__CONTAINER_OF(places->order.next, struct fleet_place, in_order);
}

void tierce__fleet_places_close(struct tierce__fleet_places *places)
{
    if (places == NULL)
        return;
    while (!tierce__list_empty(&places->order))
        drop(places, oldest(places));
    TIERCE_DASSERT(places->map.count == 0);
    tierce__map_fini(&places->map);
    tierce__free(places);
}

static uint64_t hash_of(const struct tierce__fleet_part *part, int64_t key)
{
    return tierce__mix((uint64_t)key ^ tierce__mix((uint64_t)(uintptr_t)part));
}

static struct fleet_place *find(struct tierce__fleet_places *places,
                                const struct tierce__fleet_part *part, int64_t key)
{
    struct tierce__map_node *node = tierce__map_find(&places->map, hash_of(part, key));
    for (; node != NULL; node = tierce__map_find_next(node)) {
        struct fleet_place *place = TIERCE__CONTAINER_OF(node, struct fleet_place, in_map);
        if (place->part == part && place->key == key)
            return place;
    }
    return NULL;
}

void tierce__fleet_places_forget(struct tierce__fleet_places *places,
                                 const struct tierce__fleet_part *part, int64_t key)
{
    struct fleet_place *place = find(places, part, key);
    if (place != NULL)
        drop(places, place);
}

void tierce__fleet_places_forget_part(struct tierce__fleet_places *places,
                                      const struct tierce__fleet_part *part)
{
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &places->order) {
        struct fleet_place *place = TIERCE__CONTAINER_OF(node, struct fleet_place, in_order);
        if (place->part == part)
            drop(places, place);
    }
    TIERCE_DASSERT(places->map.count <= PLACES_MAX);
}

struct tierce__fleet_spot *tierce__fleet_places_find(struct tierce__fleet_places *places,
                                                     const struct tierce__fleet_part *part,
                                                     int64_t key)
{
    struct fleet_place *place = find(places, part, key);
    uint64_t now_ns = tierce__now_ns();
    if (place == NULL)
        return NULL;
    TIERCE_DASSERT(place->at_ns <= now_ns);
    if (now_ns - place->at_ns < PLACE_S * 1000 * TIERCE__MS_NS &&
        tierce__fleet_store_is_current(place->base.place.store))
        return &place->base;
    drop(places, place);
    return NULL;
}

/* A place that no table has. Errors: as tierce__fleet_places_put. */
static int make(struct fleet_place **out, struct tierce__fleet *fleet,
                struct tierce__fleet_part *part, const char *uri)
{
    size_t bytes = strlen(uri) + 1;
    if (bytes > URI_MAX + 1) {
        tierce__fleet_say(fleet, TIERCE__FLEET_TROUBLE_ANSWER,
                          "the manager's URI for a chunk has %zu bytes; at most %u are accepted",
                          bytes - 1, URI_MAX);
        return TIERCE_E_MISS;
    }
    struct fleet_place *place = tierce__alloc(sizeof(*place) + 2 * bytes);
    if (place == NULL)
        return -ENOMEM;
    memcpy(place->texts, uri, bytes);
    place->base.uri = place->texts;
    int rc = tierce__fleet_place_check(fleet, part, &place->base.place, place->texts + bytes,
                                       place->texts);
    if (rc == 0)
        *out = place;
    else
        tierce__free(place);
    return rc;
}

int tierce__fleet_places_put(struct tierce__fleet *fleet, struct tierce__fleet_spot **out,
                             struct tierce__fleet_part *part, int64_t key, const char *uri)
{
    struct tierce__fleet_places *places = fleet->places;
    struct fleet_place *place = NULL;
    tierce__fleet_places_forget(places, part, key);
    int rc = make(&place, fleet, part, uri);
    if (rc < 0)
        return rc;
    if (places->map.count >= PLACES_MAX)
        drop(places, oldest(places));
    place->part = part;
    place->key = key;
    place->at_ns = tierce__now_ns();
    place->holders = 1;
    tierce__list_init(&place->in_order);
    tierce__list_push_back(&places->order, &place->in_order);
    tierce__map_put(&places->map, &place->in_map, hash_of(part, key));
    TIERCE_DASSERT(places->map.count <= PLACES_MAX);
    if (out != NULL)
        *out = &place->base;
    return 0;
}
