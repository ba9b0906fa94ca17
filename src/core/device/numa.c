/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/numa.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/file.h"

#define FILE_BYTES_MAX 65536u

/* The numbers of linux/mempolicy.h, whose header need not be installed. */
#define MPOL_PREFERRED 1
#define NODES_MAX      1024u

static char root[128]; /* written by tests only */

void tierce__numa_root(const char *path)
{
    int n = snprintf(root, sizeof(root), "%s", path);
    TIERCE_ASSERT(n >= 0 && (size_t)n < sizeof(root));
}

/* *text: heap. */
static int read_sys(char **text, const char *name)
{
    char path[256];
    size_t length;
    int n = snprintf(path, sizeof(path), "%s/sys/%s", root, name);
    TIERCE_ASSERT(n > 0 && (size_t)n < sizeof(path));
    return tierce__read_file(text, &length, path, FILE_BYTES_MAX);
}

/* Whether several nodes are online: "0-1", "0,2". Errors: 0 as for one node if the kernel has no
 * support for NUMA; negative errno. */
static int has_several_nodes(void)
{
    char *text;
    int rc = read_sys(&text, "devices/system/node/online");
    if (rc == -ENOENT)
        return 0;
    if (rc < 0)
        return rc;
    rc = strpbrk(text, "-,") != NULL;
    tierce__free(text);
    return rc;
}

static int parse_node(const char *text)
{
    char *end;
    errno = 0;
    long node = strtol(text, &end, 10);
    bool is_number = end != text && (*end == '\n' || *end == '\0') && errno == 0;
    if (!is_number || node < -1 || node >= (long)NODES_MAX)
        return TIERCE_E_FORMAT;
    return (int)node;
}

int tierce__numa_node_of(const char *pci)
{
    char name[64 + TIERCE__PCI_BYTES], *text;
    int several = has_several_nodes();
    if (several <= 0)
        return several < 0 ? several : -1;
    int n = snprintf(name, sizeof(name), "bus/pci/devices/%s/numa_node", pci);
    TIERCE_ASSERT(n > 0 && (size_t)n < sizeof(name));
    for (char *c = name; *c != '\0'; c++) /* the driver writes upper case, the kernel lower case */
        *c = (char)tolower((unsigned char)*c);
    int rc = read_sys(&text, name);
    if (rc < 0)
        return rc;
    rc = parse_node(text);
    tierce__free(text);
    return rc;
}

int tierce__numa_prefer(void *memory, size_t bytes, int node)
{
    enum { WORD_BITS = sizeof(unsigned long) * CHAR_BIT };
    unsigned long nodes[NODES_MAX / WORD_BITS] = {0};
    TIERCE_ASSERT(node >= 0 && node < (int)NODES_MAX);
    nodes[(unsigned)node / WORD_BITS] = 1ul << ((unsigned)node % WORD_BITS);
    /* mbind ignores the last bit of the number that it is given. */
    long rc =
        syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes, (unsigned long)NODES_MAX + 1, 0);
    return rc == 0 ? 0 : -errno;
}
