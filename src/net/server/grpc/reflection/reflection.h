/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_REFLECTION_H
#define TIERCE_NET_REFLECTION_H

#include "net/server/grpc/grpc_talk.h"

/*
 * grpc.reflection.v1 and v1alpha: lists the services and returns their descriptors from a
 * FileDescriptorSet.
 */

struct tierce__reflection;

/* Errors: TIERCE_E_FORMAT (no FileDescriptorSet), -ENOMEM. [borrow] descriptors. */
TIERCE_MUSTUSE int tierce__reflection_create(struct tierce__reflection **out,
                                             const void *descriptors, size_t bytes);
void tierce__reflection_destroy(struct tierce__reflection *reflection);

#define TIERCE__REFLECTION_TALKS 2u
extern const struct tierce__grpc_talk tierce__reflection_talks[TIERCE__REFLECTION_TALKS];

#endif
