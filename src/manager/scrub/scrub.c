/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/text/utf8.h"
#include "base/threads/lock.h"
#include "manager/scrub/scrub_private.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCRUB_MAGIC  0x74736372u
#define LONG_WAIT_NS 1000000000u

/* The last scrub of a storage. */
struct scrubbed {
    char *storage; /* its name */
    uint16_t number;
    struct tierce__scrub_state state;
    struct tierce__scrub_seen *seen; /* of the thread while a scrub of the storage runs */
};

struct tierce__scrub {
    uint32_t magic;
    struct tierce__scrub_opts opts;
    struct tierce__lock lock; /* SCRUB: the fields below */
    struct tierce__cond changed;
    struct scrubbed *last;
    size_t last_count, last_room;
    uint64_t version; /* of the registry when `last` was compared with it */
    size_t current;   /* index in `last` of the one that runs, if is_running */
    bool is_running, is_stopping;
    bool is_leaving;    /* it stops because the manager leads no more, or ends */
    bool is_called_off; /* it stops by a call: no leader goes on with it */
    bool is_saving;     /* its position is being written to the registry */
    bool has_thread;    /* it has not been joined */
    pthread_t thread;
};

int tierce__scrub_create(struct tierce__scrub **out, const struct tierce__scrub_opts *opts)
{
    struct tierce__scrub *scrub = tierce__calloc(1, sizeof(*scrub));
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    if (scrub == NULL)
        return -ENOMEM;
    scrub->magic = SCRUB_MAGIC;
    scrub->opts = *opts;
    tierce__lock_init(&scrub->lock, TIERCE__LOCK_SCRUB);
    tierce__cond_init(&scrub->changed);
    *out = scrub;
    return 0;
}

static void free_last(struct scrubbed *last)
{
    tierce__free(last->storage);
    tierce__scrub_seen_destroy(last->seen);
}

void tierce__scrub_destroy(struct tierce__scrub *scrub)
{
    if (scrub == NULL)
        return;
    TIERCE_CHECK_MAGIC(scrub, SCRUB_MAGIC);
    tierce__scrub_leave(scrub);
    tierce__scrub_wait(scrub);
    TIERCE_ASSERT(!scrub->is_running && !scrub->has_thread);
    for (size_t i = 0; i < scrub->last_count; i++)
        free_last(&scrub->last[i]);
    tierce__free(scrub->last);
    tierce__cond_fini(&scrub->changed);
    tierce__lock_fini(&scrub->lock);
    scrub->magic = 0;
    tierce__free(scrub);
}

/* ---- state ----------------------------------------------------------------------------------- */

const char *tierce__scrub_phase_name(enum tierce__scrub_phase phase)
{
    static const char *const names[TIERCE__SCRUB_PHASES] = {
        [TIERCE__SCRUB_RECORDS] = "records", [TIERCE__SCRUB_OBJECTS] = "objects",
        [TIERCE__SCRUB_DONE] = "done",       [TIERCE__SCRUB_STOPPED] = "stopped",
        [TIERCE__SCRUB_FAILED] = "failed",   [TIERCE__SCRUB_INCOMPLETE] = "incomplete",
    };
    TIERCE_ASSERT((size_t)phase < TIERCE__SCRUB_PHASES && names[phase] != NULL);
    return names[phase];
}

/* NULL: there was none. */
static struct scrubbed *find_last(const struct tierce__scrub *scrub, const char *storage)
{
    tierce__lock_assert_held(&scrub->lock);
    for (size_t i = 0; i < scrub->last_count; i++)
        if (strcmp(scrub->last[i].storage, storage) == 0)
            return &scrub->last[i];
    return NULL;
}

/* Forgets the scrubs of storages that were removed, or are other ones of the same name. */
static void forget_removed(struct tierce__scrub *scrub, const struct tierce__catalog *catalog,
                           uint64_t version)
{
    bool is_whole = true;
    tierce__lock_assert_held(&scrub->lock);
    if (scrub->version == version)
        return;
    for (size_t i = scrub->last_count; i-- > 0;) {
        struct scrubbed *last = &scrub->last[i];
        const struct tierce__storage *storage = tierce__catalog_storage(catalog, last->storage);
        bool is_current = scrub->is_running && scrub->current == i;
        if (storage != NULL && storage->number == last->number)
            continue;
        is_whole = is_whole && !is_current;
        if (is_current)
            continue;
        free_last(last);
        *last = scrub->last[--scrub->last_count];
        if (scrub->current == scrub->last_count)
            scrub->current = i;
    }
    if (is_whole)
        scrub->version = version;
}

bool tierce__scrub_state(struct tierce__scrub *scrub, const char *storage,
                         struct tierce__scrub_state *out)
{
    struct tierce__registry *registry = scrub->opts.registry;
    TIERCE_CHECK_MAGIC(scrub, SCRUB_MAGIC);
    uint64_t version = tierce__registry_version(registry); /* perhaps older than the catalog */
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    tierce__lock_take(&scrub->lock);
    forget_removed(scrub, catalog, version);
    const struct scrubbed *last = find_last(scrub, storage);
    if (last != NULL)
        *out = last->state;
    tierce__lock_drop(&scrub->lock);
    tierce__registry_release(registry, catalog);
    return last != NULL;
}

static void publish(struct scrub_run *run)
{
    struct tierce__scrub *scrub = run->scrub;
    tierce__lock_assert_held(&scrub->lock);
    TIERCE_ASSERT(scrub->is_running && scrub->current < scrub->last_count);
    struct tierce__scrub_state *state = &scrub->last[scrub->current].state;
    state->phase = run->phase;
    state->lists = run->lists;
    state->counts = run->counts;
}

/* The lock is held, and not while it waits. */
static void wait_until(struct tierce__scrub *scrub, uint64_t due_ns)
{
    tierce__lock_assert_held(&scrub->lock);
    if (scrub->opts.wait_until == NULL) {
        (void)tierce__cond_wait(&scrub->changed, &scrub->lock, due_ns);
        return;
    }
    tierce__lock_drop(&scrub->lock);
    scrub->opts.wait_until(scrub->opts.clock_arg, due_ns);
    tierce__lock_take(&scrub->lock);
}

/* Publishes the counts, and waits until the work before this one has had its time. */
static int wait_for_turn(struct scrub_run *run, struct scrub_pace *pace, uint64_t work)
{
    struct tierce__scrub *scrub = run->scrub;
    TIERCE_DASSERT(!tierce__lock_holds_any());
    TIERCE_ASSERT(pace->rate > 0);
    if (pace->next_ns > tierce__scrub_now_ns(&scrub->opts) + LONG_WAIT_NS)
        tierce__scrub_save(run, true);
    tierce__lock_take(&scrub->lock);
    publish(run);
    while (!scrub->is_stopping && tierce__scrub_now_ns(&scrub->opts) < pace->next_ns)
        wait_until(scrub, pace->next_ns);
    bool is_stopping = scrub->is_stopping;
    tierce__lock_drop(&scrub->lock);
    uint64_t begin_ns = tierce__scrub_now_ns(&scrub->opts);
    begin_ns = begin_ns > pace->next_ns ? begin_ns : pace->next_ns;
    pace->next_ns = begin_ns + (uint64_t)((double)work * 1e9 / (double)pace->rate);
    return is_stopping ? -ECANCELED : 0;
}

int tierce__scrub_pace(struct scrub_run *run, uint64_t files)
{
    return wait_for_turn(run, &run->files, files);
}

int tierce__scrub_pace_bytes(struct scrub_run *run, uint64_t bytes)
{
    return wait_for_turn(run, &run->bytes, bytes);
}

/* ---- helpers of both directions -------------------------------------------------------------- */

static void forget_instances(struct scrub_run *run)
{
    for (size_t i = 0; i < run->id_count; i++)
        tierce__free(run->ids[i]);
    run->id_count = 0;
}

static void add_instance(void *arg, struct tierce__live *live)
{
    struct scrub_run *run = arg;
    if (TIERCE__GROW(run->ids, run->id_room, run->id_count + 1, 16) < 0) {
        run->no_memory = true;
        return;
    }
    run->ids[run->id_count] = tierce__strdup(live->instance.id);
    run->no_memory = run->no_memory || run->ids[run->id_count] == NULL;
    run->id_count += run->ids[run->id_count] != NULL;
}

static int compare_ids(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int tierce__scrub_list_instances(struct scrub_run *run)
{
    forget_instances(run);
    run->no_memory = false;
    tierce__locator_each(run->opts->locator, add_instance, run);
    /* A closed index has no instances, and then all files would be orphans. */
    if (!tierce__locator_is_open(run->opts->locator))
        return TIERCE_E_CLOSED;
    if (run->id_count > 1)
        qsort(run->ids, run->id_count, sizeof(*run->ids), compare_ids);
    return run->no_memory ? -ENOMEM : 0;
}

static bool is_registered(const struct scrub_run *run, const char *id)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(run->opts->registry);
    bool is = tierce__catalog_instance(catalog, id) != NULL;
    tierce__registry_release(run->opts->registry, catalog);
    return is;
}

int tierce__scrub_acquire(struct tierce__live **out, struct scrub_run *run, const char *id)
{
    enum { LOOKS_A_SECOND = 10, LOOKS_MAX = 600 };
    struct scrub_pace look = {.rate = LOOKS_A_SECOND};
    int rc = 0;
    for (int i = 0; rc == 0 && i < LOOKS_MAX; i++) {
        rc = tierce__live_acquire(out, run->opts->locator, id, run->why);
        if (rc != -ENOENT)
            return rc;
        run->why[0] = '\0';
        if (is_registered(run, id))
            rc = wait_for_turn(run, &look, 1);
    }
    if (rc == 0)
        rc = tierce__why(run->why, -EBUSY,
                         "instance %.100s has been in removal for a minute, so its blocks cannot "
                         "be judged",
                         id);
    return rc;
}

static int read_page(struct scrub_run *run, struct tierce__live *live, uint64_t *cursor,
                     size_t keys_max, struct scrub_page *out)
{
    struct scrub_page page = {
        .keys = tierce__arena_alloc(&run->arena, keys_max * sizeof(*page.keys)),
        .records = tierce__arena_calloc(&run->arena, keys_max, sizeof(*page.records)),
        .found = tierce__arena_calloc(&run->arena, keys_max, sizeof(*page.found)),
    };
    if (page.keys == NULL || page.records == NULL || page.found == NULL)
        return -ENOMEM;
    int rc = live->space->ops->scan(live->space, cursor, keys_max, page.keys, &page.count);
    TIERCE_ASSERT(page.count <= keys_max);
    if (rc == 0 && page.count > 0)
        rc = live->space->ops->get(live->space, page.keys, page.count, &run->arena, page.records,
                                   page.found);
    if (rc == 0)
        *out = page;
    return rc;
}

int tierce__scrub_visit(struct scrub_run *run, const char *id, uint64_t *cursor, size_t keys_max,
                        int (*visit)(void *arg, struct tierce__live *live,
                                     const struct scrub_page *page),
                        void *arg)
{
    struct scrub_page page = {0};
    struct tierce__live *live;
    tierce__arena_reset(&run->arena);
    int rc = tierce__scrub_acquire(&live, run, id);
    if (rc < 0)
        return rc;
    rc = read_page(run, live, cursor, keys_max, &page);
    if (rc == 0)
        rc = visit(arg, live, &page);
    tierce__live_release(live);
    return rc;
}

void tierce__scrub_note_unread(struct scrub_run *run, const char *format, ...)
{
    va_list values;
    if (run->unread[0] != '\0')
        return;
    va_start(values, format);
    (void)vsnprintf(run->unread, sizeof(run->unread), format, values);
    va_end(values);
    tierce__utf8_mend(run->unread); /* a name may have been cut; the registry has texts only */
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void log_end(const struct scrub_run *run, const struct tierce__scrub_state *state)
{
    const struct tierce__scrub_counts *n = &run->counts;
    bool is_whole = state->phase == TIERCE__SCRUB_DONE ||
                    (state->phase == TIERCE__SCRUB_STOPPED && state->why[0] == '\0');
    tierce__log(is_whole ? TIERCE_LOG_INFO : TIERCE_LOG_WARN, "storage_scrubbed",
                "storage=%.64s state=%s repairs=%d files=%llu missing=%llu too_short=%llu "
                "dropped_locations=%llu objects=%llu orphans=%llu deleted_orphans=%llu why=\"%s\"",
                run->storage.name, tierce__scrub_phase_name(state->phase), run->repairs,
                (unsigned long long)n->checked, (unsigned long long)n->missing,
                (unsigned long long)n->too_short, (unsigned long long)n->dropped_locations,
                (unsigned long long)n->listed, (unsigned long long)n->orphans,
                (unsigned long long)n->deleted_orphans, state->why);
}

static void end_run(struct scrub_run *run, int rc)
{
    struct tierce__scrub *scrub = run->scrub;
    struct tierce__scrub_state state;
    int64_t now_us = tierce__locator_now_us(run->opts->locator);
    bool is_incomplete = run->unread[0] != '\0';
    run->phase = rc == 0 && is_incomplete ? TIERCE__SCRUB_INCOMPLETE
                 : rc == 0                ? TIERCE__SCRUB_DONE
                 : rc == -ECANCELED       ? TIERCE__SCRUB_STOPPED
                                          : TIERCE__SCRUB_FAILED;
    tierce__scrub_seen_end(run->seen, rc == 0 && run->lists);
    tierce__lock_take(&scrub->lock);
    publish(run);
    struct tierce__scrub_state *last = &scrub->last[scrub->current].state;
    last->ended_us = now_us;
    last->whole_us = run->phase == TIERCE__SCRUB_DONE ? now_us : last->whole_us;
    bool is_called_off = scrub->is_called_off; /* the call removes the position */
    bool is_left = run->phase == TIERCE__SCRUB_STOPPED && scrub->is_leaving && !is_called_off;
    if (is_left)
        snprintf(last->why, sizeof(last->why), "this manager leads no more; %s",
                 tierce__registry_is_stored(run->opts->registry) && run->has_saved
                     ? "the next leader goes on with the scrub"
                     : "start the scrub again at the next leader");
    else if (run->phase == TIERCE__SCRUB_FAILED && run->why[0] == '\0')
        snprintf(last->why, sizeof(last->why), "%s", tierce_strerror(rc));
    else if (run->phase == TIERCE__SCRUB_FAILED || is_incomplete)
        snprintf(last->why, sizeof(last->why), "%.127s",
                 run->phase == TIERCE__SCRUB_FAILED ? run->why : run->unread);
    tierce__utf8_mend(last->why); /* it may have been cut */
    state = *last;
    tierce__lock_drop(&scrub->lock);
    if (!is_left && !is_called_off && run->has_saved)
        tierce__scrub_forget_position(run->opts, &run->storage);
    log_end(run, &state);
}

static void destroy_run(struct scrub_run *run)
{
    if (run == NULL)
        return;
    forget_instances(run);
    tierce__free(run->ids);
    tierce__free(run->root);
    tierce__free(run->at.instance);
    tierce__arena_clear(&run->arena);
    tierce__storage_clear(&run->storage);
    tierce__free(run);
}

/* Errors: -ENOENT, -ENOMEM. */
static int copy_storage(struct scrub_run *run, const char *name, char why[TIERCE__WHY_BYTES])
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(run->opts->registry);
    const struct tierce__storage *storage = tierce__catalog_storage(catalog, name);
    int rc = storage == NULL ? tierce__why(why, -ENOENT, "there is no storage %.100s", name)
                             : tierce__storage_copy(&run->storage, storage);
    tierce__registry_release(run->opts->registry, catalog);
    if (rc < 0)
        return rc;
    run->root = tierce__storage_root(&run->storage);
    return run->root != NULL ? 0 : -ENOMEM;
}

static int check_storage(struct scrub_run *run, char why[TIERCE__WHY_BYTES])
{
    const struct tierce__storage *storage = &run->storage;
    if (!tierce__storages_is_managed(run->opts->storages, storage->type))
        return tierce__why(why, TIERCE_E_UNSUPPORTED,
                           "it is unmanaged: this manager does not reach it");
    if (storage->contents != TIERCE__CONTENTS_KEPT)
        return tierce__why(why, TIERCE_E_DOWN,
                           "it has lost its objects, and its locations are being dropped");
    char words[128] = "";
    int rc = tierce__storages_check_own(run->opts->storages, storage, words);
    if (rc < 0)
        snprintf(why, TIERCE__WHY_BYTES, "%s", words[0] != '\0' ? words : tierce_strerror(rc));
    return rc;
}

/* A new leader may not reach the storage at once. */
static int wait_for_storage(struct scrub_run *run)
{
    enum { TRIES = 60 };
    struct scrub_pace each_second = {.rate = 1};
    int rc = TIERCE_E_DOWN;
    for (int i = 0; rc == TIERCE_E_DOWN && i < TRIES; i++) {
        rc = wait_for_turn(run, &each_second, 1);
        if (rc == 0)
            rc = check_storage(run, run->why);
    }
    if (rc == 0)
        run->why[0] = '\0';
    return rc;
}

static int scrub_both(struct scrub_run *run)
{
    int rc = run->is_resumed ? wait_for_storage(run) : 0;
    run->lists = tierce__storages_has_list(run->opts->storages, run->storage.type);
    run->saved_ns = tierce__scrub_now_ns(run->opts);
    if (rc == 0 && run->phase == TIERCE__SCRUB_RECORDS)
        rc = tierce__scrub_records(run);
    if (rc < 0 || !run->lists)
        return rc;
    run->phase = TIERCE__SCRUB_OBJECTS;
    tierce__free(run->at.instance);
    run->at.instance = NULL;
    scrub_reach(run, 0);
    if (run->has_saved)
        tierce__scrub_save_now(run);
    return tierce__scrub_objects(run);
}

static void *scrub_storage(void *arg)
{
    struct scrub_run *run = arg;
    struct tierce__scrub *scrub = run->scrub;
    end_run(run, scrub_both(run));
    destroy_run(run);
    tierce__lock_take(&scrub->lock);
    TIERCE_ASSERT(scrub->is_running);
    scrub->is_running = false;
    tierce__cond_broadcast(&scrub->changed);
    tierce__lock_drop(&scrub->lock);
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int make_run(struct scrub_run **out, struct tierce__scrub *scrub,
                    const struct tierce__scrub_request *request, char why[TIERCE__WHY_BYTES])
{
    struct scrub_run *run = tierce__calloc(1, sizeof(*run));
    if (run == NULL)
        return -ENOMEM;
    run->scrub = scrub;
    run->opts = &scrub->opts;
    run->repairs = request->repairs;
    run->files.rate = request->rate > 0 ? request->rate : TIERCE__SCRUB_RATE;
    run->verify_share = request->verify_share;
    run->bytes.rate = request->byte_rate > 0 ? request->byte_rate : TIERCE__SCRUB_BYTE_RATE;
    run->salt = tierce__locator_random(scrub->opts.locator);
    int rc = copy_storage(run, request->storage, why);
    if (rc == 0)
        rc = check_storage(run, why);
    if (rc < 0) {
        destroy_run(run);
        return rc;
    }
    run->lists = tierce__storages_has_list(run->opts->storages, run->storage.type);
    *out = run;
    return 0;
}

/* Errors: -ENOMEM. */
static int begin_state(struct tierce__scrub *scrub, struct scrub_run *run)
{
    tierce__lock_assert_held(&scrub->lock);
    struct scrubbed *last = find_last(scrub, run->storage.name);
    if (last != NULL && last->number != run->storage.number) { /* another one of this name */
        free_last(last);
        *last = scrub->last[--scrub->last_count];
        last = NULL;
    }
    if (last == NULL) {
        struct scrubbed made = {.storage = tierce__strdup(run->storage.name),
                                .number = run->storage.number,
                                .seen = tierce__scrub_seen_create()};
        if (made.storage == NULL || made.seen == NULL ||
            TIERCE__GROW(scrub->last, scrub->last_room, scrub->last_count + 1, 4) < 0) {
            free_last(&made);
            return -ENOMEM;
        }
        scrub->last[scrub->last_count] = made;
        last = &scrub->last[scrub->last_count++];
    }
    if (run->began_us == 0)
        run->began_us = tierce__locator_now_us(run->opts->locator);
    last->state = (struct tierce__scrub_state){
        .phase = run->phase,
        .counts = run->counts,
        .repairs = run->repairs,
        .lists = run->lists,
        .rate = (uint32_t)run->files.rate,
        .began_us = run->began_us,
        .whole_us = last->state.whole_us,
    };
    run->seen = last->seen;
    scrub->current = (size_t)(last - scrub->last);
    return 0;
}

static int start_thread(struct tierce__scrub *scrub, struct scrub_run *run)
{
    int rc = begin_state(scrub, run);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(!scrub->has_thread && !scrub->is_running);
    scrub->is_stopping = scrub->is_leaving = scrub->is_called_off = false;
    scrub->is_running = true;
    rc = -pthread_create(&scrub->thread, NULL, scrub_storage, run);
    scrub->has_thread = scrub->is_running = rc == 0;
    if (rc < 0) {
        scrub->last[scrub->current].state.phase = TIERCE__SCRUB_FAILED;
        scrub->last[scrub->current].state.ended_us = tierce__locator_now_us(run->opts->locator);
    }
    return rc;
}

/* Takes the run, also if it fails. */
static int begin_run(struct tierce__scrub *scrub, struct scrub_run *run,
                     char why[TIERCE__WHY_BYTES])
{
    int rc = 0;
    tierce__lock_take(&scrub->lock);
    if (scrub->is_running) {
        rc = tierce__why(why, -EBUSY, "a scrub of storage %.100s runs; one runs at a time",
                         scrub->last[scrub->current].storage);
    } else {
        if (scrub->has_thread) /* it has ended */
            pthread_join(scrub->thread, NULL);
        scrub->has_thread = false;
        rc = start_thread(scrub, run);
    }
    tierce__lock_drop(&scrub->lock);
    if (rc < 0)
        destroy_run(run);
    return rc;
}

int tierce__scrub_start(struct tierce__scrub *scrub, const struct tierce__scrub_request *request,
                        char why[TIERCE__WHY_BYTES])
{
    TIERCE_CHECK_MAGIC(scrub, SCRUB_MAGIC);
    struct scrub_run *run = NULL;
    why[0] = '\0';
    int rc = make_run(&run, scrub, request, why);
    return rc == 0 ? begin_run(scrub, run, why) : rc;
}

static int resume_one(struct tierce__scrub *scrub, const struct tierce__storage *storage,
                      char why[TIERCE__WHY_BYTES])
{
    struct scrub_run *run = tierce__calloc(1, sizeof(*run));
    if (run == NULL)
        return -ENOMEM;
    run->scrub = scrub;
    run->opts = &scrub->opts;
    run->is_resumed = run->has_saved = true;
    int rc = copy_storage(run, storage->name, why);
    if (rc == 0)
        rc = tierce__scrub_position_read(run, storage->scrub, why);
    if (rc == 0)
        return begin_run(scrub, run, why);
    destroy_run(run);
    return rc;
}

void tierce__scrub_resume(struct tierce__scrub *scrub)
{
    struct tierce__registry *registry = scrub->opts.registry;
    size_t count;
    TIERCE_CHECK_MAGIC(scrub, SCRUB_MAGIC);
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    const struct tierce__storage *all = tierce__catalog_storages(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        char why[TIERCE__WHY_BYTES] = "";
        if (all[i].scrub == NULL || all[i].scrub[0] == '\0')
            continue;
        int rc = resume_one(scrub, &all[i], why);
        if (rc == 0) {
            tierce__log(TIERCE_LOG_INFO, "scrub_resumed", "storage=%.64s", all[i].name);
            continue;
        }
        tierce__log(TIERCE_LOG_WARN, "scrub_not_resumed",
                    "storage=%.64s why=\"%s\" hint=\"start it again: tierce storage scrub\"",
                    all[i].name, why[0] != '\0' ? why : tierce_strerror(rc));
        tierce__scrub_forget_position(&scrub->opts, &all[i]);
    }
    tierce__registry_release(registry, catalog);
}

bool tierce__scrub_save_begins(struct scrub_run *run)
{
    struct tierce__scrub *scrub = run->scrub;
    tierce__lock_take(&scrub->lock);
    TIERCE_ASSERT(scrub->is_running && !scrub->is_saving);
    scrub->is_saving = !scrub->is_called_off;
    bool begins = scrub->is_saving;
    tierce__lock_drop(&scrub->lock);
    return begins;
}

void tierce__scrub_save_ends(struct scrub_run *run)
{
    struct tierce__scrub *scrub = run->scrub;
    tierce__lock_take(&scrub->lock);
    TIERCE_ASSERT(scrub->is_saving);
    scrub->is_saving = false;
    tierce__cond_broadcast(&scrub->changed);
    tierce__lock_drop(&scrub->lock);
}

/* No position is written after it returns. */
static void call_off(struct tierce__scrub *scrub, const char *storage)
{
    tierce__lock_take(&scrub->lock);
    if (scrub->is_running && strcmp(scrub->last[scrub->current].storage, storage) == 0) {
        scrub->is_stopping = scrub->is_called_off = true;
        tierce__cond_broadcast(&scrub->changed);
        while (scrub->is_saving)
            (void)tierce__cond_wait(&scrub->changed, &scrub->lock, TIERCE__DEADLINE_NEVER);
    }
    tierce__lock_drop(&scrub->lock);
}

int tierce__scrub_stop(struct tierce__scrub *scrub, const struct tierce__storage *storage,
                       char why[TIERCE__WHY_BYTES])
{
    struct tierce__registry *registry = scrub->opts.registry;
    char words[256] = "";
    TIERCE_CHECK_MAGIC(scrub, SCRUB_MAGIC);
    why[0] = '\0';
    call_off(scrub, storage->name);
    if (!tierce__registry_is_stored(registry))
        return 0;
    int rc = tierce__registry_note_scrub(registry, storage->name, storage->number, "", words);
    if (rc == 0 || rc == -ENOENT) /* it was removed, and its position with it */
        return 0;
    return tierce__why(why, rc,
                       "the scrub stops here, but the next leader goes on with it, because its "
                       "position stays in the registry: %.100s",
                       words[0] != '\0' ? words : tierce_strerror(rc));
}

void tierce__scrub_leave(struct tierce__scrub *scrub)
{
    TIERCE_CHECK_MAGIC(scrub, SCRUB_MAGIC);
    tierce__lock_take(&scrub->lock);
    scrub->is_stopping = scrub->is_leaving = scrub->is_running;
    tierce__cond_broadcast(&scrub->changed);
    tierce__lock_drop(&scrub->lock);
}

void tierce__scrub_wait(struct tierce__scrub *scrub)
{
    TIERCE_CHECK_MAGIC(scrub, SCRUB_MAGIC);
    tierce__lock_take(&scrub->lock);
    while (scrub->is_running)
        (void)tierce__cond_wait(&scrub->changed, &scrub->lock, TIERCE__DEADLINE_NEVER);
    if (scrub->has_thread)
        pthread_join(scrub->thread, NULL);
    scrub->has_thread = false;
    tierce__lock_drop(&scrub->lock);
}
