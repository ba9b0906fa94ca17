/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TRANSFER_LINK_H
#define TIERCE_TRANSFER_LINK_H

#include "net/stream.h"
#include "store/remote/links.h"

/*
 * One connection to a server of store/transfer, for clients that choose the server for each object
 * (peers://); transfer_client.c has the connectors of one server. A connection is not made,
 * or ends, when the network lets nothing pass for TIERCE__TRANSFER_LINK_SILENCE_MS.
 *
 * Thread: one at a time.
 */

#define TIERCE__TRANSFER_LINK_SILENCE_MS 2000u

struct tierce__transfer_link;

/* Does not connect. [in] tls: NULL: without TLS; [borrow until destroy]. Errors: TIERCE_E_ARGUMENT
 * (a text is too long), -ENOMEM. */
TIERCE_MUSTUSE int tierce__transfer_link_create(struct tierce__transfer_link **out,
                                                const char *host, uint16_t port, const char *space,
                                                struct tierce__tls_context *tls);
/* Another thread may end its calls by `stopper` [borrow until destroy]. Before the first call. */
void tierce__transfer_link_stop_by(struct tierce__transfer_link *link,
                                   struct tierce__stopper *stopper);
/* NULL is accepted. */
void tierce__transfer_link_destroy(struct tierce__transfer_link *link);

/* Connects with this token, unless there is a connection. Errors: as get. */
TIERCE_MUSTUSE int tierce__transfer_link_reach(struct tierce__transfer_link *link,
                                               const char *token, uint64_t deadline_ns);
/* Reads a range of an object, after connecting with this token if there is no connection, or if its
 * token is no longer accepted. get->object_bytes: NULL, or [in] the length of the object, 0 if it
 * is not known; [out] its length. Errors: as get of <tierce/plugin.h>, TIERCE_E_LIMIT (the server
 * is busy), and TIERCE_E_REFUSED (it does not accept the token, or has no such space). */
TIERCE_MUSTUSE int tierce__transfer_link_get(struct tierce__transfer_link *link, const char *token,
                                             const struct tierce__link_get *get,
                                             uint64_t deadline_ns);
/* Whether the server has rejected the last greeting because it has no such space. */
bool tierce__transfer_link_lacks_space(const struct tierce__transfer_link *link);
/*
 * Several ranges in flight, over a connection that is there: sends the requests, and then reads
 * their answers in the same order, one for each, before any other call. At most
 * TIERCE__LINKS_GETS. Errors: as get; the token is that of the connection.
 */
TIERCE_MUSTUSE int tierce__transfer_link_send_gets(struct tierce__transfer_link *link,
                                                   const struct tierce__link_get *gets,
                                                   size_t count, uint64_t deadline_ns);
TIERCE_MUSTUSE int tierce__transfer_link_read_get(struct tierce__transfer_link *link,
                                                  const struct tierce__link_get *get,
                                                  uint64_t deadline_ns);
/* Ends the connection: answers that are due are not read. The next call connects again. */
void tierce__transfer_link_close(struct tierce__transfer_link *link);

/* Whether it has a connection, in step with the server. */
bool tierce__transfer_link_is_open(const struct tierce__transfer_link *link);
/*
 * Writing an object range by range, to a server that accepts that (transfer.h, make_range). Nothing
 * is connected again: after a failure of the connection, all calls fail.
 *
 *     rc = tierce__transfer_link_reach(link, token, deadline_ns);
 *     rc = tierce__transfer_link_write(link, &name, &range, bytes, deadline_ns);   // several
 *     rc = tierce__transfer_link_written(link, deadline_ns);                       // for each
 *
 * At most TIERCE__TRANSFER_PIPELINE writes may be without their answer; answers have the order of
 * the writes. Errors: TIERCE_E_DOWN, TIERCE_E_DEADLINE, TIERCE_E_FORMAT (the connection has
 * failed), and of reach and written those of the server.
 */
struct tierce__link_range {
    uint64_t offset, length, total;
};
TIERCE_MUSTUSE int tierce__transfer_link_write(struct tierce__transfer_link *link,
                                               const struct tierce_plugin_name *name,
                                               const struct tierce__link_range *range,
                                               const void *bytes, uint64_t deadline_ns);
TIERCE_MUSTUSE int tierce__transfer_link_written(struct tierce__transfer_link *link,
                                                 uint64_t deadline_ns);
/* Removes an object; no write is without its answer. */
TIERCE_MUSTUSE int tierce__transfer_link_remove(struct tierce__transfer_link *link,
                                                const struct tierce_plugin_name *name,
                                                uint64_t deadline_ns);

/* The last failure in words. [borrow until the next call] */
const char *tierce__transfer_link_why(const struct tierce__transfer_link *link);

#endif
