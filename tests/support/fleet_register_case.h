/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_FLEET_REGISTER_CASE_H
#define TIERCE_TESTS_FLEET_REGISTER_CASE_H

#include "fleet_shapes.h"
#include "silent_log.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"

#include <errno.h>
#include <stdio.h>

/* Parts of names, with a simulated manager: its calls wait until a test polls it. */

enum { INSTANCES = 600, SECOND_MS = 1000, MINUTE_MS = 60000 };

/* Registrations by instance: another one of the same name is rejected, as a manager does it. */
struct tierce__fleet_manager {
    struct tierce__list calls;
    unsigned started; /* calls */
    unsigned asked;   /* of them GetInstanceInfo */
    uint64_t generation, registry, marked_by;
    int status; /* of the next answers; 0: by the registration */
    int update; /* of tierce__fleet_stores_update */
    struct known {
        char instance[128];
        void *body;
        size_t bytes;
    } known[INSTANCES];
    size_t known_count;
    void *last; /* the last registration */
    size_t last_bytes;
};

static struct tierce__fleet_manager fake;
static struct tierce__namespaces *namespaces;

void tierce__fleet_manager_start(struct tierce__fleet_manager *manager,
                                 struct tierce__fleet_call *call)
{
    call->begun_ns = tierce__now_ns();
    manager->asked += strcmp(call->method, "GetInstanceInfo") == 0;
    ck_assert(manager->asked > 0 || strcmp(call->method, "RegisterInstance") == 0);
    ck_assert(call->repeats && call->deadline_ns > tierce__now_ns());
    manager->started++;
    call->status = tierce__proto_pack(&call->body, &call->body_bytes, call->request);
    tierce__list_push_back(&manager->calls, &call->node);
}

static inline struct known *known_of(struct tierce__fleet_manager *manager, const char *instance)
{
    for (size_t i = 0; i < manager->known_count; i++)
        if (strcmp(manager->known[i].instance, instance) == 0)
            return &manager->known[i];
    return NULL;
}

/* 0, or -EEXIST. */
static inline int judge(struct tierce__fleet_manager *manager,
                        const struct tierce__fleet_call *call)
{
    Meta__RegisterInstanceRequest *request =
        meta__register_instance_request__unpack(NULL, call->body_bytes, call->body);
    ck_assert_ptr_nonnull(request);
    struct known *known = known_of(manager, request->instance_id);
    if (known == NULL) {
        ck_assert_uint_lt(manager->known_count, INSTANCES);
        known = &manager->known[manager->known_count++];
        snprintf(known->instance, sizeof(known->instance), "%s", request->instance_id);
        known->bytes = call->body_bytes;
        known->body = malloc(known->bytes);
        memcpy(known->body, call->body, known->bytes);
    }
    meta__register_instance_request__free_unpacked(request, NULL);
    bool is_same =
        known->bytes == call->body_bytes && memcmp(known->body, call->body, call->body_bytes) == 0;
    return is_same ? 0 : -EEXIST;
}

static inline void answer(struct tierce__fleet_manager *manager, struct tierce__fleet_call *call)
{
    bool registers = strcmp(call->method, "RegisterInstance") == 0;
    if (call->status == 0)
        call->status = manager->status != 0 ? manager->status
                       : registers          ? judge(manager, call)
                                            : 0;
    if (call->status == 0) {
        call->generation = manager->generation;
        call->registry = manager->registry;
        call->reply = tierce__proto_create(call->answers);
        if (call->reply == NULL)
            call->status = -ENOMEM;
    }
    snprintf(call->why, sizeof(call->why), "simulated: %d", call->status);
    free(manager->last);
    manager->last = malloc(call->body_bytes + 1);
    manager->last_bytes = call->body_bytes;
    if (call->body != NULL)
        memcpy(manager->last, call->body, call->body_bytes);
    tierce__free(call->body);
    call->body = NULL;
    call->done(call);
}

void tierce__fleet_manager_poll(struct tierce__fleet_manager *manager, uint64_t until_ns)
{
    (void)until_ns;
    while (!tierce__list_empty(&manager->calls)) {
        struct tierce__fleet_call *call =
            TIERCE__CONTAINER_OF(manager->calls.next, struct tierce__fleet_call, node);
        tierce__list_remove(&call->node);
        answer(manager, call);
    }
}

static inline void drop_calls(void)
{
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &fake.calls) {
        tierce__list_remove(node);
        tierce__free(TIERCE__CONTAINER_OF(node, struct tierce__fleet_call, node)->body);
    }
}

int tierce__fleet_stores_update(struct tierce__fleet_stores *stores, const char *json,
                                char why[TIERCE__FLEET_WHY_BYTES])
{
    (void)stores;
    ck_assert_ptr_nonnull(json);
    snprintf(why, TIERCE__FLEET_WHY_BYTES, "simulated");
    return fake.update;
}

uint64_t tierce__fleet_stores_registry(struct tierce__fleet_stores *stores)
{
    (void)stores;
    return fake.marked_by;
}

static inline void start_fake(void)
{
    silence_log();
    memset(&fake, 0, sizeof(fake));
    tierce__list_init(&fake.calls);
    ck_assert_int_eq(tierce__namespaces_create(&namespaces), 0);
}

static inline void stop_fake(void)
{
    ck_assert(tierce__list_empty(&fake.calls));
    for (size_t i = 0; i < fake.known_count; i++)
        free(fake.known[i].body);
    free(fake.last);
    tierce__namespaces_destroy(namespaces);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* ---- helpers --------------------------------------------------------------------------------- */

static inline int try_open(struct tierce__fleet_parts **parts, const char *instance,
                           struct tierce__namespaces *table)
{
    return tierce__fleet_parts_open(
        parts, &(struct tierce__fleet_parts_opts){.size = sizeof(struct tierce__fleet_parts_opts),
                                                  .manager = &fake,
                                                  .namespaces = table,
                                                  .group = "default",
                                                  .instance = instance});
}

static inline struct tierce__fleet_parts *open_parts(const char *instance)
{
    struct tierce__fleet_parts *parts = NULL;
    ck_assert_int_eq(try_open(&parts, instance, namespaces), 0);
    return parts;
}

static inline struct tierce__fleet_part *
part_of(struct tierce__fleet_parts *parts, const struct shape *shape, struct tierce_shard shard)
{
    char room[TIERCE__KEY_TEXT_BYTES];
    struct tierce__fleet_part *part = NULL;
    int64_t key = 0;
    const struct tierce_plugin_name name = shape_name(room, shape, shard, namespaces);
    int rc = tierce__fleet_part_of(parts, &part, &key, &name);
    ck_assert_msg(rc == 0, "%d: %s", rc, tierce__fleet_parts_why(parts));
    ck_assert_int_eq(key, shape_block_key);
    ck_assert_str_eq(tierce__fleet_parts_why(parts), "");
    return part;
}

struct waited {
    struct tierce__fleet_wait wait;
    int status;
    unsigned done;
};

static inline void note(struct tierce__fleet_wait *wait, int status)
{
    struct waited *w = wait->arg;
    w->status = status;
    w->done++;
}

static inline void begin(struct tierce__fleet_parts *parts, struct tierce__fleet_part *part,
                         struct waited *w, uint64_t deadline_ns)
{
    *w = (struct waited){.wait = {.deadline_ns = deadline_ns, .done = note, .arg = w}};
    tierce__fleet_register(parts, part, &w->wait);
}

static inline int register_part(struct tierce__fleet_parts *parts, struct tierce__fleet_part *part)
{
    struct waited w;
    begin(parts, part, &w, UINT64_MAX);
    tierce__fleet_manager_poll(&fake, 0);
    ck_assert_uint_eq(w.done, 1);
    return w.status;
}

static inline void make_older(struct tierce__fleet_part *part, uint64_t ms)
{
    part->asked_ns -= ms * TIERCE__MS_NS;
}

#endif
