/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer's work for each request of a trace: reading here, replaying in bench_replay.c.
 *
 * Reading: a Mooncake trace that lies in memory, parsed and put in order by the reader, against
 * finding its line ends by memchr after the same copy in blocks: the least work of any line reader.
 * The goal is 500 MB/s, independent of that limit.
 */
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "optimizer/trace/trace.h"

#define TRACE_BYTES (100ULL << 20)
#define BLOCK_BYTES ((size_t)256 << 10)
#define LINE_MAX    4096u
#define GOAL_MB_S   500.0

struct read_case {
    const struct tierce__bench *bench;
    char *text;
    size_t size, used;
    uint64_t requests, blocks; /* that were written */
    char *block;               /* [BLOCK_BYTES] of the scan */
};

/*
 * Requests as they are in conversations: half go on with an earlier one's blocks, and some twenty
 * blocks of their own follow.
 */
static void write_trace(struct read_case *c)
{
    uint64_t next = 1;
    for (uint64_t i = 0; c->used + LINE_MAX < c->size; i++) {
        uint64_t old = tierce__bench_random(1, i), shared = old % 2 == 0 ? old / 2 % 24 : 0;
        uint64_t fresh = 1 + tierce__bench_random(2, i) % 24;
        uint64_t first = shared > 0 ? tierce__bench_random(3, i) % next : 0;
        char *line = c->text + c->used;
        int n = snprintf(line, LINE_MAX,
                         "{\"timestamp\": %llu, \"input_length\": %llu, \"output_length\": %llu, "
                         "\"hash_ids\": [0",
                         (unsigned long long)i * 3, (unsigned long long)(shared + fresh) * 512,
                         (unsigned long long)(old % 1000));
        for (uint64_t k = 0; k < shared + fresh; k++)
            n += snprintf(line + n, LINE_MAX - (size_t)n, ", %llu",
                          (unsigned long long)(k < shared ? first + k : next++));
        n += snprintf(line + n, LINE_MAX - (size_t)n, "]}\n");
        c->used += (size_t)n;
        c->requests++;
        c->blocks += 1 + shared + fresh;
    }
}

static int64_t run_reader(void *arg)
{
    struct read_case *c = arg;
    struct tierce__trace *trace;
    struct tierce__trace_request request;
    char why[TIERCE__TRACE_WHY_BYTES];
    uint64_t requests = 0, blocks = 0, start = tierce__now_ns();
    int rc = tierce__trace_open_memory(
        &trace, c->text, c->used,
        &(struct tierce__trace_opts){.size = sizeof(struct tierce__trace_opts)}, why);
    if (rc < 0)
        return rc;
    while ((rc = tierce__trace_next(trace, &request)) > 0) {
        requests++;
        blocks += request.count;
    }
    tierce__trace_close(trace);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    if (rc == 0 && (requests != c->requests || blocks != c->blocks))
        return tierce__bench_fail(c->bench, "the trace read differs from the trace written");
    return rc < 0 ? rc : ns;
}

static int64_t run_scan(void *arg)
{
    struct read_case *c = arg;
    uint64_t lines = 0, start = tierce__now_ns();
    for (size_t at = 0; at < c->used; at += BLOCK_BYTES) {
        size_t n = c->used - at < BLOCK_BYTES ? c->used - at : BLOCK_BYTES;
        memcpy(c->block, c->text + at, n);
        const char *end = c->block + n, *line = c->block;
        while ((line = memchr(line, '\n', (size_t)(end - line))) != NULL && ++line <= end)
            lines++;
    }
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    return lines == c->requests ? ns : tierce__bench_fail(c->bench, "the scan lost lines");
}

static int bench_reading(const struct tierce__bench *bench)
{
    struct read_case c = {.bench = bench};
    c.size = bench->memory_bytes / 4 < TRACE_BYTES ? bench->memory_bytes / 4 : TRACE_BYTES;
    c.text = (char *)tierce__bench_map(c.size);
    c.block = tierce__alloc(BLOCK_BYTES);
    int rc = c.text != NULL && c.block != NULL ? 0 : -ENOMEM;
    struct tierce__bench_side sides[] = {{.run = run_reader, .arg = &c},
                                         {.run = run_scan, .arg = &c}};
    if (rc == 0) {
        write_trace(&c);
        rc = tierce__bench_alternate(sides, 2, bench->seconds);
    }
    if (rc == 0) {
        double limit = (double)c.used / sides[1].median_ns * 1e3;
        tierce__bench_emit(
            bench, &(struct tierce__bench_row){.case_name = "read mooncake jsonl",
                                               .unit = "MB/s",
                                               .value = (double)c.used / sides[0].median_ns * 1e3,
                                               .limit = limit,
                                               .goal = GOAL_MB_S / limit});
    }
    tierce__free(c.block);
    tierce__bench_unmap((uint8_t *)c.text, c.size);
    return rc;
}

int tierce__bench_optimize(const struct tierce__bench *bench)
{
    int rc = bench_reading(bench);
    return rc == 0 ? tierce__bench_replay(bench) : rc;
}
