/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of names with a simulated manager: names, registrations, and every allocation fails. */
#include "fleet_register_case.h"
#include "test_random.h"

#include "base/bytes.h"

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

/* The attention that a registration of this shape names. */
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
           .tests = {test_engines_of_a_model_send_the_same, test_a_registration,
                     test_attention_and_family, test_names_of_models, test_names_that_are_none,
                     test_names_in_turn, test_a_namespace_of_another_version,
                     test_a_long_name_is_not_cut, test_the_number_of_parts_is_limited,
                     test_parts_are_distinct, test_every_allocation_fails})
