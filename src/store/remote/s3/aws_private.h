/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_AWS_PRIVATE_H
#define TIERCE_CONNECTOR_AWS_PRIVATE_H

#include <stdio.h>

#include "net/http_client.h"
#include "store/remote/s3/aws_login.h"
#include "store/remote/s3/s3_private.h"

/*
 * Shared by the files of AWS credentials: aws_find.c reads the environment and the configuration
 * for a source, aws_login.c sends its requests, aws_answer.c reads the answers.
 */

#define TIERCE__AWS_TEXT_BYTES       512u
#define TIERCE__AWS_TOKEN_BYTES_MAX  (16u << 10) /* of an identity token */
#define TIERCE__AWS_ANSWER_BYTES_MAX (64u << 10)
#define TIERCE__AWS_FILE_BYTES_MAX   (1u << 20)

enum tierce__aws_source {
    TIERCE__AWS_WEB_IDENTITY,
    TIERCE__AWS_SSO,
    TIERCE__AWS_CONTAINER,
    TIERCE__AWS_INSTANCE
};

struct tierce__aws_login {
    enum tierce__aws_source source;
    char url[TIERCE__AWS_TEXT_BYTES];  /* of the service */
    char role[TIERCE__AWS_TEXT_BYTES]; /* its ARN; SSO: its name */
    char account[32];                  /* SSO */
    char session[72];                  /* web identity: the name of the session */
    char *token_file; /* the identity, SSO's token, or the container's; owned, or NULL */
    char token[TIERCE__AWS_TEXT_BYTES * 4]; /* the container's token, if the environment has it */
    struct tierce__curl *client;
};

/* Writes the reason of an error and returns `status`. */
static inline int tierce__aws_refuse(char why[TIERCE__CONNECTOR_WHY_BYTES], int status,
                                     const char *what)
{
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "AWS credentials: %.200s", what);
    return status;
}

/* ---- aws_answer.c ---------------------------------------------------------------------------- */

/* Seconds since 1970; 0 if the text is not a time. */
uint64_t tierce__aws_time(const char *text);

/* Takes the credentials from an answer in JSON, which TIERCE__JSON_SLACK zeroes follow, or in the
 * XML of STS. *expires_s is 0 if they have no expiry. `whom` names the service. Errors:
 * TIERCE_E_FORMAT. */
TIERCE_MUSTUSE int tierce__aws_take_json(struct tierce__s3_credentials *out, uint64_t *expires_s,
                                         const char *text, size_t bytes, const char *whom,
                                         char why[TIERCE__CONNECTOR_WHY_BYTES]);
TIERCE_MUSTUSE int tierce__aws_take_xml(struct tierce__s3_credentials *out, uint64_t *expires_s,
                                        const char *text, size_t bytes,
                                        char why[TIERCE__CONNECTOR_WHY_BYTES]);

struct tierce__aws_sso_token {
    char access[TIERCE__AWS_TOKEN_BYTES_MAX], expires[40];
};

/* Reads the file of `aws sso login`, which TIERCE__JSON_SLACK zeroes follow. Returns false if it
 * has no token. */
bool tierce__aws_read_sso(struct tierce__aws_sso_token *out, const char *text, size_t bytes);

#endif
