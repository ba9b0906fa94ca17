/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "store/coded/coded_connector_private.h"

#include <stddef.h>
#include <string.h>

/*
 * Chunks on their way to a store. One thread encodes them and passes them on, raw ones too. The
 * tier above keeps puts and deletions of a name in order, and a prefix before its suffix, so
 * nothing here has to.
 */

static struct tierce__coded_upload *upload_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__coded_upload, node);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void end_upload(struct tierce__coded_upload *p)
{
    struct tierce__coded_connector *c = p->connector;
    tierce__buf_release(p->coded);
    tierce__lock_take(&c->lock);
    TIERCE_ASSERT(c->put_staging >= p->staged && c->put_count > 0);
    c->put_staging -= p->staged;
    c->put_count--;
    tierce__cond_signal(&c->encode_cond);
    tierce__coded_connector_tell_idle(c);
    tierce__lock_drop(&c->lock);
    tierce__free(p);
}

static void answer(struct tierce__coded_upload *p, int status)
{
    struct tierce__store_req *req = p->req;
    req->status = status;
    req->repeats = true; /* a deadline that passed here is not the store's failure */
    req->done(req);
    end_upload(p);
}

static void has_stored(struct tierce__store_req *inner)
{
    struct tierce__coded_upload *p = inner->arg;
    struct tierce__coded_connector *c = p->connector;
    struct tierce__store_req *req = p->req;
    tierce__lock_take(&c->lock);
    tierce__coded_object_forget(c, req->names);
    tierce__lock_drop(&c->lock);
    req->found = inner->found;
    req->coded_bytes = inner->coded_bytes;
    req->repeats = inner->repeats;
    req->connected = inner->connected;
    req->status = inner->status;
    req->done(req);
    end_upload(p);
}

void tierce__coded_connector_cancel_puts(struct tierce__coded_connector *c)
{
    struct tierce__list all;
    tierce__list_init(&all);
    tierce__lock_take(&c->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &c->puts) {
        tierce__list_remove(it);
        tierce__list_push_back(&all, it);
    }
    tierce__lock_drop(&c->lock);
    while (!tierce__list_empty(&all)) {
        struct tierce__coded_upload *p = upload_of(all.next);
        tierce__list_remove(&p->node);
        answer(p, TIERCE_E_CANCELLED);
    }
}

/* ---- encoding -------------------------------------------------------------------------------- */

static bool is_chunk(const struct tierce__store_req *req, struct tierce__chunk_info *info)
{
    return tierce__chunk_parse(info, req->buf->data, req->length) == 0 &&
           info->extent.object_bytes == req->length;
}

static struct tierce__coded_kind kind_of(struct tierce__coded_connector *c,
                                         const struct tierce__chunk_info *info)
{
    int64_t ns = tierce__namespaces_find(c->elements.namespaces, info->ns_digest);
    return ns >= 0 ? tierce__coded_kind_of(&c->elements, (uint32_t)ns)
                   : (struct tierce__coded_kind){.element = TIERCE__ELEMENT_RAW};
}

/* The codec for an object: the lossy one that its namespace has chosen, or that of the connector.
 */
static const struct tierce__codec *codec_for(struct tierce__coded_connector *c,
                                             const struct tierce__store_req *req)
{
    struct tierce__chunk_info info;
    if (!is_chunk(req, &info))
        return c->codec;
    struct tierce__coded_kind kind = kind_of(c, &info);
    return kind.lossy != NULL ? kind.lossy : c->codec;
}

/* Encodes the chunk of `making` to p->coded. Returns its length; 0 and `why`: p->coded is NULL. */
static uint64_t make(struct tierce__coded_upload *p, const struct tierce__coded_making *making,
                     enum tierce__coded_raw *why)
{
    uint64_t room = tierce__coded_room(making->object, making->info);
    *why = TIERCE__CODED_RAW_MEMORY;
    p->coded = tierce__coded_connector_alloc(p->connector, room);
    if (p->coded == NULL)
        return 0;
    int64_t length = tierce__coded_make(p->coded->data, room, making);
    if (length > 0)
        return (uint64_t)length;
    if (length == 0)
        *why = TIERCE__CODED_RAW_LONGER;
    else if (length == TIERCE_E_VERSION)
        *why = TIERCE__CODED_RAW_KEY;
    tierce__buf_release(p->coded);
    p->coded = NULL;
    return 0;
}

/* Encodes an object; p->coded stays NULL if it stays raw, or is not stored because it cannot be
 * encrypted, with *refusal as its status. Returns the coded length. */
static uint64_t encode(struct tierce__coded_upload *p, int *refusal)
{
    struct tierce__coded_connector *c = p->connector;
    const struct tierce__store_req *req = p->req;
    struct tierce__chunk_info info;
    struct tierce__coded_making making = {.object = req->buf->data,
                                          .info = &info,
                                          .element = TIERCE__ELEMENT_RAW,
                                          .elements = &c->elements,
                                          .keys = c->encrypts ? c->keys : NULL};
    uint64_t begun = tierce__now_ns(), length = 0;
    enum tierce__coded_raw uncoded = TIERCE__CODED_RAW_LONGER, why = TIERCE__CODED_RAWS;
    bool is_valid = is_chunk(req, &info);
    if (is_valid && p->codec != NULL) {
        making.element = kind_of(c, &info).element;
        uncoded =
            making.element == TIERCE__ELEMENT_RAW ? TIERCE__CODED_RAW_ELEMENT : TIERCE__CODED_RAWS;
        making.codec = uncoded == TIERCE__CODED_RAWS ? p->codec : NULL;
    }
    if (is_valid && (making.codec != NULL || making.keys != NULL))
        length = make(p, &making, &why);
    uint64_t took = tierce__now_ns() - begun;
    tierce__lock_take(&c->lock);
    c->stats.encode_ns += took;
    if (length > 0)
        tierce__coded_count_made(&c->stats, &making, req->length, length);
    else
        c->stats.refused_chunks += c->encrypts;
    if (p->codec != NULL && making.codec == NULL)
        c->stats.raw_chunks[uncoded]++;
    else if (length == 0 && !c->encrypts)
        c->stats.raw_chunks[why]++;
    tierce__lock_drop(&c->lock);
    *refusal = why == TIERCE__CODED_RAW_KEY ? TIERCE_E_NO_KEY : TIERCE_E_FULL;
    return length;
}

static void handle(struct tierce__coded_upload *p)
{
    struct tierce__coded_connector *c = p->connector;
    int refusal;
    uint64_t length = encode(p, &refusal);
    if (p->coded == NULL && c->encrypts) {
        answer(p, refusal);
        return;
    }
    if (p->coded == NULL) { /* the store reads the caller's memory */
        tierce__lock_take(&c->lock);
        c->put_staging -= p->staged;
        tierce__lock_drop(&c->lock);
        p->staged = 0;
    }
    /* Not the scratch: the tier whose request this is writes its own there at any time. */
    memcpy(&p->inner, p->req, offsetof(struct tierce__store_req, scratch));
    p->inner.done = has_stored;
    p->inner.arg = p;
    if (p->coded != NULL) {
        p->inner.buf = p->coded;
        p->inner.length = p->inner.coded_bytes = length;
        p->inner.object_bytes = p->req->length;
        p->inner.raw = c->encrypts ? NULL : p->req->buf;
    }
    if (tierce__coded_connector_pass(c, &p->inner))
        return;
    p->inner.status = TIERCE_E_CLOSED;
    has_stored(&p->inner);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* The next put, if there is memory to encode it. Under the lock. */
static struct tierce__coded_upload *next_put(struct tierce__coded_connector *c)
{
    tierce__lock_assert_held(&c->lock);
    if (tierce__list_empty(&c->puts))
        return NULL;
    struct tierce__coded_upload *p = upload_of(c->puts.next);
    uint64_t bytes = p->req->length;
    if (c->put_staging > 0 && c->put_staging + bytes > c->staging_bytes_max)
        return NULL;
    tierce__list_remove(&p->node);
    p->staged = bytes;
    c->put_staging += bytes;
    return p;
}

/* Takes a put whose deadline has passed off the queue. Returns NULL if there is none. Under the
 * lock. */
static struct tierce__coded_upload *late_put(struct tierce__coded_connector *c)
{
    uint64_t now = tierce__now_ns();
    tierce__lock_assert_held(&c->lock);
    if (now < c->put_deadline)
        return NULL;
    c->put_deadline = TIERCE__DEADLINE_NEVER;
    struct tierce__coded_upload *late = NULL;
    TIERCE__LIST_FOR_EACH (it, &c->puts) {
        struct tierce__coded_upload *p = upload_of(it);
        if (late == NULL && p->req->deadline_ns <= now)
            late = p;
        else if (p->req->deadline_ns < c->put_deadline)
            c->put_deadline = p->req->deadline_ns;
    }
    if (late != NULL)
        tierce__list_remove(&late->node);
    return late;
}

static void *encoder_main(void *arg)
{
    struct tierce__coded_connector *c = arg;
    tierce__thread_does_not_interrupt();
    tierce__lock_take(&c->lock);
    while (!c->stop) {
        struct tierce__coded_upload *late = late_put(c);
        struct tierce__coded_upload *p = late == NULL ? next_put(c) : NULL;
        if (late == NULL && p == NULL) {
            (void)tierce__cond_wait(&c->encode_cond, &c->lock, c->put_deadline);
            continue;
        }
        tierce__lock_drop(&c->lock);
        if (late != NULL)
            answer(late, TIERCE_E_DEADLINE);
        else
            handle(p);
        tierce__lock_take(&c->lock);
    }
    tierce__lock_drop(&c->lock);
    return NULL;
}

static bool start_encoder(struct tierce__coded_connector *c)
{
    tierce__lock_assert_held(&c->lock);
    if (!c->encoder_runs)
        c->encoder_runs = tierce__coded_connector_pool(c) == 0 &&
                          tierce__thread_start_on(&c->encoder, &c->affinity, encoder_main, c) == 0;
    return c->encoder_runs;
}

/* ---- begin ----------------------------------------------------------------------------------- */

/* Adds a put to the queue. False: there is no memory or no thread. Under the lock. */
static bool enqueue(struct tierce__coded_connector *c, struct tierce__store_req *req,
                    const struct tierce__codec *codec)
{
    struct tierce__coded_upload *p = start_encoder(c) ? tierce__calloc(1, sizeof(*p)) : NULL;
    if (p == NULL)
        return false;
    p->connector = c;
    p->req = req;
    p->codec = codec;
    tierce__list_push_back(&c->puts, &p->node);
    c->put_count++;
    if (req->deadline_ns < c->put_deadline)
        c->put_deadline = req->deadline_ns;
    tierce__cond_signal(&c->encode_cond);
    return true;
}

bool tierce__coded_connector_put(struct tierce__coded_connector *c, struct tierce__store_req *req)
{
    bool is_sane = req->buf != NULL && req->name_count == 1 && req->offset == 0 &&
                   req->length >= TIERCE__CHUNK_ALIGN && req->length <= req->buf->bytes;
    const struct tierce__codec *codec = is_sane ? codec_for(c, req) : c->codec;
    struct tierce__coded_news news = {0};
    tierce__lock_take(&c->lock);
    if (req->name_count == 1)
        tierce__coded_object_forget(c, req->names);
    bool encodes = (codec != NULL || c->encrypts) && is_sane && !c->closing;
    bool is_slow = encodes && codec != NULL && tierce__coded_speed_is_slow(&c->speed, &news, codec);
    bool is_sample = encodes && codec != NULL && !is_slow && !c->encrypts &&
                     tierce__coded_speed_samples(&c->speed, req->length);
    bool stays_raw = is_slow || is_sample;
    bool taken =
        encodes && (!stays_raw || c->encrypts) && enqueue(c, req, stays_raw ? NULL : codec);
    bool is_refused = c->encrypts && !taken;
    int status = c->closing ? TIERCE_E_CLOSED : is_sane ? TIERCE_E_FULL : TIERCE_E_ARGUMENT;
    c->stats.refused_chunks += is_refused && !c->closing;
    if (encodes && codec != NULL && (stays_raw || !taken))
        c->stats.raw_chunks[is_slow     ? TIERCE__CODED_RAW_SLOW
                            : is_sample ? TIERCE__CODED_RAW_SAMPLE
                                        : TIERCE__CODED_RAW_MEMORY]++;
    tierce__lock_drop(&c->lock);
    tierce__coded_log_news(c->name, &news);
    if (is_refused) { /* it is never passed on as it is */
        req->status = status;
        req->done(req);
    }
    return taken || is_refused;
}
