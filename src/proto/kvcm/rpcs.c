/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/kvcm/rpcs.h"
#include "proto/kvcm/admin_service.pb-c.h"
#include "proto/kvcm/debug_service.pb-c.h"
#include "proto/kvcm/kv_meta_service.pb-c.h"
#include "proto/kvcm/meta_service.pb-c.h"

#define WHO_LEADER true
#define WHO_ANY    false

#define SERVICE(package, service) "kv_cache_manager.proto." #package "." #service

const struct tierce__rpc tierce__rpcs[TIERCE__RPC_COUNT] = {
#define TIERCE_RPC(package, service_, method_, snake, reply_, http, port_, who)                    \
    [TIERCE__RPC_##package##_##snake] = {                                                          \
        .service = SERVICE(package, service_),                                                     \
        .method = #method_,                                                                        \
        .grpc_path = TIERCE__RPC_PATH(#package, #service_, #method_),                              \
        .http_path = http,                                                                         \
        .request = &package##__##snake##_request__descriptor,                                      \
        .reply = &package##__##reply_##__descriptor,                                               \
        .port = TIERCE__RPC_PORT_##port_,                                                          \
        .is_leader_only = WHO_##who,                                                               \
    },
#include "proto/kvcm/rpcs.def"
#undef TIERCE_RPC
};

const uint8_t tierce__rpc_descriptors[] = {
#include "proto/kvcm/descriptors.inc"
};
const size_t tierce__rpc_descriptor_bytes = sizeof(tierce__rpc_descriptors);
