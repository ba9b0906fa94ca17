/* SPDX-License-Identifier: Apache-2.0 */
#include "base/threads/threads.h"
#include "base/alloc.h"
#include "check_main.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>

static atomic_int ran;
static atomic_bool gate;

static void run(struct tierce__task *task)
{
    (void)task;
    while (!atomic_load(&gate)) {
    }
    atomic_fetch_add(&ran, 1);
}

START_TEST(workers_have_a_limit_and_finish_what_waits)
{
    struct tierce__workers *workers;
    static struct tierce__task tasks[100];
    ck_assert_int_eq(tierce__workers_create(&workers, 2, 10), 0);
    int taken = 0;
    for (int i = 0; i < 100; i++) {
        tasks[i].run = run;
        taken += tierce__workers_submit(workers, &tasks[i]);
    }
    ck_assert_int_ge(taken, 10);
    ck_assert_int_le(taken, 12); /* those that run wait no more */
    atomic_store(&gate, true);
    tierce__workers_destroy(workers);
    ck_assert_int_eq(atomic_load(&ran), taken);
}
END_TEST

/* A task that blocks until all tasks of its test run at once. */
static sem_t arrived, leave;

static void meet(struct tierce__task *task)
{
    (void)task;
    sem_post(&arrived);
    while (sem_wait(&leave) != 0)
        ck_assert_int_eq(errno, EINTR);
}

START_TEST(all_workers_run_at_once)
{
    enum { COUNT = 8 };
    struct tierce__workers *workers;
    struct tierce__task tasks[COUNT];
    sem_init(&arrived, 0, 0);
    sem_init(&leave, 0, 0);
    ck_assert_int_eq(tierce__workers_create(&workers, COUNT, COUNT), 0);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < COUNT; i++) {
            tasks[i].run = meet;
            ck_assert(tierce__workers_submit(workers, &tasks[i]));
        }
        for (int i = 0; i < COUNT; i++)
            ck_assert_int_eq(sem_wait(&arrived), 0);
        ck_assert_uint_eq(tierce__workers_waiting(workers), 0);
        for (int i = 0; i < COUNT; i++)
            sem_post(&leave);
    }
    tierce__workers_destroy(workers);
    tierce__workers_destroy(NULL);
}
END_TEST

/* Several threads share the workers, and each index is called exactly once. */
enum { INDEXES = 1000 };

static void count_calls(void *arg, size_t from, size_t to)
{
    atomic_uchar *calls = arg;
    ck_assert_uint_le(from, to);
    for (size_t i = from; i < to; i++)
        atomic_fetch_add_explicit(&calls[i], 1, memory_order_relaxed);
}

static void share_once(struct tierce__workers *workers, size_t count)
{
    atomic_uchar *calls = calloc(INDEXES, sizeof(*calls));
    tierce__workers_share(workers, count, count_calls, calls);
    for (size_t i = 0; i < INDEXES; i++)
        ck_assert_uint_eq(calls[i], i < count);
    free(calls);
}

static void *share_often(void *workers)
{
    for (int round = 0; round < 200; round++)
        share_once(workers, (size_t)(round * 37 % INDEXES));
    return NULL;
}

START_TEST(a_shared_job_calls_each_index_once)
{
    static const size_t counts[] = {0, 1, 2, 3, 17, INDEXES};
    struct tierce__workers *workers;
    struct tierce__threads callers = {0};
    ck_assert_int_eq(tierce__workers_create(&workers, 3, 4), 0);
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        share_once(NULL, counts[i]);
        share_once(workers, counts[i]);
    }
    ck_assert_int_eq(tierce__threads_start(&callers, 4, share_often, workers), 0);
    tierce__threads_join(&callers);
    ck_assert_uint_eq(tierce__workers_waiting(workers), 0);
    tierce__workers_destroy(workers);
}
END_TEST

/* A worker takes part, and the call waits for it. */
static atomic_int taking_part;

static void wait_for_another(void *arg, size_t from, size_t to)
{
    (void)arg;
    atomic_fetch_add(&taking_part, (int)(to - from));
    while (atomic_load(&taking_part) < 2) {
    }
}

START_TEST(a_shared_job_runs_on_several_threads)
{
    struct tierce__workers *workers;
    ck_assert_int_eq(tierce__workers_create(&workers, 1, 1), 0);
    tierce__workers_share(workers, 2, wait_for_another, NULL);
    ck_assert_int_eq(atomic_load(&taking_part), 2);
    tierce__workers_destroy(workers);
}
END_TEST

START_TEST(a_shared_job_does_not_wait_for_busy_workers)
{
    struct tierce__workers *workers;
    struct tierce__task busy[3];
    sem_init(&arrived, 0, 0);
    sem_init(&leave, 0, 0);
    ck_assert_int_eq(tierce__workers_create(&workers, 2, 2), 0);
    for (int i = 0; i < 2; i++) {
        busy[i].run = meet;
        ck_assert(tierce__workers_submit(workers, &busy[i]));
        ck_assert_int_eq(sem_wait(&arrived), 0);
    }
    share_once(workers, INDEXES); /* its tasks leave the queue again */
    ck_assert_uint_eq(tierce__workers_waiting(workers), 0);
    busy[2].run = meet;
    ck_assert(tierce__workers_submit(workers, &busy[2]));
    share_once(workers, INDEXES); /* there is room for one of them */
    ck_assert_uint_eq(tierce__workers_waiting(workers), 1);
    for (int i = 0; i < 3; i++)
        sem_post(&leave);
    tierce__workers_destroy(workers);
}
END_TEST

struct numbered {
    struct tierce__task task;
    int number;
};

static void expect_number(struct tierce__task *task)
{
    struct numbered *numbered = TIERCE__CONTAINER_OF(task, struct numbered, task);
    ck_assert_int_eq(numbered->number, atomic_fetch_add(&ran, 1));
    tierce__free(numbered); /* a task may free itself */
}

START_TEST(tasks_begin_in_the_order_of_their_submission)
{
    struct tierce__workers *workers;
    ck_assert_int_eq(tierce__workers_create(&workers, 1, UINT32_MAX), 0);
    for (int i = 0; i < 1000; i++) {
        struct numbered *numbered = tierce__alloc(sizeof(*numbered));
        *numbered = (struct numbered){{.run = expect_number}, i};
        ck_assert(tierce__workers_submit(workers, &numbered->task));
    }
    tierce__workers_destroy(workers);
    ck_assert_int_eq(atomic_load(&ran), 1000);
}
END_TEST

static void *read_mask(void *arg)
{
    pthread_sigmask(SIG_BLOCK, NULL, arg);
    return NULL;
}

START_TEST(only_signals_of_faults_reach_a_thread)
{
    sigset_t before, after, inside;
    pthread_t thread;
    sigemptyset(&inside);
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    ck_assert_int_eq(tierce__thread_start(&thread, read_mask, &inside), 0);
    pthread_join(thread, NULL);
    static const int blocked[] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGUSR1, SIGCHLD};
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (size_t i = 0; i < sizeof(blocked) / sizeof(*blocked); i++)
        ck_assert_int_eq(sigismember(&inside, blocked[i]), 1);
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++)
        ck_assert_int_eq(sigismember(&inside, faults[i]), 0);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    for (int i = 1; i < SIGRTMIN; i++)
        ck_assert_int_eq(sigismember(&before, i), sigismember(&after, i));
}
END_TEST

static void *read_affinity(void *arg)
{
    tierce__affinity_note(arg);
    return NULL;
}

static int processors_of(const struct tierce__affinity *on)
{
    struct tierce__affinity got;
    struct tierce__threads threads = {0};
    ck_assert_int_eq(tierce__threads_start_on(&threads, 1, on, read_affinity, &got), 0);
    tierce__threads_join(&threads);
    ck_assert(got.is_known);
    return CPU_COUNT(&got.processors);
}

/* A thread that is bound to one processor starts another one on those that were noted before. With
 * processors that do not exist, the other one has those of its starter. */
START_TEST(a_thread_is_started_on_the_noted_processors)
{
    struct tierce__affinity noted, none = {.is_known = true};
    cpu_set_t one;
    size_t first = 0;
    tierce__affinity_note(&noted);
    ck_assert(noted.is_known);
    while (!CPU_ISSET(first, &noted.processors))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    ck_assert_int_eq(processors_of(&noted), CPU_COUNT(&noted.processors));
    ck_assert_int_eq(processors_of(&none), 1);
    ck_assert_int_eq(processors_of(&(struct tierce__affinity){0}), 1);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(noted.processors), &noted.processors), 0);
}
END_TEST

static void *wait_for_gate(void *arg)
{
    (void)arg;
    while (!atomic_load(&gate)) {
    }
    atomic_fetch_add(&ran, 1);
    return NULL;
}

START_TEST(without_memory_nothing_is_left)
{
    struct tierce__workers *workers;
    struct tierce__threads threads = {0};
    uint64_t live = tierce__alloc_live();
    for (uint64_t nth = 1; nth <= 2; nth++) {
        tierce__alloc_fail_nth(nth);
        ck_assert_int_eq(tierce__workers_create(&workers, 3, 1), -ENOMEM);
    }
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__threads_start(&threads, 3, wait_for_gate, NULL), -ENOMEM);
    tierce__alloc_fail_nth(0);
    ck_assert_uint_eq(threads.count, 0);
    tierce__threads_join(&threads);
    ck_assert_int_eq(tierce__threads_start(&threads, 0, wait_for_gate, NULL), 0);
    tierce__threads_join(&threads);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* The address space has room for the stacks of a few threads only. */
START_TEST(threads_that_were_started_are_joined_if_others_cannot_be)
{
    enum { COUNT = 1000 };
    struct tierce__threads threads = {0};
    struct tierce__workers *workers;
    uint64_t live = tierce__alloc_live();
    struct rlimit little = {.rlim_cur = 256u << 20, .rlim_max = RLIM_INFINITY};
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &little), 0);
    int rc = tierce__threads_start(&threads, COUNT, wait_for_gate, NULL);
    ck_assert_int_eq(rc, -EAGAIN);
    ck_assert_uint_gt(threads.count, 0);
    ck_assert_uint_lt(threads.count, COUNT);
    int started = (int)threads.count;
    atomic_store(&gate, true);
    tierce__threads_join(&threads);
    ck_assert_int_eq(atomic_load(&ran), started);
    ck_assert_uint_eq(threads.count, 0);
    ck_assert_int_eq(tierce__workers_create(&workers, COUNT, 1), -EAGAIN);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("threads");
    TCase *t = tcase_create("threads");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, workers_have_a_limit_and_finish_what_waits);
    tcase_add_test(t, all_workers_run_at_once);
    tcase_add_test(t, a_shared_job_calls_each_index_once);
    tcase_add_test(t, a_shared_job_runs_on_several_threads);
    tcase_add_test(t, a_shared_job_does_not_wait_for_busy_workers);
    tcase_add_test(t, tasks_begin_in_the_order_of_their_submission);
    tcase_add_test(t, only_signals_of_faults_reach_a_thread);
    tcase_add_test(t, a_thread_is_started_on_the_noted_processors);
    tcase_add_test(t, without_memory_nothing_is_left);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    tcase_add_test(t, threads_that_were_started_are_joined_if_others_cannot_be);
#endif
    suite_add_tcase(suite, t);
    return check_main(suite);
}
