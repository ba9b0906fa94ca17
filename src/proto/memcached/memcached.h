/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_MEMCACHED_H
#define TIERCE_WIRE_MEMCACHED_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/* The answers of memcached's text protocol, line by line. Thread: any. */

#define TIERCE__MEMCACHED_KEY_BYTES 250u

enum tierce__memcached_kind {
    TIERCE__MEMCACHED_VALUE, /* followed by `bytes` bytes and "\r\n" */
    TIERCE__MEMCACHED_END,
    TIERCE__MEMCACHED_STORED,
    TIERCE__MEMCACHED_NOT_STORED,
    TIERCE__MEMCACHED_EXISTS,
    TIERCE__MEMCACHED_NOT_FOUND,
    TIERCE__MEMCACHED_DELETED,
    TIERCE__MEMCACHED_TOUCHED,
    TIERCE__MEMCACHED_STAT,
    TIERCE__MEMCACHED_VERSION,
    TIERCE__MEMCACHED_FULL,      /* no memory for an item; its bytes were read */
    TIERCE__MEMCACHED_TOO_LARGE, /* the same */
    TIERCE__MEMCACHED_ERROR,     /* any other one */
};

struct tierce__memcached_line {
    enum tierce__memcached_kind kind;
    const char *name; /* VALUE: the key; STAT: the name; ERROR: the line. [borrow] the line */
    size_t name_bytes;
    const char *text; /* STAT: the rest of the line. [borrow] the line */
    size_t text_bytes;
    uint64_t bytes;  /* VALUE */
    uint64_t unique; /* VALUE of a gets; else 0 */
};

/* A line without its "\r\n". Errors: TIERCE_E_FORMAT, *out untouched. */
TIERCE_MUSTUSE int tierce__memcached_parse(struct tierce__memcached_line *out, const char *line,
                                           size_t count);

#endif
