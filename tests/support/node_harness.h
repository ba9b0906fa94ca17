/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_NODE_HARNESS_H
#define TIERCE_TESTS_NODE_HARNESS_H

#include "check_main.h"
#include "base/alloc.h"
#include "node/node.h"
#include "node/node_private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A node on free ports of loopback, and bare sockets to it. */

struct node_harness {
    struct tierce__node_config config;
    struct tierce__node *node;
    struct tierce__node_ports ports;
};

static inline void harness_start(struct node_harness *h, int argc, char *const *argv)
{
    char *all[64] = {(char *)"--listen.resp_port=0", (char *)"--listen.lm_port=0",
                     (char *)"--listen.http_port=0", (char *)"--memory.size=64MiB",
                     (char *)"--control.socket="};
    char *const no_environment[] = {NULL};
    struct tierce__config_error error;
    char why[TIERCE_CONFIG_ERROR_BYTES] = "";
    for (int i = 0; i < argc; i++)
        all[5 + i] = argv[i];
    int rc = tierce__node_config_load(&h->config, 5 + argc, all, no_environment, &error);
    ck_assert_msg(rc == 0, "%s", rc == 0 ? "" : error.text);
    rc = tierce__node_start(&h->node, &h->config, why);
    ck_assert_msg(rc == 0, "%s", why);
    tierce__node_ports(h->node, &h->ports);
}

static inline void harness_stop(struct node_harness *h)
{
    tierce__node_stop(h->node);
    tierce__node_config_clear(&h->config);
    h->node = NULL;
}

static inline int harness_connect(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    return fd;
}

static inline void say_bytes(int fd, const void *bytes, size_t count)
{
    const char *p = bytes;
    while (count > 0) {
        ssize_t n = send(fd, p, count, MSG_NOSIGNAL);
        ck_assert_int_gt(n, 0);
        p += n;
        count -= (size_t)n;
    }
}

static inline void say(int fd, const char *text)
{
    say_bytes(fd, text, strlen(text));
}

/* Exactly that many bytes. */
static inline void hear_bytes(int fd, void *out, size_t count)
{
    char *p = out;
    while (count > 0) {
        struct pollfd waits = {.fd = fd, .events = POLLIN};
        ck_assert_msg(poll(&waits, 1, 240000) == 1, "no answer");
        ssize_t n = recv(fd, p, count, 0);
        ck_assert_msg(n > 0, "the connection was closed");
        p += n;
        count -= (size_t)n;
    }
}

static inline void hear(int fd, const char *wanted)
{
    static char got[1 << 20];
    size_t bytes = strlen(wanted);
    ck_assert_uint_lt(bytes, sizeof(got));
    hear_bytes(fd, got, bytes);
    got[bytes] = '\0';
    ck_assert_str_eq(got, wanted);
}

/* Says, and hears that. */
static inline void talk(int fd, const char *text, const char *wanted)
{
    say(fd, text);
    hear(fd, wanted);
}

static inline void hear_end(int fd)
{
    char byte;
    struct pollfd waits = {.fd = fd, .events = POLLIN};
    ck_assert_int_eq(poll(&waits, 1, 10000), 1);
    ck_assert_int_le(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

static inline uint64_t harness_counter(const struct node_harness *h, enum tierce__node_counter c)
{
    return atomic_load(&h->node->counters[c]);
}

#endif
