/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "directory/directory.h"
#include "test_random.h"

/* Random calls for a directory, against arrays of what each worker holds. */

enum { WORKERS = 9, KEYS = 60, STEPS = 4000, TIERS = 3 };

static struct tierce__directory *directory;

/* The model: tiers of each key, as bits. */
static struct worker {
    struct tierce__directory_id id;
    bool is_joined, is_sending, is_synced;
    uint64_t next;
    uint8_t old[KEYS], new[KEYS]; /* `old` is shown where `new` is 0 */
} workers[WORKERS];

static uint8_t shown(const struct worker *w, unsigned key)
{
    if (!w->is_joined)
        return 0;
    return w->new[key] != 0 ? w->new[key] : w->old[key];
}

static struct tierce__directory_key key_of(unsigned n)
{
    return (struct tierce__directory_key){n % 3, n / 3};
}

static void join(struct worker *w)
{
    char name[8];
    snprintf(name, sizeof(name), "%u", (unsigned)(w - workers));
    *w = (struct worker){.is_joined = true, .next = 1};
    struct tierce__directory_worker worker = {
        .group = "g", .name = name, .address = "", .host = ""};
    while (tierce__directory_join(directory, &worker, 0, &w->id) == TIERCE_E_LIMIT)
        tierce__directory_clean(directory, 100);
}

static void fill(struct test_random *random, struct tierce__directory_change *changes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        changes[i] =
            (struct tierce__directory_change){.key = key_of(test_random_below(random, KEYS)),
                                              .tier = (uint8_t)test_random_below(random, TIERS),
                                              .admitted = test_random_below(random, 5) > 1};
}

static void apply(struct worker *w, const struct tierce__directory_change *c, bool admitted)
{
    unsigned key = (unsigned)(c->key.high + 3 * c->key.low);
    if (admitted)
        w->new[key] |= (uint8_t)(1u << c->tier);
    else
        w->new[key] &= (uint8_t) ~(1u << c->tier);
}

static enum tierce__directory_answer expected(const struct worker *w, bool is_good)
{
    if (!w->is_joined)
        return TIERCE__DIRECTORY_UNKNOWN;
    return is_good ? TIERCE__DIRECTORY_DONE : TIERCE__DIRECTORY_RESYNC;
}

static void report(struct test_random *random, struct worker *w)
{
    struct tierce__directory_change changes[40];
    size_t count = test_random_below(random, 40);
    uint64_t back = test_random_below(random, 4) == 0 ? test_random_below(random, 10) : 0;
    uint64_t gap = test_random_below(random, 60) == 0 ? 1 : 0;
    uint64_t first = w->next > back ? w->next - back + gap : w->next + gap;
    fill(random, changes, count);
    bool is_good = w->is_synced && first <= w->next && first > 0;
    ck_assert_int_eq(tierce__directory_report(directory, w->id, first, changes, count, 0),
                     expected(w, is_good));
    if (!w->is_joined)
        return;
    w->is_synced = is_good;
    for (size_t i = 0; is_good && i < count; i++) {
        if (first + i == w->next) {
            apply(w, &changes[i], changes[i].admitted);
            w->next++;
        }
    }
}

static void sync_begin(struct worker *w)
{
    enum tierce__directory_answer answer = tierce__directory_sync_begin(directory, w->id, 0);
    if (answer == TIERCE__DIRECTORY_LATER) {
        while (tierce__directory_clean(directory, 1000))
            ;
        answer = tierce__directory_sync_begin(directory, w->id, 0);
    }
    ck_assert_int_eq(answer, expected(w, true));
    if (!w->is_joined)
        return;
    for (unsigned i = 0; i < KEYS; i++)
        w->old[i] = shown(w, i);
    memset(w->new, 0, KEYS);
    w->is_synced = false;
    w->is_sending = true;
}

static void sync_add(struct test_random *random, struct worker *w)
{
    struct tierce__directory_change changes[40];
    size_t count = test_random_below(random, 40);
    fill(random, changes, count);
    for (size_t i = 0; i < count; i++)
        changes[i].admitted = true;
    ck_assert_int_eq(tierce__directory_sync_add(directory, w->id, changes, count, 0),
                     expected(w, w->is_sending));
    for (size_t i = 0; w->is_joined && w->is_sending && i < count; i++)
        apply(w, &changes[i], true);
}

static void sync_end(struct test_random *random, struct worker *w)
{
    uint64_t covered = test_random_below(random, 1000);
    ck_assert_int_eq(tierce__directory_sync_end(directory, w->id, covered, 0),
                     expected(w, w->is_sending));
    if (!w->is_joined || !w->is_sending)
        return;
    memset(w->old, 0, KEYS);
    w->is_sending = false;
    w->is_synced = true;
    w->next = covered + 1;
}

static void leave(struct worker *w)
{
    ck_assert_int_eq(tierce__directory_leave(directory, w->id), expected(w, true));
    *w = (struct worker){.id = w->id};
}

static void step(struct test_random *random)
{
    struct worker *w = &workers[test_random_below(random, WORKERS)];
    switch (test_random_below(random, 40)) {
    case 0:
        join(w);
        break;
    case 1:
        if (test_random_below(random, 3) == 0)
            leave(w);
        break;
    case 2:
        sync_begin(w);
        break;
    case 3:
    case 4:
    case 5:
        sync_add(random, w);
        break;
    case 6:
    case 7:
        sync_end(random, w);
        break;
    case 8:
        (void)tierce__directory_clean(directory, 1 + test_random_below(random, 30));
        break;
    default:
        report(random, w);
    }
}

/* How many of the keys the worker holds from `first` on, and the slowest tier of them. */
static uint32_t run_of(const struct worker *w, const unsigned *keys, size_t count, size_t first,
                       uint8_t tiers, uint8_t *slowest)
{
    uint32_t length = 0;
    *slowest = 0;
    for (size_t i = first; i < count && (shown(w, keys[i]) & tiers) != 0; i++, length++) {
        uint8_t fastest = (uint8_t)__builtin_ctz(shown(w, keys[i]));
        *slowest = fastest > *slowest ? fastest : *slowest;
    }
    return length;
}

static const struct worker *worker_of(struct tierce__directory_id id)
{
    for (unsigned i = 0; i < WORKERS; i++) {
        if (workers[i].is_joined && workers[i].id.session == id.session)
            return &workers[i];
    }
    ck_abort_msg("a worker that is not there");
    return NULL;
}

static void check(struct test_random *random)
{
    struct tierce__directory_key keys[12];
    unsigned numbers[12], held = 0;
    uint8_t slowest, before = 0;
    struct tierce__directory_found found;
    size_t count = test_random_below(random, 13), first = 0;
    for (size_t i = 0; i < count; i++) {
        numbers[i] = test_random_below(random, KEYS);
        keys[i] = key_of(numbers[i]);
    }
    struct tierce__directory_asker asker = {.group = "g", .host = ""};
    ck_assert_int_eq(tierce__directory_find(directory, keys, count, &asker, &found), 0);
    for (unsigned i = 0; i < WORKERS; i++)
        held += run_of(&workers[i], numbers, count, 0, 0xff, &slowest) > 0;
    ck_assert_uint_eq(found.prefix_count, held);
    for (uint32_t i = 0; i < found.prefix_count; i++) {
        const struct tierce__directory_prefix *p = &found.prefixes[i];
        const struct worker *w = worker_of(p->worker);
        ck_assert_uint_eq(p->keys, run_of(w, numbers, count, 0, 0xff, &slowest));
        for (unsigned tier = 0; tier < TIERS; tier++)
            ck_assert_uint_eq(p->in_tier[tier],
                              run_of(w, numbers, count, 0, (uint8_t)(1u << tier), &slowest));
        ck_assert(i == 0 || p->keys <= found.prefixes[i - 1].keys);
        (void)run_of(w, numbers, count, 0, 0xff, &slowest);
        ck_assert(i == 0 || p->keys < found.prefixes[i - 1].keys || slowest >= before);
        before = slowest;
    }
    for (uint32_t i = 0; i < found.run_count; i++) {
        const struct tierce__directory_run *run = &found.runs[i];
        ck_assert_uint_eq(run->first, first);
        ck_assert_uint_eq(run->keys,
                          run_of(worker_of(run->worker), numbers, count, first, 0xff, &slowest));
        ck_assert_uint_eq(run->slowest, slowest);
        uint8_t best = slowest, other;
        for (unsigned j = 0; j < WORKERS; j++) {
            uint32_t length = run_of(&workers[j], numbers, count, first, 0xff, &other);
            ck_assert(length < run->keys || (length == run->keys && other >= best));
        }
        first += run->keys;
    }
    for (unsigned j = 0; j < WORKERS && found.run_count < TIERCE__DIRECTORY_RUNS_MAX; j++)
        ck_assert(first == count || shown(&workers[j], numbers[first]) == 0);
}

static void check_whole(void)
{
    struct tierce__directory_stats stats;
    uint64_t holders = 0, keys = 0;
    while (tierce__directory_clean(directory, 7))
        ;
    tierce__directory_stats(directory, &stats);
    for (unsigned key = 0; key < KEYS; key++) {
        bool is_held = false;
        for (unsigned i = 0; i < WORKERS; i++) {
            holders += shown(&workers[i], key) != 0;
            is_held |= shown(&workers[i], key) != 0;
        }
        keys += is_held;
    }
    ck_assert_uint_eq(stats.holders, holders);
    ck_assert_uint_eq(stats.keys, keys);
}

START_TEST(like_its_model)
{
    struct test_random random = test_random_start("prop_directory");
    for (unsigned round = 0; round < 20 * test_scale(); round++) {
        struct tierce__directory_opts opts = {.size = sizeof(opts), .workers_max = WORKERS};
        ck_assert_int_eq(tierce__directory_create(&directory, &opts), 0);
        memset(workers, 0, sizeof(workers));
        for (unsigned i = 0; i < STEPS; i++) {
            step(&random);
            if (i % 4 == 0)
                check(&random);
        }
        check_whole();
        tierce__directory_destroy(directory);
        ck_assert_uint_eq(tierce__alloc_live(), 0);
    }
}
END_TEST

CHECK_MAIN("prop directory", .seconds = 100, .tests = {like_its_model})
