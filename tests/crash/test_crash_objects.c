/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that puts, replaces and removes named values is killed at any moment. For each name,
 * the next process finds the value put last, or nothing: never a value that was replaced or removed
 * before. A value that was flushed and not changed since is found.
 */
#include "check_main.h"
#include "object_fixture.h"
#include "silent_log.h"
#include "test_random.h"

#include <signal.h>
#include <sys/wait.h>

#define NAMES   10u
#define THREADS 2u /* each has names of its own */
#define LIVES   40u

static struct fixture fx;
static struct tierce__objects *space;
static int acks; /* where the child reports its operations */

/* A child's line: it begins, or has ended, what it does to a name; version 0 is a removal. */
struct line {
    uint32_t name;
    uint32_t done;
    uint64_t version;
};

static void open_space(void)
{
    silence_log();
    fx_open(&fx, true, NULL);
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "crash", ""), 0);
}

static void say(uint32_t name, bool done, uint64_t version)
{
    struct line line = {.name = name, .done = done, .version = version};
    if (write(acks, &line, sizeof(line)) != sizeof(line))
        _exit(9);
}

struct worker {
    pthread_t thread;
    struct test_random random;
    uint32_t number;
    uint64_t version;
};

/* Whether all values stored so far are durable. A value that the disk was too slow to take
 * (disk.queue) is in memory only, which is no error of a flush. */
static bool flush(void)
{
    if (tierce_engine_flush(fx.engine, 60000) != 0)
        return false;
    struct tierce_engine_stats stats = fx_stats(&fx);
    return stats.objects_not_written + stats.disk_dropped_puts == 0;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    for (;;) {
        char name[16];
        bool was;
        uint32_t n = w->number + THREADS * test_random_below(&w->random, NAMES / THREADS);
        uint32_t dice = test_random_below(&w->random, 10);
        snprintf(name, sizeof(name), "%u", n);
        w->version += THREADS;
        if (dice == 0) {
            if (flush() && w->number == 0)
                say(UINT32_MAX, true, 0);
        } else if (dice < 3) {
            say(n, false, 0);
            if (tierce__object_remove(space, name, strlen(name), &was) == 0)
                say(n, true, 0);
        } else {
            uint64_t bytes = test_random_below(&w->random, dice < 8 ? 20000 : 300000);
            say(n, false, w->version);
            if (ox_put(space, name, w->version, bytes) == 0)
                say(n, true, w->version);
        }
    }
    return NULL;
}

static void live(uint64_t seed, uint64_t version)
{
    struct worker workers[THREADS];
    open_space();
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.random = {seed + i}, .number = i, .version = version + i};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            _exit(9);
    }
    pthread_join(workers[0].thread, NULL);
}

/* The known state of a name. */
struct model {
    uint64_t ended;   /* the last that was put, 0: removed */
    uint64_t pending; /* begun since, 0: removal */
    bool is_pending;
    bool flushed; /* since */
};

/* Returns the number of flushes. */
static uint32_t read_lines(struct model *models, int fd)
{
    struct line line;
    uint32_t flushes = 0;
    while (read(fd, &line, sizeof(line)) == sizeof(line)) {
        if (line.name == UINT32_MAX) {
            /* Names of the reporting thread only; the other thread may be about to change its
             * own. */
            for (uint32_t n = 0; n < NAMES; n += THREADS)
                models[n].flushed = true;
            flushes++;
            continue;
        }
        struct model *m = &models[line.name];
        ck_assert_uint_lt(line.name, NAMES);
        m->flushed = false;
        m->is_pending = !line.done;
        m->pending = line.version;
        if (line.done)
            m->ended = line.version;
    }
    return flushes;
}

static void check(struct model *models)
{
    open_space();
    for (uint32_t n = 0; n < NAMES; n++) {
        char name[16];
        struct model *m = &models[n];
        snprintf(name, sizeof(name), "%u", n);
        int64_t found = ox_get(space, name, NULL);
        ck_assert_int_ge(found, 0);
        bool right = found == 0 || (uint64_t)found == m->ended ||
                     (m->is_pending && (uint64_t)found == m->pending);
        ck_assert_msg(right, "%s: found %lld, put last %llu", name, (long long)found,
                      (unsigned long long)m->ended);
        if (m->flushed) {
            struct tierce__object *object = NULL;
            int rc = (uint64_t)found != m->ended ? ox_find(space, name, &object) : 0;
            ck_assert_msg((uint64_t)found == m->ended, "%s: found %lld, put last %llu, again: %d",
                          name, (long long)found, (unsigned long long)m->ended, rc);
        }
        *m = (struct model){.ended = (uint64_t)found};
    }
    tierce__objects_close(space);
    fx_close(&fx);
}

START_TEST(what_was_replaced_does_not_come_back)
{
    struct test_random random = test_random_start("crash objects");
    struct model models[NAMES] = {{0}};
    const char *scale = getenv("TIERCE_TEST_SCALE");
    uint32_t flushes = 0, lives = LIVES * (scale != NULL ? (uint32_t)atoi(scale) : 1);
    snprintf(fx.folder, sizeof(fx.folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(fx.folder);
    for (uint32_t life = 1; life <= lives; life++) {
        int pipes[2];
        ck_assert_int_eq(pipe(pipes), 0);
        uint64_t seed = test_random_u64(&random);
        pid_t child = fork();
        if (child == 0) {
            close(pipes[0]);
            acks = pipes[1];
            live(seed, life * 1000000ull);
            _exit(9);
        }
        close(pipes[1]);
        usleep(20000 + test_random_below(&random, 150000));
        kill(child, SIGKILL);
        flushes += read_lines(models, pipes[0]);
        close(pipes[0]);
        int status;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        check(models);
    }
    ck_assert_uint_gt(flushes, 0);
    fx_remove(&fx);
}
END_TEST

CHECK_MAIN("crash_objects", .seconds = CHECK_NO_LIMIT,
           .tests = {what_was_replaced_does_not_come_back})
