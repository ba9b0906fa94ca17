/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MSGPACK_WRITE_H
#define TIERCE_MSGPACK_WRITE_H

#include "base/text/line.h"

/*
 * MessagePack appended to a line.
 *
 *     tierce__msgpack_put_map(&line, 1);
 *     tierce__msgpack_put_text(&line, "hashes");
 *     size_t at = tierce__msgpack_begin_array(&line);
 *     for (...)
 *         tierce__msgpack_put_uint(&line, hash);
 *     tierce__msgpack_end_array(&line, at, count);
 *
 * Failures are those of the line. Thread: that of the line.
 */

void tierce__msgpack_put_nil(struct tierce__line *line);
/* The bytes that put_uint appends. */
static inline size_t tierce__msgpack_uint_bytes(uint64_t value)
{
    return value < 128           ? 1
           : value <= UINT8_MAX  ? 2
           : value <= UINT16_MAX ? 3
           : value <= UINT32_MAX ? 5
                                 : 9;
}
void tierce__msgpack_put_uint(struct tierce__line *line, uint64_t value);
void tierce__msgpack_put_int(struct tierce__line *line, int64_t value);
void tierce__msgpack_put_bool(struct tierce__line *line, bool value);
void tierce__msgpack_put_float(struct tierce__line *line, double value);
/* NUL-terminated UTF-8, below 4 GiB. */
void tierce__msgpack_put_text(struct tierce__line *line, const char *text);
/* A key of a map and its value. */
void tierce__msgpack_put_pair(struct tierce__line *line, const char *name, const char *text);

/* The head of a map; `count` keys with their values follow. At most 15. */
void tierce__msgpack_put_map(struct tierce__line *line, unsigned count);
/* The head of an array of `count` values, at most 15. */
void tierce__msgpack_put_array(struct tierce__line *line, unsigned count);

/* The head of an array whose length is not known yet. Returns its place, for end_array. */
size_t tierce__msgpack_begin_array(struct tierce__line *line);
void tierce__msgpack_end_array(struct tierce__line *line, size_t place, uint32_t count);

/* The same for a map of any length, and for a text whose bytes are appended to the line. */
size_t tierce__msgpack_begin_map(struct tierce__line *line);
void tierce__msgpack_end_map(struct tierce__line *line, size_t place, uint32_t count);
size_t tierce__msgpack_begin_text(struct tierce__line *line);
void tierce__msgpack_end_text(struct tierce__line *line, size_t place);

#endif
