/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/chunk_orders.h"
#include "engine/observe/chunk_orders_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "core/chunk/header.h"
#include "core/key/namespaces.h"
#include "engine/objects/object_form.h"
#include "engine/objects/smalls.h"
#include "engine/observe/operate.h"
#include "engine/own_tiers.h"
#include "engine/store/chunk_copy.h"
#include "store/remote/connector.h"

#define SCAN_PLACES  64u
#define NO_NAMESPACE 1 /* beside error codes */
#define NOT_KV       2
#define WRONG_LENGTH 3

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

bool tierce__chunk_orders_stopped(const struct tierce__chunk_orders *orders)
{
    return atomic_load_explicit(orders->stops, memory_order_relaxed);
}

void tierce__chunk_say(struct tierce__chunk_order_outcome *out, const char *format, ...)
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

static size_t number_of(const struct tierce_engine *engine, size_t level)
{
    return tierce__level_number(engine, level);
}

static const char *tier_name(const struct tierce_engine *engine, size_t level)
{
    return engine->levels[level].tier->ops->name;
}

static void say_tiers(const struct tierce_engine *engine, struct tierce__chunk_order_outcome *out)
{
    tierce__chunk_say(out, "the tiers are");
    for (size_t level = 0; level < engine->level_count; level++)
        tierce__chunk_say(out, "%s %zu (%s)", level > 0 ? "," : "", number_of(engine, level),
                          tier_name(engine, level));
}

/* ---- chunks by their numbers ----------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const struct tierce__chunk_number *x = &((const struct tierce__chunk_wanted *)a)->number;
    const struct tierce__chunk_number *y = &((const struct tierce__chunk_wanted *)b)->number;
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

int tierce__chunk_walk(const struct tierce__chunk_orders *orders, size_t level,
                       tierce__chunk_walk_fn *fn, void *arg)
{
    struct tierce__tier *tier = orders->engine->levels[level].tier;
    struct scan *scan = tierce__alloc(sizeof(*scan));
    uint32_t cursor = 0;
    int rc = scan != NULL ? 0 : -ENOMEM;
    for (bool more = rc == 0; more && rc == 0;) {
        scan->count = 0;
        more = tier->ops->scan(tier, &cursor, SCAN_PLACES, take, scan);
        for (uint32_t i = 0; rc == 0 && i < scan->count; i++)
            rc = fn(arg, &scan->records[i]);
        if (tierce__chunk_orders_stopped(orders))
            rc = TIERCE_E_CANCELLED;
    }
    tierce__free(scan);
    return rc;
}

struct matching {
    const struct tierce_engine *engine;
    struct tierce__chunk_find *find;
};

static int match(void *arg, const struct tierce__storage_chunk *chunk)
{
    const struct matching *m = arg;
    const struct tierce__key *key = &chunk->key;
    struct tierce__chunk_wanted probe = {
        .number = tierce__chunk_number(tierce__namespaces_digest(m->engine->namespaces, key->ns),
                                       &key->shard, key->hash)};
    const struct tierce__chunk_wanted *wanted =
        bsearch(&probe, m->find->wanted, m->find->count, sizeof(probe), compare);
    if (wanted != NULL)
        m->find->found[wanted->index] = *chunk;
    return 0;
}

void tierce__chunk_find_fini(struct tierce__chunk_find *find)
{
    tierce__free(find->wanted);
    tierce__free(find->found);
}

int tierce__chunk_find_init(struct tierce__chunk_find *find,
                            const struct tierce__chunk_orders *orders, size_t level,
                            const struct tierce__chunk_numbers *chunks)
{
    *find = (struct tierce__chunk_find){.count = chunks->count};
    find->wanted = tierce__calloc(chunks->count + 1, sizeof(*find->wanted));
    find->found = tierce__calloc(chunks->count + 1, sizeof(*find->found));
    if (find->wanted == NULL || find->found == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < chunks->count; i++)
        find->wanted[i] = (struct tierce__chunk_wanted){chunks->numbers[i], i};
    qsort(find->wanted, chunks->count, sizeof(*find->wanted), compare);
    struct matching matching = {orders->engine, find};
    return tierce__chunk_walk(orders, level, match, &matching);
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
    struct tierce__chunk_find find;
    uint64_t pinned = 0, missing = 0, refused = 0;
    uint32_t ms = pin_ms < TIERCE_PIN_MS_MAX ? (uint32_t)pin_ms : TIERCE_PIN_MS_MAX;
    int rc = tierce__chunk_find_init(&find, orders, 0, chunks);
    for (size_t i = 0; rc == 0 && i < chunks->count && !tierce__chunk_orders_stopped(orders); i++) {
        int status = tierce__chunk_is_found(&find, i)
                         ? pin(orders, &find.found[i].key, &chunks->numbers[i], ms)
                         : TIERCE_E_MISS;
        pinned += status == 0;
        missing += status == TIERCE_E_MISS;
        refused += status != 0 && status != TIERCE_E_MISS;
    }
    tierce__chunk_find_fini(&find);
    count(chunks, pinned, out);
    if (rc != 0)
        tierce__chunk_say(out, "%s", tierce_strerror(rc));
    if (missing > 0)
        tierce__chunk_say(out, "%" PRIu64 " are not in memory%s", missing, refused > 0 ? "; " : "");
    if (refused > 0)
        tierce__chunk_say(out, "%" PRIu64 " do not fit into memory.pins", refused);
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
        tierce__chunk_say(out, "%" PRIu64 " are not pinned by a command", out->left_out);
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Whether a chunk may be copied: KV, whose bytes never change. A named value may be replaced or
 * deleted while it is copied, and the copy would bring the old one back. */
static bool is_kv(const struct tierce_engine *engine, const struct tierce__key *key)
{
    const char *text = tierce__namespaces_text(engine->namespaces, key->ns);
    return text != NULL && !tierce__object_is_space(text);
}

static void say_values(uint64_t values, struct tierce__chunk_order_outcome *out)
{
    if (values > 0)
        tierce__chunk_say(out,
                          "%snot moved: %" PRIu64
                          " named values (of Redis or LMCache clients), or chunks of a "
                          "namespace that is not open",
                          out->message[0] != '\0' ? "; " : "", values);
}

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
    struct tierce__buf *buf = tierce__chunk_read(engine, from, chunk, NULL, &rc);
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
                          const struct tierce__chunk_find *find)
{
    for (size_t i = find->count; i-- > 0;) {
        const struct tierce__key *key = &find->found[i].key;
        if (!tierce__chunk_is_found(find, i) || !is_kv(engine, key))
            continue;
        struct tierce__buf *buf = move->to == 0 ? tierce__storage_lease(engine, key) : NULL;
        if (move->to == 0 ? buf != NULL : has(engine, move->to, key))
            tierce__storage_delete(engine, move->from, key);
        tierce__buf_release(buf);
    }
}

bool tierce__chunk_orders_normal(const struct tierce_engine *engine,
                                 struct tierce__chunk_order_outcome *out)
{
    bool is_normal = tierce__engine_mode(engine) == TIERCE_MODE_NORMAL;
    if (!is_normal)
        tierce__chunk_say(out,
                          "the engine is in mode %s; this command requires mode normal: tierce ctl "
                          "PID mode normal",
                          tierce_mode_name(tierce__engine_mode(engine)));
    return is_normal;
}

/* Whether the engine can carry it out. False: the outcome says why not. */
static bool is_possible(const struct tierce_engine *engine, const struct tierce__chunk_move *move,
                        struct tierce__chunk_order_outcome *out)
{
    size_t slower = move->from > move->to ? move->from : move->to;
    if (!tierce__chunk_orders_normal(engine, out))
        return false;
    if ((move->from == 0) == (move->to == 0) || slower >= engine->level_count) {
        tierce__chunk_say(
            out, "from %zu to %zu: one of the two must be memory, the other one a slower tier; ",
            number_of(engine, move->from), number_of(engine, move->to));
        say_tiers(engine, out);
        return false;
    }
    if (engine->levels[slower].health.shared) {
        tierce__chunk_say(
            out, "tier %zu (%s) is shared with other engines; accepted are the engine's own tiers",
            number_of(engine, slower), tier_name(engine, slower));
        return false;
    }
    return true;
}

void tierce__chunk_orders_move(struct tierce__chunk_orders *orders,
                               const struct tierce__chunk_numbers *chunks,
                               const struct tierce__chunk_move *numbers,
                               struct tierce__chunk_order_outcome *out)
{
    struct tierce_engine *engine = orders->engine;
    const struct tierce__chunk_move levels = {.from = number_of(engine, numbers->from),
                                              .to = number_of(engine, numbers->to),
                                              .keeps = numbers->keeps,
                                              .deadline_ns = numbers->deadline_ns},
                                    *move = &levels;
    struct tierce__chunk_find find;
    uint64_t moved = 0, missing = 0, values = 0;
    int failed = 0;
    out->left_out = chunks->count;
    if (!is_possible(engine, move, out))
        return;
    int rc = tierce__chunk_find_init(&find, orders, move->from, chunks);
    for (size_t i = 0; rc == 0 && i < chunks->count; i++) {
        int status = TIERCE_E_MISS;
        if (tierce__chunk_orders_stopped(orders) || tierce__now_ns() >= move->deadline_ns)
            rc = tierce__chunk_orders_stopped(orders) ? TIERCE_E_CANCELLED : TIERCE_E_DEADLINE;
        else if (tierce__chunk_is_found(&find, i) && !is_kv(engine, &find.found[i].key))
            status = NOT_KV;
        else if (tierce__chunk_is_found(&find, i))
            status = has(engine, move->to, &find.found[i].key) ? 0
                     : move->to == 0 ? copy_up(engine, move->from, &find.found[i])
                                     : copy_down(engine, move->to, &find.found[i]);
        moved += status == 0 && has(engine, move->to, &find.found[i].key);
        missing += rc == 0 && status == TIERCE_E_MISS;
        values += status == NOT_KV;
        failed = status < 0 && status != TIERCE_E_MISS ? status : failed;
    }
    if (!move->keeps && find.found != NULL)
        remove_source(engine, move, &find);
    tierce__chunk_find_fini(&find);
    count(chunks, moved, out);
    if (missing > 0)
        tierce__chunk_say(out, "%" PRIu64 " are not in tier %zu (%s)%s", missing,
                          number_of(engine, move->from), tier_name(engine, move->from),
                          rc != 0 || failed != 0 ? "; " : "");
    if (rc != 0 || failed != 0)
        tierce__chunk_say(out, "tier %zu (%s) did not take all of them: %s",
                          number_of(engine, move->to), tier_name(engine, move->to),
                          tierce_strerror(rc != 0 ? rc : failed));
    else if (moved + missing + values < chunks->count)
        tierce__chunk_say(out, "%stier %zu (%s) admitted only a part", missing > 0 ? "; " : "",
                          number_of(engine, move->to), tier_name(engine, move->to));
    say_values(values, out);
}

/* ---- moves to another engine ----------------------------------------------------------------- */

/* A bit for each tier that is not shared with other engines. */
static uint32_t own_tiers(const struct tierce_engine *engine)
{
    uint32_t levels = 0;
    for (size_t level = 0; level < engine->level_count; level++)
        levels |= engine->levels[level].health.shared ? 0 : 1u << level;
    return levels;
}

static bool is_own(struct tierce_engine *engine, const struct tierce__key *key)
{
    struct tierce__unasked unasked;
    return tierce__storage_search(engine, own_tiers(engine), key, 1, NULL, &unasked) == 1;
}

static void name_chunk(const struct tierce_engine *engine, struct tierce__chunk_named *named,
                       size_t index, const struct tierce__storage_chunk *chunk)
{
    *named = (struct tierce__chunk_named){
        .index = (uint32_t)index, .has_parent = chunk->has_parent, .bytes = chunk->object_bytes};
    int bytes = tierce__key_text_format(
        named->name, tierce__namespaces_digest(engine->namespaces, chunk->key.ns),
        &chunk->key.shard, chunk->key.hash);
    TIERCE_ASSERT(bytes > 0);
}

void tierce__chunk_orders_name(struct tierce__chunk_orders *orders,
                               const struct tierce__chunk_numbers *chunks,
                               struct tierce__chunk_named *named, size_t *named_count,
                               struct tierce__chunk_order_outcome *out)
{
    struct tierce_engine *engine = orders->engine;
    uint64_t values = 0;
    int rc = 0;
    *named_count = 0;
    out->left_out = chunks->count;
    if (!tierce__chunk_orders_normal(engine, out))
        return;
    for (size_t i = 0; i < chunks->count; i++)
        named[i] = (struct tierce__chunk_named){0};
    for (size_t level = 0; rc == 0 && level < engine->level_count; level++) {
        struct tierce__chunk_find find;
        if ((own_tiers(engine) >> level & 1) == 0)
            continue;
        rc = tierce__chunk_find_init(&find, orders, level, chunks);
        for (size_t i = 0; rc == 0 && i < chunks->count; i++) {
            if (named[i].bytes > 0 || named[i].index == NOT_KV || !tierce__chunk_is_found(&find, i))
                continue;
            if (is_kv(engine, &find.found[i].key))
                name_chunk(engine, &named[i], i, &find.found[i]);
            else
                named[i].index = NOT_KV;
        }
        tierce__chunk_find_fini(&find);
    }
    for (size_t i = 0; rc == 0 && i < chunks->count; i++) {
        values += named[i].bytes == 0 && named[i].index == NOT_KV;
        if (named[i].bytes > 0)
            named[(*named_count)++] = named[i];
    }
    count(chunks, *named_count, out);
    if (rc != 0)
        tierce__chunk_say(out, "%s", tierce_strerror(rc));
    else if (out->left_out > values)
        tierce__chunk_say(out, "%" PRIu64 " chunks are not in this engine's memory or disk",
                          out->left_out - values);
    say_values(values, out);
}

/* The level of peers://, or level_count. */
static size_t peers_level(const struct tierce_engine *engine)
{
    size_t level = 0;
    while (level < engine->level_count &&
           (engine->levels[level].connector == NULL ||
            strcmp(engine->levels[level].connector->ops->scheme, "peers") != 0))
        level++;
    return level;
}

/* The key of a named chunk. Errors: TIERCE_E_FORMAT, NO_NAMESPACE (this engine has none of KV with
 * that digest; a name from outside must not fill the table), WRONG_LENGTH (no chunk of that
 * namespace is that long; a length from outside must not evict chunks). */
static int read_name(struct tierce_engine *engine, const struct tierce__chunk_named *named,
                     struct tierce__key *key)
{
    uint8_t digest[TIERCE_HASH_BYTES];
    *key = (struct tierce__key){0};
    int rc =
        tierce__key_text_parse(digest, &key->shard, key->hash, named->name, strlen(named->name));
    if (rc < 0)
        return TIERCE_E_FORMAT;
    int64_t ns = tierce__namespaces_find(engine->namespaces, digest);
    key->ns = ns >= 0 ? (uint32_t)ns : 0;
    if (ns < 0 || !is_kv(engine, key))
        return NO_NAMESPACE;
    return tierce__chunk_fits(engine, key, named->bytes) ? 0 : WRONG_LENGTH;
}

/* Reads a chunk from a peer and publishes it. */
static int fetch_chunk(struct tierce_engine *engine, size_t level, const struct tierce__key *key,
                       const struct tierce__chunk_named *named)
{
    struct tierce__chunk_info info;
    struct tierce__storage_chunk chunk = {
        .key = *key, .parent = *key, .object_bytes = named->bytes};
    int rc = 0;
    uint64_t era = tierce__era_of_read(engine);
    struct tierce__buf *buf = tierce__chunk_read(engine, level, &chunk, &info, &rc);
    if (buf == NULL)
        return rc == TIERCE_E_ARGUMENT ? WRONG_LENGTH : rc;
    chunk.token_start = info.token_start;
    chunk.block_count = info.geometry.block_count;
    chunk.has_parent = named->has_parent && info.token_start > 0;
    memcpy(chunk.parent.hash, info.parent, TIERCE_HASH_BYTES);
    memcpy(chunk.first_block, tierce__chunk_block_hashes(buf->data, info.geometry.layer_count),
           TIERCE_HASH_BYTES);
    rc = TIERCE_E_CANCELLED;
    if (tierce__era_enter(engine, era)) {
        rc = tierce__storage_publish(engine, &chunk, buf);
        tierce__era_leave(engine, era);
    }
    tierce__buf_release(buf);
    return rc < 0 ? rc : 0;
}

/* The chunks of a fetch that have not landed, by the reason. */
struct fetch_counts {
    uint64_t missing, unknown, wrong_length, failed;
    int status; /* of the last failure */
};

static void say_fetch(const struct fetch_counts *counts, struct tierce__chunk_order_outcome *out)
{
    const char *comma = "";
    if (counts->unknown > 0) {
        tierce__chunk_say(out,
                          "%" PRIu64 " are of a model or layout that this engine does not have",
                          counts->unknown);
        comma = "; ";
    }
    if (counts->wrong_length > 0) {
        tierce__chunk_say(out, "%s%" PRIu64 " do not have the length that their source names",
                          comma, counts->wrong_length);
        comma = "; ";
    }
    if (counts->missing > 0) {
        tierce__chunk_say(
            out, "%s%" PRIu64 " were not served by a peer: evicted meanwhile, or it was busy",
            comma, counts->missing);
        comma = "; ";
    }
    if (counts->failed > 0)
        tierce__chunk_say(out, "%s%" PRIu64 " failed: %s", comma, counts->failed,
                          tierce_strerror(counts->status));
    else if (out->left_out > 0 && out->message[0] == '\0')
        tierce__chunk_say(out, "%" PRIu64 " were evicted at once: memory is too small",
                          out->left_out);
}

static void note(struct fetch_counts *counts, int status)
{
    counts->unknown += status == NO_NAMESPACE;
    counts->missing += status == TIERCE_E_MISS;
    counts->wrong_length += status == WRONG_LENGTH;
    if (status >= 0 || status == TIERCE_E_MISS)
        return;
    counts->failed++;
    counts->status = status;
}

void tierce__chunk_orders_fetch(struct tierce__chunk_orders *orders,
                                const struct tierce__chunk_fetch *fetch, int32_t *landed,
                                size_t *landed_count, struct tierce__chunk_order_outcome *out)
{
    struct tierce_engine *engine = orders->engine;
    struct fetch_counts counts = {0};
    size_t level = peers_level(engine);
    struct tierce__key key;
    *landed_count = 0;
    out->left_out = fetch->count;
    if (!tierce__chunk_orders_normal(engine, out))
        return;
    if (level == engine->level_count) {
        tierce__chunk_say(out, "this engine has no peers:// in remote.urls; add it there");
        return;
    }
    for (size_t i = 0; i < fetch->count; i++) {
        int status = read_name(engine, &fetch->named[i], &key);
        if (tierce__chunk_orders_stopped(orders) || tierce__now_ns() >= fetch->deadline_ns)
            status = tierce__chunk_orders_stopped(orders) ? TIERCE_E_CANCELLED : TIERCE_E_DEADLINE;
        else if (status == 0 && !is_own(engine, &key))
            status = fetch_chunk(engine, level, &key, &fetch->named[i]);
        note(&counts, status);
    }
    for (size_t i = 0; i < fetch->count; i++) {
        if (read_name(engine, &fetch->named[i], &key) == 0 && is_own(engine, &key))
            landed[(*landed_count)++] = (int32_t)fetch->named[i].index;
    }
    count(&(struct tierce__chunk_numbers){.count = fetch->count}, *landed_count, out);
    say_fetch(&counts, out);
}

void tierce__chunk_orders_drop(struct tierce__chunk_orders *orders,
                               const struct tierce__chunk_numbers *chunks,
                               struct tierce__chunk_order_outcome *out)
{
    struct tierce_engine *engine = orders->engine;
    bool *dropped = tierce__calloc(chunks->count + 1, sizeof(*dropped));
    uint64_t total = 0;
    int rc = dropped != NULL ? 0 : -ENOMEM;
    out->left_out = chunks->count;
    if (rc == 0 && !tierce__chunk_orders_normal(engine, out)) {
        tierce__free(dropped);
        return;
    }
    for (size_t level = 0; rc == 0 && level < engine->level_count; level++) {
        struct tierce__chunk_find find;
        if ((own_tiers(engine) >> level & 1) == 0)
            continue;
        rc = tierce__chunk_find_init(&find, orders, level, chunks);
        for (size_t i = chunks->count; rc == 0 && i-- > 0;) {
            if (tierce__chunk_is_found(&find, i) && is_kv(engine, &find.found[i].key)) {
                tierce__storage_delete(engine, level, &find.found[i].key);
                dropped[i] = true;
            }
        }
        tierce__chunk_find_fini(&find);
    }
    for (size_t i = 0; dropped != NULL && i < chunks->count; i++)
        total += dropped[i];
    tierce__free(dropped);
    count(chunks, total, out);
    out->is_done = rc == 0; /* those that are left out had been evicted */
    if (rc != 0)
        tierce__chunk_say(out, "%s", tierce_strerror(rc));
}

/* ---- the whole engine ------------------------------------------------------------------------ */

void tierce__chunk_orders_clear(struct tierce__chunk_orders *orders, uint32_t tiers,
                                struct tierce__chunk_order_outcome *out)
{
    struct tierce_engine *engine = orders->engine;
    uint32_t mask = 0;
    for (size_t level = 0; level < engine->level_count; level++) {
        if ((tiers >> number_of(engine, level) & 1) != 0)
            mask |= 1u << engine->levels[level].origin;
    }
    if (tiers >> engine->level_count != 0) {
        tierce__chunk_say(out, "there is no tier %d; ", 31 - __builtin_clz(tiers));
        say_tiers(engine, out);
        return;
    }
    int64_t chunks = tierce__engine_clear(engine, mask, NULL);
    out->is_done = chunks >= 0;
    out->chunks = chunks > 0 ? (uint64_t)chunks : 0;
    if (chunks < 0)
        tierce__chunk_say(out, "%s", tierce_strerror((int)chunks));
}

void tierce__chunk_orders_health(struct tierce__chunk_orders *orders,
                                 struct tierce__chunk_order_outcome *out)
{
    struct tierce_engine *engine = orders->engine;
    out->is_done = true;
    tierce__chunk_say(out, "mode %s", tierce_mode_name(tierce__engine_mode(engine)));
    for (size_t level = 0; level < engine->level_count; level++) {
        struct tierce__level *at = &engine->levels[level];
        struct tierce__tier_stats stats;
        at->tier->ops->stats(at->tier, &stats);
        tierce__chunk_say(out, "; tier %zu (%s): %s", number_of(engine, level),
                          tier_name(engine, level),
                          tierce__health_serves(&at->health) ? "in service" : "out of service");
        if (!at->health.shared)
            tierce__chunk_say(out, ", %" PRIu64 " chunks, %" PRIu64 " bytes",
                              (uint64_t)stats.chunks, (uint64_t)stats.used_bytes);
    }
    if (engine->disk_error[0] != '\0')
        tierce__chunk_say(out, "; the disk could not be opened: %.200s", engine->disk_error);
    tierce__lock_take(&engine->lock);
    uint64_t pinned = engine->pinned_bytes;
    tierce__lock_drop(&engine->lock);
    tierce__chunk_say(out, "; %" PRIu64 " bytes pinned", pinned);
}
