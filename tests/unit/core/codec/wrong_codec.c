/* SPDX-License-Identifier: Apache-2.0 */
/* A codec that is wrong in one way, by the macro WRONG; for test_codec_plugin.c. */
#include <tierce/plugin_codec.h>

#include <string.h>

enum { NOTHING, SYMBOL, TABLE, VERSION, SIZE, FUNCTION, NAME, KNOWN_NAME, LONGER, DECODE, LATER };

static unsigned char kept[65536]; /* LATER: the first run, which is restored */
static int is_kept, is_restored;

/* Half of a run is dropped. */
static uint64_t encode(void *dst, uint64_t room, const void *src, uint64_t bytes,
                       const struct tierce_plugin_codec_shape *shape)
{
    (void)room;
    (void)shape;
    memcpy(dst, src, bytes / 2);
    if (WRONG == LATER && !is_kept && bytes == sizeof(kept)) {
        memcpy(kept, src, sizeof(kept));
        is_kept = 1;
    }
    return WRONG == LONGER ? bytes + 1 : bytes / 2;
}

static int decode(void *dst, uint64_t bytes, const void *src, uint64_t coded)
{
    if (WRONG == LATER && !is_restored && bytes == sizeof(kept)) {
        memcpy(dst, kept, sizeof(kept));
        is_restored = 1;
        return 0;
    }
    memset(dst, 0, bytes);
    memcpy(dst, src, coded < bytes ? coded : bytes);
    return 0;
}

static const struct tierce_plugin_codec codec = {
    .version = TIERCE_PLUGIN_CODEC_VERSION + (WRONG == VERSION),
    .size = sizeof(codec) - (WRONG == SIZE),
    .name = WRONG == NAME         ? "Not a name"
            : WRONG == KNOWN_NAME ? "lossless"
                                  : "wrong",
    .encode = encode,
    .decode = WRONG == FUNCTION ? NULL : decode,
};

#if WRONG_HAS_SYMBOL
const struct tierce_plugin_codec *tierce_plugin_codec(void)
{
    return WRONG == TABLE ? NULL : &codec;
}
#else
const struct tierce_plugin_codec *tierce_other(void);
const struct tierce_plugin_codec *tierce_other(void)
{
    return &codec;
}
#endif
