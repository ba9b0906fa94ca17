/* SPDX-License-Identifier: Apache-2.0 */
#include "store/memory/copies.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "store/memory/memory.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

/*
 * A copy is made without a lock, so a deletion can arrive between the beginning of a PUT and the
 * moment at which its chunk becomes visible. Such a PUT is marked, and removes its chunk again.
 */

#define COPIES_MAGIC 0x43505931u

/* Stands behind the object in each buffer of the pool. */
struct trailer {
    uint64_t object_bytes; /* of the raw chunk */
    uint64_t coded_bytes;  /* of the object in the buffer; 0: it is the raw chunk */
    uint64_t stored;       /* the number of this copy */
};

/* A PUT that is being copied. */
struct writing {
    struct tierce__list node;
    const struct tierce__store_req *req;
    bool cancelled;
};

struct copies {
    struct tierce__tier base;
    uint32_t magic;
    struct tierce__tier *memory; /* over `pool` */
    struct tierce__pool *pool;
    _Atomic uint64_t numbers; /* of copies so far */
    _Atomic uint64_t get_chunks, get_bytes;
    _Atomic uint32_t inside; /* threads in a call; close waits for them before it frees the tier */

    struct tierce__lock lock; /* class CODED: below */
    struct tierce__list writing;
    bool closed;
};

static struct copies *copies_of(struct tierce__tier *tier)
{
    struct copies *c = (struct copies *)(void *)tier;
    TIERCE_CHECK_MAGIC(c, COPIES_MAGIC);
    return c;
}

/* ---- the memory tier, which answers inside submit -------------------------------------------- */

static void note_answer(struct tierce__store_req *req)
{
    bool *answered = req->arg;
    *answered = true;
}

static int ask(struct copies *c, struct tierce__store_req *inner)
{
    bool answered = false;
    inner->done = note_answer;
    inner->arg = &answered;
    c->memory->ops->submit(c->memory, inner);
    TIERCE_ASSERT(answered);
    return inner->status;
}

/* A reference on the buffer of a copy, or NULL. */
static struct tierce__buf *take(struct copies *c, const struct tierce__key *key,
                                struct trailer *trailer)
{
    struct tierce__store_req get = {.op = TIERCE__STORE_GET,
                                    .deadline_ns = TIERCE__DEADLINE_NEVER,
                                    .keys = key,
                                    .key_count = 1};
    if (ask(c, &get) < 0)
        return NULL;
    memcpy(trailer, get.buf->data + get.buf->bytes - sizeof(*trailer), sizeof(*trailer));
    TIERCE_ASSERT(trailer->object_bytes > 0);
    return get.buf;
}

static bool has(struct copies *c, const struct tierce__key *key)
{
    struct tierce__store_req look = {.op = TIERCE__STORE_LOOKUP,
                                     .deadline_ns = TIERCE__DEADLINE_NEVER,
                                     .keys = key,
                                     .key_count = 1};
    return ask(c, &look) == 0 && look.found == 1;
}

/* ---- requests -------------------------------------------------------------------------------- */

static int run_lookup(struct copies *c, struct tierce__store_req *req)
{
    struct tierce__store_req look = *req;
    look.bufs = NULL;
    int rc = ask(c, &look);
    req->found = look.found;
    if (rc < 0 || req->key_count != 1 || req->found == 0)
        return rc;
    struct trailer trailer;
    struct tierce__buf *buf = take(c, req->keys, &trailer);
    req->found = buf != NULL; /* it may have left since */
    if (buf != NULL) {
        req->object_bytes = trailer.object_bytes;
        req->coded_bytes = trailer.coded_bytes;
        req->stored = trailer.stored;
    }
    tierce__buf_release(buf);
    return 0;
}

/* Whether the range is sane; and whether it lies in the copy. */
static int check_range(const struct tierce__store_req *req, const struct trailer *trailer)
{
    uint64_t end, from = req->coded_bytes > 0 ? 0 : req->offset;
    bool is_coded = trailer->coded_bytes > 0;
    if (req->buf != NULL && req->buf->on_device)
        return TIERCE_E_UNSUPPORTED;
    if (req->buf == NULL || !tierce__add_ok(&end, from, req->length) || end > req->buf->bytes)
        return TIERCE_E_ARGUMENT;
    if ((req->coded_bytes > 0) != is_coded || (is_coded && req->stored != trailer->stored))
        return TIERCE_E_MISS;
    uint64_t bytes = is_coded ? trailer->coded_bytes : trailer->object_bytes;
    return req->offset <= bytes && req->length <= bytes - req->offset ? 0 : TIERCE_E_MISS;
}

static int run_get(struct copies *c, struct tierce__store_req *req)
{
    struct trailer trailer;
    struct tierce__buf *buf = take(c, req->keys, &trailer);
    if (buf == NULL)
        return TIERCE_E_MISS;
    int rc = check_range(req, &trailer);
    if (rc == 0) {
        memcpy(req->buf->data + (req->coded_bytes > 0 ? 0 : req->offset), buf->data + req->offset,
               req->length);
        atomic_fetch_add_explicit(&c->get_chunks, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&c->get_bytes, req->length, memory_order_relaxed);
    }
    tierce__buf_release(buf);
    return rc;
}

/* Room for the copy, evicting by policy. */
static int reserve(struct copies *c, struct tierce__buf **out, const struct tierce__store_req *req)
{
    uint64_t bytes = tierce__store_put_bytes(req);
    *out = c->memory->ops->reserve(
        c->memory, &(struct tierce__reserve){.key = &req->keys[0],
                                             .parent = req->parent,
                                             .origin = req->origin,
                                             .bytes = bytes + sizeof(struct trailer)});
    return *out != NULL ? 0 : TIERCE_E_FULL;
}

static void copy(struct copies *c, struct tierce__buf *to, const struct tierce__store_req *req)
{
    const struct trailer trailer = {.object_bytes = req->object_bytes,
                                    .coded_bytes = req->coded_bytes,
                                    .stored = atomic_fetch_add(&c->numbers, 1) + 1};
    uint64_t bytes = tierce__store_put_bytes(req);
    TIERCE_ASSERT(to->bytes == bytes + sizeof(trailer));
    memcpy(to->data, req->buf->data, bytes);
    memcpy(to->data + bytes, &trailer, sizeof(trailer));
}

static int remove_key(struct copies *c, const struct tierce__key *key)
{
    struct tierce__store_req inner = {.op = TIERCE__STORE_DELETE,
                                      .deadline_ns = TIERCE__DEADLINE_NEVER,
                                      .keys = key,
                                      .key_count = 1};
    return ask(c, &inner);
}

/* Copies the chunk, and makes the copy visible. */
static int write_copy(struct copies *c, struct tierce__store_req *req)
{
    struct tierce__buf *buf;
    int rc = reserve(c, &buf, req);
    if (rc < 0)
        return rc;
    copy(c, buf, req);
    struct tierce__store_req inner = *req;
    inner.buf = buf;
    inner.replaces = false;
    rc = ask(c, &inner);
    tierce__buf_release(buf);
    return rc;
}

static int run_put(struct copies *c, struct tierce__store_req *req)
{
    if (req->recodes)
        return TIERCE_E_UNSUPPORTED;
    if (req->buf == NULL || tierce__store_put_bytes(req) > req->buf->bytes ||
        req->object_bytes == 0)
        return TIERCE_E_ARGUMENT;
    if (has(c, &req->keys[0]))
        return 0;
    if (req->needs_parent && req->parent != NULL && !has(c, req->parent))
        return TIERCE_E_REFUSED;
    struct writing writing = {.req = req};
    tierce__lock_take(&c->lock);
    tierce__list_push_back(&c->writing, &writing.node);
    tierce__lock_drop(&c->lock);
    int rc = write_copy(c, req);
    tierce__lock_take(&c->lock);
    tierce__list_remove(&writing.node);
    tierce__lock_drop(&c->lock);
    if (!writing.cancelled)
        return rc;
    (void)remove_key(c, &req->keys[0]);
    return TIERCE_E_CANCELLED;
}

/* Marks the PUTs that a deletion or a clear comes after. */
static void cancel_writing(struct copies *c, const struct tierce__store_req *req)
{
    tierce__lock_take(&c->lock);
    for (struct tierce__list *node = c->writing.next; node != &c->writing; node = node->next) {
        struct writing *w = TIERCE__CONTAINER_OF(node, struct writing, node);
        const struct tierce__key *key = &w->req->keys[0];
        w->cancelled |= req->op != TIERCE__STORE_CLEAR ? tierce__key_equal(key, &req->keys[0])
                        : req->key_count > 0           ? key->ns == req->keys[0].ns
                                                       : true;
    }
    tierce__lock_drop(&c->lock);
}

static int pass(struct copies *c, struct tierce__store_req *req)
{
    struct tierce__store_req inner = *req;
    int rc = ask(c, &inner);
    req->found = inner.found;
    return rc;
}

static int run_request(struct copies *c, struct tierce__store_req *req)
{
    bool needs_key = req->op == TIERCE__STORE_GET || req->op == TIERCE__STORE_PUT ||
                     req->op == TIERCE__STORE_DELETE || req->op == TIERCE__STORE_HIDE;
    if (needs_key && req->key_count == 0)
        return TIERCE_E_ARGUMENT;
    switch (req->op) {
    case TIERCE__STORE_LOOKUP:
        return run_lookup(c, req);
    case TIERCE__STORE_GET:
        return run_get(c, req);
    case TIERCE__STORE_PUT:
        return run_put(c, req);
    case TIERCE__STORE_DELETE:
    case TIERCE__STORE_HIDE:
    case TIERCE__STORE_CLEAR:
        cancel_writing(c, req);
        return pass(c, req);
    case TIERCE__STORE_FLUSH:
    case TIERCE__STORE_SIBLINGS:
    case TIERCE__STORE_LIST:
    case TIERCE__STORE_PING:
    case TIERCE__STORE_SHOW:
        return pass(c, req);
    }
    return TIERCE_E_ARGUMENT;
}

static void copies_submit(struct tierce__tier *tier, struct tierce__store_req *req)
{
    struct copies *c = copies_of(tier);
    atomic_fetch_add(&c->inside, 1);
    tierce__lock_take(&c->lock);
    bool closed = c->closed;
    tierce__lock_drop(&c->lock);
    req->status = closed ? TIERCE_E_CLOSED : run_request(c, req);
    if (closed)
        req->found = 0;
    atomic_fetch_sub(&c->inside, 1);
    req->done(req);
}

static void copies_touch(struct tierce__tier *tier, const struct tierce__tier_uses *uses)
{
    struct copies *c = copies_of(tier);
    c->memory->ops->touch(c->memory, uses);
}

static void copies_stats(struct tierce__tier *tier, struct tierce__tier_stats *out)
{
    struct copies *c = copies_of(tier);
    c->memory->ops->stats(c->memory, out);
    out->get_chunks = atomic_load_explicit(&c->get_chunks, memory_order_relaxed);
    out->get_bytes = atomic_load_explicit(&c->get_bytes, memory_order_relaxed);
}

static void copies_watch(struct tierce__tier *tier, tierce__tier_watch_fn *fn, void *arg)
{
    struct copies *c = copies_of(tier);
    c->memory->ops->watch(c->memory, fn, arg);
}

static bool copies_scan(struct tierce__tier *tier, uint32_t *cursor, uint32_t places,
                        tierce__tier_watch_fn *fn, void *arg)
{
    struct copies *c = copies_of(tier);
    return c->memory->ops->scan(c->memory, cursor, places, fn, arg);
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool copies_close(struct tierce__tier *tier, uint64_t deadline_ns)
{
    struct copies *c = copies_of(tier);
    tierce__lock_take(&c->lock);
    TIERCE_ASSERT(!c->closed);
    c->closed = true;
    tierce__lock_drop(&c->lock);
    while (atomic_load(&c->inside) != 0)
        sched_yield();
    bool closed = c->memory->ops->close(c->memory, deadline_ns);
    TIERCE_ASSERT(closed && tierce__list_empty(&c->writing));
    tierce__pool_destroy(c->pool);
    tierce__lock_fini(&c->lock);
    c->magic = 0;
    tierce__free(c);
    return true;
}

static const struct tierce__tier_ops copies_ops = {
    .name = "coded_memory",
    .submit = copies_submit,
    .touch = copies_touch,
    .stats = copies_stats,
    .watch = copies_watch,
    .scan = copies_scan,
    .close = copies_close,
};

int tierce__copies_open(struct tierce__tier **out, const struct tierce__copies_opts *opts)
{
    if (opts->size != sizeof(*opts) || opts->policy == NULL)
        return TIERCE_E_ARGUMENT;
    struct copies *c = tierce__calloc(1, sizeof(*c));
    if (c == NULL)
        return -ENOMEM;
    int rc = tierce__pool_create(
        &c->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                              .cap_bytes = opts->cap_bytes,
                                              .buf_count_max = opts->chunk_count_max,
                                              .no_touch = opts->no_touch});
    if (rc == 0)
        rc = tierce__memory_open(
            &c->memory, &(struct tierce__memory_opts){.size = sizeof(struct tierce__memory_opts),
                                                      .pool = c->pool,
                                                      .policy = opts->policy,
                                                      .slots = opts->slots,
                                                      .seed = opts->seed,
                                                      .ttl_ms = opts->ttl_ms});
    if (rc < 0) {
        tierce__pool_destroy(c->pool);
        tierce__free(c);
        return rc;
    }
    tierce__lock_init(&c->lock, TIERCE__LOCK_CODED);
    tierce__list_init(&c->writing);
    c->magic = COPIES_MAGIC;
    c->base.ops = &copies_ops;
    *out = &c->base;
    return 0;
}
