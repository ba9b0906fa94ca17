/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/peer/peer_keeper.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "core/chunk/header.h"
#include "core/key/key_text.h"
#include "core/key/namespaces.h"
#include "engine/engine.h"
#include "engine/objects/smalls.h"
#include "engine/observe/operate.h"
#include "engine/own_tiers.h"

enum {
    READS = 16,
    BUFFER_SHARE = 16,
    SHORT_MS = 1000, /* for so long after a buffer was missing, slow readers are not waited for */
    /* Of the disk's speed, for other engines: peers.disk_rate 0. The engine's own loads keep 0.82
     * of their speed, with 12 % 0.70 and with 25 % 0.49 (bench peers, two cores, 2026-11). */
    PERCENT = 8,
    LOOKUP_MS = 1000,
    BURST_PER_S = 4, /* at most a quarter of a second's bytes at once, and one chunk */
};
#define BUFFER_MIN (64ull << 20)
#define LEAST      (16ull << 20)

struct tierce__peer_keeper {
    struct tierce__keeper keeper;
    struct tierce_engine *engine;
    struct tierce__pool *pool; /* for chunks that are read from disk */
    uint32_t reads_max;
    uint64_t bytes_per_s;
    uint32_t percent;
    uint64_t least;

    struct tierce__lock lock; /* PEER_KEEPER: all below */
    uint32_t reads;           /* from disk, in progress */
    double allowance;         /* bytes that may be read now; below 0 after a large chunk */
    uint64_t allowed_ns;      /* when it was computed */
    uint64_t short_ns;        /* when a buffer was missing last; 0: never */
    bool is_ending;
    struct tierce__peer_keeper_stats stats; /* without reads */
};

/* A read of a chunk from disk. */
struct disk_read {
    struct tierce__store_req req;
    struct tierce__peer_keeper *keeper;
    struct tierce__keeper_call *call;
    struct tierce__key key;
    size_t level;
    uint64_t bytes; /* of the object, in the form that is read */
    bool has_other; /* as in struct place */
    bool is_copy;   /* it needs neither a device nor a decoder, so the engine's loads do not wait
                       for it: it has no rate */
};

/* Where a chunk is, apart from memory. */
struct place {
    size_t level;
    struct tierce__storage_form form;
    bool has_other; /* memory has it, in another form than the call names */
};

static struct tierce__peer_keeper *keeper_of(struct tierce__keeper *keeper)
{
    return TIERCE__CONTAINER_OF(keeper, struct tierce__peer_keeper, keeper);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void count_answer(struct tierce__peer_keeper *k, int status, bool from_disk,
                         uint64_t coded_bytes)
{
    tierce__lock_assert_held(&k->lock);
    k->stats.leases_now += status == 0;
    k->stats.coded_hits += coded_bytes > 0;
    k->stats.coded_bytes += coded_bytes;
    if (status == 0 && from_disk)
        k->stats.disk_hits++;
    else if (status == 0)
        k->stats.memory_hits++;
    else if (status == TIERCE_E_MISS)
        k->stats.misses++;
    else if (status == TIERCE_E_LIMIT)
        k->stats.busy++;
    else if (status == TIERCE_E_FORMAT)
        k->stats.lengths++;
    else
        k->stats.errors++;
}

/* A failure of this host's disk is a miss for the reader: a reader pauses a host that fails, and
 * this one still serves its memory. */
static int for_reader(int status)
{
    bool is_told = status == 0 || status == TIERCE_E_LIMIT || status == TIERCE_E_ARGUMENT ||
                   status == TIERCE_E_CLOSED;
    return is_told ? status : TIERCE_E_MISS;
}

/* A chunk in memory, whose reference becomes the lease's, or the reason why there is none. */
static void answer(struct tierce__peer_keeper *k, struct tierce__keeper_call *call, int status,
                   struct tierce__buf *buf)
{
    TIERCE_DASSERT((status == 0) == (buf != NULL));
    tierce__lock_take(&k->lock);
    count_answer(k, status, false, 0);
    tierce__lock_drop(&k->lock);
    call->status = for_reader(status);
    if (buf != NULL)
        call->lease =
            (struct tierce__keeper_lease){.data = buf->data, .bytes = buf->bytes, .owner = buf};
    call->done(call);
}

/* The range lies outside of the object, or the object has another length: the reader expects
 * another one. `counted`: the status that is counted. */
static void answer_outside(struct tierce__peer_keeper *k, struct tierce__keeper_call *call,
                           int counted)
{
    tierce__lock_take(&k->lock);
    count_answer(k, counted, false, 0);
    tierce__lock_drop(&k->lock);
    call->status = TIERCE_E_FORMAT;
    call->done(call);
}

/* No tier has delivered the form that the call names. If memory has another one, the reader must
 * begin again with that: after a miss it would forget this host. */
static void answer_without(struct tierce__peer_keeper *k, struct tierce__keeper_call *call,
                           int status, bool has_other)
{
    if (has_other && for_reader(status) == TIERCE_E_MISS)
        answer_outside(k, call, status == TIERCE_E_MISS ? TIERCE_E_FORMAT : status);
    else
        answer(k, call, status, NULL);
}

/* ---- reads from disk ------------------------------------------------------------------------- */

/* Bytes a second that may be read from a tier now; 0: no bound. */
static double rate_of(struct tierce__peer_keeper *k, size_t level)
{
    struct tierce__speed speed;
    if (k->bytes_per_s > 0 || k->percent == 0)
        return (double)k->bytes_per_s;
    tierce__health_speed(&k->engine->levels[level].health, &speed);
    double share = speed.bytes_per_s * k->percent / 100;
    return share > (double)k->least ? share : (double)k->least;
}

/* Whether a read may begin at this rate. One larger than the burst waits for no more than an
 * allowance above 0, and is paid for afterwards; so are the later ranges of a chunk whose first one
 * was admitted, because without them the first one was read in vain. Nobody checks that the first
 * one was, so the debt has a bound: that of as many chunks as may be read at a time. */
static bool may_begin(struct tierce__peer_keeper *k, double rate, uint64_t object_bytes,
                      bool is_first)
{
    tierce__lock_assert_held(&k->lock);
    if (rate <= 0)
        return true;
    uint64_t now_ns = tierce__now_ns();
    double burst = rate / BURST_PER_S;
    k->allowance += rate * (double)(now_ns - k->allowed_ns) / 1e9;
    k->allowed_ns = now_ns;
    if (k->allowance > burst)
        k->allowance = burst;
    return k->allowance > (is_first ? 0 : -(double)k->reads_max * (double)object_bytes);
}

/* Counts a read of a range of an object. Errors: TIERCE_E_LIMIT (busy), TIERCE_E_CLOSED. */
static int count_read(struct tierce__peer_keeper *k, double rate, const struct disk_read *read)
{
    int rc = 0;
    tierce__lock_take(&k->lock);
    if (k->is_ending)
        rc = TIERCE_E_CLOSED;
    else if (k->reads == k->reads_max || !may_begin(k, rate, read->bytes, read->call->offset == 0))
        rc = TIERCE_E_LIMIT;
    k->reads += rc == 0;
    k->allowance -= rc == 0 && rate > 0 ? (double)read->req.length : 0;
    tierce__lock_drop(&k->lock);
    return rc;
}

/* unread: bytes for which it was counted and which were not read; no_room: for lack of memory. */
static void uncount_read(struct tierce__peer_keeper *k, double unread, bool no_room)
{
    tierce__lock_take(&k->lock);
    TIERCE_DASSERT(k->reads > 0);
    k->reads--;
    k->allowance += unread;
    if (no_room)
        k->short_ns = tierce__now_ns();
    tierce__lock_drop(&k->lock);
}

/* Counts the read, and takes its buffer. A tier reads a range of a raw object to its place in the
 * chunk, and one of a coded object to the beginning. Errors: TIERCE_E_LIMIT (busy),
 * TIERCE_E_CLOSED. */
static int admit(struct disk_read *read)
{
    struct tierce__peer_keeper *k = read->keeper;
    uint64_t bytes = read->req.carries ? read->req.length : read->bytes;
    double rate = read->is_copy ? 0 : rate_of(k, read->level);
    int rc = count_read(k, rate, read);
    if (rc != 0)
        return rc;
    if (tierce__pool_alloc(k->pool, &read->req.buf, bytes) == 0)
        return 0;
    read->req.buf = NULL;
    uncount_read(k, rate > 0 ? (double)read->req.length : 0, true);
    return TIERCE_E_LIMIT;
}

/* Frees the read. */
static void end_read(struct disk_read *read, int status)
{
    struct tierce__peer_keeper *k = read->keeper;
    struct tierce__keeper_call *call = read->call;
    struct tierce__buf *buf = read->req.buf;
    bool carries = read->req.carries, has_other = read->has_other;
    const struct tierce__keeper_lease lease = {.data = buf->data,
                                               .from = carries ? read->req.offset : 0,
                                               .bytes = read->bytes,
                                               .owner = buf};
    uncount_read(k, 0, false);
    tierce__free(read);
    if (status != 0) {
        tierce__buf_release(buf);
        answer_without(k, call, status, has_other);
        return;
    }
    tierce__lock_take(&k->lock);
    count_answer(k, 0, true, carries ? call->length : 0);
    tierce__lock_drop(&k->lock);
    call->status = 0;
    call->lease = lease;
    call->done(call);
}

/* Whether the range is the beginning of an encrypted object. Later ranges are not looked at: they
 * have to name the length of the object, which its beginning would have shown. */
static bool is_sealed(const struct disk_read *read)
{
    const struct tierce__store_req *req = &read->req;
    return req->carries && req->offset == 0 && tierce__chunk_is_sealed(req->buf->data);
}

static void has_read(struct tierce__store_req *req)
{
    struct disk_read *read = req->arg;
    req->repeats |= req->status == TIERCE_E_DEADLINE; /* it was the reader's */
    tierce__storage_note(read->keeper->engine, read->level, req);
    end_read(read, req->status == 0 && is_sealed(read) ? TIERCE_E_MISS : req->status);
}

/* The pages of the object that have the range of the call. False: it lies outside of the object, or
 * is one of another object. */
static bool pages_of(struct tierce__store_req *req, const struct tierce__keeper_call *call,
                     uint64_t bytes)
{
    if (call->offset > bytes || call->length > bytes - call->offset ||
        (call->total != 0 && call->total != bytes))
        return false;
    uint64_t end = call->length > 0 ? call->offset + call->length : bytes;
    req->offset = call->offset / TIERCE__CHUNK_ALIGN * TIERCE__CHUNK_ALIGN;
    end = tierce__round_up(end, TIERCE__CHUNK_ALIGN);
    req->length = (end < bytes ? end : bytes) - req->offset;
    return req->length > 0;
}

static bool is_space(const struct tierce_plugin_name *space, const char *text)
{
    return space->bytes == strlen(text) && memcmp(space->text, text, space->bytes) == 0;
}

/* Whether a chunk is sent as it is stored. */
static bool is_carried(const struct tierce__peer_keeper *k, const struct tierce__keeper_call *call,
                       const struct place *place)
{
    return place->form.coded_bytes > 0 && k->engine->keys == NULL &&
           k->engine->levels[place->level].coded != NULL &&
           is_space(&call->space, TIERCE__PEER_SPACE_STORED);
}

/* The length of the object that is sent from there. */
static uint64_t sent_bytes(const struct tierce__peer_keeper *k,
                           const struct tierce__keeper_call *call, const struct place *place)
{
    return is_carried(k, call, place) ? place->form.coded_bytes : place->form.bytes;
}

/* Whether a chunk is only copied out of coded memory. */
static bool is_copied(const struct tierce__peer_keeper *k, const struct tierce__keeper_call *call,
                      const struct place *place)
{
    return (tierce__levels_coded_memory(k->engine) & 1u << place->level) != 0 &&
           (place->form.coded_bytes == 0 || is_carried(k, call, place));
}

static void read_disk(struct tierce__peer_keeper *k, struct tierce__keeper_call *call,
                      const struct tierce__key *key, const struct place *place)
{
    bool carries = is_carried(k, call, place);
    uint64_t bytes = sent_bytes(k, call, place);
    struct tierce__store_req req = {.op = TIERCE__STORE_GET,
                                    .deadline_ns = call->deadline_ns,
                                    .key_count = 1,
                                    .carries = carries,
                                    .coded_bytes = carries ? bytes : 0,
                                    .stored = carries ? place->form.stored : 0};
    bool is_unnamed = carries && call->total == 0 && call->offset >= TIERCE__CHUNK_ALIGN;
    if (is_unnamed || !pages_of(&req, call, bytes)) {
        answer_outside(k, call, TIERCE_E_FORMAT);
        return;
    }
    struct disk_read *read = tierce__alloc(sizeof(*read));
    if (read == NULL) {
        answer_without(k, call, -ENOMEM, place->has_other);
        return;
    }
    *read = (struct disk_read){.req = req,
                               .keeper = k,
                               .call = call,
                               .key = *key,
                               .level = place->level,
                               .bytes = bytes,
                               .has_other = place->has_other,
                               .is_copy = is_copied(k, call, place)};
    read->req.keys = &read->key;
    read->req.done = has_read;
    read->req.arg = read;
    int rc = admit(read);
    if (rc != 0) {
        tierce__free(read);
        answer(k, call, rc, NULL);
    } else if (!tierce__storage_submit(k->engine, place->level, &read->req)) {
        end_read(read, TIERCE_E_DOWN);
    }
}

/* ---- finding --------------------------------------------------------------------------------- */

static bool is_our_space(const struct tierce_plugin_name *space)
{
    return is_space(space, TIERCE__PEER_SPACE) || is_space(space, TIERCE__PEER_SPACE_STORED);
}

/* Errors: TIERCE_E_ARGUMENT, TIERCE_E_MISS (the engine cannot have it). */
static int parse(struct tierce__peer_keeper *k, struct tierce__key *key,
                 const struct tierce_plugin_name *space, const struct tierce_plugin_name *name)
{
    uint8_t digest[TIERCE_HASH_BYTES];
    *key = (struct tierce__key){0};
    if (!is_our_space(space) ||
        tierce__key_text_parse(digest, &key->shard, key->hash, name->text, name->bytes) != 0)
        return TIERCE_E_ARGUMENT;
    int64_t ns = tierce__namespaces_find(k->engine->namespaces, digest);
    if (ns < 0 || tierce__engine_mode(k->engine) == TIERCE_MODE_BYPASS)
        return TIERCE_E_MISS;
    key->ns = (uint32_t)ns;
    return tierce__smalls_is_page(key) ? TIERCE_E_MISS : 0;
}

/* The fastest of the slower tiers of this host that has the chunk in the form that the call names,
 * or else the fastest that has it. `call` NULL: in any form. Errors: TIERCE_E_MISS; those of a
 * tier, if none of them has it. The deadline is not the reader's, which would count against the
 * tier; no device is awaited. */
static int find_disk(struct tierce__peer_keeper *k, const struct tierce__keeper_call *call,
                     const struct tierce__key *key, struct place *place)
{
    int rc = TIERCE_E_MISS;
    uint64_t deadline_ns = tierce__deadline_in_ms(LOOKUP_MS);
    bool is_named = false;
    for (size_t i = 1; i < k->engine->level_count && !is_named; i++) {
        struct place it = {.level = i, .has_other = place->has_other};
        if (k->engine->levels[i].health.shared)
            continue;
        int answer = tierce__storage_measure(k->engine, i, key, deadline_ns, &it.form);
        if (answer == 0)
            is_named = call == NULL || call->total == 0 || call->total == sent_bytes(k, call, &it);
        if (answer == 0 && (rc != 0 || is_named))
            *place = it;
        if (answer == 0 || (rc != 0 && answer != TIERCE_E_MISS))
            rc = answer;
    }
    return rc;
}

static bool has_space(struct tierce__keeper *keeper, const struct tierce_plugin_name *space)
{
    (void)keeper;
    return is_our_space(space);
}

/* The chunk in memory, unless the reader has begun with another form of it (*has_other): a slower
 * tier may still have that one. */
static struct tierce__buf *lease_form(struct tierce__peer_keeper *k,
                                      const struct tierce__keeper_call *call,
                                      const struct tierce__key *key, bool *has_other)
{
    struct tierce__buf *buf = tierce__storage_lease(k->engine, key);
    *has_other = buf != NULL && call->total != 0 && call->total != buf->bytes;
    if (!*has_other)
        return buf;
    tierce__buf_release(buf);
    return NULL;
}

static void find(struct tierce__keeper *keeper, struct tierce__keeper_call *call)
{
    struct tierce__peer_keeper *k = keeper_of(keeper);
    struct tierce__buf *buf = NULL;
    struct tierce__key key;
    struct place place = {0};
    int rc = parse(k, &key, &call->space, &call->name);
    if (rc == 0)
        buf = lease_form(k, call, &key, &place.has_other);
    if (rc == 0 && buf == NULL)
        rc = find_disk(k, call, &key, &place);
    if (rc == 0 && buf == NULL)
        read_disk(k, call, &key, &place);
    else if (rc != 0)
        answer_without(k, call, rc, place.has_other);
    else
        answer(k, call, 0, buf);
}

static void release(struct tierce__keeper *keeper, struct tierce__keeper_lease *lease)
{
    struct tierce__peer_keeper *k = keeper_of(keeper);
    tierce__buf_release(lease->owner);
    *lease = (struct tierce__keeper_lease){0};
    tierce__lock_take(&k->lock);
    TIERCE_DASSERT(k->stats.leases_now > 0);
    k->stats.leases_now--;
    tierce__lock_drop(&k->lock);
}

static int measure(struct tierce__keeper *keeper, const struct tierce_plugin_name *space,
                   const struct tierce_plugin_name *name, uint64_t *bytes)
{
    struct tierce__peer_keeper *k = keeper_of(keeper);
    struct tierce__buf *buf = NULL;
    struct tierce__key key;
    struct place place = {0};
    int rc = parse(k, &key, space, name);
    if (rc == 0)
        buf = tierce__storage_lease(k->engine, &key);
    if (rc == 0 && buf == NULL)
        rc = find_disk(k, NULL, &key, &place);
    if (rc == 0)
        *bytes = buf != NULL ? buf->bytes : place.form.bytes;
    tierce__buf_release(buf);
    return rc == 0 || rc == TIERCE_E_ARGUMENT ? rc : TIERCE_E_MISS;
}

static bool is_short(struct tierce__keeper *keeper, const struct tierce_plugin_name *space)
{
    struct tierce__peer_keeper *k = keeper_of(keeper);
    (void)space;
    tierce__lock_take(&k->lock);
    bool was_short = k->short_ns != 0 && tierce__now_ns() - k->short_ns < SHORT_MS * TIERCE__MS_NS;
    tierce__lock_drop(&k->lock);
    return was_short;
}

/* ---- a keeper that keeps nothing ------------------------------------------------------------- */

static int make(struct tierce__keeper *keeper, struct tierce__keeper_room *room,
                const struct tierce_plugin_name *space, const struct tierce_plugin_name *name,
                uint64_t bytes)
{
    (void)keeper, (void)room, (void)name, (void)bytes;
    return is_our_space(space) ? TIERCE_E_REFUSED : TIERCE_E_ARGUMENT;
}

/* make has made no room. */
static void keep(struct tierce__keeper *keeper, struct tierce__keeper_room *room)
{
    (void)keeper, (void)room;
    TIERCE_ASSERT(false);
}

static void drop(struct tierce__keeper *keeper, struct tierce__keeper_call *call)
{
    (void)keeper;
    call->status = is_our_space(&call->space) ? TIERCE_E_REFUSED : TIERCE_E_ARGUMENT;
    call->done(call);
}

static int list(struct tierce__keeper *keeper, const struct tierce_plugin_name *space,
                const struct tierce_plugin_name *prefix, uint64_t *cursor,
                tierce_plugin_each_fn *each, void *arg)
{
    (void)keeper, (void)space, (void)prefix, (void)cursor, (void)each, (void)arg;
    return TIERCE_E_UNSUPPORTED;
}

/* Reads in progress are answered by the tier at their deadlines. */
static void end(struct tierce__keeper *keeper, uint64_t deadline_ns)
{
    struct tierce__peer_keeper *k = keeper_of(keeper);
    (void)deadline_ns;
    tierce__lock_take(&k->lock);
    k->is_ending = true;
    tierce__lock_drop(&k->lock);
}

static const struct tierce__keeper_ops ops = {
    .has = has_space,
    .find = find,
    .release = release,
    .measure = measure,
    .make = make,
    .keep = keep,
    .abandon = keep,
    .drop = drop,
    .list = list,
    .is_short = is_short,
    .end = end,
};

/* ---- create and destroy ---------------------------------------------------------------------- */

struct tierce__peer_keeper_opts tierce__peer_keeper_bounds(const struct tierce_engine *engine)
{
    return (struct tierce__peer_keeper_opts){.size = sizeof(struct tierce__peer_keeper_opts),
                                             .disk_reads = engine->settings.peer_disk_reads,
                                             .disk_bytes_per_s =
                                                 engine->settings.peer_disk_bytes_per_s,
                                             .disk_percent = PERCENT};
}

int tierce__peer_keeper_create(struct tierce__peer_keeper **out, struct tierce_engine *engine,
                               const struct tierce__peer_keeper_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts) && engine->level_count > 0);
    struct tierce__pool_opts pool = {
        .size = sizeof(pool), .cap_bytes = opts->buffer_bytes, .no_touch = true};
    if (pool.cap_bytes == 0)
        pool.cap_bytes = engine->settings.memory_bytes / BUFFER_SHARE;
    if (opts->buffer_bytes == 0 && pool.cap_bytes < BUFFER_MIN)
        pool.cap_bytes = BUFFER_MIN;
    struct tierce__peer_keeper *k = tierce__calloc(1, sizeof(*k));
    if (k == NULL)
        return -ENOMEM;
    int rc = tierce__pool_create(&k->pool, &pool);
    if (rc != 0) {
        tierce__free(k);
        return rc;
    }
    k->keeper.ops = &ops;
    k->engine = engine;
    k->reads_max = opts->disk_reads > 0 ? opts->disk_reads : READS;
    k->bytes_per_s = opts->disk_bytes_per_s;
    k->percent = opts->disk_percent;
    k->least = opts->disk_least > 0 ? opts->disk_least : LEAST;
    k->allowance = (double)(k->bytes_per_s > 0 ? k->bytes_per_s : k->least) / BURST_PER_S;
    k->allowed_ns = tierce__now_ns();
    tierce__lock_init(&k->lock, TIERCE__LOCK_PEER_KEEPER);
    atomic_fetch_add_explicit(&engine->keepers, 1, memory_order_relaxed);
    *out = k;
    return 0;
}

void tierce__peer_keeper_destroy(struct tierce__peer_keeper *keeper)
{
    if (keeper == NULL)
        return;
    TIERCE_ASSERT(keeper->reads == 0 && keeper->stats.leases_now == 0);
    atomic_fetch_sub_explicit(&keeper->engine->keepers, 1, memory_order_relaxed);
    tierce__pool_destroy(keeper->pool);
    tierce__lock_fini(&keeper->lock);
    tierce__free(keeper);
}

struct tierce__keeper *tierce__peer_keeper_get(struct tierce__peer_keeper *keeper)
{
    return &keeper->keeper;
}

void tierce__peer_keeper_stats(struct tierce__peer_keeper *keeper,
                               struct tierce__peer_keeper_stats *out)
{
    tierce__lock_take(&keeper->lock);
    *out = keeper->stats;
    out->reads_now = keeper->reads;
    out->reads_max = keeper->reads_max;
    tierce__lock_drop(&keeper->lock);
}
