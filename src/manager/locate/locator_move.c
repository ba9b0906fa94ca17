/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between storages: waiting blocks become sessions, and sessions end. */
#include "base/assert.h"
#include "base/log/log.h"
#include "manager/api/spans.h"
#include "manager/locate/locator_write_private.h"

#include <errno.h>
#include <string.h>

enum { BATCH_BLOCKS = 64, BATCHES_MAX = 64 };
enum { IDLE_MS = 1000, SOON_MS = 250 };
#define REST_US  5000000 /* of a lane without a target */
#define LIMIT_US 250000  /* of one whose rate is used up */
#define DELAY_US 10000000
/* Keys that are copied at once, in each instance: a mover that takes and never ends has a limit. */
#define MOVING_MAX 65536

struct tierce__moves *tierce__locator_moves(struct tierce__locator *locator)
{
    return locator->moves;
}

static void count_moving(void *arg, struct tierce__live *live)
{
    tierce__lock_take(&live->lock);
    *(uint64_t *)arg += live->moving_keys;
    tierce__lock_drop(&live->lock);
}

uint64_t tierce__locator_moving(struct tierce__locator *locator)
{
    uint64_t moving = 0;
    tierce__locator_each(locator, count_moving, &moving);
    return moving;
}

/* ---- a batch --------------------------------------------------------------------------------- */

/* Blocks of a lane on their way to a session. */
struct batching {
    struct tierce__starting s;
    struct tierce__write_request request;
    const struct tierce__moves_popped *popped;
    struct tierce__moves *moves;
    const struct tierce__storage *from;
    size_t from_position;           /* in the group's candidates; SIZE_MAX: it is none of them */
    struct tierce__record *records; /* of the blocks, by position */
    bool *found, *good;             /* good: it can be moved, now or later */
    const struct tierce__location **sources;
    uint16_t *holders; /* storages that hold blocks of the batch */
    size_t holder_count;
    int64_t *keys;
    bool is_limited; /* a target was left out because of the rate */
};

static bool holds(const struct batching *b, uint16_t storage)
{
    for (size_t i = 0; i < b->holder_count; i++) {
        if (b->holders[i] == storage)
            return true;
    }
    return false;
}

/* A source that is no candidate any more is neither hotter nor colder than the others. */
static bool may_take(void *arg, const struct tierce__storage *storage, size_t position)
{
    struct batching *b = arg;
    bool has_order = b->from_position != SIZE_MAX;
    enum tierce__move_to to = b->popped->lane.to;
    if (storage->number == b->from->number || holds(b, storage->number))
        return false;
    if ((to == TIERCE__MOVE_TO_HOTTER && has_order && position >= b->from_position) ||
        (to == TIERCE__MOVE_TO_COLDER && has_order && position <= b->from_position) ||
        (to == TIERCE__MOVE_TO_SAME_TYPE && storage->type != b->from->type))
        return false;
    bool flows = tierce__moves_may_flow(b->moves, b->from->number, storage->number,
                                        tierce__locator_now_us(b->s.live->locator));
    b->is_limited = b->is_limited || !flows;
    return flows;
}

static const struct tierce__location *find_source(const struct tierce__record *record,
                                                  const char id[TIERCE__LOCATION_ID_BYTES],
                                                  uint16_t from)
{
    for (size_t l = 0; l < record->location_count; l++) {
        const struct tierce__location *location = &record->locations[l];
        if (location->storage == from && memcmp(location->id, id, TIERCE__LOCATION_ID_BYTES) == 0)
            return location;
    }
    return NULL;
}

static bool has_same_holders(const struct tierce__record *a, const struct tierce__record *b)
{
    bool is_same = a->location_count == b->location_count;
    for (size_t i = 0; i < a->location_count && is_same; i++) {
        is_same = false;
        for (size_t l = 0; l < b->location_count && !is_same; l++)
            is_same = b->locations[l].storage == a->locations[i].storage;
    }
    return is_same;
}

/* Reads the records. A block without this source is no longer good. */
static int read_records(struct batching *b)
{
    struct tierce__chooser chooser;
    const struct tierce__moves_popped *popped = b->popped;
    tierce__chooser_begin(&chooser, b->s.live, b->s.catalog);
    memset(b->found, 0, popped->count * sizeof(*b->found));
    int rc = tierce__meta_index_get(b->s.live->index, b->keys, popped->count, b->s.arena,
                                    b->records, b->found);
    for (size_t i = 0; rc == 0 && i < popped->count; i++) {
        bool serves = b->found[i] && !tierce__record_is_over(&chooser, &b->records[i]);
        b->sources[i] =
            serves ? find_source(&b->records[i], popped->blocks[i].location_id, popped->lane.from)
                   : NULL;
        b->good[i] = b->good[i] && b->sources[i] != NULL && b->sources[i]->place_count > 0;
    }
    return rc;
}

static int make_arrays(struct batching *b)
{
    struct tierce__starting *s = &b->s;
    size_t count = b->popped->count, specs = s->live->instance.spec_count;
    b->records = tierce__arena_calloc(s->arena, count, sizeof(*b->records));
    b->found = tierce__arena_calloc(s->arena, count, sizeof(*b->found));
    b->good = tierce__arena_calloc(s->arena, count, sizeof(*b->good));
    b->sources = tierce__arena_calloc(s->arena, count, sizeof(*b->sources));
    s->sources = b->sources;
    b->keys = tierce__arena_alloc(s->arena, count * sizeof(*b->keys));
    s->wanted = tierce__arena_calloc(s->arena, count, sizeof(*s->wanted));
    s->taken = tierce__arena_calloc(s->arena, count, sizeof(*s->taken));
    s->has_room = tierce__arena_calloc(s->arena, count, sizeof(*s->has_room));
    s->positions = tierce__arena_calloc(s->arena, count, sizeof(*s->positions));
    s->claimed = tierce__arena_calloc(s->arena, specs + 1, sizeof(*s->claimed));
    bool *none = tierce__arena_calloc(s->arena, specs + 1, sizeof(*none));
    if (b->records == NULL || b->found == NULL || b->good == NULL || b->sources == NULL ||
        b->keys == NULL || s->wanted == NULL || s->taken == NULL || s->has_room == NULL ||
        s->positions == NULL || s->claimed == NULL || none == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        b->keys[i] = b->popped->blocks[i].key;
        b->good[i] = true;
        s->wanted[i] = none;
        s->taken[i] = 1;
        s->has_room[i] = 1; /* the index has it */
    }
    return 0;
}

/* The specs of a source; NULL: no memory, or the instance does not have one of them. */
static const bool *specs_of(struct batching *b, const struct tierce__location *source)
{
    size_t count = b->s.live->instance.spec_count;
    bool *specs = tierce__arena_calloc(b->s.arena, count + 1, sizeof(*specs));
    for (size_t p = 0; specs != NULL && p < source->place_count; p++) {
        if (source->places[p].spec >= count)
            return NULL;
        specs[source->places[p].spec] = true;
    }
    return specs;
}

/* Whether no session writes one of the specs. *is_own: this one has another location of the block.
 * SESSIONS held. */
static bool is_free(struct batching *b, int64_t key, const bool *specs, bool *is_own)
{
    struct tierce__starting *s = &b->s;
    size_t count = s->live->instance.spec_count;
    struct tierce__spec_claim *claim = tierce__live_claim(s->live, key);
    memset(s->claimed, 0, count * sizeof(*s->claimed));
    for (*is_own = false; claim != NULL; claim = tierce__live_claim_next(s->live, claim)) {
        tierce__live_add_specs(s->live, claim, s->claimed);
        *is_own = *is_own || claim->session == s->session;
    }
    for (size_t i = 0; i < count; i++) {
        if (specs[i] && s->claimed[i])
            return false;
    }
    return true;
}

/* Claims a block; false: no memory. SESSIONS held. */
static bool claim_block(struct batching *b, size_t position, const bool *specs)
{
    struct tierce__write_session *session = b->s.session;
    struct tierce__session_key *key = &session->keys[session->count];
    struct tierce__move_source *source = tierce__arena_calloc(&session->arena, 1, sizeof(*source));
    if (source == NULL || tierce__session_keep_source(session, source, b->sources[position]) < 0)
        return false;
    memcpy(source->id, b->popped->blocks[position].location_id, sizeof(source->id));
    *key = (struct tierce__session_key){
        .claim = {.key = b->keys[position], .session = session, .making = specs}, .source = source};
    b->s.wanted[position] = specs;
    b->s.taken[position] = 0;
    b->s.positions[session->count++] = position;
    tierce__live_put_claim(b->s.live, &key->claim);
    return true;
}

static int make_session(struct batching *b)
{
    struct tierce__write_session *session =
        tierce__session_create(b->s.live->locator, b->popped->count);
    if (session == NULL)
        return -ENOMEM;
    session->count = 0;
    session->is_move = true;
    session->keeps_source = b->popped->lane.is_copy;
    session->reason = b->popped->lane.reason;
    session->from = b->popped->lane.from;
    b->s.session = session;
    return 0;
}

/* Claims the blocks whose specs no session writes. The records are read again afterwards, so that a
 * session that ends in between is seen in one of the two. A block that is being written is not
 * good: its record is about to change. */
static int claim_blocks(struct batching *b, char why[TIERCE__WHY_BYTES])
{
    struct tierce__live *live = b->s.live;
    const bool **specs = tierce__arena_calloc(b->s.arena, b->popped->count, sizeof(*specs));
    int rc = specs != NULL ? make_session(b) : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < b->popped->count; i++) {
        specs[i] = b->good[i] ? specs_of(b, b->sources[i]) : NULL;
        b->good[i] = specs[i] != NULL;
    }
    if (rc < 0)
        return rc;
    tierce__lock_take(&live->lock);
    b->s.session->generation = tierce__live_generation(live);
    if (live->is_emptying)
        rc = tierce__why(why, -ENOENT, "instance %.64s is being removed", live->instance.id);
    else if (live->moving_keys + b->popped->count > MOVING_MAX)
        rc = tierce__why(why, TIERCE_E_FULL,
                         "instance %.64s has %zu blocks in batches, of at most %d: its movers must "
                         "finish some of them",
                         live->instance.id, live->moving_keys, MOVING_MAX);
    for (size_t i = 0; rc == 0 && i < b->popped->count; i++) {
        bool is_own = false; /* then its turn comes later */
        b->good[i] = b->good[i] && is_free(b, b->keys[i], specs[i], &is_own);
        if (b->good[i] && !is_own && !claim_block(b, i, specs[i]))
            rc = -ENOMEM;
    }
    tierce__lock_drop(&live->lock);
    return rc;
}

/* Keeps the blocks that lie in the same storages as the first one: one target suits them all. The
 * others stay good, and wait on. */
static int keep_alike(struct batching *b)
{
    struct tierce__starting *s = &b->s;
    size_t count = s->session->count;
    const struct tierce__record *first = NULL;
    bool *drop = tierce__arena_calloc(s->arena, count + 1, sizeof(*drop));
    if (drop == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        size_t at = s->positions[i];
        if (b->good[at] && first == NULL)
            first = &b->records[at];
        drop[i] = !b->good[at] || !has_same_holders(first, &b->records[at]);
    }
    tierce__starting_unclaim(s, drop);
    if (first == NULL)
        return 0;
    b->holders = tierce__arena_alloc(s->arena, (first->location_count + 1u) * sizeof(*b->holders));
    if (b->holders == NULL)
        return -ENOMEM;
    for (size_t l = 0; l < first->location_count; l++)
        b->holders[b->holder_count++] = first->locations[l].storage;
    return 0;
}

/* ---- its answer ------------------------------------------------------------------------------ */

/* The places of a source, in the order of the copy's specs. */
static int show_source(struct batching *b, struct tierce__place_uris *uris,
                       const struct tierce__location *source, const struct tierce__found *to,
                       struct tierce__found *out)
{
    const struct tierce__instance *instance = &b->s.live->instance;
    struct tierce__found_spec *specs =
        tierce__arena_alloc(b->s.arena, (to->spec_count + 1) * sizeof(*specs));
    if (specs == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < to->spec_count; i++) {
        specs[i] = (struct tierce__found_spec){.name = to->specs[i].name};
        for (size_t p = 0; p < source->place_count && specs[i].uri == NULL; p++) {
            const struct tierce__spec_place *place = &source->places[p];
            if (strcmp(instance->specs[place->spec].name, specs[i].name) != 0)
                continue;
            specs[i].uri = tierce__place_uris_make(uris, place);
            if (specs[i].uri == NULL)
                return -ENOMEM;
        }
        TIERCE_ASSERT(specs[i].uri != NULL); /* the session's specs are the source's */
    }
    *out = (struct tierce__found){.type = source->type,
                                  .spec_count_all = to->spec_count_all,
                                  .specs = specs,
                                  .spec_count = to->spec_count};
    return 0;
}

static int show_batch(struct batching *b, const struct tierce__started *started,
                      struct tierce__move_batch *out)
{
    struct tierce__arena *arena = b->s.arena;
    struct tierce__place_uris uris;
    struct tierce__found *from = tierce__arena_calloc(arena, started->count + 1, sizeof(*from));
    int64_t *keys = tierce__arena_alloc(arena, (started->count + 1) * sizeof(*keys));
    *out = (struct tierce__move_batch){
        .instance_id = b->popped->lane.instance_id,
        .from_storage = tierce__arena_copy(arena, b->from->name, strlen(b->from->name)),
        .to_storage = tierce__arena_copy(arena, b->s.storage->name, strlen(b->s.storage->name)),
        .is_copy = b->popped->lane.is_copy,
        .count = started->count,
        .keys = keys,
        .from = from,
        .to = started->locations};
    if (from == NULL || keys == NULL || out->from_storage == NULL || out->to_storage == NULL)
        return -ENOMEM;
    memcpy(out->session, started->session, sizeof(out->session));
    int rc = tierce__place_uris_begin(&uris, b->from, &b->s.live->instance, arena);
    for (size_t i = 0; rc == 0 && i < started->count; i++) {
        size_t at = b->s.positions[i];
        keys[i] = b->keys[at];
        rc = show_source(b, &uris, b->sources[at], &started->locations[i], &from[i]);
    }
    return rc;
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* Blocks that are good and in no session wait on; their lane rests if there was no target. */
static void put_back(struct batching *b, int rc, const char *why)
{
    const struct tierce__locator *locator = b->s.live->locator;
    struct tierce__moves_popped rest = {.lane = b->popped->lane, .blocks = b->popped->blocks};
    for (size_t i = 0; i < b->popped->count; i++) {
        if (b->good[i] && b->s.taken[i] != 0)
            rest.blocks[rest.count++] = b->popped->blocks[i];
    }
    int64_t rest_us = rc == 0 ? 0 : b->is_limited ? LIMIT_US : REST_US;
    tierce__moves_put_back(
        b->moves, &rest, tierce__locator_now_us(locator) + rest_us,
        b->is_limited
            ? "move.rate between the two storages is used up; the blocks go on when it allows it"
            : why);
}

/* The bytes of blocks whose clients are no engines of Tierce have no sum: a mover could not verify
 * them. */
static bool are_verifiable(struct batching *b)
{
    const struct tierce__live *live = b->s.live;
    if (tierce__engine_extra_is(live->instance.model.extra))
        return true;
    for (size_t i = 0; i < b->popped->count; i++)
        tierce__moves_ended(b->moves, &b->popped->lane, &b->popped->blocks[i],
                            TIERCE__MOVE_UNVERIFIABLE, tierce__locator_now_us(live->locator));
    return false;
}

static int open_batch(struct batching *b, struct tierce__move_batch *out,
                      char why[TIERCE__WHY_BYTES])
{
    struct tierce__started started = {0};
    struct tierce__starting *s = &b->s;
    int rc = read_records(b);
    if (rc == 0)
        rc = claim_blocks(b, why);
    if (rc == 0)
        rc = read_records(b);
    if (rc == 0)
        rc = keep_alike(b);
    if (rc < 0 || s->session->count == 0) {
        tierce__starting_undo(s);
        return rc;
    }
    rc = tierce__starting_open(s, &started, why);
    if (rc < 0) {
        tierce__starting_undo(s);
        return rc;
    }
    uint64_t bytes = 0;
    for (size_t i = 0; i < started.count; i++)
        bytes += started.bytes[s->positions[i]];
    tierce__moves_charge(b->moves, b->from->number, s->storage->number, bytes,
                         tierce__locator_now_us(s->live->locator));
    rc = show_batch(b, &started, out); /* without memory it times out */
    return rc < 0 ? rc : 1;
}

/* Makes a session of popped blocks. Returns 1; 0: none of them can be moved now; -ENOMEM. */
static int start_batch(struct batching *b, struct tierce__move_batch *out,
                       char why[TIERCE__WHY_BYTES])
{
    struct tierce__starting *s = &b->s;
    const struct tierce__instance *instance = &s->live->instance;
    s->group = tierce__catalog_group(s->catalog, instance->group_name);
    b->from = tierce__catalog_storage_numbered(s->catalog, b->popped->lane.from);
    if (s->group == NULL || b->from == NULL || instance->number != b->popped->lane.instance ||
        !are_verifiable(b) ||
        (b->popped->lane.reason == TIERCE__MOVE_DRAIN &&
         b->from->draining != TIERCE__DRAINING_MOVES))
        return 0; /* the operator has ended the draining, or drops the blocks */
    b->from_position = tierce__candidate_position(s->group, b->from);
    int rc = make_arrays(b);
    if (rc < 0)
        return rc;
    if (tierce__storages_is_available(s->live->locator->opts.storages, b->from))
        rc = open_batch(b, out, why);
    else
        rc = tierce__why(why, TIERCE_E_DOWN,
                         "storage %.100s, which has the blocks, cannot be read; enable it, or see "
                         "its reason in tierce storage list",
                         b->from->name);
    put_back(b, rc < 0 ? rc : 0, why);
    return rc < 0 && rc != -ENOMEM ? 0 : rc;
}

static int take_batch(struct tierce__locator *locator, const struct tierce__moves_popped *popped,
                      struct tierce__arena *arena, struct tierce__move_batch *out)
{
    char why[TIERCE__WHY_BYTES] = "";
    struct batching b = {
        .popped = popped,
        .moves = locator->moves,
        .request = {.instance_id = popped->lane.instance_id,
                    .count = popped->count,
                    .timeout_s = TIERCE__MOVE_LEASE_S},
    };
    b.s = (struct tierce__starting){
        .request = &b.request, .arena = arena, .may_take = may_take, .may_take_arg = &b};
    if (tierce__live_acquire(&b.s.live, locator, popped->lane.instance_id, why) < 0)
        return 0; /* it was removed, or this process leads no more */
    b.s.catalog = tierce__registry_acquire(locator->opts.registry);
    int rc = start_batch(&b, out, why);
    tierce__registry_release(locator->opts.registry, b.s.catalog);
    tierce__live_release(b.s.live);
    return rc;
}

struct near_host {
    const struct tierce__catalog *catalog;
    const char *host_id;
};

static bool is_near(void *arg, uint16_t from)
{
    const struct near_host *host = arg;
    const struct tierce__storage *storage = tierce__catalog_storage_numbered(host->catalog, from);
    return storage != NULL && strcmp(storage->host_id, host->host_id) == 0;
}

/* Takes batches until there are as many as the mover wants, or no lane is ready. */
static int take_all(struct tierce__locator *locator, const struct tierce__take_moves *request,
                    struct near_host *host, struct tierce__arena *arena,
                    struct tierce__move_batch *batches, size_t *count)
{
    size_t left = request->blocks_max;
    uint64_t bytes_left = request->bytes_max;
    bool is_near_only = host->host_id != NULL && host->host_id[0] != '\0';
    int rc = 0;
    for (size_t tries = 0; rc >= 0 && tries < 2 * (size_t)BATCHES_MAX && *count < BATCHES_MAX &&
                           left > 0 && (request->bytes_max == 0 || bytes_left > 0);
         tries++) {
        struct tierce__moves_popped popped;
        rc = tierce__moves_take(
            locator->moves,
            &(struct tierce__moves_pop){.blocks_max = left < BATCH_BLOCKS ? left : BATCH_BLOCKS,
                                        .bytes_max = bytes_left,
                                        .now_us = tierce__locator_now_us(locator),
                                        .suits = is_near_only ? is_near : NULL,
                                        .arg = host},
            arena, &popped);
        if (rc == 0 && !is_near_only)
            break;
        if (rc == 0) {
            is_near_only = false;
            continue;
        }
        rc = rc > 0 ? take_batch(locator, &popped, arena, &batches[*count]) : rc;
        if (rc <= 0)
            continue;
        left -= batches[*count].count;
        for (size_t i = 0; i < popped.count; i++)
            bytes_left -= popped.blocks[i].bytes < bytes_left ? popped.blocks[i].bytes : bytes_left;
        (*count)++;
    }
    return rc < 0 ? rc : 0;
}

/* Renews the batches that a mover holds. */
static void renew(struct tierce__locator *locator, const struct tierce__take_moves *request,
                  const char **lost, size_t *count)
{
    for (size_t i = 0; i < request->held_count; i++) {
        char why[TIERCE__WHY_BYTES];
        struct tierce__renewed renewed;
        const struct tierce__held_moves *held = &request->held[i];
        if (tierce__locator_renew_write(locator, held->instance_id, held->session, &renewed, why) <
            0)
            lost[(*count)++] = held->session;
    }
}

int tierce__locator_take_moves(struct tierce__locator *locator,
                               const struct tierce__take_moves *request,
                               struct tierce__arena *arena, struct tierce__taken_moves *out,
                               char why[TIERCE__WHY_BYTES])
{
    struct tierce__moves_stats stats;
    struct tierce__taken_moves taken = {.wait_ms = IDLE_MS};
    struct tierce__move_batch *batches = tierce__arena_calloc(arena, BATCHES_MAX, sizeof(*batches));
    const char **lost = tierce__arena_calloc(arena, request->held_count + 1, sizeof(*lost));
    why[0] = '\0';
    if (batches == NULL || lost == NULL)
        return tierce__why(why, -ENOMEM, "no memory");
    if (!tierce__locator_is_open(locator))
        return tierce__why(why, TIERCE_E_CLOSED, "this manager does not lead");
    int span = tierce__span_open("locator:take_moves");
    tierce__moves_asked(locator->moves, tierce__locator_now_us(locator));
    renew(locator, request, lost, &taken.lost_count);
    const struct tierce__catalog *catalog = tierce__registry_acquire(locator->opts.registry);
    struct near_host host = {.catalog = catalog, .host_id = request->host_id};
    int rc = take_all(locator, request, &host, arena, batches, &taken.count);
    tierce__registry_release(locator->opts.registry, catalog);
    tierce__span_close(span);
    if (rc < 0)
        return tierce__why(why, rc, "no memory");
    tierce__moves_stats(locator->moves, &stats);
    for (size_t i = 0; i < TIERCE__MOVE_REASONS; i++)
        taken.wait_ms = stats.queued[i] > 0 ? SOON_MS : taken.wait_ms;
    taken.batches = batches;
    taken.lost = lost;
    *out = taken;
    return 0;
}

/* ---- ending ---------------------------------------------------------------------------------- */

int64_t tierce__live_departure_due_us(struct tierce__live *live)
{
    struct tierce__registry *registry = live->locator->opts.registry;
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    const struct tierce__group *group = tierce__catalog_group(catalog, live->instance.group_name);
    int64_t delay_us = group != NULL ? (int64_t)group->delay_before_delete_ms * 1000 : 0;
    tierce__registry_release(registry, catalog);
    return tierce__locator_now_us(live->locator) + (delay_us > DELAY_US ? delay_us : DELAY_US);
}

static enum tierce__move_result result_of(const struct tierce__write_session *session, size_t i)
{
    if (session->is_late)
        return TIERCE__MOVE_EXPIRED;
    if (session->written[i])
        return TIERCE__MOVED;
    enum tierce__move_result result = session->keys[i].source->result;
    return result == TIERCE__MOVED ? TIERCE__MOVE_OVERTAKEN : result;
}

/* A drain waits for them, so an operator must learn which they are. */
static void log_unverifiable(const struct tierce__live *live,
                             const struct tierce__write_session *session)
{
    size_t count = 0;
    int64_t first = 0;
    for (size_t i = session->count; i-- > 0;) {
        if (result_of(session, i) != TIERCE__MOVE_UNVERIFIABLE)
            continue;
        first = session->keys[i].claim.key;
        count++;
    }
    if (count > 0)
        tierce__log(
            TIERCE_LOG_WARN, "moves.unverifiable",
            "instance=%.64s blocks=%zu key=%lld hint=\"a newer version of Tierce wrote them, "
            "or they are larger than mover.memory: update the movers, raise mover.memory, or "
            "remove the blocks (tierce storage drain NAME --drop); tried again in an hour\"",
            live->instance.id, count, (long long)first);
}

void tierce__live_end_moves(struct tierce__live *live, const struct tierce__write_session *session)
{
    struct tierce__locator *locator = live->locator;
    const struct tierce__move_lane lane = {.instance_id = live->instance.id,
                                           .instance = live->instance.number,
                                           .from = session->from,
                                           .is_copy = session->keeps_source,
                                           .reason = session->reason};
    TIERCE_ASSERT(session->is_move && session->is_busy);
    log_unverifiable(live, session);
    for (size_t i = 0; i < session->count; i++) {
        const struct tierce__session_key *key = &session->keys[i];
        struct tierce__move_block block = {.key = key->claim.key};
        memcpy(block.location_id, key->source->id, sizeof(block.location_id));
        for (size_t p = 0; p < key->place_count; p++)
            block.bytes += key->places[p].bytes;
        tierce__moves_ended(locator->moves, &lane, &block, result_of(session, i),
                            tierce__locator_now_us(locator));
    }
}

/* Sources that a mover found missing or damaged. */
struct bad_sources {
    struct tierce__live *live;
    const struct tierce__catalog *catalog;
    const struct tierce__write_session *session;
    const struct tierce__removed *removed;
    size_t *indexes; /* of the session's keys */
    size_t index;
};

static bool note_index(void *arg, size_t i, int64_t key, const struct tierce__record *record)
{
    struct bad_sources *bad = arg;
    (void)record;
    bad->index = bad->indexes[bad->removed->offset + i];
    TIERCE_ASSERT(bad->session->keys[bad->index].claim.key == key);
    return true;
}

static bool is_bad(void *arg, const struct tierce__record *record,
                   const struct tierce__location *location)
{
    (void)record;
    struct bad_sources *bad = arg;
    const struct tierce__storage *storage = tierce__location_storage(bad->catalog, location);
    const char *id = bad->session->keys[bad->index].source->id;
    return memcmp(location->id, id, TIERCE__LOCATION_ID_BYTES) == 0 && storage != NULL &&
           !tierce__storages_has_wrong_mark(bad->live->locator->opts.storages, storage);
}

/* Drops the sources that are missing or damaged, as after a report (locator_report.c). A source has
 * a random name, so no other location is dropped. */
static int drop_bad_sources(struct tierce__live *live, const struct tierce__write_session *session)
{
    struct tierce__arena arena = {0};
    struct tierce__removed removed = {0};
    struct bad_sources bad = {.live = live, .session = session, .removed = &removed};
    struct tierce__removal how = {.due_us = tierce__locator_now_us(live->locator),
                                  .wanted = note_index,
                                  .wanted_location = is_bad,
                                  .wanted_arg = &bad};
    size_t count = 0;
    int64_t *keys = tierce__arena_alloc(&arena, session->count * sizeof(*keys));
    bad.indexes = tierce__arena_alloc(&arena, session->count * sizeof(*bad.indexes));
    int rc = keys != NULL && bad.indexes != NULL ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < session->count; i++) {
        enum tierce__move_result result = session->keys[i].source->result;
        if (result != TIERCE__MOVE_SOURCE_MISSING && result != TIERCE__MOVE_SOURCE_DAMAGED)
            continue;
        bool is_missing = result == TIERCE__MOVE_SOURCE_MISSING;
        atomic_fetch_add_explicit(
            &live->locator->reports[is_missing ? TIERCE__REPORT_MISSING : TIERCE__REPORT_DAMAGED],
            1, memory_order_relaxed);
        bad.indexes[count] = i;
        keys[count++] = session->keys[i].claim.key;
    }
    if (rc == 0 && count > 0) {
        bad.catalog = tierce__registry_acquire(live->locator->opts.registry);
        rc = tierce__live_remove(live, keys, count, &how, &removed);
        tierce__registry_release(live->locator->opts.registry, bad.catalog);
        tierce__log(TIERCE_LOG_WARN, "moves.sources_dropped",
                    "instance=%.64s blocks=%zu dropped_locations=%llu", live->instance.id, count,
                    (unsigned long long)removed.locations);
    }
    tierce__arena_clear(&arena);
    return rc;
}

static int check_results(const struct tierce__write_session *session,
                         const enum tierce__move_result *results, size_t count,
                         char why[TIERCE__WHY_BYTES])
{
    if (!session->is_move)
        return tierce__why(why, -ESRCH,
                           "session %.40s is another client's write session and not a batch of "
                           "moves; end it with FinishWriteCache",
                           session->id);
    if (count != session->count)
        return tierce__why(
            why, TIERCE_E_ARGUMENT,
            "results has %zu entries, but the batch has %zu blocks; send one for each", count,
            session->count);
    for (size_t i = 0; i < count; i++) {
        if ((size_t)results[i] > TIERCE__MOVE_UNDONE)
            return tierce__why(why, TIERCE_E_ARGUMENT,
                               "results: entry %zu is not a result of a mover; accepted are "
                               "MR_COPIED to MR_UNDONE",
                               i);
    }
    return 0;
}

/* The session is busy. */
static int finish_batch(struct tierce__live *live, struct tierce__write_session *session,
                        const enum tierce__move_result *results, size_t count, size_t *moved,
                        char why[TIERCE__WHY_BYTES])
{
    int rc = check_results(session, results, count, why);
    if (rc == 0) {
        for (size_t i = 0; i < count; i++) {
            session->keys[i].source->result = results[i];
            session->written[i] = results[i] == TIERCE__MOVED;
            session->is_target_bad =
                session->is_target_bad || results[i] == TIERCE__MOVE_TARGET_FAILED;
        }
        rc = drop_bad_sources(live, session);
        if (rc < 0)
            rc = tierce__why(why, rc, "the index cannot be written: %s", tierce_strerror(rc));
    }
    if (rc < 0) {
        tierce__live_unfinish(live, session);
        return rc;
    }
    rc = tierce__live_finish_counted(live, session, moved);
    return rc < 0 ? tierce__why(why, rc, "the moves cannot be finished: %s", tierce_strerror(rc))
                  : 0;
}

int tierce__locator_finish_moves(struct tierce__locator *locator, const char *instance_id,
                                 const char *session_id, const enum tierce__move_result *results,
                                 size_t count, size_t *moved, char why[TIERCE__WHY_BYTES])
{
    struct tierce__live *live;
    struct tierce__write_session *session;
    *moved = 0;
    int rc = tierce__live_acquire(&live, locator, instance_id, why);
    if (rc < 0)
        return rc;
    int span = tierce__span_open("locator:finish_moves");
    rc = tierce__live_begin_finish(live, session_id, NULL, &session, why);
    if (rc == 0)
        rc = finish_batch(live, session, results, count, moved, why);
    tierce__span_close(span);
    tierce__live_release(live);
    return rc;
}
