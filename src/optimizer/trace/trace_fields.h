/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TRACE_FIELDS_H
#define TIERCE_OPTIMIZER_TRACE_FIELDS_H

#include "base/json/json.h"

/*
 * Table-driven parsing of formats with one JSON object per line: a row per known field gives its
 * type and its member in a struct. Unknown fields are skipped, a repeated field is an error, and
 * null counts as missing. Missing fields are zero or empty.
 *
 *     static const struct tierce__trace_field fields[] = {
 *         TIERCE__FIELD("timestamp", TIME_MS, line, time_us),
 *         TIERCE__FIELD("hash_ids", IDS, line, ids)};
 */

/* A growing array of numbers; the memory is reused for the next line. */
struct tierce__ids {
    uint64_t *at;
    size_t count, capacity;
};

/* The blocks that the engine held: the first `offset`, or by flags. */
struct tierce__trace_mask {
    bool is_offset;
    int64_t offset;
    uint8_t *flags;
    size_t count, capacity;
};

#define TIERCE__NAME_MAX 255u
struct tierce__name {
    size_t length;
    char text[TIERCE__NAME_MAX + 1];
};

enum tierce__field_type {
    TIERCE__FIELD_TIME_S, /* int64_t microseconds, never negative */
    TIERCE__FIELD_TIME_MS,
    TIERCE__FIELD_TIME_US,
    TIERCE__FIELD_COUNT,   /* uint64_t */
    TIERCE__FIELD_INTEGER, /* int64_t */
    TIERCE__FIELD_SESSION, /* uint64_t: the hash of a text, or a number plus one */
    TIERCE__FIELD_NAME,    /* struct tierce__name; a number as it is written */
    TIERCE__FIELD_IDS,     /* struct tierce__ids: an array of integers of 64 bits */
    TIERCE__FIELD_SIZES,   /* struct tierce__ids: an array of sizes in bytes, or one for all */
    TIERCE__FIELD_HEX_IDS, /* struct tierce__ids: a text of 16 hex digits each */
    TIERCE__FIELD_MASK,    /* struct tierce__trace_mask: an integer or an array of true and false */
    TIERCE__FIELD_LENGTH,  /* uint64_t: how many elements an array has */
    TIERCE__FIELD_OBJECT,  /* the value is ignored */
};

struct tierce__trace_field {
    const char *name;
    size_t name_length;
    enum tierce__field_type type;
    size_t offset;
};

/* A row: the name as a literal, the type, the struct and its member. */
#define TIERCE__FIELD(name, type, holder, member)                                                  \
    {                                                                                              \
        (name), sizeof(name) - 1, TIERCE__FIELD_##type, offsetof(struct holder, member)            \
    }

/* The fields of a table that a line has: bit i for row i. */
#define TIERCE__FIELDS_MAX 32u

struct tierce__trace;

/*
 * Reads a line into `out`; *seen is set to the fields present; those in `wanted` are required.
 * Returns 0; the value of tierce__trace_bad; -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__fields_read(struct tierce__trace *trace, const char *line, size_t length,
                                       const struct tierce__trace_field *fields, size_t count,
                                       uint32_t wanted, void *out, uint32_t *seen);

/* Returns the fields of a table in the first line of a trace, which may be incomplete. */
uint32_t tierce__fields_probe(const char *head, size_t length,
                              const struct tierce__trace_field *fields, size_t count);

/* Room for one more id. 0 or -ENOMEM. */
TIERCE_MUSTUSE int tierce__ids_reserve(struct tierce__ids *ids);

/* Sets *internal to 1 for each masked block of `count` and to 0 for the others, in the mask's
 * memory; NULL if none is masked. Returns 0 or -ENOMEM. */
TIERCE_MUSTUSE int tierce__mask_apply(struct tierce__trace_mask *mask, const uint8_t **internal,
                                      size_t count);

static inline bool tierce__text_is(struct tierce__text text, const char *wanted)
{
    size_t length = __builtin_strlen(wanted);
    return text.length == length && __builtin_memcmp(text.at, wanted, length) == 0;
}

#endif
