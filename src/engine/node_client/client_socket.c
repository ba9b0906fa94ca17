/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/control/guests.h"
#include "net/control/socket.h"
#include "engine/node_client/client_socket.h"
#include "net/stream.h"

/* Every open socket + 1, for a child of fork. A socket beyond the array's size stays open in
 * children. */
static _Atomic int sockets[256];

static void remember(int fd)
{
    for (size_t i = 0; i < sizeof(sockets) / sizeof(sockets[0]); i++) {
        int none = 0;
        if (atomic_compare_exchange_strong(&sockets[i], &none, fd + 1))
            return;
    }
}

static void forget(int fd)
{
    for (size_t i = 0; i < sizeof(sockets) / sizeof(sockets[0]); i++) {
        int mine = fd + 1;
        if (atomic_compare_exchange_strong(&sockets[i], &mine, 0))
            return;
    }
}

void tierce__client_enter_child(void)
{
    for (size_t i = 0; i < sizeof(sockets) / sizeof(sockets[0]); i++) {
        int fd = atomic_exchange(&sockets[i], 0) - 1;
        if (fd >= 0)
            close(fd);
    }
}

/* Whether the node is this user's, root's, or the named one's. */
static bool is_trusted(int fd, const char *user)
{
    struct ucred peer;
    return tierce__control_peer_is_ours(fd) ||
           (tierce__control_peer(fd, &peer) && tierce__user_is(peer.uid, user));
}

int tierce__client_connect(const char *path, const char *user)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    if (length >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, length);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int rc = 0;
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
        rc = -errno;
    else if (!is_trusted(fd, user))
        rc = -EPERM;
    if (rc < 0) {
        close(fd);
        return rc;
    }
    remember(fd);
    return fd;
}

void tierce__client_disconnect(int fd)
{
    forget(fd);
    close(fd);
}

int tierce__client_await(int fd, uint64_t deadline_ns)
{
    return tierce__stream_wait(fd, POLLIN, NULL, deadline_ns);
}

int tierce__client_send(int fd, const uint8_t *bytes, size_t count, uint64_t deadline_ns)
{
    while (count > 0) {
        ssize_t n = send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            bytes += n;
            count -= (size_t)n;
        } else if (errno == EAGAIN) {
            int rc = tierce__stream_wait(fd, POLLOUT, NULL, deadline_ns);
            if (rc < 0)
                return rc;
        } else if (errno != EINTR) {
            return errno == EPIPE || errno == ECONNRESET ? TIERCE_E_CLOSED : -errno;
        }
    }
    return 0;
}

/* The descriptor of a message, or -1; those beyond the first are closed. */
static int take_passed(struct msghdr *message)
{
    int out = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (out < 0)
                out = fd;
            else
                close(fd);
        }
    }
    return out;
}

static ssize_t receive_some(int fd, uint8_t *bytes, size_t count, int *passed)
{
    if (passed == NULL || *passed >= 0)
        return recv(fd, bytes, count, MSG_DONTWAIT);
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = bytes, .iov_len = count};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n > 0)
        *passed = take_passed(&message);
    return n;
}

int tierce__client_receive(int fd, uint8_t *bytes, size_t count, int *passed, uint64_t deadline_ns)
{
    if (passed != NULL)
        *passed = -1;
    int rc = 0;
    while (count > 0 && rc == 0) {
        ssize_t n = receive_some(fd, bytes, count, passed);
        if (n > 0) {
            bytes += n;
            count -= (size_t)n;
        } else if (n == 0 || errno == ECONNRESET) {
            rc = TIERCE_E_CLOSED;
        } else if (errno == EAGAIN) {
            rc = tierce__stream_wait(fd, POLLIN, NULL, deadline_ns);
        } else if (errno != EINTR) {
            rc = -errno;
        }
    }
    if (rc < 0 && passed != NULL && *passed >= 0) {
        close(*passed);
        *passed = -1;
    }
    return rc;
}

bool tierce__client_is_closed(int fd)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}
