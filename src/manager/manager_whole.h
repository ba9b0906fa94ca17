/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_WHOLE_H
#define TIERCE_MANAGER_WHOLE_H

#include "base/list.h"
#include "manager/backup/restore.h"
#include "manager/manager_config.h"
#include "manager/manager_private.h"
#include "net/server/serve.h"

/* A manager with the parts that only those who assemble it use: manager.c, manager_logs.c and
 * manager_lead.c. */

enum {
    TIERCE__LISTENERS_MAX = 6,
    TIERCE__ROUTES_MAX = TIERCE__RPC_COUNT + TIERCE__ADMIN_HTTP_ROUTES_MAX,
};

struct tierce__manager_whole {
    struct tierce__manager manager;
    struct tierce__listener listeners[TIERCE__LISTENERS_MAX];
    struct tierce__route routes[TIERCE__LISTENERS_MAX][TIERCE__ROUTES_MAX];
    size_t listener_count;
    /* Indexes; SIZE_MAX: none. */
    size_t meta_grpc, meta_http, admin_grpc, admin_http, debug_http;
    char *startup;                   /* JSON, or NULL: there is none */
    struct tierce__restore *restore; /* or NULL */
    char *state_folder;              /* the folder of the built-in storage of `startup`; or NULL */
    struct tierce__line_log *service_log, *metrics_log;
    int log_lock; /* keeps other managers out of the folder of the logs; -1: there are none */
    bool logs_to_console;
    bool has_standbys; /* elector.uri is set: another manager may lead after this one */
    uint32_t drain_ms, metrics_interval_ms;
    struct tierce__lock lock; /* TICKER; guards is_ending and has_elector */
    struct tierce__cond wake;
    bool is_ending, has_ticker, has_elector;
    pthread_t ticker;
};

static inline struct tierce__manager_whole *
tierce__manager_whole_of(struct tierce__manager *manager)
{
    return TIERCE__CONTAINER_OF(manager, struct tierce__manager_whole, manager);
}

/* ---- manager_logs.c: the folder of the logs, and the log of this process -----------------------
 */

/* Errors, `why` in words: negative errno; then close_logs, too. */
TIERCE_MUSTUSE int tierce__manager_open_logs(struct tierce__manager_whole *whole,
                                             const struct tierce__manager_config *config,
                                             char why[256]);
void tierce__manager_close_logs(struct tierce__manager_whole *whole);

/* ---- manager_lead.c: called by the elector (elector.h); `arg` is the whole ---------------------
 */

TIERCE_MUSTUSE int tierce__manager_promote(void *arg, uint64_t fence);
void tierce__manager_demote(void *arg);
void tierce__manager_set_state(struct tierce__manager *manager, enum tierce__manager_state state);

#endif
