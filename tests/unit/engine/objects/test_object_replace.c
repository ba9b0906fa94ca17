/* SPDX-License-Identifier: Apache-2.0 */
/* Replacements of named values that fail in one tier, and values that a slower tier is not given.
 */
#include "check_main.h"
#include "engine/objects/objects_private.h"
#include "engine/objects/smalls_private.h"
#include "engine/objects/tombstones.h"
#include "log_record.h"
#include "object_fixture.h"
#include "tier_fault.h"
#include "wait_for.h"

#include <string.h>

#include <tierce/log.h>

enum { DISK = 1, REMOTE = 2, SMALL = 1000, LARGE = 300000, BUFS = 4096 };

static struct fixture fx;
static struct tierce__objects *space;
static struct tierce__tier *faults[3];
static char remote[48];
static const uint64_t sizes[] = {SMALL, LARGE};

static void wrap(size_t level)
{
    faults[level] = fx_wrap(&fx, level);
}

static void open_with_remote(void)
{
    char url[80];
    strcpy(remote, "/tmp/tierce-test-XXXXXX");
    temp_folder_make(remote);
    snprintf(url, sizeof(url), "file://%s/store", remote);
    fx_open(&fx, true, (const char *const[]){"remote.urls", url, "breaker.retry", "10ms", NULL});
    ck_assert_uint_eq(fx.engine->level_count, 3);
    /* The keeper looks at the tiers once the space is open, unless a purge is under way. */
    atomic_fetch_add(&fx.engine->purges, 1);
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
    wrap(DISK);
    wrap(REMOTE);
    atomic_fetch_sub(&fx.engine->purges, 1);
}

static void open_with_disk(void)
{
    fx_open(&fx, true, NULL);
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
}

static void end(void)
{
    tierce__objects_close(space);
    fx_close(&fx);
    fx_remove(&fx);
    temp_folder_remove(remote);
}

static void break_tier(size_t level, bool broken)
{
    static const enum tierce__store_op ops[] = {TIERCE__STORE_LOOKUP, TIERCE__STORE_GET,
                                                TIERCE__STORE_DELETE, TIERCE__STORE_FLUSH};
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = -EIO};
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
        tierce__fault_set(faults[level], ops[i], broken ? &rule : NULL);
}

/* The disk can neither be read nor made to forget, while memory has been emptied. */
START_TEST(a_disk_that_fails_leaves_the_old_value)
{
    uint64_t bytes = sizes[_i];
    open_with_remote();
    ck_assert_int_eq(ox_put(space, "x", 1, bytes), 0);
    ox_empty_memory(&fx);
    break_tier(DISK, true);
    ck_assert_int_lt(ox_put(space, "x", 2, bytes), 0);
    break_tier(DISK, false);
    ck_assert_int_eq(ox_get(space, "x", NULL), 1);
    ck_assert_int_eq(ox_put(space, "x", 2, bytes), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    ox_empty_memory(&fx);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    end();
}
END_TEST

/* ---- remote stores that cannot delete ---- */

static uint64_t tombstones(void)
{
    return tierce__tombstones_count(fx.engine->tombstones);
}

static void await_purges(void)
{
    WAIT_FOR(tombstones() == 0);
}

/* Takes the value out of memory and disk: only the remote store could have one now. */
static void leave_remote_only(void)
{
    struct tierce__key key = tierce__object_key(&space->space, "x", 1);
    ox_empty_memory(&fx);
    ck_assert_int_ge(tierce__storage_remove(fx.engine, DISK, &key, tierce__deadline_in_ms(60000)),
                     0);
}

static bool remote_has(void)
{
    struct tierce__key key = tierce__object_key(&space->space, "x", 1);
    struct tierce__search search = {
        .levels = 1u << REMOTE, .deadline_ns = tierce__deadline_in_ms(60000), .asks_anew = true};
    return tierce__storage_search_until(fx.engine, &search, &key, 1) == 1;
}

static void reopen_with_remote(void)
{
    char url[80];
    snprintf(url, sizeof(url), "file://%s/store", remote);
    fx_open(&fx, true, (const char *const[]){"remote.urls", url, "breaker.retry", "10ms", NULL});
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
}

static void reopen(void)
{
    tierce__objects_close(space);
    fx_close(&fx);
    reopen_with_remote();
}

/* A remote store cannot delete the old value: the new one is stored all the same, and the old one
 * is never seen again: not while the store fails, not after a restart, and not when it is back. */
START_TEST(a_remote_store_that_fails_does_not_stop_replacing)
{
    uint64_t bytes = sizes[_i];
    open_with_remote();
    ck_assert_int_eq(ox_put(space, "x", 1, bytes), 0);
    ox_empty_memory(&fx);
    ck_assert(remote_has());
    break_tier(REMOTE, true);
    ck_assert_int_eq(ox_put(space, "x", 2, bytes), 0);
    ck_assert_uint_eq(tombstones(), 1);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    ck_assert_int_eq(ox_put(space, "x", 3, bytes), 0);
    ck_assert_uint_eq(tombstones(), 1);
    ox_empty_memory(&fx);
    ck_assert_int_eq(ox_get(space, "x", NULL), 3);
    leave_remote_only();
    break_tier(REMOTE, false);
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = -EIO};
    tierce__fault_set(faults[REMOTE], TIERCE__STORE_DELETE, &rule);
    ck_assert(remote_has()); /* the old one, if it were asked */
    ck_assert_int_eq(ox_get(space, "x", NULL), 0);
    tierce__fault_set(faults[REMOTE], TIERCE__STORE_DELETE, NULL);
    await_purges();
    ck_assert(!remote_has());
    ck_assert_int_eq(ox_put(space, "x", 4, bytes), 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert(remote_has());
    leave_remote_only();
    ck_assert_int_eq(ox_get(space, "x", NULL), 4);
    end();
}
END_TEST

START_TEST(a_tombstone_survives_a_restart)
{
    uint64_t bytes = sizes[_i];
    bool was;
    open_with_remote();
    ck_assert_int_eq(ox_put(space, "x", 1, bytes), 0);
    ox_empty_memory(&fx);
    break_tier(REMOTE, true);
    ck_assert_int_eq(tierce__object_remove(space, "x", 1, &was), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 0);
    ck_assert_uint_eq(tombstones(), 1);
    reopen();
    /* It is there, or the store has been asked to delete the value already. */
    ck_assert_int_eq(ox_get(space, "x", NULL), 0);
    await_purges();
    ck_assert(!remote_has());
    reopen();
    ck_assert_uint_eq(tombstones(), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 0);
    end();
}
END_TEST

/* A remote store can be read and written, and cannot delete: it is not asked for a name with a
 * tombstone, and not given its new value either, which would be deleted later. */
START_TEST(a_name_with_a_tombstone_is_kept_from_the_store)
{
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = TIERCE_E_REFUSED};
    bool was;
    open_with_remote();
    tierce__fault_set(faults[REMOTE], TIERCE__STORE_DELETE, &rule);
    ck_assert_int_eq(ox_put(space, "x", 1, sizes[_i]), 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert(!remote_has());
    ck_assert_uint_eq(tombstones(), 1);
    tierce__fault_set(faults[REMOTE], TIERCE__STORE_DELETE, NULL);
    await_purges();
    ck_assert_int_eq(ox_put(space, "x", 2, sizes[_i]), 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert(remote_has());
    tierce__fault_set(faults[REMOTE], TIERCE__STORE_DELETE, &rule);
    ck_assert_int_eq(tierce__object_remove(space, "x", 1, &was), 0);
    ck_assert(was);
    ck_assert(remote_has());
    ck_assert_int_eq(tierce__object_remove(space, "x", 1, &was), 0);
    ck_assert(!was);
    tierce__fault_set(faults[REMOTE], TIERCE__STORE_DELETE, NULL);
    await_purges();
    ck_assert(!remote_has());
    end();
}
END_TEST

/* The folder with the tombstone cannot be used after a restart: the store may hold an old value of
 * any name, and is not asked. */
START_TEST(tombstones_that_cannot_be_read_keep_the_store_from_being_asked)
{
    char command[256];
    bool was;
    open_with_remote();
    ck_assert_int_eq(ox_put(space, "x", 1, sizes[_i]), 0);
    ox_empty_memory(&fx);
    break_tier(REMOTE, true);
    ck_assert_int_eq(tierce__object_remove(space, "x", 1, &was), 0);
    tierce__objects_close(space);
    fx_close(&fx);
    snprintf(command, sizeof(command), "cd %s && mv journal mine && echo somebody >journal",
             fx.folder);
    ck_assert_int_eq(system(command), 0);
    reopen_with_remote();
    ck_assert_uint_eq(fx.engine->level_count, 2);
    ck_assert_int_eq(ox_get(space, "x", NULL), 0);
    tierce__objects_close(space);
    fx_close(&fx);
    snprintf(command, sizeof(command), "cd %s && mv mine journal", fx.folder);
    ck_assert_int_eq(system(command), 0);
    reopen_with_remote();
    ck_assert_uint_eq(fx.engine->level_count, 3);
    await_purges();
    ck_assert(!remote_has());
    end();
}
END_TEST

/* The number that tombstones give a store names a place, however it is used. */
START_TEST(stores_have_numbers_of_their_own)
{
    static const char urls[] =
        "redis://127.0.0.1:1/0 redis://:secret@127.0.0.1:1/0?ttl=1h redis://127.0.0.1:1/0?prefix=a "
        "redis://127.0.0.1:1/0?db=1 redis://127.0.0.1:1/1";
    fx_open(&fx, false, (const char *const[]){"remote.urls", urls, NULL});
    const struct tierce__level *levels = fx.engine->levels;
    ck_assert_uint_eq(fx.engine->level_count, 6);
    ck_assert_uint_eq(levels[1].store, levels[2].store);
    for (size_t i = 2; i < 6; i++) {
        for (size_t j = i + 1; j < 6; j++)
            ck_assert_uint_ne(levels[i].store, levels[j].store);
    }
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Without a store folder nothing could remember that the old value must not return. */
START_TEST(without_a_disk_a_remote_store_that_fails_keeps_the_old_value)
{
    char url[80];
    strcpy(remote, "/tmp/tierce-test-XXXXXX");
    temp_folder_make(remote);
    snprintf(url, sizeof(url), "file://%s/store", remote);
    fx_open(&fx, false, (const char *const[]){"remote.urls", url, "breaker.retry", "10ms", NULL});
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
    wrap(1);
    ck_assert_int_eq(ox_put(space, "x", 1, sizes[_i]), 0);
    ox_empty_memory(&fx);
    break_tier(1, true);
    ck_assert_int_lt(ox_put(space, "x", 2, sizes[_i]), 0);
    break_tier(1, false);
    ck_assert_int_eq(ox_get(space, "x", NULL), 1);
    end();
}
END_TEST

static void open_keeping(bool has_disk)
{
    char url[96];
    snprintf(url, sizeof(url), "file://%s/store?read_only=true", remote);
    fx_open(&fx, has_disk, (const char *const[]){"remote.urls", url, NULL});
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
}

/* More names than the tier hides without help. */
enum { KEPT = 1100 };

static const char *kept_name(unsigned n)
{
    static char name[16];
    snprintf(name, sizeof(name), "n%u", n);
    return name;
}

/* A read-only store with values that others have stored there. */
static void fill_remote(void)
{
    open_with_remote();
    for (unsigned n = 0; n < KEPT; n++) {
        ck_assert_int_eq(ox_put(space, kept_name(n), 1, 100), 0);
        if (n % 8 == 7) /* or the queue to the store drops some */
            ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    }
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    tierce__objects_close(space);
    fx_close(&fx);
    fx_remove(&fx);
    fx = (struct fixture){0}; /* the next engine has another folder */
}

static void check_kept(void)
{
    for (unsigned n = 0; n < KEPT; n++)
        ck_assert_int_eq(ox_get(space, kept_name(n), NULL), n % 2 == 0 ? 0 : 2);
}

START_TEST(a_store_that_never_deletes_is_not_asked_for_what_was_removed)
{
    bool was;
    fill_remote();
    open_keeping(true);
    for (unsigned n = 0; n < KEPT; n++) {
        const char *name = kept_name(n);
        ck_assert_msg(ox_get(space, name, NULL) == 1, "%s", name);
        if (n % 2 == 0)
            ck_assert_int_eq(tierce__object_remove_by(space, name, strlen(name),
                                                      tierce__deadline_in_ms(60000), &was),
                             0);
        else
            ck_assert_int_eq(ox_put(space, name, 2, 100), 0);
        ck_assert(n % 2 != 0 || was);
    }
    ck_assert_uint_eq(tombstones(), KEPT);
    check_kept();
    ck_assert_int_eq(ox_put(space, "new", 2, 100), 0); /* the store does not have it */
    ck_assert_uint_eq(tombstones(), KEPT);
    tierce__objects_close(space);
    fx_close(&fx);
    open_keeping(true);
    ck_assert_uint_eq(tombstones(), KEPT);
    check_kept();
    end();
}
END_TEST

START_TEST(without_a_disk_a_store_that_never_deletes_keeps_its_values)
{
    bool was;
    fill_remote();
    open_keeping(false);
    ck_assert_int_eq(ox_put(space, "n1", 2, 100), TIERCE__VALUE_IS_KEPT);
    ck_assert_int_eq(tierce__object_remove_by(space, "n2", 2, tierce__deadline_in_ms(60000), &was),
                     TIERCE__VALUE_IS_KEPT);
    ck_assert_int_eq(ox_get(space, "n1", NULL), 1);
    ck_assert_int_eq(ox_get(space, "n2", NULL), 1);
    ck_assert_int_eq(ox_put(space, "new", 2, 100), 0);
    ck_assert_int_eq(ox_get(space, "new", NULL), 2);
    end();
}
END_TEST

/* The disk forgets, and cannot make it durable. */
START_TEST(a_removal_that_is_not_durable_leaves_one_of_both)
{
    uint64_t bytes = sizes[_i];
    open_with_disk();
    wrap(DISK);
    ck_assert_int_eq(ox_put(space, "x", 1, bytes), 0);
    ox_empty_memory(&fx);
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = -EIO};
    tierce__fault_set(faults[DISK], TIERCE__STORE_FLUSH, &rule);
    ck_assert_int_eq(ox_put(space, "x", 2, bytes), -EIO);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    tierce__fault_set(faults[DISK], TIERCE__STORE_FLUSH, NULL);
    ox_empty_memory(&fx);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    end();
}
END_TEST

/* Publishes the value without a sync. Returns whether one is needed. */
static bool put_unsettled(const char *name, uint64_t version, uint64_t bytes)
{
    struct tierce__object *object;
    bool unsettled;
    ck_assert_int_eq(
        tierce__object_create(space, &object,
                              &(struct tierce__object_what){.name = name,
                                                            .name_bytes = strlen(name),
                                                            .note = &version,
                                                            .note_bytes = sizeof(version),
                                                            .value_bytes = bytes}),
        0);
    ox_fill(object->value, bytes, version);
    ck_assert_int_eq(tierce__object_publish_unsettled(object, &unsettled), 0);
    return unsettled;
}

/* A thread has replaced a value and not synced the removal. Another thread, or the same client
 * again, stores the same new value: it is not acknowledged before the removal is durable. */
START_TEST(the_same_value_again_settles_the_removal_too)
{
    uint64_t bytes = sizes[_i];
    fx_open(&fx, true, (const char *const[]){"disk.flush_interval", "1h", NULL});
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
    wrap(DISK);
    ck_assert_int_eq(ox_put(space, "x", 1, bytes), 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert(put_unsettled("x", 2, bytes));
    ck_assert(put_unsettled("x", 2, bytes));
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = -EIO};
    tierce__fault_set(faults[DISK], TIERCE__STORE_FLUSH, &rule);
    ck_assert_int_eq(ox_put(space, "x", 2, bytes), -EIO);
    tierce__fault_set(faults[DISK], TIERCE__STORE_FLUSH, NULL);
    ck_assert_int_eq(ox_put(space, "x", 2, bytes), 0);
    ck_assert(!put_unsettled("x", 2, bytes));
    tierce__fault_set(faults[DISK], TIERCE__STORE_FLUSH, &rule);
    ck_assert_int_eq(ox_put(space, "x", 2, bytes), 0); /* there is nothing to sync */
    tierce__fault_set(faults[DISK], TIERCE__STORE_FLUSH, NULL);
    end();
}
END_TEST

/* Takes memory away: `most` buffers, or all that there is. */
static size_t take_memory(struct tierce__buf **bufs, size_t most)
{
    size_t count = 0;
    for (uint64_t bytes = most < BUFS ? 1 : 1 << 20; bytes > 0; bytes /= 2) {
        while (count < most && tierce__pool_alloc(fx.engine->pool, &bufs[count], bytes) == 0)
            count++;
    }
    return count;
}

static void give_back(struct tierce__buf **bufs, size_t count)
{
    while (count > 0)
        tierce__buf_release(bufs[--count]);
}

/* Memory has no place for a page of small values, so the disk must not forget. */
START_TEST(a_small_value_without_a_place_leaves_the_old_one)
{
    static struct tierce__buf *bufs[BUFS];
    open_with_disk();
    ck_assert_int_eq(ox_put(space, "x", 1, SMALL), 0);
    ox_empty_memory(&fx);
    size_t count = take_memory(bufs, BUFS);
    ck_assert_int_eq(ox_put(space, "x", 2, SMALL), TIERCE_E_FULL);
    give_back(bufs, count);
    ck_assert_int_eq(ox_get(space, "x", NULL), 1);
    ck_assert_int_eq(ox_put(space, "x", 2, SMALL), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    end();
}
END_TEST

static struct tierce__tier_ops greedy;
static const struct tierce__tier_ops *real;
static struct tierce__buf *greedy_bufs[BUFS];
static size_t greedy_count;

/* All of memory goes to others between the removal of the old value and the new one. */
static void submit_greedily(struct tierce__tier *tier, struct tierce__store_req *req)
{
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    if (req->op == TIERCE__STORE_DELETE && greedy_count == 0) {
        while (memory->ops->evict(memory, 1) > 0)
            continue;
        greedy_count = take_memory(greedy_bufs, BUFS);
    }
    real->submit(tier, req);
}

START_TEST(a_small_value_that_loses_its_place_is_stored_as_a_large_one)
{
    open_with_disk();
    ck_assert_int_eq(ox_put(space, "x", 1, SMALL), 0);
    ox_empty_memory(&fx);
    struct tierce__tier *disk = fx.engine->levels[DISK].tier;
    real = disk->ops;
    greedy = *real;
    greedy.submit = submit_greedily;
    disk->ops = &greedy;
    ck_assert_int_eq(ox_put(space, "x", 2, SMALL), 0);
    disk->ops = real;
    ck_assert_uint_gt(greedy_count, 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    give_back(greedy_bufs, greedy_count);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    ck_assert_int_eq(ox_put(space, "x", 3, SMALL), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 3);
    ck_assert_uint_eq(tierce__objects_count(space), 1);
    ox_empty_memory(&fx);
    ck_assert_int_eq(ox_get(space, "x", NULL), 3);
    end();
}
END_TEST

/* Pins the only page of small values. */
static struct tierce__buf *pin_page(void)
{
    struct tierce__small_partition *p = &fx.engine->smalls->partitions[0];
    while (p->live_pages == 0)
        p++;
    ck_assert_uint_eq(p->live_pages, 1);
    tierce__buf_acquire(p->pages[0]->buf);
    return p->pages[0]->buf;
}

/* The new size needs another page, for which there is no memory. */
START_TEST(a_small_value_that_cannot_grow_stays)
{
    static struct tierce__buf *bufs[BUFS];
    fx_open(&fx, false, NULL);
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
    ck_assert_int_eq(ox_put(space, "x", 1, SMALL), 0);
    struct tierce__buf *page = pin_page();
    size_t count = take_memory(bufs, BUFS);
    ck_assert_int_eq(ox_put(space, "x", 2, 8 * SMALL), TIERCE_E_FULL);
    ck_assert_int_eq(ox_get(space, "x", NULL), 1);
    tierce__buf_release(page);
    give_back(bufs, count);
    end();
}
END_TEST

/* Half of the pool's buffers wait to be written: there is room for the value among the small ones,
 * and none for the form that the disk is given. */
START_TEST(a_small_value_that_only_memory_has_is_counted)
{
    static struct tierce__buf *bufs[BUFS];
    struct tierce__pool_stats pool;
    open_with_disk();
    tierce__pool_stats(fx.engine->pool, &pool);
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(ox_put(space, "x", 1, SMALL), 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_eq(fx_stats(&fx).objects_not_written, 0);
    size_t count = take_memory(bufs, pool.buf_count_max / 2);
    ck_assert_int_eq(ox_put(space, "y", 2, SMALL), 0);
    ck_assert_int_eq(fx_stats(&fx).objects_not_written, 1);
    ck_assert_uint_eq(recorded("object_not_written"), 1);
    give_back(bufs, count);
    ck_assert_int_eq(ox_get(space, "y", NULL), 2);
    ox_empty_memory(&fx);
    ck_assert_int_eq(ox_get(space, "y", NULL), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 1);
    end();
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
}
END_TEST

/* The caller's deadline bounds a replacement and a removal, however long timeout.load is. */
START_TEST(a_tier_that_hangs_is_left_at_the_deadline)
{
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_HANG};
    struct tierce__object_what what = {.name = "x", .name_bytes = 1, .value_bytes = sizes[_i]};
    struct tierce__object *object;
    bool was;
    fx_open(&fx, true, (const char *const[]){"timeout.load", "1h", NULL});
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
    wrap(DISK);
    ck_assert_int_eq(ox_put(space, "x", 1, sizes[_i]), 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    tierce__fault_set(faults[DISK], TIERCE__STORE_DELETE, &rule);
    ck_assert_int_eq(tierce__object_create(space, &object, &what), 0);
    memset(object->value, 0, what.value_bytes);
    object->deadline_ns = tierce__deadline_in_ms(100);
    ck_assert_int_eq(tierce__object_publish(object), TIERCE_E_DEADLINE);
    ck_assert_int_eq(ox_get(space, "x", NULL), 1);
    ck_assert_int_eq(tierce__object_remove_by(space, "x", 1, tierce__deadline_in_ms(100), &was),
                     TIERCE_E_DEADLINE);
    tierce__fault_set(faults[DISK], TIERCE__STORE_DELETE, NULL);
    end();
}
END_TEST

CHECK_MAIN("object_replace", .seconds = 60,
           .tests = {stores_have_numbers_of_their_own,
                     a_small_value_without_a_place_leaves_the_old_one,
                     a_small_value_that_loses_its_place_is_stored_as_a_large_one,
                     a_small_value_that_cannot_grow_stays,
                     a_small_value_that_only_memory_has_is_counted,
                     a_store_that_never_deletes_is_not_asked_for_what_was_removed,
                     without_a_disk_a_store_that_never_deletes_keeps_its_values},
           .loops = {{a_disk_that_fails_leaves_the_old_value, 0, 2},
                     {a_remote_store_that_fails_does_not_stop_replacing, 0, 2},
                     {a_tombstone_survives_a_restart, 0, 2},
                     {tombstones_that_cannot_be_read_keep_the_store_from_being_asked, 0, 2},
                     {a_name_with_a_tombstone_is_kept_from_the_store, 0, 2},
                     {without_a_disk_a_remote_store_that_fails_keeps_the_old_value, 0, 2},
                     {a_removal_that_is_not_durable_leaves_one_of_both, 0, 2},
                     {the_same_value_again_settles_the_removal_too, 0, 2},
                     {a_tier_that_hangs_is_left_at_the_deadline, 0, 2}})
