/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/json/json_write.h"
#include "base/log/log.h"
#include "base/text/host_port.h"
#include "manager/api/api_model.h"
#include "manager/locate/block_keys.h"
#include "manager/locate/location_json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <tierce/version.h>

/* The calls of engines: a function for each RPC of the meta service. */

#define OK               META__ERROR_CODE__OK
#define INTERNAL_ERROR   META__ERROR_CODE__INTERNAL_ERROR
#define INVALID_ARGUMENT META__ERROR_CODE__INVALID_ARGUMENT

/* ---- keys ------------------------------------------------------------------------------------ */

/* The fields by which a request names blocks. */
struct keys {
    const int64_t *keys;
    size_t count;
};

/* As in KVCM, the instance is looked up before the arguments are checked. NULL: the reply is
 * set. */
static const struct tierce__instance *find_instance(struct tierce__api_call *api, const char *id)
{
    const struct tierce__instance *instance =
        tierce__catalog_instance(tierce__api_catalog(api), id);
    if (instance == NULL) {
        snprintf(api->why, sizeof(api->why),
                 "instance %.100s does not exist; register it first (RegisterInstance)", id);
        tierce__api_fail(api, -ENOENT, "find instance");
    }
    return instance;
}

/* block_keys take precedence over token_ids; tokens of a partial block yield no key. On an error
 * the reply is set. */
static bool read_keys(struct tierce__api_call *api, const char *instance_id, const int64_t *keys,
                      size_t key_count, const int64_t *tokens, size_t token_count, struct keys *out)
{
    *out = (struct keys){.keys = keys, .count = key_count};
    api->keys += key_count;
    if (key_count > 0)
        return true;
    const struct tierce__instance *instance = find_instance(api, instance_id);
    if (instance == NULL)
        return false;
    if (token_count == 0 || instance->block_size <= 0) {
        tierce__api_say(
            api, INVALID_ARGUMENT, "%s",
            token_count == 0
                ? "block_keys and token_ids are empty; send the keys of the blocks or the tokens"
                : "token_ids cannot be converted to keys, because the instance has no block_size; "
                  "send block_keys");
        return false;
    }
    size_t block_size = (size_t)instance->block_size;
    int64_t *made =
        tierce__arena_alloc(&api->arena, (token_count / block_size + 1) * sizeof(*made));
    if (made == NULL) {
        tierce__api_fail(api, -ENOMEM, "make keys");
        return false;
    }
    TIERCE_ASSERT(block_size > 0);
    *out = (struct keys){.keys = made,
                         .count = tierce__block_keys(made, tokens, token_count, block_size)};
    TIERCE_DASSERT(out->count <= token_count / block_size);
    api->keys += out->count;
    return true;
}

/* The kind of a hint by the order of precedence in meta_service.proto. */
static enum tierce__policy_hint kind_of(const Meta__SessionHint *hint)
{
    if (strcmp(hint->session, "closed") == 0)
        return TIERCE__HINT_CLOSED;
    if (hint->returns_in_s > 0)
        return hint->returns_in_s <= TIERCE__HINT_SOON_S ? TIERCE__HINT_SOON : TIERCE__HINT_LATER;
    if (hint->session[0] != '\0')
        return TIERCE__HINT_OPEN;
    return hint->ttl_s > 0 ? TIERCE__HINT_TTL : TIERCE__HINT_NONE;
}

static bool is_time(int64_t seconds)
{
    return seconds >= 0 && seconds <= TIERCE__TTL_S_MAX;
}

/* *out: 0 for none. False: the reply is set. */
static bool read_hint(struct tierce__api_call *api, const Meta__SessionHint *hint, uint16_t *out)
{
    *out = 0;
    if (hint == NULL)
        return true;
    if (hint->session[0] != '\0' && strcmp(hint->session, "open") != 0 &&
        strcmp(hint->session, "closed") != 0) {
        tierce__api_say(api, INVALID_ARGUMENT,
                        "hint.session is %.40s; accepted are open, closed and an empty text",
                        hint->session);
        return false;
    }
    if (!is_time(hint->ttl_s) || !is_time(hint->returns_in_s)) {
        bool is_ttl = !is_time(hint->ttl_s);
        tierce__api_say(api, INVALID_ARGUMENT,
                        "hint.%s is %lld; accepted are 1 to %lld seconds, and 0 for none",
                        is_ttl ? "ttl_s" : "returns_in_s",
                        (long long)(is_ttl ? hint->ttl_s : hint->returns_in_s),
                        (long long)TIERCE__TTL_S_MAX);
        return false;
    }
    *out = tierce__hint_make(kind_of(hint), hint->ttl_s);
    return true;
}

/* ---- registering ----------------------------------------------------------------------------- */

bool tierce__api_put_storage(struct tierce__api_call *api, struct tierce__json_write *json,
                             const struct tierce__storage *storage, const char *registry_id)
{
    struct tierce__storage shown = *storage;
    shown.uri = tierce__arena_copy(&api->arena, storage->uri, strlen(storage->uri));
    if (shown.uri == NULL)
        return false;
    tierce__storage_at_hide(shown.uri);
    tierce__json_write_open(json, NULL, '{');
    tierce__model_put_members(json, &shown, &tierce__storage_fields, TIERCE__JSON_SHOWN);
    if (storage->is_marked)
        tierce__json_write_text(json, "mark", registry_id);
    tierce__json_write_close(json, '}');
    return true;
}

/* The group's storages as KVCM's clients read them: JSON in a text in the reply's memory. NULL: no
 * memory. */
static char *show_storages(struct tierce__api_call *api, const struct tierce__catalog *catalog,
                           const struct tierce__group *group)
{
    size_t count;
    const struct tierce__storage *all = tierce__catalog_storages(catalog, &count);
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line, .is_short = true};
    bool has_all = true;
    tierce__json_write_open(&json, NULL, '[');
    for (size_t i = 0; i < group->storage_candidate_count; i++) {
        const struct tierce__storage *storage =
            tierce__catalog_storage(catalog, group->storage_candidates[i]);
        const char *name = group->storage_candidates[i];
        has_all =
            has_all && (storage == NULL ||
                        tierce__api_put_storage(api, &json, storage, tierce__catalog_id(catalog)));
        for (size_t n = 0; storage == NULL && n < count && has_all; n++)
            has_all = !tierce__storage_is_in_pool(&all[n], name) ||
                      tierce__api_put_storage(api, &json, &all[n], tierce__catalog_id(catalog));
    }
    tierce__json_write_close(&json, ']');
    TIERCE_DASSERT(line.failed || json.depth == 0);
    char *text = line.failed || !has_all ? NULL : tierce__api_copy(api, line.text, line.bytes);
    tierce__line_clear(&line);
    return text;
}

/* The group sets the number of the index's locks; KVCM rejects invalid numbers here as well. */
static int check_shards(const struct tierce__group *group, char why[TIERCE__WHY_BYTES])
{
    int64_t shards = group->mutex_shard_count, keys = group->max_key_count;
    if (shards > 0 && (shards & (shards - 1)) == 0 && (keys <= 0 || shards <= keys))
        return 0;
    snprintf(why, TIERCE__WHY_BYTES,
             "mutex_shard_num of instance group %.64s is %lld; accepted are powers of two up to "
             "max_key_count",
             group->name, (long long)shards);
    return -EINVAL;
}

/* *storages: the JSON of the group's storages; unchanged if the group was removed meanwhile. */
static int add_instance(struct tierce__api_call *api, const struct tierce__instance *instance,
                        char **storages)
{
    struct tierce__manager *manager = api->manager;
    const struct tierce__catalog *before = tierce__api_catalog(api);
    const struct tierce__group *own = tierce__catalog_group(before, instance->group_name);
    bool is_new = tierce__catalog_instance(before, instance->id) == NULL;
    struct tierce__instance registered = *instance;
    int rc = own != NULL && is_new ? check_shards(own, api->why) : 0;
    if (own != NULL)
        registered.quota_group_name = own->global_quota_group_name;
    if (rc == 0)
        rc = tierce__registry_add_instance(manager->registry, &registered, api->why);
    if (rc >= 0)
        rc = tierce__locator_add_instance(manager->locator, instance->id, api->why);
    if (rc < 0)
        return rc;
    /* An instance that registers again under another group stays in its group. */
    const struct tierce__catalog *catalog = tierce__registry_acquire(manager->registry);
    const struct tierce__instance *stored = tierce__catalog_instance(catalog, instance->id);
    const struct tierce__group *group =
        stored != NULL ? tierce__catalog_group(catalog, stored->group_name) : NULL;
    TIERCE_DASSERT(stored == NULL || stored->number > 0);
    char *text = group != NULL ? show_storages(api, catalog, group) : NULL;
    tierce__registry_release(manager->registry, catalog);
    if (text != NULL)
        *storages = text;
    return group == NULL || text != NULL ? 0 : -ENOMEM;
}

void tierce__api_register(struct tierce__api_call *api, const struct tierce__instance *instance,
                          char **storages, int duplicate)
{
    int rc = add_instance(api, instance, storages);
    /* Another account may have registered the instance since the scope was checked; neither its
     * storages nor its differences may be shown. */
    const struct tierce__catalog *now = tierce__registry_acquire(api->manager->registry);
    bool is_in_scope = tierce__api_is_in_scope(api, now);
    tierce__registry_release(api->manager->registry, now);
    if (!is_in_scope) {
        *storages = tierce__api_text("");
        tierce__api_refuse(api);
        return;
    }
    if (rc == -EEXIST)
        tierce__api_say(api, duplicate, "%s", api->why);
    else if (rc == TIERCE_E_LIMIT)
        tierce__api_say(api, META__ERROR_CODE__REACH_MAX_ENTITY_CAPACITY, "%s", api->why);
    else if (rc == -ENOENT) /* error of the group, which has no code of its own */
        tierce__api_say(api, INTERNAL_ERROR, "Failed to register instance: %s", api->why);
    else
        tierce__api_end(api, rc, "register instance", "Instance registered successfully");
}

void tierce__api_register_request(struct tierce__api_call *api, char **storages)
{
    const Meta__RegisterInstanceRequest *request =
        (const Meta__RegisterInstanceRequest *)api->request;
    struct tierce__instance instance;
    if (!tierce__api_read(api, NULL, &request->base, &tierce__instance_fields, &instance))
        return;
    instance.group_name = request->instance_group;
    tierce__api_register(api, &instance, storages, META__ERROR_CODE__DUPLICATE_ENTITY);
}

/* Versions may differ while a fleet is upgraded; the log shows which ones are there. */
static void register_instance(struct tierce__api_call *api)
{
    const Meta__RegisterInstanceRequest *request =
        (const Meta__RegisterInstanceRequest *)api->request;
    Meta__RegisterInstanceResponse *reply = (Meta__RegisterInstanceResponse *)api->reply;
    char shown[32];
    tierce__api_register_request(api, &reply->storage_configs);
    reply->manager_version = tierce__api_text(tierce_version());
    if (api->code != OK || tierce__api_string(request->client_version)[0] == '\0')
        return;
    tierce__text_for_message(shown, sizeof(shown), request->client_version);
    tierce__log(TIERCE_LOG_INFO, "manager.registered", "instance=%s version=\"%s\"",
                request->instance_id, shown);
}

static void get_instance_info(struct tierce__api_call *api)
{
    const Meta__GetInstanceInfoRequest *request =
        (const Meta__GetInstanceInfoRequest *)api->request;
    Meta__GetInstanceInfoResponse *reply = (Meta__GetInstanceInfoResponse *)api->reply;
    reply->instance_info = (Meta__InstanceInfo *)tierce__api_show_instance(
        api, request->instance_id, &meta__instance_info__descriptor, &reply->instance_group);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void get_cache_location(struct tierce__api_call *api)
{
    const Meta__GetCacheLocationRequest *request =
        (const Meta__GetCacheLocationRequest *)api->request;
    Meta__GetCacheLocationResponse *reply = (Meta__GetCacheLocationResponse *)api->reply;
    struct tierce__get_request get = {
        .instance_id = request->instance_id,
        .query = (int)request->query_type,
        .window = request->sw_size,
        .spec_names = (const char *const *)request->location_spec_names,
        .spec_name_count = request->n_location_spec_names,
    };
    struct tierce__got got;
    struct keys keys;
    if (!read_keys(api, request->instance_id, request->block_keys, request->n_block_keys,
                   request->token_ids, request->n_token_ids, &keys) ||
        !read_hint(api, request->hint, &get.hint))
        return;
    get.keys = keys.keys;
    get.count = keys.count;
    int rc = tierce__api_read_mask(api, request->block_mask, &get.mask);
    if (rc == 0)
        rc = tierce__locator_get(api->manager->locator, &get, &api->arena, &got, api->why);
    if (rc == 0) {
        reply->locations = tierce__api_show_locations(api, got.found, got.count);
        reply->n_locations = reply->locations != NULL ? got.count : 0;
        rc = reply->locations != NULL ? 0 : -ENOMEM;
    }
    if (rc < 0) {
        tierce__api_fail(api, rc, "get cache location");
        return;
    }
    TIERCE_ASSERT(got.hits <= got.count && got.count <= keys.count);
    tierce__events_get(api->manager->events, tierce__manager_now_us(api->manager), &get,
                       request->token_ids, request->n_token_ids, &got);
    tierce__api_say(api, OK, "Cache locations retrieved successfully");
}

static void get_cache_meta(struct tierce__api_call *api)
{
    static const char *const states[] = {"CLS_NOT_FOUND", "CLS_NEW", "CLS_WRITING", "CLS_SERVING",
                                         "CLS_DELETING"};
    enum { META_BYTES = 64 };
    const Meta__GetCacheMetaRequest *request = (const Meta__GetCacheMetaRequest *)api->request;
    Meta__GetCacheMetaResponse *reply = (Meta__GetCacheMetaResponse *)api->reply;
    struct tierce__look_request look = {.instance_id = request->instance_id};
    struct tierce__looked *looked = NULL;
    struct keys keys;
    size_t count = 0;
    if (!read_keys(api, request->instance_id, request->block_keys, request->n_block_keys,
                   request->token_ids, request->n_token_ids, &keys))
        return;
    look.keys = keys.keys;
    look.count = keys.count;
    int rc = tierce__api_read_mask(api, request->block_mask, &look.mask);
    if (rc == 0)
        rc = tierce__locator_look(api->manager->locator, &look, &api->arena, &looked, &count,
                                  api->why);
    TIERCE_ASSERT(count <= keys.count);
    struct tierce__found *found =
        rc == 0 ? tierce__arena_alloc(&api->arena, (count + 1) * sizeof(*found)) : NULL;
    char(*texts)[META_BYTES] = rc == 0 ? tierce__api_alloc(api, count + 1, META_BYTES) : NULL;
    reply->metas = rc == 0 ? tierce__api_alloc(api, count + 1, sizeof(*reply->metas)) : NULL;
    if (rc == 0 && (found == NULL || texts == NULL || reply->metas == NULL))
        rc = -ENOMEM;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        TIERCE_ASSERT((size_t)looked[i].state < sizeof(states) / sizeof(states[0]));
        found[i] = looked[i].found;
        snprintf(texts[i], META_BYTES, "{\"id\":\"%s\",\"status\":\"%s\"}", looked[i].id,
                 states[looked[i].state]);
        reply->metas[i] = texts[i];
    }
    if (rc == 0) {
        reply->locations = tierce__api_show_locations(api, found, count);
        rc = reply->locations != NULL ? 0 : -ENOMEM;
    }
    if (rc < 0) {
        tierce__api_fail(api, rc, "get cache meta");
        return;
    }
    reply->n_locations = reply->n_metas = count;
    tierce__api_say(api, OK, "Cache metadata retrieved successfully");
}

static bool show_mask(struct tierce__api_call *api, const struct tierce__mask *mask,
                      Meta__BlockMask **out)
{
    TIERCE_ASSERT(mask->is_values || (mask->offset >= 0 && mask->offset <= INT32_MAX));
    Meta__BlockMask *message = tierce__api_alloc(api, 1, sizeof(*message));
    if (message == NULL)
        return false;
    meta__block_mask__init(message);
    message->info_case = META__BLOCK_MASK__INFO_OFFSET;
    message->offset = (int32_t)mask->offset;
    *out = message;
    if (!mask->is_values)
        return true;
    Meta__BoolMasksType *masks = tierce__api_alloc(api, 1, sizeof(*masks));
    protobuf_c_boolean *values = tierce__api_alloc(api, mask->count + 1, sizeof(*values));
    if (masks == NULL || values == NULL)
        return false;
    meta__bool_masks_type__init(masks);
    for (size_t i = 0; i < mask->count; i++)
        values[i] = mask->values[i];
    masks->values = values;
    masks->n_values = mask->count;
    message->info_case = META__BLOCK_MASK__INFO_BOOL_MASKS;
    message->bool_masks = masks;
    return true;
}

/* The client's host, as parts of nodes name it: `node_host`, or the host of its address. NULL: not
 * known. */
static const char *host_of(struct tierce__api_call *api, const char *node_host)
{
    struct tierce__host_port at;
    if (node_host != NULL && node_host[0] != '\0')
        return node_host;
    if (api->peer == NULL || !tierce__host_port_split(&at, api->peer, strlen(api->peer)) ||
        !at.has_port)
        return NULL;
    return tierce__arena_copy(&api->arena, at.host, at.host_bytes);
}

/* Whether `count` texts or numbers are one for each block key, or none. If not, the call fails with
 * `rc`. */
static bool is_for_each_key(struct tierce__api_call *api,
                            const Meta__StartWriteCacheRequest *request, size_t count,
                            const char *field, const char *what, int rc)
{
    TIERCE_DASSERT(rc < 0);
    if (count == 0 || count == request->n_block_keys)
        return true;
    if (find_instance(api, request->instance_id) == NULL)
        return false;
    snprintf(api->why, sizeof(api->why),
             "%s has %zu %ss for %zu block_keys; send a %s for each key", field, count, what,
             request->n_block_keys, what);
    tierce__api_fail(api, rc, "start write cache");
    return false;
}

static void start_write_cache(struct tierce__api_call *api)
{
    const Meta__StartWriteCacheRequest *request =
        (const Meta__StartWriteCacheRequest *)api->request;
    Meta__StartWriteCacheResponse *reply = (Meta__StartWriteCacheResponse *)api->reply;
    struct tierce__started started;
    struct keys keys;
    uint16_t hint;
    if (!read_keys(api, request->instance_id, request->block_keys, request->n_block_keys,
                   request->token_ids, request->n_token_ids, &keys))
        return;
    if (!is_for_each_key(api, request, request->n_location_spec_group_names,
                         "location_spec_group_names", "name", -EINVAL) ||
        !is_for_each_key(api, request, request->n_block_sizes, "block_sizes", "number",
                         TIERCE_E_ARGUMENT) ||
        !read_hint(api, request->hint, &hint))
        return;
    struct tierce__write_request write = {
        .instance_id = request->instance_id,
        .keys = keys.keys,
        .count = keys.count,
        .spec_groups = request->n_location_spec_group_names > 0
                           ? (const char *const *)request->location_spec_group_names
                           : NULL,
        .sizes = request->n_block_sizes > 0 ? request->block_sizes : NULL,
        .timeout_s = request->write_timeout_seconds,
        .ttl_s = request->ttl_seconds,
        .hint = hint,
        .host_id = host_of(api, request->node_host),
        .generation = request->generation > 0 ? (uint64_t)request->generation : 0,
    };
    int rc =
        tierce__locator_start_write(api->manager->locator, &write, &api->arena, &started, api->why);
    char *session = rc == 0 ? tierce__api_alloc(api, 1, sizeof(started.session)) : NULL;
    if (rc == 0) {
        reply->locations = tierce__api_show_locations(api, started.locations, started.count);
        bool good = session != NULL && reply->locations != NULL &&
                    show_mask(api, &started.mask, &reply->block_mask);
        rc = good ? 0 : -ENOMEM; /* the session then times out */
    }
    if (rc != 0) {
        tierce__api_fail(api, rc, "start write cache");
        return;
    }
    TIERCE_ASSERT(started.count <= keys.count);
    TIERCE_ASSERT(strlen(started.session) == TIERCE__SESSION_ID_BYTES);
    memcpy(session, started.session, sizeof(started.session));
    reply->write_session_id = session;
    reply->n_locations = started.count;
    tierce__events_start(api->manager->events, tierce__manager_now_us(api->manager), &write,
                         request->token_ids, request->n_token_ids, &started);
    tierce__api_say(api, OK, "Write cache session started successfully");
}

/* The sums in the URIs of `locations`, which are in the order of the session's blocks. Other texts
 * there are ignored, as by KVCM. Errors: TIERCE_E_ARGUMENT, -ENOMEM. */
static int read_sums(struct tierce__api_call *api, const Meta__FinishWriteCacheRequest *request,
                     const struct tierce__written_sum **out, size_t *count)
{
    size_t room = 1;
    for (size_t i = 0; i < request->n_locations; i++)
        room += request->locations[i]->n_location_specs;
    struct tierce__written_sum *sums = tierce__arena_alloc(&api->arena, room * sizeof(*sums));
    if (sums == NULL)
        return -ENOMEM;
    *count = 0;
    for (size_t i = 0; i < request->n_locations; i++) {
        for (size_t s = 0; s < request->locations[i]->n_location_specs; s++) {
            const Meta__LocationSpec *spec = request->locations[i]->location_specs[s];
            TIERCE_DASSERT(*count < room);
            sums[*count] = (struct tierce__written_sum){.key = i, .spec = spec->name};
            int rc = tierce__uri_sum(sums[*count].sum, spec->uri);
            if (rc < 0) {
                snprintf(api->why, sizeof(api->why),
                         "locations: the sum of block %zu, spec %.64s, is not 32 hex digits that "
                         "are not all 0",
                         i, spec->name);
                return TIERCE_E_ARGUMENT;
            }
            *count += (size_t)rc;
        }
    }
    *out = sums;
    return 0;
}

static void finish_write_cache(struct tierce__api_call *api)
{
    const Meta__FinishWriteCacheRequest *request =
        (const Meta__FinishWriteCacheRequest *)api->request;
    struct tierce__mask written;
    if (request->write_session_id[0] == '\0' || request->success_blocks == NULL) {
        if (find_instance(api, request->instance_id) != NULL)
            tierce__api_invalid(api, request->write_session_id[0] == '\0' ? "write_session_id"
                                                                          : "success_blocks");
        return;
    }
    struct tierce__written_notes notes = {0};
    if (!read_hint(api, request->hint, &notes.hint))
        return;
    int rc = tierce__api_read_mask(api, request->success_blocks, &written);
    if (rc == 0)
        rc = read_sums(api, request, &notes.sums, &notes.sum_count);
    if (rc == 0)
        rc = tierce__locator_finish_write_noted(api->manager->locator, request->instance_id,
                                                request->write_session_id, &written, &notes,
                                                api->why);
    if (rc < 0) {
        tierce__api_fail(api, rc, "finish write cache");
        return;
    }
    tierce__events_finish(api->manager->events, tierce__manager_now_us(api->manager),
                          request->instance_id, request->write_session_id, &written);
    tierce__api_say(api, OK, "Write cache session finished successfully");
}

static void renew_write_cache(struct tierce__api_call *api)
{
    static const int codes[] = {
        [TIERCE__SESSION_UNKNOWN] = META__ERROR_CODE__WRITE_SESSION_UNKNOWN,
        [TIERCE__SESSION_FINISHED] = META__ERROR_CODE__WRITE_SESSION_FINISHED,
        [TIERCE__SESSION_EXPIRED] = META__ERROR_CODE__WRITE_SESSION_EXPIRED,
    };
    const Meta__RenewWriteCacheRequest *request =
        (const Meta__RenewWriteCacheRequest *)api->request;
    Meta__RenewWriteCacheResponse *reply = (Meta__RenewWriteCacheResponse *)api->reply;
    struct tierce__renewed renewed = {0};
    int rc = tierce__locator_renew_write(api->manager->locator, request->instance_id,
                                         request->write_session_id, &renewed, api->why);
    TIERCE_ASSERT((size_t)renewed.end < sizeof(codes) / sizeof(codes[0]));
    TIERCE_ASSERT(renewed.left_us >= 0);
    reply->expires_in_ms = renewed.left_us / 1000;
    if (rc == -ESRCH)
        tierce__api_say(api, codes[renewed.end], "%s", api->why);
    else
        tierce__api_end(api, rc, "renew write cache", "Write cache session renewed successfully");
}

static void hint_cache(struct tierce__api_call *api)
{
    const Meta__HintCacheRequest *request = (const Meta__HintCacheRequest *)api->request;
    struct keys keys;
    uint16_t hint;
    if (!read_keys(api, request->instance_id, request->block_keys, request->n_block_keys,
                   request->token_ids, request->n_token_ids, &keys) ||
        !read_hint(api, request->hint, &hint))
        return;
    if (hint == 0) {
        tierce__api_invalid(api, "hint");
        return;
    }
    int rc = tierce__locator_hint(api->manager->locator, request->instance_id, keys.keys,
                                  keys.count, hint, api->why);
    tierce__api_end(api, rc, "hint cache", "Hint stored successfully");
}

static void remove_cache(struct tierce__api_call *api)
{
    const Meta__RemoveCacheRequest *request = (const Meta__RemoveCacheRequest *)api->request;
    struct tierce__mask mask;
    struct keys keys;
    if (!read_keys(api, request->instance_id, request->block_keys, request->n_block_keys,
                   request->token_ids, request->n_token_ids, &keys))
        return;
    int rc = tierce__api_read_mask(api, request->block_mask, &mask);
    if (rc == 0)
        rc = tierce__locator_remove(api->manager->locator, request->instance_id, keys.keys,
                                    keys.count, &mask, api->why);
    if (rc == 0)
        tierce__events_remove(api->manager->events, tierce__manager_now_us(api->manager),
                              request->instance_id, keys.keys, keys.count, &mask);
    tierce__api_end(api, rc, "remove cache", "Cache removed successfully");
}

/* Returns whether the reports can be read; otherwise the call is answered. */
static bool read_reports(struct tierce__api_call *api, const Meta__ReportCacheRequest *request,
                         struct tierce__location_report *reports)
{
    for (size_t i = 0; i < request->n_reports; i++) {
        const Meta__ReportedLocation *from = request->reports[i];
        bool has_reason = from->reason > META__REPORT_REASON__RR_UNSPECIFIED &&
                          from->reason <= META__REPORT_REASON__RR_RETRACTED;
        if (!has_reason || from->location_spec_name[0] == '\0' || from->uri[0] == '\0') {
            tierce__api_invalid(api, !has_reason            ? "reports: {reason}"
                                     : from->uri[0] == '\0' ? "reports: {uri}"
                                                            : "reports: {location_spec_name}");
            return false;
        }
        reports[i] = (struct tierce__location_report){
            .key = from->block_key,
            .spec_name = from->location_spec_name,
            .uri = from->uri,
            .reason = (enum tierce__report_reason)(from->reason - META__REPORT_REASON__RR_MISSING)};
    }
    return true;
}

static void report_cache(struct tierce__api_call *api)
{
    const Meta__ReportCacheRequest *request = (const Meta__ReportCacheRequest *)api->request;
    Meta__ReportCacheResponse *reply = (Meta__ReportCacheResponse *)api->reply;
    uint64_t dropped = 0;
    if (find_instance(api, request->instance_id) == NULL)
        return;
    if (request->n_reports == 0) {
        tierce__api_invalid(api, "reports");
        return;
    }
    struct tierce__location_report *reports =
        tierce__proto_alloc(api->reply, request->n_reports * sizeof(*reports));
    if (reports == NULL)
        tierce__api_fail(api, -ENOMEM, "report cache");
    if (reports == NULL || !read_reports(api, request, reports))
        return;
    api->keys += request->n_reports;
    int rc = tierce__locator_report(api->manager->locator, request->instance_id, reports,
                                    request->n_reports, &dropped, api->why);
    reply->dropped_locations = (int64_t)dropped;
    /* A place belongs to one location, and the first report of it drops it. */
    TIERCE_ASSERT(dropped <= request->n_reports);
    reply->absent_reports = rc == 0 ? (int64_t)(request->n_reports - dropped) : 0;
    tierce__api_end(api, rc, "report cache", "Reported locations dropped successfully");
}

static void trim_cache(struct tierce__api_call *api)
{
    const Meta__TrimCacheRequest *request = (const Meta__TrimCacheRequest *)api->request;
    int rc =
        tierce__locator_trim(api->manager->locator, request->instance_id, (int)request->strategy,
                             request->begin_timestamp, request->end_timestamp, api->why);
    if (rc == 0)
        tierce__events_trim(api->manager->events, tierce__manager_now_us(api->manager),
                            request->instance_id, (int)request->strategy, request->begin_timestamp,
                            request->end_timestamp);
    tierce__api_end(api, rc, "trim cache", "Cache trimmed successfully");
}

const struct tierce__api_row tierce__api_meta_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_meta_register_instance] = {register_instance,
                                            TIERCE__API_WAITS,
                                            {"instance_group"}},
    [TIERCE__RPC_meta_get_instance_info] = {get_instance_info,
                                            TIERCE__API_NEVER_WAITS,
                                            {"instance_id"}},
    [TIERCE__RPC_meta_get_cache_meta] = {get_cache_meta, TIERCE__API_WAITS_AS_INSTANCE},
    [TIERCE__RPC_meta_get_cache_location] = {get_cache_location, TIERCE__API_WAITS_AS_INSTANCE},
    [TIERCE__RPC_meta_start_write_cache] = {start_write_cache, TIERCE__API_WAITS_AS_INSTANCE},
    [TIERCE__RPC_meta_finish_write_cache] = {finish_write_cache, TIERCE__API_WAITS_AS_INSTANCE},
    [TIERCE__RPC_meta_remove_cache] = {remove_cache, TIERCE__API_WAITS_AS_INSTANCE},
    [TIERCE__RPC_meta_trim_cache] = {trim_cache, TIERCE__API_WAITS},
    [TIERCE__RPC_meta_renew_write_cache] = {renew_write_cache,
                                            TIERCE__API_NEVER_WAITS,
                                            {"instance_id", "write_session_id"}},
    [TIERCE__RPC_meta_report_cache] = {report_cache, TIERCE__API_WAITS_AS_INSTANCE},
    [TIERCE__RPC_meta_hint_cache] = {hint_cache, TIERCE__API_WAITS_AS_INSTANCE},
};
