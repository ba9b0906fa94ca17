/* SPDX-License-Identifier: Apache-2.0 */
#include "core/chunk/space.h"
#include "check_main.h"
#include "test_random.h"

#include <stdbool.h>
#include <string.h>

/* ---- random operations against a map of pages ------------------------------------------------ */

enum { PAGE = 4096, PAGES_MAX = 600 };

struct object {
    uint64_t offset;
    uint64_t bytes;
};

struct model {
    uint32_t pages;
    bool taken[PAGES_MAX];
    struct object objects[PAGES_MAX];
    uint32_t object_count;
};

static uint32_t pages_of(uint64_t bytes)
{
    return (uint32_t)((bytes + PAGE - 1) / PAGE);
}

/* The first page of the shortest free run that holds `need`, the lowest of equals; or pages. */
static uint32_t model_best_fit(const struct model *model, uint32_t need, uint32_t *longest)
{
    uint32_t best = model->pages, best_run = UINT32_MAX;
    *longest = 0;
    for (uint32_t from = 0, run; from < model->pages; from += run + 1) {
        for (run = 0; from + run < model->pages && !model->taken[from + run]; run++)
            ;
        if (run > *longest)
            *longest = run;
        if (run >= need && run < best_run) {
            best = from;
            best_run = run;
        }
    }
    return best;
}

static bool model_is_free(const struct model *model, uint64_t offset, uint64_t bytes)
{
    uint64_t end = (uint64_t)model->pages * PAGE;
    if (bytes == 0 || bytes > end || offset > end || offset % PAGE != 0)
        return false;
    if (offset / PAGE + pages_of(bytes) > model->pages)
        return false;
    for (uint32_t i = 0; i < pages_of(bytes); i++) {
        if (model->taken[offset / PAGE + i])
            return false;
    }
    return true;
}

static void model_mark(struct model *model, const struct object *object, bool taken)
{
    for (uint32_t i = 0; i < pages_of(object->bytes); i++) {
        ck_assert(model->taken[object->offset / PAGE + i] != taken);
        model->taken[object->offset / PAGE + i] = taken;
    }
}

static void compare(const struct model *model, const struct tierce__space *space)
{
    uint64_t used = 0, asked = 0, high = 0;
    uint32_t longest;
    for (uint32_t i = 0; i < model->object_count; i++) {
        uint64_t rounded = (uint64_t)pages_of(model->objects[i].bytes) * PAGE;
        used += rounded;
        asked += model->objects[i].bytes;
        if (model->objects[i].offset + rounded > high)
            high = model->objects[i].offset + rounded;
    }
    model_best_fit(model, 1, &longest);
    ck_assert_uint_eq(tierce__space_used(space), used);
    ck_assert_uint_eq(tierce__space_asked(space), asked);
    ck_assert_uint_eq(tierce__space_high(space), high);
    ck_assert_uint_eq(tierce__space_longest(space), (uint64_t)longest * PAGE);
}

static void take_one(struct model *model, struct tierce__space *space, uint64_t bytes)
{
    uint32_t longest, best = model_best_fit(model, pages_of(bytes), &longest);
    uint64_t offset = 77;
    int rc = tierce__space_take(space, &offset, bytes);
    if (best == model->pages) {
        ck_assert_int_eq(rc,
                         bytes > (uint64_t)model->pages * PAGE ? TIERCE_E_LIMIT : TIERCE_E_FULL);
        ck_assert_uint_eq(offset, 77);
        return;
    }
    ck_assert_int_eq(rc, 0);
    ck_assert_uint_eq(offset, (uint64_t)best * PAGE);
    model->objects[model->object_count] = (struct object){offset, bytes};
    model_mark(model, &model->objects[model->object_count++], true);
}

static void give_one(struct model *model, struct tierce__space *space, uint32_t which)
{
    struct object object = model->objects[which];
    tierce__space_give(space, object.offset, object.bytes);
    model_mark(model, &object, false);
    model->objects[which] = model->objects[--model->object_count];
    /* Released space can be allocated again at once. */
    ck_assert_uint_ge(tierce__space_longest(space), object.bytes);
}

static void claim_one(struct model *model, struct tierce__space *space, struct object object)
{
    bool free = model_is_free(model, object.offset, object.bytes);
    int rc = tierce__space_claim(space, object.offset, object.bytes);
    ck_assert_int_eq(rc, free ? 0 : TIERCE_E_FORMAT);
    if (free) {
        model->objects[model->object_count] = object;
        model_mark(model, &model->objects[model->object_count++], true);
    }
}

static struct object hostile_range(struct test_random *random, const struct model *model)
{
    uint64_t end = (uint64_t)model->pages * PAGE;
    uint64_t offsets[] = {(uint64_t)test_random_below(random, model->pages + 2) * PAGE,
                          test_random_below(random, (uint32_t)end), end, UINT64_MAX,
                          UINT64_MAX - PAGE + 1};
    uint64_t sizes[] = {1 + test_random_below(random, 6 * PAGE), 0, end, end + 1, UINT64_MAX};
    bool sane = test_random_below(random, 2) == 0;
    return (struct object){offsets[sane ? 0 : test_random_below(random, 5)],
                           sizes[sane ? 0 : test_random_below(random, 5)]};
}

/* A second space with the same live objects, claimed in random order, is the same space. */
static struct tierce__space *live_again(struct model *model, struct tierce__space *space,
                                        struct test_random *random)
{
    struct model again = {.pages = model->pages};
    struct tierce__space *other;
    ck_assert_int_eq(tierce__space_create(&other, (uint64_t)model->pages * PAGE + 17), 0);
    for (uint32_t i = model->object_count; i > 1; i--) {
        uint32_t k = test_random_below(random, i);
        struct object swap = model->objects[i - 1];
        model->objects[i - 1] = model->objects[k];
        model->objects[k] = swap;
    }
    for (uint32_t i = 0; i < model->object_count; i++)
        claim_one(&again, other, model->objects[i]);
    ck_assert_uint_eq(again.object_count, model->object_count);
    compare(&again, other);
    tierce__space_destroy(space);
    return other;
}

static void play(struct test_random *random, uint32_t steps)
{
    struct model *model = calloc(1, sizeof(*model));
    struct tierce__space *space;
    model->pages = 1 + test_random_below(random, PAGES_MAX);
    uint32_t size_max = 1 + test_random_below(random, model->pages * PAGE);
    if (test_random_below(random, 2) == 0)
        size_max = size_max / 16 + 1;
    uint32_t lean = 20 + test_random_below(random, 60);
    ck_assert_int_eq(tierce__space_create(&space, (uint64_t)model->pages * PAGE + 4095), 0);
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t dice = test_random_below(random, 100);
        if (dice < 2)
            space = live_again(model, space, random);
        else if (dice < 12)
            claim_one(model, space, hostile_range(random, model));
        else if (dice < 12 + lean)
            take_one(model, space, 1 + test_random_below(random, size_max));
        else if (model->object_count > 0)
            give_one(model, space, test_random_below(random, model->object_count));
        compare(model, space);
    }
    while (model->object_count > 0)
        give_one(model, space, 0);
    compare(model, space);
    tierce__space_destroy(space);
    free(model);
}

START_TEST(a_space_does_what_a_map_of_pages_does)
{
    struct test_random random = test_random_start("space");
    for (unsigned i = 0; i < 60 * test_scale(); i++)
        play(&random, 400);
}
END_TEST

/* ---- how full a cache of mixed sizes stays --------------------------------------------------- */

/*
 * Objects come in a random mix; when one does not fit, the oldest leave until it does; one in
 * three insertions renews an old object, so that ages and places part. Reports how full the space
 * is on average right after an insertion, in steady state.
 */
enum { LIVE_MAX = 8192, STEPS = 40000 };

struct mix {
    const char *name;
    const char *about;
    uint64_t (*size)(struct test_random *random, uint32_t step);
    uint32_t space_mib;
    double floor; /* mean fullness below this is a regression */
};

static uint64_t one_size(struct test_random *random, uint32_t step)
{
    (void)random;
    (void)step;
    return (1u << 20) + 8192;
}

static uint64_t with_tails(struct test_random *random, uint32_t step)
{
    (void)step;
    uint64_t sixteenths =
        test_random_below(random, 4) == 0 ? 1 + test_random_below(random, 15) : 16;
    return 4096 + sixteenths * 65536;
}

static uint64_t two_models(struct test_random *random, uint32_t step)
{
    (void)step;
    return 4096 + (test_random_below(random, 2) == 0 ? 1u << 20 : 5u << 20);
}

static uint64_t model_changes(struct test_random *random, uint32_t step)
{
    (void)random;
    return 4096 + (step / 8000 % 2 == 0 ? 1u << 20 : 5u << 20);
}

static uint64_t any_size(struct test_random *random, uint32_t step)
{
    (void)step;
    return (4096ULL << test_random_below(random, 11)) + test_random_below(random, 4096);
}

/* Compressed chunks until the fullness is measured, then raw ones. */
static uint64_t codec_stops(struct test_random *random, uint32_t step)
{
    (void)random;
    return step < STEPS / 4 ? 96 << 10 : 132 << 10;
}

struct cache {
    struct tierce__space *space;
    struct object objects[LIVE_MAX]; /* oldest first */
    uint32_t count;
};

static void evict_oldest(struct cache *cache)
{
    ck_assert_uint_gt(cache->count, 0);
    tierce__space_give(cache->space, cache->objects[0].offset, cache->objects[0].bytes);
    cache->count--;
    memmove(cache->objects, cache->objects + 1, cache->count * sizeof(cache->objects[0]));
}

static void renew_one(struct cache *cache, struct test_random *random)
{
    uint32_t k = test_random_below(random, cache->count);
    struct object object = cache->objects[k];
    memmove(cache->objects + k, cache->objects + k + 1,
            (cache->count - k - 1) * sizeof(cache->objects[0]));
    cache->objects[cache->count - 1] = object;
}

static double run_mix(const struct mix *mix, struct test_random *random)
{
    struct cache *cache = calloc(1, sizeof(*cache));
    uint64_t bytes = (uint64_t)mix->space_mib << 20;
    double sum = 0, worst = 1;
    ck_assert_int_eq(tierce__space_create(&cache->space, bytes), 0);
    for (uint32_t step = 0; step < STEPS; step++) {
        uint64_t size = mix->size(random, step), offset;
        if (cache->count == LIVE_MAX)
            evict_oldest(cache);
        while (tierce__space_take(cache->space, &offset, size) == TIERCE_E_FULL)
            evict_oldest(cache);
        cache->objects[cache->count++] = (struct object){offset, size};
        if (step % 3 == 0)
            renew_one(cache, random);
        if (step < STEPS / 4)
            continue;
        double full = (double)tierce__space_used(cache->space) / (double)bytes;
        sum += full;
        worst = full < worst ? full : worst;
    }
    printf("space mix %-14s full %.1f %% on average, %.1f %% at worst (%s)\n", mix->name,
           100 * sum / (STEPS - STEPS / 4), 100 * worst, mix->about);
    while (cache->count > 0)
        evict_oldest(cache);
    tierce__space_destroy(cache->space);
    free(cache);
    return sum / (STEPS - STEPS / 4);
}

static const struct mix mixes[] = {
    {"one_size", "1 MiB chunks in 1 GiB", one_size, 1024, 0.99},
    {"with_tails", "a quarter of the chunks is a tail of 1 to 15 sixteenths", with_tails, 1024,
     0.80},
    {"two_models", "1 and 5 MiB, half and half", two_models, 1024, 0.75},
    {"model_changes", "1 MiB and 5 MiB in turns of 8000", model_changes, 1024, 0.75},
    {"codec_stops", "96 KiB chunks, then 132 KiB for 15 times the space", codec_stops, 256, 0.90},
    {"any_size", "4 KiB to 4 MiB, every power of two as often", any_size, 256, 0.70},
};

START_TEST(a_cache_of_mixed_sizes_stays_full)
{
    struct test_random random = test_random_start("space mixes");
    double full = run_mix(&mixes[_i], &random);
    ck_assert_double_ge(full, mixes[_i].floor);
}
END_TEST

CHECK_MAIN("prop_space", .seconds = 50, .tests = {a_space_does_what_a_map_of_pages_does},
           .loops = {
               {a_cache_of_mixed_sizes_stays_full, 0, (int)(sizeof(mixes) / sizeof(mixes[0]))}})
