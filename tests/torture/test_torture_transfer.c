/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a server of transfer:// and a client, told again and again, in which each allocation
 * fails once, and then each call to a socket: with an error, interrupted, or with a single byte.
 * Whatever fails: no crash, no leak, no hang, never a wrong byte, and nothing of the keeper's stays
 * lent.
 */
#include "base/alloc.h"
#include "connector_harness.h"
#include "raw_transfer.h"
#include "silent_log.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define BYTES 70000u /* more than a packet */

/* ---- sockets that fail ----------------------------------------------------------------------- */

enum trouble { NONE, BROKEN, INTERRUPTED, SHORT, ALL_SHORT };

static _Atomic int trouble;
static _Atomic uint32_t calls, failing; /* of sockets so far; which one fails, from 1 */

ssize_t __real_readv(int fd, const struct iovec *pieces, int count);
ssize_t __wrap_readv(int fd, const struct iovec *pieces, int count);
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);

/* What becomes of this call: NONE, or the trouble. */
static int next_trouble(void)
{
    uint32_t call = atomic_fetch_add(&calls, 1) + 1;
    int kind = atomic_load(&trouble);
    return kind == ALL_SHORT || call == atomic_load(&failing) ? kind : NONE;
}

/* Fails the call with -1, or leaves the length to transfer; 0: all. */
static ssize_t suffer(int fd, int kind)
{
    if (kind == BROKEN)
        shutdown(fd, SHUT_RDWR); /* the other end must see it, too */
    errno = kind == BROKEN ? ECONNRESET : EINTR;
    return kind == BROKEN || kind == INTERRUPTED ? -1
           : kind == SHORT                       ? 1
           : kind == ALL_SHORT                   ? 97
                                                 : 0;
}

static struct iovec cut(const struct iovec *pieces, size_t count, size_t most)
{
    size_t i = 0;
    while (i + 1 < count && pieces[i].iov_len == 0)
        i++;
    return (struct iovec){pieces[i].iov_base, pieces[i].iov_len < most ? pieces[i].iov_len : most};
}

ssize_t __wrap_readv(int fd, const struct iovec *pieces, int count)
{
    ssize_t left = suffer(fd, next_trouble());
    if (left <= 0)
        return left < 0 ? -1 : __real_readv(fd, pieces, count);
    struct iovec piece = cut(pieces, (size_t)count, (size_t)left);
    return __real_readv(fd, &piece, 1);
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t left = suffer(fd, next_trouble());
    if (left <= 0)
        return left < 0 ? -1 : __real_sendmsg(fd, message, flags);
    struct iovec piece = cut(message->msg_iov, message->msg_iovlen, (size_t)left);
    return __real_sendmsg(fd, &(struct msghdr){.msg_iov = &piece, .msg_iovlen = 1}, flags);
}

/* ---- the story ------------------------------------------------------------------------------- */

static struct map_keeper *keeper;
static struct tierce__transfer_server *server;
static struct tierce__pool *pool;
static struct tierce__connector *connector;
static uint32_t version;
static uint64_t object_bytes;

static bool start(void)
{
    char why[256] = "";
    struct tierce__transfer_server_opts opts = {
        .size = sizeof(opts), .host = "127.0.0.1", .keeper = map_keeper_base(keeper)};
    int rc = tierce__transfer_server_start(&server, &opts, why);
    ck_assert(rc == 0 || (rc == -ENOMEM && why[0] != '\0'));
    return rc == 0;
}

static bool open_client(void)
{
    char url[96], why[TIERCE__CONNECTOR_WHY_BYTES] = "";
    snprintf(url, sizeof(url), "transfer://127.0.0.1:%u/memory?connections=2",
             (unsigned)tierce__transfer_server_port(server));
    int rc =
        tierce__connector_open(&connector, url,
                               &(struct tierce__connector_opts){
                                   .size = sizeof(struct tierce__connector_opts), .pool = pool},
                               why);
    ck_assert(rc == 0 || rc == -ENOMEM);
    return rc == 0;
}

struct listing {
    struct connector_call call;
    unsigned count;
};

static void count_one(void *arg, const struct tierce_plugin_name *name)
{
    struct connector_call *call = arg;
    ck_assert_uint_eq(name->bytes, 1);
    TIERCE__CONTAINER_OF(call, struct listing, call)->count++;
}

/* True: nothing failed. */
static bool use(void)
{
    struct listing listing = {.count = 0};
    uint32_t old = ++version;
    int put = connector_put(connector, pool, "x", old, object_bytes);
    int got = connector_get(connector, pool, "x", old, 0, object_bytes); /* never another byte */
    ck_assert(put != 0 || got != TIERCE_E_MISS);
    bool whole = put == 0 && got == 0;
    whole &= connector_exists(connector, "x") == 1;
    connector_call_init(&listing.call, TIERCE__STORE_LIST, "", 0);
    listing.call.req.each = count_one;
    int rc = connector_call_run(connector, &listing.call);
    ck_assert(rc != 0 || put != 0 || listing.count >= 1);
    whole &= rc == 0;
    rc = connector_delete(connector, "x");
    got = connector_get(connector, pool, "x", old, 0, object_bytes);
    ck_assert(rc != 0 || got != 0);
    return whole && rc == 0 && got == TIERCE_E_MISS;
}

static bool tell(void)
{
    bool whole = start();
    if (whole) {
        bool opened = open_client();
        whole = opened && use();
        if (opened)
            ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(60000)));
        tierce__transfer_server_stop(server, tierce__deadline_in_ms(60000));
    }
    ck_assert_uint_eq(map_keeper_lent(keeper), 0);
    map_keeper_clear(keeper);
    return whole;
}

static void setup(void)
{
    silence_log();
    pool = connector_pool();
    keeper = map_keeper_create("memory", 1 << 20);
    object_bytes = BYTES;
}

static void teardown(void)
{
    map_keeper_destroy(keeper);
    tierce__pool_destroy(pool);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* ---- troubles -------------------------------------------------------------------------------- */

START_TEST(each_allocation_fails_once)
{
    ck_assert(tell());
    uint64_t live = tierce__alloc_live(), nth = 0, made;
    object_bytes = 2000;
    do { /* until a story that does not reach it */
        tierce__alloc_fail_nth(++nth);
        (void)tell();
        made = tierce__alloc_fail_nth(0);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    } while (made >= nth);
    ck_assert_uint_gt(nth, 20);
    ck_assert(tell());
}
END_TEST

/* How many calls a story without trouble makes, about. */
static uint32_t count_calls(void)
{
    atomic_store(&trouble, NONE);
    atomic_store(&calls, 0);
    ck_assert(tell());
    return atomic_load(&calls);
}

static void trouble_each(enum trouble kind, bool is_harmless)
{
    uint32_t count = count_calls();
    ck_assert_uint_gt(count, 14);
    for (uint32_t nth = 1; nth <= count; nth++) {
        atomic_store(&calls, 0);
        atomic_store(&failing, nth);
        atomic_store(&trouble, kind);
        bool whole = tell();
        ck_assert(whole || !is_harmless);
    }
    ck_assert_uint_ge(count_calls(), 14); /* and it is whole again */
}

START_TEST(each_call_breaks_once)
{
    trouble_each(BROKEN, false);
}
END_TEST

START_TEST(each_call_is_interrupted_or_short_once)
{
    trouble_each(INTERRUPTED, true);
    trouble_each(SHORT, true);
}
END_TEST

START_TEST(all_calls_are_short)
{
    object_bytes = 5000;
    atomic_store(&trouble, ALL_SHORT);
    ck_assert(tell());
    ck_assert_uint_gt(atomic_load(&calls), 2 * 5000 / 97);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("torture transfer");
    TCase *tcase = tcase_create("troubles");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 500);
    tcase_add_test(tcase, each_allocation_fails_once);
    tcase_add_test(tcase, each_call_breaks_once);
    tcase_add_test(tcase, each_call_is_interrupted_or_short_once);
    tcase_add_test(tcase, all_calls_are_short);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
