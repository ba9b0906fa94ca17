/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records in this process's memory; they are lost when it ends. URI: "".
 *
 * A space is divided into shards by the leading bits of the mixed key. Each shard is a table with a
 * latch that is held for a few keys at a time. Records have their compact form.
 */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/lock.h"
#include "manager/meta/meta_store_private.h"
#include "manager/meta/memory/meta_table.h"

enum {
    SHARD_BITS = 6,
    SHARDS = 1 << SHARD_BITS,
    GROUP_KEYS = 1024, /* per round of a get: enough to amortize a latch */
    CACHE_LINE = 64,
};

struct shard {
    _Alignas(CACHE_LINE) struct tierce__lock latch;
    struct tierce__table table;
    uint64_t memory; /* of the entries, as the allocator rounds them */
};

struct memory_space {
    struct tierce__meta_space base;
    struct memory_space *next;
    uint32_t number;
    struct shard *shards; /* SHARDS of records, then one for each kind of note */
    _Atomic int64_t counters[TIERCE__META_COUNTERS]; /* relaxed: sums */
};

struct memory_store {
    struct tierce__meta_store base;
    struct tierce__lock lock;
    struct memory_space *spaces; /* kept until the store is closed */
};

static struct memory_store *store_of(struct tierce__meta_store *store)
{
    TIERCE_DASSERT(store->ops == &tierce__meta_memory);
    return (struct memory_store *)store;
}

static struct memory_space *space_of(struct tierce__meta_space *space)
{
    return (struct memory_space *)space;
}

static struct shard *shard_of(struct memory_space *space, uint64_t mixed)
{
    return &space->shards[mixed >> (64 - SHARD_BITS)];
}

static struct shard *notes_of(struct memory_space *space, uint8_t kind)
{
    TIERCE_ASSERT(kind < TIERCE__NOTE_KINDS);
    return &space->shards[SHARDS + kind];
}

/* ---- stores and spaces ---------------------------------------------------------------------- */

static int memory_open(struct tierce__meta_store **out, const char *uri, char why[256])
{
    if (uri[0] != '\0') {
        snprintf(why, 256, "a store in memory must have no URI");
        return TIERCE_E_CONFIG;
    }
    struct memory_store *store = tierce__calloc(1, sizeof(*store));
    if (store == NULL)
        return -ENOMEM;
    store->base.ops = &tierce__meta_memory;
    tierce__lock_init(&store->lock, TIERCE__LOCK_META_SPACES);
    *out = &store->base;
    return 0;
}

static void space_free(struct memory_space *space)
{
    for (unsigned i = 0; space->shards != NULL && i < SHARDS + TIERCE__NOTE_KINDS; i++) {
        tierce__table_fini(&space->shards[i].table);
        tierce__lock_fini(&space->shards[i].latch);
    }
    tierce__free(space->shards);
    tierce__free(space);
}

static void memory_close(struct tierce__meta_store *base)
{
    if (base == NULL)
        return;
    struct memory_store *store = store_of(base);
    for (struct memory_space *space = store->spaces, *next; space != NULL; space = next) {
        next = space->next;
        space_free(space);
    }
    tierce__lock_fini(&store->lock);
    tierce__free(store);
    /* A manager that no longer leads would keep the pages: small blocks of others lie between them.
     */
    (void)malloc_trim(0);
}

static struct memory_space *space_create(uint32_t number)
{
    TIERCE_DASSERT(number > 0);
    struct memory_space *space = tierce__calloc(1, sizeof(*space));
    if (space == NULL)
        return NULL;
    space->base.ops = &tierce__meta_memory;
    space->number = number;
    size_t bytes = (SHARDS + TIERCE__NOTE_KINDS) * sizeof(*space->shards);
    space->shards = tierce__alloc_aligned(CACHE_LINE, bytes);
    if (space->shards == NULL) {
        tierce__free(space);
        return NULL;
    }
    memset(space->shards, 0, bytes);
    int rc = 0;
    for (unsigned i = 0; i < SHARDS + TIERCE__NOTE_KINDS; i++) {
        tierce__lock_init(&space->shards[i].latch, TIERCE__LOCK_META_TABLE);
        if (rc == 0)
            rc = tierce__table_init(&space->shards[i].table, i < SHARDS ? SHARD_BITS : 0);
    }
    if (rc < 0) {
        space_free(space);
        return NULL;
    }
    return space;
}

static int memory_space_open(struct tierce__meta_space **out, struct tierce__meta_store *base,
                             uint32_t number, const char *instance_id)
{
    (void)instance_id;
    struct memory_store *store = store_of(base);
    if (number == 0)
        return TIERCE_E_ARGUMENT;
    int rc = 0;
    tierce__lock_take(&store->lock);
    struct memory_space *space = store->spaces;
    while (space != NULL && space->number != number)
        space = space->next;
    if (space == NULL) {
        space = space_create(number);
        rc = space == NULL ? -ENOMEM : 0;
        if (rc == 0) {
            space->next = store->spaces;
            store->spaces = space;
        }
    }
    TIERCE_DASSERT(rc < 0 || space->number == number);
    tierce__lock_drop(&store->lock);
    if (rc == 0)
        *out = &space->base;
    return rc;
}

static void memory_space_close(struct tierce__meta_space *space)
{
    (void)space;
}

/* Replaces a table by an empty one, so that no latch is held while entries are freed. */
static int memory_space_drop(struct tierce__meta_space *base)
{
    struct memory_space *space = space_of(base);
    for (unsigned i = 0; i < SHARDS + TIERCE__NOTE_KINDS; i++) {
        struct shard *shard = &space->shards[i];
        struct tierce__table empty, full;
        int rc = tierce__table_init(&empty, i < SHARDS ? SHARD_BITS : 0);
        if (rc < 0)
            return rc;
        tierce__lock_take(&shard->latch);
        TIERCE_DASSERT(empty.count == 0 && empty.skip_bits == shard->table.skip_bits);
        full = shard->table;
        shard->table = empty;
        shard->memory = 0;
        tierce__lock_drop(&shard->latch);
        tierce__table_fini(&full);
    }
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++)
        atomic_store_explicit(&space->counters[i], 0, memory_order_relaxed);
    return 0;
}

/* ---- groups of keys, in order of their shards ------------------------------------------------ */

struct group {
    uint64_t mixed[GROUP_KEYS];
    uint16_t order[GROUP_KEYS]; /* indexes, grouped by shard */
    struct memory_run {
        uint16_t shard, end; /* in `order` */
    } runs[SHARDS];          /* of the shards that have keys in this call */
    unsigned run_count;
};

static void group_keys(struct group *group, const int64_t *keys, size_t count)
{
    TIERCE_DASSERT(count > 0 && count <= GROUP_KEYS);
    uint16_t ends[SHARDS] = {0}, at = 0;
    group->run_count = 0;
    if (count == 1) { /* calls with few keys skip the loop over all shards */
        group->mixed[0] = tierce__meta_mix(keys[0]);
        group->order[0] = 0;
        group->runs[group->run_count++] =
            (struct memory_run){(uint16_t)(group->mixed[0] >> (64 - SHARD_BITS)), 1};
        return;
    }
    for (size_t i = 0; i < count; i++) {
        group->mixed[i] = tierce__meta_mix(keys[i]);
        ends[group->mixed[i] >> (64 - SHARD_BITS)]++;
    }
    for (unsigned s = 0; s < SHARDS; s++) {
        uint16_t keys_of_shard = ends[s];
        ends[s] = at;
        at = (uint16_t)(at + keys_of_shard);
        if (keys_of_shard > 0)
            group->runs[group->run_count++] = (struct memory_run){(uint16_t)s, at};
    }
    TIERCE_DASSERT(at == count);
    for (size_t i = 0; i < count; i++)
        group->order[ends[group->mixed[i] >> (64 - SHARD_BITS)]++] = (uint16_t)i;
    TIERCE_DASSERT(group->runs[group->run_count - 1].end == count);
}

/*
 * Calls visit for each run, under the latch of its shard. Shards whose latch is held are visited
 * last: calls go through the shards in one order, and a short call would otherwise sleep behind a
 * long one at shard after shard.
 */
static int visit_runs(struct memory_space *space, const struct group *group,
                      int (*visit)(void *arg, struct shard *shard, unsigned from, unsigned to),
                      void *arg)
{
    uint8_t held[SHARDS];
    unsigned held_count = 0;
    int rc = 0;
    for (unsigned r = 0; rc == 0 && r < group->run_count; r++) {
        struct shard *shard = &space->shards[group->runs[r].shard];
        if (!tierce__lock_try(&shard->latch)) {
            held[held_count++] = (uint8_t)r;
            continue;
        }
        rc = visit(arg, shard, r > 0 ? group->runs[r - 1].end : 0, group->runs[r].end);
        tierce__lock_drop(&shard->latch);
    }
    for (unsigned i = 0; rc == 0 && i < held_count; i++) {
        unsigned r = held[i];
        struct shard *shard = &space->shards[group->runs[r].shard];
        tierce__lock_take(&shard->latch);
        rc = visit(arg, shard, r > 0 ? group->runs[r - 1].end : 0, group->runs[r].end);
        tierce__lock_drop(&shard->latch);
    }
    TIERCE_DASSERT(held_count <= group->run_count);
    return rc;
}

/* Prefetches all memory of a run, before its first entry is read. */
static void prefetch_run(const struct tierce__table *table, const struct group *group,
                         unsigned from, unsigned to)
{
    for (unsigned i = from; i < to; i++)
        tierce__table_prefetch_bucket(table, group->mixed[group->order[i]]);
    for (unsigned i = from; i < to; i++)
        tierce__table_prefetch_entry(table, group->mixed[group->order[i]]);
}

struct memory_getting {
    const struct group *group;
    struct tierce__arena *arena;
    struct tierce__record *records; /* of the group's keys */
    bool *found;
};

static int get_run(void *arg, struct shard *shard, unsigned from, unsigned to)
{
    const struct memory_getting *getting = arg;
    const struct group *group = getting->group;
    int rc = 0;
    TIERCE_DASSERT(from < to && to <= GROUP_KEYS);
    prefetch_run(&shard->table, group, from, to);
    for (unsigned i = from; rc == 0 && i < to; i++) {
        unsigned at = group->order[i];
        const struct tierce__table_entry *entry =
            tierce__table_find(&shard->table, group->mixed[at]);
        getting->found[at] = entry != NULL;
        if (entry != NULL)
            rc = tierce__record_read(&getting->records[at], getting->arena, entry->data,
                                     entry->bytes);
    }
    return rc;
}

static int memory_get(struct tierce__meta_space *base, const int64_t *keys, size_t count,
                      struct tierce__arena *arena, struct tierce__record *records, bool *found)
{
    struct group group;
    int rc = 0;
    for (size_t done = 0; rc == 0 && done < count; done += GROUP_KEYS) {
        struct memory_getting getting = {&group, arena, records + done, found + done};
        group_keys(&group, keys + done, count - done < GROUP_KEYS ? count - done : GROUP_KEYS);
        rc = visit_runs(space_of(base), &group, get_run, &getting);
    }
    return rc;
}

struct memory_touching {
    const struct group *group;
    struct tierce__record_use use; /* of the group's first key */
};

static int touch_run(void *arg, struct shard *shard, unsigned from, unsigned to)
{
    const struct memory_touching *touching = arg;
    const struct group *group = touching->group;
    TIERCE_DASSERT(from < to && to <= GROUP_KEYS);
    prefetch_run(&shard->table, group, from, to);
    for (unsigned i = from; i < to; i++) {
        unsigned at = group->order[i];
        struct tierce__table_entry *entry = tierce__table_find(&shard->table, group->mixed[at]);
        struct tierce__record_use use = tierce__meta_use(&touching->use, at);
        if (entry != NULL)
            tierce__record_touch(entry->data, entry->bytes, &use);
    }
    return 0;
}

static void memory_touch(struct tierce__meta_space *base, const int64_t *keys, size_t count,
                         const struct tierce__record_use *use)
{
    struct group group;
    for (size_t done = 0; done < count; done += GROUP_KEYS) {
        struct memory_touching touching = {&group, tierce__meta_use(use, done)};
        group_keys(&group, keys + done, count - done < GROUP_KEYS ? count - done : GROUP_KEYS);
        (void)visit_runs(space_of(base), &group, touch_run, &touching); /* cannot fail */
    }
}

/* ---- batches -------------------------------------------------------------------------------- */

static uint64_t memory_of(struct tierce__table_entry *entry)
{
    return entry != NULL ? malloc_usable_size(entry) + sizeof(size_t) : 0;
}

static void put_entry(struct shard *shard, struct tierce__table_entry *entry)
{
    tierce__lock_take(&shard->latch);
    struct tierce__table_entry *replaced = tierce__table_put(&shard->table, entry);
    shard->memory += memory_of(entry) - memory_of(replaced);
    TIERCE_DASSERT(shard->table.count > 0 && shard->memory >= memory_of(entry));
    tierce__lock_drop(&shard->latch);
    tierce__free(replaced);
}

static void take_entry(struct shard *shard, uint64_t number)
{
    tierce__lock_take(&shard->latch);
    struct tierce__table_entry *taken = tierce__table_take(&shard->table, number);
    TIERCE_DASSERT(shard->memory >= memory_of(taken));
    shard->memory -= memory_of(taken);
    TIERCE_DASSERT(tierce__table_find(&shard->table, number) == NULL);
    tierce__lock_drop(&shard->latch);
    tierce__free(taken);
}

/* The entries of all puts, then of all notes that are not deletions (others NULL). */
static int make_entries(struct tierce__table_entry **entries,
                        const struct tierce__meta_batch *batch)
{
    for (size_t i = 0; i < batch->put_count; i++) {
        const struct tierce__meta_put *put = &batch->puts[i];
        entries[i] =
            tierce__table_entry(tierce__meta_mix(put->key), tierce__record_size(&put->record));
        if (entries[i] == NULL)
            return -ENOMEM;
        tierce__record_write(&put->record, entries[i]->data);
    }
    for (size_t i = 0; i < batch->note_count; i++) {
        const struct tierce__meta_note *note = &batch->notes[i];
        if (note->value == NULL)
            continue;
        struct tierce__table_entry *entry =
            tierce__table_entry(tierce__meta_mix((int64_t)note->number), note->bytes);
        if (entry == NULL)
            return -ENOMEM;
        memcpy(entry->data, note->value, note->bytes);
        entries[batch->put_count + i] = entry;
    }
    return 0;
}

static void apply(struct memory_space *space, struct tierce__table_entry **entries,
                  const struct tierce__meta_batch *batch)
{
    for (size_t i = 0; i < batch->put_count; i++)
        put_entry(shard_of(space, entries[i]->number), entries[i]);
    for (size_t i = 0; i < batch->delete_count; i++) {
        uint64_t mixed = tierce__meta_mix(batch->deletes[i]);
        TIERCE_DASSERT(i == 0 || batch->deletes[i] != batch->deletes[i - 1]);
        take_entry(shard_of(space, mixed), mixed);
    }
    for (size_t i = 0; i < batch->note_count; i++) {
        struct tierce__table_entry *entry = entries[batch->put_count + i];
        struct shard *shard = notes_of(space, batch->notes[i].kind);
        if (entry != NULL)
            put_entry(shard, entry);
        else
            take_entry(shard, tierce__meta_mix((int64_t)batch->notes[i].number));
    }
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++)
        if (batch->added[i] != 0)
            atomic_fetch_add_explicit(&space->counters[i], batch->added[i], memory_order_relaxed);
}

/* All memory is allocated before the first change, so that no change can fail halfway. */
static int memory_write(struct tierce__meta_space *base, const struct tierce__meta_batch *batch)
{
    if (!tierce__meta_batch_is_valid(batch))
        return TIERCE_E_ARGUMENT;
    size_t count = batch->put_count + batch->note_count;
    struct tierce__table_entry **entries =
        tierce__calloc(count, sizeof(struct tierce__table_entry *));
    if (entries == NULL)
        return -ENOMEM;
    int rc = make_entries(entries, batch);
    if (rc == 0)
        apply(space_of(base), entries, batch);
    for (size_t i = 0; rc < 0 && i < count; i++)
        tierce__free(entries[i]);
    tierce__free((void *)entries);
    return rc;
}

/* ---- scans, samples, notes ------------------------------------------------------------------ */

static int memory_scan(struct tierce__meta_space *base, uint64_t *cursor, size_t limit,
                       int64_t *keys, size_t *count)
{
    struct memory_space *space = space_of(base);
    uint64_t from = *cursor;
    size_t n = 0;
    for (unsigned s = (unsigned)(from >> (64 - SHARD_BITS)); s < SHARDS && n < limit; s++) {
        struct shard *shard = &space->shards[s];
        uint64_t first = (uint64_t)s << (64 - SHARD_BITS);
        /* The keys' memory holds the mixed numbers until they are converted back. */
        tierce__lock_take(&shard->latch);
        n += tierce__table_scan(&shard->table, from > first ? from : first, limit - n,
                                (uint64_t *)keys + n);
        TIERCE_ASSERT(n <= limit);
        tierce__lock_drop(&shard->latch);
    }
    *cursor = n == limit && n > 0 ? (uint64_t)keys[n - 1] + 1 : 0;
    TIERCE_DASSERT(*cursor == 0 || *cursor > from); /* the scan ends */
    for (size_t i = 0; i < n; i++)
        keys[i] = tierce__meta_unmix((uint64_t)keys[i]);
    *count = n;
    return 0;
}

/* Keys that were drawn together. */
struct memory_draws {
    struct memory_space *space;
    uint64_t numbers[TIERCE__META_DRAWN_AT_ONCE];
    size_t at, count;
};

static int draw(void *arg, uint64_t random, int64_t *key)
{
    struct memory_draws *draws = arg;
    if (draws->at == draws->count) {
        struct shard *shard = shard_of(draws->space, random);
        tierce__lock_take(&shard->latch);
        draws->at = 0;
        draws->count =
            tierce__table_draw(&shard->table, random, TIERCE__META_DRAWN_AT_ONCE, draws->numbers);
        tierce__lock_drop(&shard->latch);
    }
    if (draws->at == draws->count)
        return 0;
    *key = tierce__meta_unmix(draws->numbers[draws->at++]);
    return 1;
}

static uint64_t count_keys(struct memory_space *space)
{
    uint64_t keys = 0;
    for (unsigned s = 0; s < SHARDS; s++) {
        tierce__lock_take(&space->shards[s].latch);
        keys += space->shards[s].table.count;
        tierce__lock_drop(&space->shards[s].latch);
    }
    return keys;
}

static int memory_sample(struct tierce__meta_space *base, uint64_t *random, size_t count,
                         int64_t *keys, size_t *found)
{
    struct memory_draws draws = {.space = space_of(base)};
    return tierce__meta_sample(base,
                               &(struct tierce__meta_draws){draw, &draws, count_keys(draws.space)},
                               random, count, keys, found);
}

/* A copy of a note's value in the arena. -ENOENT. */
static int copy_note(struct shard *shard, uint64_t number, struct tierce__arena *arena,
                     const void **value, size_t *bytes)
{
    int rc = -ENOENT;
    tierce__lock_take(&shard->latch);
    const struct tierce__table_entry *entry = tierce__table_find(&shard->table, number);
    if (entry != NULL) {
        *value = tierce__arena_copy(arena, (const char *)entry->data, entry->bytes);
        *bytes = entry->bytes;
        rc = *value == NULL ? -ENOMEM : 0;
    }
    tierce__lock_drop(&shard->latch);
    return rc;
}

static int memory_note(struct tierce__meta_space *base, uint8_t kind, uint64_t number,
                       struct tierce__arena *arena, const void **value, size_t *bytes)
{
    if (kind >= TIERCE__NOTE_KINDS)
        return TIERCE_E_ARGUMENT;
    const void *copy = NULL;
    size_t copied = 0;
    int rc = copy_note(notes_of(space_of(base), kind), tierce__meta_mix((int64_t)number), arena,
                       &copy, &copied);
    if (rc < 0)
        return rc;
    *value = copy;
    *bytes = copied;
    return 0;
}

static int compare_numbers(const void *a, const void *b)
{
    const uint64_t *x = (const uint64_t *)a, *y = (const uint64_t *)b;
    return (*x > *y) - (*x < *y);
}

/* The numbers of all notes of a kind, on the heap. */
static int list_notes(struct shard *shard, uint64_t **out, size_t *count)
{
    tierce__lock_take(&shard->latch);
    size_t limit = (size_t)shard->table.count;
    uint64_t *numbers = tierce__calloc(limit, sizeof(*numbers));
    if (numbers != NULL)
        *count = tierce__table_scan(&shard->table, 0, limit, numbers);
    TIERCE_DASSERT(numbers == NULL || *count == limit);
    tierce__lock_drop(&shard->latch);
    if (numbers == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < *count; i++)
        numbers[i] = (uint64_t)tierce__meta_unmix(numbers[i]);
    qsort(numbers, *count, sizeof(*numbers), compare_numbers);
    *out = numbers;
    return 0;
}

static int memory_notes(struct tierce__meta_space *base, uint8_t kind,
                        int (*each)(void *arg, const struct tierce__meta_note *note), void *arg)
{
    if (kind >= TIERCE__NOTE_KINDS)
        return TIERCE_E_ARGUMENT;
    struct shard *shard = notes_of(space_of(base), kind);
    uint64_t *numbers = NULL;
    size_t count = 0;
    int rc = list_notes(shard, &numbers, &count);
    struct tierce__arena arena = {0};
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct tierce__meta_note note = {.kind = kind, .number = numbers[i]};
        tierce__arena_reset(&arena);
        rc = copy_note(shard, tierce__meta_mix((int64_t)numbers[i]), &arena, &note.value,
                       &note.bytes);
        if (rc == 0)
            rc = each(arg, &note);
        else if (rc == -ENOENT)
            rc = 0; /* deleted meanwhile */
    }
    tierce__arena_clear(&arena);
    tierce__free(numbers);
    return rc;
}

static int memory_counters(struct tierce__meta_space *base, int64_t out[TIERCE__META_COUNTERS])
{
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++)
        out[i] = atomic_load_explicit(&space_of(base)->counters[i], memory_order_relaxed);
    return 0;
}

static uint64_t memory_memory(struct tierce__meta_space *base)
{
    struct memory_space *space = space_of(base);
    uint64_t bytes = sizeof(*space);
    for (unsigned i = 0; i < SHARDS + TIERCE__NOTE_KINDS; i++) {
        tierce__lock_take(&space->shards[i].latch);
        TIERCE_DASSERT(space->shards[i].table.memory > 0);
        bytes += sizeof(struct shard) + space->shards[i].table.memory + space->shards[i].memory;
        tierce__lock_drop(&space->shards[i].latch);
    }
    return bytes;
}

const struct tierce__meta_store_ops tierce__meta_memory = {
    .name = "memory",
    .open = memory_open,
    .close = memory_close,
    .space_open = memory_space_open,
    .space_close = memory_space_close,
    .space_drop = memory_space_drop,
    .get = memory_get,
    .write = memory_write,
    .touch = memory_touch,
    .scan = memory_scan,
    .sample = memory_sample,
    .notes = memory_notes,
    .note = memory_note,
    .counters = memory_counters,
    .memory = memory_memory,
};
