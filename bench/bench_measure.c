/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "store/remote/connector.h"

#define HUGE_PAGE   (2u << 20)
#define ROUNDS_MIN  5u
#define ROUNDS_MAX  20000u
#define SAMPLES_MAX (ROUNDS_MAX * TIERCE__BENCH_SIDES_MAX)

int tierce__bench_connector(const struct tierce__bench *bench, struct tierce__connector **out,
                            const char *url, struct tierce__pool *pool,
                            struct tierce__namespaces *namespaces)
{
    struct tierce__connector_opts opts = {
        .size = sizeof(opts), .pool = pool, .namespaces = namespaces};
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    int rc = tierce__connector_open(out, url, &opts, why);
    return rc == 0 ? 0 : tierce__bench_fail(bench, "%s", why);
}

static int compare_doubles(const void *a, const void *b)
{
    const double *x = (const double *)a, *y = (const double *)b;
    return (*x > *y) - (*x < *y);
}

static double median_of(double *samples, size_t count)
{
    qsort(samples, count, sizeof(*samples), compare_doubles);
    return count % 2 != 0 ? samples[count / 2] : (samples[count / 2 - 1] + samples[count / 2]) / 2;
}

/* One round; `samples` NULL: it does not count. */
static int run_round(struct tierce__bench_side *sides, size_t count, double *samples, size_t round)
{
    for (size_t i = 0; i < count; i++) {
        int64_t ns = sides[i].run(sides[i].arg);
        if (ns < 0)
            return (int)ns;
        if (samples != NULL)
            samples[i * ROUNDS_MAX + round] = (double)ns;
    }
    return 0;
}

int tierce__bench_alternate(struct tierce__bench_side *sides, size_t count, double seconds)
{
    TIERCE_ASSERT(count <= TIERCE__BENCH_SIDES_MAX);
    double *samples = tierce__calloc(SAMPLES_MAX, sizeof(*samples));
    if (samples == NULL)
        return -ENOMEM;
    int rc = run_round(sides, count, NULL, 0);
    uint64_t end_ns = tierce__now_ns() + (uint64_t)(seconds * 1e9);
    size_t rounds = 0;
    while (rc == 0 && rounds < ROUNDS_MAX && (rounds < ROUNDS_MIN || tierce__now_ns() < end_ns)) {
        rc = run_round(sides, count, samples, rounds);
        rounds++;
    }
    for (size_t i = 0; rc == 0 && i < count; i++) {
        double *own = samples + i * ROUNDS_MAX;
        sides[i].median_ns = median_of(own, rounds); /* sorts */
        sides[i].min_ns = own[0];
        sides[i].max_ns = own[rounds - 1];
    }
    tierce__free(samples);
    return rc;
}

uint8_t *tierce__bench_map(uint64_t bytes)
{
    size_t whole = ((size_t)bytes + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
    void *map =
        mmap(NULL, whole + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    uint8_t *memory = (uint8_t *)map;
    size_t before = (size_t)(-(uintptr_t)memory & (HUGE_PAGE - 1));
    if (before > 0)
        (void)munmap(memory, before);
    memory += before;
    (void)munmap(memory + whole, HUGE_PAGE - before);
    /* Advice: it works on small pages too. */
    (void)madvise(memory, whole, MADV_HUGEPAGE);
    for (size_t at = 0; at < whole; at += 4096)
        memory[at] = 0;
    return memory;
}

void tierce__bench_unmap(uint8_t *memory, uint64_t bytes)
{
    if (memory != NULL)
        (void)munmap(memory, ((size_t)bytes + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1));
}

void tierce__bench_fill(void *memory, uint64_t bytes, uint64_t stream)
{
    uint64_t *words = (uint64_t *)memory;
    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = tierce__bench_random(stream, i);
}

bool tierce__bench_filled(const void *memory, uint64_t bytes, uint64_t stream)
{
    const uint64_t *words = (const uint64_t *)memory;
    for (uint64_t i = 0; i < bytes / 8; i++) {
        if (words[i] != tierce__bench_random(stream, i))
            return false;
    }
    return true;
}

int tierce__bench_engine(struct tierce_engine **out, const struct tierce__bench *bench,
                         const struct tierce__bench_param *params, size_t count)
{
    char why[TIERCE_CONFIG_ERROR_BYTES] = "no memory";
    struct tierce_config *config = NULL;
    int rc = tierce_config_create(&config);
    if (rc == 0) /* a benchmark clears tiers, which is logged */
        rc = tierce_config_set(config, "log.level", "error", why);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = tierce_config_set(config, params[i].name, params[i].value, why);
    if (rc == 0)
        rc = tierce_engine_open(out, config, why);
    tierce_config_destroy(config);
    return rc == 0 ? 0 : tierce__bench_fail(bench, "%s", why);
}
