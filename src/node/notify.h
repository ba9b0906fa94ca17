/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_NOTIFY_H
#define TIERCE_NODE_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* What systemd is told: a datagram to $NOTIFY_SOCKET. Without one nothing is sent. Thread: any. */

/* "READY=1", "STOPPING=1", "WATCHDOG=1". False: it could not be sent, or nobody wants it. */
bool tierce__notify(const char *state);

/* How often the watchdog wants to be told, in milliseconds: half of what it waits; 0: it does
 * not. */
uint64_t tierce__notify_watchdog_ms(void);

#endif
