/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_PLACE_NOTES_H
#define TIERCE_MANAGER_PLACE_NOTES_H

#include <stdbool.h>
#include <stdint.h>

/* The form of the notes of files (docs/inside/format/places.md), for places.c and place_notes.c. */

enum {
    TIERCE__PLACE_SLOT_BITS = 16, /* of a file's number: its slots minus one; a counter is above */
    TIERCE__PLACE_NOTE_VERSION = 1,
    TIERCE__PLACE_NOTE_HEAD = 13,   /* version, storage, spec, bytes */
    TIERCE__PLACE_RESERVE_NOTE = 0, /* the number of the note with the first counter that is not
                                       reserved */
};

/* Returns whether a file with so many used slots has a note. */
static inline bool tierce__place_is_noted(uint32_t used, uint32_t slots)
{
    return used > 0 && used < slots;
}

#endif
