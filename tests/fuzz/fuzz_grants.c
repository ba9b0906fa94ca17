/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "manager/api/grants.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The manager's token file: rejected with a line and a fault, or every line is a grant that has
 * rights and holds no more than its scope. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct tierce__grant *grant)
{
    TIERCE_ASSERT(grant->rights != 0 && (grant->rights & ~TIERCE__RIGHTS_ALL) == 0);
    TIERCE_ASSERT(grant->reach != TIERCE__REACH_NOTHING);
    TIERCE_ASSERT((grant->group != NULL) == (grant->reach != TIERCE__REACH_ALL));
    TIERCE_ASSERT((grant->instance != NULL) == (grant->reach == TIERCE__REACH_INSTANCE));
    TIERCE_ASSERT(grant->group == NULL || grant->group[0] != '\0');
    TIERCE_ASSERT(grant->instance == NULL || grant->instance[0] != '\0');
    if (grant->reach == TIERCE__REACH_ALL)
        return;
    /* Names cannot end with a newline. */
    TIERCE_ASSERT(!tierce__grant_has_all(grant) && !tierce__grant_has_group(grant, "\n"));
    TIERCE_ASSERT(!tierce__grant_has_instance(grant, "\n", "\n"));
    TIERCE_ASSERT(tierce__grant_meets_group(grant, grant->group));
    TIERCE_ASSERT(tierce__grant_has_group(grant, grant->group) == (grant->instance == NULL));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64], why[256] = "";
    struct tierce__grants *grants = NULL;
    int fd = memfd_create("tokens", MFD_CLOEXEC);
    TIERCE_ASSERT(fd >= 0 && fchmod(fd, 0600) == 0);
    TIERCE_ASSERT(write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int rc = tierce__grants_load(&grants, path, why);
    TIERCE_ASSERT(rc == 0 || why[0] != '\0');
    TIERCE_ASSERT(rc == 0 || strstr(why, ", line ") != NULL || size > 1024 * 1024);
    struct tierce__grants_line line;
    for (size_t i = 0; i < tierce__grants_count(grants); i++) {
        tierce__grants_at(grants, i, &line);
        TIERCE_ASSERT(line.name[0] != '\0');
        check(line.grant);
        TIERCE_ASSERT(strcmp(line.meter->name, line.name) == 0);
    }
    tierce__grants_destroy(grants);
    close(fd);
    return 0;
}
