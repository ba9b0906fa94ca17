/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines that read each other's chunks, and the directory by which they find them, on simulated
 * threads, clock, disks and sockets: a seed is a run (sim_sched.h, sim_sockets.h). Each engine has
 * a host of its own, loses power or closes, and is opened again while the others go on. The
 * sessions and the model are those of test_sim_store. The network between two hosts is cut,
 * connections are reset, hosts stall, and the directory starts again with an empty table and
 * another secret. At all times:
 *
 *   - a block that was loaded has the bytes of one store that has not been aborted;
 *   - what was said to be durable is on the disk of the next life;
 *   - each call ends by its limit;
 *   - counters add up to the answers;
 *   - in the end no pin, lease, descriptor or allocation is left.
 *
 * test_sim_peers --seed N [COUNT] runs seeds from N on, each in a process of its own.
 */
#include "check_main.h"
#include "engine/peer/peers.h"
#include "sim_lives.h"
#include "sim_manager.h"
#include "sim_seeds.h"
#include "sim_sockets.h"

#include <sys/stat.h>
#include <sys/wait.h>

enum { RUNS = 50, LONG_RUNS = 20000, PEER_LIVES = 2, TURN_MS = 400, STALL_MS = 3000 };

SIM_WRAPS(void, tierce__host_id, char out[40]);
SIM_WRAPS(int, gethostname, char *name, size_t room);
SIM_WRAPS(pid_t, getpid, void);

/* Names are as long on every machine. */
void __wrap_tierce__host_id(char out[40])
{
    snprintf(out, 40, "host-%u", sim_is_on() ? sim_host() : 0);
}

int __wrap_gethostname(char *name, size_t room)
{
    if (!sim_is_on())
        return __real_gethostname(name, room);
    snprintf(name, room, "host-%u", sim_host());
    return 0;
}

pid_t __wrap_getpid(void)
{
    return sim_is_on() ? 1000 : __real_getpid();
}

/* An engine beside the others. */
static struct member {
    struct sim_engine *e;
    pthread_t thread;
    bool is_disturbed; /* somebody is about to, and it must not end */
    bool may_be;       /* its sessions run */
    bool has_ended;
} members[SIM_ENGINES];

static char folder[32];
static uint64_t chunks_of_peers; /* that the engines of the run have read */

/* ---- engines --------------------------------------------------------------------------------- */

static void run_sessions(struct member *m)
{
    struct session sessions[2] = {0};
    size_t count = 1 + sim_below(2);
    for (size_t i = 0; i < count; i++) {
        sessions[i].e = m->e;
        sessions[i].number = i + 1;
        ck_assert_int_eq(pthread_create(&sessions[i].thread, NULL, run_session, &sessions[i]), 0);
    }
    m->may_be = true;
    for (size_t i = 0; i < count; i++)
        pthread_join(sessions[i].thread, NULL);
    m->may_be = false;
    while (m->is_disturbed)
        sim_sleep_ns(TIERCE__MS_NS);
}

static void count_peers(const struct sim_engine *e)
{
    struct tierce__peers_stats stats;
    if (!tierce__peers_stats(e->engine->peers, &stats))
        return;
    chunks_of_peers += stats.read.chunks;
    SAY("engine %zu: %llu chunks of peers; %llu lent from memory, %llu from disk", e->number,
        (unsigned long long)stats.read.chunks, (unsigned long long)stats.served.memory_hits,
        (unsigned long long)stats.served.disk_hits);
}

static void *run_member(void *arg)
{
    struct member *m = arg;
    for (int i = 0; i <= PEER_LIVES; i++) {
        bool is_last = i == PEER_LIVES;
        sim_sockets_up(host_of(m->e));
        life_begin(m->e);
        if (!is_last && sim_below(2) == 0)
            m->e->kept->loses |= sim_disk_draw_faults(m->e->vfs, sim.flips);
        if (!is_last)
            run_sessions(m);
        sim_sleep_ns((PIN_MS + WRITE_MS + 10000) * TIERCE__MS_NS);
        count_peers(m->e);
        life_end(m->e, is_last);
        sim_sleep_ns(sim_below(2) * sim_below(3000 * TIERCE__MS_NS));
    }
    m->has_ended = true;
    return NULL;
}

/* ---- the directory --------------------------------------------------------------------------- */

/* A manager that starts knows no peer, and has another secret. */
static void directory_open(void)
{
    SAY("the directory starts");
    sim_enter_host(SIM_MANAGER_HOST);
    sim_manager_open(folder);
    sim_enter_host(0);
}

static void directory_close(bool loses_power)
{
    SAY("the directory %s", loses_power ? "loses power" : "stops");
    if (loses_power)
        sim_sockets_down(SIM_MANAGER_HOST, sim_below(2) == 0);
    sim_manager_stop();
    if (loses_power)
        sim_sockets_up(SIM_MANAGER_HOST);
}

static void unplug(unsigned host)
{
    sim_sockets_down(host, sim_below(2) == 0);
}

/* ---- the world ------------------------------------------------------------------------------- */

static void disturb_member(struct member *m, uint64_t what)
{
    if (!m->may_be || m->e->is_killed)
        return;
    m->is_disturbed = true;
    if (what == 0) {
        engine_kill(m->e);
    } else {
        uint64_t ns = sim_below(sim_below(2) == 0 ? 50 : STALL_MS) * TIERCE__MS_NS;
        SAY("engine %zu stalls for %.3f s", m->e->number, (double)ns / 1e9);
        sim_stall(host_of(m->e), ns);
    }
    m->is_disturbed = false;
}

static void disturb_directory(uint64_t what)
{
    if (what == 0) {
        directory_close(sim_below(2) == 0);
        sim_sleep_ns(sim_below(3) * sim_below(1500 * TIERCE__MS_NS));
        directory_open();
    } else {
        sim_stall(SIM_MANAGER_HOST, sim_below(STALL_MS) * TIERCE__MS_NS);
    }
}

static unsigned draw_host(void)
{
    uint64_t drawn = sim_below(1 + sim.count);
    return drawn == sim.count ? SIM_MANAGER_HOST : SIM_ENGINE_HOST + (unsigned)drawn;
}

static void cut_some(void)
{
    unsigned one = draw_host(), other = draw_host();
    if (one != other)
        sim_sockets_cut(one, other, sim_below(4) == 0);
}

static void join_all(void)
{
    for (unsigned one = SIM_ENGINE_HOST; one <= SIM_MANAGER_HOST; one++)
        for (unsigned other = SIM_ENGINE_HOST; other < one; other++)
            sim_sockets_cut(one, other, false);
}

static bool have_ended(void)
{
    bool have = true;
    for (size_t i = 0; i < sim.count; i++)
        have &= members[i].has_ended;
    return have;
}

static void disturb(void)
{
    while (!have_ended()) {
        sim_sleep_ns(sim_below(TURN_MS * TIERCE__MS_NS));
        uint64_t what = sim_net.fails ? sim_below(24) : 23;
        if (what < 4)
            disturb_member(&members[sim_below(sim.count)], what);
        else if (what < 6)
            disturb_directory(what - 4);
        else if (what < 14)
            cut_some();
        else if (what < 16)
            join_all();
    }
    join_all();
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void prepare(void)
{
    static char urls[SIM_ENGINES][64];
    sim.count = 2 + sim_below(SIM_ENGINES - 1);
    sim.has_remote = true;
    sim.small_disk = sim_below(3) == 0;
    sim.flips = sim_below(3) == 0;
    sim.clear_share = sim_below(3) == 0 ? 6 : 1;
    sim.unplug = unplug;
    sim_net.fails = sim_below(4) > 0;
    sim_sockets_reset_some(sim_net.fails);
    for (size_t i = 0; i < sim.count; i++) {
        struct sim_engine *e = &sim.engines[i];
        e->number = i;
        e->kept = &e->own;
        snprintf(urls[i], sizeof(urls[i]), "peers://127.0.0.1:%d?connections=%llu",
                 SIM_MANAGER_PORT, (unsigned long long)(2 + sim_below(3)));
        sim.urls[i] = urls[i];
        snprintf(e->folder, sizeof(e->folder), "%s/engine%zu", folder, i);
        ck_assert_int_eq(mkdir(e->folder, 0700), 0);
        members[i] = (struct member){.e = e};
    }
}

static void run(uint64_t number)
{
    uint64_t begun = run_begin(number);
    snprintf(folder, sizeof(folder), "/tmp/tierce-sim-XXXXXX");
    temp_folder_make(folder);
    sim_start(number);
    prepare();
    sim_manager_startup(folder, &(struct sim_startup){folder, "1", "", 1 << 20});
    sim_manager_begin(sim_below(UINT64_MAX));
    directory_open();
    for (size_t i = 0; i < sim.count; i++)
        ck_assert_int_eq(pthread_create(&members[i].thread, NULL, run_member, &members[i]), 0);
    disturb();
    for (size_t i = 0; i < sim.count; i++)
        pthread_join(members[i].thread, NULL);
    directory_close(false);
    sim_manager_end();
    REQUIRE(sim_sockets_open() == 0, "%u descriptors are open", sim_sockets_open());
    run_end(begun);
    temp_folder_remove(folder);
}

START_TEST(seeds)
{
    run((uint64_t)_i);
}
END_TEST

/* Otherwise the runs show nothing. */
START_TEST(chunks_come_from_peers)
{
    bool has_read = false;
    for (uint64_t number = 1; number <= 10 && !has_read; number++) {
        int status;
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
            run(number);
            _exit(chunks_of_peers > 0 ? 0 : 3);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFEXITED(status));
        has_read = WEXITSTATUS(status) == 0;
    }
    ck_assert(has_read);
}
END_TEST

int main(int argc, char **argv)
{
    struct sim_seeds drawn = sim_seeds(argc, argv, RUNS, LONG_RUNS);
    prints = drawn.is_one;
    return CHECK_RUN("sim_peers", .seconds = 60, .loops = {{seeds, drawn.first, drawn.end}},
                     .tests = {drawn.are_given ? NULL : chunks_come_from_peers});
}
