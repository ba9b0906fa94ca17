/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which named values there are: keys from the tiers' own indexes, names from the objects.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "engine/objects_private.h"

#define PAGE_PLACES 128u  /* of a tier's index at a time */
#define PLACES_MAX  8192u /* for one call */

/* Keys of a space among some places of a tier. */
struct page {
    uint32_t ns;
    size_t count;
    struct tierce__key keys[PAGE_PLACES];
};

static void note_key(void *arg, const struct tierce__tier_event *event)
{
    struct page *page = arg;
    if (event->key->ns == page->ns)
        page->keys[page->count++] = *event->key;
}

/* False: the tier has no more. */
static bool next_page(struct tierce__objects *space, struct page *page, size_t rung,
                      uint32_t *place)
{
    struct tierce__tier *tier = space->engine->rungs[rung].tier;
    page->ns = space->space.key.ns;
    page->count = 0;
    return tier->ops->scan(tier, place, PAGE_PLACES, note_key, page);
}

/* Keys of a page that no faster rung has. */
static uint64_t count_new(struct tierce_engine *engine, const struct page *page, size_t rung)
{
    struct tierce__unasked unasked;
    uint64_t count = 0;
    for (size_t i = 0; i < page->count; i++)
        count += rung == 0 || tierce__storage_search(engine, (1u << rung) - 1, &page->keys[i], 1,
                                                     NULL, &unasked) == 0;
    return count;
}

uint64_t tierce__objects_count(struct tierce__objects *space)
{
    TIERCE_CHECK_MAGIC(space, TIERCE__OBJECTS_MAGIC);
    struct tierce_engine *engine = space->engine;
    struct page page;
    uint64_t count = 0;
    if (tierce__engine_inherited(engine))
        return 0;
    for (size_t rung = 0; rung < engine->rung_count; rung++) {
        uint32_t place = 0;
        bool more = true;
        while (more) {
            more = next_page(space, &page, rung, &place);
            count += count_new(engine, &page, rung);
        }
    }
    return count;
}

/* Tells one value; 1 if it was, 0 if it is not there (any more), or why it could not be read. */
static int tell(struct tierce__objects *space, size_t rung, const struct tierce__key *key,
                uint64_t deadline_ns, tierce__objects_each_fn *each, void *arg)
{
    struct tierce__object_form form;
    struct tierce__buf *buf = tierce__objects_accept(
        space, &form, tierce__storage_lease(space->engine, key), key, NULL, 0);
    int rc = buf != NULL ? 0 : TIERCE_E_MISS;
    if (buf == NULL && rung > 0)
        rc = tierce__objects_peek(space, &form, &buf, rung, key, deadline_ns);
    if (rc < 0)
        return rc == TIERCE_E_MISS ? 0 : rc;
    each(arg, &form.what);
    tierce__buf_release(buf);
    return 1;
}

static int tell_page(struct tierce__objects *space, size_t rung, const struct page *page,
                     uint64_t deadline_ns, tierce__objects_each_fn *each, void *arg)
{
    int told = 0;
    for (size_t i = 0; i < page->count; i++) {
        int rc = tell(space, rung, &page->keys[i], deadline_ns, each, arg);
        if (rc < 0)
            return rc;
        told += rc;
    }
    return told;
}

int tierce__objects_scan(struct tierce__objects *space, uint64_t *cursor, uint32_t count,
                         tierce__objects_each_fn *each, void *arg)
{
    TIERCE_CHECK_MAGIC(space, TIERCE__OBJECTS_MAGIC);
    struct tierce_engine *engine = space->engine;
    uint64_t deadline_ns = tierce__deadline_in_ms(engine->settings.lookup_ms);
    size_t rung = (size_t)(*cursor >> 32);
    uint32_t place = (uint32_t)*cursor;
    uint64_t told = 0;
    struct page page;
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    for (uint32_t looked = 0; rung < engine->rung_count && told < count && looked < PLACES_MAX;
         looked += PAGE_PLACES) {
        bool more = next_page(space, &page, rung, &place);
        int rc = tell_page(space, rung, &page, deadline_ns, each, arg);
        if (rc < 0) /* the next call begins where this page does, if there was any before it */
            return looked > 0 ? 0 : rc;
        told += (uint64_t)rc;
        if (!more) {
            rung++;
            place = 0;
        }
        *cursor = rung < engine->rung_count ? (uint64_t)rung << 32 | place : 0;
    }
    if (rung >= engine->rung_count)
        *cursor = 0;
    return 0;
}
