/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/grants.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "net/server/tokens.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A line's grant, by the index of its token. */
struct entry {
    const struct tierce__token *token;
    struct tierce__grant *grant; /* held */
};

struct tierce__grants {
    struct tierce__tokens *tokens;
    struct entry *entries;
    size_t count, room, token_count;
    bool has_no_memory;
};

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

static int add_entry(struct tierce__grants *grants, const struct tierce__token *token,
                     const char *scope, char fault[TIERCE__TOKEN_FAULT_BYTES])
{
    struct entry entry = {.token = token};
    const char *why = NULL;
    int rc = tierce__grant_create(&entry.grant, token->rights, scope, &why);
    if (rc == TIERCE_E_CONFIG)
        (void)complain(fault, why);
    if (rc == 0 && !check_alone(grants, &entry, fault))
        rc = TIERCE_E_CONFIG;
    if (rc == 0 && TIERCE__GROW(grants->entries, grants->room, grants->count + 1, 16) != 0)
        rc = -ENOMEM;
    if (rc < 0) {
        tierce__grant_drop(entry.grant);
        return rc;
    }
    grants->entries[grants->count++] = entry;
    grants->token_count += !token->is_account;
    return 0;
}

/* The words after the digest. */
static bool read_more(void *arg, size_t index, const struct tierce__token *token,
                      char *const *words, size_t count, char fault[TIERCE__TOKEN_FAULT_BYTES])
{
    struct tierce__grants *grants = arg;
    TIERCE_ASSERT(index == grants->count);
    if (count > 1)
        return complain(fault, "there are too many words");
    int rc = add_entry(grants, token, count > 0 ? words[0] : NULL, fault);
    if (rc == -ENOMEM)
        grants->has_no_memory = !complain(fault, "no memory");
    return rc == 0;
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
            .rights_text = "a role must be read, write, trim, admin or user, or several of them "
                           "separated by commas",
            .has_accounts = true,
            .more = read_more,
            .more_arg = grants,
            .more_text = "[SCOPE]"},
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
        tierce__grant_drop(grants->entries[i].grant);
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
    return (struct tierce__grants_line){.name = entry->token->name, .grant = entry->grant};
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
