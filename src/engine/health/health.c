/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/health/health.h"

#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>

/* Readings count half as much once so many seconds of reading, or so many answers, have
 * followed. */
#define HALF_LIFE_S    2.0
#define LATENCY_WEIGHT 0.125
/* After this time without an answer, the recorded values are obsolete, and count no more than a
 * reading of this time. */
#define STALE_NS         (10u * 1000u * TIERCE__MS_NS)
#define STALE_S          0.001
#define SMALL_READ_BYTES (1u << 20)
/* A silence of more than both is no reading speed, unless one was found this short a time ago. */
#define STALL_NS       (1000u * TIERCE__MS_NS)
#define STALL_TIMES    8.0
#define STALL_APART_NS (30u * STALL_NS)
/* After so many answers in a row for which a connection was made, that is how the store reads. */
#define CONNECTED_MAX 64u

void tierce__health_init(struct tierce__health *health, const struct tierce__health_limits *limits)
{
    TIERCE_DASSERT(limits->window_errors_max <= TIERCE__HEALTH_WINDOW);
    *health = (struct tierce__health){.limits = *limits};
    tierce__breaker_init(&health->breaker, limits->errors_max, limits->retry_ms);
    tierce__lock_init(&health->lock, TIERCE__LOCK_HEALTH);
}

void tierce__health_fini(struct tierce__health *health)
{
    tierce__lock_fini(&health->lock);
}

bool tierce__health_is_fault(int status)
{
    return status == TIERCE_E_DEADLINE || status == TIERCE_E_DOWN ||
           (status < 0 && status > TIERCE_E_MISS);
}

bool tierce__health_is_full(int status)
{
    return status == -ENOSPC || status == -EDQUOT;
}

bool tierce__health_is_rejection(int status)
{
    return status == -EACCES || status == -EPERM || status == -EROFS;
}

/* Whether an answer counts against the tier. A full disk, and one that may only be read, fail
 * writes only: their chunks can be read. */
static bool counts_against(const struct tierce__store_req *req)
{
    TIERCE_DASSERT(req->status <= 0);
    int status = req->status;
    bool writes = req->op == TIERCE__STORE_PUT || req->op == TIERCE__STORE_FLUSH;
    return tierce__health_is_fault(status) && !tierce__health_is_full(status) &&
           !(writes && tierce__health_is_rejection(status));
}

static bool reaches_device(const struct tierce__store_req *req)
{
    return req->op == TIERCE__STORE_GET || req->op == TIERCE__STORE_PUT ||
           req->op == TIERCE__STORE_PING;
}

/* ---- how fast it reads --------------------------------------------------------------------- */

/*
 * Bandwidth is what all readings together brought while at least one was under way: that is what
 * a load of many chunks sees. Latency is that of small readings, which brings no bandwidth into it,
 * and of the first answer only: the readings of a load are requested together, and wait for each
 * other. The latency before the first answer is not counted again as a lack of bandwidth, up to
 * half of that time, because the latency is an estimate too.
 *
 * Two answers are not counted, nor is the time before them. If a connection was made for a read, it
 * took several round trips, and the reads that were requested with it waited too; but a read that
 * was faster than the known speed counts. A silence that is
 * long for a tier of that speed is a stall, which will have passed when the next load reads; a tier
 * with more stalls than one in STALL_APART_NS is slow.
 */

/* Ends a time of reading at `now`, or cuts it there. Under the lock. */
static void add_busy(struct tierce__health *health, uint64_t now_ns)
{
    tierce__lock_assert_held(&health->lock);
    TIERCE_DASSERT(now_ns >= health->busy_since_ns);
    double s = (double)(now_ns - health->busy_since_ns) / 1e9;
    health->busy_since_ns = now_ns;
    health->busy_s += s;
    if (health->busy_s > 2 * HALF_LIFE_S) {
        health->busy_s /= 2;
        health->busy_bytes /= 2;
    }
}

static bool is_stale(const struct tierce__health *health, uint64_t now_ns)
{
    TIERCE_DASSERT(now_ns >= health->measured_ns);
    return now_ns - health->measured_ns > STALE_NS;
}

/* Both read the clock under the lock: a time from before it may be earlier than one that another
 * thread has noted meanwhile. */
static void begin_reading(struct tierce__health *health)
{
    tierce__lock_take(&health->lock);
    uint64_t now_ns = tierce__now_ns();
    TIERCE_DASSERT(now_ns >= health->busy_since_ns);
    if (health->reading++ == 0) {
        health->busy_since_ns = now_ns;
        health->is_first = true;
        if (is_stale(health, now_ns) && health->busy_s > STALE_S) {
            health->busy_bytes *= STALE_S / health->busy_s;
            health->busy_s = STALE_S;
        }
    }
    tierce__lock_drop(&health->lock);
}

/* The part of the time to a first answer that is latency. Under the lock. */
static uint64_t latency_within(const struct tierce__health *health, uint64_t took_ns)
{
    tierce__lock_assert_held(&health->lock);
    uint64_t latency_ns = (uint64_t)(health->latency_s * 1e9);
    return latency_ns < took_ns / 2 ? latency_ns : took_ns / 2;
}

/* Whether the tier was silent for far longer than it takes to read. Under the lock. */
static bool ends_stall(struct tierce__health *health, const struct tierce__store_req *req,
                       uint64_t now_ns)
{
    tierce__lock_assert_held(&health->lock);
    uint64_t silent_ns = now_ns - health->busy_since_ns;
    if (health->busy_s <= 0 || silent_ns < STALL_NS)
        return false;
    double speed = health->busy_bytes / health->busy_s;
    double usual_s = health->latency_s + (double)req->length / speed;
    bool is_stall = (double)silent_ns / 1e9 > STALL_TIMES * usual_s &&
                    (health->stalled_ns == 0 || now_ns - health->stalled_ns > STALL_APART_NS);
    if (is_stall)
        health->stalled_ns = now_ns;
    return is_stall;
}

/* Whether an answer says nothing about the speed. Under the lock. */
static bool is_left_out(struct tierce__health *health, const struct tierce__store_req *req,
                        uint64_t now_ns)
{
    tierce__lock_assert_held(&health->lock);
    if (req->status != 0)
        return false;
    double silent_s = (double)(now_ns - health->busy_since_ns) / 1e9;
    health->connected = req->connected ? health->connected + 1 : 0;
    if (health->connected == 0 || health->connected > CONNECTED_MAX)
        return ends_stall(health, req, now_ns);
    return (double)req->length * health->busy_s <= health->busy_bytes * silent_s;
}

static void end_reading(struct tierce__health *health, const struct tierce__store_req *req)
{
    TIERCE_DASSERT(req->op == TIERCE__STORE_GET);
    tierce__lock_take(&health->lock);
    uint64_t now_ns = tierce__now_ns();
    double took_s = (double)(now_ns - req->begun_ns) / 1e9;
    TIERCE_DASSERT(now_ns >= health->busy_since_ns);
    TIERCE_DASSERT(health->reading > 0);
    bool is_first = health->is_first;
    health->is_first = false;
    if (is_left_out(health, req, now_ns)) {
        health->busy_since_ns = health->left_out_ns = now_ns;
        health->reading--;
        tierce__lock_drop(&health->lock);
        return;
    }
    if (is_first && req->status == 0)
        health->busy_since_ns += latency_within(health, now_ns - health->busy_since_ns);
    add_busy(health, now_ns);
    health->reading--;
    if (req->status == 0) {
        bool stale = is_stale(health, now_ns) || health->latency_s == 0;
        health->busy_bytes += (double)req->length;
        health->measured_ns = now_ns;
        bool has_waited = req->begun_ns < health->left_out_ns;
        if (!has_waited && (stale || (is_first && req->length <= SMALL_READ_BYTES)))
            health->latency_s += (stale ? 1 : LATENCY_WEIGHT) * (took_s - health->latency_s);
    }
    tierce__lock_drop(&health->lock);
}

/* After an outage: the time that failed reads took in it is not the speed of the tier. */
static void forget_speed(struct tierce__health *health)
{
    tierce__lock_take(&health->lock);
    health->busy_since_ns = tierce__now_ns();
    health->busy_s = health->busy_bytes = health->latency_s = 0;
    health->measured_ns = 0;
    tierce__lock_drop(&health->lock);
}

void tierce__health_speed(struct tierce__health *health, struct tierce__speed *out)
{
    tierce__lock_take(&health->lock);
    *out = (struct tierce__speed){.latency_s = health->latency_s, .known_ns = health->measured_ns};
    if (health->busy_s > 0)
        out->bytes_per_s = health->busy_bytes / health->busy_s;
    tierce__lock_drop(&health->lock);
    TIERCE_DASSERT(out->bytes_per_s >= 0 && out->latency_s >= 0);
}

/* ---- whether it is asked ------------------------------------------------------------------- */

bool tierce__health_pass(struct tierce__health *health, struct tierce__store_req *req)
{
    uint64_t now_ns = tierce__now_ns();
    req->begun_ns = now_ns;
    req->repeats = req->connected = false;
    bool may_probe = health->pings ? req->op == TIERCE__STORE_PING : reaches_device(req);
    if (!may_probe && !tierce__breaker_closed(&health->breaker))
        return false;
    if (!reaches_device(req))
        return true;
    if (!tierce__breaker_pass(&health->breaker, now_ns))
        return false;
    if (req->op == TIERCE__STORE_GET)
        begin_reading(health);
    return true;
}

/* Whether the tier has answered nothing since the begin of a request that reached its deadline.
 * Under the lock. */
static bool hangs(const struct tierce__health *health, const struct tierce__store_req *req,
                  uint64_t now_ns)
{
    tierce__lock_assert_held(&health->lock);
    TIERCE_DASSERT(now_ns >= req->begun_ns);
    return req->status == TIERCE_E_DEADLINE && health->heard_ns < req->begun_ns &&
           now_ns - req->begun_ns >= health->limits.hang_ms * TIERCE__MS_NS;
}

/* Whether too many of the last answers were failures, this one included, or the tier hangs. */
static bool note_outcome(struct tierce__health *health, const struct tierce__store_req *req,
                         bool failed, uint64_t now_ns)
{
    const struct tierce__health_limits *limits = &health->limits;
    TIERCE_DASSERT(req->key_count > 0);
    tierce__lock_take(&health->lock);
    health->failures = health->failures << 1 | failed;
    uint32_t failures = (uint32_t)__builtin_popcountll(health->failures);
    bool too_many = limits->window_errors_max > 0 &&
                    (failures >= limits->window_errors_max || hangs(health, req, now_ns));
    if (too_many)
        health->failures = 0; /* the verdict is given: counting restarts when the tier is back */
    if (req->status != TIERCE_E_DEADLINE)
        health->heard_ns = now_ns;
    /* An unreadable chunk is in the tier's index, and is better than none for a probe. */
    bool may_be_there = req->op == TIERCE__STORE_GET && !health->has_proven;
    if (!failed || may_be_there) {
        health->proven = req->keys[0];
        health->has_proven = true;
    }
    tierce__lock_drop(&health->lock);
    return too_many;
}

bool tierce__health_is_unanswered(const struct tierce__health *health,
                                  const struct tierce__store_req *req)
{
    uint64_t patience_ns = health->limits.hang_ms * TIERCE__MS_NS;
    return health->shared && req->op == TIERCE__STORE_LOOKUP && req->status == TIERCE_E_DEADLINE &&
           (req->found > 0 || req->deadline_ns < req->begun_ns + patience_ns);
}

/* Whether a remote tier hangs; its requests leave the process. */
static bool note_lookup(struct tierce__health *health, const struct tierce__store_req *req,
                        uint64_t now_ns)
{
    TIERCE_DASSERT(health->shared && req->op == TIERCE__STORE_LOOKUP);
    bool is_answer = req->status != TIERCE_E_DEADLINE || req->found > 0;
    tierce__lock_take(&health->lock);
    bool too_long = health->limits.window_errors_max > 0 && hangs(health, req, now_ns);
    if (is_answer)
        health->heard_ns = now_ns;
    tierce__lock_drop(&health->lock);
    return too_long && !is_answer;
}

/* A lookup that reached its deadline counts for the tier's health; an answered lookup does not. */
static enum tierce__health_change note_index(struct tierce__health *health,
                                             const struct tierce__store_req *req)
{
    TIERCE_DASSERT(!reaches_device(req));
    uint64_t now_ns = tierce__now_ns();
    bool asks_outside = health->shared && req->op == TIERCE__STORE_LOOKUP && req->key_count > 0;
    bool failed = counts_against(req);
    if (req->repeats)
        return TIERCE__HEALTH_SAME;
    bool hangs_now = asks_outside && note_lookup(health, req, now_ns);
    if (asks_outside && tierce__health_is_unanswered(health, req)) {
        if (req->found == 0)
            return TIERCE__HEALTH_SAME;
        failed = false;
    }
    if (!failed && asks_outside)
        (void)tierce__breaker_note(&health->breaker, true, now_ns);
    if (!failed)
        return TIERCE__HEALTH_SAME;
    bool lost = hangs_now && tierce__breaker_closed(&health->breaker);
    if (lost)
        tierce__breaker_trip(&health->breaker, now_ns);
    else
        lost = tierce__breaker_note(&health->breaker, false, now_ns);
    return lost ? TIERCE__HEALTH_LOST : TIERCE__HEALTH_SAME;
}

/* A store that says that it is there: it is asked again, and its requests tell the rest. */
static enum tierce__health_change note_ping(struct tierce__health *health,
                                            const struct tierce__store_req *req)
{
    TIERCE_DASSERT(req->op == TIERCE__STORE_PING);
    bool was_closed = tierce__breaker_closed(&health->breaker), ok = req->status == 0;
    if (req->repeats) {
        tierce__breaker_let_go(&health->breaker);
        return TIERCE__HEALTH_SAME;
    }
    if (tierce__breaker_note(&health->breaker, ok, tierce__now_ns()))
        return TIERCE__HEALTH_LOST;
    return ok && !was_closed ? TIERCE__HEALTH_BACK : TIERCE__HEALTH_SAME;
}

/* A read, or a write. */
static enum tierce__health_change note_transfer(struct tierce__health *health,
                                                const struct tierce__store_req *req)
{
    TIERCE_DASSERT(req->op == TIERCE__STORE_GET || req->op == TIERCE__STORE_PUT);
    uint64_t now_ns = tierce__now_ns(), took_ns = now_ns - req->begun_ns;
    TIERCE_DASSERT(now_ns >= req->begun_ns);
    if (req->op == TIERCE__STORE_GET)
        end_reading(health, req);
    bool failed = counts_against(req) && !req->repeats;
    if (!failed && health->pings && !tierce__breaker_closed(&health->breaker))
        return TIERCE__HEALTH_SAME; /* it was sent before the tier went out of service */
    if (!failed && req->status != 0) {
        /* An honest no comes from the index; a shared tier's from its store, which is there
         * then. */
        bool answered = health->shared && req->status == TIERCE_E_MISS;
        bool is_back = answered && !tierce__breaker_closed(&health->breaker);
        if (answered)
            (void)tierce__breaker_note(&health->breaker, true, now_ns);
        else
            tierce__breaker_let_go(&health->breaker);
        return is_back ? TIERCE__HEALTH_BACK : TIERCE__HEALTH_SAME;
    }
    tierce__latency_add(req->op == TIERCE__STORE_GET ? &health->reads : &health->writes, took_ns);
    failed =
        failed || (health->limits.slow_ms > 0 && took_ns > health->limits.slow_ms * TIERCE__MS_NS);
    bool was_closed = tierce__breaker_closed(&health->breaker);
    bool lost = note_outcome(health, req, failed, now_ns) && was_closed;
    if (lost)
        tierce__breaker_trip(&health->breaker, now_ns);
    else
        lost = tierce__breaker_note(&health->breaker, !failed, now_ns);
    if (lost)
        return TIERCE__HEALTH_LOST;
    return !failed && !was_closed ? TIERCE__HEALTH_BACK : TIERCE__HEALTH_SAME;
}

enum tierce__health_change tierce__health_note(struct tierce__health *health,
                                               const struct tierce__store_req *req)
{
    if (!reaches_device(req))
        return note_index(health, req);
    enum tierce__health_change change =
        req->op == TIERCE__STORE_PING ? note_ping(health, req) : note_transfer(health, req);
    if (change == TIERCE__HEALTH_BACK)
        forget_speed(health);
    return change;
}

bool tierce__health_serves(const struct tierce__health *health)
{
    return tierce__breaker_closed(&health->breaker);
}

enum tierce__health_state tierce__health_state(const struct tierce__health *health)
{
    if (tierce__breaker_closed(&health->breaker))
        return TIERCE__HEALTH_CLOSED;
    return tierce__breaker_waits(&health->breaker, tierce__now_ns()) ? TIERCE__HEALTH_OPEN
                                                                     : TIERCE__HEALTH_HALF_OPEN;
}

bool tierce__health_is_due(const struct tierce__health *health)
{
    return tierce__breaker_due(&health->breaker, tierce__now_ns());
}

bool tierce__health_proven(struct tierce__health *health, struct tierce__key *key)
{
    tierce__lock_take(&health->lock);
    bool has = health->has_proven;
    if (has)
        *key = health->proven;
    tierce__lock_drop(&health->lock);
    return has;
}
