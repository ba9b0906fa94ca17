/* SPDX-License-Identifier: Apache-2.0 */
/* Renewals of write sessions, and answers about sessions that have ended. */
#include "base/bytes.h"
#include "check_main.h"
#include "manager_harness.h"

static const int64_t chain[] = {11, 22, 33, 44};

enum { SECOND = 1000000, TIMEOUT_S = 30, DAY_S = TIERCE__WRITE_TIMEOUT_S_MAX };

static int renew_of(struct harness *h, const char *instance, const char *id,
                    struct tierce__renewed *out)
{
    return tierce__locator_renew_write(h->locator, instance, id, out, h->why);
}

static int64_t renew(struct harness *h, const struct tierce__started *started)
{
    struct tierce__renewed renewed;
    int rc = renew_of(h, "i", started->session, &renewed);
    ck_assert_msg(rc == 0, "%s", h->why);
    return renewed.left_us;
}

static void check_ended(struct harness *h, const char *id, enum tierce__session_end end,
                        const char *said)
{
    struct tierce__renewed renewed;
    ck_assert_int_eq(renew_of(h, "i", id, &renewed), -ESRCH);
    ck_assert_int_eq(renewed.end, end);
    ck_assert_int_eq(renewed.left_us, 0);
    ck_assert_msg(strstr(h->why, id) != NULL && strstr(h->why, said) != NULL, "%s", h->why);
}

static size_t pass(struct harness *h, int64_t seconds)
{
    h->now_us += seconds * SECOND;
    return tierce__locator_expire(h->locator);
}

START_TEST(a_renewal_counts_from_now)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, 3);
    ck_assert_uint_eq(pass(&h, 20), 0);
    ck_assert_int_eq(renew(&h, &started), TIMEOUT_S * SECOND);
    ck_assert_int_eq(tierce__locator_next_expiry(h.locator), h.now_us + TIMEOUT_S * SECOND);
    ck_assert_uint_eq(pass(&h, 29), 0); /* 49 s after the start */
    ck_assert_int_eq(renew(&h, &started), TIMEOUT_S * SECOND);
    ck_assert_uint_eq(pass(&h, 29), 0);
    harness_finish(&h, &started);
    ck_assert_uint_eq(harness_prefix(&h, chain, 3), 3);
    started = harness_start(&h, chain + 3, 1);
    ck_assert_uint_eq(pass(&h, 20), 0);
    (void)renew(&h, &started);
    ck_assert_uint_eq(pass(&h, 29), 0);
    ck_assert_uint_eq(pass(&h, 1), 1); /* and then it ends as any other */
    ck_assert_uint_eq(harness_usage(&h).deleting_bytes, BLOCK_BYTES);
    harness_close(&h);
}
END_TEST

START_TEST(a_session_without_blocks_is_renewed_by_its_own_time)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    harness_store(&h, chain, 2);
    struct tierce__started started = harness_start(&h, chain, 2);
    ck_assert_uint_eq(started.count, 0);
    (void)pass(&h, 9);
    ck_assert_int_eq(renew(&h, &started), 10 * SECOND);
    (void)pass(&h, 9);
    harness_finish(&h, &started);
    harness_close(&h);
}
END_TEST

START_TEST(the_error_says_how_a_session_has_ended)
{
    struct harness h;
    struct tierce__renewed renewed;
    harness_open(&h, &(struct harness_opts){0});
    harness_add_instance(&h, "j");
    check_ended(&h, "0123456789abcdefghijklmnopqrstuv", TIERCE__SESSION_UNKNOWN, "is unknown");
    check_ended(&h, "", TIERCE__SESSION_UNKNOWN, "is unknown");
    struct tierce__started first = harness_start(&h, chain, 1);
    harness_finish(&h, &first);
    check_ended(&h, first.session, TIERCE__SESSION_FINISHED, "was finished");
    struct tierce__started second = harness_start(&h, chain + 1, 1);
    ck_assert_int_eq(renew_of(&h, "j", second.session, &renewed), -ESRCH);
    ck_assert_int_eq(renewed.end, TIERCE__SESSION_UNKNOWN); /* it is another instance's */
    ck_assert_uint_eq(pass(&h, TIMEOUT_S), 1);
    check_ended(&h, second.session, TIERCE__SESSION_EXPIRED, "has timed out");
    check_ended(&h, first.session, TIERCE__SESSION_FINISHED, "was finished");
    ck_assert_int_eq(renew_of(&h, "j", second.session, &renewed), -ESRCH);
    ck_assert_int_eq(renewed.end, TIERCE__SESSION_UNKNOWN);
    ck_assert_int_eq(renew_of(&h, "none", second.session, &renewed), -ENOENT);
    tierce__locator_drop(h.locator);
    ck_assert_int_eq(renew_of(&h, "i", second.session, &renewed), TIERCE_E_CLOSED);
    harness_close(&h);
}
END_TEST

START_TEST(a_session_that_a_call_ends_is_not_renewed)
{
    struct harness h;
    struct tierce__live *live;
    struct tierce__write_session *ending;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, 2);
    int64_t due_us = tierce__locator_next_expiry(h.locator);
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    ck_assert_int_eq(tierce__live_begin_finish(live, started.session, NULL, &ending, h.why), 0);
    h.now_us += SECOND;
    check_ended(&h, started.session, TIERCE__SESSION_FINISHED, "is being finished");
    ck_assert_int_eq(tierce__locator_next_expiry(h.locator), due_us);
    tierce__live_unfinish(live, ending);
    ck_assert_int_eq(renew(&h, &started), TIMEOUT_S * SECOND); /* the call failed */
    tierce__live_release(live);
    harness_finish(&h, &started);
    harness_close(&h);
}
END_TEST

/* Its time is over, but nobody has ended it: its blocks are all there. */
START_TEST(a_late_session_is_renewed)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, 2);
    h.now_us += 100 * SECOND;
    ck_assert_int_eq(renew(&h, &started), TIMEOUT_S * SECOND);
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 0);
    harness_finish(&h, &started);
    ck_assert_uint_eq(harness_prefix(&h, chain, 2), 2);
    harness_close(&h);
}
END_TEST

START_TEST(a_write_lasts_a_day_in_all)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, 2);
    int64_t last_us = h.now_us + (int64_t)DAY_S * SECOND;
    for (int64_t s = 20; s + TIMEOUT_S <= DAY_S; s += 20) {
        ck_assert_uint_eq(pass(&h, 20), 0);
        ck_assert_int_eq(renew(&h, &started), TIMEOUT_S * SECOND);
    }
    ck_assert_uint_eq(pass(&h, 20), 0);
    ck_assert_int_lt(renew(&h, &started), TIMEOUT_S * SECOND);
    ck_assert_int_eq(tierce__locator_next_expiry(h.locator), last_us);
    h.now_us = last_us;
    ck_assert_int_eq(renew(&h, &started), 0); /* nothing is left */
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 1);
    check_ended(&h, started.session, TIERCE__SESSION_EXPIRED, "has timed out");
    harness_close(&h);
}
END_TEST

/* ---- the next leader ------------------------------------------------------------------------- */

struct failover {
    struct harness h;
    char index[64];
    uint64_t fence;
};

static void failover_open(struct failover *f)
{
    *f = (struct failover){.fence = 1};
    snprintf(f->index, sizeof(f->index), "/tmp/tierce_indexXXXXXX");
    temp_folder_make(f->index);
    harness_open(&f->h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = f->index});
}

static void failover_close(struct failover *f)
{
    harness_close(&f->h);
    temp_folder_remove(f->index);
}

static void change_leader(struct failover *f)
{
    tierce__locator_drop(f->h.locator);
    int rc = tierce__locator_recover(f->h.locator, ++f->fence, f->h.why);
    ck_assert_msg(rc == 0, "%s", f->h.why);
}

/* The last renewal promised 30 s, 10 s ago; the note knows only the start. */
START_TEST(the_next_leader_keeps_what_a_renewal_promised)
{
    struct failover f;
    failover_open(&f);
    struct harness *h = &f.h;
    struct tierce__started kept = harness_start(h, chain, 2);
    struct tierce__started left = harness_start(h, chain + 2, 1);
    ck_assert_uint_eq(pass(h, 25), 0);
    (void)renew(h, &kept);
    (void)renew(h, &left);
    h->now_us += 10 * SECOND;
    change_leader(&f);
    ck_assert_uint_eq(pass(h, 19), 0);
    ck_assert_int_eq(renew(h, &kept), TIMEOUT_S * SECOND);
    ck_assert_uint_eq(pass(h, 11), 1); /* a timeout after it took over */
    check_ended(h, left.session, TIERCE__SESSION_EXPIRED, "has timed out");
    harness_finish(h, &kept);
    ck_assert_uint_eq(harness_prefix(h, chain, 2), 2);
    ck_assert_uint_eq(harness_usage(h).writing_bytes, 0);
    failover_close(&f);
}
END_TEST

START_TEST(the_day_counts_from_the_start_under_all_leaders)
{
    struct failover f;
    failover_open(&f);
    struct harness *h = &f.h;
    struct tierce__started started = harness_start(h, chain, 2);
    int64_t last_us = h->now_us + (int64_t)DAY_S * SECOND;
    h->now_us = last_us - 40 * SECOND; /* as if it had been renewed until then */
    ck_assert_int_eq(renew(h, &started), TIMEOUT_S * SECOND);
    change_leader(&f);
    h->now_us += 20 * SECOND;
    ck_assert_int_eq(renew(h, &started), 20 * SECOND);
    change_leader(&f);
    ck_assert_int_eq(tierce__locator_next_expiry(h->locator), last_us);
    failover_close(&f);
}
END_TEST

/* The clock of the leader before was an hour ahead, or behind. */
START_TEST(leaders_may_have_other_clocks)
{
    for (int ahead = 0; ahead < 2; ahead++) {
        struct failover f;
        failover_open(&f);
        struct harness *h = &f.h;
        struct tierce__started started = harness_start(h, chain, 2);
        h->now_us += (ahead == 0 ? 3600 : -3600) * (int64_t)SECOND;
        change_leader(&f);
        ck_assert_uint_eq(tierce__locator_expire(h->locator), 0);
        int64_t due_us = tierce__locator_next_expiry(h->locator);
        ck_assert_int_eq(due_us, h->now_us + TIMEOUT_S * SECOND);
        ck_assert_int_ge(renew(h, &started), TIMEOUT_S * SECOND);
        harness_finish(h, &started);
        failover_close(&f);
    }
}
END_TEST

enum { VERSION_AT = 0, DUE_AT = 1 + TIERCE__SESSION_ID_BYTES, TIMEOUT_AT = DUE_AT + 8 };

/* Replaces the note of the only session by one with other bytes. */
static void write_note(struct failover *f, unsigned char *bytes, size_t count, uint64_t number)
{
    struct tierce__live *live;
    ck_assert_int_eq(tierce__live_acquire(&live, f->h.locator, "i", f->h.why), 0);
    struct tierce__meta_note note = {
        .kind = TIERCE__NOTE_SESSION, .number = number, .value = bytes, .bytes = count};
    ck_assert_int_eq(
        live->space->ops->write(live->space,
                                &(struct tierce__meta_batch){.notes = &note, .note_count = 1}),
        0);
    tierce__live_release(live);
}

static unsigned char *read_note(struct failover *f, const char *id, size_t *count, uint64_t *number)
{
    struct tierce__live *live;
    const void *value;
    ck_assert_int_eq(tierce__live_acquire(&live, f->h.locator, "i", f->h.why), 0);
    tierce__lock_take(&live->lock);
    *number = tierce__live_session(live, id)->note;
    tierce__lock_drop(&live->lock);
    ck_assert_int_eq(live->space->ops->note(live->space, TIERCE__NOTE_SESSION, *number, &f->h.arena,
                                            &value, count),
                     0);
    tierce__live_release(live);
    unsigned char *copy = tierce__arena_alloc(&f->h.arena, *count);
    memcpy(copy, value, *count);
    return copy;
}

/* As a manager without renewals has written it: it lives as long as its note says, and is renewed
 * by the time that it had left. */
START_TEST(a_note_without_a_timeout_is_taken_up)
{
    struct failover f;
    size_t count;
    uint64_t number;
    failover_open(&f);
    struct harness *h = &f.h;
    struct tierce__started started = harness_start(h, chain, 2);
    unsigned char *note = read_note(&f, started.session, &count, &number);
    ck_assert_uint_eq(note[VERSION_AT], 2);
    note[VERSION_AT] = 1;
    memmove(note + TIMEOUT_AT, note + TIMEOUT_AT + 8, count - TIMEOUT_AT - 8);
    write_note(&f, note, count - 8, number);
    int64_t due_us = tierce__locator_next_expiry(h->locator);
    h->now_us += 10 * SECOND;
    change_leader(&f);
    ck_assert_int_eq(tierce__locator_next_expiry(h->locator), due_us);
    h->now_us += 15 * SECOND;
    ck_assert_int_eq(renew(h, &started), 20 * SECOND);
    harness_finish(h, &started);
    ck_assert_uint_eq(harness_prefix(h, chain, 2), 2);
    failover_close(&f);
}
END_TEST

/* One field of the note is invalid: the session is not taken up. */
START_TEST(each_field_of_a_notes_times_is_checked)
{
    static const struct {
        size_t at;
        int64_t value;
        bool is_good;
    } cases[] = {
        {TIMEOUT_AT, (int64_t)DAY_S * SECOND, true},
        {TIMEOUT_AT, (int64_t)DAY_S * SECOND + 1, false},
        {TIMEOUT_AT, -1, false},
        {TIMEOUT_AT, INT64_MIN, false},
        {DUE_AT, 0, true},
        {DUE_AT, -1, false},
        {DUE_AT, INT64_MAX, true}, /* a day at most */
        {VERSION_AT, 3, false},
        {VERSION_AT, 0, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct failover f;
        struct tierce__renewed renewed;
        size_t count;
        uint64_t number;
        failover_open(&f);
        struct tierce__started started = harness_start(&f.h, chain, 1);
        unsigned char *note = read_note(&f, started.session, &count, &number);
        if (cases[i].at == VERSION_AT)
            note[VERSION_AT] = (unsigned char)cases[i].value;
        else
            tierce__store_le64(note + cases[i].at, (uint64_t)cases[i].value);
        write_note(&f, note, count, number);
        change_leader(&f);
        int rc = renew_of(&f.h, "i", started.session, &renewed);
        ck_assert_msg(rc == (cases[i].is_good ? 0 : -ESRCH), "case %zu: %s", i, f.h.why);
        ck_assert_int_le(renewed.left_us, (int64_t)DAY_S * SECOND);
        failover_close(&f);
    }
}
END_TEST

/* Many finished sessions displace the oldest of them, and none that expired. */
START_TEST(the_last_endings_are_remembered)
{
    enum { REMEMBERED = 4096 };
    struct harness h;
    static struct tierce__started ended[REMEMBERED + 1];
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started late = harness_start(&h, chain, 1);
    ck_assert_uint_eq(pass(&h, TIMEOUT_S), 1);
    harness_store(&h, chain + 1, 1);
    for (size_t i = 0; i < REMEMBERED + 1; i++) {
        ended[i] = harness_start(&h, chain + 1, 1);
        harness_finish(&h, &ended[i]);
    }
    check_ended(&h, ended[0].session, TIERCE__SESSION_UNKNOWN, "is unknown");
    check_ended(&h, ended[1].session, TIERCE__SESSION_FINISHED, "was finished");
    check_ended(&h, ended[REMEMBERED].session, TIERCE__SESSION_FINISHED, "was finished");
    check_ended(&h, late.session, TIERCE__SESSION_EXPIRED, "has timed out");
    harness_close(&h);
}
END_TEST

CHECK_MAIN("renew", .seconds = 60,
           .tests = {a_renewal_counts_from_now, a_session_without_blocks_is_renewed_by_its_own_time,
                     the_error_says_how_a_session_has_ended,
                     a_session_that_a_call_ends_is_not_renewed, a_late_session_is_renewed,
                     a_write_lasts_a_day_in_all, the_next_leader_keeps_what_a_renewal_promised,
                     the_day_counts_from_the_start_under_all_leaders, leaders_may_have_other_clocks,
                     a_note_without_a_timeout_is_taken_up, each_field_of_a_notes_times_is_checked,
                     the_last_endings_are_remembered})
