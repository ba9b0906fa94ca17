/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/operate.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "engine/lender.h"
#include "engine/objects/smalls.h"
#include "engine/view.h"

/* ---- modes ---- */

static const char *const mode_names[] = {"normal", "freeze", "bypass"};

const char *tierce_mode_name(enum tierce_mode mode)
{
    return (size_t)mode < sizeof(mode_names) / sizeof(mode_names[0]) ? mode_names[mode] : NULL;
}

int tierce__mode_find(const char *name)
{
    for (size_t i = 0; i < sizeof(mode_names) / sizeof(mode_names[0]); i++) {
        if (strcmp(mode_names[i], name) == 0)
            return (int)i;
    }
    return -1;
}

int tierce_engine_set_mode(struct tierce_engine *engine, enum tierce_mode mode)
{
    TIERCE_CHECK_MAGIC(engine, TIERCE__ENGINE_MAGIC);
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    if (tierce_mode_name(mode) == NULL)
        return TIERCE_E_ARGUMENT;
    enum tierce_mode before = atomic_exchange_explicit(&engine->mode, mode, memory_order_relaxed);
    if (before != mode)
        tierce__log(TIERCE_LOG_WARN, "engine_mode", "mode=%s before=%s", tierce_mode_name(mode),
                    tierce_mode_name(before));
    return 0;
}

int tierce_engine_set_role(struct tierce_engine *engine, const char *role)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-";
    TIERCE_CHECK_MAGIC(engine, TIERCE__ENGINE_MAGIC);
    size_t bytes = strnlen(role, sizeof(engine->role));
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    if (bytes == 0 || bytes == sizeof(engine->role) || strspn(role, plain) != bytes)
        return TIERCE_E_ARGUMENT;
    tierce__lock_take(&engine->lock);
    memcpy(engine->role, role, bytes + 1);
    tierce__lock_drop(&engine->lock);
    return 0;
}

enum tierce_mode tierce_engine_mode(const struct tierce_engine *engine)
{
    TIERCE_CHECK_MAGIC(engine, TIERCE__ENGINE_MAGIC);
    return tierce__engine_mode(engine);
}

/* ---- clears and operations in progress ---- */

uint64_t tierce__era_now(struct tierce_engine *engine)
{
    tierce__lock_take(&engine->lock);
    uint64_t era = engine->era;
    tierce__lock_drop(&engine->lock);
    return era;
}

uint64_t tierce__era_of_read(struct tierce_engine *engine)
{
    tierce__lock_take(&engine->lock);
    TIERCE_DASSERT(engine->clears == 0 || engine->era > 0);
    uint64_t era = engine->clears > 0 ? engine->era - 1 : engine->era;
    tierce__lock_drop(&engine->lock);
    return era;
}

bool tierce__era_enter(struct tierce_engine *engine, uint64_t era)
{
    tierce__lock_take(&engine->lock);
    TIERCE_DASSERT(era <= engine->era);
    bool same = engine->era == era;
    if (same)
        engine->publishing[era % 2]++;
    tierce__lock_drop(&engine->lock);
    return same;
}

uint64_t tierce__era_enter_now(struct tierce_engine *engine)
{
    tierce__lock_take(&engine->lock);
    uint64_t era = engine->era;
    engine->publishing[era % 2]++;
    tierce__lock_drop(&engine->lock);
    return era;
}

void tierce__era_leave(struct tierce_engine *engine, uint64_t era)
{
    tierce__lock_take(&engine->lock);
    TIERCE_ASSERT(engine->publishing[era % 2] > 0);
    TIERCE_DASSERT(era <= engine->era && engine->era - era <= 1);
    if (--engine->publishing[era % 2] == 0 && engine->era != era)
        tierce__cond_broadcast(&engine->changed);
    tierce__lock_drop(&engine->lock);
}

/*
 * Waits until no operation of the era before `era` is publishing; they count in the place of the
 * era after it. A clear that has begun a later era has seen them leave. Under the lock.
 */
static bool wait_for_earlier(struct tierce_engine *engine, uint64_t era, uint64_t deadline_ns)
{
    bool in_time = true;
    tierce__lock_assert_held(&engine->lock);
    TIERCE_DASSERT(era <= engine->era);
    while (in_time && engine->era == era && engine->publishing[(era + 1) % 2] > 0)
        in_time = tierce__cond_wait(&engine->changed, &engine->lock, deadline_ns);
    return engine->era != era || engine->publishing[(era + 1) % 2] == 0;
}

static bool begin_era(struct tierce_engine *engine, uint64_t deadline_ns)
{
    bool in_time;
    uint64_t era;
    tierce__lock_take(&engine->lock);
    do { /* while this clear waited, another one may have begun an era */
        era = engine->era;
        in_time = wait_for_earlier(engine, era, deadline_ns);
    } while (in_time && engine->era != era);
    if (in_time) {
        TIERCE_DASSERT(engine->publishing[(era + 1) % 2] == 0);
        engine->era = era + 1;
        engine->clears++;
        in_time = wait_for_earlier(engine, era + 1, deadline_ns);
        engine->clears -= !in_time;
    }
    tierce__lock_drop(&engine->lock);
    return in_time;
}

static void end_clear(struct tierce_engine *engine)
{
    tierce__lock_take(&engine->lock);
    TIERCE_DASSERT(engine->clears > 0);
    engine->clears--;
    tierce__lock_drop(&engine->lock);
}

/* ---- clear ---- */

/* Forgets a level's chunks; of a remote store that is not to be cleared, the puts. */
static int64_t clear_level(struct tierce_engine *engine, size_t level, bool only_puts,
                           const struct tierce__key *of)
{
    TIERCE_DASSERT(!only_puts || engine->levels[level].origin == TIERCE_ORIGIN_REMOTE);
    return only_puts ? tierce__storage_end_puts(engine, level, of)
                     : tierce__storage_forget(engine, level, of);
}

/* The slowest first, so that nothing is read again from where it is still to be cleared.
 * `only_puts`: the levels of which only the puts end. */
static int64_t clear_levels(struct tierce_engine *engine, uint32_t tiers, uint32_t only_puts,
                            const struct tierce__key *of)
{
    TIERCE_DASSERT(tiers != 0);
    int64_t chunks = 0;
    int failed = 0;
    for (size_t level = engine->level_count; level-- > 0;) {
        uint32_t tier = 1u << engine->levels[level].origin;
        if ((tiers & tier) == 0)
            continue;
        tierce__unsent_clear(&engine->levels[level], of);
        int64_t left = clear_level(engine, level, (only_puts & tier) != 0, of);
        if (left >= 0)
            chunks += left;
        else if (failed == 0)
            failed = (int)left;
    }
    TIERCE_DASSERT(chunks >= 0 && failed <= 0);
    return failed < 0 ? failed : chunks;
}

int64_t tierce_engine_clear(struct tierce_engine *engine, uint32_t tiers,
                            const struct tierce_view *view)
{
    TIERCE_CHECK_MAGIC(engine, TIERCE__ENGINE_MAGIC);
    if (view != NULL)
        TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    if (view != NULL && view->engine != engine)
        return TIERCE_E_ARGUMENT;
    return engine->lender->clear(engine, tiers, view);
}

int64_t tierce__engine_clear(struct tierce_engine *engine, uint32_t tiers,
                             const struct tierce__key *of)
{
    int64_t chunks = tierce__engine_clear_silently(engine, tiers, of);
    tierce__log(TIERCE_LOG_WARN, "engine_cleared", "tiers=%#x namespace=%s result=%lld", tiers,
                of != NULL ? "one" : "all", (long long)chunks);
    return chunks;
}

static int64_t clear_in_an_era(struct tierce_engine *engine, uint32_t tiers, uint32_t only_puts,
                               const struct tierce__key *of)
{
    if (!begin_era(engine, tierce__deadline_in_ms(engine->settings.load_ms)))
        return TIERCE_E_DEADLINE;
    tierce__object_names_change(&engine->object_names, of);
    uint64_t smalls = (tiers & 1u << TIERCE_ORIGIN_MEMORY) != 0 && engine->smalls != NULL
                          ? tierce__smalls_clear(engine->smalls, of)
                          : 0;
    int64_t chunks = clear_levels(engine, tiers, only_puts, of);
    chunks = chunks < 0 ? chunks : chunks + (int64_t)smalls;
    tierce__object_names_change(&engine->object_names, of);
    end_clear(engine);
    return chunks;
}

static uint32_t known_tiers(const struct tierce_engine *engine)
{
    uint32_t known = 0;
    for (size_t level = 0; level < engine->level_count; level++)
        known |= 1u << engine->levels[level].origin;
    return known;
}

int64_t tierce__engine_clear_silently(struct tierce_engine *engine, uint32_t tiers,
                                      const struct tierce__key *of)
{
    uint32_t known = known_tiers(engine);
    if ((tiers & ~known) != 0)
        return TIERCE_E_ARGUMENT;
    if (tiers == 0) /* shared stores are cleared only if they are named */
        tiers = known & ~(1u << TIERCE_ORIGIN_REMOTE);
    return clear_in_an_era(engine, tiers, 0, of);
}

/* Its removals are durable: a crash does not bring the chunks back. */
int64_t tierce__engine_clear_own(struct tierce_engine *engine, const struct tierce__key *of)
{
    uint64_t deadline_ns = tierce__deadline_in_ms(engine->settings.load_ms);
    int64_t chunks = clear_in_an_era(engine, known_tiers(engine), 1u << TIERCE_ORIGIN_REMOTE, of);
    for (size_t level = 0; chunks >= 0 && level < engine->level_count; level++) {
        int rc = engine->levels[level].origin == TIERCE_ORIGIN_DISK
                     ? tierce__storage_settle(engine, level, deadline_ns)
                     : 0;
        chunks = rc < 0 ? rc : chunks;
    }
    return chunks;
}
