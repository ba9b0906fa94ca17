/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/vfs/beneath.h"
#include "store/remote/file/file_place.h"
#include "store/remote/fleet/fleet_private.h"

#include <stdlib.h>
#include <string.h>

/* A URI of a hostile manager: it is rejected with words that a log can hold, or names an object of
 * the storage that it names, below that storage's root. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ROOT "/mnt/kv/"

static struct tierce__fleet_stores *open_stores(void)
{
    static const char json[] =
        "[{\"type\":\"file\",\"global_unique_name\":\"n\",\"storage_spec\":{\"root_path\":\"/mnt/"
        "kv\"}},"
        "{\"type\":\"redis\",\"global_unique_name\":\"r\",\"storage_spec\":{\"uri\":\"redis://"
        "h\"}},"
        "{\"type\":\"s3\",\"global_unique_name\":\"s\",\"storage_spec\":{\"uri\":\"s3://bucket\"}},"
        "{\"type\":\"mooncake\",\"global_unique_name\":\"m\",\"storage_spec\":{\"master_server_"
        "entry\":"
        "\"h:1\"}},{\"type\":\"tierce\",\"global_unique_name\":\"t\"}]";
    struct tierce__fleet_stores *stores = NULL;
    char why[TIERCE__FLEET_WHY_BYTES];
    int rc = tierce__fleet_stores_open(
        &stores,
        &(struct tierce__fleet_stores_opts){.size = sizeof(struct tierce__fleet_stores_opts),
                                            .mooncake_python = "python3"});
    TIERCE_ASSERT(rc == 0);
    rc = tierce__fleet_stores_update(stores, json, why);
    TIERCE_ASSERT(rc == 0);
    return stores;
}

static void check_place(const struct tierce__fleet_place *place, const char *uri)
{
    const char *name = tierce__fleet_store_name(place->store);
    char text[TIERCE__CONNECTOR_NAME_MAX + 1];
    struct tierce__file_place file;
    const char *host = strstr(uri, "://") + 3;
    TIERCE_ASSERT(strncmp(host, name, strlen(name)) == 0 &&
                  strchr("/?", host[strlen(name)]) != NULL);
    TIERCE_ASSERT(place->name.bytes > 0 && place->name.bytes <= TIERCE__CONNECTOR_NAME_MAX);
    TIERCE_ASSERT(place->name.bytes < strlen(uri) &&
                  memchr(place->name.text, 0, place->name.bytes) == NULL);
    memcpy(text, place->name.text, place->name.bytes);
    text[place->name.bytes] = '\0';
    if (name[0] != 'n') {
        TIERCE_ASSERT(tierce__beneath_is_path(text));
        return;
    }
    TIERCE_ASSERT(strncmp(uri, "file://n" ROOT, sizeof("file://n" ROOT) - 1) == 0);
    const char *wrong = tierce__file_place_read(&file, &place->name);
    TIERCE_ASSERT(wrong == NULL && file.bytes == place->bytes);
    TIERCE_ASSERT(strncmp(uri + sizeof("file://n" ROOT) - 1, file.path, strlen(file.path)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tierce__fleet_stores *stores;
    struct tierce__fleet_place place = {.store = NULL};
    char why[TIERCE__FLEET_WHY_BYTES] = "";
    if (stores == NULL)
        stores = open_stores();
    char *uri = malloc(size + 1), *room;
    memcpy(uri, data, size);
    uri[size] = '\0';
    room = malloc(strlen(uri) + 1); /* exactly, for the address sanitizer */
    int rc = tierce__fleet_place_read(&place, room, uri, stores, why);
    TIERCE_ASSERT(rc == 0 || rc == TIERCE_E_FORMAT || rc == TIERCE_E_MISS ||
                  rc == TIERCE_E_UNSUPPORTED);
    if (rc == 0)
        check_place(&place, uri);
    else
        TIERCE_ASSERT(place.store == NULL && why[0] != '\0');
    for (const char *at = why; *at != '\0'; at++)
        TIERCE_ASSERT((unsigned char)*at >= ' ' && *at != 0x7f);
    free(room);
    free(uri);
    return 0;
}
