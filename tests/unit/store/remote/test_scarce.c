/* SPDX-License-Identifier: Apache-2.0 */
/* Connectors where the process may have no more threads, or no more descriptors. */
#include "base/alloc.h"
#include "check_main.h"
#include "s3_case.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>

/* Nobody listens at port 1. */
static const char *const urls[] = {"redis://127.0.0.1:1?connections=3",
                                   "redis+cluster://127.0.0.1:1?connections=3",
                                   "redis+sentinel://127.0.0.1:1/m",
                                   "tierce://127.0.0.1:1",
                                   "lm://127.0.0.1:1?connections=3",
                                   "memcached://127.0.0.1:1?connections=3",
                                   "s3://A:hidden@bucket?endpoint=http://127.0.0.1:1",
                                   "file://%s/store"};

#define PAUSE_MS 150 /* another connection is not made at once */
#define URLS     (int)(sizeof(urls) / sizeof(*urls))

static char folder[40];

static int open_nth(int i, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char url[256];
    snprintf(url, sizeof(url), urls[i], folder);
    why[0] = '\0';
    return tierce__connector_open(&connector, url,
                                  &(struct tierce__connector_opts){
                                      .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                  why);
}

static unsigned count_in(const char *path)
{
    unsigned count = 0;
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* A thread that was joined may be seen a moment longer, and sanitizers have threads of their own.
 */
static bool threads_go_down_to(unsigned most)
{
    for (int i = 0; i < 10000 && count_in("/proc/self/task") > most; i++)
        poll(NULL, 0, 1);
    return count_in("/proc/self/task") <= most;
}

static void limit(int what, uint64_t most)
{
    struct rlimit now;
    ck_assert_int_eq(getrlimit(what, &now), 0);
    now.rlim_cur = most < now.rlim_max ? most : now.rlim_max;
    ck_assert_int_eq(setrlimit(what, &now), 0);
}

static void make_folder(void)
{
    snprintf(folder, sizeof(folder), "/tmp/tierce-scarce-XXXXXX");
    temp_folder_make(folder);
}

static void remove_folder(void)
{
    char command[80];
    snprintf(command, sizeof(command), "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}

/* A user without other processes to whom the limit applies: root may become such a user, a
 * different one for each test. */
static bool be_alone(void)
{
    return geteuid() == 0 && setuid(100000 + (uid_t)getpid()) == 0;
}

/* Each thread but the first n is one too many: nothing is left of a connector that is not opened,
 * and it is opened once there are enough. */
START_TEST(no_threads)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    unsigned failures = 0;
    if (!be_alone())
        return;
    make_folder();
    pool = connector_pool();
    ck_assert_int_eq(open_nth(_i, why), 0); /* what libraries make once */
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    uint64_t live = tierce__alloc_live();
    unsigned fds = count_in("/proc/self/fd"), threads = count_in("/proc/self/task");
    for (uint64_t n = 1; n <= 12; n++) {
        limit(RLIMIT_NPROC, n);
        int rc = open_nth(_i, why);
        limit(RLIMIT_NPROC, 1000);
        if (rc == 0)
            ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
        else
            ck_assert_msg(rc == -EAGAIN && strstr(why, "thread") != NULL, "%d %s", rc, why);
        failures += rc != 0;
        ck_assert_uint_eq(tierce__alloc_live(), live);
        ck_assert_uint_eq(count_in("/proc/self/fd"), fds);
        ck_assert(threads_go_down_to(threads));
    }
    ck_assert_uint_gt(failures, 0);
    ck_assert_int_eq(open_nth(_i, why), 0);
    close_connector();
    tierce__pool_destroy(pool);
    remove_folder();
}
END_TEST

/* Runs an operation without a free descriptor. *was_none: false if a thread, such as the one that
 * sweeps a folder, has closed one meanwhile. */
static int run_without_descriptors(enum tierce__store_op op, bool *was_none)
{
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(next);
    poll(NULL, 0, PAUSE_MS);
    limit(RLIMIT_NOFILE, (uint64_t)next);
    int rc = run(op, 10000);
    int free_one = open("/dev/null", O_RDONLY | O_CLOEXEC);
    limit(RLIMIT_NOFILE, 1024);
    *was_none = free_one < 0;
    if (free_one >= 0)
        close(free_one);
    return rc;
}

/* A request fails and says why, and the next one does not once there are descriptors again. */
START_TEST(no_descriptors)
{
    static const enum tierce__store_op ops[] = {TIERCE__STORE_PUT, TIERCE__STORE_GET,
                                                TIERCE__STORE_LOOKUP, TIERCE__STORE_PING};
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    make_folder();
    pool = connector_pool();
    ck_assert_int_eq(open_nth(_i, why), 0);
    bool is_file = strncmp(urls[_i], "file:", 5) == 0;
    for (size_t i = 0; i < (is_file ? 2 : sizeof(ops) / sizeof(*ops)); i++) {
        (void)run(ops[i], 10000);
        unsigned fds = count_in("/proc/self/fd");
        bool was_none;
        int rc = run_without_descriptors(ops[i], &was_none);
        while (rc == 0 && !was_none) /* ended by the time limit of the test */
            rc = run_without_descriptors(ops[i], &was_none);
        ck_assert_msg(rc < 0 && rc != TIERCE_E_MISS, "%s: operation %zu: %d", urls[_i], i, rc);
        expect_why("Too many open files");
        poll(NULL, 0, PAUSE_MS);
        rc = run(ops[i], 10000);
        if (is_file)
            ck_assert_int_eq(rc, 0);
        else
            expect_why("onnect to ");
        ck_assert_uint_eq(count_in("/proc/self/fd"), fds);
    }
    close_connector();
    tierce__pool_destroy(pool);
    remove_folder();
}
END_TEST

CHECK_MAIN("scarce", .seconds = 60, .at_once = true,
           .loops = {{no_descriptors, 0, URLS}, {no_threads, 0, URLS}})
