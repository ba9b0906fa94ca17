/* SPDX-License-Identifier: Apache-2.0 */
#include "router/router_private.h"

#include "base/alloc.h"
#include "base/file.h"
#include "router/subscriber_curve.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define DRAIN_MS       1000
#define FILE_BYTES_MAX (16u << 20)

static bool read_right(uint32_t *out, const char *word)
{
    bool is_admin = strcmp(word, "admin") == 0;
    *out = is_admin ? TIERCE__ROUTER_READ | TIERCE__ROUTER_ADMIN : TIERCE__ROUTER_READ;
    return is_admin || strcmp(word, "read") == 0;
}

static int read_tokens(struct tierce__tokens **out, const struct tierce__router *router,
                       char why[256])
{
    *out = NULL;
    if (router->config->token_file[0] == '\0')
        return 0;
    return tierce__tokens_load(
        out,
        &(struct tierce__tokens_opts){.size = sizeof(struct tierce__tokens_opts),
                                      .path = router->config->token_file,
                                      .rights = read_right,
                                      .rights_text = "a role must be read or admin",
                                      .has_tenants = true},
        why);
}

int tierce__router_reload(struct tierce__router *router, char why[256])
{
    struct tierce__tokens *tokens;
    char *snapshot_tokens = NULL, *curve_keys = NULL;
    int rc = read_tokens(&tokens, router, why);
    if (rc == 0)
        rc = tierce__tenant_words_read(&snapshot_tokens, "snapshot.token_file", "TOKEN",
                                       router->config->snapshot_token_file, why);
    if (rc == 0)
        rc = tierce__subscriber_keys_read(&curve_keys, router->config->curve_key_file, why);
    if (rc == 0 && router->config->tls_certificate[0] != '\0')
        rc = tierce__server_reload(router->server, why);
    if (rc < 0) {
        tierce__tokens_destroy(tokens);
        tierce__free_secret(snapshot_tokens);
        tierce__free_secret(curve_keys);
        return rc;
    }
    tierce__lock_take(&router->lock);
    struct tierce__tokens *before = router->tokens;
    router->tokens = tokens;
    tierce__lock_drop(&router->lock);
    tierce__tokens_destroy(before);
    tierce__tenant_words_replace(&router->snapshot_tokens, snapshot_tokens);
    tierce__tenant_words_replace(&router->curve_keys, curve_keys);
    return 0;
}

/* ---- publishers.file ------------------------------------------------------------------------- */

static int add_all(struct tierce__router *router, struct tierce__text list, char why[256])
{
    struct tierce__text name, object;
    struct tierce__json each = tierce__json_each(list);
    char reason[256];
    for (size_t i = 0; tierce__json_next(&each, &name, &object); i++) {
        struct tierce__source_opts opts;
        int rc = TIERCE_E_CONFIG;
        if (tierce__router_read_source(&opts, object, reason)) {
            opts.is_trusted = true;
            rc = tierce__sources_add(router->sources, &opts, reason);
        }
        if (rc < 0) {
            snprintf(why, 256, "publishers.file %.80s, publisher %zu: %.140s",
                     router->config->publishers_file, i, reason);
            return rc;
        }
    }
    return 0;
}

static int add_publishers(struct tierce__router *router, char why[256])
{
    const char *path = router->config->publishers_file, *reason = "an array is expected";
    struct tierce__json_doc doc = {0};
    char *text = NULL;
    size_t bytes = 0;
    if (path[0] == '\0')
        return 0;
    int rc = tierce__read_file(&text, &bytes, path, FILE_BYTES_MAX);
    if (rc < 0) {
        snprintf(why, 256, "publishers.file %.180s: %s", path, tierce_strerror(rc));
        return rc;
    }
    rc = tierce__json_parse(&doc, text, bytes, &reason);
    if (rc == TIERCE_E_FORMAT || (rc == 0 && tierce__json_value_kind(doc.value) != '[')) {
        snprintf(why, 256, "publishers.file %.120s: %.100s", path, reason);
        rc = TIERCE_E_CONFIG;
    }
    if (rc == 0)
        rc = add_all(router, doc.value, why);
    tierce__json_doc_clear(&doc);
    tierce__free(text);
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int start_server(struct tierce__router *router, char why[256])
{
    const struct tierce__router_config *config = router->config;
    bool has_tls = config->tls_certificate[0] != '\0';
    struct tierce__listener http = {
        .protocol = TIERCE__SERVE_HTTP,
        .host = config->host,
        .port = config->port,
        .name = "listen.port",
        .routes = router->routes,
        .route_count = tierce__router_routes(router),
        .tls = {.certificate = has_tls ? config->tls_certificate : NULL,
                .key = has_tls ? config->tls_key : NULL,
                .client_ca = config->tls_client_ca[0] != '\0' ? config->tls_client_ca : NULL}};
    return tierce__server_start(
        &router->server,
        &(struct tierce__server_opts){.size = sizeof(struct tierce__server_opts),
                                      .listeners = &http,
                                      .listener_count = 1,
                                      .connections_max = config->connections_max},
        why);
}

int tierce__router_start(struct tierce__router **out, const struct tierce__router_config *config,
                         char why[256])
{
    struct tierce__router *router = tierce__calloc(1, sizeof(*router));
    snprintf(why, 256, "no memory");
    if (router == NULL)
        return -ENOMEM;
    router->config = config;
    tierce__lock_init(&router->lock, TIERCE__LOCK_ROUTER_ACCESS);
    tierce__tenant_words_init(&router->snapshot_tokens);
    tierce__tenant_words_init(&router->curve_keys);
    int rc = read_tokens(&router->tokens, router, why);
    if (rc == 0)
        rc = tierce__tenant_words_read(&router->snapshot_tokens.text, "snapshot.token_file",
                                       "TOKEN", config->snapshot_token_file, why);
    if (rc == 0)
        rc = tierce__subscriber_keys_read(&router->curve_keys.text, config->curve_key_file, why);
    /* Twice as many workers: one that is replaced leaves after the new one has come. */
    if (rc == 0)
        rc = tierce__directory_create(
            &router->directory,
            &(struct tierce__directory_opts){.size = sizeof(struct tierce__directory_opts),
                                             .workers_max = config->publishers_max * 2,
                                             .bytes_max = config->memory_max,
                                             .silence_ns = UINT64_MAX});
    if (rc == 0)
        rc = tierce__sources_create(&router->sources, router->directory, config,
                                    &router->snapshot_tokens, &router->curve_keys);
    if (rc == 0)
        rc = add_publishers(router, why);
    if (rc == 0)
        rc = start_server(router, why);
    if (rc < 0)
        tierce__router_stop(router);
    else
        *out = router;
    return rc;
}

uint16_t tierce__router_port(const struct tierce__router *router)
{
    return tierce__server_port(router->server, 0);
}

void tierce__router_stop(struct tierce__router *router)
{
    if (router == NULL)
        return;
    if (router->server != NULL)
        tierce__server_stop(router->server, DRAIN_MS);
    tierce__sources_destroy(router->sources);
    tierce__directory_destroy(router->directory);
    tierce__tokens_destroy(router->tokens);
    tierce__tenant_words_fini(&router->snapshot_tokens);
    tierce__tenant_words_fini(&router->curve_keys);
    tierce__lock_fini(&router->lock);
    tierce__free(router);
}
