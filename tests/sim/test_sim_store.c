/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines with memory, a disk and remote stores, on simulated threads, clock, disk and network: a
 * seed is a run (sim_sched.h). Sessions look up, load, store, prefetch, copy, flush and clear;
 * disks are slow, fail, or damage what is read; stores are slow, silent, or damage what they send;
 * engines lose power at any place and are opened again. At all times:
 *
 *   - a block that was loaded has the bytes of one store that has not been aborted;
 *   - what was said to be durable is on the disk of the next life;
 *   - each call ends by its limit; whatever waits has a deadline;
 *   - without damage no checksum fails; counters add up to the answers;
 *   - in the end no pin, lease, byte of a queue, or allocation is left.
 *
 * test_sim_store --seed N [COUNT] runs seeds from N on, each in a process of its own.
 */
#include "base/alloc.h"
#include "check_main.h"
#include "sim_engines.h"
#include "test_random.h"

enum { RUNS = 200, LIVES = 3, SESSIONS_MAX = 4, STEPS = 25 };

/* Seeds that have failed. A change of the code makes other runs of them, so the error that a seed
 * has found also has a test of its own. 167 found that a load used pinned chunks that a clear had
 * removed, 11419 that a simulated power cut lost synced bytes; the others found errors of the
 * model. */
static const uint64_t corpus[] = {43, 105, 167, 331, 448, 1040, 11347, 11419, 20801};

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

static struct limit limit_begin(void)
{
    return (struct limit){sim_now_ns(), sim_stolen_ns()};
}

static void limit_end(const struct limit *limit, uint64_t ms, const char *call)
{
    uint64_t took = sim_now_ns() - limit->began - (sim_stolen_ns() - limit->stolen);
    REQUIRE(took <= (ms + SLACK_MS) * TIERCE__MS_NS, "%s took %.3f s", call, (double)took / 1e9);
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
            sim_sleep_ns(sim_below(20 * TIERCE__MS_NS));
    }
    limit = limit_begin();
    int64_t stored = 0;
    if (aborts)
        tierce_store_abort(store);
    else if (store != NULL)
        stored = tierce_store_end(store);
    limit_end(&limit, 0, "the end of a store");
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
    uint64_t clears = s->e->clears;
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
        limit_end(&limit, LOOKUP_MS + GRACE_MS + LOAD_MS, "a load that was aborted");
        return SIZE_MAX;
    }
    int64_t loaded = tierce_load_end(load, origins);
    limit_end(&limit, LOOKUP_MS + GRACE_MS + LOAD_MS, "a load");
    for (size_t b = from; b < to; b++) {
        if (origins[b - from] == TIERCE_ORIGIN_FAILED)
            continue;
        good++;
        memory_check(&s->memory, chain, versions_of(s->e, prompt, b),
                     s->e->clears != clears || clears % 2 != 0, b);
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
    uint64_t clears = s->e->clears, stolen = sim_stolen_ns(), began = sim_now_ns();
    struct tierce_found found = look(s, chain, blocks, flags, 0);
    if ((flags & TIERCE_LOOKUP_PIN) != 0 && sim_below(4) > 0 && found.memory_blocks > 0) {
        size_t loaded = load_from(s, chain, prompt, 0, found.memory_blocks, 0);
        bool may_fail = sim_net.damages || sim.flips || s->e->clears != clears || clears % 2 != 0 ||
                        sim_stolen_ns() != stolen || sim_now_ns() - began >= PIN_MS * TIERCE__MS_NS;
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
        REQUIRE(rc == 0 || sim_stolen_ns() > limit.stolen, "a prefetch does not end");
        REQUIRE(result.memory_blocks <= result.blocks && result.blocks <= blocks,
                "a prefetch of %zu blocks: %llu, %llu", blocks, (unsigned long long)result.blocks,
                (unsigned long long)result.memory_blocks);
    }
    limit = limit_begin();
    tierce_prefetch_end(prefetch);
    limit_end(&limit, 0, "the end of a prefetch");
    if (sim_below(2) == 0)
        (void)load_from(s, chain, prompt, 0, blocks, 0);
    tierce_unpin(s->e->view, s->number);
    tierce_chain_destroy(chain);
}

/* What is durable now must be there in the next life. */
static void ask_durable(struct session *s, size_t prompt)
{
    struct tierce_chain *chain = sim_chain(s->e, prompt, LONGEST);
    uint64_t clears = s->e->clears, blocks;
    struct limit limit = limit_begin();
    int rc = tierce_durable(s->e->view, chain, LONGEST, &blocks);
    limit_end(&limit, LOOKUP_MS + GRACE_MS, "a question for what is durable");
    REQUIRE(rc == 0 && blocks <= LONGEST, "durable: %d, %llu", rc, (unsigned long long)blocks);
    if (!s->e->is_killed && s->e->clears == clears && clears % 2 == 0 &&
        blocks > s->e->durable[prompt]) {
        s->e->durable[prompt] = blocks;
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
    limit_end(&limit, ms, "a flush");
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
    REQUIRE(copied >= 0 && (size_t)copied <= blocks, "copy: %lld", (long long)copied);
    tierce_chain_destroy(chain);
}

static void clear(struct session *s)
{
    static const uint32_t tiers[] = {0, 1u << TIERCE_ORIGIN_MEMORY, 1u << TIERCE_ORIGIN_DISK,
                                     1u << TIERCE_ORIGIN_REMOTE};
    uint32_t which = sim_below(2) == 0 ? 0 : tiers[sim_below(sim.has_remote ? 4 : 3)];
    struct limit limit = limit_begin();
    s->e->clears++;
    memset(s->e->durable, 0, sizeof(s->e->durable));
    bool is_followed = which == 0 && versions_clear_begin(s->e);
    int64_t cleared = tierce_engine_clear(s->e->engine, which, s->e->view);
    if (is_followed)
        versions_clear_end(s->e, cleared >= 0);
    memset(s->e->durable, 0, sizeof(s->e->durable));
    s->e->clears++;
    limit_end(&limit, (sim.has_remote ? 2 + SIM_STORES : 2) * LOAD_MS, "a clear");
}

static void *run_session(void *arg)
{
    struct session *s = arg;
    memory_begin(&s->memory);
    memory_wipe(&s->memory);
    for (size_t i = 0; i < STEPS && !s->e->is_killed; i++) {
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
    tierce_unpin(s->e->view, s->number);
    memory_end(&s->memory);
    return NULL;
}

/* ---- lives ----------------------------------------------------------------------------------- */

/* What was durable is there, and right. */
static void check_durable(struct session *s)
{
    const uint32_t disk = 1u << TIERCE_ORIGIN_DISK;
    for (size_t p = 0; p < PROMPTS; p++) {
        struct tierce_chain *chain = sim_chain(s->e, p, LONGEST);
        uint64_t durable = s->e->durable[p];
        uint64_t found = look(s, chain, LONGEST, 0, disk).blocks;
        REQUIRE(found >= durable || s->e->loses || sim.small_disk || sim_net.damages,
                "engine %zu, prompt %zu: %llu blocks are on disk, and %llu were durable",
                s->e->number, p, (unsigned long long)found, (unsigned long long)durable);
        REQUIRE(found == 0 || !s->e->is_cleared,
                "engine %zu, prompt %zu: %llu blocks are on disk, which was cleared", s->e->number,
                p, (unsigned long long)found);
        if (found > 0)
            (void)load_from(s, chain, p, 0, found, disk);
        s->e->durable[p] = 0;
        tierce_chain_destroy(chain);
    }
}

/* Nobody uses the engine, and all deadlines are over. */
static void check_quiet(struct sim_engine *e)
{
    struct tierce_engine_stats stats = engine_stats(e);
    const struct sim_calls *calls = &e->calls;
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
    int64_t loaded =
        stats.blocks_loaded_memory + stats.blocks_loaded_disk + stats.blocks_loaded_remote;
    REQUIRE(stats.pinned_bytes_now == 0 && stats.sessions_now == 0, "%lld bytes are pinned",
            (long long)stats.pinned_bytes_now);
    REQUIRE(stats.prefetch_bytes_now == 0, "prefetches hold %lld bytes",
            (long long)stats.prefetch_bytes_now);
    REQUIRE(stats.memory_bytes_now <= stats.memory_cap_bytes, "memory is beyond its limit");
    REQUIRE(stats.disk_bytes_now <= stats.disk_cap_bytes, "the disk is beyond its limit");
    REQUIRE(stats.disk_durable_chunks_now <= stats.disk_chunks_now,
            "more is durable than is there");
    REQUIRE(stats.remote_queued_bytes_now == 0 || e->is_killed, "%lld bytes wait for a store",
            (long long)stats.remote_queued_bytes_now);
    REQUIRE(stats.lookups == (int64_t)calls->lookups,
            "%lld lookups are counted, and %llu were made", (long long)stats.lookups,
            (unsigned long long)calls->lookups);
    REQUIRE(loaded == (int64_t)calls->loaded, "%lld loaded blocks are counted, and there were %llu",
            (long long)loaded, (unsigned long long)calls->loaded);
    REQUIRE(stats.blocks_failed == (int64_t)(calls->asked - calls->loaded),
            "%lld failed blocks are counted, and there were %llu", (long long)stats.blocks_failed,
            (unsigned long long)(calls->asked - calls->loaded));
    REQUIRE(stats.identity_failures + stats.checksum_failures == 0 || sim_net.damages || sim.flips,
            "%lld wrong checksums, %lld wrong identities", (long long)stats.checksum_failures,
            (long long)stats.identity_failures);
}

/* Nothing is found after a clear, and nothing comes back after a flush. */
static void clear_all(struct session *s)
{
    const uint32_t own = 1u << TIERCE_ORIGIN_MEMORY | 1u << TIERCE_ORIGIN_DISK;
    sim_disk_end_faults(s->e->vfs);
    int64_t cleared = tierce_engine_clear(s->e->engine, own, NULL);
    if (cleared < 0) /* the disk may be out of service yet */
        return;
    memset(s->e->durable, 0, sizeof(s->e->durable));
    for (size_t p = 0; p < PROMPTS; p++) {
        struct tierce_chain *chain = sim_chain(s->e, p, LONGEST);
        uint64_t found = look(s, chain, LONGEST, 0, own).blocks;
        REQUIRE(found == 0, "prompt %zu: %llu blocks are found after a clear", p,
                (unsigned long long)found);
        tierce_chain_destroy(chain);
    }
    s->e->is_cleared = tierce_engine_flush(s->e->engine, 20000) == 0;
}

/* Stores go out of reach and come back, and engines may lose power, while sessions run. */
static void disturb(void)
{
    uint64_t kill_at = sim_below(2) == 0 ? sim_below(40) : UINT64_MAX;
    struct sim_engine *victim = &sim.engines[sim_below(sim.count)];
    for (uint64_t i = 0; i < 40; i++) {
        sim_sleep_ns(sim_below(200 * TIERCE__MS_NS));
        if (i == kill_at)
            engine_kill(victim);
        struct sim_remote *remote = &sim_net.stores[sim_below(SIM_STORES)];
        remote->is_out = sim_net.fails && sim_below(4) == 0;
    }
    for (size_t i = 0; i < SIM_STORES; i++)
        sim_net.stores[i].is_out = false;
}

static void live(bool is_last)
{
    struct session sessions[SESSIONS_MAX] = {0};
    size_t count = sim.count + sim_below(SESSIONS_MAX - sim.count + 1);
    for (size_t i = 0; i < sim.count; i++) {
        struct session s = {.e = &sim.engines[i], .number = 99};
        memory_begin(&s.memory);
        engine_open(s.e);
        sim_keep_time(true); /* a read that is late is no reason for a miss here */
        check_durable(&s);
        sim_keep_time(false);
        s.e->loses = false;
        memory_end(&s.memory);
    }
    for (size_t i = 0; i < sim.count && !is_last; i++) {
        if (sim_below(2) == 0)
            sim.engines[i].loses |= sim_disk_draw_faults(sim.engines[i].vfs, sim.flips);
    }
    for (size_t i = 0; i < count && !is_last; i++) {
        sessions[i].e = &sim.engines[i % sim.count];
        sessions[i].number = i + 1;
        ck_assert_int_eq(pthread_create(&sessions[i].thread, NULL, run_session, &sessions[i]), 0);
    }
    if (!is_last)
        disturb();
    for (size_t i = 0; i < count && !is_last; i++)
        pthread_join(sessions[i].thread, NULL);
    sim_sleep_ns((PIN_MS + WRITE_MS + 10000) * TIERCE__MS_NS);
    for (size_t i = 0; i < sim.count; i++) {
        struct session s = {.e = &sim.engines[i]};
        for (size_t p = 0; p < PROMPTS && !s.e->is_killed; p++)
            ask_durable(&s, p);
        sim_sleep_ns((LOAD_MS + WRITE_MS) * TIERCE__MS_NS);
        check_quiet(s.e);
        s.e->is_cleared = false;
        if (!s.e->is_killed && sim_below(4) == 0)
            clear_all(&s);
        if (!s.e->is_killed && !is_last && sim_below(2) == 0)
            engine_kill(s.e);
        engine_close(s.e);
    }
}

static void listen(void *arg, enum tierce_log_level level, const char *event, const char *detail)
{
    (void)arg;
    (void)level;
    SAY("%s %s", event, detail);
}

static void run(uint64_t number)
{
    run_seed = number;
    tierce_set_log_fn(listen, NULL, TIERCE_LOG_WARN);
    uint64_t before = tierce__alloc_live();
    for (size_t i = 0; i < SIM_ENGINES; i++) {
        sim.engines[i].number = i;
        snprintf(sim.engines[i].folder, sizeof(sim.engines[i].folder), "/tmp/tierce-sim-XXXXXX");
        temp_folder_make(sim.engines[i].folder);
    }
    sim_start(number);
    sim.count = 1 + sim_below(2);
    sim.has_remote = sim_below(3) > 0;
    sim.small_disk = sim_below(3) == 0;
    sim.flips = sim_below(3) == 0;
    sim.clear_share = sim_below(3) == 0 ? 6 : 1;
    sim_net.fails = sim_below(2) == 0;
    sim_net.damages = sim_below(3) == 0;
    for (int i = 0; i <= LIVES; i++)
        live(i == LIVES);
    sim_net_end();
    REQUIRE(tierce__alloc_live() == before, "%lld allocations are left",
            (long long)tierce__alloc_live() - (long long)before);
    sim_stop();
    for (size_t i = 0; i < SIM_ENGINES; i++)
        temp_folder_remove(sim.engines[i].folder);
    if (prints)
        printf("seed %llu: %.3f s, %llu switches, digest %016llx\n", (unsigned long long)number,
               (double)sim_now_ns() / 1e9, (unsigned long long)sim_switches(),
               (unsigned long long)sim_digest());
}

START_TEST(seeds)
{
    run((uint64_t)_i);
}
END_TEST

START_TEST(seeds_that_have_failed)
{
    run(corpus[_i]);
}
END_TEST

/* The digest of a run in a process of its own. */
static uint64_t digest_of(uint64_t number)
{
    uint64_t digest = 0;
    int ends[2], status;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        run(number);
        digest = sim_digest();
        _exit(write(ends[1], &digest, sizeof(digest)) == sizeof(digest) ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(read(ends[0], &digest, sizeof(digest)), sizeof(digest));
    close(ends[0]);
    close(ends[1]);
    return digest;
}

START_TEST(a_seed_repeats_its_run)
{
    uint64_t first = digest_of(7);
    ck_assert_uint_eq(digest_of(7), first);
    ck_assert_uint_ne(digest_of(8), first);
}
END_TEST

int main(int argc, char **argv)
{
    int first = 1, count = (int)(TEST_ROUNDS(RUNS) * test_scale());
    size_t known = sizeof(corpus) / sizeof(corpus[0]);
    if (argc >= 3 && strcmp(argv[1], "--seed") == 0) {
        first = (int)strtoul(argv[2], NULL, 10);
        count = argc >= 4 ? (int)strtoul(argv[3], NULL, 10) : 1;
        known = 0;
        prints = count == 1;
    }
    return CHECK_RUN("sim_store", .seconds = 60,
                     .loops = {{seeds, first, first + count},
                               {known > 0 ? seeds_that_have_failed : NULL, 0, (int)known}},
                     .tests = {known > 0 ? a_seed_repeats_its_run : NULL});
}
