/* SPDX-License-Identifier: Apache-2.0 */
#include "net/redis/resp_sentinel.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "net/redis/resp_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SENTINEL_PORT      26379u
#define CONNECT_TIMEOUT_MS 1000u
#define HOST_BYTES_MAX     256u

struct tierce__resp_sentinel {
    struct tierce__arena arena;
    struct tierce__resp_opts opts; /* of the master, but for host and port */
    struct tierce__resp_node nodes[TIERCE__RESP_URI_NODES];
    size_t node_count, first; /* asked first */
    const char *master;
    const char *user, *password; /* of the sentinels */
    uint32_t ask_timeout_ms;     /* of each */
};

struct sentinel_place {
    char host[HOST_BYTES_MAX];
    uint16_t port;
};

static int fail(char why[TIERCE__RESP_WHY_BYTES], int rc, const char *host, uint16_t port,
                const char *text)
{
    TIERCE_DASSERT(rc < 0);
    snprintf(why, TIERCE__RESP_WHY_BYTES, "%.100s port %u: %.120s", host, (unsigned)port, text);
    return rc;
}

static const char *copy_text(struct tierce__resp_sentinel *sentinel, const char *text)
{
    return text != NULL ? tierce__arena_copy(&sentinel->arena, text, strlen(text)) : NULL;
}

int tierce__resp_sentinel_create(struct tierce__resp_sentinel **out,
                                 const struct tierce__resp_uri *uri)
{
    TIERCE_DASSERT(uri->node_count > 0 && uri->node_count <= TIERCE__RESP_URI_NODES);
    struct tierce__resp_sentinel *sentinel = tierce__calloc(1, sizeof(*sentinel));
    if (sentinel == NULL)
        return -ENOMEM;
    int rc = tierce__resp_opts_copy(&sentinel->opts, &sentinel->arena, &uri->opts);
    uint32_t timeout_ms = uri->opts.connect_timeout_ms;
    sentinel->node_count = uri->node_count;
    for (size_t i = 0; i < uri->node_count; i++) {
        uint16_t port = uri->nodes[i].port;
        sentinel->nodes[i].host = copy_text(sentinel, uri->nodes[i].host);
        sentinel->nodes[i].port = port != 0 ? port : SENTINEL_PORT;
    }
    sentinel->master = copy_text(sentinel, uri->master);
    sentinel->user = copy_text(sentinel, tierce__url_param(&uri->url, "sentinel_user"));
    sentinel->password = copy_text(sentinel, tierce__url_param(&uri->url, "sentinel_password"));
    timeout_ms = (timeout_ms != 0 ? timeout_ms : CONNECT_TIMEOUT_MS) / (uint32_t)uri->node_count;
    sentinel->ask_timeout_ms = timeout_ms > 0 ? timeout_ms : 1;
    if (rc == 0)
        rc = sentinel->arena.status;
    if (rc != 0)
        tierce__resp_sentinel_close(sentinel);
    else
        *out = sentinel;
    return rc;
}

void tierce__resp_sentinel_close(struct tierce__resp_sentinel *sentinel)
{
    if (sentinel == NULL)
        return;
    if (sentinel->password != NULL)
        explicit_bzero((char *)(uintptr_t)sentinel->password, strlen(sentinel->password));
    tierce__resp_opts_clear(&sentinel->opts, &sentinel->arena);
    tierce__free(sentinel);
}

/* [host, port], both texts. */
static bool read_place(struct sentinel_place *out, const struct tierce__resp_value *value)
{
    uint64_t port;
    if (value->type != TIERCE__RESP_ARRAY || value->count != 2 ||
        value->items[0].type != TIERCE__RESP_STRING ||
        value->items[1].type != TIERCE__RESP_STRING || value->items[0].bytes == 0 ||
        value->items[0].bytes >= sizeof(out->host) || value->items[0].text[0] == '/' ||
        !tierce__parse_count(&port, value->items[1].text) || port == 0 || port > UINT16_MAX)
        return false;
    snprintf(out->host, sizeof(out->host), "%s", value->items[0].text);
    out->port = (uint16_t)port;
    return true;
}

/* The master's address according to one sentinel. */
static int ask(const struct tierce__resp_sentinel *sentinel, const struct tierce__resp_node *node,
               struct sentinel_place *out, char why[TIERCE__RESP_WHY_BYTES])
{
    struct tierce__resp *resp = NULL;
    struct tierce__resp_value value = {0};
    struct tierce__resp_opts opts = sentinel->opts;
    TIERCE_DASSERT(node->host != NULL && node->port > 0);
    opts.host = node->host;
    opts.port = node->port;
    opts.database = 0;
    opts.user = sentinel->user;
    opts.password = sentinel->password;
    opts.connect_timeout_ms = opts.call_timeout_ms = sentinel->ask_timeout_ms;
    int rc = tierce__resp_open(&resp, &opts, why);
    if (rc != 0)
        return rc;
    rc = tierce__resp_call(
        resp, (const char *[]){"SENTINEL", "get-master-addr-by-name", sentinel->master},
        (size_t[]){8, 23, strlen(sentinel->master)}, 3, &value, 0);
    if (rc != 0)
        fail(why, rc, node->host, node->port, tierce__resp_why(resp));
    else if (value.type == TIERCE__RESP_ERROR)
        rc = fail(why, TIERCE_E_DOWN, node->host, node->port, tierce__resp_words(&value));
    else if (!read_place(out, &value))
        rc = fail(why, TIERCE_E_DOWN, node->host, node->port,
                  "the sentinel has no master of that name");
    tierce__resp_close(resp);
    return rc;
}

/* ["master", ..] */
static int check_role(struct tierce__resp *resp, const struct sentinel_place *place,
                      char why[TIERCE__RESP_WHY_BYTES])
{
    struct tierce__resp_value value;
    int rc = tierce__resp_call(resp, (const char *[]){"ROLE"}, (size_t[]){4}, 1, &value, 0);
    if (rc != 0)
        return fail(why, rc, place->host, place->port, tierce__resp_why(resp));
    if (tierce__resp_is_error(&value, "NOPERM"))
        return 0;
    if (value.type == TIERCE__RESP_ERROR)
        return fail(why, TIERCE_E_DOWN, place->host, place->port, tierce__resp_words(&value));
    if (value.type == TIERCE__RESP_ARRAY && value.count > 0 &&
        value.items[0].type == TIERCE__RESP_STRING && strcmp(value.items[0].text, "master") == 0)
        return 0;
    return fail(why, TIERCE_E_DOWN, place->host, place->port,
                "the server that the sentinels name is not a master");
}

static int open_master(const struct tierce__resp_sentinel *sentinel,
                       const struct sentinel_place *place, struct tierce__resp **out,
                       char why[TIERCE__RESP_WHY_BYTES])
{
    struct tierce__resp *resp = NULL;
    TIERCE_DASSERT(place->host[0] != '\0' && place->port > 0);
    struct tierce__resp_opts opts = sentinel->opts;
    opts.host = place->host;
    opts.port = place->port;
    int rc = tierce__resp_open(&resp, &opts, why);
    if (rc == 0)
        rc = check_role(resp, place, why);
    if (rc != 0)
        tierce__resp_close(resp);
    else
        *out = resp;
    return rc;
}

/* A sentinel that was cut off may name the old master, so the next one is asked too. */
int tierce__resp_sentinel_open(struct tierce__resp_sentinel *sentinel, struct tierce__resp **out,
                               char why[TIERCE__RESP_WHY_BYTES])
{
    TIERCE_DASSERT(sentinel->first < sentinel->node_count);
    struct sentinel_place places[TIERCE__RESP_URI_NODES];
    size_t tried = 0;
    int rc = TIERCE_E_DOWN;
    for (size_t i = 0; i < sentinel->node_count; i++) {
        size_t at = (sentinel->first + i) % sentinel->node_count, known = 0;
        struct sentinel_place place;
        int asked = ask(sentinel, &sentinel->nodes[at], &place, why);
        if (asked != 0) {
            rc = asked;
            continue;
        }
        while (known < tried &&
               (places[known].port != place.port || strcmp(places[known].host, place.host) != 0))
            known++;
        if (known < tried)
            continue;
        TIERCE_DASSERT(tried < sentinel->node_count);
        places[tried++] = place;
        rc = open_master(sentinel, &place, out, why);
        if (rc == 0) {
            sentinel->first = at;
            break;
        }
    }
    return rc;
}
