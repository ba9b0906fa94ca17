/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_GRPC_TALK_H
#define TIERCE_NET_GRPC_TALK_H

#include "net/server/call_private.h"
#include "net/grpc/grpc_frame.h"

/* A method that answers each message of a stream with messages: in the server itself only. */
struct tierce__grpc_talk {
    const char *path;
    /* Appends messages (with their prefixes) to a buffer from alloc.h. 0, or a negative number:
     * the call is ended with INTERNAL. */
    int (*answer)(const struct tierce__shared *shared, const struct tierce__grpc_message *message,
                  uint8_t **out, size_t *bytes, size_t *capacity);
};

#endif
