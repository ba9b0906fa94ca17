/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of nodes: registration, leases, the choice of a part, nodes that die and return. */
#include "check_main.h"
#include "base/text/utf8.h"
#include "manager/storage/nodes.h"
#include "manager_harness.h"
#include "manager/reclaim/reclaimer.h"

#include <errno.h>

#define INCARNATION_A "0123456789abcdef0123456789abcdef"
#define INCARNATION_B "fedcba9876543210fedcba9876543210"

enum { PART_BYTES = 100 * BLOCK_BYTES };

/* Parts that work, without nodes. */
static int open_nothing(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                        char why[128]);
static int probe_nothing(struct tierce__storage_driver *driver, char why[128])
{
    (void)driver, (void)why;
    return 0;
}

static void close_nothing(struct tierce__storage_driver *driver)
{
    free(driver);
}

static size_t deleted;

static int delete_nothing(struct tierce__storage_driver *driver, const char *path)
{
    (void)driver, (void)path;
    deleted++;
    return 0;
}

static double no_share(struct tierce__storage_driver *driver)
{
    (void)driver;
    return -1;
}

static const struct tierce__storage_ops nothing = {.name = "nothing",
                                                   .open = open_nothing,
                                                   .close = close_nothing,
                                                   .probe = probe_nothing,
                                                   .remove = delete_nothing,
                                                   .used_share = no_share};

static int open_nothing(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                        char why[128])
{
    (void)storage, (void)why;
    *out = calloc(1, sizeof(**out));
    ck_assert_ptr_nonnull(*out);
    (*out)->ops = &nothing;
    return 0;
}

static const struct tierce__storage_ops *find_nothing(enum tierce__storage_type type)
{
    (void)type;
    return &nothing;
}

struct pool {
    struct harness h;
    struct tierce__nodes *nodes;
    struct tierce__reclaimer *reclaimer;
};

/* The harness' group writes to pool "p". */
static void use_pool(struct pool *p)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(p->h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    char name[] = "p", *names[] = {name};
    int64_t version = group.version++;
    group.storage_candidates = names;
    group.storage_candidate_count = 1;
    group.type_quota_count = 0;
    ck_assert_int_eq(tierce__registry_update_group(p->h.registry, &group, version, p->h.why), 0);
    tierce__registry_release(p->h.registry, catalog);
}

static void pool_open(struct pool *p)
{
    *p = (struct pool){0};
    deleted = 0;
    harness_open(&p->h, &(struct harness_opts){.find_driver = find_nothing, .has_engines = true});
    ck_assert_int_eq(
        tierce__nodes_create(&p->nodes,
                             &(struct tierce__nodes_opts){.size = sizeof(struct tierce__nodes_opts),
                                                          .registry = p->h.registry,
                                                          .storages = p->h.storages,
                                                          .token_file = "/t",
                                                          .ca_file = "/c&d",
                                                          .now_us = harness_now,
                                                          .clock_arg = &p->h}),
        0);
    tierce__nodes_lead(p->nodes);
    p->h.locator->opts.nodes = p->nodes;
    use_pool(p);
    ck_assert_int_eq(tierce__reclaimer_start(&p->reclaimer,
                                             &(struct tierce__reclaimer_opts){
                                                 .size = sizeof(struct tierce__reclaimer_opts),
                                                 .locator = p->h.locator,
                                                 .registry = p->h.registry,
                                                 .seed = 1}),
                     0);
}

static void pool_close(struct pool *p)
{
    tierce__reclaimer_stop(p->reclaimer);
    tierce__nodes_destroy(p->nodes);
    harness_close(&p->h);
}

struct hello {
    const char *node, *pool, *address, *incarnation, *host;
    bool is_disk, is_leaving, uses_tls;
    uint64_t capacity, objects, load;
};

static struct tierce__node_answer say_hello(struct pool *p, const struct hello *hello)
{
    struct tierce__node_answer answer;
    const struct tierce__node_part part = {
        .is_disk = hello->is_disk,
        .incarnation = hello->incarnation != NULL ? hello->incarnation : INCARNATION_A,
        .capacity_bytes = hello->capacity > 0 ? hello->capacity : PART_BYTES,
        .object_count = hello->objects};
    tierce__nodes_register(p->nodes,
                           &(struct tierce__node_report){
                               .node = hello->node != NULL ? hello->node : "a",
                               .pool = hello->pool != NULL ? hello->pool : "p",
                               .address = hello->address != NULL ? hello->address : "10.0.0.1:7000",
                               .host_id = hello->host != NULL ? hello->host : "",
                               .version = "1.2",
                               .uses_tls = hello->uses_tls,
                               .is_leaving = hello->is_leaving,
                               .load_bytes_per_s = hello->load,
                               .parts = &part,
                               .part_count = 1},
                           &answer);
    return answer;
}

static void serve(struct pool *p, const struct hello *hello)
{
    struct tierce__node_answer answer = say_hello(p, hello);
    ck_assert_msg(answer.state == TIERCE__NODE_SERVES, "%d %s", answer.state, answer.reason);
}

static void reject(struct pool *p, const struct hello *hello, const char *reason)
{
    struct tierce__node_answer answer = say_hello(p, hello);
    ck_assert_int_eq(answer.state, TIERCE__NODE_REJECTED);
    ck_assert_msg(strstr(answer.reason, reason) != NULL, "%s", answer.reason);
}

/* Writes `count` new keys; the storage's name in the first URI, or an error. */
static int write_keys(struct pool *p, int64_t first, size_t count, const char *host,
                      bool is_written, char name[64])
{
    int64_t keys[64];
    struct tierce__started started;
    const struct tierce__mask written = {.offset = is_written ? (int64_t)count : 0};
    for (size_t i = 0; i < count; i++)
        keys[i] = first + (int64_t)i;
    int rc = tierce__locator_start_write(
        p->h.locator,
        &(struct tierce__write_request){
            .instance_id = "i", .keys = keys, .count = count, .timeout_s = 30, .host_id = host},
        &p->h.arena, &started, p->h.why);
    if (rc < 0)
        return rc;
    const char *uri = strstr(started.locations[0].specs[0].uri, "://") + 3;
    snprintf(name, 64, "%.*s", (int)strcspn(uri, "/"), uri);
    return tierce__locator_finish_write(p->h.locator, "i", started.session, &written, p->h.why);
}

static void write_to(struct pool *p, int64_t first, const char *host, const char *expected)
{
    char name[64];
    int rc = write_keys(p, first, 1, host, true, name);
    ck_assert_msg(rc == 0, "%s", p->h.why);
    ck_assert_str_eq(name, expected);
}

static enum tierce__contents contents_of(struct pool *p, const char *name)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(p->h.registry);
    const struct tierce__storage *storage = tierce__catalog_storage(catalog, name);
    ck_assert_ptr_nonnull(storage);
    enum tierce__contents contents = storage->contents;
    tierce__registry_release(p->h.registry, catalog);
    return contents;
}

static void pass(struct pool *p, int64_t seconds)
{
    p->h.now_us += seconds * 1000000;
    tierce__nodes_tick(p->nodes);
}

START_TEST(a_part_becomes_a_storage)
{
    struct pool p;
    pool_open(&p);
    struct tierce__node_answer answer = say_hello(&p, &(struct hello){.is_disk = true});
    ck_assert_int_eq(answer.state, TIERCE__NODE_SERVES);
    ck_assert_str_eq(answer.storage, "p.a.disk");
    const struct tierce__catalog *catalog = tierce__registry_acquire(p.h.registry);
    const struct tierce__storage *storage = tierce__catalog_storage(catalog, "p.a.disk");
    ck_assert_str_eq(storage->uri, "transfer://10.0.0.1:7000/disk?token_file=/t");
    ck_assert_str_eq(storage->host_id, "10.0.0.1");
    ck_assert_uint_eq(storage->capacity_bytes, PART_BYTES);
    tierce__registry_release(p.h.registry, catalog);
    uint64_t version = tierce__registry_version(p.h.registry);
    serve(&p, &(struct hello){.is_disk = true}); /* again: the registry is not written */
    ck_assert_uint_eq(tierce__registry_version(p.h.registry), version);
    write_to(&p, 1, NULL, "p.a.disk");
    serve(&p, &(struct hello){.is_disk = true, .uses_tls = true});
    catalog = tierce__registry_acquire(p.h.registry);
    ck_assert_str_eq(tierce__catalog_storage(catalog, "p.a.disk")->uri,
                     "transfer+tls://10.0.0.1:7000/disk?token_file=/t&ca_file=/c%26d");
    tierce__registry_release(p.h.registry, catalog);
    pool_close(&p);
}
END_TEST

/* A reason names a text of the node's, whole or cut, and is always a text that an answer can have.
 */
START_TEST(reasons_are_utf8)
{
    char wide[600];
    struct pool p;
    pool_open(&p);
    for (size_t shift = 0; shift < 3; shift++) {
        memset(wide, 'x', shift);
        for (size_t i = shift; i + 3 < sizeof(wide); i += 3)
            memcpy(wide + i, "\xe2\x82\xac", 4);
        struct tierce__node_answer answers[] = {
            say_hello(&p, &(struct hello){.node = wide}),
            say_hello(&p, &(struct hello){.pool = wide}),
            say_hello(&p, &(struct hello){.incarnation = wide}),
            say_hello(&p, &(struct hello){.address = wide}),
            say_hello(&p, &(struct hello){.host = wide}),
            say_hello(&p, &(struct hello){.host = "h\xe2\x82"}),
        };
        for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
            ck_assert_int_eq(answers[i].state, TIERCE__NODE_REJECTED);
            ck_assert_msg(tierce__is_utf8(answers[i].reason, strlen(answers[i].reason)), "%s",
                          answers[i].reason);
        }
    }
    pool_close(&p);
}
END_TEST

START_TEST(invalid_parts_are_rejected)
{
    struct pool p;
    pool_open(&p);
    reject(&p, &(struct hello){.pool = "p.q"}, "pool is \"p.q\"");
    reject(&p, &(struct hello){.node = "a.disk"}, "node is \"a.disk\"");
    reject(&p, &(struct hello){.node = ""}, "node is \"\"");
    reject(&p, &(struct hello){.incarnation = "12"}, "incarnation is \"12\"");
    reject(&p, &(struct hello){.address = "host"}, "address is \"host\"");
    reject(&p, &(struct hello){.address = "h:1/../x"}, "address is");
    reject(&p, &(struct hello){.pool = "s"}, "pool s has the name of a storage");
    serve(&p, &(struct hello){0});
    reject(&p, &(struct hello){.address = "10.0.0.2:7000", .incarnation = INCARNATION_B},
           "alive at transfer://10.0.0.1:7000/memory?token_file=/t");
    const struct tierce__catalog *catalog = tierce__registry_acquire(p.h.registry);
    struct tierce__storage mine = *tierce__catalog_storage(catalog, "s");
    char name[] = "p";
    mine.name = name;
    ck_assert_int_eq(tierce__registry_add_storage(p.h.registry, &mine, p.h.why), -EEXIST);
    tierce__registry_release(p.h.registry, catalog);
    pool_close(&p);
}
END_TEST

START_TEST(a_silent_node_is_unavailable)
{
    struct pool p;
    char name[64];
    const int64_t key = 1;
    pool_open(&p);
    serve(&p, &(struct hello){0});
    write_to(&p, key, NULL, "p.a");
    pass(&p, 4);
    ck_assert_uint_eq(harness_prefix(&p.h, &key, 1), 1);
    pass(&p, 2);
    ck_assert_uint_eq(harness_prefix(&p.h, &key, 1), 0);
    ck_assert_int_eq(write_keys(&p, 2, 1, NULL, true, name), TIERCE_E_DOWN);
    serve(&p, &(struct hello){.objects = 1});
    ck_assert_uint_eq(harness_prefix(&p.h, &key, 1), 1);
    struct tierce__node_answer answer =
        say_hello(&p, &(struct hello){.is_leaving = true, .objects = 1});
    ck_assert_int_eq(answer.state, TIERCE__NODE_SERVES);
    ck_assert_uint_eq(harness_prefix(&p.h, &key, 1), 0);
    pool_close(&p);
}
END_TEST

/* A deletion is not sent to a node that is silent: it would wait for a connection. It is done when
 * the node is back. */
START_TEST(a_silent_node_gets_no_deletions)
{
    struct pool p;
    const int64_t key = 1;
    const struct tierce__mask all = {.offset = 0};
    pool_open(&p);
    serve(&p, &(struct hello){.is_disk = true});
    write_to(&p, key, NULL, "p.a.disk");
    pass(&p, 6);
    ck_assert_int_eq(tierce__locator_remove(p.h.locator, "i", &key, 1, &all, p.h.why), 0);
    p.h.now_us += 60 * 1000000LL;
    ck_assert_uint_eq(tierce__deleter_step(p.h.locator->deleter, 1), 0);
    ck_assert_uint_eq(deleted, 0);
    ck_assert_uint_eq(harness_usage(&p.h).deleting_bytes, BLOCK_BYTES);
    serve(&p, &(struct hello){.is_disk = true, .objects = 1});
    p.h.now_us += 60 * 1000000LL;
    ck_assert_uint_eq(tierce__deleter_step(p.h.locator->deleter, 1), 1);
    ck_assert_uint_gt(deleted, 0);
    ck_assert_uint_eq(harness_usage(&p.h).deleting_bytes, 0);
    pool_close(&p);
}
END_TEST

/* `during` runs when a look has found a node silent, before that has an effect; not under a lock,
 * which it would have to wait for. */
static void (*during)(void *arg);
static void *during_arg;

void __real_tierce__storages_set_silent(struct tierce__storages *storages, uint16_t number,
                                        bool is_silent);
void __wrap_tierce__storages_set_silent(struct tierce__storages *storages, uint16_t number,
                                        bool is_silent);

void __wrap_tierce__storages_set_silent(struct tierce__storages *storages, uint16_t number,
                                        bool is_silent)
{
    void (*hook)(void *) = during;
    if (is_silent && hook != NULL && !tierce__lock_holds_any()) {
        during = NULL;
        hook(during_arg);
    }
    __real_tierce__storages_set_silent(storages, number, is_silent);
}

static void return_to_life(void *arg)
{
    serve(arg, &(struct hello){.objects = 1});
}

/* A sign of life is not undone by a look that began before it. */
START_TEST(a_node_that_returns_during_a_look)
{
    struct pool p;
    const int64_t key = 1;
    pool_open(&p);
    serve(&p, &(struct hello){0});
    write_to(&p, key, NULL, "p.a");
    during = return_to_life;
    during_arg = &p;
    pass(&p, 6);
    if (during != NULL) /* looks and signs of life exclude each other */
        return_to_life(&p);
    ck_assert_uint_eq(harness_prefix(&p.h, &key, 1), 1);
    pool_close(&p);
}
END_TEST

/* Another incarnation is empty. */
START_TEST(a_node_that_starts_again_is_emptied)
{
    struct pool p;
    const int64_t key = 1;
    pool_open(&p);
    serve(&p, &(struct hello){0});
    write_to(&p, key, NULL, "p.a");
    struct hello again = {.incarnation = INCARNATION_B};
    ck_assert_int_eq(say_hello(&p, &again).state, TIERCE__NODE_EMPTYING);
    ck_assert_uint_eq(harness_prefix(&p.h, &key, 1), 0);
    ck_assert_uint_eq(tierce__reclaimer_step(p.reclaimer), 1);
    serve(&p, &again);
    ck_assert_uint_gt(tierce__deleter_step(p.h.locator->deleter, 10), 0);
    ck_assert_uint_eq(deleted, 0);
    ck_assert_uint_eq(harness_usage(&p.h).deleting_bytes, 0);
    write_to(&p, key, NULL, "p.a");
    ck_assert_uint_eq(harness_prefix(&p.h, &key, 1), 1);
    pool_close(&p);
}
END_TEST

START_TEST(a_node_that_is_gone_is_forgotten)
{
    struct pool p;
    const int64_t key = 1;
    pool_open(&p);
    serve(&p, &(struct hello){0});
    write_to(&p, key, NULL, "p.a");
    pass(&p, 59);
    ck_assert_int_eq(contents_of(&p, "p.a"), TIERCE__CONTENTS_KEPT);
    pass(&p, 2);
    ck_assert_int_eq(contents_of(&p, "p.a"), TIERCE__CONTENTS_FORGOTTEN);
    ck_assert_uint_eq(tierce__reclaimer_step(p.reclaimer), 1);
    ck_assert_int_eq(contents_of(&p, "p.a"), TIERCE__CONTENTS_GONE);
    /* It was only cut off, and has its objects still. */
    struct hello old = {.objects = 1}, empty = {.incarnation = INCARNATION_B};
    ck_assert_int_eq(say_hello(&p, &old).state, TIERCE__NODE_FORGOTTEN);
    serve(&p, &empty);
    write_to(&p, key, NULL, "p.a");
    pool_close(&p);
}
END_TEST

START_TEST(a_disk_is_not_forgotten)
{
    struct pool p;
    const int64_t key = 1;
    pool_open(&p);
    serve(&p, &(struct hello){.is_disk = true});
    write_to(&p, key, NULL, "p.a.disk");
    pass(&p, 1000);
    ck_assert_int_eq(contents_of(&p, "p.a.disk"), TIERCE__CONTENTS_KEPT);
    ck_assert_uint_eq(harness_prefix(&p.h, &key, 1), 0);
    serve(&p, &(struct hello){.is_disk = true, .objects = 1});
    ck_assert_uint_eq(harness_prefix(&p.h, &key, 1), 1);
    pool_close(&p);
}
END_TEST

/* The next leader heard of no node yet. */
START_TEST(another_leader_waits_for_a_lease)
{
    struct pool p;
    const int64_t key = 1;
    pool_open(&p);
    serve(&p, &(struct hello){0});
    write_to(&p, key, NULL, "p.a");
    p.h.now_us += 30 * 1000000LL;
    tierce__nodes_lead(p.nodes);
    pass(&p, 4);
    ck_assert_uint_eq(harness_prefix(&p.h, &key, 1), 1);
    pass(&p, 2);
    ck_assert_uint_eq(harness_prefix(&p.h, &key, 1), 0);
    pass(&p, 50);
    ck_assert_int_eq(contents_of(&p, "p.a"), TIERCE__CONTENTS_KEPT);
    pass(&p, 10);
    ck_assert_int_eq(contents_of(&p, "p.a"), TIERCE__CONTENTS_FORGOTTEN);
    pool_close(&p);
}
END_TEST

/* A node with objects that the registry does not know. */
START_TEST(a_stranger_with_objects_drops_them_first)
{
    struct pool p;
    pool_open(&p);
    ck_assert_int_eq(say_hello(&p, &(struct hello){.objects = 5}).state, TIERCE__NODE_FORGOTTEN);
    serve(&p, &(struct hello){.incarnation = INCARNATION_B});
    pool_close(&p);
}
END_TEST

START_TEST(writes_are_spread)
{
    struct pool p;
    static const char *const names[] = {"p.a", "p.b", "p.c"};
    char name[64];
    size_t counts[3] = {0};
    pool_open(&p);
    serve(&p, &(struct hello){.node = "a"});
    serve(&p, &(struct hello){.node = "b", .address = "10.0.0.2:7000"});
    serve(&p, &(struct hello){.node = "c", .address = "10.0.0.3:7000"});
    for (int64_t i = 0; i < 30; i++) {
        ck_assert_int_eq(write_keys(&p, 10 * i, 3, NULL, true, name), 0);
        for (size_t n = 0; n < 3; n++)
            counts[n] += strcmp(name, names[n]) == 0;
    }
    for (size_t n = 0; n < 3; n++)
        ck_assert_uint_eq(counts[n], 10);
    pool_close(&p);
}
END_TEST

START_TEST(the_own_host_comes_first_while_it_has_room)
{
    struct pool p;
    char name[64];
    pool_open(&p);
    serve(&p, &(struct hello){.node = "a"});
    serve(&p, &(struct hello){.node = "b", .address = "10.0.0.2:7000", .host = "h"});
    for (int64_t i = 0; i < 9; i++) {
        ck_assert_int_eq(write_keys(&p, 100 * i, 10, "h", true, name), 0);
        ck_assert_str_eq(name, "p.b");
    }
    write_to(&p, 2000, "h", "p.b"); /* a tenth is free */
    write_to(&p, 2001, "h", "p.a");
    write_to(&p, 2002, "10.0.0.1", "p.a");
    pool_close(&p);
}
END_TEST

START_TEST(a_busy_node_comes_later)
{
    struct pool p;
    pool_open(&p);
    serve(&p, &(struct hello){.node = "a", .load = 1000});
    serve(&p, &(struct hello){.node = "b", .address = "10.0.0.2:7000", .load = 100});
    write_to(&p, 1, NULL, "p.b");
    serve(&p, &(struct hello){.node = "a", .load = 10, .objects = 1});
    write_to(&p, 2, NULL, "p.a");
    pool_close(&p);
}
END_TEST

/* The mask of the end of a write shows it; the node's next report ends it. */
START_TEST(a_part_that_rejects_writes_comes_last)
{
    struct pool p;
    char name[64];
    struct hello b = {.node = "b", .address = "10.0.0.2:7000"};
    pool_open(&p);
    serve(&p, &(struct hello){.node = "a", .load = 1000});
    serve(&p, &b);
    ck_assert_int_eq(write_keys(&p, 1, 1, NULL, false, name), 0);
    ck_assert_str_eq(name, "p.b");
    write_to(&p, 2, NULL, "p.a");
    serve(&p, &b);
    write_to(&p, 3, NULL, "p.b");
    pool_close(&p);
}
END_TEST

/* The busiest node is known, also after it has become less busy, or has become the busiest by the
 * others' loads. */
START_TEST(loads_that_rise_and_fall)
{
    struct pool p;
    struct hello a = {.node = "a", .load = 1000}, b = {.node = "b", .address = "10.0.0.2:7000"};
    pool_open(&p);
    b.load = 900;
    serve(&p, &a);
    serve(&p, &b);
    write_to(&p, 1, NULL, "p.b"); /* 1.00 - 0.90 against 1.00 - 1.00 */
    a.load = 0;
    serve(&p, &a); /* now b is the busiest */
    write_to(&p, 2, NULL, "p.a");
    a.load = 500;
    b.load = 10;
    serve(&p, &b);
    serve(&p, &a);
    write_to(&p, 3, NULL, "p.b");
    a.load = 0;
    serve(&p, &a); /* b, with 10 of 10, is the busiest again */
    for (int64_t i = 4; i < 20; i++)
        write_to(&p, i, NULL, "p.a");
    pool_close(&p);
}
END_TEST

/* A report in which only figures differ is no write of the registry, however many nodes report. */
START_TEST(reports_do_not_write_the_registry)
{
    struct pool p;
    pool_open(&p);
    serve(&p, &(struct hello){.load = 1});
    const struct tierce__catalog *before = tierce__registry_acquire(p.h.registry);
    for (uint64_t i = 0; i < 10; i++)
        serve(&p, &(struct hello){.load = i, .objects = i});
    const struct tierce__catalog *after = tierce__registry_acquire(p.h.registry);
    ck_assert_ptr_eq(before, after);
    tierce__registry_release(p.h.registry, before);
    tierce__registry_release(p.h.registry, after);
    pool_close(&p);
}
END_TEST

/* More parts than are ordered without memory: each is tried, and none twice. */
START_TEST(the_last_of_many_parts_has_room)
{
    enum { PARTS = 70 };
    struct pool p;
    char node[8], name[64];
    pool_open(&p);
    for (unsigned i = 0; i < PARTS; i++) {
        char address[32];
        snprintf(node, sizeof(node), "n%u", i);
        snprintf(address, sizeof(address), "10.0.0.%u:7000", i);
        serve(&p, &(struct hello){.node = node, .address = address, .capacity = BLOCK_BYTES});
    }
    for (int64_t i = 0; i < PARTS; i++)
        ck_assert_int_eq(write_keys(&p, i, 1, NULL, true, name), 0);
    ck_assert_int_eq(write_keys(&p, PARTS, 1, NULL, true, name), TIERCE_E_FULL);
    const struct tierce__catalog *catalog = tierce__registry_acquire(p.h.registry);
    for (unsigned i = 0; i < 2 * PARTS; i++) { /* the second time, where they were found */
        snprintf(name, sizeof(name), "p.n%u", i % PARTS);
        const struct tierce__storage *part = tierce__catalog_storage(catalog, name);
        ck_assert_ptr_eq(tierce__catalog_storage_numbered(catalog, part->number), part);
    }
    tierce__registry_release(p.h.registry, catalog);
    pool_close(&p);
}
END_TEST

/* One part is full: its capacity is a limit like that of any storage. */
START_TEST(a_full_part_is_passed_over)
{
    struct pool p;
    char name[64];
    pool_open(&p);
    serve(&p, &(struct hello){.node = "a", .capacity = 2 * BLOCK_BYTES});
    serve(&p,
          &(struct hello){.node = "b", .address = "10.0.0.2:7000", .capacity = 2 * BLOCK_BYTES});
    for (int64_t i = 0; i < 4; i++)
        ck_assert_int_eq(write_keys(&p, i, 1, NULL, true, name), 0);
    ck_assert_int_eq(write_keys(&p, 9, 1, NULL, true, name), TIERCE_E_FULL);
    pool_close(&p);
}
END_TEST

/* Blocks of the pool lie on two nodes. */
static void ask_for_replicas(struct pool *p)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(p->h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    struct tierce__type_quota quota = {
        .type = TIERCE__STORAGE_NODE, .capacity_bytes = group.capacity_bytes, .replicas = 2};
    int64_t version = group.version++;
    group.type_quotas = &quota;
    group.type_quota_count = 1;
    ck_assert_int_eq(tierce__registry_update_group(p->h.registry, &group, version, p->h.why), 0);
    tierce__registry_release(p->h.registry, catalog);
}

/* Copies all that waits, as a mover does; returns the number of blocks. */
static size_t copy_all(struct pool *p)
{
    static const enum tierce__move_result results[64]; /* TIERCE__MOVED */
    size_t copied = 0, moved;
    struct tierce__taken_moves taken = {.count = 1};
    while (taken.count > 0) {
        int rc =
            tierce__locator_take_moves(p->h.locator, &(struct tierce__take_moves){.blocks_max = 64},
                                       &p->h.arena, &taken, p->h.why);
        ck_assert_msg(rc == 0, "%s", p->h.why);
        for (size_t i = 0; i < taken.count; i++) {
            const struct tierce__move_batch *batch = &taken.batches[i];
            ck_assert(batch->is_copy && strcmp(batch->from_storage, batch->to_storage) != 0);
            rc = tierce__locator_finish_moves(p->h.locator, batch->instance_id, batch->session,
                                              results, batch->count, &moved, p->h.why);
            ck_assert_msg(rc == 0, "%s", p->h.why);
            copied += moved;
        }
    }
    return copied;
}

static uint64_t bytes_in(struct pool *p, const char *name)
{
    struct tierce__usage usage;
    const struct tierce__catalog *catalog = tierce__registry_acquire(p->h.registry);
    uint16_t number = tierce__catalog_storage(catalog, name)->number;
    tierce__registry_release(p->h.registry, catalog);
    tierce__locator_storage_usage(p->h.locator, number, &usage);
    return usage.serving_bytes;
}

/* While a node is silent and after it is forgotten, every block is found on the other nodes, and
 * then lies on two nodes again. */
START_TEST(a_dead_node_loses_no_block_that_lies_on_two)
{
    enum { KEYS = 12 };
    struct pool p;
    char name[64];
    int64_t keys[KEYS];
    const struct hello b = {.node = "b", .address = "10.0.0.2:7000"},
                       c = {.node = "c", .address = "10.0.0.3:7000"};
    pool_open(&p);
    ask_for_replicas(&p);
    serve(&p, &(struct hello){0});
    serve(&p, &b);
    serve(&p, &c);
    for (int64_t i = 0; i < KEYS; i++) {
        keys[i] = i;
        ck_assert_int_eq(write_keys(&p, i, 1, NULL, true, name), 0);
    }
    ck_assert_uint_eq(copy_all(&p), KEYS);
    ck_assert_uint_eq(bytes_in(&p, "p.a") + bytes_in(&p, "p.b") + bytes_in(&p, "p.c"),
                      2 * KEYS * BLOCK_BYTES);
    uint64_t of_a = bytes_in(&p, "p.a");
    ck_assert_uint_gt(of_a, 0);
    for (int i = 0; i < 31; i++) { /* the others repeat their registration */
        pass(&p, 2);
        serve(&p, &b);
        serve(&p, &c);
        ck_assert_uint_eq(harness_prefix(&p.h, keys, KEYS), KEYS);
    }
    ck_assert_int_eq(contents_of(&p, "p.a"), TIERCE__CONTENTS_FORGOTTEN);
    ck_assert_uint_eq(tierce__reclaimer_step(p.reclaimer), of_a / BLOCK_BYTES);
    ck_assert_uint_eq(harness_prefix(&p.h, keys, KEYS), KEYS);
    ck_assert_uint_eq(copy_all(&p), of_a / BLOCK_BYTES);
    ck_assert_uint_eq(bytes_in(&p, "p.a"), 0);
    ck_assert_uint_eq(bytes_in(&p, "p.b"), KEYS * BLOCK_BYTES);
    ck_assert_uint_eq(bytes_in(&p, "p.c"), KEYS * BLOCK_BYTES);
    pool_close(&p);
}
END_TEST

CHECK_MAIN("nodes", .tests = {a_part_becomes_a_storage,
                              reasons_are_utf8,
                              invalid_parts_are_rejected,
                              a_silent_node_is_unavailable,
                              a_silent_node_gets_no_deletions,
                              a_node_that_returns_during_a_look,
                              a_node_that_starts_again_is_emptied,
                              a_node_that_is_gone_is_forgotten,
                              a_disk_is_not_forgotten,
                              another_leader_waits_for_a_lease,
                              a_stranger_with_objects_drops_them_first,
                              writes_are_spread,
                              the_own_host_comes_first_while_it_has_room,
                              a_busy_node_comes_later,
                              a_part_that_rejects_writes_comes_last,
                              reports_do_not_write_the_registry,
                              loads_that_rise_and_fall,
                              the_last_of_many_parts_has_room,
                              a_full_part_is_passed_over,
                              a_dead_node_loses_no_block_that_lies_on_two})
