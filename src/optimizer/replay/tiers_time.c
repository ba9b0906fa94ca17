/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay/tiers_time.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>

#define FOREVER_NS ((uint64_t)INT64_MAX)

static uint64_t add_ns(uint64_t a, uint64_t b)
{
    TIERCE_ASSERT(b <= FOREVER_NS);
    return a < FOREVER_NS - b ? a + b : FOREVER_NS;
}

/* 0 bytes per second: takes no time. */
static uint64_t transfer_ns(uint64_t bytes, double bytes_per_s)
{
    TIERCE_DASSERT(bytes_per_s >= 0);
    double ns = bytes_per_s > 0 ? (double)bytes / bytes_per_s * 1e9 : 0;
    return ns >= 0x1p63 ? FOREVER_NS : (uint64_t)(ns + 0.5);
}

uint64_t tierce__tier_now_ns(int64_t first_us, int64_t time_us)
{
    uint64_t since_us = time_us > first_us ? (uint64_t)time_us - (uint64_t)first_us : 0;
    return since_us < FOREVER_NS / 1000 ? since_us * 1000 : FOREVER_NS;
}

/* ---- queues ---------------------------------------------------------------------------------- */

static uint64_t backlog_ns(const struct tierce__tier_queue *queue, uint64_t now_ns)
{
    return queue->free_ns > now_ns ? queue->free_ns - now_ns : 0;
}

/* Appends an operation to the queue. */
static void enqueue(struct tierce__tier_queue *queue, uint64_t now_ns, uint64_t ns)
{
    queue->free_ns = add_ns(add_ns(now_ns, backlog_ns(queue, now_ns)), ns);
}

uint64_t tierce__tier_queue_load(struct tierce__tier_queue *queue,
                                 const struct tierce__tier_spec *spec, uint64_t now_ns,
                                 uint64_t bytes, struct tierce__tier_result *result)
{
    uint64_t latency_ns = spec->latency_ns < FOREVER_NS ? spec->latency_ns : FOREVER_NS;
    uint64_t ns = add_ns(latency_ns, transfer_ns(bytes, spec->read_bytes_per_s));
    uint64_t wait_ns = backlog_ns(queue, now_ns);
    if (!(spec->write_bytes_per_s > 0))
        return ns;
    enqueue(queue, now_ns, ns);
    result->waits += wait_ns > 0;
    result->wait_s += (double)wait_ns / 1e9;
    return add_ns(wait_ns, ns);
}

void tierce__tier_queue_write(struct tierce__tier_queue *queue,
                              const struct tierce__tier_spec *spec, uint64_t now_ns, uint64_t bytes,
                              struct tierce__tier_result *result)
{
    if (!(spec->write_bytes_per_s > 0))
        return;
    enqueue(queue, now_ns, transfer_ns(bytes, spec->write_bytes_per_s));
    result->queue_s = (double)backlog_ns(queue, now_ns) / 1e9;
    if (result->queue_s > result->queue_max_s)
        result->queue_max_s = result->queue_s;
}

/* ---- the times of loads ---------------------------------------------------------------------- */

int tierce__load_times_add(struct tierce__load_times *times, uint64_t ns)
{
    if (TIERCE__GROW(times->ns, times->room, times->count + 1, 1024) < 0)
        return -ENOMEM;
    TIERCE_ASSERT(times->count < times->room);
    times->ns[times->count++] = ns;
    times->sorted = false;
    return 0;
}

static int compare_times(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

uint64_t tierce__load_times_at(struct tierce__load_times *times, double share)
{
    size_t count = times->count;
    TIERCE_ASSERT(share >= 0 && share <= 1);
    if (count == 0)
        return 0;
    if (!times->sorted)
        qsort(times->ns, count, sizeof(*times->ns), compare_times);
    times->sorted = true;
    double rank = share * (double)count;
    size_t at = rank > 1 ? (size_t)rank : 1; /* the at-th, or the one after it if between */
    at += (double)at < rank && at < count;
    return times->ns[(at < count ? at : count) - 1];
}

void tierce__load_times_clear(struct tierce__load_times *times)
{
    tierce__free(times->ns);
    *times = (struct tierce__load_times){0};
}
