/* SPDX-License-Identifier: Apache-2.0 */
#include "node/node_config.h"
#include "base/alloc.h"
#include "net/loopback.h"
#include "node/part/join.h"
#include "node/part/node_mover.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct tierce__param params[] = {
#define TIERCE_PARAM(row, name, type, fallback, min, max, choices, text)                           \
    {name, TIERCE__PARAM_##type, fallback, min, max, choices, text},
#include "engine/engine_params.def"
#include "node/node_params.def"
#undef TIERCE_PARAM
};

_Static_assert(sizeof(params) / sizeof(params[0]) == TIERCE__NODE_PARAMS,
               "each parameter has one row");

/* Variables that share the prefix and are not parameters. */
static const char *const other_variables[] = {"TIERCE_NODE_SOCKET",     "TIERCE_NODE_USER",
                                              "TIERCE_NODE_ENGINE",     "TIERCE_NODE_START",
                                              "TIERCE_NODE_EXECUTABLE", NULL};

const struct tierce__param *tierce__node_params(size_t *count)
{
    *count = TIERCE__NODE_PARAMS - TIERCE__ENGINE_PARAMS;
    return params + TIERCE__ENGINE_PARAMS;
}

/* ---- fields ---------------------------------------------------------------------------------- */

static uint32_t u32_of(const struct tierce__config *values, enum tierce__node_param row)
{
    return (uint32_t)tierce__config_number(values, (size_t)row);
}

static const char *text_of(const struct tierce__config *values, enum tierce__node_param row)
{
    return tierce__config_text(values, (size_t)row);
}

static bool flag_of(const struct tierce__config *values, enum tierce__node_param row)
{
    return tierce__config_bool(values, (size_t)row);
}

static uint64_t share_of(const struct tierce__config *values, enum tierce__node_param row)
{
    uint64_t memory = tierce__config_number(values, TIERCE__ENGINE_MEMORY_SIZE);
    return (uint64_t)(tierce__config_share(values, (size_t)row) * (double)memory);
}

static uint32_t engine_ms(const struct tierce__config *values, enum tierce__engine_param row)
{
    return (uint32_t)tierce__config_number(values, (size_t)row);
}

static void fill(struct tierce__node_config *config, struct tierce__config *values)
{
    *config = (struct tierce__node_config){
        .values = values,
        .host = text_of(values, TIERCE__NODE_LISTEN_HOST),
        .resp_port = (uint16_t)u32_of(values, TIERCE__NODE_LISTEN_RESP_PORT),
        .lm_port = (uint16_t)u32_of(values, TIERCE__NODE_LISTEN_LM_PORT),
        .http_port = (uint16_t)u32_of(values, TIERCE__NODE_LISTEN_HTTP_PORT),
        .has_resp = flag_of(values, TIERCE__NODE_LISTEN_RESP),
        .has_lm = flag_of(values, TIERCE__NODE_LISTEN_LM),
        .is_insecure = flag_of(values, TIERCE__NODE_LISTEN_INSECURE),
        .tls_certificate = text_of(values, TIERCE__NODE_TLS_CERTIFICATE),
        .tls_key = text_of(values, TIERCE__NODE_TLS_KEY),
        .tls_client_ca = text_of(values, TIERCE__NODE_TLS_CLIENT_CA),
        .token_file = text_of(values, TIERCE__NODE_AUTH_TOKEN_FILE),
        .native_path = text_of(values, TIERCE__NODE_LISTEN_NATIVE),
        .native_users = text_of(values, TIERCE__NODE_LISTEN_NATIVE_USERS),
        .native_group = text_of(values, TIERCE__NODE_LISTEN_NATIVE_GROUP),
        .native_connections_max = u32_of(values, TIERCE__NODE_LIMIT_NATIVE_CONNECTIONS),
        .native_open_max = u32_of(values, TIERCE__NODE_LIMIT_NATIVE_OPEN),
        .native_chains_max = tierce__config_number(values, TIERCE__NODE_LIMIT_NATIVE_CHAINS),
        .native_memory_max = share_of(values, TIERCE__NODE_LIMIT_NATIVE_MEMORY),
        .lookup_ms = engine_ms(values, TIERCE__ENGINE_TIMEOUT_LOOKUP),
        .load_ms = engine_ms(values, TIERCE__ENGINE_TIMEOUT_LOAD),
        .store_ms = engine_ms(values, TIERCE__ENGINE_TIMEOUT_STORE),
        .pin_ms = engine_ms(values, TIERCE__ENGINE_TIMEOUT_PIN),
        .prefetch_ms = engine_ms(values, TIERCE__ENGINE_TIMEOUT_PREFETCH),
        .loops = u32_of(values, TIERCE__NODE_SERVE_LOOPS),
        .workers = u32_of(values, TIERCE__NODE_SERVE_WORKERS),
        .drain_ms = u32_of(values, TIERCE__NODE_SERVE_DRAIN),
        .connections_max = u32_of(values, TIERCE__NODE_LIMIT_CONNECTIONS),
        .connections_per_address = u32_of(values, TIERCE__NODE_LIMIT_CONNECTIONS_PER_ADDRESS),
        .value_max = tierce__config_number(values, TIERCE__NODE_LIMIT_VALUE),
        .request_max = tierce__config_number(values, TIERCE__NODE_LIMIT_REQUEST),
        .incoming_max = share_of(values, TIERCE__NODE_LIMIT_INCOMING),
        .grace_max = share_of(values, TIERCE__NODE_LIMIT_GRACE),
        .idle_ms = u32_of(values, TIERCE__NODE_TIMEOUT_IDLE),
        .request_ms = u32_of(values, TIERCE__NODE_TIMEOUT_REQUEST),
        .grace_ms = u32_of(values, TIERCE__NODE_TIMEOUT_GRACE),
        .find_ms = (uint32_t)tierce__config_number(values, TIERCE__ENGINE_TIMEOUT_LOAD),
        .disk_path = tierce__config_text(values, TIERCE__ENGINE_DISK_PATH),
        .disk_is_optional = flag_of(values, TIERCE__NODE_DISK_OPTIONAL),
        .pool_manager = text_of(values, TIERCE__NODE_POOL_MANAGER),
        .pool_name = text_of(values, TIERCE__NODE_POOL_NAME),
        .pool_address = text_of(values, TIERCE__NODE_POOL_ADDRESS),
        .pool_disk = text_of(values, TIERCE__NODE_POOL_DISK),
        .pool_disk_new = flag_of(values, TIERCE__NODE_POOL_DISK_NEW),
        .pool_port = (uint16_t)u32_of(values, TIERCE__NODE_POOL_PORT),
        .pool_memory = tierce__config_number(values, TIERCE__NODE_POOL_MEMORY),
        .pool_disk_size = tierce__config_number(values, TIERCE__NODE_POOL_DISK_SIZE),
        .pool_disk_buffer = tierce__config_number(values, TIERCE__NODE_POOL_DISK_BUFFER),
        .pool_stall_ms = u32_of(values, TIERCE__NODE_POOL_STALL),
        .pool_disk_waiting =
            (uint32_t)tierce__config_number(values, TIERCE__NODE_POOL_DISK_WAITING),
        .mover_manager = text_of(values, TIERCE__NODE_MOVER_MANAGER),
        .mover_mooncake_python = text_of(values, TIERCE__NODE_MOVER_MOONCAKE_PYTHON),
        .mover_memory = tierce__config_number(values, TIERCE__NODE_MOVER_MEMORY),
        .mover_rate = tierce__config_number(values, TIERCE__NODE_MOVER_RATE),
        .may_wait = tierce__config_text(values, TIERCE__ENGINE_DISK_PATH)[0] != '\0' ||
                    tierce__config_text(values, TIERCE__ENGINE_REMOTE_URLS)[0] != '\0',
    };
}

/* ---- rules over several parameters ----------------------------------------------------------- */

static int check_access(const struct tierce__node_config *config,
                        struct tierce__config_error *error)
{
    bool has_tls = config->tls_certificate[0] != '\0', has_tokens = config->token_file[0] != '\0';
    bool has_client_ca = config->tls_client_ca[0] != '\0';
    int rc =
        tierce__access_check_tls(&(struct tierce__access){.certificate = config->tls_certificate,
                                                          .key = config->tls_key,
                                                          .client_ca = config->tls_client_ca},
                                 error);
    if (rc != 0 || tierce__is_loopback_host(config->host) || config->is_insecure)
        return rc;
    const char *host = config->host[0] != '\0' ? config->host : "every address";
    if (config->has_lm && !has_client_ca)
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "listen.host is %.100s, which other hosts can reach, and lm:// "
                                   "has no authentication: set "
                                   "tls.client_ca, listen.lm: false or listen.insecure: true",
                                   host);
    if ((config->has_resp || config->pool_manager[0] != '\0') && (!has_tls || !has_tokens))
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "listen.host is %.100s, which other hosts can reach: set all of "
                                   "auth.token_file, tls.certificate and tls.key; or set "
                                   "listen.insecure: true to allow plain access",
                                   host);
    return 0;
}

static bool is_every_address(const char *host)
{
    return host[0] == '\0' || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static int check_pool(const struct tierce__node_config *config, struct tierce__config_error *error)
{
    const uint64_t least = 1 << 20;
    bool has_disk = config->pool_disk[0] != '\0';
    char why[256];
    if (config->pool_manager[0] == '\0') {
        if (config->pool_memory == 0 && !has_disk)
            return 0;
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "%s requires pool.manager: fleet://HOST:PORT/POOL",
                                   has_disk ? "pool.disk" : "pool.memory");
    }
    if (tierce__join_check(config->pool_manager, why) != 0)
        return tierce__config_fail(error, TIERCE_E_CONFIG, "pool.manager: %.200s", why);
    if (config->pool_memory == 0 && !has_disk)
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "pool.manager requires pool.memory, pool.disk or both");
    if (config->pool_memory > 0 && config->pool_memory < least)
        return tierce__config_fail(error, TIERCE_E_CONFIG, "pool.memory must be 0 or 1MiB or more");
    if (has_disk && (config->pool_disk[0] != '/' || config->pool_disk_size < least))
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "pool.disk must be an absolute path, and pool.disk_size 1MiB or "
                                   "more");
    if (config->tls_client_ca[0] != '\0')
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "pool.manager does not work with tls.client_ca: engines and "
                                   "managers show nodes a token, and no certificate");
    if (config->pool_address[0] == '\0' && is_every_address(config->host))
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "pool.address must be set: engines cannot connect to "
                                   "listen.host %.100s",
                                   config->host[0] != '\0' ? config->host : "\"\"");
    return 0;
}

static int check_mover(const struct tierce__node_config *config, struct tierce__config_error *error)
{
    char why[TIERCE__FLEET_WHY_BYTES];
    const char *url = tierce__node_mover_url(config);
    if (url == NULL || tierce__mover_check(url, why) == 0)
        return 0;
    return tierce__config_fail(error, TIERCE_E_CONFIG, "mover.manager: %.200s", why);
}

static int check(const struct tierce__node_config *config, struct tierce__config_error *error)
{
    int rc = check_pool(config, error);
    if (rc == 0)
        rc = check_mover(config, error);
    if (rc != 0)
        return rc;
    uint16_t resp = config->has_resp ? config->resp_port : 0,
             lm = config->has_lm ? config->lm_port : 0;
    if ((resp != 0 && (resp == lm || resp == config->http_port)) ||
        (lm != 0 && lm == config->http_port))
        return tierce__config_fail(
            error, TIERCE_E_CONFIG,
            "two of listen.resp_port, listen.lm_port and listen.http_port are the same");
    return check_access(config, error);
}

/* ---- loading --------------------------------------------------------------------------------- */

static int make_engine_config(struct tierce_config **out, const struct tierce__config *values,
                              struct tierce__config_error *error)
{
    struct tierce_config *config;
    int rc = tierce_config_create(&config);
    if (rc != 0)
        return tierce__config_fail(error, rc, "no memory");
    for (size_t row = 0; row < TIERCE__ENGINE_PARAMS && rc == 0; row++)
        rc = tierce__engine_config_set(config, params[row].name,
                                       tierce__config_canonical(values, row),
                                       tierce__config_source(values, row), error->text);
    /* listen.native implies a shared pool. */
    if (rc == 0 && tierce__config_text(values, TIERCE__NODE_LISTEN_NATIVE)[0] != '\0')
        rc = tierce__engine_config_set(config, "memory.shared", "true", "listen.native",
                                       error->text);
    if (rc != 0)
        tierce_config_destroy(config);
    else
        *out = config;
    return rc;
}

int tierce__node_config_load(struct tierce__node_config *out, int argc, char *const *argv,
                             char *const *env, struct tierce__config_error *error)
{
    static const struct tierce__config_program program = {.command = "node",
                                                          .env_prefix = "TIERCE_NODE",
                                                          .table = params,
                                                          .count = TIERCE__NODE_PARAMS,
                                                          .file_flag = "--users",
                                                          .ignored = other_variables};
    struct tierce__config_request request;
    struct tierce__config *values;
    struct tierce__node_config config = {0};
    int rc = tierce__config_load_program(&values, &request, &program, argc, argv, env, error);
    if (rc != 0)
        return rc;
    fill(&config, values);
    rc = check(&config, error);
    if (rc == 0)
        rc = make_engine_config(&config.engine, values, error);
    if (rc != 0) {
        tierce__config_destroy(values);
        return rc;
    }
    config.action = request.action;
    config.users_path = request.file;
    *out = config;
    return 0;
}

void tierce__node_config_clear(struct tierce__node_config *config)
{
    tierce__config_destroy(config->values);
    tierce_config_destroy(config->engine);
    *config = (struct tierce__node_config){0};
}
