/* SPDX-License-Identifier: Apache-2.0 */
/* A storage in a real server of S3 that checks signatures, and in one that answers as a test wants.
 */
#include "check_main.h"
#include "base/alloc.h"
#include "connector_harness.h"
#include "manager/storage/storage_worker.h"
#include "s3_fake.h"
#include "s3_server.h"

#include <errno.h>
#include <sys/stat.h>

static char why[128];
static struct s3_server shared, server; /* server: of this test, or `shared` */
static char prefix[32], server_uri[256];

static struct tierce__storage_driver *open_storage(const char *uri)
{
    struct tierce__storage_driver *driver = NULL;
    int rc = tierce__storage_s3.open(&driver,
                                     &(struct tierce__storage){.number = 1,
                                                               .name = "s",
                                                               .type = TIERCE__STORAGE_S3,
                                                               .is_enabled = true,
                                                               .uri = (char *)(uintptr_t)uri},
                                     why);
    ck_assert_msg(rc == 0, "%s", why);
    return driver;
}

/* One server for all tests, because its start takes longer than most of them. */
static void start_shared(void)
{
    ck_assert_msg(s3_is_there(), "nanio is missing: run tools/setup");
    ck_assert(s3_start(&shared));
    ck_assert(s3_write_credentials(&shared, "kv"));
}

static void stop_shared(void)
{
    s3_stop(&shared);
}

/* A prefix of the test's own, in the server. */
static void use_server(const struct s3_server *used, const char *more)
{
    server = *used;
    snprintf(prefix, sizeof(prefix), "pre/fix%d", (int)getpid());
    snprintf(server_uri, sizeof(server_uri),
             "s3://kv-cache/%s?endpoint=http%%3A//127.0.0.1:%u&profile=kv&"
             "credentials_file=%s/credentials%s",
             prefix, (unsigned)server.port, server.dir, more);
}

/* A server that the test may kill. */
static void start_server(const char *more)
{
    struct s3_server own;
    ck_assert(s3_start(&own));
    ck_assert(s3_write_credentials(&own, "kv"));
    use_server(&own, more);
}

/* nanio keeps objects as files at their keys. */
static void file_of(char *out, size_t room, const char *path)
{
    snprintf(out, room, "%s/data/kv-cache/%s%s", server.dir, prefix, path);
}

static bool object_exists(const char *path)
{
    struct stat info;
    char file[512];
    file_of(file, sizeof(file), path);
    return stat(file, &info) == 0;
}

/* As an engine puts it that has the URI's path. */
static void put_object(const char *path, size_t bytes)
{
    struct tierce__pool *pool = connector_pool();
    struct tierce__connector *connector = NULL;
    struct connector_call call;
    char url[320], text[TIERCE__CONNECTOR_WHY_BYTES];
    snprintf(url, sizeof(url), "%s&names=path", server_uri);
    int rc =
        tierce__connector_open(&connector, url,
                               &(struct tierce__connector_opts){
                                   .size = sizeof(struct tierce__connector_opts), .pool = pool},
                               text);
    ck_assert_msg(rc == 0, "%s", text);
    connector_call_init(&call, TIERCE__STORE_PUT, path + 1, 0);
    call.req.buf = connector_object(pool, 1, bytes);
    call.req.length = bytes;
    ck_assert_int_eq(connector_call_run(connector, &call), 0);
    tierce__buf_release(call.req.buf);
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    tierce__pool_destroy(pool);
    ck_assert(object_exists(path));
}

/* ---- a real server --------------------------------------------------------------------------- */

START_TEST(a_real_server)
{
    char other[256];
    uint64_t bytes = 0;
    use_server(&shared, "");
    struct tierce__storage_driver *driver = open_storage(server_uri);
    why[0] = '\0';
    ck_assert_msg(driver->ops->probe(driver, why) == 0, "%s", why);
    ck_assert_msg(driver->ops->probe(driver, why) == 0, "%s", why);
    ck_assert(driver->ops->used_share(driver) < 0);
    put_object("/i/tp0/00ff", 5000);
    ck_assert_int_eq(driver->ops->measure(driver, "/i/tp0/00ff", &bytes), 0);
    ck_assert_uint_eq(bytes, 5000);
    ck_assert_int_eq(driver->ops->remove(driver, "/i/tp0/00ff"), 0);
    ck_assert_int_eq(driver->ops->measure(driver, "/i/tp0/00ff", &bytes), -ENOENT);
    ck_assert(!object_exists("/i/tp0/00ff"));
    ck_assert_int_eq(driver->ops->remove(driver, "/i/tp0/00ff"), 0);
    driver->ops->close(driver);

    /* An object beside the prefix is out of reach. */
    snprintf(other, sizeof(other), "s3://kv-cache/%s/i?%s", prefix, strchr(server_uri, '?') + 1);
    put_object("/i/tp0/1", 10);
    put_object("/outside", 10);
    driver = open_storage(other);
    ck_assert_int_eq(driver->ops->remove(driver, "/../outside"), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(driver->ops->remove(driver, "/outside"), 0);
    ck_assert(object_exists("/outside"));
    ck_assert_int_eq(driver->ops->remove(driver, "/tp0/1"), 0);
    ck_assert(!object_exists("/i/tp0/1"));
    driver->ops->close(driver);
}
END_TEST

START_TEST(a_mark)
{
    static const char ids[2][TIERCE__STORAGE_ID_HEX + 1] = {"0123456789abcdef0123456789abcdef",
                                                            "ffffffffffffffff0000000000000000"};
    char id[TIERCE__STORAGE_ID_HEX + 1], file[512];
    start_server("&retries=0");
    struct tierce__storage_driver *driver = open_storage(server_uri);
    ck_assert_int_eq(driver->ops->read_mark(driver, id, why), -ENOENT);
    for (size_t i = 0; i < 2; i++) {
        ck_assert_msg(driver->ops->write_mark(driver, ids[i], why) == 0, "%s", why);
        ck_assert_msg(driver->ops->read_mark(driver, id, why) == 0, "%s", why);
        ck_assert_str_eq(id, ids[i]);
    }
    file_of(file, sizeof(file), "/" TIERCE__STORAGE_MARK); /* below the prefix */
    ck_assert_int_eq(access(file, F_OK), 0);
    put_object("/" TIERCE__STORAGE_MARK, 4096);
    ck_assert_int_eq(driver->ops->read_mark(driver, id, why), TIERCE_E_FORMAT);
    s3_kill(&server);
    why[0] = '\0';
    ck_assert_int_lt(driver->ops->read_mark(driver, id, why), 0);
    ck_assert_ptr_nonnull(strstr(why, "read the mark: "));
    driver->ops->close(driver);
    s3_stop(&server);
}
END_TEST

/* A lifecycle rule of the bucket has deleted the mark, but not yet the blocks. */
START_TEST(a_mark_that_a_rule_has_deleted)
{
    const struct tierce__storage_mark mark = {.id = "0123456789abcdef0123456789abcdef",
                                              .is_marked = true};
    use_server(&shared, "&retries=0");
    struct tierce__storage_driver *driver = open_storage(server_uri);
    ck_assert_int_eq(tierce__storage_mark_look(driver->ops, driver, &mark, why), TIERCE__MARK_LOST);
    ck_assert_msg(strstr(why, "it is empty") != NULL, "%s", why);
    put_object("/i/a/0000000000f10000", 10);
    ck_assert_int_eq(tierce__storage_mark_look(driver->ops, driver, &mark, why), TIERCE__MARK_LOST);
    ck_assert_msg(strstr(why, "it has blocks") != NULL, "%s", why);
    ck_assert_msg(strstr(why, "adopt --keep)") != NULL, "%s", why);
    driver->ops->close(driver);
}
END_TEST

/* A new registry that is given the prefix of another one, which has lost its mark or never had one,
 * takes nothing for its own. */
START_TEST(blocks_without_a_mark)
{
    static const char block[] = "/i/a/0000000000f10000";
    const struct tierce__storage_mark mark = {.id = "0123456789abcdef0123456789abcdef"};
    enum tierce__mark_state state;
    char file[512], name[64];
    use_server(&shared, "&retries=0");
    struct tierce__storage_driver *driver = open_storage(server_uri);
    for (int i = 0; i < 3; i++) { /* other objects, before it */
        snprintf(name, sizeof(name), "/a%d", i);
        put_object(name, 1);
    }
    put_object(block, 10);
    ck_assert_int_eq(tierce__storage_mark_probe(driver->ops, driver, &mark, &state, why),
                     TIERCE_E_DOWN);
    ck_assert_int_eq(state, TIERCE__MARK_UNCLAIMED);
    ck_assert_msg(strstr(why, "it has blocks but no mark") != NULL, "%s", why);
    file_of(file, sizeof(file), "/" TIERCE__STORAGE_MARK);
    ck_assert_int_ne(access(file, F_OK), 0);
    ck_assert_int_eq(driver->ops->remove(driver, block), 0);
    int rc = tierce__storage_mark_probe(driver->ops, driver, &mark, &state, why);
    ck_assert_msg(rc == 0, "%s", why);
    ck_assert_int_eq(state, TIERCE__MARK_OURS);
    ck_assert_int_eq(access(file, F_OK), 0);
    driver->ops->close(driver);
}
END_TEST

static int cannot_list(struct tierce__storage_driver *driver, bool *has)
{
    (void)driver, (void)has;
    return TIERCE_E_REFUSED;
}

static int cannot_read(struct tierce__storage_driver *driver, char id[TIERCE__STORAGE_ID_HEX + 1],
                       char text[128])
{
    (void)driver, (void)id, (void)text;
    return TIERCE_E_REFUSED;
}

/* A storage that is not used without a mark says why it gets none. */
START_TEST(a_mark_that_cannot_be_known)
{
    struct tierce__storage_mark mark = {.id = "0123456789abcdef0123456789abcdef"};
    enum tierce__mark_state state;
    use_server(&shared, "&retries=0");
    struct tierce__storage_driver *driver = open_storage(server_uri);
    struct tierce__storage_ops ops = *driver->ops;
    ops.has_blocks = cannot_list;
    ck_assert_int_eq(tierce__storage_mark_probe(&ops, driver, &mark, &state, why), TIERCE_E_DOWN);
    ck_assert_msg(strstr(why, "cannot be listed") != NULL, "%s", why);
    ops.read_mark = cannot_read;
    ck_assert_int_eq(tierce__storage_mark_probe(&ops, driver, &mark, &state, why), TIERCE_E_DOWN);
    ck_assert_msg(why[0] != '\0', "no reason");
    mark.is_marked = true; /* by the registry: it is used meanwhile */
    ck_assert_int_eq(tierce__storage_mark_probe(&ops, driver, &mark, &state, why), 0);
    driver->ops->close(driver);
}
END_TEST

/* An empty object is one; it is too short for its block. */
START_TEST(an_object_without_bytes)
{
    char file[512];
    uint64_t bytes = 99;
    use_server(&shared, "");
    struct tierce__storage_driver *driver = open_storage(server_uri);
    put_object("/i/a/0000000000f10000", 10);
    file_of(file, sizeof(file), "/i/a/0000000000f20000");
    FILE *empty = fopen(file, "w");
    ck_assert_ptr_nonnull(empty);
    fclose(empty);
    ck_assert_int_eq(driver->ops->measure(driver, "/i/a/0000000000f20000", &bytes), 0);
    ck_assert_uint_eq(bytes, 0);
    driver->ops->close(driver);
}
END_TEST

START_TEST(paths_that_are_no_names)
{
    static const char *const bad[] = {"",     "/",     "a",    "/a/", "/a//b",
                                      "/./a", "/a/..", "/a b", "/%41"};
    char longer[600];
    uint64_t bytes;
    int status[4];
    use_server(&shared, "");
    struct tierce__storage_driver *driver = open_storage(server_uri);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        ck_assert_int_eq(driver->ops->remove(driver, bad[i]), TIERCE_E_ARGUMENT);
        ck_assert_int_eq(driver->ops->measure(driver, bad[i], &bytes), TIERCE_E_ARGUMENT);
    }
    memset(longer, 'a', sizeof(longer) - 1);
    longer[0] = '/';
    longer[514] = '\0';
    ck_assert_int_eq(driver->ops->remove(driver, longer), TIERCE_E_ARGUMENT);
    longer[513] = '\0';
    /* The others of a batch are removed. */
    put_object("/a/b", 10);
    driver->ops->remove_many(driver, (const char *const[]){"a", "/a//b", "/a/b", "/none"}, 4,
                             status);
    ck_assert_int_eq(status[0], TIERCE_E_ARGUMENT);
    ck_assert_int_eq(status[1], TIERCE_E_ARGUMENT);
    ck_assert_int_eq(status[2], 0);
    ck_assert_int_eq(status[3], 0);
    ck_assert(!object_exists("/a/b"));
    driver->ops->close(driver);
}
END_TEST

/* A worker hands over many files at once, and each has its own result. */
START_TEST(many_files)
{
    enum { FILES = 2 * TIERCE__STORAGE_BATCH_MAX + 3 };
    static char texts[FILES][32];
    const char *paths[FILES];
    int status[FILES];
    uint64_t bytes[FILES];
    struct tierce__storage_worker *worker = NULL;
    use_server(&shared, "");
    put_object("/m/first", 7);
    for (size_t i = 0; i < FILES; i++) {
        snprintf(texts[i], sizeof(texts[i]), i % 50 == 7 ? "/m//%zu" : "/m/%zu", i);
        paths[i] = texts[i];
        status[i] = 1;
    }
    paths[FILES - 1] = "/m/first";
    const struct tierce__storage storage = {.number = 1,
                                            .name = "s",
                                            .type = TIERCE__STORAGE_S3,
                                            .is_enabled = true,
                                            .uri = server_uri};
    ck_assert_int_eq(
        tierce__storage_worker_start(&worker, &storage, &tierce__storage_s3, 60000, why), 0);
    ck_assert_int_eq(
        tierce__storage_worker_measure(worker, NULL, &paths[FILES - 1], 1, bytes, status), 0);
    ck_assert_int_eq(status[0], 0);
    ck_assert_uint_eq(bytes[0], 7);
    ck_assert_int_eq(tierce__storage_worker_remove(worker, NULL, paths, FILES, status), 0);
    for (size_t i = 0; i < FILES; i++)
        ck_assert_int_eq(status[i], i % 50 == 7 ? TIERCE_E_ARGUMENT : 0);
    ck_assert(!object_exists("/m/first"));
    tierce__storage_worker_end(worker);
    ck_assert(tierce__storage_worker_has_ended(worker, true));
    tierce__storage_worker_forget(worker);
}
END_TEST

/* The server disappears and returns; a deletion that failed succeeds when it is repeated. */
START_TEST(a_server_that_is_killed)
{
    start_server("&retries=0");
    struct tierce__storage_driver *driver = open_storage(server_uri);
    ck_assert_msg(driver->ops->probe(driver, why) == 0, "%s", why);
    put_object("/a/b", 10);
    s3_kill(&server);
    ck_assert_int_eq(driver->ops->remove(driver, "/a/b"), TIERCE_E_DOWN);
    ck_assert_int_lt(driver->ops->probe(driver, why), 0);
    ck_assert_msg(strncmp(why, "write: ", 7) == 0, "%s", why);
    ck_assert(object_exists("/a/b"));
    ck_assert(s3_run(&server));
    ck_assert_msg(driver->ops->probe(driver, why) == 0, "%s", why);
    ck_assert_int_eq(driver->ops->remove(driver, "/a/b"), 0);
    ck_assert(!object_exists("/a/b"));
    driver->ops->close(driver);
    s3_stop(&server);
}
END_TEST

/* The reason is that of the probe, and credentials that appear later are found. */
START_TEST(credentials_that_come_later)
{
    char path[128], aside[128];
    use_server(&shared, "");
    snprintf(path, sizeof(path), "%s/credentials", server.dir);
    snprintf(aside, sizeof(aside), "%s/aside", server.dir);
    ck_assert_int_eq(rename(path, aside), 0);
    struct tierce__storage_driver *driver = open_storage(server_uri);
    ck_assert_int_eq(driver->ops->probe(driver, why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "S3 credentials"));
    ck_assert_int_eq(driver->ops->remove(driver, "/a"), TIERCE_E_CONFIG);
    ck_assert_int_eq(rename(aside, path), 0);
    ck_assert_msg(driver->ops->probe(driver, why) == 0, "%s", why);
    driver->ops->close(driver);
}
END_TEST

/* ---- one that answers as a test wants -------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    uint8_t body[4096];
    bool exists, keeps, lies, loses;
    const char *refuses; /* a method */
    unsigned deletions;
} store = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* One object, which is the probe's. */
static bool answer_as_store(int fd, const struct s3_request *request)
{
    pthread_mutex_lock(&store.lock);
    bool is_refused = store.refuses != NULL && strcmp(store.refuses, request->method) == 0;
    if (strcmp(request->method, "PUT") == 0 && !is_refused) {
        ck_assert_uint_eq(request->body_bytes, sizeof(store.body));
        memcpy(store.body, request->body, sizeof(store.body));
        store.body[17] ^= store.lies;
        store.exists = !store.loses;
    }
    if (strcmp(request->method, "DELETE") == 0) {
        store.deletions++;
        store.exists = store.exists && (is_refused || store.keeps);
    }
    bool exists = store.exists;
    pthread_mutex_unlock(&store.lock);
    if (is_refused && strcmp(request->method, "HEAD") == 0) /* its answer has no body */
        return s3_fake_text(fd, "403 Forbidden", "");
    if (is_refused)
        return s3_fake_error(fd, "403 Forbidden", "AccessDenied");
    if (strcmp(request->method, "PUT") == 0)
        return s3_fake_reply(fd, "200 OK", "ETag: \"e\"\r\n", "", 0);
    if (strcmp(request->method, "DELETE") == 0)
        return s3_fake_text(fd, "204 No Content", "");
    if (!exists)
        return strcmp(request->method, "HEAD") == 0
                   ? s3_fake_text(fd, "404 Not Found", "")
                   : s3_fake_error(fd, "404 Not Found", "NoSuchKey");
    if (strcmp(request->method, "HEAD") == 0)
        return s3_fake_write(fd, "HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n", 41);
    return s3_fake_reply(fd, "206 Partial Content",
                         "Content-Range: bytes 0-4095/4096\r\nETag: \"e\"\r\n", store.body,
                         sizeof(store.body));
}

static void expect_probe(struct tierce__storage_driver *driver, bool works, const char *text)
{
    why[0] = '\0';
    int rc = driver->ops->probe(driver, why);
    ck_assert_msg((rc == 0) == works, "%d: %s", rc, why);
    ck_assert_msg(works || strncmp(why, text, strlen(text)) == 0, "\"%s\" is not: %s", text, why);
    ck_assert_ptr_null(strstr(why, "hidden"));
}

/* A probe names the step that failed, and leaves no object where it can delete. */
START_TEST(each_step_of_a_probe)
{
    char uri[160];
    s3_fake_start(answer_as_store);
    snprintf(uri, sizeof(uri), "s3://AKID:hidden@bucket?endpoint=http://127.0.0.1:%u",
             (unsigned)fake.port);
    struct tierce__storage_driver *driver = open_storage(uri);
    expect_probe(driver, true, "");
    store.refuses = "PUT";
    expect_probe(driver, false, "write: ");
    store.refuses = "GET";
    expect_probe(driver, false, "read: ");
    ck_assert(!store.exists);
    store.refuses = "DELETE";
    expect_probe(driver, false, "delete: ");
    store.refuses = "HEAD";
    expect_probe(driver, false, "delete: ");
    store.refuses = NULL;
    store.lies = true;
    expect_probe(driver, false, "read: the bytes differ");
    ck_assert(!store.exists);
    store.lies = false;
    store.loses = true;
    expect_probe(driver, false, "read: the object is missing");
    store.loses = false;
    store.keeps = true;
    expect_probe(driver, false, "delete: the object exists after its deletion");
    store.keeps = false;
    expect_probe(driver, true, "");
    ck_assert(!store.exists);
    driver->ops->close(driver);
    s3_fake_stop();
}
END_TEST

/* An allocation that fails is an error of the call, and the next call works. */
START_TEST(each_allocation_fails_once)
{
    char uri[160];
    s3_fake_start(answer_as_store);
    snprintf(uri, sizeof(uri), "s3://AKID:hidden@bucket?endpoint=http://127.0.0.1:%u",
             (unsigned)fake.port);
    for (uint64_t n = 1;; n++) {
        struct tierce__storage_driver *driver = NULL;
        const struct tierce__storage storage = {
            .number = 1, .name = "s", .type = TIERCE__STORAGE_S3, .is_enabled = true, .uri = uri};
        int status = 1;
        tierce__alloc_fail_nth(n);
        int rc = tierce__storage_s3.open(&driver, &storage, why);
        if (rc == 0)
            status = driver->ops->remove(driver, "/a/b");
        bool was_reached = tierce__alloc_fail_nth(0) >= n;
        if (rc == 0) {
            ck_assert_msg(driver->ops->remove(driver, "/a/b") == 0, "allocation %d", (int)n);
            driver->ops->close(driver);
        }
        if (!was_reached) {
            ck_assert_int_eq(status, 0);
            ck_assert_uint_gt(n, 5);
            break;
        }
    }
    s3_fake_stop();
}
END_TEST

CHECK_MAIN("storage s3", .seconds = 120, .begin = start_shared, .end = stop_shared,
           .tests = {a_real_server, a_mark, a_mark_that_a_rule_has_deleted, blocks_without_a_mark,
                     a_mark_that_cannot_be_known, an_object_without_bytes, paths_that_are_no_names,
                     many_files, a_server_that_is_killed, credentials_that_come_later,
                     each_step_of_a_probe, each_allocation_fails_once})
