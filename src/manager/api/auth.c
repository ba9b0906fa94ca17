/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/auth.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/lock.h"
#include "manager/api/account.h"
#include "net/server/tokens.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

enum { DIGEST_BYTES = 32, REMEMBERED_MAX = 256, CREDENTIAL_BYTES_MAX = 1024 };

/* A cached successful login: a keyed digest of the name, the password and the account's password
 * hash. If the account is changed or recreated, its hash and therefore the digest differ. */
struct remembered {
    uint8_t digest[DIGEST_BYTES];
    bool is_used;
};

struct tierce__auth {
    struct tierce__auth_opts opts;
    uint8_t key[DIGEST_BYTES];     /* of this process */
    struct tierce__lock lock;      /* AUTH: guards the fields below */
    struct tierce__tokens *tokens; /* NULL: no file */
    struct remembered remembered[REMEMBERED_MAX];
    size_t next;
};

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool read_role(uint32_t *out, const char *word)
{
    bool is_admin = strcmp(word, "admin") == 0;
    *out = is_admin ? TIERCE__ROLE_ADMIN : TIERCE__ROLE_USER;
    return is_admin || strcmp(word, "user") == 0;
}

int tierce__auth_tokens_read(struct tierce__tokens **out, const struct tierce__auth *auth,
                             char why[256])
{
    const char *path = auth->opts.token_file;
    if (path == NULL || path[0] == '\0') {
        *out = NULL;
        return 0;
    }
    return tierce__tokens_load(
        out,
        &(struct tierce__tokens_opts){.size = sizeof(struct tierce__tokens_opts),
                                      .path = path,
                                      .rights = read_role,
                                      .rights_text = "a role must be user or admin"},
        why);
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
        snprintf(why, 256, "no random numbers are available");
        rc = -EIO;
    }
    if (rc == 0)
        rc = tierce__auth_tokens_read(&auth->tokens, auth, why);
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
    tierce__tokens_destroy(auth->tokens);
    OPENSSL_cleanse(auth, sizeof(*auth));
    tierce__free(auth);
}

struct tierce__tokens *tierce__auth_exchange(struct tierce__auth *auth,
                                             struct tierce__tokens *fresh)
{
    tierce__lock_take(&auth->lock);
    struct tierce__tokens *before = auth->tokens;
    TIERCE_DASSERT(fresh == NULL || fresh != before);
    auth->tokens = fresh;
    tierce__lock_drop(&auth->lock);
    return before;
}

bool tierce__auth_lets_nobody_in(struct tierce__auth *auth)
{
    size_t accounts;
    tierce__lock_take(&auth->lock);
    bool has_tokens = tierce__tokens_count(auth->tokens) > 0;
    tierce__lock_drop(&auth->lock);
    if (!auth->opts.is_on || has_tokens)
        return false;
    const struct tierce__catalog *catalog = tierce__registry_acquire(auth->opts.registry);
    (void)tierce__catalog_accounts(catalog, &accounts);
    tierce__registry_release(auth->opts.registry, catalog);
    return accounts == 0;
}

/* ---- what a call shows ----------------------------------------------------------------------- */

static bool find_token(struct tierce__auth *auth, const char *shown, enum tierce__role *role,
                       char name[64])
{
    tierce__lock_take(&auth->lock);
    const struct tierce__token *token = tierce__tokens_find(auth->tokens, shown, strlen(shown));
    if (token != NULL) {
        TIERCE_DASSERT(token->rights == TIERCE__ROLE_USER || token->rights == TIERCE__ROLE_ADMIN);
        *role = (enum tierce__role)token->rights;
        snprintf(name, 64, "%s", token->name);
    }
    tierce__lock_drop(&auth->lock);
    return token != NULL;
}

static bool recall(struct tierce__auth *auth, const uint8_t digest[DIGEST_BYTES])
{
    bool found = false;
    tierce__lock_take(&auth->lock);
    for (size_t i = 0; i < REMEMBERED_MAX && !found; i++) {
        const struct remembered *r = &auth->remembered[i];
        found = r->is_used && CRYPTO_memcmp(r->digest, digest, DIGEST_BYTES) == 0;
    }
    tierce__lock_drop(&auth->lock);
    return found;
}

static void remember(struct tierce__auth *auth, const uint8_t digest[DIGEST_BYTES])
{
    tierce__lock_take(&auth->lock);
    struct remembered *r = &auth->remembered[auth->next++ % REMEMBERED_MAX];
    r->is_used = true;
    memcpy(r->digest, digest, DIGEST_BYTES);
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
    TIERCE_ASSERT((size_t)decoded < CREDENTIAL_BYTES_MAX);
    size_t padding = (size_t)(shown[bytes - 1] == '=') + (size_t)(shown[bytes - 2] == '=');
    TIERCE_ASSERT((size_t)decoded >= padding);
    out[(size_t)decoded - padding] = '\0';
    return strlen(out) == (size_t)decoded - padding && strchr(out, ':') != NULL;
}

/* HMAC of "name:password", a NUL and the account's password hash. */
static bool make_digest(uint8_t out[DIGEST_BYTES], const struct tierce__auth *auth,
                        const char *shown, const char *hash)
{
    enum { HASH_BYTES_MAX = 256 };
    char text[CREDENTIAL_BYTES_MAX + HASH_BYTES_MAX];
    unsigned bytes = DIGEST_BYTES;
    size_t shown_bytes = strlen(shown) + 1, hash_bytes = strlen(hash);
    if (hash_bytes >= HASH_BYTES_MAX)
        return false;
    TIERCE_ASSERT(shown_bytes <= CREDENTIAL_BYTES_MAX);
    memcpy(text, shown, shown_bytes);
    memcpy(text + shown_bytes, hash, hash_bytes);
    bool done = HMAC(EVP_sha256(), auth->key, sizeof(auth->key), (const unsigned char *)text,
                     shown_bytes + hash_bytes, out, &bytes) != NULL;
    OPENSSL_cleanse(text, sizeof(text));
    TIERCE_ASSERT(!done || bytes == DIGEST_BYTES);
    return done;
}

/* Checks `text`, "name:password". `account` NULL: unknown name; the check takes as long. */
static enum tierce__auth_result check_account(struct tierce__auth *auth, const char *text,
                                              const struct tierce__account *account, bool may_wait)
{
    uint8_t digest[DIGEST_BYTES];
    const char *hash = account != NULL ? account->password_hash : NULL;
    bool has_digest = hash != NULL && make_digest(digest, auth, text, hash);
    if (has_digest && recall(auth, digest))
        return TIERCE__AUTH_OK;
    if (!may_wait)
        return TIERCE__AUTH_WAITS;
    TIERCE_ASSERT(strchr(text, ':') != NULL);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (!tierce__password_is(hash, strchr(text, ':') + 1))
        return TIERCE__AUTH_UNKNOWN;
    if (has_digest)
        remember(auth, digest);
    return TIERCE__AUTH_OK;
}

static enum tierce__auth_result check_basic(struct tierce__auth *auth, const char *shown,
                                            bool may_wait, enum tierce__role *role, char name[64])
{
    char text[CREDENTIAL_BYTES_MAX], whole_name[CREDENTIAL_BYTES_MAX];
    if (!decode_basic(shown, text))
        return TIERCE__AUTH_UNKNOWN;
    snprintf(whole_name, sizeof(whole_name), "%.*s", (int)strcspn(text, ":"), text);
    snprintf(name, 64, "%.63s", whole_name);
    const struct tierce__catalog *catalog = tierce__registry_acquire(auth->opts.registry);
    const struct tierce__account *account = tierce__catalog_account(catalog, whole_name);
    enum tierce__auth_result result = check_account(auth, text, account, may_wait);
    if (account != NULL)
        *role = account->role;
    tierce__registry_release(auth->opts.registry, catalog);
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
