/* SPDX-License-Identifier: Apache-2.0 */
#include "core/key/fingerprint.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "core/key/sha256.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES           (1u << 20)
#define FILES_MAX            65536u
#define PROGRESS_INTERVAL_NS (100 * TIERCE__MS_NS)

static const char fingerprint_domain[] = "tierce-weights-1";

struct model_file {
    char *name;
    bool is_weights; /* else the configuration */
    bool known;      /* the digest came from the cache */
    struct stat st;  /* of the link's target, when it was listed */
    uint8_t digest[TIERCE_HASH_BYTES];
};

struct model {
    const struct tierce_fingerprint_opts *opts;
    int dir_fd;
    int cache_fd; /* -1: none */
    uint64_t settle_ns;
    struct model_file *files;
    size_t file_count;
    size_t file_room;
    uint8_t *buffer;
    uint64_t done_bytes;
    uint64_t total_bytes; /* to be read: without files found in the cache */
    uint64_t reported_ns;
};

/* ---- listing -------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *suffix)
{
    size_t n = strlen(name), s = strlen(suffix);
    return n > s && strcmp(name + n - s, suffix) == 0;
}

static bool is_config(const char *name)
{
    return strcmp(name, "config.json") == 0;
}

static bool is_safetensors(const char *name)
{
    return ends_with(name, ".safetensors");
}

static bool is_other_weights(const char *name)
{
    return ends_with(name, ".bin") || ends_with(name, ".pt") || ends_with(name, ".gguf");
}

/* Adds the file that `name` leads to, links followed, unless it is not a regular file. */
static int add_file(struct model *model, const char *name)
{
    struct stat st;
    if (fstatat(model->dir_fd, name, &st, 0) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return 0;
    if (model->file_count == FILES_MAX)
        return TIERCE_E_LIMIT;
    if (TIERCE__GROW(model->files, model->file_room, model->file_count + 1, 16) < 0)
        return -ENOMEM;
    TIERCE_DASSERT(model->file_count < model->file_room);
    char *copy = tierce__strdup(name);
    if (copy == NULL)
        return -ENOMEM;
    model->files[model->file_count++] =
        (struct model_file){.name = copy, .is_weights = !is_config(name), .st = st};
    return 0;
}

/* Adds every entry of the folder that `wanted` names. */
static int list_files(struct model *model, bool (*wanted)(const char *name))
{
    int fd = openat(model->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    int rc = 0;
    while (rc == 0) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            rc = -errno;
            break;
        }
        if (wanted(entry->d_name))
            rc = add_file(model, entry->d_name);
    }
    closedir(dir);
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    const struct model_file *fa = a, *fb = b;
    return strcmp(fa->name, fb->name);
}

static bool has_weights(const struct model *model)
{
    for (size_t i = 0; i < model->file_count; i++)
        if (model->files[i].is_weights)
            return true;
    return false;
}

static int list_model(struct model *model)
{
    int rc = list_files(model, is_config);
    if (rc == 0)
        rc = list_files(model, is_safetensors);
    if (rc == 0 && !has_weights(model))
        rc = list_files(model, is_other_weights);
    if (rc == 0 && !has_weights(model))
        rc = -ENOENT;
    if (rc == 0 && model->files != NULL)
        qsort(model->files, model->file_count, sizeof(*model->files), compare_names);
    return rc;
}

/* ---- reading -------------------------------------------------------------------------------- */

static void report_progress(struct model *model, uint64_t bytes)
{
    model->done_bytes += bytes;
    TIERCE_DASSERT(model->done_bytes <= model->total_bytes);
    if (model->opts == NULL || model->opts->progress == NULL)
        return;
    uint64_t now = tierce__now_ns();
    bool last = model->done_bytes == model->total_bytes;
    if (!last && now - model->reported_ns < PROGRESS_INTERVAL_NS)
        return;
    model->reported_ns = now;
    model->opts->progress(model->opts->progress_arg, model->done_bytes, model->total_bytes);
}

static bool same_state(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Feeds exactly `size` bytes of `fd`; -EBUSY if it has more or fewer. */
static int hash_content(struct model *model, int fd, uint64_t size,
                        uint8_t digest[TIERCE_HASH_BYTES])
{
    struct tierce__sha256 sha;
    tierce__sha256_init(&sha);
    uint64_t left = size;
    for (;;) {
        ssize_t n = read(fd, model->buffer, READ_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if ((uint64_t)n > left || (n == 0 && left > 0))
            return -EBUSY;
        if (n == 0)
            break;
        tierce__sha256_update(&sha, model->buffer, (size_t)n);
        left -= (uint64_t)n;
        report_progress(model, (uint64_t)n);
    }
    TIERCE_DASSERT(left == 0);
    tierce__sha256_final(&sha, digest);
    return 0;
}

/* Whether a change after `read_at` must show in the times of the file. */
static bool is_settled(const struct model *model, const struct stat *st, struct timespec read_at)
{
    int64_t changed_s = st->st_ctim.tv_sec, read_s = read_at.tv_sec;
    if (changed_s > read_s)
        return false;
    if (read_s - changed_s > 3600)
        return true;
    int64_t age_ns = (read_s - changed_s) * 1000000000 + (read_at.tv_nsec - st->st_ctim.tv_nsec);
    return age_ns >= 0 && (uint64_t)age_ns >= model->settle_ns;
}

/* Reads one file that the cache does not know, and remembers its digest. A file that changes
 * while it is read has no fingerprint: -EBUSY. */
static int read_file(struct model *model, struct model_file *file)
{
    int fd = openat(model->dir_fd, file->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    struct stat st;
    struct timespec read_at;
    clock_gettime(CLOCK_REALTIME, &read_at);
    int rc = fstat(fd, &st) < 0 ? -errno : 0;
    if (rc == 0 && !same_state(&st, &file->st))
        rc = -EBUSY;
    if (rc == 0) {
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        rc = hash_content(model, fd, (uint64_t)st.st_size, file->digest);
    }
    if (rc == 0 && fstat(fd, &st) < 0)
        rc = -errno;
    if (rc == 0 && !same_state(&st, &file->st))
        rc = -EBUSY;
    close(fd);
    if (rc == 0 && model->cache_fd >= 0 && is_settled(model, &st, read_at))
        tierce__fingerprint_cache_put(model->cache_fd, &st, file->digest);
    return rc;
}

static int digest_files(struct model *model)
{
    for (size_t i = 0; i < model->file_count; i++) {
        struct model_file *file = &model->files[i];
        file->known = model->cache_fd >= 0 &&
                      tierce__fingerprint_cache_get(model->cache_fd, &file->st, file->digest);
        if (!file->known)
            model->total_bytes += (uint64_t)file->st.st_size;
    }
    for (size_t i = 0; i < model->file_count; i++) {
        if (model->files[i].known)
            continue;
        int rc = read_file(model, &model->files[i]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- fingerprint ---------------------------------------------------------------------------- */

static void sum_files(const struct model *model, char text[65])
{
    struct tierce__sha256 sha;
    uint8_t number[8], digest[TIERCE_HASH_BYTES];
    tierce__sha256_init(&sha);
    tierce__sha256_update(&sha, fingerprint_domain, sizeof(fingerprint_domain));
    for (size_t i = 0; i < model->file_count; i++) {
        const struct model_file *file = &model->files[i];
        tierce__store_le64(number, strlen(file->name));
        tierce__sha256_update(&sha, number, sizeof(number));
        tierce__sha256_update(&sha, file->name, strlen(file->name));
        tierce__store_le64(number, (uint64_t)file->st.st_size);
        tierce__sha256_update(&sha, number, sizeof(number));
        tierce__sha256_update(&sha, file->digest, sizeof(file->digest));
    }
    tierce__sha256_final(&sha, digest);
    tierce__hex_encode(text, digest, sizeof(digest));
}

static int open_model(struct model *model, const char *dir)
{
    model->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (model->dir_fd < 0)
        return -errno;
    if (model->opts != NULL && model->opts->cache_dir != NULL) {
        int fd = tierce__fingerprint_cache_open(model->opts->cache_dir);
        if (fd < 0)
            tierce__log(TIERCE_LOG_WARN, "fingerprint_cache_unusable", "path=%s err=\"%s\"",
                        model->opts->cache_dir, tierce_strerror(fd));
        model->cache_fd = fd < 0 ? -1 : fd;
    }
    model->buffer = tierce__alloc(READ_BYTES);
    return model->buffer != NULL ? 0 : -ENOMEM;
}

static void close_model(struct model *model)
{
    for (size_t i = 0; i < model->file_count; i++)
        tierce__free(model->files[i].name);
    tierce__free(model->files);
    tierce__free(model->buffer);
    if (model->cache_fd >= 0)
        close(model->cache_fd);
    if (model->dir_fd >= 0)
        close(model->dir_fd);
}

int tierce__weights_fingerprint(char text[65], const char *model_dir,
                                const struct tierce_fingerprint_opts *opts, uint64_t settle_ns)
{
    if (text == NULL || model_dir == NULL || (opts != NULL && opts->size != sizeof(*opts)))
        return TIERCE_E_ARGUMENT;
    struct model model = {.opts = opts, .dir_fd = -1, .cache_fd = -1, .settle_ns = settle_ns};
    int rc = open_model(&model, model_dir);
    if (rc == 0)
        rc = list_model(&model);
    if (rc == 0)
        rc = digest_files(&model);
    if (rc == 0)
        sum_files(&model, text);
    close_model(&model);
    return rc;
}

int tierce_weights_fingerprint(char text[65], const char *model_dir,
                               const struct tierce_fingerprint_opts *opts)
{
    return tierce__weights_fingerprint(text, model_dir, opts, TIERCE__FINGERPRINT_SETTLE_NS);
}
