/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/file.h"
#include "cli/admin.h"
#include "net/http_client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    REPLY_BYTES_MAX = 256 * 1024 * 1024,
    SECRET_BYTES_MAX = 4096,
    CREDENTIALS_BYTES = 8192,
    TIMEOUT_MS = 60000
};

/* The first line of a file. */
static int read_secret(const char *command, const char *flag, const char *path,
                       char out[SECRET_BYTES_MAX])
{
    char *text, why[256];
    size_t bytes;
    int rc =
        tierce__read_secret_file(&text, &bytes, NULL, path, SECRET_BYTES_MAX - 1, why, sizeof(why));
    if (rc < 0)
        return tierce__cli_fail(command, "%s: %s", flag, why);
    snprintf(out, SECRET_BYTES_MAX, "%.*s", (int)strcspn(text, "\r\n"), text);
    explicit_bzero(text, bytes);
    tierce__free(text);
    if (out[0] == '\0')
        return tierce__cli_fail(command, "%s: the first line of %.300s is empty", flag, path);
    return TIERCE__CLI_OK;
}

/* Reads the credentials: "Bearer " and the token, or "name:password". */
static int read_credentials(const char *command, const struct tierce__admin_target *target,
                            char out[CREDENTIALS_BYTES])
{
    char secret[SECRET_BYTES_MAX];
    const char *user = target->token_file != NULL ? "Bearer " : target->user;
    const char *file = target->token_file;
    if (user == NULL)
        return TIERCE__CLI_OK;
    if (file == NULL && (file = strchr(user, ':')) == NULL)
        return tierce__cli_usage(command,
                                 "--user requires NAME:FILE, where FILE holds the password");
    int prefix = target->token_file != NULL ? 7 : (int)(++file - user);
    int status =
        read_secret(command, target->token_file != NULL ? "--token-file" : "--user", file, secret);
    if (status == TIERCE__CLI_OK)
        snprintf(out, CREDENTIALS_BYTES, "%.*s%s", prefix, user, secret);
    return status;
}

/* "...: {CALL: {a: {b}}}" as "...: a.b"; `begin` is behind the first brace. */
static void name_field(char *message, size_t begin)
{
    char *from = message + begin, *to = from - 1;
    from += strcspn(from, "{}"); /* the call's name */
    for (bool is_first = true; *from == '{'; is_first = false) {
        size_t length = strcspn(++from, ":{}");
        if (!is_first)
            *to++ = '.';
        memmove(to, from, length);
        to += length;
        from += length;
        from += strspn(from, ": ");
    }
    *to = '\0';
}

/*
 * The reason in a status message, which has KVCM's forms, for a person: without "get NAME metrics
 * collector failed: ", "Failed to DO: {"error_msg":["WHY"]}" as "Failed to DO: WHY", and
 * "missing or invalid fields: {CALL: {a: {b}}}" as "missing or invalid fields: a.b".
 */
static void clear_message(char *message)
{
    static const char fields[] = "missing or invalid fields: {";
    static const char collector[] = " metrics collector failed: ";
    static const char opened[] = "{\"error_msg\":[\"", closed[] = "\"]}";
    char *at = strstr(message, collector);
    if (strncmp(message, "get ", 4) == 0 && at != NULL) {
        at += sizeof(collector) - 1;
        memmove(message, at, strlen(at) + 1);
    }
    if (strncmp(message, fields, sizeof(fields) - 1) == 0) {
        name_field(message, sizeof(fields) - 1);
        return;
    }
    at = strstr(message, opened);
    size_t length = strlen(message);
    if (at == NULL || length < sizeof(closed) ||
        strcmp(message + length - (sizeof(closed) - 1), closed) != 0)
        return;
    message[length - (sizeof(closed) - 1)] = '\0';
    char *from = at + sizeof(opened) - 1;
    for (; *from != '\0'; from++) { /* quotes and backslashes have a backslash before them */
        if (*from == '\\' && (from[1] == '"' || from[1] == '\\'))
            from++;
        *at++ = *from;
    }
    *at = '\0';
}

/* The exit status for a reply's header: an error message if it is not OK. The code INTERNAL_ERROR
 * of administrators' calls has no meaning of its own. */
static int read_status(const char *command, struct tierce__text reply)
{
    char code[64], *message = NULL;
    struct tierce__text value = tierce__json_get(reply, "header.status.code");
    /* A newer manager's code, which this build of it cannot name, is a number. */
    if (tierce__json_is_integer(value))
        snprintf(code, sizeof(code), "%.*s", (int)value.length, value.at);
    else if (!tierce__json_get_text(code, sizeof(code), value, ""))
        return tierce__cli_fail(command, "the answer is not from a manager; check the URL");
    if (strcmp(code, "OK") == 0)
        return TIERCE__CLI_OK;
    int rc = tierce__json_copy_text(&message, reply, "header.status.message");
    if (rc == 0)
        clear_message(message);
    bool is_enough = rc == 0 && message[0] != '\0' && strcmp(code, "INTERNAL_ERROR") == 0;
    (void)tierce__cli_fail(command, "%s%s%s%s", is_enough ? "" : code, is_enough ? "" : ": ",
                           rc == 0 ? message : "",
                           strcmp(code, "SERVER_NOT_LEADER") == 0
                               ? "; set --url to the leader's HTTP port for administrators"
                               : "");
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
                      const char *url, bool is_meta, const struct tierce__curl_answer *answer,
                      struct tierce__json_doc *reply)
{
    long http = answer->status;
    if (http == 401 || http == 403)
        return tierce__cli_fail(command, "%s: %s", url, explain_refusal(target, http));
    if (http != 200 || answer->body == NULL ||
        tierce__json_parse(reply, answer->body, answer->bytes, NULL) < 0)
        return tierce__cli_fail(
            command, "%s answered HTTP %ld; set %s to the manager's HTTP port for %s%s", url, http,
            is_meta ? "--meta-url" : "--url", is_meta ? "engines" : "administrators",
            http == 404 ? ", or upgrade the manager, if its version does not have this call" : "");
    return read_status(command, reply->value);
}

/* Posts a text to the URL, or gets the URL if there is none. Proxies of the environment are
 * ignored: the request carries a secret. */
static int ask(struct tierce__curl_answer *out, const char *command,
               const struct tierce__admin_target *target, const char *url, const char *body,
               bool is_meta)
{
    char credentials[CREDENTIALS_BYTES], why[256] = "no memory";
    struct tierce__curl *client = NULL;
    struct tierce__curl_request request = {.url = url,
                                           .body = body,
                                           .headers = {{"Content-Type", "application/json"}},
                                           .bytes_max = REPLY_BYTES_MAX};
    struct tierce__curl_opts opts = {.ca_file = target->ca_file, .timeout_ms = TIMEOUT_MS};
    int status = read_credentials(command, target, credentials);
    if (status != TIERCE__CLI_OK)
        return status;
    if (target->token_file != NULL)
        request.headers[1] = (struct tierce__curl_header){"Authorization", credentials};
    else if (target->user != NULL)
        opts.login = credentials;
    const char *flag = is_meta ? "--meta-url" : "--url";
    int rc = tierce__curl_create(&client, &opts);
    if (rc == 0)
        rc = tierce__curl_call(out, client, &request, why);
    tierce__curl_destroy(client);
    if (rc == -ECONNREFUSED)
        return tierce__cli_fail(command,
                                "%s: no manager listens there; start one with `tierce manager`, or "
                                "set another address with %s",
                                url, flag);
    return rc == 0 ? TIERCE__CLI_OK : tierce__cli_fail(command, "%s: %s; check %s", url, why, flag);
}

int tierce__admin_call(const struct tierce__admin_target *target, const char *command,
                       const char *rpc, bool is_meta, const char *request,
                       struct tierce__json_doc *reply)
{
    char url[2048];
    struct tierce__curl_answer answer = {0};
    snprintf(url, sizeof(url), "%s/api/%s", is_meta ? target->meta_url : target->admin_url, rpc);
    int status = ask(&answer, command, target, url, request, is_meta);
    if (status == TIERCE__CLI_OK)
        status = read_reply(target, command, url, is_meta, &answer, reply);
    tierce__curl_answer_clear(&answer);
    return status;
}
