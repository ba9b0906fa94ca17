/* SPDX-License-Identifier: Apache-2.0 */
/* file:// with names=path: slots of files, links and other traps, faults, power cuts, a file system
 * that goes and one that hangs. */
#include "base/alloc.h"
#include "check_main.h"
#include "connector_harness.h"
#include "store/remote/file/file_connector.h"
#include "store/remote/file/file_place.h"
#include "vfs_fault.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINKS = 2, SLOT = 5000 };

static char root[64];
static struct tierce__pool *pool;
static struct tierce__connector *connector;
static struct tierce__vfs *faults[LINKS]; /* of each link; the second one takes stores */
static unsigned fault_count;
static bool power; /* may be cut */

static const char *at(const char *name)
{
    static char path[4][160];
    static unsigned next;
    snprintf(path[next % 4], sizeof(path[0]), "%s/%s", root, name);
    return path[next++ % 4];
}

static int make_vfs(struct tierce__vfs **out)
{
    struct tierce__vfs *inner = NULL;
    int rc = tierce__vfs_threads_create(&inner, 1);
    if (rc != 0)
        return rc;
    ck_assert_uint_lt(fault_count, LINKS);
    rc = tierce__vfs_fault_create(out, inner, power);
    if (rc != 0)
        inner->ops->destroy(inner);
    else
        faults[fault_count++] = *out;
    return rc;
}

static int make(void)
{
    fault_count = 0;
    return tierce__file_create(&connector,
                               &(struct tierce__file_opts){.size = sizeof(struct tierce__file_opts),
                                                           .root = at("store"),
                                                           .store_name = "file://here",
                                                           .links = LINKS,
                                                           .has_paths = true,
                                                           .make_vfs = make_vfs});
}

static void make_root(void)
{
    snprintf(root, sizeof(root), "/tmp/tierce-paths-XXXXXX");
    temp_folder_make(root);
    ck_assert_int_eq(mkdir(at("store"), 0700), 0);
    ck_assert_int_eq(mkdir(at("outside"), 0700), 0);
}

static void start(void)
{
    make_root();
    pool = connector_pool();
    ck_assert_int_eq(make(), 0);
}

static void close_connector(void)
{
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
}

static void end(void)
{
    close_connector();
    tierce__pool_destroy(pool);
    temp_folder_remove(root);
}

static void add_rule(const struct tierce__vfs_fault_rule *rule)
{
    for (size_t i = 0; i < LINKS; i++)
        tierce__vfs_fault_add(faults[i], rule);
}

static void clear_rules(void)
{
    for (size_t i = 0; i < LINKS; i++)
        tierce__vfs_fault_clear(faults[i]);
}

static int64_t bytes_of(const char *name)
{
    struct stat st;
    return lstat(at(name), &st) == 0 ? (int64_t)st.st_size : -1;
}

/* The bytes of a version at a place in a file. */
static bool has_object(const char *name, int64_t offset, uint32_t version, size_t bytes)
{
    static uint8_t data[100000];
    int fd = open(at(name), O_RDONLY);
    ck_assert_msg(fd >= 0, "%s", name);
    ck_assert_uint_le(bytes, sizeof(data));
    ssize_t n = pread(fd, data, bytes, offset);
    close(fd);
    return n == (ssize_t)bytes && connector_is_object(data, version, 0, bytes);
}

static const char *slot(const char *path, unsigned number, unsigned bytes)
{
    static char name[4][160];
    static unsigned next;
    snprintf(name[next % 4], sizeof(name[0]), "%s?blkid=%u&size=%u", path, number, bytes);
    return name[next++ % 4];
}

/* ---- names ----------------------------------------------------------------------------------- */

static const char *read_name(struct tierce__file_place *place, const char *text)
{
    return tierce__file_place_read(
        place, &(struct tierce_plugin_name){.text = text, .bytes = strlen(text)});
}

START_TEST(names_are_read_and_written)
{
    static const struct {
        const char *name, *path;
        bool has_slots;
        uint64_t slot, bytes;
    } good[] = {
        {"a", "a", false, 0, 0},
        {"i/tp0/00ff?size=1", "i/tp0/00ff", false, 0, 1},
        {"i/tp0/00ff?blkid=0&size=65536", "i/tp0/00ff", true, 0, 65536},
        {"i?blkid=65535&size=140737488355327", "i", true, 65535, 140737488355327},
        {"~store/%2e%2e/a b", "~store/%2e%2e/a b", false, 0, 0},
    };
    static const char *const bad[] = {"",
                                      "?",
                                      "?size=1",
                                      "/a",
                                      "a/",
                                      "a//b",
                                      "..",
                                      "../a",
                                      "a/../b",
                                      "a/.",
                                      "a\nb",
                                      "a\x7f",
                                      "a?",
                                      "a?size=",
                                      "a?size=0",
                                      "a?size=01x",
                                      "a?size=-1",
                                      "a?size=+1",
                                      "a?size= 1",
                                      "a?size=140737488355328",
                                      "a?size=99999999999999999999",
                                      "a?blkid=1",
                                      "a?blkid=&size=1",
                                      "a?blkid=65536&size=1",
                                      "a?blkid=1&size=0",
                                      "a?size=1&blkid=1",
                                      "a?size=1&size=1",
                                      "a?size=1&x=2",
                                      "a?x=2",
                                      "a?size=1#",
                                      "a?blkid=1?size=2",
                                      "a?blkid=18446744073709551616&size=1"};
    struct tierce__file_place place;
    char text[TIERCE__CONNECTOR_NAME_MAX + 64];
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        const char *wrong = read_name(&place, good[i].name);
        ck_assert_msg(wrong == NULL, "%s: %s", good[i].name, wrong);
        ck_assert_str_eq(place.path, good[i].path);
        ck_assert_int_eq(place.has_slots, good[i].has_slots);
        ck_assert_uint_eq(place.slot, good[i].slot);
        ck_assert_uint_eq(place.bytes, good[i].bytes);
        ck_assert(tierce__file_place_write(text, sizeof(text), &place));
        ck_assert_str_eq(text, good[i].name);
        ck_assert(!tierce__file_place_write(text, strlen(good[i].name), &place));
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        ck_assert_msg(read_name(&place, bad[i]) != NULL, "%s", bad[i]);
    ck_assert_ptr_nonnull(
        tierce__file_place_read(&place, &(struct tierce_plugin_name){.text = "a\0b", .bytes = 3}));
    memset(text, 'a', sizeof(text));
    text[TIERCE__CONNECTOR_NAME_MAX + 1] = '\0';
    ck_assert_ptr_nonnull(read_name(&place, text));
}
END_TEST

/* ---- slots ----------------------------------------------------------------------------------- */

START_TEST(slots_share_a_file)
{
    start();
    const char *path = "i/tp0/00ff", *file = "store/i/tp0/00ff";
    ck_assert_int_eq(connector_ping(connector), 0);
    ck_assert_int_eq(connector_exists(connector, slot(path, 2, SLOT)), 0);
    ck_assert_int_eq(connector_put(connector, pool, slot(path, 2, SLOT), 2, SLOT), 0);
    ck_assert_int_eq(bytes_of(file), 3 * SLOT);
    ck_assert(has_object(file, 2 * SLOT, 2, SLOT));
    ck_assert_int_eq(connector_put(connector, pool, slot(path, 0, SLOT), 7, SLOT), 0);
    ck_assert_int_eq(connector_put(connector, pool, slot(path, 1, SLOT), 8, SLOT), 0);
    ck_assert_int_eq(bytes_of(file), 3 * SLOT);
    ck_assert(has_object(file, 0, 7, SLOT));
    ck_assert(has_object(file, SLOT, 8, SLOT));
    ck_assert(has_object(file, 2 * SLOT, 2, SLOT));
    ck_assert_int_eq(connector_get(connector, pool, slot(path, 1, SLOT), 8, 0, SLOT), 0);
    ck_assert_int_eq(connector_get(connector, pool, slot(path, 1, SLOT), 8, 4096, SLOT - 4096), 0);
    ck_assert_int_eq(connector_get(connector, pool, slot(path, 1, SLOT), 8, 1, SLOT),
                     TIERCE_E_FORMAT); /* never a byte of the next slot */
    ck_assert_int_eq(connector_get(connector, pool, slot(path, 3, SLOT), 0, 0, SLOT),
                     TIERCE_E_FORMAT);
    ck_assert_int_eq(connector_exists(connector, slot(path, 2, SLOT)), 1);
    ck_assert_int_eq(connector_exists(connector, slot(path, 3, SLOT)), 0);
    ck_assert_int_eq(connector_put(connector, pool, slot(path, 1, SLOT), 9, SLOT - 1),
                     TIERCE_E_ARGUMENT);
    ck_assert(has_object(file, SLOT, 8, SLOT));
    ck_assert_int_eq(connector_delete(connector, slot(path, 1, SLOT)), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(bytes_of(file), 3 * SLOT);
    end();
}
END_TEST

/* Without slots the file is the object: it ends with it. With a size, it must be long enough. */
START_TEST(a_whole_file)
{
    start();
    ck_assert_int_eq(connector_put(connector, pool, "i/f?size=5000", 1, 5000), 0);
    ck_assert_int_eq(connector_put(connector, pool, "i/f?size=300", 2, 300), 0);
    ck_assert_int_eq(bytes_of("store/i/f"), 300);
    ck_assert_int_eq(connector_exists(connector, "i/f"), 1);
    ck_assert_int_eq(connector_exists(connector, "i/f?size=300"), 1);
    ck_assert_int_eq(connector_exists(connector, "i/f?size=301"), 0);
    ck_assert_int_eq(connector_get(connector, pool, "i/f?size=301", 2, 0, 301), TIERCE_E_FORMAT);
    ck_assert_int_eq(connector_get(connector, pool, "i/f", 2, 0, 300), 0);
    ck_assert_int_eq(connector_get(connector, pool, "i/g", 2, 0, 300), TIERCE_E_MISS);
    ck_assert_str_eq(connector_why(connector),
                     "file://here: i/f: the file ends before the object does");
    end();
}
END_TEST

static void *put_slots(void *arg)
{
    unsigned writer = (unsigned)(uintptr_t)arg;
    for (unsigned i = writer; i < 160; i += 4) {
        char name[64];
        snprintf(name, sizeof(name), "i/tp0/many?blkid=%u&size=%u", i, (unsigned)SLOT);
        ck_assert_int_eq(connector_put(connector, pool, name, i, SLOT), 0);
    }
    return NULL;
}

START_TEST(writers_share_a_file)
{
    pthread_t writers[4];
    start();
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&writers[i], NULL, put_slots, (void *)i), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(writers[i], NULL);
    for (unsigned i = 0; i < 160; i++)
        ck_assert(has_object("store/i/tp0/many", i * SLOT, i, SLOT));
    end();
}
END_TEST

/* A manager removes folders that are empty, perhaps while a file is made in them. */
START_TEST(folders_go_meanwhile)
{
    start();
    for (uint32_t i = 0; i < 300; i++) {
        char name[32];
        struct connector_call call;
        snprintf(name, sizeof(name), "i/tp0/%u", i);
        connector_call_init(&call, TIERCE__STORE_PUT, name, 0);
        call.req.buf = connector_object(pool, i, 10);
        call.req.length = 10;
        connector->ops->submit(connector, &call.req);
        while (atomic_load(&call.done_count) == 0) {
            (void)rmdir(at("store/i/tp0"));
            (void)rmdir(at("store/i"));
        }
        int rc = connector_call_wait(&call);
        tierce__buf_release(call.req.buf);
        ck_assert_msg(rc == 0 || rc == TIERCE_E_DOWN, "%d: %s", rc, connector_why(connector));
        snprintf(name, sizeof(name), "store/i/tp0/%u", i);
        ck_assert(rc != 0 || has_object(name, 0, i, 10));
        (void)unlink(at(name));
    }
    end();
}
END_TEST

/* ---- traps ----------------------------------------------------------------------------------- */

static void expect_nothing(const char *name)
{
    ck_assert_int_eq(connector_put(connector, pool, name, 1, 10), TIERCE_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(connector_why(connector), "symbolic link"));
    ck_assert_int_eq(connector_get(connector, pool, name, 1, 0, 3), TIERCE_E_MISS);
    ck_assert_int_eq(connector_exists(connector, name), 0);
}

START_TEST(what_is_no_file_of_ours_stays)
{
    start();
    FILE *file = fopen(at("outside/file"), "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs("theirs", file), 0);
    fclose(file);
    ck_assert_int_eq(mkdir(at("store/i"), 0700), 0);
    ck_assert_int_eq(symlink(at("outside"), at("store/out")), 0);
    ck_assert_int_eq(symlink("../../outside/file", at("store/i/link")), 0);
    ck_assert_int_eq(symlink("../../outside/new", at("store/i/dead")), 0);
    ck_assert_int_eq(symlink(".", at("store/i/here")), 0);
    ck_assert_int_eq(mkfifo(at("store/i/fifo"), 0600), 0);
    static const char *const names[] = {"out/file", "out/new", "out/a/b", "i/link",  "i/dead",
                                        "i/here/x", "i/fifo",  "i",       "i/fifo/x"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        expect_nothing(names[i]);
    ck_assert_int_eq(bytes_of("outside/file"), 6);
    ck_assert_int_eq(bytes_of("outside/new"), -1);
    ck_assert_int_eq(bytes_of("outside/a"), -1);
    ck_assert_int_eq(bytes_of("store/i/x"), -1);
    ck_assert_int_eq(connector_put(connector, pool, "../outside/file", 1, 10), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(connector_put(connector, pool, "i/../../outside/file", 1, 10),
                     TIERCE_E_ARGUMENT);
    ck_assert_int_eq(connector_put(connector, pool, at("outside/file"), 1, 10), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(bytes_of("outside/file"), 6);
    end();
}
END_TEST

/* The folder is a link to another one, by the operator's will. */
START_TEST(the_root_may_be_a_link)
{
    start();
    ck_assert_int_eq(rmdir(at("store")), 0);
    ck_assert_int_eq(symlink("outside", at("store")), 0);
    ck_assert_int_eq(connector_put(connector, pool, "i/f", 1, 10), 0);
    ck_assert_int_eq(bytes_of("outside/i/f"), 10);
    end();
}
END_TEST

/* Nothing is written to the folder below a mount point. */
START_TEST(a_root_that_goes)
{
    start();
    ck_assert_int_eq(connector_put(connector, pool, "i/f", 1, 10), 0);
    ck_assert_int_eq(rename(at("store"), at("gone")), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(connector_put(connector, pool, "i/f", 1, 10), TIERCE_E_DOWN);
        ck_assert_int_eq(connector_get(connector, pool, "i/f", 1, 0, 10), TIERCE_E_DOWN);
        ck_assert_int_eq(connector_exists(connector, "i/f"), TIERCE_E_DOWN);
        ck_assert_int_eq(connector_ping(connector), TIERCE_E_DOWN);
        ck_assert_ptr_nonnull(strstr(connector_why(connector), "is its file system mounted?"));
    }
    ck_assert_int_eq(bytes_of("store"), -1);
    ck_assert_int_eq(rename(at("gone"), at("store")), 0);
    ck_assert_int_eq(connector_ping(connector), 0);
    ck_assert_int_eq(connector_get(connector, pool, "i/f", 1, 0, 10), 0);
    /* Another file system is mounted there: the next call sees it. */
    ck_assert_int_eq(rename(at("store"), at("gone")), 0);
    ck_assert_int_eq(mkdir(at("store"), 0700), 0);
    ck_assert_int_eq(connector_get(connector, pool, "i/f", 1, 0, 10), TIERCE_E_MISS);
    end();
}
END_TEST

/* ---- faults ---------------------------------------------------------------------------------- */

static const struct {
    int error, status;
} errors[] = {{-EIO, -EIO},
              {-ENOSPC, TIERCE_E_FULL},
              {-EDQUOT, TIERCE_E_FULL},
              {-EACCES, TIERCE_E_REFUSED},
              {-EROFS, TIERCE_E_REFUSED},
              {-ESTALE, TIERCE_E_DOWN}};

/* The neighbours of a slot are whole whatever fails, and a PUT that was answered 0 is there. */
START_TEST(each_io_fails_once)
{
    int rc = -EIO;
    uint64_t nth;
    for (nth = 1; rc != 0; nth++) {
        start();
        ck_assert_int_eq(connector_put(connector, pool, slot("j/f", 0, SLOT), 3, SLOT), 0);
        add_rule(&(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_ANY,
                                                  .nth = nth,
                                                  .action = TIERCE__FAULT_FAIL,
                                                  .error = errors[_i].error});
        rc = connector_put(connector, pool, slot("i/tp0/f", 1, SLOT), 4, SLOT);
        ck_assert_msg(rc == 0 || rc == errors[_i].status, "%d", rc);
        clear_rules();
        ck_assert_int_eq(connector_get(connector, pool, slot("j/f", 0, SLOT), 3, 0, SLOT), 0);
        if (rc == 0)
            ck_assert_int_eq(connector_get(connector, pool, slot("i/tp0/f", 1, SLOT), 4, 0, SLOT),
                             0);
        ck_assert_int_eq(connector_put(connector, pool, slot("i/tp0/f", 1, SLOT), 5, SLOT), 0);
        ck_assert_int_eq(connector_get(connector, pool, slot("i/tp0/f", 1, SLOT), 5, 0, SLOT), 0);
        end();
    }
    ck_assert_uint_gt(nth, 8); /* open, folders and their syncs, write, sync, the folder's sync */
}
END_TEST

START_TEST(each_io_of_a_get_fails_once)
{
    start();
    ck_assert_int_eq(connector_put(connector, pool, slot("i/f", 1, SLOT), 4, SLOT), 0);
    for (int looks = 0; looks < 2; looks++) {
        int rc = -EIO;
        for (uint64_t nth = 1; rc < 0; nth++) {
            add_rule(&(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_ANY,
                                                      .nth = nth,
                                                      .action = TIERCE__FAULT_FAIL,
                                                      .error = errors[_i].error});
            rc = looks ? connector_exists(connector, slot("i/f", 1, SLOT)) - 1
                       : connector_get(connector, pool, slot("i/f", 1, SLOT), 4, 0, SLOT);
            if (looks && rc < 0)
                rc += 1;
            clear_rules();
            ck_assert_msg(rc == 0 || rc == errors[_i].status, "%d", rc);
        }
    }
    end();
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    make_root();
    pool = connector_pool();
    uint64_t live = tierce__alloc_live();
    int rc = -ENOMEM;
    for (uint64_t nth = 1; rc != 0; nth++) {
        tierce__alloc_fail_nth(nth);
        rc = make();
        if (rc == 0) {
            int put = connector_put(connector, pool, "i/name", 1, 100);
            int got = connector_get(connector, pool, "i/name", 1, 0, 100);
            int there = connector_exists(connector, "i/name");
            ck_assert(put == 0 || put == -ENOMEM);
            ck_assert(got == 0 || got == -ENOMEM ||
                      (put != 0 && (got == TIERCE_E_MISS || got == TIERCE_E_FORMAT)));
            ck_assert(there >= 0 || there == -ENOMEM);
            close_connector();
            rc = put != 0 ? put : got != 0 ? got : there < 0 ? there : 0;
        }
        ck_assert(tierce__alloc_fail_nth(0) >= nth || rc == 0);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    tierce__pool_destroy(pool);
    temp_folder_remove(root);
}
END_TEST

/* A PUT whose time is over before it begins to write changes nothing. */
START_TEST(a_late_put_does_not_write)
{
    struct connector_call call;
    start();
    ck_assert_int_eq(connector_put(connector, pool, slot("i/f", 0, SLOT), 1, SLOT), 0);
    add_rule(&(struct tierce__vfs_fault_rule){
        .kind = TIERCE__FAULT_OPEN, .nth = 1, .action = TIERCE__FAULT_LATE, .delay_ns = 300000000});
    connector_call_init(&call, TIERCE__STORE_PUT, slot("i/f", 0, SLOT), 0);
    call.req.buf = connector_object(pool, 2, SLOT);
    call.req.length = SLOT;
    call.req.deadline_ns = tierce__deadline_in_ms(50);
    ck_assert_int_eq(connector_call_run(connector, &call), TIERCE_E_DEADLINE);
    /* The next one waits until the link is free again. */
    ck_assert_int_eq(connector_put(connector, pool, slot("i/f", 1, SLOT), 3, SLOT), 0);
    ck_assert_uint_eq(atomic_load(&call.req.buf->refs), 1);
    tierce__buf_release(call.req.buf);
    ck_assert(has_object("store/i/f", 0, 1, SLOT));
    end();
}
END_TEST

/* The power fails before each disk call of a PUT: acknowledged slots are there. */
START_TEST(the_power_goes)
{
    int rc = -EIO;
    for (uint64_t nth = 1; rc != 0; nth++) {
        power = true;
        start();
        tierce__vfs_fault_seed(faults[1], nth);
        ck_assert_int_eq(connector_put(connector, pool, slot("i/tp0/f", 0, 90000), 1, 90000), 0);
        ck_assert_int_eq(connector_put(connector, pool, slot("i/tp0/f", 2, 90000), 3, 90000), 0);
        tierce__vfs_fault_add(
            faults[1], &(struct tierce__vfs_fault_rule){
                           .kind = TIERCE__FAULT_ANY, .nth = nth, .action = TIERCE__FAULT_CUT});
        rc = connector_put(connector, pool, slot("i/tp1/f", 1, 90000), 2, 90000);
        if (rc == 0)
            tierce__vfs_fault_power_cut(faults[1]);
        close_connector();
        power = false;
        ck_assert_int_eq(make(), 0);
        ck_assert_int_eq(connector_get(connector, pool, slot("i/tp0/f", 0, 90000), 1, 0, 90000), 0);
        ck_assert_int_eq(connector_get(connector, pool, slot("i/tp0/f", 2, 90000), 3, 0, 90000), 0);
        if (rc == 0)
            ck_assert_int_eq(connector_get(connector, pool, slot("i/tp1/f", 1, 90000), 2, 0, 90000),
                             0);
        end();
    }
}
END_TEST

/* A file system that does not answer: requests end at their deadlines, and so does close. */
START_TEST(a_root_that_hangs)
{
    struct connector_call call;
    start();
    ck_assert_int_eq(connector_put(connector, pool, "i/f", 1, 100), 0);
    add_rule(&(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_READ,
                                              .nth = 1,
                                              .action = TIERCE__FAULT_LATE,
                                              .delay_ns = 3000000000});
    connector_call_init(&call, TIERCE__STORE_GET, "i/f", 0);
    call.req.buf = connector_object(pool, 2, 100);
    call.req.length = 100;
    call.req.deadline_ns = tierce__deadline_in_ms(50);
    uint64_t begun_ns = tierce__now_ns();
    ck_assert_int_eq(connector_call_run(connector, &call), TIERCE_E_DEADLINE);
    ck_assert_uint_lt(tierce__now_ns() - begun_ns, 2500000000);
    ck_assert_uint_eq(connector_stats(connector).calls_hanging, 1);
    ck_assert_int_eq(connector_get(connector, pool, "i/f", 1, 0, 100), 0); /* by the other link */
    close_connector();
    ck_assert_uint_eq(atomic_load(&call.req.buf->refs), 1);
    tierce__buf_release(call.req.buf);
    tierce__pool_destroy(pool);
    temp_folder_remove(root);
}
END_TEST

/* ---- URLs ------------------------------------------------------------------------------------ */

START_TEST(urls)
{
    static const struct {
        const char *more, *why;
    } bad[] = {{"?names=paths", "names must be escaped or path"},
               {"?names=path&size=1GiB", "\"size\""},
               {"?names=path&fanout=2", "\"fanout\""},
               {"?names=path&names=path", "given twice"}};
    char url[128], why[TIERCE__CONNECTOR_WHY_BYTES];
    make_root();
    pool = connector_pool();
    const struct tierce__connector_opts opts = {.size = sizeof(opts), .pool = pool};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        snprintf(url, sizeof(url), "file://%s/store%s", root, bad[i].more);
        ck_assert_int_eq(tierce__connector_open(&connector, url, &opts, why), TIERCE_E_CONFIG);
        ck_assert_msg(strstr(why, bad[i].why) != NULL, "%s: %s", url, why);
    }
    snprintf(url, sizeof(url), "file://%s/store?names=path&connections=3", root);
    ck_assert_int_eq(tierce__connector_open(&connector, url, &opts, why), 0);
    ck_assert_int_eq(connector_put(connector, pool, "i/f", 1, 10), 0);
    ck_assert_int_eq(bytes_of("store/~store"), -1);
    end();
}
END_TEST

CHECK_MAIN("file paths", .seconds = 120,
           .tests = {names_are_read_and_written, slots_share_a_file, a_whole_file,
                     writers_share_a_file, folders_go_meanwhile, what_is_no_file_of_ours_stays,
                     the_root_may_be_a_link, a_root_that_goes, each_allocation_fails_once,
                     a_late_put_does_not_write, the_power_goes, a_root_that_hangs, urls},
           .loops = {{each_io_fails_once, 0, 6}, {each_io_of_a_get_fails_once, 0, 6}})
