/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CONFIG_H
#define TIERCE_MANAGER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/log.h>
#include <tierce/status.h>

#include "base/config/config.h"
#include "core/key/lmcache.h"

/*
 * The configuration of a manager. It can be written in two forms: Tierce's own (manager_params.def:
 * YAML, TIERCE_MANAGER_LISTEN_HOST, --listen.host=VALUE) and KVCM's (config_kvcm.h). Later sources
 * override earlier ones:
 *
 *     defaults < YAML file < KVCM (file < -e < environment) < TIERCE_MANAGER_* < flags
 *
 * Threads: one at a time for load and clear; any for reading.
 */

#define TIERCE__LMCACHE_GROUP_BYTES 128u

enum tierce__manager_param {
#define TIERCE_PARAM(row, name, type, fallback, min, max, choices, text) TIERCE__MANAGER_##row,
#include "manager/manager_params.def"
#undef TIERCE_PARAM
    TIERCE__MANAGER_PARAMS
};

/* The table, TIERCE__MANAGER_PARAMS rows. Constant storage. */
const struct tierce__param *tierce__manager_params(void);

enum tierce__manager_action {
    TIERCE__MANAGER_RUN,
    TIERCE__MANAGER_HELP,
    TIERCE__MANAGER_VERSION,
    TIERCE__MANAGER_PRINT,    /* the configuration */
    TIERCE__MANAGER_MARKDOWN, /* the reference of manager_params.def */
};

/* Texts are never NULL; a text that is not configured is "". */
struct tierce__manager_config {
    struct tierce__config *values; /* owned: the values behind the fields below */
    enum tierce__manager_action action;
    bool is_daemon;

    const char *host;
    uint16_t grpc_port, http_port, admin_http_port; /* 0: a free one */
    bool shares_grpc;         /* administration calls are served on grpc_port */
    uint16_t admin_grpc_port; /* otherwise: the port for administration calls, never 0 */
    bool has_debug;
    uint16_t debug_http_port;
    bool is_insecure;
    const char *tls_certificate, *tls_key, *tls_client_ca;
    bool requires_auth;
    const char *auth_token_file, *node_token_file, *node_ca_file;

    uint32_t loops, workers, connections_max, connections_per_address;
    uint64_t message_bytes_max;
    uint32_t drain_ms;

    const char *registry_uri;
    const char *startup_file;
    const char *restore_file;    /* "": none */
    const char *mooncake_python; /* "": storages of Mooncake are unmanaged */
    bool restores_slots, restores_id;
    char *state_folder; /* owned: tierce__state_folder (startup.h); NULL: not known */
    const char *elector_uri;
    const char *node_id; /* "": one is generated */
    uint32_t elector_lease_ms, elector_interval_ms;
    uint32_t delete_threads;
    uint64_t move_rate; /* bytes a second */
    uint64_t directory_bytes;
    uint32_t directory_workers, directory_silence_ms, directory_senders;
    uint32_t directory_share; /* percent, of one group */
    uint64_t scrub_bytes;     /* of its filter */
    const char *lmcache_host, *lmcache_address, *lmcache_group;
    uint16_t lmcache_pull_port, lmcache_reply_port, lmcache_heartbeat_port; /* 0: none */
    uint16_t lmcache_http_port;                                             /* 0: none */
    uint32_t lmcache_workers, lmcache_silence_ms, lmcache_command_ms;
    bool has_lmcache_hash;
    struct tierce__lmcache_opts lmcache_hash;
    unsigned autopilot_mode; /* 0: off, 1: advise, 2: act */
    uint32_t autopilot_settle_ms;
    const char *quota_groups; /* "NAME=SIZE,NAME=SIZE" */

    enum tierce_log_level log_level;
    const char *log_folder;
    bool logs_to_console, logs_metrics, logs_accesses, logs_audit;
    uint32_t metrics_interval_ms;
};

/*
 * Loads the configuration from the arguments after the subcommand's name and from an environment
 * (as `environ`). *warnings is set to NULL, or to one line (heap: tierce__free) for each key that
 * is unknown or has no effect here. Errors, *out untouched and `error` filled: TIERCE_E_CONFIG,
 * negative errno (a file), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__manager_config_load(struct tierce__manager_config *out, int argc,
                                               char *const *argv, char *const *env, char **warnings,
                                               struct tierce__config_error *error);

/* Frees all memory of a configuration. A zeroed configuration is accepted. */
void tierce__manager_config_clear(struct tierce__manager_config *config);

#endif
