/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_NOTES_H
#define TIERCE_MANAGER_NOTES_H

#include "base/arena.h"
#include "manager/meta/record.h"

/*
 * Writers and readers of notes in their durable form, little-endian. After an error a writer or
 * reader does nothing more; the error is returned at its end, and a reader returns 0 until then.
 * Input bytes are untrusted: every length is checked.
 *
 * Thread: one at a time.
 */

enum { TIERCE__NOTE_VERSION = 1 };

struct tierce__note_writer {
    struct tierce__arena *arena;
    unsigned char *bytes;
    size_t used, room;
    int error;
};

void tierce__note_put8(struct tierce__note_writer *w, uint8_t value);
void tierce__note_put16(struct tierce__note_writer *w, uint16_t value);
void tierce__note_put32(struct tierce__note_writer *w, uint32_t value);
void tierce__note_put64(struct tierce__note_writer *w, uint64_t value);
void tierce__note_put_bytes(struct tierce__note_writer *w, const void *bytes, size_t count);
void tierce__note_put_text(struct tierce__note_writer *w, const char *text);
void tierce__note_put_places(struct tierce__note_writer *w, const struct tierce__spec_place *places,
                             size_t count);
/* Returns the bytes written, in the arena. Errors: -ENOMEM, TIERCE_E_LIMIT. */
TIERCE_MUSTUSE int tierce__note_finish(struct tierce__note_writer *w, const void **out,
                                       size_t *bytes);

struct tierce__note_reader {
    const unsigned char *at;
    size_t left;
    struct tierce__arena *arena; /* for texts and places */
    int error;
};

/* Fails with TIERCE_E_VERSION unless the version is TIERCE__NOTE_VERSION. */
void tierce__note_get_version(struct tierce__note_reader *r);
/* The same for notes that have versions 1 to `last`; returns the version. */
uint8_t tierce__note_get_version_to(struct tierce__note_reader *r, uint8_t last);
uint8_t tierce__note_get8(struct tierce__note_reader *r);
/* Reads 0 or 1; fails for other values. */
bool tierce__note_get_flag(struct tierce__note_reader *r);
uint16_t tierce__note_get16(struct tierce__note_reader *r);
uint32_t tierce__note_get32(struct tierce__note_reader *r);
uint64_t tierce__note_get64(struct tierce__note_reader *r);
void tierce__note_get_bytes(struct tierce__note_reader *r, void *out, size_t count);
const char *tierce__note_get_text(struct tierce__note_reader *r);
const struct tierce__spec_place *tierce__note_get_places(struct tierce__note_reader *r,
                                                         uint16_t *count);
void tierce__note_refuse(struct tierce__note_reader *r, int error);
/* Returns 0 if no error occurred and no bytes are left. */
TIERCE_MUSTUSE int tierce__note_end(const struct tierce__note_reader *r);

#endif
