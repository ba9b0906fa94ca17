/* SPDX-License-Identifier: Apache-2.0 */
/* The outcome of a hand-over, for `tierce why --request`. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text/host_port.h"
#include "engine/handover/handover.h"
#include "engine/handover/handover_lent.h"
#include "engine/view.h"
#include "engine/why/requests.h"

void tierce__handover_note(struct tierce_view *view, const struct tierce__handover_from *from,
                           const struct tierce__handover_pulled *pulled)
{
    struct tierce__handover_pulled told = *pulled;
    if (pulled->why[0] == '\0' && pulled->push_status != 0)
        snprintf(told.why, sizeof(told.why), "the push did not end (%s), and the rest was read",
                 tierce_strerror(pulled->push_status));
    if (view->engine->level_count == 0) {
        tierce__lent_note(view, from, &told);
        return;
    }
    struct tierce__request_handover note = {.tokens =
                                                pulled->blocks * view->full.geometry.block_tokens,
                                            .bytes = pulled->bytes,
                                            .pushed_bytes = pulled->pushed_bytes};
    (void)tierce__host_port_format(note.from, sizeof(note.from), from->host, from->port);
    snprintf(note.why, sizeof(note.why), "%.191s", told.why);
    tierce__requests_handed(view->engine->requests, from->session, &note);
}
