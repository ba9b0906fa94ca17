/* SPDX-License-Identifier: Apache-2.0 */
#include "core/key/lmcache.h"
#include "base/assert.h"
#include "core/key/cbor.h"
#include "core/key/chain_hash.h"
#include "core/key/sha256.h"

/* ---- CPython's hash() ----------------------------------------------------------------------- */

/* An int hashes to its value modulo this prime, with its sign. */
#define INT_MODULUS ((1ULL << 61) - 1)

/* A tuple hashes by the rounds of XXH64 over its items' hashes. */
#define TUPLE_PRIME_1          0x9e3779b185ebca87ULL
#define TUPLE_PRIME_2          0xc2b2ae3d27d4eb4fULL
#define TUPLE_PRIME_5          0x27d4eb2f165667c5ULL
#define TUPLE_LENGTH_SALT      3527539ULL
#define TUPLE_INSTEAD_OF_ERROR 1546275796ULL

int64_t tierce__python_hash_int(struct tierce__lmcache_int value)
{
    int64_t hash = (int64_t)(value.magnitude % INT_MODULUS);
    if (value.negative)
        hash = -hash;
    return hash == -1 ? -2 : hash; /* -1 means an error to CPython */
}

static inline uint64_t tuple_round(uint64_t acc, uint64_t item_hash)
{
    acc += item_hash * TUPLE_PRIME_2;
    acc = acc << 31 | acc >> 33;
    return acc * TUPLE_PRIME_1;
}

static inline int64_t tuple_end(uint64_t acc, size_t count)
{
    acc += count ^ (TUPLE_PRIME_5 ^ TUPLE_LENGTH_SALT);
    return (int64_t)(acc == UINT64_MAX ? TUPLE_INSTEAD_OF_ERROR : acc);
}

int64_t tierce__python_hash_tuple(const int64_t *item_hashes, size_t count)
{
    uint64_t acc = TUPLE_PRIME_5;
    for (size_t i = 0; i < count; i++)
        acc = tuple_round(acc, (uint64_t)item_hashes[i]);
    return tuple_end(acc, count);
}

static struct tierce__lmcache_int int_from_signed(int64_t value)
{
    bool negative = value < 0;
    uint64_t bits = (uint64_t)value;
    return (struct tierce__lmcache_int){.magnitude = negative ? 0 - bits : bits,
                                        .negative = negative};
}

static struct tierce__lmcache_int hash_builtin(struct tierce__lmcache_int prefix,
                                               const int32_t *tokens, size_t count)
{
    TIERCE_DASSERT(count > 0);
    /* A token is below the modulus and not negative, so that it hashes to itself. */
    uint64_t acc = TUPLE_PRIME_5;
    for (size_t i = 0; i < count; i++)
        acc = tuple_round(acc, (uint32_t)tokens[i]);
    int64_t items[3] = {tierce__python_hash_int(prefix), tuple_end(acc, count),
                        tierce__python_hash_tuple(NULL, 0)};
    return int_from_signed(tierce__python_hash_tuple(items, 3));
}

/* ---- sha256_cbor ---------------------------------------------------------------------------- */

static struct tierce__lmcache_int fold_digest(const uint8_t digest[TIERCE__SHA256_BYTES])
{
    struct tierce__lmcache_int folded = {0};
    for (size_t i = 0; i < 8; i++)
        folded.magnitude = folded.magnitude << 8 | digest[i];
    return folded;
}

/* [prefix, [token...], []], fed in slices so that any chunk size needs no memory. */
static struct tierce__lmcache_int hash_sha256_cbor(struct tierce__lmcache_int prefix,
                                                   const int32_t *tokens, size_t count)
{
    TIERCE_DASSERT(count > 0 && (!prefix.negative || prefix.magnitude > 0));
    uint8_t slice[512], digest[TIERCE__SHA256_BYTES];
    const uint8_t *limit = slice + sizeof(slice) - TIERCE__CBOR_U32_MAX;
    struct tierce__sha256 sha;
    tierce__sha256_init(&sha);

    uint8_t *p = tierce__cbor_put_head(slice, TIERCE__CBOR_ARRAY, 3);
    if (prefix.negative)
        p = tierce__cbor_put_head(p, TIERCE__CBOR_NEGATIVE, prefix.magnitude - 1);
    else
        p = tierce__cbor_put_head(p, TIERCE__CBOR_UNSIGNED, prefix.magnitude);
    p = tierce__cbor_put_head(p, TIERCE__CBOR_ARRAY, count);
    for (size_t i = 0; i < count; i++) {
        if (p > limit) {
            tierce__sha256_update(&sha, slice, (size_t)(p - slice));
            p = slice;
        }
        p = tierce__cbor_put_u32(p, (uint32_t)tokens[i]);
    }
    TIERCE_DASSERT((size_t)(p - slice) <= sizeof(slice));
    tierce__sha256_update(&sha, slice, (size_t)(p - slice));
    p = tierce__cbor_put_head(slice, TIERCE__CBOR_ARRAY, 0);
    tierce__sha256_update(&sha, slice, (size_t)(p - slice));
    tierce__sha256_final(&sha, digest);
    return fold_digest(digest);
}

struct tierce__lmcache_int tierce__lmcache_vllm_none_hash(void)
{
    uint8_t digest[TIERCE_HASH_BYTES];
    tierce__chain_vllm_none_hash(digest);
    return fold_digest(digest);
}

/* ---- chunks --------------------------------------------------------------------------------- */

size_t tierce__lmcache_chunk_count(const struct tierce__lmcache_opts *opts, size_t count)
{
    TIERCE_ASSERT(opts->chunk_tokens >= 1);
    size_t whole = count / opts->chunk_tokens;
    return whole + (opts->unfull_tail && count % opts->chunk_tokens > 0 ? 1 : 0);
}

void tierce__lmcache_hash_chunks(struct tierce__lmcache_int *hashes,
                                 const struct tierce__lmcache_opts *opts, const int32_t *tokens,
                                 size_t count)
{
    struct tierce__lmcache_int prefix = opts->none_hash;
    TIERCE_ASSERT(!prefix.negative || prefix.magnitude > 0);
    size_t chunks = tierce__lmcache_chunk_count(opts, count);
    for (size_t i = 0; i < chunks; i++) {
        size_t start = i * opts->chunk_tokens, left = count - start;
        size_t length = left < opts->chunk_tokens ? left : opts->chunk_tokens;
        prefix = opts->algo == TIERCE__LMCACHE_BUILTIN
                     ? hash_builtin(prefix, tokens + start, length)
                     : hash_sha256_cbor(prefix, tokens + start, length);
        TIERCE_DASSERT(length > 0 && length <= opts->chunk_tokens);
        hashes[i] = prefix;
    }
}

bool tierce__lmcache_parse_none_hash(struct tierce__lmcache_int *out, const char *text)
{
    char *end;
    bool negative = text[0] == '-';
    if (strcmp(text, "vllm") == 0) {
        *out = tierce__lmcache_vllm_none_hash();
        return true;
    }
    text += negative;
    if (text[0] == '\0' || strlen(text) > 16 || strspn(text, "0123456789abcdef") != strlen(text))
        return false;
    out->magnitude = strtoull(text, &end, 16);
    out->negative = negative && out->magnitude != 0;
    return true;
}
