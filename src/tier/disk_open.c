/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "chunk/header.h"
#include "tier/disk_private.h"

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
#define LIMBO_MAX       4096u
#define FILTER_PLACES   65536u
#define PAGE            TIERCE__JOURNAL_PAGE

/* ---- sizes ----------------------------------------------------------------------------------- */

static uint32_t limbo_room(uint32_t chunk_count_max)
{
    return chunk_count_max < LIMBO_MAX ? chunk_count_max : LIMBO_MAX;
}

/* Pages of a journal that holds `count` chunks, each of another namespace, and nothing else. */
static uint64_t live_pages(uint64_t count)
{
    uint64_t room = PAGE - TIERCE__JOURNAL_HEAD;
    return count / (room / (TIERCE__JOURNAL_PUT_BYTES + TIERCE__JOURNAL_NS_BYTES)) + 3;
}

/* A journal may hold twice what is live, and a batch; then a copy is written beside it. */
static uint64_t journal_pages_max(uint32_t count)
{
    uint64_t room = PAGE - TIERCE__JOURNAL_HEAD;
    return 2 * live_pages(count) + limbo_room(count) / (room / TIERCE__JOURNAL_DEL_BYTES / 2) + 4;
}

static uint64_t text_reserve(uint64_t cap)
{
    uint64_t bytes = cap / 256;
    if (bytes < 4 * PAGE)
        bytes = 4 * PAGE;
    return bytes < (16ULL << 20) ? bytes : 16ULL << 20;
}

/* What the cap has to keep free of data for `count` chunks. */
static uint64_t reserve(uint64_t cap, uint32_t count)
{
    return (journal_pages_max(count) + live_pages(count)) * PAGE + text_reserve(cap);
}

static uint64_t at_most(uint64_t value, uint64_t bound)
{
    return value < bound ? value : bound;
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
    if (count > CHUNK_COUNT_MAX || reserve(cap, (uint32_t)count) > cap / 2)
        return TIERCE_E_ARGUMENT;
    d->cap_bytes = cap;
    d->chunk_count_max = (uint32_t)count;
    d->data_cap = (cap - reserve(cap, d->chunk_count_max)) & ~(uint64_t)(PAGE - 1);
    d->journal_pages_max = journal_pages_max(d->chunk_count_max);
    d->text_bytes_max = text_reserve(cap) - PAGE; /* the mark has a page of it */
    d->limbo_room = limbo_room(d->chunk_count_max);
    d->queue_bytes_max =
        opts->queue_bytes != 0 ? opts->queue_bytes : at_most(cap / 4, 256ULL << 20);
    d->evict_bytes = d->data_cap < EVICT_CAP_MIN ? 0 : at_most(d->data_cap / 64, EVICT_BYTES_MAX);
    d->grow_bytes = at_most(tierce__round_up(d->data_cap / 16, PAGE), GROW_BYTES_MAX);
    d->io_depth = opts->io_depth != 0 ? opts->io_depth : 16;
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

struct replay {
    struct tierce__journal_reader reader;
    struct tierce__vfs_file *file; /* the journal, or NULL: there is none */
    uint64_t journal_length;
    uint64_t lost; /* pages that were synced, gone from the journal's end */
    bool rewrite;  /* the journal says what is not so, or has holes */
};

static void ignore_record(void *arg, const struct tierce__journal_record *record)
{
    (void)arg;
    (void)record;
}

/* Opens the journal and finds how many slots its chunks may need: those of the store that wrote
 * it, which may have had a larger cap. */
static int open_journal(struct tierce__disk *d, struct replay *r, uint32_t *slot_count)
{
    int rc = d->vfs->ops->open(d->vfs, &r->file, d->journal_path, 0);
    if (rc == -ENOENT)
        return 0;
    if (rc < 0)
        return rc;
    int64_t length = d->vfs->ops->length(d->vfs, r->file);
    if (length < 0)
        return (int)length;
    r->journal_length = (uint64_t)length;
    uint8_t *page = tierce__alloc_aligned(PAGE, PAGE);
    if (page == NULL)
        return -ENOMEM;
    /* The first page that is good; nearly always the first. */
    struct tierce__journal_reader probe = {0};
    while (rc == 0 && probe.good == 0 && (probe.page + 1) * PAGE <= r->journal_length) {
        rc = d->vfs->ops->read(d->vfs, r->file, page, PAGE, probe.page * PAGE);
        if (rc == 0)
            tierce__journal_read(&probe, page, 1, ignore_record, NULL);
    }
    tierce__free(page);
    uint64_t most = r->journal_length / TIERCE__JOURNAL_PUT_BYTES + 1;
    uint64_t wanted = at_most(probe.capacity, most);
    if (wanted > *slot_count)
        *slot_count = (uint32_t)at_most(wanted, CHUNK_COUNT_MAX);
    return rc;
}

static void log_damage(const struct tierce__disk *d, const struct replay *r, uint64_t dropped)
{
    if (r->reader.bad == 0 && r->reader.missing == 0 && r->lost == 0 &&
        r->reader.damaged_records == 0 && dropped == 0)
        return;
    tierce__log(TIERCE_LOG_WARN, "disk_journal_damaged",
                "path=%s pages=%llu bad_pages=%llu missing_pages=%llu lost_at_end=%llu "
                "records_dropped=%llu",
                d->journal_path, (unsigned long long)r->reader.good,
                (unsigned long long)r->reader.bad, (unsigned long long)r->reader.missing,
                (unsigned long long)r->lost,
                (unsigned long long)(dropped + r->reader.damaged_records));
}

/*
 * Whether a file that proves nothing is somebody else's: its first bytes are neither what our files
 * begin with nor zeros, which is what a power cut may leave of them. Such a file is not touched.
 */
static int check_ours(struct tierce__disk *d, struct tierce__vfs_file *file, uint64_t length,
                      bool (*has_magic)(const uint8_t *page))
{
    static const uint8_t zeros[8];
    if (length < sizeof(zeros)) /* too short to tell, and ours are whole pages */
        return length == 0 ? 0 : TIERCE_E_FORMAT;
    uint8_t *page = tierce__alloc_aligned(PAGE, PAGE);
    if (page == NULL)
        return -ENOMEM;
    int rc = d->vfs->ops->read(d->vfs, file, page, at_most(length, PAGE), 0);
    if (rc == 0 && !has_magic(page) && memcmp(page, zeros, sizeof(zeros)) != 0)
        rc = TIERCE_E_FORMAT;
    tierce__free(page);
    return rc;
}

static int read_journal(struct tierce__disk *d, struct replay *r)
{
    uint32_t slot_count = d->chunk_count_max;
    d->opening = d->journal_path;
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
        rc = check_ours(d, r->file, r->journal_length, tierce__journal_has_magic);
    if (rc == TIERCE_E_VERSION)
        tierce__log(TIERCE_LOG_ERROR, "disk_version_newer",
                    "path=%s this_build=%u hint=\"a newer build wrote this store; "
                    "it is left as it is\"",
                    d->folder, TIERCE__JOURNAL_VERSION);
    if (rc < 0)
        return rc;
    struct tierce__journal_mark mark = tierce__journal_mark_read(d->vfs, d->mark_path);
    r->lost = tierce__journal_lost(&mark, &r->reader);
    log_damage(d, r, d->table.dropped);
    r->rewrite = r->file == NULL || r->reader.good == 0 || r->reader.missing > 0 || r->lost > 0 ||
                 r->reader.damaged_records > 0 || d->table.dropped > 0;
    d->next_seq = d->table.seq_max + 1;
    d->day = d->table.day;
    d->day_bytes = d->table.day_bytes;
    return 0;
}

/* Whether the bytes of a chunk begin as those that were put. Only asked after damage, when a
 * removal may be missing from the journal and the space be another's. */
static bool head_is_right(struct tierce__disk *d, const struct tierce__disk_chunk *c, uint8_t *page)
{
    return d->vfs->ops->read(d->vfs, d->data, page, PAGE, c->offset) == 0 &&
           XXH3_64bits(page, PAGE) == c->head_sum;
}

/* Claims the space of every chunk, newest first, so that where two overlap the later one is
 * right; what does not fit the file, the cap or the others is dropped. */
static int claim_space(struct tierce__disk *d, struct replay *r, const uint32_t *slots,
                       uint64_t file_length)
{
    uint8_t *page = tierce__alloc_aligned(PAGE, PAGE);
    if (page == NULL)
        return -ENOMEM;
    uint64_t dropped = 0;
    int rc = 0;
    for (uint32_t i = tierce__index_count(d->table.index); i-- > 0 && rc != -ENOMEM;) {
        const struct tierce__disk_chunk *c = &d->table.chunks[slots[i]];
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

/* Tells the policy and the siblings what there is, oldest first. */
static void fill_policy(struct tierce__disk *d, const uint32_t *slots, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!tierce__index_has(d->table.index, slots[i]))
            continue; /* dropped by claim_space */
        const struct tierce__disk_chunk *c = &d->table.chunks[slots[i]];
        const struct tierce__key *key = tierce__index_key(d->table.index, slots[i]);
        struct tierce__key parent = *key;
        memcpy(parent.hash, c->parent, sizeof(parent.hash));
        uint32_t parent_slot = tierce__index_find(d->table.index, &parent);
        if (parent_slot != TIERCE__INDEX_NONE && d->table.chunks[parent_slot].seq >= c->seq)
            parent_slot = TIERCE__INDEX_NONE; /* the policy has not heard of it yet */
        d->policy->ops->insert(d->policy, slots[i],
                               &(struct tierce__policy_entry){.key = tierce__key_spread(key),
                                                              .bytes = c->object_bytes,
                                                              .now = tierce__now_ns(),
                                                              .parent = parent_slot});
        tierce__siblings_add(d->siblings, slots[i], key, c->first_block);
        d->durable_count++;
    }
}

/* A store with fewer slots than the one that wrote the journal: the policy says who leaves. */
static void evict_surplus(struct tierce__disk *d, struct replay *r)
{
    uint32_t slot;
    while (tierce__index_count(d->table.index) > d->chunk_count_max &&
           d->policy->ops->victim(d->policy, tierce__now_ns(), &slot)) {
        const struct tierce__disk_chunk *c = &d->table.chunks[slot];
        d->policy->ops->remove(d->policy, slot, true);
        tierce__siblings_remove(d->siblings, slot);
        tierce__space_give(d->space, c->offset, c->object_bytes);
        tierce__disk_table_erase(&d->table, slot);
        d->durable_count--;
        d->stats.evicted_chunks++;
        r->rewrite = true; /* before their space is used again */
    }
}

static int rebuild(struct tierce__disk *d, struct replay *r, uint64_t file_length)
{
    uint32_t count = tierce__index_count(d->table.index);
    uint32_t *slots = tierce__disk_table_sorted(&d->table);
    if (slots == NULL)
        return -ENOMEM;
    int rc = tierce__space_reserve(d->space, d->table.slot_count);
    if (rc == 0)
        rc = claim_space(d, r, slots, file_length);
    if (rc == 0) {
        fill_policy(d, slots, count);
        evict_surplus(d, r);
        d->stats.chunks = tierce__index_count(d->table.index);
    }
    tierce__free(slots);
    return rc;
}

/* ---- texts of namespaces --------------------------------------------------------------------- */

/* Marks the namespaces that the journal names, in ns_texts. */
static void mark_named(struct tierce__disk *d)
{
    for (uint32_t i = 0; i < TIERCE__DISK_NS_MAX; i++)
        if (d->table.ns_of[i] != 0)
            d->ns_texts[d->table.ns_of[i] - 1] = 1;
}

/* The id of the namespace that a file in ns/ is named after, or -1. */
static int64_t id_of_name(struct tierce__disk *d, const char *name)
{
    uint8_t digest[TIERCE_HASH_BYTES];
    if (!tierce__hex_decode(digest, sizeof(digest), name))
        return -1;
    uint32_t count = tierce__namespaces_count(d->namespaces);
    for (uint32_t id = 0; id < count; id++)
        if (memcmp(tierce__namespaces_digest(d->namespaces, id), digest, sizeof(digest)) == 0)
            return id;
    return -1;
}

/* Takes in one file of ns/: loads the text of a namespace that is named, and removes all else that
 * may be ours. Somebody's folder, or what cannot be removed, is no reason to refuse a store. */
static int sort_text(struct tierce__disk *d, const char *path, const char *name, uint8_t *used)
{
    struct stat st;
    int64_t id = id_of_name(d, name), bytes = 0;
    bool regular = lstat(path, &st) == 0 && S_ISREG(st.st_mode);
    if (regular && id >= 0 && d->ns_texts[id] != 0)
        bytes = tierce__disk_load_text(d->vfs, d->folder, d->namespaces, (uint32_t)id);
    if (bytes < 0)
        return (int)bytes;
    if (bytes > 0) {
        used[id] = 1;
        d->text_bytes += tierce__round_up((uint64_t)bytes, PAGE);
        return 0;
    }
    if (!regular || d->vfs->ops->unlink(d->vfs, path) < 0)
        tierce__log(TIERCE_LOG_WARN, "disk_stray_skipped",
                    "path=\"%s\" hint=\"it is not Tierce's; move it out of the store\"", path);
    return 0;
}

/* Loads the texts of namespaces that are named, removes the others, and counts what is left. */
static int sort_texts(struct tierce__disk *d)
{
    d->opening = d->ns_folder;
    mark_named(d);
    uint8_t *used = tierce__calloc(TIERCE__DISK_NS_MAX, 1);
    DIR *dir = used != NULL ? opendir(d->ns_folder) : NULL;
    int rc = dir != NULL ? 0 : used == NULL ? -ENOMEM : -errno;
    struct dirent *entry;
    while (rc == 0 && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        char *path = tierce__join_path(d->ns_folder, entry->d_name);
        rc = path != NULL ? sort_text(d, path, entry->d_name, used) : -ENOMEM;
        tierce__free(path);
    }
    if (dir != NULL)
        closedir(dir);
    if (rc == 0)
        memcpy(d->ns_texts, used, TIERCE__DISK_NS_MAX);
    tierce__free(used);
    return rc;
}

/* ---- repair ---------------------------------------------------------------------------------- */

/* Goes on with the journal that is there, less what follows its last good page: a page that is
 * appended now must not be followed by one of an earlier life. It is synced in any case: whoever
 * wrote it may have been killed before he could, and from here on its chunks count as durable. */
static int resume_journal(struct tierce__disk *d, struct replay *r)
{
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
        d->ns_numbers[d->table.ns_of[i] - 1] = i + 1;
        d->ns_count = i + 1;
    }
    tierce__journal_resume(&d->journal, r->file, r->reader.epoch, r->reader.capacity,
                           r->reader.end);
    r->file = NULL;
    d->journal_bytes = good;
    tierce__disk_mark_synced(d);
    return 0;
}

/* Removes what a compaction left that did not come to its end. */
static int remove_leftover(struct tierce__disk *d)
{
    d->opening = d->journal_new_path;
    int rc = d->vfs->ops->unlink(d->vfs, d->journal_new_path);
    return rc == -ENOENT ? 0 : rc;
}

/* Makes the files agree with the index. */
static int repair(struct tierce__disk *d, struct replay *r, uint64_t file_length)
{
    int rc = remove_leftover(d);
    bool too_long = r->reader.end > d->journal_pages_max;
    bool other_size = r->reader.capacity != d->table.slot_count;
    if (rc == 0)
        d->opening = d->journal_path;
    if (rc == 0 && (r->rewrite || too_long || other_size))
        rc = tierce__disk_compact(d);
    else if (rc == 0)
        rc = resume_journal(d, r);
    /* Only now: until here the old journal may have needed the bytes beyond. */
    if (rc == 0 && file_length > d->data_cap) {
        d->opening = d->data_path;
        rc = d->vfs->ops->truncate(d->vfs, d->data, d->data_cap);
        file_length = d->data_cap;
    }
    d->allocated = file_length;
    if (rc == 0) {
        d->opening = d->folder;
        rc = d->vfs->ops->sync_folder(d->vfs, d->folder);
    }
    return rc;
}

/* ---- open ------------------------------------------------------------------------------------ */

static int make_policy(struct tierce__disk *d, const struct tierce__disk_opts *opts)
{
    return opts->policy->create(
        &d->policy, &(struct tierce__policy_opts){.size = sizeof(struct tierce__policy_opts),
                                                  .slot_count = d->table.slot_count,
                                                  .capacity = d->data_cap,
                                                  .seed = d->seed,
                                                  .ttl = opts->ttl_ms * 1000000});
}

static int make_folder(struct tierce__disk *d, const char *path)
{
    d->opening = path;
    return d->vfs->ops->make_folder(d->vfs, path);
}

/* Sums are no seal: whoever may write here can make chunks that verify. */
static void warn_of_others(const struct tierce__disk *d)
{
    struct stat st;
    if (stat(d->folder, &st) == 0 && (st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        tierce__log(TIERCE_LOG_WARN, "store_folder_writable",
                    "path=\"%s\" mode=%04o hint=\"others than its owner can write to it and so "
                    "choose what is loaded: chmod go-w\"",
                    d->folder, (unsigned)st.st_mode & 07777u);
}

/* The file grows as it is needed: who names more than there is would hear of it much later. */
static void warn_of_room(const struct tierce__disk *d)
{
    struct statvfs st;
    if (statvfs(d->folder, &st) != 0 || st.f_blocks == 0)
        return;
    uint64_t there = d->allocated + (uint64_t)st.f_bavail * st.f_frsize;
    if (there < d->data_cap)
        tierce__log(
            TIERCE_LOG_WARN, "store_folder_too_small",
            "path=\"%s\" size=%" PRIu64 " there=%" PRIu64
            " hint=\"the file system has less room than the store may take: when it is full, "
            "nothing more is written; lower disk.size\"",
            d->folder, d->cap_bytes, there);
}

/* Opens the data file. Returns its length or an error. */
static int64_t open_data(struct tierce__disk *d, bool buffered)
{
    unsigned flags = TIERCE__VFS_CREATE | (buffered ? 0 : TIERCE__VFS_DIRECT);
    d->opening = d->data_path;
    int rc = d->vfs->ops->open(d->vfs, &d->data, d->data_path, flags);
    return rc == 0 ? d->vfs->ops->length(d->vfs, d->data) : rc;
}

static int read_back(struct tierce__disk *d, const struct tierce__disk_opts *opts)
{
    struct replay r = {0};
    int rc = read_journal(d, &r);
    if (rc == 0)
        rc = make_folder(d, d->ns_folder);
    int64_t length = rc == 0 ? open_data(d, opts->buffered) : 0;
    if (length < 0)
        rc = (int)length;
    if (rc == 0 && r.file == NULL)
        rc = check_ours(d, d->data, (uint64_t)length, tierce__chunk_has_magic);
    if (rc == 0)
        rc = make_policy(d, opts);
    if (rc == 0)
        rc = rebuild(d, &r, (uint64_t)length);
    if (rc == 0)
        rc = sort_texts(d);
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
    d->folder = tierce__strdup(opts->path);
    d->lock_path = tierce__join_path(opts->path, "lock");
    d->ns_folder = tierce__join_path(opts->path, "ns");
    d->journal_path = tierce__join_path(opts->path, "journal");
    d->journal_new_path = tierce__join_path(opts->path, "journal.new");
    d->mark_path = tierce__join_path(opts->path, TIERCE__JOURNAL_MARK_NAME);
    d->data_path = tierce__join_path(opts->path, "data");
    d->limbo = tierce__calloc(d->limbo_room, sizeof(*d->limbo));
    d->records = tierce__calloc(TIERCE__DISK_BATCH, sizeof(*d->records));
    d->ns_numbers = tierce__calloc(TIERCE__DISK_NS_MAX, sizeof(*d->ns_numbers));
    d->ns_texts = tierce__calloc(TIERCE__DISK_NS_MAX, sizeof(*d->ns_texts));
    if (opts->admit_second)
        d->admitted = tierce__calloc(FILTER_PLACES, sizeof(*d->admitted));
    bool whole = d->folder != NULL && d->lock_path != NULL && d->ns_folder != NULL &&
                 d->journal_path != NULL && d->journal_new_path != NULL && d->mark_path != NULL &&
                 d->data_path != NULL && d->limbo != NULL && d->records != NULL &&
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
    int rc = pthread_create(&d->journal_thread, NULL, tierce__disk_journal_main, d);
    if (rc != 0)
        return -rc;
    rc = pthread_create(&d->io_thread, NULL, tierce__disk_io_main, d);
    if (rc == 0)
        return 0;
    tierce__lock_take(&d->lock);
    d->journal_stop = true;
    tierce__cond_signal(&d->journal_cond);
    tierce__lock_drop(&d->lock);
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
    tierce__free(d->data_path);
    tierce__free(d->mark_path);
    tierce__free(d->journal_new_path);
    tierce__free(d->journal_path);
    tierce__free(d->ns_folder);
    tierce__free(d->lock_path);
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
    d->vfs->ops->use_memory(d->vfs, base, bytes);
}

/* What would be right where a file or folder was wrong. */
static const char *advice(int rc)
{
    switch (rc) {
    case -EISDIR:
    case -EINVAL:
    case -ENOTDIR:
    case -EEXIST:
    case -ELOOP:
        return "something else is in its place: a store is a folder with files of its own, and ns/ "
               "in it; move that away, or name another folder";
    case -ENOENT:
        return "the folder that it shall be made in has to exist";
    case -EACCES:
    case -EPERM:
        return "the user of this process has to be able to read and write it";
    case -EROFS:
        return "it has to be on a file system that can be written";
    case -ENOSPC:
    case -EDQUOT:
        return "there has to be room on the file system for the journal and a copy of it";
    case -EMFILE:
    case -ENFILE:
        return "no more files can be opened: raise the limit (ulimit -n)";
    case TIERCE_E_LOCKED:
        return "another process has the store open: end it, or give each a folder of its own";
    case TIERCE_E_FORMAT:
        return "a file of that name is there that is not Tierce's: move it away, or name another "
               "folder";
    case -EIO:
        return "the device fails; the kernel's log may say how";
    default:
        return "name another folder";
    }
}

static void log_refusal(const struct tierce__disk *d, int rc)
{
    if (d->opening != NULL && rc != -ENOMEM && rc != TIERCE_E_VERSION) /* that has said so */
        tierce__log(TIERCE_LOG_ERROR, "disk_open_failed", "path=\"%s\" reason=\"%s\" hint=\"%s\"",
                    d->opening, tierce_strerror(rc), advice(rc));
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
        rc = make_folder(d, d->folder);
    if (rc == 0) {
        d->opening = d->lock_path;
        rc = tierce__disk_lock(d, opts->lock_wait_ms);
    }
    if (rc == 0)
        rc = read_back(d, opts);
    if (rc < 0)
        log_refusal(d, rc);
    if (rc == 0) {
        warn_of_others(d);
        warn_of_room(d);
        register_pool(d, opts->pool);
        rc = start_threads(d);
    }
    if (rc < 0) {
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
