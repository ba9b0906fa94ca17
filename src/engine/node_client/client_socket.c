/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "net/control/socket_users.h"
#include "net/control/socket.h"
#include "engine/node_client/client_socket.h"
#include "net/stream.h"

/* Every open socket + 1, for a child of fork. A socket beyond the array's size stays open in
 * children. */
static _Atomic int sockets[256];

static void remember(int fd)
{
    TIERCE_DASSERT(fd >= 0);
    for (size_t i = 0; i < sizeof(sockets) / sizeof(sockets[0]); i++) {
        int none = 0;
        if (atomic_compare_exchange_strong(&sockets[i], &none, fd + 1))
            return;
    }
}

static void forget(int fd)
{
    TIERCE_DASSERT(fd >= 0);
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
    int fd = -1;
    int rc = tierce__stream_connect_unix(&fd, path);
    if (rc == 0 && !is_trusted(fd, user)) {
        close(fd);
        rc = -EPERM;
    }
    if (rc < 0)
        return rc;
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
    TIERCE_DASSERT(fd >= 0);
    return tierce__stream_wait(fd, POLLIN, NULL, deadline_ns);
}

static int status_of(int rc)
{
    return rc == -EPIPE || rc == -ECONNRESET ? TIERCE_E_CLOSED : rc;
}

int tierce__client_send(int fd, const uint8_t *bytes, size_t count, uint64_t deadline_ns)
{
    TIERCE_DASSERT(fd >= 0 && count > 0);
    struct iovec piece = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};
    return status_of(tierce__stream_send(fd, &piece, 1, deadline_ns));
}

int tierce__client_receive(int fd, uint8_t *bytes, size_t count, int *passed, uint64_t deadline_ns)
{
    TIERCE_DASSERT(fd >= 0);
    struct iovec piece = {.iov_base = bytes, .iov_len = count};
    return status_of(tierce__stream_receive_passed(fd, piece, passed, deadline_ns));
}

int tierce__client_map(uint8_t **out, int fd, uint64_t bytes)
{
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0 || bytes == 0 || (uint64_t)status.st_size < bytes)
        return TIERCE_E_FORMAT;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        return TIERCE_E_FORMAT;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return -errno;
    if (madvise(memory, bytes, MADV_DONTFORK) < 0) {
        int rc = -errno;
        munmap(memory, bytes);
        return rc;
    }
    *out = memory;
    return 0;
}
