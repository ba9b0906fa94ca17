/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "net/server/grpc/grpc_connection.h"
#include "net/server/grpc/reflection/reflection.h"

#include <string.h>

/*
 * Any bytes into a gRPC connection, in pieces whose sizes the first byte decides. Its second byte
 * decides what happens at the end: the client vanishes, or the server drains, or gives up. Nothing
 * may leak, and each call that reached a handler is answered by it once.
 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tierce__call *held[64];
static size_t held_count;

static void echo(void *arg, struct tierce__call *call)
{
    (void)arg;
    const struct tierce__call_info *info = tierce__call_info(call);
    tierce__call_reply(call,
                       &(struct tierce__reply){.body = info->body, .bytes = info->body_bytes});
}

static void hold(void *arg, struct tierce__call *call)
{
    if (held_count < sizeof(held) / sizeof(*held))
        held[held_count++] = call;
    else
        echo(arg, call);
}

static const struct tierce__route list[] = {{"/s/e", NULL, echo, NULL}, {"/s/h", NULL, hold, NULL}};

/* p.M and p.S/f */
static const uint8_t descriptors[] = {
    0x0a, 33,   0x0a, 7,    'a', '.', 'p',  'r', 'o',  't', 'o', 0x12, 1, 'p', 0x22, 3, 0x0a, 1,
    'M',  0x32, 14,   0x0a, 1,   'S', 0x12, 9,   0x0a, 1,   'f', 0x12, 1, 'M', 0x1a, 1, 'M'};

static void wake(struct tierce__loop *loop)
{
    (void)loop;
}

static void changed(void *arg)
{
    (void)arg;
}

static void answer_held(void)
{
    while (held_count > 0)
        tierce__call_reply(held[--held_count], &(struct tierce__reply){.body = "late", .bytes = 4});
}

static void take_all(struct tierce__grpc_connection *connection)
{
    uint8_t out[4096];
    while (tierce__grpc_connection_take(connection, out, sizeof(out)) > 0) {
    }
}

static void talk(struct tierce__grpc_connection *connection, struct tierce__loop *loop,
                 const uint8_t *data, size_t size)
{
    size_t piece = data[0] < 200 ? data[0] + 1u : 65536;
    uint8_t end = data[1];
    data += 2;
    size -= 2;
    for (size_t at = 0; at < size; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        if (tierce__grpc_connection_feed(connection, data + at, n) != 0)
            break;
        take_all(connection);
        if (held_count > 3)
            answer_held();
    }
    if (end & 1)
        tierce__grpc_connection_drain(connection);
    if (end & 2)
        tierce__deadlines_expire(&loop->deadlines, UINT64_MAX - 1);
    if (end & 4)
        tierce__grpc_connection_give_up(connection);
    if (end & 8)
        answer_held();
    take_all(connection);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tierce__shared shared = {.message_bytes_max = 1 << 16,
                                    .held.max = 1 << 18,
                                    .transfer_ms = 60000,
                                    .stream_buffer_max = 1 << 16,
                                    .streams_max = 100};
    struct tierce__reflection *reflection = NULL;
    struct tierce__routes routes = {0};
    struct tierce__loop loop;
    struct tierce__grpc_connection *connection = NULL;
    if (size < 2)
        return 0;
    tierce__loop_init(&loop, wake);
    tierce__loop_enter(&loop);
    if (tierce__reflection_create(&reflection, descriptors, sizeof(descriptors)) == 0 &&
        tierce__routes_init(&routes, list, sizeof(list) / sizeof(*list)) == 0) {
        shared.reflection = reflection;
        struct tierce__grpc_connection_opts opts = {.shared = &shared,
                                                    .loop = &loop,
                                                    .routes = &routes,
                                                    .peer = "fuzz",
                                                    .changed = changed};
        if (tierce__grpc_connection_create(&connection, &opts) == 0)
            talk(connection, &loop, data, size);
    }
    tierce__grpc_connection_destroy(connection);
    answer_held();
    tierce__routes_fini(&routes);
    tierce__loop_enter(NULL);
    tierce__loop_fini(&loop);
    tierce__reflection_destroy(reflection);
    TIERCE_ASSERT(shared.held.bytes == 0 && shared.handlers == 0);
    TIERCE_ASSERT(tierce__alloc_live() == 0);
    return 0;
}
