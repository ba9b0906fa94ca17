/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_disk.h"
#include "base/vfs/vfs_private.h"
#include "sim_sched.h"
#include "vfs_fault.h"

#include <errno.h>

SIM_WRAPS(int, tierce__files_read, struct tierce__vfs *vfs, struct tierce__vfs_file *file,
          void *data, size_t length, uint64_t offset);
SIM_WRAPS(int, tierce__files_write, struct tierce__vfs *vfs, struct tierce__vfs_file *file,
          const void *data, size_t length, uint64_t offset);
SIM_WRAPS(int, tierce__vfs_create, struct tierce__vfs **out, unsigned depth);
SIM_WRAPS(int, fdatasync, int fd);
SIM_WRAPS(int, fsync, int fd);

/* Mostly fast, sometimes slow. */
static void sim_disk_takes(void)
{
    sim_sleep_ns(1000 * (20 + sim_below(sim_below(10) == 0 ? 20000 : 200)));
}

int __wrap_tierce__files_read(struct tierce__vfs *vfs, struct tierce__vfs_file *file, void *data,
                              size_t length, uint64_t offset)
{
    sim_disk_takes();
    return __real_tierce__files_read(vfs, file, data, length, offset);
}

int __wrap_tierce__files_write(struct tierce__vfs *vfs, struct tierce__vfs_file *file,
                               const void *data, size_t length, uint64_t offset)
{
    sim_disk_takes();
    int rc = __real_tierce__files_write(vfs, file, data, length, offset);
    sim_disk_takes();
    return rc;
}

int __wrap_fdatasync(int fd)
{
    (void)fd;
    sim_disk_takes();
    return 0;
}

int __wrap_fsync(int fd)
{
    return __wrap_fdatasync(fd);
}

static struct tierce__vfs *opened[SIM_HOSTS];

struct tierce__vfs *sim_disk_take(void)
{
    struct tierce__vfs *disk = opened[sim_host()];
    opened[sim_host()] = NULL;
    return disk;
}

int __wrap_tierce__vfs_create(struct tierce__vfs **out, unsigned depth)
{
    struct tierce__vfs *files;
    (void)depth;
    int rc = tierce__vfs_threads_create(&files, 1 + (unsigned)sim_below(3));
    if (rc == 0)
        rc = tierce__vfs_fault_create(out, files, true);
    if (rc == 0) {
        tierce__vfs_fault_seed(*out, sim_below(UINT64_MAX));
        opened[sim_host()] = *out;
    }
    return rc;
}

bool sim_disk_draw_faults(struct tierce__vfs *vfs, bool flips)
{
    static const enum tierce__fault_kind kinds[] = {TIERCE__FAULT_SUBMIT_READ,
                                                    TIERCE__FAULT_SUBMIT_WRITE, TIERCE__FAULT_WRITE,
                                                    TIERCE__FAULT_SYNC, TIERCE__FAULT_CHANGE};
    bool loses = false;
    for (uint64_t count = sim_below(4); count > 0; count--) {
        struct tierce__vfs_fault_rule rule = {.kind = kinds[sim_below(5)],
                                              .action = sim_below(2) == 0 ? TIERCE__FAULT_FAIL
                                                                          : TIERCE__FAULT_LATE,
                                              .nth = 1 + sim_below(60),
                                              .forever = sim_below(6) == 0,
                                              .error = sim_below(4) == 0 ? -ENOSPC : -EIO,
                                              .delay_ns = 1000000 * (1 + sim_below(4000)),
                                              .bit = sim_below(UINT64_MAX)};
        if (rule.forever && rule.action == TIERCE__FAULT_LATE)
            rule.delay_ns /= 100;
        if (flips && rule.kind == TIERCE__FAULT_SUBMIT_READ)
            rule.action = TIERCE__FAULT_FLIP;
        loses |= rule.action == TIERCE__FAULT_FLIP || rule.error == -ENOSPC;
        tierce__vfs_fault_add(vfs, &rule);
    }
    return loses;
}

void sim_disk_end_faults(struct tierce__vfs *vfs)
{
    tierce__vfs_fault_clear(vfs);
}

void sim_disk_cut(struct tierce__vfs *vfs)
{
    tierce__vfs_fault_power_cut(vfs);
    tierce__vfs_fault_release(vfs);
}
