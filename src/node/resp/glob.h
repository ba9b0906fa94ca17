/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_GLOB_H
#define TIERCE_NODE_GLOB_H

#include <stdbool.h>
#include <stddef.h>

/* Whether the text matches a pattern of Redis: * ? [a-z] [^x] \x. Time is at most proportional to
 * the product of the lengths, whatever the pattern. Thread: any. */
bool tierce__glob_match(const char *pattern, size_t pattern_bytes, const char *text,
                        size_t text_bytes);

#endif
