/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_MODEL_H
#define TIERCE_TESTS_SIM_MODEL_H

#include "manager/reclaim/reclaimer.h"
#include "manager_harness.h"
#include "sim_storages.h"
#include "sim_store.h"

/* The answers to the clients of a simulated manager, and whether the store agrees. */

enum {
    INSTANCES = 2,
    KEYS = 24,
    STEPS = 250,
    PLACED_MAX = 8192,
    SESSIONS_MAX = 1024,
    REUSE_MS = 5000,
    LATE_MS = 20000,
};

enum state { WRITING, UNKNOWN, SERVING, GONE };

/* A block that a client was told where to write. */
struct placed {
    int64_t key;
    int instance;
    uint64_t generation; /* of the instance, when it was to be written */
    size_t session;
    enum state state;
    bool may_serve;     /* a Finish said that it was written */
    bool is_told;       /* a Finish said something */
    bool seen;          /* in the store, this time */
    int64_t free_us;    /* gone: its slots are not used before that */
    size_t source;      /* of a copy: the index of what is copied, and 1 */
    bool served_before; /* of a copy: its block served before the copy ended */
    int64_t due_us;     /* seen: when it expires, by its record and the group's time */
    size_t uri_count;
    uint64_t bytes;
    char uris[2][SIM_URI_BYTES];
    char specs[2]; /* of each URI: 'a' or 'b' */
};

struct told {
    char id[TIERCE__SESSION_ID_BYTES + 1];
    int instance;
    uint64_t generation;
    size_t first, count; /* among what was placed */
    bool is_over;
    bool is_tried;         /* a Finish was sent */
    bool is_move, is_copy; /* sim_moves.h */
    int64_t timeout_us;
    int64_t promised_us; /* it does not time out before */
};

static const char *const instance_ids[INSTANCES] = {"i", "j"};
static struct harness h;
static struct tierce__reclaimer *reclaimer;
static struct test_random random_;
static unsigned long long seed;
static uint32_t rate;
static bool trims_meta;
static bool obeys_rules; /* moves are asked for by rules only */
static bool expires;     /* blocks and groups have times to live */
static const struct tierce__meta_store_ops *inner_ops;
static struct tierce__quota_group shared;
static struct tierce__locator *late; /* the leader before this one, which does not know it; or NULL
                                      */
static bool late_deletes;
static int64_t late_from_us, latest_us;
static uint64_t fence;
static uint16_t numbers[2]; /* of storages "s" and "t" */
static struct placed placed[PLACED_MAX];
static struct told told[SESSIONS_MAX];
static uint64_t generations[INSTANCES]; /* how often each was invalidated */
static size_t placed_count, told_count;
static uint64_t served, removed, reclaimed, timeouts, renewals, crashes, refused, shared_writes,
    invalidations, stale_writes;

#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "seed %llu: ", seed);                                                  \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            ck_abort_msg("seed %llu: %s", seed, #condition);                                       \
        }                                                                                          \
    } while (0)

static uint32_t below(uint32_t bound)
{
    return test_random_below(&random_, bound);
}

/* Whether it was to be written before the last invalidation: it serves nobody. */
static bool is_stale(const struct placed *p)
{
    return p->generation != generations[p->instance];
}

/* Whether two sessions write the same spec of a block. */
static bool is_same_write(const struct placed *p, const struct placed *q)
{
    bool is_same = false;
    for (size_t a = 0; a < p->uri_count; a++) {
        for (size_t b = 0; b < q->uri_count; b++)
            is_same |= p->specs[a] == q->specs[b];
    }
    return is_same && q->state == WRITING && q->key == p->key && q->instance == p->instance;
}

/* A storage deletes a file. */
static void goes(const char *path)
{
    char other[SIM_URI_BYTES];
    for (size_t i = 0; i < placed_count; i++) {
        const struct placed *p = &placed[i];
        for (size_t u = 0; u < p->uri_count; u++)
            REQUIRE((p->state != WRITING && p->state != SERVING) ||
                        strcmp(sim_path_of(p->uris[u], other), path) != 0,
                    "the file of block %lld goes, which is %s", (long long)p->key,
                    p->state == WRITING ? "being written" : "serving");
    }
}

/* ---- contents -------------------------------------------------------------------------------- */

/* Whether the locator still has the session. */
static bool is_open(const struct told *t)
{
    size_t count;
    return tierce__locator_session_keys(h.locator, instance_ids[t->instance], t->id, &count) == 0;
}

/* NULL: none is open. */
static struct told *draw_open(bool is_move)
{
    size_t open[SESSIONS_MAX], open_count = 0;
    for (size_t i = 0; i < told_count; i++) {
        if (!told[i].is_over && told[i].is_move == is_move)
            open[open_count++] = i;
    }
    return open_count > 0 ? &told[open[below((uint32_t)open_count)]] : NULL;
}

/* The promises of a renewal. */
static void see_renewal(struct told *t, int rc, const struct tierce__renewed *renewed)
{
    if (rc == 0) {
        REQUIRE(!t->is_over, "a session is renewed after its end");
        REQUIRE(renewed->left_us >= t->timeout_us, "a renewal gives %lld us of %lld",
                (long long)renewed->left_us, (long long)t->timeout_us);
        t->promised_us = h.now_us + renewed->left_us;
        renewals++;
        return;
    }
    REQUIRE(rc == -ESRCH && (t->is_over || rate > 0), "a session is not renewed: %s", h.why);
    REQUIRE(t->is_tried || renewed->end != TIERCE__SESSION_FINISHED, "nobody finished it: %s",
            h.why);
}

/* A session lives for its timeout under the next leader; clocks may have been set. */
static void limit_promises(void)
{
    for (size_t i = 0; i < told_count; i++) {
        if (told[i].promised_us > h.now_us + told[i].timeout_us)
            told[i].promised_us = h.now_us + told[i].timeout_us;
    }
}

static void set_state(struct placed *p, enum state state)
{
    if (state == GONE && p->state == SERVING)
        p->free_us = h.now_us + REUSE_MS * 1000; /* somebody may still read */
    p->state = state;
}

static struct placed *placed_at(const char *uri, int instance)
{
    for (size_t i = placed_count; i-- > 0;) { /* a slot's last owner is its owner */
        if (placed[i].instance == instance && placed[i].uri_count > 0 &&
            strcmp(placed[i].uris[0], uri) == 0)
            return &placed[i];
    }
    return NULL;
}

static int64_t due_of(int instance, const struct tierce__record *record,
                      const struct tierce__catalog *catalog)
{
    char why[TIERCE__WHY_BYTES];
    struct tierce__live *live;
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, instance_ids[instance], why), 0);
    int64_t due_us = tierce__record_due_us(record, tierce__live_ttl_us(live, catalog));
    tierce__live_release(live);
    return due_us;
}

static void see_record(int instance, int64_t key, const struct tierce__record *record,
                       struct tierce__arena *arena)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    const struct tierce__instance *of = tierce__catalog_instance(catalog, instance_ids[instance]);
    REQUIRE(record->location_count > 0, "block %lld has no location", (long long)key);
    for (size_t l = 0; l < record->location_count; l++) {
        const struct tierce__location *location = &record->locations[l];
        const char *uri = tierce__place_uri(tierce__location_storage(catalog, location), of,
                                            &location->places[0], arena);
        struct placed *p = placed_at(uri, instance);
        REQUIRE(p != NULL && p->key == key, "block %lld lies where nobody was to write it: %s",
                (long long)key, uri);
        REQUIRE(p->may_serve && p->state != GONE, "block %lld serves, after it was %s",
                (long long)key, p->state == GONE ? "removed" : "not written");
        REQUIRE(!p->seen, "block %lld has one location twice", (long long)key);
        REQUIRE(record->generation == p->generation,
                "block %lld of generation %llu lies in a record of %llu", (long long)key,
                (unsigned long long)p->generation, (unsigned long long)record->generation);
        p->seen = true;
        p->due_us = due_of(instance, record, catalog);
    }
    tierce__registry_release(h.registry, catalog);
}

static void see_instance(int instance)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    uint32_t number = tierce__catalog_instance(catalog, instance_ids[instance])->number;
    tierce__registry_release(h.registry, catalog);
    struct tierce__meta_space *space = sim_store.spaces[number];
    struct tierce__arena arena = {0};
    struct tierce__record records[KEYS];
    int64_t keys[KEYS];
    bool found[KEYS];
    uint64_t cursor = 0;
    size_t count;
    ck_assert_int_eq(space->ops->scan(space, &cursor, KEYS, keys, &count), 0);
    ck_assert_int_eq(space->ops->get(space, keys, count, &arena, records, found), 0);
    for (size_t i = 0; i < count; i++)
        see_record(instance, keys[i], &records[i], &arena);
    tierce__arena_clear(&arena);
}

/* Compares the store with the answers to clients; `may_go`: blocks may have been evicted. */
static void compare(bool may_go)
{
    for (size_t i = 0; i < placed_count; i++)
        placed[i].seen = false;
    for (int i = 0; i < INSTANCES; i++)
        see_instance(i);
    for (size_t t = 0; t < told_count; t++) {
        if (!told[t].is_over)
            told[t].is_over = !is_open(&told[t]);
        REQUIRE(!told[t].is_over || told[t].is_tried || told[t].promised_us <= h.now_us,
                "a session has timed out %lld us too early",
                (long long)(told[t].promised_us - h.now_us));
        if (told[t].is_over)
            told[t].promised_us = 0; /* whatever the clock is set to after that */
    }
    for (size_t i = 0; i < placed_count; i++) {
        struct placed *p = &placed[i];
        REQUIRE(p->state != SERVING || p->seen || may_go || p->due_us <= h.now_us || is_stale(p),
                "block %lld is lost", (long long)p->key);
        if (p->seen)
            set_state(p, SERVING);
        else if (p->state != GONE && !told[p->session].is_over && p->state != SERVING)
            set_state(p, WRITING);
        else if (p->state != GONE) {
            if (p->state == WRITING &&
                !p->is_told) /* its time was over: somebody may still write */
                p->free_us = h.now_us + LATE_MS * 1000;
            set_state(p, GONE);
        }
        if (p->state == GONE && p->free_us <= h.now_us)
            p->free_us = 0; /* whatever the clock is set to after that */
    }
}

/* Quotas count exactly the existing bytes, once no outcome is in doubt. */
static int add_deletion(void *arg, const struct tierce__meta_note *note)
{
    struct tierce__live *live = ((void **)arg)[0];
    uint64_t *bytes = ((void **)arg)[1];
    struct tierce__deletion *deletion;
    ck_assert_int_eq(tierce__deletion_read(&deletion, live, note), 0);
    for (size_t i = 0; i < deletion->count && !deletion->is_sweep; i++)
        *bytes += tierce__location_bytes(&deletion->items[i].location);
    tierce__deletion_destroy(deletion);
    return 0;
}

static void count_live(void *arg, struct tierce__live *live)
{
    uint64_t *sums = arg;
    int64_t counters[TIERCE__META_COUNTERS];
    struct tierce__meta_space *space = sim_inner(live->space);
    ck_assert_int_eq(space->ops->counters(space, counters), 0);
    for (size_t i = 0; i < 16; i++) {
        sums[TIERCE__QUOTA_SERVING] += (uint64_t)counters[TIERCE__META_BYTES_FIRST + i];
        sums[TIERCE__QUOTA_WRITING] += live->writing_by_slot[i];
    }
    void *each[] = {live, &sums[TIERCE__QUOTA_DELETING]};
    ck_assert_int_eq(space->ops->notes(space, TIERCE__NOTE_DELETION, add_deletion, each), 0);
}

static void check_counts(void)
{
    uint64_t sums[TIERCE__QUOTA_STATES] = {0}, scanned = 0, scanned_in[2] = {0};
    struct tierce__usage usage = harness_usage(&h);
    tierce__locator_each(h.locator, count_live, sums);
    for (size_t i = 0; i < placed_count; i++) {
        uint64_t bytes = placed[i].seen ? placed[i].bytes : 0;
        scanned += bytes;
        if (bytes > 0)
            scanned_in[strstr(placed[i].uris[0], "://")[3] == 't'] += bytes;
    }
    REQUIRE(scanned == sums[TIERCE__QUOTA_SERVING], "%llu bytes serve, counted %llu",
            (unsigned long long)scanned, (unsigned long long)sums[TIERCE__QUOTA_SERVING]);
    uint64_t by_storage[TIERCE__QUOTA_STATES] = {0};
    for (size_t i = 0; i < 2; i++) {
        struct tierce__usage of;
        tierce__locator_storage_usage(h.locator, numbers[i], &of);
        by_storage[TIERCE__QUOTA_SERVING] += of.serving_bytes;
        by_storage[TIERCE__QUOTA_WRITING] += of.writing_bytes;
        by_storage[TIERCE__QUOTA_DELETING] += of.deleting_bytes;
        REQUIRE(of.serving_bytes == scanned_in[i], "storage %d holds %llu bytes, counted %llu",
                (int)numbers[i], (unsigned long long)scanned_in[i],
                (unsigned long long)of.serving_bytes);
    }
    for (int state = 0; state < TIERCE__QUOTA_STATES; state++)
        REQUIRE(by_storage[state] == sums[state],
                "storages hold %llu bytes of state %d, there %llu",
                (unsigned long long)by_storage[state], state, (unsigned long long)sums[state]);
    REQUIRE(usage.serving_bytes == sums[TIERCE__QUOTA_SERVING], "quota serving %llu, there %llu",
            (unsigned long long)usage.serving_bytes,
            (unsigned long long)sums[TIERCE__QUOTA_SERVING]);
    REQUIRE(usage.writing_bytes == sums[TIERCE__QUOTA_WRITING], "quota writing %llu, there %llu",
            (unsigned long long)usage.writing_bytes,
            (unsigned long long)sums[TIERCE__QUOTA_WRITING]);
    REQUIRE(usage.deleting_bytes == sums[TIERCE__QUOTA_DELETING], "quota deleting %llu, there %llu",
            (unsigned long long)usage.deleting_bytes,
            (unsigned long long)sums[TIERCE__QUOTA_DELETING]);
}

#endif
