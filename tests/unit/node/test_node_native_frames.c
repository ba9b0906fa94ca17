/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that are announced and do not arrive, or arrive slowly. */
#define TIERCE_TEST_NODE
#include "check_main.h"
#include "engine_fixture.h"
#include "native_harness.h"

#include <linux/sockios.h>
#include <sched.h>
#include <sys/ioctl.h>

/* Returns when the node has read all of it. */
static void say_and_wait(int fd, const uint8_t *bytes, size_t count)
{
    int left = 1;
    say_bytes(fd, bytes, count);
    while (left > 0) {
        ck_assert_int_eq(ioctl(fd, SIOCOUTQ, &left), 0);
        sched_yield();
    }
}

/* A client that announces a large frame gets memory only for the part that has arrived. */
START_TEST(memory_comes_with_the_bytes)
{
    enum { SINGLE = 20, FOLLOWING = 64 << 10, DOUBLINGS = 5 }; /* from 4 KiB on */
    static const uint8_t head[TIERCE__NATIVE_HEAD] = {0, 0, 0, 4, TIERCE__NATIVE_HELLO, 0, 0, 0};
    static const uint8_t zeros[FOLLOWING];
    static struct fixture fx;
    char path[80];
    fx_open(&fx, false, NULL);
    snprintf(path, sizeof(path), "%s/node", fx.socket_folder);
    int fd = native_connect(path);
    ck_assert_int_ge(fd, 0);
    say_and_wait(fd, head, sizeof(head));
    say_and_wait(fd, zeros, 1);
    (void)tierce__alloc_fail_nth(0);
    for (int i = 0; i < SINGLE; i++)
        say_and_wait(fd, zeros, 1);
    ck_assert_uint_le(tierce__alloc_fail_nth(0), 2);
    say_and_wait(fd, zeros, FOLLOWING);
    ck_assert_uint_ge(tierce__alloc_fail_nth(0), DOUBLINGS);
    close(fd);
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

CHECK_MAIN("node_native_frames", .seconds = 120, .tests = {memory_comes_with_the_bytes})
