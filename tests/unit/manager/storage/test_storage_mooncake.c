/* SPDX-License-Identifier: Apache-2.0 */
/* A storage of Mooncake behind a real mooncake_master over TCP, with the memory of another process.
 */
#include "check_main.h"
#include "connector_harness.h"
#include "manager/storage/storage.h"
#include "mooncake_server.h"

#include <errno.h>

static struct mooncake_server server;
static char why[256], master[32], python[1024];

static struct tierce__storage storage_of(const char *interpreter)
{
    snprintf(master, sizeof(master), "127.0.0.1:%u", (unsigned)server.port);
    snprintf(python, sizeof(python), "%s", interpreter);
    return (struct tierce__storage){.number = 1,
                                    .name = "moon",
                                    .type = TIERCE__STORAGE_MOONCAKE,
                                    .is_enabled = true,
                                    .master_service_entry = master,
                                    .mooncake_python = python};
}

static struct tierce__storage_driver *open_storage(const char *interpreter)
{
    struct tierce__storage_driver *driver = NULL;
    const struct tierce__storage storage = storage_of(interpreter);
    int rc = tierce__storage_ops_find(storage.type)->open(&driver, &storage, why);
    ck_assert_msg(rc == 0, "%s", why);
    return driver;
}

/* As an engine puts it. */
static struct tierce__connector *open_engine(struct tierce__pool **pool)
{
    char url[1200];
    const struct tierce__pool_opts memory = {
        .size = sizeof(memory), .cap_bytes = 4 << 20, .no_touch = true, .shared = true};
    struct tierce__connector *connector = NULL;
    ck_assert_int_eq(tierce__pool_create(pool, &memory), 0);
    const struct tierce__connector_opts opts = {.size = sizeof(opts), .pool = *pool};
    snprintf(url, sizeof(url), "mooncake://%s?python=%s", master, mooncake_python());
    int rc = tierce__connector_open(&connector, url, &opts, why);
    ck_assert_msg(rc == 0, "%s", why);
    return connector;
}

START_TEST(objects_are_probed_and_deleted)
{
    enum { COUNT = 4 };
    char paths[COUNT][32];
    const char *all[COUNT];
    int status[COUNT];
    uint64_t bytes = 0;
    struct tierce__pool *pool;
    ck_assert(mooncake_start(&server));
    struct tierce__storage_driver *driver = open_storage(mooncake_python());
    ck_assert_msg(driver->ops->probe(driver, why) == 0, "%s", why);
    ck_assert_msg(driver->ops->probe(driver, why) == 0, "%s", why); /* the first left nothing */
    struct tierce__connector *engine = open_engine(&pool);
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(paths[i], sizeof(paths[i]), "/demo/tp0/%zu", i);
        all[i] = paths[i];
        if (i % 2 == 0)
            ck_assert_int_eq(connector_put(engine, pool, paths[i] + 1, 1, 1000 + i), 0);
    }
    ck_assert_int_eq(driver->ops->measure(driver, "/demo/tp0/2", &bytes), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(driver->ops->measure(driver, "/demo/tp0/3", &bytes), -ENOENT);
    ck_assert_int_eq(connector_put(engine, pool, "demo/tp0/other", 1, 77), 0);
    driver->ops->remove_many(driver, all, COUNT, status);
    for (size_t i = 0; i < COUNT; i++)
        ck_assert_int_eq(status[i], 0); /* the missing ones too */
    ck_assert_int_eq(driver->ops->measure(driver, "/demo/tp0/2", &bytes), -ENOENT);
    ck_assert_int_eq(driver->ops->measure(driver, "/demo/tp0/other", &bytes), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(driver->ops->remove(driver, "/../other"), TIERCE_E_ARGUMENT);
    ck_assert(engine->ops->close(engine, tierce__deadline_in_ms(30000)));
    tierce__pool_destroy(pool);
    driver->ops->close(driver);
    mooncake_stop(&server);
}
END_TEST

START_TEST(what_is_wrong_is_named)
{
    server.port = 1;
    struct tierce__storage_driver *driver = open_storage("/nowhere/python");
    ck_assert_int_ne(driver->ops->probe(driver, why), 0);
    ck_assert_msg(strstr(why, "/nowhere/python") != NULL, "%s", why);
    driver->ops->close(driver);
    struct tierce__storage storage = storage_of("python3");
    char nowhere[] = "";
    storage.master_service_entry = nowhere;
    driver = NULL;
    ck_assert_int_eq(tierce__storage_ops_find(storage.type)->open(&driver, &storage, why),
                     TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "HOST:PORT") != NULL, "%s", why);
    ck_assert_ptr_null(driver);
}
END_TEST

int main(void)
{
    return CHECK_RUN("storage_mooncake", .seconds = 60,
                     .tests = {mooncake_is_there() ? objects_are_probed_and_deleted : NULL,
                               what_is_wrong_is_named});
}
