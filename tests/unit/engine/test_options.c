/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a request: tiers, lifetime of its pins, a tag. */
#include "base/clock.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "tier_fault.h"
#include "wait_for.h"

#include <errno.h>
#include <tierce/operate.h>

#define BLOCKS 12u
#define MEMORY (1u << TIERCE_ORIGIN_MEMORY)
#define DISK   (1u << TIERCE_ORIGIN_DISK)

static struct fixture fx;
static struct tierce_chain *chain;

static void open_engine(bool disk, const char *const *sets)
{
    fx_open(&fx, disk, sets);
    chain = fx_chain(&fx, 1, BLOCKS, 0);
}

static void end(void)
{
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}

static int64_t store(uint32_t tiers)
{
    fx_fill(&fx, chain, 0, BLOCKS, fx_ids);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    what.tiers = tiers;
    return tierce_store(fx.view, &what);
}

static struct tierce_found look(uint32_t tiers)
{
    struct tierce_found found;
    struct tierce_lookup_opts opts = {.size = sizeof(opts), .tiers = tiers};
    ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &opts, &found), 0);
    return found;
}

static int64_t load(uint32_t tiers, uint8_t *origins)
{
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    what.tiers = tiers;
    int64_t blocks = tierce_load(fx.view, &what, origins);
    for (size_t b = 0; b < BLOCKS; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, chain, b, fx_ids[b]));
    return blocks;
}

static void flush(void)
{
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
}

START_TEST(a_store_goes_where_it_is_told)
{
    uint8_t origins[BLOCKS];
    open_engine(true, NULL);
    ck_assert_int_eq(store(MEMORY), BLOCKS);
    flush();
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, 0);
    ck_assert_uint_eq(look(0).memory_blocks, BLOCKS);
    ck_assert_uint_eq(look(DISK).blocks, 0);
    ck_assert_int_eq(load(DISK, origins), 0);
    /* The disk lacks it still. */
    ck_assert_int_eq(store(0), 0);
    ck_assert_int_eq(store(DISK), BLOCKS);
    flush();
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, 3);
    ck_assert_int_eq(store(DISK), 0);
    end();
}
END_TEST

START_TEST(a_store_to_disk_alone)
{
    uint8_t origins[BLOCKS];
    open_engine(true, NULL);
    ck_assert_int_eq(store(DISK), BLOCKS);
    flush();
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, 0);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
    ck_assert_uint_eq(look(MEMORY).blocks, 0);
    struct tierce_found found = look(0);
    ck_assert_uint_eq(found.blocks, BLOCKS);
    ck_assert_uint_eq(found.memory_blocks, 0);
    ck_assert_int_eq(load(MEMORY, origins), 0);
    ck_assert_int_eq(load(DISK, origins), BLOCKS);
    ck_assert_int_eq(origins[0], TIERCE_ORIGIN_DISK);
    end();
}
END_TEST

START_TEST(a_tier_that_is_not_there)
{
    uint8_t origins[BLOCKS];
    open_engine(false, NULL);
    ck_assert_int_eq(store(DISK), 0);
    ck_assert_int_eq(store(MEMORY | DISK), BLOCKS);
    ck_assert_uint_eq(look(DISK).blocks, 0);
    ck_assert_int_eq(load(DISK, origins), 0);
    ck_assert_int_eq(load(0, origins), BLOCKS);
    end();
}
END_TEST

/* Memory forgets what it has said that it holds. */
static void forget(struct tierce__tier *memory)
{
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = -EAGAIN};
    rule.times = 1;
    tierce__fault_set(memory, TIERCE__STORE_LOOKUP, &rule); /* the lease of all that it has */
    rule.times = 2 * 3; /* and who reads a chunk asks memory once more */
    tierce__fault_set(memory, TIERCE__STORE_GET, &rule);
}

START_TEST(what_left_memory_is_read_only_where_it_is_wished)
{
    uint8_t origins[BLOCKS];
    open_engine(true, NULL);
    ck_assert_int_eq(store(0), BLOCKS);
    flush();
    struct tierce__tier *memory, *inner = fx.engine->levels[0].tier;
    ck_assert_int_eq(tierce__fault_create(&memory, inner), 0);
    fx.engine->levels[0].tier = memory;
    forget(memory);
    ck_assert_int_eq(load(MEMORY, origins), 0);
    ck_assert_int_eq(fx_stats(&fx).blocks_loaded_disk, 0);
    forget(memory);
    ck_assert_int_eq(load(MEMORY | DISK, origins), BLOCKS);
    ck_assert_int_eq(origins[0], TIERCE_ORIGIN_DISK);
    end();
}
END_TEST

START_TEST(what_is_in_a_faster_tier_is_read_from_there)
{
    uint8_t origins[BLOCKS];
    open_engine(true, NULL);
    ck_assert_int_eq(store(0), BLOCKS);
    flush();
    ck_assert_int_eq(load(DISK, origins), BLOCKS);
    ck_assert_int_eq(origins[0], TIERCE_ORIGIN_MEMORY);
    end();
}
END_TEST

static void pin_as(uint64_t session, uint32_t pin_ms, int status)
{
    struct tierce_found found;
    struct tierce_lookup_opts opts = {
        .size = sizeof(opts), .flags = TIERCE_LOOKUP_PIN, .session = session, .pin_ms = pin_ms};
    ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &opts, &found), status);
}

static void pin(uint32_t pin_ms, int status)
{
    pin_as(5, pin_ms, status);
}

START_TEST(pins_last_as_long_as_is_wished)
{
    open_engine(false, (const char *const[]){"timeout.pin", "1h", NULL});
    ck_assert_int_eq(store(0), BLOCKS);
    pin(1, 0);
    WAIT_WITHIN(20000, fx_stats(&fx).pins_expired == 1);
    ck_assert_int_eq(fx_stats(&fx).pinned_bytes_now, 0);
    uint64_t before = tierce__now_ns();
    pin(TIERCE_PIN_MS_MAX, 0);
    struct tierce__session *session = tierce__session_take(fx.view, 5);
    ck_assert_uint_ge(session->deadline_ns, before + TIERCE_PIN_MS_MAX * (uint64_t)TIERCE__MS_NS);
    tierce__session_free(session);
    pin(TIERCE_PIN_MS_MAX + 1, TIERCE_E_ARGUMENT);
    pin_as(0, 1, TIERCE_E_ARGUMENT); /* no load could use these pins */
    end();
}
END_TEST

static size_t count_uses(const struct tierce_view *view)
{
    size_t count = 0;
    for (size_t i = 0; i < TIERCE__USE_SETS * TIERCE__USE_WAYS; i++)
        count += fx.engine->uses[i / TIERCE__USE_WAYS][i % TIERCE__USE_WAYS].view == view;
    return count;
}

/* A new view at the address of a closed one has no history. */
START_TEST(a_closed_view_is_forgotten)
{
    open_engine(false, NULL);
    struct tierce_namespace ns = fx_namespace();
    struct tierce_view *view;
    ck_assert_int_eq(tierce_view_open(&view, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
    for (uint64_t id = 1; id <= 20; id++)
        tierce__session_leave(view, id, 3);
    tierce__session_leave(fx.view, 7, 4);
    ck_assert_uint_eq(count_uses(view), 20);
    uintptr_t was = (uintptr_t)view;
    tierce_view_close(view);
    ck_assert_uint_eq(count_uses((const struct tierce_view *)was), 0);
    ck_assert_uint_eq(tierce__session_promised(fx.view, 7), 4);
    ck_assert_uint_eq(tierce__session_promised(fx.view, 1), SIZE_MAX);
    end();
}
END_TEST

/* Adding pins may extend the lifetime of a session's pins, but never shortens it. */
START_TEST(pins_are_added_to)
{
    open_engine(false, NULL);
    ck_assert_int_eq(store(0), BLOCKS);
    struct tierce__keys keys;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.view, chain, BLOCKS, BLOCKS, false), 0);
    static const uint32_t pin_ms[] = {60000, 30000, 3600000};
    static const uint32_t longest_ms[] = {60000, 60000, 3600000};
    for (size_t added = 1; added <= 3; added++) {
        uint64_t before = tierce__now_ns();
        for (size_t i = 0; i < added; i++) {
            struct tierce__buf *buf = tierce__storage_lease(fx.engine, &keys.keys[i]);
            ck_assert(tierce__session_add(fx.view, 5, &keys.keys[i], buf, pin_ms[i]));
        }
        struct tierce__session *session = tierce__session_take(fx.view, 5);
        ck_assert_uint_eq(session->count, added);
        ck_assert_uint_ge(session->deadline_ns,
                          before + longest_ms[added - 1] * (uint64_t)TIERCE__MS_NS);
        tierce__session_free(session);
    }
    tierce__keys_fini(&keys);
    end();
}
END_TEST

START_TEST(tags_are_written)
{
    char path[] = "/tmp/tierce-tags-XXXXXX", text[8192];
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    open_engine(false, (const char *const[]){"access_log.path", path, NULL});
    char tag[100];
    memset(tag, 'x', sizeof(tag) - 1);
    tag[sizeof(tag) - 1] = '\0';
    struct tierce_found found;
    struct tierce_lookup_opts opts = {.size = sizeof(opts), .tag = "team \"a\"\\\n7"};
    ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &opts, &found), 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    what.tag = tag;
    ck_assert_int_eq(tierce_store(fx.view, &what), BLOCKS);
    end();
    ssize_t n = read(fd, text, sizeof(text) - 1);
    ck_assert_int_gt(n, 0);
    text[n] = '\0';
    ck_assert_ptr_nonnull(strstr(text, ",\"tag\":\"team _a___7\",\"tiers\""));
    tag[TIERCE_TAG_BYTES_MAX] = '\0';
    char want[128];
    snprintf(want, sizeof(want), ",\"tag\":\"%s\",\"tiers\"", tag);
    ck_assert_ptr_nonnull(strstr(text, want));
    close(fd);
    unlink(path);
}
END_TEST

CHECK_MAIN("options", .seconds = 60,
           .tests = {a_store_goes_where_it_is_told, a_store_to_disk_alone, a_tier_that_is_not_there,
                     what_left_memory_is_read_only_where_it_is_wished,
                     what_is_in_a_faster_tier_is_read_from_there,
                     FX_EMBEDDED(pins_last_as_long_as_is_wished), FX_EMBEDDED(pins_are_added_to),
                     FX_EMBEDDED(a_closed_view_is_forgotten), tags_are_written})
