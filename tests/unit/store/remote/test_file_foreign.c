/* SPDX-License-Identifier: Apache-2.0 */
/* The folder behind file:// holds files of others, and links: they stay as they are. */
#include "base/vfs/vfs.h"
#include "check_main.h"
#include "store/remote/file/file_connector.h"
#include "connector_harness.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define CAP_BYTES (4u << 20)

/* "a/b.c" lies in c0/62, as its SHA-256 begins with that. */
#define NAME "a/b.c"

static char root[64];
static struct tierce__pool *pool;
static struct tierce__connector *connector;

static const char *at(const char *name)
{
    static char path[4][160];
    static unsigned next;
    snprintf(path[next % 4], sizeof(path[0]), "%s/%s", root, name);
    return path[next++ % 4];
}

static void make_root(void)
{
    snprintf(root, sizeof(root), "/tmp/tierce-foreign-XXXXXX");
    temp_folder_make(root);
    ck_assert_int_eq(mkdir(at("store"), 0700), 0);
    ck_assert_int_eq(mkdir(at("outside"), 0700), 0);
    pool = connector_pool();
}

static void open_store(uint64_t cap_bytes)
{
    struct tierce__file_opts opts = {.size = sizeof(opts),
                                     .root = at("store"),
                                     .store_name = "file://here",
                                     .cap_bytes = cap_bytes,
                                     .sweep_ms = 20,
                                     .tmp_ms = 3600000};
    ck_assert_int_eq(tierce__vfs_threads_create(&opts.vfs, 1), 0);
    ck_assert_int_eq(tierce__file_create(&connector, &opts), 0);
}

static void end(void)
{
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    tierce__pool_destroy(pool);
    temp_folder_remove(root);
}

/* A file of some bytes that is older than all objects. */
static void write_old(const char *name, const char *text)
{
    const struct timespec old[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    FILE *file = fopen(at(name), "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(utimensat(AT_FDCWD, at(name), old, 0), 0);
}

static void check_text(const char *name, const char *text)
{
    char read[64] = "";
    FILE *file = fopen(at(name), "r");
    ck_assert_msg(file != NULL, "%s has gone", name);
    ck_assert_ptr_nonnull(fgets(read, sizeof(read), file));
    fclose(file);
    ck_assert_str_eq(read, text);
}

/* Until a sweep has evicted. */
static void fill(void)
{
    char name[16];
    for (unsigned i = 0, full = 0; full == 0; i++) {
        snprintf(name, sizeof(name), "object-%u", i);
        int rc = connector_put(connector, pool, name, i, 1 << 20);
        /* One of them may belong behind the link. */
        ck_assert(rc == 0 || rc == TIERCE_E_FULL || rc == TIERCE_E_UNSUPPORTED);
        if (connector_exists(connector, "object-0") == 0)
            full = 1;
    }
}

/* All of them are older than what is evicted. */
START_TEST(a_sweep_leaves_what_others_have_there)
{
    static const char *const names[] = {
        "store/notes",
        "store/object-0",                             /* where no object lies */
        "store/c0/62/object-0",                       /* where another one lies */
        "store/c0/62/~tmp-notes",                     /* no name of a temporary */
        "store/~tmp-0123456789abcdef0123456789abcde", /* one digit is missing */
        "store/photos/c0/a%2Fb.c",
        "store/c0/photos/~tmp-0123456789abcdef0123456789abcdef",
        "outside/62/a%2Fb.c",
    };
    static const char *const folders[] = {"store/c0",        "store/c0/62",     "store/c0/photos",
                                          "store/photos",    "store/photos/c0", "outside/62",
                                          "store/photos/d0", "store/~drafts"};
    make_root();
    for (size_t i = 0; i < sizeof(folders) / sizeof(*folders); i++)
        ck_assert_int_eq(mkdir(at(folders[i]), 0700), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        write_old(names[i], names[i]);
    write_old("store/c0/62/~tmp-0123456789abcdef0123456789abcdef", "of one who died");
    ck_assert_int_eq(symlink(at("outside"), at("store/d0")), 0);
    ck_assert_int_eq(symlink(at("outside/62/a%2Fb.c"), at("store/c0/62/a%2Fb.c")), 0);
    ck_assert_int_eq(chmod(at("store/photos/d0"), 0), 0); /* nor is it looked into */
    open_store(CAP_BYTES);
    fill();
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        check_text(names[i], names[i]);
    check_text("store/c0/62/a%2Fb.c", "outside/62/a%2Fb.c"); /* the link */
    ck_assert_int_ne(access(at("store/c0/62/~tmp-0123456789abcdef0123456789abcdef"), F_OK), 0);
    end();
}
END_TEST

/* 0: the folder of an object is a link, 1: the object is, 2: it is a folder. */
START_TEST(what_is_not_ours_is_neither_read_nor_replaced)
{
    struct stat before, after;
    make_root();
    ck_assert_int_eq(mkdir(at("outside/62"), 0700), 0);
    write_old("outside/62/a%2Fb.c", "0123456789");
    if (_i > 0) {
        ck_assert_int_eq(mkdir(at("store/c0"), 0700), 0);
        ck_assert_int_eq(mkdir(at("store/c0/62"), 0700), 0);
    }
    if (_i == 0)
        ck_assert_int_eq(symlink(at("outside"), at("store/c0")), 0);
    else if (_i == 1)
        ck_assert_int_eq(symlink(at("outside/62/a%2Fb.c"), at("store/c0/62/a%2Fb.c")), 0);
    else
        ck_assert_int_eq(mkdir(at("store/c0/62/a%2Fb.c"), 0700), 0);
    ck_assert_int_eq(lstat(at("store/c0/62/a%2Fb.c"), &before), 0);
    open_store(CAP_BYTES);
    ck_assert_int_eq(connector_exists(connector, NAME), 0);
    ck_assert_int_eq(connector_get(connector, pool, NAME, 1, 0, 10), TIERCE_E_MISS);
    ck_assert_int_eq(connector_put(connector, pool, NAME, 1, 10), TIERCE_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(connector_why(connector), "/c0/62/a%2Fb.c: "));
    ck_assert_int_eq(connector_delete(connector, NAME), 0);
    ck_assert_int_eq(lstat(at("store/c0/62/a%2Fb.c"), &after), 0);
    ck_assert_uint_eq(before.st_ino, after.st_ino);
    check_text("outside/62/a%2Fb.c", "0123456789");
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 10), 0);
    end();
}
END_TEST

/* A mark that is a link is none, whatever it points to. */
START_TEST(a_mark_is_no_link)
{
    make_root();
    if (_i == 0)
        write_old("outside/mark", "tierce file store 1\nfanout 2\n");
    ck_assert_int_eq(symlink(at("outside/mark"), at("store/~store")), 0);
    open_store(0);
    ck_assert_int_eq(connector_put(connector, pool, NAME, 1, 10), TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(connector_why(connector), "~store"));
    ck_assert_int_eq(access(at("outside/mark"), F_OK), _i == 0 ? 0 : -1);
    end();
}
END_TEST

/* Without a claim nothing is swept: the store is full in the end. */
START_TEST(a_claim_of_others_stays)
{
    char name[16];
    int rc = 0;
    make_root();
    write_old("outside/claim", "bytes of mine");
    if (_i == 0)
        write_old("store/~claim", "bytes of mine");
    else
        ck_assert_int_eq(symlink(at("outside/claim"), at("store/~claim")), 0);
    open_store(CAP_BYTES);
    for (unsigned i = 0; i < 10 && rc == 0; i++) {
        snprintf(name, sizeof(name), "object-%u", i);
        rc = connector_put(connector, pool, name, i, 1 << 20);
    }
    ck_assert_int_eq(rc, TIERCE_E_FULL);
    check_text("store/~claim", "bytes of mine");
    check_text("outside/claim", "bytes of mine");
    end();
}
END_TEST

CHECK_MAIN("file foreign", .seconds = 60, .tests = {a_sweep_leaves_what_others_have_there},
           .loops = {{what_is_not_ours_is_neither_read_nor_replaced, 0, 3},
                     {a_mark_is_no_link, 0, 2},
                     {a_claim_of_others_stays, 0, 2}})
