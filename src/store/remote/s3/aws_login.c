/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests for each kind of credentials:
 *
 *     STS         POST /  Action=AssumeRoleWithWebIdentity        -> XML
 *     SSO         GET /federation/credentials?...                 -> JSON in "roleCredentials"
 *     container   GET the address                                 -> JSON
 *     instance    PUT /latest/api/token, GET the role, GET its credentials -> JSON
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json/json.h"
#include "store/remote/s3/aws_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define INSTANCE_PATH "/latest/meta-data/iam/security-credentials/"

/* One HTTP request. */
struct login_call {
    struct tierce__aws_login *login;
    struct tierce__curl_request request;
    struct tierce__curl_answer answer;
};

/* ---- HTTP ------------------------------------------------------------------------------------ */

static void set_header(struct login_call *call, const char *name, const char *value)
{
    TIERCE_DASSERT(value[strcspn(value, "\r\n")] == '\0');
    call->request.headers[0] = (struct tierce__curl_header){name, value};
}

/* Makes the request. A status other than 200 is an error. `whom` names the service in messages. */
static int ask(struct login_call *call, const char *whom, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    char reason[256];
    TIERCE_DASSERT(call->request.url != NULL);
    tierce__curl_answer_clear(&call->answer);
    call->request.bytes_max = TIERCE__AWS_ANSWER_BYTES_MAX;
    int rc = tierce__curl_call(&call->answer, call->login->client, &call->request, reason);
    long status = call->answer.status;
    call->request.headers[0].name = NULL;
    if (rc == 0 && status == 200)
        return 0;
    if (rc == 0) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "AWS credentials: %s: HTTP status %ld", whom,
                 status);
        return status >= 400 && status < 500 && status != 429 ? TIERCE_E_REFUSED : TIERCE_E_DOWN;
    }
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "AWS credentials: %.150s (%s)",
             rc == TIERCE_E_CANCELLED ? "the connector is being closed"
             : rc == TIERCE_E_LIMIT   ? "the answer exceeds 64 KiB"
                                      : reason,
             whom);
    return rc == TIERCE_E_LIMIT                        ? TIERCE_E_FORMAT
           : rc == TIERCE_E_CANCELLED || rc == -ENOMEM ? rc
                                                       : TIERCE_E_DOWN;
}

/* ---- web identity ---------------------------------------------------------------------------- */

/* Returns a small file without trailing white space, on the heap; NULL, with `why`, if it cannot
 * be read. */
static char *read_token(const char *path, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char *text = NULL;
    size_t bytes = 0;
    int rc = tierce__read_file(&text, &bytes, path, TIERCE__AWS_TOKEN_BYTES_MAX);
    if (rc != 0) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "AWS credentials: %.150s: %s", path,
                 tierce_strerror(rc));
        return NULL;
    }
    while (bytes > 0 && strchr(" \t\r\n", text[bytes - 1]) != NULL)
        text[--bytes] = '\0';
    return text;
}

/* The token is in the body, because URLs are logged. */
static int fetch_web_identity(struct login_call *call, struct tierce__s3_credentials *out,
                              uint64_t *expires_s, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const struct tierce__aws_login *login = call->login;
    char role[3 * TIERCE__AWS_TEXT_BYTES], session[3 * sizeof(login->session)];
    char *token = read_token(login->token_file, why);
    if (token == NULL)
        return TIERCE_E_REFUSED;
    size_t encoded_room = 3 * strlen(token) + 1, room = encoded_room + sizeof(role) + 512;
    char *encoded = tierce__alloc(encoded_room), *body = tierce__alloc(room);
    int rc = encoded != NULL && body != NULL ? 0 : tierce__aws_refuse(why, -ENOMEM, "no memory");
    if (rc == 0) {
        tierce__s3_encode(role, sizeof(role), login->role, false);
        tierce__s3_encode(session, sizeof(session), login->session, false);
        tierce__s3_encode(encoded, encoded_room, token, false);
        snprintf(body, room,
                 "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=%s"
                 "&RoleSessionName=%s&WebIdentityToken=%s",
                 role, session, encoded);
        call->request.url = login->url;
        call->request.body = body;
        rc = ask(call, "STS", why);
    }
    if (rc == 0)
        rc = tierce__aws_take_xml(out, expires_s, call->answer.body, call->answer.bytes, why);
    explicit_bzero(token, strlen(token));
    tierce__free(token);
    if (encoded != NULL)
        explicit_bzero(encoded, encoded_room);
    if (body != NULL)
        explicit_bzero(body, room);
    tierce__free(encoded);
    tierce__free(body);
    return rc;
}

/* ---- SSO ------------------------------------------------------------------------------------- */

/* The file of `aws sso login` is read each time, because that tool renews its token. */
static int get_sso_token(const struct tierce__aws_login *login, struct tierce__aws_sso_token *out,
                         char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char *text = NULL;
    size_t bytes = 0;
    int rc = tierce__read_file(&text, &bytes, login->token_file, TIERCE__AWS_FILE_BYTES_MAX);
    if (rc != 0) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "AWS credentials: %.130s: %s; run `aws sso login`", login->token_file,
                 tierce_strerror(rc));
        return TIERCE_E_REFUSED;
    }
    char *padded = tierce__realloc(text, bytes + TIERCE__JSON_SLACK);
    if (padded != NULL)
        memset(padded + bytes, 0, TIERCE__JSON_SLACK);
    bool ok = padded != NULL && tierce__aws_read_sso(out, padded, bytes);
    uint64_t expires_s = ok ? tierce__aws_time(out->expires) : 0;
    text = padded != NULL ? padded : text;
    explicit_bzero(text, bytes);
    tierce__free(text);
    if (!ok)
        return tierce__aws_refuse(why, TIERCE_E_REFUSED,
                                  "the SSO session has no access token; run `aws sso login`");
    if (expires_s != 0 && expires_s <= tierce__wall_s())
        return tierce__aws_refuse(why, TIERCE_E_REFUSED,
                                  "the SSO session has expired; run `aws sso login`");
    return 0;
}

static int fetch_sso(struct login_call *call, struct tierce__s3_credentials *out,
                     uint64_t *expires_s, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const struct tierce__aws_login *login = call->login;
    char url[8 * TIERCE__AWS_TEXT_BYTES], role[3 * TIERCE__AWS_TEXT_BYTES];
    struct tierce__aws_sso_token *token = tierce__calloc(1, sizeof(*token));
    int rc = token != NULL ? get_sso_token(login, token, why)
                           : tierce__aws_refuse(why, -ENOMEM, "no memory");
    if (rc == 0 && strpbrk(token->access, "\r\n") != NULL)
        rc = tierce__aws_refuse(why, TIERCE_E_REFUSED,
                                "the SSO access token contains a line break; run `aws sso login`");
    if (rc == 0) {
        tierce__s3_encode(role, sizeof(role), login->role, false);
        snprintf(url, sizeof(url), "%s/federation/credentials?role_name=%s&account_id=%s",
                 login->url, role, login->account);
        call->request.url = url;
        set_header(call, "x-amz-sso_bearer_token", token->access);
        rc = ask(call, "SSO", why);
    }
    if (rc == 0)
        rc = tierce__aws_take_json(out, expires_s, call->answer.body, call->answer.bytes, "SSO",
                                   why);
    if (token != NULL)
        explicit_bzero(token, sizeof(*token));
    tierce__free(token);
    return rc;
}

/* ---- the machine ----------------------------------------------------------------------------- */

static int fetch_container(struct login_call *call, struct tierce__s3_credentials *out,
                           uint64_t *expires_s, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const struct tierce__aws_login *login = call->login;
    char *token = login->token_file != NULL ? read_token(login->token_file, why) : NULL;
    const char *text = token != NULL ? token : login->token;
    int rc = login->token_file != NULL && token == NULL ? TIERCE_E_REFUSED : 0;
    if (rc == 0 && strpbrk(text, "\r\n") != NULL)
        rc = tierce__aws_refuse(why, TIERCE_E_REFUSED,
                                "the container's authorization token contains a line break");
    if (rc == 0 && text[0] != '\0')
        set_header(call, "Authorization", text);
    call->request.url = login->url;
    if (rc == 0)
        rc = ask(call, "the container's agent", why);
    if (token != NULL)
        explicit_bzero(token, strlen(token));
    tierce__free(token);
    return rc == 0 ? tierce__aws_take_json(out, expires_s, call->answer.body, call->answer.bytes,
                                           "the container's agent", why)
                   : rc;
}

/* Takes the first line of an answer; false if it contains a character that a URL cannot. */
static bool take_line(char *out, size_t room, const struct login_call *call)
{
    TIERCE_DASSERT(room > 0);
    size_t bytes = strcspn(call->answer.body, "\r\n");
    if (bytes == 0 || bytes >= room)
        return false;
    memcpy(out, call->answer.body, bytes);
    out[bytes] = '\0';
    for (size_t i = 0; i < bytes; i++) {
        if (out[i] <= ' ' || out[i] >= 0x7f)
            return false;
    }
    return true;
}

static int fetch_instance(struct login_call *call, struct tierce__s3_credentials *out,
                          uint64_t *expires_s, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char whom[] = "the EC2 metadata service";
    const char *base = call->login->url;
    char url[8 * TIERCE__AWS_TEXT_BYTES], session[1024], role[TIERCE__AWS_TEXT_BYTES],
        encoded[3 * TIERCE__AWS_TEXT_BYTES];
    snprintf(url, sizeof(url), "%s/latest/api/token", base);
    call->request.method = "PUT";
    call->request.url = url;
    set_header(call, "X-aws-ec2-metadata-token-ttl-seconds", "21600");
    int rc = ask(call, whom, why);
    if (rc == 0 && !take_line(session, sizeof(session), call))
        rc = tierce__aws_refuse(why, TIERCE_E_FORMAT,
                                "the EC2 metadata service sent no valid token");
    call->request.method = NULL;
    snprintf(url, sizeof(url), "%s" INSTANCE_PATH, base);
    if (rc == 0) {
        set_header(call, "X-aws-ec2-metadata-token", session);
        rc = ask(call, whom, why);
    }
    if (rc == 0 && !take_line(role, sizeof(role), call))
        rc = tierce__aws_refuse(why, TIERCE_E_REFUSED, "the EC2 instance has no IAM role");
    if (rc == 0) {
        tierce__s3_encode(encoded, sizeof(encoded), role, false);
        snprintf(url, sizeof(url), "%s" INSTANCE_PATH "%s", base, encoded);
        set_header(call, "X-aws-ec2-metadata-token", session);
        rc = ask(call, whom, why);
    }
    explicit_bzero(session, sizeof(session));
    return rc == 0 ? tierce__aws_take_json(out, expires_s, call->answer.body, call->answer.bytes,
                                           whom, why)
                   : rc;
}

int tierce__aws_login_fetch(struct tierce__aws_login *login, struct tierce__s3_credentials *out,
                            uint64_t *expires_s, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    static int (*const fetches[])(struct login_call *, struct tierce__s3_credentials *, uint64_t *,
                                  char *) = {[TIERCE__AWS_WEB_IDENTITY] = fetch_web_identity,
                                             [TIERCE__AWS_SSO] = fetch_sso,
                                             [TIERCE__AWS_CONTAINER] = fetch_container,
                                             [TIERCE__AWS_INSTANCE] = fetch_instance};
    struct login_call call = {.login = login};
    TIERCE_DASSERT((size_t)login->source < sizeof(fetches) / sizeof(fetches[0]));
    *expires_s = 0;
    int rc = fetches[login->source](&call, out, expires_s, why);
    tierce__curl_answer_clear(&call.answer);
    return rc;
}

bool tierce__aws_login_is_instance(const struct tierce__aws_login *login)
{
    return login->source == TIERCE__AWS_INSTANCE;
}

void tierce__aws_login_free(struct tierce__aws_login *login)
{
    if (login == NULL)
        return;
    tierce__curl_destroy(login->client);
    tierce__free(login->token_file);
    explicit_bzero(login, sizeof(*login));
    tierce__free(login);
}
