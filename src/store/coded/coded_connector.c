/* SPDX-License-Identifier: Apache-2.0 */
#include "store/coded/coded_connector.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "store/coded/coded_connector_private.h"

#define STAGING_BYTES (64u << 20)
#define POOL_MIN      (1u << 20)
#define STAGED_MAX    1024u /* buffers */

static struct tierce__coded_connector *coded_of(struct tierce__connector *connector)
{
    struct tierce__coded_connector *c = (struct tierce__coded_connector *)connector;
    TIERCE_CHECK_MAGIC(c, TIERCE__CODED_CONNECTOR_MAGIC);
    return c;
}

/* ---- memory ---------------------------------------------------------------------------------- */

int tierce__coded_connector_pool(struct tierce__coded_connector *c)
{
    tierce__lock_assert_held(&c->lock);
    uint64_t bytes = 2 * c->staging_bytes_max;
    if (c->pool != NULL || c->no_pool)
        return 0;
    return tierce__pool_create(
        &c->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                              .cap_bytes = bytes > POOL_MIN ? bytes : POOL_MIN,
                                              .buf_count_max = STAGED_MAX,
                                              .no_touch = true});
}

struct tierce__buf *tierce__coded_connector_alloc(struct tierce__coded_connector *c, uint64_t bytes)
{
    struct tierce__buf *buf;
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (!c->no_pool && tierce__pool_alloc(c->pool, &buf, bytes) == 0)
        return buf;
    return c->alloc(c->alloc_arg, bytes);
}

/* ---- the inner connector --------------------------------------------------------------------- */

void tierce__coded_connector_tell_idle(struct tierce__coded_connector *c)
{
    tierce__lock_assert_held(&c->lock);
    if (c->closing)
        tierce__cond_broadcast(&c->idle_cond);
}

/* Begins a use of the inner connector that close waits for. False: the connector closes. */
static bool enter(struct tierce__coded_connector *c)
{
    tierce__lock_take(&c->lock);
    bool enters = !c->inner_closes;
    c->passing += enters;
    tierce__lock_drop(&c->lock);
    return enters;
}

static void leave(struct tierce__coded_connector *c)
{
    tierce__lock_take(&c->lock);
    c->passing--;
    tierce__coded_connector_tell_idle(c);
    tierce__lock_drop(&c->lock);
}

bool tierce__coded_connector_pass(struct tierce__coded_connector *c,
                                  struct tierce__store_req *inner)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (!enter(c))
        return false;
    c->inner->ops->submit(c->inner, inner);
    leave(c);
    return true;
}

void tierce__coded_connector_give(struct tierce__coded_connector *c, struct tierce__store_req *req,
                                  const struct tierce__store_guard *guard)
{
    const struct tierce__connector_ops *ops = c->inner->ops;
    TIERCE_DASSERT(!tierce__lock_holds_any());
    bool is_guarded = ops->answer_begin != NULL, enters = is_guarded && enter(c);
    bool may = enters && ops->answer_begin(c->inner, guard);
    req->status = !is_guarded || may ? 0 : enters ? TIERCE_E_MISS : TIERCE_E_CLOSED;
    req->done(req);
    if (may)
        ops->answer_end(c->inner, guard);
    if (enters)
        leave(c);
}

/* ---- the connector's functions --------------------------------------------------------------- */

static bool is_closing(struct tierce__coded_connector *c)
{
    tierce__lock_take(&c->lock);
    bool closing = c->closing;
    tierce__lock_drop(&c->lock);
    return closing;
}

static void submit(struct tierce__connector *connector, struct tierce__store_req *req)
{
    struct tierce__coded_connector *c = coded_of(connector);
    if (is_closing(c)) {
        req->found = 0;
        req->status = TIERCE_E_CLOSED;
        req->done(req);
        return;
    }
    if (req->op == TIERCE__STORE_GET) {
        tierce__coded_connector_get(c, req);
        return;
    }
    if (req->op == TIERCE__STORE_PUT && tierce__coded_connector_put(c, req))
        return;
    if (req->op == TIERCE__STORE_DELETE && req->name_count == 1) {
        tierce__lock_take(&c->lock);
        tierce__coded_object_forget(c, req->names);
        tierce__lock_drop(&c->lock);
    }
    if (tierce__coded_connector_pass(c, req))
        return;
    req->found = 0;
    req->status = TIERCE_E_CLOSED;
    req->done(req);
}

static void why(struct tierce__connector *connector, char text[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__coded_connector *c = coded_of(connector);
    c->inner->ops->why(c->inner, text);
}

static void stats(struct tierce__connector *connector, struct tierce__tier_stats *out)
{
    struct tierce__coded_connector *c = coded_of(connector);
    c->inner->ops->stats(c->inner, out);
}

static int adopt(struct tierce__connector *connector, const struct tierce__invalidated *what)
{
    struct tierce__coded_connector *c = coded_of(connector);
    return c->inner->ops->adopt(c->inner, what);
}

static void hint(struct tierce__connector *connector, const struct tierce_plugin_name *names,
                 size_t count, enum tierce__policy_hint kind)
{
    struct tierce__coded_connector *c = coded_of(connector);
    c->inner->ops->hint(c->inner, names, count, kind);
}

void tierce__coded_connector_stats(struct tierce__connector *connector,
                                   struct tierce__coded_stats *out)
{
    struct tierce__coded_connector *c = coded_of(connector);
    tierce__lock_take(&c->lock);
    *out = c->stats;
    out->codec = c->codec;
    out->encrypts = c->encrypts;
    out->device_bytes_per_s = tierce__coded_speed_of_device(&c->speed);
    out->decode_bytes_per_s = tierce__coded_speed_of_decoding(&c->speed);
    out->load_time = tierce__coded_speed_of_loads(&c->speed);
    out->load_time_max = c->speed.load_time_max;
    tierce__lock_drop(&c->lock);
}

/* ---- open and close -------------------------------------------------------------------------- */

static void free_connector(struct tierce__coded_connector *c, bool frees_pool)
{
    tierce__coded_objects_free(c);
    tierce__lock_fini(&c->lock);
    tierce__cond_fini(&c->encode_cond);
    tierce__cond_fini(&c->decode_cond);
    tierce__cond_fini(&c->idle_cond);
    if (frees_pool)
        tierce__pool_destroy(c->pool);
    tierce__coded_elements_fini(&c->elements);
    c->magic = 0;
    tierce__free(c);
}

static bool close_connector(struct tierce__connector *connector, uint64_t deadline_ns)
{
    struct tierce__coded_connector *c = coded_of(connector);
    tierce__lock_take(&c->lock);
    TIERCE_ASSERT(!c->closing);
    c->closing = true;
    tierce__lock_drop(&c->lock);
    tierce__coded_connector_cancel_puts(c);
    tierce__lock_take(&c->lock);
    c->inner_closes = true;
    tierce__cond_broadcast(&c->decode_cond);
    while (c->passing > 0)
        (void)tierce__cond_wait(&c->idle_cond, &c->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&c->lock);
    /* It answers all that it has; the threads decode, or answer that the connector closes. */
    bool closed = c->inner->ops->close(c->inner, deadline_ns);
    tierce__lock_take(&c->lock);
    while (c->pending_gets > 0 || c->put_count > 0)
        (void)tierce__cond_wait(&c->idle_cond, &c->lock, TIERCE__DEADLINE_NEVER);
    c->stop = true;
    tierce__cond_broadcast(&c->encode_cond);
    tierce__cond_broadcast(&c->decode_cond);
    bool encoder_runs = c->encoder_runs;
    tierce__lock_drop(&c->lock);
    if (encoder_runs)
        pthread_join(c->encoder, NULL);
    tierce__threads_join(&c->decoders);
    free_connector(c, closed);
    return closed;
}

static void init_lists(struct tierce__coded_connector *c)
{
    tierce__lock_init(&c->lock, TIERCE__LOCK_CODED);
    tierce__cond_init(&c->encode_cond);
    tierce__cond_init(&c->decode_cond);
    tierce__cond_init(&c->idle_cond);
    struct tierce__list *lists[] = {&c->puts,    &c->objects, &c->parked,
                                    &c->waiting, &c->resumed, &c->ready};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        tierce__list_init(lists[i]);
    c->next_deadline = c->put_deadline = TIERCE__DEADLINE_NEVER;
}

int tierce__coded_connector_open(struct tierce__connector **out,
                                 const struct tierce__coded_connector_opts *opts)
{
    if (opts->size != sizeof(*opts) || opts->connector == NULL || opts->alloc == NULL ||
        opts->namespaces == NULL || (opts->encrypts && opts->keys == NULL) ||
        (opts->connector->caps & (TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_TELLS_LENGTH)) == 0)
        return TIERCE_E_ARGUMENT;
    struct tierce__coded_connector *c = tierce__calloc(1, sizeof(*c));
    if (c == NULL)
        return -ENOMEM;
    int rc = tierce__coded_elements_init(&c->elements, opts->namespaces);
    if (rc < 0) {
        tierce__free(c);
        return rc;
    }
    init_lists(c);
    c->magic = TIERCE__CODED_CONNECTOR_MAGIC;
    c->inner = opts->connector;
    c->codec = opts->codec;
    c->keys = opts->keys;
    c->encrypts = opts->encrypts;
    c->alloc = opts->alloc;
    c->alloc_arg = opts->alloc_arg;
    c->no_pool = opts->no_pool;
    tierce__affinity_note(&c->affinity);
    c->is_whole = (opts->connector->caps & TIERCE__CONNECTOR_RANGES) == 0;
    c->has_forms = (opts->connector->caps & TIERCE__CONNECTOR_FORMS) != 0;
    c->staging_bytes_max = opts->staging_bytes_max > 0 ? opts->staging_bytes_max : STAGING_BYTES;
    snprintf(c->name, sizeof(c->name), "%s", opts->name);
    tierce__coded_speed_init(&c->speed, opts->measured_bytes, opts->decode_threads,
                             opts->load_time_max);
    c->ops =
        (struct tierce__connector_ops){.scheme = opts->connector->ops->scheme,
                                       .submit = submit,
                                       .why = why,
                                       .stats = stats,
                                       .hint = opts->connector->ops->hint != NULL ? hint : NULL,
                                       .adopt = opts->connector->ops->adopt != NULL ? adopt : NULL,
                                       .close = close_connector};
    c->base = (struct tierce__connector){
        .ops = &c->ops,
        .caps = opts->connector->caps &
                ~(unsigned)(TIERCE__CONNECTOR_TELLS_LENGTH | TIERCE__CONNECTOR_FORMS),
        .read_bytes = opts->connector->read_bytes};
    *out = &c->base;
    return 0;
}
