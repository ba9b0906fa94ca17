/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "check_main.h"
#include "disk_harness.h"
#include "log_record.h"
#include "test_random.h"
#include "store/disk/disk_journal.h"
#include "store/disk/disk_table.h"

#include <fcntl.h>
#include <xxhash.h>

#define PAGE TIERCE__JOURNAL_PAGE
#define MIB  (1ULL << 20)

static char path[128], folder[64];
static struct tierce__vfs *vfs;

static void setup(void)
{
    snprintf(folder, sizeof(folder), "test_journal.XXXXXX");
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "%s/journal", folder);
    ck_assert_int_eq(tierce__vfs_threads_create(&vfs, 1), 0);
}

static void teardown(void)
{
    vfs->ops->destroy(vfs);
    temp_folder_remove(folder);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static struct tierce__journal_record record_of(uint32_t n)
{
    struct tierce__journal_record r = {.kind = TIERCE__JOURNAL_PUT,
                                       .seq = n + 1,
                                       .offset = (uint64_t)n * PAGE,
                                       .object_bytes = PAGE,
                                       .token_start = n * 3,
                                       .stored_s = n + 1000000,
                                       .head_sum = n * 77,
                                       .block_count = n + 5};
    r.key.shard = (struct tierce_shard){1, 2, 3, 4};
    r.key.ns = 3;
    memset(r.key.hash, (int)n, 16);
    memcpy(r.key.hash + 16, &n, 4);
    memset(r.parent, (int)n + 1, 32);
    memset(r.first_block, (int)n + 2, 32);
    return r;
}

struct sink {
    uint32_t puts, dels, names, days;
    uint32_t wrong;
};

static void take(void *arg, const struct tierce__journal_record *record)
{
    struct sink *sink = arg;
    if (record->kind == TIERCE__JOURNAL_PUT) {
        struct tierce__journal_record want = record_of((uint32_t)record->seq - 1);
        sink->wrong += memcmp(&want, record, sizeof(want)) != 0;
        sink->puts++;
    }
    sink->dels += record->kind == TIERCE__JOURNAL_DEL;
    sink->names += record->kind == TIERCE__JOURNAL_NS;
    sink->days += record->kind == TIERCE__JOURNAL_DAY;
}

/* Writes `count` chunks, with a commit after every `batch`. */
static void write_journal(uint32_t count, uint32_t batch)
{
    struct tierce__journal j;
    ck_assert_int_eq(tierce__journal_init(&j, vfs), 0);
    ck_assert_int_eq(tierce__journal_start(&j, path, 99, 4096), 0);
    uint8_t digest[TIERCE_HASH_BYTES];
    memset(digest, 9, sizeof(digest));
    for (uint32_t n = 0; n < count; n++) {
        struct tierce__journal_record r = record_of(n);
        ck_assert_int_eq(tierce__journal_add(&j, &r, digest), 0);
        if (n % batch == batch - 1)
            ck_assert_int_eq(tierce__journal_commit(&j), 0);
    }
    struct tierce__journal_record del = record_of(2), day = {.kind = TIERCE__JOURNAL_DAY};
    del.kind = TIERCE__JOURNAL_DEL;
    ck_assert_int_eq(tierce__journal_add(&j, &del, digest), 0);
    ck_assert_int_eq(tierce__journal_add(&j, &day, NULL), 0);
    ck_assert_int_eq(tierce__journal_commit(&j), 0);
    tierce__journal_fini(&j);
}

static uint8_t *load(size_t *bytes)
{
    static uint8_t content[1 << 20];
    int fd = open(path, O_RDONLY);
    ck_assert_int_ge(fd, 0);
    ssize_t n = read(fd, content, sizeof(content));
    ck_assert_int_gt(n, 0);
    close(fd);
    *bytes = (size_t)n;
    return content;
}

static struct tierce__journal_reader read_back(const uint8_t *pages, size_t count,
                                               struct sink *sink)
{
    struct tierce__journal_reader reader = {0};
    *sink = (struct sink){0};
    tierce__journal_read(&reader, pages, count, take, sink);
    return reader;
}

START_TEST(what_is_written_is_read)
{
    struct sink sink = {0};
    struct tierce__journal_reader reader = {0};
    struct tierce__vfs_file *file;
    write_journal(3000, _i == 0 ? 10 : 100000);
    ck_assert_int_eq(vfs->ops->open(vfs, &file, path, TIERCE__VFS_READONLY), 0);
    ck_assert_int_eq(tierce__journal_read_file(&reader, vfs, file, take, &sink), 0);
    vfs->ops->close(vfs, file);
    ck_assert_uint_eq(sink.puts, 3000);
    ck_assert_uint_eq(sink.dels + sink.days, 2);
    ck_assert_uint_eq(sink.names, reader.good); /* each page says it again */
    ck_assert_uint_eq(sink.wrong, 0);
    ck_assert_uint_eq(reader.bad + reader.missing + reader.newer, 0);
    ck_assert_uint_eq(reader.end, reader.good);
    ck_assert_uint_eq(reader.capacity, 4096);
    ck_assert_uint_eq(reader.epoch, 99);
}
END_TEST

/* Bytes of a page whose change every reader must detect. */
START_TEST(no_byte_of_a_page_can_change_unseen)
{
    size_t bytes;
    struct sink sink;
    write_journal(10, 100);
    uint8_t *page = load(&bytes);
    ck_assert_uint_eq(bytes, PAGE);
    for (size_t at = 0; at < PAGE; at++) {
        page[at] ^= 1u << at % 8;
        struct tierce__journal_reader reader = read_back(page, 1, &sink);
        ck_assert_uint_eq(reader.good, 0);
        ck_assert_uint_eq(reader.bad, 1);
        ck_assert_uint_eq(sink.puts, 0);
        page[at] ^= 1u << at % 8;
    }
    ck_assert_uint_eq(read_back(page, 1, &sink).good, 1);
}
END_TEST

static void reseal(uint8_t *page)
{
    tierce__store_le64(page + 8, XXH3_64bits(page + 16, PAGE - 16));
}

/* Fields with a sum that fits: what a faulty or hostile writer may have made. */
START_TEST(each_field_is_checked_by_itself)
{
    static const struct {
        size_t at, bytes;
        uint64_t value;
        uint64_t good; /* pages believed */
        uint32_t puts;
    } cases[] = {
        {16, 4, 0, 0, 0},            /* version */
        {16, 4, 2, 0, 0},            /* "" */
        {20, 4, PAGE, 0, 0},         /* used, too long */
        {20, 4, 0xffffffff, 0, 0},   /* "" */
        {20, 4, 0, 1, 0},            /* none */
        {20, 4, 40 + 167, 1, 0},     /* in the middle of a record */
        {20, 4, 40 + 168 + 3, 1, 1}, /* too short for the head of a record */
        {32, 8, 1, 0, 0},            /* page number */
        {32, 8, UINT64_MAX, 0, 0},   /* "" */
        {24, 8, 5, 1, 10},           /* another epoch: a journal of one page may have any */
        {64, 2, 0, 1, 0},            /* kind of the first record */
        {64, 2, 77, 1, 0},           /* "" */
        {66, 2, 0, 1, 0},            /* its length */
        {66, 2, 41, 1, 0},           /* "" */
        {66, 2, 0xffff, 1, 0},       /* "" */
        {104, 2, 2, 1, 0},           /* the second becomes a removal of the wrong length */
    };
    size_t bytes;
    struct sink sink;
    write_journal(10, 100);
    uint8_t *page = load(&bytes), saved[PAGE];
    memcpy(saved, page, PAGE);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t value[8];
        tierce__store_le64(value, cases[i].value);
        memcpy(page, saved, PAGE);
        memcpy(page + cases[i].at, value, cases[i].bytes);
        reseal(page);
        struct tierce__journal_reader reader = read_back(page, 1, &sink);
        ck_assert_msg(reader.good == cases[i].good && sink.puts == cases[i].puts, "case %zu", i);
    }
}
END_TEST

START_TEST(a_gap_is_reported_and_the_rest_is_read)
{
    size_t bytes;
    struct sink sink;
    write_journal(100, 10);
    uint8_t *pages = load(&bytes);
    size_t count = bytes / PAGE;
    ck_assert_uint_gt(count, 8);
    memset(pages + 3 * PAGE, 0, PAGE);
    struct tierce__journal_reader reader = read_back(pages, count, &sink);
    ck_assert_uint_eq(reader.missing, 1);
    ck_assert_uint_eq(reader.bad, 0);
    ck_assert_uint_eq(sink.puts, 90);
    pages[3 * PAGE] = 1;
    reader = read_back(pages, count, &sink);
    ck_assert_uint_eq(reader.bad, 1);
    /* A page of another journal in the middle is not a page of this one. */
    memcpy(pages + 3 * PAGE, pages + 4 * PAGE, PAGE);
    tierce__store_le64(pages + 3 * PAGE + 32, 3);
    reseal(pages + 3 * PAGE);
    reader = read_back(pages, count, &sink);
    ck_assert_uint_eq(reader.missing, 0);
    tierce__store_le64(pages + 3 * PAGE + 24, 98);
    reseal(pages + 3 * PAGE);
    reader = read_back(pages, count, &sink);
    ck_assert_uint_eq(reader.missing, 1);
    ck_assert_uint_eq(sink.puts, 90);
}
END_TEST

struct page_names {
    bool named[500];
    uint32_t uses;
    uint32_t wrong;
};

static void check_named(void *arg, const struct tierce__journal_record *record)
{
    struct page_names *names = arg;
    bool *named = &names->named[record->key.ns];
    if (record->kind == TIERCE__JOURNAL_NS) {
        names->wrong += *named || memcmp(record->digest, &record->key.ns, 4) != 0;
        *named = true;
        return;
    }
    names->uses++;
    names->wrong += !*named;
}

/* Pages do not depend on each other: each page names all its namespaces, once, however many
 * namespaces alternate. */
START_TEST(each_page_can_be_read_alone)
{
    struct test_random rng = test_random_start("each_page_can_be_read_alone");
    struct tierce__journal j;
    ck_assert_int_eq(tierce__journal_init(&j, vfs), 0);
    ck_assert_int_eq(tierce__journal_start(&j, path, 99, 4096), 0);
    for (uint32_t n = 0; n < 3000; n++) {
        struct tierce__journal_record r = record_of(n);
        uint8_t digest[TIERCE_HASH_BYTES];
        r.key.ns = test_random_below(&rng, n < 1000 ? 3 : 500);
        memset(digest, 0, sizeof(digest));
        memcpy(digest, &r.key.ns, sizeof(r.key.ns));
        if (test_random_below(&rng, 2) == 0)
            r.kind = TIERCE__JOURNAL_DEL;
        ck_assert_int_eq(tierce__journal_add(&j, &r, digest), 0);
        if (test_random_below(&rng, 100) == 0)
            ck_assert_int_eq(tierce__journal_commit(&j), 0);
    }
    ck_assert_int_eq(tierce__journal_commit(&j), 0);
    tierce__journal_fini(&j);
    size_t bytes;
    uint8_t *pages = load(&bytes);
    struct page_names names;
    uint32_t uses = 0;
    for (size_t at = 0; at < bytes; at += PAGE) {
        struct tierce__journal_reader reader = {.page = at / PAGE};
        names = (struct page_names){0};
        tierce__journal_read(&reader, pages + at, 1, check_named, &names);
        ck_assert_uint_eq(reader.good, 1);
        ck_assert_uint_eq(reader.damaged_records, 0);
        ck_assert_uint_eq(names.wrong, 0);
        uses += names.uses;
    }
    ck_assert_uint_eq(uses, 3000);
}
END_TEST

/* ---- records that make no sense -------------------------------------------------------------- */

START_TEST(a_table_refuses_what_makes_no_sense)
{
    struct tierce__namespaces *names;
    struct tierce__disk_table t;
    ck_assert_int_eq(tierce__namespaces_create(&names), 0);
    ck_assert_int_eq(tierce__disk_table_init(&t, 4, names), 0);
    struct tierce__journal_record r = record_of(0), bad;
    tierce__disk_table_apply(&t, &r);
    ck_assert_uint_eq(t.dropped, 1); /* its namespace has no name */
    struct tierce__journal_record ns = {.kind = TIERCE__JOURNAL_NS, .key.ns = 3};
    tierce__disk_table_apply(&t, &ns);
    ns.key.ns = TIERCE__DISK_NS_MAX;
    tierce__disk_table_apply(&t, &ns);
    ck_assert_uint_eq(t.dropped, 2);
#define REFUSED(field, value)                                                                      \
    bad = r;                                                                                       \
    bad.field = (value);                                                                           \
    tierce__disk_table_apply(&t, &bad);                                                            \
    ck_assert_uint_eq(tierce__index_count(t.index), 0);
    REFUSED(object_bytes, 0)
    REFUSED(object_bytes, 100)
    REFUSED(object_bytes, UINT64_MAX & ~4095ULL)
    REFUSED(object_bytes, 1ULL << 40)
    REFUSED(offset, 5)
    REFUSED(offset, UINT64_MAX & ~4095ULL)
    REFUSED(seq, UINT64_MAX)
    REFUSED(key.ns, 4)
    REFUSED(key.ns, UINT32_MAX)
    for (uint32_t n = 0; n < 6; n++) {
        r = record_of(n);
        tierce__disk_table_apply(&t, &r);
    }
    ck_assert_uint_eq(tierce__index_count(t.index), 4);
    bad = record_of(1);
    bad.kind = TIERCE__JOURNAL_DEL;
    bad.seq = 77;
    tierce__disk_table_apply(&t, &bad); /* the removal of an earlier life of the key */
    ck_assert_uint_eq(tierce__index_count(t.index), 4);
    bad.seq = 2;
    tierce__disk_table_apply(&t, &bad);
    ck_assert_uint_eq(tierce__index_count(t.index), 3);
    tierce__disk_table_fini(&t);
    tierce__namespaces_destroy(names);
}
END_TEST

/* ---- whole stores with a journal that was damaged -------------------------------------------- */

#define CHUNKS 60u

static struct store s;

static void make_store(void)
{
    s = (struct store){.chunk_bytes = 8192};
    snprintf(s.folder, sizeof(s.folder), "%s", folder);
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(store_parts(&s, 4 * MIB), 0);
    struct tierce__disk_opts opts = store_opts(&s, 2 * MIB);
    ck_assert_int_eq(store_open(&s, &opts), 0);
    for (uint64_t n = 0; n < CHUNKS; n++) {
        ck_assert_int_eq(store_put(&s, n), 0);
        if (n % 4 == 3)
            ck_assert_int_eq(store_flush(&s), 0);
        if (n % 10 == 9)
            ck_assert_int_eq(store_delete(&s, n - 5), 0);
    }
    ck_assert_int_eq(store_flush(&s), 0);
    store_close(&s);
    char command[256];
    snprintf(command, sizeof(command), "cp %s/data %s/data.saved", folder, folder);
    ck_assert_int_eq(system(command), 0);
}

/* Puts a journal in place, beside the data as it was when that journal was written. */
static void put_file(const uint8_t *content, size_t bytes)
{
    char command[256];
    int fd = open(path, O_WRONLY | O_TRUNC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, content, bytes), (ssize_t)bytes);
    close(fd);
    snprintf(command, sizeof(command), "cp %s/data.saved %s/data", folder, folder);
    ck_assert_int_eq(system(command), 0);
}

/*
 * Opens whatever is there: exact accounting, and it works again. If the last pages, with the
 * removal of a chunk, are lost without a trace, the chunk may reappear over another chunk's bytes:
 * the reader, which knows the wanted identity, must detect this.
 */
static uint64_t open_damaged(void)
{
    struct tierce__disk_opts opts = store_opts(&s, 2 * MIB);
    ck_assert_int_eq(store_open(&s, &opts), 0);
    uint64_t found = 0, bytes = 0;
    for (uint64_t n = 0; n < CHUNKS; n++) {
        int rc = store_get(&s, n, 0, 0);
        ck_assert(rc == 0 || rc == TIERCE_E_MISS || rc == TIERCE_E_CHECKSUM);
        found += rc != TIERCE_E_MISS;
        bytes += rc != TIERCE_E_MISS ? store_bytes(&s, n) : 0;
    }
    struct tierce__tier_stats stats = store_stats(&s);
    ck_assert_uint_eq(stats.chunks, found);
    uint64_t text = store_data_bytes(&s) - bytes;
    ck_assert(text == 0 || text == PAGE);
    ck_assert_int_eq(store_put(&s, 1000), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(store_get(&s, 1000, 0, 0), 0);
    store_close(&s);
    return found;
}

START_TEST(a_journal_cut_anywhere)
{
    make_store();
    size_t bytes;
    uint8_t *journal = load(&bytes), *saved = malloc(bytes);
    memcpy(saved, journal, bytes);
    uint64_t before = 0;
    for (size_t cut = 0; cut <= bytes; cut += _i == 0 ? PAGE : 1777) {
        put_file(saved, cut);
        uint64_t found = open_damaged();
        ck_assert_uint_ge(found + 1, before); /* a removal may follow */
        before = found;
    }
    put_file(saved, bytes);
    ck_assert_uint_eq(open_damaged(), CHUNKS - CHUNKS / 10);
    free(saved);
    store_parts_end(&s);
}
END_TEST

static void copy_mark(const char *from, const char *to)
{
    char command[256];
    snprintf(command, sizeof(command), "cp %s/%s %s/%s", folder, from, folder, to);
    ck_assert_int_eq(system(command), 0);
}

/* The loss of synced pages is reported once; the loss of unsynced pages is not. */
START_TEST(a_journal_that_lost_its_end_is_told)
{
    make_store();
    copy_mark("journal.synced", "mark.saved");
    size_t bytes;
    uint8_t *journal = load(&bytes), *saved = malloc(bytes);
    memcpy(saved, journal, bytes);
    struct sink sink;
    bytes = read_back(saved, bytes / PAGE, &sink).end * PAGE; /* zeroes may follow */
    for (size_t cut = 0; cut <= bytes; cut += PAGE) {
        put_file(saved, cut);
        copy_mark("mark.saved", "journal.synced");
        forget_recorded();
        (void)open_damaged();
        ck_assert_uint_eq(recorded("disk_journal_damaged"), cut < bytes);
        forget_recorded();
        struct tierce__disk_opts opts = store_opts(&s, 2 * MIB);
        ck_assert_int_eq(store_open(&s, &opts), 0);
        store_close(&s);
        ck_assert_uint_eq(recorded("disk_journal_damaged"), 0);
    }
    put_file(saved, bytes - PAGE);
    ck_assert_int_eq(truncate(path, (off_t)bytes), 0); /* zeroes in place of the last page */
    copy_mark("mark.saved", "journal.synced");
    forget_recorded();
    (void)open_damaged();
    ck_assert_uint_eq(recorded("disk_journal_damaged"), 1);
    free(saved);
    store_parts_end(&s);
}
END_TEST

/* Each bit of the mark, one at a time: no chunk is lost, and the mark is written again. */
START_TEST(a_damaged_mark_is_replaced)
{
    make_store();
    uint8_t mark[TIERCE__JOURNAL_MARK_BYTES], bad[TIERCE__JOURNAL_MARK_BYTES];
    char mark_path[256];
    struct tierce__disk_opts opts = store_opts(&s, 2 * MIB);
    snprintf(mark_path, sizeof(mark_path), "%s/journal.synced", folder);
    int fd = open(mark_path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    for (size_t bit = 0; bit < 8 * sizeof(mark); bit++) {
        ck_assert_int_eq(pread(fd, mark, sizeof(mark), 0), sizeof(mark));
        memcpy(bad, mark, sizeof(bad));
        bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_eq(pwrite(fd, bad, sizeof(bad), 0), sizeof(bad));
        forget_recorded();
        ck_assert_int_eq(store_open(&s, &opts), 0);
        ck_assert_uint_eq(store_stats(&s).chunks, CHUNKS - CHUNKS / 10);
        store_close(&s);
        if (bit < 72) /* after the magic, until the log's limit of such lines */
            ck_assert_uint_eq(recorded("disk_mark_damaged"), bit >= 64);
        ck_assert_uint_eq(recorded("disk_journal_damaged"), 0);
        ck_assert_int_eq(pread(fd, bad, sizeof(bad), 0), sizeof(bad));
        ck_assert(tierce__journal_mark_is_valid(bad) && tierce__journal_mark_has_magic(bad));
    }
    memset(mark, 'x', sizeof(mark)); /* a file of others */
    ck_assert_int_eq(pwrite(fd, mark, sizeof(mark), 0), sizeof(mark));
    close(fd);
    forget_recorded();
    ck_assert_int_eq(store_open(&s, &opts), TIERCE_E_FORMAT);
    ck_assert_uint_eq(recorded_with("disk_open_failed", "keeps its chunks"), 1);
    store_parts_end(&s);
}
END_TEST

static void count_puts(void *arg, const struct tierce__journal_record *record)
{
    uint32_t *puts = arg;
    *puts += record->kind == TIERCE__JOURNAL_PUT;
}

START_TEST(one_bad_bit_costs_the_records_of_its_page)
{
    make_store();
    size_t bytes;
    uint8_t *journal = load(&bytes), *saved = malloc(bytes);
    memcpy(saved, journal, bytes);
    for (size_t at = 0; at < bytes; at += PAGE) {
        uint32_t puts = 0;
        struct tierce__journal_reader reader = {.page = at / PAGE};
        tierce__journal_read(&reader, saved + at, 1, count_puts, &puts);
        ck_assert_uint_le(puts, 4);
        memcpy(journal, saved, bytes);
        journal[at + 100] ^= 1;
        put_file(journal, bytes);
        ck_assert_uint_ge(open_damaged() + puts, CHUNKS - CHUNKS / 10);
    }
    free(saved);
    store_parts_end(&s);
}
END_TEST

START_TEST(a_journal_damaged_at_random)
{
    struct test_random rng = test_random_start("a_journal_damaged_at_random");
    make_store();
    size_t bytes;
    uint8_t *journal = load(&bytes), *saved = malloc(bytes);
    memcpy(saved, journal, bytes);
    for (unsigned i = 0; i < 60 * test_scale(); i++) {
        memcpy(journal, saved, bytes);
        unsigned hits = 1 + test_random_below(&rng, 3);
        for (unsigned h = 0; h < hits; h++) {
            size_t at = test_random_below(&rng, (uint32_t)bytes);
            size_t n = test_random_below(&rng, h == 0 ? 8 : 9000) + 1;
            for (size_t b = at; b < at + n && b < bytes; b++)
                journal[b] = (uint8_t)test_random_u64(&rng);
        }
        put_file(journal, bytes);
        (void)open_damaged();
    }
    free(saved);
    store_parts_end(&s);
}
END_TEST

/* Valid sums over invalid fields: at worst, arbitrary offsets and lengths name bytes that the
 * reader's own sums reject; nothing crashes and the caps hold. */
START_TEST(a_journal_forged_at_random)
{
    struct test_random rng = test_random_start("a_journal_forged_at_random");
    make_store();
    size_t bytes;
    uint8_t *journal = load(&bytes), *saved = malloc(bytes);
    memcpy(saved, journal, bytes);
    for (unsigned i = 0; i < 60 * test_scale(); i++) {
        memcpy(journal, saved, bytes);
        uint8_t *page = journal + test_random_below(&rng, (uint32_t)(bytes / PAGE)) * PAGE;
        for (unsigned h = 0; h < 4; h++)
            page[16 + test_random_below(&rng, 700)] = (uint8_t)test_random_u64(&rng);
        reseal(page);
        put_file(journal, bytes);
        struct tierce__disk_opts opts = store_opts(&s, 2 * MIB);
        ck_assert_int_eq(store_open(&s, &opts), 0);
        for (uint64_t n = 0; n < CHUNKS; n++)
            (void)store_get(&s, n, 0, 0);
        for (uint64_t n = 0; n < 200; n += 10)
            ck_assert_int_eq(store_put(&s, 2000 + n), 0);
        ck_assert_int_eq(store_flush(&s), 0);
        ck_assert_uint_le(store_stats(&s).used_bytes, 2 * MIB);
        store_close(&s);
    }
    free(saved);
    store_parts_end(&s);
}
END_TEST

/* A page with a valid sum states more slots than any store can have. */
START_TEST(an_impossible_capacity_costs_the_records_of_its_page)
{
    make_store();
    size_t bytes;
    uint8_t *journal = load(&bytes);
    journal[40 + 5] = 1; /* of the capacity */
    reseal(journal);
    put_file(journal, bytes);
    forget_recorded();
    ck_assert_uint_gt(open_damaged(), 0);
    ck_assert_uint_eq(recorded("disk_journal_damaged"), 1);
    store_parts_end(&s);
}
END_TEST

START_TEST(a_newer_version_is_left_alone)
{
    make_store();
    size_t bytes, after;
    uint8_t *journal = load(&bytes), *saved = malloc(bytes);
    for (size_t at = 0; at < bytes; at += PAGE)
        journal[at + 16] = 2;
    memcpy(saved, journal, bytes);
    put_file(journal, bytes);
    struct tierce__disk_opts opts = store_opts(&s, 2 * MIB);
    ck_assert_int_eq(store_open(&s, &opts), TIERCE_E_VERSION);
    ck_assert_str_eq(last_recorded(), "disk_version_newer");
    journal = load(&after);
    ck_assert_uint_eq(after, bytes);
    ck_assert_mem_eq(journal, saved, bytes);
    free(saved);
    store_parts_end(&s);
}
END_TEST

/* The data file is shorter than the journal states, or missing. */
START_TEST(data_that_is_missing_is_not_served)
{
    make_store();
    char data[160];
    snprintf(data, sizeof(data), "%s/data", folder);
    ck_assert_int_eq(truncate(data, 100 * 4096 + 17), 0);
    uint64_t found = open_damaged();
    ck_assert_uint_gt(found, 20);
    ck_assert_uint_lt(found, CHUNKS - CHUNKS / 10);
    ck_assert_int_eq(unlink(data), 0);
    ck_assert_uint_eq(open_damaged(), 0);
    store_parts_end(&s);
}
END_TEST

CHECK_MAIN("disk_journal", .seconds = 120, .at_once = true, .setup = setup, .teardown = teardown,
           .tests = {no_byte_of_a_page_can_change_unseen, each_field_is_checked_by_itself,
                     a_gap_is_reported_and_the_rest_is_read, each_page_can_be_read_alone,
                     a_table_refuses_what_makes_no_sense, a_journal_that_lost_its_end_is_told,
                     a_damaged_mark_is_replaced, one_bad_bit_costs_the_records_of_its_page,
                     a_journal_damaged_at_random, a_journal_forged_at_random,
                     an_impossible_capacity_costs_the_records_of_its_page,
                     a_newer_version_is_left_alone, data_that_is_missing_is_not_served},
           .loops = {{what_is_written_is_read, 0, 2}, {a_journal_cut_anywhere, 0, 2}})
