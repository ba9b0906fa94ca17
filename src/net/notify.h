/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_NOTIFY_H
#define TIERCE_BASE_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* Sends a state to systemd: a datagram to $NOTIFY_SOCKET. Sends nothing if the variable is not set.
 * Thread: any. */

/* "READY=1", "STOPPING=1", "WATCHDOG=1". False: it could not be sent, or $NOTIFY_SOCKET is not
 * set. */
bool tierce__notify(const char *state);

/* The interval of watchdog notifications in milliseconds: half of the watchdog's timeout; 0: no
 * watchdog. */
uint64_t tierce__notify_watchdog_ms(void);

#endif
