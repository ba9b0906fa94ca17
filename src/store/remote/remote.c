/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/remote_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"

_Static_assert(TIERCE__TIER_WHY_BYTES == TIERCE__CONNECTOR_WHY_BYTES, "one word for both");

#define QUEUE_BYTES      (64u << 20)
#define WRITES           4u
#define WRITE_TIMEOUT_MS 10000u
#define REMOTE_PAGE      4096u

/* ---- shared by the files --------------------------------------------------------------------- */

bool tierce__remote_name(struct tierce__remote *remote, struct tierce__remote_name *name,
                         const struct tierce__key *key)
{
    const uint8_t *digest = tierce__namespaces_digest(remote->namespaces, key->ns);
    int bytes = tierce__key_text_format(name->text, digest, &key->shard, key->hash);
    name->name = (struct tierce__store_name){.text = name->text, .bytes = (size_t)bytes};
    return bytes > 0;
}

void tierce__remote_call(struct tierce__remote *remote, struct tierce__connector_req *call)
{
    tierce__lock_take(&remote->lock);
    bool cut = remote->cut;
    remote->submitting += !cut;
    tierce__lock_drop(&remote->lock);
    if (cut) {
        call->status = TIERCE_E_CLOSED;
        call->done(call);
        return;
    }
    remote->connector->ops->submit(remote->connector, call);
    tierce__lock_take(&remote->lock);
    remote->submitting--;
    tierce__cond_broadcast(&remote->changed);
    tierce__lock_drop(&remote->lock);
}

void tierce__remote_push(struct tierce__remote *remote, struct tierce__remote_event *event)
{
    tierce__lock_assert_held(&remote->lock);
    tierce__list_push_back(&remote->events, &event->node);
}

void tierce__remote_run(struct tierce__remote *remote)
{
    tierce__lock_assert_held(&remote->lock);
    if (!remote->running) {
        remote->running = true;
        while (!tierce__list_empty(&remote->events)) {
            struct tierce__remote_event *next =
                TIERCE__CONTAINER_OF(remote->events.next, struct tierce__remote_event, node);
            tierce__list_remove(&next->node);
            tierce__lock_drop(&remote->lock);
            next->run(next);
            tierce__lock_take(&remote->lock);
        }
        remote->running = false;
        tierce__cond_broadcast(&remote->changed);
    }
    tierce__lock_drop(&remote->lock);
}

void tierce__remote_note(struct tierce__remote *remote, struct tierce__remote_event *event)
{
    tierce__lock_take(&remote->lock);
    tierce__remote_push(remote, event);
    tierce__remote_run(remote);
}

bool tierce__remote_enter(struct tierce__remote *remote, struct tierce__tier_req *req)
{
    tierce__lock_take(&remote->lock);
    bool open = !remote->closing;
    remote->requests += open;
    tierce__lock_drop(&remote->lock);
    if (!open) {
        req->status = TIERCE_E_CLOSED;
        req->done(req);
    }
    return open;
}

void tierce__remote_answer(struct tierce__remote *remote, struct tierce__tier_req *req, int status)
{
    req->status = status;
    req->done(req);
    tierce__remote_leave(remote);
}

void tierce__remote_leave(struct tierce__remote *remote)
{
    tierce__lock_take(&remote->lock);
    remote->requests--;
    tierce__cond_broadcast(&remote->changed);
    tierce__lock_drop(&remote->lock);
}

bool tierce__remote_keeps(const struct tierce__remote *remote)
{
    return (remote->connector->caps & TIERCE__CONNECTOR_NO_DELETE) != 0;
}

static struct tierce__remote_hidden *find_hidden(const struct tierce__remote *remote,
                                                 const struct tierce__key *key)
{
    uint64_t count =
        remote->hidden_count < TIERCE__REMOTE_HIDDEN ? remote->hidden_count : TIERCE__REMOTE_HIDDEN;
    for (uint64_t i = 0; i < count; i++) {
        const struct tierce__remote_hidden *hidden = &remote->hidden[i];
        if (hidden->how != TIERCE__REMOTE_SHOWN && tierce__key_equal(&hidden->key, key))
            return (struct tierce__remote_hidden *)(uintptr_t)hidden;
    }
    return NULL;
}

enum tierce__remote_hiding tierce__remote_hiding(const struct tierce__remote *remote,
                                                 const struct tierce__key *key)
{
    const struct tierce__remote_hidden *hidden = find_hidden(remote, key);
    return hidden != NULL ? hidden->how : TIERCE__REMOTE_SHOWN;
}

void tierce__remote_hide(struct tierce__remote *remote, const struct tierce__key *key,
                         enum tierce__remote_hiding how)
{
    struct tierce__remote_hidden *hidden = find_hidden(remote, key);
    if (hidden == NULL)
        hidden = &remote->hidden[remote->hidden_count++ % TIERCE__REMOTE_HIDDEN];
    *hidden = (struct tierce__remote_hidden){.key = *key, .how = how};
    tierce__remote_learn(remote, key, false, TIERCE__REMOTE_NOW);
}

void tierce__remote_show(struct tierce__remote *remote, const struct tierce__key *key)
{
    struct tierce__remote_hidden *hidden = find_hidden(remote, key);
    if (hidden != NULL && hidden->how == TIERCE__REMOTE_REPLACEABLE)
        hidden->how = TIERCE__REMOTE_SHOWN;
}

int tierce__remote_status(const struct tierce__connector_req *call)
{
    switch (call->status) {
    case TIERCE_E_FORMAT: /* a read: an object that is shorter than it must be */
        return call->op == TIERCE__CONNECTOR_GET ? TIERCE_E_MISS : -EPROTO;
    case TIERCE_E_REFUSED: /* the store's word against us, which will not change by asking again; a
                              PUT is refused where it may still be read */
        return call->op == TIERCE__CONNECTOR_PUT ? -EACCES : TIERCE_E_DOWN;
    case TIERCE_E_UNSUPPORTED: /* it takes none of that kind */
        return call->op == TIERCE__CONNECTOR_PUT ? TIERCE_E_REFUSED : TIERCE_E_UNSUPPORTED;
    case TIERCE_E_LIMIT: /* larger than it takes; or more wait than it serves in time */
        return call->op == TIERCE__CONNECTOR_PUT ? TIERCE_E_FULL : TIERCE_E_DEADLINE;
    default:
        return call->status;
    }
}

/* ---- lookups --------------------------------------------------------------------------------- */

struct lookup {
    struct tierce__connector_req call;
    struct tierce__remote *remote;
    struct tierce__tier_req *req;
    uint64_t asked_ns;
    size_t first; /* key that is asked for; those before it are remembered */
    struct tierce__store_name *names;
    struct tierce__remote_name texts[];
};

/* Under the lock. */
static void learn(const struct lookup *lookup, int status)
{
    struct tierce__remote *remote = lookup->remote;
    const struct tierce__tier_req *req = lookup->req;
    for (size_t i = lookup->first; i < req->found; i++)
        tierce__remote_learn(remote, &req->keys[i], true, lookup->asked_ns);
    if (status == 0 && lookup->call.found < lookup->call.name_count)
        tierce__remote_learn(remote, &req->keys[req->found], false, lookup->asked_ns);
}

static void looked_up(struct tierce__connector_req *call)
{
    struct lookup *lookup = call->arg;
    struct tierce__remote *remote = lookup->remote;
    struct tierce__tier_req *req = lookup->req;
    int status = tierce__remote_status(call);
    TIERCE_ASSERT(call->found <= call->name_count);
    req->found = lookup->first + call->found;
    req->repeats = call->repeats;
    tierce__lock_take(&remote->lock);
    learn(lookup, status);
    tierce__lock_drop(&remote->lock);
    tierce__free(lookup->names);
    tierce__free(lookup);
    tierce__remote_answer(remote, req, status);
}

/* The leading keys that can be asked for. Under the lock. */
static size_t askable(struct tierce__remote *remote, const struct tierce__tier_req *req)
{
    size_t count = 0;
    while (!req->durable && count < req->key_count &&
           tierce__remote_hiding(remote, &req->keys[count]) == TIERCE__REMOTE_SHOWN)
        count++;
    return count;
}

/* Uses remembered answers for the first `count` keys: *known of them are stored. False: the store
 * must be queried for the next key. */
static bool recall(struct tierce__remote *remote, const struct tierce__tier_req *req, size_t count,
                   size_t *known)
{
    bool however_old = req->recall == TIERCE__RECALL_OLD;
    enum tierce__remote_belief belief = TIERCE__REMOTE_THERE;
    *known = 0;
    if (req->recall == TIERCE__RECALL_NOTHING)
        return count == 0;
    while (*known < count) {
        belief = tierce__remote_recall(remote, &req->keys[*known], however_old);
        if (belief != TIERCE__REMOTE_THERE)
            break;
        ++*known;
    }
    return belief != TIERCE__REMOTE_UNKNOWN;
}

static struct lookup *make_lookup(struct tierce__remote *remote, struct tierce__tier_req *req,
                                  size_t first, size_t count)
{
    struct lookup *lookup =
        tierce__alloc(sizeof(*lookup) + (count - first) * sizeof(lookup->texts[0]));
    struct tierce__store_name *names = tierce__alloc((count - first) * sizeof(*names));
    if (lookup == NULL || names == NULL) {
        tierce__free(lookup);
        tierce__free(names);
        return NULL;
    }
    size_t named = 0;
    while (first + named < count &&
           tierce__remote_name(remote, &lookup->texts[named], &req->keys[first + named])) {
        names[named] = lookup->texts[named].name;
        named++;
    }
    lookup->remote = remote;
    lookup->req = req;
    lookup->asked_ns = tierce__now_ns();
    lookup->first = first;
    lookup->names = names;
    lookup->call = (struct tierce__connector_req){.op = TIERCE__CONNECTOR_EXISTS,
                                                  .urgency = TIERCE__CONNECTOR_PEEK,
                                                  .deadline_ns = req->deadline_ns,
                                                  .done = looked_up,
                                                  .arg = lookup,
                                                  .names = names,
                                                  .name_count = named};
    return lookup;
}

static void look_up(struct tierce__remote *remote, struct tierce__tier_req *req)
{
    size_t known;
    tierce__lock_take(&remote->lock);
    size_t count = askable(remote, req);
    bool is_known = recall(remote, req, count, &known);
    tierce__lock_drop(&remote->lock);
    bool only = req->recall == TIERCE__RECALL_ONLY || req->recall == TIERCE__RECALL_OLD;
    req->found = known;
    req->recalled = is_known || only;
    if (req->recalled) {
        tierce__remote_answer(remote, req, is_known ? 0 : TIERCE_E_DEADLINE);
        return;
    }
    struct lookup *lookup = make_lookup(remote, req, known, count);
    if (lookup == NULL)
        tierce__remote_answer(remote, req, -ENOMEM);
    else if (lookup->call.name_count > 0)
        tierce__remote_call(remote, &lookup->call);
    else
        looked_up(&lookup->call);
}

/* ---- reads ----------------------------------------------------------------------------------- */

/* A call that reads for one request, or a whole object for all who wait for parts of it. */
struct reading {
    struct tierce__connector_req call;
    struct tierce__remote *remote;
    struct tierce__tier_req *req; /* of one, or NULL */
    struct tierce__remote_name name;
    struct tierce__key key;
    struct tierce__buf *buf;     /* of the whole object */
    struct tierce__list node;    /* among the whole ones */
    struct tierce__list waiting; /* requests */
};

static void count_read(struct tierce__remote *remote, const struct tierce__tier_req *req,
                       int status)
{
    tierce__lock_take(&remote->lock);
    if (status == 0) {
        remote->stats.get_chunks += req->offset == 0;
        remote->stats.get_bytes += req->length;
    } else if (status == TIERCE_E_MISS) {
        tierce__remote_learn(remote, &req->keys[0], false, TIERCE__REMOTE_NOW);
    } else {
        remote->stats.errors++;
    }
    tierce__lock_drop(&remote->lock);
}

static void answer_read(struct tierce__remote *remote, struct tierce__tier_req *req, int status)
{
    count_read(remote, req, status);
    tierce__remote_answer(remote, req, status);
}

/* An object of another length cannot be deleted there, and would be found by each lookup. */
static void judge(const struct reading *reading)
{
    struct tierce__remote *remote = reading->remote;
    if (reading->call.status == TIERCE_E_FORMAT && tierce__remote_keeps(remote)) {
        tierce__lock_take(&remote->lock);
        tierce__remote_hide(remote, &reading->key, TIERCE__REMOTE_REPLACEABLE);
        tierce__lock_drop(&remote->lock);
    }
}

static void has_read(struct tierce__connector_req *call)
{
    struct reading *reading = call->arg;
    struct tierce__remote *remote = reading->remote;
    struct tierce__tier_req *req = reading->req;
    int status = tierce__remote_status(call);
    req->repeats = call->repeats;
    req->connected = call->connected;
    judge(reading);
    tierce__free(reading);
    answer_read(remote, req, status);
}

static struct tierce__tier_req *pop_request(struct tierce__list *list)
{
    struct tierce__list *node = list->next;
    tierce__list_remove(node);
    return TIERCE__CONTAINER_OF(node, struct tierce__tier_req, node);
}

/* Requests that joined later are answered by the same read, which has their parts by now. */
static void has_read_whole(struct tierce__connector_req *call)
{
    struct reading *whole = call->arg;
    struct tierce__remote *remote = whole->remote;
    int status = tierce__remote_status(call);
    judge(whole);
    tierce__lock_take(&remote->lock);
    tierce__list_remove(&whole->node);
    tierce__lock_drop(&remote->lock);
    for (bool repeats = call->repeats; !tierce__list_empty(&whole->waiting); repeats = true) {
        struct tierce__tier_req *req = pop_request(&whole->waiting);
        req->repeats = repeats && status < 0;
        req->connected = call->connected;
        answer_read(remote, req, status);
    }
    tierce__free(whole);
}

static struct reading *begin_reading(struct tierce__remote *remote,
                                     const struct tierce__tier_req *req)
{
    struct reading *reading = tierce__calloc(1, sizeof(*reading));
    if (reading == NULL)
        return NULL;
    reading->remote = remote;
    reading->key = req->keys[0];
    reading->buf = req->buf;
    tierce__list_init(&reading->waiting);
    tierce__list_init(&reading->node);
    reading->call = (struct tierce__connector_req){
        .op = TIERCE__CONNECTOR_GET,
        .urgency = req->ahead ? TIERCE__CONNECTOR_PREFETCH : TIERCE__CONNECTOR_FETCH,
        .deadline_ns = req->deadline_ns,
        .arg = reading,
        .names = &reading->name.name,
        .name_count = 1,
        .buf = req->buf};
    return reading;
}

static void read_range(struct tierce__remote *remote, struct tierce__tier_req *req)
{
    struct reading *reading = begin_reading(remote, req);
    if (reading == NULL) {
        tierce__remote_answer(remote, req, -ENOMEM);
        return;
    }
    reading->req = req;
    reading->call.done = has_read;
    reading->call.offset = req->offset;
    reading->call.length = req->length;
    if (tierce__remote_name(remote, &reading->name, &req->keys[0])) {
        tierce__remote_call(remote, &reading->call);
    } else {
        reading->call.status = TIERCE_E_MISS;
        has_read(&reading->call);
    }
}

/* Joins a reading into the same buffer. Under the lock. */
static bool join(struct tierce__remote *remote, struct tierce__tier_req *req)
{
    TIERCE__LIST_FOR_EACH (it, &remote->wholes) {
        struct reading *whole = TIERCE__CONTAINER_OF(it, struct reading, node);
        if (whole->buf == req->buf && tierce__key_equal(&whole->key, &req->keys[0])) {
            tierce__list_push_back(&whole->waiting, &req->node);
            return true;
        }
    }
    return false;
}

static void read_whole(struct tierce__remote *remote, struct tierce__tier_req *req)
{
    struct reading *whole = begin_reading(remote, req);
    if (whole == NULL) {
        tierce__remote_answer(remote, req, -ENOMEM);
        return;
    }
    whole->call.done = has_read_whole;
    whole->call.length = req->buf->bytes;
    tierce__lock_take(&remote->lock);
    bool joined = join(remote, req);
    if (!joined) {
        tierce__list_push_back(&whole->waiting, &req->node);
        tierce__list_push_back(&remote->wholes, &whole->node);
    }
    tierce__lock_drop(&remote->lock);
    if (joined) {
        tierce__free(whole);
    } else if (tierce__remote_name(remote, &whole->name, &req->keys[0])) {
        tierce__remote_call(remote, &whole->call);
    } else {
        whole->call.status = TIERCE_E_MISS;
        has_read_whole(&whole->call);
    }
}

static bool range_is_sane(const struct tierce__tier_req *req)
{
    return req->buf != NULL && req->offset % REMOTE_PAGE == 0 && req->length % REMOTE_PAGE == 0 &&
           req->length > 0 && req->offset <= req->buf->bytes &&
           req->length <= req->buf->bytes - req->offset;
}

static void read_chunk(struct tierce__remote *remote, struct tierce__tier_req *req)
{
    tierce__lock_take(&remote->lock);
    bool hidden = tierce__remote_hiding(remote, &req->keys[0]) != TIERCE__REMOTE_SHOWN;
    tierce__lock_drop(&remote->lock);
    if (!range_is_sane(req))
        tierce__remote_answer(remote, req, TIERCE_E_ARGUMENT);
    else if (hidden)
        tierce__remote_answer(remote, req, TIERCE_E_MISS);
    else if ((remote->connector->caps & TIERCE__CONNECTOR_RANGES) != 0)
        read_range(remote, req);
    else
        read_whole(remote, req);
}

/* ---- whether it is there --------------------------------------------------------------------- */

struct ping {
    struct tierce__connector_req call;
    struct tierce__remote *remote;
    struct tierce__tier_req *req;
};

static void has_pinged(struct tierce__connector_req *call)
{
    struct ping *ping = call->arg;
    struct tierce__remote *remote = ping->remote;
    struct tierce__tier_req *req = ping->req;
    int status = tierce__remote_status(call);
    req->repeats = call->repeats;
    tierce__free(ping);
    tierce__remote_answer(remote, req, status);
}

static void ping_store(struct tierce__remote *remote, struct tierce__tier_req *req)
{
    struct ping *ping = tierce__calloc(1, sizeof(*ping));
    if (ping == NULL) {
        tierce__remote_answer(remote, req, -ENOMEM);
        return;
    }
    *ping = (struct ping){.remote = remote,
                          .req = req,
                          .call = {.op = TIERCE__CONNECTOR_PING,
                                   .urgency = TIERCE__CONNECTOR_PEEK,
                                   .deadline_ns = req->deadline_ns,
                                   .done = has_pinged,
                                   .arg = ping}};
    tierce__remote_call(remote, &ping->call);
}

/* ---- the tier's functions -------------------------------------------------------------------- */

static void submit(struct tierce__tier *tier, struct tierce__tier_req *req)
{
    struct tierce__remote *remote = TIERCE__CONTAINER_OF(tier, struct tierce__remote, base);
    if (!tierce__remote_enter(remote, req))
        return;
    switch (req->op) {
    case TIERCE__TIER_LOOKUP:
        look_up(remote, req);
        return;
    case TIERCE__TIER_GET:
        read_chunk(remote, req);
        return;
    case TIERCE__TIER_PUT:
        tierce__remote_put(remote, req);
        return;
    case TIERCE__TIER_DELETE:
        tierce__remote_delete(remote, req);
        return;
    case TIERCE__TIER_HIDE:
        tierce__lock_take(&remote->lock);
        tierce__remote_hide(remote, &req->keys[0], TIERCE__REMOTE_LEFT_ALONE);
        tierce__lock_drop(&remote->lock);
        break;
    case TIERCE__TIER_CLEAR:
        tierce__remote_clear(remote, req);
        return;
    case TIERCE__TIER_SIBLINGS:
        req->found = 0; /* a store knows names only */
        break;
    case TIERCE__TIER_PING:
        ping_store(remote, req);
        return;
    case TIERCE__TIER_FLUSH: /* earlier puts are already in the store */
        break;
    }
    tierce__remote_answer(remote, req, 0);
}

/* The store has an order of its own, in which a read is a use. */
static void touch(struct tierce__tier *tier, const struct tierce__key *keys, size_t count,
                  size_t used)
{
    (void)tier;
    (void)keys;
    (void)count;
    (void)used;
}

static void tell_stats(struct tierce__tier *tier, struct tierce__tier_stats *out)
{
    struct tierce__remote *remote = TIERCE__CONTAINER_OF(tier, struct tierce__remote, base);
    struct tierce__connector_stats calls;
    remote->connector->ops->stats(remote->connector, &calls);
    tierce__lock_take(&remote->lock);
    *out = remote->stats;
    out->queued_bytes = remote->waiting_bytes + remote->writing_bytes;
    tierce__lock_drop(&remote->lock);
    out->connections = calls.connections;
    out->connects = calls.connects;
    out->waiting = calls.requests_waiting;
    out->calls_hanging = calls.requests_left_behind;
}

static void tell_why(struct tierce__tier *tier, char why[TIERCE__TIER_WHY_BYTES])
{
    struct tierce__remote *remote = TIERCE__CONTAINER_OF(tier, struct tierce__remote, base);
    remote->connector->ops->why(remote->connector, why);
}

static void watch(struct tierce__tier *tier, tierce__tier_watch_fn *fn, void *arg)
{
    (void)tier;
    (void)fn;
    (void)arg;
}

static bool scan(struct tierce__tier *tier, uint32_t *cursor, uint32_t places,
                 tierce__tier_watch_fn *fn, void *arg)
{
    (void)tier;
    (void)cursor;
    (void)places;
    (void)fn;
    (void)arg;
    return false;
}

/* Under the lock: nothing is under way here any more, but what the connector has. */
static bool is_idle(const struct tierce__remote *remote)
{
    return !remote->running && remote->submitting == 0;
}

static void destroy(struct tierce__remote *remote)
{
    tierce__cond_fini(&remote->changed);
    tierce__cond_fini(&remote->clock_wake);
    tierce__lock_fini(&remote->lock);
    tierce__free(remote);
}

/*
 * Queued puts are still written as far as the deadline allows. One second before the deadline (or
 * at half of the time, if that is less), waiting puts are cancelled; then the connector answers the
 * rest.
 */
static bool close_remote(struct tierce__tier *tier, uint64_t deadline_ns)
{
    struct tierce__remote *remote = TIERCE__CONTAINER_OF(tier, struct tierce__remote, base);
    uint64_t now_ns = tierce__now_ns(), left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    uint64_t last_ns = left_ns < 2000 * TIERCE__MS_NS ? left_ns / 2 : 1000 * TIERCE__MS_NS;
    tierce__lock_take(&remote->lock);
    remote->closing = true;
    bool in_time = true;
    while (remote->requests > 0 && in_time)
        in_time = tierce__cond_wait(&remote->changed, &remote->lock, deadline_ns - last_ns);
    remote->cut = true;
    tierce__lock_drop(&remote->lock);
    tierce__remote_cancel_waiting(remote);
    tierce__lock_take(&remote->lock);
    while (remote->submitting > 0)
        tierce__cond_wait(&remote->changed, &remote->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&remote->lock);
    bool is_closed = remote->connector->ops->close(remote->connector, deadline_ns);
    tierce__remote_clock_end(remote);
    if (!is_closed)
        return false;
    tierce__lock_take(&remote->lock);
    while (remote->requests > 0 || !is_idle(remote))
        tierce__cond_wait(&remote->changed, &remote->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&remote->lock);
    destroy(remote);
    return true;
}

int tierce__remote_open(struct tierce__tier **out, const struct tierce__remote_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__remote *remote = tierce__calloc(1, sizeof(*remote));
    if (remote == NULL)
        return -ENOMEM;
    snprintf(remote->name, sizeof(remote->name), "%s", opts->name);
    remote->ops = (struct tierce__tier_ops){.name = remote->name,
                                            .caps = TIERCE__TIER_SHARED,
                                            .submit = submit,
                                            .touch = touch,
                                            .stats = tell_stats,
                                            .why = tell_why,
                                            .watch = watch,
                                            .scan = scan,
                                            .close = close_remote};
    if ((opts->connector->caps & TIERCE__CONNECTOR_RANGES) == 0)
        remote->ops.caps |= TIERCE__TIER_WHOLE;
    if ((opts->connector->caps & TIERCE__CONNECTOR_NO_DELETE) != 0)
        remote->ops.caps |= TIERCE__TIER_KEEPS;
    remote->ops.read_bytes = opts->connector->read_bytes;
    remote->base.ops = &remote->ops;
    remote->connector = opts->connector;
    remote->namespaces = opts->namespaces;
    remote->queue_bytes_max = opts->queue_bytes > 0 ? opts->queue_bytes : QUEUE_BYTES;
    remote->writes_max = opts->writes > 0 ? opts->writes : WRITES;
    remote->write_timeout_ms =
        opts->write_timeout_ms > 0 ? opts->write_timeout_ms : WRITE_TIMEOUT_MS;
    remote->read_only = opts->read_only;
    tierce__lock_init(&remote->lock, TIERCE__LOCK_REMOTE);
    tierce__cond_init(&remote->changed);
    tierce__list_init(&remote->events);
    tierce__list_init(&remote->waiting);
    tierce__list_init(&remote->writing);
    tierce__cond_init(&remote->clock_wake);
    tierce__list_init(&remote->clears);
    tierce__list_init(&remote->timed);
    tierce__list_init(&remote->deletions);
    tierce__list_init(&remote->wholes);
    int rc = tierce__remote_clock_start(remote);
    if (rc == 0)
        *out = &remote->base;
    else
        destroy(remote);
    return rc;
}
