/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_GLOB_H
#define TIERCE_NODE_GLOB_H

#include <stdbool.h>
#include <stddef.h>

/* Whether text is as Redis' pattern: * ? [a-z] [^x] \x. Takes at most the product of the lengths,
 * whatever the pattern. Thread: any. */
bool tierce__glob_match(const char *pattern, size_t pattern_bytes, const char *text,
                        size_t text_bytes);

#endif
