/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/manager/bench_startup.h"

#include <errno.h>

int tierce__bench_startup_print(FILE *out, const struct tierce__bench_startup *startup)
{
    fprintf(out,
            "{\"storage_config\": {\"type\": \"%s\", \"is_available\": true,"
            " \"global_unique_name\": \"s\", \"storage_spec\": %s},"
            " \"instance_group\": {\"name\": \"" TIERCE__BENCH_GROUP
            "\", \"storage_candidates\": [\"%s\"],"
            " \"global_quota_group_name\": \"q\", \"max_instance_count\": 10,"
            " \"quota\": {\"capacity\": 1000000000000000000, \"quota_config\":"
            " [{\"storage_type\": \"%s\", \"capacity\": 1000000000000000000}]},"
            " \"cache_config\": {\"reclaim_strategy\": {\"storage_unique_name\": \"s\","
            " \"reclaim_policy\": 1, \"trigger_strategy\": {\"used_size\": 0,"
            " \"used_percentage\": 0.8}, \"delay_before_delete_ms\": 100},"
            " \"cache_prefer_strategy\": 0, \"meta_indexer_config\": {"
            " \"max_key_count\": 1000000000, \"mutex_shard_num\": %u, \"batch_key_size\": 16,"
            " \"meta_storage_backend_config\": {\"storage_type\": \"%s\", \"storage_uri\": \"%s\"},"
            " \"meta_cache_policy_config\": {\"type\": \"LRU\", \"capacity\": 100}}},"
            " \"user_data\": \"\", \"version\": 1}}",
            startup->type, startup->spec, startup->pool != NULL ? startup->pool : "s",
            startup->type, startup->shards, startup->index_kind, startup->index_uri);
    return ferror(out) ? -EIO : 0;
}

int tierce__bench_startup_write(const char *path, const struct tierce__bench_startup *startup)
{
    FILE *file = fopen(path, "we");
    if (file == NULL)
        return -errno;
    int rc = tierce__bench_startup_print(file, startup);
    return fclose(file) == 0 ? rc : -errno;
}
