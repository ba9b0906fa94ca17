/* SPDX-License-Identifier: Apache-2.0 */
#include "ghost_trace.h"
#include "check_main.h"

#include "optimizer/trace/trace.h"

#include <stdio.h>

bool ghost_load_read(struct ghost_load *load, const char *name)
{
    char path[4096], why[TIERCE__TRACE_WHY_BYTES];
    struct tierce__trace *trace;
    struct tierce__trace_request request;
    int rc;
    if (getenv("TIERCE_TEST_DATA") == NULL)
        return false;
    snprintf(path, sizeof(path), "%s/traces/%s", getenv("TIERCE_TEST_DATA"), name);
    rc = tierce__trace_open(&trace, path, NULL, why);
    ck_assert_msg(rc == 0, "%s %s", path, why);
    while ((rc = tierce__trace_next(trace, &request)) > 0) {
        if (request.kind == TIERCE__TRACE_TURN && request.count > 0)
            ghost_load_add(load, request.blocks, request.count);
    }
    ck_assert_int_eq(rc, 0);
    tierce__trace_close(trace);
    return true;
}
