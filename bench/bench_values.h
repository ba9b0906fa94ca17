/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_VALUES_H
#define TIERCE_CLI_BENCH_VALUES_H

#include "bench/bench.h"
#include "core/codec/codec.h"

/* KV for benchmarks of codecs: that of a file of tools/kv_samples.py (--kv), or made up. */

#define TIERCE__BENCH_PART_ELEMENTS 3072u /* keys or values of 16 tokens of SmolLM2-135M */

/* The element that the end of the file's name states; TIERCE__ELEMENTS: none. There is a file. */
enum tierce__element tierce__bench_values_element(const struct tierce__bench *bench);

/* The file's name without its folder, or that the values are made up. */
const char *tierce__bench_values_source(const struct tierce__bench *bench);

/* Keys and values with exponents of their own, each half as frequent as the next greater one.
 * `bytes` is a multiple of the element's. */
void tierce__bench_values_make_up(uint8_t *values, uint64_t bytes, enum tierce__element element);

/* The first bytes of the file; a shorter one is repeated. Errors are printed. */
TIERCE_MUSTUSE int tierce__bench_values_read(const struct tierce__bench *bench, uint8_t *values,
                                             uint64_t bytes);

#endif
