/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/fleet/storage_at.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/text/line.h"
#include "base/text/url.h"
#include "base/vfs/beneath.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char *text_of(const char *text)
{
    return text != NULL ? text : "";
}

static int refuse(char why[TIERCE__STORAGE_WHY_BYTES], int rc, const char *what)
{
    snprintf(why, TIERCE__STORAGE_WHY_BYTES, "%s", what);
    return rc;
}

static bool is_type(const struct tierce__storage_at *at, const char *name)
{
    return strcmp(text_of(at->type), name) == 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool is_3fs(const struct tierce__storage_at *at)
{
    return is_type(at, "hf3fs") || is_type(at, "vcns_hf3fs");
}

bool tierce__storage_at_has_files(const struct tierce__storage_at *at)
{
    return is_type(at, "file") || is_3fs(at);
}

char *tierce__storage_at_root(const struct tierce__storage_at *at)
{
    const char *parts[2] = {"", ""};
    if (is_type(at, "file")) {
        parts[0] = text_of(at->root_path);
    } else if (is_3fs(at)) {
        parts[0] = text_of(at->mountpoint);
        parts[1] = text_of(at->root_dir);
    }
    size_t size = strlen(parts[0]) + strlen(parts[1]) + 4, used = 0;
    char *root = tierce__alloc(size);
    if (root == NULL)
        return NULL;
    root[used++] = '/';
    for (size_t i = 0; i < 2; i++) {
        for (const char *p = parts[i]; *p != '\0'; p++)
            if (*p != '/' || root[used - 1] != '/')
                root[used++] = *p;
        if (root[used - 1] != '/')
            root[used++] = '/';
    }
    TIERCE_ASSERT(used < size);
    root[used] = '\0';
    TIERCE_DASSERT(root[used - 1] == '/');
    return root;
}

/* The fleet's file system may be mounted nowhere here, which the connector reports. */
static int put_files(struct tierce__line *line, const struct tierce__storage_at *at,
                     char why[TIERCE__STORAGE_WHY_BYTES])
{
    const char *first = text_of(is_3fs(at) ? at->mountpoint : at->root_path);
    if (first[0] != '/')
        return refuse(why, TIERCE_E_CONFIG,
                      is_3fs(at) ? "mountpoint must be an absolute path"
                                 : "root_path must be an absolute path");
    char *root = tierce__storage_at_root(at);
    if (root == NULL)
        return -ENOMEM;
    bool is_plain = root[1] != '\0' && strstr(root, "/../") == NULL && strstr(root, "/./") == NULL;
    tierce__line_put(line, "file://");
    tierce__url_put_encoded(line, root);
    tierce__line_put(line, "?names=path");
    tierce__free(root);
    return is_plain ? 0
                    : refuse(why, TIERCE_E_CONFIG,
                             "the root folder must not be /, and have no part that is . or ..");
}

/* ---- stores with a URI ----------------------------------------------------------------------- */

/* Redis' schemes, and those of the connector. */
static const struct redis_scheme {
    const char *name, *connector, *cluster;
} redis_schemes[] = {
    {"redis", "redis", "redis+cluster"},
    {"rediss", "rediss", "rediss+cluster"},
    {"valkey", "valkey", "valkey+cluster"},
    {"valkeys", "valkeys", "valkeys+cluster"},
    {"redis-cluster", "redis+cluster", "redis+cluster"},
    {"rediss-cluster", "rediss+cluster", "rediss+cluster"},
    {"valkey-cluster", "valkey+cluster", "valkey+cluster"},
    {"valkeys-cluster", "valkeys+cluster", "valkeys+cluster"},
    {"redis+cluster", "redis+cluster", "redis+cluster"},
    {"rediss+cluster", "rediss+cluster", "rediss+cluster"},
    {"valkey+cluster", "valkey+cluster", "valkey+cluster"},
    {"valkeys+cluster", "valkeys+cluster", "valkeys+cluster"},
    {"redis+sentinel", "redis+sentinel", NULL},
    {"rediss+sentinel", "rediss+sentinel", NULL},
    {"valkey+sentinel", "valkey+sentinel", NULL},
    {"valkeys+sentinel", "valkeys+sentinel", NULL},
    {"redis+unix", "redis+unix", NULL},
    {"valkey+unix", "valkey+unix", NULL},
    {"unix", "redis+unix", NULL},
    {"tierce", "tierce", NULL}, /* a node's port for the protocol of Redis */
};

static const struct redis_scheme *find_scheme(const char *uri)
{
    const char *end = strstr(uri, "://");
    size_t bytes = end != NULL ? (size_t)(end - uri) : 0;
    for (size_t i = 0; i < sizeof(redis_schemes) / sizeof(*redis_schemes); i++) {
        if (strlen(redis_schemes[i].name) == bytes &&
            memcmp(redis_schemes[i].name, uri, bytes) == 0)
            return &redis_schemes[i];
    }
    return NULL;
}

/* One parameter "name=value", percent-encoded. */
struct parameter {
    const char *text;
    size_t bytes, name_bytes;
};

/* The next parameter behind *at, which moves behind it; false: there is none. */
static bool next_parameter(struct parameter *out, const char **at)
{
    const char *text = *at + strspn(*at, "?&");
    size_t bytes = strcspn(text, "&");
    if (bytes == 0)
        return false;
    *out = (struct parameter){text, bytes, strcspn(text, "=&")};
    TIERCE_DASSERT(out->name_bytes <= bytes);
    *at = text + bytes;
    return true;
}

static bool has_name(const struct parameter *parameter, const char *name)
{
    return strlen(name) == parameter->name_bytes &&
           memcmp(parameter->text, name, parameter->name_bytes) == 0;
}

/* The manager's driver and its messages spell a true value as 1. */
static bool is_true(const struct parameter *parameter)
{
    const char *value = parameter->text + parameter->name_bytes;
    size_t bytes = parameter->bytes - parameter->name_bytes;
    return (bytes == 2 && memcmp(value, "=1", 2) == 0) ||
           (bytes == 5 && memcmp(value, "=true", 5) == 0);
}

/* The parameters that the connector has, under its names. */
static void put_redis_parameters(struct tierce__line *line, const char *parameters)
{
    static const char prefix[] = "prefix";
    struct parameter one;
    char next = '?';
    while (next_parameter(&one, &parameters)) {
        bool is_prefix = has_name(&one, "key_prefix");
        if (has_name(&one, "cluster") || has_name(&one, "client_max_pool_size"))
            continue;
        size_t skipped = is_prefix ? one.name_bytes : 0;
        tierce__line_put_bytes(line, &next, 1);
        tierce__line_put(line, is_prefix ? prefix : "");
        tierce__line_put_bytes(line, one.text + skipped, one.bytes - skipped);
        next = '&';
    }
}

static int put_redis(struct tierce__line *line, const struct tierce__storage_at *at,
                     char why[TIERCE__STORAGE_WHY_BYTES])
{
    const char *uri = text_of(at->uri);
    const struct redis_scheme *scheme = find_scheme(uri);
    if (scheme == NULL)
        return refuse(why, TIERCE_E_CONFIG,
                      "uri must begin with redis://, rediss://, or another "
                      "scheme of Redis or Valkey");
    const char *parameters = uri + strcspn(uri, "?"), *each = parameters;
    const char *name = scheme->connector;
    for (struct parameter one; next_parameter(&one, &each);) {
        if (has_name(&one, "cluster") && is_true(&one))
            name = scheme->cluster;
    }
    if (name == NULL)
        return refuse(why, TIERCE_E_CONFIG,
                      "a cluster cannot be reached through sentinels or a Unix socket");
    uri += strlen(scheme->name);
    tierce__line_put(line, name);
    tierce__line_put_bytes(line, uri, (size_t)(parameters - uri));
    put_redis_parameters(line, parameters);
    return 0;
}

/* With names as paths: clients append them to the prefix. */
static int put_s3(struct tierce__line *line, const struct tierce__storage_at *at,
                  char why[TIERCE__STORAGE_WHY_BYTES])
{
    static const char scheme[] = "s3://";
    const char *uri = text_of(at->uri);
    if (strncmp(uri, scheme, sizeof(scheme) - 1) != 0)
        return refuse(why, TIERCE_E_CONFIG, "uri must begin with s3://");
    tierce__line_put(line, uri);
    tierce__line_put(line, strchr(uri, '?') != NULL ? "&names=path" : "?names=path");
    return 0;
}

static void put_parameter(struct tierce__line *line, char *next, const char *name,
                          const char *value)
{
    if (value == NULL || value[0] == '\0')
        return;
    tierce__line_put_bytes(line, next, 1);
    tierce__line_put(line, name);
    tierce__line_put(line, "=");
    tierce__url_put_encoded(line, value);
    *next = '&';
}

/* local_hostname is each client's own. */
static int put_mooncake(struct tierce__line *line, const struct tierce__storage_at *at,
                        char why[TIERCE__STORAGE_WHY_BYTES])
{
    const char *master = text_of(at->master);
    char next = '?';
    if (master[0] == '\0' ||
        master[strspn(master, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                              ".-_:[]")] != '\0')
        return refuse(why, TIERCE_E_CONFIG, "master_server_entry must be HOST:PORT");
    tierce__line_put(line, "mooncake://");
    tierce__line_put(line, master);
    put_parameter(line, &next, "metadata", at->metadata);
    put_parameter(line, &next, "protocol", at->protocol);
    put_parameter(line, &next, "device", at->device);
    put_parameter(line, &next, "python", at->python);
    return 0;
}

/* The manager makes the URL of a part of a node. */
static int put_node(struct tierce__line *line, const struct tierce__storage_at *at,
                    char why[TIERCE__STORAGE_WHY_BYTES])
{
    const char *uri = text_of(at->uri);
    for (const char *c = uri; *c != '\0'; c++) {
        if (*c <= ' ' || *c >= 0x7f)
            return refuse(why, TIERCE_E_CONFIG, "uri of a node's part has an invalid character");
    }
    if (strncmp(uri, "transfer://", strlen("transfer://")) != 0 &&
        strncmp(uri, "transfer+tls://", strlen("transfer+tls://")) != 0)
        return refuse(why, TIERCE_E_CONFIG,
                      "uri of a node's part must be transfer://HOST:PORT/memory or /disk");
    tierce__line_put(line, uri);
    return 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int put_url(struct tierce__line *line, const struct tierce__storage_at *at,
                   char why[TIERCE__STORAGE_WHY_BYTES])
{
    if (tierce__storage_at_has_files(at))
        return put_files(line, at, why);
    if (is_type(at, "redis"))
        return put_redis(line, at, why);
    if (is_type(at, "s3"))
        return put_s3(line, at, why);
    if (is_type(at, "mooncake"))
        return put_mooncake(line, at, why);
    if (is_type(at, "tierce"))
        return put_node(line, at, why);
    snprintf(why, TIERCE__STORAGE_WHY_BYTES,
             is_type(at, "pace") ? "TairMemPool has no public client"
                                 : "there is no connector for storages of type %.32s",
             text_of(at->type));
    return TIERCE_E_UNSUPPORTED;
}

int tierce__storage_at_url(char **url, const struct tierce__storage_at *at,
                           char why[TIERCE__STORAGE_WHY_BYTES])
{
    struct tierce__line line = {0};
    int rc = put_url(&line, at, why);
    tierce__line_put_bytes(&line, "", 1);
    if (rc == 0 && line.failed)
        rc = -ENOMEM;
    if (rc == 0) {
        TIERCE_ASSERT(line.text[line.bytes - 1] == '\0');
        *url = line.text;
        return 0;
    }
    if (rc == -ENOMEM)
        snprintf(why, TIERCE__STORAGE_WHY_BYTES, "%s", tierce_strerror(rc));
    tierce__line_clear(&line);
    return rc;
}

const char *tierce__storage_at_name(const char *path, const char *root)
{
    size_t bytes = strlen(root);
    TIERCE_ASSERT(bytes > 0 && root[bytes - 1] == '/');
    if (strncmp(path, root, bytes) != 0 || !tierce__beneath_is_path(path + bytes))
        return NULL;
    return path + bytes;
}

/* ---- the mark -------------------------------------------------------------------------------- */

static const char mark_head[] = "tierce-pool 1 ";

static bool begins_with_id(const char *text)
{
    return strspn(text, "0123456789abcdef") == TIERCE__STORAGE_ID_HEX;
}

bool tierce__storage_id_is(const char *text)
{
    return begins_with_id(text) && text[TIERCE__STORAGE_ID_HEX] == '\0';
}

void tierce__storage_mark_write(char text[TIERCE__STORAGE_MARK_BYTES + 1], const char *id)
{
    TIERCE_ASSERT(tierce__storage_id_is(id));
    int bytes = snprintf(text, TIERCE__STORAGE_MARK_BYTES + 1, "%s%s\n", mark_head, id);
    TIERCE_ASSERT(bytes == TIERCE__STORAGE_MARK_BYTES);
}

bool tierce__storage_mark_read(char id[TIERCE__STORAGE_ID_HEX + 1], const char *text, size_t bytes)
{
    char copy[TIERCE__STORAGE_MARK_BYTES + 1];
    const char *at = copy + sizeof(mark_head) - 1;
    if (bytes != TIERCE__STORAGE_MARK_BYTES)
        return false;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    if (strncmp(copy, mark_head, sizeof(mark_head) - 1) != 0 || !begins_with_id(at) ||
        at[TIERCE__STORAGE_ID_HEX] != '\n')
        return false;
    snprintf(id, TIERCE__STORAGE_ID_HEX + 1, "%.*s", (int)TIERCE__STORAGE_ID_HEX, at);
    return true;
}

/* ---- secrets --------------------------------------------------------------------------------- */

/* Removes the parameters whose names have "password" in them, in place. */
static void hide_parameters(char *parameters)
{
    const char *at = parameters;
    char *to = parameters, next = '?';
    for (struct parameter one; next_parameter(&one, &at);) {
        bool is_secret = false;
        for (size_t i = 0; i + 8 <= one.name_bytes; i++)
            is_secret |= strncasecmp(one.text + i, "password", 8) == 0;
        if (is_secret)
            continue;
        *to++ = next;
        next = '&';
        TIERCE_DASSERT(to <= one.text); /* one '?' or '&' stood before it */
        memmove(to, one.text, one.bytes);
        to += one.bytes;
    }
    *to = '\0';
}

/* Everything up to the last '@' may be of a password that is not encoded; a Unix socket has no
 * user. */
void tierce__storage_at_hide(char *uri)
{
    char *authority = strstr(uri, "://");
    if (authority == NULL)
        return;
    authority += 3;
    const char *user_end = authority[0] != '/' ? strrchr(authority, '@') : NULL;
    if (user_end != NULL)
        memmove(authority, user_end + 1, strlen(user_end + 1) + 1);
    hide_parameters(authority + strcspn(authority, "?"));
}

/* ---- engines --------------------------------------------------------------------------------- */

enum { DIGEST_BYTES = 32, DIGEST_DIGITS = 2 * DIGEST_BYTES };
_Static_assert(2 * DIGEST_DIGITS + 2 == TIERCE__ENGINE_EXTRA_BYTES, "two digests, ':' and NUL");

void tierce__engine_extra(char out[TIERCE__ENGINE_EXTRA_BYTES], const unsigned char *family,
                          const unsigned char *space)
{
    tierce__hex_encode(out, family, DIGEST_BYTES);
    out[DIGEST_DIGITS] = ':';
    tierce__hex_encode(out + DIGEST_DIGITS + 1, space, DIGEST_BYTES);
}

bool tierce__engine_extra_is(const char *extra)
{
    unsigned char ignored[DIGEST_BYTES];
    return strlen(extra) == TIERCE__ENGINE_EXTRA_BYTES - 1 && extra[DIGEST_DIGITS] == ':' &&
           tierce__hex_decode(ignored, DIGEST_BYTES, extra) &&
           tierce__hex_decode(ignored, DIGEST_BYTES, extra + DIGEST_DIGITS + 1);
}
