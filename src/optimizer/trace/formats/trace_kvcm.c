/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/trace/formats/trace_kvcm.h"
#include "optimizer/trace/trace_private.h"

#include <string.h>

static const char *const names[] = {
    [TIERCE__QUERY_PREFIX] = "prefix_match",
    [TIERCE__QUERY_ANY] = "batch_get",
    [TIERCE__QUERY_WINDOW] = "reverse_roll_sw_match",
};

#define NAMES (sizeof(names) / sizeof(names[0]))

const char *tierce__kvcm_query_name(enum tierce__trace_query query)
{
    return names[query];
}

int tierce__kvcm_read_query(struct tierce__trace *trace, struct tierce__trace_request *request,
                            const char *name, int64_t window)
{
    size_t found = TIERCE__QUERY_PREFIX;
    while (name[0] != '\0' && found < NAMES && strcmp(names[found], name) != 0)
        found++;
    if (found == NAMES)
        return tierce__trace_bad(
            trace, "\"query_type\" is not prefix_match, batch_get or reverse_roll_sw_match");
    request->query = (enum tierce__trace_query)found;
    if (request->query != TIERCE__QUERY_WINDOW)
        return 0;
    if (window < 1 || window > UINT32_MAX)
        return tierce__trace_bad(trace, "\"sw_size\" is not a window: accepted are 1 to 2^32 - 1");
    request->window = (uint32_t)window;
    return 0;
}
