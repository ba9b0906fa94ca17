/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CODEC_PLUGIN_H
#define TIERCE_CODEC_PLUGIN_H

#include "base/text/url.h"
#include "core/codec/codec.h"

/*
 * Codecs in shared objects (<tierce/plugin_codec.h>), behind the table of codec.h. The number in
 * the header of a chunk is TIERCE__CODEC_PLUGIN with 31 bits of the XXH3-64 of the codec's name,
 * and the table of layers has the name (docs/inside/format/coded.md).
 *
 * Their encode has one more error: TIERCE_E_FULL, the run does not become shorter.
 *
 * Thread: any.
 */

#define TIERCE__CODEC_PLUGIN      0x80000000u
#define TIERCE__CODEC_NAME_BYTES  32u /* in the table of layers, filled up with zeros */
#define TIERCE__CODEC_PLUGIN_URL  "plugin://"
#define TIERCE__CODEC_PLUGINS_MAX 4u /* different ones in a process */

/*
 * The codec that a setting names: "none" (NULL), a codec of this build, or a plugin:// URL, which
 * is loaded when it is opened for the first time and stays loaded. *out: constant storage. Errors,
 * `why` in words: TIERCE_E_CONFIG, -ENOMEM. Blocks on the file system while it loads.
 */
TIERCE_MUSTUSE int tierce__codec_open(const struct tierce__codec **out, const char *text,
                                      char why[TIERCE__URL_WHY_BYTES]);

static inline bool tierce__codec_is_plugin(const struct tierce__codec *codec)
{
    return codec != NULL && (codec->number & TIERCE__CODEC_PLUGIN) != 0;
}

/* The loaded codec of a number with TIERCE__CODEC_PLUGIN, or NULL. */
const struct tierce__codec *tierce__codec_plugin_numbered(uint32_t number);

/* Copies a name from a chunk up to its first byte that no name has; ends it with NUL. */
void tierce__codec_plugin_show(char shown[TIERCE__CODEC_NAME_BYTES],
                               const uint8_t name[TIERCE__CODEC_NAME_BYTES]);

/* Logs that a chunk has a codec that is not loaded; once for each number. `name` is from a chunk.
 */
void tierce__codec_plugin_missing(uint32_t number, const uint8_t name[TIERCE__CODEC_NAME_BYTES]);

#endif
