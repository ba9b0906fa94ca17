/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_LOCATOR_WRITE_PRIVATE_H
#define TIERCE_MANAGER_LOCATOR_WRITE_PRIVATE_H

#include "base/assert.h"
#include "manager/locate/locator_private.h"

/* A StartWrite in progress: locator_claim.c claims its keys, locator_write.c does the rest. A copy
 * (locator_move.c) claims its keys itself. */

struct tierce__starting {
    struct tierce__live *live;
    const struct tierce__catalog *catalog;
    const struct tierce__group *group;
    const struct tierce__write_request *request;
    struct tierce__arena *arena;
    uint32_t
        *spec_group;     /* of each key: the index of its spec group; spec_group_count: all specs */
    const bool **specs;  /* of each requested group, and of all specs: the specs in it */
    const bool **wanted; /* of each key: the specs of its group that are neither stored nor being
                            written yet */
    bool *claimed;       /* of a key: the specs that other sessions write */
    uint8_t *taken;      /* of each key: it need not be written */
    uint8_t *has_room;   /* of each key: it is counted already, because the index has it, with other
                            specs or in unavailable storages, or another session writes it */
    struct tierce__write_session *session;         /* its keys are the claimed ones */
    size_t *positions;                             /* of the session's keys in the request */
    const struct tierce__location *const *sources; /* of a copy: of each key, or NULL */
    const struct tierce__storage *storage;
    struct tierce__spec_place *places; /* spec by spec, key by key */
    struct tierce__meta_note *notes;
    size_t note_count, notes_max;
    size_t places_taken;
    /* Of a copy: struct tierce__storage_choice_opts. */
    bool (*may_take)(void *arg, const struct tierce__storage *storage, size_t position);
    void *may_take_arg;
};

/* Returns whether the spec's part is written for the key at that position of the request. */
static inline bool tierce__starting_has_spec(const struct tierce__starting *s, size_t position,
                                             size_t spec)
{
    TIERCE_DASSERT(position < s->request->count && spec < s->live->instance.spec_count);
    return s->wanted[position][spec];
}

/* Makes the session with the keys that need to be written, and claims them. On an error the session
 * may exist, with claims. */
TIERCE_MUSTUSE int tierce__starting_claim(struct tierce__starting *s, char why[TIERCE__WHY_BYTES]);

/* Releases the claims with drop[i] set, and closes the gaps. The others keep only the specs that
 * are still wanted. */
void tierce__starting_unclaim(struct tierce__starting *s, const bool *drop);

/* Releases the claims from an index on. */
void tierce__starting_unclaim_from(struct tierce__starting *s, size_t first);

/* Returns how many of the session's keys fit into the index. Keys that are indexed already,
 * or that other sessions write, need no room. Errors: TIERCE_E_FULL, there is no room for any. */
TIERCE_MUSTUSE int tierce__starting_count_room(struct tierce__starting *s, size_t *fit,
                                               char why[TIERCE__WHY_BYTES]);

/* Returns the store's result; on an error counts the keys as rejected. */
TIERCE_MUSTUSE int tierce__starting_fail(struct tierce__starting *s, size_t keys, int rc,
                                         char why[TIERCE__WHY_BYTES]);

/* Chooses a storage and places for the claimed keys, makes the session durable, and opens it. On an
 * error tierce__starting_undo must follow. */
TIERCE_MUSTUSE int tierce__starting_open(struct tierce__starting *s, struct tierce__started *out,
                                         char why[TIERCE__WHY_BYTES]);
/* Releases the bytes, claims and places of a session that does not begin. */
void tierce__starting_undo(struct tierce__starting *s);

#endif
