/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_REPORTER_H
#define TIERCE_ENGINE_REPORTER_H

#include <tierce/engine.h>

/*
 * Reports the contents of an engine's tiers to the directory of a manager (JoinDirectory,
 * ReportChunks): all of them when the manager does not know them, then each change, with the
 * numbers of the engine's events. Engines and nodes with directory.manager have a reporter:
 *
 *     fleet://MANAGER:PORT[,MANAGER:PORT][/GROUP][?token_file=F&ca_file=F]       fleet+tls://...
 *
 * The engine never waits for it. Changes that are not yet reported wait in a queue of fixed size.
 * If the queue is full, as while no manager answers, or if events were lost, all contents are sent
 * again, after a pause that doubles, up to a quarter of directory.silence, until a silence has
 * passed without that.
 *
 * The answers to reports bring commands of an operator (directory_commands.h), and reports bring
 * their results. The log has an event directory_command for each.
 *
 * Log events: directory_unreachable and directory_reachable, when no manager answers and when one
 * does again; directory_complete, when all contents were sent; directory_resync, when they are to
 * be sent again (the first, second, fourth, ... time one after another). Metrics:
 * directory_resync_count and directory_complete_status.
 *
 * Threads: one of its own, which calls the manager, and that of its subscription.
 */

struct tierce__reporter;

/* A worker of the directory, since it has joined. */
struct tierce__reporter_place {
    int64_t session; /* as FindChunks takes it, which then leaves this worker out */
    int32_t slot;
    const char *secret; /* the group's, for transfer servers; [borrow for the call] */
};

struct tierce__reporter_opts {
    size_t size;
    const char *url;
    uint32_t queue_max; /* changes that wait; 0: 65536 */
    /* HOST:PORT where others read this engine's chunks; NULL: it is not known yet, or nowhere. */
    const char *transfer_address;
    /* The address if it was not known: called before each join, and about as often as reports,
     * until it is not NULL; then the worker joins again. On the reporter's thread; may block for
     * seconds, as tierce__reporter_stop then does. NULL: nowhere. */
    const char *(*find_address)(void *arg);
    bool uses_tls;    /* that address accepts TLS only */
    const char *zone; /* base/text/zone.h; NULL: unknown */
    /* Called after each join, before anything is reported; a manager that begins to lead has other
     * secrets. On the reporter's thread; must not block. NULL: no call. */
    void (*joined)(void *arg, const struct tierce__reporter_place *place);
    /* Reads in progress for others, in thousandths of the most that this engine admits; sent with
     * each report. On the reporter's thread; must not block. NULL: 0. */
    uint32_t (*load)(void *arg);
    void *arg;
};

/* Errors: TIERCE_E_CONFIG (the URL), -ENOMEM, -EAGAIN (no thread); `why` in words. */
TIERCE_MUSTUSE int tierce__reporter_start(struct tierce__reporter **out,
                                          struct tierce_engine *engine,
                                          const struct tierce__reporter_opts *opts, char why[256]);

/* Leaves the directory if a manager answers within a second; a call that a manager has not answered
 * yet is given up, and so is leaving then. The engine's tiers still exist. NULL is accepted. */
void tierce__reporter_stop(struct tierce__reporter *reporter);

#endif
