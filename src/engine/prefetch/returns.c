/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/prefetch/returns.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* A prediction is early by this share of the gap, but by at most SLACK_NS. */
#define SLACK_SHARE   10u
#define SLACK_NS      2000000000u
#define LAPSE_NS      2000000000u /* the shortest time by which a return may be late */
#define RECHECK_NS    50000000u   /* the last look before the expected return */
#define REGULAR_COUNT 3u          /* gaps before any is predicted */

int tierce__returns_init(struct tierce__returns *returns, size_t max, uint64_t blocks_max)
{
    TIERCE_DASSERT(max > 0 && blocks_max > 0);
    *returns = (struct tierce__returns){.max = max, .blocks_max = blocks_max};
    tierce__list_init(&returns->recent);
    for (size_t i = 0; i < TIERCE__RETURN_SOURCES; i++)
        returns->weights[i].weight = TIERCE__RETURN_WEIGHTS;
    returns->queue = tierce__alloc(max * sizeof(struct tierce__returning *));
    if (returns->queue == NULL)
        return -ENOMEM;
    if (tierce__map_reserve(&returns->map, max) == 0)
        return 0;
    tierce__free(returns->queue);
    returns->queue = NULL;
    return -ENOMEM;
}

/* ---- the queue ------------------------------------------------------------------------------- */

static void put_at(struct tierce__returns *r, struct tierce__returning *it, size_t place)
{
    r->queue[place] = it;
    it->place = place;
}

static void sift_up(struct tierce__returns *r, struct tierce__returning *it, size_t place)
{
    while (place > 0 && r->queue[(place - 1) / 2]->wake_ns > it->wake_ns) {
        put_at(r, r->queue[(place - 1) / 2], place);
        place = (place - 1) / 2;
    }
    put_at(r, it, place);
}

static void sift_down(struct tierce__returns *r, struct tierce__returning *it, size_t place)
{
    for (size_t child; (child = 2 * place + 1) < r->queued; place = child) {
        if (child + 1 < r->queued && r->queue[child + 1]->wake_ns < r->queue[child]->wake_ns)
            child++;
        if (r->queue[child]->wake_ns >= it->wake_ns)
            break;
        put_at(r, r->queue[child], place);
    }
    put_at(r, it, place);
}

static void dequeue(struct tierce__returns *r, struct tierce__returning *it)
{
    if (it->place == SIZE_MAX)
        return;
    TIERCE_DASSERT(it->place < r->queued && r->queue[it->place] == it);
    struct tierce__returning *other = r->queue[--r->queued];
    size_t place = it->place;
    it->place = SIZE_MAX;
    if (other == it)
        return;
    sift_up(r, other, place);
    sift_down(r, other, other->place);
}

static void enqueue(struct tierce__returns *r, struct tierce__returning *it, uint64_t wake_ns)
{
    dequeue(r, it);
    TIERCE_ASSERT(r->queued < r->max);
    it->wake_ns = wake_ns;
    sift_up(r, it, r->queued++);
}

uint64_t tierce__returns_next_ns(const struct tierce__returns *r)
{
    return r->queued > 0 ? r->queue[0]->wake_ns : UINT64_MAX;
}

/* ---- conversations --------------------------------------------------------------------------- */

/* Its prediction is over. */
static void end_prediction(struct tierce__returns *r, struct tierce__returning *it)
{
    dequeue(r, it);
    TIERCE_DASSERT(r->read_bytes >= it->read_bytes);
    r->read_bytes -= it->read_bytes;
    it->read_bytes = 0;
    it->read_chunks = it->read_from = 0;
    it->state = TIERCE__RETURN_IDLE;
    if (r->reading == it)
        r->reading = NULL;
}

/* Ends the conversation's prediction, if there is one, and tells what came of it. */
static void conclude(struct tierce__returns *r, struct tierce__returning *it,
                     struct tierce__return_outcome *outcome)
{
    *outcome = (struct tierce__return_outcome){.predicted = it->state != TIERCE__RETURN_IDLE,
                                               .source = it->source,
                                               .chunks = it->chunks,
                                               .read_from = it->read_from,
                                               .read_chunks = it->read_chunks};
    end_prediction(r, it);
}

static void drop_chain(struct tierce__returns *r, struct tierce__returning *it)
{
    if (it->chain == NULL)
        return;
    TIERCE_DASSERT(r->blocks >= tierce_chain_blocks(it->chain));
    r->blocks -= tierce_chain_blocks(it->chain);
    tierce_chain_destroy(it->chain);
    it->chain = NULL;
}

static void forget(struct tierce__returns *r, struct tierce__returning *it)
{
    TIERCE_DASSERT(r->count > 0);
    end_prediction(r, it);
    drop_chain(r, it);
    tierce__map_remove(&r->map, &it->node);
    tierce__list_remove(&it->recent);
    r->count--;
    tierce__free(it);
}

static struct tierce__returning *of_recent(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__returning, recent);
}

void tierce__returns_fini(struct tierce__returns *r)
{
    if (r->queue == NULL)
        return;
    while (!tierce__list_empty(&r->recent))
        forget(r, of_recent(r->recent.next));
    TIERCE_DASSERT(r->blocks == 0 && r->queued == 0 && r->read_bytes == 0);
    tierce__map_fini(&r->map);
    tierce__free(r->queue);
    r->queue = NULL;
}

static struct tierce__returning *find(const struct tierce__returns *r,
                                      const struct tierce__key *key)
{
    struct tierce__map_node *node = tierce__map_find(&r->map, tierce__key_spread(key));
    for (; node != NULL; node = tierce__map_find_next(node)) {
        struct tierce__returning *it = TIERCE__CONTAINER_OF(node, struct tierce__returning, node);
        if (tierce__key_equal(&it->last, key))
            return it;
    }
    return NULL;
}

/* The longest conversation that the request continues. */
static struct tierce__returning *find_longest(const struct tierce__returns *r,
                                              const struct tierce__return_request *request)
{
    struct tierce__returning *it = NULL;
    for (size_t i = request->count; i > 0 && it == NULL && r->count > 0; i--)
        it = find(r, &request->keys[i - 1]);
    return it;
}

/* ---- gaps ------------------------------------------------------------------------------------ */

static void note_gap(struct tierce__returning *it, uint64_t gap_ns)
{
    it->gaps_ns[it->gap_count++ % TIERCE__RETURN_GAPS] = gap_ns;
}

/* The quartiles of the last gaps; false: there are too few, or they are not regular. */
static bool regular_gap(const struct tierce__returning *it, uint64_t *low_ns, uint64_t *high_ns)
{
    uint64_t sorted[TIERCE__RETURN_GAPS];
    size_t count = it->gap_count < TIERCE__RETURN_GAPS ? it->gap_count : TIERCE__RETURN_GAPS;
    if (count < REGULAR_COUNT)
        return false;
    for (size_t i = 0; i < count; i++) {
        size_t at = i;
        for (; at > 0 && sorted[at - 1] > it->gaps_ns[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = it->gaps_ns[i];
    }
    *low_ns = sorted[count / 4];
    *high_ns = sorted[count * 3 / 4];
    return *high_ns - *low_ns <= sorted[count / 2] / 2;
}

/* ---- predictions ----------------------------------------------------------------------------- */

static void predict(struct tierce__returns *r, struct tierce__returning *it,
                    const struct tierce__return_request *request)
{
    uint64_t gap_ns = request->returns_ns, high_ns = gap_ns;
    it->source = gap_ns > 0 ? TIERCE__RETURN_HINTED : TIERCE__RETURN_LEARNED;
    bool known = gap_ns > 0 || regular_gap(it, &gap_ns, &high_ns);
    if (!known || request->closed || gap_ns < TIERCE__RETURN_GAP_NS) {
        end_prediction(r, it);
        return;
    }
    uint64_t slack_ns = gap_ns / SLACK_SHARE < SLACK_NS ? gap_ns / SLACK_SHARE : SLACK_NS;
    uint64_t early_ns = request->lead_ns + it->chunks * request->chunk_lead_ns + slack_ns;
    it->expected_ns = request->now_ns + gap_ns;
    it->lapses_ns = request->now_ns + high_ns + (high_ns / 2 > LAPSE_NS ? high_ns / 2 : LAPSE_NS);
    if (it->state == TIERCE__RETURN_READ && r->reading != it) {
        enqueue(r, it, it->lapses_ns);
    } else if (it->state != TIERCE__RETURN_READ) {
        it->state = TIERCE__RETURN_WAITING;
        enqueue(r, it, request->now_ns + (early_ns < gap_ns ? gap_ns - early_ns : 0));
    }
}

bool tierce__returns_arrive(struct tierce__returns *r, const struct tierce__return_request *request,
                            struct tierce__return_outcome *outcome)
{
    struct tierce__returning *it = find_longest(r, request);
    *outcome = (struct tierce__return_outcome){0};
    if (it == NULL || it->returned || (request->session != 0 && request->session == it->session) ||
        request->now_ns < it->used_ns + TIERCE__RETURN_GAP_NS)
        return false;
    it->returned = true;
    it->session = request->session;
    note_gap(it, request->now_ns - it->used_ns);
    conclude(r, it, outcome);
    return true;
}

/* Makes the conversation end with the request's chunks. Errors: -ENOMEM. */
static int extend(struct tierce__returns *r, struct tierce__returning *it,
                  const struct tierce__return_request *request)
{
    int64_t rc = 0;
    if (it->chain == NULL)
        rc = tierce__chain_create_hashed(&it->chain, request->algo, request->block_tokens,
                                         tierce_chain_root_hash(request->chain));
    if (rc < 0)
        return (int)rc;
    size_t have = tierce_chain_blocks(it->chain), want = request->count * request->chunk_blocks;
    TIERCE_DASSERT(have <= want);
    if (have < want)
        rc = tierce_chain_append_hashes(it->chain, tierce_chain_hash(request->chain, have),
                                        want - have);
    if (rc < 0)
        return (int)rc;
    r->blocks += want - have;
    it->algo = request->algo;
    it->block_tokens = request->block_tokens;
    it->chunks = request->count;
    tierce__map_remove(&r->map, &it->node);
    it->last = request->keys[request->count - 1];
    tierce__map_put(&r->map, &it->node, tierce__key_spread(&it->last));
    return 0;
}

static struct tierce__returning *add(struct tierce__returns *r,
                                     const struct tierce__return_request *request)
{
    if (r->count == r->max)
        forget(r, of_recent(r->recent.prev));
    struct tierce__returning *it = tierce__calloc(1, sizeof(*it));
    if (it == NULL)
        return NULL;
    it->place = SIZE_MAX;
    it->last = request->keys[request->count - 1];
    tierce__map_put(&r->map, &it->node, tierce__key_spread(&it->last));
    tierce__list_push_front(&r->recent, &it->recent);
    r->count++;
    return it;
}

void tierce__returns_use(struct tierce__returns *r, const struct tierce__return_request *request)
{
    if (request->count == 0)
        return;
    struct tierce__returning *it = find_longest(r, request);
    if (it == NULL && request->extends)
        it = add(r, request);
    if (it == NULL)
        return;
    if (request->extends && extend(r, it, request) < 0) {
        forget(r, it);
        return;
    }
    it->session = request->session;
    it->used_ns = request->now_ns;
    it->returned = false;
    tierce__list_remove(&it->recent);
    tierce__list_push_front(&r->recent, &it->recent);
    while (r->blocks > r->blocks_max && r->count > 1)
        forget(r, of_recent(r->recent.prev));
    predict(r, it, request);
}

void tierce__returns_hint(struct tierce__returns *r, const struct tierce__key *space,
                          const struct tierce__return_request *hint)
{
    TIERCE__LIST_FOR_EACH (node, &r->recent) {
        struct tierce__returning *it = of_recent(node);
        if (it->session != hint->session || it->returned || it->last.ns != space->ns ||
            memcmp(&it->last.shard, &space->shard, sizeof(space->shard)) != 0)
            continue;
        predict(r, it, hint);
        return;
    }
}

struct tierce__returning *tierce__returns_due(struct tierce__returns *r, uint64_t now_ns,
                                              struct tierce__return_outcome *outcome)
{
    *outcome = (struct tierce__return_outcome){0};
    if (tierce__returns_next_ns(r) > now_ns)
        return NULL;
    struct tierce__returning *it = r->queue[0];
    if (it->state == TIERCE__RETURN_WAITING && now_ns < it->lapses_ns) {
        TIERCE_DASSERT(r->reading == NULL);
        dequeue(r, it);
        it->state = TIERCE__RETURN_READ;
        r->reading = it;
        return it;
    }
    conclude(r, it, outcome);
    return NULL;
}

void tierce__returns_note_read(struct tierce__returns *r, size_t from, size_t chunks,
                               uint64_t bytes)
{
    struct tierce__returning *it = r->reading;
    TIERCE_DASSERT(it != NULL);
    if (chunks == 0)
        return;
    if (it->read_chunks == 0)
        it->read_from = from;
    it->read_chunks += chunks;
    it->read_bytes += bytes;
    r->read_bytes += bytes;
}

void tierce__returns_end_reading(struct tierce__returns *r, uint64_t now_ns)
{
    struct tierce__returning *it = r->reading;
    r->reading = NULL;
    if (it == NULL)
        return;
    bool again = it->read_chunks == 0 && now_ns + RECHECK_NS < it->expected_ns;
    if (it->read_chunks == 0)
        it->state = again ? TIERCE__RETURN_WAITING : TIERCE__RETURN_IDLE;
    if (it->state != TIERCE__RETURN_IDLE)
        enqueue(r, it, again ? now_ns + (it->expected_ns - now_ns) / 2 : it->lapses_ns);
}

bool tierce__returns_judge(struct tierce__returns *r, enum tierce__return_source source,
                           size_t used, size_t unused)
{
    struct tierce__return_weight *w = &r->weights[source];
    w->used += used;
    w->unused += unused;
    if (used + unused == 0 || ++w->outcomes < TIERCE__RETURN_JUDGED)
        return false;
    bool falls = w->used < w->unused && w->weight > 1;
    if (falls)
        w->weight /= 2;
    else if (w->used >= w->unused && w->weight < TIERCE__RETURN_WEIGHTS)
        w->weight *= 2;
    w->used = w->unused = w->outcomes = 0;
    return falls;
}
