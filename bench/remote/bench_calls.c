/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/remote/bench_calls.h"

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "base/assert.h"
#include "base/clock.h"

enum { CALL_MS = 60000 };

struct calls {
    sem_t done;
    _Atomic size_t left;
    _Atomic int status;
};

static void count_done(struct tierce__store_req *req)
{
    struct calls *calls = req->arg;
    if (req->status != 0)
        atomic_store(&calls->status, req->status);
    if (atomic_fetch_sub(&calls->left, 1) == 1)
        sem_post(&calls->done);
}

int64_t tierce__bench_calls_try(struct tierce__connector *connector, struct tierce__store_req *reqs,
                                size_t count)
{
    struct calls calls = {.left = count};
    TIERCE_ASSERT(count > 0);
    if (sem_init(&calls.done, 0, 0) != 0)
        return -errno;
    uint64_t start_ns = tierce__now_ns(), deadline_ns = tierce__deadline_in_ms(CALL_MS);
    for (size_t i = 0; i < count; i++) {
        reqs[i].deadline_ns = deadline_ns;
        reqs[i].done = count_done;
        reqs[i].arg = &calls;
        connector->ops->submit(connector, &reqs[i]);
    }
    while (sem_wait(&calls.done) != 0)
        ;
    int64_t ns = (int64_t)(tierce__now_ns() - start_ns);
    sem_destroy(&calls.done);
    int status = atomic_load(&calls.status);
    return status != 0 ? status : ns;
}

int64_t tierce__bench_calls_run(const struct tierce__bench *bench,
                                struct tierce__connector *connector, struct tierce__store_req *reqs,
                                size_t count)
{
    int64_t ns = tierce__bench_calls_try(connector, reqs, count);
    if (ns >= 0)
        return ns;
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    connector->ops->why(connector, why);
    return tierce__bench_fail(bench, "%s: %s", tierce_strerror((int)ns), why);
}
