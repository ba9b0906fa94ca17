/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_RESP_LINK_H
#define TIERCE_NET_RESP_LINK_H

#include "net/redis/resp_uri.h"

/*
 * A pipeline to the target of a URI: one server, the master that sentinels name, or a cluster,
 * where the pipeline is split among nodes.
 *
 *     rc = tierce__resp_link_begin(link);
 *     rc = tierce__resp_link_append(link, 1, (const char *[]){"GET", key}, bytes, 2);
 *     rc = tierce__resp_link_flush(link, deadline_ns);
 *     rc = tierce__resp_link_read(link, &value, deadline_ns);
 *
 * Order, deadlines and errors are as in resp_client.h and resp_cluster.h. A link connects when it
 * is first needed. After a server has answered READONLY, LOADING or MASTERDOWN, the next pipeline
 * connects again, to the master of that moment.
 *
 * Thread: one at a time; resp_pool.h for several.
 */

struct tierce__resp_link;

/* [borrow] the URI for the call. Errors: as tierce__resp_create. */
TIERCE_MUSTUSE int tierce__resp_link_create(struct tierce__resp_link **out,
                                            const struct tierce__resp_uri *uri,
                                            char why[TIERCE__RESP_WHY_BYTES]);
/* NULL is accepted. */
void tierce__resp_link_close(struct tierce__resp_link *link);

bool tierce__resp_link_is_cluster(const struct tierce__resp_link *link);

TIERCE_MUSTUSE int tierce__resp_link_begin(struct tierce__resp_link *link);

/* One more command; arguments[key] determines its node in a cluster. */
TIERCE_MUSTUSE int tierce__resp_link_append(struct tierce__resp_link *link, size_t key,
                                            const char *const *arguments, const size_t *bytes,
                                            size_t count);

/* The same, but for the last argument, which stays the caller's until flush has returned. */
TIERCE_MUSTUSE int tierce__resp_link_append_borrowed(struct tierce__resp_link *link, size_t key,
                                                     const char *const *arguments,
                                                     const size_t *bytes, size_t count);

/* The answer to the last command of the pipeline goes to the caller's memory, as by
 * tierce__resp_read_into. After its append; the memory is the link's until the answer is read, or
 * another pipeline begun. */
void tierce__resp_link_into(struct tierce__resp_link *link, void *memory, size_t capacity);

/* Marks the pipeline as writing: the URI's wait_replicas applies to it. Called after begin. */
void tierce__resp_link_writes(struct tierce__resp_link *link);

TIERCE_MUSTUSE int tierce__resp_link_flush(struct tierce__resp_link *link, uint64_t deadline_ns);

/* The next answer, in order; [borrow until begin]. */
TIERCE_MUSTUSE int tierce__resp_link_read(struct tierce__resp_link *link,
                                          struct tierce__resp_value *out, uint64_t deadline_ns);

/* The same, into the caller's memory, for each answer of a pipeline: tierce__resp_read_into. Not of
 * a cluster. */
TIERCE_MUSTUSE int tierce__resp_link_read_into(struct tierce__resp_link *link, void *memory,
                                               size_t capacity, struct tierce__resp_value *out,
                                               uint64_t deadline_ns);

/* A pipeline of one command that writes. */
TIERCE_MUSTUSE int tierce__resp_link_call(struct tierce__resp_link *link, size_t key,
                                          const char *const *arguments, const size_t *bytes,
                                          size_t count, struct tierce__resp_value *out,
                                          uint64_t deadline_ns);

/* For commands to every server: the client of server i, after a begin. -ENOENT after the last; as
 * tierce__resp_cluster_node. */
TIERCE_MUSTUSE int tierce__resp_link_node(struct tierce__resp_link *link, size_t i,
                                          struct tierce__resp **out);

bool tierce__resp_link_is_connected(const struct tierce__resp_link *link);

/* Whether the last begin returned the error of an earlier attempt to connect. */
bool tierce__resp_link_repeats(const struct tierce__resp_link *link);

/* Connections made so far, except those that only queried a location. */
uint64_t tierce__resp_link_connects(const struct tierce__resp_link *link);

/* A sentence about the last failure, never with the password. [borrow until the next call] */
const char *tierce__resp_link_why(const struct tierce__resp_link *link);

#endif
