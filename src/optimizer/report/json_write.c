/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/report/json_write.h"

#include <inttypes.h>
#include <math.h>

enum { NO_LETTER = 0xfffd };

unsigned tierce__utf8_letter(uint32_t *letter, const unsigned char *text)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char first = text[0];
    unsigned length = first < 0x80                     ? 1
                      : first >= 0xc2 && first <= 0xdf ? 2
                      : (first & 0xf0) == 0xe0         ? 3
                      : first >= 0xf0 && first <= 0xf4 ? 4
                                                       : 0;
    *letter = NO_LETTER;
    if (length == 0)
        return 1;
    uint32_t value = length == 1 ? first : first & (0x7fu >> length);
    for (unsigned i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) /* a NUL too */
            return 1;
        value = value << 6 | (text[i] & 0x3f);
    }
    if (value < least[length] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        return 1;
    *letter = value;
    return length;
}

static bool is_plain(uint32_t letter)
{
    return letter >= ' ' && letter != '"' && letter != '\\' && letter != '<' && letter != '>' &&
           letter != '&' && letter != 0x7f && letter != NO_LETTER && letter != 0x2028 &&
           letter != 0x2029;
}

static void put_text(FILE *file, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    fputc('"', file);
    while (*at != '\0') {
        uint32_t letter;
        unsigned length = tierce__utf8_letter(&letter, at);
        if (is_plain(letter))
            fwrite(at, 1, length, file);
        else
            fprintf(file, "\\u%04" PRIx32, letter); /* all of these have four digits */
        at += length;
    }
    fputc('"', file);
}

static void begin(struct tierce__json_write *json, const char *name)
{
    if (json->comma)
        fputc(',', json->file);
    json->comma = true;
    if (name != NULL) {
        put_text(json->file, name);
        fputc(':', json->file);
    }
}

void tierce__json_write_open(struct tierce__json_write *json, const char *name, char bracket)
{
    begin(json, name);
    fputc(bracket, json->file);
    json->comma = false;
}

void tierce__json_write_close(struct tierce__json_write *json, char bracket)
{
    fputc(bracket, json->file);
    json->comma = true;
}

void tierce__json_write_count(struct tierce__json_write *json, const char *name, uint64_t value)
{
    begin(json, name);
    fprintf(json->file, "%" PRIu64, value);
}

void tierce__json_write_signed(struct tierce__json_write *json, const char *name, int64_t value)
{
    begin(json, name);
    fprintf(json->file, "%" PRId64, value);
}

void tierce__json_write_number(struct tierce__json_write *json, const char *name, double value)
{
    begin(json, name);
    if (isfinite(value))
        fprintf(json->file, "%.9g", value);
    else
        fputs("null", json->file);
}

void tierce__json_write_bool(struct tierce__json_write *json, const char *name, bool value)
{
    begin(json, name);
    fputs(value ? "true" : "false", json->file);
}

void tierce__json_write_text(struct tierce__json_write *json, const char *name, const char *text)
{
    begin(json, name);
    if (text == NULL)
        fputs("null", json->file);
    else
        put_text(json->file, text);
}
