/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/memcached/memcached_head.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "core/key/sha256.h"

#include <stdio.h>
#include <string.h>

enum { GENERATION = 8, LENGTH = 24, PART_BYTES = 32, PARTS = 36 };

static const char magic[8] = {'T', 'i', 'e', 'r', 'c', 'e', 'H', '1'};

/* ---- keys ------------------------------------------------------------------------------------ */

bool tierce__memcached_prefix_is_sane(const char *prefix)
{
    size_t bytes = 0;
    while (prefix[bytes] > ' ' && prefix[bytes] < 0x7f)
        bytes++;
    return prefix[bytes] == '\0' && bytes <= TIERCE__MEMCACHED_PREFIX_BYTES;
}

static bool stays(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("-_.:/@,", c) != NULL);
}

/* Percent-encodes behind what the key has; false if it becomes too long. */
static bool add_escaped(struct tierce__memcached_key *key, const struct tierce_plugin_name *name)
{
    TIERCE_DASSERT(key->bytes <= TIERCE__MEMCACHED_PREFIX_BYTES + 2);
    for (size_t i = 0; i < name->bytes; i++) {
        char c = name->text[i];
        size_t need = stays(c) ? 1 : 3;
        if (key->bytes + need > TIERCE__MEMCACHED_KEY_BYTES)
            return false;
        if (need == 1)
            key->text[key->bytes] = c;
        else
            snprintf(key->text + key->bytes, need + 1, "%%%02x", (unsigned)(uint8_t)c);
        key->bytes += need;
    }
    TIERCE_DASSERT(key->bytes <= TIERCE__MEMCACHED_KEY_BYTES);
    key->text[key->bytes] = '\0';
    return true;
}

static void begin_key(struct tierce__memcached_key *key, const char *prefix, char kind)
{
    int bytes = snprintf(key->text, sizeof(key->text), "%s%c:", prefix, kind);
    TIERCE_ASSERT(bytes > 0 && (size_t)bytes <= TIERCE__MEMCACHED_PREFIX_BYTES + 2);
    key->bytes = (size_t)bytes;
}

void tierce__memcached_head_key(struct tierce__memcached_key *out, const char *prefix,
                                const struct tierce_plugin_name *name)
{
    uint8_t digest[TIERCE__SHA256_BYTES];
    begin_key(out, prefix, 'n');
    if (add_escaped(out, name))
        return;
    begin_key(out, prefix, 'h');
    tierce__sha256(digest, name->text, name->bytes);
    tierce__hex_encode(out->text + out->bytes, digest, sizeof(digest));
    out->bytes += 2 * sizeof(digest);
    TIERCE_DASSERT(out->bytes <= TIERCE__MEMCACHED_KEY_BYTES);
}

void tierce__memcached_part_key(struct tierce__memcached_key *out, const char *prefix,
                                const struct tierce__memcached_head *head, uint32_t part)
{
    TIERCE_DASSERT(part < head->parts);
    begin_key(out, prefix, 'p');
    tierce__hex_encode(out->text + out->bytes, head->generation, sizeof(head->generation));
    out->bytes += 2 * sizeof(head->generation);
    int bytes =
        snprintf(out->text + out->bytes, sizeof(out->text) - out->bytes, ":%u", (unsigned)part);
    out->bytes += (size_t)bytes;
    TIERCE_ASSERT(out->bytes < TIERCE__MEMCACHED_KEY_BYTES);
}

/* ---- heads ----------------------------------------------------------------------------------- */

uint32_t tierce__memcached_part_size(const struct tierce__memcached_head *head, uint32_t part)
{
    TIERCE_ASSERT(part < head->parts);
    uint64_t left = head->length - (uint64_t)part * head->part_bytes;
    return left < head->part_bytes ? (uint32_t)left : head->part_bytes;
}

size_t tierce__memcached_head_encode(uint8_t out[TIERCE__MEMCACHED_HEAD_BYTES],
                                     const struct tierce__memcached_head *head)
{
    TIERCE_ASSERT(head->name.bytes <= TIERCE__CONNECTOR_NAME_MAX);
    memcpy(out, magic, sizeof(magic));
    memcpy(out + GENERATION, head->generation, sizeof(head->generation));
    tierce__store_le64(out + LENGTH, head->length);
    tierce__store_le32(out + PART_BYTES, head->part_bytes);
    tierce__store_le32(out + PARTS, head->parts);
    memcpy(out + TIERCE__MEMCACHED_HEAD_FIXED, head->name.text, head->name.bytes);
    return TIERCE__MEMCACHED_HEAD_FIXED + head->name.bytes;
}

int tierce__memcached_head_decode(struct tierce__memcached_head *out, const uint8_t *bytes,
                                  size_t count)
{
    struct tierce__memcached_head head;
    if (count <= TIERCE__MEMCACHED_HEAD_FIXED || count > TIERCE__MEMCACHED_HEAD_BYTES ||
        memcmp(bytes, magic, sizeof(magic)) != 0)
        return TIERCE_E_FORMAT;
    memcpy(head.generation, bytes + GENERATION, sizeof(head.generation));
    head.length = tierce__load_le64(bytes + LENGTH);
    head.part_bytes = tierce__load_le32(bytes + PART_BYTES);
    head.parts = tierce__load_le32(bytes + PARTS);
    head.name =
        (struct tierce_plugin_name){.text = (const char *)bytes + TIERCE__MEMCACHED_HEAD_FIXED,
                                    .bytes = count - TIERCE__MEMCACHED_HEAD_FIXED};
    if (head.length == 0 || head.part_bytes == 0 || head.parts == 0 ||
        head.parts > TIERCE__MEMCACHED_PARTS_MAX ||
        (head.length - 1) / head.part_bytes != head.parts - 1)
        return TIERCE_E_FORMAT;
    *out = head;
    return 0;
}
