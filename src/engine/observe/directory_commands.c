/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/directory_commands.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "engine/observe/chunk_orders.h"

/* A manager gives a worker at most 16 commands before their results. */
enum { COMMANDS = 16, KEYS_MAX = 1024 };

#define RESULT_MS 2000u /* at most, for a result to reach the manager */

enum state { EMPTY, WAITING, RUNNING, ENDED };

/* The names of a move to another engine, and of their messages in a result. */
struct names {
    size_t count, landed_count, room;
    struct tierce__chunk_named *named; /* all: [room] */
    int32_t *landed;
    Meta__NamedChunk *messages;
    Meta__NamedChunk **listed;
};

struct slot {
    enum state state;
    int64_t number, session;
    Meta__WorkerAction action;
    struct tierce__chunk_number *numbers; /* [count], on the heap; NULL: none */
    size_t count;
    struct tierce__chunk_move move;
    uint32_t tiers;
    uint64_t pin_ms;
    struct names names;
    struct tierce__chunk_order_outcome outcome;
};

struct tierce__directory_commands {
    struct tierce_engine *engine;
    void (*ended)(void *arg);
    void *arg;
    struct tierce__chunk_orders orders; /* the thread's */
    _Atomic bool stops;                 /* relaxed: a flag alone; a signal follows */

    /* The reporter's. */
    pthread_t thread;
    bool has_thread;
    int64_t session, last;
    Meta__CommandResult results[COMMANDS]; /* of the report that is being sent */
    Meta__CommandResult *listed[COMMANDS];
    size_t listed_count;

    struct tierce__lock lock; /* REPORTER: below */
    struct tierce__cond given;
    int64_t present; /* the session; results of others are dropped */
    struct slot slots[COMMANDS];
};

/* ---- carrying out ---------------------------------------------------------------------------- */

static const char *action_name(Meta__WorkerAction action)
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&meta__worker_action__descriptor, (int)action);
    return value != NULL ? value->name : "unknown";
}

static void names_fini(struct names *names)
{
    tierce__free(names->named);
    tierce__free(names->landed);
    tierce__free(names->messages);
    tierce__free(names->listed);
    *names = (struct names){0};
}

/* False: no memory; names_fini must follow all the same. */
static bool names_init(struct names *names, size_t room)
{
    *names = (struct names){.room = room};
    names->named = tierce__calloc(room + 1, sizeof(*names->named));
    names->landed = tierce__calloc(room + 1, sizeof(*names->landed));
    names->messages = tierce__calloc(room + 1, sizeof(*names->messages));
    names->listed = tierce__calloc(room + 1, sizeof(*names->listed));
    return names->named != NULL && names->landed != NULL && names->messages != NULL &&
           names->listed != NULL;
}

static void name(struct tierce__directory_commands *commands, struct slot *slot)
{
    const struct tierce__chunk_numbers chunks = {slot->numbers, slot->count};
    struct names *names = &slot->names;
    tierce__chunk_orders_name(&commands->orders, &chunks, names->named, &names->count,
                              &slot->outcome);
    for (size_t i = 0; i < names->count; i++) {
        Meta__NamedChunk *message = &names->messages[i];
        meta__named_chunk__init(message);
        message->index = (int32_t)names->named[i].index;
        message->name = names->named[i].name;
        message->bytes = (int64_t)names->named[i].bytes;
        message->has_parent = names->named[i].has_parent;
        names->listed[i] = message;
    }
}

static void fetch(struct tierce__directory_commands *commands, struct slot *slot)
{
    struct names *names = &slot->names;
    const struct tierce__chunk_fetch fetch = {
        .named = names->named, .count = names->count, .deadline_ns = slot->move.deadline_ns};
    tierce__chunk_orders_fetch(&commands->orders, &fetch, names->landed, &names->landed_count,
                               &slot->outcome);
}

static void carry_out(struct tierce__directory_commands *commands, struct slot *slot)
{
    struct tierce__chunk_orders *orders = &commands->orders;
    const struct tierce__chunk_numbers chunks = {slot->numbers, slot->count};
    struct tierce__chunk_order_outcome *out = &slot->outcome;
    switch ((int)slot->action) {
    case META__WORKER_ACTION__WA_HEALTH:
        tierce__chunk_orders_health(orders, out);
        break;
    case META__WORKER_ACTION__WA_PIN:
        tierce__chunk_orders_pin(orders, &chunks, slot->pin_ms, out);
        break;
    case META__WORKER_ACTION__WA_UNPIN:
        tierce__chunk_orders_unpin(orders, &chunks, out);
        break;
    case META__WORKER_ACTION__WA_MOVE:
        tierce__chunk_orders_move(orders, &chunks, &slot->move, out);
        break;
    case META__WORKER_ACTION__WA_CLEAR:
        tierce__chunk_orders_clear(orders, slot->tiers, out);
        break;
    case META__WORKER_ACTION__WA_COMPRESS:
    case META__WORKER_ACTION__WA_DECOMPRESS:
        tierce__chunk_orders_recode(orders, &chunks,
                                    slot->action == META__WORKER_ACTION__WA_COMPRESS,
                                    slot->move.deadline_ns, out);
        break;
    case META__WORKER_ACTION__WA_NAME:
        name(commands, slot);
        break;
    case META__WORKER_ACTION__WA_FETCH:
        fetch(commands, slot);
        break;
    case META__WORKER_ACTION__WA_DROP:
        tierce__chunk_orders_drop(orders, &chunks, out);
        break;
    default:
        snprintf(out->message, sizeof(out->message), "this engine does not know action %d",
                 (int)slot->action);
        break;
    }
    tierce__log(TIERCE_LOG_INFO, "directory_command",
                "action=%s done=%s chunks=%llu left_out=%llu message=\"%s\"",
                action_name(slot->action), out->is_done ? "yes" : "no",
                (unsigned long long)out->chunks, (unsigned long long)out->left_out, out->message);
}

static void free_slot(struct slot *slot)
{
    tierce__free(slot->numbers);
    names_fini(&slot->names);
    *slot = (struct slot){.state = EMPTY};
}

/* The first that waits, or NULL. Under the lock. */
static struct slot *next_slot(struct tierce__directory_commands *commands)
{
    struct slot *found = NULL;
    for (size_t i = 0; i < COMMANDS; i++) {
        struct slot *slot = &commands->slots[i];
        if (slot->state == WAITING && (found == NULL || slot->number < found->number))
            found = slot;
    }
    return found;
}

static bool is_stopping(const struct tierce__directory_commands *commands)
{
    return atomic_load_explicit(&commands->stops, memory_order_relaxed);
}

/* Under the lock, which it drops meanwhile. */
static void run_slot(struct tierce__directory_commands *commands, struct slot *slot)
{
    tierce__lock_assert_held(&commands->lock);
    slot->state = RUNNING;
    tierce__lock_drop(&commands->lock);
    carry_out(commands, slot);
    tierce__lock_take(&commands->lock);
    slot->state = ENDED;
    if (slot->session != commands->present)
        free_slot(slot);
    tierce__lock_drop(&commands->lock);
    commands->ended(commands->arg);
    tierce__lock_take(&commands->lock);
}

static bool is_short(Meta__WorkerAction action)
{
    return action == META__WORKER_ACTION__WA_HEALTH || action == META__WORKER_ACTION__WA_PIN ||
           action == META__WORKER_ACTION__WA_UNPIN;
}

/* While chunks are recoded, which moves none of them: carries out the next commands, in their
 * order, up to one that may take long. */
static void run_short(void *arg)
{
    struct tierce__directory_commands *commands = arg;
    tierce__lock_take(&commands->lock);
    for (struct slot *slot;
         !is_stopping(commands) && (slot = next_slot(commands)) != NULL && is_short(slot->action);)
        run_slot(commands, slot);
    tierce__lock_drop(&commands->lock);
}

static void *run(void *arg)
{
    struct tierce__directory_commands *commands = arg;
    tierce__lock_take(&commands->lock);
    while (!is_stopping(commands)) {
        struct slot *slot = next_slot(commands);
        if (slot == NULL)
            tierce__cond_wait(&commands->given, &commands->lock, TIERCE__DEADLINE_NEVER);
        else
            run_slot(commands, slot);
    }
    tierce__lock_drop(&commands->lock);
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

int tierce__directory_commands_create(struct tierce__directory_commands **out,
                                      const struct tierce__directory_commands_opts *opts)
{
    TIERCE_DASSERT(opts->size == sizeof(*opts));
    struct tierce__directory_commands *commands = tierce__calloc(1, sizeof(*commands));
    if (commands == NULL)
        return -ENOMEM;
    commands->engine = opts->engine;
    commands->ended = opts->ended;
    commands->arg = opts->arg;
    tierce__lock_init(&commands->lock, TIERCE__LOCK_REPORTER);
    tierce__cond_init(&commands->given);
    tierce__chunk_orders_init(&commands->orders, opts->engine, &commands->stops);
    commands->orders.between = run_short;
    commands->orders.arg = commands;
    *out = commands;
    return 0;
}

void tierce__directory_commands_stop(struct tierce__directory_commands *commands)
{
    if (commands == NULL)
        return;
    atomic_store_explicit(&commands->stops, true, memory_order_relaxed);
    tierce__lock_take(&commands->lock);
    tierce__cond_signal(&commands->given);
    tierce__lock_drop(&commands->lock);
    if (commands->has_thread)
        (void)pthread_join(commands->thread, NULL);
    tierce__chunk_orders_fini(&commands->orders);
    for (size_t i = 0; i < COMMANDS; i++)
        free_slot(&commands->slots[i]);
    tierce__cond_fini(&commands->given);
    tierce__lock_fini(&commands->lock);
    tierce__free(commands);
}

/* ---- commands -------------------------------------------------------------------------------- */

void tierce__directory_commands_join(struct tierce__directory_commands *commands, int64_t session)
{
    commands->session = session;
    commands->last = 0;
    commands->listed_count = 0;
    tierce__lock_take(&commands->lock);
    commands->present = session;
    for (size_t i = 0; i < COMMANDS; i++) {
        if (commands->slots[i].state == WAITING || commands->slots[i].state == ENDED)
            free_slot(&commands->slots[i]);
    }
    tierce__lock_drop(&commands->lock);
}

/* Why a command cannot be carried out; NULL: it can. */
static const char *find_fault(const struct tierce__directory_commands *commands,
                              const Meta__WorkerCommand *command)
{
    if (command->session != commands->session)
        return "the command is for another session of this worker";
    if (command->n_keys % 2 != 0 || command->n_keys / 2 > KEYS_MAX)
        return "the command has an odd number of keys, or more than 1024 chunks";
    if (command->from_tier < 0 || command->to_tier < 0)
        return "the command names a tier below 0";
    if (command->n_named > 0 && command->action != META__WORKER_ACTION__WA_FETCH)
        return "only WA_FETCH accepts named chunks";
    if (command->n_named > KEYS_MAX)
        return "WA_FETCH accepts at most 1024 chunks, and the command names more";
    for (size_t i = 0; i < command->n_named; i++) {
        const Meta__NamedChunk *named = command->named[i];
        if (named->index < 0 || strlen(named->name) >= TIERCE__KEY_TEXT_BYTES || named->bytes < 0)
            return "the command names a chunk with an invalid index, name or length";
    }
    for (size_t i = 0; i < command->n_tiers; i++) {
        if (command->tiers[i] < 0 || command->tiers[i] >= 32)
            return "the command names a tier outside 0 to 31";
    }
    return NULL;
}

/* False: no memory. */
static bool read_names(struct names *names, const Meta__WorkerCommand *command)
{
    bool has_any = command->action == META__WORKER_ACTION__WA_NAME ||
                   command->action == META__WORKER_ACTION__WA_FETCH;
    size_t keys = command->n_keys / 2;
    if (!has_any)
        return true;
    if (!names_init(names, keys > command->n_named ? keys : command->n_named))
        return false;
    for (size_t i = 0; i < command->n_named; i++) {
        const Meta__NamedChunk *it = command->named[i];
        struct tierce__chunk_named *named = &names->named[names->count++];
        *named = (struct tierce__chunk_named){.index = (uint32_t)it->index,
                                              .has_parent = it->has_parent,
                                              .bytes = (uint64_t)it->bytes};
        memcpy(named->name, it->name, strlen(it->name) + 1);
    }
    return true;
}

/* A command ends before the manager stops waiting for its result, so that its operator reads how
 * much of it was done. */
static uint64_t end_in_ms(uint32_t timeout_ms)
{
    uint32_t margin_ms = timeout_ms / 10;
    return tierce__deadline_in_ms(timeout_ms - (margin_ms < RESULT_MS ? margin_ms : RESULT_MS));
}

/* False: no memory. */
static bool read_command(struct slot *slot, const Meta__WorkerCommand *command)
{
    uint64_t timeout_ms = command->timeout_ms > 0 ? (uint64_t)command->timeout_ms : 0;
    uint32_t ms = timeout_ms < UINT32_MAX ? (uint32_t)timeout_ms : UINT32_MAX;
    slot->count = command->n_keys / 2;
    slot->numbers = slot->count > 0 ? tierce__calloc(slot->count, sizeof(*slot->numbers)) : NULL;
    if (slot->count > 0 && slot->numbers == NULL)
        return false;
    for (size_t i = 0; i < slot->count; i++)
        slot->numbers[i] = (struct tierce__chunk_number){(uint64_t)command->keys[2 * i],
                                                         (uint64_t)command->keys[2 * i + 1]};
    slot->move = (struct tierce__chunk_move){.from = (size_t)command->from_tier,
                                             .to = (size_t)command->to_tier,
                                             .keeps = command->keeps,
                                             .deadline_ns = end_in_ms(ms)};
    for (size_t i = 0; i < command->n_tiers; i++)
        slot->tiers |= 1u << command->tiers[i];
    slot->pin_ms = command->pin_ms > 0 ? (uint64_t)command->pin_ms : 0;
    return read_names(&slot->names, command);
}

static void refuse(struct slot *slot, const char *why)
{
    snprintf(slot->outcome.message, sizeof(slot->outcome.message), "%s", why);
    slot->state = ENDED;
}

static struct slot *empty_slot(struct tierce__directory_commands *commands)
{
    for (size_t i = 0; i < COMMANDS; i++) {
        if (commands->slots[i].state == EMPTY)
            return &commands->slots[i];
    }
    return NULL;
}

/* The first command makes the thread. */
static bool has_thread(struct tierce__directory_commands *commands)
{
    if (!commands->has_thread)
        commands->has_thread = tierce__thread_start(&commands->thread, run, commands) == 0;
    return commands->has_thread;
}

void tierce__directory_commands_take(struct tierce__directory_commands *commands,
                                     const Meta__ReportChunksResponse *reply)
{
    bool can_run = reply->n_commands == 0 || has_thread(commands);
    tierce__lock_take(&commands->lock);
    for (size_t i = 0; i < reply->n_commands; i++) {
        const Meta__WorkerCommand *command = reply->commands[i];
        struct slot *slot = empty_slot(commands);
        if (slot == NULL) /* those that do not fit are said again */
            break;
        if (command->command <= commands->last)
            continue;
        const char *fault = find_fault(commands, command);
        commands->last = command->command;
        *slot = (struct slot){.state = WAITING,
                              .number = command->command,
                              .session = commands->session,
                              .action = command->action};
        if (fault == NULL && !can_run)
            fault = "the engine cannot start a thread";
        if (fault == NULL && !read_command(slot, command))
            fault = "the engine has no memory";
        if (fault != NULL)
            refuse(slot, fault);
    }
    if (reply->n_commands > 0)
        tierce__cond_signal(&commands->given);
    tierce__lock_drop(&commands->lock);
}

/* ---- results --------------------------------------------------------------------------------- */

bool tierce__directory_commands_has_results(struct tierce__directory_commands *commands)
{
    bool has_any = false;
    tierce__lock_take(&commands->lock);
    for (size_t i = 0; i < COMMANDS; i++)
        has_any |= commands->slots[i].state == ENDED;
    tierce__lock_drop(&commands->lock);
    return has_any;
}

void tierce__directory_commands_put(struct tierce__directory_commands *commands,
                                    Meta__ReportChunksRequest *request)
{
    commands->listed_count = 0;
    tierce__lock_take(&commands->lock);
    for (size_t i = 0; i < COMMANDS; i++) {
        struct slot *slot = &commands->slots[i];
        if (slot->state != ENDED)
            continue;
        Meta__CommandResult *result = &commands->results[commands->listed_count];
        meta__command_result__init(result);
        result->command = slot->number;
        result->is_done = slot->outcome.is_done;
        result->chunks = (int64_t)slot->outcome.chunks;
        result->left_out = (int64_t)slot->outcome.left_out;
        result->message = slot->outcome.message; /* of an ended one: it does not change */
        if (slot->action == META__WORKER_ACTION__WA_NAME) {
            result->n_named = slot->names.count;
            result->named = slot->names.listed;
        }
        result->n_landed = slot->names.landed_count;
        result->landed = slot->names.landed;
        commands->listed[commands->listed_count++] = result;
    }
    tierce__lock_drop(&commands->lock);
    request->last_command = commands->last;
    request->results = commands->listed;
    request->n_results = commands->listed_count;
}

void tierce__directory_commands_sent(struct tierce__directory_commands *commands)
{
    tierce__lock_take(&commands->lock);
    for (size_t i = 0; i < COMMANDS; i++) {
        struct slot *slot = &commands->slots[i];
        for (size_t k = 0; slot->state == ENDED && k < commands->listed_count; k++) {
            if (commands->results[k].command == slot->number)
                free_slot(slot);
        }
    }
    commands->listed_count = 0;
    tierce__lock_drop(&commands->lock);
}
