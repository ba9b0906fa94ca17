/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_HTTP_FETCH_H
#define TIERCE_NET_HTTP_FETCH_H

#include "net/http_client.h"

/*
 * Many HTTP/1.1 requests at a time, on one thread, which keeps connections for later requests.
 *
 *     rc = tierce__fetcher_create(&fetcher, &(struct tierce__fetcher_opts){.connect_ms = 1000});
 *     rc = tierce__fetch_begin(&fetch, fetcher, &(struct tierce__fetch_request){...});
 *     for (;;) {
 *         tierce__fetcher_step(fetcher); // calls `take` and `done`
 *         tierce__fetcher_wait(fetcher, 1000);
 *     }
 *
 * An answer with any status is a success. libcurl sends a request again if a kept connection turns
 * out to be closed. Thread: one, the owner, except tierce__fetcher_wake.
 */

struct tierce__fetcher;
struct tierce__fetch;

/* All may be zero. The texts are copied. */
struct tierce__fetcher_opts {
    const char *ca_file;      /* NULL: the system's CAs. Each new connection reads it */
    uint32_t connect_ms;      /* 0: libcurl's default */
    uint32_t connections_max; /* that are kept while they are idle; 0: 256 */
    uint32_t receive_bytes;   /* SO_RCVBUF: what the kernel holds for a paused request; 0: its own
                                 choice, which may be 32 MiB */
};

/* The largest number of bytes that `take` receives at once. */
#define TIERCE__FETCH_PART_BYTES ((size_t)CURL_MAX_WRITE_SIZE)

/* The URL and the headers are copied; the body is borrowed until `done` or cancel. */
struct tierce__fetch_request {
    const char *url;
    const char *body; /* NULL: a GET */
    size_t body_bytes;
    const struct tierce__curl_header *headers;
    size_t header_count;
    uint32_t timeout_ms; /* of the whole request; 0: none */

    /* Receives a part of the body: the status and the headers of the answer are available. Returns
     * `count`, TIERCE__CURL_PAUSE, or 0 to end the request: `done` then reports
     * TIERCE_E_CANCELLED. It must not call tierce__fetch_cancel. */
    size_t (*take)(void *arg, const char *bytes, size_t count);
    /* The last call for this request: 0, or an error of tierce__curl_call or one that
     * tierce__fetch_is_local knows, with `why` in words. The
     * fetch is valid until it returns. It may begin and cancel others. */
    void (*done)(void *arg, int rc, const char *why);
    void *arg;
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__fetcher_create(struct tierce__fetcher **out,
                                          const struct tierce__fetcher_opts *opts);
/* Cancels all requests. Accepts NULL. */
void tierce__fetcher_destroy(struct tierce__fetcher *fetcher);

/* Does not call `take` or `done`. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__fetch_begin(struct tierce__fetch **out, struct tierce__fetcher *fetcher,
                                       const struct tierce__fetch_request *request);

/* Whether an error says that this process lacks something (descriptors, ports, memory), and nothing
 * about the server. */
bool tierce__fetch_is_local(int rc);

/* Ends a request without calling `done`; its connection is closed, so that the server notices. */
void tierce__fetch_cancel(struct tierce__fetch *fetch);

/* Accepts bytes again, perhaps by calling `take` before it returns. */
void tierce__fetch_resume(struct tierce__fetch *fetch);

/* The status of the answer; 0: none has arrived. */
long tierce__fetch_status(struct tierce__fetch *fetch);

/* Whether bytes of the request were sent, which the server may have received. */
bool tierce__fetch_was_sent(struct tierce__fetch *fetch);

/* A header of the answer, or NULL. [borrow until the next call] */
const char *tierce__fetch_header(struct tierce__fetch *fetch, const char *name);

/* Sends and receives as much as possible without blocking, and calls `take` and `done`. */
void tierce__fetcher_step(struct tierce__fetcher *fetcher);

/* Blocks for at most `ms`, until there is something to do, or until a wake. */
void tierce__fetcher_wait(struct tierce__fetcher *fetcher, uint32_t ms);

/* Ends the wait in progress, or the next one. Thread: any. */
void tierce__fetcher_wake(struct tierce__fetcher *fetcher);

#endif
