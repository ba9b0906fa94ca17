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
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "store/remote/s3/aws_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define CONNECT_MS     1000L /* the metadata service is on the host, or does not exist */
#define CONNECT_FAR_MS 5000L
#define CALL_MS        10000L

#define INSTANCE_PATH "/latest/meta-data/iam/security-credentials/"

/* One HTTP request. */
struct call {
    struct tierce__aws_login *login;
    const char *method, *url, *body;
    struct curl_slist *headers;
    long http;
    size_t bytes;
    char answer[TIERCE__AWS_ANSWER_BYTES_MAX + TIERCE__JSON_SLACK];
};

/* ---- HTTP ------------------------------------------------------------------------------------ */

static size_t take_answer(char *data, size_t one, size_t bytes, void *arg)
{
    struct call *call = arg;
    (void)one;
    if (bytes > TIERCE__AWS_ANSWER_BYTES_MAX - call->bytes)
        return CURL_WRITEFUNC_ERROR;
    memcpy(call->answer + call->bytes, data, bytes);
    call->bytes += bytes;
    return bytes;
}

static bool add_header(struct call *call, const char *name, const char *value)
{
    size_t room = strlen(name) + strlen(value) + 3;
    char *line = tierce__alloc(room);
    if (line == NULL)
        return false;
    snprintf(line, room, "%s: %s", name, value);
    struct curl_slist *list = curl_slist_append(call->headers, line);
    explicit_bzero(line, room);
    tierce__free(line);
    call->headers = list != NULL ? list : call->headers;
    return list != NULL;
}

/* No redirect is followed, and no proxy is used. */
static void set_options(CURL *easy, struct call *call)
{
    const struct tierce__aws_login *login = call->login;
    bool is_near = login->source == TIERCE__AWS_INSTANCE || login->source == TIERCE__AWS_CONTAINER;
    curl_easy_setopt(easy, CURLOPT_URL, call->url);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "tierce");
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call->method);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, is_near ? CONNECT_MS : CONNECT_FAR_MS);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, CALL_MS);
    curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, call->headers);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_answer);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, call);
    if (login->ca_file != NULL)
        curl_easy_setopt(easy, CURLOPT_CAINFO, login->ca_file);
    if (call->body != NULL)
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call->body);
}

/* Blocks until the answer, the time limit, or tierce__aws_login_stop. */
static CURLcode perform(struct tierce__aws_login *login, CURL *easy)
{
    CURLcode code = CURLE_ABORTED_BY_CALLBACK;
    int running = 1, left;
    if (curl_multi_add_handle(login->multi, easy) != CURLM_OK)
        return CURLE_OUT_OF_MEMORY;
    while (running > 0 && !atomic_load(&login->ends)) {
        curl_multi_perform(login->multi, &running);
        if (running > 0)
            curl_multi_poll(login->multi, NULL, 0, 1000, NULL);
    }
    for (CURLMsg *message; (message = curl_multi_info_read(login->multi, &left)) != NULL;)
        code = message->msg == CURLMSG_DONE ? message->data.result : code;
    curl_multi_remove_handle(login->multi, easy);
    return code;
}

/* Returns 0 for an answer with any HTTP status. */
static int run(struct call *call, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    CURL *easy = curl_easy_init();
    if (easy == NULL)
        return tierce__aws_refuse(why, -ENOMEM, "no memory");
    call->bytes = 0;
    call->http = 0;
    set_options(easy, call);
    CURLcode code = perform(call->login, easy);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &call->http);
    curl_easy_cleanup(easy);
    curl_slist_free_all(call->headers);
    call->headers = NULL;
    memset(call->answer + call->bytes, 0, TIERCE__JSON_SLACK);
    if (atomic_load(&call->login->ends))
        return tierce__aws_refuse(why, TIERCE_E_CANCELLED, "the connector is being closed");
    return code == CURLE_OK ? 0
           : code == CURLE_WRITE_ERROR
               ? tierce__aws_refuse(why, TIERCE_E_FORMAT, "the answer exceeds 64 KiB")
               : tierce__aws_refuse(why, TIERCE_E_DOWN, curl_easy_strerror(code));
}

/* The same, but a status other than 200 is an error. `whom` names the service in messages. */
static int ask(struct call *call, const char *whom, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char text[TIERCE__CONNECTOR_WHY_BYTES];
    int rc = run(call, text);
    if (rc == 0 && call->http == 200)
        return 0;
    if (rc == 0)
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "AWS credentials: %s: HTTP status %ld", whom,
                 call->http);
    else
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "%.150s (%s)", text, whom);
    if (rc != 0)
        return rc;
    return call->http >= 400 && call->http < 500 && call->http != 429 ? TIERCE_E_REFUSED
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
static int fetch_web_identity(struct call *call, struct tierce__s3_credentials *out,
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
        call->method = "POST";
        call->url = login->url;
        call->body = body;
        rc = ask(call, "STS", why);
    }
    if (rc == 0)
        rc = tierce__aws_take_xml(out, expires_s, call->answer, call->bytes, why);
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

static int fetch_sso(struct call *call, struct tierce__s3_credentials *out, uint64_t *expires_s,
                     char why[TIERCE__CONNECTOR_WHY_BYTES])
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
        call->method = "GET";
        call->url = url;
        rc = add_header(call, "x-amz-sso_bearer_token", token->access)
                 ? ask(call, "SSO", why)
                 : tierce__aws_refuse(why, -ENOMEM, "no memory");
    }
    if (rc == 0)
        rc = tierce__aws_take_json(out, expires_s, call->answer, call->bytes, "SSO", why);
    if (token != NULL)
        explicit_bzero(token, sizeof(*token));
    tierce__free(token);
    return rc;
}

/* ---- the machine ----------------------------------------------------------------------------- */

static int fetch_container(struct call *call, struct tierce__s3_credentials *out,
                           uint64_t *expires_s, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const struct tierce__aws_login *login = call->login;
    char *token = login->token_file != NULL ? read_token(login->token_file, why) : NULL;
    const char *text = token != NULL ? token : login->token;
    int rc = login->token_file != NULL && token == NULL ? TIERCE_E_REFUSED : 0;
    if (rc == 0 && strpbrk(text, "\r\n") != NULL)
        rc = tierce__aws_refuse(why, TIERCE_E_REFUSED,
                                "the container's authorization token contains a line break");
    if (rc == 0 && text[0] != '\0' && !add_header(call, "Authorization", text))
        rc = tierce__aws_refuse(why, -ENOMEM, "no memory");
    if (token != NULL)
        explicit_bzero(token, strlen(token));
    tierce__free(token);
    call->method = "GET";
    call->url = login->url;
    if (rc == 0)
        rc = ask(call, "the container's agent", why);
    return rc == 0 ? tierce__aws_take_json(out, expires_s, call->answer, call->bytes,
                                           "the container's agent", why)
                   : rc;
}

/* Takes the first line of an answer; false if it contains a character that a URL cannot. */
static bool take_line(char *out, size_t room, const struct call *call)
{
    size_t bytes = strcspn(call->answer, "\r\n");
    if (bytes == 0 || bytes >= room)
        return false;
    memcpy(out, call->answer, bytes);
    out[bytes] = '\0';
    for (size_t i = 0; i < bytes; i++) {
        if (out[i] <= ' ' || out[i] >= 0x7f)
            return false;
    }
    return true;
}

/* A GET with the token of the metadata service. */
static int ask_instance(struct call *call, const char *session, const char *whom,
                        char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    return add_header(call, "X-aws-ec2-metadata-token", session)
               ? ask(call, whom, why)
               : tierce__aws_refuse(why, -ENOMEM, "no memory");
}

static int fetch_instance(struct call *call, struct tierce__s3_credentials *out,
                          uint64_t *expires_s, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char whom[] = "the EC2 metadata service";
    const char *base = call->login->url;
    char url[8 * TIERCE__AWS_TEXT_BYTES], session[1024], role[TIERCE__AWS_TEXT_BYTES],
        encoded[3 * TIERCE__AWS_TEXT_BYTES];
    snprintf(url, sizeof(url), "%s/latest/api/token", base);
    call->method = "PUT";
    call->url = url;
    if (!add_header(call, "X-aws-ec2-metadata-token-ttl-seconds", "21600"))
        return tierce__aws_refuse(why, -ENOMEM, "no memory");
    int rc = ask(call, whom, why);
    if (rc == 0 && !take_line(session, sizeof(session), call))
        rc = tierce__aws_refuse(why, TIERCE_E_FORMAT,
                                "the EC2 metadata service sent no valid token");
    call->method = "GET";
    snprintf(url, sizeof(url), "%s" INSTANCE_PATH, base);
    if (rc == 0)
        rc = ask_instance(call, session, whom, why);
    if (rc == 0 && !take_line(role, sizeof(role), call))
        rc = tierce__aws_refuse(why, TIERCE_E_REFUSED, "the EC2 instance has no IAM role");
    if (rc == 0) {
        tierce__s3_encode(encoded, sizeof(encoded), role, false);
        snprintf(url, sizeof(url), "%s" INSTANCE_PATH "%s", base, encoded);
        rc = ask_instance(call, session, whom, why);
    }
    explicit_bzero(session, sizeof(session));
    return rc == 0 ? tierce__aws_take_json(out, expires_s, call->answer, call->bytes, whom, why)
                   : rc;
}

int tierce__aws_login_fetch(struct tierce__aws_login *login, struct tierce__s3_credentials *out,
                            uint64_t *expires_s, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static int (*const fetches[])(struct call *, struct tierce__s3_credentials *, uint64_t *,
                                  char *) = {[TIERCE__AWS_WEB_IDENTITY] = fetch_web_identity,
                                             [TIERCE__AWS_SSO] = fetch_sso,
                                             [TIERCE__AWS_CONTAINER] = fetch_container,
                                             [TIERCE__AWS_INSTANCE] = fetch_instance};
    struct call *call = tierce__calloc(1, sizeof(*call));
    *expires_s = 0;
    if (call == NULL)
        return tierce__aws_refuse(why, -ENOMEM, "no memory");
    call->login = login;
    int rc = fetches[login->source](call, out, expires_s, why);
    curl_slist_free_all(call->headers);
    explicit_bzero(call, sizeof(*call));
    tierce__free(call);
    return rc;
}

/* ---- waiting --------------------------------------------------------------------------------- */

void tierce__aws_login_wait(struct tierce__aws_login *login, uint32_t ms)
{
    if (!atomic_load(&login->ends))
        curl_multi_poll(login->multi, NULL, 0, ms < INT32_MAX ? (int)ms : INT32_MAX, NULL);
}

void tierce__aws_login_wake(struct tierce__aws_login *login)
{
    curl_multi_wakeup(login->multi);
}

void tierce__aws_login_stop(struct tierce__aws_login *login)
{
    atomic_store(&login->ends, true);
    curl_multi_wakeup(login->multi);
}

bool tierce__aws_login_is_instance(const struct tierce__aws_login *login)
{
    return login->source == TIERCE__AWS_INSTANCE;
}

void tierce__aws_login_free(struct tierce__aws_login *login)
{
    if (login == NULL)
        return;
    if (login->multi != NULL)
        curl_multi_cleanup(login->multi);
    tierce__free(login->token_file);
    explicit_bzero(login, sizeof(*login));
    tierce__free(login);
}
