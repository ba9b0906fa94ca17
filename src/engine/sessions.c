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
#include "base/mix.h"
#include "engine/view.h"
#include "engine/own_tiers.h"
#include "engine/node_client/shared.h"

static struct tierce__list *bin_of(struct tierce_engine *engine, uint64_t id)
{
    return &engine->sessions[tierce__spread(id) >> 56];
}

/* Under the lock. */
static struct tierce__session *find_session(const struct tierce_view *view, uint64_t id)
{
    tierce__lock_assert_held(&view->engine->lock);
    TIERCE__LIST_FOR_EACH (it, bin_of(view->engine, id)) {
        struct tierce__session *s = TIERCE__CONTAINER_OF(it, struct tierce__session, node);
        TIERCE_DASSERT(s->count <= s->count_max);
        if (s->id == id && s->view == view)
            return s;
    }
    return NULL;
}

bool tierce__view_has_pins(const struct tierce_view *view, uint64_t session)
{
    struct tierce_engine *engine = view->engine;
    tierce__lock_take(&engine->lock);
    bool has = find_session(view, session) != NULL;
    tierce__lock_drop(&engine->lock);
    return has;
}

/* The bytes that a session may pin after its earlier pins have ended. Under the lock. */
static uint64_t room_beside(const struct tierce_engine *engine, const struct tierce__session *old)
{
    tierce__lock_assert_held(&engine->lock);
    TIERCE_DASSERT(old == NULL || engine->pinned_bytes >= old->bytes);
    uint64_t max = engine->settings.pin_bytes_max;
    uint64_t others = engine->pinned_bytes - (old != NULL ? old->bytes : 0);
    return others < max ? max - others : 0;
}

uint64_t tierce__session_room(struct tierce_view *view, uint64_t id)
{
    struct tierce_engine *engine = view->engine;
    tierce__lock_take(&engine->lock);
    uint64_t room = room_beside(engine, find_session(view, id));
    tierce__lock_drop(&engine->lock);
    return room;
}

/* Under the lock. */
static void unlink_session(struct tierce_engine *engine, struct tierce__session *session)
{
    tierce__lock_assert_held(&engine->lock);
    TIERCE_DASSERT(!tierce__list_empty(&session->node));
    TIERCE_DASSERT(engine->pinned_bytes >= session->bytes && engine->session_count > 0);
    TIERCE_DASSERT(session->count > 0 || session->bytes == 0);
    tierce__list_remove(&session->node);
    engine->pinned_bytes -= session->bytes;
    engine->session_count--;
}

/* Shortens a session that no other thread knows to `room`. */
static void shorten(struct tierce__session *session, uint64_t room)
{
    TIERCE_DASSERT(session->bytes > room);
    size_t count = session->count;
    while (count > 0 && session->bytes > room)
        session->bytes -= session->bufs[--count]->bytes;
    TIERCE_DASSERT(count > 0 || session->bytes == 0);
    tierce__bufs_release(session->bufs + count, session->count - count);
    session->count = count;
}

struct tierce__session *tierce__session_alloc(struct tierce_view *view, uint64_t id, size_t count)
{
    TIERCE_DASSERT(id != 0);
    TIERCE_DASSERT(count > 0);
    struct tierce__session *session = tierce__calloc(1, sizeof(*session));
    if (session == NULL)
        return NULL;
    session->view = view;
    session->id = id;
    session->count_max = count;
    session->keys = tierce__alloc(count * sizeof(*session->keys));
    session->bufs = tierce__alloc(count * sizeof(struct tierce__buf *));
    if (session->keys == NULL || session->bufs == NULL) {
        tierce__session_free(session);
        return NULL;
    }
    return session;
}

size_t tierce__session_hold(struct tierce__session *session, const struct tierce__key *keys,
                            uint32_t pin_ms)
{
    struct tierce_view *view = session->view;
    struct tierce_engine *engine = view->engine;
    struct tierce__session *old;
    TIERCE_DASSERT(session->count <= session->count_max && session->bytes == 0);
    memcpy(session->keys, keys, session->count * sizeof(*keys));
    session->deadline_ns = tierce__deadline_in_ms(pin_ms > 0 ? pin_ms : engine->settings.pin_ms);
    for (size_t i = 0; i < session->count; i++)
        session->bytes += session->bufs[i]->bytes;

    for (;;) {
        tierce__lock_take(&engine->lock);
        old = find_session(view, session->id);
        TIERCE_DASSERT(old != session);
        uint64_t room = room_beside(engine, old);
        if (session->bytes <= room)
            break;
        /* Others have used it since it was asked for. */
        tierce__lock_drop(&engine->lock);
        shorten(session, room);
    }
    /* Out and in under one lock: of two lookups at once for a session, one must win whole. */
    size_t held = session->count;
    if (old != NULL)
        unlink_session(engine, old);
    tierce__list_push_back(bin_of(engine, session->id), &session->node);
    engine->pinned_bytes += session->bytes;
    engine->session_count++;
    TIERCE_DASSERT(engine->pinned_bytes <= engine->settings.pin_bytes_max);
    tierce__lock_drop(&engine->lock);
    tierce__session_free(old); /* after the new pins hold, so that nothing slips between them */
    return held;
}

/* The session of an id, made if there is none; NULL for no memory. Under the lock. */
static struct tierce__session *have_session(struct tierce_view *view, uint64_t id)
{
    TIERCE_DASSERT(id != 0);
    tierce__lock_assert_held(&view->engine->lock);
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
    tierce__lock_assert_held(&session->view->engine->lock);
    TIERCE_DASSERT(session->count <= session->count_max);
    size_t keys_max = session->count_max; /* of both arrays, once both have grown */
    if (TIERCE__GROW(session->keys, keys_max, session->count + 1, 16) < 0 ||
        TIERCE__GROW(session->bufs, session->count_max, session->count + 1, 16) < 0)
        return false;
    TIERCE_DASSERT(session->count < session->count_max);
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
        TIERCE_DASSERT(session->count <= session->count_max);
        TIERCE_DASSERT(engine->pinned_bytes <= engine->settings.pin_bytes_max);
    }
    tierce__lock_drop(&engine->lock);
    if (!added)
        tierce__buf_release(buf);
    return added;
}

void tierce__session_extend(struct tierce_view *view, uint64_t id, uint64_t deadline_ns)
{
    struct tierce_engine *engine = view->engine;
    tierce__lock_take(&engine->lock);
    struct tierce__session *session = find_session(view, id);
    if (session != NULL && session->deadline_ns < deadline_ns)
        session->deadline_ns = deadline_ns;
    tierce__lock_drop(&engine->lock);
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

/* Under the lock, so that referenced buffers cannot be freed meanwhile. */
static bool copy_session(struct tierce__session *copy, const struct tierce__session *of)
{
    tierce__lock_assert_held(&of->view->engine->lock);
    TIERCE_DASSERT(of->count <= of->count_max);
    copy->keys = tierce__calloc(of->count, sizeof(*copy->keys));
    copy->bufs = tierce__calloc(of->count, sizeof(*copy->bufs));
    if (copy->keys == NULL || copy->bufs == NULL)
        return false;
    memcpy(copy->keys, of->keys, of->count * sizeof(*copy->keys));
    memcpy(copy->bufs, of->bufs, of->count * sizeof(struct tierce__buf *));
    tierce__bufs_acquire(copy->bufs, of->count);
    copy->count = copy->count_max = of->count;
    return true;
}

struct tierce__session *tierce__session_share(struct tierce_view *view, uint64_t id)
{
    TIERCE_DASSERT(id != 0);
    struct tierce_engine *engine = view->engine;
    struct tierce__session *copy = tierce__calloc(1, sizeof(*copy));
    if (copy == NULL)
        return NULL;
    tierce__lock_take(&engine->lock);
    const struct tierce__session *found = find_session(view, id);
    bool copied = found != NULL && found->count > 0 && copy_session(copy, found);
    tierce__lock_drop(&engine->lock);
    if (copied)
        return copy;
    tierce__session_free(copy);
    return NULL;
}

void tierce__session_free(struct tierce__session *session)
{
    if (session == NULL)
        return;
    TIERCE_DASSERT(session->count <= session->count_max);
    TIERCE_DASSERT(session->node.next == NULL || tierce__list_empty(&session->node));
    if (session->bufs != NULL)
        tierce__bufs_release(session->bufs, session->count);
    tierce__free(session->bufs);
    tierce__free(session->keys);
    tierce__free(session);
}

size_t tierce__sessions_expire(struct tierce_engine *engine, const struct tierce_view *view,
                               bool all)
{
    size_t count = 0;
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
            count++;
        }
    }
    TIERCE_DASSERT(!all || view != NULL ||
                   (engine->session_count == 0 && engine->pinned_bytes == 0));
    tierce__lock_drop(&engine->lock);

    TIERCE__LIST_FOR_EACH_SAFE (it, after, &ended) {
        tierce__list_remove(it);
        tierce__session_free(TIERCE__CONTAINER_OF(it, struct tierce__session, node));
        if (!all)
            tierce__count(engine, TIERCE__STAT_pins_expired, 1);
    }
    return count;
}

/* The place of a session's use, before all others of its set; in a full one the last is forgotten.
 * Under the lock. */
static struct tierce__use *have_use(struct tierce_view *view, uint64_t id)
{
    struct tierce_engine *engine = view->engine;
    tierce__lock_assert_held(&engine->lock);
    struct tierce__use use = {.view = view, .id = id, .promised = SIZE_MAX};
    struct tierce__use *set = engine->uses[(tierce__spread(id) >> 32) % TIERCE__USE_SETS];
    size_t at = 0;
    while (at + 1 < TIERCE__USE_WAYS && (set[at].id != id || set[at].view != view))
        at++;
    TIERCE_DASSERT(at < TIERCE__USE_WAYS);
    if (set[at].id == id && set[at].view == view)
        use = set[at];
    memmove(set + 1, set, at * sizeof(*set));
    set[0] = use;
    TIERCE_DASSERT(set[0].id == id && set[0].view == view);
    return set;
}

/* A new view may get the same address, so that the uses of this one must go, too. */
void tierce__own_view_close(struct tierce_view *view)
{
    struct tierce_engine *engine = view->engine;
    TIERCE_DASSERT(view->borrowers == 0);
    (void)tierce__sessions_expire(engine, view, true);
    tierce__lock_take(&engine->lock);
    for (size_t i = 0; i < TIERCE__USE_SETS * TIERCE__USE_WAYS; i++) {
        struct tierce__use *use = &engine->uses[i / TIERCE__USE_WAYS][i % TIERCE__USE_WAYS];
        if (use->view == view)
            *use = (struct tierce__use){0};
    }
    tierce__lock_drop(&engine->lock);
}

size_t tierce__session_use(struct tierce_view *view, uint64_t id, const struct tierce__keys *keys,
                           size_t count, uint8_t *hint)
{
    struct tierce_engine *engine = view->engine;
    *hint = TIERCE_HINT_NONE;
    if (id == 0)
        return 0;
    uint64_t now = tierce__keys_blocks(keys, view, count, UINT64_MAX);
    tierce__lock_take(&engine->lock);
    struct tierce__use *use = have_use(view, id);
    TIERCE_DASSERT(use->id == id);
    uint64_t before = use->blocks;
    use->blocks = now > before ? now : before;
    *hint = use->hint;
    tierce__lock_drop(&engine->lock);
    if (before >= keys->block_count)
        return keys->count;
    TIERCE_DASSERT(before / view->chunk_blocks <= keys->count);
    return (size_t)(before / view->chunk_blocks);
}

void tierce__session_hint(struct tierce_view *view, uint64_t id, uint8_t *hint,
                          uint32_t *returns_ms)
{
    struct tierce_engine *engine = view->engine;
    *hint = TIERCE_HINT_NONE;
    *returns_ms = 0;
    if (id == 0)
        return;
    tierce__lock_take(&engine->lock);
    const struct tierce__use *use = have_use(view, id);
    *hint = use->hint;
    *returns_ms = use->returns_ms;
    tierce__lock_drop(&engine->lock);
}

void tierce__session_leave(struct tierce_view *view, uint64_t id, size_t chunks)
{
    TIERCE_DASSERT(chunks < SIZE_MAX);
    struct tierce_engine *engine = view->engine;
    if (id == 0)
        return;
    tierce__lock_take(&engine->lock);
    have_use(view, id)->promised = chunks;
    tierce__lock_drop(&engine->lock);
}

size_t tierce__session_promised(struct tierce_view *view, uint64_t id)
{
    struct tierce_engine *engine = view->engine;
    if (id == 0)
        return SIZE_MAX;
    tierce__lock_take(&engine->lock);
    size_t promised = have_use(view, id)->promised;
    tierce__lock_drop(&engine->lock);
    return promised;
}

/* Policies have the same kinds. */
_Static_assert((int)TIERCE_HINT_CLOSED == (int)TIERCE__HINT_CLOSED &&
                   (int)TIERCE_HINT_OPEN == (int)TIERCE__HINT_OPEN &&
                   (int)TIERCE_HINT_SOON == (int)TIERCE__HINT_SOON &&
                   (int)TIERCE_HINT_LATER == (int)TIERCE__HINT_LATER &&
                   (int)TIERCE_HINT_TTL == (int)TIERCE__HINT_TTL && TIERCE__HINTS == 6,
               "hints of clients and of policies");

int tierce__own_hint(struct tierce_view *view, uint64_t session, enum tierce_hint hint,
                     uint32_t returns_ms)
{
    tierce__lock_take(&view->engine->lock);
    struct tierce__use *use = have_use(view, session);
    use->hint = (uint8_t)hint;
    use->returns_ms = returns_ms;
    tierce__lock_drop(&view->engine->lock);
    tierce__ahead_hint(view, session, hint == TIERCE_HINT_CLOSED, returns_ms);
    return 0;
}

static int set_hint(struct tierce_view *view, uint64_t session, enum tierce_hint hint,
                    uint32_t returns_ms)
{
    struct tierce_engine *engine = view->engine;
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    if (session == 0 || (unsigned)hint >= TIERCE__HINTS)
        return TIERCE_E_ARGUMENT;
    return engine->lender->hint(view, session, hint, returns_ms);
}

int tierce_session_hint(struct tierce_view *view, uint64_t session, enum tierce_hint hint)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    return set_hint(view, session, hint, 0);
}

int tierce_session_returns(struct tierce_view *view, uint64_t session, uint32_t in_ms)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    enum tierce_hint hint = in_ms <= TIERCE__SOON_S * 1000 ? TIERCE_HINT_SOON : TIERCE_HINT_LATER;
    return set_hint(view, session, hint, in_ms > 0 ? in_ms : 1);
}

void tierce_unpin(struct tierce_view *view, uint64_t session)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    if (tierce__engine_inherited(view->engine))
        return;
    view->engine->lender->unpin(view, session);
}
