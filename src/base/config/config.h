/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_CONFIG_H
#define TIERCE_BASE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <tierce/status.h>

/*
 * Configuration from a table of parameters: a YAML file, then environment variables, then flags.
 *
 * A parameter has a name with at most one dot ("disk.size"). In YAML it is a nested mapping or the
 * dotted name itself; in the environment it is PREFIX, '_' and the name in upper case with '_' for
 * '.' (TIERCE_DISK_SIZE); as a flag it is --disk.size=VALUE. An unknown name is rejected and the
 * nearest known name suggested; so is a value out of bounds, with the bounds. Later sources
 * override earlier ones, and the source of each value can be queried.
 *
 * Thread: one at a time until it is only read.
 */

enum tierce__param_type {
    TIERCE__PARAM_SIZE,     /* bytes: "512MiB", "2 GiB", "1GB" (decimal), "4096" */
    TIERCE__PARAM_COUNT,    /* whole number */
    TIERCE__PARAM_DURATION, /* milliseconds: "250ms", "5s", "2min", "1h"; a bare number is ms */
    TIERCE__PARAM_BOOL,     /* true false yes no on off 1 0 */
    TIERCE__PARAM_SHARE,    /* 0 .. 1, or "50%" */
    TIERCE__PARAM_TEXT,
    TIERCE__PARAM_CHOICE, /* one of `choices` */
};

struct tierce__param {
    const char *name;
    enum tierce__param_type type;
    const char *fallback; /* the default, as text */
    double min, max;      /* for numbers; both 0: not bounded */
    const char *choices;  /* "a|b|c"; "a|b..." accepts every text that begins with b */
    const char *text;     /* one paragraph for help and docs */
};

struct tierce__config;

/* A message for people: the invalid value, its position, and the accepted values. Always
 * NUL-terminated. */
struct tierce__config_error {
    char text[512];
};

/* A configuration holding the defaults. [borrow] table until destroy. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__config_create(struct tierce__config **out,
                                         const struct tierce__param *table, size_t count,
                                         const char *env_prefix);
void tierce__config_destroy(struct tierce__config *config);

/*
 * Reads a YAML file, the environment (a NULL-terminated array as `environ`), or one name and value.
 * Environment names with the prefix that are not parameters are rejected too, except those listed
 * in `ignore` (NULL-terminated, may be NULL; "PREFIX_X_*" covers all names with that beginning).
 * `source` names the origin of a single value. Errors: TIERCE_E_CONFIG with `error` filled,
 * negative errno (file) likewise, -ENOMEM. Values read before the error stay set. Logs
 * config_file_readable if a file with passwords in URLs is readable for its group or others.
 */
TIERCE_MUSTUSE int tierce__config_load_file(struct tierce__config *config, const char *path,
                                            struct tierce__config_error *error);
/* The same for bytes in memory, [borrow] for the call; `name` stands for the path. */
TIERCE_MUSTUSE int tierce__config_load_text(struct tierce__config *config, const char *name,
                                            const char *text, size_t len,
                                            struct tierce__config_error *error);
TIERCE_MUSTUSE int tierce__config_load_env(struct tierce__config *config, char *const *env,
                                           const char *const *ignore,
                                           struct tierce__config_error *error);
TIERCE_MUSTUSE int tierce__config_set(struct tierce__config *config, const char *name,
                                      const char *value, const char *source,
                                      struct tierce__config_error *error);

/* The value of a variable, or NULL. env may be NULL. [borrow env] */
const char *tierce__config_env_value(char *const *env, const char *name);

/* For rules over several parameters, and sources of a program's own: fills `error`, returns rc. */
int tierce__config_fail(struct tierce__config_error *error, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Handles an argument of `tierce COMMAND` that is neither one of its flags nor --NAME=VALUE.
 * `table`: the parameters that the command accepts. Fills `error`, returns TIERCE_E_CONFIG. */
int tierce__config_refuse_argument(struct tierce__config_error *error,
                                   const struct tierce__param *table, size_t count,
                                   const char *command, const char *arg);

/* The row of a name, or TIERCE__CONFIG_NONE. */
#define TIERCE__CONFIG_NONE SIZE_MAX
size_t tierce__config_find(const struct tierce__config *config, const char *name);

/* The table that create was given, and its number of rows. */
const struct tierce__param *tierce__config_table(const struct tierce__config *config,
                                                 size_t *count);

/* Values by the row of the table; the type must be the row's. Text: [borrow until set]. */
uint64_t tierce__config_number(const struct tierce__config *config, size_t row);
double tierce__config_share(const struct tierce__config *config, size_t row);
bool tierce__config_bool(const struct tierce__config *config, size_t row);
const char *tierce__config_text(const struct tierce__config *config, size_t row);

/* The value of a row of any type as the text that set reads back; [borrow until set]. */
const char *tierce__config_canonical(const struct tierce__config *config, size_t row);

/* "default", "file PATH:LINE", "environment NAME", or the source given to set. */
const char *tierce__config_source(const struct tierce__config *config, size_t row);

/* Writes the effective configuration as YAML that load_file reads back, each value with a comment
 * that names its origin. Secrets in URLs are omitted. */
void tierce__config_print(const struct tierce__config *config, FILE *out);

/* Writes a value as YAML reads it back, in quotes if it needs them. Returns how many bytes. */
int tierce__config_print_value(const char *text, FILE *out);

/* Writes the reference as a Markdown table: name, type, default, bounds, text. */
void tierce__config_print_markdown(const struct tierce__param *table, size_t count, FILE *out);

#endif
