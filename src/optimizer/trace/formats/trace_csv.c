/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CSV: time,key,size, one block a line; the size may be missing. A header may name the columns in
 * another order, and the unit of the time: time or time_s (seconds, as without a header), time_ms,
 * time_us. A key is any text; an integer of 64 bits is itself, anything else its hash.
 */
#include "base/alloc.h"
#include "optimizer/trace/trace_fields.h"
#include "optimizer/trace/trace_private.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>

#define COLUMNS_MAX 16u

enum column { TIME, KEY, SIZE, COLUMNS };

struct csv {
    bool began;         /* the first line has been seen */
    int place[COLUMNS]; /* of a column, -1: it has none */
    int scale;          /* 6, 3 or 0: of the time */
    char *key;          /* [key_bytes] a quoted key without its quotes */
    size_t key_bytes;
};

/* The meaning of the names in a header. */
static const struct {
    const char *name;
    enum column column;
    int scale;
} names[] = {{"time", TIME, 6},         {"timestamp", TIME, 6},
             {"time_s", TIME, 6},       {"time_ms", TIME, 3},
             {"time_us", TIME, 0},      {"timestamp_ms", TIME, 3},
             {"timestamp_us", TIME, 0}, {"key", KEY, 0},
             {"obj_id", KEY, 0},        {"id", KEY, 0},
             {"size", SIZE, 0},         {"obj_size", SIZE, 0},
             {"bytes", SIZE, 0}};

static struct tierce__text trim(struct tierce__text text)
{
    while (text.length > 0 && (*text.at == ' ' || *text.at == '\t')) {
        text.at++;
        text.length--;
    }
    while (text.length > 0 && (text.at[text.length - 1] == ' ' || text.at[text.length - 1] == '\t'))
        text.length--;
    return text;
}

/* Splits a line at its commas outside quotes. Returns the number of columns, or 0: too many, or an
 * unterminated quote. */
static size_t split(struct tierce__text columns[COLUMNS_MAX], const char *line, size_t length)
{
    const char *end = line + length, *start = line;
    size_t count = 0;
    bool quoted = false;
    for (const char *at = line; at <= end; at++) {
        if (at < end && *at == '"')
            quoted = !quoted;
        if (at < end && (*at != ',' || quoted))
            continue;
        if (count == COLUMNS_MAX || quoted)
            return 0;
        columns[count++] = trim((struct tierce__text){start, (size_t)(at - start)});
        start = at + 1;
    }
    return count;
}

/* Parses a complete number. A comma, a space or the line end follows, so its digits end there. */
static bool read_number(struct tierce__text text, int64_t *out, int scale)
{
    struct tierce__json json;
    tierce__json_start(&json, text.at, text.length);
    return text.length > 0 && tierce__json_scaled(&json, out, scale) && json.at == json.end;
}

static bool read_size(struct tierce__text text, uint64_t *out)
{
    struct tierce__json json;
    tierce__json_start(&json, text.at, text.length);
    return text.length > 0 && tierce__json_u64(&json, out) && json.at == json.end;
}

/* Whether the columns are a header; its places. */
static bool read_header(struct csv *csv, const struct tierce__text *columns, size_t count)
{
    int place[COLUMNS] = {-1, -1, -1}, scale = 6;
    for (size_t i = 0; i < count; i++) {
        for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
            if (columns[i].length != strlen(names[n].name) ||
                strncasecmp(columns[i].at, names[n].name, columns[i].length) != 0 ||
                place[names[n].column] >= 0)
                continue;
            place[names[n].column] = (int)i;
            if (names[n].column == TIME)
                scale = names[n].scale;
        }
    }
    if (place[TIME] < 0 || place[KEY] < 0)
        return false;
    memcpy(csv->place, place, sizeof(place));
    csv->scale = scale;
    return true;
}

static bool probe(const char *head, size_t length)
{
    struct tierce__text columns[COLUMNS_MAX];
    struct csv csv;
    int64_t time_us;
    const char *end = memchr(head, '\n', length);
    size_t line = end != NULL ? (size_t)(end - head) : length;
    if (line > 0 && head[line - 1] == '\r')
        line--;
    size_t count = split(columns, head, line);
    if (count < 2)
        return false;
    return read_header(&csv, columns, count) ||
           (count <= COLUMNS && read_number(columns[0], &time_us, 6));
}

/* A key in quotes, in which a doubled quote is one quote. */
static int unquote(struct csv *csv, struct tierce__text *text)
{
    size_t used = 0;
    if (TIERCE__GROW(csv->key, csv->key_bytes, text->length, 64) < 0)
        return -ENOMEM;
    for (size_t i = 1; i + 1 < text->length; i++) {
        csv->key[used++] = text->at[i];
        if (text->at[i] == '"')
            i++;
    }
    *text = (struct tierce__text){csv->key, used};
    return 0;
}

/* The key as a number. An integer as it would be printed is itself. */
static uint64_t key_of(struct tierce__text text)
{
    struct tierce__json json;
    uint64_t id;
    char copy[32];
    if (text.length > 0 && text.length <= 20) {
        memset(copy, '\n', sizeof(copy));
        memcpy(copy, text.at, text.length);
        tierce__json_start(&json, copy, text.length);
        if (tierce__json_id(&json, &id) && json.at == json.end &&
            !(text.length == 2 && memcmp(copy, "-0", 2) == 0))
            return id;
    }
    return XXH3_64bits(text.at, text.length);
}

static int record(struct tierce__trace *trace, void *state, const char *line, size_t length)
{
    struct csv *csv = state;
    struct tierce__text columns[COLUMNS_MAX];
    size_t count = split(columns, line, length);
    if (count == 0)
        return tierce__trace_bad(trace, "has more than %u columns, or a quote that does not end",
                                 COLUMNS_MAX);
    if (!csv->began) {
        csv->began = true;
        if (read_header(csv, columns, count))
            return TIERCE__TRACE_SKIPPED;
        memcpy(csv->place, (const int[]){0, 1, 2}, sizeof(csv->place));
        csv->scale = 6;
    }
    const int *place = csv->place;
    if ((size_t)place[TIME] >= count || (size_t)place[KEY] >= count)
        return tierce__trace_bad(trace, "has %zu columns; a time and a key are required", count);
    struct tierce__trace_request request = {
        .kind = TIERCE__TRACE_TURN, .query = TIERCE__QUERY_ANY, .count = 1, .read_count = 1};
    uint64_t id, size;
    if (!read_number(columns[place[TIME]], &request.time_us, csv->scale) || request.time_us < 0)
        return tierce__trace_bad(
            trace,
            "column %d is not a time: accepted are non-negative numbers that are not too large",
            place[TIME] + 1);
    struct tierce__text key = columns[place[KEY]];
    if (key.length == 0 || memchr(key.at, '\0', key.length) != NULL)
        return tierce__trace_bad(trace, "the key is empty or holds a NUL");
    if (key.length >= 2 && key.at[0] == '"' && unquote(csv, &key) < 0)
        return -ENOMEM;
    id = key_of(key);
    request.blocks = &id;
    if (place[SIZE] >= 0 && (size_t)place[SIZE] < count) {
        if (!read_size(columns[place[SIZE]], &size))
            return tierce__trace_bad(
                trace, "column %d is not a size: accepted are integers from 0 to 2^64 - 1",
                place[SIZE] + 1);
        request.bytes = &size;
    }
    return tierce__trace_emit(trace, &request, NULL);
}

static void fini(void *state)
{
    struct csv *csv = state;
    tierce__free(csv->key);
}

const struct tierce__trace_format tierce__trace_format_csv = {
    .state_bytes = sizeof(struct csv),
    .probe = probe,
    .record = record,
    .fini = fini,
};
