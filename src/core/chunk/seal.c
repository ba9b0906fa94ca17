/* SPDX-License-Identifier: Apache-2.0 */
#include "core/chunk/seal.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <string.h>

#include "base/assert.h"
#include "base/bytes.h"

static const char LABEL[] = "tierce coded object 1"; /* of HKDF-Expand */

#define NONCE_BYTES 12
#define BOUND_BYTES (TIERCE__SEAL_DIGEST_BYTES + 4) /* the additional data: digest and layer */
#define STEP_BYTES  (1u << 30)                      /* a length of OpenSSL is an int */

int tierce__seal_salt(uint8_t salt[TIERCE__SEAL_SALT_BYTES])
{
    return RAND_bytes(salt, (int)TIERCE__SEAL_SALT_BYTES) == 1 ? 0 : -EIO;
}

static int digest_of(uint8_t out[TIERCE__SEAL_DIGEST_BYTES], const uint8_t *header,
                     size_t header_bytes, const uint8_t *fields, size_t field_bytes)
{
    EVP_MD_CTX *sum = EVP_MD_CTX_new();
    bool done = sum != NULL && EVP_DigestInit_ex(sum, EVP_sha256(), NULL) == 1 &&
                EVP_DigestUpdate(sum, header, header_bytes) == 1 &&
                EVP_DigestUpdate(sum, fields, field_bytes) == 1 &&
                EVP_DigestFinal_ex(sum, out, NULL) == 1;
    EVP_MD_CTX_free(sum);
    return done ? 0 : -ENOMEM;
}

int tierce__seal_derive(struct tierce__seal *out, const struct tierce__seal_key *key,
                        const uint8_t *header, size_t header_bytes, const uint8_t *fields,
                        size_t field_bytes)
{
    uint8_t info[sizeof(LABEL) + TIERCE__SEAL_DIGEST_BYTES];
    unsigned length = 0;
    TIERCE_DASSERT(key->number > 0);
    int rc = digest_of(out->digest, header, header_bytes, fields, field_bytes);
    if (rc < 0)
        return rc;
    /* HKDF-Expand of one block. The operator's key is random, so it needs no HKDF-Extract. */
    memcpy(info, LABEL, sizeof(LABEL) - 1);
    memcpy(info + sizeof(LABEL) - 1, out->digest, TIERCE__SEAL_DIGEST_BYTES);
    info[sizeof(info) - 1] = 1;
    bool done = HMAC(EVP_sha256(), key->bytes, (int)TIERCE__SEAL_KEY_BYTES, info, sizeof(info),
                     out->key, &length) != NULL;
    TIERCE_DASSERT(!done || length == TIERCE__SEAL_KEY_BYTES);
    return done ? 0 : -ENOMEM;
}

static EVP_CIPHER_CTX *begin(const struct tierce__seal *seal, uint32_t layer, bool encrypts)
{
    uint8_t nonce[NONCE_BYTES] = {0}, bound[BOUND_BYTES];
    int length;
    tierce__store_le32(nonce, layer);
    memcpy(bound, seal->digest, TIERCE__SEAL_DIGEST_BYTES);
    tierce__store_le32(bound + TIERCE__SEAL_DIGEST_BYTES, layer);
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    if (cipher != NULL &&
        EVP_CipherInit_ex(cipher, EVP_aes_256_gcm(), NULL, seal->key, nonce, encrypts) == 1 &&
        EVP_CipherUpdate(cipher, NULL, &length, bound, (int)BOUND_BYTES) == 1)
        return cipher;
    EVP_CIPHER_CTX_free(cipher);
    return NULL;
}

static bool run(EVP_CIPHER_CTX *cipher, uint8_t *dst, const uint8_t *src, uint64_t bytes)
{
    bool done = true;
    for (uint64_t at = 0; done && at < bytes;) {
        int step = (int)(bytes - at < STEP_BYTES ? bytes - at : STEP_BYTES), length;
        done = EVP_CipherUpdate(cipher, dst + at, &length, src + at, step) == 1 && length == step;
        at += (uint64_t)step;
    }
    return done;
}

int tierce__seal_layer(uint8_t *dst, const struct tierce__seal *seal, uint32_t layer,
                       const uint8_t *src, uint64_t bytes)
{
    int length = 0;
    EVP_CIPHER_CTX *cipher = begin(seal, layer, true);
    bool done = cipher != NULL && run(cipher, dst, src, bytes) &&
                EVP_CipherFinal_ex(cipher, dst + bytes, &length) == 1 && length == 0 &&
                EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_GET_TAG, (int)TIERCE__SEAL_TAG_BYTES,
                                    dst + bytes) == 1;
    EVP_CIPHER_CTX_free(cipher);
    return done ? 0 : -ENOMEM;
}

int tierce__seal_open(uint8_t *dst, const struct tierce__seal *seal, uint32_t layer,
                      const uint8_t *src, uint64_t sealed)
{
    TIERCE_ASSERT(sealed >= TIERCE__SEAL_TAG_BYTES);
    uint64_t bytes = sealed - TIERCE__SEAL_TAG_BYTES;
    uint8_t tag[TIERCE__SEAL_TAG_BYTES], none;
    int length = 0;
    memcpy(tag, src + bytes, sizeof(tag));
    EVP_CIPHER_CTX *cipher = begin(seal, layer, false);
    bool done = cipher != NULL && run(cipher, dst, src, bytes) &&
                EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_SET_TAG, (int)sizeof(tag), tag) == 1;
    bool is_right = done && EVP_CipherFinal_ex(cipher, &none, &length) == 1;
    EVP_CIPHER_CTX_free(cipher);
    return is_right ? 0 : done ? TIERCE_E_VERSION : -ENOMEM;
}

void tierce__seal_wipe(void *secret, size_t bytes)
{
    OPENSSL_cleanse(secret, bytes);
}
