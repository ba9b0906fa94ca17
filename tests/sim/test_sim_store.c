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
 *   - reading ahead (prefetch.ahead, in one run of four) keeps to its budget;
 *   - in the end no pin, lease, byte of a queue, or allocation is left.
 *
 * test_sim_store --seed N [COUNT] runs seeds from N on, each in a process of its own.
 */
#include "check_main.h"
#include "sim_lives.h"
#include "sim_seeds.h"

enum { RUNS = 200, LONG_RUNS = 60000 };

/* Seeds that have failed. A change of the code makes other runs of them, so the error that a seed
 * has found also has a test of its own. 167 found that a load used pinned chunks that a clear had
 * removed, 11419 that a simulated power cut lost synced bytes; the others found errors of the
 * model. */
static const uint64_t corpus[] = {43, 105, 167, 331, 448, 1040, 11347, 11419, 20801};

/* ---- runs --------------------------------------------------------------------------------------
 */

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

static void run(uint64_t number)
{
    uint64_t begun = run_begin(number);
    for (size_t i = 0; i < SIM_ENGINES; i++) {
        sim.engines[i].number = i;
        sim.engines[i].kept = &sim.engines[i].own;
        snprintf(sim.engines[i].folder, sizeof(sim.engines[i].folder), "/tmp/tierce-sim-XXXXXX");
        temp_folder_make(sim.engines[i].folder);
    }
    sim_start(number);
    sim.disturb = disturb;
    sim.urls[0] = "sim://a/0 sim://b/0";
    sim.urls[1] = "sim://a/1 sim://b/1";
    sim.count = 1 + sim_below(2);
    sim.has_remote = sim_below(3) > 0;
    sim.small_disk = sim_below(3) == 0;
    sim.flips = sim_below(3) == 0;
    sim.clear_share = sim_below(3) == 0 ? 6 : 1;
    sim.reads_ahead = number % 4 == 2; /* not drawn: the other runs are the same without it */
    sim_net.fails = sim_below(2) == 0;
    sim_net.damages = sim_below(3) == 0;
    for (int i = 0; i <= LIVES; i++)
        live(i == LIVES);
    sim_net_end();
    run_end(begun);
    for (size_t i = 0; i < SIM_ENGINES; i++)
        temp_folder_remove(sim.engines[i].folder);
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
    struct sim_seeds drawn = sim_seeds(argc, argv, RUNS, LONG_RUNS);
    int known = drawn.are_given ? 0 : (int)(sizeof(corpus) / sizeof(corpus[0]));
    prints = drawn.is_one;
    return CHECK_RUN("sim_store", .seconds = 60,
                     .loops = {{seeds, drawn.first, drawn.end},
                               {known > 0 ? seeds_that_have_failed : NULL, 0, known}},
                     .tests = {drawn.are_given ? NULL : a_seed_repeats_its_run});
}
