/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json_write.h"

#include "base/assert.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void put_bytes(struct tierce__json_write *json, const char *text, size_t bytes)
{
    if (json->line != NULL)
        tierce__line_put_bytes(json->line, text, bytes);
    else
        fwrite(text, 1, bytes, json->file);
}

static void put(struct tierce__json_write *json, const char *text)
{
    put_bytes(json, text, strlen(text));
}

static bool is_plain(uint32_t letter, bool is_html)
{
    return letter >= ' ' && letter != '"' && letter != '\\' &&
           (!is_html || (letter != '<' && letter != '>' && letter != '&' && letter != 0x7f &&
                         letter != TIERCE__UTF8_NO_LETTER && letter != 0x2028 && letter != 0x2029));
}

static void put_text(struct tierce__json_write *json, const char *text)
{
    char escape[8];
    const char *from = text; /* not yet written */
    put(json, "\"");
    while (*text != '\0') {
        uint32_t letter = (unsigned char)*text;
        size_t length = 1;
        if (json->is_html)
            length = tierce__utf8_letter(&letter, (const unsigned char *)text);
        text += length;
        if (is_plain(letter, json->is_html))
            continue;
        put_bytes(json, from, (size_t)(text - length - from));
        if (!json->is_html && letter >= ' ')
            snprintf(escape, sizeof(escape), "\\%c", (char)letter);
        else
            snprintf(escape, sizeof(escape), "\\u%04" PRIx16, (uint16_t)letter);
        put(json, escape);
        from = text;
    }
    put_bytes(json, from, (size_t)(text - from));
    put(json, "\"");
}

static void begin_line(struct tierce__json_write *json)
{
    if (json->layout == TIERCE__JSON_COMPACT)
        return;
    put(json, "\n");
    for (unsigned i = 0; i < json->depth; i++)
        put(json, "  ");
}

static void put_colon(struct tierce__json_write *json)
{
    put(json, json->layout == TIERCE__JSON_SPACED ? ": " : ":");
}

/* Begins an element of the innermost bracket. */
static void begin_element(struct tierce__json_write *json)
{
    if (json->comma)
        put(json, ",");
    json->comma = true;
    if (json->depth > 0)
        begin_line(json);
}

static void put_open(struct tierce__json_write *json, char bracket)
{
    TIERCE_DASSERT(bracket == '{' || bracket == '[');
    put_bytes(json, &bracket, 1);
    json->depth++;
    json->comma = false;
}

void tierce__json_write_name(struct tierce__json_write *json, const char *name)
{
    begin_element(json);
    if (name != NULL) {
        put_text(json, name);
        put_colon(json);
    }
}

void tierce__json_write_open(struct tierce__json_write *json, const char *name, char bracket)
{
    tierce__json_write_name(json, name);
    put_open(json, bracket);
}

void tierce__json_write_close(struct tierce__json_write *json, char bracket)
{
    TIERCE_DASSERT(bracket == '}' || bracket == ']');
    TIERCE_DASSERT(json->depth > 0);
    json->depth--;
    begin_line(json);
    put_bytes(json, &bracket, 1);
    json->comma = true;
}

static void put_word(struct tierce__json_write *json, const char *name, const char *word)
{
    tierce__json_write_name(json, name);
    put(json, word);
}

void tierce__json_write_count(struct tierce__json_write *json, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    put_word(json, name, text);
}

void tierce__json_write_signed(struct tierce__json_write *json, const char *name, int64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRId64, value);
    put_word(json, name, text);
}

void tierce__json_write_number(struct tierce__json_write *json, const char *name, double value)
{
    char text[32];
    snprintf(text, sizeof(text), "%.9g", value);
    put_word(json, name, isfinite(value) ? text : "null");
}

void tierce__json_write_bool(struct tierce__json_write *json, const char *name, bool value)
{
    put_word(json, name, value ? "true" : "false");
}

void tierce__json_write_text(struct tierce__json_write *json, const char *name, const char *text)
{
    tierce__json_write_name(json, name);
    if (text != NULL)
        put_text(json, text);
    else
        put(json, "null");
}

/* The length of a text with its quotes, or of a number or word. */
static size_t token_length(const char *at, size_t left)
{
    size_t n = 1;
    if (*at == '"') {
        while (n < left && at[n] != '"')
            n += at[n] == '\\' ? 2 : 1;
        TIERCE_DASSERT(n < left); /* the reader found its end */
        return n + 1;
    }
    while (n < left && memchr(",:]} \t\n\r", at[n], 8) == NULL)
        n++;
    return n;
}

void tierce__json_write_value(struct tierce__json_write *json, const char *name,
                              struct tierce__text value)
{
    unsigned depth = json->depth;
    bool is_named = true; /* the next token stands behind the name of its element */
    tierce__json_write_name(json, name);
    for (size_t i = 0, n; i < value.length; i += n) {
        char c = value.at[i];
        n = 1;
        if (c == '}' || c == ']') {
            tierce__json_write_close(json, c);
        } else if (c == ':') {
            put_colon(json);
            is_named = true;
        } else if (memchr(", \t\n\r", c, 5) == NULL) {
            if (!is_named)
                begin_element(json);
            is_named = false;
            n = token_length(value.at + i, value.length - i);
            if (c == '{' || c == '[') {
                n = 1;
                put_open(json, c);
            } else {
                put_bytes(json, value.at + i, n);
            }
        }
    }
    TIERCE_DASSERT(json->depth == depth);
}
