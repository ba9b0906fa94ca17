/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/handover/handover_other.h"

#include <stdio.h>

#include "base/assert.h"

int tierce__other_init(struct tierce__other *out, const struct tierce_view *view,
                       const struct tierce__handover_other *of,
                       char why[TIERCE__HANDOVER_WHY_BYTES])
{
    struct tierce__other other = {.view = of->view};
    if (of->view->engine != view->engine || tierce__heads_parse(&other.heads, of->heads) < 0)
        return TIERCE_E_ARGUMENT;
    bool is_alike = of->view->chunk_blocks == view->chunk_blocks && of->view->algo == view->algo &&
                    of->view->group == view->group && of->view->window == view->window &&
                    view->group != TIERCE_GROUP_STATE;
    int rc = is_alike
                 ? tierce__heads_check(&other.heads, &of->view->full.geometry, &view->full.geometry)
                 : TIERCE_E_UNSUPPORTED;
    if (rc < 0) {
        snprintf(
            why, TIERCE__HANDOVER_WHY_BYTES,
            "the prefiller's chunks cannot be converted for this engine (%.120s); use the same "
            "--tensor-parallel-size on both engines",
            of->heads);
        return rc;
    }
    *out = other;
    return 0;
}

void tierce__other_convert(const struct tierce__other *other, const struct tierce_view *view,
                           const struct tierce_chain *chain, size_t index, uint8_t *to,
                           const uint8_t *from, uint32_t block_count)
{
    struct tierce__shape shape = tierce__shape_of(view, block_count);
    struct tierce__shape theirs = tierce__shape_of(other->view, block_count);
    struct tierce__chunk_info info, read;
    int rc = tierce__chunk_parse(&read, from, theirs.extent.object_bytes);
    TIERCE_ASSERT(rc == 0); /* it was verified */
    tierce__view_chunk_info(&info, view, &shape, index, tierce_chain_hash(chain, 0),
                            tierce_chain_root_hash(chain));
    info.created_s = read.created_s;
    tierce__chunk_begin(to, &info, tierce_chain_hash(chain, index * view->chunk_blocks));
    tierce__heads_convert(to, &shape.geometry, from, &theirs.geometry, &other->heads);
    tierce__chunk_seal(to, shape.extent.header_bytes);
}
