/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_SIGV4_H
#define TIERCE_CONNECTOR_SIGV4_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Signatures of AWS, version 4, as a header "Authorization" carries them.
 *
 * libcurl could sign too (CURLOPT_AWS_SIGV4). As of 7.88 it signs the query in the order in which
 * it is given, signs empty headers that it then does not send, and takes the time from this
 * machine's clock, which a store with a different clock rejects. Here the caller specifies what is
 * signed.
 *
 * Nothing here allocates or blocks. Thread: any.
 */

#define TIERCE__SIGV4_TIME_BYTES 17u /* "20130524T000000Z" */
#define TIERCE__SIGV4_HASH_BYTES 65u
#define TIERCE__SIGV4_UNSIGNED   "UNSIGNED-PAYLOAD"

/* The credentials, region and service of a signature. */
struct tierce__sigv4_signer {
    const char *access_key, *secret_key;
    const char *region, *service;
};

struct tierce__sigv4_header {
    const char *name; /* in small letters */
    const char *value;
};

struct tierce__sigv4_request {
    const char *method;
    const char *path;  /* percent-encoded, as it is sent */
    const char *query; /* percent-encoded and sorted by name, each with '='; "" for none */
    const struct tierce__sigv4_header *headers; /* to be signed, sorted by name */
    size_t header_count;
    const char *payload; /* the body's SHA-256 in hex, or TIERCE__SIGV4_UNSIGNED */
    uint64_t time_s;     /* since 1970; equal to x-amz-date */
};

/* The time of a request as x-amz-date has it. */
void tierce__sigv4_time(char text[TIERCE__SIGV4_TIME_BYTES], uint64_t time_s);

/* The hash of a body in hex. */
void tierce__sigv4_hash(char text[TIERCE__SIGV4_HASH_BYTES], const void *data, size_t bytes);

/* The value of the header "Authorization". Errors: TIERCE_E_LIMIT (no room for it). */
TIERCE_MUSTUSE int tierce__sigv4_sign(char *authorization, size_t room,
                                      const struct tierce__sigv4_signer *signer,
                                      const struct tierce__sigv4_request *request);

#endif
