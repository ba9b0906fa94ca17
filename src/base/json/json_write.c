/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json/json_write.h"

#include "base/assert.h"
#include "base/text/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static inline void put_bytes(struct tierce__json_write *json, const char *text, size_t bytes)
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

/* Whether a byte is an escape's in every text: a control character, a quote, a backslash. */
static inline bool is_special(char c)
{
    return (unsigned char)c < ' ' || c == '"' || c == '\\';
}

static bool is_plain_html(uint32_t letter)
{
    return letter != '<' && letter != '>' && letter != '&' && letter != 0x7f &&
           letter != TIERCE__UTF8_NO_LETTER && letter != 0x2028 && letter != 0x2029;
}

/* The first character that needs an escape, or the NUL. *letter is its code, *length its bytes. */
static const char *find_special(const char *text, bool is_html, uint32_t *letter, size_t *length)
{
    *length = 1;
    for (;; text += *length) {
        if (is_html)
            *length = tierce__utf8_letter(letter, (const unsigned char *)text);
        if (is_special(*text) || (is_html && !is_plain_html(*letter)))
            break;
    }
    if (!is_html)
        *letter = (unsigned char)*text;
    return text;
}

static void put_escape(struct tierce__json_write *json, uint32_t letter)
{
    static const char controls[] = "\b\f\n\r\t", letters[] = "bfnrt";
    char escape[8];
    const char *found = json->is_short && letter < ' ' ? strchr(controls, (char)letter) : NULL;
    TIERCE_DASSERT(letter != 0);
    if (found != NULL)
        snprintf(escape, sizeof(escape), "\\%c", letters[found - controls]);
    else if (!json->is_html && letter >= ' ')
        snprintf(escape, sizeof(escape), "\\%c", (char)letter);
    else
        snprintf(escape, sizeof(escape), "\\u%04" PRIx16, (uint16_t)letter);
    put(json, escape);
}

static void put_text(struct tierce__json_write *json, const char *text)
{
    uint32_t letter = 0;
    size_t length = 1;
    put_bytes(json, "\"", 1);
    for (;;) {
        const char *end = find_special(text, json->is_html, &letter, &length);
        put_bytes(json, text, (size_t)(end - text));
        if (*end == '\0')
            break;
        put_escape(json, letter);
        text = end + length;
    }
    put_bytes(json, "\"", 1);
}

static void begin_line(struct tierce__json_write *json)
{
    if (json->layout < TIERCE__JSON_LINES)
        return;
    put(json, "\n");
    for (unsigned i = 0; i < json->depth; i++)
        put(json, "  ");
}

static bool is_wide(const struct tierce__json_write *json)
{
    return json->layout == TIERCE__JSON_WIDE;
}

static void put_colon(struct tierce__json_write *json)
{
    put_bytes(json, ": ", is_wide(json) || json->layout == TIERCE__JSON_SPACED ? 2 : 1);
}

/* Begins an element of the innermost bracket. */
static void begin_element(struct tierce__json_write *json)
{
    if (json->comma)
        put_bytes(json, ", ", is_wide(json) ? 2 : 1);
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

static void put_integer(struct tierce__json_write *json, const char *name, uint64_t value,
                        bool is_negative)
{
    char digits[24];
    size_t at = sizeof(digits);
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    if (is_negative)
        digits[--at] = '-';
    TIERCE_DASSERT(at < sizeof(digits));
    tierce__json_write_name(json, name);
    put_bytes(json, digits + at, sizeof(digits) - at);
}

void tierce__json_write_count(struct tierce__json_write *json, const char *name, uint64_t value)
{
    put_integer(json, name, value, false);
}

void tierce__json_write_signed(struct tierce__json_write *json, const char *name, int64_t value)
{
    put_integer(json, name, value < 0 ? -(uint64_t)value : (uint64_t)value, value < 0);
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
