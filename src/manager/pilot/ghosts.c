/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/pilot/ghosts.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/mix.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "manager/pilot/ghost_ring.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum {
    GHOST_MAGIC = 0x67686f73,
    RING_CELLS = 16384,
    GROUP_BLOCKS = 8192,
    INSTANCE_BLOCKS = 4096,
    STEP_MS = 200,
    STEP_REQUESTS = 256, /* under the lock at a time */
    STACK_KEYS = 512,
    LOG_WORDS = 65536,
    SLICES_CALM = 30, /* so many measured slices without too much load before a curve is refined */
};
#define EPOCH_US      (5 * 60 * INT64_C(1000000))
#define SHARE_MAX     0.0075 /* with the autopilot's trials (autopilot_tune.c): 0.01 */
#define SLICE_NS      UINT64_C(10000000000) /* the share is measured over this time or more */
#define SLICE_WORK_NS UINT64_C(1000000000)  /* in which the process uses as much */
#define SOON_WORK_NS  UINT64_C(100000000)   /* too large a share is noticed after so much */

struct ghost_group {
    char *name;
    struct tierce__ghost_curve *curve;
    uint32_t sources; /* 0: the slot is free */
    uint64_t work;    /* keys since the last look at the load */
    double reach;
    struct tierce__ghost_log *log; /* NULL: not kept */
};

/* An instance. */
struct ghost_source {
    struct tierce__ghost_tap tap;
    bool is_used, is_closed;
    uint64_t closed_at; /* the ring's position: it may have records up to there */
    char *id;
    double key_bytes, tokens;
    struct ghost_group *group;
    uint32_t group_member;
    /* NULL while it is alone in its group, whose curve is its own then. */
    struct tierce__ghost_curve *curve;
    uint32_t member;
    uint64_t seen_asked[TIERCE__GHOST_CLASSES], seen_found; /* counted already */
    uint64_t work;
};

struct tierce__ghosts {
    uint32_t magic;
    struct tierce__ghosts_opts opts;
    struct tierce__ghost_ring *ring;
    _Atomic uint64_t dropped;
    struct tierce__lock lock; /* GHOST: the members below */
    struct tierce__cond wake;
    struct ghost_group groups[TIERCE__GHOST_GROUPS_MAX];
    struct ghost_source sources[TIERCE__GHOST_INSTANCES_MAX];
    struct tierce__ghosts_stats stats;
    uint64_t seen_dropped;
    uint64_t slice_began_ns, slice_thread_ns, slice_process_ns;
    uint32_t calm_slices;
    bool is_ending;
    bool has_thread; /* the creator's thread alone */
    pthread_t thread;
};

int64_t tierce__ghosts_now_us(const struct tierce__ghosts *ghost)
{
    return ghost->opts.now_us != NULL ? ghost->opts.now_us(ghost->opts.clock_arg)
                                      : (int64_t)(tierce__now_ns() / 1000);
}

/* ---- requests -------------------------------------------------------------------------------- */

static uint64_t mix(const struct tierce__ghosts *ghost, int64_t key)
{
    return tierce__mix((uint64_t)key + ghost->opts.seed);
}

/* Makes the curves' keys of those up to the bound, at most `room`. Returns how many there are. */
static size_t sample(const struct tierce__ghosts *ghost, uint64_t bound, const int64_t *keys,
                     size_t count, uint64_t *out, size_t room)
{
    size_t sampled = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t mixed = mix(ghost, keys[i]);
        if (mixed > bound)
            continue;
        if (sampled < room)
            out[sampled] = tierce__ghost_key(mixed, tierce__ghost_class(i));
        sampled++;
    }
    return sampled;
}

static bool push(struct tierce__ghosts *ghost, const struct tierce__ghost_tap *tap,
                 enum tierce__ghost_kind kind, const uint64_t *mixed, size_t count)
{
    struct tierce__ghost_record record = {
        .source = tap->source, .kind = kind, .count = (uint32_t)count};
    bool pushed = tierce__ghost_ring_push(ghost->ring, &record, mixed);
    if (!pushed)
        atomic_fetch_add_explicit(&ghost->dropped, 1, memory_order_relaxed);
    return pushed;
}

/* More keys than the stack has room for: only in large requests that are sampled densely. */
static bool pass_many(struct tierce__ghosts *ghost, const struct tierce__ghost_tap *tap,
                      enum tierce__ghost_kind kind, const int64_t *keys, size_t count,
                      size_t sampled, uint64_t bound)
{
    uint64_t *mixed = tierce__alloc(sampled * sizeof(*mixed));
    if (mixed == NULL) {
        atomic_fetch_add_explicit(&ghost->dropped, 1, memory_order_relaxed);
        return false;
    }
    size_t again = sample(ghost, bound, keys, count, mixed, sampled);
    TIERCE_ASSERT(again == sampled);
    bool passed = push(ghost, tap, kind, mixed, sampled);
    tierce__free(mixed);
    return passed;
}

/* Returns false if the request was dropped. */
static bool pass(struct tierce__ghosts *ghost, struct tierce__ghost_tap *tap,
                 enum tierce__ghost_kind kind, const int64_t *keys, size_t count)
{
    uint64_t mixed[STACK_KEYS];
    uint64_t bound = atomic_load_explicit(&tap->bound, memory_order_relaxed);
    size_t sampled = sample(ghost, bound, keys, count, mixed, STACK_KEYS);
    if (sampled == 0)
        return true;
    if (sampled > STACK_KEYS)
        return pass_many(ghost, tap, kind, keys, count, sampled, bound);
    return push(ghost, tap, kind, mixed, sampled);
}

void tierce__ghosts_get(struct tierce__ghosts *ghost, struct tierce__ghost_tap *tap,
                        const int64_t *keys, size_t count, bool is_chain, size_t found)
{
    TIERCE_DASSERT(found <= count);
    if (tap == NULL || count == 0)
        return;
    if (!pass(ghost, tap, is_chain ? TIERCE__GHOST_READ_LEADING : TIERCE__GHOST_READ_ANY, keys,
              count))
        return;
    uint32_t last = tierce__ghost_class(count - 1);
    atomic_fetch_add_explicit(&tap->lookups[last], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&tap->last_keys[last], count - tierce__ghost_class_first(last),
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&tap->found, found, memory_order_relaxed);
}

void tierce__ghosts_use(struct tierce__ghosts *ghost, struct tierce__ghost_tap *tap,
                        const int64_t *keys, size_t count)
{
    if (tap != NULL && count > 0)
        (void)pass(ghost, tap, TIERCE__GHOST_USE, keys, count);
}

void tierce__ghosts_write(struct tierce__ghosts *ghost, struct tierce__ghost_tap *tap,
                          const int64_t *keys, size_t count)
{
    if (tap != NULL && count > 0)
        (void)pass(ghost, tap, TIERCE__GHOST_WRITE, keys, count);
}

/* ---- sources and groups ---------------------------------------------------------------------- */

static struct ghost_group *find_group(struct tierce__ghosts *ghost, const char *name)
{
    tierce__lock_assert_held(&ghost->lock);
    for (size_t i = 0; i < TIERCE__GHOST_GROUPS_MAX; i++) {
        if (ghost->groups[i].sources > 0 && strcmp(ghost->groups[i].name, name) == 0)
            return &ghost->groups[i];
    }
    return NULL;
}

static struct ghost_source *find_source(struct tierce__ghosts *ghost, const char *id)
{
    tierce__lock_assert_held(&ghost->lock);
    for (size_t i = 0; i < TIERCE__GHOST_INSTANCES_MAX; i++) {
        struct ghost_source *source = &ghost->sources[i];
        if (source->is_used && !source->is_closed && strcmp(source->id, id) == 0)
            return source;
    }
    return NULL;
}

static int create_curve(struct tierce__ghost_curve **out, const struct tierce__ghosts *ghost,
                        uint32_t blocks_max)
{
    return tierce__ghost_curve_create(
        out, &(struct tierce__ghost_curve_opts){.size = sizeof(struct tierce__ghost_curve_opts),
                                                .blocks_max = blocks_max,
                                                .epoch_us = ghost->opts.epoch_us});
}

static void clear_group(struct ghost_group *group)
{
    TIERCE_ASSERT(group->sources == 0);
    tierce__ghost_curve_destroy(group->curve);
    tierce__ghost_log_destroy(group->log);
    tierce__free(group->name);
    *group = (struct ghost_group){0};
}

/* Returns the group, made if it is new; NULL: there are too many, or there is no memory. */
static struct ghost_group *use_group(struct tierce__ghosts *ghost, const char *name)
{
    struct ghost_group *group = find_group(ghost, name);
    for (size_t i = 0; group == NULL && i < TIERCE__GHOST_GROUPS_MAX; i++) {
        if (ghost->groups[i].sources > 0)
            continue;
        group = &ghost->groups[i];
        group->name = tierce__strdup(name);
        if (group->name == NULL ||
            create_curve(&group->curve, ghost, ghost->opts.group_blocks) < 0) {
            clear_group(group);
            return NULL;
        }
    }
    return group;
}

static void leave_group(struct ghost_source *source)
{
    struct ghost_group *group = source->group;
    TIERCE_ASSERT(group->sources > 0);
    if (--group->sources == 0)
        clear_group(group);
    else
        tierce__ghost_curve_remove(group->curve, source->group_member);
    if (group->log != NULL) /* the member's number may be used again */
        tierce__ghost_log_clear(group->log);
    source->group = NULL;
}

static void clear_source(struct ghost_source *source)
{
    if (source->group != NULL)
        leave_group(source);
    tierce__ghost_curve_destroy(source->curve);
    tierce__free(source->id);
    *source = (struct ghost_source){0};
}

static int join_group(struct tierce__ghosts *ghost, struct ghost_source *source, const char *name)
{
    struct ghost_group *group = use_group(ghost, name);
    if (group == NULL)
        return -ENOMEM;
    int rc = tierce__ghost_curve_add(group->curve, source->key_bytes, source->tokens,
                                     &source->group_member);
    if (rc < 0 && group->sources == 0)
        clear_group(group);
    if (rc < 0)
        return rc;
    group->sources++;
    source->group = group;
    return 0;
}

/* Returns 0 if the source has a curve of its own now, or needs none. */
static int use_own_curve(struct tierce__ghosts *ghost, struct ghost_source *source)
{
    if (source->group->sources == 1) {
        tierce__ghost_curve_destroy(source->curve);
        source->curve = NULL;
    }
    if (source->group->sources == 1 || source->curve != NULL)
        return 0;
    int rc = create_curve(&source->curve, ghost, ghost->opts.instance_blocks);
    if (rc == 0)
        rc = tierce__ghost_curve_add(source->curve, source->key_bytes, source->tokens,
                                     &source->member);
    if (rc == 0) {
        tierce__ghost_curve_set_reach(source->curve, source->group->reach);
    } else {
        tierce__ghost_curve_destroy(source->curve);
        source->curve = NULL;
    }
    return rc;
}

static void set_bound(struct ghost_source *source)
{
    uint64_t own =
        source->curve != NULL ? tierce__ghost_curve_bound(source->curve, source->member) : 0;
    uint64_t shared = tierce__ghost_curve_bound(source->group->curve, source->group_member);
    atomic_store_explicit(&source->tap.bound, own > shared ? own : shared, memory_order_relaxed);
}

static int open_source(struct tierce__ghosts *ghost, struct ghost_source *source,
                       const struct tierce__instance *instance)
{
    for (size_t i = 0; i < instance->spec_count; i++)
        source->key_bytes += (double)instance->specs[i].size;
    if (!(source->key_bytes > 0))
        source->key_bytes = 1; /* until tierce__ghosts_resize */
    source->tokens = instance->block_size > 0 ? instance->block_size : 1;
    source->id = tierce__strdup(instance->id);
    int rc = source->id != NULL ? join_group(ghost, source, instance->group_name) : -ENOMEM;
    if (rc < 0) {
        clear_source(source);
        return rc;
    }
    source->is_used = true;
    source->tap.source = (uint32_t)(source - ghost->sources);
    set_bound(source);
    return 0;
}

struct tierce__ghost_tap *tierce__ghosts_open(struct tierce__ghosts *ghost,
                                              const struct tierce__instance *instance)
{
    if (ghost == NULL)
        return NULL;
    TIERCE_CHECK_MAGIC(ghost, GHOST_MAGIC);
    struct tierce__ghost_tap *tap = NULL;
    tierce__lock_take(&ghost->lock);
    struct ghost_source *source = ghost->sources, *end = source + TIERCE__GHOST_INSTANCES_MAX;
    while (source < end && source->is_used)
        source++;
    if (source < end && open_source(ghost, source, instance) == 0)
        tap = &source->tap;
    else
        ghost->stats.unfollowed++;
    tierce__lock_drop(&ghost->lock);
    return tap;
}

void tierce__ghosts_close(struct tierce__ghosts *ghost, struct tierce__ghost_tap *tap)
{
    if (tap == NULL)
        return;
    TIERCE_CHECK_MAGIC(ghost, GHOST_MAGIC);
    tierce__lock_take(&ghost->lock);
    struct ghost_source *source = &ghost->sources[tap->source];
    TIERCE_ASSERT(&source->tap == tap && source->is_used && !source->is_closed);
    source->is_closed = true;
    source->closed_at = tierce__ghost_ring_position(ghost->ring);
    tierce__lock_drop(&ghost->lock);
}

void tierce__ghosts_resize(struct tierce__ghosts *ghost, struct tierce__ghost_tap *tap,
                           double key_bytes)
{
    if (tap == NULL || !(key_bytes > 0))
        return;
    TIERCE_CHECK_MAGIC(ghost, GHOST_MAGIC);
    tierce__lock_take(&ghost->lock);
    struct ghost_source *source = &ghost->sources[tap->source];
    TIERCE_ASSERT(&source->tap == tap && source->is_used && !source->is_closed);
    source->key_bytes = key_bytes;
    if (source->curve != NULL)
        tierce__ghost_curve_resize(source->curve, source->member, key_bytes);
    struct ghost_group *group = source->group;
    double had = tierce__ghost_curve_key_bytes(group->curve, source->group_member);
    tierce__ghost_curve_resize(group->curve, source->group_member, key_bytes);
    double has = tierce__ghost_curve_key_bytes(group->curve, source->group_member);
    if (group->log != NULL && has != had)
        tierce__ghost_log_clear(group->log);
    set_bound(source);
    tierce__lock_drop(&ghost->lock);
}

void tierce__ghosts_set_reach(struct tierce__ghosts *ghost, const char *group, double bytes)
{
    TIERCE_CHECK_MAGIC(ghost, GHOST_MAGIC);
    tierce__lock_take(&ghost->lock);
    struct ghost_group *found = find_group(ghost, group);
    if (found != NULL) {
        found->reach = bytes;
        tierce__ghost_curve_set_reach(found->curve, bytes);
    }
    for (size_t i = 0; found != NULL && i < TIERCE__GHOST_INSTANCES_MAX; i++) {
        if (ghost->sources[i].group == found && ghost->sources[i].curve != NULL)
            tierce__ghost_curve_set_reach(ghost->sources[i].curve, bytes);
    }
    tierce__lock_drop(&ghost->lock);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int enter(struct tierce__ghost_curve *curve, uint32_t member,
                 const struct tierce__ghost_record *record, const uint64_t *mixed)
{
    bool is_read = record->kind <= TIERCE__GHOST_READ_ANY;
    return is_read ? tierce__ghost_curve_read(curve, member, mixed, record->count,
                                              record->kind == TIERCE__GHOST_READ_LEADING)
                   : tierce__ghost_curve_use(curve, member, mixed, record->count,
                                             record->kind == TIERCE__GHOST_WRITE);
}

static void log_request(const struct ghost_source *source,
                        const struct tierce__ghost_record *record, const uint64_t *mixed,
                        int64_t now)
{
    const struct ghost_group *group = source->group;
    double key_bytes = tierce__ghost_curve_key_bytes(group->curve, source->group_member);
    tierce__ghost_log_add(group->log, &(struct tierce__ghost_entry){
                                          .time_us = now,
                                          .unit_bytes = tierce__ghost_curve_unit(group->curve),
                                          .key_bytes = key_bytes,
                                          .tokens = source->tokens,
                                          .member = source->group_member,
                                          .kind = (uint8_t)record->kind,
                                          .count = record->count,
                                          .keys = mixed});
}

/* A curve that has no memory is restarted. */
static void work_off(struct tierce__ghosts *ghost, const struct tierce__ghost_record *record,
                     const uint64_t *mixed, int64_t now)
{
    TIERCE_ASSERT(record->source < TIERCE__GHOST_INSTANCES_MAX);
    struct ghost_source *source = &ghost->sources[record->source];
    TIERCE_ASSERT(source->is_used);
    ghost->stats.requests++;
    ghost->stats.keys += record->count;
    source->work += record->count;
    source->group->work += record->count;
    if (source->group->log != NULL)
        log_request(source, record, mixed, now);
    int rc = enter(source->group->curve, source->group_member, record, mixed);
    int own_rc = source->curve != NULL ? enter(source->curve, source->member, record, mixed) : 0;
    if (rc < 0 || own_rc < 0)
        ghost->stats.unfollowed++;
    set_bound(source);
}

/* Returns how many requests were worked off, at most STEP_REQUESTS. */
static size_t work_off_some(struct tierce__ghosts *ghost)
{
    tierce__lock_assert_held(&ghost->lock);
    struct tierce__ghost_record record;
    const uint64_t *mixed;
    size_t count = 0;
    int64_t now = tierce__ghosts_now_us(ghost);
    while (count < STEP_REQUESTS && tierce__ghost_ring_pop(ghost->ring, &record, &mixed) > 0) {
        work_off(ghost, &record, mixed, now);
        count++;
    }
    return count;
}

/* The keys of all lookups so far, by class: those of the last class of each lookup, and all of the
 * classes before it. */
static void count_asked(const struct tierce__ghost_tap *tap, uint64_t out[TIERCE__GHOST_CLASSES])
{
    uint64_t longer = 0;
    for (uint32_t i = TIERCE__GHOST_CLASSES; i-- > 0;) {
        size_t width = tierce__ghost_class_first(i + 1) - tierce__ghost_class_first(i);
        out[i] = atomic_load_explicit(&tap->last_keys[i], memory_order_relaxed) + longer * width;
        longer += atomic_load_explicit(&tap->lookups[i], memory_order_relaxed);
    }
}

/* Counts the lookups since the last step, and frees closed sources whose records are worked off. */
static void look_at(struct tierce__ghosts *ghost, struct ghost_source *source)
{
    uint64_t asked[TIERCE__GHOST_CLASSES], more[TIERCE__GHOST_CLASSES];
    uint64_t found = atomic_load_explicit(&source->tap.found, memory_order_relaxed);
    uint64_t more_found = found - source->seen_found;
    count_asked(&source->tap, asked);
    for (size_t i = 0; i < TIERCE__GHOST_CLASSES; i++) {
        /* The two parts of a lookup are not counted at the same moment. */
        more[i] = asked[i] > source->seen_asked[i] ? asked[i] - source->seen_asked[i] : 0;
        source->seen_asked[i] += more[i];
    }
    source->seen_found = found;
    tierce__ghost_curve_count(source->group->curve, source->group_member, more, more_found);
    if (source->curve != NULL)
        tierce__ghost_curve_count(source->curve, source->member, more, more_found);
    if (source->is_closed && tierce__ghost_ring_passed(ghost->ring, source->closed_at))
        clear_source(source);
}

static void look_at_all(struct tierce__ghosts *ghost)
{
    bool may_refine = ghost->calm_slices >= SLICES_CALM || !ghost->opts.has_thread;
    int64_t now = tierce__ghosts_now_us(ghost);
    for (size_t i = 0; i < TIERCE__GHOST_INSTANCES_MAX; i++) {
        if (ghost->sources[i].is_used)
            look_at(ghost, &ghost->sources[i]);
    }
    for (size_t i = 0; i < TIERCE__GHOST_GROUPS_MAX; i++) {
        if (ghost->groups[i].sources > 0)
            tierce__ghost_curve_advance(ghost->groups[i].curve, now, may_refine);
    }
    for (size_t i = 0; i < TIERCE__GHOST_INSTANCES_MAX; i++) {
        struct ghost_source *source = &ghost->sources[i];
        if (!source->is_used)
            continue;
        (void)use_own_curve(ghost, source); /* without memory it is tried again in the next step */
        if (source->curve != NULL)
            tierce__ghost_curve_advance(source->curve, now, may_refine);
        set_bound(source);
    }
}

/* Makes the curves of the source with the most work coarser: those of one source together, because
 * the larger bound of both decides the work of requests. */
static void coarsen(struct tierce__ghosts *ghost)
{
    struct ghost_source *most = NULL;
    for (size_t i = 0; i < TIERCE__GHOST_INSTANCES_MAX; i++) {
        struct ghost_source *source = &ghost->sources[i];
        if (source->is_used && source->work > 0 && (most == NULL || source->work > most->work))
            most = source;
    }
    if (most == NULL)
        return;
    if (most->curve != NULL)
        tierce__ghost_curve_coarsen(most->curve);
    if (most->group->work <= 2 * most->work)
        tierce__ghost_curve_coarsen(most->group->curve);
    set_bound(most);
    ghost->stats.coarsened++;
    ghost->calm_slices = 0;
    for (size_t i = 0; i < TIERCE__GHOST_INSTANCES_MAX; i++)
        ghost->sources[i].work = 0;
    for (size_t i = 0; i < TIERCE__GHOST_GROUPS_MAX; i++)
        ghost->groups[i].work = 0;
}

static void look_at_drops(struct tierce__ghosts *ghost)
{
    uint64_t dropped = atomic_load_explicit(&ghost->dropped, memory_order_relaxed);
    if (dropped != ghost->seen_dropped)
        coarsen(ghost);
    ghost->seen_dropped = dropped;
}

size_t tierce__ghosts_step(struct tierce__ghosts *ghost)
{
    TIERCE_CHECK_MAGIC(ghost, GHOST_MAGIC);
    size_t all = 0, count;
    do {
        tierce__lock_take(&ghost->lock);
        count = work_off_some(ghost);
        tierce__lock_drop(&ghost->lock);
        all += count;
    } while (count == STEP_REQUESTS);
    tierce__lock_take(&ghost->lock);
    look_at_all(ghost);
    look_at_drops(ghost);
    tierce__lock_drop(&ghost->lock);
    return all;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static uint64_t cpu_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void begin_slice(struct tierce__ghosts *ghost)
{
    ghost->slice_began_ns = tierce__now_ns();
    ghost->slice_thread_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    ghost->slice_process_ns = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
}

/* Measures this thread's share of the processors' time, and makes the work less if it is too
 * large. An idle process has no share that means anything. */
static void look_at_load(struct tierce__ghosts *ghost)
{
    tierce__lock_assert_held(&ghost->lock);
    ghost->stats.cpu_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    uint64_t thread = ghost->stats.cpu_ns - ghost->slice_thread_ns;
    uint64_t process = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - ghost->slice_process_ns;
    double share = process > 0 ? (double)thread / (double)process : 0;
    bool is_over = tierce__now_ns() - ghost->slice_began_ns >= SLICE_NS && process >= SLICE_WORK_NS;
    bool is_much = process >= SOON_WORK_NS && share > SHARE_MAX;
    if (is_over)
        ghost->stats.cpu_share = share;
    if (is_over && share < SHARE_MAX / 4)
        ghost->calm_slices++;
    if (is_much)
        coarsen(ghost);
    if (is_over || is_much)
        begin_slice(ghost);
}

static void *run(void *arg)
{
    struct tierce__ghosts *ghost = arg;
    tierce__lock_take(&ghost->lock);
    begin_slice(ghost);
    while (!ghost->is_ending) {
        (void)tierce__cond_wait(&ghost->wake, &ghost->lock, tierce__deadline_in_ms(STEP_MS));
        tierce__lock_drop(&ghost->lock);
        (void)tierce__ghosts_step(ghost);
        tierce__lock_take(&ghost->lock);
        look_at_load(ghost);
    }
    tierce__lock_drop(&ghost->lock);
    return NULL;
}

/* ---- results --------------------------------------------------------------------------------- */

bool tierce__ghosts_group_recent(struct tierce__ghosts *ghost, const char *group, uint32_t epochs,
                                 struct tierce__ghost_shape *out)
{
    TIERCE_CHECK_MAGIC(ghost, GHOST_MAGIC);
    tierce__lock_take(&ghost->lock);
    const struct ghost_group *found = find_group(ghost, group);
    if (found != NULL)
        tierce__ghost_curve_recent(found->curve, tierce__ghosts_now_us(ghost), epochs, out);
    tierce__lock_drop(&ghost->lock);
    return found != NULL;
}

void tierce__ghosts_keep_log(struct tierce__ghosts *ghost, const char *group, bool keep)
{
    TIERCE_CHECK_MAGIC(ghost, GHOST_MAGIC);
    tierce__lock_take(&ghost->lock);
    struct ghost_group *found = find_group(ghost, group);
    if (found != NULL && !keep) {
        tierce__ghost_log_destroy(found->log);
        found->log = NULL;
    }
    /* Without memory there is no log until the next call. */
    if (found != NULL && keep && found->log == NULL &&
        tierce__ghost_log_create(&found->log, ghost->opts.log_words) < 0)
        found->log = NULL;
    tierce__lock_drop(&ghost->lock);
}

int tierce__ghosts_copy_log(struct tierce__ghosts *ghost, const char *group,
                            struct tierce__ghost_log **out)
{
    TIERCE_CHECK_MAGIC(ghost, GHOST_MAGIC);
    tierce__lock_take(&ghost->lock);
    const struct ghost_group *found = find_group(ghost, group);
    int rc =
        found != NULL && found->log != NULL ? tierce__ghost_log_copy(out, found->log) : -ENOENT;
    tierce__lock_drop(&ghost->lock);
    return rc;
}

bool tierce__ghosts_group(struct tierce__ghosts *ghost, const char *group,
                          struct tierce__ghost_shape *out)
{
    return tierce__ghosts_group_recent(ghost, group, UINT32_MAX, out);
}

bool tierce__ghosts_instance(struct tierce__ghosts *ghost, const char *id,
                             struct tierce__ghost_shape *out)
{
    TIERCE_CHECK_MAGIC(ghost, GHOST_MAGIC);
    tierce__lock_take(&ghost->lock);
    const struct ghost_source *found = find_source(ghost, id);
    if (found != NULL)
        tierce__ghost_curve_shape(found->curve != NULL ? found->curve : found->group->curve,
                                  tierce__ghosts_now_us(ghost), out);
    tierce__lock_drop(&ghost->lock);
    return found != NULL;
}

void tierce__ghosts_stats(struct tierce__ghosts *ghost, struct tierce__ghosts_stats *out)
{
    TIERCE_CHECK_MAGIC(ghost, GHOST_MAGIC);
    tierce__lock_take(&ghost->lock);
    *out = ghost->stats;
    for (size_t i = 0; i < TIERCE__GHOST_GROUPS_MAX; i++)
        out->groups += ghost->groups[i].sources > 0;
    for (size_t i = 0; i < TIERCE__GHOST_INSTANCES_MAX; i++)
        out->instances += ghost->sources[i].is_used && !ghost->sources[i].is_closed;
    tierce__lock_drop(&ghost->lock);
    out->dropped = atomic_load_explicit(&ghost->dropped, memory_order_relaxed);
}

/* ---- create, destroy ------------------------------------------------------------------------- */

static void set_defaults(struct tierce__ghosts_opts *opts)
{
    opts->ring_cells = opts->ring_cells > 0 ? opts->ring_cells : RING_CELLS;
    opts->group_blocks = opts->group_blocks > 0 ? opts->group_blocks : GROUP_BLOCKS;
    opts->instance_blocks = opts->instance_blocks > 0 ? opts->instance_blocks : INSTANCE_BLOCKS;
    opts->epoch_us = opts->epoch_us > 0 ? opts->epoch_us : EPOCH_US;
    opts->log_words = opts->log_words > 0 ? opts->log_words : LOG_WORDS;
}

static int start(struct tierce__ghosts *ghost)
{
    int rc = 0;
    if (ghost->opts.seed == 0 &&
        getrandom(&ghost->opts.seed, sizeof(ghost->opts.seed), 0) != sizeof(ghost->opts.seed))
        rc = -EIO;
    if (rc == 0)
        rc = tierce__ghost_ring_create(&ghost->ring, ghost->opts.ring_cells);
    if (rc == 0 && ghost->opts.has_thread)
        rc = tierce__thread_start(&ghost->thread, run, ghost);
    ghost->has_thread = rc == 0 && ghost->opts.has_thread;
    return rc;
}

int tierce__ghosts_create(struct tierce__ghosts **out, const struct tierce__ghosts_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__ghosts *ghost = tierce__calloc(1, sizeof(*ghost));
    if (ghost == NULL)
        return -ENOMEM;
    ghost->magic = GHOST_MAGIC;
    ghost->opts = *opts;
    ghost->stats.cpu_share = -1;
    set_defaults(&ghost->opts);
    tierce__lock_init(&ghost->lock, TIERCE__LOCK_GHOST);
    tierce__cond_init(&ghost->wake);
    int rc = start(ghost);
    if (rc < 0)
        tierce__ghosts_destroy(ghost);
    else
        *out = ghost;
    return rc;
}

void tierce__ghosts_destroy(struct tierce__ghosts *ghost)
{
    if (ghost == NULL)
        return;
    TIERCE_CHECK_MAGIC(ghost, GHOST_MAGIC);
    tierce__lock_take(&ghost->lock);
    ghost->is_ending = true;
    tierce__cond_broadcast(&ghost->wake);
    tierce__lock_drop(&ghost->lock);
    if (ghost->has_thread)
        pthread_join(ghost->thread, NULL);
    for (size_t i = 0; i < TIERCE__GHOST_INSTANCES_MAX; i++) {
        TIERCE_ASSERT(!ghost->sources[i].is_used || ghost->sources[i].is_closed);
        clear_source(&ghost->sources[i]);
    }
    tierce__ghost_ring_destroy(ghost->ring);
    tierce__cond_fini(&ghost->wake);
    tierce__lock_fini(&ghost->lock);
    ghost->magic = 0;
    tierce__free(ghost);
}

int64_t tierce__ghosts_epoch_us(const struct tierce__ghosts *ghost)
{
    return ghost->opts.epoch_us;
}
