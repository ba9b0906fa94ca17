/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/locate/locator_private.h"

#include <errno.h>

/*
 * Hints of clients about the next use of blocks, and whether they come true.
 *
 * A use of a block counts for its hint, or for none. The use after it is a return for the hint
 * before. So that evicted blocks can return too, the last of them are remembered by their keys.
 */

enum {
    USES_MOST = 1 << 16,  /* of a kind; then they count half */
    USES_LEAST = 64,      /* before a kind is judged */
    ONE_USE_US = 1000000, /* uses within this time count as one: ranks of a request read alike */
    GONE_BITS = 13,       /* evicted keys of an instance that are remembered, at most */
};

/* Entries of keys, each at the place of its key: an entry displaces another one. */
struct tierce__gone_hints {
    _Atomic uint64_t entries[1 << GONE_BITS]; /* 0: none */
};

/* ---- counting -------------------------------------------------------------------------------- */

static void add(_Atomic uint64_t *number, uint64_t n)
{
    if (n > 0)
        atomic_fetch_add_explicit(number, n, memory_order_relaxed);
}

static uint64_t load(const _Atomic uint64_t *number)
{
    return atomic_load_explicit(number, memory_order_relaxed);
}

void tierce__hint_tally_add(struct tierce__hint_tally *tally, const struct tierce__record *record,
                            int64_t now_us)
{
    enum tierce__policy_hint before = tierce__hint_kind(record->hint);
    bool is_one = now_us - record->used_us < ONE_USE_US;
    TIERCE_DASSERT(before < TIERCE__HINTS);
    tally->replaced[before] += is_one;
    tally->returned[before] += !is_one;
    tally->uses++;
}

/* If two threads count at the same time, the numbers may be off by a few. */
static void replace(struct tierce__live_hints *hints, enum tierce__policy_hint kind, uint64_t uses)
{
    uint64_t used = load(&hints->recent_used[kind]);
    if (uses > 0)
        atomic_fetch_sub_explicit(&hints->recent_used[kind], uses < used ? uses : used,
                                  memory_order_relaxed);
}

static void fade(struct tierce__live_hints *hints, enum tierce__policy_hint kind)
{
    uint64_t used = load(&hints->recent_used[kind]), returned = load(&hints->recent_returned[kind]);
    if (used < USES_MOST)
        return;
    atomic_fetch_sub_explicit(&hints->recent_used[kind], used / 2, memory_order_relaxed);
    atomic_fetch_sub_explicit(&hints->recent_returned[kind], returned / 2, memory_order_relaxed);
}

/* Evicted keys are remembered from the first hint on. */
static void begin_gone(struct tierce__live_hints *hints)
{
    struct tierce__gone_hints *none = NULL;
    if (atomic_load_explicit(&hints->gone, memory_order_acquire) != NULL)
        return;
    struct tierce__gone_hints *gone = tierce__calloc(1, sizeof(*gone));
    if (gone != NULL && !atomic_compare_exchange_strong_explicit(
                            &hints->gone, &none, gone, memory_order_acq_rel, memory_order_relaxed))
        tierce__free(gone);
}

void tierce__live_count_hints(struct tierce__live *live, const struct tierce__hint_tally *tally,
                              uint16_t hint)
{
    struct tierce__live_hints *hints = &live->hints;
    enum tierce__policy_hint kind = tierce__hint_kind(hint);
    TIERCE_DASSERT(tierce__hint_is_valid(hint));
    for (unsigned k = 0; k < TIERCE__HINTS; k++) {
        replace(hints, (enum tierce__policy_hint)k, tally->replaced[k]);
        add(&hints->recent_returned[k], tally->returned[k]);
        add(&hints->returned[k], tally->returned[k]);
    }
    add(&hints->recent_used[kind], tally->uses);
    add(&hints->used[kind], tally->uses);
    fade(hints, kind);
    if (kind != TIERCE__HINT_NONE && tally->uses > 0)
        begin_gone(hints);
}

/* ---- evicted blocks -------------------------------------------------------------------------- */

/* The key's place in the table, and the entry of a hint there: never 0. */
static _Atomic uint64_t *gone_at(struct tierce__gone_hints *gone, int64_t key, uint64_t *entry,
                                 enum tierce__policy_hint kind)
{
    uint64_t mixed = tierce__meta_mix(key);
    *entry = (mixed & ~UINT64_C(7)) | (kind + 1u);
    _Static_assert(TIERCE__HINTS < 8, "an entry has three bits for the hint");
    return &gone->entries[mixed >> (64 - GONE_BITS)];
}

void tierce__live_note_gone(struct tierce__live *live, int64_t key, uint16_t hint)
{
    struct tierce__gone_hints *gone = atomic_load_explicit(&live->hints.gone, memory_order_acquire);
    uint64_t entry;
    if (gone == NULL)
        return;
    _Atomic uint64_t *at = gone_at(gone, key, &entry, tierce__hint_kind(hint));
    atomic_store_explicit(at, entry, memory_order_relaxed);
}

void tierce__live_note_stored(struct tierce__live *live, int64_t key, uint16_t hint)
{
    struct tierce__gone_hints *gone = atomic_load_explicit(&live->hints.gone, memory_order_acquire);
    struct tierce__hint_tally tally = {.uses = 1};
    uint64_t wanted, entry = 0;
    if (gone != NULL) {
        _Atomic uint64_t *at = gone_at(gone, key, &wanted, TIERCE__HINT_NONE);
        entry = load(at);
        if ((entry ^ wanted) >> 3 == 0 && entry != 0 &&
            atomic_compare_exchange_strong_explicit(at, &entry, 0, memory_order_relaxed,
                                                    memory_order_relaxed))
            tally.returned[(entry & 7) - 1]++;
    }
    tierce__live_count_hints(live, &tally, hint);
}

/* ---- judging --------------------------------------------------------------------------------- */

bool tierce__live_trusts_closed(const struct tierce__live *live)
{
    const struct tierce__live_hints *hints = &live->hints;
    uint64_t used = load(&hints->recent_used[TIERCE__HINT_CLOSED]);
    uint64_t returned = load(&hints->recent_returned[TIERCE__HINT_CLOSED]);
    uint64_t others = load(&hints->recent_used[TIERCE__HINT_NONE]);
    uint64_t others_returned = load(&hints->recent_returned[TIERCE__HINT_NONE]);
    for (unsigned k = TIERCE__HINT_NONE + 1; others < USES_LEAST && k < TIERCE__HINTS; k++) {
        others += k != TIERCE__HINT_CLOSED ? load(&hints->recent_used[k]) : 0;
        others_returned += k != TIERCE__HINT_CLOSED ? load(&hints->recent_returned[k]) : 0;
    }
    if (used < USES_LEAST || others < USES_LEAST || returned == 0)
        return true;
    return (double)returned * (double)others < (double)others_returned * (double)used;
}

void tierce__live_add_hints(const struct tierce__live *live, struct tierce__policy_hints *out)
{
    for (unsigned k = TIERCE__HINT_NONE + 1; k < TIERCE__HINTS; k++) {
        out->used[k] += load(&live->hints.used[k]);
        out->returned[k] += load(&live->hints.returned[k]);
    }
}

void tierce__live_free_hints(struct tierce__live *live)
{
    tierce__free(atomic_load_explicit(&live->hints.gone, memory_order_relaxed));
}

/* ---- a hint without a use -------------------------------------------------------------------- */

/* The hint replaces that of the last use. */
static int count_replaced(struct tierce__live *live, const int64_t *keys, size_t count,
                          uint16_t hint)
{
    struct tierce__arena arena = {0};
    struct tierce__hint_tally tally = {0};
    struct tierce__record *records = tierce__arena_calloc(&arena, count, sizeof(*records));
    bool *found = tierce__arena_calloc(&arena, count, sizeof(*found));
    int rc = records == NULL || found == NULL ? -ENOMEM : 0;
    if (rc == 0)
        rc = tierce__meta_index_get(live->index, keys, count, &arena, records, found);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        tally.replaced[tierce__hint_kind(records[i].hint)] += found[i];
        tally.uses += found[i];
    }
    if (rc == 0)
        tierce__live_count_hints(live, &tally, hint);
    tierce__arena_clear(&arena);
    return rc;
}

int tierce__locator_hint(struct tierce__locator *locator, const char *instance_id,
                         const int64_t *keys, size_t count, uint16_t hint,
                         char why[TIERCE__WHY_BYTES])
{
    struct tierce__live *live;
    int rc = tierce__live_acquire(&live, locator, instance_id, why);
    if (rc < 0)
        return rc;
    TIERCE_DASSERT(hint != 0 && tierce__hint_is_valid(hint));
    rc = count > 0 ? count_replaced(live, keys, count, hint) : 0;
    if (rc == 0)
        tierce__meta_index_touch(live->index, keys, count,
                                 &(struct tierce__record_use){.hint = hint});
    else
        rc = tierce__why(why, rc, "the index cannot be read: %s", tierce_strerror(rc));
    tierce__live_release(live);
    return rc;
}
