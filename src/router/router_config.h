/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_CONFIG_H
#define TIERCE_ROUTER_CONFIG_H

#include "base/config/config_args.h"

/*
 * The configuration of a router index: router_params.def over a YAML file, TIERCE_ROUTER_INDEX_*
 * and flags.
 *
 * Thread: one at a time until it is only read.
 */

enum tierce__router_param {
#define TIERCE_PARAM(row, name, type, fallback, min, max, choices, text) TIERCE__ROUTER_##row,
#include "router/router_params.def"
#undef TIERCE_PARAM
    TIERCE__ROUTER_PARAMS
};

const struct tierce__param *tierce__router_params(void);

/* Texts are never NULL; unset ones are "". */
struct tierce__router_config {
    struct tierce__config *values; /* owned: the values behind the other fields */
    enum tierce__config_action action;
    const char *host;
    uint16_t port; /* 0: a free one */
    bool is_insecure;
    const char *tls_certificate, *tls_key, *tls_client_ca;
    const char *token_file, *publishers_file;
    const char *snapshot_token_file, *snapshot_ca_file, *curve_key_file;
    uint32_t threads, publishers_max, connections_max;
    uint64_t blocks_max, memory_max, tokens_max;
    uint32_t check_ms, retry_ms, gone_ms, replay_ms, snapshot_ms;
};

/* From the arguments after the subcommand's name and an environment (as `environ`). Errors, *out
 * untouched and `error` filled: TIERCE_E_CONFIG, negative errno (a file), -ENOMEM. */
TIERCE_MUSTUSE int tierce__router_config_load(struct tierce__router_config *out, int argc,
                                              char *const *argv, char *const *env,
                                              struct tierce__config_error *error);

/* Accepts a zeroed one. */
void tierce__router_config_clear(struct tierce__router_config *config);

#endif
