/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine with tiers of its own: opening them, the keeper that looks after them, closing them,
 * and the table of what they lend.
 */
#include "engine/own_tiers.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/log/log.h"
#include "engine/engine_config.h"
#include "engine/view.h"
#include "engine/why/departures.h"
#include "engine/why/requests.h"
#include "engine/observe/engine_events.h"
#include "engine/observe/engine_metrics.h"
#include "engine/observe/kv_tokens.h"
#include "engine/observe/operate.h"
#include "engine/remotes.h"
#include "engine/invalidations.h"
#include "engine/store/backfill.h"
#include "engine/store/shared_write.h"
#include "engine/why/why.h"
#include "engine/objects/smalls.h"
#include "engine/objects/tombstones.h"
#include "core/codec/codec_plugin.h"
#include "core/paged/paged.h"
#include "store/coded/coded_keys.h"
#include "store/coded/coded_tier.h"
#include "store/disk/disk.h"
#include "store/memory/copies.h"
#include "store/memory/memory.h"

/* How often the keeper looks for pins past their deadline. */
#define KEEPER_MS 100u

/* ---- opening ---- */

/* Loads the plug-ins. Without one an engine does not open, also if it is not strict. */
static int open_plugins(const struct tierce_config *config, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    static const enum tierce__engine_param rows[] = {
        TIERCE__ENGINE_MEMORY_POLICY, TIERCE__ENGINE_DISK_POLICY, TIERCE__ENGINE_DISK_CODEC,
        TIERCE__ENGINE_REMOTE_CODEC};
    enum { POLICIES = 2 };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct tierce__policy_ops *policy;
        const struct tierce__codec *codec;
        const char *text = tierce__engine_text(config, rows[i]);
        char reason[TIERCE__URL_WHY_BYTES];
        int rc = i < POLICIES ? tierce__policy_open(&policy, text, reason)
                              : tierce__codec_open(&codec, text, reason);
        if (rc < 0) {
            snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "%s: %s",
                     tierce__engine_params()[rows[i]].name, reason);
            return rc;
        }
    }
    return 0;
}

/* After open_plugins. */
static const struct tierce__policy_ops *policy_of(const struct tierce_config *config,
                                                  enum tierce__engine_param param)
{
    const struct tierce__policy_ops *policy = NULL;
    char why[TIERCE__POLICY_WHY_BYTES];
    int rc = tierce__policy_open(&policy, tierce__engine_text(config, param), why);
    TIERCE_ASSERT(rc == 0);
    return policy;
}

const struct tierce__codec *tierce__engine_codec(const struct tierce_config *config,
                                                 enum tierce__engine_param param)
{
    const struct tierce__codec *codec = NULL;
    char why[TIERCE__URL_WHY_BYTES];
    int rc = tierce__codec_open(&codec, tierce__engine_text(config, param), why);
    TIERCE_ASSERT(rc == 0);
    return codec;
}

/* A tier reports added and removed chunks, under its lock. */
static void watch_level(void *arg, const struct tierce__tier_event *event)
{
    const struct tierce__level *level = arg;
    size_t index = (size_t)(level - level->engine->levels);
    TIERCE_DASSERT(index < TIERCE__TIERS_MAX);
    if (tierce__smalls_is_page(event->key)) { /* pages are internal to smalls */
        TIERCE_DASSERT(index == 0);
        if (!event->admitted)
            tierce__smalls_page_left(level->engine->smalls, event->key);
        return;
    }
    tierce__why_note(level->engine, index, event);
    if (tierce__level_is_told(level))
        tierce__events_tell(level->engine->events, index, event);
}

void tierce__engine_add_level(struct tierce_engine *engine, struct tierce__tier *tier,
                              enum tierce_origin origin, const char *policy, uint64_t window_bytes)
{
    TIERCE_ASSERT(engine->level_count < TIERCE__TIERS_MAX);
    TIERCE_DASSERT(engine->level_count > 0 || origin == TIERCE_ORIGIN_MEMORY);
    TIERCE_DASSERT(engine->state == TIERCE__ENGINE_OPENING);
    struct tierce__level *level = &engine->levels[engine->level_count++];
    level->engine = engine;
    level->policy = policy;
    level->tier = tier;
    level->origin = origin;
    level->window_bytes = window_bytes;
    tier->ops->watch(tier, watch_level, level);
    tierce__health_init(&level->health, &engine->settings.health);
    level->health.shared = (tier->ops->caps & TIERCE__TIER_SHARED) != 0;
    level->health.pings = (tier->ops->caps & TIERCE__TIER_PINGS) != 0;
    TIERCE_DASSERT(level == engine->levels || level->health.shared || !level[-1].health.shared);
}

static int open_memory(struct tierce_engine *engine, const struct tierce_config *config,
                       char why[TIERCE_CONFIG_ERROR_BYTES])
{
    TIERCE_DASSERT(engine->level_count == 0);
    uint64_t chunks = tierce__engine_number(config, TIERCE__ENGINE_MEMORY_CHUNKS);
    int rc = tierce__pool_create(
        &engine->pool, &(struct tierce__pool_opts){
                           .size = sizeof(struct tierce__pool_opts),
                           .cap_bytes = engine->settings.memory_bytes,
                           .buf_count_max = (uint32_t)chunks,
                           .shared = tierce__engine_bool(config, TIERCE__ENGINE_MEMORY_SHARED) ||
                                     tierce__remotes_share_memory(config)});
    if (rc < 0) {
        char size[32];
        tierce__format_size(size, sizeof(size), engine->settings.memory_bytes);
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "memory.size: cannot reserve %s: %s%s", size,
                 tierce_strerror(rc), rc == -ENOMEM ? "; set memory.size to a smaller value" : "");
        return rc;
    }
    uint8_t *base;
    uint64_t bytes;
    tierce__pool_mapping(engine->pool, &base, &bytes);
    tierce__pinnings_set(&engine->pinnings, base, bytes, true);
    struct tierce__tier *tier;
    rc = tierce__memory_open(
        &tier, &(struct tierce__memory_opts){
                   .size = sizeof(struct tierce__memory_opts),
                   .pool = engine->pool,
                   .policy = policy_of(config, TIERCE__ENGINE_MEMORY_POLICY),
                   .slots = {"memory", "memory.chunks", engine->settings.memory_bytes},
                   .ttl_ms = tierce__engine_number(config, TIERCE__ENGINE_MEMORY_TTL)});
    if (rc == 0)
        tierce__engine_add_level(engine, tier, TIERCE_ORIGIN_MEMORY,
                                 policy_of(config, TIERCE__ENGINE_MEMORY_POLICY)->name, 0);
    return rc == 0
               ? tierce__smalls_create(&engine->smalls, tier, engine->pool, &engine->object_walks)
               : rc;
}

#define CODED_STAGING_BYTES (64u << 20)
#define CHUNK_COUNT_MAX     (1u << 30)
#define MEMORY_CODEC        "lossless"

struct tierce__buf *tierce__engine_alloc_coded(void *engine, uint64_t bytes)
{
    return tierce__storage_alloc(engine, bytes);
}

uint64_t tierce__engine_coded_staging(const struct tierce_engine *engine)
{
    uint64_t staging = engine->settings.memory_bytes / 8;
    return staging < CODED_STAGING_BYTES ? staging : CODED_STAGING_BYTES;
}

/* Copies of the chunks, coded, which outlast their eviction from memory. Decoding is always slower
 * than this memory, so the two are never compared: the tier is there for its capacity. */
static int open_coded_copies(struct tierce_engine *engine, struct tierce__tier **out,
                             const struct tierce_config *config, uint64_t bytes)
{
    struct tierce__tier *copies;
    double chunks = (double)tierce__engine_number(config, TIERCE__ENGINE_MEMORY_CHUNKS) *
                    (double)bytes / (double)engine->settings.memory_bytes;
    int rc = tierce__copies_open(
        &copies,
        &(struct tierce__copies_opts){
            .size = sizeof(struct tierce__copies_opts),
            .cap_bytes = bytes,
            .policy = policy_of(config, TIERCE__ENGINE_MEMORY_POLICY),
            .chunk_count_max = chunks < CHUNK_COUNT_MAX ? (uint32_t)ceil(chunks) : CHUNK_COUNT_MAX,
            .slots = {"coded_memory", "memory.chunks", engine->settings.memory_bytes},
            .ttl_ms = tierce__engine_number(config, TIERCE__ENGINE_MEMORY_TTL)});
    if (rc < 0)
        return rc;
    rc = tierce__coded_tier_open(
        out, &(struct tierce__coded_opts){.size = sizeof(struct tierce__coded_opts),
                                          .tier = copies,
                                          .codec = tierce__codec_find(MEMORY_CODEC),
                                          .namespaces = engine->namespaces,
                                          .alloc = tierce__engine_alloc_coded,
                                          .alloc_arg = engine,
                                          .queue_bytes_max = engine->settings.memory_bytes / 4,
                                          .staging_bytes_max = tierce__engine_coded_staging(engine),
                                          .measured_bytes = UINT64_MAX});
    if (rc < 0)
        copies->ops->close(copies, tierce__now_ns());
    return rc;
}

static int open_coded_memory(struct tierce_engine *engine, const struct tierce_config *config,
                             char why[TIERCE_CONFIG_ERROR_BYTES])
{
    uint64_t bytes = tierce__engine_number(config, TIERCE__ENGINE_MEMORY_CODED_SIZE);
    struct tierce__tier *tier;
    TIERCE_DASSERT(engine->level_count == 1);
    if (bytes == 0)
        return 0;
    int rc = open_coded_copies(engine, &tier, config, bytes);
    if (rc < 0) {
        char size[32];
        tierce__format_size(size, sizeof(size), bytes);
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES,
                 "memory.coded_size: cannot reserve %s: %s; set it to a smaller value", size,
                 tierce_strerror(rc));
        return rc;
    }
    tierce__engine_add_level(engine, tier, TIERCE_ORIGIN_MEMORY,
                             policy_of(config, TIERCE__ENGINE_MEMORY_POLICY)->name,
                             CODED_STAGING_BYTES);
    struct tierce__level *level = &engine->levels[engine->level_count - 1];
    level->queue_bytes = engine->settings.memory_bytes / 4;
    level->coded = tier;
    return 0;
}

/* Opens the disk, and the tier that encodes and decodes around it: also without a codec, because
 * the folder may hold coded chunks. */
static int open_coded_disk(struct tierce_engine *engine, struct tierce__tier **out,
                           const struct tierce_config *config, const struct tierce__disk_opts *opts)
{
    struct tierce__tier *disk;
    int rc = tierce__disk_open(&disk, opts);
    if (rc < 0 && opts->vfs != NULL)
        opts->vfs->ops->destroy(opts->vfs); /* it has not become the disk's */
    if (rc < 0)
        return rc;
    rc = tierce__coded_tier_open(
        out, &(struct tierce__coded_opts){
                 .size = sizeof(struct tierce__coded_opts),
                 .tier = disk,
                 .codec = tierce__engine_codec(config, TIERCE__ENGINE_DISK_CODEC),
                 .namespaces = engine->namespaces,
                 .keys = engine->keys,
                 .encrypts = tierce__engine_encrypts(config, TIERCE__ENGINE_DISK_ENCRYPTION),
                 .alloc = tierce__engine_alloc_coded,
                 .alloc_arg = engine,
                 .queue_bytes_max = opts->queue_bytes,
                 .staging_bytes_max = tierce__engine_coded_staging(engine),
                 .load_time_max = tierce__engine_share(config, TIERCE__ENGINE_CODEC_LOAD_TIME)});
    if (rc < 0)
        disk->ops->close(disk, tierce__now_ns());
    return rc;
}

/* Keys alone only decrypt: an operator may believe that they encrypt. */
static void log_tiers_in_the_clear(const struct tierce_config *config)
{
    static const struct {
        enum tierce__engine_param place, encryption;
    } tiers[] = {{TIERCE__ENGINE_DISK_PATH, TIERCE__ENGINE_DISK_ENCRYPTION},
                 {TIERCE__ENGINE_REMOTE_URLS, TIERCE__ENGINE_REMOTE_ENCRYPTION}};
    const struct tierce__param *params = tierce__engine_params();
    for (size_t i = 0; i < sizeof(tiers) / sizeof(tiers[0]); i++) {
        const char *place = tierce__engine_text(config, tiers[i].place);
        if (place[strspn(place, " \t\r\n")] != '\0' &&
            !tierce__engine_encrypts(config, tiers[i].encryption))
            tierce__log(TIERCE_LOG_WARN, "not_encrypted",
                        "setting=%s value=none effect=\"new chunks of %s are not encrypted; the "
                        "keys only decrypt\" hint=\"set %s to aes-256-gcm\"",
                        params[tiers[i].encryption].name, params[tiers[i].place].name,
                        params[tiers[i].encryption].name);
    }
}

/* An engine that is to encrypt does not open without keys: it must never store a chunk as it is. */
static int open_keys(struct tierce_engine *engine, const struct tierce_config *config,
                     char why[TIERCE_CONFIG_ERROR_BYTES])
{
    const struct tierce__coded_keys_opts opts = {
        .size = sizeof(opts),
        .file = tierce__engine_text(config, TIERCE__ENGINE_ENCRYPTION_KEY_FILE),
        .command = tierce__engine_text(config, TIERCE__ENGINE_ENCRYPTION_KEY_COMMAND)};
    if (opts.file[0] == '\0' && opts.command[0] == '\0')
        return 0;
    log_tiers_in_the_clear(config);
    char reason[TIERCE__CODED_KEYS_WHY_BYTES];
    int rc = tierce__coded_keys_open(&engine->keys, &opts, reason);
    if (rc < 0)
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "%s", reason);
    return rc;
}

/* Files of a disk that is also read into the memory of a device. */
static int open_device_vfs(struct tierce_engine *engine, const struct tierce_config *config,
                           struct tierce__disk_opts *opts)
{
    uint64_t bytes = tierce__engine_number(config, TIERCE__ENGINE_DISK_GPU_DIRECT);
    if (bytes == 0)
        return 0;
    engine->pinnings.direct = &engine->direct;
    return tierce__direct_wrap(&engine->direct, bytes, opts->io_depth, &opts->vfs);
}

/* The operator may rely on them, encryption above all. */
static void log_settings_without_disk(const struct tierce_config *config)
{
    static const enum tierce__engine_param rows[] = {TIERCE__ENGINE_DISK_CODEC,
                                                     TIERCE__ENGINE_DISK_ENCRYPTION};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *value = tierce__engine_text(config, rows[i]);
        if (strcmp(value, "none") != 0)
            tierce__log(TIERCE_LOG_WARN, "setting_without_effect",
                        "setting=%s value=%s reason=\"disk.path is empty, so there is no disk\"",
                        tierce__engine_params()[rows[i]].name, value);
    }
    uint64_t buffer = tierce__engine_number(config, TIERCE__ENGINE_DISK_GPU_DIRECT);
    if (buffer > 0)
        tierce__log(
            TIERCE_LOG_WARN, "setting_without_effect",
            "setting=disk.gpu_direct value=%llu reason=\"disk.path is empty, so there is no "
            "disk; the host decodes memory.coded_size\"",
            (unsigned long long)buffer);
}

/* If the disk cannot be used, the engine runs on memory, or does not open if it is strict. */
static int open_disk(struct tierce_engine *engine, const struct tierce_config *config,
                     char why[TIERCE_CONFIG_ERROR_BYTES])
{
    TIERCE_DASSERT(engine->level_count > 0);
    const char *path = tierce__engine_text(config, TIERCE__ENGINE_DISK_PATH);
    if (path[0] == '\0') {
        log_settings_without_disk(config);
        return 0;
    }
    uint64_t queue = tierce__engine_number(config, TIERCE__ENGINE_DISK_QUEUE);
    struct tierce__disk_opts opts = {
        .size = sizeof(opts),
        .path = path,
        .cap_bytes = tierce__engine_number(config, TIERCE__ENGINE_DISK_SIZE),
        .policy = policy_of(config, TIERCE__ENGINE_DISK_POLICY),
        .namespaces = engine->namespaces,
        .pool = engine->pool,
        .chunk_count_max = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_DISK_CHUNKS),
        .slots = {"disk", "disk.chunks", tierce__engine_number(config, TIERCE__ENGINE_DISK_SIZE)},
        .io_depth = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_DISK_DEPTH),
        .queue_bytes = queue > 0 ? queue : engine->settings.memory_bytes / 4,
        .flush_interval_ms =
            (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_DISK_FLUSH_INTERVAL),
        .lock_wait_ms = (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_DISK_LOCK_WAIT),
        .buffered = !tierce__engine_bool(config, TIERCE__ENGINE_DISK_DIRECT),
        .admit_second =
            strcmp(tierce__engine_text(config, TIERCE__ENGINE_DISK_ADMIT), "second") == 0,
        .ttl_ms = tierce__engine_number(config, TIERCE__ENGINE_DISK_TTL),
        .why = engine->disk_error,
    };
    struct tierce__tier *tier;
    int status = open_device_vfs(engine, config, &opts);
    if (status == 0)
        status = open_coded_disk(engine, &tier, config, &opts);
    if (status < 0)
        tierce__direct_unwrap(&engine->direct);
    if (status == 0) {
        tierce__engine_add_level(
            engine, tier, TIERCE_ORIGIN_DISK, opts.policy->name,
            tierce__engine_number(config, TIERCE__ENGINE_PREFETCH_DISK_WINDOW));
        engine->levels[engine->level_count - 1].queue_bytes = opts.queue_bytes;
        engine->levels[engine->level_count - 1].coded = tier;
        for (size_t i = 1; i < engine->level_count; i++) /* coded memory too */
            tierce__direct_decode_from(&engine->direct, engine->levels[i].coded);
        return tierce__unsent_init(&engine->levels[engine->level_count - 1]);
    }
    if (engine->disk_error[0] == '\0') /* there was no memory, or the options are invalid */
        snprintf(engine->disk_error, sizeof(engine->disk_error), "%s", tierce_strerror(status));
    if (tierce__engine_bool(config, TIERCE__ENGINE_STRICT)) {
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "disk.path: %.200s cannot be used: %s", path,
                 engine->disk_error);
        return status;
    }
    tierce__count(engine, TIERCE__STAT_disk_open_status, status);
    tierce__log(TIERCE_LOG_ERROR, "store_folder_refused",
                "path=\"%s\" reason=\"%s\" consequence=\"%s\"", path, tierce_strerror(status),
                tierce__engine_requires_disk(config) ? "the node does not start"
                                                     : "chunks are kept in memory only");
    return 0;
}

/* An access log that cannot be written leaves the engine without one. */
static void open_access_log(struct tierce_engine *engine, const struct tierce_config *config)
{
    const char *path = tierce__engine_text(config, TIERCE__ENGINE_ACCESS_LOG_PATH);
    if (path[0] == '\0')
        return;
    int rc = tierce__access_open(&engine->access_log, path,
                                 tierce__engine_number(config, TIERCE__ENGINE_ACCESS_LOG_SIZE));
    if (rc < 0)
        tierce__log(TIERCE_LOG_WARN, "access_log_refused",
                    "path=\"%s\" reason=\"%s\" consequence=\"no access log is written\"", path,
                    tierce_strerror(rc));
}

/* An engine that cannot be asked works all the same. */
static void open_control(struct tierce_engine *engine, const struct tierce_config *config)
{
    TIERCE_DASSERT(engine->state == TIERCE__ENGINE_OPEN);
    char why[256];
    struct tierce__control_opts opts = {
        .size = sizeof(opts),
        .socket = tierce__engine_text(config, TIERCE__ENGINE_CONTROL_SOCKET),
        .port = (uint16_t)tierce__engine_number(config, TIERCE__ENGINE_METRICS_PORT),
        .routes = tierce__engine_pages,
        .route_count = tierce__engine_page_count,
        .arg = engine};
    if (opts.socket[0] == '\0' && opts.port == 0)
        return;
    int rc = tierce__control_start(&engine->control, &opts, why);
    if (rc < 0)
        tierce__log(
            TIERCE_LOG_WARN, "control_refused",
            "reason=\"%s\" consequence=\"tierce top, why and ctl cannot reach this process\"", why);
}

/* Ends pins at their deadline, so that an abandoned request cannot hold memory, and tries tiers
 * that are out of service, so that they return to service without requests. */
static void *run_keeper(void *arg)
{
    struct tierce_engine *engine = arg;
    tierce__lock_take(&engine->lock);
    while (!engine->closing) {
        if (!tierce__objects_purge_is_due(engine))
            tierce__cond_wait(&engine->changed, &engine->lock, tierce__deadline_in_ms(KEEPER_MS));
        bool look = engine->session_count > 0 && !engine->closing;
        bool closing = engine->closing;
        tierce__lock_drop(&engine->lock);
        if (look)
            (void)tierce__sessions_expire(engine, NULL, false);
        tierce__stores_expire(engine);
        tierce__shared_writes_expire(engine);
        tierce__prefetches_expire(engine);
        tierce__transits_reap(&engine->transits);
        if (!closing) {
            tierce__storage_probe(engine);
            tierce__unsent_keep(engine);
            tierce__ahead_keep(engine->ahead);
            tierce__objects_purge(engine);
        }
        tierce__lock_take(&engine->lock);
    }
    tierce__lock_drop(&engine->lock);
    return NULL;
}

/* Chunks that wait to be written occupy slots of memory. Small ones could occupy all, long before
 * they fill a queue's bytes: then new chunks would be skipped. */
static void limit_queues(struct tierce_engine *engine)
{
    uint64_t chunks = tierce__storage_slots(engine) / 2;
    for (size_t i = 1; i < engine->level_count; i++)
        engine->levels[i].queue_chunks = chunks > 0 ? chunks : 1;
}

static int open_tiers(struct tierce_engine *engine, const struct tierce_config *config,
                      char why[TIERCE_CONFIG_ERROR_BYTES])
{
    TIERCE_DASSERT(engine->level_count == 0);
    int rc = tierce__departures_create(
        &engine->departures,
        (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_MISSES_REMEMBERED));
    if (rc == 0)
        rc = tierce__requests_create(
            &engine->requests,
            (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_REQUESTS_REMEMBERED));
    if (rc == 0)
        rc = tierce__events_create(
            &engine->events, (uint32_t)tierce__engine_number(config, TIERCE__ENGINE_EVENTS_RING));
    if (rc == 0)
        rc = tierce__engine_config_check(config, why);
    if (rc == 0)
        rc = tierce__ahead_create(&engine->ahead, engine,
                                  tierce__engine_number(config, TIERCE__ENGINE_PREFETCH_AHEAD));
    if (rc == 0)
        rc = open_plugins(config, why);
    if (rc == 0)
        rc = open_keys(engine, config, why);
    if (rc == 0)
        rc = open_memory(engine, config, why);
    if (rc == 0)
        rc = open_coded_memory(engine, config, why);
    if (rc == 0)
        rc = open_disk(engine, config, why);
    if (rc == 0)
        rc = tierce__invalidations_load(engine);
    if (rc == 0)
        rc = tierce__remotes_open(engine, config, why);
    if (rc == 0)
        limit_queues(engine);
    if (rc == 0)
        open_access_log(engine, config);
    if (rc == 0)
        rc = -pthread_create(&engine->keeper, NULL, run_keeper, engine);
    engine->keeper_runs = rc == 0;
    return rc == 0 ? tierce__invalidations_start(engine) : rc;
}

static bool close_tiers(struct tierce_engine *engine)
{
    TIERCE_DASSERT(engine->state == TIERCE__ENGINE_CLOSING);
    while (engine->level_count > 0) {
        struct tierce__tier *tier = engine->levels[engine->level_count - 1].tier;
        if (!tier->ops->close(tier, engine->close_deadline_ns))
            return false;
        tierce__unsent_fini(&engine->levels[--engine->level_count]);
        tierce__health_fini(&engine->levels[engine->level_count].health);
    }
    TIERCE_ASSERT(tierce__list_empty(&engine->unattended)); /* close answers every request */
    return true;
}

/* A chunk must fit into memory. */
static int open_view(struct tierce_view *view, const struct tierce_namespace *ns)
{
    TIERCE_DASSERT(view->chunk_blocks == ns->chunk_blocks);
    bool fits = view->full.extent.object_bytes <= view->engine->settings.memory_bytes;
    if (fits)
        tierce__invalidations_ask(view->engine, &view->key);
    return fits ? 0 : TIERCE_E_LIMIT;
}

/* ---- space and leases ---- */

static int reserve_space(struct tierce__lender_space *space, struct tierce_view *view,
                         const struct tierce_transfer_opts *opts)
{
    TIERCE_DASSERT(space->count == 0);
    struct tierce__reserve_what what = {.chain = opts->chain,
                                        .from_block = opts->from_block,
                                        .to_block = opts->to_block,
                                        .session = opts->session,
                                        .tail = opts->tail,
                                        .tiers = opts->tiers,
                                        .tag = opts->tag,
                                        .room_wait = space->room_wait};
    tierce__kv_tokens_note(view->engine->kv_tokens, view, opts->chain, opts->to_block, opts->tail);
    int rc = tierce__share_begin(&space->share, view, &view->part, opts->write, &what);
    space->memory = &view->engine->pinnings;
    if (rc == 0 && space->share.reservation != NULL)
        space->rooms = tierce__reserve_rooms(space->share.reservation, &space->count);
    TIERCE_DASSERT(rc < 0 || (space->rooms != NULL) == (space->count > 0));
    return rc;
}

static int64_t end_space(struct tierce__lender_space *space, bool complete)
{
    TIERCE_DASSERT(space->count > 0);
    TIERCE_DASSERT(space->rooms != NULL);
    return tierce__share_end(&space->share, complete);
}

static void give_up_space(struct tierce__lender_space *space)
{
    TIERCE_DASSERT(space->count > 0);
    tierce__share_give_up(&space->share);
}

static int prepare(struct tierce_view *view, const struct tierce_paged *paged)
{
    struct tierce__open_device *device;
    return tierce__pinnings_get(&view->engine->pinnings, paged, &device);
}

/* The buffer on the device of `paged`, into which chunks may be read; NULL: there is none. */
static struct tierce__pool *direct_pool(struct tierce_engine *engine,
                                        const struct tierce_paged *paged)
{
    struct tierce__open_device *device;
    bool may = tierce__paged_device(paged) != TIERCE_DEVICE_HOST &&
               tierce__direct_is_on(&engine->direct) &&
               tierce__pinnings_get(&engine->pinnings, paged, &device) == 0;
    return may ? tierce__direct_pool(&engine->direct, device) : NULL;
}

static int lend(struct tierce__load_lease **out, struct tierce_view *view,
                const struct tierce_transfer_opts *opts)
{
    TIERCE_DASSERT(view->part.count > 0);
    struct tierce__load_lease_what what = {.chain = opts->chain,
                                           .from_block = opts->from_block,
                                           .to_block = opts->to_block,
                                           .session = opts->session,
                                           .part = &view->part,
                                           .timeout_ms = opts->timeout_ms,
                                           .tiers = opts->tiers,
                                           .follows = true,
                                           .direct = direct_pool(view->engine, opts->paged),
                                           .keeps_pins = view->part.count > 1};
    tierce__kv_tokens_note(view->engine->kv_tokens, view, opts->chain, opts->to_block, false);
    return tierce__load_lease_begin(out, view, &what);
}

static void unpin(struct tierce_view *view, uint64_t session)
{
    tierce__session_free(tierce__session_take(view, session));
}

static void note_request(struct tierce_engine *engine, const struct tierce_request *request)
{
    tierce__requests_note(engine->requests, request);
}

static void computed(struct tierce_view *view, uint64_t tokens, uint64_t ns)
{
    tierce__prefill_note(&view->prefill, tokens, ns);
}

static int64_t clear(struct tierce_engine *engine, uint32_t tiers, const struct tierce_view *view)
{
    TIERCE_DASSERT(view == NULL || view->engine == engine);
    return tierce__engine_clear(engine, tiers, view != NULL ? &view->key : NULL);
}

/* ---- counting ---- */

static void add_disk_stats(struct tierce__level *level, struct tierce_engine_stats *out)
{
    TIERCE_DASSERT(level->origin == TIERCE_ORIGIN_DISK);
    struct tierce__tier_stats s;
    tierce__storage_stats(level, &s);
    out->disk_chunks_now = (int64_t)s.chunks;
    out->disk_durable_chunks_now = (int64_t)s.durable_chunks;
    out->disk_bytes_now = (int64_t)s.used_bytes;
    out->disk_cap_bytes = (int64_t)s.cap_bytes;
    out->disk_queued_bytes_now = (int64_t)s.queued_bytes;
    out->disk_evictions = (int64_t)s.evicted_chunks;
    out->disk_dropped_puts = (int64_t)s.dropped_puts;
    out->disk_written_bytes_today = (int64_t)s.written_bytes_today;
    out->disk_in_service_now = tierce__health_serves(&level->health);
    out->disk_full_now = s.full || s.rejects;
}

static void add_remote_stats(struct tierce__level *level, struct tierce_engine_stats *out)
{
    TIERCE_DASSERT(level->origin == TIERCE_ORIGIN_REMOTE);
    struct tierce__tier_stats s;
    struct tierce__unsent_report unsent;
    tierce__unsent_report(level, &unsent);
    tierce__storage_stats(level, &s);
    out->remote_stored_chunks += (int64_t)s.put_chunks;
    out->remote_stored_bytes += (int64_t)s.put_bytes;
    out->remote_queued_bytes_now += (int64_t)s.queued_bytes;
    out->remote_had_chunks += (int64_t)s.had_chunks;
    out->remote_dropped_puts += (int64_t)s.dropped_puts;
    out->remote_unsent_chunks += (int64_t)unsent.chunks;
    out->remote_unsent_now += (int64_t)unsent.waiting;
    out->remote_sent_late_chunks += (int64_t)unsent.sent_late;
    out->remote_lost_chunks += (int64_t)unsent.lost;
    out->remote_errors += (int64_t)s.errors;
    out->remotes_now++;
    out->remotes_in_service_now += tierce__health_serves(&level->health);
    TIERCE_DASSERT(out->remotes_in_service_now <= out->remotes_now);
}

static void add_stats(struct tierce_engine *engine, struct tierce_engine_stats *out)
{
    TIERCE_DASSERT(engine->level_count > 0);
    struct tierce__tier_stats memory;
    engine->levels[0].tier->ops->stats(engine->levels[0].tier, &memory);
    struct tierce__pool_stats pool;
    tierce__pool_stats(engine->pool, &pool);
    TIERCE_DASSERT(pool.asked_bytes <= pool.used_bytes && pool.used_bytes <= pool.cap_bytes);
    out->memory_chunks_now = (int64_t)memory.chunks;
    out->memory_evictions = (int64_t)memory.evicted_chunks;
    out->memory_bytes_now = (int64_t)pool.used_bytes;
    out->memory_cap_bytes = (int64_t)pool.cap_bytes;
    out->leases_now = (int64_t)tierce__pool_leases(engine->pool);
    for (size_t i = 1; i < engine->level_count; i++) {
        if (engine->levels[i].origin == TIERCE_ORIGIN_DISK)
            add_disk_stats(&engine->levels[i], out);
        else if (engine->levels[i].origin == TIERCE_ORIGIN_REMOTE)
            add_remote_stats(&engine->levels[i], out);
    }
    out->tombstones_now = (int64_t)tierce__tombstones_count(atomic_load(&engine->tombstones));
    out->memory_only_now = engine->settings.has_disk && !out->disk_in_service_now;
    tierce__lock_take(&engine->lock);
    out->pinned_bytes_now = (int64_t)engine->pinned_bytes;
    out->sessions_now = (int64_t)engine->session_count;
    tierce__lock_drop(&engine->lock);
    out->ahead_bytes_per_second_now = (int64_t)tierce__ahead_rate(engine->ahead);
    out->prefetch_bytes_now = (int64_t)tierce__semaphore_used(&engine->prefetches.memory);
}

/* ---- tiers by name ---- */

static bool is_coded_memory(const struct tierce__level *level)
{
    return level == &level->engine->levels[1] && level->origin == TIERCE_ORIGIN_MEMORY;
}

static bool has_coded_memory(const struct tierce_engine *engine)
{
    return engine->level_count > 1 && is_coded_memory(&engine->levels[1]);
}

uint32_t tierce__levels_coded_memory(const struct tierce_engine *engine)
{
    return has_coded_memory(engine) ? 1u << 1 : 0;
}

/* Reads no count of the levels: the threads of a tier ask while others are opened and closed. */
bool tierce__level_is_told(const struct tierce__level *level)
{
    return !is_coded_memory(level) || !level->engine->settings.has_disk;
}

size_t tierce__level_number(const struct tierce_engine *engine, size_t level)
{
    bool swaps = has_coded_memory(engine) && engine->level_count > 2 &&
                 engine->levels[2].origin == TIERCE_ORIGIN_DISK;
    return swaps && (level == 1 || level == 2) ? 3 - level : level;
}

uint32_t tierce__levels_of(const struct tierce_engine *engine, uint32_t tiers)
{
    uint32_t levels = 0;
    for (size_t level = 0; level < engine->level_count; level++) {
        if (tiers == 0 || (tiers & 1u << engine->levels[level].origin) != 0)
            levels |= 1u << level;
    }
    return levels;
}

uint32_t tierce__levels_local(const struct tierce_engine *engine)
{
    uint32_t levels = 0;
    for (size_t level = 0; level < engine->level_count; level++) {
        if (!engine->levels[level].health.shared)
            levels |= 1u << level;
    }
    TIERCE_DASSERT((levels & (levels + 1)) == 0);
    return levels;
}

const struct tierce__lender tierce__own_tiers = {
    .open = open_tiers,
    .serve = open_control,
    .close = close_tiers,
    .stats = add_stats,
    .flush = tierce__own_flush,
    .clear = clear,
    .prepare = prepare,
    .view_open = open_view,
    .view_close = tierce__own_view_close,
    .computed = computed,
    .unpin = unpin,
    .hint = tierce__own_hint,
    .note_request = note_request,
    .lookup = tierce__own_lookup,
    .durable = tierce__own_durable,
    .store_begin = reserve_space,
    .store_end = end_space,
    .store_give_up = give_up_space,
    .load_begin = lend,
    .prefetch_begin = tierce__own_prefetch_begin,
    .prefetch_wait = tierce__own_prefetch_wait,
    .prefetch_end = tierce__own_prefetch_end,
};
