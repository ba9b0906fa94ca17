/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CONTROLLER_COMMANDS_H
#define TIERCE_MANAGER_CONTROLLER_COMMANDS_H

#include "base/list.h"
#include "manager/lmcache/controller_message.h"

/*
 * Commands to LMCache's workers, on a thread of their own: each worker gets its message over a REQ
 * socket of the command, and `done` is called when all have answered, or at the deadline.
 *
 *     rc = tierce__controller_commands_submit(commands, command);   // later:
 * command->done(command)
 *
 * Thread: any.
 */

struct tierce__controller_commands;

enum tierce__controller_state {
    TIERCE__CONTROLLER_WAITS,    /* no answer yet; at the end: it was silent */
    TIERCE__CONTROLLER_ANSWERED, /* `result` */
    TIERCE__CONTROLLER_REFUSED,  /* `error` is what the worker said */
    TIERCE__CONTROLLER_STRANGE,  /* `error`: its answer is invalid, or cannot be one */
    TIERCE__CONTROLLER_AWAY,     /* `error`: its address cannot be used */
};

struct tierce__controller_target {
    char instance[TIERCE__CONTROLLER_INSTANCE_BYTES];
    char host[TIERCE__CONTROLLER_HOST_BYTES];
    uint16_t port;
    uint32_t worker;
    struct tierce__line frame; /* the message, until it is given to ZMQ */
    enum tierce__controller_state state;
    int64_t result;
    char error[TIERCE__CONTROLLER_WHY_BYTES];
    void *socket; /* of the thread */
};

#define TIERCE__CONTROLLER_TARGETS_MAX 512u
#define TIERCE__CONTROLLER_FRAMES_MAX  ((size_t)256 << 20)

struct tierce__controller_command {
    struct tierce__list node; /* of the thread */
    uint64_t deadline_ns;     /* set by submit, as frame_bytes */
    size_t frame_bytes;
    struct tierce__controller_target *targets;
    size_t count;
    bool is_reserved;
    bool is_cut; /* the manager stopped before all had answered */
    /* After TIERCE_E_LIMIT of reserve or submit: the limit that is reached. Static. */
    const char *limit;
    /* Called once, on the thread, without locks; the command is the callee's again. */
    void (*done)(struct tierce__controller_command *command);
};

/* `timeout_ms`: for the answers of all workers of a command. `frames_max`: bytes of the messages of
 * all commands in progress, because ZMQ keeps each until its worker has read it;
 * TIERCE__CONTROLLER_FRAMES_MAX. Errors: -ENOMEM, other negative errno. */
TIERCE_MUSTUSE int tierce__controller_commands_start(struct tierce__controller_commands **out,
                                                     uint32_t timeout_ms, size_t frames_max);

/* Reserves room for a command before its messages are built, so that messages that cannot be sent
 * are not built. [in] count; frame_bytes: an upper bound. The command must then be submitted or
 * cancelled. Errors: as of submit. */
TIERCE_MUSTUSE int tierce__controller_commands_reserve(struct tierce__controller_commands *commands,
                                                       struct tierce__controller_command *command);
void tierce__controller_commands_cancel(struct tierce__controller_commands *commands,
                                        struct tierce__controller_command *command);

/* [transfer] command, unless it fails. One that was reserved fails only with TIERCE_E_CLOSED, and
 * is not counted any more then. Errors: TIERCE_E_LIMIT (64 commands, TIERCE__CONTROLLER_TARGETS_MAX
 * or frames_max at once: try again), TIERCE_E_CLOSED (it stops). */
TIERCE_MUSTUSE int tierce__controller_commands_submit(struct tierce__controller_commands *commands,
                                                      struct tierce__controller_command *command);

/* Ends all commands; later ones are refused. NULL is accepted. */
void tierce__controller_commands_stop(struct tierce__controller_commands *commands);
/* After stop. NULL is accepted. */
void tierce__controller_commands_destroy(struct tierce__controller_commands *commands);

#endif
