/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/file/file_connector.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "store/remote/file/file_private.h"
#include "store/remote/links.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define LEVELS        2u
#define LINKS         8u
#define SWEEP_MS      (5u * 60 * 1000)
#define TMP_MS        (60u * 60 * 1000)
#define TOUCH_S       60 /* how exact the time of the last use is */
#define PAGE_NAMES    256u
#define CAP_BYTES_MIN (1u << 20)

struct file_link {
    struct tierce__file_store *store;
    uint32_t levels; /* 0: the store is not opened yet */
    uint64_t opens;
    char why[TIERCE__CONNECTOR_WHY_BYTES];
};

/* ---- statuses -------------------------------------------------------------------------------- */

int tierce__file_status(int rc)
{
    switch (rc) {
    case -ENOSPC:
    case -EDQUOT:
        return TIERCE_E_FULL;
    case -EACCES:
    case -EPERM:
    case -EROFS:
        return TIERCE_E_REFUSED;
    case -EFBIG:
    case -ENAMETOOLONG:
        return TIERCE_E_LIMIT;
    case -ENOENT: /* the root; a missing object was handled before */
    case -ENOTDIR:
    case -ESTALE:
    case -ENOTCONN:
    case -ETIMEDOUT:
    case -EHOSTDOWN:
    case -EHOSTUNREACH:
    case -ENETUNREACH:
    case -ENODEV:
        return TIERCE_E_DOWN;
    default:
        return rc;
    }
}

static int fail(struct file_link *link, const char *what, int rc)
{
    TIERCE_DASSERT(rc < 0);
    snprintf(link->why, sizeof(link->why), "%s: %s", what, tierce_strerror(rc));
    if (rc == -ENOENT || rc == -ENOTDIR || rc == -ESTALE)
        link->levels = 0; /* look again whether it is there */
    return tierce__file_status(rc);
}

static int ready(struct file_link *link)
{
    if (link->levels != 0)
        return 0;
    int rc = tierce__file_open_store(link->store, &link->levels);
    link->opens += rc == 0;
    TIERCE_DASSERT(rc != 0 || (link->levels > 0 && link->levels <= TIERCE__FILE_LEVELS_MAX));
    if (rc == TIERCE_E_FORMAT)
        return fail(link, TIERCE__FILE_STORE " is not the marker file of a store of this version",
                    rc);
    if (rc == -ENOENT && atomic_load_explicit(&link->store->was_open, memory_order_relaxed))
        return fail(link, TIERCE__FILE_STORE " is missing; is its file system mounted?", rc);
    return rc == 0 ? 0 : fail(link, "opening the store", rc);
}

/* An object is not there: or is the whole store not there? */
static int missing(struct file_link *link)
{
    char path[TIERCE__FILE_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/%s", link->store->root, TIERCE__FILE_STORE);
    return access(path, F_OK) == 0 ? TIERCE_E_MISS : fail(link, "the store", -errno);
}

/* Whether the object of a name is there: 0 and its path; or TIERCE_E_MISS, TIERCE_E_UNSUPPORTED
 * where something of others is in its place, or why that is not known. */
static int find(struct file_link *link, char *path, const struct tierce_plugin_name *name)
{
    TIERCE_DASSERT(link->levels > 0 && link->levels <= TIERCE__FILE_LEVELS_MAX);
    const char *root = link->store->root;
    tierce__file_path(path, root, link->levels, name);
    int rc = tierce__file_look(root, path);
    if (rc == -ENOENT)
        return missing(link);
    if (rc == TIERCE_E_UNSUPPORTED)
        snprintf(link->why, sizeof(link->why),
                 "%.200s: not a file of this store, or behind a symbolic link",
                 path + strlen(root));
    return rc == 0 || rc == TIERCE_E_UNSUPPORTED ? rc : fail(link, "looking for an object", rc);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int file_find(void *opened, const struct tierce_plugin_name *names, size_t count,
                     _Atomic size_t *found, uint64_t deadline_ns)
{
    TIERCE_DASSERT(count > 0 && *found == 0);
    struct file_link *link = opened;
    char path[TIERCE__FILE_PATH_BYTES];
    int rc = ready(link);
    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = find(link, path, &names[i]);
        if (rc == 0)
            *found = i + 1;
        if (rc == 0 && i + 1 < count && tierce__now_ns() >= deadline_ns)
            rc = TIERCE_E_DEADLINE;
    }
    return rc == TIERCE_E_MISS || rc == TIERCE_E_UNSUPPORTED ? 0 : rc;
}

static int file_measure(void *opened, const struct tierce_plugin_name *name, uint64_t *bytes,
                        uint64_t deadline_ns)
{
    struct file_link *link = opened;
    char path[TIERCE__FILE_PATH_BYTES];
    struct stat status;
    (void)deadline_ns;
    int rc = ready(link);
    if (rc == 0)
        rc = find(link, path, name);
    if (rc == TIERCE_E_UNSUPPORTED)
        return TIERCE_E_MISS;
    if (rc == 0 && stat(path, &status) != 0)
        return errno == ENOENT ? missing(link) : fail(link, "looking for an object", -errno);
    if (rc == 0)
        *bytes = (uint64_t)status.st_size;
    return rc;
}

/* Writes down that an object was used, if that was not done a moment ago. */
static void touch(const char *path)
{
    struct stat st;
    struct timespec now;
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
    if (stat(path, &st) == 0 && clock_gettime(CLOCK_REALTIME, &now) == 0 &&
        (st.st_atim.tv_sec + TOUCH_S <= now.tv_sec || st.st_atim.tv_sec > now.tv_sec))
        (void)utimensat(AT_FDCWD, path, times, 0);
}

static int read_range(struct tierce__vfs *vfs, const char *path, uint8_t *memory, uint64_t offset,
                      uint64_t length)
{
    TIERCE_DASSERT(length > 0);
    struct tierce__vfs_file *file = NULL;
    int rc = vfs->ops->open(vfs, &file, path, TIERCE__VFS_READONLY);
    if (rc != 0)
        return rc;
    rc = vfs->ops->read(vfs, file, memory, length, offset);
    vfs->ops->close(vfs, file);
    return rc == -ENODATA ? TIERCE_E_FORMAT : rc;
}

static int file_get(void *opened, const struct tierce_plugin_name *name, void *memory,
                    uint64_t offset, uint64_t length, uint64_t deadline_ns)
{
    struct file_link *link = opened;
    char path[TIERCE__FILE_PATH_BYTES];
    (void)deadline_ns; /* a read cannot be ended */
    int rc = ready(link);
    if (rc == 0)
        rc = find(link, path, name);
    if (rc != 0)
        return rc == TIERCE_E_UNSUPPORTED ? TIERCE_E_MISS : rc;
    rc = read_range(link->store->vfs, path, memory, offset, length);
    if (rc == -ESTALE) /* NFS: another host has replaced it meanwhile */
        rc = read_range(link->store->vfs, path, memory, offset, length);
    if (rc == -ENOENT)
        return missing(link);
    if (rc != 0)
        return fail(link, "reading an object", rc);
    if (link->store->cap_bytes > 0)
        touch(path);
    return 0;
}

/* The folders of an object, each of which is on the device then. */
static int make_folders(const struct file_link *link, const char *path)
{
    TIERCE_DASSERT(strncmp(path, link->store->root, strlen(link->store->root)) == 0);
    char folder[TIERCE__FILE_PATH_BYTES], above[TIERCE__FILE_PATH_BYTES];
    struct tierce__vfs *vfs = link->store->vfs;
    size_t root = strlen(link->store->root);
    int rc = 0;
    for (const char *at = strchr(path + root + 1, '/'); at != NULL && rc == 0;
         at = strchr(at + 1, '/')) {
        TIERCE_DASSERT((size_t)(at - path) < sizeof(folder));
        memcpy(folder, path, (size_t)(at - path));
        folder[at - path] = '\0';
        rc = vfs->ops->make_folder(vfs, folder);
        tierce__file_folder_of(above, folder);
        if (rc == 0)
            rc = vfs->ops->sync_folder(vfs, above);
    }
    return rc;
}

/* Writes in progress are counted before they begin, so that several writers together do not exceed
 * the cap. A sweep may count a write twice; the next sweep corrects that. */
static uint64_t used_bytes(struct tierce__file_store *store)
{
    uint64_t swept = atomic_load_explicit(&store->swept_bytes, memory_order_relaxed);
    int64_t written = atomic_load_explicit(&store->written_bytes, memory_order_relaxed);
    return swept + atomic_load_explicit(&store->writing_bytes, memory_order_relaxed) +
           (written > 0 ? (uint64_t)written : 0);
}

static void give_room(struct tierce__file_store *store, uint64_t bytes)
{
    TIERCE_DASSERT(atomic_load_explicit(&store->writing_bytes, memory_order_relaxed) >= bytes);
    atomic_fetch_sub_explicit(&store->writing_bytes, bytes, memory_order_relaxed);
}

/* Reserves room below the cap; requests a sweep if the total comes near it. */
static int take_room(struct file_link *link, uint64_t bytes)
{
    TIERCE_DASSERT(bytes > 0 && bytes % TIERCE__FILE_BLOCK_BYTES == 0);
    struct tierce__file_store *store = link->store;
    uint64_t cap = store->cap_bytes;
    if (cap > 0 && bytes > cap - cap / 10)
        return fail(link, "an object larger than the store", TIERCE_E_LIMIT);
    atomic_fetch_add_explicit(&store->writing_bytes, bytes, memory_order_relaxed);
    if (cap == 0)
        return 0;
    uint64_t used = used_bytes(store);
    if (used > cap - cap / 20)
        tierce__file_sweeper_kick(store);
    if (used <= cap)
        return 0;
    give_room(store, bytes);
    return fail(link, "the store", TIERCE_E_FULL);
}

static int file_put(void *opened, const struct tierce_plugin_name *name, const void *memory,
                    uint64_t length, uint64_t deadline_ns)
{
    TIERCE_DASSERT(length > 0);
    struct file_link *link = opened;
    char path[TIERCE__FILE_PATH_BYTES];
    struct tierce__file_store *store = link->store;
    uint64_t bytes = tierce__round_up(length, TIERCE__FILE_BLOCK_BYTES);
    int rc = ready(link);
    if (rc == 0)
        rc = find(link, path, name);
    if (rc == 0 || rc == TIERCE_E_MISS)
        rc = take_room(link, bytes);
    if (rc != 0)
        return rc;
    rc = tierce__file_publish(store, path, memory, length, deadline_ns);
    if (rc == -ENOENT && missing(link) == TIERCE_E_MISS) {
        rc = make_folders(link, path);
        if (rc == 0)
            rc = tierce__file_publish(store, path, memory, length, deadline_ns);
    }
    if (rc == 0)
        atomic_fetch_add_explicit(&store->written_bytes, (int64_t)bytes, memory_order_relaxed);
    give_room(store, bytes);
    if (rc == 0)
        return 0;
    if (rc == -ENOSPC || rc == -EDQUOT)
        tierce__file_sweeper_kick(store);
    return fail(link, "writing an object", rc);
}

static int file_remove(void *opened, const struct tierce_plugin_name *name, uint64_t deadline_ns)
{
    struct file_link *link = opened;
    char path[TIERCE__FILE_PATH_BYTES];
    (void)deadline_ns;
    int rc = ready(link);
    if (rc == 0)
        rc = find(link, path, name);
    if (rc != 0) /* a foreign file is never found, and stays */
        return rc == TIERCE_E_MISS || rc == TIERCE_E_UNSUPPORTED ? 0 : rc;
    rc = link->store->vfs->ops->unlink(link->store->vfs, path);
    return rc == 0 || rc == -ENOENT ? 0 : fail(link, "deleting an object", rc);
}

/* ---- pages of names -------------------------------------------------------------------------- */

struct file_listing {
    const struct tierce_plugin_name *prefix;
    tierce_plugin_each_fn *each;
    void *arg;
    size_t count;
};

static int tell_name(void *arg, const char *path, const char *relative)
{
    struct file_listing *listing = arg;
    const struct tierce_plugin_name *prefix = listing->prefix;
    char text[TIERCE__CONNECTOR_NAME_MAX];
    struct tierce_plugin_name name = {.text = text};
    (void)path;
    if (!tierce__file_name(text, &name.bytes, relative) || name.bytes < prefix->bytes ||
        memcmp(text, prefix->text, prefix->bytes) != 0)
        return 0;
    TIERCE_DASSERT(name.bytes <= TIERCE__CONNECTOR_NAME_MAX);
    listing->each(listing->arg, &name);
    listing->count++;
    return 0;
}

/* The path of the innermost fan-out folder number `leaf`. Returns how many numbers from there on
 * have no folder, 0 if it is there itself. */
static uint64_t leaf_path(const struct file_link *link, char *path, uint64_t leaf)
{
    struct stat st;
    TIERCE_DASSERT(link->levels > 0 && leaf >> 8 * link->levels == 0);
    size_t used = (size_t)snprintf(path, TIERCE__FILE_PATH_BYTES, "%s", link->store->root);
    for (uint32_t i = 0; i < link->levels; i++) {
        uint32_t below = 8 * (link->levels - 1 - i);
        uint64_t leaves = 1ull << below; /* below that folder */
        used += (size_t)snprintf(path + used, TIERCE__FILE_PATH_BYTES - used, "/%02x",
                                 (unsigned)(leaf >> below & 0xff));
        TIERCE_DASSERT(used < TIERCE__FILE_PATH_BYTES);
        if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode))
            return leaves - (leaf & (leaves - 1));
    }
    return 0;
}

static int file_list(void *opened, const struct tierce_plugin_name *prefix, uint64_t *cursor,
                     tierce_plugin_each_fn *each, void *arg, uint64_t deadline_ns)
{
    struct file_link *link = opened;
    char path[TIERCE__FILE_PATH_BYTES];
    struct file_listing listing = {.prefix = prefix, .each = each, .arg = arg};
    uint64_t now = tierce__now_ns(), leaf = *cursor;
    uint64_t enough_ns = deadline_ns > now ? now + (deadline_ns - now) / 2 : now;
    int rc = ready(link);
    uint64_t leaves = 1ull << 8 * link->levels;
    while (rc == 0 && leaf < leaves && listing.count < PAGE_NAMES) {
        uint64_t gap = leaf_path(link, path, leaf);
        if (gap == 0)
            rc = tierce__file_walk(path, 0, tell_name, &listing);
        if (rc == -ENOENT)
            rc = 0;
        leaf += gap > 0 ? gap : 1;
        if (tierce__now_ns() >= enough_ns)
            break;
    }
    if (rc == 0 && listing.count == 0 && missing(link) != TIERCE_E_MISS)
        return TIERCE_E_DOWN;
    if (rc != 0)
        return link->levels == 0 ? rc : fail(link, "listing", rc);
    TIERCE_DASSERT(leaf > *cursor || leaf >= leaves); /* the listing ends */
    *cursor = leaf < leaves ? leaf : 0;
    return 0;
}

static int file_ping(void *opened, uint64_t deadline_ns)
{
    struct file_link *link = opened;
    (void)deadline_ns;
    link->levels = 0; /* read the mark again */
    int rc = ready(link);
    if (rc == 0 && access(link->store->root, R_OK | X_OK) != 0) /* its chunks may be read */
        rc = fail(link, "the folder", -errno);
    return rc;
}

/* ---- links ----------------------------------------------------------------------------------- */

static int open_link(void **out, void *store)
{
    struct file_link *link = *out;
    TIERCE_DASSERT(link->levels == 0 && link->opens == 0);
    link->store = store;
    return 0;
}

static struct tierce__link_state state_of(const void *opened)
{
    const struct file_link *link = opened;
    TIERCE_DASSERT(link->levels == 0 || link->opens > 0);
    return (struct tierce__link_state){.connects = link->opens, .is_connected = link->levels != 0};
}

static const char *why_of(void *opened)
{
    const struct file_link *link = opened;
    return link->why;
}

static void close_store(void *store)
{
    tierce__file_sweeper_stop(store);
    tierce__file_store_release(store);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int create_store(struct tierce__file_store **out, const struct tierce__file_opts *opts)
{
    struct tierce__file_store *store = tierce__calloc(1, sizeof(*store));
    char *root = tierce__strdup(opts->root);
    if (store == NULL || root == NULL) {
        tierce__free(store);
        tierce__free(root);
        opts->vfs->ops->destroy(opts->vfs);
        return -ENOMEM;
    }
    store->root = root;
    for (size_t bytes = strlen(root); bytes > 1 && root[bytes - 1] == '/'; bytes--)
        root[bytes - 1] = '\0';
    store->vfs = opts->vfs;
    store->levels = opts->levels != 0 ? opts->levels : LEVELS;
    TIERCE_DASSERT(store->levels > 0 && store->levels <= TIERCE__FILE_LEVELS_MAX);
    store->cap_bytes = opts->cap_bytes;
    store->sweep_ms = opts->sweep_ms != 0 ? opts->sweep_ms : SWEEP_MS;
    store->tmp_ms = opts->tmp_ms != 0 ? opts->tmp_ms : TMP_MS;
    store->holders = 1;
    tierce__lock_init(&store->lock, TIERCE__LOCK_CONNECTOR);
    tierce__cond_init(&store->wake);
    tierce__cond_init(&store->ended);
    if (getrandom(store->tmp_seed, sizeof(store->tmp_seed), 0) !=
        (ssize_t)sizeof(store->tmp_seed)) {
        tierce__file_store_release(store);
        return -EAGAIN;
    }
    *out = store;
    return 0;
}

static int start_store(void **out, const struct tierce__file_opts *opts)
{
    struct tierce__file_store *store = NULL;
    TIERCE_ASSERT(opts->root[0] == '/' && strlen(opts->root) < TIERCE__FILE_ROOT_BYTES);
    TIERCE_ASSERT(opts->levels <= TIERCE__FILE_LEVELS_MAX);
    int rc = create_store(&store, opts);
    if (rc != 0)
        return rc;
    rc = tierce__file_sweeper_start(store);
    if (rc == 0)
        *out = store;
    else
        close_store(store);
    return rc;
}

__attribute__((format(printf, 2, 3))) static int refuse(char why[TIERCE__CONNECTOR_WHY_BYTES],
                                                        const char *format, ...)
{
    va_list args;
    int used = snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "URL: ");
    va_start(args, format);
    vsnprintf(why + used, TIERCE__CONNECTOR_WHY_BYTES - (size_t)used, format, args);
    va_end(args);
    return TIERCE_E_CONFIG;
}

static int check_place(const struct tierce__url *url, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    if (url->user != NULL || url->host_count > 1 ||
        (url->host_count == 1 && strcmp(url->hosts[0].name, "localhost") != 0))
        return refuse(why, "a folder has no host: %s:///folder", url->scheme);
    if (url->path[0] != '/' || strspn(url->path, "/") == strlen(url->path))
        return refuse(why, "the path of the folder is missing: %s:///folder", url->scheme);
    if (strlen(url->path) >= TIERCE__FILE_ROOT_BYTES)
        return refuse(why, "the path of the folder is longer than 1023 bytes");
    return 0;
}

/* names=path: a folder that a manager governs, so there is nothing to sweep. */
static int open_paths(void **out, struct tierce__client *own, const struct tierce__url *url,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char *const known[] = {"names", "connections", NULL};
    int rc = tierce__url_check_params(url, known, why);
    if (rc != 0)
        return rc;
    tierce__file_paths_use(own);
    return tierce__file_paths_open(out, url->path, NULL);
}

/* The numbers of a URL. */
static int read_numbers(struct tierce__file_opts *opts, const struct tierce__url *url,
                        char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    uint64_t levels = LEVELS;
    const struct {
        struct tierce__url_number number;
        uint64_t *value;
    } numbers[] = {
        {{"size", TIERCE__URL_SIZE, CAP_BYTES_MIN, 1ull << 60}, &opts->cap_bytes},
        {{"fanout", TIERCE__URL_COUNT, 1, TIERCE__FILE_LEVELS_MAX}, &levels},
        {{"sweep", TIERCE__URL_MILLISECONDS, 100, 24ull * 60 * 60 * 1000}, &opts->sweep_ms},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers) && rc == 0; i++)
        rc = tierce__url_param_number(url, numbers[i].value, &numbers[i].number, why);
    opts->levels = (uint32_t)levels;
    return rc;
}

static int open_file(void **out, struct tierce__client *own,
                     const struct tierce__connector_source *source,
                     char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char *const known[] = {"size", "fanout", "sweep", "connections", "names", NULL};
    const struct tierce__url *url = source->url;
    struct tierce__file_opts opts = {.size = sizeof(opts), .root = url->path};
    const char *names = tierce__url_param(url, "names");
    int rc = check_place(url, why);
    if (rc == 0 && names != NULL && strcmp(names, "path") == 0)
        return open_paths(out, own, url, why);
    if (rc == 0)
        rc = tierce__url_check_params(url, known, why);
    if (rc == 0 && names != NULL && strcmp(names, "escaped") != 0)
        rc = refuse(why, "parameter names must be escaped or path");
    if (rc == 0)
        rc = read_numbers(&opts, url, why);
    if (rc == 0)
        rc = tierce__vfs_threads_create(&opts.vfs,
                                        1); /* which has none: transfers are not submitted */
    return rc == 0 ? start_store(out, &opts) : rc;
}

const struct tierce__client tierce__file_client = {
    .table = {.caps = TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS,
              .close = close_store,
              .link_open = open_link,
              .link_close = tierce__free,
              .get = file_get,
              .put = file_put,
              .remove = file_remove,
              .list = file_list,
              .ping = file_ping,
              .why = why_of},
    .scheme = "file",
    .link_bytes = sizeof(struct file_link),
    .links = LINKS,
    .open = open_file,
    .find = file_find,
    .measure = file_measure,
    .state = state_of,
};

int tierce__file_open_with(void **out, struct tierce__client *own, const struct tierce__url *url,
                           struct tierce__vfs *vfs, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__client client = tierce__file_client;
    struct tierce__file_opts opts = {.size = sizeof(opts), .root = url->path, .vfs = vfs};
    int rc = check_place(url, why);
    if (rc == 0)
        rc = read_numbers(&opts, url, why);
    if (rc != 0) {
        vfs->ops->destroy(vfs);
        return rc;
    }
    client.scheme = own->scheme;
    client.links = own->links;
    *own = client;
    return start_store(out, &opts);
}

int tierce__file_create(struct tierce__connector **out, const struct tierce__file_opts *opts)
{
    struct tierce__client client = tierce__file_client;
    void *store = NULL;
    TIERCE_ASSERT(!opts->has_paths || opts->vfs == NULL);
    if (opts->has_paths)
        tierce__file_paths_use(&client);
    int rc = opts->has_paths ? tierce__file_paths_open(&store, opts->root, opts->make_vfs)
                             : start_store(&store, opts);
    if (rc != 0)
        return rc;
    return tierce__links_create(
        out, &(struct tierce__links_opts){.client = &client,
                                          .store = store,
                                          .links = opts->links != 0 ? opts->links : LINKS,
                                          .store_name = opts->store_name});
}
