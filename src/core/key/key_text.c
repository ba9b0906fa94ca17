/* SPDX-License-Identifier: Apache-2.0 */
#include "core/key/key_text.h"
#include "base/assert.h"
#include "base/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The unread rest of a text. */
struct key_text_reader {
    const char *at;
    const char *end;
};

static bool take_literal(struct key_text_reader *in, const char *literal)
{
    TIERCE_DASSERT(in->at <= in->end);
    size_t size = strlen(literal);
    if ((size_t)(in->end - in->at) < size || memcmp(in->at, literal, size) != 0)
        return false;
    in->at += size;
    return true;
}

/* One number of decimal digits, without sign or leading zeros, up to `max`. */
static bool take_number(struct key_text_reader *in, uint32_t *out, uint32_t max)
{
    TIERCE_DASSERT(in->at <= in->end);
    uint64_t value = 0;
    const char *start = in->at;
    while (in->at < in->end && *in->at >= '0' && *in->at <= '9') {
        value = value * 10 + (uint64_t)(*in->at - '0');
        in->at++;
        if (value > max)
            return false;
    }
    if (in->at == start || (*start == '0' && in->at - start > 1))
        return false;
    *out = (uint32_t)value;
    return true;
}

static bool take_u16(struct key_text_reader *in, uint16_t *out)
{
    uint32_t value;
    if (!take_number(in, &value, UINT16_MAX))
        return false;
    *out = (uint16_t)value;
    return true;
}

/* Of ASCII. */
static bool is_upper(char c)
{
    return (c & 0x60) == 0x40;
}

static bool take_hash(struct key_text_reader *in, uint8_t hash[TIERCE_HASH_BYTES])
{
    size_t digits = 2 * TIERCE_HASH_BYTES;
    if ((size_t)(in->end - in->at) < digits)
        return false;
    bool has_upper = false;
    for (size_t i = 0; i < digits; i++)
        has_upper |= is_upper(in->at[i]);
    bool ok = !has_upper && tierce__hex_decode(hash, TIERCE_HASH_BYTES, in->at);
    in->at += digits;
    return ok;
}

static bool shard_ok(const struct tierce_shard *shard)
{
    return shard->tp_rank < shard->tp_size && shard->pp_rank < shard->pp_size;
}

/* ---- ours ----------------------------------------------------------------------------------- */

int tierce__key_text_format(char text[TIERCE__KEY_TEXT_BYTES],
                            const uint8_t ns_digest[TIERCE_HASH_BYTES],
                            const struct tierce_shard *shard, const uint8_t hash[TIERCE_HASH_BYTES])
{
    if (!shard_ok(shard))
        return TIERCE_E_ARGUMENT;
    char ns[2 * TIERCE_HASH_BYTES + 1], chunk[2 * TIERCE_HASH_BYTES + 1];
    tierce__hex_encode(ns, ns_digest, TIERCE_HASH_BYTES);
    tierce__hex_encode(chunk, hash, TIERCE_HASH_BYTES);
    int length = snprintf(text, TIERCE__KEY_TEXT_BYTES, "tierce1:%s:%u.%u.%u.%u:%s", ns,
                          shard->tp_rank, shard->tp_size, shard->pp_rank, shard->pp_size, chunk);
    TIERCE_ASSERT(length > 0 && length < TIERCE__KEY_TEXT_BYTES);
    return length;
}

int tierce__key_text_parse(uint8_t ns_digest[TIERCE_HASH_BYTES], struct tierce_shard *shard,
                           uint8_t hash[TIERCE_HASH_BYTES], const char *text, size_t size)
{
    struct key_text_reader in = {.at = text, .end = text + size};
    uint8_t ns[TIERCE_HASH_BYTES], chunk[TIERCE_HASH_BYTES];
    struct tierce_shard read = {0};
    bool ok = size < TIERCE__KEY_TEXT_BYTES && take_literal(&in, "tierce1:") &&
              take_hash(&in, ns) && take_literal(&in, ":") && take_u16(&in, &read.tp_rank) &&
              take_literal(&in, ".") && take_u16(&in, &read.tp_size) && take_literal(&in, ".") &&
              take_u16(&in, &read.pp_rank) && take_literal(&in, ".") &&
              take_u16(&in, &read.pp_size) && take_literal(&in, ":") && take_hash(&in, chunk) &&
              in.at == in.end && shard_ok(&read);
    if (!ok)
        return TIERCE_E_FORMAT;
    memcpy(ns_digest, ns, sizeof(ns));
    *shard = read;
    memcpy(hash, chunk, sizeof(chunk));
    return 0;
}

int tierce__key_text_parse_like(uint8_t hash[TIERCE_HASH_BYTES], const char *like, size_t like_size,
                                const char *text, size_t size)
{
    const size_t digits = 2 * TIERCE_HASH_BYTES;
    uint8_t chunk[TIERCE_HASH_BYTES];
    TIERCE_ASSERT(like_size > digits && like_size < TIERCE__KEY_TEXT_BYTES);
    if (size != like_size || memcmp(text, like, size - digits) != 0)
        return TIERCE_E_FORMAT;
    struct key_text_reader in = {.at = text + size - digits, .end = text + size};
    if (!take_hash(&in, chunk))
        return TIERCE_E_FORMAT;
    memcpy(hash, chunk, sizeof(chunk));
    return 0;
}
