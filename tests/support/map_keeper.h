/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_MAP_KEEPER_H
#define TIERCE_TESTS_MAP_KEEPER_H

#include "store/transfer/transfer.h"

/*
 * A keeper of objects in memory, for tests of the transfer server: names to bytes on the heap. It
 * does what a test wants: answers at once or later, holds them, is full, or fails.
 *
 * Thread: any.
 */

struct map_keeper;

/* `space`: the only one that it has. Objects may have so many bytes together. */
struct map_keeper *map_keeper_create(const char *space, uint64_t bytes_max);
struct tierce__keeper *map_keeper_base(struct map_keeper *keeper);
/* All leases and rooms must have been given back, and nothing may be held. */
void map_keeper_destroy(struct map_keeper *keeper);

/* From now on a thread answers finds, drops and keeps, a little later and in any order. */
void map_keeper_set_late(struct map_keeper *keeper);

/* From now on finds, drops and keeps are held, until they are let go in order of arrival. */
void map_keeper_hold(struct map_keeper *keeper);
void map_keeper_let_go(struct map_keeper *keeper);
size_t map_keeper_held(struct map_keeper *keeper);

/* The next `times` finds, rooms, drops and keeps fail with this status. */
void map_keeper_fail(struct map_keeper *keeper, int status, unsigned times);

size_t map_keeper_objects(struct map_keeper *keeper);
/* Leases and rooms that were not given back. */
size_t map_keeper_lent(struct map_keeper *keeper);
/* Finds that were answered. */
size_t map_keeper_finds(struct map_keeper *keeper);
/* Removes all objects. */
void map_keeper_clear(struct map_keeper *keeper);

#endif
