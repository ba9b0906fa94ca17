/* SPDX-License-Identifier: Apache-2.0 */
/* The last served requests: what a record has, which are kept, and who finds them. */
#include "base/alloc.h"
#include "check_main.h"
#include "engine/why/requests.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct tierce__requests *requests;

static void setup(void)
{
    ck_assert_int_eq(tierce__requests_create(&requests, 8), 0);
}

static void teardown(void)
{
    tierce__requests_destroy(requests);
    requests = NULL;
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void note(const char *name, uint64_t session)
{
    struct tierce_request request = {.size = sizeof(request),
                                     .name = name,
                                     .session = session,
                                     .tokens = 100 + session,
                                     .looked_tokens = 96};
    tierce__requests_note(requests, &request);
}

static void look(uint64_t session, uint32_t ns, uint64_t to_block, enum tierce_miss_reason reason,
                 uint64_t block)
{
    struct tierce__request_lookup lookup = {.session = session,
                                            .ns = ns,
                                            .block_tokens = 16,
                                            .chunk_blocks = 4,
                                            .to_block = to_block,
                                            .miss = {.reason = reason, .block = block}};
    tierce__requests_looked(requests, &lookup);
}

static struct tierce__request_record find(const char *name, uint32_t matches)
{
    struct tierce__request_record record = {0};
    ck_assert_uint_eq(tierce__requests_find(requests, &record, name), matches);
    return record;
}

START_TEST(a_record_joins_lookup_stores_and_note)
{
    look(7, 1, 6, TIERCE_MISS_EVICTED, 4);
    look(8, 1, 6, TIERCE_MISS_NONE, 0);
    tierce__requests_stored(requests, 7, 64);
    tierce__requests_stored(requests, 7, 32);
    find("cmpl-7", 0); /* it has not ended */
    note("cmpl-7", 7);
    struct tierce__request_record record = find("cmpl-7", 1);
    ck_assert_str_eq(record.name, "cmpl-7");
    ck_assert_uint_gt(record.when_s, 1700000000);
    ck_assert_uint_eq(record.stored_tokens, 96);
    ck_assert(record.was_looked);
    ck_assert_int_eq(record.lookup.miss.reason, TIERCE_MISS_EVICTED);
    ck_assert_uint_eq(record.lookup.miss.block, 4);
    ck_assert_uint_eq(record.noted.tokens, 107);
    ck_assert_ptr_null(record.noted.name);
    /* The session has ended: its next lookup is of another request. */
    look(7, 1, 6, TIERCE_MISS_EXPIRED, 0);
    ck_assert_int_eq(find("cmpl-7", 1).lookup.miss.reason, TIERCE_MISS_EVICTED);
    note("again", 7);
    record = find("again", 1);
    ck_assert_int_eq(record.lookup.miss.reason, TIERCE_MISS_EXPIRED);
    ck_assert_uint_eq(record.stored_tokens, 0);
}
END_TEST

START_TEST(a_request_without_a_session_has_its_note_alone)
{
    look(0, 1, 6, TIERCE_MISS_EVICTED, 4);
    tierce__requests_stored(requests, 0, 64);
    note("one", 0);
    note("two", 0);
    ck_assert(!find("one", 1).was_looked);
    ck_assert_uint_eq(find("two", 1).stored_tokens, 0);
}
END_TEST

/* Groups of layers are looked up one after the other, with fewer blocks each time. */
START_TEST(the_lookup_that_lacked_a_chunk_is_kept)
{
    look(1, 10, 8, TIERCE_MISS_NEVER_STORED, 6);
    look(1, 11, 6, TIERCE_MISS_EVICTED, 5);
    look(1, 11, 4, TIERCE_MISS_NONE, 0); /* what it lacked is behind this end */
    look(1, 10, 4, TIERCE_MISS_NONE, 0);
    note("groups", 1);
    ck_assert_int_eq(find("groups", 1).lookup.miss.reason, TIERCE_MISS_EVICTED);
    /* The same blocks again: now they are there. */
    look(2, 10, 8, TIERCE_MISS_DEADLINE, 6);
    look(2, 10, 8, TIERCE_MISS_NONE, 0);
    note("later", 2);
    ck_assert_int_eq(find("later", 1).lookup.miss.reason, TIERCE_MISS_NONE);
    /* After a preemption, the request finds what it has stored itself. */
    look(3, 10, 8, TIERCE_MISS_NEVER_STORED, 0);
    tierce__requests_stored(requests, 3, 16);
    look(3, 10, 8, TIERCE_MISS_NONE, 0);
    note("preempted", 3);
    ck_assert_int_eq(find("preempted", 1).lookup.miss.reason, TIERCE_MISS_NEVER_STORED);
}
END_TEST

START_TEST(the_oldest_records_are_overwritten)
{
    char name[32];
    look(1000, 1, 4, TIERCE_MISS_EVICTED, 0); /* long running: it ends last */
    for (uint64_t i = 1; i <= 7; i++) {
        look(i, 1, 4, TIERCE_MISS_NEVER_STORED, 0);
        snprintf(name, sizeof(name), "request-%u", (unsigned)i);
        note(name, i);
    }
    note("long", 1000);
    ck_assert_int_eq(find("long", 1).lookup.miss.reason, TIERCE_MISS_EVICTED);
    find("request-", 7);
    for (uint64_t i = 11; i <= 17; i++) {
        snprintf(name, sizeof(name), "request-%u", (unsigned)i);
        note(name, i);
    }
    find("long", 1); /* it is the oldest of eight */
    find("request-7", 0);
    note("request-18", 18);
    find("long", 0);
    find("request-", 8);
    /* A lookup whose record was overwritten is not found any more by the note. */
    look(1, 1, 4, TIERCE_MISS_EVICTED, 0);
    for (uint64_t i = 20; i < 28; i++)
        look(i, 1, 4, TIERCE_MISS_EVICTED, 0);
    note("lost", 1);
    ck_assert(!find("lost", 1).was_looked);
    ck_assert_uint_eq(tierce__requests_room(requests), 8);
}
END_TEST

START_TEST(names_are_found_whole_or_in_part)
{
    note("chatcmpl-1", 1);
    note("0_chatcmpl-12-ab", 2);
    note("cmpl-1", 3);
    ck_assert_uint_eq(find("cmpl-1", 1).noted.session, 3);
    ck_assert_uint_eq(find("cmpl-", 3).noted.session, 3);
    ck_assert_uint_eq(find("chatcmpl-12", 1).noted.session, 2);
    ck_assert_uint_eq(find("chatcmpl", 1).noted.session, 1);
    ck_assert_uint_eq(find("hatcmpl", 2).noted.session, 2);
    note("chatcmpl-1", 4);
    ck_assert_uint_eq(find("chatcmpl-1", 2).noted.session, 4);
    note("1-aa10bb", 6); /* as vLLM names the request 1, and then 10 */
    note("10-cc1dd0", 7);
    ck_assert_uint_eq(find("1", 1).noted.session, 6);
    ck_assert_uint_eq(find("10", 1).noted.session, 7);
    find("", 0);
    find("else", 0);
    char longest[TIERCE_REQUEST_NAME_MAX + 1];
    memset(longest, 'x', TIERCE_REQUEST_NAME_MAX);
    longest[TIERCE_REQUEST_NAME_MAX] = '\0';
    note(longest, 5);
    ck_assert_str_eq(find(longest, 1).name, longest);
}
END_TEST

START_TEST(no_table_records_nothing)
{
    struct tierce__requests *none = (struct tierce__requests *)&requests;
    struct tierce__request_record record;
    ck_assert_int_eq(tierce__requests_create(&none, 0), 0);
    ck_assert_ptr_null(none);
    tierce__requests_looked(NULL, &(struct tierce__request_lookup){.session = 1});
    tierce__requests_stored(NULL, 1, 16);
    tierce__requests_note(NULL, &(struct tierce_request){.name = "n"});
    ck_assert_uint_eq(tierce__requests_find(NULL, &record, "n"), 0);
    ck_assert_uint_eq(tierce__requests_room(NULL), 0);
    tierce__requests_destroy(NULL);
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 2000 };

/* Each record that is found is whole: its numbers are of one request. */
static void *serve(void *arg)
{
    uint64_t first = (uint64_t)(uintptr_t)arg * ROUNDS + 1;
    struct tierce__request_record record;
    char name[32];
    for (uint64_t session = first; session < first + ROUNDS; session++) {
        look(session, 1, 4, TIERCE_MISS_EVICTED, session % 4);
        tierce__requests_stored(requests, session, session);
        snprintf(name, sizeof(name), "t-%llu-", (unsigned long long)session);
        note(name, session);
        if (tierce__requests_find(requests, &record, "t-") == 0)
            continue;
        snprintf(name, sizeof(name), "t-%llu-", (unsigned long long)record.noted.session);
        ck_assert_str_eq(record.name, name);
        ck_assert_uint_eq(record.noted.tokens, 100 + record.noted.session);
        if (record.was_looked) {
            ck_assert_uint_eq(record.lookup.session, record.noted.session);
            ck_assert_uint_eq(record.lookup.miss.block, record.noted.session % 4);
        }
    }
    return NULL;
}

START_TEST(threads_note_at_once)
{
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, serve, (void *)i), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    find("t-", 8);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

START_TEST(each_allocation_fails_once)
{
    struct tierce__requests *made;
    uint64_t live = tierce__alloc_live();
    int rc = -1;
    for (uint64_t n = 1; rc < 0; n++) {
        tierce__alloc_fail_nth(n);
        rc = tierce__requests_create(&made, 100);
        tierce__alloc_fail_nth(0);
        ck_assert(rc == 0 || rc == -ENOMEM);
        ck_assert((made != NULL) == (rc == 0));
        ck_assert_uint_le(n, 4);
    }
    tierce__requests_destroy(made);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

int main(void)
{
    return CHECK_RUN("requests", .setup = setup, .teardown = teardown,
                     .tests = {a_record_joins_lookup_stores_and_note,
                               a_request_without_a_session_has_its_note_alone,
                               the_lookup_that_lacked_a_chunk_is_kept,
                               the_oldest_records_are_overwritten, names_are_found_whole_or_in_part,
                               no_table_records_nothing, threads_note_at_once,
                               each_allocation_fails_once});
}
