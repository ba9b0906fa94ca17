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

/* ---- pieces: each returns 0, or TIERCE_E_CONFIG and `why` ------------------------------------ */

static int refuse(char why[TIERCE__RESP_WHY_BYTES], const char *what)
{
    snprintf(why, TIERCE__RESP_WHY_BYTES, "URL: %s", what);
    return TIERCE_E_CONFIG;
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

static int take_hosts(struct tierce__resp_uri *uri, char why[TIERCE__RESP_WHY_BYTES])
{
    const struct tierce__url *url = &uri->url;
    TIERCE_DASSERT(url->host_count <= TIERCE__RESP_URI_NODES);
    if (url->host_count > 1 && !uri->is_cluster && !uri->is_sentinel)
        return refuse(why, "several hosts require redis+cluster:// or redis+sentinel://");
    uri->nodes[0] = (struct tierce__resp_node){.host = "127.0.0.1"};
    uri->node_count = url->host_count > 0 ? url->host_count : 1;
    for (size_t i = 0; i < url->host_count; i++) {
        const char *name = url->hosts[i].name;
        uri->nodes[i] =
            (struct tierce__resp_node){name[0] != '\0' ? name : "127.0.0.1", url->hosts[i].port};
    }
    uri->opts.host = uri->nodes[0].host;
    uri->opts.port = uri->nodes[0].port;
    return 0;
}

static int take_database(struct tierce__resp_uri *uri, const char *text,
                         char why[TIERCE__RESP_WHY_BYTES])
{
    uint64_t number = 0;
    /* Not shown: in a malformed URI it may be a part of a password. */
    if (text[0] != '\0' && (!tierce__parse_count(&number, text) || number > UINT32_MAX))
        return refuse(why, "the database must be a number");
    uri->opts.database = (uint32_t)number;
    return 0;
}

static int take_socket(struct tierce__resp_uri *uri, char why[TIERCE__RESP_WHY_BYTES])
{
    if (uri->url.host_count > 0)
        return refuse(why, "a Unix-socket URI accepts no user name or host");
    if (uri->url.path[0] == '\0')
        return refuse(why, "the socket has no path");
    uri->opts.host = uri->url.path;
    return 0;
}

/* "/name" or "/name/database". */
static int take_master(struct tierce__resp_uri *uri, char why[TIERCE__RESP_WHY_BYTES])
{
    char *name = uri->url.path + (uri->url.path[0] == '/');
    char *database = strchr(name, '/');
    if (database != NULL)
        *database++ = '\0';
    if (name[0] == '\0')
        return refuse(why, "the URI requires the master's name after the sentinels: "
                           "redis+sentinel://HOST/NAME");
    uri->master = name;
    return database != NULL ? take_database(uri, database, why) : 0;
}

static int take_place(struct tierce__resp_uri *uri, const struct resp_scheme *scheme,
                      char why[TIERCE__RESP_WHY_BYTES])
{
    take_user(uri);
    int rc = scheme->is_unix ? take_socket(uri, why) : take_hosts(uri, why);
    if (scheme->is_node && uri->opts.port == 0)
        uri->opts.port = uri->nodes[0].port = TIERCE__RESP_NODE_PORT;
    if (rc != 0 || scheme->is_unix || scheme->is_node)
        return rc;
    return uri->is_sentinel ? take_master(uri, why)
                            : take_database(uri, uri->url.path + (uri->url.path[0] == '/'), why);
}

/* The parameters that are known here. */
static int apply_params(struct tierce__resp_uri *uri, char why[TIERCE__RESP_WHY_BYTES])
{
    const struct tierce__url *url = &uri->url;
    uint64_t timeout_ms = 0, pool_max = uri->pool_max, replicas = 0;
    const struct {
        struct tierce__url_number number;
        uint64_t *value;
    } numbers[] = {
        {{"timeout_ms", TIERCE__URL_COUNT, 1, TIMEOUT_MS_MAX}, &timeout_ms},
        {{"client_max_pool_size", TIERCE__URL_COUNT, 1, 1024}, &pool_max},
        {{"wait_replicas", TIERCE__URL_COUNT, 0, WAIT_REPLICAS_MAX}, &replicas},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers) && rc == 0; i++)
        rc = tierce__url_param_number(url, numbers[i].value, &numbers[i].number, why);
    const char *database = tierce__url_param(url, "db");
    if (rc == 0 && database != NULL)
        rc = take_database(uri, database, why);
    if (timeout_ms > 0)
        uri->opts.connect_timeout_ms = uri->opts.call_timeout_ms = (uint32_t)timeout_ms;
    uri->pool_max = (uint32_t)pool_max;
    uri->wait_replicas = (uint32_t)replicas;
    uri->opts.ca_file = tierce__url_param(url, "ca_file");
    uri->opts.client_certificate = tierce__url_param(url, "client_certificate");
    uri->opts.client_key = tierce__url_param(url, "client_key");
    return rc;
}

/* For another machine, TLS is used unless the URI disables it. */
static int take_node(struct tierce__resp_uri *uri, char why[TIERCE__RESP_WHY_BYTES])
{
    bool has_files = uri->opts.ca_file != NULL || uri->opts.client_certificate != NULL ||
                     uri->opts.client_key != NULL;
    if (uri->url.path[0] != '\0' && strcmp(uri->url.path, "/") != 0)
        return refuse(why, "a node has no databases");
    uri->opts.tls = has_files || !tierce__is_loopback_host(uri->opts.host);
    int rc = tierce__url_param_flag(&uri->url, &uri->opts.tls, "tls", why);
    if (rc == 0 && has_files && !uri->opts.tls)
        return refuse(why, "tls=false cannot be combined with TLS files");
    return rc;
}

/* cluster=true makes it a cluster, even if its scheme does not. */
static int take_cluster(struct tierce__resp_uri *uri, char why[TIERCE__RESP_WHY_BYTES])
{
    bool is_cluster = false;
    int rc = tierce__url_param_flag(&uri->url, &is_cluster, "cluster", why);
    uri->is_cluster = uri->is_cluster || is_cluster;
    return rc;
}

static int check_cluster(const struct tierce__resp_uri *uri, char why[TIERCE__RESP_WHY_BYTES])
{
    if (!uri->is_cluster)
        return uri->wait_replicas > 0 && !uri->is_sentinel
                   ? refuse(why, "wait_replicas requires a cluster, or a master behind sentinels")
                   : 0;
    if (uri->is_sentinel)
        return refuse(why, "sentinels cannot be used with a cluster");
    if (uri->node_count == 0)
        return refuse(why, "a cluster cannot be reached through a Unix socket");
    return uri->opts.database != 0 ? refuse(why, "a cluster has no databases") : 0;
}

/* All but the credentials file. */
static int take_all(struct tierce__resp_uri *uri, char why[TIERCE__RESP_WHY_BYTES])
{
    const struct resp_scheme *scheme = find_scheme(uri->url.scheme);
    if (scheme == NULL)
        return refuse(why, "it must begin with one of redis://, rediss://, redis+cluster://, "
                           "redis+sentinel://, redis+unix://, tierce://");
    uri->opts.tls = scheme->tls;
    uri->is_cluster = scheme->is_cluster;
    uri->is_sentinel = scheme->is_sentinel;
    int rc = scheme->is_node ? 0 : take_cluster(uri, why);
    if (rc == 0)
        rc = take_place(uri, scheme, why);
    if (rc == 0)
        rc = apply_params(uri, why);
    if (rc == 0)
        rc = scheme->is_node ? take_node(uri, why) : check_cluster(uri, why);
    return rc;
}

int tierce__resp_uri_parse(struct tierce__resp_uri *out, const char *text,
                           char why[TIERCE__RESP_WHY_BYTES])
{
    struct tierce__resp_uri uri = {.opts = {.size = sizeof(uri.opts)}, .pool_max = POOL_MAX};
    int rc = tierce__url_parse(&uri.url, text, why);
    if (rc != 0)
        return rc;
    rc = take_all(&uri, why);
    const char *file = tierce__url_param(&uri.url, "credentials_file");
    if (rc == 0 && file != NULL)
        rc = uri.url.user == NULL
                 ? tierce__resp_credentials_read(&uri, file, why)
                 : refuse(why, "credentials_file cannot be combined with a user or password");
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
