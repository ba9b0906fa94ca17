/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/process.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "cli/cli.h"
#include "net/http_client.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES_MAX = 64 << 20, TIMEOUT_MS = 10000 };

/* ---- which ----------------------------------------------------------------------------------- */

/* "4711-0.sock" is of process 4711; `pid` NULL is any. */
static bool is_socket_of(const char *name, const char *pid)
{
    size_t digits = strspn(name, "0123456789");
    const char *end = name + strlen(name);
    if (digits == 0 || name[digits] != '-' || end - name < 6 || strcmp(end - 5, ".sock") != 0)
        return false;
    return pid == NULL || (strlen(pid) == digits && strncmp(name, pid, digits) == 0);
}

/* A process that was killed leaves its socket behind. */
static bool answers(const char *command, const struct tierce__process *process)
{
    char *text = NULL;
    bool ok = tierce__process_ask(command, process, "/status", NULL, true, &text) == TIERCE__CLI_OK;
    tierce__free(text);
    return ok;
}

static int by_name(const void *a, const void *b)
{
    const struct tierce__process *x = a, *y = b;
    return strcmp(x->socket, y->socket);
}

static int list_folder(const char *command, const char *folder, const char *pid,
                       struct tierce__process **out, size_t *count)
{
    char why[256];
    int rc = tierce__control_folder_is_ours(folder, why);
    if (rc < 0)
        return rc == -ENOENT ? TIERCE__CLI_OK : tierce__cli_fail(command, "%s", why);
    DIR *dir = opendir(folder);
    if (dir == NULL && errno != ENOENT)
        return tierce__cli_fail(command, "%s: %s", folder, strerror(errno));
    for (const struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        struct tierce__process process;
        if (!is_socket_of(entry->d_name, pid))
            continue;
        int n = snprintf(process.socket, sizeof(process.socket), "%s/%s", folder, entry->d_name);
        if (n >= (int)sizeof(process.socket) || !answers(command, &process))
            continue;
        struct tierce__process *grown = tierce__realloc(*out, (*count + 1) * sizeof(**out));
        if (grown == NULL)
            break;
        grown[(*count)++] = process;
        *out = grown;
    }
    if (dir != NULL)
        closedir(dir);
    if (*count > 0)
        qsort(*out, *count, sizeof(**out), by_name);
    return TIERCE__CLI_OK;
}

int tierce__processes_find(const char *command, const char *who, struct tierce__process **out,
                           size_t *count)
{
    char folder[TIERCE__CONTROL_PATH_BYTES];
    *out = NULL;
    *count = 0;
    if (who != NULL && strchr(who, '/') != NULL) {
        struct tierce__process *one = tierce__calloc(1, sizeof(*one));
        if (one == NULL)
            return tierce__cli_fail(command, "no memory");
        if (snprintf(one->socket, sizeof(one->socket), "%s", who) >= (int)sizeof(one->socket)) {
            tierce__free(one);
            return tierce__cli_usage(command, "%.40s... is too long for a socket's path", who);
        }
        *out = one;
        *count = 1;
        return TIERCE__CLI_OK;
    }
    if (who != NULL && strspn(who, "0123456789") != strlen(who))
        return tierce__cli_usage(command, "'%.64s' is neither a process id nor a socket's path",
                                 who);
    if (tierce__control_folder(folder) < 0)
        return tierce__cli_fail(command, "XDG_RUNTIME_DIR is too long for a socket's path");
    int status = list_folder(command, folder, who, out, count);
    if (status != TIERCE__CLI_OK || *count > 0)
        return status;
    if (who != NULL)
        return tierce__cli_fail(command,
                                "process %s has no control socket in %s: check the process id, or "
                                "pass the path of its control.socket",
                                who, folder);
    return tierce__cli_fail(command,
                            "no process of this user has a control socket in %s: start the engine "
                            "or node first; if its "
                            "control.socket is elsewhere, pass that path as SOCKET",
                            folder);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static int say(const char *command, bool is_quiet, const struct tierce__process *process,
               const char *what)
{
    size_t n = strlen(what);
    if (is_quiet)
        return TIERCE__CLI_FAILED;
    if (n > 0 &&
        what[n - 1] == '\n') /* a page ends with a line end, and the printed text does too */
        n--;
    return tierce__cli_fail(command, "%s: %.*s", process->socket, (int)n, what);
}

int tierce__process_ask(const char *command, const struct tierce__process *process,
                        const char *path, const char *body, bool is_quiet, char **text)
{
    char url[1024], why[256] = "no memory";
    struct tierce__curl_answer answer = {0};
    struct tierce__curl *client = NULL;
    int rc =
        tierce__curl_create(&client, &(struct tierce__curl_opts){.unix_socket = process->socket,
                                                                 .timeout_ms = TIMEOUT_MS});
    snprintf(url, sizeof(url), "http://localhost%s", path);
    if (rc == 0)
        rc = tierce__curl_call(
            &answer, client,
            &(struct tierce__curl_request){.url = url, .body = body, .bytes_max = PAGE_BYTES_MAX},
            why);
    tierce__curl_destroy(client);
    if (rc < 0)
        return say(command, is_quiet, process,
                   rc == -ECONNREFUSED ? "no process answers on this socket" : why);
    tierce__cli_clean(answer.body);
    if (answer.status == 200 && answer.bytes > 0) {
        *text = answer.body;
        return TIERCE__CLI_OK;
    }
    int status =
        say(command, is_quiet, process, answer.bytes > 0 ? answer.body : "an empty answer");
    tierce__curl_answer_clear(&answer);
    return status;
}

int tierce__process_read(const char *command, const struct tierce__process *process,
                         const char *text, struct tierce__json_doc *out)
{
    int rc = tierce__json_parse(out, text, strlen(text), NULL);
    if (rc == 0 && tierce__json_value_kind(out->value) == '{')
        return TIERCE__CLI_OK;
    if (rc == 0)
        tierce__json_doc_clear(out);
    return tierce__cli_fail(command, "%s: the process did not send a valid answer",
                            process->socket);
}

const char *tierce__process_word(char *out, size_t size, struct tierce__text object,
                                 const char *path, const char *fallback)
{
    char text[256];
    TIERCE_DASSERT(size > 4);
    bool found = tierce__json_get_text(text, sizeof(text), object, path);
    tierce__text_for_message(out, size, found ? text : fallback);
    return out;
}
