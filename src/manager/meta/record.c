/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/meta/record.h"

#include "base/arena.h"
#include "base/assert.h"
#include "base/bytes.h"

#include <errno.h>
#include <string.h>

/* docs/inside/format/record.md */
enum {
    VERSION = 1,
    FLAG_PARENT = 1,
    FLAG_KEY_TEXT = 2,
    FLAG_EXPIRES = 4,
    FLAG_SUMS = 8,
    FLAG_CHILD = 16,
    FLAG_GENERATION = 32,
    FLAG_HINT = 64,
    FLAGS = FLAG_PARENT | FLAG_KEY_TEXT | FLAG_EXPIRES | FLAG_SUMS | FLAG_CHILD | FLAG_GENERATION |
            FLAG_HINT,
    AT_FLAGS = 1,
    AT_LOCATIONS = 2,
    AT_USES = 4,
    AT_USED = 8,
    AT_STORED = 16,
    AT_CHILDREN = 24,
    FIXED_BYTES = 28,
    LOCATION_BYTES_MIN = TIERCE__LOCATION_ID_BYTES + 3,
    PLACE_BYTES_MIN = 4,
    VARINT_BYTES_MAX = 10,
    USED_BITS = 64 - TIERCE__HINT_BITS, /* of a record with a hint: until the year 2112 */
};

/* ---- numbers of variable length ------------------------------------------------------------- */

static size_t varint_size(uint64_t value)
{
    size_t bytes = 1;
    for (; value >= 0x80; value >>= 7)
        bytes++;
    TIERCE_DASSERT(bytes <= VARINT_BYTES_MAX);
    return bytes;
}

static uint8_t *varint_write(uint8_t *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *out++ = (uint8_t)(value | 0x80);
    *out++ = (uint8_t)value;
    return out;
}

/* ---- the last use --------------------------------------------------------------------------- */

/* Writes the time of the last use and its hint, which together take no more room than the time, so
 * that a touch in place can set or remove a hint. */
static void write_used(uint8_t *fixed, int64_t used_us, uint16_t hint)
{
    uint64_t used = (uint64_t)used_us;
    bool has_hint = hint != 0 && used >> USED_BITS == 0;
    TIERCE_DASSERT(tierce__hint_is_valid(hint));
    fixed[AT_FLAGS] = (uint8_t)((fixed[AT_FLAGS] & ~FLAG_HINT) | (has_hint ? FLAG_HINT : 0));
    tierce__store_le64(fixed + AT_USED, has_hint ? (uint64_t)hint << USED_BITS | used : used);
}

/* *hint is unchecked. */
static int64_t read_used(const uint8_t *fixed, uint16_t *hint)
{
    uint64_t used = tierce__load_le64(fixed + AT_USED);
    bool has_hint = (fixed[AT_FLAGS] & FLAG_HINT) != 0;
    *hint = has_hint ? (uint16_t)(used >> USED_BITS) : 0;
    return (int64_t)(has_hint ? used & ((UINT64_C(1) << USED_BITS) - 1) : used);
}

/* ---- the input ------------------------------------------------------------------------------ */

/* The rest of the input; `bad` is sticky, and then the rest is empty. */
struct record_reader {
    const uint8_t *at, *end;
    bool bad;
    bool has_sums, had_sum; /* places are followed by sums; one of them was not 0 */
};

static const uint8_t *take_bytes(struct record_reader *reader, uint64_t bytes)
{
    static const uint8_t none[TIERCE__PLACE_SUM_BYTES];
    _Static_assert(sizeof(none) >= sizeof(uint64_t) && sizeof(none) >= TIERCE__LOCATION_ID_BYTES,
                   "a number, an id or a sum may be read from it");
    if (bytes > (uint64_t)(reader->end - reader->at)) {
        reader->bad = true;
        reader->at = reader->end;
        return none;
    }
    const uint8_t *taken = reader->at;
    reader->at += bytes;
    TIERCE_DASSERT(reader->at <= reader->end);
    return taken;
}

/* Accepts only the shortest form, so that equal records have equal bytes. */
static uint64_t take_varint(struct record_reader *reader, uint64_t max)
{
    TIERCE_DASSERT(reader->at <= reader->end);
    uint64_t value = 0;
    for (unsigned i = 0; i < VARINT_BYTES_MAX && reader->at < reader->end; i++) {
        uint64_t byte = *reader->at++;
        if (i == VARINT_BYTES_MAX - 1 && byte > 1)
            break;
        value |= (byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            if ((byte == 0 && i > 0) || value > max)
                break;
            return value;
        }
    }
    reader->bad = true;
    reader->at = reader->end;
    return 0;
}

/* ---- writing -------------------------------------------------------------------------------- */

static size_t place_size(const struct tierce__spec_place *place)
{
    size_t bytes = varint_size(place->spec) + varint_size(place->file) + varint_size(place->slot) +
                   varint_size(place->bytes);
    if (place->file != 0)
        return bytes;
    size_t text = place->uri != NULL ? strlen(place->uri) : 0;
    return bytes + varint_size(text) + text;
}

static bool has_sums(const struct tierce__record *record)
{
    for (uint16_t l = 0; l < record->location_count; l++) {
        const struct tierce__location *location = &record->locations[l];
        for (uint16_t i = 0; i < location->place_count; i++)
            if (tierce__place_has_sum(&location->places[i]))
                return true;
    }
    return false;
}

static size_t location_size(const struct tierce__location *location, bool with_sums)
{
    size_t bytes = TIERCE__LOCATION_ID_BYTES + varint_size(location->storage) + 1 +
                   varint_size(location->place_count);
    for (uint16_t i = 0; i < location->place_count; i++)
        bytes += place_size(&location->places[i]) + (with_sums ? TIERCE__PLACE_SUM_BYTES : 0);
    TIERCE_DASSERT(bytes >= LOCATION_BYTES_MIN);
    return bytes;
}

size_t tierce__record_size(const struct tierce__record *record)
{
    TIERCE_DASSERT(record->expires_us >= 0);
    size_t bytes = FIXED_BYTES;
    if (record->has_parent)
        bytes += sizeof(uint64_t);
    if (record->expires_us > 0)
        bytes += sizeof(uint64_t);
    if (record->has_child)
        bytes += sizeof(uint64_t);
    if (record->generation > 0)
        bytes += sizeof(uint64_t);
    if (record->key_text != NULL)
        bytes += varint_size(record->key_text_bytes) + record->key_text_bytes;
    bool with_sums = has_sums(record);
    for (uint16_t i = 0; i < record->location_count; i++)
        bytes += location_size(&record->locations[i], with_sums);
    return bytes;
}

static uint8_t *write_text(uint8_t *out, const char *text, size_t bytes)
{
    out = varint_write(out, bytes);
    if (bytes > 0)
        memcpy(out, text, bytes);
    return out + bytes;
}

static uint8_t *write_location(uint8_t *out, const struct tierce__location *location,
                               bool with_sums)
{
    memcpy(out, location->id, TIERCE__LOCATION_ID_BYTES);
    out = varint_write(out + TIERCE__LOCATION_ID_BYTES, location->storage);
    *out++ = location->type;
    out = varint_write(out, location->place_count);
    for (uint16_t i = 0; i < location->place_count; i++) {
        const struct tierce__spec_place *place = &location->places[i];
        TIERCE_ASSERT(place->file == 0 || place->uri == NULL);
        out = varint_write(out, place->spec);
        out = varint_write(out, place->file);
        out = varint_write(out, place->slot);
        out = varint_write(out, place->bytes);
        if (place->file == 0)
            out = write_text(out, place->uri, place->uri != NULL ? strlen(place->uri) : 0);
        if (with_sums) {
            memcpy(out, place->sum, TIERCE__PLACE_SUM_BYTES);
            out += TIERCE__PLACE_SUM_BYTES;
        }
    }
    return out;
}

void tierce__record_write(const struct tierce__record *record, void *out)
{
    uint8_t *bytes = (uint8_t *)out;
    bool with_sums = has_sums(record);
    bytes[0] = VERSION;
    bytes[AT_FLAGS] = (uint8_t)((record->has_parent ? FLAG_PARENT : 0) |
                                (record->key_text != NULL ? FLAG_KEY_TEXT : 0) |
                                (record->expires_us > 0 ? FLAG_EXPIRES : 0) |
                                (with_sums ? FLAG_SUMS : 0) | (record->has_child ? FLAG_CHILD : 0) |
                                (record->generation > 0 ? FLAG_GENERATION : 0));
    tierce__store_le16(bytes + AT_LOCATIONS, record->location_count);
    tierce__store_le32(bytes + AT_USES, record->uses);
    write_used(bytes, record->used_us, record->hint);
    tierce__store_le64(bytes + AT_STORED, (uint64_t)record->stored_us);
    tierce__store_le32(bytes + AT_CHILDREN, record->children);
    uint8_t *at = bytes + FIXED_BYTES;
    if (record->has_parent) {
        tierce__store_le64(at, (uint64_t)record->parent);
        at += sizeof(uint64_t);
    }
    if (record->expires_us > 0) {
        tierce__store_le64(at, (uint64_t)record->expires_us);
        at += sizeof(uint64_t);
    }
    if (record->has_child) {
        tierce__store_le64(at, (uint64_t)record->child);
        at += sizeof(uint64_t);
    }
    if (record->generation > 0) {
        tierce__store_le64(at, record->generation);
        at += sizeof(uint64_t);
    }
    if (record->key_text != NULL)
        at = write_text(at, record->key_text, record->key_text_bytes);
    for (uint16_t i = 0; i < record->location_count; i++)
        at = write_location(at, &record->locations[i], with_sums);
    TIERCE_DASSERT((size_t)(at - bytes) == tierce__record_size(record));
}

/* ---- reading -------------------------------------------------------------------------------- */

static int read_text(const char **out, size_t *bytes, struct record_reader *reader,
                     struct tierce__arena *arena)
{
    uint64_t length = take_varint(reader, SIZE_MAX);
    const uint8_t *text = take_bytes(reader, length);
    *out = NULL;
    *bytes = 0;
    if (reader->bad)
        return TIERCE_E_FORMAT;
    TIERCE_DASSERT(text + length == reader->at);
    char *copy = tierce__arena_copy(arena, (const char *)text, (size_t)length);
    if (copy == NULL)
        return -ENOMEM;
    *out = copy;
    *bytes = (size_t)length;
    return 0;
}

static int read_place(struct tierce__spec_place *out, struct record_reader *reader,
                      struct tierce__arena *arena)
{
    *out = (struct tierce__spec_place){.spec = (uint16_t)take_varint(reader, UINT16_MAX)};
    out->file = take_varint(reader, UINT64_MAX);
    out->slot = (uint32_t)take_varint(reader, UINT32_MAX);
    out->bytes = take_varint(reader, UINT64_MAX);
    if (reader->bad)
        return TIERCE_E_FORMAT;
    if (out->file == 0) {
        size_t bytes;
        int rc = read_text(&out->uri, &bytes, reader, arena);
        if (rc < 0)
            return rc;
        if (bytes == 0)
            out->uri = NULL;
        else if (memchr(out->uri, '\0', bytes) != NULL)
            return TIERCE_E_FORMAT;
    }
    if (reader->has_sums)
        memcpy(out->sum, take_bytes(reader, sizeof(out->sum)), sizeof(out->sum));
    reader->had_sum |= tierce__place_has_sum(out);
    return reader->bad ? TIERCE_E_FORMAT : 0;
}

static bool is_id(const uint8_t *id)
{
    for (unsigned i = 0; i < TIERCE__LOCATION_ID_BYTES; i++)
        if (!(id[i] >= 'a' && id[i] <= 'z') && !(id[i] >= '0' && id[i] <= '9'))
            return false;
    return true;
}

static int read_location(struct tierce__location *out, struct record_reader *reader,
                         struct tierce__arena *arena)
{
    const uint8_t *id = take_bytes(reader, TIERCE__LOCATION_ID_BYTES);
    memcpy(out->id, id, TIERCE__LOCATION_ID_BYTES);
    out->storage = (uint16_t)take_varint(reader, UINT16_MAX);
    out->type = *take_bytes(reader, 1);
    out->place_count = (uint16_t)take_varint(reader, UINT16_MAX);
    /* The count is bounded by the bytes that are left. */
    if (reader->bad || !is_id(id) ||
        out->place_count > (size_t)(reader->end - reader->at) / PLACE_BYTES_MIN)
        return TIERCE_E_FORMAT;
    if (out->place_count == 0)
        return 0;
    struct tierce__spec_place *places =
        tierce__arena_alloc(arena, out->place_count * sizeof(*places));
    if (places == NULL)
        return -ENOMEM;
    out->places = places;
    int rc = 0;
    for (uint16_t i = 0; rc == 0 && i < out->place_count; i++)
        rc = read_place(&places[i], reader, arena);
    return rc;
}

static int read_locations(struct tierce__record *out, struct record_reader *reader,
                          struct tierce__arena *arena)
{
    if (out->location_count > (size_t)(reader->end - reader->at) / LOCATION_BYTES_MIN)
        return TIERCE_E_FORMAT;
    if (out->location_count == 0)
        return 0;
    TIERCE_DASSERT(reader->at < reader->end);
    struct tierce__location *locations =
        tierce__arena_calloc(arena, out->location_count, sizeof(*locations));
    if (locations == NULL)
        return -ENOMEM;
    out->locations = locations;
    int rc = 0;
    for (uint16_t i = 0; rc == 0 && i < out->location_count; i++)
        rc = read_location(&locations[i], reader, arena);
    return rc;
}

int tierce__record_read(struct tierce__record *out, struct tierce__arena *arena, const void *bytes,
                        size_t count)
{
    const uint8_t *fixed = (const uint8_t *)bytes;
    if (count < 1)
        return TIERCE_E_FORMAT;
    if (fixed[0] != VERSION)
        return TIERCE_E_VERSION;
    if (count < FIXED_BYTES || (fixed[AT_FLAGS] & ~FLAGS) != 0)
        return TIERCE_E_FORMAT;
    struct record_reader reader = {.at = fixed + FIXED_BYTES,
                                   .end = fixed + count,
                                   .has_sums = (fixed[AT_FLAGS] & FLAG_SUMS) != 0};
    struct tierce__record record = {
        .stored_us = (int64_t)tierce__load_le64(fixed + AT_STORED),
        .uses = tierce__load_le32(fixed + AT_USES),
        .children = tierce__load_le32(fixed + AT_CHILDREN),
        .has_parent = (fixed[AT_FLAGS] & FLAG_PARENT) != 0,
        .has_child = (fixed[AT_FLAGS] & FLAG_CHILD) != 0,
        .location_count = tierce__load_le16(fixed + AT_LOCATIONS),
    };
    record.used_us = read_used(fixed, &record.hint);
    if ((fixed[AT_FLAGS] & FLAG_HINT) != 0)
        reader.bad = record.hint == 0 || !tierce__hint_is_valid(record.hint);
    if (record.has_parent)
        record.parent = (int64_t)tierce__load_le64(take_bytes(&reader, sizeof(uint64_t)));
    if ((fixed[AT_FLAGS] & FLAG_EXPIRES) != 0) {
        record.expires_us = (int64_t)tierce__load_le64(take_bytes(&reader, sizeof(uint64_t)));
        reader.bad = reader.bad || record.expires_us <= 0;
    }
    if (record.has_child)
        record.child = (int64_t)tierce__load_le64(take_bytes(&reader, sizeof(uint64_t)));
    if ((fixed[AT_FLAGS] & FLAG_GENERATION) != 0) {
        record.generation = tierce__load_le64(take_bytes(&reader, sizeof(uint64_t)));
        reader.bad = reader.bad || record.generation == 0;
    }
    int rc = reader.bad ? TIERCE_E_FORMAT : 0;
    if (rc == 0 && (fixed[AT_FLAGS] & FLAG_KEY_TEXT) != 0)
        rc = read_text(&record.key_text, &record.key_text_bytes, &reader, arena);
    if (rc == 0)
        rc = read_locations(&record, &reader, arena);
    if (rc == 0 && (reader.bad || reader.at != reader.end || reader.has_sums != reader.had_sum))
        rc = TIERCE_E_FORMAT;
    TIERCE_DASSERT(rc != 0 || tierce__record_size(&record) == count);
    if (rc == 0)
        *out = record;
    return rc;
}

/* ---- the record in its place ---------------------------------------------------------------- */

void tierce__record_touch(void *bytes, size_t count, const struct tierce__record_use *use)
{
    uint8_t *fixed = (uint8_t *)bytes;
    if (count < FIXED_BYTES || fixed[0] != VERSION)
        return;
    uint16_t hint;
    int64_t used_us = read_used(fixed, &hint);
    if (use->uses == 0)
        write_used(fixed, used_us, use->hint);
    else if (used_us <= use->used_us)
        write_used(fixed, use->used_us, use->hint);
    uint32_t sum;
    if (__builtin_add_overflow(tierce__load_le32(fixed + AT_USES), use->uses, &sum))
        sum = UINT32_MAX;
    tierce__store_le32(fixed + AT_USES, sum);
}

uint64_t tierce__record_bytes(const struct tierce__record *record)
{
    uint64_t bytes = 0;
    for (uint16_t i = 0; i < record->location_count; i++)
        bytes += tierce__location_bytes(&record->locations[i]);
    return bytes;
}

uint64_t tierce__location_bytes(const struct tierce__location *location)
{
    uint64_t bytes = 0;
    for (uint16_t i = 0; i < location->place_count; i++)
        bytes += location->places[i].bytes;
    return bytes;
}
