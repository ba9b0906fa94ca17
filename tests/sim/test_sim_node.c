/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node with memory and a disk, and engines that use it, on simulated threads, clock, disk and
 * sockets: a seed is a run (sim_sched.h, sim_sockets.h). The engines are its clients by the native
 * protocol, or have tiers of their own and the node as a remote store, by Redis' protocol. The
 * sessions and the model are those of test_sim_store. The node loses power at any place, stops or
 * stalls, and the network is cut, while sessions go on. At all times:
 *
 *   - a block that was loaded has the bytes of one store that has not been aborted;
 *   - what was said to be durable is on the disk of the next life;
 *   - each call ends by its limit (of a client: by that of <tierce/engine.h> for a node);
 *   - without damage no checksum fails; counters add up to the answers;
 *   - in the end no pin, lease, descriptor or allocation is left.
 *
 * test_sim_node --seed N [COUNT] runs seeds from N on, each in a process of its own.
 */
#include "check_main.h"
#include "node_harness.h"
#include "sim_lives.h"
#include "sim_seeds.h"
#include "sim_sockets.h"

#include <sys/stat.h>

enum { RUNS = 100, LONG_RUNS = 20000, TURNS = 12, NODE_HOST = 1 };

/* Seeds that have failed: each found a flush that returned up to 100 ms late. */
static const uint64_t corpus[] = {162, 290, 100390, 101547};

SIM_WRAPS(int, tierce__node_http_start, struct tierce__server **out, struct tierce__node *n,
          uint16_t port, char why[TIERCE_CONFIG_ERROR_BYTES]);
SIM_WRAPS(uint16_t, tierce__server_port, const struct tierce__server *server, size_t listener);

int __wrap_tierce__node_http_start(struct tierce__server **out, struct tierce__node *n,
                                   uint16_t port, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    (void)n;
    (void)port;
    (void)why;
    *out = NULL;
    return 0;
}

uint16_t __wrap_tierce__server_port(const struct tierce__server *server, size_t listener)
{
    (void)server;
    (void)listener;
    return 0;
}

static struct {
    struct node_harness harness;
    struct tierce__vfs *vfs;
    uint64_t starts;
    struct sim_kept kept;
    char folder[32], path[80], disk[80];
} node;

/* ---- the node -------------------------------------------------------------------------------- */

static void node_open(void)
{
    static const char *const policies[] = {"lru", "s3fifo", "sieve", "hazard"};
    static char texts[20][128];
    char *arguments[20];
    const char *const sets[][2] = {
        {"listen.native", sim.has_node ? node.path : ""},
        {"listen.resp", sim.has_node ? "false" : "true"},
        {"listen.resp_port", "6494"},
        {"listen.lm", "false"},
        {"memory.size", "1MiB"},
        {"memory.policy", policies[sim_below(4)]},
        {"disk.path", node.disk},
        {"disk.size", sim.small_disk ? "1MiB" : "16MiB"},
        {"disk.policy", policies[sim_below(4)]},
        {"disk.codec", sim_below(2) == 0 ? "none" : "lossless"},
        {"disk.direct", "false"},
        {"disk.lock_wait", "0"},
        {"disk.flush_interval", sim_below(2) == 0 ? "10ms" : "1s"},
        {"timeout.lookup", "100ms"},
        {"timeout.load", "2s"},
        {"timeout.pin", "3s"},
        {"timeout.close", "90s"},
        {"serve.drain", "500ms"},
    };
    int count = 0;
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        snprintf(texts[count], sizeof(texts[0]), "--%s=%s", sets[i][0], sets[i][1]);
        arguments[count] = texts[count];
        count++;
    }
    SAY("the node starts");
    sim_enter_host(NODE_HOST);
    harness_start(&node.harness, count, arguments);
    node.vfs = sim_disk_take();
    sim_enter_host(0);
    REQUIRE(node.vfs != NULL, "there is no disk");
    node.starts++;
}

static void node_close(void)
{
    sim_disk_end_faults(node.vfs);
    SAY("the node stops");
    harness_stop(&node.harness);
    SAY("the node has stopped");
}

/* The power fails: its disk keeps part of what was not synced, and its sockets end. */
static void node_kill(void)
{
    SAY("the node loses power");
    sim_sockets_down(NODE_HOST, false);
    sim_disk_cut(node.vfs);
    harness_stop(&node.harness);
    sim_sockets_up(NODE_HOST);
    SAY("nothing is left of the node");
}

/* The node is stopped for a while, and says nothing. */
static void node_stall(void)
{
    uint64_t ns = sim_below(sim_below(2) == 0 ? 50 : 5000) * TIERCE__MS_NS;
    SAY("the node stalls for %.3f s", (double)ns / 1e9);
    node.kept.absences++;
    sim_stall(NODE_HOST, ns);
    sim_sleep_ns(ns);
    node.kept.absences++;
}

/* The chunks that were durable are there, unless they were cleared since. */
static void check_node(uint64_t clears)
{
    struct sim_engine inside = {.engine = node.harness.node->engine, .kept = &node.kept};
    struct session s = {.e = &inside, .number = 99};
    struct tierce_namespace ns = fx_namespace();
    const uint32_t disk = 1u << TIERCE_ORIGIN_DISK;
    ck_assert_int_eq(
        tierce_view_open(&inside.view, inside.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}), 0);
    memory_begin(&s.memory);
    sim_keep_time(true); /* a read that is late is no reason for a miss here */
    for (size_t p = 0; p < PROMPTS; p++) {
        uint64_t durable = node.kept.durable[p];
        struct tierce_chain *chain = sim_chain(&inside, p, LONGEST);
        uint64_t found = look(&s, chain, LONGEST, 0, disk).blocks;
        REQUIRE(found >= durable || node.kept.loses || sim.small_disk || node.kept.clears != clears,
                "prompt %zu: %llu blocks are on disk, and %llu were durable", p,
                (unsigned long long)found, (unsigned long long)durable);
        if (found > 0)
            (void)load_from(&s, chain, p, 0, found, disk);
        tierce_chain_destroy(chain);
    }
    sim_keep_time(false);
    memory_end(&s.memory);
    tierce_view_close(inside.view);
}

/* The node goes and comes back, while sessions run. */
static void restart(void)
{
    bool kills = sim_below(3) > 0;
    node.kept.absences++;
    node.kept.clears += 2; /* pins are gone, and what was cleared may come back */
    uint64_t clears = node.kept.clears;
    if (kills)
        node_kill();
    else
        node_close();
    sim_sleep_ns(sim_below(3) * sim_below(1500 * TIERCE__MS_NS));
    if (sim.has_node)
        versions_return(&sim.engines[0]);
    node.kept.clears += 2;
    clears += 2;
    node_open();
    node.kept.absences++;
    if (sim.has_node)
        check_node(clears);
    node.kept.loses = false;
    if (sim_below(2) == 0)
        node.kept.loses |= sim_disk_draw_faults(node.vfs, sim.flips);
}

/* ---- engines --------------------------------------------------------------------------------- */

static void client_open(struct sim_engine *e)
{
    /* A process has one engine for equal settings: two that differ are two processes. */
    const char *const sets[] = {"node.socket",
                                node.path,
                                "timeout.lookup",
                                "100ms",
                                "timeout.load",
                                "2s",
                                "timeout.write",
                                "2s",
                                "timeout.close",
                                e->number == 0 ? "90s" : "91s",
                                "control.socket",
                                "",
                                NULL};
    struct tierce_config *config;
    char why[TIERCE_CONFIG_ERROR_BYTES];
    ck_assert_int_eq(tierce_config_create(&config), 0);
    for (const char *const *set = sets; set[0] != NULL; set += 2)
        ck_assert_msg(tierce_config_set(config, set[0], set[1], why) == 0, "%s", why);
    SAY("engine %zu opens", e->number);
    sim_enter_host(host_of(e));
    e->engine = fx_engine(config);
    tierce_config_destroy(config);
    struct tierce_namespace ns = fx_namespace();
    ck_assert_int_eq(tierce_view_open(&e->view, e->engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    sim_enter_host(0);
    e->calls = (struct sim_calls){0};
}

static void client_close(struct sim_engine *e)
{
    struct tierce_engine_stats stats = engine_stats(e);
    check_calls(e, &stats);
    /* A node that ends gives the memory of its clients to others, which a late read may see. */
    REQUIRE(stats.checksum_failures == 0 || sim.flips || node.starts > 1,
            "%lld wrong checksums at engine %zu", (long long)stats.checksum_failures, e->number);
    SAY("engine %zu closes: %lld lookups, %llu blocks asked for, %llu loaded", e->number,
        (long long)stats.lookups, (unsigned long long)e->calls.asked,
        (unsigned long long)e->calls.loaded);
    tierce_view_close(e->view);
    tierce_engine_close(e->engine);
}

/* An engine ends with its next requests what the node has answered too late. */
static void settle(struct sim_engine *e)
{
    struct session s = {.e = e, .number = 99};
    struct tierce_chain *chain = sim_chain(e, 0, 1);
    for (size_t i = 0; i < 40; i++) {
        (void)look(&s, chain, 1, 0, 0);
        sim_sleep_ns(50 * TIERCE__MS_NS);
    }
    tierce_chain_destroy(chain);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void run_clients(void)
{
    struct session sessions[SESSIONS_MAX] = {0};
    size_t count = sim.count + sim_below(SESSIONS_MAX - sim.count + 1);
    sim.has_node = true;
    sim.node_ms = LOOKUP_MS;
    for (size_t i = 0; i < SIM_ENGINES; i++)
        sim.engines[i].kept = &node.kept;
    node_open();
    for (size_t i = 0; i < sim.count; i++)
        client_open(&sim.engines[i]);
    for (size_t i = 0; i < count; i++) {
        sessions[i].e = &sim.engines[i % sim.count];
        sessions[i].number = i + 1;
        ck_assert_int_eq(pthread_create(&sessions[i].thread, NULL, run_session, &sessions[i]), 0);
    }
    bool only_stalls = sim_below(3) == 0;
    for (size_t i = 0; i < TURNS; i++) {
        sim_sleep_ns(sim_below(600 * TIERCE__MS_NS));
        uint64_t what = sim_below(8);
        if (what < 2 && !only_stalls)
            restart();
        else if (what < 4)
            node_stall();
    }
    for (size_t i = 0; i < count; i++)
        pthread_join(sessions[i].thread, NULL);
    SAY("the sessions have ended");
    sim_sleep_ns((PIN_MS + WRITE_MS + 10000) * TIERCE__MS_NS);
    for (size_t i = 0; i < sim.count; i++)
        settle(&sim.engines[i]);
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    tierce_engine_stats(node.harness.node->engine, &stats);
    REQUIRE(stats.leases_now == 0, "%lld leases are left", (long long)stats.leases_now);
    check_tiers(&stats);
    for (size_t i = 0; i < sim.count; i++)
        client_close(&sim.engines[i]);
    restart();
    node_close();
}

/* The network between engines and node, and the node, while engines run that have tiers of their
 * own. */
static void disturb(void)
{
    uint64_t kill_at = sim_below(2) == 0 ? sim_below(40) : UINT64_MAX;
    struct sim_engine *victim = &sim.engines[sim_below(sim.count)];
    for (uint64_t i = 0; i < 40; i++) {
        sim_sleep_ns(sim_below(200 * TIERCE__MS_NS));
        if (i == kill_at)
            engine_kill(victim);
        bool is_cut = sim_net.fails && sim_below(4) == 0;
        sim_sockets_cut(NODE_HOST, SIM_ENGINE_HOST + (unsigned)sim_below(SIM_ENGINES), is_cut);
        uint64_t what = sim_net.fails ? sim_below(40) : 39;
        if (what == 0)
            restart();
        else if (what == 1)
            node_stall();
    }
    for (unsigned i = 0; i < SIM_ENGINES; i++)
        sim_sockets_cut(NODE_HOST, SIM_ENGINE_HOST + i, false);
}

static void unplug(unsigned host)
{
    sim_sockets_down(host, sim_below(2) == 0);
}

static void run_engines(void)
{
    sim.has_remote = true;
    sim.urls[0] = sim.urls[1] = "redis://127.0.0.1:6494";
    sim.disturb = disturb;
    sim.unplug = unplug;
    sim_net.fails = sim_below(2) == 0;
    sim_sockets_reset_some(sim_net.fails);
    for (size_t i = 0; i < SIM_ENGINES; i++) {
        sim.engines[i].kept = &sim.engines[i].own;
        snprintf(sim.engines[i].folder, sizeof(sim.engines[i].folder), "%s/engine%zu", node.folder,
                 i);
        ck_assert_int_eq(mkdir(sim.engines[i].folder, 0700), 0);
    }
    node_open();
    for (int i = 0; i <= LIVES; i++) {
        live(i == LIVES);
        for (unsigned k = 0; k < SIM_ENGINES; k++)
            sim_sockets_up(SIM_ENGINE_HOST + k);
    }
    node_close();
}

static void run(uint64_t number)
{
    uint64_t begun = run_begin(number);
    snprintf(node.folder, sizeof(node.folder), "/tmp/tierce-sim-XXXXXX");
    temp_folder_make(node.folder);
    snprintf(node.disk, sizeof(node.disk), "%s/node", node.folder);
    ck_assert_int_eq(mkdir(node.disk, 0700), 0);
    snprintf(node.path, sizeof(node.path), "%s/node.sock", node.folder);
    sim_start(number);
    sim.count = 1 + sim_below(2);
    sim.small_disk = sim_below(3) == 0;
    sim.flips = sim_below(3) == 0;
    sim.clear_share = sim_below(3) == 0 ? 6 : 1;
    for (size_t i = 0; i < SIM_ENGINES; i++)
        sim.engines[i].number = i;
    if (sim_below(2) == 0)
        run_clients();
    else
        run_engines();
    REQUIRE(sim_sockets_open() == 0, "%u descriptors are open", sim_sockets_open());
    run_end(begun);
    temp_folder_remove(node.folder);
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

int main(int argc, char **argv)
{
    struct sim_seeds drawn = sim_seeds(argc, argv, RUNS, LONG_RUNS);
    int known = drawn.are_given ? 0 : (int)(sizeof(corpus) / sizeof(corpus[0]));
    prints = drawn.is_one;
    return CHECK_RUN("sim_node", .seconds = 60,
                     .loops = {{seeds, drawn.first, drawn.end},
                               {known > 0 ? seeds_that_have_failed : NULL, 0, known}});
}
