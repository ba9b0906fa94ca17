/* SPDX-License-Identifier: Apache-2.0 */
/* The engine over memory and remote stores: two processes' engines share a folder, and the cost of
 * a store that fails or lies. */
#include "base/clock.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "mooncake_server.h"
#include "redis_server.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static struct fixture fx;
static char folder[64], url[512];

/* Opens an engine with the folder as its remote store; no disk. */
static void open_shared(const char *parameters)
{
    char cwd[256];
    if (folder[0] == '\0') {
        snprintf(folder, sizeof(folder), "test_engine_remote.XXXXXX");
        temp_folder_make(folder);
    }
    ck_assert_ptr_nonnull(getcwd(cwd, sizeof(cwd)));
    snprintf(url, sizeof(url), "file://%s/%s%s", cwd, folder, parameters);
    const char *sets[] = {"remote.urls", url, NULL};
    fx_open(&fx, false, sets);
}

static void close_and_remove(void)
{
    fx_close(&fx);
    fx_remove(&fx);
    temp_folder_remove(folder);
}

/* Loads all blocks into wiped memory; returns how many came, each of them checked. */
static int64_t load_all(const struct tierce_chain *chain, size_t blocks, uint8_t *origins)
{
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, blocks, fx_ids);
    int64_t loaded = tierce_load(fx.view, &what, origins);
    for (size_t b = 0; loaded >= 0 && b < blocks; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, chain, b, fx_ids[b]));
    return loaded;
}

static void store_all(const struct tierce_chain *chain, size_t blocks)
{
    ck_assert_int_eq(fx_store(&fx, chain, blocks, fx_ids, false), (int64_t)blocks);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
}

START_TEST(what_one_stored_another_loads)
{
    uint8_t origins[40];
    open_shared("");
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    store_all(chain, 40);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_eq(s.remotes_now, 1);
    ck_assert_int_eq(s.remotes_in_service_now, 1);
    ck_assert_int_eq(s.remote_stored_chunks, 10);
    ck_assert_int_eq(s.remote_queued_bytes_now, 0);
    fx_close(&fx);

    open_shared("?read_only=true");
    uint64_t memory;
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, &memory), 40);
    ck_assert_uint_eq(memory, 0);
    ck_assert_int_eq(load_all(chain, 40, origins), 40);
    for (size_t b = 0; b < 40; b++)
        ck_assert_uint_eq(origins[b], TIERCE_ORIGIN_REMOTE);
    ck_assert_int_eq(load_all(chain, 40, origins), 40);
    ck_assert_uint_eq(origins[0], TIERCE_ORIGIN_MEMORY); /* promoted */
    s = fx_stats(&fx);
    ck_assert_int_eq(s.promotions, 10);
    ck_assert_int_eq(s.chunks_loaded_remote, 10);
    ck_assert_int_eq(s.blocks_loaded_remote, 40);
    ck_assert_int_eq(s.remote_stored_chunks, 0);
    struct tierce_chain *other = fx_chain(&fx, 2, 40, 0);
    store_all(other, 40); /* in memory only */
    ck_assert_int_eq(fx_stats(&fx).remote_stored_chunks, 0);
    tierce_chain_destroy(other);
    tierce_chain_destroy(chain);
    close_and_remove();
}
END_TEST

/* Flips a bit of every file below a folder, behind the header. */
static void spoil(const char *path)
{
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char name[512];
        struct stat st;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        ck_assert_int_eq(stat(name, &st), 0);
        if (S_ISDIR(st.st_mode)) {
            spoil(name);
        } else if (st.st_size > 8192) {
            int fd = open(name, O_RDWR | O_CLOEXEC);
            uint8_t byte;
            ck_assert_int_eq(pread(fd, &byte, 1, 5000), 1);
            byte ^= 4;
            ck_assert_int_eq(pwrite(fd, &byte, 1, 5000), 1);
            close(fd);
        }
    }
    closedir(dir);
}

START_TEST(what_the_store_changed_is_never_loaded)
{
    uint8_t origins[40];
    open_shared("");
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    store_all(chain, 40);
    fx_close(&fx);
    spoil(folder);
    open_shared("");
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, NULL), 40);
    ck_assert_int_lt(load_all(chain, 40, origins), 40); /* what came is right: load_all looks */
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 10);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, NULL), 0); /* taken out there too */
    store_all(chain, 40);
    fx_close(&fx);
    open_shared("");
    ck_assert_int_eq(load_all(chain, 40, origins), 40);
    tierce_chain_destroy(chain);
    close_and_remove();
}
END_TEST

#define KEY "echo 1 0101010101010101010101010101010101010101010101010101010101010101"

/* Cuts every file below a folder: to nothing, to a part of the header, to the header, to a half, or
 * by a byte. */
static int cut_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    static unsigned count;
    (void)at;
    if (type != FTW_F || strstr(path, "/~") != NULL)
        return 0;
    const off_t bytes[] = {0, 100, 4096, st->st_size / 2, st->st_size - 1};
    return truncate(path, bytes[count++ % 5]);
}

static void cut_redis(const struct redis_server *server)
{
    char command[512];
    snprintf(command, sizeof(command),
             "test \"$(redis-cli -s %s EVAL \"for i, k in ipairs(redis.call('KEYS', '*')) do "
             "local v = redis.call('GET', k); "
             "local bytes = {0, 100, 4096, math.floor(#v / 2), #v - 1}; "
             "redis.call('SET', k, string.sub(v, 1, bytes[i %% 5 + 1])) end return 7\" 0)\" = 7",
             server->socket);
    ck_assert_int_eq(system(command), 0);
}

/* _i: bit 0: Redis, or else a folder; bit 1: encrypted. */
START_TEST(what_the_store_cut_is_stored_again)
{
    uint8_t origins[40];
    struct redis_server server;
    bool is_redis = (_i & 1) != 0, encrypts = (_i & 2) != 0;
    if (is_redis && !redis_is_there())
        return;
    const char *sets[] = {"remote.urls",
                          url,
                          encrypts ? "remote.encryption" : NULL,
                          "aes-256-gcm",
                          "encryption.key_command",
                          KEY,
                          NULL};
    snprintf(folder, sizeof(folder), "/tmp/test_engine_remote.XXXXXX");
    temp_folder_make(folder);
    snprintf(url, sizeof(url), "file://%s", folder);
    if (is_redis) {
        ck_assert(redis_start(&server, NULL));
        snprintf(url, sizeof(url), "redis://127.0.0.1:%u", (unsigned)server.port);
    }
    fx_open(&fx, false, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    store_all(chain, 40);
    fx_close(&fx);
    if (is_redis)
        cut_redis(&server);
    else
        ck_assert_int_eq(nftw(folder, cut_one, 8, FTW_PHYS), 0);
    fx_open(&fx, false, sets);
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, NULL), 40);
    ck_assert_int_eq(load_all(chain, 40, origins), 0);
    struct tierce_engine_stats s = fx_stats(&fx);
    ck_assert_int_ge(s.identity_failures + s.checksum_failures + s.remote_errors, 10);
    ck_assert_int_gt(s.identity_failures + s.checksum_failures, 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, NULL), 0);
    store_all(chain, 40);
    ck_assert_int_eq(fx_stats(&fx).remote_stored_chunks, 10);
    fx_close(&fx);
    fx_open(&fx, false, sets);
    ck_assert_int_eq(load_all(chain, 40, origins), 40);
    tierce_chain_destroy(chain);
    close_and_remove();
    if (is_redis)
        redis_stop(&server);
}
END_TEST

START_TEST(a_store_that_is_not_there_costs_a_miss)
{
    uint8_t origins[40];
    /* Nobody listens there. */
    const char *sets[] = {"remote.urls", "redis://127.0.0.1:1", "breaker.errors", "2", NULL};
    fx_open(&fx, false, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0), *other = fx_chain(&fx, 2, 4, 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, NULL), 0);
    ck_assert_int_eq(fx_store(&fx, chain, 40, fx_ids, false), 40);
    ck_assert_int_lt(tierce_engine_flush(fx.engine, 60000), 0); /* it could not be written */
    ck_assert_int_eq(load_all(chain, 40, origins), 40);
    ck_assert_uint_eq(origins[0], TIERCE_ORIGIN_MEMORY);
    /* One connection may have served all requests so far. Its failures count once until it tries to
     * connect again. */
    while (fx_stats(&fx).remotes_in_service_now == 1)
        ck_assert_uint_eq(fx_found(&fx, other, 4, 0, 0, NULL), 0);
    ck_assert_int_eq(fx_stats(&fx).breaker_trips, 1);
    tierce_chain_destroy(other);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static void open_redis(const struct redis_server *server, const char *user)
{
    snprintf(url, sizeof(url), "redis://%s127.0.0.1:%u", user, (unsigned)server->port);
    const char *sets[] = {"remote.urls", url, "breaker.errors", "2", "breaker.retry", "60s", NULL};
    fx_open(&fx, false, sets);
}

/* Its chunks are found and loaded, however many writes it rejects. */
START_TEST(a_store_that_may_only_be_read)
{
    uint8_t origins[40];
    struct redis_server server;
    ck_assert(
        redis_start(&server, (const char *const[]){"--user", "reader", "on", ">word", "~*", "-@all",
                                                   "+getrange", "+exists", "+ping", NULL}));
    open_redis(&server, "");
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    store_all(chain, 40);
    fx_close(&fx);
    open_redis(&server, "reader:word@");
    for (uint32_t i = 0; i < 4; i++) {
        struct tierce_chain *other = fx_chain(&fx, 2 + i, 4, 0);
        ck_assert_int_eq(fx_store(&fx, other, 4, fx_ids, false), 4);
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), -EACCES);
        ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, NULL), 40);
        tierce_chain_destroy(other);
    }
    ck_assert_int_eq(load_all(chain, 40, origins), 40);
    ck_assert_uint_eq(origins[0], TIERCE_ORIGIN_REMOTE);
    ck_assert_int_eq(fx_stats(&fx).remotes_in_service_now, 1);
    ck_assert_int_eq(fx_stats(&fx).breaker_trips, 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    redis_stop(&server);
}
END_TEST

/* Many lookups within the time between two attempts to connect are one failure of each connection:
 * five failures of two connections take two such times, of 100 ms each. */
START_TEST(a_failed_connection_counts_once)
{
    const char *sets[] = {"remote.urls",
                          "redis://127.0.0.1:1?connections=2",
                          "breaker.errors",
                          "5",
                          "breaker.retry",
                          "60s",
                          NULL};
    fx_open(&fx, false, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0);
    uint64_t begun_ns = tierce__now_ns();
    while (fx_stats(&fx).remotes_in_service_now == 1)
        ck_assert_uint_eq(fx_found(&fx, chain, 4, 0, 0, NULL), 0);
    ck_assert_uint_ge(tierce__now_ns() - begun_ns, 200 * TIERCE__MS_NS);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* A store that was down from the beginning: its return is detected without any request.
 */
START_TEST(a_store_comes_back_without_being_asked)
{
    struct redis_server server;
    ck_assert(redis_start(&server, NULL));
    redis_kill(&server);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", (unsigned)server.port);
    const char *sets[] = {"remote.urls", url, "breaker.errors", "1", "breaker.retry", "20ms", NULL};
    fx_open(&fx, false, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 4, fx_ids, false), 4);
    ck_assert_int_lt(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_eq(fx_stats(&fx).remotes_in_service_now, 0);
    ck_assert(redis_run(&server, false, NULL));
    uint64_t deadline_ns = tierce__deadline_in_ms(20000);
    while (fx_stats(&fx).remotes_in_service_now == 0 && tierce__now_ns() < deadline_ns)
        usleep(5000);
    ck_assert_int_eq(fx_stats(&fx).remotes_in_service_now, 1);
    ck_assert_int_eq(fx_stats(&fx).breaker_recoveries, 1);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    redis_stop(&server);
}
END_TEST

START_TEST(a_clear_reaches_the_store_if_it_is_named)
{
    open_shared("");
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    store_all(chain, 40);
    ck_assert_int_eq(tierce_engine_clear(fx.engine, 0, NULL), 10); /* memory: others share it */
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, NULL), 40);
    ck_assert_int_eq(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_REMOTE, NULL), 10);
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, NULL), 0);
    tierce_chain_destroy(chain);
    close_and_remove();
}
END_TEST

/* Mooncake's client works on the engine's memory from a process of its own. */
START_TEST(another_process_works_on_the_memory)
{
    struct mooncake_server server;
    uint8_t origins[40];
    char address[300];
    const char *sets[] = {"remote.urls", address, NULL};
    ck_assert(mooncake_start(&server));
    snprintf(address, sizeof(address), "  mooncake://127.0.0.1:%u?python=%s ",
             (unsigned)server.port, mooncake_python());
    fx_open(&fx, false, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    store_all(chain, 40);
    fx_close(&fx);
    fx_open(&fx, false, sets);
    while (fx_found(&fx, chain, 40, 0, 0, NULL) < 40) /* its process is starting */
        server_pause_ms(10);
    ck_assert_int_eq(load_all(chain, 40, origins), 40);
    for (size_t b = 0; b < 40; b++)
        ck_assert_uint_eq(origins[b], TIERCE_ORIGIN_REMOTE);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    mooncake_stop(&server);
}
END_TEST

START_TEST(a_wrong_url_is_told)
{
    static const struct {
        const char *urls, *says;
    } cases[] = {
        {"gopher://x", "redis"},
        {"127.0.0.1:6379", "redis"},
        {"file:///tmp/x?read_only=perhaps", "read_only is 'perhaps'; accepted are true and false"},
        {"redis://u:geheim@127.0.0.1:1/?conections=3", "connections"},
        {"redis://127.0.0.1:1/?ttl=1h&codex=lossless", "unknown parameter \"codex\" (\"codec\"?)"},
        {"file:///tmp/x?readonly=true", "unknown parameter \"readonly\" (\"read_only\"?)"},
        {"file:///tmp/x?codec=none&codec=lossless", "parameter \"codec\" is given twice"},
        {"redis://127.0.0.1:1/?encryption=aes-256-gcm", "is set by remote.encryption, for all"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tierce_config *config;
        struct tierce_engine *engine;
        char why[TIERCE_CONFIG_ERROR_BYTES] = "";
        ck_assert_int_eq(tierce_config_create(&config), 0);
        ck_assert_int_eq(tierce_config_set(config, "remote.urls", cases[i].urls, why), 0);
        ck_assert_int_eq(tierce_config_set(config, "control.socket", "", why), 0);
        ck_assert_int_eq(tierce_engine_open(&engine, config, why), TIERCE_E_CONFIG);
        ck_assert_msg(strstr(why, "remote.urls") != NULL && strstr(why, cases[i].says) != NULL &&
                          strstr(why, "geheim") == NULL,
                      "%s", why);
        tierce_config_destroy(config);
    }
}
END_TEST

CHECK_MAIN("engine remote", .seconds = 60,
           .tests = {what_one_stored_another_loads, what_the_store_changed_is_never_loaded,
                     a_store_that_is_not_there_costs_a_miss, a_store_that_may_only_be_read,
                     a_failed_connection_counts_once, a_store_comes_back_without_being_asked,
                     a_clear_reaches_the_store_if_it_is_named,
                     mooncake_is_there() ? another_process_works_on_the_memory : NULL,
                     a_wrong_url_is_told},
           .loops = {{what_the_store_cut_is_stored_again, 0, 4}})
