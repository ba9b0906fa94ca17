/* SPDX-License-Identifier: Apache-2.0 */
#include "meta_conformance.h"

#include "check_main.h"
#include "meta_folder.h"
#include "redis_cluster.h"

static void nothing(void) {}

static const char *memory_uri(void)
{
    return "";
}

static struct redis_server server;
static char redis_uri[64];

static void redis_begin(void)
{
    ck_assert(redis_start(&server, NULL));
    snprintf(redis_uri, sizeof(redis_uri), "redis://127.0.0.1:%u?timeout_ms=60000",
             (unsigned)server.port);
}

static const char *redis_place(void)
{
    return redis_uri;
}

static void redis_end(void)
{
    redis_stop(&server);
}

/* One cluster for all tests: it takes seconds to be made. */
static struct redis_cluster cluster;

static void cluster_begin(void)
{
    ck_assert(redis_cluster_flush(&cluster));
}

static const char *cluster_place(void)
{
    static char uri[320];
    snprintf(uri, sizeof(uri), "%s?timeout_ms=60000", cluster.uri);
    return uri;
}

/* Where everything must run, a server that is not there is a failure. */
static bool has_redis(void)
{
    const char *ci = getenv("CI");
    return redis_is_there() || (ci != NULL && strcmp(ci, "true") == 0);
}

static const struct meta_factory factories[] = {
    {.name = "redis cluster",
     .ops = &tierce__meta_redis,
     .is_durable = true,
     .begin = cluster_begin,
     .uri = cluster_place,
     .end = nothing},
    {.name = "rocksdb",
     .ops = &tierce__meta_rocksdb,
     .is_durable = true,
     .begin = meta_folder_make,
     .uri = meta_folder_path,
     .end = meta_folder_remove},
    {.name = "redis",
     .ops = &tierce__meta_redis,
     .is_durable = true,
     .begin = redis_begin,
     .uri = redis_place,
     .end = redis_end},
    {.name = "memory",
     .ops = &tierce__meta_memory,
     .begin = nothing,
     .uri = memory_uri,
     .end = nothing},
};

/* Each store in a process of its own. */
static int run(size_t index)
{
    const struct meta_factory *factory = &factories[index];
    if (factory->ops == &tierce__meta_redis && !has_redis())
        return EXIT_SUCCESS;
    if (factory->begin != cluster_begin)
        return check_main(meta_conformance(factory));
    int failed = EXIT_FAILURE;
    if (redis_cluster_start(&cluster, 3, 0, 60000))
        failed = check_main(meta_conformance(factory));
    redis_cluster_stop(&cluster);
    return failed;
}

int main(void)
{
    return check_at_once(run, sizeof(factories) / sizeof(factories[0])) == 0 ? EXIT_SUCCESS
                                                                             : EXIT_FAILURE;
}
