/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_REPORT_KVCM_H
#define TIERCE_OPTIMIZER_REPORT_KVCM_H

#include "optimizer/kvcm/kvcm.h"

/*
 * Replays a recording in KVCM's caches of one layout and writes KVCM's own output, for users of its
 * scripts: a file INSTANCE_hit_rates.csv per instance with lookups, one row per lookup. An unnamed
 * instance is called "instance".
 *
 * Threads: one at a time.
 */

/* Of one instance. */
struct tierce__kvcm_total {
    uint64_t requests;
    uint64_t internal_blocks, external_blocks; /* looked up */
    uint64_t internal_hits, external_hits;
};

#define TIERCE__KVCM_WHY_BYTES 512u
#define TIERCE__KVCM_FILES_MAX 500u

/*
 * names[i] is the name of instance i of the layout; totals[i] is filled. A missing `folder` is
 * created; NULL: no files. [borrow] all for the call. Errors, `why` a sentence: -ENOMEM, negative
 * errno (a file), TIERCE_E_ARGUMENT (a name that cannot be a file name), TIERCE_E_LIMIT (over
 * TIERCE__KVCM_FILES_MAX instances with files, over 2^31 blocks). After an error incomplete files
 * remain.
 */
TIERCE_MUSTUSE int tierce__kvcm_report(struct tierce__kvcm_total *totals,
                                       const struct tierce__recording *recording,
                                       const struct tierce__kvcm_layout *layout,
                                       const char *const *names, const char *folder,
                                       char why[TIERCE__KVCM_WHY_BYTES]);

#endif
