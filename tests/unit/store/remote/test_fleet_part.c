/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of names with a real manager. */
#include "fleet_shapes.h"
#include "running_manager.h"
#include "silent_log.h"

#include "net/grpc/grpc_client.h"
#include "proto/kvcm/admin_service.pb-c.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "proto/kvcm/rpcs.h"

#include <errno.h>

static unsigned updates;

/* In place of the real one: the linker redirects calls of it to here. */
uint64_t __wrap_tierce__fleet_stores_registry(struct tierce__fleet_stores *stores);
uint64_t __wrap_tierce__fleet_stores_registry(struct tierce__fleet_stores *stores)
{
    (void)stores;
    return 0; /* not known */
}

int __wrap_tierce__fleet_stores_update(struct tierce__fleet_stores *stores, const char *json,
                                       char why[TIERCE__FLEET_WHY_BYTES]);
int __wrap_tierce__fleet_stores_update(struct tierce__fleet_stores *stores, const char *json,
                                       char why[TIERCE__FLEET_WHY_BYTES])
{
    (void)stores;
    why[0] = '\0';
    updates += strstr(json, "global_unique_name") != NULL;
    return 0;
}

static struct running_manager world;
static struct tierce__fleet_manager *manager;
static struct tierce__namespaces *namespaces;

static void open_manager(uint16_t port)
{
    struct tierce__url url = {0};
    char text[64], why[TIERCE__FLEET_WHY_BYTES];
    snprintf(text, sizeof(text), "fleet://127.0.0.1:%u/default", port);
    ck_assert_int_eq(tierce__url_parse(&url, text, why), 0);
    int rc = tierce__fleet_manager_open(
        &manager,
        &(struct tierce__fleet_manager_opts){.size = sizeof(struct tierce__fleet_manager_opts),
                                             .url = &url},
        why);
    ck_assert_msg(rc == 0, "%s", why);
    tierce__url_clear(&url);
}

static void start_world(void)
{
    silence_log();
    running_manager_start(&world, NULL);
    open_manager(world.ports.meta_grpc);
    ck_assert_int_eq(tierce__namespaces_create(&namespaces), 0);
}

static void stop_world(void)
{
    tierce__fleet_manager_close(manager);
    tierce__namespaces_destroy(namespaces);
    running_manager_stop(&world);
}

static struct tierce__fleet_parts *open_parts(const char *instance)
{
    struct tierce__fleet_parts *parts = NULL;
    ck_assert_int_eq(tierce__fleet_parts_open(&parts,
                                              &(struct tierce__fleet_parts_opts){
                                                  .size = sizeof(struct tierce__fleet_parts_opts),
                                                  .manager = manager,
                                                  .namespaces = namespaces,
                                                  .group = "default",
                                                  .instance = instance}),
                     0);
    return parts;
}

static struct tierce__fleet_part *part_of(struct tierce__fleet_parts *parts,
                                          const struct shape *shape, struct tierce_shard shard)
{
    char room[TIERCE__KEY_TEXT_BYTES];
    struct tierce__fleet_part *part = NULL;
    int64_t key = 0;
    const struct tierce_plugin_name name = shape_name(room, shape, shard, namespaces);
    ck_assert_int_eq(tierce__fleet_part_of(parts, &part, &key, &name), 0);
    ck_assert_int_eq(key, shape_block_key);
    return part;
}

struct waited {
    struct tierce__fleet_wait wait;
    int status;
    unsigned done;
};

static void note(struct tierce__fleet_wait *wait, int status)
{
    struct waited *w = wait->arg;
    w->status = status;
    w->done++;
}

static void begin(struct tierce__fleet_parts *parts, struct tierce__fleet_part *part,
                  struct waited *w, uint32_t timeout_ms)
{
    *w = (struct waited){
        .wait = {.deadline_ns = tierce__deadline_in_ms(timeout_ms), .done = note, .arg = w}};
    tierce__fleet_register(parts, part, &w->wait);
}

static int finish(struct tierce__fleet_parts *parts, struct waited *w)
{
    uint64_t limit_ns = tierce__deadline_in_ms(60000);
    while (w->done == 0) {
        uint64_t until_ns = tierce__deadline_in_ms(1000);
        ck_assert(tierce__now_ns() < limit_ns);
        tierce__fleet_expire(parts, &until_ns);
        tierce__fleet_manager_poll(manager, until_ns);
    }
    ck_assert_uint_eq(w->done, 1);
    return w->status;
}

/* A manager that has just begun to run may not lead yet. */
static int register_part(struct tierce__fleet_parts *parts, struct tierce__fleet_part *part)
{
    struct waited w;
    begin(parts, part, &w, 60000);
    return finish(parts, &w);
}

START_TEST(test_registers_once)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    struct waited many[8];
    ck_assert_ptr_eq(part, part_of(parts, &plain_shape, whole_shard));
    ck_assert_str_eq(part->spec, "tp0");
    ck_assert_int_eq(strncmp(part->instance, "tierce-", 7), 0);
    ck_assert_uint_eq(strlen(part->instance), 7 + 32 + 4 + 9); /* "-all-" */
    ck_assert(part->object_bytes > 0 && part->object_bytes % 4096 == 0 && !part->has_groups);
    for (size_t i = 0; i < 8; i++)
        begin(parts, part, &many[i], 60000);
    for (size_t i = 0; i < 8; i++)
        ck_assert_int_eq(finish(parts, &many[i]), 0);
    ck_assert_uint_eq(updates, 1); /* they shared a call */
    ck_assert_int_eq(part->state, TIERCE__FLEET_REGISTERED);
    begin(parts, part, &many[0], 60000);
    ck_assert_uint_eq(many[0].done, 1); /* at once */
    tierce__fleet_parts_close(parts);
    /* Another process with the same model sends the same. */
    parts = open_parts(NULL);
    ck_assert_int_eq(register_part(parts, part_of(parts, &plain_shape, whole_shard)), 0);
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_two_ranks_share_an_instance)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *first =
        part_of(parts, &plain_shape, (struct tierce_shard){0, 2, 0, 1});
    struct tierce__fleet_part *second =
        part_of(parts, &plain_shape, (struct tierce_shard){1, 2, 0, 1});
    ck_assert_str_eq(first->instance, second->instance);
    ck_assert_str_eq(first->spec, "tp0");
    ck_assert_str_eq(second->spec, "tp1");
    ck_assert(first->has_groups && second->has_groups);
    ck_assert_int_eq(register_part(parts, first), 0);
    ck_assert_int_eq(register_part(parts, second), 0);
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_stages_and_groups_have_instances_of_their_own)
{
    struct shape full = plain_shape, window = plain_shape, state = plain_shape;
    full.group = TIERCE_GROUP_FULL;
    window.group = TIERCE_GROUP_WINDOW;
    window.window = 64;
    state.group = TIERCE_GROUP_STATE;
    state.chunk_blocks = 1;
    state.block_tokens = 64; /* the tokens of the others' chunks */
    struct tierce__fleet_parts *parts = open_parts("family");
    const struct tierce__fleet_part *all[] = {
        part_of(parts, &plain_shape, whole_shard),
        part_of(parts, &full, whole_shard),
        part_of(parts, &window, whole_shard),
        part_of(parts, &state, whole_shard),
        part_of(parts, &plain_shape, (struct tierce_shard){0, 1, 0, 2}),
        part_of(parts, &plain_shape, (struct tierce_shard){0, 1, 1, 2}),
    };
    static const char *const begins[] = {"family",         "family-full-",  "family-window-",
                                         "family-linear-", "family-pp0of2", "family-pp1of2"};
    for (size_t i = 0; i < 6; i++) {
        ck_assert_int_eq(strncmp(all[i]->instance, begins[i], strlen(begins[i])), 0);
        for (size_t j = 0; j < i; j++)
            ck_assert_str_ne(all[i]->instance, all[j]->instance);
        ck_assert_int_eq(register_part(parts, (struct tierce__fleet_part *)(uintptr_t)all[i]), 0);
    }
    tierce__fleet_parts_close(parts);
    /* By namespace, the groups of a model have names with one beginning. */
    parts = open_parts(NULL);
    ck_assert_int_eq(strncmp(part_of(parts, &full, whole_shard)->instance,
                             part_of(parts, &state, whole_shard)->instance, 39),
                     0);
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_another_model_is_rejected)
{
    struct shape other = plain_shape;
    other.dtype = "float32";
    struct tierce__fleet_parts *parts = open_parts("shared"), *later = open_parts("shared");
    struct waited w;
    ck_assert_int_eq(register_part(parts, part_of(parts, &plain_shape, whole_shard)), 0);
    struct tierce__fleet_part *part = part_of(later, &other, whole_shard);
    ck_assert_int_eq(register_part(later, part), TIERCE_E_REFUSED);
    ck_assert_int_eq(part->state, TIERCE__FLEET_REJECTED);
    ck_assert_msg(strstr(part->why, "dtype") != NULL, "%s", part->why);
    begin(later, part, &w, 60000);
    ck_assert(w.done == 1 && w.status == TIERCE_E_REFUSED); /* not asked again so soon */
    tierce__fleet_parts_close(parts);
    tierce__fleet_parts_close(later);
}
END_TEST

START_TEST(test_no_group)
{
    struct tierce__fleet_parts *parts = NULL;
    ck_assert_int_eq(tierce__fleet_parts_open(&parts,
                                              &(struct tierce__fleet_parts_opts){
                                                  .size = sizeof(struct tierce__fleet_parts_opts),
                                                  .manager = manager,
                                                  .namespaces = namespaces,
                                                  .group = "nowhere"}),
                     0);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    ck_assert_int_eq(register_part(parts, part), -EPROTO); /* INTERNAL_ERROR, as KVCM answers */
    ck_assert_msg(strstr(part->why, "nowhere") != NULL, "%s", part->why);
    tierce__fleet_parts_close(parts);
}
END_TEST

/* Fine-tunings of one model differ in their weights only. */
START_TEST(test_two_models_claim_an_instance)
{
    struct shape other = plain_shape, longer = plain_shape;
    struct tierce__fleet_parts *parts = open_parts("claimed"), *by_namespace = open_parts(NULL);
    other.weights = "0123456789";
    longer.weights = "aabbccddff"; /* the same beginning */
    ck_assert_int_eq(register_part(parts, part_of(parts, &plain_shape, whole_shard)), 0);
    struct tierce__fleet_part *part = part_of(parts, &other, whole_shard);
    ck_assert_int_eq(register_part(parts, part), TIERCE_E_REFUSED);
    ck_assert_msg(strstr(part->why, "model_name") != NULL, "%s", part->why);
    part = part_of(parts, &longer, whole_shard);
    ck_assert_int_eq(register_part(parts, part), TIERCE_E_REFUSED);
    ck_assert_msg(strstr(part->why, "extra") != NULL, "%s", part->why);
    /* Without a name there is room for all. */
    const struct shape *all[] = {&plain_shape, &other, &longer};
    for (size_t i = 0; i < 3; i++)
        for (uint16_t ranks = 1; ranks < 3; ranks++)
            ck_assert_int_eq(
                register_part(by_namespace,
                              part_of(by_namespace, all[i], (struct tierce_shard){0, ranks, 0, 1})),
                0);
    tierce__fleet_parts_close(parts);
    tierce__fleet_parts_close(by_namespace);
}
END_TEST

static void remove_instance(const char *instance)
{
    struct tierce__grpc_client *client;
    struct tierce__grpc_answer answer;
    Admin__RemoveInstanceRequest request = ADMIN__REMOVE_INSTANCE_REQUEST__INIT;
    void *body;
    size_t bytes;
    char why[256];
    request.instance_group = (char *)(uintptr_t) "default";
    request.instance_id = (char *)(uintptr_t)instance;
    ck_assert_int_eq(tierce__proto_pack(&body, &bytes, &request.base), 0);
    int rc = tierce__grpc_client_open(
        &client,
        &(struct tierce__grpc_client_opts){.size = sizeof(struct tierce__grpc_client_opts),
                                           .host = "127.0.0.1",
                                           .port = world.ports.meta_grpc},
        why);
    ck_assert_msg(rc == 0, "%s", why);
    rc = tierce__grpc_client_unary(
        client,
        &(struct tierce__grpc_request){
            .path = TIERCE__RPC_PATH("admin", "AdminService", "RemoveInstance"),
            .body = body,
            .bytes = bytes,
            .timeout_ms = 60000},
        &answer);
    ck_assert(rc == 0 && answer.status == TIERCE__GRPC_OK);
    Admin__CommonResponse *reply = admin__common_response__unpack(NULL, answer.bytes, answer.body);
    ck_assert_ptr_nonnull(reply);
    ck_assert_msg(reply->header->status->code == ADMIN__ERROR_CODE__OK, "%s",
                  reply->header->status->message);
    admin__common_response__free_unpacked(reply, NULL);
    tierce__grpc_answer_fini(&answer);
    tierce__grpc_client_close(client);
    tierce__free(body);
}

struct asked {
    struct tierce__fleet_call call;
    bool done;
};

static void has_answered(struct tierce__fleet_call *call)
{
    struct asked *asked = call->arg;
    asked->done = true;
    tierce__proto_free(call->reply);
}

/* 0, or TIERCE_E_MISS. */
static int has_instance(const char *instance)
{
    Meta__GetInstanceInfoRequest request = META__GET_INSTANCE_INFO_REQUEST__INIT;
    request.instance_id = (char *)(uintptr_t)instance;
    struct asked asked = {.call = {.method = "GetInstanceInfo",
                                   .request = &request.base,
                                   .answers = &meta__get_instance_info_response__descriptor,
                                   .deadline_ns = tierce__deadline_in_ms(60000),
                                   .repeats = true,
                                   .done = has_answered,
                                   .arg = &asked}};
    tierce__fleet_manager_start(manager, &asked.call);
    while (!asked.done)
        tierce__fleet_manager_poll(manager, asked.call.deadline_ns);
    return asked.call.status;
}

START_TEST(test_a_manager_that_forgot_the_instance)
{
    struct tierce__fleet_parts *parts = open_parts("short");
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    ck_assert_int_eq(register_part(parts, part), 0);
    ck_assert_int_eq(has_instance("short"), 0);
    remove_instance("short");
    ck_assert_int_eq(has_instance("short"), TIERCE_E_MISS);
    tierce__fleet_part_outdated(part);
    part->asked_ns -= 1000 * TIERCE__MS_NS; /* a second later */
    ck_assert_int_eq(register_part(parts, part), 0);
    ck_assert_int_eq(has_instance("short"), 0);
    tierce__fleet_parts_close(parts);
}
END_TEST

CHECK_MAIN("fleet part", .seconds = 120, .setup = start_world, .teardown = stop_world,
           .tests = {test_registers_once, test_two_ranks_share_an_instance,
                     test_stages_and_groups_have_instances_of_their_own,
                     test_another_model_is_rejected, test_no_group,
                     test_two_models_claim_an_instance, test_a_manager_that_forgot_the_instance})
