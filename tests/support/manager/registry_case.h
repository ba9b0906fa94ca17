/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TEST_REGISTRY_CASE_H
#define TIERCE_TEST_REGISTRY_CASE_H

#include "base/vfs/vfs.h"
#include "check_main.h"
#include "manager/registry/registry.h"

#include <stdio.h>
#include <unistd.h>

/* A registry in a file of a folder of the test's own, and entries for it. */

static char folder[] = "/tmp/tierce-test-registry-XXXXXX";
static char uri[160], path[128], why[256];
static struct tierce__registry *registry;
static struct tierce__vfs *vfs;

static inline struct tierce__registry *open_one(const char *at, struct tierce__vfs *files)
{
    struct tierce__registry *one = NULL;
    struct tierce__registry_opts opts = {.size = sizeof(opts), .uri = at, .vfs = files};
    ck_assert_msg(tierce__registry_open(&one, &opts, why) == 0, "%s", why);
    return one;
}

static inline void load(struct tierce__registry *one, uint64_t fence)
{
    ck_assert_msg(tierce__registry_load(one, fence, why) == 0, "%s", why);
}

static inline void set_up(void)
{
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "%s/registry", folder);
    snprintf(uri, sizeof(uri), "local://%s", path);
    registry = open_one(uri, NULL);
    load(registry, 0);
}

static inline void remove_files(void)
{
    static const char *const endings[] = {"", ".new", ".lock"};
    char name[160];
    for (size_t i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "%s%s", path, endings[i]);
        unlink(name);
    }
    ck_assert_int_eq(rmdir(folder), 0);
}

static inline void tear_down(void)
{
    tierce__registry_close(registry);
    if (vfs != NULL)
        vfs->ops->destroy(vfs);
    remove_files();
}

static inline void reopen(void)
{
    tierce__registry_close(registry);
    registry = open_one(uri, NULL);
    load(registry, 0);
}

/* ---- entries --------------------------------------------------------------------------------- */

static inline struct tierce__storage nfs(char *name)
{
    return (struct tierce__storage){.name = name,
                                    .type = TIERCE__STORAGE_NFS,
                                    .is_enabled = true,
                                    .root_path = (char *)"/tmp/nfs/"};
}

static inline struct tierce__group group_of(char *name, char **storages, size_t count)
{
    return (struct tierce__group){.name = name,
                                  .storage_candidates = storages,
                                  .storage_candidate_count = count,
                                  .max_instance_count = 2,
                                  .version = 1};
}

static inline struct tierce__instance instance_of(char *id, char *group)
{
    static struct tierce__spec_info specs[] = {{(char *)"tp0", 1024}};
    return (struct tierce__instance){
        .id = id, .group_name = group, .block_size = 64, .specs = specs, .spec_count = 1};
}

static inline int add_storage(char *name)
{
    struct tierce__storage storage = nfs(name);
    return tierce__registry_add_storage(registry, &storage, why);
}

static inline int add_group(char *name, char *storage)
{
    struct tierce__group group = group_of(name, &storage, 1);
    return tierce__registry_add_group(registry, &group, why);
}

static inline int add_instance(char *id, char *group)
{
    struct tierce__instance instance = instance_of(id, group);
    return tierce__registry_add_instance(registry, &instance, why);
}

static inline char *snapshot(void)
{
    char *text = NULL;
    ck_assert_int_eq(tierce__registry_snapshot(registry, &text), 0);
    return text;
}

static inline unsigned number_of_storage(const char *name)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    const struct tierce__storage *storage = tierce__catalog_storage(catalog, name);
    unsigned number = storage != NULL ? storage->number : 0;
    if (storage != NULL)
        ck_assert_ptr_eq(tierce__catalog_storage_numbered(catalog, (uint16_t)number), storage);
    tierce__registry_release(registry, catalog);
    return number;
}

static inline void fill(void)
{
    ck_assert_int_eq(add_storage("a"), 0);
    ck_assert_int_eq(add_group("g", "a"), 0);
    ck_assert_int_eq(add_instance("i", "g"), 0);
}

#endif
