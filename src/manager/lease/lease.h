/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_LEASE_H
#define TIERCE_MANAGER_LEASE_H

#include <stdint.h>

#include <tierce/status.h>

/*
 * A leadership lease in a location that all managers share: the seam below elector.h.
 *
 * Each acquired lease carries a token that is larger than every earlier one. A token is at least
 * the wall clock in microseconds, so that tokens still rise when the lease moves to another
 * location.
 *
 * Calls may block, each for about timeout_ms at most. Threads: one at a time.
 */

#define TIERCE__LEASE_NAME         "_TAIR_KVCM_LEADER_KEY"
#define TIERCE__LEASE_HOLDER_BYTES 128u
#define TIERCE__LEASE_REGISTRY     "registry+" /* and the URI of a registry in Redis */

struct tierce__lease;

struct tierce__lease_ops {
    const char *name; /* "alone", "memory", "file", "redis", "registry", "etcd" */
    /* `holder` [borrow until close]: the unique name that other managers see. Errors:
     * TIERCE_E_CONFIG, negative errno, -ENOMEM; `why` in words. The location need not be reachable
     * yet. */
    TIERCE_MUSTUSE int (*open)(struct tierce__lease **out, const char *uri, const char *holder,
                               uint32_t timeout_ms, char why[256]);
    void (*close)(struct tierce__lease *lease); /* does not release the lease */
    /* Acquires the lease for lease_ms, counted from before the call. Returns 0 and *token (0: this
     * manager is alone and needs none). -EBUSY: `other` holds it. TIERCE_E_REFUSED: another manager
     * began later, and this process never acquires it again (lease_registry.c). Any other error:
     * the outcome is unknown, and this process may hold it. */
    TIERCE_MUSTUSE int (*take)(struct tierce__lease *lease, uint32_t lease_ms, uint64_t *token,
                               char other[TIERCE__LEASE_HOLDER_BYTES]);
    /* Renews the lease for lease_ms, counted from before the call. TIERCE_E_REFUSED: this process
     * does not hold it any more. Any other error: the outcome is unknown. */
    TIERCE_MUSTUSE int (*renew)(struct tierce__lease *lease, uint32_t lease_ms);
    /* Releases the lease if this process holds it and the location is reachable; otherwise it
     * expires. */
    void (*give)(struct tierce__lease *lease);
    /* Reads the holder's name; "" if nobody holds the lease. */
    TIERCE_MUSTUSE int (*look)(struct tierce__lease *lease,
                               char holder[TIERCE__LEASE_HOLDER_BYTES]);
};

/* First member of every implementation. */
struct tierce__lease {
    const struct tierce__lease_ops *ops;
};

extern const struct tierce__lease_ops tierce__lease_alone;
extern const struct tierce__lease_ops tierce__lease_memory;
extern const struct tierce__lease_ops tierce__lease_file;
extern const struct tierce__lease_ops tierce__lease_redis;
extern const struct tierce__lease_ops tierce__lease_registry;
extern const struct tierce__lease_ops tierce__lease_etcd;

/* Finds the implementation by the scheme of a URI; NULL: unknown scheme. */
const struct tierce__lease_ops *tierce__lease_find(const char *uri);

uint64_t tierce__lease_wall_us(void);

/* The token that follows `before`. TIERCE_E_LIMIT: there is none up to INT64_MAX, the largest that
 * every location can store. */
TIERCE_MUSTUSE int tierce__lease_next_token(uint64_t *token, uint64_t before);

#endif
