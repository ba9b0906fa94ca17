/* SPDX-License-Identifier: Apache-2.0 */
/* Deletions of several storages: a batch is split if some of them fail, and each storage has a
 * count of its own. */
#include "base/alloc.h"
#include "check_main.h"
#include "manager/locate/notes.h"
#include "manager_moves.h"
#include "silent_log.h"

enum { KEYS = 3 };
static const int64_t keys[KEYS] = {11, 22, 33};
static struct harness h;

/* ---- storages that fail one by one ----------------------------------------------------------- */

static const char *failing; /* the storage that fails; NULL: none does */
static unsigned asked;      /* removals in it */
static unsigned removed;    /* in all storages */

static int gate_open(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                     char why[128]);

/* The driver of a storage with a name of one letter. */
static struct tierce__storage_driver *gate_of(const char *name)
{
    static struct tierce__storage_driver drivers[UINT8_MAX + 1];
    return &drivers[(uint8_t)name[0]];
}

static void gate_close(struct tierce__storage_driver *driver)
{
    (void)driver;
}

static int gate_probe(struct tierce__storage_driver *driver, char why[128])
{
    (void)driver, (void)why;
    return 0;
}

static int gate_remove(struct tierce__storage_driver *driver, const char *path)
{
    (void)path;
    bool fails = failing != NULL && driver == gate_of(failing);
    asked += fails;
    removed += !fails;
    return fails ? -EIO : 0;
}

static double gate_used_share(struct tierce__storage_driver *driver)
{
    (void)driver;
    return -1;
}

static const struct tierce__storage_ops gate_ops = {.name = "gate",
                                                    .open = gate_open,
                                                    .close = gate_close,
                                                    .probe = gate_probe,
                                                    .remove = gate_remove,
                                                    .used_share = gate_used_share};

static int gate_open(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                     char why[128])
{
    (void)why;
    *out = gate_of(storage->name);
    (*out)->ops = &gate_ops;
    return 0;
}

static const struct tierce__storage_ops *find_gate(enum tierce__storage_type type)
{
    (void)type;
    return &gate_ops;
}

static void open_gates(void)
{
    silence_log();
    failing = NULL;
    asked = removed = 0;
    moves_open(&h, &(struct harness_opts){.find_driver = find_gate});
}

static size_t step(void)
{
    return tierce__deleter_step(h.locator->deleter, SIZE_MAX);
}

static uint64_t waiting(void)
{
    struct tierce__deleter_stats stats;
    tierce__deleter_stats(h.locator->deleter, &stats);
    return stats.waiting;
}

static uint64_t left_in(const char *storage)
{
    struct tierce__deleter_left left;
    tierce__deleter_left_in(h.locator->deleter, moves_number_of(&h, storage), &left);
    return left.locations;
}

/* ---- splitting ------------------------------------------------------------------------------- */

/* Removes blocks that are in both storages, in one batch. */
static void remove_copied(void)
{
    const struct tierce__mask none = {0};
    harness_store(&h, keys, KEYS);
    ck_assert_uint_eq(moves_want(&h, keys, KEYS, "s", true, TIERCE__MOVE_TO_ANY), KEYS);
    struct tierce__taken_moves taken = moves_take(&h, 100);
    for (size_t i = 0; i < taken.count; i++)
        (void)moves_finish(&h, &taken.batches[i], TIERCE__MOVED);
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), KEYS * BLOCK_BYTES);
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", keys, KEYS, &none, h.why), 0);
    ck_assert_uint_eq(waiting(), 1);
    ck_assert_uint_eq(left_in("s"), KEYS);
    ck_assert_uint_eq(left_in("t"), KEYS);
}

/* The healthy storage has its bytes back at once, and is not asked again for the other's sake. */
START_TEST(a_storage_that_fails_keeps_no_other_waiting)
{
    static const char *const names[] = {"s", "t"};
    const char *healthy = names[1 - _i];
    open_gates();
    remove_copied();
    failing = names[_i];
    (void)step();
    ck_assert_uint_eq(moves_bytes_in(&h, healthy), 0);
    ck_assert_uint_eq(left_in(healthy), 0);
    ck_assert_uint_eq(moves_bytes_in(&h, names[_i]), KEYS * BLOCK_BYTES);
    ck_assert_uint_eq(left_in(names[_i]), KEYS);
    ck_assert_uint_eq(waiting(), 1);
    unsigned before = removed, tries = asked;
    h.now_us += 2000000;
    ck_assert_uint_eq(step(), 0);
    ck_assert_uint_gt(asked, tries);
    ck_assert_uint_eq(removed, before);
    failing = NULL;
    h.now_us += 70 * 1000000LL;
    ck_assert_uint_eq(step(), 1);
    ck_assert_uint_eq(moves_bytes_in(&h, names[_i]) + left_in(names[_i]), 0);
    close_all(&h);
}
END_TEST

static const struct tierce__meta_store_ops *real_ops;
static struct tierce__meta_store_ops doubtful_ops;
static bool is_written; /* although the store says that it is not */
static int doubts;

static int doubtful_write(struct tierce__meta_space *space, const struct tierce__meta_batch *batch)
{
    if (doubts == 0)
        return real_ops->write(space, batch);
    doubts--;
    if (is_written)
        ck_assert_int_eq(real_ops->write(space, batch), 0);
    return -EIO;
}

static int count_note(void *arg, const struct tierce__meta_note *note)
{
    (void)note;
    ++*(size_t *)arg;
    return 0;
}

static size_t notes_of(struct tierce__live *live)
{
    size_t count = 0;
    ck_assert_int_eq(
        live->space->ops->notes(live->space, TIERCE__NOTE_DELETION, count_note, &count), 0);
    return count;
}

/* The store does not say whether it has the batches into which one was split. */
START_TEST(a_split_in_doubt_is_looked_up)
{
    struct tierce__live *live;
    open_gates();
    remove_copied();
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    real_ops = live->space->ops;
    doubtful_ops = *real_ops;
    doubtful_ops.write = doubtful_write;
    live->space->ops = &doubtful_ops;
    is_written = _i == 1;
    failing = "t";
    doubts = 1;
    ck_assert_uint_eq(step(), 0);
    ck_assert_uint_eq(doubts, 0);
    ck_assert_uint_eq(notes_of(live), is_written ? 2 : 1);
    ck_assert_uint_eq(waiting(), 1);
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), KEYS * BLOCK_BYTES);
    h.now_us += 2000000;
    (void)step();
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), 0);
    ck_assert_uint_eq(notes_of(live), 1);
    failing = NULL;
    h.now_us += 70 * 1000000LL;
    ck_assert_uint_eq(step(), 1);
    ck_assert_uint_eq(notes_of(live), 0);
    ck_assert_uint_eq(waiting() + left_in("s") + left_in("t"), 0);
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), 0);
    live->space->ops = real_ops;
    tierce__live_release(live);
    close_all(&h);
}
END_TEST

/* Whichever allocation fails: the batch is tried again as a whole, or in parts. */
START_TEST(a_split_survives_lack_of_memory)
{
    uint64_t nth = 0, made;
    open_gates();
    do {
        remove_copied();
        failing = "t";
        tierce__alloc_fail_nth(++nth);
        (void)step();
        made = tierce__alloc_fail_nth(0);
        failing = NULL;
        for (int i = 0; i < 3; i++) {
            h.now_us += 70 * 1000000LL;
            (void)step();
        }
        ck_assert_uint_eq(moves_bytes_in(&h, "s") + moves_bytes_in(&h, "t"), 0);
        ck_assert_uint_eq(waiting(), 0);
    } while (made >= nth);
    ck_assert_uint_gt(nth, 10);
    close_all(&h);
}
END_TEST

/* ---- counts ---------------------------------------------------------------------------------- */

/* A second deletion, as it is read from its note. */
static struct tierce__deletion *make_sweep(struct tierce__live *live)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__spec_place place = {.file = 1, .bytes = 1};
    struct tierce__location location = {.storage = tierce__catalog_storage(catalog, "s")->number,
                                        .type = TIERCE__STORAGE_NFS,
                                        .place_count = 1,
                                        .places = &place};
    struct tierce__deletion *sweep = tierce__deletion_create(live, 1);
    tierce__registry_release(h.registry, catalog);
    ck_assert_ptr_nonnull(sweep);
    ck_assert_int_eq(tierce__deletion_add(sweep, 1, &location), 0);
    sweep->is_sweep = true;
    sweep->sweep_us = h.now_us + 1000000;
    return sweep;
}

/* A batch that finds no memory is the next leader's: until then its storage is not empty. */
START_TEST(a_deletion_without_memory_counts)
{
    struct tierce__live *live;
    uint64_t nth = 0, made;
    open_gates();
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    do {
        ck_assert_uint_eq(left_in("s"), 0);
        struct tierce__deletion *sweep = make_sweep(live);
        tierce__alloc_fail_nth(++nth);
        tierce__deleter_submit(h.locator->deleter, sweep);
        made = tierce__alloc_fail_nth(0);
        ck_assert_uint_eq(left_in("s"), 1);
        if (waiting() > 0) {
            h.now_us += 1000000;
            ck_assert_uint_eq(step(), 1);
            ck_assert_uint_eq(left_in("s"), 0);
        } else {
            ck_assert_uint_eq(step(), 0);
            ck_assert_uint_eq(left_in("s"), 1);
        }
        tierce__deleter_drop(h.locator->deleter); /* as the next leader: it reads the note */
    } while (made >= nth);
    ck_assert_uint_ge(nth, 2);
    tierce__live_release(live);
    close_all(&h);
}
END_TEST

CHECK_MAIN("deleter_storages", .seconds = 60,
           .tests = {a_split_survives_lack_of_memory, a_deletion_without_memory_counts},
           .loops = {{a_storage_that_fails_keeps_no_other_waiting, 0, 2},
                     {a_split_in_doubt_is_looked_up, 0, 2}})
