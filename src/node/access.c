/* SPDX-License-Identifier: Apache-2.0 */
#include "node/access.h"
#include "base/alloc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define EVERYTHING ((uint32_t)(TIERCE__SCOPE_READ | TIERCE__SCOPE_WRITE | TIERCE__SCOPE_ADMIN))

static const char *const kind_names[TIERCE__SPACE_KINDS] = {
    [TIERCE__SPACE_RESP] = "resp", [TIERCE__SPACE_LM] = "lm", [TIERCE__SPACE_PROBE] = "probe"};

struct tenant {
    const char *name;
    struct tierce__objects *spaces[TIERCE__SPACE_KINDS];
};

struct tierce__access {
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

static int add_tenant(struct tierce__access *access, struct tierce_engine *engine, const char *name)
{
    int rc = 0;
    if (find_tenant(access, name) != NULL)
        return 0;
    struct tenant *tenant = &access->tenants[access->tenant_count++];
    tenant->name = name;
    for (int kind = 0; kind < TIERCE__SPACE_KINDS && rc == 0; kind++)
        if (kind == TIERCE__SPACE_RESP || name[0] == '\0')
            rc = tierce__objects_open(&tenant->spaces[kind], engine, kind_names[kind], name);
    return rc;
}

static int add_tenants(struct tierce__access *access, struct tierce_engine *engine, char why[256])
{
    size_t count = tierce__tokens_count(access->tokens);
    access->tenants = tierce__calloc(count + 1, sizeof(*access->tenants));
    int rc = access->tenants != NULL ? add_tenant(access, engine, "") : -ENOMEM;
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = add_tenant(access, engine, tierce__tokens_at(access->tokens, i)->tenant);
    if (rc < 0)
        snprintf(why, 256, "the values of the tenants: %s", tierce_strerror(rc));
    return rc;
}

int tierce__access_create(struct tierce__access **out, struct tierce_engine *engine,
                          const char *token_file, char why[256])
{
    struct tierce__access *access = tierce__calloc(1, sizeof(*access));
    if (access == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    int rc = 0;
    if (token_file[0] != '\0')
        rc = tierce__tokens_load(
            &access->tokens,
            &(struct tierce__tokens_opts){.size = sizeof(struct tierce__tokens_opts),
                                          .path = token_file,
                                          .rights = read_scopes,
                                          .rights_text = "scopes are read, write and admin, with "
                                                         "commas between",
                                          .has_tenants = true},
            why);
    if (rc == 0)
        rc = add_tenants(access, engine, why);
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
    for (size_t i = 0; i < access->tenant_count; i++) {
        for (int kind = 0; kind < TIERCE__SPACE_KINDS; kind++) {
            if (access->tenants[i].spaces[kind] != NULL)
                tierce__objects_close(access->tenants[i].spaces[kind]);
        }
    }
    tierce__free(access->tenants);
    tierce__tokens_destroy(access->tokens);
    tierce__free(access);
}

bool tierce__access_nobody(struct tierce__access *access, enum tierce__space_kind kind,
                           struct tierce__identity *out)
{
    if (access->tokens != NULL)
        return false;
    *out = (struct tierce__identity){
        .scopes = EVERYTHING, .name = "", .space = access->tenants[0].spaces[kind]};
    return true;
}

bool tierce__access_token(struct tierce__access *access, enum tierce__space_kind kind,
                          const char *name, size_t name_bytes, const char *token,
                          size_t token_bytes, struct tierce__identity *out)
{
    const struct tierce__token *found = tierce__tokens_find(access->tokens, token, token_bytes);
    if (found == NULL)
        return false;
    if (name != NULL &&
        (strlen(found->name) != name_bytes || memcmp(found->name, name, name_bytes) != 0))
        return false;
    *out = (struct tierce__identity){.scopes = found->rights,
                                     .name = found->name,
                                     .space = find_tenant(access, found->tenant)->spaces[kind]};
    return true;
}

struct tierce__objects *tierce__access_space(struct tierce__access *access,
                                             enum tierce__space_kind kind)
{
    return access->tenants[0].spaces[kind];
}
