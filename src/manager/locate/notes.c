/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/locate/notes.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <errno.h>
#include <string.h>

enum { TEXT_BYTES_MAX = UINT16_MAX, PLACE_BYTES_MIN = 2 + 8 + 4 + 8 + 1 };

/* ---- writing --------------------------------------------------------------------------------- */

static unsigned char *room_for(struct tierce__note_writer *w, size_t count)
{
    TIERCE_DASSERT(w->used <= w->room && w->error <= 0);
    if (w->error < 0)
        return NULL;
    if (w->room - w->used < count) {
        size_t room = (w->used + count) * 2 + 256;
        unsigned char *grown = tierce__arena_alloc(w->arena, room);
        if (grown == NULL) {
            w->error = -ENOMEM;
            return NULL;
        }
        if (w->used > 0)
            memcpy(grown, w->bytes, w->used);
        w->bytes = grown;
        w->room = room;
    }
    w->used += count;
    TIERCE_DASSERT(w->used <= w->room);
    return w->bytes + w->used - count;
}

void tierce__note_put8(struct tierce__note_writer *w, uint8_t value)
{
    unsigned char *at = room_for(w, 1);
    if (at != NULL)
        *at = value;
}

void tierce__note_put16(struct tierce__note_writer *w, uint16_t value)
{
    unsigned char *at = room_for(w, 2);
    if (at != NULL)
        tierce__store_le16(at, value);
}

void tierce__note_put32(struct tierce__note_writer *w, uint32_t value)
{
    unsigned char *at = room_for(w, 4);
    if (at != NULL)
        tierce__store_le32(at, value);
}

void tierce__note_put64(struct tierce__note_writer *w, uint64_t value)
{
    unsigned char *at = room_for(w, 8);
    if (at != NULL)
        tierce__store_le64(at, value);
}

void tierce__note_put_bytes(struct tierce__note_writer *w, const void *bytes, size_t count)
{
    unsigned char *at = room_for(w, count);
    if (at != NULL)
        memcpy(at, bytes, count);
}

void tierce__note_put_text(struct tierce__note_writer *w, const char *text)
{
    size_t bytes = strlen(text);
    if (bytes > TEXT_BYTES_MAX) {
        w->error = w->error < 0 ? w->error : TIERCE_E_LIMIT;
        return;
    }
    tierce__note_put16(w, (uint16_t)bytes);
    tierce__note_put_bytes(w, text, bytes);
}

void tierce__note_put_places(struct tierce__note_writer *w, const struct tierce__spec_place *places,
                             size_t count)
{
    if (count > UINT16_MAX) {
        w->error = w->error < 0 ? w->error : TIERCE_E_LIMIT;
        return;
    }
    tierce__note_put16(w, (uint16_t)count);
    for (size_t i = 0; i < count; i++) {
        TIERCE_ASSERT(places[i].file == 0 || places[i].uri == NULL);
        tierce__note_put16(w, places[i].spec);
        tierce__note_put64(w, places[i].file);
        tierce__note_put32(w, places[i].slot);
        tierce__note_put64(w, places[i].bytes);
        tierce__note_put8(w, places[i].uri != NULL);
        if (places[i].uri != NULL)
            tierce__note_put_text(w, places[i].uri);
    }
}

int tierce__note_finish(struct tierce__note_writer *w, const void **out, size_t *bytes)
{
    TIERCE_DASSERT(w->error <= 0 && w->used <= w->room);
    if (w->error < 0)
        return w->error;
    *out = w->bytes;
    *bytes = w->used;
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

void tierce__note_refuse(struct tierce__note_reader *r, int error)
{
    TIERCE_DASSERT(error < 0);
    r->error = r->error < 0 ? r->error : error;
}

static const unsigned char *take(struct tierce__note_reader *r, size_t count)
{
    TIERCE_DASSERT(r->error <= 0);
    if (r->error == 0 && count > r->left)
        r->error = TIERCE_E_FORMAT;
    if (r->error < 0)
        return NULL;
    const unsigned char *at = r->at;
    r->at += count;
    r->left -= count;
    return at;
}

void tierce__note_get_version(struct tierce__note_reader *r)
{
    (void)tierce__note_get_version_to(r, TIERCE__NOTE_VERSION);
}

uint8_t tierce__note_get_version_to(struct tierce__note_reader *r, uint8_t last)
{
    TIERCE_DASSERT(r->error == 0 && last >= TIERCE__NOTE_VERSION);
    uint8_t version = tierce__note_get8(r);
    if (version < TIERCE__NOTE_VERSION || version > last)
        tierce__note_refuse(r, TIERCE_E_VERSION);
    return version;
}

uint8_t tierce__note_get8(struct tierce__note_reader *r)
{
    const unsigned char *at = take(r, 1);
    return at != NULL ? *at : 0;
}

bool tierce__note_get_flag(struct tierce__note_reader *r)
{
    uint8_t value = tierce__note_get8(r);
    if (value > 1)
        tierce__note_refuse(r, TIERCE_E_FORMAT);
    return value == 1;
}

uint16_t tierce__note_get16(struct tierce__note_reader *r)
{
    const unsigned char *at = take(r, 2);
    return at != NULL ? tierce__load_le16(at) : 0;
}

uint32_t tierce__note_get32(struct tierce__note_reader *r)
{
    const unsigned char *at = take(r, 4);
    return at != NULL ? tierce__load_le32(at) : 0;
}

uint64_t tierce__note_get64(struct tierce__note_reader *r)
{
    const unsigned char *at = take(r, 8);
    return at != NULL ? tierce__load_le64(at) : 0;
}

void tierce__note_get_bytes(struct tierce__note_reader *r, void *out, size_t count)
{
    const unsigned char *at = take(r, count);
    if (at != NULL)
        memcpy(out, at, count);
    else
        memset(out, 0, count);
}

const char *tierce__note_get_text(struct tierce__note_reader *r)
{
    uint16_t bytes = tierce__note_get16(r);
    const unsigned char *at = take(r, bytes);
    if (at == NULL)
        return NULL;
    if (memchr(at, '\0', bytes) != NULL) {
        tierce__note_refuse(r, TIERCE_E_FORMAT);
        return NULL;
    }
    const char *copy = tierce__arena_copy(r->arena, (const char *)at, bytes);
    if (copy == NULL)
        tierce__note_refuse(r, -ENOMEM);
    return copy;
}

const struct tierce__spec_place *tierce__note_get_places(struct tierce__note_reader *r,
                                                         uint16_t *count)
{
    *count = tierce__note_get16(r);
    if (r->error == 0 && *count > r->left / PLACE_BYTES_MIN)
        tierce__note_refuse(r, TIERCE_E_FORMAT);
    if (r->error < 0)
        return NULL;
    struct tierce__spec_place *places = tierce__arena_calloc(r->arena, *count, sizeof(*places));
    if (places == NULL) {
        tierce__note_refuse(r, -ENOMEM);
        return NULL;
    }
    for (size_t i = 0; i < *count; i++) {
        places[i].spec = tierce__note_get16(r);
        places[i].file = tierce__note_get64(r);
        places[i].slot = tierce__note_get32(r);
        places[i].bytes = tierce__note_get64(r);
        bool has_uri = tierce__note_get_flag(r);
        if (has_uri && places[i].file != 0)
            tierce__note_refuse(r, TIERCE_E_FORMAT);
        if (has_uri)
            places[i].uri = tierce__note_get_text(r);
    }
    return r->error == 0 ? places : NULL;
}

int tierce__note_end(const struct tierce__note_reader *r)
{
    TIERCE_DASSERT(r->error <= 0);
    if (r->error < 0)
        return r->error;
    return r->left == 0 ? 0 : TIERCE_E_FORMAT;
}
