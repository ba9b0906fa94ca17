/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "map_keeper.h"
#include "proto/transfer/transfer_wire.h"
#include "silent_log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * Any bytes into a server of transfer://, in pieces whose sizes the first byte decides. Its second
 * byte decides what the keeper does: it answers at once, holds its answers until the client has
 * left, or fails once; and whether the client reads what it is answered. What is answered must be a
 * welcome and replies, and nothing of the keeper's may be lent afterwards.
 */

#define KEEPER_BYTES (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct map_keeper *keeper;
static struct tierce__transfer_server *server;

static void stop(void)
{
    tierce__transfer_server_stop(server, 0);
    map_keeper_destroy(keeper);
}

static void start(void)
{
    char why[256];
    silence_log();
    keeper = map_keeper_create("m", KEEPER_BYTES);
    struct tierce__transfer_server_opts opts = {
        .size = sizeof(opts), .host = "127.0.0.1", .keeper = map_keeper_base(keeper), .loops = 1};
    TIERCE_ASSERT(tierce__transfer_server_start(&server, &opts, why) == 0);
    atexit(stop);
}

static int connect_client(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons(tierce__transfer_server_port(server))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    TIERCE_ASSERT(fd >= 0);
    TIERCE_ASSERT(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    return fd;
}

/* What the server has said so far. */
struct answers {
    uint8_t bytes[1u << 16];
    size_t count;
};

static void read_some(int fd, struct answers *answers, int wait_ms)
{
    struct pollfd fds = {.fd = fd, .events = POLLIN};
    while (answers->count < sizeof(answers->bytes) && poll(&fds, 1, wait_ms) > 0) {
        ssize_t n = recv(fd, answers->bytes + answers->count,
                         sizeof(answers->bytes) - answers->count, MSG_DONTWAIT);
        if (n <= 0)
            return;
        answers->count += (size_t)n;
    }
}

/* A welcome and replies with the numbers of the requests; the last frame may be cut. */
static void check_answers(const struct answers *answers)
{
    struct tierce__transfer_welcome welcome;
    struct tierce__transfer_reply reply;
    size_t at = TIERCE__TRANSFER_WELCOME_BYTES;
    if (answers->count < at)
        return;
    TIERCE_ASSERT(tierce__transfer_welcome_decode(&welcome, answers->bytes) == 0);
    TIERCE_ASSERT(welcome.status == 0 || answers->count == at);
    for (uint16_t i = 0; answers->count - at >= TIERCE__TRANSFER_HEAD_BYTES; i++) {
        TIERCE_ASSERT(tierce__transfer_reply_decode(&reply, answers->bytes + at) == 0);
        TIERCE_ASSERT(reply.sequence == i && reply.bytes <= KEEPER_BYTES);
        at += TIERCE__TRANSFER_HEAD_BYTES;
        at = reply.bytes < answers->count - at ? at + (size_t)reply.bytes : answers->count;
    }
}

static void talk(const uint8_t *data, size_t size, struct answers *answers, bool reads)
{
    size_t piece = data[0] < 200 ? data[0] + 1u : 65536;
    int fd = connect_client();
    for (size_t at = 2; at < size; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        if (send(fd, data + at, n, MSG_NOSIGNAL) < 0)
            break;
        if (reads)
            read_some(fd, answers, 0);
    }
    if (reads)
        read_some(fd, answers, 1);
    close(fd);
}

static void wait_for_end(void)
{
    struct tierce__transfer_stats stats;
    do {
        usleep(50);
        tierce__transfer_server_stats(server, &stats);
    } while (stats.connections > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct answers answers;
    if (server == NULL)
        start();
    if (size < 2)
        return 0;
    answers.count = 0;
    map_keeper_fail(keeper, data[1] & 4 ? -ENOMEM : 0, data[1] & 4 ? 1 : 0);
    if (data[1] & 1)
        map_keeper_hold(keeper);
    talk(data, size, &answers, (data[1] & 2) == 0);
    map_keeper_let_go(keeper);
    wait_for_end();
    check_answers(&answers);
    TIERCE_ASSERT(map_keeper_lent(keeper) == 0 && map_keeper_held(keeper) == 0);
    map_keeper_clear(keeper);
    return 0;
}
