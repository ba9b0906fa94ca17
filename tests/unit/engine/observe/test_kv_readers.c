/* SPDX-License-Identifier: Apache-2.0 */
/* A stream with CURVE: readers whose keys are in the file get batches and replays, others nothing.
 * Keys in files. */
#include "check_main.h"
#include "log_record.h"
#include "temp_folder.h"
#include "wait_for.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/observe/kv_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

enum { WAIT_MS = 30000, FIRST = 1000 };

static struct tierce__kv_stream *stream;
static char folder[] = "/tmp/tierce-kv-readers-XXXXXX";
static char endpoint[64], replay_endpoint[64], readers_path[80], key_path[80];
static struct tierce__zmq_curve_pair server_pair, friend_pair, stranger_pair;
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

static void write_file(const char *path, const char *text, mode_t mode)
{
    char beside[96];
    snprintf(beside, sizeof(beside), "%s.new", path);
    FILE *file = fopen(beside, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fchmod(fileno(file), mode), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(rename(beside, path), 0);
}

static void allow(const struct tierce__zmq_curve_pair *a, const struct tierce__zmq_curve_pair *b)
{
    char text[256];
    int n = snprintf(text, sizeof(text), "# readers\n\nread friend %s\n", a->public_key);
    if (b != NULL)
        snprintf(text + n, sizeof(text) - (size_t)n, "read other %s\n", b->public_key);
    write_file(readers_path, text, 0600);
}

static void make_pair(struct tierce__zmq_curve_pair *pair)
{
    ck_assert_int_eq(zmq_curve_keypair(pair->public_key, pair->secret_key), 0);
}

static int open_stream(char why[256])
{
    const struct tierce__kv_stream_opts opts = {.size = sizeof(opts),
                                                .endpoint = endpoint,
                                                .replay = replay_endpoint,
                                                .topic = "t",
                                                .first = FIRST,
                                                .bytes_max = 1 << 20,
                                                .curve = &server_pair,
                                                .readers = readers_path};
    return tierce__kv_stream_open(&stream, &opts, why);
}

static void setup(void)
{
    record_log(TIERCE_LOG_WARN);
    temp_folder_make(folder);
    snprintf(endpoint, sizeof(endpoint), "ipc://%s/pub", folder);
    snprintf(replay_endpoint, sizeof(replay_endpoint), "ipc://%s/replay", folder);
    snprintf(readers_path, sizeof(readers_path), "%s/readers", folder);
    snprintf(key_path, sizeof(key_path), "%s/key", folder);
    make_pair(&server_pair);
    make_pair(&friend_pair);
    make_pair(&stranger_pair);
    allow(&friend_pair, NULL);
    context = zmq_ctx_new();
}

static void teardown(void)
{
    zmq_ctx_term(context);
    temp_folder_remove(folder);
}

static void start(void)
{
    char why[256];
    ck_assert_msg(open_stream(why) == 0, "%s", why);
    atomic_store(&is_ending, false);
    ck_assert_int_eq(pthread_create(&server, NULL, serve, NULL), 0);
}

static void stop(void)
{
    atomic_store(&is_ending, true);
    tierce__kv_stream_wake(stream);
    ck_assert_int_eq(pthread_join(server, NULL), 0);
    tierce__kv_stream_close(stream);
}

/* ---- readers --------------------------------------------------------------------------------- */

struct reader {
    void *sub, *dealer;
    void *sub_monitor, *dealer_monitor;
};

/* own NULL: without encryption. */
static void *open_socket(int type, const char *address, const struct tierce__zmq_curve_pair *own,
                         const char *server_key)
{
    int zero = 0, wait_ms = WAIT_MS;
    void *socket = zmq_socket(context, type);
    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof(wait_ms));
    if (type == ZMQ_SUB)
        zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    if (own != NULL)
        ck_assert_int_eq(tierce__zmq_curve_join(socket, own, server_key), 0);
    if (address != NULL)
        ck_assert_int_eq(zmq_connect(socket, address), 0);
    return socket;
}

/* Connects; the monitor's events tell how that ends. */
static void *connect_watched(void *socket, const char *address)
{
    static unsigned names;
    char name[64];
    snprintf(name, sizeof(name), "inproc://monitor-%u", names++);
    ck_assert_int_eq(zmq_socket_monitor(socket, name, ZMQ_EVENT_ALL), 0);
    void *monitor = open_socket(ZMQ_PAIR, name, NULL, NULL);
    ck_assert_int_eq(zmq_connect(socket, address), 0);
    return monitor;
}

static void open_reader(struct reader *r, const struct tierce__zmq_curve_pair *own,
                        const char *server_key)
{
    r->sub = open_socket(ZMQ_SUB, NULL, own, server_key);
    r->sub_monitor = connect_watched(r->sub, endpoint);
    r->dealer = open_socket(ZMQ_DEALER, NULL, own, server_key);
    r->dealer_monitor = connect_watched(r->dealer, replay_endpoint);
}

/* A monitor without a reader blocks libzmq's thread at its next event, so it ends first. */
static void close_watched(void *socket, void *monitor)
{
    ck_assert_int_eq(zmq_socket_monitor(socket, NULL, 0), 0);
    zmq_close(monitor);
    zmq_close(socket);
}

static void close_reader(struct reader *r)
{
    close_watched(r->dealer, r->dealer_monitor);
    close_watched(r->sub, r->sub_monitor);
}

/* Waits for the end of a handshake. Returns whether it succeeded; a connection that ends before is
 * a refusal. */
static bool is_admitted(void *monitor)
{
    for (;;) {
        uint16_t event;
        char bytes[256];
        ck_assert_int_ge(zmq_recv(monitor, bytes, sizeof(bytes), 0), (int)sizeof(event));
        memcpy(&event, bytes, sizeof(event));
        ck_assert_int_ge(zmq_recv(monitor, bytes, sizeof(bytes), 0), 0); /* the address */
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
            return true;
        if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH || event == ZMQ_EVENT_DISCONNECTED ||
            event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL ||
            event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL)
            return false;
    }
}

static bool has_message(void *socket)
{
    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
    return zmq_poll(&item, 1, 0) > 0;
}

/* Receives a message; returns its frames. *text: of the last one. */
static unsigned receive(void *socket, char text[16])
{
    unsigned count = 0;
    int more = 1;
    size_t size = sizeof(more);
    for (; more != 0; count++) {
        int n = zmq_recv(socket, text, 15, 0);
        ck_assert_msg(n >= 0 && n < 16, "%s", zmq_strerror(zmq_errno()));
        text[n] = '\0';
        ck_assert_int_eq(zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size), 0);
    }
    return count;
}

/* Sends batches until the reader has one: its subscription arrives after its handshake. */
static void send_until_received(const struct reader *r)
{
    char text[16];
    WAIT_WITHIN(WAIT_MS, has_message(r->sub) || tierce__kv_stream_send(stream, "batch", 5) != 0);
    ck_assert_uint_eq(receive(r->sub, text), 3);
    ck_assert_str_eq(text, "batch");
}

static void request_replay(const struct reader *r)
{
    static const uint8_t first[8];
    ck_assert_int_ge(zmq_send(r->dealer, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT), 0);
    ck_assert_int_eq(zmq_send(r->dealer, first, sizeof(first), ZMQ_DONTWAIT), 8);
}

static void check_replay(const struct reader *r)
{
    char text[16];
    request_replay(r);
    ck_assert_uint_eq(receive(r->dealer, text), 4);
    ck_assert_str_eq(text, "batch");
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(only_readers_with_keys_of_the_file)
{
    struct reader friend, stranger, open_one, misled;
    start();
    open_reader(&friend, &friend_pair, server_pair.public_key);
    open_reader(&stranger, &stranger_pair, server_pair.public_key);
    open_reader(&open_one, NULL, NULL);
    open_reader(&misled, &friend_pair, stranger_pair.public_key);
    ck_assert(is_admitted(friend.sub_monitor));
    struct reader *others[] = {&stranger, &open_one, &misled};
    for (size_t i = 0; i < 3; i++) {
        request_replay(others[i]); /* waits in the socket for a connection */
        ck_assert(!is_admitted(others[i]->sub_monitor));
        ck_assert(!is_admitted(others[i]->dealer_monitor));
    }
    send_until_received(&friend);
    check_replay(&friend);
    for (size_t i = 0; i < 3; i++) {
        ck_assert(!has_message(others[i]->sub));
        ck_assert(!has_message(others[i]->dealer));
        close_reader(others[i]);
    }
    char field[80];
    snprintf(field, sizeof(field), "public_key=\"%s\"", stranger_pair.public_key);
    ck_assert_uint_gt(recorded_with("kv_reader_refused", field), 0);
    close_reader(&friend);
    stop();
}
END_TEST

START_TEST(the_file_is_read_again)
{
    struct reader reader;
    start();
    open_reader(&reader, &stranger_pair, server_pair.public_key);
    ck_assert(!is_admitted(reader.sub_monitor));
    close_reader(&reader); /* libzmq does not connect again after a refusal */
    allow(&friend_pair, &stranger_pair);
    open_reader(&reader, &stranger_pair, server_pair.public_key);
    ck_assert(is_admitted(reader.sub_monitor));
    send_until_received(&reader);
    close_reader(&reader);
    write_file(readers_path, "read me\n", 0600);
    open_reader(&reader, &stranger_pair, server_pair.public_key);
    ck_assert(is_admitted(reader.sub_monitor));
    ck_assert_uint_eq(recorded_with("kv_readers_kept",
                                    "line 1: there are fewer than three words; expected ROLES NAME "
                                    "PUBLIC-KEY"),
                      1);
    close_reader(&reader);
    allow(&friend_pair, NULL);
    open_reader(&reader, &stranger_pair, server_pair.public_key);
    ck_assert(!is_admitted(reader.sub_monitor));
    close_reader(&reader);
    stop();
}
END_TEST

START_TEST(files_of_readers_that_are_invalid)
{
    static const struct {
        const char *text;
        mode_t mode;
        const char *why;
    } cases[] = {
        {"read a 0123\n", 0600, "line 1: the third word is not a public key of CURVE, 40 chara"},
        {"write a rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\n", 0600, "the role must be read"},
        {"", 0644, "other users"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char why[256] = "";
        write_file(readers_path, cases[i].text, cases[i].mode);
        ck_assert_int_eq(open_stream(why), TIERCE_E_CONFIG);
        ck_assert_msg(strstr(why, cases[i].why) != NULL, "%s", why);
    }
    ck_assert_int_eq(unlink(readers_path), 0);
    char why[256] = "";
    ck_assert_int_eq(open_stream(why), -ENOENT);
    ck_assert_msg(strstr(why, "kv_events.curve_readers_file: ") == why, "%s", why);
}
END_TEST

START_TEST(files_of_keys)
{
    struct tierce__zmq_curve_pair made, read;
    char why[256], text[128];
    struct stat info;
    ck_assert_int_eq(tierce__zmq_curve_create(&made, key_path, why), 0);
    ck_assert_int_eq(stat(key_path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 07777, 0600);
    ck_assert_int_eq(tierce__zmq_curve_read(&read, "p", key_path, why), 0);
    ck_assert_mem_eq(&made, &read, sizeof(made));
    ck_assert_int_eq(tierce__zmq_curve_create(&read, key_path, why), -EEXIST);
    ck_assert_msg(strstr(why, "choose another FILE") != NULL, "%s", why);
    ck_assert_int_eq(tierce__zmq_curve_read(&read, "p", key_path, why), 0); /* the same one */
    ck_assert_mem_eq(&made, &read, sizeof(made));
    const char *const invalid[] = {"", "x", "%s%s", "%.39s", "%s another", "%.39s~"};
    for (size_t i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
        snprintf(text, sizeof(text), invalid[i], made.secret_key, made.secret_key);
#pragma GCC diagnostic pop
        write_file(key_path, text, 0600);
        ck_assert_int_eq(tierce__zmq_curve_read(&read, "p", key_path, why), TIERCE_E_CONFIG);
        ck_assert_msg(strstr(why, "p: ") == why && strstr(why, "tierce keygen") != NULL, "%s", why);
        ck_assert_ptr_null(strstr(why, made.secret_key));
    }
    snprintf(text, sizeof(text), "\n %s \n", made.secret_key);
    write_file(key_path, text, 0640);
    ck_assert_int_eq(tierce__zmq_curve_read(&read, "p", key_path, why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "other users") != NULL, "%s", why);
    write_file(key_path, text, 0600);
    ck_assert_int_eq(tierce__zmq_curve_read(&read, "p", key_path, why), 0);
    ck_assert_int_eq(unlink(key_path), 0);
    ck_assert_int_eq(tierce__zmq_curve_read(&read, "p", key_path, why), -ENOENT);
}
END_TEST

CHECK_MAIN("kv_readers", .seconds = 110, .setup = setup, .teardown = teardown, .at_once = true,
           .tests = {only_readers_with_keys_of_the_file, the_file_is_read_again,
                     files_of_readers_that_are_invalid, files_of_keys})
