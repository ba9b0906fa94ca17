/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/jobs/block_jobs.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "engine/engine.h"
#include "engine/store/room_wait.h"
#include "engine/view.h"

enum {
    BATCH = 16, /* blocks that a thread moves together: so many reads are in progress */
    ASKED = 64, /* questions that are asked together */
};

/* A tier that writes more slowly than this loses blocks in the end. */
#define SLOWEST_BYTES_PER_S (UINT64_C(64) << 20)

/* Blocks of a store that a thread has begun, and for which there was no room. */
struct block_piece {
    struct tierce__list node;
    struct tierce__block_job *job;
    size_t from, count;
};

struct tierce__block_jobs {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce__block_jobs_opts opts;
    struct tierce_view **views; /* [opts.view_count] */
    struct tierce__threads movers, asker, waiter;
    _Atomic bool stops; /* nobody waits for room any more */

    struct tierce__lock lock; /* all below */
    struct tierce__cond to_move, to_ask, to_wait, idle;
    struct tierce__list queues[2]; /* by operation: jobs with blocks that no thread has begun */
    struct tierce__list crowded;   /* pieces, in the order of their jobs */
    struct block_piece *pieces;    /* [opts.threads] of the threads that move */
    bool is_waiting;               /* for room for a piece */
    struct tierce__list finished;
    struct tierce__block_answers answers;
    size_t blocks; /* of jobs that are not finished */
    uint32_t movers_born;
    uint32_t movers_idle; /* wait for to_move */
    uint64_t refused;
    bool is_ending;
};

#define BLOCK_JOBS_MAGIC 0x7e1e0009u

/* ---- one block ------------------------------------------------------------------------------- */

/* A block as a prompt of one block, whose paged memory is its place in the region. */
struct job_place {
    struct tierce_chain *chain;
    struct tierce_paged_layer layer;
    struct tierce_paged paged;
    struct tierce_transfer_opts opts;
};

static const int32_t first_block = 0;

/* The chain of one block; NULL if there is no memory. */
static struct tierce_chain *make_chain(const struct tierce_view *view,
                                       const struct tierce__block_key *key)
{
    struct tierce_chain *chain;
    if (tierce_view_chain(&chain, view, NULL) < 0)
        return NULL;
    int64_t blocks = tierce_chain_append_hashes(chain, key->hash, 1);
    TIERCE_DASSERT(blocks < 0 || blocks == 1);
    if (blocks == 1)
        return chain;
    tierce_chain_destroy(chain);
    return NULL;
}

/* False: there is no memory, and place->chain is NULL. */
static bool place_init(struct job_place *place, const struct tierce__block_jobs *jobs,
                       const struct tierce__block *block)
{
    uint32_t bytes = jobs->opts.block_bytes;
    TIERCE_ASSERT(block->offset <= jobs->opts.region_bytes - bytes);
    place->chain = make_chain(jobs->views[block->key.view], &block->key);
    if (place->chain == NULL)
        return false;
    place->layer = (struct tierce_paged_layer){jobs->opts.region + block->offset, bytes, bytes};
    place->paged =
        (struct tierce_paged){sizeof(place->paged), &place->layer, 1, 1, TIERCE_DEVICE_HOST};
    place->opts = (struct tierce_transfer_opts){.size = sizeof(place->opts),
                                                .chain = place->chain,
                                                .to_block = 1,
                                                .paged = &place->paged,
                                                .block_ids = &first_block};
    return true;
}

/* Asks the tiers for one block. *pending: a remote store has not answered yet. */
static bool is_held(struct tierce_view *view, const struct tierce_chain *chain, unsigned flags,
                    uint32_t wait_ms, bool *pending)
{
    struct tierce_lookup_opts opts = {.size = sizeof(opts), .flags = flags, .wait_ms = wait_ms};
    struct tierce_found found;
    int rc = tierce_lookup(view, chain, 1, &opts, &found);
    TIERCE_DASSERT(rc < 0 || found.blocks <= 1);
    *pending = rc == 0 && found.pending;
    return rc == 0 && found.blocks == 1;
}

/* ---- moving ---------------------------------------------------------------------------------- */

static bool store_block(const struct tierce__block_jobs *jobs, const struct tierce__block *block,
                        struct tierce__room_wait *room_wait)
{
    struct job_place place;
    if (!place_init(&place, jobs, block))
        return false;
    struct tierce_view *view = jobs->views[block->key.view];
    int64_t stored = tierce__store_waiting(view, &place.opts, room_wait);
    TIERCE_DASSERT(stored <= 1);
    bool pending, held = stored == 1;
    if (stored == 0 && !room_wait->is_full) /* a tier has it, or is getting it */
        held = is_held(view, place.chain, TIERCE_LOOKUP_NO_WAIT, 0, &pending);
    tierce_chain_destroy(place.chain);
    return held;
}

/*
 * Stores blocks up to the first without room by deadline_ns (0: at once); returns its index, or
 * count. The blocks after it are not stored in its place: in vLLM's order, the later blocks of a
 * prompt cannot be used without the earlier ones.
 */
static size_t store_blocks(const struct tierce__block_jobs *jobs,
                           const struct tierce__block *blocks, size_t count, bool *moved,
                           uint64_t deadline_ns)
{
    for (size_t i = 0; i < count; i++) {
        struct tierce__room_wait room_wait = {.deadline_ns = deadline_ns, .stops = &jobs->stops};
        moved[i] = store_block(jobs, &blocks[i], &room_wait);
        if (room_wait.is_full)
            return i;
    }
    return count;
}

struct loading {
    struct job_place place; /* without a chain: it could not be begun */
    struct tierce_load *load;
};

static void begin_loading(struct loading *loading, const struct tierce__block_jobs *jobs,
                          const struct tierce__block *block)
{
    *loading = (struct loading){0};
    if (!place_init(&loading->place, jobs, block))
        return;
    struct tierce_load *load;
    if (tierce_load_begin(&load, jobs->views[block->key.view], &loading->place.opts) == 0)
        loading->load = load;
}

static bool end_loading(struct loading *loading)
{
    uint8_t origin = TIERCE_ORIGIN_FAILED;
    if (loading->load != NULL) {
        int rc = tierce_load_layer(loading->load, 0);
        TIERCE_ASSERT(rc == 0);
        int64_t loaded = tierce_load_end(loading->load, &origin);
        TIERCE_ASSERT(loaded == (origin != TIERCE_ORIGIN_FAILED));
    }
    tierce_chain_destroy(loading->place.chain);
    return origin != TIERCE_ORIGIN_FAILED;
}

/* All are begun before the first is waited for. */
static void load_blocks(const struct tierce__block_jobs *jobs, const struct tierce__block *blocks,
                        size_t count, bool *moved)
{
    struct loading loadings[BATCH];
    TIERCE_DASSERT(count <= BATCH);
    for (size_t i = 0; i < count; i++)
        begin_loading(&loadings[i], jobs, &blocks[i]);
    for (size_t i = 0; i < count; i++)
        moved[i] = end_loading(&loadings[i]);
}

/* ---- the threads that move ------------------------------------------------------------------- */

/* Blocks of a store had no room by the deadline of their job. [in] uncounted: of these, those that
 * were not tried, so that the engine has not counted them. */
static void note_lost(const struct tierce__block_jobs *jobs, size_t uncounted)
{
    if (atomic_load(&jobs->stops))
        return;
    tierce__count(jobs->engine, TIERCE__STAT_stores_skipped, (int64_t)uncounted);
    tierce__log_repeated(TIERCE_LOG_WARN, "blocks_not_stored",
                         "reason=\"the disk or remote stores write more slowly than vLLM stores; "
                         "use faster ones, or "
                         "raise memory.size for short peaks\" memory_bytes=%llu",
                         (unsigned long long)jobs->engine->settings.memory_bytes);
}

/* Blocks [from, to) of a job have ended. The lock is held. */
static void end_blocks(struct tierce__block_jobs *jobs, struct tierce__block_job *job, size_t from,
                       size_t to, uint64_t now_ns)
{
    tierce__lock_assert_held(&jobs->lock);
    TIERCE_DASSERT(from <= to && to <= job->begun);
    if (from == to)
        return;
    for (size_t i = from; i < to; i++) {
        job->moved_count += job->moved[i];
        if (job->moved[i] || job->op == TIERCE__BLOCK_LOAD)
            tierce__answers_note(&jobs->answers, &job->blocks[i].key, job->moved[i], now_ns);
    }
    job->ended += to - from;
    TIERCE_DASSERT(job->moved_count <= job->ended && job->ended <= job->begun);
    if (job->ended < job->count)
        return;
    TIERCE_DASSERT(jobs->blocks >= job->count && job->ended == job->count);
    jobs->blocks -= job->count;
    job->ended_ns = now_ns;
    tierce__list_push_back(&jobs->finished, &job->node);
    if (jobs->blocks == 0)
        tierce__cond_broadcast(&jobs->idle);
}

/* Whether stores wait for room. Then no other store is begun, because it would take the room of an
 * earlier one. The lock is held. */
static bool is_crowded(const struct tierce__block_jobs *jobs)
{
    tierce__lock_assert_held(&jobs->lock);
    return jobs->is_waiting || !tierce__list_empty(&jobs->crowded);
}

static bool has_next(const struct tierce__block_jobs *jobs, enum tierce__block_op op)
{
    return !tierce__list_empty(&jobs->queues[op]) &&
           (op == TIERCE__BLOCK_LOAD || !is_crowded(jobs));
}

/* The job whose blocks are next. The lock is held. */
static struct tierce__block_job *next_job(const struct tierce__block_jobs *jobs,
                                          enum tierce__block_op preferred)
{
    tierce__lock_assert_held(&jobs->lock);
    enum tierce__block_op op = preferred;
    if (!has_next(jobs, op))
        op = preferred == TIERCE__BLOCK_LOAD ? TIERCE__BLOCK_STORE : TIERCE__BLOCK_LOAD;
    if (!has_next(jobs, op))
        return NULL;
    struct tierce__block_job *job =
        TIERCE__CONTAINER_OF(jobs->queues[op].next, struct tierce__block_job, node);
    TIERCE_DASSERT(job->begun < job->count && job->ended <= job->begun);
    return job;
}

/* Begins the next blocks of a job; returns how many. The lock is held. */
static size_t begin_blocks(struct tierce__block_job *job)
{
    size_t left = job->count - job->begun, count = left < BATCH ? left : BATCH;
    TIERCE_DASSERT(count > 0);
    job->begun += count;
    if (job->begun == job->count)
        tierce__list_remove(&job->node);
    return count;
}

/* Returns how many blocks have moved or failed; the others wait for room. */
static size_t move_blocks(const struct tierce__block_jobs *jobs, struct tierce__block_job *job,
                          size_t from, size_t count)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    bool is_late = tierce__now_ns() >= job->deadline_ns;
    if (!is_late && job->op == TIERCE__BLOCK_STORE)
        return store_blocks(jobs, &job->blocks[from], count, &job->moved[from], 0);
    if (!is_late)
        load_blocks(jobs, &job->blocks[from], count, &job->moved[from]);
    else if (job->op == TIERCE__BLOCK_STORE)
        note_lost(jobs, count);
    return count;
}

/* Gives blocks without room to the thread that waits for it. A thread has one piece, because stores
 * are not begun while there are pieces. False: nobody waits any more. The lock is held. */
static bool hand_over(struct tierce__block_jobs *jobs, struct block_piece *piece)
{
    tierce__lock_assert_held(&jobs->lock);
    TIERCE_DASSERT(tierce__list_empty(&piece->node) && piece->count > 0);
    if (jobs->is_ending)
        return false;
    struct tierce__list *at = jobs->crowded.next;
    for (; at != &jobs->crowded; at = at->next) {
        const struct block_piece *other = TIERCE__CONTAINER_OF(at, struct block_piece, node);
        bool is_later = other->job == piece->job ? other->from > piece->from
                                                 : other->job->began_ns > piece->job->began_ns;
        if (is_later)
            break;
    }
    tierce__list_push_back(at, &piece->node); /* before it */
    tierce__cond_signal(&jobs->to_wait);
    return true;
}

/* Whether a thread waits although there are blocks to move. The threads wake each other: to wake
 * all would delay the inference engine's thread, which submits. The lock is held. */
static bool must_wake(const struct tierce__block_jobs *jobs)
{
    tierce__lock_assert_held(&jobs->lock);
    TIERCE_DASSERT(jobs->movers_idle <= jobs->movers_born);
    return jobs->movers_idle > 0 && next_job(jobs, TIERCE__BLOCK_LOAD) != NULL;
}

/* The lock is held. It is dropped meanwhile. */
static void move_next(struct tierce__block_jobs *jobs, struct tierce__block_job *job,
                      struct block_piece *piece)
{
    size_t from = job->begun, count = begin_blocks(job);
    bool wakes = must_wake(jobs);
    tierce__lock_drop(&jobs->lock);
    if (wakes)
        tierce__cond_signal(&jobs->to_move);
    size_t done = move_blocks(jobs, job, from, count);
    uint64_t now_ns = tierce__now_ns();
    tierce__lock_take(&jobs->lock);
    TIERCE_DASSERT(done <= count);
    if (done < count) {
        piece->job = job;
        piece->from = from + done;
        piece->count = count - done;
        if (!hand_over(jobs, piece))
            done = count;
    }
    end_blocks(jobs, job, from, from + done, now_ns);
}

static void *move_jobs(void *arg)
{
    struct tierce__block_jobs *jobs = arg;
    tierce__thread_does_not_interrupt();
    tierce__lock_take(&jobs->lock);
    struct block_piece *piece = &jobs->pieces[jobs->movers_born++];
    TIERCE_DASSERT(jobs->movers_born <= jobs->opts.threads);
    /* The last of several threads: loads without a pause must not hold up the stores. */
    bool is_last = jobs->movers_born == jobs->opts.threads && jobs->opts.threads > 1;
    tierce__list_init(&piece->node);
    enum tierce__block_op preferred = is_last ? TIERCE__BLOCK_STORE : TIERCE__BLOCK_LOAD;
    while (!jobs->is_ending) {
        struct tierce__block_job *job = next_job(jobs, preferred);
        if (job == NULL) {
            jobs->movers_idle++;
            (void)tierce__cond_wait(&jobs->to_move, &jobs->lock, TIERCE__DEADLINE_NEVER);
            jobs->movers_idle--;
            continue;
        }
        move_next(jobs, job, piece);
    }
    tierce__lock_drop(&jobs->lock);
    return NULL;
}

/* ---- the thread that waits for room ---------------------------------------------------------- */

/* The lock is held. It is dropped meanwhile. */
static void store_piece(struct tierce__block_jobs *jobs, const struct block_piece *piece)
{
    struct tierce__block_job *job = piece->job;
    size_t from = piece->from, count = piece->count;
    TIERCE_DASSERT(count > 0 && from + count <= job->begun);
    jobs->is_waiting = true;
    tierce__lock_drop(&jobs->lock);
    bool is_late = tierce__now_ns() >= job->deadline_ns;
    size_t done = 0;
    if (!is_late)
        done = store_blocks(jobs, &job->blocks[from], count, &job->moved[from], job->deadline_ns);
    TIERCE_DASSERT(done <= count);
    if (done < count)
        note_lost(jobs, count - done - !is_late);
    uint64_t now_ns = tierce__now_ns();
    tierce__lock_take(&jobs->lock);
    jobs->is_waiting = false;
    end_blocks(jobs, job, from, from + count, now_ns);
}

/* So that the other threads are free for loads. */
static void *wait_for_room(void *arg)
{
    struct tierce__block_jobs *jobs = arg;
    tierce__thread_does_not_interrupt();
    tierce__lock_take(&jobs->lock);
    while (!jobs->is_ending || is_crowded(jobs)) {
        if (!is_crowded(jobs)) {
            (void)tierce__cond_wait(&jobs->to_wait, &jobs->lock, TIERCE__DEADLINE_NEVER);
            continue;
        }
        struct block_piece *piece =
            TIERCE__CONTAINER_OF(jobs->crowded.next, struct block_piece, node);
        tierce__list_remove(&piece->node);
        store_piece(jobs, piece);
        if (!is_crowded(jobs))
            tierce__cond_broadcast(&jobs->to_move);
    }
    tierce__lock_drop(&jobs->lock);
    return NULL;
}

/* ---- the thread that asks -------------------------------------------------------------------- */

struct job_question {
    struct tierce__block_key key;
    struct tierce_chain *chain; /* NULL: answered */
};

static void tell(struct tierce__block_jobs *jobs, struct job_question *question, bool held)
{
    uint64_t now_ns = tierce__now_ns();
    tierce__lock_take(&jobs->lock);
    tierce__answers_tell(&jobs->answers, &question->key, held, now_ns);
    tierce__lock_drop(&jobs->lock);
    tierce_chain_destroy(question->chain);
    question->chain = NULL;
}

static uint32_t ms_until(uint64_t deadline_ns)
{
    uint64_t now_ns = tierce__now_ns();
    uint64_t left = deadline_ns > now_ns ? (deadline_ns - now_ns) / TIERCE__MS_NS : 0;
    return left > 0 ? (uint32_t)left : 1; /* 0 stands for the default */
}

/* Begins the queries of all; then waits for those that are in progress, together no longer than for
 * one. */
static void ask_all(struct tierce__block_jobs *jobs, struct job_question *questions, size_t count)
{
    TIERCE_DASSERT(count <= ASKED);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    bool pending;
    for (size_t i = 0; i < count; i++) {
        struct job_question *question = &questions[i];
        struct tierce_view *view = jobs->views[question->key.view];
        question->chain = make_chain(view, &question->key);
        if (question->chain == NULL) {
            tell(jobs, question, false);
            continue;
        }
        bool held = is_held(view, question->chain, TIERCE_LOOKUP_NO_WAIT | TIERCE_LOOKUP_AGAIN, 0,
                            &pending);
        if (held || !pending)
            tell(jobs, question, held);
    }
    uint64_t deadline_ns = tierce__deadline_in_ms(jobs->engine->settings.lookup_ms);
    for (size_t i = 0; i < count; i++) {
        struct job_question *question = &questions[i];
        if (question->chain != NULL)
            tell(jobs, question,
                 is_held(jobs->views[question->key.view], question->chain, 0, ms_until(deadline_ns),
                         &pending));
    }
}

static void *ask_questions(void *arg)
{
    struct tierce__block_jobs *jobs = arg;
    struct job_question questions[ASKED];
    tierce__thread_does_not_interrupt();
    tierce__lock_take(&jobs->lock);
    while (!jobs->is_ending) {
        uint64_t now_ns = tierce__now_ns();
        size_t count = 0;
        while (count < ASKED && tierce__answers_next(&jobs->answers, &questions[count].key, now_ns))
            questions[count++].chain = NULL;
        if (count == 0) {
            (void)tierce__cond_wait(&jobs->to_ask, &jobs->lock, TIERCE__DEADLINE_NEVER);
            continue;
        }
        tierce__lock_drop(&jobs->lock);
        ask_all(jobs, questions, count);
        tierce__lock_take(&jobs->lock);
    }
    tierce__lock_drop(&jobs->lock);
    return NULL;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool is_usable(const struct tierce__block_jobs *jobs)
{
    TIERCE_CHECK_MAGIC(jobs, BLOCK_JOBS_MAGIC);
    return !tierce__engine_inherited(jobs->engine);
}

static bool has_view(const struct tierce__block_jobs *jobs, uint32_t index)
{
    return index < jobs->opts.view_count && jobs->views[index] != NULL;
}

static bool fits(const struct tierce__block_jobs *jobs, const struct tierce__block *block)
{
    const struct tierce__block_jobs_opts *opts = &jobs->opts;
    return has_view(jobs, block->key.view) && block->offset <= opts->region_bytes &&
           opts->block_bytes <= opts->region_bytes - block->offset;
}

static struct tierce__block_job *make_job(const struct tierce__block *blocks, size_t count)
{
    size_t each = sizeof(*blocks) + sizeof(bool);
    if (count > (SIZE_MAX - sizeof(struct tierce__block_job)) / each)
        return NULL;
    struct tierce__block_job *job = tierce__calloc(1, sizeof(*job) + count * each);
    if (job == NULL)
        return NULL;
    job->count = count;
    job->moved = (bool *)(void *)&job->blocks[count];
    memcpy(job->blocks, blocks, count * sizeof(*blocks));
    tierce__list_init(&job->node);
    return job;
}

/* The lock is held. */
static int queue_job(struct tierce__block_jobs *jobs, struct tierce__block_job *job)
{
    tierce__lock_assert_held(&jobs->lock);
    size_t max = jobs->opts.blocks_max;
    if (jobs->blocks > 0 && (jobs->blocks >= max || job->count > max - jobs->blocks)) {
        jobs->refused++;
        return TIERCE_E_FULL;
    }
    jobs->blocks += job->count;
    TIERCE_DASSERT(jobs->blocks <= max || jobs->blocks == job->count);
    tierce__list_push_back(&jobs->queues[job->op], &job->node);
    return 0;
}

/* How long a slow tier needs for so many blocks. */
static uint64_t time_to_write(const struct tierce__block_jobs *jobs, size_t blocks)
{
    TIERCE_DASSERT(blocks > 0);
    return (uint64_t)blocks * jobs->opts.block_bytes / (SLOWEST_BYTES_PER_S / 1000) * TIERCE__MS_NS;
}

static void note_refused(struct tierce__block_jobs *jobs, const struct tierce__block *blocks,
                         size_t count)
{
    uint64_t now_ns = tierce__now_ns();
    tierce__lock_take(&jobs->lock);
    for (size_t i = 0; i < count; i++)
        tierce__answers_note(&jobs->answers, &blocks[i].key, false, now_ns);
    tierce__lock_drop(&jobs->lock);
}

int tierce__block_jobs_submit(struct tierce__block_jobs *jobs, uint64_t id,
                              enum tierce__block_op op, const struct tierce__block *blocks,
                              size_t count)
{
    if (!is_usable(jobs))
        return TIERCE_E_CLOSED;
    if (count == 0)
        return TIERCE_E_ARGUMENT;
    for (size_t i = 0; i < count; i++) {
        if (!fits(jobs, &blocks[i]))
            return TIERCE_E_ARGUMENT;
    }
    struct tierce__block_job *job = make_job(blocks, count);
    int rc = -ENOMEM;
    bool wakes = false;
    if (job != NULL) {
        job->id = id;
        job->op = op;
        job->began_ns = tierce__now_ns();
        job->deadline_ns = tierce__deadline_in_ms(jobs->opts.timeout_ms);
        tierce__lock_take(&jobs->lock);
        if (op == TIERCE__BLOCK_STORE) /* the slower tiers need time for it, and for those before */
            job->deadline_ns += time_to_write(jobs, jobs->blocks + count);
        rc = queue_job(jobs, job);
        wakes = must_wake(jobs);
        tierce__lock_drop(&jobs->lock);
    }
    if (wakes) /* without the lock, because the thread that wakes takes it */
        tierce__cond_signal(&jobs->to_move);
    if (rc < 0) {
        tierce__block_job_free(job);
        if (op == TIERCE__BLOCK_LOAD)
            note_refused(jobs, blocks, count);
    }
    return rc;
}

struct tierce__block_job *tierce__block_jobs_poll(struct tierce__block_jobs *jobs)
{
    if (!is_usable(jobs))
        return NULL;
    struct tierce__block_job *job = NULL;
    tierce__lock_take(&jobs->lock);
    if (!tierce__list_empty(&jobs->finished)) {
        job = TIERCE__CONTAINER_OF(jobs->finished.next, struct tierce__block_job, node);
        tierce__list_remove(&job->node);
    }
    tierce__lock_drop(&jobs->lock);
    TIERCE_DASSERT(job == NULL || (job->ended == job->count && job->moved_count <= job->count));
    return job;
}

void tierce__block_job_free(struct tierce__block_job *job)
{
    tierce__free(job);
}

enum tierce__block_found tierce__block_jobs_lookup(struct tierce__block_jobs *jobs,
                                                   const struct tierce__block_key *key)
{
    if (!is_usable(jobs) || !has_view(jobs, key->view))
        return TIERCE__BLOCK_MISS;
    uint64_t now_ns = tierce__now_ns();
    tierce__lock_take(&jobs->lock);
    enum tierce__block_found found = tierce__answers_find(&jobs->answers, key, now_ns);
    if (!tierce__list_empty(&jobs->answers.to_ask))
        tierce__cond_signal(&jobs->to_ask);
    tierce__lock_drop(&jobs->lock);
    return found;
}

int tierce__block_jobs_drain(struct tierce__block_jobs *jobs, uint32_t timeout_ms)
{
    if (!is_usable(jobs))
        return 0;
    uint64_t deadline_ns = tierce__deadline_in_ms(timeout_ms);
    bool in_time = true;
    tierce__lock_take(&jobs->lock);
    while (jobs->blocks > 0 && in_time)
        in_time = tierce__cond_wait(&jobs->idle, &jobs->lock, deadline_ns);
    bool is_idle = jobs->blocks == 0;
    tierce__lock_drop(&jobs->lock);
    return is_idle ? 0 : TIERCE_E_DEADLINE;
}

void tierce__block_jobs_state(struct tierce__block_jobs *jobs, struct tierce__block_jobs_state *out)
{
    *out = (struct tierce__block_jobs_state){0};
    if (!is_usable(jobs))
        return;
    tierce__lock_take(&jobs->lock);
    *out = (struct tierce__block_jobs_state){.blocks = jobs->blocks,
                                             .jobs_refused = jobs->refused,
                                             .lookups_crowded = jobs->answers.crowded};
    tierce__lock_drop(&jobs->lock);
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* The engine of the views; NULL if there is none, or one has another shape. */
static struct tierce_engine *engine_of(const struct tierce__block_jobs_opts *opts)
{
    struct tierce_engine *engine = NULL;
    for (uint32_t i = 0; i < opts->view_count; i++) {
        const struct tierce_view *view = opts->views[i];
        if (view == NULL)
            continue;
        TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
        if (view->part.layer_count != 1 || view->part.count > 1 || view->chunk_blocks != 1 ||
            view->cell_bytes[0] != opts->block_bytes || (engine != NULL && view->engine != engine))
            return NULL;
        engine = view->engine;
    }
    return engine;
}

static int start_jobs(struct tierce__block_jobs *jobs)
{
    const struct tierce__block_jobs_opts *opts = &jobs->opts;
    TIERCE_DASSERT(opts->view_count > 0 && opts->threads > 0);
    jobs->views = tierce__calloc(opts->view_count, sizeof(*jobs->views));
    if (jobs->views == NULL)
        return -ENOMEM;
    memcpy(jobs->views, opts->views, opts->view_count * sizeof(*jobs->views));
    jobs->pieces = tierce__calloc(opts->threads, sizeof(*jobs->pieces));
    if (jobs->pieces == NULL)
        return -ENOMEM;
    int rc = tierce__answers_init(&jobs->answers, &opts->answers);
    if (rc == 0)
        rc = tierce__threads_start(&jobs->waiter, 1, wait_for_room, jobs);
    if (rc == 0)
        rc = tierce__threads_start(&jobs->movers, opts->threads, move_jobs, jobs);
    if (rc == 0)
        rc = tierce__threads_start(&jobs->asker, 1, ask_questions, jobs);
    return rc;
}

int tierce__block_jobs_open(struct tierce__block_jobs **out,
                            const struct tierce__block_jobs_opts *opts)
{
    struct tierce_engine *engine = engine_of(opts);
    if (engine == NULL || opts->threads == 0 || opts->threads > TIERCE__BLOCK_THREADS_MAX ||
        opts->blocks_max == 0 || opts->answers.count_max == 0)
        return TIERCE_E_ARGUMENT;
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    struct tierce__block_jobs *jobs = tierce__calloc(1, sizeof(*jobs));
    if (jobs == NULL)
        return -ENOMEM;
    jobs->magic = BLOCK_JOBS_MAGIC;
    jobs->engine = engine;
    jobs->opts = *opts;
    tierce__lock_init(&jobs->lock, TIERCE__LOCK_BLOCK_JOBS);
    tierce__cond_init(&jobs->to_move);
    tierce__cond_init(&jobs->to_ask);
    tierce__cond_init(&jobs->to_wait);
    tierce__list_init(&jobs->crowded);
    tierce__cond_init(&jobs->idle);
    tierce__list_init(&jobs->queues[TIERCE__BLOCK_STORE]);
    tierce__list_init(&jobs->queues[TIERCE__BLOCK_LOAD]);
    tierce__list_init(&jobs->finished);
    int rc = start_jobs(jobs);
    if (rc < 0)
        tierce__block_jobs_close(jobs);
    else
        *out = jobs;
    return rc;
}

static void free_list(struct tierce__list *list)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, list) {
        tierce__list_remove(it);
        tierce__block_job_free(TIERCE__CONTAINER_OF(it, struct tierce__block_job, node));
    }
}

void tierce__block_jobs_close(struct tierce__block_jobs *jobs)
{
    if (jobs == NULL || !is_usable(jobs))
        return;
    tierce__lock_take(&jobs->lock);
    TIERCE_DASSERT(!jobs->is_ending);
    jobs->is_ending = true;
    tierce__cond_broadcast(&jobs->to_move);
    tierce__cond_broadcast(&jobs->to_ask);
    tierce__cond_broadcast(&jobs->to_wait);
    atomic_store(&jobs->stops, true);
    tierce__lock_drop(&jobs->lock);
    if (jobs->engine->pool != NULL) /* of a client, it is NULL */
        tierce__pool_wake(jobs->engine->pool);
    tierce__threads_join(&jobs->movers);
    tierce__threads_join(&jobs->asker);
    tierce__threads_join(&jobs->waiter);
    TIERCE_DASSERT(tierce__list_empty(&jobs->crowded));
    free_list(&jobs->queues[TIERCE__BLOCK_STORE]);
    free_list(&jobs->queues[TIERCE__BLOCK_LOAD]);
    free_list(&jobs->finished);
    tierce__answers_fini(&jobs->answers);
    tierce__cond_fini(&jobs->idle);
    tierce__cond_fini(&jobs->to_wait);
    tierce__cond_fini(&jobs->to_ask);
    tierce__cond_fini(&jobs->to_move);
    tierce__lock_fini(&jobs->lock);
    tierce__free(jobs->pieces);
    tierce__free(jobs->views);
    jobs->magic = 0;
    tierce__free(jobs);
}
