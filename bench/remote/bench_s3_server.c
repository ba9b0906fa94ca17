/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/remote/bench_s3_server.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "net/listen.h"
#include "net/stream.h"

#define CONNECTIONS_MAX 256
#define HEAD_BYTES      8192
#define SCRATCH_BYTES   (256u << 10)
#define KEPT_BYTES      4096u
#define KEPT_MAX        4
#define PATH_BYTES      256u
#define CONTINUE        "HTTP/1.1 100 Continue\r\n\r\n"

/* An object that was really stored. */
struct kept {
    char path[PATH_BYTES]; /* "": free */
    size_t bytes;
    uint8_t data[KEPT_BYTES];
};

struct tierce__bench_s3 {
    const uint8_t *object;
    size_t bytes;
    int listener;
    pthread_t thread;
    struct tierce__lock lock;
    /* Under the lock. */
    struct tierce__cond changed;
    int fds[CONNECTIONS_MAX]; /* -1: free */
    int count;                /* threads of connections */
    bool ending;
    struct kept kept[KEPT_MAX];
};

struct connection {
    struct tierce__bench_s3 *server;
    int fd, place;
    size_t have; /* bytes of `head` */
    size_t body; /* bytes of the body; up to KEPT_BYTES are in `scratch` */
    char head[HEAD_BYTES + 1];
    char path[PATH_BYTES]; /* of the request, without its query */
    uint8_t scratch[SCRATCH_BYTES];
};

static bool reply(const struct connection *c, const char *status, const char *headers,
                  const void *body, size_t bytes)
{
    char head[512];
    int used = snprintf(head, sizeof(head), "HTTP/1.1 %s\r\nContent-Length: %zu\r\n%s\r\n", status,
                        bytes, headers);
    TIERCE_ASSERT(used > 0 && used < (int)sizeof(head));
    struct iovec pieces[] = {{.iov_base = head, .iov_len = (size_t)used},
                             {.iov_base = (void *)(uintptr_t)body, .iov_len = bytes}};
    return tierce__stream_send(c->fd, pieces, 2, TIERCE__DEADLINE_NEVER) == 0;
}

static bool give_range(const struct connection *c)
{
    const struct tierce__bench_s3 *server = c->server;
    uint64_t first = 0, last = server->bytes - 1;
    char headers[128];
    const char *range = strcasestr(c->head, "\r\nRange: bytes=");
    if (range != NULL && (sscanf(range + 15, "%" SCNu64 "-%" SCNu64, &first, &last) != 2 ||
                          first > last || last >= server->bytes))
        return reply(c, "416 Range Not Satisfiable", "", "", 0);
    snprintf(headers, sizeof(headers),
             "ETag: \"1\"\r\nContent-Range: bytes %" PRIu64 "-%" PRIu64 "/%zu\r\n", first, last,
             server->bytes);
    return reply(c, range != NULL ? "206 Partial Content" : "200 OK", headers,
                 server->object + first, (size_t)(last - first + 1));
}

/* A body that is longer than `scratch` overwrites it again and again. */
static bool take_body(struct connection *c, size_t head_bytes)
{
    uint64_t left = 0;
    const char *length = strcasestr(c->head, "\r\nContent-Length:");
    size_t more = c->have - head_bytes;
    if (length != NULL && sscanf(length + 17, "%" SCNu64, &left) != 1)
        return false;
    c->body = (size_t)left;
    if (strcasestr(c->head, "\r\nExpect: 100-continue") != NULL &&
        send(c->fd, CONTINUE, sizeof(CONTINUE) - 1, MSG_NOSIGNAL) != sizeof(CONTINUE) - 1)
        return false;
    more = more < left ? more : (size_t)left;
    memcpy(c->scratch, c->head + head_bytes, more); /* HEAD_BYTES at most */
    left -= more;
    for (size_t at = more; left > 0;) {
        size_t room = sizeof(c->scratch) - at, want = left < room ? (size_t)left : room;
        ssize_t n = recv(c->fd, c->scratch + at, want, 0);
        if (n <= 0)
            return false;
        left -= (uint64_t)n;
        at = (at + (size_t)n) % sizeof(c->scratch);
    }
    c->have = 0; /* clients send no request before the last one is answered */
    return true;
}

/* ---- probes ---------------------------------------------------------------------------------- */

static bool is_probe(const struct connection *c)
{
    return strstr(c->path, "tierce-probe-") != NULL;
}

/* The kept object of a path, or a free place for "". Under the lock. */
static struct kept *find_kept(struct tierce__bench_s3 *server, const char *path)
{
    tierce__lock_assert_held(&server->lock);
    for (int i = 0; i < KEPT_MAX; i++) {
        if (strcmp(server->kept[i].path, path) == 0)
            return &server->kept[i];
    }
    return NULL;
}

static void keep(const struct connection *c)
{
    struct tierce__bench_s3 *server = c->server;
    tierce__lock_take(&server->lock);
    struct kept *kept = find_kept(server, c->path);
    if (kept == NULL)
        kept = find_kept(server, "");
    if (kept != NULL && c->body <= KEPT_BYTES) {
        memcpy(kept->path, c->path, sizeof(kept->path));
        memcpy(kept->data, c->scratch, c->body);
        kept->bytes = c->body;
    }
    tierce__lock_drop(&server->lock);
}

static void drop(const struct connection *c)
{
    struct tierce__bench_s3 *server = c->server;
    tierce__lock_take(&server->lock);
    struct kept *kept = find_kept(server, c->path);
    if (kept != NULL)
        kept->path[0] = '\0';
    tierce__lock_drop(&server->lock);
}

/* An object of a probe is written, read back, and missing after its deletion. */
static bool answer_probe(const struct connection *c)
{
    uint8_t data[KEPT_BYTES];
    size_t bytes = SIZE_MAX;
    if (c->head[0] == 'P')
        keep(c);
    if (c->head[0] == 'D')
        drop(c);
    if (c->head[0] == 'P' || c->head[0] == 'D')
        return reply(c, "200 OK", "ETag: \"1\"\r\n", "", 0);
    tierce__lock_take(&c->server->lock);
    const struct kept *kept = find_kept(c->server, c->path);
    if (kept != NULL) {
        bytes = kept->bytes;
        memcpy(data, kept->data, bytes);
    }
    tierce__lock_drop(&c->server->lock);
    return bytes == SIZE_MAX ? reply(c, "404 Not Found", "", "", 0)
                             : reply(c, "200 OK", "ETag: \"1\"\r\n", data, bytes);
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool answer(struct connection *c)
{
    static const char begun[] = "<InitiateMultipartUploadResult><UploadId>1</UploadId>"
                                "</InitiateMultipartUploadResult>";
    static const char completed[] = "<CompleteMultipartUploadResult><ETag>1</ETag>"
                                    "</CompleteMultipartUploadResult>";
    static const char deleted[] = "<DeleteResult></DeleteResult>";
    bool is_delete = strncmp(c->head + strcspn(c->head, "?\r"), "?delete", 7) == 0;
    bool is_begin = strncmp(c->head + strcspn(c->head, "?\r"), "?uploads", 8) == 0;
    if (sscanf(c->head, "%*s %255[^? \r]", c->path) != 1)
        return false;
    if (is_probe(c))
        return answer_probe(c);
    if (c->head[0] == 'G')
        return give_range(c);
    if (is_delete)
        return reply(c, "200 OK", "", deleted, sizeof(deleted) - 1);
    if (strncmp(c->head, "POST", 4) == 0)
        return is_begin ? reply(c, "200 OK", "", begun, sizeof(begun) - 1)
                        : reply(c, "200 OK", "", completed, sizeof(completed) - 1);
    return reply(c, "200 OK", "ETag: \"1\"\r\n", "", 0);
}

static bool serve_one(struct connection *c)
{
    char *end = NULL;
    while (end == NULL) {
        if (c->have == HEAD_BYTES)
            return false;
        ssize_t n = recv(c->fd, c->head + c->have, HEAD_BYTES - c->have, 0);
        if (n <= 0)
            return false;
        c->have += (size_t)n;
        c->head[c->have] = '\0';
        end = strstr(c->head, "\r\n\r\n");
    }
    return take_body(c, (size_t)(end + 4 - c->head)) && answer(c);
}

static void *serve(void *arg)
{
    struct connection *c = arg;
    struct tierce__bench_s3 *server = c->server;
    while (serve_one(c))
        ;
    tierce__lock_take(&server->lock);
    server->fds[c->place] = -1;
    close(c->fd);
    tierce__free(c);
    server->count--;
    tierce__cond_signal(&server->changed);
    tierce__lock_drop(&server->lock);
    return NULL;
}

/* A thread for a new connection; without one it is closed. */
static void begin_connection(struct tierce__bench_s3 *server, int fd)
{
    pthread_t thread;
    struct connection *c = tierce__alloc(sizeof(*c));
    int place = 0;
    tierce__lock_take(&server->lock);
    while (place < CONNECTIONS_MAX && server->fds[place] >= 0)
        place++;
    bool ok = c != NULL && place < CONNECTIONS_MAX && !server->ending;
    if (ok) {
        c->server = server;
        c->fd = fd;
        c->place = place;
        c->have = 0;
        ok = pthread_create(&thread, NULL, serve, c) == 0;
    }
    if (ok) {
        pthread_detach(thread);
        server->fds[place] = fd;
        server->count++;
    }
    tierce__lock_drop(&server->lock);
    if (!ok) {
        tierce__free(c);
        close(fd);
    }
}

static void *accept_all(void *arg)
{
    struct tierce__bench_s3 *server = arg;
    while (tierce__stream_wait(server->listener, POLLIN, NULL, TIERCE__DEADLINE_NEVER) == 0) {
        int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            begin_connection(server, fd);
        else if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN)
            break;
    }
    return NULL;
}

int tierce__bench_s3_start(struct tierce__bench_s3 **out, const uint8_t *object, size_t bytes,
                           uint16_t *port)
{
    char why[256];
    struct tierce__bench_s3 *server = tierce__calloc(1, sizeof(*server));
    if (server == NULL)
        return -ENOMEM;
    TIERCE_ASSERT(bytes > 0);
    *port = 0;
    server->object = object;
    server->bytes = bytes;
    for (int i = 0; i < CONNECTIONS_MAX; i++)
        server->fds[i] = -1;
    int rc = tierce__listen_tcp(&server->listener, port, "127.0.0.1", why);
    if (rc != 0) {
        tierce__free(server);
        return rc;
    }
    tierce__lock_init(&server->lock, TIERCE__LOCK_WORKERS);
    tierce__cond_init(&server->changed);
    rc = -pthread_create(&server->thread, NULL, accept_all, server);
    if (rc != 0) {
        close(server->listener);
        tierce__free(server);
        return rc;
    }
    *out = server;
    return 0;
}

void tierce__bench_s3_stop(struct tierce__bench_s3 *server)
{
    if (server == NULL)
        return;
    shutdown(server->listener, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    close(server->listener);
    tierce__lock_take(&server->lock);
    server->ending = true;
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        if (server->fds[i] >= 0)
            shutdown(server->fds[i], SHUT_RDWR);
    }
    while (server->count > 0)
        tierce__cond_wait(&server->changed, &server->lock, UINT64_MAX);
    tierce__lock_drop(&server->lock);
    tierce__cond_fini(&server->changed);
    tierce__lock_fini(&server->lock);
    tierce__free(server);
}

int tierce__bench_s3_credentials(const char *path)
{
    FILE *file = fopen(path, "we");
    if (file == NULL)
        return -errno;
    fprintf(file, "[default]\naws_access_key_id = key\naws_secret_access_key = secret\n");
    return fclose(file) == 0 ? 0 : -errno;
}
