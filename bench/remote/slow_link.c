/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/remote/slow_link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "base/mix.h"
#include "net/listen.h"
#include "net/stream.h"

#define LINK_MAGIC      0x510b17a4u
#define CONNECTIONS_MAX 512u
#define PIECE_BYTES     (128u << 10) /* read at a time */
#define PIECE_SMALL     4096u        /* up to here a piece is copied to memory of its size */
#define PIECES_A_TURN   (TIERCE__SLOW_LINK_TURN / PIECE_BYTES) /* then the next direction's */
#define POLLED_FIRST    2u                                     /* the wake-up and the listener */
#define SECOND_NS       1000000000ull

enum side { CLIENT, SERVER };

/* Bytes in flight. */
struct slow_link_piece {
    struct tierce__list node;
    uint64_t due_ns;
    size_t bytes, sent, room;
    bool is_end;   /* the sender sends no more */
    bool is_reset; /* its connection is gone */
    uint8_t data[];
};

/* One direction of a connection. */
struct flow {
    struct tierce__list pieces;
    size_t held_bytes;
    uint64_t last_due_ns; /* of the newest piece: a later piece is never due earlier */
    bool has_end;         /* read */
    bool is_over;         /* the end was forwarded, or the receiver closed */
    bool is_blocked;      /* the receiver takes nothing now */
};

struct pair {
    int fds[2];
    struct flow from[2]; /* indexed by the sending side */
    bool is_awaited;     /* the client sent last */
    uint64_t turns;      /* how often the client sent after the server had, or first */
};

struct tierce__slow_link {
    uint32_t magic;
    int listener, wake;
    uint16_t port, server_port;
    pthread_t thread;

    /* Used by the thread only. */
    struct pair *pairs[CONNECTIONS_MAX];
    size_t used; /* slots of `pairs` ever used */
    struct pollfd polled[POLLED_FIRST + 2 * CONNECTIONS_MAX];
    uint64_t jitter_ns, random, bytes_per_s;
    uint64_t rate_free_ns[2]; /* when earlier bytes have left, by sending side */
    struct slow_link_piece *spare;

    struct tierce__lock lock;
    /* Under the lock. */
    struct tierce__cond changed;
    uint64_t round_trip_ns;
    uint64_t changes, changes_seen; /* by the thread */
    bool is_frozen, is_cut, is_ending;
    struct tierce__slow_link_stats stats;
};

/* The state of one turn of the thread. */
struct turn {
    uint64_t now, next_ns, half_trip_ns, changes;
    bool is_frozen, cuts, ends;
};

/* ---- pieces ---------------------------------------------------------------------------------- */

static uint64_t random_below(struct tierce__slow_link *link, uint64_t bound)
{
    uint64_t drawn = tierce__random_next(&link->random);
    return bound == 0 ? 0 : drawn % bound;
}

/* The time when the last of `bytes` that a side sends now arrives. */
static uint64_t due_of(struct tierce__slow_link *link, const struct turn *turn, enum side from,
                       struct flow *flow, size_t bytes)
{
    uint64_t left_ns = turn->now;
    if (link->bytes_per_s > 0) {
        uint64_t *free_ns = &link->rate_free_ns[from];
        *free_ns = *free_ns > turn->now ? *free_ns : turn->now;
        *free_ns += (uint64_t)((double)bytes * (double)SECOND_NS / (double)link->bytes_per_s);
        left_ns = *free_ns;
    }
    uint64_t due_ns = left_ns + turn->half_trip_ns + random_below(link, link->jitter_ns);
    flow->last_due_ns = due_ns > flow->last_due_ns ? due_ns : flow->last_due_ns;
    return flow->last_due_ns;
}

static struct slow_link_piece *take_piece(struct tierce__slow_link *link)
{
    struct slow_link_piece *piece = link->spare;
    link->spare = NULL;
    if (piece == NULL)
        piece = tierce__alloc(sizeof(*piece) + PIECE_BYTES);
    if (piece != NULL)
        *piece = (struct slow_link_piece){.room = PIECE_BYTES};
    return piece;
}

static void drop_piece(struct tierce__slow_link *link, struct slow_link_piece *piece)
{
    if (piece->room == PIECE_BYTES && link->spare == NULL)
        link->spare = piece;
    else
        tierce__free(piece);
}

/* A small piece must not hold the memory of a large one. */
static struct slow_link_piece *shrink(struct tierce__slow_link *link, struct slow_link_piece *piece)
{
    if (piece->bytes > PIECE_SMALL)
        return piece;
    struct slow_link_piece *small = tierce__alloc(sizeof(*small) + piece->bytes);
    if (small == NULL)
        return piece;
    memcpy(small, piece, sizeof(*small) + piece->bytes);
    small->room = piece->bytes;
    drop_piece(link, piece);
    return small;
}

static struct slow_link_piece *first_of(const struct flow *flow)
{
    return tierce__list_empty(&flow->pieces)
               ? NULL
               : TIERCE__CONTAINER_OF(flow->pieces.next, struct slow_link_piece, node);
}

static void remove_first(struct tierce__slow_link *link, struct flow *flow)
{
    struct slow_link_piece *piece = first_of(flow);
    tierce__list_remove(&piece->node);
    flow->held_bytes -= piece->bytes;
    drop_piece(link, piece);
}

static void drop_all(struct tierce__slow_link *link, struct flow *flow)
{
    while (!tierce__list_empty(&flow->pieces))
        remove_first(link, flow);
}

/* ---- connections ----------------------------------------------------------------------------- */

static void close_pair(struct tierce__slow_link *link, size_t i, bool resets)
{
    struct pair *pair = link->pairs[i];
    for (int side = 0; side < 2; side++) {
        if (resets)
            (void)setsockopt(pair->fds[side], SOL_SOCKET, SO_LINGER,
                             &(struct linger){.l_onoff = 1, .l_linger = 0}, sizeof(struct linger));
        close(pair->fds[side]);
        drop_all(link, &pair->from[side]);
    }
    tierce__free(pair);
    link->pairs[i] = NULL;
    tierce__lock_take(&link->lock);
    link->stats.open--;
    tierce__lock_drop(&link->lock);
}

static void begin_pair(struct tierce__slow_link *link, const struct turn *turn, int client)
{
    size_t i = 0;
    while (i < CONNECTIONS_MAX && link->pairs[i] != NULL)
        i++;
    struct pair *pair = i < CONNECTIONS_MAX ? tierce__calloc(1, sizeof(*pair)) : NULL;
    char why[256];
    int server = -1;
    if (pair == NULL ||
        tierce__stream_connect(&server, "127.0.0.1", link->server_port, TIERCE__DEADLINE_NEVER, why,
                               sizeof(why)) != 0) { /* as a closed port, but slightly later */
        (void)setsockopt(client, SOL_SOCKET, SO_LINGER,
                         &(struct linger){.l_onoff = 1, .l_linger = 0}, sizeof(struct linger));
        close(client);
        tierce__free(pair);
        return;
    }
    pair->fds[CLIENT] = client;
    pair->fds[SERVER] = server;
    for (int side = 0; side < 2; side++) {
        int on = 1;
        (void)setsockopt(pair->fds[side], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        tierce__list_init(&pair->from[side].pieces);
    }
    /* The handshake: the first byte leaves a round trip later. */
    pair->from[CLIENT].last_due_ns = turn->now + 3 * turn->half_trip_ns;
    link->pairs[i] = pair;
    link->used = i < link->used ? link->used : i + 1;
    tierce__lock_take(&link->lock);
    link->stats.connections++;
    link->stats.open++;
    tierce__lock_drop(&link->lock);
}

static void accept_some(struct tierce__slow_link *link, const struct turn *turn)
{
    for (;;) {
        int fd = accept4(link->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        begin_pair(link, turn, fd);
    }
}

/* ---- bytes in and out ------------------------------------------------------------------------ */

static void push(struct tierce__slow_link *link, const struct turn *turn, struct flow *flow,
                 enum side from, struct slow_link_piece *piece)
{
    piece->due_ns = due_of(link, turn, from, flow, piece->bytes);
    flow->held_bytes += piece->bytes;
    TIERCE_ASSERT(flow->held_bytes < TIERCE__SLOW_LINK_WINDOW + TIERCE__SLOW_LINK_TURN);
    tierce__list_push_back(&flow->pieces, &piece->node);
    if (flow->held_bytes <= link->stats.held_max) /* which only this thread changes */
        return;
    tierce__lock_take(&link->lock);
    link->stats.held_max = flow->held_bytes;
    tierce__lock_drop(&link->lock);
}

static void count_turn(struct tierce__slow_link *link, struct pair *pair)
{
    if (pair->is_awaited)
        return;
    pair->is_awaited = true;
    pair->turns++;
    tierce__lock_take(&link->lock);
    if (pair->turns > link->stats.turns)
        link->stats.turns = pair->turns;
    tierce__lock_drop(&link->lock);
}

/* Reads the bytes that a side has sent. Returns false without memory. */
static bool read_some(struct tierce__slow_link *link, const struct turn *turn, struct pair *pair,
                      enum side from)
{
    struct flow *flow = &pair->from[from];
    for (unsigned i = 0; i < PIECES_A_TURN && !flow->has_end; i++) {
        struct slow_link_piece *piece = take_piece(link);
        if (piece == NULL)
            return false;
        ssize_t n = recv(pair->fds[from], piece->data, PIECE_BYTES, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            drop_piece(link, piece);
            return true;
        }
        flow->has_end = piece->is_end = n <= 0;
        piece->is_reset = n < 0;
        piece->bytes = n > 0 ? (size_t)n : 0;
        bool is_all = piece->bytes < PIECE_BYTES;
        if (from == CLIENT && n > 0)
            count_turn(link, pair);
        if (flow->is_over)
            drop_piece(link, piece);
        else
            push(link, turn, flow, from, shrink(link, piece));
        if (is_all)
            return true;
    }
    return true;
}

static void count(struct tierce__slow_link *link, enum side from, size_t bytes)
{
    tierce__lock_take(&link->lock);
    *(from == CLIENT ? &link->stats.bytes_up : &link->stats.bytes_down) += bytes;
    tierce__lock_drop(&link->lock);
}

/* Forwards the bytes that are due. Returns false if the connection must be reset. */
static bool send_some(struct tierce__slow_link *link, struct turn *turn, struct pair *pair,
                      enum side from)
{
    struct flow *flow = &pair->from[from];
    int to = pair->fds[from == CLIENT ? SERVER : CLIENT];
    flow->is_blocked = false;
    for (struct slow_link_piece *piece; (piece = first_of(flow)) != NULL && !flow->is_over;) {
        if (piece->due_ns > turn->now) {
            turn->next_ns = piece->due_ns < turn->next_ns ? piece->due_ns : turn->next_ns;
            return true;
        }
        if (piece->is_reset)
            return false;
        if (piece->is_end) {
            (void)shutdown(to, SHUT_WR);
            flow->is_over = true;
            break;
        }
        ssize_t n = send(to, piece->data + piece->sent, piece->bytes - piece->sent,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            flow->is_blocked = true;
            return true;
        }
        if (n < 0) { /* the receiver closed; its own end arrives in the other direction */
            flow->is_over = true;
            break;
        }
        count(link, from, (size_t)n);
        pair->is_awaited &= from == CLIENT;
        piece->sent += (size_t)n;
        if (piece->sent == piece->bytes)
            remove_first(link, flow);
    }
    if (flow->is_over)
        drop_all(link, flow);
    return true;
}

static void send_all_due(struct tierce__slow_link *link, struct turn *turn)
{
    for (size_t i = 0; i < link->used; i++) {
        struct pair *pair = link->pairs[i];
        if (pair == NULL)
            continue;
        if (turn->cuts || turn->ends) {
            close_pair(link, i, true);
            continue;
        }
        if (turn->is_frozen)
            continue;
        bool ok = send_some(link, turn, pair, CLIENT) && send_some(link, turn, pair, SERVER);
        if (!ok || (pair->from[CLIENT].is_over && pair->from[SERVER].is_over))
            close_pair(link, i, !ok);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static struct turn begin_turn(struct tierce__slow_link *link)
{
    tierce__lock_take(&link->lock);
    struct turn turn = {.next_ns = TIERCE__DEADLINE_NEVER,
                        .half_trip_ns = link->round_trip_ns / 2,
                        .changes = link->changes,
                        .is_frozen = link->is_frozen,
                        .cuts = link->is_cut,
                        .ends = link->is_ending};
    link->is_cut = false;
    tierce__lock_drop(&link->lock);
    turn.now = tierce__now_ns();
    return turn;
}

/* Wakes the callers whose changes have taken effect in this turn. */
static void end_changes(struct tierce__slow_link *link, const struct turn *turn)
{
    tierce__lock_take(&link->lock);
    if (link->changes_seen != turn->changes)
        tierce__cond_broadcast(&link->changed);
    link->changes_seen = turn->changes;
    tierce__lock_drop(&link->lock);
}

/* A socket without interest is omitted: poll would report its end in every turn. */
static void fill_polled(struct tierce__slow_link *link, const struct turn *turn)
{
    link->polled[0] = (struct pollfd){.fd = link->wake, .events = POLLIN};
    link->polled[1] =
        (struct pollfd){.fd = turn->is_frozen ? -1 : link->listener, .events = POLLIN};
    for (size_t i = 0; i < 2 * link->used; i++) {
        const struct pair *pair = link->pairs[i / 2];
        struct pollfd *polled = &link->polled[POLLED_FIRST + i];
        *polled = (struct pollfd){.fd = -1};
        if (pair == NULL || turn->is_frozen)
            continue;
        const struct flow *in = &pair->from[i % 2], *out = &pair->from[1 - i % 2];
        if (!in->has_end && in->held_bytes < TIERCE__SLOW_LINK_WINDOW)
            polled->events |= POLLIN;
        if (out->is_blocked)
            polled->events |= POLLOUT;
        if (polled->events != 0)
            polled->fd = pair->fds[i % 2];
    }
}

static void wait_for_work(struct tierce__slow_link *link, const struct turn *turn)
{
    struct timespec time, *timeout = NULL;
    uint64_t now = tierce__now_ns(), ns = turn->next_ns > now ? turn->next_ns - now : 0;
    if (turn->next_ns != TIERCE__DEADLINE_NEVER) {
        time = (struct timespec){.tv_sec = (time_t)(ns / SECOND_NS),
                                 .tv_nsec = (long)(ns % SECOND_NS)};
        timeout = &time;
    }
    size_t count = POLLED_FIRST + 2 * link->used;
    if (ppoll(link->polled, count, timeout, NULL) < 0) {
        for (size_t i = 0; i < count; i++)
            link->polled[i].revents = 0;
    }
}

static void read_all(struct tierce__slow_link *link, const struct turn *turn)
{
    for (size_t i = 0; i < 2 * link->used; i++) {
        struct pollfd *polled = &link->polled[POLLED_FIRST + i];
        bool wants =
            (polled->events & POLLIN) != 0 && (polled->revents & (POLLIN | POLLHUP | POLLERR)) != 0;
        if (wants && !read_some(link, turn, link->pairs[i / 2], i % 2 == 0 ? CLIENT : SERVER))
            close_pair(link, i / 2, true);
        if (wants && link->pairs[i / 2] == NULL && i % 2 == 0)
            i++; /* skips the other side of the pair */
    }
}

static void *work(void *arg)
{
    struct tierce__slow_link *link = arg;
    (void)prctl(PR_SET_TIMERSLACK, 1UL); /* a tenth of a millisecond is a delay, too */
    for (;;) {
        struct turn turn = begin_turn(link);
        send_all_due(link, &turn);
        end_changes(link, &turn);
        if (turn.ends)
            return NULL;
        fill_polled(link, &turn);
        wait_for_work(link, &turn);
        uint64_t wakes;
        if (link->polled[0].revents != 0)
            (void)!read(link->wake, &wakes, sizeof(wakes));
        turn.now = tierce__now_ns();
        read_all(link, &turn);
        if (link->polled[1].revents != 0)
            accept_some(link, &turn);
    }
}

static void wake(struct tierce__slow_link *link)
{
    uint64_t one = 1;
    (void)!write(link->wake, &one, sizeof(one));
}

/* ---- life ------------------------------------------------------------------------------------ */

static void free_link(struct tierce__slow_link *link)
{
    if (link->listener >= 0)
        close(link->listener);
    if (link->wake >= 0)
        close(link->wake);
    tierce__free(link->spare);
    tierce__cond_fini(&link->changed);
    tierce__lock_fini(&link->lock);
    link->magic = 0;
    tierce__free(link);
}

int tierce__slow_link_start(struct tierce__slow_link **out,
                            const struct tierce__slow_link_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    char why[256];
    struct tierce__slow_link *link = tierce__calloc(1, sizeof(*link));
    if (link == NULL)
        return -ENOMEM;
    link->magic = LINK_MAGIC;
    link->port = opts->listen_port;
    link->server_port = opts->port;
    link->round_trip_ns = opts->round_trip_ns;
    link->jitter_ns = opts->jitter_ns;
    link->bytes_per_s = opts->bytes_per_s;
    link->random = opts->seed;
    link->listener = -1;
    tierce__lock_init(&link->lock, TIERCE__LOCK_WORKERS);
    tierce__cond_init(&link->changed);
    link->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = link->wake >= 0 ? tierce__listen_tcp(&link->listener, &link->port, "127.0.0.1", why)
                             : -errno;
    if (rc == 0)
        rc = -pthread_create(&link->thread, NULL, work, link);
    if (rc != 0) {
        free_link(link);
        return rc;
    }
    *out = link;
    return 0;
}

uint16_t tierce__slow_link_port(const struct tierce__slow_link *link)
{
    TIERCE_CHECK_MAGIC(link, LINK_MAGIC);
    return link->port;
}

/* Under the lock: wakes the thread and blocks until it has applied the change. */
static void apply(struct tierce__slow_link *link)
{
    uint64_t change = ++link->changes;
    wake(link);
    while (link->changes_seen < change)
        tierce__cond_wait(&link->changed, &link->lock, TIERCE__DEADLINE_NEVER);
}

void tierce__slow_link_set_round_trip(struct tierce__slow_link *link, uint64_t round_trip_ns)
{
    TIERCE_CHECK_MAGIC(link, LINK_MAGIC);
    tierce__lock_take(&link->lock);
    link->round_trip_ns = round_trip_ns;
    apply(link);
    tierce__lock_drop(&link->lock);
}

void tierce__slow_link_cut(struct tierce__slow_link *link)
{
    TIERCE_CHECK_MAGIC(link, LINK_MAGIC);
    tierce__lock_take(&link->lock);
    link->is_cut = true;
    apply(link);
    tierce__lock_drop(&link->lock);
}

void tierce__slow_link_freeze(struct tierce__slow_link *link, bool frozen)
{
    TIERCE_CHECK_MAGIC(link, LINK_MAGIC);
    tierce__lock_take(&link->lock);
    link->is_frozen = frozen;
    apply(link);
    tierce__lock_drop(&link->lock);
}

void tierce__slow_link_stats(struct tierce__slow_link *link, struct tierce__slow_link_stats *out)
{
    TIERCE_CHECK_MAGIC(link, LINK_MAGIC);
    tierce__lock_take(&link->lock);
    *out = link->stats;
    tierce__lock_drop(&link->lock);
}

void tierce__slow_link_stop(struct tierce__slow_link *link)
{
    if (link == NULL)
        return;
    TIERCE_CHECK_MAGIC(link, LINK_MAGIC);
    tierce__lock_take(&link->lock);
    link->is_ending = true;
    tierce__lock_drop(&link->lock);
    wake(link);
    pthread_join(link->thread, NULL);
    free_link(link);
}
