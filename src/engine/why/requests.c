/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/why/requests.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/map.h"
#include "base/mix.h"
#include "base/threads/lock.h"

/* Empty, started (it has a session and no name), or noted (it has a name). */
struct request_slot {
    struct tierce__list node;
    struct tierce__request_record record; /* noted.session: also before the note */
};

struct tierce__requests {
    struct tierce__lock lock; /* REQUESTS: below */
    uint32_t count;
    struct tierce__list order;      /* of all slots: the oldest first, which is used next */
    struct tierce__numbers started; /* the started slots, by session */
    struct request_slot *slots;     /* [count] */
};

int tierce__requests_create(struct tierce__requests **out, uint32_t count)
{
    *out = NULL;
    if (count == 0)
        return 0;
    struct tierce__requests *requests = tierce__calloc(1, sizeof(*requests));
    if (requests == NULL)
        return -ENOMEM;
    requests->count = count;
    requests->slots = tierce__calloc(count, sizeof(*requests->slots));
    int rc = requests->slots != NULL ? tierce__numbers_init(&requests->started, count) : -ENOMEM;
    if (rc < 0) {
        tierce__free(requests->slots);
        tierce__free(requests);
        return rc;
    }
    tierce__list_init(&requests->order);
    for (uint32_t i = 0; i < count; i++)
        tierce__list_push_back(&requests->order, &requests->slots[i].node);
    tierce__lock_init(&requests->lock, TIERCE__LOCK_REQUESTS);
    *out = requests;
    return 0;
}

void tierce__requests_destroy(struct tierce__requests *requests)
{
    if (requests == NULL)
        return;
    tierce__lock_fini(&requests->lock);
    tierce__numbers_fini(&requests->started);
    tierce__free(requests->slots);
    tierce__free(requests);
}

uint32_t tierce__requests_room(const struct tierce__requests *requests)
{
    return requests != NULL ? requests->count : 0;
}

/* ---- slots, under the lock ------------------------------------------------------------------- */

static uint32_t hash_of(uint64_t session)
{
    return (uint32_t)(tierce__mix(session) >> 32);
}

static bool is_noted(const struct request_slot *slot)
{
    return slot->record.name[0] != '\0';
}

static bool is_started(const struct request_slot *slot)
{
    return !is_noted(slot) && slot->record.noted.session != 0;
}

/* The slot no longer belongs to its session: it is overwritten or noted. */
static void forget_session(struct tierce__requests *requests, struct request_slot *slot)
{
    tierce__lock_assert_held(&requests->lock);
    if (is_started(slot))
        tierce__numbers_erase(&requests->started, hash_of(slot->record.noted.session),
                              (uint32_t)(slot - requests->slots));
}

/* Empties the oldest slot, which becomes the newest. */
static struct request_slot *take_slot(struct tierce__requests *requests)
{
    tierce__lock_assert_held(&requests->lock);
    struct request_slot *slot =
        TIERCE__CONTAINER_OF(requests->order.next, struct request_slot, node);
    forget_session(requests, slot);
    slot->record = (struct tierce__request_record){0};
    tierce__list_remove(&slot->node);
    tierce__list_push_back(&requests->order, &slot->node);
    return slot;
}

/* The slot of a session that is not noted, or NULL. */
static struct request_slot *find_started(struct tierce__requests *requests, uint64_t session)
{
    tierce__lock_assert_held(&requests->lock);
    struct tierce__probe probe = tierce__numbers_first(&requests->started, hash_of(session));
    while (probe.number != TIERCE__NUMBER_NONE) {
        struct request_slot *slot = &requests->slots[probe.number];
        TIERCE_DASSERT(is_started(slot));
        if (slot->record.noted.session == session)
            return slot;
        probe.number = tierce__numbers_next(&requests->started, &probe.place, probe.hash);
    }
    return NULL;
}

static struct request_slot *start(struct tierce__requests *requests, uint64_t session)
{
    struct request_slot *slot = find_started(requests, session);
    if (slot != NULL)
        return slot;
    slot = take_slot(requests);
    slot->record.noted.session = session;
    tierce__numbers_put(&requests->started, hash_of(session), (uint32_t)(slot - requests->slots));
    TIERCE_DASSERT(is_started(slot));
    return slot;
}

/* ---- facts of the engine --------------------------------------------------------------------- */

/* Whether a lookup without a missing chunk keeps the missing chunk of an earlier lookup, which was
 * in another group of layers, or after the end of this lookup. */
static bool leaves_miss(const struct tierce__request_lookup *earlier,
                        const struct tierce__request_lookup *lookup)
{
    return lookup->miss.reason == TIERCE_MISS_NONE && earlier->miss.reason != TIERCE_MISS_NONE &&
           (lookup->ns != earlier->ns || lookup->to_block <= earlier->miss.block);
}

void tierce__requests_looked(struct tierce__requests *requests,
                             const struct tierce__request_lookup *lookup)
{
    if (requests == NULL || lookup->session == 0)
        return;
    TIERCE_DASSERT(lookup->block_tokens > 0 && lookup->chunk_blocks > 0);
    tierce__lock_take(&requests->lock);
    struct tierce__request_record *record = &start(requests, lookup->session)->record;
    /* A lookup after the first store follows a preemption: it does not explain the first hit. */
    if (record->stored_tokens == 0 && !(record->was_looked && leaves_miss(&record->lookup, lookup)))
        record->lookup = *lookup;
    record->was_looked = true;
    tierce__lock_drop(&requests->lock);
}

void tierce__requests_stored(struct tierce__requests *requests, uint64_t session, uint64_t tokens)
{
    if (requests == NULL || session == 0 || tokens == 0)
        return;
    tierce__lock_take(&requests->lock);
    start(requests, session)->record.stored_tokens += tokens;
    tierce__lock_drop(&requests->lock);
}

void tierce__requests_handed(struct tierce__requests *requests, uint64_t session,
                             const struct tierce__request_handover *handover)
{
    if (requests == NULL || session == 0)
        return;
    TIERCE_DASSERT(handover->from[0] != '\0');
    tierce__lock_take(&requests->lock);
    start(requests, session)->record.handover = *handover;
    tierce__lock_drop(&requests->lock);
}

/* ---- the inference engine's note ------------------------------------------------------------- */

/* The slot for the note of a session, at the newest position. */
static struct request_slot *finish(struct tierce__requests *requests, uint64_t session)
{
    tierce__lock_assert_held(&requests->lock);
    struct request_slot *slot = session != 0 ? find_started(requests, session) : NULL;
    if (slot == NULL)
        return take_slot(requests);
    forget_session(requests, slot);
    tierce__list_remove(&slot->node);
    tierce__list_push_back(&requests->order, &slot->node);
    return slot;
}

void tierce__requests_note(struct tierce__requests *requests, const struct tierce_request *request)
{
    size_t bytes = strlen(request->name);
    TIERCE_ASSERT(bytes > 0 && bytes <= TIERCE_REQUEST_NAME_MAX);
    if (requests == NULL)
        return;
    tierce__lock_take(&requests->lock);
    struct tierce__request_record *record = &finish(requests, request->session)->record;
    memcpy(record->name, request->name, bytes + 1);
    record->when_s = tierce__wall_s();
    record->noted = *request;
    record->noted.name = NULL;
    tierce__lock_drop(&requests->lock);
}

/* ---- questions ------------------------------------------------------------------------------- */

/* How a question names a request: only the best kind of match that occurs is used. vLLM adds "-"
 * and a random suffix to the id that its client knows. */
enum request_match { MATCH_WHOLE, MATCH_SUFFIXED, MATCH_PART, MATCH_KINDS };

static bool is_match(const struct request_slot *slot, const char *name, enum request_match kind)
{
    const char *own = slot->record.name;
    size_t bytes = strlen(name);
    if (!is_noted(slot))
        return false;
    return kind == MATCH_WHOLE      ? strcmp(own, name) == 0
           : kind == MATCH_SUFFIXED ? strncmp(own, name, bytes) == 0 && own[bytes] == '-'
                                    : strstr(own, name) != NULL;
}

/* The matches, and the newest of them. */
static uint32_t count_matches(const struct tierce__requests *requests,
                              const struct request_slot **newest, const char *name,
                              enum request_match kind)
{
    uint32_t matches = 0;
    TIERCE__LIST_FOR_EACH (it, &requests->order) {
        const struct request_slot *slot = TIERCE__CONTAINER_OF(it, struct request_slot, node);
        if (!is_match(slot, name, kind))
            continue;
        *newest = slot;
        matches++;
    }
    return matches;
}

uint32_t tierce__requests_find(struct tierce__requests *requests,
                               struct tierce__request_record *out, const char *name)
{
    const struct request_slot *newest = NULL;
    if (requests == NULL || name[0] == '\0')
        return 0;
    tierce__lock_take(&requests->lock);
    uint32_t matches = 0;
    for (unsigned kind = 0; kind < MATCH_KINDS && matches == 0; kind++)
        matches = count_matches(requests, &newest, name, (enum request_match)kind);
    TIERCE_DASSERT((matches > 0) == (newest != NULL));
    if (newest != NULL)
        *out = newest->record;
    tierce__lock_drop(&requests->lock);
    return matches;
}
