/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_STORAGES_H
#define TIERCE_TESTS_SIM_STORAGES_H

#include "check_main.h"
#include "manager/storage/storage.h"
#include "test_random.h"

#include <errno.h>
#include <string.h>

/*
 * Storages that hold names of files only, and fail by chance: some before the file was deleted,
 * some after, whose answer is an error all the same.
 */

enum { SIM_FILES_MAX = 8192, SIM_URI_BYTES = 120 };

static struct {
    char files[SIM_FILES_MAX][SIM_URI_BYTES];
    size_t count;
    struct test_random random;
    uint32_t fail_permille;
    uint64_t asked, fails_at;       /* as sim_store's */
    void (*goes)(const char *path); /* before a file is deleted */
} sim_storages;

static inline bool sim_storages_fails(void)
{
    if (++sim_storages.asked == sim_storages.fails_at)
        return true;
    return sim_storages.fail_permille > 0 &&
           test_random_below(&sim_storages.random, 1000) < sim_storages.fail_permille;
}

static inline const char *sim_path_of(const char *uri, char path[SIM_URI_BYTES])
{
    const char *at = strchr(strstr(uri, "://") + 3, '/');
    snprintf(path, SIM_URI_BYTES, "%.*s", (int)strcspn(at, "?"), at);
    return path;
}

/* As a client writes it. */
static inline void sim_storages_write(const char *uri)
{
    char path[SIM_URI_BYTES];
    sim_path_of(uri, path);
    for (size_t i = 0; i < sim_storages.count; i++) {
        if (strcmp(sim_storages.files[i], path) == 0)
            return;
    }
    ck_assert_uint_lt(sim_storages.count, SIM_FILES_MAX);
    memcpy(sim_storages.files[sim_storages.count++], path, SIM_URI_BYTES);
}

static int sim_driver_open(struct tierce__storage_driver **out,
                           const struct tierce__storage *storage, char why[128]);
static void sim_driver_close(struct tierce__storage_driver *driver)
{
    (void)driver;
}

static int sim_driver_probe(struct tierce__storage_driver *driver, char why[128])
{
    (void)driver, (void)why;
    return 0;
}

static int sim_driver_remove(struct tierce__storage_driver *driver, const char *path)
{
    static const int errors[] = {-EIO, -ESTALE, -EACCES, TIERCE_E_DOWN};
    int error = errors[test_random_below(&sim_storages.random, 4)];
    (void)driver;
    if (sim_storages_fails())
        return error;
    sim_storages.goes(path);
    for (size_t i = 0; i < sim_storages.count; i++) {
        if (strcmp(sim_storages.files[i], path) == 0) {
            memcpy(sim_storages.files[i], sim_storages.files[--sim_storages.count], SIM_URI_BYTES);
            break;
        }
    }
    return sim_storages_fails() ? error : 0;
}

static double sim_driver_used_share(struct tierce__storage_driver *driver)
{
    (void)driver;
    return -1;
}

static const struct tierce__storage_ops sim_driver_ops = {
    .name = "sim",
    .open = sim_driver_open,
    .close = sim_driver_close,
    .probe = sim_driver_probe,
    .remove = sim_driver_remove,
    .used_share = sim_driver_used_share,
};

static int sim_driver_open(struct tierce__storage_driver **out,
                           const struct tierce__storage *storage, char why[128])
{
    static struct tierce__storage_driver driver = {.ops = &sim_driver_ops};
    (void)storage, (void)why;
    *out = &driver;
    return 0;
}

static inline const struct tierce__storage_ops *sim_find_driver(enum tierce__storage_type type)
{
    (void)type;
    return &sim_driver_ops;
}

#endif
