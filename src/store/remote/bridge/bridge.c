/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/bridge/bridge.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/threads/lock.h"
#include "net/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BRIDGE_MAGIC   0x62726467u
#define START_MS       120000u /* with RDMA, all of the pool is registered */
#define GOODBYE_MS     2000
#define BACKOFF_MS_MIN 100u
#define BACKOFF_MS_MAX 10000u
#define STEADY_NS                                                                                  \
    (30ull * 1000 * 1000 * 1000) /* a process that lived that long may be restarted at once */
#define ARGUMENTS_MAX 16u

/* Descriptors of the child. */
#define CHILD_CONTROL 3
#define CHILD_POOL    4
#define CHILD_SEATS   5
#define CHILD_END     (CHILD_SEATS + (int)TIERCE__BRIDGE_SEATS_MAX) /* none of them is above */

/* ---- messages between the two; the same as in bridge.py -------------------------------------- */

#define FRAME_MAGIC 0x4e4f4f4du

struct hello {
    char magic[8];
    uint32_t status;
    uint32_t text_bytes;
};

/* Then the lengths of the names, two bytes each, then the names. */
struct bridge_ask {
    uint32_t magic, op, name_count, text_bytes;
    uint64_t place, offset, length;
};

/* Then the text. */
struct bridge_answer {
    uint32_t magic, text_bytes;
    int64_t result;
};

#define TEXT_BYTES_MAX (TIERCE__CONNECTOR_WHY_BYTES - 16)

/* ---- state ----------------------------------------------------------------------------------- */

struct seat {
    int fd; /* the caller's alone, as all but next_fd */
    uint64_t generation, starts;
    int next_fd; /* [lock] of the process that runs, until the caller takes it */
};

enum state { DOWN, STARTING, UP, ENDING };

struct tierce__bridge {
    uint32_t magic;
    char *python, *log;
    char *arguments[ARGUMENTS_MAX + 1];
    size_t argument_count;
    const struct tierce__bridge_script *script;
    char *options; /* each with its NUL; or NULL */
    size_t option_bytes;
    int pool_fd;
    uint32_t seat_count, call_ms;
    struct seat *seats;
    struct tierce__lock lock;
    struct tierce__cond changed;
    /* Under the lock. */
    enum state state;
    bool closing;
    uint64_t generation; /* of the process that runs or ran last */
    int pidfd, control;  /* -1 without a process */
    uint64_t started_ns, not_before_ns;
    uint32_t backoff_ms;
    char why[TIERCE__CONNECTOR_WHY_BYTES]; /* it does not run, or "" */
};

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* ---- the process ----------------------------------------------------------------------------- */

/* Resources of a process that starts; the bridge takes them over when it says hello. */
struct birth {
    int script, control[2];
    int (*seats)[2];
    int pidfd;
};

/* A pair of which the second is for the child, above all numbers that it has there. */
static int make_pair(int pair[2])
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return -errno;
    int high = fcntl(pair[1], F_DUPFD_CLOEXEC, CHILD_END);
    int rc = high < 0 ? -errno : 0;
    close(pair[1]);
    pair[1] = high;
    if (rc == 0 && fcntl(pair[0], F_SETFL, O_NONBLOCK) != 0)
        rc = -errno;
    return rc;
}

static int make_script(int *out, const struct tierce__bridge_script *script)
{
    int fd = memfd_create("tierce-bridge", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    *out = fcntl(fd, F_DUPFD_CLOEXEC, CHILD_END);
    int rc = *out < 0 ? -errno : 0;
    close(fd);
    if (rc == 0 && write(*out, script->text, *script->bytes) != (ssize_t)*script->bytes)
        rc = -ENOMEM;
    if (rc == 0 && lseek(*out, 0, SEEK_SET) != 0)
        rc = -errno;
    return rc;
}

static int list_actions(posix_spawn_file_actions_t *actions, const struct tierce__bridge *bridge,
                        const struct birth *birth)
{
    TIERCE_DASSERT(birth->script >= CHILD_END && birth->control[1] >= CHILD_END);
    const char *log = bridge->log != NULL ? bridge->log : "/dev/null";
    /* The pool's first: its number may be one of those that are taken after it. */
    int rc = posix_spawn_file_actions_adddup2(actions, bridge->pool_fd, CHILD_POOL);
    if (rc == 0)
        rc = posix_spawn_file_actions_adddup2(actions, birth->script, 0);
    if (rc == 0)
        rc = posix_spawn_file_actions_addopen(actions, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (rc == 0)
        rc = posix_spawn_file_actions_adddup2(actions, 1, 2);
    if (rc == 0)
        rc = posix_spawn_file_actions_adddup2(actions, birth->control[1], CHILD_CONTROL);
    for (uint32_t i = 0; i < bridge->seat_count && rc == 0; i++)
        rc = posix_spawn_file_actions_adddup2(actions, birth->seats[i][1], CHILD_SEATS + (int)i);
    if (rc == 0)
        rc = posix_spawn_file_actions_addclosefrom_np(actions,
                                                      CHILD_SEATS + (int)bridge->seat_count);
    return rc;
}

/* Restores the default signal handling, and leaves our terminal's process group. */
static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int rc = posix_spawnattr_setsigmask(attributes, &none);
    if (rc == 0)
        rc = posix_spawnattr_setsigdefault(attributes, &all);
    if (rc == 0)
        rc = posix_spawnattr_setpgroup(attributes, 0);
    if (rc == 0)
        rc = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                                      POSIX_SPAWN_SETPGROUP);
    return rc;
}

extern char **environ;

static int spawn(const struct tierce__bridge *bridge, struct birth *birth)
{
    TIERCE_DASSERT(bridge->argument_count <= ARGUMENTS_MAX);
    char *argv[ARGUMENTS_MAX + 3] = {bridge->python, (char *)(uintptr_t) "-"};
    memcpy(argv + 2, bridge->arguments, (bridge->argument_count + 1) * sizeof(*argv));
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    pid_t pid = 0;
    int rc = posix_spawn_file_actions_init(&actions);
    if (rc != 0)
        return -rc;
    rc = posix_spawnattr_init(&attributes);
    if (rc != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return -rc;
    }
    rc = list_actions(&actions, bridge, birth);
    if (rc == 0)
        rc = set_attributes(&attributes);
    if (rc == 0)
        rc = posix_spawnp(&pid, bridge->python, &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (rc != 0)
        return -rc;
    birth->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (birth->pidfd >= 0)
        return 0;
    rc = -errno;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return rc;
}

/* By the number of the call, as pidfd_open above: glibc has both functions since 2.36 only. */
static void send_kill(int pidfd)
{
    (void)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
}

/* Until it is dead, when no thread of it is left that could touch the pool. */
static void await_death(int pidfd)
{
    TIERCE_DASSERT(pidfd >= 0);
    struct pollfd dead = {.fd = pidfd, .events = POLLIN};
    siginfo_t info;
    while (poll(&dead, 1, -1) < 0 && errno == EINTR)
        continue;
    /* It fails where the host process has reaped it, which is as good. */
    (void)waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED);
}

static void kill_and_await(int pidfd)
{
    TIERCE_DASSERT(pidfd >= 0);
    send_kill(pidfd);
    await_death(pidfd);
}

/* ---- hello ----------------------------------------------------------------------------------- */

static int receive(int fd, void *bytes, size_t size, uint64_t deadline_ns)
{
    struct iovec piece = {.iov_base = bytes, .iov_len = size};
    size_t got;
    return tierce__stream_receive(fd, &piece, 1, size, &got, deadline_ns);
}

/* A text of the process, of any bytes. */
static int receive_text(int fd, char text[TEXT_BYTES_MAX], uint32_t bytes, uint64_t deadline_ns)
{
    char raw[TEXT_BYTES_MAX];
    if (bytes >= TEXT_BYTES_MAX)
        return TIERCE_E_FORMAT;
    int rc = bytes > 0 ? receive(fd, raw, bytes, deadline_ns) : 0;
    raw[rc == 0 ? bytes : 0] = '\0';
    tierce__text_for_message(text, TEXT_BYTES_MAX, raw);
    return rc;
}

static int send_options(int control, const struct tierce__bridge *bridge, uint64_t deadline_ns)
{
    struct iovec piece = {.iov_base = bridge->options, .iov_len = bridge->option_bytes};
    return bridge->option_bytes > 0 ? tierce__stream_send(control, &piece, 1, deadline_ns) : 0;
}

static int hear_hello(int control, const struct tierce__bridge *bridge,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct hello hello;
    char text[TEXT_BYTES_MAX];
    uint64_t deadline_ns = tierce__deadline_in_ms(START_MS);
    int rc = send_options(control, bridge, deadline_ns);
    if (rc == 0)
        rc = receive(control, &hello, sizeof(hello), deadline_ns);
    if (rc != 0) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "the bridge %s; log=FILE keeps its output",
                 rc == TIERCE_E_DEADLINE ? "does not become ready" : "ended before it was ready");
        return TIERCE_E_DOWN;
    }
    bool ok = memcmp(hello.magic, "tierce-1", sizeof(hello.magic)) == 0 && hello.status <= 1;
    if (!ok || receive_text(control, text, hello.text_bytes, deadline_ns) != 0) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "the started process is not a bridge: check the parameter python");
        return TIERCE_E_FORMAT;
    }
    if (hello.status == 0)
        return 0;
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "the bridge: %s", text);
    return TIERCE_E_DOWN;
}

/* ---- start and end --------------------------------------------------------------------------- */

static void free_birth(struct birth *birth, uint32_t seat_count)
{
    close_fd(&birth->script);
    close_fd(&birth->control[0]);
    close_fd(&birth->control[1]);
    for (uint32_t i = 0; birth->seats != NULL && i < seat_count; i++) {
        close_fd(&birth->seats[i][0]);
        close_fd(&birth->seats[i][1]);
    }
    tierce__free(birth->seats);
}

static int prepare(const struct tierce__bridge *bridge, struct birth *birth)
{
    TIERCE_DASSERT(bridge->seat_count > 0 && bridge->seat_count <= TIERCE__BRIDGE_SEATS_MAX);
    *birth = (struct birth){.script = -1, .control = {-1, -1}, .pidfd = -1};
    birth->seats = tierce__calloc(bridge->seat_count, sizeof(*birth->seats));
    if (birth->seats == NULL)
        return -ENOMEM;
    memset(birth->seats, -1, bridge->seat_count * sizeof(*birth->seats));
    int rc = make_script(&birth->script, bridge->script);
    if (rc == 0)
        rc = make_pair(birth->control);
    for (uint32_t i = 0; i < bridge->seat_count && rc == 0; i++)
        rc = make_pair(birth->seats[i]);
    return rc;
}

/* The process is dead, or there was none. Under the lock. */
static void bury(struct tierce__bridge *bridge)
{
    uint64_t now = tierce__now_ns();
    tierce__lock_assert_held(&bridge->lock);
    TIERCE_DASSERT(bridge->state == STARTING || bridge->state == ENDING);
    close_fd(&bridge->pidfd);
    close_fd(&bridge->control);
    for (uint32_t i = 0; i < bridge->seat_count; i++)
        close_fd(&bridge->seats[i].next_fd);
    if (now - bridge->started_ns >= STEADY_NS)
        bridge->backoff_ms = 0;
    else if (bridge->backoff_ms < BACKOFF_MS_MIN)
        bridge->backoff_ms = BACKOFF_MS_MIN;
    else if (bridge->backoff_ms < BACKOFF_MS_MAX)
        bridge->backoff_ms *= 2;
    bridge->not_before_ns = bridge->started_ns + bridge->backoff_ms * 1000000ull;
    bridge->state = DOWN;
    tierce__cond_broadcast(&bridge->changed);
}

/* Ends the process that is up. With the lock held, which is released meanwhile. */
static void end_process(struct tierce__bridge *bridge)
{
    int pidfd = bridge->pidfd;
    tierce__lock_assert_held(&bridge->lock);
    TIERCE_ASSERT(bridge->state == UP);
    bridge->state = ENDING;
    tierce__lock_drop(&bridge->lock);
    kill_and_await(pidfd);
    tierce__lock_take(&bridge->lock);
    TIERCE_DASSERT(bridge->state == ENDING);
    bury(bridge);
}

/* A process that says hello, or none. With the lock held, which is released meanwhile. */
static int start_process(struct tierce__bridge *bridge)
{
    struct birth birth;
    char why[TIERCE__CONNECTOR_WHY_BYTES] = "";
    tierce__lock_assert_held(&bridge->lock);
    TIERCE_DASSERT(bridge->pidfd < 0 && bridge->control < 0);
    TIERCE_DASSERT(bridge->state == DOWN);
    bridge->state = STARTING;
    bridge->started_ns = tierce__now_ns();
    tierce__lock_drop(&bridge->lock);
    int rc = prepare(bridge, &birth);
    if (rc == 0)
        rc = spawn(bridge, &birth);
    if (rc != 0)
        snprintf(why, sizeof(why), "%.100s cannot be started: %s", bridge->python,
                 tierce_strerror(rc));
    tierce__lock_take(&bridge->lock);
    bridge->pidfd = birth.pidfd;
    if (bridge->closing && birth.pidfd >= 0)
        send_kill(birth.pidfd);
    tierce__lock_drop(&bridge->lock);
    close_fd(&birth.control[1]);
    for (uint32_t i = 0; birth.seats != NULL && i < bridge->seat_count; i++)
        close_fd(&birth.seats[i][1]);
    if (rc == 0)
        rc = hear_hello(birth.control[0], bridge, why);
    if (rc != 0 && birth.pidfd >= 0)
        kill_and_await(birth.pidfd);

    tierce__lock_take(&bridge->lock);
    memcpy(bridge->why, why, sizeof(why));
    TIERCE_DASSERT(bridge->state == STARTING);
    if (rc == 0) {
        bridge->generation++;
        bridge->control = birth.control[0];
        birth.control[0] = -1;
        for (uint32_t i = 0; i < bridge->seat_count; i++) {
            TIERCE_DASSERT(bridge->seats[i].next_fd < 0 && birth.seats[i][0] >= 0);
            bridge->seats[i].next_fd = birth.seats[i][0];
            birth.seats[i][0] = -1;
        }
        bridge->state = UP;
        tierce__cond_broadcast(&bridge->changed);
    } else {
        bury(bridge);
    }
    free_birth(&birth, bridge->seat_count);
    return rc == 0 || rc == TIERCE_E_FORMAT ? rc : TIERCE_E_DOWN;
}

/* ---- seats ----------------------------------------------------------------------------------- */

/* It has neither ended nor said anything after hello. Under the lock. */
static bool is_well(const struct tierce__bridge *bridge)
{
    char byte;
    tierce__lock_assert_held(&bridge->lock);
    TIERCE_DASSERT(bridge->state == UP);
    return recv(bridge->control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
           (errno == EAGAIN || errno == EINTR);
}

/* Until there is a process, or none can be had. Under the lock. */
static int await_process(struct tierce__bridge *bridge)
{
    int rc = 0;
    tierce__lock_assert_held(&bridge->lock);
    while (rc == 0 && !bridge->closing) {
        if (bridge->state == UP && is_well(bridge))
            return 0;
        if (bridge->state == UP)
            end_process(bridge);
        else if (bridge->state != DOWN)
            tierce__cond_wait(&bridge->changed, &bridge->lock, TIERCE__DEADLINE_NEVER);
        else if (tierce__now_ns() < bridge->not_before_ns)
            return TIERCE_E_DOWN;
        else
            rc = start_process(bridge);
    }
    return bridge->closing ? TIERCE_E_CLOSED : rc;
}

static int take_seat(struct tierce__bridge *bridge, struct seat *seat,
                     char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    tierce__lock_take(&bridge->lock);
    int rc = await_process(bridge);
    if (rc == 0 && seat->generation != bridge->generation) {
        TIERCE_DASSERT(seat->next_fd >= 0);
        close_fd(&seat->fd);
        seat->fd = seat->next_fd;
        seat->next_fd = -1;
        seat->generation = bridge->generation;
        seat->starts++;
    }
    TIERCE_DASSERT(rc != 0 || seat->fd >= 0);
    if (rc != 0)
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "%s",
                 bridge->why[0] != '\0' ? bridge->why : "the bridge has ended");
    tierce__lock_drop(&bridge->lock);
    return rc;
}

/* Returns when the process of that generation is dead. */
static void end_generation(struct tierce__bridge *bridge, uint64_t generation)
{
    tierce__lock_take(&bridge->lock);
    TIERCE_DASSERT(generation <= bridge->generation);
    if (bridge->generation == generation && bridge->state == UP)
        end_process(bridge);
    while (bridge->generation == generation && bridge->state == ENDING)
        tierce__cond_wait(&bridge->changed, &bridge->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&bridge->lock);
}

void tierce__bridge_end(struct tierce__bridge *bridge, uint32_t number)
{
    TIERCE_CHECK_MAGIC(bridge, BRIDGE_MAGIC);
    TIERCE_DASSERT(number < bridge->seat_count);
    struct seat *seat = &bridge->seats[number];
    close_fd(&seat->fd);
    end_generation(bridge, seat->generation);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int send_ask(int fd, const struct tierce__bridge_ask *ask, uint64_t deadline_ns)
{
    TIERCE_DASSERT(fd >= 0);
    uint16_t sizes[TIERCE__BRIDGE_NAMES_MAX];
    struct iovec parts[TIERCE__BRIDGE_NAMES_MAX + 2];
    struct bridge_ask head = {.magic = FRAME_MAGIC,
                              .op = (uint32_t)ask->op,
                              .name_count = (uint32_t)ask->name_count,
                              .place = ask->place,
                              .offset = ask->offset,
                              .length = ask->length};
    TIERCE_ASSERT(ask->name_count <= TIERCE__BRIDGE_NAMES_MAX);
    for (size_t i = 0; i < ask->name_count; i++) {
        TIERCE_ASSERT(ask->names[i].bytes <= UINT16_MAX);
        sizes[i] = (uint16_t)ask->names[i].bytes;
        head.text_bytes += sizes[i];
        parts[i + 2] =
            (struct iovec){.iov_base = (void *)(uintptr_t)ask->names[i].text, .iov_len = sizes[i]};
    }
    parts[0] = (struct iovec){.iov_base = &head, .iov_len = sizeof(head)};
    parts[1] = (struct iovec){.iov_base = sizes, .iov_len = ask->name_count * sizeof(*sizes)};
    return tierce__stream_send(fd, parts, (int)ask->name_count + 2, deadline_ns);
}

int tierce__bridge_call(struct tierce__bridge *bridge, uint32_t number,
                        const struct tierce__bridge_ask *ask, int64_t *result,
                        char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    TIERCE_CHECK_MAGIC(bridge, BRIDGE_MAGIC);
    TIERCE_ASSERT(number < bridge->seat_count);
    struct seat *seat = &bridge->seats[number];
    struct bridge_answer answer;
    int rc = take_seat(bridge, seat, why);
    if (rc != 0)
        return rc;
    uint64_t deadline_ns = tierce__deadline_in_ms(bridge->call_ms);
    rc = send_ask(seat->fd, ask, deadline_ns);
    if (rc == 0)
        rc = receive(seat->fd, &answer, sizeof(answer), deadline_ns);
    if (rc == 0 && answer.magic != FRAME_MAGIC)
        rc = TIERCE_E_FORMAT;
    if (rc == 0)
        rc = receive_text(seat->fd, why, answer.text_bytes, deadline_ns);
    if (rc == 0) {
        *result = answer.result;
        return 0;
    }
    tierce__bridge_end(bridge, number);
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "the bridge %s",
             rc == TIERCE_E_FORMAT     ? "sent an invalid answer and was ended"
             : rc == TIERCE_E_DEADLINE ? "did not answer in time and was ended"
                                       : "ended during a request");
    return rc == TIERCE_E_FORMAT ? rc : TIERCE_E_DOWN;
}

bool tierce__bridge_is_up(const struct tierce__bridge *bridge, uint32_t number)
{
    TIERCE_DASSERT(number < bridge->seat_count);
    return bridge->seats[number].fd >= 0;
}

uint64_t tierce__bridge_starts(const struct tierce__bridge *bridge, uint32_t number)
{
    TIERCE_DASSERT(number < bridge->seat_count);
    return bridge->seats[number].starts;
}

/* ---- life ------------------------------------------------------------------------------------ */

void tierce__bridge_abort(struct tierce__bridge *bridge)
{
    TIERCE_CHECK_MAGIC(bridge, BRIDGE_MAGIC);
    tierce__lock_take(&bridge->lock);
    bridge->closing = true;
    if (bridge->pidfd >= 0)
        send_kill(bridge->pidfd);
    tierce__cond_broadcast(&bridge->changed);
    tierce__lock_drop(&bridge->lock);
}

static void free_bridge(struct tierce__bridge *bridge)
{
    TIERCE_DASSERT(bridge->state == DOWN && bridge->pidfd < 0 && bridge->control < 0);
    bridge->magic = 0;
    for (size_t i = 0; i < bridge->argument_count; i++)
        tierce__free(bridge->arguments[i]);
    if (bridge->options != NULL)
        explicit_bzero(bridge->options, bridge->option_bytes);
    tierce__free(bridge->options);
    tierce__free(bridge->python);
    tierce__free(bridge->log);
    tierce__free(bridge->seats);
    tierce__cond_fini(&bridge->changed);
    tierce__lock_fini(&bridge->lock);
    tierce__free(bridge);
}

static int copy_arguments(struct tierce__bridge *bridge, const char *const *arguments)
{
    for (size_t i = 0; arguments[i] != NULL; i++) {
        TIERCE_ASSERT(i < ARGUMENTS_MAX);
        bridge->arguments[i] = tierce__strdup(arguments[i]);
        if (bridge->arguments[i] == NULL)
            return -ENOMEM;
        bridge->argument_count++;
    }
    return 0;
}

/* `options=` says how many bytes of options follow on the socket. */
static int copy_options(struct tierce__bridge *bridge, const char *const *options)
{
    char argument[40], *at;
    for (size_t i = 0; options != NULL && options[i] != NULL; i++)
        bridge->option_bytes += strlen(options[i]) + 1;
    if (bridge->option_bytes == 0)
        return 0;
    TIERCE_ASSERT(bridge->argument_count < ARGUMENTS_MAX);
    bridge->options = at = tierce__alloc(bridge->option_bytes);
    for (size_t i = 0; at != NULL && options[i] != NULL; i++) {
        size_t bytes = strlen(options[i]) + 1;
        memcpy(at, options[i], bytes);
        at += bytes;
    }
    snprintf(argument, sizeof(argument), "options=%zu", bridge->option_bytes);
    bridge->arguments[bridge->argument_count] = tierce__strdup(argument);
    if (bridge->arguments[bridge->argument_count] == NULL)
        return -ENOMEM;
    bridge->argument_count++;
    return bridge->options != NULL ? 0 : -ENOMEM;
}

int tierce__bridge_create(struct tierce__bridge **out, const struct tierce__bridge_opts *opts)
{
    TIERCE_ASSERT(opts->seats > 0 && opts->seats <= TIERCE__BRIDGE_SEATS_MAX);
    TIERCE_ASSERT(tierce__pool_fd(opts->pool) >= 0);
    struct tierce__bridge *bridge = tierce__calloc(1, sizeof(*bridge));
    if (bridge == NULL)
        return -ENOMEM;
    *bridge = (struct tierce__bridge){.magic = BRIDGE_MAGIC,
                                      .pool_fd = tierce__pool_fd(opts->pool),
                                      .call_ms = opts->call_ms,
                                      .script = opts->script,
                                      .pidfd = -1,
                                      .control = -1};
    tierce__lock_init(&bridge->lock, TIERCE__LOCK_BRIDGE);
    tierce__cond_init(&bridge->changed);
    bridge->python = tierce__strdup(opts->python);
    bridge->log = opts->log != NULL ? tierce__strdup(opts->log) : NULL;
    bridge->seats = tierce__calloc(opts->seats, sizeof(*bridge->seats));
    int rc = copy_arguments(bridge, opts->arguments);
    if (rc == 0)
        rc = copy_options(bridge, opts->options);
    if (rc != 0 || bridge->python == NULL || bridge->seats == NULL ||
        (opts->log != NULL && bridge->log == NULL)) {
        free_bridge(bridge);
        return -ENOMEM;
    }
    bridge->seat_count = opts->seats;
    for (uint32_t i = 0; i < opts->seats; i++)
        bridge->seats[i].fd = bridge->seats[i].next_fd = -1;
    *out = bridge;
    return 0;
}

void tierce__bridge_destroy(struct tierce__bridge *bridge)
{
    if (bridge == NULL)
        return;
    TIERCE_CHECK_MAGIC(bridge, BRIDGE_MAGIC);
    for (uint32_t i = 0; i < bridge->seat_count; i++)
        close_fd(&bridge->seats[i].fd);
    tierce__lock_take(&bridge->lock);
    if (bridge->state == UP) {
        struct pollfd dead = {.fd = bridge->pidfd, .events = POLLIN};
        close_fd(&bridge->control);
        (void)poll(&dead, 1, GOODBYE_MS);
        end_process(bridge);
    }
    TIERCE_DASSERT(bridge->state == DOWN);
    tierce__lock_drop(&bridge->lock);
    free_bridge(bridge);
}
