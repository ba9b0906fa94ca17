/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/prefetch/ahead.h"

#include <errno.h>

#include <tierce/prefetch.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "engine/prefetch/returns.h"
#include "engine/observe/operate.h"
#include "engine/view.h"

#define SESSIONS_MAX 4096u
#define BLOCKS_MAX   524288u     /* of all conversations, 32 bytes each */
#define BURST_NS     1000000000u /* of the budget that is kept while nothing is read */
#define PIECE_SHARE  8u          /* of the budget of a second, in one piece */
#define MEMORY_SHARE 4u          /* of memory, for chunks that no request has used yet */
#define TURN_NS      200000000u  /* two turns of the keeper */

/* The conversation that is being read. Owned by the keeper, except `piece`. */
struct reading {
    struct tierce_chain *chain; /* NULL: none */
    struct tierce__key space;   /* of its namespace and shard */
    enum tierce__return_source source;
    size_t at, end; /* chunks */
    size_t piece_end;
    uint64_t lapses_ns;
};

struct tierce__ahead {
    struct tierce_engine *engine;
    uint64_t bytes_per_s;
    struct reading reading;
    int64_t credit_bytes; /* that may be read now; below 0 after a piece that was larger */
    uint64_t credited_ns;

    struct tierce__lock lock; /* AHEAD: below */
    struct tierce__returns returns;
    struct tierce_prefetch *piece; /* of `view`, which may end it when it is closed */
    const struct tierce_view *view;
    bool piece_over; /* its result is final */
    bool ending;     /* the keeper ends a piece of `view` */
    struct tierce__cond changed;
};

int tierce__ahead_create(struct tierce__ahead **out, struct tierce_engine *engine,
                         uint64_t bytes_per_s)
{
    *out = NULL;
    if (bytes_per_s == 0)
        return 0;
    struct tierce__ahead *ahead = tierce__calloc(1, sizeof(*ahead));
    if (ahead == NULL)
        return -ENOMEM;
    int rc = tierce__returns_init(&ahead->returns, SESSIONS_MAX, BLOCKS_MAX);
    if (rc < 0) {
        tierce__free(ahead);
        return rc;
    }
    ahead->engine = engine;
    ahead->bytes_per_s = bytes_per_s;
    ahead->credited_ns = tierce__now_ns();
    tierce__lock_init(&ahead->lock, TIERCE__LOCK_AHEAD);
    tierce__cond_init(&ahead->changed);
    *out = ahead;
    return 0;
}

void tierce__ahead_destroy(struct tierce__ahead *ahead)
{
    if (ahead == NULL)
        return;
    TIERCE_ASSERT(ahead->piece == NULL);
    tierce_chain_destroy(ahead->reading.chain);
    tierce__returns_fini(&ahead->returns);
    tierce__cond_fini(&ahead->changed);
    tierce__lock_fini(&ahead->lock);
    tierce__free(ahead);
}

static uint64_t rate_of(const struct tierce__ahead *ahead, enum tierce__return_source source)
{
    uint32_t weight = ahead->returns.weights[source].weight;
    uint64_t rate = ahead->bytes_per_s / TIERCE__RETURN_WEIGHTS * weight;
    return rate > 0 ? rate : 1;
}

uint64_t tierce__ahead_rate(struct tierce__ahead *ahead)
{
    if (ahead == NULL)
        return 0;
    tierce__lock_take(&ahead->lock);
    uint64_t hinted = rate_of(ahead, TIERCE__RETURN_HINTED);
    uint64_t learned = rate_of(ahead, TIERCE__RETURN_LEARNED);
    tierce__lock_drop(&ahead->lock);
    return hinted > learned ? hinted : learned;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* How long reading takes from the slowest tier, within the budget. */
static void set_lead(struct tierce__return_request *request, const struct tierce_view *view)
{
    struct tierce_engine *engine = view->engine;
    double slowest = (double)engine->ahead->bytes_per_s, latency_s = 0;
    for (size_t level = 1; level < engine->level_count; level++) {
        struct tierce__speed speed;
        if (!tierce__health_serves(&engine->levels[level].health))
            continue;
        tierce__health_speed(&engine->levels[level].health, &speed);
        if (speed.bytes_per_s > 0 && speed.bytes_per_s < slowest)
            slowest = speed.bytes_per_s;
        latency_s = speed.latency_s > latency_s ? speed.latency_s : latency_s;
    }
    request->lead_ns = TURN_NS + (uint64_t)(2e9 * latency_s);
    request->chunk_lead_ns = (uint64_t)(1.5e9 * (double)view->full.extent.object_bytes / slowest);
}

/* keys NULL: a hint alone. */
static struct tierce__return_request request_of(const struct tierce_view *view,
                                                const struct tierce_chain *chain,
                                                const struct tierce__keys *keys, uint64_t session)
{
    struct tierce__return_request request = {.keys = keys != NULL ? keys->keys : NULL,
                                             .count = keys != NULL ? keys->full_count : 0,
                                             .chain = chain,
                                             .algo = view->algo,
                                             .block_tokens = view->full.geometry.block_tokens,
                                             .chunk_blocks = view->chunk_blocks,
                                             .session = session,
                                             .now_ns = tierce__now_ns()};
    set_lead(&request, view);
    return request;
}

static void judge(struct tierce__ahead *ahead, enum tierce__return_source source, size_t used,
                  size_t unused)
{
    tierce__count(ahead->engine, TIERCE__STAT_ahead_used_chunks, (int64_t)used);
    tierce__count(ahead->engine, TIERCE__STAT_ahead_unused_chunks, (int64_t)unused);
    tierce__lock_take(&ahead->lock);
    bool falls = tierce__returns_judge(&ahead->returns, source, used, unused);
    uint64_t rate = rate_of(ahead, source);
    tierce__lock_drop(&ahead->lock);
    if (falls)
        tierce__log(TIERCE_LOG_WARN, "prefetch_ahead_slower",
                    "predictions=%s bytes_per_s=%llu reason=\"less than half of the chunks that "
                    "they read were used\"",
                    source == TIERCE__RETURN_HINTED ? "hints" : "gaps", (unsigned long long)rate);
}

/* A conversation has returned: which of the chunks that were read for it are still in memory. */
static void settle(struct tierce__ahead *ahead, const struct tierce__key *keys,
                   const struct tierce__return_outcome *outcome)
{
    size_t in_memory = tierce__storage_find(ahead->engine, keys, outcome->chunks, 1, NULL);
    size_t used = in_memory > outcome->read_from ? in_memory - outcome->read_from : 0;
    used = used < outcome->read_chunks ? used : outcome->read_chunks;
    judge(ahead, outcome->source, used, outcome->read_chunks - used);
    size_t missing = outcome->chunks - in_memory, evicted = outcome->read_chunks - used;
    if (missing > evicted)
        tierce__count(ahead->engine, TIERCE__STAT_ahead_late_chunks, (int64_t)(missing - evicted));
}

static void arrive(struct tierce__ahead *ahead, const struct tierce__return_request *request)
{
    struct tierce__return_outcome outcome;
    tierce__lock_take(&ahead->lock);
    (void)tierce__returns_arrive(&ahead->returns, request, &outcome);
    tierce__lock_drop(&ahead->lock);
    if (outcome.predicted)
        settle(ahead, request->keys, &outcome);
}

static bool is_ignored(const struct tierce_view *view)
{
    return view->engine->ahead == NULL || tierce__view_is_sparse(view);
}

void tierce__ahead_look(struct tierce_view *view, const struct tierce_chain *chain,
                        const struct tierce__keys *keys, uint64_t session)
{
    if (is_ignored(view))
        return;
    struct tierce__return_request request = request_of(view, chain, keys, session);
    arrive(view->engine->ahead, &request);
}

static void use(struct tierce_view *view, const struct tierce_chain *chain,
                const struct tierce__keys *keys, uint64_t session, bool extends)
{
    struct tierce__ahead *ahead = view->engine->ahead;
    struct tierce__return_request request = request_of(view, chain, keys, session);
    uint32_t returns_ms;
    uint8_t hint;
    tierce__session_hint(view, session, &hint, &returns_ms);
    request.closed = hint == TIERCE_HINT_CLOSED;
    request.returns_ns = returns_ms * TIERCE__MS_NS;
    request.extends = extends;
    arrive(ahead, &request); /* of a request without a lookup */
    tierce__lock_take(&ahead->lock);
    tierce__returns_use(&ahead->returns, &request);
    tierce__lock_drop(&ahead->lock);
}

void tierce__ahead_store(struct tierce_view *view, const struct tierce_chain *chain,
                         const struct tierce__keys *keys, uint64_t session)
{
    if (!is_ignored(view))
        use(view, chain, keys, session, true);
}

void tierce__ahead_load(struct tierce_view *view, const struct tierce_chain *chain,
                        uint64_t session)
{
    struct tierce__keys keys;
    uint64_t blocks = tierce_chain_blocks(chain);
    if (is_ignored(view) || tierce__keys_init(&keys, view, chain, blocks, blocks, false) < 0)
        return;
    use(view, chain, &keys, session, false);
    tierce__keys_fini(&keys);
}

void tierce__ahead_hint(struct tierce_view *view, uint64_t session, bool closed,
                        uint64_t returns_ms)
{
    if (is_ignored(view))
        return;
    struct tierce__ahead *ahead = view->engine->ahead;
    struct tierce__return_request request = request_of(view, NULL, NULL, session);
    request.closed = closed;
    request.returns_ns = returns_ms * TIERCE__MS_NS;
    tierce__lock_take(&ahead->lock);
    tierce__returns_hint(&ahead->returns, &view->key, &request);
    tierce__lock_drop(&ahead->lock);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static void piece_done(void *arg, const struct tierce_prefetch_result *result)
{
    struct tierce__ahead *ahead = arg;
    (void)result;
    tierce__lock_take(&ahead->lock);
    ahead->piece_over = true;
    tierce__lock_drop(&ahead->lock);
    tierce__lock_take(&ahead->engine->lock);
    tierce__cond_broadcast(&ahead->engine->changed);
    tierce__lock_drop(&ahead->engine->lock);
}

void tierce__ahead_leave(struct tierce_view *view)
{
    struct tierce__ahead *ahead = view->engine->ahead;
    struct tierce_prefetch *piece = NULL;
    if (ahead == NULL)
        return;
    tierce__lock_take(&ahead->lock);
    while (ahead->view == view && ahead->ending)
        tierce__cond_wait(&ahead->changed, &ahead->lock, TIERCE__DEADLINE_NEVER);
    if (ahead->view == view) {
        piece = ahead->piece;
        ahead->piece = NULL;
        ahead->view = NULL;
    }
    tierce__lock_drop(&ahead->lock);
    tierce_prefetch_end(piece);
}

/* The conversation's pieces are over. */
static void end_reading(struct tierce__ahead *ahead)
{
    tierce_chain_destroy(ahead->reading.chain);
    ahead->reading = (struct reading){0};
    tierce__lock_take(&ahead->lock);
    tierce__returns_end_reading(&ahead->returns, tierce__now_ns());
    tierce__lock_drop(&ahead->lock);
}

/* Chunks that a piece brought from slower tiers. */
static size_t chunks_read(const struct tierce_view *view,
                          const struct tierce_prefetch_result *result)
{
    uint64_t blocks = 0;
    for (size_t level = 1; level < result->tier_count; level++)
        blocks += result->tiers[level].loaded;
    return (size_t)(blocks / view->chunk_blocks);
}

/* Memory evicts the last chunks of the conversation first. */
static void touch(const struct tierce__ahead *ahead, const struct tierce__keys *keys, size_t count)
{
    struct tierce__tier_uses uses = {.keys = keys->keys, .count = count, .used = count};
    tierce__storage_touch(ahead->engine, 0, 1, &uses);
}

static void count_piece(struct tierce__ahead *ahead, const struct tierce_view *view,
                        const struct tierce_prefetch_result *result)
{
    size_t read = chunks_read(view, result);
    uint64_t bytes = read * view->full.extent.object_bytes;
    ahead->credit_bytes -= (int64_t)bytes;
    tierce__lock_take(&ahead->lock);
    bool waits = ahead->returns.reading != NULL;
    if (waits)
        tierce__returns_note_read(&ahead->returns, ahead->reading.at, read, bytes);
    tierce__lock_drop(&ahead->lock);
    tierce__count(ahead->engine, TIERCE__STAT_ahead_chunks, (int64_t)read);
    tierce__count(ahead->engine, TIERCE__STAT_ahead_bytes, (int64_t)bytes);
    if (!waits && read > 0) /* it has returned meanwhile */
        judge(ahead, ahead->reading.source, 0, read);
}

/* Takes the result of a piece that is over. Returns whether more pieces may follow. */
static bool end_piece(struct tierce__ahead *ahead, struct tierce_prefetch *piece,
                      const struct tierce_view *view)
{
    struct reading *reading = &ahead->reading;
    struct tierce_prefetch_result result = {.size = sizeof(result)};
    bool final = tierce_prefetch_poll(piece, &result);
    TIERCE_DASSERT(final);
    tierce_prefetch_end(piece);
    count_piece(ahead, view, &result);
    reading->at = (size_t)(result.memory_blocks / view->chunk_blocks);
    return final && reading->at >= reading->piece_end && reading->at < reading->end;
}

/* Ends the piece if it is over. Returns whether none is in progress; *goes_on is cleared if none
 * may follow. */
static bool reap_piece(struct tierce__ahead *ahead, bool *goes_on)
{
    tierce__lock_take(&ahead->lock);
    struct tierce_prefetch *piece = ahead->piece;
    const struct tierce_view *view = ahead->view;
    bool over = piece != NULL && ahead->piece_over;
    ahead->ending = over;
    tierce__lock_drop(&ahead->lock);
    if (!over)
        return piece == NULL;
    *goes_on = end_piece(ahead, piece, view);
    tierce__lock_take(&ahead->lock);
    ahead->piece = NULL;
    ahead->view = NULL;
    ahead->ending = false;
    tierce__cond_broadcast(&ahead->changed);
    tierce__lock_drop(&ahead->lock);
    return true;
}

/* Whether a piece may begin now. */
static bool may_read(struct tierce__ahead *ahead, uint64_t now_ns)
{
    struct tierce_engine *engine = ahead->engine;
    tierce__lock_take(&ahead->lock);
    uint64_t rate = rate_of(ahead, ahead->reading.source);
    uint64_t held = ahead->returns.read_bytes;
    tierce__lock_drop(&ahead->lock);
    uint64_t passed_ns = now_ns - ahead->credited_ns;
    passed_ns = passed_ns < BURST_NS ? passed_ns : BURST_NS;
    ahead->credited_ns = now_ns;
    ahead->credit_bytes += (int64_t)((double)rate * (double)passed_ns / 1e9);
    if (ahead->credit_bytes > (int64_t)rate)
        ahead->credit_bytes = (int64_t)rate;
    return ahead->credit_bytes > 0 && held < engine->settings.memory_bytes / MEMORY_SHARE &&
           tierce__engine_mode(engine) == TIERCE_MODE_NORMAL &&
           tierce__fetches_awaited(&engine->fetches) == 0 &&
           tierce__semaphore_used(&engine->prefetches.memory) == 0;
}

/* How many chunks the next piece has. */
static size_t piece_chunks(const struct tierce__ahead *ahead, uint64_t chunk_bytes)
{
    uint64_t held_max = ahead->engine->prefetches.memory.capacity / 2;
    uint64_t bytes = ahead->bytes_per_s / PIECE_SHARE;
    bytes = bytes < held_max ? bytes : held_max;
    if ((int64_t)bytes > ahead->credit_bytes)
        bytes = (uint64_t)ahead->credit_bytes;
    return bytes > chunk_bytes ? (size_t)(bytes / chunk_bytes) : 1;
}

/* Begins a piece after the chunks that are in memory. Returns false if there is nothing to read. */
static bool begin_piece(struct tierce__ahead *ahead, struct tierce_view *view)
{
    struct reading *reading = &ahead->reading;
    struct tierce__keys keys;
    uint64_t blocks = (uint64_t)reading->end * view->chunk_blocks;
    if (tierce__keys_init(&keys, view, reading->chain, blocks, blocks, false) < 0)
        return false;
    reading->at += tierce__storage_find(ahead->engine, keys.keys + reading->at,
                                        reading->end - reading->at, 1, NULL);
    touch(ahead, &keys, reading->at);
    tierce__keys_fini(&keys);
    if (reading->at == reading->end)
        return false;
    size_t chunks = piece_chunks(ahead, view->full.extent.object_bytes);
    reading->piece_end = chunks < reading->end - reading->at ? reading->at + chunks : reading->end;
    tierce__lock_take(&ahead->lock);
    ahead->piece_over = false;
    tierce__lock_drop(&ahead->lock);
    struct tierce_prefetch *piece;
    struct tierce_prefetch_opts opts = {.size = sizeof(opts),
                                        .from_block = (uint64_t)reading->at * view->chunk_blocks,
                                        .timeout_ms = ahead->engine->settings.load_ms,
                                        .on_done = piece_done,
                                        .arg = ahead};
    uint64_t to_block = (uint64_t)reading->piece_end * view->chunk_blocks;
    if (tierce_prefetch_begin(&piece, view, reading->chain, to_block, &opts) < 0)
        return false;
    tierce__lock_take(&ahead->lock);
    ahead->piece = piece;
    ahead->view = view;
    tierce__lock_drop(&ahead->lock);
    return true;
}

/* Whether the conversation may still return. */
static bool is_expected(struct tierce__ahead *ahead, uint64_t now_ns)
{
    tierce__lock_take(&ahead->lock);
    bool waits = ahead->returns.reading != NULL;
    tierce__lock_drop(&ahead->lock);
    return waits && now_ns < ahead->reading.lapses_ns;
}

/* Ends a piece that is over, and begins the next. */
static void go_on(struct tierce__ahead *ahead)
{
    uint64_t now_ns = tierce__now_ns();
    bool goes_on = true;
    if (!reap_piece(ahead, &goes_on))
        return;
    goes_on = goes_on && is_expected(ahead, now_ns);
    if (goes_on && !may_read(ahead, now_ns))
        return;
    struct tierce_view *view =
        goes_on ? tierce__view_borrow(ahead->engine, &ahead->reading.space) : NULL;
    goes_on = view != NULL && begin_piece(ahead, view);
    if (view != NULL)
        tierce__view_give_back(view);
    if (!goes_on)
        end_reading(ahead);
}

/* ---- conversations --------------------------------------------------------------------------- */

/* Copies the chain of the conversation that is to be read. Under the lock. */
static bool take_reading(struct tierce__ahead *ahead, const struct tierce__returning *it)
{
    tierce__lock_assert_held(&ahead->lock);
    struct tierce_chain *chain;
    if (tierce__chain_create_hashed(&chain, it->algo, it->block_tokens,
                                    tierce_chain_root_hash(it->chain)) < 0)
        return false;
    if (tierce_chain_append_hashes(chain, tierce_chain_hash(it->chain, 0),
                                   tierce_chain_blocks(it->chain)) < 0) {
        tierce_chain_destroy(chain);
        return false;
    }
    ahead->reading = (struct reading){.chain = chain,
                                      .space = it->last,
                                      .source = it->source,
                                      .end = it->chunks,
                                      .lapses_ns = it->lapses_ns};
    return true;
}

/* Begins with a conversation, or settles one that did not return. Returns false if nothing is
 * due. */
static bool take_due(struct tierce__ahead *ahead, uint64_t now_ns)
{
    struct tierce__return_outcome lapsed;
    tierce__lock_take(&ahead->lock);
    struct tierce__returning *it = tierce__returns_due(&ahead->returns, now_ns, &lapsed);
    bool taken = it != NULL && take_reading(ahead, it);
    if (it != NULL && !taken)
        tierce__returns_end_reading(&ahead->returns, UINT64_MAX);
    tierce__lock_drop(&ahead->lock);
    if (taken)
        tierce__count(ahead->engine, TIERCE__STAT_ahead_predictions, 1);
    if (lapsed.read_chunks > 0)
        judge(ahead, lapsed.source, 0, lapsed.read_chunks);
    return it != NULL || lapsed.predicted;
}

void tierce__ahead_keep(struct tierce__ahead *ahead)
{
    if (ahead == NULL)
        return;
    uint64_t now_ns = tierce__now_ns();
    if (ahead->reading.chain != NULL)
        go_on(ahead);
    while (ahead->reading.chain == NULL && take_due(ahead, now_ns)) {
        if (ahead->reading.chain != NULL)
            go_on(ahead);
    }
}
