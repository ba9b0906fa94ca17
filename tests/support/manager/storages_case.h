/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_STORAGES_CASE_H
#define TIERCE_TESTS_STORAGES_CASE_H

#include "check_main.h"
#include "manager/storage/storages.h"
#include "wait_for.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Storages in operation, with a registry in memory. For one test program: it has variables. */

static char folder[] = "/tmp/tierce-test-storages-XXXXXX";
static char root[64], why[256];

/* For one probe or one removal: of those that do not hang, which may wait for a disk; of those that
 * do; and of one that hangs before others that must not be given up. */
enum { LONG_MS = 60000, HANG_MS = 1000, DELETE_MS = 4000 };

static struct tierce__registry *registry;
static struct tierce__storages *storages;

static void set_up(void)
{
    temp_folder_make(folder);
    snprintf(root, sizeof(root), "%s/root/", folder);
    ck_assert_int_eq(mkdir(root, 0700), 0);
    struct tierce__registry_opts opts = {.size = sizeof(opts), .uri = ""};
    ck_assert_int_eq(tierce__registry_open(&registry, &opts, why), 0);
    ck_assert_int_eq(tierce__registry_load(registry, 0, why), 0);
}

static void tear_down(void)
{
    char command[128];
    tierce__storages_close(storages);
    tierce__registry_close(registry);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}

static struct tierce__storage nfs(void)
{
    return (struct tierce__storage){.number = 1,
                                    .name = "nfs",
                                    .type = TIERCE__STORAGE_NFS,
                                    .is_enabled = true,
                                    .root_path = root};
}

static void add(const struct tierce__storage *storage)
{
    ck_assert_msg(tierce__registry_add_storage(registry, storage, why) == 0, "%s", why);
}

static struct tierce__storage_state state_of(const char *name)
{
    struct tierce__storage_state state;
    tierce__storages_state(storages, name, &state);
    return state;
}

static bool is_available(const char *name)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    bool is = tierce__storages_is_available(storages, tierce__catalog_storage(catalog, name));
    tierce__registry_release(registry, catalog);
    return is;
}

static void open_probing(const struct tierce__storage_ops *(*find)(enum tierce__storage_type),
                         uint32_t timeout_ms)
{
    struct tierce__storages_opts opts = {.size = sizeof(opts),
                                         .registry = registry,
                                         .probe_interval_ms = 20,
                                         .probe_timeout_ms = timeout_ms,
                                         .find_ops = find};
    ck_assert_int_eq(tierce__storages_open(&storages, &opts), 0);
}

#endif
