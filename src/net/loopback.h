/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_LOOPBACK_H
#define TIERCE_BASE_LOOPBACK_H

#include <stdbool.h>

/* Whether a host name in user input is loopback: 127.x.y.z, ::1 or localhost. Thread: any. */
bool tierce__is_loopback_host(const char *host);

#endif
