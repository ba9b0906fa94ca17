/* SPDX-License-Identifier: Apache-2.0 */
/* A client of a node: without a node, with a node that stops and restarts, and with invalid memory
 * from the node. The other tests, which also run against a node, test normal operation. */
#define TIERCE_TEST_NODE
#include "check_main.h"
#include "child_exit.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "engine_fixture.h"
#include "log_record.h"
#include "wait_for.h"
#include "node/native/native_server.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <tierce/log.h>

static struct fixture fx;
static char why[TIERCE_CONFIG_ERROR_BYTES];

static struct tierce_config *config_of(const char *path, const char *name, const char *value)
{
    struct tierce_config *config;
    ck_assert_int_eq(tierce_config_create(&config), 0);
    ck_assert_int_eq(tierce_config_set(config, "node.socket", path, why), 0);
    if (name != NULL)
        ck_assert_int_eq(tierce_config_set(config, name, value, why), 0);
    return config;
}

START_TEST(what_the_node_has_is_not_set_here)
{
    static const char *const sets[][2] = {
        {"memory.size", "1GiB"}, {"memory.pins", "10%"},       {"disk.path", "/tmp/x"},
        {"disk.size", "1GiB"},   {"remote.urls", "file:///x"}, {"prefetch.memory", "1%"},
        {"metrics.port", "1"},   {"access_log.path", "/x"},    {"cost.check", "false"}};
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        struct tierce_engine *engine;
        struct tierce_config *config = config_of("/nowhere", sets[i][0], sets[i][1]);
        ck_assert_int_eq(tierce_engine_open(&engine, config, why), TIERCE_E_CONFIG);
        ck_assert_msg(strstr(why, sets[i][0]) == why, "%s", why);
        ck_assert_ptr_nonnull(strstr(why, "node.socket"));
        tierce_config_destroy(config);
    }
    setenv("TIERCE_NODE_SOCKET", "/nowhere", 1);
    struct tierce_config *config;
    ck_assert_int_eq(tierce_config_create(&config), 0);
    ck_assert_int_eq(tierce_config_load_env(config, why), 0);
    ck_assert_str_eq(tierce_config_get(config, "node.socket"), "/nowhere");
    tierce_config_destroy(config);
}
END_TEST

static void open_paged(void)
{
    for (uint32_t i = 0; i < FX_LAYERS; i++)
        fx.layers[i] = (struct tierce_paged_layer){calloc(FX_BLOCKS, 1024), 1024, fx_cells[i]};
    fx.paged = (struct tierce_paged){sizeof(fx.paged), fx.layers, FX_LAYERS, FX_BLOCKS,
                                     TIERCE_DEVICE_HOST};
}

/* A client of whoever is at a path, with `fx.view`. */
static struct tierce_engine *open_client(const char *path, const char *lookup)
{
    struct tierce_config *config = config_of(path, "timeout.lookup", lookup);
    struct tierce_engine *engine = fx_engine(config);
    tierce_config_destroy(config);
    struct tierce_namespace ns = fx_namespace();
    ck_assert_int_eq(tierce_view_open(&fx.view, engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    return engine;
}

static int64_t load(const struct tierce_chain *chain, size_t blocks, uint8_t *origins)
{
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, blocks, fx_ids);
    fx_wipe(&fx);
    return tierce_load(fx.view, &what, origins);
}

static void expect_nothing(const struct tierce_chain *chain)
{
    uint8_t origins[8];
    struct tierce_store *store;
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 8, fx_ids);
    uint64_t blocks = 7;
    ck_assert_uint_eq(fx_found(&fx, chain, 8, TIERCE_LOOKUP_PIN, 1, NULL), 0);
    ck_assert_int_eq(tierce_durable(fx.view, chain, 8, &blocks), 0);
    ck_assert_uint_eq(blocks, 0);
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
    ck_assert_ptr_null(store);
    ck_assert_int_eq(load(chain, 8, origins), 0);
    for (size_t i = 0; i < 8; i++)
        ck_assert_uint_eq(origins[i], TIERCE_ORIGIN_FAILED);
    tierce_unpin(fx.view, 1);
    tierce_view_computed(fx.view, 100, 100);
}

START_TEST(without_a_node_everything_is_a_miss)
{
    open_paged();
    struct tierce_engine *engine = open_client("/nowhere/at/all", "100ms");
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    expect_nothing(chain);
    struct tierce_prefetch *prefetch;
    struct tierce_prefetch_opts opts = {
        .size = sizeof(opts), .flags = TIERCE_PREFETCH_PIN, .session = 1, .from_block = 5};
    ck_assert_int_eq(tierce_prefetch_begin(&prefetch, fx.view, chain, 8, &opts), 0);
    struct tierce_prefetch_result result = {.size = sizeof(result)};
    ck_assert(tierce_prefetch_poll(prefetch, &result));
    ck_assert_uint_eq(result.memory_blocks, 4); /* the caller's own */
    ck_assert_int_eq(tierce_prefetch_wait(prefetch, 10000), 0);
    tierce_prefetch_end(prefetch);
    ck_assert_int_eq(tierce_engine_flush(engine, 100), TIERCE_E_DOWN);
    ck_assert_int_eq(tierce_engine_clear(engine, 0, NULL), TIERCE_E_DOWN);
    ck_assert_int_eq(tierce_copy(fx.view, chain, 8, &(struct tierce_copy_opts){0}),
                     TIERCE_E_UNSUPPORTED);
    struct tierce_engine_stats s = {.size = sizeof(s)};
    tierce_engine_stats(engine, &s);
    ck_assert_int_eq(s.lookups, 1);
    ck_assert_int_eq(s.lookup_hit_blocks, 0);
    ck_assert_int_eq(s.blocks_failed, 8);
    ck_assert_int_eq(s.node_connected_now, 0);
    ck_assert_int_eq(s.node_connects, 0);
    /* Contracts are kept all the same. */
    struct tierce_found found;
    struct tierce_lookup_opts look = {.size = sizeof(look)};
    ck_assert_int_eq(tierce_lookup(fx.view, chain, 9, &look, &found), TIERCE_E_ARGUMENT);
    tierce_chain_destroy(chain);
    tierce_view_close(fx.view);
    tierce_engine_close(engine);
    fx_remove(&fx);
}
END_TEST

/* ---- a node that goes and comes ---- */

static void expect_all(const struct tierce_chain *chain, size_t blocks)
{
    uint8_t origins[64];
    ck_assert_int_eq(load(chain, blocks, origins), (int64_t)blocks);
    for (size_t b = 0; b < blocks; b++) {
        ck_assert_uint_eq(origins[b], TIERCE_ORIGIN_MEMORY);
        ck_assert(fx_right(&fx, chain, b, fx_ids[b]));
    }
}

static void stop_node(void)
{
    tierce_view_close(fx.inner);
    fx.inner = fx.view;
    harness_stop(&fx.node);
}

/* With nothing in it. */
static void restart_node(void)
{
    char native[128];
    snprintf(native, sizeof(native), "--listen.native=%s/node", fx.socket_folder);
    char *arguments[] = {native, (char *)"--memory.size=4MiB"};
    harness_start(&fx.node, 2, arguments);
    fx.engine = fx.node.node->engine;
}

static void wait_for_node(void)
{
    struct tierce_engine_stats s = {.size = sizeof(s)};
    struct tierce_chain *chain = fx_chain(&fx, 99, 4, 0);
    for (int i = 0; i < 100; i++) {
        (void)fx_found(&fx, chain, 4, 0, 0, NULL); /* what looks for it */
        tierce_engine_stats(fx.client, &s);
        if (s.node_connected_now)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    ck_assert_int_eq(s.node_connected_now, 1);
    tierce_chain_destroy(chain);
}

START_TEST(a_node_that_is_gone_is_a_miss_and_comes_back)
{
    record_log(TIERCE_LOG_WARN);
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0), *other = fx_chain(&fx, 2, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    expect_all(chain, 8);
    stop_node();
    expect_nothing(chain);
    restart_node();
    /* Only the connecting thread waits without a limit. */
    int rc = TIERCE_E_DOWN;
    for (int i = 0; i < 1000 && rc == TIERCE_E_DOWN; i++) {
        rc = tierce_engine_flush(fx.client, UINT32_MAX);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    ck_assert_int_eq(rc, 0);
    wait_for_node();
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    expect_all(chain, 8);
    ck_assert_int_eq(fx_store(&fx, other, 8, fx_ids, false), 8);
    expect_all(other, 8);
    struct tierce_engine_stats s = {.size = sizeof(s)};
    tierce_engine_stats(fx.client, &s);
    ck_assert_int_eq(s.node_connects, 2);
    tierce_chain_destroy(chain);
    tierce_chain_destroy(other);
    fx_close(&fx);
    ck_assert_uint_eq(recorded("node_lost"), 1); /* logged once, whichever thread notices it */
    ck_assert_uint_eq(recorded("node_in_service"), 1);
    fx_remove(&fx);
}
END_TEST

START_TEST(a_node_that_dies_under_a_transfer)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0), *next = fx_chain(&fx, 2, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    struct tierce_store *store;
    struct tierce_load *begun;
    struct tierce_transfer_opts save = fx_what(&fx, next, 0, 8, fx_ids + 16);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 8, fx_ids);
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &save), 0);
    ck_assert_int_eq(tierce_load_begin(&begun, fx.view, &what), 0);
    fx_wipe(&fx);
    ck_assert_int_eq(tierce_load_layer(begun, 0), 0);
    ck_assert_int_eq(tierce_store_layer(store, 0), 0);
    stop_node();
    restart_node();
    /* Lent memory is ours until the end; it is verified as always. */
    for (uint32_t l = 1; l < FX_LAYERS; l++) {
        ck_assert_int_eq(tierce_load_layer(begun, l), 0);
        ck_assert_int_eq(tierce_store_layer(store, l), 0);
    }
    uint8_t origins[8];
    int64_t loaded = tierce_load_end(begun, origins);
    ck_assert_int_ge(loaded, 0);
    for (size_t b = 0; b < 8; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, chain, b, fx_ids[b]));
    ck_assert_int_eq(tierce_store_end(store), 0);
    wait_for_node();
    ck_assert_int_eq(fx_store(&fx, next, 8, fx_ids, false), 8);
    expect_all(next, 8);
    tierce_chain_destroy(chain);
    tierce_chain_destroy(next);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Whether the client holds a load at the node, after others, with which it settles what was late.
 */
static bool holds_a_load(const struct tierce_chain *chain)
{
    struct tierce__native_stats held = {.loads = 1};
    uint8_t origins[8];
    for (int i = 0; i < 500 && held.loads > 0; i++) {
        ck_assert_int_ge(load(chain, 8, origins), 0);
        tierce__native_stats(fx.node.node->native, &held);
        if (held.loads > 0)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return held.loads > 0;
}

/* Each allocation fails once, the node's too: what has begun there is ended there. */
START_TEST(a_load_that_has_no_memory_is_ended)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    expect_all(chain, 8);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 8, fx_ids);
    for (uint64_t nth = 1, failed = 1; failed > 0; nth++) {
        struct tierce_load *begun = NULL;
        tierce__alloc_fail_nth(nth);
        int rc = tierce_load_begin(&begun, fx.view, &what);
        failed = tierce__alloc_fail_nth(0) >= nth;
        if (rc == 0)
            ck_assert_int_ge(tierce_load_end(begun, NULL), 0);
        else
            ck_assert_int_eq(rc, -ENOMEM);
        ck_assert_msg(!holds_a_load(chain), "after allocation %u", (unsigned)nth);
    }
    expect_all(chain, 8);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* ---- several engines on one node ---- */

/* Another process' engine, as far as the node can tell; `name`: of the inference engine, or "". */
static struct tierce_engine *open_other(struct tierce_view **view, const char *name,
                                        const char *lookup)
{
    char path[80];
    struct tierce_namespace ns = fx_namespace();
    snprintf(path, sizeof(path), "%s/node", fx.socket_folder);
    struct tierce_config *config = config_of(path, "timeout.lookup", lookup);
    ck_assert_int_eq(tierce_config_set(config, "node.engine", name, why), 0);
    struct tierce_engine *engine = fx_engine(config);
    tierce_config_destroy(config);
    ck_assert_int_eq(tierce_view_open(view, engine, &ns, &(struct tierce_shard){0, 1, 0, 1}), 0);
    return engine;
}

static void pin(struct tierce_view *view, const struct tierce_chain *chain, uint64_t blocks)
{
    struct tierce_found found;
    struct tierce_lookup_opts opts = {
        .size = sizeof(opts), .flags = TIERCE_LOOKUP_PIN, .session = 1};
    ck_assert_int_eq(tierce_lookup(view, chain, blocks, &opts, &found), 0);
    ck_assert_uint_eq(found.blocks, blocks);
}

/* Both count their requests from 1. */
START_TEST(sessions_are_an_engine_s_own)
{
    struct tierce_view *views[2];
    struct tierce_engine *engines[2];
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0), *other = fx_chain(&fx, 2, 4, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(fx_store(&fx, other, 4, fx_ids, false), 4);
    for (int shared = 0; shared < 2; shared++) {
        const char *name = shared ? "one engine" : "";
        engines[0] = open_other(&views[0], name, "6s");
        engines[1] = open_other(&views[1], name, "7s");
        pin(views[0], chain, 8);
        int64_t of_first = fx_stats(&fx).pinned_bytes_now;
        pin(views[1], other, 4);
        int64_t of_both = fx_stats(&fx).pinned_bytes_now;
        ck_assert_int_gt(of_first, 0);
        if (shared)
            ck_assert_int_lt(of_both, of_first); /* the pins of before were replaced */
        else
            ck_assert_int_gt(of_both, of_first);
        tierce_unpin(views[1], 1);
        ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, shared ? 0 : of_first);
        pin(views[1], other, 4);
        tierce_view_close(views[1]);
        tierce_engine_close(engines[1]);
        WAIT_WITHIN(5000, fx_stats(&fx).pinned_bytes_now == (shared ? 0 : of_first));
        tierce_unpin(views[0], 1);
        ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
        tierce_view_close(views[0]);
        tierce_engine_close(engines[0]);
    }
    /* Two names are two engines. */
    engines[0] = open_other(&views[0], "one", "6s");
    engines[1] = open_other(&views[1], "two", "7s");
    pin(views[0], chain, 8);
    tierce_unpin(views[1], 1);
    ck_assert_int_gt(fx_stats(&fx).pinned_bytes_now, 0);
    for (int i = 0; i < 2; i++) {
        tierce_view_close(views[i]);
        tierce_engine_close(engines[i]);
    }
    tierce_chain_destroy(chain);
    tierce_chain_destroy(other);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* ---- memory that is not what it should be ---- */

/* The node's buffer of chunk `index` of a chain. */
static struct tierce__buf *chunk_of(const struct tierce_chain *chain, size_t index)
{
    struct tierce__keys keys;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.inner, chain, 8, 8, false), 0);
    struct tierce__buf *buf = tierce__storage_lease(fx.engine, &keys.keys[index]);
    ck_assert_ptr_nonnull(buf);
    tierce__keys_fini(&keys);
    return buf;
}

START_TEST(a_chunk_that_another_one_takes_the_place_of)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0), *other = fx_chain(&fx, 2, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(fx_store(&fx, other, 8, fx_ids, false), 8);
    for (uint32_t when = 0; when <= FX_LAYERS; when++) {
        struct tierce__buf *mine = chunk_of(chain, 1), *theirs = chunk_of(other, 1);
        uint8_t *kept = malloc(mine->bytes), origins[8];
        memcpy(kept, mine->data, mine->bytes);
        struct tierce_load *begun;
        struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 8, fx_ids);
        fx_wipe(&fx);
        ck_assert_int_eq(tierce_load_begin(&begun, fx.view, &what), 0);
        for (uint32_t l = 0; l < FX_LAYERS; l++) {
            if (l == when) /* whole, with a header and sums that are right in themselves */
                memcpy(mine->data, theirs->data, mine->bytes);
            ck_assert_int_eq(tierce_load_layer(begun, l), 0);
        }
        memcpy(mine->data, kept, mine->bytes); /* before the node looks */
        free(kept);
        ck_assert_int_eq(tierce_load_end(begun, origins), when < FX_LAYERS ? 4 : 8);
        for (size_t b = 0; b < 8; b++) {
            ck_assert_uint_eq(origins[b], b < 4 || when == FX_LAYERS ? TIERCE_ORIGIN_MEMORY
                                                                     : TIERCE_ORIGIN_FAILED);
            ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, chain, b, fx_ids[b]));
        }
        tierce__buf_release(mine);
        tierce__buf_release(theirs);
    }
    expect_all(chain, 8); /* the node has looked itself, and believes its own eyes */
    tierce_chain_destroy(chain);
    tierce_chain_destroy(other);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(a_load_that_is_later_than_its_lease)
{
    fx_open(&fx, false, (const char *const[]){"timeout.pin", "200ms", NULL});
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    for (uint32_t late = 0; late < FX_LAYERS; late++) {
        uint8_t origins[8];
        struct tierce_load *begun;
        struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 8, fx_ids);
        what.timeout_ms = 50;
        ck_assert_int_eq(tierce_load_begin(&begun, fx.view, &what), 0);
        for (uint32_t l = 0; l < FX_LAYERS; l++) {
            if (l == late)
                nanosleep(&(struct timespec){.tv_nsec = 260000000}, NULL); /* the lease ends */
            ck_assert_int_eq(tierce_load_layer(begun, l), 0);
        }
        ck_assert_int_eq(tierce_load_end(begun, origins), 0);
        for (size_t b = 0; b < 8; b++)
            ck_assert_uint_eq(origins[b], TIERCE_ORIGIN_FAILED);
    }
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(a_damaged_chunk_is_taken_out_of_service)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    struct tierce__buf *buf = chunk_of(chain, 1);
    buf->data[buf->bytes - 4097] ^= 1; /* a cell of the last layer */
    tierce__buf_release(buf);
    uint8_t origins[8];
    ck_assert_int_eq(load(chain, 8, origins), 7);
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 4);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 1);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* ---- processes ---- */

START_TEST(a_child_of_fork_has_nothing_of_it)
{
    fx_open(&fx, false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    pid_t child = fork();
    if (child == 0) {
        struct tierce_found found;
        struct tierce_lookup_opts opts = {.size = sizeof(opts)};
        bool ok = tierce_lookup(fx.view, chain, 8, &opts, &found) == TIERCE_E_CLOSED;
        tierce_view_close(fx.view);
        tierce_engine_close(fx.client);
        child_exit(ok ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    expect_all(chain, 8);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

CHECK_MAIN("client", .seconds = 60, .at_once = true,
           .tests = {what_the_node_has_is_not_set_here, without_a_node_everything_is_a_miss,
                     a_node_that_is_gone_is_a_miss_and_comes_back,
                     a_node_that_dies_under_a_transfer, a_load_that_has_no_memory_is_ended,
                     sessions_are_an_engine_s_own, a_chunk_that_another_one_takes_the_place_of,
                     a_load_that_is_later_than_its_lease, a_damaged_chunk_is_taken_out_of_service,
                     a_child_of_fork_has_nothing_of_it})
