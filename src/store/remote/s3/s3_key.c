/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/bytes.h"
#include "store/remote/file/file_private.h"
#include "store/remote/s3/s3_private.h"

#include <stdio.h>
#include <string.h>

#define PIECE_BYTES 200u /* between two '/': stores that keep objects as files take 255 */

_Static_assert(TIERCE__S3_PREFIX_MAX + TIERCE__S3_LONG_BYTES < TIERCE__S3_KEY_BYTES,
               "the key of the longest name fits");

static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* ---- base64url ------------------------------------------------------------------------------- */

struct long_key {
    char *out;
    size_t used, piece;
};

static void put(struct long_key *key, uint32_t bits)
{
    TIERCE_DASSERT(key->piece <= PIECE_BYTES);
    if (key->piece == PIECE_BYTES) {
        key->out[key->used++] = '~';
        key->out[key->used++] = '/';
        key->piece = 0;
    }
    key->out[key->used++] = base64[bits & 63];
    key->piece++;
}

static size_t encode_long(char *out, const struct tierce_plugin_name *name)
{
    struct long_key key = {.out = out};
    uint32_t bits = 0, count = 0;
    out[key.used++] = '~';
    for (size_t i = 0; i < name->bytes; i++) {
        bits = bits << 8 | (uint8_t)name->text[i];
        for (count += 8; count >= 6; count -= 6)
            put(&key, bits >> (count - 6));
    }
    if (count > 0)
        put(&key, bits << (6 - count));
    TIERCE_DASSERT(key.used <= TIERCE__S3_LONG_BYTES);
    out[key.used] = '\0';
    return key.used;
}

static bool decode_long(char *name, size_t *bytes, const char *key)
{
    TIERCE_DASSERT(key[0] == '~');
    uint32_t bits = 0, count = 0;
    size_t used = 0;
    for (const char *at = key + 1; *at != '\0'; at++) {
        if (at[0] == '~' && at[1] == '/') {
            at++;
            continue;
        }
        const char *found = strchr(base64, *at);
        if (found == NULL)
            return false;
        bits = bits << 6 | (uint32_t)(found - base64);
        count += 6;
        if (count < 8)
            continue;
        count -= 8;
        if (used == TIERCE__CONNECTOR_NAME_MAX)
            return false;
        name[used] = (char)(bits >> count & 255);
        if (name[used++] == '\0')
            return false;
    }
    *bytes = used;
    return used > 0;
}

/* ---- names and keys -------------------------------------------------------------------------- */

static void replace(char *text, char old, char by)
{
    for (char *at = strchr(text, old); at != NULL; at = strchr(at, old))
        *at = by;
}

static size_t encode_short(char out[TIERCE__FILE_NAME_BYTES], const struct tierce_plugin_name *name)
{
    size_t bytes = tierce__file_encode(out, name);
    replace(out, '%', '!');
    return bytes;
}

static bool decode_short(char *name, size_t *bytes, const char *key)
{
    TIERCE_ASSERT(strlen(key) <= TIERCE__S3_LONG_BYTES);
    char path[TIERCE__S3_LONG_BYTES + 1];
    memcpy(path, key, strlen(key) + 1);
    replace(path, '!', '%');
    return tierce__file_name(name, bytes, path);
}

/* Encodes the part of a key after the prefix. */
static size_t encode(char out[TIERCE__FILE_NAME_BYTES], const struct tierce_plugin_name *name)
{
    size_t bytes = encode_short(out, name);
    return bytes <= TIERCE__S3_LONG_BYTES ? bytes : encode_long(out, name);
}

static void copy_name(char out[TIERCE__FILE_NAME_BYTES], const struct tierce_plugin_name *name)
{
    TIERCE_ASSERT(name->bytes <= TIERCE__CONNECTOR_NAME_MAX);
    memcpy(out, name->text, name->bytes);
    out[name->bytes] = '\0';
}

/* None needs escaping in XML, and no store decodes one. */
static const char path_characters[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:@+,=~!/";

bool tierce__s3_is_path(const struct tierce_plugin_name *name)
{
    char text[TIERCE__CONNECTOR_NAME_MAX + 3]; /* between two '/' */
    TIERCE_ASSERT(name->bytes <= TIERCE__CONNECTOR_NAME_MAX);
    text[0] = '/';
    memcpy(text + 1, name->text, name->bytes);
    text[name->bytes + 1] = '/';
    text[name->bytes + 2] = '\0';
    return strspn(text, path_characters) == name->bytes + 2 && strstr(text, "//") == NULL &&
           strstr(text, "/./") == NULL && strstr(text, "/../") == NULL;
}

void tierce__s3_key(char key[TIERCE__S3_KEY_BYTES], const char *prefix, bool has_paths,
                    const struct tierce_plugin_name *name)
{
    TIERCE_DASSERT(!has_paths || tierce__s3_is_path(name));
    char text[TIERCE__FILE_NAME_BYTES];
    if (has_paths)
        copy_name(text, name);
    else
        encode(text, name);
    int bytes = snprintf(key, TIERCE__S3_KEY_BYTES, "%s%s", prefix, text);
    TIERCE_ASSERT((size_t)bytes < TIERCE__S3_KEY_BYTES);
}

static bool take_path(char *name, size_t *bytes, const char *key)
{
    const struct tierce_plugin_name path = {.text = key, .bytes = strlen(key)};
    if (path.bytes > TIERCE__CONNECTOR_NAME_MAX || !tierce__s3_is_path(&path))
        return false;
    memcpy(name, key, path.bytes);
    *bytes = path.bytes;
    return true;
}

/* A key that does not encode back to itself is not ours. */
bool tierce__s3_name(char *name, size_t *bytes, const char *prefix, bool has_paths, const char *key)
{
    char again[TIERCE__FILE_NAME_BYTES];
    size_t before = strlen(prefix);
    if (strncmp(key, prefix, before) != 0 || strlen(key + before) > TIERCE__S3_LONG_BYTES)
        return false;
    key += before;
    if (has_paths)
        return take_path(name, bytes, key);
    if (!(key[0] == '~' ? decode_long(name, bytes, key) : decode_short(name, bytes, key)))
        return false;
    TIERCE_DASSERT(*bytes > 0 && *bytes <= TIERCE__CONNECTOR_NAME_MAX);
    encode(again, &(struct tierce_plugin_name){.text = name, .bytes = *bytes});
    return strcmp(again, key) == 0;
}

bool tierce__s3_key_prefix(char key[TIERCE__S3_KEY_BYTES], const struct tierce__s3_config *config,
                           const struct tierce_plugin_name *begins, bool of_long_ones)
{
    char text[TIERCE__FILE_NAME_BYTES] = "~";
    TIERCE_ASSERT(!config->has_paths || !of_long_ones);
    if (config->has_paths)
        copy_name(text, begins);
    else if (!of_long_ones && encode_short(text, begins) > TIERCE__S3_LONG_BYTES)
        return false;
    int bytes = snprintf(key, TIERCE__S3_KEY_BYTES, "%s%s", config->prefix, text);
    TIERCE_ASSERT((size_t)bytes < TIERCE__S3_KEY_BYTES);
    return true;
}

/* ---- percent-encoding ------------------------------------------------------------------------ */

static bool is_unreserved(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '~';
}

size_t tierce__s3_encode(char *out, size_t room, const char *text, bool keeps_slash)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t used = 0;
    TIERCE_ASSERT(room > 0);
    for (; *text != '\0' && used + 4 <= room; text++) {
        if (is_unreserved(*text) || (*text == '/' && keeps_slash)) {
            out[used++] = *text;
            continue;
        }
        out[used++] = '%';
        out[used++] = hex[(uint8_t)*text >> 4];
        out[used++] = hex[(uint8_t)*text & 15];
    }
    TIERCE_DASSERT(used < room);
    out[used] = '\0';
    return used;
}
