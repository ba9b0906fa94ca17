/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_VFS_FAULT_H
#define TIERCE_BASE_VFS_FAULT_H

#include "base/vfs/vfs.h"

/*
 * A vfs around another that injects faults by a script: an operation fails, is late, hangs, or
 * returns a flipped bit; or the power fails.
 *
 *     rc = tierce__vfs_fault_create(&vfs, inner, true);
 *     tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){
 *             .kind = TIERCE__FAULT_SUBMIT_WRITE, .nth = 3, .action = TIERCE__FAULT_FAIL,
 *             .error = -ENOSPC});
 *
 * The script and the counters may be used from any thread.
 */

enum tierce__fault_kind {
    TIERCE__FAULT_OPEN,
    TIERCE__FAULT_READ,
    TIERCE__FAULT_WRITE,
    TIERCE__FAULT_SYNC,
    TIERCE__FAULT_TRUNCATE,
    TIERCE__FAULT_ALLOCATE,
    TIERCE__FAULT_RENAME,
    TIERCE__FAULT_UNLINK,
    TIERCE__FAULT_MAKE_FOLDER,
    TIERCE__FAULT_SYNC_FOLDER,
    TIERCE__FAULT_SUBMIT_READ,
    TIERCE__FAULT_SUBMIT_WRITE,
    TIERCE__FAULT_KINDS,
    /* In a rule: any of the above; counted apart. */
    TIERCE__FAULT_ANY = TIERCE__FAULT_KINDS,
    /* In a rule: every operation that changes the disk (no read, no open of an existing file). */
    TIERCE__FAULT_CHANGE,
    TIERCE__FAULT_COUNTERS,
};

enum tierce__fault_action {
    TIERCE__FAULT_FAIL, /* with `error`; the disk is not touched */
    TIERCE__FAULT_LATE, /* done comes `delay_ns` later; blocking calls sleep */
    TIERCE__FAULT_HANG, /* submitted transfers only: nothing happens until release */
    TIERCE__FAULT_FLIP, /* reads only: flips bit `bit` (modulo the length) of the data read */
    TIERCE__FAULT_CUT,  /* the power fails before this operation */
    TIERCE__FAULT_KILL, /* the process ends by SIGKILL before this operation */
};

struct tierce__vfs_fault_rule {
    enum tierce__fault_kind kind;
    enum tierce__fault_action action;
    uint64_t nth; /* 1: the next operation of that kind */
    bool forever; /* the nth and all after it */
    int error;
    uint64_t delay_ns;
    uint64_t bit;
};

/*
 * Wraps `inner` [transfer, on success only]. `power` enables power cuts: each write then also reads
 * the bytes that it replaces. Errors: -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__vfs_fault_create(struct tierce__vfs **out, struct tierce__vfs *inner,
                                            bool power);

/* Adds a rule; at most 16 at a time. Its count starts now. */
void tierce__vfs_fault_add(struct tierce__vfs *vfs, const struct tierce__vfs_fault_rule *rule);

/* Forgets all rules. */
void tierce__vfs_fault_clear(struct tierce__vfs *vfs);

/* Operations of that kind since creation. */
uint64_t tierce__vfs_fault_count(struct tierce__vfs *vfs, enum tierce__fault_kind kind);

/* Lets hanging transfers go on. */
void tierce__vfs_fault_release(struct tierce__vfs *vfs);

/*
 * The power fails now: every later call fails with -EIO. When the wrapper is destroyed, each write
 * that no successful sync covered, and each change of length, is kept, dropped or (writes) torn at
 * 512-byte granularity, and creations, renames and removals that no sync of their folder covered
 * are undone from a random point on: all drawn from the seed of fault_seed.
 */
void tierce__vfs_fault_power_cut(struct tierce__vfs *vfs);
void tierce__vfs_fault_seed(struct tierce__vfs *vfs, uint64_t seed);

#endif
