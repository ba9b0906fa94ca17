/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of an exchange: which engine is asked for what, and what follows a failure. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "base/mix.h"
#include "proxy/bodies.h"
#include "proxy/proxy_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char no_memory[] = "there is no memory for the request, or limit.memory is reached";

static void start_decode(struct tierce__exchange *exchange);
static void start_prefill(struct tierce__exchange *exchange);

static const struct tierce__proxy_config *config_of(const struct tierce__exchange *exchange)
{
    return exchange->relay->proxy->config;
}

static void count(const struct tierce__exchange *exchange, enum tierce__proxy_counter row)
{
    tierce__proxy_count(exchange->relay->proxy, row);
}

/* ---- creation -------------------------------------------------------------------------------- */

/* Copies a header's value if it fits and has no control characters; otherwise "". */
static void copy_header(char *out, size_t size, const char *value)
{
    size_t n = value != NULL ? strlen(value) : 0;
    out[0] = '\0';
    if (n == 0 || n >= size)
        return;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)value[i] < 0x20 || value[i] == 0x7f)
            return;
    memcpy(out, value, n + 1);
}

static void copy_headers(struct tierce__exchange *exchange, const struct tierce__call *call)
{
    static _Atomic uint64_t made;
    copy_header(exchange->request_id, sizeof(exchange->request_id),
                tierce__call_header(call, "x-request-id"));
    copy_header(exchange->traceparent, sizeof(exchange->traceparent),
                tierce__call_header(call, "traceparent"));
    if (exchange->request_id[0] == '\0') {
        uint64_t number = atomic_fetch_add_explicit(&made, 1, memory_order_relaxed);
        snprintf(exchange->request_id, sizeof(exchange->request_id), "tierce-%016" PRIx64 "%08x",
                 tierce__mix(tierce__wall_us() ^ number << 52), (uint32_t)number);
    }
}

/* The header that engines get. Returns false if there is no memory. */
static bool choose_authorization(struct tierce__exchange *exchange, const struct tierce__call *call)
{
    struct tierce__proxy *proxy = exchange->relay->proxy;
    if (tierce__tenant_words_find(&exchange->authorization, &proxy->engine_tokens,
                                  exchange->tenant->name) < 0)
        return false;
    const char *shown = NULL;
    if (proxy->config->token_file[0] == '\0')
        shown = tierce__call_header(call, "authorization");
    if (exchange->authorization != NULL || shown == NULL)
        return true;
    exchange->authorization = tierce__strdup(shown);
    return exchange->authorization != NULL;
}

/* The call's body ends with the call, which ends when a stream begins; libcurl may still be
 * sending it then. */
static bool copy_body(struct tierce__exchange *exchange, const struct tierce__call_info *info)
{
    if (strcmp(info->method, "POST") != 0)
        return true;
    exchange->body = tierce__alloc(info->body_bytes + 1);
    if (exchange->body == NULL)
        return false;
    if (info->body_bytes > 0)
        memcpy(exchange->body, info->body, info->body_bytes);
    exchange->body_bytes = info->body_bytes;
    return true;
}

static bool reads_bodies(const struct tierce__proxy *proxy)
{
    return proxy->config->router_url[0] != '\0' || proxy->prefill.count > 0;
}

bool tierce__exchange_create(struct tierce__proxy *proxy, struct tierce__call *call,
                             const char *path, struct tierce__tenant *tenant)
{
    const struct tierce__call_info *info = tierce__call_info(call);
    /* The body, and the copy that is read. */
    size_t held = (reads_bodies(proxy) ? 2 : 1) * info->body_bytes;
    uint32_t at = atomic_fetch_add_explicit(&proxy->next_relay, 1, memory_order_relaxed);
    if (!tierce__held_take(&proxy->held, held))
        return false;
    struct tierce__exchange *exchange = tierce__calloc(1, sizeof(*exchange));
    if (exchange != NULL) {
        exchange->relay = &proxy->relays[at % proxy->relay_count];
        exchange->tenant = tenant;
        copy_headers(exchange, call);
    }
    if (exchange == NULL || !copy_body(exchange, info) || !choose_authorization(exchange, call)) {
        if (exchange != NULL)
            tierce__free(exchange->body);
        tierce__free(exchange);
        tierce__held_give_back(&proxy->held, held);
        return false;
    }
    exchange->held = held;
    exchange->call = call;
    exchange->path = path;
    exchange->begun_ns = tierce__now_ns();
    tierce__list_init(&exchange->node);
    tierce__list_init(&exchange->pause);
    atomic_fetch_add_explicit(&proxy->active, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&tenant->requests, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&tenant->in_progress, 1, memory_order_relaxed);
    struct tierce__relay *relay = exchange->relay;
    tierce__lock_take(&relay->lock);
    tierce__list_push_back(&relay->inbox, &exchange->node);
    tierce__lock_drop(&relay->lock);
    tierce__fetcher_wake(relay->fetcher);
    return true;
}

/* ---- engines of the tenant ------------------------------------------------------------------ */

static struct tierce__engine *choose_known(const struct tierce__exchange *exchange,
                                           struct tierce__engines *engines,
                                           const struct tierce__choice *choice, uint64_t tried)
{
    const struct tierce__tenant *tenant = exchange->tenant;
    uint64_t own = engines == &exchange->relay->proxy->decode ? tenant->decode : tenant->prefill;
    return tierce__choose(engines, choice, config_of(exchange)->router_load, tried | ~own);
}

static struct tierce__engine *choose_decode(struct tierce__exchange *exchange, uint64_t tried)
{
    return choose_known(exchange, &exchange->relay->proxy->decode, &exchange->decode_choice, tried);
}

/* ---- a fetch --------------------------------------------------------------------------------- */

struct ask {
    const char *origin, *path;
    const char *body;
    size_t body_bytes;
    uint32_t timeout_ms;
    bool is_for_engine; /* it gets the client's headers */
    const char *token;  /* "Bearer TOKEN" if it is not for an engine, or NULL */
    void (*done)(void *arg, int rc, const char *why);
};

static int begin_fetch(struct tierce__exchange *exchange, const struct ask *ask)
{
    struct tierce__curl_header headers[4];
    size_t n = 0;
    struct tierce__line url = {0};
    tierce__line_put(&url, ask->origin);
    tierce__line_put(&url, ask->path);
    tierce__line_put_bytes(&url, "", 1);
    if (ask->body != NULL)
        headers[n++] = (struct tierce__curl_header){"Content-Type", "application/json"};
    if (ask->is_for_engine) {
        headers[n++] = (struct tierce__curl_header){"X-Request-Id", exchange->request_id};
        if (exchange->authorization != NULL)
            headers[n++] = (struct tierce__curl_header){"Authorization", exchange->authorization};
        if (exchange->traceparent[0] != '\0')
            headers[n++] = (struct tierce__curl_header){"traceparent", exchange->traceparent};
    } else if (ask->token != NULL)
        headers[n++] = (struct tierce__curl_header){"Authorization", ask->token};
    TIERCE_ASSERT(exchange->fetch == NULL);
    tierce__exchange_clear_answer(exchange);
    exchange->step_ns = tierce__now_ns();
    int rc =
        url.failed
            ? -ENOMEM
            : tierce__fetch_begin(&exchange->fetch, exchange->relay->fetcher,
                                  &(struct tierce__fetch_request){.url = url.text,
                                                                  .body = ask->body,
                                                                  .body_bytes = ask->body_bytes,
                                                                  .headers = headers,
                                                                  .header_count = n,
                                                                  .timeout_ms = ask->timeout_ms,
                                                                  .take = tierce__exchange_take,
                                                                  .done = ask->done,
                                                                  .arg = exchange});
    tierce__line_clear(&url);
    return rc;
}

static void use_engine(struct tierce__exchange *exchange, struct tierce__engines *engines,
                       struct tierce__engine *engine)
{
    TIERCE_ASSERT(exchange->engine == NULL);
    exchange->engine = engine;
    exchange->tried |= 1ULL << engine->index;
    tierce__engine_use(engines, engine);
}

static void clear_made(struct tierce__exchange *exchange)
{
    tierce__line_clear(&exchange->made);
    tierce__held_give_back(&exchange->relay->proxy->held, exchange->made_held);
    exchange->made_held = 0;
}

/* Whether the body of this step was made, and limit.memory permits it. */
static bool hold_made(struct tierce__exchange *exchange)
{
    TIERCE_ASSERT(exchange->made_held == 0);
    if (exchange->made.failed ||
        !tierce__held_take(&exchange->relay->proxy->held, exchange->made.bytes)) {
        tierce__line_clear(&exchange->made);
        return false;
    }
    exchange->made_held = exchange->made.bytes;
    return true;
}

/* Reads the answer, of which there is a copy until drop_document. */
static bool read_answer(struct tierce__exchange *exchange, struct tierce__json_doc *doc)
{
    struct tierce__held *held = &exchange->relay->proxy->held;
    if (!tierce__held_take(held, exchange->answer.bytes))
        return false;
    if (tierce__json_parse(doc, exchange->answer.text, exchange->answer.bytes, NULL) == 0)
        return true;
    tierce__held_give_back(held, exchange->answer.bytes);
    return false;
}

/* Of an answer of `bytes`. */
static void drop_document(struct tierce__proxy *proxy, struct tierce__json_doc *doc, size_t bytes)
{
    if (doc->copy != NULL)
        tierce__held_give_back(&proxy->held, bytes);
    tierce__json_doc_clear(doc);
}

static void enter(struct tierce__exchange *exchange, enum tierce__exchange_step step)
{
    exchange->step = step;
    exchange->tried = 0;
    exchange->attempts = 0;
    clear_made(exchange);
    exchange->has_params = exchange->is_made = false;
}

/* The first call of each `done`: the fetch is over, and its headers are kept. */
static void settle(struct tierce__exchange *exchange)
{
    struct tierce__fetch *fetch = exchange->fetch;
    exchange->fetch = NULL;
    exchange->status = tierce__fetch_status(fetch);
    copy_header(exchange->type, sizeof(exchange->type),
                tierce__fetch_header(fetch, "content-type"));
    copy_header(exchange->retry_after, sizeof(exchange->retry_after),
                tierce__fetch_header(fetch, "retry-after"));
}

/* Notes a failed attempt, and lets the engine go. `rc` as of the fetch. */
static void note_failure(struct tierce__exchange *exchange, const char *event, int rc,
                         const char *why)
{
    struct tierce__engine *engine = exchange->engine;
    char text[64];
    if (rc == 0) {
        snprintf(text, sizeof(text), "HTTP status %ld", exchange->status);
        why = text;
    }
    atomic_fetch_add_explicit(&engine->failures, 1, memory_order_relaxed);
    if (rc == -ECONNREFUSED)
        tierce__engine_unreachable(engine, why);
    tierce__proxy_forget_inbox(exchange->relay->proxy, engine, rc);
    tierce__log_repeated(TIERCE_LOG_WARN, event, "engine=%s why=\"%s\"", engine->name, why);
    tierce__exchange_let_go(exchange);
    exchange->attempts++;
}

/* Another engine might do better. */
static bool is_engines_fault(int rc, long status)
{
    return rc != 0 || status >= 500 || status == 429;
}

/* ---- the answer ------------------------------------------------------------------------------ */

static void done_decode(void *arg, int rc, const char *why);

/* With prefill.urls, only a prefiller says where KV is read from, not the client. */
static bool drop_params(struct tierce__exchange *exchange)
{
    if (exchange->relay->proxy->prefill.count == 0 ||
        exchange->request.members[TIERCE__BODY_PARAMS].length == 0)
        return true;
    clear_made(exchange);
    tierce__body_put_decode(&exchange->made, &exchange->request, (struct tierce__text){0});
    exchange->is_made = hold_made(exchange);
    return exchange->is_made;
}

static void ask_decode(struct tierce__exchange *exchange, struct tierce__engine *engine)
{
    if (!exchange->has_params && !exchange->is_made && !drop_params(exchange)) {
        tierce__exchange_fail(exchange, 503, no_memory);
        return;
    }
    bool is_made = exchange->has_params || exchange->is_made;
    use_engine(exchange, &exchange->relay->proxy->decode, engine);
    int rc = begin_fetch(
        exchange, &(struct ask){.origin = engine->url,
                                .path = exchange->path,
                                .body = is_made ? exchange->made.text : exchange->body,
                                .body_bytes = is_made ? exchange->made.bytes : exchange->body_bytes,
                                .is_for_engine = true,
                                .done = done_decode});
    if (rc != 0)
        tierce__exchange_fail(exchange, 503, no_memory);
}

/* After a failure: another engine, or the failure becomes the answer. */
static void retry_decode(struct tierce__exchange *exchange, int rc, const char *why)
{
    const struct tierce__proxy_config *config = config_of(exchange);
    char text[400];
    struct tierce__engine *engine = NULL;
    if (exchange->attempts <= config->decode_retries)
        engine = choose_decode(exchange, exchange->tried);
    if (engine != NULL) {
        ask_decode(exchange, engine);
        return;
    }
    if (rc == 0) {
        tierce__exchange_pass_on(exchange);
        return;
    }
    snprintf(text, sizeof(text), "%u of the engines failed before the first byte; the last one: %s",
             exchange->attempts, why);
    tierce__exchange_fail(exchange, 502, text);
}

/* An engine that may have read the KV of a prefill has perhaps released it: the next engine
 * computes the prompt itself. */
static void fail_decode(struct tierce__exchange *exchange, int rc, const char *why, bool was_sent)
{
    count(exchange, TIERCE__PROXY_COUNT_DECODE_FAILURES);
    note_failure(exchange, "proxy_decode_failed", rc, why);
    if (was_sent && exchange->has_params) {
        exchange->has_params = false;
        count(exchange, TIERCE__PROXY_COUNT_DECODES_ALONE);
    }
    retry_decode(exchange, rc, why);
}

/* Whether an answer that ends with its connection is complete: then it is a JSON value. */
static bool is_whole(struct tierce__exchange *exchange)
{
    struct tierce__json_doc doc = {0};
    bool is = exchange->status == 204 || read_answer(exchange, &doc);
    drop_document(exchange->relay->proxy, &doc, exchange->answer.bytes);
    return is;
}

static void done_decode(void *arg, int rc, const char *why)
{
    struct tierce__exchange *exchange = arg;
    bool was_sent = tierce__fetch_was_sent(exchange->fetch);
    bool is_delimited = tierce__fetch_header(exchange->fetch, "transfer-encoding") != NULL ||
                        tierce__fetch_header(exchange->fetch, "content-length") != NULL;
    settle(exchange);
    if (exchange->step == TIERCE__EXCHANGE_STREAM) {
        if (rc == TIERCE_E_CANCELLED && exchange->refusal == NULL)
            tierce__exchange_drop(exchange);
        else
            tierce__exchange_end_stream(exchange, rc, why, is_delimited);
    } else if (rc == TIERCE_E_CANCELLED && exchange->refusal != NULL) {
        tierce__exchange_fail(exchange, exchange->refusal_status, exchange->refusal);
    } else if (is_engines_fault(rc, exchange->status)) {
        fail_decode(exchange, rc, why, was_sent);
    } else if (!is_delimited && !is_whole(exchange)) {
        fail_decode(exchange, -EIO, "the connection was closed before the end of the answer", true);
    } else {
        tierce__exchange_pass_on(exchange);
    }
}

/* The engine that was chosen before the prefill, if it is still up: the KV was pushed to it. */
static struct tierce__engine *choose_decoder(struct tierce__exchange *exchange)
{
    struct tierce__engine *engine = exchange->decoder;
    tierce__exchange_forget_decoder(exchange);
    if (engine != NULL && !atomic_load_explicit(&engine->is_down, memory_order_relaxed))
        return engine;
    return choose_decode(exchange, 0);
}

static void start_decode(struct tierce__exchange *exchange)
{
    exchange->step = TIERCE__EXCHANGE_DECODE;
    exchange->tried = 0;
    exchange->attempts = 0;
    struct tierce__engine *engine = choose_decoder(exchange);
    if (engine == NULL) {
        tierce__exchange_fail(exchange, 503, "no engine of decode.urls is reachable");
        return;
    }
    if (exchange->decode_choice.is_known && exchange->decode_choice.tokens[engine->index] > 0)
        count(exchange, TIERCE__PROXY_COUNT_ROUTER_CHOICES);
    ask_decode(exchange, engine);
}

/* ---- prefill --------------------------------------------------------------------------------- */

static void done_prefill(void *arg, int rc, const char *why);

static void decode_alone(struct tierce__exchange *exchange)
{
    count(exchange, TIERCE__PROXY_COUNT_DECODES_ALONE);
    enter(exchange, TIERCE__EXCHANGE_DECODE);
    start_decode(exchange);
}

/* Asks the next engine of prefill.urls, if there is one and the bound permits it. */
static void ask_prefill(struct tierce__exchange *exchange)
{
    struct tierce__proxy *proxy = exchange->relay->proxy;
    struct tierce__engine *engine = NULL;
    if (exchange->attempts <= proxy->config->prefill_retries)
        engine =
            choose_known(exchange, &proxy->prefill, &exchange->prefill_choice, exchange->tried);
    if (engine == NULL) {
        tierce__log_repeated(TIERCE_LOG_WARN, "proxy_decode_alone",
                             "why=\"no engine of prefill.urls has computed the prompt\"");
        decode_alone(exchange);
        return;
    }
    use_engine(exchange, &proxy->prefill, engine);
    int rc = begin_fetch(exchange, &(struct ask){.origin = engine->url,
                                                 .path = exchange->path,
                                                 .body = exchange->made.text,
                                                 .body_bytes = exchange->made.bytes,
                                                 .timeout_ms = proxy->config->prefill_ms,
                                                 .is_for_engine = true,
                                                 .done = done_prefill});
    if (rc != 0)
        tierce__exchange_fail(exchange, 503, no_memory);
}

static void take_params(struct tierce__exchange *exchange)
{
    struct tierce__json_doc doc = {0};
    struct tierce__text params = {0};
    if (read_answer(exchange, &doc))
        params = tierce__body_params(doc.value);
    enter(exchange, TIERCE__EXCHANGE_DECODE);
    if (params.length > 0) {
        tierce__body_put_decode(&exchange->made, &exchange->request, params);
        exchange->has_params = hold_made(exchange);
    }
    if (!exchange->has_params)
        count(exchange, TIERCE__PROXY_COUNT_PREFILLS_EMPTY);
    drop_document(exchange->relay->proxy, &doc, exchange->answer.bytes);
}

static void done_prefill(void *arg, int rc, const char *why)
{
    struct tierce__exchange *exchange = arg;
    struct tierce__proxy *proxy = exchange->relay->proxy;
    settle(exchange);
    if (rc == 0 && exchange->status == 200) {
        count(exchange, TIERCE__PROXY_COUNT_PREFILLS);
        tierce__latency_add(&proxy->prefill_time, tierce__now_ns() - exchange->step_ns);
        tierce__exchange_let_go(exchange);
        take_params(exchange);
        start_decode(exchange);
        return;
    }
    bool is_hopeless = !is_engines_fault(rc, exchange->status);
    count(exchange, TIERCE__PROXY_COUNT_PREFILL_FAILURES);
    note_failure(exchange, "proxy_prefill_failed", rc,
                 exchange->refusal != NULL ? exchange->refusal : why);
    if (is_hopeless) /* a request that is rejected: the client gets the other engine's words */
        decode_alone(exchange);
    else
        ask_prefill(exchange);
}

/* Sends the prompt to an engine of prefill.urls, with the inbox of the engine that will answer. */
static void begin_prefill(struct tierce__exchange *exchange,
                          const struct tierce__inbox_place *place)
{
    enter(exchange, TIERCE__EXCHANGE_PREFILL);
    if (place != NULL)
        count(exchange, TIERCE__PROXY_COUNT_PUSHES);
    tierce__body_put_prefill(&exchange->made, &exchange->request, place);
    if (hold_made(exchange))
        ask_prefill(exchange);
    else
        tierce__exchange_fail(exchange, 503, no_memory);
}

static void done_inbox(void *arg, int rc, const char *why)
{
    struct tierce__exchange *exchange = arg;
    struct tierce__proxy *proxy = exchange->relay->proxy;
    struct tierce__inbox_place place;
    struct tierce__json_doc doc = {0};
    uint32_t index = exchange->decoder->index;
    uint64_t now_ns = tierce__now_ns();
    settle(exchange);
    bool is_good = rc == 0 && exchange->status == 200 && read_answer(exchange, &doc);
    if (!is_good)
        tierce__log_repeated(TIERCE_LOG_INFO, "proxy_no_inbox", "engine=%s status=%ld why=\"%s\"",
                             exchange->decoder->name, exchange->status, rc != 0 ? why : "");
    tierce__inboxes_answered(&proxy->inboxes, index, is_good ? doc.value : (struct tierce__text){0},
                             now_ns);
    drop_document(proxy, &doc, exchange->answer.bytes);
    bool has_ticket =
        tierce__inboxes_take(&proxy->inboxes, index, &place, now_ns) == TIERCE__INBOX_TICKET;
    begin_prefill(exchange, has_ticket ? &place : NULL);
    explicit_bzero(&place, sizeof(place));
}

/* Asks the engine that will answer for tickets. Returns false if there is no memory. */
static bool ask_inbox(struct tierce__exchange *exchange)
{
    enter(exchange, TIERCE__EXCHANGE_INBOX);
    tierce__body_put_inbox(&exchange->made, &exchange->request,
                           exchange->relay->proxy->inboxes.holder);
    if (!hold_made(exchange))
        return false;
    count(exchange, TIERCE__PROXY_COUNT_INBOX_QUERIES);
    return begin_fetch(exchange, &(struct ask){.origin = exchange->decoder->url,
                                               .path = "/v1/completions",
                                               .body = exchange->made.text,
                                               .body_bytes = exchange->made.bytes,
                                               .timeout_ms = TIERCE__INBOX_ASK_MS,
                                               .is_for_engine = true,
                                               .done = done_inbox}) == 0;
}

/* Chooses the engine that will answer before the prefill, which may push the KV to it. */
static void prefill_for_decoder(struct tierce__exchange *exchange)
{
    struct tierce__proxy *proxy = exchange->relay->proxy;
    struct tierce__inbox_place place;
    enum tierce__inbox_answer answer = TIERCE__INBOX_NONE;
    if (proxy->config->pushes)
        exchange->decoder = choose_decode(exchange, 0);
    if (exchange->decoder != NULL) {
        tierce__engine_expect(&proxy->decode, exchange->decoder);
        answer = tierce__inboxes_take(&proxy->inboxes, exchange->decoder->index, &place,
                                      tierce__now_ns());
    }
    if (answer == TIERCE__INBOX_ASK && ask_inbox(exchange))
        return;
    begin_prefill(exchange, answer == TIERCE__INBOX_TICKET ? &place : NULL);
    explicit_bzero(&place, sizeof(place));
}

static void start_prefill(struct tierce__exchange *exchange)
{
    enter(exchange, TIERCE__EXCHANGE_PREFILL);
    if (exchange->tenant->prefill == 0 || exchange->body == NULL) {
        start_decode(exchange);
        return;
    }
    if (!tierce__body_can_prefill(&exchange->request)) {
        count(exchange, TIERCE__PROXY_COUNT_PREFILLS_SKIPPED);
        start_decode(exchange);
        return;
    }
    prefill_for_decoder(exchange);
}

/* ---- the router index ------------------------------------------------------------------------ */

static void fail_router(struct tierce__exchange *exchange, int rc, const char *why)
{
    count(exchange, TIERCE__PROXY_COUNT_ROUTER_FAILURES);
    if (rc != 0)
        tierce__log_repeated(TIERCE_LOG_WARN, "proxy_router_failed", "step=%s why=\"%s\"",
                             exchange->step == TIERCE__EXCHANGE_QUERY ? "query" : "tokenize", why);
    else if (exchange->step == TIERCE__EXCHANGE_QUERY &&
             (exchange->status == 401 || exchange->status == 403))
        tierce__log_repeated(TIERCE_LOG_WARN, "proxy_router_refused",
                             "status=%ld why=\"the router index requires a token that may query: "
                             "set router.token_file, with a line for the tenant\"",
                             exchange->status);
    else
        tierce__log_repeated(TIERCE_LOG_WARN, "proxy_router_failed", "step=%s status=%ld",
                             exchange->step == TIERCE__EXCHANGE_QUERY ? "query" : "tokenize",
                             exchange->status);
}

static void done_query(void *arg, int rc, const char *why)
{
    struct tierce__exchange *exchange = arg;
    struct tierce__proxy *proxy = exchange->relay->proxy;
    struct tierce__json_doc doc = {0};
    settle(exchange);
    bool is_good = rc == 0 && exchange->status == 200 && read_answer(exchange, &doc) &&
                   tierce__choice_read(&exchange->decode_choice, &proxy->decode, doc.value);
    if (is_good && proxy->prefill.count > 0)
        (void)tierce__choice_read(&exchange->prefill_choice, &proxy->prefill, doc.value);
    drop_document(exchange->relay->proxy, &doc, exchange->answer.bytes);
    if (!is_good)
        fail_router(exchange, rc, why);
    start_prefill(exchange);
}

static void start_query(struct tierce__exchange *exchange, struct tierce__text tokens)
{
    const struct tierce__proxy_config *config = config_of(exchange);
    struct tierce__proxy *proxy = exchange->relay->proxy;
    char *token = NULL;
    enter(exchange, TIERCE__EXCHANGE_QUERY);
    tierce__body_put_query(&exchange->made, &exchange->request, tokens, exchange->tenant->name);
    count(exchange, TIERCE__PROXY_COUNT_ROUTER_QUERIES);
    int rc = !hold_made(exchange) || tierce__tenant_words_find(&token, &proxy->router_tokens,
                                                               exchange->tenant->name) < 0
                 ? -ENOMEM
                 : begin_fetch(exchange, &(struct ask){.origin = config->router_url,
                                                       .path = "/query",
                                                       .body = exchange->made.text,
                                                       .body_bytes = exchange->made.bytes,
                                                       .timeout_ms = config->router_ms,
                                                       .token = token,
                                                       .done = done_query});
    tierce__free_secret(token);
    if (rc != 0)
        tierce__exchange_fail(exchange, 503, no_memory);
}

static void done_tokenize(void *arg, int rc, const char *why)
{
    struct tierce__exchange *exchange = arg;
    struct tierce__json_doc doc = {0};
    struct tierce__text tokens = {0};
    settle(exchange);
    struct tierce__proxy *proxy = exchange->relay->proxy;
    size_t bytes = exchange->answer.bytes; /* the next step clears it, and may end the exchange */
    if (rc == 0 && exchange->status == 200 && read_answer(exchange, &doc))
        tokens = tierce__json_get(doc.value, "tokens");
    if (tierce__json_value_kind(tokens) == '[') {
        start_query(exchange, tokens);
    } else {
        fail_router(exchange, rc, why);
        start_prefill(exchange);
    }
    drop_document(proxy, &doc, bytes);
}

/* Returns false if no engine or no text is there. */
static bool start_tokenize(struct tierce__exchange *exchange)
{
    struct tierce__engine *engine =
        choose_known(exchange, &exchange->relay->proxy->decode, NULL, 0);
    enter(exchange, TIERCE__EXCHANGE_TOKENIZE);
    if (engine == NULL || !tierce__body_put_tokenize(&exchange->made, &exchange->request) ||
        !hold_made(exchange))
        return false;
    int rc = begin_fetch(exchange, &(struct ask){.origin = engine->url,
                                                 .path = "/tokenize",
                                                 .body = exchange->made.text,
                                                 .body_bytes = exchange->made.bytes,
                                                 .timeout_ms = config_of(exchange)->router_ms,
                                                 .is_for_engine = true,
                                                 .done = done_tokenize});
    return rc == 0;
}

/* Reads the request, if a step needs it. Without prefill.urls a body that is no JSON is passed on:
 * the engine says what is wrong with it. With them, kv_transfer_params must not hide in a body that
 * an engine reads otherwise than the proxy does. False: the call was answered. */
static bool read_request(struct tierce__exchange *exchange)
{
    const struct tierce__proxy *proxy = exchange->relay->proxy;
    const char *why = "";
    char text[256];
    if (exchange->body == NULL || !reads_bodies(proxy))
        return true;
    int rc = tierce__body_read(&exchange->request, exchange->body, exchange->body_bytes, &why);
    bool can_drop_params =
        exchange->request.can_copy || exchange->request.members[TIERCE__BODY_PARAMS].length == 0;
    if (proxy->prefill.count == 0 || (rc == 0 && can_drop_params))
        return true;
    if (rc == TIERCE_E_FORMAT)
        snprintf(text, sizeof(text), "the body is not valid JSON: %.200s", why);
    else
        snprintf(text, sizeof(text), "%s",
                 rc != 0 ? no_memory
                         : "kv_transfer_params cannot be removed from a body that has a member "
                           "whose name is longer than 64 bytes, or has a NUL: leave it out");
    tierce__exchange_fail(exchange, rc == 0 || rc == TIERCE_E_FORMAT ? 400 : 503, text);
    return false;
}

void tierce__exchange_begin(struct tierce__exchange *exchange)
{
    if (!read_request(exchange))
        return;
    if (exchange->request.is_object && config_of(exchange)->router_url[0] != '\0') {
        struct tierce__text tokens = tierce__body_tokens(&exchange->request);
        if (tokens.length > 0) {
            start_query(exchange, tokens);
            return;
        }
        if (start_tokenize(exchange))
            return;
    }
    start_prefill(exchange);
}

/* ---- looks ----------------------------------------------------------------------------------- */

static void look_at_stream(struct tierce__exchange *exchange, uint64_t now_ns)
{
    uint64_t silence_ns = config_of(exchange)->silence_ms * TIERCE__MS_NS;
    if (!tierce__stream_write(exchange->stream, "", 0))
        tierce__exchange_drop(exchange);
    else if (tierce__list_empty(&exchange->pause) && now_ns - exchange->byte_ns > silence_ns)
        tierce__exchange_end_stream(exchange, TIERCE_E_DEADLINE,
                                    "the engine was silent for longer than timeout.silence", true);
}

/* An engine that is down may still finish what it has begun, as one that drains. So a request
 * leaves it only if its answer has not begun and another engine can take it. */
static bool should_leave(const struct tierce__exchange *exchange)
{
    struct tierce__proxy *proxy = exchange->relay->proxy;
    bool is_prefill = exchange->step == TIERCE__EXCHANGE_PREFILL;
    uint32_t retries = is_prefill ? proxy->config->prefill_retries : proxy->config->decode_retries;
    if (exchange->engine == NULL || exchange->fetch == NULL || exchange->answer.bytes > 0 ||
        !atomic_load_explicit(&exchange->engine->is_down, memory_order_relaxed))
        return false;
    return exchange->attempts < retries &&
           choose_known(exchange, is_prefill ? &proxy->prefill : &proxy->decode, NULL,
                        exchange->tried) != NULL;
}

void tierce__exchange_look(struct tierce__exchange *exchange, uint64_t now_ns)
{
    static const char why[] = "the engine rejects connections, or answers no health checks";
    if (exchange->step == TIERCE__EXCHANGE_STREAM) {
        look_at_stream(exchange, now_ns);
        return;
    }
    if (tierce__call_is_over(exchange->call)) {
        tierce__exchange_drop(exchange);
        return;
    }
    if (now_ns - exchange->begun_ns > config_of(exchange)->request_ms * TIERCE__MS_NS) {
        tierce__exchange_fail(exchange, 504, "no engine answered within timeout.request");
        return;
    }
    if (!should_leave(exchange))
        return;
    tierce__fetch_cancel(exchange->fetch);
    exchange->fetch = NULL;
    if (exchange->step == TIERCE__EXCHANGE_DECODE) {
        fail_decode(exchange, TIERCE_E_DOWN, why, true);
    } else {
        TIERCE_ASSERT(exchange->step == TIERCE__EXCHANGE_PREFILL);
        count(exchange, TIERCE__PROXY_COUNT_PREFILL_FAILURES);
        note_failure(exchange, "proxy_prefill_failed", TIERCE_E_DOWN, why);
        ask_prefill(exchange);
    }
}

void tierce__exchange_resume(struct tierce__exchange *exchange)
{
    TIERCE_ASSERT(exchange->step == TIERCE__EXCHANGE_STREAM && exchange->fetch != NULL);
    tierce__list_remove(&exchange->pause);
    if (tierce__stream_room(exchange->stream, exchange->room_wanted) < exchange->room_wanted) {
        tierce__list_push_back(&exchange->relay->paused, &exchange->pause); /* another one's */
        return;
    }
    exchange->byte_ns = tierce__now_ns();
    tierce__fetch_resume(exchange->fetch);
}

void tierce__exchange_cut(struct tierce__exchange *exchange)
{
    tierce__exchange_fail(exchange, 503, "the proxy is shutting down");
}
