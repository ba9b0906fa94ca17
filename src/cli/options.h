/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_OPTIONS_H
#define TIERCE_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/cli.h"

/*
 * Options of a command as a table: a row states the name, the kind of value and the field that
 * receives it. Values are read as base/config/config_parse.h does.
 *
 * An option is written --name VALUE or --name=VALUE, and with one letter -n VALUE or -nVALUE. "--"
 * ends the options; "-" and negative numbers are words, not options.
 */

enum tierce__option_kind {
    TIERCE__OPTION_FLAG,     /* bool; without a value */
    TIERCE__OPTION_TEXT,     /* const char *, [borrow]ed from the arguments; one of `names` */
    TIERCE__OPTION_CHOICE,   /* an enum: `min` is its value for the first of `choices` */
    TIERCE__OPTION_COUNT,    /* uint32_t or uint64_t */
    TIERCE__OPTION_SIZE,     /* uint32_t or uint64_t: bytes */
    TIERCE__OPTION_DURATION, /* uint32_t or uint64_t: milliseconds */
    TIERCE__OPTION_SHARE,    /* double, above 0, up to 1 */
    TIERCE__OPTION_NUMBER,   /* double */
    TIERCE__OPTION_CALL,     /* `read` reads the value */
    TIERCE__OPTION_LIST,     /* `read` reads each part of a list that is separated by commas */
};

struct tierce__option {
    const char *name; /* with its dashes; NULL ends a table */
    enum tierce__option_kind kind;
    uint16_t bytes, offset; /* of the field, TIERCE__OPTION_FIELD */
    double min, max;        /* of a number; max 0: no maximum */
    const char *wants;      /* the accepted values, for messages: "a time like 5s". May be NULL for
                               counts and shares */
    const char *const *choices;         /* end with NULL */
    const char *(*names)(size_t index); /* the accepted texts, the last one NULL; NULL: any */
    int (*read)(void *field, const char *option, const char *text); /* returns an exit status */
    unsigned verbs;   /* bits of the verbs that accept the option; 0: all verbs */
    bool may_shorten; /* in the row that ends a table: unique beginnings of names are accepted */
};

#define TIERCE__OPTION_FIELD(type, member)                                                         \
    .bytes = sizeof(((type *)0)->member), .offset = offsetof(type, member)

/*
 * Reads the options of argv[1 .. *argc) into the fields of `out`, in the order of the arguments:
 * the last value counts. Afterwards *argc and argv hold argv[0], the words that are not options,
 * and NULL; argv must have room for the NULL, as main's argv has. `verb` is the bit in `verbs` of
 * the verb that runs, whose name is argv[0]; 0 for commands without verbs. Returns an exit status.
 * If it is not TIERCE__CLI_OK, the reason has been printed, and some fields may be set.
 */
TIERCE_MUSTUSE int tierce__options_read(const char *command, const struct tierce__option *options,
                                        void *out, unsigned verb, int *argc, char **argv);

/* Rejects an option; the message names the nearest of `known`, which ends with NULL and is not
 * empty. Returns TIERCE__CLI_USAGE. */
int tierce__option_unknown(const char *command, const char *word, const char *const known[]);

/* Rejects a value with the message `OPTION requires WANTS: "TEXT"`. Returns TIERCE__CLI_USAGE. */
int tierce__option_refuse(const char *command, const char *option, const char *wants,
                          const char *text);

#endif
