/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The batches of a mover: a copy for each part of each block, and one result for each block.
 *
 * A batch ends when all of its copies are done and the manager has their results. While no manager
 * can be reached, the results are sent again until the lease is over, because the next leader takes
 * the session over.
 */
#include "mover/mover_private.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/log/log_repeat.h"
#include "proto/kvcm/proto.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { FINISH_MS = 2000, AGAIN_MS = 250 };

static struct tierce__mover_batch *batch_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__mover_batch, node);
}

static void let_go(struct tierce__mover_answer *answer)
{
    TIERCE_ASSERT(answer->holders > 0);
    if (--answer->holders > 0)
        return;
    tierce__list_remove(&answer->node);
    tierce__proto_free(answer->reply);
    tierce__free(answer);
}

static void free_batch(struct tierce__mover_batch *batch)
{
    TIERCE_ASSERT(batch->left == 0 && batch->mover->batch_count > 0);
    batch->mover->batch_count--;
    tierce__list_remove(&batch->node);
    tierce__proto_free(batch->call.reply);
    let_go(batch->answer);
    tierce__free(batch->results);
    tierce__free(batch);
}

/* ---- results --------------------------------------------------------------------------------- */

/* Nothing is known of a block whose copy was not done: its source stays. */
static Meta__MoveResult result_of(enum tierce__copy_result result)
{
    switch (result) {
    case TIERCE__COPY_COPIED:
        return META__MOVE_RESULT__MR_COPIED;
    case TIERCE__COPY_SOURCE_MISSING:
        return META__MOVE_RESULT__MR_SOURCE_MISSING;
    case TIERCE__COPY_SOURCE_DAMAGED:
        return META__MOVE_RESULT__MR_SOURCE_DAMAGED;
    case TIERCE__COPY_TARGET_FAILED:
        return META__MOVE_RESULT__MR_TARGET_FAILED;
    case TIERCE__COPY_UNVERIFIABLE:
        return META__MOVE_RESULT__MR_UNVERIFIABLE;
    case TIERCE__COPY_SOURCE_UNREACHABLE:
        return META__MOVE_RESULT__MR_SOURCE_UNREACHABLE;
    case TIERCE__COPY_UNDONE:
    case TIERCE__COPY_RESULTS:
        break;
    }
    return META__MOVE_RESULT__MR_UNDONE;
}

/* A block is copied if all of its parts are. A part that is missing or damaged makes the location
 * useless for every reader, so it overrides a failure that may pass. */
static void add_result(struct tierce__mover_batch *batch, const struct tierce__mover_copy *done)
{
    Meta__MoveResult *result = &batch->results[done->block], next = result_of(done->copy.result);
    bool is_loss = next == META__MOVE_RESULT__MR_SOURCE_MISSING ||
                   next == META__MOVE_RESULT__MR_SOURCE_DAMAGED;
    if (*result == META__MOVE_RESULT__MR_COPIED || is_loss)
        *result = next;
}

static void report(const struct tierce__mover_copy *done)
{
    const struct tierce__copy *copy = &done->copy;
    const Meta__MoveBatch *wire = done->batch->wire;
    char from[64], to[64];
    if (copy->result == TIERCE__COPY_COPIED || copy->result == TIERCE__COPY_UNDONE)
        return;
    tierce__text_for_message(from, sizeof(from), wire->from_storage);
    tierce__text_for_message(to, sizeof(to), wire->to_storage);
    tierce__log_repeated(TIERCE_LOG_WARN, "move_failed", "from=%s to=%s result=%s why=\"%s\"", from,
                         to, tierce__copy_result_name(copy->result), copy->why);
}

static void drop_copies(struct tierce__mover_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->copies[i].copy.arg != NULL)
            tierce__copier_drop(&batch->copies[i].copy);
    }
}

/* By tierce__copier_step, and by drop_copies. */
static void copied(struct tierce__copy *copy)
{
    struct tierce__mover_copy *done = copy->arg;
    struct tierce__mover_batch *batch = done->batch;
    TIERCE_ASSERT(batch->left > 0 && batch->mover->copy_count > 0);
    copy->arg = NULL; /* it is done */
    batch->left--;
    batch->mover->copy_count--;
    report(done);
    if (copy->result == TIERCE__COPY_UNDONE)
        copy->result = batch->trouble;
    add_result(batch, done);
    /* The others of the batch have the same storages: they would wait for them as long. */
    if (!copy->storage_failed || batch->trouble != TIERCE__COPY_UNDONE)
        return;
    batch->trouble = copy->result;
    drop_copies(batch);
}

/* ---- begin ----------------------------------------------------------------------------------- */

static size_t count_parts(const Meta__MoveBatch *wire)
{
    size_t count = 0;
    for (size_t i = 0; i < wire->n_moves; i++)
        count += wire->moves[i]->n_parts;
    return count;
}

/* Without memory for it, the batch ends at the manager by its time. */
static void begin_batch(struct tierce__mover *mover, struct tierce__mover_answer *answer,
                        const Meta__MoveBatch *wire, uint64_t lease_ns)
{
    size_t count = count_parts(wire), at = 0;
    struct tierce__mover_batch *batch =
        tierce__calloc(1, sizeof(*batch) + count * sizeof(batch->copies[0]));
    Meta__MoveResult *results = tierce__calloc(wire->n_moves + 1, sizeof(*results));
    if (batch == NULL || results == NULL) {
        tierce__free(batch);
        tierce__free(results);
        return;
    }
    batch->mover = mover;
    batch->answer = answer;
    batch->wire = wire;
    batch->lease_ns = lease_ns;
    batch->begun_ns = tierce__now_ns();
    batch->results = results;
    batch->count = batch->left = count;
    answer->holders++;
    tierce__list_push_back(&mover->batches, &batch->node);
    mover->batch_count++;
    mover->copy_count += count;
    for (size_t i = 0; i < wire->n_moves; i++) {
        const Meta__BlockMove *move = wire->moves[i];
        results[i] = move->n_parts > 0 ? META__MOVE_RESULT__MR_COPIED
                                       : META__MOVE_RESULT__MR_SOURCE_UNREACHABLE;
        for (size_t p = 0; p < move->n_parts; p++) {
            struct tierce__mover_copy *it = &batch->copies[at++];
            it->batch = batch;
            it->block = i;
            it->copy = (struct tierce__copy){.block_key = move->block_key,
                                             .spec = move->parts[p]->location_spec_name,
                                             .from = move->parts[p]->from_uri,
                                             .to = move->parts[p]->to_uri,
                                             .put_until_ns = lease_ns,
                                             .done = copied,
                                             .arg = it};
            tierce__copier_add(mover->copier, &it->copy);
        }
    }
}

/* Batches whose storages could not be learnt fail by themselves. */
static void learn_storages(struct tierce__mover *mover)
{
    char why[TIERCE__FLEET_WHY_BYTES] = "no memory";
    char *storages = tierce__mover_storages(&mover->answers);
    if (storages == NULL || tierce__copier_set_storages(mover->copier, storages, why) != 0)
        tierce__log_repeated(TIERCE_LOG_WARN, "mover_storages", "why=\"%s\"", why);
    tierce__free(storages);
}

void tierce__mover_begin(struct tierce__mover *mover, ProtobufCMessage *reply, uint64_t sent_ns)
{
    const Meta__TakeMovesResponse *taken = (const Meta__TakeMovesResponse *)reply;
    struct tierce__mover_answer *answer = tierce__calloc(1, sizeof(*answer));
    if (answer == NULL) {
        tierce__proto_free(reply);
        return;
    }
    *answer = (struct tierce__mover_answer){.reply = reply, .holders = 1};
    tierce__list_init(&answer->node);
    tierce__list_push_front(&mover->answers, &answer->node);
    if (taken->n_batches > 0)
        learn_storages(mover);
    uint64_t lease_ns = sent_ns + mover->lease_ms * TIERCE__MS_NS;
    for (size_t i = 0; i < taken->n_batches; i++) {
        if (mover->batch_count < TIERCE__MOVER_HELD_MAX)
            begin_batch(mover, answer, taken->batches[i], lease_ns);
    }
    let_go(answer);
}

/* ---- renewals -------------------------------------------------------------------------------- */

static void lose(struct tierce__mover_batch *batch, const char *why)
{
    char instance[64];
    if (batch->is_lost)
        return;
    batch->is_lost = true;
    tierce__text_for_message(instance, sizeof(instance), batch->wire->instance_id);
    tierce__log_repeated(TIERCE_LOG_WARN, "moves_lost", "instance=%s why=\"%s\"", instance, why);
    tierce__lock_take(&batch->mover->lock);
    batch->mover->state.lost++;
    tierce__lock_drop(&batch->mover->lock);
    drop_copies(batch);
}

static bool is_named(const Meta__TakeMovesResponse *reply, const char *session)
{
    for (size_t i = 0; i < reply->n_lost; i++) {
        if (strcmp(reply->lost[i], session) == 0)
            return true;
    }
    return false;
}

void tierce__mover_renewed(struct tierce__mover *mover, const Meta__TakeMovesResponse *reply,
                           uint64_t sent_ns)
{
    uint64_t lease_ns = sent_ns + mover->lease_ms * TIERCE__MS_NS;
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &mover->batches) {
        struct tierce__mover_batch *batch = batch_of(node);
        if (batch->is_finishing) /* it may have ended at the manager by that */
            continue;
        if (is_named(reply, batch->wire->write_session_id)) {
            lose(batch, "the manager has ended the batch");
            continue;
        }
        batch->lease_ns = lease_ns;
        for (size_t i = 0; i < batch->count; i++)
            batch->copies[i].copy.put_until_ns = lease_ns;
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static void finished(struct tierce__mover_batch *batch)
{
    const Meta__FinishMovesResponse *reply = (const Meta__FinishMovesResponse *)batch->call.reply;
    const Meta__MoveBatch *wire = batch->wire;
    struct tierce__mover *mover = batch->mover;
    char instance[64], from[64], to[64];
    uint64_t bytes = 0, moved = reply->moved_blocks > 0 ? (uint64_t)reply->moved_blocks : 0;
    for (size_t i = 0; i < batch->count; i++)
        bytes +=
            batch->copies[i].copy.result == TIERCE__COPY_COPIED ? batch->copies[i].copy.bytes : 0;
    tierce__text_for_message(instance, sizeof(instance), wire->instance_id);
    tierce__text_for_message(from, sizeof(from), wire->from_storage);
    tierce__text_for_message(to, sizeof(to), wire->to_storage);
    tierce__log(TIERCE_LOG_INFO, "moved",
                "instance=%s from=%s to=%s blocks=%zu moved=%llu bytes=%llu ms=%llu", instance,
                from, to, wire->n_moves, (unsigned long long)moved, (unsigned long long)bytes,
                (unsigned long long)((tierce__now_ns() - batch->begun_ns) / TIERCE__MS_NS));
    tierce__lock_take(&mover->lock);
    mover->state.finished++;
    mover->state.moved_blocks += moved;
    tierce__lock_drop(&mover->lock);
}

/* A manager of the version before rejects MR_UNDONE, and then all results of the batch. Its blocks
 * rest there for a minute. False: there is nothing to replace. */
static bool replace_undone(struct tierce__mover_batch *batch)
{
    bool has = false;
    for (size_t i = 0; i < batch->wire->n_moves; i++) {
        if (batch->results[i] != META__MOVE_RESULT__MR_UNDONE)
            continue;
        batch->results[i] = META__MOVE_RESULT__MR_SOURCE_UNREACHABLE;
        has = true;
    }
    return has;
}

static bool may_pass(int status)
{
    return status == TIERCE_E_DOWN || status == TIERCE_E_DEADLINE || status == TIERCE_E_LIMIT ||
           status == -ENOMEM;
}

static void has_finished(struct tierce__fleet_call *call)
{
    struct tierce__mover_batch *batch = call->arg;
    batch->is_finishing = false;
    if (call->status == 0) {
        finished(batch);
        free_batch(batch);
    } else if (may_pass(call->status)) {
        batch->again_ns = tierce__deadline_in_ms(AGAIN_MS);
    } else if (call->status == TIERCE_E_ARGUMENT && replace_undone(batch)) {
        batch->again_ns = tierce__now_ns();
    } else {
        lose(batch, call->why);
    }
}

static void finish(struct tierce__mover_batch *batch)
{
    Meta__FinishMovesRequest request = META__FINISH_MOVES_REQUEST__INIT;
    request.instance_id = batch->wire->instance_id;
    request.write_session_id = batch->wire->write_session_id;
    request.results = batch->results;
    request.n_results = batch->wire->n_moves;
    batch->is_finishing = true;
    batch->call = (struct tierce__fleet_call){.method = "FinishMoves",
                                              .request = &request.base,
                                              .answers = &meta__finish_moves_response__descriptor,
                                              .deadline_ns = tierce__deadline_in_ms(FINISH_MS),
                                              .repeats = true, /* a session ends once */
                                              .done = has_finished,
                                              .arg = batch};
    tierce__fleet_manager_start(batch->mover->manager, &batch->call);
}

uint64_t tierce__mover_end_batches(struct tierce__mover *mover)
{
    uint64_t until_ns = TIERCE__DEADLINE_NEVER, now_ns = tierce__now_ns();
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &mover->batches) {
        struct tierce__mover_batch *batch = batch_of(node);
        if (batch->is_finishing)
            continue;
        if (batch->lease_ns <= now_ns)
            lose(batch, "no manager has renewed it in time");
        if (batch->left == 0 && batch->is_lost)
            free_batch(batch);
        else if (batch->left == 0 && batch->again_ns <= now_ns)
            finish(batch);
        else
            until_ns = batch->left == 0 && batch->again_ns < until_ns ? batch->again_ns : until_ns;
    }
    return until_ns;
}

void tierce__mover_drop_all(struct tierce__mover *mover)
{
    TIERCE__LIST_FOR_EACH (node, &mover->batches)
        drop_copies(batch_of(node));
}

void tierce__mover_free_all(struct tierce__mover *mover)
{
    while (!tierce__list_empty(&mover->batches))
        free_batch(batch_of(mover->batches.next));
}
