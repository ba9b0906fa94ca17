/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_REPORT_PRIVATE_H
#define TIERCE_OPTIMIZER_REPORT_PRIVATE_H

#include "base/json/json_write.h"
#include "optimizer/report/report.h"

/* Parts of the report's JSON, each a member of the document or of a curve; a part that the report
 * lacks is omitted. */

/* report_json_money.c */
void tierce__report_json_economy(struct tierce__json_write *json,
                                 const struct tierce__report *report);
void tierce__report_json_trust(struct tierce__json_write *json,
                               const struct tierce__report *report);
void tierce__report_json_curve_money(struct tierce__json_write *json,
                                     const struct tierce__report *report,
                                     const struct tierce__report_curve *curve);

/* report_json_life.c */
void tierce__report_json_timeline(struct tierce__json_write *json,
                                  const struct tierce__report *report);
void tierce__report_json_life(struct tierce__json_write *json, const struct tierce__report *report);
void tierce__report_json_tiers(struct tierce__json_write *json,
                               const struct tierce__report *report);

#endif
