/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/file.h"
#include "cli/admin.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>

enum { REPLY_BYTES_MAX = 256 * 1024 * 1024, SECRET_BYTES_MAX = 4096, TIMEOUT_S = 60 };

struct body {
    char *text;
    size_t bytes;
};

static size_t take(char *data, size_t one, size_t count, void *arg)
{
    struct body *body = arg;
    size_t bytes = one * count;
    if (bytes > REPLY_BYTES_MAX - body->bytes)
        return 0;
    char *grown = tierce__realloc(body->text, body->bytes + bytes + 1);
    if (grown == NULL)
        return 0;
    memcpy(grown + body->bytes, data, bytes);
    body->text = grown;
    body->bytes += bytes;
    grown[body->bytes] = '\0';
    return bytes;
}

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
            return tierce__cli_usage(command, "--user wants NAME:FILE, a file with the password");
        status = read_secret(command, file + 1, secret);
        if (status != TIERCE__CLI_OK)
            return status;
        snprintf(line, sizeof(line), "%.*s", (int)(file - target->user), target->user);
        curl_easy_setopt(curl, CURLOPT_USERNAME, line);
        curl_easy_setopt(curl, CURLOPT_PASSWORD, secret);
    }
    return status;
}

/* What a reply's header says, unless it is OK. */
static int read_status(const char *command, struct json_object *reply)
{
    struct json_object *header, *status, *code, *message;
    if (!json_object_object_get_ex(reply, "header", &header) ||
        !json_object_object_get_ex(header, "status", &status) ||
        !json_object_object_get_ex(status, "code", &code))
        return tierce__cli_fail(command, "the answer is not one of a manager");
    if (strcmp(json_object_get_string(code), "OK") == 0)
        return TIERCE__CLI_OK;
    const char *text = json_object_object_get_ex(status, "message", &message)
                           ? json_object_get_string(message)
                           : "";
    return tierce__cli_fail(command, "%s: %s", json_object_get_string(code), text);
}

static int read_reply(const char *command, const char *url, long http, const struct body *body,
                      struct json_object **reply)
{
    if (http == 401 || http == 403)
        return tierce__cli_fail(command, "%s: %s; see --token-file and --user", url,
                                http == 401 ? "who you are is to be shown"
                                            : "only administrators may do this");
    *reply = body->text != NULL ? json_tokener_parse(body->text) : NULL;
    if (http != 200 || *reply == NULL)
        return tierce__cli_fail(command, "%s answered HTTP %ld, which no manager does", url, http);
    return read_status(command, *reply);
}

static int perform(CURL *curl, const char *url, struct curl_slist *headers,
                   struct json_object *request, struct body *body,
                   const struct tierce__admin_target *target)
{
    const char *text = json_object_to_json_string_ext(request, JSON_C_TO_STRING_PLAIN);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, text);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, body);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)TIMEOUT_S);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    if (target->ca_file != NULL)
        curl_easy_setopt(curl, CURLOPT_CAINFO, target->ca_file);
    return (int)curl_easy_perform(curl);
}

int tierce__admin_call(const struct tierce__admin_target *target, const char *command,
                       const char *rpc, bool is_meta, struct json_object *request,
                       struct json_object **reply)
{
    char url[2048];
    struct body body = {0};
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    CURL *curl = curl_easy_init();
    long http = 0;
    *reply = NULL;
    if (curl == NULL || headers == NULL) {
        curl_slist_free_all(headers);
        return tierce__cli_fail(command, "no memory");
    }
    snprintf(url, sizeof(url), "%s/api/%s", is_meta ? target->meta_url : target->admin_url, rpc);
    int status = add_credentials(curl, target, command, &headers);
    if (status == TIERCE__CLI_OK) {
        CURLcode code = (CURLcode)perform(curl, url, headers, request, &body, target);
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &http);
        status = code == CURLE_OK
                     ? read_reply(command, url, http, &body, reply)
                     : tierce__cli_fail(command, "%s: %s", url, curl_easy_strerror(code));
    }
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    tierce__free(body.text);
    return status;
}
