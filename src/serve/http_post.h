/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_HTTP_POST_H
#define TIERCE_SERVE_HTTP_POST_H

#include <curl/curl.h>
#include <stddef.h>

#include <tierce/status.h>

/* What a server answered. tierce__free the body. */
struct tierce__http_answer {
    long status;
    char *body; /* NUL behind it; NULL: there is none */
    size_t bytes;
};

/*
 * Posts a text, or asks for a page if it is NULL, and collects the answer, of at most `bytes_max`.
 * Headers, credentials, time limits and what is trusted are the caller's to set in `curl`, which
 * may be used again. Errors, told in `why`, and the answer empty: TIERCE_E_DEADLINE,
 * TIERCE_E_LIMIT, -ENOMEM, -EIO. Blocks. Thread: one at a time for each `curl`.
 */
TIERCE_MUSTUSE int tierce__http_post(struct tierce__http_answer *out, CURL *curl, const char *url,
                                     const char *text, size_t bytes_max, char why[256]);

#endif
