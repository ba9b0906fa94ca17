/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KEY_UTF8_H
#define TIERCE_KEY_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Whether `size` bytes are well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF)
 * without control characters (U+0000 to U+001F, U+007F, U+0080 to U+009F). Such text can stand
 * on one line of a file or a log and means the same to every reader.
 */
bool tierce__text_is_plain(const char *text, size_t size);

#endif
