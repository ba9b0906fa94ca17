/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_S3_FAKE_H
#define TIERCE_TESTS_S3_FAKE_H

#include "check_main.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * What answers in place of S3 as a test wants it: too long, too short, late, wrongly, or not at
 * all. It reads a request and its body and calls the test's function, which writes what it likes;
 * false closes the connection. It checks no signature: real servers do.
 */

struct s3_request {
    char method[8], target[8192], head[16384];
    uint8_t *body;
    size_t body_bytes;
    uint32_t number; /* since the start */
    bool is_first;   /* of its connection */
};

typedef bool s3_fake_fn(int fd, const struct s3_request *request);

struct s3_fake {
    int fd;
    uint16_t port;
    pthread_t thread;
    s3_fake_fn *answer;
    _Atomic uint32_t requests;
    _Atomic int connections; /* at work */
    _Atomic bool ending;
    int ending_pipe[2];
};

static struct s3_fake fake;

/* Waits for that or for the end of the server. */
static inline bool s3_fake_wait(int fd, short events, int ms)
{
    struct pollfd fds[2] = {{.fd = fd, .events = events},
                            {.fd = fake.ending_pipe[0], .events = POLLIN}};
    return poll(fds, 2, ms) > 0 && fds[1].revents == 0 && fds[0].revents != 0;
}

/* Sleeps, but not beyond the end. */
static inline void s3_fake_sleep(int ms)
{
    struct pollfd end = {.fd = fake.ending_pipe[0], .events = POLLIN};
    poll(&end, 1, ms);
}

static inline bool s3_fake_write(int fd, const void *data, size_t bytes)
{
    const char *at = (const char *)data;
    while (bytes > 0) {
        ssize_t n =
            s3_fake_wait(fd, POLLOUT, -1) ? send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : -1;
        if (n <= 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* `headers`: each with its "\r\n". */
static inline bool s3_fake_reply(int fd, const char *status, const char *headers, const void *body,
                                 size_t bytes)
{
    char head[4096];
    snprintf(head, sizeof(head), "HTTP/1.1 %s\r\nContent-Length: %zu\r\n%s\r\n", status, bytes,
             headers);
    return s3_fake_write(fd, head, strlen(head)) && s3_fake_write(fd, body, bytes);
}

static inline bool s3_fake_text(int fd, const char *status, const char *text)
{
    return s3_fake_reply(fd, status, "", text, strlen(text));
}

static inline bool s3_fake_error(int fd, const char *status, const char *code)
{
    char text[512];
    snprintf(text, sizeof(text),
             "<?xml version=\"1.0\"?>\n<Error><Code>%s</Code><Message>hidden</Message></Error>",
             code);
    return s3_fake_text(fd, status, text);
}

static inline bool s3_fake_read(int fd, struct s3_request *request)
{
    size_t used = 0;
    char *end = NULL;
    while (end == NULL && used + 1 < sizeof(request->head)) {
        /* Bytes after the head are kept for the next read. */
        if (!s3_fake_wait(fd, POLLIN, -1))
            return false;
        ssize_t seen = recv(fd, request->head + used, sizeof(request->head) - 1 - used, MSG_PEEK);
        if (seen <= 0)
            return false;
        request->head[used + (size_t)seen] = '\0';
        end = strstr(request->head, "\r\n\r\n");
        size_t taken = end != NULL ? (size_t)(end + 4 - request->head) - used : (size_t)seen;
        if (recv(fd, request->head + used, taken, 0) != (ssize_t)taken)
            return false;
        used += taken;
        request->head[used] = '\0';
    }
    if (end == NULL || sscanf(request->head, "%7s %8191s", request->method, request->target) != 2)
        return false;
    const char *length = strcasestr(request->head, "\r\nContent-Length:");
    request->body_bytes = length != NULL ? strtoull(length + 17, NULL, 10) : 0;
    request->body = (uint8_t *)malloc(request->body_bytes + 1);
    if (strcasestr(request->head, "\r\nExpect: 100-continue") != NULL &&
        !s3_fake_write(fd, "HTTP/1.1 100 Continue\r\n\r\n", 25))
        return false;
    for (size_t at = 0; at < request->body_bytes;) {
        ssize_t n = s3_fake_wait(fd, POLLIN, -1)
                        ? recv(fd, request->body + at, request->body_bytes - at, 0)
                        : -1;
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

static inline void *s3_fake_serve(void *arg)
{
    int fd = (int)(intptr_t)arg;
    struct s3_request *request = (struct s3_request *)calloc(1, sizeof(*request));
    bool goes_on = true;
    for (bool first = true; goes_on; first = false) {
        goes_on = s3_fake_read(fd, request);
        if (goes_on) {
            request->number = atomic_fetch_add(&fake.requests, 1);
            request->is_first = first;
            goes_on = fake.answer(fd, request);
        }
        free(request->body);
        request->body = NULL;
    }
    free(request);
    shutdown(fd, SHUT_RDWR);
    close(fd);
    atomic_fetch_sub(&fake.connections, 1);
    return NULL;
}

static inline void *s3_fake_accept(void *arg)
{
    (void)arg;
    while (!atomic_load(&fake.ending)) {
        pthread_t thread;
        if (!s3_fake_wait(fake.fd, POLLIN, -1))
            continue;
        int fd = accept(fake.fd, NULL, NULL);
        if (fd < 0)
            continue;
        /* A body is not kept back until the head is acknowledged, which takes 40 ms. */
        ck_assert_int_eq(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)), 0);
        atomic_fetch_add(&fake.connections, 1);
        ck_assert_int_eq(pthread_create(&thread, NULL, s3_fake_serve, (void *)(intptr_t)fd), 0);
        pthread_detach(thread);
    }
    return NULL;
}

static inline void s3_fake_start(s3_fake_fn *answer)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    memset(&fake, 0, sizeof(fake));
    fake.answer = answer;
    ck_assert_int_eq(pipe(fake.ending_pipe), 0);
    fake.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fake.fd, (struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(listen(fake.fd, 64), 0);
    ck_assert_int_eq(getsockname(fake.fd, (struct sockaddr *)&address, &length), 0);
    fake.port = ntohs(address.sin_port);
    ck_assert_int_eq(pthread_create(&fake.thread, NULL, s3_fake_accept, NULL), 0);
}

static inline void s3_fake_stop(void)
{
    atomic_store(&fake.ending, true);
    ck_assert_int_eq(write(fake.ending_pipe[1], "x", 1), 1);
    pthread_join(fake.thread, NULL);
    while (atomic_load(&fake.connections) > 0)
        poll(NULL, 0, 1);
    close(fake.fd);
    close(fake.ending_pipe[0]);
    close(fake.ending_pipe[1]);
}

#endif
