/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_HANDOVER_HOSTS_H
#define TIERCE_HANDOVER_HOSTS_H

#include <stdbool.h>
#include <stddef.h>

/*
 * The addresses of the hosts that may push chunks to an inbox (handover_inbox.h).
 *
 *     struct tierce__hosts hosts = {0};
 *     tierce__hosts_add(&hosts, "10.0.0.5 prefill-2");   // blocks while names are resolved
 *     if (tierce__hosts_allow(&hosts, "10.0.0.5:4711")) ...
 *
 * Thread: any; nothing changes after add.
 */

#define TIERCE__HOSTS_MAX  64u
#define TIERCE__HOST_BYTES 64u /* an address in digits, with NUL */

struct tierce__hosts {
    size_t count;
    char items[TIERCE__HOSTS_MAX][TIERCE__HOST_BYTES];
};

/* Adds the addresses of names that are separated by blanks. A name without an address, and an
 * address without room, are logged and ignored. */
void tierce__hosts_add(struct tierce__hosts *hosts, const char *names);

/* Whether a peer has one of the addresses: "HOST:PORT" or "[HOST]:PORT", with an IPv4 address as
 * such or as one of IPv6. */
bool tierce__hosts_allow(const struct tierce__hosts *hosts, const char *peer);

#endif
