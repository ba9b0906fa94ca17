/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_FILE_H
#define TIERCE_BASE_FILE_H

#include <stddef.h>

#include <tierce/status.h>

/*
 * The content of a regular file of at most `bytes_max` bytes, with a NUL behind it; heap,
 * tierce__free. Does not hang on a FIFO. Errors, *out untouched: negative errno (-EFBIG: larger;
 * -EISDIR; -EINVAL: not a regular file), -ENOMEM. Thread: any.
 */
TIERCE_MUSTUSE int tierce__read_file(char **out, size_t *length, const char *path,
                                     size_t bytes_max);

/* A folder and a name in it as one path, heap, tierce__free; NULL for no memory. Thread: any. */
char *tierce__join_path(const char *folder, const char *name);

#endif
