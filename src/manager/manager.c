/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/manager.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/file.h"
#include "base/json/json_write.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "base/log/log.h"
#include "manager/api/admin_http.h"
#include "manager/api/api_private.h"
#include "manager/manager_config.h"
#include "base/file_lock.h"
#include "manager/backup/restore.h"
#include "manager/manager_private.h"
#include "manager/observe/audit.h"
#include "manager/observe/manager_metrics.h"
#include "manager/observe/page.h"
#include "manager/pilot/manager_autopilot.h"
#include "manager/pilot/ghost_feed.h"
#include "manager/registry/startup.h"
#include "manager/storage/unmanaged.h"
#include "net/server/serve.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { QUOTA_GROUPS_MAX = 256 };
enum { LISTENERS_MAX = 5, ROUTES_MAX = TIERCE__RPC_COUNT + TIERCE__ADMIN_HTTP_ROUTES_MAX };

/* The parts that only this file uses. */
struct manager_whole {
    struct tierce__manager manager;
    struct tierce__listener listeners[LISTENERS_MAX];
    struct tierce__route routes[LISTENERS_MAX][ROUTES_MAX];
    size_t listener_count;
    size_t meta_grpc, meta_http, admin_grpc, admin_http, debug_http; /* indexes; SIZE_MAX: none */
    char *startup;                   /* JSON, or NULL: there is none */
    struct tierce__restore *restore; /* or NULL */
    char *state_folder;              /* the folder of the built-in storage of `startup`; or NULL */
    struct tierce__line_log *service_log, *metrics_log;
    int log_lock; /* keeps other managers out of the folder of the logs; -1: there are none */
    bool logs_to_console;
    uint32_t drain_ms, metrics_interval_ms;
    struct tierce__lock lock; /* TICKER */
    struct tierce__cond wake;
    bool is_ending, has_ticker, has_elector;
    pthread_t ticker;
};

static struct manager_whole *whole_of(struct tierce__manager *manager)
{
    return TIERCE__CONTAINER_OF(manager, struct manager_whole, manager);
}

int64_t tierce__manager_now_us(const struct tierce__manager *manager)
{
    struct timespec now;
    (void)manager;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

bool tierce__manager_leads(const struct tierce__manager *manager)
{
    return atomic_load_explicit(&manager->state, memory_order_acquire) == TIERCE__MANAGER_LEADS &&
           tierce__elector_leads(manager->elector);
}

/* ---- logs ------------------------------------------------------------------------------------ */

static void write_log(void *arg, enum tierce_log_level level, const char *event, const char *detail)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARN", "ERROR"};
    struct manager_whole *whole = arg;
    struct tierce__line line = {0};
    char stamp[TIERCE__LOG_STAMP_BYTES];
    tierce__line_put(&line, tierce__log_stamp(stamp));
    tierce__line_put(&line, " ");
    TIERCE_ASSERT((size_t)level < sizeof(names) / sizeof(names[0]));
    tierce__line_put(&line, names[level]);
    tierce__line_put(&line, " ");
    tierce__line_put(&line, event);
    tierce__line_put(&line, " ");
    tierce__line_put(&line, detail);
    bool is_shown = whole->logs_to_console || level == TIERCE_LOG_ERROR;
    if (is_shown && !line.failed)
        fprintf(stderr, "%.*s\n", (int)line.bytes, line.text);
    tierce__line_end(&line, whole->service_log);
}

void tierce__manager_set_log_level(struct tierce__manager *manager, enum tierce_log_level level)
{
    tierce_set_log_fn(write_log, whole_of(manager), level);
}

static int open_log(struct tierce__line_log **out, const char *folder, const char *name,
                    char why[256])
{
    char *path = folder[0] != '\0' ? tierce__join_path(folder, name) : NULL;
    int rc = tierce__line_log_open(
        out,
        &(struct tierce__line_log_opts){.size = sizeof(struct tierce__line_log_opts),
                                        .path = path,
                                        .failure = "manager.log_lost"},
        why);
    tierce__free(path);
    return rc;
}

/* Creates and locks the folder. A manager that is being replaced may still end. */
static int take_log_folder(struct manager_whole *whole, const char *folder, char why[256])
{
    TIERCE_ASSERT(whole->log_lock < 0);
    enum { WAIT_MS = 2000 };
    const char *below = folder[0] == '/' ? "" : " below the working directory";
    if (folder[0] == '\0')
        return 0;
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
        int rc = -errno;
        snprintf(why, 256,
                 "log.folder: cannot create the folder %.100s%s: %s; set log.folder to a folder "
                 "that this user can write",
                 folder, below, tierce_strerror(rc));
        return rc;
    }
    char *path = tierce__join_path(folder, "kv_cache_manager.lock");
    int rc = path != NULL ? tierce__file_lock(path, WAIT_MS) : -ENOMEM;
    tierce__free(path);
    if (rc >= 0)
        whole->log_lock = rc;
    else if (rc == TIERCE_E_LOCKED)
        snprintf(why, 256,
                 "log.folder: another manager writes its logs to %.100s%s; end it, or set "
                 "log.folder to another folder",
                 folder, below);
    else
        snprintf(why, 256,
                 "log.folder: cannot lock the folder %.100s%s: %s; set log.folder to a folder that "
                 "this user can write",
                 folder, below, tierce_strerror(rc));
    return rc < 0 ? rc : 0;
}

static int open_audit(struct manager_whole *whole, const char *folder, char why[256])
{
    char *path = tierce__join_path(folder, "audit.log");
    int rc = path != NULL ? tierce__audit_open(&whole->manager.audit, path, why) : -ENOMEM;
    tierce__free(path);
    return rc;
}

static int open_logs(struct manager_whole *whole, const struct tierce__manager_config *config,
                     char why[256])
{
    const char *folder = config->log_folder;
    int rc = take_log_folder(whole, folder, why);
    if (rc < 0)
        return rc;
    whole->logs_to_console = config->logs_to_console;
    rc = open_log(&whole->service_log, folder, "kv_cache_manager.log", why);
    if (rc == 0)
        rc = open_log(&whole->manager.events, folder, "event_publisher.log", why);
    if (rc == 0 && config->logs_accesses && folder[0] != '\0')
        rc = open_log(&whole->manager.access_log, folder, "access.log", why);
    if (rc == 0 && config->logs_audit && folder[0] != '\0')
        rc = open_audit(whole, folder, why);
    if (rc == 0 && config->logs_metrics && folder[0] != '\0')
        rc = open_log(&whole->metrics_log, folder, "metrics.log", why);
    if (rc == 0)
        tierce_set_log_fn(write_log, whole, config->log_level);
    return rc;
}

static void close_logs(struct manager_whole *whole)
{
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    tierce__line_log_close(whole->manager.events);
    tierce__line_log_close(whole->manager.access_log);
    tierce__audit_close(whole->manager.audit);
    tierce__line_log_close(whole->metrics_log);
    tierce__line_log_close(whole->service_log);
    if (whole->log_lock >= 0)
        close(whole->log_lock);
}

/* ---- leading --------------------------------------------------------------------------------- */

static void set_state(struct tierce__manager *manager, enum tierce__manager_state state)
{
    TIERCE_ASSERT(state == TIERCE__MANAGER_FOLLOWS ||
                  (int)state == atomic_load_explicit(&manager->state, memory_order_relaxed) + 1);
    atomic_store_explicit(&manager->state, (int)state, memory_order_release);
}

static void set_trouble(struct tierce__manager *manager, const char *why)
{
    tierce__lock_take(&manager->trouble_lock);
    snprintf(manager->trouble, sizeof(manager->trouble), "%s", why);
    tierce__lock_drop(&manager->trouble_lock);
}

void tierce__manager_trouble(struct tierce__manager *manager, char out[256])
{
    struct tierce__elector_state state;
    out[0] = '\0';
    tierce__elector_state(manager->elector, &state);
    if (state.leader[0] != '\0' && strcmp(state.leader, manager->node_id) != 0)
        return;
    tierce__lock_take(&manager->trouble_lock);
    snprintf(out, 256, "%s", manager->trouble);
    tierce__lock_drop(&manager->trouble_lock);
    if (out[0] == '\0' && state.trouble[0] != '\0')
        snprintf(out, 256, "%s", state.trouble);
}

/* The elector's thread may run before the thread that starts it continues. */
static void wait_for_elector(struct manager_whole *whole)
{
    tierce__lock_take(&whole->lock);
    while (!whole->has_elector && !whole->is_ending)
        (void)tierce__cond_wait(&whole->wake, &whole->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&whole->lock);
}

/* Creates the folder of the built-in storage. The manager leads even if that fails: the storage is
 * then unwell and reports the reason, and there may be others. */
static void make_state_folder(const struct manager_whole *whole)
{
    const char *folder = whole->state_folder;
    const struct tierce__catalog *catalog = tierce__registry_acquire(whole->manager.registry);
    const struct tierce__storage *storage =
        tierce__catalog_storage(catalog, TIERCE__STARTUP_STORAGE);
    bool is_used = folder != NULL && storage != NULL && storage->type == TIERCE__STORAGE_NFS &&
                   strncmp(storage->root_path, folder, strlen(folder)) == 0;
    int rc = is_used ? tierce__state_folder_make(folder) : 0;
    if (rc < 0)
        tierce__log(
            TIERCE_LOG_ERROR, "manager.state_folder",
            "path=\"%s\" error=\"%s\" consequence=\"storage " TIERCE__STARTUP_STORAGE
            " is unavailable\" hint=\"set STATE_DIRECTORY to a folder that this user may write\"",
            folder, tierce_strerror(rc));
    tierce__registry_release(whole->manager.registry, catalog);
}

static int promote(void *arg, uint64_t fence)
{
    struct manager_whole *whole = arg;
    struct tierce__manager *manager = &whole->manager;
    char why[256] = "";
    wait_for_elector(whole);
    TIERCE_ASSERT(atomic_load_explicit(&manager->state, memory_order_relaxed) ==
                  TIERCE__MANAGER_FOLLOWS);
    set_state(manager, TIERCE__MANAGER_LOADS);
    int rc = tierce__registry_load(manager->registry, fence, why);
    if (rc >= 0 && whole->restore != NULL)
        rc = tierce__restore_begin(whole->restore, manager->registry, manager->locator, why);
    if (rc >= 0)
        rc = tierce__registry_startup(manager->registry, whole->startup, why);
    if (rc >= 0)
        make_state_folder(whole);
    if (rc >= 0)
        rc = tierce__restore_recover(whole->restore, manager->locator, fence, why);
    if (rc < 0) {
        set_state(manager, TIERCE__MANAGER_FOLLOWS);
        tierce__restore_abandon(whole->restore);
        tierce__registry_drop(manager->registry);
        tierce__log(TIERCE_LOG_ERROR, "manager.cannot_lead", "%s", why);
        set_trouble(manager, why[0] != '\0' ? why : tierce_strerror(rc));
        return rc;
    }
    if (tierce__auth_lets_nobody_in(manager->auth))
        tierce__log(TIERCE_LOG_ERROR, "manager.nobody_may_enter",
                    "auth.required is on, and there is neither a token in auth.token_file nor an "
                    "account in the registry");
    const struct tierce__catalog *catalog = tierce__registry_acquire(manager->registry);
    tierce__unmanaged_log(manager->storages, catalog);
    tierce__registry_release(manager->registry, catalog);
    tierce__nodes_lead(manager->nodes);
    tierce__reclaimer_resume(manager->reclaimer);
    set_trouble(manager, "");
    TIERCE_ASSERT(atomic_load_explicit(&manager->state, memory_order_relaxed) ==
                  TIERCE__MANAGER_LOADS);
    set_state(manager, TIERCE__MANAGER_LEADS);
    tierce__log(TIERCE_LOG_INFO, "manager.leads", "fence=%llu", (unsigned long long)fence);
    tierce__events_other(manager->events, tierce__manager_now_us(manager), manager->node_id,
                         "leader_elector", "LeaderPromoted", "");
    return 0;
}

static void demote(void *arg)
{
    struct manager_whole *whole = arg;
    struct tierce__manager *manager = &whole->manager;
    TIERCE_ASSERT(atomic_load_explicit(&manager->state, memory_order_relaxed) ==
                  TIERCE__MANAGER_LEADS);
    set_state(manager, TIERCE__MANAGER_FOLLOWS);
    tierce__scrub_stop(manager->scrub, NULL);
    tierce__scrub_wait(manager->scrub);
    tierce__reclaimer_pause(manager->reclaimer);
    tierce__locator_drop(manager->locator);
    tierce__registry_drop(manager->registry);
    tierce__log(TIERCE_LOG_INFO, "manager.follows", "node=%s", manager->node_id);
    tierce__events_other(manager->events, tierce__manager_now_us(manager), manager->node_id,
                         "leader_elector", "LeaderDemoted", "");
}

static void tell_storage(void *arg, const char *storage, bool is_well, const char *why)
{
    struct manager_whole *whole = arg;
    struct tierce__line fields = {0};
    tierce__log(is_well ? TIERCE_LOG_INFO : TIERCE_LOG_WARN,
                is_well ? "manager.storage_well" : "manager.storage_unwell", "storage=%s %s",
                storage, why);
    tierce__json_write_text(&(struct tierce__json_write){.line = &fields, .comma = true}, "reason",
                            why);
    tierce__line_put_bytes(&fields, "", 1);
    if (!fields.failed)
        tierce__events_other(whole->manager.events, tierce__manager_now_us(&whole->manager),
                             storage, "data_storage", is_well ? "StorageWell" : "StorageUnwell",
                             fields.text);
    tierce__line_clear(&fields);
}

static void tell_reclaim(void *arg, const char *instance_id, const struct tierce__reclaimed *gone,
                         size_t count, int64_t delay_us)
{
    TIERCE_DASSERT(count > 0);
    struct manager_whole *whole = arg;
    tierce__events_reclaim(whole->manager.events, tierce__manager_now_us(&whole->manager),
                           instance_id, gone, count, delay_us);
}

/* ---- the ticker ------------------------------------------------------------------------------ */

static void log_metrics(struct manager_whole *whole)
{
    TIERCE_DASSERT(whole->metrics_log != NULL);
    size_t bytes;
    char *text = tierce__metrics_text(&whole->manager, tierce__grant_of_admins(), &bytes);
    if (text != NULL)
        (void)tierce__line_log_add(whole->metrics_log, text, bytes);
    tierce__free(text);
}

/* Ends timed-out write sessions every tenth of a second; periodically writes metrics and takes
 * samples. */
static void *tick(void *arg)
{
    enum { TICK_MS = 50 };
    struct manager_whole *whole = arg;
    uint64_t metrics_ns = tierce__deadline_in_ms(whole->metrics_interval_ms), sample_ns = 0;
    tierce__lock_take(&whole->lock);
    while (!whole->is_ending) {
        (void)tierce__cond_wait(&whole->wake, &whole->lock, tierce__deadline_in_ms(TICK_MS));
        tierce__lock_drop(&whole->lock);
        (void)tierce__locator_expire(whole->manager.locator);
        if (tierce__manager_leads(&whole->manager))
            tierce__nodes_tick(whole->manager.nodes);
        if (whole->metrics_log != NULL && tierce__now_ns() >= metrics_ns) {
            log_metrics(whole);
            metrics_ns = tierce__deadline_in_ms(whole->metrics_interval_ms);
        }
        if (tierce__now_ns() >= sample_ns) {
            tierce__page_sample(&whole->manager);
            tierce__ghosts_feed(whole->manager.locator);
            sample_ns = tierce__deadline_in_ms(TIERCE__HISTORY_INTERVAL_MS);
        }
        tierce__lock_take(&whole->lock);
    }
    tierce__lock_drop(&whole->lock);
    return NULL;
}

static void end_ticker(struct manager_whole *whole)
{
    if (!whole->has_ticker)
        return;
    tierce__lock_take(&whole->lock);
    TIERCE_ASSERT(!whole->is_ending);
    whole->is_ending = true;
    tierce__cond_broadcast(&whole->wake);
    tierce__lock_drop(&whole->lock);
    pthread_join(whole->ticker, NULL);
}

/* ---- listening ------------------------------------------------------------------------------- */

static size_t add_listener(struct manager_whole *whole, const struct tierce__manager_config *config,
                           const char *name, enum tierce__serve_protocol protocol, uint16_t port,
                           unsigned ports)
{
    TIERCE_ASSERT(ports != 0);
    TIERCE_ASSERT(whole->listener_count < LISTENERS_MAX);
    size_t index = whole->listener_count++;
    struct tierce__route *routes = whole->routes[index];
    size_t count = tierce__api_routes(&whole->manager, protocol, ports, routes);
    if (protocol == TIERCE__SERVE_HTTP) /* no two kinds of calls may share a port */
        count += tierce__admin_http_routes(
            &whole->manager, (enum tierce__rpc_port)__builtin_ctz(ports), routes + count);
    TIERCE_ASSERT(count <= ROUTES_MAX);
    whole->listeners[index] = (struct tierce__listener){
        .protocol = protocol,
        .host = config->host,
        .port = port,
        .name = name,
        .tls = {.certificate = config->tls_certificate[0] != '\0' ? config->tls_certificate : NULL,
                .key = config->tls_key[0] != '\0' ? config->tls_key : NULL,
                .client_ca = config->tls_client_ca[0] != '\0' ? config->tls_client_ca : NULL},
        .routes = routes,
        .route_count = count,
    };
    return index;
}

static void plan_listeners(struct manager_whole *whole, const struct tierce__manager_config *config)
{
    TIERCE_ASSERT(whole->listener_count == 0);
    const unsigned meta = 1u << TIERCE__RPC_PORT_META, admin = 1u << TIERCE__RPC_PORT_ADMIN,
                   debug = config->has_debug ? 1u << TIERCE__RPC_PORT_DEBUG : 0;
    bool shares = config->shares_grpc;
    whole->admin_grpc = whole->debug_http = SIZE_MAX;
    whole->meta_grpc = add_listener(whole, config, "listen.grpc_port", TIERCE__SERVE_GRPC,
                                    config->grpc_port, meta | (shares ? admin | debug : 0));
    whole->meta_http = add_listener(whole, config, "listen.http_port", TIERCE__SERVE_HTTP,
                                    config->http_port, meta);
    if (!shares)
        whole->admin_grpc =
            add_listener(whole, config, "listen.admin_grpc_port", TIERCE__SERVE_GRPC,
                         config->admin_grpc_port, admin | debug);
    whole->admin_http = add_listener(whole, config, "listen.admin_http_port", TIERCE__SERVE_HTTP,
                                     config->admin_http_port, admin);
    if (config->has_debug)
        whole->debug_http = add_listener(whole, config, "listen.debug (listen.http_port + 3000)",
                                         TIERCE__SERVE_HTTP, config->debug_http_port, debug);
}

static bool is_serving(void *arg, const char *service)
{
    const struct manager_whole *whole = arg;
    (void)service;
    return tierce__manager_leads(&whole->manager);
}

static int listen_to(struct manager_whole *whole, const struct tierce__manager_config *config,
                     char why[256])
{
    plan_listeners(whole, config);
    struct tierce__server *server;
    int rc = tierce__server_start(&server,
                                  &(struct tierce__server_opts){
                                      .size = sizeof(struct tierce__server_opts),
                                      .listeners = whole->listeners,
                                      .listener_count = whole->listener_count,
                                      .loops = config->loops,
                                      .workers = config->workers,
                                      .message_bytes_max = config->message_bytes_max,
                                      .connections_max = config->connections_max,
                                      .connections_per_address = config->connections_per_address,
                                      .descriptors = tierce__rpc_descriptors,
                                      .descriptor_bytes = tierce__rpc_descriptor_bytes,
                                      .is_serving = is_serving,
                                      .is_serving_arg = whole,
                                  },
                                  why);
    if (rc == 0)
        atomic_store_explicit(&whole->manager.server, server, memory_order_release);
    return rc;
}

static const struct tierce__server *server_of(const struct tierce__manager *manager)
{
    return atomic_load_explicit(&manager->server, memory_order_acquire);
}

/* The parsed quota.groups. */
struct quota_groups {
    struct tierce__quota_group groups[QUOTA_GROUPS_MAX];
    size_t count;
    char *text; /* holds their names; heap */
};

/* Parses "NAME=SIZE,NAME=SIZE". The caller frees out->text, also on errors. */
static int read_quota_groups(struct quota_groups *out, const char *text, char why[256])
{
    TIERCE_ASSERT(out->count == 0 && out->text == NULL);
    char *save = NULL;
    out->text = tierce__strdup(text);
    if (out->text == NULL)
        return -ENOMEM;
    for (char *entry = strtok_r(out->text, ",", &save); entry != NULL;
         entry = strtok_r(NULL, ",", &save)) {
        char *size = strchr(entry, '=');
        if (out->count == QUOTA_GROUPS_MAX) {
            snprintf(why, 256, "quota.groups: more than %d of them", QUOTA_GROUPS_MAX);
            return TIERCE_E_CONFIG;
        }
        struct tierce__quota_group *group = &out->groups[out->count];
        if (size != NULL)
            *size++ = '\0';
        if (size == NULL || entry[0] == '\0' || !tierce__parse_size(&group->capacity_bytes, size)) {
            snprintf(why, 256, "quota.groups: \"%.80s\" is not NAME=SIZE, as in chat=10TiB", entry);
            return TIERCE_E_CONFIG;
        }
        group->name = entry;
        out->count++;
    }
    return 0;
}

int tierce__manager_reload(struct tierce__manager *manager,
                           const struct tierce__manager_config *config, char why[256])
{
    struct tierce__grants *grants = NULL;
    struct quota_groups quotas = {0};
    int rc = read_quota_groups(&quotas, config->quota_groups, why);
    if (rc == 0)
        rc = tierce__auth_grants_read(&grants, manager->auth, why);
    /* All that may fail comes before the first change. */
    if (rc == 0)
        rc = tierce__locator_prepare_quotas(manager->locator, quotas.groups, quotas.count);
    if (rc == 0)
        rc = tierce__server_reload(atomic_load_explicit(&manager->server, memory_order_acquire),
                                   why);
    if (rc == 0)
        rc = tierce__locator_set_quotas(manager->locator, quotas.groups, quotas.count);
    if (rc == 0)
        grants = tierce__auth_exchange(manager->auth, grants);
    tierce__grants_destroy(grants);
    tierce__free(quotas.text);
    tierce__audit_write(
        manager->audit, tierce__manager_now_us(manager),
        &(struct tierce__audit_line){.what = "SIGHUP",
                                     .who = "",
                                     .outcome = rc == 0 ? TIERCE__AUDIT_DONE : TIERCE__AUDIT_FAILED,
                                     .why = rc == 0 ? "" : why});
    if (rc == 0)
        tierce__log(TIERCE_LOG_INFO, "manager.read_again", "tokens, certificates and quota.groups");
    else
        tierce__log(TIERCE_LOG_ERROR, "manager.cannot_read_again", "%s", why);
    return rc;
}

void tierce__manager_ports(const struct tierce__manager *manager, struct tierce__manager_ports *out)
{
    const struct manager_whole *whole =
        (const struct manager_whole *)(const void *)((const char *)manager -
                                                     offsetof(struct manager_whole, manager));
    const size_t indexes[] = {whole->meta_grpc, whole->meta_http, whole->admin_grpc,
                              whole->admin_http, whole->debug_http};
    uint16_t *const ports[] = {&out->meta_grpc, &out->meta_http, &out->admin_grpc, &out->admin_http,
                               &out->debug_http};
    for (size_t i = 0; i < sizeof(ports) / sizeof(ports[0]); i++)
        *ports[i] =
            indexes[i] == SIZE_MAX ? 0 : tierce__server_port(server_of(manager), indexes[i]);
}

/* ---- start and stop -------------------------------------------------------------------------- */

/* Errors in the file are reported now, not when this manager begins to lead. */
static int read_startup(struct manager_whole *whole, const char *path, char why[256])
{
    enum { STARTUP_BYTES_MAX = 16 * 1024 * 1024 };
    char inner[256] = "";
    size_t bytes;
    int rc = tierce__read_file(&whole->startup, &bytes, path, STARTUP_BYTES_MAX);
    if (rc < 0) {
        snprintf(why, 256, "the startup file %.140s cannot be read: %s", path, tierce_strerror(rc));
        return rc;
    }
    rc = tierce__registry_check_startup(whole->startup, inner);
    if (rc < 0)
        snprintf(why, 256, "the startup file %.100s: %.130s", path, inner);
    return rc;
}

static int use_builtin_startup(struct manager_whole *whole, const char *state_folder)
{
    if (state_folder == NULL)
        return 0;
    TIERCE_ASSERT(whole->startup == NULL && whole->state_folder == NULL);
    whole->state_folder = tierce__strdup(state_folder);
    whole->startup = tierce__startup_builtin(state_folder);
    return whole->state_folder != NULL && whole->startup != NULL ? 0 : -ENOMEM;
}

static int open_registry(struct manager_whole *whole, const struct tierce__manager_config *config,
                         char why[256])
{
    int rc = config->startup_file[0] != '\0' ? read_startup(whole, config->startup_file, why)
                                             : use_builtin_startup(whole, config->state_folder);
    if (rc < 0)
        return rc;
    return tierce__registry_open(
        &whole->manager.registry,
        &(struct tierce__registry_opts){.size = sizeof(struct tierce__registry_opts),
                                        .uri = config->registry_uri},
        why);
}

static int open_nodes(struct tierce__manager *m, const struct tierce__manager_config *config)
{
    TIERCE_ASSERT(m->registry != NULL && m->storages != NULL);
    return tierce__nodes_create(
        &m->nodes, &(struct tierce__nodes_opts){.size = sizeof(struct tierce__nodes_opts),
                                                .registry = m->registry,
                                                .storages = m->storages,
                                                .token_file = config->node_token_file,
                                                .ca_file = config->node_ca_file});
}

static int open_scrub(struct tierce__manager *manager)
{
    return tierce__scrub_create(
        &manager->scrub, &(struct tierce__scrub_opts){.size = sizeof(struct tierce__scrub_opts),
                                                      .registry = manager->registry,
                                                      .storages = manager->storages,
                                                      .locator = manager->locator});
}

static int open_helpers(struct tierce__manager *manager)
{
    int rc = tierce__faults_create(&manager->faults);
    if (rc == 0)
        rc = tierce__later_create(&manager->later);
    if (rc == 0)
        rc = tierce__history_create(&manager->history, TIERCE__HISTORY_SAMPLES_MAX,
                                    TIERCE__HISTORY_GROUPS_MAX);
    return rc;
}

static int open_parts(struct manager_whole *whole, const struct tierce__manager_config *config,
                      char why[256])
{
    enum { PROBE_INTERVAL_MS = 5000 };
    struct tierce__manager *m = &whole->manager;
    struct quota_groups quotas = {0};
    int rc = open_registry(whole, config, why);
    if (rc == 0 && config->restore_file[0] != '\0')
        rc = tierce__restore_open(&whole->restore,
                                  &(struct tierce__restore_opts){
                                      .size = sizeof(struct tierce__restore_opts),
                                      .path = config->restore_file,
                                      .keep_slots = config->restores_slots,
                                      .keeps_id = config->restores_id,
                                  },
                                  why);
    if (rc == 0)
        rc = read_quota_groups(&quotas, config->quota_groups, why);
    if (rc < 0)
        goto out;
    rc = tierce__storages_open(
        &m->storages, &(struct tierce__storages_opts){.size = sizeof(struct tierce__storages_opts),
                                                      .registry = m->registry,
                                                      .probe_interval_ms = PROBE_INTERVAL_MS,
                                                      .changed = tell_storage,
                                                      .changed_arg = whole});
    if (rc == 0)
        rc = open_nodes(m, config);
    if (rc == 0)
        rc = tierce__ghosts_create(
            &m->ghost, &(struct tierce__ghosts_opts){.size = sizeof(struct tierce__ghosts_opts),
                                                     .has_thread = true});
    if (rc == 0)
        rc = tierce__locator_open(
            &m->locator, &(struct tierce__locator_opts){.size = sizeof(struct tierce__locator_opts),
                                                        .registry = m->registry,
                                                        .storages = m->storages,
                                                        .nodes = m->nodes,
                                                        .delete_threads = config->delete_threads,
                                                        .quota_groups = quotas.groups,
                                                        .quota_group_count = quotas.count,
                                                        .ghost = m->ghost,
                                                        .move_rate = config->move_rate});
    if (rc == 0)
        rc = tierce__reclaimer_start(
            &m->reclaimer,
            &(struct tierce__reclaimer_opts){.size = sizeof(struct tierce__reclaimer_opts),
                                             .locator = m->locator,
                                             .registry = m->registry,
                                             .seed = tierce__now_ns(),
                                             .has_thread = true,
                                             .submitted = tell_reclaim,
                                             .submitted_arg = whole});
    if (rc == 0)
        rc = tierce__manager_open_autopilot(m, config);
    if (rc == 0)
        rc = open_scrub(m);
    if (rc == 0)
        rc = open_helpers(m);
    if (rc == 0)
        rc = tierce__auth_create(
            &m->auth,
            &(struct tierce__auth_opts){.size = sizeof(struct tierce__auth_opts),
                                        .registry = m->registry,
                                        .is_on = config->requires_auth,
                                        .token_file = config->auth_token_file},
            why);
out:
    tierce__free(quotas.text);
    return rc;
}

/* The node id: the configured one, or host, port and a random part. */
static int name_node(struct manager_whole *whole, const struct tierce__manager_config *config)
{
    TIERCE_ASSERT(whole->manager.node_id[0] == '\0');
    uint64_t chance;
    struct tierce__manager_ports ports;
    if (getrandom(&chance, sizeof(chance), 0) != (ssize_t)sizeof(chance))
        return -EIO;
    tierce__manager_ports(&whole->manager, &ports);
    if (config->node_id[0] != '\0')
        snprintf(whole->manager.node_id, sizeof(whole->manager.node_id), "%s", config->node_id);
    else
        snprintf(whole->manager.node_id, sizeof(whole->manager.node_id), "%.90s:%u_%016llx",
                 config->host, ports.admin_http, (unsigned long long)chance);
    return 0;
}

static int start_electing(struct manager_whole *whole, const struct tierce__manager_config *config,
                          char why[256])
{
    TIERCE_ASSERT(!whole->has_elector && !whole->is_ending);
    int rc = name_node(whole, config);
    if (rc < 0)
        return rc;
    rc = tierce__elector_start(&whole->manager.elector,
                               &(struct tierce__elector_opts){
                                   .size = sizeof(struct tierce__elector_opts),
                                   .uri = config->elector_uri,
                                   .node_id = whole->manager.node_id,
                                   .lease_ms = config->elector_lease_ms,
                                   .interval_ms = config->elector_interval_ms,
                                   .promote = promote,
                                   .demote = demote,
                                   .arg = whole,
                               },
                               why);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(atomic_load_explicit(&whole->manager.state, memory_order_relaxed) ==
                  TIERCE__MANAGER_STARTS);
    set_state(&whole->manager, TIERCE__MANAGER_FOLLOWS);
    tierce__lock_take(&whole->lock);
    whole->has_elector = true;
    tierce__cond_broadcast(&whole->wake);
    tierce__lock_drop(&whole->lock);
    return 0;
}

int tierce__manager_start(struct tierce__manager **out, const struct tierce__manager_config *config,
                          char why[256])
{
    struct manager_whole *whole = tierce__calloc(1, sizeof(*whole));
    if (whole == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    why[0] = '\0';
    whole->log_lock = -1;
    whole->drain_ms = config->drain_ms;
    whole->metrics_interval_ms = config->metrics_interval_ms;
    whole->manager.started_us = tierce__manager_now_us(&whole->manager);
    tierce__lock_init(&whole->lock, TIERCE__LOCK_TICKER);
    tierce__cond_init(&whole->wake);
    tierce__lock_init(&whole->manager.trouble_lock, TIERCE__LOCK_TROUBLE);
    int rc = open_logs(whole, config, why);
    if (rc == 0)
        rc = open_parts(whole, config, why);
    /* The node id contains a port, so the elector starts after the server; until then calls are
     * answered "not ready". */
    if (rc == 0)
        rc = listen_to(whole, config, why);
    if (rc == 0)
        rc = start_electing(whole, config, why);
    if (rc == 0) {
        rc = -pthread_create(&whole->ticker, NULL, tick, whole);
        whole->has_ticker = rc == 0;
    }
    if (rc < 0 && why[0] == '\0')
        snprintf(why, 256, "%s%s", rc == -EAGAIN ? "a thread cannot be started: " : "",
                 tierce_strerror(rc));
    if (rc < 0)
        tierce__manager_stop(&whole->manager);
    else
        *out = &whole->manager;
    return rc;
}

void tierce__manager_stop(struct tierce__manager *manager)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct manager_whole *whole = whole_of(manager);
    /* Event streams end first: the drain would wait for them forever. */
    tierce__admin_http_stop(manager);
    tierce__later_stop(manager->later);
    end_ticker(whole); /* it reads `server` */
    tierce__server_stop(atomic_load_explicit(&manager->server, memory_order_acquire),
                        whole->drain_ms);
    tierce__later_destroy(manager->later);
    tierce__autopilot_stop(manager->autopilot); /* it asks the elector */
    tierce__elector_stop(manager->elector);
    TIERCE_ASSERT(atomic_load_explicit(&manager->state, memory_order_relaxed) <=
                  TIERCE__MANAGER_FOLLOWS);
    tierce__scrub_destroy(manager->scrub);
    tierce__reclaimer_stop(manager->reclaimer);
    tierce__locator_close(manager->locator);
    tierce__ghosts_destroy(manager->ghost);
    tierce__nodes_destroy(manager->nodes);
    tierce__storages_close(manager->storages);
    /* The subscribers of the events look up scopes and credentials. */
    tierce__line_log_close(manager->events);
    manager->events = NULL;
    tierce__auth_destroy(manager->auth);
    tierce__faults_destroy(manager->faults);
    tierce__history_destroy(manager->history);
    tierce__registry_close(manager->registry);
    close_logs(whole);
    tierce__cond_fini(&whole->wake);
    tierce__lock_fini(&whole->manager.trouble_lock);
    tierce__lock_fini(&whole->lock);
    tierce__restore_close(whole->restore);
    tierce__free(whole->startup);
    tierce__free(whole->state_folder);
    tierce__free(whole);
}
