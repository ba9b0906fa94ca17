/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_SESSIONS_H
#define TIERCE_ENGINE_SESSIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "core/key/key.h"

/*
 * The pins of sessions, with their deadlines, and how far each session has used its chain. Thread:
 * any. Lock: ENGINE.
 */

struct tierce_engine;
struct tierce_view;
struct tierce__buf;
struct tierce__keys;

#define TIERCE__SESSION_BINS 256
#define TIERCE__USE_SETS     512
#define TIERCE__USE_WAYS     8

/* A session's use of its chain; id 0: none. */
struct tierce__use {
    const struct tierce_view *view;
    uint64_t id;
    uint64_t blocks;     /* leading blocks that it has used */
    size_t promised;     /* see tierce__session_leave; SIZE_MAX: no lookup left chunks */
    uint8_t hint;        /* enum tierce_hint */
    uint32_t returns_ms; /* of the hint; 0: not known */
};

/* The buffers a session held, in the order of its keys. */
struct tierce__session {
    struct tierce__list node;
    struct tierce_view *view;
    uint64_t id;
    uint64_t deadline_ns;
    uint64_t bytes;
    size_t count, count_max;
    struct tierce__key *keys; /* [count_max] */
    struct tierce__buf **bufs;
};

/* A session that no other thread can access, with room for `count` buffers, ended by session_free;
 * NULL: no memory. */
struct tierce__session *tierce__session_alloc(struct tierce_view *view, uint64_t id, size_t count);

/* The leased buffers of a new session, bufs[0 .. count), take the place of the pins of its id, for
 * `pin_ms` (0: timeout.pin), as far as the bound on pins has room. Returns how many did; the others
 * are released. [transfer] session; [borrow for the call] keys of the buffers. */
size_t tierce__session_hold(struct tierce__session *session, const struct tierce__key *keys,
                            uint32_t pin_ms);

/* Adds a leased buffer to the pins of (view, id), which are made if there are none, and which last
 * for `pin_ms` (0: timeout.pin) at least. The reference moves; false, and it is released: the bound
 * on pins has no room, or there is no memory. */
TIERCE_MUSTUSE bool tierce__session_add(struct tierce_view *view, uint64_t id,
                                        const struct tierce__key *key, struct tierce__buf *buf,
                                        uint32_t pin_ms);

/* The pins of (view, id) last until deadline_ns at least. Has no effect if there are none. */
void tierce__session_extend(struct tierce_view *view, uint64_t id, uint64_t deadline_ns);

/* Bytes that this session may pin, those that it pins already included. */
uint64_t tierce__session_room(struct tierce_view *view, uint64_t id);

/*
 * How far a request has used its chain, so that its loads and stores are one use of each chunk:
 * returns the leading keys that the session used before, and notes that it has used the first
 * `count`. Each use of session 0 is a request of its own. The sessions that were requested longest
 * ago are forgotten; the cost is that a chunk may be counted twice, and that its hint is lost.
 * *hint: that of the session (tierce_session_hint).
 */
size_t tierce__session_use(struct tierce_view *view, uint64_t id, const struct tierce__keys *keys,
                           size_t count, uint8_t *hint);

/* TIERCE_HINT_SOON: at most so many seconds. */
#define TIERCE__SOON_S 60u

/* The hint of a session; *returns_ms 0: it has none, or no time. */
void tierce__session_hint(struct tierce_view *view, uint64_t id, uint8_t *hint,
                          uint32_t *returns_ms);

/*
 * Notes that a lookup left the chunks after the first `chunks` to the inference engine, although
 * slower tiers may hold them: because computing them is faster, or because the caller loads from
 * memory only. A store of this session keeps the chunks from there on in memory.
 * tierce__session_promised returns the number; SIZE_MAX: no lookup left chunks.
 */
void tierce__session_leave(struct tierce_view *view, uint64_t id, size_t chunks);
size_t tierce__session_promised(struct tierce_view *view, uint64_t id);

/* Takes a session out; the caller ends it with session_free. NULL if there is none. */
struct tierce__session *tierce__session_take(struct tierce_view *view, uint64_t id);

/* A copy of a session, with references of its own; the caller ends it with session_free. NULL if
 * there is none, or no memory. */
struct tierce__session *tierce__session_share(struct tierce_view *view, uint64_t id);

/* Releases the references that are still in bufs (NULL entries are skipped). NULL is accepted. */
void tierce__session_free(struct tierce__session *session);

/* Ends sessions whose deadline has passed, or all of them if `all`; view NULL: in every view.
 * Returns how many. */
size_t tierce__sessions_expire(struct tierce_engine *engine, const struct tierce_view *view,
                               bool all);

#endif
