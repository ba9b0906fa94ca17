/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_MAN_H
#define TIERCE_CLI_MAN_H

#include "cli/cli.h"

/*
 * Writes manual pages in man(7) macros from the help texts. Paragraphs are filled; lines that begin
 * with a space are printed as they are.
 */

/* Writes tierce-NAME(1) of a command; if `command` is NULL, tierce(1), which lists `commands`. */
void tierce__man_print(FILE *out, const struct tierce__command *command,
                       const struct tierce__command *commands, size_t count);

#endif
