/* SPDX-License-Identifier: Apache-2.0 */
/* An engine whose disk or remote store has a codec: chunks come back, damage is a miss, the choice
 * can change. */
#define FX_CHUNK_BLOCKS 16u /* long enough to become shorter */
#define FX_KV_DTYPE     "bfloat16"
#include "base/alloc.h"
#include "base/mix.h"
#include "check_main.h"
#include "engine/load/fetch.h"
#include "engine/observe/chunk_orders_private.h"
#include "engine/observe/directory_commands.h"
#include "engine/observe/engine_metrics.h"
#include "engine_fixture.h"
#include "log_record.h"
#include "plugin_file.h"
#include "silent_log.h"
#include "store/coded/coded_connector.h"
#include "wait_for.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <sys/wait.h>

static struct fixture fx;
static int32_t ids[FX_BLOCKS];
static const char *const raw[] = {"disk.codec", "none", NULL};
static const char *const coded[] = {"disk.codec", "lossless", NULL};

/* Not in order, and each once. */
static void name_blocks(void)
{
    for (int32_t i = 0; i < (int32_t)FX_BLOCKS; i++)
        ids[i] = (i * 45 + 7) % (int32_t)FX_BLOCKS;
}

static int64_t load_all(const struct tierce_chain *chain, size_t blocks)
{
    uint8_t origins[FX_BLOCKS];
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, blocks, ids);
    int64_t loaded = tierce_load(fx.view, &what, origins);
    for (size_t b = 0; loaded >= 0 && b < blocks; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED ||
                  (origins[b] == TIERCE_ORIGIN_DISK && fx_right(&fx, chain, b, ids[b])));
    return loaded;
}

static struct tierce__coded_stats codec_stats(void)
{
    struct tierce__coded_stats stats;
    tierce__coded_tier_stats(fx.engine->levels[1].coded, &stats);
    return stats;
}

static void restart(const char *const *sets)
{
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
    fx_open(&fx, true, sets);
}

START_TEST(chunks_come_back_whatever_the_codec_is_now)
{
    fx_open(&fx, true, coded);
    struct tierce_chain *chain = fx_chain(&fx, 1, 70, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 70, ids, true), 70);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce__coded_stats stats = codec_stats();
    ck_assert_uint_ge(stats.encoded_chunks, 4); /* the tail may be too short */
    ck_assert_uint_lt(stats.encoded_bytes, stats.encoded_raw_bytes);
    size_t bytes;
    char *page = tierce__engine_metrics(fx.engine, &bytes);
    ck_assert_ptr_nonnull(strstr(page, "tierce_codec_encoded_chunks_total"));
    ck_assert_ptr_nonnull(
        strstr(page, "tierce_codec_raw_chunks_total{tier=\"disk\",reason=\"longer\"}"));
    tierce__free(page);
    restart(raw);
    ck_assert_uint_eq(fx_found(&fx, chain, 70, 0, 0, NULL), 70);
    ck_assert_int_eq(load_all(chain, 70), 70);
    stats = codec_stats();
    ck_assert_uint_gt(stats.decoded_raw_bytes, stats.decoded_bytes);
    /* New chunks are raw now, behind coded ones of the same prompt. */
    struct tierce_chain *longer = fx_chain(&fx, 1, 128, 0);
    ck_assert_int_eq(fx_store(&fx, longer, 128, ids, false), 64);
    ck_assert_uint_eq(codec_stats().encoded_chunks, 0);
    restart(coded);
    ck_assert_int_eq(load_all(longer, 128), 128);
    tierce_chain_destroy(longer);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Gives the order to all chunks, or to the named ones. Returns how many were recoded. */
static uint64_t recode(const struct tierce__chunk_number *numbers, size_t count, bool codes,
                       const char *message)
{
    static const _Atomic bool stops = false;
    struct tierce__chunk_orders orders;
    struct tierce__chunk_order_outcome out = {0};
    const struct tierce__chunk_numbers chunks = {numbers, count};
    tierce__chunk_orders_init(&orders, fx.engine, &stops);
    tierce__chunk_orders_recode(&orders, &chunks, codes, tierce__deadline_in_ms(50000), &out);
    tierce__chunk_orders_fini(&orders);
    ck_assert_msg(strstr(out.message, message) != NULL, "%s", out.message);
    return out.chunks;
}

/* By an operator's command, without a codec in the configuration. */
START_TEST(chunks_are_compressed_by_order)
{
    enum { WHOLE = 6, BLOCKS = WHOLE * 16 };
    struct tierce__chunk_number numbers[2];
    fx_open(&fx, true, raw);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, ids, false), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(recode(NULL, 0, true, "6 chunks: "), WHOLE);
    ck_assert_uint_eq(recode(NULL, 0, true, "6 were compressed already"), 0);
    restart(raw);
    ck_assert_int_eq(load_all(chain, BLOCKS), BLOCKS);
    ck_assert_uint_gt(codec_stats().decoded_bytes, 0);
    restart(raw);
    for (size_t i = 0; i < 2; i++)
        numbers[i] = tierce__chunk_number(fx.inner->ns_digest, &fx.inner->key.shard,
                                          tierce_chain_hash(chain, i * 16 + 15));
    ck_assert_uint_eq(recode(numbers, 2, false, "2 chunks: "), 2);
    numbers[1].low++;
    ck_assert_uint_eq(recode(numbers, 2, true, "1 are not on disk"), 1);
    restart(raw);
    ck_assert_int_eq(load_all(chain, BLOCKS), BLOCKS);
    ck_assert_uint_eq(recode(NULL, 0, false, "1 were uncompressed already"), WHOLE - 1);
    restart(raw);
    ck_assert_int_eq(load_all(chain, BLOCKS), BLOCKS);
    ck_assert_uint_eq(codec_stats().decoded_bytes, 0);
    ck_assert_int_eq(tierce_engine_set_mode(fx.engine, TIERCE_MODE_FREEZE), 0);
    ck_assert_uint_eq(recode(NULL, 0, true, "the engine is in mode freeze"), 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static _Atomic uint64_t ended_ns;

static void on_end(void *arg)
{
    (void)arg;
    atomic_store(&ended_ns, tierce__now_ns());
}

static uint64_t on_disk(void)
{
    struct tierce__tier *disk = fx.engine->levels[1].tier;
    struct tierce__tier_stats stats;
    disk->ops->stats(disk, &stats);
    return stats.chunks;
}

/* Gives a command to compress all chunks, and checks the message of its result. Returns whether
 * that came before the manager would have given it up. */
static bool compress_for(struct tierce__directory_commands *commands, int64_t number,
                         int64_t timeout_ms, const char *message)
{
    Meta__WorkerCommand command = META__WORKER_COMMAND__INIT, *list[] = {&command};
    Meta__ReportChunksResponse reply = META__REPORT_CHUNKS_RESPONSE__INIT;
    Meta__ReportChunksRequest request = META__REPORT_CHUNKS_REQUEST__INIT;
    command.command = number;
    command.session = 1;
    command.action = META__WORKER_ACTION__WA_COMPRESS;
    command.timeout_ms = timeout_ms;
    reply.commands = list;
    reply.n_commands = 1;
    atomic_store(&ended_ns, 0);
    uint64_t deadline_ns = tierce__deadline_in_ms((uint32_t)timeout_ms);
    tierce__directory_commands_take(commands, &reply);
    WAIT_FOR(atomic_load(&ended_ns) != 0);
    tierce__directory_commands_put(commands, &request);
    ck_assert_uint_eq(request.n_results, 1);
    ck_assert_msg(strstr(request.results[0]->message, message) != NULL, "%s",
                  request.results[0]->message);
    tierce__directory_commands_sent(commands);
    return atomic_load(&ended_ns) < deadline_ns;
}

/* All chunks are in use, because none is durable yet: the command has no time for the last one. On
 * a busy machine the first results come late. */
START_TEST(the_result_of_a_long_command_comes_in_time)
{
    enum { CHUNKS = 8, BLOCKS = CHUNKS * 16 };
    static const char *const sets[] = {"disk.codec", "none", "disk.flush_interval", "1h", NULL};
    struct tierce__directory_commands *commands;
    int64_t number = 1, timeout_ms = 1000;
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, ids, false), BLOCKS);
    WAIT_FOR(on_disk() == CHUNKS);
    const struct tierce__directory_commands_opts opts = {
        .size = sizeof(opts), .engine = fx.engine, .ended = on_end};
    ck_assert_int_eq(tierce__directory_commands_create(&commands, &opts), 0);
    tierce__directory_commands_join(commands, 1);
    for (; !compress_for(commands, number++, timeout_ms,
                         "they were in use (repeat the command); timed out with chunks left");
         timeout_ms *= 2)
        ck_assert_int_lt(timeout_ms, 8000);
    tierce__directory_commands_stop(commands);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static Meta__CommandResult *result_of(const Meta__ReportChunksRequest *request, int64_t number)
{
    for (size_t i = 0; i < request->n_results; i++)
        if (request->results[i]->command == number)
            return request->results[i];
    return NULL;
}

/* All chunks are in use, so the first command ends at its deadline. The third one may take long, so
 * the fourth one waits. */
START_TEST(short_commands_do_not_wait_for_a_compression)
{
    enum { CHUNKS = 8, BLOCKS = CHUNKS * 16, COMMANDS = 4 };
    static const Meta__WorkerAction actions[COMMANDS] = {
        META__WORKER_ACTION__WA_COMPRESS, META__WORKER_ACTION__WA_HEALTH,
        META__WORKER_ACTION__WA_DROP, META__WORKER_ACTION__WA_UNPIN};
    static const char *const sets[] = {"disk.codec", "none", "disk.flush_interval", "1h", NULL};
    Meta__WorkerCommand all[COMMANDS], *list[COMMANDS];
    Meta__ReportChunksResponse reply = META__REPORT_CHUNKS_RESPONSE__INIT;
    Meta__ReportChunksRequest request = META__REPORT_CHUNKS_REQUEST__INIT;
    struct tierce__directory_commands *commands;
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, ids, false), BLOCKS);
    WAIT_FOR(on_disk() == CHUNKS);
    const struct tierce__directory_commands_opts opts = {
        .size = sizeof(opts), .engine = fx.engine, .ended = on_end};
    ck_assert_int_eq(tierce__directory_commands_create(&commands, &opts), 0);
    tierce__directory_commands_join(commands, 1);
    for (int64_t i = 0; i < COMMANDS; i++) {
        meta__worker_command__init(list[i] = &all[i]);
        all[i].command = i + 1;
        all[i].session = 1;
        all[i].action = actions[i];
        all[i].timeout_ms = 600000;
    }
    reply.commands = list;
    reply.n_commands = COMMANDS;
    tierce__directory_commands_take(commands, &reply);
    WAIT_FOR(tierce__directory_commands_has_results(commands));
    tierce__directory_commands_put(commands, &request);
    ck_assert_uint_eq(request.n_results, 1);
    ck_assert(result_of(&request, 2) != NULL && result_of(&request, 2)->is_done);
    tierce__directory_commands_sent(commands);
    tierce__directory_commands_stop(commands);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Also between two writes of a chunk that is read. */
START_TEST(the_speed_has_a_bound)
{
    ck_assert_uint_eq(tierce__chunk_recode_ns(0), 0);
    ck_assert_uint_eq(tierce__chunk_recode_ns(256 << 20), 1000 * TIERCE__MS_NS);
}
END_TEST

/* Inverts the bytes of a file with chunks, but no headers, which have sums of their own. */
static int invert(const char *path, const struct stat *st, int kind, struct FTW *place)
{
    uint8_t page[4096];
    bool is_journal = strncmp(path + place->base, "journal", 7) == 0;
    if (kind != FTW_F || st->st_size < (off_t)sizeof(page) || is_journal)
        return 0;
    int fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    for (off_t at = 0; pread(fd, page, sizeof(page), at) == (ssize_t)sizeof(page);
         at += (off_t)sizeof(page)) {
        if (memcmp(page, "TIERCECK", 8) == 0)
            continue;
        for (size_t i = 0; i < sizeof(page); i++)
            page[i] = (uint8_t)~page[i];
        ck_assert_int_eq(pwrite(fd, page, sizeof(page), at), sizeof(page));
    }
    close(fd);
    return 0;
}

/* A load that waits for the same read as that of the test. */
static struct tierce__fetch_waiter other_load;

void __real_tierce__storage_quarantine(struct tierce_engine *engine, size_t level,
                                       const struct tierce__key *key, int why);
void __wrap_tierce__storage_quarantine(struct tierce_engine *engine, size_t level,
                                       const struct tierce__key *key, int why);

/* A load that knew already could store the chunk, and this would delete it. */
void __wrap_tierce__storage_quarantine(struct tierce_engine *engine, size_t level,
                                       const struct tierce__key *key, int why)
{
    if (other_load.fetch != NULL)
        ck_assert(tierce__fetch_lives(&other_load));
    __real_tierce__storage_quarantine(engine, level, key, why);
}

static void join_read(const struct tierce_chain *chain)
{
    struct tierce__keys keys;
    struct tierce__buf *leased;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.view, chain, 16, 16, false), 0);
    struct tierce__storage_chunk record = {
        .key = keys.keys[0], .object_bytes = fx.view->full.extent.object_bytes, .block_count = 16};
    tierce__keys_fini(&keys);
    other_load = (struct tierce__fetch_waiter){.deadline_ns = TIERCE__DEADLINE_NEVER};
    ck_assert(tierce__fetch_join(fx.engine, &other_load, 1, &record, &fx.view->full, &leased));
}

/* It is a miss, has left when the load returns, and can be stored again. */
START_TEST(a_damaged_chunk_is_replaced_by_the_next_store)
{
    static const char *const codecs[] = {"none", "lossless"};
    char folder[] = "/tmp/tierce-damage-XXXXXX", url[64];
    bool is_remote = _i >= 2;
    temp_folder_make(folder);
    snprintf(url, sizeof(url), "file://%s", folder);
    const char *const on_disk[] = {"disk.codec", codecs[_i % 2], NULL};
    const char *const in_remote[] = {"remote.urls", url, "remote.codec", codecs[_i % 2], NULL};
    const char *const *sets = is_remote ? in_remote : on_disk;
    silence_log();
    fx_open(&fx, !is_remote, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 16, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, ids, false), 16);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
    ck_assert_int_eq(nftw(is_remote ? folder : fx.folder, invert, 8, FTW_PHYS), 0);
    fx_open(&fx, !is_remote, sets);
    ck_assert_uint_eq(fx_found(&fx, chain, 16, 0, 0, NULL), 16);
    join_read(chain);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 16, ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), 0);
    tierce__fetch_leave(&other_load);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures + fx_stats(&fx).identity_failures, 1);
    ck_assert_uint_eq(fx_found(&fx, chain, 16, 0, 0, NULL), 0);
    ck_assert_int_eq(fx_store(&fx, chain, 16, ids, false), 16);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
    fx_open(&fx, !is_remote, sets);
    fx_wipe(&fx);
    ck_assert_int_eq(tierce_load(fx.view, &what, NULL), 16);
    for (size_t b = 0; b < 16; b++)
        ck_assert(fx_right(&fx, chain, b, ids[b]));
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    temp_folder_remove(folder);
}
END_TEST

/* An engine without a disk, with a folder as its remote store. */
static void open_remote(const char *folder, const char *codec)
{
    char url[200];
    snprintf(url, sizeof(url), "file://%s%s", folder, codec);
    const char *const sets[] = {"remote.urls", url, "remote.codec", "lossless", NULL};
    fx_open(&fx, false, sets);
}

static int64_t load_remote(const struct tierce_chain *chain, size_t blocks)
{
    uint8_t origins[FX_BLOCKS];
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, blocks, ids);
    int64_t loaded = tierce_load(fx.view, &what, origins);
    for (size_t b = 0; loaded >= 0 && b < blocks; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED ||
                  (origins[b] == TIERCE_ORIGIN_REMOTE && fx_right(&fx, chain, b, ids[b])));
    return loaded;
}

/* Stores chunks with the codec of a plug-in, in a process of its own: this one has not loaded it.
 */
static void store_by_plugin(const char *const *sets)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        fx_open(&fx, false, sets);
        struct tierce_chain *chain = fx_chain(&fx, 1, 64, 0);
        bool ok =
            fx_store(&fx, chain, 64, ids, true) == 64 && tierce_engine_flush(fx.engine, 60000) == 0;
        struct tierce__coded_stats stats;
        tierce__coded_connector_stats(fx.engine->levels[1].connector, &stats);
        ok = ok && stats.encoded_chunks == 4 && stats.encoded_bytes < stats.encoded_raw_bytes;
        tierce_chain_destroy(chain);
        fx_close(&fx);
        _exit(ok ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}

/* An engine without the codec reports misses, never other bytes, and changes nothing. */
START_TEST(chunks_of_a_plugins_codec)
{
    char folder[] = "/tmp/tierce-remote-codec-XXXXXX", url[64], codec[128];
    struct plugin_file file;
    temp_folder_make(folder);
    plugin_file_make(&file, TIERCE_PLUGIN_CODEC);
    snprintf(url, sizeof(url), "file://%s", folder);
    snprintf(codec, sizeof(codec), "plugin://%s", file.path);
    const char *const plugged[] = {"remote.urls", url, "remote.codec", codec, NULL};
    const char *const without[] = {"remote.urls", url, NULL};
    store_by_plugin(plugged);
    record_log(TIERCE_LOG_WARN);
    fx_open(&fx, false, without);
    struct tierce_chain *chain = fx_chain(&fx, 1, 64, 0);
    fx_wipe(&fx);
    uint8_t origins[FX_BLOCKS];
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 64, ids);
    ck_assert_int_le(tierce_load(fx.view, &what, origins), 0);
    ck_assert_uint_eq(recorded_with("codec_plugin_missing", "codec=\"planes_zstd\""), 1);
    fx_close(&fx);
    fx_open(&fx, false, plugged);
    plugin_file_remove(&file);
    fx_wipe(&fx);
    what = fx_what(&fx, chain, 0, 64, ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), 64);
    for (size_t b = 0; b < 64; b++)
        ck_assert(fx_right(&fx, chain, b, ids[b]));
    tierce_chain_destroy(chain);
    fx_close(&fx);
    silence_log();
    fx_remove(&fx);
    temp_folder_remove(folder);
}
END_TEST

/* It passes the trial, and then drops half of each run: the sums of the cells tell. */
START_TEST(a_plugins_codec_that_restores_other_bytes)
{
    char codec[128];
    struct plugin_file file;
    plugin_file_make(&file, TIERCE_WRONG_PLUGINS "/libwrong_codec_10.so");
    snprintf(codec, sizeof(codec), "plugin://%s", file.path);
    const char *const plugged[] = {"disk.codec", codec, NULL};
    silence_log();
    fx_open(&fx, true, plugged);
    plugin_file_remove(&file);
    struct tierce_chain *chain = fx_chain(&fx, 1, 64, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 64, ids, true), 64);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(codec_stats().encoded_chunks, 4);
    restart(plugged);
    ck_assert_int_eq(load_all(chain, 64), 32); /* each of them right */
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* The codec in the URL of a store counts more than remote.codec. */
START_TEST(a_remote_store_has_coded_and_raw_chunks)
{
    char folder[] = "/tmp/tierce-remote-codec-XXXXXX";
    struct tierce__coded_stats stats;
    temp_folder_make(folder);
    open_remote(folder, "");
    struct tierce_chain *chain = fx_chain(&fx, 1, 64, 0), *longer = fx_chain(&fx, 1, 128, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 64, ids, true), 64);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    tierce__coded_connector_stats(fx.engine->levels[1].connector, &stats);
    ck_assert_uint_eq(stats.encoded_chunks, 4);
    ck_assert_uint_lt(stats.encoded_bytes, stats.encoded_raw_bytes);
    fx_close(&fx);
    /* A reader without a codec, which adds raw chunks behind the coded ones. */
    open_remote(folder, "?codec=none");
    ck_assert_uint_eq(fx_found(&fx, chain, 64, 0, 0, NULL), 64);
    ck_assert_int_eq(load_remote(chain, 64), 64);
    ck_assert_int_eq(fx_store(&fx, longer, 128, ids, false), 64);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    tierce__coded_connector_stats(fx.engine->levels[1].connector, &stats);
    ck_assert_uint_eq(stats.encoded_chunks, 0);
    ck_assert_uint_gt(stats.decoded_raw_bytes, stats.decoded_bytes);
    fx_close(&fx);
    open_remote(folder, "?codec=lossless");
    ck_assert_uint_eq(fx_found(&fx, longer, 128, 0, 0, NULL), 128);
    ck_assert_int_eq(load_remote(longer, 128), 128);
    size_t bytes;
    char *page = tierce__engine_metrics(fx.engine, &bytes);
    ck_assert_ptr_nonnull(strstr(page, "tierce_codec_decoded_bytes_total{tier=\"file\"}"));
    tierce__free(page);
    tierce_chain_destroy(longer);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    temp_folder_remove(folder);
}
END_TEST

/* A store that reads objects whole, with a length that must be known. */
#define WHOLE_OBJECTS TIERCE_WRONG_PLUGINS "/libwrong_plugin_10.so"

START_TEST(a_codec_that_is_not_possible_is_an_error)
{
    static const char *const cases[][2] = {
        {"plugin://" WHOLE_OBJECTS "?codec=lossless", "objects are read whole"},
        {"redis://127.0.0.1:1?layout=lmcache&model=m", "unknown parameter \"layout\""},
        {"redis://127.0.0.1:1?codec=zstd", "codec is 'zstd'; accepted are none and lossless"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tierce_config *config;
        struct tierce_engine *engine;
        char why[TIERCE_CONFIG_ERROR_BYTES];
        ck_assert_int_eq(tierce_config_create(&config), 0);
        ck_assert_int_eq(tierce_config_set(config, "memory.size", "16MiB", why), 0);
        ck_assert_int_eq(tierce_config_set(config, "remote.urls", cases[i][0], why), 0);
        ck_assert_int_eq(tierce_engine_open(&engine, config, why), TIERCE_E_CONFIG);
        ck_assert_msg(strstr(why, cases[i][1]) != NULL, "%s", why);
        tierce_config_destroy(config);
    }
}
END_TEST

#define EIGHT_ONES "01010101"
#define KEY_1                                                                                      \
    "echo 1 " EIGHT_ONES EIGHT_ONES EIGHT_ONES EIGHT_ONES EIGHT_ONES EIGHT_ONES EIGHT_ONES         \
        EIGHT_ONES

/* Without its key a chunk is a miss, and is there again with it. */
START_TEST(an_encrypted_disk_requires_its_key)
{
    static const char *const encrypted[] = {
        "disk.codec", "lossless", "disk.encryption", "aes-256-gcm", "encryption.key_command",
        KEY_1,        NULL};
    static const char *const wrong[] = {"encryption.key_command", KEY_1 " | tr 1 2 | sed s/2/1/",
                                        NULL};
    fx_open(&fx, true, encrypted);
    struct tierce_chain *chain = fx_chain(&fx, 1, 64, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 64, ids, true), 64);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(codec_stats().encrypted_chunks, 4);
    ck_assert_uint_eq(recode(NULL, 0, false, "the disk encrypts"), 0);
    restart(wrong);
    record_log(TIERCE_LOG_ERROR);
    ck_assert_int_eq(load_all(chain, 64), 0);
    ck_assert_uint_gt(codec_stats().locked_reads, 0);
    ck_assert_uint_gt(recorded_with("encryption_key_wrong", "remedy=\"put the right key"), 0);
    ck_assert_uint_eq(recorded("chunk_out_of_service"), 0);
    silence_log();
    restart(raw);
    ck_assert_int_eq(load_all(chain, 64), 0);
    restart(encrypted);
    ck_assert_int_eq(load_all(chain, 64), 64);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* The key is missing (_i: 0), or another one has its number. Lookups promise no chunk that no load
 * can have, and a store replaces them all. */
START_TEST(chunks_without_their_key_are_stored_again)
{
    static const char *const encrypted[] = {"disk.encryption", "aes-256-gcm",
                                            "encryption.key_command", KEY_1, NULL};
    const char *const other[] = {"disk.encryption", "aes-256-gcm", "encryption.key_command",
                                 _i == 0 ? KEY_1 " | sed s/^1/2/" : KEY_1 " | tr 1 2 | sed s/2/1/",
                                 NULL};
    fx_open(&fx, true, encrypted);
    struct tierce_chain *chain = fx_chain(&fx, 1, 64, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 64, ids, true), 64);
    restart(other);
    ck_assert_uint_eq(fx_found(&fx, chain, 64, 0, 0, NULL), 64);
    ck_assert_int_eq(load_all(chain, 64), 0);
    WAIT_FOR(fx_found(&fx, chain, 64, 0, 0, NULL) == 0);
    ck_assert_int_ge(fx_stats(&fx).misses_no_key, 1);
    ck_assert_int_eq(fx_stats(&fx).misses_version + fx_stats(&fx).identity_failures, 0);
    struct tierce__coded_stats stats = codec_stats();
    ck_assert_uint_eq(stats.wrong_key_reads, _i == 0 ? 0 : stats.locked_reads);
    ck_assert_int_ge(fx_store(&fx, chain, 64, ids, true), 1);
    restart(other);
    ck_assert_uint_eq(fx_found(&fx, chain, 64, 0, 0, NULL), 64);
    ck_assert_int_eq(load_all(chain, 64), 64);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static void open_locked(const char *folder, const char *command)
{
    char url[200];
    snprintf(url, sizeof(url), "file://%s", folder);
    const char *const sets[] = {
        "remote.urls", url, "remote.encryption", "aes-256-gcm", "encryption.key_command",
        command,       NULL};
    fx_open(&fx, false, sets);
}

/* The same in a remote store, which a third engine with both keys then reads. */
START_TEST(remote_chunks_without_their_key_are_stored_again)
{
    char folder[] = "/tmp/tierce-remote-key-XXXXXX";
    struct tierce__coded_stats stats;
    temp_folder_make(folder);
    open_locked(folder, KEY_1);
    struct tierce_chain *chain = fx_chain(&fx, 1, 64, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 64, ids, true), 64);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
    open_locked(folder, KEY_1 " | sed s/^1/2/");
    ck_assert_uint_eq(fx_found(&fx, chain, 64, 0, 0, NULL), 64);
    ck_assert_int_eq(load_remote(chain, 64), 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 64, 0, 0, NULL), 0);
    ck_assert_int_ge(fx_store(&fx, chain, 64, ids, true), 1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    tierce__coded_connector_stats(fx.engine->levels[1].connector, &stats);
    ck_assert_uint_eq(stats.encrypted_chunks, 4);
    fx_close(&fx);
    open_locked(folder, "(" KEY_1 "; " KEY_1 " | sed s/^1/2/)");
    ck_assert_int_eq(load_remote(chain, 64), 64);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    temp_folder_remove(folder);
}
END_TEST

/* The key is for another namespace than that of the chunks. */
START_TEST(an_order_without_a_key_says_so)
{
    static const char *const encrypted[] = {"disk.encryption", "aes-256-gcm",
                                            "encryption.key_command", KEY_1 " 00000000", NULL};
    fx_open(&fx, true, raw);
    struct tierce_chain *chain = fx_chain(&fx, 1, 32, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 32, ids, false), 32);
    restart(encrypted);
    ck_assert_uint_eq(recode(NULL, 0, true, "2 stay as they are: there is no key"), 0);
    ck_assert_int_eq(load_all(chain, 32), 32);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Noise, so that no codec makes it shorter. */
static void store_noise(struct tierce_chain *chain)
{
    uint64_t seed = 5;
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        uint8_t *at = fx.layers[l].base;
        for (size_t i = 0; i < (size_t)32 * 1024; i++)
            at[i] = (uint8_t)tierce__random_next(&seed);
    }
    int32_t first[32];
    for (int32_t i = 0; i < 32; i++)
        first[i] = i;
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 32, first);
    ck_assert_int_eq(tierce_store(fx.view, &what), 32);
}

/* The disk had encryption and no codec when the chunks were stored. */
START_TEST(encrypted_chunks_are_compressed_by_order)
{
    static const char *const encrypted[] = {"disk.encryption", "aes-256-gcm",
                                            "encryption.key_command", KEY_1, NULL};
    fx_open(&fx, true, encrypted);
    struct tierce_chain *chain = fx_chain(&fx, 1, 64, 0), *noise = fx_chain(&fx, 2, 32, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 64, ids, false), 64);
    store_noise(noise);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(codec_stats().encrypted_chunks, 6);
    ck_assert_uint_eq(recode(NULL, 0, true, "; 2 stay uncompressed: they would not become shorter"),
                      4);
    ck_assert_uint_eq(recode(NULL, 0, true, "; 4 were compressed already; 2 stay uncompressed"), 0);
    restart(raw);
    ck_assert_int_eq(load_all(chain, 64), 0); /* they are encrypted still */
    restart(raw);
    ck_assert_uint_eq(recode(NULL, 0, true,
                             "; 4 were compressed already; 2 stay as they are: they could not be "
                             "read: their key is missing"),
                      0);
    restart(raw); /* the chunks that the order could not read are hidden */
    ck_assert_uint_eq(recode(NULL, 0, false, "; 6 stay as they are: they could not be read"), 0);
    static const char *const another[] = {"disk.encryption", "aes-256-gcm",
                                          "encryption.key_command", KEY_1 " | tr 1 2 | sed s/2/1/",
                                          NULL};
    restart(another);
    ck_assert_uint_eq(recode(NULL, 0, true,
                             "; 4 were compressed already; 2 stay as they are: they could not be "
                             "read: their key is missing or another one"),
                      0);
    restart(encrypted);
    ck_assert_int_eq(load_all(chain, 64), 64);
    ck_assert_uint_gt(codec_stats().decoded_raw_bytes, codec_stats().decoded_bytes);
    tierce_chain_destroy(noise);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

static void write_key_file(const char *path, const char *digits, time_t modified)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    const struct timespec times[2] = {{.tv_sec = modified}, {.tv_sec = modified}};
    ck_assert_int_ge(fd, 0);
    dprintf(fd, "%c %s%s%s%s\n", digits[0], digits + 1, digits + 1, digits + 1, digits + 1);
    ck_assert_int_eq(futimens(fd, times), 0);
    close(fd);
}

/* Keys are rotated, and an engine gets the new one after it has met chunks that require it. */
START_TEST(a_key_that_comes_later_needs_no_restart)
{
    char folder[] = "/tmp/tierce-late-key-XXXXXX", old[64], both[64];
    temp_folder_make(folder);
    snprintf(old, sizeof(old), "%s/old", folder);
    snprintf(both, sizeof(both), "%s/both", folder);
    write_key_file(old, "10101010101010101", 1000);
    write_key_file(both, "10101010101010101", 1000);
    write_key_file(both, "20202020202020202", 1000);
    const char *const writer[] = {"disk.encryption", "aes-256-gcm", "encryption.key_file", both,
                                  NULL};
    const char *const reader[] = {"encryption.key_file", old, NULL};
    fx_open(&fx, true, writer);
    struct tierce_chain *chain = fx_chain(&fx, 1, 64, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 64, ids, true), 64);
    restart(reader);
    ck_assert_int_eq(load_all(chain, 64), 0);
    ck_assert_uint_gt(codec_stats().locked_reads, 0);
    ck_assert_uint_eq(fx_stats(&fx).identity_failures, 0);
    write_key_file(old, "20202020202020202", 1001);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 64, ids);
    WAIT_FOR(tierce_load(fx.view, &what, NULL) == 64);
    for (size_t b = 0; b < 64; b++)
        ck_assert(fx_right(&fx, chain, b, ids[b]));
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    temp_folder_remove(folder);
}
END_TEST

START_TEST(encryption_that_is_not_possible_is_an_error)
{
    static const struct {
        const char *const sets[7];
        const char *why;
    } cases[] = {
        {{"disk.encryption", "aes-256-gcm"}, "disk.encryption requires encryption.key_file or"},
        {{"remote.encryption", "aes-256-gcm"}, "remote.encryption requires encryption.key_file or"},
        {{"encryption.key_file", "a", "encryption.key_command", "b"}, "both set; remove one"},
        {{"encryption.key_file", "/missing/keys"}, "encryption.key_file: "},
        {{"encryption.key_command", "echo 1 2"}, "line 1: the key is not 64 hex digits"},
        {{"remote.encryption", "aes-256-gcm", "encryption.key_command", KEY_1, "remote.urls",
          "plugin://" WHOLE_OBJECTS},
         "this store cannot hold encrypted chunks"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tierce_config *config;
        struct tierce_engine *engine;
        char why[TIERCE_CONFIG_ERROR_BYTES];
        ck_assert_int_eq(tierce_config_create(&config), 0);
        ck_assert_int_eq(tierce_config_set(config, "memory.size", "16MiB", why), 0);
        for (size_t n = 0; cases[i].sets[n] != NULL; n += 2)
            ck_assert_int_eq(tierce_config_set(config, cases[i].sets[n], cases[i].sets[n + 1], why),
                             0);
        ck_assert_int_lt(tierce_engine_open(&engine, config, why), 0);
        ck_assert_msg(strstr(why, cases[i].why) != NULL, "%s", why);
        tierce_config_destroy(config);
    }
}
END_TEST

CHECK_MAIN("engine_codec", .seconds = 60, .setup = name_blocks,
           .loops = {{a_damaged_chunk_is_replaced_by_the_next_store, 0, 4},
                     {chunks_without_their_key_are_stored_again, 0, 2}},
           .tests = {chunks_come_back_whatever_the_codec_is_now, chunks_are_compressed_by_order,
                     the_result_of_a_long_command_comes_in_time,
                     short_commands_do_not_wait_for_a_compression, the_speed_has_a_bound,
                     a_remote_store_has_coded_and_raw_chunks, chunks_of_a_plugins_codec,
                     a_plugins_codec_that_restores_other_bytes,
                     a_codec_that_is_not_possible_is_an_error, an_encrypted_disk_requires_its_key,
                     a_key_that_comes_later_needs_no_restart, an_order_without_a_key_says_so,
                     encrypted_chunks_are_compressed_by_order,
                     encryption_that_is_not_possible_is_an_error,
                     remote_chunks_without_their_key_are_stored_again})
