/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"
#include "manager/locate/locator_private.h"
#include "manager/locate/notes.h"

#include <errno.h>
#include <string.h>

/* ---- claims ---------------------------------------------------------------------------------- */

static uint64_t claim_hash(int64_t key)
{
    return tierce__spread((uint64_t)key); /* the hash determines the key */
}

struct tierce__spec_claim *tierce__live_claim(const struct tierce__live *live, int64_t key)
{
    tierce__lock_assert_held(&live->lock);
    struct tierce__map_node *node = tierce__map_find(&live->claims, claim_hash(key));
    TIERCE_DASSERT(node == NULL ||
                   TIERCE__CONTAINER_OF(node, struct tierce__spec_claim, node)->key == key);
    return node != NULL ? TIERCE__CONTAINER_OF(node, struct tierce__spec_claim, node) : NULL;
}

struct tierce__spec_claim *tierce__live_claim_next(const struct tierce__live *live,
                                                   const struct tierce__spec_claim *claim)
{
    tierce__lock_assert_held(&live->lock);
    struct tierce__map_node *node = tierce__map_find_next(&claim->node);
    TIERCE_DASSERT(node == NULL ||
                   TIERCE__CONTAINER_OF(node, struct tierce__spec_claim, node)->key == claim->key);
    return node != NULL ? TIERCE__CONTAINER_OF(node, struct tierce__spec_claim, node) : NULL;
}

void tierce__live_add_specs(const struct tierce__live *live, struct tierce__spec_claim *claim,
                            bool *specs)
{
    tierce__lock_assert_held(&live->lock);
    const struct tierce__session_key *key =
        TIERCE__CONTAINER_OF(claim, struct tierce__session_key, claim);
    for (size_t i = 0; claim->making != NULL && i < live->instance.spec_count; i++)
        specs[i] |= claim->making[i];
    for (size_t p = 0; claim->making == NULL && p < key->place_count; p++) {
        TIERCE_DASSERT(key->places[p].spec < live->instance.spec_count);
        specs[key->places[p].spec] = true;
    }
}

void tierce__live_put_claim(struct tierce__live *live, struct tierce__spec_claim *claim)
{
    tierce__lock_assert_held(&live->lock);
    TIERCE_DASSERT(claim->session != NULL);
    live->claimed_keys += tierce__live_claim(live, claim->key) == NULL;
    live->moving_keys += claim->session->is_move;
    tierce__map_put(&live->claims, &claim->node, claim_hash(claim->key));
}

void tierce__live_drop_claim(struct tierce__live *live, struct tierce__spec_claim *claim)
{
    tierce__lock_assert_held(&live->lock);
    TIERCE_DASSERT(live->claims.count >= live->claimed_keys && live->claimed_keys > 0);
    TIERCE_DASSERT(!claim->session->is_move || live->moving_keys > 0);
    tierce__map_remove(&live->claims, &claim->node);
    live->moving_keys -= claim->session->is_move;
    live->claimed_keys -= tierce__live_claim(live, claim->key) == NULL;
}

/* ---- sessions -------------------------------------------------------------------------------- */

struct tierce__write_session *tierce__session_create(struct tierce__locator *locator, size_t count)
{
    struct tierce__arena arena = {0};
    struct tierce__write_session *session = tierce__arena_calloc(&arena, 1, sizeof(*session));
    struct tierce__session_key *keys = tierce__arena_calloc(&arena, count, sizeof(*keys));
    bool *written = tierce__arena_calloc(&arena, count + 1, sizeof(*written));
    if (session == NULL || keys == NULL || written == NULL) {
        tierce__arena_clear(&arena);
        return NULL;
    }
    session->keys = keys;
    session->written = written;
    session->count = count;
    session->arena = arena;
    session->note = tierce__locator_random(locator) | 1; /* never 0 */
    tierce__locator_name(locator, session->id, TIERCE__SESSION_ID_BYTES);
    return session;
}

void tierce__session_destroy(struct tierce__write_session *session)
{
    if (session == NULL)
        return;
    struct tierce__arena arena = session->arena; /* it lies in it */
    tierce__arena_clear(&arena);
}

int tierce__session_keep_source(struct tierce__write_session *session,
                                struct tierce__move_source *source,
                                const struct tierce__location *location)
{
    TIERCE_DASSERT(session->is_move);
    if (source->is_known || session->keeps_source)
        return 0;
    struct tierce__spec_place *places =
        tierce__arena_alloc(&session->arena, (location->place_count + 1u) * sizeof(*places));
    if (places == NULL)
        return -ENOMEM;
    for (size_t p = 0; p < location->place_count; p++) {
        const char *uri = location->places[p].uri;
        places[p] = location->places[p];
        if (uri != NULL)
            places[p].uri = tierce__arena_copy(&session->arena, uri, strlen(uri));
        if (uri != NULL && places[p].uri == NULL)
            return -ENOMEM;
    }
    source->location = *location;
    source->location.places = places;
    source->is_known = true;
    return 0;
}

static uint64_t session_hash(const char *id)
{
    return tierce__hash_text(TIERCE__HASH_TEXT, id); /* ids are random */
}

int tierce__live_put_session(struct tierce__live *live, struct tierce__write_session *session)
{
    tierce__lock_assert_held(&live->lock);
    TIERCE_ASSERT(session->deadline.place == 0);
    int rc =
        tierce__deadline_set(&live->deadlines, &session->deadline, tierce__due(session->due_us));
    if (rc < 0)
        return rc;
    tierce__map_put(&live->sessions, &session->node, session_hash(session->id));
    live->writing_by_slot[tierce__meta_type_slot(session->type)] += session->bytes;
    TIERCE_DASSERT(live->sessions.count == live->deadlines.count);
    return 0;
}

struct tierce__write_session *tierce__live_session(const struct tierce__live *live, const char *id)
{
    struct tierce__map_node *node = tierce__map_find(&live->sessions, session_hash(id));
    tierce__lock_assert_held(&live->lock);
    for (; node != NULL; node = tierce__map_find_next(node)) {
        struct tierce__write_session *session =
            TIERCE__CONTAINER_OF(node, struct tierce__write_session, node);
        TIERCE_ASSERT(session->deadline.place != 0);
        if (strcmp(session->id, id) == 0)
            return session;
    }
    return NULL;
}

void tierce__live_drop_session(struct tierce__live *live, struct tierce__write_session *session)
{
    tierce__lock_assert_held(&live->lock);
    TIERCE_ASSERT(live->sessions.count > 0 && session->deadline.place != 0);
    TIERCE_ASSERT(session->is_busy);
    tierce__map_remove(&live->sessions, &session->node);
    tierce__deadline_unset(&live->deadlines, &session->deadline);
    uint64_t *writing = &live->writing_by_slot[tierce__meta_type_slot(session->type)];
    TIERCE_ASSERT(*writing >= session->bytes);
    *writing -= session->bytes;
    TIERCE_DASSERT(live->sessions.count == live->deadlines.count);
}

/* ---- the durable form ------------------------------------------------------------------------ */

/* The version before, 1, has no timeout. */
enum { SESSION_VERSION = 2 };

enum {
    HAS_PARENT = 1,
    HAS_TEXT = 2,
    HAS_TTL = 4,
    HAS_GENERATION = 8,
    HAS_SOURCE = 16,
    KNOWN_FLAGS = HAS_PARENT | HAS_TEXT | HAS_TTL | HAS_GENERATION | HAS_SOURCE,
};

/* Without its source a copy that the next leader finishes would revive a block that was removed,
 * and prolong its life. */
static void write_source(struct tierce__note_writer *w, const struct tierce__write_session *session,
                         const struct tierce__move_source *source)
{
    TIERCE_DASSERT(session->is_move);
    tierce__note_put_bytes(w, source->id, sizeof(source->id));
    tierce__note_put8(w, session->keeps_source);
    tierce__note_put8(w, (uint8_t)session->reason);
}

static void write_key(struct tierce__note_writer *w, const struct tierce__write_session *session,
                      const struct tierce__session_key *key)
{
    int64_t ttl_us = session->ttl_us;
    uint64_t generation = session->generation;
    TIERCE_DASSERT(ttl_us >= 0);
    tierce__note_put64(w, (uint64_t)key->claim.key);
    tierce__note_put8(w, (uint8_t)((key->has_parent ? HAS_PARENT : 0) |
                                   (key->text != NULL ? HAS_TEXT : 0) | (ttl_us > 0 ? HAS_TTL : 0) |
                                   (generation > 0 ? HAS_GENERATION : 0) |
                                   (key->source != NULL ? HAS_SOURCE : 0)));
    if (key->has_parent)
        tierce__note_put64(w, (uint64_t)key->parent);
    if (key->text != NULL)
        tierce__note_put_text(w, key->text);
    if (ttl_us > 0)
        tierce__note_put64(w, (uint64_t)ttl_us);
    if (generation > 0)
        tierce__note_put64(w, generation);
    if (key->source != NULL)
        write_source(w, session, key->source);
    tierce__note_put_bytes(w, key->location_id, sizeof(key->location_id));
    tierce__note_put_places(w, key->places, key->place_count);
}

int tierce__session_write(const struct tierce__write_session *session, struct tierce__arena *arena,
                          const void **out, size_t *bytes)
{
    TIERCE_DASSERT(session->count > 0 && session->count <= UINT32_MAX);
    TIERCE_DASSERT(session->timeout_us >= 0);
    struct tierce__note_writer w = {.arena = arena};
    tierce__note_put8(&w, SESSION_VERSION);
    tierce__note_put_bytes(&w, session->id, TIERCE__SESSION_ID_BYTES);
    tierce__note_put64(&w, (uint64_t)session->due_us);
    tierce__note_put64(&w, (uint64_t)session->timeout_us);
    tierce__note_put16(&w, session->storage);
    tierce__note_put8(&w, session->type);
    tierce__note_put32(&w, (uint32_t)session->count);
    for (size_t i = 0; i < session->count; i++)
        write_key(&w, session, &session->keys[i]);
    return tierce__note_finish(&w, out, bytes);
}

/* A session's blocks have one time to live. */
static void read_ttl(struct tierce__note_reader *r, bool is_given,
                     struct tierce__write_session *session)
{
    int64_t ttl_us = is_given ? (int64_t)tierce__note_get64(r) : 0;
    if (ttl_us < 0 || ttl_us > TIERCE__TTL_S_MAX * 1000000 || (is_given && ttl_us == 0))
        tierce__note_refuse(r, TIERCE_E_FORMAT);
    session->ttl_us = ttl_us;
}

/* All keys of a session have a source, or none has. */
static void read_source(struct tierce__note_reader *r, bool is_given,
                        struct tierce__write_session *session, struct tierce__session_key *key)
{
    bool is_first = key == session->keys;
    if (!is_first && session->is_move != is_given)
        tierce__note_refuse(r, TIERCE_E_FORMAT);
    session->is_move = is_given;
    if (!is_given)
        return;
    key->source = tierce__arena_calloc(r->arena, 1, sizeof(*key->source));
    if (key->source == NULL) {
        tierce__note_refuse(r, -ENOMEM);
        return;
    }
    tierce__note_get_bytes(r, key->source->id, sizeof(key->source->id));
    session->keeps_source = tierce__note_get_flag(r);
    uint8_t reason = tierce__note_get8(r);
    if (reason >= TIERCE__MOVE_REASONS)
        tierce__note_refuse(r, TIERCE_E_FORMAT);
    else
        session->reason = (enum tierce__move_reason)reason;
}

static void read_key(struct tierce__note_reader *r, struct tierce__write_session *session,
                     struct tierce__session_key *key)
{
    key->claim.key = (int64_t)tierce__note_get64(r);
    uint8_t flags = tierce__note_get8(r);
    if ((flags & ~(unsigned)KNOWN_FLAGS) != 0)
        tierce__note_refuse(r, TIERCE_E_FORMAT);
    key->has_parent = (flags & HAS_PARENT) != 0;
    if (key->has_parent)
        key->parent = (int64_t)tierce__note_get64(r);
    if ((flags & HAS_TEXT) != 0)
        key->text = tierce__note_get_text(r);
    read_ttl(r, (flags & HAS_TTL) != 0, session);
    session->generation = (flags & HAS_GENERATION) != 0 ? tierce__note_get64(r) : 0;
    read_source(r, (flags & HAS_SOURCE) != 0, session, key);
    tierce__note_get_bytes(r, key->location_id, sizeof(key->location_id));
    key->places = tierce__note_get_places(r, &key->place_count);
}

/* When a session times out under this leader, and by how much it may be renewed. Renewals under the
 * leader before are not in the note, so a session lives for another timeout. The clock of the
 * leader before may have been ahead, so it does not live for longer than that. Of a session of
 * version 1, neither its timeout nor its start is known; it ends a day from now at the latest. */
static void read_times(struct tierce__note_reader *r, uint8_t version, int64_t now_us,
                       struct tierce__write_session *session)
{
    const int64_t max_us = (int64_t)TIERCE__WRITE_TIMEOUT_S_MAX * 1000000;
    int64_t due_us = (int64_t)tierce__note_get64(r), began_us = now_us;
    int64_t left_us = due_us <= now_us ? 0 : due_us - now_us <= max_us ? due_us - now_us : max_us;
    int64_t timeout_us = version == 1 ? left_us : (int64_t)tierce__note_get64(r);
    if (due_us < 0 || timeout_us < 0 || timeout_us > max_us) {
        tierce__note_refuse(r, TIERCE_E_FORMAT);
        return;
    }
    if (version > 1 && due_us - timeout_us < now_us)
        began_us = due_us - timeout_us;
    session->timeout_us = timeout_us;
    session->last_us = began_us + max_us;
    session->due_us = now_us + timeout_us;
    if (session->due_us > session->last_us)
        session->due_us = session->last_us;
}

int tierce__session_read(struct tierce__write_session **out, struct tierce__locator *locator,
                         uint64_t note, const void *bytes, size_t count)
{
    enum { KEY_BYTES_MIN = 8 + 1 + 10 };
    char id[TIERCE__SESSION_ID_BYTES];
    struct tierce__write_session times = {0};
    struct tierce__note_reader r = {.at = bytes, .left = count};
    uint8_t version = tierce__note_get_version_to(&r, SESSION_VERSION);
    tierce__note_get_bytes(&r, id, sizeof(id));
    read_times(&r, version, tierce__locator_now_us(locator), &times);
    uint16_t storage = tierce__note_get16(&r);
    uint8_t type = tierce__note_get8(&r);
    uint32_t keys = tierce__note_get32(&r);
    if (r.error == 0 && (keys == 0 || keys > r.left / KEY_BYTES_MIN))
        return TIERCE_E_FORMAT;
    if (r.error < 0)
        return r.error;
    struct tierce__write_session *session = tierce__session_create(locator, keys);
    if (session == NULL)
        return -ENOMEM;
    memcpy(session->id, id, sizeof(id));
    session->note = note;
    session->timeout_us = times.timeout_us;
    session->due_us = times.due_us;
    session->last_us = times.last_us;
    session->storage = storage;
    session->type = type;
    r.arena = &session->arena;
    for (size_t i = 0; i < keys && r.error == 0; i++) {
        read_key(&r, session, &session->keys[i]);
        for (size_t p = 0; r.error == 0 && p < session->keys[i].place_count; p++) {
            uint64_t taken = session->keys[i].places[p].bytes;
            if (taken > INT64_MAX - session->bytes)
                tierce__note_refuse(&r, TIERCE_E_FORMAT);
            else
                session->bytes += taken;
        }
    }
    TIERCE_DASSERT(session->bytes <= INT64_MAX);
    int rc = tierce__note_end(&r);
    if (rc < 0)
        tierce__session_destroy(session);
    else
        *out = session;
    return rc;
}
