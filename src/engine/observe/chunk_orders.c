/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/chunk_orders.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/objects/smalls.h"
#include "engine/observe/operate.h"
#include "engine/store/chunk_copy.h"

#define SCAN_PLACES 64u

void tierce__chunk_orders_init(struct tierce__chunk_orders *orders, struct tierce_engine *engine,
                               const _Atomic bool *stops)
{
    TIERCE_DASSERT(engine->level_count > 0);
    *orders = (struct tierce__chunk_orders){.engine = engine, .stops = stops};
    orders->pins.magic = TIERCE__VIEW_MAGIC;
    orders->pins.engine = engine;
}

void tierce__chunk_orders_fini(struct tierce__chunk_orders *orders)
{
    (void)tierce__sessions_expire(orders->engine, &orders->pins, true);
}

/* ---- outcomes -------------------------------------------------------------------------------- */

static bool is_stopped(const struct tierce__chunk_orders *orders)
{
    return atomic_load_explicit(orders->stops, memory_order_relaxed);
}

__attribute__((format(printf, 2, 3))) static void say(struct tierce__chunk_order_outcome *out,
                                                      const char *format, ...)
{
    size_t used = strlen(out->message);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(out->message + used, sizeof(out->message) - used, format, arguments);
    va_end(arguments);
}

/* A command that names chunks has failed if it was done for none of them. */
static void count(const struct tierce__chunk_numbers *chunks, uint64_t done,
                  struct tierce__chunk_order_outcome *out)
{
    TIERCE_DASSERT(done <= chunks->count);
    out->chunks = done;
    out->left_out = chunks->count - done;
    out->is_done = done > 0;
}

static const char *tier_name(const struct tierce_engine *engine, size_t level)
{
    return engine->levels[level].tier->ops->name;
}

static void say_tiers(const struct tierce_engine *engine, struct tierce__chunk_order_outcome *out)
{
    say(out, "the tiers are");
    for (size_t level = 0; level < engine->level_count; level++)
        say(out, "%s %zu (%s)", level > 0 ? "," : "", level, tier_name(engine, level));
}

/* ---- chunks by their numbers ----------------------------------------------------------------- */

struct wanted {
    struct tierce__chunk_number number;
    size_t index;
};

/* The records of the named chunks that a tier holds, in the order of the names. */
struct find {
    struct wanted *wanted;               /* [count], sorted */
    struct tierce__storage_chunk *found; /* [count]; object_bytes 0: not held */
    size_t count;
};

static int compare(const void *a, const void *b)
{
    const struct tierce__chunk_number *x = &((const struct wanted *)a)->number;
    const struct tierce__chunk_number *y = &((const struct wanted *)b)->number;
    if (x->high != y->high)
        return x->high < y->high ? -1 : 1;
    return x->low < y->low ? -1 : x->low > y->low;
}

struct scan {
    uint32_t count;
    struct tierce__storage_chunk records[SCAN_PLACES];
};

/* Under the tier's lock. */
static void take(void *arg, const struct tierce__tier_event *event)
{
    struct scan *scan = arg;
    TIERCE_ASSERT(scan->count < SCAN_PLACES);
    if (!tierce__smalls_is_page(event->key))
        tierce__chunk_record(&scan->records[scan->count++], event);
}

static void match(const struct tierce_engine *engine, const struct scan *scan, struct find *find)
{
    for (uint32_t i = 0; i < scan->count; i++) {
        const struct tierce__key *key = &scan->records[i].key;
        struct wanted probe = {
            .number = tierce__chunk_number(tierce__namespaces_digest(engine->namespaces, key->ns),
                                           &key->shard, key->hash)};
        const struct wanted *wanted =
            bsearch(&probe, find->wanted, find->count, sizeof(probe), compare);
        if (wanted != NULL)
            find->found[wanted->index] = scan->records[i];
    }
}

static void find_fini(struct find *find)
{
    tierce__free(find->wanted);
    tierce__free(find->found);
}

/* find_fini must follow. Errors: -ENOMEM, TIERCE_E_CANCELLED. */
static int find_init(struct find *find, const struct tierce__chunk_orders *orders, size_t level,
                     const struct tierce__chunk_numbers *chunks)
{
    struct tierce_engine *engine = orders->engine;
    struct tierce__tier *tier = engine->levels[level].tier;
    struct scan *scan = tierce__alloc(sizeof(*scan));
    *find = (struct find){.count = chunks->count};
    find->wanted = tierce__calloc(chunks->count + 1, sizeof(*find->wanted));
    find->found = tierce__calloc(chunks->count + 1, sizeof(*find->found));
    int rc = scan != NULL && find->wanted != NULL && find->found != NULL ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < chunks->count; i++)
        find->wanted[i] = (struct wanted){chunks->numbers[i], i};
    if (rc == 0)
        qsort(find->wanted, chunks->count, sizeof(*find->wanted), compare);
    uint32_t cursor = 0;
    for (bool more = rc == 0; more;) {
        scan->count = 0;
        more = tier->ops->scan(tier, &cursor, SCAN_PLACES, take, scan);
        match(engine, scan, find);
        if (is_stopped(orders)) {
            rc = TIERCE_E_CANCELLED;
            break;
        }
    }
    tierce__free(scan);
    return rc;
}

static bool is_found(const struct find *find, size_t i)
{
    return find->found[i].object_bytes > 0;
}

/* ---- pins ------------------------------------------------------------------------------------ */

/* Each chunk has a session of its own, so that it can be unpinned alone. */
static uint64_t session_of(const struct tierce__chunk_number *number)
{
    return number->low != 0 ? number->low : 1;
}

/* Returns 0, TIERCE_E_MISS, TIERCE_E_FULL (memory.pins), -ENOMEM. */
static int pin(struct tierce__chunk_orders *orders, const struct tierce__key *key,
               const struct tierce__chunk_number *number, uint32_t pin_ms)
{
    struct tierce__buf *buf = tierce__storage_lease(orders->engine, key);
    if (buf == NULL)
        return TIERCE_E_MISS;
    struct tierce__session *session = tierce__session_alloc(&orders->pins, session_of(number), 1);
    if (session == NULL) {
        tierce__buf_release(buf);
        return -ENOMEM;
    }
    session->bufs[0] = buf;
    session->count = 1;
    if (tierce__session_hold(session, key, pin_ms) == 1)
        return 0;
    tierce_unpin(&orders->pins, session_of(number)); /* an empty session */
    tierce__count(orders->engine, TIERCE__STAT_pins_refused, 1);
    return TIERCE_E_FULL;
}

void tierce__chunk_orders_pin(struct tierce__chunk_orders *orders,
                              const struct tierce__chunk_numbers *chunks, uint64_t pin_ms,
                              struct tierce__chunk_order_outcome *out)
{
    struct find find;
    uint64_t pinned = 0, missing = 0, refused = 0;
    uint32_t ms = pin_ms < TIERCE_PIN_MS_MAX ? (uint32_t)pin_ms : TIERCE_PIN_MS_MAX;
    int rc = find_init(&find, orders, 0, chunks);
    for (size_t i = 0; rc == 0 && i < chunks->count && !is_stopped(orders); i++) {
        int status = is_found(&find, i) ? pin(orders, &find.found[i].key, &chunks->numbers[i], ms)
                                        : TIERCE_E_MISS;
        pinned += status == 0;
        missing += status == TIERCE_E_MISS;
        refused += status != 0 && status != TIERCE_E_MISS;
    }
    find_fini(&find);
    count(chunks, pinned, out);
    if (rc != 0)
        say(out, "%s", tierce_strerror(rc));
    if (missing > 0)
        say(out, "%" PRIu64 " are not in memory%s", missing, refused > 0 ? "; " : "");
    if (refused > 0)
        say(out, "%" PRIu64 " do not fit into memory.pins", refused);
}

void tierce__chunk_orders_unpin(struct tierce__chunk_orders *orders,
                                const struct tierce__chunk_numbers *chunks,
                                struct tierce__chunk_order_outcome *out)
{
    uint64_t ended = 0;
    if (chunks->count == 0) {
        out->chunks = tierce__sessions_expire(orders->engine, &orders->pins, true);
        out->is_done = true;
        return;
    }
    for (size_t i = 0; i < chunks->count; i++) {
        struct tierce__session *session =
            tierce__session_take(&orders->pins, session_of(&chunks->numbers[i]));
        ended += session != NULL;
        tierce__session_free(session);
    }
    count(chunks, ended, out);
    if (out->left_out > 0)
        say(out, "%" PRIu64 " are not pinned by a command", out->left_out);
}

/* ---- moves ----------------------------------------------------------------------------------- */

static bool has(struct tierce_engine *engine, size_t level, const struct tierce__key *key)
{
    struct tierce__unasked unasked;
    return tierce__storage_search(engine, 1u << level, key, 1, NULL, &unasked) == 1;
}

static int copy_down(struct tierce_engine *engine, size_t to,
                     const struct tierce__storage_chunk *chunk)
{
    uint64_t era = tierce__era_of_read(engine);
    struct tierce__buf *buf = tierce__storage_lease(engine, &chunk->key);
    if (buf == NULL)
        return TIERCE_E_MISS;
    int rc = buf->bytes >= chunk->object_bytes ? tierce__storage_put(engine, to, era, chunk, buf)
                                               : TIERCE_E_MISS; /* replaced by another one */
    tierce__buf_release(buf);
    return rc;
}

static int copy_up(struct tierce_engine *engine, size_t from,
                   const struct tierce__storage_chunk *chunk)
{
    int rc = 0;
    uint64_t era = tierce__era_of_read(engine);
    struct tierce__buf *buf = tierce__chunk_read(engine, from, chunk, &rc);
    if (buf == NULL)
        return rc;
    rc = TIERCE_E_CANCELLED;
    if (tierce__era_enter(engine, era)) {
        rc = tierce__storage_publish(engine, chunk, buf);
        tierce__era_leave(engine, era);
    }
    tierce__buf_release(buf);
    return rc < 0 ? rc : 0;
}

/* Removes from the source those that the target holds, which are leased meanwhile if it is memory:
 * they are not evicted before. */
static void remove_source(struct tierce_engine *engine, const struct tierce__chunk_move *move,
                          const struct find *find)
{
    for (size_t i = find->count; i-- > 0;) {
        const struct tierce__key *key = &find->found[i].key;
        if (!is_found(find, i))
            continue;
        struct tierce__buf *buf = move->to == 0 ? tierce__storage_lease(engine, key) : NULL;
        if (move->to == 0 ? buf != NULL : has(engine, move->to, key))
            tierce__storage_delete(engine, move->from, key);
        tierce__buf_release(buf);
    }
}

/* Whether the engine can carry it out. False: the outcome says why not. */
static bool is_possible(const struct tierce_engine *engine, const struct tierce__chunk_move *move,
                        struct tierce__chunk_order_outcome *out)
{
    size_t slower = move->from > move->to ? move->from : move->to;
    if (tierce__engine_mode(engine) != TIERCE_MODE_NORMAL) {
        say(out, "the mode is %s; chunks are moved in the mode normal",
            tierce_mode_name(tierce__engine_mode(engine)));
        return false;
    }
    if ((move->from == 0) == (move->to == 0) || slower >= engine->level_count) {
        say(out, "from %zu to %zu: one of the two must be memory, the other one a slower tier; ",
            move->from, move->to);
        say_tiers(engine, out);
        return false;
    }
    if (engine->levels[slower].health.shared) {
        say(out, "tier %zu (%s) is shared with other engines; accepted are the engine's own tiers",
            slower, tier_name(engine, slower));
        return false;
    }
    return true;
}

void tierce__chunk_orders_move(struct tierce__chunk_orders *orders,
                               const struct tierce__chunk_numbers *chunks,
                               const struct tierce__chunk_move *move,
                               struct tierce__chunk_order_outcome *out)
{
    struct tierce_engine *engine = orders->engine;
    struct find find;
    uint64_t moved = 0, missing = 0;
    int failed = 0;
    out->left_out = chunks->count;
    if (!is_possible(engine, move, out))
        return;
    int rc = find_init(&find, orders, move->from, chunks);
    for (size_t i = 0; rc == 0 && i < chunks->count; i++) {
        int status = TIERCE_E_MISS;
        if (is_stopped(orders) || tierce__now_ns() >= move->deadline_ns)
            rc = is_stopped(orders) ? TIERCE_E_CANCELLED : TIERCE_E_DEADLINE;
        else if (is_found(&find, i))
            status = has(engine, move->to, &find.found[i].key) ? 0
                     : move->to == 0 ? copy_up(engine, move->from, &find.found[i])
                                     : copy_down(engine, move->to, &find.found[i]);
        moved += status == 0 && has(engine, move->to, &find.found[i].key);
        missing += rc == 0 && status == TIERCE_E_MISS;
        failed = status != 0 && status != TIERCE_E_MISS ? status : failed;
    }
    if (!move->keeps && find.found != NULL)
        remove_source(engine, move, &find);
    find_fini(&find);
    count(chunks, moved, out);
    if (missing > 0)
        say(out, "%" PRIu64 " are not in tier %zu (%s)%s", missing, move->from,
            tier_name(engine, move->from), rc != 0 || failed != 0 ? "; " : "");
    if (rc != 0 || failed != 0)
        say(out, "tier %zu (%s) did not take all of them: %s", move->to,
            tier_name(engine, move->to), tierce_strerror(rc != 0 ? rc : failed));
    else if (moved + missing < chunks->count)
        say(out, "%stier %zu (%s) admitted only a part", missing > 0 ? "; " : "", move->to,
            tier_name(engine, move->to));
}

/* ---- the whole engine ------------------------------------------------------------------------ */

void tierce__chunk_orders_clear(struct tierce__chunk_orders *orders, uint32_t tiers,
                                struct tierce__chunk_order_outcome *out)
{
    struct tierce_engine *engine = orders->engine;
    uint32_t mask = 0;
    for (size_t level = 0; level < engine->level_count; level++) {
        if ((tiers >> level & 1) != 0)
            mask |= 1u << engine->levels[level].origin;
    }
    if (tiers >> engine->level_count != 0) {
        say(out, "there is no tier %d; ", 31 - __builtin_clz(tiers));
        say_tiers(engine, out);
        return;
    }
    int64_t chunks = tierce__engine_clear(engine, mask, NULL);
    out->is_done = chunks >= 0;
    out->chunks = chunks > 0 ? (uint64_t)chunks : 0;
    if (chunks < 0)
        say(out, "%s", tierce_strerror((int)chunks));
}

void tierce__chunk_orders_health(struct tierce__chunk_orders *orders,
                                 struct tierce__chunk_order_outcome *out)
{
    struct tierce_engine *engine = orders->engine;
    out->is_done = true;
    say(out, "mode %s", tierce_mode_name(tierce__engine_mode(engine)));
    for (size_t level = 0; level < engine->level_count; level++) {
        struct tierce__level *at = &engine->levels[level];
        struct tierce__tier_stats stats;
        at->tier->ops->stats(at->tier, &stats);
        say(out, "; tier %zu (%s): %s", level, tier_name(engine, level),
            tierce__health_serves(&at->health) ? "in service" : "out of service");
        if (!at->health.shared)
            say(out, ", %" PRIu64 " chunks, %" PRIu64 " bytes", (uint64_t)stats.chunks,
                (uint64_t)stats.used_bytes);
    }
    if (engine->disk_error[0] != '\0')
        say(out, "; the disk could not be opened: %.200s", engine->disk_error);
    tierce__lock_take(&engine->lock);
    uint64_t pinned = engine->pinned_bytes;
    tierce__lock_drop(&engine->lock);
    say(out, "; %" PRIu64 " bytes pinned", pinned);
}
