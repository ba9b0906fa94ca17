/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_HANDOVER_TOKEN_H
#define TIERCE_HANDOVER_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Whether a client presents this token of an offer or a ticket. Compares all characters, so that
 * the time does not depend on how many are right. Thread: any. */
static inline bool tierce__is_token(const char *token, const char *presented, size_t bytes)
{
    unsigned differ = 0;
    if (strlen(token) != bytes)
        return false;
    for (size_t i = 0; i < bytes; i++)
        differ |= (unsigned char)(token[i] ^ presented[i]);
    return differ == 0;
}

#endif
