/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fleet: a manager, a node that lends memory and disk to a pool, a folder, and engines that have
 * the pool as their remote store, on simulated threads, clock, disk and sockets: a seed is a run
 * (sim_sched.h, sim_sockets.h). The sessions and the model are those of test_sim_store. Manager,
 * node and engines lose power, stop or stall, the network is cut, the folder is unmounted, and
 * calls of the index's database fail, while blocks are written, read, moved and reclaimed. At all
 * times:
 *
 *   - a block that was loaded has the bytes of one store that has not been aborted;
 *   - no read finds other bytes than a finished write's: no checksum fails;
 *   - what was said to be durable is on the disk of the next life;
 *   - quotas are not exceeded; each call ends by its limit;
 *   - when all is well again, each block that the manager serves can be loaded;
 *   - in the end no block, byte, file, descriptor or allocation is left.
 *
 * test_sim_fleet --seed N [COUNT] runs seeds from N on, each in a process of its own.
 */
#include "check_main.h"
#include "store/remote/fleet/storage_at.h"
#include "node_harness.h"
#include "sim_manager.h"
#include "sim_lives.h"
#include "sim_seeds.h"
#include "sim_sockets.h"

#include <ftw.h>
#include <sys/stat.h>

enum {
    RUNS = 24,
    LONG_RUNS = 5000,
    TURNS = 30,
    NODE_HOST = 1,
    CHUNKS = LONGEST / FX_CHUNK_BLOCKS,
    POOL_BYTES = 16384 /* of a block of the pool */
};

/* ---- in place of the system ------------------------------------------------------------------ */

SIM_WRAPS(int, tierce__node_http_start, struct tierce__server **out, struct tierce__node *n,
          uint16_t port, char why[TIERCE_CONFIG_ERROR_BYTES]);
SIM_WRAPS(ssize_t, pwrite, int fd, const void *bytes, size_t count, off_t at);

int __wrap_tierce__node_http_start(struct tierce__server **out, struct tierce__node *n,
                                   uint16_t port, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    (void)n;
    (void)port;
    (void)why;
    *out = NULL;
    return 0;
}

/* ---- the world ------------------------------------------------------------------------------- */

static struct {
    struct node_harness node;
    bool is_unmounted;
    bool was_unmounted; /* blocks may be served that were written below the mount point */
    bool hurries;       /* the node ends: a call that is late to return keeps its memory */
    uint64_t capacity, served;
    uint32_t failures; /* of a thousand calls of the database */
    const char *demote, *slots;
    char folder[32], files[80], away[80], disk[80];
} fleet;

static bool has_no_power[SIM_HOSTS];

/* Files of the folder are written in parts, between which others read; a host that loses power
 * writes nothing more. */
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t count, off_t at)
{
    bool has_parts = sim_is_on() && count > 1 && sim_below(4) == 0;
    size_t first = has_parts ? 1 + sim_below(count - 1) : 0;
    if (has_parts && !has_no_power[sim_host()]) {
        bool is_slow = !fleet.hurries && sim_below(8) == 0;
        ssize_t n = __real_pwrite(fd, bytes, first, at);
        if (n != (ssize_t)first)
            return n;
        sim_sleep_ns(1000 * sim_below(is_slow ? 400000 : 500));
    }
    if (sim_is_on() && has_no_power[sim_host()]) {
        errno = EIO;
        return -1;
    }
    ssize_t n = __real_pwrite(fd, (const char *)bytes + first, count - first, at + (off_t)first);
    return n < 0 ? n : n + (ssize_t)first;
}

/* ---- the manager ----------------------------------------------------------------------------- */

static void manager_open(void)
{
    SAY("the manager starts");
    sim_enter_host(SIM_MANAGER_HOST);
    sim_manager_open(fleet.folder);
    sim_enter_host(0);
}

static void manager_stop(void)
{
    SAY("the manager stops");
    sim_manager_stop();
    SAY("the manager has stopped");
}

static void manager_kill(void)
{
    SAY("the manager loses power");
    sim_sockets_down(SIM_MANAGER_HOST, sim_below(2) == 0);
    has_no_power[SIM_MANAGER_HOST] = true;
    sim_manager_fail(1000);
    manager_stop();
    sim_manager_fail(fleet.failures);
    has_no_power[SIM_MANAGER_HOST] = false;
    sim_sockets_up(SIM_MANAGER_HOST);
}

static void manager_restart(void)
{
    if (sim_below(3) > 0)
        manager_kill();
    else
        manager_stop();
    sim_sleep_ns(sim_below(3) * sim_below(3000 * TIERCE__MS_NS));
    manager_open();
}

static void check_quota(void)
{
    struct sim_usage usage = sim_manager_usage();
    REQUIRE(usage.bytes <= fleet.capacity, "%llu bytes of %llu", (unsigned long long)usage.bytes,
            (unsigned long long)fleet.capacity);
}

static void cut_some(bool is_over)
{
    static const unsigned hosts[] = {NODE_HOST, SIM_MANAGER_HOST, SIM_ENGINE_HOST,
                                     SIM_ENGINE_HOST + 1};
    for (size_t a = 0; a < 4; a++)
        for (size_t b = 0; b < a; b++)
            sim_sockets_cut(hosts[a], hosts[b], !is_over && sim_below(8) == 0);
}

/* ---- the node -------------------------------------------------------------------------------- */

static void node_open(void)
{
    char disk[128];
    char *args[] = {(char *)(uintptr_t) "--memory.size=1MiB",
                    (char *)(uintptr_t) "--listen.resp=false",
                    (char *)(uintptr_t) "--listen.lm=false",
                    (char *)(uintptr_t) "--listen.native=",
                    (char *)(uintptr_t) "--pool.manager=fleet://127.0.0.1:6381/p",
                    (char *)(uintptr_t) "--pool.name=n",
                    (char *)(uintptr_t) "--pool.memory=1MiB",
                    (char *)(uintptr_t) "--pool.disk_size=4MiB",
                    (char *)(uintptr_t) "--pool.disk_buffer=1MiB",
                    (char *)(uintptr_t) "--serve.drain=10s",
                    disk};
    snprintf(disk, sizeof(disk), "--pool.disk=%s", fleet.disk);
    SAY("the node starts");
    sim_enter_host(NODE_HOST);
    harness_start(&fleet.node, sizeof(args) / sizeof(args[0]), args);
    sim_enter_host(0);
}

/* Calls of the disk that are late to return would keep their memory: none is. */
static void node_stop(void)
{
    SAY("the node stops");
    fleet.hurries = true;
    sim_sleep_ns(1000 * TIERCE__MS_NS);
    harness_stop(&fleet.node);
    fleet.hurries = false;
    SAY("the node has stopped");
}

static void node_kill(void)
{
    SAY("the node loses power");
    sim_sockets_down(NODE_HOST, sim_below(2) == 0);
    has_no_power[NODE_HOST] = true;
    node_stop();
    has_no_power[NODE_HOST] = false;
    sim_sockets_up(NODE_HOST);
}

static void node_restart(void)
{
    cut_some(true);
    if (sim_below(3) > 0)
        node_kill();
    else
        node_stop();
    sim_sleep_ns(sim_below(3) * sim_below(5000 * TIERCE__MS_NS));
    node_open();
}

/* ---- faults ---------------------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static void mount(bool is_mounted)
{
    if (is_mounted != fleet.is_unmounted)
        return;
    SAY("the folder is %s", is_mounted ? "mounted" : "unmounted");
    if (is_mounted)
        (void)nftw(fleet.files, remove_entry, 8, FTW_DEPTH | FTW_PHYS); /* below the mount */
    const char *from = is_mounted ? fleet.away : fleet.files;
    ck_assert_int_eq(rename(from, is_mounted ? fleet.files : fleet.away), 0);
    if (!is_mounted)
        ck_assert_int_eq(mkdir(fleet.files, 0700), 0);
    fleet.is_unmounted = !is_mounted;
    fleet.was_unmounted = true;
}

static void stall(unsigned host)
{
    uint64_t ns = sim_below(sim_below(2) == 0 ? 50 : 8000) * TIERCE__MS_NS;
    SAY("host %u stalls for %.3f s", host, (double)ns / 1e9);
    sim_stall(host, ns);
    sim_sleep_ns(ns);
}

static void disturb(void)
{
    uint64_t kill_at = sim_below(2) == 0 ? sim_below(TURNS) : UINT64_MAX;
    struct sim_engine *victim = &sim.engines[sim_below(sim.count)];
    for (uint64_t i = 0; i < TURNS; i++) {
        sim_sleep_ns(sim_below(300 * TIERCE__MS_NS));
        if (i == kill_at)
            engine_kill(victim);
        if (sim_net.fails && sim_below(2) == 0)
            cut_some(false);
        uint64_t what = sim_net.fails ? sim_below(60) : 59;
        if (what < 2)
            manager_restart();
        else if (what < 4)
            node_restart();
        else if (what < 6)
            stall(what == 4 ? NODE_HOST : SIM_MANAGER_HOST);
        else if (what < 8)
            mount(fleet.is_unmounted);
        check_quota();
    }
    cut_some(true);
    mount(true);
}

/* An engine that ended silently would keep a node that stops until its time is over. */
static void unplug(unsigned host)
{
    sim_sockets_down(host, false);
    has_no_power[host] = true;
}

/* ---- at rest --------------------------------------------------------------------------------- */

/* Nothing fails, and all that was noticed late is over. */
static void recover(void)
{
    sim_manager_fail(0);
    sim_sockets_reset_some(false);
    sim_net.fails = false;
    sim_sleep_ns(15000 * TIERCE__MS_NS);
}

/* Each block that the manager serves can be loaded, except blocks that were written below a mount
 * point: the engine misses the first such block of a prompt, and reports it to the manager. */
static void check_prompt(struct session *s, size_t prompt, bool may_miss)
{
    const uint32_t remote = 1u << TIERCE_ORIGIN_REMOTE;
    struct tierce_chain *chain = sim_chain(s->e, prompt, LONGEST);
    uint64_t found = look(s, chain, LONGEST, 0, remote).blocks;
    size_t loaded = SIZE_MAX;
    for (int i = 0; i < 20 && found > 0 && loaded == SIZE_MAX; i++)
        loaded = load_from(s, chain, prompt, 0, found, remote);
    REQUIRE(loaded >= found || may_miss, "prompt %zu: %llu blocks are served, and %zu loaded",
            prompt, (unsigned long long)found, loaded);
    fleet.served += found > 0 ? loaded : 0;
    tierce_chain_destroy(chain);
}

/* Nothing fails now, so every call of the manager is answered in time. */
static void hear_well(void *arg, enum tierce_log_level level, const char *event, const char *detail)
{
    (void)arg;
    (void)level;
    SAY("%s %s", event, detail);
    REQUIRE(strcmp(event, "tier_out_of_service") != 0 || strstr(detail, "tier=fleet") == NULL, "%s",
            detail);
}

static void check_served(void)
{
    struct session s = {.e = &sim.engines[0], .number = 99};
    memory_begin(&s.memory);
    engine_open(s.e);
    tierce_set_log_fn(hear_well, NULL, TIERCE_LOG_WARN);
    sim_keep_time(true);
    for (int left = fleet.was_unmounted ? CHUNKS : 0; left >= 0; left--) {
        fleet.served = 0;
        for (size_t p = 0; p < PROMPTS; p++)
            check_prompt(&s, p, left > 0);
        sim_sleep_ns(3000 * TIERCE__MS_NS);
    }
    SAY("%llu blocks are served", (unsigned long long)fleet.served);
    sim_keep_time(false);
    memory_end(&s.memory);
    engine_close(s.e);
}

static int count_file(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)at;
    REQUIRE(type != FTW_F || strstr(path, "/" TIERCE__STORAGE_MARK) != NULL, "the file %s is left",
            path);
    return 0;
}

/* Removes all blocks. Nothing is left, within the time that a failed write may go on. */
static void check_end(void)
{
    REQUIRE(sim_manager_trim(), "blocks cannot be removed");
    sim_sleep_ns(11 * 60000 * TIERCE__MS_NS);
    struct sim_usage usage = sim_manager_usage();
    REQUIRE(usage.keys == 0 && usage.sessions == 0 && usage.bytes == 0,
            "%llu keys, %llu sessions and %llu bytes are left", (unsigned long long)usage.keys,
            (unsigned long long)usage.sessions, (unsigned long long)usage.bytes);
    /* A deletion below the mount point finds no file, and leaves one to the scrub. */
    if (!fleet.was_unmounted)
        (void)nftw(fleet.files, count_file, 8, FTW_PHYS);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void name_paths(void)
{
    snprintf(fleet.folder, sizeof(fleet.folder), "/tmp/tierce-sim-XXXXXX");
    temp_folder_make(fleet.folder);
    snprintf(fleet.files, sizeof(fleet.files), "%s/files", fleet.folder);
    snprintf(fleet.away, sizeof(fleet.away), "%s/away", fleet.folder);
    snprintf(fleet.disk, sizeof(fleet.disk), "%s/pool", fleet.folder);
    ck_assert_int_eq(mkdir(fleet.files, 0700), 0);
    for (size_t i = 0; i < SIM_ENGINES; i++) {
        sim.engines[i].number = i;
        sim.engines[i].kept = &sim.engines[i].own;
        snprintf(sim.engines[i].folder, sizeof(sim.engines[i].folder), "%s/engine%zu", fleet.folder,
                 i);
        ck_assert_int_eq(mkdir(sim.engines[i].folder, 0700), 0);
    }
}

static void draw_world(void)
{
    sim.count = 1 + sim_below(2);
    sim.small_disk = sim_below(3) == 0;
    sim.flips = sim_below(3) == 0;
    sim.clear_share = sim_below(3) == 0 ? 6 : 1;
    sim.has_remote = true;
    sim.urls[0] = sim.urls[1] = "fleet://127.0.0.1:6381/default";
    sim.disturb = disturb;
    sim.unplug = unplug;
    sim_net.fails = sim_below(3) > 0;
    sim_sockets_reset_some(sim_net.fails);
    fleet.capacity = (sim_below(2) == 0 ? 30 : 400) * POOL_BYTES;
    fleet.demote = sim_below(2) == 0 ? ",\"demote\":1,\"promote_window_seconds\":60" : "";
    fleet.slots = sim_below(2) == 0 ? "1" : "8";
}

/* Until then the manager would mark whatever is mounted. */
static void await_mark(void)
{
    char mark[128];
    snprintf(mark, sizeof(mark), "%s/" TIERCE__STORAGE_MARK, fleet.files);
    for (int i = 0; access(mark, F_OK) != 0; i++) {
        REQUIRE(i < 200, "the folder has no mark");
        sim_sleep_ns(100 * TIERCE__MS_NS);
    }
    sim_sleep_ns(1000 * TIERCE__MS_NS);
}

static void run(uint64_t number)
{
    uint64_t begun = run_begin(number);
    name_paths();
    sim_start(number);
    draw_world();
    sim_manager_startup(fleet.folder, &(struct sim_startup){fleet.files, fleet.slots, fleet.demote,
                                                            fleet.capacity});
    sim_manager_begin(sim_below(UINT64_MAX));
    manager_open();
    node_open();
    await_mark();
    fleet.failures = sim_net.fails && sim_below(3) == 0 ? 10 : 0;
    sim_manager_fail(fleet.failures);
    for (int i = 0; i < 2; i++) {
        live(false);
        for (unsigned k = 0; k < sim.count; k++) {
            has_no_power[SIM_ENGINE_HOST + k] = false;
            sim_sockets_up(SIM_ENGINE_HOST + k);
        }
    }
    recover();
    check_served();
    if (sim_below(8) == 0)
        check_end();
    node_stop();
    manager_stop();
    sim_manager_end();
    REQUIRE(sim_sockets_open() == 0, "%u descriptors are open", sim_sockets_open());
    run_end(begun);
    temp_folder_remove(fleet.folder);
}

START_TEST(seeds)
{
    run((uint64_t)_i);
}
END_TEST

int main(int argc, char **argv)
{
    struct sim_seeds drawn = sim_seeds(argc, argv, RUNS, LONG_RUNS);
    prints = drawn.is_one;
    return CHECK_RUN("sim_fleet", .seconds = 60, .loops = {{seeds, drawn.first, drawn.end}});
}
