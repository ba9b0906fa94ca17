/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/codec_plugin.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "base/plugin_load.h"
#include "base/threads/lock.h"
#include <tierce/plugin_codec.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

_Static_assert((int)TIERCE_PLUGIN_ELEMENT_BF16 == (int)TIERCE__ELEMENT_BF16 &&
                   (int)TIERCE_PLUGIN_ELEMENT_FP16 == (int)TIERCE__ELEMENT_FP16 &&
                   (int)TIERCE_PLUGIN_ELEMENT_E4M3 == (int)TIERCE__ELEMENT_E4M3 &&
                   (int)TIERCE_PLUGIN_ELEMENT_E5M2 == (int)TIERCE__ELEMENT_E5M2,
               "both have the same values");
_Static_assert(TIERCE_PLUGIN_CODEC_NAME_MAX + 1 == TIERCE__CODEC_NAME_BYTES, "a name fits");

#define TRIAL_BYTES 65536u

struct codec_plugin {
    struct tierce__codec codec;
    struct tierce_plugin_codec table;
    char name[TIERCE__CODEC_NAME_BYTES];
    char url[TIERCE__URL_BYTES_MAX + 1];
};

static struct tierce__lock plugins_lock; /* CODEC_PLUGINS: loading, and writing of the two below */
/* Those below `plugin_count` are constant. */
static struct codec_plugin plugins[TIERCE__CODEC_PLUGINS_MAX];
static _Atomic size_t plugin_count; /* release: load_plugin; acquire: readers without the lock */
static pthread_once_t plugins_once = PTHREAD_ONCE_INIT;

static void init_plugins(void)
{
    tierce__lock_init(&plugins_lock, TIERCE__LOCK_CODEC_PLUGINS);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int64_t encode(const struct codec_plugin *plugin, uint8_t *dst, uint64_t room,
                      const uint8_t *src, uint64_t bytes, const struct tierce__codec_shape *shape)
{
    const struct tierce_plugin_codec_shape public = {.size = sizeof(public),
                                                     .element = (uint32_t)shape->element,
                                                     .part_bytes = shape->part_bytes};
    if (!tierce__codec_codes(&plugin->codec, shape->element))
        return TIERCE_E_ARGUMENT;
    if (room < tierce__codec_bound(bytes))
        return TIERCE_E_LIMIT;
    if (bytes == 0)
        return 0;
    uint64_t length = plugin->table.encode(dst, tierce__codec_bound(bytes), src, bytes, &public);
    return length > 0 && length < bytes ? (int64_t)length : TIERCE_E_FULL;
}

static int decode(const struct codec_plugin *plugin, uint8_t *dst, uint64_t bytes,
                  const uint8_t *src, uint64_t coded)
{
    if (bytes == 0)
        return coded == 0 ? 0 : TIERCE_E_FORMAT;
    return plugin->table.decode(dst, bytes, src, coded) == 0 ? 0 : TIERCE_E_FORMAT;
}

/* The functions of codec.h have no argument for the codec, so each plug-in has a pair. */
#define PAIR(n)                                                                                    \
    static int64_t encode_##n(uint8_t *dst, uint64_t room, const uint8_t *src, uint64_t bytes,     \
                              const struct tierce__codec_shape *shape)                             \
    {                                                                                              \
        return encode(&plugins[n], dst, room, src, bytes, shape);                                  \
    }                                                                                              \
    static int decode_##n(uint8_t *dst, uint64_t bytes, const uint8_t *src, uint64_t coded)        \
    {                                                                                              \
        return decode(&plugins[n], dst, bytes, src, coded);                                        \
    }
PAIR(0)
PAIR(1)
PAIR(2)
PAIR(3)
#undef PAIR

static const struct tierce__codec pairs[TIERCE__CODEC_PLUGINS_MAX] = {
    {.encode = encode_0, .decode = decode_0},
    {.encode = encode_1, .decode = decode_1},
    {.encode = encode_2, .decode = decode_2},
    {.encode = encode_3, .decode = decode_3},
};

/* ---- loading --------------------------------------------------------------------------------- */

static int check_table(const struct tierce_plugin_codec *table, const char *path,
                       char why[TIERCE__URL_WHY_BYTES])
{
    char what[128] = "";
    const char *name = table->name != NULL ? table->name : "";
    size_t length = strnlen(name, TIERCE__CODEC_NAME_BYTES);
    if (table->encode == NULL || table->decode == NULL)
        snprintf(what, sizeof(what), "has no function %s",
                 table->encode == NULL ? "encode" : "decode");
    else if (length == 0 || length > TIERCE_PLUGIN_CODEC_NAME_MAX ||
             strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != length)
        snprintf(what, sizeof(what),
                 "its name is not 1 to %u lower-case letters, digits and underscores",
                 TIERCE_PLUGIN_CODEC_NAME_MAX);
    else if (tierce__codec_find(name) != NULL || strcmp(name, "none") == 0)
        snprintf(what, sizeof(what), "its name, %s, is that of a codec of Tierce", name);
    return what[0] != '\0' ? tierce__plugin_refuse(why, path, what) : 0;
}

static uint32_t number_of(const char *name)
{
    return TIERCE__CODEC_PLUGIN | (uint32_t)(XXH3_64bits(name, strlen(name)) & 0x7fffffff);
}

/* Values near zero in bfloat16, as those of KV. */
static int try_run(const struct codec_plugin *plugin, const char *path,
                   char why[TIERCE__URL_WHY_BYTES])
{
    static uint8_t run[TRIAL_BYTES], back[TRIAL_BYTES], coded[2 * TRIAL_BYTES];
    uint32_t state = 1;
    TIERCE_ASSERT(tierce__codec_bound(TRIAL_BYTES) <= sizeof(coded));
    tierce__lock_assert_held(&plugins_lock);
    for (size_t i = 0; i < TRIAL_BYTES; i++) {
        state = state * 1664525u + 1013904223u;
        run[i] = i % 2 == 0 ? (uint8_t)(state >> 24) : (uint8_t)(0x3c + (state >> 30));
    }
    int64_t length =
        encode(plugin, coded, sizeof(coded), run, TRIAL_BYTES,
               &(struct tierce__codec_shape){.element = TIERCE__ELEMENT_BF16, .part_bytes = 4096});
    if (length > 0 && decode(plugin, back, TRIAL_BYTES, coded, (uint64_t)length) == 0 &&
        memcmp(run, back, TRIAL_BYTES) == 0)
        return 0;
    return tierce__plugin_refuse(why, path,
                                 length > 0 ? "decode does not restore a run of 64 KiB"
                                            : "encode does not make a run of 64 KiB shorter");
}

static int fill(struct codec_plugin *plugin, const char *path, char why[TIERCE__URL_WHY_BYTES])
{
    size_t index = (size_t)(plugin - plugins);
    int rc = check_table(&plugin->table, path, why);
    if (rc < 0)
        return rc;
    snprintf(plugin->name, sizeof(plugin->name), "%s", plugin->table.name);
    plugin->codec = (struct tierce__codec){.name = plugin->name,
                                           .number = number_of(plugin->name),
                                           .is_exact = true,
                                           .encode = pairs[index].encode,
                                           .decode = pairs[index].decode};
    for (size_t i = 0; i < index; i++) {
        if (plugins[i].codec.number == plugin->codec.number)
            return tierce__plugin_refuse(why, path,
                                         "a codec of this name is loaded from another file");
    }
    return try_run(plugin, path, why);
}

static int load_plugin(struct codec_plugin *plugin, const char *text,
                       char why[TIERCE__URL_WHY_BYTES])
{
    static const struct tierce__plugin_kind kind = {.symbol = "tierce_plugin_codec",
                                                    .header = "plugin_codec.h",
                                                    .version = TIERCE_PLUGIN_CODEC_VERSION,
                                                    .size = sizeof(struct tierce_plugin_codec)};
    struct tierce__url url = {0};
    const void *table;
    void *object = NULL;
    int rc = tierce__url_parse(&url, text, why);
    if (rc == 0 && url.param_count > 0)
        rc = tierce__plugin_refuse(why, url.path, "a codec has no parameters");
    if (rc == 0)
        rc = tierce__plugin_load(&object, &table, &url, &kind, why);
    if (rc == 0) {
        plugin->table = *(const struct tierce_plugin_codec *)table;
        snprintf(plugin->url, sizeof(plugin->url), "%s", text);
        rc = fill(plugin, url.path, why);
    }
    if (rc < 0 && object != NULL)
        dlclose(object);
    tierce__url_clear(&url);
    return rc;
}

static int open_plugin(const struct tierce__codec **out, const char *text,
                       char why[TIERCE__URL_WHY_BYTES])
{
    int rc = 0;
    (void)pthread_once(&plugins_once, init_plugins);
    tierce__lock_take(&plugins_lock);
    size_t i = 0, count = atomic_load_explicit(&plugin_count, memory_order_relaxed);
    while (i < count && strcmp(plugins[i].url, text) != 0)
        i++;
    if (i == TIERCE__CODEC_PLUGINS_MAX) {
        snprintf(why, TIERCE__URL_WHY_BYTES,
                 "a process can load at most %u different plug-ins of codecs",
                 TIERCE__CODEC_PLUGINS_MAX);
        rc = TIERCE_E_CONFIG;
    } else if (i == count) {
        rc = load_plugin(&plugins[i], text, why);
        if (rc == 0)
            atomic_store_explicit(&plugin_count, count + 1, memory_order_release);
    }
    tierce__lock_drop(&plugins_lock);
    if (rc == 0)
        *out = &plugins[i].codec;
    return rc;
}

int tierce__codec_open(const struct tierce__codec **out, const char *text,
                       char why[TIERCE__URL_WHY_BYTES])
{
    if (strncmp(text, TIERCE__CODEC_PLUGIN_URL, strlen(TIERCE__CODEC_PLUGIN_URL)) == 0)
        return open_plugin(out, text, why);
    const struct tierce__codec *found = tierce__codec_find(text);
    if (found == NULL && strcmp(text, "none") != 0) {
        snprintf(why, TIERCE__URL_WHY_BYTES, "there is no codec \"%.100s\"", text);
        return TIERCE_E_CONFIG;
    }
    *out = found;
    return 0;
}

/* ---- readers --------------------------------------------------------------------------------- */

const struct tierce__codec *tierce__codec_plugin_numbered(uint32_t number)
{
    size_t count = atomic_load_explicit(&plugin_count, memory_order_acquire);
    TIERCE_DASSERT((number & TIERCE__CODEC_PLUGIN) != 0 && count <= TIERCE__CODEC_PLUGINS_MAX);
    for (size_t i = 0; i < count; i++) {
        if (plugins[i].codec.number == number)
            return &plugins[i].codec;
    }
    return NULL;
}

void tierce__codec_plugin_show(char shown[TIERCE__CODEC_NAME_BYTES],
                               const uint8_t name[TIERCE__CODEC_NAME_BYTES])
{
    size_t i = 0;
    for (; i + 1 < TIERCE__CODEC_NAME_BYTES && name[i] >= '0' && name[i] <= 'z'; i++)
        shown[i] = (char)name[i];
    shown[i] = '\0';
}

void tierce__codec_plugin_missing(uint32_t number, const uint8_t name[TIERCE__CODEC_NAME_BYTES])
{
    static _Atomic uint32_t reported[TIERCE__CODEC_PLUGINS_MAX]; /* relaxed: only a line depends */
    char shown[TIERCE__CODEC_NAME_BYTES];
    size_t i = 0;
    for (; i < TIERCE__CODEC_PLUGINS_MAX; i++) {
        uint32_t free_cell = 0;
        if (atomic_compare_exchange_strong(&reported[i], &free_cell, number))
            break;
        if (free_cell == number)
            return;
    }
    if (i == TIERCE__CODEC_PLUGINS_MAX)
        return;
    tierce__codec_plugin_show(shown, name);
    tierce__log(TIERCE_LOG_WARN, "codec_plugin_missing",
                "codec=\"%s\" effect=\"chunks with this codec are misses; they stay stored\" "
                "remedy=\"set disk.codec or remote.codec to the plug-in of this codec\"",
                shown);
}
