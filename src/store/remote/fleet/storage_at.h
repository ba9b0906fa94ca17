/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_STORAGE_AT_H
#define TIERCE_STORAGE_AT_H

#include <stdbool.h>
#include <stddef.h>

#include <tierce/status.h>

/*
 * How a storage of a manager is reached: the URL of its connector, and the names of objects there.
 * The manager's drivers delete by it, and engines read and write by it; so both mean the same
 * object.
 *
 * A storage comes from a manager, which engines trust to name folders and hosts. Its texts are not
 * trusted to be well-formed: a URL has the scheme that the type allows, and names cannot add
 * parameters.
 *
 * Thread: any.
 */

struct tierce__storage_at {
    const char *type; /* the scheme of its URIs: "file", "hf3fs", "vcns_hf3fs", "redis", "s3",
                         "mooncake", "tierce"; others have no connector */
    /* NULL is "". */
    const char *root_path;                             /* file */
    const char *mountpoint, *root_dir;                 /* hf3fs, vcns_hf3fs */
    const char *uri;                                   /* redis, s3, tierce (a node's part) */
    const char *master, *metadata, *protocol, *device; /* mooncake */
    const char *python; /* mooncake: the interpreter here that has Mooncake; not the manager's */
};

#define TIERCE__STORAGE_WHY_BYTES 256u

/* Whether its objects are files below a root folder. */
bool tierce__storage_at_has_files(const struct tierce__storage_at *at);

/* The beginning of the paths in its URIs, heap (tierce__free): "/" or the root folder, absolute,
 * with one '/' at its end. NULL: no memory. */
char *tierce__storage_at_root(const struct tierce__storage_at *at);

/*
 * The URL of its connector, heap (tierce__free): the names there are those of
 * tierce__storage_at_name. Credentials in a URI stay in it. Errors, `why` in words without
 * credentials: TIERCE_E_UNSUPPORTED (a type without a connector), TIERCE_E_CONFIG (a field that is
 * missing or invalid), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__storage_at_url(char **url, const struct tierce__storage_at *at,
                                          char why[TIERCE__STORAGE_WHY_BYTES]);

/* The name of the object with this path, which is the rest of `path` behind the root; NULL: the
 * path does not lie below the root, or has a part that is empty, "." or "..". */
const char *tierce__storage_at_name(const char *path, const char *root);

/* 129 characters and a NUL: digests of a model's family and namespace, 32 bytes each. Engines
 * register it as `extra` of a model, so a manager knows that the clients of such an instance are
 * engines, which verify what they read. */
enum { TIERCE__ENGINE_EXTRA_BYTES = 130 };
void tierce__engine_extra(char out[TIERCE__ENGINE_EXTRA_BYTES], const unsigned char *family,
                          const unsigned char *space);
bool tierce__engine_extra_is(const char *extra);

/*
 * The mark of a storage: one object beside the blocks, with the random id of the registry that
 * governs it. A storage that has lost its mark is another one than before, for example an empty
 * mount point, and one with the mark of another registry holds the blocks of others. No block has
 * this name: the parts of its path have no '~' that two hex digits do not follow.
 *
 *     tierce-pool 1 0123456789abcdef0123456789abcdef\n
 */
#define TIERCE__STORAGE_MARK       "~tierce-pool"
#define TIERCE__STORAGE_ID_HEX     32u
#define TIERCE__STORAGE_MARK_BYTES 47u

/* Whether a text is an id: 32 hex digits in lower case. */
bool tierce__storage_id_is(const char *text);
void tierce__storage_mark_write(char text[TIERCE__STORAGE_MARK_BYTES + 1], const char *id);
/* The id in a mark; false: these bytes are no mark. */
bool tierce__storage_mark_read(char id[TIERCE__STORAGE_ID_HEX + 1], const char *text, size_t bytes);

/* Removes user, password, and parameters with passwords from a URI, in place. */
void tierce__storage_at_hide(char *uri);

#endif
