/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "store/coded/coded_connector_private.h"

#include <string.h>

/*
 * Gets. The first get of an object reads its beginning, which shows whether it is coded:
 *
 *     begin -> beginning -> raw: the range, if it was not read with the beginning -> answered
 *                        -> coded: layers (coded_connector_layer.c) -> answered
 *
 * Other gets of the object wait for the first one (`parked`). If the store's last object was raw,
 * they read their ranges concurrently, as ranges of a raw object. A reader needs the beginning
 * first anyway, so raw objects are loaded as fast as without this connector.
 *
 * In a store without ranges, the beginning is the whole object, and each get reads it for itself:
 *
 *     begin_whole -> raw: answered
 *                 -> coded: all layers are there -> answered
 */

/* No coded object is shorter than this: a header and a table, of a page each at least. */
#define HEAD_BYTES (2 * TIERCE__CHUNK_ALIGN)
/* A peer admits and counts each read of a beginning. One read of FORM_HEAD_BYTES has the header and
 * the table of a usual model. LONG_BYTES: the coded object of a chunk of this length is hardly ever
 * shorter than FORM_HEAD_BYTES. */
#define FORM_HEAD_BYTES (64ull << 10)
#define LONG_BYTES      (4 * FORM_HEAD_BYTES)

static void begin(struct tierce__coded_download *g);
static void settle(struct tierce__coded_download *g);

struct tierce__coded_download *tierce__coded_download_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__coded_download, node);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Under the lock. */
static void watch_deadline(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    tierce__lock_assert_held(&c->lock);
    if (g->req->deadline_ns >= c->next_deadline)
        return;
    c->next_deadline = g->req->deadline_ns;
    tierce__cond_signal(&c->decode_cond);
}

void tierce__coded_download_wait(struct tierce__coded_download *g, struct tierce__list *list)
{
    tierce__list_push_back(list, &g->node);
    /* Without the threads, the read of the beginning ends it, by the deadline of that read. */
    (void)tierce__coded_connector_start_decoders(g->connector);
    watch_deadline(g);
}

static void leave_object(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    tierce__lock_take(&c->lock);
    if (g->object != NULL)
        tierce__coded_object_leave(c, g->object);
    tierce__lock_drop(&c->lock);
    g->object = NULL;
}

void tierce__coded_download_finish(struct tierce__coded_download *g, int status)
{
    struct tierce__coded_connector *c = g->connector;
    struct tierce__store_req *req = g->req;
    TIERCE_DASSERT(!tierce__lock_holds_any() && status <= 0 && !g->reads_head && !g->guesses);
    tierce__coded_download_release(g);
    tierce__buf_release(g->head);
    leave_object(g);
    if (status == TIERCE_E_DEADLINE && !g->link_was_late)
        req->repeats = true; /* the time passed in a queue, or in another's read */
    const struct tierce__store_guard guard = g->inner.guard;
    tierce__free(g); /* an answered read holds no memory */
    req->status = status;
    if (status == 0)
        tierce__coded_connector_give(c, req, &guard);
    else
        req->done(req);
    tierce__lock_take(&c->lock);
    TIERCE_ASSERT(c->pending_gets > 0);
    c->pending_gets--;
    tierce__coded_connector_tell_idle(c);
    tierce__lock_drop(&c->lock);
}

/* The beginning was read, or could not be. Those that wait for it continue. */
static void end_head(struct tierce__coded_download *g, int status)
{
    struct tierce__coded_connector *c = g->connector;
    struct tierce__coded_object *object = g->object;
    struct tierce__list others;
    tierce__list_init(&others);
    tierce__lock_take(&c->lock);
    TIERCE_DASSERT(object->reading && !object->ready);
    object->reading = g->reads_head = false;
    object->ready = status == 0;
    object->status = status;
    object->known_ns = tierce__now_ns();
    object->bytes = g->inner.object_bytes;
    if (status < 0)
        tierce__coded_object_hide(c, object);
    else
        c->sees_coded = object->is_coded;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &c->parked) {
        struct tierce__coded_download *other = tierce__coded_download_of(it);
        if (other->object != object)
            continue;
        tierce__list_remove(it);
        if (other->guesses)
            other->woken = true; /* until its read has ended */
        else
            tierce__list_push_back(&others, it);
    }
    tierce__lock_drop(&c->lock);
    while (!tierce__list_empty(&others)) {
        struct tierce__coded_download *other = tierce__coded_download_of(others.next);
        tierce__list_remove(&other->node);
        settle(other);
    }
}

void tierce__coded_download_fail(struct tierce__coded_download *g, int status)
{
    if (g->reads_head)
        end_head(g, status);
    tierce__coded_download_finish(g, status);
}

/* ---- reads ----------------------------------------------------------------------------------- */

/* The length of the form that the next read is of; 0: any. A range that is read as one of a raw
 * object, while another get reads the beginning, is one of the object that the caller expects. */
static uint64_t form_of(const struct tierce__coded_download *g)
{
    if (!g->connector->has_forms || g->reads_head)
        return 0;
    return g->guesses ? g->req->buf->bytes : g->object->bytes;
}

/* How many bytes of the beginning to read, without those of layers. */
static uint64_t first_bytes(const struct tierce__coded_connector *c,
                            const struct tierce__store_req *req)
{
    return c->has_forms && req->buf->bytes >= LONG_BYTES ? FORM_HEAD_BYTES : HEAD_BYTES;
}

/* A read of so many bytes. As long as an object is not known, it is taken for one of the kind that
 * was read last. Under the lock. */
static enum tierce__coded_read kind_of(const struct tierce__coded_download *g, uint64_t bytes)
{
    const struct tierce__coded_connector *c = g->connector;
    tierce__lock_assert_held(&c->lock);
    bool is_coded = g->reads_head ? c->sees_coded : !g->guesses && g->object->is_coded;
    bool is_head =
        g->reads_head && !c->is_whole && (bytes <= first_bytes(c, g->req) || bytes == g->wanted);
    return !is_coded ? TIERCE__CODED_READ_RAW
           : is_head ? TIERCE__CODED_READ_HEAD
                     : TIERCE__CODED_READ_CODED;
}

void tierce__coded_download_read(struct tierce__coded_download *g, struct tierce__buf *buf,
                                 uint64_t offset, uint64_t length, tierce__store_done_fn *done)
{
    struct tierce__coded_connector *c = g->connector;
    const struct tierce__store_req *req = g->req;
    g->inner = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                          .deadline_ns = req->deadline_ns,
                                          .done = done,
                                          .arg = g,
                                          .keys = req->keys,
                                          .key_count = req->key_count,
                                          .names = req->names,
                                          .name_count = req->name_count,
                                          .urgency = req->urgency,
                                          .buf = buf,
                                          .offset = offset,
                                          .length = length,
                                          .ahead = req->ahead,
                                          .takes_shorter = c->is_whole,
                                          .object_bytes = form_of(g)};
    tierce__lock_take(&c->lock);
    g->kind = kind_of(g, length);
    tierce__coded_speed_begin(&c->speed, g->kind);
    tierce__lock_drop(&c->lock);
    if (tierce__coded_connector_pass(c, &g->inner))
        return;
    g->inner.status = TIERCE_E_CLOSED;
    done(&g->inner);
}

void tierce__coded_download_note(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    const struct tierce__store_req *inner = &g->inner;
    g->was_read |= inner->status == 0;
    g->link_was_late |=
        inner->status == TIERCE_E_DEADLINE || tierce__now_ns() >= g->req->deadline_ns;
    g->req->repeats = inner->repeats;
    g->req->connected |= inner->connected;
    tierce__lock_take(&c->lock);
    tierce__coded_speed_end(&c->speed, g->kind, inner->status == 0 ? inner->length : 0);
    tierce__lock_drop(&c->lock);
}

/* Whether a range may lie behind the end of an object. Redis answers it like a missing object. */
static bool is_behind_end(int status)
{
    return status == TIERCE_E_FORMAT || status == TIERCE_E_MISS;
}

bool tierce__coded_download_is_shorter(const struct tierce__coded_download *g, int status)
{
    return is_behind_end(status) && !g->is_repeated && (!g->has_head || g->connector->has_forms);
}

/* ---- raw objects ----------------------------------------------------------------------------- */

static void end_raw(struct tierce__coded_download *g, int status)
{
    if (tierce__coded_download_is_shorter(g, status))
        tierce__coded_download_repeat(g);
    else
        tierce__coded_download_finish(g, status);
}

static void has_read_raw(struct tierce__store_req *inner)
{
    tierce__coded_download_note(inner->arg);
    end_raw(inner->arg, inner->status);
}

static void read_raw(struct tierce__coded_download *g)
{
    const struct tierce__store_req *req = g->req;
    if (g->connector->has_forms && req->offset + req->length > g->object->bytes)
        end_raw(g, TIERCE_E_MISS); /* the object is shorter than the caller expects */
    else
        tierce__coded_download_read(g, req->buf, req->offset, req->length, has_read_raw);
}

/* A range was read as that of a raw object, while another get read the beginning. */
static void has_guessed(struct tierce__store_req *inner)
{
    struct tierce__coded_download *g = inner->arg;
    struct tierce__coded_connector *c = g->connector;
    tierce__coded_download_note(g);
    /* These statuses do not depend on the kind of the object. */
    bool fails = inner->status < 0 && !is_behind_end(inner->status);
    tierce__lock_take(&c->lock);
    g->guesses = false;
    g->has_guessed = true;
    bool is_over = g->woken || fails;
    if (is_over)
        tierce__list_remove(&g->node);
    else
        watch_deadline(g);
    tierce__lock_drop(&c->lock);
    if (fails)
        tierce__coded_download_finish(g, inner->status);
    else if (is_over)
        settle(g);
}

/* ---- the beginning of an object -------------------------------------------------------------- */

static void read_head(struct tierce__coded_download *g, uint64_t bytes);

/* The object is raw. The beginning is the whole range, or the range follows. */
static void is_raw(struct tierce__coded_download *g, bool has_range)
{
    g->object->is_coded = false;
    end_head(g, 0);
    if (has_range)
        tierce__coded_download_finish(g, 0);
    else
        read_raw(g);
}

static void is_coded(struct tierce__coded_download *g)
{
    struct tierce__coded_object *object = g->object;
    object->layers = tierce__calloc(object->parsed.info.chunk.geometry.layer_count, 1);
    if (object->layers == NULL) {
        tierce__coded_download_fail(g, TIERCE_E_FULL);
        return;
    }
    object->is_coded = true;
    end_head(g, 0);
    tierce__coded_download_layers(g);
}

/* The status of an object whose beginning is not that of a coded object that this build can read.
 * 0: it is a raw one. */
static int judge(const uint8_t *object, uint64_t bytes, int rc)
{
    struct tierce__chunk_info chunk;
    uint32_t codec;
    switch (rc) {
    case TIERCE_E_VERSION: /* a raw chunk, or an unknown codec, or one that was not chosen */
        return tierce__chunk_parse_coded(&chunk, &codec, object, bytes) == 0 ? rc : 0;
    case TIERCE_E_FORMAT: /* no chunk, or a damaged one */
        return tierce__chunk_has_magic(object) ? TIERCE_E_CHECKSUM : 0;
    default:
        return rc;
    }
}

static void has_read_head(struct tierce__store_req *inner)
{
    struct tierce__coded_download *g = inner->arg;
    uint64_t bytes = inner->length, wanted = 0;
    int status = inner->status;
    tierce__coded_download_note(g);
    if (status == TIERCE_E_FORMAT && bytes == g->wanted) {
        tierce__coded_download_fail(g, TIERCE_E_CHECKSUM); /* shorter than its header states */
        return;
    }
    if (status == TIERCE_E_FORMAT && bytes > HEAD_BYTES) {
        uint64_t first = first_bytes(g->connector, g->req);
        /* It is shorter than the range, as coded objects are. */
        read_head(g, bytes > first ? first : HEAD_BYTES);
        return;
    }
    if (status == TIERCE_E_FORMAT) {
        is_raw(g, false);
        return;
    }
    if (status < 0) {
        tierce__coded_download_fail(g, status);
        return;
    }
    const uint8_t *object = inner->buf->data;
    int rc = tierce__coded_parsed_fill(&g->object->parsed, &g->connector->elements, object, bytes,
                                       &wanted);
    if (rc == 0 && g->connector->has_forms &&
        inner->object_bytes != g->object->parsed.info.object_bytes)
        rc = TIERCE_E_FORMAT; /* the head is that of another object */
    if (rc == 0) {
        g->have = bytes;
        is_coded(g);
        return;
    }
    if (rc == TIERCE_E_LIMIT && bytes >= HEAD_BYTES) {
        g->wanted = tierce__round_up(wanted, TIERCE__CHUNK_ALIGN);
        read_head(g, g->wanted);
        return;
    }
    rc = rc == TIERCE_E_LIMIT ? 0 : judge(object, bytes, rc);
    if (rc < 0)
        tierce__coded_download_fail(g, rc);
    else
        is_raw(g, inner->buf == g->req->buf && bytes == g->req->length);
}

/* Reads so many bytes of the beginning: into the caller's buffer if its range has them. */
static void read_head(struct tierce__coded_download *g, uint64_t bytes)
{
    struct tierce__coded_connector *c = g->connector;
    struct tierce__store_req *req = g->req;
    tierce__buf_release(g->head);
    g->head = NULL;
    g->has_head = true;
    if (req->offset == 0 && bytes <= req->length) {
        tierce__coded_download_read(g, req->buf, 0, bytes, has_read_head);
        return;
    }
    tierce__lock_take(&c->lock);
    int rc = tierce__coded_connector_pool(c);
    tierce__lock_drop(&c->lock);
    g->head = rc == 0 ? tierce__coded_connector_alloc(c, bytes) : NULL;
    if (g->head != NULL)
        tierce__coded_download_read(g, g->head, 0, bytes, has_read_head);
    else
        tierce__coded_download_fail(g, TIERCE_E_FULL);
}

/* How many bytes of the beginning to read: the range, if objects are raw; if they are coded, as
 * many as were needed for the same range of the last object, so that one read is enough. */
static uint64_t head_bytes(const struct tierce__coded_connector *c,
                           const struct tierce__store_req *req)
{
    tierce__lock_assert_held(&c->lock);
    const uint64_t first = first_bytes(c, req);
    if (req->length < HEAD_BYTES)
        return HEAD_BYTES;
    if (req->offset != 0)
        return first;
    if (!c->sees_coded)
        return req->length;
    uint64_t bytes = c->needed;
    if (req->length < req->buf->bytes) /* layers differ a little in length */
        bytes += tierce__round_up(bytes / 32, TIERCE__CHUNK_ALIGN);
    return c->asked == req->length && bytes > first && bytes < req->length ? bytes : first;
}

/* ---- whole objects --------------------------------------------------------------------------- */

static void read_whole(struct tierce__coded_download *g, bool is_longer);

/* Whether these bytes, which are no coded object, are those of the raw object. */
static void has_read_raw_whole(struct tierce__coded_download *g, uint64_t bytes, int rc)
{
    const struct tierce__store_req *req = g->req;
    const uint8_t *object = g->inner.buf->data;
    bool has_header = bytes >= TIERCE__CHUNK_FIXED && tierce__chunk_has_magic(object);
    if (rc == TIERCE_E_LIMIT) /* it ends before its layers */
        rc = has_header ? TIERCE_E_CHECKSUM : 0;
    else
        rc = judge(object, bytes, rc);
    if (rc == 0 && bytes != req->length)
        rc = TIERCE_E_FORMAT;
    if (rc == 0 && g->head != NULL)
        memcpy(req->buf->data, object, bytes);
    g->object->is_coded = false;
    end_head(g, rc);
    tierce__coded_download_finish(g, rc);
}

static void has_read_whole(struct tierce__store_req *inner)
{
    struct tierce__coded_download *g = inner->arg;
    struct tierce__coded_connector *c = g->connector;
    struct tierce__coded_parsed *parsed = &g->object->parsed;
    uint64_t bytes = inner->object_bytes, wanted = 0;
    int status = inner->status;
    bool was_longer = g->head != NULL;
    inner->length = bytes; /* for the speed of the link */
    tierce__coded_download_note(g);
    if (status == TIERCE_E_FORMAT && !was_longer) {
        read_whole(g, true);
        return;
    }
    if (status < 0) {
        tierce__coded_download_fail(g, status);
        return;
    }
    tierce__lock_take(&c->lock);
    c->sees_longer = bytes > g->req->length;
    tierce__lock_drop(&c->lock);
    int rc = tierce__coded_parsed_fill(parsed, &c->elements, inner->buf->data, bytes, &wanted);
    if (rc < 0) {
        has_read_raw_whole(g, bytes, rc);
        return;
    }
    if (parsed->info.object_bytes != bytes) {
        tierce__coded_download_fail(g, TIERCE_E_CHECKSUM);
    } else if (parsed->info.chunk.extent.object_bytes != g->req->length) {
        tierce__coded_download_fail(g, TIERCE_E_FORMAT);
    } else {
        g->have = bytes;
        is_coded(g);
    }
}

/* Into the caller's buffer, or into more memory if the object is longer than the raw one, as
 * encrypted objects are that no codec makes shorter. */
static void read_whole(struct tierce__coded_download *g, bool is_longer)
{
    struct tierce__coded_connector *c = g->connector;
    uint64_t bytes = g->req->length + (is_longer ? TIERCE__CODED_GROWTH_MAX : 0);
    g->has_head = true;
    if (is_longer) {
        tierce__lock_take(&c->lock);
        int rc = tierce__coded_connector_pool(c);
        tierce__lock_drop(&c->lock);
        g->head = rc == 0 ? tierce__coded_connector_alloc(c, bytes) : NULL;
    }
    if (is_longer && g->head == NULL)
        tierce__coded_download_fail(g, TIERCE_E_FULL);
    else
        tierce__coded_download_read(g, is_longer ? g->head : g->req->buf, 0, bytes, has_read_whole);
}

static void begin_whole(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    struct tierce__coded_object *object = tierce__coded_object_make();
    int rc = object == NULL                            ? TIERCE_E_FULL
             : tierce__now_ns() >= g->req->deadline_ns ? TIERCE_E_DEADLINE
                                                       : 0;
    tierce__lock_take(&c->lock);
    if (c->inner_closes)
        rc = TIERCE_E_CLOSED;
    g->object = object;
    bool is_longer = c->sees_longer;
    if (rc == 0)
        object->reading = g->reads_head = true;
    tierce__lock_drop(&c->lock);
    if (rc < 0)
        tierce__coded_download_finish(g, rc);
    else
        read_whole(g, is_longer);
}

/* ---- begin ----------------------------------------------------------------------------------- */

/* The object of a parked get is known, or its beginning could not be read. */
static void settle(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    tierce__lock_take(&c->lock);
    bool is_ready = g->object->ready, coded = g->object->is_coded;
    int status = g->object->status;
    tierce__lock_drop(&c->lock);
    g->woken = false;
    if (is_ready && coded) {
        tierce__coded_download_layers(g);
    } else if (is_ready && g->has_guessed &&
               !(c->has_forms && is_behind_end(g->inner.status))) { /* of another length, perhaps */
        tierce__coded_download_finish(g, g->inner.status);
    } else if (is_ready) {
        read_raw(g);
    } else if (status == TIERCE_E_DEADLINE) { /* it was not this get's */
        leave_object(g);
        begin(g);
    } else {
        g->req->repeats = true; /* one read has failed */
        tierce__coded_download_finish(g, status);
    }
}

static void begin(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    const struct tierce__store_req *req = g->req;
    if (c->is_whole) {
        begin_whole(g);
        return;
    }
    int rc = tierce__now_ns() >= req->deadline_ns ? TIERCE_E_DEADLINE : 0;
    tierce__lock_take(&c->lock);
    if (c->inner_closes)
        rc = TIERCE_E_CLOSED;
    struct tierce__coded_object *object = rc == 0 ? tierce__coded_object_take(c, req->names) : NULL;
    if (rc == 0 && object == NULL)
        rc = TIERCE_E_FULL;
    g->object = object;
    g->has_guessed = false;
    bool is_known = rc == 0 && object->ready, parks = rc == 0 && !is_known && object->reading;
    bool guesses = parks && !c->sees_coded;
    uint64_t bytes = head_bytes(c, req);
    if (parks) {
        g->guesses = guesses;
        tierce__coded_download_wait(g, &c->parked);
    } else if (rc == 0 && !is_known) {
        object->reading = g->reads_head = true;
    }
    tierce__lock_drop(&c->lock);
    if (rc < 0)
        tierce__coded_download_finish(g, rc);
    else if (guesses)
        tierce__coded_download_read(g, req->buf, req->offset, req->length, has_guessed);
    else if (is_known)
        settle(g);
    else if (!parks)
        read_head(g, bytes);
}

void tierce__coded_download_repeat(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    TIERCE_DASSERT(!g->reads_head && !g->guesses);
    tierce__coded_download_release(g);
    tierce__lock_take(&c->lock);
    tierce__coded_object_hide(c, g->object);
    tierce__lock_drop(&c->lock);
    leave_object(g);
    tierce__buf_release(g->head);
    g->head = NULL;
    g->have = g->wanted = 0;
    g->has_head = false;
    g->is_repeated = true;
    begin(g);
}

void tierce__coded_connector_get(struct tierce__coded_connector *c, struct tierce__store_req *req)
{
    bool is_sane = req->buf != NULL && req->name_count == 1 && req->length > 0 &&
                   req->offset <= req->buf->bytes && req->length <= req->buf->bytes - req->offset;
    bool is_range = c->is_whole && req->offset != 0;
    struct tierce__coded_download *g = is_sane && !is_range ? tierce__calloc(1, sizeof(*g)) : NULL;
    if (g == NULL) {
        req->status = !is_sane   ? TIERCE_E_ARGUMENT
                      : is_range ? TIERCE_E_UNSUPPORTED
                                 : TIERCE_E_FULL;
        req->done(req);
        return;
    }
    g->connector = c;
    g->req = req;
    tierce__list_init(&g->node);
    tierce__lock_take(&c->lock);
    bool closing = c->closing;
    c->pending_gets++;
    tierce__lock_drop(&c->lock);
    if (closing)
        tierce__coded_download_finish(g, TIERCE_E_CLOSED);
    else
        begin(g);
}
