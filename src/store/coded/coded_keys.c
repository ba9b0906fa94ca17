/* SPDX-License-Identifier: Apache-2.0 */
#include "store/coded/coded_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log/log_repeat.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"

extern char **environ;

#define TEXT_MAX       (256u << 10)
#define COMMAND_MS     10000u
#define LOOK_MS        1000u  /* between two looks at the file */
#define RUN_MS         60000u /* between two runs of the command */
#define END_LOOK_MS    10     /* between two looks whether the command has ended */
#define MISSING_REMEDY "add the key with this number to encryption.key_file"

/* The file when it was read. */
struct seen {
    struct timespec changed; /* ctime, which no copy preserves */
    bool is_young;           /* a later change may have the same time */
    dev_t device;            /* another file may have the same time, too */
    ino_t inode;
    off_t bytes;
};

struct tierce__coded_keys {
    char *file, *command; /* one of them */
    uint64_t pause_ns;    /* between two looks */
    int stop_fd;          /* readable: a command that runs is ended */
    struct tierce__lock lock;
    struct tierce__cond cond;         /* for the thread, and for calls that wait for `looks` */
    struct tierce__affinity affinity; /* of the thread, which a put or get starts */
    pthread_t thread;                 /* it reads the keys again when one is missing */
    bool runs, stop;
    bool asked; /* the thread is to look */
    bool looks; /* a thread is looking */
    uint64_t looked_ns;
    struct seen seen; /* of the one that is looking */
    struct tierce__seal_keys *set;
};

/* ---- the command ----------------------------------------------------------------------------- */

/* Reads the output of a command to its end. Returns its length, or -1 after the deadline, after too
 * many bytes, after an error, or when `stop_fd` is readable. */
static ssize_t read_output(int fd, int stop_fd, char *text, uint64_t deadline_ns)
{
    size_t got = 0;
    for (;;) {
        uint64_t now = tierce__now_ns();
        struct pollfd waits[] = {{.fd = fd, .events = POLLIN}, {.fd = stop_fd, .events = POLLIN}};
        if (now >= deadline_ns || got == TEXT_MAX)
            return -1;
        int ready = poll(waits, 2, (int)((deadline_ns - now) / TIERCE__MS_NS) + 1);
        if (ready > 0 && waits[1].revents != 0)
            return -1;
        ssize_t n = ready > 0 ? read(fd, text + got, TEXT_MAX - got) : 0;
        if (ready > 0 && n == 0)
            return (ssize_t)got;
        if ((ready < 0 || n < 0) && errno != EINTR)
            return -1;
        got += n > 0 ? (size_t)n : 0;
    }
}

/* The command has its own process group, and no signal is blocked or ignored in it, whichever
 * thread starts it. */
static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    int rc = posix_spawnattr_setsigmask(attributes, &none);
    if (rc == 0)
        rc = posix_spawnattr_setsigdefault(attributes, &defaults);
    if (rc == 0)
        rc = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                                      POSIX_SPAWN_SETSIGDEF);
    return rc;
}

/* Starts the command with `fd` as its standard output. */
static int start(pid_t *out, const char *command, int fd)
{
    char *argv[] = {(char *)(uintptr_t) "/bin/sh", (char *)(uintptr_t) "-c",
                    (char *)(uintptr_t)command, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int rc = posix_spawn_file_actions_init(&actions);
    if (rc != 0)
        return -rc;
    rc = posix_spawnattr_init(&attributes);
    if (rc == 0) {
        rc = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (rc == 0)
            rc = posix_spawn_file_actions_adddup2(&actions, fd, STDOUT_FILENO);
        if (rc == 0)
            rc = set_attributes(&attributes);
        if (rc == 0)
            rc = posix_spawn(out, argv[0], &actions, &attributes, argv, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return -rc;
}

/* Waits until the process has ended; after the deadline, or when `stop_fd` is readable, it is
 * killed, with all that it started. False: it did not end with exit code 0, or another part of the
 * program has taken its status. */
static bool end_child(pid_t child, int stop_fd, uint64_t deadline_ns)
{
    struct pollfd wait = {.fd = stop_fd, .events = POLLIN};
    int status = 0, stopped = 0;
    pid_t ended = waitpid(child, &status, WNOHANG);
    while (ended == 0 && stopped <= 0 && tierce__now_ns() < deadline_ns) {
        stopped = poll(&wait, 1, END_LOOK_MS);
        ended = waitpid(child, &status, WNOHANG);
    }
    if (ended == 0) {
        (void)kill(-child, SIGKILL);
        do
            ended = waitpid(child, &status, 0);
        while (ended < 0 && errno == EINTR);
    }
    return ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int run_command(char *text, size_t *length, const struct tierce__coded_keys *keys,
                       char why[TIERCE__CODED_KEYS_WHY_BYTES])
{
    int ends[2];
    pid_t child;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -errno;
    int rc = start(&child, keys->command, ends[1]);
    close(ends[1]);
    if (rc == 0) {
        uint64_t deadline_ns = tierce__deadline_in_ms(COMMAND_MS);
        ssize_t got = read_output(ends[0], keys->stop_fd, text, deadline_ns);
        bool has_succeeded = end_child(child, keys->stop_fd, got < 0 ? 0 : deadline_ns);
        if (got < 0 || !has_succeeded)
            rc = TIERCE_E_CONFIG;
        *length = got > 0 ? (size_t)got : 0;
    }
    close(ends[0]);
    if (rc < 0)
        snprintf(why, TIERCE__CODED_KEYS_WHY_BYTES,
                 "encryption.key_command has failed; it must print the keys within 10 s, and end "
                 "with exit code 0");
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int parse(struct tierce__seal_keys **out, char *text, size_t length, const char *source,
                 char why[TIERCE__CODED_KEYS_WHY_BYTES])
{
    char fault[TIERCE__SEAL_KEYS_WHY_BYTES];
    int rc = tierce__seal_keys_parse(out, text, length, fault);
    if (rc < 0)
        snprintf(why, TIERCE__CODED_KEYS_WHY_BYTES, "%s, %s", source, fault);
    return rc;
}

static int load_command(struct tierce__seal_keys **out, const struct tierce__coded_keys *keys,
                        char why[TIERCE__CODED_KEYS_WHY_BYTES])
{
    size_t length = 0;
    char *text = tierce__calloc(TEXT_MAX + 1, 1);
    if (text == NULL) {
        snprintf(why, TIERCE__CODED_KEYS_WHY_BYTES, "no memory");
        return -ENOMEM;
    }
    int rc = run_command(text, &length, keys, why);
    text[length] = '\0';
    if (rc == 0)
        rc = parse(out, text, length, "encryption.key_command", why);
    tierce__seal_wipe(text, TEXT_MAX);
    tierce__free(text);
    return rc;
}

static int load_file(struct tierce__seal_keys **out, const struct tierce__coded_keys *keys,
                     char why[TIERCE__CODED_KEYS_WHY_BYTES])
{
    char *text, fault[200];
    size_t length;
    int rc =
        tierce__read_secret_file(&text, &length, NULL, keys->file, TEXT_MAX, fault, sizeof(fault));
    if (rc < 0) {
        snprintf(why, TIERCE__CODED_KEYS_WHY_BYTES, "encryption.key_file: %.200s", fault);
        return rc;
    }
    if (length > 0 && text[length - 1] != '\n') { /* words of half a line may have a meaning, too */
        snprintf(why, TIERCE__CODED_KEYS_WHY_BYTES,
                 "encryption.key_file: the last line of %.100s does not end with a newline, so a "
                 "part of the file may be missing; end each line with a newline",
                 keys->file);
        rc = TIERCE_E_CONFIG;
    } else {
        rc = parse(out, text, length, "encryption.key_file", why);
    }
    tierce__seal_wipe(text, length);
    tierce__free(text);
    return rc;
}

static int load(struct tierce__seal_keys **out, const struct tierce__coded_keys *keys,
                char why[TIERCE__CODED_KEYS_WHY_BYTES])
{
    return keys->file != NULL ? load_file(out, keys, why) : load_command(out, keys, why);
}

/* Looks at the file, before it is read. False: there is none, and reading reports that. */
static bool see(struct seen *out, const struct tierce__coded_keys *keys)
{
    struct stat st;
    if (stat(keys->file, &st) != 0)
        return false;
    *out = (struct seen){.changed = st.st_ctim,
                         .device = st.st_dev,
                         .inode = st.st_ino,
                         .bytes = st.st_size,
                         .is_young = tierce__wall_s() <= (uint64_t)st.st_ctim.tv_sec + 1};
    return true;
}

static bool is_same_change(const struct seen *now, const struct seen *before)
{
    return now->changed.tv_sec == before->changed.tv_sec &&
           now->changed.tv_nsec == before->changed.tv_nsec && now->device == before->device &&
           now->inode == before->inode && now->bytes == before->bytes;
}

static bool is_to_be_read(struct seen *now, const struct tierce__coded_keys *keys)
{
    const struct seen *before = &keys->seen;
    return !see(now, keys) || before->is_young || !is_same_change(now, before);
}

/* Reads the keys again. Of the thread that has set `looks`. */
static void look(struct tierce__coded_keys *keys)
{
    struct tierce__seal_keys *set = NULL, *old = NULL;
    char why[TIERCE__CODED_KEYS_WHY_BYTES];
    struct seen now = {0};
    bool loads = keys->file == NULL || is_to_be_read(&now, keys);
    int rc = loads ? load(&set, keys, why) : 0;
    tierce__lock_take(&keys->lock);
    bool stopped = keys->stop;
    bool has_news = set != NULL && keys->file != NULL && !is_same_change(&now, &keys->seen);
    if (set != NULL) {
        old = keys->set;
        keys->set = set;
        keys->seen = now;
    }
    tierce__lock_drop(&keys->lock);
    tierce__seal_keys_destroy(old);
    if (has_news)
        tierce__log(TIERCE_LOG_WARN, "encryption_keys_read",
                    "source=encryption.key_file effect=\"new chunks use the greatest number for "
                    "their namespace\"");
    if (rc < 0 && !stopped)
        tierce__log_repeated(TIERCE_LOG_ERROR, "encryption_keys_unreadable",
                             "effect=\"the keys read before stay in use\" reason=\"%s\"", why);
}

/* Looks, after a thread that is looking. The lock is held at the beginning and at the end. */
static void look_alone(struct tierce__coded_keys *keys)
{
    while (keys->looks)
        (void)tierce__cond_wait(&keys->cond, &keys->lock, TIERCE__DEADLINE_NEVER);
    keys->looks = true;
    tierce__lock_drop(&keys->lock);
    look(keys);
    tierce__lock_take(&keys->lock);
    keys->looks = false;
    keys->looked_ns = tierce__now_ns();
    tierce__cond_broadcast(&keys->cond);
}

static void *look_main(void *arg)
{
    struct tierce__coded_keys *keys = arg;
    tierce__lock_take(&keys->lock);
    while (!keys->stop) {
        if (!keys->asked) {
            (void)tierce__cond_wait(&keys->cond, &keys->lock, TIERCE__DEADLINE_NEVER);
            continue;
        }
        look_alone(keys);
        keys->asked = false;
    }
    tierce__lock_drop(&keys->lock);
    return NULL;
}

/* Lets the thread look, if it is time to. */
static void ask(struct tierce__coded_keys *keys)
{
    int rc = 0;
    tierce__lock_take(&keys->lock);
    uint64_t now = tierce__now_ns();
    bool asks = !keys->asked && now - keys->looked_ns >= keys->pause_ns;
    if (asks && !keys->runs)
        rc = tierce__thread_start_on(&keys->thread, &keys->affinity, look_main, keys);
    if (rc < 0)
        keys->looked_ns = now;
    keys->runs |= asks && rc == 0;
    keys->asked |= asks && rc == 0;
    tierce__cond_broadcast(&keys->cond);
    tierce__lock_drop(&keys->lock);
    if (rc < 0)
        tierce__log_repeated(TIERCE_LOG_ERROR, "encryption_keys_unreadable",
                             "effect=\"the keys read before stay in use\" reason=\"no thread\"");
}

/* ---- the keys -------------------------------------------------------------------------------- */

static bool is_given(const char *text)
{
    return text != NULL && text[0] != '\0';
}

static void free_keys(struct tierce__coded_keys *keys)
{
    if (keys->stop_fd >= 0)
        close(keys->stop_fd);
    tierce__free(keys->file);
    tierce__free(keys->command);
    tierce__free(keys);
}

int tierce__coded_keys_open(struct tierce__coded_keys **out,
                            const struct tierce__coded_keys_opts *opts,
                            char why[TIERCE__CODED_KEYS_WHY_BYTES])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts) && is_given(opts->file) != is_given(opts->command));
    struct tierce__coded_keys *keys = tierce__calloc(1, sizeof(*keys));
    int rc = -ENOMEM;
    if (keys != NULL) {
        tierce__affinity_note(&keys->affinity);
        keys->stop_fd = eventfd(0, EFD_CLOEXEC);
        if (is_given(opts->file))
            keys->file = tierce__strdup(opts->file);
        else
            keys->command = tierce__strdup(opts->command);
        rc = keys->file != NULL || keys->command != NULL ? 0 : -ENOMEM;
        if (rc == 0 && keys->stop_fd < 0)
            rc = -EMFILE;
    }
    if (rc < 0)
        snprintf(why, TIERCE__CODED_KEYS_WHY_BYTES, "no memory or no file descriptor");
    else if (keys->file != NULL)
        (void)see(&keys->seen, keys); /* load reports a missing file */
    if (rc == 0)
        rc = load(&keys->set, keys, why);
    if (rc < 0) {
        if (keys != NULL)
            free_keys(keys);
        return rc;
    }
    keys->pause_ns = (opts->pause_ms > 0   ? opts->pause_ms
                      : keys->file != NULL ? LOOK_MS
                                           : RUN_MS) *
                     TIERCE__MS_NS;
    keys->looked_ns = tierce__now_ns();
    tierce__lock_init(&keys->lock, TIERCE__LOCK_CODED_KEYS);
    tierce__cond_init(&keys->cond);
    *out = keys;
    return 0;
}

void tierce__coded_keys_close(struct tierce__coded_keys *keys)
{
    const uint64_t one = 1;
    if (keys == NULL)
        return;
    tierce__lock_take(&keys->lock);
    keys->stop = true;
    tierce__cond_broadcast(&keys->cond);
    bool runs = keys->runs;
    tierce__lock_drop(&keys->lock);
    if (runs) {
        TIERCE_ASSERT(write(keys->stop_fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
        pthread_join(keys->thread, NULL);
    }
    tierce__seal_keys_destroy(keys->set);
    tierce__cond_fini(&keys->cond);
    tierce__lock_fini(&keys->lock);
    free_keys(keys);
}

/* Copies a key; number 0: the one for new chunks. */
static bool copy_key(struct tierce__coded_keys *keys, struct tierce__seal_key *out, uint32_t number,
                     const uint8_t ns_digest[TIERCE_HASH_BYTES])
{
    tierce__lock_take(&keys->lock);
    const struct tierce__seal_key *key =
        number > 0 ? tierce__seal_keys_numbered(keys->set, number, ns_digest)
                   : tierce__seal_keys_newest(keys->set, ns_digest);
    if (key != NULL)
        *out = *key;
    tierce__lock_drop(&keys->lock);
    return key != NULL;
}

bool tierce__coded_keys_newest(struct tierce__coded_keys *keys, struct tierce__seal_key *out,
                               const uint8_t ns_digest[TIERCE_HASH_BYTES])
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (keys->file != NULL) {
        tierce__lock_take(&keys->lock);
        look_alone(keys);
        tierce__lock_drop(&keys->lock);
    }
    if (copy_key(keys, out, 0, ns_digest))
        return true;
    tierce__log_repeated(TIERCE_LOG_ERROR, "encryption_key_missing",
                         "effect=\"chunks of a namespace are not stored\" remedy=\"add a key for "
                         "its namespace, or one for all, to encryption.key_file\"");
    return false;
}

int tierce__coded_keys_unlock(struct tierce__coded_keys *keys, const char *tier,
                              struct tierce__coded_info *info, const uint8_t *object)
{
    struct tierce__seal_key key;
    uint32_t number = info->key_number;
    if (number == 0)
        return 0;
    bool found = keys != NULL && copy_key(keys, &key, number, info->chunk.ns_digest);
    if (!found && keys != NULL)
        ask(keys);
    if (!found) {
        tierce__log_repeated(TIERCE_LOG_ERROR, "encryption_key_missing",
                             "tier=%s key=%u effect=\"chunks with this key are not loaded; they "
                             "stay stored\" remedy=\"%s\"",
                             tier, (unsigned)number, MISSING_REMEDY);
        return TIERCE_E_VERSION;
    }
    int rc = tierce__coded_open(info, object, &key);
    tierce__seal_wipe(&key, sizeof(key));
    return rc < 0 ? TIERCE_E_FULL : 0;
}

void tierce__coded_keys_log_wrong(const char *tier, uint32_t number)
{
    tierce__log_repeated(TIERCE_LOG_ERROR, "encryption_key_wrong",
                         "tier=%s key=%u effect=\"the chunk is not loaded; it stays stored\" "
                         "reason=\"the key with this number is not the one that encrypted the "
                         "chunk, or the chunk was changed\" remedy=\"put the right key under this "
                         "number and restart; give a new key a new number\"",
                         tier, (unsigned)number);
}
