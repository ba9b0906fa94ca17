/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/health/cost.h"

#include "base/assert.h"
#include "base/clock.h"
#include "engine/view.h"
#include "engine/lender.h"

/* A prompt counts half as much once so many seconds of computing have followed. */
#define HALF_LIFE_S 10.0
/* Older measurements are repeated. */
#define KNOWN_S 10u
/* A store nearby is always waited for. */
#define WAIT_MS_LEAST 5u

/* ---- how fast the engine computes ---------------------------------------------------------- */

void tierce__prefill_init(struct tierce__prefill *prefill)
{
    *prefill = (struct tierce__prefill){0};
    tierce__lock_init(&prefill->lock, TIERCE__LOCK_PREFILL);
}

void tierce__prefill_fini(struct tierce__prefill *prefill)
{
    tierce__lock_fini(&prefill->lock);
}

void tierce__prefill_note(struct tierce__prefill *prefill, uint64_t tokens, uint64_t ns)
{
    tierce__lock_take(&prefill->lock);
    prefill->tokens += (double)tokens;
    prefill->seconds += (double)ns / 1e9;
    if (prefill->seconds > 2 * HALF_LIFE_S) {
        prefill->tokens /= 2;
        prefill->seconds /= 2;
    }
    TIERCE_DASSERT(prefill->tokens >= 0 && prefill->seconds >= 0);
    tierce__lock_drop(&prefill->lock);
}

double tierce__prefill_speed(struct tierce__prefill *prefill)
{
    tierce__lock_take(&prefill->lock);
    double speed = prefill->seconds > 0 ? prefill->tokens / prefill->seconds : 0;
    tierce__lock_drop(&prefill->lock);
    return speed;
}

void tierce_view_computed(struct tierce_view *view, uint64_t tokens, uint64_t ns)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    if (tierce__engine_inherited(view->engine))
        return;
    view->engine->lender->computed(view, tokens, ns);
}

/* ---- loads that pay ------------------------------------------------------------------------ */

size_t tierce__cost_worth(const struct tierce__cost_tier *tiers, const uint8_t *places,
                          size_t count, uint64_t chunk_bytes, uint64_t chunk_tokens,
                          double prefill_speed)
{
    double load_s[TIERCE__TIERS_MAX] = {0}, slowest_s = 0, most_saved_s = 0;
    size_t best = 0;
    if (prefill_speed <= 0)
        return count;
    for (size_t i = 0; i < count; i++) {
        size_t t = places[i];
        TIERCE_DASSERT(t < TIERCE__TIERS_MAX);
        if (t > 0) {
            if (tiers[t].bytes_per_s <= 0)
                return count;
            if (load_s[t] == 0)
                load_s[t] = tiers[t].latency_s;
            load_s[t] += (double)chunk_bytes / tiers[t].bytes_per_s;
            slowest_s = load_s[t] > slowest_s ? load_s[t] : slowest_s;
        }
        double saved_s = (double)((i + 1) * chunk_tokens) / prefill_speed - slowest_s;
        if (saved_s >= most_saved_s) {
            most_saved_s = saved_s;
            best = i + 1;
        }
    }
    TIERCE_DASSERT(best <= count);
    return best;
}

/* As measured, unless the configuration says something else; so is the prefill. */
static struct tierce__cost_tier cost_of(struct tierce_engine *engine, size_t level)
{
    TIERCE_DASSERT(level > 0 && level < engine->level_count);
    struct tierce__speed speed;
    if (engine->settings.cost_read_bytes_per_s > 0)
        return (struct tierce__cost_tier){.bytes_per_s =
                                              (double)engine->settings.cost_read_bytes_per_s};
    tierce__health_speed(&engine->levels[level].health, &speed);
    return (struct tierce__cost_tier){speed.latency_s, speed.bytes_per_s};
}

static double prefill_of(struct tierce_view *view)
{
    uint64_t said = view->engine->settings.cost_prefill;
    return said > 0 ? (double)said : tierce__prefill_speed(&view->prefill);
}

size_t tierce__cost_limit(struct tierce_view *view, const uint8_t *places, size_t count)
{
    struct tierce_engine *engine = view->engine;
    struct tierce__cost_tier tiers[TIERCE__TIERS_MAX] = {0};
    if (!engine->settings.cost_check || count == 0)
        return count;
    for (size_t level = 1; level < engine->level_count; level++)
        tiers[level] = cost_of(engine, level);
    return tierce__cost_worth(tiers, places, count, view->full.extent.object_bytes,
                              (uint64_t)view->chunk_blocks * view->full.geometry.block_tokens,
                              prefill_of(view));
}

bool tierce__cost_pays(struct tierce_view *view, size_t level, uint64_t bytes, uint64_t tokens)
{
    if (!view->engine->settings.cost_check || level == 0)
        return true;
    TIERCE_DASSERT(level < view->engine->level_count);
    struct tierce__cost_tier tiers[2] = {{0}, cost_of(view->engine, level)};
    return tierce__cost_worth(tiers, &(uint8_t){1}, 1, bytes, tokens, prefill_of(view)) == 1;
}

uint64_t tierce__cost_wait_ns(struct tierce_view *view, uint64_t tokens)
{
    const double most_ns = 1e18;
    const struct tierce__settings *settings = &view->engine->settings;
    double speed = prefill_of(view);
    if (!settings->cost_check || settings->cost_wait_percent == 0 || speed <= 0)
        return UINT64_MAX;
    double ns = (double)tokens / speed * (double)settings->cost_wait_percent * 1e7;
    double least_ns = (double)(WAIT_MS_LEAST * TIERCE__MS_NS);
    ns = ns > least_ns ? ns : least_ns;
    return ns < most_ns ? (uint64_t)ns : UINT64_MAX;
}

/* Whether a tier's measurements are old; returns true to only one of several concurrent callers. */
static bool is_time_to_measure(struct tierce__level *level, const struct tierce__speed *speed)
{
    uint64_t tried_ns = atomic_load(&level->measure_tried_ns), now_ns = tierce__now_ns();
    uint64_t last_ns = speed->known_ns > tried_ns ? speed->known_ns : tried_ns;
    TIERCE_DASSERT(now_ns >= last_ns); /* the clock is read last */
    return now_ns - last_ns > KNOWN_S * 1000u * TIERCE__MS_NS &&
           atomic_compare_exchange_strong(&level->measure_tried_ns, &tried_ns, now_ns);
}

void tierce__cost_measure(struct tierce_view *view, size_t level, const struct tierce__key *keys,
                          size_t count)
{
    TIERCE_DASSERT(level > 0);
    TIERCE_DASSERT(level < view->engine->level_count);
    struct tierce_engine *engine = view->engine;
    struct tierce__speed speed;
    tierce__health_speed(&engine->levels[level].health, &speed);
    if (engine->settings.cost_read_bytes_per_s > 0 ||
        !is_time_to_measure(&engine->levels[level], &speed))
        return;
    for (size_t i = 0; i < count && i < TIERCE__COST_SAMPLES; i++)
        tierce__storage_sample(engine, level, &keys[i], view->full.extent.object_bytes);
}
