/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_PRIVATE_H
#define TIERCE_MANAGER_PRIVATE_H

#include "base/latency.h"
#include "base/threads/lock.h"
#include "core/key/lmcache.h"
#include "manager/api/auth.h"
#include "manager/lease/elector.h"
#include "manager/event_log.h"
#include "manager/api/faults.h"
#include "manager/observe/history.h"
#include "base/log/line_log.h"
#include "manager/locate/locator.h"
#include "manager/manager.h"
#include "manager/reclaim/reclaimer.h"
#include "manager/registry/registry.h"
#include "manager/scrub/scrub.h"
#include "manager/storage/storages.h"
#include "manager/holdings/holdings.h"
#include "proto/kvcm/rpcs.h"

#include <stdatomic.h>

#include <tierce/log.h>

/* The parts of a manager. manager.c assembles them; api*.c and page.c use them. */

enum tierce__manager_state {
    TIERCE__MANAGER_STARTS, /* listens; the elector does not run yet */
    TIERCE__MANAGER_FOLLOWS,
    TIERCE__MANAGER_LOADS, /* holds the lease; reads registry and notes */
    TIERCE__MANAGER_LEADS,
};

/* Calls of one RPC, of all instances together. */
struct tierce__rpc_stats {
    _Atomic uint64_t calls, errors;
    _Atomic uint64_t last_us;
    struct tierce__latency latency;
    _Atomic uint32_t last_code;
};

/* An RPC of a manager, as the argument of its route. */
struct tierce__api_target {
    struct tierce__manager *manager;
    enum tierce__rpc_id id;
};

/* A route of the HTTP ports besides the RPCs, as the argument of its route. `serve` answers a
 * caller who may read the route. */
struct tierce__http_target {
    struct tierce__manager *manager;
    const struct tierce__need *need;
    void (*serve)(struct tierce__manager *manager, struct tierce__call *call,
                  const struct tierce__caller *caller);
};

enum { TIERCE__ADMIN_HTTP_ROUTES_MAX = 12 };
#define TIERCE__RPC_PORTS 3u

#define TIERCE__LMCACHE_ROUTES_MAX 12u

/* The workers of LMCache (lmcache/controller_manager.h). */
struct tierce__lmcache {
    struct tierce__controller *controller; /* NULL: no port is set */
    struct tierce__controller_commands *commands;
    struct tierce__controller_sockets *sockets; /* NULL: only HTTP */
    const char *group;
    char heartbeat_url[256];
    bool has_hash;
    struct tierce__lmcache_opts hash;
    struct tierce__http_target targets[TIERCE__LMCACHE_ROUTES_MAX];
};

struct tierce__manager {
    struct tierce__registry *registry;
    struct tierce__storages *storages;
    struct tierce__nodes *nodes;
    struct tierce__holdings *holdings;
    struct tierce__lmcache lmcache;
    struct tierce__locator *locator;
    struct tierce__ghosts *ghost;
    struct tierce__autopilot *autopilot;
    struct tierce__reclaimer *reclaimer;
    struct tierce__scrub *scrub;
    struct tierce__elector *elector;
    struct tierce__line_log *events;
    struct tierce__faults *faults;
    struct tierce__auth *auth;
    struct tierce__line_log *access_log;
    struct tierce__audit *audit; /* NULL: no such log */
    struct tierce__history *history;
    struct tierce__later *later; /* replies that faults delay */
    /* NULL until the server runs; stored with release while its threads run already, loaded with
     * acquire */
    _Atomic(struct tierce__server *) server;
    _Atomic int state; /* enum tierce__manager_state */
    struct tierce__api_target targets[TIERCE__RPC_COUNT];
    struct tierce__http_target http_targets[TIERCE__RPC_PORTS][TIERCE__ADMIN_HTTP_ROUTES_MAX];
    struct tierce__rpc_stats rpcs[TIERCE__RPC_COUNT];
    char node_id[128];
    int64_t started_us;
    struct tierce__lock
        trouble_lock; /* TROUBLE, guards `trouble`: why the last attempt to lead failed, or "" */
    char trouble[256];
};

/* Wall clock. */
int64_t tierce__manager_now_us(const struct tierce__manager *manager);

/* Sets the lowest level of events that are logged. */
void tierce__manager_set_log_level(struct tierce__manager *manager, enum tierce_log_level level);

/* The reason why this manager does not lead although no other manager does; or "". */
void tierce__manager_trouble(struct tierce__manager *manager, char out[256]);

/* Returns whether this manager leads and its lease is still valid. */
bool tierce__manager_leads(const struct tierce__manager *manager);

#endif
