/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_JSON_VALUE_H
#define TIERCE_BASE_JSON_VALUE_H

#include "base/json/json.h"

/*
 * JSON whose values are looked up by name. A value is a piece of a text that was checked as a
 * whole, so a lookup cannot fail; the value that is not found is empty (its length is 0).
 *
 *     rc = tierce__json_parse(&doc, answer, bytes, NULL);
 *     if (rc == 0)
 *         port = tierce__json_get_int(doc.value, "server.port", 80);
 *     tierce__json_doc_clear(&doc);
 *
 * A path consists of member names and indices of arrays, with points between them; "" is the value
 * itself. If an object has several members of one name, the last one is found.
 *
 * NaN, Infinity and -Infinity are numbers, as Python's json module writes them.
 *
 * Each lookup reads its object from the start: use it for configurations and answers, and
 * base/json/json.h on hot paths. Threads: any; a document does not change.
 */

struct tierce__json_doc {
    char *copy;                /* of the text, with the slack that the reader needs */
    struct tierce__text value; /* borrows from the copy, as all values below it do */
};

/* Copies and checks a text that holds one value. Errors: TIERCE_E_FORMAT, and *why (may be NULL) is
 * the reason; -ENOMEM. */
TIERCE_MUSTUSE int tierce__json_parse(struct tierce__json_doc *out, const char *text, size_t bytes,
                                      const char **why);
/* Accepts a zeroed document. */
void tierce__json_doc_clear(struct tierce__json_doc *doc);

/* As tierce__json_kind, '0' for all numbers; 0 for the empty value. */
char tierce__json_value_kind(struct tierce__text value);

/* The elements of an array or members of an object; 0 for another value. */
size_t tierce__json_count(struct tierce__text value);

/* Whether a value is a number without a fraction and an exponent, of any size. */
bool tierce__json_is_integer(struct tierce__text value);

/* The member of an object. `name` may hold points. */
struct tierce__text tierce__json_find(struct tierce__text object, struct tierce__text name);
struct tierce__text tierce__json_get(struct tierce__text value, const char *path);

/* `fallback` if the value is not an integer of this range. */
int64_t tierce__json_get_int(struct tierce__text value, const char *path, int64_t fallback);
/* NaN if the value is not a number. */
double tierce__json_get_number(struct tierce__text value, const char *path);
/* Whether it is true. */
bool tierce__json_get_bool(struct tierce__text value, const char *path);
/* Whether it is a text that fits `out`; otherwise `out` becomes "". */
bool tierce__json_get_text(char *out, size_t size, struct tierce__text value, const char *path);
/* A text of any length. *out, heap. Errors: TIERCE_E_FORMAT (no text, or one with a NUL), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__json_copy_text(char **out, struct tierce__text value, const char *path);

/* Iterates over an object or array; another value has no members.
 *
 *     struct tierce__json each = tierce__json_each(value);
 *     while (tierce__json_next(&each, &name, &member))
 *
 * The name, empty in an array, is borrowed until the next call. */
struct tierce__json tierce__json_each(struct tierce__text value);
bool tierce__json_next(struct tierce__json *each, struct tierce__text *name,
                       struct tierce__text *value);

#endif
