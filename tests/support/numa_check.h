/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_NUMA_CHECK_H
#define TIERCE_TESTS_NUMA_CHECK_H

#include "check_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A made-up /sys for core/device/numa.h, and the kernel's policy of memory. */

static inline void numa_check_write(const char *root, const char *name, const char *text)
{
    char path[512];
    ck_assert_int_lt(snprintf(path, sizeof(path), "%s/%s", root, name), (int)sizeof(path));
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0755);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

/* online: the nodes, as the kernel writes them; node: of the PCI device. */
static inline void numa_check_sys(const char *root, const char *online, const char *pci,
                                  const char *node)
{
    char name[128];
    numa_check_write(root, "sys/devices/system/node/online", online);
    snprintf(name, sizeof(name), "sys/bus/pci/devices/%s/numa_node", pci);
    numa_check_write(root, name, node);
}

/* Whether the kernel allows policies. Some containers forbid them. */
static inline bool numa_check_is_allowed(void)
{
    return syscall(SYS_get_mempolicy, NULL, NULL, 0ul, NULL, 0ul) == 0;
}

/* The preferred node of the memory at an address; -1: none. */
static inline int numa_check_preferred(const void *address)
{
    enum { PREFERRED = 1, OF_ADDRESS = 2, BITS = 1024 };
    unsigned long nodes[BITS / 64] = {0};
    int mode = 0;
    ck_assert_int_eq(
        syscall(SYS_get_mempolicy, &mode, nodes, (unsigned long)BITS + 1, address, OF_ADDRESS), 0);
    for (int i = 0; mode == PREFERRED && i < BITS; i++) {
        if ((nodes[i / 64] >> (i % 64) & 1) != 0)
            return i;
    }
    return -1;
}

#endif
