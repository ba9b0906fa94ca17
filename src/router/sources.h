/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_SOURCES_H
#define TIERCE_ROUTER_SOURCES_H

#include "router/router_config.h"
#include "router/subscriber.h"

/*
 * The publishers that a router index follows, and the threads that do.
 *
 * Thread: any.
 */

#define TIERCE__SOURCE_NAME_BYTES 96u

/* A publisher, as it was registered. */
struct tierce__source_opts {
    char tenant[TIERCE__SOURCE_NAME_BYTES]; /* "" */
    char instance[TIERCE__SOURCE_NAME_BYTES], model[TIERCE__SOURCE_NAME_BYTES];
    uint32_t dp_rank;
    uint32_t block_size; /* 0: that of its events */
    char endpoint[TIERCE__SUBSCRIBER_URL_BYTES], replay[TIERCE__SUBSCRIBER_URL_BYTES];
    char snapshot[TIERCE__SUBSCRIBER_URL_BYTES];
    char server_key[TIERCE__ZMQ_CURVE_TEXT_BYTES]; /* of the stream and its replay; "": none */
    /* Whether its snapshot receives the token of its tenant: an operator, or a caller with a token,
     * named it. */
    bool is_trusted;
};

struct tierce__sources;

/* [borrow until destroy] directory, config and tokens (of snapshots). Errors: -ENOMEM, negative
 * errno. */
TIERCE_MUSTUSE int tierce__sources_create(struct tierce__sources **out,
                                          struct tierce__directory *directory,
                                          const struct tierce__router_config *config,
                                          struct tierce__tenant_words *tokens,
                                          struct tierce__tenant_words *keys);
/* NULL is accepted. */
void tierce__sources_destroy(struct tierce__sources *sources);

/* Follows a publisher. One of the same tenant, instance, model and rank with the same endpoints
 * stays as it is; with others it is replaced. Errors, `why` in words: TIERCE_E_LIMIT
 * (limit.publishers), -EINVAL, -ENOMEM, other negative errno. */
TIERCE_MUSTUSE int tierce__sources_add(struct tierce__sources *sources,
                                       const struct tierce__source_opts *opts, char why[256]);

/* Follows publishers no longer: of a tenant and an instance, and if they are not NULL, of a model
 * and a rank. Returns how many. */
uint32_t tierce__sources_remove(struct tierce__sources *sources, const char *tenant,
                                const char *instance, const char *model, const uint32_t *dp_rank);

/* Calls each(arg, ...) for the publishers of a tenant (NULL: of all), in the order of their
 * registration, under a lock, until it returns false. */
typedef bool tierce__source_fn(void *arg, const struct tierce__source_opts *opts,
                               struct tierce__follower *follower);
void tierce__sources_each(struct tierce__sources *sources, const char *tenant,
                          tierce__source_fn *each, void *arg);

/* Calls each for the first publisher of a tenant (NULL: of any), an instance and a rank, without
 * the lock: it may take its time. False if there is none. */
bool tierce__sources_with(struct tierce__sources *sources, const char *tenant, const char *instance,
                          uint32_t dp_rank, tierce__source_fn *each, void *arg);

/* Calls each for the publisher of a worker of the directory, if it is there. */
void tierce__sources_of(struct tierce__sources *sources, struct tierce__directory_id id,
                        tierce__source_fn *each, void *arg);

#endif
