/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/nixl/nixl_objects.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "store/remote/links.h"
#include "store/remote/nixl/nixl_agents.h"
#include "store/remote/s3/s3_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LINKS_MAX 25u /* connections of the plug-in's client */

/* The last byte of the memory before a read. A read that leaves it there was too short, unless the
 * object has this byte there; one object in 256 has, and is read again without NIXL. */
#define MARK 0xa7u

/* ---- the half by NIXL: a store of links ------------------------------------------------------ */

struct nixl_objects {
    struct tierce__nixl_agents *agents;
    char prefix[TIERCE__S3_PREFIX_MAX + 1];
    bool has_paths;
    uint32_t links;
};

static int transfer(void *link, enum tierce__nixl_operation operation,
                    const struct tierce_plugin_name *name, void *memory, uint64_t offset,
                    uint64_t bytes)
{
    const struct nixl_objects *objects = link;
    char key[TIERCE__S3_KEY_BYTES];
    if (!tierce__nixl_agents_have(objects->agents, memory, bytes))
        return TIERCE_E_UNSUPPORTED;
    if (objects->has_paths && !tierce__s3_is_path(name))
        return TIERCE_E_ARGUMENT;
    tierce__s3_key(key, objects->prefix, objects->has_paths, name);
    return tierce__nixl_transfer(objects->agents,
                                 &(struct tierce__nixl_transfer){.operation = operation,
                                                                 .key = key,
                                                                 .memory = memory,
                                                                 .bytes = bytes,
                                                                 .offset = offset});
}

/* NIXL cannot end a transfer: one that is late is abandoned (links.h). */
static int get(void *link, const struct tierce_plugin_name *name, void *memory, uint64_t offset,
               uint64_t length, uint64_t deadline_ns)
{
    uint8_t *last = (uint8_t *)memory + length - 1;
    (void)deadline_ns;
    *last = MARK;
    int rc = transfer(link, TIERCE__NIXL_READ, name, memory, offset, length);
    return rc == 0 && *last == MARK ? TIERCE_E_FORMAT : rc;
}

static int put(void *link, const struct tierce_plugin_name *name, const void *memory,
               uint64_t length, uint64_t deadline_ns)
{
    (void)deadline_ns;
    return transfer(link, TIERCE__NIXL_WRITE, name, (void *)(uintptr_t)memory, 0, length);
}

static int open_link(void **link, void *store)
{
    *link = store;
    return 0;
}

static void close_link(void *link)
{
    (void)link;
}

static void close_objects(void *store)
{
    struct nixl_objects *objects = store;
    tierce__nixl_agents_close(objects->agents);
    tierce__free(objects);
}

/* Receives nothing but GET and PUT. */
static const struct tierce__client objects_client = {.table = {.caps = TIERCE_PLUGIN_RANGES,
                                                               .close = close_objects,
                                                               .link_open = open_link,
                                                               .link_close = close_link,
                                                               .get = get,
                                                               .put = put},
                                                     .scheme = TIERCE__NIXL_OBJECTS_SCHEME};

/* ---- its agents ------------------------------------------------------------------------------ */

static int refuse(char why[TIERCE__CONNECTOR_WHY_BYTES], const char *what)
{
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "%s", what);
    return TIERCE_E_CONFIG;
}

/* The URL that s3:// accepts. [borrow until *url is cleared] */
static struct tierce__url without_library(const struct tierce__url *url)
{
    struct tierce__url s3 = *url;
    s3.param_count = 0;
    for (size_t i = 0; i < url->param_count; i++) {
        if (strcmp(url->params[i].name, "library") != 0)
            s3.params[s3.param_count++] = url->params[i];
    }
    return s3;
}

/* The place and the keys of the store, as the plug-in's parameters. */
static int open_agents(struct tierce__nixl_agents **out, const struct tierce__s3_config *config,
                       const struct tierce__url *url, struct tierce__nixl_agents_opts *opts,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const char *bucket = url->hosts[0].name;
    const char *host = config->host;
    char endpoint[sizeof(config->origin)], threads[8];
    bool is_path = config->bucket[0] != '\0';
    if (!is_path)
        host += strlen(bucket) + 1; /* "bucket.host" */
    snprintf(endpoint, sizeof(endpoint), "%s://%s", config->is_plain ? "http" : "https", host);
    snprintf(threads, sizeof(threads), "%u", LINKS_MAX);
    /* Checksums that are not required: with them the client frames what it uploads, and a server
     * that does not know the framing stores it as a part of the object. */
    struct tierce__nixl_param params[] = {
        {"access_key", config->credentials.access_key},
        {"secret_key", config->credentials.secret_key},
        {"bucket", bucket},
        {"endpoint_override", endpoint},
        {"scheme", config->is_plain ? "http" : "https"},
        {"region", config->region},
        {"use_virtual_addressing", is_path ? "false" : "true"},
        {"req_checksum", "required"},
        {"resp_checksum", "required"},
        {"num_threads", threads},
        {NULL, NULL},
    };
    size_t count = sizeof(params) / sizeof(*params) - 1;
    if (config->ca_file != NULL)
        params[count++] = (struct tierce__nixl_param){"ca_bundle", config->ca_file};
    opts->size = sizeof(*opts);
    opts->library = tierce__url_param(url, "library");
    opts->plugin = "OBJ";
    opts->params = params;
    opts->param_count = count;
    opts->is_shared = true; /* each of its transfers has a result of its own */
    return tierce__nixl_agents_open(out, opts, why);
}

static int read_config(struct tierce__s3_config *config, const struct tierce__url *url,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const struct tierce__url s3_url = without_library(url);
    int rc = tierce__s3_configure(config, &s3_url, why);
    if (rc == 0 && (config->login != NULL || config->credentials.token[0] != '\0'))
        rc = refuse(why, "s3+nixl:// requires access keys that do not expire, because NIXL takes "
                         "them once; s3:// accepts temporary ones");
    if (rc == 0 && config->remember_ms > 0)
        rc = refuse(why, "URL: s3+nixl:// does not accept remember, because it does not see the "
                         "lengths of the objects that it writes");
    return rc;
}

static int open_objects(struct nixl_objects **out, const struct tierce__url *url, uint8_t *memory,
                        uint64_t bytes, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__nixl_agents_opts opts = {.memory = memory, .memory_bytes = bytes};
    struct tierce__s3_config *config = tierce__calloc(1, sizeof(*config));
    struct nixl_objects *objects = tierce__calloc(1, sizeof(*objects));
    int rc = config != NULL && objects != NULL ? read_config(config, url, why) : -ENOMEM;
    if (rc == 0)
        rc = open_agents(&objects->agents, config, url, &opts, why);
    if (rc == 0) {
        memcpy(objects->prefix, config->prefix, sizeof(objects->prefix));
        objects->has_paths = config->has_paths;
        objects->links =
            config->connections < LINKS_MAX ? (uint32_t)config->connections : LINKS_MAX;
        *out = objects;
        objects = NULL;
    }
    if (config != NULL)
        tierce__s3_config_clear(config);
    tierce__free(config);
    tierce__free(objects);
    return rc;
}

int tierce__nixl_objects_check(const struct tierce__url *url, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    uint8_t memory[1];
    struct nixl_objects *objects;
    int rc = open_objects(&objects, url, memory, sizeof(memory), why);
    if (rc == 0)
        close_objects(objects);
    return rc;
}

/* ---- both halves ----------------------------------------------------------------------------- */

#define S3_NIXL_MAGIC 0x53334e58u

struct s3_nixl {
    struct tierce__connector base;
    uint32_t magic;
    struct tierce__connector *s3, *nixl;
    struct tierce__lock lock;
    /* Under the lock. */
    bool nixl_failed_last;                    /* unless S3 has had a failure since */
    char s3_why[TIERCE__CONNECTOR_WHY_BYTES]; /* at that time */
};

/* A GET or PUT: first by NIXL, then, if that failed, by S3. */
struct s3_nixl_task {
    struct s3_nixl *owner;
    struct tierce__store_req *req;
    struct tierce__store_req call;
    int failure; /* of NIXL; TIERCE_E_UNSUPPORTED: it was not tried */
};

static struct s3_nixl *both_of(struct tierce__connector *connector)
{
    struct s3_nixl *both = (struct s3_nixl *)connector;
    TIERCE_CHECK_MAGIC(both, S3_NIXL_MAGIC);
    return both;
}

static void pass_to_s3(struct s3_nixl *both, struct tierce__store_req *req)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    both->s3->ops->submit(both->s3, req);
}

static void answer_task(struct s3_nixl_task *task)
{
    struct tierce__store_req *req = task->req;
    req->status = task->call.status;
    req->found = task->call.found;
    req->repeats = task->call.repeats;
    req->connected = task->call.connected;
    tierce__free(task);
    req->done(req);
}

static void begin_call(struct s3_nixl_task *task, tierce__store_done_fn *done)
{
    task->call = *task->req;
    task->call.done = done;
    task->call.arg = task;
}

/* A request has ended with a failure of NIXL, or of S3. */
static void note_failure(struct s3_nixl *both, bool is_of_nixl)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    both->s3->ops->why(both->s3, why);
    tierce__lock_take(&both->lock);
    both->nixl_failed_last = is_of_nixl;
    memcpy(both->s3_why, why, sizeof(both->s3_why));
    tierce__lock_drop(&both->lock);
}

static void s3_is_done(struct tierce__store_req *call)
{
    struct s3_nixl_task *task = call->arg;
    if (call->status != 0 && call->status != TIERCE_E_MISS)
        note_failure(task->owner, false);
    bool is_failure = task->failure != TIERCE_E_UNSUPPORTED && task->failure != TIERCE_E_FORMAT;
    if (call->status == 0 && is_failure)
        tierce__nixl_log_failed(
            call->op == TIERCE__STORE_GET ? TIERCE__NIXL_READ : TIERCE__NIXL_WRITE, task->failure);
    answer_task(task);
}

static void move_by_s3(struct s3_nixl_task *task, int failure)
{
    task->failure = failure;
    begin_call(task, s3_is_done);
    pass_to_s3(task->owner, &task->call);
}

static void nixl_is_done(struct tierce__store_req *call)
{
    struct s3_nixl_task *task = call->arg;
    int rc = call->status;
    if (rc == TIERCE_E_DEADLINE)
        note_failure(task->owner, true);
    if (rc == 0 || rc == TIERCE_E_DEADLINE || rc == TIERCE_E_CANCELLED || rc == TIERCE_E_CLOSED) {
        answer_task(task);
        return;
    }
    move_by_s3(task, rc);
}

/* While a transfer of NIXL is in progress after its deadline, S3 moves the bytes: otherwise each
 * request would end at its deadline too, although S3 can be reached. */
static bool has_late_transfer(struct s3_nixl *both)
{
    struct tierce__tier_stats nixl = {0};
    both->nixl->ops->stats(both->nixl, &nixl);
    return nixl.calls_hanging > 0;
}

static void submit(struct tierce__connector *connector, struct tierce__store_req *req)
{
    struct s3_nixl *both = both_of(connector);
    bool moves_bytes = req->op == TIERCE__STORE_GET || req->op == TIERCE__STORE_PUT;
    struct s3_nixl_task *task = moves_bytes ? tierce__calloc(1, sizeof(*task)) : NULL;
    if (task == NULL) {
        pass_to_s3(both, req);
        return;
    }
    task->owner = both;
    task->req = req;
    if (has_late_transfer(both)) {
        move_by_s3(task, TIERCE_E_UNSUPPORTED);
        return;
    }
    begin_call(task, nixl_is_done);
    both->nixl->ops->submit(both->nixl, &task->call);
}

static void get_why(struct tierce__connector *connector, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct s3_nixl *both = both_of(connector);
    both->s3->ops->why(both->s3, why);
    tierce__lock_take(&both->lock);
    /* After lookups and pings that failed, only the text of S3 shows that its failure is newer. */
    bool is_of_nixl = both->nixl_failed_last && strcmp(both->s3_why, why) == 0;
    tierce__lock_drop(&both->lock);
    if (is_of_nixl || why[0] == '\0')
        both->nixl->ops->why(both->nixl, why);
}

static void get_stats(struct tierce__connector *connector, struct tierce__tier_stats *out)
{
    struct s3_nixl *both = both_of(connector);
    struct tierce__tier_stats nixl = {0};
    both->s3->ops->stats(both->s3, out);
    both->nixl->ops->stats(both->nixl, &nixl);
    out->connections += nixl.connections;
    out->connects += nixl.connects;
    out->waiting += nixl.waiting;
    out->calls_hanging += nixl.calls_hanging;
}

/* S3 last: until NIXL's half is closed, it passes failed requests on. */
static bool close_both(struct tierce__connector *connector, uint64_t deadline_ns)
{
    struct s3_nixl *both = both_of(connector);
    bool all = both->nixl == NULL || both->nixl->ops->close(both->nixl, deadline_ns);
    if (both->s3 != NULL)
        all &= both->s3->ops->close(both->s3, deadline_ns);
    tierce__lock_fini(&both->lock);
    both->magic = 0;
    tierce__free(both);
    return all;
}

static const struct tierce__connector_ops both_ops = {
    .scheme = "s3", .submit = submit, .why = get_why, .stats = get_stats, .close = close_both};

static int open_halves(struct s3_nixl *both, const struct tierce__connector_source *source,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const struct tierce__url s3_url = without_library(source->url);
    struct tierce__connector_source s3_source = *source;
    struct nixl_objects *objects = NULL;
    uint8_t *memory = NULL;
    uint64_t bytes = 0;
    tierce__pool_mapping(source->opts->pool, &memory, &bytes);
    int rc = open_objects(&objects, source->url, memory, bytes, why);
    if (rc != 0)
        return rc;
    rc = tierce__links_create(&both->nixl,
                              &(struct tierce__links_opts){.client = &objects_client,
                                                           .store = objects,
                                                           .links = objects->links,
                                                           .store_name = source->store_name});
    s3_source.url = &s3_url;
    return rc == 0 ? tierce__s3_client.make(&both->s3, &s3_source, why) : rc;
}

static int make_s3_nixl(struct tierce__connector **out,
                        const struct tierce__connector_source *source,
                        char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct s3_nixl *both = tierce__calloc(1, sizeof(*both));
    if (both == NULL)
        return -ENOMEM;
    both->magic = S3_NIXL_MAGIC;
    both->base.ops = &both_ops;
    tierce__lock_init(&both->lock, TIERCE__LOCK_CONNECTOR);
    int rc = open_halves(both, source, why);
    if (rc != 0) {
        (void)close_both(&both->base, TIERCE__DEADLINE_NEVER); /* nothing is in progress */
        return rc;
    }
    both->base.caps = both->s3->caps;
    *out = &both->base;
    return 0;
}

const struct tierce__client tierce__s3_nixl_client = {.scheme = TIERCE__NIXL_OBJECTS_SCHEME,
                                                      .make = make_s3_nixl};
