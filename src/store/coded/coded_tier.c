/* SPDX-License-Identifier: Apache-2.0 */
#include "store/coded/coded_tier.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "store/coded/coded_private.h"

#include <errno.h>

#define STAGING_BYTES (64u << 20)
#define POOL_MIN      (1u << 20)
#define STAGED_MAX    1024u /* buffers */

static struct tierce__coded_tier *tier_of(struct tierce__tier *tier)
{
    struct tierce__coded_tier *t = (struct tierce__coded_tier *)tier;
    TIERCE_CHECK_MAGIC(t, TIERCE__CODED_MAGIC);
    return t;
}

/* ---- memory ---------------------------------------------------------------------------------- */

int tierce__coded_pool(struct tierce__coded_tier *t)
{
    tierce__lock_assert_held(&t->lock);
    uint64_t bytes = 2 * t->staging_bytes_max;
    if (t->pool != NULL || t->no_pool)
        return 0;
    return tierce__pool_create(
        &t->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                              .cap_bytes = bytes > POOL_MIN ? bytes : POOL_MIN,
                                              .buf_count_max = STAGED_MAX,
                                              .no_touch = true});
}

/* The tier has its own pool, because that of the chunks may be full of chunks that are leased,
 * for instance to the load that reads. */
struct tierce__buf *tierce__coded_alloc(struct tierce__coded_tier *t, uint64_t bytes)
{
    struct tierce__buf *buf;
    if (!t->no_pool && tierce__pool_alloc(t->pool, &buf, bytes) == 0)
        return buf;
    return t->alloc(t->alloc_arg, bytes);
}

/* ---- the inner tier -------------------------------------------------------------------------- */

bool tierce__coded_pass(struct tierce__coded_tier *t, struct tierce__store_req *inner)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    tierce__lock_take(&t->lock);
    bool passes = !t->inner_closes;
    t->passing += passes;
    tierce__lock_drop(&t->lock);
    if (!passes)
        return false;
    t->inner->ops->submit(t->inner, inner);
    tierce__lock_take(&t->lock);
    t->passing--;
    if (t->closing)
        tierce__cond_broadcast(&t->idle_cond);
    tierce__lock_drop(&t->lock);
    return true;
}

static void note_look(struct tierce__store_req *look)
{
    bool *answered = look->arg;
    *answered = true;
}

int tierce__coded_look(struct tierce__coded_tier *t, struct tierce__store_req *look,
                       const struct tierce__key *key, uint64_t deadline_ns)
{
    bool answered = false;
    *look = (struct tierce__store_req){.op = TIERCE__STORE_LOOKUP,
                                       .deadline_ns = deadline_ns,
                                       .done = note_look,
                                       .arg = &answered,
                                       .keys = key,
                                       .key_count = 1};
    if (!tierce__coded_pass(t, look))
        return TIERCE_E_CLOSED;
    TIERCE_ASSERT(answered); /* a disk has its index in memory */
    if (look->lacks_key)
        tierce__coded_keys_ask(t->keys);
    return look->status < 0 ? look->status : (int)look->found;
}

/* ---- chunks that no key decrypts ------------------------------------------------------------- */

void tierce__coded_hide(struct tierce__coded_tier *t, const struct tierce__key *key,
                        uint64_t stored, uint64_t generation)
{
    bool answered = false;
    struct tierce__store_req hide = {.op = TIERCE__STORE_HIDE,
                                     .deadline_ns = TIERCE__DEADLINE_NEVER,
                                     .done = note_look,
                                     .arg = &answered,
                                     .keys = key,
                                     .key_count = 1,
                                     .left = TIERCE__LEFT_NO_KEY,
                                     .stored = stored};
    if (!tierce__coded_pass(t, &hide))
        return;
    TIERCE_ASSERT(answered);
    tierce__lock_take(&t->lock);
    /* relaxed: show_again reads the rest under the lock */
    bool has = atomic_load_explicit(&t->has_lacking, memory_order_relaxed);
    if (!has || generation < t->lacking_generation)
        t->lacking_generation = generation;
    atomic_store_explicit(&t->has_lacking, true, memory_order_relaxed);
    tierce__lock_drop(&t->lock);
}

/* The keys may decrypt hidden chunks since they have changed. */
static void show_again(struct tierce__coded_tier *t)
{
    bool answered = false;
    struct tierce__store_req show = {.op = TIERCE__STORE_SHOW,
                                     .deadline_ns = TIERCE__DEADLINE_NEVER,
                                     .done = note_look,
                                     .arg = &answered};
    uint64_t generation = tierce__coded_keys_generation(t->keys);
    tierce__lock_take(&t->lock);
    bool shows = atomic_load_explicit(&t->has_lacking, memory_order_relaxed) &&
                 t->lacking_generation != generation;
    if (shows) /* first: a chunk that is hidden from here on sets it again */
        atomic_store_explicit(&t->has_lacking, false, memory_order_relaxed);
    tierce__lock_drop(&t->lock);
    if (shows && tierce__coded_pass(t, &show))
        TIERCE_ASSERT(answered);
}

/* A lookup, of which must be known whether it ends at a hidden chunk. */
static void look_up(struct tierce__coded_tier *t, struct tierce__store_req *req)
{
    bool answered = false;
    struct tierce__store_req look = *req;
    look.done = note_look;
    look.arg = &answered;
    look.lacks_key = false;
    look.found = 0;
    if (!tierce__coded_pass(t, &look))
        look.status = TIERCE_E_CLOSED;
    else
        TIERCE_ASSERT(answered);
    if (look.lacks_key)
        tierce__coded_keys_ask(t->keys);
    req->found = look.found;
    req->object_bytes = look.object_bytes;
    req->coded_bytes = look.coded_bytes;
    req->stored = look.stored;
    req->lacks_key = look.lacks_key;
    req->status = look.status;
    req->done(req);
}

bool tierce__coded_tier_encrypts(struct tierce__tier *tier)
{
    return tier_of(tier)->encrypts;
}

int tierce__coded_tier_form(struct tierce__tier *tier, const struct tierce__key *key,
                            uint64_t *coded_bytes)
{
    struct tierce__store_req look;
    int found = tierce__coded_look(tier_of(tier), &look, key, TIERCE__DEADLINE_NEVER);
    if (found <= 0)
        return found < 0 ? found : look.lacks_key ? TIERCE_E_NO_KEY : TIERCE_E_MISS;
    *coded_bytes = look.coded_bytes;
    return 0;
}

/* ---- submit ---------------------------------------------------------------------------------- */

/* A deletion or a clear: puts before it are cancelled. */
static void forget(struct tierce__coded_tier *t, struct tierce__store_req *req)
{
    struct tierce__list finished;
    tierce__list_init(&finished);
    tierce__list_init(&req->node);
    tierce__lock_take(&t->lock);
    bool waits = !t->closing && tierce__coded_puts_cancel(t, req, &finished);
    if (waits)
        tierce__list_push_back(&t->deferred, &req->node);
    tierce__lock_drop(&t->lock);
    tierce__coded_puts_answer(&finished, TIERCE_E_CANCELLED);
    if (waits || tierce__coded_pass(t, req))
        return;
    req->status = TIERCE_E_CLOSED;
    req->done(req);
}

static bool is_closing(struct tierce__coded_tier *t)
{
    tierce__lock_take(&t->lock);
    bool closing = t->closing;
    tierce__lock_drop(&t->lock);
    return closing;
}

static void submit(struct tierce__tier *tier, struct tierce__store_req *req)
{
    struct tierce__coded_tier *t = tier_of(tier);
    bool forgets =
        req->op == TIERCE__STORE_CLEAR || (req->op == TIERCE__STORE_DELETE && !req->only_asks);
    bool recodes = req->op == TIERCE__STORE_PUT && req->recodes;
    if (recodes) /* relaxed: a get that does not see it yet reads what was there */
        atomic_store_explicit(&t->has_recoded, true, memory_order_relaxed);
    bool carries = req->op == TIERCE__STORE_GET && req->carries;
    if ((req->op == TIERCE__STORE_GET || req->op == TIERCE__STORE_PUT) && !recodes && !carries)
        req->coded_bytes = 0;
    bool has_lacking = atomic_load_explicit(&t->has_lacking, memory_order_relaxed);
    bool is_closed = is_closing(t);
    if (has_lacking && !is_closed)
        show_again(t);
    if (is_closed) {
        req->status = TIERCE_E_CLOSED;
        req->found = 0;
        req->done(req);
    } else if (req->op == TIERCE__STORE_GET && !carries) {
        tierce__coded_get_begin(t, req);
    } else if (forgets) {
        forget(t, req);
    } else if (req->op == TIERCE__STORE_LOOKUP && has_lacking) {
        look_up(t, req);
    } else if (req->op != TIERCE__STORE_PUT || recodes || !tierce__coded_put_begin(t, req)) {
        if (tierce__coded_pass(t, req))
            return;
        req->status = TIERCE_E_CLOSED;
        req->done(req);
    }
}

static void touch(struct tierce__tier *tier, const struct tierce__tier_uses *uses)
{
    struct tierce__coded_tier *t = tier_of(tier);
    t->inner->ops->touch(t->inner, uses);
}

static void stats(struct tierce__tier *tier, struct tierce__tier_stats *out)
{
    struct tierce__coded_tier *t = tier_of(tier);
    t->inner->ops->stats(t->inner, out);
    tierce__lock_take(&t->lock);
    out->queued_bytes += t->queued_bytes;
    out->dropped_puts += t->dropped;
    tierce__lock_drop(&t->lock);
}

static void why(struct tierce__tier *tier, char text[TIERCE__TIER_WHY_BYTES])
{
    struct tierce__coded_tier *t = tier_of(tier);
    t->inner->ops->why(t->inner, text);
}

static void watch(struct tierce__tier *tier, tierce__tier_watch_fn *fn, void *arg)
{
    struct tierce__coded_tier *t = tier_of(tier);
    t->inner->ops->watch(t->inner, fn, arg);
}

static bool scan(struct tierce__tier *tier, uint32_t *cursor, uint32_t places,
                 tierce__tier_watch_fn *fn, void *arg)
{
    struct tierce__coded_tier *t = tier_of(tier);
    return t->inner->ops->scan(t->inner, cursor, places, fn, arg);
}

void tierce__coded_tier_use_device(struct tierce__tier *tier,
                                   const struct tierce__coded_device *device)
{
    struct tierce__coded_tier *t = tier_of(tier);
    TIERCE_ASSERT(t->own_device.ops == NULL);
    t->own_device = *device;
    atomic_store_explicit(&t->device, &t->own_device, memory_order_release);
}

void tierce__coded_tier_stats(struct tierce__tier *tier, struct tierce__coded_stats *out)
{
    struct tierce__coded_tier *t = tier_of(tier);
    tierce__lock_take(&t->lock);
    *out = t->stats;
    out->codec = t->codec;
    out->encrypts = t->encrypts;
    out->device_bytes_per_s = tierce__coded_speed_of_device(&t->speed);
    out->decode_bytes_per_s = tierce__coded_speed_of_decoding(&t->speed);
    out->load_time = tierce__coded_speed_of_loads(&t->speed);
    out->load_time_max = t->speed.load_time_max;
    tierce__lock_drop(&t->lock);
}

/* ---- open and close -------------------------------------------------------------------------- */

static void free_tier(struct tierce__coded_tier *t)
{
    tierce__coded_heads_free(t);
    tierce__lock_fini(&t->lock);
    tierce__cond_fini(&t->encode_cond);
    tierce__cond_fini(&t->decode_cond);
    tierce__cond_fini(&t->idle_cond);
    tierce__pool_destroy(t->pool);
    tierce__coded_elements_fini(&t->elements);
    t->magic = 0;
    tierce__free(t);
}

/* Ends the requests that are not with the inner tier, as far as the deadline allows, and after it
 * the calls of the inner tier. */
static void drain(struct tierce__coded_tier *t, uint64_t deadline_ns)
{
    struct tierce__list finished;
    tierce__list_init(&finished);
    tierce__lock_take(&t->lock);
    TIERCE_ASSERT(!t->closing);
    t->closing = true;
    while ((!tierce__list_empty(&t->puts) || t->pending_gets > 0) &&
           tierce__cond_wait(&t->idle_cond, &t->lock, deadline_ns))
        ;
    (void)tierce__coded_puts_cancel(t, NULL, &finished);
    t->inner_closes = true;
    tierce__cond_broadcast(&t->decode_cond);
    tierce__lock_drop(&t->lock);
    tierce__coded_puts_answer(&finished, TIERCE_E_CLOSED);
    tierce__lock_take(&t->lock);
    while (t->passing > 0 || !tierce__list_empty(&t->puts))
        (void)tierce__cond_wait(&t->idle_cond, &t->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&t->lock);
}

static bool close_tier(struct tierce__tier *tier, uint64_t deadline_ns)
{
    struct tierce__coded_tier *t = tier_of(tier);
    drain(t, deadline_ns);
    /* The inner tier answers all that it has; the threads decode and count it. */
    bool closed = t->inner->ops->close(t->inner, deadline_ns);
    if (!closed)
        return false;
    tierce__lock_take(&t->lock);
    while (t->pending_gets > 0 || t->put_count > 0)
        (void)tierce__cond_wait(&t->idle_cond, &t->lock, TIERCE__DEADLINE_NEVER);
    t->stop = true;
    tierce__cond_broadcast(&t->encode_cond);
    tierce__cond_broadcast(&t->decode_cond);
    bool encoder_runs = t->encoder_runs;
    tierce__lock_drop(&t->lock);
    if (encoder_runs)
        pthread_join(t->encoder, NULL);
    tierce__threads_join(&t->decoders);
    free_tier(t);
    return true;
}

static void init_lists(struct tierce__coded_tier *t)
{
    tierce__lock_init(&t->lock, TIERCE__LOCK_CODED);
    tierce__cond_init(&t->encode_cond);
    tierce__cond_init(&t->decode_cond);
    tierce__cond_init(&t->idle_cond);
    struct tierce__list *lists[] = {&t->puts,    &t->deferred, &t->heads, &t->parked,
                                    &t->waiting, &t->resumed,  &t->ready};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        tierce__list_init(lists[i]);
    t->next_deadline = t->put_deadline = TIERCE__DEADLINE_NEVER;
}

int tierce__coded_tier_open(struct tierce__tier **out, const struct tierce__coded_opts *opts)
{
    if (opts->size != sizeof(*opts) || opts->tier == NULL || opts->alloc == NULL ||
        opts->namespaces == NULL || (opts->encrypts && opts->keys == NULL))
        return TIERCE_E_ARGUMENT;
    TIERCE_ASSERT((opts->tier->ops->caps & (TIERCE__TIER_LENDS | TIERCE__TIER_SHARED)) == 0);
    struct tierce__coded_tier *t = tierce__calloc(1, sizeof(*t));
    if (t == NULL)
        return -ENOMEM;
    int rc = tierce__coded_elements_init(&t->elements, opts->namespaces);
    if (rc < 0) {
        tierce__free(t);
        return rc;
    }
    init_lists(t);
    t->magic = TIERCE__CODED_MAGIC;
    t->inner = opts->tier;
    t->codec = opts->codec;
    t->keys = opts->keys;
    t->encrypts = opts->encrypts;
    t->no_pool = opts->no_pool;
    tierce__affinity_note(&t->affinity);
    t->alloc = opts->alloc;
    t->alloc_arg = opts->alloc_arg;
    t->queue_bytes_max = opts->queue_bytes_max > 0 ? opts->queue_bytes_max : STAGING_BYTES;
    t->staging_bytes_max = opts->staging_bytes_max > 0 ? opts->staging_bytes_max : STAGING_BYTES;
    tierce__coded_speed_init(&t->speed, opts->measured_bytes, opts->decode_threads,
                             opts->load_time_max);
    t->ops = (struct tierce__tier_ops){.name = opts->tier->ops->name,
                                       .caps = opts->tier->ops->caps,
                                       .read_bytes = opts->tier->ops->read_bytes,
                                       .submit = submit,
                                       .touch = touch,
                                       .stats = stats,
                                       .why = opts->tier->ops->why != NULL ? why : NULL,
                                       .watch = watch,
                                       .scan = scan,
                                       .close = close_tier};
    t->base.ops = &t->ops;
    *out = &t->base;
    return 0;
}
