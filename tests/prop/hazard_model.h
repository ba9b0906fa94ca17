/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_HAZARD_MODEL_H
#define TIERCE_TESTS_HAZARD_MODEL_H

#include "core/policy/hazard_index.h"
#include "core/policy/policy.h"

/*
 * The policy `hazard` once more, with arrays that are searched instead of rings, lists and bitmaps.
 * Only the index (worths from hits and risks) is shared with the policy; test_hazard_index compares
 * it with its definition.
 */

enum { HAZARD_TICKS_MAX = 1 << 18, HAZARD_GHOSTS_MAX = 256 };

/* A past use of a key. */
struct hazard_record {
    uint32_t tick, klass, frequency;
    bool sampled;
};

struct hazard_ghost_model {
    uint64_t key;
    uint64_t number; /* of all ghosts of its ring */
    struct hazard_record past;
};

struct hazard_entry {
    uint64_t key;
    struct hazard_record past;
    bool listed;
    uint32_t link_level; /* of its list when it was linked: 0 tick, 1 span, 2 the last */
    int64_t position;    /* in that list */
};

struct hazard_model {
    uint32_t slots, count, tick, use_tick, left;
    uint64_t unit, phase, unfaded, last_key;
    struct tierce__policy_origin origin; /* of the request */
    int64_t clock;
    bool adapts;
    struct hazard_entry entries[64];
    struct hazard_ghost_model ghosts[2][HAZARD_GHOSTS_MAX]; /* oldest first; by sampled */
    uint32_t ghost_count[2];
    uint64_t ghost_number[2]; /* of the next one */
    /* Keys used in a tick, or of the sample in a span, and not since, with a class. */
    uint32_t (*tick_counts)[TIERCE__HAZARD_CLASSES]; /* [HAZARD_TICKS_MAX] */
    uint32_t (*span_counts)[TIERCE__HAZARD_CLASSES]; /* [HAZARD_TICKS_MAX / 32] */
    struct tierce__policy_hints hints;
    struct tierce__hazard_index index;
};

void hazard_model_init(struct hazard_model *h, uint32_t slots, uint64_t capacity);
void hazard_model_fini(struct hazard_model *h);
void hazard_model_request(struct hazard_model *h, const struct tierce__policy_request *request);
bool hazard_model_admits(const struct hazard_model *h, const struct tierce__policy_entry *entry,
                         uint32_t victim);
void hazard_model_skip(struct hazard_model *h, const struct tierce__policy_entry *entry);
void hazard_model_insert(struct hazard_model *h, uint32_t slot,
                         const struct tierce__policy_entry *entry);
void hazard_model_touch(struct hazard_model *h, uint32_t slot);
void hazard_model_remove(struct hazard_model *h, uint32_t slot, bool evicted);
/* An entry becomes a leaf that may be evicted, or no longer is. */
void hazard_model_list(struct hazard_model *h, uint32_t slot, bool listed, bool older);
uint32_t hazard_model_victim(const struct hazard_model *h);

#endif
