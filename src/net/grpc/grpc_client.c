/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/text/host_port.h"
#include "net/grpc/grpc_client_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define CLIENT_MAGIC 0x746e6c63u

static struct tierce__grpc_link *as_link(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__grpc_link, node);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Closes connections that failed or are finished. Ending their calls may start others. */
static void close_ended(struct tierce__grpc_client *client)
{
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &client->links) {
        struct tierce__grpc_link *link = as_link(node);
        if (link->has_failed || (link->is_leaving && link->in_flight == 0))
            tierce__grpc_link_close(link, true);
    }
}

static void send_all(struct tierce__grpc_client *client)
{
    TIERCE__LIST_FOR_EACH (node, &client->links)
        tierce__grpc_link_write(as_link(node));
}

static struct pollfd wanted_of(const struct tierce__grpc_link *link)
{
    if (link->state == TIERCE__GRPC_LINK_RESOLVING)
        return (struct pollfd){.fd = tierce__resolve_fd(link->resolve), .events = POLLIN};
    if (link->state == TIERCE__GRPC_LINK_CONNECTING)
        return (struct pollfd){.fd = link->fd, .events = POLLOUT};
    short out = tierce__grpc_link_wants_write(link) ? POLLOUT : 0;
    return (struct pollfd){.fd = link->fd, .events = (short)(POLLIN | out)};
}

static void lower(uint64_t *until_ns, uint64_t at_ns)
{
    *until_ns = at_ns < *until_ns ? at_ns : *until_ns;
}

/* Of the links that accept calls, or of the others. */
static size_t collect(struct tierce__grpc_client *client, bool leaving, struct pollfd *fds,
                      size_t room, uint64_t *until_ns)
{
    size_t count = 0;
    TIERCE__LIST_FOR_EACH (node, &client->links) {
        const struct tierce__grpc_link *link = as_link(node);
        if (link->is_leaving != leaving)
            continue;
        if (link->has_failed || (leaving && link->in_flight == 0))
            *until_ns = 0;
        else if (count < room)
            fds[count++] = wanted_of(link);
    }
    TIERCE_ASSERT(count <= room);
    return count;
}

size_t tierce__grpc_client_wants(struct tierce__grpc_client *client, struct pollfd *fds,
                                 size_t room, uint64_t *until_ns)
{
    TIERCE_CHECK_MAGIC(client, CLIENT_MAGIC);
    lower(until_ns, tierce__deadlines_next(&client->deadlines));
    size_t count = collect(client, false, fds, room, until_ns);
    return count + collect(client, true, fds + count, room - count, until_ns);
}

static struct tierce__grpc_link *link_of(struct tierce__grpc_client *client, int fd)
{
    TIERCE__LIST_FOR_EACH (node, &client->links) {
        if (as_link(node)->fd == fd)
            return as_link(node);
    }
    return NULL;
}

/* Receives what has come. */
static void receive_all(struct tierce__grpc_client *client, const struct pollfd *fds, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct tierce__grpc_link *link = fds[i].revents != 0 ? link_of(client, fds[i].fd) : NULL;
        if (link == NULL || link->has_failed)
            continue;
        if (link->state == TIERCE__GRPC_LINK_CONNECTING)
            tierce__grpc_link_advance(link, fds[i].revents);
        else if ((fds[i].revents & ~POLLOUT) != 0)
            tierce__grpc_link_read(link);
    }
    TIERCE__LIST_FOR_EACH (node, &client->links) {
        if (as_link(node)->state == TIERCE__GRPC_LINK_RESOLVING)
            tierce__grpc_link_advance(as_link(node), 0);
    }
    tierce__deadlines_expire(&client->deadlines, tierce__now_ns());
}

static size_t count_links(const struct tierce__grpc_client *client)
{
    size_t count = 0;
    TIERCE__LIST_FOR_EACH (node, &client->links)
        count++;
    return count;
}

static int wait_ms(uint64_t until_ns)
{
    uint64_t now = tierce__now_ns();
    if (until_ns <= now)
        return 0;
    uint64_t ms = (until_ns - now + TIERCE__MS_NS - 1) / TIERCE__MS_NS;
    return ms < INT32_MAX ? (int)ms : INT32_MAX;
}

/* Links that failed stay, for whoever waits for them. */
static void wait_and_serve(struct tierce__grpc_client *client, uint64_t until_ns)
{
    send_all(client);
    size_t count = count_links(client);
    if (TIERCE__GROW(client->polled, client->polled_capacity, count, 4) != 0)
        return;
    count = tierce__grpc_client_wants(client, client->polled, count, &until_ns);
    if (poll(client->polled, count, wait_ms(until_ns)) < 0)
        count = 0;
    receive_all(client, client->polled, count);
    send_all(client);
}

void tierce__grpc_client_serve(struct tierce__grpc_client *client, const struct pollfd *fds,
                               size_t count)
{
    TIERCE_CHECK_MAGIC(client, CLIENT_MAGIC);
    receive_all(client, fds, count);
    close_ended(client);
    send_all(client);
}

size_t tierce__grpc_client_poll(struct tierce__grpc_client *client, uint32_t timeout_ms)
{
    TIERCE_CHECK_MAGIC(client, CLIENT_MAGIC);
    uint64_t until_ns = tierce__deadline_in_ms(timeout_ms);
    send_all(client);
    close_ended(client);
    if (client->in_flight > 0)
        wait_and_serve(client, until_ns);
    close_ended(client);
    send_all(client);
    return client->in_flight;
}

size_t tierce__grpc_client_connected(const struct tierce__grpc_client *client)
{
    size_t count = 0;
    TIERCE__LIST_FOR_EACH (node, &client->links) {
        const struct tierce__grpc_link *link = as_link((struct tierce__list *)(uintptr_t)node);
        count += link->state == TIERCE__GRPC_LINK_READY && !link->has_failed;
    }
    return count;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static int set_up(struct tierce__grpc_client *client, const struct tierce__grpc_client_opts *opts,
                  char why[256])
{
    size_t authority_bytes = strlen(opts->host) + 16;
    client->magic = CLIENT_MAGIC;
    client->port = opts->port;
    client->connection_count = opts->connections > 0 ? opts->connections : 1;
    client->connect_timeout_ms = opts->connect_timeout_ms > 0 ? opts->connect_timeout_ms : 5000;
    client->message_bytes_max =
        opts->message_bytes_max > 0 ? opts->message_bytes_max : (size_t)64 << 20;
    tierce__list_init(&client->links);
    client->host = tierce__strdup(opts->host);
    client->server_name =
        tierce__strdup(opts->server_name != NULL ? opts->server_name : opts->host);
    client->authority = tierce__alloc(authority_bytes);
    if (client->host == NULL || client->server_name == NULL || client->authority == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    (void)tierce__host_port_format(client->authority, authority_bytes, opts->host, opts->port);
    if (!opts->tls)
        return 0;
    return tierce__tls_client_context(
        &client->tls, opts->ca_file,
        &(struct tierce__tls){.certificate = opts->certificate, .key = opts->key}, why);
}

/* Waits until all links are connected, or one has failed. */
static int await_links(struct tierce__grpc_client *client, char why[256])
{
    for (;;) {
        bool all_ready = true;
        TIERCE__LIST_FOR_EACH (node, &client->links) {
            struct tierce__grpc_link *link = as_link(node);
            if (link->has_failed) {
                snprintf(why, 256, "%.199s", link->why);
                return link->error;
            }
            all_ready = all_ready && link->state == TIERCE__GRPC_LINK_READY;
        }
        if (all_ready)
            return 0;
        wait_and_serve(client, TIERCE__DEADLINE_NEVER);
    }
}

int tierce__grpc_client_open(struct tierce__grpc_client **out,
                             const struct tierce__grpc_client_opts *opts, char why[256])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__grpc_client *client = tierce__calloc(1, sizeof(*client));
    snprintf(why, 256, "no memory");
    if (client == NULL)
        return -ENOMEM;
    int rc = set_up(client, opts, why);
    for (uint32_t i = 0; rc == 0 && !opts->lazy && i < client->connection_count; i++)
        rc = tierce__grpc_link_open(client);
    if (rc == 0 && !opts->lazy)
        rc = await_links(client, why);
    if (rc != 0) {
        tierce__grpc_client_close(client);
        return rc;
    }
    *out = client;
    return 0;
}

void tierce__grpc_client_close(struct tierce__grpc_client *client)
{
    if (client == NULL)
        return;
    TIERCE_CHECK_MAGIC(client, CLIENT_MAGIC);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &client->links)
        tierce__grpc_link_close(as_link(node), false);
    TIERCE_ASSERT(tierce__list_empty(&client->links));
    TIERCE_ASSERT(client->in_flight == 0);
    tierce__deadlines_fini(&client->deadlines);
    tierce__tls_context_destroy(client->tls);
    tierce__free(client->polled);
    tierce__free(client->authority);
    tierce__free(client->server_name);
    tierce__free(client->host);
    client->magic = 0;
    tierce__free(client);
}

/* Returns the connection with the fewest calls, and counts those that accept calls. */
static struct tierce__grpc_link *emptiest(struct tierce__grpc_client *client, uint32_t *count)
{
    struct tierce__grpc_link *best = NULL;
    *count = 0;
    TIERCE__LIST_FOR_EACH (node, &client->links) {
        struct tierce__grpc_link *link = as_link(node);
        if (link->is_leaving || link->has_failed)
            continue;
        (*count)++;
        if (best == NULL || link->in_flight < best->in_flight)
            best = link;
    }
    return best;
}

int tierce__grpc_client_start(struct tierce__grpc_client *client,
                              const struct tierce__grpc_request *request, tierce__grpc_done_fn done,
                              void *arg)
{
    TIERCE_CHECK_MAGIC(client, CLIENT_MAGIC);
    uint32_t count;
    struct tierce__grpc_link *link = emptiest(client, &count);
    if (count < client->connection_count) {
        int rc = tierce__grpc_link_open(client);
        if (rc != 0 && link == NULL)
            return rc;
        /* The new one may have failed already; poll says so to its calls. */
        if (link == NULL)
            link = as_link(client->links.prev);
        else
            link = emptiest(client, &count);
    }
    return tierce__grpc_link_start(link, request, done, arg);
}

/* ---- one call -------------------------------------------------------------------------------- */

struct grpc_waiting {
    struct tierce__grpc_answer *answer;
    bool is_done;
};

static void take_answer(void *arg, struct tierce__grpc_answer *answer)
{
    struct grpc_waiting *waiting = arg;
    *waiting->answer = *answer;
    answer->body = NULL;
    waiting->is_done = true;
}

int tierce__grpc_client_unary(struct tierce__grpc_client *client,
                              const struct tierce__grpc_request *request,
                              struct tierce__grpc_answer *answer)
{
    struct grpc_waiting waiting = {.answer = answer};
    int rc = tierce__grpc_client_start(client, request, take_answer, &waiting);
    while (rc == 0 && !waiting.is_done)
        (void)tierce__grpc_client_poll(client, UINT32_MAX);
    return rc;
}

void tierce__grpc_answer_fini(struct tierce__grpc_answer *answer)
{
    tierce__free(answer->body);
    answer->body = NULL;
}
