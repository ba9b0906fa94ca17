/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MOVER_PRIVATE_H
#define TIERCE_MOVER_PRIVATE_H

#include "base/threads/lock.h"
#include "mover/mover.h"
#include "net/host_id.h"
#include "proto/kvcm/meta_service.pb-c.h"

#include <pthread.h>
#include <stdatomic.h>

/* The parts of mover.c and mover_batch.c. Everything belongs to the mover's thread, except where it
 * says otherwise. */

#define TIERCE__MOVER_HELD_MAX 128u /* batches; a batch has at most 64 blocks */

struct tierce__mover {
    struct tierce__fleet_manager *manager;
    struct tierce__copier *copier;
    char *name;
    char host_id[TIERCE__HOST_ID_BYTES];
    uint64_t memory_bytes;

    pthread_t thread;
    _Atomic bool is_ending; /* release in stop, acquire in the thread: end_ns is set before */
    uint64_t end_ns;

    struct tierce__list batches, answers;
    size_t batch_count, copy_count; /* copies that are not done */

    /* TakeMoves. */
    struct tierce__fleet_call take;
    bool is_taking;
    uint64_t sent_ns;  /* when the last one was sent */
    uint64_t lease_ms; /* as the manager told last */
    uint64_t again_ns; /* not before */

    struct tierce__lock lock; /* MOVER: below; any thread */
    struct tierce__mover_state state;
};

/* A batch, and the answer that it came with. */
struct tierce__mover_batch {
    struct tierce__list node; /* of the mover's */
    struct tierce__mover *mover;
    struct tierce__mover_answer *answer;
    const Meta__MoveBatch *wire; /* of the answer */
    uint64_t lease_ns;           /* it may end at the manager from then on */
    uint64_t begun_ns;
    bool is_lost; /* it has ended at the manager */
    /* How a storage failed: copies that have not begun are not tried. UNDONE: none has failed. */
    enum tierce__copy_result trouble;

    /* FinishMoves. */
    struct tierce__fleet_call call;
    bool is_finishing;
    uint64_t again_ns;
    Meta__MoveResult *results; /* of each block */

    size_t left, count; /* copies */
    struct tierce__mover_copy {
        struct tierce__copy copy;
        struct tierce__mover_batch *batch;
        size_t block;
    } copies[];
};

/* One answer of TakeMoves; its batches point to it. */
struct tierce__mover_answer {
    struct tierce__list node; /* of the mover's, the newest first */
    ProtobufCMessage *reply;  /* owned */
    size_t holders;
};

/* Begins the batches of an answer, which it takes over. `sent_ns`: when it was asked for. */
void tierce__mover_begin(struct tierce__mover *mover, ProtobufCMessage *reply, uint64_t sent_ns);
/* All batches were renewed by a call sent then, except the lost ones. */
void tierce__mover_renewed(struct tierce__mover *mover, const Meta__TakeMovesResponse *reply,
                           uint64_t sent_ns);
/* Ends what is done, and gives up what is too late. Returns when it is to be called again. */
uint64_t tierce__mover_end_batches(struct tierce__mover *mover);
/* Drops all copies that have not begun to write. */
void tierce__mover_drop_all(struct tierce__mover *mover);
/* Frees all batches, whose copies are done. */
void tierce__mover_free_all(struct tierce__mover *mover);

/* The storages of all answers whose batches are in progress, as one list; those of a newer answer
 * count. Heap (tierce__free). NULL: no memory. */
char *tierce__mover_storages(const struct tierce__list *answers);

#endif
