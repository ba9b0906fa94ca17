/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "log_record.h"
#include "manager/locate/notes.h"
#include "manager_harness.h"
#include "silent_log.h"
#include "wait_for.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* The deleter on storages that are slow, reject, or hang, and on a clock of its own. */

static const int64_t keys[] = {11, 22, 33, 44, 55, 66};
static struct harness h;

/* ---- a scripted storage ---------------------------------------------------------------------- */

enum { HANG_MS = 50 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool hangs;
    int error; /* of every removal; 0: none */
    unsigned asked, removed;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};

static int gate_open(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                     char why[128]);

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
    (void)driver, (void)path;
    pthread_mutex_lock(&gate.lock);
    gate.asked++;
    while (gate.hangs)
        pthread_cond_wait(&gate.opened, &gate.lock);
    int rc = gate.error;
    gate.removed += rc == 0;
    pthread_mutex_unlock(&gate.lock);
    return rc;
}

static double gate_used_share(struct tierce__storage_driver *driver)
{
    (void)driver;
    return -1;
}

static const struct tierce__storage_ops gate_ops = {
    .name = "gate",
    .open = gate_open,
    .close = gate_close,
    .probe = gate_probe,
    .remove = gate_remove,
    .used_share = gate_used_share,
};

static int gate_open(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                     char why[128])
{
    static struct tierce__storage_driver driver = {.ops = &gate_ops};
    (void)storage, (void)why;
    *out = &driver;
    return 0;
}

static const struct tierce__storage_ops *find_gate(enum tierce__storage_type type)
{
    (void)type;
    return &gate_ops;
}

static void set_gate(bool hangs, int error)
{
    pthread_mutex_lock(&gate.lock);
    gate.hangs = hangs;
    gate.error = error;
    pthread_cond_broadcast(&gate.opened);
    pthread_mutex_unlock(&gate.lock);
}

static unsigned asked(void)
{
    pthread_mutex_lock(&gate.lock);
    unsigned n = gate.asked;
    pthread_mutex_unlock(&gate.lock);
    return n;
}

static unsigned removed(void)
{
    pthread_mutex_lock(&gate.lock);
    unsigned n = gate.removed;
    pthread_mutex_unlock(&gate.lock);
    return n;
}

/* ---- a thread that waits for the test -------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_there, may_go;
} stop = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void wait_here(void)
{
    pthread_mutex_lock(&stop.lock);
    stop.is_there = true;
    pthread_cond_broadcast(&stop.changed);
    while (!stop.may_go)
        pthread_cond_wait(&stop.changed, &stop.lock);
    pthread_mutex_unlock(&stop.lock);
}

static void wait_until_it_is_there(void)
{
    pthread_mutex_lock(&stop.lock);
    while (!stop.is_there)
        pthread_cond_wait(&stop.changed, &stop.lock);
    pthread_mutex_unlock(&stop.lock);
}

static void let_it_go(void)
{
    pthread_mutex_lock(&stop.lock);
    stop.may_go = true;
    pthread_cond_broadcast(&stop.changed);
    pthread_mutex_unlock(&stop.lock);
}

/* ---- what tests do --------------------------------------------------------------------------- */

static void set_up(void)
{
    silence_log();
    set_gate(false, 0);
    gate.asked = gate.removed = 0;
    stop.is_there = stop.may_go = false;
}

static void open_with(struct harness_opts opts)
{
    opts.find_driver = find_gate;
    harness_open(&h, &opts);
}

static void tear_down(void)
{
    set_gate(false, 0);
    harness_close(&h);
}

static void remove_keys(const int64_t *which, size_t count)
{
    struct tierce__mask none = {0};
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", which, count, &none, h.why), 0);
}

static size_t step(void)
{
    return tierce__deleter_step(h.locator->deleter, SIZE_MAX);
}

static struct tierce__deleter_stats stats(void)
{
    struct tierce__deleter_stats out;
    tierce__deleter_stats(h.locator->deleter, &out);
    return out;
}

static uint64_t deleting(void)
{
    return harness_usage(&h).deleting_bytes;
}

/* ---- a store that leaves a batch in doubt ---------------------------------------------------- */

static const struct tierce__meta_store_ops *real_ops;
static struct tierce__meta_store_ops doubtful_ops;
static bool is_written; /* what the store says has failed */
static int doubts;      /* writes that it says it of */
static bool is_blind;   /* notes cannot be read */

static int doubtful_write(struct tierce__meta_space *space, const struct tierce__meta_batch *batch)
{
    if (doubts == 0)
        return real_ops->write(space, batch);
    doubts--;
    if (is_written)
        ck_assert_int_eq(real_ops->write(space, batch), 0);
    return -EIO;
}

static int blind_note(struct tierce__meta_space *space, uint8_t kind, uint64_t number,
                      struct tierce__arena *arena, const void **value, size_t *bytes)
{
    return is_blind ? -EIO : real_ops->note(space, kind, number, arena, value, bytes);
}

static struct tierce__live *begin_doubts(void)
{
    struct tierce__live *live;
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    real_ops = live->space->ops;
    doubtful_ops = *real_ops;
    doubtful_ops.write = doubtful_write;
    doubtful_ops.note = blind_note;
    live->space->ops = &doubtful_ops;
    return live;
}

static void end_doubts(struct tierce__live *live)
{
    live->space->ops = real_ops;
    tierce__live_release(live);
}

static int count_note(void *arg, const struct tierce__meta_note *note)
{
    (void)note;
    ++*(size_t *)arg;
    return 0;
}

static size_t notes_of(const struct tierce__live *live)
{
    size_t count = 0;
    ck_assert_int_eq(
        live->space->ops->notes(live->space, TIERCE__NOTE_DELETION, count_note, &count), 0);
    return count;
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(a_batch_is_done_when_it_is_due)
{
    struct tierce__removed gone = {0};
    struct tierce__live *live;
    open_with((struct harness_opts){0});
    harness_store(&h, keys, 3);
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    ck_assert_int_eq(tierce__live_remove(live, keys, 3,
                                         &(struct tierce__removal){.due_us = h.now_us + 2000000},
                                         &gone),
                     0);
    tierce__live_release(live);
    ck_assert_uint_eq(deleting(), 3 * BLOCK_BYTES);
    ck_assert_uint_eq(step(), 0);
    h.now_us += 1999999;
    ck_assert_uint_eq(step(), 0);
    ck_assert_uint_eq(removed(), 0);
    h.now_us += 1;
    ck_assert_uint_eq(step(), 1);
    ck_assert_uint_eq(removed(), 6);
    ck_assert_uint_eq(deleting(), 0);
    ck_assert_uint_eq(stats().done_locations, 3);
}
END_TEST

START_TEST(what_fails_is_tried_later_and_later)
{
    int64_t wait_us = 1000000;
    open_with((struct harness_opts){0});
    harness_store(&h, keys, 2);
    set_gate(false, -EIO);
    remove_keys(keys, 2);
    ck_assert_uint_eq(step(), 0);
    for (unsigned tries = 1; tries <= 9; tries++) {
        ck_assert_uint_eq(stats().failed_tries, tries);
        ck_assert_uint_eq(stats().waiting, 1);
        ck_assert_uint_eq(deleting(), 2 * BLOCK_BYTES); /* they count until they are gone */
        h.now_us += wait_us - 1;
        (void)step();
        ck_assert_uint_eq(stats().failed_tries, tries);
        h.now_us += 1;
        ck_assert_uint_eq(step(), 0);
        wait_us = wait_us < 64000000 ? wait_us * 2 : wait_us;
    }
    set_gate(false, 0);
    h.now_us += wait_us;
    ck_assert_uint_eq(step(), 1);
    ck_assert_uint_eq(stats().waiting, 0);
    ck_assert_uint_eq(deleting(), 0);
}
END_TEST

START_TEST(one_that_fails_does_not_hold_the_others_up)
{
    open_with((struct harness_opts){0});
    harness_store(&h, keys, 2);
    set_gate(false, -EIO);
    remove_keys(keys, 1);
    ck_assert_uint_eq(step(), 0);
    set_gate(false, 0);
    remove_keys(&keys[1], 1);
    ck_assert_uint_eq(step(), 1);
    ck_assert_uint_eq(deleting(), BLOCK_BYTES);
    ck_assert_uint_eq(stats().waiting, 1);
}
END_TEST

/* No operation waits for a hanging storage longer than its limit, and all bytes are deleted once it
 * works again. */
START_TEST(a_storage_that_hangs_is_left_behind)
{
    open_with((struct harness_opts){.delete_timeout_ms = HANG_MS});
    harness_store(&h, keys, 3);
    set_gate(true, 0);
    remove_keys(keys, 2);
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    ck_assert_uint_eq(step(), 0);
    remove_keys(&keys[2], 1);
    ck_assert_uint_eq(step(), 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    ck_assert_int_lt(after.tv_sec - before.tv_sec, 10);
    ck_assert_uint_eq(stats().waiting, 2);
    ck_assert_uint_eq(deleting(), 3 * BLOCK_BYTES);
    set_gate(false, 0);
    for (int i = 0; i < 1000 && stats().waiting > 0; i++) {
        h.now_us += 70000000;
        (void)step();
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    ck_assert_uint_eq(stats().waiting, 0);
    ck_assert_uint_eq(deleting(), 0);
}
END_TEST

/* A rejected path stays rejected: the batch ends, and reports the remaining locations. */
START_TEST(what_is_refused_is_an_orphan)
{
    static const int refusals[] = {TIERCE_E_ARGUMENT, TIERCE_E_UNSUPPORTED};
    open_with((struct harness_opts){0});
    for (size_t i = 0; i < 2; i++) {
        set_gate(false, refusals[i]);
        harness_store(&h, keys, 2);
        remove_keys(keys, 2);
        ck_assert_uint_eq(step(), 1);
        ck_assert_uint_eq(stats().orphaned_locations, 4 * (i + 1)); /* two parts each */
        ck_assert_uint_eq(deleting(), 0);
    }
    ck_assert_uint_eq(stats().failed_tries, 0);
}
END_TEST

/* Its blocks lie in one file, which goes with the last of them. */
START_TEST(a_shared_file_goes_when_it_is_empty)
{
    open_with((struct harness_opts){.keys_per_file = 4});
    harness_store(&h, keys, 4);
    remove_keys(keys, 3);
    ck_assert_uint_eq(step(), 1);
    ck_assert_uint_eq(removed(), 0);
    ck_assert_uint_eq(deleting(), 0);
    remove_keys(&keys[3], 1);
    ck_assert_uint_eq(step(), 1);
    ck_assert_uint_eq(removed(), 2); /* one for each part */
}
END_TEST

START_TEST(a_leader_that_is_dropped_leaves_its_batches_to_the_next)
{
    static char folder[] = "/tmp/tierce_deleterXXXXXX";
    temp_folder_make(folder);
    open_with((struct harness_opts){.meta_type = "rocksdb", .meta_uri = folder});
    harness_store(&h, keys, 3);
    set_gate(false, -EIO);
    remove_keys(keys, 2);
    ck_assert_uint_eq(step(), 0);
    tierce__locator_drop(h.locator);
    ck_assert_uint_eq(stats().waiting, 0);
    h.now_us -= 3600 * 1000000LL; /* its clock was ahead */
    ck_assert_int_eq(tierce__locator_recover(h.locator, 2, h.why), 0);
    h.now_us += 10 * 1000000LL;
    ck_assert_uint_eq(stats().waiting, 1);
    ck_assert_uint_eq(deleting(), 2 * BLOCK_BYTES);
    set_gate(false, 0);
    ck_assert_uint_eq(step(), 1);
    ck_assert_uint_eq(removed(), 4);
    ck_assert_uint_eq(deleting(), 0);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, BLOCK_BYTES);
    temp_folder_remove(folder);
}
END_TEST

/* The clock may be set back: what was due is due again, later, and nothing is done twice. */
START_TEST(a_clock_that_is_set)
{
    open_with((struct harness_opts){0});
    harness_store(&h, keys, 2);
    remove_keys(keys, 1);
    h.now_us -= 3600 * 1000000LL;
    ck_assert_uint_eq(step(), 0);
    remove_keys(&keys[1], 1);
    ck_assert_uint_eq(step(), 1);
    ck_assert_uint_eq(deleting(), BLOCK_BYTES);
    h.now_us += 3600 * 1000000LL;
    ck_assert_uint_eq(step(), 1);
    ck_assert_uint_eq(removed(), 4);
    ck_assert_uint_eq(deleting(), 0);
}
END_TEST

/* Threads of its own; a drop waits for the batches that they process. */
START_TEST(threads_do_what_is_due)
{
    /* Removals that began before the storage hangs must not be abandoned. */
    open_with((struct harness_opts){.delete_threads = 3, .delete_timeout_ms = 5000});
    for (int round = 0; round < 20; round++) {
        harness_store(&h, keys, 6);
        for (size_t i = 0; i < 6; i++)
            remove_keys(&keys[i], 1);
    }
    WAIT_WITHIN(10000, deleting() == 0);
    ck_assert_uint_eq(removed(), 240);
    set_gate(true, 0);
    harness_store(&h, keys, 6);
    remove_keys(keys, 6);
    for (int i = 0; i < 20000 && stats().executing == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    tierce__deleter_drop(h.locator->deleter);
    ck_assert_uint_eq(stats().waiting + stats().executing, 0);
}
END_TEST

START_TEST(an_end_that_is_in_doubt_is_looked_up)
{
    open_with((struct harness_opts){0});
    harness_store(&h, keys, 2);
    remove_keys(keys, 2);
    struct tierce__live *live = begin_doubts();
    doubts = 1;
    is_written = true;
    ck_assert_uint_eq(step(), 1);
    ck_assert_uint_eq(stats().failed_tries, 0);
    ck_assert_uint_eq(stats().done_locations, 2);
    ck_assert_uint_eq(deleting(), 0);
    ck_assert_uint_eq(notes_of(live), 0);
    end_doubts(live);
}
END_TEST

/* Of the first time, and of the second, when the batch's note says already that it is one. */
START_TEST(an_end_that_was_not_written_is_done_again)
{
    open_with((struct harness_opts){0});
    (void)harness_start(&h, keys, 3);
    h.now_us += 30000000;
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 1);
    struct tierce__live *live = begin_doubts();
    is_written = false;
    for (unsigned sweep = 0; sweep < 2; sweep++) {
        doubts = 1;
        ck_assert_uint_eq(step(), 0);
        ck_assert_uint_eq(stats().failed_tries, sweep + 1);
        ck_assert_uint_eq(deleting(), sweep == 0 ? 3 * BLOCK_BYTES : 0);
        ck_assert_uint_eq(notes_of(live), 1);
        h.now_us += 1000000;
        ck_assert_uint_eq(step(), 1);
        ck_assert_uint_eq(deleting(), 0);
        h.now_us += 600 * 1000000LL;
    }
    ck_assert_uint_eq(notes_of(live), 0);
    ck_assert_uint_eq(stats().waiting, 0);
    end_doubts(live);
}
END_TEST

/* Each allocation of the retries fails once, also when only a part of a batch is laid out. Until
 * the outcome is known, the bytes count. */
START_TEST(an_end_in_doubt_survives_lack_of_memory)
{
    enum { KEYS = 200, BYTES = KEYS * BLOCK_BYTES };
    int64_t many[KEYS];
    for (int64_t i = 0; i < KEYS; i++)
        many[i] = i + 1;
    open_with((struct harness_opts){.keys_per_file = 4});
    struct tierce__live *live = begin_doubts();
    uint64_t nth = 0, left;
    do {
        harness_store(&h, many, KEYS);
        remove_keys(many, KEYS);
        is_written = _i == 1;
        is_blind = true;
        doubts = KEYS; /* at least one for each batch */
        ck_assert_uint_eq(step(), 0);
        ck_assert_uint_eq(deleting(), BYTES);
        is_blind = false;
        doubts = 0;
        h.now_us += 70 * 1000000LL;
        tierce__alloc_fail_nth(++nth);
        (void)step();
        tierce__alloc_fail_nth(0);
        left = stats().waiting;
        ck_assert_uint_le(left, 1);
        ck_assert_uint_eq(deleting() > 0, left);
        h.now_us += 70 * 1000000LL;
        ck_assert_uint_eq(step(), left);
        ck_assert_uint_eq(deleting(), 0);
        ck_assert_uint_eq(notes_of(live), 0);
    } while (left > 0);
    ck_assert_uint_gt(nth, 4);
    ck_assert_uint_eq(stats().done_locations, KEYS * nth);
    end_doubts(live);
}
END_TEST

/* ---- an instance that is removed while a call removes its blocks ----------------------------- */

/* Returns from the first write late. */
static int held_write(struct tierce__meta_space *space, const struct tierce__meta_batch *batch)
{
    int rc = real_ops->write(space, batch);
    wait_here();
    return rc;
}

static void *remove_two(void *arg)
{
    (void)arg;
    remove_keys(keys, 2);
    return NULL;
}

static void *remove_instance(void *arg)
{
    (void)arg;
    int rc = tierce__locator_remove_instance(h.locator, "i", h.why);
    ck_assert_msg(rc == 0, "%s", h.why);
    return NULL;
}

static atomic_bool is_scanned;

static int noted_scan(struct tierce__meta_space *space, uint64_t *cursor, size_t limit,
                      int64_t *found, size_t *count)
{
    int rc = real_ops->scan(space, cursor, limit, found, count);
    atomic_store(&is_scanned, true);
    return rc;
}

/* The call submits its deletion after the removal has found the instance empty. */
START_TEST(a_deletion_that_comes_when_its_instance_goes)
{
    pthread_t remover, ender;
    open_with((struct harness_opts){0});
    harness_store(&h, keys, 2);
    struct tierce__live *live = begin_doubts();
    doubtful_ops.write = held_write;
    doubtful_ops.scan = noted_scan;
    ck_assert_int_eq(pthread_create(&remover, NULL, remove_two, NULL), 0);
    wait_until_it_is_there();
    doubtful_ops.write = real_ops->write;
    tierce__live_release(live);
    ck_assert_int_eq(pthread_create(&ender, NULL, remove_instance, NULL), 0);
    WAIT_FOR(atomic_load(&is_scanned));
    let_it_go();
    pthread_join(remover, NULL);
    pthread_join(ender, NULL);
    ck_assert_uint_eq(removed(), 4);
    ck_assert_uint_eq(deleting(), 0);
    ck_assert_uint_eq(stats().done_locations, 2);
    ck_assert_uint_eq(stats().waiting, 0);
}
END_TEST

/* ---- a drop while a batch is being processed ------------------------------------------------- */

static _Thread_local bool stops_in_destroy, is_dropper;
static atomic_int drop_state;

enum { DROP_RUNS, DROP_WAITS, DROP_RETURNED };

/* The last call of tierce__deletion_destroy. Linked with --wrap. */
void __real_tierce__live_release(struct tierce__live *live);
void __wrap_tierce__live_release(struct tierce__live *live);
void __wrap_tierce__live_release(struct tierce__live *live)
{
    if (stops_in_destroy)
        wait_here();
    __real_tierce__live_release(live);
}

bool __real_tierce__cond_wait(struct tierce__cond *cond, struct tierce__lock *lock,
                              uint64_t deadline_ns);
bool __wrap_tierce__cond_wait(struct tierce__cond *cond, struct tierce__lock *lock,
                              uint64_t deadline_ns);
bool __wrap_tierce__cond_wait(struct tierce__cond *cond, struct tierce__lock *lock,
                              uint64_t deadline_ns)
{
    if (is_dropper)
        atomic_store(&drop_state, DROP_WAITS);
    return __real_tierce__cond_wait(cond, lock, deadline_ns);
}

static void *drop_all(void *stops)
{
    stops_in_destroy = stops != NULL;
    is_dropper = true;
    tierce__deleter_drop(h.locator->deleter);
    atomic_store(&drop_state, DROP_RETURNED);
    return NULL;
}

static void *do_one(void *stops)
{
    stops_in_destroy = stops != NULL;
    (void)tierce__deleter_step(h.locator->deleter, 1);
    return NULL;
}

static void start(pthread_t *thread, void *(*run)(void *), bool stops)
{
    ck_assert_int_eq(pthread_create(thread, NULL, run, stops ? &h : NULL), 0);
}

static void open_with_batches(size_t count)
{
    open_with((struct harness_opts){0});
    harness_store(&h, keys, count);
    for (size_t i = 0; i < count; i++)
        remove_keys(&keys[i], 1);
    ck_assert_uint_eq(stats().waiting, count);
    atomic_store(&drop_state, DROP_RUNS);
}

/* While the drop destroys the first batch, another thread begins the second, which fails and is
 * queued again. */
START_TEST(a_drop_waits_for_a_batch_that_begins_meanwhile)
{
    pthread_t dropper, worker;
    open_with_batches(2);
    set_gate(true, -EIO);
    start(&dropper, drop_all, true);
    wait_until_it_is_there();
    start(&worker, do_one, false);
    WAIT_FOR(asked() > 0);
    let_it_go();
    WAIT_FOR(atomic_load(&drop_state) != DROP_RUNS);
    ck_assert_int_eq(atomic_load(&drop_state), DROP_WAITS);
    set_gate(false, -EIO);
    pthread_join(worker, NULL);
    pthread_join(dropper, NULL);
    ck_assert_uint_eq(stats().failed_tries, 1);
    ck_assert_uint_eq(stats().waiting + stats().executing, 0);
}
END_TEST

START_TEST(a_drop_waits_until_a_done_batch_is_destroyed)
{
    pthread_t dropper, worker;
    open_with_batches(1);
    start(&worker, do_one, true);
    wait_until_it_is_there();
    ck_assert_uint_eq(stats().executing, 1);
    start(&dropper, drop_all, false);
    WAIT_FOR(atomic_load(&drop_state) != DROP_RUNS);
    ck_assert_int_eq(atomic_load(&drop_state), DROP_WAITS);
    let_it_go();
    pthread_join(worker, NULL);
    pthread_join(dropper, NULL);
    ck_assert_uint_eq(stats().done_locations, 1);
    ck_assert_uint_eq(stats().waiting + stats().executing, 0);
}
END_TEST

/* ---- notes of other programs ----------------------------------------------------------------- */

/* The note of a batch with one place, by hand: our writer accepts no invalid place. */
static struct tierce__meta_note note_of_place(uint64_t file, const char *uri)
{
    struct tierce__meta_note note = {.kind = TIERCE__NOTE_DELETION, .number = 7};
    struct tierce__note_writer w = {.arena = &h.arena};
    tierce__note_put8(&w, TIERCE__NOTE_VERSION);
    tierce__note_put64(&w, (uint64_t)h.now_us); /* due */
    tierce__note_put64(&w, (uint64_t)h.now_us); /* its slots are reusable */
    tierce__note_put64(&w, 0);                  /* no second deletion */
    tierce__note_put8(&w, 0);
    tierce__note_put32(&w, 1);
    tierce__note_put64(&w, 11);
    tierce__note_put_bytes(&w, "abcdefgh", TIERCE__LOCATION_ID_BYTES);
    tierce__note_put16(&w, 1); /* storage */
    tierce__note_put8(&w, TIERCE__STORAGE_NFS);
    tierce__note_put16(&w, 1); /* places */
    tierce__note_put16(&w, 0);
    tierce__note_put64(&w, file);
    tierce__note_put32(&w, 0);
    tierce__note_put64(&w, PART_A_BYTES);
    tierce__note_put8(&w, uri != NULL);
    if (uri != NULL)
        tierce__note_put_text(&w, uri);
    ck_assert_int_eq(tierce__note_finish(&w, &note.value, &note.bytes), 0);
    return note;
}

/* Returns how many deletions the next leader takes up if the store has this note. */
static uint64_t taken_up(const struct tierce__meta_note *note, uint64_t fence)
{
    struct tierce__live *live;
    struct tierce__meta_batch batch = {.notes = note, .note_count = 1};
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    ck_assert_int_eq(live->space->ops->write(live->space, &batch), 0);
    tierce__live_release(live);
    tierce__locator_drop(h.locator);
    record_log(TIERCE_LOG_ERROR);
    ck_assert_int_eq(tierce__locator_recover(h.locator, fence, h.why), 0);
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    ck_assert_uint_eq(notes_of(live), 1);
    tierce__live_release(live);
    return stats().waiting;
}

START_TEST(a_place_with_a_file_and_a_uri_is_invalid)
{
    static const char uri[] = "file://s/a?size=100";
    static char folder[] = "/tmp/tierce_deleterXXXXXX";
    static const struct {
        uint64_t file;
        const char *uri;
        bool is_good;
    } cases[] = {{0, NULL, true}, {0, uri, true}, {1, NULL, true}, {1, uri, false}};
    temp_folder_make(folder);
    open_with((struct harness_opts){.meta_type = "rocksdb", .meta_uri = folder});
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tierce__meta_note note = note_of_place(cases[i].file, cases[i].uri);
        ck_assert_uint_eq(taken_up(&note, i + 2), cases[i].is_good);
        ck_assert_uint_eq(deleting(), cases[i].is_good ? PART_A_BYTES : 0);
        ck_assert_uint_eq(recorded_with("manager.notes_unreadable", "notes=1:"), !cases[i].is_good);
    }
    temp_folder_remove(folder);
}
END_TEST

CHECK_MAIN("deleter", .seconds = 60, .at_once = true, .setup = set_up, .teardown = tear_down,
           .tests = {a_batch_is_done_when_it_is_due, what_fails_is_tried_later_and_later,
                     one_that_fails_does_not_hold_the_others_up,
                     a_storage_that_hangs_is_left_behind, what_is_refused_is_an_orphan,
                     a_shared_file_goes_when_it_is_empty,
                     a_leader_that_is_dropped_leaves_its_batches_to_the_next, a_clock_that_is_set,
                     an_end_that_is_in_doubt_is_looked_up,
                     an_end_that_was_not_written_is_done_again, threads_do_what_is_due,
                     a_deletion_that_comes_when_its_instance_goes,
                     a_drop_waits_for_a_batch_that_begins_meanwhile,
                     a_drop_waits_until_a_done_batch_is_destroyed,
                     a_place_with_a_file_and_a_uri_is_invalid},
           .loops = {{an_end_in_doubt_survives_lack_of_memory, 0, 2}})
