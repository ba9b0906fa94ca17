/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/chunk_orders_private.h"

#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "core/codec/codec.h"
#include "engine/store/chunk_copy.h"
#include "store/coded/coded_tier.h"

/*
 * Chunks on disk are compressed or uncompressed, one after the other: each is read, verified,
 * encoded if it is to be compressed, and written beside the present object, which is removed when
 * the new one is durable (store_req.h).
 */

#define CODEC       "lossless"
#define RAW_BYTES_S (256u << 20) /* at most, so that loads have the rest of the device */
#define PAUSE_MS    20u
#define BUSY_MS     3000u /* for a chunk that is read, or not durable yet */
#define IS_IN_FORM  1     /* beside error codes */
#define STAYS       2
#define NO_ELEMENT  3 /* it stays raw, and was not read */
#define PER_S_TO_NS 1000000000.0

struct recode {
    struct tierce__chunk_orders *orders;
    const struct tierce__codec *codec; /* NULL: to raw */
    size_t level;
    uint64_t deadline_ns;
    uint64_t next_ns; /* when the next chunk may be read */
    uint64_t done, in_form, gone, busy, full, unread, failed;
    uint64_t raw[TIERCE__CODED_RAWS];
    uint64_t bytes_before, bytes_after; /* of those that were recoded */
    int status;                         /* of the last failure */
};

/* ---- time ------------------------------------------------------------------------------------ */

/* Returns 0 at `until_ns`, or why to end. */
static int wait_until(const struct recode *r, uint64_t until_ns)
{
    for (;;) {
        if (r->orders->between != NULL)
            r->orders->between(r->orders->arg);
        uint64_t now_ns = tierce__now_ns();
        if (tierce__chunk_orders_stopped(r->orders))
            return TIERCE_E_CANCELLED;
        if (now_ns >= r->deadline_ns)
            return TIERCE_E_DEADLINE;
        if (now_ns >= until_ns)
            return 0;
        uint64_t left_ns = until_ns - now_ns, slice_ns = PAUSE_MS * TIERCE__MS_NS;
        const struct timespec pause = {.tv_nsec = (long)(left_ns < slice_ns ? left_ns : slice_ns)};
        (void)nanosleep(&pause, NULL); /* nobody signals the end of a pause */
    }
}

uint64_t tierce__chunk_recode_ns(uint64_t object_bytes)
{
    return (uint64_t)((double)object_bytes / RAW_BYTES_S * PER_S_TO_NS);
}

/* ---- one chunk ------------------------------------------------------------------------------- */

/* Writes the chunk in its new form, and tries again for a while if it is in use: slowly, because a
 * chunk that is read is refused only when it has been written. */
static int put(struct recode *r, const struct tierce__storage_chunk *chunk, struct tierce__buf *buf,
               uint64_t coded_bytes)
{
    uint64_t until_ns = tierce__deadline_in_ms(BUSY_MS);
    uint64_t pause_ns = tierce__chunk_recode_ns(chunk->object_bytes);
    if (pause_ns < PAUSE_MS * TIERCE__MS_NS)
        pause_ns = PAUSE_MS * TIERCE__MS_NS;
    for (;;) {
        int rc = tierce__storage_recode(r->orders->engine, r->level, chunk, buf, coded_bytes);
        if (rc != TIERCE_E_REFUSED || tierce__now_ns() >= until_ns)
            return rc;
        int ends = wait_until(r, tierce__now_ns() + pause_ns);
        if (ends != 0) /* without time left it was in use */
            return ends == TIERCE_E_DEADLINE ? TIERCE_E_REFUSED : ends;
    }
}

/* Whether a chunk that is stored in so many bytes has the form already. One that is encrypted
 * without a codec is longer than the raw chunk. */
static bool is_in_form(const struct recode *r, const struct tierce__storage_chunk *chunk,
                       uint64_t coded_bytes)
{
    if (r->codec == NULL)
        return coded_bytes == 0;
    return coded_bytes > 0 && coded_bytes < chunk->object_bytes;
}

/* Compresses a chunk. False: it stays as it is, and `why` is counted. */
static bool compress(struct recode *r, const struct tierce__storage_chunk *chunk,
                     struct tierce__buf *raw, bool is_encrypted, struct tierce__buf **coded,
                     uint64_t *coded_bytes)
{
    struct tierce__tier *tier = r->orders->engine->levels[r->level].coded;
    const struct tierce__coded_source source = {
        .raw = raw, .object_bytes = chunk->object_bytes, .ns = chunk->key.ns, .codec = r->codec};
    enum tierce__coded_raw why;
    *coded_bytes = tierce__coded_tier_encode(tier, coded, &source, &why);
    if (*coded != NULL && is_encrypted && *coded_bytes >= chunk->object_bytes) {
        why = TIERCE__CODED_RAW_LONGER; /* encrypted without the codec again */
        tierce__buf_release(*coded);
        *coded = NULL;
    }
    if (*coded == NULL)
        r->raw[why]++;
    return *coded != NULL;
}

/* 0: it has the new form. IS_IN_FORM, NO_ELEMENT, STAYS (counted), TIERCE_E_MISS, those of a
 * write. */
static int recode_chunk(struct recode *r, const struct tierce__storage_chunk *chunk)
{
    struct tierce_engine *engine = r->orders->engine;
    struct tierce__tier *tier = engine->levels[r->level].coded;
    struct tierce__buf *coded = NULL;
    uint64_t coded_bytes = 0;
    int rc = tierce__coded_tier_form(tier, &chunk->key, &coded_bytes);
    if (rc == TIERCE_E_NO_KEY) {
        r->unread++;
        return STAYS;
    }
    if (rc != 0 || is_in_form(r, chunk, coded_bytes))
        return rc != 0 ? rc : IS_IN_FORM;
    if (r->codec != NULL && !tierce__coded_tier_has_element(tier, chunk->key.ns))
        return NO_ELEMENT;
    uint64_t before = coded_bytes > 0 ? coded_bytes : chunk->object_bytes;
    struct tierce__buf *raw = tierce__chunk_read(engine, r->level, chunk, NULL, &rc);
    bool is_unread = rc == TIERCE_E_NO_KEY || rc == TIERCE_E_VERSION || rc == TIERCE_E_FULL ||
                     rc == -ENOMEM; /* the last two: no memory to decode */
    if (raw == NULL && is_unread) {
        r->unread++;
        return STAYS;
    }
    if (raw == NULL)
        return rc;
    bool is_encrypted = coded_bytes > 0;
    coded_bytes = 0;
    if (r->codec != NULL && !compress(r, chunk, raw, is_encrypted, &coded, &coded_bytes)) {
        tierce__buf_release(raw);
        return STAYS;
    }
    rc = put(r, chunk, coded != NULL ? coded : raw, coded_bytes);
    tierce__buf_release(coded);
    tierce__buf_release(raw);
    if (rc == 0) {
        r->bytes_before += before;
        r->bytes_after += coded_bytes > 0 ? coded_bytes : chunk->object_bytes;
    }
    return rc;
}

/* Recodes a chunk when the speed permits it. A tierce__chunk_walk_fn: an error ends the walk. */
static int recode_next(void *arg, const struct tierce__storage_chunk *chunk)
{
    struct recode *r = arg;
    int rc = wait_until(r, r->next_ns);
    if (rc != 0)
        return rc;
    uint64_t begun_ns = tierce__now_ns();
    rc = recode_chunk(r, chunk);
    if (rc == TIERCE_E_CANCELLED && !tierce__chunk_orders_stopped(r->orders))
        rc = TIERCE_E_MISS; /* it was deleted meanwhile */
    r->done += rc == 0;
    r->in_form += rc == IS_IN_FORM;
    r->raw[TIERCE__CODED_RAW_ELEMENT] += rc == NO_ELEMENT;
    r->gone += rc == TIERCE_E_MISS;
    r->busy += rc == TIERCE_E_REFUSED;
    r->full += rc == TIERCE_E_FULL;
    if (rc != IS_IN_FORM && rc != NO_ELEMENT && rc != TIERCE_E_MISS)
        r->next_ns = begun_ns + tierce__chunk_recode_ns(chunk->object_bytes);
    if (rc == TIERCE_E_CANCELLED)
        return rc;
    if (rc < 0 && rc != TIERCE_E_MISS && rc != TIERCE_E_REFUSED && rc != TIERCE_E_FULL) {
        r->failed++;
        r->status = rc;
    }
    return 0;
}

/* ---- the order ------------------------------------------------------------------------------- */

static void tell(struct tierce__chunk_order_outcome *out, uint64_t count, const char *what)
{
    if (count > 0)
        tierce__chunk_say(out, "; %" PRIu64 " %s", count, what);
}

static void tell_all(struct tierce__chunk_order_outcome *out, const struct recode *r, int rc)
{
    tierce__chunk_say(out, "%" PRIu64 " chunks: %" PRIu64 " bytes before, %" PRIu64 " after",
                      r->done, r->bytes_before, r->bytes_after);
    tell(out, r->in_form,
         r->codec != NULL ? "were compressed already" : "were uncompressed already");
    tell(out, r->raw[TIERCE__CODED_RAW_ELEMENT],
         "stay uncompressed: their namespace names no element type that the codec knows");
    tell(out, r->raw[TIERCE__CODED_RAW_LONGER], "stay uncompressed: they would not become shorter");
    tell(out, r->raw[TIERCE__CODED_RAW_MEMORY],
         "stay uncompressed: there was no memory to compress them (repeat the command)");
    tell(out, r->raw[TIERCE__CODED_RAW_KEY],
         "stay as they are: there is no key to encrypt them (add one for their namespace, or for "
         "all, to encryption.key_file)");
    tell(
        out, r->unread,
        "stay as they are: they could not be read: their key is missing or another one "
        "(encryption_key_missing, encryption_key_wrong in the log), a later version wrote them, or "
        "there was no memory (repeat the command)");
    tell(out, r->full,
         "stay as they are: the disk has no free space for the new bytes (free space, and repeat "
         "the command)");
    tell(out, r->busy, "stay as they are: they were in use (repeat the command)");
    tell(out, r->gone, "are not on disk");
    if (r->failed > 0)
        tierce__chunk_say(out, "; %" PRIu64 " failed: %s", r->failed, tierce_strerror(r->status));
    if (rc == TIERCE_E_DEADLINE)
        tierce__chunk_say(out, "; timed out with chunks left; repeat the command, or raise --wait");
    else if (rc != 0)
        tierce__chunk_say(out, "; ended early: %s", tierce_strerror(rc));
}

/* The named chunks that the tier holds, or all. */
static int recode_level(struct recode *r, const struct tierce__chunk_numbers *chunks)
{
    struct tierce__chunk_find find;
    if (chunks->count == 0)
        return tierce__chunk_walk(r->orders, r->level, recode_next, r);
    int rc = tierce__chunk_find_init(&find, r->orders, r->level, chunks);
    for (size_t i = 0; rc == 0 && i < chunks->count; i++) {
        if (tierce__chunk_is_found(&find, i))
            rc = recode_next(r, &find.found[i]);
        else
            r->gone++;
    }
    tierce__chunk_find_fini(&find);
    return rc;
}

void tierce__chunk_orders_recode(struct tierce__chunk_orders *orders,
                                 const struct tierce__chunk_numbers *chunks, bool codes,
                                 uint64_t deadline_ns, struct tierce__chunk_order_outcome *out)
{
    struct tierce_engine *engine = orders->engine;
    struct recode r = {.orders = orders, .deadline_ns = deadline_ns};
    out->left_out = chunks->count;
    if (!tierce__chunk_orders_normal(engine, out))
        return;
    while (r.level < engine->level_count && engine->levels[r.level].origin != TIERCE_ORIGIN_DISK)
        r.level++;
    if (r.level == engine->level_count) {
        tierce__chunk_say(out, "this engine has no disk; chunks are compressed on disk alone");
        return;
    }
    if (!codes && tierce__coded_tier_encrypts(engine->levels[r.level].coded)) {
        tierce__chunk_say(out, "the disk encrypts (disk.encryption), and encrypted chunks are not "
                               "decompressed");
        return;
    }
    r.codec = codes ? tierce__codec_find(CODEC) : NULL;
    TIERCE_ASSERT(!codes || r.codec != NULL);
    int rc = recode_level(&r, chunks);
    out->chunks = r.done;
    out->left_out = chunks->count > 0 ? chunks->count - r.done - r.in_form : 0;
    out->is_done = chunks->count > 0 ? r.done + r.in_form > 0 : rc == 0 && r.failed == 0;
    tell_all(out, &r, rc);
}
