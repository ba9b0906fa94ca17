/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/bytes.h"
#include "store/remote/file/file_private.h"
#include "core/key/sha256.h"

#include <stdio.h>
#include <string.h>

#define PART_BYTES_MAX 200u /* bytes of one file name: 255 is the limit, and '~' is appended */

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("._=+,@-", c) != NULL);
}

size_t tierce__file_encode(char *out, const struct tierce_plugin_name *name)
{
    TIERCE_ASSERT(name->bytes <= TIERCE__CONNECTOR_NAME_MAX);
    static const char hex[] = "0123456789ABCDEF";
    size_t used = 0, part = 0;
    for (size_t i = 0; i < name->bytes; i++) {
        char c = name->text[i];
        if (part + 3 > PART_BYTES_MAX) {
            out[used++] = '~';
            out[used++] = '/';
            part = 0;
        }
        size_t before = used;
        if (is_plain(c) && !(c == '.' && part == 0)) {
            out[used++] = c;
        } else {
            out[used++] = '%';
            out[used++] = hex[(uint8_t)c >> 4];
            out[used++] = hex[(uint8_t)c & 15];
        }
        part += used - before;
        TIERCE_DASSERT(part <= PART_BYTES_MAX);
    }
    TIERCE_DASSERT(used < TIERCE__FILE_NAME_BYTES);
    out[used] = '\0';
    return used;
}

void tierce__file_path(char *path, const char *root, uint32_t levels,
                       const struct tierce_plugin_name *name)
{
    uint8_t digest[TIERCE__SHA256_BYTES];
    size_t used = strlen(root);
    TIERCE_ASSERT(used < TIERCE__FILE_ROOT_BYTES && levels <= TIERCE__FILE_LEVELS_MAX);
    TIERCE_ASSERT(name->bytes <= TIERCE__CONNECTOR_NAME_MAX);
    memcpy(path, root, used);
    tierce__sha256(digest, name->text, name->bytes);
    for (uint32_t i = 0; i < levels; i++, used += 3) {
        path[used] = '/';
        tierce__hex_encode(path + used + 1, digest + i, 1);
    }
    path[used++] = '/';
    used += tierce__file_encode(path + used, name);
    TIERCE_ASSERT(used < TIERCE__FILE_PATH_BYTES);
}

void tierce__file_folder_of(char *folder, const char *path)
{
    size_t bytes = (size_t)(strrchr(path, '/') - path);
    TIERCE_DASSERT(bytes > 0 && bytes < TIERCE__FILE_PATH_BYTES);
    memcpy(folder, path, bytes);
    folder[bytes] = '\0';
}

/* A path that does not encode back to itself is not ours. */
bool tierce__file_name(char *name, size_t *bytes, const char *relative)
{
    char again[TIERCE__FILE_PATH_BYTES];
    size_t used = 0;
    for (const char *at = relative; *at != '\0'; at++) {
        uint8_t byte = (uint8_t)*at;
        if (at[0] == '~' && at[1] == '/') {
            at++;
            continue;
        }
        if (*at == '%') {
            if (at[1] == '\0' || at[2] == '\0' || !tierce__hex_decode(&byte, 1, at + 1))
                return false;
            at += 2;
        }
        if (used == TIERCE__CONNECTOR_NAME_MAX || byte == 0)
            return false;
        name[used++] = (char)byte;
    }
    tierce__file_encode(again, &(struct tierce_plugin_name){.text = name, .bytes = used});
    *bytes = used;
    return used > 0 && strcmp(again, relative) == 0;
}

bool tierce__file_is_object(const char *relative, uint32_t levels)
{
    char name[TIERCE__CONNECTOR_NAME_MAX], path[TIERCE__FILE_PATH_BYTES];
    size_t folders = (size_t)levels * 3;
    struct tierce_plugin_name own = {.text = name};
    if (strlen(relative) <= folders || !tierce__file_name(name, &own.bytes, relative + folders))
        return false;
    tierce__file_path(path, "", levels, &own);
    return strcmp(path + 1, relative) == 0;
}

bool tierce__file_is_temporary(const char *base)
{
    size_t before = strlen(TIERCE__FILE_TMP);
    return strncmp(base, TIERCE__FILE_TMP, before) == 0 &&
           strspn(base + before, "0123456789abcdef") == TIERCE__FILE_TMP_DIGITS &&
           base[before + TIERCE__FILE_TMP_DIGITS] == '\0';
}
