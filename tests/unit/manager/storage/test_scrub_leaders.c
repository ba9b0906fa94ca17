/* SPDX-License-Identifier: Apache-2.0 */
/* Another leader goes on with a scrub, by its position in the registry. */
#include "base/alloc.h"
#include "manager/scrub/scrub_private.h"
#include "scrub_case.h"

enum { MANY_KEYS = 600, PAGE = 256 * PARTS };
static int64_t many[MANY_KEYS];
static _Atomic uint64_t looked_at;       /* files */
static enum tierce__scrub_phase ends_in; /* the phase in which this manager ceases to lead */
static uint64_t ends_after;              /* files that were measured */

static void cease_to_lead(void)
{
    struct tierce__scrub_state state;
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    if (state.phase == ends_in && looked_at >= ends_after)
        tierce__scrub_leave(scrub);
}

static int measure_and_count(struct tierce__storage_driver *driver, const char *path,
                             uint64_t *bytes)
{
    looked_at++;
    return tierce__storage_file.measure(driver, path, bytes);
}

static void store_many(void)
{
    for (int i = 0; i < MANY_KEYS; i++)
        many[i] = 1000 + i;
    struct tierce__started started = harness_start(&h, many, MANY_KEYS);
    write_all(&started);
    age_all(&started);
    harness_finish(&h, &started);
    h.now_us += HOUR_US;
    ops.measure = measure_and_count;
    while_it_waits = cease_to_lead;
    open_scrub(true);
}

static void lead_again(uint64_t fence)
{
    tierce__registry_drop(h.registry);
    ck_assert_int_eq(tierce__registry_load(h.registry, fence, h.why), 0);
    open_scrub(true);
}

static struct tierce__scrub_state stop_and_resume(uint64_t fence)
{
    struct tierce__scrub_state state;
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_int_eq(state.phase, TIERCE__SCRUB_STOPPED);
    ck_assert_msg(strstr(state.why, "the next leader goes on") != NULL, "%s", state.why);
    /* The next leader knows only the registry. */
    lead_again(fence);
    ck_assert(!tierce__scrub_state(scrub, "s", &state));
    tierce__scrub_resume(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    return state;
}

START_TEST(the_next_leader_goes_on)
{
    struct tierce__scrub_request request = {.storage = "s", .repairs = true, .rate = 4};
    store_many();
    char orphan[400];
    snprintf(orphan, sizeof(orphan), "%s", make_file("i/a/00000000000000f1", true));
    ends_in = TIERCE__SCRUB_RECORDS;
    ends_after = MANY_KEYS; /* half of them */
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    struct tierce__scrub_state state = stop_and_resume(2);
    ck_assert(state.repairs && state.rate == 4 && state.began_us > 0);
    ends_in = TIERCE__SCRUB_OBJECTS;
    state = stop_and_resume(3);
    uint64_t measured = looked_at;
    ck_assert_uint_ge(measured, MANY_KEYS * PARTS);
    ck_assert_uint_le(measured, MANY_KEYS * PARTS + PAGE);
    ends_in = TIERCE__SCRUB_PHASES;
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_msg(state.phase == TIERCE__SCRUB_DONE, "%s", state.why);
    ck_assert_uint_eq(state.counts.checked, MANY_KEYS * PARTS);
    ck_assert_uint_eq(state.counts.missing, 0);
    ck_assert_uint_eq(state.counts.deleted_orphans, 1);
    ck_assert_uint_eq(looked_at, measured); /* the records are not looked at again */
    ck_assert(!exists(orphan));
    ck_assert_uint_eq(harness_prefix(&h, many, MANY_KEYS), MANY_KEYS);
    open_scrub(true); /* it has ended: a further leader has nothing to go on with */
    tierce__scrub_resume(scrub);
    ck_assert(!tierce__scrub_state(scrub, "s", &state));
}
END_TEST

static int measure_and_fail_once(struct tierce__storage_driver *driver, const char *path,
                                 uint64_t *bytes)
{
    return looked_at++ == 0 ? -EIO : tierce__storage_file.measure(driver, path, bytes);
}

START_TEST(another_leader_knows_what_was_not_judged)
{
    struct tierce__scrub_request request = {.storage = "s", .rate = 4};
    store_many();
    ops.measure = measure_and_fail_once;
    ends_in = TIERCE__SCRUB_RECORDS;
    ends_after = PAGE + 1; /* the page with the failure was passed */
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    (void)stop_and_resume(2);
    ends_in = TIERCE__SCRUB_OBJECTS;
    (void)stop_and_resume(3);
    ends_in = TIERCE__SCRUB_PHASES;
    tierce__scrub_wait(scrub);
    struct tierce__scrub_state state;
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_msg(state.phase == TIERCE__SCRUB_INCOMPLETE, "%s",
                  tierce__scrub_phase_name(state.phase));
    ck_assert_msg(strncmp(state.why, "not measured: ", 14) == 0, "%s", state.why);
    ck_assert_uint_eq(state.counts.unreadable, 1);
    ck_assert_int_eq(state.whole_us, 0);
}
END_TEST

static bool is_called_off;

static void call_off_and_cease(void)
{
    if (looked_at < PAGE)
        return;
    if (!is_called_off)
        stop_scrub("s");
    is_called_off = true;
    tierce__scrub_leave(scrub);
}

/* The operator's word was answered before the lead was lost. */
START_TEST(a_scrub_that_was_stopped_does_not_come_back)
{
    struct tierce__scrub_request request = {.storage = "s", .rate = 4};
    struct tierce__scrub_state state;
    store_many();
    while_it_waits = call_off_and_cease;
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), 0);
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, "s", &state));
    ck_assert_int_eq(state.phase, TIERCE__SCRUB_STOPPED);
    ck_assert_str_eq(state.why, "");
    lead_again(2);
    tierce__scrub_resume(scrub);
    ck_assert(!tierce__scrub_state(scrub, "s", &state));
}
END_TEST

/* The answer does not promise that the scrub is over. */
START_TEST(a_stop_that_the_registry_does_not_take_fails)
{
    char name[] = "s";
    struct tierce__storage storage = {.name = name, .number = 1};
    tierce__registry_drop(h.registry);
    ck_assert_int_eq(tierce__scrub_stop(scrub, &storage, h.why), TIERCE_E_CLOSED);
    ck_assert_msg(strstr(h.why, "the next leader goes on with it") != NULL, "%s", h.why);
    ck_assert_int_eq(tierce__registry_load(h.registry, 2, h.why), 0);
}
END_TEST

/* A scrub that runs does not leave its position to another storage of the same name. */
START_TEST(a_position_is_of_a_storage_and_not_of_a_name)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    uint16_t number = tierce__catalog_storage(catalog, "s")->number;
    char why[256];
    tierce__registry_release(h.registry, catalog);
    ck_assert_int_eq(tierce__registry_note_scrub(h.registry, "s", (uint16_t)(number + 1), "x", why),
                     -ENOENT);
    ck_assert_int_eq(tierce__registry_note_scrub(h.registry, "s", number, "x", why), 0);
}
END_TEST

START_TEST(a_position_keeps_all)
{
    static const double shares[] = {0, 1e-9, 0.1, 1};
    static char name[] = "an instance";
    static char *const instances[] = {NULL, name};
    for (size_t i = 0; i < 8; i++) {
        struct scrub_run run = {.verify_share = shares[i % 4],
                                .files.rate = 5,
                                .bytes.rate = 7,
                                .salt = UINT64_MAX,
                                .began_us = 9,
                                .at.instance = instances[i / 4],
                                .at.cursor = i / 4 * 11,
                                .at.counts.damaged = 13},
                         read = {.repairs = true};
        char *text = NULL, *again = NULL;
        snprintf(run.at.unread, sizeof(run.at.unread), "%s", i % 2 == 0 ? "" : "not read: a b");
        ck_assert_int_eq(tierce__scrub_position_write(&text, &run), 0);
        ck_assert_int_eq(tierce__scrub_position_read(&read, text, h.why), 0);
        ck_assert_int_eq(tierce__scrub_position_write(&again, &read), 0);
        ck_assert_str_eq(text, again);
        ck_assert(read.verify_share == shares[i % 4] && !read.repairs);
        ck_assert_str_eq(read.unread, run.at.unread);
        ck_assert_uint_eq(read.counts.damaged, 13);
        ck_assert_pstr_eq(read.at.instance, instances[i / 4]);
        tierce__free(text);
        tierce__free(again);
        tierce__free(read.at.instance);
    }
}
END_TEST

START_TEST(a_position_that_is_no_position)
{
    static const char *const texts[] = {
        "2",
        "1 0 0 1 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 i", /* of an older version */
        "2 9 0 1 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 i",
        "2 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 i",
        "2 0 0 1 4611686018427387904 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 i",  /* the share is 2 */
        "2 0 0 1 18444492273895866368 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 i", /* no number */
        "2 0 0 1 0 1 0 0 7 0 0 0 0 0 0 0 0 0 0 0 0 ",
        "2 0 0 1 0 1 0 0 7 0 0 0 0 0 0 0 0 0 0 0 2 i",
        "2 0 0 1 0 1 0 -1 0 0 0 0 0 0 0 0 0 0 0 0 1 i",
        "2 0 0 1 0 1 0 0 99999999999999999999 0 0 0 0 0 0 0 0 0 0 0 1 i"};
    struct tierce__scrub_state state;
    char why[256];
    const struct tierce__catalog *before = tierce__registry_acquire(h.registry);
    uint16_t number = tierce__catalog_storage(before, "s")->number;
    tierce__registry_release(h.registry, before);
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        ck_assert_int_eq(tierce__registry_note_scrub(h.registry, "s", number, texts[i], why), 0);
        tierce__scrub_resume(scrub);
        ck_assert(!tierce__scrub_state(scrub, "s", &state));
        const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
        ck_assert_str_eq(tierce__catalog_storage(catalog, "s")->scrub, "");
        tierce__registry_release(h.registry, catalog);
    }
}
END_TEST

CHECK_MAIN("scrub_leaders", .seconds = 240, .setup = open_all, .teardown = close_all,
           .tests = {the_next_leader_goes_on, another_leader_knows_what_was_not_judged,
                     a_scrub_that_was_stopped_does_not_come_back,
                     a_stop_that_the_registry_does_not_take_fails,
                     a_position_is_of_a_storage_and_not_of_a_name, a_position_keeps_all,
                     a_position_that_is_no_position})
