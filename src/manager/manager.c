/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/manager.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/file.h"
#include "base/json/json_write.h"
#include "base/threads/lock.h"
#include "base/log/log.h"
#include "manager/api/admin_http.h"
#include "manager/api/api_private.h"
#include "manager/lease/lease.h"
#include "manager/lmcache/controller_http.h"
#include "manager/lmcache/controller_manager.h"
#include "manager/manager_whole.h"
#include "manager/observe/audit.h"
#include "manager/observe/manager_metrics.h"
#include "manager/observe/page.h"
#include "manager/pilot/manager_autopilot.h"
#include "manager/pilot/ghost_feed.h"
#include "manager/registry/startup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { QUOTA_GROUPS_MAX = 256 };

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

/* ---- events ---------------------------------------------------------------------------------- */

static void tell_storage(void *arg, const char *storage, bool is_well, const char *why)
{
    struct tierce__manager_whole *whole = arg;
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
    struct tierce__manager_whole *whole = arg;
    tierce__events_reclaim(whole->manager.events, tierce__manager_now_us(&whole->manager),
                           instance_id, gone, count, delay_us);
}

/* ---- the ticker ------------------------------------------------------------------------------ */

static void log_metrics(struct tierce__manager_whole *whole)
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
    struct tierce__manager_whole *whole = arg;
    uint64_t metrics_ns = tierce__deadline_in_ms(whole->metrics_interval_ms), sample_ns = 0;
    tierce__lock_take(&whole->lock);
    while (!whole->is_ending) {
        (void)tierce__cond_wait(&whole->wake, &whole->lock, tierce__deadline_in_ms(TICK_MS));
        tierce__lock_drop(&whole->lock);
        (void)tierce__locator_expire(whole->manager.locator);
        if (tierce__manager_leads(&whole->manager))
            tierce__nodes_tick(whole->manager.nodes);
        tierce__holdings_tick(whole->manager.holdings, tierce__now_ns());
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

static void end_ticker(struct tierce__manager_whole *whole)
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

/* `ports`: kinds of calls, as bits; 0: the API of LMCache's controller. */
static size_t add_listener(struct tierce__manager_whole *whole,
                           const struct tierce__manager_config *config, const char *name,
                           enum tierce__serve_protocol protocol, uint16_t port, unsigned ports)
{
    TIERCE_ASSERT(whole->listener_count < TIERCE__LISTENERS_MAX);
    size_t index = whole->listener_count++, count = 0;
    struct tierce__route *routes = whole->routes[index];
    if (ports != 0)
        count = tierce__api_routes(&whole->manager, protocol, ports, routes);
    else
        count = tierce__controller_http_routes(&whole->manager, routes);
    if (ports != 0 && protocol == TIERCE__SERVE_HTTP) /* no two kinds of calls may share a port */
        count += tierce__admin_http_routes(
            &whole->manager, (enum tierce__rpc_port)__builtin_ctz(ports), routes + count);
    TIERCE_ASSERT(count <= TIERCE__ROUTES_MAX);
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

static void plan_listeners(struct tierce__manager_whole *whole,
                           const struct tierce__manager_config *config)
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
    if (config->lmcache_http_port != 0)
        (void)add_listener(whole, config, "lmcache.http_port", TIERCE__SERVE_HTTP,
                           config->lmcache_http_port, 0);
}

static bool is_serving(void *arg, const char *service)
{
    const struct tierce__manager_whole *whole = arg;
    (void)service;
    return tierce__manager_leads(&whole->manager);
}

static int listen_to(struct tierce__manager_whole *whole,
                     const struct tierce__manager_config *config, char why[256])
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
    const struct tierce__manager_whole *whole =
        (const struct tierce__manager_whole *)(const void *)((const char *)manager -
                                                             offsetof(struct tierce__manager_whole,
                                                                      manager));
    const size_t indexes[] = {whole->meta_grpc, whole->meta_http, whole->admin_grpc,
                              whole->admin_http, whole->debug_http};
    uint16_t *const ports[] = {&out->meta_grpc, &out->meta_http, &out->admin_grpc, &out->admin_http,
                               &out->debug_http};
    for (size_t i = 0; i < sizeof(ports) / sizeof(ports[0]); i++)
        *ports[i] =
            indexes[i] == SIZE_MAX ? 0 : tierce__server_port(server_of(manager), indexes[i]);
}

/* ---- start and stop -------------------------------------------------------------------------- */

static void warn_of_name(void *arg, const char *name)
{
    tierce__log(TIERCE_LOG_WARN, "manager.startup_name_ignored",
                "name=\"%.200s\" file=\"%.200s\" hint=\"this version knows no such name: check its "
                "spelling, or remove it\"",
                name, (const char *)arg);
}

/* Errors in the file are reported now, not when this manager begins to lead. */
static int read_startup(struct tierce__manager_whole *whole, const char *path, char why[256])
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
    else
        tierce__registry_startup_unknown(whole->startup, warn_of_name, (void *)(uintptr_t)path);
    return rc;
}

static int use_builtin_startup(struct tierce__manager_whole *whole, const char *state_folder)
{
    if (state_folder == NULL)
        return 0;
    TIERCE_ASSERT(whole->startup == NULL && whole->state_folder == NULL);
    whole->state_folder = tierce__strdup(state_folder);
    whole->startup = tierce__startup_builtin(state_folder);
    return whole->state_folder != NULL && whole->startup != NULL ? 0 : -ENOMEM;
}

static int open_registry(struct tierce__manager_whole *whole,
                         const struct tierce__manager_config *config, char why[256])
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

static int open_holdings(struct tierce__manager *m, const struct tierce__manager_config *config)
{
    return tierce__holdings_create(
        &m->holdings, &(struct tierce__holdings_opts){
                          .size = sizeof(struct tierce__holdings_opts),
                          .workers_max = config->directory_workers,
                          .group_percent = config->requires_auth ? config->directory_share : 100,
                          .bytes_max = config->directory_bytes,
                          .silence_ms = config->directory_silence_ms,
                          .senders_max = config->directory_senders});
}

static int open_scrub(struct tierce__manager *manager, const struct tierce__manager_config *config)
{
    return tierce__scrub_create(
        &manager->scrub, &(struct tierce__scrub_opts){.size = sizeof(struct tierce__scrub_opts),
                                                      .registry = manager->registry,
                                                      .storages = manager->storages,
                                                      .locator = manager->locator,
                                                      .filter_bytes_max = config->scrub_bytes});
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

/* The storages, the index, and the reclaimer, each of which uses those before it. */
static int open_content(struct tierce__manager_whole *whole,
                        const struct tierce__manager_config *config,
                        const struct quota_groups *quotas)
{
    enum { PROBE_INTERVAL_MS = 5000 };
    struct tierce__manager *m = &whole->manager;
    int rc = tierce__storages_open(
        &m->storages, &(struct tierce__storages_opts){.size = sizeof(struct tierce__storages_opts),
                                                      .registry = m->registry,
                                                      .probe_interval_ms = PROBE_INTERVAL_MS,
                                                      .mooncake_python = config->mooncake_python,
                                                      .changed = tell_storage,
                                                      .changed_arg = whole});
    if (rc == 0)
        rc = open_nodes(m, config);
    if (rc == 0)
        rc = open_holdings(m, config);
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
                                                        .quota_groups = quotas->groups,
                                                        .quota_group_count = quotas->count,
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
    return rc;
}

static int open_parts(struct tierce__manager_whole *whole,
                      const struct tierce__manager_config *config, char why[256])
{
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
    rc = open_content(whole, config, &quotas);
    if (rc == 0)
        rc = tierce__manager_open_autopilot(m, config);
    if (rc == 0)
        rc = open_scrub(m, config);
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
    if (rc == 0)
        rc = tierce__lmcache_open(m, config, why);
out:
    tierce__free(quotas.text);
    return rc;
}

/* The node id: the configured one, or host, port and a random part. */
static int name_node(struct tierce__manager_whole *whole,
                     const struct tierce__manager_config *config)
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

/* The location of the lease, on the heap. Without elector.uri a registry in Redis is the manager's
 * that began last; one in a file has a lock of its own. */
static int lease_uri(char **out, const struct tierce__manager_config *config)
{
    static const char local[] = "local://";
    const char *registry = config->registry_uri;
    bool is_registry = config->elector_uri[0] == '\0' && registry[0] != '\0' &&
                       strncmp(registry, local, sizeof(local) - 1) != 0;
    const char *before = is_registry ? TIERCE__LEASE_REGISTRY : "";
    const char *uri = is_registry ? registry : config->elector_uri;
    size_t size = strlen(before) + strlen(uri) + 1;
    *out = tierce__alloc(size);
    if (*out == NULL)
        return -ENOMEM;
    snprintf(*out, size, "%s%s", before, uri);
    return 0;
}

static int start_electing(struct tierce__manager_whole *whole,
                          const struct tierce__manager_config *config, char why[256])
{
    TIERCE_ASSERT(!whole->has_elector && !whole->is_ending);
    char *uri = NULL;
    int rc = name_node(whole, config);
    if (rc == 0)
        rc = lease_uri(&uri, config);
    if (rc < 0)
        return rc;
    whole->has_standbys =
        config->elector_uri[0] != '\0' && strncmp(config->elector_uri, "memory://", 9) != 0;
    rc = tierce__elector_start(&whole->manager.elector,
                               &(struct tierce__elector_opts){
                                   .size = sizeof(struct tierce__elector_opts),
                                   .uri = uri,
                                   .node_id = whole->manager.node_id,
                                   .lease_ms = config->elector_lease_ms,
                                   .interval_ms = config->elector_interval_ms,
                                   .promote = tierce__manager_promote,
                                   .demote = tierce__manager_demote,
                                   .arg = whole,
                               },
                               why);
    tierce__free(uri);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(atomic_load_explicit(&whole->manager.state, memory_order_relaxed) ==
                  TIERCE__MANAGER_STARTS);
    tierce__manager_set_state(&whole->manager, TIERCE__MANAGER_FOLLOWS);
    tierce__lock_take(&whole->lock);
    whole->has_elector = true;
    tierce__cond_broadcast(&whole->wake);
    tierce__lock_drop(&whole->lock);
    return 0;
}

int tierce__manager_start(struct tierce__manager **out, const struct tierce__manager_config *config,
                          char why[256])
{
    struct tierce__manager_whole *whole = tierce__calloc(1, sizeof(*whole));
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
    int rc = tierce__manager_open_logs(whole, config, why);
    if (rc == 0)
        rc = open_parts(whole, config, why);
    /* The node id contains a port, so the elector starts after the server; until then calls are
     * answered "not ready". */
    if (rc == 0)
        rc = listen_to(whole, config, why);
    if (rc == 0)
        rc = start_electing(whole, config, why);
    if (rc == 0)
        rc = tierce__lmcache_start(&whole->manager, config, why);
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
    struct tierce__manager_whole *whole = tierce__manager_whole_of(manager);
    /* Event streams end first: the drain would wait for them forever. */
    tierce__admin_http_stop(manager);
    tierce__later_stop(manager->later);
    tierce__lmcache_stop(manager); /* its thread asks the elector */
    end_ticker(whole);             /* it reads `server` */
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
    tierce__lmcache_close(manager);
    tierce__holdings_destroy(manager->holdings);
    tierce__nodes_destroy(manager->nodes);
    tierce__storages_close(manager->storages);
    /* The subscribers of the events look up scopes and credentials. */
    tierce__line_log_close(manager->events);
    manager->events = NULL;
    tierce__auth_destroy(manager->auth);
    tierce__faults_destroy(manager->faults);
    tierce__history_destroy(manager->history);
    tierce__registry_close(manager->registry);
    tierce__manager_close_logs(whole);
    tierce__cond_fini(&whole->wake);
    tierce__lock_fini(&whole->manager.trouble_lock);
    tierce__lock_fini(&whole->lock);
    tierce__restore_close(whole->restore);
    tierce__free(whole->startup);
    tierce__free(whole->state_folder);
    tierce__free(whole);
}
