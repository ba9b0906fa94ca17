/* SPDX-License-Identifier: Apache-2.0 */
#include "router/follower.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define CLEAN_ENTRIES     4096u
#define ROUNDS_MAX        3u /* recoveries one after the other without a batch between */
#define RETRY_DOUBLES_MAX 5u
#define VALUE_BYTES_MAX   (64u << 20) /* of a snapshot */

enum step { IDLE, VERIFY, TAIL, START, SNAPSHOT };

struct tierce__follower {
    struct tierce__follower_opts opts;
    char name[TIERCE__DIRECTORY_NAME_BYTES];
    struct tierce__directory_id id;
    uint64_t change;          /* number of the next change for the directory */
    struct tierce__lock lock; /* ROUTER_FOLLOWER: contents and about; the owner reads without it */
    struct tierce__contents contents;
    struct tierce__follower_about about;

    enum step due, step; /* to begin; in progress */
    bool has_life;       /* about.next is of the publisher's present life, as far as is known */
    bool has_last;       /* last_sum is of batch next - 1 */
    uint64_t last_sum;
    bool is_suspect; /* the connection is new: the publisher may be another one */
    bool has_live;   /* live_next is of this connection */
    uint64_t live_next;
    uint32_t rounds, retries;
    uint64_t check_at, retry_at, lost_at; /* 0: never */

    bool has_pending; /* the live batch that showed a gap */
    uint64_t pending_number;
    uint8_t *pending;
    size_t pending_bytes, pending_room;

    /* A replay: */
    bool has_answer, is_other; /* it does not continue what was applied */

    /* A snapshot: */
    struct tierce__contents fresh;
    uint8_t *part; /* bytes of an incomplete value */
    size_t part_bytes, part_room;
    bool has_head, has_end;
    uint64_t covered, promised, got;
};

/* ---- the directory --------------------------------------------------------------------------- */

static void give(void *arg, const struct tierce__directory_change *changes, size_t count)
{
    struct tierce__follower *f = arg;
    (void)tierce__directory_report(f->opts.directory, f->id, f->change, changes, count, 0);
    f->change += count;
}

static void give_contents(void *arg, const struct tierce__directory_change *changes, size_t count)
{
    struct tierce__follower *f = arg;
    (void)tierce__directory_sync_add(f->opts.directory, f->id, changes, count, 0);
}

/* The directory gets all contents anew; until the end it shows the old ones. */
static void publish(struct tierce__follower *f)
{
    while (tierce__directory_sync_begin(f->opts.directory, f->id, 0) == TIERCE__DIRECTORY_LATER)
        (void)tierce__directory_clean(f->opts.directory, CLEAN_ENTRIES);
    f->contents.give = give_contents;
    tierce__contents_give_all(&f->contents);
    f->contents.give = give;
    (void)tierce__directory_sync_end(f->opts.directory, f->id, f->change - 1, 0);
}

static void set_exact(struct tierce__follower *f, bool is_exact)
{
    if (f->about.is_exact && !is_exact)
        tierce__log(TIERCE_LOG_WARN, "kv_events_inexact",
                    "worker=%s next=%llu; its contents are incomplete until a snapshot, "
                    "AllBlocksCleared or a restart",
                    f->name, (unsigned long long)f->about.next);
    f->about.is_exact = is_exact;
}

/* Under the lock. */
static void drop(struct tierce__follower *f)
{
    tierce__contents_clear(&f->contents);
    publish(f);
}

static void apply(struct tierce__follower *f, uint64_t number, const void *payload, size_t bytes)
{
    tierce__lock_take(&f->lock);
    bool clears = f->about.is_exact ? false : tierce__kv_batch_clears(payload, bytes);
    uint64_t left_out = f->contents.counts.left_out, invalid = f->contents.counts.invalid;
    bool is_batch = tierce__contents_apply(&f->contents, payload, bytes);
    f->about.batches += is_batch;
    f->about.refused += !is_batch;
    f->about.next = number + 1;
    if (!is_batch || f->contents.counts.left_out > left_out || f->contents.counts.invalid > invalid)
        set_exact(f, false);
    else if (clears)
        set_exact(f, true);
    tierce__lock_drop(&f->lock);
    f->last_sum = XXH3_64bits(payload, bytes);
    f->has_last = f->has_life = true;
}

/* ---- recovery -------------------------------------------------------------------------------- */

static void count(struct tierce__follower *f, uint64_t *counter)
{
    tierce__lock_take(&f->lock);
    ++*counter;
    tierce__lock_drop(&f->lock);
}

/* From here on the publisher's batches are taken as they come. */
static void adopt(struct tierce__follower *f, uint64_t number, bool is_exact)
{
    tierce__lock_take(&f->lock);
    drop(f);
    f->about.next = number;
    set_exact(f, is_exact);
    tierce__lock_drop(&f->lock);
    f->has_life = true;
    f->has_last = false;
    f->is_suspect = false;
}

static void settle(struct tierce__follower *f, uint64_t now_ns);

/* Nothing helps now. `may_help`: a repetition may. */
static void give_up(struct tierce__follower *f, bool may_help, uint64_t now_ns)
{
    count(f, &f->about.failures);
    f->due = IDLE;
    f->retry_at = may_help ? now_ns + (f->opts.retry_ns << f->retries) : 0;
    if (f->retries < RETRY_DOUBLES_MAX)
        f->retries++;
    adopt(f, f->has_pending ? f->pending_number : 0, false);
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
        apply(f, f->pending_number, f->pending, f->pending_bytes);
}

/* A step has failed; `is_other`: its answer was that of another life, or does not reach back. */
static void fail(struct tierce__follower *f, enum step step, bool is_other, uint64_t now_ns)
{
    bool is_check = (step == VERIFY || step == TAIL) && f->about.is_exact && !is_other &&
                    !f->has_pending && !f->is_suspect;
    if (is_check) {
        count(f, &f->about.failures);
        settle(f, now_ns); /* the next check tells */
    } else if (step != SNAPSHOT && f->opts.has_snapshot) {
        f->due = SNAPSHOT;
    } else if (step == VERIFY || step == TAIL) {
        f->due = START;
    } else {
        give_up(f, step == SNAPSHOT || !is_other, now_ns);
    }
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
    adopt(f, number, number == 0);
    apply(f, number, payload, bytes);
    settle(f, now_ns);
}

void tierce__follower_batch(struct tierce__follower *f, uint64_t number, const void *payload,
                            size_t bytes, uint64_t now_ns)
{
    TIERCE_ASSERT(f->step == IDLE && f->due == IDLE);
    bool is_back = f->has_live && number < f->live_next;
    bool is_known = f->has_life && !f->is_suspect && !is_back;
    f->has_live = true;
    f->live_next = number + 1;
    f->rounds = 0;
    if (is_known && number < f->about.next)
        return; /* a replay or a snapshot has brought it */
    if (is_known && number == f->about.next) {
        apply(f, number, payload, bytes);
        return;
    }
    count(f, is_back ? &f->about.restarts : &f->about.gaps);
    if (number == 0 || tierce__kv_batch_clears(payload, bytes)) {
        begin_life(f, number, payload, bytes, now_ns);
        return;
    }
    if (!f->has_life && !f->is_suspect && f->retry_at == 0) { /* given up: as it comes */
        adopt(f, number, false);
        apply(f, number, payload, bytes);
        return;
    }
    if (is_back)
        f->is_suspect = true;
    if (!keep_pending(f, number, payload, bytes)) {
        give_up(f, true, now_ns);
        return;
    }
    recover(f, now_ns);
}

void tierce__follower_connected(struct tierce__follower *f, bool is_connected, uint64_t now_ns)
{
    tierce__lock_take(&f->lock);
    bool is_new = is_connected && !f->about.is_connected;
    bool is_lost = !is_connected && f->about.is_connected; /* not: one more attempt has failed */
    f->about.is_connected = is_connected;
    tierce__lock_drop(&f->lock);
    f->has_live = false;
    if (!is_connected) {
        if (is_lost)
            f->lost_at = now_ns;
        return;
    }
    f->lost_at = 0;
    f->is_suspect |= is_new;
    f->rounds = 0;
    if (f->step == IDLE && f->due == IDLE)
        recover(f, now_ns);
    else
        f->is_suspect = true; /* after the step in progress */
}

enum tierce__follower_need tierce__follower_needs(struct tierce__follower *f, uint64_t *from,
                                                  uint64_t now_ns)
{
    if (f->step != IDLE)
        return TIERCE__FOLLOWER_BUSY;
    if (f->lost_at != 0 && now_ns - f->lost_at >= f->opts.gone_ns) {
        f->lost_at = 0;
        f->due = IDLE;
        f->has_pending = false;
        adopt(f, 0, false);
        f->has_life = false;
        f->is_suspect = true;
        return TIERCE__FOLLOWER_NOTHING;
    }
    if (!f->about
             .is_connected) /* messages that have arrived may be read, but not before the step */
        return f->due == IDLE ? TIERCE__FOLLOWER_NOTHING : TIERCE__FOLLOWER_BUSY;
    if (f->due == IDLE && !f->about.is_exact && f->retry_at != 0 && now_ns >= f->retry_at)
        f->due = f->opts.has_snapshot ? SNAPSHOT : START;
    if (f->due == IDLE && f->opts.has_replay && f->has_life && f->check_at != 0 &&
        now_ns >= f->check_at)
        f->due = f->has_last ? VERIFY : TAIL;
    if (f->due == IDLE)
        return TIERCE__FOLLOWER_NOTHING;
    f->step = f->due;
    f->due = IDLE;
    f->has_answer = f->is_other = false;
    *from = f->step == VERIFY ? f->about.next - 1 : f->step == TAIL ? f->about.next : 0;
    if (f->step == SNAPSHOT) {
        f->part_bytes = 0;
        f->has_head = f->has_end = false;
        f->got = 0;
        tierce__contents_clear(&f->fresh);
        return TIERCE__FOLLOWER_SNAPSHOT;
    }
    return TIERCE__FOLLOWER_REPLAY;
}

/* ---- replay ---------------------------------------------------------------------------------- */

/* The first batch of an answer: whether it continues what was applied. */
static void take_first(struct tierce__follower *f, uint64_t number, const void *payload,
                       size_t bytes)
{
    f->has_answer = true;
    if (f->step == VERIFY) {
        f->is_other = number != f->about.next - 1 || XXH3_64bits(payload, bytes) != f->last_sum;
    } else if (f->step == TAIL) {
        f->is_other = number != f->about.next;
        if (!f->is_other)
            apply(f, number, payload, bytes);
    } else {
        TIERCE_ASSERT(f->step == START);
        adopt(f, number, number == 0);
        f->is_other = number != 0;
        apply(f, number, payload, bytes);
    }
}

void tierce__follower_replayed(struct tierce__follower *f, uint64_t number, const void *payload,
                               size_t bytes, uint64_t now_ns)
{
    (void)now_ns;
    if (f->step == IDLE || f->step == SNAPSHOT)
        return; /* an answer that comes late */
    if (!f->has_answer) {
        take_first(f, number, payload, bytes);
        return;
    }
    if (f->is_other && f->step != START)
        return;
    if (number == f->about.next)
        apply(f, number, payload, bytes);
    else if (number > f->about.next)
        f->is_other = true;
}

void tierce__follower_replay_end(struct tierce__follower *f, bool is_complete, uint64_t now_ns)
{
    enum step step = f->step;
    if (step == IDLE || step == SNAPSHOT)
        return;
    f->step = IDLE;
    if (is_complete && step == START && !f->has_answer) {
        adopt(f, 0, true); /* it has sent nothing yet */
        f->has_life = !f->has_pending;
        f->is_other = f->has_pending; /* but for this batch, which it should have */
    } else if (step == START && f->about.is_exact) {
        f->is_other = false; /* a batch has cleared all blocks */
    } else if (step == VERIFY && !f->has_answer) {
        f->is_other = is_complete; /* the last batch is always there, in the same life */
    }
    count(f, &f->about.replays);
    if (f->is_other && step == VERIFY)
        count(f, &f->about.restarts);
    if (is_complete && !f->is_other) {
        f->retries = 0;
        settle(f, now_ns);
    } else if (step == START && f->has_answer && is_complete) {
        f->due = IDLE; /* applied, but not from the beginning */
        f->retry_at = 0;
        settle(f, now_ns);
    } else {
        fail(f, step, f->is_other, now_ns);
    }
}

/* ---- snapshot -------------------------------------------------------------------------------- */

/* A map of small numbers; texts are skipped. */
static bool take_map(struct tierce__follower *f, struct tierce__msgpack m, uint32_t count)
{
    bool has_version = false, has_sequence = false;
    for (uint32_t i = 0; i < count; i++) {
        struct tierce__msgpack_item name = {0}, value = {0};
        struct tierce__msgpack at;
        if (tierce__msgpack_next(&m, &name) != TIERCE__MSGPACK_OK ||
            name.type != TIERCE__MSGPACK_TEXT)
            return false;
        at = m;
        if (tierce__msgpack_skip(&m) != TIERCE__MSGPACK_OK ||
            tierce__msgpack_next(&at, &value) != TIERCE__MSGPACK_OK)
            return false;
        struct tierce__text text = {(const char *)name.bytes, name.count};
        bool is_number = value.type == TIERCE__MSGPACK_UINT;
        if (text.length == 7 && memcmp(text.at, "version", 7) == 0)
            has_version = is_number && value.number == 1;
        if (text.length == 8 && memcmp(text.at, "sequence", 8) == 0 && is_number) {
            has_sequence = value.number < UINT64_MAX;
            f->covered = value.number;
        }
        if (text.length == 3 && memcmp(text.at, "end", 3) == 0 && is_number) {
            f->has_end = f->has_head;
            f->promised = value.number;
        }
    }
    if (!f->has_head) {
        f->has_head = has_version && has_sequence;
        return f->has_head;
    }
    return f->has_end;
}

static void count_blocks(struct tierce__follower *f, const uint8_t *at, size_t bytes)
{
    struct tierce__kv_batch batch;
    struct tierce__kv_event event;
    if (!tierce__kv_batch_open(&batch, at, bytes))
        return;
    while (tierce__kv_batch_next(&batch, &event))
        f->got += event.type == TIERCE__KV_STORED ? event.hash_count : 0;
}

/* A complete value of the stream. */
static bool take_value(struct tierce__follower *f, const uint8_t *at, size_t bytes)
{
    struct tierce__msgpack m = {at, at + bytes};
    struct tierce__msgpack_item head = {0};
    (void)tierce__msgpack_next(&m, &head);
    if (f->has_end)
        return false;
    if (head.type == TIERCE__MSGPACK_MAP)
        return take_map(f, m, head.count);
    count_blocks(f, at, bytes);
    return f->has_head && tierce__contents_apply(&f->fresh, at, bytes);
}

bool tierce__follower_snapshot(struct tierce__follower *f, const void *bytes, size_t count)
{
    if (f->step != SNAPSHOT || count > VALUE_BYTES_MAX || f->part_bytes > VALUE_BYTES_MAX ||
        TIERCE__GROW(f->part, f->part_room, f->part_bytes + count, 65536) < 0)
        return false;
    if (count == 0)
        return true;
    memcpy(f->part + f->part_bytes, bytes, count);
    f->part_bytes += count;
    struct tierce__msgpack m = {f->part, f->part + f->part_bytes};
    bool is_good = true;
    while (is_good && m.at < m.end) {
        const uint8_t *start = m.at;
        enum tierce__msgpack_result result = tierce__msgpack_skip(&m);
        if (result == TIERCE__MSGPACK_SHORT)
            break;
        is_good = result == TIERCE__MSGPACK_OK && take_value(f, start, (size_t)(m.at - start));
    }
    f->part_bytes = (size_t)(m.end - m.at);
    memmove(f->part, m.at, f->part_bytes);
    return is_good;
}

/* The snapshot's contents become those of the publisher. */
static void replace(struct tierce__follower *f)
{
    tierce__lock_take(&f->lock);
    struct tierce__contents old = f->contents;
    f->contents = f->fresh;
    f->fresh = old;
    f->contents.counts = old.counts;
    f->contents.counts.left_out = f->fresh.counts.left_out;
    f->fresh.give = NULL;
    f->contents.give = give;
    f->contents.arg = f;
    publish(f);
    f->about.next = f->covered + 1;
    f->about.snapshots++;
    set_exact(f, true);
    tierce__lock_drop(&f->lock);
    f->has_life = true;
    f->has_last = false;
    f->is_suspect = false;
}

void tierce__follower_snapshot_end(struct tierce__follower *f, bool is_complete, uint64_t now_ns)
{
    if (f->step != SNAPSHOT)
        return;
    f->step = IDLE;
    bool is_good = is_complete && f->has_head && f->has_end && f->part_bytes == 0 &&
                   f->promised == f->got && f->fresh.counts.left_out == 0;
    if (!is_good) {
        fail(f, SNAPSHOT, false, now_ns);
        return;
    }
    replace(f);
    f->retries = 0;
    f->retry_at = 0;
    if (f->opts.has_replay)
        f->due = TAIL;
    else
        settle(f, now_ns);
}

/* ---- state ----------------------------------------------------------------------------------- */

struct tierce__directory_id tierce__follower_id(const struct tierce__follower *follower)
{
    return follower->id;
}

void tierce__follower_about(struct tierce__follower *follower, struct tierce__follower_about *out)
{
    struct tierce__directory_about worker;
    tierce__lock_take(&follower->lock);
    *out = follower->about;
    /* The table may have had no memory for some. */
    out->is_exact = out->is_exact &&
                    tierce__directory_about(follower->opts.directory, follower->id, &worker) &&
                    worker.is_whole;
    out->blocks = follower->contents.count;
    out->block_size = follower->contents.block_size;
    out->counts = follower->contents.counts;
    tierce__lock_drop(&follower->lock);
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
    f->contents = (struct tierce__contents){.model = opts->model,
                                            .seed = opts->seed,
                                            .blocks_max = opts->blocks_max,
                                            .give = give,
                                            .arg = f};
    f->fresh = f->contents;
    f->fresh.give = NULL;
    f->change = 1;
    f->is_suspect = true;
    publish(f);
    *out = f;
    return 0;
}

void tierce__follower_destroy(struct tierce__follower *follower)
{
    if (follower == NULL)
        return;
    (void)tierce__directory_leave(follower->opts.directory, follower->id);
    tierce__contents_fini(&follower->contents);
    tierce__contents_fini(&follower->fresh);
    tierce__lock_fini(&follower->lock);
    tierce__free(follower->pending);
    tierce__free(follower->part);
    tierce__free(follower);
}
