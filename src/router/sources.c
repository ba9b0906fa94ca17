/* SPDX-License-Identifier: Apache-2.0 */
#include "router/sources.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/threads/threads.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>
#include <zmq.h>

#define WAIT_MS       50 /* between two looks at timers */
#define CLEAN_ENTRIES 1024u

struct source {
    struct tierce__list node;    /* of all */
    struct tierce__list in_loop; /* of its thread, once it was taken in */
    struct tierce__source_opts opts;
    struct tierce__follower *follower;
    struct tierce__subscriber *subscriber;
    /* Under the lock: */
    bool is_leaving; /* its thread destroys it when it has no users */
    uint32_t users;
};

/* A thread and its publishers. */
struct loop {
    struct tierce__sources *sources;
    pthread_t thread;
    int wake;
    struct tierce__list arriving; /* under the lock: by `in_loop` */
    struct tierce__list own;      /* the thread's, by `in_loop` */
    zmq_pollitem_t *items;
    size_t room;
};

struct tierce__sources {
    struct tierce__directory *directory;
    const struct tierce__router_config *config;
    struct tierce__tenant_words *tokens, *keys;
    void *context;
    struct tierce__lock lock; /* ROUTER_SOURCES */
    struct tierce__list all;
    uint32_t count;
    uint64_t names, seed;
    struct source **by_slot; /* [slots] of the directory */
    uint32_t slots;
    bool is_stopping;
    struct loop *loops; /* [loop_count] */
    uint32_t loop_count;
};

static struct source *source_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct source, node);
}

static void wake(struct loop *loop)
{
    uint64_t one = 1;
    ssize_t written = write(loop->wake, &one, sizeof(one));
    TIERCE_ASSERT(written == sizeof(one) || errno == EAGAIN);
}

static void destroy_source(struct source *source)
{
    tierce__subscriber_close(source->subscriber);
    tierce__follower_destroy(source->follower);
    tierce__free(source);
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Takes new publishers in, and gives those up that were removed. False: it has to end. */
static bool exchange(struct loop *loop)
{
    struct tierce__list leaving;
    tierce__list_init(&leaving);
    tierce__lock_take(&loop->sources->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &loop->arriving) {
        tierce__list_remove(it);
        tierce__list_push_back(&loop->own, it);
    }
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &loop->own) {
        const struct source *source = TIERCE__CONTAINER_OF(it, struct source, in_loop);
        if (!source->is_leaving || source->users > 0)
            continue;
        tierce__list_remove(it);
        tierce__list_push_back(&leaving, it);
    }
    bool goes_on = !loop->sources->is_stopping;
    tierce__lock_drop(&loop->sources->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &leaving) {
        tierce__list_remove(it);
        destroy_source(TIERCE__CONTAINER_OF(it, struct source, in_loop));
    }
    return goes_on;
}

/* Waits for an event of one of its publishers. */
static void wait(struct loop *loop)
{
    size_t count = 1;
    long wait_ms = WAIT_MS;
    loop->items[0] = (zmq_pollitem_t){.fd = loop->wake, .events = ZMQ_POLLIN};
    TIERCE__LIST_FOR_EACH (it, &loop->own) {
        struct source *source = TIERCE__CONTAINER_OF(it, struct source, in_loop);
        if (TIERCE__GROW(loop->items, loop->room, count + TIERCE__SUBSCRIBER_ITEMS, 64) < 0)
            break; /* the rest is looked at when this wait ends */
        count +=
            (size_t)tierce__subscriber_items(source->subscriber, &loop->items[count], &wait_ms);
    }
    if (zmq_poll(loop->items, (int)count, wait_ms) > 0 &&
        (loop->items[0].revents & ZMQ_POLLIN) != 0) {
        uint64_t wakes;
        ssize_t got = read(loop->wake, &wakes, sizeof(wakes));
        TIERCE_ASSERT(got == sizeof(wakes) || errno == EAGAIN);
    }
}

static void *run(void *arg)
{
    struct loop *loop = arg;
    while (exchange(loop)) {
        wait(loop);
        TIERCE__LIST_FOR_EACH (it, &loop->own)
            (void)tierce__subscriber_work(
                TIERCE__CONTAINER_OF(it, struct source, in_loop)->subscriber);
        (void)tierce__directory_clean(loop->sources->directory, CLEAN_ENTRIES);
    }
    return NULL;
}

static int start_loop(struct tierce__sources *sources, struct loop *loop)
{
    loop->sources = sources;
    tierce__list_init(&loop->arriving);
    tierce__list_init(&loop->own);
    loop->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (loop->wake < 0)
        return -errno;
    int rc = TIERCE__GROW(loop->items, loop->room, 64, 64);
    if (rc == 0)
        rc = tierce__thread_start(&loop->thread, run, loop);
    if (rc < 0) {
        tierce__free(loop->items);
        close(loop->wake);
    }
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------ */

int tierce__sources_create(struct tierce__sources **out, struct tierce__directory *directory,
                           const struct tierce__router_config *config,
                           struct tierce__tenant_words *tokens, struct tierce__tenant_words *keys)
{
    struct tierce__sources *s = tierce__calloc(1, sizeof(*s));
    if (s == NULL)
        return -ENOMEM;
    *s = (struct tierce__sources){.directory = directory,
                                  .config = config,
                                  .tokens = tokens,
                                  .keys = keys,
                                  .slots = config->publishers_max * 2};
    tierce__lock_init(&s->lock, TIERCE__LOCK_ROUTER_SOURCES);
    tierce__list_init(&s->all);
    s->context = zmq_ctx_new();
    s->by_slot = tierce__calloc(s->slots, sizeof(*s->by_slot));
    s->loops = tierce__calloc(config->threads, sizeof(*s->loops));
    int rc = s->context == NULL || s->by_slot == NULL || s->loops == NULL ? -ENOMEM : 0;
    if (rc == 0 && getrandom(&s->seed, sizeof(s->seed), 0) != (ssize_t)sizeof(s->seed))
        rc = -EIO;
    if (rc == 0)
        (void)zmq_ctx_set(s->context, ZMQ_MAX_SOCKETS, (int)(config->publishers_max * 4 + 64));
    for (uint32_t i = 0; rc == 0 && i < config->threads; i++) {
        rc = start_loop(s, &s->loops[i]);
        s->loop_count += rc == 0;
    }
    if (rc < 0)
        tierce__sources_destroy(s);
    else
        *out = s;
    return rc;
}

void tierce__sources_destroy(struct tierce__sources *sources)
{
    if (sources == NULL)
        return;
    tierce__lock_take(&sources->lock);
    sources->is_stopping = true;
    tierce__lock_drop(&sources->lock);
    for (uint32_t i = 0; i < sources->loop_count; i++) {
        struct loop *loop = &sources->loops[i];
        wake(loop);
        pthread_join(loop->thread, NULL);
        (void)exchange(loop);
        close(loop->wake);
        tierce__free(loop->items);
    }
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &sources->all) {
        tierce__list_remove(it);
        destroy_source(source_of(it));
    }
    if (sources->context != NULL)
        zmq_ctx_term(sources->context);
    tierce__lock_fini(&sources->lock);
    tierce__free(sources->by_slot);
    tierce__free(sources->loops);
    tierce__free(sources);
}

/* ---- publishers ------------------------------------------------------------------------------ */

static bool is_same(const struct tierce__source_opts *a, const char *tenant, const char *instance,
                    const char *model, const uint32_t *dp_rank)
{
    return strcmp(a->tenant, tenant) == 0 && strcmp(a->instance, instance) == 0 &&
           (model == NULL || strcmp(a->model, model) == 0) &&
           (dp_rank == NULL || a->dp_rank == *dp_rank);
}

static struct loop *loop_of(struct tierce__sources *s, const struct source *source)
{
    return &s->loops[tierce__follower_id(source->follower).session % s->loop_count];
}

/* Under the lock. */
static void detach(struct tierce__sources *s, struct source *source)
{
    uint32_t slot = tierce__follower_id(source->follower).slot;
    TIERCE_ASSERT(s->by_slot[slot] == source);
    s->by_slot[slot] = NULL;
    tierce__list_remove(&source->node);
    source->is_leaving = true;
    s->count--;
    wake(loop_of(s, source));
}

static int make_source(struct tierce__sources *s, struct source **out, uint64_t number,
                       const struct tierce__source_opts *opts, char why[256])
{
    const struct tierce__router_config *config = s->config;
    struct source *source = tierce__calloc(1, sizeof(*source));
    char name[32];
    if (source == NULL)
        return -ENOMEM;
    source->opts = *opts;
    snprintf(name, sizeof(name), "%llu", (unsigned long long)number);
    struct tierce__follower_opts follower = {
        .size = sizeof(follower),
        .directory = s->directory,
        .group = source->opts.tenant,
        .name = name,
        .model = source->opts.model,
        .endpoint = source->opts.endpoint,
        .has_replay = opts->replay[0] != '\0',
        .has_snapshot = opts->snapshot[0] != '\0',
        .seed = s->seed,
        .blocks_max = config->blocks_max,
        .check_ns = config->check_ms * TIERCE__MS_NS,
        .gone_ns = config->gone_ms * TIERCE__MS_NS,
        .retry_ns = config->retry_ms * TIERCE__MS_NS,
    };
    int rc;
    while ((rc = tierce__follower_create(&source->follower, &follower, tierce__now_ns())) ==
           TIERCE_E_LIMIT) {
        if (!tierce__directory_clean(s->directory, CLEAN_ENTRIES))
            break;
    }
    struct tierce__subscriber_opts subscriber = {.context = s->context,
                                                 .follower = source->follower,
                                                 .replay_ms = config->replay_ms,
                                                 .snapshot_ms = config->snapshot_ms,
                                                 .tokens = opts->is_trusted ? s->tokens : NULL,
                                                 .keys = s->keys,
                                                 .tenant = source->opts.tenant,
                                                 .ca_file = config->snapshot_ca_file};
    memcpy(subscriber.endpoint, opts->endpoint, sizeof(subscriber.endpoint));
    memcpy(subscriber.replay, opts->replay, sizeof(subscriber.replay));
    memcpy(subscriber.snapshot, opts->snapshot, sizeof(subscriber.snapshot));
    memcpy(subscriber.server_key, opts->server_key, sizeof(subscriber.server_key));
    if (rc == 0)
        rc = tierce__subscriber_open(&source->subscriber, &subscriber, why);
    if (rc < 0)
        destroy_source(source);
    else
        *out = source;
    return rc;
}

/* The publisher with the same names, or NULL. Under the lock. */
static struct source *find(struct tierce__sources *s, const struct tierce__source_opts *opts)
{
    TIERCE__LIST_FOR_EACH (it, &s->all) {
        struct source *source = source_of(it);
        if (is_same(&source->opts, opts->tenant, opts->instance, opts->model, &opts->dp_rank))
            return source;
    }
    return NULL;
}

static bool has_same_endpoints(const struct source *source, const struct tierce__source_opts *opts)
{
    return strcmp(source->opts.endpoint, opts->endpoint) == 0 &&
           strcmp(source->opts.replay, opts->replay) == 0 &&
           strcmp(source->opts.snapshot, opts->snapshot) == 0 &&
           strcmp(source->opts.server_key, opts->server_key) == 0 &&
           source->opts.is_trusted >= opts->is_trusted;
}

int tierce__sources_add(struct tierce__sources *sources, const struct tierce__source_opts *opts,
                        char why[256])
{
    struct source *fresh = NULL;
    snprintf(why, 256, "no memory");
    tierce__lock_take(&sources->lock);
    const struct source *old = find(sources, opts);
    bool is_known = old != NULL && has_same_endpoints(old, opts);
    bool is_full = old == NULL && sources->count >= sources->config->publishers_max;
    uint64_t number = sources->names++;
    tierce__lock_drop(&sources->lock);
    if (is_known)
        return 0;
    if (is_full) {
        snprintf(why, 256,
                 "%u publishers are registered, as many as limit.publishers permits: unregister "
                 "one, or raise it",
                 sources->config->publishers_max);
        return TIERCE_E_LIMIT;
    }
    int rc = make_source(sources, &fresh, number, opts, why);
    if (rc < 0)
        return rc;
    struct tierce__directory_id id = tierce__follower_id(fresh->follower);
    TIERCE_ASSERT(id.slot < sources->slots);
    struct loop *loop = loop_of(sources, fresh);
    tierce__lock_take(&sources->lock);
    struct source *before = find(sources, opts);
    if (before != NULL)
        detach(sources, before);
    tierce__list_push_back(&sources->all, &fresh->node);
    tierce__list_push_back(&loop->arriving, &fresh->in_loop);
    sources->by_slot[id.slot] = fresh;
    sources->count++;
    tierce__lock_drop(&sources->lock);
    wake(loop);
    tierce__log(TIERCE_LOG_INFO, "kv_publisher_registered",
                "instance=%s model=%s rank=%u endpoint=%s", opts->instance, opts->model,
                opts->dp_rank, opts->endpoint);
    return 0;
}

uint32_t tierce__sources_remove(struct tierce__sources *sources, const char *tenant,
                                const char *instance, const char *model, const uint32_t *dp_rank)
{
    uint32_t count = 0;
    tierce__lock_take(&sources->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &sources->all) {
        if (!is_same(&source_of(it)->opts, tenant, instance, model, dp_rank))
            continue;
        detach(sources, source_of(it));
        count++;
    }
    tierce__lock_drop(&sources->lock);
    return count;
}

void tierce__sources_each(struct tierce__sources *sources, const char *tenant,
                          tierce__source_fn *each, void *arg)
{
    bool goes_on = true;
    tierce__lock_take(&sources->lock);
    TIERCE__LIST_FOR_EACH (it, &sources->all) {
        const struct source *source = source_of(it);
        if (goes_on && (tenant == NULL || strcmp(source->opts.tenant, tenant) == 0))
            goes_on = each(arg, &source->opts, source->follower);
    }
    tierce__lock_drop(&sources->lock);
}

bool tierce__sources_with(struct tierce__sources *sources, const char *tenant, const char *instance,
                          uint32_t dp_rank, tierce__source_fn *each, void *arg)
{
    struct source *found = NULL;
    tierce__lock_take(&sources->lock);
    TIERCE__LIST_FOR_EACH (it, &sources->all) {
        struct source *source = source_of(it);
        if (found == NULL && source->opts.dp_rank == dp_rank &&
            strcmp(source->opts.instance, instance) == 0 &&
            (tenant == NULL || strcmp(source->opts.tenant, tenant) == 0))
            found = source;
    }
    if (found != NULL)
        found->users++;
    tierce__lock_drop(&sources->lock);
    if (found == NULL)
        return false;
    (void)each(arg, &found->opts, found->follower);
    tierce__lock_take(&sources->lock);
    TIERCE_ASSERT(found->users > 0);
    found->users--;
    tierce__lock_drop(&sources->lock);
    return true;
}

void tierce__sources_of(struct tierce__sources *sources, struct tierce__directory_id id,
                        tierce__source_fn *each, void *arg)
{
    tierce__lock_take(&sources->lock);
    const struct source *source = id.slot < sources->slots ? sources->by_slot[id.slot] : NULL;
    if (source != NULL && tierce__follower_id(source->follower).session == id.session)
        (void)each(arg, &source->opts, source->follower);
    tierce__lock_drop(&sources->lock);
}
