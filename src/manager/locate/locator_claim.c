/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "proto/kvcm/rpcs.h"
#include "manager/locate/locator_write_private.h"

#include <errno.h>
#include <string.h>

/* The first step of a write: claims of the keys that are neither stored nor being written. */

/* Limits of an instance's sessions and their keys, which quotas of bytes do not bound. */
#define WRITING_MAX ((size_t)1 << 20)

/* ---- specs ----------------------------------------------------------------------------------- */

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
static int find_specs(struct tierce__starting *s, uint32_t group)
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

static int find_spec_groups(struct tierce__starting *s, char why[TIERCE__WHY_BYTES])
{
    const struct tierce__instance *instance = &s->live->instance;
    const char *const *names = s->request->spec_groups;
    s->spec_group = tierce__arena_alloc(s->arena, s->request->count * sizeof(*s->spec_group));
    s->specs = tierce__arena_calloc(s->arena, instance->spec_group_count + 1, sizeof(*s->specs));
    s->wanted = tierce__arena_alloc(s->arena, s->request->count * sizeof(*s->wanted));
    s->claimed = tierce__arena_alloc(s->arena, (instance->spec_count + 1) * sizeof(*s->claimed));
    s->has_room = tierce__arena_calloc(s->arena, s->request->count, sizeof(*s->has_room));
    if (s->spec_group == NULL || s->specs == NULL || s->wanted == NULL || s->claimed == NULL ||
        s->has_room == NULL)
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

/* ---- claiming -------------------------------------------------------------------------------- */

/* Returns the specs of a key that no other session writes. NULL: there are none, or this session
 * has the key already. `fails` is set if memory ran out. SESSIONS held. */
static const bool *find_unclaimed(struct tierce__starting *s, size_t position, bool *fails)
{
    size_t specs = s->live->instance.spec_count, all = 0, left = 0;
    const bool *wanted = s->wanted[position];
    struct tierce__spec_claim *claim = tierce__live_claim(s->live, s->request->keys[position]);
    if (claim == NULL)
        return wanted;
    memset(s->claimed, 0, specs * sizeof(*s->claimed));
    for (; claim != NULL; claim = tierce__live_claim_next(s->live, claim)) {
        if (claim->session == s->session)
            return NULL;
        tierce__live_add_specs(s->live, claim, s->claimed);
    }
    for (size_t i = 0; i < specs; i++) {
        all += wanted[i];
        left += wanted[i] && !s->claimed[i];
    }
    TIERCE_DASSERT(left <= all && all <= specs);
    if (left == 0 || left == all)
        return left == 0 ? NULL : wanted;
    bool *rest = tierce__arena_alloc(s->arena, specs * sizeof(*rest));
    *fails = rest == NULL;
    for (size_t i = 0; rest != NULL && i < specs; i++)
        rest[i] = wanted[i] && !s->claimed[i];
    return rest;
}

/* SESSIONS held. */
static void claim_key(struct tierce__starting *s, size_t position, const bool *specs)
{
    const struct tierce__write_request *request = s->request;
    struct tierce__session_key *key = &s->session->keys[s->session->count];
    bool follows = position > 0 && request->key_texts == NULL; /* entries by name follow nothing */
    TIERCE_DASSERT(s->session->count <= position);
    *key = (struct tierce__session_key){
        .claim = {.key = request->keys[position], .session = s->session, .making = specs},
        .has_parent = follows,
        .parent = follows ? request->keys[position - 1] : 0,
        .text = request->key_texts != NULL ? request->key_texts[position] : NULL,
    };
    s->wanted[position] = specs;
    s->positions[s->session->count++] = position;
    tierce__live_put_claim(s->live, &key->claim);
}

/* A client that does not know of the last invalidation may have computed its blocks before it.
 * SESSIONS held: later invalidations mark the claims. */
static int check_generation(struct tierce__starting *s, char why[TIERCE__WHY_BYTES])
{
    tierce__lock_assert_held(&s->live->lock);
    uint64_t now = tierce__live_generation(s->live), known = s->request->generation;
    s->session->generation = now;
    if (known == 0 || known == now + 1)
        return 0;
    return tierce__why(why, -ESTALE,
                       "the blocks of instance %.64s were invalidated: the request's generation is "
                       "%llu, and the instance's is %llu",
                       s->live->instance.id, (unsigned long long)known,
                       (unsigned long long)now + 1);
}

/* Claims the specs of every key that no other session is writing. The index is checked afterwards,
 * so that a session that ends in between is seen in one of the two. */
static int claim_keys(struct tierce__starting *s, char why[TIERCE__WHY_BYTES])
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
    int rc = check_generation(s, why);
    if (rc < 0) {
        tierce__lock_drop(&s->live->lock);
        return rc;
    }
    size_t writing = s->live->claims.count + s->live->sessions.count;
    if (writing + request->count >= WRITING_MAX) {
        tierce__lock_drop(&s->live->lock);
        tierce__live_count_rejected(s->live, TIERCE__REJECTED_BY_SESSIONS, request->count);
        return tierce__why(why, TIERCE_E_FULL,
                           "instance %.64s is already writing %zu keys, once for each writer; the "
                           "limit is %zu at a time",
                           s->live->instance.id, writing, WRITING_MAX);
    }
    bool fails = false;
    for (size_t i = 0; i < request->count && !fails; i++) {
        const bool *specs = find_unclaimed(s, i, &fails);
        if (specs != NULL)
            claim_key(s, i, specs);
        else
            s->taken[i] = 1;
    }
    TIERCE_DASSERT(s->live->claims.count >= session->count);
    tierce__lock_drop(&s->live->lock);
    return fails ? -ENOMEM : 0;
}

/* Moves a claimed key to another index of the session's array. SESSIONS held. */
static void move_key(struct tierce__starting *s, size_t to, size_t from)
{
    struct tierce__write_session *session = s->session;
    tierce__lock_assert_held(&s->live->lock);
    TIERCE_DASSERT(to < from && from < session->count);
    TIERCE_DASSERT(!session->is_busy);
    TIERCE_DASSERT(to == 0 || s->positions[to - 1] < s->positions[from]);
    tierce__live_drop_claim(s->live, &session->keys[from].claim);
    session->keys[to] = session->keys[from];
    tierce__live_put_claim(s->live, &session->keys[to].claim);
    s->positions[to] = s->positions[from];
}

void tierce__starting_unclaim(struct tierce__starting *s, const bool *drop)
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
            s->session->keys[kept].claim.making = s->wanted[s->positions[kept]];
            kept++;
        }
    }
    TIERCE_DASSERT(kept <= s->session->count);
    s->session->count = kept;
    tierce__lock_drop(&s->live->lock);
}

void tierce__starting_unclaim_from(struct tierce__starting *s, size_t first)
{
    tierce__lock_take(&s->live->lock);
    TIERCE_DASSERT(first <= s->session->count && s->session->count <= s->request->count);
    for (size_t i = first; i < s->session->count; i++) {
        tierce__live_drop_claim(s->live, &s->session->keys[i].claim);
        s->taken[s->positions[i]] = 1;
    }
    s->session->count = first;
    tierce__lock_drop(&s->live->lock);
}

static bool is_over(void *arg, size_t i, int64_t key, const struct tierce__record *record)
{
    (void)i, (void)key;
    return tierce__record_is_over(arg, record);
}

/* Removes expired and invalidated blocks before they are written again, so that no old part
 * remains. */
static int drop_over(struct tierce__starting *s, struct tierce__chooser *chooser,
                     const int64_t *keys, const struct tierce__record *records, const bool *found)
{
    size_t count = 0;
    struct tierce__removed removed = {0};
    int64_t *over = tierce__arena_alloc(s->arena, (s->session->count + 1) * sizeof(*over));
    if (over == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < s->session->count; i++) {
        if (found[i] && is_over(chooser, i, keys[i], &records[i]))
            over[count++] = keys[i];
    }
    TIERCE_DASSERT(count <= s->session->count);
    int32_t delay_ms = s->group->delay_before_delete_ms;
    struct tierce__removal how = {.due_us = chooser->now_us +
                                            (int64_t)(delay_ms > 0 ? delay_ms : 0) * 1000,
                                  .wanted = is_over,
                                  .wanted_arg = chooser};
    return count > 0 ? tierce__live_remove(s->live, over, count, &how, &removed) : 0;
}

int tierce__starting_fail(struct tierce__starting *s, size_t keys, int rc,
                          char why[TIERCE__WHY_BYTES])
{
    TIERCE_DASSERT(keys <= s->request->count);
    if (rc >= 0 || rc == -ENOMEM)
        return rc;
    if (s->may_take == NULL)
        tierce__live_count_rejected(s->live, TIERCE__REJECTED_BY_INDEX, keys);
    return tierce__why(why, rc, "the index of instance %.64s rejects writes: %s",
                       s->live->instance.id, tierce_strerror(rc));
}

/* Determines the specs of a block that must be written: those without an available location, while
 * its record takes another one. Returns 1 if there are any, else 0. */
static int find_missing(struct tierce__starting *s, struct tierce__chooser *chooser,
                        size_t position, const struct tierce__record *record)
{
    TIERCE_DASSERT(position < s->request->count);
    size_t specs = s->live->instance.spec_count, wanted = 0, missing = 0;
    if (record->location_count == UINT16_MAX)
        return 0;
    bool *lacks = tierce__arena_calloc(s->arena, specs + 1, sizeof(*lacks));
    if (lacks == NULL)
        return -ENOMEM;
    for (size_t spec = 0; spec < specs; spec++) {
        bool wants = tierce__starting_has_spec(s, position, spec);
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
static int drop_what_is_there(struct tierce__starting *s, char why[TIERCE__WHY_BYTES])
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
        rc = drop_over(s, &chooser, keys, records, found);
    if (rc < 0)
        return tierce__starting_fail(s, count, rc, why);
    for (size_t i = 0; i < count; i++) {
        const char *text = s->session->keys[i].text;
        found[i] = found[i] && !is_over(&chooser, i, keys[i], &records[i]);
        bool other = text != NULL && found[i] &&
                     (records[i].key_text == NULL || strcmp(records[i].key_text, text) != 0);
        s->has_room[s->positions[i]] = found[i];
        rc = found[i] && !other ? find_missing(s, &chooser, s->positions[i], &records[i]) : 0;
        if (rc < 0)
            return rc;
        found[i] = found[i] && rc == 0;
    }
    tierce__starting_unclaim(s, found);
    return 0;
}

/* The client sets the session's duration. If the session has only few of the requested keys, its
 * memory is reduced accordingly. */
static int shrink_session(struct tierce__starting *s)
{
    struct tierce__write_session *large = s->session;
    size_t count = large->count;
    if (count > s->request->count / 2)
        return 0;
    TIERCE_DASSERT(large->bytes == 0 && !large->is_busy);
    struct tierce__write_session *small = tierce__session_create(s->live->locator, count + 1);
    if (small == NULL)
        return -ENOMEM;
    tierce__lock_take(&s->live->lock);
    TIERCE_DASSERT(count <= small->count);
    for (size_t i = 0; i < count; i++) {
        tierce__live_drop_claim(s->live, &large->keys[i].claim);
        small->keys[i] = large->keys[i];
        small->keys[i].claim.session = small;
        tierce__live_put_claim(s->live, &small->keys[i].claim);
    }
    small->count = count;
    small->generation = large->generation;
    tierce__lock_drop(&s->live->lock);
    s->session = small;
    tierce__session_destroy(large);
    return 0;
}

int tierce__starting_claim(struct tierce__starting *s, char why[TIERCE__WHY_BYTES])
{
    int rc = find_spec_groups(s, why);
    if (rc == 0)
        rc = claim_keys(s, why);
    if (rc == 0)
        rc = drop_what_is_there(s, why);
    return rc < 0 ? rc : shrink_session(s);
}

/* ---- room in the index ----------------------------------------------------------------------- */

/* Whether another session that has room in the index writes the claim's key. One that is still
 * being made may yet be refused: both count the key as new. SESSIONS held. */
static bool is_counted(const struct tierce__live *live, const struct tierce__spec_claim *own)
{
    const struct tierce__spec_claim *claim = tierce__live_claim(live, own->key);
    TIERCE_DASSERT(claim != NULL);
    for (; claim != NULL; claim = tierce__live_claim_next(live, claim)) {
        if (claim != own && claim->making == NULL)
            return true;
    }
    return false;
}

/* Returns the number of keys that are indexed or that other sessions write. Own keys among these
 * are marked as having room. */
static uint64_t count_others(struct tierce__starting *s)
{
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(s->live->index, &stats);
    tierce__lock_take(&s->live->lock);
    TIERCE_DASSERT(s->live->claimed_keys >= s->session->count);
    /* A key that is copied is indexed, or has left the index just now. */
    size_t claimed = s->live->claimed_keys, moving = s->live->moving_keys;
    uint64_t keys = stats.keys + (claimed > moving ? claimed - moving : 0);
    for (size_t i = 0; i < s->session->count; i++) {
        if (is_counted(s->live, &s->session->keys[i].claim))
            s->has_room[s->positions[i]] = 1;
        else
            keys -= keys > 0; /* two copies of one key are two of `moving` */
    }
    tierce__lock_drop(&s->live->lock);
    return keys;
}

int tierce__starting_count_room(struct tierce__starting *s, size_t *fit,
                                char why[TIERCE__WHY_BYTES])
{
    *fit = s->session->count;
    if (s->group->max_key_count <= 0)
        return 0;
    uint64_t keys = count_others(s);
    uint64_t most = (uint64_t)s->group->max_key_count, room = keys < most ? most - keys : 0;
    for (size_t i = 0; i < s->session->count; i++) {
        bool is_new = s->has_room[s->positions[i]] == 0;
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
            why, TIERCE_E_FULL,
            "instance %.64s holds %llu blocks; the limit of %llu " TIERCE__RPC_NO_ROOM,
            s->live->instance.id, (unsigned long long)keys, (unsigned long long)most);
    return 0;
}
