/* SPDX-License-Identifier: Apache-2.0 */
/* Loads larger than the node's memory: they pass through it chunk by chunk, in parallel, and a
 * client that dies in between leaves nothing behind. */
#define TIERCE_TEST_NODE
#include "base/clock.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "native_harness.h"
#include "node/native/native_server.h"
#include "test_random.h"
#include "wait_for.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#define BLOCKS 480u /* of a prompt: about half of its chunks fit into 1 MiB */
#define CHUNKS (BLOCKS / FX_CHUNK_BLOCKS)
#define STEP   40u

static struct fixture fx;
static int32_t ids[BLOCKS];
static struct native_client bare;

static void open_node(const char *load_timeout)
{
    const char *sets[] = {"memory.size", "1MiB",        "disk.queue", "1MiB", "timeout.load",
                          load_timeout,  "serve.drain", "200ms",      NULL};
    for (int32_t b = 0; b < (int32_t)BLOCKS; b++)
        ids[b] = b;
    fx_open(&fx, true, sets);
}

static void close_node(void)
{
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* On disk whole, and in memory as far as it fits. */
static struct tierce_chain *stored(uint32_t seed)
{
    struct tierce_chain *chain = fx_chain(&fx, seed, BLOCKS, 0);
    for (size_t to = STEP; to <= BLOCKS; to += STEP) {
        ck_assert_int_eq(fx_store(&fx, chain, to, ids, false), STEP);
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    }
    return chain;
}

static struct tierce__native_stats held(void)
{
    struct tierce__native_stats out;
    tierce__native_stats(fx.node.node->native, &out);
    return out;
}

static void socket_path(char out[80])
{
    snprintf(out, 80, "%s/node", fx.socket_folder);
}

static uint32_t passing(void)
{
    return atomic_load(&fx.engine->passing);
}

/* There are no references: all of memory can be cleared. */
static void expect_baseline(void)
{
    WAIT_WITHIN(30000, held().held_bytes == 0);
    ck_assert_uint_eq(held().loads, 0);
    ck_assert_int_ge(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
    /* A lease gives its memory back before it is no longer counted. */
    for (int i = 0; i < 3000 && (fx_stats(&fx).memory_bytes_now > 0 || passing() > 0); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
    ck_assert_uint_eq(passing(), 0);
}

/* An engine of its own that asks the same node, with paged memory of its own. */
struct reader {
    struct fixture fx;
    struct tierce_engine *engine;
    const struct tierce_chain *chain;
    pthread_t thread;
    int rounds;
    int64_t loaded; /* in all rounds */
    uint32_t wrong;
};

static void reader_open(struct reader *reader, const char *path, const char *lookup,
                        const struct tierce_chain *chain)
{
    struct tierce_config *config;
    char why[TIERCE_CONFIG_ERROR_BYTES];
    *reader = (struct reader){.chain = chain};
    NATIVE_ASSERT(tierce_config_create(&config) == 0);
    NATIVE_ASSERT(tierce_config_set(config, "node.socket", path, why) == 0);
    NATIVE_ASSERT(tierce_config_set(config, "timeout.lookup", lookup, why) == 0);
    NATIVE_ASSERT(tierce_engine_open(&reader->engine, config, why) == 0);
    tierce_config_destroy(config);
    struct tierce_namespace ns = fx_namespace();
    NATIVE_ASSERT(tierce_view_open(&reader->fx.view, reader->engine, &ns,
                                   &(struct tierce_shard){0, 1, 0, 1}) == 0);
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        reader->fx.layers[l] =
            (struct tierce_paged_layer){calloc(FX_BLOCKS, 1024), 1024, fx_cells[l]};
    reader->fx.paged = (struct tierce_paged){sizeof(reader->fx.paged), reader->fx.layers, FX_LAYERS,
                                             FX_BLOCKS, TIERCE_DEVICE_HOST};
}

static void reader_close(struct reader *reader)
{
    tierce_view_close(reader->fx.view);
    tierce_engine_close(reader->engine);
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        free(reader->fx.layers[l].base);
}

/* Whatever is said to have been loaded is right. */
static int64_t reader_load(struct reader *reader)
{
    uint8_t origins[BLOCKS];
    struct tierce_transfer_opts what = fx_what(&reader->fx, reader->chain, 0, BLOCKS, ids);
    fx_wipe(&reader->fx);
    int64_t loaded = tierce_load(reader->fx.view, &what, origins);
    for (size_t b = 0; b < BLOCKS; b++)
        reader->wrong +=
            origins[b] != TIERCE_ORIGIN_FAILED && !fx_right(&reader->fx, reader->chain, b, ids[b]);
    return loaded;
}

static void *run_reader(void *arg)
{
    struct reader *reader = arg;
    for (int i = 0; i < reader->rounds; i++)
        reader->loaded += reader_load(reader);
    return NULL;
}

START_TEST(two_at_once_are_both_loaded_whole)
{
    static struct reader readers[3];
    char path[80];
    open_node("120s");
    socket_path(path);
    struct tierce_chain *chains[] = {stored(1), stored(2)};
    const char *const lookups[] = {"6s", "7s", "8s"};
    for (size_t i = 0; i < 3; i++) {
        reader_open(&readers[i], path, lookups[i], chains[i % 2]);
        readers[i].rounds = 4;
        ck_assert_int_eq(pthread_create(&readers[i].thread, NULL, run_reader, &readers[i]), 0);
    }
    for (size_t i = 0; i < 3; i++) {
        pthread_join(readers[i].thread, NULL);
        ck_assert_int_eq(readers[i].loaded, 4 * (int64_t)BLOCKS);
        ck_assert_uint_eq(readers[i].wrong, 0);
        reader_close(&readers[i]);
    }
    ck_assert_int_le(fx_stats(&fx).memory_bytes_now, fx_stats(&fx).memory_cap_bytes);
    expect_baseline();
    tierce_chain_destroy(chains[0]);
    tierce_chain_destroy(chains[1]);
    close_node();
}
END_TEST

/* ---- a load that begins while another one waits for memory ---- */

/* A load whose beginning has taken all memory stops there until another one waits for memory, or
 * has ended. */
static struct {
    _Atomic bool armed, has_taken_all, goes_on;
} stopped;

struct tierce__buf *__real_tierce__storage_reserve(struct tierce_engine *engine,
                                                   const struct tierce__storage_chunk *chunk,
                                                   const struct tierce__buf *before);
struct tierce__buf *__wrap_tierce__storage_reserve(struct tierce_engine *engine,
                                                   const struct tierce__storage_chunk *chunk,
                                                   const struct tierce__buf *before);
bool __real_tierce__pool_turn_wait(struct tierce__pool_turn *turn, uint64_t deadline_ns);
bool __wrap_tierce__pool_turn_wait(struct tierce__pool_turn *turn, uint64_t deadline_ns);

static void wait_until(const _Atomic bool *flag)
{
    while (!atomic_load(flag))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

struct tierce__buf *__wrap_tierce__storage_reserve(struct tierce_engine *engine,
                                                   const struct tierce__storage_chunk *chunk,
                                                   const struct tierce__buf *before)
{
    struct tierce__buf *buf = __real_tierce__storage_reserve(engine, chunk, before);
    if (buf == NULL && atomic_exchange(&stopped.armed, false)) {
        atomic_store(&stopped.has_taken_all, true);
        wait_until(&stopped.goes_on);
    }
    return buf;
}

bool __wrap_tierce__pool_turn_wait(struct tierce__pool_turn *turn, uint64_t deadline_ns)
{
    if (atomic_load(&stopped.has_taken_all))
        atomic_store(&stopped.goes_on, true);
    return __real_tierce__pool_turn_wait(turn, deadline_ns);
}

/* It passes through memory later, so the other one waits for it. */
START_TEST(one_that_begins_has_all_memory)
{
    static struct reader first, second;
    char path[80];
    open_node("120s");
    socket_path(path);
    struct tierce_chain *chains[] = {stored(1), stored(2)};
    reader_open(&first, path, "60s", chains[0]);
    reader_open(&second, path, "61s", chains[1]);
    first.rounds = 1;
    atomic_store(&stopped.armed, true);
    ck_assert_int_eq(pthread_create(&first.thread, NULL, run_reader, &first), 0);
    wait_until(&stopped.has_taken_all);
    ck_assert_int_eq(reader_load(&second), BLOCKS);
    atomic_store(&stopped.goes_on, true);
    pthread_join(first.thread, NULL);
    ck_assert_int_eq(first.loaded, BLOCKS);
    ck_assert_uint_eq(first.wrong + second.wrong, 0);
    reader_close(&first);
    reader_close(&second);
    expect_baseline();
    tierce_chain_destroy(chains[0]);
    tierce_chain_destroy(chains[1]);
    close_node();
}
END_TEST

/* ---- a bare client, which stops where it wants to ---- */

static struct tierce__native_lent lent[CHUNKS];

static uint64_t begin(const struct tierce_chain *chain)
{
    union tierce__native_answer say;
    ck_assert_int_eq(native_load_begin(&bare, &say, chain, 1, 0), 0);
    ck_assert_uint_eq(say.load_begin.chunks.count, CHUNKS);
    for (uint32_t i = 0; i < CHUNKS; i++)
        ck_assert_int_eq(tierce__native_get_lent(&lent[i], &say.load_begin.chunks, i), 0);
    return say.load_begin.load;
}

/* Chunks for which there was no room at the beginning. */
static uint32_t waiting(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < CHUNKS; i++)
        count += lent[i].state == TIERCE__NATIVE_WAITS;
    return count;
}

static int32_t next(uint64_t load, uint32_t chunk, uint32_t verdict)
{
    union tierce__native_answer say;
    union tierce__native_request ask = {
        .load_next = {.load = load, .chunk = chunk, .verdict = verdict}};
    int32_t status = native_ask(&bare, TIERCE__NATIVE_LOAD_NEXT, &ask, &say, NULL);
    if (status == 0 && chunk < CHUNKS) {
        lent[chunk].offset = say.load_next.offset;
        lent[chunk].state = (uint8_t)say.load_next.state;
        lent[chunk].origin = (uint8_t)say.load_next.origin;
    }
    return status;
}

static void expect_chunk(const struct tierce_chain *chain, uint32_t i)
{
    ck_assert_uint_eq(lent[i].state, TIERCE__NATIVE_HERE);
    ck_assert(native_right(&bare, &lent[i], chain));
}

START_TEST(a_client_that_goes_in_the_middle)
{
    char path[80];
    open_node("60s");
    socket_path(path);
    struct tierce_chain *chain = stored(1);
    for (uint32_t stop = 0; stop <= CHUNKS; stop += CHUNKS / 5) {
        native_open(&bare, path);
        uint64_t load = begin(chain);
        ck_assert_uint_gt(waiting(), 0);
        for (uint32_t i = 0; i < stop; i++) {
            ck_assert_int_eq(next(load, i, TIERCE__NATIVE_GOOD), 0);
            expect_chunk(chain, i);
            ck_assert_uint_le(held().held_bytes, (uint64_t)fx_stats(&fx).memory_cap_bytes);
        }
        native_close(&bare, true);
        expect_baseline();
    }
    tierce_chain_destroy(chain);
    close_node();
}
END_TEST

START_TEST(what_is_asked_wrongly)
{
    char path[80];
    open_node("60s");
    socket_path(path);
    struct tierce_chain *chain = stored(1);
    native_open(&bare, path);
    uint64_t load = begin(chain);
    ck_assert_int_eq(next(load + 9, 0, TIERCE__NATIVE_UNUSED), TIERCE__NATIVE_UNKNOWN);
    ck_assert_int_eq(next(load, CHUNKS, TIERCE__NATIVE_UNUSED), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(next(load, 0, TIERCE__NATIVE_UNUSED + 1), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(next(load, 3, TIERCE__NATIVE_UNUSED), 0);
    expect_chunk(chain, 3);
    ck_assert_int_eq(next(load, 3, TIERCE__NATIVE_GOOD), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(next(load, 2, TIERCE__NATIVE_GOOD), TIERCE_E_ARGUMENT);
    /* A chunk that is called bad is looked at, and stays. */
    ck_assert_int_eq(next(load, 4, TIERCE__NATIVE_WRONG_HEADER), 0);
    ck_assert_int_eq(next(load, CHUNKS - 1, TIERCE__NATIVE_BAD_CELLS), 0);
    expect_chunk(chain, CHUNKS - 1);
    union tierce__native_request ask = {.load_end = {.load = load}};
    ck_assert_int_eq(native_ask(&bare, TIERCE__NATIVE_LOAD_END, &ask, NULL, NULL), 0);
    ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, 0, 0, NULL), BLOCKS);
    /* One that fits is not gone through. */
    struct tierce_chain *small = fx_chain(&fx, 3, 8, 0);
    union tierce__native_answer say;
    ck_assert_int_eq(fx_store(&fx, small, 8, ids, false), 8);
    ck_assert_int_eq(native_load_begin(&bare, &say, small, 2, 0), 0);
    ck_assert_int_eq(next(say.load_begin.load, 0, TIERCE__NATIVE_UNUSED), TIERCE_E_ARGUMENT);
    native_close(&bare, true);
    expect_baseline();
    tierce_chain_destroy(small);
    tierce_chain_destroy(chain);
    close_node();
}
END_TEST

/* If the last chunk is missing, no load waits for memory that its load releases. */
START_TEST(the_last_chunk_is_gone)
{
    char path[80], data[96];
    open_node("60s");
    socket_path(path);
    struct tierce_chain *chain = stored(1), *other = stored(2); /* which fills memory */
    native_open(&bare, path);
    uint64_t load = begin(chain);
    ck_assert_uint_eq(lent[CHUNKS - 1].state, TIERCE__NATIVE_WAITS);
    for (uint32_t i = 0; i < CHUNKS - 2; i++) /* the next but one is not read ahead */
        ck_assert_int_eq(next(load, i, TIERCE__NATIVE_GOOD), 0);
    snprintf(data, sizeof(data), "%s/data", fx.folder);
    ck_assert_int_eq(truncate(data, 0), 0);
    ck_assert_uint_eq(passing(), 1);
    ck_assert_int_eq(next(load, CHUNKS - 1, TIERCE__NATIVE_GOOD), 0);
    ck_assert_uint_eq(lent[CHUNKS - 1].state, TIERCE__NATIVE_FAILED);
    ck_assert_uint_eq(passing(), 0);
    native_close(&bare, true);
    expect_baseline();
    tierce_chain_destroy(chain);
    tierce_chain_destroy(other);
    close_node();
}
END_TEST

/* A client that holds all memory and stalls costs others no more than their deadline. */
START_TEST(one_that_stops_costs_others_a_deadline)
{
    static struct reader reader;
    char path[80];
    open_node("400ms");
    socket_path(path);
    struct tierce_chain *chain = stored(1), *other = stored(2);
    native_open(&bare, path);
    uint64_t load = begin(chain);
    reader_open(&reader, path, "6s", other);
    uint64_t before = tierce__now_ns();
    int64_t loaded = reader_load(&reader);
    ck_assert_int_lt(loaded, BLOCKS);
    ck_assert_uint_eq(reader.wrong, 0);
    ck_assert_uint_lt(tierce__now_ns() - before, 20000 * TIERCE__MS_NS);
    union tierce__native_request ask = {.load_end = {.load = load}};
    ck_assert_int_eq(native_ask(&bare, TIERCE__NATIVE_LOAD_END, &ask, NULL, NULL), 0);
    native_close(&bare, true);
    reader_close(&reader);
    expect_baseline();
    tierce_chain_destroy(chain);
    tierce_chain_destroy(other);
    close_node();
}
END_TEST

/* ---- processes that are killed ---- */

static void pause_ms(uint32_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

static void reap(pid_t child)
{
    int status;
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* Until it is killed: loads with an engine of its own what the other process has stored. */
static void be_guest(int go)
{
    static struct reader reader;
    char path[80];
    native_is_mortal = true;
    if (read(go, path, sizeof(path)) != (ssize_t)sizeof(path))
        _exit(1);
    reader_open(&reader, path, "6s", NULL);
    struct tierce_chain *chain = fx_chain(&reader.fx, 1, BLOCKS, 0);
    reader.chain = chain;
    for (;;) {
        (void)reader_load(&reader);
        if (reader.wrong > 0)
            _exit(2);
    }
}

START_TEST(clients_that_are_killed)
{
    enum { CLIENTS = 6 };
    struct test_random random = test_random_start("large_load");
    pid_t children[CLIENTS];
    int pipes[CLIENTS][2];
    char path[80] = "";
    for (int32_t b = 0; b < (int32_t)BLOCKS; b++)
        ids[b] = b;
    for (size_t i = 0; i < CLIENTS; i++) { /* before there are threads */
        ck_assert_int_eq(pipe(pipes[i]), 0);
        children[i] = fork();
        if (children[i] == 0)
            be_guest(pipes[i][0]);
        ck_assert_int_gt(children[i], 0);
    }
    open_node("60s");
    socket_path(path);
    struct tierce_chain *chain = stored(1);
    for (size_t i = 0; i < CLIENTS; i += 2) {
        for (size_t c = i; c < i + 2; c++)
            ck_assert_int_eq(write(pipes[c][1], path, sizeof(path)), sizeof(path));
        for (int wait = 0; wait < 3000 && held().loads == 0; wait++)
            pause_ms(10);
        pause_ms(test_random_below(&random, 100));
        reap(children[i]);
        reap(children[i + 1]);
        expect_baseline();
    }
    for (size_t i = 0; i < CLIENTS; i++) {
        close(pipes[i][0]);
        close(pipes[i][1]);
    }
    static struct reader reader;
    reader_open(&reader, path, "6s", chain);
    ck_assert_int_eq(reader_load(&reader), BLOCKS);
    ck_assert_uint_eq(reader.wrong, 0);
    reader_close(&reader);
    tierce_chain_destroy(chain);
    close_node();
}
END_TEST

/* A node with the chain on its disk, until it is killed. */
static void be_node(int told)
{
    char path[80];
    open_node("60s");
    socket_path(path);
    tierce_chain_destroy(stored(1));
    if (write(told, path, sizeof(path)) != (ssize_t)sizeof(path) ||
        write(told, fx.folder, sizeof(fx.folder)) != (ssize_t)sizeof(fx.folder))
        _exit(1);
    for (;;)
        pause();
}

START_TEST(a_node_that_is_killed)
{
    static struct reader reader;
    struct test_random random = test_random_start("large_load");
    for (int round = 0; round < 4; round++) {
        int told[2];
        char path[80], folder[64], command[256];
        ck_assert_int_eq(pipe(told), 0);
        for (int32_t b = 0; b < (int32_t)BLOCKS; b++)
            ids[b] = b;
        pid_t child = fork(); /* there are no threads here */
        if (child == 0)
            be_node(told[1]);
        close(told[1]);
        ck_assert_int_eq(read(told[0], path, sizeof(path)), sizeof(path));
        ck_assert_int_eq(read(told[0], folder, sizeof(folder)), sizeof(folder));
        close(told[0]);
        reader_open(&reader, path, "10s", NULL);
        struct tierce_chain *chain = fx_chain(&reader.fx, 1, BLOCKS, 0);
        reader.chain = chain;
        ck_assert_int_eq(reader_load(&reader), BLOCKS);
        native_open(&bare, path);
        uint64_t load = begin(chain);
        for (uint32_t i = 0; i < 3; i++)
            ck_assert_int_eq(next(load, i, TIERCE__NATIVE_GOOD), 0);
        reader.rounds = 5;
        reader.loaded = 0;
        ck_assert_int_eq(pthread_create(&reader.thread, NULL, run_reader, &reader), 0);
        pause_ms(test_random_below(&random, 60));
        reap(child);
        pthread_join(reader.thread, NULL);
        ck_assert_int_lt(reader.loaded, 5 * (int64_t)BLOCKS + 1);
        ck_assert_uint_eq(reader.wrong, 0);
        expect_chunk(chain, 2); /* the mapping is ours */
        ck_assert_int_eq(next(load, 3, TIERCE__NATIVE_GOOD), NATIVE_GONE);
        ck_assert_int_eq(reader_load(&reader), 0);
        native_close(&bare, true);
        tierce_chain_destroy(chain);
        reader_close(&reader);
        snprintf(command, sizeof(command), "rm -rf %s $(dirname %s)", folder, path);
        ck_assert_int_eq(system(command), 0);
    }
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

CHECK_MAIN("large_load", .seconds = 120, .at_once = true,
           .tests = {two_at_once_are_both_loaded_whole, one_that_begins_has_all_memory,
                     a_client_that_goes_in_the_middle, what_is_asked_wrongly,
                     the_last_chunk_is_gone, one_that_stops_costs_others_a_deadline,
                     clients_that_are_killed, a_node_that_is_killed})
