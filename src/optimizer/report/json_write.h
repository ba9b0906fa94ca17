/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_JSON_WRITE_H
#define TIERCE_OPTIMIZER_JSON_WRITE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Writes JSON to a file, member by member. The output is safe inside a <script> element: characters
 * with a meaning in HTML are escaped, and invalid UTF-8 becomes U+FFFD.
 *
 *     struct tierce__json_write json = {.file = file};
 *     tierce__json_write_open(&json, NULL, '{');
 *     tierce__json_write_text(&json, "name", name);
 *     tierce__json_write_close(&json, '}');
 *
 * The name NULL is for elements of arrays and the outermost value. Write errors are reported by
 * ferror. Threads: one at a time.
 */

struct tierce__json_write {
    FILE *file;
    bool comma; /* an element precedes, in the same brackets */
};

void tierce__json_write_open(struct tierce__json_write *json, const char *name, char bracket);
void tierce__json_write_close(struct tierce__json_write *json, char bracket);
void tierce__json_write_count(struct tierce__json_write *json, const char *name, uint64_t value);
void tierce__json_write_signed(struct tierce__json_write *json, const char *name, int64_t value);
/* Nine digits; null if the number is not finite. */
void tierce__json_write_number(struct tierce__json_write *json, const char *name, double value);
void tierce__json_write_bool(struct tierce__json_write *json, const char *name, bool value);
/* NULL is written as null. */
void tierce__json_write_text(struct tierce__json_write *json, const char *name, const char *text);

/* Decodes one UTF-8 character at `text` and returns its length in bytes; invalid UTF-8: 1, and
 * *letter is U+FFFD. */
unsigned tierce__utf8_letter(uint32_t *letter, const unsigned char *text);

#endif
