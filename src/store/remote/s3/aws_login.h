/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_AWS_LOGIN_H
#define TIERCE_CONNECTOR_AWS_LOGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/remote/connector.h"

/*
 * Fetches temporary AWS credentials from one of these sources:
 *
 *     web identity  STS, with a role and a token file (EKS with IAM roles for service accounts)
 *     SSO           the role of a profile, with the token file of `aws sso login`
 *     container     a URL in the environment (ECS; EKS with Pod Identity)
 *     instance      the EC2 metadata service, with session tokens (IMDSv2) only
 *
 *     rc = tierce__aws_login_find(&login, profile, region, why);
 *     rc = tierce__aws_login_fetch(login, &credentials, &expires_s, why);    // blocks
 *
 * Environment variables, settings and files have the names that AWS defines. `why` never contains
 * a credential or a token. Thread: one at a time per login.
 */

#define TIERCE__S3_ACCESS_MAX 128u
#define TIERCE__S3_SECRET_MAX 256u
#define TIERCE__S3_TOKEN_MAX  8192u

struct tierce__s3_credentials {
    char access_key[TIERCE__S3_ACCESS_MAX + 1];
    char secret_key[TIERCE__S3_SECRET_MAX + 1];
    char token[TIERCE__S3_TOKEN_MAX + 1]; /* "" for none */
};

/* Copies the three values. Returns false if one is too long or contains a blank or an unprintable
 * character. `token` may be NULL. */
bool tierce__s3_take_credentials(struct tierce__s3_credentials *out, const char *access,
                                 const char *secret, const char *token);

struct tierce__aws_login;

enum tierce__aws_place {
    TIERCE__AWS_IDENTITY, /* web identity by the environment; SSO or web identity by the profile */
    TIERCE__AWS_MACHINE,  /* container by the environment, or else the instance */
};

/*
 * Looks for a login at `place`. *out is NULL if none is configured; an instance requires no
 * configuration. Reads the environment and files; sends nothing. If `profile` is NULL, only the
 * environment is read. Errors: TIERCE_E_CONFIG (the configuration is incomplete or invalid),
 * -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__aws_login_find(struct tierce__aws_login **out,
                                          enum tierce__aws_place place, const char *profile,
                                          const char *region,
                                          char why[TIERCE__CONNECTOR_WHY_BYTES]);

/* Accepts NULL. */
void tierce__aws_login_free(struct tierce__aws_login *login);

/* Whether the source is the EC2 metadata service, which may not exist on this host. */
bool tierce__aws_login_is_instance(const struct tierce__aws_login *login);

/* Fetches credentials. *expires_s: seconds since 1970, 0 for never. Each HTTP request blocks for at
 * most 10 s, or until tierce__curl_stop on its client (aws_private.h). Errors: TIERCE_E_DOWN (no
 * answer), TIERCE_E_REFUSED, TIERCE_E_FORMAT, TIERCE_E_CANCELLED, -ENOMEM. */
TIERCE_MUSTUSE int tierce__aws_login_fetch(struct tierce__aws_login *login,
                                           struct tierce__s3_credentials *out, uint64_t *expires_s,
                                           char why[TIERCE__CONNECTOR_WHY_BYTES]);

/* ---- aws_file.c: the files of AWS's tools ---- */

/* Reads values from section "[name]" of a file's text, which it modifies. values[i] is unchanged if
 * names[i] is absent. Returns false if the section is absent. */
bool tierce__aws_section(char *text, const char *section, const char *const *names,
                         const char **values, size_t count);

/* The path in the environment variable, or `in_home` below the home folder; heap. NULL: no
 * memory. */
char *tierce__aws_path(const char *variable, const char *in_home);

#endif
