/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "store/remote/memcached/memcached_head.h"

#include <string.h>

/* Answers of memcached: lines, whose texts lie within them; heads, whose encoding is their input;
 * and keys, which memcached accepts. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool lies_within(const char *text, size_t bytes, const char *line, size_t count)
{
    return bytes == 0 || (text >= line && text + bytes <= line + count);
}

static void check_line(const char *line, size_t count)
{
    struct tierce__memcached_line out = {0};
    if (tierce__memcached_parse(&out, line, count) != 0) {
        TIERCE_ASSERT(out.name == NULL && out.bytes == 0);
        return;
    }
    TIERCE_ASSERT(lies_within(out.name, out.name_bytes, line, count));
    TIERCE_ASSERT(lies_within(out.text, out.text_bytes, line, count));
    TIERCE_ASSERT(out.kind != TIERCE__MEMCACHED_VALUE ||
                  (out.name_bytes > 0 && out.name_bytes <= TIERCE__MEMCACHED_KEY_BYTES));
}

static void check_head(const uint8_t *bytes, size_t count)
{
    struct tierce__memcached_head head;
    uint8_t encoded[TIERCE__MEMCACHED_HEAD_BYTES];
    if (tierce__memcached_head_decode(&head, bytes, count) != 0)
        return;
    uint64_t sum = (uint64_t)(head.parts - 1) * head.part_bytes +
                   tierce__memcached_part_size(&head, head.parts - 1);
    TIERCE_ASSERT(sum == head.length);
    TIERCE_ASSERT(tierce__memcached_head_encode(encoded, &head) == count);
    TIERCE_ASSERT(memcmp(encoded, bytes, count) == 0);
}

static void check_key(const uint8_t *bytes, size_t count)
{
    struct tierce__memcached_key key;
    if (count == 0 || count > TIERCE__CONNECTOR_NAME_MAX)
        return;
    tierce__memcached_head_key(&key,
                               "t:", &(struct tierce_plugin_name){(const char *)bytes, count});
    TIERCE_ASSERT(key.bytes <= TIERCE__MEMCACHED_KEY_BYTES && strlen(key.text) == key.bytes);
    for (size_t i = 0; i < key.bytes; i++)
        TIERCE_ASSERT(key.text[i] > ' ' && key.text[i] < 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_line((const char *)data, size);
    check_head(data, size);
    check_key(data, size);
    return 0;
}
