/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of a node: its peers, and the connections to them.
 */
#include "engine/node_client/client.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "engine/node_client/client_silence.h"
#include "engine/node_client/client_socket.h"
#include "engine/engine_config.h"
#include "engine/engine.h"
#include "net/control/socket.h"
#include "net/stream.h"

#define CONNECTIONS_MAX 16u
#define RETRY_MS        1000u
#define END_MS          1000u /* for the answer to an end */

struct tierce__node_connection {
    struct tierce__list node; /* under CLIENT, while it is unused */
    int fd;
    enum tierce__native_op late; /* 0, or the request that it has not answered in time */
    uint64_t late_until_ns;      /* closed at this time; 0: it has just become late */
    struct tierce__native_frame frame;
    uint8_t *body;
    size_t body_room;
};

struct tierce__node_session {
    struct tierce__node_client *client;
    uint64_t number;
    uint32_t version; /* of the protocol: the one that the node has accepted */
    struct tierce__native_welcome welcome;
    struct tierce__node_connection *first; /* asked nothing */
    uint8_t *memory;
    struct tierce__pinnings pinnings; /* of memory */

    /* Under CLIENT. */
    uint32_t refs;
    bool gone;
    uint32_t connections; /* besides the first; those that are in use included */
    struct tierce__list idle;
    struct tierce__list late_ones; /* connections that may answer yet */
    struct tierce__list owed;
    struct tierce__silence silence;
};

struct tierce__node_client {
    struct tierce_engine *engine;
    char *path;
    char *user; /* user whose node is accepted besides this user's and root's, or "" */
    char *engine_name;
    struct tierce__lock lock; /* CLIENT */
    struct tierce__cond changed;
    struct tierce__node_session *peer; /* or NULL; holds a reference */
    bool connecting;
    bool warned; /* that it is not there, since it was last */
    bool missed; /* the node was lost or not found: its return is logged */
    uint64_t retry_at_ns;
};

/* ---- connections ---- */

static void close_connection(struct tierce__node_connection *c)
{
    if (c == NULL)
        return;
    if (c->fd >= 0)
        tierce__client_disconnect(c->fd);
    tierce__native_frame_fini(&c->frame);
    tierce__free(c->body);
    tierce__free(c);
}

static int make_room(struct tierce__node_connection *c, size_t bytes)
{
    if (bytes <= c->body_room)
        return 0;
    uint8_t *body = tierce__alloc(bytes);
    if (body == NULL)
        return -ENOMEM;
    tierce__free(c->body);
    c->body = body;
    c->body_room = bytes;
    return 0;
}

static void cut(struct tierce__node_connection *c)
{
    TIERCE_DASSERT(c->fd >= 0);
    tierce__client_disconnect(c->fd);
    c->fd = -1;
}

/* Passed as of tierce__client_receive. Returns the status. */
static int hear(struct tierce__node_connection *c, enum tierce__native_op op,
                union tierce__native_answer *answer, int *passed, uint64_t deadline_ns)
{
    TIERCE_DASSERT(c->fd >= 0 && c->late == 0);
    uint8_t head[TIERCE__NATIVE_HEAD];
    uint32_t bytes = 0, status = 0;
    int rc = tierce__client_receive(c->fd, head, sizeof(head), passed, deadline_ns);
    if (rc == 0)
        rc = tierce__native_head(&bytes, &status, head);
    if (rc == 0)
        rc = make_room(c, bytes);
    if (rc == 0)
        rc = tierce__client_receive(c->fd, c->body, bytes, NULL, deadline_ns);
    if (rc == 0 && status != 0)
        return (int32_t)status;
    if (rc == 0)
        rc = tierce__native_unpack_answer(answer, op, c->body, bytes);
    if (rc < 0) /* a late answer must not be taken for the answer to another request */
        cut(c);
    return rc;
}

/* The operation that ends what `op` begins, or 0. */
static enum tierce__native_op end_of(enum tierce__native_op op)
{
    op = tierce__native_plain(op);
    return op == TIERCE__NATIVE_STORE_BEGIN      ? TIERCE__NATIVE_STORE_END
           : op == TIERCE__NATIVE_LOAD_BEGIN     ? TIERCE__NATIVE_LOAD_END
           : op == TIERCE__NATIVE_PREFETCH_BEGIN ? TIERCE__NATIVE_PREFETCH_END
                                                 : 0;
}

/* Sends a request and receives its answer. If a request that begins an operation is not answered in
 * time, the connection is `late`: the operation must be ended. */
static int exchange(struct tierce__node_connection *c, enum tierce__native_op op,
                    const union tierce__native_request *question,
                    union tierce__native_answer *answer, int *passed, uint64_t deadline_ns)
{
    TIERCE_DASSERT(c->fd >= 0 && c->late == 0);
    int rc = tierce__native_pack_request(&c->frame, op, question);
    if (rc < 0)
        return rc; /* nothing has been said */
    rc = tierce__client_send(c->fd, c->frame.bytes, c->frame.used, deadline_ns);
    if (rc == TIERCE_E_CLOSED && op == TIERCE__NATIVE_HELLO)
        return hear(c, op, answer, passed, deadline_ns); /* a node rejects a client before its first
                                                            request */
    if (rc < 0) {
        cut(c);
        return rc;
    }
    rc = tierce__client_await(c->fd, deadline_ns);
    if (rc == 0)
        return hear(c, op, answer, passed, deadline_ns);
    if (rc == TIERCE_E_DEADLINE && end_of(op) != 0) {
        c->late = op;
        c->late_until_ns = 0;
    } else {
        cut(c);
    }
    return rc;
}

/* HELLO as `who` (version and client). */
static union tierce__native_request hello_of(const struct tierce__native_hello *who)
{
    union tierce__native_request hello = {.hello = *who};
    hello.hello.magic = TIERCE__NATIVE_MAGIC;
    hello.hello.pid = (uint64_t)getpid();
    return hello;
}

/* A connection that has said HELLO as `who`. */
static int connect_as(struct tierce__node_connection **out,
                      const struct tierce__node_client *client,
                      const struct tierce__native_hello *who,
                      struct tierce__native_welcome *welcome, int *passed, uint64_t deadline_ns)
{
    struct tierce__node_connection *c = tierce__calloc(1, sizeof(*c));
    if (c == NULL)
        return -ENOMEM;
    tierce__list_init(&c->node);
    union tierce__native_request hello = hello_of(who);
    union tierce__native_answer answer;
    int rc = c->fd = tierce__client_connect(client->path, client->user);
    if (rc >= 0)
        rc = exchange(c, TIERCE__NATIVE_HELLO, &hello, &answer, passed, deadline_ns);
    if (rc > 0)
        rc = TIERCE_E_FORMAT;
    if (rc < 0) {
        close_connection(c);
        return rc;
    }
    TIERCE_DASSERT(c->fd >= 0 && c->late == 0);
    *welcome = answer.hello;
    *out = c;
    return 0;
}

/* ---- a peer ---- */

static void free_peer(struct tierce__node_session *peer)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &peer->idle)
        close_connection(TIERCE__CONTAINER_OF(it, struct tierce__node_connection, node));
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &peer->late_ones)
        close_connection(TIERCE__CONTAINER_OF(it, struct tierce__node_connection, node));
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &peer->owed)
        tierce__free(TIERCE__CONTAINER_OF(it, struct tierce__owed, node));
    tierce__silence_fini(&peer->silence);
    if (tierce__pinnings_fini(&peer->pinnings) && peer->memory != NULL)
        munmap(peer->memory, peer->welcome.pool_bytes);
    close_connection(peer->first); /* the last: the node gives our memory to others then */
    tierce__free(peer);
}

/* Makes the first connection of a new client. A node that rejects our version may know the old one.
 */
static int meet(struct tierce__node_session *peer, int *passed, uint64_t deadline_ns)
{
    struct tierce__native_hello who = {.version = TIERCE__NATIVE_VERSION};
    int rc = connect_as(&peer->first, peer->client, &who, &peer->welcome, passed, deadline_ns);
    if (rc == TIERCE_E_VERSION) {
        who.version = TIERCE__NATIVE_VERSION_OLD;
        rc = connect_as(&peer->first, peer->client, &who, &peer->welcome, passed, deadline_ns);
    }
    peer->version = who.version;
    return rc;
}

static int make_peer(struct tierce__node_session **out, struct tierce__node_client *client,
                     uint64_t deadline_ns)
{
    static _Atomic uint64_t made;
    struct tierce__node_session *peer = tierce__calloc(1, sizeof(*peer));
    if (peer == NULL)
        return -ENOMEM;
    peer->client = client;
    peer->refs = 1;
    peer->number = atomic_fetch_add_explicit(&made, 1, memory_order_relaxed) + 1;
    tierce__list_init(&peer->idle);
    tierce__list_init(&peer->late_ones);
    tierce__list_init(&peer->owed);
    tierce__pinnings_init(&peer->pinnings);
    tierce__silence_init(&peer->silence);
    int fd = -1;
    int rc = meet(peer, &fd, deadline_ns);
    if (rc == 0)
        rc = tierce__client_map(&peer->memory, fd, peer->welcome.pool_bytes);
    if (rc == 0)
        tierce__pinnings_set(&peer->pinnings, peer->memory, peer->welcome.pool_bytes, false);
    if (fd >= 0)
        close(fd);
    if (rc < 0) {
        free_peer(peer);
        return rc;
    }
    atomic_store(&client->engine->asks_tokens,
                 tierce__node_session_announces(peer, TIERCE__NATIVE_ASKS_TOKENS));
    *out = peer;
    return 0;
}

struct tierce__node_session *tierce__node_session_acquire(struct tierce__node_session *peer)
{
    tierce__lock_take(&peer->client->lock);
    TIERCE_DASSERT(peer->refs > 0);
    peer->refs++;
    tierce__lock_drop(&peer->client->lock);
    return peer;
}

void tierce__node_session_release(struct tierce__node_session *peer)
{
    if (peer == NULL)
        return;
    tierce__lock_take(&peer->client->lock);
    TIERCE_DASSERT(peer->refs > 0);
    bool last = --peer->refs == 0;
    tierce__lock_drop(&peer->client->lock);
    if (last)
        free_peer(peer);
}

uint32_t tierce__node_session_store_ms(const struct tierce__node_session *peer)
{
    return peer->welcome.store_ms;
}

bool tierce__node_session_announces(const struct tierce__node_session *peer, uint32_t bit)
{
    return (peer->welcome.tiers & bit) != 0;
}

uint32_t tierce__node_session_version(const struct tierce__node_session *peer)
{
    return peer->version;
}

uint64_t tierce__node_session_number(const struct tierce__node_session *peer)
{
    return peer->number;
}

uint8_t *tierce__node_session_memory(const struct tierce__node_session *peer, uint64_t offset,
                                     uint64_t bytes)
{
    uint64_t all = peer->welcome.pool_bytes;
    return offset <= all && bytes <= all - offset ? peer->memory + offset : NULL;
}

struct tierce__pinnings *tierce__node_session_pinnings(struct tierce__node_session *peer)
{
    return &peer->pinnings;
}

/* The peer has closed our connections. Its users may continue with its memory. */
static void lose_peer(struct tierce__node_session *peer)
{
    struct tierce__node_client *client = peer->client;
    tierce__lock_take(&client->lock);
    TIERCE_DASSERT(peer->refs > 0);
    bool first = !peer->gone, current = client->peer == peer;
    peer->gone = true;
    if (current) {
        client->peer = NULL;
        client->missed = true;
    }
    tierce__cond_broadcast(&client->changed);
    tierce__lock_drop(&client->lock);
    if (first)
        tierce__log(TIERCE_LOG_WARN, "node_lost",
                    "socket=\"%s\" consequence=\"nothing is found until it is back\"",
                    client->path);
    if (current)
        tierce__node_session_release(peer);
}

/* ---- whether it answers ---- */

/* For further connections of this client. */
static struct tierce__native_hello hello_again(const struct tierce__node_session *peer)
{
    struct tierce__native_hello who = {.version = peer->version};
    memcpy(who.client, peer->welcome.client, sizeof(who.client));
    return who;
}

/* Logs a change. If a silent node has ended, the next request finds that out. */
static void tell_silence(struct tierce__node_session *peer, enum tierce__silence_change change)
{
    struct ucred node = {0};
    const char *path = peer->client->path;
    if (change == TIERCE__SILENCE_BEGUN) {
        (void)tierce__control_peer(peer->first->fd, &node);
        tierce__log(TIERCE_LOG_WARN, "node_silent",
                    "socket=\"%s\" pid=%d consequence=\"nothing is found or stored until it "
                    "answers\"",
                    path, node.pid);
    } else if (change == TIERCE__SILENCE_ENDED && tierce__stream_look(peer->first->fd) >= 0) {
        tierce__log(TIERCE_LOG_WARN, "node_in_service", "socket=\"%s\"", path);
    }
}

/* Asks the node for an answer that nobody waits for. Returns the connection, or an error. */
static int send_probe(const struct tierce__node_session *peer)
{
    struct tierce__native_hello who = hello_again(peer);
    union tierce__native_request hello = hello_of(&who);
    struct tierce__native_frame frame = {0};
    int fd = -1;
    int rc = tierce__native_pack_request(&frame, TIERCE__NATIVE_HELLO, &hello);
    if (rc == 0)
        rc = fd = tierce__client_connect(peer->client->path, peer->client->user);
    if (rc >= 0)
        rc = tierce__client_send(fd, frame.bytes, frame.used, 0);
    tierce__native_frame_fini(&frame);
    if (rc < 0 && fd >= 0)
        tierce__client_disconnect(fd);
    return rc < 0 ? rc : fd;
}

static void probe(struct tierce__node_session *peer)
{
    int fd = send_probe(peer);
    tierce__lock_take(&peer->client->lock);
    enum tierce__silence_change change = tierce__silence_sent(&peer->silence, fd);
    tierce__lock_drop(&peer->client->lock);
    tell_silence(peer, change);
}

/* Whether the node answers at all, as far as is known without waiting for it. */
static bool answers(struct tierce__node_session *peer)
{
    struct tierce__node_client *client = peer->client;
    tierce__lock_take(&client->lock);
    uint64_t now_ns = tierce__now_ns();
    enum tierce__silence_change change = tierce__silence_look(&peer->silence, now_ns);
    bool is_silent = peer->silence.is_silent;
    bool sends = tierce__silence_takes_probe(&peer->silence, now_ns);
    if (change == TIERCE__SILENCE_BEGUN) /* waiting requests need not wait longer */
        tierce__cond_broadcast(&client->changed);
    tierce__lock_drop(&client->lock);
    tell_silence(peer, change);
    if (sends)
        probe(peer);
    return !is_silent;
}

/* ---- the client ---- */

static void free_client(struct tierce__node_client *client)
{
    tierce__free(client->path);
    tierce__free(client->user);
    tierce__free(client->engine_name);
    tierce__free(client);
}

int tierce__client_open(struct tierce__node_client **out, struct tierce_engine *engine,
                        const struct tierce_config *config)
{
    struct tierce__node_client *client = tierce__calloc(1, sizeof(*client));
    if (client == NULL)
        return -ENOMEM;
    client->engine = engine;
    client->path = tierce__strdup(tierce__engine_text(config, TIERCE__ENGINE_NODE_SOCKET));
    client->user = tierce__strdup(tierce__engine_text(config, TIERCE__ENGINE_NODE_USER));
    client->engine_name = tierce__strdup(tierce__engine_text(config, TIERCE__ENGINE_NODE_ENGINE));
    if (client->path == NULL || client->user == NULL || client->engine_name == NULL) {
        free_client(client);
        return -ENOMEM;
    }
    tierce__lock_init(&client->lock, TIERCE__LOCK_CLIENT);
    tierce__cond_init(&client->changed);
    *out = client;
    return 0;
}

void tierce__client_close(struct tierce__node_client *client)
{
    if (client == NULL)
        return;
    TIERCE_DASSERT(!client->connecting && (client->peer == NULL || client->peer->refs == 1));
    tierce__node_session_release(client->peer);
    tierce__cond_fini(&client->changed);
    tierce__lock_fini(&client->lock);
    free_client(client);
}

const char *tierce__client_engine_name(const struct tierce__node_client *client)
{
    return client->engine_name;
}

bool tierce__client_is_connected(struct tierce__node_client *client)
{
    tierce__lock_take(&client->lock);
    struct tierce__node_session *peer = client->peer;
    if (peer != NULL)
        peer->refs++;
    tierce__lock_drop(&client->lock);
    bool is = peer != NULL && answers(peer);
    tierce__node_session_release(peer);
    return is;
}

/* The reason why there is no node. */
static const char *reason(int rc)
{
    switch (rc) {
    case -EPERM:
        return "it belongs to another user; set node.user to accept it";
    case -EACCES:
        return "this user has no access: check the modes of the socket and its folders, or the "
               "node's listen.native_users and listen.native_group";
    default:
        return tierce_strerror(rc);
    }
}

/* This thread connects; others see no node meanwhile. */
static struct tierce__node_session *connect_peer(struct tierce__node_client *client,
                                                 uint64_t deadline_ns)
{
    struct tierce__node_session *peer = NULL;
    uint64_t soon_ns = tierce__deadline_in_ms(client->engine->settings.lookup_ms);
    int rc = make_peer(&peer, client, soon_ns < deadline_ns ? soon_ns : deadline_ns);
    tierce__lock_take(&client->lock);
    TIERCE_DASSERT(client->connecting);
    TIERCE_DASSERT(rc <= 0 && client->peer == NULL);
    client->connecting = false;
    client->retry_at_ns = tierce__deadline_in_ms(RETRY_MS);
    bool warn = rc < 0 && !client->warned;
    bool is_back = rc == 0 && client->missed;
    client->warned = rc < 0;
    client->missed = rc < 0;
    if (rc == 0) {
        client->peer = peer;
        peer->refs++;
    }
    tierce__lock_drop(&client->lock);
    if (rc == 0)
        tierce__count(client->engine, TIERCE__STAT_node_connects, 1);
    if (is_back)
        tierce__log(TIERCE_LOG_WARN, "node_in_service", "socket=\"%s\"", client->path);
    if (warn)
        tierce__log(TIERCE_LOG_WARN, "node_not_there",
                    "socket=\"%s\" reason=\"%s\" consequence=\"nothing is found or stored\"",
                    client->path, reason(rc));
    return peer;
}

struct tierce__node_session *tierce__client_peer(struct tierce__node_client *client,
                                                 uint64_t deadline_ns)
{
    tierce__lock_take(&client->lock);
    struct tierce__node_session *peer = client->peer;
    TIERCE_DASSERT(peer == NULL || (peer->refs > 0 && !peer->gone));
    if (peer != NULL)
        peer->refs++;
    bool mine = peer == NULL && !client->connecting && tierce__now_ns() >= client->retry_at_ns;
    client->connecting |= mine;
    tierce__lock_drop(&client->lock);
    return mine ? connect_peer(client, deadline_ns) : peer;
}

/* ---- asking ---- */

/* Whether a request begins an operation; such a request may also be omitted. */
static bool begins(enum tierce__native_op op)
{
    op = tierce__native_plain(op);
    return op == TIERCE__NATIVE_LOOKUP || op == TIERCE__NATIVE_DURABLE ||
           op == TIERCE__NATIVE_LOAD_BEGIN || op == TIERCE__NATIVE_STORE_BEGIN ||
           op == TIERCE__NATIVE_PREFETCH_BEGIN || op == TIERCE__NATIVE_VIEW ||
           op == TIERCE__NATIVE_COMPUTED;
}

/* Whether nothing is asked now. */
static bool is_closed(const struct tierce__node_session *peer, bool is_begin)
{
    tierce__lock_assert_held(&peer->client->lock);
    return peer->gone || peer->silence.is_silent ||
           (is_begin && tierce__silence_is_quiet(&peer->silence, tierce__now_ns()));
}

/* One that is idle, or (*out NULL) room for another. */
static int take_connection(struct tierce__node_connection **out, struct tierce__node_session *peer,
                           bool is_begin, uint64_t deadline_ns)
{
    struct tierce__node_client *client = peer->client;
    int rc = 0;
    *out = NULL;
    tierce__lock_take(&client->lock);
    while (rc == 0 && !is_closed(peer, is_begin) && tierce__list_empty(&peer->idle) &&
           peer->connections == CONNECTIONS_MAX) {
        if (!tierce__cond_wait(&client->changed, &client->lock, deadline_ns))
            rc = TIERCE_E_DEADLINE;
    }
    if (is_closed(peer, is_begin))
        rc = TIERCE_E_DOWN;
    if (rc == 0 && !tierce__list_empty(&peer->idle)) {
        *out = TIERCE__CONTAINER_OF(peer->idle.next, struct tierce__node_connection, node);
        tierce__list_remove(&(*out)->node);
        TIERCE_DASSERT((*out)->fd >= 0 && (*out)->late == 0);
    } else if (rc == 0) {
        peer->connections++;
    }
    TIERCE_DASSERT(peer->connections <= CONNECTIONS_MAX);
    tierce__lock_drop(&client->lock);
    return rc;
}

/* Ends a request: the next one may use the connection, unless it was closed. */
static void return_connection(struct tierce__node_session *peer, struct tierce__node_connection *c)
{
    bool open = c != NULL && c->fd >= 0;
    tierce__lock_take(&peer->client->lock);
    TIERCE_DASSERT(peer->connections > 0);
    TIERCE_DASSERT(c == NULL || tierce__list_empty(&c->node));
    TIERCE_DASSERT(c == NULL || c->late == 0 || end_of(c->late) != 0);
    if (open && c->late != 0 && c->late_until_ns == 0)
        c->late_until_ns = tierce__deadline_in_ms(peer->client->engine->settings.pin_ms);
    if (open && c->late != 0)
        tierce__list_push_back(&peer->late_ones, &c->node);
    else if (open)
        tierce__list_push_front(&peer->idle, &c->node);
    else
        peer->connections--;
    tierce__cond_signal(&peer->client->changed);
    tierce__lock_drop(&peer->client->lock);
    if (!open)
        close_connection(c);
}

/* Updates the peer's state from the result of a request. A node that accepts no connection
 * (-EAGAIN) is as late as one that does not answer on it. */
static void note(struct tierce__node_session *peer, int rc)
{
    enum tierce__silence_change change = TIERCE__SILENCE_SAME;
    bool is_late = rc == TIERCE_E_DEADLINE || rc == -EAGAIN;
    TIERCE_DASSERT(rc <= 0);
    tierce__lock_take(&peer->client->lock);
    if (is_late)
        tierce__silence_note_late(&peer->silence, tierce__now_ns());
    else if (rc == 0)
        change = tierce__silence_note_answer(&peer->silence);
    tierce__lock_drop(&peer->client->lock);
    if (is_late)
        tierce__count(peer->client->engine, TIERCE__STAT_node_late, 1);
    tell_silence(peer, change);
    if (is_late)
        (void)answers(peer); /* sends the probe, if it is due */
}

/* [transfer] owed. */
static void owe(struct tierce__node_session *peer, struct tierce__owed *owed)
{
    TIERCE_DASSERT(tierce__list_empty(&owed->node));
    TIERCE_DASSERT(end_of(owed->op) == 0);
    tierce__lock_take(&peer->client->lock);
    bool gone = peer->gone; /* it has ended everything itself */
    if (!gone)
        tierce__list_push_back(&peer->owed, &owed->node);
    tierce__lock_drop(&peer->client->lock);
    if (gone)
        tierce__free(owed);
}

static struct tierce__owed *take_owed(struct tierce__node_session *peer)
{
    struct tierce__owed *owed = NULL;
    tierce__lock_take(&peer->client->lock);
    if (!tierce__list_empty(&peer->owed)) {
        owed = TIERCE__CONTAINER_OF(peer->owed.next, struct tierce__owed, node);
        tierce__list_remove(&owed->node);
    }
    tierce__lock_drop(&peer->client->lock);
    TIERCE_DASSERT(owed == NULL || end_of(owed->op) == 0);
    return owed;
}

/* Ends operations whose end could not be sent earlier. */
static int pay(struct tierce__node_session *peer, struct tierce__node_connection *c,
               uint64_t deadline_ns)
{
    TIERCE_DASSERT(c->fd >= 0 && c->late == 0);
    struct tierce__owed *owed = take_owed(peer);
    union tierce__native_answer answer;
    if (owed == NULL)
        return 0;
    int rc = exchange(c, owed->op, &owed->question, &answer, NULL, deadline_ns);
    if (c->fd < 0) {
        owe(peer, owed);
        return rc;
    }
    tierce__free(owed);
    return 0;
}

/* Reads a late answer from a connection, if it has arrived, and ends the operation that it began. A
 * connection without an answer is closed in the end: the node ends operations whose answer it
 * cannot send. */
static void settle_late(struct tierce__node_session *peer, uint64_t deadline_ns)
{
    struct tierce__node_connection *c = NULL;
    tierce__lock_take(&peer->client->lock);
    if (!tierce__list_empty(&peer->late_ones)) {
        c = TIERCE__CONTAINER_OF(peer->late_ones.next, struct tierce__node_connection, node);
        tierce__list_remove(&c->node);
    }
    tierce__lock_drop(&peer->client->lock);
    if (c == NULL)
        return;
    enum tierce__native_op op = c->late;
    TIERCE_DASSERT(end_of(op) != 0);
    TIERCE_DASSERT(c->late_until_ns != 0);
    union tierce__native_answer answer;
    union tierce__native_request end = {0};
    if (tierce__client_await(c->fd, 0) == 0) {
        c->late = 0;
        int rc = hear(c, op, &answer, NULL, deadline_ns);
        op = tierce__native_plain(op);
        if (rc == 0 && op == TIERCE__NATIVE_STORE_BEGIN)
            end.store_end.store = answer.store_begin.store;
        else if (rc == 0 && op == TIERCE__NATIVE_LOAD_BEGIN)
            end.load_end.load = answer.load_begin.load;
        else if (rc == 0)
            end.prefetch_end.number = answer.view.number;
        if (rc == 0 && (op != TIERCE__NATIVE_STORE_BEGIN || answer.store_begin.store != 0))
            (void)exchange(c, end_of(op), &end, &answer, NULL, deadline_ns);
    } else if (tierce__now_ns() >= c->late_until_ns) {
        cut(c);
    }
    return_connection(peer, c);
}

int tierce__node_session_ask(struct tierce__asking *asking, struct tierce__node_session *peer,
                             enum tierce__native_op op,
                             const union tierce__native_request *question, uint64_t deadline_ns)
{
    TIERCE_DASSERT(end_of(op) == 0 || begins(op));
    struct tierce__node_connection *c;
    *asking = (struct tierce__asking){.peer = peer};
    if (!answers(peer))
        return TIERCE_E_DOWN;
    settle_late(peer, deadline_ns);
    int rc = take_connection(&c, peer, begins(op), deadline_ns);
    if (rc < 0)
        return rc;
    struct tierce__native_welcome welcome;
    struct tierce__native_hello who = hello_again(peer);
    if (c == NULL)
        rc = connect_as(&c, peer->client, &who, &welcome, NULL, deadline_ns);
    if (rc == 0)
        rc = pay(peer, c, deadline_ns);
    if (rc == 0)
        rc = exchange(c, op, question, &asking->answer, NULL, deadline_ns);
    bool answered = c != NULL && c->fd >= 0 && c->late == 0;
    note(peer, answered ? 0 : rc);
    if (rc == 0) {
        TIERCE_DASSERT(c->fd >= 0 && c->late == 0);
        asking->connection = c;
        return 0;
    }
    return_connection(peer, c);
    if (answered || rc == TIERCE_E_DEADLINE || rc == -ENOMEM)
        return rc;
    if (tierce__stream_look(peer->first->fd) < 0)
        lose_peer(peer);
    return TIERCE_E_DOWN;
}

void tierce__node_session_done(struct tierce__asking *asking)
{
    TIERCE_DASSERT(asking->connection == NULL ||
                   (asking->connection->fd >= 0 && asking->connection->late == 0));
    if (asking->connection != NULL)
        return_connection(asking->peer, asking->connection);
    asking->connection = NULL;
}

int tierce__node_session_tell(struct tierce__node_session *peer, enum tierce__native_op op,
                              const union tierce__native_request *question, uint64_t deadline_ns)
{
    struct tierce__asking asking;
    int rc = tierce__node_session_ask(&asking, peer, op, question, deadline_ns);
    if (rc == 0)
        tierce__node_session_done(&asking);
    return rc;
}

int tierce__node_session_post(struct tierce__node_session *peer, enum tierce__native_op op,
                              const union tierce__native_request *question)
{
    struct tierce__node_connection *c;
    TIERCE_DASSERT(!tierce__native_is_answered(op));
    int rc = take_connection(&c, peer, false, 0);
    if (rc < 0)
        return TIERCE_E_DOWN;
    rc = c != NULL ? tierce__native_pack_request(&c->frame, op, question) : TIERCE_E_DOWN;
    /* A socket that is not full has room for the whole request. A full one stays open. */
    if (rc == 0)
        rc = tierce__stream_wait(c->fd, POLLOUT, NULL, 0);
    if (rc == 0 && tierce__client_send(c->fd, c->frame.bytes, c->frame.used, 0) < 0) {
        cut(c); /* a part may have been sent */
        rc = TIERCE_E_DOWN;
    }
    return_connection(peer, c);
    return rc < 0 ? TIERCE_E_DOWN : 0;
}

uint64_t tierce__node_session_end(struct tierce__node_session *peer, struct tierce__owed *owed,
                                  const union tierce__native_request *question)
{
    struct tierce__asking asking;
    uint64_t count = 0;
    TIERCE_DASSERT(tierce__list_empty(&owed->node));
    TIERCE_DASSERT(!begins(owed->op));
    int rc =
        tierce__node_session_ask(&asking, peer, owed->op, question, tierce__deadline_in_ms(END_MS));
    if (rc == 0) {
        count = owed->op == TIERCE__NATIVE_STORE_END ? asking.answer.store_end.count : 0;
        tierce__node_session_done(&asking);
    }
    /* If the node received it and only the answer was lost, the node no longer has this number. */
    if (rc == TIERCE_E_DEADLINE || rc == TIERCE_E_DOWN || rc == -ENOMEM)
        owe(peer, owed);
    else
        tierce__free(owed);
    return count;
}
