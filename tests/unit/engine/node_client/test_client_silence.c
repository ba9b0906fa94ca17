/* SPDX-License-Identifier: Apache-2.0 */
/* When a node counts as silent: the states, with times and answers of the test's choice. */
#include "check_main.h"
#include "base/clock.h"
#include "engine/node_client/client_silence.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#define START_NS  UINT64_C(5000000000)
#define QUIET_NS  (TIERCE__SILENCE_QUIET_MS * TIERCE__MS_NS)
#define SILENT_NS (TIERCE__SILENCE_MS * TIERCE__MS_NS)

static struct tierce__silence s;
static int node; /* its end of the probe */

static void be_late(unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        tierce__silence_note_late(&s, START_NS);
}

static void send_probe(uint64_t now_ns)
{
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    node = ends[0];
    ck_assert(tierce__silence_takes_probe(&s, now_ns));
    ck_assert_int_eq(tierce__silence_sent(&s, ends[1]), TIERCE__SILENCE_SAME);
    ck_assert(!tierce__silence_takes_probe(&s, now_ns + QUIET_NS)); /* one at a time */
}

static void answer_probe(void)
{
    ck_assert_int_eq(write(node, "x", 1), 1);
}

static bool is_probe_closed(void)
{
    char byte;
    ssize_t n = recv(node, &byte, 1, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno == ECONNRESET);
}

static void finish(void)
{
    tierce__silence_fini(&s);
    ck_assert(is_probe_closed());
    close(node);
}

START_TEST(a_few_late_answers_send_a_probe)
{
    tierce__silence_init(&s);
    be_late(TIERCE__SILENCE_LATE_MAX - 1);
    ck_assert(!tierce__silence_takes_probe(&s, START_NS));
    ck_assert(!tierce__silence_is_quiet(&s, START_NS));
    ck_assert_int_eq(tierce__silence_note_answer(&s), TIERCE__SILENCE_SAME);
    be_late(TIERCE__SILENCE_LATE_MAX - 1); /* not in a row */
    ck_assert(!tierce__silence_takes_probe(&s, START_NS));
    be_late(1);
    ck_assert(tierce__silence_is_quiet(&s, START_NS + QUIET_NS - 1));
    ck_assert(!tierce__silence_is_quiet(&s, START_NS + QUIET_NS));
    send_probe(START_NS);
    ck_assert_int_eq(tierce__silence_look(&s, START_NS + SILENT_NS - 1), TIERCE__SILENCE_SAME);
    ck_assert(!s.is_silent);
    finish();
}
END_TEST

START_TEST(without_an_answer_it_is_silent_until_one_comes)
{
    tierce__silence_init(&s);
    be_late(TIERCE__SILENCE_LATE_MAX);
    send_probe(START_NS);
    ck_assert_int_eq(tierce__silence_look(&s, START_NS + SILENT_NS), TIERCE__SILENCE_BEGUN);
    ck_assert(s.is_silent);
    ck_assert_int_eq(tierce__silence_look(&s, START_NS + 9 * SILENT_NS), TIERCE__SILENCE_SAME);
    ck_assert(s.is_silent);
    answer_probe();
    ck_assert_int_eq(tierce__silence_look(&s, START_NS + 9 * SILENT_NS), TIERCE__SILENCE_ENDED);
    ck_assert(!s.is_silent && !tierce__silence_is_quiet(&s, START_NS + 9 * SILENT_NS));
    finish();
}
END_TEST

/* The answer of an earlier request, and the end of the node, are signs of life, or of death. */
START_TEST(other_ends_of_silence)
{
    tierce__silence_init(&s);
    be_late(TIERCE__SILENCE_LATE_MAX);
    send_probe(START_NS);
    ck_assert_int_eq(tierce__silence_look(&s, START_NS + SILENT_NS), TIERCE__SILENCE_BEGUN);
    ck_assert_int_eq(tierce__silence_note_answer(&s), TIERCE__SILENCE_ENDED);
    ck_assert(is_probe_closed());
    close(node);
    be_late(TIERCE__SILENCE_LATE_MAX);
    send_probe(START_NS);
    ck_assert_int_eq(tierce__silence_look(&s, START_NS + SILENT_NS), TIERCE__SILENCE_BEGUN);
    ck_assert_int_eq(shutdown(node, SHUT_RDWR), 0);
    ck_assert_int_eq(tierce__silence_look(&s, START_NS + SILENT_NS), TIERCE__SILENCE_ENDED);
    finish();
}
END_TEST

/* Its requests are late again and again, but each probe is answered, however late it is looked at.
 */
START_TEST(a_slow_node_is_never_silent)
{
    tierce__silence_init(&s);
    for (int i = 0; i < 10; i++) {
        be_late(TIERCE__SILENCE_LATE_MAX);
        send_probe(START_NS);
        ck_assert_int_eq(tierce__silence_look(&s, START_NS + SILENT_NS - 1), TIERCE__SILENCE_SAME);
        answer_probe();
        ck_assert_int_eq(tierce__silence_look(&s, START_NS + 100 * SILENT_NS),
                         TIERCE__SILENCE_SAME);
        ck_assert(!s.is_silent && is_probe_closed());
        close(node);
        ck_assert(tierce__silence_is_quiet(&s, START_NS)); /* its requests were late all the same */
        be_late(1);                                        /* the next one costs one deadline */
        send_probe(START_NS);
        ck_assert_int_eq(tierce__silence_note_answer(&s), TIERCE__SILENCE_SAME);
        ck_assert(is_probe_closed());
        close(node);
    }
    tierce__silence_fini(&s);
}
END_TEST

START_TEST(a_probe_that_cannot_be_sent)
{
    tierce__silence_init(&s);
    be_late(TIERCE__SILENCE_LATE_MAX);
    /* The node accepts nothing. */
    ck_assert(tierce__silence_takes_probe(&s, START_NS));
    ck_assert_int_eq(tierce__silence_sent(&s, -EAGAIN), TIERCE__SILENCE_SAME);
    ck_assert(!tierce__silence_takes_probe(&s, START_NS + QUIET_NS - 1));
    ck_assert(tierce__silence_takes_probe(&s, START_NS + QUIET_NS));
    ck_assert_int_eq(tierce__silence_sent(&s, -EAGAIN), TIERCE__SILENCE_SAME);
    ck_assert_int_eq(tierce__silence_look(&s, START_NS + SILENT_NS), TIERCE__SILENCE_BEGUN);
    ck_assert(tierce__silence_takes_probe(&s, START_NS + SILENT_NS));
    ck_assert_int_eq(tierce__silence_sent(&s, -ECONNREFUSED), TIERCE__SILENCE_ENDED);
    /* An error of this process shows nothing. */
    be_late(1);
    ck_assert(tierce__silence_takes_probe(&s, START_NS));
    ck_assert_int_eq(tierce__silence_sent(&s, -EMFILE), TIERCE__SILENCE_SAME);
    ck_assert_int_eq(tierce__silence_look(&s, START_NS + 9 * SILENT_NS), TIERCE__SILENCE_SAME);
    /* A request was answered while the probe was sent. */
    be_late(1);
    ck_assert(tierce__silence_takes_probe(&s, START_NS));
    ck_assert_int_eq(tierce__silence_note_answer(&s), TIERCE__SILENCE_SAME);
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    node = ends[0];
    ck_assert_int_eq(tierce__silence_sent(&s, ends[1]), TIERCE__SILENCE_SAME);
    finish();
}
END_TEST

CHECK_MAIN("client_silence", .seconds = 60,
           .tests = {a_few_late_answers_send_a_probe,
                     without_an_answer_it_is_silent_until_one_comes, other_ends_of_silence,
                     a_slow_node_is_never_silent, a_probe_that_cannot_be_sent})
