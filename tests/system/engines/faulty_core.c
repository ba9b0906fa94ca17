/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The extension module over a disk that can be made slow or hang, for test_slow_disk.py: the usual
 * sources, linked so that every vfs is wrapped as it is made (--wrap).
 */
#include "vfs_fault.h"

TIERCE_MUSTUSE int __real_tierce__vfs_create(struct tierce__vfs **out, unsigned depth);
TIERCE_MUSTUSE int __wrap_tierce__vfs_create(struct tierce__vfs **out, unsigned depth);
__attribute__((visibility("default"))) void tierce_test_reads(int64_t delay_ns);

static struct tierce__vfs *last;

int __wrap_tierce__vfs_create(struct tierce__vfs **out, unsigned depth)
{
    struct tierce__vfs *inner;
    int rc = __real_tierce__vfs_create(&inner, depth);
    if (rc < 0)
        return rc;
    rc = tierce__vfs_fault_create(out, inner, false);
    if (rc < 0)
        inner->ops->destroy(inner);
    else
        last = *out;
    return rc;
}

/* From now on each read of the store that was opened last takes so much longer; below 0: it hangs
 * until the next call. */
void tierce_test_reads(int64_t delay_ns)
{
    tierce__vfs_fault_clear(last);
    tierce__vfs_fault_release(last);
    if (delay_ns == 0)
        return;
    struct tierce__vfs_fault_rule rule = {.kind = TIERCE__FAULT_SUBMIT_READ,
                                          .action = delay_ns < 0 ? TIERCE__FAULT_HANG
                                                                 : TIERCE__FAULT_LATE,
                                          .nth = 1,
                                          .forever = true,
                                          .delay_ns = (uint64_t)(delay_ns < 0 ? 0 : delay_ns)};
    tierce__vfs_fault_add(last, &rule);
}
