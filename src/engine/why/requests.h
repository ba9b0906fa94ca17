/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_REQUESTS_H
#define TIERCE_ENGINE_REQUESTS_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/why.h>

/*
 * The last requests that inference engines have served: a fixed number of records. A record begins
 * with the first lookup, store or hand-over of a session, and is complete when the inference engine
 * notes the request. It is the newest then. A new record overwrites the oldest.
 *
 *     tierce__requests_looked(requests, &lookup);      a lookup ended
 *     tierce__requests_stored(requests, session, n);   a store published n tokens
 *     tierce__requests_handed(requests, session, &handover);   the read of an offer ended
 *     tierce__requests_note(requests, &request);       the request ended
 *     matches = tierce__requests_find(requests, &record, "cmpl-17");
 *
 * Thread: any; one lock of class REQUESTS inside. A table that is NULL records nothing.
 */

struct tierce__requests;

/* The end of a lookup with a session. Groups of layers are looked up one after the other: the
 * record keeps the last lookup that lacked a chunk. */
struct tierce__request_lookup {
    uint64_t session;
    uint32_t ns;                         /* number of the namespace */
    uint32_t block_tokens, chunk_blocks; /* of the namespace */
    uint64_t to_block;
    bool only_memory; /* no other tier was searched */
    bool is_tail;     /* the missing chunk is the partial chunk at the end */
    /* Reason NONE: nothing is missing. Its texts: [borrow as long as the table] */
    struct tierce_miss miss;
};

/* The read of a prefiller's offer for a session (engine/handover). */
struct tierce__request_handover {
    char from[128];        /* HOST:PORT of the prefiller; "": there was no offer */
    uint64_t tokens;       /* leading tokens that memory had then, or that the reader had itself */
    uint64_t bytes;        /* that were read from the prefiller */
    uint64_t pushed_bytes; /* that it has pushed */
    char why[192];         /* why it ended before the end of the offer; "": it did not */
};

struct tierce__request_record {
    char name[TIERCE_REQUEST_NAME_MAX + 1]; /* "" until it is noted */
    uint64_t when_s;                        /* wall clock, of the note */
    uint64_t stored_tokens;
    bool was_looked;                      /* `lookup` is valid */
    struct tierce__request_lookup lookup; /* the last one */
    struct tierce__request_handover handover;
    struct tierce_request noted; /* its name is NULL */
};

/* A table of `count` records; *out is NULL for 0. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__requests_create(struct tierce__requests **out, uint32_t count);
void tierce__requests_destroy(struct tierce__requests *requests);

/* The number of records; 0 for NULL. */
uint32_t tierce__requests_room(const struct tierce__requests *requests);

/* Do nothing for session 0. */
void tierce__requests_looked(struct tierce__requests *requests,
                             const struct tierce__request_lookup *lookup);
void tierce__requests_stored(struct tierce__requests *requests, uint64_t session, uint64_t tokens);
void tierce__requests_handed(struct tierce__requests *requests, uint64_t session,
                             const struct tierce__request_handover *handover);

/* [in] request: valid, as of tierce_request_note. */
void tierce__requests_note(struct tierce__requests *requests, const struct tierce_request *request);

/*
 * The last noted request with this name; or else whose name is this name, "-" and a suffix; or else
 * whose name contains it. Returns the number of requests that match in the same way; 0: none, *out
 * untouched.
 */
uint32_t tierce__requests_find(struct tierce__requests *requests,
                               struct tierce__request_record *out, const char *name);

#endif
