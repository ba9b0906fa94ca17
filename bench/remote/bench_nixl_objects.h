/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BENCH_NIXL_OBJECTS_H
#define TIERCE_BENCH_NIXL_OBJECTS_H

#include "bench/bench.h"

/* Rows of the benchmark of NIXL: objects by s3+nixl://, against s3://. `library`: the path of
 * NIXL's C library. Errors: those of a benchmark, printed. */
TIERCE_MUSTUSE int tierce__bench_nixl_objects(const struct tierce__bench *bench,
                                              const char *library);

#endif
