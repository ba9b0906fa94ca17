/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "store/coded/coded_private.h"

#include <errno.h>
#include <string.h>

/*
 * Chunks on their way to the disk. One thread encodes them in the order in which they were put, and
 * gives them to the inner tier in this order too, raw ones included: a tier rejects a chunk whose
 * parent it has not been given yet.
 */

static struct tierce__coded_put *put_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__coded_put, node);
}

/* ---- begin ----------------------------------------------------------------------------------- */

static bool is_sane(const struct tierce__store_req *req)
{
    return req->buf != NULL && req->object_bytes >= TIERCE__CHUNK_ALIGN &&
           req->object_bytes % TIERCE__CHUNK_ALIGN == 0 && req->object_bytes <= req->buf->bytes;
}

/* Why a chunk is not to be encoded; TIERCE__CODED_RAWS: it is. Under the lock. */
static enum tierce__coded_raw stays_raw(struct tierce__coded_tier *t,
                                        struct tierce__coded_news *news,
                                        const struct tierce__codec *codec,
                                        enum tierce__element element, uint64_t bytes)
{
    if (element == TIERCE__ELEMENT_RAW)
        return TIERCE__CODED_RAW_ELEMENT;
    if (tierce__coded_speed_is_slow(&t->speed, news, codec))
        return TIERCE__CODED_RAW_SLOW;
    if (t->queued_bytes > t->queue_bytes_max / 2)
        return TIERCE__CODED_RAW_BEHIND;
    return !t->encrypts && tierce__coded_speed_samples(&t->speed, bytes) ? TIERCE__CODED_RAW_SAMPLE
                                                                         : TIERCE__CODED_RAWS;
}

static bool start_encoder(struct tierce__coded_tier *t)
{
    tierce__lock_assert_held(&t->lock);
    if (!t->encoder_runs)
        t->encoder_runs =
            tierce__coded_pool(t) == 0 &&
            tierce__thread_start_on(&t->encoder, &t->affinity, tierce__coded_encoder_main, t) == 0;
    return t->encoder_runs;
}

/* Adds a put to the queue; NULL: there is no memory or no room. Under the lock. */
static struct tierce__coded_put *enqueue(struct tierce__coded_tier *t,
                                         struct tierce__store_req *req,
                                         const struct tierce__codec *codec,
                                         enum tierce__element element)
{
    bool is_empty = tierce__list_empty(&t->puts);
    if (!is_empty && t->queued_bytes + req->object_bytes > t->queue_bytes_max)
        return NULL;
    struct tierce__coded_put *p = start_encoder(t) ? tierce__calloc(1, sizeof(*p)) : NULL;
    if (p == NULL)
        return NULL;
    p->tier = t;
    p->req = req;
    p->key = req->keys[0];
    p->raw = req->buf;
    p->codec = codec;
    p->element = element;
    p->reference_count = 1;
    tierce__buf_acquire(p->raw);
    tierce__list_push_back(&t->puts, &p->node);
    t->queued_bytes += req->object_bytes;
    t->put_count++;
    if (req->deadline_ns < t->put_deadline)
        t->put_deadline = req->deadline_ns;
    tierce__cond_signal(&t->encode_cond);
    return p;
}

static const struct tierce__codec *codec_for(const struct tierce__coded_tier *t,
                                             const struct tierce__coded_kind *kind)
{
    return kind->lossy != NULL ? kind->lossy : t->codec;
}

static void reject(struct tierce__store_req *req, int status)
{
    req->status = status;
    req->done(req);
}

/* A put that the inner tier is never given as it is. A chunk that the codec is not for, or has no
 * time for, is encrypted without it. */
static void begin_encrypted(struct tierce__coded_tier *t, struct tierce__store_req *req)
{
    if (!is_sane(req)) {
        reject(req, TIERCE_E_ARGUMENT);
        return;
    }
    struct tierce__coded_kind kind = tierce__coded_kind_of(&t->elements, req->keys[0].ns);
    const struct tierce__codec *codec = codec_for(t, &kind);
    struct tierce__coded_news news = {0};
    tierce__lock_take(&t->lock);
    enum tierce__coded_raw why = codec != NULL
                                     ? stays_raw(t, &news, codec, kind.element, req->object_bytes)
                                     : TIERCE__CODED_RAW_ELEMENT;
    bool is_closed = t->closing, is_coded = why == TIERCE__CODED_RAWS;
    const char *name = t->ops.name;
    struct tierce__coded_put *p = is_closed
                                      ? NULL
                                      : enqueue(t, req, is_coded ? codec : NULL,
                                                is_coded ? kind.element : TIERCE__ELEMENT_RAW);
    if (p != NULL && codec != NULL && !is_coded)
        t->stats.raw_chunks[why]++;
    t->dropped += p == NULL && !is_closed;
    tierce__lock_drop(&t->lock);
    tierce__coded_log_news(name, &news);
    if (p == NULL)
        reject(req, is_closed ? TIERCE_E_CLOSED : TIERCE_E_FULL);
}

bool tierce__coded_put_begin(struct tierce__coded_tier *t, struct tierce__store_req *req)
{
    if (t->encrypts) {
        begin_encrypted(t, req);
        return true;
    }
    struct tierce__coded_kind kind = tierce__coded_kind_of(&t->elements, req->keys[0].ns);
    const struct tierce__codec *codec = codec_for(t, &kind);
    if (codec == NULL || !is_sane(req))
        return false;
    struct tierce__coded_news news = {0};
    tierce__lock_take(&t->lock);
    enum tierce__coded_raw why = stays_raw(t, &news, codec, kind.element, req->object_bytes);
    const char *name = t->ops.name;
    bool must_queue = !tierce__list_empty(&t->puts); /* behind chunks that may be its parents */
    bool passes = t->closing || (why != TIERCE__CODED_RAWS && !must_queue);
    struct tierce__coded_put *p = NULL;
    if (!passes)
        p = enqueue(t, req, why == TIERCE__CODED_RAWS ? codec : NULL, kind.element);
    if (!passes && p == NULL) {
        passes = !must_queue;
        why = TIERCE__CODED_RAW_MEMORY;
        t->dropped += must_queue;
    }
    if ((p != NULL || passes) && why != TIERCE__CODED_RAWS && !t->closing)
        t->stats.raw_chunks[why]++;
    tierce__lock_drop(&t->lock);
    tierce__coded_log_news(name, &news);
    if (p != NULL || passes)
        return p != NULL;
    reject(req, TIERCE_E_FULL);
    return true;
}

/* ---- cancelling ------------------------------------------------------------------------------ */

static bool concerns(const struct tierce__store_req *req, const struct tierce__key *key)
{
    if (req->op == TIERCE__STORE_DELETE)
        return tierce__key_equal(&req->keys[0], key);
    return req->key_count == 0 || req->keys[0].ns == key->ns;
}

bool tierce__coded_puts_cancel(struct tierce__coded_tier *t, const struct tierce__store_req *req,
                               struct tierce__list *finished)
{
    bool waits = false;
    tierce__lock_assert_held(&t->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &t->puts) {
        struct tierce__coded_put *p = put_of(it);
        if (req != NULL && !concerns(req, &p->key))
            continue;
        waits |= p->state == TIERCE__CODED_PASSING;
        p->cancelled |= p->state == TIERCE__CODED_ENCODING;
        if (p->state != TIERCE__CODED_QUEUED)
            continue;
        tierce__list_remove(it);
        tierce__list_push_back(finished, it);
        t->queued_bytes -= p->req->object_bytes;
    }
    return waits;
}

/* One of the two holders of a put lets go of it. */
static void leave(struct tierce__coded_put *p)
{
    struct tierce__coded_tier *t = p->tier;
    tierce__lock_take(&t->lock);
    TIERCE_ASSERT(p->reference_count > 0);
    bool last = --p->reference_count == 0;
    if (last)
        t->put_count--;
    if (t->closing)
        tierce__cond_broadcast(&t->idle_cond);
    tierce__lock_drop(&t->lock);
    if (last)
        tierce__free(p);
}

/* Answers a put that the inner tier was not given. */
static void answer(struct tierce__coded_put *p, int status)
{
    struct tierce__store_req *req = p->req;
    tierce__buf_release(p->raw);
    req->status = status;
    req->repeats = true; /* a deadline that passed here is not the device's failure */
    req->done(req);
    leave(p);
}

void tierce__coded_puts_answer(struct tierce__list *finished, int status)
{
    while (!tierce__list_empty(finished)) {
        struct tierce__coded_put *p = put_of(finished->next);
        tierce__list_remove(&p->node);
        answer(p, status);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void give_back(struct tierce__coded_put *p)
{
    struct tierce__coded_tier *t = p->tier;
    uint64_t bytes = p->coded->bytes;
    tierce__buf_release(p->coded);
    p->coded = NULL;
    tierce__lock_take(&t->lock);
    TIERCE_ASSERT(t->put_staging >= bytes);
    t->put_staging -= bytes;
    tierce__cond_signal(&t->encode_cond);
    tierce__lock_drop(&t->lock);
}

static void put_done(struct tierce__store_req *inner)
{
    struct tierce__coded_put *p = inner->arg;
    struct tierce__store_req *req = p->req;
    give_back(p);
    req->found = inner->found;
    req->repeats = inner->repeats;
    req->status = inner->status;
    req->done(req);
    leave(p);
}

/* Whether the inner tier has the chunk already, so that encoding it would be in vain. */
static bool is_stored(struct tierce__coded_put *p)
{
    struct tierce__store_req look;
    return tierce__coded_look(p->tier, &look, &p->key, TIERCE__DEADLINE_NEVER) > 0;
}

/* Encodes a raw object of so many bytes, with the codec and element of `making`. Returns the length
 * of *coded, or 0 and why it stays raw; *coded is NULL then. */
static uint64_t encode_object(struct tierce__coded_tier *t, struct tierce__buf **coded,
                              const struct tierce__buf *raw, uint64_t object_bytes,
                              struct tierce__coded_making *making, enum tierce__coded_raw *why)
{
    struct tierce__chunk_info info;
    *coded = NULL;
    *why = TIERCE__CODED_RAW_LONGER;
    if (tierce__chunk_parse(&info, raw->data, object_bytes) != 0 ||
        info.extent.object_bytes != object_bytes)
        return 0;
    making->object = raw->data;
    making->info = &info;
    making->elements = &t->elements;
    making->keys = t->encrypts ? t->keys : NULL;
    uint64_t room = tierce__coded_room(raw->data, &info);
    struct tierce__buf *buf = tierce__coded_alloc(t, room);
    if (buf == NULL) {
        *why = TIERCE__CODED_RAW_MEMORY;
        return 0;
    }
    int64_t length = tierce__coded_make(buf->data, room, making);
    making->info = NULL;
    if (length < 0)
        *why = length == TIERCE_E_VERSION ? TIERCE__CODED_RAW_KEY : TIERCE__CODED_RAW_MEMORY;
    if (length <= 0) {
        tierce__buf_release(buf);
        return 0;
    }
    *coded = buf;
    return (uint64_t)length;
}

/* Encodes a chunk; p->coded stays NULL if it stays raw. Returns the status of a chunk that must be
 * encrypted and was not. */
static int encode(struct tierce__coded_put *p)
{
    struct tierce__coded_tier *t = p->tier;
    enum tierce__coded_raw why = TIERCE__CODED_RAWS;
    struct tierce__coded_making making = {.codec = p->codec, .element = p->element};
    uint64_t begun = tierce__now_ns();
    if (!t->encrypts &&
        is_stored(p)) /* the chunk may be evicted before the inner tier has the put */
        return 0;
    uint64_t length = encode_object(t, &p->coded, p->raw, p->req->object_bytes, &making, &why);
    uint64_t took = tierce__now_ns() - begun;
    tierce__lock_take(&t->lock);
    t->stats.encode_ns += took;
    if (p->coded != NULL) {
        tierce__coded_count_made(&t->stats, &making, p->req->object_bytes, length);
        t->put_staging += p->coded->bytes;
    } else if (t->encrypts) {
        t->stats.refused_chunks++;
    } else {
        t->stats.raw_chunks[why]++;
    }
    tierce__lock_drop(&t->lock);
    p->coded_bytes = length;
    return why == TIERCE__CODED_RAW_KEY ? TIERCE_E_NO_KEY : TIERCE_E_FULL;
}

bool tierce__coded_tier_has_element(struct tierce__tier *tier, uint32_t ns)
{
    struct tierce__coded_tier *t = (struct tierce__coded_tier *)tier;
    TIERCE_CHECK_MAGIC(t, TIERCE__CODED_MAGIC);
    return tierce__coded_kind_of(&t->elements, ns).element != TIERCE__ELEMENT_RAW;
}

uint64_t tierce__coded_tier_encode(struct tierce__tier *tier, struct tierce__buf **coded,
                                   const struct tierce__coded_source *source,
                                   enum tierce__coded_raw *why)
{
    struct tierce__coded_tier *t = (struct tierce__coded_tier *)tier;
    TIERCE_CHECK_MAGIC(t, TIERCE__CODED_MAGIC);
    enum tierce__element element = tierce__coded_kind_of(&t->elements, source->ns).element;
    *coded = NULL;
    *why = TIERCE__CODED_RAW_ELEMENT;
    if (element == TIERCE__ELEMENT_RAW)
        return 0;
    tierce__lock_take(&t->lock);
    int rc = tierce__coded_pool(t);
    tierce__lock_drop(&t->lock);
    *why = TIERCE__CODED_RAW_MEMORY;
    struct tierce__coded_making making = {.codec = source->codec, .element = element};
    return rc == 0 ? encode_object(t, coded, source->raw, source->object_bytes, &making, why) : 0;
}

/* Gives a put to the inner tier, coded or raw. */
static void pass(struct tierce__coded_put *p)
{
    struct tierce__buf *raw = p->raw;
    if (p->coded == NULL) {
        struct tierce__store_req *req = p->req;
        req->coded_bytes = 0;
        /* The request is the caller's from here on. */
        if (!tierce__coded_pass(p->tier, req)) {
            req->status = TIERCE_E_CLOSED;
            req->done(req);
        }
        tierce__buf_release(raw);
        return;
    }
    p->inner = *p->req;
    p->inner.done = put_done;
    p->inner.arg = p;
    p->inner.buf = p->coded;
    p->inner.coded_bytes = p->coded_bytes;
    p->reference_count++; /* the inner tier; nobody else looks at it now */
    if (!tierce__coded_pass(p->tier, &p->inner)) {
        p->inner.status = TIERCE_E_CLOSED;
        put_done(&p->inner);
    }
    tierce__buf_release(raw);
}

/* Requests that have waited for a put to be passed on. */
static void submit_deferred(struct tierce__coded_tier *t, struct tierce__list *deferred)
{
    while (!tierce__list_empty(deferred)) {
        struct tierce__store_req *req =
            TIERCE__CONTAINER_OF(deferred->next, struct tierce__store_req, node);
        tierce__list_remove(&req->node);
        t->base.ops->submit(&t->base, req);
    }
}

static void handle(struct tierce__coded_tier *t, struct tierce__coded_put *p)
{
    struct tierce__list deferred;
    uint64_t bytes = p->req->object_bytes;
    tierce__list_init(&deferred);
    int refusal = p->codec != NULL || t->encrypts ? encode(p) : 0;
    bool is_refused = t->encrypts && p->coded == NULL;
    tierce__lock_take(&t->lock);
    bool cancelled = p->cancelled;
    int status = t->inner_closes ? TIERCE_E_CLOSED : TIERCE_E_CANCELLED;
    p->state = TIERCE__CODED_PASSING;
    tierce__lock_drop(&t->lock);
    if (cancelled) {
        if (p->coded != NULL)
            give_back(p);
    } else if (!is_refused) {
        pass(p);
    }
    tierce__lock_take(&t->lock);
    tierce__list_remove(&p->node);
    t->queued_bytes -= bytes;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &t->deferred) {
        tierce__list_remove(it);
        tierce__list_push_back(&deferred, it);
    }
    tierce__lock_drop(&t->lock);
    if (cancelled || is_refused)
        answer(p, cancelled ? status : refusal);
    else
        leave(p);
    submit_deferred(t, &deferred);
}

/* The next put, if there is memory to encode it. Under the lock. */
static struct tierce__coded_put *next_put(struct tierce__coded_tier *t)
{
    if (tierce__list_empty(&t->puts))
        return NULL;
    struct tierce__coded_put *p = put_of(t->puts.next);
    bool fits = (p->codec == NULL && !t->encrypts) || t->put_staging == 0 ||
                t->put_staging + p->req->object_bytes <= t->staging_bytes_max;
    return fits ? p : NULL;
}

/* Takes the puts off the queue whose deadline has passed. Under the lock. */
static void sweep(struct tierce__coded_tier *t, struct tierce__list *late)
{
    uint64_t now = tierce__now_ns();
    if (now < t->put_deadline)
        return;
    t->put_deadline = TIERCE__DEADLINE_NEVER;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &t->puts) {
        struct tierce__coded_put *p = put_of(it);
        TIERCE_DASSERT(p->state == TIERCE__CODED_QUEUED);
        if (p->req->deadline_ns <= now) {
            tierce__list_remove(it);
            tierce__list_push_back(late, it);
            t->queued_bytes -= p->req->object_bytes;
        } else if (p->req->deadline_ns < t->put_deadline) {
            t->put_deadline = p->req->deadline_ns;
        }
    }
}

void *tierce__coded_encoder_main(void *arg)
{
    struct tierce__coded_tier *t = arg;
    tierce__thread_does_not_interrupt();
    tierce__lock_take(&t->lock);
    while (!t->stop) {
        struct tierce__list late;
        tierce__list_init(&late);
        sweep(t, &late);
        if (!tierce__list_empty(&late)) {
            tierce__lock_drop(&t->lock);
            tierce__coded_puts_answer(&late, TIERCE_E_DEADLINE);
            tierce__lock_take(&t->lock);
            continue;
        }
        struct tierce__coded_put *p = next_put(t);
        if (p == NULL) {
            (void)tierce__cond_wait(&t->encode_cond, &t->lock, t->put_deadline);
            continue;
        }
        p->state = TIERCE__CODED_ENCODING;
        tierce__lock_drop(&t->lock);
        handle(t, p);
        tierce__lock_take(&t->lock);
    }
    tierce__lock_drop(&t->lock);
    return NULL;
}
