/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engines of the process: opening, sharing, closing, counting.
 */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/threads/threads.h"
#include "engine/store/backfill.h"
#include "engine/node_client/client_socket.h"
#include "engine/engine_config.h"
#include "engine/objects/smalls.h"
#include "engine/objects/tombstones.h"
#include "engine/observe/access_log.h"
#include "engine/why/departures.h"
#include "engine/why/requests.h"
#include "engine/engine.h"
#include "engine/invalidations.h"
#include "engine/lender.h"
#include "engine/observe/engine_events.h"
#include "engine/observe/kv_publisher.h"
#include "engine/observe/kv_tokens.h"
#include "engine/store/shared_write.h"
#include "engine/observe/operate.h"
#include "engine/peer/peers.h"
#include "engine/node_client/shared.h"
#include "net/control/control.h"
#include "store/coded/coded_keys.h"

static struct tierce__lock registry_lock; /* REGISTRY */
static struct tierce__cond registry_changed;
static struct tierce__list registry;
static pthread_once_t registry_once = PTHREAD_ONCE_INIT;

/* The number of forks between the first engine's process and this one. getpid would show a fork
 * too, but costs a system call on every path. Written by the only thread of a new child. */
static uint32_t generation;

static void empty_registry(void)
{
    tierce__lock_init(&registry_lock, TIERCE__LOCK_REGISTRY);
    tierce__cond_init(&registry_changed);
    tierce__list_init(&registry);
}

/* A child finds no engine of its parent to share. */
static void enter_child(void)
{
    generation++;
    tierce__client_enter_child();
    empty_registry();
}

static void init_registry(void)
{
    empty_registry();
    (void)pthread_atfork(NULL, NULL, enter_child); /* fails for lack of memory at most */
}

bool tierce__engine_inherited(const struct tierce_engine *engine)
{
    return engine->generation != generation;
}

/* ---- identity of two engines ---- */

/* All values of a configuration as one text, so that equal ones compare equal. */
static char *describe_config(const struct tierce_config *config)
{
    static const char *const names[] = {
#define TIERCE_PARAM(id, name, type, fallback, min, max, choices, text) name,
#include "engine/engine_params.def"
#undef TIERCE_PARAM
    };
    size_t need = 1;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        need += strlen(names[i]) + strlen(tierce_config_get(config, names[i])) + 2;
    char *text = tierce__alloc(need);
    if (text == NULL)
        return NULL;
    size_t at = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        at += (size_t)snprintf(text + at, need - at, "%s=%s\n", names[i],
                               tierce_config_get(config, names[i]));
    TIERCE_DASSERT(at < need);
    return text;
}

/* The store folder without links and dots, so that two spellings are one folder; a folder that
 * does not exist yet keeps its spelling. NULL for no memory. */
static char *canonical_path(const char *path)
{
    char resolved[PATH_MAX];
    return tierce__strdup(realpath(path, resolved) != NULL ? resolved : path);
}

/* ---- opening ---- */

static void read_settings(struct tierce__settings *s, const struct tierce_config *config)
{
    s->memory_bytes = tierce__engine_number(config, TIERCE__ENGINE_MEMORY_SIZE);
    s->pin_bytes_max = (uint64_t)((double)s->memory_bytes *
                                  tierce__engine_share(config, TIERCE__ENGINE_MEMORY_PINS));
    TIERCE_DASSERT(s->pin_bytes_max <= s->memory_bytes);
    s->prefetch_bytes_max =
        (uint64_t)((double)s->memory_bytes *
                   tierce__engine_share(config, TIERCE__ENGINE_PREFETCH_MEMORY));
    TIERCE_DASSERT(s->prefetch_bytes_max <= s->memory_bytes);
    s->prefetch_ms = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_TIMEOUT_PREFETCH);
    s->lookup_ms = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_TIMEOUT_LOOKUP);
    s->load_ms = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_TIMEOUT_LOAD);
    s->store_ms = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_TIMEOUT_STORE);
    s->pin_ms = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_TIMEOUT_PIN);
    s->close_ms = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_TIMEOUT_CLOSE);
    s->health = (struct tierce__health_limits){
        .errors_max = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_BREAKER_ERRORS),
        .window_errors_max = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_BREAKER_WINDOW),
        .slow_ms = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_BREAKER_SLOW),
        .hang_ms = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_TIMEOUT_LOAD),
        .retry_ms = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_BREAKER_RETRY)};
    s->cost_check = tierce__engine_bool(config, TIERCE__ENGINE_COST_CHECK);
    s->cost_read_bytes_per_s = tierce__engine_number(config, TIERCE__ENGINE_COST_READ);
    s->cost_prefill = tierce__engine_number(config, TIERCE__ENGINE_COST_PREFILL);
    s->cost_wait_percent = tierce__engine_number(config, TIERCE__ENGINE_COST_WAIT);
    s->has_disk = tierce__engine_text(config, TIERCE__ENGINE_DISK_PATH)[0] != '\0';
    s->siblings = tierce__engine_bool(config, TIERCE__ENGINE_CHUNK_SIBLINGS);
    s->peer_disk_reads = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_PEERS_DISK_READS);
    s->peer_disk_bytes_per_s = tierce__engine_number(config, TIERCE__ENGINE_PEERS_DISK_RATE);
    s->recompute_all =
        strcmp(tierce__engine_text(config, TIERCE__ENGINE_BREAKER_FALLBACK), "recompute") == 0;
}

static int start_reporter(struct tierce_engine *engine, const struct tierce_config *config,
                          char why[TIERCE_CONFIG_ERROR_BYTES])
{
    struct tierce__reporter_opts opts = {
        .size = sizeof(opts), .url = tierce__engine_text(config, TIERCE__ENGINE_DIRECTORY_MANAGER)};
    bool is_set = opts.url[0] != '\0';
    char fault[256];
    if (engine->level_count == 0) /* the node of a client reports */
        return 0;
    int rc = tierce__peers_start(engine->peers, engine, why);
    if (rc != 0)
        return rc;
    tierce__peers_reporter(engine->peers, &opts);
    if (opts.url[0] == '\0')
        return 0;
    rc = tierce__reporter_start(&engine->reporter, engine, &opts, fault);
    atomic_store_explicit(&engine->reports.is_there, rc == 0, memory_order_relaxed);
    if (rc != 0)
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "%s: %s",
                 is_set ? "directory.manager" : "remote.urls", fault);
    return rc;
}

static int start_kv_publisher(struct tierce_engine *engine, const struct tierce_config *config,
                              char why[TIERCE_CONFIG_ERROR_BYTES])
{
    char fault[256];
    if (engine->level_count == 0) /* the node of a client publishes */
        return 0;
    uint64_t bytes = tierce__engine_number(config, TIERCE__ENGINE_KV_EVENTS_TOKENS);
    bool publishes = tierce__engine_text(config, TIERCE__ENGINE_KV_EVENTS_ENDPOINT)[0] != '\0';
    int rc = publishes && bytes > 0 ? tierce__kv_tokens_create(&engine->kv_tokens, bytes) : 0;
    if (rc < 0)
        return rc;
    rc = tierce__kv_publisher_start(&engine->kv_publisher, engine, config, fault);
    if (rc != 0)
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "%s", fault);
    return rc;
}

static int open_parts(struct tierce_engine *engine, const struct tierce_config *config,
                      char why[TIERCE_CONFIG_ERROR_BYTES])
{
    TIERCE_ASSERT(engine->state == TIERCE__ENGINE_OPENING);
    enum { COPIES_WAITING_MAX = 1024 };
    uint32_t threads = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_COPY_THREADS);
    int rc = tierce__namespaces_create(&engine->namespaces);
    if (rc == 0 && threads > 1)
        rc = tierce__workers_create(&engine->copiers, threads - 1, COPIES_WAITING_MAX);
    if (rc == 0)
        rc = tierce__peer_tls_create(&engine->peer_tls, config, why);
    if (rc == 0)
        rc = tierce__peers_create(&engine->peers, config, engine->peer_tls, why);
    if (rc == 0)
        rc = engine->lender->open(engine, config, why);
    if (rc == 0)
        rc = start_reporter(engine, config, why);
    return rc == 0 ? start_kv_publisher(engine, config, why) : rc;
}

/* Ends the existing parts of an engine, slowest tier first: its queue needs the pool. False:
 * something is left behind with all that the tier's threads or a device may still touch. */
static bool close_parts(struct tierce_engine *engine)
{
    TIERCE_DASSERT(engine->state == TIERCE__ENGINE_CLOSING);
    tierce__control_stop(engine->control); /* its pages read all parts */
    engine->control = NULL;
    tierce__kv_publisher_stop(engine->kv_publisher); /* it reads the tiers */
    tierce__reporter_stop(engine->reporter);         /* it reads the tiers */
    tierce__peers_stop(engine->peers, engine->close_deadline_ns);
    bool is_over = tierce__transits_end(&engine->transits, engine->close_deadline_ns);
    tierce__backfill_fini(engine);
    if (engine->keeper_runs) {
        tierce__unsent_drain(engine, engine->close_deadline_ns);
        tierce__lock_take(&engine->lock);
        engine->closing = true;
        tierce__cond_broadcast(&engine->changed);
        tierce__lock_drop(&engine->lock);
        pthread_join(engine->keeper, NULL);
        tierce__invalidations_stop(engine);
    }
    tierce__unsent_stop(engine); /* its threads are started by the keeper */
    if (is_over)                 /* else there are stores yet */
        tierce__shared_writes_fini(&engine->shared_writes);
    (void)tierce__sessions_expire(engine, NULL, true);
    while (atomic_load(&engine->calling) > 0)
        sched_yield();
    tierce__line_log_close(engine->access_log);
    engine->access_log = NULL;
    is_over = is_over && !atomic_load(&engine->is_pool_lent);
    tierce__direct_stop(&engine->direct);
    if (!engine->lender->close(engine) || !is_over || !tierce__direct_fini(&engine->direct) ||
        !tierce__pinnings_fini(&engine->pinnings))
        return false;
    tierce__transits_fini(&engine->transits);
    tierce__invalidations_fini(engine);
    TIERCE_DASSERT(tierce__list_empty(&engine->views) && atomic_load(&engine->passing) == 0);
    TIERCE_DASSERT(engine->session_count == 0 && engine->pinned_bytes == 0);
    tierce__asks_fini(&engine->asks);
    tierce__fetches_fini(&engine->fetches);
    tierce__storing_fini(&engine->storing);
    tierce__object_names_fini(&engine->object_names);
    tierce__tombstones_close(atomic_load(&engine->tombstones));
    tierce__prefetches_fini(&engine->prefetches);
    tierce__ahead_destroy(engine->ahead);
    tierce__smalls_destroy(engine->smalls);
    tierce__workers_destroy(engine->copiers);
    tierce__pool_destroy(engine->pool);
    tierce__events_destroy(engine->events);
    tierce__kv_tokens_destroy(engine->kv_tokens);
    tierce__departures_destroy(engine->departures);
    tierce__requests_destroy(engine->requests);
    tierce__coded_keys_close(engine->keys);
    tierce__namespaces_destroy(engine->namespaces);
    tierce__peers_destroy(engine->peers);
    tierce__peer_tls_destroy(engine->peer_tls);
    return true;
}

static void free_engine(struct tierce_engine *engine)
{
    TIERCE_DASSERT(tierce__list_empty(&engine->views) && tierce__list_empty(&engine->unattended));
    TIERCE_DASSERT(engine->state == TIERCE__ENGINE_CLOSING);
    TIERCE_DASSERT(tierce__list_empty(&engine->registry_node) && engine->clears == 0);
    tierce__cond_fini(&engine->changed);
    tierce__lock_fini(&engine->lock);
    tierce__free(engine->identity);
    tierce__free(engine->disk_path);
    engine->magic = 0;
    tierce__free(engine);
}

/* An engine without parts; takes over both texts. NULL for no memory. */
static struct tierce_engine *make_engine(char *identity, char *disk_path,
                                         const struct tierce_config *config)
{
    tierce__lock_assert_held(&registry_lock);
    struct tierce_engine *engine = tierce__calloc(1, sizeof(*engine));
    if (engine == NULL)
        return NULL;
    engine->magic = TIERCE__ENGINE_MAGIC;
    engine->refs = 1;
    engine->opened_ns = tierce__now_ns();
    engine->generation = generation;
    engine->identity = identity;
    engine->disk_path = disk_path;
    bool has_node = tierce__engine_text(config, TIERCE__ENGINE_NODE_SOCKET)[0] != '\0';
    engine->lender = has_node ? &tierce__node_client : &tierce__own_tiers;
    tierce__list_init(&engine->registry_node);
    tierce__pinnings_init(&engine->pinnings);
    tierce__direct_init(&engine->direct);
    tierce__transits_init(&engine->transits);
    tierce__fetches_init(&engine->fetches);
    tierce__asks_init(&engine->asks);
    tierce__storing_init(&engine->storing);
    tierce__shared_writes_init(&engine->shared_writes);
    tierce__object_names_init(&engine->object_names);
    tierce__lock_init(&engine->lock, TIERCE__LOCK_ENGINE);
    tierce__cond_init(&engine->changed);
    tierce__list_init(&engine->unattended);
    tierce__list_init(&engine->invalidations);
    tierce__list_init(&engine->views);
    for (size_t i = 0; i < TIERCE__SESSION_BINS; i++)
        tierce__list_init(&engine->sessions[i]);
    read_settings(&engine->settings, config);
    snprintf(engine->role, sizeof(engine->role), "engine");
    atomic_init(&engine->mode, tierce__mode_find(tierce__engine_text(config, TIERCE__ENGINE_MODE)));
    tierce__prefetches_init(&engine->prefetches, engine->settings.prefetch_bytes_max);
    TIERCE_DASSERT(atomic_load(&engine->mode) >= 0);
    return engine;
}

/* ---- the registry ---- */

/* An engine of these settings or on this folder, one that is not closing before one that is. */
static struct tierce_engine *find_engine(const char *identity, const char *disk_path)
{
    tierce__lock_assert_held(&registry_lock);
    struct tierce_engine *closing = NULL;
    TIERCE__LIST_FOR_EACH (it, &registry) {
        struct tierce_engine *e = TIERCE__CONTAINER_OF(it, struct tierce_engine, registry_node);
        TIERCE_DASSERT(e->refs > 0 || e->state == TIERCE__ENGINE_CLOSING);
        bool same_folder = disk_path[0] != '\0' && strcmp(e->disk_path, disk_path) == 0;
        if (!same_folder && strcmp(e->identity, identity) != 0)
            continue;
        if (e->state != TIERCE__ENGINE_CLOSING)
            return e;
        closing = e;
    }
    return closing;
}

/*
 * Waits until there is an engine to share (*out, with one more reference) or room for a new one
 * (NULL). A second opener waits for the first one's engine. A folder is not opened while another
 * engine is closing it, unless the deadline of that close has passed. Under the lock.
 */
static int find_place(struct tierce_engine **out, const char *identity, const char *disk_path,
                      char why[TIERCE_CONFIG_ERROR_BYTES])
{
    tierce__lock_assert_held(&registry_lock);
    for (;;) {
        struct tierce_engine *e = find_engine(identity, disk_path);
        *out = NULL;
        if (e == NULL)
            return 0;
        uint64_t deadline_ns = TIERCE__DEADLINE_NEVER;
        if (e->state == TIERCE__ENGINE_CLOSING) {
            deadline_ns = e->close_deadline_ns;
            if (tierce__now_ns() >= deadline_ns)
                return 0;
        } else if (strcmp(e->identity, identity) != 0) {
            snprintf(why, TIERCE_CONFIG_ERROR_BYTES,
                     "disk.path: another engine of this process uses %.256s with other settings; "
                     "use equal settings to share it, or another folder",
                     disk_path);
            return TIERCE_E_CONFIG;
        } else if (e->state == TIERCE__ENGINE_OPEN) {
            TIERCE_DASSERT(e->refs > 0);
            e->refs++;
            *out = e;
            return 0;
        }
        tierce__cond_wait(&registry_changed, &registry_lock, deadline_ns);
    }
}

/* The folder now exists, so that its name without links is known. */
static void enter_open(struct tierce_engine *engine)
{
    char *old = NULL, *resolved = canonical_path(engine->disk_path);
    tierce__lock_take(&registry_lock);
    TIERCE_DASSERT(engine->state == TIERCE__ENGINE_OPENING);
    TIERCE_DASSERT(engine->refs > 0 && !tierce__list_empty(&engine->registry_node));
    if (resolved != NULL) { /* else the spelling that was given still names it */
        old = engine->disk_path;
        engine->disk_path = resolved;
    }
    engine->state = TIERCE__ENGINE_OPEN;
    tierce__cond_broadcast(&registry_changed);
    tierce__lock_drop(&registry_lock);
    tierce__free(old);
}

/* Under the lock. */
static void enter_closing(struct tierce_engine *engine)
{
    tierce__lock_assert_held(&registry_lock);
    TIERCE_DASSERT(engine->state != TIERCE__ENGINE_CLOSING);
    TIERCE_DASSERT(engine->refs == 0 || engine->state == TIERCE__ENGINE_OPENING);
    engine->state = TIERCE__ENGINE_CLOSING;
    engine->close_deadline_ns = tierce__deadline_in_ms(engine->settings.close_ms);
}

static void destroy_engine(struct tierce_engine *engine)
{
    TIERCE_DASSERT(engine->state == TIERCE__ENGINE_CLOSING);
    bool whole = close_parts(engine);
    tierce__lock_take(&registry_lock);
    TIERCE_DASSERT(!tierce__list_empty(&engine->registry_node));
    tierce__list_remove(&engine->registry_node);
    tierce__cond_broadcast(&registry_changed);
    tierce__lock_drop(&registry_lock);
    if (whole)
        free_engine(engine);
}

static int open_new(struct tierce_engine *engine, const struct tierce_config *config,
                    char why[TIERCE_CONFIG_ERROR_BYTES])
{
    TIERCE_DASSERT(engine->state == TIERCE__ENGINE_OPENING);
    int rc = open_parts(engine, config, why);
    if (rc == 0) {
        enter_open(engine);
        engine->lender->serve(engine,
                              config); /* it tells the folder's name, which is now settled */
        return 0;
    }
    tierce__lock_take(&registry_lock);
    enter_closing(engine);
    tierce__lock_drop(&registry_lock);
    destroy_engine(engine);
    return rc;
}

/* The configuration takes no other names. */
static enum tierce_log_level log_level(const struct tierce_config *config)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    size_t level = 0;
    while (strcmp(names[level], tierce__engine_text(config, TIERCE__ENGINE_LOG_LEVEL)) != 0) {
        level++;
        TIERCE_ASSERT(level < sizeof(names) / sizeof(names[0]));
    }
    return (enum tierce_log_level)level;
}

int tierce_engine_open(struct tierce_engine **out, const struct tierce_config *config,
                       char why[TIERCE_CONFIG_ERROR_BYTES])
{
    pthread_once(&registry_once, init_registry);
    why[0] = '\0';
    tierce__log_lowest(log_level(config));
    struct tierce_engine *engine = NULL, *made = NULL;
    char *identity = describe_config(config);
    char *disk_path = canonical_path(tierce__engine_text(config, TIERCE__ENGINE_DISK_PATH));
    int rc = identity != NULL && disk_path != NULL ? 0 : -ENOMEM;
    if (rc == 0) {
        tierce__lock_take(&registry_lock);
        rc = find_place(&engine, identity, disk_path, why);
        if (rc == 0 && engine == NULL) {
            made = make_engine(identity, disk_path, config);
            if (made != NULL) {
                identity = disk_path = NULL;
                tierce__list_push_back(&registry, &made->registry_node);
            }
            rc = made != NULL ? 0 : -ENOMEM;
        }
        tierce__lock_drop(&registry_lock);
    }
    if (made != NULL) {
        rc = open_new(made, config, why);
        engine = made;
    }
    if (rc == 0)
        *out = engine;
    else if (why[0] == '\0')
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "cannot open the engine: %s", tierce_strerror(rc));
    tierce__free(identity);
    tierce__free(disk_path);
    return rc;
}

void tierce__engine_ref(struct tierce_engine *engine)
{
    tierce__lock_take(&registry_lock);
    TIERCE_DASSERT(engine->refs > 0);
    TIERCE_DASSERT(engine->state != TIERCE__ENGINE_CLOSING);
    engine->refs++;
    tierce__lock_drop(&registry_lock);
}

void tierce_engine_close(struct tierce_engine *engine)
{
    if (engine == NULL)
        return;
    TIERCE_CHECK_MAGIC(engine, TIERCE__ENGINE_MAGIC);
    if (tierce__engine_inherited(engine))
        return;
    tierce__lock_take(&registry_lock);
    TIERCE_ASSERT(engine->refs > 0);
    TIERCE_DASSERT(engine->state == TIERCE__ENGINE_OPEN);
    bool last = --engine->refs == 0;
    if (last)
        enter_closing(engine);
    tierce__lock_drop(&registry_lock);
    if (last)
        destroy_engine(engine);
}

/* ---- counting ---- */

void tierce_engine_stats(struct tierce_engine *engine, struct tierce_engine_stats *out)
{
    TIERCE_CHECK_MAGIC(engine, TIERCE__ENGINE_MAGIC);
    TIERCE_ASSERT(out->size == sizeof(*out));
    if (tierce__engine_inherited(engine)) {
        *out = (struct tierce_engine_stats){.size = sizeof(*out)};
        return;
    }
#define TIERCE_STAT(name, text)                                                                    \
    out->name = atomic_load_explicit(&engine->counters[TIERCE__STAT_##name], memory_order_relaxed);
#include <tierce/stats.def>
#undef TIERCE_STAT
    uint64_t lines, dropped;
    tierce__line_log_counts(engine->access_log, &lines, &dropped);
    out->access_lines = (int64_t)lines;
    out->access_dropped = (int64_t)dropped;
    out->mode_now = tierce__engine_mode(engine);
    engine->lender->stats(engine, out);
}

void tierce__engine_memory(const struct tierce_engine *engine, struct tierce__engine_memory *out)
{
    TIERCE_DASSERT(engine->level_count > 0);
    uint8_t *base;
    out->fd = tierce__pool_fd(engine->pool);
    tierce__pool_mapping(engine->pool, &base, &out->bytes);
    out->base = base;
}

const char *tierce__engine_disk_error(const struct tierce_engine *engine)
{
    return engine->disk_error;
}

uint32_t tierce__engine_tiers(const struct tierce_engine *engine)
{
    uint32_t tiers = 0;
    for (size_t i = 0; i < engine->level_count; i++)
        tiers |= 1u << engine->levels[i].origin;
    TIERCE_DASSERT(engine->level_count == 0 || (tiers & 1u << TIERCE_ORIGIN_MEMORY) != 0);
    return tiers;
}
