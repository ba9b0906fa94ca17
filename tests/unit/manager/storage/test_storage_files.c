/* SPDX-License-Identifier: Apache-2.0 */
/* Storages of files: only files of blocks are deleted, and roots are made, but not above. */
#include "storages_case.h"

#include <errno.h>
#include <fcntl.h>

static void open_quiet(void)
{
    struct tierce__storages_opts opts = {.size = sizeof(opts), .registry = registry};
    struct tierce__storage storage = nfs();
    add(&storage);
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
    ck_assert_str_eq(state.why, "open the root: No such file or directory; create its parent "
                                "folder, or mount it");
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
    /* Given another root it is another storage, which is healthy until a probe fails. */
    storage.root_path = root;
    ck_assert_int_eq(tierce__registry_update_storage(registry, &storage, why), 0);
    WAIT_FOR(is_available("proc") && state_of("proc").is_probed);
}
END_TEST

CHECK_MAIN("storage_files", .seconds = 180, .setup = set_up, .teardown = tear_down,
           .tests = {test_deletes_and_tidies, test_never_leaves_the_root, test_foreign_files_stay,
                     test_a_root_that_is_a_dead_link, test_deletes_many,
                     test_measures_files_and_nothing_else, test_others_are_not_reached,
                     test_mooncake_is_reached_through_an_interpreter, test_probes_a_folder,
                     test_makes_the_root_but_not_above, test_roots_that_cannot_be_written})
