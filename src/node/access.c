/* SPDX-License-Identifier: Apache-2.0 */
#include "node/access.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/lock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define EVERYTHING ((uint32_t)(TIERCE__SCOPE_READ | TIERCE__SCOPE_WRITE | TIERCE__SCOPE_ADMIN))

static const char *const kind_names[TIERCE__SPACE_KINDS] = {
    [TIERCE__SPACE_RESP] = "resp", [TIERCE__SPACE_LM] = "lm", [TIERCE__SPACE_PROBE] = "probe"};

struct tenant {
    char name[TIERCE__TOKEN_NAME_BYTES];
    struct tierce__objects *spaces[TIERCE__SPACE_KINDS];
};

/* A tenant stays when its last token is removed, because its spaces may be in use. */
struct tierce__access {
    struct tierce_engine *engine;
    const char *token_file;
    struct tierce__lock lock; /* NODE_ACCESS: the following fields; one thread changes them */
    /* Of the tokens. Read without the lock to see whether a look at them is due: release,
     * acquire. */
    _Atomic uint64_t generation;
    struct tierce__tokens *tokens; /* NULL: no file */
    struct tenant *tenants;        /* the first is "" */
    size_t tenant_count;
};

/* "read,write" */
static bool read_scopes(uint32_t *out, const char *word)
{
    static const struct {
        const char *name;
        uint32_t scope;
    } scopes[] = {{"read", TIERCE__SCOPE_READ},
                  {"write", TIERCE__SCOPE_WRITE},
                  {"admin", TIERCE__SCOPE_ADMIN}};
    uint32_t found = 0;
    while (*word != '\0') {
        size_t bytes = strcspn(word, ","), i = 0;
        while (i < 3 &&
               (strlen(scopes[i].name) != bytes || memcmp(scopes[i].name, word, bytes) != 0))
            i++;
        if (i == 3)
            return false;
        found |= scopes[i].scope;
        word += bytes + (word[bytes] == ',' ? 1 : 0);
    }
    *out = found;
    return found != 0;
}

static struct tenant *find_tenant(const struct tierce__access *access, const char *name)
{
    for (size_t i = 0; i < access->tenant_count; i++) {
        if (strcmp(access->tenants[i].name, name) == 0)
            return &access->tenants[i];
    }
    return NULL;
}

static void close_spaces(const struct tenant *tenant)
{
    for (int kind = 0; kind < TIERCE__SPACE_KINDS; kind++) {
        if (tenant->spaces[kind] != NULL)
            tierce__objects_close(tenant->spaces[kind]);
    }
}

static int append_tenant(struct tierce__access *access, const struct tenant *tenant)
{
    TIERCE_DASSERT(find_tenant(access, tenant->name) == NULL);
    tierce__lock_take(&access->lock);
    struct tenant *tenants =
        tierce__realloc(access->tenants, (access->tenant_count + 1) * sizeof(*tenants));
    if (tenants != NULL) {
        tenants[access->tenant_count++] = *tenant;
        access->tenants = tenants;
    }
    tierce__lock_drop(&access->lock);
    return tenants != NULL ? 0 : -ENOMEM;
}

static int add_tenant(struct tierce__access *access, const char *name)
{
    struct tenant tenant = {.name = ""};
    int rc = 0;
    TIERCE_ASSERT(strlen(name) < sizeof(tenant.name));
    if (find_tenant(access, name) != NULL)
        return 0;
    snprintf(tenant.name, sizeof(tenant.name), "%s", name);
    for (int kind = 0; kind < TIERCE__SPACE_KINDS && rc == 0; kind++)
        if (kind == TIERCE__SPACE_RESP || name[0] == '\0')
            rc = tierce__objects_open(&tenant.spaces[kind], access->engine, kind_names[kind], name);
    if (rc == 0)
        rc = append_tenant(access, &tenant);
    if (rc < 0)
        close_spaces(&tenant);
    return rc;
}

static int add_tenants(struct tierce__access *access, const struct tierce__tokens *tokens,
                       char why[256])
{
    int rc = add_tenant(access, "");
    for (size_t i = 0; i < tierce__tokens_count(tokens) && rc == 0; i++)
        rc = add_tenant(access, tierce__tokens_at(tokens, i)->tenant);
    if (rc < 0)
        snprintf(why, 256, "the values of the tenants: %s", tierce_strerror(rc));
    TIERCE_ASSERT(rc < 0 || access->tenants[0].name[0] == '\0');
    return rc;
}

int tierce__access_read(struct tierce__tokens **out, struct tierce__access *access, char why[256])
{
    struct tierce__tokens *tokens = NULL;
    int rc = 0;
    if (access->token_file[0] != '\0')
        rc = tierce__tokens_load(
            &tokens,
            &(struct tierce__tokens_opts){
                .size = sizeof(struct tierce__tokens_opts),
                .path = access->token_file,
                .rights = read_scopes,
                .rights_text = "scopes are read, write and admin, separated by commas",
                .has_tenants = true},
            why);
    if (rc == 0)
        rc = add_tenants(access, tokens, why);
    if (rc < 0)
        tierce__tokens_destroy(tokens);
    else
        *out = tokens;
    return rc;
}

struct tierce__tokens *tierce__access_exchange(struct tierce__access *access,
                                               struct tierce__tokens *fresh)
{
    tierce__lock_take(&access->lock);
    struct tierce__tokens *before = access->tokens;
    access->tokens = fresh;
    atomic_fetch_add_explicit(&access->generation, 1, memory_order_release);
    tierce__lock_drop(&access->lock);
    return before;
}

int tierce__access_create(struct tierce__access **out, struct tierce_engine *engine,
                          const char *token_file, char why[256])
{
    struct tierce__access *access = tierce__calloc(1, sizeof(*access));
    if (access == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    access->engine = engine;
    access->token_file = token_file;
    tierce__lock_init(&access->lock, TIERCE__LOCK_NODE_ACCESS);
    int rc = tierce__access_read(&access->tokens, access, why);
    if (rc < 0)
        tierce__access_destroy(access);
    else
        *out = access;
    return rc;
}

void tierce__access_destroy(struct tierce__access *access)
{
    if (access == NULL)
        return;
    for (size_t i = 0; i < access->tenant_count; i++)
        close_spaces(&access->tenants[i]);
    tierce__lock_fini(&access->lock);
    tierce__free(access->tenants);
    tierce__tokens_destroy(access->tokens);
    tierce__free(access);
}

/* ---- identities ------------------------------------------------------------------------------ */

bool tierce__access_nobody(struct tierce__access *access, enum tierce__space_kind kind,
                           struct tierce__identity *out)
{
    if (access->token_file[0] != '\0')
        return false;
    *out = (struct tierce__identity){.scopes = EVERYTHING,
                                     .space = tierce__access_space(access, kind)};
    return true;
}

/* Under the lock. */
static void identify(const struct tierce__access *access, enum tierce__space_kind kind,
                     const struct tierce__token *token, struct tierce__identity *out)
{
    tierce__lock_assert_held(&access->lock);
    TIERCE_DASSERT(kind < TIERCE__SPACE_KINDS);
    *out = (struct tierce__identity){
        .scopes = token->rights,
        .space = find_tenant(access, token->tenant)->spaces[kind],
        .generation = atomic_load_explicit(&access->generation, memory_order_relaxed)};
    memcpy(out->digest, token->digest, sizeof(out->digest));
}

bool tierce__access_token(struct tierce__access *access, enum tierce__space_kind kind,
                          const char *name, size_t name_bytes, const char *token,
                          size_t token_bytes, struct tierce__identity *out)
{
    TIERCE_ASSERT(kind < TIERCE__SPACE_KINDS);
    tierce__lock_take(&access->lock);
    const struct tierce__token *found = tierce__tokens_find(access->tokens, token, token_bytes);
    if (found != NULL && name != NULL &&
        (strlen(found->name) != name_bytes || memcmp(found->name, name, name_bytes) != 0))
        found = NULL;
    if (found != NULL)
        identify(access, kind, found, out);
    tierce__lock_drop(&access->lock);
    return found != NULL;
}

bool tierce__access_still(struct tierce__access *access, enum tierce__space_kind kind,
                          struct tierce__identity *who)
{
    struct tierce__identity now = {0};
    TIERCE_DASSERT(kind < TIERCE__SPACE_KINDS);
    if (access->token_file[0] == '\0' ||
        atomic_load_explicit(&access->generation, memory_order_acquire) == who->generation)
        return true;
    tierce__lock_take(&access->lock);
    const struct tierce__token *found = tierce__tokens_find_digest(access->tokens, who->digest);
    if (found != NULL)
        identify(access, kind, found, &now);
    tierce__lock_drop(&access->lock);
    if (found == NULL || now.space != who->space)
        return false;
    *who = now;
    return true;
}

struct tierce__objects *tierce__access_space(struct tierce__access *access,
                                             enum tierce__space_kind kind)
{
    tierce__lock_take(&access->lock);
    TIERCE_ASSERT(kind < TIERCE__SPACE_KINDS && access->tenant_count > 0);
    struct tierce__objects *space = access->tenants[0].spaces[kind];
    tierce__lock_drop(&access->lock);
    return space;
}
