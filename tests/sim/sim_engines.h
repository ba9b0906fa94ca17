/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_ENGINES_H
#define TIERCE_TESTS_SIM_ENGINES_H

#include <stdarg.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine_fixture.h"
#include "sim_disk.h"
#include "sim_remote.h"

/*
 * The engines of a run, and the model: which contents a block may have, and what must survive.
 *
 * Each store gives its blocks a version, as prompts that are computed twice have KV of the same
 * meaning and other bytes. A block that is loaded must be of one version in every layer, and of one
 * that was stored.
 */

enum {
    FAMILIES = 3, /* of prompts, with the same beginning */
    MEMBERS = 5,
    PROMPTS = FAMILIES * MEMBERS,
    SHARED = 6, /* blocks; a chunk has 4 */
    LONGEST = 22,
    VERSIONS = 60,
    ABORTED = 63, /* the version of stores that are aborted */
    LOOKUP_MS = 100,
    GRACE_MS = 20, /* of stores that owe an answer in part: TIERCE__ASKS_GRACE_NS */
    LOAD_MS = 2000,
    PIN_MS = 3000,
    WRITE_MS = 2000,
    CLOSE_MS = 90000,
    SLACK_MS = 5, /* of a call, beyond its limit */
    AHEAD_BYTES_PER_S = 65536,
    SIM_ENGINE_HOST = 2
};

#define REQUIRE(cond, ...)                                                                         \
    do {                                                                                           \
        if (!(cond))                                                                               \
            sim_fail(__FILE__, __LINE__, __VA_ARGS__);                                             \
    } while (0)

static uint64_t run_seed;
static bool prints; /* one seed was named: its log and its digest are printed */

#define SAY(...)                                                                                   \
    do {                                                                                           \
        if (prints) {                                                                              \
            fprintf(stderr, "%12.6f ", (double)sim_now_ns() / 1e9);                                \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
        }                                                                                          \
    } while (0)

__attribute__((noreturn, format(printf, 3, 4))) static void sim_fail(const char *file, int line,
                                                                     const char *format, ...)
{
    va_list list;
    fprintf(stderr, "seed %llu, %.6f s, %s:%d: ", (unsigned long long)run_seed,
            (double)sim_now_ns() / 1e9, file, line);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\n");
    abort();
}

/* The counters of the calls of one engine's life. */
struct sim_calls {
    uint64_t lookups, asked, loaded;
};

/* The test's knowledge of a disk. */
struct sim_kept {
    bool is_cleared;           /* its last life has ended so, durably */
    bool loses;                /* chunks may have left the disk, for its faults */
    uint64_t clears;           /* that have begun or ended */
    uint64_t absences;         /* of its node: that have begun or ended */
    bool is_clearing;          /* one whose effect is followed; see versions */
    uint64_t durable[PROMPTS]; /* leading blocks of the whole prompt */
};

struct sim_engine {
    struct tierce_engine *engine;
    struct tierce_view *view;
    struct tierce__vfs *vfs;
    char folder[64];
    size_t number;
    bool is_killed; /* its disk and its network are gone */
    struct sim_kept *kept;
    struct sim_kept own;
    struct sim_calls calls;
    uint64_t opened_ns;
};

/* Bits: versions of a block that stores of an engine have begun to write. */
struct versions {
    uint64_t ever;
    uint64_t may;   /* but for those that a clear has removed: what loads that begin now may find */
    uint64_t young; /* since the clear began that is being followed */
};

static struct {
    struct sim_engine engines[SIM_ENGINES];
    size_t count;
    bool has_remote;
    const char *urls[SIM_ENGINES]; /* of the remote stores */
    /* The engines are clients of a node. Each call may take that much longer than without. */
    bool has_node;
    uint64_t node_ms;
    /* Engines with remote stores or a node have all in common. Shared blocks are those of the first
     * prompt. */
    struct versions versions[SIM_ENGINES][PROMPTS][LONGEST];
    uint64_t next_version, clear_share;
    bool small_disk, flips;
    bool reads_ahead;              /* prefetch.ahead is on, and sessions say when they return */
    void (*disturb)(void);         /* the world, while sessions run */
    void (*unplug)(unsigned host); /* NULL: there are no sockets */
} sim;

static uint32_t prompt_seed(size_t prompt)
{
    return (uint32_t)(1000 * (prompt / FAMILIES + 1) + prompt % FAMILIES + 1);
}

static unsigned host_of(const struct sim_engine *e)
{
    return SIM_ENGINE_HOST + (unsigned)e->number;
}

static size_t shelf_of(const struct sim_engine *e)
{
    return sim.has_remote || sim.has_node ? 0 : e->number;
}

static struct versions *versions_of(const struct sim_engine *e, size_t prompt, size_t block)
{
    return &sim.versions[shelf_of(e)][block < SHARED ? prompt % FAMILIES : prompt][block];
}

static void versions_add(const struct sim_engine *e, size_t prompt, size_t block, uint8_t version)
{
    struct versions *v = versions_of(e, prompt, block);
    uint64_t bit = UINT64_C(1) << version;
    v->ever |= bit;
    v->may |= bit;
    v->young |= bit;
}

/* A clear of memory and disk begins: what was stored before is gone when it has ended, unless there
 * are remote stores. Nothing is noted while another one is being followed. */
static bool versions_clear_begin(struct sim_engine *e)
{
    if (sim.has_remote || e->kept->is_clearing)
        return false;
    e->kept->is_clearing = true;
    for (size_t p = 0; p < PROMPTS; p++)
        for (size_t b = 0; b < LONGEST; b++)
            sim.versions[shelf_of(e)][p][b].young = 0;
    return true;
}

static void versions_clear_end(struct sim_engine *e, bool has_cleared)
{
    e->kept->is_clearing = false;
    for (size_t p = 0; p < PROMPTS && has_cleared; p++)
        for (size_t b = 0; b < LONGEST; b++)
            sim.versions[shelf_of(e)][p][b].may = sim.versions[shelf_of(e)][p][b].young;
}

/* What was cleared may come back with the next life, unless a flush has followed. */
static void versions_return(struct sim_engine *e)
{
    for (size_t p = 0; p < PROMPTS; p++)
        for (size_t b = 0; b < LONGEST; b++) {
            struct versions *v = &sim.versions[shelf_of(e)][p][b];
            v->may = v->ever = e->kept->is_cleared && !sim.has_remote ? 0 : v->ever;
        }
}

static struct tierce_chain *sim_chain(const struct sim_engine *e, size_t prompt, size_t blocks)
{
    struct fixture fx = {.view = e->view};
    return fx_chain(&fx, prompt_seed(prompt), blocks, SHARED);
}

/* ---- paged memory ---------------------------------------------------------------------------- */

enum { PAGED_BLOCKS = 32, STRIDE = 1024 };

struct sim_memory {
    struct tierce_paged_layer layers[FX_LAYERS];
    struct tierce_paged paged;
    int32_t ids[LONGEST];
};

static void memory_begin(struct sim_memory *m)
{
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        m->layers[l] = (struct tierce_paged_layer){.base = malloc(PAGED_BLOCKS * STRIDE),
                                                   .block_stride = STRIDE,
                                                   .block_bytes = fx_cells[l]};
    m->paged = (struct tierce_paged){sizeof(m->paged), m->layers, FX_LAYERS, PAGED_BLOCKS,
                                     TIERCE_DEVICE_HOST};
    for (int32_t i = 0; i < LONGEST; i++)
        m->ids[i] = (i * 7 + 3) % PAGED_BLOCKS;
}

static void memory_end(struct sim_memory *m)
{
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        free(m->layers[l].base);
}

static uint8_t *cell_of(const struct sim_memory *m, size_t block, uint32_t layer)
{
    return (uint8_t *)m->layers[layer].base + (size_t)m->ids[block] * STRIDE;
}

static void memory_wipe(const struct sim_memory *m)
{
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        memset(m->layers[l].base, 0x5a, PAGED_BLOCKS * STRIDE);
}

static void memory_fill(const struct sim_memory *m, const struct tierce_chain *chain, size_t blocks,
                        uint8_t version)
{
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        for (size_t b = 0; b < blocks; b++)
            memset(cell_of(m, b, l), fx_byte(chain, b, l) ^ version, fx_cells[l]);
}

/* Whether a block holds a version that it may have, whole, and nothing behind its cells. */
static void memory_check(const struct sim_memory *m, const struct tierce_chain *chain,
                         const struct versions *versions, bool was_cleared, size_t block)
{
    uint8_t version = cell_of(m, block, 0)[0] ^ fx_byte(chain, block, 0);
    uint64_t may = was_cleared ? versions->ever : versions->may;
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        const uint8_t *cell = cell_of(m, block, l);
        bool is_whole = (cell[0] ^ fx_byte(chain, block, l)) == version &&
                        memcmp(cell, cell + 1, fx_cells[l] - 1) == 0;
        REQUIRE(is_whole, "block %zu, layer %u: wrong bytes", block, l);
        REQUIRE(cell[fx_cells[l]] == 0x5a, "block %zu: a byte behind the cell", block);
    }
    REQUIRE(version < 64 && (may >> version & 1) != 0, "block %zu: version %u is %s", block,
            version,
            version < 64 && (versions->ever >> version & 1) != 0 ? "cleared" : "never stored");
}

/* ---- engines --------------------------------------------------------------------------------- */

static inline void engine_open(struct sim_engine *e)
{
    static const char *const codecs[] = {"none", "lossless"};
    static const char *const policies[] = {"lru", "s3fifo", "sieve", "hazard"};
    const char *const sets[] = {"memory.size",
                                "1MiB",
                                "memory.policy",
                                policies[sim_below(4)],
                                "memory.coded_size",
                                sim_below(3) == 0 ? "1MiB" : "0",
                                "disk.size",
                                sim.small_disk ? "1MiB" : "16MiB",
                                "disk.policy",
                                policies[sim_below(4)],
                                "disk.codec",
                                codecs[sim_below(2)],
                                "disk.direct",
                                "false",
                                "disk.flush_interval",
                                sim_below(2) == 0 ? "10ms" : "1s",
                                "disk.queue",
                                sim_below(4) == 0 ? "64KiB" : "0",
                                "remote.urls",
                                sim.has_remote ? sim.urls[e->number] : "",
                                "remote.codec",
                                codecs[sim_below(2)],
                                "control.socket",
                                "",
                                "prefetch.ahead",
                                sim.reads_ahead ? "64KiB" : "0",
                                "copy.threads",
                                sim_below(2) == 0 ? "1" : "2",
                                "timeout.lookup",
                                "100ms",
                                "timeout.load",
                                "2s",
                                "timeout.pin",
                                "3s",
                                "timeout.write",
                                "2s",
                                "timeout.close",
                                "90s",
                                "breaker.retry",
                                sim_below(2) == 0 ? "200ms" : "5s",
                                NULL};
    struct tierce_config *config = fx_config(e->folder, sets);
    SAY("engine %zu opens", e->number);
    sim_enter_host(host_of(e));
    e->opened_ns = sim_now_ns();
    e->engine = fx_engine(config);
    tierce_config_destroy(config);
    e->vfs = sim_disk_take();
    REQUIRE(e->vfs != NULL, "there is no disk");
    struct tierce_namespace ns = fx_namespace();
    int rc = tierce_view_open(&e->view, e->engine, &ns, &(struct tierce_shard){0, 1, 0, 1});
    REQUIRE(rc == 0, "view: %d", rc);
    sim_enter_host(0);
    e->is_killed = sim_net.is_gone[e->number] = false;
    e->calls = (struct sim_calls){0};
    versions_return(e);
}

static struct tierce_engine_stats engine_stats(const struct sim_engine *e)
{
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    tierce_engine_stats(e->engine, &stats);
    return stats;
}

/* The power fails: its disk keeps part of what was not synced, and nobody hears of it again. */
static inline void engine_kill(struct sim_engine *e)
{
    SAY("engine %zu loses power", e->number);
    e->is_killed = sim_net.is_gone[e->number] = true;
    if (sim.unplug != NULL)
        sim.unplug(host_of(e));
    sim_disk_cut(e->vfs);
}

static inline void engine_close(struct sim_engine *e)
{
    uint64_t began = sim_now_ns(), stolen = sim_stolen_ns();
    if (!e->is_killed)
        sim_disk_end_faults(e->vfs);
    SAY("engine %zu closes", e->number);
    tierce_view_close(e->view);
    tierce_engine_close(e->engine);
    uint64_t took = sim_now_ns() - began - (sim_stolen_ns() - stolen);
    REQUIRE(took <= (CLOSE_MS + 2000) * TIERCE__MS_NS, "a close took %.3f s", (double)took / 1e9);
}

#endif
