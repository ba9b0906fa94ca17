/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/pinned.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

void tierce__pinned_init(struct tierce__pinned *pinned)
{
    *pinned = (struct tierce__pinned){0};
    tierce__lock_init(&pinned->lock, TIERCE__LOCK_DEVICE);
}

void tierce__pinned_fini(struct tierce__pinned *pinned)
{
    TIERCE_DASSERT(pinned->count <= pinned->room);
    tierce__lock_fini(&pinned->lock);
    tierce__free(pinned->slices);
}

/* The first slice that ends after the address: it holds the address or begins after it. */
static size_t find(const struct tierce__pinned *pinned, uintptr_t address)
{
    size_t from = 0, to = pinned->count;
    tierce__lock_assert_held(&pinned->lock);
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (pinned->slices[middle].to > address)
            to = middle;
        else
            from = middle + 1;
    }
    TIERCE_DASSERT(from == pinned->count || pinned->slices[from].to > address);
    return from;
}

static int grow(struct tierce__pinned *pinned)
{
    TIERCE_DASSERT(pinned->count == pinned->room);
    return TIERCE__GROW(pinned->slices, pinned->room, pinned->count + 1, 16);
}

static int add(struct tierce__pinned *pinned, struct tierce__pinned_slice slice)
{
    size_t at = find(pinned, slice.from);
    if (at < pinned->count && pinned->slices[at].from < slice.to)
        return TIERCE_E_ARGUMENT;
    int rc = pinned->count == pinned->room ? grow(pinned) : 0;
    if (rc < 0)
        return rc;
    memmove(&pinned->slices[at + 1], &pinned->slices[at],
            (pinned->count - at) * sizeof(*pinned->slices));
    pinned->slices[at] = slice;
    pinned->count++;
    TIERCE_DASSERT(at == 0 || pinned->slices[at - 1].to <= slice.from);
    return 0;
}

int tierce__pinned_add(struct tierce__pinned *pinned, const void *memory, size_t bytes)
{
    uintptr_t from = (uintptr_t)memory;
    if (memory == NULL || bytes == 0 || bytes > UINTPTR_MAX - from)
        return TIERCE_E_ARGUMENT;
    tierce__lock_take(&pinned->lock);
    int rc = add(pinned, (struct tierce__pinned_slice){from, from + bytes});
    tierce__lock_drop(&pinned->lock);
    return rc;
}

/* The slice with these bounds, or `count`. */
static size_t find_slice(const struct tierce__pinned *pinned, uintptr_t from, size_t bytes)
{
    size_t at = find(pinned, from);
    bool is_it = at < pinned->count && pinned->slices[at].from == from &&
                 pinned->slices[at].to - from == bytes;
    return is_it ? at : pinned->count;
}

bool tierce__pinned_has(struct tierce__pinned *pinned, const void *memory, size_t bytes)
{
    tierce__lock_take(&pinned->lock);
    bool is_there = find_slice(pinned, (uintptr_t)memory, bytes) < pinned->count;
    tierce__lock_drop(&pinned->lock);
    return is_there;
}

bool tierce__pinned_remove(struct tierce__pinned *pinned, const void *memory, size_t bytes)
{
    tierce__lock_take(&pinned->lock);
    size_t at = find_slice(pinned, (uintptr_t)memory, bytes);
    bool is_there = at < pinned->count;
    if (is_there) {
        pinned->count--;
        memmove(&pinned->slices[at], &pinned->slices[at + 1],
                (pinned->count - at) * sizeof(*pinned->slices));
    }
    tierce__lock_drop(&pinned->lock);
    return is_there;
}

bool tierce__pinned_last(struct tierce__pinned *pinned, struct tierce__pinned_slice *out)
{
    tierce__lock_take(&pinned->lock);
    bool has_any = pinned->count > 0;
    if (has_any)
        *out = pinned->slices[pinned->count - 1];
    tierce__lock_drop(&pinned->lock);
    return has_any;
}

static size_t run(const struct tierce__pinned *pinned, uintptr_t address)
{
    size_t at = find(pinned, address);
    if (at == pinned->count || pinned->slices[at].from > address)
        return 0;
    return pinned->slices[at].to - address;
}

bool tierce__pinned_covers(struct tierce__pinned *pinned, const void *memory, size_t bytes)
{
    uintptr_t at = (uintptr_t)memory;
    size_t left = bytes, step = 1;
    tierce__lock_take(&pinned->lock);
    while (left > 0 && step > 0) {
        step = run(pinned, at);
        step = step < left ? step : left;
        at += step;
        left -= step;
    }
    tierce__lock_drop(&pinned->lock);
    TIERCE_DASSERT(left <= bytes);
    return left == 0;
}
