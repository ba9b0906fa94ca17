/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_EVENTS_H
#define TIERCE_ENGINE_EVENTS_H

#include <stdatomic.h>
#include <tierce/events.h>

#include "store/tier.h"

/*
 * The stream of events of an engine: a ring that the tiers' watchers fill; each reader has its own
 * pace. Without subscribers no events are kept.
 *
 * Thread: any; one lock of class EVENTS inside, held for a few records at a time.
 */

struct tierce__events;

/* The ring is made with the first subscription. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__events_create(struct tierce__events **out, uint32_t ring_count);
/* No subscription is left. NULL is accepted. */
void tierce__events_destroy(struct tierce__events *events);

/* From a tier's watcher, under the tier's lock. */
void tierce__events_tell(struct tierce__events *events, size_t level,
                         const struct tierce__tier_event *event);

/* tierce_events_subscribe for a part of the engine itself: it does not keep the engine open, and is
 * unsubscribed before the engine's tiers are closed. Errors: as there. */
TIERCE_MUSTUSE int tierce__events_subscribe(struct tierce_subscription **out,
                                            struct tierce_engine *engine,
                                            const struct tierce_events_opts *opts);
void tierce__events_unsubscribe(struct tierce_subscription *subscription);

/* tierce_events_snapshot that ends early, with 0, when *stop is set: the events so far are then a
 * part of the contents. NULL: it does not. */
TIERCE_MUSTUSE int tierce__events_snapshot(struct tierce_subscription *subscription,
                                           uint64_t *sequence, tierce_events_fn *fn, void *arg,
                                           const _Atomic bool *stop);

/*
 * A snapshot in pieces, at the caller's pace. Chunks that are admitted or evicted between two
 * pieces may be missing or contained, as tierce_events_snapshot says.
 *
 *     rc = tierce__events_scan_begin(&scan, subscription, &sequence);
 *     while (tierce__events_scan_next(scan, fn, arg))
 *         ...
 *     tierce__events_scan_end(scan);
 *
 * Thread: one at a time.
 */
struct tierce__events_scan;

/* [borrow] subscription until the end. Errors: TIERCE_E_CLOSED, -ENOMEM. */
TIERCE_MUSTUSE int tierce__events_scan_begin(struct tierce__events_scan **out,
                                             struct tierce_subscription *subscription,
                                             uint64_t *sequence);
/* Looks at the next 256 places of a tier, and calls `fn` at most once. False: there were none. */
bool tierce__events_scan_next(struct tierce__events_scan *scan, tierce_events_fn *fn, void *arg);
/* NULL is accepted. */
void tierce__events_scan_end(struct tierce__events_scan *scan);

/* The number of the last event; 0 before the first. */
uint64_t tierce__events_last(struct tierce__events *events);

#endif
