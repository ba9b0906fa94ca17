/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "store/transfer/transfer_private.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define SERVER_MAGIC    0x7ea5f3e4u
#define LOOPS           2u
#define CONNECTIONS_MAX 4096u
#define REQUEST_MS      30000u
#define DRAIN_TICK_MS   2
#define EXTRA_MAX       1024u /* connections beyond the maximum that wait for a place */

static uint32_t or_default(uint32_t value, uint32_t by_default)
{
    return value > 0 ? value : by_default;
}

/* ---- accepting ------------------------------------------------------------------------------- */

static void count_out(struct tierce__transfer_server *server, const struct tierce__address *address)
{
    TIERCE_ASSERT(atomic_load_explicit(&server->connections, memory_order_relaxed) > 0);
    atomic_fetch_sub_explicit(&server->connections, 1, memory_order_relaxed);
    if (server->opts.addresses != NULL && address != NULL)
        tierce__addresses_leave(server->opts.addresses, address);
}

void tierce__transfer_connection_gone(struct tierce__transfer_server *server,
                                      struct tierce__poll_loop *loop,
                                      const struct tierce__address *address)
{
    count_out(server, address);
    /* With the acquire in end_all: the server is not used after it. */
    atomic_fetch_sub_explicit(&loop->member_count, 1, memory_order_release);
}

/* The reason why there is no place for a new connection. */
enum shortage { NO_SHORTAGE, TOO_MANY, TOO_MANY_OF_ADDRESS, NO_MEMORY };

static void note_refused(struct tierce__transfer_server *server, enum shortage shortage)
{
    TIERCE_ASSERT(shortage != NO_SHORTAGE);
    tierce__transfer_count(&server->counters.refused, 1);
    if (shortage == TOO_MANY)
        tierce__log_repeated(TIERCE_LOG_WARN, "transfer_connection_refused",
                             "port=%u why=\"too many connections\" connections_max=%u",
                             server->door.port, server->opts.connections_max);
    else
        tierce__log_repeated(
            TIERCE_LOG_WARN, "transfer_connection_refused", "port=%u why=\"%s\"", server->door.port,
            shortage == NO_MEMORY ? "no memory" : "too many connections of its address");
}

static void arrive(struct tierce__task *task)
{
    struct tierce__transfer_arrival *arrival =
        TIERCE__CONTAINER_OF(task, struct tierce__transfer_arrival, task);
    int rc = 0;
    if (arrival->is_extra && !tierce__transfer_connection_make_way(arrival->greetings)) {
        note_refused(arrival->server, TOO_MANY);
        close(arrival->fd);
        rc = TIERCE_E_LIMIT;
    } else {
        rc = tierce__transfer_connection_open(arrival);
        if (rc < 0)
            tierce__log_repeated(TIERCE_LOG_WARN, "transfer_connection_failed", "err=\"%s\"",
                                 tierce_strerror(rc));
    }
    if (rc < 0)
        tierce__transfer_connection_gone(arrival->server, arrival->loop, &arrival->address);
    tierce__free(arrival);
}

/* Counts it in, unless there is a shortage. */
static enum shortage count_in(struct tierce__transfer_server *server,
                              struct tierce__address *address, const struct sockaddr *peer,
                              bool *is_extra)
{
    uint32_t before = atomic_fetch_add_explicit(&server->connections, 1, memory_order_relaxed);
    struct tierce__addresses *addresses = server->opts.addresses;
    *is_extra = before >= server->opts.connections_max;
    bool is_one_too_many = before >= server->opts.connections_max + EXTRA_MAX;
    if (!is_one_too_many &&
        (addresses == NULL || tierce__addresses_enter(addresses, address, peer)))
        return NO_SHORTAGE;
    count_out(server, NULL);
    return is_one_too_many ? TOO_MANY : TOO_MANY_OF_ADDRESS;
}

static void on_accepted(struct tierce__poll_door *door, int fd, const struct sockaddr_storage *peer)
{
    struct tierce__transfer_server *server =
        TIERCE__CONTAINER_OF(door, struct tierce__transfer_server, door);
    struct tierce__transfer_arrival *arrival = NULL;
    struct tierce__address address = {{0}};
    bool is_extra = false;
    enum shortage shortage = count_in(server, &address, (const struct sockaddr *)peer, &is_extra);
    if (shortage == NO_SHORTAGE) {
        arrival = tierce__alloc(sizeof(*arrival));
        shortage = arrival == NULL ? NO_MEMORY : NO_SHORTAGE;
        if (arrival == NULL)
            count_out(server, &address);
    }
    if (arrival == NULL) {
        note_refused(server, shortage);
        close(fd);
        return;
    }
    struct tierce__poll_loop *loop = tierce__poll_emptiest(server->loops, server->loop_count);
    size_t index = 0;
    while (server->loops[index] != loop)
        index++;
    *arrival = (struct tierce__transfer_arrival){.task = {.run = arrive},
                                                 .server = server,
                                                 .loop = loop,
                                                 .greetings = &server->greetings[index],
                                                 .fd = fd,
                                                 .is_extra = is_extra,
                                                 .address = address};
    tierce__peer_print(arrival->peer, (const struct sockaddr *)peer);
    tierce__transfer_count(&server->counters.accepted, 1);
    atomic_fetch_add_explicit(&loop->member_count, 1, memory_order_relaxed);
    tierce__loop_post(&loop->base, &arrival->task);
}

/* ---- starting -------------------------------------------------------------------------------- */

static void destroy(struct tierce__transfer_server *server)
{
    for (size_t i = 0; i < server->loop_count; i++)
        tierce__poll_loop_stop(server->loops[i]);
    tierce__free(server->loops);
    tierce__free(server->greetings);
    server->magic = 0;
    tierce__free(server);
}

static int start_loops(struct tierce__transfer_server *server, char why[256])
{
    uint32_t count = server->opts.loops;
    server->loops = tierce__calloc(count, sizeof(*server->loops));
    server->greetings = tierce__calloc(count, sizeof(*server->greetings));
    int rc = server->loops != NULL && server->greetings != NULL ? 0 : -ENOMEM;
    for (uint32_t i = 0; i < count && rc == 0; i++)
        tierce__list_init(&server->greetings[i]);
    while (rc == 0 && server->loop_count < count) {
        rc = tierce__poll_loop_start(&server->loops[server->loop_count]);
        server->loop_count += rc == 0;
    }
    if (rc != 0)
        snprintf(why, 256, "a thread for connections cannot be started: %s", tierce_strerror(rc));
    return rc;
}

int tierce__transfer_server_start(struct tierce__transfer_server **out,
                                  const struct tierce__transfer_server_opts *opts, char why[256])
{
    why[0] = '\0';
    if (opts->size != sizeof(*opts) || opts->keeper == NULL || opts->host == NULL) {
        snprintf(why, 256, "a server requires a keeper and a host");
        return TIERCE_E_ARGUMENT;
    }
    struct tierce__transfer_server *server = tierce__calloc(1, sizeof(*server));
    if (server == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    server->magic = SERVER_MAGIC;
    server->opts = *opts;
    server->opts.host = NULL;
    server->opts.loops = or_default(opts->loops, LOOPS);
    server->opts.connections_max = or_default(opts->connections_max, CONNECTIONS_MAX);
    server->opts.request_ms = or_default(opts->request_ms, REQUEST_MS);
    int rc = start_loops(server, why);
    if (rc == 0) {
        server->door = (struct tierce__poll_door){.loop = server->loops[0],
                                                  .accepted = on_accepted,
                                                  .shortage = "transfer_no_descriptor",
                                                  .port = opts->port};
        rc = tierce__poll_door_open(&server->door, opts->host, why);
    }
    if (rc == 0)
        *out = server;
    else
        destroy(server);
    return rc;
}

uint16_t tierce__transfer_server_port(const struct tierce__transfer_server *server)
{
    TIERCE_CHECK_MAGIC(server, SERVER_MAGIC);
    return server->door.port;
}

void tierce__transfer_server_stats(const struct tierce__transfer_server *server,
                                   struct tierce__transfer_stats *out)
{
    TIERCE_CHECK_MAGIC(server, SERVER_MAGIC);
    const struct tierce__transfer_counters *counters = &server->counters;
    *out = (struct tierce__transfer_stats){
        .connections = atomic_load_explicit(&server->connections, memory_order_relaxed)};
#define READ(name) out->name = atomic_load_explicit(&counters->name, memory_order_relaxed)
    READ(accepted);
    READ(refused);
    READ(reads);
    READ(read_bytes);
    READ(misses);
    READ(writes);
    READ(written_bytes);
    READ(full);
    READ(drops);
    READ(errors);
#undef READ
}

/* ---- stopping -------------------------------------------------------------------------------- */

struct transfer_ending {
    struct tierce__poll_loop *loop;
    bool at_once;
};

static void end_connections(void *arg)
{
    const struct transfer_ending *ending = arg;
    tierce__transfer_connections_end(ending->loop, ending->at_once);
}

/* Returns the number of remaining connections; closing takes a moment. */
static uint32_t end_all(struct tierce__transfer_server *server, bool at_once)
{
    uint32_t left = 0;
    for (size_t i = 0; i < server->loop_count; i++) {
        struct transfer_ending ending = {server->loops[i], at_once};
        tierce__loop_call(&server->loops[i]->base, end_connections, &ending);
        left += atomic_load_explicit(&server->loops[i]->member_count, memory_order_acquire);
    }
    return left;
}

void tierce__transfer_server_stop(struct tierce__transfer_server *server, uint64_t deadline_ns)
{
    if (server == NULL)
        return;
    TIERCE_CHECK_MAGIC(server, SERVER_MAGIC);
    struct timespec pause = {.tv_nsec = DRAIN_TICK_MS * (long)TIERCE__MS_NS};
    struct tierce__keeper *keeper = server->opts.keeper;
    bool is_over = false;
    tierce__poll_door_close(&server->door);
    while (end_all(server, is_over) > 0) {
        nanosleep(&pause, NULL);
        if (is_over || tierce__now_ns() < deadline_ns)
            continue;
        is_over = true;
        if (keeper->ops->end != NULL)
            keeper->ops->end(keeper, deadline_ns);
    }
    destroy(server);
}
