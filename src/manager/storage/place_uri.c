/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/arena.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "core/key/sha256.h"
#include "manager/storage/places.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Escaped, a name takes at most three times its bytes. */
#define ESCAPE_GROWTH 3u
#define NUMBERS_BYTES 144u /* more than all numbers and words in a URI */

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == ':' || c == '@' || c == '+' || c == ',';
}

static char *append(char *to, const char *text, size_t bytes)
{
    memcpy(to, text, bytes);
    return to + bytes;
}

/*
 * Appends a name as one component of a path. Characters that could end it, begin a parameter or
 * leave the folder become ~hh. (Not %hh, which only some clients decode.)
 */
static char *escape(char *to, const char *name)
{
    static const char digits[] = "0123456789abcdef";
    bool is_dots = strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
    for (const char *p = name; *p != '\0'; p++) {
        if (is_plain(*p) && !is_dots) {
            *to++ = *p;
        } else {
            *to++ = '~';
            *to++ = digits[(unsigned char)*p >> 4];
            *to++ = digits[(unsigned char)*p & 15];
        }
    }
    return to;
}

/* File systems have no longer names. Other escaped names never contain "~~". */
enum { FILE_NAME_BYTES_MAX = 255, DIGEST_HEX_BYTES = 2 * TIERCE__SHA256_BYTES };

/* Appends a folder's name. If the escaped form is too long, it is replaced by its beginning and a
 * digest of the whole name. */
static char *escape_folder(char *to, const char *name)
{
    char *end = escape(to, name);
    if (end - to <= FILE_NAME_BYTES_MAX)
        return end;
    uint8_t digest[TIERCE__SHA256_BYTES];
    char hex[DIGEST_HEX_BYTES + 1];
    tierce__sha256(digest, name, strlen(name));
    tierce__hex_encode(hex, digest, sizeof(digest));
    end = to + FILE_NAME_BYTES_MAX - DIGEST_HEX_BYTES - 2;
    *end++ = '~';
    *end++ = '~';
    memcpy(end, hex, DIGEST_HEX_BYTES);
    TIERCE_DASSERT(end + DIGEST_HEX_BYTES - to == FILE_NAME_BYTES_MAX);
    return end + DIGEST_HEX_BYTES;
}

static bool has_files(const struct tierce__storage *storage)
{
    const struct tierce__storage_at at = tierce__storage_at_of(storage);
    return tierce__storage_at_has_files(&at);
}

/* The prefix "<root><instance>/<spec>/" of all files of a spec, in the arena; *bytes is its
 * length. */
static char *folder_of(const struct tierce__storage *storage,
                       const struct tierce__instance *instance, uint16_t spec, size_t *bytes,
                       struct tierce__arena *arena)
{
    TIERCE_DASSERT(spec < instance->spec_count);
    const char *spec_name = instance->specs[spec].name;
    char *(*name_folder)(char *to, const char *name) = has_files(storage) ? escape_folder : escape;
    char *root = has_files(storage) ? tierce__storage_root(storage) : tierce__strdup("/");
    if (root == NULL)
        return NULL;
    size_t root_bytes = strlen(root);
    char *folder = tierce__arena_alloc(
        arena, root_bytes + ESCAPE_GROWTH * (strlen(instance->id) + strlen(spec_name)) + 3);
    if (folder != NULL) {
        char *to = name_folder(append(folder, root, root_bytes), instance->id);
        *to++ = '/';
        to = name_folder(to, spec_name);
        *to++ = '/';
        *to = '\0';
        *bytes = (size_t)(to - folder);
        TIERCE_DASSERT(*bytes <
                       root_bytes + ESCAPE_GROWTH * (strlen(instance->id) + strlen(spec_name)) + 3);
    }
    tierce__free(root);
    return folder;
}

static char *append_hex16(char *to, uint64_t value)
{
    static const char digits[] = "0123456789abcdef";
    for (int shift = 60; shift >= 0; shift -= 4)
        *to++ = digits[value >> shift & 15];
    return to;
}

static char *append_decimal(char *to, uint64_t value)
{
    char digits[20];
    size_t n = 0;
    do {
        digits[n++] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    TIERCE_DASSERT(n <= sizeof(digits));
    while (n > 0)
        *to++ = digits[--n];
    return to;
}

/* The path in a URI text: between the storage's name and '?'. */
static char *path_of_text(const char *uri, struct tierce__arena *arena)
{
    const char *path = strstr(uri, "://");
    path = path != NULL ? strchr(path + 3, '/') : NULL;
    return path != NULL ? tierce__arena_copy(arena, path, strcspn(path, "?"))
                        : tierce__arena_copy(arena, "", 0);
}

char *tierce__place_path(const struct tierce__storage *storage,
                         const struct tierce__instance *instance,
                         const struct tierce__spec_place *place, struct tierce__arena *arena)
{
    if (place->uri != NULL)
        return path_of_text(place->uri, arena);
    if (place->spec >= instance->spec_count)
        return tierce__arena_copy(arena, "", 0);
    size_t bytes;
    char *folder = folder_of(storage, instance, place->spec, &bytes, arena);
    char *path = folder != NULL ? tierce__arena_alloc(arena, bytes + 17) : NULL;
    if (path != NULL)
        *append_hex16(append(path, folder, bytes), place->file) = '\0';
    return path;
}

uint64_t tierce__place_number(const char *name, size_t *folder_bytes)
{
    enum { DIGITS = 16 };
    uint64_t number = 0;
    const char *slash = strchr(name, '/');
    slash = slash != NULL ? strchr(slash + 1, '/') : NULL;
    if (slash == NULL || strlen(slash + 1) != DIGITS)
        return 0;
    for (const char *p = slash + 1; *p != '\0'; p++) {
        bool is_digit = *p >= '0' && *p <= '9', is_letter = *p >= 'a' && *p <= 'f';
        if (!is_digit && !is_letter)
            return 0;
        number = number << 4 | (uint64_t)(is_digit ? *p - '0' : *p - 'a' + 10);
    }
    *folder_bytes = (size_t)(slash + 1 - name);
    return number;
}

/* ---- URIs ------------------------------------------------------------------------------------ */

/* "<type>://<name><folder>", or with the folder as the beginning of a key. */
static char *prefix_of(const struct tierce__place_uris *uris, uint16_t spec, size_t *bytes)
{
    const struct tierce__storage *storage = uris->storage;
    bool is_key = storage->type == TIERCE__STORAGE_MOONCAKE;
    size_t folder_bytes;
    char *folder = folder_of(storage, uris->instance, spec, &folder_bytes, uris->arena);
    if (folder == NULL)
        return NULL;
    const char *type = tierce__storage_type_name(storage->type);
    size_t size = strlen(type) + strlen(storage->name) + folder_bytes + NUMBERS_BYTES;
    char *prefix = tierce__arena_alloc(uris->arena, size);
    if (prefix != NULL)
        *bytes = (size_t)snprintf(prefix, size, "%s://%s%s%s", type, storage->name,
                                  is_key ? "/?key=" : "", folder + is_key);
    TIERCE_DASSERT(prefix == NULL || *bytes < size);
    return prefix;
}

int tierce__place_uris_begin(struct tierce__place_uris *out, const struct tierce__storage *storage,
                             const struct tierce__instance *instance, struct tierce__arena *arena)
{
    struct tierce__place_uris uris = {.storage = storage, .instance = instance, .arena = arena};
    uris.prefixes = tierce__arena_calloc(arena, instance->spec_count, sizeof(*uris.prefixes));
    if (uris.prefixes == NULL)
        return -ENOMEM;
    *out = uris;
    return 0;
}

char *tierce__place_uris_make(struct tierce__place_uris *uris,
                              const struct tierce__spec_place *place)
{
    if (place->uri != NULL)
        return tierce__arena_copy(uris->arena, place->uri, strlen(place->uri));
    TIERCE_DASSERT(place->spec < uris->instance->spec_count);
    struct tierce__place_prefix *prefix = &uris->prefixes[place->spec];
    if (prefix->text == NULL)
        prefix->text = prefix_of(uris, place->spec, &prefix->bytes);
    char *uri = prefix->text != NULL
                    ? tierce__arena_alloc(uris->arena, prefix->bytes + NUMBERS_BYTES)
                    : NULL;
    if (uri == NULL)
        return NULL;
    char *to = append_hex16(append(uri, prefix->text, prefix->bytes), place->file);
    char next = uris->storage->type == TIERCE__STORAGE_MOONCAKE ? '&' : '?';
    if (tierce__place_slots(place->file) > 1) {
        *to++ = next;
        to = append_decimal(append(to, "blkid=", 6), place->slot);
        next = '&';
    }
    if (place->bytes > 0 || !uris->instance->is_kv) { /* the writer determines an entry's size */
        *to++ = next;
        to = append_decimal(append(to, "size=", 5), place->bytes);
        next = '&';
    }
    if (tierce__place_has_sum(place)) {
        *to++ = next;
        to = append(to, "sum=", 4);
        tierce__hex_encode(to, place->sum, sizeof(place->sum));
        to += 2 * sizeof(place->sum);
    }
    *to = '\0';
    TIERCE_DASSERT((size_t)(to - uri) < prefix->bytes + NUMBERS_BYTES);
    return uri;
}

char *tierce__place_uri(const struct tierce__storage *storage,
                        const struct tierce__instance *instance,
                        const struct tierce__spec_place *place, struct tierce__arena *arena)
{
    struct tierce__place_uris uris;
    if (place->uri != NULL)
        return tierce__arena_copy(arena, place->uri, strlen(place->uri));
    if (tierce__place_uris_begin(&uris, storage, instance, arena) != 0)
        return NULL;
    return tierce__place_uris_make(&uris, place);
}
