/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_S3_SERVER_H
#define TIERCE_CLI_BENCH_S3_SERVER_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * A benchmark's substitute for S3 on loopback, with a thread for each connection. It answers every
 * GET with a range of one object in memory, and accepts and discards every PUT, every part of an
 * upload and every deletion. It keeps and deletes only the objects with which a manager probes a
 * storage, so such a storage stays in service. It checks nothing.
 */

struct tierce__bench_s3;

/* [borrow until stop] object. Errors: negative errno, -ENOMEM. */
TIERCE_MUSTUSE int tierce__bench_s3_start(struct tierce__bench_s3 **out, const uint8_t *object,
                                          size_t bytes, uint16_t *port);

/* Writes a file of credentials, which the server does not check. Errors: negative errno. */
TIERCE_MUSTUSE int tierce__bench_s3_credentials(const char *path);

/* Ends it and its connections. NULL is accepted. */
void tierce__bench_s3_stop(struct tierce__bench_s3 *server);

#endif
