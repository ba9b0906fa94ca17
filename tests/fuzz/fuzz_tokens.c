/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "net/tokens.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Token files: rejected in words, or every name and tenant of them is text that fits. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool rights(uint32_t *out, const char *word)
{
    *out = (uint32_t)strlen(word);
    return strcmp(word, "nothing") != 0;
}

static void check(const struct tierce__tokens *tokens)
{
    for (size_t i = 0; i < tierce__tokens_count(tokens); i++) {
        const struct tierce__token *token = tierce__tokens_at(tokens, i);
        TIERCE_ASSERT(token->name[0] != '\0');
        TIERCE_ASSERT(strnlen(token->name, sizeof(token->name)) < sizeof(token->name));
        TIERCE_ASSERT(strnlen(token->tenant, sizeof(token->tenant)) < sizeof(token->tenant));
    }
    (void)tierce__tokens_find(tokens, "shown", 5);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64], why[256] = "";
    struct tierce__tokens *tokens = NULL;
    int fd = memfd_create("tokens", MFD_CLOEXEC);
    TIERCE_ASSERT(fd >= 0 && fchmod(fd, 0600) == 0);
    TIERCE_ASSERT(write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int rc = tierce__tokens_load(
        &tokens,
        &(struct tierce__tokens_opts){.size = sizeof(struct tierce__tokens_opts),
                                      .path = path,
                                      .rights = rights,
                                      .rights_text = "rights are words",
                                      .has_tenants = true},
        why);
    if (rc == 0)
        check(tokens);
    else
        TIERCE_ASSERT(why[0] != '\0');
    tierce__tokens_destroy(tokens);
    close(fd);
    return 0;
}
