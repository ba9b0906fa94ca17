/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/grants.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/tokens.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A line's grant, by the index of its token. */
struct entry {
    const struct tierce__token *token;
    struct tierce__grant *grant; /* held */
    struct tierce__meter *meter; /* held; that of the first line of the name */
};

struct tierce__grants {
    struct tierce__tokens *tokens;
    struct entry *entries;
    size_t count, room, token_count;
    bool has_no_memory;
};

static void drop_entry(const struct entry *entry)
{
    tierce__grant_drop(entry->grant);
    tierce__meter_drop(entry->meter);
}

static bool complain(char fault[TIERCE__TOKEN_FAULT_BYTES], const char *text)
{
    TIERCE_ASSERT(strlen(text) < TIERCE__TOKEN_FAULT_BYTES);
    snprintf(fault, TIERCE__TOKEN_FAULT_BYTES, "%s", text);
    return false;
}

/* Whether both lines are of the same token, or of the same account. */
static bool is_of_same(const struct tierce__token *a, const struct tierce__token *b)
{
    if (a->is_account != b->is_account)
        return false;
    return a->is_account ? strcmp(a->name, b->name) == 0
                         : memcmp(a->digest, b->digest, sizeof(a->digest)) == 0;
}

/* A second line for a token would decide silently which of them counts. */
static bool check_alone(const struct tierce__grants *grants, const struct entry *entry,
                        char fault[TIERCE__TOKEN_FAULT_BYTES])
{
    for (size_t i = 0; i < grants->count; i++) {
        const struct entry *other = &grants->entries[i];
        if (is_of_same(entry->token, other->token) &&
            (strcmp(entry->token->name, other->token->name) != 0 ||
             !tierce__grant_is_same(entry->grant, other->grant)))
            return complain(fault, entry->token->is_account
                                       ? "another line of this account says otherwise"
                                       : "another line of this token says otherwise");
    }
    return true;
}

static const struct entry *find_name(const struct tierce__grants *grants, const char *name)
{
    for (size_t i = 0; i < grants->count; i++) {
        if (strcmp(grants->entries[i].token->name, name) == 0)
            return &grants->entries[i];
    }
    return NULL;
}

/* Lines of one name are one account, whose limits must not depend on their order. */
static int find_meter(struct tierce__meter **out, const struct tierce__grants *grants,
                      const struct tierce__token *token, const struct tierce__limits *limits,
                      const char **fault)
{
    const struct entry *other = find_name(grants, token->name);
    if (other == NULL)
        return tierce__meter_create(out, token->name, limits, tierce__now_ns());
    if (!tierce__limits_are_same(limits, &other->meter->limits)) {
        *fault = "another line of this name has other limits";
        return TIERCE_E_CONFIG;
    }
    *out = tierce__meter_hold(other->meter);
    return 0;
}

static int add_entry(struct tierce__grants *grants, const struct tierce__token *token,
                     const char *scope, const struct tierce__limits *limits,
                     char fault[TIERCE__TOKEN_FAULT_BYTES])
{
    struct entry entry = {.token = token};
    const char *why = NULL;
    int rc = tierce__grant_create(&entry.grant, token->rights, scope, &why);
    if (rc == 0)
        rc = find_meter(&entry.meter, grants, token, limits, &why);
    if (rc == TIERCE_E_CONFIG)
        (void)complain(fault, why);
    if (rc == 0 && !check_alone(grants, &entry, fault))
        rc = TIERCE_E_CONFIG;
    if (rc == 0 && TIERCE__GROW(grants->entries, grants->room, grants->count + 1, 16) != 0)
        rc = -ENOMEM;
    if (rc < 0) {
        drop_entry(&entry);
        return rc;
    }
    grants->entries[grants->count++] = entry;
    grants->token_count += !token->is_account;
    return 0;
}

/* The words after the digest. A '=' in a scope is written %3D. */
static bool read_more(void *arg, size_t index, const struct tierce__token *token,
                      char *const *words, size_t count, char fault[TIERCE__TOKEN_FAULT_BYTES])
{
    struct tierce__grants *grants = arg;
    struct tierce__limits limits = {{0}};
    const char *why;
    TIERCE_ASSERT(index == grants->count);
    bool has_scope = count > 0 && strchr(words[0], '=') == NULL;
    for (size_t i = has_scope ? 1 : 0; i < count; i++) {
        if (!tierce__limits_parse(&limits, words[i], &why))
            return complain(fault, why);
    }
    int rc = add_entry(grants, token, has_scope ? words[0] : NULL, &limits, fault);
    if (rc == -ENOMEM)
        grants->has_no_memory = !complain(fault, "no memory");
    return rc == 0;
}

void tierce__grants_adopt(struct tierce__grants *grants, const struct tierce__grants *earlier)
{
    for (size_t i = 0; grants != NULL && earlier != NULL && i < grants->count; i++) {
        const struct entry *entry = &grants->entries[i];
        const struct entry *before = find_name(earlier, entry->token->name);
        if (before != NULL && find_name(grants, entry->token->name) == entry)
            tierce__meter_adopt(entry->meter, before->meter);
    }
}

int tierce__grants_load(struct tierce__grants **out, const char *path, char why[256])
{
    struct tierce__grants *grants = tierce__calloc(1, sizeof(*grants));
    if (grants == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    int rc = tierce__tokens_load(
        &grants->tokens,
        &(struct tierce__tokens_opts){
            .size = sizeof(struct tierce__tokens_opts),
            .path = path,
            .rights = tierce__rights_parse,
            .rights_text = "a role must be read, write, trim, node, admin or user, or several of "
                           "them separated by commas",
            .has_accounts = true,
            .more = read_more,
            .more_arg = grants,
            .more_text = "[SCOPE] [LIMITS]"},
        why);
    if (rc < 0 && grants->has_no_memory)
        rc = -ENOMEM;
    if (rc < 0)
        tierce__grants_destroy(grants);
    else
        *out = grants;
    TIERCE_ASSERT(rc < 0 || grants->count == tierce__tokens_count(grants->tokens));
    return rc;
}

void tierce__grants_destroy(struct tierce__grants *grants)
{
    if (grants == NULL)
        return;
    for (size_t i = 0; i < grants->count; i++)
        drop_entry(&grants->entries[i]);
    tierce__free(grants->entries);
    tierce__tokens_destroy(grants->tokens);
    tierce__free(grants);
}

size_t tierce__grants_token_count(const struct tierce__grants *grants)
{
    return grants != NULL ? grants->token_count : 0;
}

static struct tierce__grants_line line_of(const struct entry *entry)
{
    TIERCE_DASSERT(entry->grant != NULL);
    return (struct tierce__grants_line){
        .name = entry->token->name, .grant = entry->grant, .meter = entry->meter};
}

size_t tierce__grants_count(const struct tierce__grants *grants)
{
    return grants != NULL ? grants->count : 0;
}

void tierce__grants_at(const struct tierce__grants *grants, size_t index,
                       struct tierce__grants_line *out)
{
    TIERCE_ASSERT(index < grants->count);
    *out = line_of(&grants->entries[index]);
}

static bool take_token(const struct tierce__grants *grants, const struct tierce__token *token,
                       struct tierce__grants_line *out)
{
    if (token == NULL)
        return false;
    *out = line_of(&grants->entries[tierce__tokens_index(grants->tokens, token)]);
    return true;
}

bool tierce__grants_find(const struct tierce__grants *grants, const char *shown,
                         struct tierce__grants_line *out, uint8_t digest[32])
{
    if (grants == NULL)
        return false;
    const struct tierce__token *token = tierce__tokens_find(grants->tokens, shown, strlen(shown));
    if (token != NULL)
        memcpy(digest, token->digest, TIERCE__TOKEN_DIGEST_BYTES);
    return take_token(grants, token, out);
}

bool tierce__grants_find_digest(const struct tierce__grants *grants, const uint8_t digest[32],
                                struct tierce__grants_line *out)
{
    return grants != NULL &&
           take_token(grants, tierce__tokens_find_digest(grants->tokens, digest), out);
}

bool tierce__grants_find_account(const struct tierce__grants *grants, const char *name,
                                 struct tierce__grants_line *out)
{
    for (size_t i = 0; grants != NULL && i < grants->count; i++) {
        const struct entry *entry = &grants->entries[i];
        if (!entry->token->is_account || strcmp(entry->token->name, name) != 0)
            continue;
        *out = line_of(entry);
        return true;
    }
    return false;
}
