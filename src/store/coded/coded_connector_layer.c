/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "store/coded/coded_connector_private.h"

/*
 * Layers of coded objects. The coded bytes of an object have one buffer as long as gets use it, in
 * which each layer is read once, at its place in the object: a store that joins adjacent ranges
 * joins these too, and a layer does not change after its sum was verified.
 *
 *     memory (perhaps: waiting) -> layers, run by run (perhaps: parked) -> ready -> decoded
 */

/* ---- memory ---------------------------------------------------------------------------------- */

static bool has_room(const struct tierce__coded_connector *c, uint64_t bytes)
{
    return c->get_staging == 0 || c->get_staging + bytes <= c->staging_bytes_max;
}

/* Memory was released, or has arrived, or the first that has waited for it is gone. The next get
 * it, in the order in which they came, and allocate it; all whose object has memory continue. Under
 * the lock. */
static void resume_waiting(struct tierce__coded_connector *c)
{
    bool is_full = false;
    tierce__lock_assert_held(&c->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &c->waiting) {
        struct tierce__coded_download *g = tierce__coded_download_of(it);
        const struct tierce__coded_object *object = g->object;
        uint64_t bytes = object->buf != NULL ? 0 : object->parsed.info.object_bytes;
        if (object->allocating)
            continue; /* note_memory resumes it */
        is_full |= bytes > 0 && !has_room(c, bytes);
        if (is_full && bytes > 0)
            continue;
        g->reserved = bytes;
        c->get_staging += bytes;
        tierce__list_remove(it);
        tierce__list_push_back(&c->resumed, it);
        tierce__cond_signal(&c->decode_cond);
    }
}

/* A get for which memory was reserved ends, or continues without it: the next may have it. Under
 * the lock. */
static void pass_memory_on(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    tierce__lock_assert_held(&c->lock);
    if (g->reserved == 0)
        return;
    TIERCE_ASSERT(c->get_staging >= g->reserved);
    c->get_staging -= g->reserved;
    g->reserved = 0;
    resume_waiting(c);
}

/* Layers of an object have arrived, or have failed. Under the lock. */
static void resume_parked(struct tierce__coded_connector *c,
                          const struct tierce__coded_object *object)
{
    tierce__lock_assert_held(&c->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &c->parked) {
        if (tierce__coded_download_of(it)->object != object)
            continue;
        tierce__list_remove(it);
        tierce__list_push_back(&c->resumed, it);
    }
    tierce__cond_signal(&c->decode_cond);
}

void tierce__coded_download_release(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    struct tierce__coded_object *object = g->object;
    struct tierce__buf *buf = NULL;
    if (!g->is_reader) {
        tierce__lock_take(&c->lock);
        pass_memory_on(g);
        tierce__lock_drop(&c->lock);
        return;
    }
    g->is_reader = false;
    tierce__lock_take(&c->lock);
    TIERCE_ASSERT(object->readers > 0);
    if (--object->readers == 0) {
        buf = object->buf;
        object->buf = NULL;
        memset(object->layers, TIERCE__CODED_LAYER_IDLE,
               object->parsed.info.chunk.geometry.layer_count);
        TIERCE_ASSERT(c->get_staging >= object->staged);
        c->get_staging -= object->staged;
        object->staged = 0;
        resume_waiting(c);
    }
    tierce__lock_drop(&c->lock);
    tierce__buf_release(buf);
}

/* The get has allocated memory for its object, or could not. False: it waits until another object
 * releases some, or it has failed. */
static bool note_memory(struct tierce__coded_download *g, struct tierce__buf *buf)
{
    struct tierce__coded_connector *c = g->connector;
    struct tierce__coded_object *object = g->object;
    tierce__lock_take(&c->lock);
    object->allocating = false;
    object->buf = buf;
    bool waits = false;
    if (buf == NULL) {
        c->get_staging -= object->staged;
        object->staged = 0;
        object->readers--;
        g->is_reader = false;
        waits = c->get_staging > 0;
    }
    if (waits) { /* others would have no memory either, until some is released */
        tierce__coded_download_wait(g, &c->waiting);
        tierce__list_remove(&g->node);
        tierce__list_push_front(&c->waiting, &g->node); /* it was the first */
    } else {
        resume_waiting(c);
    }
    tierce__lock_drop(&c->lock);
    if (buf == NULL && !waits)
        tierce__coded_download_finish(g, TIERCE_E_FULL);
    return buf != NULL;
}

/* Under the lock. */
static void become_reader(struct tierce__coded_download *g, uint64_t bytes)
{
    struct tierce__coded_connector *c = g->connector;
    struct tierce__coded_object *object = g->object;
    object->readers++;
    g->is_reader = true;
    if (object->buf != NULL) {
        pass_memory_on(g);
        return;
    }
    object->allocating = true;
    object->staged = bytes;
    c->get_staging += g->reserved > 0 ? 0 : bytes;
    g->reserved = 0;
}

/* Makes the get a reader of its object's memory. A get that comes while others wait for memory is
 * behind them, although there may be room for it. False: the get waits, or has failed. */
static bool take_memory(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    struct tierce__coded_object *object = g->object;
    uint64_t bytes = object->parsed.info.object_bytes;
    if (g->is_reader)
        return true;
    tierce__lock_take(&c->lock);
    int rc = tierce__coded_connector_pool(c);
    bool is_first = object->buf == NULL;
    bool fits = g->reserved > 0 || (tierce__list_empty(&c->waiting) && has_room(c, bytes));
    bool waits = rc == 0 && (object->allocating || (is_first && !fits));
    if (waits) {
        pass_memory_on(g);
        tierce__coded_download_wait(g, &c->waiting);
    } else if (rc == 0) {
        become_reader(g, bytes);
    }
    tierce__lock_drop(&c->lock);
    if (rc < 0)
        tierce__coded_download_finish(g, TIERCE_E_FULL);
    if (rc < 0 || waits)
        return false;
    return !is_first || note_memory(g, tierce__coded_connector_alloc(c, bytes));
}

/* ---- reads ----------------------------------------------------------------------------------- */

static uint64_t offset_of(const struct tierce__coded_object *object, uint32_t layer)
{
    const struct tierce__coded_parsed *parsed = &object->parsed;
    return layer < parsed->info.chunk.geometry.layer_count
               ? tierce__coded_layer(&parsed->info, parsed->bytes, layer).offset
               : parsed->info.object_bytes;
}

static void set_layers(struct tierce__coded_object *object, uint32_t first, uint32_t last,
                       enum tierce__coded_layer_state state)
{
    memset(object->layers + first, (int)state, last - first);
}

/* The layers that came with the beginning are moved to the object's memory. */
static void take_have(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    struct tierce__coded_object *object = g->object;
    uint64_t have = g->have;
    const uint8_t *from = g->head != NULL ? g->head->data : g->req->buf->data;
    uint32_t layers = object->parsed.info.chunk.geometry.layer_count, count = 0;
    g->have = 0;
    tierce__lock_take(&c->lock);
    while (count < layers && object->layers[count] == TIERCE__CODED_LAYER_IDLE &&
           offset_of(object, count + 1) <= have)
        count++;
    set_layers(object, 0, count, TIERCE__CODED_LAYER_READING);
    tierce__lock_drop(&c->lock);
    uint64_t begins = offset_of(object, 0), ends = offset_of(object, count);
    memcpy(object->buf->data + begins, from + begins, ends - begins);
    tierce__lock_take(&c->lock);
    set_layers(object, 0, count, TIERCE__CODED_LAYER_HERE);
    resume_parked(c, object);
    tierce__lock_drop(&c->lock);
}

static void has_read_layers(struct tierce__store_req *inner)
{
    struct tierce__coded_download *g = inner->arg;
    struct tierce__coded_connector *c = g->connector;
    bool is_here = inner->status == 0;
    bool repeats = tierce__coded_download_is_shorter(g, inner->status);
    tierce__coded_download_note(g);
    tierce__lock_take(&c->lock);
    set_layers(g->object, g->first, g->last,
               is_here ? TIERCE__CODED_LAYER_HERE : TIERCE__CODED_LAYER_IDLE);
    /* A call that is late may still write there. */
    if (inner->status == TIERCE_E_DEADLINE) {
        g->object->is_late = true;
        tierce__coded_object_hide(c, g->object);
    }
    resume_parked(c, g->object);
    tierce__lock_drop(&c->lock);
    if (is_here)
        tierce__coded_download_layers(g);
    else if (repeats)
        tierce__coded_download_repeat(g);
    else
        tierce__coded_download_finish(g, inner->status);
}

static void has_read_page(struct tierce__store_req *inner)
{
    struct tierce__coded_download *g = inner->arg;
    tierce__coded_download_note(g);
    if (inner->status == 0)
        tierce__coded_download_layers(g);
    else if (tierce__coded_download_is_shorter(g, inner->status))
        tierce__coded_download_repeat(g);
    else
        tierce__coded_download_finish(g, inner->status);
}

/* A range without layers needs no more than the head, but no read is answered without the store: a
 * probe asks for such a range, and a head in memory does not prove that the store works. */
static void read_page(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    tierce__buf_release(g->head);
    tierce__lock_take(&c->lock);
    int rc = tierce__coded_connector_pool(c);
    tierce__lock_drop(&c->lock);
    g->head = rc == 0 ? tierce__coded_connector_alloc(c, TIERCE__CHUNK_ALIGN) : NULL;
    if (g->head != NULL)
        tierce__coded_download_read(g, g->head, 0, TIERCE__CHUNK_ALIGN, has_read_page);
    else
        tierce__coded_download_finish(g, TIERCE_E_FULL);
}

/* Finds the first run of layers that no get reads, and takes it. False: there is none; then *all
 * is whether all layers of the range are here. Under the lock. */
static bool take_layers(struct tierce__coded_download *g, bool *all)
{
    const uint8_t *layers = g->object->layers;
    uint32_t end = g->range.last;
    *all = true;
    for (g->first = g->range.first; g->first < end && layers[g->first] != TIERCE__CODED_LAYER_IDLE;
         g->first++)
        *all = *all && layers[g->first] == TIERCE__CODED_LAYER_HERE;
    for (g->last = g->first; g->last < end && layers[g->last] == TIERCE__CODED_LAYER_IDLE;
         g->last++)
        ;
    set_layers(g->object, g->first, g->last, TIERCE__CODED_LAYER_READING);
    return g->first < g->last;
}

/* Reads the layers of the range that are missing, or waits for them. A get whose object may still
 * be written by a late call begins anew: has_read_layers notes that together with the layers that
 * the call had. */
static void read_layers(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    struct tierce__coded_object *object = g->object;
    bool all = false;
    tierce__lock_take(&c->lock);
    bool is_late = object->is_late, reads = !is_late && take_layers(g, &all);
    if (!is_late && !reads && all) {
        tierce__coded_speed_arrived(&c->speed);
        tierce__list_push_back(&c->ready, &g->node);
        tierce__cond_signal(&c->decode_cond);
    } else if (!is_late && !reads) {
        tierce__coded_download_wait(g, &c->parked);
    }
    tierce__lock_drop(&c->lock);
    if (is_late)
        tierce__coded_download_repeat(g);
    if (!reads)
        return;
    uint64_t offset = offset_of(object, g->first);
    tierce__coded_download_read(g, object->buf, offset, offset_of(object, g->last) - offset,
                                has_read_layers);
}

/* Whether the raw object is longer than the caller's buffer. Other engines send the objects of a
 * store with forms, so a header may state any length, and memory would be taken for it. A range
 * without layers needs none: a probe has a small buffer. */
static bool is_too_long(const struct tierce__coded_download *g)
{
    uint64_t raw_bytes = g->object->parsed.info.chunk.extent.object_bytes;
    return g->connector->has_forms && g->range.first < g->range.last &&
           raw_bytes > g->req->buf->bytes;
}

/* Plans the range. Returns 0 if a get can use its object, otherwise the error. */
static int check(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    const struct tierce__store_req *req = g->req;
    const struct tierce__coded_parsed *parsed = &g->object->parsed;
    tierce__coded_range_plan(&g->range, parsed, req->offset, req->length);
    int rc = tierce__now_ns() >= req->deadline_ns ? TIERCE_E_DEADLINE : 0;
    if (rc == 0 &&
        (req->offset + req->length > parsed->info.chunk.extent.object_bytes || is_too_long(g)))
        rc = TIERCE_E_FORMAT; /* as for a raw object of another length */
    tierce__lock_take(&c->lock);
    if (rc == 0 && !tierce__coded_connector_start_decoders(c))
        rc = TIERCE_E_FULL;
    tierce__lock_drop(&c->lock);
    return rc;
}

void tierce__coded_download_layers(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    const struct tierce__store_req *req = g->req;
    int rc = check(g);
    if (rc < 0) {
        tierce__coded_download_finish(g, rc);
        return;
    }
    bool is_empty = g->range.first == g->range.last;
    if (is_empty && !g->was_read) {
        read_page(g);
        return;
    }
    if (!is_empty && !take_memory(g))
        return;
    if (req->offset == 0) {
        tierce__lock_take(&c->lock);
        c->asked = req->length;
        c->needed = is_empty ? 0 : g->range.to;
        tierce__lock_drop(&c->lock);
    }
    if (!is_empty && g->have > 0)
        take_have(g);
    read_layers(g);
}

/* ---- decoding -------------------------------------------------------------------------------- */

void tierce__coded_download_decode(struct tierce__coded_download *g)
{
    struct tierce__coded_connector *c = g->connector;
    const struct tierce__coded_object *object = g->object;
    struct tierce__coded_work work = {.keys = c->keys, .tier = c->name};
    uint64_t begun = tierce__now_ns();
    int rc = TIERCE_E_DEADLINE;
    if (begun < g->req->deadline_ns) /* the memory of others may leave at any time */
        rc = tierce__coded_range_decode(&g->range, &object->parsed, g->req,
                                        g->is_reader ? object->buf->data + g->range.from : NULL,
                                        &work);
    uint64_t took = tierce__now_ns() - begun;
    tierce__lock_take(&c->lock);
    tierce__coded_speed_decoded(&c->speed, &c->stats, &work, rc, took);
    tierce__lock_drop(&c->lock);
    bool is_wrong = rc == TIERCE_E_CHECKSUM || rc == TIERCE_E_FORMAT;
    if (is_wrong && !g->is_repeated) /* perhaps the head is that of an earlier object */
        tierce__coded_download_repeat(g);
    else
        tierce__coded_download_finish(g, is_wrong ? TIERCE_E_CHECKSUM : rc);
}

static void sweep(struct tierce__coded_connector *c, struct tierce__list *list, uint64_t now,
                  struct tierce__list *late)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, list) {
        const struct tierce__coded_download *g = tierce__coded_download_of(it);
        uint64_t deadline_ns = g->req->deadline_ns;
        if (g->guesses)
            continue; /* its read ends by the deadline */
        if (deadline_ns <= now || c->inner_closes) {
            tierce__list_remove(it);
            tierce__list_push_back(late, it);
        } else if (deadline_ns < c->next_deadline) {
            c->next_deadline = deadline_ns;
        }
    }
}

/* Answers the gets that are too late, or that close has no time for. Under the lock, which is
 * released temporarily. */
static void answer_late(struct tierce__coded_connector *c)
{
    struct tierce__list late;
    uint64_t now = tierce__now_ns();
    if (now < c->next_deadline && !c->inner_closes)
        return;
    int status = c->inner_closes ? TIERCE_E_CLOSED : TIERCE_E_DEADLINE;
    tierce__list_init(&late);
    c->next_deadline = TIERCE__DEADLINE_NEVER;
    sweep(c, &c->parked, now, &late);
    sweep(c, &c->waiting, now, &late);
    resume_waiting(c);
    tierce__lock_drop(&c->lock);
    while (!tierce__list_empty(&late)) {
        struct tierce__coded_download *g = tierce__coded_download_of(late.next);
        tierce__list_remove(&g->node);
        tierce__coded_download_fail(g, status);
    }
    tierce__lock_take(&c->lock);
}

static void *decoder_main(void *arg)
{
    struct tierce__coded_connector *c = arg;
    tierce__thread_does_not_interrupt();
    tierce__lock_take(&c->lock);
    while (!c->stop) {
        answer_late(c);
        /* Reads first: the store works while this thread decodes. */
        bool resumes = !tierce__list_empty(&c->resumed);
        struct tierce__list *list = resumes ? &c->resumed : &c->ready;
        if (tierce__list_empty(list)) {
            if (!c->stop)
                (void)tierce__cond_wait(&c->decode_cond, &c->lock, c->next_deadline);
            continue;
        }
        struct tierce__coded_download *g = tierce__coded_download_of(list->next);
        tierce__list_remove(&g->node);
        tierce__lock_drop(&c->lock);
        if (resumes)
            tierce__coded_download_layers(g);
        else
            tierce__coded_download_decode(g);
        tierce__lock_take(&c->lock);
    }
    tierce__lock_drop(&c->lock);
    return NULL;
}

bool tierce__coded_connector_start_decoders(struct tierce__coded_connector *c)
{
    tierce__lock_assert_held(&c->lock);
    if (c->decoders_run)
        return true;
    int rc = tierce__threads_start_on(&c->decoders, c->speed.decode_threads, &c->affinity,
                                      decoder_main, c);
    c->decoders_run = rc == 0 || c->decoders.count > 0; /* fewer are enough */
    if (!c->decoders_run)
        tierce__threads_join(&c->decoders); /* so that the next get can start them */
    return c->decoders_run;
}
