/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/registry/startup.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config.h"
#include "base/file.h"
#include "base/json/json_write.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* The value of a variable if it is an absolute path. */
static const char *folder_of(char *const *env, const char *name)
{
    const char *value = tierce__config_env_value(env, name);
    return value != NULL && value[0] == '/' ? value : NULL;
}

int tierce__state_folder(char **out, char *const *env)
{
    const char *given = folder_of(env, "STATE_DIRECTORY"), *xdg = folder_of(env, "XDG_STATE_HOME"),
               *home = folder_of(env, "HOME");
    *out = NULL;
    if (given != NULL) {
        *out = tierce__strdup(given);
        if (*out != NULL)
            (*out)[strcspn(*out, ":")] = '\0'; /* of several, the first */
    } else if (xdg != NULL) {
        *out = tierce__join_path(xdg, "tierce/manager");
    } else if (home != NULL) {
        *out = tierce__join_path(home, ".local/state/tierce/manager");
    } else {
        return 0;
    }
    TIERCE_DASSERT(*out == NULL || (*out)[0] == '/');
    return *out != NULL ? 0 : -ENOMEM;
}

int tierce__state_folder_make(const char *path)
{
    TIERCE_DASSERT(path[0] == '/');
    char *copy = tierce__strdup(path);
    int rc = copy != NULL ? 0 : -ENOMEM;
    for (char *end = copy; rc == 0 && end != NULL;) {
        end = strchr(end + 1, '/');
        if (end != NULL)
            *end = '\0';
        if (mkdir(copy, 0700) != 0 && errno != EEXIST)
            rc = -errno;
        if (end != NULL)
            *end = '/';
    }
    tierce__free(copy);
    return rc;
}

static const char before_root[] =
    "{\"storage_config\":{\"type\":\"file\",\"is_available\":true,"
    "\"global_unique_name\":\"" TIERCE__STARTUP_STORAGE "\",\"storage_spec\":{\"root_path\":";
static const char behind_root[] =
    ",\"key_count_per_file\":8}},"
    "\"instance_group\":{\"name\":\"default\",\"storage_candidates\":[\"" TIERCE__STARTUP_STORAGE
    "\"],"
    "\"global_quota_group_name\":\"default_quota_group\",\"max_instance_count\":100,"
    "\"quota\":{\"capacity\":30000000000,\"quota_config\":["
    "{\"storage_type\":\"file\",\"capacity\":10000000000},"
    "{\"storage_type\":\"hf3fs\",\"capacity\":10000000000},"
    "{\"storage_type\":\"pace\",\"capacity\":10000000000}]},"
    "\"cache_config\":{\"reclaim_strategy\":{\"storage_unique_name\":\"" TIERCE__STARTUP_STORAGE
    "\","
    "\"reclaim_policy\":1,\"trigger_strategy\":{\"used_size\":0,\"used_percentage\":0.8},"
    "\"delay_before_delete_ms\":1000},\"cache_prefer_strategy\":2,"
    "\"meta_indexer_config\":{\"max_key_count\":1000000,\"mutex_shard_num\":16,"
    "\"batch_key_size\":16,\"meta_storage_backend_config\":{\"storage_type\":\"local\","
    "\"storage_uri\":\"\"},\"meta_cache_policy_config\":{\"type\":\"LRU\",\"capacity\":10000,"
    "\"cache_shard_bits\":0,\"high_pri_pool_ratio\":0.0}}},"
    "\"user_data\":\"\",\"version\":1}}";

char *tierce__startup_builtin(const char *state_folder)
{
    TIERCE_DASSERT(state_folder[0] == '/');
    struct tierce__line line = {0};
    char *root = tierce__join_path(state_folder, TIERCE__STARTUP_STORAGE "/");
    if (root == NULL)
        return NULL;
    tierce__line_put(&line, before_root);
    tierce__json_write_text(&(struct tierce__json_write){.line = &line}, NULL, root);
    tierce__line_put(&line, behind_root);
    tierce__line_put_bytes(&line, "", 1);
    tierce__free(root);
    if (line.failed)
        tierce__line_clear(&line);
    return line.text;
}
