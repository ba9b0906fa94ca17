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

enum { PAGE_BYTES_MAX = 64 << 20, SEARCH_S = 5, ANSWER_S = 10 };

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

/* TIERCE_E_DEADLINE: the socket accepts connections, but the process does not answer in time. */
static int call(struct tierce__curl_answer *answer, const struct tierce__process *process,
                const char *path, const char *body, uint32_t seconds, char why[256])
{
    char url[1024];
    struct tierce__curl *client = NULL;
    int rc =
        tierce__curl_create(&client, &(struct tierce__curl_opts){.unix_socket = process->socket,
                                                                 .timeout_ms = seconds * 1000});
    snprintf(why, 256, "no memory");
    snprintf(url, sizeof(url), "http://localhost%s", path);
    if (rc == 0)
        rc = tierce__curl_call(
            answer, client,
            &(struct tierce__curl_request){.url = url, .body = body, .bytes_max = PAGE_BYTES_MAX},
            why);
    tierce__curl_destroy(client);
    if (rc == -ECONNREFUSED)
        snprintf(why, 256, "no process answers on this socket");
    else if (rc == TIERCE_E_DEADLINE)
        snprintf(why, 256,
                 "the process did not answer within %u s: it is stopped, hangs or is overloaded",
                 seconds);
    return rc;
}

int tierce__process_ask(const char *command, const struct tierce__process *process,
                        const char *path, const char *body, bool is_quiet, char **text)
{
    char why[256];
    struct tierce__curl_answer answer = {0};
    if (call(&answer, process, path, body, ANSWER_S, why) < 0)
        return say(command, is_quiet, process, why);
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

/* A process that was killed leaves its socket behind. TIERCE_E_DEADLINE: the process is there, but
 * does not answer. */
static int look_for(const struct tierce__process *process)
{
    char why[256];
    struct tierce__curl_answer answer = {0};
    int rc = call(&answer, process, "/status", NULL, SEARCH_S, why);
    bool answers = rc == 0 && answer.status == 200 && answer.bytes > 0;
    tierce__curl_answer_clear(&answer);
    return rc < 0 ? rc : answers ? 0 : -ENOENT;
}

static int by_name(const void *a, const void *b)
{
    const struct tierce__process *x = a, *y = b;
    return strcmp(x->socket, y->socket);
}

struct listing {
    const char *command, *folder, *pid; /* pid NULL: any */
    struct tierce__process *found;
    size_t count;
    size_t silent; /* processes that do not answer; each was reported */
};

/* Returns false if there is no memory. */
static bool list_one(struct listing *listing, const char *name)
{
    struct tierce__process process;
    int n = snprintf(process.socket, sizeof(process.socket), "%s/%s", listing->folder, name);
    int rc = n < (int)sizeof(process.socket) ? look_for(&process) : -ENAMETOOLONG;
    if (rc == TIERCE_E_DEADLINE) {
        (void)tierce__cli_fail(listing->command,
                               "process %.*s has a control socket, %s, but did not answer within "
                               "%d s: it is stopped, hangs or is overloaded",
                               (int)strspn(name, "0123456789"), name, process.socket, SEARCH_S);
        listing->silent++;
    }
    if (rc < 0)
        return true;
    struct tierce__process *grown =
        tierce__realloc(listing->found, (listing->count + 1) * sizeof(*grown));
    if (grown == NULL)
        return false;
    grown[listing->count++] = process;
    listing->found = grown;
    return true;
}

static int list_folder(struct listing *listing)
{
    char why[256];
    int rc = tierce__control_folder_is_ours(listing->folder, why);
    if (rc < 0)
        return rc == -ENOENT ? TIERCE__CLI_OK : tierce__cli_fail(listing->command, "%s", why);
    DIR *dir = opendir(listing->folder);
    if (dir == NULL && errno != ENOENT)
        return tierce__cli_fail(listing->command, "%s: %s", listing->folder, strerror(errno));
    bool ok = true;
    for (const struct dirent *entry; ok && dir != NULL && (entry = readdir(dir)) != NULL;)
        ok = !is_socket_of(entry->d_name, listing->pid) || list_one(listing, entry->d_name);
    if (dir != NULL)
        closedir(dir);
    if (!ok)
        return tierce__cli_fail(listing->command, "no memory");
    if (listing->count > 0)
        qsort(listing->found, listing->count, sizeof(*listing->found), by_name);
    return TIERCE__CLI_OK;
}

static int say_none(const char *command, const char *who, const char *first, const char *other)
{
    if (who != NULL)
        return tierce__cli_fail(command,
                                "process %s has no control socket in %s or %s: check the process "
                                "id, or pass the path of its control.socket",
                                who, first, other);
    return tierce__cli_fail(command,
                            "no process of this user has a control socket in %s or %s: start the "
                            "engine or node first; if vLLM runs, look in its log for 'Tierce is "
                            "off:' and for node_not_there; if its control.socket is elsewhere, "
                            "pass that path as SOCKET",
                            first, other);
}

/* The other folder is searched only if the first has no process. */
static int search(struct listing *listing)
{
    char first[TIERCE__CONTROL_PATH_BYTES], other[TIERCE__CONTROL_PATH_BYTES];
    if (tierce__control_folder(first) < 0)
        return tierce__cli_fail(listing->command,
                                "XDG_RUNTIME_DIR is too long for a socket's path");
    tierce__control_folder_other(other);
    listing->folder = first;
    int status = list_folder(listing);
    if (status == TIERCE__CLI_OK && listing->count == 0 && listing->silent == 0) {
        listing->folder = other;
        char why[256]; /* anybody can create it: a folder of another user is none */
        status = tierce__control_folder_is_ours(other, why) < 0 ? status : list_folder(listing);
    }
    if (status != TIERCE__CLI_OK || listing->count > 0)
        return status;
    return listing->silent > 0 ? TIERCE__CLI_FAILED
                               : say_none(listing->command, listing->pid, first, other);
}

static int name_one(const char *command, const char *path, struct tierce__process **out)
{
    struct tierce__process *one = tierce__calloc(1, sizeof(*one));
    if (one == NULL)
        return tierce__cli_fail(command, "no memory");
    if (snprintf(one->socket, sizeof(one->socket), "%s", path) >= (int)sizeof(one->socket)) {
        tierce__free(one);
        return tierce__cli_usage(command, "%.40s... is too long for a socket's path", path);
    }
    *out = one;
    return TIERCE__CLI_OK;
}

int tierce__processes_find(const char *command, const char *who, struct tierce__process **out,
                           size_t *count)
{
    *out = NULL;
    *count = 0;
    if (who != NULL && strchr(who, '/') != NULL) {
        int status = name_one(command, who, out);
        *count = *out != NULL;
        return status;
    }
    if (who != NULL && strspn(who, "0123456789") != strlen(who))
        return tierce__cli_usage(command, "'%.64s' is neither a process id nor a socket's path",
                                 who);
    struct listing listing = {.command = command, .pid = who};
    int status = search(&listing);
    *out = listing.found;
    *count = listing.count;
    return status;
}

/* ---- answers --------------------------------------------------------------------------------- */

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
