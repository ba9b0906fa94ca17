/* SPDX-License-Identifier: Apache-2.0 */
#include "mover/mover.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/text/url.h"
#include "base/threads/threads.h"
#include "mover/mover_private.h"
#include "proto/kvcm/proto.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    CALL_MS = 2000,
    FIRST_LEASE_MS = 30000, /* until a manager has told the real one */
    LEASE_MS_MIN = 1000,
    RENEWALS = 3, /* in a lease */
    AGAIN_MS = 1000,
    AGAIN_MS_MAX = 60000,
    TAKE_BLOCKS = 64,
    COPIES_MIN = 32, /* with fewer copies left, more is taken */
    BATCHES_MAX = 64,
};
_Static_assert(BATCHES_MAX + TAKE_BLOCKS <= TIERCE__MOVER_HELD_MAX, "a batch has a block or more");

/* ---- TakeMoves ------------------------------------------------------------------------------- */

static void take_failure(struct tierce__mover *mover, const struct tierce__fleet_call *call)
{
    tierce__lock_take(&mover->lock);
    bool is_news = mover->state.is_connected || mover->state.why[0] == '\0';
    mover->state.failures++;
    mover->state.is_connected = false;
    memcpy(mover->state.why, call->why, sizeof(mover->state.why));
    tierce__lock_drop(&mover->lock);
    bool is_old = call->status == TIERCE_E_UNSUPPORTED;
    mover->again_ns = tierce__deadline_in_ms(is_old ? AGAIN_MS_MAX : AGAIN_MS);
    if (is_news)
        tierce__log(TIERCE_LOG_WARN, "mover_not_connected", "why=\"%s\"", call->why);
}

static void take_success(struct tierce__mover *mover, const Meta__TakeMovesResponse *reply)
{
    tierce__lock_take(&mover->lock);
    bool is_news = !mover->state.is_connected;
    mover->state.is_connected = true;
    mover->state.why[0] = '\0';
    tierce__lock_drop(&mover->lock);
    uint64_t wait_ms = reply->wait_ms > 0 ? (uint64_t)reply->wait_ms : 0;
    wait_ms = wait_ms < AGAIN_MS_MAX ? wait_ms : AGAIN_MS_MAX;
    mover->again_ns = reply->n_batches > 0 ? 0 : tierce__deadline_in_ms((uint32_t)wait_ms);
    mover->lease_ms = reply->lease_ms > LEASE_MS_MIN ? (uint64_t)reply->lease_ms : LEASE_MS_MIN;
    if (is_news)
        tierce__log(TIERCE_LOG_INFO, "mover_connected", "name=%s lease_ms=%llu", mover->name,
                    (unsigned long long)mover->lease_ms);
}

static void has_taken(struct tierce__fleet_call *call)
{
    struct tierce__mover *mover = call->arg;
    ProtobufCMessage *reply = call->reply;
    mover->is_taking = false;
    call->reply = NULL;
    tierce__lock_take(&mover->lock);
    mover->state.calls++;
    tierce__lock_drop(&mover->lock);
    if (call->status != 0) {
        take_failure(mover, call);
        return;
    }
    take_success(mover, (const Meta__TakeMovesResponse *)reply);
    tierce__mover_renewed(mover, (const Meta__TakeMovesResponse *)reply, mover->sent_ns);
    tierce__mover_begin(mover, reply, mover->sent_ns);
    if (atomic_load_explicit(&mover->is_ending, memory_order_acquire))
        tierce__mover_drop_all(mover);
}

static void take(struct tierce__mover *mover, bool wants_more)
{
    Meta__HeldMoves held[TIERCE__MOVER_HELD_MAX], *list[TIERCE__MOVER_HELD_MAX];
    Meta__TakeMovesRequest request = META__TAKE_MOVES_REQUEST__INIT;
    TIERCE__LIST_FOR_EACH (node, &mover->batches) {
        const struct tierce__mover_batch *batch =
            TIERCE__CONTAINER_OF(node, struct tierce__mover_batch, node);
        if (batch->is_lost)
            continue;
        Meta__HeldMoves *it = list[request.n_held] = &held[request.n_held];
        request.n_held++;
        meta__held_moves__init(it);
        it->instance_id = batch->wire->instance_id;
        it->write_session_id = batch->wire->write_session_id;
    }
    request.mover = mover->name;
    request.host_id = mover->host_id;
    request.blocks_max = wants_more ? TAKE_BLOCKS : 0;
    request.bytes_max = (int64_t)mover->memory_bytes;
    request.held = list;
    mover->is_taking = true;
    mover->sent_ns = tierce__now_ns();
    mover->take = (struct tierce__fleet_call){.method = "TakeMoves",
                                              .request = &request.base,
                                              .answers = &meta__take_moves_response__descriptor,
                                              .deadline_ns = tierce__deadline_in_ms(CALL_MS),
                                              .repeats = false, /* batches would be taken twice */
                                              .done = has_taken,
                                              .arg = mover};
    tierce__fleet_manager_start(mover->manager, &mover->take);
}

/* Asks for batches, or renews those that are held. Returns when it is to be called again. */
static uint64_t take_if_due(struct tierce__mover *mover, bool is_ending)
{
    uint64_t now_ns = tierce__now_ns();
    bool wants_more =
        !is_ending && mover->copy_count < COPIES_MIN && mover->batch_count < BATCHES_MAX;
    uint64_t renew_ns = mover->sent_ns + mover->lease_ms * TIERCE__MS_NS / RENEWALS;
    uint64_t due_ns = wants_more               ? mover->again_ns
                      : mover->batch_count > 0 ? renew_ns
                                               : TIERCE__DEADLINE_NEVER;
    if (mover->batch_count > 0 && renew_ns < due_ns)
        due_ns = renew_ns;
    if (due_ns < mover->again_ns && mover->state.why[0] != '\0')
        due_ns = mover->again_ns; /* the last call failed */
    if (mover->is_taking)
        return TIERCE__DEADLINE_NEVER;
    if (due_ns > now_ns)
        return due_ns;
    take(mover, wants_more && mover->again_ns <= now_ns);
    return TIERCE__DEADLINE_NEVER;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void wake(void *arg)
{
    struct tierce__mover *mover = arg;
    tierce__fleet_manager_wake(mover->manager);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void work_once(struct tierce__mover *mover, bool is_ending)
{
    uint64_t until_ns = tierce__copier_step(mover->copier);
    until_ns = earlier(until_ns, tierce__mover_end_batches(mover));
    until_ns = earlier(until_ns, take_if_due(mover, is_ending));
    tierce__lock_take(&mover->lock);
    mover->state.batches = (uint32_t)mover->batch_count;
    tierce__lock_drop(&mover->lock);
    if (is_ending)
        until_ns = earlier(until_ns, mover->end_ns);
    tierce__fleet_manager_poll(mover->manager, until_ns);
}

static void *run(void *arg)
{
    struct tierce__mover *mover = arg;
    while (!atomic_load_explicit(&mover->is_ending, memory_order_acquire))
        work_once(mover, false);
    tierce__mover_drop_all(mover);
    /* An answer that is on its way may bring batches, which are given back. */
    while ((mover->batch_count > 0 || mover->is_taking) && tierce__now_ns() < mover->end_ns)
        work_once(mover, true);
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

/* That of a pool is ignored. */
static bool is_any(const char *path)
{
    (void)path;
    return true;
}

static int read_url(struct tierce__url *url, const char *text, char why[TIERCE__FLEET_WHY_BYTES])
{
    return tierce__fleet_manager_read_url(url, text, is_any,
                                          "fleet://HOST:PORT[,HOST:PORT] or fleet+tls://..., with "
                                          "the managers' gRPC ports",
                                          why);
}

int tierce__mover_check(const char *url, char why[TIERCE__FLEET_WHY_BYTES])
{
    struct tierce__url parsed = {0};
    int rc = read_url(&parsed, url, why);
    if (rc == 0)
        tierce__url_clear(&parsed);
    return rc;
}

static bool destroy(struct tierce__mover *mover, uint64_t deadline_ns)
{
    if (mover == NULL)
        return true;
    bool is_closed = tierce__copier_close(mover->copier, deadline_ns);
    tierce__fleet_manager_close(mover->manager);
    tierce__mover_free_all(mover);
    tierce__free(mover->name);
    tierce__lock_fini(&mover->lock);
    tierce__free(mover);
    return is_closed;
}

static int open_mover(struct tierce__mover *mover, const struct tierce__mover_opts *opts,
                      const struct tierce__url *url, char why[TIERCE__FLEET_WHY_BYTES])
{
    const struct tierce__fleet_manager_opts manager = {.size = sizeof(manager), .url = url};
    mover->name = tierce__strdup(opts->name);
    if (mover->name == NULL)
        return -ENOMEM;
    int rc = tierce__fleet_manager_open(&mover->manager, &manager, why);
    if (rc == 0)
        rc = tierce__copier_open(&mover->copier, &(struct tierce__copier_opts){
                                                     .size = sizeof(struct tierce__copier_opts),
                                                     .mooncake_python = opts->mooncake_python,
                                                     .memory_bytes = opts->memory_bytes,
                                                     .rate_bytes_per_s = opts->rate_bytes_per_s,
                                                     .parallel_max = opts->parallel_max,
                                                     .timeout_ms = opts->timeout_ms,
                                                     .wake = wake,
                                                     .wake_arg = mover});
    return rc == 0 ? tierce__thread_start(&mover->thread, run, mover) : rc;
}

int tierce__mover_start(struct tierce__mover **out, const struct tierce__mover_opts *opts,
                        char why[TIERCE__FLEET_WHY_BYTES])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__url url = {0};
    why[0] = '\0';
    int rc = read_url(&url, opts->url, why);
    if (rc != 0)
        return rc;
    struct tierce__mover *mover = tierce__calloc(1, sizeof(*mover));
    if (mover != NULL) {
        tierce__lock_init(&mover->lock, TIERCE__LOCK_MOVER);
        tierce__list_init(&mover->batches);
        tierce__list_init(&mover->answers);
        tierce__host_id(mover->host_id);
        mover->memory_bytes = opts->memory_bytes;
        mover->lease_ms = FIRST_LEASE_MS;
    }
    rc = mover != NULL ? open_mover(mover, opts, &url, why) : -ENOMEM;
    tierce__url_clear(&url);
    if (rc == 0)
        *out = mover;
    else
        (void)destroy(mover, 0);
    if (rc != 0 && why[0] == '\0')
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "%s", tierce_strerror(rc));
    return rc;
}

bool tierce__mover_stop(struct tierce__mover *mover, uint64_t deadline_ns)
{
    if (mover == NULL)
        return true;
    mover->end_ns = deadline_ns;
    atomic_store_explicit(&mover->is_ending, true, memory_order_release);
    tierce__fleet_manager_wake(mover->manager);
    (void)pthread_join(mover->thread, NULL);
    return destroy(mover, deadline_ns);
}

void tierce__mover_state(struct tierce__mover *mover, struct tierce__mover_state *out)
{
    tierce__lock_take(&mover->lock);
    *out = mover->state;
    tierce__lock_drop(&mover->lock);
    tierce__copier_stats(mover->copier, &out->copies);
}
