/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/load/load_private.h"

#include <errno.h>

#include "base/assert.h"
#include "base/clock.h"
#include "engine/device/devices.h"
#include "engine/view.h"

int tierce__load_device_begin(struct tierce_load *load, const struct tierce_transfer_opts *opts)
{
    struct tierce__open_device *device;
    struct tierce__pinnings *memory = load->lease->memory;
    struct tierce__transit_what what = {.paged = opts->paged,
                                        .stream = tierce__transfer_stream(opts),
                                        .row_count = load->lease->count,
                                        .event_max = load->view->part.layer_count};
    tierce__transits_reap(&load->engine->transits);
    load->on_device = true;
    load->timeout_ms = opts->timeout_ms > 0 ? opts->timeout_ms : load->engine->settings.load_ms;
    if (load->lease->count == 0)
        return 0;
    TIERCE_DASSERT(memory != NULL);
    int rc = tierce__pinnings_get(memory, opts->paged, &device);
    if (rc == 0)
        return tierce__transit_create(&load->transit, device, &what);
    if (rc != -EAGAIN && rc != TIERCE_E_DOWN)
        return rc;
    tierce__load_fail(load);
    return 0;
}

/* ---- copies ---- */

/* The verdicts of copies that have ended; row r was chunk first + r. */
static void learn(struct tierce_load *load, size_t first)
{
    struct tierce__transit *transit = load->transit;
    tierce__transit_settle(transit, load->engine->copiers);
    for (size_t row = 0; row < transit->row_count; row++) {
        if (transit->bad[row] == 0)
            continue;
        TIERCE_DASSERT(first + row < load->lease->count);
        transit->bad[row] = 0;
        if (load->scatter.moved[first + row].failed)
            continue;
        load->scatter.moved[first + row].any_bad = true;
        load->ops->spoil(load->lease, first + row);
    }
}

/* Whether all copies have ended. */
static bool wait_copies(struct tierce_load *load)
{
    return tierce__transit_wait(load->transit, tierce__deadline_in_ms(load->timeout_ms)) == 0;
}

static int enqueue(struct tierce_load *load, size_t count)
{
    int rc = tierce__transit_scatter(load->transit, count);
    if (rc < 0)
        tierce__load_fail(load);
    return rc == TIERCE_E_UNSUPPORTED ? rc : 0; /* other failures are misses */
}

bool tierce__load_device_look(struct tierce_load *load, size_t i)
{
    const struct tierce__open_device *device = load->transit->device;
    uint64_t bytes;
    if (load->scatter.moved[i].header_good)
        return true;
    uint8_t *header = tierce__scatter_header(&load->scatter, i, &bytes);
    int rc = -ENOMEM;
    if (header != NULL)
        rc = device->ops->files->look(device->device, header, load->lease->leased[i].object,
                                      (size_t)bytes, tierce__deadline_in_ms(load->timeout_ms));
    return rc == 0;
}

/* Moves all layers of one chunk, which is in memory. */
static int pass_chunk(struct tierce_load *load, size_t i, bool *is_over)
{
    struct tierce__transit *transit = load->transit;
    int rc = 0;
    for (uint32_t layer = 0; layer < load->view->part.layer_count && rc == 0; layer++) {
        if (!tierce__load_is_ready(load, i, layer))
            break;
        tierce__scatter_row(&load->scatter, &transit->rows[0], i, layer);
        rc = enqueue(load, 1);
    }
    *is_over = wait_copies(load);
    if (*is_over && transit->failed == 0)
        learn(load, i);
    else
        tierce__scatter_fail(&load->scatter, i);
    if (tierce__load_is_late(load))
        tierce__scatter_fail(&load->scatter, i);
    return rc;
}

/* Chunk by chunk, as load_through does; a chunk's memory is returned only when the copies from it
 * have ended. After a failure, all remaining chunks fail. */
static int pass_chunks(struct tierce_load *load)
{
    bool is_over = true;
    int rc = 0;
    TIERCE_DASSERT(!tierce__scatter_overlaps(&load->scatter));
    for (size_t i = 0; i < load->lease->count; i++) {
        if (!is_over || load->transit->failed < 0 || !load->ops->take(load->lease, i)) {
            tierce__scatter_fail(&load->scatter, i);
            continue;
        }
        rc = pass_chunk(load, i, &is_over);
        if (is_over)
            load->ops->give_back(load->lease, i);
    }
    return rc;
}

/* Moves the chunks that are read into the memory of the device, before any others: in separate
 * copies, all layers of a chunk together. */
static int pass_direct_chunks(struct tierce_load *load)
{
    bool is_over = true, is_possible = !tierce__scatter_overlaps(&load->scatter);
    int rc = 0;
    for (size_t i = 0; i < load->lease->count && rc == 0 && is_over; i++) {
        if (!load->lease->leased[i].on_device || load->transit->failed < 0)
            continue;
        load->scatter.moved[i].passed = true;
        if (is_possible)
            rc = pass_chunk(load, i, &is_over);
        else
            tierce__scatter_fail(&load->scatter, i);
    }
    if (!is_over) { /* nothing more is enqueued behind late copies */
        load->transit->failed = TIERCE_E_DEADLINE;
        tierce__load_fail(load);
    }
    return rc;
}

static int copy_layer(struct tierce_load *load, uint32_t layer)
{
    size_t wanted = 0;
    load->ops->ahead(load->lease, load->view->part.first_layer + layer);
    for (size_t i = 0; i < load->lease->count; i++) {
        load->transit->rows[i] = (struct tierce__device_row){.layer = layer};
        if (load->scatter.moved[i].passed)
            continue;
        wanted += tierce__load_is_ready(load, i, layer);
        tierce__scatter_row(&load->scatter, &load->transit->rows[i], i, layer);
    }
    return wanted > 0 ? enqueue(load, load->lease->count) : 0;
}

int tierce__load_device_layer(struct tierce_load *load, uint32_t layer)
{
    TIERCE_DASSERT(load->on_device);
    if (load->transit == NULL || load->transit->failed < 0)
        return 0;
    if (load->lease->is_too_large)
        return layer == 0 ? pass_chunks(load) : 0;
    int rc = layer == 0 ? pass_direct_chunks(load) : 0;
    return rc < 0 || load->transit->failed < 0 ? rc : copy_layer(load, layer);
}

int tierce__load_device_rotate(struct tierce_load *load, const struct tierce__device_keys *keys)
{
    TIERCE_DASSERT(load->on_device);
    if (load->transit == NULL || load->transit->failed < 0)
        return TIERCE_E_DOWN;
    return tierce__transit_rotate(load->transit, keys);
}

int tierce__load_device_distances(struct tierce_load *load,
                                  const struct tierce__device_distances *keys)
{
    TIERCE_DASSERT(load->on_device);
    if (load->transit == NULL || load->transit->failed < 0)
        return TIERCE_E_DOWN;
    return tierce__transit_distances(load->transit, keys);
}

/* ---- the end ---- */

bool tierce__load_device_end(struct tierce_load *load)
{
    struct tierce__transit *transit = load->transit;
    bool is_over = wait_copies(load), is_good = is_over && transit->failed == 0;
    if (is_good)
        learn(load, 0);
    if (!is_good || tierce__load_is_late(load))
        tierce__load_fail(load);
    if (is_over) { /* before the lease ends, because the end may release the device */
        tierce__transit_free(transit);
        load->transit = NULL;
    }
    return is_over;
}

static void drop_kept(void *arg)
{
    struct tierce_load *load = arg;
    load->ops->end(load->lease, NULL);
    tierce__load_free(load);
}

void tierce__load_device_keep(struct tierce_load *load)
{
    struct tierce__transit *transit = load->transit;
    load->transit = NULL; /* it frees itself */
    tierce__transits_keep(&load->engine->transits, transit, drop_kept, load);
}
