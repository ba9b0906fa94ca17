/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_GRPC_TEXT_H
#define TIERCE_NET_GRPC_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The texts of gRPC's headers. */

/* Parses grpc-timeout ("100m": 1 to 8 digits and one of H M S m u n) to nanoseconds, saturating.
 * False: invalid. */
bool tierce__grpc_timeout_parse(uint64_t *out_ns, const char *text);

/* Writes grpc-timeout; the value is rounded up if it does not fit eight digits. */
#define TIERCE__GRPC_TIMEOUT_BYTES 10u
void tierce__grpc_timeout_print(char text[TIERCE__GRPC_TIMEOUT_BYTES], uint64_t ns);

/* grpc-message: printable ASCII stays, '%' and the rest become %XX. Cut where `capacity` (with the
 * NUL) ends, never inside of an escape or a character. Returns the length. */
size_t tierce__grpc_message_encode(char *out, size_t capacity, const char *text);

/* The reverse; invalid escapes are kept unchanged. Truncated in the same way. */
size_t tierce__grpc_message_decode(char *out, size_t capacity, const char *text, size_t bytes);

/* Whether it is "application/grpc", perhaps with "+..." or ";..." */
bool tierce__grpc_is_content_type(const char *text);

#endif
