/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_FILE_H
#define TIERCE_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#include <tierce/status.h>

/*
 * The content of a regular file of at most `bytes_max` bytes, with a terminating NUL; heap,
 * tierce__free. Does not hang on a FIFO. Errors, *out untouched: negative errno (-EFBIG: larger;
 * -EISDIR; -EINVAL: not a regular file), -ENOMEM. Thread: any.
 */
TIERCE_MUSTUSE int tierce__read_file(char **out, size_t *length, const char *path,
                                     size_t bytes_max);

/*
 * The same for a file with a secret: no other user may have any right to it. `why` names the file,
 * the fault and the remedy, and never holds a part of the content. *modified (may be NULL) = the
 * time of its last change. Errors, *out untouched: as tierce__read_file; TIERCE_E_CONFIG (other
 * users can read or change it). Thread: any.
 */
TIERCE_MUSTUSE int tierce__read_secret_file(char **out, size_t *length, struct timespec *modified,
                                            const char *path, size_t bytes_max, char *why,
                                            size_t why_room);

/*
 * A file that replaces another one atomically. It is written under another name in the same folder
 * and renamed at the end. Until then, and after a failure, the previous file stays unchanged.
 *
 *     rc = tierce__new_file_open(&new_file, path);
 *     fprintf(new_file.file, ...);
 *     rc = tierce__new_file_close(&new_file, true);
 *
 * A symbolic link stays and its target is replaced; permissions stay too. A path that is not a
 * regular file (a device, a pipe, standard output) is written directly, because it
 * cannot be replaced. Thread: any, one at a time for each.
 */
struct tierce__new_file {
    FILE *file;          /* NULL: none is open */
    char *path, *beside; /* heap; NULL where it is written directly */
    bool is_first;       /* it must not replace another */
};

/* Errors, *out untouched: negative errno, -ENOMEM. */
TIERCE_MUSTUSE int tierce__new_file_open(struct tierce__new_file *out, const char *path);

/* Creates a file of mode 0600, which has its name only when it is whole. Errors: as of open, and
 * -EEXIST if the path exists. Close also returns -EEXIST, if another process has created the path
 * meanwhile. */
TIERCE_MUSTUSE int tierce__new_file_open_first(struct tierce__new_file *out, const char *path);

/* Writes all bytes, in several writes if necessary. Errors: negative errno. */
TIERCE_MUSTUSE int tierce__write_whole(int fd, const void *data, size_t bytes);

/* Ends the file. If `is_good` and all was written, the new file is durable and replaces the old
 * one; otherwise it is removed. Accepts a zeroed one. Errors: negative errno (-EIO: a write failed
 * for an unknown reason). If the folder alone could not be synchronized, the new file stays, unless
 * it is one that must not replace another. */
TIERCE_MUSTUSE int tierce__new_file_close(struct tierce__new_file *file, bool is_good);

/* A folder and a name in it as one path, heap, tierce__free; NULL for no memory. Thread: any. */
char *tierce__join_path(const char *folder, const char *name);

#endif
