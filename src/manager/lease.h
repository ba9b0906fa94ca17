/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_LEASE_H
#define TIERCE_MANAGER_LEASE_H

#include <stdint.h>

#include <tierce/status.h>

/*
 * The right to lead, for a while, in a place that all managers see: the seam below elector.h.
 *
 * With it comes a token, larger than every one before it. Tokens follow the wall clock in
 * microseconds where that is ahead, so that they rise too where a lease moves to another place.
 *
 * Calls may block, each for about timeout_ms at most. Threads: one at a time.
 */

#define TIERCE__LEASE_NAME         "_TAIR_KVCM_LEADER_KEY"
#define TIERCE__LEASE_HOLDER_BYTES 128u

struct tierce__lease;

struct tierce__lease_ops {
    const char *name; /* "alone", "memory", "file", "redis", "etcd" */
    /* `holder` [borrow until close]: what others see, and no two of them share. Errors:
     * TIERCE_E_CONFIG, negative errno, -ENOMEM; `why` in words. The place itself need not be there
     * yet. */
    TIERCE_MUSTUSE int (*open)(struct tierce__lease **out, const char *uri, const char *holder,
                               uint32_t timeout_ms, char why[256]);
    void (*close)(struct tierce__lease *lease); /* gives nothing back */
    /* Gets it for lease_ms from before the call on: 0, *token (0: alone, there is no need for one).
     * -EBUSY: it is of `other`. Any other error: nobody knows, and it may be ours. */
    TIERCE_MUSTUSE int (*take)(struct tierce__lease *lease, uint32_t lease_ms, uint64_t *token,
                               char other[TIERCE__LEASE_HOLDER_BYTES]);
    /* Keeps it for lease_ms from before the call on. TIERCE_E_REFUSED: it is ours no more. Any
     * other error: nobody knows. */
    TIERCE_MUSTUSE int (*renew)(struct tierce__lease *lease, uint32_t lease_ms);
    /* Gives it back, if it is ours and can be reached; else it runs out. */
    void (*give)(struct tierce__lease *lease);
    /* Who has it; "" for nobody. */
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
extern const struct tierce__lease_ops tierce__lease_etcd;

/* By the scheme of a URI; NULL: it has none that is known. */
const struct tierce__lease_ops *tierce__lease_find(const char *uri);

/* Microseconds of the wall clock; and the token after one. */
uint64_t tierce__lease_wall_us(void);
uint64_t tierce__lease_next_token(uint64_t before);

#endif
