/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_SERVER_COMMAND_H
#define TIERCE_CLI_SERVER_COMMAND_H

#include "base/config/config_args.h"

#include <signal.h>

/*
 * The common part of the commands that run a server: help, configuration, reference and signals.
 *
 * Thread: one.
 */

struct tierce__cli_server {
    const char *command;                /* "proxy"; its log lines begin with "tierce proxy" */
    const char *title;                  /* "the proxy": "Parameters of the proxy" */
    const char *env_prefix;             /* "TIERCE_PROXY" */
    const char *section, *leaf, *value; /* of a parameter, for examples: "listen", "port", "6495" */
    const char *first;                  /* the first sentence of the reference's head, or "" */
    const char *files;  /* sources between the YAML file and the environment: "then ..., ", or "" */
    const char *source; /* an item about them, or "" */
    const char *const *help;
};

/* Answers --help, --print-config and --markdown on stdout. `params`: those of the reference. False:
 * the server is to run. */
bool tierce__cli_server_answers(const struct tierce__cli_server *server,
                                enum tierce__config_action action,
                                const struct tierce__config *values,
                                const struct tierce__param *params, size_t count);

/* Prints the reference of all parameters. */
void tierce__cli_server_markdown(const struct tierce__cli_server *server,
                                 const struct tierce__param *params, size_t count);

/* SIGINT, SIGTERM and SIGHUP reach only the caller, who waits for them, and no thread that starts
 * later; SIGPIPE nobody. */
void tierce__cli_server_signals(sigset_t *signals);

/* Waits for a signal that ends the server. On SIGHUP it calls reload(arg, why), and logs why that
 * has failed. */
void tierce__cli_server_wait(const struct tierce__cli_server *server, const sigset_t *signals,
                             int (*reload)(void *arg, char why[256]), void *arg);

/* Logs why tokens and certificates could not be read again. */
void tierce__cli_server_refused(const struct tierce__cli_server *server, const char *why);

#endif
