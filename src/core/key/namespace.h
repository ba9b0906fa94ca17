/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE__CORE_KEY_NAMESPACE_H
#define TIERCE__CORE_KEY_NAMESPACE_H

#include <stdbool.h>
#include <stdint.h>
#include <tierce/key.h>

/*
 * sizeof(struct tierce_namespace) in programs that were built when the struct ended with `algo`.
 * Such a namespace describes all layers. Its `group` would lie in padding, and `window` and
 * `layers` beyond its end, so none of them is read.
 */
#define TIERCE__NAMESPACE_BYTES_V1 80u

static inline enum tierce_group tierce__namespace_group(const struct tierce_namespace *ns)
{
    return ns->size == TIERCE__NAMESPACE_BYTES_V1 ? TIERCE_GROUP_ALL : ns->group;
}

/* Whether two texts describe two groups of layers of the same model, with the same tokens and
 * hashes. False for texts without a group, for NULL, and for texts that cannot be parsed. */
bool tierce__namespace_other_group(const char *text, const char *other);

/* A namespace that was read from its text. */
struct tierce__namespace_read {
    struct tierce_namespace ns; /* [borrow until the fini] */
    char *copy;                 /* of the text, cut into NUL-terminated pieces */
    uint32_t *numbers;          /* of cell_bytes and layers */
};

/*
 * Reads a text from anywhere, and accepts exactly the output of tierce_namespace_text. Errors, *out
 * untouched: TIERCE_E_FORMAT, -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__namespace_read(struct tierce__namespace_read *out, const char *text);
/* A zeroed struct is accepted. */
void tierce__namespace_read_fini(struct tierce__namespace_read *read);

/*
 * The digest of the properties that all groups of layers of a model have in common: SHA-256 over
 * the lines of a text without those of one group (layer_count, cell_bytes, block_tokens,
 * chunk_blocks, group, window, layers), and a line "chunk_tokens=N" with the tokens of a full
 * chunk.
 */
void tierce__namespace_family(uint8_t digest[TIERCE_HASH_BYTES], const char *text,
                              uint64_t chunk_tokens);

/*
 * The same for groups whose memory may be laid out in another way, like recurrent states: without
 * the line "layout" too, and with "block_tokens=N", the tokens of a block. Chains of tokens have
 * equal hashes at equal tokens if this digest is equal.
 */
void tierce__namespace_pairs(uint8_t digest[TIERCE_HASH_BYTES], const char *text,
                             uint64_t block_tokens);

#endif
