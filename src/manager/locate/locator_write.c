/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "manager/locate/locator_private.h"
#include "manager/api/spans.h"

#include <errno.h>
#include <string.h>

/*
 * Writing in two steps.
 *
 * Start: claim the keys that are neither stored nor being written; choose a storage, reserve bytes,
 * allocate places; make all of it durable with one note; return the places to the client. Finish:
 * one batch adds the written blocks to the index, deletes the note, and hands unwritten blocks to
 * the deleter. A session that times out is finished with nothing written.
 */

/* Limits of an instance's sessions and their keys, which quotas of bytes do not bound. */
#define WRITING_MAX ((size_t)1 << 20)

struct starting {
    struct tierce__live *live;
    const struct tierce__catalog *catalog;
    const struct tierce__group *group;
    const struct tierce__write_request *request;
    struct tierce__arena *arena;
    uint32_t
        *spec_group;     /* of each key: the index of its spec group; spec_group_count: all specs */
    const bool **specs;  /* of each requested group, and of all specs: the specs in it */
    const bool **wanted; /* of each key: the specs of its group that are not stored yet */
    uint8_t *taken;      /* of each key: it need not be written */
    uint8_t
        *is_there; /* of each key: the index has it, with other specs or in unavailable storages */
    struct tierce__write_session *session; /* its keys are the claimed ones */
    size_t *positions;                     /* of the session's keys in the request */
    const struct tierce__storage *storage;
    struct tierce__spec_place *places; /* spec by spec, key by key */
    struct tierce__meta_note *notes;
    size_t note_count, notes_max;
};

/* ---- checks of requests ---------------------------------------------------------------------- */

static int check_request(const struct tierce__write_request *request, char why[TIERCE__WHY_BYTES])
{
    if (request->count > UINT16_MAX)
        return tierce__why(why, TIERCE_E_ARGUMENT, "%zu keys in one write; at most %u are accepted",
                           request->count, UINT16_MAX);
    if (request->timeout_s < 0)
        return tierce__why(why, TIERCE_E_ARGUMENT,
                           "write_timeout_seconds is %lld; accepted are numbers >= 0; above %d it "
                           "counts as the maximum",
                           (long long)request->timeout_s, TIERCE__WRITE_TIMEOUT_S_MAX);
    if (request->ttl_s < 0 || request->ttl_s > TIERCE__TTL_S_MAX)
        return tierce__why(why, TIERCE_E_ARGUMENT,
                           "ttl_seconds is %lld; accepted are 1 to %lld, and 0 for none",
                           (long long)request->ttl_s, (long long)TIERCE__TTL_S_MAX);
    return 0;
}

static int find_spec_group(const struct tierce__instance *instance, const char *name, uint32_t *out)
{
    for (size_t g = 0; g < instance->spec_group_count; g++) {
        if (strcmp(instance->spec_groups[g].name, name) == 0) {
            *out = (uint32_t)g;
            return 0;
        }
    }
    return -ENOENT;
}

static bool names_spec(const struct tierce__spec_group *group, const char *name)
{
    for (size_t i = 0; i < group->spec_name_count; i++) {
        if (strcmp(group->spec_names[i], name) == 0)
            return true;
    }
    return false;
}

/* The specs of a group, looked up once per call. */
static int find_specs(struct starting *s, uint32_t group)
{
    TIERCE_DASSERT(group <= s->live->instance.spec_group_count);
    const struct tierce__instance *instance = &s->live->instance;
    bool *specs = tierce__arena_alloc(s->arena, instance->spec_count * sizeof(*specs));
    if (specs == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < instance->spec_count; i++)
        specs[i] = group == instance->spec_group_count ||
                   names_spec(&instance->spec_groups[group], instance->specs[i].name);
    s->specs[group] = specs;
    return 0;
}

static int find_spec_groups(struct starting *s, char why[TIERCE__WHY_BYTES])
{
    const struct tierce__instance *instance = &s->live->instance;
    const char *const *names = s->request->spec_groups;
    s->spec_group = tierce__arena_alloc(s->arena, s->request->count * sizeof(*s->spec_group));
    s->specs = tierce__arena_calloc(s->arena, instance->spec_group_count + 1, sizeof(*s->specs));
    s->wanted = tierce__arena_alloc(s->arena, s->request->count * sizeof(*s->wanted));
    s->is_there = tierce__arena_calloc(s->arena, s->request->count, sizeof(*s->is_there));
    if (s->spec_group == NULL || s->specs == NULL || s->wanted == NULL || s->is_there == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < s->request->count; i++) {
        uint32_t group = (uint32_t)instance->spec_group_count;
        if (names != NULL && i > 0 && strcmp(names[i], names[i - 1]) == 0)
            group = s->spec_group[i - 1];
        else if (names != NULL && find_spec_group(instance, names[i], &group) < 0)
            return tierce__why(why, TIERCE_E_ARGUMENT, "instance %.64s has no spec group %.64s",
                               instance->id, names[i]);
        TIERCE_DASSERT(group <= instance->spec_group_count);
        s->spec_group[i] = group;
        int rc = s->specs[group] == NULL ? find_specs(s, group) : 0;
        if (rc < 0)
            return rc;
        s->wanted[i] = s->specs[group];
    }
    return 0;
}

/* Returns whether the spec's part is written for the key at that position of the request. */
static bool has_spec(const struct starting *s, size_t position, size_t spec)
{
    TIERCE_DASSERT(position < s->request->count && spec < s->live->instance.spec_count);
    return s->wanted[position][spec];
}

/* ---- claiming -------------------------------------------------------------------------------- */

/* Claims every key that no other session is writing. The index is checked afterwards, so that a
 * session that ends in between is seen in one of the two. */
static int claim_keys(struct starting *s, char why[TIERCE__WHY_BYTES])
{
    const struct tierce__write_request *request = s->request;
    TIERCE_DASSERT(request->count <= UINT16_MAX);
    struct tierce__write_session *session =
        tierce__session_create(s->live->locator, request->count);
    s->taken = tierce__arena_calloc(s->arena, request->count, sizeof(*s->taken));
    s->positions = tierce__arena_alloc(s->arena, request->count * sizeof(*s->positions));
    if (session == NULL || s->taken == NULL || s->positions == NULL) {
        tierce__session_destroy(session);
        return tierce__why(why, -ENOMEM, "no memory for a session");
    }
    session->count = 0;
    s->session = session;
    tierce__lock_take(&s->live->lock);
    if (s->live->is_emptying) {
        tierce__lock_drop(&s->live->lock);
        return tierce__why(why, -ENOENT, "there is no instance %.100s", request->instance_id);
    }
    size_t writing = s->live->claims.count + s->live->sessions.count;
    if (writing + request->count >= WRITING_MAX) {
        tierce__lock_drop(&s->live->lock);
        tierce__live_count_rejected(s->live, TIERCE__REJECTED_BY_SESSIONS, request->count);
        return tierce__why(why, TIERCE_E_FULL,
                           "instance %.64s is already writing %zu keys; the limit is %zu at a time",
                           s->live->instance.id, writing, WRITING_MAX);
    }
    for (size_t i = 0; i < request->count; i++) {
        if (tierce__live_claim(s->live, request->keys[i]) != NULL) {
            s->taken[i] = 1;
            continue;
        }
        TIERCE_DASSERT(session->count <= i);
        struct tierce__session_key *key = &session->keys[session->count];
        *key = (struct tierce__session_key){
            .claim = {.key = request->keys[i]},
            /* Entries by name follow nothing. */
            .has_parent = i > 0 && request->key_texts == NULL,
            .parent = i > 0 && request->key_texts == NULL ? request->keys[i - 1] : 0,
            .text = request->key_texts != NULL ? request->key_texts[i] : NULL,
        };
        s->positions[session->count++] = i;
        tierce__live_put_claim(s->live, &key->claim);
    }
    TIERCE_DASSERT(s->live->claims.count >= session->count);
    tierce__lock_drop(&s->live->lock);
    return 0;
}

/* Moves a claimed key to another index of the session's array. SESSIONS held. */
static void move_key(struct starting *s, size_t to, size_t from)
{
    struct tierce__write_session *session = s->session;
    tierce__lock_assert_held(&s->live->lock);
    TIERCE_DASSERT(to < from && from < session->count);
    TIERCE_DASSERT(s->session->keys[from].claim.session == NULL && !session->is_busy);
    TIERCE_DASSERT(to == 0 || s->positions[to - 1] < s->positions[from]);
    tierce__live_drop_claim(s->live, &session->keys[from].claim);
    session->keys[to] = session->keys[from];
    tierce__live_put_claim(s->live, &session->keys[to].claim);
    s->positions[to] = s->positions[from];
}

/* Releases the claims with drop[i] set, and closes the gaps. */
static void unclaim(struct starting *s, const bool *drop)
{
    size_t kept = 0;
    tierce__lock_take(&s->live->lock);
    TIERCE_DASSERT(!s->session->is_busy && s->session->deadline.place == 0);
    for (size_t i = 0; i < s->session->count; i++) {
        if (drop[i]) {
            tierce__live_drop_claim(s->live, &s->session->keys[i].claim);
            s->taken[s->positions[i]] = 1;
        } else {
            if (kept != i)
                move_key(s, kept, i);
            kept++;
        }
    }
    TIERCE_DASSERT(kept <= s->session->count);
    s->session->count = kept;
    tierce__lock_drop(&s->live->lock);
}

static void unclaim_from(struct starting *s, size_t first)
{
    tierce__lock_take(&s->live->lock);
    TIERCE_DASSERT(first <= s->session->count && s->session->count <= s->request->count);
    for (size_t i = first; i < s->session->count; i++) {
        TIERCE_DASSERT(s->positions[i] < s->request->count && s->taken[s->positions[i]] == 0);
        tierce__live_drop_claim(s->live, &s->session->keys[i].claim);
        s->taken[s->positions[i]] = 1;
    }
    s->session->count = first;
    tierce__lock_drop(&s->live->lock);
}

static bool has_expired(void *arg, size_t i, int64_t key, const struct tierce__record *record)
{
    const struct tierce__chooser *chooser = arg;
    (void)i, (void)key;
    return tierce__record_due_us(record, chooser->ttl_us) <= chooser->now_us;
}

/* Removes expired blocks before they are written again, so that no old part remains. */
static int drop_expired(struct starting *s, struct tierce__chooser *chooser, const int64_t *keys,
                        const struct tierce__record *records, const bool *found)
{
    size_t count = 0;
    struct tierce__removed removed = {0};
    int64_t *expired = tierce__arena_alloc(s->arena, (s->session->count + 1) * sizeof(*expired));
    if (expired == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < s->session->count; i++) {
        if (found[i] && has_expired(chooser, i, keys[i], &records[i]))
            expired[count++] = keys[i];
    }
    TIERCE_DASSERT(count <= s->session->count);
    int32_t delay_ms = s->group->delay_before_delete_ms;
    struct tierce__removal how = {.due_us = chooser->now_us +
                                            (int64_t)(delay_ms > 0 ? delay_ms : 0) * 1000,
                                  .wanted = has_expired,
                                  .wanted_arg = chooser};
    return count > 0 ? tierce__live_remove(s->live, expired, count, &how, &removed) : 0;
}

/* Returns the store's result; on an error counts the keys as rejected. */
static int fail_by_index(struct starting *s, size_t keys, int rc, char why[TIERCE__WHY_BYTES])
{
    TIERCE_DASSERT(keys <= s->request->count);
    if (rc >= 0 || rc == -ENOMEM)
        return rc;
    tierce__live_count_rejected(s->live, TIERCE__REJECTED_BY_INDEX, keys);
    return tierce__why(why, rc, "the index of instance %.64s rejects writes: %s",
                       s->live->instance.id, tierce_strerror(rc));
}

/* Determines the specs of a block that must be written: those without an available location, while
 * its record takes another one. Returns 1 if there are any, else 0. */
static int find_missing(struct starting *s, struct tierce__chooser *chooser, size_t position,
                        const struct tierce__record *record)
{
    TIERCE_DASSERT(position < s->request->count);
    size_t specs = s->live->instance.spec_count, wanted = 0, missing = 0;
    if (record->location_count == UINT16_MAX)
        return 0;
    bool *lacks = tierce__arena_calloc(s->arena, specs + 1, sizeof(*lacks));
    if (lacks == NULL)
        return -ENOMEM;
    for (size_t spec = 0; spec < specs; spec++) {
        bool wants = has_spec(s, position, spec);
        lacks[spec] = wants && !tierce__record_has_part(chooser, record, spec);
        wanted += wants;
        missing += lacks[spec];
    }
    TIERCE_DASSERT(missing <= wanted && wanted <= specs);
    if (missing > 0 && missing < wanted)
        s->wanted[position] = lacks;
    return missing > 0 || (wanted == 0 && !tierce__record_serves(chooser, record));
}

/* A block whose specs all serve is not written again. Specs that are missing, or stored only in
 * unavailable storages, are written. */
static int drop_what_is_there(struct starting *s, char why[TIERCE__WHY_BYTES])
{
    size_t count = s->session->count;
    TIERCE_DASSERT(count <= s->request->count);
    int64_t *keys = tierce__arena_alloc(s->arena, (count + 1) * sizeof(*keys));
    bool *found = tierce__arena_calloc(s->arena, count + 1, sizeof(*found));
    struct tierce__record *records = tierce__arena_calloc(s->arena, count + 1, sizeof(*records));
    if (keys == NULL || found == NULL || records == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        keys[i] = s->session->keys[i].claim.key;
    struct tierce__chooser chooser;
    tierce__chooser_begin(&chooser, s->live, s->catalog);
    int rc = count > 0
                 ? tierce__meta_index_get(s->live->index, keys, count, s->arena, records, found)
                 : 0;
    if (rc == 0)
        rc = drop_expired(s, &chooser, keys, records, found);
    if (rc < 0)
        return fail_by_index(s, count, rc, why);
    for (size_t i = 0; i < count; i++) {
        const char *text = s->session->keys[i].text;
        found[i] = found[i] && !has_expired(&chooser, i, keys[i], &records[i]);
        bool other = text != NULL && found[i] &&
                     (records[i].key_text == NULL || strcmp(records[i].key_text, text) != 0);
        s->is_there[s->positions[i]] = found[i];
        rc = found[i] && !other ? find_missing(s, &chooser, s->positions[i], &records[i]) : 0;
        if (rc < 0)
            return rc;
        found[i] = found[i] && rc == 0;
    }
    unclaim(s, found);
    return 0;
}

/* The client sets the session's duration. If the session has only few of the requested keys, its
 * memory is reduced accordingly. */
static int shrink_session(struct starting *s)
{
    struct tierce__write_session *large = s->session;
    size_t count = large->count;
    if (count > s->request->count / 2)
        return 0;
    TIERCE_DASSERT(large->bytes == 0 && !large->is_busy);
    TIERCE_DASSERT(large->deadline.place == 0 && large->note != 0);
    struct tierce__write_session *small = tierce__session_create(s->live->locator, count + 1);
    if (small == NULL)
        return -ENOMEM;
    tierce__lock_take(&s->live->lock);
    TIERCE_DASSERT(count <= small->count);
    for (size_t i = 0; i < count; i++) {
        tierce__live_drop_claim(s->live, &large->keys[i].claim);
        small->keys[i] = large->keys[i];
        tierce__live_put_claim(s->live, &small->keys[i].claim);
    }
    small->count = count;
    tierce__lock_drop(&s->live->lock);
    s->session = small;
    tierce__session_destroy(large);
    return 0;
}

/* ---- places ---------------------------------------------------------------------------------- */

static uint64_t key_bytes(const struct starting *s, size_t position)
{
    const struct tierce__instance *instance = &s->live->instance;
    uint64_t bytes = 0;
    for (size_t spec = 0; spec < instance->spec_count; spec++) {
        if (has_spec(s, position, spec))
            bytes += (uint64_t)instance->specs[spec].size;
    }
    return bytes;
}

/* Returns how many of the session's keys fit into the index. Keys that are indexed already need no
 * room. */
static int count_room(const struct starting *s, size_t *fit, char why[TIERCE__WHY_BYTES])
{
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(s->live->index, &stats);
    tierce__lock_take(&s->live->lock);
    TIERCE_DASSERT(s->live->claims.count >= s->session->count);
    uint64_t keys = stats.keys + s->live->claims.count - s->session->count; /* without these */
    tierce__lock_drop(&s->live->lock);
    *fit = s->session->count;
    if (s->group->max_key_count <= 0)
        return 0;
    uint64_t most = (uint64_t)s->group->max_key_count, room = keys < most ? most - keys : 0;
    for (size_t i = 0; i < s->session->count; i++) {
        bool is_new = s->is_there[s->positions[i]] == 0;
        if (is_new && room == 0) {
            *fit = i;
            break;
        }
        room -= is_new;
    }
    TIERCE_DASSERT(*fit <= s->session->count);
    tierce__live_count_rejected(s->live, TIERCE__REJECTED_BY_KEYS, s->session->count - *fit);
    if (*fit == 0)
        return tierce__why(
            why, TIERCE_E_FULL, "instance %.64s holds %llu blocks; the limit is %llu",
            s->live->instance.id, (unsigned long long)keys, (unsigned long long)most);
    return 0;
}

/* Chooses a storage and reserves room for the leading keys that the quotas allow; the others are
 * not written. */
static int reserve_room(struct starting *s, char why[TIERCE__WHY_BYTES])
{
    struct tierce__write_session *session = s->session;
    TIERCE_DASSERT(session->count > 0 && session->bytes == 0);
    size_t fit;
    int rc = count_room(s, &fit, why);
    if (rc < 0)
        return rc;
    unclaim_from(s, fit);
    uint64_t *bytes = tierce__arena_alloc(s->arena, session->count * sizeof(*bytes));
    if (bytes == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < session->count; i++)
        bytes[i] = key_bytes(s, s->positions[i]);
    struct tierce__storage_choice_opts opts = {.live = s->live,
                                               .catalog = s->catalog,
                                               .group = s->group,
                                               .bytes = bytes,
                                               .count = session->count};
    rc = tierce__choose_storage(&opts, &s->storage, &fit, why);
    if (rc < 0)
        return rc;
    unclaim_from(s, fit);
    TIERCE_DASSERT(fit > 0 && fit == session->count);
    for (size_t i = 0; i < fit; i++)
        session->bytes += bytes[i];
    TIERCE_DASSERT(s->storage->type >= 0 && s->storage->type <= UINT8_MAX);
    session->storage = s->storage->number;
    session->type = (uint8_t)s->storage->type;
    return 0;
}

static void count_places(struct starting *s, size_t *count_by_key, size_t *all)
{
    const struct tierce__instance *instance = &s->live->instance;
    *all = 0;
    for (size_t i = 0; i < s->session->count; i++) {
        count_by_key[i] = 0;
        for (size_t spec = 0; spec < instance->spec_count; spec++)
            count_by_key[i] += has_spec(s, s->positions[i], spec);
        *all += count_by_key[i];
    }
    TIERCE_DASSERT(*all <= s->session->count * instance->spec_count);
}

/* Allocates spec by spec, so that consecutive keys are adjacent in a file. */
static int take_spec(struct starting *s, uint16_t spec, struct tierce__spec_place *taken,
                     size_t *taken_count)
{
    TIERCE_DASSERT(s->note_count > 0 && s->note_count <= s->notes_max);
    const struct tierce__instance *instance = &s->live->instance;
    TIERCE_DASSERT(spec < instance->spec_count);
    size_t wanted = 0;
    for (size_t i = 0; i < s->session->count; i++)
        wanted += has_spec(s, s->positions[i], spec);
    TIERCE_DASSERT(wanted <= s->session->count);
    *taken_count = wanted;
    if (wanted == 0)
        return 0;
    return tierce__places_take(
        s->live->places,
        &(struct tierce__place_opts){.storage = s->storage,
                                     .spec = spec,
                                     .bytes = (uint64_t)instance->specs[spec].size,
                                     .count = wanted,
                                     .now_us = tierce__locator_now_us(s->live->locator)},
        taken, &(struct tierce__place_notes){s->notes, &s->note_count, s->notes_max, s->arena});
}

/* Assigns the places, which are ordered by spec, to the keys. */
static int deal_places(struct starting *s, const size_t *count_by_key, const size_t *first_by_spec)
{
    const struct tierce__instance *instance = &s->live->instance;
    size_t *next = tierce__arena_alloc(s->arena, (instance->spec_count + 1) * sizeof(*next));
    if (next == NULL)
        return -ENOMEM;
    memcpy(next, first_by_spec, instance->spec_count * sizeof(*next));
    for (size_t i = 0; i < s->session->count; i++) {
        struct tierce__session_key *key = &s->session->keys[i];
        struct tierce__spec_place *places =
            tierce__arena_alloc(&s->session->arena, (count_by_key[i] + 1) * sizeof(*places));
        if (places == NULL)
            return -ENOMEM;
        for (size_t spec = 0; spec < instance->spec_count; spec++) {
            if (has_spec(s, s->positions[i], spec))
                places[key->place_count++] = s->places[next[spec]++];
        }
        TIERCE_DASSERT(key->place_count == count_by_key[i]);
        key->places = places;
        tierce__locator_name(s->live->locator, key->location_id, sizeof(key->location_id));
    }
    return 0;
}

static int take_places(struct starting *s, size_t *all_taken, char why[TIERCE__WHY_BYTES])
{
    const struct tierce__instance *instance = &s->live->instance;
    TIERCE_DASSERT(instance->spec_count <= UINT16_MAX);
    size_t all;
    size_t *by_key = tierce__arena_alloc(s->arena, s->session->count * sizeof(*by_key));
    size_t *by_spec = tierce__arena_alloc(s->arena, (instance->spec_count + 1) * sizeof(*by_spec));
    if (by_key == NULL || by_spec == NULL)
        return -ENOMEM;
    count_places(s, by_key, &all);
    s->places = tierce__arena_alloc(s->arena, (all + 1) * sizeof(*s->places));
    s->notes_max =
        1 + instance->spec_count * tierce__places_notes_max(0) + tierce__places_notes_max(all);
    s->notes = tierce__arena_alloc(s->arena, s->notes_max * sizeof(*s->notes));
    s->note_count = 1;
    TIERCE_DASSERT(*all_taken == 0);
    if (s->places == NULL || s->notes == NULL)
        return -ENOMEM;
    for (size_t spec = 0; spec < instance->spec_count; spec++) {
        size_t taken;
        by_spec[spec] = *all_taken;
        int rc = take_spec(s, (uint16_t)spec, s->places + *all_taken, &taken);
        if (rc < 0)
            return fail_by_index(s, s->session->count, rc, why);
        *all_taken += taken;
        TIERCE_DASSERT(*all_taken <= all && s->note_count <= s->notes_max);
    }
    TIERCE_DASSERT(*all_taken == all);
    return deal_places(s, by_key, by_spec);
}

/* ---- the session ----------------------------------------------------------------------------- */

/* String keys outlive the request. */
static int keep_texts(struct starting *s)
{
    for (size_t i = 0; i < s->session->count; i++) {
        struct tierce__session_key *key = &s->session->keys[i];
        if (key->text == NULL)
            continue;
        const char *text = tierce__arena_copy(&s->session->arena, key->text, strlen(key->text));
        if (text == NULL)
            return -ENOMEM;
        tierce__lock_take(&s->live->lock); /* read by a removal */
        key->text = text;
        tierce__lock_drop(&s->live->lock);
    }
    return 0;
}

static int make_durable(struct starting *s)
{
    TIERCE_DASSERT(s->session->note != 0 && s->session->count > 0);
    TIERCE_DASSERT(s->note_count > 0 && s->note_count <= s->notes_max);
    struct tierce__meta_note *note = &s->notes[0];
    *note = (struct tierce__meta_note){.kind = TIERCE__NOTE_SESSION, .number = s->session->note};
    int rc = tierce__session_write(s->session, s->arena, &note->value, &note->bytes);
    if (rc == 0 && s->session->ttl_us > 0)
        rc = tierce__live_note_expiry(s->live);
    return rc < 0 ? rc : tierce__meta_index_write_notes(s->live->index, s->notes, s->note_count);
}

/* Publishes the session; no call can end it yet. */
static int begin_session(struct starting *s)
{
    TIERCE_ASSERT(!s->session->is_busy && !s->session->is_doubtful);
    TIERCE_ASSERT(s->session->deadline.place == 0);
    s->session->is_busy = true;
    tierce__lock_take(&s->live->lock);
    int rc = tierce__live_put_session(s->live, s->session);
    for (size_t i = 0; rc == 0 && i < s->session->count; i++)
        s->session->keys[i].claim.session = s->session;
    tierce__lock_drop(&s->live->lock);
    return rc;
}

/* Returns whether the session's batch with an unknown outcome was written: 1, 0, or the store's
 * error. */
static int was_written(struct starting *s)
{
    TIERCE_ASSERT(s->session->is_busy && s->session->note != 0);
    const void *value;
    size_t bytes;
    struct tierce__meta_space *space = s->live->space;
    int rc =
        space->ops->note(space, TIERCE__NOTE_SESSION, s->session->note, s->arena, &value, &bytes);
    return rc == -ENOENT ? 0 : rc < 0 ? rc : 1;
}

/* Makes the session durable and open. If the outcome is unknown, the session stays until it times
 * out, which cleans up in both cases; until then no other session uses its files, whose notes may
 * be missing. */
static int open_session(struct starting *s, size_t places_taken, char why[TIERCE__WHY_BYTES])
{
    size_t keys = s->session->count;
    int rc = keys > 0 ? make_durable(s) : 0;
    int known = tierce__meta_may_be_written(rc) ? was_written(s) : 0;
    rc = known > 0 ? 0 : rc;
    bool stays = rc == 0 || known < 0;
    if (rc == 0)
        tierce__places_taken(s->live->places, s->places, places_taken);
    tierce__lock_take(&s->live->lock);
    TIERCE_ASSERT(s->session->is_busy && !s->session->is_doubtful);
    s->session->is_unsure = known < 0;
    if (stays)
        s->session->is_busy = false;
    else
        tierce__live_drop_session(s->live, s->session);
    tierce__lock_drop(&s->live->lock);
    if (stays)
        s->session = NULL; /* another call may end it at any time */
    return fail_by_index(s, keys, rc, why);
}

/* Releases the bytes, claims and places of a session that does not begin. */
static void undo(struct starting *s, size_t places_taken)
{
    if (s->session == NULL)
        return;
    TIERCE_DASSERT(places_taken == 0 || s->storage != NULL);
    TIERCE_ASSERT(s->session->deadline.place == 0 && !s->session->is_doubtful);
    if (s->storage != NULL) {
        struct tierce__quota_at at =
            tierce__live_quota_at(s->live, s->session->type, s->session->storage);
        tierce__places_untake(s->live->places, s->storage, s->places, places_taken);
        tierce__quota_move(s->live->locator->quota, &at, TIERCE__QUOTA_WRITING,
                           TIERCE__QUOTA_STATES, s->session->bytes);
    }
    unclaim_from(s, 0);
    tierce__session_destroy(s->session);
}

/* ---- the answer ------------------------------------------------------------------------------ */

static int show_key(struct starting *s, const struct tierce__session_key *key,
                    struct tierce__place_uris *uris, struct tierce__found *out)
{
    const struct tierce__instance *instance = &s->live->instance;
    struct tierce__found_spec *specs =
        tierce__arena_alloc(s->arena, (key->place_count + 1) * sizeof(*specs));
    if (specs == NULL)
        return -ENOMEM;
    for (size_t p = 0; p < key->place_count; p++) {
        TIERCE_DASSERT(key->places[p].spec < instance->spec_count);
        specs[p].name = instance->specs[key->places[p].spec].name;
        specs[p].uri = tierce__place_uris_make(uris, &key->places[p]);
        if (specs[p].uri == NULL)
            return -ENOMEM;
    }
    *out = (struct tierce__found){.type = (uint8_t)s->storage->type,
                                  .spec_count_all = key->place_count,
                                  .specs = specs,
                                  .spec_count = key->place_count};
    return 0;
}

static int show_session(struct starting *s, struct tierce__started *out)
{
    struct tierce__write_session *session = s->session;
    struct tierce__place_uris uris;
    out->locations = tierce__arena_calloc(s->arena, session->count + 1, sizeof(*out->locations));
    if (out->locations == NULL)
        return -ENOMEM;
    int rc = tierce__place_uris_begin(&uris, s->storage, &s->live->instance, s->arena);
    for (size_t i = 0; rc == 0 && i < session->count; i++)
        rc = show_key(s, &session->keys[i], &uris, &out->locations[i]);
    if (rc < 0)
        return rc;
    uint64_t *bytes = tierce__arena_alloc(s->arena, (s->request->count + 1) * sizeof(*bytes));
    if (bytes == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < s->request->count; i++)
        bytes[i] = key_bytes(s, i);
    out->bytes = bytes;
    out->block_size = s->live->instance.block_size;
    out->count = session->count;
    memcpy(out->session, session->id, sizeof(out->session));
    size_t leading = 0, all = 0;
    while (leading < s->request->count && s->taken[leading] != 0)
        leading++;
    for (size_t i = 0; i < s->request->count; i++)
        all += s->taken[i];
    TIERCE_DASSERT(leading <= all);
    TIERCE_DASSERT(all + session->count == s->request->count); /* each key is in one of the two */
    if (all == leading)
        out->mask = (struct tierce__mask){.offset = (int64_t)leading};
    else
        out->mask = (struct tierce__mask){
            .is_values = true, .values = s->taken, .count = s->request->count};
    return 0;
}

/* ---- start ----------------------------------------------------------------------------------- */

static int start(struct starting *s, struct tierce__started *out, size_t *places_taken,
                 char why[TIERCE__WHY_BYTES])
{
    enum { EMPTY_TIMEOUT_S = 10 };
    int64_t now_us = tierce__locator_now_us(s->live->locator);
    int rc = find_spec_groups(s, why);
    int span = tierce__span_open("locator:claim");
    if (rc == 0)
        rc = claim_keys(s, why);
    if (rc == 0)
        rc = drop_what_is_there(s, why);
    if (rc == 0)
        rc = shrink_session(s);
    tierce__span_close(span);
    if (rc < 0)
        return rc;
    /* A session without keys is returned as well, because clients finish it. It needs no note. */
    bool empty = s->session->count == 0;
    int64_t timeout_s = empty ? EMPTY_TIMEOUT_S : s->request->timeout_s;
    if (timeout_s > TIERCE__WRITE_TIMEOUT_S_MAX)
        timeout_s = TIERCE__WRITE_TIMEOUT_S_MAX;
    TIERCE_DASSERT(timeout_s >= 0 && timeout_s <= TIERCE__WRITE_TIMEOUT_S_MAX);
    s->session->due_us = now_us + timeout_s * 1000000;
    s->session->ttl_us = s->request->ttl_s * 1000000;
    span = tierce__span_open("locator:place");
    if (!empty) {
        rc = reserve_room(s, why);
        if (rc == 0)
            rc = take_places(s, places_taken, why);
        if (rc == 0)
            rc = keep_texts(s);
    }
    if (rc == 0)
        rc = show_session(s, out);
    tierce__span_close(span);
    if (rc == 0)
        rc = begin_session(s);
    return rc < 0 ? rc : open_session(s, *places_taken, why);
}

int tierce__locator_start_write(struct tierce__locator *locator,
                                const struct tierce__write_request *request,
                                struct tierce__arena *arena, struct tierce__started *out,
                                char why[TIERCE__WHY_BYTES])
{
    struct starting s = {.request = request, .arena = arena};
    struct tierce__started started = {0};
    size_t places_taken = 0;
    why[0] = '\0';
    int rc = tierce__live_acquire(&s.live, locator, request->instance_id, why);
    if (rc < 0)
        return rc;
    int span = tierce__span_open("locator:start_write");
    s.catalog = tierce__registry_acquire(locator->opts.registry);
    s.group = tierce__catalog_group(s.catalog, s.live->instance.group_name);
    rc = s.group == NULL ? tierce__why(why, -ENOENT, "instance group %.64s was removed",
                                       s.live->instance.group_name)
                         : check_request(request, why);
    if (rc == 0)
        rc = tierce__live_check_parts(s.live, request->count, why);
    if (rc == 0)
        rc = start(&s, &started, &places_taken, why);
    if (rc == 0) {
        *out = started;
        TIERCE_DASSERT(out->count <= request->count);
    } else {
        undo(&s, places_taken);
        if (why[0] == '\0')
            rc = tierce__why(why, rc, "the write cannot be begun: %s", tierce_strerror(rc));
    }
    tierce__span_close(span);
    tierce__registry_release(locator->opts.registry, s.catalog);
    tierce__live_release(s.live);
    return rc;
}
