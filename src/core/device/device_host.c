/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the host. Copies are complete, with sums and verdicts, when the call returns, so that
 * every event is complete when it is created.
 */
#include "core/device/device_private.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "core/blend/select.h"
#include "core/codec/codec.h"

#define HOST_MAGIC  0x54684456u
#define EVENT_MAGIC 0x54684576u

struct host {
    struct tierce__device base;
    uint32_t magic;
};

struct host_event {
    uint32_t magic;
    size_t count;
    uint32_t bad[]; /* [count] cells of each row; a row has at most INT_MAX */
};

static struct host *host_of(struct tierce__device *device)
{
    struct host *host = (struct host *)device;
    TIERCE_CHECK_MAGIC(host, HOST_MAGIC);
    return host;
}

static struct host_event *event_of(struct tierce__device_event *event)
{
    struct host_event *mine = (struct host_event *)event;
    TIERCE_CHECK_MAGIC(mine, EVENT_MAGIC);
    return mine;
}

static int open_host(struct tierce__device **out, const void *address)
{
    if (address == NULL)
        return TIERCE_E_ARGUMENT;
    struct host *host = tierce__calloc(1, sizeof(*host));
    if (host == NULL)
        return -ENOMEM;
    *host = (struct host){.base.ops = &tierce__device_host_ops, .magic = HOST_MAGIC};
    *out = &host->base;
    return 0;
}

static int has_host(struct tierce__device *device, const void *address)
{
    (void)host_of(device);
    return address != NULL;
}

static int numa_node_host(struct tierce__device *device)
{
    (void)host_of(device);
    return -1;
}

static void tune_host(struct tierce__device *device)
{
    (void)host_of(device);
}

static bool close_host(struct tierce__device *device, uint64_t deadline_ns)
{
    struct host *host = host_of(device);
    (void)deadline_ns;
    host->magic = 0;
    tierce__free(host);
    return true;
}

/* ---- pinning: the host's own memory needs none ----------------------------------------------- */

static int allow_unpinned_host(struct tierce__device *device)
{
    (void)host_of(device);
    return 0;
}

static int pin_host(struct tierce__device *device, void *memory, size_t bytes)
{
    (void)host_of(device);
    return memory != NULL && bytes > 0 ? 0 : TIERCE_E_ARGUMENT;
}

static bool is_pinned_host(struct tierce__device *device, const void *memory, size_t bytes)
{
    (void)host_of(device), (void)bytes;
    return memory != NULL;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static struct host_event *create_event(size_t count)
{
    struct host_event *event = NULL;
    if (count <= (SIZE_MAX - sizeof(*event)) / sizeof(event->bad[0]))
        event = tierce__calloc(1, sizeof(*event) + count * sizeof(event->bad[0]));
    if (event == NULL)
        return NULL;
    event->magic = EVENT_MAGIC;
    event->count = count;
    return event;
}

/* Hints for the kernels: the address that the next row reads first, to prefetch it. */
static struct tierce__row row_hints(const struct tierce__device_copy *copy, size_t i,
                                    enum tierce__direction direction)
{
    struct tierce__row hints = {0};
    TIERCE_DASSERT(i < copy->count);
    if (i + 1 < copy->count && copy->rows[i + 1].cells.count > 0)
        hints.next = direction == TIERCE__DIRECTION_GATHER
                         ? (const void *)tierce__row_block(copy, i + 1, 0)
                         : copy->rows[i + 1].cells.bytes;
    return hints;
}

static void copy_rows(const struct tierce__device_copy *copy, struct host_event *event,
                      enum tierce__direction direction)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < copy->count; i++)
        bytes += tierce__row_bytes(copy, i);
    for (size_t i = 0; i < copy->count; i++) {
        const struct tierce__device_row *row = &copy->rows[i];
        struct tierce__row hints = row_hints(copy, i, direction);
        hints.bytes = bytes;
        int rc = direction == TIERCE__DIRECTION_GATHER
                     ? tierce__paged_gather(copy->paged, row->layer, row->ids, &row->cells, &hints)
                     : tierce__paged_scatter(copy->paged, row->layer, row->ids, &row->cells,
                                             row->good, &hints);
        TIERCE_ASSERT(rc >= 0); /* checked before */
        TIERCE_DASSERT((size_t)rc <= row->cells.count);
        event->bad[i] = (uint32_t)rc;
    }
    tierce__paged_row_end();
}

static int copy_host(struct tierce__device *device, struct tierce__device_event **out,
                     const struct tierce__device_copy *copy, enum tierce__direction direction)
{
    (void)host_of(device);
    int rc = tierce__device_check(copy, direction);
    if (rc < 0)
        return rc;
    struct host_event *event = create_event(copy->count);
    if (event == NULL)
        return -ENOMEM;
    copy_rows(copy, event, direction);
    *out = (struct tierce__device_event *)event;
    return 0;
}

static int gather_host(struct tierce__device *device, struct tierce__device_event **event,
                       const struct tierce__device_copy *copy)
{
    return copy_host(device, event, copy, TIERCE__DIRECTION_GATHER);
}

static int scatter_host(struct tierce__device *device, struct tierce__device_event **event,
                        const struct tierce__device_copy *copy)
{
    return copy_host(device, event, copy, TIERCE__DIRECTION_SCATTER);
}

static int idle_host(struct tierce__device *device)
{
    (void)host_of(device);
    return 0;
}

static int64_t settle_host(struct tierce__device *device, struct tierce__device_event *event,
                           size_t from, size_t to)
{
    const struct host_event *mine = event_of(event);
    (void)host_of(device);
    TIERCE_ASSERT(from <= to && to <= mine->count);
    int64_t bad = 0;
    for (size_t i = from; i < to; i++)
        bad += mine->bad[i];
    return bad;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Everything is complete when the call returns. */
static int rotate_host(struct tierce__device *device, const struct tierce__device_keys *keys)
{
    (void)host_of(device);
    int rc = tierce__device_check_keys(keys);
    if (rc == 0)
        tierce__rotate(keys->rotation, keys->dtype, &keys->rows, &keys->rows, keys->tokens,
                       keys->heads);
    return rc;
}

static int distances_host(struct tierce__device *device,
                          const struct tierce__device_distances *keys)
{
    (void)host_of(device);
    int rc = tierce__device_check_distances(keys);
    if (rc == 0)
        tierce__key_distances(keys->to, keys->dtype, &keys->a, &keys->b, keys->tokens, keys->heads,
                              keys->row_elements);
    return rc;
}

static int decode_run(const struct tierce__device_run *run)
{
    if (!run->is_plain)
        return tierce__codec_find("lossless")->decode(run->to, run->bytes, run->from, run->coded);
    if (run->bytes > 0)
        memcpy(run->to, run->from, run->bytes);
    return 0;
}

static int decode_host(struct tierce__device *device, const struct tierce__device_run *runs,
                       size_t count, uint64_t deadline_ns)
{
    (void)host_of(device);
    int rc = tierce__device_check_runs(runs, count);
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = tierce__now_ns() < deadline_ns ? decode_run(&runs[i]) : TIERCE_E_DEADLINE;
    return rc;
}

static int record_host(struct tierce__device *device, struct tierce__device_event **out,
                       void *stream)
{
    (void)host_of(device), (void)stream;
    struct host_event *event = create_event(0);
    if (event == NULL)
        return -ENOMEM;
    *out = (struct tierce__device_event *)event;
    return 0;
}

static int stream_wait_host(struct tierce__device *device, const struct tierce__device_event *event,
                            void *stream)
{
    const struct host_event *mine = (const struct host_event *)event;
    (void)host_of(device), (void)stream;
    TIERCE_CHECK_MAGIC(mine, EVENT_MAGIC);
    return 0;
}

static int query_host(struct tierce__device *device, struct tierce__device_event *event)
{
    (void)host_of(device), (void)event_of(event);
    return 0;
}

static int wait_host(struct tierce__device *device, struct tierce__device_event *event,
                     uint64_t deadline_ns)
{
    (void)deadline_ns;
    return query_host(device, event);
}

static void forget_host(struct tierce__device *device, struct tierce__device_event *event)
{
    (void)host_of(device);
    if (event == NULL)
        return;
    struct host_event *mine = event_of(event);
    mine->magic = 0;
    tierce__free(mine);
}

const struct tierce__device_ops tierce__device_host_ops = {.name = "host",
                                                           .pins = false,
                                                           .open = open_host,
                                                           .has = has_host,
                                                           .numa_node = numa_node_host,
                                                           .tune = tune_host,
                                                           .close = close_host,
                                                           .allow_unpinned = allow_unpinned_host,
                                                           .pin = pin_host,
                                                           .unpin = pin_host,
                                                           .is_pinned = is_pinned_host,
                                                           .gather = gather_host,
                                                           .scatter = scatter_host,
                                                           .rotate = rotate_host,
                                                           .distances = distances_host,
                                                           .decode = decode_host,
                                                           .record = record_host,
                                                           .stream_wait = stream_wait_host,
                                                           .query = query_host,
                                                           .wait = wait_host,
                                                           .idle = idle_host,
                                                           .settle = settle_host,
                                                           .forget = forget_host};
