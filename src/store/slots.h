/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_STORE_SLOTS_H
#define TIERCE_STORE_SLOTS_H

#include "store/tier.h"

/*
 * The limit of a tier on the number of its chunks. A tier of many small chunks reaches it while
 * most of its bytes are free, which looks like an eviction without a reason. So the tier counts
 * these evictions and rejections, and logs them at most once a minute.
 */

/* The parameter that sets the number. [borrow] */
struct tierce__slots_opts {
    const char *tier;       /* for the log */
    const char *setting;    /* NULL: nothing is logged */
    uint64_t setting_bytes; /* the size for which its value is the number */
};

struct tierce__slots {
    struct tierce__slots_opts opts;
    uint64_t logged_ns; /* 0: never */
};

struct tierce__slots_news {
    bool is_due; /* false: there is nothing to log */
    uint64_t slots;
    uint64_t used_bytes;
    uint64_t cap_bytes;
};

/*
 * A chunk of `tier` was evicted or rejected for lack of a slot, although the tier had bytes for it.
 * Counts it in *stats; *news becomes due if it is to be logged. Under the tier's lock.
 */
void tierce__slots_note(struct tierce__slots *slots, struct tierce__slots_news *news,
                        struct tierce__tier_stats *stats, uint64_t used_bytes);

/* Logs what is due. Without the lock. */
void tierce__slots_log(const struct tierce__slots *slots, const struct tierce__slots_news *news);

#endif
