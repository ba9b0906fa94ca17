/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/remote_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"

_Static_assert(TIERCE__TIER_WHY_BYTES == TIERCE__CONNECTOR_WHY_BYTES, "both have the same values");

#define QUEUE_BYTES      (64u << 20)
#define WRITES           4u
#define WRITES_ASKS      64u /* so many share a question whether the store has them */
#define WRITE_TIMEOUT_MS 10000u
#define REMOTE_PAGE      4096u
#define LOCKED_MS        60000u /* until a key that was missing is tried again */

/* ---- shared by the files --------------------------------------------------------------------- */

/* False: the connector may not be called any more. */
static bool begin_call(struct tierce__remote *remote)
{
    tierce__lock_take(&remote->lock);
    bool is_open = !remote->cut;
    remote->submitting += is_open;
    tierce__lock_drop(&remote->lock);
    return is_open;
}

static void end_call(struct tierce__remote *remote)
{
    tierce__lock_take(&remote->lock);
    TIERCE_DASSERT(remote->submitting > 0);
    remote->submitting--;
    tierce__cond_broadcast(&remote->changed);
    tierce__lock_drop(&remote->lock);
}

void tierce__remote_call(struct tierce__remote *remote, struct tierce__store_req *call)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (begin_call(remote)) {
        remote->connector->ops->submit(remote->connector, call);
        end_call(remote);
        return;
    }
    call->status = TIERCE_E_CLOSED;
    call->done(call);
}

void tierce__remote_push(struct tierce__remote *remote, struct tierce__remote_event *event)
{
    tierce__lock_assert_held(&remote->lock);
    TIERCE_DASSERT(tierce__list_empty(&event->node));
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
            TIERCE_DASSERT(!tierce__lock_holds_any());
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

bool tierce__remote_enter(struct tierce__remote *remote, struct tierce__store_req *req)
{
    tierce__lock_take(&remote->lock);
    TIERCE_DASSERT(!remote->cut || remote->closing);
    bool open = !remote->closing;
    remote->requests += open;
    tierce__lock_drop(&remote->lock);
    if (!open) {
        req->status = TIERCE_E_CLOSED;
        req->done(req);
    }
    return open;
}

void tierce__remote_answer(struct tierce__remote *remote, struct tierce__store_req *req, int status)
{
    TIERCE_DASSERT(status <= 0 && !tierce__lock_holds_any());
    req->status = status;
    req->done(req);
    tierce__remote_leave(remote);
}

void tierce__remote_leave(struct tierce__remote *remote)
{
    tierce__lock_take(&remote->lock);
    TIERCE_DASSERT(remote->requests > 0);
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
    tierce__lock_assert_held(&remote->lock);
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
    tierce__lock_assert_held(&remote->lock);
    const struct tierce__remote_hidden *hidden = find_hidden(remote, key);
    return hidden != NULL ? hidden->how : TIERCE__REMOTE_SHOWN;
}

bool tierce__remote_is_hidden(const struct tierce__remote *remote, const struct tierce__key *key)
{
    const struct tierce__remote_hidden *hidden = find_hidden(remote, key);
    return hidden != NULL &&
           (hidden->how != TIERCE__REMOTE_LOCKED || tierce__now_ns() < hidden->until_ns);
}

void tierce__remote_hide(struct tierce__remote *remote, const struct tierce__key *key,
                         enum tierce__remote_hiding how)
{
    tierce__lock_assert_held(&remote->lock);
    TIERCE_DASSERT(how != TIERCE__REMOTE_SHOWN);
    struct tierce__remote_hidden *hidden = find_hidden(remote, key);
    if (hidden == NULL)
        hidden = &remote->hidden[remote->hidden_count++ % TIERCE__REMOTE_HIDDEN];
    *hidden = (struct tierce__remote_hidden){
        .key = *key, .how = how, .until_ns = tierce__deadline_in_ms(LOCKED_MS)};
    TIERCE_DASSERT(find_hidden(remote, key) == hidden);
    tierce__remote_learn(remote, key, false, TIERCE__REMOTE_NOW);
}

void tierce__remote_show(struct tierce__remote *remote, const struct tierce__key *key)
{
    tierce__lock_assert_held(&remote->lock);
    struct tierce__remote_hidden *hidden = find_hidden(remote, key);
    if (hidden != NULL && hidden->how != TIERCE__REMOTE_LEFT_ALONE)
        hidden->how = TIERCE__REMOTE_SHOWN;
}

int tierce__remote_status(const struct tierce__store_req *call)
{
    switch (call->status) {
    case TIERCE_E_FORMAT: /* a read: an invalid answer, or a store that has other places to read */
        return call->op == TIERCE__STORE_GET ? TIERCE_E_MISS : -EPROTO;
    case TIERCE_E_REFUSED: /* the store's word against us, which will not change by asking again; a
                              PUT is refused where it may still be read */
        return call->op == TIERCE__STORE_PUT ? -EACCES : TIERCE_E_DOWN;
    case -EBUSY: /* another process is storing it */
        return call->op == TIERCE__STORE_PUT ? TIERCE_E_REFUSED : -EBUSY;
    case TIERCE_E_UNSUPPORTED: /* it takes none of that kind */
        return call->op == TIERCE__STORE_PUT ? TIERCE_E_REFUSED : TIERCE_E_UNSUPPORTED;
    case TIERCE_E_FULL: /* the store has no room; a full queue of ours is answered elsewhere */
        return call->op == TIERCE__STORE_PUT ? -ENOSPC : TIERCE_E_FULL;
    case TIERCE_E_LIMIT: /* larger than it takes; or more wait than it serves in time */
        return call->op == TIERCE__STORE_PUT ? TIERCE_E_FULL : TIERCE_E_DEADLINE;
    default:
        return call->status;
    }
}

/* ---- reads of objects that may be damaged ---------------------------------------------------- */

/*
 * A read with the status FORMAT met an object of another length, or an invalid answer of the store.
 * Some stores also answer reads of an empty or truncated object like reads of a missing one. The
 * store is then asked whether it has the object, and the object is read again, since another
 * process may have stored it meanwhile. A store that reads from several places does not get this
 * question: the answer would be about another place.
 */
static bool may_be_damaged(const struct tierce__remote *remote, int status)
{
    unsigned caps = remote->connector->caps;
    return (caps & TIERCE__CONNECTOR_REJECTS) == 0 &&
           (status == TIERCE_E_FORMAT ||
            (status == TIERCE_E_MISS && (caps & TIERCE__CONNECTOR_EMPTY_MISSES) != 0));
}

/* Whether the read goes on with another call; `call` is then no longer the caller's. */
static bool goes_on(struct tierce__remote *remote, struct tierce__remote_reading *reading,
                    struct tierce__store_req *call)
{
    switch (reading->step) {
    case TIERCE__READING_FIRST:
        if (call->name_count == 0 || !may_be_damaged(remote, call->status))
            return false;
        reading->step = TIERCE__READING_ASKED;
        reading->object_bytes = call->object_bytes;
        call->op = TIERCE__STORE_LOOKUP;
        call->found = 0;
        break;
    case TIERCE__READING_ASKED:
        call->op = TIERCE__STORE_GET;
        call->object_bytes = reading->object_bytes;
        if (call->status < 0 || call->found == 0) {
            call->status = TIERCE_E_MISS;
            return false;
        }
        reading->step = TIERCE__READING_AGAIN;
        break;
    case TIERCE__READING_AGAIN:
        return false;
    }
    call->repeats = false;
    tierce__remote_call(remote, call);
    return true;
}

/* An object that the store has and that reads miss: empty, cut where a range begins, or only
 * unreadable at the moment, as in a node whose disk is slow. So it is not deleted. */
static void hide_unreadable(struct tierce__remote *remote, const struct tierce__key *key)
{
    tierce__lock_take(&remote->lock);
    bool is_hidden = tierce__remote_is_hidden(remote, key);
    if (!is_hidden)
        tierce__remote_hide(remote, key, TIERCE__REMOTE_LOCKED);
    remote->stats.errors += !is_hidden;
    tierce__lock_drop(&remote->lock);
    if (!is_hidden)
        tierce__log(TIERCE_LOG_WARN, "remote_object_unreadable",
                    "tier=%s reason=\"the store has the object, but returns no bytes\" "
                    "consequence=\"it is not read for a minute, and the next store replaces it\"",
                    remote->name);
}

/* The tier's status of a read that has ended. */
static int judge(struct tierce__remote *remote, const struct tierce__remote_reading *reading,
                 const struct tierce__key *key, const struct tierce__store_req *call)
{
    bool is_confirmed = reading->step == TIERCE__READING_AGAIN;
    TIERCE_DASSERT(call->op == TIERCE__STORE_GET);
    if (is_confirmed && call->status == TIERCE_E_MISS)
        hide_unreadable(remote, key);
    tierce__lock_take(&remote->lock);
    /* It cannot be deleted there, and would be found by each lookup, and so would an object that no
     * key decrypts. */
    if (call->status == TIERCE_E_FORMAT && tierce__remote_keeps(remote))
        tierce__remote_hide(remote, key, TIERCE__REMOTE_REPLACEABLE);
    else if (call->status == TIERCE_E_NO_KEY)
        tierce__remote_hide(remote, key, TIERCE__REMOTE_LOCKED);
    tierce__lock_drop(&remote->lock);
    return is_confirmed && call->status == TIERCE_E_FORMAT ? TIERCE_E_FORMAT
                                                           : tierce__remote_status(call);
}

/* ---- requests that are passed on ------------------------------------------------------------- */

/* A request of the tier that the connector answers: it is given names, and passes through
 * end_passing on its way back. It takes no memory, except the names of several keys. */
struct remote_passing {
    struct tierce__remote *remote;
    tierce__store_done_fn *done; /* the caller's */
    uint64_t asked_ns;
    size_t first; /* LOOKUP: key that is asked for; those before it are remembered */
    struct tierce_plugin_name *names; /* LOOKUP of several keys: owned */
    bool is_read;
    struct tierce__remote_reading reading;
    struct tierce__remote_name name;
};
_Static_assert(sizeof(struct remote_passing) <= sizeof(((struct tierce__store_req *)0)->scratch),
               "it fits the scratch of a request");

static struct remote_passing *passing_of(struct tierce__store_req *req)
{
    return (struct remote_passing *)(void *)req->scratch;
}

/* Under the lock. */
static void learn_lookup(const struct remote_passing *passing, struct tierce__store_req *req,
                         int status)
{
    tierce__lock_assert_held(&passing->remote->lock);
    size_t first = passing->first, end = first + req->found;
    TIERCE_ASSERT(req->found <= req->name_count && end <= req->key_count);
    for (size_t i = first; i < end; i++)
        tierce__remote_learn(passing->remote, &req->keys[i], true, passing->asked_ns);
    if (status == 0 && req->found < req->name_count)
        tierce__remote_learn(passing->remote, &req->keys[end], false, passing->asked_ns);
    req->found = end;
}

/* Under the lock. `status` is the tier's. */
static void learn_read(struct tierce__remote *remote, const struct tierce__store_req *req,
                       int status)
{
    tierce__lock_assert_held(&remote->lock);
    TIERCE_DASSERT(req->op == TIERCE__STORE_GET);
    if (status == 0) {
        remote->stats.get_chunks += req->offset == 0;
        remote->stats.get_bytes += req->length;
    } else if (status == TIERCE_E_MISS || status == TIERCE_E_FORMAT) {
        tierce__remote_learn(remote, &req->keys[0], false, TIERCE__REMOTE_NOW);
    } else if (status != TIERCE_E_NO_KEY) {
        remote->stats.errors++;
    }
}

static void end_passing(struct tierce__store_req *req)
{
    struct remote_passing *passing = passing_of(req);
    struct tierce__remote *remote = passing->remote;
    TIERCE_DASSERT(req->done == end_passing);
    if (passing->is_read && goes_on(remote, &passing->reading, req))
        return;
    int status = passing->is_read ? judge(remote, &passing->reading, &req->keys[0], req)
                                  : tierce__remote_status(req);
    tierce__lock_take(&remote->lock);
    if (req->op == TIERCE__STORE_LOOKUP)
        learn_lookup(passing, req, status);
    else if (passing->is_read)
        learn_read(remote, req, status);
    tierce__lock_drop(&remote->lock);
    tierce__free(passing->names);
    req->done = passing->done;
    tierce__remote_answer(remote, req, status);
}

/* Without a name, a request that needs one is answered as a miss. */
static void pass_on(struct tierce__remote *remote, struct tierce__store_req *req,
                    enum tierce__connector_urgency urgency)
{
    TIERCE_DASSERT(req->op == TIERCE__STORE_LOOKUP || req->op == TIERCE__STORE_GET ||
                   req->op == TIERCE__STORE_PING);
    struct remote_passing *passing = passing_of(req);
    TIERCE_DASSERT(req->done != end_passing);
    passing->remote = remote;
    passing->done = req->done;
    passing->asked_ns = tierce__now_ns();
    passing->is_read = req->op == TIERCE__STORE_GET;
    passing->reading = (struct tierce__remote_reading){0};
    req->done = end_passing;
    req->urgency = urgency;
    req->found = 0;
    if (req->name_count > 0 || req->op == TIERCE__STORE_PING) {
        tierce__remote_call(remote, req);
        return;
    }
    req->status = req->op == TIERCE__STORE_LOOKUP ? 0 : TIERCE_E_MISS;
    end_passing(req);
}

static void pass_one(struct tierce__remote *remote, struct tierce__store_req *req,
                     enum tierce__connector_urgency urgency)
{
    struct remote_passing *passing = passing_of(req);
    passing->names = NULL;
    req->names = &passing->name.name;
    req->name_count =
        req->op != TIERCE__STORE_PING && tierce__remote_name(remote, &passing->name, &req->keys[0]);
    pass_on(remote, req, urgency);
}

/* ---- lookups --------------------------------------------------------------------------------- */

/* The leading keys that can be asked for. Under the lock. */
static size_t askable(struct tierce__remote *remote, const struct tierce__store_req *req)
{
    tierce__lock_assert_held(&remote->lock);
    size_t count = 0;
    while (!req->durable && count < req->key_count &&
           !tierce__remote_is_hidden(remote, &req->keys[count]))
        count++;
    return count;
}

/* Uses remembered answers for the first `count` keys: *known of them are stored. False: the store
 * must be queried for the next key. */
static bool recall(struct tierce__remote *remote, const struct tierce__store_req *req, size_t count,
                   size_t *known)
{
    TIERCE_DASSERT(count <= req->key_count);
    tierce__lock_assert_held(&remote->lock);
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
    TIERCE_DASSERT(*known <= count);
    return belief != TIERCE__REMOTE_UNKNOWN;
}

static void look_up(struct tierce__remote *remote, struct tierce__store_req *req)
{
    size_t known;
    tierce__lock_take(&remote->lock);
    size_t count = askable(remote, req);
    bool is_known = recall(remote, req, count, &known);
    tierce__lock_drop(&remote->lock);
    bool only = req->recall == TIERCE__RECALL_ONLY || req->recall == TIERCE__RECALL_OLD;
    req->found = known;
    TIERCE_DASSERT(known <= count);
    req->recalled = is_known || only;
    if (req->recalled) {
        tierce__remote_answer(remote, req, is_known ? 0 : TIERCE_E_DEADLINE);
        return;
    }
    passing_of(req)->first = known;
    struct remote_passing *passing = passing_of(req);
    passing->names =
        tierce__remote_names(remote, req->keys + known, count - known, &req->name_count);
    req->names = passing->names;
    if (req->names != NULL)
        pass_on(remote, req, TIERCE__CONNECTOR_PEEK);
    else
        tierce__remote_answer(remote, req, -ENOMEM);
}

/* ---- reads of whole objects ------------------------------------------------------------------ */

static enum tierce__connector_urgency urgency_of(const struct tierce__store_req *get)
{
    return get->ahead ? TIERCE__CONNECTOR_PREFETCH : TIERCE__CONNECTOR_FETCH;
}

/* A call that reads an object for all requests that wait for parts of it. */
struct remote_whole {
    struct tierce__store_req call;
    struct tierce__remote *remote;
    struct tierce__remote_name name;
    struct tierce__remote_reading reading;
    struct tierce__key key;
    struct tierce__list node;    /* among the remote's */
    struct tierce__list waiting; /* requests: at least one */
};

static struct tierce__store_req *first_of(const struct remote_whole *whole)
{
    TIERCE_DASSERT(!tierce__list_empty(&whole->waiting));
    return TIERCE__CONTAINER_OF(whole->waiting.next, struct tierce__store_req, node);
}

/* Requests that joined later are answered by the same read, which has their parts by now. */
static void has_read_whole(struct tierce__store_req *call)
{
    struct remote_whole *whole = call->arg;
    struct tierce__remote *remote = whole->remote;
    TIERCE_DASSERT(call == &whole->call);
    if (goes_on(remote, &whole->reading, call))
        return;
    int status = judge(remote, &whole->reading, &whole->key, call);
    tierce__lock_take(&remote->lock);
    TIERCE_DASSERT(!tierce__list_empty(&whole->node));
    tierce__list_remove(&whole->node);
    TIERCE__LIST_FOR_EACH (it, &whole->waiting)
        learn_read(remote, TIERCE__CONTAINER_OF(it, struct tierce__store_req, node), status);
    tierce__lock_drop(&remote->lock);
    for (bool repeats = call->repeats; !tierce__list_empty(&whole->waiting); repeats = true) {
        struct tierce__store_req *req = first_of(whole);
        tierce__list_remove(&req->node);
        req->repeats = repeats && status < 0;
        req->connected = call->connected;
        tierce__remote_answer(remote, req, status);
    }
    tierce__free(whole);
}

/* A read of the same chunk into the same buffer, or NULL. Under the lock. */
static struct remote_whole *find_whole(struct tierce__remote *remote,
                                       const struct tierce__store_req *req)
{
    tierce__lock_assert_held(&remote->lock);
    TIERCE__LIST_FOR_EACH (it, &remote->wholes) {
        struct remote_whole *whole = TIERCE__CONTAINER_OF(it, struct remote_whole, node);
        if (whole->call.buf == req->buf && tierce__key_equal(&whole->key, &req->keys[0]))
            return whole;
    }
    return NULL;
}

/* Begins a read for a request, in whose buffer the whole object lands. Under the lock. */
static struct remote_whole *begin_whole(struct tierce__remote *remote,
                                        struct tierce__store_req *req)
{
    tierce__lock_assert_held(&remote->lock);
    struct remote_whole *whole = tierce__calloc(1, sizeof(*whole));
    if (whole == NULL)
        return NULL;
    whole->remote = remote;
    whole->key = req->keys[0];
    tierce__list_init(&whole->waiting);
    tierce__list_push_back(&remote->wholes, &whole->node);
    whole->call = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                             .urgency = urgency_of(req),
                                             .deadline_ns = req->deadline_ns,
                                             .done = has_read_whole,
                                             .arg = whole,
                                             .names = &whole->name.name,
                                             .name_count = 1,
                                             .buf = req->buf,
                                             .length = req->buf->bytes};
    return whole;
}

static void read_whole(struct tierce__remote *remote, struct tierce__store_req *req)
{
    tierce__lock_take(&remote->lock);
    struct remote_whole *whole = find_whole(remote, req);
    bool joins = whole != NULL;
    if (!joins)
        whole = begin_whole(remote, req);
    if (whole != NULL)
        tierce__list_push_back(&whole->waiting, &req->node);
    tierce__lock_drop(&remote->lock);
    if (whole == NULL) {
        tierce__remote_answer(remote, req, -ENOMEM);
    } else if (!joins && tierce__remote_name(remote, &whole->name, &req->keys[0])) {
        tierce__remote_call(remote, &whole->call);
    } else if (!joins) {
        whole->call.status = TIERCE_E_MISS;
        has_read_whole(&whole->call);
    }
}

/* ---- reads ----------------------------------------------------------------------------------- */

static bool range_is_sane(const struct tierce__store_req *req)
{
    return req->buf != NULL && req->offset % REMOTE_PAGE == 0 && req->length % REMOTE_PAGE == 0 &&
           req->length > 0 && req->offset <= req->buf->bytes &&
           req->length <= req->buf->bytes - req->offset;
}

static void read_chunk(struct tierce__remote *remote, struct tierce__store_req *req)
{
    tierce__lock_take(&remote->lock);
    bool hidden = tierce__remote_is_hidden(remote, &req->keys[0]);
    tierce__lock_drop(&remote->lock);
    if (!range_is_sane(req))
        tierce__remote_answer(remote, req, TIERCE_E_ARGUMENT);
    else if (hidden)
        tierce__remote_answer(remote, req, TIERCE_E_MISS);
    else if ((remote->connector->caps & TIERCE__CONNECTOR_RANGES) != 0)
        pass_one(remote, req, urgency_of(req));
    else
        read_whole(remote, req);
}

/* ---- the tier's functions -------------------------------------------------------------------- */

static void submit(struct tierce__tier *tier, struct tierce__store_req *req)
{
    struct tierce__remote *remote = TIERCE__CONTAINER_OF(tier, struct tierce__remote, base);
    if (!tierce__remote_enter(remote, req))
        return;
    switch (req->op) {
    case TIERCE__STORE_LOOKUP:
        look_up(remote, req);
        return;
    case TIERCE__STORE_GET:
        read_chunk(remote, req);
        return;
    case TIERCE__STORE_PUT:
        tierce__remote_put(remote, req);
        return;
    case TIERCE__STORE_DELETE:
        tierce__remote_delete(remote, req);
        return;
    case TIERCE__STORE_HIDE:
        tierce__lock_take(&remote->lock);
        tierce__remote_hide(remote, &req->keys[0], TIERCE__REMOTE_LEFT_ALONE);
        tierce__lock_drop(&remote->lock);
        break;
    case TIERCE__STORE_CLEAR:
        tierce__remote_clear(remote, req);
        return;
    case TIERCE__STORE_SIBLINGS:
        req->found = 0; /* a store knows names only */
        break;
    case TIERCE__STORE_PING:
        pass_one(remote, req, TIERCE__CONNECTOR_PEEK);
        return;
    case TIERCE__STORE_LIST:
    case TIERCE__STORE_SHOW:
        tierce__remote_answer(remote, req, TIERCE_E_UNSUPPORTED);
        return;
    case TIERCE__STORE_FLUSH: /* earlier puts are already in the store */
        break;
    }
    tierce__remote_answer(remote, req, 0);
}

/* The store has an order of its own, in which a read is a use: only hints are passed on. */
static void touch(struct tierce__tier *tier, const struct tierce__tier_uses *uses)
{
    struct tierce__remote *remote = TIERCE__CONTAINER_OF(tier, struct tierce__remote, base);
    const struct tierce__connector_ops *ops = remote->connector->ops;
    if (uses->origin.hint == TIERCE__HINT_NONE || ops->hint == NULL || uses->count == 0)
        return;
    size_t named;
    struct tierce_plugin_name *names =
        tierce__remote_names(remote, uses->keys, uses->count, &named);
    if (names != NULL && named > 0 && begin_call(remote)) {
        ops->hint(remote->connector, names, named, (enum tierce__policy_hint)uses->origin.hint);
        end_call(remote);
    }
    tierce__free(names);
}

static void tell_stats(struct tierce__tier *tier, struct tierce__tier_stats *out)
{
    struct tierce__remote *remote = TIERCE__CONTAINER_OF(tier, struct tierce__remote, base);
    tierce__lock_take(&remote->lock);
    TIERCE_DASSERT((remote->waiting_bytes == 0) == tierce__list_empty(&remote->waiting));
    TIERCE_DASSERT((remote->writing_bytes == 0) == tierce__list_empty(&remote->writing));
    *out = remote->stats;
    out->queued_bytes = remote->waiting_bytes + remote->writing_bytes;
    tierce__lock_drop(&remote->lock);
    remote->connector->ops->stats(remote->connector, out);
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
    tierce__lock_assert_held(&remote->lock);
    return !remote->running && remote->submitting == 0;
}

static void destroy(struct tierce__remote *remote)
{
    TIERCE_DASSERT(tierce__list_empty(&remote->events) && remote->requests == 0);
    TIERCE_DASSERT(tierce__list_empty(&remote->waiting) && tierce__list_empty(&remote->writing));
    TIERCE_DASSERT(tierce__list_empty(&remote->wholes) && tierce__list_empty(&remote->timed));
    TIERCE_DASSERT(tierce__list_empty(&remote->clears) && tierce__list_empty(&remote->deletions));
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
    TIERCE_DASSERT(!remote->closing);
    remote->closing = true;
    bool in_time = true;
    while (remote->requests > 0 && in_time)
        in_time = tierce__cond_wait(&remote->changed, &remote->lock, deadline_ns - last_ns);
    remote->cut = true;
    uint64_t unwritten = remote->waiting_bytes + remote->writing_bytes;
    tierce__lock_drop(&remote->lock);
    if (unwritten > 0)
        tierce__log(TIERCE_LOG_WARN, "remote_closed_early",
                    "tier=%s bytes=%llu consequence=\"queued chunks of so many bytes may not be in "
                    "the store\" hint=\"raise timeout.close, or see why the store is slow\"",
                    remote->name, (unsigned long long)unwritten);
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
    TIERCE_DASSERT(remote->waiting_bytes + remote->writing_bytes == 0 && remote->writes == 0);
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
    if ((opts->connector->caps & TIERCE__CONNECTOR_NO_DELETE) != 0 || opts->read_only)
        remote->ops.caps |= TIERCE__TIER_KEEPS;
    if ((opts->connector->caps & TIERCE__CONNECTOR_PINGS) != 0)
        remote->ops.caps |= TIERCE__TIER_PINGS;
    remote->ops.read_bytes = opts->connector->read_bytes;
    remote->base.ops = &remote->ops;
    remote->connector = opts->connector;
    remote->namespaces = opts->namespaces;
    remote->queue_bytes_max = opts->queue_bytes > 0 ? opts->queue_bytes : QUEUE_BYTES;
    remote->writes_max = opts->writes > 0 ? opts->writes : WRITES;
    if ((opts->connector->caps & TIERCE__CONNECTOR_ASKS) != 0 && remote->writes_max < WRITES_ASKS)
        remote->writes_max = WRITES_ASKS;
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
