/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_SESSIONS_H
#define TIERCE_TESTS_SIM_SESSIONS_H

#include "sim_engines.h"

/*
 * Sessions of a simulated engine: threads that store, load, look up, pin, prefetch, copy, flush and
 * clear, and compare each answer with the model and each call with its limit.
 */

enum { STEPS = 25, STEPS_OF_CLIENTS = 50, NODE_END_MS = 1000 };

struct session {
    struct sim_engine *e;
    pthread_t thread;
    uint64_t number;
    struct sim_memory memory;
};

/* The limit of a call that began then, in ms. */
struct limit {
    uint64_t began, stolen;
};

/* Time in which the caller could not run. */
static uint64_t stolen_ns(void)
{
    return sim_stolen_ns() + sim_stalled_ns();
}

static struct limit limit_begin(void)
{
    return (struct limit){sim_now_ns(), stolen_ns()};
}

static void limit_end(const struct limit *limit, uint64_t ms, const char *call)
{
    uint64_t all = sim_now_ns() - limit->began, stolen = stolen_ns() - limit->stolen;
    uint64_t took = all > stolen ? all - stolen : 0; /* a stall may go on after the call */
    ms += sim.node_ms + SLACK_MS;
    REQUIRE(took <= ms * TIERCE__MS_NS, "%s took %.3f s", call, (double)took / 1e9);
}

/* The limit of a call that ends something at the node, or waits for it to do something. A load does
 * both. */
static uint64_t with_end(uint64_t ms)
{
    return sim.has_node ? ms + NODE_END_MS : ms;
}

static size_t draw_length(void)
{
    return sim_below(3) == 0 ? 1 + sim_below(LONGEST) : LONGEST;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static struct tierce_transfer_opts what_of(struct session *s, const struct tierce_chain *chain,
                                           size_t from, size_t to)
{
    return (struct tierce_transfer_opts){.size = sizeof(struct tierce_transfer_opts),
                                         .chain = chain,
                                         .from_block = from,
                                         .to_block = to,
                                         .paged = &s->memory.paged,
                                         .block_ids = s->memory.ids,
                                         .session = s->number};
}

static void store(struct session *s)
{
    size_t prompt = sim_below(PROMPTS), blocks = draw_length();
    bool aborts = sim_below(8) == 0;
    uint8_t version = aborts ? ABORTED : (uint8_t)(sim.next_version++ % VERSIONS);
    struct tierce_chain *chain = sim_chain(s->e, prompt, blocks);
    struct tierce_transfer_opts what = what_of(s, chain, 0, blocks);
    struct tierce_store *store;
    struct limit limit = limit_begin();
    what.tail = sim_below(2) == 0;
    memory_fill(&s->memory, chain, blocks, version);
    for (size_t b = 0; b < blocks && !aborts; b++)
        versions_add(s->e, prompt, b, version);
    int rc = tierce_store_begin(&store, s->e->view, &what);
    REQUIRE(rc == 0, "store: %d", rc);
    for (size_t b = 0; b < blocks && !aborts && store != NULL; b++)
        versions_add(s->e, prompt, b, version); /* a clear has ended meanwhile, and spared it */
    limit_end(&limit, 0, "the begin of a store");
    for (uint32_t l = 0; l < FX_LAYERS && store != NULL; l++) {
        if (aborts && sim_below(3) == 0)
            break;
        ck_assert_int_eq(tierce_store_layer(store, l), 0);
        if (sim_below(4) == 0)
            sim_sleep_ns(sim_below((sim.has_node ? 400 : 20) * TIERCE__MS_NS));
    }
    limit = limit_begin();
    int64_t stored = 0;
    if (aborts)
        tierce_store_abort(store);
    else if (store != NULL)
        stored = tierce_store_end(store);
    limit_end(&limit, with_end(0), "the end of a store");
    REQUIRE(stored >= 0 && (size_t)stored <= blocks, "%lld blocks stored", (long long)stored);
    memory_wipe(&s->memory);
    tierce_chain_destroy(chain);
}

static struct tierce_found look(struct session *s, const struct tierce_chain *chain, size_t blocks,
                                unsigned flags, uint32_t tiers)
{
    struct tierce_lookup_opts opts = {
        .size = sizeof(opts), .flags = flags, .session = s->number, .tiers = tiers};
    struct tierce_found found;
    struct limit limit = limit_begin();
    int rc = tierce_lookup(s->e->view, chain, blocks, &opts, &found);
    limit_end(&limit, LOOKUP_MS + GRACE_MS, "a lookup");
    s->e->calls.lookups++;
    REQUIRE(rc == 0, "lookup: %d", rc);
    REQUIRE(found.blocks <= blocks && found.memory_blocks <= found.blocks, "%zu blocks: %llu, %llu",
            blocks, (unsigned long long)found.blocks, (unsigned long long)found.memory_blocks);
    return found;
}

/* Returns the blocks that were loaded, or SIZE_MAX if the load was aborted. */
static size_t load_from(struct session *s, const struct tierce_chain *chain, size_t prompt,
                        size_t from, size_t to, uint32_t tiers)
{
    struct tierce_transfer_opts what = what_of(s, chain, from, to);
    struct tierce_load *load;
    uint8_t origins[LONGEST] = {0};
    size_t good = 0;
    uint64_t clears = s->e->kept->clears;
    struct limit limit = limit_begin();
    what.tiers = tiers;
    memory_wipe(&s->memory);
    int rc = tierce_load_begin(&load, s->e->view, &what);
    REQUIRE(rc == 0, "load: %d", rc);
    bool aborts = sim_below(10) == 0;
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        if (aborts && sim_below(3) == 0)
            break;
        ck_assert_int_eq(tierce_load_layer(load, l), 0);
    }
    if (aborts) {
        tierce_load_abort(load);
        limit_end(&limit, with_end(with_end(LOOKUP_MS + GRACE_MS + LOAD_MS)),
                  "a load that was aborted");
        return SIZE_MAX;
    }
    int64_t loaded = tierce_load_end(load, origins);
    limit_end(&limit, with_end(with_end(LOOKUP_MS + GRACE_MS + LOAD_MS)), "a load");
    for (size_t b = from; b < to; b++) {
        if (origins[b - from] == TIERCE_ORIGIN_FAILED)
            continue;
        good++;
        memory_check(&s->memory, chain, versions_of(s->e, prompt, b),
                     s->e->kept->clears != clears || clears % 2 != 0, b);
    }
    REQUIRE(loaded == (int64_t)good, "%lld blocks were loaded, and %zu have an origin",
            (long long)loaded, good);
    s->e->calls.asked += to - from;
    s->e->calls.loaded += good;
    return good;
}

static void load(struct session *s)
{
    size_t prompt = sim_below(PROMPTS), blocks = draw_length();
    size_t from = sim_below(4) == 0 ? sim_below(blocks) : 0;
    struct tierce_chain *chain = sim_chain(s->e, prompt, blocks);
    (void)load_from(s, chain, prompt, from, blocks, 0);
    tierce_chain_destroy(chain);
}

static void look_up(struct session *s)
{
    size_t prompt = sim_below(PROMPTS), blocks = draw_length();
    unsigned flags = sim_below(2) == 0 ? TIERCE_LOOKUP_PIN : 0;
    if (sim_below(4) == 0)
        flags |= TIERCE_LOOKUP_NO_WAIT;
    struct tierce_chain *chain = sim_chain(s->e, prompt, blocks);
    uint64_t clears = s->e->kept->clears, stolen = stolen_ns(), began = sim_now_ns();
    uint64_t absences = s->e->kept->absences;
    struct tierce_found found = look(s, chain, blocks, flags, 0);
    if ((flags & TIERCE_LOOKUP_PIN) != 0 && sim_below(4) > 0 && found.memory_blocks > 0) {
        size_t loaded = load_from(s, chain, prompt, 0, found.memory_blocks, 0);
        bool may_fail = sim_net.damages || sim.flips || s->e->kept->clears != clears ||
                        clears % 2 != 0 || stolen_ns() != stolen ||
                        sim_now_ns() - began >= PIN_MS * TIERCE__MS_NS;
        may_fail |= s->e->kept->absences != absences || absences % 2 != 0;
        REQUIRE(may_fail || loaded >= found.memory_blocks,
                "%llu blocks were pinned, %zu are loaded", (unsigned long long)found.memory_blocks,
                loaded);
    }
    if (sim_below(3) > 0)
        tierce_unpin(s->e->view, s->number);
    tierce_chain_destroy(chain);
}

static void prefetch(struct session *s)
{
    size_t prompt = sim_below(PROMPTS), blocks = draw_length();
    struct tierce_chain *chain = sim_chain(s->e, prompt, blocks);
    struct tierce_prefetch_opts opts = {.size = sizeof(opts),
                                        .session = s->number,
                                        .flags = sim_below(2) == 0 ? TIERCE_PREFETCH_PIN : 0,
                                        .timeout_ms = 1 + (uint32_t)sim_below(1500)};
    struct tierce_prefetch *prefetch;
    struct limit limit = limit_begin();
    int rc = tierce_prefetch_begin(&prefetch, s->e->view, chain, blocks, &opts);
    REQUIRE(rc == 0, "prefetch: %d", rc);
    limit_end(&limit, 0, "the begin of a prefetch");
    if (sim_below(3) > 0) {
        rc = tierce_prefetch_wait(prefetch, opts.timeout_ms + 200);
        struct tierce_prefetch_result result = {.size = sizeof(result)};
        (void)tierce_prefetch_poll(prefetch, &result);
        REQUIRE(rc == 0 || stolen_ns() > limit.stolen, "a prefetch does not end");
        REQUIRE(result.memory_blocks <= result.blocks && result.blocks <= blocks,
                "a prefetch of %zu blocks: %llu, %llu", blocks, (unsigned long long)result.blocks,
                (unsigned long long)result.memory_blocks);
    }
    limit = limit_begin();
    tierce_prefetch_end(prefetch);
    limit_end(&limit, with_end(0), "the end of a prefetch");
    if (sim_below(2) == 0)
        (void)load_from(s, chain, prompt, 0, blocks, 0);
    tierce_unpin(s->e->view, s->number);
    tierce_chain_destroy(chain);
}

/* Chunks that are durable now must be there in the next life. */
static void ask_durable(struct session *s, size_t prompt)
{
    struct tierce_chain *chain = sim_chain(s->e, prompt, LONGEST);
    uint64_t clears = s->e->kept->clears, blocks;
    struct limit limit = limit_begin();
    int rc = tierce_durable(s->e->view, chain, LONGEST, &blocks);
    limit_end(&limit, LOOKUP_MS + GRACE_MS, "a question for what is durable");
    REQUIRE(rc == 0 && blocks <= LONGEST, "durable: %d, %llu", rc, (unsigned long long)blocks);
    if (!s->e->is_killed && s->e->kept->clears == clears && clears % 2 == 0 &&
        blocks > s->e->kept->durable[prompt]) {
        s->e->kept->durable[prompt] = blocks;
        SAY("engine %zu, prompt %zu: %llu blocks are durable", s->e->number, prompt,
            (unsigned long long)blocks);
    }
    tierce_chain_destroy(chain);
}

static void flush(struct session *s)
{
    struct limit limit = limit_begin();
    uint32_t ms = 1 + (uint32_t)sim_below(1000);
    (void)!tierce_engine_flush(s->e->engine, ms);
    limit_end(&limit, with_end(ms), "a flush");
}

static void copy(struct session *s)
{
    size_t prompt = sim_below(PROMPTS), blocks = draw_length();
    bool reads = sim_below(2) == 0;
    struct tierce_chain *chain = sim_chain(s->e, prompt, blocks);
    const struct tierce_copy_opts opts = {.size = sizeof(opts),
                                          .from = reads ? TIERCE_ORIGIN_DISK : TIERCE_ORIGIN_MEMORY,
                                          .to = reads ? TIERCE_ORIGIN_MEMORY : TIERCE_ORIGIN_DISK,
                                          .timeout_ms = 500};
    struct limit limit = limit_begin();
    int64_t copied = tierce_copy(s->e->view, chain, blocks, &opts);
    limit_end(&limit, opts.timeout_ms, "a copy");
    bool is_right =
        sim.has_node ? copied == TIERCE_E_UNSUPPORTED : copied >= 0 && (size_t)copied <= blocks;
    REQUIRE(is_right, "copy: %lld", (long long)copied);
    tierce_chain_destroy(chain);
}

static void clear(struct session *s)
{
    static const uint32_t tiers[] = {0, 1u << TIERCE_ORIGIN_MEMORY, 1u << TIERCE_ORIGIN_DISK,
                                     1u << TIERCE_ORIGIN_REMOTE};
    uint32_t which = sim_below(2) == 0 ? 0 : tiers[sim_below(sim.has_remote ? 4 : 3)];
    struct limit limit = limit_begin();
    s->e->kept->clears++;
    memset(s->e->kept->durable, 0, sizeof(s->e->kept->durable));
    bool is_followed = which == 0 && versions_clear_begin(s->e);
    int64_t cleared = tierce_engine_clear(s->e->engine, which, s->e->view);
    if (is_followed)
        versions_clear_end(s->e, cleared >= 0);
    memset(s->e->kept->durable, 0, sizeof(s->e->kept->durable));
    s->e->kept->clears++;
    limit_end(&limit, (sim.has_remote ? 2 + SIM_STORES : 2) * LOAD_MS, "a clear");
}

/* The conversation of the last request returns; its chunks may have left memory until then. */
static void say_return(struct session *s)
{
    int rc = tierce_session_returns(s->e->view, s->number, 300 + (uint32_t)sim_below(1500));
    REQUIRE(rc == 0, "a hint: %d", rc);
    if (sim_below(2) == 0) {
        s->e->kept->clears++;
        (void)!tierce_engine_clear(s->e->engine, 1u << TIERCE_ORIGIN_MEMORY, NULL);
        s->e->kept->clears++;
    }
    sim_sleep_ns(sim_below(2500 * TIERCE__MS_NS));
}

static void step(struct session *s)
{
    if (sim.reads_ahead && sim_below(4) == 0) {
        say_return(s);
        return;
    }
    uint64_t what = sim_below(100);
    if (what < 34)
        store(s);
    else if (what < 56)
        load(s);
    else if (what < 72)
        look_up(s);
    else if (what < 79)
        prefetch(s);
    else if (what < 85)
        ask_durable(s, sim_below(PROMPTS));
    else if (what < 89)
        flush(s);
    else if (what < 93)
        copy(s);
    else if (what < 93 + sim.clear_share)
        clear(s);
    else
        sim_sleep_ns(sim_below(1500 * TIERCE__MS_NS));
}

static void *run_session(void *arg)
{
    struct session *s = arg;
    sim_enter_host(host_of(s->e));
    memory_begin(&s->memory);
    memory_wipe(&s->memory);
    for (size_t i = 0; i < (sim.has_node ? STEPS_OF_CLIENTS : STEPS) && !s->e->is_killed; i++) {
        if (sim.has_node)
            sim_sleep_ns(sim_below(100 * TIERCE__MS_NS));
        step(s);
    }
    tierce_unpin(s->e->view, s->number);
    memory_end(&s->memory);
    return NULL;
}

/* ---- at rest ----------------------------------------------------------------------------------
 */

/* Counters equal the answers that sessions got. */
static void check_calls(const struct sim_engine *e, const struct tierce_engine_stats *stats)
{
    const struct sim_calls *calls = &e->calls;
    int64_t loaded =
        stats->blocks_loaded_memory + stats->blocks_loaded_disk + stats->blocks_loaded_remote;
    REQUIRE(stats->lookups == (int64_t)calls->lookups,
            "%lld lookups are counted, and %llu were made", (long long)stats->lookups,
            (unsigned long long)calls->lookups);
    REQUIRE(loaded == (int64_t)calls->loaded, "%lld loaded blocks are counted, and there were %llu",
            (long long)loaded, (unsigned long long)calls->loaded);
    REQUIRE(stats->blocks_failed == (int64_t)(calls->asked - calls->loaded),
            "%lld failed blocks are counted, and there were %llu", (long long)stats->blocks_failed,
            (unsigned long long)(calls->asked - calls->loaded));
}

/* Reading ahead keeps to its budget, and a chunk is used or unused once, if it was read. */
static void check_ahead(const struct sim_engine *e, const struct tierce_engine_stats *stats)
{
    double life_s = (double)(sim_now_ns() - e->opened_ns) / 1e9;
    double most = AHEAD_BYTES_PER_S * life_s + (double)e->view->full.extent.object_bytes;
    REQUIRE(sim.reads_ahead || stats->ahead_chunks == 0, "%lld chunks were read ahead",
            (long long)stats->ahead_chunks);
    REQUIRE((double)stats->ahead_bytes <= most, "%lld bytes were read ahead in %.3f s",
            (long long)stats->ahead_bytes, life_s);
    REQUIRE(stats->ahead_used_chunks + stats->ahead_unused_chunks <= stats->ahead_chunks,
            "%lld chunks were read ahead, %lld of them used and %lld unused",
            (long long)stats->ahead_chunks, (long long)stats->ahead_used_chunks,
            (long long)stats->ahead_unused_chunks);
    REQUIRE(stats->ahead_bytes_per_second_now <= (sim.reads_ahead ? AHEAD_BYTES_PER_S : 0),
            "%lld bytes per second may be read ahead",
            (long long)stats->ahead_bytes_per_second_now);
    SAY("engine %zu: %lld chunks read ahead, %lld used, %lld unused", e->number,
        (long long)stats->ahead_chunks, (long long)stats->ahead_used_chunks,
        (long long)stats->ahead_unused_chunks);
}

/* Nobody uses the tiers: nothing of them is held, and none is beyond its limit. */
static void check_tiers(const struct tierce_engine_stats *stats)
{
    REQUIRE(stats->pinned_bytes_now == 0 && stats->sessions_now == 0, "%lld bytes are pinned",
            (long long)stats->pinned_bytes_now);
    REQUIRE(stats->prefetch_bytes_now == 0, "prefetches hold %lld bytes",
            (long long)stats->prefetch_bytes_now);
    REQUIRE(stats->memory_bytes_now <= stats->memory_cap_bytes, "memory is beyond its limit");
    REQUIRE(stats->disk_bytes_now <= stats->disk_cap_bytes, "the disk is beyond its limit");
    REQUIRE(stats->disk_durable_chunks_now <= stats->disk_chunks_now,
            "more is durable than is there");
    REQUIRE(stats->identity_failures + stats->checksum_failures == 0 || sim_net.damages ||
                sim.flips,
            "%lld wrong checksums, %lld wrong identities", (long long)stats->checksum_failures,
            (long long)stats->identity_failures);
}

/* Nobody uses the engine, and all deadlines are over. */
static inline void check_quiet(struct sim_engine *e)
{
    struct tierce_engine_stats stats = engine_stats(e);
    for (int i = 0; stats.remote_unsent_now > 0 && !e->is_killed; i++, stats = engine_stats(e)) {
        REQUIRE(i < 1000, "%lld chunks wait for a store", (long long)stats.remote_unsent_now);
        sim_sleep_ns(300 * TIERCE__MS_NS); /* calls fail still, each after up to WRITE_MS */
    }
    bool is_sending = stats.remote_unsent_now > 0;
    for (int i = 0; stats.leases_now > 0 && !is_sending; i++, stats = engine_stats(e)) {
        REQUIRE(i < 600, "%lld leases are left", (long long)stats.leases_now);
        /* The keeper samples a tier that is out of service: until its deadline, and longer by a
         * call that is late to return. */
        sim_sleep_ns(7 * TIERCE__MS_NS);
    }
    REQUIRE(stats.remote_queued_bytes_now == 0 || e->is_killed, "%lld bytes wait for a store",
            (long long)stats.remote_queued_bytes_now);
    check_tiers(&stats);
    check_calls(e, &stats);
    check_ahead(e, &stats);
}

#endif
