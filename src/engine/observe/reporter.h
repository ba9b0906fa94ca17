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
 * again. Each kind of trouble is logged when it begins and when it ends.
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
    /* HOST:PORT where others read this engine's chunks; NULL: nowhere. */
    const char *transfer_address;
    /* Called after each join, before anything is reported; a manager that begins to lead has other
     * secrets. On the reporter's thread; must not block. NULL: no call. */
    void (*joined)(void *arg, const struct tierce__reporter_place *place);
    void *arg;
};

/* Errors: TIERCE_E_CONFIG (the URL), -ENOMEM, -EAGAIN (no thread); `why` in words. */
TIERCE_MUSTUSE int tierce__reporter_start(struct tierce__reporter **out,
                                          struct tierce_engine *engine,
                                          const struct tierce__reporter_opts *opts, char why[256]);

/* Leaves the directory if a manager answers within a second. The engine's tiers still exist. NULL
 * is accepted. */
void tierce__reporter_stop(struct tierce__reporter *reporter);

#endif
