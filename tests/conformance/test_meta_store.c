/* SPDX-License-Identifier: Apache-2.0 */
#include "meta_conformance.h"

#include "check_main.h"
#include "meta_folder.h"
#include "redis_server.h"

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
    snprintf(redis_uri, sizeof(redis_uri), "redis://127.0.0.1:%u", (unsigned)server.port);
}

static const char *redis_place(void)
{
    return redis_uri;
}

static void redis_end(void)
{
    redis_stop(&server);
}

/* Where everything must run, a server that is not there is a failure. */
static bool has_redis(void)
{
    const char *ci = getenv("CI");
    return redis_is_there() || (ci != NULL && strcmp(ci, "true") == 0);
}

int main(void)
{
    static const struct meta_factory memory = {.name = "memory",
                                               .ops = &tierce__meta_memory,
                                               .begin = nothing,
                                               .uri = memory_uri,
                                               .end = nothing};
    static const struct meta_factory rocksdb = {.name = "rocksdb",
                                                .ops = &tierce__meta_rocksdb,
                                                .is_durable = true,
                                                .begin = meta_folder_make,
                                                .uri = meta_folder_path,
                                                .end = meta_folder_remove};
    static const struct meta_factory redis = {.name = "redis",
                                              .ops = &tierce__meta_redis,
                                              .is_durable = true,
                                              .begin = redis_begin,
                                              .uri = redis_place,
                                              .end = redis_end};
    const struct meta_factory *const all[] = {&memory, &rocksdb, &redis};
    int failed = 0;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] != &redis || has_redis())
            failed |= check_main(meta_conformance(all[i]));
    return failed;
}
