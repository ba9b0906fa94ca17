/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_API_MODEL_H
#define TIERCE_MANAGER_API_MODEL_H

#include "manager/api/api_private.h"
#include "proto/kvcm/admin_service.pb-c.h"

/*
 * Conversion of the model from and to messages. A struct that was read borrows from the message and
 * the call's arena. A message that was made lies in the reply's memory and borrows the struct's
 * texts.
 */

/* Reads a message of a request, whose field `noun` it is; `noun` NULL: it is the request itself.
 * false: a field is missing or memory ran out, and the reply's status says so. */
TIERCE_MUSTUSE bool tierce__api_read(struct tierce__api_call *api, const char *noun,
                                     const ProtobufCMessage *message,
                                     const struct tierce__fields *fields, void *out);

/* NULL: no memory. */
ProtobufCMessage *tierce__api_show(struct tierce__api_call *api,
                                   const ProtobufCMessageDescriptor *type,
                                   const struct tierce__fields *fields, const void *object);

/* Shows an instance and sets the status; *group becomes its group. NULL: there is none, or no
 * memory. */
ProtobufCMessage *tierce__api_show_instance(struct tierce__api_call *api, const char *id,
                                            const ProtobufCMessageDescriptor *type, char **group);

/* Storages, whose fields depend on their type; with their state in replies. */
TIERCE_MUSTUSE bool tierce__api_read_storage(struct tierce__api_call *api,
                                             const Admin__StorageConfig *message,
                                             struct tierce__storage *out);
Admin__StorageConfig *tierce__api_show_storage(struct tierce__api_call *api,
                                               const struct tierce__storage *storage);

/* A group, with a warning of limits that have no effect. */
Admin__InstanceGroup *tierce__api_show_group(struct tierce__api_call *api,
                                             const struct tierce__group *group);

/* Shows a part of a node, with its last report. False: no memory. */
bool tierce__api_show_node(struct tierce__api_call *api, const struct tierce__storage *storage,
                           Admin__TierceStorageSpec *out);

#endif
