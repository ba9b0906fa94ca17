/* SPDX-License-Identifier: Apache-2.0 */
#include "router/subscriber.h"

#include "base/log/log_repeat.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/text/url.h"
#include "net/http_client.h"
#include "net/loopback.h"
#include "router/subscriber_curve.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define FRAMES_MAX     5
#define WAITING_MAX    100000 /* batches queued in ZMQ; further ones are lost, which is noticed */
#define BYTES_MAX      ((int64_t)64 << 20)
#define SNAPSHOT_BYTES ((size_t)16 << 30)
#define TURN_BATCHES   256u /* before other publishers have their turn */
#define SNAPSHOT_MS    2    /* between two steps of a snapshot */
#define REFUSED_MS     2000 /* until the next attempt after a refusal */
#define REFUSALS       (ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
#define EVENTS                                                                                     \
    (ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | REFUSALS |                           \
     ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL)

struct tierce__subscriber {
    struct tierce__subscriber_opts opts;
    void *sub, *monitor, *dealer; /* dealer: of the replay in progress, or NULL */
    uint64_t replay_until_ns;
    uint64_t again_ns; /* when to connect again after a refusal; 0: it was none */
    struct tierce__curl *curl;
    bool is_fetching; /* a snapshot */
    bool is_refused;  /* its body is invalid */
    bool is_open;     /* other hosts on its way can read the request */
};

static int set(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof(value));
}

static int connect_to(void *socket, const char *endpoint)
{
    bool is_v6 = strchr(endpoint, '[') != NULL;
    return set(socket, ZMQ_IPV6, is_v6) == 0 && zmq_connect(socket, endpoint) == 0 ? 0 : -errno;
}

/* endpoint: NULL if it is connected later. */
static int open_socket(void **out, const struct tierce__subscriber *s, int type,
                       const char *endpoint, char why[256])
{
    int64_t bytes = BYTES_MAX;
    void *socket = *out = zmq_socket(s->opts.context, type);
    if (socket == NULL)
        return -errno;
    bool is_good = set(socket, ZMQ_LINGER, 0) == 0 && set(socket, ZMQ_RCVHWM, WAITING_MAX) == 0 &&
                   set(socket, ZMQ_RECONNECT_IVL, 100) == 0 &&
                   set(socket, ZMQ_RECONNECT_IVL_MAX, 2000) == 0 &&
                   zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &bytes, sizeof(bytes)) == 0 &&
                   (type != ZMQ_SUB || zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0) == 0);
    int rc = is_good ? 0 : -errno;
    if (rc == 0 && type != ZMQ_PAIR)
        rc =
            tierce__subscriber_curve(socket, s->opts.keys, s->opts.tenant, s->opts.server_key, why);
    if (rc == 0 && endpoint != NULL)
        rc = connect_to(socket, endpoint);
    if (rc < 0) {
        zmq_close(socket);
        *out = NULL;
    }
    return rc;
}

/* Tells when the connection to the publisher comes and goes. */
static int watch(struct tierce__subscriber *s, char why[256])
{
    /* No name is used twice: libzmq frees one some time after its monitor has ended. */
    static _Atomic uint64_t names;
    char name[64];
    snprintf(name, sizeof(name), "inproc://router-monitor-%" PRIu64,
             atomic_fetch_add_explicit(&names, 1, memory_order_relaxed));
    if (zmq_socket_monitor(s->sub, name, EVENTS) != 0)
        return -errno;
    return open_socket(&s->monitor, s, ZMQ_PAIR, name, why);
}

static int open_live(struct tierce__subscriber *s, char why[256])
{
    int rc = open_socket(&s->sub, s, ZMQ_SUB, NULL, why);
    if (rc == 0)
        rc = watch(s, why);
    if (rc == 0)
        rc = connect_to(s->sub, s->opts.endpoint);
    return rc;
}

/* A monitor that nobody reads blocks libzmq's thread, and with it all publishers, at its next
 * event: so it ends before its reader does. */
static void close_live(struct tierce__subscriber *s)
{
    if (s->monitor != NULL) {
        (void)zmq_socket_monitor(s->sub, NULL, 0);
        zmq_close(s->monitor);
    }
    if (s->sub != NULL)
        zmq_close(s->sub);
    s->monitor = s->sub = NULL;
}

/* Whether a request to the URL leaves this host without encryption. */
static bool is_open_url(const char *text)
{
    struct tierce__url url = {0};
    char why[TIERCE__URL_WHY_BYTES];
    if (strncmp(text, "http://", 7) != 0)
        return false;
    bool is_here = tierce__url_parse(&url, text, why) == 0 && url.host_count == 1 &&
                   tierce__is_loopback_host(url.hosts[0].name);
    tierce__url_clear(&url);
    return !is_here;
}

int tierce__subscriber_open(struct tierce__subscriber **out,
                            const struct tierce__subscriber_opts *opts, char why[256])
{
    struct tierce__subscriber *s = tierce__calloc(1, sizeof(*s));
    char fault[256] = "";
    int rc = s != NULL ? 0 : -ENOMEM;
    if (rc == 0) {
        s->opts = *opts;
        s->is_open = is_open_url(opts->snapshot);
        rc = open_live(s, fault);
    }
    if (rc == 0 && opts->replay[0] != '\0') { /* only to see whether the name is valid */
        void *probe;
        rc = open_socket(&probe, s, ZMQ_DEALER, opts->replay, fault);
        if (rc == 0)
            zmq_close(probe);
    }
    if (rc == 0 && opts->snapshot[0] != '\0')
        rc = tierce__curl_create(
            &s->curl,
            &(struct tierce__curl_opts){.ca_file = opts->ca_file[0] != '\0' ? opts->ca_file : NULL,
                                        .connect_ms = 2000,
                                        .timeout_ms = opts->snapshot_ms});
    if (rc == 0) {
        *out = s;
        return 0;
    }
    if (fault[0] != '\0')
        snprintf(why, 256, "%s", fault);
    else
        snprintf(why, 256,
                 "%.100s cannot be followed: %s; an endpoint is tcp://HOST:PORT or ipc://PATH",
                 opts->endpoint, zmq_strerror(-rc));
    tierce__subscriber_close(s);
    return rc;
}

static void close_dealer(struct tierce__subscriber *s)
{
    if (s->dealer != NULL)
        zmq_close(s->dealer);
    s->dealer = NULL;
}

void tierce__subscriber_close(struct tierce__subscriber *subscriber)
{
    if (subscriber == NULL)
        return;
    close_dealer(subscriber);
    close_live(subscriber);
    tierce__curl_destroy(subscriber->curl);
    tierce__free(subscriber);
}

/* ---- messages -------------------------------------------------------------------------------- */

struct message {
    zmq_msg_t frames[FRAMES_MAX];
    int kept, count;
};

/* Receives a whole message; further frames are counted. False if there is none. */
static bool take_message(void *socket, struct message *message)
{
    *message = (struct message){0};
    for (bool more = true; more; message->count++) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&frame);
            break; /* only the first can be missing: ZMQ delivers whole messages */
        }
        more = zmq_msg_more(&frame) != 0;
        if (message->kept < FRAMES_MAX) {
            zmq_msg_init(&message->frames[message->kept]);
            zmq_msg_move(&message->frames[message->kept++], &frame);
        }
        zmq_msg_close(&frame);
    }
    return message->count > 0;
}

static void drop_message(struct message *message)
{
    for (int i = 0; i < message->kept; i++)
        zmq_msg_close(&message->frames[i]);
}

/* The last two frames: a number and a payload. False: they are not. */
static bool read_message(struct message *message, uint64_t *number, const void **payload,
                         size_t *bytes)
{
    if (message->count < 2 || message->count > FRAMES_MAX)
        return false;
    zmq_msg_t *head = &message->frames[message->count - 2];
    zmq_msg_t *body = &message->frames[message->count - 1];
    const uint8_t *at = zmq_msg_data(head);
    if (zmq_msg_size(head) != sizeof(*number))
        return false;
    *number = 0;
    for (size_t i = 0; i < sizeof(*number); i++)
        *number = *number << 8 | at[i];
    *payload = zmq_msg_data(body);
    *bytes = zmq_msg_size(body);
    return true;
}

/* ---- what the follower needs ----------------------------------------------------------------- */

static void begin_replay(struct tierce__subscriber *s, uint64_t from)
{
    uint8_t number[8];
    char why[256] = "";
    for (unsigned i = 0; i < 8; i++)
        number[i] = (uint8_t)(from >> (8 * (7 - i)));
    int rc = open_socket(&s->dealer, s, ZMQ_DEALER, s->opts.replay, why);
    if (rc == 0 && (zmq_send(s->dealer, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
                    zmq_send(s->dealer, number, sizeof(number), ZMQ_DONTWAIT) < 0))
        rc = -errno;
    if (rc < 0) {
        tierce__log_repeated(TIERCE_LOG_WARN, "replay_failed", "endpoint=%s why=\"%.200s\"",
                             s->opts.replay, why[0] != '\0' ? why : zmq_strerror(-rc));
        close_dealer(s);
        tierce__follower_replay_end(s->opts.follower, false, tierce__now_ns());
    }
    s->replay_until_ns = tierce__deadline_in_ms(s->opts.replay_ms);
}

static size_t take_snapshot(void *arg, const char *bytes, size_t count)
{
    struct tierce__subscriber *s = arg;
    if (tierce__curl_status(s->curl) != 200)
        return count; /* the text of a refusal */
    s->is_refused = !tierce__follower_snapshot(s->opts.follower, bytes, count);
    return s->is_refused ? 0 : count;
}

static void begin_snapshot(struct tierce__subscriber *s)
{
    char *authorization = NULL;
    if (s->opts.tokens != NULL &&
        tierce__tenant_words_find(&authorization, s->opts.tokens, s->opts.tenant) < 0) {
        tierce__follower_snapshot_end(s->opts.follower, false, tierce__now_ns());
        return;
    }
    struct tierce__curl_request request = {
        .url = s->opts.snapshot, .bytes_max = SNAPSHOT_BYTES, .take = take_snapshot, .arg = s};
    if (authorization != NULL && s->is_open)
        tierce__log_repeated(TIERCE_LOG_WARN, "snapshot_token_open",
                             "url=%s why=\"a token of snapshot.token_file is sent without "
                             "encryption\" hint=\"set kv_events.certificate of the publisher, and "
                             "register it with an https:// URL\"",
                             s->opts.snapshot);
    if (authorization != NULL)
        request.headers[0] = (struct tierce__curl_header){"Authorization", authorization};
    tierce__curl_begin(s->curl, &request); /* copies the header */
    tierce__free_secret(authorization);
    s->is_fetching = true;
    s->is_refused = false;
}

/* The advice to an operator after a failed snapshot. */
static const char *snapshot_hint(const struct tierce__subscriber *s, int rc, long status)
{
    if ((status == 401 || status == 403) && s->opts.tokens == NULL)
        return "the publisher requires a token, which is sent to publishers of publishers.file and "
               "of callers with a token only: set auth.token_file";
    if (status == 401 || status == 403)
        return "the publisher requires a token (kv_events.token_file): set snapshot.token_file, "
               "with a line for the publisher's tenant";
    if (rc == -EKEYREJECTED)
        return "set snapshot.ca_file to the CA of the publisher's certificate";
    if (rc == TIERCE_E_DEADLINE)
        return "raise timeout.snapshot";
    return "check snapshot_url and the publisher; its blocks may be inexact until a snapshot "
           "succeeds";
}

static void end_snapshot(struct tierce__subscriber *s)
{
    struct tierce__curl_answer answer = {0};
    char why[256];
    s->is_fetching = false;
    int rc = tierce__curl_end(&answer, s->curl, why);
    long status = tierce__curl_status(s->curl);
    bool is_complete = rc == 0 && status == 200;
    if (s->is_refused)
        snprintf(why, sizeof(why), "the body is not a snapshot of KV events");
    if (!is_complete)
        tierce__log_repeated(TIERCE_LOG_WARN, "snapshot_failed",
                             "url=%s status=%d why=\"%.200s\" hint=\"%s\"", s->opts.snapshot,
                             (int)status, rc != 0 ? why : "", snapshot_hint(s, rc, status));
    tierce__curl_answer_clear(&answer);
    tierce__follower_snapshot_end(s->opts.follower, is_complete, tierce__now_ns());
}

static enum tierce__follower_need begin(struct tierce__subscriber *s)
{
    uint64_t from = 0;
    enum tierce__follower_need need =
        tierce__follower_needs(s->opts.follower, &from, tierce__now_ns());
    if (need == TIERCE__FOLLOWER_REPLAY)
        begin_replay(s, from);
    else if (need == TIERCE__FOLLOWER_SNAPSHOT)
        begin_snapshot(s);
    return need;
}

/* ---- work ------------------------------------------------------------------------------------ */

int tierce__subscriber_items(struct tierce__subscriber *subscriber, void *items, long *wait_ms)
{
    zmq_pollitem_t *item = items;
    int count = 0;
    enum tierce__follower_need need = begin(subscriber);
    bool is_live = need == TIERCE__FOLLOWER_NOTHING;
    if (subscriber->monitor != NULL)
        item[count++] = (zmq_pollitem_t){.socket = subscriber->monitor, .events = ZMQ_POLLIN};
    if (is_live && subscriber->sub != NULL)
        item[count++] = (zmq_pollitem_t){.socket = subscriber->sub, .events = ZMQ_POLLIN};
    if (subscriber->dealer != NULL)
        item[count++] = (zmq_pollitem_t){.socket = subscriber->dealer, .events = ZMQ_POLLIN};
    if (need == TIERCE__FOLLOWER_WORK)
        *wait_ms = 0;
    if (subscriber->is_fetching && *wait_ms > SNAPSHOT_MS)
        *wait_ms = SNAPSHOT_MS;
    if (subscriber->again_ns != 0 && *wait_ms > REFUSED_MS)
        *wait_ms = REFUSED_MS;
    return count;
}

/* libzmq does not connect again after a refusal. */
static void note_refusal(struct tierce__subscriber *s)
{
    s->again_ns = tierce__deadline_in_ms(REFUSED_MS);
    tierce__log_repeated(
        TIERCE_LOG_WARN, "publisher_refused", "endpoint=%s hint=\"%s\"", s->opts.endpoint,
        s->opts.server_key[0] != '\0'
            ? "add the index's public key (tierce keygen --public FILE) to the publisher's "
              "kv_events.curve_readers_file, or register the publisher with its current public key "
              "as server_key"
            : "the publisher requires encryption: register it with its public key as server_key");
}

static void connect_again(struct tierce__subscriber *s)
{
    char why[256] = "";
    if (s->again_ns == 0 || tierce__now_ns() < s->again_ns)
        return;
    tierce__follower_connected(s->opts.follower, false, tierce__now_ns());
    close_live(s);
    int rc = open_live(s, why);
    s->again_ns = rc < 0 ? tierce__deadline_in_ms(REFUSED_MS) : 0;
    if (rc == 0)
        return;
    close_live(s);
    tierce__log_repeated(TIERCE_LOG_WARN, "publisher_connect_failed", "endpoint=%s why=\"%.200s\"",
                         s->opts.endpoint, why[0] != '\0' ? why : zmq_strerror(-rc));
}

static void see_event(struct tierce__subscriber *s, uint16_t event)
{
    bool is_connected = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
    if (is_connected)
        s->again_ns = 0;
    if (is_connected || event == ZMQ_EVENT_DISCONNECTED)
        tierce__follower_connected(s->opts.follower, is_connected, tierce__now_ns());
    else if ((event & REFUSALS) != 0)
        note_refusal(s);
    else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) /* libzmq connects again by itself */
        tierce__log_repeated(TIERCE_LOG_WARN, "publisher_handshake_cut",
                             "endpoint=%s hint=\"the publisher closed the connection during the "
                             "handshake, as one that is restarted does; if this goes on, check the "
                             "endpoint and server_key\"",
                             s->opts.endpoint);
}

/* An event has its number in the first two bytes of the first frame. */
static void see_connection(struct tierce__subscriber *s)
{
    struct message message;
    while (s->monitor != NULL && take_message(s->monitor, &message)) {
        uint16_t event = 0;
        if (zmq_msg_size(&message.frames[0]) >= sizeof(event))
            memcpy(&event, zmq_msg_data(&message.frames[0]), sizeof(event));
        drop_message(&message);
        see_event(s, event);
    }
}

static void take_replay(struct tierce__subscriber *s)
{
    struct message message;
    uint64_t number, now_ns = tierce__now_ns();
    const void *payload;
    size_t bytes;
    for (uint32_t i = 0; i < TURN_BATCHES && s->dealer != NULL; i++) {
        if (!take_message(s->dealer, &message)) {
            if (now_ns < s->replay_until_ns)
                return;
            close_dealer(s);
            tierce__follower_replay_end(s->opts.follower, false, now_ns);
            return;
        }
        s->replay_until_ns = tierce__deadline_in_ms(s->opts.replay_ms);
        bool is_good = read_message(&message, &number, &payload, &bytes);
        if (is_good && number != UINT64_MAX)
            tierce__follower_replayed(s->opts.follower, number, payload, bytes, now_ns);
        drop_message(&message);
        if (!is_good || number == UINT64_MAX) {
            close_dealer(s);
            tierce__follower_replay_end(s->opts.follower, is_good, now_ns);
        }
    }
}

static uint32_t take_live(struct tierce__subscriber *s)
{
    struct message message;
    uint64_t number;
    const void *payload;
    size_t bytes;
    uint32_t count = 0;
    for (; count < TURN_BATCHES && begin(s) == TIERCE__FOLLOWER_NOTHING; count++) {
        if (s->sub == NULL || !take_message(s->sub, &message))
            break;
        /* The event of a new connection came before the first message over it. */
        see_connection(s);
        bool is_good = read_message(&message, &number, &payload, &bytes);
        if (is_good && begin(s) == TIERCE__FOLLOWER_NOTHING)
            tierce__follower_batch(s->opts.follower, number, payload, bytes, tierce__now_ns());
        drop_message(&message); /* during a recovery: a replay brings it, or it shows as a gap */
    }
    return count;
}

uint32_t tierce__subscriber_work(struct tierce__subscriber *subscriber)
{
    see_connection(subscriber);
    connect_again(subscriber);
    if (subscriber->dealer != NULL)
        take_replay(subscriber);
    if (subscriber->is_fetching && !tierce__curl_step(subscriber->curl))
        end_snapshot(subscriber);
    if (begin(subscriber) == TIERCE__FOLLOWER_WORK)
        tierce__follower_work(subscriber->opts.follower, tierce__now_ns());
    return take_live(subscriber);
}
