/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TRACE_PRIVATE_H
#define TIERCE_OPTIMIZER_TRACE_PRIVATE_H

#include "optimizer/trace/trace.h"
#include "optimizer/trace/trace_order.h"

/*
 * The interface of a format: a table of functions over a state of its own. A format parses one
 * record at a time (a line, or a record that it measures itself) and emits requests.
 */

struct tierce__trace_format {
    size_t state_bytes;

    /* Returns whether a trace with these bytes at the beginning of a line has this format. The
     * bytes may hold several lines and end within one; at least 64 bytes after them are readable,
     * the first of which is '
     * '. */
    bool (*probe)(const char *head, size_t length);

    /* Initializes the zeroed state; may be NULL. Errors: -ENOMEM. */
    int (*init)(void *state);

    /*
     * Parses a non-empty record, after which 64 bytes are readable, and emits its requests. Returns
     * 0; TIERCE__TRACE_SKIPPED if it is well-formed but yields no request, _JOINED if it adds to an
     * emitted request, _NOTICE if it is known to be irrelevant to a replay; the value of
     * tierce__trace_bad if it is bad; -ENOMEM.
     */
    int (*record)(struct tierce__trace *trace, void *state, const char *record, size_t length);

    /*
     * Returns the length of the first record; 0: more bytes are needed; negative: the record is
     * damaged, and the start of the next one is unknown. NULL: records are lines.
     */
    int64_t (*measure)(const char *at, size_t length);

    /* Frees the state, also after a failed init; may be NULL. */
    void (*fini)(void *state);
};

#define TIERCE__TRACE_SKIPPED 1
#define TIERCE__TRACE_JOINED  2
#define TIERCE__TRACE_NOTICE  3

/* Sets the reason why a record is bad, by printf rules. Returns TIERCE_E_FORMAT. */
int tierce__trace_bad(struct tierce__trace *trace, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * Emits a request; its arrays are copied, and `line` is filled in. With `ticket` its time may still
 * change. Returns 0; the value of tierce__trace_bad if it is too late for the window; -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__trace_emit(struct tierce__trace *trace,
                                      const struct tierce__trace_request *request,
                                      struct tierce__order_ticket *ticket);

/* Changes the time of a waiting request. Returns 0; TIERCE_E_MISS: it was returned already; as
 * emit. */
TIERCE_MUSTUSE int tierce__trace_retime(struct tierce__trace *trace,
                                        struct tierce__order_ticket ticket, int64_t time_us);

/* Returns whether a request that was emitted with a ticket still waits. */
bool tierce__trace_waits(const struct tierce__trace *trace, struct tierce__order_ticket ticket);

/* As tierce__order_pushed, look and replace: the ticket of the last request that was emitted; a
 * request that still waits (NULL: it was returned already); a new content for such a request. */
struct tierce__order_ticket tierce__trace_emitted(const struct tierce__trace *trace);
const struct tierce__trace_request *tierce__trace_look(const struct tierce__trace *trace,
                                                       struct tierce__order_ticket ticket);
TIERCE_MUSTUSE int tierce__trace_replace(struct tierce__trace *trace,
                                         struct tierce__order_ticket ticket,
                                         const struct tierce__trace_request *request);

/* Records the bytes of a block, for the report. */
void tierce__trace_note_block(struct tierce__trace *trace, uint64_t bytes);

/* Finds the index of an instance by name; a new name gets the next index. Returns 0; as emit (too
 * many); -ENOMEM. */
TIERCE_MUSTUSE int tierce__trace_instance_index(struct tierce__trace *trace, uint32_t *out,
                                                const char *name, size_t length);

/* Sets the layers of an instance; the texts are copied. -ENOMEM. */
TIERCE_MUSTUSE int tierce__trace_set_layers(struct tierce__trace *trace, uint32_t instance,
                                            const struct tierce__trace_layers *layers);

/* The number of a session with a text as its name: the hash, never 0. */
uint64_t tierce__trace_session_of(const char *text, size_t length);

#define TIERCE_TRACE_FORMAT(suffix, name, summary)                                                 \
    extern const struct tierce__trace_format tierce__trace_format_##suffix;
#include "optimizer/trace/trace_formats.def"
#undef TIERCE_TRACE_FORMAT

#endif
