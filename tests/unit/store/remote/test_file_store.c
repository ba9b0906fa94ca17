/* SPDX-License-Identifier: Apache-2.0 */
/* The folder behind file://: what lies in it, faults, the cap, processes that die and that meet. */
#include "base/alloc.h"
#include "vfs_fault.h"
#include "check_main.h"
#include "store/remote/file/file_connector.h"
#include "connector_harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[64], store[80];
static struct tierce__pool *pool;
static struct tierce__connector *connector;
static struct tierce__vfs *faults;
static bool power; /* may be cut */

static int make(struct tierce__file_opts opts)
{
    struct tierce__vfs *vfs = NULL;
    int rc = tierce__vfs_threads_create(&vfs, 1);
    if (rc != 0)
        return rc;
    rc = tierce__vfs_fault_create(&faults, vfs, power);
    if (rc != 0) {
        vfs->ops->destroy(vfs);
        return rc;
    }
    opts.size = sizeof(opts);
    opts.root = store;
    opts.store_name = "file://here";
    opts.vfs = faults;
    return tierce__file_create(&connector, &opts);
}

static void make_root(void)
{
    snprintf(root, sizeof(root), "/tmp/tierce-store-XXXXXX");
    temp_folder_make(root);
    snprintf(store, sizeof(store), "%s/store", root);
}

static void start(struct tierce__file_opts opts)
{
    make_root();
    pool = connector_pool();
    ck_assert_int_eq(make(opts), 0);
}

static void close_connector(void)
{
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
}

static void remove_root(void)
{
    temp_folder_remove(root);
}

static void end(void)
{
    close_connector();
    tierce__pool_destroy(pool);
    remove_root();
}

/* ---- content of the folder ------------------------------------------------------------------- */

static struct {
    uint32_t objects, temporaries, folders;
    uint64_t bytes;
    char object[256]; /* the path of one */
} seen;

static int look(const char *path, const struct stat *st, int type, struct FTW *at)
{
    const char *name = path + at->base;
    if (type == FTW_NS)
        return 0; /* it went meanwhile */
    if (type == FTW_D) {
        seen.folders++;
        ck_assert(at->level == 0 || (st->st_mode & 0777) == 0700);
        return 0;
    }
    ck_assert_uint_eq(st->st_mode & 0777, 0600);
    if (strncmp(name, "~tmp-", 5) == 0)
        seen.temporaries++;
    if (name[0] == '~')
        return 0;
    seen.objects++;
    seen.bytes += (uint64_t)st->st_size;
    snprintf(seen.object, sizeof(seen.object), "%s", path + strlen(store));
    return 0;
}

static void look_around(void)
{
    memset(&seen, 0, sizeof(seen));
    ck_assert_int_eq(nftw(store, look, 20, FTW_PHYS), 0);
}

START_TEST(where_an_object_lies)
{
    start((struct tierce__file_opts){0});
    ck_assert_int_ne(access(store, F_OK), 0); /* made when it is needed */
    ck_assert_int_eq(connector_put(connector, pool, "a/b.c", 1, 5000), 0);
    look_around();
    ck_assert_uint_eq(seen.objects, 1);
    ck_assert_uint_eq(seen.bytes, 5000);
    ck_assert_uint_eq(seen.temporaries, 0);
    /* SHA-256 of "a/b.c" begins with c0 62. */
    ck_assert_str_eq(seen.object, "/c0/62/a%2Fb.c");
    end();
}
END_TEST

START_TEST(a_store_keeps_its_fanout)
{
    start((struct tierce__file_opts){.levels = 1});
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 10), 0);
    close_connector();
    ck_assert_int_eq(make((struct tierce__file_opts){.levels = 3}), 0);
    ck_assert_int_eq(connector_get(connector, pool, "name", 1, 0, 10), 0);
    end();
}
END_TEST

static void write_text(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", store, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fchmod(fileno(file), 0600), 0);
    fclose(file);
}

START_TEST(a_folder_that_is_no_store)
{
    start((struct tierce__file_opts){0});
    ck_assert_int_eq(mkdir(store, 0700), 0);
    write_text("~store", "tierce file store 2\nfanout 2\n");
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_FORMAT);
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 10), TIERCE_E_FORMAT);
    write_text("~store", "tierce file store 1\nfanout 2\n");
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 10), 0);
    end();
}
END_TEST

/* A mount that is not there, goes, and comes again. */
START_TEST(a_store_that_goes)
{
    char away[96], above[96];
    start((struct tierce__file_opts){0});
    snprintf(above, sizeof(above), "%s-away", root);
    ck_assert_int_eq(rename(root, above), 0);
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_DOWN);
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 10), TIERCE_E_DOWN);
    ck_assert_int_eq(rename(above, root), 0);
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 10), 0);
    snprintf(away, sizeof(away), "%s/away", root);
    ck_assert_int_eq(rename(store, away), 0);
    ck_assert_int_eq(rename(root, above), 0);
    ck_assert_int_eq(connector_get(connector, pool, "name", 1, 0, 10), TIERCE_E_DOWN);
    ck_assert_int_eq(connector_exists(connector, "name"), TIERCE_E_DOWN);
    ck_assert_int_eq(connector_delete(connector, "name"), TIERCE_E_DOWN);
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 10), TIERCE_E_DOWN);
    ck_assert_int_eq(rename(above, root), 0);
    ck_assert_int_eq(rename(away, store), 0);
    ck_assert_int_eq(connector_get(connector, pool, "name", 1, 0, 10), 0);
    end();
}
END_TEST

/* Where a mount was, a folder stays. Nothing is written below it, on the disk of this machine. */
START_TEST(a_store_that_went_is_not_made_again)
{
    char away[96];
    start((struct tierce__file_opts){0});
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 10), 0);
    snprintf(away, sizeof(away), "%s/away", root);
    ck_assert_int_eq(rename(store, away), 0);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(connector_put(connector, pool, "name", 1, 10), TIERCE_E_DOWN);
        ck_assert_int_eq(connector_exists(connector, "name"), TIERCE_E_DOWN);
        ck_assert_int_eq(connector_ping(connector), TIERCE_E_DOWN);
        ck_assert_int_ne(access(store, F_OK), 0);
    }
    ck_assert_ptr_nonnull(strstr(connector_why(connector), "is its file system mounted?"));
    /* The mount point itself may be the store's folder. */
    ck_assert_int_eq(mkdir(store, 0700), 0);
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 10), TIERCE_E_DOWN);
    ck_assert_int_eq(rmdir(store), 0); /* nothing is in it */
    ck_assert_int_eq(rename(away, store), 0);
    ck_assert_int_eq(connector_get(connector, pool, "name", 1, 0, 10), 0);
    end();
}
END_TEST

START_TEST(a_file_of_another_length)
{
    char path[400];
    start((struct tierce__file_opts){0});
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 5000), 0);
    look_around();
    snprintf(path, sizeof(path), "%s%s", store, seen.object);
    ck_assert_int_eq(truncate(path, 4999), 0);
    ck_assert_int_eq(connector_get(connector, pool, "name", 1, 0, 5000), TIERCE_E_FORMAT);
    ck_assert_int_eq(connector_get(connector, pool, "name", 1, 0, 4999), 0);
    end();
}
END_TEST

/* ---- faults ---------------------------------------------------------------------------------- */

/* Each call to the disk fails once in a PUT that replaces: it is the old object or the new one. */
START_TEST(each_io_fails_once)
{
    static const struct {
        int error, status;
    } errors[] = {{-EIO, -EIO},
                  {-ENOSPC, TIERCE_E_FULL},
                  {-EDQUOT, TIERCE_E_FULL},
                  {-EACCES, TIERCE_E_REFUSED},
                  {-EROFS, TIERCE_E_REFUSED},
                  {-ESTALE, TIERCE_E_DOWN}};
    start((struct tierce__file_opts){0});
    bool whole = false;
    for (uint64_t nth = 1; !whole; nth++) {
        uint32_t version = (uint32_t)nth;
        ck_assert_int_eq(connector_put(connector, pool, "name", version, 70000), 0);
        tierce__vfs_fault_add(faults, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_ANY,
                                                                       .nth = nth,
                                                                       .action = TIERCE__FAULT_FAIL,
                                                                       .error = errors[_i].error});
        int rc = connector_put(connector, pool, "name", version + 1, 80000);
        tierce__vfs_fault_clear(faults);
        ck_assert(rc == 0 || rc == errors[_i].status);
        whole = rc == 0;
        if (connector_get(connector, pool, "name", version + 1, 0, 80000) != 0)
            ck_assert_int_eq(connector_get(connector, pool, "name", version, 0, 70000), 0);
        do /* a full store is swept, whose claim is written in the same way */
            look_around();
        while (seen.temporaries > 0);
        ck_assert_uint_eq(seen.objects, 1);
    }
    end();
}
END_TEST

/* The same for the first PUT of a store, and for GET and DELETE. */
START_TEST(each_io_of_the_first_put_fails_once)
{
    int rc = -EIO;
    for (uint64_t nth = 1; rc != 0; nth++) {
        start((struct tierce__file_opts){0});
        tierce__vfs_fault_add(faults, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_ANY,
                                                                       .nth = nth,
                                                                       .action = TIERCE__FAULT_FAIL,
                                                                       .error = -EIO});
        rc = connector_put(connector, pool, "name", 1, 70000);
        ck_assert(rc == 0 || rc == -EIO);
        tierce__vfs_fault_clear(faults);
        int got = connector_get(connector, pool, "name", 1, 0, 70000);
        ck_assert(got == 0 || (rc != 0 && got == TIERCE_E_MISS));
        ck_assert_int_eq(connector_put(connector, pool, "name", 2, 70000), 0);
        ck_assert_int_eq(connector_get(connector, pool, "name", 2, 0, 70000), 0);
        end();
    }
    start((struct tierce__file_opts){0});
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 70000), 0);
    const struct tierce__vfs_fault_rule always = {.kind = TIERCE__FAULT_ANY,
                                                  .nth = 1,
                                                  .forever = true,
                                                  .action = TIERCE__FAULT_FAIL,
                                                  .error = -EIO};
    tierce__vfs_fault_add(faults, &always);
    ck_assert_int_eq(connector_get(connector, pool, "name", 1, 0, 70000), -EIO);
    ck_assert_int_eq(connector_delete(connector, "name"), -EIO);
    ck_assert_str_eq(connector_why(connector),
                     "file://here: deleting an object: Input/output error");
    tierce__vfs_fault_clear(faults);
    ck_assert_int_eq(connector_get(connector, pool, "name", 1, 0, 70000), 0);
    end();
}
END_TEST

/* NFS: another host has replaced the file that we have open. */
START_TEST(a_stale_handle_is_opened_again)
{
    start((struct tierce__file_opts){0});
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 70000), 0);
    tierce__vfs_fault_add(faults, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_READ,
                                                                   .nth = 1,
                                                                   .action = TIERCE__FAULT_FAIL,
                                                                   .error = -ESTALE});
    ck_assert_int_eq(connector_get(connector, pool, "name", 1, 0, 70000), 0);
    end();
}
END_TEST

/* A PUT that came too late is not published behind its caller's back. */
START_TEST(a_late_put_is_not_published)
{
    struct connector_call call;
    start((struct tierce__file_opts){0});
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 1000), 0);
    tierce__vfs_fault_add(faults,
                          &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_SYNC,
                                                           .nth = 1,
                                                           .action = TIERCE__FAULT_LATE,
                                                           .delay_ns = 100 * TIERCE__MS_NS});
    connector_call_init(&call, TIERCE__STORE_PUT, "name", 0);
    call.req.buf = connector_object(pool, 2, 1000);
    call.req.length = 1000;
    call.req.deadline_ns = tierce__deadline_in_ms(30);
    ck_assert_int_eq(connector_call_run(connector, &call), TIERCE_E_DEADLINE);
    while (atomic_load(&call.req.buf->refs) > 1)
        sched_yield();
    ck_assert_uint_eq(connector_stats(connector).calls_hanging, 0);
    tierce__buf_release(call.req.buf);
    ck_assert_int_eq(connector_get(connector, pool, "name", 1, 0, 1000), 0);
    look_around();
    ck_assert_uint_eq(seen.temporaries, 0);
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
        rc = make((struct tierce__file_opts){.links = 2});
        if (rc == 0) {
            int put = connector_put(connector, pool, "name", 1, 100);
            int got = connector_get(connector, pool, "name", 1, 0, 100);
            int there = connector_exists(connector, "name");
            ck_assert(put == 0 || put == -ENOMEM);
            ck_assert(got == 0 || got == -ENOMEM || (put != 0 && got == TIERCE_E_MISS));
            ck_assert(there >= 0 || there == -ENOMEM);
            close_connector();
            rc = put != 0 ? put : got != 0 ? got : there < 0 ? there : 0;
        }
        uint64_t count = tierce__alloc_fail_nth(0);
        ck_assert(rc != 0 || count >= nth || nth > 8); /* the sweeper's may have failed */
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    tierce__pool_destroy(pool);
    remove_root();
}
END_TEST

/* Threads whose stacks have room on no machine. */
START_TEST(no_thread_is_an_answer)
{
    pthread_attr_t attr;
    make_root();
    ck_assert_int_eq(pthread_attr_init(&attr), 0);
    ck_assert_int_eq(pthread_attr_setstacksize(&attr, (size_t)1 << 60), 0);
    ck_assert_int_eq(pthread_setattr_default_np(&attr), 0);
    uint64_t live = tierce__alloc_live();
    ck_assert_int_eq(make((struct tierce__file_opts){0}), -EAGAIN);
    ck_assert_uint_eq(tierce__alloc_live(), live);
    remove_root();
}
END_TEST

/* ---- the cap --------------------------------------------------------------------------------- */

/* Sets the times of an object back. */
static void make_older(const char *name, time_t seconds)
{
    struct timespec now;
    char command[256];
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(command, sizeof(command), "find %s -name %s -exec touch -d @%lld {} +", store, name,
             (long long)(now.tv_sec - seconds));
    ck_assert_int_eq(system(command), 0);
}

/* It may be full briefly: objects written during a sweep count twice until the next sweep. */
static void put_when_there_is_room(const char *name, uint32_t version)
{
    int rc;
    while ((rc = connector_put(connector, pool, name, version, 1 << 20)) == TIERCE_E_FULL)
        usleep(1000);
    ck_assert_int_eq(rc, 0);
}

START_TEST(the_oldest_go)
{
    char name[16];
    start((struct tierce__file_opts){.cap_bytes = 10 << 20, .sweep_ms = 50});
    for (uint32_t i = 0; i < 9; i++) {
        snprintf(name, sizeof(name), "object-%u", i);
        put_when_there_is_room(name, i);
        make_older(name, (10 - (time_t)i) * 1000);
    }
    /* Read now: it is young again, and the two oldest ones are others. */
    ck_assert_int_eq(connector_get(connector, pool, "object-0", 0, 0, 1 << 20), 0);
    put_when_there_is_room("new", 9);
    while (connector_exists(connector, "object-1") == 1)
        usleep(1000);
    put_when_there_is_room("newer", 10);
    for (uint32_t i = 0; i < 9; i++) {
        snprintf(name, sizeof(name), "object-%u", i);
        if (i != 1 && i != 2) /* the second one perhaps, by now */
            ck_assert_int_eq(connector_exists(connector, name), 1);
    }
    look_around();
    ck_assert_uint_le(seen.bytes, 10 << 20);
    end();
}
END_TEST

START_TEST(the_cap_is_never_exceeded)
{
    uint32_t full = 0;
    char name[16];
    start((struct tierce__file_opts){.cap_bytes = 8 << 20, .sweep_ms = 3600000});
    ck_assert_int_eq(connector_put(connector, pool, "huge", 1, 8 << 20), TIERCE_E_LIMIT);
    for (uint32_t i = 0; i < 40; i++) {
        snprintf(name, sizeof(name), "object-%u", i);
        int rc = connector_put(connector, pool, name, i, (1 << 20) - i);
        ck_assert(rc == 0 || rc == TIERCE_E_FULL);
        full += rc != 0;
        look_around();
        ck_assert_uint_le(seen.bytes, 8 << 20);
    }
    ck_assert_uint_gt(full, 0);
    end();
}
END_TEST

/* As another host does it, in one step. */
static void claim_sweep(unsigned count)
{
    char text[64], claim[128], tmp[128];
    snprintf(text, sizeof(text), "bytes 9000000 seed another count %u\n", count);
    snprintf(claim, sizeof(claim), "%s/~claim", store);
    snprintf(tmp, sizeof(tmp), "%s/~claim-of-another", store);
    write_text("~claim-of-another", text);
    ck_assert_int_eq(rename(tmp, claim), 0);
}

/* Other processes claim one sweep after another: a writer without room does not wait for them. */
START_TEST(who_runs_out_of_room_sweeps)
{
    start((struct tierce__file_opts){.cap_bytes = 10 << 20, .sweep_ms = 3600000});
    ck_assert_int_eq(mkdir(store, 0700), 0);
    claim_sweep(0);
    ck_assert_int_eq(connector_put(connector, pool, "old", 1, 9000000), 0);
    make_older("old", 1000);
    for (unsigned i = 1; connector_exists(connector, "old") == 1; i++) {
        claim_sweep(i);
        int rc = connector_put(connector, pool, "new", 2, 1 << 20);
        ck_assert(rc == 0 || rc == TIERCE_E_FULL);
        usleep(1000);
    }
    end();
}
END_TEST

/* After a restart the existing objects are known. */
START_TEST(the_count_survives)
{
    char name[16];
    start((struct tierce__file_opts){.cap_bytes = 8 << 20, .sweep_ms = 50});
    for (uint32_t i = 0; i < 7; i++) {
        snprintf(name, sizeof(name), "object-%u", i);
        put_when_there_is_room(name, i);
    }
    char claim[96], text[64] = "";
    snprintf(claim, sizeof(claim), "%s/~claim", store);
    while (strncmp(text, "bytes 7340032 ", 14) != 0) {
        FILE *file = fopen(claim, "r");
        if (file != NULL && fgets(text, sizeof(text), file) == NULL)
            text[0] = '\0';
        if (file != NULL)
            fclose(file);
        usleep(1000);
    }
    close_connector();
    ck_assert_int_eq(make((struct tierce__file_opts){.cap_bytes = 8 << 20, .sweep_ms = 3600000}),
                     0);
    for (uint32_t i = 0; i < 20; i++) {
        int rc = connector_put(connector, pool, "x", i, 1 << 20);
        ck_assert(rc == 0 || rc == TIERCE_E_FULL);
        look_around();
        ck_assert_uint_le(seen.bytes, 8 << 20);
    }
    end();
}
END_TEST

START_TEST(temporaries_of_the_dead_go)
{
    char path[128];
    start((struct tierce__file_opts){.sweep_ms = 50, .tmp_ms = 100000});
    ck_assert_int_eq(connector_put(connector, pool, "name", 1, 1000), 0);
    look_around();
    snprintf(path, sizeof(path), "%.6s/~tmp-dead00000000dead0000000000000000", seen.object + 1);
    write_text(path, "x");
    snprintf(path, sizeof(path), "%.6s/~tmp-a11fe0000000a11fe000000000000000", seen.object + 1);
    write_text(path, "x");
    make_older("~tmp-dead00000000dead0000000000000000", 200);
    do {
        usleep(1000);
        look_around();
    } while (seen.temporaries > 1);
    snprintf(path, sizeof(path), "%s/%.5s/~tmp-a11fe0000000a11fe000000000000000", store,
             seen.object + 1);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_int_eq(connector_get(connector, pool, "name", 1, 0, 1000), 0);
    end();
}
END_TEST

/* ---- processes ------------------------------------------------------------------------------- */

/* A writer is killed before each of its calls to the disk: nobody finds half an object. */
START_TEST(a_writer_is_killed)
{
    make_root();
    bool survived = false;
    for (uint64_t nth = 1; !survived; nth++) {
        pid_t child = fork();
        if (child == 0) {
            pool = connector_pool();
            if (make((struct tierce__file_opts){.links = 2}) != 0)
                _exit(1);
            tierce__vfs_fault_add(
                faults, &(struct tierce__vfs_fault_rule){
                            .kind = TIERCE__FAULT_ANY, .nth = nth, .action = TIERCE__FAULT_KILL});
            int rc = connector_put(connector, pool, "name", (uint32_t)nth, 90000);
            _exit(rc == 0 ? 0 : 2);
        }
        int status = 0;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        survived = WIFEXITED(status);
        ck_assert_int_eq(survived ? WEXITSTATUS(status) : 0, 0);
        pool = connector_pool();
        ck_assert_int_eq(make((struct tierce__file_opts){.links = 2}), 0);
        struct connector_call call;
        connector_call_init(&call, TIERCE__STORE_GET, "name", 0);
        ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, 90000), 0);
        call.req.length = 90000;
        int rc = connector_call_run(connector, &call);
        ck_assert(rc == 0 || (rc == TIERCE_E_MISS && !survived));
        bool known = rc != 0;
        for (uint32_t version = 1; version <= nth && !known; version++)
            known = connector_is_object(call.req.buf->data, version, 0, 90000);
        ck_assert(known);
        tierce__buf_release(call.req.buf);
        close_connector();
        tierce__pool_destroy(pool);
    }
    remove_root();
}
END_TEST

/* The power fails before each disk call of a PUT: an acknowledged object is there, and an
 * unacknowledged one is there completely or not at all. */
START_TEST(the_power_goes)
{
    int rc = -EIO;
    for (uint64_t nth = 1; rc != 0; nth++) {
        power = true;
        start((struct tierce__file_opts){.links = 2});
        tierce__vfs_fault_seed(faults, nth);
        ck_assert_int_eq(connector_put(connector, pool, "name", 1, 90000), 0);
        ck_assert_int_eq(connector_put(connector, pool, "other", 3, 9000), 0);
        tierce__vfs_fault_add(
            faults, &(struct tierce__vfs_fault_rule){
                        .kind = TIERCE__FAULT_ANY, .nth = nth, .action = TIERCE__FAULT_CUT});
        rc = connector_put(connector, pool, "name", 2, 90000);
        if (rc == 0)
            tierce__vfs_fault_power_cut(faults);
        close_connector();
        power = false;
        ck_assert_int_eq(make((struct tierce__file_opts){.links = 2}), 0);
        ck_assert_int_eq(connector_get(connector, pool, "other", 3, 0, 9000), 0);
        struct connector_call call;
        connector_call_init(&call, TIERCE__STORE_GET, "name", 0);
        ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, 90000), 0);
        call.req.length = 90000;
        ck_assert_int_eq(connector_call_run(connector, &call), 0);
        ck_assert(connector_is_object(call.req.buf->data, 2, 0, 90000) ||
                  (rc != 0 && connector_is_object(call.req.buf->data, 1, 0, 90000)));
        tierce__buf_release(call.req.buf);
        end();
    }
}
END_TEST

/* One of several processes that write, read and sweep in one folder. */
static int share(uint32_t seed)
{
    char name[16];
    pool = connector_pool();
    if (make((struct tierce__file_opts){.cap_bytes = 4 << 20, .sweep_ms = 5, .links = 2}) != 0)
        return 1;
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t object = (i * 7 + seed * 13) % 60;
        uint64_t bytes = 50000 + object * 1000;
        snprintf(name, sizeof(name), "object-%u", object);
        int rc = connector_put(connector, pool, name, object, bytes);
        if (rc != 0 && rc != TIERCE_E_FULL)
            return 2;
        object = (object + i) % 60;
        snprintf(name, sizeof(name), "object-%u", object);
        rc = connector_get(connector, pool, name, object, 0, 50000 + object * 1000);
        if (rc != 0 && rc != TIERCE_E_MISS)
            return 3;
    }
    return connector->ops->close(connector, tierce__deadline_in_ms(30000)) ? 0 : 4;
}

START_TEST(processes_share_a_store)
{
    pid_t children[3];
    make_root();
    for (uint32_t i = 0; i < 3; i++) {
        children[i] = fork();
        if (children[i] == 0)
            _exit(share(i));
    }
    for (uint32_t i = 0; i < 3; i++) {
        int status = 0;
        ck_assert_int_eq(waitpid(children[i], &status, 0), children[i]);
        ck_assert_int_eq(status, 0);
    }
    look_around();
    ck_assert_uint_eq(seen.temporaries, 0);
    ck_assert_uint_gt(seen.objects, 0);
    remove_root();
}
END_TEST

CHECK_MAIN("file store", .seconds = 120,
           .tests = {where_an_object_lies, a_store_keeps_its_fanout, a_folder_that_is_no_store,
                     a_store_that_goes, a_store_that_went_is_not_made_again,
                     a_file_of_another_length, each_io_of_the_first_put_fails_once,
                     a_stale_handle_is_opened_again, a_late_put_is_not_published,
                     each_allocation_fails_once, no_thread_is_an_answer, the_oldest_go,
                     the_cap_is_never_exceeded, who_runs_out_of_room_sweeps, the_count_survives,
                     temporaries_of_the_dead_go, a_writer_is_killed, the_power_goes,
                     processes_share_a_store},
           .loops = {{each_io_fails_once, 0, 6}})
