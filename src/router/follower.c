/* SPDX-License-Identifier: Apache-2.0 */
#include "router/follower.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "router/snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define CLEAN_ENTRIES     4096u
#define ROUNDS_MAX        3u /* recoveries one after the other without a batch between */
#define RETRY_DOUBLES_MAX 5u
#define PART_ENTRIES      4096u /* of contents that are published, in a turn */

enum step { IDLE, VERIFY, TAIL, START, SNAPSHOT, PUBLISH };

struct tierce__follower {
    struct tierce__follower_opts opts;
    char name[TIERCE__DIRECTORY_NAME_BYTES];
    struct tierce__directory_id id;
    uint64_t change;               /* number of the next change for the directory */
    struct tierce__lock lock;      /* ROUTER_FOLLOWER: contents; the owner reads without it */
    struct tierce__lock look_lock; /* ROUTER_LOOK: `shown`; held for a copy only */
    struct tierce__contents contents;
    struct tierce__follower_about about, shown; /* about: the owner's */

    enum step due, step; /* to begin; in progress */
    bool has_life;       /* about.next is of the publisher's present life, as far as is known */
    bool has_last;       /* last_sum is of batch next - 1 */
    uint64_t last_sum;
    bool is_suspect; /* the connection is new: the publisher may be another one */
    bool is_newer;   /* the connection is newer than the step in progress */
    bool is_repair;  /* the step in progress only makes inexact contents exact */
    bool has_live;   /* live_next is of this connection */
    uint64_t live_next;
    uint32_t rounds, retries;
    uint64_t check_at, retry_at, lost_at; /* 0: never */
    uint64_t exact_since;
    bool has_warned;   /* of blocks without tokens */
    bool is_whole;     /* the table had memory for all contents */
    uint64_t whole_at; /* when it is tried again; 0: not planned */

    bool has_pending; /* the live batch that showed a gap */
    uint64_t pending_number;
    uint8_t *pending;
    size_t pending_bytes, pending_room;

    bool has_answer, is_other; /* of a replay: it does not continue what was applied */
    struct tierce__snapshot snapshot;
    uint32_t published; /* entries of the contents, by PUBLISH */
};

/* ---- the directory --------------------------------------------------------------------------- */

static void give(void *arg, const struct tierce__directory_change *changes, size_t count)
{
    struct tierce__follower *f = arg;
    (void)tierce__directory_report(f->opts.directory, f->id, f->change, changes, count, 0);
    f->change += count;
}

/* A part of all contents. */
static void give_contents(void *arg, const struct tierce__directory_change *changes, size_t count)
{
    struct tierce__follower *f = arg;
    (void)tierce__directory_sync_add(f->opts.directory, f->id, changes, count, 0);
}

/* The directory gets all contents again, and shows the old ones until the end. */
static void begin_publish(struct tierce__follower *f)
{
    while (tierce__directory_sync_begin(f->opts.directory, f->id, 0) == TIERCE__DIRECTORY_LATER)
        (void)tierce__directory_clean(f->opts.directory, CLEAN_ENTRIES);
}

static void end_publish(struct tierce__follower *f)
{
    (void)tierce__directory_sync_end(f->opts.directory, f->id, f->change - 1, 0);
}

/* The contents became empty. */
static void give_none(void *arg)
{
    begin_publish(arg);
    end_publish(arg);
}

/* ---- state ----------------------------------------------------------------------------------- */

/* Its contents are about to be replaced: they are of a life before, or lack something. */
static bool is_replacing(enum step step)
{
    return step == SNAPSHOT || step == START || step == PUBLISH;
}

/* Shows other threads what has become of it; they never wait for the work of the owner. */
static void show(struct tierce__follower *f)
{
    struct tierce__directory_about worker;
    struct tierce__follower_about about = f->about;
    bool is_known = tierce__directory_about(f->opts.directory, f->id, &worker);
    f->is_whole = f->step == PUBLISH || (is_known && worker.is_whole);
    about.is_exact =
        about.is_exact && f->is_whole && !is_replacing(f->step) && !is_replacing(f->due);
    about.blocks = f->contents.count;
    about.block_size = f->contents.block_size;
    about.counts = f->contents.counts;
    tierce__lock_take(&f->look_lock);
    f->shown = about;
    tierce__lock_drop(&f->look_lock);
}

static void set_exact(struct tierce__follower *f, bool is_exact, uint64_t now_ns)
{
    if (f->about.is_exact && !is_exact)
        tierce__log(TIERCE_LOG_WARN, "kv_events_inexact",
                    "endpoint=%s next=%llu consequence=\"its contents are incomplete until a "
                    "snapshot, AllBlocksCleared or a restart\"",
                    f->opts.endpoint, (unsigned long long)f->about.next);
    if (!f->about.is_exact && is_exact)
        f->exact_since = now_ns;
    f->about.is_exact = is_exact;
}

/* Once for each publisher: nothing fails, and without this line an operator only sees that there
 * are no hits. */
static void warn_without_tokens(struct tierce__follower *f)
{
    if (!f->contents.lacks_tokens || f->has_warned)
        return;
    f->has_warned = true;
    tierce__log(
        TIERCE_LOG_WARN, "kv_events_without_tokens",
        "endpoint=%s consequence=\"only /query_by_hash finds these blocks; /query and tierce "
        "proxy do not\" hint=\"if the publisher is a Tierce kv_events.endpoint, raise "
        "its kv_events.tokens; chunks found on disk at start get tokens when a request "
        "loads them\"",
        f->opts.endpoint);
}

/* The pause grows until the contents have stayed exact for the longest one. */
static void plan_retry(struct tierce__follower *f, uint64_t now_ns)
{
    if (f->exact_since != 0 && now_ns - f->exact_since >= f->opts.retry_ns << RETRY_DOUBLES_MAX)
        f->retries = 0;
    f->exact_since = 0;
    f->retry_at = now_ns + (f->opts.retry_ns << f->retries);
    if (f->retries < RETRY_DOUBLES_MAX)
        f->retries++;
}

static void drop(struct tierce__follower *f)
{
    tierce__lock_take(&f->lock);
    tierce__contents_clear(&f->contents);
    tierce__lock_drop(&f->lock);
    give_none(f);
}

static void apply(struct tierce__follower *f, uint64_t number, const void *payload, size_t bytes,
                  uint64_t now_ns)
{
    f->contents.has_cleared = f->contents.has_lost = false;
    tierce__lock_take(&f->lock);
    bool is_batch = tierce__contents_apply(&f->contents, payload, bytes);
    tierce__lock_drop(&f->lock);
    f->about.batches += is_batch;
    f->about.refused += !is_batch;
    f->about.next = number + 1;
    if (!is_batch || f->contents.has_lost) {
        set_exact(f, false, now_ns);
        if (f->opts.has_snapshot && f->retry_at == 0) /* a replay would bring the same batch */
            plan_retry(f, now_ns);
    } else if (f->contents.has_cleared) {
        set_exact(f, true, now_ns);
    }
    warn_without_tokens(f);
    f->last_sum = XXH3_64bits(payload, bytes);
    f->has_last = f->has_life = true;
}

/* ---- recovery -------------------------------------------------------------------------------- */

/* From here on the publisher's batches are taken as they come. */
static void adopt(struct tierce__follower *f, uint64_t number, bool is_exact, uint64_t now_ns)
{
    drop(f);
    f->about.next = number;
    set_exact(f, is_exact, now_ns);
    f->has_life = true;
    f->has_last = false;
    f->is_suspect = false;
}

static void settle(struct tierce__follower *f, uint64_t now_ns);

/* Nothing helps now. `may_help`: a repetition may. */
static void give_up(struct tierce__follower *f, bool may_help, uint64_t now_ns)
{
    f->about.failures++;
    f->due = IDLE;
    adopt(f, f->has_pending ? f->pending_number : 0, false, now_ns);
    plan_retry(f, now_ns);
    if (!may_help)
        f->retry_at = 0;
    f->has_life = f->has_pending; /* else with the next batch */
    settle(f, now_ns);
}

/* Chooses the first step of a recovery. */
static void recover(struct tierce__follower *f, uint64_t now_ns)
{
    TIERCE_ASSERT(f->step == IDLE && f->due == IDLE);
    if (++f->rounds > ROUNDS_MAX)
        give_up(f, true, now_ns);
    else if (f->opts.has_replay && f->has_life && f->has_last)
        f->due = VERIFY;
    else if (f->opts.has_snapshot)
        f->due = SNAPSHOT;
    else if (f->opts.has_replay)
        f->due = START;
    else
        give_up(f, false, now_ns);
}

/* The step has ended: the applied batches are as exact as they can become. */
static void settle(struct tierce__follower *f, uint64_t now_ns)
{
    TIERCE_ASSERT(f->step == IDLE && f->due == IDLE);
    f->is_suspect = false;
    f->check_at = f->opts.check_ns > 0 ? now_ns + f->opts.check_ns : 0;
    if (!f->has_pending)
        return;
    if (f->has_life && f->pending_number > f->about.next) {
        recover(f, now_ns);
        return;
    }
    f->has_pending = false;
    if (!f->has_life || f->pending_number == f->about.next)
        apply(f, f->pending_number, f->pending, f->pending_bytes, now_ns);
}

/* A step has failed; `is_other`: its answer was that of another life, or does not reach back. */
static void fail(struct tierce__follower *f, enum step step, bool is_other, uint64_t now_ns)
{
    bool is_check = (step == VERIFY || step == TAIL) && f->about.is_exact && !is_other &&
                    !f->has_pending && !f->is_suspect;
    if (is_check) {
        f->about.failures++;
        settle(f, now_ns); /* the next check tells */
    } else if (f->is_repair && f->has_life && (step == SNAPSHOT || !f->has_answer)) {
        f->about.failures++; /* the contents stay as they are: all of them are held */
        plan_retry(f, now_ns);
        settle(f, now_ns);
    } else if (step != SNAPSHOT && f->opts.has_snapshot) {
        f->due = SNAPSHOT;
    } else if (step == VERIFY || step == TAIL) {
        f->due = START;
    } else {
        give_up(f, step == SNAPSHOT || !is_other, now_ns);
    }
}

/* The step in progress has ended. True: what it has found may be of a publisher before, so a
 * recovery begins. */
static bool is_overtaken(struct tierce__follower *f, uint64_t now_ns)
{
    f->step = IDLE;
    if (!f->is_newer)
        return false;
    f->is_newer = false;
    f->is_suspect = true;
    f->rounds = 0;
    recover(f, now_ns);
    return true;
}

/* ---- live ------------------------------------------------------------------------------------ */

static bool keep_pending(struct tierce__follower *f, uint64_t number, const void *payload,
                         size_t bytes)
{
    if (TIERCE__GROW(f->pending, f->pending_room, bytes, 4096) < 0)
        return false;
    if (bytes > 0)
        memcpy(f->pending, payload, bytes);
    f->pending_bytes = bytes;
    f->pending_number = number;
    f->has_pending = true;
    return true;
}

/* The publisher begins here, or says that nothing before counts. */
static void begin_life(struct tierce__follower *f, uint64_t number, const void *payload,
                       size_t bytes, uint64_t now_ns)
{
    adopt(f, number, number == 0, now_ns);
    apply(f, number, payload, bytes, now_ns);
    settle(f, now_ns);
}

static void take_live(struct tierce__follower *f, uint64_t number, const void *payload,
                      size_t bytes, uint64_t now_ns)
{
    bool is_back = f->has_live && number < f->live_next;
    bool is_known = f->has_life && !f->is_suspect && !is_back;
    f->has_live = true;
    f->live_next = number + 1;
    f->rounds = 0;
    if (is_known && number < f->about.next)
        return; /* a replay or a snapshot has brought it */
    if (is_known && number == f->about.next) {
        apply(f, number, payload, bytes, now_ns);
        return;
    }
    if (is_back)
        f->about.restarts++;
    else
        f->about.gaps++;
    if (number == 0 || tierce__kv_batch_clears(payload, bytes)) {
        begin_life(f, number, payload, bytes, now_ns);
        return;
    }
    if (!f->has_life && !f->is_suspect && f->retry_at == 0) { /* given up: as it comes */
        adopt(f, number, false, now_ns);
        apply(f, number, payload, bytes, now_ns);
        return;
    }
    if (is_back)
        f->is_suspect = true;
    if (keep_pending(f, number, payload, bytes))
        recover(f, now_ns);
    else
        give_up(f, true, now_ns);
}

void tierce__follower_batch(struct tierce__follower *f, uint64_t number, const void *payload,
                            size_t bytes, uint64_t now_ns)
{
    TIERCE_ASSERT(f->step == IDLE && f->due == IDLE);
    take_live(f, number, payload, bytes, now_ns);
    show(f);
}

void tierce__follower_connected(struct tierce__follower *f, bool is_connected, uint64_t now_ns)
{
    bool is_lost = !is_connected && f->about.is_connected; /* not: one more attempt has failed */
    f->about.is_connected = is_connected;
    f->has_live = false;
    if (is_lost)
        f->lost_at = now_ns;
    if (is_connected) {
        f->lost_at = 0;
        f->is_suspect = true;
        f->has_pending = false; /* it may be of the publisher before */
        f->rounds = 0;
        if (f->step != IDLE)
            f->is_newer = true;
        else if (f->due == IDLE)
            recover(f, now_ns);
    }
    show(f);
}

/* The step that is due on its own, with nothing due and a connection. */
static enum step plan(const struct tierce__follower *f, uint64_t now_ns)
{
    if (!f->about.is_exact && f->retry_at != 0 && now_ns >= f->retry_at)
        return f->opts.has_snapshot ? SNAPSHOT : START;
    if (f->opts.has_replay && f->has_life && f->check_at != 0 && now_ns >= f->check_at)
        return f->has_last ? VERIFY : TAIL;
    return IDLE;
}

/* Starts to give the directory all contents, in parts. */
static void start_publish(struct tierce__follower *f)
{
    begin_publish(f);
    f->contents.give = give_contents;
    f->published = 0;
    f->step = PUBLISH;
}

/* Whether contents for which the table had no memory are given to it once more. */
static bool is_republished(struct tierce__follower *f, uint64_t now_ns)
{
    if (f->due != IDLE || !f->about.is_exact || f->is_whole) {
        f->whole_at = 0;
        return false;
    }
    if (f->whole_at == 0)
        f->whole_at = now_ns + (f->opts.retry_ns << RETRY_DOUBLES_MAX);
    if (now_ns < f->whole_at)
        return false;
    f->whole_at = 0;
    start_publish(f);
    return true;
}

/* So long without a connection that the publisher counts as gone. */
static void forget(struct tierce__follower *f, uint64_t now_ns)
{
    f->lost_at = 0;
    f->due = IDLE;
    f->has_pending = false;
    adopt(f, 0, false, now_ns);
    f->has_life = false;
    f->is_suspect = true;
    show(f);
}

enum tierce__follower_need tierce__follower_needs(struct tierce__follower *f, uint64_t *from,
                                                  uint64_t now_ns)
{
    if (f->step != IDLE)
        return f->step == PUBLISH ? TIERCE__FOLLOWER_WORK : TIERCE__FOLLOWER_BUSY;
    if (f->lost_at != 0 && now_ns - f->lost_at >= f->opts.gone_ns) {
        forget(f, now_ns);
        return TIERCE__FOLLOWER_NOTHING;
    }
    if (!f->about
             .is_connected) /* messages that have arrived may be read, but not before the step */
        return f->due == IDLE ? TIERCE__FOLLOWER_NOTHING : TIERCE__FOLLOWER_BUSY;
    if (is_republished(f, now_ns))
        return TIERCE__FOLLOWER_WORK;
    f->is_repair = f->due == IDLE && !f->about.is_exact;
    f->step = f->due != IDLE ? f->due : plan(f, now_ns);
    f->due = IDLE;
    if (f->step == IDLE)
        return TIERCE__FOLLOWER_NOTHING;
    f->has_answer = f->is_other = false;
    *from = f->step == VERIFY ? f->about.next - 1 : f->step == TAIL ? f->about.next : 0;
    if (f->step != SNAPSHOT)
        return TIERCE__FOLLOWER_REPLAY;
    tierce__snapshot_clear(&f->snapshot);
    return TIERCE__FOLLOWER_SNAPSHOT;
}

/* ---- replay ---------------------------------------------------------------------------------- */

/* The first batch of an answer: whether it continues what was applied. */
static void take_first(struct tierce__follower *f, uint64_t number, const void *payload,
                       size_t bytes, uint64_t now_ns)
{
    f->has_answer = true;
    if (f->step == VERIFY) {
        f->is_other = number != f->about.next - 1 || XXH3_64bits(payload, bytes) != f->last_sum;
    } else if (f->step == TAIL) {
        f->is_other = number != f->about.next;
        if (!f->is_other)
            apply(f, number, payload, bytes, now_ns);
    } else {
        TIERCE_ASSERT(f->step == START);
        adopt(f, number, number == 0, now_ns);
        f->is_other = number != 0;
        apply(f, number, payload, bytes, now_ns);
    }
}

void tierce__follower_replayed(struct tierce__follower *f, uint64_t number, const void *payload,
                               size_t bytes, uint64_t now_ns)
{
    if (f->step != VERIFY && f->step != TAIL && f->step != START)
        return; /* an answer that comes late */
    if (!f->has_answer)
        take_first(f, number, payload, bytes, now_ns);
    else if (f->is_other && f->step != START)
        return;
    else if (number == f->about.next)
        apply(f, number, payload, bytes, now_ns);
    else if (number > f->about.next)
        f->is_other = true;
    show(f);
}

static void end_replay(struct tierce__follower *f, enum step step, bool is_complete,
                       uint64_t now_ns)
{
    if (is_complete && step == START && !f->has_answer) {
        adopt(f, 0, true, now_ns); /* it has sent nothing yet */
        f->has_life = !f->has_pending;
        f->is_other = f->has_pending; /* but for this batch, which it should have */
    } else if (step == START && f->about.is_exact) {
        f->is_other = false; /* a batch has cleared all blocks */
    } else if (step == VERIFY && !f->has_answer) {
        f->is_other = is_complete; /* the last batch is always there, in the same life */
    }
    f->about.replays++;
    f->about.restarts += f->is_other && step == VERIFY;
    if (is_complete && !f->is_other) {
        settle(f, now_ns);
    } else if (step == START && f->has_answer && is_complete) {
        f->due = IDLE; /* applied, but not from the beginning */
        f->retry_at = 0;
        settle(f, now_ns);
    } else {
        fail(f, step, f->is_other, now_ns);
    }
}

void tierce__follower_replay_end(struct tierce__follower *f, bool is_complete, uint64_t now_ns)
{
    enum step step = f->step;
    if (step != VERIFY && step != TAIL && step != START)
        return;
    if (!is_overtaken(f, now_ns))
        end_replay(f, step, is_complete, now_ns);
    show(f);
}

/* ---- snapshot -------------------------------------------------------------------------------- */

bool tierce__follower_snapshot(struct tierce__follower *f, const void *bytes, size_t count)
{
    return f->step == SNAPSHOT && tierce__snapshot_add(&f->snapshot, bytes, count);
}

/* The snapshot's contents become those of the publisher. The directory gets them in parts. */
static void begin_replacing(struct tierce__follower *f)
{
    tierce__lock_take(&f->lock);
    struct tierce__contents old = f->contents;
    f->contents = f->snapshot.contents;
    f->snapshot.contents = old;
    f->contents.counts = old.counts;
    f->contents.counts.left_out = f->snapshot.contents.counts.left_out;
    tierce__lock_drop(&f->lock);
    f->snapshot.contents.give = NULL;
    warn_without_tokens(f);
    f->about.next = f->snapshot.covered + 1;
    f->about.snapshots++;
    f->has_life = true;
    f->has_last = false;
    start_publish(f);
}

void tierce__follower_snapshot_end(struct tierce__follower *f, bool is_complete, uint64_t now_ns)
{
    if (f->step != SNAPSHOT)
        return;
    bool is_good = tierce__snapshot_end(&f->snapshot) && is_complete;
    if (!is_overtaken(f, now_ns)) {
        if (is_good)
            begin_replacing(f);
        else
            fail(f, SNAPSHOT, false, now_ns);
    }
    tierce__snapshot_clear(&f->snapshot); /* frees what was read, or the previous contents */
    show(f);
}

void tierce__follower_work(struct tierce__follower *f, uint64_t now_ns)
{
    TIERCE_ASSERT(f->step == PUBLISH);
    if (tierce__contents_give_part(&f->contents, &f->published, PART_ENTRIES))
        return;
    f->contents.give = give;
    end_publish(f);
    f->retry_at = 0;
    set_exact(f, true, now_ns);
    if (!is_overtaken(f, now_ns)) {
        f->is_suspect = false;
        if (f->opts.has_replay)
            f->due = TAIL;
        else
            settle(f, now_ns);
    }
    show(f);
}

/* ---- what others see ------------------------------------------------------------------------- */

struct tierce__directory_id tierce__follower_id(const struct tierce__follower *follower)
{
    return follower->id;
}

void tierce__follower_about(struct tierce__follower *follower, struct tierce__follower_about *out)
{
    tierce__lock_take(&follower->look_lock);
    *out = follower->shown;
    tierce__lock_drop(&follower->look_lock);
}

size_t tierce__follower_blocks(struct tierce__follower *follower, uint32_t *from,
                               struct tierce__contents_block *out, size_t count)
{
    size_t copied = 0;
    tierce__lock_take(&follower->lock);
    const struct tierce__contents *c = &follower->contents;
    for (; copied < count && *from < c->used; ++*from) {
        if (c->blocks[*from].media != 0)
            out[copied++] = c->blocks[*from];
    }
    tierce__lock_drop(&follower->lock);
    return copied;
}

int tierce__follower_create(struct tierce__follower **out, const struct tierce__follower_opts *opts,
                            uint64_t now_ns)
{
    struct tierce__follower *f = tierce__calloc(1, sizeof(*f));
    if (f == NULL)
        return -ENOMEM;
    f->opts = *opts;
    snprintf(f->name, sizeof(f->name), "%s", opts->name);
    int rc = tierce__directory_join(
        opts->directory,
        &(struct tierce__directory_worker){
            .group = opts->group, .name = f->name, .address = "", .host = ""},
        now_ns, &f->id);
    if (rc != 0) {
        tierce__free(f);
        return rc;
    }
    tierce__lock_init(&f->lock, TIERCE__LOCK_ROUTER_FOLLOWER);
    tierce__lock_init(&f->look_lock, TIERCE__LOCK_ROUTER_LOOK);
    f->contents = (struct tierce__contents){.model = opts->model,
                                            .seed = opts->seed,
                                            .blocks_max = opts->blocks_max,
                                            .give = give,
                                            .give_none = give_none,
                                            .arg = f};
    f->snapshot.contents = f->contents;
    f->snapshot.contents.give = NULL;
    f->change = 1;
    f->is_suspect = true;
    give_none(f);
    show(f);
    *out = f;
    return 0;
}

void tierce__follower_destroy(struct tierce__follower *follower)
{
    if (follower == NULL)
        return;
    (void)tierce__directory_leave(follower->opts.directory, follower->id);
    tierce__contents_fini(&follower->contents);
    tierce__snapshot_fini(&follower->snapshot);
    tierce__lock_fini(&follower->look_lock);
    tierce__lock_fini(&follower->lock);
    tierce__free(follower->pending);
    tierce__free(follower);
}
