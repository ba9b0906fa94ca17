/* SPDX-License-Identifier: Apache-2.0 */
/* A storage in a real redis-server, behind real sentinels, and in a real cluster. */
#include "check_main.h"
#include "manager/storage/storage.h"
#include "redis_sentinels.h"
#include "script_server.h"

#include <errno.h>

#define KEYS 12 /* of a cluster's three masters each has some */

static char why[128];

static struct tierce__storage_driver *open_storage(const char *uri)
{
    struct tierce__storage_driver *driver = NULL;
    int rc = tierce__storage_redis.open(&driver,
                                        &(struct tierce__storage){.number = 1,
                                                                  .name = "r",
                                                                  .type = TIERCE__STORAGE_REDIS,
                                                                  .is_enabled = true,
                                                                  .uri = (char *)(uintptr_t)uri},
                                        why);
    ck_assert_msg(rc == 0, "%s", why);
    return driver;
}

/* `ports`: of all masters; the one that has a key's slot takes it, or the only one. */
static void set_key(const uint16_t *ports, size_t count, const char *key)
{
    char answer[256];
    for (size_t i = 0; i < count; i++) {
        if (redis_tell(ports[i], answer, sizeof(answer), "SET %s value", key))
            return;
    }
    ck_abort_msg("no master takes %s: %s", key, answer);
}

static void use(const char *uri, const uint16_t *ports, size_t count)
{
    char answer[256];
    struct tierce__storage_driver *driver = open_storage(uri);
    int rc = driver->ops->probe(driver, why);
    ck_assert_msg(rc == 0, "%s: %s", uri, why);
    for (int i = 0; i < KEYS; i++) {
        char path[32];
        uint64_t bytes = 0;
        snprintf(path, sizeof(path), "/key-%d", i);
        ck_assert_int_eq(driver->ops->measure(driver, path, &bytes), -ENOENT);
        set_key(ports, count, path + 1);
        ck_assert_int_eq(driver->ops->measure(driver, path, &bytes), 0);
        ck_assert_uint_eq(bytes, 5);
        ck_assert_int_eq(driver->ops->remove(driver, path), 0);
        ck_assert_int_eq(driver->ops->measure(driver, path, &bytes), -ENOENT);
        ck_assert_int_eq(driver->ops->remove(driver, path), 0);
    }
    ck_assert(driver->ops->used_share(driver) < 0);
    /* The last of them is the fullest. */
    for (size_t i = 0; i < count; i++)
        ck_assert(redis_tell(ports[i], answer, sizeof(answer), "CONFIG SET maxmemory %s",
                             i + 1 < count ? "100gb" : "100mb"));
    double share = driver->ops->used_share(driver);
    ck_assert_msg(share > 0.001 && share < 1, "%f", share);
    /* An error of one server hides no other. */
    for (size_t i = 0; count > 1 && i < count; i++) {
        ck_assert(redis_tell(ports[i], answer, sizeof(answer), "ACL SETUSER default -info"));
        ck_assert(redis_tell(ports[i], answer, sizeof(answer), "CONFIG SET maxmemory 100gb"));
        size_t next = (i + 1) % count;
        ck_assert(redis_tell(ports[next], answer, sizeof(answer), "CONFIG SET maxmemory 100mb"));
        share = driver->ops->used_share(driver);
        ck_assert_msg(share > 0.001 && share < 1, "%f", share);
        ck_assert(redis_tell(ports[i], answer, sizeof(answer), "ACL SETUSER default +info"));
    }
    driver->ops->close(driver);
}

START_TEST(one_server)
{
    struct redis_server server;
    char uri[64];
    ck_assert(redis_start(&server, NULL));
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u/?timeout_ms=60000", (unsigned)server.port);
    use(uri, &server.port, 1);
    redis_stop(&server);
}
END_TEST

/* The key of an object is the prefix and its name; the password is in a file. */
START_TEST(a_prefix_and_a_file)
{
    struct redis_server server;
    char uri[256], path[128], answer[256];
    uint64_t bytes = 0;
    ck_assert(redis_start(&server, NULL));
    snprintf(path, sizeof(path), "%s/credentials", server.dir);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs("user=kv\npassword=secret\n", file), 0);
    fclose(file);
    /* Keys beside the prefix are out of the user's reach, also for the probe. */
    ck_assert(
        redis_tell(server.port, answer, sizeof(answer), "ACL SETUSER kv on >secret ~kv:* +@all"));
    snprintf(uri, sizeof(uri),
             "redis://127.0.0.1:%u/?timeout_ms=60000&key_prefix=kv%%3A&credentials_file=%s",
             (unsigned)server.port, path);
    struct tierce__storage_driver *driver = open_storage(uri);
    ck_assert_msg(driver->ops->probe(driver, why) == 0, "%s", why);
    ck_assert(redis_tell(server.port, answer, sizeof(answer), "SET kv:i/tp0/1f value"));
    ck_assert(redis_tell(server.port, answer, sizeof(answer), "SET i/tp0/1f other"));
    ck_assert_int_eq(driver->ops->measure(driver, "/i/tp0/1f", &bytes), 0);
    ck_assert_uint_eq(bytes, 5);
    ck_assert_int_eq(driver->ops->remove(driver, "/i/tp0/1f"), 0);
    ck_assert_int_eq(driver->ops->measure(driver, "/i/tp0/1f", &bytes), -ENOENT);
    ck_assert(redis_tell(server.port, answer, sizeof(answer), "RENAMENX i/tp0/1f i/tp0/20"));
    static const char *const bad[] = {"", "/", "i/tp0/1f", "//a", "/a/..", "/a/"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        ck_assert_int_eq(driver->ops->remove(driver, bad[i]), TIERCE_E_ARGUMENT);
        ck_assert_int_eq(driver->ops->measure(driver, bad[i], &bytes), TIERCE_E_ARGUMENT);
    }
    driver->ops->close(driver);
    redis_stop(&server);
}
END_TEST

START_TEST(what_does_not_open)
{
    static const char *const uris[][2] = {
        {"redis://h?credentials_file=/nonexistent/c", "/nonexistent/c: No such file"},
        {"file:///etc", "uri must begin with redis://"},
        {"", "uri must begin with redis://"}};
    char uri[512];
    for (size_t i = 0; i < 3; i++) {
        struct tierce__storage_driver *driver = NULL;
        ck_assert_int_eq(tierce__storage_redis.open(
                             &driver,
                             &(struct tierce__storage){.number = 1,
                                                       .name = "r",
                                                       .type = TIERCE__STORAGE_REDIS,
                                                       .uri = (char *)(uintptr_t)uris[i][0]},
                             why),
                         TIERCE_E_CONFIG);
        ck_assert_ptr_null(driver);
        ck_assert_msg(strstr(why, uris[i][1]) != NULL, "%s", why);
    }
    struct tierce__storage_driver *driver = NULL;
    int used = snprintf(uri, sizeof(uri), "redis://h?key_prefix=");
    memset(uri + used, 'p', 129);
    uri[used + 129] = '\0';
    ck_assert_int_eq(tierce__storage_redis.open(
                         &driver,
                         &(struct tierce__storage){
                             .number = 1, .name = "r", .type = TIERCE__STORAGE_REDIS, .uri = uri},
                         why),
                     TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "key_prefix"));
}
END_TEST

START_TEST(the_master_of_sentinels)
{
    struct redis_sentinels sentinels = {0};
    char uri[256];
    ck_assert(
        redis_sentinels_start(&sentinels, 1, NULL, "sentinel down-after-milliseconds m 600000"));
    snprintf(uri, sizeof(uri), "redis+sentinel://%s/m?timeout_ms=60000", sentinels.hosts);
    use(uri, &sentinels.data[0].port, 1);
    redis_sentinels_stop(&sentinels);
}
END_TEST

START_TEST(a_cluster)
{
    struct redis_cluster cluster = {0};
    uint16_t ports[3];
    char uri[320];
    ck_assert(redis_cluster_start(&cluster, 3, 0, 60000));
    for (int i = 0; i < 3; i++)
        ports[i] = cluster.nodes[i].port;
    snprintf(uri, sizeof(uri), "%s?timeout_ms=60000", cluster.uri);
    use(uri, ports, 3);
    redis_cluster_stop(&cluster);
}
END_TEST

/* A probe names the step that failed. */
START_TEST(a_probe_that_is_refused)
{
    static const char *const steps[][2] = {
        {"set", "write: "}, {"get", "read: "}, {"del", "delete: "}};
    struct redis_server server;
    char uri[64], answer[256];
    ck_assert(redis_start(&server, NULL));
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u/?timeout_ms=60000", (unsigned)server.port);
    struct tierce__storage_driver *driver = open_storage(uri);
    for (size_t i = 0; i < 3; i++) {
        ck_assert(redis_tell(server.port, answer, sizeof(answer), "ACL SETUSER default -%s",
                             steps[i][0]));
        ck_assert_int_eq(driver->ops->probe(driver, why), -EPROTO);
        ck_assert_msg(strncmp(why, steps[i][1], strlen(steps[i][1])) == 0, "%s", why);
        ck_assert_ptr_nonnull(strstr(why, "NOPERM"));
        ck_assert(redis_tell(server.port, answer, sizeof(answer), "ACL SETUSER default +%s",
                             steps[i][0]));
    }
    ck_assert_int_eq(driver->ops->probe(driver, why), 0);
    driver->ops->close(driver);
    redis_stop(&server);
}
END_TEST

static void check_answers(const char *answers, int status, const char *part)
{
    const struct script_reply replies[] = {{.bytes = "+PONG\r\n", .count = 7},
                                           {.bytes = answers, .count = strlen(answers)}};
    struct script_server fake;
    char uri[64];
    script_server_start(&fake, replies, 2);
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u/?timeout_ms=60000", (unsigned)fake.port);
    struct tierce__storage_driver *driver = open_storage(uri);
    ck_assert_int_eq(driver->ops->probe(driver, why), status);
    ck_assert_msg(strstr(why, part) != NULL, "%s", why);
    driver->ops->close(driver);
    script_server_stop(&fake);
}

START_TEST(a_server_that_returns_other_bytes)
{
    check_answers("+OK\r\n$1\r\nx\r\n:1\r\n", TIERCE_E_CHECKSUM, "the bytes differ");
}
END_TEST

/* A cluster that moves a slot meanwhile has parts of the batch repeated, perhaps after the
 * deletion.
 */
START_TEST(a_server_that_returns_no_bytes)
{
    check_answers("+OK\r\n$-1\r\n:1\r\n", TIERCE_E_DOWN, "read: the key is missing");
}
END_TEST

/* Nobody there: told, and with no password. */
START_TEST(nobody)
{
    struct tierce__storage_driver *driver = open_storage("redis+sentinel://:s3cret@127.0.0.1:1/m");
    ck_assert_int_lt(driver->ops->probe(driver, why), 0);
    ck_assert_uint_gt(strlen(why), 10);
    ck_assert_ptr_null(strstr(why, "s3cret"));
    ck_assert(driver->ops->used_share(driver) < 0);
    driver->ops->close(driver);
}
END_TEST

CHECK_MAIN("storage_redis", .seconds = 120,
           .tests = {one_server, a_prefix_and_a_file, what_does_not_open, the_master_of_sentinels,
                     a_cluster, a_probe_that_is_refused, a_server_that_returns_other_bytes,
                     a_server_that_returns_no_bytes, nobody})
