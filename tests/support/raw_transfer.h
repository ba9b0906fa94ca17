/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_RAW_TRANSFER_H
#define TIERCE_TESTS_RAW_TRANSFER_H

/* A client of transfer:// by its bytes, to do what the connector does not, and a server with a
 * keeper of this process. */
#include "check_main.h"
#include "map_keeper.h"
#include "net/stream.h"
#include "proto/transfer/transfer_wire.h"
#include "wait_for.h"

#define RAW_HEAD TIERCE__TRANSFER_HEAD_BYTES

/* ---- the server ------------------------------------------------------------------------------ */

struct raw_world {
    struct map_keeper *keeper;
    struct tierce__transfer_server *server;
    struct tierce__transfer_server_opts opts; /* changes before raw_start; zeroed: the defaults */
};

static inline void raw_start(struct raw_world *world, uint64_t bytes_max)
{
    char why[256];
    world->keeper = map_keeper_create("memory", bytes_max);
    world->opts.size = sizeof(world->opts);
    world->opts.host = "127.0.0.1";
    world->opts.keeper = map_keeper_base(world->keeper);
    memset(world->opts.incarnation, 7, sizeof(world->opts.incarnation));
    ck_assert_msg(tierce__transfer_server_start(&world->server, &world->opts, why) == 0, "%s", why);
}

static inline void raw_stop(struct raw_world *world)
{
    tierce__transfer_server_stop(world->server, 0);
    map_keeper_destroy(world->keeper);
    world->server = NULL;
}

static inline struct tierce__transfer_stats raw_stats(const struct raw_world *world)
{
    struct tierce__transfer_stats stats;
    tierce__transfer_server_stats(world->server, &stats);
    return stats;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static inline int raw_connect(const struct raw_world *world)
{
    int fd = -1;
    char why[256];
    ck_assert_msg(tierce__stream_connect(&fd, "127.0.0.1",
                                         tierce__transfer_server_port(world->server),
                                         tierce__deadline_in_ms(100000), why, sizeof(why)) == 0,
                  "%s", why);
    return fd;
}

static inline int raw_try_send(int fd, const void *bytes, size_t count)
{
    struct iovec piece = {(void *)(uintptr_t)bytes, count};
    return count > 0 ? tierce__stream_send(fd, &piece, 1, tierce__deadline_in_ms(100000)) : 0;
}

static inline void raw_send(int fd, const void *bytes, size_t count)
{
    ck_assert_int_eq(raw_try_send(fd, bytes, count), 0);
}

static inline int raw_try_receive(int fd, void *bytes, size_t count)
{
    size_t got;
    struct iovec piece = {bytes, count};
    return tierce__stream_receive(fd, &piece, 1, count, &got, tierce__deadline_in_ms(100000));
}

static inline void raw_receive(int fd, void *bytes, size_t count)
{
    ck_assert_int_eq(raw_try_receive(fd, bytes, count), 0);
}

/* The server closes, and says nothing more. */
static inline void raw_ends(int fd)
{
    char byte;
    ck_assert_int_eq(raw_try_receive(fd, &byte, 1), -ECONNRESET);
    close(fd);
}

/* ---- frames ---------------------------------------------------------------------------------- */

static inline size_t raw_hello(uint8_t out[64], const char *space, const char *token)
{
    size_t space_bytes = strlen(space), token_bytes = strlen(token);
    tierce__transfer_hello_encode(
        out, &(struct tierce__transfer_hello){.version = TIERCE__TRANSFER_VERSION,
                                              .space_bytes = (uint16_t)space_bytes,
                                              .token_bytes = (uint16_t)token_bytes});
    memcpy(out + TIERCE__TRANSFER_HELLO_BYTES, space, space_bytes);
    memcpy(out + TIERCE__TRANSFER_HELLO_BYTES + space_bytes, token, token_bytes);
    return TIERCE__TRANSFER_HELLO_BYTES + space_bytes + token_bytes;
}

static inline struct tierce__transfer_welcome raw_welcome(int fd)
{
    uint8_t bytes[TIERCE__TRANSFER_WELCOME_BYTES];
    struct tierce__transfer_welcome welcome;
    raw_receive(fd, bytes, sizeof(bytes));
    ck_assert_int_eq(tierce__transfer_welcome_decode(&welcome, bytes), 0);
    return welcome;
}

/* A connection that was greeted. */
static inline int raw_open(const struct raw_world *world, const char *token)
{
    uint8_t hello[64];
    int fd = raw_connect(world);
    raw_send(fd, hello, raw_hello(hello, "memory", token));
    ck_assert_int_eq(raw_welcome(fd).status, 0);
    return fd;
}

/* The head of a request and its name, without the bytes behind it. */
static inline size_t raw_request(uint8_t out[RAW_HEAD + TIERCE__TRANSFER_NAME_MAX],
                                 struct tierce__transfer_request request, const char *name)
{
    request.name_bytes = (uint16_t)strlen(name);
    tierce__transfer_request_encode(out, &request);
    memcpy(out + RAW_HEAD, name, request.name_bytes);
    return RAW_HEAD + request.name_bytes;
}

static inline void raw_ask(int fd, struct tierce__transfer_request request, const char *name)
{
    uint8_t frame[RAW_HEAD + TIERCE__TRANSFER_NAME_MAX];
    raw_send(fd, frame, raw_request(frame, request, name));
}

static inline void raw_ask_write(int fd, const char *name, uint64_t bytes)
{
    raw_ask(fd,
            (struct tierce__transfer_request){
                .op = TIERCE__TRANSFER_OP_WRITE, .length = bytes, .total = bytes},
            name);
}

static inline void raw_ask_read(int fd, const char *name, uint64_t offset, uint64_t bytes)
{
    raw_ask(fd,
            (struct tierce__transfer_request){
                .op = TIERCE__TRANSFER_OP_READ, .offset = offset, .length = bytes},
            name);
}

static inline struct tierce__transfer_reply raw_reply(int fd, enum tierce__transfer_op op,
                                                      uint16_t sequence)
{
    uint8_t bytes[RAW_HEAD];
    struct tierce__transfer_reply reply;
    raw_receive(fd, bytes, sizeof(bytes));
    ck_assert_int_eq(tierce__transfer_reply_decode(&reply, bytes), 0);
    ck_assert_int_eq(reply.op, op);
    ck_assert_uint_eq(reply.sequence, sequence);
    return reply;
}

/* Writes an object of one byte value. */
static inline void raw_write(int fd, const char *name, uint8_t value, size_t bytes,
                             uint16_t sequence)
{
    uint8_t *memory = malloc(bytes);
    ck_assert_ptr_nonnull(memory);
    memset(memory, value, bytes);
    raw_ask_write(fd, name, bytes);
    raw_send(fd, memory, bytes);
    free(memory);
    ck_assert_int_eq(raw_reply(fd, TIERCE__TRANSFER_OP_WRITE, sequence).status, 0);
}

static inline void raw_is(int fd, uint8_t value, size_t bytes)
{
    uint8_t *memory = malloc(bytes);
    ck_assert_ptr_nonnull(memory);
    raw_receive(fd, memory, bytes);
    ck_assert_uint_eq(memory[0], value);
    ck_assert_int_eq(memcmp(memory, memory + 1, bytes - 1), 0);
    free(memory);
}

#endif
