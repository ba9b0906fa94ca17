/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins: references on memory buffers in the name of a request, until it loads, says it is done,
 * or its deadline passes. The keeper thread of the engine calls expire.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/engine_private.h"

static struct tierce__list *bin_of(struct tierce_engine *engine, uint64_t id)
{
    return &engine->sessions[(id * 0x9e3779b97f4a7c15ULL) >> 56];
}

/* Under the lock. */
static struct tierce__session *find_session(struct tierce_view *view, uint64_t id)
{
    TIERCE__LIST_FOR_EACH (it, bin_of(view->engine, id)) {
        struct tierce__session *s = TIERCE__CONTAINER_OF(it, struct tierce__session, node);
        if (s->id == id && s->view == view)
            return s;
    }
    return NULL;
}

uint64_t tierce__session_room(struct tierce_view *view, uint64_t id)
{
    struct tierce_engine *engine = view->engine;
    uint64_t max = engine->settings.pin_bytes_max;
    tierce__lock_take(&engine->lock);
    struct tierce__session *own = find_session(view, id);
    uint64_t others = engine->pinned_bytes - (own != NULL ? own->bytes : 0);
    tierce__lock_drop(&engine->lock);
    return others < max ? max - others : 0;
}

/* Under the lock. */
static void unlink_session(struct tierce_engine *engine, struct tierce__session *session)
{
    tierce__list_remove(&session->node);
    engine->pinned_bytes -= session->bytes;
    engine->session_count--;
}

/* Shortens a new session to what the bound has room for, which others may have used since it was
 * asked. Returns the buffers that are in it; bufs[returned..] are not. Under the lock. */
static size_t fit_session(const struct tierce_engine *engine, struct tierce__session *session)
{
    uint64_t max = engine->settings.pin_bytes_max;
    uint64_t room = engine->pinned_bytes < max ? max - engine->pinned_bytes : 0;
    while (session->count > 0 && session->bytes > room)
        session->bytes -= session->bufs[--session->count]->bytes;
    return session->count;
}

int tierce__session_hold(struct tierce_view *view, uint64_t id, const struct tierce__key *keys,
                         struct tierce__buf **bufs, size_t *fitting, uint32_t pin_ms)
{
    struct tierce_engine *engine = view->engine;
    size_t count = *fitting;
    struct tierce__session *session = tierce__calloc(1, sizeof(*session));
    if (session != NULL) {
        session->keys = tierce__calloc(count, sizeof(*keys));
        session->bufs = tierce__calloc(count, sizeof(*bufs));
    }
    if (session == NULL || session->keys == NULL || session->bufs == NULL) {
        tierce__session_free(session); /* count is 0: nothing to release in it */
        tierce__bufs_release(bufs, count);
        return -ENOMEM;
    }
    memcpy(session->keys, keys, count * sizeof(*keys));
    memcpy(session->bufs, bufs, count * sizeof(struct tierce__buf *));
    session->view = view;
    session->id = id;
    session->count = session->count_max = count;
    session->deadline_ns = tierce__deadline_in_ms(pin_ms > 0 ? pin_ms : engine->settings.pin_ms);
    for (size_t i = 0; i < count; i++)
        session->bytes += bufs[i]->bytes;

    /* Out and in under one lock: of two lookups at once for a session, one must win whole. */
    tierce__lock_take(&engine->lock);
    struct tierce__session *old = find_session(view, id);
    if (old != NULL)
        unlink_session(engine, old);
    *fitting = fit_session(engine, session);
    tierce__list_push_back(bin_of(engine, id), &session->node);
    engine->pinned_bytes += session->bytes;
    engine->session_count++;
    tierce__lock_drop(&engine->lock);
    tierce__bufs_release(bufs + *fitting, count - *fitting);
    tierce__session_free(old); /* after the new pins hold, so that nothing slips between them */
    return 0;
}

/* The session of an id, made if there is none; NULL for no memory. Under the lock. */
static struct tierce__session *have_session(struct tierce_view *view, uint64_t id)
{
    struct tierce__session *session = find_session(view, id);
    if (session != NULL)
        return session;
    session = tierce__calloc(1, sizeof(*session));
    if (session == NULL)
        return NULL;
    session->view = view;
    session->id = id;
    tierce__list_push_back(bin_of(view->engine, id), &session->node);
    view->engine->session_count++;
    return session;
}

/* Room for one more buffer. Under the lock. */
static bool grow_session(struct tierce__session *session)
{
    if (session->count < session->count_max)
        return true;
    size_t max = session->count_max * 2 + 16;
    struct tierce__key *keys = tierce__realloc(session->keys, max * sizeof(*keys));
    if (keys == NULL)
        return false;
    session->keys = keys;
    struct tierce__buf **bufs = tierce__realloc(session->bufs, max * sizeof(*bufs));
    if (bufs == NULL)
        return false;
    session->bufs = bufs;
    session->count_max = max;
    return true;
}

bool tierce__session_add(struct tierce_view *view, uint64_t id, const struct tierce__key *key,
                         struct tierce__buf *buf, uint32_t pin_ms)
{
    struct tierce_engine *engine = view->engine;
    uint64_t deadline_ns = tierce__deadline_in_ms(pin_ms > 0 ? pin_ms : engine->settings.pin_ms);
    tierce__lock_take(&engine->lock);
    bool fits = engine->pinned_bytes + buf->bytes <= engine->settings.pin_bytes_max;
    struct tierce__session *session = fits ? have_session(view, id) : NULL;
    bool added = session != NULL && grow_session(session);
    if (session != NULL && session->deadline_ns < deadline_ns)
        session->deadline_ns = deadline_ns;
    if (added) {
        session->keys[session->count] = *key;
        session->bufs[session->count++] = buf;
        session->bytes += buf->bytes;
        engine->pinned_bytes += buf->bytes;
    }
    tierce__lock_drop(&engine->lock);
    if (!added)
        tierce__buf_release(buf);
    return added;
}

struct tierce__session *tierce__session_take(struct tierce_view *view, uint64_t id)
{
    struct tierce_engine *engine = view->engine;
    tierce__lock_take(&engine->lock);
    struct tierce__session *found = find_session(view, id);
    if (found != NULL)
        unlink_session(engine, found);
    tierce__lock_drop(&engine->lock);
    return found;
}

void tierce__session_free(struct tierce__session *session)
{
    if (session == NULL)
        return;
    if (session->bufs != NULL)
        tierce__bufs_release(session->bufs, session->count);
    tierce__free(session->bufs);
    tierce__free(session->keys);
    tierce__free(session);
}

void tierce__sessions_expire(struct tierce_engine *engine, const struct tierce_view *view, bool all)
{
    struct tierce__list ended;
    tierce__list_init(&ended);
    uint64_t now = tierce__now_ns();
    tierce__lock_take(&engine->lock);
    for (size_t bin = 0; bin < TIERCE__SESSION_BINS; bin++) {
        TIERCE__LIST_FOR_EACH_SAFE (it, after, &engine->sessions[bin]) {
            struct tierce__session *s = TIERCE__CONTAINER_OF(it, struct tierce__session, node);
            if ((view != NULL && s->view != view) || (!all && now < s->deadline_ns))
                continue;
            unlink_session(engine, s);
            tierce__list_push_back(&ended, &s->node);
        }
    }
    tierce__lock_drop(&engine->lock);

    TIERCE__LIST_FOR_EACH_SAFE (it, after, &ended) {
        tierce__list_remove(it);
        tierce__session_free(TIERCE__CONTAINER_OF(it, struct tierce__session, node));
        if (!all)
            tierce__count(engine, TIERCE__STAT_pins_expired, 1);
    }
}

size_t tierce__session_use(struct tierce_view *view, uint64_t id, const struct tierce__keys *keys,
                           size_t count)
{
    struct tierce_engine *engine = view->engine;
    if (id == 0)
        return 0;
    struct tierce__use use = {.view = view, .id = id};
    struct tierce__use *set = engine->uses[(id * 0x9e3779b97f4a7c15ULL >> 32) % TIERCE__USE_SETS];
    size_t at = 0;
    tierce__lock_take(&engine->lock);
    while (at + 1 < TIERCE__USE_WAYS && (set[at].id != id || set[at].view != view))
        at++;
    if (set[at].id == id && set[at].view == view)
        use = set[at];
    memmove(set + 1, set, at * sizeof(*set));
    uint64_t before = use.blocks, now = tierce__keys_blocks(keys, view, count, UINT64_MAX);
    use.blocks = now > before ? now : before;
    set[0] = use;
    tierce__lock_drop(&engine->lock);
    if (before >= keys->block_count)
        return keys->count;
    size_t whole = (size_t)(before / view->chunk_blocks);
    return whole < keys->full_count ? whole : keys->full_count;
}

void tierce_unpin(struct tierce_view *view, uint64_t session)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    if (tierce__engine_inherited(view->engine))
        return;
    tierce__session_free(tierce__session_take(view, session));
}
