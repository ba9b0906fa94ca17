/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_STORING_H
#define TIERCE_ENGINE_STORING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/threads/lock.h"
#include "core/key/key.h"

/*
 * The chunks that are being stored, so that only one request stores a chunk at a time.
 *
 *     if (tierce__claim_take(&storing, &claim, &key))      // else another store has it
 *         ... gather, publish ...
 *     tierce__claim_end(&storing, &claim, &ready);         // ready: those that waited for it
 *
 * A store whose prefix another request is still storing is parked with that request's claim. It
 * continues when the claim ends, with or without success, and then checks whether its prefix is
 * stored. A claim ends after its chunk was published, so a thread that does not find the claim
 * finds the chunk, if it was stored. A store is parked only with a chunk before its own, and keys
 * are chained, so there is no circular wait.
 *
 * Thread: any; one lock of class STORING inside.
 */

#define TIERCE__STORING_BINS 256u

struct tierce__storing {
    struct tierce__lock lock;
    struct tierce__list bins[TIERCE__STORING_BINS];
};

struct tierce__claim {
    struct tierce__list node; /* on no list: it has ended */
    struct tierce__key key;
    struct tierce__list parked;
};

/* A store that waits. */
struct tierce__parked {
    struct tierce__list node;
    uint64_t deadline_ns;
};

void tierce__storing_init(struct tierce__storing *storing);
/* No claim may exist. */
void tierce__storing_fini(struct tierce__storing *storing);

/* [out] claim, ended if it is another's: then false. */
TIERCE_MUSTUSE bool tierce__claim_take(struct tierce__storing *storing, struct tierce__claim *claim,
                                       const struct tierce__key *key);

/* Ends the claim, if it has not ended yet, and appends the requests parked with it to `ready`. */
void tierce__claim_end(struct tierce__storing *storing, struct tierce__claim *claim,
                       struct tierce__list *ready);

/* Lets `parked` wait for the claim of a key to end. True: from now on another thread may continue
 * `parked`. False: the key is not claimed. */
TIERCE_MUSTUSE bool tierce__claim_park(struct tierce__storing *storing,
                                       const struct tierce__key *key,
                                       struct tierce__parked *parked);

/* Appends those whose deadline has passed to `late`. */
void tierce__storing_expire(struct tierce__storing *storing, uint64_t now_ns,
                            struct tierce__list *late);

#endif
