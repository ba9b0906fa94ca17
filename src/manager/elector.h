/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_ELECTOR_H
#define TIERCE_MANAGER_ELECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Which of several managers leads: a lease in a place that all of them see, renewed by a thread.
 *
 * Whoever gets the lease gets a fencing token with it, larger than every token before; all writes
 * to shared stores carry it. A leader whose lease it could not renew in time stops leading before
 * the lease ends, by its own clock, also if it was stopped meanwhile.
 *
 * The lease (lease.h) lies nowhere (URI "": this manager is alone, and its token is 0: nothing to
 * fence), in memory by a name (one process), a file (several processes of one host), Redis (KVCM's
 * key and scripts, and a token beside it), or etcd (its JSON gateway).
 *
 * Threads: any. The callbacks come from a thread of the elector, one at a time; the lease is
 * renewed beside them, so that they may take their time.
 */

struct tierce__elector;

struct tierce__elector_opts {
    size_t size;
    const char *uri;      /* "", "memory://name", "file:///dir", "redis://..",
                             "etcd://host:port[,host:port]" */
    const char *node_id;  /* the lock's value; tells who leads; at most 127 bytes */
    uint32_t lease_ms;    /* 0: 10000 */
    uint32_t interval_ms; /* 0: 100 */
    /* Became leader: recover, then return. Failing (negative) gives the lease back. */
    int (*promote)(void *arg, uint64_t fence);
    /* No longer leader: stop accepting, drain, drop what is in memory. Also after a promote that
     * went well, if the lease was lost meanwhile. Where the lease is given up, it is kept until
     * this returns, so that the next leader finds all done. */
    void (*demote)(void *arg);
    void *arg;
};

/* Errors: TIERCE_E_CONFIG, -ENOMEM, negative errno; `why` in words. */
TIERCE_MUSTUSE int tierce__elector_start(struct tierce__elector **out,
                                         const struct tierce__elector_opts *opts, char why[256]);
/* Demotes, gives the lease back, ends. */
void tierce__elector_stop(struct tierce__elector *elector);

/* Lock-free; false from the moment when the lease may be somebody else's. */
bool tierce__elector_leads(const struct tierce__elector *elector);

struct tierce__elector_state {
    bool leads;
    uint64_t fence;
    int64_t lease_until_us; /* wall clock, of our lease; 0 */
    uint64_t loop_age_ms;   /* since the last turn of the loop */
    char leader[128];       /* node id of who leads, or "" */
    char trouble[128];      /* why the lease could not be asked for the last time, or "" */
};
void tierce__elector_state(struct tierce__elector *elector, struct tierce__elector_state *out);

/* Gives the lease up and does not run for it again before the campaign delay has passed. Returns at
 * once, not leading any more; demote() follows. */
void tierce__elector_demote(struct tierce__elector *elector);
void tierce__elector_set_campaign_delay(struct tierce__elector *elector, int64_t delay_ms);
int64_t tierce__elector_campaign_delay(const struct tierce__elector *elector);

#endif
