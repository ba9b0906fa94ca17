/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PLUGIN_CODEC_H
#define TIERCE_PLUGIN_CODEC_H

#include <tierce/plugin.h>

/*
 * A codec of your own, in a shared object: fewer bytes for the same KV on disk and in remote
 * stores.
 *
 *     disk.codec:   "plugin:///usr/lib/tierce/mycodec.so"
 *     remote.codec: "plugin:///usr/lib/tierce/mycodec.so"
 *
 * The codec encodes the layers of a chunk, each on its own. It must restore every bit. A complete
 * example is examples/plugin_codec.
 *
 *     static const struct tierce_plugin_codec codec = {
 *         .version = TIERCE_PLUGIN_CODEC_VERSION, .size = sizeof(codec), .name = "mine", ...};
 *
 *     const struct tierce_plugin_codec *tierce_plugin_codec(void)
 *     {
 *         return &codec;
 *     }
 *
 * A shared object may also export the symbols of other kinds of plug-ins. The rules for the file
 * are those of <tierce/plugin.h>. The URL has no parameters: a chunk states the name of its codec
 * and nothing else, so a codec must decode every format that it has ever written under its name. An
 * incompatible format requires a new name. The object is loaded when the first engine of the
 * process requires it, and stays loaded until the process ends.
 *
 * Chunks with this codec are readable where it is loaded, that is, by engines with one of the
 * settings above. For others they are misses, which are logged (codec_plugin_missing).
 *
 * Rules for the functions:
 *
 * - They have no state: any thread calls them, several at the same time. They must not block and
 *   must not call Tierce.
 * - Equal inputs have equal outputs.
 * - encode must stay within its buffers even if another process writes to `src` meanwhile.
 * - decode must stay within its buffers for any bytes: their checksum was verified before, but a
 *   faulty program may have written them.
 *
 * Tierce verifies the checksum of each decoded cell, so a codec that restores other bytes costs
 * misses. When it is loaded, it must restore a run of 64 KiB.
 */

#ifdef __cplusplus
extern "C" {
#endif

#define TIERCE_PLUGIN_CODEC_VERSION  1u
#define TIERCE_PLUGIN_CODEC_NAME_MAX 31u

/* The types of the values of a run. Later versions may add numbers. */
#define TIERCE_PLUGIN_ELEMENT_BF16 1u
#define TIERCE_PLUGIN_ELEMENT_FP16 2u
#define TIERCE_PLUGIN_ELEMENT_E4M3 3u
#define TIERCE_PLUGIN_ELEMENT_E5M2 4u

/* Hints: the ratio may depend on them, and decode does not know them. */
struct tierce_plugin_codec_shape {
    size_t size;      /* sizeof(struct tierce_plugin_codec_shape) */
    uint32_t element; /* TIERCE_PLUGIN_ELEMENT_BF16, ... */
    /* The run alternates between keys and values of so many bytes; 0: unknown. */
    uint64_t part_bytes;
};

/* All functions are required. The table and its texts are constant. */
struct tierce_plugin_codec {
    uint32_t version; /* TIERCE_PLUGIN_CODEC_VERSION */
    uint32_t size;    /* sizeof(struct tierce_plugin_codec) */
    /* In each chunk, and in logs: lower-case letters, digits and '_', at most
     * TIERCE_PLUGIN_CODEC_NAME_MAX of them; not the name of a codec of Tierce. */
    const char *name;

    /* Encodes src[0 .. bytes) to dst, which has room for more than `bytes`. Returns the length, or
     * 0 if the run does not become shorter: the chunk is then stored uncompressed. */
    uint64_t (*encode)(void *dst, uint64_t room, const void *src, uint64_t bytes,
                       const struct tierce_plugin_codec_shape *shape);
    /* Decodes src[0 .. coded) to exactly dst[0 .. bytes). Returns 0, or another value if the bytes
     * are invalid or decode to another length. */
    int (*decode)(void *dst, uint64_t bytes, const void *src, uint64_t coded);
};

/* The symbol that the shared object exports. Called once for each URL. */
TIERCE_API const struct tierce_plugin_codec *tierce_plugin_codec(void);

#ifdef __cplusplus
}
#endif

#endif
