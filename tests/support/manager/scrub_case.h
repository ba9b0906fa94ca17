/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SCRUB_CASE_H
#define TIERCE_TESTS_SCRUB_CASE_H

#include "check_main.h"
#include "manager/registry/catalog.h"
#include "manager/scrub/scrub.h"
#include "manager_harness.h"
#include "wait_for.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/*
 * A manager with a storage of files whose driver a test may change, blocks with their files, and a
 * scrub. For one test program: it has variables.
 */

#define HOUR_US INT64_C(3600000000)

enum { KEYS = 6, PARTS = 2 }; /* parts of a block: a, b */
static const int64_t keys[KEYS] = {11, 22, 33, 44, 55, 66};
static char folder[] = "/tmp/tierce-test-scrub-XXXXXX";
static char aside[128];
static struct harness h;
static struct tierce__scrub *scrub;
static struct tierce__storage_ops ops; /* of the storage */

static const struct tierce__storage_ops *find_ops(enum tierce__storage_type type)
{
    return type == TIERCE__STORAGE_NFS ? &ops : NULL;
}

static int64_t real_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static bool is_marked(void)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    bool is = tierce__catalog_storage(catalog, "s")->is_marked;
    tierce__registry_release(h.registry, catalog);
    return is;
}

/* The clock of the rate, which does not go by itself. */
static _Atomic uint64_t rate_ns;

static uint64_t simulated_ns(void *arg)
{
    (void)arg;
    return rate_ns;
}

/* Called while the scrub waits for its turn; NULL: nothing. */
static void (*while_it_waits)(void);

static void jump_to(void *arg, uint64_t due_ns)
{
    (void)arg;
    if (while_it_waits != NULL)
        while_it_waits();
    ck_assert_uint_gt(due_ns, rate_ns);
    rate_ns = due_ns;
}

/* Of the next scrub; 0: the defaults. */
static size_t objects_max;
static uint64_t filter_bytes_max;

static void open_scrub(bool has_simulated_clock)
{
    struct tierce__scrub_opts opts = {.size = sizeof(opts),
                                      .registry = h.registry,
                                      .storages = h.storages,
                                      .locator = h.locator,
                                      .objects_max = objects_max,
                                      .filter_bytes_max = filter_bytes_max};
    if (has_simulated_clock) {
        opts.now_ns = simulated_ns;
        opts.wait_until = jump_to;
    }
    tierce__scrub_destroy(scrub);
    scrub = NULL;
    ck_assert_int_eq(tierce__scrub_create(&scrub, &opts), 0);
}

static void open_with(const struct harness_opts *opts)
{
    char uri[160];
    temp_folder_make(folder);
    h = (struct harness){.now_us = real_now_us()};
    ops = tierce__storage_file;
    snprintf(h.folder, sizeof(h.folder), "%s/root", folder);
    snprintf(aside, sizeof(aside), "%s/aside", folder);
    snprintf(uri, sizeof(uri), "local://%s/registry", folder);
    ck_assert_int_eq(mkdir(h.folder, 0700), 0);
    struct tierce__registry_opts registry = {.size = sizeof(registry), .uri = uri};
    ck_assert_int_eq(tierce__registry_open(&h.registry, &registry, h.why), 0);
    ck_assert_int_eq(tierce__registry_load(h.registry, 1, h.why), 0);
    harness_startup(&h, opts);
    struct tierce__storages_opts storages = {.size = sizeof(storages),
                                             .registry = h.registry,
                                             .probe_interval_ms = 20,
                                             .probe_timeout_ms = 60000,
                                             .find_ops = find_ops};
    ck_assert_int_eq(tierce__storages_open(&h.storages, &storages), 0);
    harness_open_locator(&h, opts);
    harness_add_instance(&h, "i");
    open_scrub(false);
    WAIT_FOR(is_marked());
}

static void open_all(void)
{
    open_with(&(struct harness_opts){.keys_per_file = 2});
}

static void close_all(void)
{
    tierce__scrub_destroy(scrub);
    tierce__arena_clear(&h.arena);
    tierce__locator_close(h.locator);
    tierce__storages_close(h.storages);
    tierce__registry_close(h.registry);
    temp_folder_remove(folder);
}

/* ---- files ----------------------------------------------------------------------------------- */

struct part {
    char path[400];
    off_t at;
    size_t bytes;
};

static struct part part_of(const char *uri)
{
    struct part part;
    const char *from = strstr(uri, "://s") + 4, *slot = strstr(uri, "blkid=");
    const char *bytes = strstr(uri, "size=");
    snprintf(part.path, sizeof(part.path), "%.*s", (int)strcspn(from, "?"), from);
    part.bytes = strtoull(bytes + 5, NULL, 10);
    part.at = slot != NULL ? (off_t)(strtoull(slot + 6, NULL, 10) * part.bytes) : 0;
    return part;
}

static void make_folders(const char *path)
{
    char copy[400];
    snprintf(copy, sizeof(copy), "%s", path);
    for (char *slash = strchr(copy + strlen(h.folder) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        ck_assert(mkdir(copy, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
}

static void write_at(const struct part *part, char content)
{
    char bytes[4096];
    ck_assert_uint_le(part->bytes, sizeof(bytes));
    memset(bytes, content, part->bytes);
    make_folders(part->path);
    int fd = open(part->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, bytes, part->bytes, part->at), (ssize_t)part->bytes);
    close(fd);
}

/* Makes a file's last change older than a day, each time another time. */
static void age(const char *path)
{
    static long steps;
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                {.tv_sec = (time_t)(real_now_us() / 1000000) - 200000 + ++steps}};
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void write_all(const struct tierce__started *started)
{
    for (size_t i = 0; i < started->count; i++)
        for (size_t s = 0; s < started->locations[i].spec_count; s++) {
            struct part part = part_of(started->locations[i].specs[s].uri);
            write_at(&part, 'x');
        }
}

static void age_all(const struct tierce__started *started)
{
    for (size_t i = 0; i < started->count; i++)
        for (size_t s = 0; s < started->locations[i].spec_count; s++)
            age(part_of(started->locations[i].specs[s].uri).path);
}

/* Stores the keys, and lets a day pass. */
static inline struct tierce__started store_old(void)
{
    struct tierce__started started = harness_start(&h, keys, KEYS);
    write_all(&started);
    age_all(&started);
    harness_finish(&h, &started);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    h.now_us += HOUR_US;
    return started;
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* A file below the root that no record names. */
static const char *make_file(const char *name, bool is_old)
{
    static struct part part;
    snprintf(part.path, sizeof(part.path), "%s/%s", h.folder, name);
    part.at = 0;
    part.bytes = 100;
    write_at(&part, 'o');
    if (is_old)
        age(part.path);
    return part.path;
}

static struct tierce__scrub_state run(bool repairs)
{
    struct tierce__scrub_state state = {0};
    struct tierce__scrub_request request = {.storage = "s", .repairs = repairs, .rate = 1000000};
    int rc = tierce__scrub_start(scrub, &request, h.why);
    ck_assert_msg(rc == 0, "%d %s", rc, h.why);
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_int_ne(state.ended_us, 0);
    return state;
}

/* The call of an operator. */
static inline void stop_scrub(const char *name)
{
    struct tierce__storage storage = {.name = (char *)(uintptr_t)name};
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    const struct tierce__storage *found = tierce__catalog_storage(catalog, name);
    ck_assert_int_eq(tierce__scrub_stop(scrub, found != NULL ? found : &storage, h.why), 0);
    tierce__registry_release(h.registry, catalog);
}

static inline struct tierce__scrub_state run_done(bool repairs)
{
    struct tierce__scrub_state state = run(repairs);
    ck_assert_msg(state.phase == TIERCE__SCRUB_DONE, "%s: %s",
                  tierce__scrub_phase_name(state.phase), state.why);
    return state;
}

#endif
