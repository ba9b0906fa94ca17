/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_URL_H
#define TIERCE_BASE_URL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Parses the URL of a server or a store. All URLs are parsed here.
 *
 *     scheme://user:password@host:port,[::1]:port/path?name=value&name=value
 *
 * User and password, path, names and values may be percent-encoded; an '@' in them must be. Errors
 * quote no part of the URL except names of parameters, and values that must be numbers or flags.
 *
 * Thread: any.
 */

#define TIERCE__URL_HOSTS_MAX  16u
#define TIERCE__URL_PARAMS_MAX 32u
#define TIERCE__URL_BYTES_MAX  4096u
#define TIERCE__URL_WHY_BYTES  256u

struct tierce__url_host {
    const char *name; /* "" where only a port is given; an IPv6 address without brackets */
    uint16_t port;    /* 0: none is given */
};

struct tierce__url {
    char *text; /* owned; all below points into it */
    size_t text_bytes;
    const char *scheme;
    const char *user, *password; /* NULL: none; "user@" has no password */
    struct tierce__url_host hosts[TIERCE__URL_HOSTS_MAX];
    size_t host_count;
    char *path; /* with its '/'; "" for none */
    struct {
        const char *name, *value;
    } params[TIERCE__URL_PARAMS_MAX];
    size_t param_count;
};

/* Errors, *out untouched and `why` in words: TIERCE_E_CONFIG, -ENOMEM. */
TIERCE_MUSTUSE int tierce__url_parse(struct tierce__url *out, const char *text,
                                     char why[TIERCE__URL_WHY_BYTES]);

/* Accepts a zeroed one. */
void tierce__url_clear(struct tierce__url *url);

/* Whether each parameter is one of `known`, which ends with NULL, and is given once. Errors:
 * TIERCE_E_CONFIG with the nearest known name and all of them. */
TIERCE_MUSTUSE int tierce__url_check_params(const struct tierce__url *url,
                                            const char *const known[],
                                            char why[TIERCE__URL_WHY_BYTES]);

/* The value of a parameter, or NULL. [borrow until clear] */
const char *tierce__url_param(const struct tierce__url *url, const char *name);

/* A parameter that is a number of that kind, within [min, max]; without it *value stays. Errors:
 * TIERCE_E_CONFIG. */
enum tierce__url_kind {
    TIERCE__URL_COUNT,
    TIERCE__URL_SIZE,        /* bytes */
    TIERCE__URL_MILLISECONDS /* "250ms", "24h" */
};
struct tierce__url_number {
    const char *name;
    enum tierce__url_kind kind;
    uint64_t min, max;
};
TIERCE_MUSTUSE int tierce__url_param_number(const struct tierce__url *url, uint64_t *value,
                                            const struct tierce__url_number *number,
                                            char why[TIERCE__URL_WHY_BYTES]);

/* A parameter that is true or false; without it *value stays. Errors: TIERCE_E_CONFIG. */
TIERCE_MUSTUSE int tierce__url_param_flag(const struct tierce__url *url, bool *value,
                                          const char *name, char why[TIERCE__URL_WHY_BYTES]);

/* Percent-decodes in place. False, with the text undefined, for invalid encoding, a NUL, or control
 * characters unless they are accepted. */
bool tierce__url_decode(char *text, bool takes_controls);

/* A URL for display: without user information and secret parameters. */
void tierce__url_show(char *text, size_t room, const char *url);

/* A copy of a text in which the same is done to each word that is a URL. [transfer] NULL: no
 * memory. */
TIERCE_MUSTUSE char *tierce__url_show_all(const char *text);

/* The part of a URL before its parameters, for display: the name of the store in messages. */
void tierce__url_store_name(char *text, size_t room, const char *url);

struct tierce__line;

/* Appends a text of a URL: encodes all that could end a part of it. Thread: any. */
void tierce__url_put_encoded(struct tierce__line *line, const char *text);

#endif
