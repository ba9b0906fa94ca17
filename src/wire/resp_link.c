/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/resp_link.h"
#include "base/alloc.h"

#include <errno.h>

/* Either client is NULL. */
struct tierce__resp_link {
    struct tierce__resp *server;
    struct tierce__resp_cluster *cluster;
    size_t read; /* answers of the cluster's batch */
    uint32_t wait_replicas;
};

int tierce__resp_link_create(struct tierce__resp_link **out, const struct tierce__resp_uri *uri,
                             char why[TIERCE__RESP_WHY_BYTES])
{
    struct tierce__resp_link *link = tierce__calloc(1, sizeof(*link));
    if (link == NULL)
        return -ENOMEM;
    link->wait_replicas = uri->wait_replicas;
    int rc = uri->is_cluster ? tierce__resp_cluster_create(&link->cluster, &uri->opts, uri->nodes,
                                                           uri->node_count)
                             : tierce__resp_create(&link->server, &uri->opts, why);
    if (rc == 0)
        *out = link;
    else
        tierce__free(link);
    return rc;
}

void tierce__resp_link_close(struct tierce__resp_link *link)
{
    if (link == NULL)
        return;
    tierce__resp_close(link->server);
    tierce__resp_cluster_close(link->cluster);
    tierce__free(link);
}

bool tierce__resp_link_is_cluster(const struct tierce__resp_link *link)
{
    return link->cluster != NULL;
}

int tierce__resp_link_begin(struct tierce__resp_link *link)
{
    if (link->cluster == NULL)
        return tierce__resp_begin(link->server);
    tierce__resp_cluster_begin(link->cluster);
    link->read = 0;
    return 0;
}

int tierce__resp_link_append(struct tierce__resp_link *link, size_t key,
                             const char *const *arguments, const size_t *bytes, size_t count)
{
    if (link->cluster == NULL)
        return tierce__resp_append(link->server, arguments, bytes, count);
    return tierce__resp_cluster_append(link->cluster, key, arguments, bytes, count);
}

void tierce__resp_link_writes(struct tierce__resp_link *link)
{
    if (link->cluster != NULL)
        tierce__resp_cluster_wait(link->cluster, link->wait_replicas);
}

int tierce__resp_link_flush(struct tierce__resp_link *link, uint64_t deadline_ns)
{
    if (link->cluster == NULL)
        return tierce__resp_flush(link->server, deadline_ns);
    return tierce__resp_cluster_run(link->cluster, deadline_ns);
}

int tierce__resp_link_read(struct tierce__resp_link *link, struct tierce__resp_value *out,
                           uint64_t deadline_ns)
{
    if (link->cluster == NULL)
        return tierce__resp_read(link->server, out, deadline_ns);
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

const char *tierce__resp_link_why(const struct tierce__resp_link *link)
{
    return link->cluster != NULL ? tierce__resp_cluster_why(link->cluster)
                                 : tierce__resp_why(link->server);
}
