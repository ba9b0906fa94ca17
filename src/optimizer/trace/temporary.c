/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/trace/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *tierce__temporary_folder(void)
{
    const char *folder = getenv("TMPDIR");
    return folder != NULL && folder[0] != '\0' ? folder : "/tmp";
}

int tierce__open_temporary(const char *folder)
{
    char path[4096];
    if (folder == NULL)
        folder = tierce__temporary_folder();
    if (snprintf(path, sizeof(path), "%s/tierce-XXXXXX", folder) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return -errno;
    unlink(path);
    return fd;
}
