/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_HANDOVER_OFFERS_H
#define TIERCE_HANDOVER_OFFERS_H

#include <pthread.h>

#include "base/list.h"
#include "base/threads/deadlines.h"
#include "base/threads/lock.h"
#include "engine/handover/handover.h"
#include "store/transfer/transfer.h"

/*
 * The offers of an engine: their tokens, the chunks that they pin, and the readers that wait until
 * an offer is open. The functions of handover.h with the same last words say what they do.
 *
 * An offer is an object of the transfer server, too: its name is the token, and its bytes are the
 * number of tokens that its chunks restore (u64, little-endian). A read of an offer that is not
 * open yet is answered when it opens, and at its deadline at the latest: a thread answers late
 * ones.
 *
 * Thread: any. No answer is given under the lock.
 */

#define TIERCE__OFFER_BYTES 8u /* no chunk is as short */

struct tierce__offers {
    struct tierce_engine *engine;
    struct tierce__lock lock; /* HANDOVER */
    struct tierce__list offers;
    size_t count;
    struct tierce__deadlines dues; /* of the reads that wait */
    struct tierce__cond changed;   /* a read waits, or is_ending */
    bool is_ending;
    pthread_t thread;
};

/* Errors: negative errno (no thread). */
TIERCE_MUSTUSE int tierce__offers_init(struct tierce__offers *offers, struct tierce_engine *engine);
/* Ends all. No read may begin. */
void tierce__offers_fini(struct tierce__offers *offers);
/* Ends offers whose time is over, or all: their pins, and the reads that wait for them. */
void tierce__offers_expire(struct tierce__offers *offers, bool all);
size_t tierce__offers_count(struct tierce__offers *offers);

TIERCE_MUSTUSE int tierce__offers_expect(struct tierce__offers *offers, const char *token,
                                         uint32_t ms);
TIERCE_MUSTUSE int64_t tierce__offers_pin(struct tierce__offers *offers, struct tierce_view *view,
                                          const struct tierce_chain *chain, uint64_t to_block,
                                          const char *token);
TIERCE_MUSTUSE int tierce__offers_open(struct tierce__offers *offers, const char *token,
                                       uint64_t tokens);

/* Whether a client with this token may read. */
bool tierce__offers_admit(struct tierce__offers *offers, const char *token, size_t bytes);
/* Releases the offer. False if there is none. */
bool tierce__offers_end(struct tierce__offers *offers, const char *token, size_t bytes);

/* A read of the object `call->name`. False, and the call is not answered: the name is too long for
 * a token. A read that waits is answered TIERCE_E_DEADLINE when its time is over. */
bool tierce__offers_find(struct tierce__offers *offers, struct tierce__keeper_call *call);
/* Frees the lease of such a read. False: it is another's. */
bool tierce__offers_release(struct tierce__keeper_lease *lease);

#endif
