/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/lmcache/controller_commands.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/text/host_port.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#define COMMANDS_MAX     64u
#define TARGETS_MAX      TIERCE__CONTROLLER_TARGETS_MAX
#define ANSWER_BYTES_MAX ((int64_t)1 << 20)

struct tierce__controller_commands {
    uint32_t timeout_ms;
    size_t frames_max;
    void *context;
    int wake; /* eventfd */
    bool has_thread;
    pthread_t thread;

    struct tierce__lock lock; /* CONTROLLER_COMMANDS: below */
    struct tierce__list arriving;
    size_t command_count, target_count, frame_bytes; /* that are not done */
    bool is_stopping;

    struct tierce__list own; /* of the thread, as all below */
    zmq_pollitem_t items[1 + TARGETS_MAX];
    struct tierce__controller_target *polled[1 + TARGETS_MAX];
    struct tierce__line scratch;
    struct tierce__controller_message message;
};

static struct tierce__controller_command *command_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__controller_command, node);
}

static void wake(struct tierce__controller_commands *c)
{
    uint64_t one = 1;
    ssize_t put = write(c->wake, &one, sizeof(one));
    TIERCE_ASSERT(put == sizeof(one) || errno == EAGAIN);
}

/* ---- one worker ------------------------------------------------------------------------------ */

static void end_target(struct tierce__controller_target *target,
                       enum tierce__controller_state state, const char *error)
{
    if (target->socket != NULL)
        zmq_close(target->socket);
    target->socket = NULL;
    target->state = state;
    snprintf(target->error, sizeof(target->error), "%s", error);
}

static void begin_target(struct tierce__controller_commands *c,
                         struct tierce__controller_target *target)
{
    char endpoint[TIERCE__CONTROLLER_HOST_BYTES + 32] = "tcp://";
    int zero = 0;
    int64_t bytes = ANSWER_BYTES_MAX;
    int v6 = strchr(target->host, ':') != NULL;
    size_t used = strlen(endpoint);
    (void)tierce__host_port_format(endpoint + used, sizeof(endpoint) - used, target->host,
                                   target->port);
    target->socket = zmq_socket(c->context, ZMQ_REQ);
    if (target->socket == NULL ||
        zmq_setsockopt(target->socket, ZMQ_LINGER, &zero, sizeof(zero)) != 0 ||
        zmq_setsockopt(target->socket, ZMQ_IPV6, &v6, sizeof(v6)) != 0 ||
        zmq_setsockopt(target->socket, ZMQ_MAXMSGSIZE, &bytes, sizeof(bytes)) != 0 ||
        zmq_connect(target->socket, endpoint) != 0 ||
        zmq_send(target->socket, target->frame.text, target->frame.bytes, ZMQ_DONTWAIT) < 0)
        end_target(target, TIERCE__CONTROLLER_AWAY, zmq_strerror(errno));
    tierce__line_clear(&target->frame);
}

static void take_answer(struct tierce__controller_commands *c,
                        struct tierce__controller_target *target)
{
    char why[TIERCE__CONTROLLER_WHY_BYTES];
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    if (zmq_msg_recv(&frame, target->socket, ZMQ_DONTWAIT) >= 0) {
        if (!tierce__controller_read(&c->message, &c->scratch, zmq_msg_data(&frame),
                                     zmq_msg_size(&frame), why)) {
            end_target(target, TIERCE__CONTROLLER_STRANGE, why);
        } else if (c->message.type == TIERCE__CONTROLLER_DONE) {
            target->result = c->message.result;
            end_target(target, TIERCE__CONTROLLER_ANSWERED, "");
        } else if (c->message.type == TIERCE__CONTROLLER_FAILED) {
            end_target(target, TIERCE__CONTROLLER_REFUSED, c->message.error);
        } else {
            end_target(target, TIERCE__CONTROLLER_STRANGE, "its answer belongs to no command");
        }
    }
    zmq_msg_close(&frame);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Begins the commands that have arrived. False: it stops. */
static bool exchange(struct tierce__controller_commands *c)
{
    tierce__lock_take(&c->lock);
    bool goes_on = !c->is_stopping;
    struct tierce__list fresh;
    tierce__list_init(&fresh);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &c->arriving) {
        tierce__list_remove(it);
        tierce__list_push_back(&fresh, it);
    }
    tierce__lock_drop(&c->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &fresh) {
        struct tierce__controller_command *command = command_of(it);
        tierce__list_remove(it);
        tierce__list_push_back(&c->own, it);
        for (size_t i = 0; goes_on && i < command->count; i++)
            begin_target(c, &command->targets[i]);
    }
    return goes_on;
}

static bool is_waiting(const struct tierce__controller_target *target)
{
    return target->state == TIERCE__CONTROLLER_WAITS && target->socket != NULL;
}

static void wait(struct tierce__controller_commands *c)
{
    int count = 1;
    uint64_t now_ns = tierce__now_ns(), until_ns = UINT64_MAX;
    c->items[0] = (zmq_pollitem_t){.fd = c->wake, .events = ZMQ_POLLIN};
    TIERCE__LIST_FOR_EACH (it, &c->own) {
        struct tierce__controller_command *command = command_of(it);
        bool is_done = true;
        for (size_t i = 0; i < command->count; i++) {
            if (!is_waiting(&command->targets[i]))
                continue;
            is_done = false;
            c->polled[count] = &command->targets[i];
            c->items[count++] =
                (zmq_pollitem_t){.socket = command->targets[i].socket, .events = ZMQ_POLLIN};
        }
        uint64_t due_ns = is_done ? now_ns : command->deadline_ns;
        until_ns = due_ns < until_ns ? due_ns : until_ns;
    }
    long wait_ms = until_ns == UINT64_MAX ? -1
                   : until_ns > now_ns    ? (long)((until_ns - now_ns) / 1000000) + 1
                                          : 0;
    if (zmq_poll(c->items, count, wait_ms) <= 0)
        return;
    if ((c->items[0].revents & ZMQ_POLLIN) != 0) {
        uint64_t wakes;
        ssize_t got = read(c->wake, &wakes, sizeof(wakes));
        TIERCE_ASSERT(got == sizeof(wakes) || errno == EAGAIN);
    }
    for (int i = 1; i < count; i++) {
        if ((c->items[i].revents & ZMQ_POLLIN) != 0)
            take_answer(c, c->polled[i]);
    }
}

/* Under the lock. */
static void uncount(struct tierce__controller_commands *c,
                    struct tierce__controller_command *command)
{
    tierce__lock_assert_held(&c->lock);
    TIERCE_DASSERT(c->command_count > 0 && c->target_count >= command->count &&
                   c->frame_bytes >= command->frame_bytes);
    c->command_count--;
    c->target_count -= command->count;
    c->frame_bytes -= command->frame_bytes;
    command->is_reserved = false;
}

/* Ends commands that all have answered, or whose time is over; or all. */
static void finish(struct tierce__controller_commands *c, bool all)
{
    uint64_t now_ns = tierce__now_ns();
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &c->own) {
        struct tierce__controller_command *command = command_of(it);
        size_t waiting = 0, count = command->count;
        for (size_t i = 0; i < count; i++)
            waiting += is_waiting(&command->targets[i]);
        if (!all && waiting > 0 && now_ns < command->deadline_ns)
            continue;
        command->is_cut = all;
        for (size_t i = 0; i < count; i++) {
            if (is_waiting(&command->targets[i]))
                end_target(&command->targets[i], TIERCE__CONTROLLER_WAITS, "it does not answer");
        }
        tierce__list_remove(it);
        tierce__lock_take(&c->lock);
        uncount(c, command);
        tierce__lock_drop(&c->lock);
        command->done(command);
    }
}

static void *run(void *arg)
{
    struct tierce__controller_commands *c = arg;
    while (exchange(c)) {
        wait(c);
        finish(c, false);
    }
    finish(c, true);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

int tierce__controller_commands_start(struct tierce__controller_commands **out, uint32_t timeout_ms,
                                      size_t frames_max)
{
    struct tierce__controller_commands *c = tierce__calloc(1, sizeof(*c));
    if (c == NULL)
        return -ENOMEM;
    c->timeout_ms = timeout_ms;
    c->frames_max = frames_max;
    tierce__lock_init(&c->lock, TIERCE__LOCK_CONTROLLER_COMMANDS);
    tierce__list_init(&c->arriving);
    tierce__list_init(&c->own);
    c->context = zmq_ctx_new();
    c->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int rc = c->wake < 0 ? -errno : c->context == NULL ? -ENOMEM : 0;
    if (rc == 0) {
        rc = tierce__thread_start(&c->thread, run, c);
        c->has_thread = rc == 0;
    }
    if (rc == 0)
        *out = c;
    else
        tierce__controller_commands_destroy(c);
    return rc;
}

_Static_assert(COMMANDS_MAX == 64 && TARGETS_MAX == 512 &&
                   TIERCE__CONTROLLER_FRAMES_MAX == (size_t)256 << 20,
               "limit_of names these numbers");

/* Returns the limit that a further command would exceed, or NULL if it fits. Under the lock. */
static const char *limit_of(const struct tierce__controller_commands *c,
                            const struct tierce__controller_command *command)
{
    tierce__lock_assert_held(&c->lock);
    if (c->command_count >= COMMANDS_MAX)
        return "64 commands";
    if (c->target_count + command->count > TARGETS_MAX)
        return "commands to 512 workers";
    if (command->frame_bytes > c->frames_max ||
        c->frame_bytes > c->frames_max - command->frame_bytes)
        return "commands with 256 MiB of messages";
    return NULL;
}

/* Under the lock. */
static int reserve(struct tierce__controller_commands *c,
                   struct tierce__controller_command *command)
{
    tierce__lock_assert_held(&c->lock);
    if (c->is_stopping)
        return TIERCE_E_CLOSED;
    command->limit = limit_of(c, command);
    if (command->limit != NULL)
        return TIERCE_E_LIMIT;
    c->command_count++;
    c->target_count += command->count;
    c->frame_bytes += command->frame_bytes;
    command->is_reserved = true;
    return 0;
}

int tierce__controller_commands_reserve(struct tierce__controller_commands *commands,
                                        struct tierce__controller_command *command)
{
    tierce__lock_take(&commands->lock);
    int rc = reserve(commands, command);
    tierce__lock_drop(&commands->lock);
    return rc;
}

void tierce__controller_commands_cancel(struct tierce__controller_commands *commands,
                                        struct tierce__controller_command *command)
{
    tierce__lock_take(&commands->lock);
    if (command->is_reserved)
        uncount(commands, command);
    tierce__lock_drop(&commands->lock);
}

int tierce__controller_commands_submit(struct tierce__controller_commands *commands,
                                       struct tierce__controller_command *command)
{
    size_t bytes = 0;
    for (size_t i = 0; i < command->count; i++)
        bytes += command->targets[i].frame.bytes;
    tierce__lock_take(&commands->lock);
    TIERCE_ASSERT(!command->is_reserved || bytes <= command->frame_bytes);
    if (command->is_reserved)
        uncount(commands, command);
    command->frame_bytes = bytes; /* fits, if more did */
    int rc = reserve(commands, command);
    if (rc == 0) {
        command->deadline_ns = tierce__deadline_in_ms(commands->timeout_ms);
        command->is_cut = false;
        for (size_t i = 0; i < command->count; i++)
            command->targets[i].state = TIERCE__CONTROLLER_WAITS;
        tierce__list_push_back(&commands->arriving, &command->node);
    }
    tierce__lock_drop(&commands->lock);
    if (rc == 0)
        wake(commands);
    return rc;
}

void tierce__controller_commands_stop(struct tierce__controller_commands *commands)
{
    if (commands == NULL || !commands->has_thread)
        return;
    tierce__lock_take(&commands->lock);
    commands->is_stopping = true;
    tierce__lock_drop(&commands->lock);
    wake(commands);
    pthread_join(commands->thread, NULL);
    commands->has_thread = false;
}

void tierce__controller_commands_destroy(struct tierce__controller_commands *commands)
{
    if (commands == NULL)
        return;
    TIERCE_ASSERT(!commands->has_thread);
    if (commands->context != NULL)
        zmq_ctx_term(commands->context);
    if (commands->wake >= 0)
        close(commands->wake);
    tierce__line_clear(&commands->scratch);
    tierce__lock_fini(&commands->lock);
    tierce__free(commands);
}
