/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_HOST_ID_H
#define TIERCE_NET_HOST_ID_H

/*
 * A text that is equal for all processes of this host, also in containers, and differs from every
 * other host: the kernel's boot id. It tells engines and nodes of one host from others; nothing
 * depends on it but speed. "" where the kernel does not tell it. Thread: any.
 */
#define TIERCE__HOST_ID_BYTES 40u

void tierce__host_id(char out[TIERCE__HOST_ID_BYTES]);

#endif
