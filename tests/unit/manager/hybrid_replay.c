/* SPDX-License-Identifier: Apache-2.0 */
#include "hybrid_replay.h"
#include "optimizer/analysis/hybrid.h"
#include "optimizer/replay/sweep.h"

#include <check.h>

struct hybrid_replayed hybrid_replay(const char *path, uint64_t capacity, bool is_paired)
{
    struct tierce__hybrid *hybrid;
    struct tierce__trace *trace;
    struct tierce__trace_request request;
    struct tierce__trace_opts opts = {.size = sizeof(opts)};
    struct tierce__hybrid_opts how = {.size = sizeof(how),
                                      .capacity =
                                          capacity > 0 ? capacity : TIERCE__CAPACITY_UNLIMITED,
                                      .block_bytes = 1,
                                      .is_paired = is_paired};
    char why[TIERCE__TRACE_WHY_BYTES];
    int rc = tierce__trace_open(&trace, path, &opts, why);
    ck_assert_msg(rc == 0, "%s", why);
    ck_assert_int_eq(tierce__hybrid_create(&hybrid, &how), 0);
    while ((rc = tierce__trace_next(trace, &request)) > 0) {
        rc = tierce__hybrid_add(hybrid, &request, tierce__trace_layers(trace, request.instance));
        ck_assert_int_eq(rc, 0);
    }
    ck_assert_msg(rc == 0, "%s", tierce__trace_error(trace));
    ck_assert_uint_eq(tierce__trace_report(trace)->bad_lines, 0);
    ck_assert_uint_eq(tierce__trace_report(trace)->skipped_lines, 0);
    struct tierce__hybrid_result result = tierce__hybrid_result(hybrid);
    tierce__hybrid_destroy(hybrid);
    tierce__trace_close(trace);
    return (struct hybrid_replayed){result.lookups, result.hit_tokens, result.used_bytes,
                                    result.evicted};
}
