/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_CERTIFICATE_H
#define TIERCE_CLI_BENCH_CERTIFICATE_H

#include "bench/bench.h"

/* Writes a PEM file with a new key and its own certificate for 127.0.0.1, which is valid for a day
 * and its own authority. Errors: reported. */
TIERCE_MUSTUSE int tierce__bench_certificate(const struct tierce__bench *bench, const char *path);

#endif
