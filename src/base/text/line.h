/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_LINE_H
#define TIERCE_BASE_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * A growing text: lines of logs, answers of servers. After a failed allocation, or when more bytes
 * would exceed its limit, it no longer changes, and `failed` is set; so only the end needs to
 * check. Zeroed is empty.
 *
 * Thread: one at a time.
 */
struct tierce__line {
    char *text;         /* [bytes], no NUL behind it */
    size_t bytes, room; /* no room is left after a failure */
    size_t bytes_max;   /* 0: no limit */
    bool failed;
    bool is_full; /* failed because of bytes_max */
};

/* As tierce__line_put_bytes, when there is no room. */
void tierce__line_put_grown(struct tierce__line *line, const char *text, size_t bytes);

static inline void tierce__line_put_bytes(struct tierce__line *line, const char *text, size_t bytes)
{
    if (bytes > line->room - line->bytes) {
        tierce__line_put_grown(line, text, bytes);
    } else if (bytes > 0) {
        memcpy(line->text + line->bytes, text, bytes);
        line->bytes += bytes;
    }
}

void tierce__line_put(struct tierce__line *line, const char *text);
/* At most 511 bytes of the formatted text. */
void tierce__line_put_format(struct tierce__line *line, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void tierce__line_put_int(struct tierce__line *line, int64_t value);
/* Six digits, in any locale. */
void tierce__line_put_double(struct tierce__line *line, double value);
/* Gives its memory back; it is empty again. */
void tierce__line_clear(struct tierce__line *line);

#endif
