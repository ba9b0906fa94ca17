/* SPDX-License-Identifier: Apache-2.0 */
/* Storages that fail or hang are skipped, and are used again when they answer. */
#include "base/alloc.h"
#include "base/clock.h"
#include "storages_case.h"

#include <errno.h>
#include <pthread.h>

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static bool is_shut, fails;
static unsigned inside, inside_max, opens, closes, probes, removes;

static void enter(unsigned *count)
{
    pthread_mutex_lock(&gate);
    ++*count;
    inside++;
    inside_max = inside > inside_max ? inside : inside_max;
    while (is_shut)
        pthread_cond_wait(&opened, &gate);
    inside--;
    pthread_mutex_unlock(&gate);
}

static void set_gate(bool shut, bool fail)
{
    pthread_mutex_lock(&gate);
    is_shut = shut;
    fails = fail;
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&gate);
}

static unsigned get(const unsigned *count)
{
    pthread_mutex_lock(&gate);
    unsigned value = *count;
    pthread_mutex_unlock(&gate);
    return value;
}

static const struct tierce__storage_ops faulty_ops;

static int faulty_open(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                       char text[128])
{
    (void)storage;
    (void)text;
    *out = tierce__alloc(sizeof(**out));
    if (*out == NULL)
        return -ENOMEM;
    (*out)->ops = &faulty_ops;
    pthread_mutex_lock(&gate);
    opens++;
    pthread_mutex_unlock(&gate);
    return 0;
}

static void faulty_close(struct tierce__storage_driver *driver)
{
    tierce__free(driver);
    pthread_mutex_lock(&gate);
    closes++;
    pthread_mutex_unlock(&gate);
}

static int faulty_probe(struct tierce__storage_driver *driver, char text[128])
{
    (void)driver;
    enter(&probes);
    pthread_mutex_lock(&gate);
    int rc = fails ? -EIO : 0;
    pthread_mutex_unlock(&gate);
    if (rc != 0)
        snprintf(text, 128, "it is faulty");
    return rc;
}

static int faulty_remove(struct tierce__storage_driver *driver, const char *path)
{
    (void)driver;
    (void)path;
    enter(&removes);
    return 0;
}

static double faulty_share(struct tierce__storage_driver *driver)
{
    (void)driver;
    return 0.5;
}

static const struct tierce__storage_ops faulty_ops = {.name = "faulty",
                                                      .open = faulty_open,
                                                      .close = faulty_close,
                                                      .probe = faulty_probe,
                                                      .remove = faulty_remove,
                                                      .used_share = faulty_share};

static const struct tierce__storage_ops *find_faulty(enum tierce__storage_type type)
{
    return type == TIERCE__STORAGE_NFS ? &faulty_ops : NULL;
}

START_TEST(test_fails_and_recovers)
{
    struct tierce__storage storage = nfs();
    add(&storage);
    open_probing(find_faulty, LONG_MS);
    WAIT_FOR(state_of("nfs").is_probed);
    ck_assert(is_available("nfs"));
    ck_assert(state_of("nfs").used_share == 0.5);
    set_gate(false, true);
    WAIT_FOR(!is_available("nfs"));
    ck_assert_str_eq(state_of("nfs").why, "it is faulty");
    ck_assert(state_of("nfs").is_enabled);
    set_gate(false, false);
    WAIT_FOR(is_available("nfs"));
    /* Disabled, it is not asked; enabled, it begins anew. */
    ck_assert_int_eq(tierce__registry_enable_storage(registry, "nfs", false, why), 0);
    ck_assert(!is_available("nfs"));
    WAIT_FOR(!state_of("nfs").is_probed);
    ck_assert_int_eq(tierce__registry_enable_storage(registry, "nfs", true, why), 0);
    WAIT_FOR(state_of("nfs").is_probed);
    ck_assert_uint_eq(get(&opens), 1);
}
END_TEST

static unsigned part_probes;
static bool is_part_shut;

static int part_open(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                     char text[128]);

static int part_probe(struct tierce__storage_driver *driver, char text[128])
{
    (void)driver, (void)text;
    pthread_mutex_lock(&gate);
    part_probes++;
    while (is_part_shut)
        pthread_cond_wait(&opened, &gate);
    pthread_mutex_unlock(&gate);
    return 0;
}

static const struct tierce__storage_ops part_ops = {.name = "part",
                                                    .open = part_open,
                                                    .close = faulty_close,
                                                    .probe = part_probe,
                                                    .remove = faulty_remove,
                                                    .used_share = faulty_share};

static int part_open(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                     char text[128])
{
    int rc = faulty_open(out, storage, text);
    if (rc == 0)
        (*out)->ops = &part_ops;
    return rc;
}

static const struct tierce__storage_ops *find_part(enum tierce__storage_type type)
{
    return type == TIERCE__STORAGE_NODE ? &part_ops : find_faulty(type);
}

static void shut_part(bool is_shut_now)
{
    pthread_mutex_lock(&gate);
    is_part_shut = is_shut_now;
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&gate);
}

/* Waits for so many probes of the other storage; returns those of the part meanwhile. */
static unsigned probes_beside(unsigned others)
{
    unsigned before = get(&probes), from = get(&part_probes);
    WAIT_FOR(get(&probes) >= before + others);
    return get(&part_probes) - from;
}

/* The part of a node that reports is probed once a while, and like the others while there is a
 * doubt, or its node is silent. */
START_TEST(test_a_part_is_probed_less_often)
{
    enum { OTHERS = 2 * TIERCE__STORAGES_PART_INTERVALS };
    struct tierce__storage storage = nfs();
    const struct tierce__storage part = {.name = "p.a",
                                         .type = TIERCE__STORAGE_NODE,
                                         .is_enabled = true,
                                         .capacity_bytes = 1 << 20,
                                         .uri = "transfer://127.0.0.1:1/memory",
                                         .pool = "p",
                                         .node = "a",
                                         .medium = "memory",
                                         .incarnation = "0123456789abcdef0123456789abcdef",
                                         .host_id = "h"};
    add(&storage);
    ck_assert_msg(tierce__registry_put_part(registry, &part, false, why) == 0, "%s", why);
    open_probing(find_part, LONG_MS);
    WAIT_FOR(state_of("p.a").is_probed && state_of("nfs").is_probed);
    unsigned some = probes_beside(OTHERS);
    ck_assert_uint_ge(some, 1);
    ck_assert_uint_le(some, OTHERS / 4);
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    uint16_t number = tierce__catalog_storage(catalog, "p.a")->number;
    tierce__registry_release(registry, catalog);
    tierce__storages_doubt(storages, number);
    ck_assert_uint_ge(probes_beside(3), 1); /* within the usual interval */
    some = probes_beside(OTHERS);           /* a good probe has ended the doubt */
    ck_assert_uint_le(some, OTHERS / 4);
    shut_part(true);
    unsigned before = get(&part_probes);
    WAIT_FOR(get(&part_probes) > before);
    tierce__storages_doubt(storages, number);
    shut_part(false); /* the probe that began before the doubt does not end it */
    ck_assert_uint_ge(probes_beside(4), 1);
    tierce__storages_set_silent(storages, number, true);
    some = probes_beside(OTHERS);
    ck_assert_uint_ge(some, OTHERS / 3);
}
END_TEST

START_TEST(test_a_probe_that_hangs)
{
    struct tierce__storage storage = nfs();
    const char *path = "/x";
    int status = 0;
    set_gate(true, false);
    add(&storage);
    open_probing(find_faulty, HANG_MS);
    WAIT_FOR(!is_available("nfs"));
    ck_assert_str_eq(state_of("nfs").why, "it does not answer");
    ck_assert_int_eq(tierce__storages_delete(storages, &storage, &path, 1, &status), 0);
    ck_assert_int_eq(status, TIERCE_E_DOWN);
    ck_assert_uint_eq(get(&probes), 1); /* one thread hangs, and no more */
    ck_assert_uint_eq(get(&inside_max), 1);
    set_gate(false, false);
    WAIT_FOR(is_available("nfs"));
    WAIT_FOR(tierce__storages_delete(storages, &storage, &path, 1, &status) == 0 && status == 0);
}
END_TEST

START_TEST(test_a_delete_that_hangs)
{
    struct tierce__storage storage = nfs();
    const char *paths[] = {"/x", "/y", "/z"};
    int status[3];
    struct tierce__storages_opts opts = {.size = sizeof(opts),
                                         .registry = registry,
                                         .probe_timeout_ms = DELETE_MS,
                                         .find_ops = find_faulty};
    add(&storage);
    ck_assert_int_eq(tierce__storages_open(&storages, &opts), 0);
    set_gate(true, false);
    ck_assert_int_eq(tierce__storages_delete(storages, &storage, paths, 3, status), 0);
    ck_assert_int_eq(status[0], TIERCE_E_DEADLINE);
    ck_assert_int_eq(status[1], TIERCE_E_DOWN);
    ck_assert_int_eq(status[2], TIERCE_E_DOWN);
    ck_assert_int_eq(tierce__storages_delete(storages, &storage, paths, 1, status), 0);
    ck_assert_int_eq(status[0], TIERCE_E_DOWN);
    set_gate(false, false);
    WAIT_FOR(get(&inside) == 0);
    WAIT_FOR(tierce__storages_delete(storages, &storage, paths, 3, status) == 0 && status[2] == 0);
    /* Requests without a waiter were not executed. */
    ck_assert_uint_eq(get(&removes), 4);
}
END_TEST

START_TEST(test_closes_beside_what_hangs)
{
    struct tierce__storage storage = nfs();
    add(&storage);
    ck_assert_int_eq(tierce__registry_remove_storage(registry, "nfs", why), 0);
    uint64_t live = tierce__alloc_live();
    set_gate(true, false);
    add(&storage);
    open_probing(find_faulty, HANG_MS);
    WAIT_FOR(!is_available("nfs"));
    tierce__storages_close(storages);
    storages = NULL;
    ck_assert_uint_eq(get(&closes), 0);
    ck_assert_int_eq(tierce__registry_remove_storage(registry, "nfs", why), 0);
    set_gate(false, false);
    WAIT_FOR(get(&closes) == 1);
    WAIT_FOR(tierce__alloc_live() <= live);
}
END_TEST

static void *close_storages(void *arg)
{
    (void)arg;
    tierce__storages_close(storages);
    return NULL;
}

/* While the storages wait for a driver's call to end, their state can be read. */
START_TEST(test_closing_holds_no_lock)
{
    struct tierce__storage storage = nfs();
    pthread_t closer;
    add(&storage);
    open_probing(find_faulty, LONG_MS);
    WAIT_FOR(state_of("nfs").used_share == 0.5);
    set_gate(true, false);
    WAIT_FOR(get(&inside) == 1);
    uint64_t begun_ns = tierce__now_ns();
    ck_assert_int_eq(pthread_create(&closer, NULL, close_storages, NULL), 0);
    WAIT_FOR(state_of("nfs").used_share < 0); /* it waits */
    ck_assert_uint_lt(tierce__now_ns() - begun_ns, LONG_MS / 2 * TIERCE__MS_NS);
    ck_assert_uint_eq(get(&closes), 0);
    set_gate(false, false);
    pthread_join(closer, NULL);
    storages = NULL;
    ck_assert_uint_eq(get(&closes), 1);
}
END_TEST

/* A deletion with an old catalog makes no driver and no thread for a storage that was removed. */
START_TEST(test_removed_before_a_deletion)
{
    struct tierce__storage storage = nfs();
    const char *path = "/x";
    int status = 1;
    struct tierce__storages_opts opts = {
        .size = sizeof(opts), .registry = registry, .find_ops = find_faulty};
    add(&storage);
    ck_assert_int_eq(tierce__storages_open(&storages, &opts), 0);
    ck_assert_int_eq(tierce__registry_remove_storage(registry, "nfs", why), 0);
    ck_assert_int_eq(tierce__storages_delete(storages, &storage, &path, 1, &status),
                     TIERCE_E_CLOSED);
    ck_assert_int_eq(status, 1);
    ck_assert_uint_eq(get(&opens), 0);
}
END_TEST

START_TEST(test_changes_of_set_up)
{
    struct tierce__storage storage = nfs();
    add(&storage);
    open_probing(find_faulty, LONG_MS);
    WAIT_FOR(state_of("nfs").is_probed);
    storage.capacity_bytes = 7; /* nothing to its driver */
    ck_assert_int_eq(tierce__registry_update_storage(registry, &storage, why), 0);
    storage.root_path = "/other";
    ck_assert_int_eq(tierce__registry_update_storage(registry, &storage, why), 0);
    WAIT_FOR(get(&opens) == 2 && get(&closes) == 1);
    ck_assert_int_eq(tierce__registry_remove_storage(registry, "nfs", why), 0);
    WAIT_FOR(get(&closes) == 2);
    ck_assert_uint_eq(get(&opens), 2);
}
END_TEST

START_TEST(test_replaced_by_an_unmanaged_one)
{
    struct tierce__storage storage = nfs();
    set_gate(false, true);
    add(&storage);
    open_probing(find_faulty, LONG_MS);
    WAIT_FOR(!is_available("nfs"));
    ck_assert_int_eq(tierce__registry_remove_storage(registry, "nfs", why), 0);
    storage.type = TIERCE__STORAGE_MOONCAKE;
    add(&storage);
    WAIT_FOR(get(&closes) == 1);
    struct tierce__storage_state state = state_of("nfs");
    ck_assert(state.is_enabled && state.is_well && !state.is_managed && !state.is_probed);
    ck_assert(state.used_share < 0);
    ck_assert(is_available("nfs"));
    ck_assert_int_eq(tierce__storages_try(storages, &storage, why), 0);
    ck_assert_uint_eq(get(&opens), 1);
    ck_assert_int_eq(tierce__registry_remove_storage(registry, "nfs", why), 0);
    storage.type = TIERCE__STORAGE_NFS;
    add(&storage);
    WAIT_FOR(!is_available("nfs"));
    ck_assert(state_of("nfs").is_managed);
    ck_assert_uint_eq(get(&opens), 2);
}
END_TEST

static struct {
    unsigned count;
    bool is_well;
    char name[32], text[128];
} told;

static void note_change(void *arg, const char *name, bool is_well, const char *text)
{
    (void)arg;
    pthread_mutex_lock(&gate);
    told.count++;
    told.is_well = is_well;
    snprintf(told.name, sizeof(told.name), "%s", name);
    snprintf(told.text, sizeof(told.text), "%s", text);
    pthread_mutex_unlock(&gate);
}

START_TEST(test_changes_are_told)
{
    struct tierce__storage storage = nfs();
    struct tierce__storages_opts opts = {.size = sizeof(opts),
                                         .registry = registry,
                                         .probe_interval_ms = 10,
                                         .failures = 3,
                                         .changed = note_change,
                                         .find_ops = find_faulty};
    set_gate(false, true);
    add(&storage);
    ck_assert_int_eq(tierce__storages_open(&storages, &opts), 0);
    WAIT_FOR(get(&told.count) == 1);
    ck_assert_uint_ge(get(&probes), 3);
    pthread_mutex_lock(&gate);
    ck_assert(!told.is_well);
    ck_assert_str_eq(told.name, "nfs");
    ck_assert_str_eq(told.text, "it is faulty");
    pthread_mutex_unlock(&gate);
    set_gate(false, false);
    WAIT_FOR(get(&told.count) == 2);
    ck_assert(told.is_well);
}
END_TEST

static void *delete_always(void *arg)
{
    struct tierce__storage storage = nfs();
    const char *paths[] = {"/a", "/b", "/c"};
    int status[3];
    for (unsigned i = 0; i < *(unsigned *)arg; i++) {
        ck_assert_int_eq(tierce__storages_delete(storages, &storage, paths, 3, status), 0);
        for (int p = 0; p < 3; p++)
            ck_assert(status[p] == 0 || status[p] == TIERCE_E_DOWN ||
                      status[p] == TIERCE_E_DEADLINE);
    }
    return NULL;
}

START_TEST(test_threads)
{
    pthread_t threads[4];
    unsigned rounds = 300;
    struct tierce__storage storage = nfs();
    add(&storage);
    open_probing(find_faulty, LONG_MS);
    for (size_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, delete_always, &rounds);
    for (unsigned i = 0; i < 30; i++) {
        char other[32];
        snprintf(other, sizeof(other), "/r%u", i);
        storage.root_path = other;
        ck_assert_int_eq(tierce__registry_update_storage(registry, &storage, why), 0);
        usleep(2000);
    }
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    tierce__storages_close(storages);
    storages = NULL;
    ck_assert_uint_eq(get(&opens), get(&closes));
}
END_TEST

CHECK_MAIN("storages", .seconds = 180, .at_once = true, .setup = set_up, .teardown = tear_down,
           .tests = {test_fails_and_recovers, test_a_part_is_probed_less_often,
                     test_a_probe_that_hangs, test_a_delete_that_hangs,
                     test_closes_beside_what_hangs, test_closing_holds_no_lock,
                     test_removed_before_a_deletion, test_changes_of_set_up,
                     test_replaced_by_an_unmanaged_one, test_changes_are_told, test_threads})
