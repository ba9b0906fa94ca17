/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/lmcache/controller_private.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/log/log_repeat.h"
#include "base/mix.h"
#include "core/key/chunk_number.h"
#include "core/key/sha256.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define WORKERS_DEFAULT 1024u
#define SILENCE_DEFAULT (300 * 1000000000ULL)

/* The log line of a message, which is written once no lock is held. */
struct outcome {
    enum tierce_log_level level;
    const char *event; /* NULL: nothing */
    char text[TIERCE__CONTROLLER_WHY_BYTES];
};

static void __attribute__((format(printf, 4, 5)))
say(struct outcome *outcome, enum tierce_log_level level, const char *event, const char *format,
    ...)
{
    va_list args;
    va_start(args, format);
    outcome->level = level;
    outcome->event = event;
    vsnprintf(outcome->text, sizeof(outcome->text), format, args);
    va_end(args);
}

/* ---- the whole ------------------------------------------------------------------------------- */

int tierce__controller_create(struct tierce__controller **out,
                              const struct tierce__controller_opts *opts)
{
    TIERCE_DASSERT(opts->size == sizeof(*opts));
    struct tierce__controller *controller = tierce__calloc(1, sizeof(*controller));
    if (controller == NULL)
        return -ENOMEM;
    controller->opts = *opts;
    if (opts->workers_max == 0)
        controller->opts.workers_max = WORKERS_DEFAULT;
    if (opts->silence_ns == 0)
        controller->opts.silence_ns = SILENCE_DEFAULT;
    controller->directory = tierce__holdings_directory(opts->holdings);
    tierce__sha256(controller->space, "lmcache", strlen("lmcache"));
    tierce__lock_init(&controller->lock, TIERCE__LOCK_CONTROLLER);
    if (getrandom(&controller->seed, sizeof(controller->seed), 0) !=
        (ssize_t)sizeof(controller->seed)) {
        tierce__controller_destroy(controller);
        return -EIO;
    }
    *out = controller;
    return 0;
}

static void remove_worker(struct tierce__controller *controller,
                          struct tierce__controller_worker *worker);

void tierce__controller_destroy(struct tierce__controller *controller)
{
    if (controller == NULL)
        return;
    while (controller->first != NULL)
        remove_worker(controller, controller->first);
    tierce__map_fini(&controller->map);
    tierce__line_clear(&controller->scratch);
    tierce__lock_fini(&controller->lock);
    tierce__free(controller);
}

struct tierce__directory_key tierce__controller_key(const struct tierce__controller *controller,
                                                    struct tierce__lmcache_int number)
{
    uint8_t hash[TIERCE_HASH_BYTES] = {0};
    tierce__store_le64(hash, number.magnitude);
    hash[8] = number.negative;
    struct tierce__chunk_number key =
        tierce__chunk_number(controller->space, &(struct tierce_shard){0}, hash);
    return (struct tierce__directory_key){key.high, key.low};
}

/* ---- workers --------------------------------------------------------------------------------- */

static uint64_t hash_of(const struct tierce__controller *controller, const char *instance,
                        uint64_t worker)
{
    return tierce__mix(tierce__hash_text(controller->seed, instance) + worker);
}

struct tierce__controller_worker *tierce__controller_worker(struct tierce__controller *controller,
                                                            const char *instance, uint64_t worker)
{
    uint64_t hash = hash_of(controller, instance, worker);
    for (struct tierce__map_node *it = tierce__map_find(&controller->map, hash); it != NULL;
         it = tierce__map_find_next(it)) {
        struct tierce__controller_worker *found =
            TIERCE__CONTAINER_OF(it, struct tierce__controller_worker, node);
        if (found->about.worker == worker && strcmp(found->about.instance, instance) == 0)
            return found;
    }
    return NULL;
}

static void end_sync(struct tierce__controller_sync *sync, bool is_complete)
{
    tierce__free(sync->batches);
    sync->batches = NULL;
    sync->place = NULL;
    sync->is_complete = is_complete;
}

static void forget_contents(struct tierce__controller *controller,
                            struct tierce__controller_worker *worker)
{
    for (uint32_t i = 0; i < worker->place_count; i++)
        (void)tierce__directory_leave(controller->directory, worker->places[i].id);
    end_sync(&worker->sync, false);
    worker->sync.name[0] = '\0';
    worker->place_count = 0;
}

static void remove_worker(struct tierce__controller *controller,
                          struct tierce__controller_worker *worker)
{
    forget_contents(controller, worker);
    if (worker->previous != NULL)
        worker->previous->next = worker->next;
    else
        controller->first = worker->next;
    if (worker->next != NULL)
        worker->next->previous = worker->previous;
    else
        controller->last = worker->previous;
    tierce__map_remove(&controller->map, &worker->node);
    controller->stats.workers--;
    tierce__free(worker);
}

/* A worker registers, or registers again: it holds nothing, or, if `reason` is not NULL, it is not
 * known what. False: there is no room. */
static struct tierce__controller_worker *enter(struct tierce__controller *controller,
                                               const struct tierce__controller_message *message,
                                               const char *reason, uint64_t now_ns)
{
    struct tierce__controller_worker *worker =
        tierce__controller_worker(controller, message->instance, message->worker);
    if (worker != NULL) {
        forget_contents(controller, worker);
    } else if (controller->stats.workers < controller->opts.workers_max &&
               (worker = tierce__calloc(1, sizeof(*worker))) != NULL) {
        worker->previous = controller->last;
        *(controller->last != NULL ? &controller->last->next : &controller->first) = worker;
        controller->last = worker;
        tierce__map_put(&controller->map, &worker->node,
                        hash_of(controller, message->instance, message->worker));
        controller->stats.workers++;
    } else {
        controller->stats.full++;
        return NULL;
    }
    struct tierce__controller_about *about = &worker->about;
    memcpy(about->instance, message->instance, sizeof(about->instance));
    memcpy(about->host, message->host, sizeof(about->host));
    memcpy(about->peer, message->peer, sizeof(about->peer));
    about->worker = (uint32_t)message->worker;
    about->port = (uint16_t)message->port;
    about->registered_ns = about->heard_ns = now_ns;
    worker->has_beaten = false;
    worker->began_empty = reason == NULL;
    worker->reason = reason;
    return worker;
}

/* The worker that sends a message. NULL: it has not registered. */
static struct tierce__controller_worker *sender(struct tierce__controller *controller,
                                                const struct tierce__controller_message *message,
                                                uint64_t now_ns, struct outcome *outcome)
{
    struct tierce__controller_worker *worker =
        tierce__controller_worker(controller, message->instance, message->worker);
    if (worker != NULL) {
        worker->about.heard_ns = now_ns;
        return worker;
    }
    controller->stats.unknown++;
    say(outcome, TIERCE_LOG_WARN, "lmcache.unknown_worker",
        "instance=\"%s\" worker=%u hint=\"it has not registered here, or a heartbeat will register "
        "it again: set lmcache_worker_heartbeat_time\"",
        message->instance, (unsigned)message->worker);
    return NULL;
}

/* ---- locations ------------------------------------------------------------------------------- */

/* Joins the directory; its contents begin empty, and are complete if nothing is missing. */
static int join_place(struct tierce__controller *controller,
                      struct tierce__controller_worker *worker,
                      struct tierce__controller_place *place, uint64_t now_ns)
{
    char name[TIERCE__DIRECTORY_NAME_BYTES];
    int length = snprintf(name, sizeof(name), TIERCE__CONTROLLER_PREFIX "%s/%u/%s",
                          worker->about.instance, worker->about.worker, place->location);
    TIERCE_ASSERT(length > 0 && (size_t)length < sizeof(name));
    int rc = tierce__directory_join(
        controller->directory,
        &(struct tierce__directory_worker){
            .group = controller->opts.group, .name = name, .address = "", .host = ""},
        now_ns, &place->id);
    if (rc < 0) {
        place->id = (struct tierce__directory_id){0};
        return rc;
    }
    place->next = place->sending = 1;
    place->is_complete = worker->began_empty;
    if (tierce__directory_sending_begin(controller->directory, place->id, place->sending, now_ns) !=
            TIERCE__DIRECTORY_DONE ||
        (place->is_complete &&
         tierce__directory_sending_end(controller->directory, place->id, place->sending, 0,
                                       now_ns) != TIERCE__DIRECTORY_DONE))
        place->id = (struct tierce__directory_id){0}; /* it has left again */
    return place->id.session != 0 ? 0 : TIERCE_E_LIMIT;
}

/* The place of a location, which is in the directory. NULL: there is no room. */
static struct tierce__controller_place *place_of(struct tierce__controller *controller,
                                                 struct tierce__controller_worker *worker,
                                                 const char *location, uint64_t now_ns,
                                                 struct outcome *outcome)
{
    struct tierce__controller_place *place = NULL;
    int rc = TIERCE_E_LIMIT;
    for (uint32_t i = 0; i < worker->place_count && place == NULL; i++) {
        if (strcmp(worker->places[i].location, location) == 0)
            place = &worker->places[i];
    }
    if (place == NULL && worker->place_count < TIERCE__CONTROLLER_LOCATIONS_MAX) {
        place = &worker->places[worker->place_count++];
        *place = (struct tierce__controller_place){0};
        snprintf(place->location, sizeof(place->location), "%s", location);
    }
    if (place != NULL)
        rc = place->id.session != 0 ? 0 : join_place(controller, worker, place, now_ns);
    if (rc == 0)
        return place;
    controller->stats.full++;
    say(outcome, TIERCE_LOG_WARN, "lmcache.no_room",
        "instance=\"%s\" worker=%u location=\"%s\" hint=\"a worker has at most %u locations, and "
        "directory.workers and directory.share bound the locations of all workers\"",
        worker->about.instance, worker->about.worker, location, TIERCE__CONTROLLER_LOCATIONS_MAX);
    return NULL;
}

/* The directory does not know the place: another manager has led meanwhile. */
static void lose_place(struct tierce__controller_worker *worker,
                       struct tierce__controller_place *place)
{
    place->id = (struct tierce__directory_id){0};
    worker->began_empty = false;
    worker->reason = "controller_restart";
    if (worker->sync.place == place)
        end_sync(&worker->sync, false);
}

static void fail_sync(struct tierce__controller_worker *worker, struct outcome *outcome)
{
    worker->reason = "sync_failed_retry";
    say(outcome, TIERCE_LOG_WARN, "lmcache.sync_failed",
        "instance=\"%s\" worker=%u sync=\"%.100s\" effect=\"the worker sends its contents again "
        "after its next heartbeat\"",
        worker->about.instance, worker->about.worker, worker->sync.name);
    end_sync(&worker->sync, false);
}

/* Applies the controller's first `count` changes to a place that is in the directory. */
static enum tierce__directory_answer apply(struct tierce__controller *controller,
                                           const struct tierce__controller_worker *worker,
                                           struct tierce__controller_place *place, size_t count,
                                           uint64_t now_ns)
{
    enum tierce__directory_answer answer;
    if (worker->sync.place == place) {
        answer = tierce__holdings_add(controller->opts.holdings, place->id, place->sending,
                                      controller->changes, count, now_ns);
    } else if (!place->is_complete) {
        answer = tierce__directory_sending_add(controller->directory, place->id, place->sending,
                                               controller->changes, count, now_ns);
    } else {
        answer = tierce__directory_report(controller->directory, place->id, place->next,
                                          controller->changes, count, now_ns);
        place->next += count;
    }
    return answer;
}

/* The same, to the place that it becomes if it is not there any more. */
static void put(struct tierce__controller *controller, struct tierce__controller_worker *worker,
                struct tierce__controller_place *place, size_t count, uint64_t now_ns,
                struct outcome *outcome)
{
    for (unsigned tries = 0; tries < 3 && place != NULL; tries++) {
        enum tierce__directory_answer answer = apply(controller, worker, place, count, now_ns);
        if (answer == TIERCE__DIRECTORY_DONE)
            return;
        if (answer == TIERCE__DIRECTORY_RESYNC && worker->sync.place == place)
            fail_sync(worker, outcome);
        else
            lose_place(worker, place);
        place = place_of(controller, worker, place->location, now_ns, outcome);
    }
}

/* ---- changes --------------------------------------------------------------------------------- */

/* LMCache's numbers are consecutive in each location; the first one that is seen may be any. */
static void see_number(struct tierce__controller *controller,
                       struct tierce__controller_worker *worker,
                       struct tierce__controller_place *place, uint64_t number,
                       struct outcome *outcome)
{
    if (place->has_number && number != place->number + 1) {
        controller->stats.gaps++;
        if (strcmp(place->location, TIERCE__CONTROLLER_MEMORY) == 0)
            worker->reason = "sequence_gap";
        say(outcome, TIERCE_LOG_WARN, "lmcache.gap",
            "instance=\"%s\" worker=%u location=\"%s\" effect=\"changes were lost; the worker "
            "sends its contents after its next heartbeat\"",
            worker->about.instance, worker->about.worker, place->location);
    }
    place->has_number = true;
    place->number = number;
}

static void take_operations(struct tierce__controller *controller,
                            struct tierce__controller_message *message, uint64_t now_ns,
                            struct outcome *outcome)
{
    struct tierce__controller_worker *worker = sender(controller, message, now_ns, outcome);
    struct tierce__controller_op op;
    if (worker == NULL)
        return;
    controller->stats.operations += message->operations.count;
    while (message->operations.count > 0) {
        struct tierce__controller_place *place =
            place_of(controller, worker, message->location, now_ns, outcome);
        size_t count = 0;
        if (place == NULL)
            return;
        while (count < TIERCE__CONTROLLER_BATCH &&
               tierce__controller_next_op(&message->operations, &op)) {
            see_number(controller, worker, place, op.number, outcome);
            controller->changes[count++] = (struct tierce__directory_change){
                .key = tierce__controller_key(controller, op.key), .admitted = op.admitted};
        }
        put(controller, worker, place, count, now_ns, outcome);
    }
}

/* ---- contents -------------------------------------------------------------------------------- */

/* NULL: it may send its contents. Otherwise the reason why not. */
static const char *begin_sync(struct tierce__controller *controller,
                              struct tierce__controller_worker *worker,
                              const struct tierce__controller_message *message, uint64_t now_ns,
                              struct outcome *outcome)
{
    uint32_t wait_ms;
    struct tierce__controller_place *place =
        place_of(controller, worker, message->location, now_ns, outcome);
    struct tierce__controller_sync *sync = &worker->sync;
    end_sync(sync, false);
    if (place == NULL)
        return "there is no room for this location";
    uint8_t *batches = tierce__calloc((size_t)message->batch_count / 8 + 1, 1);
    if (batches == NULL)
        return "no memory";
    enum tierce__directory_answer answer = tierce__holdings_begin(
        controller->opts.holdings, place->id, ++place->sending, now_ns, &wait_ms);
    if (answer != TIERCE__DIRECTORY_DONE) {
        tierce__free(batches);
        if (answer == TIERCE__DIRECTORY_LATER)
            place->sending--;
        else
            lose_place(worker, place);
        worker->reason = "sync_failed_retry";
        return answer == TIERCE__DIRECTORY_LATER
                   ? "other workers are sending their contents (directory.senders); retry later"
                   : "the directory has lost this location; send its contents again";
    }
    place->is_complete = false;
    memcpy(sync->name, message->sync, sizeof(sync->name));
    sync->place = place;
    sync->batches = batches;
    sync->batch_count = (uint32_t)message->batch_count;
    sync->came = 0;
    sync->keys = 0;
    sync->heard_ns = now_ns;
    worker->reason = NULL;
    return NULL;
}

/* The contents that a message belongs to. NULL: it comes late. */
static struct tierce__controller_sync *sync_of(struct tierce__controller_worker *worker,
                                               const struct tierce__controller_message *message,
                                               uint64_t now_ns)
{
    struct tierce__controller_sync *sync = &worker->sync;
    if (sync->place == NULL || strcmp(sync->name, message->sync) != 0 ||
        strcmp(sync->place->location, message->location) != 0)
        return NULL;
    sync->heard_ns = now_ns;
    return sync;
}

static void take_batch(struct tierce__controller *controller,
                       struct tierce__controller_message *message, uint64_t now_ns,
                       struct outcome *outcome)
{
    struct tierce__controller_worker *worker = sender(controller, message, now_ns, outcome);
    struct tierce__controller_sync *sync = worker != NULL ? sync_of(worker, message, now_ns) : NULL;
    struct tierce__lmcache_int key;
    if (sync == NULL || message->batch >= sync->batch_count)
        return;
    uint8_t *byte = &sync->batches[message->batch / 8], bit = (uint8_t)(1u << message->batch % 8);
    if ((*byte & bit) != 0)
        return;
    *byte |= bit;
    sync->came++;
    sync->keys += message->keys.count;
    while (message->keys.count > 0) {
        size_t count = 0;
        while (count < TIERCE__CONTROLLER_BATCH &&
               tierce__controller_next_key(&message->keys, &key))
            controller->changes[count++] = (struct tierce__directory_change){
                .key = tierce__controller_key(controller, key), .admitted = true};
        if (apply(controller, worker, sync->place, count, now_ns) != TIERCE__DIRECTORY_DONE) {
            fail_sync(worker, outcome);
            return;
        }
    }
}

static void take_end(struct tierce__controller *controller,
                     struct tierce__controller_message *message, uint64_t now_ns,
                     struct outcome *outcome)
{
    struct tierce__controller_worker *worker = sender(controller, message, now_ns, outcome);
    struct tierce__controller_sync *sync = worker != NULL ? sync_of(worker, message, now_ns) : NULL;
    if (sync == NULL || sync->came < sync->batch_count)
        return; /* the worker asks for the progress, and sends what is missing */
    struct tierce__controller_place *place = sync->place;
    if (sync->keys != message->total_keys ||
        tierce__holdings_end(controller->opts.holdings, place->id, place->sending, 0, now_ns) !=
            TIERCE__DIRECTORY_DONE) {
        fail_sync(worker, outcome);
        return;
    }
    place->next = 1;
    place->is_complete = true;
    end_sync(sync, true);
    controller->stats.syncs++;
    say(outcome, TIERCE_LOG_INFO, "lmcache.synced",
        "instance=\"%s\" worker=%u location=\"%s\" keys=%llu", worker->about.instance,
        worker->about.worker, place->location, (unsigned long long)message->total_keys);
}

/* The part of the workers whose contents are known. */
static double global_progress(const struct tierce__controller *controller)
{
    uint32_t known = 0;
    for (const struct tierce__controller_worker *it = controller->first; it != NULL; it = it->next)
        known += it->reason == NULL && it->sync.place == NULL;
    return controller->stats.workers > 0 ? (double)known / controller->stats.workers : 0;
}

static void answer_status(struct tierce__controller *controller,
                          struct tierce__controller_worker *worker,
                          const struct tierce__controller_message *message,
                          struct tierce__line *reply)
{
    const struct tierce__controller_sync *sync = &worker->sync;
    bool is_it = strcmp(sync->name, message->sync) == 0, is_open = is_it && sync->place != NULL;
    uint32_t *missing = NULL, count = 0;
    uint32_t left = is_open ? sync->batch_count - sync->came : 0;
    if (left > 0)
        missing = tierce__calloc(left, sizeof(*missing));
    for (uint32_t i = 0; missing != NULL && i < sync->batch_count; i++) {
        if ((sync->batches[i / 8] & 1u << i % 8) == 0)
            missing[count++] = i;
    }
    /* A worker that would wait in vain may store again, and resends its contents later. */
    tierce__controller_put_progress(
        reply, message->sync,
        &(struct tierce__controller_progress){.is_complete = is_it && sync->is_complete,
                                              .may_continue = !is_open,
                                              .global = global_progress(controller),
                                              .missing = missing,
                                              .missing_count = count});
    tierce__free(missing);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void answer_register(struct tierce__controller *controller,
                            const struct tierce__controller_message *message, uint64_t now_ns,
                            struct tierce__line *reply, struct outcome *outcome)
{
    if (enter(controller, message, NULL, now_ns) == NULL) {
        tierce__controller_put_error(reply, "the manager has its limit of workers of LMCache "
                                            "(lmcache.workers)");
        say(outcome, TIERCE_LOG_WARN, "lmcache.too_many_workers", "limit=%u parameter=%s",
            controller->opts.workers_max, "lmcache.workers");
        return;
    }
    tierce__controller_put_registered(reply, controller->opts.heartbeat_url);
    say(outcome, TIERCE_LOG_INFO, "lmcache.registered", "instance=\"%s\" worker=%u address=%s:%u",
        message->instance, (unsigned)message->worker, message->host, (unsigned)message->port);
}

static void answer_beat(struct tierce__controller *controller,
                        const struct tierce__controller_message *message, uint64_t now_ns,
                        struct tierce__line *reply, struct outcome *outcome)
{
    struct tierce__controller_worker *worker =
        tierce__controller_worker(controller, message->instance, message->worker);
    if (worker == NULL) {
        worker = enter(controller, message, "worker_re_registered", now_ns);
        say(outcome, TIERCE_LOG_INFO, "lmcache.registered_again", "instance=\"%s\" worker=%u",
            message->instance, (unsigned)message->worker);
    }
    if (worker == NULL) {
        tierce__controller_put_error(reply, "the manager has its limit of workers of LMCache "
                                            "(lmcache.workers)");
        return;
    }
    worker->about.heard_ns = now_ns;
    worker->has_beaten = true;
    tierce__controller_put_beat(reply, worker->reason);
}

static void answer_sync(struct tierce__controller *controller,
                        const struct tierce__controller_message *message, uint64_t now_ns,
                        struct tierce__line *reply, struct outcome *outcome)
{
    struct tierce__controller_worker *worker = sender(controller, message, now_ns, outcome);
    if (message->type == TIERCE__CONTROLLER_SYNC_START)
        tierce__controller_put_sync_start(
            reply, message->sync,
            worker == NULL ? "the worker has not registered"
                           : begin_sync(controller, worker, message, now_ns, outcome));
    else if (worker != NULL)
        answer_status(controller, worker, message, reply);
    else
        tierce__controller_put_progress(
            reply, message->sync, &(struct tierce__controller_progress){.may_continue = true});
}

/* Whether it is a request. */
static bool is_request(enum tierce__controller_type type)
{
    return type == TIERCE__CONTROLLER_REGISTER || type == TIERCE__CONTROLLER_HEARTBEAT ||
           type == TIERCE__CONTROLLER_LOOKUP || type == TIERCE__CONTROLLER_SYNC_START ||
           type == TIERCE__CONTROLLER_SYNC_STATUS;
}

static void answer(struct tierce__controller *controller,
                   struct tierce__controller_message *message, uint64_t now_ns,
                   struct tierce__line *reply, struct outcome *outcome)
{
    if (message->type == TIERCE__CONTROLLER_REGISTER)
        answer_register(controller, message, now_ns, reply, outcome);
    else if (message->type == TIERCE__CONTROLLER_HEARTBEAT)
        answer_beat(controller, message, now_ns, reply, outcome);
    else if (message->type == TIERCE__CONTROLLER_LOOKUP)
        tierce__controller_find_peer(controller, message, reply);
    else
        answer_sync(controller, message, now_ns, reply, outcome);
}

static void take_report(struct tierce__controller *controller,
                        struct tierce__controller_message *message, uint64_t now_ns,
                        struct outcome *outcome)
{
    struct tierce__controller_worker *worker;
    if (message->type == TIERCE__CONTROLLER_OPERATIONS)
        take_operations(controller, message, now_ns, outcome);
    else if (message->type == TIERCE__CONTROLLER_SYNC_BATCH)
        take_batch(controller, message, now_ns, outcome);
    else if (message->type == TIERCE__CONTROLLER_SYNC_END)
        take_end(controller, message, now_ns, outcome);
    else if (message->type == TIERCE__CONTROLLER_DEREGISTER &&
             (worker = sender(controller, message, now_ns, outcome)) != NULL)
        remove_worker(controller, worker);
}

/* Why a frame is refused: it is invalid, or comes by the wrong socket, or to the wrong manager. */
static bool is_welcome(struct tierce__controller *controller, const void *frame, size_t bytes,
                       bool leads, bool has_reply, struct outcome *outcome)
{
    struct tierce__controller_message *message = &controller->message;
    char why[TIERCE__CONTROLLER_WHY_BYTES];
    if (!tierce__controller_read(message, &controller->scratch, frame, bytes, why)) {
        say(outcome, TIERCE_LOG_WARN, "lmcache.invalid", "%s", why);
    } else if (has_reply != is_request(message->type)) {
        say(outcome, TIERCE_LOG_WARN, "lmcache.invalid", "%s",
            has_reply ? "this socket accepts requests only: reports go to lmcache.pull_port"
                      : "this socket accepts reports only: requests go to lmcache.reply_port");
    } else if (!leads) {
        say(outcome, TIERCE_LOG_DEBUG, "lmcache.not_leading",
            "this manager does not lead: send to the leader");
    } else {
        return true;
    }
    return false;
}

bool tierce__controller_take(struct tierce__controller *controller, const void *frame, size_t bytes,
                             bool leads, uint64_t now_ns, struct tierce__line *reply)
{
    struct outcome outcome = {.event = NULL};
    bool is_welcome_one = is_welcome(controller, frame, bytes, leads, reply != NULL, &outcome);
    tierce__lock_take(&controller->lock);
    controller->stats.messages++;
    controller->stats.invalid += !is_welcome_one;
    if (!is_welcome_one && reply != NULL)
        tierce__controller_put_error(reply, outcome.text);
    else if (is_welcome_one && is_request(controller->message.type))
        answer(controller, &controller->message, now_ns, reply, &outcome);
    else if (is_welcome_one)
        take_report(controller, &controller->message, now_ns, &outcome);
    tierce__lock_drop(&controller->lock);
    if (outcome.event != NULL)
        tierce__log_repeated(outcome.level, outcome.event, "%s", outcome.text);
    return reply != NULL;
}

/* ---- time ------------------------------------------------------------------------------------ */

void tierce__controller_tick(struct tierce__controller *controller, bool leads, uint64_t now_ns)
{
    struct outcome outcome = {.event = NULL};
    uint64_t silence_ns = controller->opts.silence_ns;
    uint32_t gone = 0;
    tierce__lock_take(&controller->lock);
    for (struct tierce__controller_worker *it = controller->first, *next; it != NULL; it = next) {
        next = it->next;
        if (!leads || (it->has_beaten && now_ns > it->about.heard_ns + silence_ns)) {
            gone += leads;
            remove_worker(controller, it);
            continue;
        }
        if (it->sync.place != NULL && now_ns > it->sync.heard_ns + silence_ns)
            fail_sync(it, &outcome);
        for (uint32_t i = 0; i < it->place_count; i++) {
            struct tierce__controller_place *place = &it->places[i];
            if (place->id.session != 0 &&
                tierce__directory_beat(controller->directory, place->id, 0, now_ns) ==
                    TIERCE__DIRECTORY_UNKNOWN)
                lose_place(it, place);
        }
    }
    tierce__lock_drop(&controller->lock);
    if (gone > 0)
        tierce__log(TIERCE_LOG_WARN, "lmcache.silent", "workers=%u silence_s=%llu", gone,
                    (unsigned long long)(silence_ns / 1000000000));
    if (outcome.event != NULL)
        tierce__log_repeated(outcome.level, outcome.event, "%s", outcome.text);
}
