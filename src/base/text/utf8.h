/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_UTF8_H
#define TIERCE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the UTF-8 sequence at p (1 .. 4) of `left` bytes (> 0), 0 if it is not one. Overlong
 * forms, surrogates and code points above U+10FFFF are invalid. Thread: any. */
size_t tierce__utf8_length(const uint8_t *p, size_t left);

/* Whether the sequence of n bytes at p is a C0, DEL or C1 control character, or one of the two
 * Unicode line ends, which YAML folds. Thread: any. */
bool tierce__is_control(const uint8_t *p, size_t n);

/* Whether the whole text is UTF-8; NUL bytes are accepted. Thread: any. */
bool tierce__is_utf8(const char *text, size_t bytes);

#define TIERCE__UTF8_NO_LETTER 0xfffdu /* REPLACEMENT CHARACTER */

/* Decodes the first character of a text that ends with a NUL, and returns its length in bytes (>
 * 0). An invalid byte is one TIERCE__UTF8_NO_LETTER. Thread: any. */
size_t tierce__utf8_letter(uint32_t *letter, const unsigned char *text);

/* Replaces each byte of a text with a NUL that is not part of UTF-8 by '?', such as the rest of a
 * letter that was cut. Thread: any. */
void tierce__utf8_mend(char *text);

/*
 * Whether `size` bytes are UTF-8 without control characters (U+0000 to U+001F, U+007F, U+0080 to
 * U+009F). Such text can stand on one line of a file or a log and means the same to every reader.
 * The canonical text of namespaces depends on it. Thread: any.
 */
bool tierce__text_is_plain(const char *text, size_t size);

#endif
