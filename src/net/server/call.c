/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/call_private.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define CALL_MAGIC 0x74726c63u /* "crlt" */

/* ---- texts ----------------------------------------------------------------------------------- */

static void texts_init(struct tierce__texts *texts)
{
    texts->data = texts->small;
    texts->used = 0;
    texts->capacity = sizeof(texts->small);
}

static void texts_fini(struct tierce__texts *texts)
{
    if (texts->data != texts->small)
        tierce__free(texts->data);
    texts->data = NULL;
}

static int grow(struct tierce__texts *texts, size_t wanted)
{
    size_t capacity = 2 * texts->capacity;
    while (capacity < wanted)
        capacity *= 2;
    bool was_small = texts->data == texts->small;
    char *data = tierce__realloc(was_small ? NULL : texts->data, capacity);
    if (data == NULL)
        return -ENOMEM;
    if (was_small)
        memcpy(data, texts->small, texts->used);
    texts->data = data;
    texts->capacity = capacity;
    TIERCE_ASSERT(texts->capacity >= wanted);
    return 0;
}

struct lengths {
    uint16_t name, value;
};
_Static_assert(TIERCE__HEADER_BYTES_MAX <= UINT16_MAX, "lengths fit");

static void add_text(struct tierce__texts *texts, const char *text, size_t bytes)
{
    TIERCE_ASSERT(texts->used + bytes < texts->capacity);
    if (bytes > 0)
        memcpy(texts->data + texts->used, text, bytes);
    texts->used += bytes;
    texts->data[texts->used++] = '\0';
}

int tierce__texts_add(struct tierce__texts *texts, const char *name, size_t name_bytes,
                      const char *value, size_t value_bytes)
{
    if (name_bytes > TIERCE__HEADER_BYTES_MAX || value_bytes > TIERCE__HEADER_BYTES_MAX)
        return TIERCE_E_LIMIT;
    struct lengths lengths = {(uint16_t)name_bytes, (uint16_t)value_bytes};
    size_t wanted = texts->used + sizeof(lengths) + name_bytes + value_bytes + 2;
    if (wanted > TIERCE__HEADER_BYTES_MAX)
        return TIERCE_E_LIMIT;
    if (wanted > texts->capacity && grow(texts, wanted) != 0)
        return -ENOMEM;
    memcpy(texts->data + texts->used, &lengths, sizeof(lengths));
    texts->used += sizeof(lengths);
    add_text(texts, name, name_bytes);
    add_text(texts, value, value_bytes);
    TIERCE_ASSERT(texts->used == wanted);
    return 0;
}

const char *tierce__texts_find(const struct tierce__texts *texts, const char *name)
{
    size_t name_bytes = strlen(name);
    for (const char *at = texts->data, *end = at + texts->used; at < end;) {
        struct lengths lengths;
        memcpy(&lengths, at, sizeof(lengths));
        at += sizeof(lengths);
        TIERCE_DASSERT((size_t)lengths.name + lengths.value + 2 <= (size_t)(end - at));
        if (lengths.name == name_bytes && memcmp(at, name, name_bytes) == 0)
            return at + name_bytes + 1;
        at += lengths.name + lengths.value + 2;
    }
    return NULL;
}

/* ---- a call ---------------------------------------------------------------------------------- */

static void run_deferred(struct tierce__task *task);

void tierce__call_init(struct tierce__call *call, const struct tierce__call_ops *ops,
                       struct tierce__shared *shared)
{
    call->magic = CALL_MAGIC;
    call->ops = ops;
    call->shared = shared;
    atomic_init(&call->holders, 1);
    atomic_init(&call->is_over, false);
    call->info.deadline_ns = TIERCE__DEADLINE_NEVER;
    call->info.query = "";
    call->work.run = run_deferred;
    texts_init(&call->headers);
}

/* Clients cannot send names with a space. */
int tierce__call_set_peer(struct tierce__call *call, const char *peer, const char *certificate)
{
    int rc = tierce__texts_add(&call->headers, " peer", 5, peer, strlen(peer));
    if (rc == 0 && certificate != NULL)
        rc = tierce__texts_add(&call->headers, " cn", 3, certificate, strlen(certificate));
    if (rc != 0)
        return rc;
    call->info.peer = tierce__texts_find(&call->headers, " peer");
    call->info.certificate = tierce__texts_find(&call->headers, " cn");
    return 0;
}

void tierce__call_drop(struct tierce__call *call)
{
    TIERCE_CHECK_MAGIC(call, CALL_MAGIC);
    TIERCE_ASSERT(atomic_load_explicit(&call->holders, memory_order_relaxed) > 0);
    if (atomic_fetch_sub_explicit(&call->holders, 1, memory_order_acq_rel) > 1)
        return;
    void *state = tierce__call_take_state(call);
    if (state != NULL)
        call->release_state(state);
    call->magic = 0;
    texts_fini(&call->headers);
    call->ops->destroy(call);
}

void tierce__call_dispatch(struct tierce__call *call)
{
    TIERCE_ASSERT(call->route != NULL);
    TIERCE_ASSERT(atomic_load_explicit(&call->holders, memory_order_relaxed) > 0);
    atomic_fetch_add_explicit(&call->holders, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&call->shared->handlers, 1, memory_order_relaxed);
    call->route->serve(call->route->arg, call);
}

void tierce__call_handler_is_done(struct tierce__call *call)
{
    struct tierce__shared *shared = call->shared;
    TIERCE_ASSERT(atomic_load_explicit(&shared->handlers, memory_order_relaxed) > 0);
    tierce__call_drop(call);
    atomic_fetch_sub_explicit(&shared->handlers, 1, memory_order_release);
}

/* Makes the server's own answer. `why` needs no escaping in JSON. */
static void refuse(struct tierce__call *call, uint32_t grpc, uint32_t http, const char *why)
{
    char text[128];
    int n = snprintf(text, sizeof(text), "{\"error\":\"%s\"}", why);
    TIERCE_ASSERT(n > 0 && (size_t)n < sizeof(text));
    struct tierce__reply reply = {.status = grpc, .message = why};
    if (call->info.protocol == TIERCE__SERVE_HTTP)
        reply = (struct tierce__reply){.status = http, .body = text, .bytes = (size_t)n};
    tierce__call_reply(call, &reply);
}

static void run_deferred(struct tierce__task *task)
{
    struct tierce__call *call = TIERCE__CONTAINER_OF(task, struct tierce__call, work);
    TIERCE_ASSERT(call->was_deferred || call->was_aside);
    if (tierce__call_is_over(call)) {
        bool late = tierce__now_ns() >= call->info.deadline_ns;
        refuse(call, late ? TIERCE__GRPC_DEADLINE_EXCEEDED : TIERCE__GRPC_CANCELLED,
               late ? 504 : 503, late ? "deadline exceeded" : "cancelled");
        return;
    }
    call->info.is_deferred = call->was_deferred;
    call->info.was_aside = call->was_aside;
    call->route->serve(call->route->arg, call);
}

const struct tierce__call_info *tierce__call_info(const struct tierce__call *call)
{
    TIERCE_CHECK_MAGIC(call, CALL_MAGIC);
    return &call->info;
}

const char *tierce__call_header(const struct tierce__call *call, const char *name)
{
    TIERCE_CHECK_MAGIC(call, CALL_MAGIC);
    return tierce__texts_find(&call->headers, name);
}

static void submit(struct tierce__call *call, struct tierce__workers *workers)
{
    if (!tierce__workers_submit(workers, &call->work))
        refuse(call, TIERCE__GRPC_RESOURCE_EXHAUSTED, 503, "the queue of calls is full");
}

void tierce__call_defer(struct tierce__call *call)
{
    TIERCE_CHECK_MAGIC(call, CALL_MAGIC);
    TIERCE_ASSERT(!call->was_deferred);
    call->was_deferred = true;
    submit(call, call->shared->workers);
}

void tierce__call_defer_with(struct tierce__call *call, void *state, size_t bytes,
                             void (*release)(void *state))
{
    TIERCE_CHECK_MAGIC(call, CALL_MAGIC);
    TIERCE_ASSERT(call->state == NULL);
    if (!tierce__held_take(&call->shared->held, bytes)) {
        release(state);
        refuse(call, TIERCE__GRPC_RESOURCE_EXHAUSTED, 503,
               "the queue of calls holds too many bytes");
        return;
    }
    call->state = state;
    call->state_bytes = bytes;
    call->release_state = release;
    tierce__call_defer(call);
}

void *tierce__call_take_state(struct tierce__call *call)
{
    TIERCE_CHECK_MAGIC(call, CALL_MAGIC);
    void *state = call->state;
    if (state != NULL)
        tierce__held_give_back(&call->shared->held, call->state_bytes);
    call->state = NULL;
    return state;
}

void tierce__call_defer_aside(struct tierce__call *call)
{
    TIERCE_CHECK_MAGIC(call, CALL_MAGIC);
    TIERCE_ASSERT(!call->was_aside);
    call->was_aside = true;
    submit(call, call->shared->aside);
}

bool tierce__call_is_over(const struct tierce__call *call)
{
    TIERCE_CHECK_MAGIC(call, CALL_MAGIC);
    if (atomic_load_explicit(&call->is_over, memory_order_relaxed))
        return true;
    if (call->info.deadline_ns != TIERCE__DEADLINE_NEVER &&
        tierce__now_ns() >= call->info.deadline_ns)
        return true;
    return call->ops->is_gone != NULL && call->ops->is_gone(call);
}

void tierce__call_reply(struct tierce__call *call, const struct tierce__reply *reply)
{
    TIERCE_CHECK_MAGIC(call, CALL_MAGIC);
    call->ops->reply(call, reply);
    tierce__call_handler_is_done(call);
}

static void reply_words(struct tierce__call *call, uint32_t status, const char *challenge,
                        const char *text)
{
    tierce__call_reply(
        call, &(struct tierce__reply){.status = status,
                                      .header_name = challenge != NULL ? "WWW-Authenticate" : NULL,
                                      .header_value = challenge,
                                      .type = "text/plain; charset=utf-8",
                                      .body = text,
                                      .bytes = strlen(text)});
}

void tierce__call_reply_text(struct tierce__call *call, uint32_t status, const char *text)
{
    reply_words(call, status, NULL, text);
}

void tierce__call_reply_unknown(struct tierce__call *call, const char *challenge, const char *text)
{
    reply_words(call, 401, challenge, text);
}

static void release_heap(void *body)
{
    tierce__free(body);
}

void tierce__call_reply_heap(struct tierce__call *call, const char *type, char *body, size_t bytes)
{
    if (body == NULL)
        tierce__call_reply_text(call, 500, "no memory\n");
    else
        tierce__call_reply(call, &(struct tierce__reply){.status = 200,
                                                         .type = type,
                                                         .body = body,
                                                         .bytes = bytes,
                                                         .release = release_heap});
}
