/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PINNED_H
#define TIERCE_PINNED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

#include "base/threads/lock.h"

/*
 * The slices of host memory that a device has pinned, in the order of their addresses. Slices do
 * not overlap.
 *
 * Thread: any; one lock of class DEVICE. Does not block.
 */
struct tierce__pinned {
    struct tierce__lock lock;
    struct tierce__pinned_slice *slices; /* [room], [count] in use, ascending */
    size_t count, room;
};

struct tierce__pinned_slice {
    uintptr_t from, to;
};

void tierce__pinned_init(struct tierce__pinned *pinned);
void tierce__pinned_fini(struct tierce__pinned *pinned);

/* Adds a slice. Errors: TIERCE_E_ARGUMENT (empty, or it overlaps another one), -ENOMEM. */
TIERCE_MUSTUSE int tierce__pinned_add(struct tierce__pinned *pinned, const void *memory,
                                      size_t bytes);

/* Whether there is a slice with these bounds. */
bool tierce__pinned_has(struct tierce__pinned *pinned, const void *memory, size_t bytes);

/* Removes a slice. False if there is no slice with these bounds. */
bool tierce__pinned_remove(struct tierce__pinned *pinned, const void *memory, size_t bytes);

/* The last slice, without removing it; false if there is none. */
bool tierce__pinned_last(struct tierce__pinned *pinned, struct tierce__pinned_slice *out);

/* Whether all of a range lies in slices. */
bool tierce__pinned_covers(struct tierce__pinned *pinned, const void *memory, size_t bytes);

#endif
