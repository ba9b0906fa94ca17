/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of AWS's services, which may be malformed in any way. */
#include "base/json/json.h"
#include "base/assert.h"
#include "store/remote/s3/aws_private.h"
#include "store/remote/s3/s3_xml.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* The fields read from an answer. */
struct aws_answer {
    char access[TIERCE__S3_ACCESS_MAX + 2], secret[TIERCE__S3_SECRET_MAX + 2];
    char token[TIERCE__S3_TOKEN_MAX + 2];
    char expires[40]; /* "2026-11-23T10:00:00Z" */
    uint64_t expires_ms;
};

/* The source of an answer, and the buffer for its error. */
struct aws_report {
    const char *whom;
    char *why; /* [TIERCE__CONNECTOR_WHY_BYTES] */
};

uint64_t tierce__aws_time(const char *text)
{
    struct tm tm = {0};
    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour,
               &tm.tm_min, &tm.tm_sec) != 6)
        return 0;
    tm.tm_year -= 1900;
    tm.tm_mon--;
    time_t seconds = timegm(&tm);
    return seconds > 0 ? (uint64_t)seconds : 0;
}

static int malformed(const struct aws_report *report, const char *what)
{
    snprintf(report->why, TIERCE__CONNECTOR_WHY_BYTES, "AWS credentials: %s: %s", report->whom,
             what);
    return TIERCE_E_FORMAT;
}

static int take(const struct aws_report *report, const struct aws_answer *answer,
                struct tierce__s3_credentials *out, uint64_t *expires_s)
{
    uint64_t seconds =
        answer->expires_ms > 0 ? answer->expires_ms / 1000 : tierce__aws_time(answer->expires);
    if (answer->access[0] == '\0')
        return malformed(report, "the answer has no AccessKeyId");
    if (answer->secret[0] == '\0')
        return malformed(report, "the answer has no SecretAccessKey");
    if (seconds == 0 && answer->expires[0] != '\0')
        return malformed(report, "Expiration is not a time");
    if (!tierce__s3_take_credentials(out, answer->access, answer->secret, answer->token))
        return malformed(report, "the credentials are too long, or contain a blank or an "
                                 "unprintable character");
    *expires_s = seconds;
    return 0;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static bool is_name(const struct tierce__text *name, const char *text)
{
    return name->length == strlen(text) && strncasecmp(name->at, text, name->length) == 0;
}

/* Takes a text; null is the same as no member. */
static int take_text(const struct aws_report *report, struct tierce__json *json, char *out,
                     size_t room, const char *name)
{
    TIERCE_DASSERT(room > 2);
    char text[96];
    size_t length;
    char kind = tierce__json_kind(json);
    if (kind == 'n' && tierce__json_skip(json))
        return 0;
    if (kind == '"' && tierce__json_text(json, out, room - 1, &length))
        return 0;
    snprintf(text, sizeof(text), "%s must be a string of at most %zu bytes", name, room - 2);
    return malformed(report, text);
}

/* A text, or milliseconds since 1970. */
static int take_expiration(const struct aws_report *report, struct tierce__json *json,
                           struct aws_answer *answer)
{
    size_t length;
    char kind = tierce__json_kind(json);
    bool good = kind == 'n' ? tierce__json_skip(json)
                : kind == '"'
                    ? tierce__json_text(json, answer->expires, sizeof(answer->expires), &length)
                    : tierce__json_u64(json, &answer->expires_ms);
    return good ? 0 : malformed(report, "Expiration is not a time");
}

static int take_members(const struct aws_report *report, struct tierce__json *json,
                        struct aws_answer *answer, bool is_inner);

static int take_member(const struct aws_report *report, struct tierce__json *json,
                       const struct tierce__text *name, struct aws_answer *answer, bool is_inner)
{
    if (is_name(name, "AccessKeyId"))
        return take_text(report, json, answer->access, sizeof(answer->access), "AccessKeyId");
    if (is_name(name, "SecretAccessKey"))
        return take_text(report, json, answer->secret, sizeof(answer->secret), "SecretAccessKey");
    if (is_name(name, "Token"))
        return take_text(report, json, answer->token, sizeof(answer->token), "Token");
    if (is_name(name, "SessionToken"))
        return take_text(report, json, answer->token, sizeof(answer->token), "SessionToken");
    if (is_name(name, "Expiration"))
        return take_expiration(report, json, answer);
    if (!is_name(name, "roleCredentials") || is_inner) {
        (void)tierce__json_skip(json);
        return 0;
    }
    return tierce__json_kind(json) == '{' ? take_members(report, json, answer, true)
                                          : malformed(report, "roleCredentials must be an object");
}

/* Reads the members of a credentials object, whatever their case; other members are ignored. */
static int take_members(const struct aws_report *report, struct tierce__json *json,
                        struct aws_answer *answer, bool is_inner)
{
    struct tierce__text name;
    int rc = 0;
    if (!tierce__json_object(json))
        return malformed(report, "the answer is not a JSON object");
    while (rc == 0 && tierce__json_member(json, &name))
        rc = take_member(report, json, &name, answer, is_inner);
    return rc < 0 ? rc : json->why != NULL ? malformed(report, "the answer is not valid JSON") : 0;
}

int tierce__aws_take_json(struct tierce__s3_credentials *out, uint64_t *expires_s, const char *text,
                          size_t bytes, const char *whom, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct aws_report report = {whom, why};
    struct aws_answer answer = {.access = ""};
    struct tierce__json json;
    tierce__json_start(&json, text, bytes);
    int rc = take_members(&report, &json, &answer, false);
    if (rc == 0)
        rc = take(&report, &answer, out, expires_s);
    explicit_bzero(&answer, sizeof(answer));
    return rc;
}

bool tierce__aws_read_sso(struct tierce__aws_sso_token *out, const char *text, size_t bytes)
{
    struct tierce__json json;
    struct tierce__text name;
    size_t length;
    tierce__json_start(&json, text, bytes);
    if (!tierce__json_object(&json))
        return false;
    while (tierce__json_member(&json, &name)) {
        if (is_name(&name, "accessToken"))
            (void)tierce__json_text(&json, out->access, sizeof(out->access), &length);
        else if (is_name(&name, "expiresAt"))
            (void)tierce__json_text(&json, out->expires, sizeof(out->expires), &length);
        else
            (void)tierce__json_skip(&json);
    }
    return json.why == NULL && out->access[0] != '\0';
}

/* ---- XML ------------------------------------------------------------------------------------- */

int tierce__aws_take_xml(struct tierce__s3_credentials *out, uint64_t *expires_s, const char *text,
                         size_t bytes, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
#define IN_STS "AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/Credentials/"
    struct aws_report report = {"STS", why};
    struct aws_answer answer = {.access = ""};
    const struct {
        const char *path;
        char *text;
        size_t room;
    } wanted[] = {{IN_STS "AccessKeyId", answer.access, sizeof(answer.access)},
                  {IN_STS "SecretAccessKey", answer.secret, sizeof(answer.secret)},
                  {IN_STS "SessionToken", answer.token, sizeof(answer.token)},
                  {IN_STS "Expiration", answer.expires, sizeof(answer.expires)}};
#undef IN_STS
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        if (tierce__s3_xml_find(wanted[i].text, wanted[i].room, text, bytes, wanted[i].path) != 0)
            wanted[i].text[0] = '\0';
    }
    int rc = take(&report, &answer, out, expires_s);
    explicit_bzero(&answer, sizeof(answer));
    return rc;
}
