/* SPDX-License-Identifier: Apache-2.0 */
#include "store/coded/coded_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log/log_repeat.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"

extern char **environ;

#define TEXT_MAX    (256u << 10)
#define COMMAND_MS  10000u
#define LOOK_MS     1000u  /* between two looks at the file */
#define RUN_MS      60000u /* between two runs of the command */
#define END_LOOK_MS 10     /* between two looks whether the command has ended */
#define LOSSES_MAX  32u
#define EFFECT                                                                                     \
    "lookups do not find chunks with this key until it is there, and a store replaces them"

/* The file when it was read. */
struct seen {
    struct timespec changed; /* ctime, which no copy preserves */
    bool is_young;           /* a later change may have the same time */
    dev_t device;            /* another file may have the same time, too */
    ino_t inode;
    off_t bytes;
};

/* A key that is missing or wrong, so that its loss is logged once. */
struct loss {
    uint32_t number; /* 0: none */
    uint8_t ns_digest[TIERCE_HASH_BYTES];
    char tier[64];
    bool is_wrong;
    bool told;            /* it was logged */
    uint64_t looks_begun; /* when it was noted: a later look proves it */
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
    uint64_t looks_begun, looked_ns;
    struct seen seen; /* of the one that is looking */
    struct tierce__seal_keys *set;
    _Atomic uint64_t generation; /* of the set; stored under the lock */
    struct loss losses[LOSSES_MAX];
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

/* ---- lost keys ------------------------------------------------------------------------------- */

static void log_missing(const struct tierce__coded_keys *keys, const struct loss *loss)
{
    char digest[2 * TIERCE_HASH_BYTES + 1];
    tierce__hex_encode(digest, loss->ns_digest, TIERCE_HASH_BYTES);
    tierce__log(TIERCE_LOG_ERROR, "encryption_key_missing",
                "tier=%s key=%u namespace=%s effect=\"" EFFECT "\" remedy=\"%s\"", loss->tier,
                (unsigned)loss->number, digest,
                keys->file != NULL
                    ? "add the key with this number, for all namespaces or for this one, to "
                      "encryption.key_file, which is read again"
                    : "let encryption.key_command print the key with this number, for all "
                      "namespaces or for this one; it runs again for such a chunk, once a minute "
                      "at most");
}

static void log_wrong(const struct tierce__coded_keys *keys, const struct loss *loss)
{
    tierce__log(TIERCE_LOG_ERROR, "encryption_key_wrong",
                "tier=%s key=%u effect=\"" EFFECT
                "\" reason=\"the key with this number is not the one that encrypted the chunk, or "
                "the chunk was changed\" remedy=\"put the right key under this number into %s; "
                "give a new key a new number\"",
                loss->tier, (unsigned)loss->number,
                keys->file != NULL ? "encryption.key_file"
                                   : "the output of encryption.key_command");
}

static bool is_same_loss(const struct loss *a, const struct loss *b)
{
    return a->number == b->number && a->is_wrong == b->is_wrong &&
           memcmp(a->ns_digest, b->ns_digest, TIERCE_HASH_BYTES) == 0;
}

/* Notes a loss, unless it is noted already; of more than LOSSES_MAX, the rest when others are over.
 * Returns whether it is to be logged now, which is later if a look must prove it. Under the lock.
 */
static bool note_loss(struct tierce__coded_keys *keys, const struct loss *loss, bool needs_look)
{
    struct loss *entry = NULL;
    tierce__lock_assert_held(&keys->lock);
    for (size_t i = 0; i < LOSSES_MAX; i++) {
        struct loss *other = &keys->losses[i];
        if (is_same_loss(other, loss))
            return false;
        if (other->number == 0 && entry == NULL)
            entry = other;
    }
    if (entry == NULL)
        return false;
    *entry = *loss;
    entry->told = !needs_look;
    entry->looks_begun = keys->looks_begun;
    return !needs_look;
}

/* The keys were read again, or have not changed: forgets the losses that are over, and logs those
 * that are not. The lock is held at the beginning and at the end. */
static void settle_losses(struct tierce__coded_keys *keys, uint64_t look, bool has_changed)
{
    tierce__lock_assert_held(&keys->lock);
    for (size_t i = 0; i < LOSSES_MAX; i++) {
        struct loss *loss = &keys->losses[i];
        if (loss->number == 0)
            continue;
        bool is_over = loss->is_wrong ? has_changed
                                      : tierce__seal_keys_numbered(keys->set, loss->number,
                                                                   loss->ns_digest) != NULL;
        if (is_over) {
            *loss = (struct loss){0};
        } else if (!loss->told && loss->looks_begun < look) {
            const struct loss copy = *loss;
            loss->told = true;
            tierce__lock_drop(&keys->lock);
            log_missing(keys, &copy);
            tierce__lock_take(&keys->lock);
        }
    }
}

/* ---- looking --------------------------------------------------------------------------------- */

/* Reads the keys again. Of the thread that has set `looks`. */
static void look(struct tierce__coded_keys *keys, uint64_t number)
{
    struct tierce__seal_keys *set = NULL, *old = NULL;
    char why[TIERCE__CODED_KEYS_WHY_BYTES];
    struct seen now = {0};
    bool loads = keys->file == NULL || is_to_be_read(&now, keys);
    int rc = loads ? load(&set, keys, why) : 0;
    tierce__lock_take(&keys->lock);
    bool stopped = keys->stop;
    bool has_news = set != NULL && keys->file != NULL && !is_same_change(&now, &keys->seen);
    bool has_changed = set != NULL && !tierce__seal_keys_equal(set, keys->set);
    if (set != NULL) {
        old = keys->set;
        keys->set = set;
        keys->seen = now;
    }
    if (has_changed) /* release: a reader of the generation finds the new set */
        atomic_fetch_add_explicit(&keys->generation, 1, memory_order_release);
    settle_losses(keys, number, has_changed);
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
    uint64_t number = ++keys->looks_begun;
    tierce__lock_drop(&keys->lock);
    look(keys, number);
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
        uint64_t next_ns = keys->asked ? keys->looked_ns + keys->pause_ns : TIERCE__DEADLINE_NEVER;
        if (tierce__now_ns() < next_ns) {
            (void)tierce__cond_wait(&keys->cond, &keys->lock, next_ns);
            continue;
        }
        keys->asked = false; /* a loss during the look needs another one */
        look_alone(keys);
    }
    tierce__lock_drop(&keys->lock);
    return NULL;
}

void tierce__coded_keys_ask(struct tierce__coded_keys *keys)
{
    int rc = 0;
    if (keys == NULL)
        return;
    tierce__lock_take(&keys->lock);
    bool asks = !keys->asked;
    if (asks && !keys->runs)
        rc = tierce__thread_start_on(&keys->thread, &keys->affinity, look_main, keys);
    keys->runs |= asks && rc == 0;
    keys->asked |= asks && rc == 0;
    if (asks)
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
    /* The look that would have proved them did not come, as in a short process. */
    for (size_t i = 0; i < LOSSES_MAX; i++) {
        if (keys->losses[i].number != 0 && !keys->losses[i].told)
            log_missing(keys, &keys->losses[i]);
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
                         "effect=\"chunks of a namespace are not stored\" remedy=\"%s\"",
                         keys->file != NULL
                             ? "add a key for its namespace, or one for all, to "
                               "encryption.key_file"
                             : "let encryption.key_command print a key for its namespace, or one "
                               "for all, and restart");
    return false;
}

uint64_t tierce__coded_keys_generation(const struct tierce__coded_keys *keys)
{
    return keys != NULL ? atomic_load_explicit(&keys->generation, memory_order_acquire) : 0;
}

static struct loss loss_of(const char *tier, const struct tierce__coded_info *info, bool is_wrong)
{
    struct loss loss = {.number = info->key_number, .is_wrong = is_wrong};
    memcpy(loss.ns_digest, info->chunk.ns_digest, TIERCE_HASH_BYTES);
    snprintf(loss.tier, sizeof(loss.tier), "%s", tier);
    return loss;
}

/* A key is missing or wrong. */
static void lose(struct tierce__coded_keys *keys, const struct loss *loss)
{
    bool needs_look = !loss->is_wrong && keys->file != NULL; /* the file may have it already */
    tierce__lock_take(&keys->lock);
    bool tells = note_loss(keys, loss, needs_look);
    tierce__lock_drop(&keys->lock);
    tierce__coded_keys_ask(keys);
    if (tells && loss->is_wrong)
        log_wrong(keys, loss);
    else if (tells)
        log_missing(keys, loss);
}

int tierce__coded_keys_unlock(struct tierce__coded_keys *keys, const char *tier,
                              struct tierce__coded_info *info, const uint8_t *object)
{
    struct tierce__seal_key key;
    uint32_t number = info->key_number;
    if (number == 0)
        return 0;
    if (keys == NULL) {
        tierce__log_repeated(TIERCE_LOG_ERROR, "encryption_key_missing",
                             "tier=%s key=%u effect=\"" EFFECT
                             "\" reason=\"there are no keys: neither encryption.key_file nor "
                             "encryption.key_command is set\" remedy=\"set one that has the key "
                             "with this number, and restart\"",
                             tier, (unsigned)number);
        return TIERCE_E_NO_KEY;
    }
    if (!copy_key(keys, &key, number, info->chunk.ns_digest)) {
        const struct loss loss = loss_of(tier, info, false);
        lose(keys, &loss);
        return TIERCE_E_NO_KEY;
    }
    int rc = tierce__coded_open(info, object, &key);
    tierce__seal_wipe(&key, sizeof(key));
    return rc < 0 ? TIERCE_E_FULL : 0;
}

void tierce__coded_keys_log_wrong(struct tierce__coded_keys *keys, const char *tier,
                                  const struct tierce__coded_info *info)
{
    const struct loss loss = loss_of(tier, info, true);
    lose(keys, &loss);
}
