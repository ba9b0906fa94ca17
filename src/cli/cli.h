/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_H
#define TIERCE_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <tierce/status.h>

/*
 * The command line: wiring only. Every subcommand is a function with main's arguments (argv[0] is
 * the subcommand) that returns an exit status. Results go to stdout, messages and progress to
 * stderr.
 */

enum tierce__cli_status {
    TIERCE__CLI_OK = 0,     /* done; nothing wrong was found */
    TIERCE__CLI_FAILED = 1, /* it failed, or found damage or a difference */
    TIERCE__CLI_USAGE = 2,  /* the arguments are wrong; nothing was done */
};

struct tierce__command {
    const char *name;
    const char *args;
    const char *summary;
    const char *const *help; /* the help text after the usage line, in parts; ends with NULL */
    int (*run)(int argc, char **argv);
};

#define TIERCE_COMMAND(suffix, name, args, summary)                                                \
    int tierce__cli_##suffix(int argc, char **argv);                                               \
    extern const char *const tierce__cli_##suffix##_help[];
#include "cli/commands.def"
#undef TIERCE_COMMAND

/* Runs the executable with main's arguments and returns its exit status. */
int tierce__cli_main(int argc, char **argv);

/* The parts of a help, one after the other. */
void tierce__cli_print_help(FILE *file, const char *const *help);

/* Prints "tierce COMMAND: ..." and where help is, by printf rules, without control characters.
 * Returns TIERCE__CLI_USAGE. */
int tierce__cli_usage(const char *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same without the help. Returns TIERCE__CLI_FAILED. */
int tierce__cli_fail(const char *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The name of a trace in results: its file's name without folders and endings, "stdin" for "-";
 * safe in a CSV cell and on a terminal. */
#define TIERCE__CLI_TRACE_NAME_BYTES 256u
void tierce__cli_trace_name(char out[TIERCE__CLI_TRACE_NAME_BYTES], const char *path);

/*
 * The content of a regular file of at most `bytes_max` bytes as text with a NUL, heap,
 * tierce__free. Errors, *out untouched: negative errno (-EFBIG: larger; -EINVAL: not a regular
 * file; -EILSEQ: it holds a NUL), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__cli_read_text(char **out, const char *path, size_t bytes_max);

/* Raises the limit on open files of this process to the most that it may have, and logs if that is
 * too few for `connections`, which the parameter `name` allows. Thread: before others start. */
void tierce__cli_raise_files(const char *command, const char *name, uint32_t connections);

/* Replaces invalid UTF-8, and control characters except line feeds, by '?', so that untrusted text
 * can go to a terminal. */
void tierce__cli_clean(char *text);

/* The text of an error of tierce__cli_read_text, to follow the name of the file. */
const char *tierce__cli_read_error(int rc);

#endif
