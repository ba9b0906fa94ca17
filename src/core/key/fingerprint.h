/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KEY_FINGERPRINT_H
#define TIERCE_KEY_FINGERPRINT_H

#include <stdbool.h>
#include <sys/stat.h>

#include <tierce/key.h>

/*
 * A file whose inode changed within this time before it was read is not remembered: a second
 * change in the same tick of the file system's clock would leave its times as they are.
 */
#define TIERCE__FINGERPRINT_SETTLE_NS 2000000000ULL

/* tierce_weights_fingerprint with that time as a parameter, for tests. */
TIERCE_MUSTUSE int tierce__weights_fingerprint(char text[65], const char *model_dir,
                                               const struct tierce_fingerprint_opts *opts,
                                               uint64_t settle_ns);

/*
 * The digest cache (fingerprint_cache.c): one small file per model file, in a folder that only its
 * owner can enter. Any fault of a cache file is a miss.
 */

/* Opens the folder, made 0700 if missing; parents are not made. Returns a descriptor, or -errno:
 * -EPERM if others could write to it. */
int tierce__fingerprint_cache_open(const char *dir);

/* Whether the digest of exactly this state of a file is remembered; then it is in `digest`. */
bool tierce__fingerprint_cache_get(int dir_fd, const struct stat *file,
                                   uint8_t digest[TIERCE_HASH_BYTES]);

/* Remembers it. After a failure the file is read again the next time; failures are not reported. */
void tierce__fingerprint_cache_put(int dir_fd, const struct stat *file,
                                   const uint8_t digest[TIERCE_HASH_BYTES]);

/*
 * One process reads a file, others wait for its digest: open-file-description locks on the file
 * `.lock` of the cache, one byte for each inode. They end with the process. A lock may stand for
 * several files, and locks of one descriptor never exclude each other.
 */

/* Opens the file. -1: there is none, and nobody waits. */
int tierce__fingerprint_cache_open_locks(int dir_fd);

/* False: another process has it. Where locks do not work it is true. */
bool tierce__fingerprint_cache_lock(int locks_fd, const struct stat *file);
void tierce__fingerprint_cache_unlock(int locks_fd, const struct stat *file);

#endif
