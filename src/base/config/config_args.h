/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_CONFIG_ARGS_H
#define TIERCE_BASE_CONFIG_ARGS_H

#include "base/config/config.h"

/*
 * The configuration of a program `tierce COMMAND` from its arguments and its environment:
 *
 *     defaults < YAML file (--config, or PREFIX_CONFIG) < PREFIX_* < --NAME=VALUE
 *
 * The program also takes --help, --print-config and --markdown. Thread: one at a time.
 */

enum tierce__config_action {
    TIERCE__CONFIG_RUN,
    TIERCE__CONFIG_HELP,
    TIERCE__CONFIG_PRINT,    /* the configuration */
    TIERCE__CONFIG_MARKDOWN, /* the reference of the table */
};

struct tierce__config_program {
    const char *command;    /* "proxy" */
    const char *env_prefix; /* "TIERCE_PROXY" */
    const struct tierce__param *table;
    size_t count;
    const char *file_flag;      /* another flag that names a file, as "--users"; NULL: none */
    const char *const *ignored; /* variables with the prefix that are no parameters, up to NULL;
                                   NULL: none */
};

/* The result of the arguments. */
struct tierce__config_request {
    enum tierce__config_action action;
    const char *file; /* of file_flag [borrow argv], or NULL */
};

/* Reads everything. *out [transfer]; for help and the reference it holds the defaults. `argv` is
 * what follows the name of the command. Errors, *out untouched and `error` filled: TIERCE_E_CONFIG,
 * negative errno (a file), -ENOMEM. */
TIERCE_MUSTUSE int tierce__config_load_program(struct tierce__config **out,
                                               struct tierce__config_request *request,
                                               const struct tierce__config_program *program,
                                               int argc, char *const *argv, char *const *env,
                                               struct tierce__config_error *error);

#endif
