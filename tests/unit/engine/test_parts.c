/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of several parts: found when all parts are there, never with a part of something else. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "silent_log.h"
#include "test_random.h"
#include "wait_for.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define BLOCKS 12u
#define MANY   160u /* more than half of 1 MiB */

static struct fixture fx;
static struct tierce_view *views[2];
static struct tierce_paged paged[2];
static int64_t baseline;
static int32_t ids[FX_BLOCKS];

static int open_part(struct tierce_view **out, uint32_t first, uint32_t count, uint32_t index,
                     uint32_t parts)
{
    struct tierce_namespace ns = fx_namespace();
    return tierce_view_open_part(out, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1},
                                 &(struct tierce_part){first, count, index, parts});
}

/* Layer 0, and the other three. */
static void open_parts(bool disk, const char *const *sets)
{
    fx_open(&fx, disk, sets);
    baseline = fx_stats(&fx).memory_bytes_now;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t first = i, count = i == 0 ? 1 : FX_LAYERS - 1;
        ck_assert_int_eq(open_part(&views[i], first, count, i, 2), 0);
        paged[i] = (struct tierce_paged){sizeof(paged[i]), fx.layers + first, count, FX_BLOCKS,
                                         TIERCE_DEVICE_HOST};
    }
    for (int32_t b = 0; b < (int32_t)FX_BLOCKS; b++)
        ids[b] = b;
}

static void close_parts(void)
{
    for (size_t i = 0; i < 2; i++)
        tierce_view_close(views[i]);
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static struct tierce_transfer_opts what_of(size_t part, const struct tierce_chain *chain,
                                           uint64_t write)
{
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, tierce_chain_blocks(chain), ids);
    what.paged = &paged[part];
    what.write = write;
    what.tail = true;
    return what;
}

static struct tierce_store *begin(size_t part, const struct tierce_chain *chain, uint64_t write)
{
    struct tierce_transfer_opts what = what_of(part, chain, write);
    struct tierce_store *store;
    ck_assert_int_eq(tierce_store_begin(&store, views[part], &what), 0);
    return store;
}

static void gather(size_t part, struct tierce_store *store)
{
    for (uint32_t l = 0; l < paged[part].layer_count; l++)
        ck_assert_int_eq(tierce_store_layer(store, l), 0);
}

static uint64_t found(const struct tierce_chain *chain)
{
    return fx_found(&fx, chain, tierce_chain_blocks(chain), 0, 0, NULL);
}

/* Loads by parts and checks every byte. */
static void check_whole(const struct tierce_chain *chain)
{
    size_t blocks = tierce_chain_blocks(chain);
    ck_assert_uint_eq(found(chain), blocks);
    fx_wipe(&fx);
    for (size_t part = 0; part < 2; part++) {
        struct tierce_transfer_opts what = what_of(part, chain, 0);
        ck_assert_int_eq(tierce_load(views[part], &what, NULL), (int64_t)blocks);
    }
    for (size_t b = 0; b < blocks; b++)
        ck_assert(fx_right(&fx, chain, b, ids[b]));
}

static int64_t store_parts(const struct tierce_chain *chain, uint64_t write, size_t first)
{
    int64_t blocks = 0;
    fx_fill(&fx, chain, 0, tierce_chain_blocks(chain), ids);
    for (size_t i = 0; i < 2; i++) {
        struct tierce_transfer_opts what = what_of((first + i) % 2, chain, write);
        blocks = tierce_store(views[(first + i) % 2], &what);
        ck_assert_int_eq(i == 0 ? blocks : 0, 0);
    }
    return blocks;
}

/* Ranks load one after the other, so the first one leaves the pins to the others. */
START_TEST(a_load_of_a_part_uses_the_pins_and_leaves_them)
{
    struct tierce_found pinned;
    struct tierce_lookup_opts opts = {
        .size = sizeof(opts), .flags = TIERCE_LOOKUP_PIN, .session = 5};
    open_parts(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(store_parts(chain, 1, 0), BLOCKS);
    ck_assert_int_eq(tierce_lookup(views[0], chain, BLOCKS, &opts, &pinned), 0);
    ck_assert_uint_eq(pinned.blocks, BLOCKS);
    ck_assert_int_eq(tierce_engine_set_mode(fx.engine, TIERCE_MODE_BYPASS), 0); /* pins alone */
    struct tierce_transfer_opts what = what_of(0, chain, 0);
    ck_assert_int_eq(tierce_load(views[0], &what, NULL), 0);
    what.session = 5;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(tierce_load(views[0], &what, NULL), BLOCKS);
    tierce_chain_destroy(chain);
    close_parts();
}
END_TEST

/* In memory, on disk, and in a remote store. */
START_TEST(a_chunk_is_there_when_all_parts_are)
{
    char folder[] = "/tmp/tierce-parts-XXXXXX", text[64];
    const char *sets[] = {"remote.urls", text, NULL};
    temp_folder_make(folder);
    snprintf(text, sizeof(text), "file://%s/store", folder);
    open_parts(_i == 1, _i == 2 ? sets : NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS + 2, 0);
    fx_fill(&fx, chain, 0, BLOCKS + 2, ids);
    struct tierce_store *a = begin(0, chain, 7), *b = begin(1, chain, 7);
    gather(0, a);
    gather(1, b);
    ck_assert_int_eq(tierce_store_end(b), 0);
    ck_assert_uint_eq(found(chain), 0);
    ck_assert_int_eq(tierce_store_end(a), BLOCKS + 2);
    ck_assert_int_eq(fx_stats(&fx).chunks_stored, 4);
    check_whole(chain);
    /* The whole view sees the same bytes, and so does a reader from disk. */
    fx_wipe(&fx);
    if (_i > 0) {
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
        ck_assert_int_ge(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
        check_whole(chain);
        ck_assert_int_eq(fx_stats(&fx).chunks_loaded_remote, _i == 2 ? 4 : 0);
    }
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS + 2, ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), BLOCKS + 2);
    /* Nothing is left to store, for any part. */
    ck_assert_ptr_null(begin(1, chain, 8));
    ck_assert_ptr_null(begin(0, chain, 8));
    tierce_chain_destroy(chain);
    close_parts();
    temp_folder_remove(folder);
}
END_TEST

/* What is stored by one part after the other, which begins when the first has ended. */
START_TEST(parts_need_not_overlap)
{
    open_parts(false, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        struct tierce_chain *chain = fx_chain(&fx, i, BLOCKS, 0);
        ck_assert_int_eq(store_parts(chain, i + 1, i % 2), BLOCKS);
        check_whole(chain);
        tierce_chain_destroy(chain);
    }
    close_parts();
}
END_TEST

/* Four parts, which begin in one order and end in another. In every second try one of them gives
 * up: then nothing is found, and nothing kept once the others have ended. */
START_TEST(many_parts_in_any_order)
{
    open_parts(false, NULL);
    struct test_random random = test_random_start("orders");
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_view *parts[FX_LAYERS];
    struct tierce_paged layer[FX_LAYERS];
    for (uint32_t i = 0; i < FX_LAYERS; i++) {
        ck_assert_int_eq(open_part(&parts[i], i, 1, i, FX_LAYERS), 0);
        layer[i] = (struct tierce_paged){sizeof(layer[i]), fx.layers + i, 1, FX_BLOCKS,
                                         TIERCE_DEVICE_HOST};
    }
    for (uint64_t try = 1; try < 100; try++) {
        struct tierce_store *stores[FX_LAYERS] = {NULL};
        uint32_t begin_first = (uint32_t)test_random_below(&random, FX_LAYERS);
        uint32_t end_first = (uint32_t)test_random_below(&random, FX_LAYERS);
        uint32_t step = test_random_below(&random, 2) == 0 ? 1 : FX_LAYERS - 1;
        fx_fill(&fx, chain, 0, BLOCKS, ids);
        for (uint32_t n = 0; n < FX_LAYERS; n++) {
            uint32_t i = (begin_first + n) % FX_LAYERS;
            struct tierce_transfer_opts what = what_of(0, chain, try);
            what.paged = &layer[i];
            ck_assert_int_eq(tierce_store_begin(&stores[i], parts[i], &what), 0);
            ck_assert_ptr_nonnull(stores[i]);
        }
        uint32_t quitter = try % 2 == 0 ? (uint32_t)(try / 2) % FX_LAYERS : FX_LAYERS;
        for (uint32_t n = 0; n < FX_LAYERS; n++) {
            uint32_t i = (end_first + n * step) % FX_LAYERS;
            bool whole = n + 1 == FX_LAYERS && quitter == FX_LAYERS;
            ck_assert_uint_eq(found(chain), 0);
            if (i != quitter)
                ck_assert_int_eq(tierce_store_layer(stores[i], 0), 0);
            ck_assert_int_eq(tierce_store_end(stores[i]), whole ? BLOCKS : 0);
        }
        if (quitter == FX_LAYERS)
            check_whole(chain);
        ck_assert_int_ge(tierce_engine_clear(fx.engine, 0, NULL), 0);
        ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, baseline);
    }
    for (uint32_t i = 0; i < FX_LAYERS; i++)
        tierce_view_close(parts[i]);
    tierce_chain_destroy(chain);
    close_parts();
}
END_TEST

/* Aborted before, between and after, or with a layer missing: nothing is found, nothing is kept,
 * and the part that comes late has nothing to store. */
START_TEST(a_part_that_does_not_end_well_spoils_all)
{
    open_parts(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    fx_fill(&fx, chain, 0, BLOCKS, ids);
    for (uint64_t write = 1; write < 9; write++) {
        struct tierce_store *a = begin(0, chain, write), *b;
        if (write % 2 == 0)
            gather(0, a);
        if (write % 4 < 2) {
            b = begin(1, chain, write);
            gather(1, b);
            if (write > 4) {
                ck_assert_int_eq(tierce_store_end(b), 0);
                b = NULL;
            }
            tierce_store_abort(a);
            if (b != NULL)
                ck_assert_int_eq(tierce_store_end(b), 0);
        } else {
            if (write % 2 == 0)
                tierce_store_abort(a);
            else
                ck_assert_int_eq(tierce_store_end(a), 0); /* without its layer */
            ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, baseline);
            ck_assert_ptr_null(begin(1, chain, write));
        }
        ck_assert_uint_eq(found(chain), 0);
        ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, baseline);
    }
    ck_assert_int_eq(store_parts(chain, 100, 0), BLOCKS);
    check_whole(chain);
    tierce_chain_destroy(chain);
    close_parts();
}
END_TEST

/* A part that did not begin a store, as it had no connection, begins the next: chunks of the missed
 * store are free again at once, not at its deadline. A missed store that begins later stays empty,
 * and the numbers may wrap. */
START_TEST(a_store_that_a_part_has_missed_is_given_up)
{
    open_parts(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    fx_fill(&fx, chain, 0, BLOCKS, ids);
    static const uint64_t writers[][2] = {{1, 2},
                                          {UINT64_C(7) << 32 | UINT32_MAX, UINT64_C(7) << 32}};
    for (size_t i = 0; i < 4; i++) {
        const uint64_t *write = writers[i / 2];
        struct tierce_store *missed = begin(0, chain, write[0]);
        gather(0, missed);
        if (i % 2 == 0)
            ck_assert_int_eq(tierce_store_end(missed), 0);
        ck_assert_int_eq(store_parts(chain, write[1], 1), BLOCKS);
        if (i % 2 == 1)
            ck_assert_int_eq(tierce_store_end(missed), 0);
        check_whole(chain);
        ck_assert_ptr_null(begin(1, chain, write[0]));
        ck_assert_int_ge(tierce_engine_clear(fx.engine, 0, NULL), 0);
        ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, baseline);
    }
    tierce_chain_destroy(chain);
    close_parts();
}
END_TEST

/* Two engines with the same model: what one stores says nothing about the other. */
START_TEST(another_writers_store_stays)
{
    open_parts(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0), *other = fx_chain(&fx, 2, BLOCKS, 0);
    uint64_t first = UINT64_C(1) << 32 | 1, second = UINT64_C(2) << 32 | 9;
    ck_assert_int_eq(store_parts(other, second, 1), BLOCKS);
    fx_fill(&fx, chain, 0, BLOCKS, ids);
    struct tierce_store *a = begin(0, chain, first);
    gather(0, a);
    ck_assert_int_eq(tierce_store_end(a), 0);
    ck_assert_int_eq(store_parts(other, second + 1, 1), 0); /* has all */
    fx_fill(&fx, chain, 0, BLOCKS, ids);
    struct tierce_store *b = begin(1, chain, first);
    ck_assert_ptr_nonnull(b);
    gather(1, b);
    ck_assert_int_eq(tierce_store_end(b), BLOCKS);
    check_whole(chain);
    tierce_chain_destroy(chain);
    tierce_chain_destroy(other);
    close_parts();
}
END_TEST

START_TEST(what_does_not_belong_together_is_refused)
{
    open_parts(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0), *other = fx_chain(&fx, 2, BLOCKS, 0);
    fx_fill(&fx, chain, 0, BLOCKS, ids);
    struct tierce_store *a = begin(0, chain, 5), *no;
    struct tierce_transfer_opts what = what_of(1, chain, 0);
    ck_assert_int_eq(tierce_store_begin(&no, views[1], &what), TIERCE_E_ARGUMENT);
    what = what_of(1, other, 5);
    ck_assert_int_eq(tierce_store_begin(&no, views[1], &what), TIERCE_E_ARGUMENT);
    what = what_of(1, chain, 5);
    what.to_block = BLOCKS - 1;
    ck_assert_int_eq(tierce_store_begin(&no, views[1], &what), TIERCE_E_ARGUMENT);
    what = what_of(1, chain, 5);
    what.tail = false;
    ck_assert_int_eq(tierce_store_begin(&no, views[1], &what), TIERCE_E_ARGUMENT);
    what = what_of(0, chain, 5);
    ck_assert_int_eq(tierce_store_begin(&no, views[0], &what), TIERCE_E_ARGUMENT);
    /* Another part with a layer of the first. */
    struct tierce_view *wrong;
    ck_assert_int_eq(open_part(&wrong, 0, 1, 1, 2), 0);
    ck_assert_int_eq(tierce_store_begin(&no, wrong, &what), TIERCE_E_ARGUMENT);
    /* None of that has changed anything. */
    struct tierce_store *b = begin(1, chain, 5);
    gather(0, a);
    gather(1, b);
    ck_assert_int_eq(tierce_store_end(a), 0);
    ck_assert_int_eq(tierce_store_end(b), BLOCKS);
    check_whole(chain);
    tierce_view_close(wrong);
    tierce_chain_destroy(chain);
    tierce_chain_destroy(other);
    close_parts();
}
END_TEST

/* All parts of a write of a group begin at one block. */
START_TEST(parts_of_a_group_begin_together)
{
    static const uint32_t layers[FX_LAYERS] = {0, 1, 2, 3};
    struct tierce_view *groups[2];
    struct tierce_store *first, *no, *second;
    open_parts(false, NULL);
    struct tierce_namespace ns = fx_namespace();
    ns.group = TIERCE_GROUP_WINDOW;
    ns.window = 8;
    ns.layers = layers;
    for (uint32_t i = 0; i < 2; i++)
        ck_assert_int_eq(
            tierce_view_open_part(&groups[i], fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1},
                                  &(struct tierce_part){i, i == 0 ? 1 : FX_LAYERS - 1, i, 2}),
            0);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    fx_fill(&fx, chain, 0, BLOCKS, ids);
    struct tierce_transfer_opts what = what_of(0, chain, 5);
    what.from_block = 4;
    ck_assert_int_eq(tierce_store_begin(&first, groups[0], &what), 0);
    what = what_of(1, chain, 5);
    what.from_block = 8;
    ck_assert_int_eq(tierce_store_begin(&no, groups[1], &what), TIERCE_E_ARGUMENT);
    what.from_block = 4;
    ck_assert_int_eq(tierce_store_begin(&second, groups[1], &what), 0);
    gather(0, first);
    gather(1, second);
    ck_assert_int_eq(tierce_store_end(first), 0);
    ck_assert_int_eq(tierce_store_end(second), BLOCKS - 4);
    tierce_view_close(groups[0]);
    tierce_view_close(groups[1]);
    tierce_chain_destroy(chain);
    close_parts();
}
END_TEST

/* Parts that have all come and do not have all layers are no chunk. */
START_TEST(a_layer_of_no_part_is_missed)
{
    open_parts(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_view *few;
    ck_assert_int_eq(open_part(&few, 1, 2, 1, 2), 0);
    struct tierce_paged two = {sizeof(two), fx.layers + 1, 2, FX_BLOCKS, TIERCE_DEVICE_HOST};
    struct tierce_transfer_opts what = what_of(0, chain, 3);
    ck_assert_int_eq(tierce_store(views[0], &what), 0);
    what.paged = &two;
    ck_assert_int_eq(tierce_store(few, &what), 0);
    ck_assert_uint_eq(found(chain), 0);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, baseline);
    tierce_view_close(few);
    tierce_chain_destroy(chain);
    close_parts();
}
END_TEST

START_TEST(parts_have_bounds)
{
    open_parts(false, NULL);
    struct tierce_view *view;
    static const uint32_t wrong[][4] = {{0, 0, 0, 1},         {0, 5, 0, 1}, {4, 1, 0, 1},
                                        {3, 2, 0, 1},         {0, 1, 1, 1}, {0, 1, 0, 5},
                                        {UINT32_MAX, 2, 0, 1}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        ck_assert_int_eq(open_part(&view, wrong[i][0], wrong[i][1], wrong[i][2], wrong[i][3]),
                         TIERCE_E_ARGUMENT);
    /* The memory is that of the part. */
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_transfer_opts what = what_of(0, chain, 0);
    what.paged = &fx.paged;
    ck_assert_int_eq(tierce_load(views[0], &what, NULL), TIERCE_E_ARGUMENT);
    tierce_chain_destroy(chain);
    close_parts();
}
END_TEST

static void wait_until_free(void)
{
    WAIT_WITHIN(20000, fx_stats(&fx).memory_bytes_now == baseline);
}

/* One part never comes. Its slot is free at the deadline; a part that is still being written keeps
 * its memory. */
START_TEST(a_part_that_does_not_come)
{
    static const char *const sets[] = {"timeout.pin", "300ms", NULL};
    open_parts(false, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    fx_fill(&fx, chain, 0, BLOCKS, ids);
    struct tierce_store *a = begin(0, chain, 1);
    gather(0, a);
    ck_assert_int_eq(tierce_store_end(a), 0);
    wait_until_free();
    /* Nothing of it is remembered: its number may be used again. */
    tierce_store_abort(begin(0, chain, 1));
    struct tierce_store *late = begin(0, chain, 2);
    int64_t used = fx_stats(&fx).memory_bytes_now;
    ck_assert_int_gt(used, baseline);
    /* Others may store the same from the deadline on. */
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    int64_t stored = 0;
    for (int i = 0; i < 2000 && stored == 0; i++) {
        stored = tierce_store(fx.view, &what);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    ck_assert_int_eq(stored, BLOCKS);
    ck_assert_int_ge(fx_stats(&fx).memory_bytes_now, used);
    ck_assert_ptr_null(begin(1, chain, 2)); /* it has come too late */
    gather(0, late);
    ck_assert_int_eq(tierce_store_end(late), 0);
    check_whole(chain);
    tierce_chain_destroy(chain);
    close_parts();
}
END_TEST

static void *store_first_part(void *arg)
{
    struct tierce_transfer_opts what = what_of(0, arg, 1);
    int64_t *stored = tierce__calloc(1, sizeof(*stored));
    *stored = tierce_store(views[0], &what);
    return stored;
}

/* The first part waits for memory for longer than the others have to come. */
START_TEST(a_part_that_waits_beyond_the_deadline)
{
    static const char *const sets[] = {"memory.size", "1MiB", "timeout.store", "1h", "timeout.pin",
                                       "1ms",         NULL};
    open_parts(false, sets);
    struct tierce_chain *held = fx_chain(&fx, 1, MANY, 0), *chain = fx_chain(&fx, 2, MANY, 0);
    struct tierce_transfer_opts what = fx_what(&fx, held, 0, MANY, ids);
    struct tierce_store *holder;
    ck_assert_int_eq(tierce_store_begin(&holder, fx.view, &what), 0);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, store_first_part, chain), 0);
    WAIT_WITHIN(20000, fx_stats(&fx).stores_waited == 1);
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL); /* beyond timeout.pin */
    tierce_store_abort(holder);
    void *stored;
    pthread_join(thread, &stored);
    ck_assert_int_eq(*(int64_t *)stored, 0);
    tierce__free(stored);
    wait_until_free();
    what = fx_what(&fx, chain, 0, MANY, ids);
    ck_assert_int_eq(tierce_store(fx.view, &what), MANY);
    tierce_chain_destroy(held);
    tierce_chain_destroy(chain);
    close_parts();
}
END_TEST

/* The engine is closed before the other part has come. */
START_TEST(what_is_left_at_the_end_goes_with_the_engine)
{
    open_parts(_i == 1, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce_transfer_opts what = what_of(0, chain, 1);
    ck_assert_int_eq(tierce_store(views[0], &what), 0);
    /* With it goes a store that waits for it. */
    struct tierce_chain *longer = fx_chain(&fx, 1, BLOCKS + 8, 0);
    what = fx_what(&fx, longer, 0, BLOCKS + 8, ids);
    ck_assert_int_eq(tierce_store(fx.view, &what), 0);
    ck_assert_int_eq(fx_stats(&fx).stores_shared, 3);
    tierce_chain_destroy(longer);
    tierce_chain_destroy(chain);
    close_parts();
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

#define WRITES 200u

struct rank {
    pthread_t thread;
    size_t part;
    struct test_random random;
    int64_t stored;
};

/* Both go through the same writes; now and then one gives up. */
static void *run_rank(void *arg)
{
    struct rank *rank = arg;
    for (uint64_t write = 1; write <= WRITES; write++) {
        struct tierce_chain *chain = fx_chain(&fx, (uint32_t)write % 37, BLOCKS, 4);
        struct tierce_store *store = begin(rank->part, chain, write);
        bool aborts = test_random_below(&rank->random, 5) == 0;
        if (store != NULL && !aborts)
            gather(rank->part, store);
        if (store != NULL)
            rank->stored += tierce_store_end(store);
        struct tierce_transfer_opts what = what_of(rank->part, chain, 0);
        ck_assert_int_ge(tierce_load(views[rank->part], &what, NULL), 0);
        tierce_chain_destroy(chain);
    }
    return NULL;
}

START_TEST(ranks_that_run_at_once)
{
    static const char *const sets[] = {"timeout.store", "50ms", NULL};
    open_parts(_i == 1, sets);
    struct test_random random = test_random_start("parts");
    struct rank ranks[2];
    for (size_t i = 0; i < 2; i++) {
        ranks[i] = (struct rank){.part = i, .random = {test_random_u64(&random)}};
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (size_t i = 0; i < 2; i++)
        pthread_join(ranks[i].thread, NULL);
    ck_assert_int_gt(ranks[0].stored + ranks[1].stored, 0);
    ck_assert_int_ge(tierce_engine_clear(fx.engine, 0, NULL), 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    wait_until_free();
    close_parts();
}
END_TEST

/* ---- against a model ------------------------------------------------------------------------- */

/* Ranks begin, write, end and abort in any order; a rank's paged memory holds what its request has
 * computed, which is the same for both only if both are of the same try. So a chunk of two tries
 * would show in its bytes. */
START_TEST(no_chunk_is_of_two_tries)
{
    open_parts(false, NULL);
    struct test_random random = test_random_start("tries");
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    for (uint64_t try = 1; try < 300 * test_scale(); try++) {
        struct tierce_store *stores[2] = {NULL, NULL};
        bool begun[2] = {false, false}, good = true;
        for (uint32_t l = 0; l < FX_LAYERS; l++)
            memset(fx.layers[l].base, (int)try & 0xff, FX_BLOCKS * 1024);
        for (int steps = 0; steps < 4; steps++) {
            size_t part = test_random_below(&random, 2);
            bool full = test_random_below(&random, 4) != 0;
            if (!begun[part]) {
                stores[part] = begin(part, chain, try);
                begun[part] = true;
            } else if (stores[part] != NULL) {
                if (full)
                    gather(part, stores[part]);
                good &= full;
                tierce_store_end(stores[part]);
                stores[part] = NULL;
            }
        }
        for (size_t part = 0; part < 2; part++) {
            good &= stores[part] == NULL && begun[part];
            if (!begun[part]) /* or the chunks were claimed for it up to the deadline */
                stores[part] = begin(part, chain, try);
            tierce_store_abort(stores[part]);
        }
        if (found(chain) == 0) {
            ck_assert(!good);
            continue;
        }
        fx_wipe(&fx);
        struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
        ck_assert_int_eq(tierce_load(fx.view, &what, NULL), BLOCKS);
        for (uint32_t l = 0; l < FX_LAYERS; l++)
            ck_assert_uint_eq(*(const uint8_t *)fx.layers[l].base, try & 0xff);
        ck_assert_int_ge(tierce_engine_clear(fx.engine, 0, NULL), 0);
    }
    tierce_chain_destroy(chain);
    close_parts();
}
END_TEST

/* ---- every allocation fails once ------------------------------------------------------------- */

static void store_as_it_goes(const struct tierce_chain *chain, uint64_t write)
{
    struct tierce_store *stores[2] = {NULL, NULL};
    for (size_t part = 0; part < 2; part++) {
        struct tierce_transfer_opts what = what_of(part, chain, write);
        int rc = tierce_store_begin(&stores[part], views[part], &what);
        ck_assert(rc == 0 || (rc == -ENOMEM && stores[part] == NULL));
    }
    for (size_t part = 0; part < 2; part++) {
        if (stores[part] == NULL)
            continue;
        gather(part, stores[part]);
        ck_assert_int_ge(tierce_store_end(stores[part]), 0);
    }
}

START_TEST(memory_that_cannot_be_had)
{
    /* A try whose first part failed waits for it up to the deadline. */
    static const char *const sets[] = {"timeout.pin", "20ms", NULL};
    silence_log();
    open_parts(false, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    fx_fill(&fx, chain, 0, BLOCKS, ids);
    uint64_t count = 1;
    for (uint64_t nth = 1; nth <= count + 2; nth++) {
        tierce__alloc_fail_nth(nth);
        store_as_it_goes(chain, nth);
        uint64_t now = tierce__alloc_fail_nth(0);
        count = now > count ? now : count;
        uint64_t there = found(chain);
        ck_assert(there == 0 || there == BLOCKS);
        ck_assert_int_ge(tierce_engine_clear(fx.engine, 0, NULL), 0);
        wait_until_free();
    }
    ck_assert_uint_gt(count, 5);
    tierce_chain_destroy(chain);
    close_parts();
}
END_TEST

CHECK_MAIN("parts", .seconds = 120,
           .tests = {a_load_of_a_part_uses_the_pins_and_leaves_them, parts_need_not_overlap,
                     many_parts_in_any_order, a_part_that_does_not_end_well_spoils_all,
                     a_store_that_a_part_has_missed_is_given_up, another_writers_store_stays,
                     what_does_not_belong_together_is_refused, parts_of_a_group_begin_together,
                     a_layer_of_no_part_is_missed, parts_have_bounds, a_part_that_does_not_come,
                     a_part_that_waits_beyond_the_deadline, no_chunk_is_of_two_tries,
                     memory_that_cannot_be_had},
           .loops = {{a_chunk_is_there_when_all_parts_are, 0, 3},
                     {what_is_left_at_the_end_goes_with_the_engine, 0, 2},
                     {ranks_that_run_at_once, 0, 2}})
