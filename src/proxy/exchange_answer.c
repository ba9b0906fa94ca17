/* SPDX-License-Identifier: Apache-2.0 */
/* The answer of an exchange: passed on as it arrives, collected, or an error; and the end. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "proxy/bodies.h"
#include "proxy/proxy_private.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Of limit.stream: for an error event at the end. */
#define RESERVE_BYTES 4096u

static const char stream_type[] = "text/event-stream";

/* ---- the end --------------------------------------------------------------------------------- */

void tierce__exchange_let_go(struct tierce__exchange *exchange)
{
    if (exchange->fetch != NULL)
        tierce__fetch_cancel(exchange->fetch);
    exchange->fetch = NULL;
    tierce__list_remove(&exchange->pause);
    if (exchange->engine != NULL)
        tierce__engine_release(exchange->engine);
    exchange->engine = NULL;
}

void tierce__exchange_forget_decoder(struct tierce__exchange *exchange)
{
    if (exchange->decoder != NULL)
        tierce__engine_release(exchange->decoder);
    exchange->decoder = NULL;
}

void tierce__exchange_clear_answer(struct tierce__exchange *exchange)
{
    tierce__line_clear(&exchange->answer);
    tierce__held_give_back(&exchange->relay->proxy->held, exchange->answer_held);
    exchange->answer_held = 0;
    exchange->status = 0;
    exchange->type[0] = exchange->retry_after[0] = '\0';
    exchange->refusal = NULL;
}

/* The call is answered, or its stream has ended. */
static void destroy(struct tierce__exchange *exchange)
{
    struct tierce__proxy *proxy = exchange->relay->proxy;
    struct tierce__tenant *tenant = exchange->tenant;
    TIERCE_ASSERT(exchange->call == NULL && exchange->stream == NULL);
    tierce__exchange_let_go(exchange);
    tierce__exchange_forget_decoder(exchange);
    tierce__exchange_clear_answer(exchange);
    tierce__list_remove(&exchange->node);
    tierce__held_give_back(&proxy->held, exchange->held + exchange->made_held);
    tierce__line_clear(&exchange->made);
    tierce__line_clear(&exchange->event);
    tierce__body_clear(&exchange->request);
    tierce__free_secret(exchange->authorization);
    tierce__free(exchange->body);
    tierce__free(exchange);
    atomic_fetch_sub_explicit(&tenant->in_progress, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&proxy->active, 1, memory_order_release);
}

/* Comes before the end of an answer: with it, the client may send its next request. */
static void leave(struct tierce__exchange *exchange)
{
    struct tierce__proxy *proxy = exchange->relay->proxy;
    uint32_t before = atomic_fetch_sub_explicit(&proxy->unanswered, 1, memory_order_relaxed);
    TIERCE_ASSERT(before > 0);
}

static void end_stream(struct tierce__exchange *exchange)
{
    if (exchange->stream == NULL)
        return;
    leave(exchange);
    tierce__stream_end(exchange->stream);
    exchange->stream = NULL;
}

static void release_heap(void *body)
{
    tierce__free(body);
}

/* Sends a whole answer. [transfer] body */
static void reply(struct tierce__exchange *exchange, unsigned status, const char *type,
                  struct tierce__line *body)
{
    struct tierce__reply_header headers[2] = {{"X-Request-Id", exchange->request_id}};
    size_t n = 1;
    if (exchange->retry_after[0] != '\0')
        headers[n++] = (struct tierce__reply_header){"Retry-After", exchange->retry_after};
    TIERCE_ASSERT(exchange->call != NULL);
    leave(exchange);
    tierce__call_reply(exchange->call, &(struct tierce__reply){
                                           .status = status,
                                           .type = type[0] != '\0' ? type : NULL,
                                           .headers = headers,
                                           .header_count = n,
                                           .body = body->text,
                                           .bytes = body->bytes,
                                           .release = body->text != NULL ? release_heap : NULL});
    *body = (struct tierce__line){0};
    exchange->call = NULL;
}

void tierce__exchange_drop(struct tierce__exchange *exchange)
{
    struct tierce__line none = {0};
    tierce__proxy_count(exchange->relay->proxy, TIERCE__PROXY_COUNT_CLIENTS_GONE);
    tierce__exchange_let_go(exchange); /* first: the engine stops computing */
    if (exchange->call != NULL)
        reply(exchange, 503, "", &none); /* nobody reads it */
    end_stream(exchange);
    destroy(exchange);
}

static void put_error_event(struct tierce__exchange *exchange, unsigned status, const char *why)
{
    struct tierce__line line = {0};
    tierce__line_put(&line, exchange->is_within ? "\n\ndata: " : "data: ");
    tierce__body_put_error(&line, status, why);
    tierce__line_put(&line, "\n\n");
    if (!line.failed && line.bytes <= RESERVE_BYTES)
        (void)tierce__stream_write(exchange->stream, line.text, line.bytes);
    tierce__line_clear(&line);
}

void tierce__exchange_fail(struct tierce__exchange *exchange, unsigned status, const char *why)
{
    struct tierce__proxy *proxy = exchange->relay->proxy;
    atomic_fetch_add_explicit(&exchange->tenant->errors, 1, memory_order_relaxed);
    tierce__exchange_let_go(exchange);
    if (exchange->stream != NULL) {
        tierce__proxy_count(proxy, TIERCE__PROXY_COUNT_STREAMS_BROKEN);
        put_error_event(exchange, status, why);
        end_stream(exchange);
    } else {
        struct tierce__line body = {0};
        tierce__proxy_count(proxy, TIERCE__PROXY_COUNT_ERRORS);
        tierce__body_put_error(&body, status, why);
        snprintf(exchange->retry_after, sizeof(exchange->retry_after), "%s",
                 status == 503 ? "1" : "");
        reply(exchange, status, "application/json", &body);
    }
    destroy(exchange);
}

/* ---- whole answers --------------------------------------------------------------------------- */

void tierce__exchange_pass_on(struct tierce__exchange *exchange)
{
    struct tierce__proxy *proxy = exchange->relay->proxy;
    unsigned status = (unsigned)exchange->status;
    if (status < 200 || status > 599) {
        tierce__exchange_fail(exchange, 502, "the engine's answer has no valid status");
        return;
    }
    tierce__proxy_count(proxy, TIERCE__PROXY_COUNT_ANSWERS);
    if (status < 300)
        tierce__latency_add(&proxy->first_byte, tierce__now_ns() - exchange->begun_ns);
    tierce__exchange_let_go(exchange);
    reply(exchange, status, exchange->type, &exchange->answer);
    destroy(exchange);
}

static size_t collect(struct tierce__exchange *exchange, const char *bytes, size_t count)
{
    struct tierce__proxy *proxy = exchange->relay->proxy;
    TIERCE_ASSERT(exchange->answer.bytes <= proxy->config->answer_max);
    if (count > proxy->config->answer_max - exchange->answer.bytes) {
        exchange->refusal = "the engine's answer is larger than limit.answer";
        exchange->refusal_status = 502;
        return 0;
    }
    if (!tierce__held_take(&proxy->held, count)) {
        exchange->refusal = "the answers in memory are as large as limit.memory permits";
        exchange->refusal_status = 503;
        return 0;
    }
    exchange->answer_held += count;
    tierce__line_put_bytes(&exchange->answer, bytes, count);
    if (!exchange->answer.failed)
        return count;
    exchange->refusal = "no memory for the engine's answer";
    exchange->refusal_status = 503;
    return 0;
}

/* ---- streams --------------------------------------------------------------------------------- */

static void on_drained(void *arg)
{
    struct tierce__relay *relay = arg;
    atomic_store_explicit(&relay->has_room, true, memory_order_release);
    tierce__fetcher_wake(relay->fetcher);
}

static bool is_stream(struct tierce__exchange *exchange)
{
    const char *type = tierce__fetch_header(exchange->fetch, "content-type");
    return tierce__fetch_status(exchange->fetch) == 200 && type != NULL &&
           strncasecmp(type, stream_type, strlen(stream_type)) == 0;
}

/* The first byte: from now on no other engine can take over. */
static bool begin_stream(struct tierce__exchange *exchange)
{
    struct tierce__proxy *proxy = exchange->relay->proxy;
    struct tierce__reply_header header = {"X-Request-Id", exchange->request_id};
    exchange->stream = tierce__call_stream_with(
        exchange->call,
        &(struct tierce__stream_opts){.type = tierce__fetch_header(exchange->fetch, "content-type"),
                                      .headers = &header,
                                      .header_count = 1,
                                      .drained = on_drained,
                                      .arg = exchange->relay});
    if (exchange->stream == NULL) {
        exchange->refusal = "no memory for a stream";
        exchange->refusal_status = 503;
        return false;
    }
    exchange->call = NULL;
    exchange->step = TIERCE__EXCHANGE_STREAM;
    tierce__proxy_count(proxy, TIERCE__PROXY_COUNT_STREAMS);
    tierce__latency_add(&proxy->first_byte, tierce__now_ns() - exchange->begun_ns);
    return true;
}

static void keep_tail(struct tierce__exchange *exchange, const char *bytes, size_t count)
{
    size_t kept = count < TIERCE__EXCHANGE_TAIL ? TIERCE__EXCHANGE_TAIL - count : 0;
    if (kept > exchange->tail_bytes)
        kept = exchange->tail_bytes;
    memmove(exchange->tail, exchange->tail + exchange->tail_bytes - kept, kept);
    size_t fresh = count < TIERCE__EXCHANGE_TAIL - kept ? count : TIERCE__EXCHANGE_TAIL - kept;
    memcpy(exchange->tail + kept, bytes + count - fresh, fresh);
    exchange->tail_bytes = kept + fresh;
}

/* How many bytes are whole events. Lines end with "\n" or "\r\n". */
static size_t whole_events(const char *text, size_t bytes)
{
    for (size_t end = bytes; end >= 2; end--) {
        bool is_empty_line =
            text[end - 1] == '\n' &&
            (text[end - 2] == '\n' || (end >= 4 && memcmp(text + end - 4, "\r\n\r", 3) == 0));
        if (is_empty_line)
            return end;
    }
    return 0;
}

/* Passes on what is whole, so that an error can take the place of the rest; and all if the event is
 * longer than half of limit.stream. Returns false if the client is gone.
 */
static bool pass_events(struct tierce__exchange *exchange, bool is_all)
{
    struct tierce__line *event = &exchange->event;
    size_t whole = whole_events(event->text, event->bytes);
    bool is_cut = event->bytes - whole > exchange->relay->proxy->config->stream_max / 2;
    size_t count = is_all || is_cut ? event->bytes : whole;
    if (count == 0)
        return true;
    if (!tierce__stream_write(exchange->stream, event->text, count))
        return false;
    exchange->is_within = count > whole;
    memmove(event->text, event->text + count, event->bytes - count);
    event->bytes -= count;
    return true;
}

static size_t pass_bytes(struct tierce__exchange *exchange, const char *bytes, size_t count)
{
    size_t wanted = exchange->event.bytes + count + RESERVE_BYTES;
    if (tierce__stream_room(exchange->stream, wanted) < wanted) {
        tierce__proxy_count(exchange->relay->proxy, TIERCE__PROXY_COUNT_PAUSES);
        tierce__list_push_back(&exchange->relay->paused, &exchange->pause);
        exchange->room_wanted = wanted;
        return TIERCE__CURL_PAUSE;
    }
    tierce__line_put_bytes(&exchange->event, bytes, count);
    if (exchange->event.failed) {
        exchange->refusal = "no memory for an event of the stream";
        return 0;
    }
    if (!pass_events(exchange, false))
        return 0;
    keep_tail(exchange, bytes, count);
    exchange->byte_ns = tierce__now_ns();
    return count;
}

size_t tierce__exchange_take(void *arg, const char *bytes, size_t count)
{
    struct tierce__exchange *exchange = arg;
    TIERCE_ASSERT(count <= TIERCE__FETCH_PART_BYTES);
    if (exchange->step == TIERCE__EXCHANGE_DECODE && is_stream(exchange) && !begin_stream(exchange))
        return 0;
    return exchange->step == TIERCE__EXCHANGE_STREAM ? pass_bytes(exchange, bytes, count)
                                                     : collect(exchange, bytes, count);
}

static bool ends_with_done(const struct tierce__exchange *exchange)
{
    static const char mark[] = "[DONE]";
    return memmem(exchange->tail, exchange->tail_bytes, mark, strlen(mark)) != NULL;
}

void tierce__exchange_end_stream(struct tierce__exchange *exchange, int rc, const char *why,
                                 bool is_delimited)
{
    char text[400];
    if (rc == 0 && (is_delimited || ends_with_done(exchange))) {
        (void)pass_events(exchange, true);
        end_stream(exchange);
        destroy(exchange);
        return;
    }
    if (rc == 0)
        why = "the connection was closed without a mark of the end";
    const char *engine = exchange->engine->name;
    tierce__log_repeated(TIERCE_LOG_WARN, "proxy_stream_broken", "engine=%s why=\"%s\"", engine,
                         why);
    snprintf(text, sizeof(text), "the engine's answer is incomplete: %s", why);
    tierce__exchange_fail(exchange, 502, text);
}
