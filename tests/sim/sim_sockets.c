/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_sched.h"
#include "sim_sockets.h"
#include "sim_sockets_private.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

/*
 * The turn does not pass within a function of this file but where it says so, so nothing is locked.
 * A descriptor is that of a real Unix socket, which does nothing but hold the number, and the file
 * that a listener is bound to.
 */

struct socket sim_sockets[FDS_MAX];
static bool cuts[SIM_HOSTS][SIM_HOSTS], is_down[SIM_HOSTS];
static unsigned lives[SIM_HOSTS];
static bool resets_some;
static uint64_t resets;
static uint16_t next_port = PORT_FIRST;
static uint8_t port_hosts[1 << 16]; /* the last host that listened there */

SIM_WRAPS(int, socket, int family, int type, int protocol);
SIM_WRAPS(int, bind, int fd, const struct sockaddr *address, socklen_t length);
SIM_WRAPS(int, listen, int fd, int backlog);
SIM_WRAPS(int, connect, int fd, const struct sockaddr *address, socklen_t length);
SIM_WRAPS(int, accept4, int fd, struct sockaddr *address, socklen_t *length, int flags);
SIM_WRAPS(int, shutdown, int fd, int how);
SIM_WRAPS(int, close, int fd);
SIM_WRAPS(int, getsockopt, int fd, int level, int name, void *value, socklen_t *length);
SIM_WRAPS(int, setsockopt, int fd, int level, int name, const void *value, socklen_t length);
SIM_WRAPS(int, getsockname, int fd, struct sockaddr *address, socklen_t *length);
SIM_WRAPS(int, getpeername, int fd, struct sockaddr *address, socklen_t *length);
SIM_WRAPS(ssize_t, readv, int fd, const struct iovec *pieces, int count);
SIM_WRAPS(ssize_t, recv, int fd, void *bytes, size_t count, int flags);
SIM_WRAPS(ssize_t, recvmsg, int fd, struct msghdr *message, int flags);
SIM_WRAPS(ssize_t, send, int fd, const void *bytes, size_t count, int flags);
SIM_WRAPS(ssize_t, sendmsg, int fd, const struct msghdr *message, int flags);

int sim_fail_with(int error)
{
    errno = error;
    return -1;
}

/* NULL: the descriptor is the system's. */
struct socket *sim_find(int fd)
{
    bool is_ours = sim_is_on() && fd >= 0 && fd < FDS_MAX && sim_sockets[fd].kind != NONE;
    return is_ours ? &sim_sockets[fd] : NULL;
}

bool sim_is_gone(const struct socket *s)
{
    return s->life != lives[s->host];
}

struct socket *sim_make(int *fd, enum kind kind, bool waits)
{
    *fd = __real_socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return NULL;
    if (*fd >= FDS_MAX)
        abort();
    unsigned host = sim_host();
    sim_sockets[*fd] =
        (struct socket){.kind = kind, .waits = waits, .host = host, .life = lives[host]};
    return &sim_sockets[*fd];
}

uint64_t sim_until_ms(int timeout_ms)
{
    return timeout_ms < 0 ? SIM_NEVER : sim_now_ns() + (uint64_t)timeout_ms * MS;
}

/* ---- parcels --------------------------------------------------------------------------------- */

/* Mostly fast, sometimes slow. */
static uint64_t travel_ns(const struct end *to)
{
    if (to->is_local)
        return 100 * (1 + sim_below(100));
    uint64_t rare = sim_below(200);
    return 1000 * (1 + sim_below(rare == 0 ? 200000 : rare < 10 ? 20000 : 300));
}

static bool is_cut(const struct end *to)
{
    return !to->is_local && cuts[to->host][to->peer->host];
}

static uint64_t arrival_ns(const struct end *to, uint64_t after_ns)
{
    if (is_cut(to) || after_ns == SIM_NEVER)
        return SIM_NEVER;
    uint64_t soon = sim_now_ns() + travel_ns(to);
    return soon > after_ns ? soon : after_ns;
}

static struct parcel *post(struct end *to, enum parcel_kind kind, size_t count)
{
    struct parcel *p = calloc(1, sizeof(*p) + count);
    *p = (struct parcel){.kind = kind,
                         .arrives_ns = arrival_ns(to, to->last != NULL ? to->last->arrives_ns : 0),
                         .count = count,
                         .passed = -1};
    if (to->last != NULL)
        to->last->next = p;
    else
        to->first = p;
    to->last = p;
    to->queued += count;
    to->has_fin |= kind != BYTES;
    return p;
}

static void drop_first(struct end *e)
{
    struct parcel *p = e->first;
    e->first = p->next;
    e->last = e->first != NULL ? e->last : NULL;
    e->taken++;
    if (p->passed >= 0)
        __real_close(p->passed);
    free(p);
}

static void drop_all(struct end *e)
{
    while (e->first != NULL)
        drop_first(e);
    e->queued = 0;
}

static void reset(struct end *e)
{
    if (!e->is_closed && !e->is_lost)
        post(e, RESET, 0);
}

/* Parcels that have arrived, since the connection was made. */
uint64_t sim_arrived(const struct end *e)
{
    uint64_t count = e->taken;
    for (const struct parcel *p = e->first; p != NULL && p->arrives_ns <= sim_now_ns(); p = p->next)
        count++;
    return count;
}

/* When a read has something to return: `low` bytes, the end, or an error. */
uint64_t sim_readable_ns(const struct end *e, size_t low)
{
    size_t bytes = 0;
    if (e->error != 0 || e->shut_read || e->is_lost)
        return 0;
    low = low < e->capacity / 2 ? low : e->capacity / 2;
    for (const struct parcel *p = e->first; p != NULL; p = p->next) {
        bytes += p->count - p->at;
        if (p->kind != BYTES || bytes >= low)
            return p->arrives_ns < e->dies_ns ? p->arrives_ns : e->dies_ns;
    }
    return e->dies_ns;
}

static size_t room(const struct end *e)
{
    return e->peer->queued < e->peer->capacity ? e->peer->capacity - e->peer->queued : 0;
}

uint64_t sim_writable_ns(const struct end *e)
{
    if (e->connects_ns > sim_now_ns())
        return e->connects_ns < e->dies_ns ? e->connects_ns : e->dies_ns;
    bool has_ended = e->error != 0 || e->shut_write || e->is_lost || e->peer->is_closed;
    return has_ended || room(e) > e->peer->capacity / 3 ? 0 : e->dies_ns;
}

/* An error that has come. */
void sim_notice(struct end *e)
{
    if (e->dies_ns <= sim_now_ns() && e->error == 0)
        e->error = ETIMEDOUT;
    const struct parcel *p = e->first;
    if (p != NULL && p->kind == RESET && p->arrives_ns <= sim_now_ns() && e->error == 0) {
        e->error = ECONNRESET;
        resets++;
    }
}

/* ---- connections ----------------------------------------------------------------------------- */

static struct end *make_end(unsigned host, bool is_local)
{
    static const size_t capacities[] = {2048, 16384, 65536, 262144};
    struct end *e = calloc(1, sizeof(*e));
    *e = (struct end){.host = host,
                      .is_local = is_local,
                      .low = 1,
                      .dies_ns = SIM_NEVER,
                      .send_limit_ns = SIM_NEVER,
                      .capacity = capacities[is_local ? 3 : sim_below(4)]};
    return e;
}

static void close_end(struct end *e)
{
    bool was_unread = e->queued > 0;
    struct end *peer = e->peer;
    e->is_closed = true;
    drop_all(e);
    if (!peer->is_closed) {
        if (!peer->is_lost && !e->is_lost && (was_unread || !peer->has_fin))
            post(peer, was_unread ? RESET : FIN, 0);
        return;
    }
    drop_all(peer);
    free(peer);
    free(e);
}

static struct socket *listener_of(int family, const char *path, uint16_t port)
{
    for (size_t i = 0; i < FDS_MAX; i++) {
        struct socket *s = &sim_sockets[i];
        if (s->kind == LISTENER && s->family == family && !sim_is_gone(s) &&
            (family == AF_UNIX ? strcmp(s->path, path) == 0 : s->port == port))
            return s;
    }
    return NULL;
}

int __wrap_socket(int family, int type, int protocol)
{
    int fd;
    if (!sim_is_on() || (type & SOCK_DGRAM) == SOCK_DGRAM)
        return __real_socket(family, type, protocol);
    struct socket *s = sim_make(&fd, FRESH, (type & SOCK_NONBLOCK) == 0);
    if (s != NULL)
        s->family = family == AF_UNIX ? AF_UNIX : AF_INET;
    return fd;
}

int __wrap_bind(int fd, const struct sockaddr *address, socklen_t length)
{
    struct socket *s = sim_find(fd);
    if (s == NULL)
        return __real_bind(fd, address, length);
    if (s->family == AF_UNIX) {
        const struct sockaddr_un *un = (const void *)address;
        memcpy(s->path, un->sun_path, sizeof(s->path));
        return __real_bind(fd, address, length);
    }
    const struct sockaddr_in *in = (const void *)address;
    s->port = in->sin_port != 0 ? ntohs(in->sin_port) : next_port++;
    port_hosts[s->port] = (uint8_t)s->host;
    return listener_of(AF_INET, NULL, s->port) == NULL ? 0 : sim_fail_with(EADDRINUSE);
}

int __wrap_listen(int fd, int backlog)
{
    struct socket *s = sim_find(fd);
    if (s == NULL)
        return __real_listen(fd, backlog);
    s->kind = LISTENER;
    return 0;
}

static int connect_unix(struct socket *s, const char *path)
{
    struct socket *to = listener_of(AF_UNIX, path, 0);
    if (to == NULL)
        return sim_fail_with(access(path, F_OK) == 0 ? ECONNREFUSED : ENOENT);
    return to->waiting_count >= BACKLOG_MAX || sim_is_gone(s) ? sim_fail_with(EAGAIN) : 0;
}

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t length)
{
    struct socket *s = sim_find(fd), *to;
    if (s == NULL)
        return __real_connect(fd, address, length);
    bool is_local = s->family == AF_UNIX;
    const char *path = ((const struct sockaddr_un *)(const void *)address)->sun_path;
    uint16_t port = ntohs(((const struct sockaddr_in *)(const void *)address)->sin_port);
    sim_may_pass();
    if (is_local && connect_unix(s, path) != 0)
        return -1;
    to = listener_of(s->family, path, port);
    unsigned host = is_local ? s->host : port_hosts[port];
    struct end *e = make_end(s->host, is_local),
               *other = make_end(to != NULL ? to->host : host, is_local);
    e->peer = other;
    other->peer = e;
    s->kind = END;
    s->end = e;
    s->port = port;
    /* A host that is down says nothing; one that does not listen refuses. */
    bool is_silent = is_cut(e) || (to == NULL && !is_local && is_down[port_hosts[port]]);
    e->connects_ns = is_local ? 0 : is_silent ? SIM_NEVER : sim_now_ns() + 2 * travel_ns(e);
    if (to == NULL || is_silent) {
        other->is_closed = true;
        e->error = is_silent ? 0 : ECONNREFUSED;
        return sim_fail_with(EINPROGRESS);
    }
    struct end **at = &to->waiting;
    other->connects_ns = is_local ? 0 : sim_now_ns() + (e->connects_ns - sim_now_ns()) / 2;
    for (; *at != NULL; at = &(*at)->next_waiting)
        if ((*at)->connects_ns > other->connects_ns)
            break;
    other->next_waiting = *at;
    *at = other;
    to->waiting_count++;
    return is_local ? 0 : sim_fail_with(EINPROGRESS);
}

uint64_t sim_acceptable_ns(const struct socket *s)
{
    return s->waiting != NULL && !sim_is_gone(s) ? s->waiting->connects_ns : SIM_NEVER;
}

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    struct socket *s = sim_find(fd), *made;
    int out;
    if (s == NULL)
        return __real_accept4(fd, address, length, flags);
    sim_may_pass();
    if (sim_acceptable_ns(s) > sim_now_ns())
        return sim_fail_with(EAGAIN);
    made = sim_make(&out, END, (flags & SOCK_NONBLOCK) == 0);
    if (made == NULL)
        return -1;
    made->family = s->family;
    made->port = s->port;
    made->end = s->waiting;
    s->waiting = s->waiting->next_waiting;
    s->waiting_count--;
    s->taken++;
    if (address != NULL)
        return __wrap_getpeername(out, address, length) == 0 ? out : -1;
    return out;
}

int __wrap_shutdown(int fd, int how)
{
    struct socket *s = sim_find(fd);
    if (s == NULL)
        return __real_shutdown(fd, how);
    struct end *e = s->end;
    if (s->kind != END)
        return sim_fail_with(ENOTCONN);
    e->shut_read |= how != SHUT_WR;
    e->ends++;
    if (how != SHUT_RD && !e->shut_write && !e->peer->is_closed && !e->is_lost)
        post(e->peer, FIN, 0);
    e->shut_write |= how != SHUT_RD;
    sim_may_pass();
    return 0;
}

int __wrap_close(int fd)
{
    struct socket *s = sim_find(fd);
    if (s == NULL)
        return __real_close(fd);
    while (s->waiting != NULL) {
        struct end *e = s->waiting;
        s->waiting = e->next_waiting;
        reset(e->peer);
        close_end(e);
    }
    if (s->end != NULL)
        close_end(s->end);
    while (s->watched != NULL) {
        struct watched *w = s->watched;
        s->watched = w->next;
        free(w);
    }
    for (size_t i = 0; i < FDS_MAX; i++)
        for (struct watched *w = sim_sockets[i].watched; w != NULL; w = w->next)
            w->fd = w->fd == fd ? -1 : w->fd;
    s->kind = NONE;
    __real_close(fd);
    sim_may_pass();
    return 0;
}

/* ---- names and options ----------------------------------------------------------------------- */

static int put_address(const struct socket *s, struct sockaddr *address, socklen_t *length)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(s->port)};
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    socklen_t bytes = s->family == AF_UNIX ? sizeof(un.sun_family) : sizeof(in);
    const void *from = s->family == AF_UNIX ? (const void *)&un : &in;
    memcpy(address, from, *length < bytes ? *length : bytes);
    *length = bytes;
    return 0;
}

int __wrap_getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
    const struct socket *s = sim_find(fd);
    return s == NULL ? __real_getsockname(fd, address, length) : put_address(s, address, length);
}

int __wrap_getpeername(int fd, struct sockaddr *address, socklen_t *length)
{
    const struct socket *s = sim_find(fd);
    if (s == NULL)
        return __real_getpeername(fd, address, length);
    bool is_connected = s->kind == END && s->end->connects_ns <= sim_now_ns();
    return is_connected ? put_address(s, address, length) : sim_fail_with(ENOTCONN);
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
    struct socket *s = sim_find(fd);
    if (s == NULL)
        return __real_getsockopt(fd, level, name, value, length);
    if (level == SOL_SOCKET && name == SO_PEERCRED) {
        struct ucred peer = {getpid(), geteuid(), getegid()};
        memcpy(value, &peer, sizeof(peer));
        return 0;
    }
    if (level != SOL_SOCKET || name != SO_ERROR || s->kind != END)
        return sim_fail_with(ENOPROTOOPT);
    sim_notice(s->end);
    *(int *)value = s->end->error;
    return 0;
}

/* Each epoll looks at the socket again, as the mark may lie lower. */
static void look_again(int fd)
{
    for (size_t i = 0; i < FDS_MAX; i++)
        for (struct watched *w = sim_sockets[i].watched; w != NULL; w = w->next)
            w->seen_in = w->fd == fd ? 0 : w->seen_in;
}

int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    struct socket *s = sim_find(fd);
    if (s == NULL)
        return __real_setsockopt(fd, level, name, value, length);
    struct end *e = s->end;
    if (e != NULL && level == SOL_SOCKET && name == SO_RCVLOWAT) {
        e->low = *(const int *)value > 0 ? *(const int *)value : 1;
        look_again(fd);
    } else if (e != NULL && level == SOL_SOCKET && name == SO_SNDTIMEO) {
        const struct timeval *time = value;
        e->send_limit_ns = (uint64_t)time->tv_sec * 1000 * MS + (uint64_t)time->tv_usec * 1000;
    } else if (e != NULL && level == IPPROTO_TCP && name == TCP_USER_TIMEOUT) {
        e->watch_ms = *(const uint32_t *)value;
        if (is_cut(e) || e->peer->is_lost)
            e->dies_ns = sim_now_ns() + e->watch_ms * MS;
    }
    return 0;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static size_t total(const struct iovec *pieces, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += pieces[i].iov_len;
    return bytes;
}

/* Copies between a run of bytes and pieces. */
static void copy_pieces(uint8_t *run, const struct iovec *pieces, size_t bytes, bool into_pieces)
{
    for (; bytes > 0; pieces++) {
        size_t n = pieces->iov_len < bytes ? pieces->iov_len : bytes;
        if (n > 0 && into_pieces)
            memcpy(pieces->iov_base, run, n);
        else if (n > 0)
            memcpy(run, pieces->iov_base, n);
        run += n;
        bytes -= n;
    }
}

/* A part, or all. */
static size_t draw_part(size_t count)
{
    return count > 1 && sim_below(4) == 0 ? 1 + sim_below(count) : count;
}

/* Takes bytes that have arrived: up to `most`, and none after a passed descriptor. */
static size_t take_bytes(struct end *e, uint8_t *out, size_t most, int *passed)
{
    size_t got = 0;
    while (got < most && e->first != NULL && e->first->kind == BYTES &&
           e->first->arrives_ns <= sim_now_ns()) {
        struct parcel *p = e->first;
        size_t n = p->count - p->at < most - got ? p->count - p->at : most - got;
        if (p->passed >= 0 && got > 0)
            break;
        memcpy(out + got, p->bytes + p->at, n);
        p->at += n;
        got += n;
        if (p->passed >= 0 && passed != NULL) {
            *passed = p->passed;
            p->passed = -1;
        }
        if (p->at == p->count)
            drop_first(e);
    }
    e->queued -= got;
    struct end *writer = e->peer;
    if (writer->was_full && room(writer) > e->capacity / 3) {
        writer->was_full = false;
        writer->room_edges++;
    }
    return got;
}

static uint64_t when_readable(const void *arg)
{
    return sim_readable_ns(arg, 1);
}

ssize_t sim_receive(struct socket *s, const struct iovec *pieces, size_t count, int flags,
                    int *passed)
{
    struct end *e = s->end;
    size_t most = total(pieces, count);
    sim_may_pass();
    if (s->kind != END || most == 0)
        return s->kind != END ? sim_fail_with(ENOTCONN) : 0;
    if (s->waits && (flags & MSG_DONTWAIT) == 0)
        (void)sim_await(when_readable, e, SIM_NEVER);
    if (sim_is_gone(s))
        return sim_fail_with(ECONNRESET);
    const struct parcel *p = e->first;
    bool has_bytes = p != NULL && p->kind == BYTES && p->arrives_ns <= sim_now_ns();
    if (e->connects_ns > sim_now_ns() || (sim_readable_ns(e, 1) > sim_now_ns()))
        return sim_fail_with(EAGAIN);
    if (has_bytes && (flags & MSG_PEEK) != 0) {
        *(uint8_t *)pieces->iov_base = p->bytes[p->at];
        return 1;
    }
    if (has_bytes && !e->shut_read) {
        uint8_t *run = malloc(most);
        size_t got = take_bytes(e, run, draw_part(most), passed);
        copy_pieces(run, pieces, got, true);
        free(run);
        return (ssize_t)got;
    }
    sim_notice(e);
    return e->error != 0 ? sim_fail_with(e->error) : 0;
}

static uint64_t when_writable(const void *arg)
{
    return sim_writable_ns(arg);
}

static bool draw_reset(struct end *e)
{
    if (!resets_some || e->is_local || sim_below(400) != 0)
        return false;
    reset(e);
    reset(e->peer);
    return true;
}

ssize_t sim_transmit(struct socket *s, const struct iovec *pieces, size_t count, int flags,
                     int passed)
{
    struct end *e = s->end;
    size_t most = total(pieces, count);
    sim_may_pass();
    if (s->kind != END)
        return sim_fail_with(ENOTCONN);
    sim_notice(e);
    if (sim_is_gone(s) || e->error != 0 || e->shut_write)
        return sim_fail_with(EPIPE);
    if (s->waits && (flags & MSG_DONTWAIT) == 0 &&
        !sim_await(when_writable, e,
                   e->send_limit_ns == SIM_NEVER ? SIM_NEVER : sim_now_ns() + e->send_limit_ns))
        return sim_fail_with(EAGAIN);
    if (e->connects_ns > sim_now_ns())
        return sim_fail_with(EAGAIN);
    if (e->peer->is_closed) {
        if (e->is_local)
            return sim_fail_with(EPIPE);
        reset(e); /* the answer of a host that knows nothing of it */
        return (ssize_t)most;
    }
    if (e->peer->is_lost && !is_down[e->peer->host])
        reset(e);
    size_t n = draw_part(most);
    n = n < room(e) ? n : room(e);
    e->was_full |= n < most; /* an edge follows a part as well, as in Linux */
    if (n == 0 || draw_reset(e))
        return n == 0 ? sim_fail_with(EAGAIN) : (ssize_t)n;
    struct parcel *p = post(e->peer, BYTES, n);
    copy_pieces(p->bytes, pieces, n, false);
    p->passed = passed >= 0 ? fcntl(passed, F_DUPFD_CLOEXEC, 0) : -1;
    return (ssize_t)n;
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
    struct socket *s = sim_find(fd);
    int passed = -1;
    if (s == NULL)
        return __real_recvmsg(fd, message, flags);
    ssize_t n = sim_receive(s, message->msg_iov, message->msg_iovlen, flags, &passed);
    struct cmsghdr *head = message->msg_control;
    if (passed >= 0) {
        head->cmsg_len = CMSG_LEN(sizeof(int));
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        memcpy(CMSG_DATA(head), &passed, sizeof(passed));
    }
    message->msg_controllen = passed >= 0 ? CMSG_SPACE(sizeof(int)) : 0;
    return n;
}

ssize_t __wrap_readv(int fd, const struct iovec *pieces, int count)
{
    struct socket *s = sim_find(fd);
    return s == NULL ? __real_readv(fd, pieces, count)
                     : sim_receive(s, pieces, (size_t)count, 0, NULL);
}

ssize_t __wrap_recv(int fd, void *bytes, size_t count, int flags)
{
    struct socket *s = sim_find(fd);
    return s == NULL ? __real_recv(fd, bytes, count, flags)
                     : sim_receive(s, &(struct iovec){bytes, count}, 1, flags, NULL);
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct socket *s = sim_find(fd);
    int passed = -1;
    if (s == NULL)
        return __real_sendmsg(fd, message, flags);
    if (message->msg_control != NULL)
        memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(message)), sizeof(passed));
    return sim_transmit(s, message->msg_iov, message->msg_iovlen, flags, passed);
}

ssize_t __wrap_send(int fd, const void *bytes, size_t count, int flags)
{
    struct socket *s = sim_find(fd);
    return s == NULL
               ? __real_send(fd, bytes, count, flags)
               : sim_transmit(s, &(struct iovec){(void *)(uintptr_t)bytes, count}, 1, flags, -1);
}

/* ---- hosts ----------------------------------------------------------------------------------- */

void sim_sockets_reset_some(bool some)
{
    resets_some = some;
}

uint64_t sim_sockets_resets(void)
{
    return resets;
}

void sim_sockets_cut(unsigned one, unsigned other, bool is)
{
    bool was = cuts[one][other];
    cuts[one][other] = cuts[other][one] = is;
    for (size_t i = 0; i < FDS_MAX && was != is; i++) {
        struct end *e = sim_sockets[i].kind == END ? sim_sockets[i].end : NULL;
        bool is_between = e != NULL && !e->is_local &&
                          ((e->host == one && e->peer->host == other) ||
                           (e->host == other && e->peer->host == one));
        if (!is_between)
            continue;
        uint64_t last_ns = 0;
        for (struct parcel *p = e->first; p != NULL; p = p->next) {
            if (p->arrives_ns > sim_now_ns())
                p->arrives_ns = is ? SIM_NEVER : arrival_ns(e, last_ns);
            last_ns = p->arrives_ns;
        }
        e->dies_ns = is && e->watch_ms > 0 ? sim_now_ns() + e->watch_ms * MS : SIM_NEVER;
        if (is && e->connects_ns > sim_now_ns())
            e->connects_ns = SIM_NEVER;
    }
}

void sim_sockets_down(unsigned host, bool is_silent)
{
    for (size_t i = 0; i < FDS_MAX; i++) {
        struct socket *s = &sim_sockets[i];
        if (s->kind == NONE || s->host != host || sim_is_gone(s))
            continue;
        for (struct end *w = s->waiting; w != NULL; w = w->next_waiting)
            if (!is_silent || w->is_local)
                reset(w->peer);
        struct end *e = s->kind == END ? s->end : NULL;
        if (e == NULL)
            continue;
        struct end *peer = e->peer;
        if (!peer->is_closed && (e->is_local || !is_silent))
            post(peer, e->queued > 0 || !e->is_local ? RESET : FIN, 0);
        else if (!peer->is_closed && peer->watch_ms > 0)
            peer->dies_ns = sim_now_ns() + peer->watch_ms * MS;
        e->is_lost = true;
        e->ends++;
    }
    lives[host]++;
    is_down[host] = true;
}

void sim_sockets_up(unsigned host)
{
    is_down[host] = false;
    /* Bytes that were sent meanwhile are sent again. The host has no such connection, and resets
     * it. */
    for (size_t i = 0; i < FDS_MAX; i++) {
        struct end *e = sim_sockets[i].kind == END ? sim_sockets[i].end : NULL;
        if (e != NULL && e->peer->is_lost && e->peer->host == host && e->peer->queued > 0)
            reset(e);
    }
}

unsigned sim_sockets_open(void)
{
    unsigned count = 0;
    for (size_t i = 0; i < FDS_MAX; i++)
        count += sim_sockets[i].kind != NONE;
    return count;
}
