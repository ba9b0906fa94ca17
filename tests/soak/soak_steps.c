/* SPDX-License-Identifier: Apache-2.0 */
#include "soak.h"

#include <pthread.h>

/* ---- bytes ----------------------------------------------------------------------------------- */

static const uint32_t cells[NAMESPACES][LAYERS_MAX] = {
    {512, 768, 512, 1000}, {512, 768, 512, 1000}, {256, 1000, 640}};
static const uint32_t layer_counts[NAMESPACES] = {4, 4, 3};
static const uint32_t chunk_blocks[NAMESPACES] = {4, 4, 8};

struct tierce_namespace soak_namespace(unsigned ns)
{
    static const char *const weights[NAMESPACES] = {"00112233", "44556677", "00112233"};
    return (struct tierce_namespace){.size = sizeof(struct tierce_namespace),
                                     .weights = weights[ns],
                                     .model = "{\"model_type\":\"test\"}",
                                     .kv_dtype = "float32",
                                     .layout = "test/1",
                                     .layer_count = layer_counts[ns],
                                     .cell_bytes = cells[ns],
                                     .block_tokens = 4,
                                     .chunk_blocks = chunk_blocks[ns],
                                     .algo = TIERCE_CHAIN_SHA256};
}

struct tierce_engine_stats soak_stats(void)
{
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    tierce_engine_stats(soak.engine, &stats);
    return stats;
}

_Noreturn void soak_fail(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: not so: %s (TIERCE_TEST_SEED=%llu, round %u%s)\n", file, line,
            condition, (unsigned long long)soak.seed, soak.round, soak.spoils ? ", spoils" : "");
    abort();
}

/* A chain in one place: what its blocks' bytes follow from. */
struct place {
    const struct tierce_chain *chain;
    unsigned ns, shard;
};

static uint8_t *cell_at(const struct worker *w, uint32_t layer, int32_t id)
{
    return w->memory[layer] + (size_t)id * BLOCK_STRIDE;
}

static uint64_t first_word(const struct place *at, size_t block, uint32_t layer)
{
    uint64_t word;
    memcpy(&word, tierce_chain_hash(at->chain, block) + 8, sizeof(word));
    return (word ^ ((uint64_t)at->ns << 8 | at->shard << 4 | layer)) * 0x9e3779b97f4a7c15ULL;
}

static void fill(struct worker *w, const struct place *at, size_t to, const int32_t *ids)
{
    for (uint32_t layer = 0; layer < layer_counts[at->ns]; layer++) {
        for (size_t b = 0; b < to; b++) {
            uint64_t word = first_word(at, b, layer);
            uint8_t *cell = cell_at(w, layer, ids[b]);
            for (uint32_t i = 0; i < cells[at->ns][layer]; i += 8, word += 0x1000193)
                memcpy(cell + i, &word, 8);
        }
    }
}

static void wipe(struct worker *w)
{
    for (uint32_t layer = 0; layer < LAYERS_MAX; layer++)
        memset(w->memory[layer], 0x5a, (size_t)PAGED_BLOCKS * BLOCK_STRIDE);
}

static bool untouched(const uint8_t *bytes, size_t count)
{
    return count == 0 || (bytes[0] == 0x5a && memcmp(bytes, bytes + 1, count - 1) == 0);
}

static bool is_right(const struct worker *w, const struct place *at, size_t block, int32_t id)
{
    for (uint32_t layer = 0; layer < layer_counts[at->ns]; layer++) {
        uint64_t word = first_word(at, block, layer);
        const uint8_t *cell = cell_at(w, layer, id);
        for (uint32_t i = 0; i < cells[at->ns][layer]; i += 8, word += 0x1000193) {
            if (memcmp(cell + i, &word, 8) != 0)
                return false;
        }
    }
    return true;
}

/* Nothing was written but the cells of blocks [from, to). */
static void check_outside(const struct worker *w, unsigned ns, size_t from, size_t to,
                          const int32_t *ids)
{
    bool wanted[PAGED_BLOCKS] = {false};
    for (size_t b = from; b < to; b++)
        wanted[ids[b]] = true;
    for (uint32_t layer = 0; layer < LAYERS_MAX; layer++) {
        for (int32_t id = 0; id < PAGED_BLOCKS; id++) {
            size_t used = wanted[id] && layer < layer_counts[ns] ? cells[ns][layer] : 0;
            MUST(untouched(cell_at(w, layer, id) + used, BLOCK_STRIDE - used));
        }
    }
}

/* ---- tools ----------------------------------------------------------------------------------- */

static uint32_t below(struct worker *w, uint32_t bound)
{
    return test_random_below(&w->random, bound);
}

static bool one_in(struct worker *w, uint32_t n)
{
    return below(w, n) == 0;
}

/* A call that may take `limit_ms` was begun then. */
static void check_quick(uint64_t begun_ns, uint64_t limit_ms)
{
    MUST(tierce__now_ns() - begun_ns < (limit_ms + SLACK_MS) * TIERCE__MS_NS);
}

static void draw_ids(struct worker *w, int32_t ids[PAGED_BLOCKS])
{
    for (int32_t i = 0; i < PAGED_BLOCKS; i++) {
        uint32_t j = below(w, (uint32_t)i + 1);
        ids[i] = ids[j];
        ids[j] = i;
    }
}

/* A view and a prompt, where its blocks lie in the engine's memory, and how many are meant. */
struct target {
    struct tierce_view *view;
    unsigned prompt;
    struct place at;
    uint64_t to;
    int32_t ids[PAGED_BLOCKS];
};

static struct target target_of(struct worker *w, unsigned ns, unsigned prompt)
{
    struct target t = {.view = soak.views[ns],
                       .prompt = prompt,
                       .at = {.chain = w->chains[ns][prompt], .ns = ns},
                       .to = soak.prompts[prompt].blocks};
    draw_ids(w, t.ids);
    return t;
}

static struct target draw_target(struct worker *w)
{
    struct target t = target_of(w, below(w, NAMESPACES), below(w, PROMPTS));
    if (one_in(w, 2))
        t.to = 1 + below(w, (uint32_t)t.to);
    return t;
}

static struct tierce_transfer_opts transfer_of(struct worker *w, const struct target *t)
{
    return (struct tierce_transfer_opts){.size = sizeof(struct tierce_transfer_opts),
                                         .chain = t->at.chain,
                                         .to_block = t->to,
                                         .paged = &w->paged[t->at.ns],
                                         .block_ids = t->ids};
}

/* Layers until one is omitted, or all. */
static uint32_t draw_layers(struct worker *w, unsigned ns)
{
    return one_in(w, 3) ? below(w, layer_counts[ns]) : layer_counts[ns];
}

/* ---- store ----------------------------------------------------------------------------------- */

static void store_in_layers(struct worker *w, const struct target *t,
                            const struct tierce_transfer_opts *what)
{
    struct tierce_store *store;
    MUST(tierce_store_begin(&store, t->view, what) == 0);
    if (store == NULL)
        return;
    uint32_t layers = draw_layers(w, t->at.ns);
    for (uint32_t layer = 0; layer < layers; layer++)
        MUST(tierce_store_layer(store, layer) == 0);
    if (one_in(w, 4)) {
        tierce_store_abort(store);
        return;
    }
    int64_t stored = tierce_store_end(store);
    MUST(stored >= 0 && stored <= (int64_t)t->to);
    MUST(layers == layer_counts[t->at.ns] || stored == 0);
}

static void store_target(struct worker *w, const struct target *t)
{
    struct tierce_transfer_opts what = transfer_of(w, t);
    what.tail = one_in(w, 2);
    what.session = one_in(w, 2) ? ++w->sessions : 0;
    wipe(w);
    fill(w, &t->at, t->to, t->ids);
    uint64_t begun_ns = tierce__now_ns();
    if (one_in(w, 2)) {
        store_in_layers(w, t, &what);
    } else {
        int64_t stored = tierce_store(t->view, &what);
        MUST(stored >= 0 && stored <= (int64_t)t->to);
    }
    check_quick(begun_ns, 20);
    for (size_t b = 0; b < t->to; b++)
        MUST(is_right(w, &t->at, b, t->ids[b]));
}

static void step_store(struct worker *w)
{
    struct target t = draw_target(w);
    store_target(w, &t);
}

/* ---- lookup ---------------------------------------------------------------------------------- */

static struct hold *free_hold(struct worker *w)
{
    struct hold *hold = &w->holds[below(w, HOLDS)];
    if (hold->session != 0)
        tierce_unpin(soak.views[hold->ns], hold->session);
    *hold = (struct hold){0};
    return hold;
}

static void step_lookup(struct worker *w)
{
    struct target t = draw_target(w);
    bool pin = one_in(w, 2);
    struct tierce_lookup_opts opts = {.size = sizeof(opts),
                                      .flags = (pin ? TIERCE_LOOKUP_PIN : 0) |
                                               (one_in(w, 8) ? TIERCE_LOOKUP_MEMORY_ONLY : 0),
                                      .from_block = one_in(w, 2) ? below(w, (uint32_t)t.to) : 0};
    struct hold *hold = pin ? free_hold(w) : NULL;
    if (pin)
        opts.session = ++w->sessions;
    struct tierce_found found;
    unsigned clears = atomic_load(&soak.clears);
    uint64_t begun_ns = tierce__now_ns();
    MUST(tierce_lookup(t.view, t.at.chain, t.to, &opts, &found) == 0);
    check_quick(begun_ns, 40);
    MUST(found.blocks <= t.to);
    MUST(found.memory_blocks <= found.blocks);
    if (pin)
        *hold = (struct hold){.session = opts.session,
                              .ns = t.at.ns,
                              .prompt = t.prompt,
                              .from = opts.from_block,
                              .memory_blocks = found.memory_blocks,
                              .at_ns = begun_ns,
                              .clears = clears};
}

/* ---- load ------------------------------------------------------------------------------------ */

static int64_t run_load(struct worker *w, const struct target *t,
                        const struct tierce_transfer_opts *what, uint8_t *origins)
{
    if (one_in(w, 2))
        return tierce_load(t->view, what, origins);
    struct tierce_load *load;
    MUST(tierce_load_begin(&load, t->view, what) == 0);
    uint32_t layers = draw_layers(w, t->at.ns);
    for (uint32_t layer = 0; layer < layers; layer++)
        MUST(tierce_load_layer(load, layer) == 0);
    if (layers == layer_counts[t->at.ns])
        return tierce_load_end(load, origins);
    tierce_load_abort(load);
    return -1;
}

/* The blocks that a load reported are right, and it wrote to no others. -1: it was aborted. */
static void check_load(struct worker *w, const struct target *t, uint64_t from, int64_t loaded,
                       const uint8_t *origins)
{
    check_outside(w, t->at.ns, from, t->to, t->ids);
    if (loaded < 0)
        return;
    int64_t count = 0;
    for (uint64_t b = from; b < t->to; b++) {
        if (origins[b - from] == TIERCE_ORIGIN_FAILED)
            continue;
        MUST(origins[b - from] <= TIERCE_ORIGIN_DISK);
        MUST(is_right(w, &t->at, b, t->ids[b]));
        count++;
    }
    MUST(count == loaded);
}

static void step_load(struct worker *w)
{
    struct target t = draw_target(w);
    uint8_t origins[BLOCKS_MAX];
    struct tierce_transfer_opts what = transfer_of(w, &t);
    what.from_block = one_in(w, 2) ? below(w, (uint32_t)t.to) : 0;
    what.timeout_ms = one_in(w, 3) ? 1 + below(w, 30) : 500;
    what.session = one_in(w, 2) ? ++w->sessions : 0;
    what.tiers = one_in(w, 6) ? 1u << (1 + below(w, 2)) : 0;
    wipe(w);
    uint64_t begun_ns = tierce__now_ns();
    int64_t loaded = run_load(w, &t, &what, origins);
    check_quick(begun_ns, what.timeout_ms + 40);
    check_load(w, &t, what.from_block, loaded, origins);
}

/* Chunks pinned by a lookup are loaded from memory, unless the pins expired or a clear
 * intervened. */
static void load_held(struct worker *w, struct hold *hold)
{
    struct target t = target_of(w, hold->ns, hold->prompt);
    uint8_t origins[BLOCKS_MAX];
    t.to = hold->memory_blocks;
    struct tierce_transfer_opts what = transfer_of(w, &t);
    what.from_block = hold->from < t.to ? hold->from : t.to;
    what.session = hold->session;
    wipe(w);
    int64_t loaded = tierce_load(t.view, &what, origins);
    check_load(w, &t, what.from_block, loaded, origins);
    bool in_time = tierce__now_ns() < hold->at_ns + PIN_MS / 2 * TIERCE__MS_NS;
    bool cleared = hold->clears % 2 != 0 || hold->clears != atomic_load(&soak.clears);
    if (in_time && !cleared && !soak.tainted) {
        /* Of the last chunk, what another one shares with it may have been pinned; if the chunk
         * itself has come to the disk since, it is read from there. */
        uint64_t whole = t.to - t.to % chunk_blocks[t.at.ns];
        for (uint64_t b = what.from_block; b < whole; b++)
            MUST(origins[b - what.from_block] == TIERCE_ORIGIN_MEMORY);
    }
    *hold = (struct hold){0};
}

static void step_load_held(struct worker *w)
{
    struct hold *hold = &w->holds[below(w, HOLDS)];
    if (hold->session == 0)
        step_load(w);
    else
        load_held(w, hold);
}

int64_t worker_load_all(struct worker *w, unsigned ns, unsigned prompt, uint64_t blocks)
{
    struct target t = target_of(w, ns, prompt);
    uint8_t origins[BLOCKS_MAX];
    t.to = blocks;
    struct tierce_transfer_opts what = transfer_of(w, &t);
    what.timeout_ms = 20000;
    wipe(w);
    int64_t loaded = tierce_load(t.view, &what, origins);
    check_load(w, &t, 0, loaded, origins);
    return loaded;
}

void worker_ask(struct worker *w, unsigned ns, unsigned prompt)
{
    struct target t = target_of(w, ns, prompt);
    struct tierce_found found;
    struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    MUST(tierce_lookup(t.view, t.at.chain, t.to, &opts, &found) == 0);
    store_target(w, &t);
}

/* ---- prefetch -------------------------------------------------------------------------------- */

static void note_done(void *arg, const struct tierce_prefetch_result *result)
{
    (void)arg;
    MUST(result->final);
    MUST(result->memory_blocks <= result->blocks);
    MUST(atomic_fetch_sub(&soak.prefetches, 1) > 0);
}

static void begin_prefetch(struct worker *w, struct flight *flight)
{
    struct target t = draw_target(w);
    *flight = (struct flight){.ns = t.at.ns,
                              .prompt = t.prompt,
                              .session = ++w->sessions,
                              .from = one_in(w, 2) ? below(w, (uint32_t)t.to) : 0,
                              .to = t.to,
                              .clears = atomic_load(&soak.clears),
                              .pin = one_in(w, 2)};
    uint32_t timeout_ms = one_in(w, 3) ? 1 + below(w, 20) : 300;
    struct tierce_prefetch_opts opts = {.size = sizeof(opts),
                                        .flags = flight->pin ? TIERCE_PREFETCH_PIN : 0,
                                        .session = flight->session,
                                        .from_block = flight->from,
                                        .timeout_ms = timeout_ms,
                                        .on_done = note_done};
    flight->begun_ns = tierce__now_ns();
    flight->give_up_ns = tierce__deadline_in_ms(timeout_ms + SLACK_MS);
    atomic_fetch_add(&soak.prefetches, 1);
    MUST(tierce_prefetch_begin(&flight->prefetch, t.view, t.at.chain, t.to, &opts) == 0);
}

/* Waits or cancels; chunks reported as held are held. */
static void end_prefetch(struct worker *w, struct flight *flight)
{
    struct tierce_prefetch_result result = {.size = sizeof(result)};
    if (!one_in(w, 3))
        MUST(tierce_prefetch_wait(flight->prefetch, 2 * SLACK_MS) == 0);
    uint64_t now = tierce__now_ns();
    bool final = tierce_prefetch_poll(flight->prefetch, &result);
    MUST(final || now < flight->give_up_ns);
    MUST(result.memory_blocks <= result.blocks && result.blocks <= flight->to);
    tierce_prefetch_end(flight->prefetch);
    if (flight->pin && final && one_in(w, 2)) {
        struct hold hold = {.session = flight->session,
                            .ns = flight->ns,
                            .prompt = flight->prompt,
                            .from = flight->from,
                            .memory_blocks = result.memory_blocks,
                            .at_ns = flight->begun_ns,
                            .clears = flight->clears};
        load_held(w, &hold);
    }
    tierce_unpin(soak.views[flight->ns], flight->session);
    *flight = (struct flight){0};
}

static void step_prefetch(struct worker *w)
{
    struct flight *flight = &w->flights[below(w, FLIGHTS)];
    if (flight->prefetch == NULL) {
        begin_prefetch(w, flight);
    } else if (one_in(w, 6)) {
        *flight = (struct flight){0}; /* forgotten: nobody polls, ends or unpins it */
    } else if (one_in(w, 3)) {
        struct tierce_prefetch_result result = {.size = sizeof(result)};
        (void)tierce_prefetch_poll(flight->prefetch, &result);
        MUST(result.memory_blocks <= result.blocks && result.blocks <= flight->to);
    } else {
        end_prefetch(w, flight);
    }
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* A view of another shard, opened and closed beside the others. */
static void step_view(struct worker *w)
{
    struct target t = draw_target(w);
    struct tierce_namespace ns = soak_namespace(t.at.ns);
    MUST(tierce_view_open(&t.view, soak.engine, &ns, &(struct tierce_shard){1, 2, 0, 1}) == 0);
    t.at.shard = 1;
    if (one_in(w, 2))
        store_target(w, &t);
    uint8_t origins[BLOCKS_MAX];
    struct tierce_transfer_opts what = transfer_of(w, &t);
    what.timeout_ms = 500;
    wipe(w);
    int64_t loaded = tierce_load(t.view, &what, origins);
    check_load(w, &t, 0, loaded, origins);
    if (one_in(w, 2)) {
        struct tierce_prefetch *forgotten;
        struct tierce_prefetch_opts opts = {.size = sizeof(opts),
                                            .flags = TIERCE_PREFETCH_PIN,
                                            .session = ++w->sessions,
                                            .on_done = note_done};
        atomic_fetch_add(&soak.prefetches, 1);
        MUST(tierce_prefetch_begin(&forgotten, t.view, t.at.chain, t.to, &opts) == 0);
    }
    tierce_view_close(t.view);
}

/* Holds what memory there is to be had, as loads do. Stores wait for it, or are skipped. */
static void step_squeeze(struct worker *w)
{
    struct tierce__buf *bufs[16];
    unsigned count = 0;
    while (count < 16 && (bufs[count] = tierce__storage_alloc(soak.engine, 65536)) != NULL)
        count++;
    if (one_in(w, 2))
        step_store(w);
    else
        usleep(below(w, 4000));
    while (count > 0)
        tierce__buf_release(bufs[--count]);
}

static pthread_mutex_t clear_mutex = PTHREAD_MUTEX_INITIALIZER;

/* Around what may take chunks that somebody has pinned out of memory's index. */
static void begin_clear(void)
{
    pthread_mutex_lock(&clear_mutex);
    atomic_fetch_add(&soak.clears, 1);
}

/* In a clear that takes from disk; of one namespace, or (NAMESPACES) of all. */
static void forget_facts(unsigned ns)
{
    for (unsigned n = 0; soak.facts != NULL && n < NAMESPACES; n++) {
        if (n == ns || ns == NAMESPACES)
            memset(soak.facts[n], 0, sizeof(soak.facts[n]));
    }
}

static void end_clear(void)
{
    atomic_fetch_add(&soak.clears, 1);
    pthread_mutex_unlock(&clear_mutex);
}

uint64_t soak_durable(const struct worker *w, unsigned ns, unsigned prompt)
{
    uint64_t blocks;
    MUST(tierce_durable(soak.views[ns], w->chains[ns][prompt], soak.prompts[prompt].blocks,
                        &blocks) == 0);
    return blocks - blocks % soak.views[ns]->chunk_blocks;
}

void note_facts(struct worker *w, unsigned ns)
{
    pthread_mutex_lock(&clear_mutex);
    for (unsigned p = 0; p < PROMPTS; p++) {
        uint64_t blocks = soak_durable(w, ns, p);
        if (blocks > soak.facts[ns][p])
            soak.facts[ns][p] = blocks;
    }
    pthread_mutex_unlock(&clear_mutex);
}

static void step_flush(struct worker *w)
{
    if (soak.facts != NULL && !one_in(w, 8))
        return; /* or next to nothing would be undurable when this process is killed */
    uint32_t timeout_ms = 1 + below(w, 200);
    uint64_t begun_ns = tierce__now_ns();
    (void)!tierce_engine_flush(soak.engine, timeout_ms);
    check_quick(begun_ns, timeout_ms);
    if (soak.facts != NULL)
        note_facts(w, below(w, NAMESPACES));
}

static void step_ask(struct worker *w)
{
    struct target t = draw_target(w);
    struct tierce_miss miss = {.size = sizeof(miss)};
    uint64_t blocks, from = below(w, (uint32_t)t.to), begun_ns = tierce__now_ns();
    MUST(tierce_why(t.view, t.at.chain, from, t.to, &miss) == 0);
    MUST(miss.reason < TIERCE_MISS_COUNT);
    MUST(tierce_durable(t.view, t.at.chain, t.to, &blocks) == 0);
    check_quick(begun_ns, 80);
    MUST(blocks <= t.to);
    if (soak.facts != NULL)
        note_facts(w, t.at.ns);
    if (one_in(w, 4))
        tierce_view_computed(t.view, 1 + below(w, 1000), 1 + below(w, 100000000));
}

/* The engine is the process's: it opens once. */
static void step_open(struct worker *w)
{
    (void)w;
    struct tierce_engine *again;
    char why[TIERCE_CONFIG_ERROR_BYTES];
    MUST(tierce_engine_open(&again, soak.config, why) == 0);
    MUST(again == soak.engine);
    tierce_engine_close(again);
}

static void step_evict(struct worker *w)
{
    struct tierce__tier *memory = soak.engine->levels[0].tier;
    memory->ops->evict(memory, 1 + below(w, 1u << 18));
}

static void step_clear(struct worker *w)
{
    static const uint32_t tiers[] = {0, 1u << TIERCE_ORIGIN_MEMORY, 1u << TIERCE_ORIGIN_DISK};
    if (!one_in(w, 40))
        return;
    unsigned ns = one_in(w, 2) ? below(w, NAMESPACES) : NAMESPACES;
    const struct tierce_view *view = ns < NAMESPACES ? soak.views[ns] : NULL;
    uint32_t from = tiers[below(w, 3)];
    begin_clear();
    if (from != 1u << TIERCE_ORIGIN_MEMORY)
        forget_facts(ns);
    uint64_t begun_ns = tierce__now_ns();
    (void)!tierce_engine_clear(soak.engine, from, view);
    check_quick(begun_ns, 2000);
    end_clear();
}

static void step_copy(struct worker *w)
{
    struct target t = draw_target(w);
    bool down = one_in(w, 2), move = one_in(w, 4);
    struct tierce_copy_opts opts = {.size = sizeof(opts),
                                    .from = down ? TIERCE_ORIGIN_MEMORY : TIERCE_ORIGIN_DISK,
                                    .to = down ? TIERCE_ORIGIN_DISK : TIERCE_ORIGIN_MEMORY,
                                    .move = move,
                                    .timeout_ms = 1 + below(w, 100)};
    if (move)
        begin_clear();
    if (move && !down)
        forget_facts(t.at.ns);
    uint64_t begun_ns = tierce__now_ns();
    int64_t blocks = tierce_copy(t.view, t.at.chain, t.to, &opts);
    check_quick(begun_ns, opts.timeout_ms + 40);
    if (move)
        end_clear();
    MUST(blocks >= 0 && blocks <= (int64_t)t.to);
}

static void step_mode(struct worker *w)
{
    static const enum tierce_mode modes[] = {TIERCE_MODE_FREEZE, TIERCE_MODE_BYPASS};
    enum tierce_mode mode = one_in(w, 20) ? modes[below(w, 2)] : TIERCE_MODE_NORMAL;
    MUST(tierce_engine_set_mode(soak.engine, mode) == 0);
}

/* A PUT never hangs here: it has no deadline, and a queue of its own in front of the device. */
static const struct {
    enum tierce__store_op op;
    struct tierce__fault_rule rule;
    bool spoils;
} faults[] = {
    {TIERCE__STORE_LOOKUP, {.kind = TIERCE__FAULT_ERROR, .status = -EIO}, false},
    {TIERCE__STORE_LOOKUP, {.kind = TIERCE__FAULT_DELAY, .delay_ms = 40}, false},
    {TIERCE__STORE_LOOKUP, {.kind = TIERCE__FAULT_HANG}, false},
    {TIERCE__STORE_GET, {.kind = TIERCE__FAULT_ERROR, .status = -EIO}, false},
    {TIERCE__STORE_GET, {.kind = TIERCE__FAULT_DELAY, .delay_ms = 60}, false},
    {TIERCE__STORE_GET, {.kind = TIERCE__FAULT_HANG}, false},
    {TIERCE__STORE_GET, {.kind = TIERCE__FAULT_SHORT, .status = -EIO}, false},
    {TIERCE__STORE_GET, {.kind = TIERCE__FAULT_SHORT}, true},
    {TIERCE__STORE_GET, {.kind = TIERCE__FAULT_FLIP}, true},
    {TIERCE__STORE_PUT, {.kind = TIERCE__FAULT_ERROR, .status = -ENOSPC}, false},
    {TIERCE__STORE_PUT, {.kind = TIERCE__FAULT_DELAY, .delay_ms = 60}, false},
    {TIERCE__STORE_PUT, {.kind = TIERCE__FAULT_FLIP}, true},
    {TIERCE__STORE_DELETE, {.kind = TIERCE__FAULT_ERROR, .status = -EIO}, false},
    {TIERCE__STORE_FLUSH, {.kind = TIERCE__FAULT_ERROR, .status = -EIO}, false},
    {TIERCE__STORE_FLUSH, {.kind = TIERCE__FAULT_HANG}, false},
    {TIERCE__STORE_SIBLINGS, {.kind = TIERCE__FAULT_ERROR, .status = -EIO}, false},
    {TIERCE__STORE_SIBLINGS, {.kind = TIERCE__FAULT_HANG}, false},
};

static void step_fault(struct worker *w)
{
    size_t i = below(w, sizeof(faults) / sizeof(faults[0]));
    struct tierce__fault_rule rule = faults[i].rule;
    rule.seed = test_random_u64(&w->random) | 1;
    rule.per_mille = one_in(w, 8) ? 1000 : 1 + below(w, 100);
    rule.times = 1 + below(w, 100);
    if (!faults[i].spoils || soak.spoils)
        tierce__fault_set(soak.disk, faults[i].op, &rule);
}

/* ---- a worker -------------------------------------------------------------------------------- */

/* Levels are read one after the other while others change them; caps hold for each by itself. */
static void check_caps(void)
{
    struct tierce_engine_stats s = soak_stats();
    const struct tierce__settings *settings = &soak.engine->settings;
    MUST(s.memory_bytes_now >= 0 && s.memory_bytes_now <= s.memory_cap_bytes);
    MUST(s.memory_cap_bytes == (int64_t)settings->memory_bytes);
    MUST(s.disk_bytes_now >= 0 && s.disk_bytes_now <= s.disk_cap_bytes);
    MUST(s.pinned_bytes_now >= 0 && s.pinned_bytes_now <= (int64_t)settings->pin_bytes_max);
    MUST(s.prefetch_bytes_now >= 0 &&
         s.prefetch_bytes_now <= (int64_t)settings->prefetch_bytes_max);
    MUST(s.sessions_now >= 0);
    MUST(s.disk_queued_bytes_now >= 0);
}

void worker_step(struct worker *w)
{
    static void (*const steps[])(struct worker *) = {
        step_store,     step_store,     step_store,    step_lookup,   step_lookup,
        step_load_held, step_load_held, step_load,     step_load,     step_load,
        step_prefetch,  step_prefetch,  step_prefetch, step_prefetch, step_view,
        step_flush,     step_ask,       step_open,     step_evict,    step_clear,
        step_fault,     step_fault,     step_copy,     step_mode,     step_squeeze};
    uint32_t which = below(w, sizeof(steps) / sizeof(steps[0]));
    steps[which](w);
    check_caps();
}

static struct tierce_chain *make_chain(unsigned ns, unsigned p)
{
    struct tierce_chain *chain;
    MUST(tierce_view_chain(&chain, soak.views[ns], NULL) == 0);
    for (size_t i = 0; i < soak.prompts[p].blocks * 4; i++) {
        unsigned source = i < soak.prompts[p].shared * 4 ? p % 4 : p;
        int32_t token = (int32_t)((source * 2654435761u + i * 40503u) & 0xffff);
        MUST(tierce_chain_append(chain, &token, 1, NULL) >= 0);
    }
    return chain;
}

void worker_start(struct worker *w, unsigned number)
{
    *w = (struct worker){.number = number, .sessions = (uint64_t)(number + 1) << 32};
    w->random.state = soak.seed ^ ((uint64_t)soak.round << 32 | (number + 1));
    (void)test_random_u64(&w->random);
    for (uint32_t i = 0; i < LAYERS_MAX; i++) {
        w->memory[i] = malloc((size_t)PAGED_BLOCKS * BLOCK_STRIDE);
        MUST(w->memory[i] != NULL);
    }
    for (unsigned n = 0; n < NAMESPACES; n++) {
        for (uint32_t i = 0; i < layer_counts[n]; i++)
            w->layers[n][i] = (struct tierce_paged_layer){w->memory[i], BLOCK_STRIDE, cells[n][i]};
        w->paged[n] = (struct tierce_paged){sizeof(w->paged[n]), w->layers[n], layer_counts[n],
                                            PAGED_BLOCKS, TIERCE_DEVICE_HOST};
        for (unsigned p = 0; p < PROMPTS; p++)
            w->chains[n][p] = make_chain(n, p);
    }
}

void worker_stop(struct worker *w)
{
    for (unsigned i = 0; i < FLIGHTS; i++) {
        if (w->flights[i].prefetch != NULL && one_in(w, 2))
            end_prefetch(w, &w->flights[i]);
    }
    for (unsigned i = 0; i < HOLDS; i++) {
        if (w->holds[i].session != 0 && one_in(w, 2))
            tierce_unpin(soak.views[w->holds[i].ns], w->holds[i].session);
    }
}

void worker_fini(struct worker *w)
{
    for (unsigned n = 0; n < NAMESPACES; n++) {
        for (unsigned p = 0; p < PROMPTS; p++)
            tierce_chain_destroy(w->chains[n][p]);
    }
    for (uint32_t i = 0; i < LAYERS_MAX; i++)
        free(w->memory[i]);
}
