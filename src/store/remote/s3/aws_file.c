/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/file.h"
#include "store/remote/s3/aws_login.h"

#include <stdlib.h>
#include <string.h>

/* Cuts blanks at both ends. */
static char *trim(char *text)
{
    text += strspn(text, " \t\r");
    size_t bytes = strlen(text);
    while (bytes > 0 && strchr(" \t\r", text[bytes - 1]) != NULL)
        text[--bytes] = '\0';
    return text;
}

bool tierce__aws_section(char *text, const char *section, const char *const *names,
                         const char **values, size_t count)
{
    bool inside = false, found = false;
    for (char *line = text, *next; line != NULL; line = next) {
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        line = trim(line);
        size_t bytes = strlen(line);
        if (line[0] == '[' && line[bytes - 1] == ']') {
            line[bytes - 1] = '\0';
            inside = strcmp(trim(line + 1), section) == 0;
            found |= inside;
            continue;
        }
        char *value = strchr(line, '=');
        if (!inside || line[0] == '#' || line[0] == ';' || value == NULL)
            continue;
        *value++ = '\0';
        for (size_t i = 0; i < count; i++) {
            if (strcmp(trim(line), names[i]) == 0)
                values[i] = trim(value);
        }
    }
    return found;
}

char *tierce__aws_path(const char *variable, const char *in_home)
{
    const char *path = getenv(variable), *home = getenv("HOME");
    if (path != NULL && path[0] != '\0')
        return tierce__strdup(path);
    return tierce__join_path(home != NULL && home[0] != '\0' ? home : "/", in_home);
}
