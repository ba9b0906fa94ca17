/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"

#include "base/alloc.h"
#include "manager/manager_config.h"
#include "manager/manager.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* Linked with --wrap=pthread_create: of our own threads the nth is not made. */

static atomic_uint made, failing; /* failing 0: none */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg)
{
    if (atomic_fetch_add(&made, 1) + 1 == atomic_load(&failing))
        return EAGAIN;
    return __real_pthread_create(thread, attr, run, arg);
}

static struct tierce__manager_config config;

static void load_config(void)
{
    char *const args[] = {"--listen.grpc_port=0",
                          "--listen.http_port=0",
                          "--listen.admin_grpc_port=0",
                          "--listen.admin_http_port=0",
                          "--log.folder=",
                          "--metrics.log=false",
                          "--serve.loops=2",
                          "--serve.workers=2",
                          "--delete.threads=2",
                          NULL};
    char *const env[] = {"STATE_DIRECTORY=/dev/null/none", NULL}; /* its storage is never well */
    struct tierce__config_error error;
    char *warnings = NULL;
    int rc = tierce__manager_config_load(&config, sizeof(args) / sizeof(args[0]) - 1, args, env,
                                         &warnings, &error);
    ck_assert_msg(rc == 0, "%s", error.text);
    tierce__free(warnings);
}

/* Starts with all threads but the nth, lets it live for a moment, and ends it. Returns the threads
 * that it had or wanted. */
static unsigned live_without(unsigned nth, int *out_rc, char why[256])
{
    struct tierce__manager *manager;
    uint64_t live = tierce__alloc_live();
    atomic_store(&made, 0);
    atomic_store(&failing, nth);
    *out_rc = tierce__manager_start(&manager, &config, why);
    if (*out_rc == 0) {
        usleep(20000); /* some are made when it leads */
        tierce__manager_stop(manager);
    }
    ck_assert_uint_eq(tierce__alloc_live(), live);
    return atomic_load(&made);
}

START_TEST(test_every_thread)
{
    char why[256];
    int rc;
    load_config();
    unsigned count = live_without(0, &rc, why);
    ck_assert_msg(rc == 0, "%s", why);
    ck_assert_uint_gt(count, 10);
    unsigned refused = 0;
    for (unsigned nth = 1; nth <= count; nth++) {
        (void)live_without(nth, &rc, why);
        ck_assert_msg(rc == 0 || rc == -EAGAIN, "thread %u: %d, %s", nth, rc, why);
        bool is_said = why[0] != '\0' && strstr(why, "memory") == NULL;
        ck_assert_msg(rc == 0 || is_said, "thread %u: %s", nth, why);
        refused += rc != 0;
    }
    ck_assert_uint_gt(refused, 10);
    tierce__manager_config_clear(&config);
}
END_TEST

CHECK_MAIN("manager threads", .seconds = 60, .tests = {test_every_thread})
