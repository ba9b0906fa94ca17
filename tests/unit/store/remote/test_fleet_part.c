/* SPDX-License-Identifier: Apache-2.0 */
#include "running_manager.h"
#include "silent_log.h"
#include "test_random.h"

#include "core/key/key_text.h"
#include "core/key/namespaces.h"
#include "store/remote/fleet/fleet_private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

/* The storages' side, which these tests are not about. */
static unsigned updates;

int tierce__fleet_stores_update(struct tierce__fleet_stores *stores, const char *json,
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

struct shape {
    const char *weights, *dtype;
    uint32_t cell, block_tokens, chunk_blocks;
    enum tierce_group group;
    uint32_t window;
    bool is_hidden; /* its text is not known */
};

/* The name of a key of a namespace of two layers, or of layers 1 and 3. */
static const char *name_of(const struct shape *shape, struct tierce_shard shard, uint8_t first)
{
    static char text[TIERCE__KEY_TEXT_BYTES];
    static const uint32_t layers[] = {1, 3};
    const uint32_t cells[] = {shape->cell, shape->cell};
    const struct tierce_namespace ns = {.size = sizeof(ns),
                                        .weights = shape->weights,
                                        .model = "{\"model_type\":\"tiny\",\"x\":1}",
                                        .kv_dtype = shape->dtype,
                                        .quantization = "",
                                        .layout = "l",
                                        .layer_count = 2,
                                        .cell_bytes = cells,
                                        .block_tokens = shape->block_tokens,
                                        .chunk_blocks = shape->chunk_blocks,
                                        .algo = TIERCE_CHAIN_SHA256,
                                        .group = shape->group,
                                        .window = shape->window,
                                        .layers = shape->group != TIERCE_GROUP_ALL ? layers : NULL};
    char *canonical;
    uint8_t digest[TIERCE_HASH_BYTES], hash[TIERCE_HASH_BYTES] = {first, 2, 3, 4, 5, 6, 7, 0x88, 9};
    ck_assert_int_eq(tierce_namespace_text(&canonical, &ns), 0);
    tierce_namespace_digest(digest, canonical);
    if (!shape->is_hidden)
        ck_assert_int_ge(tierce__namespaces_intern(namespaces, digest, canonical), 0);
    tierce_free(canonical);
    ck_assert_int_gt(tierce__key_text_format(text, digest, &shard, hash), 0);
    return text;
}

static const struct shape plain = {"aa", "bfloat16", 512, 16, 4, TIERCE_GROUP_ALL, 0, false};
static const struct tierce_shard whole = {0, 1, 0, 1};

static struct tierce__fleet_part *part_of(struct tierce__fleet_parts *parts,
                                          const struct shape *shape, struct tierce_shard shard)
{
    struct tierce__fleet_part *part = NULL;
    int64_t key = 0;
    const char *text = name_of(shape, shard, 1);
    const struct tierce_plugin_name name = {.text = text, .bytes = strlen(text)};
    ck_assert_int_eq(tierce__fleet_part_of(parts, &part, &key, &name), 0);
    ck_assert(key == (int64_t)0x8807060504030201);
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
    struct tierce__fleet_part *part = part_of(parts, &plain, whole);
    struct waited many[8];
    ck_assert_ptr_eq(part, part_of(parts, &plain, whole));
    ck_assert_str_eq(part->spec, "tp0");
    ck_assert_int_eq(strncmp(part->instance, "tierce-", 7), 0);
    ck_assert_uint_eq(strlen(part->instance), 7 + 32);
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
    ck_assert_int_eq(register_part(parts, part_of(parts, &plain, whole)), 0);
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_two_ranks_share_an_instance)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *first = part_of(parts, &plain, (struct tierce_shard){0, 2, 0, 1});
    struct tierce__fleet_part *second = part_of(parts, &plain, (struct tierce_shard){1, 2, 0, 1});
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
    struct shape full = plain, window = plain, state = plain;
    full.group = TIERCE_GROUP_FULL;
    window.group = TIERCE_GROUP_WINDOW;
    window.window = 64;
    state.group = TIERCE_GROUP_STATE;
    state.chunk_blocks = 1;
    state.block_tokens = 64; /* the tokens of the others' chunks */
    struct tierce__fleet_parts *parts = open_parts("family");
    const struct tierce__fleet_part *all[] = {
        part_of(parts, &plain, whole),
        part_of(parts, &full, whole),
        part_of(parts, &window, whole),
        part_of(parts, &state, whole),
        part_of(parts, &plain, (struct tierce_shard){0, 1, 0, 2}),
        part_of(parts, &plain, (struct tierce_shard){0, 1, 1, 2}),
    };
    static const char *const begins[] = {"family",         "family-full-", "family-window-",
                                         "family-linear-", "family-pp0",   "family-pp1"};
    for (size_t i = 0; i < 6; i++) {
        ck_assert_int_eq(strncmp(all[i]->instance, begins[i], strlen(begins[i])), 0);
        for (size_t j = 0; j < i; j++)
            ck_assert_str_ne(all[i]->instance, all[j]->instance);
        ck_assert_int_eq(register_part(parts, (struct tierce__fleet_part *)(uintptr_t)all[i]), 0);
    }
    tierce__fleet_parts_close(parts);
    /* By namespace, the groups of a model have names with one beginning. */
    parts = open_parts(NULL);
    ck_assert_int_eq(strncmp(part_of(parts, &full, whole)->instance,
                             part_of(parts, &state, whole)->instance, 39),
                     0);
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_another_model_is_rejected)
{
    struct shape other = plain;
    other.dtype = "float32";
    struct tierce__fleet_parts *parts = open_parts("shared"), *later = open_parts("shared");
    struct waited w;
    ck_assert_int_eq(register_part(parts, part_of(parts, &plain, whole)), 0);
    struct tierce__fleet_part *part = part_of(later, &other, whole);
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
    struct tierce__fleet_part *part = part_of(parts, &plain, whole);
    ck_assert_int_eq(register_part(parts, part), TIERCE_E_REFUSED);
    ck_assert_msg(strstr(part->why, "nowhere") != NULL, "%s", part->why);
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_names_that_are_none)
{
    struct shape hidden = plain;
    struct tierce__fleet_part *part = NULL;
    int64_t key;
    hidden.is_hidden = true;
    hidden.weights = "bb";
    struct tierce__fleet_parts *parts = open_parts(NULL);
    const char *names[] = {"", "a", "tierce1:", name_of(&hidden, whole, 1)};
    for (size_t i = 0; i < 4; i++) {
        const struct tierce_plugin_name name = {.text = names[i], .bytes = strlen(names[i])};
        ck_assert_int_eq(tierce__fleet_part_of(parts, &part, &key, &name), TIERCE_E_ARGUMENT);
    }
    tierce__fleet_parts_close(parts);
}
END_TEST

/* Waiters have deadlines of their own: the call takes longer at a manager that never answers. */
START_TEST(test_waiters_do_not_wait_longer)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    struct waited soon, late;
    int silent = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(silent, (struct sockaddr *)&address, bytes), 0);
    ck_assert_int_eq(listen(silent, 8), 0);
    ck_assert_int_eq(getsockname(silent, (struct sockaddr *)&address, &bytes), 0);
    tierce__fleet_manager_close(manager);
    open_manager(ntohs(address.sin_port));
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain, whole);
    uint64_t begun_ns = tierce__now_ns();
    begin(parts, part, &late, 60000);
    begin(parts, part, &soon, 100);
    ck_assert_int_eq(finish(parts, &soon), TIERCE_E_DEADLINE);
    ck_assert_uint_ge(tierce__now_ns() - begun_ns, 100 * TIERCE__MS_NS);
    ck_assert_uint_eq(late.done, 0);
    ck_assert_int_lt(finish(parts, &late), 0); /* the call's own time is over */
    ck_assert_int_eq(part->state, TIERCE__FLEET_NEW);
    tierce__fleet_parts_close(parts);
    close(silent);
}
END_TEST

/* Distinct shards of distinct namespaces never share an instance's spec. */
START_TEST(test_places_are_distinct)
{
    enum { SHAPES = 40 };
    static struct {
        char instance[128], spec[64];
    } seen[SHAPES * 4];
    struct tierce__fleet_parts *parts = open_parts("one");
    size_t count = 0;
    struct test_random random = test_random_start("fleet parts");
    for (size_t i = 0; i < SHAPES; i++) {
        struct shape shape = {
            .weights = "aa", .dtype = "bfloat16", .block_tokens = 16, .chunk_blocks = 4};
        shape.cell = 64 * (uint32_t)(i + 1);
        shape.group = (enum tierce_group)(1 + test_random_below(&random, 3));
        shape.window =
            shape.group == TIERCE_GROUP_FULL ? 0 : 32 * (1 + test_random_below(&random, 3));
        for (uint16_t r = 0; r < 4; r++) {
            const struct tierce__fleet_part *part =
                part_of(parts, &shape, (struct tierce_shard){r % 2, 2, r / 2, 2});
            for (size_t j = 0; j < count; j++)
                ck_assert(strcmp(seen[j].instance, part->instance) != 0 ||
                          strcmp(seen[j].spec, part->spec) != 0);
            snprintf(seen[count].instance, sizeof(seen[0].instance), "%s", part->instance);
            snprintf(seen[count++].spec, sizeof(seen[0].spec), "%s", part->spec);
        }
    }
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_every_allocation_fails)
{
    const char *text = name_of(&plain, whole, 1);
    for (uint64_t nth = 1, made = nth; nth <= made; nth++) {
        struct tierce__fleet_parts *parts = NULL;
        struct tierce__fleet_part *part = NULL;
        const struct tierce_plugin_name name = {.text = text, .bytes = strlen(text)};
        int64_t key;
        (void)tierce__alloc_fail_nth(nth);
        int rc = tierce__fleet_parts_open(
            &parts,
            &(struct tierce__fleet_parts_opts){.size = sizeof(struct tierce__fleet_parts_opts),
                                               .manager = manager,
                                               .namespaces = namespaces,
                                               .group = "default"});
        if (rc == 0)
            rc = tierce__fleet_part_of(parts, &part, &key, &name);
        if (rc == 0)
            rc = register_part(parts, part);
        made = tierce__alloc_fail_nth(0);
        ck_assert_msg(rc <= 0, "allocation %lu: %d", (unsigned long)nth, rc);
        tierce__fleet_parts_close(parts);
    }
}
END_TEST

CHECK_MAIN("fleet part", .seconds = 120, .setup = start_world, .teardown = stop_world,
           .tests = {test_registers_once, test_two_ranks_share_an_instance,
                     test_stages_and_groups_have_instances_of_their_own,
                     test_another_model_is_rejected, test_no_group, test_names_that_are_none,
                     test_waiters_do_not_wait_longer, test_places_are_distinct,
                     test_every_allocation_fails})
