/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_BACK_OFF_H
#define TIERCE_MANAGER_BACK_OFF_H

#include <stdint.h>

/* How long a pair of groups, or a group, is left alone after a step that was wrong: six times
 * `settle`, and twice as long each time. Thread: the owner's. */
struct tierce__back_off {
    uint32_t times;
    int64_t until_us;
};

static inline void tierce__back_off_more(struct tierce__back_off *back_off, int64_t undone_us,
                                         int64_t settle_us)
{
    enum { SETTLES = 6, DOUBLINGS = 5 };
    int64_t wait_us = (SETTLES * settle_us) << back_off->times;
    if (undone_us + wait_us > back_off->until_us)
        back_off->until_us = undone_us + wait_us;
    if (back_off->times < DOUBLINGS)
        back_off->times++;
}

#endif
