/* SPDX-License-Identifier: Apache-2.0 */
#include "net/token_file.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BYTES_MAX 4096u

int tierce__token_file_read(struct tierce__token_file *out, const char *name, const char *path,
                            char *why, size_t why_room)
{
    struct timespec modified;
    char *text = NULL, fault[256];
    size_t bytes = 0;
    int rc =
        tierce__read_secret_file(&text, &bytes, &modified, path, BYTES_MAX, fault, sizeof(fault));
    if (rc < 0) {
        snprintf(why, why_room, "%s: %s", name, fault);
        return rc == -ENOMEM ? rc : TIERCE_E_CONFIG;
    }
    size_t length = strcspn(text, " \t\r\n");
    TIERCE_DASSERT(length <= bytes);
    if (length == 0 || memchr(text, '\0', bytes) != NULL) {
        explicit_bzero(text, bytes);
        tierce__free(text);
        snprintf(why, why_room, "%s: %.150s %s; it must hold the token alone", name, path,
                 length == 0 ? "begins with white space or is empty" : "contains a NUL");
        return TIERCE_E_CONFIG;
    }
    explicit_bzero(text + length, bytes - length);
    *out = (struct tierce__token_file){.token = text, .modified = modified};
    return 0;
}

void tierce__token_file_clear(struct tierce__token_file *file)
{
    tierce__free_secret(file->token);
    file->token = NULL;
}

char *tierce__token_bearer(const char *token, size_t length)
{
    size_t room = length + sizeof("Bearer ");
    char *text = tierce__alloc(room);
    if (text != NULL)
        snprintf(text, room, "Bearer %.*s", (int)length, token);
    return text;
}
