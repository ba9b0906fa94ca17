/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redis, Valkey, and a node by the same protocol: an object is the string at PREFIX + its name.
 *
 *     redis://user:password@host:6379/0?ttl=24h&connections=8&prefix=tierce:
 *     rediss://..., valkeys://...      with TLS: ca_file=, client_certificate=, client_key=
 *     redis+unix:///path/of/socket?db=1
 *     redis+sentinel://user:password@host:26379,host:26379/name/0?wait_replicas=1
 *     redis+cluster://user:password@host:6379,host:6379?wait_replicas=1
 *     tierce://token@host:6494         with TLS unless the host is this machine: tls=
 *
 * Bytes go between socket and buffer without a copy. An object disappears after `ttl`, or when the
 * server evicts it. With `wait_replicas`, a PUT is answered when that many replicas have the
 * object.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "store/remote/links.h"
#include "net/redis/resp_link.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NODE_SCHEME      "tierce"
#define LINKS            8u
#define PREFIX_BYTES_MAX 128u
#define KEY_BYTES_MAX    (PREFIX_BYTES_MAX + TIERCE__CONNECTOR_NAME_MAX) /* names have the prefix */
#define VALUE_BYTES_MAX  (512ull << 20) /* of Redis, unless it is configured otherwise */
#define EXISTS_AT_ONCE   256u
#define PAGE_NAMES       "512"
#define ANSWER_BYTES_MAX (4ull << 20) /* ten pages of names; objects go elsewhere */
#define TTL_MS_MIN       1000u        /* less is a number without its unit */
#define TTL_MS_MAX       (3650ull * 24 * 60 * 60 * 1000)

/* Shared by the links. */
struct redis {
    struct tierce__resp_uri uri;
    char prefix[PREFIX_BYTES_MAX + 1];
    uint64_t ttl_ms; /* 0: for ever */
};

struct redis_link {
    const struct redis *redis;
    struct tierce__resp_link *resp;
    char why[TIERCE__CONNECTOR_WHY_BYTES];
};

/* ---- statuses -------------------------------------------------------------------------------- */

/* A call that failed. */
static int failed(struct redis_link *link, int rc)
{
    TIERCE_DASSERT(rc < 0);
    const char *why = tierce__resp_link_why(link->resp);
    if (why[0] == '\0')
        why = tierce_strerror(rc);
    tierce__text_for_message(link->why, sizeof(link->why), why);
    if (rc == -EACCES)
        return TIERCE_E_REFUSED;
    if (rc == TIERCE_E_LIMIT || rc == TIERCE_E_UNSUPPORTED) /* it is not a cluster */
        return TIERCE_E_FORMAT;
    return rc == -ENOMEM || rc == TIERCE_E_DEADLINE || rc == TIERCE_E_FORMAT ? rc : TIERCE_E_DOWN;
}

/* The server has answered with an error. */
static int refused(struct redis_link *link, const struct tierce__resp_value *value)
{
    TIERCE_DASSERT(value->type == TIERCE__RESP_ERROR);
    static const struct {
        const char *code;
        int status;
    } codes[] = {
        {"OOM", TIERCE_E_FULL},          {"NOAUTH", TIERCE_E_REFUSED},
        {"WRONGPASS", TIERCE_E_REFUSED}, {"NOPERM", TIERCE_E_REFUSED},
        {"LOADING", TIERCE_E_DOWN},      {"READONLY", TIERCE_E_DOWN},
        {"CLUSTERDOWN", TIERCE_E_DOWN},  {"MASTERDOWN", TIERCE_E_DOWN},
        {"MISCONF", TIERCE_E_DOWN},      {"BUSY", TIERCE_E_DOWN},
        {"NOREPLICAS", TIERCE_E_DOWN},   {"TRYAGAIN", TIERCE_E_DOWN},
        {"MOVED", TIERCE_E_UNSUPPORTED}, {"ASK", TIERCE_E_UNSUPPORTED},
    };
    tierce__text_for_message(link->why, sizeof(link->why), tierce__resp_words(value));
    for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++) {
        if (tierce__resp_is_error(value, codes[i].code))
            return codes[i].status;
    }
    return TIERCE_E_FORMAT;
}

/* An answer of the wrong kind. */
static int misunderstood(struct redis_link *link, const struct tierce__resp_value *value,
                         const char *command)
{
    if (value->type == TIERCE__RESP_ERROR)
        return refused(link, value);
    snprintf(link->why, sizeof(link->why), "invalid answer to %s", command);
    return TIERCE_E_FORMAT;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* All answers are read, so that the connection stays in step. */
static int redis_find(void *opened, const struct tierce_plugin_name *names, size_t count,
                      _Atomic size_t *found, uint64_t deadline_ns)
{
    TIERCE_DASSERT(count > 0 && *found == 0);
    struct redis_link *link = opened;
    bool missed = false;
    int status = 0;
    TIERCE_DASSERT(count <= EXISTS_AT_ONCE);
    int rc = tierce__resp_link_begin(link->resp);
    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = tierce__resp_link_append(link->resp, 1, (const char *[]){"EXISTS", names[i].text},
                                      (size_t[]){6, names[i].bytes}, 2);
    }
    if (rc == 0)
        rc = tierce__resp_link_flush(link->resp, deadline_ns);
    for (size_t i = 0; i < count && rc == 0; i++) {
        struct tierce__resp_value value;
        rc = tierce__resp_link_read(link->resp, &value, deadline_ns);
        if (rc != 0 || status != 0)
            continue;
        if (value.type != TIERCE__RESP_INTEGER || value.integer < 0 || value.integer > 1)
            status = misunderstood(link, &value, "EXISTS");
        else if (value.integer == 0)
            missed = true;
        *found += !missed && status == 0;
    }
    TIERCE_DASSERT(*found <= count);
    return rc != 0 ? failed(link, rc) : status;
}

/* GETRANGE returns an empty string for a missing key and for an empty object. It costs redis-server
 * what GET does: 0.89 and 0.88 ms for 4 MiB (p10 of 1,200 each over a Unix socket, redis 7.0,
 * 2026-11). */
static int append_get(struct redis_link *link, const struct tierce__link_get *get)
{
    TIERCE_DASSERT(get->name->bytes <= KEY_BYTES_MAX);
    TIERCE_DASSERT(get->length > 0);
    char first[24], last[24];
    size_t first_bytes = (size_t)snprintf(first, sizeof(first), "%" PRIu64, get->offset);
    size_t last_bytes =
        (size_t)snprintf(last, sizeof(last), "%" PRIu64, get->offset + get->length - 1);
    return tierce__resp_link_append(link->resp, 1,
                                    (const char *[]){"GETRANGE", get->name->text, first, last},
                                    (size_t[]){8, get->name->bytes, first_bytes, last_bytes}, 4);
}

static int judge_get(struct redis_link *link, const struct tierce__link_get *get,
                     const struct tierce__resp_value *value)
{
    if (value->type != TIERCE__RESP_STRING || value->text != NULL)
        return misunderstood(link, value, "GETRANGE");
    if (value->bytes == get->length)
        return 0;
    snprintf(link->why, sizeof(link->why), "an object with an unexpected length");
    return value->bytes == 0 ? TIERCE_E_MISS : TIERCE_E_FORMAT;
}

static int redis_get(void *opened, const struct tierce_plugin_name *name, void *memory,
                     uint64_t offset, uint64_t length, uint64_t deadline_ns)
{
    TIERCE_DASSERT(length > 0);
    struct redis_link *link = opened;
    const struct tierce__link_get get = {
        .name = name, .memory = memory, .offset = offset, .length = length};
    struct tierce__resp_value value;
    if (length > VALUE_BYTES_MAX || offset > VALUE_BYTES_MAX - length)
        return TIERCE_E_FORMAT; /* no object is that long */
    int rc = tierce__resp_link_begin(link->resp);
    if (rc == 0)
        rc = append_get(link, &get);
    if (rc == 0) {
        tierce__resp_link_into(link->resp, memory, length);
        rc = tierce__resp_link_flush(link->resp, deadline_ns);
    }
    if (rc == 0)
        rc = tierce__resp_link_read(link->resp, &value, deadline_ns);
    return rc != 0 ? failed(link, rc) : judge_get(link, &get, &value);
}

static int redis_send_gets(void *opened, const struct tierce__link_get *gets, size_t count,
                           uint64_t deadline_ns)
{
    TIERCE_DASSERT(count > 1 && count <= TIERCE__LINKS_GETS);
    struct redis_link *link = opened;
    TIERCE_DASSERT(!link->redis->uri.is_cluster);
    int rc = tierce__resp_link_begin(link->resp);
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = append_get(link, &gets[i]);
    if (rc == 0)
        rc = tierce__resp_link_flush(link->resp, deadline_ns);
    return rc != 0 ? failed(link, rc) : 0;
}

static int redis_read_get(void *opened, const struct tierce__link_get *get, uint64_t deadline_ns)
{
    struct redis_link *link = opened;
    TIERCE_DASSERT(!link->redis->uri.is_cluster && get->length > 0);
    struct tierce__resp_value value;
    int rc = tierce__resp_link_read_into(link->resp, get->memory, get->length, &value, deadline_ns);
    return rc != 0 ? failed(link, rc) : judge_get(link, get, &value);
}

static int redis_put(void *opened, const struct tierce_plugin_name *name, const void *memory,
                     uint64_t length, uint64_t deadline_ns)
{
    TIERCE_DASSERT(length > 0 && name->bytes <= KEY_BYTES_MAX);
    struct redis_link *link = opened;
    char ttl[24];
    struct tierce__resp_value value;
    const char *object = memory;
    uint64_t ttl_ms = link->redis->ttl_ms;
    if (length > VALUE_BYTES_MAX) {
        snprintf(link->why, sizeof(link->why), "an object of more than 512 MiB");
        return TIERCE_E_LIMIT;
    }
    size_t ttl_bytes = (size_t)snprintf(ttl, sizeof(ttl), "%" PRIu64, ttl_ms);
    int rc = tierce__resp_link_begin(link->resp);
    /* The value comes last in both, and is sent from where it lies. */
    if (rc == 0 && ttl_ms == 0)
        rc = tierce__resp_link_append_borrowed(link->resp, 1,
                                               (const char *[]){"SET", name->text, object},
                                               (size_t[]){3, name->bytes, length}, 3);
    else if (rc == 0)
        rc = tierce__resp_link_append_borrowed(link->resp, 1,
                                               (const char *[]){"PSETEX", name->text, ttl, object},
                                               (size_t[]){6, name->bytes, ttl_bytes, length}, 4);
    if (rc == 0) {
        tierce__resp_link_writes(link->resp);
        rc = tierce__resp_link_flush(link->resp, deadline_ns);
    }
    if (rc == 0)
        rc = tierce__resp_link_read(link->resp, &value, deadline_ns);
    if (rc != 0)
        return failed(link, rc);
    if (value.type == TIERCE__RESP_STRING && value.bytes == 2 && memcmp(value.text, "OK", 2) == 0)
        return 0;
    return misunderstood(link, &value, "SET");
}

static int redis_remove(void *opened, const struct tierce_plugin_name *name, uint64_t deadline_ns)
{
    struct redis_link *link = opened;
    struct tierce__resp_value value;
    int rc = tierce__resp_link_call(link->resp, 1, (const char *[]){"UNLINK", name->text},
                                    (size_t[]){6, name->bytes}, 2, &value, deadline_ns);
    if (rc != 0)
        return failed(link, rc);
    return value.type == TIERCE__RESP_INTEGER ? 0 : misunderstood(link, &value, "UNLINK");
}

/* ---- pages of names -------------------------------------------------------------------------- */

/* One command to the i-th server, and its answer; -ENOENT behind the last. */
static int ask_node(struct redis_link *link, size_t i, const char *const *arguments,
                    const size_t *bytes, size_t count, struct tierce__resp_value *value,
                    uint64_t deadline_ns)
{
    TIERCE_DASSERT(count > 0);
    struct tierce__resp *node = NULL;
    int rc = tierce__resp_link_begin(link->resp);
    if (rc == 0)
        rc = tierce__resp_link_node(link->resp, i, &node);
    if (rc == 0)
        rc = tierce__resp_append(node, arguments, bytes, count);
    if (rc == 0)
        rc = tierce__resp_flush(node, deadline_ns);
    return rc == 0 ? tierce__resp_read(node, value, deadline_ns) : rc;
}

/* [cursor, [name, ...]] */
static bool is_page(const struct tierce__resp_value *value)
{
    return value->type == TIERCE__RESP_ARRAY && value->count == 2 &&
           value->items[0].type == TIERCE__RESP_STRING && value->items[0].bytes < 24 &&
           value->items[1].type == TIERCE__RESP_ARRAY;
}

/* A cursor of a cluster is the node's number, from the left, and its own cursor: Redis counts the
 * buckets of its table there. */
#define NODE_SHIFT 56u
#define NODES_MAX  255u
#define NODE_BITS  ((uint64_t)NODES_MAX << NODE_SHIFT)

/* Names that move to another node meanwhile may be missed. */
static int redis_list(void *opened, const struct tierce_plugin_name *prefix, uint64_t *cursor,
                      tierce_plugin_each_fn *each, void *arg, uint64_t deadline_ns)
{
    struct redis_link *link = opened;
    char from[24], pattern[2 * KEY_BYTES_MAX + 1];
    struct tierce__resp_value value;
    uint64_t node = *cursor >> NODE_SHIFT, next = 0;
    size_t from_bytes = (size_t)snprintf(from, sizeof(from), "%" PRIu64, *cursor & ~NODE_BITS);
    size_t pattern_bytes = tierce__resp_pattern(pattern, prefix->text, prefix->bytes);
    int rc = ask_node(link, (size_t)node,
                      (const char *[]){"SCAN", from, "MATCH", pattern, "COUNT", PAGE_NAMES},
                      (size_t[]){4, from_bytes, 5, pattern_bytes, 5, sizeof(PAGE_NAMES) - 1}, 6,
                      &value, deadline_ns);
    if (rc == -ENOENT) { /* there are fewer nodes by now */
        *cursor = 0;
        return 0;
    }
    if (rc != 0)
        return failed(link, rc);
    if (!is_page(&value) || sscanf(value.items[0].text, "%" SCNu64, &next) != 1 ||
        (next & NODE_BITS) != 0)
        return misunderstood(link, &value, "SCAN");
    for (size_t i = 0; i < value.items[1].count; i++) {
        const struct tierce__resp_value *name = &value.items[1].items[i];
        if (name->type == TIERCE__RESP_STRING)
            each(arg, &(struct tierce_plugin_name){.text = name->text, .bytes = name->bytes});
    }
    bool has_more = next == 0 && node < NODES_MAX && tierce__resp_link_is_cluster(link->resp);
    *cursor = next != 0 ? node << NODE_SHIFT | next : has_more ? (node + 1) << NODE_SHIFT : 0;
    return 0;
}

/* Of a cluster every node must answer. */
static int redis_ping(void *opened, uint64_t deadline_ns)
{
    struct redis_link *link = opened;
    struct tierce__resp_value value;
    for (size_t node = 0;; node++) {
        int rc =
            ask_node(link, node, (const char *[]){"PING"}, (size_t[]){4}, 1, &value, deadline_ns);
        if (rc == -ENOENT && node > 0)
            return 0;
        if (rc != 0)
            return failed(link, rc);
        if (value.type != TIERCE__RESP_STRING)
            return misunderstood(link, &value, "PING");
    }
}

/* ---- links ----------------------------------------------------------------------------------- */

static int open_link(void **out, void *store)
{
    char why[TIERCE__RESP_WHY_BYTES];
    struct redis_link *link = *out;
    link->redis = store;
    return tierce__resp_link_create(&link->resp, &link->redis->uri, why);
}

static void close_link(void *opened)
{
    struct redis_link *link = opened;
    tierce__resp_link_close(link->resp);
    tierce__free(link);
}

static struct tierce__link_state state_of(const void *opened)
{
    const struct redis_link *link = opened;
    return (struct tierce__link_state){.connects = tierce__resp_link_connects(link->resp),
                                       .is_connected = tierce__resp_link_is_connected(link->resp),
                                       .repeats = tierce__resp_link_repeats(link->resp)};
}

static const char *why_of(void *opened)
{
    const struct redis_link *link = opened;
    return link->why;
}

static void close_redis(void *store)
{
    struct redis *redis = store;
    tierce__resp_uri_clear(&redis->uri);
    tierce__free(redis);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* The files of TLS are tried at once: each link has a client of its own, which reads them. */
static int check_client(const struct redis *redis, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__resp *resp = NULL;
    int rc = tierce__resp_create(&resp, &redis->uri.opts, why);
    if (rc == 0)
        tierce__resp_close(resp);
    return rc;
}

static int open_redis(void **store, struct tierce__client *own,
                      const struct tierce__connector_source *source,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct redis *redis = *store;
    static const char *const of_redis[] = {"ttl",
                                           "connections",
                                           "prefix",
                                           "db",
                                           "timeout_ms",
                                           "ca_file",
                                           "client_certificate",
                                           "client_key",
                                           "wait_replicas",
                                           "sentinel_user",
                                           "sentinel_password",
                                           "credentials_file",
                                           NULL};
    static const char *const of_a_node[] = {"ttl",        "connections", "prefix",
                                            "timeout_ms", "ca_file",     "client_certificate",
                                            "client_key", "tls",         "credentials_file",
                                            NULL};
    const struct tierce__url_number ttl = {"ttl", TIERCE__URL_MILLISECONDS, TTL_MS_MIN, TTL_MS_MAX};
    const char *prefix = tierce__url_param(source->url, "prefix");
    bool is_node = strcmp(source->url->scheme, NODE_SCHEME) == 0;
    int rc = tierce__url_check_params(source->url, is_node ? of_a_node : of_redis, why);
    if (rc == 0)
        rc = tierce__url_param_number(source->url, &redis->ttl_ms, &ttl, why);
    if (rc == 0 && prefix != NULL && strlen(prefix) > PREFIX_BYTES_MAX) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "URL: the prefix is longer than %u bytes",
                 PREFIX_BYTES_MAX);
        rc = TIERCE_E_CONFIG;
    }
    if (rc == 0)
        rc = tierce__resp_uri_parse(&redis->uri, source->text, why);
    redis->uri.opts.answer_bytes_max = ANSWER_BYTES_MAX;
    if (rc == 0 && prefix != NULL)
        snprintf(redis->prefix, sizeof(redis->prefix), "%s", prefix);
    own->prefix = redis->prefix;
    if (is_node)
        own->scheme = NODE_SCHEME;
    if (redis->uri.is_cluster) /* each answer comes from a node of its own */
        own->send_gets = NULL;
    return rc == 0 ? check_client(redis, why) : rc;
}

const struct tierce__client tierce__redis_client = {
    .table = {.caps = TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS |
                      TIERCE__CONNECTOR_EMPTY_MISSES,
              .close = close_redis,
              .link_open = open_link,
              .link_close = close_link,
              .get = redis_get,
              .put = redis_put,
              .remove = redis_remove,
              .list = redis_list,
              .ping = redis_ping,
              .why = why_of},
    .scheme = "redis",
    .store_bytes = sizeof(struct redis),
    .link_bytes = sizeof(struct redis_link),
    .links = LINKS,
    .names_max = EXISTS_AT_ONCE,
    .open = open_redis,
    .find = redis_find,
    .send_gets = redis_send_gets,
    .read_get = redis_read_get,
    .state = state_of,
};
