/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/reporter.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/text/url.h"
#include "base/text/zone.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "core/key/chunk_number.h"
#include "core/key/model_name.h"
#include "core/key/namespaces.h"
#include "engine/engine.h"
#include "engine/own_tiers.h"
#include "engine/observe/directory_commands.h"
#include "engine/observe/engine_events.h"
#include "net/host_id.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "store/remote/fleet/fleet_manager.h"

enum {
    QUEUE_DEFAULT = 65536, /* changes that wait: 2 MiB */
    REPORT_MAX = 2048,     /* of one call */
    TIERS_MAX = 8,
    EVICTED = 8, /* as ReportChunks marks it */
    CALL_MS = 1000,
    RETRY_MS = 500,
    PAUSE_MS = 100, /* before all contents are sent again, doubled each time */
    DOUBLINGS_MAX = 20,
    SILENCE_MS = 10000, /* until a manager has told the real one */
    /* Within these: directory.silence of a manager. */
    SILENCE_MIN_MS = 100,
    SILENCE_MAX_MS = 3600000,
    CALLS_IN_SILENCE = 4,
    MODELS_BYTES = 128,
    MODELS_MAX = 64, /* namespaces whose models are named */
};

struct change {
    struct tierce__chunk_number key;
    int32_t tier; /* plus EVICTED */
};

/* Changes of one call, as the message has them. */
struct parcel {
    size_t count;
    int64_t keys[2 * REPORT_MAX];
    int32_t tiers[REPORT_MAX];
};

struct tierce__reporter {
    struct tierce_engine *engine;
    struct tierce__fleet_manager *manager;
    struct tierce_subscription *subscription;
    char name[128], host_id[TIERCE__HOST_ID_BYTES], group[128], address[128];
    char zone[TIERCE__ZONE_BYTES];
    const char *(*find_address)(void *arg);
    void (*joined)(void *arg, const struct tierce__reporter_place *place);
    uint32_t (*load)(void *arg);
    void *arg; /* of all three */
    pthread_t thread;
    _Atomic bool is_ending; /* relaxed: a flag alone; a wake follows */

    /* The thread's. */
    struct tierce__fleet_call call; /* the manager's until is_answered, or until it is closed */
    bool is_answered, is_given_up;
    bool uses_tls, is_joined, is_complete, is_troubled;
    uint32_t resyncs;       /* one after another */
    uint64_t complete_ns;   /* when all contents were last sent */
    size_t report_max;      /* changes of one call */
    _Atomic bool ends_scan; /* relaxed: a flag alone */
    int64_t session;
    int32_t slot;
    uint64_t next;   /* number of the first change that was not reported */
    int64_t sending; /* number of the last sending of all contents */
    uint64_t beat_ns, silence_ms;
    uint64_t address_ns; /* the address is searched for again */
    struct parcel parcel;
    Meta__ReportAnswer contents; /* how the contents that are being sent were answered */
    struct tierce__directory_commands *commands;
    uint32_t namespaces; /* of the models that were reported last */

    struct tierce__lock lock; /* REPORTER: below */
    bool is_following;        /* the queue has every change since its first one */
    uint64_t first;           /* number of the queue's first change */
    uint32_t head, count, queue_max;
    struct change *queue; /* [queue_max] */
};

static bool is_ending(const struct tierce__reporter *r)
{
    return atomic_load_explicit(&r->is_ending, memory_order_relaxed);
}

/* ---- the queue ------------------------------------------------------------------------------- */

/* The tier's number (own_tiers.h); TIERS_MAX: it is not reported. */
static int32_t tier_of(const struct tierce_engine *engine, const char *name)
{
    size_t level = 0;
    while (level < engine->level_count && engine->levels[level].tier->ops->name != name)
        level++;
    return level < engine->level_count && level < TIERS_MAX
               ? (int32_t)tierce__level_number(engine, level)
               : TIERS_MAX;
}

static struct change change_of(const struct tierce_engine *engine, const struct tierce_event *event)
{
    struct change change = {
        .key = tierce__chunk_number(event->ns_digest, &event->shard, event->hash),
        .tier = tier_of(engine, event->tier),
    };
    TIERCE_DASSERT(change.tier < TIERS_MAX);
    change.tier += event->kind == TIERCE_EVENT_EVICT ? EVICTED : 0;
    return change;
}

/* Under the lock. */
static void add(struct tierce__reporter *r, const struct tierce_event *event)
{
    if (r->count == 0)
        r->first = event->sequence;
    TIERCE_DASSERT(event->sequence == r->first + r->count);
    r->queue[(r->head + r->count) % r->queue_max] = change_of(r->engine, event);
    r->count++;
}

/* Of the subscription. Changes that do not fit are found again in the contents. */
static void on_events(void *arg, const struct tierce_event_batch *batch)
{
    struct tierce__reporter *r = arg;
    tierce__lock_take(&r->lock);
    if (batch->gap || r->count + batch->count > r->queue_max) {
        r->is_following = false;
        r->count = 0;
    }
    for (size_t i = 0; r->is_following && i < batch->count; i++)
        add(r, &batch->events[i]);
    tierce__lock_drop(&r->lock);
    tierce__fleet_manager_wake(r->manager);
}

/* From now on every change is kept. */
static void follow(struct tierce__reporter *r)
{
    tierce__lock_take(&r->lock);
    r->is_following = true;
    r->count = 0;
    tierce__lock_drop(&r->lock);
}

static void put(struct parcel *parcel, const struct change *change)
{
    TIERCE_DASSERT(parcel->count < REPORT_MAX);
    parcel->keys[2 * parcel->count] = (int64_t)change->key.high;
    parcel->keys[2 * parcel->count + 1] = (int64_t)change->key.low;
    parcel->tiers[parcel->count++] = change->tier;
}

/* Copies the next changes; those before `next` are dropped. False: changes were lost. */
static bool peek(struct tierce__reporter *r)
{
    r->parcel.count = 0;
    tierce__lock_take(&r->lock);
    bool is_following = r->is_following;
    while (r->count > 0 && r->first < r->next) {
        r->head = (r->head + 1) % r->queue_max;
        r->first++;
        r->count--;
    }
    for (uint32_t i = 0; i < r->count && i < r->report_max; i++)
        put(&r->parcel, &r->queue[(r->head + i) % r->queue_max]);
    TIERCE_DASSERT(r->parcel.count == 0 || r->first == r->next);
    tierce__lock_drop(&r->lock);
    return is_following;
}

static bool has_changes(struct tierce__reporter *r)
{
    tierce__lock_take(&r->lock);
    bool has_any = r->count > 0 || !r->is_following;
    tierce__lock_drop(&r->lock);
    return has_any;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void take_trouble(struct tierce__reporter *r, const char *why)
{
    if (!r->is_troubled)
        tierce__log(TIERCE_LOG_WARN, "directory_unreachable",
                    "worker=\"%s\" err=\"%s\" consequence=\"others do not find this engine's "
                    "chunks\"",
                    r->name, why);
    r->is_troubled = true;
}

static void end_trouble(struct tierce__reporter *r)
{
    if (r->is_troubled)
        tierce__log(TIERCE_LOG_INFO, "directory_reachable", "worker=\"%s\"", r->name);
    r->is_troubled = false;
}

static void on_done(struct tierce__fleet_call *call)
{
    *(bool *)call->arg = true;
}

/* Returns the reply, or NULL. A call that has not ended when the reporter begins to end is given
 * up, and dropped with the connection: no other call follows it. */
static ProtobufCMessage *ask(struct tierce__reporter *r, const char *method,
                             const ProtobufCMessage *request,
                             const ProtobufCMessageDescriptor *answers)
{
    struct tierce__fleet_call *call = &r->call;
    bool is_last = is_ending(r); /* LeaveDirectory */
    if (r->is_given_up)
        return NULL;
    r->is_answered = false;
    uint64_t deadline_ns = tierce__deadline_in_ms(CALL_MS);
    *call = (struct tierce__fleet_call){.method = method,
                                        .request = request,
                                        .answers = answers,
                                        .deadline_ns = deadline_ns,
                                        .repeats = true,
                                        .done = on_done,
                                        .arg = &r->is_answered};
    tierce__fleet_manager_start(r->manager, call);
    while (!r->is_answered && (is_last || !is_ending(r)))
        tierce__fleet_manager_poll(r->manager, deadline_ns);
    r->is_given_up = !r->is_answered;
    if (r->is_given_up)
        return NULL;
    if (call->status != 0 && !is_last)
        take_trouble(r, call->why);
    return call->status == 0 ? call->reply : NULL;
}

static uint64_t beat_ms(const struct tierce__reporter *r)
{
    return r->silence_ms / CALLS_IN_SILENCE > 0 ? r->silence_ms / CALLS_IN_SILENCE : 1;
}

static void set_complete(struct tierce__reporter *r, bool is_complete)
{
    r->is_complete = is_complete;
    atomic_store_explicit(&r->engine->reports.is_complete, is_complete, memory_order_relaxed);
}

/* A manager's number, which may be wrong. */
static uint64_t within(int64_t number, int64_t least, int64_t most)
{
    return (uint64_t)(number < least ? least : number > most ? most : number);
}

static void join(struct tierce__reporter *r)
{
    Meta__JoinDirectoryRequest request = META__JOIN_DIRECTORY_REQUEST__INIT;
    request.instance_group = r->group;
    request.worker = r->name;
    request.host_id = r->host_id;
    request.zone = r->zone;
    request.transfer_address = r->address;
    request.transfer_tls = r->uses_tls;
    request.takes_commands = true;
    Meta__JoinDirectoryResponse *reply = (Meta__JoinDirectoryResponse *)ask(
        r, "JoinDirectory", &request.base, &meta__join_directory_response__descriptor);
    if (reply == NULL)
        return;
    r->session = reply->session;
    r->slot = reply->slot;
    r->silence_ms = within(reply->silence_ms > 0 ? reply->silence_ms : SILENCE_MS, SILENCE_MIN_MS,
                           SILENCE_MAX_MS);
    bool is_less = reply->changes_max > 0 && reply->changes_max < REPORT_MAX;
    r->report_max = is_less ? (size_t)reply->changes_max : REPORT_MAX;
    r->is_joined = true;
    r->namespaces = 0;
    set_complete(r, false);
    tierce__directory_commands_join(r->commands, r->session);
    if (r->joined != NULL)
        r->joined(r->arg, &(struct tierce__reporter_place){
                              .session = r->session, .slot = r->slot, .secret = reply->secret});
    explicit_bzero(reply->secret, strlen(reply->secret));
    tierce__proto_free(&reply->base);
}

/* The address may be found later, for instance because a name was not known before. */
static void find_address(struct tierce__reporter *r)
{
    bool is_early = r->is_joined && tierce__now_ns() < r->address_ns;
    if (r->address[0] != '\0' || r->find_address == NULL || is_early)
        return;
    const char *address = r->find_address(r->arg);
    r->address_ns = tierce__deadline_in_ms((uint32_t)beat_ms(r));
    if (address == NULL || strlen(address) >= sizeof(r->address))
        return;
    memcpy(r->address, address, strlen(address) + 1);
    r->is_joined = false; /* it joins again, with the address */
}

static bool has_model(const char *models, const char *name)
{
    size_t bytes = strlen(name);
    for (const char *at = models; (at = strstr(at, name)) != NULL; at += bytes) {
        bool begins = at == models || at[-1] == ' ';
        if (begins && (at[bytes] == '\0' || at[bytes] == ','))
            return true;
    }
    return false;
}

/* The names of the models of the engine's namespaces, as many as have room. */
static void list_models(struct tierce_engine *engine, char models[MODELS_BYTES])
{
    size_t used = 0;
    uint32_t count = tierce__namespaces_count(engine->namespaces);
    for (uint32_t id = 0; id < count && id < MODELS_MAX; id++) {
        char name[MODELS_BYTES];
        const char *text = tierce__namespaces_text(engine->namespaces, id);
        if (text == NULL)
            continue;
        tierce__model_name_of_namespace(name, sizeof(name), text);
        size_t bytes = strlen(name), comma = used > 0 ? 2 : 0;
        if (bytes == 0 || has_model(models, name) || used + comma + bytes >= MODELS_BYTES)
            continue;
        memcpy(models + used, ", ", comma);
        memcpy(models + used + comma, name, bytes + 1);
        used += comma + bytes;
    }
}

/* Sends the parcel. RA_UNSPECIFIED: no manager answers. */
static Meta__ReportAnswer report(struct tierce__reporter *r, Meta__ReportKind kind, uint64_t first,
                                 uint64_t *wait_ms)
{
    Meta__ReportChunksRequest request = META__REPORT_CHUNKS_REQUEST__INIT;
    request.instance_group = r->group;
    request.session = r->session;
    request.slot = r->slot;
    request.kind = kind;
    request.first = (int64_t)first;
    request.load = r->load != NULL ? r->load(r->arg) : 0;
    request.sending = kind != META__REPORT_KIND__RK_CHANGES ? r->sending : 0;
    request.n_keys = 2 * r->parcel.count;
    request.keys = r->parcel.keys;
    request.n_tiers = r->parcel.count;
    request.tiers = r->parcel.tiers;
    char models[MODELS_BYTES] = "";
    uint32_t namespaces = tierce__namespaces_count(r->engine->namespaces);
    if (namespaces != r->namespaces)
        list_models(r->engine, models);
    request.models = models;
    tierce__directory_commands_put(r->commands, &request);
    r->beat_ns = tierce__now_ns();
    Meta__ReportChunksResponse *reply = (Meta__ReportChunksResponse *)ask(
        r, "ReportChunks", &request.base, &meta__report_chunks_response__descriptor);
    if (reply == NULL)
        return META__REPORT_ANSWER__RA_UNSPECIFIED;
    Meta__ReportAnswer answer = reply->answer;
    *wait_ms = within(reply->wait_ms, 0, (int64_t)r->silence_ms / 2);
    r->namespaces = namespaces;
    tierce__directory_commands_sent(r->commands);
    tierce__directory_commands_take(r->commands, reply);
    tierce__proto_free(&reply->base);
    r->parcel.count = 0;
    if (answer == META__REPORT_ANSWER__RA_UNKNOWN)
        r->is_joined = false;
    return answer;
}

/* ---- all contents ---------------------------------------------------------------------------- */

/* All contents are to be sent again. Returns after how many ms: each time after twice as many,
 * because what makes it necessary may last, but before the manager takes this worker for silent. */
static uint64_t begin_again(struct tierce__reporter *r, const char *why)
{
    if (tierce__now_ns() - r->complete_ns >= r->silence_ms * TIERCE__MS_NS && r->is_complete)
        r->resyncs = 0;
    set_complete(r, false);
    uint32_t doublings = r->resyncs < DOUBLINGS_MAX ? r->resyncs : DOUBLINGS_MAX;
    uint64_t ms = (uint64_t)PAUSE_MS << doublings;
    ms = ms < beat_ms(r) ? ms : beat_ms(r);
    r->resyncs++;
    atomic_fetch_add_explicit(&r->engine->reports.resyncs, 1, memory_order_relaxed);
    if ((r->resyncs & (r->resyncs - 1)) == 0)
        tierce__log(
            TIERCE_LOG_WARN, "directory_resync",
            "worker=\"%s\" why=\"%s\" times=%u pause_ms=%llu consequence=\"all contents are "
            "sent again\"",
            r->name, why, (unsigned)r->resyncs, (unsigned long long)ms);
    return ms;
}

static void send_part(struct tierce__reporter *r)
{
    uint64_t wait_ms;
    if (r->parcel.count > 0 && r->contents == META__REPORT_ANSWER__RA_DONE)
        r->contents = report(r, META__REPORT_KIND__RK_CONTENTS, 0, &wait_ms);
    r->parcel.count = 0;
}

static void on_contents(void *arg, const struct tierce_event_batch *batch)
{
    struct tierce__reporter *r = arg;
    for (size_t i = 0; i < batch->count; i++) {
        if (is_ending(r) || r->contents != META__REPORT_ANSWER__RA_DONE) {
            atomic_store_explicit(&r->ends_scan, true, memory_order_relaxed);
            return;
        }
        struct change change = change_of(r->engine, &batch->events[i]);
        put(&r->parcel, &change);
        if (r->parcel.count == r->report_max)
            send_part(r);
    }
}

/* Returns after how many ms it is to be tried again; 0: all contents are there. */
static uint64_t send_contents(struct tierce__reporter *r)
{
    uint64_t wait_ms = 0, covered = 0;
    r->parcel.count = 0;
    r->sending++;
    r->contents = report(r, META__REPORT_KIND__RK_BEGIN, 0, &wait_ms);
    if (r->contents != META__REPORT_ANSWER__RA_DONE)
        return wait_ms > 0 ? wait_ms : RETRY_MS;
    follow(r);
    atomic_store_explicit(&r->ends_scan, false, memory_order_relaxed);
    int rc = tierce__events_snapshot(r->subscription, &covered, on_contents, r, &r->ends_scan);
    if (rc < 0 || is_ending(r))
        return RETRY_MS;
    send_part(r);
    if (r->contents == META__REPORT_ANSWER__RA_DONE)
        r->contents = report(r, META__REPORT_KIND__RK_END, covered, &wait_ms);
    if (r->contents == META__REPORT_ANSWER__RA_RESYNC)
        return begin_again(r, "the manager takes this sending no more");
    if (r->contents != META__REPORT_ANSWER__RA_DONE)
        return RETRY_MS;
    set_complete(r, true);
    r->complete_ns = tierce__now_ns();
    r->next = covered + 1;
    tierce__log(TIERCE_LOG_INFO, "directory_complete", "worker=\"%s\"", r->name);
    end_trouble(r);
    return 0;
}

/* ---- changes --------------------------------------------------------------------------------- */

/* Returns after how many ms the next call is due, unless there are changes. */
static uint64_t send_changes(struct tierce__reporter *r)
{
    uint64_t wait_ms;
    if (!peek(r))
        return begin_again(r, "more changes than the queue or events.ring hold");
    size_t count = r->parcel.count;
    uint64_t age_ms = (tierce__now_ns() - r->beat_ns) / TIERCE__MS_NS;
    if (count == 0 && age_ms < beat_ms(r) && !tierce__directory_commands_has_results(r->commands))
        return beat_ms(r) - age_ms;
    Meta__ReportAnswer answer = report(r, META__REPORT_KIND__RK_CHANGES, r->next, &wait_ms);
    if (answer == META__REPORT_ANSWER__RA_DONE) {
        r->next += count;
        end_trouble(r);
        return count > 0 ? 0 : beat_ms(r);
    }
    if (answer == META__REPORT_ANSWER__RA_RESYNC)
        return begin_again(r, "numbers of changes are missing");
    if (answer == META__REPORT_ANSWER__RA_UNKNOWN)
        return begin_again(r, "the manager does not know this worker");
    /* No answer: the changes stay in the queue, and are reported again. */
    take_trouble(r, "the manager's answer does not fit a report of changes");
    return RETRY_MS;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static bool has_work(struct tierce__reporter *r)
{
    return has_changes(r) || tierce__directory_commands_has_results(r->commands);
}

/* Until the time, or, if all contents are sent and `changes` end the wait, until there are some, or
 * results of commands. */
static void wait_for_work(struct tierce__reporter *r, uint64_t ms, bool changes)
{
    uint64_t until_ns = tierce__deadline_in_ms((uint32_t)ms);
    while (!is_ending(r) && tierce__now_ns() < until_ns && !(changes && has_work(r)))
        tierce__fleet_manager_poll(r->manager, until_ns);
}

static void leave(struct tierce__reporter *r)
{
    Meta__LeaveDirectoryRequest request = META__LEAVE_DIRECTORY_REQUEST__INIT;
    request.instance_group = r->group;
    request.session = r->session;
    request.slot = r->slot;
    if (r->is_joined && !r->is_troubled)
        tierce__proto_free(
            ask(r, "LeaveDirectory", &request.base, &meta__leave_directory_response__descriptor));
}

static void *run(void *arg)
{
    struct tierce__reporter *r = arg;
    while (!is_ending(r)) {
        find_address(r);
        if (!r->is_joined)
            join(r);
        if (!r->is_joined) {
            wait_for_work(r, RETRY_MS, false);
        } else if (!r->is_complete) {
            wait_for_work(r, send_contents(r), false);
        } else {
            uint64_t ms = send_changes(r);
            wait_for_work(r, ms, r->is_complete && !r->is_troubled);
        }
    }
    leave(r);
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

static bool is_group(const char *path)
{
    return strlen(path) < 128 && strchr(path + (path[0] == '/'), '/') == NULL;
}

/* The group is decoded in place. */
static int read_url(struct tierce__url *url, const char *text, char why[256])
{
    return tierce__fleet_manager_read_url(
        url, text, is_group,
        "fleet://HOST:PORT[,HOST:PORT][/GROUP] or fleet+tls://..., with the managers' gRPC ports, "
        "and at most 127 bytes of a group's name",
        why);
}

/* A name that no other engine has, of this host or of another. */
static int name_worker(struct tierce__reporter *r)
{
    char host[65] = "";
    uint32_t chance;
    if (getrandom(&chance, sizeof(chance), 0) != (ssize_t)sizeof(chance))
        return -EIO;
    (void)gethostname(host, sizeof(host) - 1);
    snprintf(r->name, sizeof(r->name), "%s:%d:%08x", host, (int)getpid(), (unsigned)chance);
    return 0;
}

static int take_opts(struct tierce__reporter *r, const struct tierce__reporter_opts *opts,
                     char why[256])
{
    const char *address = opts->transfer_address != NULL ? opts->transfer_address : "";
    r->queue_max = opts->queue_max > 0 ? opts->queue_max : QUEUE_DEFAULT;
    r->uses_tls = opts->uses_tls;
    snprintf(r->zone, sizeof(r->zone), "%s", opts->zone != NULL ? opts->zone : "");
    r->find_address = opts->find_address;
    r->joined = opts->joined;
    r->load = opts->load;
    r->arg = opts->arg;
    if (strlen(address) >= sizeof(r->address)) {
        snprintf(why, 256, "the transfer address '%s' has more than %zu bytes", address,
                 sizeof(r->address) - 1);
        return TIERCE_E_CONFIG;
    }
    memcpy(r->address, address, strlen(address) + 1);
    return 0;
}

/* Of the thread of commands. */
static void on_result(void *arg)
{
    struct tierce__reporter *r = arg;
    tierce__fleet_manager_wake(r->manager);
}

static int open_reporter(struct tierce__reporter *r, const struct tierce__url *url, char why[256])
{
    const struct tierce__fleet_manager_opts manager = {.size = sizeof(manager), .url = url};
    const struct tierce_events_opts events = {
        .size = sizeof(events), .fn = on_events, .arg = r, .batch_max = REPORT_MAX};
    snprintf(r->group, sizeof(r->group), "%s", url->path + (url->path[0] == '/'));
    tierce__host_id(r->host_id);
    r->silence_ms = SILENCE_MS;
    r->report_max = REPORT_MAX;
    r->resyncs = 0;
    r->queue = tierce__calloc(r->queue_max, sizeof(*r->queue));
    int rc = r->queue != NULL ? name_worker(r) : -ENOMEM;
    if (rc == 0)
        rc = tierce__fleet_manager_open(&r->manager, &manager, why);
    if (rc == 0)
        rc = tierce__directory_commands_create(
            &r->commands, &(struct tierce__directory_commands_opts){
                              .size = sizeof(struct tierce__directory_commands_opts),
                              .engine = r->engine,
                              .ended = on_result,
                              .arg = r});
    if (rc == 0) {
        why[0] = '\0';
        rc = tierce__events_subscribe(&r->subscription, r->engine, &events);
    }
    if (rc == 0)
        rc = tierce__thread_start(&r->thread, run, r);
    return rc;
}

static void destroy(struct tierce__reporter *r)
{
    if (r->subscription != NULL)
        tierce__events_unsubscribe(r->subscription);
    tierce__directory_commands_stop(r->commands); /* it wakes the manager's calls */
    tierce__fleet_manager_close(r->manager);
    tierce__lock_fini(&r->lock);
    tierce__free(r->queue);
    tierce__free(r);
}

int tierce__reporter_start(struct tierce__reporter **out, struct tierce_engine *engine,
                           const struct tierce__reporter_opts *opts, char why[256])
{
    struct tierce__url parsed = {0};
    why[0] = '\0';
    TIERCE_DASSERT(opts->size == sizeof(*opts));
    int rc = read_url(&parsed, opts->url, why);
    if (rc != 0)
        return rc;
    struct tierce__reporter *r = tierce__calloc(1, sizeof(*r));
    if (r != NULL) {
        r->engine = engine;
        tierce__lock_init(&r->lock, TIERCE__LOCK_REPORTER);
        rc = take_opts(r, opts, why);
        if (rc == 0)
            rc = open_reporter(r, &parsed, why);
    } else {
        rc = -ENOMEM;
    }
    tierce__url_clear(&parsed);
    if (rc == 0)
        *out = r;
    else if (r != NULL)
        destroy(r);
    if (rc != 0 && why[0] == '\0')
        snprintf(why, 256, "%s", tierce_strerror(rc));
    return rc;
}

void tierce__reporter_stop(struct tierce__reporter *reporter)
{
    if (reporter == NULL)
        return;
    atomic_store_explicit(&reporter->is_ending, true, memory_order_relaxed);
    atomic_store_explicit(&reporter->ends_scan, true, memory_order_relaxed);
    tierce__fleet_manager_wake(reporter->manager);
    (void)pthread_join(reporter->thread, NULL);
    destroy(reporter);
}
