/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "store/coded/coded_private.h"

#include <errno.h>
#include <string.h>

/*
 * Ranges of coded objects. A get goes through these steps, each of which continues on the thread
 * that ended the one before:
 *
 *     begin -> head (perhaps another get reads it: parked) -> memory (perhaps: waiting)
 *           -> layers -> ready -> decoded -> answered
 */

/* The first read of a head, which is longer in large chunks. A small object is read whole. */
#define HEAD_BYTES (64u << 10)

static void advance(struct tierce__coded_get *g);
static void read_coded(struct tierce__coded_get *g);

static struct tierce__coded_get *get_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__coded_get, node);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Observes the deadline of a get that waits in a list. Under the lock. */
static void watch_deadline(struct tierce__coded_tier *t, const struct tierce__coded_get *g)
{
    tierce__lock_assert_held(&t->lock);
    if (g->req->deadline_ns >= t->next_deadline)
        return;
    t->next_deadline = g->req->deadline_ns;
    tierce__cond_signal(&t->decode_cond);
}

/* Puts a get at the end of a list whose deadlines are observed. Under the lock. */
static void wait_in(struct tierce__coded_tier *t, struct tierce__list *list,
                    struct tierce__coded_get *g)
{
    tierce__list_push_back(list, &g->node);
    watch_deadline(t, g);
}

static bool has_room(const struct tierce__coded_tier *t, uint64_t bytes)
{
    return t->get_staging == 0 || t->get_staging + bytes <= t->staging_bytes_max;
}

/* Memory was released, or the first that has waited for it is gone: the next get it, in the order
 * in which they came, and allocate it. Under the lock. */
static void resume_waiting(struct tierce__coded_tier *t)
{
    tierce__lock_assert_held(&t->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &t->waiting) {
        struct tierce__coded_get *g = get_of(it);
        if (!has_room(t, g->inner.length))
            break;
        g->staged = g->inner.length;
        t->get_staging += g->staged;
        tierce__list_remove(it);
        tierce__list_push_back(&t->resumed, it);
        tierce__cond_signal(&t->decode_cond);
    }
}

static void release_memory(struct tierce__coded_get *g)
{
    struct tierce__coded_tier *t = g->tier;
    tierce__buf_release(g->buf);
    g->buf = NULL;
    tierce__lock_take(&t->lock);
    TIERCE_ASSERT(t->get_staging >= g->staged);
    t->get_staging -= g->staged;
    g->staged = 0;
    resume_waiting(t);
    tierce__lock_drop(&t->lock);
}

/* There was no memory for a get. It waits until another get releases some. Returns false if no
 * other has any: then it fails, and those that wait try for themselves. */
static bool wait_without_memory(struct tierce__coded_get *g)
{
    struct tierce__coded_tier *t = g->tier;
    tierce__lock_take(&t->lock);
    TIERCE_ASSERT(t->get_staging >= g->staged);
    t->get_staging -= g->staged;
    g->staged = 0;
    bool waits = t->get_staging > 0;
    if (waits) { /* it was the first */
        tierce__list_push_front(&t->waiting, &g->node);
        watch_deadline(t, g);
    } else {
        resume_waiting(t);
    }
    tierce__lock_drop(&t->lock);
    return waits;
}

/* A get that comes while others wait is behind them, although there may be room for it. False: the
 * get waits for memory, and is not the caller's any more. */
static bool take_memory(struct tierce__coded_get *g, bool *failed)
{
    struct tierce__coded_tier *t = g->tier;
    uint64_t bytes = g->inner.length;
    *failed = false;
    tierce__lock_take(&t->lock);
    bool is_resumed = g->staged > 0;
    bool fits = is_resumed || (tierce__list_empty(&t->waiting) && has_room(t, bytes));
    TIERCE_DASSERT(!is_resumed || g->staged == bytes);
    if (!fits) {
        wait_in(t, &t->waiting, g);
    } else if (!is_resumed) {
        t->get_staging += bytes;
        g->staged = bytes;
    }
    tierce__lock_drop(&t->lock);
    if (!fits)
        return false;
    g->buf = tierce__coded_alloc(t, bytes);
    if (g->buf != NULL)
        return true;
    *failed = !wait_without_memory(g);
    return *failed;
}

/* ---- objects that were recoded --------------------------------------------------------------- */

/* A read of object `stored` has missed. If the chunk was compressed or uncompressed meanwhile, the
 * request restarts, and is not the caller's any more. */
static bool begin_again(struct tierce__coded_tier *t, struct tierce__store_req *req,
                        uint64_t stored)
{
    struct tierce__store_req look;
    /* relaxed: a later request sees it */
    if (!atomic_load_explicit(&t->has_recoded, memory_order_relaxed) ||
        tierce__coded_look(t, &look, req->keys, req->deadline_ns) <= 0 || look.stored == stored)
        return false;
    tierce__coded_get_begin(t, req);
    return true;
}

/* ---- the end --------------------------------------------------------------------------------- */

static void finish(struct tierce__coded_get *g, int status)
{
    struct tierce__coded_tier *t = g->tier;
    struct tierce__store_req *req = g->req;
    TIERCE_DASSERT(!tierce__lock_holds_any() && status <= 0);
    if (g->staged > 0)
        release_memory(g);
    TIERCE_DASSERT(g->buf == NULL);
    struct tierce__coded_head *head = g->head;
    uint64_t stored = g->stored;
    /* The time passed in a queue of this tier, or in another's read, which counts for the device.
     */
    if (status == TIERCE_E_DEADLINE && !g->device_was_late)
        req->repeats = true;
    tierce__free(g); /* an answered read holds no memory */
    if (status != TIERCE_E_MISS || !begin_again(t, req, stored)) {
        req->status = status;
        req->done(req);
    }
    tierce__lock_take(&t->lock);
    if (head != NULL)
        tierce__coded_head_leave(t, head);
    TIERCE_ASSERT(t->pending_gets > 0);
    t->pending_gets--;
    if (t->closing)
        tierce__cond_broadcast(&t->idle_cond);
    tierce__lock_drop(&t->lock);
}

/* The head was read, or could not be. The gets that wait for it continue: after a deadline that was
 * not theirs, with a separate read. */
static void end_head(struct tierce__coded_get *g, int status)
{
    struct tierce__coded_tier *t = g->tier;
    struct tierce__coded_head *head = g->head;
    struct tierce__list others;
    tierce__list_init(&others);
    tierce__lock_take(&t->lock);
    TIERCE_DASSERT(head->reading && !head->ready);
    head->reading = false;
    head->ready = status == 0;
    g->reads_head = false;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &t->parked) {
        if (get_of(it)->head != head)
            continue;
        tierce__list_remove(it);
        tierce__list_push_back(&others, it);
    }
    tierce__lock_drop(&t->lock);
    if (g->staged > 0 && (status < 0 || g->inner.length < g->coded_bytes))
        release_memory(g);
    if (status == 0)
        advance(g);
    else
        finish(g, status);
    while (!tierce__list_empty(&others)) {
        struct tierce__coded_get *other = get_of(others.next);
        tierce__list_remove(&other->node);
        if (status == 0 || status == TIERCE_E_DEADLINE) {
            advance(other);
        } else {
            other->req->repeats = true; /* one read has failed */
            finish(other, status);
        }
    }
}

static void fail(struct tierce__coded_get *g, int status)
{
    if (g->reads_head)
        end_head(g, status);
    else
        finish(g, status);
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool is_of(const struct tierce__coded_get *g, const struct tierce__coded_info *info)
{
    return info->object_bytes == g->coded_bytes && info->chunk.extent.object_bytes == g->raw_bytes;
}

static enum tierce__coded_read kind_of(const struct tierce__coded_get *g)
{
    return g->reads_head && g->inner.length < g->coded_bytes ? TIERCE__CODED_READ_HEAD
                                                             : TIERCE__CODED_READ_CODED;
}

/* The coded bytes of a range have arrived. Under the lock. */
static void make_ready(struct tierce__coded_tier *t, struct tierce__coded_get *g)
{
    tierce__lock_assert_held(&t->lock);
    tierce__coded_speed_arrived(&t->speed);
    tierce__list_push_back(&t->ready, &g->node);
    tierce__cond_signal(&t->decode_cond);
}

/* The bytes of a head have arrived. */
static void note_head(struct tierce__coded_get *g)
{
    uint64_t wanted = 0;
    int rc = tierce__coded_parsed_fill(&g->head->parsed, &g->tier->elements, g->buf->data,
                                       g->inner.length, &wanted);
    if (rc == TIERCE_E_LIMIT && wanted <= g->coded_bytes) {
        release_memory(g);
        g->inner.length = tierce__round_up(wanted, TIERCE__CHUNK_ALIGN);
        read_coded(g);
        return;
    }
    if (rc == TIERCE_E_LIMIT || (rc == 0 && !is_of(g, &g->head->parsed.info)))
        rc = TIERCE_E_FORMAT;
    end_head(g, rc);
}

static void read_done(struct tierce__store_req *inner)
{
    struct tierce__coded_get *g = inner->arg;
    struct tierce__coded_tier *t = g->tier;
    g->was_read = inner->status == 0;
    g->device_was_late =
        inner->status == TIERCE_E_DEADLINE || tierce__now_ns() >= g->req->deadline_ns;
    tierce__lock_take(&t->lock);
    if (inner->status == 0 && !g->reads_head)
        make_ready(t, g);
    tierce__coded_speed_end(&t->speed, kind_of(g), inner->status == 0 ? inner->length : 0);
    if (inner->status == 0 && !g->reads_head) {
        tierce__lock_drop(&t->lock);
        return;
    }
    tierce__lock_drop(&t->lock);
    g->req->repeats = inner->repeats;
    if (inner->status < 0)
        fail(g, inner->status);
    else
        note_head(g);
}

/* Reads coded bytes [from, from + inner.length). */
static void read_coded(struct tierce__coded_get *g)
{
    struct tierce__coded_tier *t = g->tier;
    bool failed;
    if (!take_memory(g, &failed))
        return;
    if (failed) {
        fail(g, TIERCE_E_FULL);
        return;
    }
    g->inner = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                          .deadline_ns = g->req->deadline_ns,
                                          .done = read_done,
                                          .arg = g,
                                          .keys = g->req->keys,
                                          .key_count = 1,
                                          .buf = g->buf,
                                          .offset = g->from,
                                          .length = g->inner.length,
                                          .ahead = g->req->ahead,
                                          .coded_bytes = g->coded_bytes,
                                          .stored = g->stored};
    tierce__lock_take(&t->lock);
    tierce__coded_speed_begin(&t->speed, kind_of(g));
    tierce__lock_drop(&t->lock);
    if (tierce__coded_pass(t, &g->inner))
        return;
    tierce__lock_take(&t->lock);
    tierce__coded_speed_end(&t->speed, kind_of(g), 0);
    tierce__lock_drop(&t->lock);
    fail(g, TIERCE_E_CLOSED);
}

/* Which layers lie in the range, and which coded bytes have to be read for them. False: none. A
 * range without layers needs no more than the head, but no read is answered without the device: a
 * probe asks for such a range, and a head in memory does not prove that the device works. */
static bool plan(struct tierce__coded_get *g)
{
    TIERCE_DASSERT(g->buf == NULL || g->inner.length == g->coded_bytes);
    tierce__coded_range_plan(&g->range, &g->head->parsed, g->req->offset, g->req->length);
    if (g->buf != NULL)
        return false;
    if (g->range.from == g->range.to) {
        g->from = 0;
        g->inner.length = TIERCE__CHUNK_ALIGN;
        return !g->was_read;
    }
    g->from = g->range.from;
    g->inner.length = g->range.to - g->range.from;
    TIERCE_ASSERT(g->from + g->inner.length <= g->coded_bytes);
    return true;
}

static bool is_on_device(const struct tierce__store_req *req)
{
    return req->buf != NULL && req->buf->on_device;
}

static void advance(struct tierce__coded_get *g)
{
    struct tierce__coded_tier *t = g->tier;
    int rc = tierce__now_ns() >= g->req->deadline_ns ? TIERCE_E_DEADLINE : 0;
    tierce__lock_take(&t->lock);
    if (g->head == NULL)
        g->head = tierce__coded_head_take(t, g->req->keys, g->stored);
    struct tierce__coded_head *head = g->head;
    if (head == NULL)
        rc = TIERCE_E_FULL;
    bool parks = rc == 0 && head->reading, is_ready = rc == 0 && head->ready;
    if (parks)
        wait_in(t, &t->parked, g);
    else if (rc == 0 && !is_ready)
        head->reading = g->reads_head = true;
    tierce__lock_drop(&t->lock);
    if (parks)
        return;
    /* No layer is read for a device that cannot decode it. */
    if (is_ready && is_on_device(g->req) && !tierce__coded_may_be_on_device(&head->parsed.info))
        rc = TIERCE_E_UNSUPPORTED;
    if (rc < 0) {
        finish(g, rc);
    } else if (!is_ready) {
        g->from = 0;
        g->inner.length = HEAD_BYTES < g->coded_bytes ? HEAD_BYTES : g->coded_bytes;
        read_coded(g);
    } else if (plan(g)) {
        read_coded(g);
    } else {
        tierce__lock_take(&t->lock);
        make_ready(t, g);
        tierce__lock_drop(&t->lock);
    }
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* A device that lacks memory, or whose driver has refused a call, may decode the next range.
 * After other failures it is not used any more: its decoder never ran on a GPU, and the host
 * decodes everything. */
static void note_device_error(struct tierce__coded_tier *t, int error)
{
    if (error == 0 || error == -ENOMEM || error == -ECANCELED)
        return;
    if (atomic_exchange_explicit(&t->device, NULL, memory_order_acq_rel) != NULL)
        tierce__log(error == TIERCE_E_FORMAT ? TIERCE_LOG_ERROR : TIERCE_LOG_WARN, "gpu_decode_off",
                    "tier=%s reason=\"%s\" consequence=\"the host decodes chunks that are loaded "
                    "into the GPU\"",
                    t->ops.name, tierce_strerror(error));
}

/* The device of a GET into its memory; NULL: none decodes. */
static const struct tierce__coded_device *device_of(struct tierce__coded_tier *t)
{
    return atomic_load_explicit(&t->device, memory_order_acquire);
}

static void serve(struct tierce__coded_get *g)
{
    struct tierce__coded_tier *t = g->tier;
    struct tierce__coded_work work = {
        .keys = t->keys, .tier = t->ops.name, .device = is_on_device(g->req) ? device_of(t) : NULL};
    uint64_t begun = tierce__now_ns(), generation = tierce__coded_keys_generation(t->keys);
    int rc = is_on_device(g->req) && work.device == NULL ? TIERCE_E_UNSUPPORTED : TIERCE_E_DEADLINE;
    if (rc == TIERCE_E_DEADLINE && begun < g->req->deadline_ns)
        rc = tierce__coded_range_decode(
            &g->range, &g->head->parsed, g->req,
            g->buf != NULL ? g->buf->data + (g->range.from - g->from) : NULL, &work);
    uint64_t took = tierce__now_ns() - begun;
    tierce__lock_take(&t->lock);
    tierce__coded_speed_decoded(&t->speed, &t->stats, &work, rc, took);
    tierce__lock_drop(&t->lock);
    note_device_error(t, work.device_error);
    if (rc == TIERCE_E_NO_KEY)
        tierce__coded_hide(t, g->req->keys, g->stored, generation);
    finish(g, rc);
}

static void sweep(struct tierce__coded_tier *t, struct tierce__list *list, uint64_t now,
                  struct tierce__list *late)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, list) {
        uint64_t deadline_ns = get_of(it)->req->deadline_ns;
        if (deadline_ns <= now || t->inner_closes) {
            tierce__list_remove(it);
            tierce__list_push_back(late, it);
        } else if (deadline_ns < t->next_deadline) {
            t->next_deadline = deadline_ns;
        }
    }
}

/* Answers the gets that are too late, or that close has no time for. Under the lock, which is
 * released temporarily. */
static void answer_late(struct tierce__coded_tier *t)
{
    struct tierce__list late;
    uint64_t now = tierce__now_ns();
    if (now < t->next_deadline && !t->inner_closes)
        return;
    int status = t->inner_closes ? TIERCE_E_CLOSED : TIERCE_E_DEADLINE;
    tierce__list_init(&late);
    t->next_deadline = TIERCE__DEADLINE_NEVER;
    sweep(t, &t->parked, now, &late);
    sweep(t, &t->waiting, now, &late);
    resume_waiting(t);
    tierce__lock_drop(&t->lock);
    while (!tierce__list_empty(&late)) {
        struct tierce__coded_get *g = get_of(late.next);
        tierce__list_remove(&g->node);
        fail(g, status);
    }
    tierce__lock_take(&t->lock);
}

void *tierce__coded_decoder_main(void *arg)
{
    struct tierce__coded_tier *t = arg;
    tierce__thread_does_not_interrupt();
    tierce__lock_take(&t->lock);
    while (!t->stop) {
        answer_late(t);
        /* Reads first: the device works while this thread decodes. */
        bool resumes = !tierce__list_empty(&t->resumed);
        struct tierce__list *list = resumes ? &t->resumed : &t->ready;
        if (tierce__list_empty(list)) {
            if (!t->stop)
                (void)tierce__cond_wait(&t->decode_cond, &t->lock, t->next_deadline);
            continue;
        }
        struct tierce__coded_get *g = get_of(list->next);
        tierce__list_remove(&g->node);
        tierce__lock_drop(&t->lock);
        if (resumes)
            read_coded(g);
        else
            serve(g);
        tierce__lock_take(&t->lock);
    }
    tierce__lock_drop(&t->lock);
    return NULL;
}

/* ---- begin ----------------------------------------------------------------------------------- */

static void raw_done(struct tierce__store_req *inner)
{
    struct tierce__coded_raw_get *g = inner->arg;
    struct tierce__coded_tier *t = g->tier;
    struct tierce__store_req *req = g->req;
    int status = inner->status;
    uint64_t stored = g->stored;
    tierce__lock_take(&t->lock);
    tierce__coded_speed_end(&t->speed, TIERCE__CODED_READ_RAW, status == 0 ? inner->length : 0);
    tierce__lock_drop(&t->lock);
    req->repeats = inner->repeats;
    req->connected = inner->connected;
    tierce__free(g);
    if (status == TIERCE_E_MISS && begin_again(t, req, stored))
        return;
    req->status = status;
    req->done(req);
}

/* A raw object. Its read is timed only if the answer to it decides something. */
static int begin_raw(struct tierce__coded_tier *t, struct tierce__store_req *req, uint64_t stored)
{
    bool has_codec =
        t->codec != NULL || tierce__coded_kind_of(&t->elements, req->keys[0].ns).lossy != NULL;
    bool is_watched = has_codec || /* relaxed: as in begin_again */
                      atomic_load_explicit(&t->has_recoded, memory_order_relaxed);
    struct tierce__coded_raw_get *g = is_watched ? tierce__alloc(sizeof(*g)) : NULL;
    if (g == NULL)
        return tierce__coded_pass(t, req) ? 0 : TIERCE_E_CLOSED;
    *g = (struct tierce__coded_raw_get){.tier = t, .req = req, .inner = *req, .stored = stored};
    g->inner.done = raw_done;
    g->inner.arg = g;
    tierce__lock_take(&t->lock);
    tierce__coded_speed_begin(&t->speed, TIERCE__CODED_READ_RAW);
    tierce__lock_drop(&t->lock);
    if (tierce__coded_pass(t, &g->inner))
        return 0;
    tierce__lock_take(&t->lock);
    tierce__coded_speed_end(&t->speed, TIERCE__CODED_READ_RAW, 0);
    tierce__lock_drop(&t->lock);
    tierce__free(g);
    return TIERCE_E_CLOSED;
}

/* Under the lock. */
static bool start_decoders(struct tierce__coded_tier *t)
{
    tierce__lock_assert_held(&t->lock);
    if (tierce__coded_pool(t) < 0)
        return false;
    int rc = tierce__threads_start_on(&t->decoders, t->speed.decode_threads, &t->affinity,
                                      tierce__coded_decoder_main, t);
    t->decoders_run = rc == 0 || t->decoders.count > 0; /* fewer are enough */
    if (!t->decoders_run)
        tierce__threads_join(&t->decoders); /* so that the next get can start them */
    return t->decoders_run;
}

/* Counts a get, and starts the threads that decode. */
static int admit(struct tierce__coded_tier *t)
{
    int rc = 0;
    tierce__lock_take(&t->lock);
    if (t->closing)
        rc = TIERCE_E_CLOSED;
    else if (!t->decoders_run && !start_decoders(t))
        rc = TIERCE_E_FULL; /* an errno would be the device's */
    t->pending_gets += rc == 0;
    tierce__lock_drop(&t->lock);
    return rc;
}

static int begin_coded(struct tierce__coded_tier *t, struct tierce__store_req *req,
                       const struct tierce__store_req *look)
{
    uint64_t end;
    bool sane = req->buf != NULL && req->offset % TIERCE__CHUNK_ALIGN == 0 &&
                req->length % TIERCE__CHUNK_ALIGN == 0 &&
                tierce__add_ok(&end, req->offset, req->length) && end <= req->buf->bytes;
    if (!sane)
        return TIERCE_E_ARGUMENT;
    if (end > look->object_bytes)
        return TIERCE_E_MISS;
    struct tierce__coded_get *g = tierce__calloc(1, sizeof(*g));
    if (g == NULL)
        return TIERCE_E_FULL;
    int rc = admit(t);
    if (rc < 0) {
        tierce__free(g);
        return rc;
    }
    g->tier = t;
    g->req = req;
    g->raw_bytes = look->object_bytes;
    g->coded_bytes = look->coded_bytes;
    g->stored = look->stored;
    tierce__list_init(&g->node);
    advance(g);
    return 0;
}

/* Whether a device may decode the chunk; its head may still show that it cannot. */
static bool may_decode_there(struct tierce__coded_tier *t, const struct tierce__store_req *req)
{
    if (device_of(t) == NULL || t->encrypts ||
        tierce__coded_kind_of(&t->elements, req->keys[0].ns).lossy != NULL)
        return false;
    tierce__lock_take(&t->lock);
    bool prefers_host = tierce__coded_speed_prefers_host(&t->speed);
    tierce__lock_drop(&t->lock);
    return !prefers_host;
}

void tierce__coded_get_begin(struct tierce__coded_tier *t, struct tierce__store_req *req)
{
    struct tierce__store_req look;
    int rc = tierce__coded_look(t, &look, req->keys, req->deadline_ns);
    if (rc == 0)
        rc = look.lacks_key ? TIERCE_E_NO_KEY : TIERCE_E_MISS;
    else if (rc > 0 && look.coded_bytes > 0 && is_on_device(req) && !may_decode_there(t, req))
        rc = TIERCE_E_UNSUPPORTED;
    else if (rc > 0)
        rc = look.coded_bytes > 0 ? begin_coded(t, req, &look) : begin_raw(t, req, look.stored);
    if (rc == 0)
        return;
    req->status = rc;
    req->done(req);
}
