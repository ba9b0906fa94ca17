/* SPDX-License-Identifier: Apache-2.0 */
#include "core/key/fingerprint_model.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/log/log.h"
#include "core/key/sha256.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES_MAX 65536u

static const char fingerprint_domain[] = "tierce-weights-1";

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
static int add_file(struct tierce__weights *model, const char *name)
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
        (struct tierce__weights_file){.name = copy, .is_weights = !is_config(name), .st = st};
    return 0;
}

/* Adds every entry of the folder that `wanted` names. */
static int list_files(struct tierce__weights *model, bool (*wanted)(const char *name))
{
    TIERCE_DASSERT(model->dir_fd >= 0);
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
    const struct tierce__weights_file *fa = a, *fb = b;
    return strcmp(fa->name, fb->name);
}

static bool has_weights(const struct tierce__weights *model)
{
    for (size_t i = 0; i < model->file_count; i++)
        if (model->files[i].is_weights)
            return true;
    return false;
}

static int list_model(struct tierce__weights *model)
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

/* ---- fingerprint ---------------------------------------------------------------------------- */

static void sum_files(const struct tierce__weights *model, char text[65])
{
    TIERCE_DASSERT(model->file_count > 0 && has_weights(model));
    struct tierce__sha256 sha;
    uint8_t number[8], digest[TIERCE_HASH_BYTES];
    tierce__sha256_init(&sha);
    tierce__sha256_update(&sha, fingerprint_domain, sizeof(fingerprint_domain));
    for (size_t i = 0; i < model->file_count; i++) {
        const struct tierce__weights_file *file = &model->files[i];
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

static int open_model(struct tierce__weights *model, const char *dir)
{
    model->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (model->dir_fd < 0)
        return -errno;
    if (model->opts != NULL && model->opts->cache_dir != NULL) {
        int fd = tierce__fingerprint_cache_open(model->opts->cache_dir);
        if (fd < 0)
            tierce__log(TIERCE_LOG_WARN, "fingerprint_cache_unusable", "path=\"%.500s\" err=\"%s\"",
                        model->opts->cache_dir,
                        fd == -EPERM ? "the folder belongs to another user, or others can write to "
                                       "it; chmod 700 it, or name another folder"
                                     : tierce_strerror(fd));
        model->cache_fd = fd < 0 ? -1 : fd;
    }
    return 0;
}

static void close_model(struct tierce__weights *model)
{
    for (size_t i = 0; i < model->file_count; i++)
        tierce__free(model->files[i].name);
    tierce__free(model->files);
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
    struct tierce__weights model = {
        .opts = opts, .dir_fd = -1, .cache_fd = -1, .settle_ns = settle_ns};
    int rc = open_model(&model, model_dir);
    if (rc == 0)
        rc = list_model(&model);
    if (rc == 0)
        rc = tierce__weights_read(&model);
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
