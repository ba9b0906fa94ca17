/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TRACE_PRIVATE_H
#define TIERCE_OPTIMIZER_TRACE_PRIVATE_H

#include "optimizer/trace.h"
#include "optimizer/trace_order.h"

/*
 * What a format is to the reader: a table of functions over a state of its own. A format takes one
 * record at a time, a line or what it measures itself, and hands requests on.
 */

struct tierce__trace_format {
    size_t state_bytes;

    /* Whether a trace is of this format, in which a line begins with these bytes. They may hold
     * several lines and end in the middle of one; at least 64 bytes behind them may be read, the
     * first of which is '\n'. */
    bool (*probe)(const char *head, size_t length);

    /* Makes the state, which is zeroed; may be NULL. Errors: -ENOMEM. */
    int (*init)(void *state);

    /*
     * Takes a record, which is not empty and behind which 64 bytes may be read, and hands on what
     * it asks for. 0; TIERCE__TRACE_SKIPPED if it is well-formed and asks for nothing; what
     * tierce__trace_bad returns if it is bad; -ENOMEM.
     */
    int (*record)(struct tierce__trace *trace, void *state, const char *record, size_t length);

    /*
     * The length of the first record of these bytes; 0: more are needed; negative: this is damaged,
     * and where the next record begins cannot be told. NULL: records are lines.
     */
    int64_t (*measure)(const char *at, size_t length);

    /* Releases what the state holds, also after an init that failed; may be NULL. */
    void (*fini)(void *state);
};

#define TIERCE__TRACE_SKIPPED 1

/* Says why a record is bad, by printf rules. Returns TIERCE_E_FORMAT. */
int tierce__trace_bad(struct tierce__trace *trace, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * Hands a request on; its arrays are copied, and `line` is filled in. With `ticket` its time may
 * still change. 0; what tierce__trace_bad returns if it comes too late for the window; -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__trace_emit(struct tierce__trace *trace,
                                      const struct tierce__trace_request *request,
                                      struct tierce__order_ticket *ticket);

/* Gives a request that waits another time. 0; TIERCE_E_MISS: it is out already; as emit. */
TIERCE_MUSTUSE int tierce__trace_retime(struct tierce__trace *trace,
                                        struct tierce__order_ticket ticket, int64_t time_us);

/* Whether a request that was handed on with a ticket still waits. */
bool tierce__trace_waits(const struct tierce__trace *trace, struct tierce__order_ticket ticket);

/* The request that was handed on last without a ticket, one that waits (NULL: it is out), and
 * another content for it: as of tierce__order_pushed, look and replace. */
struct tierce__order_ticket tierce__trace_emitted(const struct tierce__trace *trace);
const struct tierce__trace_request *tierce__trace_look(const struct tierce__trace *trace,
                                                       struct tierce__order_ticket ticket);
TIERCE_MUSTUSE int tierce__trace_replace(struct tierce__trace *trace,
                                         struct tierce__order_ticket ticket,
                                         const struct tierce__trace_request *request);

/* The index of an instance by its name; a new one gets the next. 0; as emit (too many); -ENOMEM. */
TIERCE_MUSTUSE int tierce__trace_instance_index(struct tierce__trace *trace, uint32_t *out,
                                                const char *name, size_t length);

/* The number of a session that has a text for a name: its hash, never 0. */
uint64_t tierce__trace_session_of(const char *text, size_t length);

#define TIERCE_TRACE_FORMAT(suffix, name, summary)                                                 \
    extern const struct tierce__trace_format tierce__trace_format_##suffix;
#include "optimizer/trace_formats.def"
#undef TIERCE_TRACE_FORMAT

#endif
