/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/file.h"
#include "cli/admin.h"
#include "net/server/http/http_post.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { REPLY_BYTES_MAX = 256 * 1024 * 1024, SECRET_BYTES_MAX = 4096, TIMEOUT_S = 60 };

/* The first line of a file. */
static int read_secret(const char *command, const char *path, char out[SECRET_BYTES_MAX])
{
    char *text;
    size_t bytes;
    int rc = tierce__read_file(&text, &bytes, path, SECRET_BYTES_MAX - 1);
    if (rc < 0)
        return tierce__cli_fail(command, "%.300s: %s", path, tierce_strerror(rc));
    snprintf(out, SECRET_BYTES_MAX, "%.*s", (int)strcspn(text, "\r\n"), text);
    tierce__free(text);
    return TIERCE__CLI_OK;
}

static int add_credentials(CURL *curl, const struct tierce__admin_target *target,
                           const char *command, struct curl_slist **headers)
{
    char secret[SECRET_BYTES_MAX], line[SECRET_BYTES_MAX + 32];
    int status = TIERCE__CLI_OK;
    if (target->token_file != NULL) {
        status = read_secret(command, target->token_file, secret);
        if (status != TIERCE__CLI_OK)
            return status;
        snprintf(line, sizeof(line), "Authorization: Bearer %s", secret);
        *headers = curl_slist_append(*headers, line);
    } else if (target->user != NULL) {
        const char *file = strchr(target->user, ':');
        if (file == NULL)
            return tierce__cli_usage(command,
                                     "--user requires NAME:FILE, where FILE holds the password");
        status = read_secret(command, file + 1, secret);
        if (status != TIERCE__CLI_OK)
            return status;
        snprintf(line, sizeof(line), "%.*s", (int)(file - target->user), target->user);
        curl_easy_setopt(curl, CURLOPT_USERNAME, line);
        curl_easy_setopt(curl, CURLOPT_PASSWORD, secret);
    }
    return status;
}

/* The exit status for a reply's header: an error message if it is not OK. */
static int read_status(const char *command, struct tierce__text reply)
{
    char code[64], *message = NULL;
    if (!tierce__json_get_text(code, sizeof(code), reply, "header.status.code"))
        return tierce__cli_fail(command, "the answer is not from a manager; check the URL");
    if (strcmp(code, "OK") == 0)
        return TIERCE__CLI_OK;
    int rc = tierce__json_copy_text(&message, reply, "header.status.message");
    (void)tierce__cli_fail(command, "%s: %s", code, rc == 0 ? message : "");
    tierce__free(message);
    return TIERCE__CLI_FAILED;
}

static const char *explain_refusal(const struct tierce__admin_target *target, long http)
{
    if (http == 403)
        return "permission denied: an administrator is required; see --token-file and --user";
    return target->token_file != NULL ? "the manager does not know the token of --token-file"
           : target->user != NULL     ? "the manager does not know the name and password of --user"
                                      : "authentication required; see --token-file and --user";
}

static int read_reply(const struct tierce__admin_target *target, const char *command,
                      const char *url, bool is_meta, const struct tierce__http_answer *answer,
                      struct tierce__json_doc *reply)
{
    long http = answer->status;
    if (http == 401 || http == 403)
        return tierce__cli_fail(command, "%s: %s", url, explain_refusal(target, http));
    if (http != 200 || answer->body == NULL ||
        tierce__json_parse(reply, answer->body, answer->bytes, NULL) < 0)
        return tierce__cli_fail(
            command, "%s answered HTTP %ld; set %s to the manager's HTTP port for %s", url, http,
            is_meta ? "--meta-url" : "--url", is_meta ? "engines" : "administrators");
    return read_status(command, reply->value);
}

static void set_way(CURL *curl, const struct tierce__admin_target *target,
                    struct curl_slist *headers)
{
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)TIMEOUT_S);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_PROXY,
                     ""); /* ignore proxies of the environment: the request carries a token */
    if (target->ca_file != NULL)
        curl_easy_setopt(curl, CURLOPT_CAINFO, target->ca_file);
}

int tierce__admin_call(const struct tierce__admin_target *target, const char *command,
                       const char *rpc, bool is_meta, const char *request,
                       struct tierce__json_doc *reply)
{
    char url[2048], why[256];
    struct tierce__http_answer answer = {0};
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    CURL *curl = curl_easy_init();
    if (curl == NULL || headers == NULL) {
        curl_slist_free_all(headers);
        return tierce__cli_fail(command, "no memory");
    }
    snprintf(url, sizeof(url), "%s/api/%s", is_meta ? target->meta_url : target->admin_url, rpc);
    int status = add_credentials(curl, target, command, &headers);
    if (status == TIERCE__CLI_OK) {
        set_way(curl, target, headers);
        int rc = tierce__http_post(&answer, curl, url, request, REPLY_BYTES_MAX, why);
        if (rc == 0)
            status = read_reply(target, command, url, is_meta, &answer, reply);
        else if (rc == -ECONNREFUSED)
            status = tierce__cli_fail(command,
                                      "%s: no manager listens there; start one with `tierce "
                                      "manager`, or set another address with %s",
                                      url, is_meta ? "--meta-url" : "--url");
        else
            status = tierce__cli_fail(command, "%s: %s; check %s", url, why,
                                      is_meta ? "--meta-url" : "--url");
    }
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    tierce__free(answer.body);
    return status;
}
