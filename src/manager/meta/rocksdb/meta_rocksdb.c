/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records in a RocksDB database, all spaces of a path in one.
 *
 * URI: the path of a folder, after "rocksdb://", "file://", "local://" or alone; then, after '?',
 *   sync=1        a write returns when it is on the disk (default 0: when the kernel has it; what
 *                 the process wrote survives its death, a power cut may take the last moments,
 *                 never a part of a batch)
 *   cache_mib=N   of blocks in memory (default 128)
 *   touch_ms=N    how long touches are kept back (default 10000)
 * Opening a path that is already open shares the database with its current parameters.
 *
 * There is no prefix extractor: a space is a range of keys, and the files below the first level
 * are cut by ranges; a filter by prefix would say nothing that their bounds do not say.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/log/log_repeat.h"
#include "base/text/url.h"
#include "manager/meta/rocksdb/meta_rocksdb_private.h"

struct rocks_store {
    struct tierce__meta_store base;
    struct tierce__rocks *rocks;
};

struct rocks_space {
    struct tierce__meta_space base;
    struct tierce__rocks *rocks;
    uint32_t number;
};

struct rocksdb_key {
    char bytes[TIERCE__ROCKS_KEY_MAX];
    size_t length;
};

static struct rocks_space *space_of(struct tierce__meta_space *space)
{
    TIERCE_DASSERT(space->ops == &tierce__meta_rocksdb);
    return (struct rocks_space *)space;
}

int tierce__rocks_code(char *error)
{
    if (error == NULL)
        return 0;
    int rc = strstr(error, "No space left") != NULL ? -ENOSPC : -EIO;
    rocksdb_free(error);
    return rc;
}

/* The same, and logs it; not under a lock. */
static int told(char *error, const char *doing)
{
    if (error != NULL)
        tierce__log_repeated(TIERCE_LOG_WARN, "meta_rocksdb_failed", "doing=\"%s\" err=\"%s\"",
                             doing, error);
    return tierce__rocks_code(error);
}

/* ---- keys ----------------------------------------------------------------------------------- */

static void append_be64(struct rocksdb_key *key, uint64_t value)
{
    TIERCE_DASSERT(key->length + sizeof(value) <= sizeof(key->bytes));
    value = __builtin_bswap64(value);
    tierce__store_le64(key->bytes + key->length, value);
    key->length += sizeof(value);
}

static struct rocksdb_key key_of(uint32_t space, char letter)
{
    struct rocksdb_key key = {.length = TIERCE__ROCKS_SPACE_BYTES + 1};
    tierce__store_le32(key.bytes, __builtin_bswap32(space));
    key.bytes[TIERCE__ROCKS_SPACE_BYTES] = letter;
    return key;
}

static struct rocksdb_key record_key(uint32_t space, uint64_t mixed)
{
    struct rocksdb_key key = key_of(space, TIERCE__ROCKS_RECORD);
    append_be64(&key, mixed);
    return key;
}

static struct rocksdb_key note_key(uint32_t space, uint8_t kind, uint64_t number)
{
    TIERCE_DASSERT(kind < TIERCE__NOTE_KINDS);
    struct rocksdb_key key = key_of(space, TIERCE__ROCKS_NOTE);
    key.bytes[key.length++] = (char)kind;
    append_be64(&key, number);
    return key;
}

static struct rocksdb_key counter_key(uint32_t space, unsigned counter)
{
    TIERCE_DASSERT(counter < TIERCE__META_COUNTERS);
    struct rocksdb_key key = key_of(space, TIERCE__ROCKS_COUNTER);
    key.bytes[key.length++] = (char)counter;
    return key;
}

/* The last 8 bytes of a key of an iterator. */
static uint64_t number_of(const rocksdb_iterator_t *iterator)
{
    size_t length;
    const char *key = rocksdb_iter_key(iterator, &length);
    if (length < sizeof(uint64_t))
        return 0;
    return __builtin_bswap64(tierce__load_le64(key + length - sizeof(uint64_t)));
}

/* ---- stores and spaces ---------------------------------------------------------------------- */

/* `text` begins with the '?'. */
static int read_parameters(struct tierce__rocks_opts *opts, const char *text, char why[256])
{
    enum { CACHE_MIB_MAX = 1 << 20 };
    static const char *const known[] = {"sync", "cache_mib", "touch_ms", NULL};
    const struct {
        uint64_t *value;
        struct tierce__url_number number;
    } rows[] = {
        {&opts->sync, {"sync", TIERCE__URL_COUNT, 0, 1}},
        {&opts->cache_mib, {"cache_mib", TIERCE__URL_COUNT, 0, CACHE_MIB_MAX}},
        {&opts->touch_ms, {"touch_ms", TIERCE__URL_COUNT, 1, TIERCE__TOUCHES_MS_MAX}},
    };
    char full[TIERCE__URL_BYTES_MAX + 2];
    struct tierce__url url = {0};
    TIERCE_ASSERT(text[0] == '?');
    /* A text that is cut off here is too long for a URL. */
    (void)snprintf(full, sizeof(full), "rocksdb://%s", text);
    int rc = tierce__url_parse(&url, full, why);
    if (rc == 0)
        rc = tierce__url_check_params(&url, known, why);
    for (size_t i = 0; rc == 0 && i < sizeof(rows) / sizeof(rows[0]); i++)
        rc = tierce__url_param_number(&url, rows[i].value, &rows[i].number, why);
    tierce__url_clear(&url);
    return rc;
}

static const char *without_scheme(const char *uri)
{
    static const char *const schemes[] = {"rocksdb://", "file://", "local://"};
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
        if (strncmp(uri, schemes[i], strlen(schemes[i])) == 0)
            return uri + strlen(schemes[i]);
    return uri;
}

static int rocks_open(struct tierce__meta_store **out, const char *uri, char why[256])
{
    enum { CACHE_MIB_DEFAULT = 128 };
    struct tierce__rocks_opts opts = {.cache_mib = CACHE_MIB_DEFAULT,
                                      .touch_ms = TIERCE__TOUCHES_MS_DEFAULT};
    struct rocks_store *store = tierce__calloc(1, sizeof(*store));
    char *path = tierce__strdup(without_scheme(uri));
    int rc = store == NULL || path == NULL ? -ENOMEM : 0;
    if (rc == 0) {
        size_t bytes = strcspn(path, "?");
        if (path[bytes] != '\0')
            rc = read_parameters(&opts, path + bytes, why);
        path[bytes] = '\0';
    }
    if (rc == 0 && path[0] == '\0') {
        snprintf(why, 256, "a RocksDB store requires the path of a folder");
        rc = TIERCE_E_CONFIG;
    }
    if (rc == 0)
        rc = tierce__rocks_open(&store->rocks, path, &opts, why);
    tierce__free(path);
    if (rc < 0) {
        tierce__free(store);
        return rc;
    }
    store->base.ops = &tierce__meta_rocksdb;
    *out = &store->base;
    return 0;
}

static void rocks_close(struct tierce__meta_store *base)
{
    if (base == NULL)
        return;
    struct rocks_store *store = (struct rocks_store *)base;
    tierce__rocks_close(store->rocks);
    tierce__free(store);
}

static int rocks_space_open(struct tierce__meta_space **out, struct tierce__meta_store *base,
                            uint32_t number, const char *instance_id)
{
    (void)instance_id;
    if (number == 0)
        return TIERCE_E_ARGUMENT;
    struct rocks_space *space = tierce__calloc(1, sizeof(*space));
    if (space == NULL)
        return -ENOMEM;
    space->base.ops = &tierce__meta_rocksdb;
    space->rocks = ((struct rocks_store *)base)->rocks;
    space->number = number;
    *out = &space->base;
    return 0;
}

static void rocks_space_close(struct tierce__meta_space *space)
{
    tierce__free(space);
}

/* ---- stripes -------------------------------------------------------------------------------- */

static unsigned stripe_of(uint64_t mixed)
{
    return (unsigned)(mixed % TIERCE__ROCKS_STRIPES);
}

struct rocksdb_held {
    struct tierce__lock *locks[TIERCE__ROCKS_STRIPES];
    size_t count;
};

static void take_stripes(struct tierce__rocks *rocks, struct rocksdb_held *held, uint64_t mask)
{
    held->count = 0;
    for (unsigned i = 0; i < TIERCE__ROCKS_STRIPES; i++)
        if ((mask >> i & 1) != 0)
            held->locks[held->count++] = &rocks->stripes[i];
    TIERCE_DASSERT(held->count <= TIERCE__ROCKS_STRIPES);
    tierce__lock_take_all(held->locks, held->count);
}

static uint64_t stripes_of(const struct tierce__meta_batch *batch)
{
    uint64_t mask = 0;
    for (size_t i = 0; i < batch->put_count; i++)
        mask |= UINT64_C(1) << stripe_of(tierce__meta_mix(batch->puts[i].key));
    for (size_t i = 0; i < batch->delete_count; i++)
        mask |= UINT64_C(1) << stripe_of(tierce__meta_mix(batch->deletes[i]));
    TIERCE_DASSERT(mask >> TIERCE__ROCKS_STRIPES == 0);
    return mask;
}

/* Writes and destroys the batch. */
static int write_striped(struct tierce__rocks *rocks, rocksdb_writebatch_t *batch, uint64_t mask)
{
    struct rocksdb_held held;
    char *error = NULL;
    int rc = tierce__rocks_admit_write(rocks);
    if (rc == 0)
        rc = tierce__rocks_enter(rocks);
    if (rc == 0) {
        take_stripes(rocks, &held, mask);
        rocksdb_write(rocks->db, rocks->writes, batch, &error);
        tierce__lock_drop_all(held.locks, held.count);
        tierce__rocks_leave(rocks);
        rc = told(error, "write");
        if (rc < 0)
            tierce__rocks_note_failure(rocks, rc);
    }
    rocksdb_writebatch_destroy(batch);
    return rc;
}

static int rocks_space_drop(struct tierce__meta_space *base)
{
    struct rocks_space *space = space_of(base);
    TIERCE_ASSERT(space->number > 0);
    /* The end of a range: the next number, or beyond every key if this is the last. */
    struct rocksdb_key first = key_of(space->number, 0), last = key_of(space->number + 1, 0);
    if (space->number == UINT32_MAX)
        last = key_of(UINT32_MAX, (char)0xff);
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    rocksdb_writebatch_delete_range(batch, first.bytes, first.length, last.bytes, last.length);
    return write_striped(space->rocks, batch, UINT64_MAX);
}

/* ---- reads ---------------------------------------------------------------------------------- */

/* Arrays for a batched read of `count` keys, in one allocation. */
struct rocksdb_reading {
    const char **keys;
    size_t *lengths;
    rocksdb_pinnableslice_t **values;
    char **errors;
    struct rocksdb_key *bytes;
    size_t count;
};

static int begin_reading(struct rocksdb_reading *reading, size_t count)
{
    TIERCE_DASSERT(count > 0);
    size_t each = sizeof(char *) + sizeof(size_t) + sizeof(rocksdb_pinnableslice_t *) +
                  sizeof(char *) + sizeof(struct rocksdb_key);
    char *memory = tierce__calloc(count, each);
    if (memory == NULL)
        return -ENOMEM;
    reading->count = count;
    reading->keys = (const char **)(void *)memory;
    reading->lengths = (size_t *)(void *)(memory + count * sizeof(char *));
    reading->values = (rocksdb_pinnableslice_t **)(void *)(reading->lengths + count);
    reading->errors = (char **)(reading->values + count);
    reading->bytes = (struct rocksdb_key *)(void *)(reading->errors + count);
    return 0;
}

static void set_key(struct rocksdb_reading *reading, size_t i, struct rocksdb_key key)
{
    TIERCE_DASSERT(i < reading->count && key.length <= sizeof(key.bytes));
    reading->bytes[i] = key;
    reading->keys[i] = reading->bytes[i].bytes;
    reading->lengths[i] = key.length;
}

/* The first error, or NULL; rocksdb_free. */
static char *read_all(struct rocksdb_reading *reading, struct tierce__rocks *rocks)
{
    TIERCE_DASSERT(reading->count > 0 && reading->lengths[reading->count - 1] > 0);
    rocksdb_batched_multi_get_cf(rocks->db, rocks->reads, rocks->family, reading->count,
                                 reading->keys, reading->lengths, reading->values, reading->errors,
                                 false);
    char *error = NULL;
    for (size_t i = 0; i < reading->count; i++) {
        if (error == NULL)
            error = reading->errors[i];
        else
            rocksdb_free(reading->errors[i]);
    }
    return error;
}

/* The results of a read; valid while the database is open. */
static void end_values(struct rocksdb_reading *reading)
{
    for (size_t i = 0; i < reading->count; i++)
        if (reading->values[i] != NULL)
            rocksdb_pinnableslice_destroy(reading->values[i]);
}

static void end_reading(struct rocksdb_reading *reading)
{
    tierce__free((void *)reading->keys);
}

static int parse(struct rocks_space *space, int64_t key, const rocksdb_pinnableslice_t *slice,
                 struct tierce__arena *arena, struct tierce__record *record, bool *found)
{
    *found = false;
    if (slice == NULL)
        return 0;
    size_t bytes;
    const char *value = rocksdb_pinnableslice_value(slice, &bytes);
    int rc = tierce__record_read(record, arena, value, bytes);
    *found = rc == 0;
    if (rc == 0 || rc == -ENOMEM)
        return rc;
    if (atomic_fetch_add_explicit(&space->rocks->unreadable, 1, memory_order_relaxed) == 0)
        tierce__log(TIERCE_LOG_WARN, "meta_record_unreadable",
                    "store=rocksdb space=%" PRIu32 " key=%" PRId64 " reason=\"%s\"", space->number,
                    key, tierce_strerror(rc));
    return 0;
}

static int rocks_get(struct tierce__meta_space *base, const int64_t *keys, size_t count,
                     struct tierce__arena *arena, struct tierce__record *records, bool *found)
{
    struct rocks_space *space = space_of(base);
    struct rocksdb_reading reading;
    if (count == 0)
        return 0;
    int rc = begin_reading(&reading, count);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < count; i++)
        set_key(&reading, i, record_key(space->number, tierce__meta_mix(keys[i])));
    rc = tierce__rocks_enter(space->rocks);
    if (rc == 0) {
        rc = told(read_all(&reading, space->rocks), "read");
        for (size_t i = 0; rc == 0 && i < count; i++)
            rc = parse(space, keys[i], reading.values[i], arena, &records[i], &found[i]);
        end_values(&reading);
        tierce__rocks_leave(space->rocks);
    }
    end_reading(&reading);
    return rc;
}

static int rocks_note(struct tierce__meta_space *base, uint8_t kind, uint64_t number,
                      struct tierce__arena *arena, const void **value, size_t *bytes)
{
    struct rocks_space *space = space_of(base);
    struct rocksdb_key key = note_key(space->number, kind, number);
    char *error = NULL;
    int rc = tierce__rocks_enter(space->rocks);
    if (rc < 0)
        return rc;
    rocksdb_pinnableslice_t *slice =
        rocksdb_get_pinned(space->rocks->db, space->rocks->reads, key.bytes, key.length, &error);
    rc = error != NULL ? told(error, "read a note") : slice == NULL ? -ENOENT : 0;
    if (rc == 0) {
        size_t length;
        const char *text = rocksdb_pinnableslice_value(slice, &length);
        const void *copy = tierce__arena_copy(arena, text, length);
        rocksdb_pinnableslice_destroy(slice);
        rc = copy != NULL ? 0 : -ENOMEM;
        if (rc == 0) {
            *value = copy;
            *bytes = length;
        }
    }
    tierce__rocks_leave(space->rocks);
    return rc;
}

static int rocks_counters(struct tierce__meta_space *base, int64_t out[TIERCE__META_COUNTERS])
{
    struct rocks_space *space = space_of(base);
    struct rocksdb_reading reading;
    int rc = begin_reading(&reading, TIERCE__META_COUNTERS);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++)
        set_key(&reading, i, counter_key(space->number, i));
    rc = tierce__rocks_enter(space->rocks);
    if (rc == 0) {
        rc = told(read_all(&reading, space->rocks), "read");
        for (unsigned i = 0; rc == 0 && i < TIERCE__META_COUNTERS; i++) {
            size_t bytes = 0;
            const char *value = NULL;
            if (reading.values[i] != NULL)
                value = rocksdb_pinnableslice_value(reading.values[i], &bytes);
            out[i] = bytes == sizeof(uint64_t) ? (int64_t)tierce__load_le64(value) : 0;
        }
        end_values(&reading);
        tierce__rocks_leave(space->rocks);
    }
    end_reading(&reading);
    return rc;
}

/* ---- batches -------------------------------------------------------------------------------- */

static int add_puts(rocksdb_writebatch_t *out, uint32_t space,
                    const struct tierce__meta_batch *batch)
{
    size_t largest = 0;
    for (size_t i = 0; i < batch->put_count; i++) {
        size_t bytes = tierce__record_size(&batch->puts[i].record);
        largest = bytes > largest ? bytes : largest;
    }
    char *value = tierce__alloc(largest);
    if (value == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < batch->put_count; i++) {
        const struct tierce__meta_put *put = &batch->puts[i];
        struct rocksdb_key key = record_key(space, tierce__meta_mix(put->key));
        tierce__record_write(&put->record, value);
        rocksdb_writebatch_put(out, key.bytes, key.length, value,
                               tierce__record_size(&put->record));
    }
    tierce__free(value);
    return 0;
}

static void add_others(rocksdb_writebatch_t *out, uint32_t space,
                       const struct tierce__meta_batch *batch)
{
    for (size_t i = 0; i < batch->delete_count; i++) {
        struct rocksdb_key key = record_key(space, tierce__meta_mix(batch->deletes[i]));
        rocksdb_writebatch_delete(out, key.bytes, key.length);
    }
    for (size_t i = 0; i < batch->note_count; i++) {
        const struct tierce__meta_note *note = &batch->notes[i];
        struct rocksdb_key key = note_key(space, note->kind, note->number);
        if (note->value == NULL)
            rocksdb_writebatch_delete(out, key.bytes, key.length);
        else
            rocksdb_writebatch_put(out, key.bytes, key.length, note->value, note->bytes);
    }
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++) {
        if (batch->added[i] == 0)
            continue;
        struct rocksdb_key key = counter_key(space, i);
        char value[sizeof(uint64_t)];
        tierce__store_le64(value, (uint64_t)batch->added[i]);
        rocksdb_writebatch_merge(out, key.bytes, key.length, value, sizeof(value));
    }
}

static int rocks_write(struct tierce__meta_space *base, const struct tierce__meta_batch *batch)
{
    struct rocks_space *space = space_of(base);
    if (!tierce__meta_batch_is_valid(batch))
        return TIERCE_E_ARGUMENT;
    rocksdb_writebatch_t *out = rocksdb_writebatch_create();
    int rc = add_puts(out, space->number, batch);
    if (rc < 0) {
        rocksdb_writebatch_destroy(out);
        return rc;
    }
    add_others(out, space->number, batch);
    return write_striped(space->rocks, out, stripes_of(batch));
}

/* ---- touches -------------------------------------------------------------------------------- */

static void rocks_touch(struct tierce__meta_space *base, const int64_t *keys, size_t count,
                        const struct tierce__record_use *use)
{
    struct rocks_space *space = space_of(base);
    tierce__touches_add(space->rocks->touches, space->number, keys, count, use);
}

/* Applies the touch to a copy of the record, and adds it to the batch. */
static int raise_records(rocksdb_writebatch_t *batch, const struct rocksdb_reading *reading,
                         const struct tierce__touch *const *touches)
{
    for (size_t i = 0; i < reading->count; i++) {
        size_t bytes;
        if (reading->values[i] == NULL)
            continue;
        const char *value = rocksdb_pinnableslice_value(reading->values[i], &bytes);
        char *copy = tierce__alloc(bytes);
        if (copy == NULL)
            return -ENOMEM;
        memcpy(copy, value, bytes);
        tierce__record_touch(copy, bytes, &touches[i]->use);
        rocksdb_writebatch_put(batch, reading->keys[i], reading->lengths[i], copy, bytes);
        tierce__free(copy);
    }
    return 0;
}

/* Applies the touches of one stripe. */
static int flush_stripe(struct tierce__rocks *rocks, unsigned stripe,
                        const struct tierce__touch *const *touches, size_t count)
{
    TIERCE_DASSERT(stripe < TIERCE__ROCKS_STRIPES && count > 0);
    TIERCE_DASSERT(stripe_of(tierce__meta_mix(touches[0]->key)) == stripe);
    struct rocksdb_reading reading;
    int rc = tierce__rocks_admit_write(rocks);
    if (rc < 0)
        return rc;
    rc = begin_reading(&reading, count);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < count; i++)
        set_key(&reading, i, record_key(touches[i]->space, tierce__meta_mix(touches[i]->key)));
    rc = tierce__rocks_enter(rocks);
    if (rc < 0) {
        end_reading(&reading);
        return rc;
    }
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    tierce__lock_take(&rocks->stripes[stripe]);
    char *error = read_all(&reading, rocks);
    if (error == NULL)
        rc = raise_records(batch, &reading, touches);
    if (error == NULL && rc == 0 && rocksdb_writebatch_count(batch) > 0)
        rocksdb_write(rocks->db, rocks->touch_writes, batch, &error);
    tierce__lock_drop(&rocks->stripes[stripe]);
    rocksdb_writebatch_destroy(batch);
    end_values(&reading);
    tierce__rocks_leave(rocks);
    end_reading(&reading);
    int failed = told(error, "write touches");
    if (failed < 0)
        tierce__rocks_note_failure(rocks, failed);
    return rc < 0 ? rc : failed;
}

/* Touches that cannot be written are lost, as the header allows; the error was logged. */
void tierce__rocks_flush_touches(void *arg, const struct tierce__touch *touches, size_t count)
{
    struct tierce__rocks *rocks = (struct tierce__rocks *)arg;
    const struct tierce__touch **sorted = tierce__calloc(count, sizeof(struct tierce__touch *));
    if (sorted == NULL)
        return;
    size_t ends[TIERCE__ROCKS_STRIPES + 1] = {0};
    for (size_t i = 0; i < count; i++)
        ends[stripe_of(tierce__meta_mix(touches[i].key)) + 1]++;
    for (unsigned s = 0; s < TIERCE__ROCKS_STRIPES; s++)
        ends[s + 1] += ends[s];
    for (size_t i = 0; i < count; i++)
        sorted[ends[stripe_of(tierce__meta_mix(touches[i].key))]++] = &touches[i];
    size_t from = 0;
    int rc = 0;
    for (unsigned s = 0; rc == 0 && s < TIERCE__ROCKS_STRIPES; from = ends[s++])
        if (ends[s] > from)
            rc = flush_stripe(rocks, s, sorted + from, ends[s] - from);
    TIERCE_DASSERT(rc < 0 || from == count);
    tierce__free((void *)sorted);
}

/* ---- scans, samples, notes ------------------------------------------------------------------ */

/* An iterator over the keys of a space from `first` on that share its letter and kind. */
struct rocksdb_range {
    struct tierce__rocks *rocks;
    struct rocksdb_key end;
    rocksdb_readoptions_t *reads;
    rocksdb_iterator_t *iterator;
};

static int begin_range(struct rocksdb_range *range, struct tierce__rocks *rocks,
                       struct rocksdb_key end)
{
    TIERCE_DASSERT(end.length > TIERCE__ROCKS_SPACE_BYTES);
    int rc = tierce__rocks_enter(rocks);
    if (rc < 0)
        return rc;
    range->rocks = rocks;
    range->end = end;
    range->reads = rocksdb_readoptions_create();
    rocksdb_readoptions_set_iterate_upper_bound(range->reads, range->end.bytes, range->end.length);
    range->iterator = rocksdb_create_iterator(rocks->db, range->reads);
    return 0;
}

static int end_range(struct rocksdb_range *range)
{
    char *error = NULL;
    rocksdb_iter_get_error(range->iterator, &error);
    rocksdb_iter_destroy(range->iterator);
    rocksdb_readoptions_destroy(range->reads);
    tierce__rocks_leave(range->rocks);
    return told(error, "scan");
}

static int rocks_scan(struct tierce__meta_space *base, uint64_t *cursor, size_t limit,
                      int64_t *keys, size_t *count)
{
    struct rocks_space *space = space_of(base);
    struct rocksdb_key first = record_key(space->number, *cursor);
    struct rocksdb_range range;
    int rc = begin_range(&range, space->rocks, key_of(space->number, TIERCE__ROCKS_RECORD + 1));
    if (rc < 0)
        return rc;
    uint64_t next = 0;
    size_t n = 0;
    for (rocksdb_iter_seek(range.iterator, first.bytes, first.length);
         n < limit && rocksdb_iter_valid(range.iterator); rocksdb_iter_next(range.iterator)) {
        uint64_t mixed = number_of(range.iterator);
        keys[n++] = tierce__meta_unmix(mixed);
        next = mixed + 1;
    }
    TIERCE_DASSERT(n <= limit);
    TIERCE_DASSERT(n == 0 || next == 0 || next > *cursor);
    rc = end_range(&range);
    if (rc < 0)
        return rc;
    *cursor = n == limit ? next : 0;
    *count = n;
    return 0;
}

/* Keys are in the order of their mixed numbers, which are evenly distributed: neighbours are
 * independent draws, and a seek is needed for the first one only. */
struct rocksdb_draws {
    struct rocksdb_range range;
    uint32_t space;
    unsigned left; /* neighbours to be drawn before the next seek */
};

static int draw(void *arg, uint64_t random, int64_t *key)
{
    struct rocksdb_draws *draws = (struct rocksdb_draws *)arg;
    rocksdb_iterator_t *iterator = draws->range.iterator;
    struct rocksdb_key at = record_key(draws->space, random);
    if (draws->left > 0 && rocksdb_iter_valid(iterator)) {
        draws->left--;
        rocksdb_iter_next(iterator);
    } else {
        draws->left = TIERCE__META_DRAWN_AT_ONCE - 1;
        rocksdb_iter_seek(iterator, at.bytes, at.length);
    }
    if (!rocksdb_iter_valid(iterator)) {
        at = record_key(draws->space, 0);
        rocksdb_iter_seek(iterator, at.bytes, at.length);
    }
    if (!rocksdb_iter_valid(iterator))
        return 0;
    *key = tierce__meta_unmix(number_of(iterator));
    return 1;
}

static int rocks_sample(struct tierce__meta_space *base, uint64_t *random, size_t count,
                        int64_t *keys, size_t *found)
{
    struct rocks_space *space = space_of(base);
    int64_t counters[TIERCE__META_COUNTERS];
    int rc = rocks_counters(base, counters);
    if (rc < 0)
        return rc;
    int64_t there = counters[TIERCE__META_KEYS];
    struct rocksdb_draws draws = {.space = space->number};
    rc = begin_range(&draws.range, space->rocks, key_of(space->number, TIERCE__ROCKS_RECORD + 1));
    if (rc < 0)
        return rc;
    size_t n = 0;
    rc = tierce__meta_sample(
        base, &(struct tierce__meta_draws){draw, &draws, there > 0 ? (uint64_t)there : 0}, random,
        count, keys, &n);
    int failed = end_range(&draws.range);
    if (rc < 0 || failed < 0)
        return rc < 0 ? rc : failed;
    TIERCE_DASSERT(n <= count);
    *found = n;
    return 0;
}

static int rocks_notes(struct tierce__meta_space *base, uint8_t kind,
                       int (*each)(void *arg, const struct tierce__meta_note *note), void *arg)
{
    struct rocks_space *space = space_of(base);
    if (kind >= TIERCE__NOTE_KINDS)
        return TIERCE_E_ARGUMENT;
    struct rocksdb_key first = note_key(space->number, kind, 0);
    struct rocksdb_key end = key_of(space->number, TIERCE__ROCKS_NOTE);
    end.bytes[end.length++] = (char)(kind + 1);
    struct rocksdb_range range;
    int rc = begin_range(&range, space->rocks, end);
    if (rc < 0)
        return rc;
    for (rocksdb_iter_seek(range.iterator, first.bytes, first.length);
         rc == 0 && rocksdb_iter_valid(range.iterator); rocksdb_iter_next(range.iterator)) {
        struct tierce__meta_note note = {.kind = kind, .number = number_of(range.iterator)};
        note.value = rocksdb_iter_value(range.iterator, &note.bytes);
        rc = each(arg, &note);
    }
    int failed = end_range(&range);
    return rc != 0 ? rc : failed;
}

static uint64_t rocks_unreadable(struct tierce__meta_space *space)
{
    return atomic_load_explicit(&space_of(space)->rocks->unreadable, memory_order_relaxed);
}

static int rocks_write_error(struct tierce__meta_space *space)
{
    return atomic_load_explicit(&space_of(space)->rocks->write_error, memory_order_relaxed);
}

const struct tierce__meta_store_ops tierce__meta_rocksdb = {
    .name = "rocksdb",
    .blocks = true,
    .open = rocks_open,
    .close = rocks_close,
    .space_open = rocks_space_open,
    .space_close = rocks_space_close,
    .space_drop = rocks_space_drop,
    .get = rocks_get,
    .write = rocks_write,
    .touch = rocks_touch,
    .scan = rocks_scan,
    .sample = rocks_sample,
    .notes = rocks_notes,
    .note = rocks_note,
    .counters = rocks_counters,
    .unreadable = rocks_unreadable,
    .write_error = rocks_write_error,
};
