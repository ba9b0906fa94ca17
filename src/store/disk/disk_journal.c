/* SPDX-License-Identifier: Apache-2.0 */
#include "store/disk/disk_journal.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "core/chunk/header.h"

#include <errno.h>
#include <xxhash.h>

#define PAGE         TIERCE__JOURNAL_PAGE
#define HEAD         TIERCE__JOURNAL_HEAD
#define ROOM         (PAGE - HEAD)
#define BUFFER_PAGES 64u
#define READ_PAGES   256u
#define EXTEND_PAGES 16u

static const uint8_t magic[8] = {'T', 'R', 'C', 'E', 'J', 'R', 'N', 'L'};

/* Offsets in a page's head. */
enum {
    AT_MAGIC = 0,
    AT_SUM = 8, /* over all that follows it */
    AT_VERSION = 16,
    AT_USED = 20,
    AT_EPOCH = 24,
    AT_PAGE = 32,
    AT_CAPACITY = 40,
};

static uint32_t bytes_of(uint16_t kind)
{
    switch (kind) {
    case TIERCE__JOURNAL_PUT:
        return TIERCE__JOURNAL_PUT_BYTES;
    case TIERCE__JOURNAL_DEL:
        return TIERCE__JOURNAL_DEL_BYTES;
    case TIERCE__JOURNAL_NS:
        return TIERCE__JOURNAL_NS_BYTES;
    case TIERCE__JOURNAL_DAY:
        return TIERCE__JOURNAL_DAY_BYTES;
    default:
        return 0;
    }
}

static void decode(struct tierce__journal_record *out, uint16_t kind, const uint8_t *at)
{
    TIERCE_DASSERT(bytes_of(kind) > 0);
    memset(out, 0, sizeof(*out));
    out->kind = (enum tierce__journal_kind)kind;
    out->key.ns = tierce__load_le32(at + 4);
    switch (out->kind) {
    case TIERCE__JOURNAL_PUT:
        out->seq = tierce__load_le64(at + 8);
        memcpy(out->key.hash, at + 16, TIERCE_HASH_BYTES);
        out->key.shard = tierce__shard_load(at + 48);
        memcpy(out->parent, at + 56, TIERCE_HASH_BYTES);
        memcpy(out->first_block, at + 88, TIERCE_HASH_BYTES);
        out->offset = tierce__load_le64(at + 120);
        out->object_bytes = tierce__load_le64(at + 128);
        out->token_start = tierce__load_le64(at + 136);
        out->stored_s = tierce__load_le64(at + 144);
        out->head_sum = tierce__load_le64(at + 152);
        out->block_count = tierce__load_le32(at + 160);
        out->raw_bytes = (uint64_t)tierce__load_le32(at + 164) * PAGE;
        break;
    case TIERCE__JOURNAL_DEL:
        out->seq = tierce__load_le64(at + 8);
        memcpy(out->key.hash, at + 16, TIERCE_HASH_BYTES);
        out->key.shard = tierce__shard_load(at + 48);
        break;
    case TIERCE__JOURNAL_NS:
        memcpy(out->digest, at + 8, TIERCE_HASH_BYTES);
        break;
    case TIERCE__JOURNAL_DAY:
        out->key.ns = 0;
        out->day = tierce__load_le64(at + 8);
        out->bytes = tierce__load_le64(at + 16);
        break;
    }
}

static void encode(uint8_t *at, uint32_t bytes, const struct tierce__journal_record *record)
{
    TIERCE_DASSERT(record->seq < TIERCE__JOURNAL_SEQ_MAX);
    TIERCE_DASSERT(bytes == bytes_of((uint16_t)record->kind));
    memset(at, 0, bytes);
    tierce__store_le16(at, (uint16_t)record->kind);
    tierce__store_le16(at + 2, (uint16_t)bytes);
    tierce__store_le32(at + 4, record->key.ns);
    switch (record->kind) {
    case TIERCE__JOURNAL_PUT:
        tierce__store_le64(at + 8, record->seq);
        memcpy(at + 16, record->key.hash, TIERCE_HASH_BYTES);
        tierce__shard_store(at + 48, &record->key.shard);
        memcpy(at + 56, record->parent, TIERCE_HASH_BYTES);
        memcpy(at + 88, record->first_block, TIERCE_HASH_BYTES);
        tierce__store_le64(at + 120, record->offset);
        tierce__store_le64(at + 128, record->object_bytes);
        tierce__store_le64(at + 136, record->token_start);
        tierce__store_le64(at + 144, record->stored_s);
        tierce__store_le64(at + 152, record->head_sum);
        tierce__store_le32(at + 160, record->block_count);
        tierce__store_le32(at + 164, (uint32_t)(record->raw_bytes / PAGE));
        break;
    case TIERCE__JOURNAL_DEL:
        tierce__store_le64(at + 8, record->seq);
        memcpy(at + 16, record->key.hash, TIERCE_HASH_BYTES);
        tierce__shard_store(at + 48, &record->key.shard);
        break;
    case TIERCE__JOURNAL_NS:
        memcpy(at + 8, record->digest, TIERCE_HASH_BYTES);
        break;
    case TIERCE__JOURNAL_DAY:
        tierce__store_le64(at + 8, record->day);
        tierce__store_le64(at + 16, record->bytes);
        break;
    }
}

/* ---- reading -------------------------------------------------------------------------------- */

static bool is_empty(const uint8_t *page)
{
    return page[0] == 0 && memcmp(page, page + 1, PAGE - 1) == 0;
}

bool tierce__journal_has_magic(const uint8_t *page)
{
    return memcmp(page + AT_MAGIC, magic, sizeof(magic)) == 0;
}

/* Whether a page proves itself to be the next page of this journal. */
static bool is_good(struct tierce__journal_reader *r, const uint8_t *page)
{
    if (!tierce__journal_has_magic(page))
        return false;
    uint32_t version = tierce__load_le32(page + AT_VERSION);
    r->newer += version > TIERCE__JOURNAL_VERSION;
    if (version != TIERCE__JOURNAL_VERSION)
        return false;
    if (tierce__load_le64(page + AT_SUM) != XXH3_64bits(page + AT_VERSION, PAGE - AT_VERSION))
        return false;
    if (tierce__load_le64(page + AT_PAGE) != r->page || tierce__load_le32(page + AT_USED) > ROOM ||
        tierce__load_le64(page + AT_CAPACITY) > UINT32_MAX)
        return false;
    return r->good == 0 || tierce__load_le64(page + AT_EPOCH) == r->epoch;
}

static void read_records(struct tierce__journal_reader *r, const uint8_t *page,
                         tierce__journal_visit_fn *visit, void *arg)
{
    struct tierce__journal_record record;
    uint32_t used = tierce__load_le32(page + AT_USED);
    TIERCE_DASSERT(used <= ROOM);
    const uint8_t *at = page + HEAD;
    while (used > 0) {
        uint16_t kind = used >= 4 ? tierce__load_le16(at) : 0;
        uint32_t bytes = bytes_of(kind);
        if (bytes == 0 || bytes > used || tierce__load_le16(at + 2) != bytes) {
            r->damaged_records++;
            return;
        }
        decode(&record, kind, at);
        visit(arg, &record);
        at += bytes;
        used -= bytes;
    }
}

void tierce__journal_read(struct tierce__journal_reader *reader, const uint8_t *pages, size_t count,
                          tierce__journal_visit_fn *visit, void *arg)
{
    for (size_t i = 0; i < count; i++, reader->page++) {
        const uint8_t *page = pages + i * PAGE;
        if (!is_good(reader, page)) {
            reader->bad += !is_empty(page);
            continue;
        }
        reader->good++;
        reader->epoch = tierce__load_le64(page + AT_EPOCH);
        reader->capacity = tierce__load_le64(page + AT_CAPACITY);
        if (reader->missing == 0)
            reader->missing_first = reader->end;
        reader->missing += reader->page - reader->end;
        reader->end = reader->page + 1;
        TIERCE_DASSERT(reader->good + reader->missing == reader->end);
        read_records(reader, page, visit, arg);
    }
    TIERCE_DASSERT(reader->end <= reader->page);
}

uint64_t tierce__journal_pages_live(uint64_t count)
{
    return count / (ROOM / (TIERCE__JOURNAL_PUT_BYTES + TIERCE__JOURNAL_NS_BYTES)) + 3;
}

uint64_t tierce__journal_pages_max(uint64_t slot_count)
{
    uint64_t dels = slot_count < TIERCE__JOURNAL_DELS_MAX ? slot_count : TIERCE__JOURNAL_DELS_MAX;
    return 2 * tierce__journal_pages_live(slot_count) +
           dels / (ROOM / TIERCE__JOURNAL_DEL_BYTES / 2) + 4;
}

static void ignore_record(void *arg, const struct tierce__journal_record *record)
{
    (void)arg;
    (void)record;
}

int tierce__journal_probe(struct tierce__vfs *vfs, struct tierce__vfs_file *file, uint64_t length,
                          uint64_t slot_count, uint64_t *capacity)
{
    uint64_t bound = tierce__journal_pages_max(slot_count) + EXTEND_PAGES;
    uint64_t count = (length + PAGE - 1) / PAGE, whole = length / PAGE;
    uint64_t last = count <= bound || whole < READ_PAGES ? whole : READ_PAGES;
    uint8_t *pages = tierce__alloc_aligned(PAGE, (size_t)READ_PAGES * PAGE);
    struct tierce__journal_reader probe = {0};
    int rc = pages != NULL ? 0 : -ENOMEM;
    while (rc == 0 && probe.good == 0 && probe.page < last) {
        /* The first page that is good; nearly always the first. */
        uint64_t n = probe.page == 0 ? 1 : last - probe.page;
        n = n < READ_PAGES ? n : READ_PAGES;
        TIERCE_DASSERT(n > 0 && n <= READ_PAGES);
        rc = vfs->ops->read(vfs, file, pages, (size_t)n * PAGE, probe.page * PAGE);
        for (uint64_t i = 0; rc == 0 && i < n && probe.good == 0; i++)
            tierce__journal_read(&probe, pages + i * PAGE, 1, ignore_record, NULL);
    }
    TIERCE_DASSERT(probe.good <= 1 && probe.page <= last);
    tierce__free(pages);
    uint64_t largest = probe.capacity > slot_count ? probe.capacity : slot_count;
    if (rc == 0 && count > tierce__journal_pages_max(largest) + EXTEND_PAGES)
        rc = TIERCE_E_LIMIT;
    TIERCE_DASSERT(probe.capacity <= UINT32_MAX); /* or its page is not good */
    if (rc == 0)
        *capacity = probe.capacity;
    return rc;
}

int tierce__journal_read_file(struct tierce__journal_reader *reader, struct tierce__vfs *vfs,
                              struct tierce__vfs_file *file, tierce__journal_visit_fn *visit,
                              void *arg)
{
    TIERCE_DASSERT(reader->page == 0 && reader->good == 0);
    int64_t length = vfs->ops->length(vfs, file);
    if (length < 0)
        return (int)length;
    uint8_t *buffer = tierce__alloc_aligned(PAGE, (size_t)READ_PAGES * PAGE);
    if (buffer == NULL)
        return -ENOMEM;
    int rc = 0;
    uint64_t left = (uint64_t)length / PAGE, at = 0;
    while (rc == 0 && left > 0) {
        size_t n = left < READ_PAGES ? (size_t)left : READ_PAGES;
        rc = vfs->ops->read(vfs, file, buffer, n * PAGE, at);
        if (rc == 0)
            tierce__journal_read(reader, buffer, n, visit, arg);
        left -= n;
        at += n * PAGE;
    }
    TIERCE_DASSERT(rc < 0 || at == (uint64_t)length - (uint64_t)length % PAGE);
    reader->bad += length % PAGE != 0;
    if (rc == 0 && reader->good == 0 && reader->newer > 0)
        rc = TIERCE_E_VERSION;
    tierce__free(buffer);
    return rc;
}

/* ---- the mark -------------------------------------------------------------------------------- */

static const uint8_t mark_magic[8] = {'T', 'R', 'C', 'E', 'S', 'Y', 'N', 'C'};

/* Offsets in a mark. */
enum { MARK_MAGIC = 0, MARK_SUM = 8, MARK_EPOCH = 16, MARK_PAGES = 24 };

bool tierce__journal_mark_has_magic(const uint8_t *at)
{
    return memcmp(at + MARK_MAGIC, mark_magic, sizeof(mark_magic)) == 0;
}

static uint64_t mark_sum(const uint8_t *at)
{
    return XXH3_64bits(at + MARK_EPOCH, TIERCE__JOURNAL_MARK_BYTES - MARK_EPOCH);
}

bool tierce__journal_mark_is_valid(const uint8_t *at)
{
    return tierce__load_le64(at + MARK_SUM) == mark_sum(at);
}

struct tierce__journal_mark tierce__journal_mark_read(struct tierce__vfs *vfs, const char *path)
{
    uint8_t at[TIERCE__JOURNAL_MARK_BYTES];
    struct tierce__journal_mark mark = {0};
    struct tierce__vfs_file *file;
    if (vfs->ops->open(vfs, &file, path, TIERCE__VFS_READONLY) < 0)
        return mark;
    int rc = vfs->ops->read(vfs, file, at, sizeof(at), 0);
    vfs->ops->close(vfs, file);
    if (rc == 0 && tierce__journal_mark_is_valid(at)) {
        mark.epoch = tierce__load_le64(at + MARK_EPOCH);
        mark.pages = tierce__load_le64(at + MARK_PAGES);
    }
    return mark;
}

int tierce__journal_mark_write(const struct tierce__journal_mark *mark, struct tierce__vfs *vfs,
                               struct tierce__vfs_file *file)
{
    TIERCE_DASSERT(mark->pages > 0);
    uint8_t at[TIERCE__JOURNAL_MARK_BYTES];
    memcpy(at + MARK_MAGIC, mark_magic, sizeof(mark_magic));
    tierce__store_le64(at + MARK_EPOCH, mark->epoch);
    tierce__store_le64(at + MARK_PAGES, mark->pages);
    tierce__store_le64(at + MARK_SUM, mark_sum(at));
    return vfs->ops->write(vfs, file, at, sizeof(at), 0);
}

uint64_t tierce__journal_lost(const struct tierce__journal_mark *mark,
                              const struct tierce__journal_reader *reader)
{
    /* Another epoch: the journal was replaced, and the mark not written yet. */
    if (reader->good > 0 && mark->epoch != reader->epoch)
        return 0;
    return mark->pages > reader->end ? mark->pages - reader->end : 0;
}

bool tierce__journal_lost_synced(const struct tierce__journal_mark *mark,
                                 const struct tierce__journal_reader *reader)
{
    bool is_marked = mark->epoch == reader->epoch && reader->missing_first < mark->pages;
    return tierce__journal_lost(mark, reader) > 0 || reader->damaged_records > 0 ||
           (reader->missing > 0 && is_marked);
}

/* ---- writing -------------------------------------------------------------------------------- */

int tierce__journal_init(struct tierce__journal *journal, struct tierce__vfs *vfs)
{
    *journal = (struct tierce__journal){.vfs = vfs};
    journal->buffer = tierce__alloc_aligned(PAGE, (size_t)BUFFER_PAGES * PAGE);
    return journal->buffer != NULL ? 0 : -ENOMEM;
}

void tierce__journal_close(struct tierce__journal *journal)
{
    TIERCE_DASSERT(journal->used <= ROOM && journal->filled <= BUFFER_PAGES);
    if (journal->file != NULL)
        journal->vfs->ops->close(journal->vfs, journal->file);
    journal->file = NULL;
    journal->filled = 0;
    journal->used = 0;
    journal->named_count = 0;
}

void tierce__journal_fini(struct tierce__journal *journal)
{
    tierce__journal_close(journal);
    tierce__free(journal->buffer);
    journal->buffer = NULL;
}

int tierce__journal_start(struct tierce__journal *journal, const char *path, uint64_t epoch,
                          uint64_t capacity)
{
    TIERCE_DASSERT(capacity > 0);
    struct tierce__vfs_file *file;
    int rc = journal->vfs->ops->open(journal->vfs, &file, path,
                                     TIERCE__VFS_CREATE | TIERCE__VFS_EXCLUSIVE);
    if (rc == 0)
        tierce__journal_resume(journal, file, epoch, capacity, 0);
    return rc;
}

void tierce__journal_resume(struct tierce__journal *journal, struct tierce__vfs_file *file,
                            uint64_t epoch, uint64_t capacity, uint64_t pages)
{
    TIERCE_ASSERT(journal->file == NULL);
    journal->file = file;
    TIERCE_DASSERT(pages <= INT64_MAX / PAGE);
    TIERCE_DASSERT(capacity <= UINT32_MAX); /* or no page of it could be read */
    journal->epoch = epoch;
    journal->capacity = capacity;
    journal->pages = pages;
    journal->length = pages;
    journal->filled = 0;
    journal->used = 0;
    journal->named_count = 0;
}

static void end_page(struct tierce__journal *j)
{
    TIERCE_DASSERT(j->named_count <= TIERCE__JOURNAL_NAMED_MAX);
    TIERCE_ASSERT(j->filled < BUFFER_PAGES && j->used <= ROOM);
    TIERCE_DASSERT(j->used > 0 ||
                   (j->filled == 0 && j->pages == 0)); /* only the first may be empty */
    uint8_t *page = j->buffer + (size_t)j->filled * PAGE;
    memset(page, 0, HEAD);
    memset(page + HEAD + j->used, 0, ROOM - j->used);
    memcpy(page + AT_MAGIC, magic, sizeof(magic));
    tierce__store_le32(page + AT_VERSION, TIERCE__JOURNAL_VERSION);
    tierce__store_le32(page + AT_USED, j->used);
    tierce__store_le64(page + AT_EPOCH, j->epoch);
    tierce__store_le64(page + AT_PAGE, j->pages + j->filled);
    tierce__store_le64(page + AT_CAPACITY, j->capacity);
    tierce__store_le64(page + AT_SUM, XXH3_64bits(page + AT_VERSION, PAGE - AT_VERSION));
    j->filled++;
    j->used = 0;
    j->named_count = 0;
}

static int write_pages(struct tierce__journal *j)
{
    TIERCE_DASSERT(j->length >= j->pages);
    TIERCE_DASSERT(j->filled <= BUFFER_PAGES);
    TIERCE_DASSERT(j->filled > 0);
    TIERCE_DASSERT(j->used == 0 && j->named_count == 0);
    int rc =
        j->vfs->ops->write(j->vfs, j->file, j->buffer, (size_t)j->filled * PAGE, j->pages * PAGE);
    if (rc < 0)
        return rc;
    j->pages += j->filled;
    j->filled = 0;
    if (j->length < j->pages)
        j->length = j->pages;
    TIERCE_DASSERT(j->pages <= j->length);
    return 0;
}

static bool is_named(const struct tierce__journal *j, uint32_t number)
{
    TIERCE_DASSERT(j->named_count <= TIERCE__JOURNAL_NAMED_MAX);
    for (uint32_t i = j->named_count; i-- > 0;)
        if (j->named[i] == number)
            return true;
    return false;
}

/* Writes a record to the page in hand, which has room for it. */
static void place(struct tierce__journal *j, const struct tierce__journal_record *record)
{
    uint32_t bytes = bytes_of((uint16_t)record->kind);
    TIERCE_ASSERT(bytes > 0 && j->used + bytes <= ROOM);
    TIERCE_DASSERT(j->filled < BUFFER_PAGES);
    encode(j->buffer + (size_t)j->filled * PAGE + HEAD + j->used, bytes, record);
    j->used += bytes;
}

static void place_name(struct tierce__journal *j, uint32_t number, const uint8_t *digest)
{
    struct tierce__journal_record ns = {.kind = TIERCE__JOURNAL_NS, .key.ns = number};
    TIERCE_DASSERT(!is_named(j, number));
    memcpy(ns.digest, digest, sizeof(ns.digest));
    place(j, &ns);
    TIERCE_ASSERT(j->named_count < TIERCE__JOURNAL_NAMED_MAX);
    j->named[j->named_count++] = number;
}

int tierce__journal_add(struct tierce__journal *journal,
                        const struct tierce__journal_record *record,
                        const uint8_t digest[TIERCE_HASH_BYTES])
{
    TIERCE_ASSERT(journal->file != NULL);
    TIERCE_DASSERT((digest == NULL) == (record->kind == TIERCE__JOURNAL_DAY));
    TIERCE_DASSERT(journal->filled < BUFFER_PAGES && journal->used <= ROOM);
    uint32_t number = record->key.ns;
    bool names = digest != NULL && !is_named(journal, number);
    uint32_t bytes = bytes_of((uint16_t)record->kind) + (names ? TIERCE__JOURNAL_NS_BYTES : 0);
    if (journal->used + bytes > ROOM) {
        end_page(journal);
        names = digest != NULL;
    }
    if (journal->filled == BUFFER_PAGES) {
        int rc = write_pages(journal);
        if (rc < 0)
            return rc;
    }
    if (names)
        place_name(journal, number, digest);
    place(journal, record);
    return 0;
}

int tierce__journal_extend(struct tierce__journal *journal, uint64_t pages_max)
{
    static const uint8_t zeroes[EXTEND_PAGES * PAGE];
    TIERCE_DASSERT(journal->pages <= journal->length);
    uint64_t from = journal->pages + journal->filled + 1;
    uint64_t to = from + EXTEND_PAGES < pages_max ? from + EXTEND_PAGES : pages_max;
    if (from <= journal->length || to <= from)
        return 0;
    TIERCE_DASSERT(to - from <= EXTEND_PAGES);
    int rc = journal->vfs->ops->write(journal->vfs, journal->file, zeroes,
                                      (size_t)(to - from) * PAGE, from * PAGE);
    if (rc < 0)
        return rc;
    TIERCE_DASSERT(journal->length < to && to <= pages_max);
    journal->length = to;
    return (int)(to - from);
}

int tierce__journal_commit(struct tierce__journal *journal)
{
    TIERCE_ASSERT(journal->file != NULL);
    if (journal->used > 0 || (journal->filled == 0 && journal->pages == 0))
        end_page(journal);
    int rc = journal->filled > 0 ? write_pages(journal) : 0;
    TIERCE_DASSERT(rc < 0 || journal->pages > 0);
    TIERCE_DASSERT(rc < 0 || (journal->filled == 0 && journal->used == 0));
    return rc < 0 ? rc : journal->vfs->ops->sync(journal->vfs, journal->file);
}
