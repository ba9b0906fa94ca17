/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_KV_READERS_H
#define TIERCE_ENGINE_KV_READERS_H

#include <tierce/status.h>

/*
 * Which readers of KV events may connect: those whose public keys (CURVE) are in a file, one
 * "read NAME PUBLIC-KEY" a line, mode 0600. It answers libzmq, which asks about each new connection
 * of the context's sockets that tierce__zmq_curve_serve made servers (RFC 27, ZAP).
 *
 * The file is read again when it has changed and a reader connects. If it is invalid then, the
 * previous keys stay in use. Connections that are open stay open.
 *
 * Thread: one at a time.
 */
struct tierce__kv_readers;

/* Before the servers bind. Errors, `why` in words: as tierce__tokens_load. */
TIERCE_MUSTUSE int tierce__kv_readers_open(struct tierce__kv_readers **out, void *context,
                                           const char *path, char why[256]);
/* After the servers were closed. NULL is accepted. */
void tierce__kv_readers_close(struct tierce__kv_readers *readers);

/* The socket to poll for requests of ZAP; NULL without readers. */
void *tierce__kv_readers_socket(const struct tierce__kv_readers *readers);
/* Answers requests of ZAP that have arrived, a bounded number of them. NULL is accepted. */
void tierce__kv_readers_answer(struct tierce__kv_readers *readers);

#endif
