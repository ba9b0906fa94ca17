/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_restore CODEC ELEMENT LAYERS RUN_BYTES PART_BYTES ROW_BYTES < values > restored
 *
 * Encodes and decodes runs of `RUN_BYTES`, which belong to the layers in turn, as many to each; the
 * last line of stderr is the number of coded bytes. For tools/kv_quality.py and tests.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/codec/codec.h"

static uint8_t *read_all(uint64_t *bytes)
{
    uint64_t room = 1 << 20;
    uint8_t *values = NULL;
    *bytes = 0;
    for (size_t got = 1; got > 0; *bytes += got) {
        if (values == NULL || *bytes == room) {
            room *= 2;
            uint8_t *more = realloc(values, room);
            if (more == NULL)
                exit(2);
            values = more;
        }
        got = fread(values + *bytes, 1, room - *bytes, stdin);
    }
    return values;
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr,
                "usage: codec_restore CODEC ELEMENT LAYERS RUN_BYTES PART_BYTES ROW_BYTES\n");
        return 2;
    }
    const struct tierce__codec *codec = tierce__codec_find(argv[1]);
    struct tierce__codec_shape shape = {.element = tierce__element_find(argv[2]),
                                        .layers = (uint32_t)strtoul(argv[3], NULL, 10),
                                        .part_bytes = strtoull(argv[5], NULL, 10),
                                        .row_bytes = strtoull(argv[6], NULL, 10)};
    uint64_t run_bytes = strtoull(argv[4], NULL, 10), bytes, sum = 0;
    uint8_t *values = read_all(&bytes), *coded = malloc(tierce__codec_bound(run_bytes));
    if (codec == NULL || run_bytes == 0 || bytes % run_bytes != 0 || coded == NULL) {
        fprintf(stderr, "codec %s, runs of %s bytes, %llu bytes: invalid\n", argv[1], argv[4],
                (unsigned long long)bytes);
        return 2;
    }
    for (uint64_t at = 0; at < bytes; at += run_bytes) {
        shape.layer = (uint32_t)(at / run_bytes * shape.layers / (bytes / run_bytes));
        int64_t length =
            codec->encode(coded, tierce__codec_bound(run_bytes), values + at, run_bytes, &shape);
        int rc = length < 0 ? (int)length
                            : codec->decode(values + at, run_bytes, coded, (uint64_t)length);
        if (rc < 0) {
            fprintf(stderr, "run at %llu: %d\n", (unsigned long long)at, rc);
            return 1;
        }
        sum += (uint64_t)length;
    }
    fprintf(stderr, "%llu\n", (unsigned long long)sum);
    bool is_written = fwrite(values, 1, bytes, stdout) == bytes && fflush(stdout) == 0;
    free(values);
    free(coded);
    return is_written ? 0 : 1;
}
