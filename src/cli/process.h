/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_PROCESS_H
#define TIERCE_CLI_PROCESS_H

#include "base/json/json_value.h"
#include "net/control/control.h"

/*
 * Running processes, asked over their control sockets.
 *
 * Thread: one.
 */

struct tierce__process {
    char socket[TIERCE__CONTROL_PATH_BYTES];
};

/*
 * The processes that `who` names: a socket's path, a process id, or NULL for all of this user's in
 * tierce__control_folder, or if it has none, in tierce__control_folder_other.
 * *out, heap, [*count], at least one. Returns an exit status; errors have been printed. A process
 * that has a control socket but does not answer is not among them; a message names it.
 */
TIERCE_MUSTUSE int tierce__processes_find(const char *command, const char *who,
                                          struct tierce__process **out, size_t *count);

/*
 * The page `path` of a process ("/status"), with `body` as a POST, or NULL for a GET. *text, heap,
 * NUL-terminated, and cleaned (cli.h), because any process may answer. Returns an exit status;
 * errors have been printed, unless `is_quiet`.
 */
TIERCE_MUSTUSE int tierce__process_ask(const char *command, const struct tierce__process *process,
                                       const char *path, const char *body, bool is_quiet,
                                       char **text);

/* Reads such a page as JSON: an object. [transfer] *out. Returns an exit status; errors have been
 * printed. */
TIERCE_MUSTUSE int tierce__process_read(const char *command, const struct tierce__process *process,
                                        const char *text, struct tierce__json_doc *out);

/* A text of such an object, fit for a terminal; `fallback` if there is none. Returns `out`. */
const char *tierce__process_word(char *out, size_t size, struct tierce__text object,
                                 const char *path, const char *fallback);

#endif
