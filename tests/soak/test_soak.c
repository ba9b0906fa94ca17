/* SPDX-License-Identifier: Apache-2.0 */
#include "soak.h"

#include "base/alloc.h"
#include "check_main.h"
#include "silent_log.h"

#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

/*
 * A soak of the whole engine: threads store, look up, pin, load, prefetch, cancel and forget, in
 * several namespaces, on little memory and little disk, while faults of the disk come and go. What
 * a thread does follows from the seed; how the threads meet does not. soak_steps.c has the steps,
 * and what must hold after each, soak_events.c a directory that follows the events; this file the
 * rounds: open, steps, quiet, close, and what must be there when the folder is opened again. Before
 * some of them another process does the same on the folder, and is killed.
 *
 * TIERCE_TEST_SEED=n plays a run again, TIERCE_TEST_SOAK_SECONDS=n makes it that long.
 */

enum {
    SECONDS = 10,
    LONG_SECONDS = 24,
    ROUNDS_FOR_ALL = 100,
    STEPS = 1200,
    QUIET_MS = 60000,
    LIFE_MS = 800
};

struct soak soak;

static struct worker workers[THREADS];
/* Blocks of each prompt that a quiet engine said are durable; of the last round. */
static uint64_t durable[NAMESPACES][PROMPTS];
static bool durable_known;
/* Over all rounds: a long soak in which one of these stays 0 has not tried it. The rarest event
 * occurs about once in eight rounds, and a short soak of a slow build has only a few rounds. */
static struct tierce_engine_stats totals;
static uint64_t durable_blocks_checked, kills, killed_blocks_checked, events_told, event_gaps;

/* ---- a round: open --------------------------------------------------------------------------- */

static void set_all(struct tierce_config *config, const char *folder)
{
    static const char *const sets[][2] = {
        {"memory.size", "1MiB"},
        {"disk.lock_wait", "0"},
        {"disk.queue", "256KiB"},
        {"timeout.lookup", "20ms"},
        {"timeout.load", "2s"},
        {"timeout.prefetch", "500ms"},
        {"timeout.pin", "1s"},
        {"timeout.close", "2s"},
        {"breaker.retry", "20ms"},
        {"prefetch.memory", "20%"},
        {"prefetch.disk_window", "64KiB"},
        {"control.socket", ""},
    };
    char why[TIERCE_CONFIG_ERROR_BYTES];
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
        MUST(tierce_config_set(config, sets[i][0], sets[i][1], why) == 0);
    MUST(tierce_config_set(config, "disk.path", folder, why) == 0);
}

static void remove_folder(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", soak.folder);
    MUST(system(command) == 0);
}

/* A fresh folder has no bad bytes in it. */
static void renew_folder(struct test_random *random)
{
    if (soak.folder[0] != '\0')
        remove_folder();
    snprintf(soak.folder, sizeof(soak.folder), "/tmp/tierce-soak-XXXXXX");
    MUST(mkdtemp(soak.folder) != NULL);
    soak.tainted = false;
    soak.roomy = test_random_below(random, 3) > 0;
    durable_known = false;
}

static void open_round(struct test_random *random)
{
    static const char *const policies[] = {"lru", "s3fifo", "arc", "leaf_lru", "hazard"};
    char why[TIERCE_CONFIG_ERROR_BYTES];
    MUST(tierce_config_create(&soak.config) == 0);
    set_all(soak.config, soak.folder);
    const char *policy = policies[test_random_below(random, 5)];
    const char *draws[][2] = {
        {"memory.policy", policy},
        {"disk.policy", policy},
        {"disk.size", soak.roomy ? "96MiB" : "2MiB"},
        /* Only a flush, or lack of space, makes anything durable. */
        {"disk.flush_interval", test_random_below(random, 2) == 0 ? "50ms" : "1h"},
        {"events.ring", test_random_below(random, 2) == 0 ? "64" : "16384"},
        {"timeout.store", test_random_below(random, 2) == 0 ? "5ms" : "0"},
    };
    for (size_t i = 0; i < sizeof(draws) / sizeof(draws[0]); i++)
        MUST(tierce_config_set(soak.config, draws[i][0], draws[i][1], why) == 0);
    MUST(tierce_engine_open(&soak.engine, soak.config, why) == 0);
    MUST(soak.engine->level_count == 2);
    MUST(tierce__fault_create(&soak.disk, soak.engine->levels[1].tier) == 0);
    soak.engine->levels[1].tier = soak.disk;
    for (unsigned i = 0; i < NAMESPACES; i++) {
        struct tierce_namespace ns = soak_namespace(i);
        MUST(tierce_view_open(&soak.views[i], soak.engine, &ns,
                              &(struct tierce_shard){0, 1, 0, 1}) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        worker_start(&workers[i], i);
    events_start(random);
}

/* ---- durability ------------------------------------------------------------------------------ */

/* Every block that was durable is on disk, and, where no fault spoils bytes, can be loaded. */
static void check_durable(void)
{
    struct worker *w = &workers[0];
    for (unsigned n = 0; durable_known && n < NAMESPACES; n++) {
        for (unsigned p = 0; p < PROMPTS; p++) {
            uint64_t blocks;
            MUST(tierce_durable(soak.views[n], w->chains[n][p], soak.prompts[p].blocks, &blocks) ==
                 0);
            MUST(blocks >= durable[n][p]);
            durable_blocks_checked += blocks;
            if (!soak.tainted && durable[n][p] > 0)
                MUST(worker_load_all(w, n, p, durable[n][p]) == (int64_t)durable[n][p]);
        }
    }
}

static void note_durable(void)
{
    for (unsigned n = 0; n < NAMESPACES; n++) {
        for (unsigned p = 0; p < PROMPTS; p++)
            durable[n][p] = soak_durable(&workers[0], n, p);
    }
    durable_known = true;
}

/* ---- quiet ----------------------------------------------------------------------------------- */

/* A tier that works again returns to service when its chunks are requested. */
static void await_service(void)
{
    uint64_t give_up = tierce__deadline_in_ms(QUIET_MS);
    while (soak_stats().disk_in_service_now == 0) {
        MUST(tierce__now_ns() < give_up);
        for (unsigned n = 0; n < NAMESPACES; n++) {
            for (unsigned p = 0; p < PROMPTS; p++)
                worker_ask(&workers[0], n, p);
        }
        usleep(5000);
    }
}

static uint64_t memory_chunk_bytes(void)
{
    struct tierce__tier_stats s;
    struct tierce__tier *memory = soak.engine->levels[0].tier;
    memory->ops->stats(memory, &s);
    return s.used_bytes;
}

/* There are no references: all used memory belongs to chunks that can be found. */
static void await_baseline(void)
{
    struct tierce_engine_stats s;
    struct tierce__pool_stats pool;
    uint64_t give_up = tierce__deadline_in_ms(QUIET_MS);
    bool quiet;
    do {
        s = soak_stats();
        tierce__pool_stats(soak.engine->pool, &pool);
        quiet = s.sessions_now == 0 && s.pinned_bytes_now == 0 && s.prefetch_bytes_now == 0 &&
                s.leases_now == 0 && s.disk_queued_bytes_now == 0 &&
                pool.bufs == s.memory_chunks_now &&
                (uint64_t)s.memory_bytes_now == memory_chunk_bytes();
        if (!quiet && tierce__now_ns() >= give_up)
            fprintf(stderr,
                    "sessions %lld pinned %lld leases %lld prefetch %lld queued %lld bufs %u "
                    "chunks %lld\n",
                    (long long)s.sessions_now, (long long)s.pinned_bytes_now,
                    (long long)s.leases_now, (long long)s.prefetch_bytes_now,
                    (long long)s.disk_queued_bytes_now, pool.bufs, (long long)s.memory_chunks_now);
        MUST(quiet || tierce__now_ns() < give_up);
        usleep(2000);
    } while (!quiet);
}

static uint64_t folder_bytes(void)
{
    uint64_t bytes = 0;
    DIR *dir = opendir(soak.folder);
    MUST(dir != NULL);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        struct stat st;
        if (fstatat(dirfd(dir), entry->d_name, &st, 0) == 0 && S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_blocks * 512;
    }
    closedir(dir);
    return bytes;
}

static void be_quiet(void)
{
    for (int op = TIERCE__STORE_LOOKUP; op <= TIERCE__STORE_SIBLINGS; op++)
        tierce__fault_set(soak.disk, (enum tierce__store_op)op, NULL);
    MUST(tierce_engine_set_mode(soak.engine, TIERCE_MODE_NORMAL) == 0);
    /* First the reads that hang: their failures may end the service again. */
    await_baseline();
    await_service();
    await_baseline();
    /* The first may tell an error of before. */
    (void)!tierce_engine_flush(soak.engine, QUIET_MS);
    MUST(tierce_engine_flush(soak.engine, QUIET_MS) == 0);
    MUST(folder_bytes() <= (uint64_t)soak_stats().disk_cap_bytes);
    note_durable();
    struct tierce__tier *memory = soak.engine->levels[0].tier;
    memory->ops->evict(memory, UINT64_MAX);
    await_baseline();
    MUST(soak_stats().memory_bytes_now == 0);
    events_settle(QUIET_MS);
}

/* ---- statistics ---------------------------------------------------------------------------- */

#define TRIED(use)                                                                                 \
    use(chunks_stored) use(blocks_loaded_memory) use(blocks_loaded_disk) use(blocks_failed)        \
        use(promotions) use(checksum_failures) use(deadline_failures) use(device_failures)         \
            use(breaker_trips) use(breaker_recoveries) use(pins_expired) use(memory_evictions)     \
                use(disk_evictions) use(disk_dropped_puts) use(fetches_shared)                     \
                    use(prefetch_blocks) use(prefetches_late) use(prefetches_short)                \
                        use(blocks_loaded_siblings) use(stores_waited) use(stores_shared)          \
                            use(stores_refused)

static void add_totals(void)
{
    struct tierce_engine_stats s = soak_stats();
#define ADD(name) totals.name += s.name;
    TRIED(ADD)
#undef ADD
}

static void tell_totals(bool all)
{
    bool missing = false;
    const struct {
        const char *name;
        uint64_t count;
    } own[] = {{"durable_blocks_checked", durable_blocks_checked},
               {"kills", kills},
               {"killed_blocks_checked", killed_blocks_checked},
               {"events_told", events_told},
               {"event_gaps", event_gaps}};
    printf("soak: %u rounds,", soak.round);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        printf(" %s=%llu", own[i].name, (unsigned long long)own[i].count);
        missing |= own[i].count == 0;
    }
#define TELL(name) printf(" %s=%lld", #name, (long long)totals.name);
    TRIED(TELL)
#undef TELL
    printf("\n");
    fflush(stdout);
    MUST(!all || !missing);
#define NEED(name) MUST(!all || totals.name > 0);
    TRIED(NEED)
#undef NEED
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static void *work(void *arg)
{
    struct worker *w = arg;
    for (w->step = 0; w->step < STEPS || soak.endless; w->step++)
        worker_step(w);
    worker_stop(w);
    return NULL;
}

static void run_workers(void)
{
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void close_round(void)
{
    add_totals();
    MUST(!soak.roomy || soak_stats().disk_evictions == 0);
    events_stop(&events_told, &event_gaps);
    for (unsigned i = 0; i < NAMESPACES; i++)
        tierce_view_close(soak.views[i]);
    MUST(atomic_load(&soak.prefetches) == 0);
    uint64_t begun_ns = tierce__now_ns();
    tierce_engine_close(soak.engine);
    MUST(tierce__now_ns() - begun_ns < (2000 + SLACK_MS) * TIERCE__MS_NS);
    tierce_config_destroy(soak.config);
    for (unsigned i = 0; i < THREADS; i++)
        worker_fini(&workers[i]);
    MUST(tierce__alloc_live() == 0);
}

/* ---- a process that is killed ---------------------------------------------------------------- */

/* Lives a round that has no end. */
static _Noreturn void live(struct test_random *random)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    soak.endless = true;
    open_round(random);
    check_durable();
    run_workers();
    abort();
}

/* Chunks reported as durable are found afterwards, unless they may have been evicted, or removed
 * because an earlier fault corrupted their bytes. */
static void live_and_be_killed(struct test_random *random)
{
    uint64_t(*facts)[PROMPTS] =
        mmap(NULL, sizeof(durable), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(facts != MAP_FAILED);
    if (durable_known)
        memcpy(facts, durable, sizeof(durable));
    fflush(NULL);
    soak.facts = facts;
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0)
        live(random);
    soak.facts = NULL;
    usleep(1000 * (20 + test_random_below(random, LIFE_MS)));
    int status;
    MUST(kill(child, SIGKILL) == 0);
    MUST(waitpid(child, &status, 0) == child);
    MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    memcpy(durable, facts, sizeof(durable));
    munmap(facts, sizeof(durable));
    kills++;
    durable_known = soak.roomy && !soak.tainted;
    for (unsigned n = 0; durable_known && n < NAMESPACES; n++) {
        for (unsigned p = 0; p < PROMPTS; p++)
            killed_blocks_checked += durable[n][p];
    }
}

/* ---- a round --------------------------------------------------------------------------------- */

static void run_round(void)
{
    struct test_random random = {soak.seed ^ (uint64_t)soak.round << 32};
    if (soak.folder[0] == '\0' || (soak.tainted && test_random_below(&random, 2) == 0) ||
        test_random_below(&random, 6) == 0)
        renew_folder(&random);
    soak.spoils = false;
    if (test_random_below(&random, 2) == 0)
        live_and_be_killed(&random);
    soak.spoils = test_random_below(&random, 3) == 0;
    open_round(&random);
    check_durable();
    durable_known = false;
    soak.tainted |= soak.spoils;
    run_workers();
    /* Sometimes it is closed as it is, with faults and all. */
    if (test_random_below(&random, 5) > 0)
        be_quiet();
    close_round();
}

START_TEST(the_promises_hold)
{
    const char *seconds = getenv("TIERCE_TEST_SOAK_SECONDS");
    uint64_t limit_s = seconds != NULL     ? strtoull(seconds, NULL, 10)
                       : test_scale() == 1 ? SECONDS
                                           : LONG_SECONDS * test_scale();
    uint64_t end_ns = tierce__now_ns() + limit_s * 1000 * TIERCE__MS_NS;
    struct test_random random = test_random_start("soak");
    soak.seed = random.state;
    silence_log();
    for (unsigned p = 0; p < PROMPTS; p++) {
        soak.prompts[p].blocks = 1 + test_random_below(&random, BLOCKS_MAX);
        soak.prompts[p].shared = test_random_below(&random, BLOCKS_MAX);
    }
    for (; tierce__now_ns() < end_ns; soak.round++)
        run_round();
    remove_folder();
    tell_totals(soak.round >= ROUNDS_FOR_ALL);
}
END_TEST

int main(void)
{
    const char *seconds = getenv("TIERCE_TEST_SOAK_SECONDS");
    return CHECK_RUN("soak",
                     .seconds = 200 * (int)test_scale() + (seconds != NULL ? atoi(seconds) : 0),
                     .tests = {the_promises_hold});
}
