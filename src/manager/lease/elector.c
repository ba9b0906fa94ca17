/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two threads: the keeper, which alone uses the lease, acquires and renews it; the caller runs
 * promote and demote. They share a state:
 *
 *     FOLLOWING ──taken──▶ PROMOTING ──promote()──▶ LEADING
 *         ▲                    │ failed                │ lost, given up, stopped
 *         │                    ▼                       ▼
 *         └─────────────── RESIGNING ◀──demote()── DEMOTING
 *
 * The keeper moves it out of FOLLOWING, LEADING and RESIGNING, the caller out of the other two.
 */
#include "manager/lease/elector.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "base/log/log.h"
#include "manager/lease/lease.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define ELECTOR_MAGIC 0x74656c63u

enum {
    LEASE_MS = 10000,
    INTERVAL_MS = 100,
    RENEWALS = 5, /* in the time of a lease */
    MARGIN = 10,  /* of a lease, the part before its end at which a leader stops: clocks drift */
    TIMEOUTS = 4, /* of a lease, the part that one call may take */
    DELAY_MS_MAX = INT32_MAX, /* of a campaign */
    LOOK_MS = 1000, /* between two reads of the leader's name, while this node does not campaign */
};

enum state { FOLLOWING, PROMOTING, LEADING, DEMOTING, RESIGNING };

struct tierce__elector {
    uint32_t magic;
    uint32_t lease_ms, interval_ms;
    int (*promote)(void *arg, uint64_t fence);
    void (*demote)(void *arg);
    void *arg;
    char node_id[TIERCE__LEASE_HOLDER_BYTES];
    struct tierce__lease *lease; /* the keeper's */
    int lease_error;             /* the last error of the lease; used by the keeper only */
    pthread_t keeper, caller;

    /* The time until which this node leads, on the clock of boot_ns; 0: it does not lead. Written
     * under the lock, with release, so that a thread that sees the leadership sees the effects of
     * promote(). */
    _Atomic uint64_t leads_until_ns;
    _Atomic int64_t campaign_delay_ms;

    struct tierce__lock lock; /* guards the fields below */
    struct tierce__cond changed;
    enum state state;
    bool has_lease; /* as far as we know */
    bool is_resigning, is_stopping,
        has_failed; /* requests: release the lease; end; promote() failed */
    uint64_t fence;
    uint64_t lease_until_ns, renew_ns, campaign_ns, look_ns; /* boot_ns */
    uint64_t turn_ns; /* time of the keeper's last iteration */
    int trouble;      /* of the last campaign */
    char leader[TIERCE__LEASE_HOLDER_BYTES];
};

/* This clock advances while the machine is suspended, as the lease does elsewhere. */
static uint64_t boot_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
}

static uint64_t ms_ns(const struct tierce__elector *elector, unsigned part)
{
    TIERCE_DASSERT(part > 0);
    return elector->lease_ms * TIERCE__MS_NS / part;
}

bool tierce__elector_leads(const struct tierce__elector *elector)
{
    TIERCE_CHECK_MAGIC(elector, ELECTOR_MAGIC);
    uint64_t until = atomic_load_explicit(&elector->leads_until_ns, memory_order_acquire);
    return until != 0 && boot_ns() < until;
}

static void set_leads(struct tierce__elector *elector, bool leads)
{
    tierce__lock_assert_held(&elector->lock);
    TIERCE_ASSERT(!leads || elector->has_lease);
    TIERCE_ASSERT(!leads || elector->state == PROMOTING || elector->state == LEADING);
    atomic_store_explicit(&elector->leads_until_ns, leads ? elector->lease_until_ns : 0,
                          memory_order_release);
}

static void move_to(struct tierce__elector *elector, enum state state)
{
    tierce__lock_assert_held(&elector->lock);
    TIERCE_ASSERT(state != PROMOTING || elector->state == FOLLOWING);
    TIERCE_ASSERT(state != LEADING || elector->state == PROMOTING);
    TIERCE_ASSERT(state != DEMOTING || elector->state == PROMOTING || elector->state == LEADING);
    TIERCE_ASSERT(state != RESIGNING || elector->state == PROMOTING || elector->state == DEMOTING);
    TIERCE_ASSERT(state != FOLLOWING || elector->state == RESIGNING);
    elector->state = state;
    tierce__cond_broadcast(&elector->changed);
}

/* Returns whether this node holds the lease and may act as the leader. */
static bool may_lead(const struct tierce__elector *elector)
{
    tierce__lock_assert_held(&elector->lock);
    return elector->has_lease && !elector->is_resigning && !elector->is_stopping &&
           boot_ns() < elector->lease_until_ns;
}

/* ---- the keeper ------------------------------------------------------------------------------ */

/* The lease is counted from before the call that acquired or renewed it. */
static void note_lease(struct tierce__elector *elector, uint64_t from_ns)
{
    tierce__lock_assert_held(&elector->lock);
    elector->has_lease = true;
    elector->lease_until_ns = from_ns + ms_ns(elector, 1) - ms_ns(elector, MARGIN);
    elector->renew_ns = from_ns + ms_ns(elector, RENEWALS);
    /* A lease that can have a token later is replaced by one that has it as soon as it can. */
    if (elector->fence == 0 && elector->interval_ms * TIERCE__MS_NS < ms_ns(elector, RENEWALS))
        elector->renew_ns = from_ns + elector->interval_ms * TIERCE__MS_NS;
    TIERCE_ASSERT(elector->renew_ns <= elector->lease_until_ns);
}

/* Why the lease cannot be acquired. */
static void put_trouble(char *out, size_t room, int error)
{
    if (error == TIERCE_E_REFUSED)
        snprintf(out, room,
                 "another manager has begun to use registry.uri; managers that share a registry "
                 "require elector.uri");
    else
        snprintf(out, room, "the lease of elector.uri cannot be acquired: %s",
                 tierce_strerror(error));
}

static void log_trouble(int error)
{
    char why[160];
    put_trouble(why, sizeof(why), error);
    if (error == TIERCE_E_REFUSED)
        tierce__log(TIERCE_LOG_ERROR, "registry_taken",
                    "why=\"%s\" hint=\"end one of the two; this one leads again after a restart\"",
                    why);
    else
        tierce__log(TIERCE_LOG_ERROR, "lease_unreachable",
                    "why=\"%s\" hint=\"this manager leads when the store of elector.uri answers\"",
                    tierce_strerror(error));
}

static void campaign(struct tierce__elector *elector)
{
    tierce__lock_assert_held(&elector->lock);
    TIERCE_ASSERT(elector->state == FOLLOWING && !elector->has_lease);
    char other[TIERCE__LEASE_HOLDER_BYTES] = "";
    uint64_t token = 0, from_ns = boot_ns();
    tierce__lock_drop(&elector->lock);
    int rc = elector->lease->ops->take(elector->lease, elector->lease_ms, &token, other);
    int error = rc == -EBUSY ? 0 : rc;
    if (error < 0 && error != elector->lease_error)
        log_trouble(error);
    elector->lease_error = error;
    tierce__lock_take(&elector->lock);
    if (rc == 0) {
        elector->fence = token;
        note_lease(elector, from_ns);
        snprintf(elector->leader, sizeof(elector->leader), "%s", elector->node_id);
        move_to(elector, PROMOTING);
    } else if (rc == -EBUSY) {
        snprintf(elector->leader, sizeof(elector->leader), "%s", other);
    } else {
        elector->leader[0] = '\0';
    }
    elector->trouble = rc == 0 || rc == -EBUSY ? 0 : rc;
}

static void look(struct tierce__elector *elector)
{
    tierce__lock_assert_held(&elector->lock);
    TIERCE_ASSERT(elector->state == FOLLOWING && !elector->has_lease);
    char holder[TIERCE__LEASE_HOLDER_BYTES] = "";
    elector->look_ns = boot_ns() + LOOK_MS * TIERCE__MS_NS;
    tierce__lock_drop(&elector->lock);
    int rc = elector->lease->ops->look(elector->lease, holder);
    tierce__lock_take(&elector->lock);
    TIERCE_ASSERT(elector->state == FOLLOWING && !elector->has_lease);
    snprintf(elector->leader, sizeof(elector->leader), "%s", rc == 0 ? holder : "");
}

static void renew(struct tierce__elector *elector)
{
    tierce__lock_assert_held(&elector->lock);
    TIERCE_ASSERT(elector->has_lease && elector->state != FOLLOWING && elector->state != RESIGNING);
    uint64_t from_ns = boot_ns();
    tierce__lock_drop(&elector->lock);
    int rc = elector->lease->ops->renew(elector->lease, elector->lease_ms);
    tierce__lock_take(&elector->lock);
    TIERCE_ASSERT(elector->state != FOLLOWING); /* the caller may have moved to RESIGNING */
    /* A renewal that returns too late does not count: another node may have led meanwhile. */
    if (rc == 0 && boot_ns() < elector->lease_until_ns)
        note_lease(elector, from_ns);
    else if (rc == TIERCE_E_REFUSED || boot_ns() >= elector->lease_until_ns)
        elector->has_lease = false;
}

/* A lease that seems lost is released too: a late renewal may have succeeded. The release checks
 * the holder. */
static void give(struct tierce__elector *elector)
{
    tierce__lock_assert_held(&elector->lock);
    TIERCE_ASSERT(elector->state == RESIGNING && !tierce__elector_leads(elector));
    elector->has_lease = false;
    tierce__lock_drop(&elector->lock);
    elector->lease->ops->give(elector->lease);
    tierce__lock_take(&elector->lock);
}

/* Other nodes may campaign before this node does so again. */
static void put_off(struct tierce__elector *elector)
{
    tierce__lock_assert_held(&elector->lock);
    TIERCE_DASSERT(elector->state == FOLLOWING || elector->state == RESIGNING);
    int64_t delay_ms = atomic_load_explicit(&elector->campaign_delay_ms, memory_order_relaxed);
    delay_ms = delay_ms < DELAY_MS_MAX ? delay_ms : DELAY_MS_MAX;
    int64_t least_ms = elector->has_failed ? elector->lease_ms : 2 * elector->interval_ms;
    elector->campaign_ns =
        boot_ns() + (uint64_t)(delay_ms > least_ms ? delay_ms : least_ms) * TIERCE__MS_NS;
}

static void resign(struct tierce__elector *elector)
{
    tierce__lock_assert_held(&elector->lock);
    TIERCE_ASSERT(elector->state == RESIGNING);
    bool was_lost = !elector->has_lease;
    give(elector);
    if (!was_lost)
        put_off(elector);
    elector->has_failed = false;
    elector->leader[0] = '\0';
    move_to(elector, FOLLOWING);
}

/* One iteration of the keeper, by the state. */
static void turn(struct tierce__elector *elector)
{
    tierce__lock_assert_held(&elector->lock);
    if (elector->has_lease && elector->state != RESIGNING && boot_ns() >= elector->renew_ns)
        renew(elector);
    if (elector->state == LEADING) {
        set_leads(elector, may_lead(elector));
        if (!may_lead(elector))
            move_to(elector, DEMOTING);
    } else if (elector->state == RESIGNING) {
        resign(elector);
    } else if (elector->state == FOLLOWING) {
        elector->is_resigning = false;
        if (boot_ns() >= elector->campaign_ns)
            campaign(elector);
        else if (boot_ns() >= elector->look_ns)
            look(elector);
    }
}

static void *keep(void *arg)
{
    struct tierce__elector *elector = arg;
    tierce__lock_take(&elector->lock);
    while (!elector->is_stopping || elector->state != FOLLOWING) {
        elector->turn_ns = boot_ns();
        enum state before = elector->state;
        turn(elector);
        if (elector->state == before && !(elector->is_stopping && before == FOLLOWING))
            (void)tierce__cond_wait(&elector->changed, &elector->lock,
                                    tierce__deadline_in_ms(elector->interval_ms));
    }
    TIERCE_ASSERT(elector->state == FOLLOWING && !elector->has_lease);
    tierce__cond_broadcast(&elector->changed);
    tierce__lock_drop(&elector->lock);
    return NULL;
}

/* ---- the caller ------------------------------------------------------------------------------ */

static void call_promote(struct tierce__elector *elector)
{
    tierce__lock_assert_held(&elector->lock);
    TIERCE_ASSERT(elector->state == PROMOTING);
    TIERCE_ASSERT(!tierce__elector_leads(elector));
    uint64_t fence = elector->fence;
    if (!may_lead(elector)) {
        move_to(elector, RESIGNING);
        return;
    }
    tierce__lock_drop(&elector->lock);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    int rc = elector->promote(elector->arg, fence);
    if (rc < 0)
        tierce__log(TIERCE_LOG_INFO, "promotion_failed", "fence=%llu why=\"%s\"",
                    (unsigned long long)fence, tierce_strerror(rc));
    else
        tierce__log(TIERCE_LOG_INFO, "leadership_begins", "fence=%llu", (unsigned long long)fence);
    tierce__lock_take(&elector->lock);
    TIERCE_ASSERT(elector->state == PROMOTING);
    elector->has_failed = rc < 0;
    if (rc < 0) {
        move_to(elector, RESIGNING);
    } else if (may_lead(elector)) {
        set_leads(elector, true);
        move_to(elector, LEADING);
    } else {
        move_to(elector, DEMOTING);
    }
}

static void call_demote(struct tierce__elector *elector)
{
    tierce__lock_assert_held(&elector->lock);
    TIERCE_ASSERT(elector->state == DEMOTING);
    TIERCE_ASSERT(!tierce__elector_leads(elector));
    uint64_t fence = elector->fence;
    bool was_lost = !elector->has_lease;
    tierce__lock_drop(&elector->lock);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    tierce__log(was_lost ? TIERCE_LOG_WARN : TIERCE_LOG_INFO, "leadership_ends",
                "fence=%llu lost=%d", (unsigned long long)fence, was_lost);
    elector->demote(elector->arg);
    tierce__lock_take(&elector->lock);
    TIERCE_ASSERT(elector->state == DEMOTING);
    move_to(elector, RESIGNING);
}

static void *call(void *arg)
{
    struct tierce__elector *elector = arg;
    tierce__lock_take(&elector->lock);
    while (!elector->is_stopping || elector->state != FOLLOWING) {
        if (elector->state == PROMOTING)
            call_promote(elector);
        else if (elector->state == DEMOTING)
            call_demote(elector);
        else
            (void)tierce__cond_wait(&elector->changed, &elector->lock, TIERCE__DEADLINE_NEVER);
    }
    tierce__lock_drop(&elector->lock);
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int open_lease(struct tierce__elector *elector, const char *uri, char why[256])
{
    uri = uri != NULL ? uri : "";
    const struct tierce__lease_ops *ops = tierce__lease_find(uri);
    if (ops != NULL)
        return ops->open(&elector->lease, uri, elector->node_id, elector->lease_ms / TIMEOUTS, why);
    /* The URI itself is not logged, because it may contain a password. */
    snprintf(why, 256,
             "elector.uri must begin with memory://, file://, redis://, rediss://, redis+unix://, "
             "redis-cluster://, rediss-cluster://, etcd:// or etcds://, or be empty");
    return TIERCE_E_CONFIG;
}

/* Frees the parts that exist; no thread runs. */
static void destroy(struct tierce__elector *elector)
{
    TIERCE_ASSERT(atomic_load_explicit(&elector->leads_until_ns, memory_order_relaxed) == 0);
    if (elector->lease != NULL)
        elector->lease->ops->close(elector->lease);
    tierce__cond_fini(&elector->changed);
    tierce__lock_fini(&elector->lock);
    elector->magic = 0;
    tierce__free(elector);
}

static void end_threads(struct tierce__elector *elector)
{
    tierce__lock_take(&elector->lock);
    TIERCE_ASSERT(!elector->is_stopping);
    elector->is_stopping = true;
    set_leads(elector, false);
    tierce__cond_broadcast(&elector->changed);
    tierce__lock_drop(&elector->lock);
    pthread_join(elector->keeper, NULL);
    pthread_join(elector->caller, NULL);
    TIERCE_ASSERT(elector->state == FOLLOWING && !elector->has_lease);
}

static int start_threads(struct tierce__elector *elector)
{
    TIERCE_ASSERT(!elector->is_stopping && elector->state == FOLLOWING);
    /* Join the caller first: the keeper may need it to end. */
    int rc = -pthread_create(&elector->caller, NULL, call, elector);
    if (rc != 0)
        return rc;
    rc = -pthread_create(&elector->keeper, NULL, keep, elector);
    if (rc != 0) {
        tierce__lock_take(&elector->lock);
        elector->is_stopping = true;
        tierce__cond_broadcast(&elector->changed);
        tierce__lock_drop(&elector->lock);
        pthread_join(elector->caller, NULL);
    }
    return rc;
}

int tierce__elector_start(struct tierce__elector **out, const struct tierce__elector_opts *opts,
                          char why[256])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    size_t n = strlen(opts->node_id);
    if (n == 0 || n >= TIERCE__LEASE_HOLDER_BYTES) {
        snprintf(why, 256, "a node id must have 1 to 127 bytes");
        return TIERCE_E_CONFIG;
    }
    struct tierce__elector *elector = tierce__calloc(1, sizeof(*elector));
    if (elector == NULL)
        return -ENOMEM;
    elector->magic = ELECTOR_MAGIC;
    elector->lease_ms = opts->lease_ms != 0 ? opts->lease_ms : LEASE_MS;
    elector->interval_ms = opts->interval_ms != 0 ? opts->interval_ms : INTERVAL_MS;
    elector->promote = opts->promote;
    elector->demote = opts->demote;
    elector->arg = opts->arg;
    snprintf(elector->node_id, sizeof(elector->node_id), "%s", opts->node_id);
    tierce__lock_init(&elector->lock, TIERCE__LOCK_ELECTOR);
    tierce__cond_init(&elector->changed);
    elector->turn_ns = boot_ns();
    int rc = open_lease(elector, opts->uri, why);
    if (rc == 0) {
        rc = start_threads(elector);
        if (rc != 0)
            snprintf(why, 256, "threads: %s", tierce_strerror(rc));
    }
    if (rc == 0)
        *out = elector;
    else
        destroy(elector);
    return rc;
}

void tierce__elector_stop(struct tierce__elector *elector)
{
    if (elector == NULL)
        return;
    TIERCE_CHECK_MAGIC(elector, ELECTOR_MAGIC);
    end_threads(elector);
    destroy(elector);
}

/* ---- queries --------------------------------------------------------------------------------- */

void tierce__elector_state(struct tierce__elector *elector, struct tierce__elector_state *out)
{
    TIERCE_CHECK_MAGIC(elector, ELECTOR_MAGIC);
    tierce__lock_take(&elector->lock);
    uint64_t now = boot_ns();
    TIERCE_DASSERT(now >= elector->turn_ns);
    *out = (struct tierce__elector_state){
        .leads = tierce__elector_leads(elector),
        .fence = elector->has_lease ? elector->fence : 0,
        .loop_age_ms = (now - elector->turn_ns) / TIERCE__MS_NS,
    };
    if (elector->has_lease && elector->lease_until_ns > now)
        out->lease_until_us =
            (int64_t)(tierce__lease_wall_us() + (elector->lease_until_ns - now) / 1000);
    snprintf(out->leader, sizeof(out->leader), "%s", elector->leader);
    if (elector->trouble != 0)
        put_trouble(out->trouble, sizeof(out->trouble), elector->trouble);
    tierce__lock_drop(&elector->lock);
}

void tierce__elector_demote(struct tierce__elector *elector)
{
    TIERCE_CHECK_MAGIC(elector, ELECTOR_MAGIC);
    tierce__lock_take(&elector->lock);
    set_leads(elector, false);
    elector->is_resigning = true;
    if (elector->state == FOLLOWING)
        put_off(elector);
    tierce__cond_broadcast(&elector->changed);
    tierce__lock_drop(&elector->lock);
}

void tierce__elector_set_campaign_delay(struct tierce__elector *elector, int64_t delay_ms)
{
    TIERCE_CHECK_MAGIC(elector, ELECTOR_MAGIC);
    atomic_store_explicit(&elector->campaign_delay_ms, delay_ms, memory_order_relaxed);
}

int64_t tierce__elector_campaign_delay(const struct tierce__elector *elector)
{
    TIERCE_CHECK_MAGIC(elector, ELECTOR_MAGIC);
    return atomic_load_explicit(&elector->campaign_delay_ms, memory_order_relaxed);
}
