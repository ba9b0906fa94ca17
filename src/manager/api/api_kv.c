/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/api_model.h"
#include "manager/locate/block_keys.h"
#include "proto/kvcm/kv_meta_service.pb-c.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <string.h>

/*
 * Context-free entries by name (encoder caches and the like). They use the same locator: the key is
 * 64 bits of the name's hash, and the record holds the whole name. If two names have the same key,
 * only one of the two entries is stored.
 */

#define OK META__ERROR_CODE__OK

/* Entries have one part. */
static char part_name[] = "value";

static void register_instance(struct tierce__api_call *api)
{
    const KvMeta__RegisterInstanceRequest *request =
        (const KvMeta__RegisterInstanceRequest *)api->request;
    KvMeta__RegisterInstanceResponse *reply = (KvMeta__RegisterInstanceResponse *)api->reply;
    char *none = tierce__api_text("");
    struct tierce__spec_info part = {.name = part_name, .size = 0};
    struct tierce__instance instance = {
        .id = request->instance_id,
        .group_name = request->instance_group,
        .quota_group_name = none,
        .is_kv = true,
        .block_size = 1,
        .specs = &part,
        .spec_count = 1,
        .user_data = request->user_data,
        .model = {.model_name = none,
                  .dtype = none,
                  .lora_name = none,
                  .extra = none,
                  .user_data = none},
    };
    /* kv_meta has no DUPLICATE_ENTITY */
    tierce__api_register(api, &instance, &reply->storage_configs,
                         META__ERROR_CODE__INVALID_ARGUMENT);
}

static void get_instance_info(struct tierce__api_call *api)
{
    const KvMeta__GetInstanceInfoRequest *request =
        (const KvMeta__GetInstanceInfoRequest *)api->request;
    KvMeta__GetInstanceInfoResponse *reply = (KvMeta__GetInstanceInfoResponse *)api->reply;
    reply->instance_info = (KvMeta__InstanceInfo *)tierce__api_show_instance(
        api, request->instance_id, &kv_meta__instance_info__descriptor, &reply->instance_group);
}

static int64_t now_us(const struct tierce__api_call *api)
{
    return tierce__manager_now_us(api->manager);
}

/* NULL: no memory, or no key; the reply's status is set. */
static int64_t *read_keys(struct tierce__api_call *api, char **texts, size_t count)
{
    TIERCE_DASSERT(api->why[0] == '\0');
    int64_t *keys = tierce__arena_alloc(&api->arena, (count + 1) * sizeof(*keys));
    if (keys == NULL || count == 0) {
        if (count == 0)
            tierce__api_invalid(api, "keys");
        else
            tierce__api_fail(api, -ENOMEM, "read keys");
        return NULL;
    }
    api->keys += count;
    for (size_t i = 0; i < count; i++)
        keys[i] = tierce__text_key(texts[i], strlen(texts[i]));
    return keys;
}

static KvMeta__ValueLocation **show_locations(struct tierce__api_call *api,
                                              const struct tierce__found *found, size_t count)
{
    KvMeta__ValueLocation **list = tierce__api_alloc(api, count + 1, sizeof(*list));
    KvMeta__ValueLocation *locations = tierce__api_alloc(api, count + 1, sizeof(*locations));
    for (size_t i = 0; list != NULL && locations != NULL && i < count; i++) {
        size_t specs = found[i].spec_count;
        KvMeta__ValueLocation *location = &locations[i];
        kv_meta__value_location__init(location);
        location->type = (KvMeta__StorageType)found[i].type;
        location->spec_size = (int32_t)found[i].spec_count_all;
        location->location_specs =
            tierce__api_alloc(api, specs + 1, sizeof(*location->location_specs));
        KvMeta__LocationSpec *parts = tierce__api_alloc(api, specs + 1, sizeof(*parts));
        if (location->location_specs == NULL || parts == NULL)
            return NULL;
        TIERCE_DASSERT(found[i].spec_count <= found[i].spec_count_all);
        for (size_t s = 0; s < specs; s++) {
            kv_meta__location_spec__init(&parts[s]);
            parts[s].name = tierce__api_text(found[i].specs[s].name);
            parts[s].uri = tierce__api_text(found[i].specs[s].uri);
            api->bytes += tierce__api_uri_bytes(parts[s].uri);
            location->location_specs[s] = &parts[s];
        }
        location->n_location_specs = specs;
        list[i] = location;
    }
    return locations != NULL ? list : NULL;
}

static void get(struct tierce__api_call *api)
{
    const KvMeta__GetRequest *request = (const KvMeta__GetRequest *)api->request;
    KvMeta__GetResponse *reply = (KvMeta__GetResponse *)api->reply;
    struct tierce__got got;
    struct tierce__get_request wanted = {
        .instance_id = request->instance_id,
        .query = (int)request->query_type,
        .keys = read_keys(api, request->keys, request->n_keys),
        .key_texts = (const char *const *)request->keys,
        .count = request->n_keys,
    };
    if (wanted.keys == NULL)
        return;
    if (request->query_type != KV_META__QUERY_TYPE__QT_BATCH_GET) {
        tierce__api_say(api, META__ERROR_CODE__INVALID_ARGUMENT,
                        "query_type must be QT_BATCH_GET: entries have no order");
        return;
    }
    int rc = tierce__locator_get(api->manager->locator, &wanted, &api->arena, &got, api->why);
    if (rc == 0) {
        TIERCE_ASSERT(got.hits <= got.count && got.count <= request->n_keys);
        reply->locations = show_locations(api, got.found, got.count);
        reply->n_locations = reply->locations != NULL ? got.count : 0;
        rc = reply->locations != NULL ? 0 : -ENOMEM;
    }
    if (rc == 0) {
        got.block_size = 0; /* entries have no tokens */
        tierce__events_get(api->manager->events, now_us(api), &wanted, NULL, 0, &got);
    }
    tierce__api_end(api, rc, "get", "Cache locations retrieved successfully");
}

static bool show_mask(struct tierce__api_call *api, const struct tierce__mask *mask, size_t count,
                      KvMeta__KeyMask **out)
{
    TIERCE_ASSERT(!mask->is_values || mask->count == count);
    KvMeta__KeyMask *message = tierce__api_alloc(api, 1, sizeof(*message));
    protobuf_c_boolean *values = tierce__api_alloc(api, count + 1, sizeof(*values));
    if (message == NULL || values == NULL)
        return false;
    kv_meta__key_mask__init(message);
    for (size_t i = 0; i < count; i++)
        values[i] = tierce__mask_has(mask, i);
    message->values = values;
    message->n_values = count;
    *out = message;
    return true;
}

static void put_start(struct tierce__api_call *api)
{
    const KvMeta__PutStartRequest *request = (const KvMeta__PutStartRequest *)api->request;
    KvMeta__PutStartResponse *reply = (KvMeta__PutStartResponse *)api->reply;
    struct tierce__started started;
    struct tierce__write_request write = {
        .instance_id = request->instance_id,
        .keys = read_keys(api, request->keys, request->n_keys),
        .key_texts = (const char *const *)request->keys,
        .count = request->n_keys,
        .timeout_s = request->write_timeout_seconds,
        .ttl_s = request->ttl_seconds,
    };
    if (write.keys == NULL)
        return;
    int rc =
        tierce__locator_start_write(api->manager->locator, &write, &api->arena, &started, api->why);
    char *session = rc == 0 ? tierce__api_alloc(api, 1, sizeof(started.session)) : NULL;
    if (rc == 0) {
        reply->locations = show_locations(api, started.locations, started.count);
        bool good = session != NULL && reply->locations != NULL &&
                    show_mask(api, &started.mask, request->n_keys, &reply->key_mask);
        rc = good ? 0 : -ENOMEM;
    }
    if (rc != 0) {
        tierce__api_fail(api, rc, "start put");
        return;
    }
    TIERCE_ASSERT(started.count <= request->n_keys);
    TIERCE_ASSERT(strlen(started.session) == TIERCE__SESSION_ID_BYTES);
    memcpy(session, started.session, sizeof(started.session));
    reply->write_session_id = session;
    reply->n_locations = started.count;
    started.block_size = 0;
    started.bytes = NULL;
    tierce__events_start(api->manager->events, now_us(api), &write, NULL, 0, &started);
    tierce__api_say(api, OK, "Write cache session started successfully");
}

/* The message has no mask: its locations are the written ones; no locations mean that all were
 * written. */
static void put_finish(struct tierce__api_call *api)
{
    const KvMeta__PutFinishRequest *request = (const KvMeta__PutFinishRequest *)api->request;
    size_t count = 0;
    for (size_t i = 0; i < request->n_locations; i++)
        count += request->locations[i]->n_location_specs;
    const char **uris = tierce__arena_alloc(&api->arena, (count + 1) * sizeof(*uris));
    size_t n = 0;
    for (size_t i = 0; uris != NULL && i < request->n_locations; i++) {
        for (size_t s = 0; s < request->locations[i]->n_location_specs; s++)
            uris[n++] = request->locations[i]->location_specs[s]->uri;
    }
    TIERCE_ASSERT(uris == NULL || n == count);
    struct tierce__ending_request ending = {request->instance_id, request->write_session_id, uris,
                                            count};
    struct tierce__entries_ended ended = {0};
    int rc = uris != NULL ? tierce__locator_finish_entries(api->manager->locator, &ending,
                                                           &api->arena, &ended, api->why)
                          : -ENOMEM;
    if (ended.written != NULL)
        tierce__events_finish_entries(api->manager->events, now_us(api), request->instance_id,
                                      request->write_session_id, &ended);
    tierce__api_end(api, rc, "finish put", "Write cache session finished successfully");
}

static void remove_keys(struct tierce__api_call *api)
{
    const KvMeta__RemoveRequest *request = (const KvMeta__RemoveRequest *)api->request;
    int64_t *keys = read_keys(api, request->keys, request->n_keys);
    if (keys == NULL)
        return;
    int rc = tierce__locator_remove_entries(api->manager->locator, request->instance_id, keys,
                                            (const char *const *)request->keys, request->n_keys,
                                            api->why);
    if (rc == 0)
        tierce__events_remove(api->manager->events, now_us(api), request->instance_id, keys,
                              request->n_keys, &(struct tierce__mask){0});
    tierce__api_end(api, rc, "remove", "Cache removed successfully");
}

static void trim(struct tierce__api_call *api)
{
    const KvMeta__TrimRequest *request = (const KvMeta__TrimRequest *)api->request;
    int rc =
        tierce__locator_trim(api->manager->locator, request->instance_id, (int)request->strategy,
                             request->begin_timestamp, request->end_timestamp, api->why);
    if (rc == 0)
        tierce__events_trim(api->manager->events, now_us(api), request->instance_id,
                            (int)request->strategy, request->begin_timestamp,
                            request->end_timestamp);
    tierce__api_end(api, rc, "trim", "Cache trimmed successfully");
}

const struct tierce__api_row tierce__api_kv_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_kv_meta_register_instance] = {register_instance,
                                               TIERCE__API_WAITS,
                                               {"instance_id", "instance_group"}},
    [TIERCE__RPC_kv_meta_get_instance_info] = {get_instance_info, TIERCE__API_NEVER_WAITS},
    [TIERCE__RPC_kv_meta_get] = {get, TIERCE__API_WAITS_AS_INSTANCE},
    [TIERCE__RPC_kv_meta_put_start] = {put_start, TIERCE__API_WAITS_AS_INSTANCE},
    [TIERCE__RPC_kv_meta_put_finish] = {put_finish, TIERCE__API_WAITS, {"write_session_id"}},
    [TIERCE__RPC_kv_meta_remove] = {remove_keys, TIERCE__API_WAITS_AS_INSTANCE},
    [TIERCE__RPC_kv_meta_trim] = {trim, TIERCE__API_WAITS},
};
