/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_REPORT_KVCM_H
#define TIERCE_OPTIMIZER_REPORT_KVCM_H

#include "optimizer/kvcm.h"

/*
 * A recording replayed in KVCM's caches of one layout, with what KVCM itself writes of it: a file
 * INSTANCE_hit_rates.csv for each instance that is looked up in, a row a lookup, for those who have
 * its scripts. Where a trace does not name its instance, it is "instance".
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
 * names[i] is that of instance i of the layout; totals[i] is filled. `folder` is made where it is
 * missing; NULL: no files. [borrow] all for the call.
 * Errors, `why` a sentence: -ENOMEM, negative errno (a file), TIERCE_E_ARGUMENT (a name that is no
 * name of a file), TIERCE_E_LIMIT (over TIERCE__KVCM_FILES_MAX instances with files, over 2^31
 * blocks). Files that were begun stay.
 */
TIERCE_MUSTUSE int tierce__kvcm_report(struct tierce__kvcm_total *totals,
                                       const struct tierce__recording *recording,
                                       const struct tierce__kvcm_layout *layout,
                                       const char *const *names, const char *folder,
                                       char why[TIERCE__KVCM_WHY_BYTES]);

#endif
