/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "child_exit.h"
#include "core/chunk/pool.h"
#include "log_record.h"
#include "tierce/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static struct tierce__pool *pool;

static void start(uint64_t cap, uint32_t bufs)
{
    struct tierce__pool_opts opts = {.size = sizeof(opts),
                                     .cap_bytes = cap,
                                     .buf_count_max = bufs,
                                     .no_touch = true,
                                     .no_huge_pages = true};
    ck_assert_int_eq(tierce__pool_create(&pool, &opts), 0);
}

static struct tierce__buf *alloc(uint64_t bytes)
{
    struct tierce__buf *buf = NULL;
    ck_assert_int_eq(tierce__pool_alloc(pool, &buf, bytes), 0);
    ck_assert_uint_eq((uintptr_t)buf->data % 4096, 0);
    ck_assert_uint_eq(buf->bytes, bytes);
    return buf;
}

static struct tierce__pool_stats stats_now(void)
{
    struct tierce__pool_stats stats;
    tierce__pool_stats(pool, &stats);
    return stats;
}

START_TEST(a_buffer_lives_until_its_last_reference)
{
    uint64_t live = tierce__alloc_live();
    start(MIB, 0);
    struct tierce__buf *buf = alloc(5000), *none = NULL;
    memset(buf->data, 1, 8192);
    ck_assert_uint_eq(stats_now().used_bytes, 8192);
    ck_assert_uint_eq(stats_now().asked_bytes, 5000);
    tierce__buf_acquire(buf);
    tierce__buf_release(buf);
    ck_assert_uint_eq(stats_now().bufs, 1);
    ck_assert_int_eq(tierce__pool_alloc(pool, &none, MIB), TIERCE_E_FULL);
    tierce__buf_release(buf);
    ck_assert_uint_eq(stats_now().bufs, 0);
    ck_assert_uint_eq(stats_now().used_bytes, 0);
    tierce__buf_release(alloc(MIB));
    ck_assert_int_eq(tierce__pool_alloc(pool, &none, MIB + 1), TIERCE_E_LIMIT);
    ck_assert_int_eq(tierce__pool_alloc(pool, &none, UINT64_MAX), TIERCE_E_LIMIT);
    ck_assert_int_eq(tierce__pool_alloc(pool, &none, 0), TIERCE_E_ARGUMENT);
    ck_assert_ptr_null(none);
    tierce__buf_release(NULL);
    tierce__pool_destroy(pool);
    tierce__pool_destroy(NULL);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

START_TEST(bytes_and_buffers_are_capped)
{
    struct tierce__buf *bufs[4], *none = NULL;
    start(MIB + 4095, 3);
    for (int i = 0; i < 3; i++)
        bufs[i] = alloc(4096);
    ck_assert_int_eq(tierce__pool_alloc(pool, &none, 1), TIERCE_E_FULL);
    for (int i = 0; i < 3; i++)
        tierce__buf_release(bufs[i]);
    bufs[0] = alloc(MIB / 2);
    bufs[1] = alloc(MIB / 2);
    ck_assert_uint_eq(stats_now().used_bytes, stats_now().cap_bytes);
    ck_assert_int_eq(tierce__pool_alloc(pool, &none, 1), TIERCE_E_FULL);
    tierce__buf_release(bufs[1]);
    tierce__buf_release(bufs[0]);
    tierce__pool_destroy(pool);
}
END_TEST

START_TEST(allocation_makes_no_heap_allocation)
{
    start(16 * MIB, 0);
    static struct tierce__buf *bufs[1024];
    tierce__alloc_fail_nth(1);
    for (int i = 0; i < 1024; i++)
        bufs[i] = alloc(8192);
    for (int i = 0; i < 1024; i += 2)
        tierce__buf_release(bufs[i]);
    for (int i = 1; i < 1024; i += 2)
        tierce__buf_release(bufs[i]);
    ck_assert_uint_eq(tierce__alloc_fail_nth(0), 0);
    tierce__pool_destroy(pool);
}
END_TEST

static struct tierce__buf *idle_buf;
static int idle_calls;

static size_t idle_count;

static void note_idle(void *arg, struct tierce__buf *const *bufs, size_t count)
{
    ck_assert_ptr_eq(arg, &idle_calls);
    ck_assert_uint_gt(count, 0);
    idle_buf = bufs[count - 1];
    idle_count += count;
    idle_calls++;
}

START_TEST(the_keeper_hears_when_it_is_alone)
{
    start(MIB, 0);
    ck_assert_int_eq(tierce__pool_set_keeper(pool, note_idle, &idle_calls), 0);
    ck_assert_int_eq(tierce__pool_set_keeper(pool, note_idle, &idle_calls), -EBUSY);
    struct tierce__buf *kept = alloc(1), *other = alloc(1);
    atomic_store(&kept->kept, 1);
    tierce__buf_acquire(kept);
    tierce__buf_acquire(kept);
    tierce__buf_acquire(other);
    tierce__buf_release(other); /* leaves one, but nobody keeps it */
    tierce__buf_release(kept);  /* leaves two */
    ck_assert_int_eq(idle_calls, 0);
    ck_assert_uint_eq(tierce__pool_leases(pool), 2); /* one of each */
    tierce__buf_release(kept); /* leaves the keeper's, which does not wait for it */
    ck_assert_int_eq(idle_calls, 0);
    ck_assert_uint_eq(tierce__pool_leases(pool), 1);
    tierce__buf_acquire(kept);
    atomic_store(&kept->awaited, true);
    tierce__buf_release(kept);
    ck_assert_int_eq(idle_calls, 1);
    ck_assert_ptr_eq(idle_buf, kept);
    tierce__buf_acquire(kept);
    tierce__pool_clear_keeper(pool);
    tierce__buf_release(kept);
    ck_assert_int_eq(idle_calls, 1);
    atomic_store(&kept->kept, 0);
    tierce__buf_release(kept);
    tierce__buf_release(other);
    tierce__pool_destroy(pool);
}
END_TEST

START_TEST(many_are_released_at_once)
{
    enum { BUFS = 150 };
    struct tierce__buf *bufs[BUFS];
    start(2 * MIB, 0);
    ck_assert_int_eq(tierce__pool_set_keeper(pool, note_idle, &idle_calls), 0);
    for (unsigned i = 0; i < BUFS; i++) {
        bufs[i] = alloc(1);
        if (i % 3 == 2)
            continue; /* nobody else has a reference: it is freed */
        atomic_store(&bufs[i]->kept, i % 3);
        atomic_store(&bufs[i]->awaited, i % 3 != 0);
        tierce__buf_acquire(bufs[i]);
    }
    struct tierce__buf *some[BUFS + 3] = {NULL}; /* with some that have been taken out */
    memcpy(some + 1, bufs, 70 * sizeof(*bufs));
    memcpy(some + 72, bufs + 70, (BUFS - 70) * sizeof(*bufs));
    tierce__bufs_release(bufs, 0);
    tierce__bufs_release(some, 1);
    ck_assert_uint_eq(stats_now().bufs, BUFS);
    tierce__bufs_release(some, BUFS + 3);
    ck_assert_uint_eq(stats_now().bufs, BUFS / 3 * 2);
    ck_assert_uint_eq(idle_count, BUFS / 3); /* those that are awaited */
    ck_assert_int_lt(idle_calls, 5);
    ck_assert_ptr_eq(idle_buf, bufs[BUFS - 2]);
    tierce__pool_clear_keeper(pool);
    for (unsigned i = 0; i < BUFS; i++) {
        if (i % 3 == 2)
            continue;
        atomic_store(&bufs[i]->kept, 0);
        tierce__bufs_release(&bufs[i], 1);
    }
    ck_assert_uint_eq(stats_now().bufs, 0);
    ck_assert_uint_eq(idle_count, BUFS / 3);
    tierce__pool_destroy(pool);
}
END_TEST

/* Populating under the feet of a writer changes nothing that was written. */
START_TEST(touching_pages_leaves_data_alone)
{
    struct tierce__pool_opts opts = {.size = sizeof(opts), .cap_bytes = 64 * MIB};
    ck_assert_int_eq(tierce__pool_create(&pool, &opts), 0);
    struct tierce__buf *buf = alloc(64 * MIB);
    for (uint64_t i = 0; i < buf->bytes; i += 4096)
        buf->data[i] = (uint8_t)(i >> 12 | 1);
    uint64_t give_up = tierce__now_ns() + 5000 * TIERCE__MS_NS, before = 0;
    while (stats_now().touched_bytes < buf->bytes && tierce__now_ns() < give_up) {
        if (stats_now().touched_bytes == before)
            usleep(1000);
        before = stats_now().touched_bytes;
    }
    for (uint64_t i = 0; i < buf->bytes; i += 4096)
        ck_assert_uint_eq(buf->data[i], (uint8_t)(i >> 12 | 1));
    uint8_t *base;
    uint64_t bytes;
    tierce__pool_mapping(pool, &base, &bytes);
    ck_assert_ptr_eq(base, buf->data);
    ck_assert_uint_eq(bytes, 64 * MIB);
    tierce__buf_release(buf);
    tierce__pool_destroy(pool);
}
END_TEST

START_TEST(a_leak_is_reported_and_stays_valid)
{
    record_log(TIERCE_LOG_WARN);
    start(MIB, 0);
    struct tierce__buf *buf = alloc(10);
    tierce__pool_destroy(pool);
    ck_assert_uint_eq(recorded_with("pool_leak", "bufs=1 bytes=4096"), 1);
    memset(buf->data, 1, 10);
    tierce__buf_release(buf);
    tierce__pool_destroy(pool); /* nothing is referenced any more */
    ck_assert_uint_eq(recorded_with("pool_leak", "bufs=1 bytes=4096"), 1);
}
END_TEST

START_TEST(options_are_checked_and_memory_may_fail)
{
    struct tierce__pool_opts opts = {.size = sizeof(opts), .cap_bytes = MIB - 1};
    struct tierce__pool *none = NULL;
    ck_assert_int_eq(tierce__pool_create(&none, &opts), TIERCE_E_ARGUMENT);
    opts.cap_bytes = 1ULL << 62; /* more than any address space holds */
    opts.buf_count_max = 8;
    ck_assert_int_eq(tierce__pool_create(&none, &opts), -ENOMEM);
    opts.size--;
    ck_assert_int_eq(tierce__pool_create(&none, &opts), TIERCE_E_ARGUMENT);
    opts = (struct tierce__pool_opts){.size = sizeof(opts), .cap_bytes = MIB};
    uint64_t live = tierce__alloc_live(), made;
    tierce__alloc_fail_nth(0);
    ck_assert_int_eq(tierce__pool_create(&pool, &opts), 0);
    made = tierce__alloc_fail_nth(0);
    tierce__pool_destroy(pool);
    for (uint64_t n = 1; n <= made; n++) {
        tierce__alloc_fail_nth(n);
        ck_assert_int_eq(tierce__pool_create(&none, &opts), -ENOMEM);
        tierce__alloc_fail_nth(0);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    ck_assert_ptr_null(none);
}
END_TEST

/* ---- memory that others map ------------------------------------------------------------------ */

static void start_shared(uint64_t cap)
{
    struct tierce__pool_opts opts = {.size = sizeof(opts), .cap_bytes = cap, .shared = true};
    ck_assert_int_eq(tierce__pool_create(&pool, &opts), 0);
}

START_TEST(another_mapping_is_the_same_memory)
{
    uint8_t *base;
    uint64_t bytes;
    struct stat st;
    start(MIB, 0);
    ck_assert_int_eq(tierce__pool_fd(pool), -1);
    tierce__pool_destroy(pool);

    start_shared(3 * MIB + 5000);
    int fd = tierce__pool_fd(pool);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
    tierce__pool_mapping(pool, &base, &bytes);
    ck_assert_uint_eq(bytes, 3 * MIB + 4096);
    ck_assert_uint_eq((uintptr_t)base % (2 * MIB), 0);
    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_int_eq(st.st_size, (off_t)bytes);
    uint8_t *other = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert(other != MAP_FAILED);
    struct tierce__buf *first = alloc(100000), *second = alloc(2 * MIB);
    memset(second->data, 7, 2 * MIB);
    ck_assert_int_eq(other[second->data - base + 2 * MIB - 1], 7);
    other[first->data - base + 99999] = 9;
    ck_assert_int_eq(first->data[99999], 9);
    tierce__buf_release(first);
    tierce__buf_release(second);
    tierce__pool_destroy(pool);
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
    munmap(other, bytes);
}
END_TEST

START_TEST(nobody_changes_the_length_of_shared_memory)
{
    start_shared(MIB);
    int fd = tierce__pool_fd(pool);
    ck_assert_int_eq(ftruncate(fd, 4096), -1);
    ck_assert_int_eq(ftruncate(fd, 2 * MIB), -1);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
    tierce__pool_destroy(pool);
}
END_TEST

/* A child of fork would write to its parent's buffers. */
START_TEST(a_child_does_not_have_shared_memory)
{
    int status;
    uint8_t *base;
    uint64_t bytes;
    unsigned char resident;
    start_shared(MIB);
    tierce__pool_mapping(pool, &base, &bytes);
    ck_assert_int_eq(mincore(base, 4096, &resident), 0);
    pid_t child = fork();
    if (child == 0)
        child_exit(mincore(base, 4096, &resident) == -1 && errno == ENOMEM ? 0 : 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    tierce__pool_destroy(pool);
}
END_TEST

#define BUSY 8

/* Pages are touched at idle priority, and the process's memory map is locked meanwhile: a thread
 * that maps memory on a busy machine must not wait until the machine is idle. */
START_TEST(nobody_waits_for_pages_to_be_touched)
{
    pid_t busy[BUSY];
    cpu_set_t all, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++) {
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    }
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    for (int i = 0; i < BUSY; i++) {
        busy[i] = fork();
        ck_assert_int_ge(busy[i], 0);
        if (busy[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            raise(SIGSTOP);
            for (;;)
                continue;
        }
        ck_assert_int_eq(waitpid(busy[i], NULL, WUNTRACED), busy[i]);
    }
    start_shared(1024 * MIB);
    while (stats_now().touched_bytes == 0)
        sched_yield();
    for (int i = 0; i < BUSY; i++)
        kill(busy[i], SIGCONT);
    for (int i = 0; i < 200; i++) { /* 0.7 s each if they wait: more than any limit */
        void *map = mmap(NULL, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ck_assert_ptr_ne(map, MAP_FAILED);
        munmap(map, MIB);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    for (int i = 0; i < BUSY; i++) {
        kill(busy[i], SIGKILL);
        waitpid(busy[i], NULL, 0);
    }
    tierce__pool_destroy(pool);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(all), &all), 0);
}
END_TEST

START_TEST(shared_memory_is_touched_and_its_lack_is_told)
{
    struct tierce__pool_opts opts = {.size = sizeof(opts), .cap_bytes = 9 * MIB, .shared = true};
    struct tierce__pool *none = NULL;
    struct rlimit files, no_files;
    struct stat st;
    start_shared(9 * MIB);
    while (stats_now().touched_bytes < 9 * MIB)
        sched_yield();
    ck_assert_int_eq(fstat(tierce__pool_fd(pool), &st), 0);
    ck_assert_int_eq(st.st_blocks, 9 * MIB / 512);
    tierce__pool_destroy(pool);

    uint64_t live = tierce__alloc_live();
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    no_files = (struct rlimit){.rlim_cur = 0, .rlim_max = files.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &no_files), 0);
    ck_assert_int_eq(tierce__pool_create(&none, &opts), -EMFILE);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    ck_assert_uint_eq(tierce__alloc_live(), live);
    opts.cap_bytes = 1ULL << 62;
    opts.buf_count_max = 8;
    ck_assert_int_lt(tierce__pool_create(&none, &opts), 0);
    ck_assert_uint_eq(tierce__alloc_live(), live);
    ck_assert_ptr_null(none);
}
END_TEST

START_TEST(one_release_too_many_panics)
{
    start(MIB, 0);
    struct tierce__buf *buf = alloc(1);
    tierce__buf_release(buf);
    tierce__buf_release(buf);
}
END_TEST

/* ---- many threads ---------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 4000 };

static _Atomic uint32_t failures;

/* Fills buffers with its own mark and finds it whole: no two live buffers share a byte. */
static void *use_buffers(void *arg)
{
    uint8_t mark = (uint8_t)(uintptr_t)arg;
    struct tierce__buf *held[8] = {NULL};
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned k = (i * 7 + mark) % 8;
        if (held[k] != NULL) {
            uint64_t last = held[k]->bytes - 1;
            if (held[k]->data[0] != mark || held[k]->data[last] != mark)
                atomic_fetch_add(&failures, 1);
            tierce__buf_acquire(held[k]);
            tierce__buf_release(held[k]);
            tierce__buf_release(held[k]);
            held[k] = NULL;
        } else if (tierce__pool_alloc(pool, &held[k], 1 + (i * 977) % 60000) == 0) {
            held[k]->data[0] = mark;
            held[k]->data[held[k]->bytes - 1] = mark;
        }
    }
    for (unsigned k = 0; k < 8; k++)
        tierce__buf_release(held[k]);
    return NULL;
}

START_TEST(threads_share_a_pool)
{
    pthread_t threads[THREADS];
    start(MIB, 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, use_buffers, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(atomic_load(&failures), 0);
    ck_assert_uint_eq(stats_now().bufs, 0);
    ck_assert_uint_eq(stats_now().used_bytes, 0);
    tierce__pool_destroy(pool);
}
END_TEST

static void *do_nothing(void *arg)
{
    return arg;
}

/* In a process of its own, which gives up root, whom the limit does not bind. 77: nor is this. */
static int make_without_threads(void)
{
    struct tierce__pool_opts opts = {.size = sizeof(opts), .cap_bytes = MIB};
    struct tierce__buf *buf;
    struct rlimit none = {0, 0};
    pthread_t thread;
    if ((geteuid() == 0 && setuid(54321) != 0) || setrlimit(RLIMIT_NPROC, &none) != 0)
        return 1;
    if (pthread_create(&thread, NULL, do_nothing, NULL) == 0)
        return 77;
    if (tierce__pool_create(&pool, &opts) < 0 || tierce__pool_alloc(pool, &buf, MIB) < 0)
        return 2;
    memset(buf->data, 1, MIB);
    return 0;
}

START_TEST(a_pool_needs_no_thread)
{
    pid_t child = fork();
    if (child == 0)
        _exit(make_without_threads());
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
}
END_TEST

/* ---- turns ----------------------------------------------------------------------------------- */

struct waiter {
    pthread_t thread;
    struct tierce__pool_turn turn;
    bool may_try;
};

/* A turn belongs to the thread that began it, so the thread begins it itself. */
static void *begin_and_wait(void *arg)
{
    struct waiter *waiter = arg;
    tierce__pool_turn_begin(pool, &waiter->turn);
    waiter->may_try = tierce__pool_turn_wait(&waiter->turn, tierce__deadline_in_ms(60000));
    tierce__pool_turn_end(&waiter->turn);
    return NULL;
}

START_TEST(a_last_turn_lets_others_pass)
{
    enum { SOON_MS = 1 };
    struct tierce__pool_turn last;
    struct waiter other = {0};
    start(MIB, 0);
    tierce__pool_turn_begin_last(pool, &last, NULL);
    ck_assert(tierce__pool_turn_wait(&last, tierce__deadline_in_ms(60000)));
    /* It has tried, and nothing has changed. */
    ck_assert(!tierce__pool_turn_wait(&last, tierce__deadline_in_ms(SOON_MS)));
    /* The other one began later, and need not wait for the last one. */
    ck_assert_int_eq(pthread_create(&other.thread, NULL, begin_and_wait, &other), 0);
    pthread_join(other.thread, NULL);
    ck_assert(other.may_try);
    /* Between two ordinary turns and itself it is behind both. */
    struct tierce__pool_turn first, second;
    tierce__pool_turn_begin(pool, &first);
    tierce__pool_turn_begin(pool, &second);
    ck_assert(tierce__pool_turn_wait(&first, tierce__deadline_in_ms(60000)));
    ck_assert(!tierce__pool_turn_wait(&second, tierce__deadline_in_ms(SOON_MS)));
    tierce__pool_turn_end(&first);
    tierce__pool_turn_end(&second);
    tierce__pool_turn_end(&last);
    tierce__pool_destroy(pool);
}
END_TEST

static _Atomic bool stops;

static void *begin_last_and_wait(void *arg)
{
    struct waiter *waiter = arg;
    tierce__pool_turn_begin_last(pool, &waiter->turn, &stops);
    (void)!tierce__pool_turn_wait(&waiter->turn, tierce__deadline_in_ms(60000)); /* at once */
    waiter->may_try = tierce__pool_turn_wait(&waiter->turn, tierce__deadline_in_ms(60000));
    tierce__pool_turn_end(&waiter->turn);
    return NULL;
}

START_TEST(a_stopped_turn_ends_its_wait)
{
    struct waiter waiter = {.may_try = true};
    start(MIB, 0);
    atomic_store(&stops, false);
    uint64_t began_ns = tierce__now_ns();
    ck_assert_int_eq(pthread_create(&waiter.thread, NULL, begin_last_and_wait, &waiter), 0);
    atomic_store(&stops, true);
    tierce__pool_wake(pool);
    pthread_join(waiter.thread, NULL);
    ck_assert(!waiter.may_try);
    ck_assert_uint_lt(tierce__now_ns() - began_ns, 30000 * TIERCE__MS_NS);
    tierce__pool_destroy(pool);
}
END_TEST

CHECK_MAIN("pool", .seconds = 30,
           .tests = {a_buffer_lives_until_its_last_reference, bytes_and_buffers_are_capped,
                     allocation_makes_no_heap_allocation, the_keeper_hears_when_it_is_alone,
                     many_are_released_at_once, touching_pages_leaves_data_alone,
                     a_leak_is_reported_and_stays_valid, options_are_checked_and_memory_may_fail,
                     another_mapping_is_the_same_memory, nobody_changes_the_length_of_shared_memory,
                     a_child_does_not_have_shared_memory, nobody_waits_for_pages_to_be_touched,
                     shared_memory_is_touched_and_its_lack_is_told, threads_share_a_pool,
                     a_last_turn_lets_others_pass, a_stopped_turn_ends_its_wait,
                     a_pool_needs_no_thread},
           .panics = {one_release_too_many_panics})
