/* SPDX-License-Identifier: Apache-2.0 */
#include "node/part/join.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/log/log.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "net/host_id.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "store/remote/fleet/fleet_manager.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <tierce/tierce.h>

enum {
    CALL_MS = 1000,
    FIRST_LEASE_MS = 4000, /* until a manager has told the real one */
    LEASE_MS_MIN = 40,
    CALLS_IN_LEASE = 4,
    NEWS_MS = 100, /* between calls because of news, at least */
    LEAVE_MS = 1000,
};

struct tierce__join {
    struct tierce__fleet_manager *manager;
    char *node, *address, *pool;
    char host_id[TIERCE__HOST_ID_BYTES];
    bool uses_tls;
    struct tierce__parts *parts;
    uint64_t (*moved_bytes)(void *arg);
    void *arg;

    pthread_t thread;
    _Atomic bool is_ending; /* relaxed: a flag alone; a wake follows */
    _Atomic bool is_due;    /* the same: a part has changed */

    /* The thread's. */
    uint64_t lease_ms, moved, moved_ns;
    size_t sent[TIERCE__PARTS_MAX], sent_count; /* which parts the last call named */
    bool must_forget[TIERCE__PARTS_MAX];

    struct tierce__lock lock; /* JOIN: below */
    struct tierce__join_state state;
    uint64_t lease_ends_ns;
};

/* ---- the request ----------------------------------------------------------------------------- */

struct message {
    Meta__RegisterNodeRequest request;
    Meta__NodePart parts[TIERCE__PARTS_MAX], *part_list[TIERCE__PARTS_MAX];
    char incarnations[TIERCE__PARTS_MAX][2 * TIERCE__PART_INCARNATION_BYTES + 1];
};

static void put_part(struct message *message, const struct tierce__part_state *state)
{
    size_t at = message->request.n_parts++;
    Meta__NodePart *part = &message->parts[at];
    TIERCE_ASSERT(at < TIERCE__PARTS_MAX && state->is_ready);
    meta__node_part__init(part);
    tierce__hex_encode(message->incarnations[at], state->incarnation, sizeof(state->incarnation));
    part->medium = strcmp(state->space, "disk") == 0 ? META__NODE_MEDIUM__NM_DISK
                                                     : META__NODE_MEDIUM__NM_MEMORY;
    part->incarnation = message->incarnations[at];
    part->capacity_bytes = (int64_t)state->capacity_bytes;
    part->used_bytes = (int64_t)state->used_bytes;
    part->object_count = (int64_t)state->objects;
    message->part_list[at] = part;
}

/* Bytes per second that the server has moved since the last call. */
static int64_t load_of(struct tierce__join *join)
{
    uint64_t now_ns = tierce__now_ns(), moved = join->moved_bytes(join->arg);
    double seconds = (double)(now_ns - join->moved_ns) / 1e9;
    uint64_t since = moved - join->moved;
    join->moved = moved;
    join->moved_ns = now_ns;
    return seconds > 0 ? (int64_t)((double)since / seconds) : 0;
}

/* Parts that cannot be used are not named. */
static void fill_message(struct message *message, struct tierce__join *join, bool is_leaving)
{
    *message = (struct message){0};
    meta__register_node_request__init(&message->request);
    message->request.node = join->node;
    message->request.pool = join->pool;
    message->request.address = join->address;
    message->request.uses_tls = join->uses_tls;
    message->request.version = (char *)(uintptr_t)tierce_version();
    message->request.host_id = join->host_id;
    message->request.load_bytes_per_s = load_of(join);
    message->request.is_leaving = is_leaving;
    message->request.parts = message->part_list;
    join->sent_count = 0;
    for (size_t i = 0; i < tierce__parts_count(join->parts); i++) {
        struct tierce__part_state state;
        tierce__parts_state(join->parts, i, &state);
        if (!state.is_ready)
            continue;
        put_part(message, &state);
        join->sent[join->sent_count++] = i;
    }
}

/* ---- the answer ------------------------------------------------------------------------------ */

static const char *state_name(Meta__NodePartState state)
{
    switch ((int)state) {
    case META__NODE_PART_STATE__NPS_SERVES:
        return "serves";
    case META__NODE_PART_STATE__NPS_EMPTYING:
        return "emptying";
    case META__NODE_PART_STATE__NPS_DISABLED:
        return "disabled";
    case META__NODE_PART_STATE__NPS_REJECTED:
        return "rejected";
    case META__NODE_PART_STATE__NPS_FORGOTTEN:
        return "forgotten";
    default:
        return "unknown";
    }
}

/* A manager's words, for a log line. */
static void clean(char *out, size_t room, const char *text)
{
    tierce__text_for_message(out, room, text != NULL ? text : "");
    for (; *out != '\0'; out++)
        *out = *out == '"' ? '\'' : *out;
}

static void take_part(struct tierce__join *join, size_t index, const Meta__RegisteredPart *part)
{
    const char *name = state_name(part->state);
    char storage[128], reason[160];
    clean(storage, sizeof(storage), part->storage);
    clean(reason, sizeof(reason), part->reason);
    tierce__lock_take(&join->lock);
    bool is_news = join->state.parts[index].state != name;
    join->state.parts[index].state = name;
    memcpy(join->state.parts[index].storage, storage, sizeof(storage));
    tierce__lock_drop(&join->lock);
    join->must_forget[index] = part->state == META__NODE_PART_STATE__NPS_FORGOTTEN;
    if (!is_news)
        return;
    bool is_good = part->state == META__NODE_PART_STATE__NPS_SERVES ||
                   part->state == META__NODE_PART_STATE__NPS_EMPTYING;
    tierce__log(is_good ? TIERCE_LOG_INFO : TIERCE_LOG_WARN, "node_part",
                "pool=%s storage=%s state=\"%s\" reason=\"%s\"", join->pool, storage, name, reason);
}

static void take_answer(struct tierce__join *join, const Meta__RegisterNodeResponse *reply,
                        uint64_t sent_ns)
{
    uint64_t lease_ms = reply->lease_ms > LEASE_MS_MIN ? (uint64_t)reply->lease_ms : LEASE_MS_MIN;
    join->lease_ms = lease_ms;
    for (size_t i = 0; i < reply->n_parts && i < join->sent_count; i++)
        take_part(join, join->sent[i], reply->parts[i]);
    tierce__lock_take(&join->lock);
    bool is_news = !join->state.is_joined;
    join->state.is_joined = true;
    join->state.why[0] = '\0';
    join->lease_ends_ns = sent_ns + lease_ms * TIERCE__MS_NS;
    tierce__lock_drop(&join->lock);
    if (is_news)
        tierce__log(TIERCE_LOG_INFO, "node_joined", "pool=%s node=%s lease_ms=%llu", join->pool,
                    join->node, (unsigned long long)lease_ms);
}

static void take_failure(struct tierce__join *join, const char *why)
{
    tierce__lock_take(&join->lock);
    join->state.failures++;
    bool is_news = join->state.why[0] == '\0';
    join->state.is_joined = join->state.is_joined && tierce__now_ns() < join->lease_ends_ns;
    snprintf(join->state.why, sizeof(join->state.why), "%s", why);
    tierce__lock_drop(&join->lock);
    if (is_news)
        tierce__log(TIERCE_LOG_WARN, "node_not_joined", "pool=%s node=%s err=\"%s\"", join->pool,
                    join->node, why);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void on_done(struct tierce__fleet_call *call)
{
    *(bool *)call->arg = true;
}

static void register_node(struct tierce__join *join, bool is_leaving, uint64_t deadline_ns)
{
    struct message message;
    bool is_done = false;
    fill_message(&message, join, is_leaving);
    if (join->sent_count == 0)
        return; /* the parts are being read */
    uint64_t sent_ns = tierce__now_ns();
    struct tierce__fleet_call call = {.method = "RegisterNode",
                                      .request = &message.request.base,
                                      .answers = &meta__register_node_response__descriptor,
                                      .deadline_ns = deadline_ns,
                                      .repeats = true,
                                      .done = on_done,
                                      .arg = &is_done};
    tierce__fleet_manager_start(join->manager, &call);
    while (!is_done)
        tierce__fleet_manager_poll(join->manager, deadline_ns);
    tierce__lock_take(&join->lock);
    join->state.calls++;
    tierce__lock_drop(&join->lock);
    if (call.status == 0)
        take_answer(join, (const Meta__RegisterNodeResponse *)call.reply, sent_ns);
    else
        take_failure(join, call.why);
    tierce__proto_free(call.reply);
}

/* Parts are emptied beside the calls, so that the leases of the others do not run out. */
static void forget_parts(struct tierce__join *join)
{
    for (size_t i = 0; i < tierce__parts_count(join->parts); i++) {
        if (!join->must_forget[i])
            continue;
        join->must_forget[i] = false;
        int rc = tierce__parts_forget(join->parts, i);
        if (rc != 0)
            tierce__log(TIERCE_LOG_ERROR, "node_part_forgotten", "pool=%s err=\"%s\"", join->pool,
                        tierce_strerror(rc));
    }
}

/* A part is ready, or empty: it is registered at once. */
static void on_changed(void *arg)
{
    struct tierce__join *join = arg;
    atomic_store_explicit(&join->is_due, true, memory_order_relaxed);
    tierce__fleet_manager_wake(join->manager);
}

/* Until it is time for the next call: a part of the lease, or less if there are news. */
static void wait_for_time(struct tierce__join *join, uint64_t called_ns)
{
    uint64_t next_ns = tierce__deadline_in_ms((uint32_t)(join->lease_ms / CALLS_IN_LEASE));
    uint64_t news_ns = called_ns + NEWS_MS * TIERCE__MS_NS;
    while (!atomic_load_explicit(&join->is_ending, memory_order_relaxed)) {
        bool is_due = atomic_load_explicit(&join->is_due, memory_order_relaxed);
        uint64_t until_ns = is_due && news_ns < next_ns ? news_ns : next_ns;
        if (tierce__now_ns() >= until_ns)
            return;
        tierce__fleet_manager_poll(join->manager, until_ns);
    }
}

static void *run(void *arg)
{
    struct tierce__join *join = arg;
    while (!atomic_load_explicit(&join->is_ending, memory_order_relaxed)) {
        uint64_t called_ns = tierce__now_ns();
        atomic_store_explicit(&join->is_due, false, memory_order_relaxed);
        register_node(join, false, tierce__deadline_in_ms(CALL_MS));
        forget_parts(join);
        wait_for_time(join, called_ns);
    }
    register_node(join, true, tierce__deadline_in_ms(LEAVE_MS));
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

static bool is_pool(const char *path)
{
    return path[0] == '/' && path[1] != '\0' && strchr(path + 1, '/') == NULL &&
           strchr(path, '.') == NULL;
}

static int read_url(struct tierce__url *url, const char *text, char why[256])
{
    return tierce__fleet_manager_read_url(
        url, text, is_pool,
        "fleet://HOST:PORT[,HOST:PORT]/POOL or fleet+tls://..., with the managers' gRPC ports, and "
        "a pool's name without '.' and '/'",
        why);
}

int tierce__join_check(const char *url, char why[256])
{
    struct tierce__url parsed = {0};
    int rc = read_url(&parsed, url, why);
    if (rc == 0)
        tierce__url_clear(&parsed);
    return rc;
}

static void destroy(struct tierce__join *join)
{
    if (join == NULL)
        return;
    tierce__fleet_manager_close(join->manager);
    tierce__free(join->node);
    tierce__free(join->address);
    tierce__free(join->pool);
    tierce__lock_fini(&join->lock);
    tierce__free(join);
}

static int open_join(struct tierce__join *join, const struct tierce__join_opts *opts,
                     const struct tierce__url *url, char why[256])
{
    const struct tierce__fleet_manager_opts manager = {.size = sizeof(manager), .url = url};
    join->node = tierce__strdup(opts->node);
    join->address = tierce__strdup(opts->address);
    join->pool = tierce__strdup(url->path + 1);
    if (join->node == NULL || join->address == NULL || join->pool == NULL)
        return -ENOMEM;
    int rc = tierce__fleet_manager_open(&join->manager, &manager, why);
    if (rc != 0)
        return rc;
    tierce__parts_watch(join->parts, on_changed, join);
    rc = tierce__thread_start(&join->thread, run, join);
    if (rc != 0)
        tierce__parts_watch(join->parts, NULL, NULL);
    return rc;
}

int tierce__join_start(struct tierce__join **out, const struct tierce__join_opts *opts,
                       char why[256])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts) && tierce__parts_count(opts->parts) > 0);
    struct tierce__url url = {0};
    struct tierce__join *join = NULL;
    int rc = read_url(&url, opts->url, why);
    if (rc != 0)
        return rc;
    join = tierce__calloc(1, sizeof(*join));
    if (join != NULL) {
        tierce__lock_init(&join->lock, TIERCE__LOCK_JOIN);
        tierce__host_id(join->host_id);
        join->uses_tls = opts->uses_tls;
        join->parts = opts->parts;
        join->moved_bytes = opts->moved_bytes;
        join->arg = opts->arg;
        join->lease_ms = FIRST_LEASE_MS;
        join->moved_ns = tierce__now_ns();
        for (size_t i = 0; i < TIERCE__PARTS_MAX; i++)
            join->state.parts[i].state = "not registered";
    }
    rc = join != NULL ? open_join(join, opts, &url, why) : -ENOMEM;
    tierce__url_clear(&url);
    if (rc == 0)
        *out = join;
    else
        destroy(join);
    if (rc == -ENOMEM || rc == -EAGAIN)
        snprintf(why, 256, "%s", tierce_strerror(rc));
    return rc;
}

void tierce__join_leave(struct tierce__join *join)
{
    atomic_store_explicit(&join->is_ending, true, memory_order_relaxed);
    tierce__fleet_manager_wake(join->manager);
}

void tierce__join_stop(struct tierce__join *join)
{
    if (join == NULL)
        return;
    tierce__join_leave(join);
    (void)pthread_join(join->thread, NULL);
    tierce__parts_watch(join->parts, NULL, NULL);
    destroy(join);
}

void tierce__join_state(struct tierce__join *join, struct tierce__join_state *out)
{
    tierce__lock_take(&join->lock);
    *out = join->state;
    out->is_joined = out->is_joined && tierce__now_ns() < join->lease_ends_ns;
    tierce__lock_drop(&join->lock);
}
