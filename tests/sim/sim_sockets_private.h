/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_SOCKETS_PRIVATE_H
#define TIERCE_TESTS_SIM_SOCKETS_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

/* Shared by sim_sockets.c (connections and their bytes) and sim_polls.c (eventfd, poll, epoll). */

#define MS UINT64_C(1000000)

enum { FDS_MAX = 4096, BACKLOG_MAX = 64, PORT_FIRST = 40000, PIECES_MAX = 4096 };

enum kind { NONE, FRESH, LISTENER, END, EVENT, EPOLL };
enum parcel_kind { BYTES, FIN, RESET };

/* Bytes or an event on their way to an end. */
struct parcel {
    struct parcel *next;
    enum parcel_kind kind;
    uint64_t arrives_ns;
    size_t count, at;
    int passed; /* a descriptor, or -1 */
    uint8_t bytes[];
};

/* One side of a connection. Both are freed when both are closed. */
struct end {
    struct end *peer;
    struct end *next_waiting; /* of those that a listener has not accepted */
    struct parcel *first, *last;
    size_t queued, capacity; /* bytes on their way to it, and not read */
    uint64_t taken;          /* parcels that were read */
    uint64_t room_edges;     /* times that it may write again after it could not */
    uint64_t ends;           /* times that it was shut or lost */
    uint64_t connects_ns;    /* when it is connected, or fails to be */
    uint64_t dies_ns;        /* of TCP_USER_TIMEOUT */
    uint64_t send_limit_ns;
    uint32_t watch_ms;
    unsigned host;
    int error, low;
    bool is_local, is_closed, is_lost, was_full, has_fin, shut_read, shut_write;
};

struct watched {
    struct watched *next;
    int fd;
    struct epoll_event event;
    uint64_t seen_in, seen_out, seen_ends;
    bool is_new;
};

struct socket {
    enum kind kind;
    int family;
    bool waits; /* its calls block */
    unsigned host, life;
    struct end *end;
    uint16_t port;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    struct end *waiting; /* of a listener: the oldest first */
    size_t waiting_count;
    uint64_t taken; /* of a listener: connections that were accepted */
    uint64_t value; /* of an eventfd */
    struct watched *watched;
};

extern struct socket sim_sockets[FDS_MAX];

int sim_fail_with(int error);
struct socket *sim_find(int fd);
bool sim_is_gone(const struct socket *s);
struct socket *sim_make(int *fd, enum kind kind, bool waits);
uint64_t sim_until_ms(int timeout_ms);
uint64_t sim_arrived(const struct end *e);
uint64_t sim_readable_ns(const struct end *e, size_t low);
uint64_t sim_writable_ns(const struct end *e);
void sim_notice(struct end *e);
uint64_t sim_acceptable_ns(const struct socket *s);
ssize_t sim_receive(struct socket *s, const struct iovec *pieces, size_t count, int flags,
                    int *passed);
ssize_t sim_transmit(struct socket *s, const struct iovec *pieces, size_t count, int flags,
                     int passed);

#endif
