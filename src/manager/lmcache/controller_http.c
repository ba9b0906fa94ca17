/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/lmcache/controller_http.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/json/json_value.h"
#include "base/json/json_write.h"
#include "manager/api/admin_http.h"
#include "manager/lmcache/controller.h"
#include "manager/lmcache/controller_order.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define TOKENS_MAX     (4u << 20)
#define LOOP_BYTES_MAX 65536u /* larger requests are answered on a worker */

/* ---- answers --------------------------------------------------------------------------------- */

void tierce__controller_http_fail(struct tierce__call *call, uint32_t status, const char *why)
{
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_text(&json, "detail", why);
    tierce__json_write_close(&json, '}');
    tierce__call_reply(
        call, &(struct tierce__reply){.status = status, .body = line.text, .bytes = line.bytes});
    tierce__line_clear(&line);
}

void tierce__controller_http_reply(struct tierce__call *call, struct tierce__line *line)
{
    if (line->failed)
        tierce__line_clear(line);
    tierce__call_reply_heap(call, NULL, line->text, line->bytes);
}

void tierce__controller_http_event(char out[TIERCE__CONTROLLER_EVENT_BYTES], const char *kind)
{
    uint64_t chance = tierce__now_ns();
    (void)!getrandom(&chance, sizeof(chance), GRND_NONBLOCK); /* a name for logs, no secret */
    snprintf(out, TIERCE__CONTROLLER_EVENT_BYTES, "%s%016" PRIx64, kind, chance);
}

/* ---- requests -------------------------------------------------------------------------------- */

bool tierce__controller_http_admit(struct tierce__manager *manager, struct tierce__call *call,
                                   const struct tierce__caller *caller)
{
    const char *group = manager->lmcache.group;
    char why[256];
    if (!tierce__grant_has_group(caller->grant, group)) {
        snprintf(why, sizeof(why), "the scope of the account does not hold the group %.128s",
                 group);
        tierce__controller_http_fail(call, 403, why);
        return false;
    }
    if (!tierce__manager_leads(manager)) {
        tierce__controller_http_fail(call, 503, "this manager does not lead: ask the leader");
        return false;
    }
    return true;
}

bool tierce__controller_http_body(struct tierce__call *call, struct tierce__json_doc *doc)
{
    const struct tierce__call_info *info = tierce__call_info(call);
    const char *fault = "no memory";
    char why[200];
    if (info->body_bytes > LOOP_BYTES_MAX && !info->is_deferred) {
        tierce__call_defer(call);
        return false;
    }
    int rc = tierce__json_parse(doc, info->body, info->body_bytes, &fault);
    if (rc == 0 && tierce__json_value_kind(doc->value) == '{')
        return true;
    snprintf(why, sizeof(why), "the body is invalid: %.100s; accepted is one JSON object",
             rc < 0 ? fault : "it is not an object");
    tierce__controller_http_fail(call, rc == -ENOMEM ? 500 : 422, why);
    tierce__json_doc_clear(doc);
    return false;
}

bool tierce__controller_http_text(struct tierce__call *call, char *out, size_t size,
                                  struct tierce__text object, const char *path)
{
    char why[200];
    if (tierce__json_get_text(out, size, object, path) && out[0] != '\0')
        return true;
    snprintf(why, sizeof(why), "%s is missing or invalid; accepted is a text of 1 to %zu bytes",
             path, size - 1);
    tierce__controller_http_fail(call, 422, why);
    return false;
}

int tierce__controller_http_tokens(uint32_t **out, size_t *count, struct tierce__text value)
{
    size_t room = tierce__json_count(value), used = 0;
    struct tierce__json json;
    uint64_t token;
    if (tierce__json_value_kind(value) != '[' || room > TOKENS_MAX)
        return TIERCE_E_ARGUMENT;
    uint32_t *tokens = tierce__calloc(room + 1, sizeof(*tokens));
    if (tokens == NULL)
        return -ENOMEM;
    tierce__json_start(&json, value.at, value.length);
    bool is_good = tierce__json_array(&json);
    while (is_good && used < room && tierce__json_element(&json)) {
        is_good = tierce__json_u64(&json, &token) && token <= UINT32_MAX;
        tokens[used++] = (uint32_t)token;
    }
    if (!is_good) {
        tierce__free(tokens);
        return TIERCE_E_ARGUMENT;
    }
    *out = tokens;
    *count = used;
    return 0;
}

/* ---- workers --------------------------------------------------------------------------------- */

/* Seconds since 1970 of a time of clock.h. */
static double unix_time(uint64_t time_ns)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9 -
           (double)(tierce__now_ns() - time_ns) / 1e9;
}

static void put_worker(struct tierce__json_write *json,
                       const struct tierce__controller_about *about, bool has_keys)
{
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_text(json, "instance_id", about->instance);
    tierce__json_write_count(json, "worker_id", about->worker);
    tierce__json_write_text(json, "ip", about->host);
    tierce__json_write_count(json, "port", about->port);
    tierce__json_write_text(json, "peer_init_url", about->peer[0] != '\0' ? about->peer : NULL);
    tierce__json_write_name(json, "registration_time");
    tierce__line_put_format(json->line, "%.6f", unix_time(about->registered_ns));
    tierce__json_write_name(json, "last_heartbeat_time");
    tierce__line_put_format(json->line, "%.6f", unix_time(about->heard_ns));
    if (has_keys)
        tierce__json_write_count(json, "key_count", about->keys);
    tierce__json_write_close(json, '}');
}

/* The value of a parameter of the query: decoded, or "" if it is missing. False: it is too long or
 * its encoding is invalid. */
static bool query_text(char *out, size_t size, const char *query, const char *name)
{
    size_t length = strlen(name), used = 0;
    out[0] = '\0';
    for (const char *at = query; *at != '\0'; at += strcspn(at, "&"), at += *at == '&') {
        if (strncmp(at, name, length) != 0 || at[length] != '=')
            continue;
        for (at += length + 1; *at != '\0' && *at != '&'; at++) {
            char hex[3] = {0};
            if (used + 1 >= size)
                return false;
            if (*at == '%') {
                memcpy(hex, at + 1, strnlen(at + 1, 2));
                if (strlen(hex) != 2 || strspn(hex, "0123456789abcdefABCDEF") != 2)
                    return false;
                out[used++] = (char)strtoul(hex, NULL, 16);
                at += 2;
            } else {
                out[used++] = *at == '+' ? ' ' : *at;
            }
        }
        out[used] = '\0';
        return strlen(out) == used;
    }
    return true;
}

struct asked {
    char instance[TIERCE__CONTROLLER_INSTANCE_BYTES]; /* "": all */
    bool has_worker;
    uint32_t worker;
};

static bool read_asked(struct tierce__call *call, struct asked *asked)
{
    const char *query = tierce__call_info(call)->query;
    char worker[16], *end;
    if (!query_text(asked->instance, sizeof(asked->instance), query, "instance_id")) {
        tierce__controller_http_fail(call, 422,
                                     "instance_id is invalid; accepted are at most 75 bytes");
        return false;
    }
    asked->has_worker = strstr(query, "worker_id=") != NULL;
    unsigned long number = 0;
    if (asked->has_worker) {
        bool is_short = query_text(worker, sizeof(worker), query, "worker_id");
        if (!is_short)
            worker[0] = '\0';
        number = strtoul(worker, &end, 10);
        if (worker[0] < '0' || worker[0] > '9' || *end != '\0' ||
            number > TIERCE__CONTROLLER_WORKER_MAX) {
            tierce__controller_http_fail(
                call, 422, "worker_id is invalid; accepted is a whole number from 0 to 65535");
            return false;
        }
    }
    asked->worker = (uint32_t)number;
    return true;
}

static void serve_workers(struct tierce__manager *manager, struct tierce__call *call,
                          const struct tierce__caller *caller)
{
    struct asked asked;
    struct tierce__controller_about *list;
    size_t count, shown = 0;
    if (!tierce__controller_http_admit(manager, call, caller) || !read_asked(call, &asked))
        return;
    if (tierce__controller_list(manager->lmcache.controller,
                                asked.instance[0] != '\0' ? asked.instance : NULL, &list,
                                &count) < 0) {
        tierce__controller_http_fail(call, 500, "no memory");
        return;
    }
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    bool is_one = asked.instance[0] != '\0' && asked.has_worker;
    if (!is_one) {
        tierce__json_write_open(&json, NULL, '{');
        tierce__json_write_open(&json, "workers", '[');
    }
    for (size_t i = 0; i < count; i++) {
        if (is_one && list[i].worker != asked.worker)
            continue;
        put_worker(&json, &list[i], true);
        shown++;
    }
    if (!is_one) {
        tierce__json_write_close(&json, ']');
        tierce__json_write_count(&json, "total_count", shown);
        tierce__json_write_close(&json, '}');
    }
    tierce__free(list);
    if (shown > 0 || asked.instance[0] == '\0') {
        tierce__controller_http_reply(call, &line);
        return;
    }
    tierce__line_clear(&line);
    tierce__controller_http_fail(call, 404, "no such worker has registered");
}

static int compare_instances(const void *a, const void *b)
{
    return strcmp(((const struct tierce__controller_about *)a)->instance,
                  ((const struct tierce__controller_about *)b)->instance);
}

/* Sorts the list. */
static void put_stats(struct tierce__json_write *json, struct tierce__controller_about *list,
                      size_t count)
{
    uint64_t keys = 0, instances = 0;
    if (count > 0)
        qsort(list, count, sizeof(*list), compare_instances);
    tierce__json_write_open(json, "instances", '[');
    for (size_t i = 0, next; i < count; i = next) {
        uint64_t own = 0;
        for (next = i; next < count && compare_instances(&list[i], &list[next]) == 0; next++)
            own += list[next].keys;
        instances++;
        keys += own;
        tierce__json_write_open(json, NULL, '{');
        tierce__json_write_text(json, "instance_id", list[i].instance);
        tierce__json_write_count(json, "key_count", own);
        tierce__json_write_count(json, "worker_count", next - i);
        tierce__json_write_close(json, '}');
    }
    tierce__json_write_close(json, ']');
    tierce__json_write_count(json, "total_key_count", keys);
    tierce__json_write_count(json, "total_instance_count", instances);
    tierce__json_write_count(json, "total_worker_count", count);
}

static void serve_key_stats(struct tierce__manager *manager, struct tierce__call *call,
                            const struct tierce__caller *caller)
{
    struct tierce__controller_about *list;
    size_t count;
    if (!tierce__controller_http_admit(manager, call, caller))
        return;
    if (tierce__controller_list(manager->lmcache.controller, NULL, &list, &count) < 0) {
        tierce__controller_http_fail(call, 500, "no memory");
        return;
    }
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    tierce__json_write_open(&json, NULL, '{');
    put_stats(&json, list, count);
    tierce__json_write_close(&json, '}');
    tierce__free(list);
    tierce__controller_http_reply(call, &line);
}

/* Numbers of workers, as bits. */
struct numbers {
    bool has_all;
    uint64_t bits[(TIERCE__CONTROLLER_WORKER_MAX + 64) / 64];
};

/* A missing or empty list has all. */
static void read_numbers(struct numbers *out, struct tierce__text list)
{
    struct tierce__json each = tierce__json_each(list);
    struct tierce__text name, value;
    *out = (struct numbers){.has_all = tierce__json_count(list) == 0};
    while (tierce__json_next(&each, &name, &value)) {
        int64_t number = tierce__json_get_int(value, "", -1);
        if (number >= 0 && number <= TIERCE__CONTROLLER_WORKER_MAX)
            out->bits[number / 64] |= 1ULL << (number % 64);
    }
}

static bool has_number(const struct numbers *numbers, uint32_t number)
{
    TIERCE_DASSERT(number <= TIERCE__CONTROLLER_WORKER_MAX);
    return numbers->has_all || (numbers->bits[number / 64] >> (number % 64) & 1) != 0;
}

static void serve_worker_info(struct tierce__manager *manager, struct tierce__call *call,
                              const struct tierce__caller *caller)
{
    struct tierce__json_doc doc = {0};
    struct tierce__controller_about *list = NULL;
    size_t count = 0;
    char instance[TIERCE__CONTROLLER_INSTANCE_BYTES], event[TIERCE__CONTROLLER_EVENT_BYTES];
    struct numbers numbers;
    if (!tierce__controller_http_admit(manager, call, caller) ||
        !tierce__controller_http_body(call, &doc))
        return;
    if (!tierce__controller_http_text(call, instance, sizeof(instance), doc.value, "instance_id")) {
        tierce__json_doc_clear(&doc);
        return;
    }
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    bool is_all = strcmp(instance, "all") == 0;
    line.failed = tierce__controller_list(manager->lmcache.controller, is_all ? NULL : instance,
                                          &list, &count) < 0;
    tierce__controller_http_event(event, "QueryWorkerInfo");
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_text(&json, "event_id", event);
    tierce__json_write_open(&json, "worker_infos", '[');
    read_numbers(&numbers, tierce__json_get(doc.value, "worker_ids"));
    for (size_t i = 0; i < count; i++) {
        if (has_number(&numbers, list[i].worker))
            put_worker(&json, &list[i], false);
    }
    tierce__json_write_close(&json, ']');
    tierce__json_write_close(&json, '}');
    tierce__free(list);
    tierce__json_doc_clear(&doc);
    tierce__controller_http_reply(call, &line);
}

static void serve_instance(struct tierce__manager *manager, struct tierce__call *call,
                           const struct tierce__caller *caller)
{
    struct tierce__json_doc doc = {0};
    struct tierce__controller_about *list = NULL;
    size_t count = 0, i = 0;
    char ip[TIERCE__CONTROLLER_HOST_BYTES], event[TIERCE__CONTROLLER_EVENT_BYTES], why[160];
    if (!tierce__controller_http_admit(manager, call, caller) ||
        !tierce__controller_http_body(call, &doc))
        return;
    bool is_good = tierce__controller_http_text(call, ip, sizeof(ip), doc.value, "ip");
    tierce__json_doc_clear(&doc);
    if (!is_good)
        return;
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    line.failed = tierce__controller_list(manager->lmcache.controller, NULL, &list, &count) < 0;
    while (i < count && strcmp(list[i].host, ip) != 0)
        i++;
    if (i == count && !line.failed) {
        snprintf(why, sizeof(why), "no worker has registered with the ip %.64s", ip);
        tierce__controller_http_fail(call, 404, why);
    } else {
        tierce__controller_http_event(event, "QueryInst");
        tierce__json_write_open(&json, NULL, '{');
        tierce__json_write_text(&json, "event_id", event);
        tierce__json_write_text(&json, "res", i < count ? list[i].instance : "");
        tierce__json_write_close(&json, '}');
        tierce__controller_http_reply(call, &line);
    }
    tierce__free(list);
}

/* ---- lookup ---------------------------------------------------------------------------------- */

struct layout {
    struct tierce__json_write json;
    uint32_t chunk_tokens;
    size_t tokens; /* of the prompt */
    unsigned count;
    char instances[TIERCE__DIRECTORY_PREFIXES_MAX][TIERCE__CONTROLLER_INSTANCE_BYTES];
};

/* Each instance once: the longest of its prefixes comes first. */
static void put_layout(void *arg, const struct tierce__controller_found *found)
{
    struct layout *layout = arg;
    uint64_t tokens = (uint64_t)found->keys * layout->chunk_tokens;
    for (unsigned i = 0; i < layout->count; i++) {
        if (strcmp(layout->instances[i], found->instance) == 0)
            return;
    }
    TIERCE_ASSERT(layout->count < TIERCE__DIRECTORY_PREFIXES_MAX);
    char *instance = layout->instances[layout->count++];
    snprintf(instance, TIERCE__CONTROLLER_INSTANCE_BYTES, "%s", found->instance);
    tierce__json_write_open(&layout->json, instance, '[');
    tierce__json_write_text(&layout->json, NULL, found->location);
    tierce__json_write_count(&layout->json, NULL,
                             tokens < layout->tokens ? tokens : layout->tokens);
    tierce__json_write_close(&layout->json, ']');
}

/* Appends the layout. Errors: TIERCE_E_ARGUMENT, -ENOMEM. */
static int look_up(const struct tierce__lmcache *lmcache, struct layout *layout,
                   struct tierce__text value)
{
    uint32_t *tokens = NULL;
    struct tierce__lmcache_int *hashes = NULL;
    int rc = tierce__controller_http_tokens(&tokens, &layout->tokens, value);
    size_t chunks = rc == 0 ? tierce__lmcache_chunk_count(&lmcache->hash, layout->tokens) : 0;
    if (rc == 0) {
        hashes = tierce__calloc(chunks + 1, sizeof(*hashes));
        rc = hashes != NULL ? 0 : -ENOMEM;
    }
    if (rc == 0) {
        tierce__lmcache_hash_chunks(hashes, &lmcache->hash, (const int32_t *)tokens,
                                    layout->tokens);
        rc = tierce__controller_find(lmcache->controller, hashes, chunks, put_layout, layout);
    }
    tierce__free(hashes);
    tierce__free(tokens);
    return rc;
}

static void serve_lookup(struct tierce__manager *manager, struct tierce__call *call,
                         const struct tierce__caller *caller)
{
    const struct tierce__lmcache *lmcache = &manager->lmcache;
    struct tierce__json_doc doc = {0};
    struct tierce__line line = {0};
    char event[TIERCE__CONTROLLER_EVENT_BYTES];
    if (!tierce__controller_http_admit(manager, call, caller))
        return;
    if (!lmcache->has_hash) {
        tierce__controller_http_fail(
            call, 501,
            "a lookup by tokens requires the hash function of the workers: set lmcache.hash, "
            "lmcache.chunk_size and lmcache.none_hash as LMCache and vLLM have them");
        return;
    }
    if (!tierce__controller_http_body(call, &doc))
        return;
    struct layout *layout = tierce__calloc(1, sizeof(*layout));
    int rc = layout != NULL ? 0 : -ENOMEM;
    if (rc == 0) {
        layout->json = (struct tierce__json_write){.line = &line};
        layout->chunk_tokens = lmcache->hash.chunk_tokens;
        tierce__controller_http_event(event, "Lookup");
        tierce__json_write_open(&layout->json, NULL, '{');
        tierce__json_write_text(&layout->json, "event_id", event);
        tierce__json_write_open(&layout->json, "layout_info", '{');
        rc = look_up(lmcache, layout, tierce__json_get(doc.value, "tokens"));
        tierce__json_write_close(&layout->json, '}');
        tierce__json_write_close(&layout->json, '}');
    }
    tierce__json_doc_clear(&doc);
    tierce__free(layout);
    if (rc == 0) {
        tierce__controller_http_reply(call, &line);
        return;
    }
    tierce__line_clear(&line);
    if (rc == TIERCE_E_ARGUMENT)
        tierce__controller_http_fail(call, 422, TIERCE__CONTROLLER_TOKENS_WHY);
    else
        tierce__controller_http_fail(call, 500, "no memory");
}

/* ---- routes ---------------------------------------------------------------------------------- */

static void serve_check_finish(struct tierce__manager *manager, struct tierce__call *call,
                               const struct tierce__caller *caller)
{
    if (tierce__controller_http_admit(manager, call, caller))
        tierce__controller_http_fail(
            call, 501, "commands are answered when they have ended, so there is nothing to ask");
}

size_t tierce__controller_http_routes(struct tierce__manager *manager, struct tierce__route *out)
{
    static const struct tierce__http_route routes[] = {
        {"/lookup", "POST", serve_lookup},
        {"/query_instance", "POST", serve_instance},
        {"/query_worker_info", "POST", serve_worker_info},
        {"/check_finish", "POST", serve_check_finish},
        {"/controller/workers", "GET", serve_workers},
        {"/controller/key-stats", "GET", serve_key_stats},
    };
    const size_t count = sizeof(routes) / sizeof(*routes);
    _Static_assert(sizeof(routes) / sizeof(*routes) + TIERCE__CONTROLLER_ORDERS <=
                       TIERCE__LMCACHE_ROUTES_MAX,
                   "each route has a target");
    for (size_t i = 0; i < count; i++)
        tierce__http_route_make(manager, &manager->lmcache.targets[i], &routes[i], &out[i]);
    return count +
           tierce__controller_order_routes(manager, manager->lmcache.targets + count, out + count);
}
