/* SPDX-License-Identifier: Apache-2.0 */
/* Storages in operation: only files of blocks are deleted; storages that fail or hang are
 * skipped. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "wait_for.h"
#include "manager/storage/storages.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* ---- files ----------------------------------------------------------------------------------- */

static void open_quiet(void)
{
    struct tierce__storages_opts opts = {.size = sizeof(opts), .registry = registry};
    struct tierce__storage storage = nfs();
    add(&storage);
    ck_assert_int_eq(tierce__storages_open(&storages, &opts), 0);
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

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof(path), "%s%s", root, name);
    return path;
}

static void make_file(const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "%s", path_of(name));
    for (char *slash = path + strlen(root); (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static bool is_there(const char *name)
{
    struct stat st;
    return lstat(path_of(name), &st) == 0;
}

static int delete_path(const char *path)
{
    struct tierce__storage storage = nfs();
    int status = 1;
    ck_assert_int_eq(tierce__storages_delete(storages, &storage, &path, 1, &status), 0);
    return status;
}

START_TEST(test_deletes_and_tidies)
{
    open_quiet();
    make_file("i/tp0/a");
    make_file("i/tp0/b");
    make_file("i/tp1/c");
    ck_assert_int_eq(delete_path(path_of("i/tp0/a")), 0);
    ck_assert(!is_there("i/tp0/a"));
    ck_assert(is_there("i/tp0/b"));
    ck_assert_int_eq(delete_path(path_of("i/tp0/b")), 0);
    ck_assert(!is_there("i/tp0"));
    ck_assert(is_there("i/tp1/c"));
    ck_assert_int_eq(delete_path(path_of("i/tp1/c")), 0);
    ck_assert(!is_there("i"));
    ck_assert(is_there(""));                              /* the root stays */
    ck_assert_int_eq(delete_path(path_of("i/tp1/c")), 0); /* is not there */
    make_file("top");
    ck_assert_int_eq(delete_path(path_of("top")), 0);
    ck_assert(!is_there("top"));
}
END_TEST

START_TEST(test_never_leaves_the_root)
{
    char outside[128], link[256];
    open_quiet();
    snprintf(outside, sizeof(outside), "%s/outside", folder);
    snprintf(link, sizeof(link), "%s", path_of("link"));
    ck_assert_int_eq(mkdir(outside, 0700), 0);
    snprintf(outside, sizeof(outside), "%s/outside/f", folder);
    int fd = open(outside, O_CREAT | O_WRONLY, 0600);
    close(fd);
    make_file("d/f");
    ck_assert_int_eq(symlink("../outside", link), 0);
    static const char *const names[] = {
        "../outside/f", "d/../../outside/f", "d/./f", "d//f", "", "d/", "link/f", "link", "d", "."};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        ck_assert_msg(delete_path(path_of(names[i])) == TIERCE_E_ARGUMENT, "%s", names[i]);
    ck_assert_int_eq(delete_path(outside), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(delete_path("relative"), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(access(outside, F_OK), 0);
    ck_assert(is_there("d/f"));
    ck_assert(is_there("link"));
    char deep[200] = "";
    for (int i = 0; i < 40; i++)
        strcat(deep, "d/");
    ck_assert_int_eq(delete_path(path_of(strcat(deep, "f"))), 0); /* is not there */
}
END_TEST

/* Foreign files, folders and links in a storage: probes and deletions leave them as they are. */
START_TEST(test_foreign_files_stay)
{
    enum { COUNT = 6 };
    static const char *const kept[COUNT] = {"i/tp0/notes.txt", "i/tp0/link",
                                            "i/tp0/folder",    "i/tp1",
                                            "empty",           ".tierce-probe-0011223344556677"};
    struct tierce__storage storage = nfs();
    char target[128], text[8] = "";
    snprintf(target, sizeof(target), "%s/target", folder);
    FILE *file = fopen(target, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fputs("theirs", file) < 0, 0);
    fclose(file);
    make_file("i/tp0/a");
    make_file("i/tp0/notes.txt");
    make_file(".tierce-probe-0011223344556677");
    ck_assert_int_eq(mkdir(path_of("i/tp0/folder"), 0700), 0);
    ck_assert_int_eq(mkdir(path_of("empty"), 0700), 0);
    ck_assert_int_eq(symlink(target, path_of("i/tp0/link")), 0);
    ck_assert_int_eq(symlink(folder, path_of("i/tp1")), 0);
    add(&storage);
    open_probing(NULL, LONG_MS);
    WAIT_FOR(state_of("nfs").is_probed);
    ck_assert(state_of("nfs").is_well);
    ck_assert_int_eq(delete_path(path_of("i/tp0/a")), 0);
    /* A link or a folder that lies where a file of ours should be, and a link in its path. */
    ck_assert_int_eq(delete_path(path_of("i/tp0/link")), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(delete_path(path_of("i/tp0/folder")), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(delete_path(path_of("i/tp1/target")), TIERCE_E_ARGUMENT);
    ck_assert(!is_there("i/tp0/a"));
    for (size_t i = 0; i < COUNT; i++)
        ck_assert_msg(is_there(kept[i]), "%s", kept[i]);
    file = fopen(target, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(text, sizeof(text), file));
    fclose(file);
    ck_assert_str_eq(text, "theirs");
}
END_TEST

/* A root that is a link to nothing is not made: it may be a mount that is missing. */
START_TEST(test_a_root_that_is_a_dead_link)
{
    struct tierce__storage storage = nfs();
    char link[128], target[128];
    struct stat st;
    snprintf(link, sizeof(link), "%s/dead/", folder);
    snprintf(target, sizeof(target), "%s/gone", folder);
    storage.root_path = link;
    link[strlen(link) - 1] = '\0';
    ck_assert_int_eq(symlink(target, link), 0);
    add(&storage);
    open_probing(NULL, LONG_MS);
    WAIT_FOR(!is_available("nfs"));
    ck_assert_int_ne(lstat(target, &st), 0);
    ck_assert_int_eq(lstat(link, &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
}
END_TEST

START_TEST(test_deletes_many)
{
    enum { COUNT = 50 };
    char paths[COUNT][256];
    const char *list[COUNT + 1];
    int status[COUNT + 1];
    struct tierce__storage storage = nfs();
    open_quiet();
    for (int i = 0; i < COUNT; i++) {
        char name[32];
        snprintf(name, sizeof(name), "i/%d/f", i % 7);
        make_file(name);
        snprintf(paths[i], sizeof(paths[i]), "%s", path_of(name));
        list[i] = paths[i];
    }
    list[COUNT] = "/etc/passwd";
    ck_assert_int_eq(tierce__storages_delete(storages, &storage, list, COUNT + 1, status), 0);
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(status[i], 0);
    ck_assert_int_eq(status[COUNT], TIERCE_E_ARGUMENT);
    ck_assert(!is_there("i"));
}
END_TEST

START_TEST(test_measures_files_and_nothing_else)
{
    static const int expected[] = {0, -ENOENT, -ENOENT, TIERCE_E_ARGUMENT, TIERCE_E_ARGUMENT};
    enum { COUNT = 5 };
    static const char *const names[COUNT] = {"i/a", "i/b", "j/a", "i", "i/link/a"};
    char paths[COUNT][256];
    const char *list[COUNT];
    uint64_t bytes[COUNT];
    int status[COUNT];
    struct tierce__storage storage = nfs();
    open_quiet();
    make_file("i/a");
    ck_assert_int_eq(truncate(path_of("i/a"), 12345), 0);
    ck_assert_int_eq(symlink("/etc", path_of("i/link")), 0);
    for (int i = 0; i < COUNT; i++) {
        snprintf(paths[i], sizeof(paths[i]), "%s", path_of(names[i]));
        list[i] = paths[i];
    }
    ck_assert_int_eq(tierce__storages_measure(storages, &storage, list, COUNT, bytes, status), 0);
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(status[i], expected[i]);
    ck_assert_uint_eq(bytes[0], 12345);
    ck_assert(is_there("i/a"));
    storage.type = TIERCE__STORAGE_MOONCAKE;
    ck_assert_int_eq(tierce__storages_measure(storages, &storage, list, 1, bytes, status), 0);
    ck_assert_int_eq(status[0], TIERCE_E_UNSUPPORTED);
}
END_TEST

START_TEST(test_others_are_not_reached)
{
    struct tierce__storage storage = {
        .number = 9, .name = "m", .type = TIERCE__STORAGE_MOONCAKE, .is_enabled = true};
    const char *path = "/x";
    int status = 0;
    open_quiet();
    ck_assert_int_eq(tierce__storages_delete(storages, &storage, &path, 1, &status), 0);
    ck_assert_int_eq(status, TIERCE_E_UNSUPPORTED);
    ck_assert(tierce__storages_is_available(storages, &storage));
    storage.is_enabled = false;
    ck_assert(!tierce__storages_is_available(storages, &storage));
    ck_assert(!state_of("m").is_enabled); /* there is no such storage */
    ck_assert(!tierce__storages_is_managed(storages, TIERCE__STORAGE_TAIRMEMPOOL));
    ck_assert(!tierce__storages_is_managed(storages, TIERCE__STORAGE_MOONCAKE));
}
END_TEST

/* ---- probes of real folders ------------------------------------------------------------------ */

/* With an interpreter that has it (test_storage_mooncake). */
START_TEST(test_mooncake_is_reached_through_an_interpreter)
{
    struct tierce__storages_opts opts = {
        .size = sizeof(opts), .registry = registry, .mooncake_python = "/nowhere/python"};
    char master[] = "127.0.0.1:1";
    struct tierce__storage storage = {.number = 9,
                                      .name = "m",
                                      .type = TIERCE__STORAGE_MOONCAKE,
                                      .is_enabled = true,
                                      .master_service_entry = master};
    ck_assert_int_eq(tierce__storages_open(&storages, &opts), 0);
    ck_assert(tierce__storages_is_managed(storages, TIERCE__STORAGE_MOONCAKE));
    ck_assert(!tierce__storages_is_managed(storages, TIERCE__STORAGE_TAIRMEMPOOL));
    ck_assert_int_ne(tierce__storages_try(storages, &storage, why), 0);
    ck_assert_msg(strstr(why, "/nowhere/python") != NULL, "%s", why);
}
END_TEST

START_TEST(test_probes_a_folder)
{
    struct tierce__storage storage = nfs();
    add(&storage);
    storage.name = "mooncake";
    storage.type = TIERCE__STORAGE_MOONCAKE;
    add(&storage);
    open_probing(NULL, LONG_MS);
    WAIT_FOR(state_of("nfs").is_probed);
    struct tierce__storage_state state = state_of("nfs");
    ck_assert(state.is_well && state.is_enabled);
    ck_assert_str_eq(state.why, "");
    ck_assert(state.used_share >= 0 && state.used_share <= 1);
    ck_assert(is_available("nfs") && is_available("mooncake"));
    ck_assert(!state_of("mooncake").is_probed);
    tierce__storages_close(storages);
    storages = NULL;
    ck_assert_int_eq(rmdir(root), 0); /* nothing of the probes was left */
}
END_TEST

START_TEST(test_makes_the_root_but_not_above)
{
    struct tierce__storage storage = nfs();
    char deep[96];
    ck_assert_int_eq(rmdir(root), 0);
    add(&storage);
    snprintf(deep, sizeof(deep), "%s/mount/tierce/", folder);
    storage.name = "deep";
    storage.root_path = deep;
    add(&storage);
    open_probing(NULL, LONG_MS);
    WAIT_FOR(state_of("nfs").is_probed);
    ck_assert(is_there(""));
    WAIT_FOR(!is_available("deep"));
    struct tierce__storage_state state = state_of("deep");
    ck_assert(!state.is_well);
    ck_assert_str_eq(state.why, "open the root: No such file or directory");
    ck_assert(is_available("nfs"));
    /* It comes back by itself. */
    *strstr(deep, "tierce/") = '\0';
    ck_assert_int_eq(mkdir(deep, 0700), 0);
    WAIT_FOR(is_available("deep"));
}
END_TEST

START_TEST(test_roots_that_cannot_be_written)
{
    struct tierce__storage storage = nfs();
    char file[96];
    make_file("f");
    snprintf(file, sizeof(file), "%sf", root);
    storage.root_path = file;
    storage.name = "file";
    add(&storage);
    storage.root_path = "/proc/";
    storage.name = "proc";
    add(&storage);
    open_probing(NULL, LONG_MS);
    WAIT_FOR(!is_available("file") && !is_available("proc"));
    ck_assert_str_eq(state_of("file").why, "open the root: Not a directory");
    ck_assert(strncmp(state_of("proc").why, "create: ", 8) == 0);
    /* Given another root it is another storage, which is well until it is known not to be. */
    storage.root_path = root;
    ck_assert_int_eq(tierce__registry_update_storage(registry, &storage, why), 0);
    WAIT_FOR(is_available("proc") && state_of("proc").is_probed);
}
END_TEST

/* ---- an ill storage -------------------------------------------------------------------------- */

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

static const struct tierce__storage_ops ill;

static int ill_open(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                    char text[128])
{
    (void)storage;
    (void)text;
    *out = tierce__alloc(sizeof(**out));
    if (*out == NULL)
        return -ENOMEM;
    (*out)->ops = &ill;
    pthread_mutex_lock(&gate);
    opens++;
    pthread_mutex_unlock(&gate);
    return 0;
}

static void ill_close(struct tierce__storage_driver *driver)
{
    tierce__free(driver);
    pthread_mutex_lock(&gate);
    closes++;
    pthread_mutex_unlock(&gate);
}

static int ill_probe(struct tierce__storage_driver *driver, char text[128])
{
    (void)driver;
    enter(&probes);
    pthread_mutex_lock(&gate);
    int rc = fails ? -EIO : 0;
    pthread_mutex_unlock(&gate);
    if (rc != 0)
        snprintf(text, 128, "it is ill");
    return rc;
}

static int ill_remove(struct tierce__storage_driver *driver, const char *path)
{
    (void)driver;
    (void)path;
    enter(&removes);
    return 0;
}

static double ill_share(struct tierce__storage_driver *driver)
{
    (void)driver;
    return 0.5;
}

static const struct tierce__storage_ops ill = {.name = "ill",
                                               .open = ill_open,
                                               .close = ill_close,
                                               .probe = ill_probe,
                                               .remove = ill_remove,
                                               .used_share = ill_share};

static const struct tierce__storage_ops *find_ill(enum tierce__storage_type type)
{
    return type == TIERCE__STORAGE_NFS ? &ill : NULL;
}

START_TEST(test_ill_and_well_again)
{
    struct tierce__storage storage = nfs();
    add(&storage);
    open_probing(find_ill, LONG_MS);
    WAIT_FOR(state_of("nfs").is_probed);
    ck_assert(is_available("nfs"));
    ck_assert(state_of("nfs").used_share == 0.5);
    set_gate(false, true);
    WAIT_FOR(!is_available("nfs"));
    ck_assert_str_eq(state_of("nfs").why, "it is ill");
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
                                                    .close = ill_close,
                                                    .probe = part_probe,
                                                    .remove = ill_remove,
                                                    .used_share = ill_share};

static int part_open(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                     char text[128])
{
    int rc = ill_open(out, storage, text);
    if (rc == 0)
        (*out)->ops = &part_ops;
    return rc;
}

static const struct tierce__storage_ops *find_part(enum tierce__storage_type type)
{
    return type == TIERCE__STORAGE_NODE ? &part_ops : find_ill(type);
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
    open_probing(find_ill, HANG_MS);
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
                                         .find_ops = find_ill};
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
    open_probing(find_ill, HANG_MS);
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
    open_probing(find_ill, LONG_MS);
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
        .size = sizeof(opts), .registry = registry, .find_ops = find_ill};
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
    open_probing(find_ill, LONG_MS);
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
    open_probing(find_ill, LONG_MS);
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
                                         .find_ops = find_ill};
    set_gate(false, true);
    add(&storage);
    ck_assert_int_eq(tierce__storages_open(&storages, &opts), 0);
    WAIT_FOR(get(&told.count) == 1);
    ck_assert_uint_ge(get(&probes), 3);
    pthread_mutex_lock(&gate);
    ck_assert(!told.is_well);
    ck_assert_str_eq(told.name, "nfs");
    ck_assert_str_eq(told.text, "it is ill");
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
    open_probing(find_ill, LONG_MS);
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

CHECK_MAIN("storages", .seconds = 180, .setup = set_up, .teardown = tear_down,
           .tests = {test_deletes_and_tidies,
                     test_never_leaves_the_root,
                     test_foreign_files_stay,
                     test_a_root_that_is_a_dead_link,
                     test_deletes_many,
                     test_measures_files_and_nothing_else,
                     test_others_are_not_reached,
                     test_mooncake_is_reached_through_an_interpreter,
                     test_probes_a_folder,
                     test_makes_the_root_but_not_above,
                     test_roots_that_cannot_be_written,
                     test_ill_and_well_again,
                     test_a_part_is_probed_less_often,
                     test_a_probe_that_hangs,
                     test_a_delete_that_hangs,
                     test_closes_beside_what_hangs,
                     test_closing_holds_no_lock,
                     test_removed_before_a_deletion,
                     test_changes_of_set_up,
                     test_replaced_by_an_unmanaged_one,
                     test_changes_are_told,
                     test_threads})
