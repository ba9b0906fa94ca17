/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_RPCS_H
#define TIERCE_WIRE_RPCS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

/*
 * The calls of the manager (rpcs.def), and their descriptors for gRPC reflection.
 *
 * The generated headers are "proto/kvcm/meta_service.pb-c.h" and its siblings. Their C names leave
 * the first parts of the package out: Meta__StartWriteCacheRequest, META__ERROR_CODE__OK.
 *
 * The table and all messages but those of meta are in the library tierce_messages, which is no part
 * of libtierce.so.
 *
 * Thread: any; everything is constant.
 */

/* The path of a call over gRPC, of literals: TIERCE__RPC_PATH("meta", "MetaService", "TrimCache").
 */
#define TIERCE__RPC_PATH(package, service, method)                                                 \
    "/kv_cache_manager.proto." package "." service "/" method

/* Words of an INTERNAL_ERROR that says that a quota or a storage is used up: there is no code. */
#define TIERCE__RPC_NO_ROOM "leaves no room"

enum tierce__rpc_port {
    TIERCE__RPC_PORT_META,
    TIERCE__RPC_PORT_ADMIN,
    TIERCE__RPC_PORT_DEBUG,
};

enum tierce__rpc_id {
#define TIERCE_RPC(package, service, method, snake, reply, http, port, who)                        \
    TIERCE__RPC_##package##_##snake,
#include "proto/kvcm/rpcs.def"
#undef TIERCE_RPC
    TIERCE__RPC_COUNT
};

struct tierce__rpc {
    const char *service;   /* "kv_cache_manager.proto.meta.MetaService" */
    const char *method;    /* "StartWriteCache" */
    const char *grpc_path; /* "/kv_cache_manager.proto.meta.MetaService/StartWriteCache" */
    const char *http_path; /* "/api/startWriteCache" */
    const ProtobufCMessageDescriptor *request, *reply;
    enum tierce__rpc_port port;
    bool is_leader_only;
};

/* By enum tierce__rpc_id. */
extern const struct tierce__rpc tierce__rpcs[TIERCE__RPC_COUNT];

/* A google.protobuf.FileDescriptorSet of all four files, with the real packages. */
extern const uint8_t tierce__rpc_descriptors[];
extern const size_t tierce__rpc_descriptor_bytes;

#endif
