/* SPDX-License-Identifier: Apache-2.0 */
#include "router/router_config.h"

#include "net/loopback.h"

static const struct tierce__param params[] = {
#define TIERCE_PARAM(row, name, type, fallback, min, max, choices, text)                           \
    {name, TIERCE__PARAM_##type, fallback, min, max, choices, text},
#include "router/router_params.def"
#undef TIERCE_PARAM
};

_Static_assert(sizeof(params) / sizeof(params[0]) == TIERCE__ROUTER_PARAMS,
               "each parameter has one row");

const struct tierce__param *tierce__router_params(void)
{
    return params;
}

static uint32_t u32_of(const struct tierce__config *values, enum tierce__router_param row)
{
    return (uint32_t)tierce__config_number(values, (size_t)row);
}

static const char *text_of(const struct tierce__config *values, enum tierce__router_param row)
{
    return tierce__config_text(values, (size_t)row);
}

static void fill(struct tierce__router_config *config, struct tierce__config *values)
{
    *config = (struct tierce__router_config){
        .values = values,
        .host = text_of(values, TIERCE__ROUTER_LISTEN_HOST),
        .port = (uint16_t)u32_of(values, TIERCE__ROUTER_LISTEN_PORT),
        .is_insecure = tierce__config_bool(values, TIERCE__ROUTER_LISTEN_INSECURE),
        .tls_certificate = text_of(values, TIERCE__ROUTER_TLS_CERTIFICATE),
        .tls_key = text_of(values, TIERCE__ROUTER_TLS_KEY),
        .tls_client_ca = text_of(values, TIERCE__ROUTER_TLS_CLIENT_CA),
        .token_file = text_of(values, TIERCE__ROUTER_AUTH_TOKEN_FILE),
        .publishers_file = text_of(values, TIERCE__ROUTER_PUBLISHERS_FILE),
        .snapshot_token_file = text_of(values, TIERCE__ROUTER_SNAPSHOT_TOKEN_FILE),
        .snapshot_ca_file = text_of(values, TIERCE__ROUTER_SNAPSHOT_CA_FILE),
        .curve_key_file = text_of(values, TIERCE__ROUTER_CURVE_KEY_FILE),
        .threads = u32_of(values, TIERCE__ROUTER_SERVE_THREADS),
        .publishers_max = u32_of(values, TIERCE__ROUTER_LIMIT_PUBLISHERS),
        .connections_max = u32_of(values, TIERCE__ROUTER_LIMIT_CONNECTIONS),
        .blocks_max = tierce__config_number(values, TIERCE__ROUTER_LIMIT_BLOCKS),
        .memory_max = tierce__config_number(values, TIERCE__ROUTER_LIMIT_MEMORY),
        .tokens_max = tierce__config_number(values, TIERCE__ROUTER_LIMIT_TOKENS),
        .check_ms = u32_of(values, TIERCE__ROUTER_INTERVAL_CHECK),
        .retry_ms = u32_of(values, TIERCE__ROUTER_INTERVAL_RETRY),
        .gone_ms = u32_of(values, TIERCE__ROUTER_TIMEOUT_GONE),
        .replay_ms = u32_of(values, TIERCE__ROUTER_TIMEOUT_REPLAY),
        .snapshot_ms = u32_of(values, TIERCE__ROUTER_TIMEOUT_SNAPSHOT),
    };
}

static int check(const struct tierce__router_config *config, struct tierce__config_error *error)
{
    /* Without tokens every program of this host may register a URL: none of them may receive one.
     */
    if (config->snapshot_token_file[0] != '\0' && config->token_file[0] == '\0' &&
        config->publishers_file[0] == '\0')
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "snapshot.token_file requires auth.token_file or "
                                   "publishers.file: its tokens are sent to publishers of that "
                                   "file and of callers with a token only");
    return tierce__access_check(&(struct tierce__access){.host = config->host,
                                                         .certificate = config->tls_certificate,
                                                         .key = config->tls_key,
                                                         .client_ca = config->tls_client_ca,
                                                         .token_file = config->token_file,
                                                         .is_insecure = config->is_insecure},
                                error);
}

int tierce__router_config_load(struct tierce__router_config *out, int argc, char *const *argv,
                               char *const *env, struct tierce__config_error *error)
{
    const struct tierce__config_program program = {.command = "router-index",
                                                   .env_prefix = "TIERCE_ROUTER_INDEX",
                                                   .table = params,
                                                   .count = TIERCE__ROUTER_PARAMS};
    struct tierce__config *values;
    struct tierce__router_config config;
    struct tierce__config_request request;
    int rc = tierce__config_load_program(&values, &request, &program, argc, argv, env, error);
    if (rc != 0)
        return rc;
    fill(&config, values);
    config.action = request.action;
    rc = check(&config, error);
    if (rc != 0) {
        tierce__config_destroy(values);
        return rc;
    }
    *out = config;
    return 0;
}

void tierce__router_config_clear(struct tierce__router_config *config)
{
    tierce__config_destroy(config->values);
    *config = (struct tierce__router_config){0};
}
