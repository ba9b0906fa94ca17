/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks move from one engine to another by a command to a manager: real engines, their transfer
 * servers, and a manager. */
#include "base/alloc.h"
#include "engine_fixture.h"
#include "object_fixture.h"
#include "running_manager.h"
#include "silent_log.h"

#include "core/key/chunk_number.h"
#include "engine/objects/object_form.h"
#include "engine/observe/chunk_orders.h"
#include "engine/peer/peers.h"
#include "engine/store/chunk_copy.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "store/remote/fleet/fleet_manager.h"

#include <tierce/operate.h>

enum { ENGINES = 2, CHUNKS = 4, CHAIN_BLOCKS = CHUNKS * FX_CHUNK_BLOCKS, MEMORY = 1, OWN = 3 };

static struct running_manager manager;
static struct fixture fx[ENGINES];
static struct tierce_engine *bare; /* without a view */
static struct tierce__objects *bare_space;
static char url[64];
static struct tierce__fleet_manager *client;
static char names[ENGINES + 1][128]; /* in the directory; the last one of `bare` */
static struct tierce__key keys[CHUNKS];
static uint8_t digests[CHUNKS][TIERCE_HASH_BYTES];

/* ---- calls ----------------------------------------------------------------------------------- */

static void on_answer(struct tierce__fleet_call *call)
{
    *(bool *)call->arg = true;
}

static ProtobufCMessage *ask(const char *method, const ProtobufCMessage *request,
                             const ProtobufCMessageDescriptor *answers)
{
    bool is_done = false;
    struct tierce__fleet_call call = {.method = method,
                                      .request = request,
                                      .answers = answers,
                                      .deadline_ns = tierce__deadline_in_ms(60000),
                                      .repeats = true,
                                      .done = on_answer,
                                      .arg = &is_done};
    tierce__fleet_manager_start(client, &call);
    while (!is_done)
        tierce__fleet_manager_poll(client, call.deadline_ns);
    ck_assert_msg(call.status == 0, "%s: %s", method, call.why);
    return call.reply;
}

/* The only worker that serves at the address of the engine's server has joined, and reported. */
static bool is_named(unsigned i, struct tierce_engine *engine)
{
    char address[TIERCE__PEER_ADDRESS_BYTES];
    bool is_there = false;
    Meta__ListWorkersRequest request = META__LIST_WORKERS_REQUEST__INIT;
    Meta__ListWorkersResponse *reply = (Meta__ListWorkersResponse *)ask(
        "ListWorkers", &request.base, &meta__list_workers_response__descriptor);
    tierce__peer_server_address(tierce__peers_server(engine->peers), address);
    for (size_t k = 0; k < reply->n_workers; k++) {
        if (strcmp(reply->workers[k]->transfer_address, address) != 0)
            continue;
        snprintf(names[i], sizeof(names[i]), "%s", reply->workers[k]->worker);
        is_there = reply->workers[k]->is_complete;
    }
    tierce__proto_free(&reply->base);
    return is_there;
}

/* ---- the engines ----------------------------------------------------------------------------- */

static void start_all(void)
{
    struct tierce__url parsed = {0};
    char why[TIERCE__FLEET_WHY_BYTES], why_not[TIERCE_CONFIG_ERROR_BYTES];
    running_manager_start(&manager, (const char *[]){"--directory.silence=10s", NULL});
    snprintf(url, sizeof(url), "fleet://127.0.0.1:%u", manager.ports.meta_grpc);
    ck_assert_int_eq(tierce__url_parse(&parsed, url, why), 0);
    const struct tierce__fleet_manager_opts opts = {.size = sizeof(opts), .url = &parsed};
    ck_assert_int_eq(tierce__fleet_manager_open(&client, &opts, why), 0);
    tierce__url_clear(&parsed);
    snprintf(url, sizeof(url), "peers://127.0.0.1:%u?connections=2", manager.ports.meta_grpc);
    const char *const sets[] = {"remote.urls", url, NULL};
    for (unsigned i = 0; i < ENGINES; i++)
        fx_open(&fx[i], true, sets);
    struct tierce_config *config = fx_config("", sets);
    ck_assert_int_eq(tierce_engine_open(&bare, config, why_not), 0);
    tierce_config_destroy(config);
    ck_assert_int_eq(tierce__objects_open(&bare_space, bare, "test", ""), 0);
    for (unsigned i = 0; i < ENGINES; i++)
        WAIT_FOR(is_named(i, fx[i].engine));
    WAIT_FOR(is_named(ENGINES, bare));
}

static void stop_all(void)
{
    tierce__objects_close(bare_space);
    tierce_engine_close(bare);
    for (unsigned i = 0; i < ENGINES; i++) {
        fx_close(&fx[i]);
        fx_remove(&fx[i]);
    }
    tierce__fleet_manager_close(client);
    running_manager_stop(&manager);
}

static void store(unsigned engine)
{
    struct fixture *f = &fx[engine];
    struct tierce_chain *chain = fx_chain(f, 1, CHAIN_BLOCKS, 0);
    ck_assert_int_eq(fx_store(f, chain, CHAIN_BLOCKS, fx_ids, false), CHAIN_BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(f->engine, 60000), 0);
    for (size_t i = 0; i < CHUNKS; i++) {
        keys[i] = f->inner->key;
        memcpy(digests[i], f->inner->ns_digest, sizeof(digests[i]));
        memcpy(keys[i].hash, tierce_chain_hash(chain, (i + 1) * FX_CHUNK_BLOCKS - 1),
               sizeof(keys[i].hash));
    }
    tierce_chain_destroy(chain);
}

/* How many of the chunks are in these tiers of an engine; its index of namespaces is that of the
 * other one, because both have one. */
static size_t in_tiers(unsigned engine, uint32_t levels)
{
    size_t count = 0;
    for (size_t i = 0; i < CHUNKS; i++) {
        struct tierce__unasked unasked;
        count += tierce__storage_search(fx[engine].engine, levels, &keys[i], 1, NULL, &unasked);
    }
    return count;
}

/* Loads all of them from the engine's own tiers; each block is right. */
static void assert_right(unsigned engine)
{
    struct fixture *f = &fx[engine];
    struct tierce_chain *chain = fx_chain(f, 1, CHAIN_BLOCKS, 0);
    uint8_t origins[CHAIN_BLOCKS] = {0};
    fx_wipe(f);
    struct tierce_transfer_opts what = fx_what(f, chain, 0, CHAIN_BLOCKS, fx_ids);
    what.tiers = 1u << TIERCE_ORIGIN_MEMORY | 1u << TIERCE_ORIGIN_DISK;
    ck_assert_int_eq(tierce_load(f->view, &what, origins), CHAIN_BLOCKS);
    for (size_t b = 0; b < CHAIN_BLOCKS; b++)
        ck_assert(fx_right(f, chain, b, fx_ids[b]));
    tierce_chain_destroy(chain);
}

static bool are_found_at(unsigned engine)
{
    Meta__FindChunksRequest request = META__FIND_CHUNKS_REQUEST__INIT;
    int64_t halves[2 * CHUNKS];
    for (size_t i = 0; i < CHUNKS; i++) {
        struct tierce__chunk_number n =
            tierce__chunk_number(digests[i], &keys[i].shard, keys[i].hash);
        halves[2 * i] = (int64_t)n.high;
        halves[2 * i + 1] = (int64_t)n.low;
    }
    request.keys = halves;
    request.n_keys = 2 * CHUNKS;
    Meta__FindChunksResponse *reply = (Meta__FindChunksResponse *)ask(
        "FindChunks", &request.base, &meta__find_chunks_response__descriptor);
    bool is_there = reply->n_prefixes == 1 && reply->prefixes[0]->keys == CHUNKS &&
                    strcmp(reply->prefixes[0]->worker, names[engine]) == 0;
    tierce__proto_free(&reply->base);
    return is_there;
}

/* ---- commands -------------------------------------------------------------------------------- */

/* Makes the engines report, so that they hear of commands: another chunk for each. */
static void make_reports(void)
{
    static uint32_t seed = 1000;
    seed++;
    for (unsigned i = 0; i < ENGINES; i++) {
        struct tierce_chain *chain = fx_chain(&fx[i], seed, FX_CHUNK_BLOCKS, 0);
        (void)fx_store(&fx[i], chain, FX_CHUNK_BLOCKS, fx_ids, false);
        tierce_chain_destroy(chain);
    }
    ck_assert_int_eq(ox_put(bare_space, "of bare", seed, 300000), 0);
}

/* Whether the command has ended, with this result. */
static bool has_moved(const Meta__GetCommandRequest *get, int64_t chunks, const char *message)
{
    static unsigned asked;
    Meta__GetCommandResponse *reply = (Meta__GetCommandResponse *)ask(
        "GetCommand", &get->base, &meta__get_command_response__descriptor);
    bool has_ended = reply->state >= META__COMMAND_STATE__CS_DONE;
    bool is_done = reply->state == META__COMMAND_STATE__CS_DONE;
    if (has_ended)
        ck_assert_msg(is_done == (chunks > 0) && reply->chunks == chunks &&
                          reply->left_out == CHUNKS - chunks &&
                          strstr(reply->message, message) != NULL,
                      "%lld: %s", (long long)reply->chunks, reply->message);
    tierce__proto_free(&reply->base);
    if (!has_ended && asked++ % 16 == 0) /* more chunks would displace others */
        make_reports();
    return has_ended;
}

/* Moves all chunks, from disk to memory if `to` is `from`, and checks the result. "": any message.
 */
static void move(unsigned from, unsigned to, bool keeps, int64_t chunks, const char *message)
{
    Meta__CommandWorkerRequest request = META__COMMAND_WORKER_REQUEST__INIT;
    int64_t halves[2 * CHUNKS];
    for (size_t i = 0; i < CHUNKS; i++) {
        struct tierce__chunk_number n =
            tierce__chunk_number(digests[i], &keys[i].shard, keys[i].hash);
        halves[2 * i] = (int64_t)n.high;
        halves[2 * i + 1] = (int64_t)n.low;
    }
    request.action = META__WORKER_ACTION__WA_MOVE;
    request.worker = names[from];
    request.to_worker = to != from ? names[to] : "";
    request.from_tier = to == from;
    request.keeps = keeps;
    request.keys = halves;
    request.n_keys = 2 * CHUNKS;
    request.timeout_ms = 120000;
    Meta__CommandWorkerResponse *given = (Meta__CommandWorkerResponse *)ask(
        "CommandWorker", &request.base, &meta__command_worker_response__descriptor);
    Meta__GetCommandRequest get = META__GET_COMMAND_REQUEST__INIT;
    get.command = given->command;
    tierce__proto_free(&given->base);
    WAIT_FOR(has_moved(&get, chunks, message));
}

START_TEST(chunks_move_from_engine_to_engine)
{
    start_all();
    store(0);
    WAIT_FOR(are_found_at(0));
    ck_assert_uint_eq(in_tiers(0, OWN), CHUNKS);
    move(0, 1, false, CHUNKS, "");
    ck_assert_uint_eq(in_tiers(0, OWN), 0);
    ck_assert_uint_eq(in_tiers(1, MEMORY), CHUNKS);
    assert_right(1);
    WAIT_FOR(are_found_at(1));
    /* A copy; and again, when the target has them already. */
    move(1, 0, true, CHUNKS, "");
    move(1, 0, true, CHUNKS, "");
    ck_assert_uint_eq(in_tiers(0, MEMORY), CHUNKS);
    ck_assert_uint_eq(in_tiers(1, MEMORY), CHUNKS);
    assert_right(0);
    move(0, 1, false, CHUNKS, "");
    move(0, 1, false, 0, "4 chunks are not in this engine's memory or disk");
    ck_assert_uint_eq(in_tiers(1, MEMORY), CHUNKS);
    stop_all();
}
END_TEST

/* The target rejects some chunks, or all: the source has them still. */
START_TEST(what_does_not_land_is_not_dropped)
{
    start_all();
    store(0);
    WAIT_FOR(are_found_at(0));
    move(0, ENGINES, false, 0, "4 are of a model or layout that this engine does not have");
    ck_assert_int_eq(tierce_engine_set_mode(fx[1].engine, TIERCE_MODE_FREEZE), 0);
    move(0, 1, false, 0, "the engine is in mode freeze");
    ck_assert_int_eq(tierce_engine_set_mode(fx[1].engine, TIERCE_MODE_NORMAL), 0);
    ck_assert_uint_eq(in_tiers(0, OWN), CHUNKS);
    /* One of them is wrong in its memory. */
    struct tierce__buf *buf = tierce__storage_lease(fx[0].engine, &keys[2]);
    ck_assert_ptr_nonnull(buf);
    buf->data[5000] ^= 4;
    tierce__buf_release(buf);
    move(0, 1, false, CHUNKS - 1, "1 failed: the checksum does not match");
    ck_assert_int_ge(fx_stats(&fx[1]).checksum_failures, 1);
    ck_assert_uint_eq(in_tiers(0, OWN), 1);
    ck_assert_uint_eq(in_tiers(1, OWN), CHUNKS - 1);
    WAIT_FOR(fx_stats(&fx[0]).leases_now == 0 && fx_stats(&fx[1]).leases_now == 0);
    stop_all();
}
END_TEST

/* Named values may be replaced while they are copied, and a copy would bring the old ones back. */
START_TEST(named_values_do_not_move)
{
    struct tierce__objects *spaces[ENGINES];
    struct tierce__object_space form = {0};
    start_all();
    tierce_namespace_digest(form.ns_digest, "tierce-namespace=1\nobjects=test\ntenant=\n");
    for (unsigned i = 0; i < ENGINES; i++)
        ck_assert_int_eq(tierce__objects_open(&spaces[i], fx[i].engine, "test", ""), 0);
    store(0);
    keys[1] = tierce__object_key(&form, "a name", 6);
    keys[1].shard = (struct tierce_shard){0, 1, 0, 1};
    memcpy(digests[1], form.ns_digest, sizeof(digests[1]));
    ck_assert_int_eq(ox_put(spaces[0], "a name", 7, 1 << 20), 0); /* no small one, of a page */
    WAIT_FOR(are_found_at(0));
    move(0, 0, false, CHUNKS - 1, "not moved: 1 named values");
    move(0, 1, false, CHUNKS - 1, "not moved: 1 named values");
    ck_assert_int_eq(ox_get(spaces[0], "a name", NULL), 7);
    for (unsigned i = 0; i < ENGINES; i++)
        tierce__objects_close(spaces[i]);
    stop_all();
}
END_TEST

/* Fetches one chunk with a claimed length. */
static size_t fetch(struct tierce__chunk_orders *orders, const struct tierce__chunk_named *named,
                    uint64_t bytes, struct tierce__chunk_order_outcome *out)
{
    int32_t landed[CHUNKS];
    size_t count = 0;
    struct tierce__chunk_named claimed = *named;
    claimed.bytes = bytes;
    *out = (struct tierce__chunk_order_outcome){0};
    const struct tierce__chunk_fetch what = {
        .named = &claimed, .count = 1, .deadline_ns = tierce__deadline_in_ms(60000)};
    tierce__chunk_orders_fetch(orders, &what, landed, &count, out);
    ck_assert(out->is_done == (count == 1));
    return count;
}

static uint64_t evicted_of(unsigned engine)
{
    struct tierce__tier *memory = fx[engine].engine->levels[0].tier;
    struct tierce__tier_stats stats;
    memory->ops->stats(memory, &stats);
    return stats.evicted_chunks;
}

/* Another process, which has mapped the pool, overwrites the header of the next chunk that is read
 * and verified. */
static bool overwrites;

struct tierce__buf *__real_tierce__chunk_read(struct tierce_engine *engine, size_t level,
                                              const struct tierce__storage_chunk *chunk,
                                              struct tierce__chunk_info *info, int *status);
struct tierce__buf *__wrap_tierce__chunk_read(struct tierce_engine *engine, size_t level,
                                              const struct tierce__storage_chunk *chunk,
                                              struct tierce__chunk_info *info, int *status);
struct tierce__buf *__wrap_tierce__chunk_read(struct tierce_engine *engine, size_t level,
                                              const struct tierce__storage_chunk *chunk,
                                              struct tierce__chunk_info *info, int *status)
{
    struct tierce__buf *buf = __real_tierce__chunk_read(engine, level, chunk, info, status);
    if (overwrites && buf != NULL)
        memset(buf->data, 0xff, TIERCE__CHUNK_FIXED);
    return buf;
}

/* The source claims a wrong length: nothing is evicted for it, the source is not blamed for bytes
 * that are right, and the next fetch with the right length succeeds. */
START_TEST(false_lengths_are_rejected)
{
    static const _Atomic bool stops = false;
    struct tierce__chunk_orders orders[ENGINES];
    struct tierce__chunk_named named[CHUNKS];
    struct tierce__chunk_number numbers[CHUNKS];
    struct tierce__chunk_order_outcome out = {0};
    size_t count = 0;
    start_all();
    for (unsigned i = 0; i < ENGINES; i++)
        tierce__chunk_orders_init(&orders[i], fx[i].engine, &stops);
    store(0);
    WAIT_FOR(are_found_at(0));
    for (size_t i = 0; i < CHUNKS; i++)
        numbers[i] = tierce__chunk_number(digests[i], &keys[i].shard, keys[i].hash);
    tierce__chunk_orders_name(&orders[0], &(struct tierce__chunk_numbers){numbers, CHUNKS}, named,
                              &count, &out);
    ck_assert_uint_eq(count, CHUNKS);
    for (uint32_t seed = 2000; evicted_of(1) == 0; seed++) {
        struct tierce_chain *chain = fx_chain(&fx[1], seed, CHAIN_BLOCKS, 0);
        (void)fx_store(&fx[1], chain, CHAIN_BLOCKS, fx_ids, false);
        tierce_chain_destroy(chain);
    }
    uint64_t evicted = evicted_of(1);
    uint64_t bytes = named[0].bytes, wrong[] = {1, bytes + 1, bytes + 4096, 2 << 20, 1ull << 33};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ck_assert_uint_eq(fetch(&orders[1], &named[0], wrong[i], &out), 0);
        ck_assert_msg(strstr(out.message, "length") != NULL, "%s", out.message);
    }
    ck_assert_uint_eq(evicted_of(1), evicted);
    /* The length of another chunk of this model, which has fewer blocks. */
    ck_assert_uint_eq(fetch(&orders[1], &named[0], bytes - 4096, &out), 0);
    ck_assert_msg(strstr(out.message, "length") != NULL, "%s", out.message);
    ck_assert_uint_eq(fetch(&orders[1], &named[0], bytes, &out), 1);
    ck_assert_int_eq(fx_stats(&fx[1]).checksum_failures, 0);
    overwrites = true; /* its loads will be misses */
    ck_assert_uint_eq(fetch(&orders[1], &named[1], named[1].bytes, &out), 1);
    overwrites = false;
    for (unsigned i = 0; i < ENGINES; i++)
        tierce__chunk_orders_fini(&orders[i]);
    stop_all();
}
END_TEST

/* The source claims that its unfull chunk has as many blocks as others: it is still asked for it.
 */
START_TEST(a_longer_tail_is_not_held_against_its_holder)
{
    static const _Atomic bool stops = false;
    struct tierce__chunk_orders orders[ENGINES];
    struct tierce__chunk_named named;
    struct tierce__chunk_order_outcome out = {0};
    struct tierce__peers_stats stats;
    size_t count = 0;
    start_all();
    for (unsigned i = 0; i < ENGINES; i++)
        tierce__chunk_orders_init(&orders[i], fx[i].engine, &stops);
    struct tierce_chain *chain = fx_chain(&fx[0], 1, 1, 0);
    ck_assert_int_eq(fx_store(&fx[0], chain, 1, fx_ids, true), 1);
    const struct tierce__chunk_number number = tierce__chunk_number(
        fx[0].inner->ns_digest, &fx[0].inner->key.shard, tierce_chain_hash(chain, 0));
    tierce_chain_destroy(chain);
    tierce__chunk_orders_name(&orders[0], &(struct tierce__chunk_numbers){&number, 1}, &named,
                              &count, &out);
    ck_assert_uint_eq(count, 1);
    uint64_t longer = named.bytes + 1;
    while (!tierce__chunk_fits(fx[1].engine, &fx[1].inner->key, longer))
        longer++;
    /* Until the directory knows its holder. */
    WAIT_FOR(fetch(&orders[1], &named, longer, &out) == 0 &&
             tierce__peers_stats(fx[1].engine->peers, &stats) &&
             stats.read.results[TIERCE__PEER_LENGTH] > 0);
    ck_assert_uint_eq(fetch(&orders[1], &named, named.bytes, &out), 1);
    for (unsigned i = 0; i < ENGINES; i++)
        tierce__chunk_orders_fini(&orders[i]);
    stop_all();
}
END_TEST

CHECK_MAIN("peer moves", .seconds = 170, .setup = silence_log, .at_once = true,
           .tests = {chunks_move_from_engine_to_engine, what_does_not_land_is_not_dropped,
                     named_values_do_not_move, false_lengths_are_rejected,
                     a_longer_tail_is_not_held_against_its_holder})
