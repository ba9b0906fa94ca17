/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/manager_config.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "net/loopback.h"
#include "manager/config_kvcm.h"
#include "manager/manager_config_private.h"
#include "manager/registry/startup.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ENV_PREFIX        "TIERCE_MANAGER"
#define ENV_CONFIG        "TIERCE_MANAGER_CONFIG"
#define DEBUG_PORT_OFFSET 3000u

static const struct tierce__param params[] = {
#define TIERCE_PARAM(row, name, type, fallback, min, max, choices, text)                           \
    [TIERCE__MANAGER_##row] = {name, TIERCE__PARAM_##type, fallback, min, max, choices, text},
#include "manager/manager_params.def"
#undef TIERCE_PARAM
};

/* Variables with the prefix that are not parameters. */
static const char *const other_variables[] = {ENV_CONFIG, NULL};

const struct tierce__param *tierce__manager_params(void)
{
    return params;
}

int tierce__manager_warn(char **warnings, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    size_t used = *warnings != NULL ? strlen(*warnings) : 0, length = strlen(line);
    char *grown = tierce__realloc(*warnings, used + length + 2);
    if (grown == NULL)
        return -ENOMEM;
    TIERCE_DASSERT(length < sizeof(line));
    snprintf(grown + used, length + 2, "%s\n", line);
    *warnings = grown;
    return 0;
}

/* ---- arguments ------------------------------------------------------------------------------- */

struct manager_config_request {
    enum tierce__manager_action action;
    bool is_daemon;
    const char *yaml;       /* --config, or NULL */
    const char *kvcm_file;  /* -c */
    const char *log_config; /* -l */
    struct tierce__kvcm_settings *settings;
};

/* Returns the value of a flag, "-cVALUE", "-c VALUE", "--name=VALUE" or "--name VALUE", and
 * advances *i over it. NULL if argv[*i] is another flag. *missing: it is this flag, but its value
 * is missing. */
static const char *value_of(int *i, int argc, char *const *argv, char letter, const char *name,
                            bool *missing)
{
    TIERCE_ASSERT(*i >= 0 && *i < argc);
    const char *arg = argv[*i];
    size_t length = strlen(name);
    const char *value = NULL;
    TIERCE_ASSERT(arg != NULL);
    if (letter != '\0' && arg[0] == '-' && arg[1] == letter)
        value = arg + 2;
    else if (arg[0] == '-' && arg[1] == '-' && strncmp(arg + 2, name, length) == 0 &&
             (arg[2 + length] == '\0' || arg[2 + length] == '='))
        value = arg + 2 + length + (arg[2 + length] == '=');
    if (value == NULL || value[0] != '\0' || arg[strlen(arg) - 1] == '=')
        return value;
    *missing = *i + 1 >= argc;
    return *missing ? "" : argv[++*i];
}

static bool is_flag(const char *arg, const char *letter, const char *name)
{
    return strcmp(arg, letter) == 0 || strcmp(arg, name) == 0;
}

/* Returns whether an argument is --NAME=VALUE with the name of a parameter. Such parameters are set
 * later. */
static bool is_param_flag(const char *arg)
{
    return strncmp(arg, "--", 2) == 0 && strchr(arg, '=') != NULL;
}

static int read_argument(struct manager_config_request *request, int *i, int argc,
                         char *const *argv, struct tierce__config_error *error)
{
    TIERCE_ASSERT(*i >= 0 && *i < argc);
    const char *arg = argv[*i], *value;
    bool missing = false;
    int rc = 0;
    if (is_flag(arg, "-d", "--daemon"))
        request->is_daemon = true;
    else if (is_flag(arg, "-h", "--help"))
        request->action = TIERCE__MANAGER_HELP;
    else if (is_flag(arg, "-v", "--version"))
        request->action = TIERCE__MANAGER_VERSION;
    else if (strcmp(arg, "--print-config") == 0)
        request->action = TIERCE__MANAGER_PRINT;
    else if (strcmp(arg, "--markdown") == 0)
        request->action = TIERCE__MANAGER_MARKDOWN;
    else if ((value = value_of(i, argc, argv, 'c', "config_file", &missing)) != NULL)
        request->kvcm_file = value;
    else if ((value = value_of(i, argc, argv, 'l', "log_config_file", &missing)) != NULL)
        request->log_config = value;
    else if ((value = value_of(i, argc, argv, '\0', "config", &missing)) != NULL)
        request->yaml = value;
    else if ((value = value_of(i, argc, argv, 'e', "env", &missing)) != NULL)
        rc = missing ? 0 : tierce__kvcm_settings_set(request->settings, value, error);
    else if (!is_param_flag(arg))
        return tierce__config_refuse_argument(error, tierce__manager_params(),
                                              TIERCE__MANAGER_PARAMS, "manager", arg);
    if (missing)
        return tierce__config_fail(error, TIERCE_E_CONFIG, "%.100s requires a value", arg);
    return rc;
}

static int read_arguments(struct manager_config_request *request, int argc, char *const *argv,
                          struct tierce__config_error *error)
{
    int rc = 0;
    for (int i = 0; i < argc && rc == 0; i++)
        rc = read_argument(request, &i, argc, argv, error);
    return rc;
}

/* Sets the parameters given as --NAME=VALUE. The other flags were checked before. */
static int apply_flags(struct tierce__config *values, int argc, char *const *argv,
                       struct tierce__config_error *error)
{
    int rc = 0;
    for (int i = 0; i < argc && rc == 0; i++) {
        bool missing = false;
        char name[80], source[84];
        const char *equals = strchr(argv[i], '=');
        if (value_of(&i, argc, argv, 'c', "config_file", &missing) != NULL ||
            value_of(&i, argc, argv, 'l', "log_config_file", &missing) != NULL ||
            value_of(&i, argc, argv, '\0', "config", &missing) != NULL ||
            value_of(&i, argc, argv, 'e', "env", &missing) != NULL || !is_param_flag(argv[i]))
            continue;
        TIERCE_DASSERT(equals >= argv[i] + 2);
        snprintf(name, sizeof(name), "%.*s", (int)(equals - argv[i] - 2), argv[i] + 2);
        snprintf(source, sizeof(source), "--%s", name);
        rc = tierce__config_set(values, name, equals + 1, source, error);
    }
    return rc;
}

/* ---- fields ---------------------------------------------------------------------------------- */

static const char *text_of(const struct tierce__config *values, enum tierce__manager_param row)
{
    TIERCE_DASSERT(row < TIERCE__MANAGER_PARAMS);
    return tierce__config_text(values, row);
}

static uint32_t u32_of(const struct tierce__config *values, enum tierce__manager_param row)
{
    TIERCE_DASSERT(row < TIERCE__MANAGER_PARAMS);
    uint64_t number = tierce__config_number(values, row);
    return number < UINT32_MAX ? (uint32_t)number : UINT32_MAX;
}

static uint16_t port_of(const struct tierce__config *values, enum tierce__manager_param row)
{
    uint64_t port = tierce__config_number(values, row);
    TIERCE_ASSERT(port <= UINT16_MAX); /* manager_params.def */
    return (uint16_t)port;
}

static bool flag_of(const struct tierce__config *values, enum tierce__manager_param row)
{
    TIERCE_DASSERT(row < TIERCE__MANAGER_PARAMS);
    return tierce__config_bool(values, row);
}

static enum tierce_log_level level_of(const char *name)
{
    return strcmp(name, "debug") == 0  ? TIERCE_LOG_DEBUG
           : strcmp(name, "info") == 0 ? TIERCE_LOG_INFO
           : strcmp(name, "warn") == 0 ? TIERCE_LOG_WARN
                                       : TIERCE_LOG_ERROR;
}

static unsigned autopilot_of(const char *name)
{
    return strcmp(name, "act") == 0 ? 2 : strcmp(name, "advise") == 0 ? 1 : 0;
}

static void fill(struct tierce__manager_config *config, struct tierce__config *values)
{
    uint16_t grpc = port_of(values, TIERCE__MANAGER_LISTEN_GRPC_PORT);
    uint16_t http = port_of(values, TIERCE__MANAGER_LISTEN_HTTP_PORT);
    uint16_t admin = port_of(values, TIERCE__MANAGER_LISTEN_ADMIN_GRPC_PORT);
    *config = (struct tierce__manager_config){
        .values = values,
        .host = text_of(values, TIERCE__MANAGER_LISTEN_HOST),
        .grpc_port = grpc,
        .http_port = http,
        .shares_grpc = admin == 0 || admin == grpc,
        .admin_grpc_port = admin == 0 ? grpc : admin,
        .admin_http_port = port_of(values, TIERCE__MANAGER_LISTEN_ADMIN_HTTP_PORT),
        .has_debug = flag_of(values, TIERCE__MANAGER_LISTEN_DEBUG),
        .debug_http_port = (uint16_t)(http != 0 ? http + DEBUG_PORT_OFFSET : 0),
        .is_insecure = flag_of(values, TIERCE__MANAGER_LISTEN_INSECURE),
        .tls_certificate = text_of(values, TIERCE__MANAGER_TLS_CERTIFICATE),
        .tls_key = text_of(values, TIERCE__MANAGER_TLS_KEY),
        .tls_client_ca = text_of(values, TIERCE__MANAGER_TLS_CLIENT_CA),
        .requires_auth = flag_of(values, TIERCE__MANAGER_AUTH_REQUIRED),
        .auth_token_file = text_of(values, TIERCE__MANAGER_AUTH_TOKEN_FILE),
        .node_token_file = text_of(values, TIERCE__MANAGER_NODE_TOKEN_FILE),
        .node_ca_file = text_of(values, TIERCE__MANAGER_NODE_CA_FILE),
        .loops = u32_of(values, TIERCE__MANAGER_SERVE_LOOPS),
        .workers = u32_of(values, TIERCE__MANAGER_SERVE_WORKERS),
        .connections_max = u32_of(values, TIERCE__MANAGER_SERVE_CONNECTIONS),
        .connections_per_address = u32_of(values, TIERCE__MANAGER_SERVE_CONNECTIONS_PER_ADDRESS),
        .message_bytes_max = tierce__config_number(values, TIERCE__MANAGER_SERVE_MESSAGE),
        .drain_ms = u32_of(values, TIERCE__MANAGER_SERVE_DRAIN),
        .registry_uri = text_of(values, TIERCE__MANAGER_REGISTRY_URI),
        .startup_file = text_of(values, TIERCE__MANAGER_STARTUP_FILE),
        .restore_file = text_of(values, TIERCE__MANAGER_RESTORE_FILE),
        .mooncake_python = text_of(values, TIERCE__MANAGER_MOONCAKE_PYTHON),
        .restores_slots = flag_of(values, TIERCE__MANAGER_RESTORE_KEEP_SLOTS),
        .restores_id = flag_of(values, TIERCE__MANAGER_RESTORE_SAME_REGISTRY),
        .elector_uri = text_of(values, TIERCE__MANAGER_ELECTOR_URI),
        .node_id = text_of(values, TIERCE__MANAGER_ELECTOR_NODE_ID),
        .elector_lease_ms = u32_of(values, TIERCE__MANAGER_ELECTOR_LEASE),
        .elector_interval_ms = u32_of(values, TIERCE__MANAGER_ELECTOR_INTERVAL),
        .delete_threads = u32_of(values, TIERCE__MANAGER_DELETE_THREADS),
        .move_rate = tierce__config_number(values, TIERCE__MANAGER_MOVE_RATE),
        .directory_bytes = tierce__config_number(values, TIERCE__MANAGER_DIRECTORY_MEMORY),
        .directory_workers = u32_of(values, TIERCE__MANAGER_DIRECTORY_WORKERS),
        .directory_silence_ms = u32_of(values, TIERCE__MANAGER_DIRECTORY_SILENCE),
        .directory_senders = u32_of(values, TIERCE__MANAGER_DIRECTORY_SENDERS),
        .directory_share = u32_of(values, TIERCE__MANAGER_DIRECTORY_SHARE),
        .scrub_bytes = tierce__config_number(values, TIERCE__MANAGER_SCRUB_MEMORY),
        .lmcache_host = text_of(values, TIERCE__MANAGER_LMCACHE_HOST),
        .lmcache_address = text_of(values, TIERCE__MANAGER_LMCACHE_ADDRESS),
        .lmcache_group = text_of(values, TIERCE__MANAGER_LMCACHE_GROUP),
        .lmcache_pull_port = port_of(values, TIERCE__MANAGER_LMCACHE_PULL_PORT),
        .lmcache_reply_port = port_of(values, TIERCE__MANAGER_LMCACHE_REPLY_PORT),
        .lmcache_heartbeat_port = port_of(values, TIERCE__MANAGER_LMCACHE_HEARTBEAT_PORT),
        .lmcache_http_port = port_of(values, TIERCE__MANAGER_LMCACHE_HTTP_PORT),
        .lmcache_workers = u32_of(values, TIERCE__MANAGER_LMCACHE_WORKERS),
        .lmcache_silence_ms = u32_of(values, TIERCE__MANAGER_LMCACHE_SILENCE),
        .lmcache_command_ms = u32_of(values, TIERCE__MANAGER_LMCACHE_COMMAND_TIMEOUT),
        .autopilot_mode = autopilot_of(text_of(values, TIERCE__MANAGER_AUTOPILOT_MODE)),
        .autopilot_settle_ms = u32_of(values, TIERCE__MANAGER_AUTOPILOT_SETTLE),
        .quota_groups = tierce__config_text(values, TIERCE__MANAGER_QUOTA_GROUPS),
        .log_level = level_of(text_of(values, TIERCE__MANAGER_LOG_LEVEL)),
        .log_folder = text_of(values, TIERCE__MANAGER_LOG_FOLDER),
        .logs_to_console = flag_of(values, TIERCE__MANAGER_LOG_CONSOLE),
        .logs_metrics = flag_of(values, TIERCE__MANAGER_METRICS_LOG),
        .logs_accesses = flag_of(values, TIERCE__MANAGER_LOG_ACCESS),
        .logs_audit = flag_of(values, TIERCE__MANAGER_LOG_AUDIT),
        .metrics_interval_ms = u32_of(values, TIERCE__MANAGER_METRICS_INTERVAL),
    };
}

/* ---- rules over several parameters ----------------------------------------------------------- */

static int check_access(const struct tierce__manager_config *config,
                        struct tierce__config_error *error)
{
    bool has_tls = config->tls_certificate[0] != '\0';
    int rc =
        tierce__access_check_tls(&(struct tierce__access){.certificate = config->tls_certificate,
                                                          .key = config->tls_key,
                                                          .client_ca = config->tls_client_ca},
                                 error);
    if (rc != 0)
        return rc;
    if (config->requires_auth && config->auth_token_file[0] == '\0' &&
        config->registry_uri[0] == '\0')
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "auth.required requires auth.token_file or registry.uri: "
                                   "without both there is no token and no account");
    if (tierce__is_loopback_host(config->host) || config->is_insecure ||
        (config->requires_auth && has_tls))
        return 0;
    return tierce__config_fail(
        error, TIERCE_E_CONFIG,
        "listen.host is %.100s, which other hosts can reach: set auth.required with "
        "tls.certificate and tls.key, or listen.insecure: true (clients of KVCM send no token)",
        config->host[0] != '\0' ? config->host : "every address");
}

static int check_ports(const struct tierce__manager_config *config,
                       struct tierce__config_error *error)
{
    const struct {
        const char *name;
        uint16_t port;
    } ports[] = {
        {"listen.grpc_port", config->grpc_port},
        {"listen.http_port", config->http_port},
        {"listen.admin_http_port", config->admin_http_port},
        {"listen.admin_grpc_port", config->shares_grpc ? 0 : config->admin_grpc_port},
        {"listen.http_port + 3000", config->has_debug ? config->debug_http_port : 0},
        {"lmcache.pull_port", config->lmcache_pull_port},
        {"lmcache.reply_port", config->lmcache_reply_port},
        {"lmcache.heartbeat_port", config->lmcache_heartbeat_port},
        {"lmcache.http_port", config->lmcache_http_port},
    };
    if (config->has_debug && config->http_port > UINT16_MAX - DEBUG_PORT_OFFSET)
        return tierce__config_fail(
            error, TIERCE_E_CONFIG,
            "listen.debug uses the port listen.http_port + 3000, which exceeds 65535 for %u",
            (unsigned)config->http_port);
    for (size_t i = 0; i < sizeof(ports) / sizeof(*ports); i++) {
        for (size_t j = 0; j < i; j++) {
            if (ports[i].port != 0 && ports[i].port == ports[j].port)
                return tierce__config_fail(error, TIERCE_E_CONFIG, "%s and %s are both %u",
                                           ports[j].name, ports[i].name, (unsigned)ports[i].port);
        }
    }
    return 0;
}

/* The workers of LMCache show no token. */
static int check_lmcache(const struct tierce__manager_config *config,
                         struct tierce__config_error *error)
{
    bool has_sockets = config->lmcache_pull_port != 0 || config->lmcache_reply_port != 0 ||
                       config->lmcache_heartbeat_port != 0;
    const char *host = config->lmcache_host;
    bool is_wildcard = host[0] == '\0' || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
    if (config->lmcache_group[0] == '\0' ||
        strlen(config->lmcache_group) >= TIERCE__LMCACHE_GROUP_BYTES)
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "lmcache.group has %zu bytes; accepted are 1 to %u",
                                   strlen(config->lmcache_group), TIERCE__LMCACHE_GROUP_BYTES - 1);
    if (!has_sockets)
        return 0;
    if (host[0] == '\0')
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "lmcache.host is empty; accepted is an address or name of this "
                                   "machine, or 0.0.0.0 or :: for all");
    if (!tierce__is_loopback_host(host) && !config->is_insecure)
        return tierce__config_fail(
            error, TIERCE_E_CONFIG,
            "lmcache.host is %.100s, which other hosts can reach, and LMCache's workers send no "
            "token: set listen.insecure: true in a network that only they can reach",
            host);
    if (config->lmcache_heartbeat_port != 0 && is_wildcard && config->lmcache_address[0] == '\0')
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "lmcache.host is %.100s and lmcache.heartbeat_port is set: "
                                   "lmcache.address must be the address that workers use",
                                   host);
    return 0;
}

/* The hash function of lookups. */
static int fill_lmcache_hash(struct tierce__manager_config *config,
                             struct tierce__config_error *error)
{
    const char *hash = text_of(config->values, TIERCE__MANAGER_LMCACHE_HASH);
    const char *none = text_of(config->values, TIERCE__MANAGER_LMCACHE_NONE_HASH);
    config->has_lmcache_hash = strcmp(hash, "off") != 0;
    config->lmcache_hash = (struct tierce__lmcache_opts){
        .algo = strcmp(hash, "sha256_cbor") == 0 ? TIERCE__LMCACHE_SHA256_CBOR
                                                 : TIERCE__LMCACHE_BUILTIN,
        .chunk_tokens = u32_of(config->values, TIERCE__MANAGER_LMCACHE_CHUNK_SIZE)};
    if (tierce__lmcache_parse_none_hash(&config->lmcache_hash.none_hash, none))
        return 0;
    return tierce__config_fail(error, TIERCE_E_CONFIG,
                               "lmcache.none_hash is \"%.40s\"; accepted are vllm, and up to 16 "
                               "hex digits, with - before them or not",
                               none);
}

static int check(struct tierce__manager_config *config, struct tierce__config_error *error)
{
    if (config->elector_lease_ms < 2 * config->elector_interval_ms)
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "elector.lease must be at least two times elector.interval");
    int rc = check_access(config, error);
    if (rc == 0)
        rc = check_lmcache(config, error);
    if (rc == 0)
        rc = fill_lmcache_hash(config, error);
    return rc == 0 ? check_ports(config, error) : rc;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Reads all sources, in their order. */
static int load_values(struct tierce__config *values, const struct manager_config_request *request,
                       int argc, char *const *argv, char *const *env, char **warnings,
                       struct tierce__config_error *error)
{
    const char *yaml =
        request->yaml != NULL ? request->yaml : tierce__config_env_value(env, ENV_CONFIG);
    int rc = yaml != NULL ? tierce__config_load_file(values, yaml, error) : 0;
    if (rc == 0 && request->kvcm_file != NULL)
        rc = tierce__kvcm_settings_load_file(request->settings, request->kvcm_file, error);
    if (rc == 0)
        rc = tierce__kvcm_settings_load_env(request->settings, env, error);
    if (rc == 0)
        rc = tierce__kvcm_settings_apply(request->settings, values, warnings, error);
    if (rc == 0 && request->log_config != NULL)
        rc = tierce__manager_warn(warnings, "-l %.200s is not read: see log.level and log.folder",
                                  request->log_config);
    if (rc == 0)
        rc = tierce__config_load_env(values, env, other_variables, error);
    return rc == 0 ? apply_flags(values, argc, argv, error) : rc;
}

int tierce__manager_config_load(struct tierce__manager_config *out, int argc, char *const *argv,
                                char *const *env, char **warnings,
                                struct tierce__config_error *error)
{
    struct manager_config_request request = {.settings = tierce__kvcm_settings_create()};
    struct tierce__config *values = NULL;
    struct tierce__manager_config config;
    char *lines = NULL;
    int rc = request.settings != NULL ? 0 : tierce__config_fail(error, -ENOMEM, "no memory");
    if (rc == 0)
        rc = read_arguments(&request, argc, argv, error);
    if (rc == 0 && tierce__config_create(&values, params, TIERCE__MANAGER_PARAMS, ENV_PREFIX) != 0)
        rc = tierce__config_fail(error, -ENOMEM, "no memory");
    if (rc == 0 &&
        (request.action == TIERCE__MANAGER_RUN || request.action == TIERCE__MANAGER_PRINT))
        rc = load_values(values, &request, argc, argv, env, &lines, error);
    if (rc == 0) {
        fill(&config, values);
        rc = check(&config, error);
    }
    if (rc == 0 && tierce__state_folder(&config.state_folder, env) != 0)
        rc = tierce__config_fail(error, -ENOMEM, "no memory");
    tierce__kvcm_settings_destroy(request.settings);
    if (rc != 0) {
        tierce__config_destroy(values);
        tierce__free(lines);
        return rc;
    }
    config.action = request.action;
    config.is_daemon = request.is_daemon;
    *out = config;
    *warnings = lines;
    return 0;
}

void tierce__manager_config_clear(struct tierce__manager_config *config)
{
    tierce__config_destroy(config->values);
    tierce__free(config->state_folder);
    *config = (struct tierce__manager_config){0};
}
