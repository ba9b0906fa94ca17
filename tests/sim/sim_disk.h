/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_DISK_H
#define TIERCE_TESTS_SIM_DISK_H

#include <stdbool.h>

#include "base/vfs/vfs.h"

/*
 * Disks: real files, whose transfers and syncs take simulated time, under a layer that injects
 * faults and cuts the power (vfs_fault.h). Nothing is really synced: the layer knows what a power
 * cut may take back.
 */

/* The disk that the calling thread's host has opened last, once. NULL: none since. */
struct tierce__vfs *sim_disk_take(void);

/* Draws up to three faults: errors and slow transfers, and if `flips`, wrong bits. True: chunks may
 * leave the disk for them: wrong ones do, and some make room on a full disk. */
bool sim_disk_draw_faults(struct tierce__vfs *vfs, bool flips);
void sim_disk_end_faults(struct tierce__vfs *vfs);

/* The power fails: nothing changes the files any more, and what was not synced may be lost. */
void sim_disk_cut(struct tierce__vfs *vfs);

#endif
