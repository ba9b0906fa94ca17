/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/token_file.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BYTES_MAX 4096u

int tierce__token_file_read(struct tierce__token_file *out, const char *path, char *why,
                            size_t why_room)
{
    struct timespec modified;
    char *text = NULL, fault[256];
    size_t bytes = 0;
    int rc =
        tierce__read_secret_file(&text, &bytes, &modified, path, BYTES_MAX, fault, sizeof(fault));
    if (rc < 0) {
        snprintf(why, why_room, "token_file: %s", fault);
        return rc == -ENOMEM ? rc : TIERCE_E_CONFIG;
    }
    size_t length = strcspn(text, " \t\r\n");
    TIERCE_DASSERT(length <= bytes);
    if (length == 0) {
        tierce__free(text);
        snprintf(why, why_room, "token_file: %.150s is empty; it must hold the token alone", path);
        return TIERCE_E_CONFIG;
    }
    explicit_bzero(text + length, bytes - length);
    *out = (struct tierce__token_file){.token = text, .modified = modified};
    return 0;
}

void tierce__token_file_clear(struct tierce__token_file *file)
{
    if (file->token != NULL)
        explicit_bzero(file->token, strlen(file->token));
    tierce__free(file->token);
    file->token = NULL;
}
