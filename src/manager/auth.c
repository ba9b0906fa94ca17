/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/auth.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/lock.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/stat.h>

enum { DIGEST_BYTES = 32, REMEMBERED_MAX = 256, CREDENTIAL_BYTES_MAX = 1024 };

struct token {
    enum tierce__role role;
    char name[64];
    uint8_t digest[DIGEST_BYTES];
};

/* A name and password that were right a while ago, as a keyed digest of both. */
struct remembered {
    uint8_t digest[DIGEST_BYTES];
    enum tierce__role role;
    bool is_used;
};

struct tierce__auth {
    struct tierce__auth_opts opts;
    uint8_t key[DIGEST_BYTES]; /* of this process */
    struct token *tokens;
    size_t token_count;
    struct tierce__lock lock; /* AUTH: what follows */
    struct remembered remembered[REMEMBERED_MAX];
    size_t next;
    uint64_t version; /* of the registry when they were right */
};

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool read_token(struct token *out, char *line)
{
    char *save = NULL;
    const char *role = strtok_r(line, " \t", &save);
    const char *name = strtok_r(NULL, " \t", &save);
    const char *digest = strtok_r(NULL, " \t", &save);
    if (role == NULL || name == NULL || digest == NULL || strtok_r(NULL, " \t", &save) != NULL)
        return false;
    bool is_admin = strcmp(role, "admin") == 0;
    if ((!is_admin && strcmp(role, "user") != 0) || strlen(name) >= sizeof(out->name))
        return false;
    out->role = is_admin ? TIERCE__ROLE_ADMIN : TIERCE__ROLE_USER;
    snprintf(out->name, sizeof(out->name), "%s", name);
    return tierce__hex_decode(out->digest, DIGEST_BYTES, digest);
}

static int read_tokens(struct tierce__auth *auth, const char *path, char *text, char why[256])
{
    size_t lines = 1, number = 0;
    for (const char *p = text; *p != '\0'; p++)
        lines += *p == '\n';
    auth->tokens = tierce__calloc(lines, sizeof(*auth->tokens));
    if (auth->tokens == NULL)
        return -ENOMEM;
    for (char *line = text; line != NULL;) {
        char *end = strchr(line, '\n');
        if (end != NULL)
            *end = '\0';
        number++;
        line += strspn(line, " \t\r");
        if (*line != '\0' && *line != '#' &&
            !read_token(&auth->tokens[auth->token_count++], line)) {
            snprintf(why, 256,
                     "%.120s, line %zu: expected ROLE NAME SHA256, as in \"admin ops 9f86d0…\"; "
                     "a role is user or admin",
                     path, number);
            return TIERCE_E_CONFIG;
        }
        line = end != NULL ? end + 1 : NULL;
    }
    return 0;
}

static int load_tokens(struct tierce__auth *auth, const char *path, char why[256])
{
    enum { FILE_BYTES_MAX = 1024 * 1024 };
    struct stat info;
    char *text;
    size_t bytes;
    int rc = tierce__read_file(&text, &bytes, path, FILE_BYTES_MAX);
    if (rc < 0) {
        snprintf(why, 256, "the token file %.120s cannot be read: %s", path, tierce_strerror(rc));
        return rc;
    }
    if (stat(path, &info) == 0 && (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        snprintf(why, 256, "others may read the token file %.120s; chmod 600 it", path);
        rc = TIERCE_E_CONFIG;
    } else {
        rc = read_tokens(auth, path, text, why);
    }
    tierce__free(text);
    return rc;
}

int tierce__auth_create(struct tierce__auth **out, const struct tierce__auth_opts *opts,
                        char why[256])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__auth *auth = tierce__calloc(1, sizeof(*auth));
    if (auth == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    auth->opts = *opts;
    tierce__lock_init(&auth->lock, TIERCE__LOCK_AUTH);
    int rc = 0;
    if (getrandom(auth->key, sizeof(auth->key), 0) != (ssize_t)sizeof(auth->key)) {
        snprintf(why, 256, "no random numbers");
        rc = -EIO;
    }
    if (rc == 0 && opts->token_file != NULL && opts->token_file[0] != '\0')
        rc = load_tokens(auth, opts->token_file, why);
    if (rc < 0)
        tierce__auth_destroy(auth);
    else
        *out = auth;
    return rc;
}

void tierce__auth_destroy(struct tierce__auth *auth)
{
    if (auth == NULL)
        return;
    tierce__lock_fini(&auth->lock);
    tierce__free(auth->tokens);
    OPENSSL_cleanse(auth, sizeof(*auth));
    tierce__free(auth);
}

/* ---- what a call shows ----------------------------------------------------------------------- */

static bool find_token(const struct tierce__auth *auth, const char *shown, enum tierce__role *role,
                       char name[64])
{
    uint8_t digest[DIGEST_BYTES];
    bool found = false;
    unsigned bytes = sizeof(digest);
    if (EVP_Digest(shown, strlen(shown), digest, &bytes, EVP_sha256(), NULL) != 1)
        return false;
    for (size_t i = 0; i < auth->token_count; i++) {
        if (CRYPTO_memcmp(auth->tokens[i].digest, digest, sizeof(digest)) != 0)
            continue;
        found = true;
        *role = auth->tokens[i].role;
        snprintf(name, 64, "%s", auth->tokens[i].name);
    }
    return found;
}

/* Forgets what was right under another registry. AUTH held. */
static void keep_up(struct tierce__auth *auth)
{
    uint64_t version = tierce__registry_version(auth->opts.registry);
    if (version != auth->version) {
        memset(auth->remembered, 0, sizeof(auth->remembered));
        auth->version = version;
    }
}

static bool recall(struct tierce__auth *auth, const uint8_t digest[DIGEST_BYTES],
                   enum tierce__role *role)
{
    bool found = false;
    tierce__lock_take(&auth->lock);
    keep_up(auth);
    for (size_t i = 0; i < REMEMBERED_MAX && !found; i++) {
        const struct remembered *r = &auth->remembered[i];
        found = r->is_used && CRYPTO_memcmp(r->digest, digest, DIGEST_BYTES) == 0;
        if (found)
            *role = r->role;
    }
    tierce__lock_drop(&auth->lock);
    return found;
}

static void remember(struct tierce__auth *auth, const uint8_t digest[DIGEST_BYTES],
                     enum tierce__role role, uint64_t version)
{
    tierce__lock_take(&auth->lock);
    keep_up(auth);
    if (version == auth->version) {
        struct remembered *r = &auth->remembered[auth->next++ % REMEMBERED_MAX];
        r->role = role;
        r->is_used = true;
        memcpy(r->digest, digest, DIGEST_BYTES);
    }
    tierce__lock_drop(&auth->lock);
}

/* "name:password", decoded; false if it is not that. */
static bool decode_basic(const char *shown, char out[CREDENTIAL_BYTES_MAX])
{
    size_t bytes = strlen(shown);
    if (bytes == 0 || bytes % 4 != 0 || bytes / 4 * 3 >= CREDENTIAL_BYTES_MAX)
        return false;
    int decoded = EVP_DecodeBlock((unsigned char *)out, (const unsigned char *)shown, (int)bytes);
    if (decoded < 0)
        return false;
    size_t padding = (size_t)(shown[bytes - 1] == '=') + (size_t)(shown[bytes - 2] == '=');
    out[(size_t)decoded - padding] = '\0';
    return strlen(out) == (size_t)decoded - padding && strchr(out, ':') != NULL;
}

static enum tierce__auth_result check_basic(struct tierce__auth *auth, const char *shown,
                                            bool may_wait, enum tierce__role *role, char name[64])
{
    char text[CREDENTIAL_BYTES_MAX];
    uint8_t digest[DIGEST_BYTES];
    unsigned bytes = sizeof(digest);
    enum tierce__auth_result result = TIERCE__AUTH_UNKNOWN;
    if (!decode_basic(shown, text) ||
        HMAC(EVP_sha256(), auth->key, sizeof(auth->key), (const unsigned char *)text, strlen(text),
             digest, &bytes) == NULL)
        return TIERCE__AUTH_UNKNOWN;
    uint64_t version = tierce__registry_version(auth->opts.registry);
    char *password = strchr(text, ':');
    *password++ = '\0';
    snprintf(name, 64, "%.63s", text);
    if (recall(auth, digest, role)) {
        result = TIERCE__AUTH_OK;
    } else if (!may_wait) {
        result = TIERCE__AUTH_WAITS;
    } else if (tierce__registry_check_password(auth->opts.registry, text, password, role)) {
        remember(auth, digest, *role, version);
        result = TIERCE__AUTH_OK;
    }
    OPENSSL_cleanse(text, sizeof(text));
    return result;
}

static bool find_account(struct tierce__auth *auth, const char *certificate,
                         enum tierce__role *role, char name[64])
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(auth->opts.registry);
    const struct tierce__account *account = tierce__catalog_account(catalog, certificate);
    if (account != NULL) {
        *role = account->role;
        snprintf(name, 64, "%.63s", account->name);
    }
    tierce__registry_release(auth->opts.registry, catalog);
    return account != NULL;
}

enum tierce__auth_result tierce__auth_check(struct tierce__auth *auth,
                                            const struct tierce__call *call, bool needs_admin,
                                            bool may_wait, char name[64])
{
    const char *shown = tierce__call_header(call, "authorization");
    const char *certificate = tierce__call_info(call)->certificate;
    enum tierce__role role = TIERCE__ROLE_USER;
    enum tierce__auth_result result = TIERCE__AUTH_UNKNOWN;
    name[0] = '\0';
    if (!auth->opts.is_on)
        return TIERCE__AUTH_OK;
    if (shown != NULL && strncasecmp(shown, "Bearer ", 7) == 0)
        result = find_token(auth, shown + 7, &role, name) ? TIERCE__AUTH_OK : TIERCE__AUTH_UNKNOWN;
    else if (shown != NULL && strncasecmp(shown, "Basic ", 6) == 0)
        result = check_basic(auth, shown + 6, may_wait, &role, name);
    else if (shown == NULL && certificate != NULL)
        result =
            find_account(auth, certificate, &role, name) ? TIERCE__AUTH_OK : TIERCE__AUTH_UNKNOWN;
    if (result != TIERCE__AUTH_OK)
        return result;
    return needs_admin && role != TIERCE__ROLE_ADMIN ? TIERCE__AUTH_DENIED : TIERCE__AUTH_OK;
}
