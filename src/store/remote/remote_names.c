/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "store/remote/remote_private.h"

static bool make_name(const struct tierce__remote *remote, struct tierce_plugin_name *name,
                      char text[TIERCE__KEY_TEXT_BYTES], const struct tierce__key *key)
{
    const uint8_t *digest = tierce__namespaces_digest(remote->namespaces, key->ns);
    int bytes = tierce__key_text_format(text, digest, &key->shard, key->hash);
    TIERCE_DASSERT(bytes < (int)TIERCE__KEY_TEXT_BYTES);
    *name = (struct tierce_plugin_name){.text = text, .bytes = (size_t)bytes};
    return bytes > 0;
}

bool tierce__remote_name(const struct tierce__remote *remote, struct tierce__remote_name *name,
                         const struct tierce__key *key)
{
    return make_name(remote, &name->name, name->text, key);
}

struct tierce_plugin_name *tierce__remote_names(const struct tierce__remote *remote,
                                                const struct tierce__key *keys, size_t count,
                                                size_t *named)
{
    struct tierce_plugin_name *names =
        tierce__alloc(count * (sizeof(*names) + TIERCE__KEY_TEXT_BYTES));
    *named = 0;
    if (names == NULL)
        return NULL;
    char *text = (char *)(names + count);
    while (*named < count && make_name(remote, &names[*named], text, &keys[*named])) {
        text += TIERCE__KEY_TEXT_BYTES;
        ++*named;
    }
    return names;
}
