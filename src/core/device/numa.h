/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NUMA_H
#define TIERCE_NUMA_H

#include <stddef.h>

#include <tierce/status.h>

/*
 * Memory near a PCI device, on machines with several NUMA nodes.
 *
 * Thread: any. Blocks for a file of /sys at most.
 */

#define TIERCE__PCI_BYTES 32u /* of a device's name, such as "0000:3b:00.0", with its NUL */

/*
 * The node of the device of this name. -1: the machine has one node only, or does not know the
 * device's node; preferring one would change nothing. Other errors: negative errno (a file is
 * missing), TIERCE_E_FORMAT (it has no number).
 */
TIERCE_MUSTUSE int tierce__numa_node_of(const char *pci);

/*
 * The pages of this memory come from the node from now on, if it has free memory, and else from
 * other nodes. Pages that exist already stay on their nodes. `memory` is aligned to a page. Errors:
 * negative errno: -EPERM, -ENOSYS (a container may forbid it), -EINVAL (there is no such node).
 */
TIERCE_MUSTUSE int tierce__numa_prefer(void *memory, size_t bytes, int node);

/* For tests: the folder that contains "sys"; "" is the machine's own. Not while others call. */
void tierce__numa_root(const char *path);

#endif
