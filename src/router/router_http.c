/* SPDX-License-Identifier: Apache-2.0 */
#include "router/router_private.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json/json_write.h"
#include "base/text/prometheus.h"
#include "router/router_answer.h"
#include "router/router_body.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The HTTP API: docs/inside/format/router-index.md. */

#define DUMP_BLOCKS_MAX 16384u
/* A query up to these sizes is answered on the connection's own thread: its work, about 0.1 ms, is
 * less than two hand-overs between threads cost on a busy machine. Short numbers are many. */
#define LOOP_BYTES_MAX  (64u << 10)
#define LOOP_TOKENS_MAX 16384u
#define LOOP_HASHES_MAX 4096u

/* ---- answers --------------------------------------------------------------------------------- */

/* An answer has the type of its request. */
static bool is_msgpack(struct tierce__call *call)
{
    return tierce__router_body_is_msgpack(tierce__call_header(call, "content-type"));
}

static void reply_line(struct tierce__call *call, const char *type, struct tierce__line *line)
{
    if (line->failed)
        tierce__line_clear(line);
    tierce__call_reply_heap(call, type, line->text, line->bytes);
}

static void reply(struct tierce__call *call, uint32_t status, struct tierce__router_answer *answer)
{
    struct tierce__line *line = tierce__router_answer_end(answer);
    const char *type = answer->is_msgpack ? TIERCE__ROUTER_MSGPACK : NULL;
    if (status == 200) {
        reply_line(call, type, line);
        return;
    }
    if (line->failed) /* the status tells enough */
        tierce__line_clear(line);
    tierce__call_reply(
        call, &(struct tierce__reply){
                  .status = status, .type = type, .body = line->text, .bytes = line->bytes});
    tierce__line_clear(line);
}

static void fail(struct tierce__call *call, uint32_t status, const char *why)
{
    struct tierce__router_answer answer;
    tierce__router_answer_begin(&answer, is_msgpack(call));
    tierce__router_answer_text(&answer, "error", why);
    reply(call, status, &answer);
}

static void reply_status(struct tierce__call *call, uint32_t status, const char *text)
{
    struct tierce__router_answer answer;
    tierce__router_answer_begin(&answer, is_msgpack(call));
    tierce__router_answer_text(&answer, "status", text);
    reply(call, status, &answer);
}

/* ---- access ---------------------------------------------------------------------------------- */

/* Who asks: a tenant, or with an empty one any that the request names. */
struct caller {
    char tenant[TIERCE__SOURCE_NAME_BYTES];
    bool is_free; /* to name a tenant */
};

/* False: the call was answered. */
static bool admit(struct tierce__router *router, struct tierce__call *call, uint32_t right,
                  struct caller *who)
{
    const char *shown = tierce__call_header(call, "authorization");
    uint32_t rights = 0;
    *who = (struct caller){.is_free = true};
    if (router->config->token_file[0] == '\0')
        return true;
    tierce__lock_take(&router->lock);
    const struct tierce__token *token = NULL;
    if (shown != NULL && strncasecmp(shown, "Bearer ", 7) == 0)
        token = tierce__tokens_find(router->tokens, shown + 7, strlen(shown + 7));
    if (token != NULL) {
        rights = token->rights;
        snprintf(who->tenant, sizeof(who->tenant), "%s", token->tenant);
        who->is_free = token->tenant[0] == '\0';
    }
    tierce__lock_drop(&router->lock);
    if (rights == 0)
        tierce__call_reply_unknown(call, "Bearer", "a token of auth.token_file is required\n");
    else if ((rights & right) == 0)
        fail(call, 403, "the token may read, and this call requires admin");
    return (rights & right) != 0;
}

/* "default" and "" are the same tenant. */
static bool name_tenant(struct tierce__call *call, struct tierce__text body, struct caller *who)
{
    char named[TIERCE__SOURCE_NAME_BYTES] = "";
    if (tierce__json_get(body, "tenant_id").length > 0 &&
        tierce__json_value_kind(tierce__json_get(body, "tenant_id")) != 'n' &&
        !tierce__json_get_text(named, sizeof(named), body, "tenant_id")) {
        fail(call, 400, "tenant_id must be a text of at most 95 bytes");
        return false;
    }
    if (strcmp(named, "default") == 0)
        named[0] = '\0';
    if (!who->is_free && named[0] != '\0' && strcmp(named, who->tenant) != 0) {
        fail(call, 403, "the token belongs to another tenant");
        return false;
    }
    if (who->is_free)
        memcpy(who->tenant, named, sizeof(named));
    return true;
}

/* The body and the tenant. False: the call was answered. */
static bool open_body(struct tierce__router *router, struct tierce__call *call, uint32_t right,
                      struct caller *who, struct tierce__router_body *body)
{
    const struct tierce__call_info *info = tierce__call_info(call);
    const char *why = NULL;
    char text[200];
    if (!admit(router, call, right, who))
        return false;
    bool packed = is_msgpack(call);
    int rc = tierce__router_body_read(body, info->body != NULL ? info->body : "", info->body_bytes,
                                      packed, &why);
    if (rc == 0 && name_tenant(call, body->rest.value, who))
        return true;
    if (rc == 0) {
        tierce__router_body_close(body);
    } else {
        if (rc == TIERCE_E_FORMAT)
            snprintf(text, sizeof(text), "the body is no %s: %.150s",
                     packed ? "MessagePack map" : "JSON object", why);
        else
            snprintf(text, sizeof(text), "%s", rc == -ENOMEM ? "no memory" : why);
        fail(call, rc == -ENOMEM ? 503 : 400, text);
    }
    return false;
}

/* A text, or a number as text. False: it is neither. */
static bool get_name(char *out, size_t size, struct tierce__text object, const char *path)
{
    struct tierce__text value = tierce__json_get(object, path);
    if (!tierce__json_is_integer(value) || value.length >= size)
        return tierce__json_get_text(out, size, object, path);
    snprintf(out, size, "%.*s", (int)value.length, value.at);
    return true;
}

static bool has(struct tierce__text object, const char *path)
{
    struct tierce__text value = tierce__json_get(object, path);
    return value.length > 0 && tierce__json_value_kind(value) != 'n';
}

/* An empty text is no salt. */
static bool has_salt(struct tierce__text object, const char *path)
{
    struct tierce__text value = tierce__json_get(object, path);
    bool is_empty = tierce__json_value_kind(value) == '"' && value.length == 2;
    return has(object, path) && !is_empty;
}

/* A number of 32 bits, if it is there. False: it is none. */
static bool get_u32(uint32_t *out, struct tierce__text object, const char *path)
{
    if (!has(object, path))
        return true;
    int64_t number = tierce__json_get_int(object, path, -1);
    *out = (uint32_t)number;
    return number >= 0 && number <= UINT32_MAX;
}

/* By the names of Dynamo and of Mooncake. */
static const char *model_path(struct tierce__text object)
{
    return has(object, "model_name") ? "model_name" : has(object, "model") ? "model" : "modelname";
}

/* ---- publishers ------------------------------------------------------------------------------ */

static bool is_http(const char *url)
{
    return strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0;
}

static bool is_zmq(const char *endpoint)
{
    return strncmp(endpoint, "tcp://", 6) == 0 || strncmp(endpoint, "ipc://", 6) == 0;
}

bool tierce__router_read_source(struct tierce__source_opts *out, struct tierce__text object,
                                char why[256])
{
    uint8_t key[TIERCE__ZMQ_CURVE_KEY_BYTES];
    *out = (struct tierce__source_opts){0};
    const char *fault = NULL;
    if (!get_name(out->instance, sizeof(out->instance), object, "instance_id") ||
        out->instance[0] == '\0')
        fault = "instance_id must be a number or a text of 1 to 95 bytes";
    else if (!tierce__json_get_text(out->model, sizeof(out->model), object, model_path(object)) ||
             out->model[0] == '\0')
        fault = "model_name must be a text of 1 to 95 bytes";
    else if (!tierce__json_get_text(out->endpoint, sizeof(out->endpoint), object, "endpoint") ||
             !is_zmq(out->endpoint))
        fault = "endpoint must be tcp://HOST:PORT or ipc://PATH, of at most 255 bytes";
    else if (has(object, "replay_endpoint") &&
             (!tierce__json_get_text(out->replay, sizeof(out->replay), object, "replay_endpoint") ||
              !is_zmq(out->replay)))
        fault = "replay_endpoint must be tcp://HOST:PORT or ipc://PATH, of at most 255 bytes";
    else if (has(object, "snapshot_url") &&
             (!tierce__json_get_text(out->snapshot, sizeof(out->snapshot), object,
                                     "snapshot_url") ||
              !is_http(out->snapshot)))
        fault = "snapshot_url must be an http:// or https:// URL of at most 255 bytes";
    else if (has(object, "server_key") &&
             (!tierce__json_get_text(out->server_key, sizeof(out->server_key), object,
                                     "server_key") ||
              !tierce__zmq_curve_decode(key, out->server_key)))
        fault = "server_key must be a public key of CURVE, 40 characters of Z85";
    else if (!get_u32(&out->dp_rank, object, "dp_rank") ||
             !get_u32(&out->block_size, object, "block_size"))
        fault = "dp_rank and block_size must be numbers from 0 on";
    else if (has_salt(object, "additionalsalt") || has_salt(object, "additional_salt"))
        fault = "a salt is not supported: blocks with a salt are found by their hashes only";
    if (fault == NULL && has(object, "tenant_id") &&
        !tierce__json_get_text(out->tenant, sizeof(out->tenant), object, "tenant_id"))
        fault = "tenant_id must be a text of at most 95 bytes";
    if (strcmp(out->tenant, "default") == 0)
        out->tenant[0] = '\0';
    if (fault != NULL)
        snprintf(why, 256, "%s", fault);
    return fault == NULL;
}

/* MessagePack: as Mooncake's clients require it. */
static void reply_registered(struct tierce__call *call, const char *instance)
{
    struct tierce__router_answer answer;
    if (!is_msgpack(call)) {
        reply_status(call, 201, "ok");
        return;
    }
    tierce__router_answer_begin(&answer, true);
    tierce__router_answer_text(&answer, "status", "registered successfully");
    tierce__router_answer_text(&answer, "instance_id", instance);
    reply(call, 200, &answer);
}

static void serve_register(void *arg, struct tierce__call *call)
{
    struct tierce__router *router = arg;
    struct tierce__source_opts opts;
    struct tierce__router_body body;
    struct caller who;
    char why[256];
    if (!tierce__call_info(call)->is_deferred) { /* sockets, and room in the table */
        tierce__call_defer(call);
        return;
    }
    if (!open_body(router, call, TIERCE__ROUTER_ADMIN, &who, &body))
        return;
    int rc = -EINVAL;
    if (tierce__router_read_source(&opts, body.rest.value, why)) {
        memcpy(opts.tenant, who.tenant, sizeof(opts.tenant));
        opts.is_trusted = router->config->token_file[0] != '\0';
        rc = tierce__sources_add(router->sources, &opts, why);
    }
    tierce__router_body_close(&body);
    if (rc == 0)
        reply_registered(call, opts.instance);
    else
        fail(call, rc == TIERCE_E_LIMIT || rc == -ENOMEM ? 503 : 400, why);
}

static void serve_unregister(void *arg, struct tierce__call *call)
{
    struct tierce__router *router = arg;
    char instance[TIERCE__SOURCE_NAME_BYTES], model[TIERCE__SOURCE_NAME_BYTES];
    struct tierce__router_body body;
    struct caller who;
    uint32_t rank = 0, removed = 0;
    const struct tierce__call_info *info = tierce__call_info(call);
    if (info->body_bytes > LOOP_BYTES_MAX && !info->is_deferred) {
        tierce__call_defer(call);
        return;
    }
    if (!open_body(router, call, TIERCE__ROUTER_ADMIN, &who, &body))
        return;
    bool has_model = has(body.rest.value, model_path(body.rest.value)),
         has_rank = has(body.rest.value, "dp_rank");
    bool is_good = get_name(instance, sizeof(instance), body.rest.value, "instance_id") &&
                   get_u32(&rank, body.rest.value, "dp_rank") &&
                   (!has_model || tierce__json_get_text(model, sizeof(model), body.rest.value,
                                                        model_path(body.rest.value)));
    if (is_good)
        removed = tierce__sources_remove(router->sources, who.tenant, instance,
                                         has_model ? model : NULL, has_rank ? &rank : NULL);
    tierce__router_body_close(&body);
    if (!is_good)
        fail(call, 400, "instance_id, and optionally model_name and dp_rank, are expected");
    else if (removed == 0)
        fail(call, 404, "there is no such publisher");
    else
        reply_status(call, 200, is_msgpack(call) ? "unregistered successfully" : "ok");
}

/* ---- queries --------------------------------------------------------------------------------- */

/* The form of an answer to a query. */
enum form {
    FORM_INDEX,     /* of Dynamo's indexer */
    FORM_FIRST,     /* of the first versions of Mooncake's conductor: JSON with "model" */
    FORM_CONDUCTOR, /* of its later ones: MessagePack */
};

static void put_media(struct tierce__router_answer *out, uint64_t gpu, uint64_t cpu, uint64_t disk)
{
    tierce__router_answer_count(out, "gpu", gpu);
    tierce__router_answer_count(out, "cpu", cpu);
    tierce__router_answer_count(out, "disk", disk);
}

static void put_lengths(struct tierce__router_answer *out, const struct tierce__query_rank *best,
                        enum form form)
{
    tierce__router_answer_count(out, "longest_matched", best->longest);
    if (form == FORM_FIRST) {
        tierce__router_answer_count(out, "GPU", best->gpu);
        tierce__router_answer_count(out, "CPU", best->memory);
        tierce__router_answer_count(out, "DISK", best->longest);
    } else {
        put_media(out, best->gpu, best->memory, best->longest);
    }
    tierce__router_answer_open(out, "alone");
    put_media(out, best->gpu, best->cpu, best->disk);
    tierce__router_answer_close(out);
}

static void raise(uint64_t *to, uint64_t by)
{
    *to = by > *to ? by : *to;
}

/* The longest of an instance's ranks, of each kind. False: an earlier rank stands for it. */
static bool best_of(const struct tierce__query_answer *answer, uint32_t at,
                    struct tierce__query_rank *best)
{
    *best = answer->ranks[at];
    for (uint32_t i = 0; i < answer->count; i++) {
        const struct tierce__query_rank *rank = &answer->ranks[i];
        if (strcmp(rank->instance, best->instance) != 0)
            continue;
        if (i < at)
            return false;
        raise(&best->longest, rank->longest);
        raise(&best->gpu, rank->gpu);
        raise(&best->cpu, rank->cpu);
        raise(&best->disk, rank->disk);
        raise(&best->memory, rank->memory);
        best->is_exact &= rank->is_exact;
    }
    return true;
}

/* {rank: tokens in GPU memory}; or {rank: {medium: tokens}}. */
static void put_ranks(struct tierce__router_answer *out, const char *name,
                      const struct tierce__query_answer *answer, const char *instance,
                      bool has_media)
{
    char number[16];
    tierce__router_answer_open(out, name);
    for (uint32_t i = 0; i < answer->count; i++) {
        const struct tierce__query_rank *rank = &answer->ranks[i];
        if (strcmp(rank->instance, instance) != 0)
            continue;
        snprintf(number, sizeof(number), "%u", rank->dp_rank);
        if (!has_media) {
            tierce__router_answer_count(out, number, rank->gpu);
            continue;
        }
        tierce__router_answer_open(out, number);
        put_media(out, rank->gpu, rank->memory, rank->longest);
        tierce__router_answer_close(out);
    }
    tierce__router_answer_close(out);
}

static void put_instances(struct tierce__router_answer *out, const char *name,
                          const struct tierce__query_answer *answer, enum form form)
{
    struct tierce__query_rank best;
    tierce__router_answer_open(out, name);
    for (uint32_t i = 0; i < answer->count; i++) {
        if (!best_of(answer, i, &best))
            continue;
        tierce__router_answer_open(out, best.instance);
        put_lengths(out, &best, form);
        put_ranks(out, form == FORM_FIRST ? "DP" : "dp", answer, best.instance, false);
        if (form == FORM_CONDUCTOR)
            put_ranks(out, "rank_matches", answer, best.instance, true);
        tierce__router_answer_bool(out, "exact", best.is_exact);
        tierce__router_answer_close(out);
    }
    tierce__router_answer_close(out);
}

static void put_scores(struct tierce__router_answer *out, const struct tierce__query_answer *answer)
{
    struct tierce__query_rank best;
    tierce__router_answer_open(out, "scores");
    for (uint32_t i = 0; i < answer->count; i++) {
        if (best_of(answer, i, &best))
            put_ranks(out, best.instance, answer, best.instance, false);
    }
    tierce__router_answer_close(out);
}

static void reply_answer(struct tierce__call *call, const struct tierce__query_answer *answer,
                         const char *tenant, enum form form)
{
    struct tierce__router_answer out;
    tierce__router_answer_begin(&out, form == FORM_CONDUCTOR);
    if (form == FORM_INDEX)
        put_scores(&out, answer);
    if (form == FORM_FIRST)
        put_instances(&out, tenant[0] != '\0' ? tenant : "default", answer, form);
    else
        put_instances(&out, "instances", answer, form);
    reply(call, 200, &out);
}

/* Runs a query over `numbers`, which are tokens or hashes. */
static void run_query(struct tierce__router *router, struct tierce__call *call,
                      struct tierce__query *query, uint64_t *numbers, enum form form)
{
    struct tierce__query_answer answer;
    uint64_t start_ns = tierce__now_ns();
    if (query->hashes == NULL) {
        uint32_t *tokens = (uint32_t *)(void *)numbers; /* in place, from the front */
        for (size_t i = 0; i < query->count; i++)
            tokens[i] = (uint32_t)numbers[i];
        query->tokens = tokens;
    }
    int rc = tierce__query_run(&answer, router->sources, router->directory, query);
    atomic_fetch_add_explicit(&router->queries, 1, memory_order_relaxed);
    if (tierce__call_info(call)->is_deferred)
        atomic_fetch_add_explicit(&router->deferred_queries, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&router->query_ns, tierce__now_ns() - start_ns, memory_order_relaxed);
    if (rc < 0)
        fail(call, 503, tierce_strerror(rc));
    else if (!answer.has_model)
        fail(call, 404, "no publisher of this model is registered");
    else
        reply_answer(call, &answer, query->tenant, form);
}

static const char *array_fault(int64_t rc)
{
    return rc == TIERCE_E_LIMIT ? "the array has more numbers than limit.tokens"
           : rc == -ENOMEM      ? "no memory"
                           : "token_ids (numbers below 2^32), or block_hashes or seq_hashes, is "
                             "expected: an array of at least one number";
}

/* Reads the other fields of a query. Returns NULL on success, otherwise the error. */
static const char *read_query(struct tierce__query *query, char model[TIERCE__SOURCE_NAME_BYTES],
                              char lora[TIERCE__SOURCE_NAME_BYTES], struct tierce__text rest)
{
    lora[0] = '\0';
    query->model = model;
    if (!tierce__json_get_text(model, TIERCE__SOURCE_NAME_BYTES, rest, model_path(rest)))
        return "model_name must be a text of 1 to 95 bytes";
    if (has(rest, "lora_name") &&
        !tierce__json_get_text(lora, TIERCE__SOURCE_NAME_BYTES, rest, "lora_name"))
        return "lora_name must be a text of at most 95 bytes";
    if (has_salt(rest, "cache_salt"))
        return "cache_salt is not supported: blocks with a salt are found by their hashes only";
    if (!get_u32(&query->block_size, rest, "block_size"))
        return "block_size must be a number from 0 on";
    query->lora = (struct tierce__text){lora, strlen(lora)};
    return NULL;
}

static void serve_any_query(struct tierce__router *router, struct tierce__call *call, bool by_hash)
{
    char model[TIERCE__SOURCE_NAME_BYTES], lora[TIERCE__SOURCE_NAME_BYTES];
    struct tierce__router_body body;
    struct caller who;
    uint64_t *numbers = NULL;
    const struct tierce__call_info *info = tierce__call_info(call);
    if (info->body_bytes > LOOP_BYTES_MAX && !info->is_deferred) {
        tierce__call_defer(call);
        return;
    }
    if (!open_body(router, call, TIERCE__ROUTER_READ, &who, &body))
        return;
    struct tierce__query query = {.tenant = who.tenant};
    const char *fault = read_query(&query, model, lora, body.rest.value);
    enum tierce__router_array array = TIERCE__ROUTER_TOKENS;
    query.is_standard = by_hash && body.arrays[TIERCE__ROUTER_BLOCK_HASHES].length == 0;
    if (by_hash)
        array = query.is_standard ? TIERCE__ROUTER_SEQ_HASHES : TIERCE__ROUTER_BLOCK_HASHES;
    int64_t count = fault != NULL ? -EINVAL
                                  : tierce__router_body_numbers(&numbers, &body, array,
                                                                router->config->tokens_max);
    enum form form = body.is_msgpack                      ? FORM_CONDUCTOR
                     : has(body.rest.value, "model_name") ? FORM_INDEX
                                                          : FORM_FIRST;
    tierce__router_body_close(&body);
    if (count < 0) {
        fail(call, count == -ENOMEM ? 503 : 400, fault != NULL ? fault : array_fault(count));
        return;
    }
    query.count = (size_t)count;
    query.hashes = by_hash ? numbers : NULL;
    if (query.count > (by_hash ? LOOP_HASHES_MAX : LOOP_TOKENS_MAX) && !info->is_deferred)
        tierce__call_defer(call);
    else
        run_query(router, call, &query, numbers, form);
    tierce__free(numbers);
}

static void serve_query(void *arg, struct tierce__call *call)
{
    serve_any_query(arg, call, false);
}

static void serve_query_by_hash(void *arg, struct tierce__call *call)
{
    serve_any_query(arg, call, true);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void put_counts(struct tierce__json_write *json, const struct tierce__follower_about *about)
{
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {{"next", about->next},
                {"blocks", about->blocks},
                {"batches", about->batches},
                {"gaps", about->gaps},
                {"restarts", about->restarts},
                {"replays", about->replays},
                {"snapshots", about->snapshots},
                {"failures", about->failures},
                {"refused", about->refused},
                {"events", about->counts.events},
                {"unknown", about->counts.unknown},
                {"invalid", about->counts.invalid},
                {"ignored", about->counts.ignored},
                {"left_out", about->counts.left_out}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        tierce__json_write_count(json, rows[i].name, rows[i].value);
}

static bool put_worker(void *arg, const struct tierce__source_opts *opts,
                       struct tierce__follower *follower)
{
    struct tierce__json_write *json = arg;
    struct tierce__follower_about about;
    tierce__follower_about(follower, &about);
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_text(json, "instance_id", opts->instance);
    tierce__json_write_text(json, "model_name", opts->model);
    tierce__json_write_text(json, "tenant_id", opts->tenant[0] != '\0' ? opts->tenant : "default");
    tierce__json_write_count(json, "dp_rank", opts->dp_rank);
    tierce__json_write_count(json, "block_size",
                             about.block_size != 0 ? about.block_size : opts->block_size);
    tierce__json_write_text(json, "endpoint", opts->endpoint);
    tierce__json_write_text(json, "replay_endpoint", opts->replay[0] != '\0' ? opts->replay : NULL);
    tierce__json_write_text(json, "snapshot_url",
                            opts->snapshot[0] != '\0' ? opts->snapshot : NULL);
    tierce__json_write_text(json, "server_key",
                            opts->server_key[0] != '\0' ? opts->server_key : NULL);
    tierce__json_write_text(json, "status", about.is_connected ? "active" : "disconnected");
    tierce__json_write_bool(json, "exact", about.is_exact);
    put_counts(json, &about);
    tierce__json_write_close(json, '}');
    return true;
}

static void serve_workers(void *arg, struct tierce__call *call)
{
    struct tierce__router *router = arg;
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    struct caller who;
    if (!admit(router, call, TIERCE__ROUTER_READ, &who))
        return;
    tierce__json_write_open(&json, NULL, '[');
    tierce__sources_each(router->sources, who.is_free ? NULL : who.tenant, put_worker, &json);
    tierce__json_write_close(&json, ']');
    reply_line(call, NULL, &line);
}

/* One page of a publisher's blocks. */
struct dump {
    struct tierce__json_write json;
    uint32_t from;
};

static bool put_blocks(void *arg, const struct tierce__source_opts *opts,
                       struct tierce__follower *follower)
{
    static const char *const names[] = {"gpu", "cpu", "disk"};
    struct dump *dump = arg;
    (void)opts;
    struct tierce__contents_block *blocks = tierce__alloc(DUMP_BLOCKS_MAX * sizeof(*blocks));
    size_t count = 0;
    if (blocks == NULL)
        dump->json.line->failed = true;
    else
        count = tierce__follower_blocks(follower, &dump->from, blocks, DUMP_BLOCKS_MAX);
    tierce__json_write_open(&dump->json, "blocks", '[');
    for (size_t i = 0; i < count; i++) {
        tierce__json_write_open(&dump->json, NULL, '{');
        tierce__json_write_count(&dump->json, "hash", blocks[i].hash);
        if (blocks[i].scope != 0)
            tierce__json_write_count(&dump->json, "standard", blocks[i].standard);
        tierce__json_write_open(&dump->json, "media", '[');
        for (unsigned medium = 0; medium < TIERCE__KV_MEDIA; medium++) {
            if ((blocks[i].media & (1u << medium)) != 0)
                tierce__json_write_text(&dump->json, NULL, names[medium]);
        }
        tierce__json_write_close(&dump->json, ']');
        tierce__json_write_close(&dump->json, '}');
    }
    tierce__json_write_close(&dump->json, ']');
    if (count == DUMP_BLOCKS_MAX)
        tierce__json_write_count(&dump->json, "next", dump->from);
    tierce__free(blocks);
    return false;
}

/* The value of a name in a query string, without escapes. False: it is missing or too long. */
static bool query_value(const char *query, const char *name, char *out, size_t size)
{
    for (const char *at = query; *at != '\0'; at += strcspn(at, "&") + (strchr(at, '&') != NULL)) {
        size_t length = strlen(name), bytes = strcspn(at, "&");
        if (bytes <= length || strncmp(at, name, length) != 0 || at[length] != '=')
            continue;
        snprintf(out, size, "%.*s", (int)(bytes - length - 1), at + length + 1);
        return bytes - length - 1 < size;
    }
    return false;
}

static void serve_dump(void *arg, struct tierce__call *call)
{
    struct tierce__router *router = arg;
    const char *query = tierce__call_info(call)->query;
    char instance[TIERCE__SOURCE_NAME_BYTES], number[16];
    struct tierce__line line = {0};
    struct dump dump = {.json = {.line = &line}};
    uint32_t dp_rank = 0;
    struct caller who;
    if (!tierce__call_info(call)->is_deferred) {
        tierce__call_defer(call);
        return;
    }
    if (!admit(router, call, TIERCE__ROUTER_READ, &who))
        return;
    if (!query_value(query, "instance_id", instance, sizeof(instance))) {
        fail(call, 400, "/dump?instance_id=ID&dp_rank=RANK&from=NUMBER: instance_id is missing");
        return;
    }
    if (query_value(query, "dp_rank", number, sizeof(number)))
        dp_rank = (uint32_t)strtoul(number, NULL, 10);
    if (query_value(query, "from", number, sizeof(number)))
        dump.from = (uint32_t)strtoul(number, NULL, 10);
    tierce__json_write_open(&dump.json, NULL, '{');
    bool is_found = tierce__sources_with(router->sources, who.is_free ? NULL : who.tenant, instance,
                                         dp_rank, put_blocks, &dump);
    tierce__json_write_close(&dump.json, '}');
    if (is_found) {
        reply_line(call, NULL, &line);
        return;
    }
    tierce__line_clear(&line);
    fail(call, 404, "there is no such publisher");
}

static void serve_health(void *arg, struct tierce__call *call)
{
    (void)arg;
    reply_status(call, 200, "ok");
}

static bool put_metrics(void *arg, const struct tierce__source_opts *opts,
                        struct tierce__follower *follower)
{
    struct tierce__follower_about *sum = arg, about;
    (void)opts;
    tierce__follower_about(follower, &about);
    sum->next++; /* publishers */
    sum->block_size += about.is_exact;
    sum->blocks += about.blocks;
    sum->batches += about.batches;
    sum->gaps += about.gaps;
    sum->restarts += about.restarts;
    sum->snapshots += about.snapshots;
    sum->failures += about.failures;
    return true;
}

static void serve_metrics(void *arg, struct tierce__call *call)
{
    struct tierce__router *router = arg;
    struct tierce__prometheus text = {0};
    struct tierce__follower_about sum = {0};
    struct caller who;
    size_t bytes = 0;
    if (!admit(router, call, TIERCE__ROUTER_READ, &who))
        return;
    tierce__sources_each(router->sources, who.is_free ? NULL : who.tenant, put_metrics, &sum);
    const struct tierce__metric rows[] = {
        {.name = "router.publishers",
         .help = "Publishers that are followed.",
         .value = (double)sum.next},
        {.name = "router.exact",
         .help = "Publishers whose blocks are all known.",
         .value = sum.block_size},
        {.name = "router.blocks", .help = "Blocks of all publishers.", .value = (double)sum.blocks},
        {.name = "router.batches",
         .help = "Batches of events of the present publishers.",
         .value = (double)sum.batches},
        {.name = "router.gaps",
         .help = "Gaps in the batches of the present publishers.",
         .value = (double)sum.gaps},
        {.name = "router.restarts",
         .help = "Restarts of the present publishers.",
         .value = (double)sum.restarts},
        {.name = "router.snapshots",
         .help = "Snapshots of the present publishers.",
         .value = (double)sum.snapshots},
        {.name = "router.failures",
         .help = "Failed recoveries of the present publishers.",
         .value = (double)sum.failures},
        {.name = "router.queries",
         .help = "Queries.",
         .is_counter = true,
         .value = (double)atomic_load_explicit(&router->queries, memory_order_relaxed)},
        {.name = "router.deferred_queries",
         .help = "Queries that a worker thread answered, because they are long.",
         .is_counter = true,
         .value = (double)atomic_load_explicit(&router->deferred_queries, memory_order_relaxed)},
        {.name = "router.query_seconds",
         .help = "Time of all queries, without reading and writing JSON.",
         .is_counter = true,
         .value = (double)atomic_load_explicit(&router->query_ns, memory_order_relaxed) / 1e9}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        tierce__prometheus_put(&text, &rows[i]);
    char *page = tierce__prometheus_end(&text, &bytes);
    tierce__call_reply_heap(call, "text/plain; version=0.0.4", page, bytes);
}

size_t tierce__router_routes(struct tierce__router *router)
{
    const struct tierce__route routes[] = {
        {.path = "/register", .method = "POST", .serve = serve_register},
        {.path = "/unregister", .method = "POST", .serve = serve_unregister},
        {.path = "/query", .method = "POST", .serve = serve_query},
        {.path = "/query_by_hash", .method = "POST", .serve = serve_query_by_hash},
        {.path = "/workers", .method = "GET", .serve = serve_workers},
        {.path = "/dump", .method = "GET", .serve = serve_dump},
        {.path = "/health", .method = "GET", .serve = serve_health},
        {.path = "/metrics", .method = "GET", .serve = serve_metrics},
    };
    _Static_assert(sizeof(routes) / sizeof(*routes) <= TIERCE__ROUTER_ROUTES, "room");
    for (size_t i = 0; i < sizeof(routes) / sizeof(*routes); i++) {
        router->routes[i] = routes[i];
        router->routes[i].arg = router;
    }
    return sizeof(routes) / sizeof(*routes);
}
