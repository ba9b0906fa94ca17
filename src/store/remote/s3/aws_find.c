/* SPDX-License-Identifier: Apache-2.0 */
/* Where credentials come from: the environment and the files of AWS's tools. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/file.h"
#include "net/loopback.h"
#include "base/text/url.h"
#include "store/remote/s3/aws_private.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_MS     1000u /* the metadata service is on the host, or does not exist */
#define CONNECT_FAR_MS 5000u
#define CALL_MS        10000u

#define INSTANCE_URL  "http://169.254.169.254"
#define CONTAINER_URL "http://169.254.170.2"

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static bool copy(char *out, size_t room, const char *text)
{
    size_t bytes = strlen(text);
    if (bytes >= room)
        return false;
    memcpy(out, text, bytes + 1);
    return true;
}

/* The address of a service, without a trailing '/': the one set for this service, the one set for
 * all services, or AWS's own. */
static bool take_endpoint(struct tierce__aws_login *login, const char *variable,
                          const char *otherwise)
{
    const char *given = environment(variable);
    if (given == NULL && strncmp(variable, "AWS_ENDPOINT_URL_", 17) == 0)
        given = environment("AWS_ENDPOINT_URL");
    bool ok = copy(login->url, sizeof(login->url), given != NULL ? given : otherwise);
    size_t bytes = strlen(login->url);
    while (bytes > 0 && login->url[bytes - 1] == '/')
        login->url[--bytes] = '\0';
    return ok &&
           (strncmp(login->url, "https://", 8) == 0 || strncmp(login->url, "http://", 7) == 0);
}

static int find_web_identity(struct tierce__aws_login *login, const char *role, const char *file,
                             const char *session, const char *region,
                             char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char url[128];
    login->source = TIERCE__AWS_WEB_IDENTITY;
    snprintf(url, sizeof(url), "https://sts.%s.amazonaws.com", region);
    if (!copy(login->role, sizeof(login->role), role) ||
        !copy(login->session, sizeof(login->session), session != NULL ? session : "tierce") ||
        !take_endpoint(login, "AWS_ENDPOINT_URL_STS", url))
        return tierce__aws_refuse(
            why, TIERCE_E_CONFIG,
            "the role ARN, the role session name or the address of STS is invalid or too long");
    size_t bytes = strlen(login->url);
    snprintf(login->url + bytes, sizeof(login->url) - bytes, "/");
    login->token_file = tierce__strdup(file);
    return login->token_file != NULL ? 0 : tierce__aws_refuse(why, -ENOMEM, "no memory");
}

/* ~/.aws/sso/cache/SHA1.json: SHA1 of the session's name or, without one, of the start URL. */
static char *sso_path(const char *session)
{
    uint8_t sum[EVP_MAX_MD_SIZE];
    unsigned bytes = 0;
    char name[32 + 2 * EVP_MAX_MD_SIZE] = ".aws/sso/cache/";
    size_t used = strlen(name);
    if (EVP_Digest(session, strlen(session), sum, &bytes, EVP_sha1(), NULL) != 1)
        return NULL;
    for (unsigned i = 0; i < bytes; i++)
        used += (size_t)snprintf(name + used, sizeof(name) - used, "%02x", sum[i]);
    snprintf(name + used, sizeof(name) - used, ".json");
    return tierce__aws_path("", name);
}

/* The settings of a profile in the configuration file. */
enum setting {
    ROLE_ARN,
    TOKEN_FILE,
    SESSION_NAME,
    SSO_SESSION,
    SSO_START_URL,
    SSO_REGION,
    SSO_ACCOUNT,
    SSO_ROLE,
    SETTINGS
};

static int find_sso(struct tierce__aws_login *login, char *again, const char **values,
                    char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char *const of_session[] = {"sso_region"};
    char section[TIERCE__AWS_TEXT_BYTES], url[128];
    const char *name = values[SSO_SESSION], *region = values[SSO_REGION];
    login->source = TIERCE__AWS_SSO;
    if (name != NULL) {
        snprintf(section, sizeof(section), "sso-session %s", name);
        (void)tierce__aws_section(again, section, of_session, &region, 1);
    } else {
        name = values[SSO_START_URL];
    }
    if (region == NULL || values[SSO_ACCOUNT] == NULL || values[SSO_ROLE] == NULL)
        return tierce__aws_refuse(
            why, TIERCE_E_CONFIG,
            "an SSO profile requires sso_region, sso_account_id and sso_role_name");
    snprintf(url, sizeof(url), "https://portal.sso.%.60s.amazonaws.com", region);
    if (!copy(login->role, sizeof(login->role), values[SSO_ROLE]) ||
        !copy(login->account, sizeof(login->account), values[SSO_ACCOUNT]) ||
        strspn(login->account, "0123456789") != strlen(login->account) ||
        strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(region) ||
        !take_endpoint(login, "AWS_ENDPOINT_URL_SSO", url))
        return tierce__aws_refuse(
            why, TIERCE_E_CONFIG,
            "sso_region, sso_account_id, sso_role_name or the address of SSO is invalid "
            "or too long");
    login->token_file = sso_path(name);
    return login->token_file != NULL ? 0 : tierce__aws_refuse(why, -ENOMEM, "no memory");
}

/* Returns 0 with *found false if the profile has no web identity and no SSO. */
static int find_in_profile(struct tierce__aws_login *login, bool *found, const char *profile,
                           const char *region, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char *const names[SETTINGS] = {"role_arn",          "web_identity_token_file",
                                                "role_session_name", "sso_session",
                                                "sso_start_url",     "sso_region",
                                                "sso_account_id",    "sso_role_name"};
    const char *values[SETTINGS] = {NULL};
    char section[96], *text = NULL, *path = tierce__aws_path("AWS_CONFIG_FILE", ".aws/config");
    size_t bytes = 0;
    bool is_default = strcmp(profile, "default") == 0;
    *found = false;
    int rc =
        path != NULL ? tierce__read_file(&text, &bytes, path, TIERCE__AWS_FILE_BYTES_MAX) : -ENOMEM;
    tierce__free(path);
    if (rc != 0)
        return rc == -ENOMEM ? tierce__aws_refuse(why, rc, "no memory") : 0;
    char *again = tierce__strdup(text);
    snprintf(section, sizeof(section), "%s%.64s", is_default ? "" : "profile ", profile);
    rc = again != NULL ? 0 : tierce__aws_refuse(why, -ENOMEM, "no memory");
    if (rc == 0)
        (void)tierce__aws_section(text, section, names, values, SETTINGS);
    for (size_t i = 0; i < SETTINGS; i++)
        values[i] = values[i] != NULL && values[i][0] != '\0' ? values[i] : NULL;
    *found = true;
    if (rc == 0 && values[ROLE_ARN] != NULL && values[TOKEN_FILE] != NULL)
        rc = find_web_identity(login, values[ROLE_ARN], values[TOKEN_FILE], values[SESSION_NAME],
                               region, why);
    else if (rc == 0 && (values[SSO_SESSION] != NULL || values[SSO_START_URL] != NULL))
        rc = find_sso(login, again, values, why);
    else
        *found = false;
    explicit_bzero(text, bytes);
    tierce__free(text);
    if (again != NULL)
        explicit_bzero(again, bytes);
    tierce__free(again);
    return rc;
}

/* Plain HTTP is accepted only for this machine and for the addresses of AWS's agents. */
static bool may_be_asked(const char *url)
{
    static const char *const agents[] = {"169.254.170.2", "169.254.170.23", "fd00:ec2::23"};
    char why[TIERCE__URL_WHY_BYTES];
    struct tierce__url parsed = {0};
    if (tierce__url_parse(&parsed, url, why) != 0)
        return false;
    bool ok =
        parsed.host_count == 1 && parsed.user == NULL &&
        (strcmp(parsed.scheme, "https") == 0 ||
         (strcmp(parsed.scheme, "http") == 0 && tierce__is_loopback_host(parsed.hosts[0].name)));
    for (size_t i = 0; i < sizeof(agents) / sizeof(*agents) && parsed.host_count == 1; i++)
        ok |= strcmp(parsed.scheme, "http") == 0 && strcmp(parsed.hosts[0].name, agents[i]) == 0;
    tierce__url_clear(&parsed);
    return ok;
}

static int find_container(struct tierce__aws_login *login, const char *relative, const char *full,
                          char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const char *file = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    const char *token = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    login->source = TIERCE__AWS_CONTAINER;
    int bytes = relative != NULL
                    ? snprintf(login->url, sizeof(login->url), CONTAINER_URL "%s", relative)
                    : snprintf(login->url, sizeof(login->url), "%s", full);
    if ((size_t)bytes >= sizeof(login->url) || (relative != NULL && relative[0] != '/') ||
        (relative == NULL && !may_be_asked(full)))
        return tierce__aws_refuse(
            why, TIERCE_E_CONFIG,
            relative != NULL ? "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI must begin with '/' and "
                               "have at most 491 bytes"
                             : "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https:// or on "
                               "this machine, and have at most 511 bytes");
    if (file == NULL && token != NULL && !copy(login->token, sizeof(login->token), token))
        return tierce__aws_refuse(why, TIERCE_E_CONFIG,
                                  "AWS_CONTAINER_AUTHORIZATION_TOKEN exceeds 2047 bytes");
    login->token_file = file != NULL ? tierce__strdup(file) : NULL;
    return file == NULL || login->token_file != NULL
               ? 0
               : tierce__aws_refuse(why, -ENOMEM, "no memory");
}

static int find_instance(struct tierce__aws_login *login, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const char *mode = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
    bool is_six = mode != NULL && strcasecmp(mode, "IPv6") == 0;
    login->source = TIERCE__AWS_INSTANCE;
    return take_endpoint(login, "AWS_EC2_METADATA_SERVICE_ENDPOINT",
                         is_six ? "http://[fd00:ec2::254]" : INSTANCE_URL)
               ? 0
               : tierce__aws_refuse(
                     why, TIERCE_E_CONFIG,
                     "AWS_EC2_METADATA_SERVICE_ENDPOINT must be an http:// or https:// address");
}

static int find(struct tierce__aws_login *login, bool *found, enum tierce__aws_place place,
                const char *profile, const char *region, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const char *role = environment("AWS_ROLE_ARN");
    const char *file = environment("AWS_WEB_IDENTITY_TOKEN_FILE");
    const char *relative = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    const char *full = environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    const char *off = environment("AWS_EC2_METADATA_DISABLED");
    *found = true;
    if (place == TIERCE__AWS_IDENTITY && profile == NULL && role != NULL && file != NULL)
        return find_web_identity(login, role, file, environment("AWS_ROLE_SESSION_NAME"), region,
                                 why);
    if (place == TIERCE__AWS_IDENTITY && profile != NULL)
        return find_in_profile(login, found, profile, region, why);
    if (place == TIERCE__AWS_MACHINE && (relative != NULL || full != NULL))
        return find_container(login, relative, full, why);
    if (place == TIERCE__AWS_MACHINE && (off == NULL || strcasecmp(off, "true") != 0))
        return find_instance(login, why);
    *found = false;
    return 0;
}

static int make_client(struct tierce__aws_login *login)
{
    bool is_near = login->source == TIERCE__AWS_INSTANCE || login->source == TIERCE__AWS_CONTAINER;
    TIERCE_DASSERT(login->client == NULL);
    return tierce__curl_create(
        &login->client,
        &(struct tierce__curl_opts){.ca_file = environment("AWS_CA_BUNDLE"),
                                    .connect_ms = is_near ? CONNECT_MS : CONNECT_FAR_MS,
                                    .timeout_ms = CALL_MS,
                                    .closes = true});
}

int tierce__aws_login_find(struct tierce__aws_login **out, enum tierce__aws_place place,
                           const char *profile, const char *region,
                           char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__aws_login *login = tierce__calloc(1, sizeof(*login));
    bool found = false;
    *out = NULL;
    if (login == NULL)
        return tierce__aws_refuse(why, -ENOMEM, "no memory");
    int rc = find(login, &found, place, profile, region, why);
    if (rc == 0 && found && make_client(login) != 0)
        rc = tierce__aws_refuse(why, -ENOMEM, "no memory");
    if (rc == 0 && found)
        *out = login;
    else
        tierce__aws_login_free(login);
    return rc;
}
