/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_HTTP_POST_H
#define TIERCE_SERVE_HTTP_POST_H

#include <curl/curl.h>
#include <stddef.h>

#include <tierce/status.h>

/* A server's answer. The caller frees the body (tierce__free). */
struct tierce__http_answer {
    long status;
    char *body; /* NUL-terminated; NULL: none */
    size_t bytes;
};

/*
 * Posts a text, or makes a GET request if it is NULL, and collects the answer of at most
 * `bytes_max`. The caller sets headers, credentials, timeouts and trusted authorities in `curl`,
 * which can be reused. Errors, with `why` set and an empty answer: TIERCE_E_DEADLINE,
 * TIERCE_E_LIMIT, -ENOMEM, -EIO. Blocks. Thread: one at a time for each `curl`.
 */
TIERCE_MUSTUSE int tierce__http_post(struct tierce__http_answer *out, CURL *curl, const char *url,
                                     const char *text, size_t bytes_max, char why[256]);

#endif
