/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_GRPC_TRANSFER_H
#define TIERCE_NET_GRPC_TRANSFER_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * A unary gRPC call as a transfer of libcurl's multi interface, which connects, resolves names,
 * shakes hands and multiplexes calls on an HTTP/2 connection without blocking.
 *
 *     rc = tierce__grpc_transfer_create(&transfer, &opts);
 *     rc = tierce__grpc_transfer_begin(transfer, multi, &request);
 *     ...      // curl_multi_info_read: CURLINFO_PRIVATE is the transfer
 *     tierce__grpc_transfer_end(transfer, code, &answer);     // and it may begin again
 *
 * Thread: the one that drives the multi handle.
 */

struct tierce__grpc_transfer;

struct tierce__grpc_transfer_opts {
    size_t size;
    const char *ca_file; /* PEM; NULL: the system's authorities */
    size_t answer_bytes_max;
    _Atomic uint64_t *connections, *connects; /* counted; [borrow until destroy] */
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__grpc_transfer_create(struct tierce__grpc_transfer **out,
                                                const struct tierce__grpc_transfer_opts *opts);
/* Not while it is in progress. NULL is accepted. */
void tierce__grpc_transfer_destroy(struct tierce__grpc_transfer *transfer);

/* All is [borrow until the end]. */
struct tierce__grpc_transfer_request {
    const char *url;           /* "http://host:port/package.Service/Method", or https:// */
    const char *authorization; /* the value of that header, or NULL */
    const void *message;
    size_t bytes;
    uint32_t timeout_ms; /* > 0; also sent to the server */
    uint32_t connect_ms; /* > 0: of connecting, TLS included */
    void *arg;
};
/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__grpc_transfer_begin(struct tierce__grpc_transfer *transfer, CURLM *multi,
                                               const struct tierce__grpc_transfer_request *request);

enum tierce__grpc_transfer_outcome {
    TIERCE__GRPC_TRANSFER_ANSWERED, /* with any grpc-status */
    TIERCE__GRPC_TRANSFER_UNSENT,   /* no connection */
    TIERCE__GRPC_TRANSFER_LOST,     /* the connection failed; the server may have seen the call */
    TIERCE__GRPC_TRANSFER_LATE,     /* sent, and not answered in time */
    TIERCE__GRPC_TRANSFER_WRONG,    /* an answer that is not gRPC, or too long */
    TIERCE__GRPC_TRANSFER_NO_MEMORY,
};

struct tierce__grpc_transfer_answer {
    enum tierce__grpc_transfer_outcome outcome;
    uint32_t status;     /* of ANSWERED: grpc-status */
    const void *message; /* of ANSWERED with status 0; [borrow until the next begin] */
    size_t bytes;
    char text[256]; /* grpc-message, or what failed in words */
    void *arg;
};
/* `code`: of curl's message. Removes the transfer from its multi handle. */
void tierce__grpc_transfer_end(struct tierce__grpc_transfer *transfer, CURLcode code,
                               struct tierce__grpc_transfer_answer *answer);

/* Ends one in progress without an answer. */
void tierce__grpc_transfer_cancel(struct tierce__grpc_transfer *transfer);

#endif
