/* SPDX-License-Identifier: Apache-2.0 */
#include "net/listen.h"

#include "base/text/host_port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BACKLOG 1024

static int bind_and_listen(int fd, const struct addrinfo *address)
{
    int yes = 1, no = 0;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0)
        return -errno;
    if (address->ai_family == AF_INET6 &&
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no)) != 0)
        return -errno;
    if (bind(fd, address->ai_addr, address->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0)
        return -errno;
    return 0;
}

union address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

static int read_address(int fd, union address *bound)
{
    socklen_t length = sizeof(*bound);
    *bound = (union address){.in6 = {0}};
    return getsockname(fd, &bound->any, &length) == 0 ? 0 : -errno;
}

bool tierce__listens_on_loopback(int fd)
{
    union address bound;
    if (read_address(fd, &bound) != 0)
        return false;
    if (bound.any.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&bound.in6.sin6_addr);
    return bound.any.sa_family == AF_INET && ntohl(bound.in.sin_addr.s_addr) >> 24 == 127;
}

static int read_port(int fd, uint16_t *port)
{
    union address bound;
    int rc = read_address(fd, &bound);
    if (rc != 0)
        return rc;
    *port = ntohs(bound.any.sa_family == AF_INET6 ? bound.in6.sin6_port : bound.in.sin_port);
    return 0;
}

int tierce__listen_tcp(int *out_fd, uint16_t *port, const char *host, char why[256])
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[8];
    snprintf(service, sizeof(service), "%u", *port);
    int rc = getaddrinfo(host, service, &hints, &found);
    if (rc != 0) {
        snprintf(why, 256, "%s: %s", host, gai_strerror(rc));
        return rc == EAI_SYSTEM ? -errno : -EADDRNOTAVAIL;
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    rc = fd < 0 ? -errno : bind_and_listen(fd, found);
    if (rc == 0)
        rc = read_port(fd, port);
    freeaddrinfo(found);
    if (rc == 0) {
        *out_fd = fd;
        return 0;
    }
    bool is_ipv6 = strchr(host, ':') != NULL;
    snprintf(why, 256, "cannot listen on %s%.100s%s:%s: %s%s", is_ipv6 ? "[" : "", host,
             is_ipv6 ? "]" : "", service, tierce_strerror(rc),
             rc == -EADDRINUSE      ? "; end the process that uses it, or set another port"
             : rc == -EACCES        ? "; set a port of 1024 or above"
             : rc == -EADDRNOTAVAIL ? "; set an address of this host"
                                    : "");
    if (fd >= 0)
        close(fd);
    return rc;
}

int tierce__listen_spare(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static int drop_one(int fd, int *spare_fd)
{
    if (*spare_fd >= 0)
        close(*spare_fd);
    int dropped = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    int rc = dropped < 0 && errno == EAGAIN ? -EAGAIN : -EMFILE;
    if (dropped >= 0)
        close(dropped);
    *spare_fd = tierce__listen_spare();
    return rc;
}

void tierce__listen_tune(int fd)
{
    int yes = 1, seconds = 60;
    /* On a Unix socket, which a test may use, these calls fail and are not needed. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
}

int tierce__listen_accept(int fd, int *spare_fd, struct sockaddr_storage *peer)
{
    int taken;
    do {
        socklen_t length = sizeof(*peer);
        taken = accept4(fd, (struct sockaddr *)peer, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    } while (taken < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (taken >= 0)
        return taken;
    if (errno != EMFILE && errno != ENFILE)
        return -errno;
    return drop_one(fd, spare_fd); /* the system reports this whether or not a connection waits */
}

void tierce__peer_print(char text[TIERCE__PEER_BYTES], const struct sockaddr *address)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)address;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
        (void)tierce__host_port_format(text, TIERCE__PEER_BYTES, host, ntohs(in->sin_port));
        return;
    }
    if (address->sa_family != AF_INET6) {
        snprintf(text, TIERCE__PEER_BYTES, "?");
        return;
    }
    const struct sockaddr_in6 *in6 = (const void *)address;
    if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
        inet_ntop(AF_INET, &in6->sin6_addr.s6_addr[12], host, sizeof(host));
    } else {
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
    }
    (void)tierce__host_port_format(text, TIERCE__PEER_BYTES, host, ntohs(in6->sin6_port));
}
