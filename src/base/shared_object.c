/* SPDX-License-Identifier: Apache-2.0 */
#include "base/shared_object.h"
#include "base/trusted_path.h"

#include <dlfcn.h>
#include <stdio.h>

int tierce__shared_object_open(void **object, const char *what, const char *path,
                               char why[TIERCE__URL_WHY_BYTES])
{
    char real[PATH_MAX];
    int rc = tierce__trusted_path(real, what, path, why);
    if (rc < 0)
        return rc;
    void *opened = dlopen(real, RTLD_NOW | RTLD_LOCAL);
    if (opened == NULL) {
        const char *wrong = dlerror();
        snprintf(why, TIERCE__URL_WHY_BYTES, "%s %.120s: %s", what, path,
                 wrong != NULL ? wrong : "cannot be loaded");
        return TIERCE_E_CONFIG;
    }
    *object = opened;
    return 0;
}
