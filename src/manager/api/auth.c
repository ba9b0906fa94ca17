/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/auth.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/threads/lock.h"
#include "manager/api/account.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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
    struct tierce__grants *grants; /* NULL: no file */
    struct remembered remembered[REMEMBERED_MAX];
    size_t next;
};

/* ---- tokens ---------------------------------------------------------------------------------- */

int tierce__auth_grants_read(struct tierce__grants **out, const struct tierce__auth *auth,
                             char why[256])
{
    const char *path = auth->opts.token_file;
    if (path == NULL || path[0] == '\0') {
        *out = NULL;
        return 0;
    }
    return tierce__grants_load(out, path, why);
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
        rc = tierce__auth_grants_read(&auth->grants, auth, why);
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
    tierce__grants_destroy(auth->grants);
    OPENSSL_cleanse(auth, sizeof(*auth));
    tierce__free(auth);
}

bool tierce__auth_is_on(const struct tierce__auth *auth)
{
    return auth->opts.is_on;
}

struct tierce__grants *tierce__auth_exchange(struct tierce__auth *auth,
                                             struct tierce__grants *fresh)
{
    tierce__grants_adopt(fresh, auth->grants); /* only the thread that reads files changes it */
    tierce__lock_take(&auth->lock);
    struct tierce__grants *before = auth->grants;
    TIERCE_DASSERT(fresh == NULL || fresh != before);
    auth->grants = fresh;
    tierce__lock_drop(&auth->lock);
    return before;
}

bool tierce__auth_lets_nobody_in(struct tierce__auth *auth)
{
    size_t accounts;
    tierce__lock_take(&auth->lock);
    bool has_tokens = tierce__grants_token_count(auth->grants) > 0;
    tierce__lock_drop(&auth->lock);
    if (!auth->opts.is_on || has_tokens)
        return false;
    const struct tierce__catalog *catalog = tierce__registry_acquire(auth->opts.registry);
    (void)tierce__catalog_accounts(catalog, &accounts);
    tierce__registry_release(auth->opts.registry, catalog);
    return accounts == 0;
}

/* ---- what a call shows ----------------------------------------------------------------------- */

void tierce__caller_clear(struct tierce__caller *caller)
{
    tierce__grant_drop(caller->grant);
    tierce__meter_drop(caller->meter);
    caller->grant = NULL;
    caller->meter = NULL;
}

static bool find_token(struct tierce__auth *auth, const char *shown, struct tierce__caller *caller)
{
    struct tierce__grants_line line;
    tierce__lock_take(&auth->lock);
    bool found = tierce__grants_find(auth->grants, shown, &line, caller->proof);
    if (found) {
        snprintf(caller->name, sizeof(caller->name), "%s", line.name);
        caller->grant = tierce__grant_hold(line.grant);
        caller->meter = tierce__meter_hold(line.meter);
        caller->by = TIERCE__BY_TOKEN;
    }
    tierce__lock_drop(&auth->lock);
    return found;
}

/* The grant of an account of the registry, held, and its meter, if the caller asks for it. */
static struct tierce__grant *grant_of_account(struct tierce__auth *auth,
                                              const struct tierce__account *account,
                                              struct tierce__meter **meter)
{
    struct tierce__grants_line line;
    TIERCE_DASSERT(account->role == TIERCE__ROLE_USER || account->role == TIERCE__ROLE_ADMIN);
    struct tierce__grant *grant =
        account->role == TIERCE__ROLE_ADMIN ? tierce__grant_of_admins() : tierce__grant_of_users();
    tierce__lock_take(&auth->lock);
    if (tierce__grants_find_account(auth->grants, account->name, &line)) {
        grant = line.grant;
        if (meter != NULL)
            *meter = tierce__meter_hold(line.meter);
    }
    (void)tierce__grant_hold(grant);
    tierce__lock_drop(&auth->lock);
    return grant;
}

static bool digest_hash(uint8_t out[DIGEST_BYTES], const struct tierce__account *account)
{
    const char *hash = account->password_hash;
    return EVP_Digest(hash, strlen(hash), out, NULL, EVP_sha256(), NULL) == 1;
}

/* Makes the caller the account, whose credentials were checked. */
static bool become_account(struct tierce__auth *auth, const struct tierce__account *account,
                           struct tierce__caller *caller)
{
    if (!digest_hash(caller->proof, account))
        return false;
    TIERCE_ASSERT(caller->grant == NULL);
    snprintf(caller->name, sizeof(caller->name), "%.63s", account->name);
    caller->grant = grant_of_account(auth, account, &caller->meter);
    caller->by = TIERCE__BY_ACCOUNT;
    return true;
}

static bool recall(struct tierce__auth *auth, const uint8_t digest[DIGEST_BYTES])
{
    bool found = false;
    tierce__lock_take(&auth->lock);
    for (size_t i = 0; i < REMEMBERED_MAX && !found; i++) {
        const struct remembered *r = &auth->remembered[i];
        found = r->is_used && tierce__secrets_equal(r->digest, digest, DIGEST_BYTES);
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
                                            bool may_wait, struct tierce__caller *caller)
{
    char text[CREDENTIAL_BYTES_MAX], whole_name[CREDENTIAL_BYTES_MAX];
    if (!decode_basic(shown, text))
        return TIERCE__AUTH_UNKNOWN;
    snprintf(whole_name, sizeof(whole_name), "%.*s", (int)strcspn(text, ":"), text);
    snprintf(caller->name, sizeof(caller->name), "%.63s", whole_name);
    const struct tierce__catalog *catalog = tierce__registry_acquire(auth->opts.registry);
    const struct tierce__account *account = tierce__catalog_account(catalog, whole_name);
    enum tierce__auth_result result = check_account(auth, text, account, may_wait);
    if (result == TIERCE__AUTH_OK && !become_account(auth, account, caller))
        result = TIERCE__AUTH_UNKNOWN;
    tierce__registry_release(auth->opts.registry, catalog);
    OPENSSL_cleanse(text, sizeof(text));
    return result;
}

static bool find_account(struct tierce__auth *auth, const char *certificate,
                         struct tierce__caller *caller)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(auth->opts.registry);
    const struct tierce__account *account = tierce__catalog_account(catalog, certificate);
    bool found = account != NULL && become_account(auth, account, caller);
    tierce__registry_release(auth->opts.registry, catalog);
    return found;
}

const char *tierce__auth_why_unknown(const struct tierce__call *call)
{
    const char *shown = tierce__call_header(call, "authorization");
    if (shown == NULL && tierce__call_info(call)->certificate != NULL)
        return "no account has the name of the client certificate";
    if (shown == NULL)
        return "authentication required: send a token, or a name and password, in the "
               "Authorization header";
    if (strncasecmp(shown, "Bearer ", 7) == 0)
        return "unknown token: no line of the manager's auth.token_file has its SHA-256";
    if (strncasecmp(shown, "Basic ", 6) == 0)
        return "unknown name, or wrong password";
    return "the Authorization header must be Bearer TOKEN or Basic";
}

/* Checks what the call presents. */
static enum tierce__auth_result authenticate(struct tierce__auth *auth,
                                             const struct tierce__call *call, bool may_wait,
                                             struct tierce__caller *caller)
{
    const char *shown = tierce__call_header(call, "authorization");
    const char *certificate = tierce__call_info(call)->certificate;
    bool found = false;
    if (shown != NULL && strncasecmp(shown, "Basic ", 6) == 0)
        return check_basic(auth, shown + 6, may_wait, caller);
    if (shown != NULL && strncasecmp(shown, "Bearer ", 7) == 0)
        found = find_token(auth, shown + 7, caller);
    else if (shown == NULL && certificate != NULL)
        found = find_account(auth, certificate, caller);
    return found ? TIERCE__AUTH_OK : TIERCE__AUTH_UNKNOWN;
}

enum tierce__auth_result tierce__auth_check(struct tierce__auth *auth,
                                            const struct tierce__call *call,
                                            const struct tierce__need *need, bool may_wait,
                                            struct tierce__caller *caller, char why[256])
{
    *caller = (struct tierce__caller){.name = ""};
    why[0] = '\0';
    if (!auth->opts.is_on || need->right == 0) {
        caller->grant = auth->opts.is_on ? NULL : tierce__grant_hold(tierce__grant_of_admins());
        return TIERCE__AUTH_OK;
    }
    enum tierce__auth_result result = authenticate(auth, call, may_wait, caller);
    TIERCE_ASSERT((result == TIERCE__AUTH_OK) == (caller->grant != NULL));
    if (result != TIERCE__AUTH_OK)
        return result;
    if (tierce__need_is_met(need, caller->grant, caller->name, why))
        return TIERCE__AUTH_OK;
    tierce__caller_clear(caller);
    return TIERCE__AUTH_DENIED;
}

/* Whether everything that `inner` holds lies within `outer`. */
static bool lies_within(const struct tierce__grant *inner, const struct tierce__grant *outer)
{
    if (inner->reach == TIERCE__REACH_INSTANCE)
        return tierce__grant_has_instance(outer, inner->group, inner->instance);
    return inner->reach == TIERCE__REACH_GROUP ? tierce__grant_has_group(outer, inner->group)
                                               : tierce__grant_has_all(outer);
}

/* A line of the token file, in the order of meters or of lines. */
struct metered {
    struct tierce__meter *meter;
    size_t line;
    bool is_within; /* the scope */
};

static int by_meter(const void *a, const void *b)
{
    const struct metered *one = a, *other = b;
    uintptr_t first = (uintptr_t)one->meter, second = (uintptr_t)other->meter;
    return first != second ? (first > second) - (first < second)
                           : (one->line > other->line) - (one->line < other->line);
}

static int by_line(const void *a, const void *b)
{
    const struct metered *one = a, *other = b;
    return (one->line > other->line) - (one->line < other->line);
}

/* Several lines may share a meter, which counts them together. Keeps one entry for each meter, if
 * all of its lines lie within the scope. Returns how many are left, in the order of their first
 * lines. */
static size_t keep_whole(struct metered *all, size_t count)
{
    size_t kept = 0;
    qsort(all, count, sizeof(*all), by_meter);
    for (size_t from = 0, to; from < count; from = to) {
        bool is_within = true;
        for (to = from; to < count && all[to].meter == all[from].meter; to++)
            is_within = is_within && all[to].is_within;
        if (is_within)
            all[kept++] = all[from];
    }
    qsort(all, kept, sizeof(*all), by_line);
    TIERCE_DASSERT(kept <= count);
    return kept;
}

int tierce__auth_meters(struct tierce__auth *auth, const struct tierce__grant *scope,
                        struct tierce__meter ***out, size_t *count)
{
    struct tierce__grants_line line;
    *count = 0;
    tierce__lock_take(&auth->lock);
    size_t lines = tierce__grants_count(auth->grants);
    struct tierce__meter **meters = tierce__calloc(lines + 1, sizeof(struct tierce__meter *));
    struct metered *all = tierce__calloc(lines + 1, sizeof(*all));
    bool has_memory = meters != NULL && all != NULL;
    for (size_t i = 0; i < lines && has_memory; i++) {
        tierce__grants_at(auth->grants, i, &line);
        all[i] = (struct metered){
            .meter = line.meter, .line = i, .is_within = lies_within(line.grant, scope)};
    }
    size_t kept = has_memory ? keep_whole(all, lines) : 0;
    for (size_t i = 0; i < kept; i++)
        meters[i] = tierce__meter_hold(all[i].meter);
    tierce__lock_drop(&auth->lock);
    tierce__free(all);
    if (!has_memory) {
        tierce__free(meters);
        return -ENOMEM;
    }
    *out = meters;
    *count = kept;
    return 0;
}

/* ---- later ----------------------------------------------------------------------------------- */

/* The present grant of a caller by token, held; or NULL. */
static struct tierce__grant *grant_of_token(struct tierce__auth *auth,
                                            const struct tierce__caller *caller)
{
    struct tierce__grants_line line;
    struct tierce__grant *grant = NULL;
    tierce__lock_take(&auth->lock);
    if (tierce__grants_find_digest(auth->grants, caller->proof, &line))
        grant = tierce__grant_hold(line.grant);
    tierce__lock_drop(&auth->lock);
    return grant;
}

/* The same of an account. Its name may have been cut, but not its proof. */
static struct tierce__grant *grant_of_caller(struct tierce__auth *auth,
                                             const struct tierce__caller *caller)
{
    size_t count;
    uint8_t proof[DIGEST_BYTES];
    struct tierce__grant *grant = NULL;
    const struct tierce__catalog *catalog = tierce__registry_acquire(auth->opts.registry);
    const struct tierce__account *accounts = tierce__catalog_accounts(catalog, &count);
    for (size_t i = 0; i < count && grant == NULL; i++) {
        if (strncmp(accounts[i].name, caller->name, sizeof(caller->name) - 1) == 0 &&
            digest_hash(proof, &accounts[i]) && memcmp(proof, caller->proof, sizeof(proof)) == 0)
            grant = grant_of_account(auth, &accounts[i], NULL);
    }
    tierce__registry_release(auth->opts.registry, catalog);
    return grant;
}

bool tierce__auth_is_current(struct tierce__auth *auth, const struct tierce__caller *caller)
{
    if (!auth->opts.is_on)
        return true;
    TIERCE_ASSERT(caller->by != TIERCE__BY_NOTHING && caller->grant != NULL);
    struct tierce__grant *now = caller->by == TIERCE__BY_TOKEN ? grant_of_token(auth, caller)
                                                               : grant_of_caller(auth, caller);
    bool is_current = now != NULL && tierce__grant_is_same(now, caller->grant);
    tierce__grant_drop(now);
    return is_current;
}
