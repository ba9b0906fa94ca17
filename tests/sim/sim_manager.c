/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_manager.h"
#include "base/alloc.h"
#include "manager/manager.h"
#include "manager/manager_config.h"
#include "manager/manager_private.h"
#include "manager/registry/catalog.h"
#include "net/server/http/http.h"
#include "sim_sched.h"
#include "sim_store.h"

SIM_WRAPS(const struct tierce__meta_store_ops *, tierce__meta_store_find, const char *type,
          const char *uri);
SIM_WRAPS(uint16_t, tierce__server_port, const struct tierce__server *server, size_t listener);
SIM_WRAPS(int, tierce__http_start, struct tierce__http **out, const struct tierce__http_opts *opts,
          char why[256]);

static struct tierce__manager_config config;
static struct tierce__manager *manager;

const struct tierce__meta_store_ops *__wrap_tierce__meta_store_find(const char *type,
                                                                    const char *uri)
{
    return sim_find_store(type, uri);
}

int __wrap_tierce__http_start(struct tierce__http **out, const struct tierce__http_opts *opts,
                              char why[256])
{
    (void)opts;
    (void)why;
    *out = NULL;
    return 0;
}

/* The manager's first listener is that of gRPC. */
uint16_t __wrap_tierce__server_port(const struct tierce__server *server, size_t listener)
{
    return server != NULL && listener == 0 ? SIM_MANAGER_PORT : 0;
}

void sim_manager_begin(uint64_t seed)
{
    sim_store_begin(seed, __real_tierce__meta_store_find("local", ""), "");
}

void sim_manager_end(void)
{
    sim_store_end();
}

void sim_manager_startup(const char *folder, const struct sim_startup *of)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/startup", folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file,
            "{\"storage_config\":{\"type\":\"file\",\"is_available\":true,"
            "\"global_unique_name\":\"d\",\"storage_spec\":{\"root_path\":\"%s/\","
            "\"key_count_per_file\":%s}},"
            "\"instance_group\":{\"name\":\"default\",\"storage_candidates\":[\"p\",\"d\"],"
            "\"global_quota_group_name\":\"q\",\"max_instance_count\":100,\"version\":1,"
            "\"quota\":{\"capacity\":%llu,\"quota_config\":[]},\"user_data\":\"\","
            "\"cache_config\":{\"reclaim_strategy\":{\"storage_unique_name\":\"d\","
            "\"reclaim_policy\":1,\"trigger_strategy\":{\"used_size\":0,\"used_percentage\":0.8},"
            "\"delay_before_delete_ms\":1000%s},\"cache_prefer_strategy\":0,"
            "\"meta_indexer_config\":{\"max_key_count\":1000000,\"mutex_shard_num\":16,"
            "\"batch_key_size\":16,\"meta_storage_backend_config\":{\"storage_type\":\"local\","
            "\"storage_uri\":\"\"},\"meta_cache_policy_config\":{\"type\":\"LRU\","
            "\"capacity\":10000}}}}}",
            of->root, of->slots, (unsigned long long)of->capacity, of->reclaim);
    ck_assert_int_eq(fclose(file), 0);
}

void sim_manager_open(const char *folder)
{
    char registry[128], startup[128], port[64], why[256];
    char *args[] = {registry,
                    startup,
                    port,
                    (char *)(uintptr_t) "--listen.http_port=0",
                    (char *)(uintptr_t) "--listen.admin_grpc_port=0",
                    (char *)(uintptr_t) "--listen.admin_http_port=0",
                    (char *)(uintptr_t) "--log.folder=",
                    (char *)(uintptr_t) "--metrics.log=false",
                    (char *)(uintptr_t) "--serve.loops=1",
                    (char *)(uintptr_t) "--serve.workers=2",
                    (char *)(uintptr_t) "--delete.threads=1",
                    (char *)(uintptr_t) "--serve.drain=500ms",
                    (char *)(uintptr_t) "--elector.interval=1s"};
    char *const env[] = {NULL};
    struct tierce__config_error error;
    char *warnings = NULL;
    snprintf(registry, sizeof(registry), "--registry.uri=local://%s/registry", folder);
    snprintf(startup, sizeof(startup), "--startup.file=%s/startup", folder);
    snprintf(port, sizeof(port), "--listen.grpc_port=%d", SIM_MANAGER_PORT);
    int rc = tierce__manager_config_load(&config, sizeof(args) / sizeof(args[0]), args, env,
                                         &warnings, &error);
    ck_assert_msg(rc == 0, "%s", error.text);
    tierce__free(warnings);
    rc = tierce__manager_start(&manager, &config, why);
    ck_assert_msg(rc == 0, "%s", why);
}

void sim_manager_stop(void)
{
    tierce__manager_stop(manager);
    tierce__manager_config_clear(&config);
}

void sim_manager_fail(uint32_t permille)
{
    sim_store.fail_permille = permille;
}

struct sim_usage sim_manager_usage(void)
{
    struct tierce__usage usage = {0};
    tierce__locator_group_usage(manager->locator, "default", &usage);
    return (struct sim_usage){.keys = usage.keys,
                              .sessions = usage.sessions,
                              .bytes =
                                  usage.writing_bytes + usage.serving_bytes + usage.deleting_bytes};
}

bool sim_manager_leads(void)
{
    return tierce__manager_leads(manager);
}

bool sim_manager_trim(void)
{
    char why[TIERCE__WHY_BYTES];
    bool is_done = true;
    const struct tierce__catalog *catalog = tierce__registry_acquire(manager->registry);
    const struct tierce__catalog_list *list = &catalog->lists[TIERCE__KIND_INSTANCE];
    for (size_t i = 0; i < list->count; i++)
        is_done &= tierce__locator_trim(manager->locator,
                                        ((const struct tierce__instance *)list->items)[i].id,
                                        TIERCE__TRIM_ALL, 0, 0, why) == 0;
    tierce__registry_release(manager->registry, catalog);
    return is_done;
}
