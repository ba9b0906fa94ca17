/* SPDX-License-Identifier: Apache-2.0 */
#include "nixl/nixl_node.h"
#include "nixl/nixl_ranges.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log/log_repeat.h"
#include "base/text/url.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "store/remote/links.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define SCHEME    "tierce"
#define PREFIX    "nixl:"
#define CALL_MS   30000u
#define PARTS_MAX 65536u /* that wait for a thread */

_Static_assert(TIERCE__NIXL_WHY_BYTES == TIERCE__CONNECTOR_WHY_BYTES, "one message for both");

struct node_link {
    struct tierce__list node;
    void *opened;
};

struct tierce__nixl_node {
    struct tierce__client client;
    void *store;
    struct tierce__workers *workers; /* as many as links */
    struct node_link *links;
    struct tierce__nixl_ranges *ranges; /* of files */
    struct tierce__lock lock;
    struct tierce__cond ended; /* a request has; under the lock */
    struct tierce__list idle;  /* links; under the lock */
};

struct node_part {
    struct tierce__task task;
    struct tierce__nixl_request *request;
    struct tierce__nixl_part what;
    struct tierce_plugin_name name; /* with the prefix */
    char text[TIERCE_PLUGIN_NAME_MAX];
};

struct tierce__nixl_request {
    struct tierce__nixl_node *node;
    _Atomic size_t left; /* parts that have not ended; released by the last, acquired by status */
    _Atomic int status;
    _Atomic bool is_released; /* relaxed: parts that see it are left out */
    size_t count;
    struct node_part parts[];
};

/* ---- calls, on the threads ------------------------------------------------------------------- */

static int find(struct tierce__nixl_node *node, void *link, const struct node_part *part)
{
    _Atomic size_t found = 0;
    int rc = node->client.find(link, &part->name, 1, &found, tierce__deadline_in_ms(CALL_MS));
    if (rc == 0 && part->what.found != NULL)
        *part->what.found = found == 1;
    return rc == 0 && part->what.found == NULL && found == 0 ? TIERCE_E_MISS : rc;
}

static int call(struct tierce__nixl_node *node, void *link, const struct node_part *part)
{
    const struct tierce_plugin *table = &node->client.table;
    const struct tierce__nixl_part *what = &part->what;
    uint64_t deadline_ns = tierce__deadline_in_ms(CALL_MS);
    switch (what->op) {
    case TIERCE__NIXL_PART_READ:
        return table->get(link, &part->name, what->memory, what->offset, what->bytes, deadline_ns);
    case TIERCE__NIXL_PART_WRITE:
        return table->put(link, &part->name, what->memory, what->bytes, deadline_ns);
    case TIERCE__NIXL_PART_FIND:
        return find(node, link, part);
    }
    return TIERCE_E_ARGUMENT;
}

/* The request may be freed when this returns. */
static void end_part(struct node_part *part, int rc)
{
    struct tierce__nixl_request *request = part->request;
    struct tierce__nixl_node *node = request->node;
    int none = 0;
    if (rc != 0)
        atomic_compare_exchange_strong(&request->status, &none, rc);
    tierce__lock_take(&node->lock);
    size_t before = atomic_fetch_sub(&request->left, 1);
    TIERCE_ASSERT(before > 0);
    if (before == 1)
        tierce__cond_broadcast(&node->ended);
    tierce__lock_drop(&node->lock);
}

static void run_part(struct tierce__task *task)
{
    struct node_part *part = TIERCE__CONTAINER_OF(task, struct node_part, task);
    struct tierce__nixl_node *node = part->request->node;
    if (atomic_load_explicit(&part->request->is_released, memory_order_relaxed)) {
        end_part(part, -ECANCELED);
        return;
    }
    tierce__lock_take(&node->lock);
    TIERCE_ASSERT(!tierce__list_empty(&node->idle)); /* a link for each thread */
    struct node_link *link = TIERCE__CONTAINER_OF(node->idle.next, struct node_link, node);
    tierce__list_remove(&link->node);
    tierce__lock_drop(&node->lock);
    int rc = call(node, link->opened, part);
    if (rc != 0 && rc != TIERCE_E_MISS)
        tierce__log_repeated(TIERCE_LOG_WARN, "nixl_call_failed", "err=\"%s\" why=\"%s\"",
                             tierce_strerror(rc), node->client.table.why(link->opened));
    tierce__lock_take(&node->lock);
    tierce__list_push_front(&node->idle, &link->node);
    tierce__lock_drop(&node->lock);
    end_part(part, rc);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Writes the name of a part's value. */
static int set_name(struct node_part *part, const struct tierce__nixl_part *what,
                    const char *prefix)
{
    char mark[] = TIERCE__NIXL_FILE_MARK, offset[24] = "";
    size_t before = strlen(prefix), marked = sizeof(mark) - 1;
    bool has_mark = what->name_bytes >= marked && memcmp(what->name, mark, marked) == 0;
    if (what->is_range && what->name_bytes >= TIERCE__NIXL_FILE_ID_BYTES)
        return TIERCE_E_LIMIT;
    if (what->name_bytes == 0 || memchr(what->name, '\0', what->name_bytes) != NULL)
        return TIERCE_E_LIMIT;
    if (what->is_range)
        snprintf(offset, sizeof(offset), "@%llu", (unsigned long long)what->offset);
    else if (has_mark)
        return TIERCE_E_UNSUPPORTED;
    else
        mark[0] = '\0';
    size_t rest = strlen(mark) + what->name_bytes + strlen(offset);
    if (before > sizeof(part->text) || rest > sizeof(part->text) - before)
        return TIERCE_E_LIMIT;
    const struct {
        const char *text;
        size_t bytes;
    } pieces[] = {{prefix, before},
                  {mark, strlen(mark)},
                  {what->name, what->name_bytes},
                  {offset, strlen(offset)}};
    size_t at = 0;
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        memcpy(part->text + at, pieces[i].text, pieces[i].bytes);
        at += pieces[i].bytes;
    }
    part->name = (struct tierce_plugin_name){.text = part->text, .bytes = at};
    return 0;
}

static int set_part(struct node_part *part, const struct tierce__nixl_part *what,
                    struct tierce__nixl_node *node)
{
    bool moves = what->op != TIERCE__NIXL_PART_FIND;
    if (what->op == TIERCE__NIXL_PART_WRITE && !what->is_range && what->offset != 0)
        return TIERCE_E_UNSUPPORTED;
    if (moves && (what->bytes == 0 || what->memory == NULL))
        return TIERCE_E_ARGUMENT;
    int rc = set_name(part, what, node->client.prefix);
    if (rc == 0 && moves && what->is_range) {
        char id[TIERCE__NIXL_FILE_ID_BYTES];
        snprintf(id, sizeof(id), "%.*s", (int)what->name_bytes, what->name);
        rc = tierce__nixl_ranges_note(node->ranges, id, what->offset, what->bytes);
        if (rc == TIERCE_E_UNSUPPORTED)
            tierce__log_repeated(TIERCE_LOG_WARN, "nixl_range_refused",
                                 "offset=%llu bytes=%llu reason=\"it overlaps another range of the "
                                 "file, and each range is stored for itself\"",
                                 (unsigned long long)what->offset, (unsigned long long)what->bytes);
    }
    part->what = *what;
    if (what->is_range)
        part->what.offset = 0; /* in its value */
    part->task.run = run_part;
    return rc;
}

int tierce__nixl_request_create(struct tierce__nixl_request **out, struct tierce__nixl_node *node,
                                const struct tierce__nixl_part *parts, size_t count)
{
    int rc = 0;
    if (count == 0 || count > PARTS_MAX)
        return TIERCE_E_ARGUMENT;
    struct tierce__nixl_request *request =
        tierce__calloc(1, sizeof(*request) + count * sizeof(request->parts[0]));
    if (request == NULL)
        return -ENOMEM;
    request->node = node;
    request->count = count;
    for (size_t i = 0; i < count && rc == 0; i++) {
        request->parts[i].request = request;
        rc = set_part(&request->parts[i], &parts[i], node);
    }
    if (rc != 0) {
        tierce__free(request);
        return rc;
    }
    *out = request;
    return 0;
}

void tierce__nixl_request_start(struct tierce__nixl_request *request)
{
    TIERCE_ASSERT(atomic_load(&request->left) == 0);
    atomic_store(&request->status, 0);
    atomic_store(&request->left, request->count);
    for (size_t i = 0, count = request->count; i < count; i++) {
        if (!tierce__workers_submit(request->node->workers, &request->parts[i].task))
            end_part(&request->parts[i], TIERCE_E_LIMIT);
    }
}

int tierce__nixl_request_status(struct tierce__nixl_request *request)
{
    if (atomic_load(&request->left) > 0)
        return TIERCE__NIXL_UNDER_WAY;
    /* The last part dropped the lock after this: then it no longer touches the request. */
    tierce__lock_take(&request->node->lock);
    tierce__lock_drop(&request->node->lock);
    return atomic_load(&request->status);
}

int tierce__nixl_request_wait(struct tierce__nixl_request *request)
{
    struct tierce__nixl_node *node = request->node;
    tierce__lock_take(&node->lock);
    while (atomic_load(&request->left) > 0)
        tierce__cond_wait(&node->ended, &node->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&node->lock);
    return atomic_load(&request->status);
}

void tierce__nixl_request_release(struct tierce__nixl_request *request)
{
    if (request == NULL)
        return;
    atomic_store(&request->is_released, true);
    (void)tierce__nixl_request_wait(request);
    tierce__free(request);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int open_links(struct tierce__nixl_node *node)
{
    uint32_t count = node->client.links;
    node->links = tierce__calloc(count, sizeof(*node->links));
    if (node->links == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        struct node_link *link = &node->links[i];
        void *opened = tierce__calloc(1, node->client.link_bytes);
        int rc = opened == NULL ? -ENOMEM : node->client.table.link_open(&opened, node->store);
        if (rc != 0 && opened != NULL)
            node->client.table.link_close(opened);
        if (rc != 0)
            return rc;
        link->opened = opened;
        tierce__list_push_front(&node->idle, &link->node);
    }
    return 0;
}

static int open_store(struct tierce__nixl_node *node, const struct tierce__url *url,
                      const char *text, char why[TIERCE__NIXL_WHY_BYTES])
{
    static const struct tierce__url_number connections = {"connections", TIERCE__URL_COUNT, 1,
                                                          TIERCE__LINKS_MAX};
    const struct tierce__connector_opts opts = {.size = sizeof(opts)};
    const struct tierce__connector_source source = {
        .url = url, .text = text, .store_name = SCHEME "://", .opts = &opts};
    uint64_t links = node->client.links;
    if (strcmp(url->scheme, SCHEME) != 0) {
        snprintf(why, TIERCE__NIXL_WHY_BYTES,
                 "the URL must be that of a node: " SCHEME "://host:port");
        return TIERCE_E_CONFIG;
    }
    int rc = tierce__url_param_number(url, &links, &connections, why);
    if (rc != 0)
        return rc;
    node->client.links = (uint32_t)links;
    node->store = tierce__calloc(1, node->client.store_bytes);
    rc = node->store == NULL ? -ENOMEM
                             : node->client.open(&node->store, &node->client, &source, why);
    if (rc == 0 && tierce__url_param(url, "prefix") == NULL)
        node->client.prefix = PREFIX;
    return rc;
}

int tierce__nixl_node_open(struct tierce__nixl_node **out, const char *url,
                           char why[TIERCE__NIXL_WHY_BYTES])
{
    struct tierce__url parsed = {0};
    why[0] = '\0';
    int rc = tierce__url_parse(&parsed, url, why);
    struct tierce__nixl_node *node = rc == 0 ? tierce__calloc(1, sizeof(*node)) : NULL;
    if (node == NULL) {
        tierce__url_clear(&parsed);
        return rc != 0 ? rc : -ENOMEM;
    }
    tierce__lock_init(&node->lock, TIERCE__LOCK_CONNECTOR);
    tierce__cond_init(&node->ended);
    tierce__list_init(&node->idle);
    node->client = tierce__redis_client;
    node->ranges = tierce__nixl_ranges_create();
    rc = node->ranges != NULL ? open_store(node, &parsed, url, why) : -ENOMEM;
    if (rc == 0)
        rc = open_links(node);
    if (rc == 0)
        rc = tierce__workers_create(&node->workers, node->client.links, PARTS_MAX);
    tierce__url_clear(&parsed);
    if (rc == 0) {
        *out = node;
        return 0;
    }
    if (why[0] == '\0')
        snprintf(why, TIERCE__NIXL_WHY_BYTES, "%s", tierce_strerror(rc));
    tierce__nixl_node_close(node);
    return rc;
}

void tierce__nixl_node_close(struct tierce__nixl_node *node)
{
    if (node == NULL)
        return;
    tierce__workers_destroy(node->workers);
    for (uint32_t i = 0; node->links != NULL && i < node->client.links; i++) {
        if (node->links[i].opened != NULL)
            node->client.table.link_close(node->links[i].opened);
    }
    tierce__free(node->links);
    if (node->store != NULL)
        node->client.table.close(node->store);
    tierce__nixl_ranges_destroy(node->ranges);
    tierce__cond_fini(&node->ended);
    tierce__lock_fini(&node->lock);
    tierce__free(node);
}
