/* SPDX-License-Identifier: Apache-2.0 */
/* A URI of the manager as the name of an object in its storage. Nothing in it is percent-decoded:
 * the manager escapes what could end a part in another way, and other clients decode nothing
 * either. */
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "store/remote/file/file_place.h"
#include "store/remote/fleet/fleet_stores_private.h"
#include "store/remote/fleet/storage_at.h"
#include "store/remote/s3/s3_private.h"

#include <stdio.h>
#include <string.h>

#define URI_BYTES_MAX 8192u

/* TYPE://NAME/PATH?PARAMETERS; the pieces are borrowed from the URI. */
struct fleet_uri {
    const char *type, *name, *path, *key;
    size_t type_bytes, name_bytes, path_bytes, key_bytes; /* key: 0 for none */
    uint64_t size, slot;
    bool has_size, has_slot;
};

/* ---- pieces: each returns what is wrong, or NULL --------------------------------------------- */

static bool take_number(uint64_t *out, bool *has, const char *text, size_t bytes, uint64_t max)
{
    uint64_t number = 0;
    TIERCE_DASSERT(max < UINT64_MAX / 10 - 9);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9' || number > max)
            return false;
        number = number * 10 + (uint64_t)(text[i] - '0');
    }
    bool is_first = !*has;
    *has = true;
    *out = number;
    return bytes > 0 && number <= max && is_first;
}

static bool is_named(const char *text, size_t bytes, const char *name)
{
    return strlen(name) == bytes && memcmp(text, name, bytes) == 0;
}

/* Unknown parameters are ignored: a manager may have new ones. */
static const char *take_parameter(struct fleet_uri *uri, const char *text, size_t bytes)
{
    size_t name = strcspn(text, "=&");
    const char *value = text + name + 1;
    if (name >= bytes)
        return "a parameter has no value";
    size_t value_bytes = bytes - name - 1;
    if (is_named(text, name, "size") && (!take_number(&uri->size, &uri->has_size, value,
                                                      value_bytes, TIERCE__FILE_SLOT_BYTES_MAX) ||
                                         uri->size == 0))
        return "size is no number from 1 to 2^47 - 1, or given twice";
    if (is_named(text, name, "blkid") &&
        !take_number(&uri->slot, &uri->has_slot, value, value_bytes, TIERCE__FILE_SLOTS_MAX - 1))
        return "blkid is no number from 0 to 65535, or given twice";
    if (is_named(text, name, "key")) {
        if (uri->key_bytes > 0 || value_bytes == 0)
            return "key is empty or given twice";
        uri->key = value;
        uri->key_bytes = value_bytes;
    }
    return NULL;
}

static const char *take_parameters(struct fleet_uri *uri, const char *text)
{
    const char *wrong = NULL;
    while (*text != '\0' && wrong == NULL) {
        size_t bytes = strcspn(text, "&");
        wrong = take_parameter(uri, text, bytes);
        text += bytes + (text[bytes] == '&');
    }
    return wrong;
}

static const char *divide(struct fleet_uri *uri, const char *text)
{
    const char *end = strstr(text, "://");
    if (end == NULL || end == text)
        return "it does not begin with a scheme and ://";
    uri->type = text;
    uri->type_bytes = (size_t)(end - text);
    uri->name = end + 3;
    uri->name_bytes = strcspn(uri->name, "/?");
    uri->path = uri->name + uri->name_bytes;
    uri->path_bytes = strcspn(uri->path, "?");
    if (uri->name_bytes == 0 || uri->path_bytes == 0)
        return "it has no storage or no path";
    const char *parameters = uri->path + uri->path_bytes;
    return *parameters == '?' ? take_parameters(uri, parameters + 1) : NULL;
}

/* ---- names: each returns what is wrong, or NULL ---------------------------------------------- */

/* Mooncake's key, or the path, in `room`. */
static const char *copy_path(char *room, const struct fleet_uri *uri, bool has_key)
{
    if (!has_key) {
        memcpy(room, uri->path, uri->path_bytes);
        room[uri->path_bytes] = '\0';
        return uri->key_bytes == 0 ? NULL : "it has a key, which is for Mooncake";
    }
    if (uri->key_bytes == 0 || uri->path_bytes != 1)
        return "it has a path in place of a key";
    room[0] = '/';
    memcpy(room + 1, uri->key, uri->key_bytes);
    room[uri->key_bytes + 1] = '\0';
    return NULL;
}

/* `room` has the path behind the root. */
static const char *name_file(char *room, size_t size, const struct fleet_uri *uri)
{
    struct tierce__file_place place = {
        .has_slots = uri->has_slot, .slot = uri->slot, .bytes = uri->size};
    if (uri->has_slot && !uri->has_size)
        return "it has a blkid and no size";
    if (strlen(room) > TIERCE__CONNECTOR_NAME_MAX)
        return "its path is longer than 512 bytes";
    memcpy(place.path, room, strlen(room) + 1);
    if (!tierce__file_place_write(room, size, &place))
        return "its path is longer than 512 bytes";
    return tierce__file_place_read(
        &place, &(struct tierce_plugin_name){.text = room, .bytes = strlen(room)});
}

static const char *name_object(const char *name, const struct fleet_uri *uri, bool is_s3)
{
    const struct tierce_plugin_name object = {.text = name, .bytes = strlen(name)};
    if (uri->has_slot)
        return "it has a blkid, which is for files";
    if (object.bytes > TIERCE__CONNECTOR_NAME_MAX)
        return "its path is longer than 512 bytes";
    for (const char *at = name; *at != '\0'; at++) {
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            return "its path has a control character";
    }
    if (is_s3 && !tierce__s3_is_path(&object))
        return "its path has characters that keys of S3 do not have here";
    return NULL;
}

/* Writes the name to `room`, which has `size` bytes. */
static const char *make_name(char *room, size_t size, const struct fleet_uri *uri,
                             const struct tierce__fleet_store *store)
{
    const struct tierce__storage_at at = {.type = store->type};
    const char *wrong = copy_path(room, uri, strcmp(store->type, "mooncake") == 0);
    if (wrong != NULL)
        return wrong;
    TIERCE_DASSERT(strlen(room) < size);
    const char *name = tierce__storage_at_name(room, store->root);
    if (name == NULL)
        return "its path does not lie below the storage's root, or has an empty part, . or ..";
    memmove(room, name, strlen(name) + 1);
    return tierce__storage_at_has_files(&at)
               ? name_file(room, size, uri)
               : name_object(room, uri, strcmp(store->type, "s3") == 0);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int refuse(char why[TIERCE__FLEET_WHY_BYTES], const char *uri, const char *wrong)
{
    char shown[120];
    tierce__text_for_message(shown, sizeof(shown), uri);
    snprintf(why, TIERCE__FLEET_WHY_BYTES, "the manager's URI %s: %s", shown, wrong);
    return TIERCE_E_FORMAT;
}

int tierce__fleet_place_read(struct tierce__fleet_place *out, char *room, const char *uri,
                             struct tierce__fleet_stores *stores, char why[TIERCE__FLEET_WHY_BYTES])
{
    struct fleet_uri parts = {.key_bytes = 0};
    struct tierce__fleet_store *store = NULL;
    size_t bytes = strnlen(uri, URI_BYTES_MAX + 1);
    const char *wrong =
        bytes > URI_BYTES_MAX ? "it is longer than 8192 bytes" : divide(&parts, uri);
    if (wrong != NULL)
        return refuse(why, uri, wrong);
    memcpy(room, parts.name, parts.name_bytes);
    room[parts.name_bytes] = '\0';
    int rc = tierce__fleet_store_find(&store, stores, room, why);
    if (rc != 0)
        return rc;
    wrong = is_named(parts.type, parts.type_bytes, store->type)
                ? make_name(room, bytes + 1, &parts, store)
                : "its scheme is not that of its storage";
    if (wrong != NULL)
        return refuse(why, uri, wrong);
    TIERCE_ASSERT(room[0] != '/' && room[0] != '\0' && strlen(room) <= TIERCE__CONNECTOR_NAME_MAX);
    *out = (struct tierce__fleet_place){
        .store = store,
        .name = {.text = room, .bytes = strlen(room)},
        .bytes = parts.size,
    };
    return 0;
}
