/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/holdings/worker_commands.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/threads/lock.h"
#include "manager/holdings/worker_moves.h"

#define COMMANDS_DEFAULT 1024u
#define GROUP_DEFAULT    128u

/* The workers of a command. */
enum { SOURCE, TARGET };

struct entry {
    struct tierce__worker_command *command; /* the present step; NULL once it has ended */
    uint64_t number;                        /* for its operator; 0: the entry is free */
    struct {
        struct tierce__directory_id id;
        char name[TIERCE__DIRECTORY_NAME_BYTES];
    } workers[2];
    unsigned at; /* the worker of the step */
    uint64_t deadline_ns, timeout_ms;
    bool is_heard; /* the worker has received the step */
    bool is_gone;  /* it ended because the worker is */
    bool is_move, keeps;
    char group[TIERCE__DIRECTORY_NAME_BYTES];
    struct tierce__worker_report report;
};

struct tierce__worker_commands {
    struct tierce__directory *directory;
    uint32_t commands_max, group_max, worker_max;
    _Atomic uint32_t open; /* have not ended; relaxed: reports look at it first */

    struct tierce__lock lock; /* SENDERS: below */
    struct entry *entries;    /* [commands_max] */
    uint64_t last;            /* number of the last command */
};

/* ---- the whole ------------------------------------------------------------------------------- */

/* The numbers of a term begin by chance, so that those of another are unknown. */
static int renew_numbers(struct tierce__worker_commands *commands)
{
    uint64_t chance;
    if (getrandom(&chance, sizeof(chance), 0) != (ssize_t)sizeof(chance))
        return -EIO;
    commands->last = chance >> 2;
    return 0;
}

int tierce__worker_commands_create(struct tierce__worker_commands **out,
                                   const struct tierce__worker_commands_opts *opts)
{
    TIERCE_DASSERT(opts->size == sizeof(*opts));
    struct tierce__worker_commands *commands = tierce__calloc(1, sizeof(*commands));
    if (commands == NULL)
        return -ENOMEM;
    commands->directory = opts->directory;
    commands->commands_max = opts->commands_max > 0 ? opts->commands_max : COMMANDS_DEFAULT;
    commands->group_max = opts->group_max > 0 ? opts->group_max : GROUP_DEFAULT;
    commands->worker_max = opts->worker_max > 0 ? opts->worker_max : TIERCE__WORKER_COMMANDS_OPEN;
    tierce__lock_init(&commands->lock, TIERCE__LOCK_SENDERS);
    commands->entries = tierce__calloc(commands->commands_max, sizeof(*commands->entries));
    int rc = commands->entries != NULL ? renew_numbers(commands) : -ENOMEM;
    if (rc == 0)
        *out = commands;
    else
        tierce__worker_commands_destroy(commands);
    return rc;
}

void tierce__worker_commands_destroy(struct tierce__worker_commands *commands)
{
    if (commands == NULL)
        return;
    for (uint32_t i = 0; commands->entries != NULL && i < commands->commands_max; i++)
        tierce__worker_command_release(commands->entries[i].command);
    tierce__lock_fini(&commands->lock);
    tierce__free(commands->entries);
    tierce__free(commands);
}

void tierce__worker_command_release(struct tierce__worker_command *command)
{
    if (command != NULL &&
        atomic_fetch_sub_explicit(&command->references, 1, memory_order_acq_rel) == 1)
        tierce__free(command);
}

/* ---- the end of a command -------------------------------------------------------------------- */

static bool is_open(const struct entry *entry)
{
    return entry->command != NULL;
}

static struct tierce__directory_id id_of(const struct entry *entry)
{
    return entry->workers[entry->at].id;
}

/* Its keys are no longer needed. */
static void close_entry(struct tierce__worker_commands *commands, struct entry *entry,
                        enum tierce__worker_command_state state)
{
    tierce__lock_assert_held(&commands->lock);
    TIERCE_DASSERT(is_open(entry));
    entry->report.state = state;
    tierce__worker_command_release(entry->command);
    entry->command = NULL;
    atomic_fetch_sub_explicit(&commands->open, 1, memory_order_relaxed);
}

__attribute__((format(printf, 2, 3))) static void say(struct entry *entry, const char *format, ...)
{
    size_t used = strlen(entry->report.message);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(entry->report.message + used, sizeof(entry->report.message) - used, format,
                    arguments);
    va_end(arguments);
}

/* A worker's own words, after those that are there. */
static void say_words(struct entry *entry, const char *words)
{
    char text[TIERCE__WORKER_MESSAGE_BYTES];
    tierce__text_for_message(text, sizeof(text), words);
    bool is_step = entry->is_move && text[0] != '\0';
    say(entry, "%s%s%s%s%s", is_step && entry->report.message[0] != '\0' ? "; " : "",
        is_step ? "worker " : "", is_step ? entry->workers[entry->at].name : "",
        is_step ? ": " : "", text);
}

static void say_late(struct entry *entry)
{
    say(entry, "worker %s sent no result within %llu ms: %s", entry->workers[entry->at].name,
        (unsigned long long)entry->timeout_ms,
        entry->is_heard ? "the worker received the command and may still execute it"
                        : "it has sent no report since the command was given");
}

/* Where the chunks of a move are that ends at this step. */
static void say_step(struct entry *entry)
{
    const char *source = entry->workers[SOURCE].name, *target = entry->workers[TARGET].name;
    if (!entry->is_move)
        return;
    if (entry->command->order.action != TIERCE__WORKER_DROP)
        say(entry, "; no chunk was removed from worker %s", source);
    else
        say(entry, "; %llu chunks were copied to worker %s; worker %s may still hold them",
            (unsigned long long)entry->report.chunks, target, source);
}

static void settle(struct tierce__worker_commands *commands, struct entry *entry, uint64_t now_ns)
{
    tierce__lock_assert_held(&commands->lock);
    if (!is_open(entry))
        return;
    entry->is_gone = tierce__directory_group_of(commands->directory, id_of(entry)) == 0;
    if (!entry->is_gone && now_ns < entry->deadline_ns)
        return;
    entry->report.message[0] = '\0'; /* of earlier steps */
    if (!entry->is_gone)
        say_late(entry);
    say_step(entry);
    close_entry(commands, entry, TIERCE__COMMAND_FAILED);
}

void tierce__worker_commands_tick(struct tierce__worker_commands *commands, uint64_t now_ns)
{
    if (atomic_load_explicit(&commands->open, memory_order_relaxed) == 0)
        return;
    tierce__lock_take(&commands->lock);
    for (uint32_t i = 0; i < commands->commands_max; i++)
        settle(commands, &commands->entries[i], now_ns);
    tierce__lock_drop(&commands->lock);
}

void tierce__worker_commands_clear(struct tierce__worker_commands *commands)
{
    tierce__lock_take(&commands->lock);
    for (uint32_t i = 0; i < commands->commands_max; i++) {
        struct entry *entry = &commands->entries[i];
        if (is_open(entry))
            close_entry(commands, entry, TIERCE__COMMAND_FAILED);
        entry->number = 0;
    }
    (void)renew_numbers(commands); /* without random numbers they go on, and none is used twice */
    tierce__lock_drop(&commands->lock);
}

/* ---- operators ------------------------------------------------------------------------------- */

static bool is_of(const struct entry *entry, struct tierce__directory_id worker)
{
    return id_of(entry).session == worker.session && id_of(entry).slot == worker.slot;
}

/* The commands that matter for a new one. */
struct census {
    uint32_t of_worker, of_group, moves, moves_of_group;
    struct entry *free, *oldest, *oldest_of_group; /* the oldest that have ended */
};

static void count(struct tierce__worker_commands *commands, struct census *census,
                  struct tierce__directory_id worker, const char *group)
{
    *census = (struct census){0};
    for (uint32_t i = 0; i < commands->commands_max; i++) {
        struct entry *entry = &commands->entries[i];
        if (entry->number == 0) {
            census->free = census->free != NULL ? census->free : entry;
            continue;
        }
        bool is_of_group = strcmp(entry->group, group) == 0;
        census->of_group += is_of_group;
        census->of_worker += is_open(entry) && is_of(entry, worker);
        census->moves += is_open(entry) && entry->is_move;
        census->moves_of_group += is_open(entry) && entry->is_move && is_of_group;
        if (is_open(entry))
            continue;
        if (census->oldest == NULL || entry->number < census->oldest->number)
            census->oldest = entry;
        if (is_of_group &&
            (census->oldest_of_group == NULL || entry->number < census->oldest_of_group->number))
            census->oldest_of_group = entry;
    }
}

/* The entry of a new command. A group that has its share replaces its own. */
static int choose(struct tierce__worker_commands *commands, struct entry **out,
                  struct tierce__directory_id worker, const char *group, bool is_move)
{
    struct census census;
    count(commands, &census, worker, group);
    if (census.of_worker >= commands->worker_max)
        return TIERCE_E_LIMIT;
    if (is_move && census.moves_of_group >= TIERCE__WORKER_GROUP_MOVES_OPEN)
        return -EBUSY;
    if (is_move && census.moves >= TIERCE__WORKER_MOVES_OPEN)
        return -EAGAIN;
    struct entry *found = census.free != NULL ? census.free : census.oldest;
    if (census.of_group >= commands->group_max)
        found = census.oldest_of_group;
    *out = found;
    return found != NULL ? 0 : TIERCE_E_FULL;
}

static struct tierce__worker_command *copy_order(const struct tierce__worker_order *order,
                                                 uint64_t deadline_ns)
{
    size_t key_bytes = order->count * sizeof(*order->keys);
    size_t named_bytes = order->named_count * sizeof(*order->named);
    struct tierce__worker_command *command =
        tierce__alloc(sizeof(*command) + key_bytes + named_bytes);
    if (command == NULL)
        return NULL;
    *command = (struct tierce__worker_command){.order = *order, .deadline_ns = deadline_ns};
    atomic_init(&command->references, 1);
    struct tierce__worker_named *named =
        (struct tierce__worker_named *)(void *)(command->keys + order->count);
    if (key_bytes > 0)
        memcpy(command->keys, order->keys, key_bytes);
    if (named_bytes > 0)
        memcpy(named, order->named, named_bytes);
    command->order.keys = command->keys;
    command->order.named = named;
    return command;
}

static void fill(struct entry *entry, struct tierce__worker_command *command,
                 const struct tierce__worker_order *order,
                 const struct tierce__directory_about about[2])
{
    *entry = (struct entry){.command = command,
                            .number = command->number,
                            .deadline_ns = command->deadline_ns,
                            .timeout_ms = order->timeout_ms,
                            .is_move = order->target.session != 0,
                            .keeps = order->keeps,
                            .report = {.state = TIERCE__COMMAND_WAITING, .action = order->action}};
    for (unsigned i = SOURCE; i <= TARGET; i++) {
        entry->workers[i].id = about[i].id;
        memcpy(entry->workers[i].name, about[i].name, sizeof(entry->workers[i].name));
    }
    memcpy(entry->group, about[SOURCE].group, sizeof(entry->group));
    memcpy(entry->report.worker, about[SOURCE].name, sizeof(entry->report.worker));
    if (entry->is_move)
        command->order.action = TIERCE__WORKER_NAME;
}

int tierce__worker_commands_give(struct tierce__worker_commands *commands,
                                 struct tierce__directory_id worker,
                                 const struct tierce__worker_order *order, uint64_t now_ns,
                                 uint64_t *number)
{
    struct tierce__directory_about about[2] = {0};
    struct entry *entry = NULL;
    bool is_move = order->target.session != 0;
    TIERCE_DASSERT(order->count <= TIERCE__WORKER_ORDER_KEYS);
    if (!tierce__directory_about(commands->directory, worker, &about[SOURCE]))
        return TIERCE_E_MISS;
    if (is_move && !tierce__directory_about(commands->directory, order->target, &about[TARGET]))
        return -ESRCH;
    struct tierce__worker_command *command =
        copy_order(order, now_ns + order->timeout_ms * TIERCE__MS_NS);
    if (command == NULL)
        return -ENOMEM;
    tierce__lock_take(&commands->lock);
    int rc = choose(commands, &entry, worker, about[SOURCE].group, is_move);
    if (rc == 0) {
        *number = command->number = ++commands->last;
        fill(entry, command, order, about);
        atomic_fetch_add_explicit(&commands->open, 1, memory_order_relaxed);
    }
    tierce__lock_drop(&commands->lock);
    if (rc != 0)
        tierce__worker_command_release(command);
    return rc;
}

static struct entry *find(struct tierce__worker_commands *commands, uint64_t number)
{
    tierce__lock_assert_held(&commands->lock);
    for (uint32_t i = 0; number != 0 && i < commands->commands_max; i++) {
        if (commands->entries[i].number == number)
            return &commands->entries[i];
    }
    return NULL;
}

/* Why a worker that has left has sent no result, before the words that are there. */
static void say_gone(struct tierce__worker_commands *commands, const char *group,
                     const char *worker, struct tierce__worker_report *report)
{
    struct tierce__directory_id now;
    char words[TIERCE__WORKER_MESSAGE_BYTES];
    bool is_back = tierce__directory_named(commands->directory, group, worker, &now);
    memcpy(words, report->message, sizeof(words));
    (void)snprintf(report->message, sizeof(report->message), "worker %s %s%.300s", worker,
                   is_back ? "has joined again, as after a restart, before it sent a result"
                           : "has left the directory, or was silent for too long, before it sent a "
                             "result",
                   words);
}

bool tierce__worker_commands_get(struct tierce__worker_commands *commands, uint64_t number,
                                 const char *group, uint64_t now_ns,
                                 struct tierce__worker_report *out)
{
    tierce__lock_take(&commands->lock);
    struct entry *entry = find(commands, number);
    bool is_known = entry != NULL && (group == NULL || strcmp(entry->group, group) == 0);
    bool is_gone = false;
    char of[TIERCE__DIRECTORY_NAME_BYTES] = "", worker[TIERCE__DIRECTORY_NAME_BYTES] = "";
    if (is_known) {
        settle(commands, entry, now_ns);
        *out = entry->report;
        is_gone = entry->is_gone;
        memcpy(of, entry->group, sizeof(of));
        memcpy(worker, entry->workers[entry->at].name, sizeof(worker));
    }
    tierce__lock_drop(&commands->lock);
    if (is_gone) /* without the lock: DIRECTORY is before it */
        say_gone(commands, of, worker, out);
    return is_known;
}

/* ---- workers --------------------------------------------------------------------------------- */

/* The first step for the worker after a number, or NULL. */
static struct entry *find_after(struct tierce__worker_commands *commands,
                                struct tierce__directory_id worker, uint64_t after)
{
    struct entry *found = NULL;
    for (uint32_t i = 0; i < commands->commands_max; i++) {
        struct entry *entry = &commands->entries[i];
        if (is_open(entry) && is_of(entry, worker) && entry->command->number > after &&
            (found == NULL || entry->command->number < found->command->number))
            found = entry;
    }
    return found;
}

size_t tierce__worker_commands_next(struct tierce__worker_commands *commands,
                                    struct tierce__directory_id worker, uint64_t after,
                                    uint64_t now_ns, struct tierce__worker_command **out,
                                    size_t room)
{
    size_t used = 0;
    if (worker.session == 0 || atomic_load_explicit(&commands->open, memory_order_relaxed) == 0)
        return 0;
    tierce__lock_take(&commands->lock);
    for (struct entry *entry;
         used < room && (entry = find_after(commands, worker, after)) != NULL;) {
        after = entry->command->number;
        settle(commands, entry, now_ns);
        if (!is_open(entry))
            continue;
        entry->report.state = TIERCE__COMMAND_SENT;
        entry->is_heard = true;
        atomic_fetch_add_explicit(&entry->command->references, 1, memory_order_relaxed);
        out[used++] = entry->command;
    }
    tierce__lock_drop(&commands->lock);
    return used;
}

/* The open entry whose step has this number, or NULL. */
static struct entry *find_step(struct tierce__worker_commands *commands,
                               struct tierce__directory_id worker, uint64_t number)
{
    for (uint32_t i = 0; number != 0 && i < commands->commands_max; i++) {
        struct entry *entry = &commands->entries[i];
        if (is_open(entry) && entry->command->number == number)
            return is_of(entry, worker) ? entry : NULL;
    }
    return NULL;
}

static void begin_step(struct tierce__worker_commands *commands, struct entry *entry, unsigned at,
                       const struct tierce__worker_order *order)
{
    struct tierce__worker_command *next = copy_order(order, entry->deadline_ns);
    if (next == NULL) {
        say(entry, "%sthe manager is out of memory", entry->report.message[0] != '\0' ? "; " : "");
        say_step(entry);
        close_entry(commands, entry, TIERCE__COMMAND_FAILED);
        return;
    }
    next->number = ++commands->last;
    tierce__worker_command_release(entry->command);
    entry->command = next;
    entry->at = at;
    entry->is_heard = false;
}

/* The source has told the names. */
static void end_name(struct tierce__worker_commands *commands, struct entry *entry,
                     const struct tierce__worker_result *result)
{
    struct tierce__worker_order order = entry->command->order;
    order.action = TIERCE__WORKER_FETCH;
    order.named = result->named;
    order.named_count =
        tierce__worker_move_check(result->named, result->named_count, order.keys, order.count);
    entry->report.left_out = order.count;
    if (order.named_count < result->named_count)
        say_words(entry, "it sent names that are not those of the chunks");
    if (order.named_count == 0 && entry->report.message[0] == '\0')
        say_words(entry, "it named none of the chunks");
    if (result->is_done && order.named_count > 0)
        begin_step(commands, entry, TARGET, &order);
    else
        close_entry(commands, entry, TIERCE__COMMAND_FAILED);
}

/* The target has told what it holds. */
static void end_fetch(struct tierce__worker_commands *commands, struct entry *entry,
                      const struct tierce__worker_result *result)
{
    struct tierce__directory_key keys[TIERCE__WORKER_ORDER_KEYS];
    struct tierce__worker_order order = entry->command->order;
    size_t landed = tierce__worker_move_landed(keys, &order, result->landed, result->landed_count);
    entry->report.chunks = landed;
    entry->report.left_out = order.count - landed;
    if (landed == 0 && result->message[0] == '\0')
        say_words(entry, "it holds none of the chunks");
    if (landed == 0 || entry->keeps) {
        close_entry(commands, entry, landed > 0 ? TIERCE__COMMAND_DONE : TIERCE__COMMAND_FAILED);
        return;
    }
    order.action = TIERCE__WORKER_DROP;
    order.keys = keys;
    order.count = landed;
    order.named_count = 0;
    begin_step(commands, entry, SOURCE, &order);
}

static void end_step(struct tierce__worker_commands *commands, struct entry *entry,
                     const struct tierce__worker_result *result)
{
    enum tierce__worker_action action = entry->command->order.action;
    say_words(entry, result->message);
    if (action == TIERCE__WORKER_NAME) {
        end_name(commands, entry, result);
    } else if (action == TIERCE__WORKER_FETCH) {
        end_fetch(commands, entry, result);
    } else {
        if (action != TIERCE__WORKER_DROP) {
            entry->report.chunks = result->chunks;
            entry->report.left_out = result->left_out;
        } else if (!result->is_done) {
            say_step(entry);
        }
        close_entry(commands, entry,
                    result->is_done ? TIERCE__COMMAND_DONE : TIERCE__COMMAND_FAILED);
    }
}

void tierce__worker_commands_end(struct tierce__worker_commands *commands,
                                 struct tierce__directory_id worker, uint64_t number,
                                 const struct tierce__worker_result *result, uint64_t now_ns)
{
    tierce__lock_take(&commands->lock);
    struct entry *entry = find_step(commands, worker, number);
    if (entry != NULL)
        settle(commands, entry, now_ns);
    if (entry != NULL && is_open(entry))
        end_step(commands, entry, result);
    tierce__lock_drop(&commands->lock);
}
