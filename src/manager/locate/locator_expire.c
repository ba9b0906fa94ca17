/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/log/log.h"
#include "manager/locate/locator_private.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

/* ---- an instance ----------------------------------------------------------------------------- */

static struct tierce__write_session *session_of(struct tierce__deadline *deadline)
{
    return TIERCE__CONTAINER_OF(deadline, struct tierce__write_session, deadline);
}

static bool has_no_call(struct tierce__deadline *deadline)
{
    const struct tierce__write_session *session = session_of(deadline);
    TIERCE_ASSERT(session->is_busy || !session->is_doubtful);
    return !session->is_busy || session->is_doubtful;
}

/* Returns a due session that no call is ending, marked busy; or NULL. */
static struct tierce__write_session *take_due(struct tierce__live *live, int64_t now_us,
                                              bool *was_doubtful)
{
    struct tierce__write_session *session = NULL;
    tierce__lock_take(&live->lock);
    struct tierce__deadline *due =
        tierce__deadlines_find_due(&live->deadlines, tierce__due(now_us), has_no_call);
    if (due != NULL) {
        session = session_of(due);
        TIERCE_ASSERT(session->is_busy == session->is_doubtful);
        *was_doubtful = session->is_doubtful;
        session->is_doubtful = false;
        session->is_busy = true;
        if (!*was_doubtful) {
            session->is_late = true;
            memset(session->written, 0, session->count * sizeof(*session->written));
        }
    }
    tierce__lock_drop(&live->lock);
    return session;
}

size_t tierce__live_expire(struct tierce__live *live, int64_t now_us)
{
    size_t expired = 0;
    bool was_doubtful;
    struct tierce__write_session *session;
    if (tierce__meta_index_settle(live->index) < 0)
        return 0;
    while ((session = take_due(live, now_us, &was_doubtful)) != NULL) {
        size_t keys = session->count;
        bool is_late = session->is_late;
        int rc = was_doubtful ? tierce__live_finish_doubtful(live, session)
                              : tierce__live_finish(live, session);
        if (rc < 0 && rc != -EAGAIN) {
            tierce__log(TIERCE_LOG_WARN, "manager.session_not_ended", "instance=%s error=%s",
                        live->instance.id, tierce_error_name(rc));
            break;
        }
        if (rc == 0 && keys > 0 && is_late) {
            tierce__lock_take(&live->lock);
            live->expired_sessions++;
            tierce__lock_drop(&live->lock);
            expired++;
        }
    }
    return expired;
}

/* ---- all instances --------------------------------------------------------------------------- */

/* A store that rejects writes checks for recovery only when a write is tried. Without this call
 * there may be none: clients' writes are rejected before they reach it. */
static void try_again(struct tierce__live *live)
{
    const struct tierce__meta_store_ops *ops = live->space->ops;
    bool rejects = ops->write_error != NULL && ops->write_error(live->space) != 0;
    int rc = rejects ? tierce__meta_confirm(live->space) : 0;
    (void)rc; /* logged; the next tick retries */
}

static void expire_one(void *arg, struct tierce__live *live)
{
    try_again(live);
    *(size_t *)arg += tierce__live_expire(live, tierce__locator_now_us(live->locator));
}

size_t tierce__locator_expire(struct tierce__locator *locator)
{
    size_t expired = 0;
    tierce__locator_each(locator, expire_one, &expired);
    return expired;
}

static void earliest(void *arg, struct tierce__live *live)
{
    uint64_t *due = arg;
    tierce__lock_take(&live->lock);
    uint64_t next = tierce__deadlines_next(&live->deadlines);
    TIERCE_DASSERT(live->deadlines.count == live->sessions.count);
    *due = next < *due ? next : *due;
    tierce__lock_drop(&live->lock);
}

int64_t tierce__locator_next_expiry(struct tierce__locator *locator)
{
    uint64_t due = INT64_MAX;
    tierce__locator_each(locator, earliest, &due);
    TIERCE_DASSERT(due <= INT64_MAX);
    return (int64_t)due;
}
