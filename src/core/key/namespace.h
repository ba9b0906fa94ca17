/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE__CORE_KEY_NAMESPACE_H
#define TIERCE__CORE_KEY_NAMESPACE_H

#include <stdbool.h>
#include <tierce/key.h>

/*
 * sizeof(struct tierce_namespace) of programs that were built when it ended with `algo`. Such a
 * namespace is about all layers; its `group` lies in padding and the rest beyond its end.
 */
#define TIERCE__NAMESPACE_BYTES_V1 80u

static inline enum tierce_group tierce__namespace_group(const struct tierce_namespace *ns)
{
    return ns->size == TIERCE__NAMESPACE_BYTES_V1 ? TIERCE_GROUP_ALL : ns->group;
}

/* Whether two texts are about the same model, tokens and hashes, and differ only in their groups of
 * layers. Texts without a group, NULL, or texts that cannot be read do not. */
bool tierce__namespace_other_group(const char *text, const char *other);

#endif
