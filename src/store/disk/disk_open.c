/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log/log.h"
#include "core/chunk/header.h"
#include "store/disk/disk_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define CAP_BYTES_MIN   (1ULL << 20)
#define CHUNK_COUNT_MIN 4096u
#define CHUNK_COUNT_MAX (1u << 30)
#define EVICT_BYTES_MAX (256ULL << 20) /* cap / 64 of a large disk would be too much at once */
#define EVICT_CAP_MIN   (1ULL << 30)   /* smaller stores evict one by one, exactly by policy */
#define GROW_BYTES_MAX  (256ULL << 20)
#define FILTER_PLACES   65536u
#define PAGE            TIERCE__JOURNAL_PAGE

/* ---- sizes ----------------------------------------------------------------------------------- */

static uint32_t limbo_room(uint32_t chunk_count_max)
{
    return chunk_count_max < TIERCE__JOURNAL_DELS_MAX ? chunk_count_max : TIERCE__JOURNAL_DELS_MAX;
}

static uint64_t text_reserve(uint64_t cap)
{
    uint64_t bytes = cap / 256;
    if (bytes < 4 * PAGE)
        bytes = 4 * PAGE;
    return bytes < (16ULL << 20) ? bytes : 16ULL << 20;
}

/* The part of the cap that must stay free of data for `count` chunks. */
static uint64_t reserve(uint64_t cap, uint32_t count)
{
    TIERCE_DASSERT(count > 0);
    return (tierce__journal_pages_max(count) + tierce__journal_pages_live(count)) * PAGE +
           text_reserve(cap);
}

static uint64_t at_most(uint64_t value, uint64_t bound)
{
    return value < bound ? value : bound;
}

uint32_t tierce__disk_chunk_count_max(uint64_t cap_bytes)
{
    uint32_t fits = 0, next = CHUNK_COUNT_MAX;
    while (next > fits) { /* the reserve grows with the number */
        uint32_t middle = next - (next - fits) / 2;
        if (reserve(cap_bytes, middle) <= cap_bytes / 2)
            fits = middle;
        else
            next = middle - 1;
    }
    return fits;
}

static int set_sizes(struct tierce__disk *d, const struct tierce__disk_opts *opts)
{
    uint64_t cap = opts->cap_bytes;
    uint64_t count = opts->chunk_count_max;
    if (count == 0) {
        count = cap >> 18;
        count = count > CHUNK_COUNT_MIN ? at_most(count, CHUNK_COUNT_MAX) : CHUNK_COUNT_MIN;
        while (count > 16 && reserve(cap, (uint32_t)count) > cap / 8)
            count /= 2;
    }
    if (count > tierce__disk_chunk_count_max(cap))
        return TIERCE_E_ARGUMENT;
    d->cap_bytes = cap;
    d->chunk_count_max = (uint32_t)count;
    d->stats.slots = count;
    d->stats.cap_bytes = cap;
    d->slots.opts = opts->slots;
    d->data_cap = (cap - reserve(cap, d->chunk_count_max)) & ~(uint64_t)(PAGE - 1);
    d->blocked_from = d->data_cap;
    d->journal_pages_max = tierce__journal_pages_max(d->chunk_count_max);
    d->text_bytes_max = text_reserve(cap) - PAGE; /* the mark has a page of it */
    d->limbo_room = limbo_room(d->chunk_count_max);
    d->queue_bytes_max =
        opts->queue_bytes != 0 ? opts->queue_bytes : at_most(cap / 4, 256ULL << 20);
    d->evict_bytes = d->data_cap < EVICT_CAP_MIN ? 0 : at_most(d->data_cap / 64, EVICT_BYTES_MAX);
    d->grow_bytes = at_most(tierce__round_up(d->data_cap / 16, PAGE), GROW_BYTES_MAX);
    TIERCE_DASSERT(d->data_cap % PAGE == 0 && d->grow_bytes % PAGE == 0);
    TIERCE_DASSERT(d->data_cap + d->text_bytes_max < d->cap_bytes);
    TIERCE_DASSERT(d->data_cap + d->journal_pages_max * PAGE < d->cap_bytes);
    TIERCE_DASSERT(d->limbo_room > 0 && d->limbo_room <= d->chunk_count_max);
    d->io_depth = opts->io_depth != 0 ? opts->io_depth : 16;
    TIERCE_DASSERT(d->io_depth > 0 && d->io_depth <= 64);
    d->io_bytes = opts->io_bytes != 0 ? opts->io_bytes : 1u << 20;
    d->flush_interval_ms = opts->flush_interval_ms != 0 ? opts->flush_interval_ms : 1000;
    return 0;
}

static bool opts_are_sane(const struct tierce__disk_opts *o)
{
    return o != NULL && o->size == sizeof(*o) && o->path != NULL && o->path[0] != '\0' &&
           o->policy != NULL && o->namespaces != NULL && o->cap_bytes >= CAP_BYTES_MIN &&
           o->cap_bytes <= INT64_MAX && o->io_depth <= 64 && o->io_bytes % PAGE == 0 &&
           o->io_bytes <= (64u << 20);
}

/* ---- reading back ---------------------------------------------------------------------------- */

struct disk_open_replay {
    struct tierce__journal_reader reader;
    struct tierce__vfs_file *file; /* the journal, or NULL: there is none */
    uint64_t journal_length;
    uint64_t lost; /* pages that were synced, gone from the journal's end */
    bool forgets;  /* removals may be lost that were synced */
    bool rewrite;  /* the journal is inconsistent, or has gaps */
};

/* Opens the journal and finds how many slots its chunks may need: those of the store that wrote
 * it, which may have had a larger cap. */
static int open_journal(struct tierce__disk *d, struct disk_open_replay *r, uint32_t *slot_count)
{
    int rc = d->vfs->ops->open(d->vfs, &r->file, TIERCE__DISK_JOURNAL, 0);
    if (rc == -ENOENT)
        return 0;
    if (rc < 0)
        return rc;
    int64_t length = d->vfs->ops->length(d->vfs, r->file);
    if (length < 0)
        return (int)length;
    r->journal_length = (uint64_t)length;
    uint64_t capacity = 0;
    rc = tierce__journal_probe(d->vfs, r->file, r->journal_length, *slot_count, &capacity);
    uint64_t most = r->journal_length / TIERCE__JOURNAL_PUT_BYTES + 1;
    uint64_t wanted = at_most(capacity, most);
    if (wanted > *slot_count)
        *slot_count = (uint32_t)at_most(wanted, CHUNK_COUNT_MAX);
    TIERCE_DASSERT(*slot_count <= CHUNK_COUNT_MAX);
    return rc;
}

static void log_damage(const struct tierce__disk *d, const struct disk_open_replay *r,
                       uint64_t dropped)
{
    TIERCE_DASSERT(dropped == 0 || r->file != NULL);
    if (r->reader.bad == 0 && r->reader.missing == 0 && r->lost == 0 &&
        r->reader.damaged_records == 0 && dropped == 0)
        return;
    tierce__log(TIERCE_LOG_WARN, "disk_journal_damaged",
                "path=%s/" TIERCE__DISK_JOURNAL
                " pages=%llu bad_pages=%llu missing_pages=%llu lost_at_end=%llu "
                "records_dropped=%llu",
                d->folder, (unsigned long long)r->reader.good, (unsigned long long)r->reader.bad,
                (unsigned long long)r->reader.missing, (unsigned long long)r->lost,
                (unsigned long long)(dropped + r->reader.damaged_records));
}

static int read_journal(struct tierce__disk *d, struct disk_open_replay *r)
{
    uint32_t slot_count = d->chunk_count_max;
    d->opening = TIERCE__DISK_JOURNAL;
    int rc = open_journal(d, r, &slot_count);
    if (rc == 0)
        rc = tierce__disk_table_init(&d->table, slot_count, d->namespaces);
    if (rc == 0)
        rc = tierce__siblings_create(&d->siblings, slot_count);
    if (rc == 0 && r->file != NULL)
        rc = tierce__journal_read_file(&r->reader, d->vfs, r->file, tierce__disk_table_apply,
                                       &d->table);
    if (rc == 0)
        rc = d->table.status;
    if (rc == 0 && r->file != NULL && r->reader.good == 0)
        rc = tierce__disk_check_journal(d, r->file, r->journal_length);
    if (rc == TIERCE_E_VERSION)
        tierce__log(
            TIERCE_LOG_ERROR, "disk_version_newer",
            "path=%s this_build=%u hint=\"a newer build wrote this store; it is not changed\"",
            d->folder, TIERCE__JOURNAL_VERSION);
    if (rc < 0)
        return rc;
    struct tierce__journal_mark mark = tierce__journal_mark_read(d->vfs, TIERCE__JOURNAL_MARK_NAME);
    r->lost = tierce__journal_lost(&mark, &r->reader);
    r->forgets = r->file != NULL && tierce__journal_lost_synced(&mark, &r->reader);
    log_damage(d, r, d->table.dropped);
    r->rewrite = r->file == NULL || r->reader.good == 0 || r->reader.missing > 0 || r->lost > 0 ||
                 r->reader.damaged_records > 0 || d->table.dropped > 0;
    d->next_seq = d->table.seq_max + 1;
    TIERCE_DASSERT(d->next_seq <= TIERCE__JOURNAL_SEQ_MAX);
    TIERCE_DASSERT(d->table.slot_count >= d->chunk_count_max);
    d->day = d->table.day;
    d->day_bytes = d->table.day_bytes;
    return 0;
}

/* Whether the bytes of a chunk begin as those that were put. Only asked after damage, when a
 * removal may be missing from the journal and the space be another's. */
static bool head_is_right(struct tierce__disk *d, const struct tierce__disk_chunk *c, uint8_t *page)
{
    TIERCE_DASSERT(c->offset % PAGE == 0 && c->object_bytes >= PAGE);
    return d->vfs->ops->read(d->vfs, d->data, page, PAGE, c->offset) == 0 &&
           XXH3_64bits(page, PAGE) == c->head_sum;
}

/* Named values, and chunks of one token block, which are of little worth: objects.c stores a value
 * under the hash of its only block. */
static bool may_be_named_value(const struct tierce__key *key, const struct tierce__disk_chunk *c)
{
    TIERCE_DASSERT(c->state == TIERCE__DISK_DURABLE);
    return c->block_count == 1 && memcmp(c->first_block, key->hash, sizeof(c->first_block)) == 0;
}

/* Drops the named values if removals are lost. A chunk always has the same bytes, but a value that
 * returns may have been replaced or removed. */
static void drop_values(struct tierce__disk *d, struct disk_open_replay *r)
{
    TIERCE_DASSERT(d->durable_count == 0); /* nothing is in the policy yet */
    uint64_t dropped = 0;
    for (uint32_t slot = 0; slot < d->table.slot_count && r->forgets; slot++) {
        if (!tierce__index_has(d->table.index, slot) ||
            !may_be_named_value(tierce__index_key(d->table.index, slot), &d->table.chunks[slot]))
            continue;
        tierce__disk_table_erase(&d->table, slot);
        dropped++;
    }
    if (dropped == 0)
        return;
    r->rewrite = true;
    tierce__log(
        TIERCE_LOG_WARN, "disk_values_dropped",
        "path=%s values=%llu hint=\"the journal was damaged, and has lost which of them were "
        "replaced or removed\"",
        d->folder, (unsigned long long)dropped);
}

/* Claims the space of every chunk, newest first, so that of two overlapping chunks the later one is
 * kept; a chunk beyond the file or the cap, or that overlaps another one, is dropped. */
static int claim_space(struct tierce__disk *d, struct disk_open_replay *r, const uint32_t *slots,
                       uint64_t file_length)
{
    uint8_t *page = tierce__alloc_aligned(PAGE, PAGE);
    if (page == NULL)
        return -ENOMEM;
    uint64_t dropped = 0;
    int rc = 0;
    for (uint32_t i = tierce__index_count(d->table.index); i-- > 0 && rc != -ENOMEM;) {
        const struct tierce__disk_chunk *c = &d->table.chunks[slots[i]];
        TIERCE_DASSERT(tierce__index_has(d->table.index, slots[i]));
        TIERCE_DASSERT(c->state == TIERCE__DISK_DURABLE && c->reads == 0);
        bool good = c->offset + c->object_bytes <= file_length;
        if (good && r->reader.missing + r->lost > 0)
            good = head_is_right(d, c, page);
        rc = good ? tierce__space_claim(d->space, c->offset, c->object_bytes) : TIERCE_E_FORMAT;
        if (rc < 0) {
            tierce__disk_table_erase(&d->table, slots[i]);
            dropped++;
        }
    }
    tierce__free(page);
    if (dropped > 0) {
        r->rewrite = true;
        tierce__log(TIERCE_LOG_WARN, "disk_chunks_dropped", "path=%s chunks=%llu", d->folder,
                    (unsigned long long)dropped);
    }
    return rc == -ENOMEM ? rc : 0;
}

/* Adds all chunks to the policy and the siblings, oldest first. */
static int fill_policy(struct tierce__disk *d)
{
    TIERCE_DASSERT(d->durable_count == 0);
    uint32_t count = tierce__index_count(d->table.index);
    uint32_t *slots = tierce__disk_table_sorted(&d->table, TIERCE__DISK_BY_AGE);
    if (slots == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        const struct tierce__disk_chunk *c = &d->table.chunks[slots[i]];
        TIERCE_DASSERT(c->state == TIERCE__DISK_DURABLE &&
                       c->offset + c->object_bytes <= d->data_cap);
        const struct tierce__key *key = tierce__index_key(d->table.index, slots[i]);
        struct tierce__key parent = *key;
        memcpy(parent.hash, c->parent, sizeof(parent.hash));
        uint32_t parent_slot = tierce__index_find(d->table.index, &parent);
        if (parent_slot != TIERCE__INDEX_NONE &&
            !tierce__disk_is_older(&d->table.chunks[parent_slot], c))
            parent_slot = TIERCE__INDEX_NONE; /* the parent is not in the policy yet */
        d->policy->ops->insert(d->policy, slots[i],
                               &(struct tierce__policy_entry){.key = tierce__key_spread(key),
                                                              .bytes = c->object_bytes,
                                                              .now = tierce__now_ns(),
                                                              .parent = parent_slot});
        tierce__siblings_add(d->siblings, slots[i], key, c->first_block);
        d->durable_count++;
        TIERCE_DASSERT(d->durable_count <= tierce__index_count(d->table.index));
    }
    tierce__free(slots);
    return 0;
}

/* For a store with fewer slots than the one that wrote the journal: evicts by policy. */
static void evict_surplus(struct tierce__disk *d, struct disk_open_replay *r)
{
    uint32_t slot;
    TIERCE_DASSERT(d->durable_count == tierce__index_count(d->table.index));
    while (tierce__index_count(d->table.index) > d->chunk_count_max &&
           d->policy->ops->victim(d->policy, tierce__now_ns(), &slot)) {
        const struct tierce__disk_chunk *c = &d->table.chunks[slot];
        TIERCE_DASSERT(slot < d->table.slot_count && tierce__index_has(d->table.index, slot));
        TIERCE_DASSERT(c->state == TIERCE__DISK_DURABLE && d->durable_count > 0);
        d->policy->ops->remove(d->policy, slot, true);
        tierce__siblings_remove(d->siblings, slot);
        tierce__space_give(d->space, c->offset, c->object_bytes);
        tierce__disk_table_erase(&d->table, slot);
        d->durable_count--;
        d->stats.evicted_chunks++;
        r->rewrite = true; /* before their space is used again */
    }
    TIERCE_DASSERT(tierce__index_count(d->table.index) <= d->chunk_count_max);
}

static int rebuild(struct tierce__disk *d, struct disk_open_replay *r, uint64_t file_length)
{
    TIERCE_DASSERT(tierce__space_used(d->space) == 0);
    drop_values(d, r);
    uint32_t *slots = tierce__disk_table_sorted(&d->table, TIERCE__DISK_BY_SEQ);
    if (slots == NULL)
        return -ENOMEM;
    int rc = tierce__space_reserve(d->space, d->table.slot_count + 1);
    if (rc == 0)
        rc = claim_space(d, r, slots, file_length);
    tierce__free(slots);
    if (rc == 0)
        rc = fill_policy(d);
    if (rc < 0)
        return rc;
    evict_surplus(d, r);
    d->stats.chunks = tierce__index_count(d->table.index);
    TIERCE_DASSERT(d->durable_count == d->stats.chunks);
    return 0;
}

/* ---- repair ---------------------------------------------------------------------------------- */

/* Continues the existing journal, and truncates it after its last valid page: an appended page must
 * not be followed by a page of an earlier process. The journal is synced in every case: its writer
 * may have been killed before it could, and from now on its chunks count as durable. */
static int resume_journal(struct tierce__disk *d, struct disk_open_replay *r)
{
    TIERCE_DASSERT(!r->rewrite && r->reader.end <= d->journal_pages_max);
    uint64_t good = r->reader.end * PAGE;
    int rc = 0;
    if (r->journal_length > good)
        rc = d->vfs->ops->truncate(d->vfs, r->file, good);
    if (rc == 0)
        rc = d->vfs->ops->sync(d->vfs, r->file);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < TIERCE__DISK_NS_MAX; i++) {
        if (d->table.ns_of[i] == 0)
            continue;
        TIERCE_DASSERT(d->table.ns_of[i] - 1 < TIERCE__DISK_NS_MAX);
        d->ns_numbers[d->table.ns_of[i] - 1] = i + 1;
        d->ns_count = i + 1;
    }
    TIERCE_DASSERT(d->ns_count <= TIERCE__DISK_NS_MAX);
    tierce__journal_resume(&d->journal, r->file, r->reader.epoch, r->reader.capacity,
                           r->reader.end);
    r->file = NULL;
    d->journal_bytes = good;
    TIERCE_DASSERT(d->journal_bytes == d->journal.length * PAGE);
    tierce__disk_mark_synced(d);
    return 0;
}

/* Removes the files of an interrupted compaction; they are ours. */
static int remove_leftover(struct tierce__disk *d)
{
    TIERCE_DASSERT(d->lock_fd >= 0); /* no other store is writing it */
    if (!d->has_leftover)
        return 0;
    d->opening = TIERCE__DISK_JOURNAL_NEW;
    int rc = d->vfs->ops->unlink(d->vfs, TIERCE__DISK_JOURNAL_NEW);
    d->has_leftover = rc < 0;
    return rc;
}

/* Makes the files agree with the index. */
static int repair(struct tierce__disk *d, struct disk_open_replay *r, uint64_t file_length)
{
    int rc = remove_leftover(d);
    bool too_long = r->reader.end > d->journal_pages_max;
    bool other_size = r->reader.capacity != d->table.slot_count;
    if (rc == 0)
        d->opening = TIERCE__DISK_JOURNAL;
    if (rc == 0 && (r->rewrite || too_long || other_size))
        rc = tierce__disk_compact(d);
    else if (rc == 0)
        rc = resume_journal(d, r);
    /* Only now: until here the old journal may have needed the bytes beyond. */
    if (rc == 0 && file_length > d->data_cap) {
        d->opening = TIERCE__DISK_DATA;
        rc = d->vfs->ops->truncate(d->vfs, d->data, d->data_cap);
        file_length = d->data_cap;
    }
    d->allocated = file_length & ~(uint64_t)(PAGE - 1); /* only whole pages can be given out */
    TIERCE_DASSERT(rc < 0 || d->allocated <= d->data_cap);
    TIERCE_DASSERT(rc < 0 || (!d->has_leftover && d->journal_error == 0));
    if (rc == 0) {
        d->opening = ".";
        rc = d->vfs->ops->sync_folder(d->vfs, ".");
    }
    return rc;
}

/* ---- open ------------------------------------------------------------------------------------ */

static int make_policy(struct tierce__disk *d, const struct tierce__disk_opts *opts)
{
    TIERCE_DASSERT(d->table.slot_count >= d->chunk_count_max && d->data_cap > 0);
    return opts->policy->create(
        &d->policy, &(struct tierce__policy_opts){.size = sizeof(struct tierce__policy_opts),
                                                  .slot_count = d->table.slot_count,
                                                  .capacity = d->data_cap,
                                                  .seed = d->seed,
                                                  .ttl = opts->ttl_ms * 1000000,
                                                  .ops = opts->policy});
}

/* Makes the folder and holds it: whatever becomes of its name, this one is the store. */
static int enter_folder(struct tierce__disk *d)
{
    TIERCE_DASSERT(d->lock_fd < 0);
    d->opening = ".";
    int rc = d->vfs->ops->make_folder(d->vfs, d->folder);
    return rc < 0 ? rc : d->vfs->ops->enter(d->vfs, d->folder);
}

static int make_texts_folder(struct tierce__disk *d)
{
    d->opening = TIERCE__DISK_NS;
    return d->vfs->ops->make_folder(d->vfs, TIERCE__DISK_NS);
}

/* Sums are no signature: a user with write permission here can forge chunks that verify. */
static void warn_of_others(const struct tierce__disk *d)
{
    struct stat st;
    if (fstat(d->vfs->folder, &st) == 0 && (st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        tierce__log(TIERCE_LOG_WARN, "store_folder_writable",
                    "path=\"%s\" mode=%04o hint=\"users other than its owner can write to it and "
                    "choose what is loaded: chmod go-w\"",
                    d->folder, (unsigned)st.st_mode & 07777u);
}

/* The file grows on demand, so without this warning a disk.size above the free space would only be
 * noticed much later. */
static void warn_of_room(const struct tierce__disk *d)
{
    TIERCE_DASSERT(d->allocated <= d->data_cap);
    struct statvfs st;
    if (fstatvfs(d->vfs->folder, &st) != 0 || st.f_blocks == 0)
        return;
    uint64_t there = d->allocated + (uint64_t)st.f_bavail * st.f_frsize;
    if (there < d->data_cap)
        tierce__log(TIERCE_LOG_WARN, "store_folder_too_small",
                    "path=\"%s\" size=%" PRIu64 " there=%" PRIu64
                    " hint=\"the file system has less space than disk.size; the store uses only "
                    "this space; free space, or lower disk.size\"",
                    d->folder, d->cap_bytes, there);
}

/* Opens the data file. Returns its length or an error. */
static int64_t open_data(struct tierce__disk *d, bool buffered)
{
    unsigned flags = TIERCE__VFS_CREATE | (buffered ? 0 : TIERCE__VFS_DIRECT);
    d->opening = TIERCE__DISK_DATA;
    int rc = d->vfs->ops->open(d->vfs, &d->data, TIERCE__DISK_DATA, flags);
    return rc == 0 ? d->vfs->ops->length(d->vfs, d->data) : rc;
}

static int read_back(struct tierce__disk *d, const struct tierce__disk_opts *opts)
{
    TIERCE_DASSERT(d->lock_fd >= 0 && d->next_seq == 0);
    struct disk_open_replay r = {0};
    int rc = tierce__disk_check_contents(d);
    if (rc == 0)
        rc = read_journal(d, &r);
    int64_t length = rc == 0 ? open_data(d, opts->buffered) : 0;
    if (length < 0)
        rc = (int)length;
    if (rc == 0)
        rc = tierce__disk_check_data(d, (uint64_t)length, r.file != NULL);
    if (rc == 0) /* now that the folder is known not to be somebody else's */
        rc = make_texts_folder(d);
    if (rc == 0)
        rc = make_policy(d, opts);
    if (rc == 0)
        rc = rebuild(d, &r, (uint64_t)length);
    if (rc == 0)
        rc = tierce__disk_sort_texts(d);
    if (rc == 0)
        rc = repair(d, &r, (uint64_t)length);
    if (r.file != NULL)
        d->vfs->ops->close(d->vfs, r.file);
    tierce__free(d->table.ns_of);
    d->table.ns_of = NULL;
    return rc;
}

static int make_parts(struct tierce__disk *d, const struct tierce__disk_opts *opts)
{
    TIERCE_DASSERT(d->limbo_room > 0 && d->data_cap > 0);
    d->folder = tierce__strdup(opts->path);
    d->limbo = tierce__calloc(d->limbo_room, sizeof(*d->limbo));
    d->records = tierce__calloc(TIERCE__DISK_BATCH, sizeof(*d->records));
    d->ns_numbers = tierce__calloc(TIERCE__DISK_NS_MAX, sizeof(*d->ns_numbers));
    d->ns_texts = tierce__calloc(TIERCE__DISK_NS_MAX, sizeof(*d->ns_texts));
    if (opts->admit_second)
        d->admitted = tierce__calloc(FILTER_PLACES, sizeof(*d->admitted));
    bool whole = d->folder != NULL && d->limbo != NULL && d->records != NULL &&
                 d->ns_numbers != NULL && d->ns_texts != NULL &&
                 (d->admitted != NULL || !opts->admit_second);
    int rc = whole ? tierce__disk_io_init(d) : -ENOMEM;
    if (rc == 0)
        rc = tierce__journal_init(&d->journal, d->vfs);
    if (rc == 0)
        rc = tierce__journal_init(&d->journal_new, d->vfs);
    if (rc == 0)
        rc = tierce__space_create(&d->space, d->data_cap);
    return rc;
}

static int start_threads(struct tierce__disk *d)
{
    TIERCE_DASSERT(!d->journal_stop && !d->io_stop && d->journal_error == 0);
    TIERCE_DASSERT(d->doomed == TIERCE__NO_SLOT && d->limbo_head == d->limbo_tail);
    tierce__lock_take(&d->lock); /* both threads take it first, and then know their own numbers */
    int rc = pthread_create(&d->journal_thread, NULL, tierce__disk_journal_main, d);
    bool has_journal = rc == 0;
    if (rc == 0)
        rc = pthread_create(&d->io_thread, NULL, tierce__disk_io_main, d);
    d->journal_stop = rc != 0;
    tierce__lock_drop(&d->lock);
    if (rc != 0 && has_journal)
        pthread_join(d->journal_thread, NULL);
    return -rc;
}

static int make_vfs(struct tierce__disk *d, const struct tierce__disk_opts *opts)
{
    d->vfs = opts->vfs;
    return d->vfs != NULL ? 0 : tierce__vfs_create(&d->vfs, d->io_depth);
}

static void close_files(struct tierce__disk *d)
{
    if (d->vfs == NULL)
        return;
    tierce__journal_fini(&d->journal_new);
    tierce__journal_fini(&d->journal);
    if (d->mark != NULL)
        d->vfs->ops->close(d->vfs, d->mark);
    if (d->data != NULL)
        d->vfs->ops->close(d->vfs, d->data);
    d->mark = d->data = NULL;
}

void tierce__disk_free(struct tierce__disk *d)
{
    TIERCE_DASSERT(tierce__list_empty(&d->gets) && tierce__list_empty(&d->puts));
    TIERCE_DASSERT(tierce__list_empty(&d->flushes) && tierce__list_empty(&d->flushing));
    TIERCE_DASSERT(d->committing.count == 0 && d->queued_put_bytes == 0);
    TIERCE_DASSERT(d->active_put_bytes == 0 && d->reading_count == 0 && d->abandoned == 0);
    close_files(d);
    if (d->vfs != NULL)
        d->vfs->ops->destroy(d->vfs);
    tierce__disk_unlock(d);
    if (d->policy != NULL)
        d->policy->ops->destroy(d->policy);
    tierce__space_destroy(d->space);
    tierce__disk_table_fini(&d->table);
    tierce__siblings_destroy(d->siblings);
    tierce__disk_io_fini(d);
    tierce__free(d->admitted);
    tierce__free(d->ns_texts);
    tierce__free(d->ns_numbers);
    tierce__free(d->records);
    tierce__free(d->limbo);
    tierce__free(d->folder);
    tierce__cond_fini(&d->ended_cond);
    tierce__cond_fini(&d->journal_cond);
    tierce__lock_fini(&d->lock);
    d->magic = 0;
    tierce__free(d);
}

static void register_pool(struct tierce__disk *d, const struct tierce__pool *pool)
{
    uint8_t *base;
    uint64_t bytes;
    if (pool == NULL)
        return;
    tierce__pool_mapping(pool, &base, &bytes);
    TIERCE_DASSERT(bytes > 0 && ((uintptr_t)base & (PAGE - 1)) == 0);
    d->vfs->ops->use_memory(d->vfs, base, bytes);
}

/* The remedy for an unusable file or folder. */
static const char *advice(const struct tierce__disk *d, int rc)
{
    bool is_journal = d->opening != NULL && strcmp(d->opening, TIERCE__DISK_JOURNAL) == 0;
    bool is_mark = d->opening != NULL && strcmp(d->opening, TIERCE__JOURNAL_MARK_NAME) == 0;
    switch (rc) {
    case -EISDIR:
    case -EINVAL:
    case -ENOTDIR:
    case -EEXIST:
        return "it is not of the expected kind: a store is a folder with regular files and the "
               "folder ns/; move it away, or set disk.path to another folder";
    case -ELOOP:
        return "it is a symbolic link, and a store follows no links in its folder: move it away, "
               "or set disk.path to another folder";
    case TIERCE_E_LIMIT:
        return is_journal ? "it is longer than a journal of this store can be: move it away; the "
                            "store then begins empty"
                          : "it is longer than a journal of this store can be: move it away";
    case -ENOENT:
        return "the parent folder must exist: create it";
    case -EACCES:
    case -EPERM:
        return "the user of this process must be able to read and write it: change its owner or "
               "mode";
    case -EROFS:
        return "it must be on a writable file system";
    case -ENOSPC:
    case -EDQUOT:
        return "the file system must have room for the journal and a copy of it: free space, or "
               "lower disk.size";
    case -EMFILE:
    case -ENFILE:
        return "no more files can be opened: raise the limit (ulimit -n)";
    case -EAGAIN:
        return "no more threads can be started: raise the limit (ulimit -u)";
    case TIERCE_E_LOCKED:
        return "another process has the store open: end it, set disk.path to another folder, or "
               "share one node (node.socket, or with vLLM's connector node.start: shared)";
    case TIERCE_E_FORMAT:
        return is_mark ? "it does not belong to Tierce, or is damaged: move it away, the store "
                         "writes another one and keeps its chunks"
                       : "a file of that name does not belong to Tierce: move it away, or set "
                         "disk.path to another folder";
    case -EIO:
        return "the device fails; look for its errors in the kernel's log";
    default:
        return "set disk.path to another folder";
    }
}

static void log_refusal(const struct tierce__disk *d, int rc, char *why)
{
    TIERCE_DASSERT(rc < 0);
    bool is_logged = d->opening == NULL || rc == -ENOMEM || rc == TIERCE_E_VERSION;
    bool is_folder = is_logged || strcmp(d->opening, ".") == 0;
    if (why != NULL)
        snprintf(why, TIERCE__DISK_WHY_BYTES, "%s%s%s%s%s", is_folder ? "" : d->opening,
                 is_folder ? "" : ": ", tierce_strerror(rc), is_logged ? "" : "; ",
                 is_logged ? "" : advice(d, rc));
    if (is_logged)
        return;
    tierce__log(TIERCE_LOG_ERROR, "disk_open_failed", "path=\"%s%s%s\" reason=\"%s\" hint=\"%s\"",
                d->folder, is_folder ? "" : "/", is_folder ? "" : d->opening, tierce_strerror(rc),
                advice(d, rc));
}

int tierce__disk_open(struct tierce__tier **out, const struct tierce__disk_opts *opts)
{
    if (!opts_are_sane(opts))
        return TIERCE_E_ARGUMENT;
    struct tierce__disk *d = tierce__calloc(1, sizeof(*d));
    if (d == NULL)
        return -ENOMEM;
    d->base.ops = &tierce__disk_ops;
    d->magic = TIERCE__DISK_MAGIC;
    d->lock_fd = -1;
    d->doomed = TIERCE__NO_SLOT;
    d->next_deadline = TIERCE__DEADLINE_NEVER;
    d->namespaces = opts->namespaces;
    d->seed = opts->seed;
    tierce__lock_init(&d->lock, TIERCE__LOCK_DISK);
    tierce__cond_init(&d->journal_cond);
    tierce__cond_init(&d->ended_cond);
    tierce__list_init(&d->gets);
    tierce__list_init(&d->puts);
    for (size_t i = 0; i < TIERCE__DISK_PUT_BINS; i++)
        tierce__list_init(&d->puts_by_key[i]);
    tierce__list_init(&d->flushes);
    tierce__list_init(&d->flushing);

    int rc = set_sizes(d, opts);
    if (rc == 0)
        rc = make_vfs(d, opts);
    if (rc == 0)
        rc = make_parts(d, opts);
    if (rc == 0)
        rc = enter_folder(d);
    if (rc == 0)
        rc = tierce__disk_check_kinds(d);
    if (rc == 0) {
        d->opening = TIERCE__DISK_LOCK;
        rc = tierce__disk_lock(d, opts->lock_wait_ms);
    }
    if (rc == 0)
        rc = read_back(d, opts);
    if (rc == 0) {
        warn_of_others(d);
        warn_of_room(d);
        register_pool(d, opts->pool);
        d->opening = ".";
        rc = start_threads(d);
    }
    if (rc < 0) {
        log_refusal(d, rc, opts->why);
        tierce__disk_remove_lock(d);
        if (d->vfs == opts->vfs) { /* the caller keeps his vfs */
            close_files(d);
            d->vfs = NULL;
        }
        tierce__disk_free(d);
        return rc;
    }
    *out = &d->base;
    return 0;
}

char *tierce__disk_data_path(const char *path)
{
    return tierce__join_path(path, "data");
}
