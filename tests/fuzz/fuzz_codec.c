/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/bytes.h"
#include "core/codec/codec.h"

#include <limits.h>
#include <stdlib.h>

/* Coded bytes from anywhere: rejected, or decoded to equal bytes by every kernel, for each codec.
 * The first three bytes of the input are the length that is requested, of which 18 bits count: up
 * to four blocks of 64 KiB. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LENGTH_BYTES = 3, LENGTH_MAX = (1 << 18) - 1 };

static void try_codec(const struct tierce__codec *codec, const uint8_t *data, size_t size)
{
    size_t bytes = (tierce__load_le16(data) | (size_t)data[2] << 16) & LENGTH_MAX;
    uint8_t *first = malloc(bytes + 1), *now = malloc(bytes + 1);
    TIERCE_ASSERT(first != NULL && now != NULL);
    int rc = INT_MAX;
    for (unsigned k = 0; tierce__kernel_name(&tierce__codec_kernels, k) != NULL; k++) {
        if (!tierce__kernel_force(&tierce__codec_kernels, k))
            continue;
        int got = codec->decode(rc == INT_MAX ? first : now, bytes, data + LENGTH_BYTES,
                                size - LENGTH_BYTES);
        TIERCE_ASSERT(got == 0 || got == TIERCE_E_FORMAT);
        TIERCE_ASSERT(rc == INT_MAX || got == rc);
        TIERCE_ASSERT(rc != 0 || memcmp(first, now, bytes) == 0);
        rc = got;
    }
    tierce__kernel_force(&tierce__codec_kernels, UINT_MAX);
    free(first);
    free(now);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (uint32_t i = 1; size >= LENGTH_BYTES && tierce__codec_numbered(i) != NULL; i++)
        try_codec(tierce__codec_numbered(i), data, size);
    return 0;
}
