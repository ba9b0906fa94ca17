/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine's loads from a peer, whole and verified: each is a lookup in the directory, a read into
 * the engine's memory, a copy to the blocks, and all sums. The peer has one prompt in its memory,
 * and one only coded (memory.coded_size), which the engine decodes. The limit of both is as many
 * raw bytes through bare sockets, so that the ratio of a coded load may exceed 1. Then ranges of
 * chunks from a peer behind a network with a delay. Both engines are in this process, the manager
 * is in another.
 */
#include "bench/fleet/bench_peers_load.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/bench_kv.h"
#include "bench/bench_values.h"
#include "bench/fleet/bench_manager_process.h"
#include "bench/fleet/bench_sockets.h"
#include "bench/remote/slow_link.h"
#include "bench/remote/bench_calls.h"
#include "core/key/chunk_number.h"
#include "engine/engine.h"
#include "engine/peer/peers.h"
#include "engine/view.h"
#include "store/coded/coded_connector.h"
#include "store/remote/connector.h"
#include "store/remote/peers/peers_self.h"
#include "store/remote/peers/peers_table.h"

#include <tierce/operate.h>

enum {
    CHUNKS = 16,
    PARTS = 4, /* ranges of a chunk */
    RANGES = CHUNKS * PARTS,
    CALL_MS = 60000,
    CELL_KIB = 32,
    ROUND_TRIP_MS = 30,
    PART_BYTES = 2 * TIERCE__BENCH_PART_ELEMENTS, /* of bf16 */
};

struct load_bench;

struct prompt {
    struct load_bench *bench;
    struct tierce_chain *stored, *same; /* of the holder, and of the reader */
};

enum { CODED, RAW, PROMPTS }; /* in the order in which they are stored */

struct load_bench {
    const struct tierce__bench *bench;
    struct tierce__bench_manager_process manager;
    struct tierce__kv holder, reader;
    struct prompt prompts[PROMPTS];
    const char *source;                  /* of the values */
    struct tierce__connector *connector; /* [borrow] the reader's */
    struct tierce__pool *pool;
    struct tierce__buf *bufs[CHUNKS];
    uint8_t *into[CHUNKS];
    uint64_t object_bytes;
    char texts[CHUNKS][TIERCE__KEY_TEXT_BYTES];
    struct tierce_plugin_name names[CHUNKS];
    struct tierce__bench_sockets sockets;
    struct tierce__slow_link *slow;
};

/* ---- whole loads ----------------------------------------------------------------------------- */

/* Until the lookup has found all chunks: it may be answered before the directory has replied. */
static int look_up(const struct prompt *p)
{
    const struct load_bench *b = p->bench;
    const struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    uint64_t until_ns = tierce__deadline_in_ms(CALL_MS), blocks = tierce_chain_blocks(p->same);
    struct tierce_found found = {0};
    int rc = 0;
    while (rc == 0 && found.blocks < blocks && tierce__now_ns() < until_ns)
        rc = tierce_lookup(b->reader.view, p->same, blocks, &opts, &found);
    return rc < 0                  ? rc
           : found.blocks < blocks ? tierce__bench_fail(b->bench, "the directory has no chunks")
                                   : 0;
}

/* The reader has none of the chunks, and remembers no holder. */
static int64_t load_all(void *arg)
{
    const struct prompt *p = arg;
    struct load_bench *b = p->bench;
    int64_t rc = tierce_engine_clear(b->reader.engine, 0, NULL);
    if (rc < 0)
        return rc;
    uint64_t start_ns = tierce__now_ns();
    rc = look_up(p);
    if (rc == 0)
        rc = tierce__kv_load(&b->reader, p->same, tierce__kv_ids(&b->reader, 0),
                             TIERCE_ORIGIN_REMOTE);
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start_ns);
}

/* The reader gets the holder's values, and decodes the prompt that is coded. */
static int check_load(struct load_bench *b, size_t prompt)
{
    struct tierce__coded_stats before, after;
    tierce__coded_connector_stats(b->connector, &before);
    memset(b->reader.memory, 0, b->reader.bytes);
    int64_t rc = load_all(&b->prompts[prompt]);
    tierce__coded_connector_stats(b->connector, &after);
    if (rc < 0)
        return (int)rc;
    if ((after.decoded_bytes > before.decoded_bytes) != (prompt == CODED))
        return tierce__bench_fail(b->bench, "the peer has sent chunks in the other form");
    if (memcmp(b->reader.memory, b->holder.memory, b->holder.bytes) != 0)
        return tierce__bench_fail(b->bench, "the values loaded differ from those stored");
    return 0;
}

/* ---- ranges behind a delay ------------------------------------------------------------------- */

static int64_t get_ranges(void *arg)
{
    struct load_bench *b = arg;
    struct tierce__store_req reqs[RANGES];
    uint64_t part = b->object_bytes / PARTS;
    for (size_t i = 0; i < RANGES; i++) {
        reqs[i] = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                             .urgency = TIERCE__CONNECTOR_FETCH,
                                             .names = &b->names[i / PARTS],
                                             .name_count = 1,
                                             .buf = b->bufs[i / PARTS],
                                             .offset = i % PARTS * part,
                                             .length = part};
    }
    return tierce__bench_calls_run(b->bench, b->connector, reqs, RANGES);
}

/* The holder of each chunk has another address for the reader: that of the slow network. */
static int slow_down(struct load_bench *b)
{
    struct tierce__peers_table *table = tierce__peers_self_of(b->reader.engine->peers)->table;
    struct tierce__peer_ref holders[TIERCE__PEERS_HOLDERS_MAX], far = {0};
    char host[TIERCE__PEERS_ADDRESS_BYTES], address[64];
    for (size_t i = 0; i < CHUNKS; i++) {
        struct tierce__slow_link_opts opts = {.size = sizeof(opts),
                                              .round_trip_ns = ROUND_TRIP_MS * TIERCE__MS_NS};
        struct tierce__key key = b->holder.view->key;
        memcpy(key.hash,
               tierce_chain_hash(b->prompts[RAW].stored, (i + 1) * TIERCE__KV_CHUNK_BLOCKS - 1),
               sizeof(key.hash));
        struct tierce__chunk_number number =
            tierce__chunk_number(b->holder.view->ns_digest, &key.shard, key.hash);
        if (tierce__peers_table_get(table, number, holders) == 0 ||
            !tierce__peers_table_address(table, holders[0], 0, host, &opts.port))
            return tierce__bench_fail(b->bench, "the reader knows no holder");
        int rc = b->slow == NULL ? tierce__slow_link_start(&b->slow, &opts) : 0;
        if (rc < 0)
            return rc;
        snprintf(address, sizeof(address), "127.0.0.1:%u", tierce__slow_link_port(b->slow));
        far = tierce__peers_table_name(table, address);
        tierce__peers_table_put(table, number, &far, 1);
    }
    return 0;
}

/* ---- the engines ----------------------------------------------------------------------------- */

static int open_kv(struct load_bench *b, struct tierce__kv *kv, const char *memory,
                   const char *coded, const char *url)
{
    const struct tierce__bench_param params[] = {{"memory.size", memory},
                                                 {"memory.coded_size", coded},
                                                 {"remote.urls", url},
                                                 {"timeout.lookup", "2s"}};
    *kv = (struct tierce__kv){.bench = b->bench,
                              .cell_bytes = CELL_KIB << 10,
                              .windows = 1,
                              .window_blocks = CHUNKS * TIERCE__KV_CHUNK_BLOCKS};
    return tierce__kv_open(kv, params, sizeof(params) / sizeof(*params));
}

/* The chain of the next prompt; those of both engines are the same. */
static int make_chain(struct tierce__kv *kv, struct tierce_chain **chain)
{
    int rc = tierce_view_chain(chain, kv->view, NULL);
    return rc == 0 ? tierce__kv_renew(kv, *chain) : rc;
}

/* Each cell has as many keys as values, which the source has in turn, in shorter parts. */
static void lay_out(struct tierce__kv *kv, const uint8_t *values)
{
    uint64_t half = kv->cell_bytes / 2, n;
    for (uint64_t at = 0; at < kv->bytes; at += n) {
        uint64_t is_value = at / half % 2, place = at / (2 * half) * half + at % half;
        uint64_t left = half - at % half, in_part = PART_BYTES - place % PART_BYTES;
        n = left < in_part ? left : in_part;
        memcpy(kv->memory + at,
               values + (2 * (place / PART_BYTES) + is_value) * PART_BYTES + place % PART_BYTES, n);
    }
}

static int fill(struct load_bench *b)
{
    uint64_t pair = 2 * PART_BYTES, bytes = (b->holder.bytes + pair - 1) / pair * pair;
    uint8_t *values = tierce__bench_map(bytes);
    bool has_file =
        b->bench->kv != NULL && tierce__bench_values_element(b->bench) == TIERCE__ELEMENT_BF16;
    int rc = 0;
    if (values == NULL)
        return -ENOMEM;
    b->source = has_file ? tierce__bench_values_source(b->bench) : "made-up KV";
    if (has_file)
        rc = tierce__bench_values_read(b->bench, values, bytes);
    else
        tierce__bench_values_make_up(values, bytes, TIERCE__ELEMENT_BF16);
    if (rc == 0)
        lay_out(&b->holder, values);
    tierce__bench_unmap(values, bytes);
    return rc;
}

/* Stores a prompt that only coded memory has. One chunk after the other: of many at once, some
 * would stay raw. */
static int store_coded(struct load_bench *b)
{
    struct tierce__kv *kv = &b->holder;
    const struct tierce__level *levels = kv->engine->levels;
    struct tierce__tier *memory = levels[0].tier;
    struct tierce__tier_stats left;
    struct tierce__coded_stats coded;
    int64_t rc = make_chain(kv, &b->prompts[CODED].stored);
    for (uint64_t to = TIERCE__KV_CHUNK_BLOCKS; rc >= 0 && to <= kv->window_blocks;
         to += TIERCE__KV_CHUNK_BLOCKS) {
        rc = tierce__kv_store(kv, b->prompts[CODED].stored, tierce__kv_ids(kv, 0), to,
                              TIERCE__KV_CHUNK_BLOCKS);
        if (rc >= 0)
            rc = tierce_engine_flush(kv->engine, CALL_MS);
    }
    if (rc < 0)
        return (int)rc;
    uint64_t until_ns = tierce__deadline_in_ms(CALL_MS);
    do {
        (void)memory->ops->evict(memory, UINT64_MAX);
        memory->ops->stats(memory, &left);
    } while (left.chunks > 0 && tierce__now_ns() < until_ns);
    tierce__coded_tier_stats(levels[1].coded, &coded);
    return left.chunks == 0 && coded.encoded_chunks == CHUNKS
               ? 0
               : tierce__bench_fail(b->bench, "the holder has not coded all chunks");
}

static int64_t open_holder(struct load_bench *b, const char *url)
{
    struct tierce__kv *kv = &b->holder;
    int64_t rc = open_kv(b, kv, "128MiB", "96MiB", url);
    if (rc == 0)
        rc = fill(b);
    if (rc == 0)
        rc = store_coded(b);
    if (rc == 0)
        rc = make_chain(kv, &b->prompts[RAW].stored);
    return rc == 0 ? tierce__kv_store(kv, b->prompts[RAW].stored, tierce__kv_ids(kv, 0),
                                      kv->window_blocks, kv->window_blocks)
                   : rc;
}

static int open_reader(struct load_bench *b, const char *url)
{
    int rc = open_kv(b, &b->reader, "96MiB", "0", url);
    for (size_t i = 0; rc == 0 && i < PROMPTS; i++)
        rc = make_chain(&b->reader, &b->prompts[i].same);
    if (rc == 0)
        b->connector = b->reader.engine->levels[b->reader.engine->level_count - 1].connector;
    return rc;
}

static int open_bufs(struct load_bench *b)
{
    int rc = tierce__pool_create(
        &b->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                              .cap_bytes = 64u << 20});
    if (rc == 0)
        rc = tierce__kv_names(&b->holder, b->prompts[RAW].stored, b->texts, b->names, CHUNKS);
    b->object_bytes = b->holder.view->full.extent.object_bytes;
    for (size_t i = 0; rc == 0 && i < CHUNKS; i++) {
        rc = tierce__pool_alloc(b->pool, &b->bufs[i], b->object_bytes);
        if (rc == 0)
            b->into[i] = b->bufs[i]->data;
    }
    return rc;
}

static int open_all(struct load_bench *b)
{
    char url[TIERCE__BENCH_PEERS_URL_BYTES];
    int64_t rc = tierce__bench_manager_process_of_peers(&b->manager, b->bench, url);
    if (rc == 0)
        rc = open_holder(b, url);
    if (rc >= 0)
        rc = open_reader(b, url);
    if (rc == 0)
        rc = open_bufs(b);
    if (rc < 0)
        return (int)rc;
    b->sockets = (struct tierce__bench_sockets){.into = b->into,
                                                .from = b->holder.memory,
                                                .count = CHUNKS,
                                                .bytes = b->holder.window_bytes / CHUNKS};
    return tierce__bench_sockets_open(&b->sockets, b->bench);
}

static void close_all(struct load_bench *b)
{
    if (b->sockets.into != NULL)
        tierce__bench_sockets_close(&b->sockets);
    for (size_t i = 0; i < PROMPTS; i++) {
        tierce_chain_destroy(b->prompts[i].same);
        tierce_chain_destroy(b->prompts[i].stored);
    }
    tierce__kv_close(&b->reader);
    tierce__slow_link_stop(b->slow);
    tierce__kv_close(&b->holder);
    for (size_t i = 0; i < CHUNKS; i++)
        tierce__buf_release(b->bufs[i]);
    tierce__pool_destroy(b->pool);
    tierce__bench_manager_process_stop(&b->manager);
    static const char *const left[] = {"pool", "startup.json", "manager.log"};
    for (size_t i = 0; i < sizeof(left) / sizeof(*left); i++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof(path), "%s/%s", b->bench->dir, left[i]) < (int)sizeof(path))
            tierce__bench_remove(path);
    }
}

/* ---- the rows -------------------------------------------------------------------------------- */

static void emit(const struct load_bench *b, const struct tierce__bench_side *side,
                 const struct tierce__bench_side *bare, struct tierce__bench_row row)
{
    double bytes = (double)b->sockets.bytes * (double)b->sockets.count;
    row.unit = "GB/s";
    row.value = bytes / side->median_ns;
    row.value_min = bytes / side->max_ns;
    row.value_max = bytes / side->min_ns;
    row.limit = bytes / bare->median_ns;
    row.limit_min = bytes / bare->max_ns;
    row.limit_max = bytes / bare->min_ns;
    tierce__bench_emit(b->bench, &row);
}

/* The two prompts in turn, so that their rates can be compared. */
static int measure_loads(struct load_bench *b)
{
    struct tierce__bench_side sides[PROMPTS + 1] = {
        [CODED] = {.run = load_all, .arg = &b->prompts[CODED]},
        [RAW] = {.run = load_all, .arg = &b->prompts[RAW]},
        [PROMPTS] = {.run = tierce__bench_sockets_copy, .arg = &b->sockets}};
    const char *what = "lookup and verified load of 32 MiB from a peer's";
    char raw[96], coded[160];
    int rc = tierce__bench_alternate(sides, PROMPTS + 1, b->bench->seconds);
    if (rc < 0)
        return rc;
    snprintf(raw, sizeof(raw), "%s memory", what);
    snprintf(coded, sizeof(coded), "%s coded memory; %.80s", what, b->source);
    emit(b, &sides[RAW], &sides[PROMPTS],
         (struct tierce__bench_row){.case_name = raw, .goal = 0.95});
    /* At rates of a network a coded load takes less time than its raw bytes; on loopback more. */
    emit(b, &sides[CODED], &sides[PROMPTS],
         (struct tierce__bench_row){.case_name = coded,
                                    .goal = 1.35,
                                    .peer = "raw",
                                    .peer_value =
                                        (double)b->sockets.bytes * CHUNKS / sides[RAW].median_ns});
    return 0;
}

static int measure_ranges(struct load_bench *b)
{
    struct tierce__bench_side sides[] = {{.run = get_ranges, .arg = b},
                                         {.run = tierce__bench_sockets_copy, .arg = &b->sockets}};
    int rc = tierce__bench_alternate(sides, 2, b->bench->seconds);
    if (rc == 0) /* the limit has no delay, so there is no goal */
        emit(b, &sides[0], &sides[1],
             (struct tierce__bench_row){
                 .case_name = "GET ranges of 513 KiB from a peer's memory; 30 ms round trip",
                 .goal = 0.01});
    return rc;
}

static int run(struct load_bench *b)
{
    int rc = open_all(b);
    for (size_t i = 0; rc == 0 && i < PROMPTS; i++)
        rc = check_load(b, i);
    if (rc == 0)
        rc = measure_loads(b);
    if (rc == 0)
        rc = look_up(&b->prompts[RAW]);
    if (rc == 0)
        rc = slow_down(b);
    return rc == 0 ? measure_ranges(b) : rc;
}

int tierce__bench_peers_load(const struct tierce__bench *bench)
{
    struct load_bench *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return -ENOMEM;
    b->bench = bench;
    for (size_t i = 0; i < PROMPTS; i++)
        b->prompts[i].bench = b;
    int rc = run(b);
    close_all(b);
    free(b);
    return rc;
}
