/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/resp_uri.h"
#include "base/alloc.h"
#include "base/bytes.h"
#include "base/config_parse.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define POOL_MAX          16u
#define TIMEOUT_MS_MAX    3600000u
#define PARAMS_MAX        16u
#define WAIT_REPLICAS_MAX 16u

static int refuse(char why[TIERCE__RESP_WHY_BYTES], const char *what)
{
    snprintf(why, TIERCE__RESP_WHY_BYTES, "Redis URI: %s", what);
    return TIERCE_E_CONFIG;
}

/* Percent-decodes in place; false for what is none, and for a NUL. */
static bool decode(char *text)
{
    char *out = text;
    for (const char *at = text; *at != '\0'; at++) {
        uint8_t byte = (uint8_t)*at;
        if (*at == '%') {
            if (at[1] == '\0' || at[2] == '\0' || !tierce__hex_decode(&byte, 1, at + 1) ||
                byte == 0)
                return false;
            at += 2;
        }
        *out++ = (char)byte;
    }
    *out = '\0';
    return true;
}

/* Cuts the text at the first `at`, and returns what is behind it, or NULL. */
static char *cut(char *text, char at)
{
    char *found = strchr(text, at);
    if (found != NULL)
        *found++ = '\0';
    return found;
}

static bool to_number(uint64_t *out, const char *text, uint64_t max)
{
    return tierce__parse_count(out, text) && *out <= max;
}

/* user:password, :password, or password. */
static bool take_user(struct tierce__resp_uri *uri, char *text)
{
    char *password = cut(text, ':');
    if (!decode(text) || (password != NULL && !decode(password)))
        return false;
    uri->opts.user = password != NULL && text[0] != '\0' ? text : NULL;
    uri->opts.password = password != NULL ? password : text;
    if (uri->opts.password[0] == '\0')
        uri->opts.password = NULL;
    return true;
}

/* host, host:port, [::1]:port. */
static const char *take_node(struct tierce__resp_node *node, char *text)
{
    char *port = NULL;
    uint64_t number = 0;
    if (text[0] == '[') {
        char *behind = cut(++text, ']');
        if (behind == NULL || (behind[0] != '\0' && behind[0] != ':'))
            return "the address in brackets does not end";
        port = behind[0] == ':' ? behind + 1 : NULL;
    } else {
        port = cut(text, ':');
    }
    if (port != NULL && (!to_number(&number, port, UINT16_MAX) || number == 0))
        return "the port is none";
    if (!decode(text) || text[0] == '/')
        return "the host is none";
    *node = (struct tierce__resp_node){text[0] != '\0' ? text : "127.0.0.1", (uint16_t)number};
    return NULL;
}

/* One, or several with commas between where it is a cluster. */
static const char *take_hosts(struct tierce__resp_uri *uri, char *text, bool many)
{
    for (char *next; text != NULL; text = next) {
        next = cut(text, ',');
        if (next != NULL && !many)
            return "several nodes are a cluster's: redis-cluster://";
        if (uri->node_count == TIERCE__RESP_URI_NODES)
            return "there are more than 16 nodes";
        const char *wrong = take_node(&uri->nodes[uri->node_count++], text);
        if (wrong != NULL)
            return wrong;
    }
    uri->opts.host = uri->nodes[0].host;
    uri->opts.port = uri->nodes[0].port;
    return NULL;
}

static const char *take_database(struct tierce__resp_uri *uri, const char *text)
{
    uint64_t number = 0;
    if (text[0] != '\0' && !to_number(&number, text, UINT32_MAX))
        return "the database is no number";
    uri->opts.database = (uint32_t)number;
    return NULL;
}

static const char *take_params(struct tierce__resp_uri *uri, char *text)
{
    for (char *next; text != NULL && text[0] != '\0'; text = next) {
        next = cut(text, '&');
        char *value = cut(text, '=');
        if (value == NULL || text[0] == '\0')
            return "a parameter has no value";
        if (!decode(text) || !decode(value))
            return "a parameter is not percent-encoded rightly";
        if (uri->param_count == PARAMS_MAX)
            return "there are more than 16 parameters";
        uri->names[uri->param_count] = text;
        uri->values[uri->param_count++] = value;
    }
    return NULL;
}

/* The parameters that are known here. */
static const char *apply_params(struct tierce__resp_uri *uri)
{
    const char *text;
    uint64_t number;
    if ((text = tierce__resp_uri_param(uri, "timeout_ms")) != NULL) {
        if (!to_number(&number, text, TIMEOUT_MS_MAX) || number == 0)
            return "timeout_ms is not between 1 and 3600000";
        uri->opts.connect_timeout_ms = uri->opts.call_timeout_ms = (uint32_t)number;
    }
    if ((text = tierce__resp_uri_param(uri, "client_max_pool_size")) != NULL) {
        if (!to_number(&number, text, 1024) || number == 0)
            return "client_max_pool_size is not between 1 and 1024";
        uri->pool_max = (uint32_t)number;
    }
    if ((text = tierce__resp_uri_param(uri, "db")) != NULL) {
        const char *wrong = take_database(uri, text);
        if (wrong != NULL)
            return wrong;
    }
    if ((text = tierce__resp_uri_param(uri, "cluster")) != NULL) {
        bool is_cluster;
        if (!tierce__parse_bool(&is_cluster, text))
            return "cluster is neither true nor false";
        uri->is_cluster = uri->is_cluster || is_cluster;
    }
    if ((text = tierce__resp_uri_param(uri, "wait_replicas")) != NULL) {
        if (!to_number(&number, text, WAIT_REPLICAS_MAX))
            return "wait_replicas is not between 0 and 16";
        uri->wait_replicas = (uint32_t)number;
    }
    uri->opts.ca_file = tierce__resp_uri_param(uri, "ca_file");
    uri->opts.client_certificate = tierce__resp_uri_param(uri, "client_certificate");
    uri->opts.client_key = tierce__resp_uri_param(uri, "client_key");
    return NULL;
}

static const char *take_socket(struct tierce__resp_uri *uri, char *rest)
{
    char *path = strchr(rest, '/');
    if (path == NULL || !decode(path))
        return "the socket has no path";
    uri->opts.host = path;
    if (path == rest)
        return NULL;
    if (path[-1] != '@')
        return "before the path of the socket stands no user";
    path[-1] = '\0';
    return take_user(uri, rest) ? NULL : "user or password is not percent-encoded rightly";
}

/* What is behind "//", cut into pieces. Returns what is wrong, or NULL. */
static const char *take_place(struct tierce__resp_uri *uri, char *rest, bool is_unix)
{
    char *params = cut(rest, '?');
    const char *wrong = take_params(uri, params);
    if (wrong != NULL)
        return wrong;
    if (is_unix)
        return take_socket(uri, rest);
    char *database = cut(rest, '/');
    char *host = strrchr(rest, '@');
    if (host != NULL) {
        *host++ = '\0';
        if (!take_user(uri, rest))
            return "user or password is not percent-encoded rightly";
    }
    wrong = take_hosts(uri, host != NULL ? host : rest, uri->is_cluster);
    return wrong == NULL && database != NULL ? take_database(uri, database) : wrong;
}

static const char *check_cluster(const struct tierce__resp_uri *uri)
{
    if (!uri->is_cluster)
        return uri->wait_replicas > 0 ? "wait_replicas is for a cluster" : NULL;
    if (uri->node_count == 0)
        return "a cluster is not reached by a socket";
    return uri->opts.database != 0 ? "a cluster has no databases" : NULL;
}

int tierce__resp_uri_parse(struct tierce__resp_uri *out, const char *uri,
                           char why[TIERCE__RESP_WHY_BYTES])
{
    struct tierce__resp_uri parsed = {.opts = {.size = sizeof(parsed.opts)}, .pool_max = POOL_MAX};
    static const struct {
        const char *text;
        bool tls, is_unix, is_cluster;
    } schemes[] = {
        {"redis://", false, false, false},        {"rediss://", true, false, false},
        {"redis-cluster://", false, false, true}, {"rediss-cluster://", true, false, true},
        {"redis+unix://", false, true, false},    {"unix://", false, true, false}};
    parsed.text = tierce__strdup(uri);
    if (parsed.text == NULL) {
        refuse(why, "no memory");
        return -ENOMEM;
    }
    const char *wrong =
        "it begins with none of redis://, rediss://, redis-cluster://, redis+unix://";
    for (size_t i = 0; i < sizeof(schemes) / sizeof(*schemes); i++) {
        size_t length = strlen(schemes[i].text);
        if (strncmp(uri, schemes[i].text, length) != 0)
            continue;
        parsed.opts.tls = schemes[i].tls;
        parsed.is_cluster = schemes[i].is_cluster;
        wrong = take_place(&parsed, parsed.text + length, schemes[i].is_unix);
        break;
    }
    if (wrong == NULL)
        wrong = apply_params(&parsed);
    if (wrong == NULL)
        wrong = check_cluster(&parsed);
    if (wrong != NULL) {
        tierce__resp_uri_clear(&parsed);
        return refuse(why, wrong);
    }
    *out = parsed;
    return 0;
}

void tierce__resp_uri_clear(struct tierce__resp_uri *uri)
{
    if (uri->text != NULL)
        explicit_bzero(uri->text, strlen(uri->text));
    tierce__free(uri->text);
    *uri = (struct tierce__resp_uri){0};
}

const char *tierce__resp_uri_param(const struct tierce__resp_uri *uri, const char *name)
{
    for (size_t i = 0; i < uri->param_count; i++) {
        if (strcmp(uri->names[i], name) == 0)
            return uri->values[i];
    }
    return NULL;
}
