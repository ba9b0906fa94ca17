/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_CONFIG_H
#define TIERCE_NODE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/config.h>

#include "base/config/config_args.h"
#include "engine/engine_config.h"

/*
 * The configuration of a node: its engine's parameters and its own in one table.
 *
 *     defaults < YAML file < TIERCE_NODE_* < flags
 *
 * Thread: one at a time until it is only read.
 */

enum tierce__node_param { /* after the engine's parameters, which keep their numbers */
                          TIERCE__NODE_BEFORE_FIRST = TIERCE__ENGINE_PARAMS - 1,
#define TIERCE_PARAM(row, name, type, fallback, min, max, choices, text) TIERCE__NODE_##row,
#include "node/node_params.def"
#undef TIERCE_PARAM
                          TIERCE__NODE_PARAMS
};

/* The node's own rows, *count of them. Constant storage. */
const struct tierce__param *tierce__node_params(size_t *count);

/* Texts are never NULL; unset ones are "". */
struct tierce__node_config {
    struct tierce__config *values; /* owned: the values behind the other fields */
    struct tierce_config *engine;  /* owned */
    enum tierce__config_action action;
    const char *users_path; /* [borrow argv] of --users; NULL: none */

    const char *host;
    uint16_t resp_port, lm_port, http_port; /* 0: a free one */
    bool has_resp, has_lm, is_insecure;
    const char *native_path; /* "": none */
    const char *native_users, *native_group;
    uint32_t native_connections_max, native_open_max;
    uint64_t native_chains_max, native_memory_max; /* bytes */
    uint32_t lookup_ms, load_ms, store_ms, pin_ms, prefetch_ms;
    const char *tls_certificate, *tls_key, *tls_client_ca;
    const char *token_file;
    uint32_t loops, workers, drain_ms;
    uint32_t connections_max, connections_per_address;
    uint64_t value_max, request_max, incoming_max, grace_max; /* bytes */
    uint32_t idle_ms, request_ms, grace_ms, find_ms;
    const char *disk_path; /* "": none */
    bool disk_is_optional;
    const char *pool_manager, *pool_name, *pool_address, *pool_disk; /* pool_manager "": no pool */
    uint16_t pool_port;
    bool pool_disk_new;
    uint32_t pool_disk_waiting, pool_stall_ms;
    uint64_t pool_memory, pool_disk_size, pool_disk_buffer; /* bytes */
    const char *mover_manager;                              /* "": that of the pool; "none" */
    const char *mover_mooncake_python;                      /* "": none */
    uint64_t mover_memory, mover_rate;                      /* bytes; a second, 0: no limit */
    bool may_wait;                                          /* there is a slower tier than memory */
};

/* From the arguments after the subcommand's name and an environment (as `environ`). Errors, *out
 * untouched and `error` filled: TIERCE_E_CONFIG, negative errno (a file), -ENOMEM. */
TIERCE_MUSTUSE int tierce__node_config_load(struct tierce__node_config *out, int argc,
                                            char *const *argv, char *const *env,
                                            struct tierce__config_error *error);

/* Accepts a zeroed one. */
void tierce__node_config_clear(struct tierce__node_config *config);

#endif
