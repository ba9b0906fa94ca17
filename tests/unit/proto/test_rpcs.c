/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "proto/kvcm/rpcs.h"

#include "proto/kvcm/admin_service.pb-c.h"
#include "proto/kvcm/debug_service.pb-c.h"
#include "proto/kvcm/kv_meta_service.pb-c.h"
#include "proto/kvcm/meta_service.pb-c.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const ProtobufCServiceDescriptor *const services[] = {
    &meta__meta_service__descriptor,
    &admin__admin_service__descriptor,
    &debug__debug_service__descriptor,
    &kv_meta__meta_service__descriptor,
};

static const struct tierce__rpc *row_of(const char *service, const char *method)
{
    const struct tierce__rpc *found = NULL;
    for (size_t i = 0; i < TIERCE__RPC_COUNT; i++) {
        if (strcmp(tierce__rpcs[i].service, service) != 0 ||
            strcmp(tierce__rpcs[i].method, method) != 0)
            continue;
        ck_assert_msg(found == NULL, "%s.%s has two rows", service, method);
        found = &tierce__rpcs[i];
    }
    ck_assert_msg(found != NULL, "%s.%s has no row", service, method);
    return found;
}

/* The table has each method of the services once, with its messages. New rows are at its end. */
START_TEST(test_table_is_the_services)
{
    size_t rows = 0;
    for (size_t s = 0; s < 4; s++) {
        char service[100], path[200];
        snprintf(service, sizeof(service), "kv_cache_manager.proto.%s", services[s]->name);
        for (unsigned m = 0; m < services[s]->n_methods; m++, rows++) {
            const ProtobufCMethodDescriptor *method = &services[s]->methods[m];
            const struct tierce__rpc *rpc = row_of(service, method->name);
            ck_assert_ptr_eq(rpc->request, method->input);
            ck_assert_ptr_eq(rpc->reply, method->output);
            snprintf(path, sizeof(path), "/%s/%s", rpc->service, rpc->method);
            ck_assert_str_eq(rpc->grpc_path, path);
        }
    }
    ck_assert_uint_eq(rows, TIERCE__RPC_COUNT);
}
END_TEST

START_TEST(test_http_paths)
{
    for (size_t i = 0; i < TIERCE__RPC_COUNT; i++) {
        const struct tierce__rpc *rpc = &tierce__rpcs[i];
        bool is_kv = strstr(rpc->service, ".kv_meta.") != NULL;
        char path[100];
        snprintf(path, sizeof(path), "/api/%s%c%s", is_kv ? "kv/" : "", tolower(rpc->method[0]),
                 rpc->method + 1);
        ck_assert_str_eq(rpc->http_path, path);
        for (size_t j = 0; j < i; j++)
            ck_assert(tierce__rpcs[j].port != rpc->port ||
                      strcmp(tierce__rpcs[j].http_path, path) != 0);
    }
    ck_assert_str_eq(tierce__rpcs[TIERCE__RPC_meta_start_write_cache].http_path,
                     "/api/startWriteCache");
}
END_TEST

START_TEST(test_who_answers)
{
    ck_assert(tierce__rpcs[TIERCE__RPC_meta_get_cache_location].is_leader_only);
    ck_assert(tierce__rpcs[TIERCE__RPC_admin_add_storage].is_leader_only);
    ck_assert(!tierce__rpcs[TIERCE__RPC_admin_check_health].is_leader_only);
    ck_assert(!tierce__rpcs[TIERCE__RPC_debug_inject_fault].is_leader_only);
}
END_TEST

/* All four files, with the packages that clients know. */
START_TEST(test_descriptors)
{
    static const char *const packages[] = {
        "kv_cache_manager.proto.meta", "kv_cache_manager.proto.admin",
        "kv_cache_manager.proto.debug", "kv_cache_manager.proto.kv_meta"};
    ck_assert_uint_gt(tierce__rpc_descriptor_bytes, 10000);
    for (size_t i = 0; i < 4; i++)
        ck_assert_ptr_nonnull(memmem(tierce__rpc_descriptors, tierce__rpc_descriptor_bytes,
                                     packages[i], strlen(packages[i])));
}
END_TEST

CHECK_MAIN("rpcs", .tests = {test_table_is_the_services, test_http_paths, test_who_answers,
                             test_descriptors})
