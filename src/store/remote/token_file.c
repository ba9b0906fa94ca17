/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/token_file.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define BYTES_MAX 4096u

int tierce__token_file_read(struct tierce__token_file *out, const char *path, char *why,
                            size_t why_room)
{
    struct stat status;
    char *text = NULL;
    size_t bytes = 0;
    int rc = stat(path, &status) == 0 ? 0 : -errno;
    if (rc == 0)
        rc = tierce__read_file(&text, &bytes, path, BYTES_MAX);
    if (rc < 0) {
        snprintf(why, why_room, "token_file %.150s cannot be read: %s", path, tierce_strerror(rc));
        return rc == -ENOMEM ? rc : TIERCE_E_CONFIG;
    }
    size_t length = strcspn(text, " \t\r\n");
    bool is_open = (status.st_mode & (S_IRWXG | S_IRWXO)) != 0;
    TIERCE_DASSERT(length <= bytes);
    if (is_open || length == 0) {
        explicit_bzero(text, bytes);
        tierce__free(text);
        snprintf(why, why_room, "token_file %.150s %s", path,
                 is_open ? "can be read by other users; chmod 600 it"
                         : "is empty; it holds the token alone");
        return TIERCE_E_CONFIG;
    }
    explicit_bzero(text + length, bytes - length);
    *out = (struct tierce__token_file){.token = text, .modified = status.st_mtim};
    return 0;
}

void tierce__token_file_clear(struct tierce__token_file *file)
{
    if (file->token != NULL)
        explicit_bzero(file->token, strlen(file->token));
    tierce__free(file->token);
    file->token = NULL;
}
