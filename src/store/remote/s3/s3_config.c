/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/file.h"
#include "net/loopback.h"
#include "store/remote/s3/s3_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECTIONS    16u
#define PART_BYTES     (8ull << 20)
#define PART_BYTES_MIN (5ull << 20) /* S3's, of all parts but the last */
#define PART_BYTES_MAX (5ull << 30)
#define RETRIES        3u
#define CONNECT_MS     5000u
#define FILE_BYTES_MAX (1u << 20) /* of credentials */
#define REGION         "us-east-1"

static int refuse(char why[TIERCE__CONNECTOR_WHY_BYTES], const char *what)
{
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "%s", what);
    return TIERCE_E_CONFIG;
}

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* ---- credentials ----------------------------------------------------------------------------- */

/* Printable and without blanks, as a header can carry it. False: it is not, or too long. */
static bool take_secret(char *out, size_t room, const char *text)
{
    size_t bytes = strlen(text);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] <= ' ' || text[i] >= 0x7f)
            return false;
    }
    if (bytes >= room)
        return false;
    memcpy(out, text, bytes + 1);
    return true;
}

bool tierce__s3_take_credentials(struct tierce__s3_credentials *out, const char *access,
                                 const char *secret, const char *token)
{
    return take_secret(out->access_key, sizeof(out->access_key), access) &&
           take_secret(out->secret_key, sizeof(out->secret_key), secret) &&
           take_secret(out->token, sizeof(out->token), token != NULL ? token : "") &&
           access[0] != '\0' && secret[0] != '\0';
}

/* The three values of a profile; false if it has no keys. Changes the text. */
static bool find_profile(struct tierce__s3_credentials *out, char *text, const char *profile)
{
    static const char *const names[] = {"aws_access_key_id", "aws_secret_access_key",
                                        "aws_session_token"};
    const char *values[3] = {NULL, NULL, NULL};
    return tierce__aws_section(text, profile, names, values, 3) && values[0] != NULL &&
           values[1] != NULL && tierce__s3_take_credentials(out, values[0], values[1], values[2]);
}

/* Errors: TIERCE_E_CONFIG, -ENOMEM. */
static int read_credentials(struct tierce__s3_credentials *out, const char *path,
                            const char *profile, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char *text = NULL;
    size_t bytes = 0;
    int rc = tierce__read_file(&text, &bytes, path, FILE_BYTES_MAX);
    if (rc != 0) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "S3 credentials: %.128s: %s", path,
                 tierce_strerror(rc));
        return rc == -ENOMEM ? rc : TIERCE_E_CONFIG;
    }
    bool found = find_profile(out, text, profile);
    explicit_bzero(text, bytes);
    tierce__free(text);
    if (found)
        return 0;
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
             "S3 credentials: %.100s has no aws_access_key_id and aws_secret_access_key in "
             "[%.48s]",
             path, profile);
    return TIERCE_E_CONFIG;
}

/* The file that is named, or the one that everybody uses. */
static int find_file(struct tierce__s3_config *config, const struct tierce__url *url)
{
    const char *path = tierce__url_param(url, "credentials_file");
    const char *profile = tierce__url_param(url, "profile");
    if (profile == NULL)
        profile = environment("AWS_PROFILE");
    snprintf(config->profile, sizeof(config->profile), "%s", profile != NULL ? profile : "default");
    config->credentials_file =
        path != NULL ? tierce__strdup(path)
                     : tierce__aws_path("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
    return config->credentials_file != NULL ? 0 : -ENOMEM;
}

/* Reads the credentials file, then the profile in the configuration file. */
static int read_files(struct tierce__s3_config *config, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char other[TIERCE__CONNECTOR_WHY_BYTES], section[80];
    int rc = read_credentials(&config->credentials, config->credentials_file, config->profile, why);
    if (rc != TIERCE_E_CONFIG)
        return rc;
    char *path = tierce__aws_path("AWS_CONFIG_FILE", ".aws/config");
    if (path == NULL)
        return -ENOMEM;
    bool is_default = strcmp(config->profile, "default") == 0;
    snprintf(section, sizeof(section), "%s%s", is_default ? "" : "profile ", config->profile);
    if (read_credentials(&config->credentials, path, section, other) == 0)
        rc = 0;
    tierce__free(path);
    return rc;
}

/* The credentials of an instance are fetched at once: only the answer shows whether the service
 * exists. */
static int ask_machine(struct tierce__s3_config *config, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char text[TIERCE__CONNECTOR_WHY_BYTES];
    int rc = tierce__aws_login_find(&config->login, TIERCE__AWS_MACHINE, NULL, config->region, why);
    if (rc != 0 || (config->login != NULL && !tierce__aws_login_is_instance(config->login)))
        return rc;
    bool is_asked = config->login != NULL;
    if (is_asked)
        rc = tierce__aws_login_fetch(config->login, &config->credentials, &config->expires_s, text);
    if (is_asked && rc == 0)
        return 0;
    tierce__aws_login_free(config->login);
    config->login = NULL;
    if (is_asked && (rc != TIERCE_E_DOWN || strstr(text, "HTTP status") != NULL)) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "%.120s; there are no other S3 credentials: set AWS_ACCESS_KEY_ID and "
                 "AWS_SECRET_ACCESS_KEY, or ACCESS_KEY:SECRET_KEY@ in the URL",
                 text);
        return TIERCE_E_CONFIG;
    }
    return refuse(why,
                  "S3 credentials: none found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a "
                  "web identity, a profile with keys or SSO, a container's credentials, "
                  "an EC2 instance's role, or ACCESS_KEY:SECRET_KEY@ in the URL");
}

/* Searches in the order of AWS's SDKs. */
static int take_credentials(struct tierce__s3_config *config, const struct tierce__url *url,
                            char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__s3_credentials *out = &config->credentials;
    const char *access = environment("AWS_ACCESS_KEY_ID");
    const char *secret = environment("AWS_SECRET_ACCESS_KEY");
    bool is_named = tierce__url_param(url, "credentials_file") != NULL ||
                    tierce__url_param(url, "profile") != NULL;
    if (url->user != NULL) {
        return url->password != NULL &&
                       tierce__s3_take_credentials(out, url->user, url->password, NULL)
                   ? 0
                   : refuse(why, "URL: S3 requires ACCESS_KEY:SECRET_KEY before the '@'");
    }
    if (!is_named && access != NULL && secret != NULL) {
        return tierce__s3_take_credentials(out, access, secret, environment("AWS_SESSION_TOKEN"))
                   ? 0
                   : refuse(why, "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN "
                                 "cannot be used");
    }
    bool has_file = tierce__url_param(url, "credentials_file") != NULL;
    int rc = find_file(config, url);
    if (rc == 0 && !is_named)
        rc =
            tierce__aws_login_find(&config->login, TIERCE__AWS_IDENTITY, NULL, config->region, why);
    if (rc == 0 && config->login == NULL && !has_file)
        rc = tierce__aws_login_find(&config->login, TIERCE__AWS_IDENTITY, config->profile,
                                    config->region, why);
    if (rc != 0 || config->login != NULL)
        return rc;
    rc = read_files(config, why);
    return rc == TIERCE_E_CONFIG && !is_named ? ask_machine(config, why) : rc;
}

bool tierce__s3_renew_credentials(struct tierce__s3_config *config)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    struct tierce__s3_credentials *now = NULL;
    bool changed = false;
    if (config->credentials_file != NULL && config->login == NULL)
        now = tierce__calloc(1, sizeof(*now));
    if (now != NULL && read_credentials(now, config->credentials_file, config->profile, why) == 0) {
        changed = memcmp(now, &config->credentials, sizeof(*now)) != 0;
        config->credentials = *now;
    }
    if (now != NULL)
        explicit_bzero(now, sizeof(*now));
    tierce__free(now);
    return changed;
}

/* ---- place ----------------------------------------------------------------------------------- */

static bool is_bucket(const char *name)
{
    size_t bytes = strlen(name);
    return bytes >= 3 && bytes <= 63 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == bytes &&
           strchr(".-", name[0]) == NULL && strchr(".-", name[bytes - 1]) == NULL &&
           strstr(name, "..") == NULL;
}

/* The host as a URL and the header have it, and the port unless it is the scheme's. */
static void format_host(char *out, size_t room, const char *bucket,
                        const struct tierce__url_host *host, bool is_plain)
{
    char port[8] = "";
    bool in_brackets = strchr(host->name, ':') != NULL;
    if (host->port != 0 && host->port != (is_plain ? 80 : 443))
        snprintf(port, sizeof(port), ":%u", (unsigned)host->port);
    snprintf(out, room, "%s%s%s%s%s%s", bucket, bucket[0] != '\0' ? "." : "",
             in_brackets ? "[" : "", host->name, in_brackets ? "]" : "", port);
}

/* `endpoint`: the given one, or Amazon's. */
static int take_endpoint(struct tierce__s3_config *config, const struct tierce__url *url,
                         const struct tierce__url *endpoint, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const char *bucket = url->hosts[0].name;
    bool is_path = tierce__url_param(url, "endpoint") != NULL, is_insecure = false;
    config->is_plain = strcmp(endpoint->scheme, "http") == 0;
    if ((!config->is_plain && strcmp(endpoint->scheme, "https") != 0) ||
        endpoint->host_count != 1 || endpoint->user != NULL || endpoint->param_count > 0 ||
        strlen(endpoint->path) > 1 || strlen(endpoint->hosts[0].name) > 200 ||
        endpoint->hosts[0].name[0] == '\0')
        return refuse(why, "URL: endpoint must be http://HOST:PORT or https://HOST:PORT");
    /* No certificate is for a name with a dot before the endpoint's. */
    is_path |= strchr(bucket, '.') != NULL && !config->is_plain;
    int rc = tierce__url_param_flag(url, &is_path, "path_style", why);
    if (rc == 0)
        rc = tierce__url_param_flag(url, &is_insecure, "insecure", why);
    if (rc != 0)
        return rc;
    if (config->is_plain && !is_insecure && !tierce__is_loopback_host(endpoint->hosts[0].name))
        return refuse(
            why,
            "URL: an endpoint on another machine without TLS (http://) requires insecure=true");
    format_host(config->host, sizeof(config->host), is_path ? "" : bucket, &endpoint->hosts[0],
                config->is_plain);
    TIERCE_DASSERT(strlen(config->host) + 1 < sizeof(config->host));
    snprintf(config->origin, sizeof(config->origin), "%s://%s", endpoint->scheme, config->host);
    TIERCE_DASSERT(strlen(config->origin) + 1 < sizeof(config->origin));
    if (is_path)
        snprintf(config->bucket, sizeof(config->bucket), "/%s", bucket);
    return 0;
}

static int take_region(struct tierce__s3_config *config, const struct tierce__url *url,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const char *region = tierce__url_param(url, "region");
    if (region == NULL)
        region = environment("AWS_REGION");
    if (region == NULL)
        region = environment("AWS_DEFAULT_REGION");
    if (region == NULL)
        region = REGION;
    size_t bytes = strlen(region);
    if (bytes == 0 || bytes > TIERCE__S3_REGION_MAX ||
        strspn(region, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") !=
            bytes)
        return refuse(why, "the region of S3 is invalid: letters, digits, -, _ and . are accepted");
    snprintf(config->region, sizeof(config->region), "%s", region);
    return 0;
}

static int take_place(struct tierce__s3_config *config, const struct tierce__url *url,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char text[TIERCE__URL_BYTES_MAX];
    struct tierce__url endpoint = {0};
    const char *given = tierce__url_param(url, "endpoint");
    if (url->host_count != 1 || url->hosts[0].port != 0 || !is_bucket(url->hosts[0].name))
        return refuse(why,
                      "URL: a bucket has 3 to 63 lower-case letters, digits, '-' and '.', as in "
                      "s3://BUCKET/PREFIX; endpoint= names the server");
    int rc = take_region(config, url, why);
    if (rc == 0 && given == NULL)
        snprintf(text, sizeof(text), "https://s3.%s.amazonaws.com", config->region);
    TIERCE_DASSERT(rc != 0 ||
                   (strlen(config->region) > 0 && strlen(config->region) <= TIERCE__S3_REGION_MAX));
    if (rc == 0)
        rc = tierce__url_parse(&endpoint, given != NULL ? given : text, why);
    if (rc == 0)
        rc = take_endpoint(config, url, &endpoint, why);
    tierce__url_clear(&endpoint);
    return rc;
}

/* "/a/b" or "/a/b/" is the prefix "a/b/". */
static int take_prefix(struct tierce__s3_config *config, const char *path,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    path += path[0] == '/';
    size_t bytes = strlen(path);
    char *out = config->prefix;
    if (bytes == 0)
        return 0;
    if (strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._=+,@-/") !=
            bytes ||
        bytes + 1 > TIERCE__S3_PREFIX_MAX)
        return refuse(why, "URL: the prefix is longer than 255 bytes, or has characters other than "
                           "letters, digits and ._=+,@-/");
    snprintf(out, TIERCE__S3_PREFIX_MAX + 1, "%s%s", path, path[bytes - 1] == '/' ? "" : "/");
    char slashed[TIERCE__S3_PREFIX_MAX + 3];
    TIERCE_DASSERT(out[strlen(out) - 1] == '/');
    snprintf(slashed, sizeof(slashed), "/%s", out);
    if (strstr(slashed, "//") != NULL || strstr(slashed, "/./") != NULL ||
        strstr(slashed, "/../") != NULL)
        return refuse(why, "URL: the prefix has a component that is empty, . or ..");
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

int tierce__s3_configure(struct tierce__s3_config *config, const struct tierce__url *url,
                         char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char *const known[] = {"endpoint",         "region",  "path_style", "insecure",
                                        "credentials_file", "profile", "ca_file",    "timeout_ms",
                                        "connections",      "part",    "retries",    "remember",
                                        "payload",          "names",   NULL};
    *config = (struct tierce__s3_config){.connections = CONNECTIONS,
                                         .part_bytes = PART_BYTES,
                                         .retries = RETRIES,
                                         .connect_ms = CONNECT_MS};
    const struct {
        struct tierce__url_number number;
        uint64_t *value;
    } numbers[] = {
        {{"connections", TIERCE__URL_COUNT, 2, TIERCE__S3_CONNECTIONS_MAX}, &config->connections},
        {{"part", TIERCE__URL_SIZE, PART_BYTES_MIN, PART_BYTES_MAX}, &config->part_bytes},
        {{"retries", TIERCE__URL_COUNT, 0, 20}, &config->retries},
        {{"timeout_ms", TIERCE__URL_COUNT, 1, 600000}, &config->connect_ms},
        {{"remember", TIERCE__URL_MILLISECONDS, 1, 24ull * 60 * 60 * 1000}, &config->remember_ms},
    };
    const char *ca_file = tierce__url_param(url, "ca_file");
    const char *payload = tierce__url_param(url, "payload");
    const char *names = tierce__url_param(url, "names");
    int rc = tierce__url_check_params(url, known, why);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers) && rc == 0; i++)
        rc = tierce__url_param_number(url, numbers[i].value, &numbers[i].number, why);
    if (rc == 0 && payload != NULL && strcmp(payload, "signed") != 0 &&
        strcmp(payload, "unsigned") != 0)
        rc = refuse(why, "URL: parameter payload must be signed or unsigned");
    config->signs_payload = payload != NULL && payload[0] == 's';
    if (rc == 0 && names != NULL && strcmp(names, "path") != 0 && strcmp(names, "escaped") != 0)
        rc = refuse(why, "URL: parameter names must be escaped or path");
    config->has_paths = names != NULL && names[0] == 'p';
    if (rc == 0)
        rc = take_place(config, url, why);
    if (rc == 0)
        rc = take_prefix(config, url->path, why);
    if (rc == 0)
        rc = take_credentials(config, url, why);
    if (rc == 0 && ca_file != NULL) {
        config->ca_file = tierce__strdup(ca_file);
        rc = config->ca_file != NULL ? 0 : -ENOMEM;
    }
    TIERCE_DASSERT(rc != 0 || config->part_bytes >= PART_BYTES_MIN);
    return rc;
}

void tierce__s3_config_clear(struct tierce__s3_config *config)
{
    tierce__free(config->ca_file);
    tierce__aws_login_free(config->login);
    tierce__free(config->credentials_file);
    explicit_bzero(config, sizeof(*config));
}
