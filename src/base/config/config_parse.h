/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_CONFIG_PARSE_H
#define TIERCE_BASE_CONFIG_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The text forms of single values, both ways, independent of the locale. Parsers take the whole
 * text or nothing: no sign, no exponent, no text after the unit; spaces around it are accepted;
 * false leaves *out untouched. Thread: any.
 */

/* Bytes: "4096", "512 MiB", "1.5GiB", "1GB" (decimal); B KB MB GB TB PB KiB MiB GiB TiB PiB in any
 * case. A fraction of a byte is dropped. A unit without B is rejected: it could mean either. */
bool tierce__parse_size(uint64_t *out, const char *text);

/* Milliseconds: "250", "250ms", "1.5s", "2min", "1h"; fractions of a millisecond are rejected. */
bool tierce__parse_duration(uint64_t *out, const char *text);

/* Decimal digits only. */
bool tierce__parse_count(uint64_t *out, const char *text);

/* Billionths: "0.5" and "50%" are 500000000. Values with more than nine decimals are rejected. */
#define TIERCE__SHARE_ONE 1000000000ULL
bool tierce__parse_share(uint64_t *out, const char *text);

/* true false yes no on off 1 0, in any case. */
bool tierce__parse_bool(bool *out, const char *text);

/* The shortest exact form that the parser above reads back; `size` 32 always suffices. */
void tierce__format_size(char *text, size_t size, uint64_t bytes);
void tierce__format_duration(char *text, size_t size, uint64_t ms);
void tierce__format_share(char *text, size_t size, uint64_t billionths);

/* Whether text[0 .. len) is well-formed UTF-8 without control characters (tab included). */
bool tierce__text_is_clean(const char *text, size_t len);

/* Copies `text` for a message: control characters and bytes outside ASCII that are not UTF-8 become
 * '?', and a text longer than size - 1 is cut and ends in "...". `size` >= 8. */
void tierce__text_for_message(char *out, size_t size, const char *text);

#endif
