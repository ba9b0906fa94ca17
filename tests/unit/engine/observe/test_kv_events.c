/* SPDX-License-Identifier: Apache-2.0 */
/* KV events: a reader that follows the stream, asks for what it missed and takes snapshots has what
 * the tiers hold, chunk by chunk. */
#include "engine_fixture.h"
#include "log_record.h"
#include "silent_log.h"
#include "test_random.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "engine/objects/object_form.h"
#include "engine/observe/kv_batch.h"
#include "engine/observe/kv_publisher.h"
#include "net/zmq_curve.h"
#include "net/listen.h"
#include "proto/msgpack/msgpack.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <tierce/events.h>
#include <zmq.h>

enum { BLOCKS_MAX = 8192, CHAIN_BLOCKS = 32, BODY_MAX = 4 << 20 };

static struct fixture fx;
static char folder[] = "/tmp/tierce-kv-XXXXXX";
static char endpoint[64], replay_endpoint[64], port_text[8];
static char key_path[64], readers_path[64];
static struct tierce__zmq_curve_pair server_keys, reader_keys;
static bool is_encrypted;
/* Another tenant's model on the same engine, whose chunks are not published; NULL: there is none.
 */
static struct tierce_view *hidden;
static uint8_t shown_digest[TIERCE_HASH_BYTES];
static char shown_text[2 * TIERCE_HASH_BYTES + 1] = "";
static size_t hidden_count; /* its chunks in the tiers */
static uint16_t port;

/* ---- the set of a reader --------------------------------------------------------------------- */

struct block {
    uint64_t namespace, hash;
    bool disk;
};

struct set {
    struct block blocks[BLOCKS_MAX];
    size_t count;
};

static size_t find(const struct set *set, const struct block *b)
{
    size_t i = 0;
    while (i < set->count && (set->blocks[i].namespace != b->namespace ||
                              set->blocks[i].hash != b->hash || set->blocks[i].disk != b->disk))
        i++;
    return i;
}

static void change(struct set *set, const struct block *b, bool stored)
{
    size_t i = find(set, b);
    if (stored && i == set->count) {
        ck_assert_uint_lt(set->count, BLOCKS_MAX);
        set->blocks[set->count++] = *b;
    } else if (!stored && i < set->count) {
        set->blocks[i] = set->blocks[--set->count];
    }
}

static bool is_equal(const struct set *a, const struct set *b)
{
    for (size_t i = 0; i < a->count; i++) {
        if (find(b, &a->blocks[i]) == b->count)
            return false;
    }
    return a->count == b->count;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

enum { CHUNK_TOKENS = FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS, KNOWN_MAX = 1 << 14 };

/* The tokens of each chunk that was ever stored, by its hash in events. */
static struct known {
    uint64_t hash; /* 0: free */
    int32_t tokens[CHUNK_TOKENS];
} known[KNOWN_MAX];
static size_t with_tokens, without_tokens; /* blocks of events that readers have seen */

static struct known *known_of(uint64_t hash)
{
    size_t i = hash % KNOWN_MAX;
    while (known[i].hash != 0 && known[i].hash != hash)
        i = (i + 1) % KNOWN_MAX;
    return &known[i];
}

static void note_known(const struct tierce_chain *chain)
{
    const int32_t *tokens = tierce__chain_tokens(chain);
    for (size_t end = FX_CHUNK_BLOCKS; tokens != NULL && end <= tierce_chain_blocks(chain);
         end += FX_CHUNK_BLOCKS, tokens += CHUNK_TOKENS) {
        uint64_t hash = tierce__kv_hash(tierce_chain_hash(chain, end - 1));
        struct known *k = known_of(hash);
        k->hash = hash;
        memcpy(k->tokens, tokens, sizeof(k->tokens));
    }
}

/* ---- batches --------------------------------------------------------------------------------- */

static struct tierce__msgpack_item next_item(struct tierce__msgpack *m)
{
    struct tierce__msgpack_item item;
    ck_assert_int_eq(tierce__msgpack_next(m, &item), TIERCE__MSGPACK_OK);
    return item;
}

static bool is_text(const struct tierce__msgpack_item *item, const char *text)
{
    return item->type == TIERCE__MSGPACK_TEXT && item->count == strlen(text) &&
           memcmp(item->bytes, text, item->count) == 0;
}

struct read_event {
    char type[20];
    uint64_t hashes[256], namespace, parent, block_size;
    size_t hash_count, fields, token_count;
    int32_t tokens[256 * CHUNK_TOKENS];
    bool disk, has_parent;
};

static void read_field(struct tierce__msgpack *m, struct read_event *e,
                       const struct tierce__msgpack_item *name)
{
    struct tierce__msgpack all = *m;
    struct tierce__msgpack_item item = next_item(m);
    if (is_text(name, "type")) {
        snprintf(e->type, sizeof(e->type), "%.*s", (int)item.count, (const char *)item.bytes);
    } else if (is_text(name, "block_hashes")) {
        ck_assert_uint_le(item.count, 256);
        e->hash_count = item.count;
        for (size_t i = 0; i < e->hash_count; i++)
            e->hashes[i] = next_item(m).number;
    } else if (is_text(name, "token_ids")) {
        ck_assert_uint_le(item.count, 256 * CHUNK_TOKENS);
        e->token_count = item.count;
        for (size_t i = 0; i < e->token_count; i++)
            e->tokens[i] = (int32_t)next_item(m).number;
    } else if (is_text(name, "medium")) {
        e->disk = is_text(&item, "DISK");
        ck_assert(e->disk || is_text(&item, "CPU"));
    } else if (is_text(name, "namespace")) {
        e->namespace = item.number;
    } else if (is_text(name, "block_size")) {
        e->block_size = item.number;
    } else if (is_text(name, "parent_block_hash")) {
        e->has_parent = item.type == TIERCE__MSGPACK_UINT;
        e->parent = item.number;
    } else {
        *m = all;
        ck_assert_int_eq(tierce__msgpack_skip(m), TIERCE__MSGPACK_OK);
    }
}

/* An event has the tokens of all of its blocks, or none. */
static void check_tokens(const struct read_event *e)
{
    ck_assert(e->token_count == 0 || e->token_count == e->hash_count * CHUNK_TOKENS);
    *(e->token_count > 0 ? &with_tokens : &without_tokens) += e->hash_count;
    for (size_t b = 0; b < e->hash_count && e->token_count > 0; b++) {
        const struct known *k = known_of(e->hashes[b]);
        ck_assert_uint_eq(k->hash, e->hashes[b]);
        ck_assert_mem_eq(e->tokens + b * CHUNK_TOKENS, k->tokens, sizeof(k->tokens));
    }
}

/* Applies a batch; *stored grows by its hashes. */
static void read_events(struct tierce__msgpack *m, struct set *set, size_t *stored)
{
    struct tierce__msgpack_item head = next_item(m);
    ck_assert_int_eq(head.type, TIERCE__MSGPACK_ARRAY);
    ck_assert_uint_eq(head.count, 3);
    ck_assert_int_eq(next_item(m).type, TIERCE__MSGPACK_FLOAT);
    uint32_t events = next_item(m).count;
    for (uint32_t i = 0; i < events; i++) {
        static struct read_event e;
        e = (struct read_event){.fields = next_item(m).count};
        for (size_t f = 0; f < e.fields; f++) {
            struct tierce__msgpack_item name = next_item(m);
            read_field(m, &e, &name);
        }
        if (strcmp(e.type, "AllBlocksCleared") == 0) {
            set->count = 0;
            continue;
        }
        bool is_stored = strcmp(e.type, "BlockStored") == 0;
        ck_assert_uint_eq(e.fields, is_stored ? 9 : 4);
        ck_assert(!is_stored || e.block_size == CHUNK_TOKENS);
        if (is_stored)
            check_tokens(&e);
        for (size_t b = 0; b < e.hash_count; b++)
            change(set, &(struct block){e.namespace, e.hashes[b], e.disk}, is_stored);
        *stored += e.hash_count;
    }
    ck_assert_uint_eq(next_item(m).number, 5); /* dp_rank */
}

/* ---- a reader -------------------------------------------------------------------------------- */

static struct reader {
    void *context, *sub, *dealer;
    struct set set;
    uint64_t next, instance;
    size_t batches, dropped, replays, snapshots;
    bool has_snapshots; /* else it takes what a replay still has */
} reader;

static void open_reader(bool has_snapshots)
{
    int zero = 0;
    reader = (struct reader){.has_snapshots = has_snapshots, .context = zmq_ctx_new()};
    reader.sub = zmq_socket(reader.context, ZMQ_SUB);
    reader.dealer = zmq_socket(reader.context, ZMQ_DEALER);
    zmq_setsockopt(reader.sub, ZMQ_SUBSCRIBE, "kv@", 3);
    zmq_setsockopt(reader.sub, ZMQ_RCVHWM, &zero, sizeof(zero));
    zmq_setsockopt(reader.dealer, ZMQ_RCVHWM, &zero, sizeof(zero));
    zmq_setsockopt(reader.dealer, ZMQ_LINGER, &zero, sizeof(zero));
    void *sockets[] = {reader.sub, reader.dealer};
    for (size_t i = 0; is_encrypted && i < 2; i++)
        ck_assert_int_eq(tierce__zmq_curve_join(sockets[i], &reader_keys, server_keys.public_key),
                         0);
    ck_assert_int_eq(zmq_connect(reader.sub, endpoint), 0);
    ck_assert_int_eq(zmq_connect(reader.dealer, replay_endpoint), 0);
}

static void close_reader(void)
{
    zmq_close(reader.sub);
    zmq_close(reader.dealer);
    zmq_ctx_term(reader.context);
}

static uint64_t number_of(const uint8_t *bytes)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < 8; i++)
        n = n << 8 | bytes[i];
    return n;
}

/* Receives frames; the last two are a number and a batch. False: none arrived in time. */
static bool receive(void *socket, int wait_ms, uint64_t *number, zmq_msg_t *batch)
{
    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
    if (zmq_poll(&item, 1, wait_ms) <= 0)
        return false;
    unsigned frames = socket == reader.sub ? 3 : 4;
    for (unsigned i = 0; i < frames; i++) {
        zmq_msg_init(batch);
        ck_assert_int_ge(zmq_msg_recv(batch, socket, 0), 0);
        ck_assert_int_eq(zmq_msg_more(batch), i + 1 < frames);
        if (i + 2 == frames) {
            ck_assert_uint_eq(zmq_msg_size(batch), 8);
            *number = number_of(zmq_msg_data(batch));
        }
        if (i + 1 < frames)
            zmq_msg_close(batch);
    }
    return true;
}

static void apply(uint64_t number, zmq_msg_t *batch)
{
    const uint8_t *at = zmq_msg_data(batch);
    struct tierce__msgpack m = {at, at + zmq_msg_size(batch)};
    size_t stored = 0;
    read_events(&m, &reader.set, &stored);
    ck_assert_ptr_eq(m.at, m.end);
    reader.next = number + 1;
    reader.batches++;
}

static void take_snapshot(void)
{
    static uint8_t body[BODY_MAX];
    static const char request[] = "GET /kv_events/snapshot HTTP/1.0\r\n\r\n";
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(write(fd, request, strlen(request)), (ssize_t)strlen(request));
    size_t bytes = 0;
    for (ssize_t n = 1; n > 0; bytes += (size_t)n) {
        n = read(fd, body + bytes, sizeof(body) - bytes);
        ck_assert_int_ge(n, 0);
    }
    close(fd);
    const uint8_t *at = memmem(body, bytes, "\r\n\r\n", 4);
    ck_assert_ptr_nonnull(at);
    ck_assert_ptr_nonnull(memmem(body, (size_t)(at - body), "application/msgpack", 19));
    struct tierce__msgpack m = {at + 4, body + bytes};
    struct tierce__msgpack_item head = next_item(&m);
    uint64_t sequence = 0;
    size_t stored = 0;
    ck_assert(head.type == TIERCE__MSGPACK_MAP && head.count == 5);
    for (uint32_t i = 0; i < head.count; i++) {
        struct tierce__msgpack_item name = next_item(&m), value = next_item(&m);
        if (is_text(&name, "sequence"))
            sequence = value.number;
        else if (is_text(&name, "instance"))
            reader.instance = value.number;
        else if (is_text(&name, "topic"))
            ck_assert(is_text(&value, "kv@pod@model"));
    }
    reader.set.count = 0;
    while (m.at < m.end && (*m.at & 0xf0) == 0x90)
        read_events(&m, &reader.set, &stored);
    head = next_item(&m);
    ck_assert(head.type == TIERCE__MSGPACK_MAP && head.count == 1);
    head = next_item(&m);
    ck_assert(is_text(&head, "end"));
    ck_assert_uint_eq(next_item(&m).number, stored);
    ck_assert_ptr_eq(m.at, m.end);
    reader.next = sequence + 1;
    reader.snapshots++;
}

/* Takes what is missing from `next` on. If it is no longer there, and after a replay that was cut,
 * the contents come from a snapshot. */
static void catch_up(void)
{
    uint8_t request[8];
    uint64_t number;
    zmq_msg_t batch;
    bool is_first = true, is_exact = true;
    for (unsigned i = 0; i < 8; i++)
        request[i] = (uint8_t)(reader.next >> 8 * (7 - i));
    ck_assert_int_eq(zmq_send(reader.dealer, "", 0, ZMQ_SNDMORE), 0);
    ck_assert_int_eq(zmq_send(reader.dealer, request, 8, 0), 8);
    reader.replays++;
    while (receive(reader.dealer, 30000, &number, &batch) && number != UINT64_MAX) {
        if (is_first && number > reader.next)
            is_exact = !reader.has_snapshots;
        is_first = false;
        if (is_exact)
            apply(number, &batch);
        zmq_msg_close(&batch);
    }
    ck_assert_uint_eq(number, UINT64_MAX);
    zmq_msg_close(&batch);
    if (!is_exact) {
        take_snapshot();
        catch_up();
    }
}

/* Reads what has arrived; one message in `drop` is lost. */
static void follow(struct test_random *random, unsigned drop)
{
    uint64_t number;
    zmq_msg_t batch;
    while (receive(reader.sub, 20, &number, &batch)) {
        if (drop > 0 && test_random_below(random, drop) == 0)
            reader.dropped++;
        else if (number == reader.next)
            apply(number, &batch);
        else if (number > reader.next)
            catch_up();
        zmq_msg_close(&batch);
    }
}

/* ---- the engine ------------------------------------------------------------------------------ */

static struct set contents;

static void on_chunk(void *arg, const struct tierce_event_batch *batch)
{
    (void)arg;
    for (size_t i = 0; i < batch->count; i++) {
        const struct tierce_event *e = &batch->events[i];
        if (hidden != NULL && memcmp(e->ns_digest, shown_digest, TIERCE_HASH_BYTES) != 0) {
            hidden_count++;
            continue;
        }
        change(&contents,
               &(struct block){number_of(e->ns_digest), number_of(e->hash + 24),
                               strcmp(e->tier, "disk") == 0},
               true);
    }
}

static void ignore(void *arg, const struct tierce_event_batch *batch)
{
    (void)arg;
    (void)batch;
}

static void read_contents(void)
{
    struct tierce_subscription *s;
    struct tierce_events_opts opts = {.size = sizeof(opts), .fn = ignore};
    uint64_t sequence;
    contents.count = hidden_count = 0;
    ck_assert_int_eq(tierce_events_subscribe(&s, fx.engine, &opts), 0);
    ck_assert_int_eq(tierce_events_snapshot(s, &sequence, on_chunk, NULL), 0);
    tierce_events_unsubscribe(s);
}

static void wait_until_equal(void)
{
    uint64_t deadline_ns = tierce__deadline_in_ms(30000);
    int rc = tierce_engine_flush(fx.engine, 60000);
    ck_assert(rc == 0 || rc == TIERCE_E_FULL); /* the disk is small */
    read_contents();
    ck_assert_uint_gt(contents.count, 0);
    do {
        ck_assert_msg(tierce__now_ns() < deadline_ns, "the reader has %zu of %zu blocks",
                      reader.set.count, contents.count);
        follow(NULL, 0);
        catch_up();
    } while (!is_equal(&reader.set, &contents));
}

static void make_addresses(void)
{
    int fd;
    char why[256];
    temp_folder_make(folder);
    snprintf(endpoint, sizeof(endpoint), "ipc://%s/pub", folder);
    snprintf(replay_endpoint, sizeof(replay_endpoint), "ipc://%s/replay", folder);
    port = 0;
    ck_assert_int_eq(tierce__listen_tcp(&fd, &port, "127.0.0.1", why), 0);
    close(fd);
    snprintf(port_text, sizeof(port_text), "%u", port);
}

/* From now on engines encrypt, and readers have a key. */
static void make_keys(void)
{
    char why[256];
    snprintf(key_path, sizeof(key_path), "%s/key", folder);
    snprintf(readers_path, sizeof(readers_path), "%s/readers", folder);
    ck_assert_int_eq(tierce__zmq_curve_create(&server_keys, key_path, why), 0);
    ck_assert_int_eq(zmq_curve_keypair(reader_keys.public_key, reader_keys.secret_key), 0);
    FILE *file = fopen(readers_path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fchmod(fileno(file), 0600), 0);
    ck_assert_int_gt(fprintf(file, "read router %s\n", reader_keys.public_key), 0);
    ck_assert_int_eq(fclose(file), 0);
    is_encrypted = true;
}

static void open_engine(const char *ring, const char *replay)
{
    fx_open(&fx, true,
            (const char *[]){"kv_events.endpoint",
                             endpoint,
                             "kv_events.replay_endpoint",
                             replay_endpoint,
                             "kv_events.snapshot_port",
                             port_text,
                             "kv_events.topic",
                             "kv@pod@model",
                             "kv_events.dp_rank",
                             "5",
                             "kv_events.replay",
                             replay,
                             "events.ring",
                             ring,
                             "kv_events.namespaces",
                             shown_text,
                             is_encrypted ? "kv_events.curve_key_file" : NULL,
                             key_path,
                             "kv_events.curve_readers_file",
                             readers_path,
                             NULL});
}

/* Before the engine is opened: only the namespace of its view is published. */
static void show_one_namespace(void)
{
    struct tierce_namespace ns = fx_namespace();
    char *text;
    ck_assert_int_eq(tierce_namespace_text(&text, &ns), 0);
    tierce_namespace_digest(shown_digest, text);
    tierce__hex_encode(shown_text, shown_digest, TIERCE_HASH_BYTES);
    shown_text[12] = '\0'; /* as logs have it */
    tierce_free(text);
}

static void open_hidden(void)
{
    struct tierce_namespace ns = fx_namespace();
    ns.weights = "44556677";
    ck_assert_int_eq(tierce_view_open(&hidden, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
}

static void end_all(void)
{
    close_reader();
    fx_close(&fx);
    fx_remove(&fx);
    temp_folder_remove(folder);
}

static void store(uint32_t seed)
{
    struct tierce_view *view = fx.view;
    if (hidden != NULL && seed % 3 == 0)
        fx.view = hidden;
    struct tierce_chain *chain = fx_chain(&fx, seed, CHAIN_BLOCKS, 8);
    note_known(chain);
    ck_assert_int_ge(fx_store(&fx, chain, CHAIN_BLOCKS, fx_ids, false), 0);
    tierce_chain_destroy(chain);
    fx.view = view;
}

static void change_engine(struct test_random *random, unsigned count)
{
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    for (unsigned i = 0; i < count; i++) {
        if (test_random_below(random, 5) > 0)
            store((uint32_t)test_random_below(random, 400));
        else
            memory->ops->evict(memory, 1000 + test_random_below(random, 400000));
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Lost messages, a replay that reaches back or not, and a publisher that starts again; 3:
 * encrypted; 4: the chunks of one of two tenants. */
START_TEST(a_reader_is_exact)
{
    struct test_random random = test_random_start("kv_events");
    make_addresses();
    if (_i == 3)
        make_keys();
    if (_i == 4)
        show_one_namespace();
    open_engine("65536", _i == 1 ? "4KiB" : "16MiB");
    if (_i == 4)
        open_hidden();
    open_reader(_i != 2);
    for (unsigned round = 0; round < 4; round++) {
        change_engine(&random, 40);
        follow(&random, 3);
    }
    wait_until_equal();
    ck_assert_int_eq(hidden_count > 0, _i == 4);
    ck_assert_uint_gt(with_tokens, 0);
    ck_assert_uint_eq(without_tokens, 0);
    uint64_t instance = reader.instance;
    tierce_view_close(hidden);
    fx_close(&fx);
    open_engine("65536", _i == 1 ? "4KiB" : "16MiB");
    if (_i == 4)
        open_hidden();
    change_engine(&random, 40);
    wait_until_equal();
    tierce_view_close(hidden);
    ck_assert_uint_gt(without_tokens, 0); /* of the disk, which another process has filled */
    ck_assert_uint_gt(reader.replays, 0);
    ck_assert(_i == 2 || reader.instance != instance);
    ck_assert_int_eq(reader.snapshots > 0, _i != 2);
    end_all();
}
END_TEST

/* Changes faster than the publisher: the contents are sent again, after pauses that grow, and need
 * no snapshot. */
START_TEST(lost_changes_are_made_good)
{
    struct test_random random = test_random_start("kv_events_ring");
    uint64_t deadline_ns = tierce__deadline_in_ms(30000);
    record_log(TIERCE_LOG_WARN);
    make_addresses();
    open_engine("16", "16MiB");
    open_reader(false);
    while (recorded_with("kv_events_lost", "times=4 pause_ms=800") == 0) {
        ck_assert_uint_lt(tierce__now_ns(), deadline_ns);
        change_engine(&random, 20);
    }
    ck_assert_uint_eq(recorded_with("kv_events_lost", "times=1 pause_ms=100"), 1);
    ck_assert_uint_eq(recorded_with("kv_events_lost", "times=2 pause_ms=200"), 1);
    ck_assert_uint_eq(recorded("kv_events_lost"), 3);
    wait_until_equal();
    change_engine(&random, 20);
    wait_until_equal();
    ck_assert_uint_eq(reader.snapshots, 0);
    end_all();
}
END_TEST

static void catch_up_until_equal(void)
{
    uint64_t deadline_ns = tierce__deadline_in_ms(30000);
    do {
        ck_assert_msg(tierce__now_ns() < deadline_ns, "the reader has %zu of %zu blocks",
                      reader.set.count, contents.count);
        catch_up();
    } while (!is_equal(&reader.set, &contents));
}

/* Each allocation fails once. Without memory for the first contents, they are sent later, although
 * nothing changes. */
START_TEST(first_contents_are_tried_again)
{
    struct tierce__kv_publisher *publisher;
    char why[256];
    uint64_t nth = 0, made = 0;
    make_addresses();
    fx_open(&fx, true, NULL);
    store(1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    read_contents();
    ck_assert_uint_gt(contents.count, 0);
    struct tierce_config *config =
        fx_config("", (const char *[]){"kv_events.endpoint", endpoint, "kv_events.replay_endpoint",
                                       replay_endpoint, "kv_events.dp_rank", "5", NULL});
    do {
        open_reader(false);
        tierce__alloc_fail_nth(++nth);
        int rc = tierce__kv_publisher_start(&publisher, fx.engine, config, why);
        ck_assert_msg(rc == 0 || rc == -ENOMEM, "%s", why);
        if (rc == 0) {
            catch_up_until_equal();
            made = tierce__alloc_fail_nth(0);
            tierce__kv_publisher_stop(publisher);
        }
        close_reader();
    } while (made == 0 || made >= nth);
    tierce__alloc_fail_nth(0);
    tierce_config_destroy(config);
    fx_close(&fx);
    fx_remove(&fx);
    temp_folder_remove(folder);
}
END_TEST

/* Requests that are none get no answer, and others do. */
START_TEST(invalid_requests)
{
    static const size_t lengths[] = {0, 7, 9, 64};
    char bytes[64] = "";
    make_addresses();
    open_engine("65536", "16MiB");
    open_reader(true);
    store(1);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        ck_assert_int_ge(zmq_send(reader.dealer, bytes, lengths[i], ZMQ_SNDMORE), 0);
        ck_assert_int_ge(zmq_send(reader.dealer, bytes, lengths[i], 0), 0);
    }
    ck_assert_int_ge(zmq_send(reader.dealer, bytes, 8, 0), 0);
    wait_until_equal();
    end_all();
}
END_TEST

/* Chunks of remote stores and named values are not published; those of unknown namespaces are. */
START_TEST(what_is_published)
{
    static const uint8_t digest[TIERCE_HASH_BYTES];
    static const struct {
        const char *tier, *ns_text;
        size_t hashes;
    } cases[] = {{"memory", "tierce-namespace=1\nblock_tokens=16\n", 1},
                 {"disk", NULL, 1},
                 {"redis", "tierce-namespace=1\nblock_tokens=16\n", 0},
                 {"memory", TIERCE__OBJECT_SPACE_TEXT "x\n", 0},
                 {"disk", TIERCE__OBJECT_SPACE_TEXT "x\n", 0}};
    for (unsigned kind = TIERCE_EVENT_ADMIT; kind <= TIERCE_EVENT_EVICT; kind++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct tierce__line out = {0};
            struct tierce__kv_form form = {0};
            const struct tierce_event event = {.sequence = 1,
                                               .kind = (enum tierce_event_kind)kind,
                                               .tier = cases[i].tier,
                                               .ns_text = cases[i].ns_text,
                                               .ns_digest = digest,
                                               .block_count = 16};
            size_t count = 1;
            size_t hashes = tierce__kv_batch_write(&out, &form, &event, &count, 0);
            ck_assert_uint_eq(count, 1);
            ck_assert_uint_eq(hashes, cases[i].hashes);
            ck_assert_int_eq(out.bytes > 0, hashes > 0);
            tierce__line_clear(&out);
        }
    }
}
END_TEST

static void check_refused(const char *const *sets, const char *text)
{
    struct tierce_config *config = fx_config("", sets);
    struct tierce_engine *engine;
    char why[TIERCE_CONFIG_ERROR_BYTES];
    ck_assert_int_lt(tierce_engine_open(&engine, config, why), 0);
    ck_assert_msg(strncmp(why, text, strlen(text)) == 0, "%s", why);
    tierce_config_destroy(config);
}

START_TEST(invalid_parameters)
{
    make_addresses();
    check_refused((const char *[]){"kv_events.snapshot_port", "5", NULL},
                  "kv_events.snapshot_port requires kv_events.endpoint");
    check_refused((const char *[]){"kv_events.replay_endpoint", endpoint, NULL},
                  "kv_events.replay_endpoint requires kv_events.endpoint");
    const char *const lists[] = {"0123456", "01234567,", ",01234567", "0123456g", "01234567 89"};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        check_refused((const char *[]){"kv_events.endpoint", endpoint, "kv_events.namespaces",
                                       lists[i], NULL},
                      "kv_events.namespaces '");
    check_refused((const char *[]){"kv_events.endpoint", "inproc://x", NULL},
                  "kv_events: 'inproc://x' is not tcp://ADDRESS:PORT or ipc://PATH");
    check_refused((const char *[]){"kv_events.endpoint", "tcp://127.0.0.1:x", NULL},
                  "kv_events: 'tcp://127.0.0.1:x' cannot be bound: Invalid argument");
    check_refused((const char *[]){"kv_events.endpoint", endpoint, "kv_events.curve_key_file",
                                   endpoint, NULL},
                  "kv_events.curve_key_file and kv_events.curve_readers_file must be set together");
    check_refused((const char *[]){"kv_events.curve_readers_file", endpoint,
                                   "kv_events.curve_key_file", endpoint, NULL},
                  "kv_events.curve_key_file requires kv_events.endpoint");
    check_refused((const char *[]){"kv_events.endpoint", endpoint, "kv_events.curve_key_file",
                                   "/nowhere", "kv_events.curve_readers_file", "/nowhere", NULL},
                  "kv_events.curve_key_file: /nowhere");
    make_keys();
    check_refused((const char *[]){"kv_events.endpoint", endpoint, "kv_events.curve_key_file",
                                   key_path, "kv_events.curve_readers_file", key_path, NULL},
                  "kv_events: /tmp/tierce-kv-");
    open_engine("65536", "16MiB");
    check_refused((const char *[]){"kv_events.endpoint", "tcp://127.0.0.1:0",
                                   "kv_events.snapshot_port", port_text, NULL},
                  "kv_events.snapshot_port: ");
    fx_close(&fx);
    fx_remove(&fx);
    temp_folder_remove(folder);
}
END_TEST

/* The name of an interface is not known to be this host alone; that of this test is. */
START_TEST(open_endpoints_are_logged)
{
    record_log(TIERCE_LOG_WARN);
    make_addresses();
    make_keys();
    static const char *const hints[] = {"set kv_events.curve_key_file", "set kv_events.token_file"};
    static const unsigned logged[] = {0, 1, 2, 2}; /* 3: it is encrypted */
    for (unsigned i = 0; i < 4; i++) {
        fx_open(&fx, true,
                (const char *[]){"kv_events.endpoint", i == 0 ? endpoint : "tcp://lo:*",
                                 "kv_events.tokens", i == 1 ? "0" : "1MiB",
                                 i > 2 ? "kv_events.curve_key_file" : NULL, key_path,
                                 "kv_events.curve_readers_file", readers_path, NULL});
        ck_assert_uint_eq(recorded("kv_events_open"), logged[i]);
        ck_assert_uint_eq(recorded_with("kv_events_open", hints[0]), logged[i]);
        ck_assert_uint_eq(recorded_with("kv_events_open", "contents=hashes"), i > 0);
        ck_assert_uint_eq(recorded_with("kv_events_open", "contents=prompts"), i > 1);
        ck_assert_uint_eq(recorded_with("kv_events_open", "kv_events.tokens=0"), i > 1);
        fx_close(&fx);
    }
    fx_open(&fx, true, (const char *[]){"kv_events.endpoint", "tcp://[::1]:*", NULL});
    ck_assert_uint_eq(recorded("kv_events_open"), logged[3]);
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(recorded_with("kv_events_open", hints[1]), 0);
    temp_folder_remove(folder);
}
END_TEST

CHECK_MAIN("kv_events", .seconds = 110, .setup = silence_log, .at_once = true,
           .tests = {lost_changes_are_made_good, first_contents_are_tried_again, invalid_requests,
                     invalid_parameters, open_endpoints_are_logged, what_is_published},
           .loops = {{a_reader_is_exact, 0, 5}})
