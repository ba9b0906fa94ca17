/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE__CORE_KEY_NAMESPACE_H
#define TIERCE__CORE_KEY_NAMESPACE_H

#include <stdbool.h>
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

#endif
