/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/account.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum {
    LOG2_N = 14, /* with r = 8: 16 MiB */
    R = 8,
    P = 1,
    SALT_BYTES = 16,
    HASH_BYTES = 32,
    TEXT_BYTES = 8 + 3 * 4 + 2 * SALT_BYTES + 1 + 2 * HASH_BYTES + 1,
};

struct hash {
    unsigned log2_n, r, p;
    uint8_t salt[SALT_BYTES], bytes[HASH_BYTES];
};

static bool read_hash(struct hash *out, const char *text);

/* Computes hash->bytes from the other fields. */
static int derive(struct hash *hash, const char *password)
{
    TIERCE_ASSERT(hash->log2_n >= 1 && hash->log2_n <= 16 && hash->r <= R);
    TIERCE_ASSERT(hash->r >= 1 && hash->p >= 1);
    const uint64_t memory_max = 64u << 20;
    int ok = EVP_PBE_scrypt(password, strlen(password), hash->salt, sizeof(hash->salt),
                            1ull << hash->log2_n, hash->r, hash->p, memory_max, hash->bytes,
                            sizeof(hash->bytes));
    return ok == 1 ? 0 : TIERCE_E_UNSUPPORTED;
}

int tierce__password_hash(char **out, const char *password)
{
    struct hash hash = {.log2_n = LOG2_N, .r = R, .p = P};
    char salt[2 * SALT_BYTES + 1], bytes[2 * HASH_BYTES + 1];
    if (getrandom(hash.salt, sizeof(hash.salt), 0) != (ssize_t)sizeof(hash.salt))
        return -EIO;
    int rc = derive(&hash, password);
    if (rc != 0)
        return rc;
    char *text = tierce__alloc(TEXT_BYTES);
    if (text == NULL)
        return -ENOMEM;
    tierce__hex_encode(salt, hash.salt, sizeof(hash.salt));
    tierce__hex_encode(bytes, hash.bytes, sizeof(hash.bytes));
    snprintf(text, TEXT_BYTES, "scrypt$%u$%u$%u$%s$%s", hash.log2_n, hash.r, hash.p, salt, bytes);
    TIERCE_ASSERT(strlen(text) + 1 < TEXT_BYTES);
    TIERCE_DASSERT(read_hash(&(struct hash){0}, text));
    *out = text;
    return 0;
}

/* Parses a hash. Its cost is bounded, so that a hostile hash cannot block the manager. */
static bool read_hash(struct hash *out, const char *text)
{
    int at = 0;
    if (sscanf(text, "scrypt$%2u$%2u$%2u$%n", &out->log2_n, &out->r, &out->p, &at) != 3 || at == 0)
        return false;
    text += at;
    return out->log2_n >= 1 && out->log2_n <= 16 && out->r >= 1 && out->r <= R && out->p >= 1 &&
           out->p <= 4 && strlen(text) == 2 * SALT_BYTES + 1 + 2 * HASH_BYTES &&
           tierce__hex_decode(out->salt, SALT_BYTES, text) && text[2 * SALT_BYTES] == '$' &&
           tierce__hex_decode(out->bytes, HASH_BYTES, text + 2 * SALT_BYTES + 1);
}

bool tierce__password_is(const char *hash, const char *password)
{
    struct hash stored = {0}, given;
    bool is_hash = hash != NULL && read_hash(&stored, hash);
    if (!is_hash)
        stored = (struct hash){.log2_n = LOG2_N, .r = R, .p = P};
    given = stored;
    int rc = derive(&given, password);
    bool is_equal = tierce__secrets_equal(given.bytes, stored.bytes, HASH_BYTES);
    OPENSSL_cleanse(&given, sizeof(given));
    return rc == 0 && is_hash && is_equal;
}

void tierce__password_free(char *password)
{
    if (password != NULL)
        OPENSSL_cleanse(password, strlen(password));
    tierce__free(password);
}
