/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_DIRECTORY_COMMANDS_H
#define TIERCE_ENGINE_DIRECTORY_COMMANDS_H

#include "engine/engine.h"
#include "proto/kvcm/meta_service.pb-c.h"

/*
 * The commands that a manager gives to an engine in the answers of its reports (CommandWorker), and
 * their results. A thread carries them out one after another, so that neither reports nor requests
 * wait for them (chunk_orders.h); health, pin and unpin also between two chunks of a compression.
 *
 *     tierce__directory_commands_join(commands, session);         // after each JoinDirectory
 *     tierce__directory_commands_put(commands, &request);         // into a ReportChunks
 *     tierce__directory_commands_sent(commands);                  // it was answered,
 *     tierce__directory_commands_take(commands, reply);           // and this is its answer
 *
 * A manager repeats a command until a report says that it was taken (last_command), so each is
 * carried out once. A result is repeated until a report with it was answered. Commands and results
 * of an earlier session are dropped: the manager has told their operator.
 *
 * A command with a deadline ends before the time at which the manager gives up its result: a tenth
 * of its time before, at most 2 s.
 *
 * Thread: one, the reporter's. No call waits for a command, except stop: for the present chunk of a
 * command, or for a clear.
 */

struct tierce__directory_commands;

struct tierce__directory_commands_opts {
    size_t size;
    struct tierce_engine *engine;
    void (*ended)(void *arg); /* there is a result; on the commands' thread, must not block */
    void *arg;
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int
tierce__directory_commands_create(struct tierce__directory_commands **out,
                                  const struct tierce__directory_commands_opts *opts);
/* Ends the command that runs, and all pins of commands. NULL is accepted. */
void tierce__directory_commands_stop(struct tierce__directory_commands *commands);

void tierce__directory_commands_join(struct tierce__directory_commands *commands, int64_t session);
void tierce__directory_commands_take(struct tierce__directory_commands *commands,
                                     const Meta__ReportChunksResponse *reply);

/* Sets last_command and results. [borrow] they last until the next call. */
void tierce__directory_commands_put(struct tierce__directory_commands *commands,
                                    Meta__ReportChunksRequest *request);
void tierce__directory_commands_sent(struct tierce__directory_commands *commands);

/* Whether there are results that were not sent. */
bool tierce__directory_commands_has_results(struct tierce__directory_commands *commands);

#endif
