/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/handover/handover_other.h"

#include <stdio.h>

int tierce__other_init(struct tierce__other *out, const struct tierce_view *view,
                       const struct tierce__handover_other *of,
                       char why[TIERCE__HANDOVER_WHY_BYTES])
{
    struct tierce__other other = {.view = of->view};
    if (of->view->engine != view->engine || tierce__heads_parse(&other.heads, of->heads) < 0) {
        snprintf(why, TIERCE__HANDOVER_WHY_BYTES,
                 "the prefiller's view must be of the same engine, and its heads a text like "
                 "\"heads=8 pieces=1 from=2x24 to=1x24\", not \"%.60s\"",
                 of->heads);
        return TIERCE_E_ARGUMENT;
    }
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
                           const struct tierce__other_chunk *from)
{
    struct tierce__shape shape = tierce__shape_of(view, from->block_count);
    struct tierce__shape theirs = tierce__shape_of(other->view, from->block_count);
    struct tierce__chunk_info info;
    tierce__view_chunk_info(&info, view, &shape, index, tierce_chain_hash(chain, 0),
                            tierce_chain_root_hash(chain));
    info.created_s = from->created_s;
    tierce__chunk_begin(to, &info, tierce_chain_hash(chain, index * view->chunk_blocks));
    tierce__heads_convert(to, &shape.geometry, from->object, &theirs.geometry, &other->heads);
    tierce__chunk_seal(to, shape.extent.header_bytes);
}
