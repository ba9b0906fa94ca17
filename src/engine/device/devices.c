/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/device/devices.h"

#include <errno.h>
#include <pthread.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/threads/lock.h"

/* Nothing is in progress when a device is closed, so it stops at once unless it has failed. */
#define CLOSE_MS 1000u

static struct tierce__lock lock; /* DEVICES */
static struct tierce__list devices;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void forget_devices(void)
{
    tierce__lock_init(&lock, TIERCE__LOCK_DEVICES);
    tierce__list_init(&devices);
}

static void init_devices(void)
{
    forget_devices();
    (void)pthread_atfork(NULL, NULL, forget_devices); /* can fail only for lack of memory */
}

/* Under the lock. *out: NULL if no open device has the address. Errors: as of `has`. */
static int find_device(struct tierce__open_device **out, const struct tierce__device_ops *ops,
                       const void *address)
{
    int has = 0;
    tierce__lock_assert_held(&lock);
    *out = NULL;
    TIERCE__LIST_FOR_EACH (it, &devices) {
        struct tierce__open_device *open =
            TIERCE__CONTAINER_OF(it, struct tierce__open_device, node);
        TIERCE_DASSERT(open->refs > 0);
        has = open->ops == ops ? ops->has(open->device, address) : 0;
        if (has > 0)
            *out = open;
        if (has != 0)
            break;
    }
    return has < 0 ? has : 0;
}

/* Under the lock. */
static int open_device(struct tierce__open_device **out, const struct tierce__device_ops *ops,
                       const void *address)
{
    tierce__lock_assert_held(&lock);
    struct tierce__open_device *open = tierce__calloc(1, sizeof(*open));
    if (open == NULL)
        return -ENOMEM;
    open->ops = ops;
    int rc = ops->open(&open->device, address);
    if (rc < 0) {
        tierce__free(open);
        return rc;
    }
    tierce__list_push_back(&devices, &open->node);
    *out = open;
    return 0;
}

int tierce__device_acquire(struct tierce__open_device **out, enum tierce_device kind,
                           const void *address)
{
    const struct tierce__device_ops *ops = tierce__device_at((size_t)kind);
    TIERCE_ASSERT(ops != NULL);
    pthread_once(&once, init_devices);
    tierce__lock_take(&lock);
    struct tierce__open_device *open;
    int rc = find_device(&open, ops, address);
    if (rc == 0 && open == NULL)
        rc = open_device(&open, ops, address);
    if (rc == 0) {
        open->refs++;
        *out = open;
    }
    tierce__lock_drop(&lock);
    return rc;
}

void tierce__device_release(struct tierce__open_device *open)
{
    tierce__lock_take(&lock);
    TIERCE_ASSERT(open->refs > 0);
    bool last = --open->refs == 0, stopped = true;
    if (last) {
        tierce__list_remove(&open->node);
        stopped = open->ops->close(open->device, tierce__deadline_in_ms(CLOSE_MS));
    }
    tierce__lock_drop(&lock);
    if (!stopped)
        tierce__log(TIERCE_LOG_WARN, "device_not_closed",
                    "device=%s consequence=\"its memory stays in use until the process ends\"",
                    open->ops->name);
    if (last)
        tierce__free(open);
}
