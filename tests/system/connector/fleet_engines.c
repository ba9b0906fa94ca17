/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many engines of a pool in one process, for tools/bench/fleet_engines.py. Each has a connector of
 * its own, and so its own connections to the manager and to the storages.
 *
 *     fleet_engines run URL FIRST COUNT CHUNKS KIB PAUSE_MS
 *         Engines FIRST to FIRST + COUNT - 1. Each writes prompts of CHUNKS chunks, and reads
 *         prompts that engines of this process have written, with pauses of PAUSE_MS on average.
 *         Ends when its standard input ends, after the last operation. Prints, times in ns:
 *             put ENGINE PROMPT START DURATION MASK          MASK: the chunks that were stored
 *             get ENGINE PROMPT START DURATION FOUND KNOWN   of KNOWN first chunks that were stored
 *     fleet_engines check URL CHUNKS KIB
 *         Reads lines "ENGINE PROMPT MASK", gets these chunks, and prints:
 *             lost ENGINE PROMPT CHUNK REASON
 *             checked COUNT
 *
 * A chunk whose bytes differ from those that were written ends the process with exit code 3.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/mix.h"
#include "core/chunk/header.h"
#include "core/key/key_text.h"
#include "core/key/namespaces.h"
#include "store/remote/connector.h"

enum {
    CHUNKS_MAX = 64, /* bits of a mask */
    PROMPTS_MAX = 4096,
    ENGINES_MAX = 256,
    LAYERS = 4,
    BLOCK_TOKENS = 16,
    CHUNK_BLOCKS = 4,
    READS_PER_WRITE = 3,
    GET_MS = 10000,
    PUT_MS = 60000,
};

static struct {
    const char *url;
    unsigned chunks, pause_ms;
    uint64_t chunk_bytes;
    uint32_t cells[LAYERS];
    struct tierce__extent extent;
    uint8_t digest[TIERCE_HASH_BYTES];
    struct tierce__namespaces *namespaces;
    struct tierce__pool *pool;
    unsigned first, engine_count;
    _Atomic bool stops;
} world;

/* The prompt that an engine writes or reads. */
struct prompt {
    char texts[CHUNKS_MAX][TIERCE__KEY_TEXT_BYTES];
    struct tierce_plugin_name names[CHUNKS_MAX];
    struct tierce__key keys[CHUNKS_MAX];
    struct tierce__buf *bufs[CHUNKS_MAX];
    struct tierce__store_req reqs[CHUNKS_MAX];
    sem_t done;
    _Atomic size_t left;
};

struct engine {
    unsigned number;
    uint64_t random;
    pthread_t thread;
    struct tierce__connector *connector;
    struct prompt prompt;
    /* Written by the engine, read by all: `stored` is published by prompt_count's release. */
    uint64_t stored[PROMPTS_MAX];
    _Atomic unsigned prompt_count;
};
static struct engine *engines;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "fleet_engines: %s: %s\n", what, why);
    exit(2);
}

static void must(int64_t rc, const char *what)
{
    if (rc < 0)
        fail(what, tierce_strerror((int)rc));
}

/* ---- prompts and their bytes ----------------------------------------------------------------- */

static uint64_t chunk_number(unsigned engine, unsigned prompt, size_t chunk)
{
    TIERCE_ASSERT(prompt < PROMPTS_MAX && chunk < CHUNKS_MAX);
    return tierce__mix(((uint64_t)engine * PROMPTS_MAX + prompt) * CHUNKS_MAX + chunk + 1);
}

static struct tierce__geometry geometry(void)
{
    return (struct tierce__geometry){.layer_count = LAYERS,
                                     .cell_bytes = world.cells,
                                     .block_tokens = BLOCK_TOKENS,
                                     .block_count = CHUNK_BLOCKS};
}

/* A chunk as an engine seals it, so that movers can verify it. */
static void fill(uint8_t *bytes, uint64_t number)
{
    uint8_t hashes[CHUNK_BLOCKS * TIERCE_HASH_BYTES] = {0};
    struct tierce__chunk_info info = {.shard = {.tp_size = 1, .pp_size = 1},
                                      .algo = TIERCE_CHAIN_SHA256,
                                      .geometry = geometry(),
                                      .extent = world.extent};
    memcpy(info.ns_digest, world.digest, sizeof(info.ns_digest));
    memcpy(info.hash, &number, sizeof(number));
    memcpy(hashes + sizeof(hashes) - TIERCE_HASH_BYTES, info.hash, TIERCE_HASH_BYTES);
    tierce__chunk_begin(bytes, &info, hashes);
    for (uint64_t i = 0; i < world.extent.payload_bytes / 8; i++) {
        uint64_t word = tierce__mix(number + i);
        memcpy(bytes + world.extent.header_bytes + 8 * i, &word, 8);
    }
    tierce__chunk_sum_cells(bytes, &info.geometry);
    tierce__chunk_seal(bytes, world.extent.header_bytes);
}

static bool is_filled(const uint8_t *bytes, uint64_t number)
{
    for (uint64_t i = 0; i < world.extent.payload_bytes / 8; i++) {
        uint64_t word = tierce__mix(number + i);
        if (memcmp(bytes + world.extent.header_bytes + 8 * i, &word, 8) != 0)
            return false;
    }
    return true;
}

static void name_chunks(struct prompt *p, unsigned engine, unsigned prompt)
{
    for (size_t i = 0; i < world.chunks; i++) {
        struct tierce__key *key = &p->keys[i];
        uint64_t number = chunk_number(engine, prompt, i);
        *key = (struct tierce__key){.shard = {.tp_size = 1, .pp_size = 1}};
        memcpy(key->hash, &number, sizeof(number));
        int bytes = tierce__key_text_format(p->texts[i], world.digest, &key->shard, key->hash);
        must(bytes, "the name of a chunk");
        p->names[i] = (struct tierce_plugin_name){.text = p->texts[i], .bytes = (size_t)bytes};
    }
}

static void open_prompt(struct prompt *p)
{
    if (sem_init(&p->done, 0, 0) != 0)
        must(-errno, "a semaphore");
    for (size_t i = 0; i < world.chunks; i++)
        must(tierce__pool_alloc(world.pool, &p->bufs[i], world.chunk_bytes), "a buffer");
}

static void close_prompt(struct prompt *p)
{
    for (size_t i = 0; i < world.chunks; i++)
        tierce__buf_release(p->bufs[i]);
    sem_destroy(&p->done);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void tell_done(struct tierce__store_req *req)
{
    struct prompt *p = req->arg;
    if (atomic_fetch_sub(&p->left, 1) == 1)
        sem_post(&p->done);
}

/* Submits the first `count` requests, and blocks until all are answered. */
static void submit(struct engine *e, size_t count, unsigned limit_ms)
{
    struct prompt *p = &e->prompt;
    uint64_t deadline_ns = tierce__deadline_in_ms(limit_ms);
    TIERCE_ASSERT(count > 0 && count <= CHUNKS_MAX);
    atomic_store(&p->left, count);
    for (size_t i = 0; i < count; i++) {
        p->reqs[i].deadline_ns = deadline_ns;
        p->reqs[i].done = tell_done;
        p->reqs[i].arg = p;
        e->connector->ops->submit(e->connector, &p->reqs[i]);
    }
    while (sem_wait(&p->done) != 0)
        ;
}

static uint64_t put(struct engine *e)
{
    struct prompt *p = &e->prompt;
    uint64_t stored = 0;
    for (size_t i = 0; i < world.chunks; i++)
        p->reqs[i] = (struct tierce__store_req){.op = TIERCE__STORE_PUT,
                                                .urgency = TIERCE__CONNECTOR_STORE,
                                                .names = &p->names[i],
                                                .name_count = 1,
                                                .parent = i > 0 ? &p->keys[i - 1] : NULL,
                                                .buf = p->bufs[i],
                                                .length = world.chunk_bytes};
    submit(e, world.chunks, PUT_MS);
    for (size_t i = 0; i < world.chunks; i++)
        stored |= (uint64_t)(p->reqs[i].status == 0) << i;
    return stored;
}

static size_t look_up(struct engine *e, size_t count)
{
    struct prompt *p = &e->prompt;
    p->reqs[0] = (struct tierce__store_req){.op = TIERCE__STORE_LOOKUP,
                                            .urgency = TIERCE__CONNECTOR_PEEK,
                                            .names = p->names,
                                            .name_count = count};
    submit(e, 1, GET_MS);
    return p->reqs[0].found;
}

/* The first `count` chunks; reqs[i].status says which came. */
static void get(struct engine *e, size_t count)
{
    struct prompt *p = &e->prompt;
    for (size_t i = 0; i < count; i++)
        p->reqs[i] = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                                .urgency = TIERCE__CONNECTOR_FETCH,
                                                .names = &p->names[i],
                                                .name_count = 1,
                                                .buf = p->bufs[i],
                                                .length = world.chunk_bytes};
    submit(e, count, GET_MS);
}

static void verify(const struct engine *e, unsigned engine, unsigned prompt, size_t chunk)
{
    if (is_filled(e->prompt.bufs[chunk]->data, chunk_number(engine, prompt, chunk)))
        return;
    fprintf(stderr, "fleet_engines: engine %u read other bytes of chunk %zu of prompt %u/%u\n",
            e->number, chunk, engine, prompt);
    exit(3);
}

/* ---- engines --------------------------------------------------------------------------------- */

static void write_prompt(struct engine *e)
{
    unsigned number = atomic_load_explicit(&e->prompt_count, memory_order_relaxed);
    if (number == PROMPTS_MAX)
        return;
    name_chunks(&e->prompt, e->number, number);
    for (size_t i = 0; i < world.chunks; i++)
        fill(e->prompt.bufs[i]->data, chunk_number(e->number, number, i));
    uint64_t start = tierce__now_ns(), stored = put(e);
    printf("put %u %u %" PRIu64 " %" PRIu64 " %" PRIx64 "\n", e->number, number, start,
           tierce__now_ns() - start, stored);
    e->stored[number] = stored;
    /* Pairs with the acquire in read_prompt. */
    atomic_store_explicit(&e->prompt_count, number + 1, memory_order_release);
}

static void read_prompt(struct engine *e)
{
    const struct engine *writer = &engines[tierce__random_next(&e->random) % world.engine_count];
    unsigned count = atomic_load_explicit(&writer->prompt_count, memory_order_acquire);
    if (count == 0)
        return;
    unsigned number = (unsigned)(tierce__random_next(&e->random) % count);
    uint64_t missing = ~writer->stored[number];
    size_t known = missing != 0 ? (size_t)__builtin_ctzll(missing) : CHUNKS_MAX;
    if (known == 0)
        return;
    name_chunks(&e->prompt, writer->number, number);
    size_t came = 0;
    uint64_t start = tierce__now_ns();
    size_t found = look_up(e, known);
    if (found > 0)
        get(e, found);
    uint64_t end = tierce__now_ns();
    for (; came < found && e->prompt.reqs[came].status == 0; came++)
        verify(e, writer->number, number, came);
    printf("get %u %u %" PRIu64 " %" PRIu64 " %zu %zu\n", e->number, number, start, end - start,
           came, known);
}

/* Between requests an inference engine computes; without pauses the latencies would be those of
 * the queue of all engines. */
static void pause_for_a_while(struct engine *e)
{
    uint64_t ns =
        world.pause_ms > 0 ? tierce__random_next(&e->random) % (2000000ull * world.pause_ms) : 0;
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)},
        NULL);
}

static void *run_engine(void *arg)
{
    struct engine *e = arg;
    pause_for_a_while(e); /* so that they do not all begin at once */
    write_prompt(e);
    while (!atomic_load(&world.stops)) {
        pause_for_a_while(e);
        if (tierce__random_next(&e->random) % (READS_PER_WRITE + 1) == 0)
            write_prompt(e);
        else
            read_prompt(e);
    }
    return NULL;
}

static void open_engine(struct engine *e, unsigned number)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES] = "";
    e->number = number;
    e->random = number;
    open_prompt(&e->prompt);
    int rc = tierce__connector_open(
        &e->connector, world.url,
        &(struct tierce__connector_opts){.size = sizeof(struct tierce__connector_opts),
                                         .pool = world.pool,
                                         .namespaces = world.namespaces},
        why);
    if (rc < 0)
        fail(world.url, why);
}

static void close_engine(struct engine *e)
{
    if (!e->connector->ops->close(e->connector, tierce__deadline_in_ms(PUT_MS)))
        fail(world.url, "a call has not returned");
    close_prompt(&e->prompt);
}

/* ---- the two programs ------------------------------------------------------------------------ */

static void run(void)
{
    for (unsigned i = 0; i < world.engine_count; i++)
        open_engine(&engines[i], world.first + i);
    for (unsigned i = 0; i < world.engine_count; i++)
        must(-pthread_create(&engines[i].thread, NULL, run_engine, &engines[i]), "a thread");
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    atomic_store(&world.stops, true);
    for (unsigned i = 0; i < world.engine_count; i++)
        pthread_join(engines[i].thread, NULL);
    for (unsigned i = 0; i < world.engine_count; i++)
        close_engine(&engines[i]);
}

static void check(void)
{
    struct engine *e = &engines[0];
    unsigned engine, prompt;
    uint64_t stored;
    size_t count = 0;
    open_engine(e, 0);
    while (scanf("%u %u %" SCNx64, &engine, &prompt, &stored) == 3) {
        name_chunks(&e->prompt, engine, prompt);
        get(e, world.chunks);
        for (size_t i = 0; i < world.chunks; i++) {
            if ((stored >> i & 1) == 0)
                continue;
            count++;
            if (e->prompt.reqs[i].status == 0)
                verify(e, engine, prompt, i);
            else
                printf("lost %u %u %zu %s\n", engine, prompt, i,
                       tierce_strerror(e->prompt.reqs[i].status));
        }
    }
    printf("checked %zu\n", count);
    close_engine(e);
}

static void make_namespace(uint32_t cell_bytes)
{
    for (size_t i = 0; i < LAYERS; i++)
        world.cells[i] = cell_bytes;
    const struct tierce_namespace ns = {.size = sizeof(ns),
                                        .weights = "00",
                                        .model = "fleet_engines",
                                        .kv_dtype = "bfloat16",
                                        .quantization = "",
                                        .layout = "",
                                        .layer_count = LAYERS,
                                        .cell_bytes = world.cells,
                                        .block_tokens = BLOCK_TOKENS,
                                        .chunk_blocks = CHUNK_BLOCKS,
                                        .algo = TIERCE_CHAIN_SHA256};
    const struct tierce__geometry whole = geometry();
    char *text;
    must(tierce__chunk_extent(&world.extent, &whole), "the chunk's size");
    must(tierce_namespace_text(&text, &ns), "the namespace");
    tierce_namespace_digest(world.digest, text);
    must(tierce__namespaces_create(&world.namespaces), "the namespaces");
    must(tierce__namespaces_intern(world.namespaces, world.digest, text), "the namespace");
    tierce_free(text);
    world.chunk_bytes = world.extent.object_bytes;
}

static void open_world(void)
{
    uint64_t bytes = world.engine_count * world.chunks * world.chunk_bytes;
    must(tierce__pool_create(&world.pool,
                             &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                                         .cap_bytes = 2 * bytes + (8u << 20)}),
         "the pool");
    engines = calloc(world.engine_count, sizeof(*engines));
    must(engines != NULL ? 0 : -ENOMEM, "the engines");
}

static unsigned number_of(const char *text, unsigned min, unsigned max)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    if (end == text || *end != '\0' || number < min || number > max) {
        fprintf(stderr, "fleet_engines: %s: must be %u to %u\n", text, min, max);
        exit(2);
    }
    return (unsigned)number;
}

int main(int argc, char **argv)
{
    bool runs = argc == 8 && strcmp(argv[1], "run") == 0;
    if (!runs && !(argc == 5 && strcmp(argv[1], "check") == 0)) {
        fprintf(stderr, "usage: fleet_engines run URL FIRST COUNT CHUNKS KIB PAUSE_MS\n"
                        "       fleet_engines check URL CHUNKS KIB\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    world.url = argv[2];
    world.first = runs ? number_of(argv[3], 0, ENGINES_MAX) : 0;
    world.engine_count = runs ? number_of(argv[4], 1, ENGINES_MAX) : 1;
    world.chunks = number_of(argv[runs ? 5 : 3], 1, CHUNKS_MAX);
    world.pause_ms = runs ? number_of(argv[7], 0, 60000) : 0;
    make_namespace(number_of(argv[runs ? 6 : 4], 1, 4096) * 1024 / (LAYERS * CHUNK_BLOCKS));
    open_world();
    (runs ? run : check)();
    free(engines);
    tierce__pool_destroy(world.pool);
    tierce__namespaces_destroy(world.namespaces);
    return 0;
}
