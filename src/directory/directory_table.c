/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/directory_private.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"

#define SEGMENT_BYTES (TIERCE__DIRECTORY_SEGMENT * sizeof(struct tierce__directory_entry))
#define ENTRIES_MAX   (1u << 24)
#define LISTS_MAX     ((1u << 24) - 2)
#define LIST_ROOM     2u
#define BATCH_MAX     1024u
#define LISTS_FIRST   64u
#define LIST_END      ((uintptr_t)UINT32_MAX << 1 | 1)

/* ---- words ----------------------------------------------------------------------------------- */

static uint32_t slot_of(uint32_t holder)
{
    return holder >> 16;
}

static uint32_t epoch_of(uint32_t holder)
{
    return holder >> 8 & 0xff;
}

static uint32_t tiers_of(uint32_t holder)
{
    return holder & 0xff;
}

static bool is_list(uint32_t word)
{
    return word != 0 && tiers_of(word) == 0;
}

static uint32_t list_word(uint32_t number)
{
    return (number + 1) << 8;
}

static uint32_t list_number(uint32_t word)
{
    TIERCE_DASSERT(is_list(word));
    return (word >> 8) - 1;
}

static uint32_t view_of(const struct tierce__directory *directory, uint32_t holder)
{
    TIERCE_DASSERT(tiers_of(holder) != 0 && slot_of(holder) < directory->opts.workers_max);
    return atomic_load_explicit(&directory->slots[slot_of(holder)].view, memory_order_acquire);
}

/* ---- places ---------------------------------------------------------------------------------- */

struct place {
    struct tierce__directory_shard *shard;
    uint32_t hash;
};

static struct place place_of(const struct tierce__directory *directory,
                             const struct tierce__directory_key *key)
{
    uint64_t mixed = tierce__mix(key->high ^ directory->seed) ^ key->low;
    mixed = tierce__mix(mixed);
    return (struct place){&directory->shards[mixed % TIERCE__DIRECTORY_SHARDS],
                          (uint32_t)(mixed >> 32)};
}

static struct tierce__directory_entry *entry_at(const struct tierce__directory_shard *shard,
                                                uint32_t number)
{
    TIERCE_DASSERT(number < shard->fresh);
    return &shard->segments[number / TIERCE__DIRECTORY_SEGMENT][number % TIERCE__DIRECTORY_SEGMENT];
}

static uint32_t find_entry(const struct place *place, const struct tierce__directory_key *key)
{
    TIERCE__NUMBERS_FOR_EACH (it, &place->shard->table, place->hash) {
        if (memcmp(entry_at(place->shard, it.number)->key, key, sizeof(*key)) == 0)
            return it.number;
    }
    return TIERCE__NUMBER_NONE;
}

/* ---- memory ---------------------------------------------------------------------------------- */

int tierce__directory_table_create(struct tierce__directory *directory)
{
    size_t bytes = TIERCE__DIRECTORY_SHARDS * sizeof(*directory->shards);
    directory->shards = tierce__alloc_aligned(_Alignof(struct tierce__directory_shard), bytes);
    if (directory->shards == NULL)
        return -ENOMEM;
    memset(directory->shards, 0, bytes);
    for (uint32_t i = 0; i < TIERCE__DIRECTORY_SHARDS; i++) {
        tierce__lock_init(&directory->shards[i].lock, TIERCE__LOCK_DIRECTORY_SHARD);
        directory->shards[i].list_link = LIST_END;
    }
    return 0;
}

void tierce__directory_table_destroy(struct tierce__directory *directory)
{
    for (uint32_t i = 0; directory->shards != NULL && i < TIERCE__DIRECTORY_SHARDS; i++) {
        struct tierce__directory_shard *shard = &directory->shards[i];
        for (uint32_t j = 0; j < shard->segment_count; j++)
            tierce__free(shard->segments[j]);
        for (uint32_t j = 0; j < shard->list_count; j++) {
            if ((shard->lists[j] & 1) == 0)
                tierce__free((void *)shard->lists[j]); /* NOLINT: a tagged pointer */
        }
        tierce__free((void *)shard->segments);
        tierce__free(shard->lists);
        tierce__numbers_fini(&shard->table);
        tierce__lock_fini(&shard->lock);
    }
    tierce__free(directory->shards);
}

static bool has_room(const struct tierce__directory *directory, uint64_t bytes)
{
    uint64_t used = atomic_load_explicit(&directory->bytes, memory_order_relaxed);
    return directory->opts.bytes_max == 0 || used + bytes <= directory->opts.bytes_max;
}

static void count_bytes(struct tierce__directory *directory, int64_t bytes)
{
    atomic_fetch_add_explicit(&directory->bytes, (uint64_t)bytes, memory_order_relaxed);
}

/* Room in the table for one more number. */
static int reserve_cell(struct tierce__directory *directory, struct tierce__directory_shard *shard)
{
    uint64_t before = tierce__numbers_bytes(&shard->table);
    /* Fuller than other tables: see the bound of memory in directory_private.h. */
    bool is_full =
        (uint64_t)(shard->table.count + 1) * 6 * sizeof(*shard->table.cells) > before * 5;
    if (!is_full)
        return 0;
    if (!has_room(directory, before))
        return -ENOMEM;
    int rc = tierce__numbers_reserve(&shard->table, (size_t)shard->table.count + 1);
    if (rc == 0)
        count_bytes(directory, (int64_t)(tierce__numbers_bytes(&shard->table) - before));
    return rc == 0 ? 0 : -ENOMEM;
}

static int add_segment(struct tierce__directory *directory, struct tierce__directory_shard *shard)
{
    if (shard->fresh >= ENTRIES_MAX || !has_room(directory, SEGMENT_BYTES))
        return -ENOMEM;
    int rc = TIERCE__GROW(shard->segments, shard->segment_room, shard->segment_count + 1u, 16);
    if (rc < 0)
        return rc;
    struct tierce__directory_entry *segment = tierce__alloc(SEGMENT_BYTES);
    if (segment == NULL)
        return -ENOMEM;
    shard->segments[shard->segment_count++] = segment;
    count_bytes(directory, SEGMENT_BYTES);
    return 0;
}

/* An entry for a key that has none. TIERCE__NUMBER_NONE: no memory. */
static uint32_t add_entry(struct tierce__directory *directory, const struct place *place,
                          const struct tierce__directory_key *key, uint32_t holder)
{
    struct tierce__directory_shard *shard = place->shard;
    if (reserve_cell(directory, shard) < 0)
        return TIERCE__NUMBER_NONE;
    bool is_fresh = shard->free_link == 0;
    if (is_fresh && shard->fresh == shard->segment_count * TIERCE__DIRECTORY_SEGMENT &&
        add_segment(directory, shard) < 0)
        return TIERCE__NUMBER_NONE;
    uint32_t number = is_fresh ? shard->fresh++ : shard->free_link - 1;
    struct tierce__directory_entry *entry = entry_at(shard, number);
    if (!is_fresh)
        shard->free_link = entry->key[0];
    memcpy(entry->key, key, sizeof(entry->key));
    entry->holders = holder;
    tierce__numbers_put(&shard->table, place->hash, number);
    return number;
}

static void remove_entry(const struct place *place, uint32_t number)
{
    struct tierce__directory_shard *shard = place->shard;
    struct tierce__directory_entry *entry = entry_at(shard, number);
    tierce__numbers_erase(&shard->table, place->hash, number);
    entry->holders = 0;
    entry->key[0] = shard->free_link;
    shard->free_link = number + 1;
}

/* ---- lists of holders ------------------------------------------------------------------------ */

static size_t list_bytes(uint32_t room)
{
    return sizeof(struct tierce__directory_list) + room * sizeof(uint32_t);
}

static struct tierce__directory_list *list_at(const struct tierce__directory_shard *shard,
                                              uint32_t number)
{
    TIERCE_DASSERT(number < shard->list_count && (shard->lists[number] & 1) == 0);
    return (struct tierce__directory_list *)shard->lists[number]; /* NOLINT: a tagged pointer */
}

/* Room in shard->lists for one more. */
static int reserve_list(struct tierce__directory *directory, struct tierce__directory_shard *shard)
{
    uint32_t room = shard->list_room;
    if (shard->list_link != LIST_END)
        return 0;
    if (shard->list_count >= LISTS_MAX)
        return -ENOMEM;
    if (shard->list_count < room)
        return 0;
    uint64_t more = (room > 0 ? room : LISTS_FIRST) * sizeof(shard->lists[0]);
    if (!has_room(directory, more))
        return -ENOMEM;
    int rc = TIERCE__GROW(shard->lists, shard->list_room, room + 1u, LISTS_FIRST);
    if (rc == 0)
        count_bytes(directory, (int64_t)((shard->list_room - room) * sizeof(shard->lists[0])));
    return rc;
}

/* The number of a new list with room for `room`. Below zero: no memory. */
static int64_t add_list(struct tierce__directory *directory, struct tierce__directory_shard *shard)
{
    if (reserve_list(directory, shard) < 0 || !has_room(directory, list_bytes(LIST_ROOM)))
        return -ENOMEM;
    struct tierce__directory_list *list = tierce__alloc(list_bytes(LIST_ROOM));
    if (list == NULL)
        return -ENOMEM;
    *list = (struct tierce__directory_list){.room = LIST_ROOM};
    count_bytes(directory, (int64_t)list_bytes(LIST_ROOM));
    uint32_t number = shard->list_count;
    if (shard->list_link != LIST_END) {
        number = (uint32_t)(shard->list_link >> 1);
        shard->list_link = shard->lists[number];
    } else {
        shard->list_count++;
    }
    shard->lists[number] = (uintptr_t)list;
    return number;
}

static void free_list(struct tierce__directory *directory, struct tierce__directory_shard *shard,
                      uint32_t number)
{
    struct tierce__directory_list *list = list_at(shard, number);
    count_bytes(directory, -(int64_t)list_bytes(list->room));
    tierce__free(list);
    shard->lists[number] = shard->list_link;
    shard->list_link = (uintptr_t)number << 1 | 1;
}

/* Room in a list for one more holder. */
static int grow_list(struct tierce__directory *directory, struct tierce__directory_shard *shard,
                     uint32_t number)
{
    struct tierce__directory_list *list = list_at(shard, number);
    uint32_t room = list->room * 2;
    size_t more = list_bytes(room) - list_bytes(list->room);
    if (list->count < list->room)
        return 0;
    if (!has_room(directory, more))
        return -ENOMEM;
    list = tierce__realloc(list, list_bytes(room));
    if (list == NULL)
        return -ENOMEM;
    list->room = room;
    shard->lists[number] = (uintptr_t)list;
    count_bytes(directory, (int64_t)more);
    return 0;
}

/* ---- the holders of an entry ----------------------------------------------------------------- */

/* Their words. */
static uint32_t *holders_of(const struct tierce__directory_shard *shard,
                            struct tierce__directory_entry *entry, uint32_t *count)
{
    TIERCE_DASSERT(entry->holders != 0);
    if (!is_list(entry->holders)) {
        *count = 1;
        return &entry->holders;
    }
    struct tierce__directory_list *list = list_at(shard, list_number(entry->holders));
    *count = list->count;
    return list->holders;
}

/* The word of a worker, and its place among them. NULL: it is not there. */
static uint32_t *find_holder(const struct tierce__directory_shard *shard,
                             struct tierce__directory_entry *entry, uint32_t slot, uint32_t *at)
{
    uint32_t count;
    uint32_t *holders = holders_of(shard, entry, &count);
    for (uint32_t i = 0; i < count; i++) {
        if (slot_of(holders[i]) == slot) {
            *at = i;
            return &holders[i];
        }
    }
    return NULL;
}

/* A second or later holder. */
static int add_holder(struct tierce__directory *directory, struct tierce__directory_shard *shard,
                      struct tierce__directory_entry *entry, uint32_t holder)
{
    if (!is_list(entry->holders)) {
        int64_t number = add_list(directory, shard);
        if (number < 0)
            return -ENOMEM;
        struct tierce__directory_list *list = list_at(shard, (uint32_t)number);
        list->holders[list->count++] = entry->holders;
        entry->holders = list_word((uint32_t)number);
    }
    uint32_t number = list_number(entry->holders);
    if (grow_list(directory, shard, number) < 0)
        return -ENOMEM;
    struct tierce__directory_list *list = list_at(shard, number);
    list->holders[list->count++] = holder;
    return 0;
}

/* Its group has them, too: a slot changes its group only while it has none. */
static void count_word(struct tierce__directory *directory, struct tierce__directory_shard *shard,
                       uint32_t slot, int64_t by)
{
    struct tierce__directory_slot *s = &directory->slots[slot];
    /* Before its last word is gone: then others may take the slot. */
    uint32_t group = s->group_at, owner = s->owner_at;
    TIERCE_DASSERT(by > 0 || shard->holders > 0);
    shard->holders += (uint64_t)by;
    /* In this order: a group without words has no slot with words. Pairs with find_free's load. */
    atomic_fetch_add_explicit(&s->words, by, memory_order_release);
    atomic_fetch_add_explicit(&directory->group_words[group], by, memory_order_release);
    if (owner != TIERCE__NUMBER_NONE)
        atomic_fetch_add_explicit(&directory->group_words[owner], by, memory_order_release);
}

/* The last one takes the entry with it. */
static void remove_holder(struct tierce__directory *directory, const struct place *place,
                          uint32_t number, uint32_t at)
{
    struct tierce__directory_shard *shard = place->shard;
    struct tierce__directory_entry *entry = entry_at(shard, number);
    uint32_t count;
    count_word(directory, shard, slot_of(holders_of(shard, entry, &count)[at]), -1);
    TIERCE_DASSERT(at < count);
    if (!is_list(entry->holders)) {
        remove_entry(place, number);
        return;
    }
    uint32_t of = list_number(entry->holders);
    struct tierce__directory_list *list = list_at(shard, of);
    TIERCE_DASSERT(at < list->count && list->count >= 2);
    list->holders[at] = list->holders[--list->count];
    if (list->count > 1)
        return;
    entry->holders = list->holders[0];
    free_list(directory, shard, of);
}

/* ---- changes --------------------------------------------------------------------------------- */

static void count_key(struct tierce__directory *directory, uint32_t slot, int64_t by)
{
    atomic_fetch_add_explicit(&directory->slots[slot].keys, by, memory_order_relaxed);
}

/* Of the tiers with a bit in `tiers`. */
static void count_tiers(struct tierce__directory *directory, uint32_t slot, uint32_t tiers,
                        int64_t by)
{
    for (; tiers != 0; tiers &= tiers - 1)
        atomic_fetch_add_explicit(&directory->slots[slot].tier_keys[(unsigned)__builtin_ctz(tiers)],
                                  by, memory_order_relaxed);
}

static bool has_less(const struct tierce__directory *directory, uint32_t group, uint64_t most)
{
    return atomic_load_explicit(&directory->group_words[group], memory_order_relaxed) <
           (int64_t)most;
}

/* Whether the worker's group, and its owner, may have one more. */
static bool may_hold(const struct tierce__directory *directory, uint32_t slot)
{
    uint64_t most = directory->opts.group_holders_max;
    const struct tierce__directory_slot *s = &directory->slots[slot];
    return most == 0 ||
           (has_less(directory, s->group_at, most) &&
            (s->owner_at == TIERCE__NUMBER_NONE || has_less(directory, s->owner_at, most)));
}

static int put_locked(struct tierce__directory *directory, const struct place *place,
                      const struct tierce__directory_key *key, uint32_t holder)
{
    struct tierce__directory_shard *shard = place->shard;
    uint32_t number = find_entry(place, key), at, slot = slot_of(holder);
    if (number == TIERCE__NUMBER_NONE) {
        if (!may_hold(directory, slot) ||
            add_entry(directory, place, key, holder) == TIERCE__NUMBER_NONE)
            return -ENOMEM;
        count_word(directory, shard, slot, 1);
        count_key(directory, slot, 1);
        count_tiers(directory, slot, tiers_of(holder), 1);
        return 0;
    }
    struct tierce__directory_entry *entry = entry_at(shard, number);
    uint32_t *known = find_holder(shard, entry, slot, &at);
    if (known != NULL && epoch_of(*known) == epoch_of(holder)) {
        count_tiers(directory, slot, tiers_of(holder) & ~tiers_of(*known), 1);
        *known |= holder;
        return 0;
    }
    if (known != NULL)
        *known = holder; /* of an earlier epoch */
    else if (!may_hold(directory, slot) || add_holder(directory, shard, entry, holder) < 0)
        return -ENOMEM;
    else
        count_word(directory, shard, slot, 1);
    count_key(directory, slot, 1);
    count_tiers(directory, slot, tiers_of(holder), 1);
    return 0;
}

static void take_locked(struct tierce__directory *directory, const struct place *place,
                        const struct tierce__directory_key *key, uint32_t holder)
{
    struct tierce__directory_shard *shard = place->shard;
    uint32_t number = find_entry(place, key), at;
    if (number == TIERCE__NUMBER_NONE)
        return;
    uint32_t *known = find_holder(shard, entry_at(shard, number), slot_of(holder), &at);
    if (known == NULL || epoch_of(*known) != epoch_of(holder))
        return;
    uint32_t left = tiers_of(*known) & ~tiers_of(holder);
    count_tiers(directory, slot_of(holder), tiers_of(*known) & tiers_of(holder), -1);
    if (left != 0) {
        *known = tierce__directory_holder(slot_of(holder), epoch_of(holder), left);
        return;
    }
    remove_holder(directory, place, number, at);
    count_key(directory, slot_of(holder), -1);
}

/* A part of a batch, in the order of its shards. */
struct batch {
    struct place places[BATCH_MAX];
    uint16_t order[BATCH_MAX]; /* of the changes: shard by shard, otherwise as they came */
    uint16_t ends[TIERCE__DIRECTORY_SHARDS];
};

static uint32_t shard_number(const struct tierce__directory *directory, const struct place *place)
{
    return (uint32_t)(place->shard - directory->shards);
}

static void sort(const struct tierce__directory *directory, struct batch *batch,
                 const struct tierce__directory_change *changes, size_t count)
{
    uint16_t at[TIERCE__DIRECTORY_SHARDS + 1] = {0};
    for (size_t i = 0; i < count; i++) {
        batch->places[i] = place_of(directory, &changes[i].key);
        at[shard_number(directory, &batch->places[i]) + 1]++;
    }
    for (uint32_t i = 0; i < TIERCE__DIRECTORY_SHARDS; i++) {
        at[i + 1] = (uint16_t)(at[i + 1] + at[i]);
        batch->ends[i] = at[i + 1];
    }
    for (size_t i = 0; i < count; i++)
        batch->order[at[shard_number(directory, &batch->places[i])]++] = (uint16_t)i;
}

/* The cache misses of one shard's changes are in flight together. */
static void fetch(const struct batch *batch, const struct tierce__directory_shard *shard,
                  uint32_t from, uint32_t to)
{
    if (shard->table.cells == NULL)
        return;
    for (uint32_t i = from; i < to; i++)
        tierce__numbers_prefetch(&shard->table, batch->places[batch->order[i]].hash);
    for (uint32_t i = from; i < to; i++) {
        struct tierce__probe probe =
            tierce__numbers_first(&shard->table, batch->places[batch->order[i]].hash);
        if (probe.number != TIERCE__NUMBER_NONE)
            __builtin_prefetch(entry_at(shard, probe.number));
    }
}

/* How many of the changes from order[from] on, before order[to], are of one key and alike, so that
 * they are one change of several tiers, *tiers as bits. */
static uint32_t run_of(uint32_t *tiers, const struct batch *batch,
                       const struct tierce__directory_change *changes, uint32_t from, uint32_t to)
{
    const struct tierce__directory_change *first = &changes[batch->order[from]];
    uint32_t count = 0;
    *tiers = 0;
    for (; from + count < to; count++) {
        const struct tierce__directory_change *c = &changes[batch->order[from + count]];
        if (c->admitted != first->admitted || memcmp(&c->key, &first->key, sizeof(c->key)) != 0 ||
            (c->tier >= TIERCE__DIRECTORY_TIERS_MAX && count > 0))
            break;
        if (c->tier >= TIERCE__DIRECTORY_TIERS_MAX)
            return 1; /* no such tier */
        *tiers |= 1u << c->tier;
    }
    return count;
}

/* The changes order[from] to order[to] - 1 are of this shard. Returns how many it left out. */
static uint64_t apply_shard(struct tierce__directory *directory, const struct batch *batch,
                            const struct tierce__directory_change *changes, uint32_t from,
                            uint32_t to, uint32_t holder_of_none)
{
    uint64_t left_out = 0;
    for (uint32_t count; from < to; from += count) {
        const struct tierce__directory_change *c = &changes[batch->order[from]];
        const struct place *place = &batch->places[batch->order[from]];
        uint32_t tiers;
        count = run_of(&tiers, batch, changes, from, to);
        TIERCE_DASSERT(count > 0);
        if (tiers == 0)
            left_out++;
        else if (!c->admitted)
            take_locked(directory, place, &c->key, holder_of_none | tiers);
        else if (put_locked(directory, place, &c->key, holder_of_none | tiers) < 0)
            left_out += count;
    }
    return left_out;
}

static uint64_t apply_batch(struct tierce__directory *directory, struct batch *batch,
                            const struct tierce__directory_change *changes, size_t count,
                            uint32_t slot, uint32_t epoch)
{
    uint64_t left_out = 0;
    sort(directory, batch, changes, count);
    for (uint32_t i = 0, from = 0; i < TIERCE__DIRECTORY_SHARDS; from = batch->ends[i++]) {
        if (from == batch->ends[i])
            continue;
        tierce__lock_take(&directory->shards[i].lock);
        fetch(batch, &directory->shards[i], from, batch->ends[i]);
        left_out += apply_shard(directory, batch, changes, from, batch->ends[i],
                                tierce__directory_holder(slot, epoch, 0));
        tierce__lock_drop(&directory->shards[i].lock);
    }
    return left_out;
}

uint64_t tierce__directory_apply(struct tierce__directory *directory,
                                 const struct tierce__directory_change *changes, size_t count,
                                 uint32_t slot, uint32_t epoch)
{
    struct batch batch;
    uint64_t left_out = 0;
    TIERCE_DASSERT(slot < directory->opts.workers_max);
    for (size_t i = 0; i < count; i += BATCH_MAX) {
        size_t part = count - i < BATCH_MAX ? count - i : BATCH_MAX;
        left_out += apply_batch(directory, &batch, changes + i, part, slot, epoch);
    }
    return left_out;
}

/* ---- reading --------------------------------------------------------------------------------- */

uint32_t tierce__directory_copy(struct tierce__directory *directory,
                                const struct tierce__directory_key *key, uint32_t *holders,
                                uint32_t room)
{
    struct place place = place_of(directory, key);
    uint32_t count = 0;
    tierce__lock_take(&place.shard->lock);
    uint32_t number = find_entry(&place, key);
    if (number != TIERCE__NUMBER_NONE) {
        const uint32_t *words = holders_of(place.shard, entry_at(place.shard, number), &count);
        memcpy(holders, words, (count < room ? count : room) * sizeof(*words));
    }
    tierce__lock_drop(&place.shard->lock);
    return count;
}

/* ---- cleaning -------------------------------------------------------------------------------- */

static void clean_entry(struct tierce__directory *directory, struct tierce__directory_shard *shard,
                        uint32_t number)
{
    struct tierce__directory_entry *entry = entry_at(shard, number);
    for (uint32_t at = 0; entry->holders != 0;) {
        uint32_t count;
        uint32_t *holders = holders_of(shard, entry, &count);
        if (at >= count)
            return;
        uint32_t view = view_of(directory, holders[at]);
        if (tierce__directory_view_has(view, holders[at])) {
            if (tierce__directory_age(view, holders[at]) > 1)
                holders[at] = tierce__directory_holder(
                    slot_of(holders[at]), ((view >> 16) - 1) & 0xff, tiers_of(holders[at]));
            at++;
            continue;
        }
        struct tierce__directory_key key;
        memcpy(&key, entry->key, sizeof(key));
        struct place place = place_of(directory, &key);
        TIERCE_DASSERT(place.shard == shard);
        remove_holder(directory, &place, number, at);
    }
}

bool tierce__directory_clean_shard(struct tierce__directory *directory, uint32_t shard,
                                   uint32_t *at, uint32_t count)
{
    struct tierce__directory_shard *s = &directory->shards[shard];
    tierce__lock_take(&s->lock);
    for (; count > 0 && *at < s->fresh; count--)
        clean_entry(directory, s, (*at)++);
    bool more = *at < s->fresh;
    tierce__lock_drop(&s->lock);
    return more;
}

/* ---- figures --------------------------------------------------------------------------------- */

void tierce__directory_table_stats(struct tierce__directory *directory,
                                   struct tierce__directory_stats *out)
{
    for (uint32_t i = 0; i < TIERCE__DIRECTORY_SHARDS; i++) {
        struct tierce__directory_shard *shard = &directory->shards[i];
        tierce__lock_take(&shard->lock);
        out->keys += shard->table.count;
        out->holders += shard->holders;
        tierce__lock_drop(&shard->lock);
    }
    out->bytes = atomic_load_explicit(&directory->bytes, memory_order_relaxed);
}
