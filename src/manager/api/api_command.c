/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/clock.h"
#include "manager/api/api_directory.h"
#include "manager/holdings/worker_commands.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* Commands of operators to workers of the directory, and their results. */

enum {
    COMMANDS_OF_ANSWER = 4,
    TIMEOUT_DEFAULT_MS = 30000,
    TIMEOUT_MAX_MS = 600000,
    PIN_MAX_MS = 86400000, /* TIERCE_PIN_MS_MAX of an engine */
    TIERS = TIERCE__DIRECTORY_TIERS_MAX,
};

#define INVALID_ARGUMENT META__ERROR_CODE__INVALID_ARGUMENT

_Static_assert((int)TIERCE__WORKER_HEALTH == (int)META__WORKER_ACTION__WA_HEALTH &&
                   (int)TIERCE__WORKER_COMPRESS == (int)META__WORKER_ACTION__WA_COMPRESS &&
                   (int)TIERCE__WORKER_DECOMPRESS == (int)META__WORKER_ACTION__WA_DECOMPRESS &&
                   (int)TIERCE__WORKER_DROP == (int)META__WORKER_ACTION__WA_DROP,
               "actions have the numbers of the message");
_Static_assert((int)TIERCE__COMMAND_WAITING == (int)META__COMMAND_STATE__CS_WAITING &&
                   (int)TIERCE__COMMAND_FAILED == (int)META__COMMAND_STATE__CS_FAILED,
               "states have the numbers of the message");

static struct tierce__worker_commands *commands_of(const struct tierce__api_call *api)
{
    return tierce__holdings_commands(api->manager->holdings);
}

/* ---- giving a command ------------------------------------------------------------------------ */

/* The arguments that an action accepts, besides its worker. */
static const struct shape {
    const char *name;
    bool takes_keys, needs_keys, takes_tiers;
} shapes[] = {
    [TIERCE__WORKER_HEALTH] = {.name = "WA_HEALTH"},
    [TIERCE__WORKER_PIN] = {.name = "WA_PIN", .takes_keys = true, .needs_keys = true},
    [TIERCE__WORKER_UNPIN] = {.name = "WA_UNPIN", .takes_keys = true},
    [TIERCE__WORKER_MOVE] = {.name = "WA_MOVE", .takes_keys = true, .needs_keys = true},
    [TIERCE__WORKER_CLEAR] = {.name = "WA_CLEAR", .takes_tiers = true},
    [TIERCE__WORKER_COMPRESS] = {.name = "WA_COMPRESS", .takes_keys = true},
    [TIERCE__WORKER_DECOMPRESS] = {.name = "WA_DECOMPRESS", .takes_keys = true},
};

static bool is_within(struct tierce__api_call *api, const char *name, int64_t value, int64_t most)
{
    if (value >= 0 && value <= most)
        return true;
    tierce__api_say(api, INVALID_ARGUMENT, "%s is %" PRId64 "; accepted are 0 to %" PRId64, name,
                    value, most);
    return false;
}

/* False: the status says why. */
static bool has_its_shape(struct tierce__api_call *api, const Meta__CommandWorkerRequest *request)
{
    int action = (int)request->action, count = (int)(sizeof(shapes) / sizeof(*shapes));
    if (action < 0 || action >= count || shapes[action].name == NULL) {
        tierce__api_say(api, INVALID_ARGUMENT,
                        "action is %d; accepted are 1 (WA_HEALTH) to 6 (WA_COMPRESS), and 100 "
                        "(WA_DECOMPRESS)",
                        action);
        return false;
    }
    const struct shape *shape = &shapes[request->action];
    if (request->n_keys > 0 ? !shape->takes_keys : shape->needs_keys) {
        tierce__api_say(api, INVALID_ARGUMENT, "keys: %s %s", shape->name,
                        shape->takes_keys ? "requires those of one chunk or more"
                                          : "is for the whole worker and accepts none");
        return false;
    }
    if (request->n_tiers > 0 && !shape->takes_tiers) {
        tierce__api_say(api, INVALID_ARGUMENT,
                        "tiers must be empty for %s; only WA_CLEAR accepts tiers", shape->name);
        return false;
    }
    return true;
}

static bool is_to_worker(const Meta__CommandWorkerRequest *request)
{
    return tierce__api_string(request->to_worker)[0] != '\0';
}

static bool is_move(struct tierce__api_call *api, const Meta__CommandWorkerRequest *request)
{
    bool is_move = request->action == META__WORKER_ACTION__WA_MOVE;
    if (is_to_worker(request)) {
        bool is_valid = is_move && request->from_tier == 0 && request->to_tier == 0;
        if (!is_valid)
            tierce__api_say(api, INVALID_ARGUMENT,
                            "to_worker is '%.128s'; it is accepted in WA_MOVE, with from_tier and "
                            "to_tier 0: the chunks of all tiers move to the memory of that worker",
                            request->to_worker);
        return is_valid;
    }
    if (!is_move)
        return true;
    bool is_one = (request->from_tier == 0) != (request->to_tier == 0);
    if (!is_within(api, "from_tier", request->from_tier, TIERS - 1) ||
        !is_within(api, "to_tier", request->to_tier, TIERS - 1))
        return false;
    if (!is_one)
        tierce__api_say(
            api, INVALID_ARGUMENT,
            "from_tier is %d and to_tier is %d; exactly one of the two must be 0, which "
            "is memory",
            (int)request->from_tier, (int)request->to_tier);
    return is_one;
}

/* False: the status says why. */
static bool read_tiers(struct tierce__api_call *api, const Meta__CommandWorkerRequest *request,
                       uint32_t *tiers)
{
    *tiers = 0;
    for (size_t i = 0; i < request->n_tiers; i++) {
        if (!is_within(api, "tiers", request->tiers[i], TIERS - 1))
            return false;
        *tiers |= 1u << request->tiers[i];
    }
    return true;
}

/* False: the status says why. */
static bool read_order(struct tierce__api_call *api, const Meta__CommandWorkerRequest *request,
                       struct tierce__worker_order *order)
{
    uint32_t tiers;
    if (!has_its_shape(api, request) || !is_move(api, request) ||
        !is_within(api, "pin_ms", request->pin_ms, PIN_MAX_MS) ||
        !is_within(api, "timeout_ms", request->timeout_ms, TIMEOUT_MAX_MS) ||
        !read_tiers(api, request, &tiers))
        return false;
    const struct tierce__directory_key *keys =
        tierce__api_read_chunk_keys(api, request->keys, request->n_keys, TIERCE__WORKER_ORDER_KEYS);
    if (keys == NULL)
        return false;
    *order = (struct tierce__worker_order){
        .action = (enum tierce__worker_action)request->action,
        .keys = keys,
        .count = request->n_keys / 2,
        .from_tier = (uint32_t)request->from_tier,
        .to_tier = (uint32_t)request->to_tier,
        .tiers = tiers,
        .pin_ms = (uint64_t)request->pin_ms,
        .timeout_ms = request->timeout_ms > 0 ? (uint64_t)request->timeout_ms : TIMEOUT_DEFAULT_MS,
        .keeps = request->keeps,
    };
    return true;
}

static void say_unknown(struct tierce__api_call *api, const char *group, const char *worker)
{
    tierce__api_say(api, META__ERROR_CODE__INSTANCE_NOT_EXIST,
                    "worker %.128s of group '%.128s' is not in the directory", worker, group);
}

/* A worker that takes commands, and, for a move, serves chunks or reads them. False: the status
 * says why not. */
static bool find_worker(struct tierce__api_call *api, const char *group, const char *worker,
                        bool is_of_move, struct tierce__directory_id *id)
{
    struct tierce__directory_about about;
    if (!tierce__directory_named(tierce__api_directory_of(api), group, worker, id) ||
        !tierce__directory_about(tierce__api_directory_of(api), *id, &about)) {
        say_unknown(api, group, worker);
        return false;
    }
    if (!about.takes_commands)
        tierce__api_say(api, META__ERROR_CODE__UNSUPPORTED,
                        "worker %.128s takes no commands; engines and nodes of this version do",
                        worker);
    else if (is_of_move && about.address[0] == '\0')
        tierce__api_say(api, META__ERROR_CODE__UNSUPPORTED,
                        "worker %.128s has no transfer address; chunks move between workers with "
                        "peers:// in remote.urls",
                        worker);
    return about.takes_commands && (!is_of_move || about.address[0] != '\0');
}

/* The worker, and the target of a move. False: the status says why. */
static bool find_workers(struct tierce__api_call *api, const Meta__CommandWorkerRequest *request,
                         const char *group, struct tierce__directory_id *id,
                         struct tierce__directory_id *target)
{
    const char *worker = tierce__api_string(request->worker);
    bool is_of_move = is_to_worker(request);
    *target = (struct tierce__directory_id){0};
    if (is_of_move && strcmp(worker, request->to_worker) == 0) {
        tierce__api_say(api, INVALID_ARGUMENT,
                        "to_worker is '%.128s', the worker itself; another worker is accepted",
                        worker);
        return false;
    }
    return find_worker(api, group, worker, is_of_move, id) &&
           (!is_of_move || find_worker(api, group, request->to_worker, true, target));
}

static void command_worker(struct tierce__api_call *api)
{
    const Meta__CommandWorkerRequest *request = (const Meta__CommandWorkerRequest *)api->request;
    const char *group = tierce__api_group_of(api, request->instance_group);
    struct tierce__worker_order order;
    struct tierce__directory_id id;
    if (!read_order(api, request, &order) || !find_workers(api, request, group, &id, &order.target))
        return;
    uint64_t number = 0;
    int rc = tierce__worker_commands_give(commands_of(api), id, &order, tierce__now_ns(), &number);
    if (rc == TIERCE_E_MISS)
        say_unknown(api, group, tierce__api_string(request->worker));
    else if (rc == -ESRCH)
        say_unknown(api, group, request->to_worker);
    else if (rc == -EBUSY)
        tierce__api_say(api, META__ERROR_CODE__REACH_MAX_ENTITY_CAPACITY,
                        "group '%.128s' has %u moves to other workers in progress, the most that "
                        "a group may have: try again later",
                        group, TIERCE__WORKER_GROUP_MOVES_OPEN);
    else if (rc == -EAGAIN)
        tierce__api_say(api, META__ERROR_CODE__REACH_MAX_ENTITY_CAPACITY,
                        "all groups together have %u moves to other workers in progress, the most "
                        "that are allowed: try again later",
                        TIERCE__WORKER_MOVES_OPEN);
    else if (rc == TIERCE_E_LIMIT || rc == TIERCE_E_FULL)
        tierce__api_say(api, META__ERROR_CODE__REACH_MAX_ENTITY_CAPACITY,
                        "%s has as many commands as it may have, and %s ended: try again later",
                        rc == TIERCE_E_LIMIT ? "the worker" : "the group, or the manager,",
                        rc == TIERCE_E_LIMIT ? "they have not" : "none of them has");
    else
        tierce__api_end(api, rc, "command worker", "Command given");
    ((Meta__CommandWorkerResponse *)api->reply)->command = (int64_t)number;
}

/* ---- asking for its result ------------------------------------------------------------------- */

static void get_command(struct tierce__api_call *api)
{
    const Meta__GetCommandRequest *request = (const Meta__GetCommandRequest *)api->request;
    Meta__GetCommandResponse *reply = (Meta__GetCommandResponse *)api->reply;
    const char *group = tierce__api_group_of(api, request->instance_group);
    struct tierce__worker_report report;
    bool is_any = group[0] == '\0' && tierce__grant_has_all(api->caller->grant);
    if (!tierce__worker_commands_get(commands_of(api), (uint64_t)request->command,
                                     is_any ? NULL : group, tierce__now_ns(), &report)) {
        tierce__api_say(api, META__ERROR_CODE__INSTANCE_NOT_EXIST,
                        "command %" PRId64 " is unknown: it was given to another leader, which may "
                        "have sent it to the worker; or to another group; or many have followed it",
                        request->command);
        return;
    }
    reply->worker = tierce__api_copy(api, report.worker, strlen(report.worker));
    reply->message = tierce__api_copy(api, report.message, strlen(report.message));
    reply->action = (Meta__WorkerAction)report.action;
    reply->state = (Meta__CommandState)report.state;
    reply->chunks = (int64_t)report.chunks;
    reply->left_out = (int64_t)report.left_out;
    tierce__api_end(api, reply->worker != NULL && reply->message != NULL ? 0 : -ENOMEM,
                    "get command", "Get command success");
}

/* ---- a worker's report ----------------------------------------------------------------------- */

static uint64_t count_of(int64_t number)
{
    return number > 0 ? (uint64_t)number : 0;
}

/* The names of the chunks that are to be fetched. */
static bool fill_named(struct tierce__api_call *api, Meta__WorkerCommand *out,
                       const struct tierce__worker_order *order)
{
    out->named = tierce__api_alloc(api, order->named_count, sizeof(*out->named));
    for (size_t i = 0; out->named != NULL && i < order->named_count; i++) {
        const struct tierce__worker_named *named = &order->named[i];
        Meta__NamedChunk *it =
            (Meta__NamedChunk *)tierce__proto_add(api->reply, &meta__named_chunk__descriptor);
        char *name = tierce__api_copy(api, named->name, strlen(named->name));
        if (it == NULL || name == NULL)
            return false;
        it->index = (int32_t)named->index;
        it->name = name;
        it->bytes = (int64_t)named->bytes;
        it->has_parent = named->has_parent;
        out->named[out->n_named++] = it;
    }
    return out->named != NULL;
}

static bool fill(struct tierce__api_call *api, Meta__WorkerCommand *out,
                 const struct tierce__worker_command *command, struct tierce__directory_id id,
                 uint64_t now_ns)
{
    const struct tierce__worker_order *order = &command->order;
    uint64_t left_ns = command->deadline_ns > now_ns ? command->deadline_ns - now_ns : 0;
    out->command = (int64_t)command->number;
    out->session = (int64_t)id.session;
    out->action = (Meta__WorkerAction)order->action;
    out->from_tier = (int32_t)order->from_tier;
    out->to_tier = (int32_t)order->to_tier;
    out->pin_ms = (int64_t)order->pin_ms;
    out->timeout_ms = (int64_t)(left_ns / TIERCE__MS_NS);
    out->keeps = order->keeps;
    if (order->action == TIERCE__WORKER_FETCH) /* the names say all */
        return fill_named(api, out, order);
    out->keys = tierce__api_alloc(api, 2 * order->count + 1, sizeof(*out->keys));
    out->tiers = tierce__api_alloc(api, TIERS, sizeof(*out->tiers));
    if (out->keys == NULL || out->tiers == NULL)
        return false;
    for (size_t i = 0; i < order->count; i++) {
        out->keys[out->n_keys++] = (int64_t)order->keys[i].high;
        out->keys[out->n_keys++] = (int64_t)order->keys[i].low;
    }
    for (int32_t tier = 0; tier < TIERS; tier++) {
        if ((order->tiers >> tier & 1) != 0)
            out->tiers[out->n_tiers++] = tier;
    }
    return true;
}

/* Without memory the commands wait for the next report. */
static void show_commands(struct tierce__api_call *api, struct tierce__directory_id id)
{
    const Meta__ReportChunksRequest *request = (const Meta__ReportChunksRequest *)api->request;
    Meta__ReportChunksResponse *reply = (Meta__ReportChunksResponse *)api->reply;
    struct tierce__worker_command *list[COMMANDS_OF_ANSWER];
    uint64_t now_ns = tierce__now_ns();
    size_t count = tierce__worker_commands_next(
        commands_of(api), id, count_of(request->last_command), now_ns, list, COMMANDS_OF_ANSWER);
    if (count > 0)
        reply->commands = tierce__api_alloc(api, count, sizeof(*reply->commands));
    for (size_t i = 0; i < count; i++) {
        Meta__WorkerCommand *out = reply->commands != NULL
                                       ? (Meta__WorkerCommand *)tierce__proto_add(
                                             api->reply, &meta__worker_command__descriptor)
                                       : NULL;
        /* Those after one that is left out are left out, too: they come in their order. */
        if (out != NULL && reply->n_commands == i && fill(api, out, list[i], id, now_ns))
            reply->commands[reply->n_commands++] = out;
        tierce__worker_command_release(list[i]);
    }
}

/* The names in a result, or NULL: there are none, too many, or no memory for them. Those that are
 * invalid remain empty. */
static struct tierce__worker_named *read_named(struct tierce__api_call *api,
                                               const Meta__CommandResult *result)
{
    struct tierce__worker_named *named =
        result->n_named > 0 && result->n_named <= TIERCE__WORKER_ORDER_KEYS
            ? tierce__api_alloc(api, result->n_named, sizeof(*named))
            : NULL;
    for (size_t i = 0; named != NULL && i < result->n_named; i++) {
        const Meta__NamedChunk *it = result->named[i];
        const char *name = tierce__api_string(it->name);
        bool is_valid = it->index >= 0 && strlen(name) < sizeof(named[i].name);
        named[i] = (struct tierce__worker_named){.index = is_valid ? (uint32_t)it->index : 0,
                                                 .has_parent = it->has_parent,
                                                 .bytes = count_of(it->bytes)};
        if (is_valid)
            memcpy(named[i].name, name, strlen(name) + 1);
    }
    return named;
}

void tierce__api_exchange_commands(struct tierce__api_call *api, struct tierce__directory_id id)
{
    const Meta__ReportChunksRequest *request = (const Meta__ReportChunksRequest *)api->request;
    for (size_t i = 0; i < request->n_results; i++) {
        const Meta__CommandResult *result = request->results[i];
        struct tierce__worker_named *named = read_named(api, result);
        tierce__worker_commands_end(
            commands_of(api), id, (uint64_t)result->command,
            &(struct tierce__worker_result){.is_done = result->is_done,
                                            .chunks = count_of(result->chunks),
                                            .left_out = count_of(result->left_out),
                                            .message = tierce__api_string(result->message),
                                            .named = named,
                                            .named_count = named != NULL ? result->n_named : 0,
                                            .landed = result->landed,
                                            .landed_count = result->n_landed},
            tierce__now_ns());
    }
    show_commands(api, id);
}

const struct tierce__api_row tierce__api_command_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_meta_command_worker] = {command_worker, TIERCE__API_WAITS, {"worker"}},
    [TIERCE__RPC_meta_get_command] = {get_command, TIERCE__API_NEVER_WAITS, {NULL}},
};
