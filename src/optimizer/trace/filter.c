/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/trace/filter.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>

static int add(struct tierce__recording *out, const struct tierce__recorded *r, uint64_t *ids,
               const uint8_t *internal)
{
    const uint32_t *blocks = tierce__recorded_blocks(r);
    TIERCE_ASSERT(r->read_count <= r->count && r->stored <= r->count);
    for (uint32_t i = 0; i < r->count; i++)
        ids[i] = blocks[i];
    return tierce__recording_add(
        out, &(struct tierce__trace_request){
                 .time_us = r->time_us,
                 .session = r->session,
                 .instance = r->instance,
                 .kind = (enum tierce__trace_kind)r->kind,
                 .query = (enum tierce__trace_query)r->query,
                 .window = r->window,
                 .count = r->count,
                 .read_count = r->read_count,
                 .unstored = r->kind != TIERCE__TRACE_READ ? r->count - r->stored : 0,
                 .blocks = ids,
                 .internal = internal,
                 .bytes = tierce__recorded_bytes(r),
                 .input_tokens = r->input_tokens,
                 .output_tokens = r->output_tokens,
                 .hint = r->hint,
             });
}

int tierce__recording_filter(struct tierce__recording **out,
                             const struct tierce__recording *recording, tierce__filter_fn *keep,
                             void *arg, const char *folder)
{
    struct tierce__recording *kept = NULL;
    size_t longest = tierce__recording_totals(recording).longest;
    uint64_t *ids = tierce__alloc((longest + 1) * sizeof(*ids));
    int rc = ids == NULL ? -ENOMEM : tierce__recording_create(&kept, folder);
    for (const struct tierce__recorded *r = tierce__recording_first(recording);
         rc == 0 && r != NULL; r = tierce__recording_next(recording, r)) {
        if (keep(arg, r))
            rc = add(kept, r, ids, tierce__recorded_internal(r));
    }
    tierce__free(ids);
    return tierce__recording_end(kept, rc, out);
}

int tierce__recording_mark(struct tierce__recording **out,
                           const struct tierce__recording *recording, const uint32_t *held,
                           const char *folder)
{
    struct tierce__recording *marked = NULL;
    size_t longest = tierce__recording_totals(recording).longest;
    uint64_t *ids = tierce__alloc((longest + 1) * sizeof(*ids));
    uint8_t *internal = tierce__alloc(longest + 1);
    int rc = ids == NULL || internal == NULL ? -ENOMEM : tierce__recording_create(&marked, folder);
    for (const struct tierce__recorded *r = tierce__recording_first(recording);
         rc == 0 && r != NULL; r = tierce__recording_next(recording, r), held++) {
        TIERCE_ASSERT(*held <= r->count);
        for (uint32_t i = 0; i < r->count; i++)
            internal[i] = i < *held;
        rc = add(marked, r, ids, *held > 0 ? internal : NULL);
    }
    tierce__free(ids);
    tierce__free(internal);
    return tierce__recording_end(marked, rc, out);
}
