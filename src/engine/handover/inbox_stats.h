/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_INBOX_STATS_H
#define TIERCE_INBOX_STATS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * The numbers of an engine's inbox: the rows of inbox_stats.def. They belong to the engine, so that
 * a page of metrics may be made while a hand-over starts or stops. All are relaxed: the inbox
 * changes its levels under its lock, and a page requires figures alone.
 */

struct tierce__inbox_stats {
#define TIERCE_INBOX_STAT(field, metric, label, value, is_counter, text) uint64_t field;
#include "engine/handover/inbox_stats.def"
#undef TIERCE_INBOX_STAT
};

struct tierce__inbox_counts {
    _Atomic bool is_there; /* the engine has had an inbox */
#define TIERCE_INBOX_STAT(field, metric, label, value, is_counter, text) _Atomic uint64_t field;
#include "engine/handover/inbox_stats.def"
#undef TIERCE_INBOX_STAT
};

#endif
