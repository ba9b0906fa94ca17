/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/file.h"
#include "net/redis/resp_uri.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FILE_BYTES_MAX 4096u

/* A line without its end. False: it is invalid. */
static bool take_line(struct tierce__resp_uri *uri, char *line)
{
    char *value = strchr(line, '=');
    TIERCE_DASSERT(strchr(line, '\n') == NULL);
    if (line[0] == '#' || line[strspn(line, " \t")] == '\0')
        return true;
    if (value == NULL || value[1] == '\0')
        return false;
    *value++ = '\0';
    const char **place = strcmp(line, "user") == 0       ? &uri->opts.user
                         : strcmp(line, "password") == 0 ? &uri->opts.password
                                                         : NULL;
    if (place == NULL || *place != NULL) /* none of both, or given twice */
        return false;
    *place = value;
    return true;
}

static int take_lines(struct tierce__resp_uri *uri, const char *path,
                      char why[TIERCE__RESP_WHY_BYTES])
{
    unsigned number = 1;
    bool is_valid = strlen(uri->credentials) == uri->credentials_bytes; /* no NUL */
    for (char *line = uri->credentials; is_valid && line != NULL; number++) {
        char *end = strchr(line, '\n'), *next = end != NULL ? end + 1 : NULL;
        if (end != NULL)
            *end = '\0';
        size_t bytes = strlen(line);
        if (bytes > 0 && line[bytes - 1] == '\r')
            line[bytes - 1] = '\0';
        is_valid = take_line(uri, line);
        line = next;
    }
    if (is_valid && uri->opts.password != NULL)
        return 0;
    TIERCE_DASSERT(number > 0);
    if (is_valid)
        snprintf(why, TIERCE__RESP_WHY_BYTES, "credentials: %.128s has no line password=", path);
    else
        snprintf(why, TIERCE__RESP_WHY_BYTES,
                 "credentials: %.128s, line %u: expected user=NAME or password=SECRET, each once",
                 path, number > 1 ? number - 1 : 1);
    return TIERCE_E_CONFIG;
}

int tierce__resp_credentials_read(struct tierce__resp_uri *uri, const char *path,
                                  char why[TIERCE__RESP_WHY_BYTES])
{
    TIERCE_ASSERT(uri->credentials == NULL && uri->opts.password == NULL);
    int rc = tierce__read_file(&uri->credentials, &uri->credentials_bytes, path, FILE_BYTES_MAX);
    if (rc == 0)
        return take_lines(uri, path, why);
    snprintf(why, TIERCE__RESP_WHY_BYTES, "credentials: %.128s: %s", path, tierce_strerror(rc));
    return rc == -ENOMEM ? rc : TIERCE_E_CONFIG;
}
