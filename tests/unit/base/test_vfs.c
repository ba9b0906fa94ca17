/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/vfs/vfs.h"
#include "vfs_fault.h"
#include "check_main.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096u

static char folder[64], path[128];

static void setup(void)
{
    snprintf(folder, sizeof(folder), "test_vfs.XXXXXX");
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "%s/file", folder);
}

static void teardown(void)
{
    temp_folder_remove(folder);
}

/* 0: io_uring, 1: threads; false where the machine has no io_uring. */
static bool make(struct tierce__vfs **vfs, int which)
{
    int rc = which == 0 ? tierce__vfs_uring_create(vfs, 4) : tierce__vfs_threads_create(vfs, 3);
    if (which == 0 && rc == TIERCE_E_UNSUPPORTED)
        return false;
    ck_assert_int_eq(rc, 0);
    return true;
}

static unsigned dones;

static void count_done(struct tierce__vfs_io *io)
{
    (void)io;
    dones++;
}

static void run(struct tierce__vfs *vfs, unsigned count)
{
    uint64_t deadline = tierce__now_ns() + 10000 * TIERCE__MS_NS;
    while (dones < count && tierce__now_ns() < deadline)
        vfs->ops->poll(vfs, deadline);
    ck_assert_uint_eq(dones, count);
}

START_TEST(blocking_calls_round_trip)
{
    struct tierce__vfs *vfs;
    struct tierce__vfs_file *file;
    if (!make(&vfs, _i))
        return;
    uint8_t page[PAGE] = {1, 2, 3}, back[PAGE];
    ck_assert_int_eq(vfs->ops->open(vfs, &file, path, 0), -ENOENT);
    ck_assert_int_eq(vfs->ops->open(vfs, &file, path, TIERCE__VFS_CREATE), 0);
    ck_assert_int_eq(vfs->ops->write(vfs, file, page, PAGE, PAGE), 0);
    ck_assert_int_eq(vfs->ops->sync(vfs, file), 0);
    ck_assert_int_eq(vfs->ops->length(vfs, file), 2 * PAGE);
    ck_assert_int_eq(vfs->ops->read(vfs, file, back, PAGE, PAGE), 0);
    ck_assert_mem_eq(page, back, PAGE);
    ck_assert_int_eq(vfs->ops->read(vfs, file, back, PAGE, 2 * PAGE - 1), -ENODATA);
    ck_assert_int_eq(vfs->ops->truncate(vfs, file, PAGE), 0);
    int rc = vfs->ops->allocate(vfs, file, 0, 3 * PAGE);
    ck_assert(rc == -EOPNOTSUPP || (rc == 0 && vfs->ops->length(vfs, file) == 3 * PAGE));
    vfs->ops->close(vfs, file);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
    char other[160];
    snprintf(other, sizeof(other), "%s/other", folder);
    ck_assert_int_eq(vfs->ops->rename(vfs, path, other), 0);
    ck_assert_int_eq(vfs->ops->unlink(vfs, other), 0);
    ck_assert_int_eq(vfs->ops->unlink(vfs, other), -ENOENT);
    ck_assert_int_eq(vfs->ops->make_folder(vfs, other), 0);
    ck_assert_int_eq(vfs->ops->make_folder(vfs, other), 0);
    ck_assert_int_eq(vfs->ops->sync_folder(vfs, folder), 0);
    vfs->ops->destroy(vfs);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

#define COUNT 40

START_TEST(many_transfers_beyond_the_depth)
{
    struct tierce__vfs *vfs;
    struct tierce__vfs_file *file;
    static struct tierce__vfs_io io[COUNT];
    if (!make(&vfs, _i))
        return;
    uint8_t *memory = tierce__alloc_aligned(PAGE, 2 * COUNT * PAGE);
    vfs->ops->use_memory(vfs, memory, COUNT * PAGE); /* the second half goes unregistered */
    ck_assert_int_eq(vfs->ops->open(vfs, &file, path, TIERCE__VFS_CREATE | TIERCE__VFS_DIRECT), 0);
    for (unsigned pass = 0; pass < 2; pass++) {
        dones = 0;
        for (unsigned i = 0; i < COUNT; i++) {
            uint8_t *data = memory + (pass * COUNT + i) * PAGE;
            memset(data, pass == 0 ? (int)(i + 1) : 0, PAGE);
            io[i] = (struct tierce__vfs_io){.file = file,
                                            .is_write = pass == 0,
                                            .data = data,
                                            .offset = (uint64_t)i * PAGE,
                                            .length = PAGE,
                                            .done = count_done};
            vfs->ops->submit(vfs, &io[i]);
        }
        run(vfs, COUNT);
        for (unsigned i = 0; i < COUNT; i++)
            ck_assert_int_eq(io[i].result, PAGE);
    }
    ck_assert_mem_eq(memory, memory + COUNT * PAGE, COUNT * PAGE);
    /* A read that crosses the end, and one that begins there. */
    for (unsigned i = 0; i < 2; i++) {
        io[i] = (struct tierce__vfs_io){.file = file,
                                        .data = memory,
                                        .offset = (COUNT - 1 + i) * PAGE,
                                        .length = 2 * PAGE,
                                        .done = count_done};
        vfs->ops->submit(vfs, &io[i]);
    }
    dones = 0;
    run(vfs, 2);
    ck_assert_int_eq(io[0].result, -ENODATA);
    ck_assert_int_eq(io[1].result, -ENODATA);
    vfs->ops->close(vfs, file);
    vfs->ops->destroy(vfs);
    tierce__free(memory);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

static void *wake_later(void *arg)
{
    struct tierce__vfs *vfs = arg;
    usleep(20000); /* the poll has probably begun */
    vfs->ops->wake(vfs);
    return NULL;
}

START_TEST(poll_ends_at_wake_and_deadline)
{
    struct tierce__vfs *vfs;
    pthread_t thread;
    if (!make(&vfs, _i))
        return;
    uint64_t start = tierce__now_ns();
    ck_assert_uint_eq(vfs->ops->poll(vfs, start + 20 * TIERCE__MS_NS), 0);
    ck_assert_uint_ge(tierce__now_ns(), start + 20 * TIERCE__MS_NS);
    vfs->ops->wake(vfs); /* before the poll */
    ck_assert_uint_eq(vfs->ops->poll(vfs, TIERCE__DEADLINE_NEVER), 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(pthread_create(&thread, NULL, wake_later, vfs), 0);
        ck_assert_uint_eq(vfs->ops->poll(vfs, TIERCE__DEADLINE_NEVER), 0);
        pthread_join(thread, NULL);
    }
    vfs->ops->destroy(vfs);
}
END_TEST

START_TEST(destroy_waits_for_transfers)
{
    struct tierce__vfs *vfs;
    struct tierce__vfs_file *file;
    static struct tierce__vfs_io io[COUNT];
    if (!make(&vfs, _i))
        return;
    uint8_t *memory = tierce__alloc_aligned(PAGE, PAGE);
    memset(memory, 7, PAGE);
    ck_assert_int_eq(vfs->ops->open(vfs, &file, path, TIERCE__VFS_CREATE), 0);
    dones = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        io[i] = (struct tierce__vfs_io){.file = file,
                                        .is_write = true,
                                        .data = memory,
                                        .offset = (uint64_t)i * PAGE,
                                        .length = PAGE,
                                        .done = count_done};
        vfs->ops->submit(vfs, &io[i]);
    }
    vfs->ops->destroy(vfs);
    ck_assert_uint_eq(dones, COUNT);
    close(*(int *)(void *)file); /* the vfs that made it is gone; the descriptor is first */
    tierce__free(file);
    tierce__free(memory);
}
END_TEST

static struct tierce__vfs *make_fault(bool power)
{
    struct tierce__vfs *inner, *vfs;
    ck_assert_int_eq(tierce__vfs_create(&inner, 8), 0);
    ck_assert_int_eq(tierce__vfs_fault_create(&vfs, inner, power), 0);
    return vfs;
}

START_TEST(the_script_fails_delays_hangs_and_flips)
{
    struct tierce__vfs *vfs = make_fault(false);
    struct tierce__vfs_file *file;
    uint8_t *page = tierce__alloc_aligned(PAGE, PAGE);
    memset(page, 0, PAGE);
    ck_assert_int_eq(vfs->ops->open(vfs, &file, path, TIERCE__VFS_CREATE), 0);
    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_WRITE,
                                                                .action = TIERCE__FAULT_FAIL,
                                                                .nth = 2,
                                                                .error = -ENOSPC});
    ck_assert_int_eq(vfs->ops->write(vfs, file, page, PAGE, 0), 0);
    ck_assert_int_eq(vfs->ops->write(vfs, file, page, PAGE, 0), -ENOSPC);
    ck_assert_int_eq(vfs->ops->write(vfs, file, page, PAGE, 0), 0);
    ck_assert_uint_eq(tierce__vfs_fault_count(vfs, TIERCE__FAULT_WRITE), 3);
    tierce__vfs_fault_add(
        vfs, &(struct tierce__vfs_fault_rule){
                 .kind = TIERCE__FAULT_READ, .action = TIERCE__FAULT_FLIP, .nth = 1, .bit = 9});
    ck_assert_int_eq(vfs->ops->read(vfs, file, page, PAGE, 0), 0);
    ck_assert_uint_eq(page[1], 2);
    tierce__vfs_fault_clear(vfs);

    struct tierce__vfs_io io = {
        .file = file, .data = page, .length = PAGE, .done = count_done, .is_write = true};
    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_SUBMIT_WRITE,
                                                                .action = TIERCE__FAULT_FAIL,
                                                                .nth = 1,
                                                                .forever = true,
                                                                .error = -EIO});
    dones = 0;
    vfs->ops->submit(vfs, &io);
    ck_assert_uint_eq(dones, 0);
    run(vfs, 1);
    ck_assert_int_eq(io.result, -EIO);
    tierce__vfs_fault_clear(vfs);

    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_SUBMIT_WRITE,
                                                                .action = TIERCE__FAULT_LATE,
                                                                .nth = 1,
                                                                .delay_ns = 30 * TIERCE__MS_NS});
    uint64_t start = tierce__now_ns();
    dones = 0;
    vfs->ops->submit(vfs, &io);
    run(vfs, 1);
    ck_assert_uint_ge(tierce__now_ns(), start + 30 * TIERCE__MS_NS);

    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_SUBMIT_WRITE,
                                                                .action = TIERCE__FAULT_HANG,
                                                                .nth = 1});
    dones = 0;
    vfs->ops->submit(vfs, &io);
    vfs->ops->poll(vfs, tierce__now_ns() + 20 * TIERCE__MS_NS);
    ck_assert_uint_eq(dones, 0);
    tierce__vfs_fault_release(vfs);
    run(vfs, 1);
    ck_assert_int_eq(io.result, PAGE);
    vfs->ops->close(vfs, file);
    vfs->ops->destroy(vfs);
    tierce__free(page);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

/* The content of a file after a power cut: old or new, sector by sector. */
START_TEST(a_cut_takes_back_only_what_was_not_synced)
{
    struct tierce__vfs *vfs = make_fault(true);
    struct tierce__vfs_file *file;
    uint8_t page[PAGE];
    ck_assert_int_eq(vfs->ops->open(vfs, &file, path, TIERCE__VFS_CREATE), 0);
    ck_assert_int_eq(vfs->ops->sync_folder(vfs, folder), 0);
    memset(page, 1, PAGE);
    ck_assert_int_eq(vfs->ops->write(vfs, file, page, PAGE, 0), 0);
    ck_assert_int_eq(vfs->ops->sync(vfs, file), 0);
    memset(page, 2, PAGE);
    ck_assert_int_eq(vfs->ops->write(vfs, file, page, PAGE, 0), 0);
    ck_assert_int_eq(vfs->ops->write(vfs, file, page, PAGE, PAGE), 0);
    tierce__vfs_fault_seed(vfs, (uint64_t)_i);
    tierce__vfs_fault_power_cut(vfs);
    ck_assert_int_eq(vfs->ops->write(vfs, file, page, PAGE, 0), -EIO);
    ck_assert_int_eq(vfs->ops->sync(vfs, file), -EIO);
    vfs->ops->close(vfs, file);
    vfs->ops->destroy(vfs);

    int fd = open(path, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, page, PAGE, 0), PAGE);
    for (unsigned i = 0; i < PAGE; i++) {
        ck_assert(page[i] == 1 || page[i] == 2);
        ck_assert_uint_eq(page[i], page[i / 512 * 512]);
    }
    close(fd);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

/* A write is on its way when another one, behind it in the file, is synced. */
START_TEST(a_cut_keeps_what_was_synced_behind_a_write)
{
    struct tierce__vfs *vfs = make_fault(true);
    struct tierce__vfs_file *file;
    uint8_t page[PAGE], *late = tierce__alloc_aligned(PAGE, PAGE);
    ck_assert_int_eq(vfs->ops->open(vfs, &file, path, TIERCE__VFS_CREATE), 0);
    ck_assert_int_eq(vfs->ops->sync_folder(vfs, folder), 0);
    memset(page, 1, PAGE);
    memset(late, 2, PAGE);
    ck_assert_int_eq(vfs->ops->write(vfs, file, page, PAGE, 0), 0);
    struct tierce__vfs_io io = {.file = file,
                                .is_write = true,
                                .data = late,
                                .offset = PAGE,
                                .length = PAGE,
                                .done = count_done};
    dones = 0;
    vfs->ops->submit(vfs, &io); /* ended by poll only */
    ck_assert_int_eq(vfs->ops->write(vfs, file, page, PAGE, 2 * PAGE), 0);
    ck_assert_int_eq(vfs->ops->sync(vfs, file), 0);
    tierce__vfs_fault_seed(vfs, (uint64_t)_i);
    tierce__vfs_fault_power_cut(vfs);
    run(vfs, 1);
    vfs->ops->close(vfs, file);
    vfs->ops->destroy(vfs);
    tierce__free(late);

    int fd = open(path, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, page, PAGE, 2 * PAGE), PAGE);
    ck_assert_uint_eq(page[0], 1);
    close(fd);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

/* A rename that its folder's sync did not cover may be undone; one that it covered may not. */
/* A folder below the entered one has a name of up to NAME_MAX bytes. */
START_TEST(a_folder_has_a_longest_name)
{
    char name[NAME_MAX + 8], below[sizeof(folder) + sizeof(name)];
    struct tierce__vfs *vfs = make_fault(false);
    struct tierce__vfs_file *file;
    ck_assert_int_eq(vfs->ops->enter(vfs, folder), 0);
    memset(name, 'n', sizeof(name));
    snprintf(name + NAME_MAX, sizeof(name) - NAME_MAX, "/f");
    snprintf(below, sizeof(below), "%s/%.*s", folder, NAME_MAX, name);
    ck_assert_int_eq(mkdir(below, 0700), 0);
    ck_assert_int_eq(vfs->ops->open(vfs, &file, name, TIERCE__VFS_CREATE), 0);
    vfs->ops->close(vfs, file);
    snprintf(name + NAME_MAX, sizeof(name) - NAME_MAX, "n/f");
    ck_assert_int_eq(vfs->ops->open(vfs, &file, name, TIERCE__VFS_CREATE), -ENAMETOOLONG);
    vfs->ops->destroy(vfs);
}
END_TEST

static unsigned count_descriptors(void)
{
    unsigned count = 0;
    DIR *dir = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* Tests cut the power thousands of times in one process. */
START_TEST(a_cut_leaves_no_descriptor)
{
    unsigned before = count_descriptors();
    struct tierce__vfs *vfs = make_fault(true);
    struct tierce__vfs_file *file;
    ck_assert_int_eq(vfs->ops->enter(vfs, folder), 0);
    ck_assert_int_eq(vfs->ops->open(vfs, &file, "cut", TIERCE__VFS_CREATE), 0);
    vfs->ops->close(vfs, file);
    ck_assert_int_eq(vfs->ops->rename(vfs, "cut", "data"), 0);
    tierce__vfs_fault_power_cut(vfs);
    vfs->ops->destroy(vfs);
    ck_assert_uint_eq(count_descriptors(), before);
}
END_TEST

START_TEST(a_cut_undoes_names_newest_first)
{
    struct tierce__vfs *vfs = make_fault(true);
    struct tierce__vfs_file *file;
    char next[160];
    snprintf(next, sizeof(next), "%s/next", folder);
    for (char c = 'a'; c <= 'b'; c++) {
        ck_assert_int_eq(vfs->ops->open(vfs, &file, next, TIERCE__VFS_CREATE), 0);
        ck_assert_int_eq(vfs->ops->write(vfs, file, &c, 1, 0), 0);
        ck_assert_int_eq(vfs->ops->sync(vfs, file), 0);
        vfs->ops->close(vfs, file);
        ck_assert_int_eq(vfs->ops->rename(vfs, next, path), 0);
        if (c == 'a')
            ck_assert_int_eq(vfs->ops->sync_folder(vfs, folder), 0);
    }
    tierce__vfs_fault_seed(vfs, (uint64_t)_i);
    tierce__vfs_fault_power_cut(vfs);
    vfs->ops->destroy(vfs);
    char c = 0;
    int fd = open(path, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &c, 1, 0), 1);
    ck_assert(c == 'a' || c == 'b');
    ck_assert(c == 'a' || access(next, F_OK) != 0);
    close(fd);
}
END_TEST

START_TEST(what_is_no_file_is_not_opened)
{
    struct tierce__vfs *vfs;
    struct tierce__vfs_file *file;
    if (!make(&vfs, _i))
        return;
    alarm(20); /* to open a pipe that nobody writes to could wait for ever */
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(vfs->ops->open(vfs, &file, path, TIERCE__VFS_READONLY), -EINVAL);
    ck_assert_int_eq(vfs->ops->open(vfs, &file, path, TIERCE__VFS_CREATE), -EINVAL);
    ck_assert_int_eq(vfs->ops->open(vfs, &file, "/dev/zero", 0), -EINVAL);
    ck_assert_int_eq(vfs->ops->open(vfs, &file, folder, TIERCE__VFS_READONLY), -EINVAL);
    vfs->ops->destroy(vfs);
}
END_TEST

CHECK_MAIN("vfs", .setup = setup, .teardown = teardown,
           .tests = {the_script_fails_delays_hangs_and_flips, a_cut_leaves_no_descriptor,
                     a_folder_has_a_longest_name},
           .loops = {{blocking_calls_round_trip, 0, 2},
                     {many_transfers_beyond_the_depth, 0, 2},
                     {poll_ends_at_wake_and_deadline, 0, 2},
                     {destroy_waits_for_transfers, 0, 2},
                     {a_cut_takes_back_only_what_was_not_synced, 0, 10},
                     {a_cut_keeps_what_was_synced_behind_a_write, 0, 10},
                     {a_cut_undoes_names_newest_first, 0, 6},
                     {what_is_no_file_is_not_opened, 0, 2}})
