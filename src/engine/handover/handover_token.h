/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_HANDOVER_TOKEN_H
#define TIERCE_HANDOVER_TOKEN_H

#include <string.h>

#include "base/bytes.h"

/* Whether a client presents this token of an offer or a ticket. Thread: any. */
static inline bool tierce__is_token(const char *token, const char *presented, size_t bytes)
{
    return strlen(token) == bytes && tierce__secrets_equal(token, presented, bytes);
}

#endif
