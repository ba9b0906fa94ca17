/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "optimizer/trace/trace.h"

#include <string.h>

/*
 * Traces of every format: the first byte names the format, or lets it be told. Whatever comes, the
 * reading ends, times never fall, and every count fits.
 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_request(const struct tierce__trace *trace,
                        const struct tierce__trace_request *request)
{
    uint64_t sum = 0;
    TIERCE_ASSERT(request->read_count <= request->count);
    TIERCE_ASSERT(request->query != TIERCE__QUERY_WINDOW || request->window > 0);
    TIERCE_ASSERT(tierce__trace_instance(trace, request->instance) != NULL);
    for (uint32_t i = 0; i < request->count; i++) {
        sum += request->blocks[i];
        if (request->internal != NULL)
            sum += request->internal[i];
        if (request->bytes != NULL)
            sum += request->bytes[i];
    }
    __asm__ volatile("" : : "r"(sum));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tierce__trace_opts opts = {
        .size = sizeof(opts), .bad_share_max = 1, .window_requests = 3, .line_bytes_max = 4096};
    struct tierce__trace_request request;
    struct tierce__trace *trace;
    char why[TIERCE__TRACE_WHY_BYTES];
    int64_t last = INT64_MIN;
    int rc;
    if (size == 0)
        return 0;
    /* '0' and what follows: a format; anything else: none. */
    opts.format = data[0] >= '0' ? tierce__trace_format_name((size_t)data[0] - '0') : NULL;
    rc = tierce__trace_open_memory(&trace, data + 1, size - 1, &opts, why);
    if (rc < 0) {
        TIERCE_ASSERT(strlen(why) > 0);
        return 0;
    }
    uint64_t requests = 0;
    while ((rc = tierce__trace_next(trace, &request)) > 0) {
        TIERCE_ASSERT(request.time_us >= last);
        last = request.time_us;
        use_request(trace, &request);
        requests++;
    }
    const struct tierce__trace_report *report = tierce__trace_report(trace);
    TIERCE_ASSERT(rc < 0 || requests == report->requests);
    TIERCE_ASSERT(report->bad_lines + report->skipped_lines + report->joined_lines +
                      report->notices <=
                  report->lines);
    TIERCE_ASSERT((rc < 0) == (tierce__trace_error(trace)[0] != '\0'));
    tierce__trace_close(trace);
    return 0;
}
