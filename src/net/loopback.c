/* SPDX-License-Identifier: Apache-2.0 */
#include "net/loopback.h"

#include <arpa/inet.h>
#include <string.h>

bool tierce__is_loopback_host(const char *host)
{
    struct in_addr address;
    if (inet_pton(AF_INET, host, &address) == 1)
        return ntohl(address.s_addr) >> 24 == 127;
    return strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}
