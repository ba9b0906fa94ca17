/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/meta/memory/meta_table.h"

#include <errno.h>
#include <malloc.h>

#include "base/alloc.h"
#include "base/assert.h"

enum {
    BITS_MIN = 3,
    BITS_MAX = 40,
    /* Buckets moved with each change. Growing begins at one entry per bucket and must finish before
     * there are two; shrinking begins at an eighth and must finish before a sixteenth. */
    MOVED_AT_ONCE = 16,
    SHRINK_BELOW = 8,
};

static size_t bucket_index(const struct tierce__table *table, unsigned bits, uint64_t number)
{
    TIERCE_DASSERT(bits >= BITS_MIN && table->skip_bits + bits < 64);
    return (size_t)((number << table->skip_bits) >> (64 - bits));
}

/* The bucket of a number while entries move from `old` to `now`. */
static struct tierce__table_entry **bucket_of(const struct tierce__table *table, uint64_t number)
{
    TIERCE_DASSERT(table->old.heads == NULL || table->moved <= (size_t)1 << table->old.bits);
    if (table->old.heads != NULL) {
        size_t i = bucket_index(table, table->old.bits, number);
        if (i >= table->moved)
            return &table->old.heads[i];
    }
    return &table->now.heads[bucket_index(table, table->now.bits, number)];
}

/* ---- size ----------------------------------------------------------------------------------- */

static uint64_t memory_of(void *allocated)
{
    return malloc_usable_size(allocated) + sizeof(size_t);
}

static bool make_buckets(struct tierce__table_buckets *out, unsigned bits)
{
    TIERCE_DASSERT(bits >= BITS_MIN && bits <= BITS_MAX);
    struct tierce__table_entry **heads =
        tierce__calloc((size_t)1 << bits, sizeof(struct tierce__table_entry *));
    if (heads == NULL)
        return false;
    *out = (struct tierce__table_buckets){.heads = heads, .bits = bits};
    return true;
}

int tierce__table_init(struct tierce__table *table, unsigned skip_bits)
{
    TIERCE_ASSERT(skip_bits + BITS_MAX < 64);
    *table = (struct tierce__table){.skip_bits = skip_bits};
    if (!make_buckets(&table->now, BITS_MIN))
        return -ENOMEM;
    table->memory = memory_of((void *)table->now.heads);
    return 0;
}

/* Returns the number of entries. */
static uint64_t free_buckets(struct tierce__table_buckets *buckets)
{
    uint64_t count = 0;
    for (size_t i = 0; buckets->heads != NULL && i < (size_t)1 << buckets->bits; i++)
        for (struct tierce__table_entry *entry = buckets->heads[i], *next; entry != NULL;
             entry = next) {
            next = entry->next;
            tierce__free(entry);
            count++;
        }
    tierce__free((void *)buckets->heads);
    return count;
}

void tierce__table_fini(struct tierce__table *table)
{
    uint64_t freed = free_buckets(&table->now) + free_buckets(&table->old);
    TIERCE_DASSERT(freed == table->count);
    *table = (struct tierce__table){0};
}

static void move_bucket(struct tierce__table *table)
{
    TIERCE_DASSERT(table->moved < (size_t)1 << table->old.bits);
    struct tierce__table_entry **old = &table->old.heads[table->moved], *next;
    for (struct tierce__table_entry *entry = *old; entry != NULL; entry = next) {
        struct tierce__table_entry **head =
            &table->now.heads[bucket_index(table, table->now.bits, entry->number)];
        next = entry->next;
        entry->next = *head;
        *head = entry;
    }
    *old = NULL;
    table->moved++;
}

/* Running out of memory for buckets is not a failure: chains get longer, or memory stays in use. */
static void begin_move(struct tierce__table *table, unsigned bits)
{
    TIERCE_ASSERT(bits >= BITS_MIN && bits <= BITS_MAX);
    TIERCE_DASSERT(bits + 1 == table->now.bits || bits == table->now.bits + 1);
    struct tierce__table_buckets buckets;
    if (!make_buckets(&buckets, bits))
        return;
    table->memory += memory_of((void *)buckets.heads);
    table->old = table->now;
    table->now = buckets;
    table->moved = 0;
}

static void advance(struct tierce__table *table)
{
    if (table->old.heads == NULL) {
        uint64_t buckets = (uint64_t)1 << table->now.bits;
        if (table->count > buckets && table->now.bits < BITS_MAX)
            begin_move(table, table->now.bits + 1);
        else if (table->count < buckets / SHRINK_BELOW && table->now.bits > BITS_MIN)
            begin_move(table, table->now.bits - 1);
    }
    if (table->old.heads == NULL)
        return;
    size_t end = (size_t)1 << table->old.bits;
    for (unsigned i = 0; i < MOVED_AT_ONCE && table->moved < end; i++)
        move_bucket(table);
    if (table->moved < end)
        return;
    TIERCE_DASSERT(table->moved == end);
    TIERCE_DASSERT(table->memory >= memory_of((void *)table->old.heads));
    table->memory -= memory_of((void *)table->old.heads);
    tierce__free((void *)table->old.heads);
    table->old = (struct tierce__table_buckets){0};
}

/* ---- entries -------------------------------------------------------------------------------- */

struct tierce__table_entry *tierce__table_entry(uint64_t number, size_t bytes)
{
    if (bytes > UINT32_MAX)
        return NULL;
    /* No padding behind `data`. */
    struct tierce__table_entry *entry =
        tierce__alloc(offsetof(struct tierce__table_entry, data) + bytes);
    if (entry == NULL)
        return NULL;
    entry->next = NULL;
    entry->number = number;
    entry->bytes = (uint32_t)bytes;
    return entry;
}

struct tierce__table_entry *tierce__table_find(const struct tierce__table *table, uint64_t number)
{
    struct tierce__table_entry *entry = *bucket_of(table, number);
    while (entry != NULL && entry->number != number)
        entry = entry->next;
    return entry;
}

void tierce__table_prefetch_bucket(const struct tierce__table *table, uint64_t number)
{
    __builtin_prefetch((const void *)bucket_of(table, number));
}

void tierce__table_prefetch_entry(const struct tierce__table *table, uint64_t number)
{
    enum { LINE = 64 };
    const char *entry = (const char *)*bucket_of(table, number);
    if (entry == NULL)
        return;
    __builtin_prefetch(entry);
    __builtin_prefetch(entry + LINE);
}

struct tierce__table_entry *tierce__table_put(struct tierce__table *table,
                                              struct tierce__table_entry *entry)
{
    struct tierce__table_entry *replaced = tierce__table_take(table, entry->number);
    TIERCE_DASSERT(replaced == NULL || replaced->number == entry->number);
    TIERCE_DASSERT(tierce__table_find(table, entry->number) == NULL);
    struct tierce__table_entry **head = bucket_of(table, entry->number);
    entry->next = *head;
    *head = entry;
    table->count++;
    advance(table);
    return replaced;
}

struct tierce__table_entry *tierce__table_take(struct tierce__table *table, uint64_t number)
{
    struct tierce__table_entry **at = bucket_of(table, number);
    while (*at != NULL && (*at)->number != number)
        at = &(*at)->next;
    struct tierce__table_entry *entry = *at;
    if (entry == NULL)
        return NULL;
    TIERCE_ASSERT(table->count > 0);
    *at = entry->next;
    entry->next = NULL;
    table->count--;
    TIERCE_DASSERT(tierce__table_find(table, number) == NULL);
    advance(table);
    return entry;
}

/* ---- scans and draws ------------------------------------------------------------------------ */

/* The last number of the run of numbers around `number` that share its bucket. */
static uint64_t run_end(const struct tierce__table *table, uint64_t number)
{
    unsigned bits = table->now.bits;
    /* The smaller of both tables determines the run. */
    if (table->old.heads != NULL && table->old.bits > bits)
        bits = table->old.bits;
    TIERCE_DASSERT(table->skip_bits + bits < 64);
    return number | (UINT64_MAX >> (table->skip_bits + bits));
}

static size_t insert_sorted(uint64_t *numbers, size_t count, size_t limit, uint64_t number)
{
    TIERCE_DASSERT(count <= limit);
    size_t at = count;
    while (at > 0 && numbers[at - 1] > number)
        at--;
    if (at == limit)
        return count;
    if (count == limit)
        count--;
    TIERCE_DASSERT(at <= count && count < limit);
    for (size_t i = count; i > at; i--)
        numbers[i] = numbers[i - 1];
    numbers[at] = number;
    return count + 1;
}

size_t tierce__table_scan(const struct tierce__table *table, uint64_t from, size_t limit,
                          uint64_t *numbers)
{
    uint64_t last = UINT64_MAX;
    if (table->skip_bits > 0)
        last = from | (UINT64_MAX >> table->skip_bits);
    size_t count = 0;
    while (count < limit) {
        uint64_t end = run_end(table, from);
        TIERCE_DASSERT(end >= from && end <= last);
        size_t before = count;
        for (struct tierce__table_entry *entry = *bucket_of(table, from); entry != NULL;
             entry = entry->next)
            if (entry->number >= from && entry->number <= end)
                count = before + insert_sorted(numbers + before, count - before, limit - before,
                                               entry->number);
        if (end == last)
            break;
        from = end + 1;
    }
    TIERCE_ASSERT(count <= limit);
    TIERCE_DASSERT(count < 2 || numbers[count - 2] < numbers[count - 1]);
    return count;
}

size_t tierce__table_draw(const struct tierce__table *table, uint64_t random, size_t limit,
                          uint64_t *numbers)
{
    enum { BUCKETS = 16 };
    uint64_t run = run_end(table, 0); /* of the numbers of a bucket */
    uint64_t shard = UINT64_MAX >> table->skip_bits;
    uint64_t from = random & ~run, first[BUCKETS];
    struct tierce__table_entry *heads[BUCKETS];
    size_t count = 0;
    TIERCE_DASSERT(run < shard);
    for (unsigned i = 0; i < BUCKETS; i++) {
        first[i] = from;
        heads[i] = *bucket_of(table, from);
        __builtin_prefetch(heads[i]);
        /* Behind the last bucket comes the first one. */
        from = (random & ~shard) | ((from + run + 1) & shard);
    }
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct tierce__table_entry *entry = heads[i]; entry != NULL && count < limit;
             entry = entry->next)
            if ((entry->number & ~run) == first[i])
                numbers[count++] = entry->number;
    }
    TIERCE_DASSERT(count <= limit);
    return count;
}
