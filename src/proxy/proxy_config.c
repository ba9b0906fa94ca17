/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/proxy_config.h"

#include "base/threads/threads.h"
#include "net/loopback.h"
#include "proxy/tenants.h"

#define LOOPS_MAX 4u /* unless more are configured */

static const struct tierce__param params[] = {
#define TIERCE_PARAM(row, name, type, fallback, min, max, choices, text)                           \
    {name, TIERCE__PARAM_##type, fallback, min, max, choices, text},
#include "proxy/proxy_params.def"
#undef TIERCE_PARAM
};

_Static_assert(sizeof(params) / sizeof(params[0]) == TIERCE__PROXY_PARAMS,
               "each parameter has one row");

const struct tierce__param *tierce__proxy_params(void)
{
    return params;
}

static uint32_t u32_of(const struct tierce__config *values, enum tierce__proxy_param row)
{
    return (uint32_t)tierce__config_number(values, (size_t)row);
}

static const char *text_of(const struct tierce__config *values, enum tierce__proxy_param row)
{
    return tierce__config_text(values, (size_t)row);
}

static uint32_t default_loops(void)
{
    uint32_t processors = tierce__processors();
    return processors < LOOPS_MAX ? processors : LOOPS_MAX;
}

static void fill(struct tierce__proxy_config *config, struct tierce__config *values)
{
    uint32_t loops = u32_of(values, TIERCE__PROXY_SERVE_LOOPS);
    *config = (struct tierce__proxy_config){
        .values = values,
        .host = text_of(values, TIERCE__PROXY_LISTEN_HOST),
        .port = (uint16_t)u32_of(values, TIERCE__PROXY_LISTEN_PORT),
        .is_insecure = tierce__config_bool(values, TIERCE__PROXY_LISTEN_INSECURE),
        .tls_certificate = text_of(values, TIERCE__PROXY_TLS_CERTIFICATE),
        .tls_key = text_of(values, TIERCE__PROXY_TLS_KEY),
        .tls_client_ca = text_of(values, TIERCE__PROXY_TLS_CLIENT_CA),
        .token_file = text_of(values, TIERCE__PROXY_AUTH_TOKEN_FILE),
        .decode_urls = text_of(values, TIERCE__PROXY_DECODE_URLS),
        .prefill_urls = text_of(values, TIERCE__PROXY_PREFILL_URLS),
        .engine_token_file = text_of(values, TIERCE__PROXY_ENGINE_TOKEN_FILE),
        .engine_ca_file = text_of(values, TIERCE__PROXY_ENGINE_CA_FILE),
        .health_interval_ms = u32_of(values, TIERCE__PROXY_HEALTH_INTERVAL),
        .health_timeout_ms = u32_of(values, TIERCE__PROXY_HEALTH_TIMEOUT),
        .health_failures = u32_of(values, TIERCE__PROXY_HEALTH_FAILURES),
        .connect_ms = u32_of(values, TIERCE__PROXY_TIMEOUT_CONNECT),
        .prefill_ms = u32_of(values, TIERCE__PROXY_TIMEOUT_PREFILL),
        .request_ms = u32_of(values, TIERCE__PROXY_TIMEOUT_REQUEST),
        .silence_ms = u32_of(values, TIERCE__PROXY_TIMEOUT_SILENCE),
        .pushes = tierce__config_bool(values, TIERCE__PROXY_PREFILL_PUSH),
        .prefill_retries = u32_of(values, TIERCE__PROXY_RETRY_PREFILL),
        .decode_retries = u32_of(values, TIERCE__PROXY_RETRY_DECODE),
        .request_max = tierce__config_number(values, TIERCE__PROXY_LIMIT_REQUEST),
        .answer_max = tierce__config_number(values, TIERCE__PROXY_LIMIT_ANSWER),
        .stream_max = tierce__config_number(values, TIERCE__PROXY_LIMIT_STREAM),
        .memory_max = tierce__config_number(values, TIERCE__PROXY_LIMIT_MEMORY),
        .requests_max = u32_of(values, TIERCE__PROXY_LIMIT_REQUESTS),
        .connections_max = u32_of(values, TIERCE__PROXY_LIMIT_CONNECTIONS),
        .connections_per_address = u32_of(values, TIERCE__PROXY_LIMIT_CONNECTIONS_PER_ADDRESS),
        .loops = loops != 0 ? loops : default_loops(),
        .drain_ms = u32_of(values, TIERCE__PROXY_SERVE_DRAIN),
        .router_url = text_of(values, TIERCE__PROXY_ROUTER_URL),
        .router_token_file = text_of(values, TIERCE__PROXY_ROUTER_TOKEN_FILE),
        .router_ms = u32_of(values, TIERCE__PROXY_ROUTER_TIMEOUT),
        .router_load = u32_of(values, TIERCE__PROXY_ROUTER_LOAD),
    };
}

static int check_access(const struct tierce__proxy_config *config,
                        struct tierce__config_error *error)
{
    return tierce__access_check(&(struct tierce__access){.host = config->host,
                                                         .certificate = config->tls_certificate,
                                                         .key = config->tls_key,
                                                         .client_ca = config->tls_client_ca,
                                                         .token_file = config->token_file,
                                                         .is_insecure = config->is_insecure},
                                error);
}

static int read_urls(struct tierce__engines *out, const struct tierce__proxy_config *config,
                     const char *name, const char *urls, struct tierce__config_error *error)
{
    char why[256];
    int rc = tierce__engines_init(out, urls, config->router_url[0] != '\0', why);
    return rc == 0 ? 0 : tierce__config_fail(error, rc, "%s: %.256s", name, why);
}

/* Clients have tenants by their tokens only. */
static int check_tenants(const struct tierce__proxy_config *config,
                         const struct tierce__engines *decode,
                         const struct tierce__engines *prefill, struct tierce__config_error *error)
{
    char why[256];
    struct tierce__tenants tenants = {0};
    int rc = tierce__tenants_init(&tenants, decode, prefill, why);
    if (rc != 0)
        rc = tierce__config_fail(error, rc, "%s", why);
    for (uint32_t i = 0; rc == 0 && config->token_file[0] == '\0' && i < tenants.count; i++) {
        if (tenants.items[i].name[0] != '\0')
            rc = tierce__config_fail(error, TIERCE_E_CONFIG,
                                     "decode.urls has an engine of the tenant '%s', which requires "
                                     "auth.token_file: a client's token names its tenant",
                                     tenants.items[i].name);
    }
    tierce__tenants_fini(&tenants);
    return rc;
}

/* The engines are parsed again when the proxy starts. */
static int check_engines(const struct tierce__proxy_config *config,
                         struct tierce__config_error *error)
{
    struct tierce__engines decode = {0}, prefill = {0};
    int rc = read_urls(&decode, config, "decode.urls", config->decode_urls, error);
    if (rc == 0 && config->prefill_urls[0] != '\0')
        rc = read_urls(&prefill, config, "prefill.urls", config->prefill_urls, error);
    if (rc == 0)
        rc = check_tenants(config, &decode, &prefill, error);
    tierce__engines_fini(&decode);
    tierce__engines_fini(&prefill);
    return rc;
}

static int check(const struct tierce__proxy_config *config, struct tierce__config_error *error)
{
    char why[256];
    int rc = check_access(config, error);
    if (rc == 0 && config->decode_urls[0] == '\0')
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "decode.urls must name at least one engine, such as "
                                   "http://127.0.0.1:8000");
    if (rc == 0 && config->memory_max / 3 < config->request_max)
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "limit.memory must be at least three times limit.request: a "
                                   "request is held together with the copy that is read and the "
                                   "request that is made of it");
    if (rc == 0)
        rc = check_engines(config, error);
    if (rc == 0 && config->router_url[0] != '\0' &&
        tierce__engine_url_check(config->router_url, why) != 0)
        return tierce__config_fail(error, TIERCE_E_CONFIG, "router.url: %.256s", why);
    return rc;
}

int tierce__proxy_config_load(struct tierce__proxy_config *out, int argc, char *const *argv,
                              char *const *env, struct tierce__config_error *error)
{
    static const struct tierce__config_program program = {.command = "proxy",
                                                          .env_prefix = "TIERCE_PROXY",
                                                          .table = params,
                                                          .count = TIERCE__PROXY_PARAMS};
    struct tierce__config *values;
    struct tierce__proxy_config config;
    struct tierce__config_request request;
    int rc = tierce__config_load_program(&values, &request, &program, argc, argv, env, error);
    if (rc != 0)
        return rc;
    fill(&config, values);
    if (request.action == TIERCE__CONFIG_RUN || request.action == TIERCE__CONFIG_PRINT)
        rc = check(&config, error);
    if (rc != 0) {
        tierce__config_destroy(values);
        return rc;
    }
    config.action = request.action;
    *out = config;
    return 0;
}

void tierce__proxy_config_clear(struct tierce__proxy_config *config)
{
    tierce__config_destroy(config->values);
    *config = (struct tierce__proxy_config){0};
}
