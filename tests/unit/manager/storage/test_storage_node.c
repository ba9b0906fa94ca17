/* SPDX-License-Identifier: Apache-2.0 */
/* A storage that is a part of a node, behind a real transfer server. */
#include "check_main.h"
#include "connector_harness.h"
#include "manager/storage/storage.h"
#include "map_keeper.h"

#include <errno.h>
#include <unistd.h>

enum { SPACE_BYTES = 20 << 20 };

static char why[256], uri[128];
static struct map_keeper *keeper;
static struct tierce__transfer_server *server;

static void start_server(uint16_t port)
{
    const struct tierce__transfer_server_opts opts = {
        .size = sizeof(opts), .host = "127.0.0.1", .port = port, .keeper = map_keeper_base(keeper)};
    int rc = tierce__transfer_server_start(&server, &opts, why);
    ck_assert_msg(rc == 0, "%s", why);
}

static uint16_t stop_server(void)
{
    uint16_t port = tierce__transfer_server_port(server);
    tierce__transfer_server_stop(server, tierce__deadline_in_ms(30000));
    return port;
}

static struct tierce__storage_driver *open_storage(const char *space)
{
    struct tierce__storage_driver *driver = NULL;
    const struct tierce__storage_ops *ops = tierce__storage_ops_find(TIERCE__STORAGE_NODE);
    snprintf(uri, sizeof(uri), "transfer://127.0.0.1:%u/%s",
             (unsigned)tierce__transfer_server_port(server), space);
    ck_assert_ptr_nonnull(ops);
    int rc = ops->open(&driver,
                       &(struct tierce__storage){.number = 1,
                                                 .name = "pool.n1",
                                                 .type = TIERCE__STORAGE_NODE,
                                                 .is_enabled = true,
                                                 .uri = uri},
                       why);
    ck_assert_msg(rc == 0, "%s", why);
    return driver;
}

/* As an engine puts it. */
static void put_object(const char *name, size_t bytes)
{
    struct tierce__pool *pool = connector_pool();
    struct tierce__connector *connector = NULL;
    const struct tierce__connector_opts opts = {.size = sizeof(opts), .pool = pool};
    ck_assert_int_eq(tierce__connector_open(&connector, uri, &opts, why), 0);
    ck_assert_int_eq(connector_put(connector, pool, name, 1, bytes), 0);
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    tierce__pool_destroy(pool);
}

static void set_up(void)
{
    keeper = map_keeper_create("memory", SPACE_BYTES);
    start_server(0);
}

static void tear_down(void)
{
    (void)stop_server();
    map_keeper_destroy(keeper);
}

START_TEST(objects_are_measured_and_deleted)
{
    char paths[TIERCE__STORAGE_BATCH_MAX][32];
    const char *all[TIERCE__STORAGE_BATCH_MAX];
    int status[TIERCE__STORAGE_BATCH_MAX];
    uint64_t bytes = 0;
    struct tierce__storage_driver *driver = open_storage("memory");
    ck_assert_msg(driver->ops->probe(driver, why) == 0, "%s", why);
    ck_assert_uint_eq(map_keeper_objects(keeper), 0);
    for (size_t i = 0; i < TIERCE__STORAGE_BATCH_MAX; i++) {
        snprintf(paths[i], sizeof(paths[i]), "/demo/tp0/%zu", i);
        all[i] = paths[i];
        if (i % 2 == 0)
            put_object(paths[i] + 1, 1000 + i);
    }
    ck_assert_int_eq(driver->ops->measure(driver, "/demo/tp0/6", &bytes), 0);
    ck_assert_uint_eq(bytes, 1006);
    ck_assert_int_eq(driver->ops->measure(driver, "/demo/tp0/7", &bytes), -ENOENT);
    put_object("demo/tp0/other", 1);
    driver->ops->remove_many(driver, all, TIERCE__STORAGE_BATCH_MAX, status);
    for (size_t i = 0; i < TIERCE__STORAGE_BATCH_MAX; i++)
        ck_assert_int_eq(status[i], 0); /* the missing ones too */
    ck_assert_uint_eq(map_keeper_objects(keeper), 1);
    ck_assert_int_eq(driver->ops->remove(driver, "/../other"), TIERCE_E_ARGUMENT);
    driver->ops->close(driver);
}
END_TEST

static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%llu %llu", &pages, &resident), 2);
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A scrub reads blocks in pieces. The memory of all pieces together does not stay. */
START_TEST(a_read_gives_its_memory_back)
{
    enum { OBJECT = 16 << 20, PIECE = 256 << 10 };
    static uint8_t whole[OBJECT];
    struct tierce__storage_driver *driver = open_storage("memory");
    put_object("demo/tp0/big", OBJECT);
    memset(whole, 1, OBJECT);
    ck_assert_int_eq(driver->ops->read(driver, "/demo/tp0/big", 0, whole, PIECE), 0);
    uint64_t before = resident_bytes();
    for (uint64_t at = 0; at < OBJECT; at += PIECE)
        ck_assert_int_eq(driver->ops->read(driver, "/demo/tp0/big", at, whole + at, PIECE), 0);
    ck_assert_uint_lt(resident_bytes(), before + OBJECT / 2);
    ck_assert(connector_is_object(whole, 1, 0, OBJECT));
    driver->ops->close(driver);
}
END_TEST

START_TEST(a_node_that_dies_and_returns)
{
    struct tierce__storage_driver *driver = open_storage("memory");
    put_object("demo/tp0/1", 1000);
    uint16_t port = stop_server();
    ck_assert_int_ne(driver->ops->probe(driver, why), 0);
    ck_assert_ptr_nonnull(strstr(why, "write: "));
    ck_assert_int_lt(driver->ops->remove(driver, "/demo/tp0/1"), 0); /* to be tried again */
    start_server(port);
    ck_assert_msg(driver->ops->probe(driver, why) == 0, "%s", why);
    ck_assert_int_eq(driver->ops->remove(driver, "/demo/tp0/1"), 0);
    ck_assert_uint_eq(map_keeper_objects(keeper), 0);
    driver->ops->close(driver);
}
END_TEST

START_TEST(what_is_wrong_is_named)
{
    struct tierce__storage_driver *driver = open_storage("disk");
    ck_assert_int_ne(driver->ops->probe(driver, why), 0);
    ck_assert_msg(strstr(why, "disk") != NULL, "%s", why);
    driver->ops->close(driver);
    driver = open_storage("memory");
    map_keeper_fail(keeper, TIERCE_E_FULL, 1); /* a full part serves what it has */
    ck_assert_int_eq(driver->ops->probe(driver, why), 0);
    map_keeper_fail(keeper, TIERCE_E_REFUSED, 1);
    ck_assert_int_ne(driver->ops->probe(driver, why), 0);
    ck_assert_ptr_nonnull(strstr(why, "write: "));
    driver->ops->close(driver);
    const struct tierce__storage wrong = {
        .name = "n", .type = TIERCE__STORAGE_NODE, .uri = (char *)(uintptr_t) "redis://a"};
    ck_assert_int_eq(tierce__storage_node.open(&driver, &wrong, why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "transfer://"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("storage node");
    TCase *tcase = tcase_create("node");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, objects_are_measured_and_deleted);
    tcase_add_test(tcase, a_read_gives_its_memory_back);
    tcase_add_test(tcase, a_node_that_dies_and_returns);
    tcase_add_test(tcase, what_is_wrong_is_named);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
