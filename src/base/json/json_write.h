/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_JSON_WRITE_H
#define TIERCE_BASE_JSON_WRITE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/json/json.h"
#include "base/text/line.h"

/*
 * Writes JSON member by member to the caller's line or file.
 *
 *     struct tierce__json_write json = {.line = &line};
 *     tierce__json_write_open(&json, NULL, '{');
 *     tierce__json_write_text(&json, "name", name);
 *     tierce__json_write_close(&json, '}');
 *
 * The name NULL is for elements of arrays and the outermost value. The caller closes each bracket
 * that it opens. Failures are reported by the line's `failed`, and by ferror of a file. Threads:
 * one at a time.
 */

enum tierce__json_layout {
    TIERCE__JSON_COMPACT, /* without white space */
    TIERCE__JSON_WIDE,    /* on one line, with a space after each comma and colon */
    TIERCE__JSON_LINES,   /* each value on a line, indented by its depth */
    TIERCE__JSON_SPACED,  /* such lines, with a space after each colon */
};

struct tierce__json_write {
    struct tierce__line *line; /* or NULL, and */
    FILE *file;
    bool is_html;  /* characters with a meaning in a <script> element are escaped, and invalid UTF-8
                      becomes U+FFFD; otherwise such bytes are written unchanged */
    bool is_short; /* control characters that JSON has a letter for are escaped with it: \n */
    enum tierce__json_layout layout;
    unsigned depth; /* of the open brackets */
    bool comma;     /* an element precedes, in the same brackets */
};

void tierce__json_write_open(struct tierce__json_write *json, const char *name, char bracket);
void tierce__json_write_close(struct tierce__json_write *json, char bracket);
/* Only the name: the caller appends the value to the line or file itself. */
void tierce__json_write_name(struct tierce__json_write *json, const char *name);
void tierce__json_write_count(struct tierce__json_write *json, const char *name, uint64_t value);
void tierce__json_write_signed(struct tierce__json_write *json, const char *name, int64_t value);
/* Nine digits; null if the number is not finite. */
void tierce__json_write_number(struct tierce__json_write *json, const char *name, double value);
void tierce__json_write_bool(struct tierce__json_write *json, const char *name, bool value);
/* NULL is written as null. */
void tierce__json_write_text(struct tierce__json_write *json, const char *name, const char *text);
/* Writes a value that a reader has checked, in the layout of this writer; its texts and numbers are
 * copied unchanged. */
void tierce__json_write_value(struct tierce__json_write *json, const char *name,
                              struct tierce__text value);

#endif
