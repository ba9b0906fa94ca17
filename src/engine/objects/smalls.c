/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small named values: store, find, remove. A call takes the lock of the key's partition. Checksums
 * are computed before and verified after the lock is held, on private copies.
 */
#include "engine/objects/smalls.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/mix.h"
#include "engine/objects/object_form.h"
#include "engine/objects/smalls_private.h"
#include "core/paged/paged.h"

/* ---- life ------------------------------------------------------------------------------------ */

int tierce__smalls_create(struct tierce__smalls **out, struct tierce__tier *memory,
                          struct tierce__pool *pool, const _Atomic uint64_t *walks)
{
    struct tierce__smalls *smalls = tierce__calloc(1, sizeof(*smalls));
    if (smalls == NULL)
        return -ENOMEM;
    struct tierce__pool_stats stats;
    tierce__pool_stats(pool, &stats);
    smalls->memory = memory;
    smalls->pool = pool;
    smalls->walks = walks;
    smalls->seed = tierce__spread(tierce__now_ns()) ^ (uint64_t)(uintptr_t)smalls;
    tierce__small_classes_init(smalls, stats.cap_bytes);
    TIERCE_DASSERT(smalls->partition_count > 0 &&
                   smalls->partition_count <= TIERCE__SMALLS_PARTITIONS);
    for (uint32_t i = 0; i < smalls->partition_count; i++)
        tierce__lock_init(&smalls->partitions[i].lock, TIERCE__LOCK_SMALLS);
    *out = smalls;
    return 0;
}

void tierce__smalls_destroy(struct tierce__smalls *smalls)
{
    if (smalls == NULL)
        return;
    for (uint32_t i = 0; i < smalls->partition_count; i++) {
        struct tierce__small_partition *p = &smalls->partitions[i];
        TIERCE_DASSERT(p->free_number_count <= p->page_count && p->page_count <= p->page_room);
        for (uint32_t n = 0; n < p->page_count; n++)
            tierce__small_page_free(p->pages[n]);
        tierce__free(p->pages);
        tierce__free(p->free_numbers);
        tierce__numbers_fini(&p->table);
        tierce__lock_fini(&p->lock);
    }
    tierce__free(smalls);
}

/* ---- records --------------------------------------------------------------------------------- */

bool tierce__smalls_takes(const struct tierce__smalls *smalls,
                          const struct tierce__object_what *what)
{
    return what->value_bytes <= TIERCE__SMALL_VALUE_MAX &&
           tierce__small_record_bytes(what) <= smalls->record_max;
}

/* The seed is secret, so a client cannot choose names that collide in the table. */
static uint64_t hash_key(const struct tierce__smalls *smalls, const struct tierce__key *key)
{
    TIERCE_DASSERT(key->ns != TIERCE__SMALLS_NS);
    struct {
        uint64_t seed, ns;
        uint8_t hash[TIERCE_HASH_BYTES];
    } message = {.seed = smalls->seed, .ns = key->ns};
    memcpy(message.hash, key->hash, sizeof(message.hash));
    return tierce__sum(&message, sizeof(message));
}

static struct tierce__small_partition *partition_of(struct tierce__smalls *smalls, uint64_t hash)
{
    TIERCE_DASSERT((smalls->partition_count & (smalls->partition_count - 1)) == 0);
    return &smalls->partitions[(hash >> 48) & (smalls->partition_count - 1)];
}

/* The checksum over the value's checksum and its metadata. */
static uint64_t sum_of(const struct tierce__small_record *record, const void *name,
                       const void *note, uint64_t value_sum)
{
    TIERCE_ASSERT(record->name_bytes <= TIERCE__OBJECT_NAME_MAX &&
                  record->note_bytes <= TIERCE__OBJECT_NOTE_MAX);
    struct {
        uint64_t value_sum;
        struct tierce__small_record record;
        uint8_t text[TIERCE__OBJECT_NAME_MAX + TIERCE__OBJECT_NOTE_MAX];
    } message;
    message.value_sum = value_sum;
    message.record = *record;
    message.record.sum = 0;
    memcpy(message.text, name, record->name_bytes);
    if (record->note_bytes > 0)
        memcpy(message.text + record->name_bytes, note, record->note_bytes);
    return tierce__sum(&message, offsetof(__typeof__(message), text) + record->name_bytes +
                                     record->note_bytes);
}

/* Without `coming` and `sum`, which are set when it is stored. */
static struct tierce__small_record describe(uint64_t hash, const struct tierce__key *key,
                                            const struct tierce__object_what *what)
{
    TIERCE_DASSERT(what->name_bytes <= TIERCE__OBJECT_NAME_MAX &&
                   what->note_bytes <= TIERCE__OBJECT_NOTE_MAX &&
                   what->value_bytes <= TIERCE__SMALL_VALUE_MAX);
    return (struct tierce__small_record){.hash = hash,
                                         .expires_ms = what->expires_ms,
                                         .ns = key->ns,
                                         .value_bytes = (uint32_t)what->value_bytes,
                                         .name_bytes = (uint16_t)what->name_bytes,
                                         .note_bytes = (uint16_t)what->note_bytes};
}

static void write_record(struct tierce__small_record *at, const struct tierce__small_record *record,
                         const struct tierce__object_what *what, const void *value)
{
    TIERCE_DASSERT(record->name_bytes == what->name_bytes &&
                   record->note_bytes == what->note_bytes &&
                   record->value_bytes == what->value_bytes);
    uint8_t *bytes = (uint8_t *)(at + 1);
    *at = *record;
    memcpy(bytes, what->name, what->name_bytes);
    if (what->note_bytes > 0)
        memcpy(bytes + what->name_bytes, what->note, what->note_bytes);
    if (what->value_bytes > 0)
        memcpy(bytes + what->name_bytes + what->note_bytes, value, what->value_bytes);
}

static struct tierce__object_what what_of(const struct tierce__small_record *record)
{
    const uint8_t *name = (const uint8_t *)(record + 1);
    return (struct tierce__object_what){.name = name,
                                        .name_bytes = record->name_bytes,
                                        .note = name + record->name_bytes,
                                        .note_bytes = record->note_bytes,
                                        .value_bytes = record->value_bytes,
                                        .expires_ms = record->expires_ms};
}

static size_t bytes_of(const struct tierce__small_record *record)
{
    return sizeof(*record) + record->name_bytes + record->note_bytes + record->value_bytes;
}

/* ---- places: under the lock ------------------------------------------------------------------ */

static struct tierce__small_page *page_at(const struct tierce__small_partition *p, uint32_t place)
{
    TIERCE_DASSERT(place >> TIERCE__SMALLS_SLOT_BITS < p->page_count);
    return p->pages[place >> TIERCE__SMALLS_SLOT_BITS];
}

static uint8_t *mark_at(const struct tierce__small_partition *p, uint32_t place)
{
    TIERCE_DASSERT((place & (TIERCE__SMALLS_SLOTS_MAX - 1)) < page_at(p, place)->slots);
    return &page_at(p, place)->marks[place & (TIERCE__SMALLS_SLOTS_MAX - 1)];
}

/* ---- storing --------------------------------------------------------------------------------- */

/* A page to be touched in the memory tier, or to be freed. */
struct after {
    uint32_t give, touch, generation;
    bool is_new; /* the content of the touched page */
};

/* Takes a place for a record and adds it to the index. Returns NOWHERE with *rc if there is none.
 */
static uint32_t place_record(struct tierce__smalls *smalls, struct tierce__small_partition *p,
                             const struct tierce__small_record *record, struct after *after,
                             int *rc)
{
    tierce__lock_assert_held(&p->lock);
    uint32_t size_class = tierce__small_class_of(smalls, bytes_of(record));
    uint32_t old = tierce__small_index_find(p, record->hash, record->ns);
    bool dropped;
    if (old != TIERCE__SMALLS_NOWHERE && page_at(p, old)->size_class == size_class) {
        tierce__small_uncount(p, old);
        return old;
    }
    uint32_t place = tierce__small_slot_take(smalls, p, size_class, &dropped, rc);
    /* The old value may have been evicted for the slot, or by others while the lock was released.
     */
    old = tierce__small_index_find(p, record->hash, record->ns);
    if (place != TIERCE__SMALLS_NOWHERE && old == TIERCE__SMALLS_NOWHERE &&
        (*rc = tierce__numbers_reserve(&p->table, (size_t)p->table.count + 1)) < 0) {
        after->give = tierce__small_slot_free(p, place);
        return TIERCE__SMALLS_NOWHERE;
    }
    if (place == TIERCE__SMALLS_NOWHERE)
        return place;
    if (old != TIERCE__SMALLS_NOWHERE) {
        tierce__small_uncount(p, old);
        tierce__small_index_move(p, record->hash, old, place);
        after->give = tierce__small_slot_free(p, old);
    } else {
        tierce__numbers_put(&p->table, (uint32_t)record->hash, place);
    }
    TIERCE_DASSERT(page_at(p, place)->size_class == size_class);
    return place;
}

static void tend(struct tierce__smalls *smalls, struct tierce__small_partition *p,
                 const struct after *after)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    tierce__small_page_give(smalls, p, after->give);
    if (after->touch != TIERCE__SMALLS_NOWHERE)
        tierce__small_page_touch(smalls, p, after->touch, after->generation, after->is_new);
}

static const struct after no_after = {.give = TIERCE__SMALLS_NOWHERE,
                                      .touch = TIERCE__SMALLS_NOWHERE};

static void touch_later(const struct tierce__small_partition *p, uint32_t place,
                        struct after *after)
{
    tierce__lock_assert_held(&p->lock);
    after->touch = place >> TIERCE__SMALLS_SLOT_BITS;
    after->generation = page_at(p, place)->generation;
}

int tierce__smalls_put(struct tierce__smalls *smalls, const struct tierce__key *key,
                       const struct tierce__object_what *what, const void *value, bool is_promoted)
{
    TIERCE_ASSERT(tierce__smalls_takes(smalls, what));
    uint64_t hash = hash_key(smalls, key);
    struct tierce__small_partition *p = partition_of(smalls, hash);
    struct tierce__small_record record = describe(hash, key, what);
    uint64_t value_sum = tierce__sum(value, (size_t)what->value_bytes);
    struct after after = no_after;
    int rc = 0;
    tierce__lock_take(&p->lock);
    uint32_t place = place_record(smalls, p, &record, &after, &rc);
    if (place != TIERCE__SMALLS_NOWHERE) {
        /* Under the lock: a walk that begins after this finds it in its first pass. */
        record.coming = (struct tierce__small_coming){
            .since = (uint32_t)(atomic_load(smalls->walks) + 1) & TIERCE__SMALL_SINCE_MASK,
            .is_promoted = is_promoted};
        record.sum = sum_of(&record, what->name, what->note, value_sum);
        TIERCE_ASSERT(bytes_of(&record) <= p->classes[page_at(p, place)->size_class].slot_bytes);
        write_record(tierce__small_at(p, place), &record, what, value);
        p->value_bytes += record.value_bytes;
        rc = 0;
        /* Refilled slots make a page as recent as a new one. It is not used again: otherwise
         * `hazard` would keep full pages because the clock comes round to them. */
        if ((place & (TIERCE__SMALLS_SLOTS_MAX - 1)) == 0) {
            touch_later(p, place, &after);
            after.is_new = true;
        }
    }
    tierce__lock_drop(&p->lock);
    tend(smalls, p, &after);
    return rc;
}

int tierce__smalls_make_room(struct tierce__smalls *smalls, const struct tierce__key *key,
                             const struct tierce__object_what *what)
{
    TIERCE_DASSERT(tierce__smalls_takes(smalls, what));
    uint64_t hash = hash_key(smalls, key);
    struct tierce__small_partition *p = partition_of(smalls, hash);
    uint32_t size_class = tierce__small_class_of(smalls, tierce__small_record_bytes(what));
    struct after after = no_after;
    bool dropped;
    int rc = 0;
    tierce__lock_take(&p->lock);
    /* A class that has a page can evict a value of its own. */
    if (tierce__list_empty(&p->classes[size_class].pages)) {
        uint32_t place = tierce__small_slot_take(smalls, p, size_class, &dropped, &rc);
        if (place != TIERCE__SMALLS_NOWHERE) {
            after.give = tierce__small_slot_free(p, place);
            rc = 0;
        }
    }
    if (rc == 0)
        rc = tierce__numbers_reserve(&p->table, (size_t)p->table.count + 1);
    tierce__lock_drop(&p->lock);
    tend(smalls, p, &after);
    return rc;
}

/* ---- finding --------------------------------------------------------------------------------- */

/* Records a use. Touches the page in the memory tier only if the tier's order can have changed
 * since: at most once per added page and per 134 ms. */
static void use(struct tierce__smalls *smalls, struct tierce__small_partition *p, uint32_t place,
                struct after *after)
{
    tierce__lock_assert_held(&p->lock);
    struct tierce__small_page *page = page_at(p, place);
    TIERCE_DASSERT((*mark_at(p, place) & TIERCE__SMALL_LIVE) != 0);
    uint64_t now =
        atomic_load_explicit(&smalls->adds, memory_order_relaxed) + (tierce__now_ns() >> 27);
    *mark_at(p, place) |= TIERCE__SMALL_USED;
    if (page->touched == now)
        return;
    page->touched = now;
    touch_later(p, place, after);
}

/* The value whose header `record` was read from `from`. */
static void copy_out(struct tierce__small *out, uint8_t *at,
                     const struct tierce__small_record *record,
                     const struct tierce__small_record *from)
{
    TIERCE_DASSERT(record->name_bytes <= TIERCE__OBJECT_NAME_MAX &&
                   record->note_bytes <= TIERCE__OBJECT_NOTE_MAX);
    memcpy(at, record, sizeof(*record));
    memcpy(at + sizeof(*record), from + 1, bytes_of(record) - sizeof(*record));
    out->what = what_of((const struct tierce__small_record *)(void *)at);
    out->value = at + sizeof(*record) + record->name_bytes + record->note_bytes;
}

static int copy_at(struct tierce__small_partition *p, uint32_t place, void **memory,
                   struct tierce__small *out, size_t before, const void *name, size_t name_bytes)
{
    tierce__lock_assert_held(&p->lock);
    const struct tierce__small_record *from = tierce__small_at(p, place);
    struct tierce__small_record record;
    if (!tierce__small_read(&record, p, place))
        return TIERCE_E_CHECKSUM;
    if (name_bytes > 0 && (record.name_bytes != name_bytes ||
                           memcmp((const uint8_t *)(from + 1), name, name_bytes) != 0))
        return TIERCE_E_MISS;
    *memory = tierce__alloc(before + bytes_of(&record));
    if (*memory == NULL)
        return -ENOMEM;
    copy_out(out, (uint8_t *)*memory + before, &record, from);
    return 0;
}

/* Removes a value that is damaged or has expired, unless it was replaced meanwhile. */
static void expel(struct tierce__smalls *smalls, struct tierce__small_partition *p, uint64_t hash,
                  uint32_t ns, uint64_t sum)
{
    uint32_t give = TIERCE__SMALLS_NOWHERE;
    tierce__lock_take(&p->lock);
    uint32_t place = tierce__small_index_find(p, hash, ns);
    if (place != TIERCE__SMALLS_NOWHERE && tierce__small_at(p, place)->sum == sum)
        give = tierce__small_drop(p, place);
    tierce__lock_drop(&p->lock);
    tierce__small_page_give(smalls, p, give);
}

int tierce__smalls_get(struct tierce__smalls *smalls, void **memory, struct tierce__small *out,
                       size_t before, const struct tierce__key *key, const void *name,
                       size_t name_bytes)
{
    TIERCE_ASSERT(before % _Alignof(struct tierce__small_record) == 0);
    uint64_t hash = hash_key(smalls, key), sum = 0;
    struct tierce__small_partition *p = partition_of(smalls, hash);
    struct after after = no_after;
    int rc = TIERCE_E_MISS;
    tierce__lock_take(&p->lock);
    uint32_t place = tierce__small_index_find(p, hash, key->ns);
    if (place != TIERCE__SMALLS_NOWHERE) {
        sum = tierce__small_at(p, place)->sum;
        rc = copy_at(p, place, memory, out, before, name, name_bytes);
        if (rc == 0)
            use(smalls, p, place, &after);
    }
    tierce__lock_drop(&p->lock);
    tend(smalls, p, &after);
    bool is_wrong = rc == TIERCE_E_CHECKSUM;
    if (rc == 0) {
        const struct tierce__small_record *copy =
            (const struct tierce__small_record *)(void *)((uint8_t *)*memory + before);
        is_wrong = copy->ns != key->ns || copy->hash != hash ||
                   sum_of(copy, out->what.name, out->what.note,
                          tierce__sum(out->value, copy->value_bytes)) != sum;
        rc = is_wrong ? TIERCE_E_CHECKSUM : tierce__object_expired(&out->what) ? TIERCE_E_MISS : 0;
        if (rc < 0)
            tierce__free(*memory);
        if (rc < 0 && !is_wrong)
            expel(smalls, p, hash, key->ns, sum);
    }
    if (is_wrong)
        expel(smalls, p, hash, key->ns, sum);
    return rc;
}

bool tierce__smalls_has(struct tierce__smalls *smalls, const struct tierce__key *key,
                        struct tierce__small_coming *coming)
{
    uint64_t hash = hash_key(smalls, key);
    struct tierce__small_partition *p = partition_of(smalls, hash);
    tierce__lock_take(&p->lock);
    uint32_t place = tierce__small_index_find(p, hash, key->ns);
    bool has = place != TIERCE__SMALLS_NOWHERE;
    if (has && coming != NULL)
        *coming = tierce__small_at(p, place)->coming;
    tierce__lock_drop(&p->lock);
    return has;
}

bool tierce__smalls_same(struct tierce__smalls *smalls, const struct tierce__key *key,
                         const struct tierce__object_what *what, const void *value)
{
    uint64_t hash = hash_key(smalls, key);
    struct tierce__small_partition *p = partition_of(smalls, hash);
    struct tierce__small_record wanted = describe(hash, key, what);
    uint64_t value_sum = tierce__sum(value, (size_t)what->value_bytes);
    struct after after = no_after;
    bool same = false;
    tierce__lock_take(&p->lock);
    uint32_t place = tierce__small_index_find(p, hash, key->ns);
    if (place != TIERCE__SMALLS_NOWHERE) {
        struct tierce__small_record record;
        bool is_inside = tierce__small_read(&record, p, place);
        const uint8_t *bytes = (const uint8_t *)(tierce__small_at(p, place) + 1);
        wanted.coming = record.coming;
        wanted.sum = sum_of(&wanted, what->name, what->note, value_sum);
        same = is_inside && memcmp(&record, &wanted, sizeof(wanted)) == 0 &&
               memcmp(bytes, what->name, what->name_bytes) == 0 &&
               (what->note_bytes == 0 ||
                memcmp(bytes + what->name_bytes, what->note, what->note_bytes) == 0) &&
               (what->value_bytes == 0 ||
                memcmp(bytes + what->name_bytes + what->note_bytes, value, what->value_bytes) == 0);
        if (same)
            use(smalls, p, place, &after);
    }
    tierce__lock_drop(&p->lock);
    tend(smalls, p, &after);
    return same;
}

/* ---- forgetting ------------------------------------------------------------------------------ */

bool tierce__smalls_remove(struct tierce__smalls *smalls, const struct tierce__key *key)
{
    uint64_t hash = hash_key(smalls, key);
    struct tierce__small_partition *p = partition_of(smalls, hash);
    uint32_t give = TIERCE__SMALLS_NOWHERE;
    tierce__lock_take(&p->lock);
    uint32_t place = tierce__small_index_find(p, hash, key->ns);
    if (place != TIERCE__SMALLS_NOWHERE)
        give = tierce__small_drop(p, place);
    tierce__lock_drop(&p->lock);
    tierce__small_page_give(smalls, p, give);
    return place != TIERCE__SMALLS_NOWHERE;
}

static uint64_t clear_page(struct tierce__small_partition *p, uint32_t number,
                           const struct tierce__key *of, uint32_t *give)
{
    tierce__lock_assert_held(&p->lock);
    TIERCE_DASSERT(number < p->page_count);
    const struct tierce__small_page *page = p->pages[number];
    uint64_t count = 0;
    for (uint32_t slot = 0; page != NULL && slot < page->slots; slot++) {
        uint32_t place = number << TIERCE__SMALLS_SLOT_BITS | slot;
        if (page->marks[slot] == TIERCE__SMALL_FREE ||
            (of != NULL && tierce__small_at(p, place)->ns != of->ns))
            continue;
        uint32_t empty = tierce__small_drop(p, place);
        *give = empty != TIERCE__SMALLS_NOWHERE ? empty : *give;
        count++;
    }
    return count;
}

uint64_t tierce__smalls_clear(struct tierce__smalls *smalls, const struct tierce__key *of)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < smalls->partition_count; i++) {
        struct tierce__small_partition *p = &smalls->partitions[i];
        bool more = true;
        for (uint32_t n = 0; more; n++) {
            uint32_t give = TIERCE__SMALLS_NOWHERE;
            tierce__lock_take(&p->lock);
            more = n < p->page_count;
            if (more)
                count += clear_page(p, n, of, &give);
            tierce__lock_drop(&p->lock);
            tierce__small_page_give(smalls, p, give);
        }
    }
    return count;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static uint64_t count_page(const struct tierce__small_partition *p, uint32_t number,
                           const struct tierce__key *of)
{
    tierce__lock_assert_held(&p->lock);
    TIERCE_DASSERT(number < p->page_count);
    const struct tierce__small_page *page = p->pages[number];
    uint64_t count = 0;
    for (uint32_t slot = 0; page != NULL && slot < page->slots; slot++)
        count += page->marks[slot] != TIERCE__SMALL_FREE &&
                 tierce__small_at(p, number << TIERCE__SMALLS_SLOT_BITS | slot)->ns == of->ns;
    return count;
}

uint64_t tierce__smalls_count(struct tierce__smalls *smalls, const struct tierce__key *of)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < smalls->partition_count; i++) {
        struct tierce__small_partition *p = &smalls->partitions[i];
        bool more = true;
        for (uint32_t n = 0; more; n++) {
            tierce__lock_take(&p->lock);
            more = n < p->page_count;
            if (more)
                count += count_page(p, n, of);
            tierce__lock_drop(&p->lock);
        }
    }
    return count;
}

/* The copy of a part of a page. */
struct copies {
    uint8_t *bytes;
    size_t count;
};

#define PART_BITS  7
#define PART_SLOTS (1u << PART_BITS)
#define PARTS_MAX  64u /* parts without a value of the namespace, before the lock is released */

static size_t round_up(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

/* Copies the metadata of the values in the part at a place. Under the lock. */
static void copy_part(struct copies *copies, const struct tierce__small_partition *p,
                      uint32_t place, const struct tierce__key *of)
{
    tierce__lock_assert_held(&p->lock);
    TIERCE_DASSERT(place % PART_SLOTS == 0);
    const struct tierce__small_page *page = page_at(p, place);
    uint32_t slot = place & (TIERCE__SMALLS_SLOTS_MAX - 1), end = slot + PART_SLOTS;
    for (; slot < end && slot < page->slots; slot++, place++) {
        if (page->marks[slot] == TIERCE__SMALL_FREE) /* the page may have no buffer yet */
            continue;
        struct tierce__small_record record;
        if (!tierce__small_read(&record, p, place) || record.ns != of->ns)
            continue;
        if (copies->bytes == NULL)
            copies->bytes =
                tierce__alloc((size_t)PART_SLOTS * p->classes[page->size_class].slot_bytes);
        if (copies->bytes == NULL)
            return;
        size_t text_bytes = (size_t)record.name_bytes + record.note_bytes;
        uint8_t *to = copies->bytes + copies->count;
        TIERCE_DASSERT(copies->count + sizeof(record) + text_bytes <=
                       (size_t)PART_SLOTS * p->classes[page->size_class].slot_bytes);
        memcpy(to, &record, sizeof(record));
        memcpy(to + sizeof(record), tierce__small_at(p, place) + 1, text_bytes);
        copies->count += round_up(sizeof(record) + text_bytes);
    }
}

static void tell_part(const struct copies *copies, tierce__smalls_each_fn *each, void *arg)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    for (size_t at = 0; at < copies->count;) {
        const struct tierce__small_record *record =
            (const struct tierce__small_record *)(const void *)(copies->bytes + at);
        struct tierce__object_what what = what_of(record);
        if (!tierce__object_expired(&what))
            each(arg, &what, record->coming);
        at += round_up(sizeof(*record) + record->name_bytes + record->note_bytes);
    }
}

/* A cursor is a partition and the place of the first slot of a part in it. */
#define PLACE_BITS (32 - PART_BITS)
_Static_assert(TIERCE__SMALLS_PARTITIONS <= 1u << (TIERCE__SMALLS_CURSOR_BITS - PLACE_BITS),
               "every partition has a number in a cursor");

/* Advances to the next part of an existing page; returns false at the end of the partition. */
static bool find_part(const struct tierce__small_partition *p, uint64_t *place)
{
    tierce__lock_assert_held(&p->lock);
    for (; *place >> TIERCE__SMALLS_SLOT_BITS < p->page_count;
         *place = ((*place >> TIERCE__SMALLS_SLOT_BITS) + 1) << TIERCE__SMALLS_SLOT_BITS) {
        const struct tierce__small_page *page = page_at(p, (uint32_t)*place);
        if (page != NULL && (*place & (TIERCE__SMALLS_SLOTS_MAX - 1)) < page->slots)
            return true;
    }
    return false;
}

bool tierce__smalls_scan(struct tierce__smalls *smalls, uint64_t *cursor,
                         const struct tierce__key *of, tierce__smalls_each_fn *each, void *arg)
{
    uint64_t partition = *cursor >> PLACE_BITS;
    uint64_t place = (*cursor & ((1ULL << PLACE_BITS) - 1)) << PART_BITS;
    struct copies copies = {0};
    if (partition >= smalls->partition_count)
        return false;
    struct tierce__small_partition *p = &smalls->partitions[partition];
    tierce__lock_take(&p->lock);
    bool has_more = find_part(p, &place);
    for (uint32_t i = 0; has_more && copies.count == 0 && i < PARTS_MAX; i++) {
        copy_part(&copies, p, (uint32_t)place, of);
        place += PART_SLOTS;
        has_more = find_part(p, &place);
    }
    tierce__lock_drop(&p->lock);
    tell_part(&copies, each, arg);
    tierce__free(copies.bytes);
    if (!has_more) {
        partition++;
        place = 0;
    }
    *cursor = partition << PLACE_BITS | place >> PART_BITS;
    TIERCE_DASSERT(*cursor >> TIERCE__SMALLS_CURSOR_BITS == 0);
    return partition < smalls->partition_count;
}

void tierce__smalls_stats(struct tierce__smalls *smalls, struct tierce__smalls_stats *out)
{
    *out = (struct tierce__smalls_stats){0};
    for (uint32_t i = 0; i < smalls->partition_count; i++) {
        struct tierce__small_partition *p = &smalls->partitions[i];
        tierce__lock_take(&p->lock);
        TIERCE_DASSERT(p->live_pages + p->free_number_count <= p->page_count);
        out->values += p->table.count;
        out->value_bytes += p->value_bytes;
        out->pages += p->live_pages;
        out->page_bytes += p->page_bytes;
        out->table_bytes += tierce__numbers_bytes(&p->table);
        out->evicted_values += p->evicted_values;
        tierce__lock_drop(&p->lock);
    }
}
