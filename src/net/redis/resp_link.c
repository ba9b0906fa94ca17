/* SPDX-License-Identifier: Apache-2.0 */
#include "net/redis/resp_link.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/redis/resp_sentinel.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LOOK_INTERVAL_MS 100u
#define CALL_TIMEOUT_MS  1000u

/* Either a cluster, or a server, which with a sentinel may be another one each time. */
struct tierce__resp_link {
    struct tierce__resp_cluster *cluster;
    struct tierce__resp *server;
    struct tierce__resp_sentinel *sentinel;
    uint32_t wait_replicas, call_timeout_ms;
    /* Of the pipeline. */
    size_t appended, read;
    void *into; /* where the last answer goes, or NULL */
    size_t into_bytes;
    bool writes;
    bool leaves; /* the server is of no use: the next pipeline needs another */
    /* With a sentinel. */
    uint64_t look_ns;         /* it is not asked before */
    int look_rc;              /* its last result */
    bool repeats_look;        /* the last begin returned it without asking */
    uint64_t connects_before; /* of servers that were left */
    bool has_why;             /* why is newer than the server's */
    char why[TIERCE__RESP_WHY_BYTES];
    /* Ours at the servers and at the sentinels, or NULL. */
    char *passwords[2];
};

static int keep_password(char **copy, const char *password)
{
    if (password == NULL || password[0] == '\0')
        return 0;
    *copy = tierce__strdup(password);
    return *copy != NULL ? 0 : -ENOMEM;
}

static void forget_password(char *password)
{
    if (password != NULL)
        explicit_bzero(password, strlen(password));
    tierce__free(password);
}

int tierce__resp_link_create(struct tierce__resp_link **out, const struct tierce__resp_uri *uri,
                             char why[TIERCE__RESP_WHY_BYTES])
{
    struct tierce__resp_link *link = tierce__calloc(1, sizeof(*link));
    snprintf(why, TIERCE__RESP_WHY_BYTES, "%s", tierce_strerror(-ENOMEM));
    if (link == NULL)
        return -ENOMEM;
    link->wait_replicas = uri->wait_replicas;
    link->call_timeout_ms = uri->opts.call_timeout_ms;
    int rc = keep_password(&link->passwords[0], uri->opts.password);
    if (rc == 0 && uri->is_sentinel)
        rc = keep_password(&link->passwords[1], tierce__url_param(&uri->url, "sentinel_password"));
    if (rc == 0 && uri->is_sentinel)
        rc = tierce__resp_sentinel_create(&link->sentinel, uri);
    else if (rc == 0 && uri->is_cluster)
        rc = tierce__resp_cluster_create(&link->cluster, &uri->opts, uri->nodes, uri->node_count);
    else if (rc == 0)
        rc = tierce__resp_create(&link->server, &uri->opts, why);
    if (rc == 0)
        *out = link;
    else
        tierce__resp_link_close(link);
    return rc;
}

void tierce__resp_link_close(struct tierce__resp_link *link)
{
    if (link == NULL)
        return;
    tierce__resp_close(link->server);
    tierce__resp_sentinel_close(link->sentinel);
    tierce__resp_cluster_close(link->cluster);
    forget_password(link->passwords[0]);
    forget_password(link->passwords[1]);
    tierce__free(link);
}

bool tierce__resp_link_is_cluster(const struct tierce__resp_link *link)
{
    return link->cluster != NULL;
}

bool tierce__resp_link_is_connected(const struct tierce__resp_link *link)
{
    if (link->cluster != NULL)
        return tierce__resp_cluster_is_connected(link->cluster);
    return link->server != NULL && tierce__resp_is_connected(link->server);
}

uint64_t tierce__resp_link_connects(const struct tierce__resp_link *link)
{
    if (link->cluster != NULL)
        return tierce__resp_cluster_connects(link->cluster);
    return link->connects_before + (link->server != NULL ? tierce__resp_connects(link->server) : 0);
}

/* A cluster's pipeline asks the nodes again before it fails. */
bool tierce__resp_link_repeats(const struct tierce__resp_link *link)
{
    return link->repeats_look || (link->server != NULL && tierce__resp_repeats(link->server));
}

static int fail(struct tierce__resp_link *link, int rc, const char *why)
{
    TIERCE_DASSERT(rc < 0);
    snprintf(link->why, sizeof(link->why), "%s", why);
    link->has_why = true;
    return rc;
}

/* ---- a pipeline ------------------------------------------------------------------------------ */

/* Asks the sentinels for the master, which may be the same again. */
static int find_master(struct tierce__resp_link *link)
{
    link->repeats_look = tierce__now_ns() < link->look_ns;
    if (link->repeats_look) {
        link->has_why = true;
        return link->look_rc;
    }
    link->connects_before = tierce__resp_link_connects(link);
    tierce__resp_close(link->server);
    link->server = NULL;
    link->look_rc = tierce__resp_sentinel_open(link->sentinel, &link->server, link->why);
    link->has_why = link->look_rc != 0;
    link->look_ns = link->look_rc != 0 ? tierce__deadline_in_ms(LOOK_INTERVAL_MS) : 0;
    return link->look_rc;
}

static int begin_server(struct tierce__resp_link *link)
{
    if (link->leaves && link->server != NULL)
        tierce__resp_leave(link->server, link->why);
    link->leaves = false;
    link->has_why = false;
    link->repeats_look = false;
    if (link->sentinel != NULL && (link->server == NULL || !tierce__resp_is_ready(link->server))) {
        int rc = find_master(link);
        if (rc != 0)
            return rc;
    }
    return tierce__resp_begin(link->server);
}

int tierce__resp_link_begin(struct tierce__resp_link *link)
{
    link->appended = link->read = 0;
    link->into = NULL;
    link->writes = false;
    if (link->cluster == NULL)
        return begin_server(link);
    tierce__resp_cluster_begin(link->cluster);
    return 0;
}

int tierce__resp_link_append(struct tierce__resp_link *link, size_t key,
                             const char *const *arguments, const size_t *bytes, size_t count)
{
    TIERCE_DASSERT(link->read == 0);
    link->appended++;
    if (link->cluster == NULL)
        return tierce__resp_append(link->server, arguments, bytes, count);
    return tierce__resp_cluster_append(link->cluster, key, arguments, bytes, count);
}

int tierce__resp_link_append_borrowed(struct tierce__resp_link *link, size_t key,
                                      const char *const *arguments, const size_t *bytes,
                                      size_t count)
{
    TIERCE_DASSERT(link->read == 0);
    link->appended++;
    if (link->cluster == NULL)
        return tierce__resp_append_borrowed(link->server, arguments, bytes, count);
    return tierce__resp_cluster_append_borrowed(link->cluster, key, arguments, bytes, count);
}

void tierce__resp_link_into(struct tierce__resp_link *link, void *memory, size_t capacity)
{
    TIERCE_DASSERT(link->read == 0);
    TIERCE_DASSERT(link->appended > 0);
    link->into = memory;
    link->into_bytes = capacity;
    if (link->cluster != NULL)
        tierce__resp_cluster_into(link->cluster, memory, capacity);
}

void tierce__resp_link_writes(struct tierce__resp_link *link)
{
    TIERCE_DASSERT(link->read == 0);
    link->writes = true;
    if (link->cluster != NULL)
        tierce__resp_cluster_wait(link->cluster, link->wait_replicas);
}

static bool waits(const struct tierce__resp_link *link)
{
    return link->writes && link->wait_replicas > 0;
}

int tierce__resp_link_flush(struct tierce__resp_link *link, uint64_t deadline_ns)
{
    TIERCE_DASSERT(link->read == 0);
    if (link->cluster != NULL)
        return tierce__resp_cluster_run(link->cluster, deadline_ns);
    if (deadline_ns == 0)
        deadline_ns = tierce__deadline_in_ms(link->call_timeout_ms != 0 ? link->call_timeout_ms
                                                                        : CALL_TIMEOUT_MS);
    if (waits(link)) {
        int rc = tierce__resp_append_wait(link->server, link->wait_replicas, deadline_ns);
        if (rc != 0)
            return rc;
    }
    return tierce__resp_flush(link->server, deadline_ns);
}

static bool is_of_no_use(const struct tierce__resp_value *value)
{
    return tierce__resp_is_error(value, "READONLY") || tierce__resp_is_error(value, "LOADING") ||
           tierce__resp_is_error(value, "MASTERDOWN");
}

int tierce__resp_link_read_into(struct tierce__resp_link *link, void *memory, size_t capacity,
                                struct tierce__resp_value *out, uint64_t deadline_ns)
{
    TIERCE_ASSERT(link->cluster == NULL);
    TIERCE_DASSERT(link->read < link->appended);
    link->read++;
    int rc = memory != NULL
                 ? tierce__resp_read_into(link->server, memory, capacity, out, deadline_ns)
                 : tierce__resp_read(link->server, out, deadline_ns);
    if (rc == 0 && is_of_no_use(out)) {
        link->leaves = true;
        fail(link, TIERCE_E_DOWN, tierce__resp_words(out));
    }
    return rc;
}

/* The next answer of a server, and behind the last one that of WAIT. */
static int read_server(struct tierce__resp_link *link, struct tierce__resp_value *out,
                       uint64_t deadline_ns)
{
    TIERCE_DASSERT(link->read < link->appended);
    struct tierce__resp_value replicas;
    bool is_last = link->read + 1 == link->appended;
    int rc = tierce__resp_link_read_into(link, is_last ? link->into : NULL, link->into_bytes, out,
                                         deadline_ns);
    if (rc != 0 || !is_last || !waits(link))
        return rc;
    rc = tierce__resp_read(link->server, &replicas, deadline_ns);
    if (rc != 0 || out->type == TIERCE__RESP_ERROR)
        return rc;
    if (replicas.type == TIERCE__RESP_INTEGER && replicas.integer >= (int64_t)link->wait_replicas)
        return 0;
    return fail(link, TIERCE_E_DEADLINE, "too few replicas have confirmed the write");
}

int tierce__resp_link_read(struct tierce__resp_link *link, struct tierce__resp_value *out,
                           uint64_t deadline_ns)
{
    TIERCE_DASSERT(link->read < link->appended);
    if (link->cluster == NULL)
        return read_server(link, out, deadline_ns);
    *out = *tierce__resp_cluster_value(link->cluster, link->read++);
    return 0;
}

int tierce__resp_link_call(struct tierce__resp_link *link, size_t key, const char *const *arguments,
                           const size_t *bytes, size_t count, struct tierce__resp_value *out,
                           uint64_t deadline_ns)
{
    int rc = tierce__resp_link_begin(link);
    if (rc == 0)
        rc = tierce__resp_link_append(link, key, arguments, bytes, count);
    if (rc != 0)
        return rc;
    tierce__resp_link_writes(link);
    rc = tierce__resp_link_flush(link, deadline_ns);
    return rc == 0 ? tierce__resp_link_read(link, out, deadline_ns) : rc;
}

int tierce__resp_link_node(struct tierce__resp_link *link, size_t i, struct tierce__resp **out)
{
    if (link->cluster != NULL)
        return tierce__resp_cluster_node(link->cluster, i, out);
    if (i > 0)
        return -ENOENT;
    *out = link->server;
    return 0;
}

static const char *last_why(const struct tierce__resp_link *link)
{
    if (link->cluster != NULL)
        return tierce__resp_cluster_why(link->cluster);
    return link->has_why || link->server == NULL ? link->why : tierce__resp_why(link->server);
}

/* A server that lies may repeat a password as the name of another server, too. */
const char *tierce__resp_link_why(const struct tierce__resp_link *link)
{
    const char *why = last_why(link);
    for (size_t i = 0; i < 2; i++) {
        if (link->passwords[i] != NULL && strstr(why, link->passwords[i]) != NULL)
            return "the server's message is omitted because it repeats the password";
    }
    return why;
}
