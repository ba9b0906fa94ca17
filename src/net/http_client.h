/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_HTTP_CLIENT_H
#define TIERCE_NET_HTTP_CLIENT_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * An HTTP client: one request at a time, on a connection that is kept for the next one.
 *
 *     rc = tierce__curl_create(&client, &(struct tierce__curl_opts){.timeout_ms = 1000});
 *     rc = tierce__curl_call(&answer, client,
 *                            &(struct tierce__curl_request){.url = url, .bytes_max = 65536}, why);
 *     tierce__curl_answer_clear(&answer);
 *     tierce__curl_destroy(client);
 *
 * It speaks http and https only, verifies certificates and follows no redirect. An answer with any
 * status is a success. Thread: one at a time for each client; exceptions are marked.
 */

struct tierce__curl;

/* All may be zero. The texts are copied. */
struct tierce__curl_opts {
    const char *unix_socket; /* connects to this path instead of the URL's host */
    const char *ca_file;     /* NULL: the system's CAs. Each new connection reads it */
    const char *login;       /* "name:password" for HTTP authentication; NULL: none */
    uint32_t connect_ms;     /* 0: libcurl's default */
    uint32_t timeout_ms;     /* of a request; 0: none */
    bool uses_proxies;       /* those of the environment; otherwise none is used */
    bool closes;             /* the connection after each request */
};

struct tierce__curl_header {
    const char *name, *value;
};

#define TIERCE__CURL_HEADERS_MAX 2u

/* Returned by `take`: it accepts the bytes again after tierce__curl_resume. */
#define TIERCE__CURL_PAUSE CURL_WRITEFUNC_PAUSE

/* The texts are borrowed until the end of the request. */
struct tierce__curl_request {
    const char *url;
    const char *method; /* NULL: POST with a body, GET without */
    const char *body;
    struct tierce__curl_header headers[TIERCE__CURL_HEADERS_MAX]; /* name NULL: none */
    size_t bytes_max;                                             /* of the answer's body */
    /* NULL: the body is collected. Otherwise it receives parts of the body and returns `count`,
     * TIERCE__CURL_PAUSE, or 0 to end the request with an error. */
    size_t (*take)(void *arg, const char *bytes, size_t count);
    void *arg;
};

struct tierce__curl_answer {
    long status;
    char *body; /* heap; TIERCE__JSON_SLACK zeroes follow it. NULL: an error, or `take` was set */
    size_t bytes;
};

/* Initializes libcurl, once for the process. Thread: any. */
void tierce__curl_init(void);

/* Sets the options that all transfers of this process have: protocols, timeouts, CAs,
 * proxies, user agent, keep-alive. For owners of a handle of their own. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__curl_set_options(CURL *easy, const struct tierce__curl_opts *opts);

/* The error that tierce__curl_call returns for a code of libcurl; 0 for CURLE_OK. */
int tierce__curl_error(CURLcode code);

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__curl_create(struct tierce__curl **out,
                                       const struct tierce__curl_opts *opts);
/* Accepts NULL. */
void tierce__curl_destroy(struct tierce__curl *client);

/* Makes a request and blocks until its end. Errors, with `why` in words: TIERCE_E_DEADLINE,
 * -ECONNREFUSED (no connection), -EKEYREJECTED (the CAs do not know the server's
 * certificate, or ca_file cannot be read), TIERCE_E_LIMIT (bytes_max), TIERCE_E_CANCELLED, -ENOMEM,
 * -EIO. */
TIERCE_MUSTUSE int tierce__curl_call(struct tierce__curl_answer *out, struct tierce__curl *client,
                                     const struct tierce__curl_request *request, char why[256]);

/* Wipes and frees the body, which may hold a secret. */
void tierce__curl_answer_clear(struct tierce__curl_answer *answer);

/* ---- the same in steps, without blocking ---- */

/* Afterwards tierce__curl_end is due, which also reports an error of this call. */
void tierce__curl_begin(struct tierce__curl *client, const struct tierce__curl_request *request);

/* Sends and receives as much as possible. Returns whether the request is still in progress. */
bool tierce__curl_step(struct tierce__curl *client);

/* Blocks for at most `ms`, until there is something to do, or until stop or wake. */
void tierce__curl_wait(struct tierce__curl *client, uint32_t ms);

void tierce__curl_resume(struct tierce__curl *client);

/* The status of the latest answer, also of one that ended with an error; 0: none has arrived. */
long tierce__curl_status(struct tierce__curl *client);

/* Ends the request, also one in progress, and returns as tierce__curl_call. */
TIERCE_MUSTUSE int tierce__curl_end(struct tierce__curl_answer *out, struct tierce__curl *client,
                                    char why[256]);

/* Ends the wait in progress. Thread: any. */
void tierce__curl_wake(struct tierce__curl *client);

/* Ends the call or wait in progress; later ones end at once. Thread: any. */
void tierce__curl_stop(struct tierce__curl *client);

#endif
