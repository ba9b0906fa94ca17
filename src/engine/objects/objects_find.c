/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds a named value. A value in memory is leased. A value in a slower tier is read once for all
 * concurrent finds, by a reading that continues on the thread that delivers an answer:
 *
 *     LOOKUP in the next level -> HEAD: the length is not known before -> BODY, of a disk in parts
 *     -> memory, and told
 *
 * A reading begins by noting the name's count of changes. If the count differs at the end, the
 * bytes may be an old or torn value, and the waiting finds start again.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/objects/objects_private.h"
#include "core/paged/paged.h"

#define TRIES_MAX 16u /* of one find, whose name is changed again and again */
/* A disk's answers come on its only I/O thread, which sums 8 MiB in 0.5 ms (13 to 19 GB/s,
 * 2026-11). A remote store is asked once: each range costs a round trip. */
#define PART_BYTES (8u << 20)

enum step { STEP_LOOKUP, STEP_HEAD, STEP_BODY };

struct tierce__object_reading {
    struct tierce__objects *space;
    struct tierce_engine *engine;
    struct tierce__object_name *name;
    uint64_t changes; /* of the name when it began */
    uint64_t era;     /* operate.h */
    uint64_t deadline_ns;
    uint8_t hint; /* of the first find */
    size_t level;
    enum step step;
    int status;                /* why a level that may have it could not be asked, or MISS */
    struct tierce__list finds; /* under the lock of the names */
    struct tierce__buf *buf;
    uint64_t have;  /* bytes of the object that are there */
    uint32_t sound; /* leading pieces of the value that match their checksums */
    struct tierce__object_form form;
    struct tierce__store_req req;
};

/* The engine's state of a find. */
enum find_state {
    FIND_RUNS, /* its call has not returned */
    FIND_WAITS,
    FIND_ANSWERED, /* before its call returned */
};

struct find_waiter {
    struct tierce__list node;
    struct tierce__objects *space;
    struct tierce__key key;
    uint32_t tries;
    enum find_state state; /* under the lock of the names */
};

_Static_assert(sizeof(struct find_waiter) <= sizeof(((struct tierce__object_find *)0)->scratch),
               "a waiter fits into a find");

static struct find_waiter *waiter_of(struct tierce__object_find *find)
{
    return (struct find_waiter *)(void *)find->scratch;
}

static struct tierce__object_find *find_of(struct tierce__list *node)
{
    struct find_waiter *waiter = TIERCE__CONTAINER_OF(node, struct find_waiter, node);
    return TIERCE__CONTAINER_OF(waiter, struct tierce__object_find, scratch);
}

/* ---- answers ---- */

static void count_answer(struct tierce_engine *engine, int status)
{
    TIERCE_DASSERT(status <= 0);
    tierce__count(engine, status == 0 ? TIERCE__STAT_objects_found : TIERCE__STAT_objects_missed,
                  1);
}

/* The find is its owner's again when this returns. */
static void answer(struct tierce__object_find *find, int status, struct tierce__object *object)
{
    TIERCE_DASSERT(object == NULL || status == 0);
    struct find_waiter *waiter = waiter_of(find);
    struct tierce_engine *engine = waiter->space->engine;
    struct tierce__lock *lock = &engine->object_names.lock;
    find->status = status;
    find->object = object;
    count_answer(engine, status);
    tierce__lock_take(lock);
    TIERCE_DASSERT(waiter->state != FIND_ANSWERED);
    bool call = waiter->state == FIND_WAITS;
    waiter->state = FIND_ANSWERED;
    tierce__lock_drop(lock);
    if (call)
        find->done(find);
}

/* Opens a find's value from memory; NULL: it is not there, or there is no memory for a handle. */
static struct tierce__object *open_from_memory(struct tierce__object_find *find)
{
    struct find_waiter *waiter = waiter_of(find);
    struct tierce_engine *engine = waiter->space->engine;
    struct tierce__object_form form;
    struct tierce__object *small =
        tierce__object_open_small(waiter->space, &waiter->key, find->name, find->name_bytes);
    if (small != NULL)
        return small;
    struct tierce__buf *buf =
        tierce__objects_accept(waiter->space, &form, tierce__storage_lend(engine, &waiter->key),
                               &waiter->key, find->name, find->name_bytes);
    if (buf == NULL)
        return NULL;
    tierce__storage_touch(
        engine, 0, engine->level_count,
        &(struct tierce__tier_uses){.keys = &waiter->key,
                                    .count = 1,
                                    .origin = tierce__object_use(&form.what, find->hint)});
    return tierce__object_open(waiter->space, &waiter->key, buf, &form);
}

static void answer_value(struct tierce__object_reading *r, struct tierce__object_find *find)
{
    TIERCE_DASSERT(r->have >= r->form.extent.object_bytes);
    struct tierce__object *object = NULL;
    const struct tierce__object_what *what = &r->form.what;
    if (what->name_bytes == find->name_bytes &&
        memcmp(what->name, find->name, find->name_bytes) == 0) {
        tierce__buf_acquire(r->buf);
        object = tierce__object_open(r->space, &r->name->key, r->buf, &r->form);
    }
    answer(find, object != NULL ? 0 : TIERCE_E_MISS, object);
}

static void start(struct tierce__object_find *find);

/* It was published, or promoted by another reading, perhaps while this one looked elsewhere. */
static void answer_without(struct tierce__object_find *find, int status)
{
    struct tierce__object *object = open_from_memory(find);
    answer(find, object != NULL ? 0 : status, object);
}

static void start_again(struct tierce__object_find *find)
{
    TIERCE_DASSERT(waiter_of(find)->tries < TRIES_MAX);
    struct tierce__object *object = open_from_memory(find);
    if (object != NULL)
        answer(find, 0, object);
    else if (++waiter_of(find)->tries >= TRIES_MAX)
        answer(find, TIERCE_E_MISS, NULL);
    else
        start(find);
}

static void settle(struct tierce__object_reading *r, struct tierce__object_find *find, int status,
                   bool current)
{
    TIERCE_DASSERT(status <= 0);
    bool has_time = status == TIERCE_E_DEADLINE && find->deadline_ns > r->deadline_ns;
    if (!current || has_time)
        start_again(find);
    else if (status == 0)
        answer_value(r, find);
    else
        answer_without(find, status);
}

static void finish(struct tierce__object_reading *r, int status)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__list finds;
    tierce__list_init(&finds);
    tierce__lock_take(&r->name->names->lock);
    TIERCE_DASSERT(r->name->refs > 0);
    if (r->name->reading == r)
        r->name->reading = NULL;
    bool current = r->name->changes == r->changes;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &r->finds) {
        tierce__list_remove(it);
        tierce__list_push_back(&finds, it);
    }
    tierce__lock_drop(&r->name->names->lock);
    while (!tierce__list_empty(&finds)) {
        struct tierce__list *node = finds.next;
        tierce__list_remove(node);
        settle(r, find_of(node), status, current);
    }
    tierce__buf_release(r->buf);
    tierce__object_name_drop(r->name);
    tierce__free(r);
}

/* ---- arrived bytes ---- */

static void ask_levels(struct tierce__object_reading *r);

static void leave_level(struct tierce__object_reading *r, int status)
{
    TIERCE_DASSERT(r->level > 0 && r->level < r->engine->level_count);
    TIERCE_DASSERT(status < 0);
    if (status != TIERCE_E_MISS && tierce__health_is_fault(status))
        r->status = status == TIERCE_E_DEADLINE ? status : TIERCE_E_DOWN;
    tierce__buf_release(r->buf);
    r->buf = NULL;
    r->have = 0;
    r->level++;
    ask_levels(r);
}

/* Reads what the buffer has room for and does not hold yet, or a part of that. */
static void read_on(struct tierce__object_reading *r, enum step step)
{
    TIERCE_DASSERT(r->have < r->buf->bytes);
    r->step = step;
    r->req.op = TIERCE__STORE_GET;
    r->req.deadline_ns = r->deadline_ns;
    r->req.buf = r->buf;
    r->req.offset = r->have;
    r->req.length = r->buf->bytes - r->have;
    if (!r->engine->levels[r->level].health.shared && r->req.length > PART_BYTES)
        r->req.length = PART_BYTES;
    TIERCE_DASSERT(r->req.length > 0 && r->req.length <= r->buf->bytes - r->have);
    if (!tierce__storage_submit(r->engine, r->level, &r->req))
        leave_level(r, TIERCE_E_DOWN);
}

static void read_head(struct tierce__object_reading *r, uint64_t bytes)
{
    TIERCE_DASSERT(r->level > 0 && r->level < TIERCE__TIERS_MAX);
    tierce__buf_release(r->buf);
    r->have = 0;
    r->sound = 0;
    r->buf = tierce__storage_alloc(r->engine, bytes);
    if (r->buf == NULL) {
        leave_level(r, TIERCE_E_MISS);
        return;
    }
    r->buf->source = (uint32_t)r->level;
    read_on(r, STEP_HEAD);
}

static struct tierce__policy_origin use_of(const struct tierce__object_reading *r)
{
    return tierce__object_use(&r->form.what, r->hint);
}

/* A buffer for all of it, with the bytes received so far. */
static void read_body(struct tierce__object_reading *r)
{
    TIERCE_DASSERT(r->form.extent.object_bytes > r->have);
    struct tierce__storage_chunk chunk =
        tierce__object_record(&r->name->key, r->form.extent.object_bytes, use_of(r));
    struct tierce__buf *whole = tierce__storage_reserve(r->engine, &chunk, NULL);
    if (whole == NULL) {
        leave_level(r, TIERCE_E_MISS);
        return;
    }
    TIERCE_ASSERT(r->have <= r->buf->bytes && r->have <= whole->bytes);
    whole->source = (uint32_t)r->level;
    memcpy(whole->data, r->buf->data, r->have);
    tierce__buf_release(r->buf);
    r->buf = whole;
    read_on(r, STEP_BODY);
}

/* Removes a wrong or expired value, unless another thread is changing it. */
static void expel(struct tierce__object_reading *r, int why)
{
    TIERCE_DASSERT(why < 0);
    if (tierce__object_name_try(r->name, r->changes)) {
        tierce__objects_expel(r->engine, r->level, &r->name->key, why);
        tierce__object_name_let_go(r->name);
    }
    leave_level(r, TIERCE_E_MISS);
}

/* The copy gets a new checksum, so its bytes must be verified first; damage is reported to the
 * present reader. */
static int promote_small(struct tierce__object_reading *r)
{
    const struct tierce__object_what *what = &r->form.what;
    TIERCE_DASSERT(what->value_bytes <= TIERCE__SMALL_VALUE_MAX);
    const uint8_t *value = r->buf->data + r->form.value_at;
    const uint64_t *sums = tierce__object_sums(r->buf->data, what->value_bytes);
    if (what->value_bytes > 0 && tierce__sum(value, (size_t)what->value_bytes) != sums[1])
        return TIERCE_E_CHECKSUM;
    return tierce__smalls_put(r->engine->smalls, &r->name->key, what, value, true);
}

static int promote_large(struct tierce__object_reading *r)
{
    TIERCE_DASSERT(r->have >= r->form.extent.object_bytes);
    struct tierce__storage_chunk chunk =
        tierce__object_record(&r->name->key, r->form.extent.object_bytes, use_of(r));
    int rc = tierce__storage_publish(r->engine, &chunk, r->buf);
    if (rc == 0)
        tierce__objects_shown(r->engine, r->buf);
    return rc;
}

/* A value that was changed since is not promoted. */
static void promote(struct tierce__object_reading *r)
{
    TIERCE_DASSERT(r->sound == tierce__object_pieces(r->form.what.value_bytes));
    struct tierce_engine *engine = r->engine;
    if (tierce__engine_mode(engine) != TIERCE_MODE_NORMAL ||
        !tierce__object_name_try(r->name, r->changes))
        return;
    if (tierce__era_enter(engine, r->era)) {
        bool is_small = tierce__smalls_takes(engine->smalls, &r->form.what);
        if ((is_small ? promote_small(r) : promote_large(r)) == 0)
            tierce__count(engine, TIERCE__STAT_promotions, 1);
        tierce__era_leave(engine, r->era);
    }
    tierce__object_name_let_go(r->name);
    tierce__storage_touch(
        engine, 0, engine->level_count,
        &(struct tierce__tier_uses){.keys = &r->name->key, .count = 1, .origin = use_of(r)});
}

/* Whether every whole piece of the value that has come matches its checksum. Verified here, and not
 * only when a piece is sent, because a protocol cannot take back a length that it has sent. */
static bool is_sound(struct tierce__object_reading *r)
{
    uint64_t value_bytes = r->form.what.value_bytes, value_at = r->form.value_at;
    const uint64_t *sums = tierce__object_sums(r->buf->data, value_bytes);
    uint32_t pieces = tierce__object_pieces(value_bytes);
    if (r->have < r->form.extent.object_bytes)
        pieces = r->have > value_at ? (uint32_t)((r->have - value_at) / TIERCE__OBJECT_PIECE) : 0;
    TIERCE_DASSERT(r->sound <= pieces && r->have <= r->buf->bytes);
    for (; r->sound < pieces; r->sound++) {
        const uint8_t *piece = r->buf->data + value_at + (uint64_t)r->sound * TIERCE__OBJECT_PIECE;
        size_t bytes = tierce__object_piece_bytes(value_bytes, r->sound);
        if (tierce__sum(piece, bytes) != sums[1 + r->sound])
            return false;
    }
    return true;
}

static void look_at(struct tierce__object_reading *r)
{
    TIERCE_DASSERT(r->have <= r->buf->bytes);
    uint64_t need;
    int rc = tierce__object_parse(&r->form, &need, r->buf->data, r->have, &r->space->space,
                                  &r->name->key, NULL, 0);
    uint64_t object_bytes = r->form.extent.object_bytes;
    if (rc == TIERCE_E_LIMIT && need > r->have)
        read_head(r, need);
    else if (rc < 0)
        expel(r, rc == TIERCE_E_LIMIT ? TIERCE_E_FORMAT : rc);
    else if (tierce__object_expired(&r->form.what))
        expel(r, TIERCE_E_MISS);
    else if (object_bytes > r->engine->settings.memory_bytes)
        leave_level(r, TIERCE_E_MISS);
    else if (object_bytes > r->have)
        read_body(r);
    else if (!is_sound(r))
        expel(r, TIERCE_E_CHECKSUM);
    else {
        promote(r);
        finish(r, 0);
    }
}

/* ---- asking ---- */

static void go_on(struct tierce__object_reading *r)
{
    int status = r->req.status;
    TIERCE_DASSERT(status <= 0);
    if (status == TIERCE_E_FORMAT) { /* of another length */
        expel(r, status);
    } else if (status < 0) {
        leave_level(r, status);
    } else if (r->step == STEP_BODY && r->have + r->req.length < r->form.extent.object_bytes) {
        r->have += r->req.length;
        if (is_sound(r))
            read_on(r, STEP_BODY);
        else
            expel(r, TIERCE_E_CHECKSUM);
    } else if (r->step != STEP_LOOKUP) {
        r->have += r->req.length;
        look_at(r);
    } else if (r->req.found > 0) {
        read_head(r, TIERCE__OBJECT_HEAD_BYTES);
    } else {
        leave_level(r, TIERCE_E_MISS);
    }
}

static void answered(struct tierce__store_req *req)
{
    struct tierce__object_reading *r = req->arg;
    TIERCE_DASSERT(req == &r->req);
    struct tierce_engine *engine = r->engine;
    atomic_fetch_add(&engine->calling, 1);
    tierce__storage_note(engine, r->level, req);
    go_on(r);
    atomic_fetch_sub(&engine->calling, 1);
}

/* False: the tier is not asked now. */
static bool ask_level(struct tierce__object_reading *r)
{
    TIERCE_DASSERT(r->level > 0 && r->level < r->engine->level_count);
    struct tierce_engine *engine = r->engine;
    uint64_t deadline_ns = tierce__deadline_in_ms(engine->settings.lookup_ms);
    r->step = STEP_LOOKUP;
    r->req = (struct tierce__store_req){
        .op = TIERCE__STORE_LOOKUP,
        .deadline_ns = deadline_ns < r->deadline_ns ? deadline_ns : r->deadline_ns,
        .done = answered,
        .arg = r,
        .keys = &r->name->key,
        .key_count = 1};
    if (tierce__health_serves(&engine->levels[r->level].health) &&
        tierce__storage_submit(engine, r->level, &r->req))
        return true;
    tierce__storage_try(engine, r->level, &r->name->key);
    r->status = r->status == TIERCE_E_MISS ? TIERCE_E_DOWN : r->status;
    return false;
}

static void ask_levels(struct tierce__object_reading *r)
{
    TIERCE_DASSERT(r->level > 0 && r->have == 0);
    for (; r->level < r->engine->level_count; r->level++) {
        if (tierce__objects_may_ask(r->engine, r->level, &r->name->key) && ask_level(r))
            return;
    }
    finish(r, r->status);
}

/* Waiters the find with the reading that is under way, if it ends in time for it, or with `fresh`;
 * whether it is the latter, which the caller begins then. */
static bool add_waiter(struct tierce__object_reading *fresh, struct tierce__object_find *find)
{
    TIERCE_DASSERT(tierce__list_empty(&fresh->finds));
    struct tierce__object_name *name = fresh->name;
    struct find_waiter *waiter = waiter_of(find);
    tierce__lock_take(&name->names->lock);
    TIERCE_DASSERT(waiter->state != FIND_ANSWERED);
    struct tierce__object_reading *r = name->reading;
    bool joins = r != NULL && r->deadline_ns <= find->deadline_ns;
    if (!joins) {
        fresh->changes = name->changes;
        if (r == NULL)
            name->reading = fresh;
        r = fresh;
    }
    tierce__list_push_back(&r->finds, &waiter->node);
    tierce__lock_drop(&name->names->lock);
    return !joins;
}

static void start(struct tierce__object_find *find)
{
    TIERCE_DASSERT(waiter_of(find)->space->engine->level_count > 1);
    struct find_waiter *waiter = waiter_of(find);
    struct tierce_engine *engine = waiter->space->engine;
    struct tierce__object_reading *r = tierce__calloc(1, sizeof(*r));
    struct tierce__object_name *name =
        r != NULL ? tierce__object_name_take(&engine->object_names, &waiter->key) : NULL;
    if (name == NULL) {
        tierce__free(r);
        answer(find, TIERCE_E_MISS, NULL);
        return;
    }
    r->space = waiter->space;
    r->engine = engine;
    r->name = name;
    r->era = tierce__era_of_read(engine);
    r->deadline_ns = find->deadline_ns;
    r->hint = find->hint;
    r->level = 1;
    r->status = TIERCE_E_MISS;
    tierce__list_init(&r->finds);
    if (add_waiter(r, find)) {
        ask_levels(r);
        return;
    }
    tierce__count(engine, TIERCE__STAT_fetches_shared, 1);
    tierce__object_name_drop(name);
    tierce__free(r);
}

int tierce__object_find(struct tierce__objects *space, struct tierce__object_find *find)
{
    TIERCE_CHECK_MAGIC(space, TIERCE__OBJECTS_MAGIC);
    struct tierce_engine *engine = space->engine;
    struct find_waiter *waiter = waiter_of(find);
    find->object = NULL;
    find->status = TIERCE_E_MISS;
    if (tierce__engine_inherited(engine) || tierce__engine_mode(engine) == TIERCE_MODE_BYPASS)
        return TIERCE_E_MISS;
    *waiter = (struct find_waiter){
        .space = space, .key = tierce__object_key(&space->space, find->name, find->name_bytes)};
    find->object = open_from_memory(find);
    if (find->object != NULL || engine->level_count == 1) {
        find->status = find->object != NULL ? 0 : TIERCE_E_MISS;
        count_answer(engine, find->status);
        return find->status;
    }
    start(find);
    tierce__lock_take(&engine->object_names.lock);
    TIERCE_DASSERT(waiter->state != FIND_WAITS);
    bool is_answered = waiter->state == FIND_ANSWERED;
    if (!is_answered)
        waiter->state = FIND_WAITS;
    tierce__lock_drop(&engine->object_names.lock);
    return is_answered ? find->status : -EINPROGRESS;
}
