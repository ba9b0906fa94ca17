/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher's sockets: encrypted streams, refusals, and the end of a subscriber. The publisher is
 * that of an engine. */
#include "check_main.h"
#include "log_record.h"
#include "temp_folder.h"
#include "wait_for.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/observe/kv_batch.h"
#include "engine/observe/kv_stream.h"
#include "router/subscriber.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

enum { LIMIT_MS = 30000 };

static char folder[] = "/tmp/tierce-subscriber-XXXXXX";
static char endpoint[80], readers_path[80], key_text[128];
static struct tierce__zmq_curve_pair server_pair, index_pair;
static struct tierce__kv_stream *stream;
static struct tierce__directory *directory;
static struct tierce__follower *follower;
static struct tierce__tenant_words keys;
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

static void allow(const char *public_key)
{
    char beside[96];
    snprintf(beside, sizeof(beside), "%s.new", readers_path);
    FILE *file = fopen(beside, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fprintf(file, "read index %s\n", public_key), 0);
    ck_assert_int_eq(fchmod(fileno(file), 0600), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(rename(beside, readers_path), 0);
}

static void start_publisher(bool is_encrypted)
{
    char why[256];
    const struct tierce__kv_stream_opts opts = {.size = sizeof(opts),
                                                .endpoint = endpoint,
                                                .replay = "",
                                                .topic = "",
                                                .first = 1,
                                                .bytes_max = 1 << 20,
                                                .curve = is_encrypted ? &server_pair : NULL,
                                                .readers = readers_path};
    ck_assert_msg(tierce__kv_stream_open(&stream, &opts, why) == 0, "%s", why);
    atomic_store(&is_ending, false);
    ck_assert_int_eq(pthread_create(&server, NULL, serve, NULL), 0);
}

static void setup(void)
{
    record_log(TIERCE_LOG_WARN);
    temp_folder_make(folder);
    snprintf(endpoint, sizeof(endpoint), "ipc://%s/pub", folder);
    snprintf(readers_path, sizeof(readers_path), "%s/readers", folder);
    ck_assert_int_eq(zmq_curve_keypair(server_pair.public_key, server_pair.secret_key), 0);
    ck_assert_int_eq(zmq_curve_keypair(index_pair.public_key, index_pair.secret_key), 0);
    tierce__tenant_words_init(&keys);
    snprintf(key_text, sizeof(key_text), "%s\n%s team\n", server_pair.secret_key,
             index_pair.secret_key);
    keys.text = tierce__strdup(key_text);
    struct tierce__directory_opts of_directory = {.size = sizeof(of_directory), .workers_max = 4};
    ck_assert_int_eq(tierce__directory_create(&directory, &of_directory), 0);
    struct tierce__follower_opts of_follower = {.size = sizeof(of_follower),
                                                .directory = directory,
                                                .group = "",
                                                .name = "0",
                                                .model = "m",
                                                .endpoint = "tcp://127.0.0.1:5557",
                                                .blocks_max = 1000,
                                                .gone_ns = UINT64_MAX,
                                                .retry_ns = TIERCE__MS_NS};
    ck_assert_int_eq(tierce__follower_create(&follower, &of_follower, tierce__now_ns()), 0);
    context = zmq_ctx_new();
}

static void teardown(void)
{
    zmq_ctx_term(context);
    atomic_store(&is_ending, true);
    tierce__kv_stream_wake(stream);
    ck_assert_int_eq(pthread_join(server, NULL), 0);
    tierce__kv_stream_close(stream);
    tierce__follower_destroy(follower);
    tierce__directory_destroy(directory);
    tierce__tenant_words_fini(&keys);
    temp_folder_remove(folder);
}

static int open_subscriber(struct tierce__subscriber **out, const char *tenant,
                           const char *server_key, char why[256])
{
    struct tierce__subscriber_opts opts = {.context = context,
                                           .follower = follower,
                                           .keys = &keys,
                                           .tenant = tenant,
                                           .ca_file = "",
                                           .replay_ms = LIMIT_MS};
    snprintf(opts.endpoint, sizeof(opts.endpoint), "%s", endpoint);
    snprintf(opts.server_key, sizeof(opts.server_key), "%s", server_key);
    return tierce__subscriber_open(out, &opts, why);
}

static struct tierce__subscriber *opened(const char *tenant, const char *server_key)
{
    struct tierce__subscriber *s;
    char why[256];
    ck_assert_msg(open_subscriber(&s, tenant, server_key, why) == 0, "%s", why);
    return s;
}

/* A turn of a thread with this publisher alone. */
static bool turn(struct tierce__subscriber *s)
{
    zmq_pollitem_t items[TIERCE__SUBSCRIBER_ITEMS];
    long wait_ms = 20;
    int count = tierce__subscriber_items(s, items, &wait_ms);
    (void)zmq_poll(items, count, wait_ms);
    (void)tierce__subscriber_work(s);
    return true;
}

static bool is_connected(void)
{
    struct tierce__follower_about about;
    tierce__follower_about(follower, &about);
    return about.is_connected;
}

/* Sends until a batch was taken: the subscription comes after the handshake. */
static bool has_batch(void)
{
    struct tierce__line line = {0};
    struct tierce__kv_form form = {0};
    struct tierce__follower_about about;
    tierce__kv_batch_clear(&line, &form);
    ck_assert_int_eq(tierce__kv_stream_send(stream, line.text, line.bytes), 0);
    tierce__line_clear(&line);
    tierce__follower_about(follower, &about);
    return about.counts.events > 0;
}

/* Refused, until the publisher knows the key of the publisher's tenant. */
START_TEST(an_encrypted_stream)
{
    allow(server_pair.public_key);
    start_publisher(true);
    struct tierce__subscriber *s = opened("team", server_pair.public_key);
    WAIT_WITHIN(LIMIT_MS, turn(s) && recorded("publisher_refused") > 0);
    ck_assert_uint_gt(recorded_with("publisher_refused", "kv_events.curve_readers_file"), 0);
    ck_assert(!is_connected());
    allow(index_pair.public_key);
    WAIT_WITHIN(LIMIT_MS, turn(s) && is_connected());
    WAIT_WITHIN(LIMIT_MS, turn(s) && has_batch());
    tierce__subscriber_close(s);
}
END_TEST

START_TEST(without_its_key)
{
    struct tierce__subscriber *s;
    char why[256];
    allow(index_pair.public_key);
    start_publisher(true);
    ck_assert_int_eq(open_subscriber(&s, "other", server_pair.public_key, why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "curve.key_file has no key for the tenant 'other'") != NULL, "%s",
                  why);
    s = opened("", ""); /* registered without server_key */
    WAIT_WITHIN(LIMIT_MS, turn(s) && recorded("publisher_refused") > 0);
    ck_assert_uint_gt(recorded_with("publisher_refused", "register it with its public key"), 0);
    ck_assert(!is_connected());
    tierce__subscriber_close(s);
}
END_TEST

/* Accepts connections and closes them during their handshakes, as a publisher that is restarted. */
static int listen_and_cut(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/pub", folder);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    return fd;
}

static bool cut_one(int fd)
{
    int connection = accept(fd, NULL, NULL);
    if (connection >= 0)
        (void)close(connection);
    return true;
}

/* Whether nothing is due without an event. */
static bool is_at_rest(struct tierce__subscriber *s)
{
    zmq_pollitem_t items[TIERCE__SUBSCRIBER_ITEMS];
    long wait_ms = LIMIT_MS;
    (void)tierce__subscriber_items(s, items, &wait_ms);
    return wait_ms == LIMIT_MS;
}

/* libzmq connects again by itself then: the next connection is left alone, with its batches. */
START_TEST(a_handshake_that_is_cut)
{
    int fd = listen_and_cut();
    struct tierce__subscriber *s = opened("", "");
    WAIT_WITHIN(LIMIT_MS, cut_one(fd) && turn(s) && recorded("publisher_handshake_cut") > 0);
    ck_assert(is_at_rest(s));
    ck_assert_uint_eq(recorded("publisher_refused"), 0);
    ck_assert_int_eq(close(fd), 0);
    ck_assert_int_eq(unlink(endpoint + strlen("ipc://")), 0);
    start_publisher(false);
    WAIT_WITHIN(LIMIT_MS, turn(s) && is_connected());
    ck_assert(is_at_rest(s));
    WAIT_WITHIN(LIMIT_MS, turn(s) && has_batch());
    tierce__subscriber_close(s);
}
END_TEST

/* The log names the reason of a connection that cannot be made again. */
START_TEST(a_key_that_is_gone)
{
    allow(server_pair.public_key);
    start_publisher(true);
    struct tierce__subscriber *s = opened("team", server_pair.public_key);
    tierce__tenant_words_replace(&keys, NULL);
    WAIT_WITHIN(LIMIT_MS, turn(s) && recorded("publisher_connect_failed") > 0);
    ck_assert_uint_gt(recorded_with("publisher_connect_failed", "curve.key_file has no key"), 0);
    tierce__tenant_words_replace(&keys, tierce__strdup(key_text));
    allow(index_pair.public_key);
    WAIT_WITHIN(LIMIT_MS, turn(s) && is_connected());
    tierce__subscriber_close(s);
}
END_TEST

/* The end of a subscriber while its connection is made must not block libzmq's thread, which all
 * publishers share. */
START_TEST(an_end_during_a_handshake)
{
    start_publisher(false);
    for (unsigned i = 0; i < 200; i++) {
        struct tierce__subscriber *s = opened("", "");
        if (i % 2 > 0)
            (void)turn(s);
        tierce__subscriber_close(s);
    }
    tierce__follower_connected(follower, false, tierce__now_ns());
    struct tierce__subscriber *s = opened("", "");
    WAIT_WITHIN(LIMIT_MS, turn(s) && is_connected());
    tierce__subscriber_close(s);
}
END_TEST

/* A port that no other process has now. */
static unsigned free_v6_port(void)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    ck_assert_int_eq(close(fd), 0);
    return ntohs(address.sin6_port);
}

START_TEST(an_address_of_ip_version_6)
{
    snprintf(endpoint, sizeof(endpoint), "tcp://[::1]:%u", free_v6_port());
    start_publisher(false);
    struct tierce__subscriber *s = opened("", "");
    WAIT_WITHIN(LIMIT_MS, turn(s) && is_connected());
    WAIT_WITHIN(LIMIT_MS, turn(s) && has_batch());
    tierce__subscriber_close(s);
}
END_TEST

CHECK_MAIN("subscriber", .seconds = 110, .setup = setup, .teardown = teardown, .at_once = true,
           .tests = {an_encrypted_stream, without_its_key, an_address_of_ip_version_6,
                     a_handshake_that_is_cut, a_key_that_is_gone, an_end_during_a_handshake})
