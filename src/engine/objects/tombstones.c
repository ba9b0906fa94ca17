/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/objects/tombstones.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "base/log/log.h"
#include "base/log/log_repeat.h"
#include "base/map.h"

/*
 * A map, and the file. Threads that add at the same time share a sync: one of them
 * writes the records of all that have come meanwhile, the others wait.
 */

#define PAGE         4096u
#define HEADER_BYTES 64u
#define RECORD_BYTES 96u
#define PAGE_RECORDS ((PAGE - HEADER_BYTES) / RECORD_BYTES)
#define BATCH_PAGES  64u
#define VERSION      1u
#define NEW_FILE     TIERCE__TOMBSTONES_FILE ".new"
/* A file is rewritten when it has this many pages and most of its records are of no use. */
#define PAGES_WORTH 256u
#define RETRY_MS    1000u  /* how long flush leaves a device alone that has failed */
#define PAGES_MAX   65536u /* it is rewritten long before; bounds the memory for a file */
/* At the limit the count goes up and down; it is logged again only after it has fallen to this. */
#define ROOM_AGAIN (TIERCE__TOMBSTONES_MAX - TIERCE__TOMBSTONES_MAX / 16)

enum kind { ADDED = 1, LIFTED = 2 };

static const char magic[8] = {'T', 'R', 'C', 'E', 'T', 'O', 'M', 'B'};

struct tombstone {
    struct tierce__map_node node;
    struct tierce__list order; /* the first added or deferred first */
    uint64_t store;
    struct tierce__key key;
    uint64_t number; /* of the record that added it: durable once `synced` is as large */
};

struct tombstone_record {
    enum kind kind;
    uint64_t store;
    struct tierce__key key;
};

struct tierce__tombstones {
    struct tierce__vfs *vfs;
    struct tierce__namespaces *namespaces;
    _Atomic uint64_t count; /* written under the lock */

    struct tierce__lock lock; /* TOMBSTONES: all below */
    struct tierce__cond changed;
    struct tierce__map map;
    struct tierce__list order;
    struct tombstone_record *queue; /* records that are not written yet */
    size_t queued, queue_room;
    uint64_t made,
        synced;   /* numbers of the last record queued, and of the last one on the device */
    bool writing; /* a thread writes without the lock: file, pages and renew are its own */
    struct tierce__vfs_file *file; /* NULL: there is none yet */
    uint64_t pages;
    uint64_t retry_ns; /* after a failed write */
    bool renew;   /* the next write makes a new file: part of this one is damaged, or of no use */
    bool is_full; /* the limit was logged, and no room since */
};

/* ---- the table: under the lock --------------------------------------------------------------- */

static uint64_t hash_of(uint64_t store, const struct tierce__key *key)
{
    return tierce__mix(tierce__key_spread(key) ^ store);
}

static struct tombstone *find(struct tierce__tombstones *tombs, uint64_t store,
                              const struct tierce__key *key)
{
    struct tierce__map_node *it = tierce__map_find(&tombs->map, hash_of(store, key));
    for (; it != NULL; it = tierce__map_find_next(it)) {
        struct tombstone *tomb = TIERCE__CONTAINER_OF(it, struct tombstone, node);
        if (tomb->store == store && tierce__key_equal(&tomb->key, key))
            return tomb;
    }
    return NULL;
}

static int insert(struct tierce__tombstones *tombs, uint64_t store, const struct tierce__key *key,
                  uint64_t number)
{
    TIERCE_DASSERT(find(tombs, store, key) == NULL);
    TIERCE_DASSERT(number <= tombs->made + 1);
    struct tombstone *tomb = tierce__calloc(1, sizeof(*tomb));
    if (tomb == NULL)
        return -ENOMEM;
    tomb->store = store;
    tomb->key = *key;
    tomb->number = number;
    tierce__map_put(&tombs->map, &tomb->node, hash_of(store, key));
    tierce__list_push_back(&tombs->order, &tomb->order);
    atomic_fetch_add(&tombs->count, 1);
    return 0;
}

static void discard(struct tierce__tombstones *tombs, struct tombstone *tomb)
{
    TIERCE_ASSERT(atomic_load(&tombs->count) > 0);
    TIERCE_DASSERT(!tierce__list_empty(&tomb->order));
    tierce__map_remove(&tombs->map, &tomb->node);
    tierce__list_remove(&tomb->order);
    atomic_fetch_sub(&tombs->count, 1);
    tierce__free(tomb);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void write_record(uint8_t *at, const struct tierce__tombstones *tombs,
                         const struct tombstone_record *record)
{
    TIERCE_DASSERT(record->kind == ADDED || record->kind == LIFTED);
    tierce__store_le32(at, record->kind);
    tierce__store_le64(at + 8, record->store);
    tierce__store_le16(at + 16, record->key.shard.tp_rank);
    tierce__store_le16(at + 18, record->key.shard.tp_size);
    tierce__store_le16(at + 20, record->key.shard.pp_rank);
    tierce__store_le16(at + 22, record->key.shard.pp_size);
    memcpy(at + 32, tierce__namespaces_digest(tombs->namespaces, record->key.ns),
           TIERCE_HASH_BYTES);
    memcpy(at + 64, record->key.hash, TIERCE_HASH_BYTES);
}

/* `number`: of the page; first: of the first of its batch. */
static void write_page(uint8_t *page, const struct tierce__tombstones *tombs,
                       const struct tombstone_record *records, size_t count, uint64_t number,
                       uint64_t first)
{
    TIERCE_ASSERT(count >= 1 && count <= PAGE_RECORDS);
    TIERCE_DASSERT(first <= number);
    memset(page, 0, PAGE);
    memcpy(page, magic, sizeof(magic));
    tierce__store_le32(page + 16, VERSION);
    tierce__store_le32(page + 20, (uint32_t)count);
    tierce__store_le64(page + 24, number);
    tierce__store_le64(page + 32, first);
    for (size_t i = 0; i < count; i++)
        write_record(page + HEADER_BYTES + i * RECORD_BYTES, tombs, &records[i]);
    tierce__store_le64(page + 8, XXH3_64bits(page + 16, PAGE - 16));
}

/* Appends and syncs a batch; *pages advances on success. */
static int write_batch(struct tierce__tombstones *tombs, struct tierce__vfs_file *file,
                       uint64_t *pages, const struct tombstone_record *records, size_t count)
{
    size_t page_count = (count + PAGE_RECORDS - 1) / PAGE_RECORDS;
    TIERCE_ASSERT(page_count >= 1 && page_count <= BATCH_PAGES);
    uint8_t *memory = tierce__alloc(page_count * PAGE);
    if (memory == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < page_count; i++) {
        size_t left = count - i * PAGE_RECORDS;
        write_page(memory + i * PAGE, tombs, records + i * PAGE_RECORDS,
                   left < PAGE_RECORDS ? left : PAGE_RECORDS, *pages + i, *pages);
    }
    int rc = tombs->vfs->ops->write(tombs->vfs, file, memory, page_count * PAGE, *pages * PAGE);
    if (rc == 0)
        rc = tombs->vfs->ops->sync(tombs->vfs, file);
    if (rc == 0)
        *pages += page_count;
    tierce__free(memory);
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool is_sound(const uint8_t *page, uint64_t number)
{
    uint32_t count = tierce__load_le32(page + 20);
    return memcmp(page, magic, sizeof(magic)) == 0 &&
           tierce__load_le64(page + 8) == XXH3_64bits(page + 16, PAGE - 16) &&
           (tierce__load_le32(page + 16) != VERSION ||
            (count >= 1 && count <= PAGE_RECORDS && tierce__load_le64(page + 24) == number &&
             tierce__load_le64(page + 32) <= number));
}

static int apply(struct tierce__tombstones *tombs, const uint8_t *at)
{
    struct tierce__key key = {.shard = {.tp_rank = tierce__load_le16(at + 16),
                                        .tp_size = tierce__load_le16(at + 18),
                                        .pp_rank = tierce__load_le16(at + 20),
                                        .pp_size = tierce__load_le16(at + 22)}};
    uint32_t kind = tierce__load_le32(at);
    uint64_t store = tierce__load_le64(at + 8);
    int64_t ns = tierce__namespaces_intern(tombs->namespaces, at + 32, NULL);
    if (ns < 0)
        return (int)ns;
    key.ns = (uint32_t)ns;
    memcpy(key.hash, at + 64, TIERCE_HASH_BYTES);
    struct tombstone *tomb = find(tombs, store, &key);
    if (kind == LIFTED && tomb != NULL)
        discard(tombs, tomb);
    if (kind == ADDED && tomb == NULL)
        return insert(tombs, store, &key, 0);
    return kind == ADDED || kind == LIFTED ? 0 : TIERCE_E_FORMAT;
}

static int apply_page(struct tierce__tombstones *tombs, const uint8_t *page)
{
    int rc = tierce__load_le32(page + 16) == VERSION ? 0 : TIERCE_E_VERSION;
    for (uint32_t i = 0; rc == 0 && i < tierce__load_le32(page + 20); i++)
        rc = apply(tombs, page + HEADER_BYTES + i * RECORD_BYTES);
    return rc;
}

/* The first page of a file of ours, which a power cut may have left as zeroes. */
static bool is_ours(const uint8_t *page)
{
    static const uint8_t zeroes[512];
    return memcmp(page, magic, sizeof(magic)) == 0 || memcmp(page, zeroes, sizeof(zeroes)) == 0;
}

static int read_pages(struct tierce__tombstones *tombs, uint64_t length)
{
    uint8_t page[PAGE];
    uint64_t damaged = UINT64_MAX; /* the first damaged page */
    int rc = 0;
    for (uint64_t number = 0; number * PAGE < length && rc == 0; number++) {
        uint64_t left = length - number * PAGE;
        memset(page, 0, PAGE);
        rc = tombs->vfs->ops->read(tombs->vfs, tombs->file, page, left < PAGE ? left : PAGE,
                                   number * PAGE);
        if (rc == 0 && number == 0 && !is_ours(page))
            rc = TIERCE_E_FORMAT;
        if (rc < 0)
            break;
        if (!is_sound(page, number)) {
            damaged = damaged == UINT64_MAX ? number : damaged;
            continue;
        }
        rc = damaged < tierce__load_le64(page + 32) ? TIERCE_E_CHECKSUM : apply_page(tombs, page);
        tombs->pages = number + 1;
    }
    tombs->renew = damaged != UINT64_MAX;
    return rc;
}

static int read_file(struct tierce__tombstones *tombs)
{
    struct tierce__vfs *vfs = tombs->vfs;
    int rc = vfs->ops->open(vfs, &tombs->file, TIERCE__TOMBSTONES_FILE, 0);
    if (rc == -ENOENT)
        return 0;
    int64_t length = rc == 0 ? vfs->ops->length(vfs, tombs->file) : rc;
    if (length < 0)
        return (int)length;

    if (length > (int64_t)PAGES_MAX * PAGE)
        return TIERCE_E_LIMIT;
    return read_pages(tombs, (uint64_t)length);
}

/* The file stays as it is. */
static void destroy(struct tierce__tombstones *tombs)
{
    TIERCE_ASSERT(!tombs->writing);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &tombs->order)
        discard(tombs, TIERCE__CONTAINER_OF(it, struct tombstone, order));
    if (tombs->file != NULL)
        tombs->vfs->ops->close(tombs->vfs, tombs->file);
    tombs->vfs->ops->destroy(tombs->vfs);
    tierce__cond_fini(&tombs->changed);
    tierce__lock_fini(&tombs->lock);
    tierce__map_fini(&tombs->map);
    tierce__free(tombs->queue);
    tierce__free(tombs);
}

int tierce__tombstones_open(struct tierce__tombstones **out, struct tierce__vfs *vfs,
                            struct tierce__namespaces *namespaces)
{
    struct tierce__tombstones *tombs = tierce__calloc(1, sizeof(*tombs));
    if (tombs == NULL) {
        vfs->ops->destroy(vfs);
        return -ENOMEM;
    }
    tombs->vfs = vfs;
    tombs->namespaces = namespaces;
    tierce__lock_init(&tombs->lock, TIERCE__LOCK_TOMBSTONES);
    tierce__cond_init(&tombs->changed);
    tierce__list_init(&tombs->order);
    int rc = read_file(tombs);
    if (rc < 0)
        destroy(tombs);
    else
        *out = tombs;
    return rc;
}

void tierce__tombstones_close(struct tierce__tombstones *tombs)
{
    if (tombs == NULL)
        return;
    tombs->retry_ns = 0;
    tierce__tombstones_flush(tombs);
    destroy(tombs);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Under the lock. */
static int push(struct tierce__tombstones *tombs, enum kind kind, uint64_t store,
                const struct tierce__key *key)
{
    tierce__lock_assert_held(&tombs->lock);
    TIERCE_DASSERT(kind == ADDED || kind == LIFTED);
    if (tombs->renew && !tombs->writing) { /* the next write is of all tombstones */
        tombs->made++;
        return 0;
    }
    if (TIERCE__GROW(tombs->queue, tombs->queue_room, tombs->queued + 1, PAGE_RECORDS) < 0)
        return -ENOMEM;
    tombs->queue[tombs->queued++] =
        (struct tombstone_record){.kind = kind, .store = store, .key = *key};
    tombs->made++;
    TIERCE_DASSERT(tombs->queued <= tombs->queue_room && tombs->synced <= tombs->made);
    return 0;
}

/* Appends a batch, to a new file if there is none. */
static int append(struct tierce__tombstones *tombs, const struct tombstone_record *records,
                  size_t count)
{
    TIERCE_DASSERT(tombs->writing);
    TIERCE_DASSERT(count > 0);
    struct tierce__vfs *vfs = tombs->vfs;
    int rc = 0;
    if (tombs->file == NULL) {
        rc = vfs->ops->open(vfs, &tombs->file, TIERCE__TOMBSTONES_FILE,
                            TIERCE__VFS_CREATE | TIERCE__VFS_EXCLUSIVE);
        if (rc == 0)
            rc = vfs->ops->sync_folder(vfs, ".");
    }
    return rc == 0 ? write_batch(tombs, tombs->file, &tombs->pages, records, count) : rc;
}

/* Whether the name of the new file is free, or a file of ours has it: one that was not finished. */
static int check_new_file(struct tierce__vfs *vfs)
{
    uint8_t page[PAGE] = {0};
    struct tierce__vfs_file *file;
    int rc = vfs->ops->open(vfs, &file, NEW_FILE, TIERCE__VFS_READONLY);
    if (rc < 0)
        return rc == -ENOENT ? 0 : rc;
    int64_t length = vfs->ops->length(vfs, file);
    rc = length < 0 ? (int)length : 0;
    if (rc == 0 && length > 0)
        rc = vfs->ops->read(vfs, file, page, length < (int64_t)PAGE ? (size_t)length : PAGE, 0);
    vfs->ops->close(vfs, file);
    return rc == 0 && !is_ours(page) ? -EEXIST : rc;
}

/* A file with these records alone takes the place of the old one. */
static int replace_file(struct tierce__tombstones *tombs, const struct tombstone_record *records,
                        size_t count)
{
    TIERCE_DASSERT(tombs->writing);
    struct tierce__vfs *vfs = tombs->vfs;
    struct tierce__vfs_file *file = NULL;
    uint64_t pages = 0;
    int rc = check_new_file(vfs);
    if (rc == 0)
        rc = vfs->ops->open(vfs, &file, NEW_FILE, TIERCE__VFS_CREATE | TIERCE__VFS_TRUNCATE);
    for (size_t done = 0, batch; done < count && rc == 0; done += batch) {
        size_t left = count - done, most = (size_t)BATCH_PAGES * PAGE_RECORDS;
        batch = left < most ? left : most;
        rc = write_batch(tombs, file, &pages, records + done, batch);
    }
    if (rc == 0)
        rc = vfs->ops->rename(vfs, NEW_FILE, TIERCE__TOMBSTONES_FILE);
    if (rc == 0)
        rc = vfs->ops->sync_folder(vfs, ".");
    if (rc == 0) {
        struct tierce__vfs_file *old = tombs->file;
        tombs->file = file;
        tombs->pages = pages;
        file = old;
    }
    if (file != NULL)
        vfs->ops->close(vfs, file);
    return rc;
}

/* Under the lock: the records to write next, all tombstones for a new file; heap. NULL: no
 * memory. */
static struct tombstone_record *take_records(struct tierce__tombstones *tombs, size_t *count)
{
    tierce__lock_assert_held(&tombs->lock);
    size_t most = (size_t)BATCH_PAGES * PAGE_RECORDS, n = 0;
    *count = tombs->renew           ? (size_t)atomic_load(&tombs->count)
             : tombs->queued < most ? tombs->queued
                                    : most;
    struct tombstone_record *records = tierce__calloc(*count + 1, sizeof(*records));
    if (records == NULL)
        return NULL;
    if (!tombs->renew) {
        memcpy(records, tombs->queue, *count * sizeof(*records));
        return records;
    }
    TIERCE__LIST_FOR_EACH (it, &tombs->order) {
        const struct tombstone *tomb = TIERCE__CONTAINER_OF(it, struct tombstone, order);
        records[n++] =
            (struct tombstone_record){.kind = ADDED, .store = tomb->store, .key = tomb->key};
    }
    TIERCE_ASSERT(n == *count);
    return records;
}

/* Under the lock, which is dropped meanwhile. After a failed write the next one makes a new file,
 * so that nothing half written comes before a record. */
static int write_some(struct tierce__tombstones *tombs)
{
    tierce__lock_assert_held(&tombs->lock);
    TIERCE_ASSERT(!tombs->writing && (tombs->renew || tombs->queued > 0));
    size_t count;
    struct tombstone_record *records = take_records(tombs, &count);
    if (records == NULL)
        return -ENOMEM;
    size_t written = tombs->renew ? tombs->queued : count; /* the leading ones of the queue */
    uint64_t last = tombs->made - (tombs->queued - written);
    TIERCE_DASSERT(tombs->synced <= last && last <= tombs->made);
    tombs->writing = true;
    tierce__lock_drop(&tombs->lock);
    int rc = tombs->renew ? replace_file(tombs, records, count) : append(tombs, records, count);
    tierce__free(records);
    tierce__lock_take(&tombs->lock);
    TIERCE_ASSERT(tombs->queued >= written);
    tombs->renew = rc < 0;
    if (rc == 0) {
        tombs->queued -= written;
        if (tombs->queued > 0)
            memmove(tombs->queue, tombs->queue + written, tombs->queued * sizeof(*tombs->queue));
        tombs->synced = last;
    } else {
        tombs->queued = 0; /* a device that keeps failing must not make it grow */
        tombs->retry_ns = tierce__deadline_in_ms(RETRY_MS);
    }
    tombs->writing = false;
    tierce__cond_broadcast(&tombs->changed);
    return rc;
}

/* Under the lock: whether the limit is to be logged. */
static bool note_full(struct tierce__tombstones *tombs)
{
    tierce__lock_assert_held(&tombs->lock);
    TIERCE_DASSERT(atomic_load(&tombs->count) >= TIERCE__TOMBSTONES_MAX);
    bool is_new = !tombs->is_full;
    tombs->is_full = true;
    return is_new;
}

static void log_full(void)
{
    tierce__log(TIERCE_LOG_WARN, "tombstones_full",
                "count=%u consequence=\"values whose names have no tombstone are not replaced or "
                "removed\" remedy=\"return the remote stores to service, permit deletions in "
                "them, or remove them from remote.urls\"",
                TIERCE__TOMBSTONES_MAX);
}

int tierce__tombstones_add(struct tierce__tombstones *tombs, uint64_t store,
                           const struct tierce__key *key)
{
    if (tombs == NULL)
        return TIERCE_E_UNSUPPORTED;
    tierce__lock_take(&tombs->lock);
    struct tombstone *tomb = find(tombs, store, key);
    bool is_new = tomb == NULL, logs_full = false;
    int rc = 0;
    if (is_new && atomic_load(&tombs->count) >= TIERCE__TOMBSTONES_MAX) {
        rc = TIERCE__TOMBSTONES_FULL;
        logs_full = note_full(tombs);
    } else if (is_new) {
        rc = insert(tombs, store, key, tombs->made + 1);
    }
    if (rc == 0 && is_new) {
        tomb = find(tombs, store, key);
        rc = push(tombs, ADDED, store, key);
    }
    uint64_t number = tomb != NULL ? tomb->number : 0;
    while (rc == 0 && tombs->synced < number) {
        if (tombs->writing)
            (void)tierce__cond_wait(&tombs->changed, &tombs->lock, TIERCE__DEADLINE_NEVER);
        else
            rc = write_some(tombs);
    }
    tomb = find(tombs, store, key); /* another thread may have lifted it meanwhile */
    if (rc < 0 && is_new && tomb != NULL && tomb->number == number) {
        (void)push(tombs, LIFTED, store, key);
        discard(tombs, tomb);
    } else if (rc == 0 && tomb == NULL) {
        rc = TIERCE_E_CANCELLED;
    }
    TIERCE_DASSERT(rc < 0 || tombs->synced >= number);
    tierce__lock_drop(&tombs->lock);
    if (logs_full)
        log_full();
    return rc;
}

bool tierce__tombstones_has(struct tierce__tombstones *tombs, uint64_t store,
                            const struct tierce__key *key)
{
    if (tombs == NULL || atomic_load(&tombs->count) == 0)
        return false;
    tierce__lock_take(&tombs->lock);
    bool has = find(tombs, store, key) != NULL;
    tierce__lock_drop(&tombs->lock);
    return has;
}

void tierce__tombstones_lift(struct tierce__tombstones *tombs, uint64_t store,
                             const struct tierce__key *key)
{
    if (tombs == NULL || atomic_load(&tombs->count) == 0)
        return;
    tierce__lock_take(&tombs->lock);
    struct tombstone *tomb = find(tombs, store, key);
    if (tomb != NULL) {
        (void)push(tombs, LIFTED, store, key); /* without memory it reappears after a restart */
        discard(tombs, tomb);
    }
    tierce__lock_drop(&tombs->lock);
}

size_t tierce__tombstones_list(struct tierce__tombstones *tombs, uint64_t store,
                               struct tierce__key *keys, size_t room)
{
    size_t count = 0;
    if (tombs == NULL || atomic_load(&tombs->count) == 0)
        return 0;
    tierce__lock_take(&tombs->lock);
    TIERCE__LIST_FOR_EACH (it, &tombs->order) {
        const struct tombstone *tomb = TIERCE__CONTAINER_OF(it, struct tombstone, order);
        if (count == room)
            break;
        if (tomb->store == store)
            keys[count++] = tomb->key;
    }
    tierce__lock_drop(&tombs->lock);
    TIERCE_DASSERT(count <= room);
    return count;
}

void tierce__tombstones_defer(struct tierce__tombstones *tombs, uint64_t store,
                              const struct tierce__key *key)
{
    if (tombs == NULL)
        return;
    tierce__lock_take(&tombs->lock);
    struct tombstone *tomb = find(tombs, store, key);
    if (tomb != NULL) {
        tierce__list_remove(&tomb->order);
        tierce__list_push_back(&tombs->order, &tomb->order);
    }
    tierce__lock_drop(&tombs->lock);
}

uint64_t tierce__tombstones_count(struct tierce__tombstones *tombs)
{
    return tombs != NULL ? atomic_load(&tombs->count) : 0;
}

void tierce__tombstones_flush(struct tierce__tombstones *tombs)
{
    if (tombs == NULL)
        return;
    tierce__lock_take(&tombs->lock);
    uint64_t count = atomic_load(&tombs->count);
    TIERCE_DASSERT(tombs->synced <= tombs->made && tombs->queued <= tombs->queue_room);
    /* A writer owns `pages`, and does so without the lock. */
    bool is_waste = !tombs->writing && tombs->pages > 0 && count == 0;
    bool is_long =
        !tombs->writing && tombs->pages > PAGES_WORTH && tombs->pages * PAGE_RECORDS > 4 * count;
    bool has_room = tombs->is_full && count <= ROOM_AGAIN;
    int rc = 0;
    tombs->is_full &= !has_room;
    bool is_due = tombs->queued > 0 || tombs->renew || is_waste || is_long;
    if (!tombs->writing && is_due && tierce__now_ns() >= tombs->retry_ns) {
        tombs->renew |= is_waste || is_long;
        rc = write_some(tombs);
    }
    tierce__lock_drop(&tombs->lock);
    if (has_room)
        tierce__log(TIERCE_LOG_WARN, "tombstones_room_again", "count=%" PRIu64 " limit=%u", count,
                    TIERCE__TOMBSTONES_MAX);
    if (rc < 0)
        tierce__log_repeated(
            TIERCE_LOG_WARN, "tombstones_not_written",
            "file=\"%s\" reason=\"%s\" consequence=\"after a restart, remote stores are "
            "asked again to delete values\"",
            TIERCE__TOMBSTONES_FILE, tierce_strerror(rc));
}
