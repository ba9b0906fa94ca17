/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names=path: names are paths below the root (file_place.h), as a manager's clients use them. A PUT
 * writes where its object lies, because the file may hold other objects, and because a manager
 * shows a block only after its FinishWriteCache: until then nobody reads it. After a PUT was
 * answered with 0, every host finds the object, also after a crash of this one: its bytes, the name
 * of its file and the folders that this call made are on the device or at the server. A PUT that
 * failed may have written a part.
 *
 * Each call reopens the root, because a file system may have been mounted there meanwhile, and
 * so that it can be unmounted between calls. Each link has a vfs of its own, which enters the root.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "store/remote/file/file_place.h"
#include "store/remote/file/file_private.h"
#include "store/remote/links.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TRIES 4

/* Shared by the links. */
struct file_paths {
    tierce__file_make_vfs_fn *make_vfs;
    char root[TIERCE__FILE_ROOT_BYTES];
};

struct path_link {
    struct file_paths *paths;
    struct tierce__vfs *vfs;
    uint64_t opens; /* successful ones after a failure */
    bool is_open;   /* the root was there at the last call */
    char why[TIERCE__CONNECTOR_WHY_BYTES];
};

/* ---- statuses -------------------------------------------------------------------------------- */

static int fail(struct path_link *link, const char *what, int rc)
{
    TIERCE_DASSERT(rc < 0);
    char shown[160];
    tierce__text_for_message(shown, sizeof(shown), what);
    snprintf(link->why, sizeof(link->why), "%s: %s", shown, tierce_strerror(rc));
    return tierce__file_status(rc);
}

static int refuse(struct path_link *link, const char *path, const char *wrong, int rc)
{
    char shown[120];
    tierce__text_for_message(shown, sizeof(shown), path);
    snprintf(link->why, sizeof(link->why), "%s: %s", shown, wrong);
    return rc;
}

/* Something of others has the path of an object, or of one of its folders. */
static bool is_foreign(int rc)
{
    return rc == -ELOOP || rc == -ENOTDIR || rc == -EINVAL || rc == -EISDIR || rc == -ENXIO;
}

/* ---- the root -------------------------------------------------------------------------------- */

/* `vfs->leave` ends it. */
static int enter(struct path_link *link)
{
    const char *root = link->paths->root;
    int rc = link->vfs->ops->enter(link->vfs, root);
    link->opens += rc == 0 && !link->is_open;
    link->is_open = rc == 0;
    if (rc == -ENOENT || rc == -ENOTDIR)
        return refuse(link, root, "the folder is missing; is its file system mounted?",
                      TIERCE_E_DOWN);
    return rc == 0 ? 0 : fail(link, root, rc);
}

/* Reads the name and enters the root. */
static int begin(struct path_link *link, struct tierce__file_place *place,
                 const struct tierce_plugin_name *name)
{
    const char *wrong = tierce__file_place_read(place, name);
    if (wrong == NULL)
        return enter(link);
    char text[TIERCE__CONNECTOR_NAME_MAX + 1];
    snprintf(text, sizeof(text), "%.*s", (int)name->bytes, name->text);
    return refuse(link, text, wrong, TIERCE_E_ARGUMENT);
}

static uint64_t first_byte(const struct tierce__file_place *place)
{
    TIERCE_DASSERT(place->slot < TIERCE__FILE_SLOTS_MAX);
    TIERCE_DASSERT(place->bytes <= TIERCE__FILE_SLOT_BYTES_MAX);
    return place->slot * place->bytes;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Whether the file is there and long enough; 0 or TIERCE_E_MISS. */
static int look(struct path_link *link, const struct tierce__file_place *place)
{
    struct tierce__vfs *vfs = link->vfs;
    struct tierce__vfs_file *file = NULL;
    int rc = vfs->ops->open(vfs, &file, place->path, TIERCE__VFS_READONLY);
    if (rc == -ENOENT || is_foreign(rc))
        return TIERCE_E_MISS;
    if (rc != 0)
        return fail(link, place->path, rc);
    int64_t length = vfs->ops->length(vfs, file);
    vfs->ops->close(vfs, file);
    if (length < 0)
        return fail(link, place->path, (int)length);
    return (uint64_t)length >= first_byte(place) + place->bytes && length > 0 ? 0 : TIERCE_E_MISS;
}

static int paths_find(void *opened, const struct tierce_plugin_name *names, size_t count,
                      _Atomic size_t *found, uint64_t deadline_ns)
{
    TIERCE_DASSERT(count > 0 && *found == 0);
    struct path_link *link = opened;
    struct tierce__file_place place;
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = begin(link, &place, &names[i]);
        if (rc != 0)
            return rc;
        rc = look(link, &place);
        link->vfs->ops->leave(link->vfs);
        if (rc == 0)
            *found = i + 1;
        if (rc == 0 && i + 1 < count && tierce__now_ns() >= deadline_ns)
            rc = TIERCE_E_DEADLINE;
    }
    return rc == TIERCE_E_MISS ? 0 : rc;
}

static int read_range(struct path_link *link, const struct tierce__file_place *place,
                      uint8_t *memory, uint64_t offset, uint64_t length)
{
    struct tierce__vfs *vfs = link->vfs;
    struct tierce__vfs_file *file = NULL;
    if (place->bytes > 0 && (offset > place->bytes || length > place->bytes - offset))
        return refuse(link, place->path, "the range ends behind the object", TIERCE_E_FORMAT);
    if (length > INT64_MAX || first_byte(place) + offset > INT64_MAX - length)
        return refuse(link, place->path, "no file is that long", TIERCE_E_FORMAT);
    int rc = vfs->ops->open(vfs, &file, place->path, TIERCE__VFS_READONLY);
    if (rc != 0)
        return rc;
    rc = vfs->ops->read(vfs, file, memory, length, first_byte(place) + offset);
    vfs->ops->close(vfs, file);
    return rc == -ENODATA
               ? refuse(link, place->path, "the file ends before the object does", TIERCE_E_FORMAT)
               : rc;
}

static int paths_get(void *opened, const struct tierce_plugin_name *name, void *memory,
                     uint64_t offset, uint64_t length, uint64_t deadline_ns)
{
    TIERCE_DASSERT(length > 0);
    struct path_link *link = opened;
    struct tierce__file_place place;
    (void)deadline_ns; /* a read cannot be ended */
    int rc = begin(link, &place, name);
    if (rc != 0)
        return rc;
    rc = read_range(link, &place, memory, offset, length);
    if (rc == -ESTALE) /* NFS: the file was made again meanwhile */
        rc = read_range(link, &place, memory, offset, length);
    link->vfs->ops->leave(link->vfs);
    if (rc == -ENOENT || is_foreign(rc))
        return TIERCE_E_MISS;
    return rc == 0 || rc == TIERCE_E_FORMAT ? rc : fail(link, place.path, rc);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* "." for a file in the root. */
static void folder_of(char folder[TIERCE__CONNECTOR_NAME_MAX + 1], const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t bytes = slash != NULL ? (size_t)(slash - path) : 1;
    memcpy(folder, slash != NULL ? path : ".", bytes);
    folder[bytes] = '\0';
}

/* The folders of a path, each of which is on the device then. */
static int make_folders(struct tierce__vfs *vfs, const char *path)
{
    char folder[TIERCE__CONNECTOR_NAME_MAX + 1], above[TIERCE__CONNECTOR_NAME_MAX + 1];
    int rc = 0;
    for (const char *at = strchr(path, '/'); at != NULL && rc == 0; at = strchr(at + 1, '/')) {
        TIERCE_DASSERT(at > path && (size_t)(at - path) < sizeof(folder));
        memcpy(folder, path, (size_t)(at - path));
        folder[at - path] = '\0';
        rc = vfs->ops->make_folder(vfs, folder);
        folder_of(above, folder);
        if (rc == 0)
            rc = vfs->ops->sync_folder(vfs, above);
    }
    return rc;
}

/* Several times, because a manager removes folders that have become empty. */
static int open_to_write(struct tierce__vfs *vfs, struct tierce__vfs_file **out, const char *path)
{
    int rc = vfs->ops->open(vfs, out, path, TIERCE__VFS_CREATE);
    for (int i = 0; i < TRIES && (rc == -ENOENT || rc == -EEXIST); i++) {
        rc = make_folders(vfs, path);
        if (rc == 0)
            rc = vfs->ops->open(vfs, out, path, TIERCE__VFS_CREATE);
    }
    return rc;
}

/* A file without slots is the object alone, and ends with it. */
static int write_in_place(struct tierce__vfs *vfs, struct tierce__vfs_file *file,
                          const struct tierce__file_place *place, const void *data, uint64_t length)
{
    int64_t before = vfs->ops->length(vfs, file);
    int rc = before < 0 ? (int)before : 0;
    if (rc == 0)
        rc = vfs->ops->write(vfs, file, data, length, first_byte(place));
    if (rc == 0 && !place->has_slots && (uint64_t)before > length)
        rc = vfs->ops->truncate(vfs, file, length);
    return rc;
}

/* Two writers may share a new file, so each of them makes its name durable. */
static int write_object(struct tierce__vfs *vfs, const struct tierce__file_place *place,
                        const void *data, uint64_t length, uint64_t deadline_ns)
{
    char folder[TIERCE__CONNECTOR_NAME_MAX + 1];
    struct tierce__vfs_file *file = NULL;
    int rc = open_to_write(vfs, &file, place->path);
    if (rc != 0)
        return rc;
    if (tierce__now_ns() >= deadline_ns) /* nobody waits; the manager may give the slot away */
        rc = TIERCE_E_DEADLINE;
    if (rc == 0)
        rc = write_in_place(vfs, file, place, data, length);
    if (rc == 0)
        rc = vfs->ops->sync(vfs, file);
    vfs->ops->close(vfs, file);
    folder_of(folder, place->path);
    return rc == 0 ? vfs->ops->sync_folder(vfs, folder) : rc;
}

static int paths_put(void *opened, const struct tierce_plugin_name *name, const void *memory,
                     uint64_t length, uint64_t deadline_ns)
{
    TIERCE_DASSERT(length > 0);
    struct path_link *link = opened;
    struct tierce__file_place place;
    int rc = begin(link, &place, name);
    if (rc != 0)
        return rc;
    if (place.bytes > 0 && place.bytes != length)
        rc = refuse(link, place.path, "the object does not have the length that its name gives",
                    TIERCE_E_ARGUMENT);
    else
        rc = write_object(link->vfs, &place, memory, length, deadline_ns);
    link->vfs->ops->leave(link->vfs);
    if (is_foreign(rc))
        return refuse(link, place.path, "not a file, or behind a symbolic link",
                      TIERCE_E_UNSUPPORTED);
    return rc == 0 || rc == TIERCE_E_ARGUMENT ? rc : fail(link, place.path, rc);
}

/* The manager deletes: a file may hold blocks of others. */
static int paths_remove(void *opened, const struct tierce_plugin_name *name, uint64_t deadline_ns)
{
    (void)opened;
    (void)name;
    (void)deadline_ns;
    return TIERCE_E_UNSUPPORTED;
}

static int paths_ping(void *opened, uint64_t deadline_ns)
{
    struct path_link *link = opened;
    (void)deadline_ns;
    int rc = enter(link);
    if (rc != 0)
        return rc;
    link->vfs->ops->leave(link->vfs);
    return access(link->paths->root, R_OK | W_OK | X_OK) == 0
               ? 0
               : fail(link, link->paths->root, -errno);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int open_link(void **out, void *store)
{
    struct path_link *link = *out;
    link->paths = store;
    return link->paths->make_vfs(&link->vfs);
}

static void close_link(void *opened)
{
    struct path_link *link = opened;
    if (link->vfs != NULL)
        link->vfs->ops->destroy(link->vfs);
    tierce__free(link);
}

static struct tierce__link_state state_of(const void *opened)
{
    const struct path_link *link = opened;
    return (struct tierce__link_state){.connects = link->opens, .is_connected = link->is_open};
}

static const char *why_of(void *opened)
{
    const struct path_link *link = opened;
    return link->why;
}

static int make_plain_vfs(struct tierce__vfs **out)
{
    return tierce__vfs_threads_create(out, 1); /* which has none: transfers are not submitted */
}

int tierce__file_paths_open(void **out, const char *root, tierce__file_make_vfs_fn *make_vfs)
{
    struct file_paths *paths = tierce__calloc(1, sizeof(*paths));
    TIERCE_ASSERT(root[0] == '/' && strlen(root) < sizeof(paths->root));
    if (paths == NULL)
        return -ENOMEM;
    paths->make_vfs = make_vfs != NULL ? make_vfs : make_plain_vfs;
    memcpy(paths->root, root, strlen(root) + 1);
    *out = paths;
    return 0;
}

void tierce__file_paths_use(struct tierce__client *client)
{
    TIERCE_DASSERT(client->store_bytes == 0 && strcmp(client->scheme, "file") == 0);
    client->table =
        (struct tierce_plugin){.caps = TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_NO_DELETE,
                               .close = tierce__free,
                               .link_open = open_link,
                               .link_close = close_link,
                               .get = paths_get,
                               .put = paths_put,
                               .remove = paths_remove,
                               .ping = paths_ping,
                               .why = why_of};
    client->link_bytes = sizeof(struct path_link);
    client->find = paths_find;
    client->measure = NULL;
    client->state = state_of;
}
