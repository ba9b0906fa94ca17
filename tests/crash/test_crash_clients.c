/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that vanish: threads that leave pins and prefetches behind, and break off stores and
 * loads anywhere; processes that are killed, one after the other, with an engine on one folder.
 * Their resources are released and counted, and no client ever loads a wrong byte.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "silent_log.h"
#include "test_random.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include <tierce/operate.h>
#include <tierce/prefetch.h>

#define PROMPTS 12u
#define BLOCKS  24u
#define CLIENTS 4u
#define LIVES   400u /* of a client, one after the other */

static struct fixture fx;
static struct tierce_chain *prompts[PROMPTS];

static void open_engine(const char *const *sets)
{
    silence_log();
    fx_open(&fx, true, sets);
    for (uint32_t p = 0; p < PROMPTS; p++)
        prompts[p] = fx_chain(&fx, p % 3 + 1000 * (p / 3), BLOCKS, 4 * (p / 3));
}

static void close_engine(void)
{
    for (uint32_t p = 0; p < PROMPTS; p++)
        tierce_chain_destroy(prompts[p]);
    fx_close(&fx);
}

/* ---- threads ---- */

struct client {
    pthread_t thread;
    struct test_random rng;
    uint32_t number;
    int32_t ids[BLOCKS];
    int64_t left_pins;       /* sessions that were left behind with pins */
    int64_t left_prefetches; /* prefetches with PIN that were left behind */
};

static void store_or_break_off(struct client *c, const struct tierce_chain *chain, uint64_t session)
{
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, c->ids);
    struct tierce_store *store;
    what.session = session;
    fx_fill(&fx, chain, 0, BLOCKS, c->ids);
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
    uint32_t layers = test_random_below(&c->rng, 2 * FX_LAYERS);
    for (uint32_t l = 0; store != NULL && l < layers && l < FX_LAYERS; l++)
        ck_assert_int_eq(tierce_store_layer(store, l), 0);
    if (store != NULL && layers % 2 == 0)
        (void)tierce_store_end(store); /* nothing, if a layer is missing */
    else
        tierce_store_abort(store);
}

static void load_or_break_off(struct client *c, const struct tierce_chain *chain, uint64_t session)
{
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, c->ids);
    struct tierce_load *load;
    uint8_t origins[BLOCKS];
    what.session = session;
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    uint32_t layers = test_random_below(&c->rng, 2 * FX_LAYERS);
    for (uint32_t l = 0; l < layers && l < FX_LAYERS; l++)
        ck_assert_int_eq(tierce_load_layer(load, l), 0);
    if (layers < FX_LAYERS) {
        tierce_load_abort(load);
        return;
    }
    (void)tierce_load_end(load, origins);
    for (size_t b = 0; b < BLOCKS; b++) {
        for (uint32_t l = 0; l < FX_LAYERS && origins[b] != TIERCE_ORIGIN_FAILED; l++) {
            const uint8_t *cell = (const uint8_t *)fx.layers[l].base + (size_t)c->ids[b] * 1024;
            ck_assert_uint_eq(cell[0], fx_byte(chain, b, l));
            ck_assert_uint_eq(cell[fx_cells[l] - 1], fx_byte(chain, b, l));
        }
    }
}

/* Pins, and perhaps vanishes: then the pins have a short time, else as long as they like. */
static bool pin_and_vanish(struct client *c, const struct tierce_chain *chain, uint64_t session)
{
    bool vanishes = test_random_below(&c->rng, 4) == 0;
    struct tierce_found found;
    struct tierce_lookup_opts opts = {.size = sizeof(opts),
                                      .flags = TIERCE_LOOKUP_PIN,
                                      .session = session,
                                      .pin_ms = vanishes ? 1 + test_random_below(&c->rng, 20)
                                                         : TIERCE_PIN_MS_MAX};
    ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &opts, &found), 0);
    c->left_pins += vanishes && found.memory_blocks > 0;
    return vanishes;
}

static bool prefetch_and_vanish(struct client *c, const struct tierce_chain *chain,
                                uint64_t session)
{
    bool pins = test_random_below(&c->rng, 2) == 0;
    bool vanishes = test_random_below(&c->rng, 3) == 0;
    struct tierce_prefetch *prefetch;
    struct tierce_prefetch_opts opts = {.size = sizeof(opts),
                                        .flags = pins ? TIERCE_PREFETCH_PIN : 0,
                                        .session = session,
                                        .timeout_ms = 1 + test_random_below(&c->rng, 30)};
    if (vanishes)
        tierce_unpin(fx.view, session); /* pins that were to last */
    ck_assert_int_eq(tierce_prefetch_begin(&prefetch, fx.view, chain, BLOCKS, &opts), 0);
    c->left_prefetches += pins; /* surviving clients may be too late to unpin, too */
    if (!vanishes)
        tierce_prefetch_end(prefetch);
    return vanishes;
}

static void *live_and_die(void *arg)
{
    struct client *c = arg;
    for (uint32_t life = 0; life < LIVES * test_scale(); life++) {
        const struct tierce_chain *chain = prompts[test_random_below(&c->rng, PROMPTS)];
        uint64_t session = 1 + life + ((uint64_t)c->number << 32);
        bool dead = false;
        for (int step = 0; step < 6 && !dead; step++) {
            switch (test_random_below(&c->rng, 4)) {
            case 0:
                dead = pin_and_vanish(c, chain, session);
                break;
            case 1:
                dead = prefetch_and_vanish(c, chain, session);
                break;
            case 2:
                store_or_break_off(c, chain, session);
                break;
            default:
                load_or_break_off(c, chain, session);
                break;
            }
        }
        if (!dead)
            tierce_unpin(fx.view, session);
    }
    return NULL;
}

static void await_baseline(void)
{
    uint64_t give_up = tierce__deadline_in_ms(60000);
    struct tierce_engine_stats s;
    do {
        usleep(1000);
        s = fx_stats(&fx);
    } while ((s.sessions_now > 0 || s.prefetch_bytes_now > 0) && tierce__now_ns() < give_up);
    ck_assert_int_eq(s.sessions_now, 0);
    ck_assert_int_eq(s.pinned_bytes_now, 0);
    ck_assert_int_eq(s.prefetch_bytes_now, 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_ge(tierce_engine_clear(fx.engine, 0, NULL), 0);
    while (fx_stats(&fx).memory_bytes_now > 0 && tierce__now_ns() < give_up)
        usleep(1000);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
}

START_TEST(threads_that_vanish)
{
    struct client clients[CLIENTS];
    struct test_random rng = test_random_start("clients");
    int64_t pins = 0, prefetches = 0;
    open_engine((const char *const[]){"memory.size", "1MiB", "timeout.pin", "20ms", "timeout.store",
                                      _i == 0 ? "0" : "5ms", NULL});
    for (uint32_t i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){.number = i, .rng.state = test_random_u64(&rng)};
        for (int32_t b = 0; b < (int32_t)BLOCKS; b++)
            clients[i].ids[b] = (int32_t)(i * BLOCKS) + b;
        ck_assert_int_eq(pthread_create(&clients[i].thread, NULL, live_and_die, &clients[i]), 0);
    }
    for (uint32_t i = 0; i < CLIENTS; i++) {
        pthread_join(clients[i].thread, NULL);
        pins += clients[i].left_pins;
        prefetches += clients[i].left_prefetches;
    }
    await_baseline();
    ck_assert_int_gt(pins, 0);
    ck_assert_int_ge(fx_stats(&fx).pins_expired, pins);
    ck_assert_int_le(fx_stats(&fx).pins_expired, pins + prefetches);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 0);
    ck_assert_int_eq(fx_stats(&fx).identity_failures, 0);
    close_engine();
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

/* Without prefetches it is known to one how many sessions had to be taken back. */
START_TEST(each_session_that_is_left_is_counted_once)
{
    struct client c = {.rng = test_random_start("sessions")};
    open_engine(NULL);
    for (uint32_t p = 0; p < PROMPTS; p++)
        ck_assert_int_ge(fx_store(&fx, prompts[p], BLOCKS, fx_ids, false), 0);
    for (uint64_t session = 1; session <= 300; session++) {
        if (!pin_and_vanish(&c, prompts[test_random_below(&c.rng, PROMPTS)], session))
            tierce_unpin(fx.view, session);
    }
    await_baseline();
    ck_assert_int_gt(c.left_pins, 0);
    ck_assert_int_eq(fx_stats(&fx).pins_expired, c.left_pins);
    close_engine();
    fx_remove(&fx);
}
END_TEST

/* ---- processes ---- */

/* The assertions note where they are in a file that the parent reads; half a note would spoil
 * it. */
static void keep_to_oneself(int ready)
{
    int nowhere = open("/dev/null", O_WRONLY);
    for (int fd = 3; fd < 64; fd++) {
        if (fd != ready && fd != nowhere && fcntl(fd, F_GETFD) >= 0)
            (void)dup2(nowhere, fd);
    }
}

/* Stores and loads until it is killed; it ends by itself if something is wrong. Reports when it is
 * open, and when some stored chunks are durable. */
static void work_until_killed(uint64_t seed, int ready)
{
    struct client c = {.rng.state = seed};
    keep_to_oneself(ready);
    for (int32_t b = 0; b < (int32_t)BLOCKS; b++)
        c.ids[b] = b;
    open_engine((const char *const[]){"memory.size", "1MiB", "disk.size", "4MiB", "disk.lock_wait",
                                      "60s", "disk.flush_interval", "10ms", NULL});
    if (write(ready, "r", 1) != 1)
        _exit(1);
    bool told = false;
    for (uint64_t session = 1;; session++) {
        const struct tierce_chain *chain = prompts[test_random_below(&c.rng, PROMPTS)];
        (void)pin_and_vanish(&c, chain, session);
        (void)prefetch_and_vanish(&c, chain, session);
        load_or_break_off(&c, chain, session);
        store_or_break_off(&c, chain, session);
        if (!told && fx_stats(&fx).disk_durable_chunks_now > 0)
            told = write(ready, "d", 1) == 1;
        if (fx_stats(&fx).checksum_failures > 0 || fx_stats(&fx).identity_failures > 0)
            _exit(1);
    }
}

START_TEST(processes_that_are_killed)
{
    struct test_random rng = test_random_start("processes");
    snprintf(fx.folder, sizeof(fx.folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(fx.folder);
    for (unsigned round = 0; round < 30 * test_scale(); round++) {
        uint64_t seed = test_random_u64(&rng);
        char byte;
        int ready[2], status;
        ck_assert_int_eq(pipe(ready), 0);
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
            work_until_killed(seed, ready[1]);
            _exit(1);
        }
        close(ready[1]);
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        /* However slow the machine is, one of them has left something. */
        if (round == 0)
            ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        usleep(test_random_below(&rng, 40000));
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
        close(ready[0]);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    /* Chunks of the last process are right, and use no memory. */
    open_engine((const char *const[]){"memory.size", "1MiB", "disk.size", "4MiB", NULL});
    ck_assert_int_gt(fx_stats(&fx).disk_chunks_now, 0);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
    struct client c = {.rng = rng};
    for (int32_t b = 0; b < (int32_t)BLOCKS; b++)
        c.ids[b] = b;
    for (uint32_t i = 0; i < 4 * PROMPTS; i++)
        load_or_break_off(&c, prompts[i % PROMPTS], 0);
    ck_assert_int_gt(fx_stats(&fx).blocks_loaded_disk, 0);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 0);
    ck_assert_int_eq(fx_stats(&fx).identity_failures, 0);
    await_baseline();
    close_engine();
    fx_remove(&fx);
}
END_TEST

CHECK_MAIN("crash_clients", .seconds = 3500,
           .tests = {each_session_that_is_left_is_counted_once, processes_that_are_killed},
           .loops = {{threads_that_vanish, 0, 2}})
