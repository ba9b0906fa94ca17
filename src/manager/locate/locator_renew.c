/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"
#include "manager/locate/locator_private.h"
#include "manager/api/spans.h"

#include <errno.h>
#include <string.h>

/*
 * Renewing write sessions.
 *
 * A renewal changes only this leader's memory, so it costs no write to the index's store, and no
 * renewal can arrive there after the session has ended. The session's note has its timeout: the
 * next leader lets each session live for another timeout (write_sessions.c), which is at least as
 * long as the last renewal promised.
 */

/* ---- how sessions have ended ----------------------------------------------------------------- */

/* Expired sessions have a ring of their own, so that many finished ones do not displace them. */
enum { ENDINGS_MAX = 4096, RINGS = 2 };

struct session_ending {
    struct tierce__map_node node;
    bool is_used, is_late;
};

struct tierce__session_endings {
    struct tierce__lock lock;                        /* ENDINGS: the members below */
    struct tierce__map map;                          /* by the hash of instance and session */
    struct session_ending rings[RINGS][ENDINGS_MAX]; /* finished ones, and late ones */
    size_t next[RINGS];
};

/* Only this hash identifies a session. If two hashes are equal, an answer may give the wrong
 * reason. */
static uint64_t ending_hash(const struct tierce__live *live, const char *id)
{
    return tierce__mix(tierce__hash_text(TIERCE__HASH_TEXT, id) ^
                       tierce__spread(live->instance.number));
}

int tierce__session_endings_create(struct tierce__session_endings **out)
{
    struct tierce__session_endings *endings = tierce__calloc(1, sizeof(*endings));
    if (endings == NULL)
        return -ENOMEM;
    int rc = tierce__map_reserve(&endings->map, (size_t)RINGS * ENDINGS_MAX);
    if (rc < 0) {
        tierce__free(endings);
        return rc;
    }
    tierce__lock_init(&endings->lock, TIERCE__LOCK_ENDINGS);
    *out = endings;
    return 0;
}

void tierce__session_endings_destroy(struct tierce__session_endings *endings)
{
    if (endings == NULL)
        return;
    TIERCE_ASSERT(endings->map.count <= (size_t)RINGS * ENDINGS_MAX);
    tierce__map_fini(&endings->map);
    tierce__lock_fini(&endings->lock);
    tierce__free(endings);
}

void tierce__live_note_ending(struct tierce__live *live,
                              const struct tierce__write_session *session)
{
    struct tierce__session_endings *endings = live->locator->endings;
    size_t ring = session->is_late;
    tierce__lock_assert_held(&live->lock);
    tierce__lock_take(&endings->lock);
    struct session_ending *ending = &endings->rings[ring][endings->next[ring]];
    TIERCE_DASSERT(!ending->is_used || ending->is_late == session->is_late);
    endings->next[ring] = (endings->next[ring] + 1) % ENDINGS_MAX;
    if (ending->is_used)
        tierce__map_remove(&endings->map, &ending->node);
    ending->is_used = true;
    ending->is_late = session->is_late;
    tierce__map_put(&endings->map, &ending->node, ending_hash(live, session->id));
    tierce__lock_drop(&endings->lock);
}

/* SESSIONS may be held. */
static enum tierce__session_end find_ending(const struct tierce__live *live, const char *id)
{
    struct tierce__session_endings *endings = live->locator->endings;
    enum tierce__session_end end = TIERCE__SESSION_UNKNOWN;
    tierce__lock_take(&endings->lock);
    struct tierce__map_node *node = tierce__map_find(&endings->map, ending_hash(live, id));
    if (node != NULL) {
        const struct session_ending *ending =
            TIERCE__CONTAINER_OF(node, struct session_ending, node);
        TIERCE_DASSERT(ending->is_used);
        end = ending->is_late ? TIERCE__SESSION_EXPIRED : TIERCE__SESSION_FINISHED;
    }
    tierce__lock_drop(&endings->lock);
    return end;
}

/* ---- renewing -------------------------------------------------------------------------------- */

static int say_ending(enum tierce__session_end end, const char *id, char why[TIERCE__WHY_BYTES])
{
    static const char *const texts[] = {
        [TIERCE__SESSION_UNKNOWN] = "is unknown: it never began, or it ended long ago or under "
                                    "another leader",
        [TIERCE__SESSION_FINISHED] = "was finished, or is being finished",
        [TIERCE__SESSION_EXPIRED] = "has timed out; its blocks are dropped",
    };
    TIERCE_ASSERT((size_t)end < sizeof(texts) / sizeof(texts[0]));
    return tierce__why(why, -ESRCH, "write session %.40s %s", id, texts[end]);
}

/* SESSIONS held. */
static void extend(struct tierce__live *live, struct tierce__write_session *session, int64_t now_us)
{
    tierce__lock_assert_held(&live->lock);
    TIERCE_ASSERT(!session->is_busy && !session->is_doubtful);
    int64_t due_us = now_us + session->timeout_us;
    if (due_us > session->last_us)
        due_us = session->last_us;
    if (due_us <= session->due_us)
        return;
    session->due_us = due_us;
    session->is_late = false;
    int rc = tierce__deadline_set(&live->deadlines, &session->deadline, tierce__due(due_us));
    TIERCE_ASSERT(rc == 0); /* cannot fail: the session is in the heap */
}

int tierce__locator_renew_write(struct tierce__locator *locator, const char *instance_id,
                                const char *session_id, struct tierce__renewed *out,
                                char why[TIERCE__WHY_BYTES])
{
    struct tierce__live *live;
    struct tierce__renewed renewed = {0};
    int rc = tierce__live_acquire(&live, locator, instance_id, why);
    if (rc < 0)
        return rc;
    int span = tierce__span_open("locator:renew_write");
    tierce__lock_take(&live->lock);
    struct tierce__write_session *session = tierce__live_session(live, session_id);
    if (session != NULL && !session->is_busy) {
        int64_t now_us = tierce__locator_now_us(locator);
        extend(live, session, now_us);
        renewed.left_us = session->due_us > now_us ? session->due_us - now_us : 0;
    } else {
        renewed.end = session == NULL    ? find_ending(live, session_id)
                      : session->is_late ? TIERCE__SESSION_EXPIRED
                                         : TIERCE__SESSION_FINISHED;
        rc = say_ending(renewed.end, session_id, why);
    }
    tierce__lock_drop(&live->lock);
    tierce__span_close(span);
    tierce__live_release(live);
    *out = renewed;
    return rc;
}
