/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches in a cluster. Records have KVCM's keys, which are in any slot; all other data of a space
 * is in one slot, that of its metadata: its home. A batch takes three steps:
 *
 *   commit   one script at home checks fence and era and writes everything but the records: keys in
 *            their order, notes, counters, and a journal entry with the changes to the records.
 *            From then on the batch is committed.
 *   redo     the records, one script each, in a pipeline to every node.
 *   finish   the next commit removes the entry from the journal, so that the journal never has two
 *            entries for the same key.
 *
 * If a step fails, nothing more is read or written until the journal has been replayed ("settled").
 * Home begins a new era, which rejects commits sent in the previous era, and returns the remaining
 * entries. Their records are written again, each with a guard in its slot that rejects records sent
 * in an earlier era. The outcome of every commit is then known, and late messages have no effect. A
 * new leader begins in the same way.
 *
 * Data that Redis loses in a failover is lost (docs/inside/design/003-manager.md). If home has lost
 * an acknowledged batch, or an entry is damaged, keys and counters are rebuilt from the records.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log/log.h"
#include "manager/lease/lease.h"
#include "manager/meta/redis/meta_redis_private.h"
#include "net/redis/resp_cluster.h"

enum {
    REDO_KEYS = 512, /* of one pipeline */
    ATTEMPTS = 4,    /* for a commit whose era ended, and for an era that is too low */
};

/* ---- records -------------------------------------------------------------------------------- */

static void add_redo(struct tierce__resp_pipeline *batch, struct tierce__redis_space *space,
                     const struct tierce__redis_redo *redo, size_t i, const char *era, bool raises)
{
    TIERCE_DASSERT(i < redo->count && redo->put_count <= redo->count);
    const char *keys[2];
    keys[0] = tierce__resp_pipeline_textf(batch, "%s%" PRId64, space->keys->data, redo->keys[i]);
    keys[1] = tierce__resp_pipeline_textf(
        batch, "kvcache:tierce:{%" PRIu32 "}%s",
        tierce__resp_slot_tag(tierce__resp_slot(keys[0], strlen(keys[0]))), space->keys->guard);
    tierce__redis_script(space->redis, batch, TIERCE__REDIS_REDO, keys, 2);
    tierce__resp_pipeline_add_text(batch, era);
    tierce__resp_pipeline_add_text(batch, raises ? "1" : "0");
    for (size_t f = 0; i < redo->put_count && f < TIERCE__REDIS_PUT_FIELDS; f++)
        tierce__resp_pipeline_add(batch, redo->texts[i * TIERCE__REDIS_PUT_FIELDS + f],
                                  redo->bytes[i * TIERCE__REDIS_PUT_FIELDS + f]);
}

/* Writes the records. -ESTALE: another writer began a new era, and *guard is a guard of it; other
 * errors come from the store. */
static int redo_records(struct tierce__redis_space *space, const struct tierce__redis_redo *redo,
                        const char *era, bool raises, uint64_t *guard)
{
    TIERCE_DASSERT(era[0] != '\0' && redo->put_count <= redo->count);
    static const size_t code_bytes = sizeof("STALE ") - 1;
    int rc = 0;
    for (size_t done = 0, n; rc == 0 && done < redo->count; done += n) {
        struct tierce__resp_pipeline batch;
        n = redo->count - done < REDO_KEYS ? redo->count - done : REDO_KEYS;
        tierce__resp_pipeline_begin(&batch, space->redis->pool);
        for (size_t i = 0; i < n; i++)
            add_redo(&batch, space, redo, done + i, era, raises);
        rc = tierce__redis_run(&batch);
        if (rc == -ESTALE)
            *guard = batch.error->bytes > code_bytes
                         ? strtoull(batch.error->text + code_bytes, NULL, 10)
                         : 0;
        tierce__resp_pipeline_end(&batch);
    }
    return rc;
}

/* ---- the journal ---------------------------------------------------------------------------- */

/* Home's answer at the beginning of an era. */
struct cluster_settling {
    struct tierce__arena *arena;
    char era[TIERCE__REDIS_TOKEN_BYTES + 1];
    uint64_t last;                      /* number of the last batch; 0 */
    struct tierce__resp_value *entries; /* [2 * count] numbers and entries */
    size_t count;
};

static int take_settling(struct cluster_settling *settling, const struct tierce__resp_value *value)
{
    TIERCE_DASSERT(settling->count == 0);
    const struct tierce__resp_value *items = value->items;
    if (value->type != TIERCE__RESP_ARRAY || value->count != 3 ||
        items[0].type != TIERCE__RESP_STRING || items[0].bytes != TIERCE__REDIS_TOKEN_BYTES ||
        items[1].type != TIERCE__RESP_STRING || items[2].type != TIERCE__RESP_ARRAY)
        return TIERCE_E_FORMAT;
    memcpy(settling->era, items[0].text, sizeof(settling->era));
    settling->last = strtoull(items[1].text, NULL, 10);
    settling->count = items[2].count / 2;
    settling->entries =
        tierce__arena_calloc(settling->arena, 2 * settling->count + 1, sizeof(*settling->entries));
    for (size_t i = 0; settling->entries != NULL && i < 2 * settling->count; i++) {
        struct tierce__resp_value *copy = &settling->entries[i];
        *copy = items[2].items[i];
        if (copy->type != TIERCE__RESP_STRING)
            return TIERCE_E_FORMAT;
        copy->text = tierce__arena_copy(settling->arena, copy->text, copy->bytes);
        if (copy->text == NULL)
            return -ENOMEM;
    }
    return settling->entries != NULL ? 0 : -ENOMEM;
}

static int begin_era(struct tierce__redis_space *space, struct cluster_settling *settling)
{
    struct tierce__redis_ledger *ledger = &space->ledger;
    const char *const keys[] = {space->keys->metadata, space->keys->journal};
    struct tierce__resp_pipeline batch;
    uint64_t era = tierce__lease_wall_us();
    tierce__lock_assert_held(&ledger->lock);
    if (era < ledger->era_min)
        era = ledger->era_min;
    TIERCE_DASSERT(era >= ledger->era_min);
    tierce__resp_pipeline_begin(&batch, space->redis->pool);
    tierce__redis_script(space->redis, &batch, TIERCE__REDIS_SETTLE, keys, 2);
    tierce__resp_pipeline_addf(&batch, "%020" PRIu64, era);
    tierce__resp_pipeline_addf(&batch, "%" PRIu64, ledger->last);
    int rc = tierce__redis_run(&batch);
    if (rc == 0)
        rc = take_settling(settling, &batch.values[0]);
    tierce__resp_pipeline_end(&batch);
    return rc;
}

/* Writes the records of all entries. */
static int redo_journal(struct tierce__redis_space *space, struct cluster_settling *settling)
{
    tierce__lock_assert_held(&space->ledger.lock);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < settling->count; i++) {
        struct tierce__redis_redo redo;
        uint64_t guard = 0;
        const struct tierce__resp_value *number = &settling->entries[2 * i], *entry = number + 1;
        rc = tierce__redis_redo_parse(&redo, settling->arena, entry->text, entry->bytes);
        if (rc == TIERCE_E_FORMAT) {
            tierce__log(TIERCE_LOG_ERROR, "meta_redis_journal_damaged", "journal=%s batch=%s",
                        space->keys->journal, number->text);
            space->ledger.is_wrong = true;
            rc = 0;
            continue;
        }
        if (rc == 0)
            rc = redo_records(space, &redo, settling->era, true, &guard);
        if (rc == -ESTALE)
            space->ledger.era_min = guard + 1;
    }
    return rc;
}

static int empty_journal(struct tierce__redis_space *space, const struct cluster_settling *settling)
{
    tierce__lock_assert_held(&space->ledger.lock);
    struct tierce__resp_pipeline batch;
    if (settling->count == 0)
        return 0;
    tierce__resp_pipeline_begin(&batch, space->redis->pool);
    TIERCE__RESP_COMMAND(&batch, "HDEL", space->keys->journal);
    for (size_t i = 0; i < settling->count; i++)
        tierce__resp_pipeline_add(&batch, settling->entries[2 * i].text,
                                  settling->entries[2 * i].bytes);
    return tierce__redis_do(&batch);
}

/* Batches that home has lost include their keys and counters; their records still exist. */
static void look_for_loss(struct tierce__redis_space *space,
                          const struct cluster_settling *settling)
{
    tierce__lock_assert_held(&space->ledger.lock);
    struct tierce__redis_ledger *ledger = &space->ledger;
    if (settling->last >= ledger->last)
        return;
    tierce__log(TIERCE_LOG_ERROR, "meta_redis_lost", "space=%s batches=%" PRIu64,
                space->keys->metadata, ledger->last - settling->last);
    ledger->is_wrong = true;
    ledger->last = 0; /* numbering continues from home's answer */
}

/* The ledger's lock is held, so that no commit runs. */
static int work_off(struct tierce__redis_space *space)
{
    tierce__lock_assert_held(&space->ledger.lock);
    TIERCE_ASSERT(space->redis->is_cluster);
    struct tierce__redis_ledger *ledger = &space->ledger;
    struct tierce__arena arena = {0};
    struct cluster_settling settling = {.arena = &arena};
    uint32_t fences = atomic_load_explicit(&space->redis->fences, memory_order_acquire);
    int rc = tierce__redis_raise_fence(space->redis);
    if (rc == 0)
        rc = begin_era(space, &settling);
    if (rc == 0) {
        look_for_loss(space, &settling);
        rc = redo_journal(space, &settling);
    }
    if (rc == 0)
        rc = empty_journal(space, &settling);
    if (rc == 0) {
        memcpy(ledger->era, settling.era, sizeof(ledger->era));
        ledger->finished_count = 0;
        atomic_store_explicit(&ledger->fences, fences, memory_order_release);
        atomic_store_explicit(&ledger->is_unsettled, false, memory_order_release);
        if (ledger->is_wrong)
            rc = tierce__redis_import(space, true);
        ledger->is_wrong = ledger->is_wrong && rc < 0;
    }
    if (rc < 0)
        atomic_store_explicit(&ledger->is_unsettled, true, memory_order_release);
    tierce__arena_clear(&arena);
    return rc;
}

/* Returns whether the journal is settled. Acquire: pairs with the thread that replayed it. */
static bool is_settled(struct tierce__redis_space *space)
{
    return !atomic_load_explicit(&space->ledger.is_unsettled, memory_order_acquire) &&
           atomic_load_explicit(&space->ledger.fences, memory_order_acquire) ==
               atomic_load_explicit(&space->redis->fences, memory_order_acquire);
}

int tierce__redis_settle(struct tierce__redis_space *space)
{
    if (!space->redis->is_cluster || is_settled(space))
        return 0;
    int rc = 0;
    tierce__lock_take(&space->ledger.lock);
    for (int i = 0; i < ATTEMPTS && rc == (i == 0 ? 0 : -ESTALE) && !is_settled(space); i++)
        rc = work_off(space);
    tierce__lock_drop(&space->ledger.lock);
    return rc == -ESTALE ? TIERCE_E_DOWN : rc;
}

static void unsettle(struct tierce__redis_space *space)
{
    atomic_store_explicit(&space->ledger.is_unsettled, true, memory_order_release);
}

void tierce__redis_forget(struct tierce__redis_space *space)
{
    tierce__lock_take(&space->ledger.lock);
    space->ledger.last = 0;
    space->ledger.is_wrong = false;
    space->ledger.finished_count = 0;
    unsettle(space);
    tierce__lock_drop(&space->ledger.lock);
}

/* ---- commits -------------------------------------------------------------------------------- */

/* A copy of the ledger's values that a commit needs. */
struct commit {
    char era[TIERCE__REDIS_TOKEN_BYTES + 1];
    uint64_t last;
    uint64_t finished[TIERCE__REDIS_FINISHED_MAX];
    size_t finished_count;
    uint64_t number; /* of the batch, from home */
};

static void look_at_ledger(struct tierce__redis_space *space, struct commit *commit)
{
    struct tierce__redis_ledger *ledger = &space->ledger;
    tierce__lock_take(&ledger->lock);
    memcpy(commit->era, ledger->era, sizeof(commit->era));
    TIERCE_DASSERT(strlen(commit->era) == TIERCE__REDIS_TOKEN_BYTES);
    commit->last = ledger->last;
    commit->finished_count = ledger->finished_count;
    TIERCE_DASSERT(commit->finished_count <= TIERCE__REDIS_FINISHED_MAX);
    memcpy(commit->finished, ledger->finished, sizeof(commit->finished));
    tierce__lock_drop(&ledger->lock);
}

/* The commit removed the finished entries of other batches and returned its own number. */
static void note_commit(struct tierce__redis_space *space, const struct commit *commit)
{
    TIERCE_DASSERT(commit->number > 0);
    struct tierce__redis_ledger *ledger = &space->ledger;
    size_t kept = 0;
    tierce__lock_take(&ledger->lock);
    for (size_t i = 0; i < ledger->finished_count; i++) {
        bool is_gone = false;
        for (size_t k = 0; k < commit->finished_count && !is_gone; k++)
            is_gone = commit->finished[k] == ledger->finished[i];
        if (!is_gone)
            ledger->finished[kept++] = ledger->finished[i];
    }
    TIERCE_DASSERT(kept <= ledger->finished_count);
    TIERCE_DASSERT(kept + commit->finished_count >= ledger->finished_count);
    ledger->finished_count = kept;
    if (commit->number <= commit->last) /* home has lost batches that it acknowledged */
        unsettle(space);
    else if (commit->number > ledger->last)
        ledger->last = commit->number;
    tierce__lock_drop(&ledger->lock);
}

static void finish(struct tierce__redis_space *space, uint64_t number)
{
    TIERCE_DASSERT(number > 0);
    struct tierce__redis_ledger *ledger = &space->ledger;
    tierce__lock_take(&ledger->lock);
    if (ledger->finished_count < TIERCE__REDIS_FINISHED_MAX)
        ledger->finished[ledger->finished_count++] = number;
    else
        unsettle(space); /* which empties the journal */
    tierce__lock_drop(&ledger->lock);
}

/* Another writer ended the era unnoticed. */
static void leave_era(struct tierce__redis_space *space, const char *era)
{
    TIERCE_DASSERT(strlen(era) == TIERCE__REDIS_TOKEN_BYTES);
    tierce__lock_take(&space->ledger.lock);
    if (strcmp(space->ledger.era, era) == 0)
        unsettle(space);
    tierce__lock_drop(&space->ledger.lock);
}

static void add_members(struct tierce__resp_pipeline *command, const int64_t *keys, size_t count)
{
    tierce__resp_pipeline_addf(command, "%zu", count);
    for (size_t i = 0; i < count; i++)
        tierce__resp_pipeline_addf(command, "%016" PRIx64, tierce__meta_mix(keys[i]));
}

static void start_commit(struct tierce__resp_pipeline *command, struct tierce__redis_space *space)
{
    enum { OTHERS = 3, KEYS = OTHERS + TIERCE__NOTE_KINDS - 1 };
    const char *keys[KEYS] = {space->keys->metadata, space->keys->keys, space->keys->journal};
    for (unsigned kind = 1; kind < TIERCE__NOTE_KINDS; kind++)
        keys[OTHERS + kind - 1] =
            tierce__resp_pipeline_textf(command, "%s%u", space->keys->notes, kind);
    tierce__redis_script(space->redis, command, TIERCE__REDIS_COMMIT, keys, KEYS);
}

static int run_commit(struct tierce__redis_space *space, struct commit *commit,
                      struct tierce__resp_pipeline *command)
{
    if (command->rc < 0)
        return command->rc;
    int rc = tierce__redis_run(command);
    if (rc == 0 &&
        (command->values[0].type != TIERCE__RESP_INTEGER || command->values[0].integer <= 0))
        rc = TIERCE_E_FORMAT;
    if (rc == 0)
        commit->number = (uint64_t)command->values[0].integer;
    if (rc < 0 && rc != -ESTALE && rc != TIERCE_E_REFUSED) {
        unsettle(space);
        return rc == -ENOMEM ? -EIO : rc; /* the answer may have been lost for lack of memory */
    }
    return rc;
}

/* -ESTALE: nothing was done, because the era is over. */
static int send_commit(struct tierce__redis_space *space, struct commit *commit,
                       const struct tierce__meta_batch *batch,
                       const struct tierce__redis_redo *redo)
{
    TIERCE_DASSERT(commit->finished_count <= TIERCE__REDIS_FINISHED_MAX);
    TIERCE_DASSERT(redo->put_count <= redo->count);
    const char *entry = "";
    size_t entry_bytes = 0;
    struct tierce__resp_pipeline command;
    tierce__resp_pipeline_begin(&command, space->redis->pool);
    int rc =
        redo->count > 0 ? tierce__redis_redo_print(redo, command.arena, &entry, &entry_bytes) : 0;
    if (rc == 0) {
        start_commit(&command, space);
        tierce__resp_pipeline_add_text(&command, commit->era);
        tierce__resp_pipeline_add(&command, entry, entry_bytes);
        tierce__resp_pipeline_addf(&command, "%zu", commit->finished_count);
        for (size_t i = 0; i < commit->finished_count; i++)
            tierce__resp_pipeline_addf(&command, "%" PRIu64, commit->finished[i]);
        add_members(&command, redo->keys, redo->put_count);
        add_members(&command, redo->keys + redo->put_count, redo->count - redo->put_count);
        tierce__redis_add_notes(&command, batch);
        tierce__redis_add_counters(&command, batch);
        rc = run_commit(space, commit, &command);
    }
    tierce__resp_pipeline_end(&command);
    return rc;
}

int tierce__redis_commit(struct tierce__redis_space *space, const struct tierce__meta_batch *batch)
{
    TIERCE_ASSERT(space->redis->is_cluster);
    struct tierce__arena arena = {0};
    struct tierce__redis_redo redo;
    struct commit commit = {.number = 0};
    uint64_t guard;
    int rc = tierce__redis_redo_make(&redo, space, batch, &arena);
    for (int i = 0; i < ATTEMPTS && rc == (i == 0 ? 0 : -ESTALE); i++) {
        rc = tierce__redis_settle(space);
        if (rc < 0)
            break;
        look_at_ledger(space, &commit);
        rc = send_commit(space, &commit, batch, &redo);
        if (rc != -ESTALE)
            break;
        leave_era(space, commit.era);
    }
    if (rc == 0) {
        note_commit(space, &commit);
        /* The batch is committed even if writing its records fails now: they are written before the
         * next call is answered. */
        if (redo.count > 0 && redo_records(space, &redo, commit.era, false, &guard) < 0)
            unsettle(space);
        else if (redo.count > 0)
            finish(space, commit.number);
    }
    tierce__arena_clear(&arena);
    return rc == -ESTALE ? TIERCE_E_DOWN : rc;
}
