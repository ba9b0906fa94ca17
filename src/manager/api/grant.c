/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/grant.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/text/utf8.h"

#include <errno.h>
#include <string.h>

/* ---- rights ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint32_t rights;
} words[] = {
    {"read", TIERCE__RIGHT_READ},  {"write", TIERCE__RIGHT_WRITE}, {"trim", TIERCE__RIGHT_TRIM},
    {"admin", TIERCE__RIGHTS_ALL}, {"user", TIERCE__RIGHTS_USER},  {"node", TIERCE__RIGHT_NODE},
};

enum { WORDS = sizeof(words) / sizeof(words[0]) };

const char *tierce__right_name(enum tierce__right right)
{
    if (right == TIERCE__RIGHT_ADMIN)
        return "admin";
    for (size_t i = 0; i < WORDS; i++) {
        if (words[i].rights == (uint32_t)right)
            return words[i].name;
    }
    TIERCE_ASSERT(false);
    return "";
}

bool tierce__rights_parse(uint32_t *out, const char *text)
{
    uint32_t rights = 0;
    for (const char *word = text;; word++) {
        size_t bytes = strcspn(word, ","), i = 0;
        while (i < WORDS &&
               (strlen(words[i].name) != bytes || memcmp(words[i].name, word, bytes) != 0))
            i++;
        if (i == WORDS)
            return false;
        rights |= words[i].rights;
        word += bytes;
        if (*word == '\0')
            break;
    }
    TIERCE_ASSERT(rights != 0 && (rights & ~TIERCE__RIGHTS_ALL) == 0);
    *out = rights;
    return true;
}

/* ---- scopes ---------------------------------------------------------------------------------- */

/* Decodes %XX of a name. NULL: no memory, or *fault is the reason. */
static char *decode_name(const char *text, size_t bytes, const char **fault)
{
    char *name = tierce__alloc(bytes + 1);
    size_t n = 0;
    if (name == NULL)
        return NULL;
    for (size_t i = 0; i < bytes; i++, n++) {
        char digits[3] = {'\0'};
        uint8_t byte = (uint8_t)text[i];
        if (byte == '%') {
            memcpy(digits, text + i + 1, bytes - i > 2 ? 2 : 0);
            if (!tierce__hex_decode(&byte, 1, digits))
                *fault = "a % of the scope is not followed by two hex digits";
            i += 2;
        }
        name[n] = (char)byte;
    }
    TIERCE_ASSERT(n <= bytes);
    name[n] = '\0';
    if (*fault == NULL && n == 0)
        *fault = "a name of the scope is empty";
    if (*fault == NULL && !tierce__text_is_plain(name, n))
        *fault = "a name of the scope is not UTF-8, or has control characters";
    if (*fault == NULL)
        return name;
    tierce__free(name);
    return NULL;
}

static int read_scope(struct tierce__grant *grant, const char *scope, const char **fault)
{
    grant->reach = TIERCE__REACH_ALL;
    if (scope == NULL || strcmp(scope, "*") == 0)
        return 0;
    size_t bytes = strcspn(scope, "/");
    bool has_instance = scope[bytes] == '/';
    grant->reach = has_instance ? TIERCE__REACH_INSTANCE : TIERCE__REACH_GROUP;
    if (has_instance && strchr(scope + bytes + 1, '/') != NULL)
        *fault = "the scope has more than one '/'; in a name, write %2F";
    if (*fault == NULL)
        grant->group = decode_name(scope, bytes, fault);
    if (*fault == NULL && has_instance)
        grant->instance = decode_name(scope + bytes + 1, strlen(scope + bytes + 1), fault);
    if (*fault != NULL)
        return TIERCE_E_CONFIG;
    return grant->group != NULL && (!has_instance || grant->instance != NULL) ? 0 : -ENOMEM;
}

/* ---- grants ---------------------------------------------------------------------------------- */

int tierce__grant_create(struct tierce__grant **out, uint32_t rights, const char *scope,
                         const char **fault)
{
    struct tierce__grant *grant = tierce__calloc(1, sizeof(*grant));
    if (grant == NULL)
        return -ENOMEM;
    *fault = NULL;
    atomic_init(&grant->references, 1);
    grant->rights = rights;
    int rc = read_scope(grant, scope, fault);
    if (rc == 0)
        *out = grant;
    else
        tierce__grant_drop(grant);
    return rc;
}

/* The first reference of a constant grant is never dropped. */
struct tierce__grant *tierce__grant_of_admins(void)
{
    static struct tierce__grant grant = {
        .references = 1, .rights = TIERCE__RIGHTS_ALL, .reach = TIERCE__REACH_ALL};
    return &grant;
}

struct tierce__grant *tierce__grant_of_users(void)
{
    static struct tierce__grant grant = {
        .references = 1, .rights = TIERCE__RIGHTS_USER, .reach = TIERCE__REACH_ALL};
    return &grant;
}

struct tierce__grant *tierce__grant_hold(struct tierce__grant *grant)
{
    if (grant != NULL)
        atomic_fetch_add_explicit(&grant->references, 1, memory_order_relaxed);
    return grant;
}

void tierce__grant_drop(struct tierce__grant *grant)
{
    /* Pairs with the drops of other threads: their reads of the grant are over. */
    if (grant == NULL ||
        atomic_fetch_sub_explicit(&grant->references, 1, memory_order_acq_rel) != 1)
        return;
    tierce__free(grant->group);
    tierce__free(grant->instance);
    tierce__free(grant);
}

static bool is_same_name(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

bool tierce__grant_is_same(const struct tierce__grant *a, const struct tierce__grant *b)
{
    return a->rights == b->rights && a->reach == b->reach && is_same_name(a->group, b->group) &&
           is_same_name(a->instance, b->instance);
}

/* ---- what a scope holds ---------------------------------------------------------------------- */

bool tierce__grant_has_all(const struct tierce__grant *grant)
{
    return grant != NULL && grant->reach == TIERCE__REACH_ALL;
}

bool tierce__grant_has_group(const struct tierce__grant *grant, const char *group)
{
    return tierce__grant_has_all(grant) || (grant != NULL && grant->reach == TIERCE__REACH_GROUP &&
                                            strcmp(grant->group, group) == 0);
}

bool tierce__grant_has_instance(const struct tierce__grant *grant, const char *group,
                                const char *instance)
{
    return tierce__grant_has_group(grant, group) ||
           (grant != NULL && grant->reach == TIERCE__REACH_INSTANCE &&
            strcmp(grant->group, group) == 0 && strcmp(grant->instance, instance) == 0);
}

bool tierce__grant_meets_group(const struct tierce__grant *grant, const char *group)
{
    return tierce__grant_has_all(grant) ||
           (grant != NULL && grant->group != NULL && strcmp(grant->group, group) == 0);
}

bool tierce__grant_has_storage(const struct tierce__grant *grant,
                               const struct tierce__catalog *catalog, const char *storage)
{
    if (tierce__grant_has_all(grant))
        return true;
    const struct tierce__group *group =
        grant != NULL && grant->group != NULL ? tierce__catalog_group(catalog, grant->group) : NULL;
    for (size_t i = 0; group != NULL && i < group->storage_candidate_count; i++) {
        if (strcmp(group->storage_candidates[i], storage) == 0)
            return true;
    }
    return false;
}
