/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "proxy/bodies.h"
#include "proxy/proxy_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define DRAIN_TICK_US 2000u
#define LAST_WORDS_MS 5000u /* for clients to read the ends of their answers */
#define GRACE_MS      5000u /* the server's own deadline comes after ours */

/* ---- requests -------------------------------------------------------------------------------- */

void tierce__proxy_refuse(struct tierce__call *call, unsigned status, const char *why)
{
    struct tierce__line line = {0};
    const struct tierce__reply_header headers[] = {{"Retry-After", "1"}};
    tierce__body_put_error(&line, status, why);
    tierce__call_reply(
        call, &(struct tierce__reply){.status = status,
                                      .header_name = status == 401 ? "WWW-Authenticate" : NULL,
                                      .header_value = "Bearer",
                                      .headers = headers,
                                      .header_count = status == 503 ? 1 : 0,
                                      .body = line.text,
                                      .bytes = line.failed ? 0 : line.bytes});
    tierce__line_clear(&line);
}

static bool may_use(struct tierce__proxy *proxy, const struct tierce__call *call,
                    char tenant[TIERCE__TOKEN_NAME_BYTES])
{
    static const char scheme[] = "Bearer ";
    const char *shown = tierce__call_header(call, "authorization");
    tenant[0] = '\0';
    if (proxy->config->token_file[0] == '\0')
        return true;
    if (shown == NULL || strncasecmp(shown, scheme, strlen(scheme)) != 0)
        return false;
    shown += strlen(scheme);
    tierce__lock_take(&proxy->lock);
    const struct tierce__token *token = tierce__tokens_find(proxy->tokens, shown, strlen(shown));
    if (token != NULL)
        snprintf(tenant, TIERCE__TOKEN_NAME_BYTES, "%s", token->tenant);
    tierce__lock_drop(&proxy->lock);
    return token != NULL;
}

bool tierce__proxy_admit(struct tierce__proxy *proxy, struct tierce__call *call,
                         char tenant[TIERCE__TOKEN_NAME_BYTES])
{
    if (may_use(proxy, call, tenant))
        return true;
    tierce__proxy_count(proxy, TIERCE__PROXY_COUNT_DENIED);
    tierce__proxy_refuse(call, 401,
                         "a token of the proxy's auth.token_file is required: send it in the "
                         "Authorization header");
    return false;
}

/* The tenant whose engines a call may use. NULL: it was answered. */
static struct tierce__tenant *tenant_of(struct tierce__proxy *proxy, struct tierce__call *call)
{
    char name[TIERCE__TOKEN_NAME_BYTES], why[256];
    if (!tierce__proxy_admit(proxy, call, name))
        return NULL;
    struct tierce__tenant *tenant = tierce__tenants_find(&proxy->tenants, name);
    if (tenant != NULL)
        return tenant;
    tierce__proxy_count(proxy, TIERCE__PROXY_COUNT_DENIED);
    if (name[0] != '\0')
        snprintf(
            why, sizeof(why),
            "decode.urls has no engine of the token's tenant '%s'; use another token, or add an "
            "engine with ;tenant=NAME",
            name);
    else
        snprintf(why, sizeof(why),
                 "decode.urls has no engine without a tenant, and the token has none; use another "
                 "token, or add an engine without ;tenant=NAME");
    tierce__proxy_refuse(call, 403, why);
    return NULL;
}

static void serve(struct tierce__proxy *proxy, struct tierce__call *call, const char *path)
{
    struct tierce__tenant *tenant = tenant_of(proxy, call);
    if (tenant == NULL)
        return;
    if (atomic_load_explicit(&proxy->is_draining, memory_order_relaxed)) {
        tierce__proxy_refuse(call, 503, "the proxy is shutting down");
        return;
    }
    tierce__proxy_count(proxy, TIERCE__PROXY_COUNT_REQUESTS);
    if (atomic_fetch_add_explicit(&proxy->unanswered, 1, memory_order_relaxed) <
            proxy->config->requests_max &&
        tierce__exchange_create(proxy, call, path, tenant))
        return;
    atomic_fetch_sub_explicit(&proxy->unanswered, 1, memory_order_relaxed);
    tierce__proxy_count(proxy, TIERCE__PROXY_COUNT_REFUSED);
    tierce__proxy_refuse(call, 503,
                         "the proxy has as many requests in progress as limit.requests and "
                         "limit.memory permit");
}

static void serve_completions(void *arg, struct tierce__call *call)
{
    serve(arg, call, "/v1/completions");
}

static void serve_chat(void *arg, struct tierce__call *call)
{
    serve(arg, call, "/v1/chat/completions");
}

static void serve_models(void *arg, struct tierce__call *call)
{
    serve(arg, call, "/v1/models");
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool read_right(uint32_t *out, const char *word)
{
    *out = 1;
    return strcmp(word, "use") == 0;
}

static int read_tokens(struct tierce__tokens **out, const struct tierce__proxy *proxy,
                       char why[256])
{
    if (proxy->config->token_file[0] == '\0')
        return 0;
    return tierce__tokens_load(
        out,
        &(struct tierce__tokens_opts){.size = sizeof(struct tierce__tokens_opts),
                                      .path = proxy->config->token_file,
                                      .rights = read_right,
                                      .rights_text = "the first word must be 'use'",
                                      .has_tenants = true},
        why);
}

struct secrets {
    struct tierce__tokens *tokens;
    char *engine, *router; /* texts of files, or NULL */
};

static int read_secrets(struct secrets *out, const struct tierce__proxy *proxy, char why[256])
{
    const struct tierce__proxy_config *config = proxy->config;
    int rc = read_tokens(&out->tokens, proxy, why);
    if (rc == 0)
        rc = tierce__tenant_words_read(&out->engine, "engine.token_file", "TOKEN",
                                       config->engine_token_file, why);
    if (rc == 0)
        rc = tierce__tenant_words_read(&out->router, "router.token_file", "TOKEN",
                                       config->router_token_file, why);
    return rc;
}

/* Replaces the secrets in use. */
static void use_secrets(struct tierce__proxy *proxy, struct secrets *secrets)
{
    tierce__lock_take(&proxy->lock);
    struct tierce__tokens *before = proxy->tokens;
    proxy->tokens = secrets->tokens;
    tierce__lock_drop(&proxy->lock);
    tierce__tenant_words_replace(&proxy->engine_tokens, secrets->engine);
    tierce__tenant_words_replace(&proxy->router_tokens, secrets->router);
    tierce__tokens_destroy(before);
    *secrets = (struct secrets){0};
}

static void clear_secrets(struct secrets *secrets)
{
    tierce__tokens_destroy(secrets->tokens);
    tierce__free_secret(secrets->engine);
    tierce__free_secret(secrets->router);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int start_server(struct tierce__proxy *proxy, char why[256])
{
    const struct tierce__proxy_config *config = proxy->config;
    const struct tierce__route routes[TIERCE__PROXY_ROUTES] = {
        {.path = "/v1/completions", .method = "POST", .serve = serve_completions},
        {.path = "/v1/chat/completions", .method = "POST", .serve = serve_chat},
        {.path = "/v1/models", .method = "GET", .serve = serve_models},
        {.path = "/health", .method = "GET", .serve = tierce__proxy_health},
        {.path = "/readyz", .method = "GET", .serve = tierce__proxy_readyz},
        {.path = "/metrics", .method = "GET", .serve = tierce__proxy_metrics},
    };
    for (size_t i = 0; i < TIERCE__PROXY_ROUTES; i++) {
        proxy->routes[i] = routes[i];
        proxy->routes[i].arg = proxy;
    }
    bool has_tls = config->tls_certificate[0] != '\0';
    struct tierce__listener http = {
        .protocol = TIERCE__SERVE_HTTP,
        .host = config->host,
        .port = config->port,
        .threads = config->loops,
        .name = "listen.port",
        .routes = proxy->routes,
        .route_count = TIERCE__PROXY_ROUTES,
        .tls = {.certificate = has_tls ? config->tls_certificate : NULL,
                .key = has_tls ? config->tls_key : NULL,
                .client_ca = config->tls_client_ca[0] != '\0' ? config->tls_client_ca : NULL}};
    return tierce__server_start(
        &proxy->server,
        &(struct tierce__server_opts){.size = sizeof(struct tierce__server_opts),
                                      .listeners = &http,
                                      .listener_count = 1,
                                      .loops = config->loops,
                                      .workers = 1,
                                      .message_bytes_max = config->request_max,
                                      .held_bytes_max = config->memory_max,
                                      .stream_buffer_max = config->stream_max,
                                      .connections_max = config->connections_max,
                                      .connections_per_address = config->connections_per_address,
                                      .transfer_ms = config->request_ms + GRACE_MS},
        why);
}

static int start_relays(struct tierce__proxy *proxy, char why[256])
{
    int rc = 0;
    proxy->relays = tierce__calloc(proxy->config->loops, sizeof(*proxy->relays));
    if (proxy->relays == NULL)
        rc = -ENOMEM;
    while (rc == 0 && proxy->relay_count < proxy->config->loops) {
        uint32_t i = proxy->relay_count++;
        rc = tierce__relay_start(&proxy->relays[i], proxy, i == 0);
    }
    if (rc != 0)
        snprintf(why, 256, "cannot start the threads: %s", tierce_strerror(rc));
    return rc;
}

static int start(struct tierce__proxy *proxy, char why[256])
{
    const struct tierce__proxy_config *config = proxy->config;
    bool has_router = config->router_url[0] != '\0';
    struct secrets secrets = {0};
    int rc = tierce__engines_init(&proxy->decode, config->decode_urls, has_router, why);
    if (rc == 0 && config->prefill_urls[0] != '\0')
        rc = tierce__engines_init(&proxy->prefill, config->prefill_urls, has_router, why);
    if (rc == 0)
        rc = tierce__tenants_init(&proxy->tenants, &proxy->decode, &proxy->prefill, why);
    if (rc == 0)
        rc = tierce__inboxes_init(&proxy->inboxes, proxy->decode.count);
    if (rc == 0)
        rc = read_secrets(&secrets, proxy, why);
    use_secrets(proxy, &secrets);
    if (rc == 0)
        rc = start_relays(proxy, why);
    return rc == 0 ? start_server(proxy, why) : rc;
}

int tierce__proxy_start(struct tierce__proxy **out, const struct tierce__proxy_config *config,
                        char why[256])
{
    struct tierce__proxy *proxy = tierce__calloc(1, sizeof(*proxy));
    snprintf(why, 256, "no memory");
    if (proxy == NULL)
        return -ENOMEM;
    proxy->config = config;
    proxy->held.max = config->memory_max;
    tierce__lock_init(&proxy->lock, TIERCE__LOCK_PROXY);
    tierce__tenant_words_init(&proxy->engine_tokens);
    tierce__tenant_words_init(&proxy->router_tokens);
    int rc = start(proxy, why);
    if (rc != 0)
        tierce__proxy_stop(proxy);
    else
        *out = proxy;
    return rc;
}

uint16_t tierce__proxy_port(const struct tierce__proxy *proxy)
{
    return tierce__server_port(proxy->server, 0);
}

int tierce__proxy_reload(struct tierce__proxy *proxy, char why[256])
{
    struct secrets secrets = {0};
    int rc = read_secrets(&secrets, proxy, why);
    if (rc == 0)
        rc = tierce__server_reload(proxy->server, why);
    if (rc == 0)
        use_secrets(proxy, &secrets);
    clear_secrets(&secrets);
    return rc;
}

static bool is_idle(const struct tierce__proxy *proxy)
{
    return atomic_load_explicit(&proxy->active, memory_order_acquire) == 0;
}

void tierce__proxy_drain(struct tierce__proxy *proxy, bool (*hurry)(void *arg), void *arg)
{
    uint64_t deadline_ns = tierce__deadline_in_ms(proxy->config->drain_ms);
    atomic_store_explicit(&proxy->is_draining, true, memory_order_relaxed);
    while (!is_idle(proxy) && tierce__now_ns() < deadline_ns && (hurry == NULL || !hurry(arg)))
        usleep(DRAIN_TICK_US);
}

/* The relays run until the server has stopped: it awaits the answers of all calls. */
void tierce__proxy_stop(struct tierce__proxy *proxy)
{
    atomic_store_explicit(&proxy->is_draining, true, memory_order_relaxed);
    for (uint32_t i = 0; i < proxy->relay_count; i++)
        if (proxy->relays[i].has_thread)
            tierce__relay_cut(&proxy->relays[i]);
    while (!is_idle(proxy))
        usleep(DRAIN_TICK_US);
    tierce__server_stop(proxy->server, LAST_WORDS_MS);
    for (uint32_t i = 0; i < proxy->relay_count; i++)
        tierce__relay_stop(&proxy->relays[i]);
    tierce__tenant_words_fini(&proxy->engine_tokens);
    tierce__tenant_words_fini(&proxy->router_tokens);
    tierce__tenants_fini(&proxy->tenants);
    tierce__tokens_destroy(proxy->tokens);
    tierce__inboxes_fini(&proxy->inboxes);
    tierce__engines_fini(&proxy->decode);
    tierce__engines_fini(&proxy->prefill);
    tierce__free(proxy->relays);
    tierce__lock_fini(&proxy->lock);
    tierce__free(proxy);
}
