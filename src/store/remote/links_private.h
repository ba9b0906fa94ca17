/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_LINKS_PRIVATE_H
#define TIERCE_CONNECTOR_LINKS_PRIVATE_H

#include "store/remote/links.h"

/* links.c has the threads of a connector made of links; links_call.c has the data that one call of
 * a link takes from its request and returns to it. */

/* The names of a page: a length of two bytes before each. */
struct tierce__links_page {
    char *bytes;
    size_t used, size;
    bool no_memory;
};

/* A call of a link. It copies its inputs, because the request may be answered before the call
 * returns. */
struct tierce__links_call {
    enum tierce__store_op op;
    uint64_t deadline_ns, offset, length;
    struct tierce__buf *buf;          /* a reference, or NULL */
    struct tierce_plugin_name *names; /* with the prefix; a LIST of all names has it alone */
    size_t name_count, name_room, prefix_bytes;
    char *text; /* of the names */
    size_t text_room;
    /* Of a single name that was found, or of a GET that takes shorter objects or names a form; 0:
     * not known. */
    uint64_t object_bytes;
    bool takes_shorter;
    /* LOOKUP: leading names, those of the requests before and those of the one under way. The
     * thread writes them, the first only after the second is 0 again (release); the clock reads
     * them in their order (acquire), and so never more than is certain. */
    _Atomic size_t found, found_now;
    uint64_t cursor;
    struct tierce__links_page page;
    char why[64]; /* the fault in the answer of a plug-in, or "" */
};

/* Copies the required parts of a request, with `prefix` (or NULL) before its names. Errors:
 * -ENOMEM; the call owns the copies even then. */
TIERCE_MUSTUSE int tierce__links_prepare(struct tierce__links_call *call,
                                         const struct tierce__store_req *req, const char *prefix);

/* Makes it; returns the link's answer. Blocks. */
TIERCE_MUSTUSE int tierce__links_make_call(const struct tierce__client *client, void *link,
                                           struct tierce__links_call *call);

/* Whether a plug-in may return this; a built-in client always does. */
bool tierce__links_is_status(const struct tierce__client *client, int rc);

/* A GET as one of several. [borrow until the call is freed or prepared again] */
struct tierce__link_get tierce__links_get_of(const struct tierce__client *client,
                                             struct tierce__links_call *call);

/* LOOKUP: the leading names that are known to be stored by now. Thread: any, while it is under
 * way. */
size_t tierce__links_found(struct tierce__links_call *call);

/* Copies its results to its request; the status becomes the answer. Under no lock. */
void tierce__links_hand_over(struct tierce__links_call *call, struct tierce__store_req *req,
                             int status);

/* end: releases the buffer and large copies after the call. fini: frees all copies, before the call
 * itself is freed. */
void tierce__links_call_end(struct tierce__links_call *call);
void tierce__links_call_fini(struct tierce__links_call *call);

#endif
