/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/device/pinnings.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "base/log/log_repeat.h"
#include "base/mix.h"
#include "base/threads/threads.h"
#include "core/device/numa.h"
#include "engine/device/devices.h"
#include "engine/device/direct.h"

/* If the driver lacks memory for a slice, a smaller slice is registered. Slices are registered as
 * they are counted here. */
#define SLICE_BYTES_MAX (UINT64_C(1) << 30)
#define SLICE_BYTES_MIN (UINT64_C(2) << 20)

/* Descriptions that are known: a view for each group of layers has its own. */
#define KNOWN_MAX 16u

struct slice {
    uint8_t *memory;
    size_t bytes;
};

/* The mapping on one device. */
struct pinning {
    struct tierce__list node;
    struct tierce__open_device *device;
    uint8_t *base;
    uint64_t bytes;
    bool places; /* the node of the device is preferred for the mapping's pages */
    struct tierce__direct *direct;
    pthread_t thread;
    atomic_bool stops; /* relaxed: only ends the work */
    _Atomic int state; /* -EAGAIN, then 0 or an error; release and acquire */
    /* Digests of descriptions whose layers are all in the device's memory; relaxed. */
    _Atomic uint64_t known[KNOWN_MAX];
    uint64_t pinned_bytes; /* as count, room and slices: */
    size_t count, room;
    struct slice *slices; /* used by the thread, and by fini after the thread has exited */
};

void tierce__pinnings_init(struct tierce__pinnings *pinnings)
{
    *pinnings = (struct tierce__pinnings){0};
    tierce__lock_init(&pinnings->lock, TIERCE__LOCK_PINNINGS);
    tierce__list_init(&pinnings->list);
}

void tierce__pinnings_set(struct tierce__pinnings *pinnings, uint8_t *base, uint64_t bytes,
                          bool is_own)
{
    TIERCE_DASSERT(pinnings->bytes == 0 && tierce__list_empty(&pinnings->list));
    TIERCE_DASSERT((uintptr_t)base % TIERCE__PIN_ALIGN == 0);
    pinnings->base = base;
    pinnings->bytes = bytes;
    pinnings->is_own = is_own;
}

/* ---- the thread ---- */

static int keep(struct pinning *pinning, struct slice slice)
{
    TIERCE_DASSERT(pinning->count <= pinning->room);
    if (TIERCE__GROW(pinning->slices, pinning->room, pinning->count + 1, 64) < 0)
        return -ENOMEM;
    pinning->slices[pinning->count++] = slice;
    return 0;
}

static int pin_slice(struct pinning *pinning, struct slice slice)
{
    const struct tierce__open_device *device = pinning->device;
    TIERCE_DASSERT(slice.bytes > 0 && slice.bytes % TIERCE__PIN_ALIGN == 0);
    int rc = keep(pinning, slice); /* first, so that the pinned slices are known */
    if (rc < 0)
        return rc;
    rc = device->ops->pin(device->device, slice.memory, slice.bytes);
    if (rc < 0)
        pinning->count--;
    return rc;
}

/* Errors: -ECANCELED (the mapping is not used any more); as of `pin`. */
static int pin_all(struct pinning *pinning)
{
    uint64_t done = 0, bytes = pinning->bytes / TIERCE__PIN_ALIGN * TIERCE__PIN_ALIGN,
             most = SLICE_BYTES_MAX;
    int rc = 0;
    while (done < bytes && rc == 0 &&
           !atomic_load_explicit(&pinning->stops, memory_order_relaxed)) {
        uint64_t step = bytes - done < most ? bytes - done : most;
        rc = pin_slice(pinning, (struct slice){pinning->base + done, (size_t)step});
        if (rc == 0) {
            done += step;
        } else if (rc == -ENOMEM && step > SLICE_BYTES_MIN) {
            most = step / 2 / TIERCE__PIN_ALIGN * TIERCE__PIN_ALIGN;
            rc = 0;
        }
    }
    TIERCE_DASSERT(done <= bytes);
    pinning->pinned_bytes = done;
    return rc == 0 && done < bytes ? -ECANCELED : rc;
}

static void log_result(const struct pinning *pinning, int rc, bool works)
{
    const char *name = pinning->device->ops->name;
    unsigned long long bytes = pinning->bytes, pinned = pinning->pinned_bytes;
    if (rc == 0)
        tierce__log(TIERCE_LOG_INFO, "memory_pinned", "device=%s bytes=%llu", name, bytes);
    else if (rc != -ECANCELED)
        tierce__log(works ? TIERCE_LOG_WARN : TIERCE_LOG_ERROR, "memory_not_pinned",
                    "device=%s bytes=%llu pinned=%llu reason=\"%s\" consequence=\"%s\" "
                    "remedy=\"%s\"",
                    name, bytes, pinned, tierce_strerror(rc),
                    works ? "the rest is copied through a buffer, which is slower"
                          : "nothing is stored or loaded between this memory and the device",
                    rc == -ENOMEM
                        ? "raise the limit of locked memory (ulimit -l), or lower memory.size"
                        : "restart the process");
}

static void place_pages(const struct pinning *pinning)
{
    const struct tierce__open_device *device = pinning->device;
    int node = device->ops->numa_node(device->device);
    if (node < 0)
        return;
    int rc = tierce__numa_prefer(pinning->base, (size_t)pinning->bytes, node);
    if (rc == 0)
        tierce__log(TIERCE_LOG_INFO, "memory_near_device", "device=%s node=%d", device->ops->name,
                    node);
    else
        tierce__log(TIERCE_LOG_WARN, "memory_not_near_device",
                    "device=%s node=%d why=\"mbind: %s\" consequence=\"copies may be slower\" "
                    "remedy=\"start the process with numactl --preferred=%d\"",
                    device->ops->name, node, tierce_strerror(rc), node);
}

/* The driver may compile a kernel during tune, and its other calls may block meanwhile: copies
 * begin after it. */
static void *run_pinning(void *arg)
{
    struct pinning *pinning = arg;
    const struct tierce__open_device *device = pinning->device;
    if (pinning->places)
        place_pages(pinning);
    device->ops->tune(device->device);
    int rc = device->ops->allow_unpinned(device->device);
    bool works = rc == 0;
    if (works)
        atomic_store_explicit(&pinning->state, 0, memory_order_release);
    if (works && pinning->direct != NULL)
        tierce__direct_start(pinning->direct, pinning->device);
    rc = pin_all(pinning);
    TIERCE_DASSERT(rc <= 0 && rc != -EAGAIN);
    if (!works)
        atomic_store_explicit(&pinning->state, rc, memory_order_release);
    log_result(pinning, rc, works);
    return NULL;
}

/* ---- get ---- */

/* Under the lock. *out: NULL if no device that pins has the address. Errors: as of `has`. */
static int find_pinning(struct pinning **out, const struct tierce__pinnings *pinnings,
                        const struct tierce__device_ops *ops, const void *address)
{
    int has = 0;
    tierce__lock_assert_held(&pinnings->lock);
    *out = NULL;
    TIERCE__LIST_FOR_EACH (it, &pinnings->list) {
        struct pinning *pinning = TIERCE__CONTAINER_OF(it, struct pinning, node);
        has = pinning->device->ops == ops ? ops->has(pinning->device->device, address) : 0;
        if (has > 0)
            *out = pinning;
        if (has != 0)
            break;
    }
    return has < 0 ? has : 0;
}

/* Under the lock. */
static int begin_pinning(struct tierce__pinnings *pinnings, struct pinning **out,
                         enum tierce_device kind, const void *address)
{
    tierce__lock_assert_held(&pinnings->lock);
    struct pinning *pinning = tierce__calloc(1, sizeof(*pinning));
    if (pinning == NULL)
        return -ENOMEM;
    pinning->base = pinnings->base;
    pinning->bytes = pinnings->bytes;
    pinning->direct = pinnings->direct;
    pinning->places = pinnings->is_own && tierce__list_empty(&pinnings->list);
    atomic_init(&pinning->state, -EAGAIN);
    int rc = tierce__device_acquire(&pinning->device, kind, address);
    if (rc == 0) {
        rc = tierce__thread_start(&pinning->thread, run_pinning, pinning);
        if (rc < 0)
            tierce__device_release(pinning->device);
    }
    if (rc < 0) {
        tierce__free(pinning);
        return rc;
    }
    tierce__list_push_back(&pinnings->list, &pinning->node);
    *out = pinning;
    return 0;
}

/* The caller can correct these errors; after other errors the transfer is a miss. */
static int status_of(int rc)
{
    switch (rc) {
    case 0:
    case -EAGAIN:
    case -ENOMEM:
    case TIERCE_E_ARGUMENT:
    case TIERCE_E_UNSUPPORTED:
        return rc;
    default:
        return TIERCE_E_DOWN;
    }
}

static uint64_t digest_of(const struct tierce_paged *paged)
{
    uint64_t digest = TIERCE__MIX_GOLDEN;
    for (uint32_t layer = 0; layer < paged->layer_count; layer++)
        digest = tierce__mix(digest ^ (uintptr_t)paged->layers[layer].base);
    return digest;
}

static int ask_layers(const struct tierce__open_device *device, const struct tierce_paged *paged)
{
    int rc = 1;
    for (uint32_t layer = 1; layer < paged->layer_count && rc > 0; layer++)
        rc = device->ops->has(device->device, paged->layers[layer].base);
    if (rc == 0)
        tierce__log_repeated(TIERCE_LOG_ERROR, "device_other_memory",
                             "device=%s why=\"the layers of a description are not all in this "
                             "device's memory\"",
                             device->ops->name);
    return rc > 0 ? 0 : rc < 0 ? rc : TIERCE_E_ARGUMENT;
}

/* Memory of something else would break the device for the whole process. The driver is asked about
 * the same layers only once, because each lookup, store and load of an inference engine comes here.
 */
static int check_layers(struct pinning *pinning, const struct tierce_paged *paged)
{
    uint64_t digest = digest_of(paged);
    _Atomic uint64_t *known = &pinning->known[digest % KNOWN_MAX];
    if (atomic_load_explicit(known, memory_order_relaxed) == digest)
        return 0;
    int rc = ask_layers(pinning->device, paged);
    if (rc == 0)
        atomic_store_explicit(known, digest, memory_order_relaxed);
    return rc;
}

int tierce__pinnings_get(struct tierce__pinnings *pinnings, const struct tierce_paged *paged,
                         struct tierce__open_device **out)
{
    enum tierce_device kind = paged->device;
    const void *address = paged->layers[0].base;
    struct pinning *pinning;
    int rc;
    TIERCE_DASSERT(paged->layer_count > 0 && kind != TIERCE_DEVICE_HOST);
    if (pinnings->bytes == 0)
        return TIERCE_E_DOWN;
    tierce__lock_take(&pinnings->lock);
    rc = find_pinning(&pinning, pinnings, tierce__device_at((size_t)kind), address);
    if (rc == 0 && pinning == NULL)
        rc = begin_pinning(pinnings, &pinning, kind, address);
    tierce__lock_drop(&pinnings->lock);
    if (rc == 0)
        rc = check_layers(pinning, paged);
    if (rc < 0)
        return status_of(rc);
    rc = atomic_load_explicit(&pinning->state, memory_order_acquire);
    if (rc == 0)
        *out = pinning->device;
    return rc == 0 || rc == -EAGAIN ? rc : TIERCE_E_DOWN;
}

/* ---- the end ---- */

static bool unpin_all(struct pinning *pinning)
{
    const struct tierce__open_device *device = pinning->device;
    bool unpinned = true;
    atomic_store_explicit(&pinning->stops, true, memory_order_relaxed);
    pthread_join(pinning->thread, NULL);
    for (size_t i = 0; i < pinning->count; i++) {
        const struct slice *slice = &pinning->slices[i];
        unpinned &= device->ops->unpin(device->device, slice->memory, slice->bytes) == 0;
    }
    return unpinned;
}

static void free_pinning(struct pinning *pinning)
{
    tierce__device_release(pinning->device);
    tierce__list_remove(&pinning->node);
    tierce__free(pinning->slices);
    tierce__free(pinning);
}

static struct pinning *pinning_of(struct tierce__list *it)
{
    return TIERCE__CONTAINER_OF(it, struct pinning, node);
}

bool tierce__pinnings_fini(struct tierce__pinnings *pinnings)
{
    bool unpinned = true;
    /* A slice that several devices have pinned is registered in the context of one of them. */
    TIERCE__LIST_FOR_EACH (it, &pinnings->list)
        unpinned &= unpin_all(pinning_of(it));
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &pinnings->list)
        free_pinning(pinning_of(it));
    TIERCE_DASSERT(tierce__list_empty(&pinnings->list));
    tierce__lock_fini(&pinnings->lock);
    return unpinned;
}
