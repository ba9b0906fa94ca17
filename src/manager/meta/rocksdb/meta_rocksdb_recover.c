/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After a failed write the library rejects further writes, and checks every few seconds whether a
 * full file system has room again. It may then continue with the log whose write failed, which
 * aborts the process, or fail permanently (RocksDB 7.8, writable_file_writer.h). So after a failure
 * no write is made until the database has been closed and reopened. Until there is room for that,
 * reads use the failed database.
 */
#include <errno.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "manager/meta/rocksdb/meta_rocksdb_private.h"

#define RECOVER_MS 1000u

int tierce__rocks_enter(struct tierce__rocks *rocks)
{
    pthread_rwlock_rdlock(&rocks->opened);
    if (rocks->db != NULL)
        return 0;
    pthread_rwlock_unlock(&rocks->opened);
    int rc = atomic_load_explicit(&rocks->write_error, memory_order_relaxed);
    return rc < 0 ? rc : -EIO;
}

void tierce__rocks_leave(struct tierce__rocks *rocks)
{
    pthread_rwlock_unlock(&rocks->opened);
}

static void tell_failure(const struct tierce__rocks *rocks, int rc)
{
    TIERCE_ASSERT(rc < 0);
    const char *hint = rc == -ENOSPC ? "blocks are still found, but none is added or removed; free "
                                       "space on the file system, and writes resume"
                                     : "blocks are still found, but none is added or removed; look "
                                       "for device errors in the kernel's log";
    tierce__log(TIERCE_LOG_ERROR, "meta_writes_rejected", "path=\"%s\" reason=\"%s\" hint=\"%s\"",
                rocks->path, tierce_strerror(rc), hint);
}

void tierce__rocks_note_failure(struct tierce__rocks *rocks, int rc)
{
    TIERCE_ASSERT(rc < 0);
    atomic_store_explicit(&rocks->recover_at, tierce__deadline_in_ms(RECOVER_MS),
                          memory_order_relaxed);
    if (rc < 0 && atomic_exchange_explicit(&rocks->write_error, rc, memory_order_relaxed) == 0)
        tell_failure(rocks, rc);
}

int tierce__rocks_admit_write(struct tierce__rocks *rocks)
{
    int rc = atomic_load_explicit(&rocks->write_error, memory_order_relaxed);
    if (rc == 0 ||
        tierce__now_ns() < atomic_load_explicit(&rocks->recover_at, memory_order_relaxed) ||
        atomic_exchange_explicit(&rocks->is_recovering, true, memory_order_acquire))
        return rc;
    int failed = tierce__rocks_reopen(rocks);
    if (failed == -EBUSY)
        failed = rc;
    TIERCE_ASSERT(failed <= 0);
    if (failed < 0) {
        tierce__rocks_note_failure(rocks, failed);
    } else {
        atomic_store_explicit(&rocks->write_error, 0, memory_order_relaxed);
        tierce__log(TIERCE_LOG_WARN, "meta_writes_accepted", "path=\"%s\"", rocks->path);
    }
    atomic_store_explicit(&rocks->is_recovering, false, memory_order_release);
    return failed;
}
