/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PROXY_CONFIG_H
#define TIERCE_PROXY_CONFIG_H

#include "base/config/config_args.h"

/*
 * The configuration of a proxy: proxy_params.def over a YAML file, TIERCE_PROXY_* and flags.
 *
 * Thread: one at a time until it is only read.
 */

enum tierce__proxy_param {
#define TIERCE_PARAM(row, name, type, fallback, min, max, choices, text) TIERCE__PROXY_##row,
#include "proxy/proxy_params.def"
#undef TIERCE_PARAM
    TIERCE__PROXY_PARAMS
};

const struct tierce__param *tierce__proxy_params(void);

/* Texts are never NULL; unset ones are "". */
struct tierce__proxy_config {
    struct tierce__config *values; /* owned: the values behind the other fields */
    enum tierce__config_action action;
    const char *host;
    uint16_t port; /* 0: a free one */
    bool is_insecure;
    const char *tls_certificate, *tls_key, *tls_client_ca;
    const char *token_file;
    const char *decode_urls, *prefill_urls, *engine_token_file, *engine_ca_file;
    uint32_t health_interval_ms, health_timeout_ms, health_failures;
    uint32_t connect_ms, prefill_ms, request_ms, silence_ms;
    bool pushes; /* prefill.push */
    uint32_t prefill_retries, decode_retries;
    uint64_t request_max, answer_max, stream_max, memory_max; /* bytes */
    uint32_t requests_max, connections_max, connections_per_address;
    uint32_t loops, drain_ms; /* loops: at least 1 */
    const char *router_url, *router_token_file;
    uint32_t router_ms, router_load;
};

/* From the arguments after the subcommand's name and an environment (as `environ`). Errors, *out
 * untouched and `error` filled: TIERCE_E_CONFIG, negative errno (a file), -ENOMEM. */
TIERCE_MUSTUSE int tierce__proxy_config_load(struct tierce__proxy_config *out, int argc,
                                             char *const *argv, char *const *env,
                                             struct tierce__config_error *error);

/* Accepts a zeroed one. */
void tierce__proxy_config_clear(struct tierce__proxy_config *config);

#endif
