/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connector through a manager: requests, its thread, open and close.
 *
 * Other threads append requests to `arrived`, and storages' connectors their answers to `answered`,
 * and wake the thread. All else is the thread's alone, so nothing but these lists needs the lock. A
 * get that has its bytes is answered by the thread that brought them: waking this one for each
 * chunk would cost more than all else that a pool adds to a hit.
 *
 * Close. Nothing new begins. Lookups, and gets that no storage has, are cancelled at once. Writes
 * continue for all but the last second (or half of the time, if that is less); then sessions end
 * with what was written. After that the storages' connectors are closed, which answers their
 * requests, and with them the rest of ours.
 */
#include "store/remote/links.h"

#include "base/alloc.h"
#include "base/log/log.h"
#include "store/remote/fleet/fleet_allowed.h"
#include "store/remote/fleet/fleet_requests.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define FLEET_MAGIC 0x464c4545u
#define LOG_NS      (60000 * TIERCE__MS_NS)
#define SESSION_MS  30000u
#define LAST_MS     1000u /* of a close, for FinishWriteCache and the storages */
#define HELLO_MS    500u /* from the opening on: an engine that stores or loads KV asks by itself */

static struct tierce__fleet *fleet_of(struct tierce__connector *connector)
{
    struct tierce__fleet *fleet = (struct tierce__fleet *)connector;
    TIERCE_CHECK_MAGIC(fleet, FLEET_MAGIC);
    return fleet;
}

/* ---- what the other files use ---------------------------------------------------------------- */

static void set_why(struct tierce__fleet *fleet, const char *text)
{
    tierce__lock_take(&fleet->lock);
    int used = snprintf(fleet->why, sizeof(fleet->why), "%s: ", fleet->store_name);
    TIERCE_ASSERT(used > 0 && (size_t)used < sizeof(fleet->why));
    snprintf(fleet->why + used, sizeof(fleet->why) - (size_t)used, "%.*s",
             (int)sizeof(fleet->why) - used - 1, text);
    tierce__lock_drop(&fleet->lock);
}

void tierce__fleet_say(struct tierce__fleet *fleet, enum tierce__fleet_trouble trouble,
                       const char *format, ...)
{
    static const char *const names[TIERCE__FLEET_TROUBLES] = {
        [TIERCE__FLEET_TROUBLE_MANAGER] = "manager", [TIERCE__FLEET_TROUBLE_INSTANCE] = "instance",
        [TIERCE__FLEET_TROUBLE_ANSWER] = "answer",   [TIERCE__FLEET_TROUBLE_STORAGE] = "storage",
        [TIERCE__FLEET_TROUBLE_LOST] = "lost",       [TIERCE__FLEET_TROUBLE_FULL] = "full"};
    char text[TIERCE__CONNECTOR_WHY_BYTES];
    uint64_t now_ns = tierce__now_ns(), *logged_ns = &fleet->logged_ns[trouble];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    set_why(fleet, text);
    TIERCE_DASSERT(trouble < TIERCE__FLEET_TROUBLES);
    if (*logged_ns != 0 && now_ns - *logged_ns < LOG_NS)
        return;
    *logged_ns = now_ns;
    tierce__log(TIERCE_LOG_WARN, "fleet_trouble", "store=%s kind=%s why=\"%s\"", fleet->store_name,
                names[trouble], text);
}

void tierce__fleet_answer(struct tierce__fleet *fleet, struct tierce__store_req *req, int status)
{
    TIERCE_DASSERT(status <= 0 && !tierce__lock_holds_any());
    TIERCE_DASSERT(tierce__list_empty(&req->node));
    atomic_fetch_sub_explicit(&fleet->waiting, 1, memory_order_relaxed);
    req->status = status;
    req->done(req);
}

int tierce__fleet_call_failed(struct tierce__fleet *fleet, const struct tierce__fleet_call *call)
{
    TIERCE_ASSERT(call->status < 0 && call->reply == NULL);
    tierce__fleet_say(fleet, TIERCE__FLEET_TROUBLE_MANAGER, "%s", call->why);
    return call->status == TIERCE_E_ARGUMENT || call->status == -EEXIST ? -EPROTO : call->status;
}

int tierce__fleet_register_failed(struct tierce__fleet *fleet,
                                  const struct tierce__fleet_part *part, int status)
{
    TIERCE_ASSERT(status < 0);
    tierce__fleet_say(fleet, TIERCE__FLEET_TROUBLE_INSTANCE, "instance %s, %s: %s", part->instance,
                      part->spec, part->why[0] != '\0' ? part->why : tierce_strerror(status));
    return status == TIERCE_E_ARGUMENT || status == -EEXIST || status == TIERCE_E_MISS ? -EPROTO
                                                                                       : status;
}

int tierce__fleet_find_part(struct tierce__fleet *fleet, struct tierce__fleet_part **part,
                            int64_t *key, const struct tierce_plugin_name *name)
{
    int rc = tierce__fleet_part_of(fleet->parts, part, key, name);
    TIERCE_DASSERT(rc <= 0);
    if (rc < 0)
        tierce__fleet_say(fleet, TIERCE__FLEET_TROUBLE_INSTANCE, "%s",
                          rc == -ENOMEM ? "no memory" : tierce__fleet_parts_why(fleet->parts));
    return rc;
}

/* ---- requests to storages -------------------------------------------------------------------- */

/* On any thread. Under the lock up to the end, so that close does not come between. */
static void io_answered(struct tierce__store_req *req)
{
    struct tierce__fleet_io *io = req->arg;
    struct tierce__fleet *fleet = io->fleet;
    bool is_over = io->early != NULL && io->early(io);
    tierce__lock_take(&fleet->lock);
    tierce__list_push_back(&fleet->answered, &io->node);
    if (!is_over && !fleet->has_answers) {
        fleet->has_answers = true;
        tierce__fleet_manager_wake(fleet->manager);
    }
    tierce__lock_drop(&fleet->lock);
}

void tierce__fleet_io_begin(struct tierce__fleet *fleet, struct tierce__fleet_io *io,
                            const struct tierce__fleet_place *place)
{
    TIERCE_ASSERT(io->done != NULL && (io->req.op == TIERCE__STORE_LOOKUP ||
                                       (io->req.buf != NULL && io->req.length > 0)));
    tierce__list_init(&io->node);
    io->fleet = fleet;
    io->store = place->store;
    io->name = place->name;
    io->req.names = &io->name;
    io->req.name_count = 1;
    io->req.done = io_answered;
    io->req.arg = io;
    fleet->ios++;
    tierce__fleet_store_submit(place->store, &io->req);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Moves what other threads have brought. */
static void take(struct tierce__fleet *fleet, struct tierce__list *arrived,
                 struct tierce__list *answered)
{
    tierce__list_init(arrived);
    tierce__list_init(answered);
    tierce__lock_take(&fleet->lock);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &fleet->arrived) {
        tierce__list_remove(node);
        tierce__list_push_back(arrived, node);
    }
    TIERCE__LIST_FOR_EACH_SAFE (it, next, &fleet->answered) {
        tierce__list_remove(it);
        tierce__list_push_back(answered, it);
    }
    fleet->has_answers = false;
    fleet->is_closing = fleet->closing;
    tierce__lock_drop(&fleet->lock);
}

/* ---- generations ----------------------------------------------------------------------------- */

/* Namespaces that the engine has dropped; the thread takes them from here. */
struct fleet_adoption {
    struct tierce__list node;
    struct tierce__invalidated what;
};

static void take_adopted(struct tierce__fleet *fleet)
{
    struct tierce__list adopted;
    tierce__list_init(&adopted);
    tierce__lock_take(&fleet->lock);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &fleet->adopted) {
        tierce__list_remove(node);
        tierce__list_push_back(&adopted, node);
    }
    tierce__lock_drop(&fleet->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, next, &adopted) {
        struct fleet_adoption *adoption = TIERCE__CONTAINER_OF(it, struct fleet_adoption, node);
        const struct tierce__invalidated *what = &adoption->what;
        struct tierce__fleet_part *part =
            tierce__fleet_part_find(fleet->parts, what->ns_digest, &what->shard);
        TIERCE_ASSERT(part != NULL); /* it was invalidated, and parts stay */
        tierce__fleet_places_forget_part(fleet->places, part);
        tierce__fleet_part_adopt(part, what->generation, what->registry);
        tierce__list_remove(it);
        tierce__free(adoption);
    }
}

static int adopt(struct tierce__connector *connector, const struct tierce__invalidated *what)
{
    struct tierce__fleet *fleet = fleet_of(connector);
    struct fleet_adoption *adoption = tierce__calloc(1, sizeof(*adoption));
    if (adoption == NULL)
        return -ENOMEM;
    adoption->what = *what;
    tierce__list_init(&adoption->node);
    tierce__lock_take(&fleet->lock);
    tierce__list_push_back(&fleet->adopted, &adoption->node);
    tierce__fleet_manager_wake(fleet->manager);
    tierce__lock_drop(&fleet->lock);
    return 0;
}

/* Answers of the generation before end first: the engine drops what it has after them. None of them
 * blocks, and none of the part's begins any more. */
static void await_early(struct tierce__fleet *fleet, const struct tierce__fleet_part *part)
{
    TIERCE_DASSERT(atomic_load_explicit(&part->serves, memory_order_relaxed) == 0);
    atomic_store_explicit(&fleet->awaits_early, true, memory_order_seq_cst);
    tierce__lock_take(&fleet->lock);
    while (atomic_load_explicit(&part->early, memory_order_seq_cst) > 0)
        (void)tierce__cond_wait(&fleet->early_over, &fleet->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&fleet->lock);
    atomic_store_explicit(&fleet->awaits_early, false, memory_order_relaxed);
}

/* On the thread. */
static bool invalidated(void *arg, const struct tierce__fleet_part *part, bool is_first)
{
    struct tierce__fleet *fleet = arg;
    struct tierce__invalidated what = {.shard = part->shard,
                                       .generation = part->heard,
                                       .registry = part->registry,
                                       .is_first = is_first};
    memcpy(what.ns_digest, part->ns_digest, sizeof(what.ns_digest));
    TIERCE_DASSERT(!tierce__fleet_part_is_current(part) && !tierce__lock_holds_any());
    await_early(fleet, part);
    if (fleet->invalidated != NULL)
        return fleet->invalidated(fleet->invalidated_arg, &what);
    if (is_first && part->heard == 1)
        return true;
    if (adopt(&fleet->base, &what) < 0)
        tierce__fleet_say(fleet, TIERCE__FLEET_TROUBLE_INSTANCE,
                          "no memory: instance %s is not used any more", part->instance);
    return false;
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void begin(struct tierce__fleet *fleet, struct tierce__store_req *req)
{
    if (fleet->is_closing) {
        tierce__fleet_answer(fleet, req, TIERCE_E_CANCELLED);
        return;
    }
    fleet->hello.is_needless = true;
    fleet->hello.due_ns = TIERCE__DEADLINE_NEVER;
    switch ((int)req->op) {
    case TIERCE__STORE_LOOKUP:
        tierce__fleet_lookup(fleet, req);
        break;
    case TIERCE__STORE_GET:
        tierce__fleet_get(fleet, req);
        break;
    case TIERCE__STORE_PUT:
        tierce__fleet_put(fleet, req);
        break;
    case TIERCE__STORE_DELETE:
        tierce__fleet_delete(fleet, req);
        break;
    default:
        TIERCE_ASSERT(req->op == TIERCE__STORE_PING);
        tierce__fleet_ping(fleet, req);
    }
}

static void take_turns(struct tierce__fleet *fleet)
{
    struct tierce__list arrived, answered;
    take(fleet, &arrived, &answered);
    take_adopted(fleet);
    tierce__fleet_hints_send(fleet);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &answered) {
        struct tierce__fleet_io *io = TIERCE__CONTAINER_OF(node, struct tierce__fleet_io, node);
        tierce__list_remove(node);
        TIERCE_ASSERT(fleet->ios > 0);
        fleet->ios--;
        io->done(io);
    }
    TIERCE__LIST_FOR_EACH_SAFE (it, next, &arrived) {
        tierce__list_remove(it);
        begin(fleet, TIERCE__CONTAINER_OF(it, struct tierce__store_req, node));
    }
}

/* Returns when there is something to do again. */
static uint64_t work_once(struct tierce__fleet *fleet)
{
    take_turns(fleet);
    uint64_t now_ns = tierce__now_ns();
    if (fleet->look_ns <= now_ns) {
        fleet->look_ns = TIERCE__DEADLINE_NEVER;
        tierce__fleet_reads_expire(fleet, now_ns);
        tierce__fleet_writes_expire(fleet, now_ns);
    }
    uint64_t until_ns = TIERCE__DEADLINE_NEVER;
    tierce__fleet_reads_ask(fleet);
    tierce__fleet_expire(fleet->parts, &until_ns);
    tierce__fleet_parts_ask(fleet->parts, &until_ns);
    tierce__fleet_hello(fleet, &until_ns);
    uint64_t step_ns = tierce__fleet_writes_step(fleet, now_ns);
    until_ns = step_ns < until_ns ? step_ns : until_ns;
    return until_ns < fleet->look_ns ? until_ns : fleet->look_ns;
}

static void work_until(struct tierce__fleet *fleet, uint64_t end_ns)
{
    uint64_t until_ns = work_once(fleet);
    tierce__fleet_manager_poll(fleet->manager, until_ns < end_ns ? until_ns : end_ns);
}

static void close_in_order(struct tierce__fleet *fleet)
{
    uint64_t now_ns = tierce__now_ns(), close_ns = fleet->close_ns;
    uint64_t left_ns = close_ns > now_ns ? close_ns - now_ns : 0;
    uint64_t last_ns =
        left_ns < 2 * LAST_MS * TIERCE__MS_NS ? left_ns / 2 : LAST_MS * TIERCE__MS_NS;
    tierce__fleet_reads_cancel(fleet);
    tierce__fleet_reports_cancel(fleet);
    tierce__fleet_writes_cancel(fleet, TIERCE__FLEET_CANCEL_NEW);
    while (tierce__fleet_writes_busy(fleet) && tierce__now_ns() < close_ns - last_ns)
        work_until(fleet, close_ns - last_ns);
    tierce__fleet_writes_cancel(fleet, TIERCE__FLEET_CANCEL_UNSTORED);
    while (tierce__fleet_writes_busy(fleet) && tierce__now_ns() < close_ns - last_ns / 2)
        work_until(fleet, close_ns - last_ns / 2);
}

static void *work(void *arg)
{
    struct tierce__fleet *fleet = arg;
    for (;;) {
        uint64_t until_ns = work_once(fleet);
        if (fleet->is_closing)
            break;
        tierce__fleet_manager_poll(fleet->manager, until_ns);
    }
    close_in_order(fleet);
    return NULL;
}

/* ---- the connector's functions --------------------------------------------------------------- */

static int hand_over(struct tierce__fleet *fleet, struct tierce__store_req *req)
{
    int rc = 0;
    tierce__lock_take(&fleet->lock);
    if (fleet->closing) {
        rc = TIERCE_E_CLOSED;
    } else if (atomic_load_explicit(&fleet->waiting, memory_order_relaxed) >=
               TIERCE__FLEET_WAITING_MAX) {
        rc = TIERCE_E_LIMIT;
    } else {
        bool first = tierce__list_empty(&fleet->arrived);
        atomic_fetch_add_explicit(&fleet->waiting, 1, memory_order_relaxed);
        tierce__list_push_back(&fleet->arrived, &req->node);
        if (first)
            tierce__fleet_manager_wake(fleet->manager);
    }
    tierce__lock_drop(&fleet->lock);
    if (rc == TIERCE_E_LIMIT)
        set_why(fleet, "the request queue is full");
    return rc;
}

static void submit(struct tierce__connector *connector, struct tierce__store_req *req)
{
    struct tierce__fleet *fleet = fleet_of(connector);
    int rc = tierce__connector_accept(req, fleet->base.caps);
    if (rc == 0)
        rc = hand_over(fleet, req);
    if (rc == 0)
        return;
    TIERCE_DASSERT(rc < 0 && !tierce__lock_holds_any());
    req->status = rc;
    req->done(req);
}

static void get_why(struct tierce__connector *connector, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__fleet *fleet = fleet_of(connector);
    tierce__lock_take(&fleet->lock);
    memcpy(why, fleet->why, sizeof(fleet->why));
    tierce__lock_drop(&fleet->lock);
}

static void get_stats(struct tierce__connector *connector, struct tierce__tier_stats *out)
{
    struct tierce__fleet *fleet = fleet_of(connector);
    tierce__fleet_manager_stats(fleet->manager, out);
    out->waiting = atomic_load_explicit(&fleet->waiting, memory_order_relaxed);
    out->calls_hanging = 0;
}

/* The manager first: it touches the calls that it drops, which the others own. */
static void destroy(struct tierce__fleet *fleet)
{
    TIERCE_ASSERT(fleet->ios == 0 && tierce__list_empty(&fleet->arrived));
    TIERCE_ASSERT(atomic_load_explicit(&fleet->waiting, memory_order_relaxed) == 0);
    if (fleet->parts != NULL)
        take_adopted(fleet);
    tierce__fleet_manager_close(fleet->manager);
    tierce__fleet_parts_close(fleet->parts);
    tierce__fleet_reads_free(fleet);
    tierce__fleet_reports_free(fleet);
    tierce__fleet_hints_free(fleet);
    tierce__fleet_writes_close(fleet->writes);
    tierce__fleet_places_close(fleet->places);
    tierce__free(fleet->instance);
    tierce__cond_fini(&fleet->early_over);
    tierce__lock_fini(&fleet->lock);
    fleet->magic = 0;
    tierce__free(fleet);
}

/* The storages' connectors answer all of their requests before they are closed. */
static bool close_fleet(struct tierce__connector *connector, uint64_t deadline_ns)
{
    struct tierce__fleet *fleet = fleet_of(connector);
    tierce__lock_take(&fleet->lock);
    TIERCE_DASSERT(!fleet->closing);
    fleet->close_ns = deadline_ns < UINT64_MAX / 2 ? deadline_ns : UINT64_MAX / 2;
    fleet->closing = true;
    tierce__fleet_manager_wake(fleet->manager);
    tierce__lock_drop(&fleet->lock);
    pthread_join(fleet->thread, NULL);
    bool is_closed = tierce__fleet_stores_close(fleet->stores, deadline_ns);
    take_turns(fleet);
    TIERCE_ASSERT(fleet->ios == 0);
    tierce__fleet_writes_cancel(fleet, TIERCE__FLEET_CANCEL_ALL);
    destroy(fleet);
    return is_closed;
}

static const struct tierce__connector_ops ops = {
    .scheme = "fleet",
    .submit = submit,
    .why = get_why,
    .stats = get_stats,
    .hint = tierce__fleet_hint,
    .adopt = adopt,
    .answer_begin = tierce__fleet_answer_begin,
    .answer_end = tierce__fleet_answer_end,
    .close = close_fleet,
};

/* ---- open ------------------------------------------------------------------------------------ */

/* GROUP[/INSTANCE] of the path, which is cut. */
static int read_path(char *path, const char **group, const char **instance,
                     char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    *instance = NULL;
    *group = path[0] == '/' ? path + 1 : path;
    char *slash = strchr(*group, '/');
    if (slash != NULL) {
        *slash = '\0';
        *instance = slash + 1;
    }
    bool is_wrong = (*group)[0] == '\0' ||
                    (slash != NULL && ((*instance)[0] == '\0' || strchr(*instance, '/') != NULL));
    if (is_wrong)
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "a fleet URL is fleet://HOST:PORT[,HOST:PORT]/GROUP or .../GROUP/INSTANCE; GROUP "
                 "is an instance group of the manager");
    else if (*instance != NULL &&
             strlen(*instance) >= sizeof(((struct tierce__fleet_part *)0)->instance))
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "the instance in a fleet URL has at most %zu characters",
                 sizeof(((struct tierce__fleet_part *)0)->instance) - 1);
    else
        return 0;
    return TIERCE_E_CONFIG;
}

static int check_url(const struct tierce__connector_source *source,
                     char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char *const known[] = {"token_file", "ca_file", "mooncake_python", "storages",
                                        NULL};
    const struct tierce__url *url = source->url;
    const char *allowed = tierce__url_param(url, "storages");
    int rc = tierce__url_check_params(url, known, why);
    if (rc == 0 && allowed != NULL)
        rc = tierce__fleet_allowed_check(allowed, why);
    if (rc < 0)
        return rc;
    if (source->opts->namespaces == NULL)
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "a fleet store holds chunks of an engine; it cannot be opened without one");
    else if (url->user != NULL || url->password != NULL)
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "a fleet URL has no user and no password; name a file with token_file=");
    else if (url->host_count == 0)
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "a fleet URL names the managers: fleet://HOST:PORT[,HOST:PORT]/GROUP[/INSTANCE]");
    else
        return tierce__fleet_manager_check(url, why);
    return TIERCE_E_CONFIG;
}

static int open_parts(struct tierce__fleet *fleet, const struct tierce__connector_source *source,
                      const char *group, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    int rc = tierce__fleet_places_open(&fleet->places);
    if (rc == 0)
        rc = tierce__fleet_writes_open(&fleet->writes, fleet);
    if (rc == 0)
        rc = tierce__fleet_manager_open(
            &fleet->manager,
            &(struct tierce__fleet_manager_opts){.size = sizeof(struct tierce__fleet_manager_opts),
                                                 .url = source->url},
            why);
    if (rc == 0)
        rc = tierce__fleet_stores_open(
            &fleet->stores,
            &(struct tierce__fleet_stores_opts){
                .size = sizeof(struct tierce__fleet_stores_opts),
                .pool = source->opts->pool,
                .mooncake_python = tierce__url_param(source->url, "mooncake_python"),
                .allowed = tierce__url_param(source->url, "storages")});
    if (rc == 0)
        rc = tierce__fleet_parts_open(
            &fleet->parts,
            &(struct tierce__fleet_parts_opts){.size = sizeof(struct tierce__fleet_parts_opts),
                                               .manager = fleet->manager,
                                               .stores = fleet->stores,
                                               .namespaces = source->opts->namespaces,
                                               .group = group,
                                               .instance = fleet->instance,
                                               .invalidated = invalidated,
                                               .arg = fleet});
    return rc;
}

static void init(struct tierce__fleet *fleet, const struct tierce__connector_source *source)
{
    fleet->magic = FLEET_MAGIC;
    fleet->invalidated = source->opts->invalidated;
    fleet->invalidated_arg = source->opts->invalidated_arg;
    tierce__host_id(fleet->host_id);
    fleet->base =
        (struct tierce__connector){.ops = &ops,
                                   .caps = TIERCE__CONNECTOR_NO_REPLACE | TIERCE__CONNECTOR_ASKS |
                                           TIERCE__CONNECTOR_TELLS_LENGTH};
    snprintf(fleet->store_name, sizeof(fleet->store_name), "%s", source->store_name);
    fleet->look_ns = TIERCE__DEADLINE_NEVER;
    fleet->hello.due_ns = tierce__now_ns() + HELLO_MS * TIERCE__MS_NS;
    fleet->session_ms = SESSION_MS;
    tierce__lock_init(&fleet->lock, TIERCE__LOCK_FLEET);
    tierce__cond_init(&fleet->early_over);
    struct tierce__list *lists[] = {&fleet->arrived, &fleet->answered, &fleet->adopted,
                                    &fleet->jobs,    &fleet->gets,     &fleet->unplaced,
                                    &fleet->reports, &fleet->hinted,   &fleet->hints};
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++)
        tierce__list_init(lists[i]);
}

/* `path`: a copy of the URL's, which is cut. */
static int open_fleet(struct tierce__fleet *fleet, const struct tierce__connector_source *source,
                      char *path, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const char *group = NULL, *instance = NULL;
    int rc = check_url(source, why);
    if (rc == 0)
        rc = read_path(path, &group, &instance, why);
    if (rc < 0)
        return rc;
    if (instance != NULL && (fleet->instance = tierce__strdup(instance)) == NULL)
        return -ENOMEM;
    rc = open_parts(fleet, source, group, why);
    return rc < 0 ? rc : -pthread_create(&fleet->thread, NULL, work, fleet);
}

static int make_fleet(struct tierce__connector **out, const struct tierce__connector_source *source,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__fleet *fleet = tierce__calloc(1, sizeof(*fleet));
    char *path = tierce__strdup(source->url->path);
    int rc = fleet != NULL && path != NULL ? 0 : -ENOMEM;
    if (rc == 0) {
        init(fleet, source);
        rc = open_fleet(fleet, source, path, why);
    }
    tierce__free(path);
    if (rc == 0) {
        *out = &fleet->base;
        return 0;
    }
    if (rc == -EAGAIN || rc == -ENOMEM)
        why[0] = '\0'; /* connector.c says it */
    if (fleet != NULL && fleet->magic == FLEET_MAGIC) {
        if (fleet->stores != NULL)
            (void)tierce__fleet_stores_close(fleet->stores, 0); /* none is open */
        destroy(fleet);
    } else {
        tierce__free(fleet);
    }
    return rc;
}

const struct tierce__client tierce__fleet_client = {.scheme = "fleet", .make = make_fleet};
