/* SPDX-License-Identifier: Apache-2.0 */
#include "node/native/native_server.h"
#include "base/assert.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "net/control/socket.h"
#include "node/native/native_private.h"
#include "net/stream.h"

/* Sockets and threads: access control, frames in and out, and the end. */

enum { TICK_MS = 250, DRAIN_TICK_MS = 20, FIRST_ROOM = 4096, ROOM_KEPT = 1 << 20 };

/* ---- frames ---------------------------------------------------------------------------------- */

static bool grow_input(struct tierce__native_connection *c, size_t need)
{
    TIERCE_ASSERT(c->in_used <= c->in_room);
    /* Announced lengths are not trusted: a frame gets memory only as it arrives. */
    if (c->in_used < c->in_room)
        return true;
    size_t room = c->in_room > 0 ? 2 * c->in_room : FIRST_ROOM;
    room = room < need ? room : need > FIRST_ROOM ? need : FIRST_ROOM;
    uint8_t *grown = tierce__realloc(c->in, room);
    if (grown == NULL)
        return false;
    c->in = grown;
    c->in_room = room;
    TIERCE_ASSERT(c->in_used < c->in_room);
    return true;
}

/* At least one more byte. Returns 0, or why there is none. */
static int receive_some(struct tierce__native_connection *c, size_t need, uint64_t deadline_ns)
{
    if (!grow_input(c, need))
        return -ENOMEM;
    /* The wait for a first byte is in recv, which saves a call per request. */
    bool has_deadline = deadline_ns != TIERCE__DEADLINE_NEVER;
    for (;;) {
        int rc = has_deadline ? tierce__stream_wait(c->fd, POLLIN, NULL, deadline_ns) : 0;
        if (rc < 0)
            return rc;
        ssize_t n = recv(c->fd, c->in + c->in_used, c->in_room - c->in_used,
                         has_deadline ? MSG_DONTWAIT : 0);
        if (n > 0) {
            c->in_used += (size_t)n;
            return 0;
        }
        if (n == 0)
            return c->in_used > 0 ? TIERCE_E_FORMAT : TIERCE_E_CLOSED;
        if (errno != EINTR && errno != EAGAIN)
            return -errno;
    }
}

/* A complete request: the body follows the head. The time for it runs from its first byte on. */
static int receive(struct tierce__native_connection *c, uint32_t *op, uint32_t *body_bytes)
{
    uint32_t request_ms = c->native->node->config->request_ms;
    /* An authenticated client may stay silent. */
    uint64_t deadline_ns =
        c->client != NULL ? TIERCE__DEADLINE_NEVER : tierce__deadline_in_ms(request_ms);
    size_t need = TIERCE__NATIVE_HEAD;
    bool has_head = false;
    while (c->in_used < need || !has_head) {
        if (c->in_used >= TIERCE__NATIVE_HEAD) {
            int rc = tierce__native_head(body_bytes, op, c->in);
            if (rc < 0)
                return rc;
            need = TIERCE__NATIVE_HEAD + *body_bytes;
            has_head = true;
            if (c->in_used >= need)
                break;
        }
        if (c->in_used > 0 && deadline_ns == TIERCE__DEADLINE_NEVER)
            deadline_ns = tierce__deadline_in_ms(request_ms);
        int rc = receive_some(c, need, deadline_ns);
        if (rc < 0)
            return rc;
    }
    TIERCE_ASSERT(c->in_used >= need);
    return 0;
}

static void drop_input(struct tierce__native_connection *c, size_t bytes)
{
    TIERCE_ASSERT(bytes <= c->in_used);
    c->in_used -= bytes;
    memmove(c->in, c->in + bytes, c->in_used);
    if (c->in_room > ROOM_KEPT && c->in_used == 0) {
        tierce__free(c->in);
        c->in = NULL;
        c->in_room = 0;
    }
}

static int send_frame(struct tierce__native_connection *c)
{
    const uint8_t *at = c->out.bytes;
    size_t left = c->out.used;
    char control[CMSG_SPACE(sizeof(int))] = {0};
    while (left > 0) {
        struct iovec iov = {.iov_base = (void *)(uintptr_t)at, .iov_len = left};
        struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
        if (c->sends_pool) {
            message.msg_control = control;
            message.msg_controllen = sizeof(control);
            struct cmsghdr *head = CMSG_FIRSTHDR(&message);
            head->cmsg_level = SOL_SOCKET;
            head->cmsg_type = SCM_RIGHTS;
            head->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(head), &c->native->memory.fd, sizeof(int));
        }
        ssize_t n = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        c->sends_pool = false;
        at += n;
        left -= (size_t)n;
    }
    return 0;
}

/* ---- a connection ---------------------------------------------------------------------------- */

static int serve_one(struct tierce__native_connection *c)
{
    uint32_t op, body_bytes;
    int rc = receive(c, &op, &body_bytes);
    /* A socket that was closed with an unread answer in it ends with a reset; any other end means
     * that the answer was read. */
    if (rc != -ECONNRESET || c->in_used > 0)
        c->begun_by = 0;
    if (rc == 0)
        rc = tierce__native_answer(c, op, c->in + TIERCE__NATIVE_HEAD, body_bytes);
    if (rc == 0) {
        drop_input(c, TIERCE__NATIVE_HEAD + body_bytes);
        rc = send_frame(c);
    }
    return rc;
}

static void free_connection(struct tierce__native_connection *c)
{
    close(c->fd);
    tierce__native_frame_fini(&c->out);
    tierce__free(c->in);
    tierce__free(c->rows);
    tierce__free(c);
}

static void *run_connection(void *arg)
{
    struct tierce__native_connection *c = arg;
    struct tierce__native *native = c->native;
    int rc;
    do
        rc = serve_one(c);
    while (rc == 0);
    if (rc == TIERCE_E_FORMAT || rc == TIERCE_E_LIMIT || rc == TIERCE_E_DEADLINE) {
        tierce__node_count(native->node, TIERCE__NODE_protocol_errors, 1);
        tierce__log_repeated(TIERCE_LOG_WARN, "native_protocol_error", "pid=%d err=\"%s\"", c->pid,
                             tierce_strerror(rc));
    }
    if (c->begun_by != 0)
        tierce__native_end_unheard(c);
    tierce__native_leave(c);
    tierce__lock_take(&native->lock);
    tierce__list_remove(&c->node);
    tierce__lock_drop(&native->lock);
    free_connection(c);
    tierce__lock_take(&native->lock);
    TIERCE_ASSERT(native->connection_count > 0);
    native->connection_count--;
    tierce__cond_broadcast(&native->changed); /* the last access to memory that stop frees */
    tierce__lock_drop(&native->lock);
    return NULL;
}

static int start_thread(struct tierce__native_connection *c)
{
    pthread_attr_t attr;
    pthread_t thread;
    int rc = pthread_attr_init(&attr);
    if (rc != 0)
        return -rc;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    rc = -pthread_create(&thread, &attr, run_connection, c);
    pthread_attr_destroy(&attr);
    return rc;
}

/* ---- coming in ------------------------------------------------------------------------------- */

static bool count_in(struct tierce__native *native, struct tierce__native_connection *c)
{
    tierce__lock_take(&native->lock);
    bool fits = native->connection_count < native->node->config->native_connections_max;
    if (fits) {
        native->connection_count++;
        tierce__list_push_back(&native->connections, &c->node);
    }
    tierce__lock_drop(&native->lock);
    return fits;
}

static void count_out(struct tierce__native *native, struct tierce__native_connection *c)
{
    tierce__lock_take(&native->lock);
    TIERCE_ASSERT(native->connection_count > 0);
    tierce__list_remove(&c->node);
    native->connection_count--;
    tierce__lock_drop(&native->lock);
}

/* Before it asks: the answer to its HELLO. */
static void refuse(const struct tierce__native *native, int fd, const struct ucred *peer)
{
    static const uint8_t answer[TIERCE__NATIVE_HEAD] = {0,    0,    0,   0, (uint8_t)-EACCES,
                                                        0xff, 0xff, 0xff}; /* no body; the status */
    (void)send(fd, answer, sizeof(answer), MSG_NOSIGNAL | MSG_DONTWAIT);
    tierce__node_count(native->node, TIERCE__NODE_connections_refused, 1);
    tierce__log_repeated(TIERCE_LOG_WARN, "native_connection_refused",
                         "pid=%d uid=%lu gid=%lu reason=\"neither this user nor in "
                         "listen.native_users or listen.native_group\"",
                         peer->pid, (unsigned long)peer->uid, (unsigned long)peer->gid);
}

static void let_in(struct tierce__native *native, int fd)
{
    struct ucred peer = {0};
    (void)tierce__control_peer(fd, &peer);
    bool may_come = tierce__socket_users_admit(&native->allowed, fd);
    struct tierce__native_connection *c = may_come ? tierce__calloc(1, sizeof(*c)) : NULL;
    if (!may_come)
        refuse(native, fd, &peer);
    if (c == NULL) {
        close(fd);
        return;
    }
    uint32_t send_ms = native->node->config->request_ms;
    struct timeval send_time = {.tv_sec = send_ms / 1000, .tv_usec = send_ms % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &send_time, sizeof(send_time));
    *c = (struct tierce__native_connection){.native = native, .fd = fd, .pid = peer.pid};
    if (!count_in(native, c)) {
        tierce__node_count(native->node, TIERCE__NODE_connections_refused, 1);
        tierce__log_repeated(TIERCE_LOG_WARN, "native_connection_refused",
                             "pid=%d reason=limit.native_connections", peer.pid);
        free_connection(c);
        return;
    }
    tierce__node_count(native->node, TIERCE__NODE_native_connections, 1);
    int rc = start_thread(c);
    if (rc < 0) {
        tierce__log_repeated(TIERCE_LOG_WARN, "native_connection_failed", "err=\"%s\"",
                             tierce_strerror(rc));
        count_out(native, c);
        free_connection(c);
    }
}

static void *run_native(void *arg)
{
    struct tierce__native *native = arg;
    struct pollfd fds[] = {{.fd = native->fd, .events = POLLIN},
                           {.fd = native->wake_fd, .events = POLLIN}};
    uint64_t tick_ns = tierce__deadline_in_ms(TICK_MS);
    while (!atomic_load_explicit(&native->is_ending, memory_order_relaxed)) {
        fds[0].revents = 0;
        (void)poll(fds, 2, TICK_MS);
        int fd = fds[0].revents != 0 ? accept4(native->fd, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (fd >= 0)
            let_in(native, fd);
        else if (fds[0].revents != 0 && (errno == EMFILE || errno == ENFILE))
            poll(NULL, 0, TICK_MS); /* waiting connections are accepted when others have closed */
        if (tierce__now_ns() < tick_ns)
            continue;
        tierce__native_expire(native);
        tick_ns = tierce__deadline_in_ms(TICK_MS);
    }
    return NULL;
}

/* ---- start ----------------------------------------------------------------------------------- */

/* A user who can write to the folder could replace the socket. */
static int check_folder(const char *path, char why[256])
{
    char folder[TIERCE__CONTROL_PATH_BYTES];
    struct stat info;
    const char *slash = strrchr(path, '/');
    int n = slash == NULL   ? snprintf(folder, sizeof(folder), ".")
            : slash == path ? snprintf(folder, sizeof(folder), "/")
                            : snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path), path);
    if (n >= (int)sizeof(folder)) {
        snprintf(why, 256, "listen.native: the path is too long");
        return TIERCE_E_ARGUMENT;
    }
    if (stat(folder, &info) < 0) {
        int rc = -errno;
        snprintf(why, 256, "listen.native: the folder %.140s: %s%s", folder, tierce_strerror(rc),
                 rc == -ENOENT ? "; create it, with access for this user only (mode 0700)" : "");
        return rc;
    }
    bool is_owned = info.st_uid == geteuid() || info.st_uid == 0;
    bool is_closed = (info.st_mode & 022) == 0 || (info.st_mode & S_ISVTX) != 0;
    if (is_owned && is_closed)
        return 0;
    snprintf(why, 256, "listen.native: other users can change the folder %.160s; chmod 700 it",
             folder);
    return -EACCES;
}

static int open_socket(struct tierce__native *native, char why[256])
{
    const struct tierce__node_config *config = native->node->config;
    char what[256];
    int rc = tierce__socket_users_init(&native->allowed, config->native_users, config->native_group,
                                       what);
    if (rc == 0)
        rc = check_folder(native->path, why);
    else
        snprintf(why, 256, "listen.native_users, listen.native_group: %.180s", what);
    if (rc < 0)
        return rc;
    rc = tierce__control_listen(&native->fd, native->path, why);
    if (rc < 0)
        return rc;
    rc = tierce__socket_users_open(&native->allowed, native->path, what);
    if (rc < 0) {
        snprintf(why, 256, "listen.native_group: %.200s", what);
        unlink(native->path);
    }
    return rc;
}

static void free_native(struct tierce__native *native)
{
    TIERCE_ASSERT(native->connection_count == 0);
    TIERCE_ASSERT(tierce__list_empty(&native->clients) && tierce__list_empty(&native->views));
    if (native->fd >= 0)
        close(native->fd);
    if (native->wake_fd >= 0)
        close(native->wake_fd);
    tierce__cond_fini(&native->changed);
    tierce__lock_fini(&native->lock);
    tierce__free(native);
}

int tierce__native_start(struct tierce__native **out, struct tierce__node *node, const char *path,
                         char why[256])
{
    struct tierce__native *native = tierce__calloc(1, sizeof(*native));
    snprintf(why, 256, "no memory");
    if (native == NULL)
        return -ENOMEM;
    native->node = node;
    native->engine = node->engine;
    native->path = path;
    native->fd = -1;
    native->wake_fd = eventfd(0, EFD_CLOEXEC);
    tierce__lock_init(&native->lock, TIERCE__LOCK_NATIVE);
    tierce__cond_init(&native->changed);
    tierce__list_init(&native->clients);
    tierce__list_init(&native->connections);
    tierce__list_init(&native->views);
    tierce__list_init(&native->pushes);
    tierce__engine_memory(node->engine, &native->memory);
    int rc = native->wake_fd < 0 ? -errno : 0;
    if (rc == 0 && getrandom(&native->boot, sizeof(native->boot), 0) < 0)
        rc = -errno;
    if (rc == 0 && native->memory.fd < 0) {
        snprintf(why, 256, "listen.native: the memory cannot be shared");
        rc = TIERCE_E_UNSUPPORTED;
    }
    if (rc == 0)
        rc = open_socket(native, why);
    if (rc == 0) {
        rc = -pthread_create(&native->thread, NULL, run_native, native);
        if (rc < 0)
            unlink(path);
    }
    if (rc < 0) {
        free_native(native);
        return rc;
    }
    *out = native;
    return 0;
}

/* ---- stop ------------------------------------------------------------------------------------ */

static void shut_connections(struct tierce__native *native)
{
    tierce__lock_take(&native->lock);
    TIERCE__LIST_FOR_EACH (it, &native->connections)
        shutdown(TIERCE__CONTAINER_OF(it, struct tierce__native_connection, node)->fd, SHUT_RDWR);
    while (native->connection_count > 0)
        tierce__cond_wait(&native->changed, &native->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&native->lock);
}

void tierce__native_stop(struct tierce__native *native, uint64_t until_ns)
{
    if (native == NULL)
        return;
    struct timespec pause = {.tv_nsec = DRAIN_TICK_MS * (long)TIERCE__MS_NS};
    atomic_store_explicit(&native->is_draining, true, memory_order_relaxed);
    unlink(native->path);
    while (atomic_load_explicit(&native->transfers, memory_order_relaxed) > 0 &&
           tierce__now_ns() < until_ns)
        nanosleep(&pause, NULL);
    atomic_store_explicit(&native->is_ending, true, memory_order_relaxed);
    (void)eventfd_write(native->wake_fd, 1);
    pthread_join(native->thread, NULL);
    shut_connections(native);
    tierce__native_reap_pushes(native, true);
    TIERCE_ASSERT(atomic_load_explicit(&native->transfers, memory_order_relaxed) == 0);
    free_native(native);
}

void tierce__native_stats(struct tierce__native *native, struct tierce__native_stats *out)
{
    *out = (struct tierce__native_stats){0};
    if (native == NULL)
        return;
    tierce__lock_take(&native->lock);
    out->connections = native->connection_count;
    TIERCE__LIST_FOR_EACH (it, &native->clients) {
        struct tierce__native_client *client =
            TIERCE__CONTAINER_OF(it, struct tierce__native_client, node);
        tierce__lock_take(&client->lock);
        out->clients++;
        out->views += client->counts[TIERCE__NATIVE_VIEWS];
        out->loads += client->counts[TIERCE__NATIVE_LOADS];
        out->stores += client->counts[TIERCE__NATIVE_STORES];
        out->prefetches += client->counts[TIERCE__NATIVE_PREFETCHES];
        out->held_bytes += client->held_bytes;
        out->chain_bytes += client->chain_bytes;
        tierce__lock_drop(&client->lock);
    }
    tierce__lock_drop(&native->lock);
}
