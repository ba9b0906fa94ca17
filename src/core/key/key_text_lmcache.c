/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/bytes.h"
#include "base/text/utf8.h"
#include "core/key/key_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HASH_DIGITS_MAX   (2 * TIERCE_HASH_BYTES)
#define NUMBER_DIGITS_MAX 16

/* The names of LMCache 0.5.6 for the types a KV cache may have. */
static const char *const dtypes[] = {
    "half",  "bfloat16", "float", "double",     "int8",         "uint8",    "int16",
    "int32", "int64",    "bool",  "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz",
};

static const char *find_dtype(const char *name, size_t size)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (strlen(dtypes[i]) == size && memcmp(dtypes[i], name, size) == 0)
            return dtypes[i];
    return NULL;
}

/* ---- hashes --------------------------------------------------------------------------------- */

struct tierce__lmcache_hash tierce__lmcache_hash_of_int(struct tierce__lmcache_int value)
{
    struct tierce__lmcache_hash hash = {.digits = 1, .negative = value.negative};
    for (size_t i = 0; i < 8; i++)
        hash.value[TIERCE_HASH_BYTES - 1 - i] = (uint8_t)(value.magnitude >> (8 * i));
    for (uint64_t rest = value.magnitude >> 4; rest > 0; rest >>= 4)
        hash.digits++;
    TIERCE_DASSERT(hash.digits <= NUMBER_DIGITS_MAX);
    return hash;
}

static void hash_digits(char text[HASH_DIGITS_MAX + 1], const struct tierce__lmcache_hash *hash)
{
    char all[HASH_DIGITS_MAX + 1];
    TIERCE_DASSERT(hash->digits >= 1 && hash->digits <= HASH_DIGITS_MAX);
    tierce__hex_encode(all, hash->value, TIERCE_HASH_BYTES);
    memcpy(text, all + HASH_DIGITS_MAX - hash->digits, (size_t)hash->digits + 1);
}

/* Whether the digits are what LMCache prints for some number or digest. */
static bool digits_ok(const char *digits, size_t count, bool negative)
{
    if (count < 1 || count > HASH_DIGITS_MAX || strspn(digits, "0123456789abcdef") != count)
        return false;
    if (negative)
        return count <= NUMBER_DIGITS_MAX && digits[0] != '0';
    return digits[0] != '0' || count == 1 || count % 2 == 0;
}

static bool hash_ok(const struct tierce__lmcache_hash *hash)
{
    char digits[HASH_DIGITS_MAX + 1];
    if (hash->digits < 1 || hash->digits > HASH_DIGITS_MAX)
        return false;
    char all[HASH_DIGITS_MAX + 1];
    tierce__hex_encode(all, hash->value, TIERCE_HASH_BYTES);
    if (strspn(all, "0") < (size_t)(HASH_DIGITS_MAX - hash->digits))
        return false;
    hash_digits(digits, hash);
    return digits_ok(digits, hash->digits, hash->negative);
}

static bool parse_hash(struct tierce__lmcache_hash *hash, const char *text, size_t size)
{
    bool negative = size > 0 && text[0] == '-';
    if (negative) {
        text++;
        size--;
    }
    if (size < 1 || size > HASH_DIGITS_MAX)
        return false;
    char all[HASH_DIGITS_MAX + 1];
    memset(all, '0', HASH_DIGITS_MAX);
    memcpy(all + HASH_DIGITS_MAX - size, text, size);
    all[HASH_DIGITS_MAX] = '\0';
    if (!digits_ok(all + HASH_DIGITS_MAX - size, size, negative))
        return false;
    hash->negative = negative;
    hash->digits = (uint8_t)size;
    return tierce__hex_decode(hash->value, TIERCE_HASH_BYTES, all);
}

/* ---- parts ---------------------------------------------------------------------------------- */

struct lmcache_key_part {
    const char *text;
    size_t size;
};

/* Cuts the text before the next '@' off `rest`; after the last part rest->text is NULL. */
static struct lmcache_key_part take_part(struct lmcache_key_part *rest)
{
    const char *at = rest->size > 0 ? memchr(rest->text, '@', rest->size) : NULL;
    struct lmcache_key_part part = *rest;
    if (at == NULL) {
        *rest = (struct lmcache_key_part){0};
        return part;
    }
    TIERCE_DASSERT((size_t)(at - part.text) < rest->size);
    part.size = (size_t)(at - part.text);
    rest->text = at + 1;
    rest->size -= part.size + 1;
    return part;
}

static bool all_digits(struct lmcache_key_part part)
{
    for (size_t i = 0; i < part.size; i++)
        if (part.text[i] < '0' || part.text[i] > '9')
            return false;
    return part.size > 0;
}

/* Decimal without sign or leading zeros, up to INT32_MAX. */
static bool parse_number(uint32_t *out, struct lmcache_key_part part)
{
    uint64_t value = 0;
    if (!all_digits(part) || part.size > 10 || (part.size > 1 && part.text[0] == '0'))
        return false;
    for (size_t i = 0; i < part.size; i++)
        value = value * 10 + (uint64_t)(part.text[i] - '0');
    if (value > INT32_MAX)
        return false;
    *out = (uint32_t)value;
    return true;
}

/* Each tag is a name, '%' and a value, which may be empty and hold further '%'. */
static bool tags_ok(const char *tags, size_t size)
{
    struct lmcache_key_part rest = {.text = tags, .size = size};
    if (size == 0)
        return false;
    while (rest.text != NULL) {
        struct lmcache_key_part tag = take_part(&rest);
        const char *percent = tag.size > 0 ? memchr(tag.text, '%', tag.size) : NULL;
        if (percent == NULL || percent == tag.text)
            return false;
    }
    return tierce__text_is_plain(tags, size);
}

static bool model_ok(const char *model, size_t size)
{
    return model != NULL && size >= 1 && size <= TIERCE__LMCACHE_KEY_MAX &&
           memchr(model, '@', size) == NULL && tierce__text_is_plain(model, size);
}

/* ---- keys ----------------------------------------------------------------------------------- */

static bool key_ok(const struct tierce__lmcache_key *key)
{
    return model_ok(key->model, key->model_bytes) && key->world_size <= INT32_MAX &&
           key->worker_id <= INT32_MAX && hash_ok(&key->hash) && key->dtype != NULL &&
           find_dtype(key->dtype, strlen(key->dtype)) != NULL && key->layer >= -1 &&
           (key->tags_bytes == 0 ||
            (key->tags != NULL && key->tags_bytes <= TIERCE__LMCACHE_KEY_MAX &&
             tags_ok(key->tags, key->tags_bytes)));
}

int tierce__lmcache_key_format(char *text, size_t room, const struct tierce__lmcache_key *key)
{
    if (!key_ok(key))
        return TIERCE_E_ARGUMENT;
    char digits[HASH_DIGITS_MAX + 1], layer[16] = "", made[TIERCE__LMCACHE_KEY_MAX + 1];
    hash_digits(digits, &key->hash);
    TIERCE_DASSERT(strlen(digits) == key->hash.digits);
    if (key->layer >= 0)
        snprintf(layer, sizeof(layer), "@%" PRId32, key->layer);
    int length = snprintf(made, sizeof(made), "%.*s@%" PRIu32 "@%" PRIu32 "@%s%s@%s%s%s%.*s",
                          (int)key->model_bytes, key->model, key->world_size, key->worker_id,
                          key->hash.negative ? "-" : "", digits, key->dtype, layer,
                          key->tags_bytes > 0 ? "@" : "", (int)key->tags_bytes,
                          key->tags != NULL ? key->tags : "");
    TIERCE_ASSERT(length > 0);
    if ((size_t)length >= sizeof(made) || (size_t)length >= room)
        return TIERCE_E_LIMIT;
    memcpy(text, made, (size_t)length + 1);
    return length;
}

int tierce__lmcache_key_parse(struct tierce__lmcache_key *key, const char *text, size_t size)
{
    if (size == 0 || size > TIERCE__LMCACHE_KEY_MAX)
        return TIERCE_E_FORMAT;
    struct lmcache_key_part rest = {.text = text, .size = size};
    struct lmcache_key_part model = take_part(&rest), world = take_part(&rest),
                            worker = take_part(&rest);
    struct lmcache_key_part hash = take_part(&rest), dtype = take_part(&rest);
    struct tierce__lmcache_key read = {.model = model.text, .model_bytes = model.size, .layer = -1};
    read.dtype = dtype.size > 0 ? find_dtype(dtype.text, dtype.size) : NULL;
    if (read.dtype == NULL || !model_ok(model.text, model.size) ||
        !parse_number(&read.world_size, world) || !parse_number(&read.worker_id, worker) ||
        !parse_hash(&read.hash, hash.text, hash.size))
        return TIERCE_E_FORMAT;

    struct lmcache_key_part after = rest;
    struct lmcache_key_part sixth = take_part(&after);
    if (all_digits(sixth)) {
        uint32_t layer;
        if (!parse_number(&layer, sixth))
            return TIERCE_E_FORMAT;
        read.layer = (int32_t)layer;
        rest = after;
    }
    if (rest.text != NULL) {
        if (!tags_ok(rest.text, rest.size))
            return TIERCE_E_FORMAT;
        read.tags = rest.text;
        read.tags_bytes = rest.size;
    }
    *key = read;
    return 0;
}
