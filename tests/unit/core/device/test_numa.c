/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/numa.h"

#include "check_main.h"
#include "numa_check.h"
#include "temp_folder.h"

#include <errno.h>
#include <sys/mman.h>

/* The node of a device, in a made-up /sys, and memory of a node of this machine. */

static char root[64] = "/tmp/tierce-test-XXXXXX";

static int node_of(const char *online, const char *node)
{
    numa_check_sys(root, online, "0000:3b:00.0", node);
    return tierce__numa_node_of("0000:3B:00.0");
}

START_TEST(the_node_of_a_device)
{
    temp_folder_make(root);
    tierce__numa_root(root);
    ck_assert_int_eq(tierce__numa_node_of("0000:3B:00.0"), -1); /* a kernel without NUMA */
    ck_assert_int_eq(node_of("0-1\n", "1\n"), 1);
    ck_assert_int_eq(node_of("0-3\n", "0\n"), 0);
    ck_assert_int_eq(node_of("0,8\n", "8\n"), 8);
    ck_assert_int_eq(node_of("0-1\n", "-1\n"), -1); /* unknown */
    ck_assert_int_eq(node_of("0\n", "0\n"), -1);    /* one node */
    ck_assert_int_eq(node_of("0-1\n", "1024\n"), TIERCE_E_FORMAT);
    ck_assert_int_eq(node_of("0-1\n", "-2\n"), TIERCE_E_FORMAT);
    ck_assert_int_eq(node_of("0-1\n", "\n"), TIERCE_E_FORMAT);
    ck_assert_int_eq(node_of("0-1\n", "1x\n"), TIERCE_E_FORMAT);
    ck_assert_int_eq(tierce__numa_node_of("0000:3c:00.0"), -ENOENT);
    temp_folder_remove(root);
}
END_TEST

START_TEST(this_machine_can_be_asked)
{
    tierce__numa_root("");
    ck_assert_int_lt(tierce__numa_node_of("ffff:ff:1f.7"), 0); /* there is none */
}
END_TEST

START_TEST(pages_come_from_the_node)
{
    enum { BYTES = 1 << 20 };
    uint8_t *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    if (numa_check_is_allowed()) {
        ck_assert_int_eq(numa_check_preferred(memory), -1);
        ck_assert_int_eq(tierce__numa_prefer(memory, BYTES / 2, 0), 0);
        ck_assert_int_eq(numa_check_preferred(memory), 0);
        ck_assert_int_eq(numa_check_preferred(memory + BYTES / 2 - 1), 0);
        ck_assert_int_eq(numa_check_preferred(memory + BYTES / 2), -1);
        ck_assert_int_eq(tierce__numa_prefer(memory, BYTES, 1023), -EINVAL);
    }
    int rc = tierce__numa_prefer(memory, BYTES, 0);
    ck_assert((rc == 0) == numa_check_is_allowed());
    memory[0] = memory[BYTES - 1] = 1;
    munmap(memory, BYTES);
}
END_TEST

CHECK_MAIN("numa",
           .tests = {the_node_of_a_device, this_machine_can_be_asked, pages_come_from_the_node})
