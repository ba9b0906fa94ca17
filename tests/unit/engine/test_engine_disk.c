/* SPDX-License-Identifier: Apache-2.0 */
/* The engine over memory and disk: restart, promotion, faults of the slower tier. */
#include "base/clock.h"
#include "check_main.h"
#include "child_exit.h"
#include "engine_fixture.h"
#include "tier_fault.h"
#include "wait_for.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>

static struct fixture fx;

/* Loads all blocks into wiped memory; returns how many came, each of them checked. */
static int64_t load_all(const struct tierce_chain *chain, size_t blocks, uint8_t *origins)
{
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, blocks, fx_ids);
    int64_t loaded = tierce_load(fx.view, &what, origins);
    for (size_t b = 0; loaded >= 0 && b < blocks; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, chain, b, fx_ids[b]));
    return loaded;
}

static bool all_from(const uint8_t *origins, size_t blocks, uint8_t origin)
{
    for (size_t b = 0; b < blocks; b++) {
        if (origins[b] != origin)
            return false;
    }
    return true;
}

/* Puts the fault wrapper between the engine and one of its tiers. */
static struct tierce__tier *wrap(size_t level)
{
    struct tierce__tier *wrapped;
    ck_assert_uint_eq(fx.engine->level_count, 2);
    wrapped = fx_wrap(&fx, level);
    return wrapped;
}

static struct tierce__tier *wrap_disk(void)
{
    return wrap(1);
}

/* Closes and opens the engine, so that only the disk remembers. */
static void restart(const char *const *sets)
{
    fx_close(&fx);
    fx_open(&fx, true, sets);
}

START_TEST(a_restart_keeps_the_disk)
{
    uint8_t origins[40];
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 40, fx_ids, false), 40);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_eq(fx_stats(&fx).disk_durable_chunks_now, 10);
    restart(NULL);
    uint64_t memory;
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, &memory), 40);
    ck_assert_uint_eq(memory, 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 40, TIERCE_LOOKUP_MEMORY_ONLY, 0, NULL), 0);
    ck_assert_int_eq(load_all(chain, 40, origins), 40);
    ck_assert(all_from(origins, 40, TIERCE_ORIGIN_DISK));
    /* Promoted: the second time it comes from memory. */
    ck_assert_int_eq(load_all(chain, 40, origins), 40);
    ck_assert(all_from(origins, 40, TIERCE_ORIGIN_MEMORY));
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.promotions, 10);
    ck_assert_int_eq(s.chunks_loaded_disk, 10);
    ck_assert_int_eq(s.chunks_loaded_memory, 10);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* A layer that ends in the last page of the layer before it. */
START_TEST(a_small_last_layer_comes_from_disk)
{
    static const uint32_t cells[2] = {131328, 64};
    static uint8_t large[FX_CHUNK_BLOCKS * 131328], small[FX_CHUNK_BLOCKS * 64];
    struct tierce_paged_layer layers[2] = {
        {.base = large, .block_stride = cells[0], .block_bytes = cells[0]},
        {.base = small, .block_stride = cells[1], .block_bytes = cells[1]}};
    struct tierce_paged paged = {sizeof(paged), layers, 2, FX_CHUNK_BLOCKS, TIERCE_DEVICE_HOST};
    static const int32_t ids[FX_CHUNK_BLOCKS] = {0, 1, 2, 3};
    struct tierce_shard shard = {0, 1, 0, 1};
    struct tierce_namespace ns = fx_namespace();
    ns.layer_count = 2;
    ns.cell_bytes = cells;
    struct tierce_view *view;
    fx_open(&fx, true, NULL);
    ck_assert_int_eq(tierce_view_open(&view, fx.view->engine, &ns, &shard), 0);
    struct tierce_chain *chain = fx_chain(&fx, 1, FX_CHUNK_BLOCKS, 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, FX_CHUNK_BLOCKS, ids);
    what.paged = &paged;
    memset(large, 1, sizeof(large));
    memset(small, 2, sizeof(small));
    ck_assert_int_eq(tierce_store(view, &what), FX_CHUNK_BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    tierce_view_close(view);
    restart(NULL);
    ck_assert_int_eq(tierce_view_open(&view, fx.view->engine, &ns, &shard), 0);
    memset(large, 0, sizeof(large));
    memset(small, 0, sizeof(small));
    ck_assert_int_eq(tierce_load(view, &what, NULL), FX_CHUNK_BLOCKS);
    ck_assert(large[0] == 1 && memcmp(large, large + 1, sizeof(large) - 1) == 0);
    ck_assert(small[0] == 2 && memcmp(small, small + 1, sizeof(small) - 1) == 0);
    tierce_view_close(view);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(what_memory_lost_comes_from_disk)
{
    const char *sets[] = {"memory.size", "1MiB", NULL};
    uint8_t origins[40];
    fx_open(&fx, true, sets);
    struct tierce_chain *chains[12];
    for (uint32_t i = 0; i < 12; i++) {
        chains[i] = fx_chain(&fx, 10 + i, 40, 0);
        ck_assert_int_eq(fx_store(&fx, chains[i], 40, fx_ids, false), 40);
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    }
    ck_assert_int_gt(fx_stats(&fx).memory_evictions, 0);

    for (uint32_t i = 0; i < 12; i++) {
        ck_assert_uint_eq(fx_found(&fx, chains[i], 40, 0, 0, NULL), 40);
        ck_assert_int_eq(load_all(chains[i], 40, origins), 40);
    }
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_gt(s.blocks_loaded_disk, 0);
    ck_assert_int_le(s.memory_bytes_now, s.memory_cap_bytes);
    for (uint32_t i = 0; i < 12; i++)
        tierce_chain_destroy(chains[i]);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* A caller that loads from memory alone computes what only the disk holds, at most once. */
START_TEST(what_memory_lacked_is_stored_there_again)
{
    unsigned flags = TIERCE_LOOKUP_MEMORY_ONLY | TIERCE_LOOKUP_PIN;
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    restart(NULL);
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = -EIO};
    tierce__fault_set(wrap_disk(), TIERCE__STORE_PUT, &rule); /* it holds all of it */
    ck_assert_uint_eq(fx_found(&fx, chain, 16, flags, 7, NULL), 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 16, fx_ids);
    what.session = 7;
    ck_assert_int_eq(tierce_store(fx.view, &what), 16);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 16, flags, 8, NULL), 16);
    tierce_unpin(fx.view, 8);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(a_bit_flipped_on_the_way_from_disk_fails_its_blocks)
{
    uint8_t origins[16];
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    restart(NULL);
    struct tierce__tier *disk = wrap_disk();
    /* Layer 3, block 1 of the first chunk that is read. */
    uint64_t at = tierce__shape_offset(&fx.view->full, 3) + fx_cells[3] + 17;
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_FLIP, .bit = at * 8 + 3, .times = 1};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    ck_assert_int_eq(load_all(chain, 16, origins), 15);
    ck_assert_uint_eq(origins[1], TIERCE_ORIGIN_FAILED);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 1);
    /* A header bit: the whole chunk. */
    restart(NULL);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    restart(NULL);
    disk = wrap_disk();
    rule.bit = 64 * 8;
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    ck_assert_int_eq(load_all(chain, 16, origins), 12);
    ck_assert(all_from(origins, 4, TIERCE_ORIGIN_FAILED));
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static void wait_for_service(void)
{
    WAIT_FOR(fx_stats(&fx).disk_in_service_now == 1);
}

START_TEST(a_disk_that_fails_is_a_miss_then_left_alone_then_back)
{
    const char *sets[] = {"breaker.errors", "3", "breaker.retry", "200ms", NULL};
    uint8_t origins[16];
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    restart(sets);
    struct tierce__tier *disk = wrap_disk();
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = -EIO};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    ck_assert_int_eq(load_all(chain, 16, origins), 0);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.breaker_trips, 1);
    ck_assert_int_eq(s.disk_in_service_now, 0);
    ck_assert_int_ge(s.device_failures, 3);
    /* Open: not even lookups reach it. */
    ck_assert_uint_eq(fx_found(&fx, chain, 16, 0, 0, NULL), 0);
    tierce__fault_set(disk, TIERCE__STORE_GET, NULL);
    usleep(250000); /* breaker.retry */
    /* A lookup of missing chunks shows nothing; a lookup of stored chunks makes the disk read. */
    struct tierce_chain *other = fx_chain(&fx, 2, 16, 0);
    ck_assert_uint_eq(fx_found(&fx, other, 16, 0, 0, NULL), 0);
    (void)fx_found(&fx, chain, 16, 0, 0, NULL); /* the disk may be back before this has ended */
    wait_for_service();
    ck_assert_uint_eq(fx_found(&fx, chain, 16, 0, 0, NULL), 16);
    ck_assert_int_eq(load_all(chain, 16, origins), 16);
    tierce_chain_destroy(other);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(a_disk_that_hangs_costs_one_deadline)
{
    uint8_t origins[16];
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    restart(NULL);
    struct tierce__tier *disk = wrap_disk();
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_HANG};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 16, fx_ids);
    what.timeout_ms = 3000;
    uint64_t start = tierce__now_ns();
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), 0);
    uint64_t took_ms = (tierce__now_ns() - start) / TIERCE__MS_NS;
    ck_assert_uint_ge(took_ms, 2990);
    ck_assert_uint_lt(took_ms, 9000); /* four chunks, and timeout.load is a minute */
    /* The load does not wait for the tier's own answer, which comes at the deadline as well. */
    WAIT_FOR(fx_stats(&fx).deadline_failures >= 1);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(an_aborted_load_leaves_nothing_behind)
{
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 40, fx_ids, false), 40);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    restart(NULL);
    struct tierce__tier *disk = wrap_disk();
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_DELAY, .delay_ms = 100};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    for (int i = 0; i < 5; i++) {
        struct tierce_load *load;
        struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 40, fx_ids);
        ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
        tierce_load_abort(load);
    }
    WAIT_FOR(fx_stats(&fx).memory_bytes_now == 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(a_folder_held_by_another_process_means_memory_only)
{
    uint8_t origins[16];
    fx_open(&fx, true, NULL);
    pid_t child = fork();
    if (child == 0) {
        /* A process of its own: no engine is inherited in use. */
        execl("/proc/self/exe", "test_engine_disk", "--second-process", fx.folder, NULL);
        child_exit(99);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    ck_assert_int_eq(load_all(chain, 16, origins), 16);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Body of the child of the test above; outside a test, Check's assertions cannot be used. */
static int second_process(const char *folder)
{
    struct tierce_config *config;
    struct tierce_engine *engine;
    char why[TIERCE_CONFIG_ERROR_BYTES];
    if (tierce_config_create(&config) < 0 ||
        tierce_config_set(config, "memory.size", "4MiB", why) < 0 ||
        tierce_config_set(config, "disk.path", folder, why) < 0 ||
        tierce_config_set(config, "disk.lock_wait", "0", why) < 0 ||
        tierce_engine_open(&engine, config, why) < 0)
        return 1;
    struct tierce_engine_stats s = {.size = sizeof(s)};
    tierce_engine_stats(engine, &s);
    tierce_engine_close(engine);
    tierce_config_destroy(config);
    return s.disk_open_status == TIERCE_E_LOCKED && s.disk_cap_bytes == 0 ? 0 : 2;
}

START_TEST(two_engines_of_a_process_cannot_share_a_folder_by_mistake)
{
    fx_open(&fx, true, NULL);
    const char *sets[] = {"memory.size", "8MiB", NULL};
    struct tierce_config *config = fx_config(fx.folder, sets);
    char why[TIERCE_CONFIG_ERROR_BYTES];
    struct tierce_engine *second = NULL;
    ck_assert_int_eq(tierce_engine_open(&second, config, why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, fx.folder));
    tierce_config_destroy(config);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* A chunk that must be read needs room, and the oldest in memory is the end of the same prompt. */
START_TEST(a_load_does_not_evict_what_it_wants)
{
    const char *sets[] = {"memory.chunks", "5", NULL};
    uint8_t origins[16];
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0), *other = fx_chain(&fx, 2, 8, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce__keys keys;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.inner, chain, 16, 16, false), 0);
    tierce__storage_quarantine(fx.engine, 0, &keys.keys[0], TIERCE_E_CHECKSUM);
    ck_assert_int_eq(fx_store(&fx, other, 8, fx_ids + 16, false), 8);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, 5);
    ck_assert_int_eq(load_all(chain, 16, origins), 16);
    ck_assert(all_from(origins, 4, TIERCE_ORIGIN_DISK));
    ck_assert(all_from(origins + 4, 12, TIERCE_ORIGIN_MEMORY));
    tierce__keys_fini(&keys);
    tierce_chain_destroy(chain);
    tierce_chain_destroy(other);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* The lookups between the loads are answered from memory and prove nothing. */
START_TEST(a_disk_whose_index_alone_works_is_left_alone)
{
    const char *sets[] = {"breaker.errors", "3", "breaker.retry", "60s", NULL};
    uint8_t origins[4];
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    restart(sets);
    tierce__fault_set(wrap_disk(), TIERCE__STORE_GET,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO});
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(fx_stats(&fx).breaker_trips, 0);
        ck_assert_int_eq(load_all(chain, 4, origins), 0);
    }
    ck_assert_int_eq(fx_stats(&fx).breaker_trips, 1);
    ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(lookups_do_not_end_an_outage)
{
    const char *sets[] = {"breaker.errors", "1", "breaker.retry", "10ms", NULL};
    uint8_t origins[4];
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    restart(sets);
    tierce__fault_set(wrap_disk(), TIERCE__STORE_GET,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO});
    ck_assert_int_eq(load_all(chain, 4, origins), 0);
    for (int i = 0; i < 20; i++) {
        usleep(11000); /* breaker.retry */
        ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), 0);
        ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 0);
    }
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.breaker_trips, 1);
    ck_assert_int_ge(s.device_failures, 10); /* of probes */
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(an_outage_of_an_empty_disk_ends)
{
    const char *sets[] = {"breaker.errors", "1", "breaker.retry", "10ms", NULL};
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0), *other = fx_chain(&fx, 2, 4, 0);
    tierce__fault_set(
        wrap_disk(), TIERCE__STORE_PUT,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO, .times = 1});
    ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), -EIO);
    ck_assert_int_eq(fx_stats(&fx).breaker_trips, 1);
    ck_assert_int_eq(fx_store(&fx, other, 4, fx_ids, false), 4);
    wait_for_service();
    int rc = tierce_engine_flush(fx.engine, 60000);
    ck_assert(rc == 0 || rc == TIERCE_E_DOWN); /* the store came before the disk's return */
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, 2); /* written late */
    tierce_chain_destroy(other);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(two_spellings_of_a_folder_are_one_also_the_first_time)
{
    const char *sets[] = {"memory.size", "8MiB", NULL};
    char parent[] = "/tmp/tierce-engine-XXXXXX", folder[64], again[64];
    char why[TIERCE_CONFIG_ERROR_BYTES];
    temp_folder_make(parent);
    snprintf(folder, sizeof(folder), "%s/./store", parent);
    snprintf(again, sizeof(again), "%s/store", parent);
    struct tierce_config *config = fx_config(folder, NULL), *other = fx_config(again, sets);
    struct tierce_engine *first = NULL, *second = NULL;
    ck_assert_int_eq(tierce_engine_open(&first, config, why), 0);
    ck_assert_int_eq(tierce_engine_open(&second, other, why), TIERCE_E_CONFIG);
    tierce_engine_close(first);
    tierce_config_destroy(config);
    tierce_config_destroy(other);
    snprintf(fx.folder, sizeof(fx.folder), "%s", parent);
    fx_remove(&fx);
}
END_TEST

START_TEST(every_depth_that_can_be_configured_opens)
{
    const char *sets[] = {"disk.depth", "64", NULL};
    char why[TIERCE_CONFIG_ERROR_BYTES];
    fx_open(&fx, true, sets);
    ck_assert_int_eq(fx_stats(&fx).disk_open_status, 0);
    struct tierce_config *config = fx_config(fx.folder, NULL);
    ck_assert_int_eq(tierce_config_set(config, "disk.depth", "65", why), TIERCE_E_CONFIG);
    tierce_config_destroy(config);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(a_folder_that_cannot_be_made_means_memory_only)
{
    uint8_t origins[16];
    snprintf(fx.folder, sizeof(fx.folder), "/proc/no-such-place/store");
    fx_open(&fx, true, NULL);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_lt(s.disk_open_status, 0);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    ck_assert_int_eq(load_all(chain, 16, origins), 16);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 100), 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx.folder[0] = '\0';
    fx_remove(&fx);
}
END_TEST

START_TEST(the_disk_cap_holds_over_restarts)
{
    const char *sets[] = {"disk.size", "2MiB", NULL};
    fx_open(&fx, true, sets);
    for (uint32_t i = 0; i < 60; i++) {
        struct tierce_chain *chain = fx_chain(&fx, 100 + i, 40, 0);
        ck_assert_int_eq(fx_store(&fx, chain, 40, fx_ids, false), 40);
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
        struct tierce_engine_stats s = fx_stats(&fx);
        ck_assert_int_le(s.disk_bytes_now, s.disk_cap_bytes);
        tierce_chain_destroy(chain);
        if (i % 20 == 19) {
            int64_t before = s.disk_chunks_now;
            restart(sets);
            ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, before);
            ck_assert_int_le(fx_stats(&fx).disk_bytes_now, fx_stats(&fx).disk_cap_bytes);
        }
    }
    struct tierce_chain *last = fx_chain(&fx, 159, 40, 0);
    uint8_t origins[40];
    ck_assert_int_eq(load_all(last, 40, origins), 40);
    ck_assert(all_from(origins, 40, TIERCE_ORIGIN_DISK));
    tierce_chain_destroy(last);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Hands chunk `index` of memory to the disk's queue, and waits. */
static bool write_one(const struct tierce__keys *keys, size_t index)
{
    struct tierce__buf *buf = tierce__storage_lease(fx.engine, &keys->keys[index]);
    ck_assert_ptr_nonnull(buf);
    struct tierce__storage_chunk chunk = {.key = keys->keys[index],
                                          .parent = keys->keys[index - 1],
                                          .has_parent = true,
                                          .object_bytes = fx.view->full.extent.object_bytes,
                                          .block_count = FX_CHUNK_BLOCKS};
    tierce__storage_write_one(fx.engine, UINT32_MAX, &chunk, buf, false);
    tierce__buf_release(buf);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce__tier_stats s;
    fx.engine->levels[1].tier->ops->stats(fx.engine->levels[1].tier, &s);
    return s.chunks == index + 1;
}

START_TEST(the_disk_takes_no_suffix_without_its_prefix)
{
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce__keys keys;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.inner, chain, 16, 16, false), 0);
    for (size_t i = 1; i < 4; i++)
        tierce__storage_quarantine(fx.engine, 1, &keys.keys[i], TIERCE_E_CHECKSUM);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert(!write_one(&keys, 3));
    ck_assert(!write_one(&keys, 2));
    ck_assert(write_one(&keys, 1));
    ck_assert(write_one(&keys, 2));
    ck_assert(write_one(&keys, 3));
    ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 1);
    tierce__keys_fini(&keys);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* At any speed of the disk, exactly the stored part of a store is found. */
START_TEST(a_store_longer_than_the_queue_keeps_its_beginning)
{
    const char *sets[] = {"disk.queue", "32KiB", NULL};
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 256, 0);
    int32_t ids[256];
    for (int32_t i = 0; i < 256; i++)
        ids[i] = i % FX_BLOCKS;
    fx_wipe(&fx);
    ck_assert_int_eq(fx_store(&fx, chain, 256, ids, false), 256);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    restart(sets);
    uint64_t found = fx_found(&fx, chain, 256, 0, 0, NULL);
    ck_assert_uint_ge(found, FX_CHUNK_BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, (int64_t)(found / FX_CHUNK_BLOCKS));
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static uint64_t durable(const struct tierce_chain *chain, uint64_t to_block)
{
    uint64_t blocks = 77;
    ck_assert_int_eq(tierce_durable(fx.view, chain, to_block, &blocks), 0);
    return blocks;
}

START_TEST(a_chain_says_what_of_it_is_durable)
{
    const char *sets[] = {"disk.flush_interval", "1h", NULL}; /* nothing but a flush commits */
    uint64_t blocks;
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    ck_assert_uint_eq(durable(chain, 16), 0);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 8);
    ck_assert_uint_eq(fx_found(&fx, chain, 16, 0, 0, NULL), 16);
    ck_assert_uint_eq(durable(chain, 16), 8);
    ck_assert_uint_eq(durable(chain, 6), 6);
    ck_assert_uint_eq(durable(chain, 0), 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(durable(chain, 16), 16);
    ck_assert_int_eq(tierce_durable(fx.view, chain, 17, &blocks), TIERCE_E_ARGUMENT);
    ck_assert_uint_eq(blocks, 0);
    fx_close(&fx);
    fx_open(&fx, false, NULL);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    ck_assert_uint_eq(durable(chain, 16), 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Makes every chunk in the data file one of that version. Returns how many there are. */
static int set_versions(uint8_t version)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/data", fx.folder);
    FILE *file = fopen(path, "r+");
    ck_assert_ptr_nonnull(file);
    int count = 0;
    uint8_t head[9];
    for (long at = 0; fseek(file, at, SEEK_SET) == 0 && fread(head, 9, 1, file) == 1; at += 4096) {
        if (!tierce__chunk_has_magic(head))
            continue;
        ck_assert_int_eq(fseek(file, at + 8, SEEK_SET), 0);
        ck_assert_int_eq(fputc(version, file), version);
        count++;
    }
    ck_assert_int_eq(fclose(file), 0);
    return count;
}

/* A newer build's chunks are a miss, once, and still there when it comes back. */
START_TEST(chunks_of_another_version_are_hidden_and_kept)
{
    uint8_t origins[16];
    fx_open(&fx, true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
    ck_assert_int_eq(set_versions(TIERCE__CHUNK_VERSION_SEALED + 1), 4);

    fx_open(&fx, true, NULL);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 16, fx_ids);
    for (uint64_t left = 16; left > 0; left = fx_found(&fx, chain, 16, 0, 0, NULL))
        ck_assert_int_eq(tierce_load(fx.view, &what, origins), 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 16);
    ck_assert_int_eq(load_all(chain, 16, origins), 16);
    ck_assert(all_from(origins, 16, TIERCE_ORIGIN_MEMORY));
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 1);
    fx_close(&fx);
    ck_assert_int_eq(set_versions(TIERCE__CHUNK_VERSION), 4);

    fx_open(&fx, true, NULL);
    ck_assert_int_eq(load_all(chain, 16, origins), 16);
    ck_assert(all_from(origins, 16, TIERCE_ORIGIN_DISK));
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* The successors of a chunk that memory rejects would be a suffix without its prefix. */
START_TEST(a_store_ends_where_memory_takes_no_more)
{
    fx_open(&fx, true, NULL);
    struct tierce__tier *memory = wrap(0);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    tierce__fault_set(
        memory, TIERCE__STORE_PUT,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO, .skip = 1});
    ck_assert_int_eq(fx_store(&fx, chain, 16, fx_ids, false), 4);
    ck_assert_int_eq(fx_stats(&fx).chunks_stored, 1);
    ck_assert_int_eq(fx_stats(&fx).stores_skipped, 3);
    ck_assert_uint_eq(fx_found(&fx, chain, 16, 0, 0, NULL), 4);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Blocks of a prompt of which memory holds about half. Policies by parent find no leaf to evict
 * while its last chunk is being written. */
START_TEST(a_prompt_longer_than_memory_is_loaded_whole)
{
    enum { BLOCKS = 480, STEP = 40 };
    static const char *const policies[] = {"lru", "leaf_lru", "hazard"};
    const char *sets[] = {"memory.size", "1MiB",        "disk.queue", "1MiB", "memory.policy",
                          policies[_i],  "disk.policy", policies[_i], NULL};
    int32_t ids[BLOCKS];
    uint8_t origins[BLOCKS];
    for (int32_t i = 0; i < BLOCKS; i++)
        ids[i] = i;
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    for (size_t to = STEP; to <= BLOCKS; to += STEP) {
        ck_assert_int_eq(fx_store(&fx, chain, to, ids, false), STEP);
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    }
    ck_assert_int_gt(fx_stats(&fx).memory_evictions, 0);
    struct tierce__tier *disk = wrap_disk();
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    for (int round = 1; round <= 4; round++) {
        ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, TIERCE_LOOKUP_PIN, 3, NULL), BLOCKS);
        fx_wipe(&fx);
        what.session = 3;
        ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
        for (size_t b = 0; b < BLOCKS; b++)
            ck_assert_msg(fx_right(&fx, chain, b, ids[b]), "block %zu", b);
        struct tierce_engine_stats stats = fx_stats(&fx);
        ck_assert_int_le(stats.memory_bytes_now, stats.memory_cap_bytes);
        ck_assert_int_eq(stats.pinned_bytes_now, 0);
        ck_assert_int_gt(stats.blocks_loaded_disk, BLOCKS / 4 * round);
    }
    /* Only the unreadable chunk fails. */
    struct tierce__fault_rule rule = {
        .kind = TIERCE__FAULT_ERROR, .status = -EIO, .skip = 30, .times = 1};
    tierce__fault_set(disk, TIERCE__STORE_GET, &rule);
    fx_wipe(&fx);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS - FX_CHUNK_BLOCKS);
    for (size_t b = 0; b < BLOCKS; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, chain, b, ids[b]));
    tierce__fault_set(disk, TIERCE__STORE_GET, NULL);
    /* An aborted load holds nothing. */
    for (int layers = 0; layers < 2; layers++) {
        struct tierce_load *load;
        ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
        for (uint32_t layer = 0; layer < (uint32_t)layers; layer++)
            ck_assert_int_eq(tierce_load_layer(load, layer), 0);
        tierce_load_abort(load);
    }
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("engine_disk");
    TCase *t = tcase_create("engine_disk");
    tcase_set_timeout(t, 240);
    tcase_add_test(t, a_restart_keeps_the_disk);
    tcase_add_test(t, a_small_last_layer_comes_from_disk);
    tcase_add_test(t, what_memory_lost_comes_from_disk);
    tcase_add_test(t, a_chain_says_what_of_it_is_durable);
    tcase_add_test(t, chunks_of_another_version_are_hidden_and_kept);
    tcase_add_test(t, what_memory_lacked_is_stored_there_again);
    tcase_add_test(t, a_bit_flipped_on_the_way_from_disk_fails_its_blocks);
    tcase_add_test(t, a_disk_that_fails_is_a_miss_then_left_alone_then_back);
    tcase_add_test(t, a_disk_that_hangs_costs_one_deadline);
    tcase_add_test(t, an_aborted_load_leaves_nothing_behind);
    tcase_add_test(t, a_folder_held_by_another_process_means_memory_only);
    tcase_add_test(t, two_engines_of_a_process_cannot_share_a_folder_by_mistake);
    tcase_add_test(t, two_spellings_of_a_folder_are_one_also_the_first_time);
    tcase_add_test(t, every_depth_that_can_be_configured_opens);
    tcase_add_test(t, lookups_do_not_end_an_outage);
    tcase_add_test(t, an_outage_of_an_empty_disk_ends);
    tcase_add_test(t, a_disk_whose_index_alone_works_is_left_alone);
    tcase_add_test(t, a_load_does_not_evict_what_it_wants);
    tcase_add_test(t, a_folder_that_cannot_be_made_means_memory_only);
    tcase_add_test(t, the_disk_cap_holds_over_restarts);
    tcase_add_test(t, the_disk_takes_no_suffix_without_its_prefix);
    tcase_add_test(t, a_store_longer_than_the_queue_keeps_its_beginning);
    tcase_add_loop_test(t, a_prompt_longer_than_memory_is_loaded_whole, 0, 3);
    tcase_add_test(t, a_store_ends_where_memory_takes_no_more);
    suite_add_tcase(suite, t);
    return suite;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--second-process") == 0)
        return second_process(argv[2]);
    return check_main_at_once(make_suite);
}
