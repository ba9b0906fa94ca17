/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/lock.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "net/server/http/http_private.h"
#include "net/listen.h"

#include <errno.h>
#include <unistd.h>

/*
 * A connection from libmicrohttpd's start to its end. A connection without a request is on a list
 * by its deadline for one, because libmicrohttpd's own timeout counts only silence: a client that
 * sends single bytes would keep its slot forever.
 */

static struct tierce__http_connection *connection_of(struct MHD_Connection *connection)
{
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/* Under the lock. */
static void wait_for_request(struct tierce__http *http, struct tierce__http_connection *c)
{
    tierce__lock_assert_held(&http->lock);
    TIERCE_ASSERT(tierce__list_empty(&c->node));
    c->deadline_ns = tierce__deadline_in_ms(http->shared->transfer_ms);
    if (tierce__list_empty(&http->idle))
        tierce__cond_signal(&http->changed);
    tierce__list_push_back(&http->idle, &c->node);
}

static bool enter(struct tierce__http *http, struct tierce__http_connection *c,
                  struct MHD_Connection *connection)
{
    TIERCE_ASSERT(!c->is_counted);
    const struct sockaddr *from =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;
    if (http->addresses == NULL)
        return true;
    c->is_counted = tierce__addresses_enter(http->addresses, &c->address, from);
    if (c->is_counted)
        return true;
    char peer[TIERCE__PEER_BYTES];
    tierce__peer_print(peer, from);
    tierce__log_repeated(TIERCE_LOG_WARN, "serve_connection_refused", "port=%u peer=%s", http->port,
                         peer);
    return false;
}

static struct tierce__http_connection *begin(struct tierce__http *http,
                                             struct MHD_Connection *connection)
{
    int fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    struct tierce__http_connection *c = tierce__calloc(1, sizeof(*c));
    if (c == NULL) {
        (void)shutdown(fd, SHUT_RDWR); /* which libmicrohttpd will notice */
        return NULL;
    }
    c->fd = fd;
    tierce__list_init(&c->node);
    if (!enter(http, c, connection))
        (void)shutdown(fd, SHUT_RDWR);
    if (http->certificate != NULL)
        tierce__http_tls_begin(http, c, connection);
    tierce__lock_take(&http->lock);
    wait_for_request(http, c);
    if (++http->connection_count > http->connections_max) {
        http->excess++;
        tierce__cond_signal(&http->changed);
    }
    tierce__lock_drop(&http->lock);
    return c;
}

static void end(struct tierce__http *http, struct tierce__http_connection *c)
{
    if (c == NULL)
        return;
    tierce__lock_take(&http->lock);
    TIERCE_ASSERT(http->connection_count > 0);
    tierce__list_remove(&c->node);
    http->connection_count--;
    tierce__lock_drop(&http->lock);
    if (c->is_counted)
        tierce__addresses_leave(http->addresses, &c->address);
    tierce__http_credentials_drop(c->credentials);
    tierce__free(c);
}

void tierce__http_connection_notify(void *http, struct MHD_Connection *connection, void **context,
                                    enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *context = begin(http, connection);
    } else {
        end(http, *context);
        *context = NULL;
    }
}

/* Only its log reports that libmicrohttpd cannot accept. Without connections it then tries again
 * and again, and otherwise not before one of them has ended. Takes no lock, because the thread may
 * hold one. */
void tierce__http_connection_log(void *arg, const char *format, va_list values)
{
    struct tierce__http *http = arg;
    struct sockaddr_storage peer;
    int spare_fd = tierce__listen_spare();
    (void)format;
    (void)values;
    if (spare_fd < 0) {
        spare_fd = atomic_exchange(&http->spare_fd, -1);
        int fd = tierce__listen_accept(http->fd, &spare_fd, &peer);
        if (fd >= 0) /* a descriptor is free again: too late for this connection */
            close(fd);
        if (fd >= 0 || fd == -EMFILE) {
            atomic_store(&http->is_short, true);
            tierce__log_repeated(TIERCE_LOG_WARN, "serve_no_descriptor", "port=%u", http->port);
        }
    }
    int other_fd = spare_fd >= 0 ? atomic_exchange(&http->spare_fd, spare_fd) : -1;
    if (other_fd >= 0)
        close(other_fd);
}

void tierce__http_connection_has_request(struct MHD_Connection *connection)
{
    struct tierce__http_connection *c = connection_of(connection);
    if (c != NULL)
        tierce__list_remove(&c->node);
}

void tierce__http_connection_had_request(struct tierce__http *http,
                                         struct MHD_Connection *connection)
{
    tierce__lock_assert_held(&http->lock);
    struct tierce__http_connection *c = connection_of(connection);
    if (c != NULL)
        wait_for_request(http, c);
}
