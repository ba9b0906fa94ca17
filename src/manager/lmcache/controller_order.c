/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/lmcache/controller_order.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_value.h"
#include "base/json/json_write.h"
#include "manager/api/admin_http.h"
#include "manager/holdings/holdings.h"
#include "manager/lmcache/controller.h"
#include "manager/lmcache/controller_commands.h"
#include "manager/lmcache/controller_http.h"
#include "manager/observe/audit.h"
#include "proto/msgpack/msgpack_write.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define METHOD_BYTES 32u
/* Upper bound of a message without its tokens: its texts, and the names of its fields. */
#define TEXT_BYTES                                                                                 \
    (TIERCE__CONTROLLER_EVENT_BYTES + 3u * TIERCE__CONTROLLER_LOCATION_BYTES + METHOD_BYTES +      \
     TIERCE__CONTROLLER_PEER_BYTES + 256u)

enum verb { CLEAR, PIN, COMPRESS, DECOMPRESS, MOVE, HEALTH };

static const struct verb_row {
    const char *path, *kind, *message;
    bool has_method, has_location, has_tokens, needs_tokens;
} verbs[TIERCE__CONTROLLER_ORDERS] = {
    [CLEAR] = {"/clear", "Clear", "ClearWorkerMsg", .has_location = true},
    [PIN] = {"/pin", "Pin", "PinWorkerMsg", .has_location = true, .has_tokens = true,
             .needs_tokens = true},
    [COMPRESS] = {"/compress", "Compress", "CompressWorkerMsg", .has_method = true,
                  .has_location = true, .has_tokens = true},
    [DECOMPRESS] = {"/decompress", "Decompress", "DecompressWorkerMsg", .has_method = true,
                    .has_location = true, .has_tokens = true},
    [MOVE] = {"/move", "Move", "MoveWorkerMsg", .has_tokens = true},
    [HEALTH] = {"/health", "Health", "HealthWorkerMsg"},
};

/* An order, from its request to its answer. */
struct order {
    struct tierce__controller_command command;
    struct tierce__manager *manager;
    struct tierce__call *call;
    const struct verb_row *row;
    struct tierce__json_doc doc;
    char event[TIERCE__CONTROLLER_EVENT_BYTES], who[64];
    char instance[TIERCE__CONTROLLER_INSTANCE_BYTES],
        to_instance[TIERCE__CONTROLLER_INSTANCE_BYTES];
    char location[TIERCE__CONTROLLER_LOCATION_BYTES],
        to_location[TIERCE__CONTROLLER_LOCATION_BYTES];
    char method[METHOD_BYTES];
    bool copies;
    bool has_tokens;
    uint32_t *tokens; /* [token_count], on the heap */
    size_t token_count;
};

static void destroy(struct order *order)
{
    for (size_t i = 0; i < order->command.count; i++)
        tierce__line_clear(&order->command.targets[i].frame);
    tierce__free(order->command.targets);
    tierce__free(order->tokens);
    tierce__json_doc_clear(&order->doc);
    tierce__free(order);
}

/* ---- the answer ------------------------------------------------------------------------------ */

static void audit(const struct order *order, const char *why)
{
    tierce__audit_write(order->manager->audit, tierce__manager_now_us(order->manager),
                        &(struct tierce__audit_line){
                            .what = order->row->path,
                            .who = order->who,
                            .call = order->call,
                            .outcome = why[0] == '\0' ? TIERCE__AUDIT_DONE : TIERCE__AUDIT_FAILED,
                            .why = why});
}

static void fail(struct order *order, uint32_t status, const char *why)
{
    audit(order, why);
    tierce__controller_http_fail(order->call, status, why);
    destroy(order);
}

/* LMCache's codes of a worker's health. */
static int64_t health_of(const struct tierce__controller_target *target)
{
    switch (target->state) {
    case TIERCE__CONTROLLER_ANSWERED:
        return target->result;
    case TIERCE__CONTROLLER_REFUSED:
        return -1001;
    case TIERCE__CONTROLLER_STRANGE:
        return -1002;
    case TIERCE__CONTROLLER_WAITS:
    case TIERCE__CONTROLLER_AWAY:
        break;
    }
    return -1003;
}

/* The workers that have not done it, with their reasons, the first ones. Returns their number. */
static size_t list_failures(const struct order *order, char why[1024], bool *is_silent)
{
    size_t count = 0, used = 0;
    *is_silent = false;
    for (size_t i = 0; i < order->command.count; i++) {
        const struct tierce__controller_target *target = &order->command.targets[i];
        if (target->state == TIERCE__CONTROLLER_ANSWERED)
            continue;
        *is_silent |= target->state == TIERCE__CONTROLLER_WAITS;
        if (used < 1024 - 1)
            used += (size_t)snprintf(
                why + used, 1024 - used, "%sworker %u of %s at %s:%u: %s", count > 0 ? "; " : "",
                target->worker, target->instance, target->host, (unsigned)target->port,
                order->command.is_cut && target->state == TIERCE__CONTROLLER_WAITS
                    ? "the manager stops"
                    : target->error);
        used = used < 1024 ? used : 1023;
        count++;
    }
    return count;
}

static void put_result(const struct order *order, struct tierce__json_write *json)
{
    const struct tierce__controller_command *command = &order->command;
    int64_t least = INT64_MAX;
    for (size_t i = 0; i < command->count; i++)
        least = command->targets[i].result < least ? command->targets[i].result : least;
    if (order->row != &verbs[HEALTH]) {
        tierce__json_write_signed(json, "num_tokens", least);
        return;
    }
    tierce__json_write_open(json, "error_codes", '{');
    for (size_t i = 0; i < command->count; i++) {
        char worker[16];
        snprintf(worker, sizeof(worker), "%u", command->targets[i].worker);
        tierce__json_write_signed(json, worker, health_of(&command->targets[i]));
    }
    tierce__json_write_close(json, '}');
}

static void done(struct tierce__controller_command *command)
{
    struct order *order = TIERCE__CONTAINER_OF(command, struct order, command);
    char why[1024] = "";
    bool is_silent;
    if (order->row != &verbs[HEALTH] && list_failures(order, why, &is_silent) > 0) {
        fail(order, is_silent ? 504 : 502, why);
        return;
    }
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_text(&json, "event_id", order->event);
    put_result(order, &json);
    tierce__json_write_close(&json, '}');
    audit(order, "");
    tierce__controller_http_reply(order->call, &line);
    destroy(order);
}

/* ---- messages to workers --------------------------------------------------------------------- */

static void put_tokens(struct tierce__line *line, const struct order *order)
{
    tierce__msgpack_put_text(line, "tokens");
    if (!order->has_tokens) {
        tierce__msgpack_put_nil(line);
        return;
    }
    size_t place = tierce__msgpack_begin_array(line);
    for (size_t i = 0; i < order->token_count; i++)
        tierce__msgpack_put_uint(line, order->tokens[i]);
    tierce__msgpack_end_array(line, place, (uint32_t)order->token_count);
}

/* `peer`: of the worker that gets the chunks; of a move only. */
static void put_message(const struct order *order, struct tierce__controller_target *target,
                        const char *peer)
{
    const struct verb_row *row = order->row;
    struct tierce__line *line = &target->frame;
    char event[TIERCE__CONTROLLER_EVENT_BYTES + 16];
    bool moves = row == &verbs[MOVE];
    snprintf(event, sizeof(event), "Worker%u%s", target->worker, order->event);
    tierce__msgpack_put_map(line, 2u + row->has_method + row->has_location + row->has_tokens +
                                      (moves ? 3u : 0u));
    tierce__msgpack_put_pair(line, "type", row->message);
    tierce__msgpack_put_pair(line, "worker_event_id", event);
    if (row->has_method)
        tierce__msgpack_put_pair(line, "method", order->method);
    if (row->has_location)
        tierce__msgpack_put_pair(line, "location", order->location);
    if (moves) {
        tierce__msgpack_put_pair(line, "old_position", order->location);
        tierce__msgpack_put_text(line, "new_position");
        tierce__msgpack_put_array(line, 2);
        tierce__msgpack_put_text(line, peer);
        tierce__msgpack_put_text(line, order->to_location);
    }
    if (row->has_tokens)
        put_tokens(line, order);
    if (moves) {
        tierce__msgpack_put_text(line, "copy");
        tierce__msgpack_put_bool(line, order->copies);
    }
}

/* The peer of the worker of this number among those that get the chunks; NULL: it has none. */
static const char *peer_of(const struct tierce__controller_about *list, size_t count,
                           uint32_t worker)
{
    for (size_t i = 0; i < count; i++) {
        if (list[i].worker == worker && list[i].peer[0] != '\0')
            return list[i].peer;
    }
    return NULL;
}

/* An upper bound of the bytes of the messages. */
static size_t measure(const struct order *order, size_t count)
{
    size_t bytes = TEXT_BYTES;
    for (size_t i = 0; i < order->token_count; i++)
        bytes += tierce__msgpack_uint_bytes(order->tokens[i]);
    return bytes * count;
}

/* Makes a target of each worker, at most TIERCE__CONTROLLER_TARGETS_MAX. command.count is then the
 * number of the targets that exist, also after an error: -ENOMEM, -ENOENT (a worker has no peer);
 * `why`. */
static int aim(struct order *order, const struct tierce__controller_about *list, size_t count,
               const struct tierce__controller_about *others, size_t other_count, char why[256])
{
    struct tierce__controller_command *command = &order->command;
    command->targets = tierce__calloc(count, sizeof(*command->targets));
    snprintf(why, 256, "no memory");
    if (command->targets == NULL)
        return -ENOMEM;
    command->count = count;
    for (size_t i = 0; i < count; i++) {
        struct tierce__controller_target *target = &command->targets[i];
        const char *peer = "";
        memcpy(target->instance, list[i].instance, sizeof(target->instance));
        memcpy(target->host, list[i].host, sizeof(target->host));
        target->port = list[i].port;
        target->worker = list[i].worker;
        if (order->row == &verbs[MOVE])
            peer = peer_of(others, other_count, list[i].worker);
        if (peer == NULL) {
            snprintf(why, 256,
                     "worker %u of %s has not registered with a peer_init_url, which a move to it "
                     "requires (enable_p2p of LMCache)",
                     list[i].worker, order->to_instance);
            return -ENOENT;
        }
        put_message(order, target, peer);
        if (target->frame.failed)
            return -ENOMEM;
    }
    return 0;
}

/* Writes the reason why a command is not accepted now; nothing if rc is 0. */
static void say_full(const struct order *order, char why[256], uint32_t *status, int rc)
{
    if (rc == 0)
        return;
    if (rc == TIERCE_E_LIMIT)
        snprintf(why, 256, "at most %s may be in progress; try again later", order->command.limit);
    else
        snprintf(why, 256, "the manager stops");
    *status = 503;
}

/* Ends the reservation of an order to `count` workers, which may have fewer targets. */
static void cancel(struct order *order, size_t count)
{
    size_t made = order->command.count;
    order->command.count = count;
    tierce__controller_commands_cancel(order->manager->lmcache.commands, &order->command);
    order->command.count = made;
}

/* No worker of LMCache has the name; an engine or node may have it, which takes other commands. */
static void say_unknown(const struct order *order, char why[256])
{
    const struct tierce__manager *manager = order->manager;
    struct tierce__directory_id id;
    bool is_ours = tierce__directory_named(tierce__holdings_directory(manager->holdings),
                                           manager->lmcache.group, order->instance, &id);
    snprintf(why, 256, "no worker of the instance %s has registered%s", order->instance,
             is_ours ? "; this name is of an engine or node of Tierce: use tierce directory" : "");
}

/* Sends the order to all workers of the instance. */
static void give(struct order *order)
{
    struct tierce__controller *controller = order->manager->lmcache.controller;
    struct tierce__controller_about *list = NULL, *others = NULL;
    size_t count = 0, other_count = 0;
    struct tierce__controller_commands *commands = order->manager->lmcache.commands;
    char why[256] = "no memory";
    uint32_t status = 500;
    int rc = tierce__controller_list(controller, order->instance, &list, &count);
    if (rc == 0 && order->row == &verbs[MOVE])
        rc = tierce__controller_list(controller, order->to_instance, &others, &other_count);
    if (rc == 0 && count == 0) {
        say_unknown(order, why);
        status = 404;
        rc = -ENOENT;
    } else if (rc == 0 && (count > TIERCE__CONTROLLER_TARGETS_MAX ||
                           other_count > TIERCE__CONTROLLER_TARGETS_MAX)) {
        snprintf(why, sizeof(why), "the instance has %zu workers; a command accepts at most %u",
                 count > other_count ? count : other_count, TIERCE__CONTROLLER_TARGETS_MAX);
        status = 409;
        rc = -EINVAL;
    } else if (rc == 0 && measure(order, count) > TIERCE__CONTROLLER_FRAMES_MAX) {
        snprintf(why, sizeof(why),
                 "the messages of %zu tokens to %zu workers have more than %zu MiB: name fewer "
                 "tokens",
                 order->token_count, count, TIERCE__CONTROLLER_FRAMES_MAX >> 20);
        status = 409;
        rc = -EINVAL;
    }
    if (rc == 0) {
        order->command.count = count;
        order->command.frame_bytes = measure(order, count);
        rc = tierce__controller_commands_reserve(commands, &order->command);
        order->command.count = 0; /* no target yet */
        say_full(order, why, &status, rc);
    }
    if (rc == 0) {
        rc = aim(order, list, count, others, other_count, why);
        if (rc != 0)
            cancel(order, count);
        if (rc == -ENOENT)
            status = other_count < count ? 404 : 409;
    }
    tierce__free(list);
    tierce__free(others);
    if (rc == 0) {
        rc = tierce__controller_commands_submit(commands, &order->command);
        if (rc == 0)
            return;
        say_full(order, why, &status, rc);
    }
    fail(order, status, why);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Reads the tokens of an order that accepts some. False: the call is answered. */
static bool read_tokens(struct order *order)
{
    struct tierce__text tokens = tierce__json_get(order->doc.value, "tokens");
    int rc = TIERCE_E_ARGUMENT;
    order->has_tokens = tokens.length > 0 && tierce__json_value_kind(tokens) != 'n';
    if (!order->has_tokens && !order->row->needs_tokens) {
        order->has_tokens = tokens.length == 0; /* an empty list, as LMCache has it by default */
        return true;
    }
    if (order->has_tokens)
        rc = tierce__controller_http_tokens(&order->tokens, &order->token_count, tokens);
    if (rc < 0)
        tierce__controller_http_fail(order->call, rc == -ENOMEM ? 500 : 422,
                                     rc == -ENOMEM ? "no memory" : TIERCE__CONTROLLER_TOKENS_WHY);
    return rc == 0;
}

/* False: the call is answered. */
static bool read_order(struct order *order)
{
    struct tierce__text body = order->doc.value;
    struct tierce__call *call = order->call;
    const struct verb_row *row = order->row;
    const struct {
        char *out;
        size_t size;
        const char *path;
        bool is_used;
    } texts[] = {
        {order->instance, sizeof(order->instance), "instance_id", row != &verbs[MOVE]},
        {order->location, sizeof(order->location), "location", row->has_location},
        {order->method, sizeof(order->method), "method", row->has_method},
        {order->instance, sizeof(order->instance), "old_position.0", row == &verbs[MOVE]},
        {order->location, sizeof(order->location), "old_position.1", row == &verbs[MOVE]},
        {order->to_instance, sizeof(order->to_instance), "new_position.0", row == &verbs[MOVE]},
        {order->to_location, sizeof(order->to_location), "new_position.1", row == &verbs[MOVE]},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        if (texts[i].is_used &&
            !tierce__controller_http_text(call, texts[i].out, texts[i].size, body, texts[i].path))
            return false;
    }
    order->copies = tierce__json_get_bool(body, "should_copy");
    return !row->has_tokens || read_tokens(order);
}

static void serve(struct tierce__manager *manager, struct tierce__call *call,
                  const struct tierce__caller *caller, enum verb verb)
{
    if (!tierce__controller_http_admit(manager, call, caller))
        return;
    struct order *order = tierce__calloc(1, sizeof(*order));
    if (order == NULL) {
        tierce__controller_http_fail(call, 500, "no memory");
        return;
    }
    order->manager = manager;
    order->call = call;
    order->row = &verbs[verb];
    order->command.done = done;
    snprintf(order->who, sizeof(order->who), "%s", caller->name);
    tierce__controller_http_event(order->event, order->row->kind);
    if (tierce__controller_http_body(call, &order->doc) && read_order(order))
        give(order);
    else
        destroy(order);
}

#define SERVE(name, verb)                                                                          \
    static void name(struct tierce__manager *manager, struct tierce__call *call,                   \
                     const struct tierce__caller *caller)                                          \
    {                                                                                              \
        serve(manager, call, caller, verb);                                                        \
    }

SERVE(serve_clear, CLEAR)
SERVE(serve_pin, PIN)
SERVE(serve_compress, COMPRESS)
SERVE(serve_decompress, DECOMPRESS)
SERVE(serve_move, MOVE)
SERVE(serve_health, HEALTH)

size_t tierce__controller_order_routes(struct tierce__manager *manager,
                                       struct tierce__http_target *targets,
                                       struct tierce__route *out)
{
    static void (*const serves[TIERCE__CONTROLLER_ORDERS])(
        struct tierce__manager *, struct tierce__call *, const struct tierce__caller *) = {
        [CLEAR] = serve_clear,           [PIN] = serve_pin,   [COMPRESS] = serve_compress,
        [DECOMPRESS] = serve_decompress, [MOVE] = serve_move, [HEALTH] = serve_health};
    for (unsigned i = 0; i < TIERCE__CONTROLLER_ORDERS; i++)
        tierce__http_route_make(manager, &targets[i],
                                &(struct tierce__http_route){verbs[i].path, "POST", serves[i]},
                                &out[i]);
    return TIERCE__CONTROLLER_ORDERS;
}
