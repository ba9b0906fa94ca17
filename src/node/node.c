/* SPDX-License-Identifier: Apache-2.0 */
#include "node/node.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "base/log/log.h"
#include "engine/node_client/shared.h"
#include "engine/objects/smalls.h"
#include "engine/objects/tombstones.h"
#include "net/notify.h"
#include "node/door.h"
#include "node/native/native_server.h"
#include "node/node_private.h"
#include "node/part/node_mover.h"
#include "node/part/node_pool.h"

#include <errno.h>
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <tierce/operate.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { WORKER_QUEUE_MAX = 65536, LEASE_TICK_MS = 250, DRAIN_TICK_MS = 20 };
enum { PROBE_MS = 10000 /* without a watchdog */, PROBE_NAMES = 256 };

/* A node with the fields that only this file needs. */
struct node_whole {
    struct tierce__node node;
    struct tierce__door *resp, *lm;
    struct tierce__node_ports ports;
    struct tierce__server *server;
    struct tierce__deadline lease_tick;
    struct tierce__task begin_ticking;
};

static struct node_whole *whole_of(struct tierce__node *node)
{
    return TIERCE__CONTAINER_OF(node, struct node_whole, node);
}

/* ---- values ---------------------------------------------------------------------------------- */

uint64_t tierce__node_deadline(const struct tierce__node *node)
{
    return tierce__deadline_in_ms(node->find_ms);
}

/* Half of the time that is left. */
static uint64_t half_way_to(uint64_t deadline_ns)
{
    uint64_t now_ns = tierce__now_ns();
    return deadline_ns > now_ns ? now_ns + (deadline_ns - now_ns) / 2 : deadline_ns;
}

/* Names with the same 128 bits wait for each other and do no harm. */
int tierce__node_name_begin(struct tierce__node *node, struct tierce__object_name **out,
                            const void *name, size_t name_bytes, uint64_t deadline_ns)
{
    struct tierce__key key = {.shard = {0, 1, 0, 1}};
    XXH128_hash_t hash = XXH3_128bits(name, name_bytes);
    memcpy(key.hash, &hash, sizeof(hash));
    struct tierce__object_names *names = &node->names[hash.high64 % TIERCE__NODE_NAME_TABLES];
    int rc = tierce__object_name_begin(out, names, &key, half_way_to(deadline_ns));
    return rc == TIERCE_E_DEADLINE ? TIERCE__NODE_NAME_IN_USE : rc;
}

void tierce__node_error(char text[TIERCE__NODE_ERROR_BYTES], const struct tierce__node *node,
                        int rc)
{
    static const char late[] = "deadline exceeded while waiting for";
    if (rc == TIERCE__NODE_NAME_IN_USE)
        snprintf(text, TIERCE__NODE_ERROR_BYTES,
                 "%s another command that changes the same key (timeout.load: %u ms)", late,
                 node->find_ms);
    else if (rc == TIERCE__NODE_NO_WORKER)
        snprintf(text, TIERCE__NODE_ERROR_BYTES,
                 "%s a free worker, or too many commands wait for one (timeout.load: %u ms, "
                 "serve.workers: %u)",
                 late, node->find_ms, node->config->workers);
    else if (rc == TIERCE_E_DEADLINE)
        snprintf(text, TIERCE__NODE_ERROR_BYTES,
                 "%s a disk or a remote store (timeout.load: %u ms, or the store's own timeout)",
                 late, node->find_ms);
    else if (rc == TIERCE__TOMBSTONES_FULL)
        snprintf(text, TIERCE__NODE_ERROR_BYTES,
                 "the limit of %u tombstones is reached: return the remote stores to service, "
                 "permit deletions in them, or remove them from remote.urls",
                 TIERCE__TOMBSTONES_MAX);
    else if (rc == TIERCE__VALUE_IS_KEPT)
        snprintf(text, TIERCE__NODE_ERROR_BYTES,
                 "a remote store that never deletes has a value of this name: set disk.path, "
                 "where the node can record that it is old, or delete it in the store");
    else
        snprintf(text, TIERCE__NODE_ERROR_BYTES, "%s", tierce_strerror(rc));
}

static void on_found(struct tierce__object_find *find)
{
    sem_post(find->arg);
}

int tierce__node_find(struct tierce__objects *space, struct tierce__object **out, const void *name,
                      size_t name_bytes, uint64_t deadline_ns)
{
    sem_t done;
    struct tierce__object_find find = {.name = name,
                                       .name_bytes = name_bytes,
                                       .deadline_ns = half_way_to(deadline_ns),
                                       .done = on_found,
                                       .arg = &done};
    sem_init(&done, 0, 0);
    int rc = tierce__object_find(space, &find);
    if (rc == -EINPROGRESS) {
        while (sem_wait(&done) != 0 && errno == EINTR) {
        }
        rc = find.status;
    }
    sem_destroy(&done);
    if (rc == 0)
        *out = find.object;
    return rc;
}

static bool is_allowed(const struct tierce__node *node, const struct tierce__object_what *what)
{
    return what->value_bytes <= node->config->value_max && what->name_bytes > 0 &&
           what->name_bytes <= TIERCE__OBJECT_NAME_MAX;
}

int tierce__node_receive(struct tierce__node *node, struct tierce__upload **out,
                         struct tierce__objects *space, const struct tierce__object_what *what)
{
    return is_allowed(node, what) ? tierce__upload_begin(&node->uploads, out, space, what)
                                  : TIERCE_E_LIMIT;
}

int tierce__node_create(struct tierce__node *node, struct tierce__object **out,
                        struct tierce__objects *space, const struct tierce__object_what *what)
{
    return is_allowed(node, what) ? tierce__upload_create(&node->uploads, out, space, what)
                                  : TIERCE_E_LIMIT;
}

/* A probe of the data path. Unless it returned 0, it was at `step`. */
struct probe {
    struct tierce__node *node;
    uint32_t ms; /* for all its waits together */
    uint64_t deadline_ns;
    const char *step;
};

/* A third of the time that systemd's watchdog gives: the interval between two probes is half of it.
 */
static uint32_t probe_ms(void)
{
    uint64_t interval_ms = tierce__notify_watchdog_ms();
    uint64_t ms = interval_ms > 0 ? interval_ms * 2 / 3 : PROBE_MS;
    return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

/* A step that has had an answer in time; a store is not asked when there is no time left. */
static int end_step(const struct probe *probe, int rc)
{
    return rc == 0 && tierce__now_ns() >= probe->deadline_ns ? TIERCE_E_DEADLINE : rc;
}

/* Stores, finds and removes a value. Returns 0, an error, or 1 if what was found differs. */
static int probe_with(struct probe *probe, const char *name, size_t name_bytes,
                      uint64_t value_bytes)
{
    struct tierce__objects *space = tierce__access_space(probe->node->access, TIERCE__SPACE_PROBE);
    struct tierce__object *object = NULL;
    bool is_same, was = false;
    struct tierce__object_what what = {
        .name = name, .name_bytes = name_bytes, .value_bytes = value_bytes};
    TIERCE_ASSERT(value_bytes >= name_bytes && probe->deadline_ns > 0);
    probe->step = "storing";
    int rc = tierce__object_create(space, &object, &what);
    if (rc < 0)
        return rc;
    memset(object->value, 0, (size_t)value_bytes);
    memcpy(object->value + value_bytes - name_bytes, name, name_bytes);
    object->deadline_ns = probe->deadline_ns;
    rc = end_step(probe, tierce__object_publish(object));
    if (rc < 0)
        return rc;
    probe->step = "finding";
    rc = tierce__node_find(space, &object, name, name_bytes, probe->deadline_ns);
    if (rc < 0)
        return rc;
    is_same = object->what.value_bytes == value_bytes &&
              tierce__object_verified(object, value_bytes) &&
              memcmp(object->value + value_bytes - name_bytes, name, name_bytes) == 0;
    tierce__object_release(object);
    rc = end_step(probe, 0);
    if (rc < 0)
        return rc;
    probe->step = "removing";
    rc = end_step(probe,
                  tierce__object_remove_by(space, name, name_bytes, probe->deadline_ns, &was));
    return rc < 0 ? rc : !is_same || !was;
}

/* The reason why the probe has failed; rc: what probe_with has returned. */
static void probe_error(char text[TIERCE__NODE_ERROR_BYTES], const struct probe *probe, int rc)
{
    TIERCE_ASSERT(rc != 0 && probe->step != NULL);
    if (rc > 0)
        snprintf(text, TIERCE__NODE_ERROR_BYTES,
                 "the value that was read differs from the stored value");
    else if (rc == TIERCE_E_DEADLINE && tierce__now_ns() >= probe->deadline_ns)
        snprintf(text, TIERCE__NODE_ERROR_BYTES,
                 "no answer within %u ms: waited for a disk or a remote store while %s the value",
                 probe->ms, probe->step);
    else
        tierce__node_error(text, probe->node, rc);
}

/* Adds the likely cause of a failed probe: a value that cannot be removed from a remote store is
 * not replaced (docs/using/node.md). */
static void add_remotes(struct tierce__node *node, char why[TIERCE__NODE_WHY_BYTES])
{
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    tierce_engine_stats(node->engine, &stats);
    size_t used = strlen(why);
    TIERCE_ASSERT(used < TIERCE__NODE_WHY_BYTES);
    if (stats.remotes_in_service_now < stats.remotes_now)
        snprintf(why + used, TIERCE__NODE_WHY_BYTES - used,
                 "; remote stores out of service: %" PRId64 " of %" PRId64
                 " (event tier_out_of_service in the log)",
                 stats.remotes_now - stats.remotes_in_service_now, stats.remotes_now);
}

/* At the limit of tombstones a probe works whose names have some already; other names cannot be
 * changed. */
static int check_limit(struct tierce__node *node, char why[TIERCE__NODE_WHY_BYTES])
{
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    char text[TIERCE__NODE_ERROR_BYTES];
    tierce_engine_stats(node->engine, &stats);
    if (stats.tombstones_now < TIERCE__TOMBSTONES_MAX)
        return 0;
    tierce__node_error(text, node, TIERCE__TOMBSTONES_FULL);
    snprintf(why, TIERCE__NODE_WHY_BYTES, "%s", text);
    return TIERCE__TOMBSTONES_FULL;
}

bool tierce__node_is_ready(struct tierce__node *node, char why[TIERCE__NODE_WHY_BYTES])
{
    static _Atomic uint64_t probes;
    static const struct {
        uint64_t bytes;
        const char *text;
    } sizes[] = {{64, "a small value"}, {TIERCE__SMALL_VALUE_MAX + 1, "a value above 64 KiB"}};
    char name[64], text[TIERCE__NODE_ERROR_BYTES];
    struct probe probe = {.node = node, .ms = probe_ms()};
    probe.deadline_ns = tierce__deadline_in_ms(probe.ms);
    int rc = 0;
    why[0] = '\0';
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes) && rc == 0; i++) {
        /* Concurrent probes must not remove each other's value. Few names: each may get a
         * tombstone. */
        int bytes = snprintf(name, sizeof(name), "probe %ld %llu", (long)getpid(),
                             (unsigned long long)(atomic_fetch_add(&probes, 1) % PROBE_NAMES));
        TIERCE_ASSERT(bytes > 0 && (size_t)bytes < sizeof(name));
        rc = probe_with(&probe, name, (size_t)bytes, sizes[i].bytes);
        if (rc != 0) {
            probe_error(text, &probe, rc);
            snprintf(why, TIERCE__NODE_WHY_BYTES, "a probe of the data path with %s failed: %s",
                     sizes[i].text, text);
        }
    }
    if (rc == 0)
        rc = check_limit(node, why);
    if (rc < 0)
        add_remotes(node, why);
    return rc == 0;
}

bool tierce__node_has_disk(struct tierce__node *node, char why[TIERCE__NODE_WHY_BYTES])
{
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    const char *path = node->config->disk_path;
    why[0] = '\0';
    if (path[0] == '\0')
        return true;
    tierce_engine_stats(node->engine, &stats);
    if (stats.disk_open_status != 0)
        snprintf(why, TIERCE__NODE_WHY_BYTES, "disk.path %.160s cannot be used: %.255s", path,
                 tierce__engine_disk_error(node->engine));
    else if (stats.disk_in_service_now == 0)
        snprintf(why, TIERCE__NODE_WHY_BYTES, "disk.path %.160s is out of service after errors",
                 path);
    return why[0] == '\0';
}

/* ---- the first loop's clock ------------------------------------------------------------------ */

static void tick(struct tierce__deadline *deadline)
{
    struct node_whole *whole = TIERCE__CONTAINER_OF(deadline, struct node_whole, lease_tick);
    TIERCE_ASSERT(whole->node.loop_count > 0);
    tierce__short_leases_expire(whole->node.leases, tierce__now_ns());
    if (tierce__deadline_set(&whole->node.loops[0]->base.deadlines, deadline,
                             tierce__deadline_in_ms(LEASE_TICK_MS)) != 0)
        tierce__log(TIERCE_LOG_ERROR, "node_no_clock", "a value kept for a moment stays");
}

static void begin_ticking(struct tierce__task *task)
{
    struct node_whole *whole = TIERCE__CONTAINER_OF(task, struct node_whole, begin_ticking);
    whole->lease_tick.expired = tick;
    tick(&whole->lease_tick);
}

/* ---- start ----------------------------------------------------------------------------------- */

static int start_loops(struct node_whole *whole)
{
    struct tierce__node *node = &whole->node;
    size_t count = node->config->loops > 0 ? node->config->loops : tierce__processors();
    TIERCE_ASSERT(node->loop_count == 0);
    node->loops = tierce__calloc(count, sizeof(struct tierce__poll_loop *));
    if (node->loops == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        int rc = tierce__poll_loop_start(&node->loops[i]);
        if (rc < 0)
            return rc;
        node->loop_count++;
    }
    TIERCE_ASSERT(node->loop_count == count);
    whole->begin_ticking.run = begin_ticking;
    tierce__loop_post(&node->loops[0]->base, &whole->begin_ticking);
    return 0;
}

/* *out NULL: there is no TLS. */
static int read_certificates(struct tierce__tls_context **out,
                             const struct tierce__node_config *config, char why[256])
{
    struct tierce__tls files = {.certificate = config->tls_certificate,
                                .key = config->tls_key,
                                .client_ca = config->tls_client_ca,
                                .is_bare = true};
    if (files.certificate[0] == '\0')
        return 0;
    if (files.client_ca[0] == '\0')
        files.client_ca = NULL;
    return tierce__tls_server_context(out, &files, why);
}

/* An engine continues on memory if it cannot use its folder; a node only with disk.optional. */
static int check_disk(struct tierce__node *node, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    char reason[TIERCE__NODE_WHY_BYTES];
    if (tierce__node_has_disk(node, reason))
        return 0;
    if (node->config->disk_is_optional) {
        tierce__log(TIERCE_LOG_WARN, "node_memory_only", "reason=\"%s\"", reason);
        return 0;
    }
    tierce_engine_stats(node->engine, &stats);
    snprintf(why, TIERCE_CONFIG_ERROR_BYTES,
             "%s; with disk.optional: true the node starts on memory only", reason);
    return stats.disk_open_status != 0 ? (int)stats.disk_open_status : -EIO;
}

static int cannot_start(int rc, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    const char *hint = rc == -EAGAIN                    ? "; raise the limit on threads (ulimit -u)"
                       : rc == -EMFILE || rc == -ENFILE ? "; raise the limit on files (ulimit -n)"
                                                        : "";
    snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "cannot start the threads: %s%s", tierce_strerror(rc),
             hint);
    return rc;
}

static void log_without_effect(enum tierce__engine_param param, const char *reason)
{
    tierce__log(TIERCE_LOG_WARN, "setting_without_effect", "setting=%s reason=\"%s\"",
                tierce__engine_params()[param].name, reason);
}

/* Settings of engines that load KV into their own memory. A vLLM that has started this node passes
 * its own settings, of which it uses the first three itself. The engine logs the last one if there
 * is no disk. */
static void log_settings_of_engines(const struct tierce__node_config *config)
{
    const struct tierce__config *values = config->values;
    bool is_of_vllm = config->users_path != NULL;
    if (!is_of_vllm && strcmp(tierce__config_text(values, TIERCE__ENGINE_CODEC_LOSSY), "none") != 0)
        log_without_effect(TIERCE__ENGINE_CODEC_LOSSY,
                           "the clients of a node choose; set it in vLLM");
    if (!is_of_vllm && tierce__config_bool(values, TIERCE__ENGINE_BLEND_ENABLED))
        log_without_effect(TIERCE__ENGINE_BLEND_ENABLED,
                           "the clients of a node blend; set it in vLLM");
    if (!is_of_vllm && tierce__config_text(values, TIERCE__ENGINE_PLUGINS_START)[0] != '\0')
        log_without_effect(TIERCE__ENGINE_PLUGINS_START,
                           "a node starts no programs; set it in vLLM, or start them yourself");
    bool has_disk = tierce__config_text(values, TIERCE__ENGINE_DISK_PATH)[0] != '\0';
    if (has_disk && tierce__config_number(values, TIERCE__ENGINE_DISK_GPU_DIRECT) > 0)
        log_without_effect(TIERCE__ENGINE_DISK_GPU_DIRECT,
                           "only engines without a node read from disk into a GPU");
}

static int open_parts(struct node_whole *whole, const struct tierce__node_config *config,
                      char why[TIERCE_CONFIG_ERROR_BYTES])
{
    struct tierce__node *node = &whole->node;
    log_settings_of_engines(config);
    tierce__engine_config_require_disk(config->engine, !config->disk_is_optional);
    int rc = tierce_engine_open(&node->engine, config->engine, why);
    if (rc == 0)
        rc = tierce_engine_set_role(node->engine, "node");
    if (rc == 0)
        rc = check_disk(node, why);
    if (rc < 0)
        return rc;
    rc = tierce__access_create(&node->access, node->engine, config->token_file, why);
    if (rc < 0)
        return rc;
    rc = read_certificates(&node->tls, config, why);
    if (rc < 0)
        return rc;
    if (config->connections_per_address > 0)
        rc = tierce__addresses_create(&node->addresses, config->connections_per_address);
    if (rc == 0)
        rc = tierce__short_leases_create(&node->leases, config->grace_ms, config->grace_max);
    if (rc == 0)
        rc = tierce__workers_create(&node->workers, config->workers, WORKER_QUEUE_MAX);
    if (rc == 0)
        rc = start_loops(whole);
    return rc < 0 ? cannot_start(rc, why) : 0;
}

static int listen_to(struct node_whole *whole, const struct tierce__node_config *config,
                     char why[TIERCE_CONFIG_ERROR_BYTES])
{
    struct tierce__node *node = &whole->node;
    TIERCE_ASSERT(node->loop_count > 0);
    int rc = 0;
    whole->ports.resp = config->resp_port;
    whole->ports.lm = config->lm_port;
    if (config->has_resp)
        rc = tierce__door_open(&whole->resp, node, &tierce__resp_protocol, config->host,
                               &whole->ports.resp, why);
    if (rc == 0 && config->has_lm)
        rc = tierce__door_open(&whole->lm, node, &tierce__lm_protocol, config->host,
                               &whole->ports.lm, why);
    if (rc == 0 && config->native_path[0] != '\0')
        rc = tierce__native_start(&node->native, node, config->native_path, why);
    node->resp_port = whole->resp != NULL ? whole->ports.resp : 0;
    if (rc == 0)
        rc = tierce__node_pool_start(&node->pool, node, why);
    if (rc == 0)
        rc = tierce__node_mover_start(&node->mover, config, why);
    if (rc == 0)
        rc = tierce__node_http_start(&whole->server, node, config->http_port, why);
    if (rc == 0 && node->pool != NULL)
        whole->ports.pool = tierce__node_pool_port(node->pool);
    if (rc == 0)
        whole->ports.http = tierce__server_port(whole->server, 0);
    return rc;
}

int tierce__node_start(struct tierce__node **out, const struct tierce__node_config *config,
                       char why[TIERCE_CONFIG_ERROR_BYTES])
{
    struct node_whole *whole = tierce__calloc(1, sizeof(*whole));
    if (whole == NULL) {
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "no memory");
        return -ENOMEM;
    }
    struct tierce__node *node = &whole->node;
    node->config = config;
    node->limits = (struct tierce__connection_limits){.idle_ms = config->idle_ms,
                                                      .request_ms = config->request_ms};
    node->find_ms = config->find_ms;
    node->may_wait = config->may_wait;
    node->started_ns = tierce__now_ns();
    tierce__uploads_init(&node->uploads, config->incoming_max);
    for (size_t i = 0; i < TIERCE__NODE_NAME_TABLES; i++)
        tierce__object_names_init(&node->names[i]);
    tierce__lock_init(&node->clients_lock, TIERCE__LOCK_NODE_CLIENTS);
    tierce__list_init(&node->clients);
    int rc = open_parts(whole, config, why);
    if (rc == 0)
        rc = listen_to(whole, config, why);
    if (rc < 0)
        tierce__node_stop(node);
    else
        *out = node;
    return rc;
}

int tierce__node_reload(struct tierce__node *node, char why[256])
{
    struct tierce__tokens *tokens = NULL;
    struct tierce__tls_context *tls = NULL;
    int rc = tierce__access_read(&tokens, node->access, why);
    if (rc == 0)
        rc = read_certificates(&tls, node->config, why);
    if (rc == 0)
        tokens = tierce__access_exchange(node->access, tokens);
    if (rc == 0 && tls != NULL)
        tierce__tls_context_exchange(node->tls, tls);
    tierce__tokens_destroy(tokens);
    tierce__tls_context_destroy(tls);
    if (rc == 0)
        tierce__log(TIERCE_LOG_INFO, "node_read_again", "what=\"tokens and certificates\"");
    else
        tierce__log(TIERCE_LOG_ERROR, "node_cannot_read_again", "err=\"%s\"", why);
    return rc;
}

void tierce__node_ports(const struct tierce__node *node, struct tierce__node_ports *out)
{
    const struct node_whole *whole = (const struct node_whole *)node;
    *out = whole->ports;
    if (whole->resp == NULL)
        out->resp = 0;
    if (whole->lm == NULL)
        out->lm = 0;
}

/* ---- stop ------------------------------------------------------------------------------------ */

struct node_ending {
    struct tierce__poll_loop *loop;
    bool at_once;
};

static void end_connections(void *arg)
{
    const struct node_ending *ending = arg;
    tierce__connections_end(ending->loop, ending->at_once);
}

/* Returns the number of remaining connections; closing takes a moment. */
static uint32_t end_all(struct tierce__node *node, bool at_once)
{
    uint32_t left = 0;
    for (size_t i = 0; i < node->loop_count; i++) {
        struct node_ending ending = {node->loops[i], at_once};
        tierce__loop_call(&node->loops[i]->base, end_connections, &ending);
        left += atomic_load_explicit(&node->loops[i]->member_count, memory_order_acquire);
    }
    return left;
}

/* Every wait for the engine has a deadline, so this ends. */
static void drain(struct tierce__node *node, uint64_t until)
{
    struct timespec pause = {.tv_nsec = DRAIN_TICK_MS * (long)TIERCE__MS_NS};
    atomic_store_explicit(&node->is_draining, true, memory_order_relaxed);
    while (end_all(node, tierce__now_ns() >= until) > 0)
        nanosleep(&pause, NULL);
}

static uint32_t ms_until(uint64_t until)
{
    uint64_t now_ns = tierce__now_ns();
    return until > now_ns ? (uint32_t)((until - now_ns) / TIERCE__MS_NS) : 0;
}

void tierce__node_stop(struct tierce__node *node)
{
    if (node == NULL)
        return;
    struct node_whole *whole = whole_of(node);
    /* One deadline for all, so that slow clients of several kinds do not add up. */
    uint64_t until = tierce__deadline_in_ms(node->config->drain_ms);
    tierce__node_pool_leave(node->pool);
    tierce__door_close(whole->resp);
    tierce__door_close(whole->lm);
    tierce__native_stop(node->native, until);
    drain(node, until);
    TIERCE_ASSERT(atomic_load_explicit(&node->connections_now, memory_order_relaxed) == 0);
    if (whole->server != NULL)
        tierce__server_stop(whole->server, ms_until(until));
    tierce__node_mover_stop(node->mover, until);
    tierce__node_pool_stop(node->pool, until);
    for (size_t i = 0; i < node->loop_count; i++)
        tierce__poll_loop_stop(node->loops[i]);
    tierce__free(node->loops);
    tierce__workers_destroy(node->workers);
    tierce__short_leases_destroy(node->leases);
    if (node->addresses != NULL)
        tierce__addresses_destroy(node->addresses);
    tierce__access_destroy(node->access);
    tierce__tls_context_destroy(node->tls);
    tierce_engine_close(node->engine);
    tierce__uploads_fini(&node->uploads);
    for (size_t i = 0; i < TIERCE__NODE_NAME_TABLES; i++)
        tierce__object_names_fini(&node->names[i]);
    tierce__lock_fini(&node->clients_lock);
    tierce__free(whole);
}
