/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/connector_conformance.h"

#include "temp_folder.h"

#include <stdlib.h>
#include <sys/stat.h>

static char folder[64];

static bool start_folder(char *url, size_t room, void *ctx)
{
    snprintf(folder, sizeof(folder), "/tmp/tierce-file-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return false;
    snprintf(url, room, "file://%s/store%s", folder, (const char *)ctx);
    return true;
}

/* The folder of a manager's storage, which exists. */
static bool start_storage(char *url, size_t room, void *ctx)
{
    char path[80];
    if (!start_folder(url, room, ctx))
        return false;
    snprintf(path, sizeof(path), "%s/store", folder);
    return mkdir(path, 0700) == 0;
}

static void remove_folder(void *ctx)
{
    (void)ctx;
    temp_folder_remove(folder);
}

#define CAPS (TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS)

static char plain[] = "", flat[] = "?fanout=1&connections=2", capped[] = "?size=1GiB&sweep=100ms";
static char paths[] = "?names=path";

/* "flat" lists all names by all prefixes, "file" more names than a page has from all its folders.
 */
static const struct connector_factory factories[] = {
    {.name = "file",
     .start = start_folder,
     .stop = remove_folder,
     .ctx = plain,
     .caps = CAPS,
     .has_lengths = true,
     .listed = 300,
     .prefixes = 3},
    {.name = "flat",
     .start = start_folder,
     .stop = remove_folder,
     .ctx = flat,
     .caps = CAPS,
     .has_lengths = true,
     .is_twin = true},
    {.name = "capped",
     .start = start_folder,
     .stop = remove_folder,
     .ctx = capped,
     .caps = CAPS,
     .has_lengths = true,
     .exists = 60,
     .listed = 60,
     .prefixes = 3},
    {.name = "paths",
     .start = start_storage,
     .stop = remove_folder,
     .ctx = paths,
     .caps = TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_NO_DELETE,
     .has_paths = true,
     .is_in_place = true,
     .exists = 100,
     .is_twin = true},
};

int main(void)
{
    return connector_conformance_main(factories, sizeof(factories) / sizeof(factories[0]));
}
