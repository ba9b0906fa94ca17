/* SPDX-License-Identifier: Apache-2.0 */
#include "vfs_cut.h"
#include "base/alloc.h"
#include "base/list.h"
#include "base/mix.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECTOR 512u

struct tierce__cut_file {
    struct tierce__list node;
    struct tierce__list effects; /* oldest first */
    int fd;                      /* our own: the user's may be closed, and may be O_DIRECT */
    bool open;
};

struct tierce__cut_effect {
    struct tierce__list node;
    uint64_t began;
    bool ended;
    bool is_write;
    uint64_t ended_at;
    uint64_t old_length; /* of the file */
    uint64_t new_length; /* of the file, by a truncation or an allocation */
    uint64_t offset;
    uint64_t length;
    uint64_t old_bytes; /* bytes of `before`: the previous contents of the range */
    uint8_t *before;
    uint8_t *after; /* writes */
};

enum name_kind { NAME_CREATED, NAME_RENAMED, NAME_UNLINKED };

struct name_change {
    struct tierce__list node;
    int folder; /* the cut's */
    uint64_t number;
    enum name_kind kind;
    bool has_backup; /* `backup` is a link to the replaced file */
    char *path;
    char *from;
    char *backup;
};

struct tierce__cut {
    uint64_t clock;
    int folder; /* that names are in; or AT_FDCWD */
    struct tierce__list files;
    struct tierce__list names; /* oldest first */
};

int tierce__cut_create(struct tierce__cut **out)
{
    struct tierce__cut *cut = tierce__calloc(1, sizeof(*cut));
    if (cut == NULL)
        return -ENOMEM;
    cut->folder = AT_FDCWD;
    tierce__list_init(&cut->files);
    tierce__list_init(&cut->names);
    *out = cut;
    return 0;
}

int tierce__cut_enter(struct tierce__cut *cut, int folder)
{
    /* Names that were noted before keep the number. */
    int fd = cut->folder == AT_FDCWD ? fcntl(folder, F_DUPFD_CLOEXEC, 0)
                                     : dup3(folder, cut->folder, O_CLOEXEC);
    if (fd < 0)
        return -errno;
    cut->folder = fd;
    return 0;
}

static void free_effect(struct tierce__cut_effect *e)
{
    tierce__list_remove(&e->node);
    tierce__free(e->before);
    tierce__free(e->after);
    tierce__free(e);
}

static void free_file(struct tierce__cut_file *file)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &file->effects)
        free_effect(TIERCE__CONTAINER_OF(it, struct tierce__cut_effect, node));
    tierce__list_remove(&file->node);
    close(file->fd);
    tierce__free(file);
}

static void free_name(struct name_change *n)
{
    if (n->has_backup && n->backup != NULL)
        (void)unlinkat(n->folder, n->backup, 0);
    tierce__list_remove(&n->node);
    tierce__free(n->path);
    tierce__free(n->from);
    tierce__free(n->backup);
    tierce__free(n);
}

void tierce__cut_destroy(struct tierce__cut *cut)
{
    if (cut == NULL)
        return;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &cut->files)
        free_file(TIERCE__CONTAINER_OF(it, struct tierce__cut_file, node));
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &cut->names)
        free_name(TIERCE__CONTAINER_OF(it, struct name_change, node));
    if (cut->folder != AT_FDCWD)
        close(cut->folder);
    tierce__free(cut);
}

static struct name_change *add_name(struct tierce__cut *cut, enum name_kind kind, const char *path,
                                    const char *from)
{
    struct name_change *n = tierce__calloc(1, sizeof(*n));
    if (n == NULL)
        return NULL;
    n->kind = kind;
    n->folder = cut->folder;
    n->number = ++cut->clock;
    tierce__list_init(&n->node);
    size_t room = strlen(path) + 32;
    n->path = tierce__strdup(path);
    n->from = from != NULL ? tierce__strdup(from) : NULL;
    n->backup = tierce__alloc(room);
    if (n->path == NULL || n->backup == NULL || (from != NULL && n->from == NULL)) {
        free_name(n);
        return NULL;
    }
    snprintf(n->backup, room, "%s.undo%llu", path, (unsigned long long)n->number);
    if (kind != NAME_CREATED)
        n->has_backup = linkat(n->folder, path, n->folder, n->backup, 0) == 0;
    tierce__list_push_back(&cut->names, &n->node);
    return n;
}

struct tierce__cut_file *tierce__cut_open(struct tierce__cut *cut, const char *path, bool create,
                                          bool truncate_)
{
    struct stat st;
    bool there = fstatat(cut->folder, path, &st, 0) == 0;
    if (!there && !create)
        return NULL;
    struct tierce__cut_file *file = tierce__calloc(1, sizeof(*file));
    if (file == NULL)
        return NULL;
    file->fd = openat(cut->folder, path, O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0600);
    file->open = true;
    tierce__list_init(&file->effects);
    tierce__list_push_back(&cut->files, &file->node);
    struct tierce__cut_effect *e = NULL;
    if (file->fd >= 0 && there && truncate_)
        e = tierce__cut_begin(cut, file, NULL, 0, 0);
    if (e != NULL)
        tierce__cut_ended(cut, e);
    bool noted = (there && (!truncate_ || e != NULL)) ||
                 (!there && file->fd >= 0 && add_name(cut, NAME_CREATED, path, NULL) != NULL);
    if (file->fd < 0 || !noted) {
        free_file(file);
        return NULL;
    }
    return file;
}

void tierce__cut_close(struct tierce__cut *cut, struct tierce__cut_file *file)
{
    (void)cut;
    file->open = false;
    if (tierce__list_empty(&file->effects))
        free_file(file);
}

/* Copies the data that a change is about to replace. */
static bool save_old(struct tierce__cut_effect *e, int fd, uint64_t offset, uint64_t length)
{
    if (offset >= e->old_length)
        return true;
    if (length > e->old_length - offset)
        length = e->old_length - offset;
    e->before = tierce__alloc(length);
    if (e->before == NULL)
        return false;
    e->old_bytes = length;
    uint64_t got = 0;
    while (got < length) {
        ssize_t n = pread(fd, e->before + got, length - got, (off_t)(offset + got));
        if (n <= 0)
            return false;
        got += (uint64_t)n;
    }
    return true;
}

struct tierce__cut_effect *tierce__cut_begin(struct tierce__cut *cut, struct tierce__cut_file *file,
                                             const void *data, uint64_t offset, uint64_t length)
{
    struct stat st;
    struct tierce__cut_effect *e = tierce__calloc(1, sizeof(*e));
    if (e == NULL || fstat(file->fd, &st) != 0) {
        tierce__free(e);
        return NULL;
    }
    tierce__list_init(&e->node);
    e->began = ++cut->clock;
    e->is_write = data != NULL;
    e->old_length = (uint64_t)st.st_size;
    e->offset = offset;
    e->length = length;
    bool ok;
    if (data != NULL) {
        e->after = tierce__alloc(length);
        ok = e->after != NULL && save_old(e, file->fd, offset, length);
        if (ok)
            memcpy(e->after, data, length);
    } else {
        uint64_t end = offset + length;
        e->new_length = length > 0 && end < e->old_length ? e->old_length : end;
        ok = save_old(e, file->fd, e->new_length, UINT64_MAX - e->new_length);
    }
    if (!ok) {
        free_effect(e);
        return NULL;
    }
    tierce__list_push_back(&file->effects, &e->node);
    return e;
}

void tierce__cut_ended(struct tierce__cut *cut, struct tierce__cut_effect *effect)
{
    effect->ended = true;
    effect->ended_at = ++cut->clock;
}

uint64_t tierce__cut_mark(struct tierce__cut *cut)
{
    return ++cut->clock;
}

/* Two handles may be open on one file; a sync through one covers the writes through both. */
static bool same_file(const struct tierce__cut_file *a, const struct tierce__cut_file *b)
{
    struct stat x, y;
    return fstat(a->fd, &x) == 0 && fstat(b->fd, &y) == 0 && x.st_ino == y.st_ino &&
           x.st_dev == y.st_dev;
}

/* The file has become durable up to `end`: no revocable effect of it makes it shorter any more. */
static void keep_length(struct tierce__cut *cut, const struct tierce__cut_file *file, uint64_t end)
{
    TIERCE__LIST_FOR_EACH (f, &cut->files) {
        struct tierce__cut_file *other = TIERCE__CONTAINER_OF(f, struct tierce__cut_file, node);
        if (!same_file(other, file))
            continue;
        TIERCE__LIST_FOR_EACH (it, &other->effects) {
            struct tierce__cut_effect *e =
                TIERCE__CONTAINER_OF(it, struct tierce__cut_effect, node);
            e->old_length = e->old_length < end ? end : e->old_length;
        }
    }
}

void tierce__cut_covered(struct tierce__cut *cut, struct tierce__cut_file *file, uint64_t mark)
{
    uint64_t end = 0; /* of the writes that are durable from now on */
    TIERCE__LIST_FOR_EACH_SAFE (f, after_f, &cut->files) {
        struct tierce__cut_file *other = TIERCE__CONTAINER_OF(f, struct tierce__cut_file, node);
        if (!same_file(other, file))
            continue;
        TIERCE__LIST_FOR_EACH_SAFE (it, after, &other->effects) {
            struct tierce__cut_effect *e =
                TIERCE__CONTAINER_OF(it, struct tierce__cut_effect, node);
            if (!e->ended || e->ended_at >= mark)
                continue;
            if (e->is_write && end < e->offset + e->length)
                end = e->offset + e->length;
            free_effect(e);
        }
        if (!other->open && tierce__list_empty(&other->effects))
            free_file(other);
    }
    keep_length(cut, file, end);
}

int tierce__cut_rename(struct tierce__cut *cut, uint64_t *undo, const char *from, const char *to)
{
    struct name_change *n = add_name(cut, NAME_RENAMED, to, from);
    if (n == NULL)
        return -ENOMEM;
    *undo = n->number;
    return 0;
}

int tierce__cut_unlink(struct tierce__cut *cut, uint64_t *undo, const char *path)
{
    struct name_change *n = add_name(cut, NAME_UNLINKED, path, NULL);
    if (n == NULL)
        return -ENOMEM;
    *undo = n->number;
    return 0;
}

void tierce__cut_cancel(struct tierce__cut *cut, uint64_t undo)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &cut->names) {
        struct name_change *n = TIERCE__CONTAINER_OF(it, struct name_change, node);
        if (n->number == undo)
            free_name(n);
    }
}

static bool lies_in(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    if (strcmp(folder, ".") == 0)
        return strchr(path, '/') == NULL;
    return strncmp(path, folder, n) == 0 && path[n] == '/' && strchr(path + n + 1, '/') == NULL;
}

void tierce__cut_folder_covered(struct tierce__cut *cut, const char *folder, uint64_t mark)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &cut->names) {
        struct name_change *n = TIERCE__CONTAINER_OF(it, struct name_change, node);
        if (n->number < mark && lies_in(n->path, folder))
            free_name(n);
    }
}

static void put_back(int fd, const uint8_t *bytes, uint64_t length, uint64_t offset)
{
    while (length > 0) {
        ssize_t n = pwrite(fd, bytes, length, (off_t)offset);
        if (n <= 0)
            return; /* the disk is what fails here; the test will see it */
        bytes += n;
        offset += (uint64_t)n;
        length -= (uint64_t)n;
    }
}

static void take_back(struct tierce__cut_file *file, const struct tierce__cut_effect *e)
{
    uint64_t start = e->is_write ? e->offset : e->new_length;
    put_back(file->fd, e->before, e->old_bytes, start);
    if (ftruncate(file->fd, (off_t)e->old_length) != 0)
        return;
}

/* Does an effect once more: whole, not at all, or sector by sector. */
static void redo(struct tierce__cut_file *file, const struct tierce__cut_effect *e,
                 uint64_t *random)
{
    uint64_t what = tierce__random_next(random) % 3;
    if (what == 0)
        return;
    if (!e->is_write) {
        if (ftruncate(file->fd, (off_t)e->new_length) != 0)
            return;
    } else if (what == 1) {
        put_back(file->fd, e->after, e->length, e->offset);
    } else {
        for (uint64_t at = 0; at < e->length; at += SECTOR) {
            uint64_t n = e->length - at < SECTOR ? e->length - at : SECTOR;
            if (tierce__random_next(random) % 2 == 0)
                put_back(file->fd, e->after + at, n, e->offset + at);
        }
    }
}

static void undo_name(struct name_change *n)
{
    int rc = 0;
    switch (n->kind) {
    case NAME_CREATED:
        rc = unlinkat(n->folder, n->path, 0);
        break;
    case NAME_RENAMED:
        rc = renameat(n->folder, n->path, n->folder, n->from);
        break;
    case NAME_UNLINKED:
        break;
    }
    if (n->has_backup) {
        rc |= renameat(n->folder, n->backup, n->folder, n->path);
        n->has_backup = false;
    }
    (void)rc; /* a change that failed half way has nothing to undo */
}

void tierce__cut_apply(struct tierce__cut *cut, uint64_t seed)
{
    uint64_t random = seed;
    TIERCE__LIST_FOR_EACH (f, &cut->files) {
        struct tierce__cut_file *file = TIERCE__CONTAINER_OF(f, struct tierce__cut_file, node);
        for (struct tierce__list *it = file->effects.prev; it != &file->effects; it = it->prev)
            take_back(file, TIERCE__CONTAINER_OF(it, struct tierce__cut_effect, node));
        TIERCE__LIST_FOR_EACH (it, &file->effects)
            redo(file, TIERCE__CONTAINER_OF(it, struct tierce__cut_effect, node), &random);
    }
    uint64_t count = 0;
    TIERCE__LIST_FOR_EACH (it, &cut->names)
        count++;
    /* A journaling file system loses the newest changes of names, never one out of the middle. */
    uint64_t undone = tierce__random_next(&random) % (count + 1);
    struct tierce__list *it = cut->names.prev;
    for (uint64_t i = 0; i < undone; i++, it = it->prev)
        undo_name(TIERCE__CONTAINER_OF(it, struct name_change, node));
}
