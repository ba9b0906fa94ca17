/* SPDX-License-Identifier: Apache-2.0 */
/* Engines that report their contents to the directory of a manager: chunk by chunk and tier by tier
 * the directory has what the tiers hold, whatever happens to manager and engines. */
#include "engine_fixture.h"
#include "running_manager.h"
#include "silent_log.h"

#include "core/key/chunk_number.h"
#include "engine/observe/chunk_orders.h"
#include "engine/observe/reporter.h"
#include "net/host_id.h"
#include "net/listen.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "store/remote/fleet/fleet_manager.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <tierce/events.h>

enum { ENGINES = 2, KEYS_MAX = 8192, CHAIN_BLOCKS = 32 };

static struct running_manager manager;
static struct fixture fx[ENGINES];
static char url[64];

/* ---- calls ----------------------------------------------------------------------------------- */

static struct tierce__fleet_manager *client;

static void open_client(void)
{
    struct tierce__url parsed = {0};
    char why[TIERCE__FLEET_WHY_BYTES];
    ck_assert_int_eq(tierce__url_parse(&parsed, url, why), 0);
    const struct tierce__fleet_manager_opts opts = {.size = sizeof(opts), .url = &parsed};
    ck_assert_int_eq(tierce__fleet_manager_open(&client, &opts, why), 0);
    tierce__url_clear(&parsed);
}

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

/* How many workers there are, and how many chunks they hold together. Their names are written down
 * if all have sent their contents; else the count is `many`. */
static uint32_t workers(char names[ENGINES][128], uint64_t *holders)
{
    const uint32_t many = UINT32_MAX;
    Meta__ListWorkersRequest request = META__LIST_WORKERS_REQUEST__INIT;
    Meta__ListWorkersResponse *reply = (Meta__ListWorkersResponse *)ask(
        "ListWorkers", &request.base, &meta__list_workers_response__descriptor);
    char host[TIERCE__HOST_ID_BYTES];
    uint32_t count = 0;
    *holders = 0;
    tierce__host_id(host);
    for (size_t i = 0; i < reply->n_workers; i++) {
        ck_assert_str_eq(reply->workers[i]->host_id, host);
        *holders += (uint64_t)reply->workers[i]->keys;
        if (!reply->workers[i]->is_complete || count == ENGINES) {
            count = many;
            break;
        }
        snprintf(names[count++], 128, "%s", reply->workers[i]->worker);
    }
    tierce__proto_free(&reply->base);
    return count;
}

/* ---- the contents of the engines ------------------------------------------------------------- */

/* Each chunk that an engine holds, with the tiers as bits. */
static struct held {
    struct tierce__chunk_number key;
    uint8_t tiers[ENGINES];
} held[KEYS_MAX];
static size_t held_count;

static void on_chunk(const struct tierce_event *event, unsigned engine)
{
    struct tierce__chunk_number n =
        tierce__chunk_number(event->ns_digest, &event->shard, event->hash);
    size_t i = 0;
    while (i < held_count && (held[i].key.high != n.high || held[i].key.low != n.low))
        i++;
    ck_assert_uint_lt(i, KEYS_MAX);
    if (i == held_count)
        held[held_count++] = (struct held){.key = n};
    held[i].tiers[engine] |= (uint8_t)(strcmp(event->tier, "disk") == 0 ? 2 : 1);
}

static void on_snapshot(void *arg, const struct tierce_event_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        on_chunk(&batch->events[i], *(unsigned *)arg);
}

static void ignore(void *arg, const struct tierce_event_batch *batch)
{
    (void)arg;
    (void)batch;
}

static void read_contents(void)
{
    held_count = 0;
    for (unsigned i = 0; i < ENGINES; i++) {
        struct tierce_subscription *s;
        uint64_t sequence;
        if (fx[i].engine == NULL)
            continue;
        ck_assert_int_eq(
            tierce_events_subscribe(&s, fx[i].engine,
                                    &(struct tierce_events_opts){
                                        .size = sizeof(struct tierce_events_opts), .fn = ignore}),
            0);
        ck_assert_int_eq(tierce_events_snapshot(s, &sequence, on_snapshot, &i), 0);
        tierce_events_unsubscribe(s);
    }
}

/* ---- and those of the directory -------------------------------------------------------------- */

static bool is_shown(const struct held *h, char *const names[ENGINES])
{
    int64_t key[] = {(int64_t)h->key.high, (int64_t)h->key.low};
    Meta__FindChunksRequest request = META__FIND_CHUNKS_REQUEST__INIT;
    request.keys = key;
    request.n_keys = 2;
    Meta__FindChunksResponse *reply = (Meta__FindChunksResponse *)ask(
        "FindChunks", &request.base, &meta__find_chunks_response__descriptor);
    uint32_t expected = 0;
    for (unsigned i = 0; i < ENGINES; i++)
        expected += h->tiers[i] != 0;
    bool is_equal = reply->n_prefixes == expected;
    for (uint32_t p = 0; is_equal && p < reply->n_prefixes; p++) {
        const Meta__HeldPrefix *prefix = reply->prefixes[p];
        unsigned i = 0;
        while (i < ENGINES && strcmp(names[i], prefix->worker) != 0)
            i++;
        uint32_t tiers = 0;
        for (size_t tier = 0; tier < prefix->n_in_tier; tier++)
            tiers |= (uint32_t)prefix->in_tier[tier] << tier;
        is_equal = i < ENGINES && tiers == h->tiers[i];
    }
    tierce__proto_free(&reply->base);
    return is_equal;
}

static bool are_shown(char *const names[ENGINES])
{
    for (size_t i = 0; i < held_count; i++) {
        if (!is_shown(&held[i], names))
            return false;
    }
    return true;
}

/* Whether the directory has the engines' contents and nothing else. */
static bool is_equal(void)
{
    char names[ENGINES][128] = {"", ""};
    uint64_t pairs = 0, holders;
    uint32_t open = 0;
    for (unsigned e = 0; e < ENGINES; e++) {
        open += fx[e].engine != NULL;
        for (size_t i = 0; i < held_count; i++)
            pairs += held[i].tiers[e] != 0;
    }
    if (workers(names, &holders) != open || holders != pairs)
        return false;
    return are_shown((char *[]){names[0], names[1]}) || are_shown((char *[]){names[1], names[0]});
}

/* ---- what happens to them -------------------------------------------------------------------- */

static void start_manager(uint16_t port)
{
    char grpc[32];
    snprintf(grpc, sizeof(grpc), "--listen.grpc_port=%u", port);
    running_manager_start(
        &manager, (const char *[]){"--directory.silence=2s", "--directory.senders=1", grpc, NULL});
    silence_log(); /* the manager's log ends with it, and the engines' threads still write */
    snprintf(url, sizeof(url), "fleet://127.0.0.1:%u", manager.ports.meta_grpc);
    open_client();
}

static void stop_manager(void)
{
    tierce__fleet_manager_close(client);
    running_manager_stop(&manager);
}

static void open_engine(unsigned i, const char *ring)
{
    fx_open(&fx[i], true, (const char *[]){"directory.manager", url, "events.ring", ring, NULL});
}

static void close_engine(unsigned i)
{
    fx_close(&fx[i]);
    fx[i].engine = NULL;
}

static void store(unsigned engine, uint32_t from, uint32_t to)
{
    for (uint32_t seed = from; seed < to; seed++) {
        struct tierce_chain *chain = fx_chain(&fx[engine], seed, CHAIN_BLOCKS, 0);
        ck_assert_int_ge(fx_store(&fx[engine], chain, CHAIN_BLOCKS, fx_ids, false), 0);
        tierce_chain_destroy(chain);
    }
    int rc = tierce_engine_flush(fx[engine].engine, 60000);
    ck_assert(rc == 0 || rc == TIERCE_E_FULL); /* the disk is small */
}

static void evict(unsigned engine, uint64_t bytes)
{
    struct tierce__tier *memory = fx[engine].engine->levels[0].tier;
    memory->ops->evict(memory, bytes);
}

static void wait_until_equal(void)
{
    read_contents();
    ck_assert_uint_gt(held_count, 0);
    WAIT_FOR(is_equal());
}

START_TEST(contents_are_equal)
{
    start_manager(0);
    open_engine(0, "65536");
    open_engine(1, "65536");
    store(0, 0, 20);
    store(1, 10, 30);
    wait_until_equal();
    /* Evictions: some, all of memory, and more stores than the tiers hold. */
    evict(0, 100000);
    evict(1, UINT64_MAX);
    wait_until_equal();
    store(0, 100, 260);
    wait_until_equal();
    /* An engine starts again with its disk, beside the other. */
    close_engine(1);
    read_contents();
    WAIT_FOR(is_equal());
    open_engine(1, "65536");
    wait_until_equal();
    close_engine(0);
    close_engine(1);
    char names[ENGINES][128];
    uint64_t holders;
    ck_assert_uint_eq(workers(names, &holders), 0); /* they have left, and are not only silent */
    for (unsigned i = 0; i < ENGINES; i++)
        fx_remove(&fx[i]);
    stop_manager();
}
END_TEST

/* A manager that knows nobody, changes while none answers, and events that are lost. */
START_TEST(a_manager_ends_and_another_begins)
{
    start_manager(0);
    uint16_t port = manager.ports.meta_grpc;
    open_engine(0, "64");
    open_engine(1, "65536");
    store(0, 0, 10);
    store(1, 5, 15);
    wait_until_equal();
    for (unsigned round = 0; round < 2; round++) {
        stop_manager();
        store(0, 100 * (round + 1), 100 * (round + 1) + 40);
        evict(1, 50000);
        start_manager(port);
        store(1, 500 * (round + 1), 500 * (round + 1) + 10);
        wait_until_equal();
    }
    stop_manager();
    uint64_t began_ns = tierce__now_ns();
    close_engine(0); /* does not wait for a manager */
    close_engine(1);
    ck_assert_uint_lt(tierce__now_ns() - began_ns, 20000000000ULL);
    for (unsigned i = 0; i < ENGINES; i++)
        fx_remove(&fx[i]);
}
END_TEST

static void live_until_killed(int from)
{
    if (read(from, url, sizeof(url)) != (ssize_t)sizeof(url))
        _exit(1);
    open_engine(1, "65536");
    store(1, 0, 10);
    for (;;)
        pause();
}

/* A process that is killed leaves by its silence, with all that it holds. */
START_TEST(a_killed_engine_leaves)
{
    int pipe_fds[2], status;
    char names[ENGINES][128];
    uint64_t holders;
    snprintf(fx[1].folder, sizeof(fx[1].folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(fx[1].folder); /* this process removes it */
    ck_assert_int_eq(pipe(pipe_fds), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        live_until_killed(pipe_fds[0]);
    start_manager(0);
    ck_assert_int_eq(write(pipe_fds[1], url, sizeof(url)), (ssize_t)sizeof(url));
    open_engine(0, "65536");
    store(0, 0, 10);
    uint64_t own = 10 * CHAIN_BLOCKS / FX_CHUNK_BLOCKS;
    WAIT_FOR(workers(names, &holders) == 2 && holders == 2 * own);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    wait_until_equal();
    ck_assert_uint_eq(workers(names, &holders), 1);
    ck_assert_uint_eq(holders, own);
    close_engine(0);
    fx_remove(&fx[0]);
    fx_remove(&fx[1]);
    stop_manager();
}
END_TEST

/* ---- for peers ------------------------------------------------------------------------------- */

static struct {
    _Atomic unsigned count;
    char secret[65];
    int64_t session;
} joins;

static void on_joined(void *arg, const struct tierce__reporter_place *place)
{
    ck_assert_ptr_eq(arg, &joins);
    snprintf(joins.secret, sizeof(joins.secret), "%s", place->secret);
    joins.session = place->session;
    atomic_fetch_add(&joins.count, 1);
}

static bool is_at(const char *address)
{
    Meta__ListWorkersRequest request = META__LIST_WORKERS_REQUEST__INIT;
    Meta__ListWorkersResponse *reply = (Meta__ListWorkersResponse *)ask(
        "ListWorkers", &request.base, &meta__list_workers_response__descriptor);
    bool is_one = reply->n_workers == 1 &&
                  strcmp(reply->workers[0]->transfer_address, address) == 0 &&
                  reply->workers[0]->transfer_tls;
    tierce__proto_free(&reply->base);
    return is_one;
}

/* The engine's transfer server is known to others, and has the secret of each leader. */
START_TEST(an_address_and_a_secret)
{
    char why[256], first[65];
    struct tierce__reporter *reporter;
    start_manager(0);
    uint16_t port = manager.ports.meta_grpc;
    fx_open(&fx[0], true, NULL);
    struct tierce__reporter_opts opts = {.size = sizeof(opts),
                                         .url = url,
                                         .transfer_address = "127.0.0.1:4711",
                                         .uses_tls = true,
                                         .joined = on_joined,
                                         .arg = &joins};
    ck_assert_int_eq(tierce__reporter_start(&reporter, fx[0].engine, &opts, why), 0);
    WAIT_FOR(is_at("127.0.0.1:4711"));
    WAIT_FOR(atomic_load(&joins.count) == 1);
    ck_assert_uint_eq(strlen(joins.secret), 64);
    ck_assert_int_ne(joins.session, 0);
    memcpy(first, joins.secret, sizeof(first));
    stop_manager();
    start_manager(port);
    WAIT_FOR(atomic_load(&joins.count) == 2);
    ck_assert_str_ne(joins.secret, first);
    tierce__reporter_stop(reporter);
    close_engine(0);
    fx_remove(&fx[0]);
    stop_manager();
}
END_TEST

/* ---- commands -------------------------------------------------------------------------------- */

static Meta__GetCommandResponse *await_result(int64_t number)
{
    Meta__GetCommandRequest get = META__GET_COMMAND_REQUEST__INIT;
    get.command = number;
    for (;;) {
        Meta__GetCommandResponse *reply = (Meta__GetCommandResponse *)ask(
            "GetCommand", &get.base, &meta__get_command_response__descriptor);
        if (reply->state >= META__COMMAND_STATE__CS_DONE)
            return reply;
        tierce__proto_free(&reply->base);
        usleep(5000); /* between two questions */
    }
}

/* The result of a command to the only worker, with the chunks `held[from .. to)`. The caller frees
 * it. If the worker was silent for too long, as on a busy machine, the command is given again. */
static Meta__GetCommandResponse *command(Meta__CommandWorkerRequest request, size_t from, size_t to)
{
    char names[ENGINES][128];
    int64_t keys[2 * 64];
    uint64_t holders;
    ck_assert_uint_le(to - from, 64);
    for (size_t i = from; i < to; i++) {
        keys[request.n_keys++] = (int64_t)held[i].key.high;
        keys[request.n_keys++] = (int64_t)held[i].key.low;
    }
    request.keys = keys;
    request.worker = names[0];
    for (;;) {
        WAIT_FOR(workers(names, &holders) == 1);
        Meta__CommandWorkerResponse *given = (Meta__CommandWorkerResponse *)ask(
            "CommandWorker", &request.base, &meta__command_worker_response__descriptor);
        int64_t number = given->command;
        tierce__proto_free(&given->base);
        Meta__GetCommandResponse *reply = await_result(number);
        if (strstr(reply->message, "before it sent a result") == NULL)
            return reply;
        tierce__proto_free(&reply->base);
    }
}

static void assert_command(Meta__CommandWorkerRequest request, size_t from, size_t to, int64_t done,
                           const char *message)
{
    Meta__GetCommandResponse *reply = command(request, from, to);
    bool is_done = reply->state == META__COMMAND_STATE__CS_DONE;
    ck_assert_msg(reply->chunks == done && is_done == (done >= 0 && strchr(message, '!') == NULL) &&
                      strstr(reply->message, message + (message[0] == '!')) != NULL,
                  "%lld chunks, %s: %s", (long long)reply->chunks, is_done ? "done" : "failed",
                  reply->message);
    int64_t named = (int64_t)(to - from);
    ck_assert_int_eq(reply->left_out, named > 0 ? named - done : 0);
    tierce__proto_free(&reply->base);
}

static Meta__CommandWorkerRequest of_action(Meta__WorkerAction action)
{
    Meta__CommandWorkerRequest request = META__COMMAND_WORKER_REQUEST__INIT;
    request.action = action;
    return request;
}

static Meta__CommandWorkerRequest move_between(int32_t from, int32_t to, bool keeps)
{
    Meta__CommandWorkerRequest request = of_action(META__WORKER_ACTION__WA_MOVE);
    request.from_tier = from;
    request.to_tier = to;
    request.keeps = keeps;
    return request;
}

/* How many of held[0 .. count) have exactly these tiers now. */
static size_t in_tiers(size_t count, uint8_t tiers)
{
    struct held before[64];
    size_t same = 0;
    ck_assert_uint_le(count, 64);
    memcpy(before, held, count * sizeof(*held));
    read_contents();
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < held_count; k++)
            same += memcmp(&held[k].key, &before[i].key, sizeof(held[k].key)) == 0 &&
                    held[k].tiers[0] == tiers;
    }
    memcpy(held, before, count * sizeof(*held)); /* in the order that the caller knows */
    held_count = held_count > count ? held_count : count;
    return same;
}

static uint64_t read_from_disk(const struct tierce_engine *engine)
{
    struct tierce__tier *disk = engine->levels[1].tier;
    struct tierce__tier_stats stats;
    disk->ops->stats(disk, &stats);
    return stats.get_bytes;
}

/* An operator's commands reach the engine, change its tiers, and have a result. */
START_TEST(commands_are_carried_out)
{
    char message[64];
    start_manager(0);
    open_engine(0, "65536");
    store(0, 0, 2);
    wait_until_equal();
    struct tierce_engine *engine = fx[0].engine;
    ck_assert_uint_ge(held_count, 8);
    ck_assert_uint_eq(in_tiers(8, 3), 8); /* memory and disk */
    assert_command(of_action(META__WORKER_ACTION__WA_HEALTH), 0, 0, 0, "tier 1 (disk): in service");
    /* Pinned chunks are not evicted. */
    Meta__CommandWorkerRequest pin = of_action(META__WORKER_ACTION__WA_PIN);
    pin.pin_ms = 600000;
    assert_command(pin, 0, 4, 4, "");
    assert_command(pin, 2, 4, 2, ""); /* again: no more bytes than before */
    ck_assert_uint_eq(engine->session_count, 4);
    evict(0, UINT64_MAX);
    ck_assert_uint_eq(in_tiers(4, 3), 4);
    ck_assert_uint_eq(in_tiers(8, 2), 4);
    assert_command(pin, 3, 8, 1, "4 are not in memory");
    assert_command(of_action(META__WORKER_ACTION__WA_UNPIN), 3, 5, 1, "1 are not pinned");
    assert_command(of_action(META__WORKER_ACTION__WA_UNPIN), 0, 0, 3, "");
    ck_assert_uint_eq(engine->session_count, 0);
    ck_assert_uint_eq(engine->pinned_bytes, 0);
    /* Between the tiers: as a copy, and as a move. */
    assert_command(move_between(1, 0, true), 0, 8, 8, "");
    ck_assert_uint_eq(in_tiers(8, 3), 8);
    assert_command(move_between(1, 0, false), 0, 8, 8, "");
    ck_assert_uint_eq(in_tiers(8, 1), 8);
    assert_command(move_between(0, 1, false), 0, 4, 4, "");
    ck_assert_uint_eq(in_tiers(8, 2), 4);
    assert_command(move_between(0, 1, false), 2, 6, 2, "2 are not in tier 0 (memory)");
    ck_assert_uint_eq(in_tiers(8, 2), 6);
    assert_command(move_between(0, 5, false), 0, 1, 0, "!the tiers are 0 (memory), 1 (disk)");
    ck_assert_int_eq(tierce_engine_set_mode(engine, TIERCE_MODE_FREEZE), 0);
    assert_command(move_between(1, 0, false), 0, 1, 0, "!the engine is in mode freeze");
    ck_assert_int_eq(tierce_engine_set_mode(engine, TIERCE_MODE_NORMAL), 0);
    uint64_t read_before = read_from_disk(engine);
    assert_command(of_action(META__WORKER_ACTION__WA_COMPRESS), 0, 0, 0,
                   "stay uncompressed: their namespace names no element type that the codec knows");
    ck_assert_uint_eq(read_from_disk(engine), read_before);
    assert_command(of_action(META__WORKER_ACTION__WA_DECOMPRESS), 0, 0, 0,
                   "were uncompressed already");
    static const _Atomic bool stops;
    struct tierce__chunk_orders orders;
    struct tierce__chunk_order_outcome late = {.is_done = true};
    tierce__chunk_orders_init(&orders, engine, &stops);
    tierce__chunk_orders_recode(&orders, &(struct tierce__chunk_numbers){.count = 0}, false,
                                tierce__now_ns(), &late);
    tierce__chunk_orders_fini(&orders);
    ck_assert_msg(!late.is_done && strstr(late.message, "timed out") != NULL, "%s", late.message);
    read_contents();
    size_t in_memory = 0;
    for (size_t i = 0; i < held_count; i++)
        in_memory += (held[i].tiers[0] & 1) != 0;
    int32_t tier = 0;
    Meta__CommandWorkerRequest clear = of_action(META__WORKER_ACTION__WA_CLEAR);
    clear.tiers = &tier;
    clear.n_tiers = 1;
    assert_command(clear, 0, 0, (int64_t)in_memory, "");
    ck_assert_uint_eq(in_tiers(8, 2), 6);
    tier = 7;
    snprintf(message, sizeof(message), "!there is no tier %d", (int)tier);
    assert_command(clear, 0, 0, 0, message);
    wait_until_equal(); /* the directory has heard of all of it */
    close_engine(0);
    fx_remove(&fx[0]);
    stop_manager();
}
END_TEST

/* ---- trouble --------------------------------------------------------------------------------- */

/* The reporter's thread waits here, as long as the gate is closed. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_closed, is_waited_at;
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};

static uint32_t wait_at_gate(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&gate.lock);
    for (; gate.is_closed; pthread_cond_wait(&gate.changed, &gate.lock)) {
        gate.is_waited_at = true;
        pthread_cond_broadcast(&gate.changed);
    }
    gate.is_waited_at = false;
    pthread_mutex_unlock(&gate.lock);
    return 0;
}

static void close_gate(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.is_closed = true;
    while (!gate.is_waited_at)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static void open_gate(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.is_closed = false;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

enum { RESYNCS = 4 };
static _Atomic unsigned pauses[8]; /* ms, by the power of two of `times` */

static void on_log(void *arg, enum tierce_log_level level, const char *event, const char *fields)
{
    (void)arg, (void)level;
    unsigned times = 0, ms = 0;
    const char *at = strstr(fields, "times=");
    if (strcmp(event, "directory_resync") == 0 && at != NULL &&
        sscanf(at, "times=%u pause_ms=%u", &times, &ms) == 2 && times > 0 && times <= RESYNCS)
        atomic_store(&pauses[__builtin_ctz(times)], ms);
}

/* The queue overflows again and again: all contents are sent, each time after a longer pause, and
 * the directory is right in the end. */
START_TEST(more_changes_than_the_queue_holds)
{
    char why[256];
    struct tierce__reporter *reporter;
    start_manager(0);
    fx_open(&fx[0], true, NULL);
    struct tierce_engine *engine = fx[0].engine;
    tierce_set_log_fn(on_log, NULL, TIERCE_LOG_WARN);
    struct tierce__reporter_opts opts = {
        .size = sizeof(opts), .url = url, .queue_max = 16, .load = wait_at_gate};
    ck_assert_int_eq(tierce__reporter_start(&reporter, engine, &opts, why), 0);
    WAIT_FOR(atomic_load(&engine->reports.is_complete));
    for (uint32_t i = 1; i <= RESYNCS; i++) {
        close_gate();
        store(0, 100 * i, 100 * i + 8); /* 8 chains of several chunks, in two tiers */
        open_gate();
        WAIT_FOR(atomic_load(&engine->reports.resyncs) >= i);
        WAIT_FOR(atomic_load(&engine->reports.is_complete));
    }
    wait_until_equal();
    tierce__reporter_stop(reporter);
    silence_log();
    ck_assert_uint_eq(atomic_load(&pauses[0]), 100);
    ck_assert_uint_eq(atomic_load(&pauses[1]), 200);
    ck_assert_uint_eq(atomic_load(&pauses[2]), 500); /* a quarter of the silence */
    close_engine(0);
    fx_remove(&fx[0]);
    stop_manager();
}
END_TEST

/* A manager that accepts connections and answers nothing: an engine closes at once. */
START_TEST(a_hanging_manager_delays_no_close)
{
    char why[256], byte;
    int listener;
    uint16_t port = 0;
    ck_assert_int_eq(tierce__listen_tcp(&listener, &port, "127.0.0.1", why), 0);
    snprintf(url, sizeof(url), "fleet://127.0.0.1:%u", port);
    open_engine(0, "65536");
    struct pollfd pollfd = {.fd = listener, .events = POLLIN};
    ck_assert_int_eq(poll(&pollfd, 1, 20000), 1);
    int fd = accept(listener, NULL, NULL);
    ck_assert_int_ge(fd, 0);
    pollfd.fd = fd;
    ck_assert_int_eq(poll(&pollfd, 1, 20000), 1);
    ck_assert_int_eq(read(fd, &byte, 1), 1); /* the call is on its way, for a second */
    uint64_t began_ns = tierce__now_ns();
    close_engine(0);
    ck_assert_uint_lt(tierce__now_ns() - began_ns, 900000000ULL);
    close(fd);
    close(listener);
    fx_remove(&fx[0]);
}
END_TEST

START_TEST(wrong_urls)
{
    static const char *const wrong[] = {"redis://127.0.0.1:1",
                                        "fleet://127.0.0.1:1/a/b",
                                        "fleet://127.0.0.1:1?tokenfile=x",
                                        "fleet://",
                                        "x",
                                        "fleet://127.0.0.1",
                                        "fleet://:6381",
                                        "fleet://127.0.0.1:1,b/g"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct tierce_config *config =
            fx_config("", (const char *[]){"directory.manager", wrong[i], NULL});
        struct tierce_engine *engine;
        char why[TIERCE_CONFIG_ERROR_BYTES];
        ck_assert_int_eq(tierce_engine_open(&engine, config, why), TIERCE_E_CONFIG);
        ck_assert_msg(strncmp(why, "directory.manager: ", 19) == 0, "%s", why);
        tierce_config_destroy(config);
    }
    fx_open(&fx[0], false, (const char *[]){"directory.manager", "fleet://127.0.0.1:1/g", NULL});
    fx_close(&fx[0]);
}
END_TEST

/* The key of a chunk never changes: engines of several versions share a directory. */
START_TEST(the_key_of_a_chunk)
{
    uint8_t digest[TIERCE_HASH_BYTES], hash[TIERCE_HASH_BYTES];
    for (unsigned i = 0; i < TIERCE_HASH_BYTES; i++) {
        digest[i] = (uint8_t)i;
        hash[i] = (uint8_t)(255 - i);
    }
    struct tierce_shard shard = {1, 2, 3, 4};
    struct tierce__chunk_number n = tierce__chunk_number(digest, &shard, hash);
    ck_assert_uint_eq(n.high, 18352975204432552626ULL);
    ck_assert_uint_eq(n.low, 2355931117577754789ULL);
}
END_TEST

CHECK_MAIN("reporter", .seconds = 110, .setup = silence_log, .at_once = true,
           .tests = {commands_are_carried_out, a_manager_ends_and_another_begins,
                     a_killed_engine_leaves, contents_are_equal, an_address_and_a_secret,
                     more_changes_than_the_queue_holds, a_hanging_manager_delays_no_close,
                     wrong_urls, the_key_of_a_chunk})
