/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_FILE_PRIVATE_H
#define TIERCE_CONNECTOR_FILE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/threads/lock.h"
#include "store/remote/connector.h"
#include "store/remote/file/file_connector.h"

#define TIERCE__FILE_LEVELS_MAX  3u
#define TIERCE__FILE_PATH_BYTES  4096u
#define TIERCE__FILE_ROOT_BYTES  1024u
#define TIERCE__FILE_STORE       "~store"
#define TIERCE__FILE_CLAIM       "~claim"
#define TIERCE__FILE_TMP         "~tmp-"
#define TIERCE__FILE_TMP_DIGITS  32u   /* in hex, behind it */
#define TIERCE__FILE_BLOCK_BYTES 4096u /* the space of a file is a multiple of it */

/* Shared by the links of a connector and its sweeper. */
struct tierce__file_store {
    char *root;
    struct tierce__vfs *vfs;
    uint32_t levels; /* for a new store */
    uint64_t cap_bytes, sweep_ms, tmp_ms;
    _Atomic uint64_t tmp_count; /* names of temporaries */
    _Atomic bool was_open;      /* a mark has been read. Relaxed: a flag alone */
    uint8_t tmp_seed[8];
    /* Bytes in the folder after the last sweep of any process; bytes that this process is writing;
     * below, bytes that it has written since the sweep. Relaxed: an estimate. */
    _Atomic uint64_t swept_bytes, writing_bytes;
    _Atomic int64_t written_bytes;

    pthread_t sweeper;
    struct tierce__lock lock;
    /* Under the lock. */
    struct tierce__cond wake, ended;
    uint32_t holders; /* the connector and the sweeper */
    bool kicked, is_sweeping;
    _Atomic bool ending; /* also read without it */

    bool has_sweeper; /* the connector's alone */
};

/* The status of a request for an object after an error of the file system. */
int tierce__file_status(int rc);

/* ---- names=path (file_paths.c) ---- */

struct tierce__client;

/* The store of such a client. Errors: -ENOMEM. [borrow for the call] root. */
TIERCE_MUSTUSE int tierce__file_paths_open(void **out, const char *root,
                                           tierce__file_make_vfs_fn *make_vfs);
/* Makes a copy of the file client one. */
void tierce__file_paths_use(struct tierce__client *client);

/* ---- names (file_name.c) ---- */

/* Encodes a name as a file name, or, if it is long, as several folders and a file. Returns the
 * length, which is below TIERCE__FILE_NAME_BYTES. The encoding preserves prefixes, and no result
 * begins with '~'. */
#define TIERCE__FILE_NAME_BYTES (3u * TIERCE__CONNECTOR_NAME_MAX + 64u)
size_t tierce__file_encode(char *out, const struct tierce_plugin_name *name);

/* The path of an object: root/3f/a0/NAME. The buffer has TIERCE__FILE_PATH_BYTES. Cannot fail for
 * names as connector.h has them and roots below TIERCE__FILE_ROOT_BYTES. */
void tierce__file_path(char *path, const char *root, uint32_t levels,
                       const struct tierce_plugin_name *name);

/* The folder of a path, as text of its own. */
void tierce__file_folder_of(char *folder, const char *path);

/* The object name of the path `relative`, which begins at the innermost fan-out folder
 * ("BEGIN~/REST"); false if no object has that path. `name` has TIERCE__CONNECTOR_NAME_MAX
 * bytes. */
bool tierce__file_name(char *name, size_t *bytes, const char *relative);

/* Whether the file `relative` to a store's root is an object: it lies where its name belongs. */
bool tierce__file_is_object(const char *relative, uint32_t levels);

/* Whether a file of that name, without its folder, is a temporary. */
bool tierce__file_is_temporary(const char *base);

/* ---- walking (file_walk.c) ---- */

/* Whether a path below `root` leads through folders to a file, and through no links: 0, -ENOENT,
 * TIERCE_E_UNSUPPORTED (something of others is in the way, which is logged), or a negative errno.
 */
TIERCE_MUSTUSE int tierce__file_look(const char *root, const char *path);

/* One file or folder entry below a folder; `relative` to where the walk began. Not 0 ends it. */
typedef int tierce__file_visit_fn(void *arg, const char *path, const char *relative);

/* Visits every file below `folder`, which has the given number of levels of fan-out folders, in no
 * particular order. Foreign folders are not entered, and links are not followed. Errors: those of
 * visit, negative errno (-ENOENT: no such folder), -ENOMEM. */
TIERCE_MUSTUSE int tierce__file_walk(const char *folder, uint32_t levels,
                                     tierce__file_visit_fn *visit, void *arg);

/* ---- the store (file_store.c) ---- */

/* Writes a file under another name in its folder, syncs it, gives it its name and syncs the folder.
 * After an error either all of it is stored or nothing. Errors: negative errno, -ENOMEM,
 * TIERCE_E_DEADLINE (before it got its name). */
TIERCE_MUSTUSE int tierce__file_publish(struct tierce__file_store *store, const char *path,
                                        const void *data, size_t bytes, uint64_t deadline_ns);

/* Reads how many levels the store has. Errors: negative errno (-ENOENT: not a store yet), -ENOMEM;
 * TIERCE_E_FORMAT (the folder has an invalid ~store, or one that is a link). */
TIERCE_MUSTUSE int tierce__file_read_mark(const struct tierce__file_store *store, uint32_t *levels);

/* The same, and makes a store where there is none. -ENOENT: the store was open before and has gone,
 * as when its file system is unmounted. Files that now have its path are not changed then. */
TIERCE_MUSTUSE int tierce__file_open_store(struct tierce__file_store *store, uint32_t *levels);

/* The content of a file of the store's own in its root, with at most `bytes_max` bytes; heap,
 * tierce__free. Errors: negative errno, -ENOMEM; TIERCE_E_FORMAT: larger, or no regular file. */
TIERCE_MUSTUSE int tierce__file_read_own(const struct tierce__file_store *store, char **out,
                                         const char *name, size_t bytes_max);

/* ---- sweeping (file_sweep.c) ---- */

/* Begins to sweep in the background. Errors: -EAGAIN. */
TIERCE_MUSTUSE int tierce__file_sweeper_start(struct tierce__file_store *store);

/* Sweep soon. */
void tierce__file_sweeper_kick(struct tierce__file_store *store);

/* A file system that hangs does not block the close: the sweeper is abandoned then. */
void tierce__file_sweeper_stop(struct tierce__file_store *store);

/* Ends one holder; the last one frees the store. */
void tierce__file_store_release(struct tierce__file_store *store);

#endif
