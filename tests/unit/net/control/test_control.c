/* SPDX-License-Identifier: Apache-2.0 */
#include "net/control/control.h"
#include "net/control/socket.h"
#include "net/http_client.h"
#include "net/tokens.h"

#include "base/alloc.h"
#include "check_main.h"
#include "server_process.h"
#include "wait_for.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

static void setup(void)
{
    strcpy(folder, "/tmp/tierce-control-XXXXXX");
    temp_folder_make(folder);
    setenv("XDG_RUNTIME_DIR", folder, 1);
}

static void teardown(void)
{
    temp_folder_remove(folder);
}

/* ---- a little client ---- */

static int connect_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static int connect_port(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Sends a request and returns the status; `reply` gets all that came. */
static int talk(int fd, const char *request, char *reply, size_t size)
{
    size_t got = 0, sent = 0, all = strlen(request);
    while (sent < all) {
        ssize_t n = send(fd, request + sent, all - sent, MSG_NOSIGNAL);
        if (n <= 0)
            break;
        sent += (size_t)n;
    }
    while (got < size - 1) {
        ssize_t n = recv(fd, reply + got, size - 1 - got, 0);
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    reply[got] = '\0';
    close(fd);
    int status = 0;
    sscanf(reply, "HTTP/1.1 %d", &status);
    return status;
}

static int get(int fd, const char *path, const char *host, char *reply, size_t size)
{
    char request[512];
    snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
             path, host);
    return talk(fd, request, reply, size);
}

/* ---- the pages ---- */

static void hello(void *arg, const struct tierce__control_query *query,
                  struct tierce__control_answer *answer)
{
    const char *name = tierce__control_arg(query, "name");
    tierce__line_put(&answer->body, arg);
    tierce__line_put(&answer->body, name != NULL ? name : "nobody");
}

static void echo(void *arg, const struct tierce__control_query *query,
                 struct tierce__control_answer *answer)
{
    (void)arg;
    answer->type = "application/octet-stream";
    tierce__line_put_bytes(&answer->body, query->body, query->body_bytes);
}

static char greeting[] = "hello ";

static const struct tierce__control_route routes[] = {
    {TIERCE__CONTROL_GET, "/hello", true, hello},
    {TIERCE__CONTROL_GET, "/secret", false, hello},
    {TIERCE__CONTROL_POST, "/echo", false, echo},
};

static int start(struct tierce__control **out, const char *socket, uint16_t port, char why[256])
{
    return tierce__control_start(
        out,
        &(struct tierce__control_opts){.size = sizeof(struct tierce__control_opts),
                                       .socket = socket,
                                       .port = port,
                                       .routes = routes,
                                       .route_count = 3,
                                       .arg = greeting},
        why);
}

START_TEST(the_socket_answers_and_goes)
{
    uint64_t live = tierce__alloc_live();
    struct tierce__control *control;
    char why[256], reply[1024], path[128];
    struct stat info;
    ck_assert_int_eq(start(&control, "auto", 0, why), 0);
    strcpy(path, tierce__control_socket(control));
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_int_eq(info.st_mode & 0777, 0600);
    ck_assert_int_eq(get(connect_unix(path), "/hello?name=you", "x", reply, sizeof(reply)), 200);
    ck_assert_ptr_nonnull(strstr(reply, "hello you"));
    ck_assert_int_eq(get(connect_unix(path), "/secret", "x", reply, sizeof(reply)), 200);
    ck_assert_int_eq(get(connect_unix(path), "/nowhere", "x", reply, sizeof(reply)), 404);
    ck_assert_int_eq(get(connect_unix(path), "/echo", "x", reply, sizeof(reply)), 405);
    ck_assert_int_eq(talk(connect_unix(path),
                          "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: "
                          "close\r\n\r\nabcde",
                          reply, sizeof(reply)),
                     200);
    ck_assert_ptr_nonnull(strstr(reply, "\r\n\r\nabcde"));
    tierce__control_stop(control);
    ck_assert_int_eq(stat(path, &info), -1);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

START_TEST(the_port_shows_what_is_public)
{
    struct tierce__control *control;
    char why[256], reply[1024];
    uint16_t port = server_free_port();
    ck_assert_int_eq(start(&control, "", port, why), 0);
    ck_assert_str_eq(tierce__control_socket(control), "");
    ck_assert_int_eq(get(connect_port(port), "/hello", "localhost:1", reply, sizeof(reply)), 200);
    ck_assert_int_eq(get(connect_port(port), "/secret", "localhost", reply, sizeof(reply)), 404);
    /* A browser that was led here by a name of somebody else's. */
    ck_assert_int_eq(get(connect_port(port), "/hello", "evil.example", reply, sizeof(reply)), 403);
    ck_assert_int_eq(get(connect_port(port), "/hello", "localhost.evil", reply, sizeof(reply)),
                     403);

    /* Anybody could fill the process's memory with one. */
    static const char body[] = "POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
                               "Connection: close\r\n\r\nx";
    ck_assert_int_eq(talk(connect_port(port), body, reply, sizeof(reply)), 413);

    struct tierce__control *second;
    ck_assert_int_eq(start(&second, "", port, why), -EADDRINUSE);
    ck_assert_ptr_nonnull(strstr(why, "127.0.0.1:"));
    tierce__control_stop(control);
}
END_TEST

START_TEST(a_dead_socket_is_taken_over_and_a_live_one_is_not)
{
    char why[256], path[128];
    snprintf(path, sizeof(path), "%s/s", folder);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    close(fd);
    struct tierce__control *control, *second;
    ck_assert_int_eq(start(&control, path, 0, why), 0);
    ck_assert_int_eq(start(&second, path, 0, why), -EADDRINUSE);
    tierce__control_stop(control);

    /* A regular file instead of a socket. */
    ck_assert_int_eq(close(open(path, O_CREAT | O_WRONLY, 0600)), 0);
    ck_assert_int_eq(start(&second, path, 0, why), -EADDRINUSE);
    ck_assert_int_eq(access(path, F_OK), 0);
}
END_TEST

/* A bound socket without a listener. */
static void leave_socket(char path[128], const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(path, 128, "%s/tierce/%s", folder, name);
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    close(fd);
}

/* Files of killed processes are removed; all else in the folder stays. */
START_TEST(stale_sockets_are_removed)
{
    enum { KILLED, OLD, YOUNG, OTHER_NAME, FILE_OF_THE_NAME, LINK, PLACES };
    static const bool stays[PLACES] = {
        [YOUNG] = true, [OTHER_NAME] = true, [FILE_OF_THE_NAME] = true, [LINK] = true};
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    struct tierce__control *control, *second;
    char paths[PLACES][128], name[64], why[256], reply[2048];
    ck_assert_int_eq(start(&control, "auto", 0, why), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    snprintf(name, sizeof(name), "%ld-0.sock", (long)child);
    leave_socket(paths[KILLED], name);
    snprintf(name, sizeof(name), "%ld-7.sock", (long)getpid());
    leave_socket(paths[OLD], name); /* its process has reused the id of a dead one */
    ck_assert_int_eq(utimensat(AT_FDCWD, paths[OLD], long_ago, 0), 0);
    snprintf(name, sizeof(name), "%ld-8.sock", (long)getpid());
    leave_socket(paths[YOUNG], name);
    leave_socket(paths[OTHER_NAME], "notes.sock");
    snprintf(paths[FILE_OF_THE_NAME], 128, "%s/tierce/%ld-1.sock", folder, (long)child);
    ck_assert_int_eq(mknod(paths[FILE_OF_THE_NAME], S_IFREG | 0600, 0), 0);
    snprintf(paths[LINK], 128, "%s/tierce/%ld-2.sock", folder, (long)child);
    ck_assert_int_eq(symlink("notes.sock", paths[LINK]), 0);
    ck_assert_int_eq(start(&second, "auto", 0, why), 0);
    for (size_t i = 0; i < PLACES; i++) {
        struct stat info;
        ck_assert_msg((lstat(paths[i], &info) == 0) == stays[i], "%s", paths[i]);
    }
    int fd = connect_unix(tierce__control_socket(control));
    ck_assert_int_eq(talk(fd, "GET /none HTTP/1.0\r\n\r\n", reply, sizeof(reply)), 404);
    tierce__control_stop(second);
    tierce__control_stop(control);
}
END_TEST

START_TEST(a_folder_of_somebody_else_is_refused)
{
    struct tierce__control *control;
    char why[256], path[128], longer[300];
    snprintf(path, sizeof(path), "%s/tierce", folder);
    ck_assert_int_eq(mkdir(path, 0777), 0);
    ck_assert_int_eq(chmod(path, 0777), 0);
    ck_assert_int_eq(start(&control, "auto", 0, why), -EACCES);
    ck_assert_ptr_nonnull(strstr(why, "0700"));
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    ck_assert_int_eq(start(&control, longer, 0, why), TIERCE_E_ARGUMENT);
}
END_TEST

START_TEST(a_body_beyond_the_limit_is_refused)
{
    struct tierce__control *control;
    char why[256], reply[1024], path[128];
    ck_assert_int_eq(start(&control, "auto", 0, why), 0);
    strcpy(path, tierce__control_socket(control));
    size_t bytes = (16u << 20) + 1;
    char *request = malloc(bytes + 200);
    int n = sprintf(request,
                    "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\nConnection: "
                    "close\r\n\r\n",
                    bytes);
    memset(request + n, 'a', bytes);
    request[n + bytes] = '\0';
    ck_assert_int_eq(talk(connect_unix(path), request, reply, sizeof(reply)), 413);
    free(request);
    tierce__control_stop(control);
}
END_TEST

/* ---- bodies in pieces, tokens, TLS ---- */

enum { PIECES = 3000, PIECE_BYTES = 1000 };

/* The body of one request. The test reads it when it has ended. */
struct pieces {
    unsigned told, fails_at; /* 0: at none */
    bool has_no_head;        /* there is no memory for the first part */
    size_t held_max;         /* bytes of a body in progress */
    _Atomic unsigned ended;  /* release, acquire */
};

static struct pieces *_Atomic pieces; /* of the next request */

static void expect(struct pieces *p)
{
    atomic_store(&pieces, p);
}

static bool next_piece(void *state, struct tierce__line *body)
{
    struct pieces *p = state;
    char text[PIECE_BYTES];
    if (p->told == PIECES)
        return false;
    if (++p->told % 3 == 0)
        return true; /* a piece may be empty */
    memset(text, 'a' + (int)(p->told % 26), sizeof(text));
    tierce__line_put_bytes(body, text, sizeof(text));
    body->failed |= p->told == p->fails_at;
    p->held_max = body->bytes > p->held_max ? body->bytes : p->held_max;
    return true;
}

static void end_pieces(void *state)
{
    atomic_fetch_add(&((struct pieces *)state)->ended, 1);
}

static void answer_in_pieces(void *arg, const struct tierce__control_query *query,
                             struct tierce__control_answer *answer)
{
    (void)arg, (void)query;
    tierce__line_put(&answer->body, "head:");
    answer->next = next_piece;
    answer->end = end_pieces;
    struct pieces *p = atomic_load(&pieces);
    answer->state = p;
    answer->body.failed = p->has_no_head;
}

static const struct tierce__control_route long_routes[] = {
    {TIERCE__CONTROL_GET, "/long", true, answer_in_pieces},
};

static int start_long(struct tierce__control **out, uint16_t port,
                      const struct tierce__tokens *tokens, const char *certificate, const char *key,
                      char why[256])
{
    return tierce__control_start(
        out,
        &(struct tierce__control_opts){.size = sizeof(struct tierce__control_opts),
                                       .socket = "",
                                       .port = port,
                                       .routes = long_routes,
                                       .route_count = 1,
                                       .tokens = tokens,
                                       .certificate = certificate,
                                       .key = key},
        why);
}

static void check_pieces(const char *body, size_t bytes)
{
    size_t at = 5;
    ck_assert_uint_eq(bytes, 5 + (size_t)(PIECES - PIECES / 3) * PIECE_BYTES);
    ck_assert_int_eq(memcmp(body, "head:", 5), 0);
    for (unsigned told = 1; told <= PIECES; told++) {
        if (told % 3 == 0)
            continue;
        for (size_t i = 0; i < PIECE_BYTES; i++)
            ck_assert_int_eq(body[at + i], 'a' + (int)(told % 26));
        at += PIECE_BYTES;
    }
}

START_TEST(a_body_in_pieces)
{
    enum { ROOM = 4 << 20 };
    uint64_t live = tierce__alloc_live();
    struct tierce__control *control;
    char why[256], *reply = malloc(ROOM);
    uint16_t port = server_free_port();
    ck_assert_int_eq(start_long(&control, port, NULL, NULL, NULL, why), 0);
    struct pieces whole = {0}, cut = {.fails_at = 2000}, unread = {0};
    struct pieces headless = {.has_no_head = true};
    expect(&whole);
    (void)talk(connect_port(port), "GET /long HTTP/1.0\r\n\r\n", reply, ROOM);
    const char *body = strstr(reply, "\r\n\r\n");
    ck_assert_ptr_nonnull(body);
    check_pieces(body + 4, strlen(body + 4));
    WAIT_FOR(atomic_load(&whole.ended) == 1);
    ck_assert_uint_eq(whole.held_max, PIECE_BYTES);

    /* Memory ends: the client sees that the body has no end. */
    expect(&cut);
    ck_assert_int_eq(get(connect_port(port), "/long", "localhost", reply, ROOM), 200);
    ck_assert_ptr_null(strstr(reply, "\r\n0\r\n"));
    WAIT_FOR(atomic_load(&cut.ended) == 1);
    ck_assert_uint_eq(cut.told, 2000);

    /* There is none for the first part: the answer is an error, without the parts after it. */
    expect(&headless);
    ck_assert_int_eq(get(connect_port(port), "/long", "localhost", reply, ROOM), 500);
    WAIT_FOR(atomic_load(&headless.ended) == 1);
    ck_assert_uint_eq(headless.told, 0);

    /* A client that reads nothing: it is cut with the end of the process. */
    expect(&unread);
    static const char request[] = "GET /long HTTP/1.0\r\n\r\n";
    int fd = connect_port(port);
    ck_assert_int_eq(send(fd, request, strlen(request), 0), (ssize_t)strlen(request));
    ck_assert_int_eq(recv(fd, reply, 12, MSG_WAITALL), 12);
    tierce__control_stop(control);
    close(fd);
    ck_assert_uint_eq(atomic_load(&unread.ended), 1);
    free(reply);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

static bool read_role(uint32_t *out, const char *word)
{
    *out = 1;
    return strcmp(word, "read") == 0;
}

static struct tierce__tokens *load_tokens(void)
{
    char path[128], why[256];
    struct tierce__tokens *tokens;
    snprintf(path, sizeof(path), "%s/tokens", folder);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    /* of "open sesame" */
    ck_assert_int_gt(dprintf(fd,
                             "read router "
                             "41ef4bb0b23661e66301aac36066912dac037827b4ae63a7b1165a5aa93ed4eb\n"),
                     0);
    close(fd);
    struct tierce__tokens_opts opts = {.size = sizeof(opts),
                                       .path = path,
                                       .param = "the.parameter",
                                       .rights = read_role,
                                       .rights_text = "the role must be read"};
    ck_assert_msg(tierce__tokens_load(&tokens, &opts, why) == 0, "%s", why);
    opts.path = "/nowhere";
    struct tierce__tokens *none;
    ck_assert_int_lt(tierce__tokens_load(&none, &opts, why), 0);
    ck_assert_msg(strncmp(why, "the.parameter: ", 15) == 0, "%s", why);
    return tokens;
}

START_TEST(the_port_may_require_a_token)
{
    enum { ROOM = 4 << 20 };
    static const struct {
        const char *header;
        int status;
    } cases[] = {{"", 401},
                 {"Authorization: Bearer open\r\n", 401},
                 {"Authorization: Basic open sesame\r\n", 401},
                 {"Authorization: Bearer open sesame\r\n", 200},
                 {"Authorization: bearer open sesame\r\n", 200}};
    struct tierce__control *control;
    struct tierce__tokens *tokens = load_tokens();
    char why[256], request[256], *reply = malloc(ROOM);
    uint16_t port = server_free_port();
    ck_assert_int_eq(start_long(&control, port, tokens, NULL, NULL, why), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pieces body = {0};
        expect(&body);
        snprintf(request, sizeof(request),
                 "GET /long HTTP/1.1\r\nHost: localhost\r\n%sConnection: close\r\n\r\n",
                 cases[i].header);
        ck_assert_int_eq(talk(connect_port(port), request, reply, ROOM), cases[i].status);
        ck_assert_int_eq(strstr(reply, "WWW-Authenticate: Bearer") != NULL, cases[i].status == 401);
        WAIT_FOR(atomic_load(&body.ended) == (cases[i].status == 200));
        ck_assert_int_eq(body.told > 0, cases[i].status == 200);
    }
    tierce__control_stop(control);
    tierce__tokens_destroy(tokens);
    free(reply);
}
END_TEST

START_TEST(the_port_may_speak_tls)
{
    struct tierce__control *control;
    struct tierce__curl *client;
    struct tierce__curl_answer answer;
    char why[256], url[64], ca[96], certificate[96], key[96], other[96];
    uint16_t port = server_free_port();
    ck_assert(tls_make_certificates(folder));
    snprintf(ca, sizeof(ca), "%s/ca.pem", folder);
    snprintf(certificate, sizeof(certificate), "%s/s.pem", folder);
    snprintf(key, sizeof(key), "%s/s.key", folder);
    snprintf(other, sizeof(other), "%s/other.key", folder);
    ck_assert_int_eq(start_long(&control, port, NULL, certificate, other, why), TIERCE_E_CONFIG);
    ck_assert_int_eq(start_long(&control, port, NULL, "/nowhere", key, why), TIERCE_E_CONFIG);
    ck_assert_msg(start_long(&control, port, NULL, certificate, key, why) == 0, "%s", why);
    struct pieces body = {0};
    expect(&body);
    snprintf(url, sizeof(url), "https://127.0.0.1:%u/long", port);
    ck_assert_int_eq(tierce__curl_create(
                         &client, &(struct tierce__curl_opts){.ca_file = ca, .timeout_ms = 50000}),
                     0);
    int rc = tierce__curl_call(
        &answer, client, &(struct tierce__curl_request){.url = url, .bytes_max = 4 << 20}, why);
    ck_assert_msg(rc == 0, "%s", why);
    ck_assert_int_eq(answer.status, 200);
    check_pieces(answer.body, answer.bytes);
    tierce__curl_answer_clear(&answer);
    tierce__curl_destroy(client);
    WAIT_FOR(atomic_load(&body.ended) == 1);
    tierce__control_stop(control);
}
END_TEST

START_TEST(every_allocation_fails_once)
{
    struct tierce__control *control;
    char why[256];
    uint64_t live = tierce__alloc_live();
    for (uint64_t nth = 1;; nth++) {
        tierce__alloc_fail_nth(nth);
        int rc = start(&control, "auto", 0, why);
        tierce__alloc_fail_nth(0);
        if (rc == 0)
            break;
        ck_assert_int_eq(rc, -ENOMEM);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    tierce__control_stop(control);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

/* Clients of a node do not wait for a place: the threads of all its engines may come at once. */
START_TEST(many_may_come_at_once)
{
    enum { CLIENTS = 128 };
    char path[128], why[256];
    int fd, clients[CLIENTS];
    snprintf(path, sizeof(path), "%s/many", folder);
    ck_assert_int_eq(tierce__control_listen(&fd, path, why), 0);
    for (int i = 0; i < CLIENTS; i++) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        strcpy(address.sun_path, path);
        clients[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        ck_assert_int_eq(connect(clients[i], (struct sockaddr *)&address, sizeof(address)), 0);
    }
    for (int i = 0; i < CLIENTS; i++)
        close(clients[i]);
    close(fd);
}
END_TEST

CHECK_MAIN("control", .seconds = 60, .setup = setup, .teardown = teardown,
           .tests = {the_socket_answers_and_goes, the_port_shows_what_is_public,
                     a_dead_socket_is_taken_over_and_a_live_one_is_not, stale_sockets_are_removed,
                     a_folder_of_somebody_else_is_refused, a_body_beyond_the_limit_is_refused,
                     every_allocation_fails_once, many_may_come_at_once, a_body_in_pieces,
                     the_port_may_require_a_token, the_port_may_speak_tls})
