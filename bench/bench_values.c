/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_values.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"

enum tierce__element tierce__bench_values_element(const struct tierce__bench *bench)
{
    const char *dot = strrchr(bench->kv, '.');
    enum tierce__element element = dot != NULL ? tierce__element_find(dot + 1) : TIERCE__ELEMENTS;
    return element == TIERCE__ELEMENT_RAW ? TIERCE__ELEMENTS : element;
}

const char *tierce__bench_values_source(const struct tierce__bench *bench)
{
    const char *slash = bench->kv != NULL ? strrchr(bench->kv, '/') : NULL;
    return bench->kv == NULL ? "made-up KV" : slash != NULL ? slash + 1 : bench->kv;
}

void tierce__bench_values_make_up(uint8_t *values, uint64_t bytes, enum tierce__element element)
{
    unsigned width = tierce__element_bytes(element);
    for (uint64_t i = 0; i < bytes / width; i++) {
        uint64_t random = tierce__bench_random(3, i), coins = tierce__bench_random(4, i);
        unsigned lower = (unsigned)__builtin_ctzll(coins | 1ULL << 8) +
                         (i / TIERCE__BENCH_PART_ELEMENTS % 2 ? 3u : 0u);
        if (width == 1)
            values[i] = (uint8_t)((random & 0x87) | (13 - lower) << 3);
        else
            tierce__store_le16(values + 2 * i, (uint16_t)((random & 0x807f) | (128 - lower) << 7));
    }
}

int tierce__bench_values_read(const struct tierce__bench *bench, uint8_t *values, uint64_t bytes)
{
    int fd = open(bench->kv, O_RDONLY | O_CLOEXEC);
    uint64_t got = 0;
    ssize_t n = 1;
    while (fd >= 0 && got < bytes && n > 0) {
        n = read(fd, values + got, bytes - got);
        if (n == 0 && lseek(fd, 0, SEEK_SET) == 0)
            n = read(fd, values + got, bytes - got);
        got += n > 0 ? (uint64_t)n : 0;
    }
    if (fd >= 0)
        close(fd);
    return got == bytes ? 0
                        : tierce__bench_fail(bench, "%s cannot be read, or is empty", bench->kv);
}
