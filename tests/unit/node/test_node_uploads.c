/* SPDX-License-Identifier: Apache-2.0 */
/* Values that are announced and do not come, beside others that do. */
#include "check_main.h"
#include "node_harness.h"

#include <stdlib.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/objects/smalls_private.h"
#include "proto/lm/lm.h"

#define PAUSE_US 50000 /* between values of many MiB that are sent until something happens */

static struct node_harness h;

static void start_default_size(void)
{
    char *args[] = {(char *)"--memory.size=1GiB"};
    harness_start(&h, 1, args);
}

static void start_small(void)
{
    harness_start(&h, 0, NULL);
}

static void stop(void)
{
    while (tierce__uploads_bytes(&h.node->uploads) != 0) /* until the node has seen the ends */
        usleep(1000);
    harness_stop(&h);
}

/* "SET name" with a value of so many bytes, of which none has come. */
static void announce(int fd, const char *name, size_t bytes)
{
    char head[128];
    snprintf(head, sizeof(head), "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n", strlen(name), name,
             bytes);
    say(fd, head);
}

static void await_bytes(uint64_t bytes)
{
    while (tierce__uploads_bytes(&h.node->uploads) != bytes)
        usleep(1000);
}

static char *make_value(size_t bytes, unsigned seed)
{
    char *value = malloc(bytes);
    ck_assert_ptr_nonnull(value);
    for (size_t i = 0; i < bytes; i++)
        value[i] = (char)(i * 31 + seed + i / 4096);
    return value;
}

static void store(int fd, const char *name, const char *value, size_t bytes, const char *answer)
{
    announce(fd, name, bytes);
    say_bytes(fd, value, bytes);
    talk(fd, "\r\n", answer);
}

static void check_value(int fd, const char *name, const char *value, size_t bytes)
{
    char text[64];
    char *got = malloc(bytes);
    snprintf(text, sizeof(text), "GET %s\r\n", name);
    say(fd, text);
    snprintf(text, sizeof(text), "$%zu\r\n", bytes);
    hear(fd, text);
    hear_bytes(fd, got, bytes);
    hear(fd, "\r\n");
    ck_assert_mem_eq(got, value, bytes);
    free(got);
}

/* Two that take all there is for values that arrive, at the size that a node has by default. */
START_TEST(test_stalled_uploads_keep_nobody_out)
{
    enum { HALF = 256 << 20, MIDDLE = 300000, SMALL = 64 };
    int stalled[2] = {harness_connect(h.ports.resp), harness_connect(h.ports.resp)};
    int fd = harness_connect(h.ports.resp);
    char *value = make_value(MIDDLE, 3);
    for (int i = 0; i < 2; i++)
        announce(stalled[i], i == 0 ? "one" : "two", HALF);
    await_bytes(2ULL * HALF);
    for (int i = 0; i < 100; i++) {
        store(fd, "small", value, SMALL, "+OK\r\n");
        store(fd, "middle", value, MIDDLE, "+OK\r\n");
    }
    check_value(fd, "small", value, SMALL);
    check_value(fd, "middle", value, MIDDLE);
    for (int i = 0; i < 2; i++)
        close(stalled[i]);
    close(fd);
    await_bytes(0);
    free(value);
}
END_TEST

/* A value as large as a stalled upload takes its memory, and the stalled client gets an error when
 * it continues. */
START_TEST(test_stalled_upload_loses_its_room)
{
    enum { BYTES = 30 << 20 };
    int stalled = harness_connect(h.ports.resp), fd = harness_connect(h.ports.resp);
    char *value = make_value(BYTES, 5);
    announce(stalled, "stalled", BYTES);
    await_bytes(BYTES);
    char answer[1] = {'-'};
    while (answer[0] == '-') { /* until it counts as stalled */
        announce(fd, "large", BYTES);
        say_bytes(fd, value, BYTES);
        say(fd, "\r\n");
        hear_bytes(fd, answer, 1);
        hear(fd, answer[0] == '-' ? "OOM command not allowed: there is no room for the value\r\n"
                                  : "OK\r\n");
        usleep(PAUSE_US);
    }
    ck_assert_uint_eq(atomic_load(&h.node->uploads.dropped), 1);
    check_value(fd, "large", value, BYTES);
    say_bytes(stalled, value, BYTES);
    talk(stalled, "\r\nGET stalled\r\nPING\r\n",
         "-OOM command not allowed: there is no room for the value\r\n$-1\r\n+PONG\r\n");
    check_value(fd, "large", value, BYTES);
    store(stalled, "stalled", value, 100000, "+OK\r\n");
    check_value(fd, "stalled", value, 100000);
    close(stalled);
    close(fd);
    free(value);
}
END_TEST

/* The same over lm://, where nothing is answered to what is dropped. */
START_TEST(test_stalled_upload_of_lm)
{
    enum { BYTES = 30 << 20 };
    struct tierce__lm_request request = {
        .command = TIERCE__LM_PUT, .value_bytes = BYTES, .shape = tierce__lm_no_shape};
    uint8_t head[TIERCE__LM_REQUEST_BYTES], reply[TIERCE__LM_REPLY_BYTES];
    int stalled = harness_connect(h.ports.lm), fd = harness_connect(h.ports.resp);
    char *value = make_value(BYTES, 5);
    request.key = "stalled";
    request.key_bytes = 7;
    ck_assert_int_eq(tierce__lm_request_encode(head, &request), 0);
    say_bytes(stalled, head, sizeof(head));
    say_bytes(stalled, value, 1000);
    await_bytes(BYTES);
    while (atomic_load(&h.node->uploads.dropped) == 0) {
        announce(fd, "large", BYTES);
        say_bytes(fd, value, BYTES);
        say(fd, "\r\n");
        char answer[1];
        hear_bytes(fd, answer, 1);
        hear(fd, answer[0] == '-' ? "OOM command not allowed: there is no room for the value\r\n"
                                  : "OK\r\n");
        usleep(PAUSE_US);
    }
    say_bytes(stalled, value, BYTES - 1000);
    request.command = TIERCE__LM_EXIST;
    request.value_bytes = 0;
    ck_assert_int_eq(tierce__lm_request_encode(head, &request), 0);
    say_bytes(stalled, head, sizeof(head));
    hear_bytes(stalled, reply, sizeof(reply));
    struct tierce__lm_reply told;
    ck_assert_int_eq(tierce__lm_reply_decode(&told, reply), 0);
    ck_assert_int_eq(told.code, TIERCE__LM_FAIL);
    check_value(fd, "large", value, BYTES);
    close(stalled);
    close(fd);
    free(value);
}
END_TEST

/* A slow upload that progresses keeps its memory, however often others request memory. */
START_TEST(test_slow_upload_succeeds)
{
    enum { BYTES = 30 << 20, PIECE = BYTES / 6 };
    int slow = harness_connect(h.ports.resp), fd = harness_connect(h.ports.resp);
    char *value = make_value(BYTES, 7);
    announce(slow, "slow", BYTES);
    for (size_t at = 0; at < BYTES; at += PIECE) {
        uint64_t until = tierce__deadline_in_ms(at == 0 ? 0 : 800);
        say_bytes(slow, value + at, PIECE);
        do {
            store(fd, "large", value, BYTES - 4096,
                  "-OOM command not allowed: there is no room for the value\r\n");
            usleep(PAUSE_US);
        } while (tierce__now_ns() < until);
    }
    talk(slow, "\r\n", "+OK\r\n");
    check_value(fd, "slow", value, BYTES);
    ck_assert_uint_eq(atomic_load(&h.node->uploads.dropped), 0);
    close(slow);
    close(fd);
    free(value);
}
END_TEST

/* Others hold the memory: a small value finds a place in a page that there is, a large one none. */
START_TEST(test_not_ready_without_room_for_large_values)
{
    enum { BUFS = 4096 };
    static struct tierce__buf *bufs[BUFS];
    char why[TIERCE__NODE_WHY_BYTES];
    size_t count = 0;
    ck_assert_msg(tierce__node_is_ready(h.node, why), "%s", why);
    int fd = harness_connect(h.ports.resp);
    store(fd, "small", "v", 1, "+OK\r\n");
    struct tierce__smalls *smalls = h.node->engine->smalls;
    for (size_t i = 0; i < smalls->partition_count; i++) {
        struct tierce__small_partition *p = &smalls->partitions[i];
        for (size_t n = 0; n < p->page_count; n++) { /* pages stay in memory */
            bufs[count++] = p->pages[n]->buf;
            tierce__buf_acquire(p->pages[n]->buf);
        }
    }
    for (uint64_t bytes = 1 << 20; bytes > 0; bytes /= 2) {
        while (count < BUFS && tierce__pool_alloc(h.node->engine->pool, &bufs[count], bytes) == 0)
            count++;
    }
    store(fd, "small", "w", 1, "+OK\r\n");
    ck_assert(!tierce__node_is_ready(h.node, why));
    ck_assert_msg(strstr(why, "a value above 64 KiB") != NULL, "%s", why);
    while (count > 0)
        tierce__buf_release(bufs[--count]);
    ck_assert_msg(tierce__node_is_ready(h.node, why), "%s", why);
    close(fd);
}
END_TEST

static void add_case(Suite *s, const char *name, void (*start)(void), const TTest *const *tests,
                     size_t count)
{
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, 110);
    tcase_add_checked_fixture(tc, start, stop);
    for (size_t i = 0; i < count; i++)
        tcase_add_test(tc, tests[i]);
    suite_add_tcase(s, tc);
}

int main(void)
{
    Suite *s = suite_create("node_uploads");
    const TTest *const at_default[] = {test_stalled_uploads_keep_nobody_out};
    const TTest *const small[] = {test_stalled_upload_loses_its_room, test_stalled_upload_of_lm,
                                  test_slow_upload_succeeds,
                                  test_not_ready_without_room_for_large_values};
    add_case(s, "default", start_default_size, at_default, 1);
    add_case(s, "small", start_small, small, 4);
    return check_main(s);
}
