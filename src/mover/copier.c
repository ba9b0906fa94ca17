/* SPDX-License-Identifier: Apache-2.0 */
#include "mover/copier.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "store/remote/fleet/storage_at.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define COPIER_MAGIC 0x636f7069u

enum copy_state {
    COPY_WAITS,    /* for memory, the rate, or a place among those in transit */
    COPY_READS,    /* GET of the source */
    COPY_LOOKS,    /* LOOKUP there: is the object missing, or has it another length? */
    COPY_SEES,     /* LOOKUP of the mark of a folder in which an object is missing */
    COPY_WRITES,   /* PUT to the target */
    COPY_COMPARES, /* GET of the target */
};

struct tierce__copier {
    uint32_t magic;
    struct tierce__copier_opts opts;
    struct tierce__pool *pool;
    struct tierce__fleet_stores *stores;

    struct tierce__lock lock; /* MOVER: from here to stats */
    struct tierce__list answered;
    struct tierce__copier_stats stats;

    /* The owner's. */
    struct tierce__list waiting, running;
    bool is_closed;   /* there are no storages any more */
    uint64_t next_ns; /* the rate allows the next object then */
};

const char *tierce__copy_result_name(enum tierce__copy_result result)
{
    static const char *const names[TIERCE__COPY_RESULTS] = {
        [TIERCE__COPY_UNDONE] = "undone",
        [TIERCE__COPY_COPIED] = "copied",
        [TIERCE__COPY_SOURCE_MISSING] = "source_missing",
        [TIERCE__COPY_SOURCE_DAMAGED] = "source_damaged",
        [TIERCE__COPY_SOURCE_UNREACHABLE] = "source_unreachable",
        [TIERCE__COPY_TARGET_FAILED] = "target_failed",
        [TIERCE__COPY_UNVERIFIABLE] = "unverifiable"};
    TIERCE_ASSERT(result < TIERCE__COPY_RESULTS);
    return names[result];
}

static struct tierce__copy *copy_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__copy, node);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void end_copy(struct tierce__copy *copy, enum tierce__copy_result result)
{
    struct tierce__copier *copier = copy->copier;
    bool is_running = copy->state != COPY_WAITS;
    tierce__list_remove(&copy->node);
    tierce__buf_release(copy->buf);
    tierce__free(copy->names);
    copy->buf = NULL;
    copy->names = NULL;
    copy->result = result;
    tierce__lock_take(&copier->lock);
    copier->stats.objects[result]++;
    copier->stats.running -= is_running;
    if (result == TIERCE__COPY_COPIED)
        copier->stats.copied_bytes += copy->bytes;
    tierce__lock_drop(&copier->lock);
    copy->done(copy);
}

/* Whether the other objects of a batch would fail alike. A store's word for one request (its name,
 * its length, an answer that makes no sense) says nothing of the others. LIMIT is such a word if an
 * object is too large to be stored. A read with it was rejected because too many wait, as was a
 * write to a part of a node, where the manager assigns no object that is larger than the part. */
static bool is_of_storage(const struct tierce__copy *copy, const struct tierce__fleet_store *store)
{
    int status = copy->req.status;
    if (status == TIERCE_E_LIMIT)
        return copy->req.op != TIERCE__STORE_PUT || tierce__fleet_store_is_part(store);
    return status != TIERCE_E_ARGUMENT && status != TIERCE_E_FORMAT && status != TIERCE_E_MISS;
}

/* The result is that of a storage, which says why. */
static void end_failed(struct tierce__copy *copy, enum tierce__copy_result result)
{
    bool is_source = result == TIERCE__COPY_SOURCE_UNREACHABLE;
    struct tierce__fleet_store *store = is_source ? copy->source.store : copy->target.store;
    int status = copy->req.status;
    bool is_over = status == TIERCE_E_DEADLINE && tierce__now_ns() >= copy->put_until_ns;
    if (is_over || status == -ENOMEM || status == TIERCE_E_CANCELLED) {
        snprintf(copy->why, sizeof(copy->why), "%s",
                 is_over ? "the write session is over" : tierce_strerror(status));
        end_copy(copy, TIERCE__COPY_UNDONE);
        return;
    }
    char why[TIERCE__FLEET_WHY_BYTES];
    tierce__fleet_store_why(store, why);
    if (why[0] == '\0')
        snprintf(why, sizeof(why), "storage %.64s", tierce__fleet_store_name(store));
    snprintf(copy->why, sizeof(copy->why), "%.180s: %s", why, tierce_strerror(status));
    copy->storage_failed = is_of_storage(copy, store);
    end_copy(copy, result);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* On any thread. Under the lock up to the end, so that the copier is not closed meanwhile. */
static void answered(struct tierce__store_req *req)
{
    struct tierce__copy *copy = req->arg;
    struct tierce__copier *copier = copy->copier;
    tierce__lock_take(&copier->lock);
    bool is_first = tierce__list_empty(&copier->answered);
    tierce__list_push_back(&copier->answered, &req->node);
    if (is_first)
        copier->opts.wake(copier->opts.wake_arg);
    tierce__lock_drop(&copier->lock);
}

static void send(struct tierce__copy *copy, enum copy_state state, enum tierce__store_op op,
                 struct tierce__fleet_store *store, const struct tierce_plugin_name *name)
{
    uint64_t deadline_ns = tierce__deadline_in_ms(copy->copier->opts.timeout_ms);
    bool has_bytes = op != TIERCE__STORE_LOOKUP;
    copy->state = (int)state;
    copy->name = *name;
    copy->req = (struct tierce__store_req){
        .op = op,
        .deadline_ns = deadline_ns < copy->put_until_ns ? deadline_ns : copy->put_until_ns,
        .done = answered,
        .arg = copy,
        .names = &copy->name,
        .name_count = 1,
        .urgency = TIERCE__CONNECTOR_STORE, /* engines of the same connector come first */
        .buf = has_bytes ? copy->buf : NULL,
        .length = has_bytes ? copy->bytes : 0,
        .object_bytes = op == TIERCE__STORE_PUT ? copy->bytes : 0};
    tierce__list_init(&copy->req.node);
    tierce__fleet_store_submit(store, &copy->req);
}

/* ---- the source ------------------------------------------------------------------------------ */

static void look_for_source(struct tierce__copy *copy)
{
    send(copy, COPY_LOOKS, TIERCE__STORE_LOOKUP, copy->source.store, &copy->source.name);
}

static void write_target(struct tierce__copy *copy)
{
    copy->sum = XXH3_64bits(copy->buf->data, copy->bytes);
    if (copy->put_until_ns <= tierce__now_ns()) {
        snprintf(copy->why, sizeof(copy->why), "the write session is over");
        end_copy(copy, TIERCE__COPY_UNDONE);
        return;
    }
    send(copy, COPY_WRITES, TIERCE__STORE_PUT, copy->target.store, &copy->target.name);
}

static void has_read(struct tierce__copy *copy)
{
    struct tierce__copier *copier = copy->copier;
    int status = copy->req.status;
    /* FORMAT is also the word of a store for an answer that makes no sense. */
    if (status == TIERCE_E_MISS || status == TIERCE_E_FORMAT) {
        look_for_source(copy);
        return;
    }
    if (status != 0) {
        end_failed(copy, TIERCE__COPY_SOURCE_UNREACHABLE);
        return;
    }
    tierce__lock_take(&copier->lock);
    copier->stats.read_bytes += copy->bytes;
    tierce__lock_drop(&copier->lock);
    enum tierce__copy_result proven =
        tierce__copy_prove(copy->why, copy->buf->data, copy->bytes, copy->block_key, copy->spec);
    if (proven == TIERCE__COPY_COPIED)
        write_target(copy);
    else
        end_copy(copy, proven);
}

static void has_looked(struct tierce__copy *copy)
{
    static const struct tierce_plugin_name mark = {.text = TIERCE__STORAGE_MARK,
                                                   .bytes = sizeof(TIERCE__STORAGE_MARK) - 1};
    uint64_t bytes = copy->req.object_bytes; /* 0: the store does not tell it */
    if (copy->req.status != 0) {
        end_failed(copy, TIERCE__COPY_SOURCE_UNREACHABLE);
    } else if (copy->req.found > 0 && bytes != 0 && bytes != copy->bytes) {
        snprintf(copy->why, sizeof(copy->why), "it has %llu bytes in place of %llu",
                 (unsigned long long)bytes, (unsigned long long)copy->bytes);
        end_copy(copy, TIERCE__COPY_SOURCE_DAMAGED);
    } else if (copy->req.found > 0) {
        snprintf(copy->why, sizeof(copy->why), "storage %.64s has the object and cannot read it",
                 tierce__fleet_store_name(copy->source.store));
        end_copy(copy, TIERCE__COPY_SOURCE_UNREACHABLE);
    } else if (tierce__fleet_store_is_marked(copy->source.store)) {
        send(copy, COPY_SEES, TIERCE__STORE_LOOKUP, copy->source.store, &mark);
    } else {
        snprintf(copy->why, sizeof(copy->why), "storage %.64s does not have it",
                 tierce__fleet_store_name(copy->source.store));
        end_copy(copy, TIERCE__COPY_SOURCE_MISSING);
    }
}

/* All objects of an empty mount point are missing: only a folder with its mark says so. */
static void has_seen(struct tierce__copy *copy)
{
    const char *name = tierce__fleet_store_name(copy->source.store);
    if (copy->req.status != 0) {
        end_failed(copy, TIERCE__COPY_SOURCE_UNREACHABLE);
    } else if (copy->req.found > 0) {
        snprintf(copy->why, sizeof(copy->why), "storage %.64s does not have it", name);
        end_copy(copy, TIERCE__COPY_SOURCE_MISSING);
    } else {
        snprintf(copy->why, sizeof(copy->why),
                 "storage %.64s has lost its mark " TIERCE__STORAGE_MARK
                 "; is its file system mounted?",
                 name);
        tierce__fleet_store_reopen(copy->source.store);
        copy->storage_failed = true;
        end_copy(copy, TIERCE__COPY_SOURCE_UNREACHABLE);
    }
}

/* ---- the target ------------------------------------------------------------------------------ */

static void has_written(struct tierce__copy *copy)
{
    if (copy->req.status != 0)
        end_failed(copy, TIERCE__COPY_TARGET_FAILED);
    else if ((tierce__fleet_store_caps(copy->target.store) & TIERCE__CONNECTOR_NO_REPLACE) != 0)
        send(copy, COPY_COMPARES, TIERCE__STORE_GET, copy->target.store, &copy->target.name);
    else
        end_copy(copy, TIERCE__COPY_COPIED);
}

static void has_compared(struct tierce__copy *copy)
{
    if (copy->req.status != 0) {
        end_failed(copy, TIERCE__COPY_TARGET_FAILED);
    } else if (XXH3_64bits(copy->buf->data, copy->bytes) == copy->sum) {
        end_copy(copy, TIERCE__COPY_COPIED);
    } else {
        snprintf(copy->why, sizeof(copy->why), "storage %.64s has another object of that name",
                 tierce__fleet_store_name(copy->target.store));
        end_copy(copy, TIERCE__COPY_TARGET_FAILED);
    }
}

/* ---- begin ----------------------------------------------------------------------------------- */

/* Reads the places. False: the copy was ended. */
static bool read_places(struct tierce__copy *copy)
{
    struct tierce__copier *copier = copy->copier;
    size_t bytes = strlen(copy->from) + 1;
    copy->names = tierce__alloc(bytes + strlen(copy->to) + 1);
    if (copy->names == NULL) {
        snprintf(copy->why, sizeof(copy->why), "no memory");
        end_copy(copy, TIERCE__COPY_UNDONE);
        return false;
    }
    int rc =
        tierce__fleet_place_read(&copy->source, copy->names, copy->from, copier->stores, copy->why);
    if (rc != 0) {
        end_copy(copy, TIERCE__COPY_SOURCE_UNREACHABLE);
        return false;
    }
    rc = tierce__fleet_place_read(&copy->target, copy->names + bytes, copy->to, copier->stores,
                                  copy->why);
    if (rc == 0 && copy->source.bytes > 0 && copy->source.bytes != copy->target.bytes) {
        snprintf(copy->why, sizeof(copy->why), "its two places have %llu and %llu bytes",
                 (unsigned long long)copy->source.bytes, (unsigned long long)copy->target.bytes);
        rc = TIERCE_E_FORMAT;
    }
    if (rc != 0)
        end_copy(copy, TIERCE__COPY_TARGET_FAILED);
    return rc == 0;
}

void tierce__copier_add(struct tierce__copier *copier, struct tierce__copy *copy)
{
    TIERCE_CHECK_MAGIC(copier, COPIER_MAGIC);
    TIERCE_ASSERT(copy->done != NULL && copy->from != NULL && copy->to != NULL);
    copy->copier = copier;
    copy->state = COPY_WAITS;
    tierce__list_init(&copy->node);
    tierce__list_push_back(&copier->waiting, &copy->node);
}

/* Begins to read. False: it waits. */
static bool begin_copy(struct tierce__copier *copier, struct tierce__copy *copy)
{
    if (copy->names == NULL && !read_places(copy))
        return true;
    uint64_t bytes = copy->source.bytes;
    int rc = bytes > 0 ? tierce__pool_alloc(copier->pool, &copy->buf, bytes) : TIERCE_E_ARGUMENT;
    if (rc == TIERCE_E_FULL)
        return false;
    if (rc == -ENOMEM) {
        snprintf(copy->why, sizeof(copy->why), "no memory");
        end_copy(copy, TIERCE__COPY_UNDONE);
        return true;
    }
    if (rc != 0) {
        snprintf(copy->why, sizeof(copy->why),
                 bytes == 0 ? "its place has no size"
                            : "its %llu bytes do not fit into the mover's memory",
                 (unsigned long long)bytes);
        end_copy(copy, TIERCE__COPY_UNVERIFIABLE);
        return true;
    }
    copy->bytes = bytes;
    tierce__list_remove(&copy->node);
    tierce__list_push_back(&copier->running, &copy->node);
    tierce__lock_take(&copier->lock);
    copier->stats.running++;
    tierce__lock_drop(&copier->lock);
    send(copy, COPY_READS, TIERCE__STORE_GET, copy->source.store, &copy->source.name);
    return true;
}

/* The rate: an object is begun when those before it have taken their time. */
static bool is_paced(struct tierce__copier *copier, uint64_t now_ns)
{
    return copier->opts.rate_bytes_per_s == 0 || copier->next_ns <= now_ns;
}

static void pace(struct tierce__copier *copier, uint64_t bytes, uint64_t now_ns)
{
    if (copier->opts.rate_bytes_per_s == 0)
        return;
    double took_ns = (double)bytes * 1e9 / (double)copier->opts.rate_bytes_per_s;
    copier->next_ns = (copier->next_ns > now_ns ? copier->next_ns : now_ns) + (uint64_t)took_ns;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void go_on(struct tierce__copy *copy)
{
    enum copy_state state = (enum copy_state)copy->state;
    bool may_end = state != COPY_WRITES && state != COPY_COMPARES;
    if (copy->copier->is_closed || (copy->is_dropped && may_end)) {
        snprintf(copy->why, sizeof(copy->why), "it was dropped");
        end_copy(copy, TIERCE__COPY_UNDONE);
        return;
    }
    switch (state) {
    case COPY_READS:
        has_read(copy);
        break;
    case COPY_LOOKS:
        has_looked(copy);
        break;
    case COPY_SEES:
        has_seen(copy);
        break;
    case COPY_WRITES:
        has_written(copy);
        break;
    case COPY_COMPARES:
        has_compared(copy);
        break;
    case COPY_WAITS:
        TIERCE_ASSERT(false); /* it has no request */
    }
}

static void take_answers(struct tierce__copier *copier)
{
    struct tierce__list answers;
    tierce__list_init(&answers);
    tierce__lock_take(&copier->lock);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &copier->answered) {
        tierce__list_remove(node);
        tierce__list_push_back(&answers, node);
    }
    tierce__lock_drop(&copier->lock);
    while (!tierce__list_empty(&answers)) {
        struct tierce__list *node = answers.next;
        tierce__list_remove(node);
        go_on(TIERCE__CONTAINER_OF(node, struct tierce__store_req, node)->arg);
    }
}

void tierce__copier_drop(struct tierce__copy *copy)
{
    copy->is_dropped = true;
    if (copy->state != COPY_WAITS)
        return;
    snprintf(copy->why, sizeof(copy->why), "it was dropped");
    end_copy(copy, TIERCE__COPY_UNDONE);
}

static uint32_t running(struct tierce__copier *copier)
{
    tierce__lock_take(&copier->lock);
    uint32_t count = copier->stats.running;
    tierce__lock_drop(&copier->lock);
    return count;
}

uint64_t tierce__copier_step(struct tierce__copier *copier)
{
    TIERCE_CHECK_MAGIC(copier, COPIER_MAGIC);
    take_answers(copier);
    while (!tierce__list_empty(&copier->waiting) && running(copier) < copier->opts.parallel_max) {
        uint64_t now_ns = tierce__now_ns();
        struct tierce__copy *copy = copy_of(copier->waiting.next);
        if (!is_paced(copier, now_ns))
            return copier->next_ns;
        if (!begin_copy(copier, copy))
            break; /* an object in transit has the memory, and its answer wakes us */
        pace(copier, copy->bytes, now_ns);
    }
    return TIERCE__DEADLINE_NEVER;
}

void tierce__copier_stats(struct tierce__copier *copier, struct tierce__copier_stats *out)
{
    tierce__lock_take(&copier->lock);
    *out = copier->stats;
    tierce__lock_drop(&copier->lock);
}

/* ---- life ------------------------------------------------------------------------------------ */

int tierce__copier_set_storages(struct tierce__copier *copier, const char *json,
                                char why[TIERCE__FLEET_WHY_BYTES])
{
    return tierce__fleet_stores_update(copier->stores, json, why);
}

static void destroy(struct tierce__copier *copier)
{
    tierce__pool_destroy(copier->pool);
    tierce__lock_fini(&copier->lock);
    copier->magic = 0;
    tierce__free(copier);
}

int tierce__copier_open(struct tierce__copier **out, const struct tierce__copier_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts) && opts->wake != NULL);
    TIERCE_ASSERT(opts->parallel_max > 0 && opts->timeout_ms > 0);
    struct tierce__copier *copier = tierce__calloc(1, sizeof(*copier));
    if (copier == NULL)
        return -ENOMEM;
    copier->magic = COPIER_MAGIC;
    copier->opts = *opts;
    tierce__lock_init(&copier->lock, TIERCE__LOCK_MOVER);
    tierce__list_init(&copier->answered);
    tierce__list_init(&copier->waiting);
    tierce__list_init(&copier->running);
    /* Shared, for Mooncake's process. Nothing is touched before the first object. */
    int rc = tierce__pool_create(
        &copier->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                                   .cap_bytes = opts->memory_bytes,
                                                   .no_touch = true,
                                                   .shared = true});
    if (rc == 0)
        rc = tierce__fleet_stores_open(
            &copier->stores,
            &(struct tierce__fleet_stores_opts){.size = sizeof(struct tierce__fleet_stores_opts),
                                                .pool = copier->pool,
                                                .mooncake_python = opts->mooncake_python});
    if (rc == 0)
        *out = copier;
    else
        destroy(copier);
    return rc;
}

bool tierce__copier_close(struct tierce__copier *copier, uint64_t deadline_ns)
{
    if (copier == NULL)
        return true;
    TIERCE_CHECK_MAGIC(copier, COPIER_MAGIC);
    while (!tierce__list_empty(&copier->waiting))
        tierce__copier_drop(copy_of(copier->waiting.next));
    /* The storages' connectors answer all of their requests before they are closed. */
    bool has_closed = tierce__fleet_stores_close(copier->stores, deadline_ns);
    copier->is_closed = true;
    take_answers(copier);
    TIERCE_ASSERT(tierce__list_empty(&copier->running));
    if (!has_closed)
        copier->pool = NULL; /* a call may still write to it */
    destroy(copier);
    return has_closed;
}
