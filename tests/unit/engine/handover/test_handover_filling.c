/* SPDX-License-Identifier: Apache-2.0 */
/* The filled bytes of an object: each is taken once, and none before it is filled. */
#include "check_main.h"
#include "engine/handover/handover_filling.h"
#include "test_random.h"

#define BYTES 300u
#define FROM  20u /* the header is not payload */

static struct tierce__filling filling;
static uint8_t is_filled[BYTES], is_taken[BYTES];

static void start_object(void)
{
    tierce__filling_init(&filling, FROM, BYTES);
    memset(is_filled, 0, sizeof(is_filled));
    memset(is_taken, 0, sizeof(is_taken));
}

static void fill(uint64_t from, uint64_t to)
{
    tierce__filling_note(&filling, from, to);
    memset(is_filled + from, 1, to - from);
}

/* Takes at most `count` times. */
static void take(unsigned count, uint64_t max)
{
    uint64_t offset, length;
    while (count-- > 0 && (length = tierce__filling_take(&filling, &offset, max)) > 0) {
        ck_assert(length <= max && offset >= FROM && offset + length <= BYTES);
        for (uint64_t i = offset; i < offset + length; i++) {
            ck_assert(is_filled[i] && !is_taken[i]);
            is_taken[i] = 1;
        }
    }
}

static void check_end(void)
{
    fill(FROM, BYTES);
    take(BYTES, BYTES);
    ck_assert(!tierce__filling_has(&filling));
    ck_assert_ptr_null(memchr(is_taken + FROM, 0, BYTES - FROM));
}

START_TEST(writers_fill_their_places_in_turn)
{
    start_object();
    fill(100, 120);
    fill(FROM, 50);
    fill(100, 140);
    ck_assert(tierce__filling_has(&filling));
    take(BYTES, BYTES);
    ck_assert_mem_eq(is_taken, is_filled, BYTES);
    fill(FROM, 100); /* as far as the next place */
    take(BYTES, 7);
    ck_assert_mem_eq(is_taken, is_filled, BYTES);
    check_end();
}
END_TEST

/* Several writers, of which each fills from its place on; fills are repeated, come late, and some
 * reach into the place of another one. */
START_TEST(any_order_of_fills)
{
    struct test_random random = test_random_start("handover_filling");
    for (unsigned round = 0; round < 2000; round++) {
        uint64_t places[6], reached[6];
        start_object();
        for (size_t i = 0; i < 6; i++)
            reached[i] = places[i] = FROM + test_random_below(&random, BYTES - FROM);
        for (unsigned step = 0; step < 40; step++) {
            size_t i = test_random_below(&random, 6);
            uint64_t to = reached[i] + test_random_below(&random, 20);
            reached[i] = to < BYTES ? to : BYTES;
            if (reached[i] > places[i])
                fill(places[i], reached[i]);
            take((unsigned)test_random_below(&random, 4), 1 + test_random_below(&random, 9));
        }
        take(BYTES, BYTES);
        ck_assert(!tierce__filling_has(&filling));
        ck_assert_mem_eq(is_taken, is_filled, BYTES);
        check_end();
    }
}
END_TEST

/* Bytes at further places are sent when all is filled. */
START_TEST(more_writers_than_places)
{
    start_object();
    for (uint64_t at = FROM + 2; at + 1 < BYTES; at += 2)
        fill(at, at + 1);
    ck_assert_uint_eq(filling.count, TIERCE__FILLING_MAX);
    take(BYTES, BYTES);
    ck_assert(!tierce__filling_has(&filling));
    check_end();
}
END_TEST

CHECK_MAIN("handover_filling", .tests = {writers_fill_their_places_in_turn, any_order_of_fills,
                                         more_writers_than_places})
