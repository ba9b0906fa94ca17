/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets of a publisher of KV events: sequences of lost batches, and replays to many readers.
 */
#include "check_main.h"
#include "silent_log.h"
#include "temp_folder.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/observe/kv_stream.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { WAIT_MS = 30000, FIRST = 1000 };

static struct tierce__kv_stream *stream;
static char folder[] = "/tmp/tierce-kv-stream-XXXXXX";
static char endpoint[64], replay_endpoint[64];
static pthread_t server;
static _Atomic bool is_ending;
static void *context;

static void *serve(void *arg)
{
    (void)arg;
    while (!atomic_load(&is_ending))
        tierce__kv_stream_serve(stream, TIERCE__DEADLINE_NEVER);
    return NULL;
}

static void setup(void)
{
    char why[256];
    silence_log();
    temp_folder_make(folder);
    snprintf(endpoint, sizeof(endpoint), "ipc://%s/pub", folder);
    snprintf(replay_endpoint, sizeof(replay_endpoint), "ipc://%s/replay", folder);
    const struct tierce__kv_stream_opts opts = {.size = sizeof(opts),
                                                .endpoint = endpoint,
                                                .replay = replay_endpoint,
                                                .topic = "t",
                                                .first = FIRST,
                                                .bytes_max = 1 << 30};
    ck_assert_msg(tierce__kv_stream_open(&stream, &opts, why) == 0, "%s", why);
    atomic_store(&is_ending, false);
    ck_assert_int_eq(pthread_create(&server, NULL, serve, NULL), 0);
    context = zmq_ctx_new();
    ck_assert_int_eq(zmq_ctx_set(context, ZMQ_MAX_SOCKETS, 512), 0);
}

static void teardown(void)
{
    zmq_ctx_term(context);
    atomic_store(&is_ending, true);
    tierce__kv_stream_wake(stream);
    ck_assert_int_eq(pthread_join(server, NULL), 0);
    tierce__kv_stream_close(stream);
    temp_folder_remove(folder);
}

static void *open_socket(int type, const char *address)
{
    int zero = 0, few = 1, wait_ms = WAIT_MS;
    void *socket = zmq_socket(context, type);
    ck_assert_ptr_nonnull(socket);
    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof(wait_ms));
    zmq_setsockopt(socket, ZMQ_RCVHWM, type == ZMQ_DEALER ? &few : &zero, sizeof(few));
    if (type == ZMQ_SUB)
        zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    ck_assert_int_eq(zmq_connect(socket, address), 0);
    return socket;
}

static void request(void *dealer, uint64_t first)
{
    uint8_t number[8];
    for (unsigned i = 0; i < 8; i++)
        number[i] = (uint8_t)(first >> 8 * (7 - i));
    ck_assert_int_eq(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0);
    ck_assert_int_eq(zmq_send(dealer, number, 8, 0), 8);
}

/* Receives a message, and returns its sequence; *bytes: of its batch. */
static uint64_t receive(void *socket, unsigned frames, size_t *bytes)
{
    uint64_t sequence = 0;
    for (unsigned i = 0; i < frames; i++) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        ck_assert_msg(zmq_msg_recv(&frame, socket, 0) >= 0, "frame %u: %s", i,
                      zmq_strerror(zmq_errno()));
        ck_assert_int_eq(zmq_msg_more(&frame), i + 1 < frames);
        *bytes = zmq_msg_size(&frame);
        const uint8_t *at = zmq_msg_data(&frame);
        for (unsigned k = 0; i + 2 == frames && k < 8; k++)
            sequence = sequence << 8 | at[k];
        zmq_msg_close(&frame);
    }
    return sequence;
}

/* Sends `count` batches of so many bytes. */
static void send_batches(unsigned count, size_t bytes)
{
    char *batch = calloc(1, bytes);
    for (unsigned i = 0; i < count; i++)
        ck_assert_int_eq(tierce__kv_stream_send(stream, batch, bytes), 0);
    free(batch);
}

/* Reads a whole replay, and returns how many batches it had. */
static unsigned read_replay(void *dealer, uint64_t first)
{
    unsigned count = 0;
    size_t bytes;
    uint64_t sequence, last = first - 1;
    while ((sequence = receive(dealer, 4, &bytes)) != UINT64_MAX) {
        ck_assert_uint_gt(sequence, last);
        ck_assert_uint_gt(bytes, 0);
        last = sequence;
        count++;
    }
    return count;
}

/* Sends until the subscriber receives: a PUB socket drops messages before. */
static uint64_t first_received(void *sub)
{
    zmq_pollitem_t item = {.socket = sub, .events = ZMQ_POLLIN};
    size_t bytes;
    do {
        send_batches(1, 10);
    } while (zmq_poll(&item, 1, 10) == 0);
    return receive(sub, 3, &bytes);
}

/* For lack of memory a batch is lost. Its sequence is missing in the stream and in replays. */
START_TEST(a_lost_batch_leaves_a_gap)
{
    void *sub = open_socket(ZMQ_SUB, endpoint), *dealer = open_socket(ZMQ_DEALER, replay_endpoint);
    uint64_t sequence = first_received(sub), next = tierce__kv_stream_next(stream);
    size_t bytes;
    while (sequence + 1 < next)
        sequence = receive(sub, 3, &bytes);
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__kv_stream_send(stream, "lost", 4), -ENOMEM);
    tierce__alloc_fail_nth(0);
    tierce__kv_stream_skip(stream);
    ck_assert_uint_eq(tierce__kv_stream_next(stream), next + 2);
    send_batches(1, 10);
    ck_assert_uint_eq(receive(sub, 3, &bytes), next + 2);
    request(dealer, next - 1);
    ck_assert_uint_eq(receive(dealer, 4, &bytes), next - 1);
    ck_assert_uint_eq(receive(dealer, 4, &bytes), next + 2);
    ck_assert_uint_eq(receive(dealer, 4, &bytes), UINT64_MAX);
    request(dealer, next);
    ck_assert_uint_eq(receive(dealer, 4, &bytes), next + 2);
    ck_assert_uint_eq(receive(dealer, 4, &bytes), UINT64_MAX);
    zmq_close(sub);
    zmq_close(dealer);
}
END_TEST

/* The reader that does not read loses nothing either. Its batches fill its queue and the socket. */
START_TEST(a_slow_reader_delays_no_other)
{
    enum { BATCHES = 10000 };
    void *slow = open_socket(ZMQ_DEALER, replay_endpoint);
    void *fast = open_socket(ZMQ_DEALER, replay_endpoint);
    size_t bytes;
    send_batches(BATCHES, 4096);
    request(slow, FIRST);
    ck_assert_uint_eq(receive(slow, 4, &bytes), FIRST); /* so its replay is in progress */
    request(fast, FIRST);
    ck_assert_uint_eq(read_replay(fast, FIRST), BATCHES);
    ck_assert_uint_eq(read_replay(slow, FIRST + 1), BATCHES - 1);
    zmq_close(slow);
    zmq_close(fast);
}
END_TEST

/* More readers than have a turn at once; each asks twice, and gets its answers one after the
 * other. */
START_TEST(many_readers)
{
    enum { READERS = 100, BATCHES = 300 };
    void *dealers[READERS];
    send_batches(BATCHES, 100);
    for (unsigned i = 0; i < READERS; i++) {
        dealers[i] = open_socket(ZMQ_DEALER, replay_endpoint);
        request(dealers[i], FIRST + i);
        request(dealers[i], FIRST + BATCHES - 1);
    }
    for (unsigned i = READERS; i-- > 0;) {
        ck_assert_uint_eq(read_replay(dealers[i], FIRST + i), BATCHES - i);
        ck_assert_uint_eq(read_replay(dealers[i], FIRST + BATCHES - 1), 1);
        zmq_close(dealers[i]);
    }
}
END_TEST

CHECK_MAIN("kv_stream", .seconds = 110, .setup = setup, .teardown = teardown,
           .tests = {a_lost_batch_leaves_a_gap, a_slow_reader_delays_no_other, many_readers})
