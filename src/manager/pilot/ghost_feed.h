/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_GHOST_FEED_H
#define TIERCE_MANAGER_GHOST_FEED_H

#include "manager/locate/locator.h"

/*
 * Tells the ghost the facts that requests do not show: the bytes of each instance's keys, on
 * average over those stored now, and how large the groups' capacities are. Curves reach to four
 * times the quota of a group, at least to 2 GiB above it, or, without one, as far as their sample
 * does.
 *
 * Threads: any; takes LOCATOR and GHOST, one after the other.
 */
void tierce__ghosts_feed(struct tierce__locator *locator);

#endif
