/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/device/direct.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "core/chunk/pool.h"
#include "engine/device/devices.h"
#include "store/coded/coded_tier.h"
#include "store/disk/disk_device.h"

#define BYTES_MIN (UINT64_C(1) << 20) /* of a pool */

void tierce__direct_init(struct tierce__direct *direct)
{
    *direct = (struct tierce__direct){0};
    tierce__lock_init(&direct->lock, TIERCE__LOCK_DIRECT);
}

int tierce__direct_wrap(struct tierce__direct *direct, uint64_t bytes, unsigned depth,
                        struct tierce__vfs **out)
{
    struct tierce__vfs *inner, *vfs;
    TIERCE_DASSERT(bytes > 0 && direct->vfs == NULL);
    int rc = tierce__vfs_create(&inner, depth);
    if (rc < 0)
        return rc;
    rc = tierce__vfs_device_create(&vfs, inner);
    if (rc < 0) {
        inner->ops->destroy(inner);
        return rc;
    }
    direct->bytes = bytes > BYTES_MIN ? bytes & ~(uint64_t)(TIERCE__PIN_ALIGN - 1) : BYTES_MIN;
    direct->vfs = vfs;
    *out = vfs;
    return 0;
}

void tierce__direct_decode_from(struct tierce__direct *direct, struct tierce__tier *tier)
{
    TIERCE_ASSERT(direct->coded_count < TIERCE__DIRECT_TIERS);
    direct->coded[direct->coded_count++] = tier;
}

void tierce__direct_unwrap(struct tierce__direct *direct)
{
    direct->bytes = 0;
    direct->vfs = NULL;
}

/* Under the lock. The first call of `decode` compiles and allocates: here, and not in a load. A
 * device that lacks memory now is not used: it would lack it in loads. */
static void prepare_decoder(struct tierce__direct *direct)
{
    const struct tierce__open_device *device = direct->device;
    tierce__lock_assert_held(&direct->lock);
    if (direct->coded_count == 0)
        return;
    int rc = device->ops->decode(device->device, NULL, 0, TIERCE__DEADLINE_NEVER);
    if (rc < 0) {
        tierce__log(TIERCE_LOG_WARN, "gpu_decode_off",
                    "device=%s reason=\"%s\" consequence=\"the host decodes chunks that are loaded "
                    "into the GPU\"",
                    device->ops->name,
                    rc == TIERCE_E_UNSUPPORTED ? "see cuda_no_decoder" : tierce_strerror(rc));
        return;
    }
    const struct tierce__coded_device decoder = {.ops = device->ops, .device = device->device};
    for (size_t i = 0; i < direct->coded_count; i++)
        tierce__coded_tier_use_device(direct->coded[i], &decoder);
}

/* Under the lock. */
static int alloc_buffer(struct tierce__direct *direct)
{
    const struct tierce__open_device *device = direct->device;
    const struct tierce__device_files *files = device->ops->files;
    struct tierce__pool *pool;
    size_t bytes = (size_t)direct->bytes;
    tierce__lock_assert_held(&direct->lock);
    if (files == NULL)
        return TIERCE_E_UNSUPPORTED;
    int rc = files->alloc(device->device, &direct->base, bytes);
    if (rc < 0)
        return rc;
    const struct tierce__pool_opts opts = {
        .size = sizeof(opts), .cap_bytes = bytes, .device_memory = direct->base};
    rc = tierce__pool_create(&pool, &opts);
    if (rc < 0) {
        if (files->free(device->device, direct->base, bytes))
            direct->base = NULL;
        return rc;
    }
    tierce__vfs_device_use(
        direct->vfs,
        &(struct tierce__vfs_device_memory){
            .files = files, .device = device->device, .base = direct->base, .bytes = bytes});
    prepare_decoder(direct);
    atomic_store_explicit(&direct->pool, pool, memory_order_release);
    return 0;
}

/* The device has logged why it does not support the buffer. */
static const char *reason_of(const struct tierce__open_device *device, int rc)
{
    if (device->ops->files == NULL)
        return "this device cannot read files";
    return rc == TIERCE_E_UNSUPPORTED ? "see gpu_direct_refused" : tierce_strerror(rc);
}

void tierce__direct_start(struct tierce__direct *direct, struct tierce__open_device *device)
{
    int rc = 0;
    if (direct->bytes == 0)
        return;
    tierce__lock_take(&direct->lock);
    bool begins = !direct->begun && !direct->stopped;
    if (begins) {
        direct->begun = true;
        direct->device = device;
        rc = alloc_buffer(direct);
    }
    tierce__lock_drop(&direct->lock);
    if (begins && rc == 0)
        tierce__log(TIERCE_LOG_INFO, "gpu_direct", "device=%s bytes=%llu", device->ops->name,
                    (unsigned long long)direct->bytes);
    else if (begins)
        tierce__log(TIERCE_LOG_WARN, "gpu_direct_off",
                    "device=%s reason=\"%s\" consequence=\"chunks are read from disk into memory, "
                    "and copied from there\"",
                    device->ops->name, reason_of(device, rc));
}

bool tierce__direct_is_on(const struct tierce__direct *direct)
{
    return atomic_load_explicit(&direct->pool, memory_order_acquire) != NULL;
}

struct tierce__pool *tierce__direct_pool(const struct tierce__direct *direct,
                                         const struct tierce__open_device *device)
{
    struct tierce__pool *pool = atomic_load_explicit(&direct->pool, memory_order_acquire);
    bool works = pool != NULL && direct->device == device && tierce__vfs_device_works(direct->vfs);
    return works ? pool : NULL;
}

void tierce__direct_distrust(struct tierce__direct *direct)
{
    if (tierce__vfs_device_stop(direct->vfs))
        tierce__log(TIERCE_LOG_ERROR, "gpu_direct_off",
                    "device=%s reason=\"a chunk that was read into its memory was wrong\" "
                    "consequence=\"chunks are read from disk into memory, and copied from there\" "
                    "remedy=\"if `tierce scrub` finds no wrong chunk, set disk.gpu_direct to 0 and "
                    "report this\"",
                    direct->device->ops->name);
}

void tierce__direct_stop(struct tierce__direct *direct)
{
    tierce__lock_take(&direct->lock);
    direct->stopped = true;
    tierce__lock_drop(&direct->lock);
}

static bool is_used(struct tierce__pool *pool)
{
    struct tierce__pool_stats stats;
    tierce__pool_stats(pool, &stats);
    return stats.bufs > 0;
}

bool tierce__direct_fini(struct tierce__direct *direct)
{
    struct tierce__pool *pool = atomic_load_explicit(&direct->pool, memory_order_acquire);
    TIERCE_DASSERT(direct->stopped || direct->bytes == 0);
    if (pool != NULL && is_used(pool))
        return false;
    tierce__pool_destroy(pool);
    atomic_store_explicit(&direct->pool, NULL, memory_order_release);
    if (direct->base != NULL && !direct->device->ops->files->free(
                                    direct->device->device, direct->base, (size_t)direct->bytes))
        return false;
    tierce__lock_fini(&direct->lock);
    return true;
}
