/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_JSON_WRITE_H
#define TIERCE_OPTIMIZER_JSON_WRITE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/*
 * JSON into a file, member by member. What comes out may stand inside a <script> element: of texts
 * only letters that mean nothing to HTML are written as they are, and bytes that are no UTF-8
 * become U+FFFD.
 *
 *     struct tierce__json_write json = {.file = file};
 *     tierce__json_write_open(&json, NULL, '{');
 *     tierce__json_write_text(&json, "name", name);
 *     tierce__json_write_close(&json, '}');
 *
 * A name of NULL is for elements of arrays and the outermost value. Whether writing went well is
 * the file's to say (ferror). Threads: one at a time.
 */

struct tierce__json_write {
    FILE *file;
    bool comma; /* something stands before, in the same brackets */
};

void tierce__json_write_open(struct tierce__json_write *json, const char *name, char bracket);
void tierce__json_write_close(struct tierce__json_write *json, char bracket);
void tierce__json_write_count(struct tierce__json_write *json, const char *name, uint64_t value);
void tierce__json_write_signed(struct tierce__json_write *json, const char *name, int64_t value);
/* Nine digits; null where it is no finite number. */
void tierce__json_write_number(struct tierce__json_write *json, const char *name, double value);
void tierce__json_write_bool(struct tierce__json_write *json, const char *name, bool value);
/* NULL is written as null. */
void tierce__json_write_text(struct tierce__json_write *json, const char *name, const char *text);

/* One letter of UTF-8 at `text`: its length in bytes, 1 and *letter U+FFFD where there is none. */
unsigned tierce__utf8_letter(uint32_t *letter, const unsigned char *text);

#endif
