/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_AUDIT_H
#define TIERCE_MANAGER_AUDIT_H

#include "manager/manager_private.h"
#include "net/server/serve.h"

#include <protobuf-c/protobuf-c.h>

/*
 * The audit log: one JSON object per line for each call that administers or removes blocks, for
 * each call that was refused, and for each SIGHUP: who, what, on what, from where, and the outcome.
 * It holds names, never passwords, tokens, configurations or keys of blocks.
 *
 * Refused calls are many when a client retries without end, and calls that remove blocks when a
 * client removes them one by one: above TIERCE__AUDIT_REFUSED_MAX and TIERCE__AUDIT_TRIMS_MAX a
 * second, they are counted and reported by the next line, so that they do not displace others.
 * Calls that administer have a line each.
 *
 * Threads: any; never blocks.
 */

#define TIERCE__AUDIT_REFUSED_MAX 100u
#define TIERCE__AUDIT_TRIMS_MAX   1000u

struct tierce__audit;

enum tierce__audit_outcome {
    TIERCE__AUDIT_DONE,
    TIERCE__AUDIT_FAILED,
    TIERCE__AUDIT_UNKNOWN, /* from here on refused: without valid credentials */
    TIERCE__AUDIT_DENIED,  /* without the right */
    TIERCE__AUDIT_SCOPE,   /* outside the scope */
    TIERCE__AUDIT_LIMITED,
};

struct tierce__audit_line {
    const char *what; /* "TrimCache", "/metrics", "SIGHUP" */
    const char *who;  /* the account; with AUDIT_UNKNOWN the name that was claimed; or "" */
    const struct tierce__call *call; /* NULL: no call */
    const ProtobufCMessage *request; /* names the target; NULL: not read */
    enum tierce__audit_outcome outcome;
    int code;        /* of the status of a reply; 0: none */
    const char *why; /* or "" */
    bool is_trim;    /* a call that removes blocks, and does not administer */
};

/* Errors, `why` in words: as tierce__line_log_open. */
TIERCE_MUSTUSE int tierce__audit_open(struct tierce__audit **out, const char *path, char why[256]);
/* NULL is accepted here and below, and logs nothing. */
void tierce__audit_close(struct tierce__audit *audit);

void tierce__audit_write(struct tierce__audit *audit, int64_t now_us,
                         const struct tierce__audit_line *line);

/* The line of a call that was rejected before it was read: `result` UNKNOWN, DENIED, or OK above a
 * limit. */
void tierce__audit_rejected(struct tierce__manager *manager, const struct tierce__call *call,
                            const char *what, const char *who, enum tierce__auth_result result,
                            const char *why);

/* Whether a call that was served has a line; and whether that is_trim. */
bool tierce__audit_wants(const struct tierce__need *need);
bool tierce__audit_is_trim(const struct tierce__need *need);

#endif
