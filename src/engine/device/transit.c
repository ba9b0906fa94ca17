/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/device/transit.h"

#include <errno.h>
#include <time.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "base/threads/threads.h"
#include "engine/device/devices.h"

int tierce__transit_create(struct tierce__transit **out, struct tierce__open_device *device,
                           const struct tierce__transit_what *what)
{
    TIERCE_DASSERT(what->row_count > 0 && what->event_max > 0);
    struct tierce__transit *transit = tierce__calloc(1, sizeof(*transit));
    if (transit == NULL)
        return -ENOMEM;
    *transit = (struct tierce__transit){.device = device,
                                        .paged = what->paged,
                                        .stream = what->stream,
                                        .row_count = what->row_count,
                                        .event_max = what->event_max};
    tierce__list_init(&transit->node);
    transit->rows = tierce__calloc(what->row_count, sizeof(*transit->rows));
    transit->bad = tierce__calloc(what->row_count, sizeof(*transit->bad));
    transit->events = tierce__calloc(what->event_max, sizeof(struct tierce__device_event *));
    transit->rows_of = tierce__calloc(what->event_max, sizeof(*transit->rows_of));
    if (transit->rows == NULL || transit->bad == NULL || transit->events == NULL ||
        transit->rows_of == NULL) {
        tierce__transit_free(transit);
        return -ENOMEM;
    }
    *out = transit;
    return 0;
}

static void forget_events(struct tierce__transit *transit)
{
    const struct tierce__open_device *device = transit->device;
    TIERCE_DASSERT(transit->event_count <= transit->event_max);
    while (transit->event_count > 0)
        device->ops->forget(device->device, transit->events[--transit->event_count]);
    transit->settled = 0;
}

void tierce__transit_free(struct tierce__transit *transit)
{
    if (transit == NULL)
        return;
    TIERCE_ASSERT(!transit->lost);
    forget_events(transit);
    tierce__free(transit->rows);
    tierce__free(transit->bad);
    tierce__free(transit->events);
    tierce__free(transit->rows_of);
    tierce__free(transit);
}

/* ---- copies ---- */

/* Notes the first error; after -EIO, copies without an event may be in progress. */
static int fail(struct tierce__transit *transit, int rc)
{
    TIERCE_DASSERT(rc < 0);
    transit->lost |= rc == -EIO;
    if (transit->failed == 0)
        transit->failed = rc;
    return rc;
}

static int enqueue(struct tierce__transit *transit, size_t count,
                   int (*start)(struct tierce__device *, struct tierce__device_event **,
                                const struct tierce__device_copy *))
{
    struct tierce__device_copy copy = {
        .paged = transit->paged, .rows = transit->rows, .count = count, .stream = transit->stream};
    size_t i = transit->event_count;
    TIERCE_DASSERT(count > 0 && count <= transit->row_count);
    TIERCE_ASSERT(i < transit->event_max);
    if (transit->failed < 0)
        return transit->failed;
    transit->events[i] = NULL;
    int rc = start(transit->device->device, &transit->events[i], &copy);
    if (rc == 0 || (rc == -ECANCELED && transit->events[i] != NULL)) {
        transit->rows_of[i] = rc == 0 ? count : 0; /* nothing of a refused copy is settled */
        transit->event_count++;
    }
    return rc < 0 ? fail(transit, rc) : 0;
}

int tierce__transit_gather(struct tierce__transit *transit, size_t count)
{
    return enqueue(transit, count, transit->device->ops->gather);
}

int tierce__transit_scatter(struct tierce__transit *transit, size_t count)
{
    const struct tierce__open_device *device = transit->device;
    size_t before = transit->event_count;
    int rc = enqueue(transit, count, device->ops->scatter);
    if (transit->event_count == before)
        return rc;
    /* The copy has its event, so its end will be known. */
    int waits = device->ops->stream_wait(device->device, transit->events[before], transit->stream);
    if (waits < 0 && transit->failed == 0)
        transit->failed = waits;
    return rc < 0 ? rc : waits;
}

/* Whether the memory at all of these addresses is the device's. TIERCE_E_ARGUMENT: it is not. */
static int require_own(const struct tierce__transit *transit, const void *const *addresses,
                       size_t count)
{
    const struct tierce__open_device *device = transit->device;
    int rc = 1;
    if (transit->failed < 0)
        return transit->failed;
    for (size_t i = 0; i < count && rc > 0; i++)
        rc = device->ops->has(device->device, addresses[i]);
    if (rc > 0)
        return 0;
    return rc == 0 ? TIERCE_E_ARGUMENT : rc == -EIO ? TIERCE_E_DOWN : rc;
}

int tierce__transit_rotate(struct tierce__transit *transit, const struct tierce__device_keys *keys)
{
    const struct tierce__open_device *device = transit->device;
    struct tierce__device_keys mine = *keys;
    mine.stream = transit->stream;
    int rc = require_own(transit, (const void *const[]){mine.rows.at}, 1);
    if (rc < 0) /* no key was rotated */
        return rc;
    rc = device->ops->rotate(device->device, &mine);
    /* The keys may be in the memory of the load, and their bytes are unknown. */
    return rc == -EIO || rc == -ECANCELED ? fail(transit, rc) : rc;
}

int tierce__transit_distances(struct tierce__transit *transit,
                              const struct tierce__device_distances *keys)
{
    const struct tierce__open_device *device = transit->device;
    struct tierce__device_distances mine = *keys;
    mine.stream = transit->stream;
    int rc = require_own(transit, (const void *const[]){mine.a.at, mine.b.at, mine.to},
                         mine.tokens > 0 ? 3 : 0);
    if (rc < 0)
        return rc;
    rc = device->ops->distances(device->device, &mine);
    return rc == -EIO ? fail(transit, rc) : rc;
}

/* ---- the end ---- */

static void pause_shortly(void)
{
    const struct timespec pause = {.tv_nsec = 200000};
    (void)nanosleep(&pause, NULL); /* a driver has no wait with a deadline */
}

/* The device has failed: the copies have ended when none is in progress on it. */
static int wait_idle(struct tierce__transit *transit, uint64_t deadline_ns)
{
    const struct tierce__open_device *device = transit->device;
    TIERCE_DASSERT(transit->failed < 0);
    for (;;) {
        int rc = device->ops->idle(device->device);
        if (rc == 0)
            transit->lost = false;
        if (rc != -EAGAIN)
            return rc;
        if (tierce__now_ns() >= deadline_ns)
            return TIERCE_E_DEADLINE;
        pause_shortly();
    }
}

int tierce__transit_wait(struct tierce__transit *transit, uint64_t deadline_ns)
{
    const struct tierce__open_device *device = transit->device;
    int rc = transit->lost ? -EIO : 0;
    /* The last event completes last, so the other events have completed too. */
    for (size_t i = transit->event_count; i > 0 && rc == 0; i--)
        rc = device->ops->wait(device->device, transit->events[i - 1], deadline_ns);
    if (rc != -EIO)
        return rc;
    transit->lost = true;
    transit->failed = -EIO;
    return wait_idle(transit, deadline_ns);
}

static void settle_row(struct tierce__transit *transit, size_t copy, size_t row)
{
    const struct tierce__open_device *device = transit->device;
    int64_t bad = device->ops->settle(device->device, transit->events[copy], row, row + 1);
    TIERCE_ASSERT(bad >= 0); /* the event has completed */
    if (bad > 0)
        __atomic_store_n(&transit->bad[row], 1, __ATOMIC_RELAXED);
}

/* Rows of the first copy that is not settled. */
static void settle_rows(void *arg, size_t from, size_t to)
{
    struct tierce__transit *transit = arg;
    for (size_t row = from; row < to; row++)
        settle_row(transit, transit->settled, row);
}

/* Part of the copies. Several threads may find cells of the same row, in different layers. */
static void settle_copies(void *arg, size_t from, size_t to)
{
    struct tierce__transit *transit = arg;
    TIERCE_DASSERT(from <= to && transit->settled + to <= transit->event_count);
    for (size_t i = transit->settled + from; i < transit->settled + to; i++) {
        for (size_t row = 0; row < transit->rows_of[i]; row++)
            settle_row(transit, i, row);
    }
}

bool tierce__transit_settle_next(struct tierce__transit *transit, struct tierce__workers *workers,
                                 uint64_t deadline_ns)
{
    const struct tierce__open_device *device = transit->device;
    size_t next = transit->settled;
    if (transit->failed < 0 || next == transit->event_count ||
        device->ops->wait(device->device, transit->events[next], deadline_ns) < 0)
        return false;
    tierce__workers_share(workers, transit->rows_of[next], settle_rows, transit);
    transit->settled++;
    return true;
}

void tierce__transit_settle(struct tierce__transit *transit, struct tierce__workers *workers)
{
    TIERCE_DASSERT(!transit->lost);
    tierce__workers_share(workers, transit->event_count - transit->settled, settle_copies, transit);
    forget_events(transit);
}

/* ---- kept transits ---- */

void tierce__transits_init(struct tierce__transits *transits)
{
    tierce__lock_init(&transits->lock, TIERCE__LOCK_TRANSITS);
    tierce__list_init(&transits->list);
}

void tierce__transits_fini(struct tierce__transits *transits)
{
    TIERCE_ASSERT(tierce__list_empty(&transits->list));
    tierce__lock_fini(&transits->lock);
}

void tierce__transits_keep(struct tierce__transits *transits, struct tierce__transit *transit,
                           tierce__transit_over_fn *over, void *arg)
{
    TIERCE_DASSERT(over != NULL && tierce__list_empty(&transit->node));
    transit->over = over;
    transit->arg = arg;
    tierce__log_repeated(
        TIERCE_LOG_WARN, "device_copies_kept",
        "device=%s why=\"copies have not ended in time, or the device has "
        "failed\" consequence=\"their chunks' memory stays in use until they end\"",
        transit->device->ops->name);
    tierce__lock_take(&transits->lock);
    tierce__list_push_back(&transits->list, &transit->node);
    tierce__lock_drop(&transits->lock);
}

/* Removes the first transit that has ended from the list, or returns NULL; *may_end: another
 * transit may end later. The driver is queried under the lock, and does not wait. */
static struct tierce__transit *take_over(struct tierce__transits *transits, bool *may_end)
{
    struct tierce__transit *found = NULL;
    *may_end = false;
    tierce__lock_take(&transits->lock);
    TIERCE__LIST_FOR_EACH (it, &transits->list) {
        struct tierce__transit *transit = TIERCE__CONTAINER_OF(it, struct tierce__transit, node);
        TIERCE_DASSERT(transit->over != NULL);
        int rc = tierce__transit_wait(transit, 0);
        *may_end |= rc == TIERCE_E_DEADLINE;
        if (rc == 0) {
            found = transit;
            break;
        }
    }
    if (found != NULL)
        tierce__list_remove(&found->node);
    tierce__lock_drop(&transits->lock);
    return found;
}

/* Returns whether the remaining transits may end later. */
static bool reap(struct tierce__transits *transits)
{
    struct tierce__transit *transit;
    bool may_end;
    while ((transit = take_over(transits, &may_end)) != NULL) {
        tierce__transit_over_fn *over = transit->over;
        void *arg = transit->arg;
        tierce__transit_free(transit);
        over(arg);
    }
    return may_end;
}

void tierce__transits_reap(struct tierce__transits *transits)
{
    (void)reap(transits);
}

bool tierce__transits_empty(struct tierce__transits *transits)
{
    tierce__lock_take(&transits->lock);
    bool empty = tierce__list_empty(&transits->list);
    tierce__lock_drop(&transits->lock);
    return empty;
}

bool tierce__transits_end(struct tierce__transits *transits, uint64_t deadline_ns)
{
    while (reap(transits) && tierce__now_ns() < deadline_ns)
        pause_shortly();
    return tierce__transits_empty(transits);
}
