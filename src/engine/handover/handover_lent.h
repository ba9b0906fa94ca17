/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_HANDOVER_LENT_H
#define TIERCE_HANDOVER_LENT_H

#include "engine/handover/handover.h"

/*
 * The functions of handover.h for a client of a node, which does them: HAND_OVER of the native
 * protocol. Thread: any. All block until the node has answered.
 */

struct tierce__lent;

TIERCE_MUSTUSE int tierce__lent_start(struct tierce__lent **out, struct tierce_engine *engine,
                                      const char *host, uint16_t port,
                                      char why[TIERCE__HANDOVER_WHY_BYTES]);
uint16_t tierce__lent_port(const struct tierce__lent *lent);
bool tierce__lent_uses_tls(const struct tierce__lent *lent);
/* The node's server ends with the client, not here. NULL is accepted. */
void tierce__lent_stop(struct tierce__lent *lent);

/* The inbox, which the client has from then on; after a restart of the node again. */
TIERCE_MUSTUSE int tierce__lent_accept(struct tierce__lent *lent,
                                       const struct tierce__inbox_opts *opts,
                                       char why[TIERCE__HANDOVER_WHY_BYTES]);
/* Fewer tickets, or TIERCE_E_DEADLINE, if the node takes longer than half a second. */
TIERCE_MUSTUSE int tierce__lent_issue(struct tierce__lent *lent,
                                      char (*tickets)[TIERCE__TICKET_BYTES], size_t count,
                                      uint32_t ms, const char *holder);
/* As tierce__inbox_await, with from->ticket, and the half of from->timeout_ms of silence. */
TIERCE_MUSTUSE int tierce__lent_await(struct tierce_engine *engine,
                                      const struct tierce__handover_from *from, uint32_t start_ms,
                                      uint64_t deadline_ns);
uint64_t tierce__lent_end_ticket(struct tierce_engine *engine, const char *ticket);

/* After a restart of the node, its server restarts on the same port. */
TIERCE_MUSTUSE int tierce__lent_expect(struct tierce__lent *lent, const char *token, uint32_t ms);
TIERCE_MUSTUSE int64_t tierce__lent_pin(struct tierce__lent *lent, struct tierce_view *view,
                                        const struct tierce_chain *chain, uint64_t to_block,
                                        const char *token);
TIERCE_MUSTUSE int tierce__lent_open(struct tierce__lent *lent, const char *token, uint64_t tokens);
void tierce__lent_withdraw(struct tierce__lent *lent, const char *token);

/* Both set out->status and `why`, and return the status. */
TIERCE_MUSTUSE int tierce__lent_meet(struct tierce_engine *engine,
                                     const struct tierce__handover_from *from, uint64_t *tokens,
                                     struct tierce__handover_pulled *out);
struct tierce__lent_blocks {
    const struct tierce_chain *chain;
    uint64_t from, to;
    uint64_t deadline_ns; /* of all calls to the node */
    uint32_t patience_ms; /* while nothing arrives */
    const _Atomic bool *is_given_up;
};

/* other: NULL, or see tierce__source_other. */
TIERCE_MUSTUSE int tierce__lent_read(struct tierce_view *view,
                                     const struct tierce__lent_blocks *blocks,
                                     const struct tierce__handover_from *from,
                                     const struct tierce__handover_other *other,
                                     struct tierce__handover_pulled *out);
void tierce__lent_end(struct tierce_engine *engine, const struct tierce__handover_from *from);
void tierce__lent_note(struct tierce_view *view, const struct tierce__handover_from *from,
                       const struct tierce__handover_pulled *pulled);

#endif
