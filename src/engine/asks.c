/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/asks.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/engine.h"

/* The maximum of queries to one store in a search. One is enough if the store answers at once. A
 * search sends more if it joined a query for a prompt that diverges from its own, or if another
 * store had chunks that this store lacks. */
#define QUESTIONS_MAX 4
#define GRACE_NS      TIERCE__ASKS_GRACE_NS

struct asked_ask {
    struct tierce__list node;
    struct tierce_engine *engine;
    size_t level;
    uint64_t begun_ns;
    /* Under the lock. */
    bool is_patient; /* the second attempt, with timeout.load */
    bool is_over;
    int status;
    uint32_t refs; /* of waiting lookups, and of the query itself until it ends */
    struct tierce__store_req req;
    size_t count;
    struct tierce__key keys[];
};

void tierce__asks_init(struct tierce__asks *asks)
{
    tierce__lock_init(&asks->lock, TIERCE__LOCK_ASKS);
    tierce__cond_init(&asks->changed);
    tierce__list_init(&asks->list);
}

void tierce__asks_fini(struct tierce__asks *asks)
{
    TIERCE_ASSERT(tierce__list_empty(&asks->list));
    TIERCE_DASSERT(asks->count == 0);
    tierce__cond_fini(&asks->changed);
    tierce__lock_fini(&asks->lock);
}

static struct asked_ask *ask_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct asked_ask, node);
}

/* Under the lock. */
static void release(struct asked_ask *ask)
{
    tierce__lock_assert_held(&ask->engine->asks.lock);
    TIERCE_DASSERT(ask->refs > 0);
    if (--ask->refs == 0)
        tierce__free(ask);
}

static void end(struct asked_ask *ask, int status)
{
    TIERCE_DASSERT(status <= 0);
    struct tierce__asks *asks = &ask->engine->asks;
    tierce__lock_take(&asks->lock);
    TIERCE_DASSERT(!ask->is_over && asks->count > 0);
    tierce__list_remove(&ask->node);
    asks->count--;
    if (status == 0 && ask->count <= TIERCE__ASKS_ONE_TRIP) {
        uint64_t *known_ns = &asks->answer_ns[ask->level], ns = tierce__now_ns() - ask->begun_ns;
        *known_ns = *known_ns == 0 ? ns : *known_ns - *known_ns / 4 + ns / 4;
    }
    ask->is_over = true;
    ask->status = status;
    tierce__cond_broadcast(&asks->changed);
    release(ask);
    tierce__lock_drop(&asks->lock);
}

static void answered(struct tierce__store_req *req);

/* Queries the keys from `first` on. */
static void submit(struct asked_ask *ask, size_t first, uint64_t deadline_ns)
{
    TIERCE_DASSERT(first <= ask->count);
    TIERCE_DASSERT(!ask->is_over && ask->level > 0 && ask->level < TIERCE__TIERS_MAX);
    ask->req = (struct tierce__store_req){.op = TIERCE__STORE_LOOKUP,
                                          .deadline_ns = deadline_ns,
                                          .done = answered,
                                          .arg = ask,
                                          .keys = ask->keys + first,
                                          .key_count = ask->count - first,
                                          .recall = TIERCE__RECALL_FIRST};
    if (!tierce__storage_submit(ask->engine, ask->level, &ask->req))
        end(ask, TIERCE_E_DOWN);
}

/* Whether to query once more. */
static bool becomes_patient(struct asked_ask *ask)
{
    struct tierce__asks *asks = &ask->engine->asks;
    tierce__lock_take(&asks->lock);
    TIERCE_DASSERT(!ask->is_over);
    bool becomes = !ask->is_patient;
    ask->is_patient = true;
    tierce__cond_broadcast(&asks->changed);
    tierce__lock_drop(&asks->lock);
    return becomes;
}

static void answered(struct tierce__store_req *req)
{
    struct asked_ask *ask = req->arg;
    TIERCE_DASSERT(req == &ask->req && req->op == TIERCE__STORE_LOOKUP);
    size_t first = (size_t)(req->keys - ask->keys) + req->found;
    TIERCE_DASSERT(first <= ask->count);
    tierce__storage_note(ask->engine, ask->level, req);
    if (req->status == TIERCE_E_DEADLINE && becomes_patient(ask))
        submit(ask, first, tierce__ask_patience(ask->engine));
    else
        end(ask, req->status);
}

uint64_t tierce__ask_patience(const struct tierce_engine *engine)
{
    /* Slightly more than timeout.load, so that a store without an answer in this time counts as
     * failed. */
    return tierce__deadline_in_ms(engine->settings.load_ms) + TIERCE__MS_NS;
}

/* The query in progress that contains this key, or NULL. Under the lock. */
static struct asked_ask *find_ask(struct tierce__asks *asks, size_t level,
                                  const struct tierce__key *key)
{
    tierce__lock_assert_held(&asks->lock);
    TIERCE__LIST_FOR_EACH (it, &asks->list) {
        struct asked_ask *ask = ask_of(it);
        TIERCE_DASSERT(!ask->is_over && ask->refs > 0);
        for (size_t i = 0; ask->level == level && i < ask->count; i++) {
            if (tierce__key_equal(&ask->keys[i], key))
                return ask;
        }
    }
    return NULL;
}

/* A reference to the query that contains keys[0]; NULL: too many queries, or no memory. */
static struct asked_ask *join_or_ask(struct tierce_engine *engine, size_t level,
                                     const struct tierce__key *keys, size_t count,
                                     uint64_t deadline_ns)
{
    struct tierce__asks *asks = &engine->asks;
    TIERCE_DASSERT(count > 0);
    TIERCE_DASSERT(level > 0 && engine->levels[level].health.shared);
    struct asked_ask *fresh = tierce__alloc(sizeof(*fresh) + count * sizeof(fresh->keys[0])), *ask;
    tierce__lock_take(&asks->lock);
    ask = find_ask(asks, level, &keys[0]);
    bool asks_now = ask == NULL && fresh != NULL && asks->count < TIERCE__ASKS_MAX;
    if (asks_now) {
        ask = fresh;
        *ask = (struct asked_ask){.engine = engine,
                                  .level = level,
                                  .begun_ns = tierce__now_ns(),
                                  .refs = 1,
                                  .count = count};
        memcpy(ask->keys, keys, count * sizeof(keys[0]));
        tierce__list_push_back(&asks->list, &ask->node);
        asks->count++;
    }
    if (ask != NULL)
        ask->refs++;
    TIERCE_DASSERT(ask == NULL || ask->refs >= 2);
    TIERCE_DASSERT(asks->count <= TIERCE__ASKS_MAX);
    tierce__lock_drop(&asks->lock);
    if (asks_now)
        submit(ask, 0, deadline_ns);
    else
        tierce__free(fresh);
    return ask;
}

static uint64_t answer_ns_of(struct tierce_engine *engine, size_t level)
{
    tierce__lock_take(&engine->asks.lock);
    uint64_t ns = engine->asks.answer_ns[level];
    tierce__lock_drop(&engine->asks.lock);
    return ns;
}

/* Whether a query for the key is in progress, and since when. */
static bool is_pending(struct tierce_engine *engine, size_t level, const struct tierce__key *key,
                       uint64_t *since_ns)
{
    tierce__lock_take(&engine->asks.lock);
    const struct asked_ask *ask = find_ask(&engine->asks, level, key);
    *since_ns = ask != NULL ? ask->begun_ns : 0;
    tierce__lock_drop(&engine->asks.lock);
    return ask != NULL;
}

/* ---- a search of several stores ---- */

/* A store while it is searched. */
struct store {
    struct asked_ask *ask; /* the query being waited for, with a reference; or NULL */
    unsigned asked;        /* queries so far */
    int status;  /* for the next key: 0, the store does not have it; TIERCE_E_DEADLINE, it has not
                    answered; or why it is not queried */
    int failure; /* status of keys without an answer, after a failed query */
    uint64_t left_ns; /* when the query began that the search did not wait for; 0: none */
};

struct asked_search {
    struct tierce_engine *engine;
    const struct tierce__search *wanted;
    const struct tierce__key *keys;
    size_t count;
    size_t at; /* leading keys that some store has */
    struct store stores[TIERCE__TIERS_MAX];
    uint64_t question_ns; /* the deadline of queries */
    uint64_t part_ns;     /* that of stores which show something by then */
    bool waits;           /* until the deadline of the search */
    bool is_late;         /* that has passed */
};

static bool searches(const struct asked_search *s, size_t level)
{
    TIERCE_DASSERT(level < TIERCE__TIERS_MAX);
    return (s->wanted->levels & 1u << level) != 0;
}

/* Uses remembered answers of the store for the next keys. Returns whether it has some of them. */
static bool recall_store(struct asked_search *s, size_t level)
{
    struct store *store = &s->stores[level];
    TIERCE_DASSERT(s->at < s->count);
    size_t found = tierce__storage_recall(
        s->engine, level, s->keys + s->at, s->count - s->at,
        s->wanted->believes_old ? TIERCE__RECALL_OLD : TIERCE__RECALL_ONLY, &store->status);
    TIERCE_DASSERT(found <= s->count - s->at);
    if (store->status == TIERCE_E_DEADLINE && store->failure < 0)
        store->status = store->failure;
    if (s->wanted->places != NULL)
        memset(s->wanted->places + s->at, (int)level, found);
    s->at += found;
    return found > 0;
}

/* Continues from store to store as far as their answers reach. */
static void recall(struct asked_search *s)
{
    bool moved;
    do {
        moved = false;
        for (size_t level = 0; level < s->engine->level_count && s->at < s->count; level++)
            moved |= searches(s, level) && recall_store(s, level);
    } while (moved && s->at < s->count);
    TIERCE_DASSERT(s->at <= s->count);
}

/* The deadline of a query. A store whose answers take longer than the first wait shows nothing by
 * then, and would only be asked twice. */
static uint64_t question_ns(const struct asked_search *s, size_t level)
{
    bool is_cut =
        s->part_ns < s->question_ns && answer_ns_of(s->engine, level) <= s->wanted->part_ns;
    return is_cut ? s->part_ns : s->question_ns;
}

/* Queries all stores that have not yet answered for the next key. Returns whether there is anything
 * to wait for. */
static bool ask_stores(struct asked_search *s)
{
    TIERCE_DASSERT(s->at < s->count && !s->is_late);
    bool waits = false;
    for (size_t level = 0; level < s->engine->level_count; level++) {
        struct store *store = &s->stores[level];
        if (!searches(s, level))
            continue;
        if (store->ask == NULL && store->status == TIERCE_E_DEADLINE && store->failure == 0 &&
            store->asked < QUESTIONS_MAX) {
            store->asked++;
            TIERCE_DASSERT(store->asked <= QUESTIONS_MAX);
            store->ask = join_or_ask(s->engine, level, s->keys + s->at, s->count - s->at,
                                     question_ns(s, level));
        }
        waits |= store->ask != NULL;
    }
    return waits;
}

/* Whether a store has answered. Under the lock. */
static bool any_over(const struct asked_search *s)
{
    tierce__lock_assert_held(&s->engine->asks.lock);
    bool any = false;
    for (size_t level = 0; level < s->engine->level_count; level++)
        any |= s->stores[level].ask != NULL && s->stores[level].ask->is_over;
    return any;
}

/* Whether a store's answer in part is still to come. Under the lock. */
static bool any_due(const struct asked_search *s)
{
    tierce__lock_assert_held(&s->engine->asks.lock);
    bool any = false;
    for (size_t level = 0; level < s->engine->level_count; level++) {
        const struct asked_ask *ask = s->stores[level].ask;
        any |= ask != NULL && !ask->is_over && !ask->is_patient;
    }
    return any;
}

/* Releases the references on queries: on completed ones, or on all. Under the lock. */
static void take_answers(struct asked_search *s, bool all)
{
    tierce__lock_assert_held(&s->engine->asks.lock);
    for (size_t level = 0; level < s->engine->level_count; level++) {
        struct store *store = &s->stores[level];
        if (store->ask == NULL || !(all || store->ask->is_over))
            continue;
        if (store->ask->is_over)
            store->failure = store->ask->status;
        else
            store->left_ns = store->ask->begun_ns;
        TIERCE_DASSERT(store->ask->level == level);
        release(store->ask);
        store->ask = NULL;
    }
}

/* Until the first answer, or the deadline. */
static void wait_for_stores(struct asked_search *s)
{
    TIERCE_DASSERT(!s->is_late);
    struct tierce__asks *asks = &s->engine->asks;
    uint64_t deadline_ns = s->wanted->deadline_ns;
    tierce__lock_take(&asks->lock);
    while (s->waits && !any_over(s) && tierce__cond_wait(&asks->changed, &asks->lock, deadline_ns))
        ;
    s->is_late = !any_over(s);
    /* The first answers in part are due now. */
    while (s->waits && s->is_late && any_due(s) &&
           tierce__cond_wait(&asks->changed, &asks->lock, deadline_ns + GRACE_NS))
        ;
    take_answers(s, s->is_late);
    tierce__lock_drop(&asks->lock);
}

static void end_search(struct asked_search *s)
{
    tierce__lock_take(&s->engine->asks.lock);
    take_answers(s, true);
    tierce__lock_drop(&s->engine->asks.lock);
}

/* The reason why the prefix ends: a store that may still answer takes precedence over a store that
 * was not queried. */
static struct tierce__unasked judge(const struct asked_search *s)
{
    TIERCE_DASSERT(s->at <= s->count);
    struct tierce__unasked out = {0};
    for (size_t level = 0; level < s->engine->level_count && s->at < s->count; level++) {
        int status = s->stores[level].status;
        if (!searches(s, level) || status == 0 || out.pending)
            continue;
        out = (struct tierce__unasked){.level = level, .status = status};
        /* It may have answered after the search looked: its answer counts in the next one. */
        out.since_ns = s->stores[level].left_ns;
        out.answer_ns = answer_ns_of(s->engine, level);
        out.pending =
            status == TIERCE_E_DEADLINE &&
            (out.since_ns > 0 || is_pending(s->engine, level, s->keys + s->at, &out.since_ns));
    }
    TIERCE_DASSERT(out.status < 0 || !out.pending);
    return out;
}

size_t tierce__ask_stores(struct tierce_engine *engine, struct tierce__search *wanted,
                          const struct tierce__key *keys, size_t count)
{
    TIERCE_DASSERT(count > 0 && (wanted->levels & 1u) == 0);
    struct asked_search s = {.engine = engine,
                             .wanted = wanted,
                             .keys = keys,
                             .count = count,
                             .question_ns = wanted->deadline_ns,
                             .waits = tierce__now_ns() < wanted->deadline_ns};
    if (!s.waits) /* the queries still have the time limit of a lookup */
        s.question_ns = tierce__deadline_in_ms(engine->settings.lookup_ms);
    bool has_part = !s.waits && wanted->part_ns > 0;
    s.part_ns = has_part ? tierce__now_ns() + wanted->part_ns : UINT64_MAX;
    recall(&s);
    while (s.at < count && !s.is_late && ask_stores(&s)) {
        wait_for_stores(&s);
        recall(&s);
    }
    end_search(&s);
    TIERCE_DASSERT(s.at <= count);
    wanted->unasked = judge(&s);
    return s.at;
}
