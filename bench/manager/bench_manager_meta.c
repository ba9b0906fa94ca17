/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manager's index of blocks: records with one location of one spec and a parent, under random
 * keys, in memory and in RocksDB. Beside RocksDB's rows stands the bare library with the same
 * records under keys of the same length, opened with the same options, in a database of its own.
 */
#include <errno.h>
#include <malloc.h>
#include <rocksdb/c.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "bench/manager/bench_manager.h"
#include "manager/meta/meta_index.h"

enum {
    BLOCKS_DEFAULT = 1000000,
    BLOCK_BYTES_MAX = 400, /* bytes of memory and caches per block, to stay within --memory */
    FILL_KEYS = 512,       /* of a batch while filling */
    GET_KEYS = 1024,
    WRITE_KEYS = 128,
    WRITES = 32, /* batches of one measurement */
    KEY_BYTES = 13,
    RECORD_BYTES_MAX = 128,
};

struct meta_bench {
    const struct tierce__bench *bench;
    uint64_t blocks;
    char folder[4096], bare_folder[4096];
    struct tierce__meta_store *store;
    struct tierce__meta_space *space;
    struct tierce__meta_index *index;
    struct tierce__arena arena;
    uint64_t drawn;   /* keys that were asked for */
    uint64_t written; /* and that were added after the filling */
    /* of one call */
    int64_t keys[GET_KEYS];
    struct tierce__record records[GET_KEYS];
    bool found[GET_KEYS];
    int status[GET_KEYS];
    /* the bare library */
    rocksdb_options_t *options;
    rocksdb_block_based_table_options_t *table;
    rocksdb_cache_t *cache;
    rocksdb_t *bare;
    rocksdb_column_family_handle_t *family;
    rocksdb_readoptions_t *reads;
    rocksdb_writeoptions_t *writes;
};

/* ---- blocks --------------------------------------------------------------------------------- */

struct block {
    struct tierce__spec_place place;
    struct tierce__location location;
    struct tierce__record record;
};

static int64_t key_of(uint64_t block)
{
    return (int64_t)tierce__bench_random(11, block);
}

static void make_block(struct block *out, uint64_t block)
{
    enum { NFS = 4, BYTES = 4 << 20 };
    out->place = (struct tierce__spec_place){.file = (UINT64_C(3) << 32) + block, .bytes = BYTES};
    out->location = (struct tierce__location){
        .id = "abcd0123", .storage = 1, .type = NFS, .place_count = 1, .places = &out->place};
    out->record = (struct tierce__record){.used_us = 1700000000000000 + (int64_t)block,
                                          .stored_us = 1700000000000000,
                                          .has_parent = true,
                                          .parent = key_of(block - 1),
                                          .location_count = 1,
                                          .locations = &out->location};
}

static int fill(struct meta_bench *m)
{
    static struct block blocks[FILL_KEYS];
    static struct tierce__meta_put puts[FILL_KEYS];
    for (uint64_t done = 0; done < m->blocks;) {
        struct tierce__meta_batch batch = {.puts = puts};
        for (; batch.put_count < FILL_KEYS && done < m->blocks; batch.put_count++, done++) {
            make_block(&blocks[batch.put_count], done);
            puts[batch.put_count] =
                (struct tierce__meta_put){key_of(done), blocks[batch.put_count].record};
        }
        batch.added[TIERCE__META_KEYS] = (int64_t)batch.put_count;
        int rc = m->space->ops->write(m->space, &batch);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- the index ------------------------------------------------------------------------------ */

static int open_index(struct meta_bench *m, const struct tierce__meta_store_ops *ops,
                      const char *uri)
{
    enum { SHARDS = 256 };
    char why[256] = "";
    int rc = ops->open(&m->store, uri, why);
    if (rc < 0)
        return tierce__bench_fail(m->bench, "%s", why);
    rc = ops->space_open(&m->space, m->store, 1, "bench");
    if (rc < 0)
        return rc;
    struct tierce__meta_index_opts opts = {.size = sizeof(opts), .shards = SHARDS};
    return tierce__meta_index_open(&m->index, m->space, &opts);
}

static void close_index(struct meta_bench *m)
{
    tierce__meta_index_close(m->index);
    if (m->space != NULL)
        m->space->ops->space_close(m->space);
    if (m->store != NULL)
        m->store->ops->close(m->store);
    m->index = NULL;
    m->space = NULL;
    m->store = NULL;
    tierce__arena_clear(&m->arena);
}

static void draw_keys(struct meta_bench *m)
{
    for (unsigned i = 0; i < GET_KEYS; i++)
        m->keys[i] = key_of(tierce__bench_random(12, m->drawn++) % m->blocks);
}

static int64_t run_get(void *arg)
{
    struct meta_bench *m = (struct meta_bench *)arg;
    draw_keys(m);
    tierce__arena_reset(&m->arena);
    uint64_t start = tierce__now_ns();
    int rc = tierce__meta_index_get(m->index, m->keys, GET_KEYS, &m->arena, m->records, m->found);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    for (unsigned i = 0; rc == 0 && i < GET_KEYS; i++)
        if (!m->found[i] || m->records[i].location_count != 1)
            return tierce__bench_fail(m->bench, "the index lost a block");
    return rc < 0 ? rc : ns;
}

static enum tierce__meta_action put_block(void *arg, size_t i, int64_t key, bool found,
                                          struct tierce__record *record,
                                          struct tierce__arena *arena)
{
    (void)key;
    (void)found;
    (void)arena;
    struct block *blocks = (struct block *)arg;
    *record = blocks[i].record;
    return TIERCE__META_PUT;
}

/* Blocks that are new, each batch a chain. */
static void next_blocks(struct meta_bench *m, struct block *blocks)
{
    for (unsigned i = 0; i < WRITE_KEYS; i++, m->written++) {
        make_block(&blocks[i], m->blocks + m->written);
        m->keys[i] = key_of(m->blocks + m->written);
    }
}

static int64_t run_write(void *arg)
{
    struct meta_bench *m = (struct meta_bench *)arg;
    static struct block blocks[WRITE_KEYS];
    int64_t ns = 0;
    for (unsigned i = 0; i < WRITES; i++) {
        next_blocks(m, blocks);
        tierce__arena_reset(&m->arena);
        uint64_t start = tierce__now_ns();
        int rc = tierce__meta_index_modify(
            m->index, m->keys, WRITE_KEYS,
            &(struct tierce__meta_change){.modify = put_block, .arg = blocks, .whole = true},
            &m->arena, m->status);
        ns += (int64_t)(tierce__now_ns() - start);
        if (rc < 0)
            return rc;
    }
    return ns;
}

/* ---- the bare library ----------------------------------------------------------------------- */

static int bare_failed(struct meta_bench *m, char *error)
{
    if (error == NULL)
        return 0;
    int rc = tierce__bench_fail(m->bench, "the bare database: %s", error);
    rocksdb_free(error);
    return rc;
}

static void bare_key(char out[KEY_BYTES], int64_t key)
{
    static const char start[] = {0, 0, 0, 1, 'r'};
    memcpy(out, start, sizeof(start));
    tierce__store_le64(out + sizeof(start), __builtin_bswap64(tierce__meta_mix(key)));
}

static int bare_put(struct meta_bench *m, const struct block *blocks, const int64_t *keys,
                    size_t count)
{
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    for (size_t i = 0; i < count; i++) {
        char key[KEY_BYTES], value[RECORD_BYTES_MAX];
        bare_key(key, keys[i]);
        tierce__record_write(&blocks[i].record, value);
        rocksdb_writebatch_put(batch, key, KEY_BYTES, value,
                               tierce__record_size(&blocks[i].record));
    }
    char *error = NULL;
    rocksdb_write(m->bare, m->writes, batch, &error);
    rocksdb_writebatch_destroy(batch);
    return bare_failed(m, error);
}

static int bare_open(struct meta_bench *m)
{
    enum { CACHE_BYTES = 128 << 20, BLOOM_BITS = 10, JOBS = 2 };
    m->cache = rocksdb_cache_create_lru(CACHE_BYTES);
    m->table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_cache(m->table, m->cache);
    rocksdb_block_based_options_set_filter_policy(
        m->table, rocksdb_filterpolicy_create_bloom_full(BLOOM_BITS));
    rocksdb_block_based_options_set_data_block_index_type(
        m->table, rocksdb_block_based_table_data_block_index_type_binary_search_and_hash);
    m->options = rocksdb_options_create();
    rocksdb_options_set_block_based_table_factory(m->options, m->table);
    rocksdb_options_set_create_if_missing(m->options, 1);
    rocksdb_options_set_compression(m->options, rocksdb_no_compression);
    rocksdb_options_set_max_background_jobs(m->options, JOBS);
    rocksdb_options_set_memtable_prefix_bloom_size_ratio(m->options, 0.02);
    rocksdb_options_set_memtable_whole_key_filtering(m->options, 1);
    m->reads = rocksdb_readoptions_create();
    m->writes = rocksdb_writeoptions_create();
    const char *name = "default";
    const rocksdb_options_t *options = m->options;
    char *error = NULL;
    m->bare = rocksdb_open_column_families(m->options, m->bare_folder, 1, &name, &options,
                                           &m->family, &error);
    int rc = bare_failed(m, error);
    static struct block blocks[FILL_KEYS];
    static int64_t keys[FILL_KEYS];
    for (uint64_t done = 0; rc == 0 && done < m->blocks;) {
        size_t count = 0;
        for (; count < FILL_KEYS && done < m->blocks; count++, done++) {
            make_block(&blocks[count], done);
            keys[count] = key_of(done);
        }
        rc = bare_put(m, blocks, keys, count);
    }
    return rc;
}

static void bare_close(struct meta_bench *m)
{
    if (m->options == NULL)
        return;
    if (m->family != NULL)
        rocksdb_column_family_handle_destroy(m->family);
    if (m->bare != NULL)
        rocksdb_close(m->bare);
    rocksdb_options_destroy(m->options);
    rocksdb_block_based_options_destroy(m->table);
    rocksdb_cache_destroy(m->cache);
    rocksdb_readoptions_destroy(m->reads);
    rocksdb_writeoptions_destroy(m->writes);
}

static int64_t run_bare_get(void *arg)
{
    struct meta_bench *m = (struct meta_bench *)arg;
    static char bytes[GET_KEYS][KEY_BYTES];
    static const char *keys[GET_KEYS];
    static size_t lengths[GET_KEYS];
    static rocksdb_pinnableslice_t *values[GET_KEYS];
    static char *errors[GET_KEYS];
    draw_keys(m);
    uint64_t start = tierce__now_ns();
    for (unsigned i = 0; i < GET_KEYS; i++) {
        bare_key(bytes[i], m->keys[i]);
        keys[i] = bytes[i];
        lengths[i] = KEY_BYTES;
    }
    rocksdb_batched_multi_get_cf(m->bare, m->reads, m->family, GET_KEYS, keys, lengths, values,
                                 errors, false);
    unsigned found = 0;
    for (unsigned i = 0; i < GET_KEYS; i++) {
        found += values[i] != NULL;
        if (values[i] != NULL)
            rocksdb_pinnableslice_destroy(values[i]);
    }
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    return found == GET_KEYS ? ns : tierce__bench_fail(m->bench, "the bare database lost a block");
}

static int64_t run_bare_write(void *arg)
{
    struct meta_bench *m = (struct meta_bench *)arg;
    static struct block blocks[WRITE_KEYS];
    int64_t ns = 0;
    for (unsigned i = 0; i < WRITES; i++) {
        next_blocks(m, blocks);
        uint64_t start = tierce__now_ns();
        int rc = bare_put(m, blocks, m->keys, WRITE_KEYS);
        ns += (int64_t)(tierce__now_ns() - start);
        if (rc < 0)
            return rc;
    }
    return ns;
}

/* ---- cases ---------------------------------------------------------------------------------- */

static void emit(const struct meta_bench *m, const char *what, struct tierce__bench_row row)
{
    char name[64];
    snprintf(name, sizeof(name), "%s; %llu blocks", what, (unsigned long long)m->blocks);
    row.case_name = name;
    tierce__bench_emit(m->bench, &row);
}

/* Bytes of the process that are in memory. */
static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long all = 0, resident = 0;
    if (file == NULL)
        return 0;
    if (fscanf(file, "%llu %llu", &all, &resident) != 2)
        resident = 0;
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int memory_cases(struct meta_bench *m)
{
    enum { BYTES_GOAL = 200 };
    (void)malloc_trim(0);
    uint64_t before = resident_bytes();
    int rc = open_index(m, &tierce__meta_memory, "");
    if (rc == 0)
        rc = fill(m);
    if (rc < 0)
        return rc;
    uint64_t after = resident_bytes(), blocks = m->blocks;
    if (after > before)
        emit(m, "memory a block",
             (struct tierce__bench_row){.unit = "bytes",
                                        .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                        .value = (double)(after - before) / (double)blocks,
                                        .limit = BYTES_GOAL,
                                        .goal = 1,
                                        .peer = "as it accounts",
                                        .peer_value = (double)m->space->ops->memory(m->space) /
                                                      (double)blocks});
    struct tierce__bench_side get = {.run = run_get, .arg = m},
                              write = {.run = run_write, .arg = m};
    rc = tierce__bench_alternate(&get, 1, m->bench->seconds);
    if (rc == 0)
        rc = tierce__bench_alternate(&write, 1, m->bench->seconds);
    if (rc < 0)
        return rc;
    /* The limits are the goals for a whole call, of which the index is a part. */
    emit(m, "memory get 1024 keys",
         (struct tierce__bench_row){
             .unit = "Mkeys/s", .value = GET_KEYS / get.median_ns * 1e3, .limit = 2, .goal = 2});
    emit(m, "memory write 128 keys",
         (struct tierce__bench_row){.unit = "Mkeys/s",
                                    .value = WRITES * WRITE_KEYS / write.median_ns * 1e3,
                                    .limit = 0.3,
                                    .goal = 2});
    return 0;
}

/* The time from a restart until the first blocks are found. */
static int restart_case(struct meta_bench *m)
{
    enum { MS_GOAL = 10000 };
    close_index(m);
    uint64_t start = tierce__now_ns();
    int rc = open_index(m, &tierce__meta_rocksdb, m->folder);
    int64_t got = rc == 0 ? run_get(m) : rc;
    if (got < 0)
        return (int)got;
    double ms = (double)(tierce__now_ns() - start) / 1e6;
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(m->index, &stats);
    if (stats.keys < m->blocks)
        return tierce__bench_fail(m->bench, "a restart lost blocks");
    emit(m, "rocksdb restart",
         (struct tierce__bench_row){.unit = "ms",
                                    .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                    .value = ms,
                                    .limit = MS_GOAL,
                                    .goal = 1});
    return 0;
}

static int rocksdb_cases(struct meta_bench *m)
{
    int rc = open_index(m, &tierce__meta_rocksdb, m->folder);
    if (rc == 0)
        rc = fill(m);
    if (rc == 0)
        rc = bare_open(m);
    struct tierce__bench_side gets[] = {{.run = run_get, .arg = m},
                                        {.run = run_bare_get, .arg = m}};
    struct tierce__bench_side writes[] = {{.run = run_write, .arg = m},
                                          {.run = run_bare_write, .arg = m}};
    if (rc == 0)
        rc = tierce__bench_alternate(gets, 2, m->bench->seconds);
    if (rc == 0)
        rc = tierce__bench_alternate(writes, 2, m->bench->seconds);
    if (rc < 0)
        return rc;
    emit(m, "rocksdb get 1024 keys",
         (struct tierce__bench_row){.unit = "Mkeys/s",
                                    .value = GET_KEYS / gets[0].median_ns * 1e3,
                                    .limit = GET_KEYS / gets[1].median_ns * 1e3,
                                    .goal = 0.5});
    emit(m, "rocksdb write 128 keys",
         (struct tierce__bench_row){.unit = "Mkeys/s",
                                    .value = WRITES * WRITE_KEYS / writes[0].median_ns * 1e3,
                                    .limit = WRITES * WRITE_KEYS / writes[1].median_ns * 1e3,
                                    .goal = 0.5});
    return restart_case(m);
}

int tierce__bench_manager_meta(const struct tierce__bench *bench)
{
    struct meta_bench *m = tierce__calloc(1, sizeof(*m));
    if (m == NULL)
        return -ENOMEM;
    m->bench = bench;
    m->blocks = bench->blocks > 0 ? bench->blocks : BLOCKS_DEFAULT;
    while (bench->blocks == 0 && m->blocks * BLOCK_BYTES_MAX > bench->memory_bytes)
        m->blocks /= 2;
    int rc = snprintf(m->folder, sizeof(m->folder), "%s/index", bench->dir) < 0 ||
                     snprintf(m->bare_folder, sizeof(m->bare_folder), "%s/bare", bench->dir) < 0
                 ? -EIO
                 : 0;
    if (rc == 0)
        rc = memory_cases(m);
    close_index(m);
    m->written = 0;
    if (rc == 0)
        rc = rocksdb_cases(m);
    close_index(m);
    bare_close(m);
    tierce__bench_remove(m->folder);
    tierce__bench_remove(m->bare_folder);
    tierce__free(m);
    return rc;
}
