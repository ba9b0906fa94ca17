/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_WORKER_COMMANDS_H
#define TIERCE_MANAGER_WORKER_COMMANDS_H

#include "core/key/key_text.h"
#include "directory/directory.h"

/*
 * Commands of operators to the workers of a directory, and their results. A worker receives its
 * commands in the answer of a report, and sends results with later reports.
 *
 *     rc = tierce__worker_commands_give(commands, &worker, &order, now_ns, &number);   // operator
 *     count = tierce__worker_commands_next(commands, id, last, now_ns, list, room);    // a report
 *     ... tierce__worker_command_release(list[i]) ...
 *     tierce__worker_commands_end(commands, id, number, &result, now_ns);              // a report
 *     has = tierce__worker_commands_get(commands, number, group, now_ns, &report);     // operator
 *
 * A move to another worker of the group is one command with up to three steps, each with a number
 * of its own towards the worker that it is for, and one deadline for all:
 *
 *     WA_NAME    the worker tells the names of the chunks: a directory knows numbers alone
 *     WA_FETCH   the target reads them from its peers, verifies them, and tells which it has
 *     WA_DROP    the worker removes those, unless it keeps them
 *
 * So no chunk is removed before the target has reported that it holds it. A move that fails
 * half-way leaves chunks in both workers, and its message says so.
 *
 * Each command ends: with the worker's result, at its deadline, or when its worker leaves or joins
 * again. It is kept until its group, or all groups together, have as many later ones as they may
 * have. All are forgotten when this manager begins or ceases to lead; numbers of another term are
 * unknown.
 *
 * Thread: any. No call blocks.
 */

/* Of one worker, without a result yet, at most; so many results can come with a report. */
#define TIERCE__WORKER_COMMANDS_OPEN 16u

struct tierce__worker_commands;

struct tierce__worker_commands_opts {
    size_t size;
    struct tierce__directory *directory; /* [borrow until destroy] */
    uint32_t commands_max;               /* with those that have ended; 0: 1024 */
    uint32_t group_max;                  /* of one group; 0: 128 */
    uint32_t worker_max;                 /* of one worker that have not ended; 0: COMMANDS_OPEN */
};

/* Errors: -ENOMEM, -EIO (no random numbers). */
TIERCE_MUSTUSE int tierce__worker_commands_create(struct tierce__worker_commands **out,
                                                  const struct tierce__worker_commands_opts *opts);
/* No command is acquired. NULL is accepted. */
void tierce__worker_commands_destroy(struct tierce__worker_commands *commands);

/* Values of WorkerAction. */
enum tierce__worker_action {
    TIERCE__WORKER_HEALTH = 1,
    TIERCE__WORKER_PIN,
    TIERCE__WORKER_UNPIN,
    TIERCE__WORKER_MOVE,
    TIERCE__WORKER_CLEAR,
    TIERCE__WORKER_COMPRESS,
    TIERCE__WORKER_NAME, /* steps of a move */
    TIERCE__WORKER_FETCH,
    TIERCE__WORKER_DROP,
    TIERCE__WORKER_DECOMPRESS = 100,
};

#define TIERCE__WORKER_ORDER_KEYS 1024u
/* To other workers, without a result yet, of all groups: each has up to 190 KB of names. */
#define TIERCE__WORKER_MOVES_OPEN 64u
/* Those of one group, so that no group takes the moves of all others. */
#define TIERCE__WORKER_GROUP_MOVES_OPEN 16u

struct tierce__worker_named {
    uint32_t index; /* among the keys of the move */
    bool has_parent;
    uint64_t bytes;
    char name[TIERCE__KEY_TEXT_BYTES];
};

struct tierce__worker_order {
    enum tierce__worker_action action;
    const struct tierce__directory_key *keys; /* [count] */
    size_t count;                             /* up to TIERCE__WORKER_ORDER_KEYS */
    uint32_t from_tier, to_tier;
    uint32_t tiers; /* a bit for each */
    uint64_t pin_ms, timeout_ms;
    bool keeps;
    struct tierce__directory_id target;       /* of a move to another worker; session 0: none */
    const struct tierce__worker_named *named; /* [named_count] of TIERCE__WORKER_FETCH */
    size_t named_count;
};

/* Does not change while it is acquired. */
struct tierce__worker_command {
    _Atomic uint32_t references;
    uint64_t number, deadline_ns;
    struct tierce__worker_order order;
    struct tierce__directory_key keys[];
};
void tierce__worker_command_release(struct tierce__worker_command *command);

/* The order is copied. Errors: TIERCE_E_LIMIT (worker_max), TIERCE_E_FULL (of group_max or
 * commands_max none has ended), -EBUSY (the group has TIERCE__WORKER_GROUP_MOVES_OPEN moves),
 * -EAGAIN (all groups have TIERCE__WORKER_MOVES_OPEN), TIERCE_E_MISS (the worker has left),
 * -ESRCH (the target has), -ENOMEM. */
TIERCE_MUSTUSE int tierce__worker_commands_give(struct tierce__worker_commands *commands,
                                                struct tierce__directory_id worker,
                                                const struct tierce__worker_order *order,
                                                uint64_t now_ns, uint64_t *number);

/* The worker's commands with numbers above `after` that have not ended, in their order, each with a
 * reference that the caller releases. Returns how many. They count as sent. */
size_t tierce__worker_commands_next(struct tierce__worker_commands *commands,
                                    struct tierce__directory_id worker, uint64_t after,
                                    uint64_t now_ns, struct tierce__worker_command **out,
                                    size_t room);

#define TIERCE__WORKER_MESSAGE_BYTES 512u

struct tierce__worker_result {
    bool is_done;
    uint64_t chunks, left_out;
    const char *message;                /* control characters become '?' */
    struct tierce__worker_named *named; /* [named_count] of TIERCE__WORKER_NAME; may be changed */
    size_t named_count;
    const int32_t *landed; /* [landed_count] of TIERCE__WORKER_FETCH */
    size_t landed_count;
};

/* A result of a command that is unknown, has ended, or is of another worker, changes nothing. That
 * of a move's step begins the next one. */
void tierce__worker_commands_end(struct tierce__worker_commands *commands,
                                 struct tierce__directory_id worker, uint64_t number,
                                 const struct tierce__worker_result *result, uint64_t now_ns);

/* Values of CommandState. */
enum tierce__worker_command_state {
    TIERCE__COMMAND_WAITING = 1,
    TIERCE__COMMAND_SENT,
    TIERCE__COMMAND_DONE,
    TIERCE__COMMAND_FAILED,
};

struct tierce__worker_report {
    enum tierce__worker_command_state state;
    enum tierce__worker_action action;
    uint64_t chunks, left_out;
    char worker[TIERCE__DIRECTORY_NAME_BYTES];
    char message[TIERCE__WORKER_MESSAGE_BYTES];
};

/* `group`: of the worker; NULL: any. False: unknown, as a command of another group is. */
bool tierce__worker_commands_get(struct tierce__worker_commands *commands, uint64_t number,
                                 const char *group, uint64_t now_ns,
                                 struct tierce__worker_report *out);

/* Ends commands whose time is over or whose worker is gone, and drops their keys. */
void tierce__worker_commands_tick(struct tierce__worker_commands *commands, uint64_t now_ns);

/* Forgets all. */
void tierce__worker_commands_clear(struct tierce__worker_commands *commands);

#endif
