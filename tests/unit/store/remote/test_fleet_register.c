/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of names with a simulated manager: what is sent, how often, and who is answered when. */
#include "fleet_shapes.h"
#include "silent_log.h"
#include "test_random.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"

#include <errno.h>
#include <stdio.h>

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

static struct known *known_of(struct tierce__fleet_manager *manager, const char *instance)
{
    for (size_t i = 0; i < manager->known_count; i++)
        if (strcmp(manager->known[i].instance, instance) == 0)
            return &manager->known[i];
    return NULL;
}

/* 0, or -EEXIST. */
static int judge(struct tierce__fleet_manager *manager, const struct tierce__fleet_call *call)
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

static void answer(struct tierce__fleet_manager *manager, struct tierce__fleet_call *call)
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

static void drop_calls(void)
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

static void start_fake(void)
{
    silence_log();
    memset(&fake, 0, sizeof(fake));
    tierce__list_init(&fake.calls);
    ck_assert_int_eq(tierce__namespaces_create(&namespaces), 0);
}

static void stop_fake(void)
{
    ck_assert(tierce__list_empty(&fake.calls));
    for (size_t i = 0; i < fake.known_count; i++)
        free(fake.known[i].body);
    free(fake.last);
    tierce__namespaces_destroy(namespaces);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* ---- helpers --------------------------------------------------------------------------------- */

static int try_open(struct tierce__fleet_parts **parts, const char *instance,
                    struct tierce__namespaces *table)
{
    return tierce__fleet_parts_open(
        parts, &(struct tierce__fleet_parts_opts){.size = sizeof(struct tierce__fleet_parts_opts),
                                                  .manager = &fake,
                                                  .namespaces = table,
                                                  .group = "default",
                                                  .instance = instance});
}

static struct tierce__fleet_parts *open_parts(const char *instance)
{
    struct tierce__fleet_parts *parts = NULL;
    ck_assert_int_eq(try_open(&parts, instance, namespaces), 0);
    return parts;
}

static struct tierce__fleet_part *part_of(struct tierce__fleet_parts *parts,
                                          const struct shape *shape, struct tierce_shard shard)
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

static void note(struct tierce__fleet_wait *wait, int status)
{
    struct waited *w = wait->arg;
    w->status = status;
    w->done++;
}

static void begin(struct tierce__fleet_parts *parts, struct tierce__fleet_part *part,
                  struct waited *w, uint64_t deadline_ns)
{
    *w = (struct waited){.wait = {.deadline_ns = deadline_ns, .done = note, .arg = w}};
    tierce__fleet_register(parts, part, &w->wait);
}

static int register_part(struct tierce__fleet_parts *parts, struct tierce__fleet_part *part)
{
    struct waited w;
    begin(parts, part, &w, UINT64_MAX);
    tierce__fleet_manager_poll(&fake, 0);
    ck_assert_uint_eq(w.done, 1);
    return w.status;
}

static void make_older(struct tierce__fleet_part *part, uint64_t ms)
{
    part->asked_ns -= ms * TIERCE__MS_NS;
}

/* ---- what is sent ---------------------------------------------------------------------------- */

START_TEST(test_engines_of_a_model_send_the_same)
{
    struct tierce__namespaces *others = namespaces;
    struct tierce__fleet_parts *parts = open_parts(NULL);
    ck_assert_int_eq(
        register_part(parts, part_of(parts, &plain_shape, (struct tierce_shard){1, 2, 0, 1})), 0);
    tierce__fleet_parts_close(parts);
    /* Another process, whose namespaces have other numbers; and the other rank. */
    ck_assert_int_eq(tierce__namespaces_create(&namespaces), 0);
    parts = open_parts(NULL);
    struct shape other = plain_shape;
    other.dtype = "float32";
    (void)part_of(parts, &other, whole_shard);
    struct tierce__fleet_part *part =
        part_of(parts, &plain_shape, (struct tierce_shard){0, 2, 0, 1});
    ck_assert_int_eq(register_part(parts, part), 0); /* compared byte by byte */
    ck_assert(fake.started == 2 && fake.known_count == 1);
    tierce__fleet_parts_close(parts);
    tierce__namespaces_destroy(others);
}
END_TEST

START_TEST(test_a_registration)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part =
        part_of(parts, &plain_shape, (struct tierce_shard){1, 3, 1, 2});
    char hex[2 * TIERCE_HASH_BYTES + 1];
    ck_assert_int_eq(register_part(parts, part), 0);
    Meta__RegisterInstanceRequest *sent =
        meta__register_instance_request__unpack(NULL, fake.last_bytes, fake.last);
    ck_assert_ptr_nonnull(sent);
    ck_assert_str_eq(sent->instance_group, "default");
    ck_assert_str_eq(sent->instance_id, part->instance);
    ck_assert_int_eq(sent->block_size, 64);
    const Meta__ModelDeployment *model = sent->model_deployment;
    ck_assert_str_eq(model->model_name, "tiny-aabbccdd");
    ck_assert_str_eq(model->dtype, "bfloat16");
    ck_assert(model->tp_size == 3 && model->pp_size == 2 && model->dp_size == 1);
    tierce__hex_encode(hex, part->ns_digest, TIERCE_HASH_BYTES);
    ck_assert_uint_eq(strlen(model->extra), 129);
    ck_assert_str_eq(model->extra + 65, hex);
    ck_assert(sent->n_location_spec_infos == 3 && sent->n_location_spec_groups == 3);
    for (size_t i = 0; i < 3; i++) {
        const Meta__LocationSpecGroup *group = sent->location_spec_groups[i];
        char name[8];
        snprintf(name, sizeof(name), "tp%zu", i);
        ck_assert_str_eq(sent->location_spec_infos[i]->name, name);
        ck_assert_int_eq(sent->location_spec_infos[i]->size, part->object_bytes);
        ck_assert_str_eq(group->name, name);
        ck_assert_uint_eq(group->n_spec_names, 1);
        ck_assert_str_eq(group->spec_names[0], name);
    }
    meta__register_instance_request__free_unpacked(sent, NULL);
    /* A header of one page, two layers of four blocks. */
    ck_assert_uint_eq(part->object_bytes, 4096 + 2 * 4 * 512);
    tierce__fleet_parts_close(parts);
}
END_TEST

/* What a registration of this shape says about attention. */
static void check_attention(const struct shape *shape, struct tierce_shard shard, const char *kind,
                            int32_t window_tokens, int32_t every_tokens, char family[128])
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    ck_assert_int_eq(register_part(parts, part_of(parts, shape, shard)), 0);
    Meta__RegisterInstanceRequest *sent =
        meta__register_instance_request__unpack(NULL, fake.last_bytes, fake.last);
    ck_assert_ptr_nonnull(sent);
    ck_assert_str_eq(sent->attention_kind, kind);
    ck_assert_int_eq(sent->window_tokens, window_tokens);
    ck_assert_int_eq(sent->every_tokens, every_tokens);
    snprintf(family, 128, "%s", sent->attention_family);
    ck_assert_str_eq(sent->attention_layers, shape->group == TIERCE_GROUP_ALL ? "all" : "1,3");
    meta__register_instance_request__free_unpacked(sent, NULL);
    tierce__fleet_parts_close(parts);
}

/* The tokens of chunks may differ in a family, those of blocks may not, nor may ranks. */
START_TEST(test_attention_and_family)
{
    struct shape full = plain_shape, window = plain_shape, state = plain_shape, wide = plain_shape;
    struct tierce_shard of_two = {1, 2, 0, 1};
    char first[128], other[128];
    full.group = TIERCE_GROUP_FULL;
    window.group = TIERCE_GROUP_WINDOW;
    window.window = 48;
    window.chunk_blocks = 2;
    state.group = TIERCE_GROUP_STATE;
    state.chunk_blocks = 1;
    wide.block_tokens *= 2;
    check_attention(&plain_shape, whole_shard, "all", 0, 0, first);
    ck_assert_uint_eq(strlen(first), strlen("tierce-") + 16 + strlen("-tp1-pp1"));
    check_attention(&full, whole_shard, "full", 0, 0, other);
    ck_assert_str_eq(first, other);
    check_attention(&window, whole_shard, "window", 48, 0, other);
    ck_assert_str_eq(first, other);
    window.group = TIERCE_GROUP_CHUNKED;
    check_attention(&window, whole_shard, "chunked", 48, 0, other);
    ck_assert_str_eq(first, other);
    check_attention(&state, whole_shard, "linear", 0, 16, other);
    ck_assert_str_eq(first, other);
    check_attention(&wide, whole_shard, "all", 0, 0, other);
    ck_assert_str_ne(first, other);
    check_attention(&plain_shape, of_two, "all", 0, 0, other);
    ck_assert_str_ne(first, other);
}
END_TEST

/* The model's name and dtype of a registration. */
static void check_model(const char *model, const char *dtype, const char *name,
                        const char *sent_dtype)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct shape shape = plain_shape;
    shape.model = model;
    shape.dtype = dtype;
    ck_assert_int_eq(register_part(parts, part_of(parts, &shape, whole_shard)), 0);
    Meta__RegisterInstanceRequest *sent =
        meta__register_instance_request__unpack(NULL, fake.last_bytes, fake.last);
    ck_assert_ptr_nonnull(sent);
    ck_assert_str_eq(sent->model_deployment->model_name, name);
    ck_assert_str_eq(sent->model_deployment->dtype, sent_dtype);
    ck_assert(sent->n_location_spec_infos == 1 && sent->n_location_spec_groups == 0);
    meta__register_instance_request__free_unpacked(sent, NULL);
    tierce__fleet_parts_close(parts);
}

START_TEST(test_names_of_models)
{
    check_model("{\"config\":{\"audio_config\":{\"model_type\":\"no\"},\"model_type\":\"qwen2\"},"
                "\"drafter\":{\"config\":{\"model_type\":\"no\"}}}",
                "fp8", "qwen2-aabbccdd", "fp8");
    check_model("{\"config\":{\"x\":NaN,\"model_type\":\"a\"}}", "", "a-aabbccdd", "unknown");
    check_model("{\"model_type\":7}", "b", "model-aabbccdd", "b");
    check_model("{\"model_type\":\"\"}", "c", "model-aabbccdd", "c");
    check_model("{\"model_type\":\"a\\u0000b\"}", "d", "model-aabbccdd", "d");
    check_model("", "e", "model-aabbccdd", "e");
    check_model("llama", "f", "model-aabbccdd", "f");
    check_model("{\"config\":{\"config\":", "g", "model-aabbccdd", "g");
    /* 62 bytes, and a letter of two bytes that has no room. */
    static const char cut[] = "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgg";
    check_model("{\"model_type\":\"aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgg"
                "\xc3\xa9\"}",
                "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgg\xc3\xa9",
                "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgg-aabbccdd", cut);
}
END_TEST

/* ---- names ----------------------------------------------------------------------------------- */

static int try_name(struct tierce__fleet_parts *parts, const struct tierce_plugin_name *name)
{
    struct tierce__fleet_part *part = NULL;
    int64_t key;
    int rc = tierce__fleet_part_of(parts, &part, &key, name);
    ck_assert((rc == 0) == (part != NULL));
    return rc;
}

START_TEST(test_names_that_are_none)
{
    static const char *const names[] = {"", "a", "tierce1:", "tierce1:00"};
    char room[TIERCE__KEY_TEXT_BYTES];
    struct tierce__fleet_parts *parts = open_parts(NULL);
    for (size_t i = 0; i < 4; i++) {
        const struct tierce_plugin_name name = {.text = names[i], .bytes = strlen(names[i])};
        ck_assert_int_eq(try_name(parts, &name), TIERCE_E_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(tierce__fleet_parts_why(parts), "text of a key"));
    }
    struct tierce_plugin_name name = shape_name(room, &plain_shape, whole_shard, NULL);
    ck_assert_int_eq(try_name(parts, &name), TIERCE_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(tierce__fleet_parts_why(parts), "not known"));
    name = shape_name(room, &plain_shape, whole_shard, namespaces); /* now it is */
    ck_assert_int_eq(try_name(parts, &name), 0);
    name = shape_name(room, &plain_shape, (struct tierce_shard){0, 1025, 0, 1}, namespaces);
    ck_assert_int_eq(try_name(parts, &name), TIERCE_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(tierce__fleet_parts_why(parts), "1025 tensor ranks"));
    tierce__fleet_parts_close(parts);
}
END_TEST

/* Names of two parts in turn; and one that is wrong behind its beginning. */
START_TEST(test_names_in_turn)
{
    char rooms[2][TIERCE__KEY_TEXT_BYTES];
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = NULL;
    struct tierce_plugin_name names[2];
    int64_t key;
    for (uint16_t i = 0; i < 2; i++)
        names[i] =
            shape_name(rooms[i], &plain_shape, (struct tierce_shard){i, 2, 0, 1}, namespaces);
    for (unsigned i = 0; i < 8; i++) {
        unsigned rank = i / 2 % 2; /* each twice */
        char *digit = &rooms[rank][names[rank].bytes - 64], right = *digit;
        *digit = (char)('0' + i);
        ck_assert_int_eq(tierce__fleet_part_of(parts, &part, &key, &names[rank]), 0);
        ck_assert_uint_eq(part->shard.tp_rank, rank);
        ck_assert_uint_eq((uint64_t)key >> 4 & 15, i);
        *digit = 'A';
        ck_assert_int_eq(try_name(parts, &names[rank]), TIERCE_E_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(tierce__fleet_parts_why(parts), "text of a key"));
        *digit = right;
    }
    tierce__fleet_parts_close(parts);
}
END_TEST

/* A text whose digest is right and that no engine of this version writes. */
START_TEST(test_a_namespace_of_another_version)
{
    static const uint8_t hash[TIERCE_HASH_BYTES] = {1};
    static const char text[] = "tierce-namespace=1\nweights=00\nblock_tokens=16\n";
    char room[TIERCE__KEY_TEXT_BYTES];
    uint8_t digest[TIERCE_HASH_BYTES];
    struct tierce__fleet_parts *parts = open_parts(NULL);
    tierce_namespace_digest(digest, text);
    ck_assert_int_ge(tierce__namespaces_intern(namespaces, digest, text), 0);
    int bytes = tierce__key_text_format(room, digest, &whole_shard, hash);
    ck_assert_int_gt(bytes, 0);
    const struct tierce_plugin_name name = {.text = room, .bytes = (size_t)bytes};
    ck_assert_int_eq(try_name(parts, &name), TIERCE_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(tierce__fleet_parts_why(parts), "version"));
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_a_long_name_is_not_cut)
{
    char room[TIERCE__KEY_TEXT_BYTES], longest[128], *shorter = longest + 5;
    memset(longest, 'i', sizeof(longest) - 1);
    longest[127] = '\0';
    struct tierce__fleet_parts *parts = open_parts(longest);
    ck_assert_str_eq(part_of(parts, &plain_shape, whole_shard)->instance, longest);
    struct tierce_plugin_name name =
        shape_name(room, &plain_shape, (struct tierce_shard){0, 1, 0, 2}, namespaces);
    ck_assert_int_eq(try_name(parts, &name), TIERCE_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(tierce__fleet_parts_why(parts), "too long"));
    tierce__fleet_parts_close(parts);
    parts = open_parts(shorter);
    ck_assert_int_eq(try_name(parts, &name), TIERCE_E_ARGUMENT);
    tierce__fleet_parts_close(parts);
    parts = open_parts(shorter + 3); /* "-pp0of2" fits */
    ck_assert_int_eq(try_name(parts, &name), 0);
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_the_number_of_parts_is_limited)
{
    char room[TIERCE__KEY_TEXT_BYTES];
    struct tierce__fleet_parts *parts = open_parts(NULL);
    for (uint16_t i = 0; i < 256; i++)
        (void)part_of(parts, &plain_shape, (struct tierce_shard){i, 300, 0, 1});
    const struct tierce_plugin_name name =
        shape_name(room, &plain_shape, (struct tierce_shard){256, 300, 0, 1}, namespaces);
    ck_assert_int_eq(try_name(parts, &name), TIERCE_E_LIMIT);
    ck_assert_ptr_nonnull(strstr(tierce__fleet_parts_why(parts), "256"));
    (void)part_of(parts, &plain_shape, (struct tierce_shard){255, 300, 0, 1});
    tierce__fleet_parts_close(parts);
}
END_TEST

static struct shape random_shape(struct test_random *random)
{
    static const char *const weights[] = {"aa", "bb"}, *const dtypes[] = {"bfloat16", "fp8"};
    struct shape shape = plain_shape;
    shape.weights = weights[test_random_below(random, 2)];
    shape.dtype = dtypes[test_random_below(random, 2)];
    shape.cell = 64u << test_random_below(random, 2);
    shape.group = (enum tierce_group)test_random_below(random, 5);
    shape.chunk_blocks = shape.group == TIERCE_GROUP_STATE ? 1 : 2u << test_random_below(random, 2);
    shape.block_tokens = 64 / shape.chunk_blocks;
    if (shape.group == TIERCE_GROUP_WINDOW || shape.group == TIERCE_GROUP_CHUNKED)
        shape.window = 32 * (1 + test_random_below(random, 2));
    return shape;
}

/* Shapes that are alike in all but a few fields, all of 64 tokens, many of one size. Two parts that
 * a manager accepts never share a spec of an instance; by namespace, all are accepted. */
static void check_distinct(struct test_random *random, const char *instance)
{
    enum { COUNT = 250 };
    struct tierce__fleet_parts *parts = open_parts(instance);
    const struct tierce__fleet_part *all[COUNT];
    size_t count = 0, rejected = 0;
    for (size_t i = 0; i < COUNT; i++) {
        struct shape shape = random_shape(random);
        struct tierce_shard shard = {.tp_size = (uint16_t)(1 + test_random_below(random, 3)),
                                     .pp_size = (uint16_t)(1 + test_random_below(random, 2))};
        shard.tp_rank = (uint16_t)test_random_below(random, shard.tp_size);
        shard.pp_rank = (uint16_t)test_random_below(random, shard.pp_size);
        struct tierce__fleet_part *part = part_of(parts, &shape, shard);
        int rc = register_part(parts, part);
        ck_assert(rc == 0 || rc == TIERCE_E_REFUSED);
        rejected += rc != 0;
        for (size_t j = 0; rc == 0 && j < count; j++)
            ck_assert_msg(all[j] == part || strcmp(all[j]->instance, part->instance) != 0 ||
                              strcmp(all[j]->spec, part->spec) != 0,
                          "%s %s", part->instance, part->spec);
        if (rc == 0)
            all[count++] = part;
    }
    ck_assert((instance == NULL) == (rejected == 0));
    tierce__fleet_parts_close(parts);
}

START_TEST(test_parts_are_distinct)
{
    struct test_random random = test_random_start("fleet parts");
    for (size_t i = 0; i < 4 * test_scale(); i++) {
        check_distinct(&random, NULL);
        check_distinct(&random, "one");
        for (size_t k = 0; k < fake.known_count; k++)
            free(fake.known[k].body);
        fake.known_count = 0;
    }
}
END_TEST

/* ---- how often ------------------------------------------------------------------------------- */

START_TEST(test_an_instance_that_was_forgotten)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    struct waited first, second;
    ck_assert_int_eq(register_part(parts, part), 0);
    tierce__fleet_part_outdated(part);
    ck_assert_int_eq(register_part(parts, part), 0);
    ck_assert_uint_eq(fake.started, 1); /* not twice in a second */
    make_older(part, SECOND_MS);
    begin(parts, part, &first, UINT64_MAX);
    begin(parts, part, &second, UINT64_MAX);
    ck_assert(fake.started == 2 && first.done == 0 && second.done == 0);
    tierce__fleet_manager_poll(&fake, 0);
    ck_assert(first.done == 1 && second.done == 1 && first.status == 0);
    make_older(part, SECOND_MS);
    ck_assert_int_eq(register_part(parts, part), 0);
    ck_assert_uint_eq(fake.started, 2); /* it is known again */
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_a_rejected_part_asks_after_a_minute)
{
    static const int statuses[] = {-EEXIST, TIERCE_E_ARGUMENT, TIERCE_E_FULL};
    for (size_t i = 0; i < 3; i++) {
        struct tierce__fleet_parts *parts = open_parts(NULL);
        struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
        unsigned before = fake.started;
        char why[TIERCE__FLEET_WHY_BYTES];
        snprintf(why, sizeof(why), "simulated: %d", statuses[i]);
        fake.status = statuses[i];
        ck_assert_int_eq(register_part(parts, part), TIERCE_E_REFUSED);
        ck_assert_int_eq(part->state, TIERCE__FLEET_REJECTED);
        ck_assert_str_eq(part->why, why);
        make_older(part, MINUTE_MS / 2);
        tierce__fleet_part_outdated(part); /* does not matter */
        ck_assert_int_eq(register_part(parts, part), TIERCE_E_REFUSED);
        ck_assert_uint_eq(fake.started, before + 1);
        make_older(part, MINUTE_MS / 2);
        fake.status = 0;
        ck_assert_int_eq(register_part(parts, part), 0);
        ck_assert_uint_eq(fake.started, before + 2);
        ck_assert_str_eq(part->why, "");
        tierce__fleet_parts_close(parts);
    }
}
END_TEST

static void check_failure(int status, int update, bool is_remembered)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    unsigned before = fake.started;
    int expected = status != 0 ? status : update;
    fake.status = status;
    fake.update = update;
    ck_assert_int_eq(register_part(parts, part), expected);
    ck_assert_int_eq(part->state, TIERCE__FLEET_NEW);
    ck_assert_ptr_nonnull(strstr(part->why, "simulated"));
    ck_assert_int_eq(register_part(parts, part), expected);
    ck_assert_uint_eq(fake.started, before + (is_remembered ? 1 : 2));
    fake.status = fake.update = 0;
    make_older(part, SECOND_MS);
    ck_assert_int_eq(register_part(parts, part), 0);
    tierce__fleet_parts_close(parts);
}

START_TEST(test_a_manager_that_fails_is_not_asked_at_once_again)
{
    check_failure(-EPROTO, 0, true);
    check_failure(TIERCE_E_LIMIT, 0, true);
    check_failure(TIERCE_E_REFUSED, 0, true);
    check_failure(TIERCE_E_UNSUPPORTED, 0, true);
    check_failure(0, TIERCE_E_FORMAT, true);
    check_failure(0, -ENOMEM, false);
    check_failure(TIERCE_E_DOWN, 0, false);
    check_failure(TIERCE_E_DEADLINE, 0, false);
    check_failure(-ENOMEM, 0, false);
}
END_TEST

/* ---- parts that no request registers ---------------------------------------------------------
 */

enum { HEAR_MS = 5000 };

/* Time passes, and the manager is asked if it is time; returns the calls of the turn. */
static unsigned after(struct tierce__fleet_parts *parts, struct tierce__fleet_part *part,
                      uint64_t ms)
{
    unsigned before = fake.started;
    uint64_t until_ns = UINT64_MAX;
    make_older(part, ms);
    part->heard_ns -= part->heard_ns > 0 ? ms * TIERCE__MS_NS : 0;
    tierce__fleet_parts_ask(parts, &until_ns);
    ck_assert(fake.started > before || until_ns < UINT64_MAX); /* the thread wakes for it */
    tierce__fleet_manager_poll(&fake, 0);
    return fake.started - before;
}

/* All prompts are on disk, so nothing asks for the pool; a weight update may have been missed. */
START_TEST(test_no_manager_answered_when_the_engine_started)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    fake.status = TIERCE_E_DOWN;
    fake.generation = 3;
    ck_assert_int_eq(register_part(parts, part), TIERCE_E_DOWN);
    ck_assert_uint_eq(after(parts, part, HEAR_MS / 2), 0);
    ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
    ck_assert(part->state == TIERCE__FLEET_NEW && tierce__fleet_part_is_current(part));
    fake.status = 0;
    ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
    ck_assert(part->state == TIERCE__FLEET_REGISTERED && part->heard == 3);
    ck_assert(!tierce__fleet_part_is_current(part));
    ck_assert_uint_eq(fake.asked, 0);
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_a_manager_that_learns_of_generations)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    ck_assert_int_eq(register_part(parts, part), 0);
    ck_assert_uint_eq(after(parts, part, HEAR_MS), 1); /* of a version without them */
    ck_assert(fake.asked == 1 && part->heard == 0);
    ck_assert_uint_eq(after(parts, part, HEAR_MS / 2), 0);
    fake.generation = 1; /* it was upgraded */
    ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
    ck_assert(part->heard == 1 && tierce__fleet_part_is_current(part));
    fake.status = TIERCE_E_MISS; /* an operator removed the instance */
    ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
    fake.status = 0;
    fake.generation = 2;
    ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
    ck_assert(fake.asked == 3 && part->heard == 2);
    tierce__fleet_parts_close(parts);
}
END_TEST

/* A manager that does not name its registry may have marked a storage with it. */
START_TEST(test_a_manager_that_was_lost)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    fake.generation = 1;
    fake.marked_by = 7;
    ck_assert_int_eq(register_part(parts, part), 0);
    ck_assert(tierce__fleet_part_is_current(part) && part->registry == 7);
    for (unsigned i = 0; i < 2; i++) { /* the second one names its registry */
        fake.status = TIERCE_E_MISS;
        ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
        fake.status = 0;
        fake.marked_by = 8;
        fake.registry = i * 9;
        ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
        ck_assert(!tierce__fleet_part_is_current(part) && part->heard == 1);
        ck_assert_uint_eq(part->registry, 8 + i);
        tierce__fleet_part_adopt(part, 1, 8 + i);
        ck_assert(tierce__fleet_part_is_current(part));
    }
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_a_rejected_part_is_asked_for_each_minute)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    fake.status = -EEXIST;
    ck_assert_int_eq(register_part(parts, part), TIERCE_E_REFUSED);
    ck_assert_uint_eq(after(parts, part, MINUTE_MS / 2), 0);
    ck_assert_uint_eq(after(parts, part, MINUTE_MS), 1);
    tierce__fleet_parts_close(parts);
}
END_TEST

/* ---- who waits how long ---------------------------------------------------------------------- */

START_TEST(test_each_waiter_has_its_deadline)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    uint64_t now_ns = tierce__now_ns(), late_ns = now_ns + 3600 * 1000 * TIERCE__MS_NS;
    struct waited w[4];
    begin(parts, part, &w[0], UINT64_MAX);
    begin(parts, part, &w[1], now_ns);
    begin(parts, part, &w[2], late_ns);
    begin(parts, part, &w[3], now_ns - 1);
    uint64_t until_ns = UINT64_MAX;
    tierce__fleet_expire(parts, &until_ns);
    ck_assert_uint_eq(until_ns, late_ns);
    ck_assert(w[0].done == 0 && w[1].done == 1 && w[2].done == 0 && w[3].done == 1);
    ck_assert(w[1].status == TIERCE_E_DEADLINE && w[3].status == TIERCE_E_DEADLINE);
    until_ns = now_ns;
    tierce__fleet_expire(parts, &until_ns);
    ck_assert_uint_eq(until_ns, now_ns); /* an earlier one stays */
    tierce__fleet_manager_poll(&fake, 0);
    ck_assert(w[0].done == 1 && w[2].done == 1 && w[0].status == 0 && w[2].status == 0);
    ck_assert(w[1].done == 1 && w[3].done == 1 && fake.started == 1);
    tierce__fleet_parts_close(parts);
}
END_TEST

struct again {
    struct waited w;
    struct tierce__fleet_parts *parts;
    struct tierce__fleet_part *part;
};

static void wait_again(struct tierce__fleet_wait *wait, int status)
{
    struct again *again = wait->arg;
    ck_assert_int_eq(status, TIERCE_E_DOWN);
    begin(again->parts, again->part, &again->w, UINT64_MAX);
}

/* A waiter may wait again as soon as it is answered. */
START_TEST(test_a_waiter_waits_again)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct again again = {.parts = parts, .part = part_of(parts, &plain_shape, whole_shard)};
    struct tierce__fleet_wait wait = {.deadline_ns = UINT64_MAX, .done = wait_again, .arg = &again};
    fake.status = TIERCE_E_DOWN;
    tierce__fleet_register(parts, again.part, &wait);
    struct tierce__list *node = fake.calls.next;
    tierce__list_remove(node);
    answer(&fake, TIERCE__CONTAINER_OF(node, struct tierce__fleet_call, node));
    ck_assert(again.w.done == 0 && fake.started == 2);
    fake.status = 0;
    tierce__fleet_manager_poll(&fake, 0);
    ck_assert(again.w.done == 1 && again.w.status == 0);
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_close_drops_waiters)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct waited w[2];
    begin(parts, part_of(parts, &plain_shape, whole_shard), &w[0], UINT64_MAX);
    begin(parts, part_of(parts, &plain_shape, whole_shard), &w[1], UINT64_MAX);
    drop_calls(); /* as tierce__fleet_manager_close does it */
    tierce__fleet_parts_close(parts);
    ck_assert(w[0].done == 0 && w[1].done == 0);
    ck_assert(tierce__list_empty(&w[0].wait.node) && tierce__list_empty(&w[1].wait.node));
    tierce__fleet_parts_close(NULL);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

START_TEST(test_every_allocation_fails)
{
    char room[TIERCE__KEY_TEXT_BYTES];
    const struct tierce_shard shard = {1, 2, 0, 1};
    char *text = shape_text(&plain_shape);
    uint8_t digest[TIERCE_HASH_BYTES];
    const struct tierce_plugin_name name = shape_name(room, &plain_shape, shard, NULL);
    tierce_namespace_digest(digest, text);
    ck_assert_int_ge(tierce__namespaces_intern(namespaces, digest, text), 0);
    tierce_free(text);
    uint64_t live = tierce__alloc_live(), nth = 0;
    for (int rc = -ENOMEM; rc < 0;) {
        struct tierce__fleet_parts *parts = NULL;
        struct tierce__fleet_part *part = NULL;
        int64_t key;
        (void)tierce__alloc_fail_nth(++nth);
        rc = try_open(&parts, "named", namespaces);
        if (rc == 0)
            rc = tierce__fleet_part_of(parts, &part, &key, &name);
        if (rc == 0)
            rc = register_part(parts, part);
        (void)tierce__alloc_fail_nth(0);
        ck_assert_msg(rc == 0 || rc == -ENOMEM, "allocation %lu: %d", (unsigned long)nth, rc);
        if (part != NULL)
            ck_assert_int_eq(register_part(parts, part), 0); /* it was only that one */
        tierce__fleet_parts_close(parts);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    ck_assert_uint_ge(nth, 9);
}
END_TEST

CHECK_MAIN("fleet register", .seconds = 120, .setup = start_fake, .teardown = stop_fake,
           .tests = {test_engines_of_a_model_send_the_same,
                     test_a_registration,
                     test_attention_and_family,
                     test_names_of_models,
                     test_names_that_are_none,
                     test_names_in_turn,
                     test_a_namespace_of_another_version,
                     test_a_long_name_is_not_cut,
                     test_the_number_of_parts_is_limited,
                     test_parts_are_distinct,
                     test_an_instance_that_was_forgotten,
                     test_a_rejected_part_asks_after_a_minute,
                     test_a_manager_that_fails_is_not_asked_at_once_again,
                     test_no_manager_answered_when_the_engine_started,
                     test_a_manager_that_learns_of_generations,
                     test_a_manager_that_was_lost,
                     test_a_rejected_part_is_asked_for_each_minute,
                     test_each_waiter_has_its_deadline,
                     test_a_waiter_waits_again,
                     test_close_drops_waiters,
                     test_every_allocation_fails})
