/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_STORE_CODED_KEYS_H
#define TIERCE_STORE_CODED_KEYS_H

#include <stdbool.h>

#include "core/chunk/coded.h"
#include "core/chunk/seal_keys.h"

/*
 * The keys of an engine, from a file or from the output of a command (core/chunk/seal_keys.h).
 *
 * The file is read again after a change. Before a chunk is encrypted, a call looks for one and
 * reads the file itself, so that the first chunk after a change uses the new key: the operator may
 * already have removed the old one. When a key is missing or wrong, a thread looks for a change,
 * once a second at most. The command runs at open, and again by the thread when a key is missing or
 * wrong, once a minute at most. A change of the file is logged. If the new keys cannot be read, the
 * old ones stay, and that is logged. A file whose last line does not end cannot be read, because it
 * may be half written.
 *
 * No call that decrypts waits for the thread: it uses the keys that are known, and later calls the
 * new ones. The thread starts when it is first needed.
 *
 * Thread: any. Open blocks while it reads the file or, up to ten seconds, while the command runs;
 * tierce__coded_keys_newest and close block while the file is read. Close ends a command that runs.
 */

#define TIERCE__CODED_KEYS_WHY_BYTES 256u

struct tierce__coded_keys;

struct tierce__coded_keys_opts {
    size_t size;         /* sizeof(struct tierce__coded_keys_opts) */
    const char *file;    /* NULL or "": none. Other users must have no right to it. */
    const char *command; /* for /bin/sh; NULL or "": none. One of the two is given. */
    uint32_t pause_ms;   /* between two looks for a missing key, for tests; 0: those above */
};

/* Errors, `why` in words: TIERCE_E_CONFIG, negative errno of the file, -ENOMEM. */
TIERCE_MUSTUSE int tierce__coded_keys_open(struct tierce__coded_keys **out,
                                           const struct tierce__coded_keys_opts *opts,
                                           char why[TIERCE__CODED_KEYS_WHY_BYTES]);
/* NULL is accepted. */
void tierce__coded_keys_close(struct tierce__coded_keys *keys);

/* Copies the key for new chunks of a namespace. The caller wipes it. False: there is none, which is
 * logged. Blocks while a changed file is read. */
bool tierce__coded_keys_newest(struct tierce__coded_keys *keys, struct tierce__seal_key *out,
                               const uint8_t ns_digest[TIERCE_HASH_BYTES]);

/* Rises with each set of keys that differs from the one before. NULL: 0. */
uint64_t tierce__coded_keys_generation(const struct tierce__coded_keys *keys);

/* Lets the thread look for a change, because a chunk is needed whose key is missing or wrong. NULL
 * is accepted. */
void tierce__coded_keys_ask(struct tierce__coded_keys *keys);

/* Derives the key of an object that was parsed; one that is not encrypted needs none. NULL: there
 * are no keys. Errors: TIERCE_E_NO_KEY: its key is missing, perhaps only until the thread has
 * looked at the file or the command has ended; TIERCE_E_FULL: no memory. A missing key is logged
 * once, and again after it was there; that of a file only after the thread has looked. `tier` is a
 * name for the log. */
TIERCE_MUSTUSE int tierce__coded_keys_unlock(struct tierce__coded_keys *keys, const char *tier,
                                             struct tierce__coded_info *info,
                                             const uint8_t *object);

/* Logs that a layer could not be decrypted although its sum is right: once for a key, until the
 * keys change. `info` is that of an object that was opened with these keys. */
void tierce__coded_keys_log_wrong(struct tierce__coded_keys *keys, const char *tier,
                                  const struct tierce__coded_info *info);

#endif
