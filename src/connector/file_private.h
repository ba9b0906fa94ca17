/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_FILE_PRIVATE_H
#define TIERCE_CONNECTOR_FILE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/lock.h"
#include "connector/connector.h"
#include "connector/file.h"

#define TIERCE__FILE_LEVELS_MAX  3u
#define TIERCE__FILE_PATH_BYTES  4096u
#define TIERCE__FILE_ROOT_BYTES  1024u
#define TIERCE__FILE_STORE       "~store"
#define TIERCE__FILE_CLAIM       "~claim"
#define TIERCE__FILE_TMP         "~tmp-"
#define TIERCE__FILE_TMP_BYTES   40u
#define TIERCE__FILE_BLOCK_BYTES 4096u /* what a file takes is a multiple of it */

/* What the links of a connector and its sweeper share. */
struct tierce__file_store {
    char *root;
    struct tierce__vfs *vfs;
    uint32_t levels; /* for a new store */
    uint64_t cap_bytes, sweep_ms, tmp_ms;
    _Atomic uint64_t tmp_count; /* names of temporaries */
    uint8_t tmp_seed[8];
    /* Bytes in the folder: as the last sweep left it, by whomever; what we wrote since; what we are
     * writing now. Relaxed: an estimate. */
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

/* ---- names (file_name.c) ---- */

/* A name as a file may be called, or, where it is long, several folders and a file; returns its
 * length, which is below TIERCE__FILE_NAME_BYTES. What begins with a name begins with what that is
 * written as, and nothing begins with '~'. */
#define TIERCE__FILE_NAME_BYTES (3u * TIERCE__CONNECTOR_NAME_MAX + 64u)
size_t tierce__file_encode(char *out, const struct tierce__store_name *name);

/* Where an object lies: root/3f/a0/NAME. The buffer has TIERCE__FILE_PATH_BYTES. Cannot fail for
 * names as connector.h has them and roots below TIERCE__FILE_ROOT_BYTES. */
void tierce__file_path(char *path, const char *root, uint32_t levels,
                       const struct tierce__store_name *name);

/* The folder of a path, as text of its own. */
void tierce__file_folder_of(char *folder, const char *path);

/* The name of what lies at `relative` to its innermost fan-out folder, "BEGIN~/REST"; false if no
 * object is called so. `name` has TIERCE__CONNECTOR_NAME_MAX bytes. */
bool tierce__file_name(char *name, size_t *bytes, const char *relative);

/* ---- walking (file_walk.c) ---- */

/* One file or folder entry below a folder; `relative` to where the walk began. Not 0 ends it. */
typedef int tierce__file_visit_fn(void *arg, const char *path, const char *relative);

/* Every file below `folder`, in no order; folders are entered, links are not followed. Errors:
 * what visit returned, negative errno (-ENOENT: no such folder), -ENOMEM. */
TIERCE_MUSTUSE int tierce__file_walk(const char *folder, tierce__file_visit_fn *visit, void *arg);

/* ---- the store (file_store.c) ---- */

/* Writes a file under another name in its folder, syncs it, gives it its name and syncs the folder.
 * After an error either all of it is there or nothing. Errors: negative errno, -ENOMEM,
 * TIERCE_E_DEADLINE (before it got its name). */
TIERCE_MUSTUSE int tierce__file_publish(struct tierce__file_store *store, const char *path,
                                        const void *data, size_t bytes, uint64_t deadline_ns);

/* Reads how many levels the store has, and makes a store where there is none. Errors: negative
 * errno; TIERCE_E_FORMAT (the folder has a ~store that is none). */
TIERCE_MUSTUSE int tierce__file_open_store(struct tierce__file_store *store, uint32_t *levels);

/* ---- sweeping (file_sweep.c) ---- */

/* Begins to sweep in the background. Errors: -EAGAIN. */
TIERCE_MUSTUSE int tierce__file_sweeper_start(struct tierce__file_store *store);

/* Sweep soon. */
void tierce__file_sweeper_kick(struct tierce__file_store *store);

/* A file system that hangs does not hold up whoever closes: the sweeper is left behind then. */
void tierce__file_sweeper_stop(struct tierce__file_store *store);

/* Ends one holder; the last one frees the store. */
void tierce__file_store_release(struct tierce__file_store *store);

#endif
