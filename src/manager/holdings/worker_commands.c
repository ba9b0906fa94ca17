/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/holdings/worker_commands.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/threads/lock.h"

#define COMMANDS_DEFAULT 1024u
#define GROUP_DEFAULT    128u

struct entry {
    struct tierce__worker_command *command; /* NULL once it has ended */
    uint64_t number;                        /* 0: the entry is free */
    struct tierce__directory_id worker;
    uint64_t deadline_ns, timeout_ms;
    bool is_gone; /* it ended because the worker is */
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

static void say_late(struct entry *entry)
{
    snprintf(entry->report.message, sizeof(entry->report.message),
             "worker %s sent no result within %llu ms: %s", entry->report.worker,
             (unsigned long long)entry->timeout_ms,
             entry->report.state == TIERCE__COMMAND_SENT
                 ? "it has heard of the command, and may still carry it out"
                 : "it has sent no report since the command was given");
}

static void settle(struct tierce__worker_commands *commands, struct entry *entry, uint64_t now_ns)
{
    tierce__lock_assert_held(&commands->lock);
    if (!is_open(entry))
        return;
    entry->is_gone = tierce__directory_group_of(commands->directory, entry->worker) == 0;
    if (!entry->is_gone && now_ns < entry->deadline_ns)
        return;
    if (!entry->is_gone)
        say_late(entry);
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
    return entry->worker.session == worker.session && entry->worker.slot == worker.slot;
}

/* The commands that matter for a new one. */
struct census {
    uint32_t of_worker, of_group;
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
                  struct tierce__directory_id worker, const char *group)
{
    struct census census;
    count(commands, &census, worker, group);
    if (census.of_worker >= commands->worker_max)
        return TIERCE_E_LIMIT;
    struct entry *found = census.free != NULL ? census.free : census.oldest;
    if (census.of_group >= commands->group_max)
        found = census.oldest_of_group;
    *out = found;
    return found != NULL ? 0 : TIERCE_E_FULL;
}

static struct tierce__worker_command *copy_order(const struct tierce__worker_order *order,
                                                 uint64_t now_ns)
{
    size_t bytes = order->count * sizeof(*order->keys);
    struct tierce__worker_command *command = tierce__alloc(sizeof(*command) + bytes);
    if (command == NULL)
        return NULL;
    *command = (struct tierce__worker_command){
        .order = *order, .deadline_ns = now_ns + order->timeout_ms * TIERCE__MS_NS};
    atomic_init(&command->references, 1);
    if (bytes > 0)
        memcpy(command->keys, order->keys, bytes);
    command->order.keys = command->keys;
    return command;
}

int tierce__worker_commands_give(struct tierce__worker_commands *commands,
                                 struct tierce__directory_id worker,
                                 const struct tierce__worker_order *order, uint64_t now_ns,
                                 uint64_t *number)
{
    struct tierce__directory_about about;
    struct entry *entry = NULL;
    TIERCE_DASSERT(order->count <= TIERCE__WORKER_ORDER_KEYS);
    if (!tierce__directory_about(commands->directory, worker, &about))
        return TIERCE_E_MISS;
    struct tierce__worker_command *command = copy_order(order, now_ns);
    if (command == NULL)
        return -ENOMEM;
    tierce__lock_take(&commands->lock);
    int rc = choose(commands, &entry, worker, about.group);
    if (rc == 0) {
        *number = command->number = ++commands->last;
        *entry =
            (struct entry){.command = command,
                           .number = command->number,
                           .worker = worker,
                           .deadline_ns = command->deadline_ns,
                           .timeout_ms = order->timeout_ms,
                           .report = {.state = TIERCE__COMMAND_WAITING, .action = order->action}};
        memcpy(entry->group, about.group, sizeof(entry->group));
        memcpy(entry->report.worker, about.name, sizeof(entry->report.worker));
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

/* Why a worker that has left has sent no result. */
static void say_gone(struct tierce__worker_commands *commands, const char *group,
                     struct tierce__worker_report *report)
{
    struct tierce__directory_id now;
    bool is_back = tierce__directory_named(commands->directory, group, report->worker, &now);
    snprintf(report->message, sizeof(report->message), "worker %s %s", report->worker,
             is_back ? "has joined again, as after a restart, before it sent a result"
                     : "has left the directory, or was silent for too long, before it sent a "
                       "result");
}

bool tierce__worker_commands_get(struct tierce__worker_commands *commands, uint64_t number,
                                 const char *group, uint64_t now_ns,
                                 struct tierce__worker_report *out)
{
    tierce__lock_take(&commands->lock);
    struct entry *entry = find(commands, number);
    bool is_known = entry != NULL && (group == NULL || strcmp(entry->group, group) == 0);
    bool is_gone = false;
    char of[TIERCE__DIRECTORY_NAME_BYTES] = "";
    if (is_known) {
        settle(commands, entry, now_ns);
        *out = entry->report;
        is_gone = entry->is_gone;
        memcpy(of, entry->group, sizeof(of));
    }
    tierce__lock_drop(&commands->lock);
    if (is_gone) /* without the lock: DIRECTORY is before it */
        say_gone(commands, of, out);
    return is_known;
}

/* ---- workers --------------------------------------------------------------------------------- */

/* The first command of the worker after a number, or NULL. */
static struct entry *find_after(struct tierce__worker_commands *commands,
                                struct tierce__directory_id worker, uint64_t after)
{
    struct entry *found = NULL;
    for (uint32_t i = 0; i < commands->commands_max; i++) {
        struct entry *entry = &commands->entries[i];
        if (is_open(entry) && is_of(entry, worker) && entry->number > after &&
            (found == NULL || entry->number < found->number))
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
        after = entry->number;
        settle(commands, entry, now_ns);
        if (!is_open(entry))
            continue;
        entry->report.state = TIERCE__COMMAND_SENT;
        atomic_fetch_add_explicit(&entry->command->references, 1, memory_order_relaxed);
        out[used++] = entry->command;
    }
    tierce__lock_drop(&commands->lock);
    return used;
}

void tierce__worker_commands_end(struct tierce__worker_commands *commands,
                                 struct tierce__directory_id worker, uint64_t number,
                                 const struct tierce__worker_result *result, uint64_t now_ns)
{
    tierce__lock_take(&commands->lock);
    struct entry *entry = find(commands, number);
    if (entry != NULL)
        settle(commands, entry, now_ns);
    if (entry != NULL && is_open(entry) && is_of(entry, worker)) {
        entry->report.chunks = result->chunks;
        entry->report.left_out = result->left_out;
        tierce__text_for_message(entry->report.message, sizeof(entry->report.message),
                                 result->message);
        close_entry(commands, entry,
                    result->is_done ? TIERCE__COMMAND_DONE : TIERCE__COMMAND_FAILED);
    }
    tierce__lock_drop(&commands->lock);
}
