/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_LIVES_H
#define TIERCE_TESTS_SIM_LIVES_H

#include "base/alloc.h"
#include "sim_sessions.h"

/*
 * Lives of simulated engines with tiers of their own: they are opened, used by sessions while the
 * world is disturbed, and closed or killed; the next life finds what was durable.
 */

enum { LIVES = 3, SESSIONS_MAX = 4 };

/* The chunks that were durable are there, and right. */
static void check_durable(struct session *s)
{
    const uint32_t disk = 1u << TIERCE_ORIGIN_DISK;
    for (size_t p = 0; p < PROMPTS; p++) {
        struct tierce_chain *chain = sim_chain(s->e, p, LONGEST);
        uint64_t durable = s->e->kept->durable[p];
        uint64_t found = look(s, chain, LONGEST, 0, disk).blocks;
        REQUIRE(found >= durable || s->e->kept->loses || sim.small_disk || sim_net.damages,
                "engine %zu, prompt %zu: %llu blocks are on disk, and %llu were durable",
                s->e->number, p, (unsigned long long)found, (unsigned long long)durable);
        REQUIRE(found == 0 || !s->e->kept->is_cleared,
                "engine %zu, prompt %zu: %llu blocks are on disk, which was cleared", s->e->number,
                p, (unsigned long long)found);
        if (found > 0)
            (void)load_from(s, chain, p, 0, found, disk);
        s->e->kept->durable[p] = 0;
        tierce_chain_destroy(chain);
    }
}

/* Nothing is found after a clear, and nothing comes back after a flush. */
static void clear_all(struct session *s)
{
    const uint32_t own = 1u << TIERCE_ORIGIN_MEMORY | 1u << TIERCE_ORIGIN_DISK;
    sim_disk_end_faults(s->e->vfs);
    int64_t cleared = tierce_engine_clear(s->e->engine, own, NULL);
    if (cleared < 0) /* the disk may be out of service yet */
        return;
    memset(s->e->kept->durable, 0, sizeof(s->e->kept->durable));
    for (size_t p = 0; p < PROMPTS; p++) {
        struct tierce_chain *chain = sim_chain(s->e, p, LONGEST);
        uint64_t found = look(s, chain, LONGEST, 0, own).blocks;
        REQUIRE(found == 0, "prompt %zu: %llu blocks are found after a clear", p,
                (unsigned long long)found);
        tierce_chain_destroy(chain);
    }
    s->e->kept->is_cleared = tierce_engine_flush(s->e->engine, 20000) == 0;
}

/* The disk has what it should. */
static void life_begin(struct sim_engine *e)
{
    struct session s = {.e = e, .number = 99};
    memory_begin(&s.memory);
    engine_open(e);
    sim_keep_time(true); /* a read that is late is no reason for a miss here */
    check_durable(&s);
    sim_keep_time(false);
    e->kept->loses = false;
    memory_end(&s.memory);
}

/* Long after the last session. */
static void life_end(struct sim_engine *e, bool is_last)
{
    struct session s = {.e = e};
    for (size_t p = 0; p < PROMPTS && !e->is_killed; p++)
        ask_durable(&s, p);
    sim_sleep_ns((LOAD_MS + WRITE_MS) * TIERCE__MS_NS);
    check_quiet(e);
    e->kept->is_cleared = false;
    if (!e->is_killed && sim_below(4) == 0)
        clear_all(&s);
    if (!e->is_killed && !is_last && sim_below(2) == 0)
        engine_kill(e);
    engine_close(e);
}

static inline void live(bool is_last)
{
    struct session sessions[SESSIONS_MAX] = {0};
    size_t count = sim.count + sim_below(SESSIONS_MAX - sim.count + 1);
    for (size_t i = 0; i < sim.count; i++)
        life_begin(&sim.engines[i]);
    for (size_t i = 0; i < sim.count && !is_last; i++) {
        if (sim_below(2) == 0)
            sim.engines[i].kept->loses |= sim_disk_draw_faults(sim.engines[i].vfs, sim.flips);
    }
    for (size_t i = 0; i < count && !is_last; i++) {
        sessions[i].e = &sim.engines[i % sim.count];
        sessions[i].number = i + 1;
        ck_assert_int_eq(pthread_create(&sessions[i].thread, NULL, run_session, &sessions[i]), 0);
    }
    if (!is_last)
        sim.disturb();
    for (size_t i = 0; i < count && !is_last; i++)
        pthread_join(sessions[i].thread, NULL);
    sim_sleep_ns((PIN_MS + WRITE_MS + 10000) * TIERCE__MS_NS);
    for (size_t i = 0; i < sim.count; i++)
        life_end(&sim.engines[i], is_last);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void say_log(void *arg, enum tierce_log_level level, const char *event, const char *detail)
{
    (void)arg;
    (void)level;
    SAY("%s %s", event, detail);
}

/* Before anything of the run is made; for run_end. */
static uint64_t run_begin(uint64_t number)
{
    run_seed = number;
    tierce_set_log_fn(say_log, NULL, TIERCE_LOG_WARN);
    return tierce__alloc_live();
}

/* After the last call of the run. */
static void run_end(uint64_t begun)
{
    REQUIRE(tierce__alloc_live() == begun, "%lld allocations are left",
            (long long)tierce__alloc_live() - (long long)begun);
    sim_stop();
    if (prints)
        printf("seed %llu: %.3f s, %llu switches, digest %016llx\n", (unsigned long long)run_seed,
               (double)sim_now_ns() / 1e9, (unsigned long long)sim_switches(),
               (unsigned long long)sim_digest());
}

#endif
