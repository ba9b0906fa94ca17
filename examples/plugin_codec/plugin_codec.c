/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planes of bytes, compressed by zstd: a codec that Tierce loads from a shared object.
 *
 *     cc -O2 -shared -fPIC -o plugin_codec.so plugin_codec.c -lzstd
 *     disk.codec: "plugin:///absolute/path/plugin_codec.so"
 *
 * The first bytes of all values come first, then the second bytes: signs and exponents of bfloat16
 * are then together, and they are what can be compressed. The coded run is a byte with the width of
 * a value, and a frame of zstd.
 *
 * Copy it, and replace the format and the name.
 */
#include <tierce/plugin_codec.h>

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define LEVEL 1

/* dst[plane][value] = src[value][plane]; bytes after the last whole value stay where they are. */
static void split(uint8_t *dst, const uint8_t *src, size_t bytes, size_t width)
{
    size_t values = bytes / width;
    for (size_t plane = 0; plane < width; plane++) {
        for (size_t i = 0; i < values; i++)
            dst[plane * values + i] = src[i * width + plane];
    }
    memcpy(dst + values * width, src + values * width, bytes - values * width);
}

static void join(uint8_t *dst, const uint8_t *src, size_t bytes, size_t width)
{
    size_t values = bytes / width;
    for (size_t plane = 0; plane < width; plane++) {
        for (size_t i = 0; i < values; i++)
            dst[i * width + plane] = src[plane * values + i];
    }
    memcpy(dst + values * width, src + values * width, bytes - values * width);
}

static size_t width_of(const struct tierce_plugin_codec_shape *shape)
{
    return shape->element == TIERCE_PLUGIN_ELEMENT_BF16 ||
                   shape->element == TIERCE_PLUGIN_ELEMENT_FP16
               ? 2
               : 1;
}

/* Without memory a chunk is stored uncompressed. */
static uint64_t encode(void *dst, uint64_t room, const void *src, uint64_t bytes,
                       const struct tierce_plugin_codec_shape *shape)
{
    uint8_t *out = dst, *planes = malloc(bytes);
    size_t width = width_of(shape);
    if (planes == NULL)
        return 0;
    split(planes, src, bytes, width);
    out[0] = (uint8_t)width;
    size_t length = ZSTD_compress(out + 1, room - 1, planes, bytes, LEVEL);
    free(planes);
    return ZSTD_isError(length) ? 0 : length + 1;
}

static int decode(void *dst, uint64_t bytes, const void *src, uint64_t coded)
{
    const uint8_t *in = src;
    if (coded < 1 || in[0] < 1 || in[0] > 2)
        return -1;
    uint8_t *planes = malloc(bytes);
    if (planes == NULL)
        return -1;
    int rc = ZSTD_decompress(planes, bytes, in + 1, coded - 1) == bytes ? 0 : -1;
    if (rc == 0)
        join(dst, planes, bytes, in[0]);
    free(planes);
    return rc;
}

static const struct tierce_plugin_codec codec = {
    .version = TIERCE_PLUGIN_CODEC_VERSION,
    .size = sizeof(codec),
    .name = "planes_zstd",
    .encode = encode,
    .decode = decode,
};

const struct tierce_plugin_codec *tierce_plugin_codec(void)
{
    return &codec;
}
