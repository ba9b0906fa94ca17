/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_ELECTOR_H
#define TIERCE_MANAGER_ELECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Elects the leader among several managers: a lease in a shared location, renewed by a thread.
 *
 * The holder of the lease receives a fencing token that is larger than every earlier token; all
 * writes to shared stores carry it. A leader that cannot renew its lease stops leading before the
 * lease expires by its own clock, even if the process was suspended meanwhile.
 *
 * The lease (lease.h) is stored in memory by name (one process), in a file (processes of one host),
 * in Redis (KVCM's key and scripts, and a token beside it) or in etcd (its JSON gateway). With URI
 * "" there is no lease: the manager is alone and its token is 0.
 *
 * Threads: any. One thread of the elector makes the callbacks, one at a time; another renews the
 * lease meanwhile, so callbacks may block.
 */

struct tierce__elector;

struct tierce__elector_opts {
    size_t size;
    const char *uri;      /* "", "memory://name", "file:///dir", "redis://..",
                             "etcd://host:port[,host:port]" */
    const char *node_id;  /* the value of the lease, identifies the leader; at most 127 bytes */
    uint32_t lease_ms;    /* 0: 10000 */
    uint32_t interval_ms; /* 0: 100 */
    /* This process became the leader. Recovers, then returns. A negative return value releases the
     * lease. */
    int (*promote)(void *arg, uint64_t fence);
    /* This process is no longer the leader. Rejects new calls, drains, drops state in memory. Also
     * called after a successful promote if the lease was lost meanwhile. If the lease is released
     * on purpose, it is held until this returns, so that the next leader starts after all work is
     * done. */
    void (*demote)(void *arg);
    void *arg;
};

/* Errors: TIERCE_E_CONFIG, -ENOMEM, negative errno; `why` in words. */
TIERCE_MUSTUSE int tierce__elector_start(struct tierce__elector **out,
                                         const struct tierce__elector_opts *opts, char why[256]);
/* Demotes, releases the lease and destroys the elector. */
void tierce__elector_stop(struct tierce__elector *elector);

/* Lock-free. False as soon as another process may hold the lease. */
bool tierce__elector_leads(const struct tierce__elector *elector);

struct tierce__elector_state {
    bool leads;
    uint64_t fence;
    int64_t lease_until_us; /* wall clock, of our lease; 0 */
    uint64_t loop_age_ms;   /* since the last iteration of the loop */
    char leader[128];       /* node id of the leader, or "" */
    char trouble[128];      /* why the last request for the lease failed, or "" */
};
void tierce__elector_state(struct tierce__elector *elector, struct tierce__elector_state *out);

/* Releases the lease and does not campaign again before the campaign delay has passed. Returns at
 * once; this process no longer leads, and demote() follows. */
void tierce__elector_demote(struct tierce__elector *elector);
void tierce__elector_set_campaign_delay(struct tierce__elector *elector, int64_t delay_ms);
int64_t tierce__elector_campaign_delay(const struct tierce__elector *elector);

#endif
