/* SPDX-License-Identifier: Apache-2.0 */
#include "tier_fault.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "base/mix.h"

#define FAULT_OPS  (TIERCE__STORE_SHOW + 1)
#define FAULT_PAGE 4096u

struct fault {
    struct tierce__tier base;
    struct tierce__tier *next;
    struct tierce__lock lock; /* FAULT: all below */
    struct tierce__cond changed;
    struct tierce__list late; /* answers that wait for their time */
    struct tierce__fault_rule rules[FAULT_OPS];
    uint32_t seen[FAULT_OPS];
    uint64_t random[FAULT_OPS];
    bool closing;
    pthread_t clockwork; /* gives late answers */
};

/* A request on its way through: a copy goes to the tier behind, so that its own is untouched. */
struct passage {
    struct tierce__store_req inner;
    struct tierce__store_req *outer;
    struct fault *fault;
    struct tierce__fault_rule rule;
    uint64_t due_ns;
    struct tierce__list node;
};

static void answer(struct passage *p)
{
    struct tierce__store_req *outer = p->outer;
    outer->status = p->inner.status;
    outer->found = p->inner.found;
    outer->lent = p->inner.lent;
    outer->object_bytes = p->inner.object_bytes;
    outer->coded_bytes = p->inner.coded_bytes;
    outer->stored = p->inner.stored;
    outer->recalled = p->inner.recalled;
    outer->repeats = p->inner.repeats;
    outer->connected = p->inner.connected;
    outer->buf = p->inner.buf;
    tierce__free(p);
    outer->done(outer);
}

static void answer_at(struct passage *p, uint64_t due_ns)
{
    struct fault *f = p->fault;
    p->due_ns = due_ns;
    tierce__lock_take(&f->lock);
    bool closing = f->closing;
    if (!closing)
        tierce__list_push_back(&f->late, &p->node);
    tierce__cond_signal(&f->changed);
    tierce__lock_drop(&f->lock);
    if (closing)
        answer(p);
}

static bool lends(const struct fault *f)
{
    return (f->next->ops->caps & TIERCE__TIER_LENDS) != 0;
}

static void flip(const struct passage *p)
{
    const struct tierce__store_req *req = &p->inner;
    bool whole = lends(p->fault) || req->op == TIERCE__STORE_PUT;
    uint64_t start = whole ? 0 : req->offset;
    uint64_t end = whole ? req->buf->bytes : req->offset + req->length;
    uint64_t bit = p->rule.bit;
    if (p->rule.seed != 0 && end > start)
        bit = start * 8 + bit % ((end - start) * 8);
    if (bit / 8 >= start && bit / 8 < end)
        req->buf->data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
}

/* Others read the buffer of a PUT, so a tier that copies it gets bad bytes of its own. Where there
 * is no memory for them the PUT stays as it is. */
static void flip_put(struct passage *p)
{
    struct tierce__buf *theirs = p->inner.buf, *copy = NULL;
    if (!lends(p->fault)) {
        if (tierce__pool_alloc(theirs->pool, &copy, theirs->bytes) < 0)
            return;
        memcpy(copy->data, theirs->data, theirs->bytes);
        p->inner.buf = copy;
    }
    flip(p);
}

static void submit_short(struct passage *p)
{
    struct tierce__store_req *req = &p->inner;
    req->length = req->length / 2 / FAULT_PAGE * FAULT_PAGE;
    if (req->length > 0) {
        p->fault->next->ops->submit(p->fault->next, req);
    } else {
        req->status = 0;
        req->done(req);
    }
}

static void inner_done(struct tierce__store_req *req)
{
    struct passage *p = req->arg;
    if (p->rule.kind == TIERCE__FAULT_FLIP && req->op == TIERCE__STORE_GET && req->status == 0)
        flip(p);
    if (p->rule.kind == TIERCE__FAULT_SHORT && req->status == 0)
        req->status = p->rule.status;
    if (req->op == TIERCE__STORE_PUT && req->buf != p->outer->buf) {
        tierce__buf_release(req->buf);
        req->buf = p->outer->buf;
    }
    if (p->rule.kind == TIERCE__FAULT_DELAY)
        answer_at(p, tierce__now_ns() + p->rule.delay_ms * TIERCE__MS_NS);
    else
        answer(p);
}

/* Draws what a rule leaves to chance. False: it does not hit. */
static bool draw_rule(struct tierce__fault_rule *rule, uint64_t *state)
{
    bool hit = tierce__random_next(state) % 1000 < rule->per_mille;
    rule->bit = tierce__random_next(state);
    rule->delay_ms = (uint32_t)(tierce__random_next(state) % ((uint64_t)rule->delay_ms + 1));
    return hit;
}

/* The rule that hits this request, or one of kind NONE. */
static struct tierce__fault_rule next_rule(struct fault *f, enum tierce__store_op op)
{
    struct tierce__fault_rule rule = {0};
    tierce__lock_take(&f->lock);
    const struct tierce__fault_rule *set = &f->rules[op];
    if (set->kind != TIERCE__FAULT_NONE) {
        uint32_t nth = f->seen[op]++;
        if (nth >= set->skip && (set->times == 0 || nth - set->skip < set->times))
            rule = *set;
        if (rule.seed != 0 && !draw_rule(&rule, &f->random[op]))
            rule.kind = TIERCE__FAULT_NONE;
    }
    tierce__lock_drop(&f->lock);
    return rule;
}

/* Whether a kind means something to a request; others pass. */
static bool applies(const struct fault *f, enum tierce__fault_kind kind, enum tierce__store_op op)
{
    if (kind == TIERCE__FAULT_FLIP)
        return op == TIERCE__STORE_GET || op == TIERCE__STORE_PUT;
    return kind != TIERCE__FAULT_SHORT || (op == TIERCE__STORE_GET && !lends(f));
}

static void submit(struct tierce__tier *tier, struct tierce__store_req *req)
{
    struct fault *f = TIERCE__CONTAINER_OF(tier, struct fault, base);
    struct passage *p = tierce__calloc(1, sizeof(*p));
    if (p == NULL) {
        req->status = -ENOMEM;
        req->done(req);
        return;
    }
    p->inner = *req;
    p->inner.done = inner_done;
    p->inner.arg = p;
    p->outer = req;
    p->fault = f;
    /* No fault on lookups of remembered answers: the tier received those answers earlier. */
    bool recalls = req->recall == TIERCE__RECALL_ONLY || req->recall == TIERCE__RECALL_OLD;
    if (!recalls)
        p->rule = next_rule(f, req->op);
    if (!applies(f, p->rule.kind, req->op))
        p->rule.kind = TIERCE__FAULT_NONE;
    switch (p->rule.kind) {
    case TIERCE__FAULT_ERROR:
        p->inner.status = p->rule.status;
        p->inner.found = 0;
        if (p->rule.delay_ms > 0)
            answer_at(p, tierce__now_ns() + p->rule.delay_ms * TIERCE__MS_NS);
        else
            answer(p);
        break;
    case TIERCE__FAULT_HANG:
        p->inner.status = TIERCE_E_DEADLINE;
        p->inner.found = 0;
        answer_at(p, req->deadline_ns);
        break;
    case TIERCE__FAULT_SHORT:
        submit_short(p);
        break;
    case TIERCE__FAULT_FLIP:
        if (req->op == TIERCE__STORE_PUT)
            flip_put(p);
        f->next->ops->submit(f->next, &p->inner);
        break;
    case TIERCE__FAULT_NONE:
    case TIERCE__FAULT_DELAY:
        f->next->ops->submit(f->next, &p->inner);
        break;
    }
}

/* Takes the first late answer that is due (all of them when closing). Under the lock. */
static struct passage *take_due(struct fault *f, uint64_t now, uint64_t *wake_ns)
{
    *wake_ns = TIERCE__DEADLINE_NEVER;
    TIERCE__LIST_FOR_EACH (it, &f->late) {
        struct passage *p = TIERCE__CONTAINER_OF(it, struct passage, node);
        if (p->due_ns <= now || f->closing) {
            tierce__list_remove(it);
            return p;
        }
        if (p->due_ns < *wake_ns)
            *wake_ns = p->due_ns;
    }
    return NULL;
}

static void *run_clockwork(void *arg)
{
    struct fault *f = arg;
    tierce__lock_take(&f->lock);
    for (;;) {
        uint64_t wake_ns;
        struct passage *p = take_due(f, tierce__now_ns(), &wake_ns);
        if (p != NULL) {
            tierce__lock_drop(&f->lock);
            answer(p);
            tierce__lock_take(&f->lock);
        } else if (f->closing) {
            break;
        } else {
            tierce__cond_wait(&f->changed, &f->lock, wake_ns);
        }
    }
    tierce__lock_drop(&f->lock);
    return NULL;
}

static void touch(struct tierce__tier *tier, const struct tierce__tier_uses *uses)
{
    struct fault *f = TIERCE__CONTAINER_OF(tier, struct fault, base);
    f->next->ops->touch(f->next, uses);
}

static uint64_t evict(struct tierce__tier *tier, uint64_t bytes)
{
    struct fault *f = TIERCE__CONTAINER_OF(tier, struct fault, base);
    return f->next->ops->evict(f->next, bytes);
}

static struct tierce__buf *reserve(struct tierce__tier *tier, const struct tierce__reserve *what)
{
    struct fault *f = TIERCE__CONTAINER_OF(tier, struct fault, base);
    return f->next->ops->reserve != NULL ? f->next->ops->reserve(f->next, what) : NULL;
}

static void stats(struct tierce__tier *tier, struct tierce__tier_stats *out)
{
    struct fault *f = TIERCE__CONTAINER_OF(tier, struct fault, base);
    f->next->ops->stats(f->next, out);
}

static void watch(struct tierce__tier *tier, tierce__tier_watch_fn *fn, void *arg)
{
    struct fault *f = TIERCE__CONTAINER_OF(tier, struct fault, base);
    f->next->ops->watch(f->next, fn, arg);
}

static bool scan(struct tierce__tier *tier, uint32_t *cursor, uint32_t places,
                 tierce__tier_watch_fn *fn, void *arg)
{
    struct fault *f = TIERCE__CONTAINER_OF(tier, struct fault, base);
    return f->next->ops->scan(f->next, cursor, places, fn, arg);
}

/* Delayed requests are answered first: their callers may still call the tier behind this one. */
static bool close_fault(struct tierce__tier *tier, uint64_t deadline_ns)
{
    struct fault *f = TIERCE__CONTAINER_OF(tier, struct fault, base);
    tierce__lock_take(&f->lock);
    f->closing = true;
    tierce__cond_signal(&f->changed);
    tierce__lock_drop(&f->lock);
    pthread_join(f->clockwork, NULL);
    if (!f->next->ops->close(f->next, deadline_ns))
        return false; /* an answer may still come through here */
    tierce__cond_fini(&f->changed);
    tierce__lock_fini(&f->lock);
    tierce__free(f);
    return true;
}

/* One table for each combination of caps, because caps are part of the table. A tier that lends
 * holds pool buffers, and can be asked to evict. */
static const struct tierce__tier_ops fault_ops[4] = {
#define FAULT_OPS_ROW(c)                                                                           \
    {                                                                                              \
        .name = "fault", .caps = (c), .submit = submit, .touch = touch,                            \
        .evict = ((c)&TIERCE__TIER_LENDS) != 0 ? evict : NULL, .reserve = reserve, .stats = stats, \
        .watch = watch, .scan = scan, .close = close_fault                                         \
    }
    FAULT_OPS_ROW(0), FAULT_OPS_ROW(1), FAULT_OPS_ROW(2), FAULT_OPS_ROW(3)};

int tierce__fault_create(struct tierce__tier **out, struct tierce__tier *next)
{
    struct fault *f = tierce__calloc(1, sizeof(*f));
    if (f == NULL)
        return -ENOMEM;
    f->base.ops = &fault_ops[next->ops->caps & 3u];
    f->next = next;
    tierce__lock_init(&f->lock, TIERCE__LOCK_FAULT);
    tierce__cond_init(&f->changed);
    tierce__list_init(&f->late);
    int rc = pthread_create(&f->clockwork, NULL, run_clockwork, f);
    if (rc != 0) {
        tierce__cond_fini(&f->changed);
        tierce__lock_fini(&f->lock);
        tierce__free(f);
        return -rc;
    }
    *out = &f->base;
    return 0;
}

void tierce__fault_set(struct tierce__tier *tier, enum tierce__store_op op,
                       const struct tierce__fault_rule *rule)
{
    struct fault *f = TIERCE__CONTAINER_OF(tier, struct fault, base);
    tierce__lock_take(&f->lock);
    f->rules[op] = rule != NULL ? *rule : (struct tierce__fault_rule){0};
    f->seen[op] = 0;
    f->random[op] = f->rules[op].seed;
    tierce__lock_drop(&f->lock);
}
