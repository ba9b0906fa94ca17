/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text/line.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void tierce__line_put_grown(struct tierce__line *line, const char *text, size_t bytes)
{
    size_t room = (line->bytes + bytes) * 2 + 256;
    TIERCE_DASSERT(line->bytes <= line->room);
    if (line->failed)
        return;
    if (line->bytes_max > 0 && room > line->bytes_max)
        room = line->bytes_max;
    line->is_full = bytes > room - line->bytes;
    char *grown = line->is_full ? NULL : tierce__realloc(line->text, room);
    line->failed = grown == NULL;
    if (line->failed) {
        line->room = line->bytes;
        return;
    }
    line->text = grown;
    line->room = room;
    memcpy(line->text + line->bytes, text, bytes);
    line->bytes += bytes;
    TIERCE_DASSERT(line->bytes <= line->room);
}

void tierce__line_put(struct tierce__line *line, const char *text)
{
    tierce__line_put_bytes(line, text, strlen(text));
}

void tierce__line_put_format(struct tierce__line *line, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    tierce__line_put(line, text);
}

void tierce__line_put_int(struct tierce__line *line, int64_t value)
{
    char text[24];
    int bytes = snprintf(text, sizeof(text), "%" PRId64, value);
    TIERCE_DASSERT(bytes > 0 && (size_t)bytes < sizeof(text));
    tierce__line_put_bytes(line, text, (size_t)bytes);
}

void tierce__line_put_double(struct tierce__line *line, double value)
{
    char text[32];
    int bytes = snprintf(text, sizeof(text), "%.6g", value);
    TIERCE_DASSERT(bytes > 0 && (size_t)bytes < sizeof(text));
    char *comma = strchr(text, ','); /* the process's locale is not ours to choose */
    if (comma != NULL)
        *comma = '.';
    tierce__line_put_bytes(line, text, (size_t)bytes);
}

void tierce__line_clear(struct tierce__line *line)
{
    tierce__free(line->text);
    *line = (struct tierce__line){0};
}
