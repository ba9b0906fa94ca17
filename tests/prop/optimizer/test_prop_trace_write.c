/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace written in KVCM's schema is read unchanged: kinds, instances, times, keys of 64 bits,
 * matches, masks, lengths.
 */
#include "check_main.h"
#include "test_random.h"

#include "optimizer/trace/formats/trace_write.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 200, REQUESTS = 30, BLOCKS_MAX = 9, INSTANCES = 3 };

static const char *const instances[INSTANCES] = {"", "a\"\\\n", "3780643326877293460"};

struct request {
    struct tierce__trace_request request;
    uint64_t blocks[BLOCKS_MAX];
    uint8_t internal[BLOCKS_MAX];
};

static void draw_internal(struct test_random *random, struct request *r)
{
    uint32_t held = test_random_below(random, r->request.count + 1);
    bool is_prefix = test_random_below(random, 2) > 0;
    bool any = false;
    for (uint32_t i = 0; i < r->request.count; i++) {
        r->internal[i] = is_prefix ? i < held : test_random_below(random, 2) > 0;
        any = any || r->internal[i] != 0;
    }
    r->request.internal = any ? r->internal : NULL;
}

/* Data that the schema can represent. */
static void draw(struct test_random *random, struct request *r, int64_t time_us)
{
    static const uint64_t corners[] = {0, 1, INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX};
    struct tierce__trace_request *q = &r->request;
    *q = (struct tierce__trace_request){.time_us = time_us, .blocks = r->blocks};
    q->kind = (enum tierce__trace_kind)test_random_below(random, 3);
    q->count = test_random_below(random, BLOCKS_MAX + 1);
    q->instance = test_random_below(random, INSTANCES);
    for (uint32_t i = 0; i < q->count; i++)
        r->blocks[i] = test_random_below(random, 3) > 0 ? test_random_u64(random)
                                                        : corners[test_random_below(random, 5)];
    if (test_random_below(random, 2) > 0) {
        q->input_tokens = test_random_u64(random) >> test_random_below(random, 64);
        q->output_tokens = test_random_below(random, 1000);
    }
    if (q->kind == TIERCE__TRACE_WRITE)
        return;
    q->read_count =
        q->kind == TIERCE__TRACE_READ ? q->count : test_random_below(random, q->count + 1);
    q->query = (enum tierce__trace_query)test_random_below(random, 3);
    q->window = q->query == TIERCE__QUERY_WINDOW ? 1 + test_random_below(random, 5) : 0;
    draw_internal(random, r);
}

static void check_same(const struct tierce__trace_request *a, const struct tierce__trace_request *b)
{
    ck_assert_int_eq(a->time_us, b->time_us);
    ck_assert_int_eq(a->kind, b->kind);
    ck_assert_uint_eq(a->count, b->count);
    ck_assert_uint_eq(a->read_count, b->read_count);
    ck_assert_uint_eq(a->unstored, b->unstored);
    ck_assert_int_eq(a->query, b->query);
    ck_assert_uint_eq(a->window, b->window);
    ck_assert_uint_eq(a->input_tokens, b->input_tokens);
    ck_assert_uint_eq(a->output_tokens, b->output_tokens);
    ck_assert_int_eq(a->internal == NULL, b->internal == NULL);
    for (uint32_t i = 0; i < a->count; i++) {
        ck_assert_uint_eq(a->blocks[i], b->blocks[i]);
        ck_assert(a->internal == NULL || (a->internal[i] != 0) == (b->internal[i] != 0));
    }
}

static void check_round(struct test_random *random)
{
    struct request requests[REQUESTS];
    struct tierce__trace_writer *writer;
    struct tierce__trace *trace;
    struct tierce__trace_request got;
    char why[TIERCE__TRACE_WHY_BYTES], loss[160], *text = NULL;
    size_t bytes = 0, index = 0;
    FILE *file = open_memstream(&text, &bytes);
    ck_assert_int_eq(tierce__trace_writer_create(&writer, file, "kvcm-schema", false), 0);
    for (int i = 0; i < REQUESTS; i++) {
        draw(random, &requests[i], i / 2);
        ck_assert_int_eq(tierce__trace_writer_put(writer, &requests[i].request,
                                                  instances[requests[i].request.instance]),
                         0);
    }
    ck_assert_uint_eq(tierce__trace_writer_lines(writer), REQUESTS);
    ck_assert(!tierce__trace_writer_loss(writer, &index, loss, sizeof(loss)));
    tierce__trace_writer_destroy(writer);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(tierce__trace_open_memory(
                         &trace, text, bytes,
                         &(struct tierce__trace_opts){.size = sizeof(struct tierce__trace_opts)},
                         why),
                     0);
    for (int i = 0; i < REQUESTS; i++) {
        ck_assert_int_eq(tierce__trace_next(trace, &got), 1);
        check_same(&got, &requests[i].request);
        ck_assert_str_eq(tierce__trace_instance(trace, got.instance),
                         instances[requests[i].request.instance]);
    }
    ck_assert_int_eq(tierce__trace_next(trace, &got), 0);
    ck_assert_uint_eq(tierce__trace_report(trace)->bad_lines, 0);
    ck_assert_str_eq(tierce__trace_report(trace)->format, "kvcm-schema");
    tierce__trace_close(trace);
    free(text);
}

START_TEST(the_schema_of_kvcm_is_read_as_it_was_written)
{
    struct test_random random = test_random_start("trace_write");
    for (int i = 0; i < ROUNDS; i++)
        check_round(&random);
}
END_TEST

/* Data that it cannot represent is reported. */
START_TEST(losses)
{
    const uint64_t blocks[] = {1, 2, 3}, sizes[] = {4, 4, 4};
    static const char *const wanted[] = {
        "1 removals were omitted", "1 requests lost the sizes of blocks",
        "2 requests lost their session", "1 writes lost their failed blocks",
        "1 turns that store fewer blocks than they look up are now a read and a write"};
    struct tierce__trace_writer *writer;
    char loss[160], *text = NULL;
    size_t bytes = 0, index = 0;
    FILE *file = open_memstream(&text, &bytes);
    ck_assert_int_eq(tierce__trace_writer_create(&writer, file, "kvcm-schema", false), 0);
    const struct tierce__trace_request requests[] = {
        {.kind = TIERCE__TRACE_DROP, .count = 1, .blocks = blocks},
        {.kind = TIERCE__TRACE_WRITE, .count = 3, .unstored = 1, .blocks = blocks, .session = 1},
        {.kind = TIERCE__TRACE_TURN,
         .count = 3,
         .read_count = 3,
         .unstored = 2,
         .blocks = blocks,
         .bytes = sizes,
         .session = 1},
    };
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(tierce__trace_writer_put(writer, &requests[i], "i"), 0);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        ck_assert(tierce__trace_writer_loss(writer, &index, loss, sizeof(loss)));
        ck_assert_str_eq(loss, wanted[i]);
    }
    ck_assert(!tierce__trace_writer_loss(writer, &index, loss, sizeof(loss)));
    tierce__trace_writer_destroy(writer);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_ptr_nonnull(strstr(text, "\"trace_id\":\"1\",\"timestamp_us\":0,\"tokens\":[],"
                                       "\"keys\":[1,2]}\n"));
    ck_assert_ptr_nonnull(strstr(text, "\"trace_id\":\"3\",\"timestamp_us\":0,\"tokens\":[],"
                                       "\"keys\":[1]}\n"));
    free(text);
}
END_TEST

CHECK_MAIN("trace_write", .seconds = 60,
           .tests = {the_schema_of_kvcm_is_read_as_it_was_written, losses})
