/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "core/chunk/coded.h"
#include "manager/locate/locator_write_private.h"
#include "manager/api/spans.h"

#include <errno.h>
#include <string.h>

/*
 * Writing in two steps.
 *
 * Start: claim the specs of keys that are neither stored nor being written; choose a storage,
 * reserve bytes, allocate places; make all of it durable with one note; return the places to the
 * client. Finish: one batch adds the written blocks to the index, deletes the note, and hands
 * unwritten blocks to the deleter. A session that times out is finished with nothing written.
 */

/* ---- checks of requests ---------------------------------------------------------------------- */

static int check_sizes(const struct tierce__write_request *request,
                       const struct tierce__instance *instance, char why[TIERCE__WHY_BYTES])
{
    int64_t most = 0;
    for (size_t spec = 0; spec < instance->spec_count; spec++)
        most = instance->specs[spec].size > most ? instance->specs[spec].size : most;
    most += TIERCE__CODED_GROWTH_MAX;
    for (size_t i = 0; request->sizes != NULL && i < request->count; i++) {
        if (request->sizes[i] < 0 || request->sizes[i] > most)
            return tierce__why(why, TIERCE_E_ARGUMENT,
                               "a number of block_sizes is %lld; accepted are 1 to %lld, and 0 for "
                               "the size of the location spec",
                               (long long)request->sizes[i], (long long)most);
    }
    return 0;
}

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

/* ---- places ---------------------------------------------------------------------------------- */

/* The bytes of a copy are those of its source. */
static uint64_t spec_bytes(const struct tierce__starting *s, size_t position, size_t spec)
{
    uint64_t bytes = 0;
    const struct tierce__location *source = s->sources != NULL ? s->sources[position] : NULL;
    for (size_t p = 0; source != NULL && p < source->place_count; p++) {
        if (source->places[p].spec == spec)
            bytes = source->places[p].bytes;
    }
    if (s->request->sizes != NULL)
        bytes = (uint64_t)s->request->sizes[position];
    return bytes > 0 ? bytes : (uint64_t)s->live->instance.specs[spec].size;
}

/* Slots of a file have the size of the spec: blocks of other sizes have files of their own. */
static bool has_spec_size(const struct tierce__starting *s, size_t position, size_t spec)
{
    return spec_bytes(s, position, spec) == (uint64_t)s->live->instance.specs[spec].size;
}

static uint64_t key_bytes(const struct tierce__starting *s, size_t position)
{
    const struct tierce__instance *instance = &s->live->instance;
    uint64_t bytes = 0;
    for (size_t spec = 0; spec < instance->spec_count; spec++) {
        if (tierce__starting_has_spec(s, position, spec))
            bytes += spec_bytes(s, position, spec);
    }
    return bytes;
}

/* Chooses a storage and reserves room for the leading keys that the quotas allow; the others are
 * not written. */
static int reserve_room(struct tierce__starting *s, char why[TIERCE__WHY_BYTES])
{
    struct tierce__write_session *session = s->session;
    TIERCE_DASSERT(session->count > 0 && session->bytes == 0);
    size_t fit;
    int rc = tierce__starting_count_room(s, &fit, why);
    if (rc < 0)
        return rc;
    tierce__starting_unclaim_from(s, fit);
    uint64_t *bytes = tierce__arena_alloc(s->arena, session->count * sizeof(*bytes));
    if (bytes == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < session->count; i++)
        bytes[i] = key_bytes(s, s->positions[i]);
    struct tierce__storage_choice_opts opts = {.live = s->live,
                                               .catalog = s->catalog,
                                               .group = s->group,
                                               .bytes = bytes,
                                               .count = session->count,
                                               .host_id = s->request->host_id,
                                               .may_take = s->may_take,
                                               .may_take_arg = s->may_take_arg};
    rc = tierce__choose_storage(&opts, &s->storage, &fit, why);
    if (rc < 0)
        return rc;
    tierce__starting_unclaim_from(s, fit);
    TIERCE_DASSERT(fit > 0 && fit == session->count);
    for (size_t i = 0; i < fit; i++)
        session->bytes += bytes[i];
    TIERCE_DASSERT(s->storage->type >= 0 && s->storage->type <= UINT8_MAX);
    session->storage = s->storage->number;
    session->type = (uint8_t)s->storage->type;
    return 0;
}

static void count_places(struct tierce__starting *s, size_t *count_by_key, size_t *all)
{
    const struct tierce__instance *instance = &s->live->instance;
    *all = 0;
    for (size_t i = 0; i < s->session->count; i++) {
        count_by_key[i] = 0;
        for (size_t spec = 0; spec < instance->spec_count; spec++)
            count_by_key[i] += tierce__starting_has_spec(s, s->positions[i], spec);
        *all += count_by_key[i];
    }
    TIERCE_DASSERT(*all <= s->session->count * instance->spec_count);
}

/* `bytes` 0: each in a file of its own. */
static int take(struct tierce__starting *s, uint16_t spec, uint64_t bytes, size_t count)
{
    TIERCE_DASSERT(s->note_count > 0 && s->note_count <= s->notes_max);
    if (count == 0)
        return 0;
    int rc = tierce__places_take(
        s->live->places,
        &(struct tierce__place_opts){.storage = s->storage,
                                     .spec = spec,
                                     .bytes = bytes,
                                     .count = count,
                                     .now_us = tierce__locator_now_us(s->live->locator)},
        s->places + s->places_taken,
        &(struct tierce__place_notes){s->notes, &s->note_count, s->notes_max, s->arena});
    s->places_taken += rc == 0 ? count : 0;
    return rc;
}

/* The places of a spec: those of its size, and then those of other sizes. */
struct spec_places {
    size_t next, next_other; /* to be assigned to a key */
};

/* Allocates spec by spec, so that consecutive keys are adjacent in a file. */
static int take_spec(struct tierce__starting *s, uint16_t spec, struct spec_places *out)
{
    const struct tierce__instance *instance = &s->live->instance;
    TIERCE_DASSERT(spec < instance->spec_count);
    size_t alike = 0, others = 0;
    for (size_t i = 0; i < s->session->count; i++) {
        if (!tierce__starting_has_spec(s, s->positions[i], spec))
            continue;
        bool is_alike = has_spec_size(s, s->positions[i], spec);
        alike += is_alike;
        others += !is_alike;
    }
    TIERCE_DASSERT(alike + others <= s->session->count);
    out->next = s->places_taken;
    int rc = take(s, spec, (uint64_t)instance->specs[spec].size, alike);
    out->next_other = s->places_taken;
    return rc == 0 ? take(s, spec, 0, others) : rc;
}

static struct tierce__spec_place deal_place(const struct tierce__starting *s, size_t position,
                                            size_t spec, struct spec_places *from)
{
    if (has_spec_size(s, position, spec))
        return s->places[from->next++];
    struct tierce__spec_place place = s->places[from->next_other++];
    place.bytes = spec_bytes(s, position, spec);
    return place;
}

/* Assigns the places, which are ordered by spec, to the keys. */
static int deal_places(struct tierce__starting *s, const size_t *count_by_key,
                       struct spec_places *by_spec)
{
    const struct tierce__instance *instance = &s->live->instance;
    for (size_t i = 0; i < s->session->count; i++) {
        struct tierce__session_key *key = &s->session->keys[i];
        struct tierce__spec_place *places =
            tierce__arena_alloc(&s->session->arena, (count_by_key[i] + 1) * sizeof(*places));
        if (places == NULL)
            return -ENOMEM;
        for (size_t spec = 0; spec < instance->spec_count; spec++) {
            if (tierce__starting_has_spec(s, s->positions[i], spec))
                places[key->place_count++] = deal_place(s, s->positions[i], spec, &by_spec[spec]);
        }
        TIERCE_DASSERT(key->place_count == count_by_key[i]);
        key->places = places;
        tierce__locator_name(s->live->locator, key->location_id, sizeof(key->location_id));
    }
    return 0;
}

static int take_places(struct tierce__starting *s, char why[TIERCE__WHY_BYTES])
{
    const struct tierce__instance *instance = &s->live->instance;
    TIERCE_DASSERT(instance->spec_count <= UINT16_MAX);
    size_t all;
    size_t *by_key = tierce__arena_alloc(s->arena, s->session->count * sizeof(*by_key));
    struct spec_places *by_spec =
        tierce__arena_alloc(s->arena, (instance->spec_count + 1) * sizeof(*by_spec));
    if (by_key == NULL || by_spec == NULL)
        return -ENOMEM;
    count_places(s, by_key, &all);
    s->places = tierce__arena_alloc(s->arena, (all + 1) * sizeof(*s->places));
    s->notes_max =
        1 + instance->spec_count * tierce__places_notes_max(0) + tierce__places_notes_max(all);
    s->notes = tierce__arena_alloc(s->arena, s->notes_max * sizeof(*s->notes));
    s->note_count = 1;
    TIERCE_DASSERT(s->places_taken == 0);
    if (s->places == NULL || s->notes == NULL)
        return -ENOMEM;
    for (size_t spec = 0; spec < instance->spec_count; spec++) {
        int rc = take_spec(s, (uint16_t)spec, &by_spec[spec]);
        if (rc < 0)
            return tierce__starting_fail(s, s->session->count, rc, why);
        TIERCE_DASSERT(s->places_taken <= all && s->note_count <= s->notes_max);
    }
    TIERCE_DASSERT(s->places_taken == all);
    return deal_places(s, by_key, by_spec);
}

/* ---- the session ----------------------------------------------------------------------------- */

/* String keys outlive the request. */
static int keep_texts(struct tierce__starting *s)
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

static int make_durable(struct tierce__starting *s)
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
static int begin_session(struct tierce__starting *s)
{
    TIERCE_ASSERT(!s->session->is_busy && !s->session->is_doubtful);
    TIERCE_ASSERT(s->session->deadline.place == 0);
    s->session->is_busy = true;
    tierce__lock_take(&s->live->lock);
    int rc = tierce__live_put_session(s->live, s->session);
    for (size_t i = 0; rc == 0 && i < s->session->count; i++)
        s->session->keys[i].claim.making = NULL;
    tierce__lock_drop(&s->live->lock);
    return rc;
}

/* Returns whether the session's batch with an unknown outcome was written: 1, 0, or the store's
 * error. */
static int was_written(struct tierce__starting *s)
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
static int open_session(struct tierce__starting *s, char why[TIERCE__WHY_BYTES])
{
    size_t keys = s->session->count;
    int rc = keys > 0 ? make_durable(s) : 0;
    int known = tierce__meta_may_be_written(rc) ? was_written(s) : 0;
    rc = known > 0 ? 0 : rc;
    bool stays = rc == 0 || known < 0;
    if (rc == 0)
        tierce__places_taken(s->live->places, s->places, s->places_taken);
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
    return tierce__starting_fail(s, keys, rc, why);
}

void tierce__starting_undo(struct tierce__starting *s)
{
    if (s->session == NULL)
        return;
    TIERCE_DASSERT(s->places_taken == 0 || s->storage != NULL);
    TIERCE_ASSERT(s->session->deadline.place == 0 && !s->session->is_doubtful);
    if (s->storage != NULL) {
        struct tierce__quota_at at =
            tierce__live_quota_at(s->live, s->session->type, s->session->storage);
        tierce__places_untake(s->live->places, s->storage, s->places, s->places_taken);
        tierce__quota_move(s->live->locator->quota, &at, TIERCE__QUOTA_WRITING,
                           TIERCE__QUOTA_STATES, s->session->bytes);
    }
    tierce__starting_unclaim_from(s, 0);
    tierce__session_destroy(s->session);
}

/* ---- the answer ------------------------------------------------------------------------------ */

static int show_key(struct tierce__starting *s, const struct tierce__session_key *key,
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

static int show_session(struct tierce__starting *s, struct tierce__started *out)
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
    rc = tierce__attention_note(&out->layers, &s->live->instance, s->arena);
    if (rc < 0)
        return rc;
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

int tierce__starting_open(struct tierce__starting *s, struct tierce__started *out,
                          char why[TIERCE__WHY_BYTES])
{
    enum { EMPTY_TIMEOUT_S = 10 };
    int64_t now_us = tierce__locator_now_us(s->live->locator);
    int rc = 0;
    /* A session without keys is returned as well, because clients finish it. It needs no note. */
    bool empty = s->session->count == 0;
    int64_t timeout_s = empty ? EMPTY_TIMEOUT_S : s->request->timeout_s;
    if (timeout_s > TIERCE__WRITE_TIMEOUT_S_MAX)
        timeout_s = TIERCE__WRITE_TIMEOUT_S_MAX;
    TIERCE_DASSERT(timeout_s >= 0 && timeout_s <= TIERCE__WRITE_TIMEOUT_S_MAX);
    s->session->timeout_us = timeout_s * 1000000;
    s->session->due_us = now_us + s->session->timeout_us;
    s->session->last_us = now_us + (int64_t)TIERCE__WRITE_TIMEOUT_S_MAX * 1000000;
    s->session->ttl_us = s->request->ttl_s * 1000000;
    s->session->hint = s->request->hint;
    int span = tierce__span_open("locator:place");
    if (!empty) {
        rc = reserve_room(s, why);
        if (rc == 0)
            rc = take_places(s, why);
        if (rc == 0)
            rc = keep_texts(s);
    }
    if (rc == 0)
        rc = show_session(s, out);
    tierce__span_close(span);
    if (rc == 0)
        rc = begin_session(s);
    return rc < 0 ? rc : open_session(s, why);
}

static int start(struct tierce__starting *s, struct tierce__started *out,
                 char why[TIERCE__WHY_BYTES])
{
    int span = tierce__span_open("locator:claim");
    int rc = tierce__starting_claim(s, why);
    tierce__span_close(span);
    return rc < 0 ? rc : tierce__starting_open(s, out, why);
}

int tierce__locator_start_write(struct tierce__locator *locator,
                                const struct tierce__write_request *request,
                                struct tierce__arena *arena, struct tierce__started *out,
                                char why[TIERCE__WHY_BYTES])
{
    struct tierce__starting s = {.request = request, .arena = arena};
    struct tierce__started started = {0};
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
        rc = check_sizes(request, &s.live->instance, why);
    if (rc == 0)
        rc = tierce__live_check_parts(s.live, request->count, why);
    if (rc == 0) {
        tierce__ghosts_write(locator->opts.ghost, s.live->tap, request->keys, request->count);
        rc = start(&s, &started, why);
    }
    if (rc == 0) {
        *out = started;
        TIERCE_DASSERT(out->count <= request->count);
    } else {
        tierce__starting_undo(&s);
        if (why[0] == '\0')
            rc = tierce__why(why, rc, "the write cannot be begun: %s", tierce_strerror(rc));
    }
    tierce__span_close(span);
    tierce__registry_release(locator->opts.registry, s.catalog);
    tierce__live_release(s.live);
    return rc;
}
