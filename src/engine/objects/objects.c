/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named values: creating and replacing. Begin with tierce__object_publish: sums, seal, and
 * replacement while the name is held. The replacement durably deletes a different old value from
 * the slower tiers (objects_remove.c), then swaps memory atomically, then gives the new value to
 * the slower tiers.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "base/text/utf8.h"
#include "engine/objects/objects_private.h"
#include "engine/why/why.h"
#include "core/paged/paged.h"

/* ---- spaces ---- */

#define TEXT_BYTES_MAX 1024u

int tierce__objects_open(struct tierce__objects **out, struct tierce_engine *engine,
                         const char *kind, const char *tenant)
{
    TIERCE_CHECK_MAGIC(engine, TIERCE__ENGINE_MAGIC);
    TIERCE_DASSERT(engine->level_count > 0);
    char text[TEXT_BYTES_MAX];
    int n = snprintf(text, sizeof(text), TIERCE__OBJECT_SPACE_TEXT "%s\ntenant=%s\n", kind, tenant);
    if (n < 0 || (size_t)n >= sizeof(text) || kind[0] == '\0' ||
        !tierce__text_is_plain(kind, strlen(kind)) ||
        !tierce__text_is_plain(tenant, strlen(tenant)))
        return TIERCE_E_ARGUMENT;
    int rc = tierce__objects_open_tombstones(engine);
    if (rc < 0)
        return rc;
    struct tierce__objects *space = tierce__calloc(1, sizeof(*space));
    if (space == NULL)
        return -ENOMEM;
    tierce_namespace_digest(space->space.ns_digest, text);
    int64_t id = tierce__namespaces_intern(engine->namespaces, space->space.ns_digest, text);
    if (id < 0) {
        tierce__free(space);
        return (int)id;
    }
    struct tierce__pool_stats pool;
    tierce__pool_stats(engine->pool, &pool);
    space->value_bytes_least = pool.cap_bytes / pool.buf_count_max;
    space->magic = TIERCE__OBJECTS_MAGIC;
    space->engine = engine;
    space->space.key.ns = (uint32_t)id;
    space->space.key.shard = (struct tierce_shard){0, 1, 0, 1};
    *out = space;
    return 0;
}

void tierce__objects_close(struct tierce__objects *space)
{
    if (space == NULL)
        return;
    TIERCE_CHECK_MAGIC(space, TIERCE__OBJECTS_MAGIC);
    space->magic = 0;
    tierce__free(space);
}

/* ---- handles ---- */

static struct tierce__object_handle *handle_of(struct tierce__object *object)
{
    struct tierce__object_handle *h =
        TIERCE__CONTAINER_OF(object, struct tierce__object_handle, base);
    TIERCE_CHECK_MAGIC(h, TIERCE__OBJECT_MAGIC);
    return h;
}

static void fill_handle(struct tierce__object_handle *h, struct tierce__objects *space,
                        const struct tierce__key *key, struct tierce__buf *buf,
                        const struct tierce__object_form *form)
{
    TIERCE_DASSERT(form->value_at + form->what.value_bytes <= buf->bytes);
    TIERCE_DASSERT(form->extent.header_bytes < form->value_at);
    *h = (struct tierce__object_handle){.magic = TIERCE__OBJECT_MAGIC,
                                        .space = space,
                                        .key = *key,
                                        .buf = buf,
                                        .header_bytes = form->extent.header_bytes,
                                        .object_bytes = form->extent.object_bytes,
                                        .pieces = tierce__object_pieces(form->what.value_bytes)};
    h->base.value = buf->data + form->value_at;
    h->base.what = form->what;
}

struct tierce__object *tierce__object_open(struct tierce__objects *space,
                                           const struct tierce__key *key, struct tierce__buf *buf,
                                           const struct tierce__object_form *form)
{
    struct tierce__object_handle *h = tierce__alloc(sizeof(*h));
    if (h == NULL) {
        tierce__buf_release(buf);
        return NULL;
    }
    fill_handle(h, space, key, buf, form);
    h->found = true;
    return &h->base;
}

static void free_handle(struct tierce__object_handle *h)
{
    TIERCE_DASSERT((h->buf == NULL) == h->is_small);
    tierce__buf_release(h->buf);
    h->magic = 0;
    tierce__free(h);
}

void tierce__object_release(struct tierce__object *object)
{
    if (object != NULL)
        free_handle(handle_of(object));
}

uint64_t tierce__object_bytes(struct tierce__object *object)
{
    const struct tierce__object_handle *h = handle_of(object);
    if (h->is_small)
        return h->object_bytes;
    uint64_t least = h->space->value_bytes_least;
    return h->object_bytes > least ? h->object_bytes : least;
}

struct tierce__storage_chunk tierce__object_record(const struct tierce__key *key,
                                                   uint64_t object_bytes,
                                                   struct tierce__policy_origin use)
{
    TIERCE_DASSERT(object_bytes > 0);
    struct tierce__storage_chunk chunk = {
        .key = *key, .object_bytes = object_bytes, .block_count = 1, .origin = use};
    memcpy(chunk.first_block, key->hash, sizeof(chunk.first_block));
    return chunk;
}

/* ---- small values ---- */

#define HANDLE_BYTES (tierce__round_up(sizeof(struct tierce__object_handle), 16))

static struct tierce__object *open_copy(struct tierce__objects *space,
                                        const struct tierce__key *key,
                                        struct tierce__object_handle *h,
                                        const struct tierce__object_what *what, uint8_t *value)
{
    TIERCE_DASSERT(what->value_bytes <= TIERCE__SMALL_VALUE_MAX);
    *h = (struct tierce__object_handle){.magic = TIERCE__OBJECT_MAGIC,
                                        .space = space,
                                        .key = *key,
                                        .object_bytes = HANDLE_BYTES + what->value_bytes +
                                                        what->name_bytes + what->note_bytes,
                                        .is_small = true};
    h->base.value = value;
    h->base.what = *what;
    return &h->base;
}

struct tierce__object *tierce__object_open_small(struct tierce__objects *space,
                                                 const struct tierce__key *key, const void *name,
                                                 size_t name_bytes)
{
    struct tierce__small copy;
    void *memory;
    int rc = tierce__smalls_get(space->engine->smalls, &memory, &copy, HANDLE_BYTES, key, name,
                                name_bytes);
    if (rc == TIERCE_E_CHECKSUM)
        tierce__storage_quarantine(space->engine, 0, key, rc);
    if (rc < 0)
        return NULL;
    struct tierce__object *object = open_copy(space, key, memory, &copy.what, copy.value);
    handle_of(object)->found = true;
    return object;
}

/* The value is written behind the handle and needs no pool memory. */
static int create_small(struct tierce__objects *space, struct tierce__object **out,
                        const struct tierce__object_what *what)
{
    TIERCE_DASSERT(tierce__smalls_takes(space->engine->smalls, what));
    uint8_t *memory = tierce__alloc(HANDLE_BYTES + (size_t)what->value_bytes + what->name_bytes +
                                    what->note_bytes);
    if (memory == NULL)
        return -ENOMEM;
    struct tierce__object_what own = *what;
    uint8_t *value = memory + HANDLE_BYTES, *name = value + what->value_bytes;
    own.name = memcpy(name, what->name, what->name_bytes);
    own.note = name + what->name_bytes;
    if (what->note_bytes > 0)
        memcpy(name + what->name_bytes, what->note, what->note_bytes);
    struct tierce__key key = tierce__object_key(&space->space, what->name, what->name_bytes);
    *out = open_copy(space, &key, (struct tierce__object_handle *)(void *)memory, &own, value);
    return 0;
}

int tierce__object_create(struct tierce__objects *space, struct tierce__object **out,
                          const struct tierce__object_what *what)
{
    TIERCE_CHECK_MAGIC(space, TIERCE__OBJECTS_MAGIC);
    struct tierce_engine *engine = space->engine;
    struct tierce__object_form form = {.what = *what};
    if (tierce__engine_inherited(engine) || tierce__engine_mode(engine) != TIERCE_MODE_NORMAL)
        return TIERCE_E_CLOSED;
    int rc = tierce__object_extent(&form.extent, what);
    if (rc < 0)
        return rc;
    if (tierce__smalls_takes(engine->smalls, what))
        return create_small(space, out, what);
    if (form.extent.object_bytes > engine->settings.memory_bytes)
        return TIERCE_E_LIMIT;
    struct tierce__object_handle *h = tierce__alloc(sizeof(*h));
    if (h == NULL)
        return -ENOMEM;
    struct tierce__key key = tierce__object_key(&space->space, what->name, what->name_bytes);
    struct tierce__storage_chunk chunk =
        tierce__object_record(&key, form.extent.object_bytes, tierce__object_use(what, what->hint));
    struct tierce__buf *buf = tierce__storage_reserve(engine, &chunk, NULL);
    if (buf == NULL) {
        tierce__free(h);
        return TIERCE_E_FULL;
    }
    TIERCE_DASSERT(buf->bytes >= form.extent.object_bytes);
    /* Most of a small object is padding. */
    tierce__object_begin(buf->data, &form, &space->space, &key, engine->level_count > 1);
    fill_handle(h, space, &key, buf, &form);
    *out = &h->base;
    return 0;
}

/* ---- filling and verifying ---- */

/* Pieces that end within the first `bytes` of the value; all of them for its end. */
static uint32_t pieces_within(const struct tierce__object_handle *h, uint64_t bytes)
{
    TIERCE_DASSERT(h->done <= h->pieces);
    return bytes >= h->base.what.value_bytes ? h->pieces : (uint32_t)(bytes / TIERCE__OBJECT_PIECE);
}

static uint64_t sum_piece(const struct tierce__object_handle *h, uint32_t index)
{
    TIERCE_DASSERT(index < h->pieces);
    return tierce__sum(h->base.value + (uint64_t)index * TIERCE__OBJECT_PIECE,
                       tierce__object_piece_bytes(h->base.what.value_bytes, index));
}

void tierce__object_filled(struct tierce__object *object, uint64_t bytes)
{
    struct tierce__object_handle *h = handle_of(object);
    TIERCE_ASSERT(!h->found);
    TIERCE_DASSERT(bytes <= h->base.what.value_bytes);
    if (h->is_small) /* summed as a whole */
        return;
    uint64_t *sums = tierce__object_sums(h->buf->data, h->base.what.value_bytes);
    for (uint32_t end = pieces_within(h, bytes); h->done < end; h->done++)
        sums[1 + h->done] = sum_piece(h, h->done);
}

void tierce__object_expire(struct tierce__object *object, uint64_t expires_ms)
{
    struct tierce__object_handle *h = handle_of(object);
    TIERCE_ASSERT(!h->found);
    object->what.expires_ms = expires_ms;
    if (!h->is_small)
        tierce__object_set_expiry(h->buf->data, &object->what, object->value, expires_ms);
}

/* Takes a value that proved wrong out of the tiers that it came from, unless another has come in
 * its place, or is about to. */
static void expel_wrong(const struct tierce__object_handle *h)
{
    TIERCE_DASSERT(h->found && !h->is_small);
    struct tierce_engine *engine = h->space->engine;
    struct tierce__object_name *name = tierce__object_name_take(&engine->object_names, &h->key);
    if (name == NULL)
        return;
    if (tierce__object_name_try(name, tierce__object_name_changes(name))) {
        struct tierce__buf *now = tierce__storage_lease(engine, &h->key);
        if (now == h->buf)
            tierce__objects_expel(engine, 0, &h->key, TIERCE_E_CHECKSUM);
        if (h->buf->source > 0 && (now == h->buf || now == NULL))
            tierce__objects_expel(engine, h->buf->source, &h->key, TIERCE_E_CHECKSUM);
        tierce__buf_release(now);
        tierce__object_name_let_go(name);
    }
    tierce__object_name_drop(name);
}

bool tierce__object_verified(struct tierce__object *object, uint64_t bytes)
{
    struct tierce__object_handle *h = handle_of(object);
    uint64_t round = bytes + TIERCE__OBJECT_PIECE - 1; /* the piece in which the last byte lies */
    TIERCE_ASSERT(h->found);
    if (h->is_small) /* when it was copied */
        return true;
    const uint64_t *sums = tierce__object_sums(h->buf->data, h->base.what.value_bytes);
    for (uint32_t end = pieces_within(h, round); h->done < end; h->done++) {
        if (sum_piece(h, h->done) == sums[1 + h->done])
            continue;
        expel_wrong(h);
        return false;
    }
    return true;
}

void tierce__objects_expel(struct tierce_engine *engine, size_t level,
                           const struct tierce__key *key, int why)
{
    TIERCE_DASSERT(why < 0 && level < TIERCE__TIERS_MAX);
    if (why == TIERCE_E_MISS)
        tierce__storage_drop(engine, level, key, TIERCE__LEFT_EXPIRED);
    else
        tierce__storage_quarantine(engine, level, key, why);
}

/* ---- lookup of presence ---- */

/* Removes the value from memory, if it is unchanged and no thread is changing it. An expired value
 * is removed from all tiers, because all hold the same. */
static void expel_from_memory(struct tierce__objects *space, const struct tierce__key *key,
                              const struct tierce__buf *buf, int why)
{
    TIERCE_DASSERT(why < 0);
    struct tierce_engine *engine = space->engine;
    struct tierce__object_name *name = tierce__object_name_take(&engine->object_names, key);
    if (name == NULL)
        return;
    if (tierce__object_name_try(name, tierce__object_name_changes(name))) {
        struct tierce__buf *now = tierce__storage_lease(engine, key);
        size_t levels = why == TIERCE_E_MISS ? engine->level_count : 1;
        for (size_t level = levels; now == buf && level-- > 0;)
            tierce__objects_expel(engine, level, key, why);
        tierce__buf_release(now);
        tierce__object_name_let_go(name);
    }
    tierce__object_name_drop(name);
}

/* Prefetches the lines that the checks of a small value read. They lie at the beginnings of pages,
 * which share few cache sets, so their misses should overlap. */
static void fetch_beginnings(const struct tierce__buf *buf)
{
    enum { LINE = 64, HEADER_BYTES = 320, FIRST_BYTES = 192 };
    for (size_t at = 0; at < HEADER_BYTES; at += LINE)
        __builtin_prefetch(buf->data + at);
    for (size_t at = 0; at < FIRST_BYTES; at += LINE)
        __builtin_prefetch(buf->data + TIERCE__CHUNK_ALIGN + at);
}

struct tierce__buf *tierce__objects_accept(struct tierce__objects *space,
                                           struct tierce__object_form *form,
                                           struct tierce__buf *buf, const struct tierce__key *key,
                                           const void *name, size_t name_bytes)
{
    uint64_t need;
    if (buf == NULL)
        return NULL;
    fetch_beginnings(buf);
    int rc = tierce__object_parse(form, &need, buf->data, buf->bytes, &space->space, key, name,
                                  name_bytes);
    if (rc == 0 && form->extent.object_bytes > buf->bytes)
        rc = TIERCE_E_FORMAT;
    if (rc == 0 && tierce__object_expired(&form->what))
        rc = TIERCE_E_MISS;
    if (rc == 0)
        return buf;
    expel_from_memory(space, key, buf, rc);
    tierce__buf_release(buf);
    return NULL;
}

int tierce__objects_peek(struct tierce__objects *space, struct tierce__object_form *form,
                         struct tierce__buf **head, size_t level, const struct tierce__key *key,
                         uint64_t deadline_ns)
{
    struct tierce_engine *engine = space->engine;
    TIERCE_DASSERT(level > 0 && level < engine->level_count);
    uint64_t need = TIERCE__OBJECT_HEAD_BYTES, had = 0;
    int rc = TIERCE_E_LIMIT;
    while (rc == TIERCE_E_LIMIT && need > had) {
        had = need;
        struct tierce__buf *buf = tierce__storage_alloc(engine, had);
        if (buf == NULL)
            return TIERCE_E_FULL;
        rc = tierce__storage_read_head(engine, level, key, buf, deadline_ns);
        if (rc < 0) {
            tierce__buf_release(buf);
            return rc;
        }
        rc = tierce__object_parse(form, &need, buf->data, had, &space->space, key, NULL, 0);
        if (rc == 0 && !tierce__object_expired(&form->what)) {
            *head = buf;
            return 0;
        }
        tierce__buf_release(buf);
    }
    return TIERCE_E_MISS;
}

/* ---- replacing ---- */

static struct tierce__policy_origin use_of(const struct tierce__object_handle *h)
{
    return tierce__object_use(&h->base.what, h->base.what.hint);
}

/* `other` has a header's bytes at least. */
static bool has_same_header(const struct tierce__object_handle *h, const struct tierce__buf *other)
{
    TIERCE_DASSERT(other->bytes >= h->header_bytes);
    struct tierce__geometry geometry = {
        .layer_count = 1 + h->pieces, .block_tokens = 1, .block_count = 1};
    return tierce__chunk_same(h->buf->data, other->data, &geometry);
}

/* `other` is as long. Equal sums do not prove equal bytes: a client can choose bytes with the sums
 * of others. */
static bool is_same(const struct tierce__object_handle *h, const struct tierce__buf *other)
{
    TIERCE_DASSERT(other->bytes >= h->object_bytes);
    const uint8_t *cells = h->buf->data + h->header_bytes;
    size_t bytes = (size_t)(h->base.value - cells) + (size_t)h->base.what.value_bytes;
    return has_same_header(h, other) && memcmp(cells, other->data + h->header_bytes, bytes) == 0;
}

/* Whether memory, or a slower tier, holds an identical value. A different value is about to be
 * replaced, so it needs no further check. */
static bool memory_has_same(const struct tierce__object_handle *h)
{
    TIERCE_DASSERT(!h->is_small);
    struct tierce__object_form form;
    struct tierce__buf *old = tierce__storage_lend(h->space->engine, &h->key);
    if (old == NULL || old->bytes != h->buf->bytes || !is_same(h, old)) {
        tierce__buf_release(old);
        return false;
    }
    old = tierce__objects_accept(h->space, &form, old, &h->key, h->base.what.name,
                                 h->base.what.name_bytes);
    tierce__buf_release(old);
    return old != NULL;
}

/* A value that cannot be read in half of the time counts as different; the other half is for
 * removing it. */
static bool reads_the_same(const struct tierce__object_handle *h, size_t level,
                           uint64_t deadline_ns)
{
    TIERCE_DASSERT(level > 0);
    TIERCE_DASSERT(!h->is_small);
    struct tierce_engine *engine = h->space->engine;
    uint64_t now_ns = tierce__now_ns();
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    struct tierce__buf *buf = tierce__storage_alloc(engine, h->object_bytes);
    bool same = buf != NULL &&
                tierce__storage_read_head(engine, level, &h->key, buf, now_ns + left_ns / 2) == 0 &&
                is_same(h, buf);
    tierce__buf_release(buf);
    return same;
}

static bool level_has_same(const struct tierce__object_handle *h, size_t level,
                           uint64_t deadline_ns)
{
    TIERCE_DASSERT(!h->is_small && level < h->space->engine->level_count);
    TIERCE_DASSERT(level > 0);
    struct tierce__object_form form;
    struct tierce__buf *head;
    if (!tierce__objects_level_has(h->space->engine, level, &h->key, deadline_ns) ||
        tierce__objects_peek(h->space, &form, &head, level, &h->key, deadline_ns) < 0)
        return false;
    bool may_be = form.extent.object_bytes == h->object_bytes &&
                  form.extent.header_bytes == h->header_bytes && has_same_header(h, head);
    tierce__buf_release(head);
    return may_be && reads_the_same(h, level, deadline_ns);
}

/* Whether one more small value may wait to be written: half of the pool's buffers may be out of the
 * memory tier, so that there are always some for pages. Buffers in the tier do not count, because
 * they can be evicted. */
static bool may_wait_to_be_written(struct tierce_engine *engine)
{
    struct tierce__pool_stats pool;
    struct tierce__tier_stats memory;
    engine->levels[0].tier->ops->stats(engine->levels[0].tier, &memory);
    tierce__pool_stats(engine->pool, &pool);
    return pool.bufs < memory.chunks + pool.buf_count_max / 2;
}

/* A small value as slower tiers keep it, or NULL: there is no room, and the value stays in memory
 * alone. [out] as: a handle of it, to compare with. */
static struct tierce__buf *make_chunk(struct tierce__object_handle *as,
                                      const struct tierce__object_handle *h)
{
    struct tierce_engine *engine = h->space->engine;
    struct tierce__object_form form = {.what = h->base.what};
    TIERCE_DASSERT(h->is_small);
    if (tierce__object_extent(&form.extent, &form.what) < 0 || !may_wait_to_be_written(engine))
        return NULL;
    struct tierce__buf *buf = tierce__storage_alloc(engine, form.extent.object_bytes);
    if (buf == NULL)
        return NULL;
    tierce__object_begin(buf->data, &form, &h->space->space, &h->key, true);
    fill_handle(as, h->space, &h->key, buf, &form);
    TIERCE_DASSERT(as->header_bytes == form.extent.header_bytes);
    if (h->base.what.value_bytes > 0)
        memcpy(as->base.value, h->base.value, (size_t)h->base.what.value_bytes);
    tierce__object_filled(&as->base, h->base.what.value_bytes);
    tierce__chunk_seal(buf->data, as->header_bytes);
    return buf;
}

/* Under the lock of the name. `chunk`: the value for `levels`, or NULL. Without a page for the
 * value memory holds `chunk`, so that a replacement does not fail after the old value was taken
 * out. */
static int put_small(const struct tierce__object_handle *h, uint32_t levels,
                     struct tierce__buf *chunk)
{
    TIERCE_DASSERT(h->is_small && (levels & 1u) == 0);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce_engine *engine = h->space->engine;
    uint64_t era = tierce__era_enter_now(engine);
    int rc = tierce__smalls_put(engine->smalls, &h->key, &h->base.what, h->base.value, false);
    if (rc == 0)
        tierce__storage_delete(engine, 0, &h->key); /* an older large value */
    if (chunk != NULL) {
        struct tierce__storage_chunk record =
            tierce__object_record(&h->key, chunk->bytes, use_of(h));
        if (rc < 0 && tierce__storage_replace(engine, &record, chunk) == 0) {
            (void)tierce__smalls_remove(engine->smalls, &h->key);
            tierce__objects_shown(engine, chunk);
            rc = 0;
        }
        if (rc == 0)
            tierce__storage_write_one(engine, levels, &record, chunk, true);
    }
    tierce__era_leave(engine, era);
    return rc;
}

/* The level, or memory, holds the value already. It may have replaced an older one a moment ago: by
 * another thread that has not settled that yet, or before a sync that failed. */
static int settle_kept(const struct tierce__object_handle *h, size_t level, uint64_t deadline_ns,
                       bool *unsettled)
{
    TIERCE_DASSERT(level > 0 && level < h->space->engine->level_count);
    struct tierce_engine *engine = h->space->engine;
    if (!tierce__storage_may_return(engine, level, &h->key, deadline_ns))
        return 0;
    if (unsettled == NULL)
        return tierce__storage_settle(engine, level, deadline_ns);
    *unsettled = true;
    return 0;
}

/* The same value is in memory. */
static int keep(const struct tierce__object_handle *h, uint64_t deadline_ns, bool *unsettled)
{
    struct tierce_engine *engine = h->space->engine;
    int rc = 0;
    tierce__storage_touch(
        engine, h->is_small ? 1 : 0, engine->level_count,
        &(struct tierce__tier_uses){.keys = &h->key, .count = 1, .origin = use_of(h)});
    for (size_t level = 1; level < engine->level_count && rc == 0; level++)
        rc = settle_kept(h, level, deadline_ns, unsettled);
    if (rc == 0)
        tierce__count(engine, TIERCE__STAT_objects_kept, 1);
    return rc;
}

/* A small value that only memory has: slower tiers cannot be given it. */
static void miss_chunk(const struct tierce__object_handle *h)
{
    TIERCE_DASSERT(h->is_small);
    struct tierce_engine *engine = h->space->engine;
    for (size_t level = 1; level < engine->level_count; level++)
        tierce__why_refused(engine, level, &h->key, TIERCE_E_FULL);
    tierce__count(engine, TIERCE__STAT_objects_not_written, 1);
    tierce__log_repeated(TIERCE_LOG_WARN, "object_not_written",
                         "reason=\"no memory for the copy for slower tiers\"");
}

/* Under the lock of the name. Tiers forget the old value from the slowest to the fastest: if one
 * fails, faster tiers still have it. */
static int replace_small(const struct tierce__object_handle *h, uint64_t deadline_ns,
                         bool *unsettled)
{
    struct tierce_engine *engine = h->space->engine;
    struct tierce__object_handle as;
    struct tierce__buf *chunk = NULL;
    struct tierce__taking taking = {.deadline_ns = deadline_ns, .unsettled = unsettled};
    int rc = 0;
    TIERCE_DASSERT(h->is_small);
    if (tierce__smalls_same(engine->smalls, &h->key, &h->base.what, h->base.value))
        return keep(h, deadline_ns, unsettled);
    if (engine->level_count > 1) {
        chunk = make_chunk(&as, h);
        rc = tierce__smalls_make_room(engine->smalls, &h->key, &h->base.what);
    }
    for (size_t level = engine->level_count; --level > 0 && rc >= 0;) {
        /* Writing a small value to disk again is faster than reading it to compare. */
        bool is_far = engine->levels[level].health.shared;
        if (is_far && chunk != NULL && level_has_same(&as, level, deadline_ns))
            continue;
        rc = tierce__objects_remove_from(engine, level, &h->key, &taking);
    }
    if (rc >= 0)
        rc = put_small(h, taking.levels, chunk);
    if (rc == 0 && chunk == NULL && engine->level_count > 1)
        miss_chunk(h);
    tierce__buf_release(chunk);
    return rc < 0 ? rc : taking.late;
}

/* The name is held. `levels`: those that are to be given the value. */
static int put_everywhere(const struct tierce__object_handle *h, uint32_t levels)
{
    TIERCE_DASSERT(!h->is_small && (levels & 1u) == 0);
    struct tierce_engine *engine = h->space->engine;
    struct tierce__storage_chunk chunk = tierce__object_record(&h->key, h->object_bytes, use_of(h));
    /* A value published after a clear was not cleared by it. */
    uint64_t era = tierce__era_enter_now(engine);
    int rc = tierce__storage_replace(engine, &chunk, h->buf);
    if (rc == 0) {
        (void)tierce__smalls_remove(engine->smalls, &h->key); /* an older small value */
        tierce__objects_shown(engine, h->buf);
        /* The use that stores it: the next one counts. */
        tierce__storage_touch(engine, 0, 1,
                              &(struct tierce__tier_uses){.keys = &h->key, .count = 1, .used = 1});
        tierce__storage_write_one(engine, levels, &chunk, h->buf, true);
    }
    tierce__era_leave(engine, era);
    return rc;
}

/* Under the lock of the name. In the same order. */
static int replace(const struct tierce__object_handle *h, uint64_t deadline_ns, bool *unsettled)
{
    TIERCE_DASSERT(!h->is_small);
    struct tierce_engine *engine = h->space->engine;
    struct tierce__taking taking = {.deadline_ns = deadline_ns, .unsettled = unsettled};
    int rc = 0;
    if (memory_has_same(h))
        return keep(h, deadline_ns, unsettled);
    for (size_t level = engine->level_count; --level > 0 && rc >= 0;) {
        if (level_has_same(h, level, deadline_ns)) {
            rc = settle_kept(h, level, deadline_ns, unsettled);
            continue;
        }
        rc = tierce__objects_remove_from(engine, level, &h->key, &taking);
    }
    if (rc >= 0)
        rc = put_everywhere(h, taking.levels);
    return rc < 0 ? rc : taking.late;
}

static int publish(struct tierce__object *object, bool *unsettled)
{
    struct tierce__object_handle *h = handle_of(object);
    struct tierce_engine *engine = h->space->engine;
    uint64_t deadline_ns = object->deadline_ns != 0
                               ? object->deadline_ns
                               : tierce__deadline_in_ms(engine->settings.load_ms);
    tierce__object_filled(object, h->base.what.value_bytes);
    TIERCE_DASSERT(h->is_small || h->done == h->pieces);
    if (!h->is_small)
        tierce__chunk_seal(h->buf->data, h->header_bytes);
    int rc = TIERCE_E_CLOSED;
    struct tierce__object_name *name = NULL;
    if (!tierce__engine_inherited(engine) && tierce__engine_mode(engine) == TIERCE_MODE_NORMAL)
        rc = tierce__object_name_begin(&name, &engine->object_names, &h->key, deadline_ns);
    if (rc == 0) {
        rc = h->is_small ? replace_small(h, deadline_ns, unsettled)
                         : replace(h, deadline_ns, unsettled);
        tierce__object_name_end(name);
    }
    free_handle(h);
    if (rc == 0)
        tierce__count(engine, TIERCE__STAT_objects_stored, 1);
    return rc;
}

int tierce__object_publish(struct tierce__object *object)
{
    return publish(object, NULL);
}

int tierce__object_publish_unsettled(struct tierce__object *object, bool *unsettled)
{
    *unsettled = false;
    return publish(object, unsettled);
}
