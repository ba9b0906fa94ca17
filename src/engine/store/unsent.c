/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/store/unsent.h"

#include <errno.h>
#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "engine/engine.h"
#include "engine/observe/operate.h"
#include "engine/store/chunk_copy.h"

#define LOOK_NS         (100 * TIERCE__MS_NS)       /* for changes that nothing announces */
#define DROPS_GATHER_NS (1000 * TIERCE__MS_NS)      /* from the first dropped chunk to its line */
#define DROPS_PERIOD_NS (60 * 1000 * TIERCE__MS_NS) /* between two lines of a store */

static const char *name_of(const struct tierce__level *level)
{
    return level->tier->ops->name;
}

/* The lines of a remote store, and those of the disk. */
struct lines {
    const char *unsent, *back, *room, *effect, *sent, *lost_hint, *left, *dropped, *dropped_hint;
};

static const struct lines *lines_of(const struct tierce__level *level)
{
    static const struct lines remote = {
        .unsent = "remote_chunks_unsent",
        .effect = "if they are still in memory or on disk",
        .back = "sent when the store is back",
        .room = "sent when the store has room",
        .sent = "remote_chunks_sent",
        .lost_hint = "lost chunks are sent when they have left memory and are stored again",
        .left = "remote_chunks_left",
        .dropped = "remote_puts_dropped",
        .dropped_hint = "chunks are stored faster than the store takes them: raise remote.queue "
                        "for bursts; if it lasts, raise remote.writes or use remote.codec=lossless",
    };
    static const struct lines disk = {
        .unsent = "disk_chunks_unsent",
        .effect = "if they are still in memory",
        .back = "written when the disk is back",
        .room = "written when the disk has room",
        .sent = "disk_chunks_sent",
        .lost_hint = "lost chunks are written when they have left memory and are stored again",
        .left = "disk_chunks_left",
        .dropped = "disk_puts_dropped",
        .dropped_hint = "chunks are stored faster than the disk writes them; those that memory "
                        "still holds are written later: raise disk.queue and memory.size for "
                        "bursts; if it lasts, set disk.admit=second or use a faster disk",
    };
    return level->health.shared ? &remote : &disk;
}

const char *tierce__unsent_reason_name(enum tierce__unsent_reason reason)
{
    static const char *const names[TIERCE__UNSENT_REASONS] = {
        [TIERCE__UNSENT_DOWN] = "down",     [TIERCE__UNSENT_FAILED] = "failed",
        [TIERCE__UNSENT_QUEUE] = "queue",   [TIERCE__UNSENT_FULL] = "full",
        [TIERCE__UNSENT_NO_KEY] = "no_key", [TIERCE__UNSENT_REFUSED] = "refused",
    };
    TIERCE_ASSERT(reason < TIERCE__UNSENT_REASONS);
    return names[reason];
}

struct tierce__unsent_chunk {
    struct tierce__storage_chunk record; /* object_bytes 0: it was cleared, and is not sent */
    uint64_t serial;                     /* greater than those of chunks that were stored earlier */
};

int tierce__unsent_init(struct tierce__level *level)
{
    TIERCE_DASSERT(level->unsent.chunks == NULL && !level->is_read_only);
    level->unsent.chunks = tierce__calloc(TIERCE__UNSENT_MAX, sizeof(*level->unsent.chunks));
    return level->unsent.chunks != NULL ? 0 : -ENOMEM;
}

void tierce__unsent_fini(struct tierce__level *level)
{
    TIERCE_DASSERT(!level->unsent.has_thread);
    tierce__free(level->unsent.chunks);
    level->unsent.chunks = NULL;
}

/* ---- what was not sent ----------------------------------------------------------------------- */

static enum tierce__unsent_reason reason_of(int status)
{
    TIERCE_DASSERT(status < 0);
    return status == TIERCE_E_DOWN           ? TIERCE__UNSENT_DOWN
           : status == TIERCE_E_FULL         ? TIERCE__UNSENT_QUEUE
           : tierce__health_is_full(status)  ? TIERCE__UNSENT_FULL
           : status == TIERCE_E_NO_KEY       ? TIERCE__UNSENT_NO_KEY
           : tierce__health_is_fault(status) ? TIERCE__UNSENT_FAILED
                                             : TIERCE__UNSENT_REFUSED;
}

static bool is_outage(int status)
{
    return tierce__health_is_fault(status) && !tierce__health_is_rejection(status);
}

/* Chunks that wait, and those that are being sent. Under ENGINE. */
static uint64_t waiting(const struct tierce__unsent *u)
{
    return (uint64_t)u->count + u->sending;
}

/* Why a flush is to report the loss of a chunk, or 0: not that of a chunk that the tier rejects by
 * design. */
static int loss_of(int status, bool is_late)
{
    TIERCE_DASSERT(status < 0);
    return status == TIERCE_E_FULL || (is_late && status == TIERCE_E_MISS) ? TIERCE_E_FULL
           : is_outage(status)                                             ? status
                                                                           : 0;
}

/* Under ENGINE. */
static void lose(struct tierce__level *level, int why)
{
    level->unsent.lost++;
    if (!level->health.shared && level->unsent.unsaid_loss == 0)
        level->unsent.unsaid_loss = why;
}

/* Whether the chunk may be sent later. Only an outage, a lack of room and a full queue end by
 * themselves. A chunk whose predecessor is missing in the tier may follow one that waits. Under
 * ENGINE. */
static bool may_wait(const struct tierce__unsent *u, const struct tierce__unsent_answer *answer)
{
    if (u->stops || answer->forgets)
        return false;
    bool follows = answer->status == TIERCE_E_REFUSED && answer->chunk->has_parent &&
                   (answer->is_late ? u->pass_fails : waiting(u) > 0);
    return is_outage(answer->status) || answer->status == TIERCE_E_FULL || follows;
}

static struct tierce__unsent_chunk *at(const struct tierce__unsent *u, uint32_t index)
{
    TIERCE_DASSERT(u->first < TIERCE__UNSENT_MAX);
    return &u->chunks[(u->first + index) % TIERCE__UNSENT_MAX];
}

/* The oldest is the least likely to be held still. Under ENGINE. */
static struct tierce__unsent_chunk take_oldest(struct tierce__unsent *u)
{
    TIERCE_DASSERT(u->count > 0);
    struct tierce__unsent_chunk oldest = *at(u, 0);
    u->first = (u->first + 1) % TIERCE__UNSENT_MAX;
    u->count--;
    return oldest;
}

/* Makes a place for a chunk that belongs among the oldest, as those do that could not be sent in
 * this pass. Under ENGINE. */
static uint32_t place_from_front(struct tierce__unsent *u, uint64_t serial)
{
    uint32_t place = 0;
    u->first = (u->first + TIERCE__UNSENT_MAX - 1) % TIERCE__UNSENT_MAX;
    u->count++;
    for (; place + 1 < u->count && at(u, place + 1)->serial < serial; place++)
        *at(u, place) = *at(u, place + 1);
    return place;
}

/* Makes a place for a chunk that belongs among the last ones: answers are out of order by no more
 * than the tier's queue. Under ENGINE. */
static uint32_t place_from_back(struct tierce__unsent *u, uint64_t serial)
{
    uint32_t place = u->count++;
    for (; place > 0 && at(u, place - 1)->serial > serial; place--)
        *at(u, place) = *at(u, place - 1);
    return place;
}

/* Under ENGINE. */
static void remember(struct tierce__level *level, const struct tierce__unsent_answer *answer)
{
    struct tierce__unsent *u = &level->unsent;
    uint64_t serial = answer->serial;
    TIERCE_DASSERT(u->count <= TIERCE__UNSENT_MAX && serial > 0);
    if (u->count == TIERCE__UNSENT_MAX) {
        lose(level, TIERCE_E_FULL);
        if (serial < at(u, 0)->serial)
            return;
        (void)take_oldest(u);
    }
    uint32_t place = answer->is_late ? place_from_front(u, serial) : place_from_back(u, serial);
    *at(u, place) = (struct tierce__unsent_chunk){.record = *answer->chunk, .serial = serial};
}

/* Whether an outage begins with a chunk that waits. Under ENGINE. */
static bool begin_outage(struct tierce__unsent *u, int status)
{
    if (!is_outage(status) || u->is_outage)
        return false;
    u->is_outage = true;
    u->lacks_room = tierce__health_is_full(status);
    u->from_late = u->sent_late;
    u->from_lost = u->lost;
    return true;
}

/* Whether the disk has no space for a late chunk and can evict nothing for it: its queue is not
 * full. Another attempt would not help. Under ENGINE. */
static bool lacks_space(const struct tierce__level *level, int status)
{
    return !level->health.shared && status == TIERCE_E_FULL &&
           level->unwritten_bytes <= level->queue_bytes &&
           level->unwritten_chunks <= level->queue_chunks;
}

/* Returns whether an outage begins. Under ENGINE. */
static bool note_failure(struct tierce__level *level, const struct tierce__unsent_answer *answer)
{
    struct tierce__unsent *u = &level->unsent;
    int status = answer->status;
    bool is_late = answer->is_late;
    TIERCE_DASSERT(status < 0);
    if (is_late && lacks_space(level, status)) {
        lose(level, TIERCE_E_FULL);
        return false;
    }
    u->pass_fails |= is_late && (is_outage(status) || status == TIERCE_E_FULL);
    bool delays = is_outage(status) ? status != TIERCE_E_DOWN : is_late && status == TIERCE_E_FULL;
    if (delays)
        u->try_ns = tierce__now_ns() + level->health.limits.retry_ms * TIERCE__MS_NS;
    else if (is_late && status == TIERCE_E_DOWN) /* a link waits before it connects again */
        u->try_ns = tierce__now_ns() + LOOK_NS;
    if (!may_wait(u, answer)) {
        lose(level, answer->forgets ? 0 : loss_of(status, is_late));
        return false;
    }
    bool begins = begin_outage(u, status);
    remember(level, answer);
    return begins;
}

void tierce__unsent_note(struct tierce__level *level, const struct tierce__unsent_answer *answer)
{
    struct tierce__unsent *u = &level->unsent;
    const struct lines *lines = lines_of(level);
    int status = answer->status;
    bool is_late = answer->is_late;
    TIERCE_DASSERT(status <= 0 && (is_late || status < 0));
    bool is_revoked = status == TIERCE_E_CANCELLED || status == TIERCE_E_CLOSED;
    bool begins = false;
    if (u->chunks == NULL || (!is_late && is_revoked))
        return;
    tierce__lock_take(&level->engine->lock);
    if (is_late) {
        TIERCE_DASSERT(u->sending > 0);
        u->sending--;
    } else {
        enum tierce__unsent_reason reason = reason_of(status);
        u->skipped[reason]++;
        if (reason == TIERCE__UNSENT_QUEUE && u->drop_ns == 0)
            u->drop_ns = tierce__now_ns();
    }
    if (status == 0)
        u->sent_late++;
    else
        begins = note_failure(level, answer);
    tierce__lock_drop(&level->engine->lock);
    if (begins)
        tierce__log(TIERCE_LOG_WARN, lines->unsent,
                    "tier=%s reason=%s effect=\"the last %u chunks are %s, %s\"", name_of(level),
                    tierce__unsent_reason_name(reason_of(status)), TIERCE__UNSENT_MAX,
                    tierce__health_is_full(status) ? lines->room : lines->back, lines->effect);
}

void tierce__unsent_clear(struct tierce__level *level, const struct tierce__key *of)
{
    struct tierce__unsent *u = &level->unsent;
    tierce__lock_take(&level->engine->lock);
    for (uint32_t i = 0; i < u->count; i++) {
        struct tierce__storage_chunk *chunk = &at(u, i)->record;
        if (of == NULL || chunk->key.ns == of->ns)
            chunk->object_bytes = 0;
    }
    tierce__lock_drop(&level->engine->lock);
}

/* ---- sending it late ------------------------------------------------------------------------- */

/* Under ENGINE. */
static bool may_send(const struct tierce__level *level)
{
    const struct tierce__unsent *u = &level->unsent;
    return !u->stops && u->count > 0 && tierce__health_serves(&level->health) &&
           tierce__engine_mode(level->engine) == TIERCE_MODE_NORMAL &&
           tierce__now_ns() >= u->try_ns;
}

/* Whether it is the turn of the oldest chunk: late chunks leave half of the queue to new ones,
 * which would drop them, and follow chunks that were stored earlier and are not answered yet. Under
 * ENGINE. */
static bool is_next(const struct tierce__level *level)
{
    const struct tierce__unsent_chunk *oldest = at(&level->unsent, 0);
    uint64_t bytes = level->unwritten_bytes + oldest->record.object_bytes;
    bool has_room =
        level->unwritten_bytes == 0 ||
        (bytes <= level->queue_bytes / 2 && level->unwritten_chunks < level->queue_chunks / 2);
    return has_room && !tierce__storage_writes_before(level, oldest->serial);
}

/* The chunk from memory or from a local tier that is faster than the level [transfer], or NULL. */
static struct tierce__buf *find(const struct tierce__level *level,
                                const struct tierce__storage_chunk *chunk)
{
    struct tierce_engine *engine = level->engine;
    struct tierce__buf *buf = tierce__storage_lease(engine, &chunk->key);
    for (size_t i = 1; &engine->levels[i] < level && buf == NULL; i++) {
        struct tierce__storage_form form;
        int status;
        if (engine->levels[i].health.shared)
            break;
        if (tierce__storage_measure(engine, i, &chunk->key,
                                    tierce__deadline_in_ms(engine->settings.load_ms), &form) == 0)
            buf = tierce__chunk_read(engine, i, chunk, NULL, &status);
    }
    return buf;
}

static void send_one(struct tierce__level *level, const struct tierce__unsent_chunk *late)
{
    struct tierce_engine *engine = level->engine;
    const struct tierce__storage_chunk *chunk = &late->record;
    uint64_t era = tierce__era_of_read(engine);
    struct tierce__buf *buf = chunk->object_bytes > 0 ? find(level, chunk) : NULL;
    bool is_held = buf != NULL && buf->bytes >= chunk->object_bytes;
    if (is_held && tierce__era_enter(engine, era)) {
        tierce__storage_write_late(engine, (size_t)(level - engine->levels), chunk, late->serial,
                                   buf);
        tierce__era_leave(engine, era);
    } else {
        bool is_cleared = is_held || chunk->object_bytes == 0;
        tierce__unsent_note(level, &(struct tierce__unsent_answer){
                                       .chunk = chunk,
                                       .serial = late->serial,
                                       .is_late = true,
                                       .status = is_cleared ? TIERCE_E_CANCELLED : TIERCE_E_MISS});
    }
    tierce__buf_release(buf);
}

/* Blocks for a change of the engine, but not for long. Under ENGINE. */
static void look_later(struct tierce_engine *engine, uint64_t deadline_ns)
{
    uint64_t look_ns = tierce__now_ns() + LOOK_NS;
    (void)tierce__cond_wait(&engine->changed, &engine->lock,
                            look_ns < deadline_ns ? look_ns : deadline_ns);
}

/* The line at the end of an outage. Returns false if chunks still wait. Under ENGINE. */
static bool end_outage(struct tierce__unsent *u, uint64_t *sent, uint64_t *lost)
{
    if (!u->is_outage || waiting(u) > 0)
        return false;
    u->is_outage = u->lacks_room = false;
    *sent = u->sent_late - u->from_late;
    *lost = u->lost - u->from_lost;
    return true;
}

static void *run_sender(void *arg)
{
    struct tierce__level *level = arg;
    struct tierce_engine *engine = level->engine;
    struct tierce__unsent *u = &level->unsent;
    bool is_first = true;
    uint64_t sent, lost;
    tierce__lock_take(&engine->lock);
    u->pass_fails = false;
    while (may_send(level) && !u->pass_fails) {
        if (!is_next(level)) {
            look_later(engine, TIERCE__DEADLINE_NEVER);
            continue;
        }
        struct tierce__unsent_chunk chunk = take_oldest(u);
        u->sending++;
        u->in_hand = chunk.serial;
        tierce__lock_drop(&engine->lock);
        send_one(level, &chunk);
        tierce__lock_take(&engine->lock);
        u->in_hand = 0;
        while (is_first && u->sending > 0 && !u->stops)
            look_later(engine, TIERCE__DEADLINE_NEVER);
        is_first = false;
    }
    while (u->sending > 0 && !u->stops)
        look_later(engine, TIERCE__DEADLINE_NEVER);
    bool is_over = end_outage(u, &sent, &lost);
    u->runs = false;
    tierce__cond_broadcast(&engine->changed);
    tierce__lock_drop(&engine->lock);
    if (is_over)
        tierce__log(TIERCE_LOG_WARN, lines_of(level)->sent,
                    "tier=%s sent=%" PRIu64 " lost=%" PRIu64 "%s%s%s", name_of(level), sent, lost,
                    lost > 0 ? " hint=\"" : "", lost > 0 ? lines_of(level)->lost_hint : "",
                    lost > 0 ? "\"" : "");
    return NULL;
}

/* Under ENGINE. Returns whether there was a thread, which has ended. */
static bool take_thread(struct tierce__unsent *u, pthread_t *thread)
{
    bool has = u->has_thread && !u->runs;
    *thread = u->thread;
    u->has_thread = u->has_thread && !has;
    return has;
}

static void start_sender(struct tierce__level *level)
{
    struct tierce_engine *engine = level->engine;
    struct tierce__unsent *u = &level->unsent;
    pthread_t old;
    tierce__lock_take(&engine->lock);
    bool starts = !u->runs && may_send(level);
    bool had_thread = starts && take_thread(u, &old);
    u->runs = u->runs || starts;
    tierce__lock_drop(&engine->lock);
    if (!starts)
        return;
    if (had_thread)
        pthread_join(old, NULL);
    tierce__lock_take(&engine->lock);
    TIERCE_DASSERT(!u->has_thread);
    u->has_thread = pthread_create(&u->thread, NULL, run_sender, level) == 0;
    u->runs = u->has_thread;
    if (!u->has_thread) /* the next attempt is as late as after a failure */
        u->try_ns = tierce__now_ns() + level->health.limits.retry_ms * TIERCE__MS_NS;
    tierce__lock_drop(&engine->lock);
}

/* ---- the keeper, and the end ----------------------------------------------------------------- */

static void log_drops(struct tierce__level *level)
{
    struct tierce__unsent *u = &level->unsent;
    uint64_t now_ns = tierce__now_ns();
    tierce__lock_take(&level->engine->lock);
    bool logs = u->drop_ns != 0 && now_ns >= u->drop_ns + DROPS_GATHER_NS &&
                (u->logged_ns == 0 || now_ns >= u->logged_ns + DROPS_PERIOD_NS);
    uint64_t drops = u->skipped[TIERCE__UNSENT_QUEUE];
    uint64_t news = drops - u->drops_logged, queue_bytes = level->queue_bytes, lost = u->lost;
    if (logs) {
        u->drops_logged = drops;
        u->drop_ns = 0;
        u->logged_ns = now_ns;
    }
    tierce__lock_drop(&level->engine->lock);
    if (logs)
        tierce__log(TIERCE_LOG_WARN, lines_of(level)->dropped,
                    "tier=%s dropped=%" PRIu64 " total=%" PRIu64 " lost=%" PRIu64
                    " queue_bytes=%" PRIu64 " hint=\"%s\"",
                    name_of(level), news, drops, lost, queue_bytes, lines_of(level)->dropped_hint);
}

void tierce__unsent_keep(struct tierce_engine *engine)
{
    for (size_t i = 1; i < engine->level_count; i++) {
        if (engine->levels[i].unsent.chunks == NULL)
            continue;
        log_drops(&engine->levels[i]);
        start_sender(&engine->levels[i]);
    }
}

void tierce__unsent_stop(struct tierce_engine *engine)
{
    for (size_t i = 1; i < engine->level_count; i++) {
        struct tierce__level *level = &engine->levels[i];
        struct tierce__unsent *u = &level->unsent;
        tierce__lock_take(&engine->lock);
        u->stops = true;
        bool had_thread = u->has_thread;
        u->has_thread = false;
        uint64_t left = u->count;
        tierce__cond_broadcast(&engine->changed);
        tierce__lock_drop(&engine->lock);
        if (had_thread)
            pthread_join(u->thread, NULL);
        if (left > 0)
            tierce__log(TIERCE_LOG_WARN, lines_of(level)->left,
                        "tier=%s chunks=%" PRIu64
                        " reason=\"the engine was closed before they were "
                        "sent\"",
                        name_of(level), left);
    }
}

/* Whether chunks up to a serial wait that a flush waits for. Those that the tier has are requests
 * in the background. Under ENGINE. */
static bool has_early(const struct tierce__level *level, uint64_t last)
{
    const struct tierce__unsent *u = &level->unsent;
    bool is_waited_for = u->is_outage || !level->health.shared;
    bool is_in_hand = u->in_hand != 0 && u->in_hand <= last;
    return is_waited_for && (is_in_hand || (u->count > 0 && at(u, 0)->serial <= last));
}

/* Whether they are sent soon: after an outage of a remote store, or while a tier has no room, only
 * if a try is due. Under ENGINE. */
static bool are_sent_soon(const struct tierce__level *level)
{
    const struct tierce__unsent *u = &level->unsent;
    bool serves = !u->stops && tierce__health_serves(&level->health) &&
                  tierce__engine_mode(level->engine) == TIERCE_MODE_NORMAL;
    return u->sending > 0 || u->runs || may_send(level) ||
           (serves && !(u->is_outage && (level->health.shared || u->lacks_room)));
}

/* Blocks until the level's chunks up to a serial have been given to the tier. */
static int wait_for_level(struct tierce__level *level, uint64_t last, uint64_t deadline_ns)
{
    struct tierce_engine *engine = level->engine;
    int rc = 0;
    tierce__lock_take(&engine->lock);
    while (rc == 0 && has_early(level, last)) {
        const struct tierce__unsent *u = &level->unsent;
        bool is_down = !tierce__health_serves(&level->health) || u->is_outage;
        if (!are_sent_soon(level))
            rc = !is_down || u->lacks_room ? TIERCE_E_FULL : TIERCE_E_DOWN;
        else if (tierce__now_ns() >= deadline_ns)
            rc = TIERCE_E_DEADLINE;
        else
            look_later(engine, deadline_ns);
    }
    tierce__lock_drop(&engine->lock);
    return rc;
}

static uint64_t last_of(struct tierce__level *level)
{
    tierce__lock_take(&level->engine->lock);
    uint64_t last = level->engine->unattended_made;
    tierce__lock_drop(&level->engine->lock);
    return last;
}

void tierce__unsent_drain(struct tierce_engine *engine, uint64_t deadline_ns)
{
    for (size_t i = 1; i < engine->level_count; i++) {
        struct tierce__level *level = &engine->levels[i];
        /* The chunks that are left are logged at the end. */
        (void)wait_for_level(level, last_of(level), deadline_ns);
    }
}

static bool are_done(struct tierce_engine *engine, const uint64_t *lasts)
{
    bool are = true;
    tierce__lock_take(&engine->lock);
    for (size_t i = 1; i < engine->level_count; i++)
        are = are && !has_early(&engine->levels[i], lasts[i]);
    tierce__lock_drop(&engine->lock);
    return are;
}

/* Returns the loss of a chunk that no flush has returned yet, or 0. */
static int take_loss(struct tierce_engine *engine)
{
    int loss = 0;
    tierce__lock_take(&engine->lock);
    for (size_t i = 1; i < engine->level_count && loss == 0; i++) {
        loss = engine->levels[i].unsent.unsaid_loss;
        engine->levels[i].unsent.unsaid_loss = 0;
    }
    tierce__lock_drop(&engine->lock);
    return loss;
}

int tierce__unsent_wait(struct tierce_engine *engine, uint64_t deadline_ns)
{
    uint64_t lasts[TIERCE__TIERS_MAX];
    int rc = 0;
    for (size_t i = 1; i < engine->level_count; i++)
        lasts[i] = last_of(&engine->levels[i]);
    int failed = 0;
    do { /* a late write may fail, and its chunk wait again */
        for (size_t i = 1; i < engine->level_count; i++) {
            int waited = wait_for_level(&engine->levels[i], lasts[i], deadline_ns);
            rc = rc == 0 ? waited : rc;
        }
        if (rc < 0)
            return rc; /* the caller tries again: a loss is returned by then */
        int of_puts = tierce__storage_wait_for_puts(engine, deadline_ns);
        failed = failed == 0 ? of_puts : failed;
    } while (!are_done(engine, lasts));
    int loss = take_loss(engine);
    return failed == 0 ? loss : failed;
}

void tierce__unsent_report(struct tierce__level *level, struct tierce__unsent_report *out)
{
    const struct tierce__unsent *u = &level->unsent;
    tierce__lock_take(&level->engine->lock);
    *out = (struct tierce__unsent_report){
        .sent_late = u->sent_late, .lost = u->lost, .waiting = waiting(u)};
    for (size_t i = 0; i < TIERCE__UNSENT_REASONS; i++) {
        out->skipped[i] = u->skipped[i];
        out->chunks += u->skipped[i];
    }
    tierce__lock_drop(&level->engine->lock);
    TIERCE_DASSERT(out->chunks == out->sent_late + out->lost + out->waiting);
}
