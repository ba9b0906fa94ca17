/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reopening a disk tier: reads a journal of a million chunks into an index, claims the space of
 * each chunk, and inserts it into the policy. The journal is as a killed process leaves it; the
 * data file is a single hole, which is not read. The limit is a second for a million; the peer only
 * reads the journal's bytes. Both find it in the kernel's cache.
 */
#include "bench/bench.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "store/disk/disk.h"
#include "store/disk/disk_journal.h"

#define CHUNKS_MAX      1000000u
#define BYTES_PER_CHUNK 1024u      /* of memory, generously */
#define OBJECT_BYTES    8192u      /* of the data file */
#define CAP_PER_CHUNK   (1u << 18) /* the tier's assumption */
#define CHAIN_CHUNKS    128u       /* of a prompt: the first has no parent */
#define NAMESPACE_TEXT  "tierce-namespace=1\n"

struct open_case {
    const struct tierce__bench *bench;
    uint32_t chunks;
    char store[PATH_MAX];
    char journal[PATH_MAX];
    char data[PATH_MAX];
};

static void make_hash(uint8_t hash[TIERCE_HASH_BYTES], uint64_t chunk)
{
    for (uint64_t i = 0; i < TIERCE_HASH_BYTES / 8; i++) {
        uint64_t word = tierce__bench_random(i, chunk);
        memcpy(hash + 8 * i, &word, sizeof(word));
    }
}

static int write_records(const struct open_case *c, struct tierce__journal *journal)
{
    uint8_t digest[TIERCE_HASH_BYTES];
    tierce_namespace_digest(digest, NAMESPACE_TEXT);
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < c->chunks; i++) {
        struct tierce__journal_record put = {.kind = TIERCE__JOURNAL_PUT,
                                             .seq = i + 1,
                                             .key = {.shard = {0, 1, 0, 1}},
                                             .offset = i * OBJECT_BYTES,
                                             .object_bytes = OBJECT_BYTES,
                                             .block_count = 8};
        make_hash(put.key.hash, i);
        if (i % CHAIN_CHUNKS != 0)
            make_hash(put.parent, i - 1);
        rc = tierce__journal_add(journal, &put, digest);
    }
    return rc == 0 ? tierce__journal_commit(journal) : rc;
}

static int write_store(const struct open_case *c)
{
    /* The magic of its first chunk (docs/inside/format/chunk.md) identifies a data file as a
     * store's. */
    static _Alignas(4096) const uint8_t head[4096] = "TIERCECK";
    struct tierce__vfs *vfs;
    struct tierce__vfs_file *data = NULL;
    struct tierce__journal journal = {0};
    int rc = tierce__vfs_threads_create(&vfs, 1);
    if (rc < 0)
        return rc;
    rc = tierce__journal_init(&journal, vfs);
    if (rc == 0)
        rc = vfs->ops->make_folder(vfs, c->store);
    if (rc == 0)
        rc = vfs->ops->open(vfs, &data, c->data, TIERCE__VFS_CREATE);
    if (rc == 0)
        rc = vfs->ops->truncate(vfs, data, (uint64_t)c->chunks * OBJECT_BYTES);
    if (rc == 0)
        rc = vfs->ops->write(vfs, data, head, sizeof(head), 0);
    if (rc == 0)
        rc = tierce__journal_start(&journal, c->journal, 1, c->chunks);
    if (rc == 0)
        rc = write_records(c, &journal);
    tierce__journal_fini(&journal);
    if (data != NULL)
        vfs->ops->close(vfs, data);
    vfs->ops->destroy(vfs);
    return rc;
}

static int64_t run_open(void *arg)
{
    struct open_case *c = arg;
    struct tierce__namespaces *namespaces;
    struct tierce__tier *tier = NULL;
    int64_t rc = tierce__namespaces_create(&namespaces);
    if (rc < 0)
        return rc;
    struct tierce__disk_opts opts = {.size = sizeof(opts),
                                     .path = c->store,
                                     .cap_bytes = (uint64_t)c->chunks * CAP_PER_CHUNK,
                                     .policy = tierce__policy_find("lru"),
                                     .namespaces = namespaces};
    uint64_t start = tierce__now_ns();
    rc = tierce__disk_open(&tier, &opts);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    if (rc == 0) {
        struct tierce__tier_stats stats;
        tier->ops->stats(tier, &stats);
        if (stats.durable_chunks != c->chunks)
            rc = tierce__bench_fail(c->bench, "chunks are missing");
        if (!tier->ops->close(tier, TIERCE__DEADLINE_NEVER))
            return -EIO; /* memory that it borrowed is leaked with it */
    }
    tierce__namespaces_destroy(namespaces);
    return rc < 0 ? rc : ns;
}

static int64_t run_read(void *arg)
{
    struct open_case *c = arg;
    char *bytes;
    size_t length;
    uint64_t start = tierce__now_ns();
    int rc = tierce__read_file(&bytes, &length, c->journal, SIZE_MAX / 2);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    if (rc < 0)
        return rc;
    tierce__free(bytes);
    return ns;
}

int tierce__bench_open(const struct tierce__bench *bench)
{
    uint64_t chunks = bench->memory_bytes / BYTES_PER_CHUNK;
    struct open_case c = {.bench = bench,
                          .chunks = chunks < CHUNKS_MAX ? (uint32_t)chunks : CHUNKS_MAX};
    if (snprintf(c.store, sizeof(c.store), "%s/open", bench->dir) >= PATH_MAX - 16)
        return -ENAMETOOLONG;
    (void)snprintf(c.journal, sizeof(c.journal), "%s/open/journal", bench->dir);
    (void)snprintf(c.data, sizeof(c.data), "%s/open/data", bench->dir);
    struct tierce__bench_side sides[] = {{.run = run_open, .arg = &c},
                                         {.run = run_read, .arg = &c}};
    int rc = write_store(&c);
    if (rc == 0)
        rc = tierce__bench_alternate(sides, 2, bench->seconds);
    tierce__bench_remove(c.store);
    if (rc < 0)
        return rc;
    char name[64];
    snprintf(name, sizeof(name), "index of %u chunks", c.chunks);
    tierce__bench_emit(bench, &(struct tierce__bench_row){.case_name = name,
                                                          .unit = "ms",
                                                          .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                                          .value = sides[0].median_ns / 1e6,
                                                          .limit = c.chunks / 1e3,
                                                          .goal = 1,
                                                          .peer = "bytes read",
                                                          .peer_value = sides[1].median_ns / 1e6});
    return 0;
}
