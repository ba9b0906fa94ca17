/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_WHY_PROMPT_H
#define TIERCE_ENGINE_WHY_PROMPT_H

#include "core/key/group.h"
#include "core/key/namespaces.h"

#include <tierce/key.h>

/*
 * An operator's description of a prompt: its token ids, its root (salt, LoRA), the shard, and the
 * namespace if there are several. Thread: any.
 */

struct tierce__prompt {
    const char *ns; /* a digest or its beginning in hex; NULL: the only existing namespace */
    struct tierce_shard shard;
    struct tierce_chain_root root; /* size 0: none */
    int32_t *tokens;               /* [count], heap */
    size_t count;
};

#define TIERCE__PROMPT_WHY_BYTES 2048

/*
 * Token ids as text: numbers between white space or commas, in brackets or not. *out is heap.
 * Errors, *out untouched: TIERCE_E_FORMAT (`why` names the position), TIERCE_E_LIMIT (over 16
 * million), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__prompt_tokens(int32_t **out, size_t *count, const char *text,
                                         size_t bytes, char why[TIERCE__PROMPT_WHY_BYTES]);

/* "RANK/SIZE" of tensor parallelism, or "RANK/SIZE,RANK/SIZE" of tensor and pipeline
 * parallelism. */
TIERCE_MUSTUSE bool tierce__prompt_shard(struct tierce_shard *out, const char *text);

/* The fields of a namespace's text that turn tokens into keys. */
struct tierce__naming {
    enum tierce_chain_algo algo;
    struct tierce__layer_group group;
};

/* Errors: TIERCE_E_FORMAT, -ENOMEM. */
TIERCE_MUSTUSE int tierce__naming_of(struct tierce__naming *out, const char *ns_text);

/*
 * Finds the namespace of a prompt. `counts` (or NULL): namespaces with a count of zero are ignored.
 * Returns its id; TIERCE_E_MISS (there is none), TIERCE_E_LIMIT (several): `why` lists the
 * namespaces.
 */
TIERCE_MUSTUSE int64_t tierce__prompt_namespace(const char *ns, struct tierce__namespaces *table,
                                                const uint64_t *counts, size_t count,
                                                char why[TIERCE__PROMPT_WHY_BYTES]);

#define TIERCE__GROUPS_MAX 64

/*
 * The same, but if several namespaces match and all are groups of layers of one model, it returns
 * all of them. Returns their count; errors as above.
 */
TIERCE_MUSTUSE int tierce__prompt_groups(uint32_t ids[TIERCE__GROUPS_MAX], const char *ns,
                                         struct tierce__namespaces *table, const uint64_t *counts,
                                         size_t count, char why[TIERCE__PROMPT_WHY_BYTES]);

/* The chain of a prompt. Errors as of tierce_chain_create and _append. */
TIERCE_MUSTUSE int tierce__prompt_chain(struct tierce_chain **out,
                                        const struct tierce__prompt *prompt,
                                        const struct tierce__naming *naming);

#endif
