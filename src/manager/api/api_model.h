/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_API_MODEL_H
#define TIERCE_MANAGER_API_MODEL_H

#include "manager/api/api_private.h"
#include "proto/kvcm/admin_service.pb-c.h"

/*
 * Conversion of storages and groups from and to messages. A struct that was read borrows from the
 * message and the call's arena. A message that was made lies in the reply's memory and borrows the
 * struct's texts.
 */

/* false: a field is missing, and `*missing` names it (NULL: no memory). */
bool tierce__api_read_storage(struct tierce__api_call *api, const Admin__StorageConfig *message,
                              struct tierce__storage *out, const char **missing);
/* NULL: no memory. */
Admin__StorageConfig *tierce__api_show_storage(struct tierce__api_call *api,
                                               const struct tierce__storage *storage);

bool tierce__api_read_group(struct tierce__api_call *api, const Admin__InstanceGroup *message,
                            struct tierce__group *out, const char **missing);
Admin__InstanceGroup *tierce__api_show_group(struct tierce__api_call *api,
                                             const struct tierce__group *group);

#endif
