/* SPDX-License-Identifier: Apache-2.0 */
/* Against NIXL's published library and its POSIX plug-in. */
#include "conformance/connector_conformance.h"

#include "nixl_here.h"
#include "temp_folder.h"

#include <stdlib.h>

static char folder[64];

static bool start(char *url, size_t room, void *ctx)
{
    snprintf(folder, sizeof(folder), "/tmp/tierce-nixl-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return false;
    snprintf(url, room, "nixl://%s/store?library=%s", folder, (const char *)ctx);
    return true;
}

static void stop(void *ctx)
{
    (void)ctx;
    temp_folder_remove(folder);
}

int main(void)
{
    const char *library = nixl_library();
    if (library == NULL) {
        printf("skipped: no NIXL (tools/setup python installs it)\n");
        return 77;
    }
    const struct connector_factory factories[] = {
        {.name = "nixl",
         .start = start,
         .stop = stop,
         .ctx = (char *)(uintptr_t)library,
         .caps = TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS,
         .has_lengths = true,
         .exists = 20,
         .listed = 20,
         .prefixes = 3},
    };
    return connector_conformance_main(factories, 1);
}
