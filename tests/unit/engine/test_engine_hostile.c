/* SPDX-License-Identifier: Apache-2.0 */
/* The engine where the world is against it: stores that never end, a device that fails or hangs,
 * callers that race, fork or mix things up. */
#include "base/clock.h"
#include "check_main.h"
#include "child_exit.h"
#include "engine_fixture.h"
#include "log_record.h"
#include "tier_fault.h"
#include "wait_for.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static struct fixture fx;
static _Atomic bool stop;
static _Atomic bool sync_hangs;
static _Atomic uint32_t syncs_hanging, syncs_running; /* here; here or in the kernel */

/* In place of the C library's: a device that does not come back for a while. */
int fdatasync(int fd)
{
    atomic_fetch_add(&syncs_running, 1);
    atomic_fetch_add(&syncs_hanging, 1);
    while (atomic_load(&sync_hangs))
        usleep(1000);
    atomic_fetch_sub(&syncs_hanging, 1);
    int rc = (int)syscall(SYS_fdatasync, fd);
    atomic_fetch_sub(&syncs_running, 1);
    return rc;
}

/* This one never hangs: whoever opens a store calls it too. */
int fsync(int fd)
{
    atomic_fetch_add(&syncs_running, 1);
    int rc = (int)syscall(SYS_fsync, fd);
    atomic_fetch_sub(&syncs_running, 1);
    return rc;
}

static void wait_for_a_sync(void)
{
    WAIT_FOR(atomic_load(&syncs_hanging) > 0);
}

/* Waits until there was no sync for half a second: an abandoned thread continues, with the journal
 * and the namespaces. Looks are counted, not time, which passes too while all stands still. */
static void wait_for_the_last_sync(void)
{
    uint64_t give_up = tierce__deadline_in_ms(120000);
    unsigned quiet;
    for (quiet = 0; quiet < 500 && tierce__now_ns() < give_up; quiet++) {
        usleep(1000);
        if (atomic_load(&syncs_running) > 0)
            quiet = 0;
    }
    ck_assert_uint_eq(quiet, 500);
}

static struct tierce__tier *wrap_disk(void)
{
    struct tierce__tier *wrapped;
    ck_assert_uint_eq(fx.engine->level_count, 2);
    wrapped = fx_wrap(&fx, 1);
    return wrapped;
}

static void store_seed(uint32_t seed)
{
    struct tierce_chain *chain = fx_chain(&fx, seed, 16, 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 16, fx_ids);
    ck_assert_int_ge(tierce_store(fx.view, &what), 0);
    tierce_chain_destroy(chain);
}

static void *store_on_and_on(void *arg)
{
    (void)arg;
    for (uint32_t seed = 1000; !atomic_load(&stop); seed++)
        store_seed(seed);
    return NULL;
}

START_TEST(flush_does_not_wait_for_stores_that_begin_later)
{
    pthread_t threads[2];
    fx_open(&fx, true, NULL);
    atomic_store(&stop, false);
    for (size_t i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, store_on_and_on, NULL), 0);
    while (fx_stats(&fx).chunks_stored < 10) /* ended by the time limit of the test */
        usleep(1000);
    for (int i = 0; i < 3; i++) {
        int rc = tierce_engine_flush(fx.engine, 60000);
        ck_assert(rc == 0 || rc == TIERCE_E_FULL); /* the disk is slower than the stores */
    }
    atomic_store(&stop, true);
    for (size_t i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(flush_tells_once_that_a_write_failed)
{
    const char *sets[] = {"breaker.errors", "100", "breaker.window", "0", "breaker.retry",
                          "10ms",           NULL};
    fx_open(&fx, true, sets);
    struct tierce__tier *disk = wrap_disk();
    tierce__fault_set(
        disk, TIERCE__STORE_PUT,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO, .times = 1});
    store_seed(1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), -EIO);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    /* The disk has no space: told once too. */
    tierce__fault_set(
        disk, TIERCE__STORE_PUT,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = TIERCE_E_FULL});
    store_seed(2);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), TIERCE_E_FULL);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    /* Rejected by a rule: by design, and no error. */
    tierce__fault_set(
        disk, TIERCE__STORE_PUT,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = TIERCE_E_REFUSED});
    store_seed(3);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(a_sync_that_hangs_over_close_harms_nobody_later)
{
    const char *sets[] = {"timeout.close", "0", "disk.flush_interval", "10ms", NULL};
    fx_open(&fx, true, sets);
    atomic_store(&sync_hangs, true);
    store_seed(1);
    wait_for_a_sync();
    fx_close(&fx); /* leaves the thread behind; fx.engine still points to what it may use */
    atomic_store(&sync_hangs, false);
    wait_for_the_last_sync();
    tierce__pool_destroy(fx.engine->pool); /* by now it is done; joins its thread */
    fx_remove(&fx);
}
END_TEST

static void *close_fixture(void *arg)
{
    struct fixture *closing = arg;
    fx_close(closing);
    return NULL;
}

static void *end_hanging(void *arg)
{
    (void)arg;
    usleep(300000); /* the opening engine waits meanwhile */
    atomic_store(&sync_hangs, false);
    return NULL;
}

/* Opens an engine whose only sync is that of its close, closes it in a thread, and returns when
 * that hangs. */
static pthread_t begin_hanging_close(struct fixture *closing, const char *timeout)
{
    const char *sets[] = {"timeout.close", timeout, "disk.flush_interval", "60s", NULL};
    pthread_t thread;
    fx_open(&fx, true, sets);
    store_seed(1);
    atomic_store(&sync_hangs, true);
    *closing = fx;
    ck_assert_int_eq(pthread_create(&thread, NULL, close_fixture, closing), 0);
    wait_for_a_sync();
    return thread;
}

START_TEST(opening_waits_for_the_engine_that_is_being_closed)
{
    const char *sets[] = {"timeout.close", "120s", "disk.flush_interval", "60s", NULL};
    static struct fixture closing; /* what is left behind stays reachable */
    pthread_t closer = begin_hanging_close(&closing, "120s"), helper;
    ck_assert_int_eq(pthread_create(&helper, NULL, end_hanging, NULL), 0);
    fx_open(&fx, true, sets);
    ck_assert_int_eq(fx_stats(&fx).disk_open_status, 0);
    ck_assert_int_eq(fx_stats(&fx).disk_durable_chunks_now, 4);
    pthread_join(helper, NULL);
    pthread_join(closer, NULL);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(opening_does_not_wait_beyond_the_deadline_of_a_close)
{
    static struct fixture closing; /* what is left behind stays reachable */
    pthread_t closer = begin_hanging_close(&closing, "200ms");
    fx_open(&fx, true, NULL); /* other settings, same folder */
    ck_assert_int_eq(fx_stats(&fx).disk_open_status, TIERCE_E_LOCKED);
    pthread_join(closer, NULL);
    atomic_store(&sync_hangs, false);
    wait_for_the_last_sync();
    tierce__pool_destroy(closing.engine->pool);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static void *open_engine(void *arg)
{
    struct tierce_engine *engine = NULL;
    char why[TIERCE_CONFIG_ERROR_BYTES];
    return tierce_engine_open(&engine, arg, why) == 0 ? engine : NULL;
}

START_TEST(a_slow_opening_holds_up_only_those_who_want_the_same)
{
    const char *sets[] = {"disk.lock_wait", "20s", NULL};
    char why[TIERCE_CONFIG_ERROR_BYTES], path[128];
    snprintf(fx.folder, sizeof(fx.folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(fx.folder);
    struct tierce_config *slow = fx_config(fx.folder, sets);
    snprintf(path, sizeof(path), "%s/lock", fx.folder);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    ck_assert_int_eq(fcntl(fd, F_OFD_SETLK, &lock), 0);

    pthread_t threads[2];
    record_log(TIERCE_LOG_WARN);
    for (size_t i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, open_engine, slow), 0);
    WAIT_FOR(recorded_with("disk_folder_in_use", fx.folder) == 1); /* once, and the other waits */
    struct fixture other = {0};
    fx_open(&other, false, NULL);
    fx_close(&other);
    close(fd); /* gives the lock back */
    void *first, *second;
    pthread_join(threads[0], &first);
    pthread_join(threads[1], &second);
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_eq(first, second);
    fx.engine = first;
    ck_assert_int_eq(fx_stats(&fx).disk_open_status, 0);
    tierce_engine_close(first);
    tierce_engine_close(second);
    ck_assert_int_eq(tierce_engine_open(&fx.engine, slow, why), 0);
    tierce_engine_close(fx.engine);
    tierce_config_destroy(slow);
    fx_remove(&other);
    fx_remove(&fx);
}
END_TEST

static void *pin_on_and_on(void *arg)
{
    struct tierce_chain *chain = arg;
    for (int i = 0; i < 20000; i++)
        fx_found(&fx, chain, 16, TIERCE_LOOKUP_PIN, 7, NULL);
    return NULL;
}

START_TEST(a_session_has_one_set_of_pins_whoever_races)
{
    pthread_t threads[4];
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, pin_on_and_on, chain), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(fx_stats(&fx).sessions_now, 1);
    tierce_unpin(fx.view, 7);
    ck_assert_int_eq(fx_stats(&fx).sessions_now, 0);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static void *pin_of_its_own(void *arg)
{
    const uint64_t *session = arg;
    struct tierce_chain *chain = fx_chain(&fx, 1, 200, 0);
    for (int i = 0; i < 5000; i++) {
        fx_found(&fx, chain, 200, TIERCE_LOOKUP_PIN, *session, NULL);
        tierce_unpin(fx.view, *session);
    }
    tierce_chain_destroy(chain);
    return NULL;
}

START_TEST(the_bound_on_pins_holds_in_a_race)
{
    const char *sets[] = {"memory.pins", "10%", NULL};
    pthread_t threads[4];
    uint64_t sessions[4] = {1, 2, 3, 4};
    int32_t ids[200];
    for (int32_t i = 0; i < 200; i++)
        ids[i] = i;
    fx_open(&fx, false, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 200, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 200, ids, false), 200);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, pin_of_its_own, &sessions[i]), 0);
    for (int i = 0; i < 20000; i++)
        ck_assert_int_le(fx_stats(&fx).pinned_bytes_now, (4 << 20) / 10);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(a_chain_of_another_namespace_is_refused)
{
    fx_open(&fx, false, NULL);
    const struct tierce_chain_opts others[] = {
        {.size = sizeof(others[0]), .algo = TIERCE_CHAIN_XXH3_128, .block_tokens = FX_BLOCK_TOKENS},
        {.size = sizeof(others[0]), .algo = TIERCE_CHAIN_SHA256, .block_tokens = 8}};
    for (size_t i = 0; i < 2; i++) {
        struct tierce_chain *chain;
        struct tierce_store *store;
        struct tierce_load *load;
        struct tierce_found found;
        static const int32_t tokens[128];
        ck_assert_int_eq(tierce_chain_create(&chain, &others[i]), 0);
        ck_assert_int_ge(tierce_chain_append(chain, tokens, 128, NULL), 16);
        struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 16, fx_ids);
        ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), TIERCE_E_ARGUMENT);
        ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), TIERCE_E_ARGUMENT);
        struct tierce_lookup_opts opts = {.size = sizeof(opts)};
        ck_assert_int_eq(tierce_lookup(fx.view, chain, 16, &opts, &found), TIERCE_E_ARGUMENT);
        tierce_chain_destroy(chain);
    }
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* A child's use of an engine inherited by fork. */
static int use_inherited(struct tierce_chain *chain, struct tierce_load *load)
{
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 16, fx_ids);
    struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    struct tierce_found found;
    struct tierce_store *store;
    bool refused = tierce_lookup(fx.view, chain, 16, &opts, &found) == TIERCE_E_CLOSED &&
                   tierce_store_begin(&store, fx.view, &what) == TIERCE_E_CLOSED &&
                   tierce_engine_flush(fx.engine, 60000) == TIERCE_E_CLOSED &&
                   fx_stats(&fx).memory_chunks_now == 0;
    tierce_unpin(fx.view, 1);
    tierce_load_abort(load);
    fx_close(&fx);
    return refused ? 0 : 1;
}

START_TEST(a_child_by_fork_can_let_go_of_the_engine)
{
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 16, fx_ids);
    struct tierce_load *load;
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        child_exit(use_inherited(chain, load));
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    tierce_load_abort(load);
    store_seed(2);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_eq(fx_stats(&fx).disk_durable_chunks_now, 8);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* The child tells its number when it runs. */
static void fork_waiting_child(int told)
{
    if (fork() != 0)
        return;
    alarm(200);
    pid_t own = getpid();
    if (write(told, &own, sizeof(own)) != sizeof(own))
        child_exit(1);
    for (;;)
        pause();
}

static pid_t await_child(int told)
{
    pid_t child;
    ck_assert_int_eq(read(told, &child, sizeof(child)), (ssize_t)sizeof(child));
    return child;
}

static void end_child(pid_t child)
{
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

START_TEST(a_child_by_fork_does_not_hold_the_folder)
{
    int told[2];
    fx_open(&fx, true, NULL);
    store_seed(1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_eq(pipe(told), 0);
    fork_waiting_child(told[1]);
    pid_t child = await_child(told[0]);
    fx_close(&fx);
    fx_open(&fx, true, NULL);
    ck_assert_int_eq(fx_stats(&fx).disk_open_status, 0);
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, 4);
    end_child(child);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Opens the store, forks and waits to be killed. */
static void hold_and_fork(int told)
{
    alarm(200);
    fx_open(&fx, true, NULL);
    store_seed(1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fork_waiting_child(told);
    for (;;)
        pause();
}

START_TEST(a_child_of_a_killed_process_does_not_hold_the_folder)
{
    int told[2];
    snprintf(fx.folder, sizeof(fx.folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(fx.folder);
    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    ck_assert_int_eq(pipe(told), 0);
    pid_t parent = fork();
    if (parent == 0)
        hold_and_fork(told[1]);
    pid_t child = await_child(told[0]);
    end_child(parent);
    fx_open(&fx, true, NULL);
    ck_assert_int_eq(fx_stats(&fx).disk_open_status, 0);
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, 4);
    end_child(child);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

CHECK_MAIN("engine_hostile", .seconds = 240,
           .tests = {flush_does_not_wait_for_stores_that_begin_later,
                     flush_tells_once_that_a_write_failed,
                     a_sync_that_hangs_over_close_harms_nobody_later,
                     opening_waits_for_the_engine_that_is_being_closed,
                     opening_does_not_wait_beyond_the_deadline_of_a_close,
                     a_slow_opening_holds_up_only_those_who_want_the_same,
                     a_session_has_one_set_of_pins_whoever_races, the_bound_on_pins_holds_in_a_race,
                     a_chain_of_another_namespace_is_refused,
                     a_child_by_fork_can_let_go_of_the_engine,
                     a_child_by_fork_does_not_hold_the_folder,
                     a_child_of_a_killed_process_does_not_hold_the_folder})
