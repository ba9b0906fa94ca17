/* SPDX-License-Identifier: Apache-2.0 */
#include "net/redis/resp_uri.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "net/loopback.h"

#include <stdio.h>
#include <string.h>

#define POOL_MAX          16u
#define TIMEOUT_MS_MAX    3600000u
#define WAIT_REPLICAS_MAX 16u

_Static_assert(TIERCE__URL_WHY_BYTES == TIERCE__RESP_WHY_BYTES, "both have the same value");
_Static_assert(TIERCE__URL_HOSTS_MAX == TIERCE__RESP_URI_NODES, "all hosts fit the array");

/* ---- schemes --------------------------------------------------------------------------------- */

struct resp_scheme {
    const char *name;
    bool tls, is_unix, is_cluster, is_sentinel, is_node;
};

static const struct resp_scheme schemes[] = {
    {"redis", .is_unix = false},
    {"rediss", .tls = true},
    {"redis-cluster", .is_cluster = true},
    {"rediss-cluster", .tls = true, .is_cluster = true},
    {"redis+cluster", .is_cluster = true},
    {"rediss+cluster", .tls = true, .is_cluster = true},
    {"redis+sentinel", .is_sentinel = true},
    {"rediss+sentinel", .tls = true, .is_sentinel = true},
    {"redis+unix", .is_unix = true},
    {"unix", .is_unix = true},
    {"tierce", .is_node = true},
};

/* "valkeys+cluster" is "rediss+cluster". */
static bool has_name(const struct resp_scheme *scheme, const char *name)
{
    bool is_valkey = strncmp(name, "valkey", 6) == 0 && strncmp(scheme->name, "redis", 5) == 0;
    return is_valkey ? strcmp(scheme->name + 5, name + 6) == 0 : strcmp(scheme->name, name) == 0;
}

static const struct resp_scheme *find_scheme(const char *name)
{
    for (size_t i = 0; i < sizeof(schemes) / sizeof(*schemes); i++) {
        if (has_name(&schemes[i], name))
            return &schemes[i];
    }
    return NULL;
}

/* ---- pieces: each returns what is wrong, or NULL --------------------------------------------- */

static bool to_number(uint64_t *out, const char *text, uint64_t max)
{
    return tierce__parse_count(out, text) && *out <= max;
}

/* A user alone is the password. */
static void take_user(struct tierce__resp_uri *uri)
{
    const char *user = uri->url.user, *password = uri->url.password;
    if (password == NULL) {
        password = user;
        user = NULL;
    }
    uri->opts.user = user != NULL && user[0] != '\0' ? user : NULL;
    uri->opts.password = password != NULL && password[0] != '\0' ? password : NULL;
}

static const char *take_hosts(struct tierce__resp_uri *uri)
{
    const struct tierce__url *url = &uri->url;
    TIERCE_DASSERT(url->host_count <= TIERCE__RESP_URI_NODES);
    if (url->host_count > 1 && !uri->is_cluster && !uri->is_sentinel)
        return "several hosts require redis+cluster:// or redis+sentinel://";
    uri->nodes[0] = (struct tierce__resp_node){.host = "127.0.0.1"};
    uri->node_count = url->host_count > 0 ? url->host_count : 1;
    for (size_t i = 0; i < url->host_count; i++) {
        const char *name = url->hosts[i].name;
        uri->nodes[i] =
            (struct tierce__resp_node){name[0] != '\0' ? name : "127.0.0.1", url->hosts[i].port};
    }
    uri->opts.host = uri->nodes[0].host;
    uri->opts.port = uri->nodes[0].port;
    return NULL;
}

static const char *take_database(struct tierce__resp_uri *uri, const char *text)
{
    uint64_t number = 0;
    if (text[0] != '\0' && !to_number(&number, text, UINT32_MAX))
        return "the database must be a number";
    uri->opts.database = (uint32_t)number;
    return NULL;
}

static const char *take_socket(struct tierce__resp_uri *uri)
{
    if (uri->url.host_count > 0)
        return "a Unix-socket URI accepts no user name or host";
    if (uri->url.path[0] == '\0')
        return "the socket has no path";
    uri->opts.host = uri->url.path;
    return NULL;
}

/* "/name" or "/name/database". */
static const char *take_master(struct tierce__resp_uri *uri)
{
    char *name = uri->url.path + (uri->url.path[0] == '/');
    char *database = strchr(name, '/');
    if (database != NULL)
        *database++ = '\0';
    if (name[0] == '\0')
        return "the URI requires the master's name after the sentinels: redis+sentinel://HOST/NAME";
    uri->master = name;
    return database != NULL ? take_database(uri, database) : NULL;
}

static const char *take_place(struct tierce__resp_uri *uri, const struct resp_scheme *scheme)
{
    take_user(uri);
    const char *wrong = scheme->is_unix ? take_socket(uri) : take_hosts(uri);
    if (scheme->is_node && uri->opts.port == 0)
        uri->opts.port = uri->nodes[0].port = TIERCE__RESP_NODE_PORT;
    if (wrong != NULL || scheme->is_unix || scheme->is_node)
        return wrong;
    return uri->is_sentinel ? take_master(uri)
                            : take_database(uri, uri->url.path + (uri->url.path[0] == '/'));
}

/* The parameters that are known here. */
static const char *apply_params(struct tierce__resp_uri *uri)
{
    const struct tierce__url *url = &uri->url;
    const char *text;
    uint64_t number;
    if ((text = tierce__url_param(url, "timeout_ms")) != NULL) {
        if (!to_number(&number, text, TIMEOUT_MS_MAX) || number == 0)
            return "timeout_ms must be between 1 and 3600000";
        uri->opts.connect_timeout_ms = uri->opts.call_timeout_ms = (uint32_t)number;
    }
    if ((text = tierce__url_param(url, "client_max_pool_size")) != NULL) {
        if (!to_number(&number, text, 1024) || number == 0)
            return "client_max_pool_size must be between 1 and 1024";
        uri->pool_max = (uint32_t)number;
    }
    if ((text = tierce__url_param(url, "db")) != NULL) {
        const char *wrong = take_database(uri, text);
        if (wrong != NULL)
            return wrong;
    }
    if ((text = tierce__url_param(url, "wait_replicas")) != NULL) {
        if (!to_number(&number, text, WAIT_REPLICAS_MAX))
            return "wait_replicas must be between 0 and 16";
        uri->wait_replicas = (uint32_t)number;
    }
    uri->opts.ca_file = tierce__url_param(url, "ca_file");
    uri->opts.client_certificate = tierce__url_param(url, "client_certificate");
    uri->opts.client_key = tierce__url_param(url, "client_key");
    return NULL;
}

/* For another machine, TLS is used unless the URI disables it. */
static const char *take_node(struct tierce__resp_uri *uri)
{
    const char *text = tierce__url_param(&uri->url, "tls");
    bool has_files = uri->opts.ca_file != NULL || uri->opts.client_certificate != NULL ||
                     uri->opts.client_key != NULL;
    if (uri->url.path[0] != '\0' && strcmp(uri->url.path, "/") != 0)
        return "a node has no databases";
    uri->opts.tls = has_files || !tierce__is_loopback_host(uri->opts.host);
    if (text != NULL && !tierce__parse_bool(&uri->opts.tls, text))
        return "tls must be true or false";
    return has_files && !uri->opts.tls ? "tls=false cannot be combined with TLS files" : NULL;
}

/* cluster=true makes it a cluster, even if its scheme does not. */
static const char *take_cluster(struct tierce__resp_uri *uri)
{
    bool is_cluster;
    const char *text = tierce__url_param(&uri->url, "cluster");
    if (text == NULL)
        return NULL;
    if (!tierce__parse_bool(&is_cluster, text))
        return "cluster must be true or false";
    uri->is_cluster = uri->is_cluster || is_cluster;
    return NULL;
}

static const char *check_cluster(const struct tierce__resp_uri *uri)
{
    if (!uri->is_cluster)
        return uri->wait_replicas > 0 && !uri->is_sentinel
                   ? "wait_replicas requires a cluster, or a master behind sentinels"
                   : NULL;
    if (uri->is_sentinel)
        return "sentinels cannot be used with a cluster";
    if (uri->node_count == 0)
        return "a cluster cannot be reached through a Unix socket";
    return uri->opts.database != 0 ? "a cluster has no databases" : NULL;
}

int tierce__resp_uri_parse(struct tierce__resp_uri *out, const char *text,
                           char why[TIERCE__RESP_WHY_BYTES])
{
    struct tierce__resp_uri uri = {.opts = {.size = sizeof(uri.opts)}, .pool_max = POOL_MAX};
    int rc = tierce__url_parse(&uri.url, text, why);
    if (rc != 0)
        return rc;
    const struct resp_scheme *scheme = find_scheme(uri.url.scheme);
    const char *wrong = "it must begin with one of redis://, rediss://, redis+cluster://, "
                        "redis+sentinel://, redis+unix://, tierce://";
    if (scheme != NULL) {
        uri.opts.tls = scheme->tls;
        uri.is_cluster = scheme->is_cluster;
        uri.is_sentinel = scheme->is_sentinel;
        wrong = scheme->is_node ? NULL : take_cluster(&uri);
    }
    if (wrong == NULL)
        wrong = take_place(&uri, scheme);
    if (wrong == NULL)
        wrong = apply_params(&uri);
    if (wrong == NULL)
        wrong = scheme->is_node ? take_node(&uri) : check_cluster(&uri);
    const char *file = tierce__url_param(&uri.url, "credentials_file");
    if (wrong == NULL && file != NULL && uri.url.user != NULL)
        wrong = "credentials_file cannot be combined with a user or password";
    if (wrong != NULL) {
        snprintf(why, TIERCE__RESP_WHY_BYTES, "URL: %s", wrong);
        rc = TIERCE_E_CONFIG;
    } else if (file != NULL) {
        rc = tierce__resp_credentials_read(&uri, file, why);
    }
    if (rc != 0) {
        tierce__resp_uri_clear(&uri);
        return rc;
    }
    TIERCE_DASSERT(uri.node_count <= TIERCE__RESP_URI_NODES && uri.pool_max > 0);
    *out = uri;
    return 0;
}

void tierce__resp_uri_clear(struct tierce__resp_uri *uri)
{
    tierce__url_clear(&uri->url);
    if (uri->credentials != NULL)
        explicit_bzero(uri->credentials, uri->credentials_bytes);
    tierce__free(uri->credentials);
    *uri = (struct tierce__resp_uri){0};
}
