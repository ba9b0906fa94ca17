/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder's side: reads the chunks of a prompt from a prefiller into memory, several at a
 * time, and publishes them in the order of the prompt. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "base/text/host_port.h"
#include "core/key/key_text.h"
#include "engine/handover/handover.h"
#include "engine/handover/handover_inbox.h"
#include "engine/handover/handover_lent.h"
#include "engine/handover/handover_offers.h"
#include "engine/handover/handover_other.h"
#include "engine/peer/peer_keeper.h"
#include "engine/peer/peer_tls.h"
#include "engine/view.h"
#include "engine/waterfall.h"
#include "store/await.h"
#include "store/remote/connector.h"
#include "store/remote/transfer/transfer_link.h"

#define READS      8u /* at a time */
#define HOST_MAX   255u
#define CLOSE_MS   1000u
#define HASH_SHOWN 8u    /* bytes, in the log */
#define START_MS   1000u /* for a push that has not begun when its prompt is requested */
#define TOTAL_MS   3600000u

struct tierce__source {
    struct tierce_engine *engine;
    const struct tierce__handover_from *from;
    const struct tierce__handover_other *other; /* NULL: its ranks are those of this engine */
    struct tierce__connector *connector;        /* NULL until the first request */
    uint64_t deadline_ns, wait_until_ns;
    uint64_t piece_ns; /* when a read ends after the requested chunks; NEVER without piece_ms */
    uint32_t patience_ms;
    _Atomic bool is_given_up; /* relaxed */
    bool is_met;
    uint64_t tokens; /* if it is met */
    int push_status;
    bool is_lost; /* the prefiller does not answer, or not to us */
    bool is_kept; /* the offer is not ended */
};

/* A read of the chunks of one view. */
struct pull {
    struct tierce__source *source;
    struct tierce_view *view;
    struct tierce_engine *engine;
    const struct tierce_chain *chain;
    const struct tierce__handover_from *from;
    struct tierce__handover_pulled *out;
    struct tierce__keys keys;
    uint64_t to_block;
    /* The prefiller's view, whose chunks are read: `view`, or that of `other`. */
    const struct tierce_view *theirs;
    struct tierce__shape tail; /* of theirs */
    struct tierce__other other;
};

/* A chunk of the window. */
struct read {
    size_t index;             /* among the keys */
    struct tierce__buf *buf;  /* NULL: memory had the chunk, and nothing was requested */
    struct tierce__buf *made; /* for this engine's chunk, with `other`; else NULL */
    bool is_here;             /* the prefiller's chunk was pushed, and is not requested */
    char text[TIERCE__KEY_TEXT_BYTES];
    struct tierce_plugin_name name;
    struct tierce__await await;
    struct tierce__store_req req;
};

/* Chunks [first, next), in the order of the prompt: chunk i is in reads[i % READS]. While one is
 * verified, the others arrive. */
struct window {
    size_t first, next;
    struct read reads[READS];
};

/* As the prefiller has it. */
static const struct tierce__shape *shape_of(const struct pull *p, size_t index)
{
    TIERCE_DASSERT(index < p->keys.count);
    return index < p->keys.full_count ? &p->theirs->full : &p->tail;
}

static int stop_at(struct tierce__handover_pulled *out, int status, const char *why)
{
    TIERCE_DASSERT(status < 0);
    out->status = status;
    snprintf(out->why, sizeof(out->why), "%s", why);
    return status;
}

/* Whether it has read in pieces, and the time of this one is over. */
static bool is_over(const struct tierce__source *source)
{
    return source->piece_ns != TIERCE__DEADLINE_NEVER && source->deadline_ns <= tierce__now_ns();
}

/* The answer to a request, in words, before the next one replaces it. */
static int stop_by_answer(struct tierce__source *source, struct tierce__handover_pulled *out,
                          int status)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES] = "";
    if (status == TIERCE_E_DEADLINE && out->bytes > 0 && is_over(source))
        return stop_at(out, -EAGAIN, "the read has not ended");
    source->is_lost |=
        status == TIERCE_E_DOWN || status == TIERCE_E_REFUSED || status == TIERCE_E_DEADLINE;
    if (status == TIERCE_E_MISS)
        return stop_at(out, status,
                       source->is_met ? "the prefiller does not have the chunk"
                                      : "the prefiller could not offer the prompt");
    if (status == TIERCE_E_REFUSED)
        return stop_at(out, status,
                       "the prefiller has no such offer: it expired (handover.hold_s), or the "
                       "prefiller was restarted");
    if (status == TIERCE_E_LIMIT)
        return stop_at(out, status,
                       "the prefiller is busy: the chunk is not in its memory (memory.pins, "
                       "memory.size), and it reads other ones from its disk");
    source->connector->ops->why(source->connector, why);
    return stop_at(out, status, why[0] != '\0' ? why : tierce_strerror(status));
}

/* ---- the offer ------------------------------------------------------------------------------- */

static void answered(struct tierce__store_req *req)
{
    (void)tierce__await_answer(req->arg); /* it is waited for without a limit */
}

static int open_connector(struct tierce__source *source, struct tierce__handover_pulled *out)
{
    char url[320], address[264], why[TIERCE__CONNECTOR_WHY_BYTES];
    const struct tierce__handover_from *from = source->from;
    if (source->connector != NULL)
        return 0;
    const char *mismatch = tierce__peer_tls_mismatch(source->engine->peer_tls, from->uses_tls);
    if (mismatch != NULL) {
        source->is_lost = true;
        snprintf(why, sizeof(why), "the prefiller: %s", mismatch);
        return stop_at(out, TIERCE_E_REFUSED, why);
    }
    (void)tierce__host_port_format(address, sizeof(address), from->host, from->port);
    snprintf(url, sizeof(url), "transfer%s://%s/" TIERCE__PEER_SPACE "?connections=2",
             from->uses_tls ? "+tls" : "", address);
    int rc = tierce__connector_open(
        &source->connector, url,
        &(struct tierce__connector_opts){.size = sizeof(struct tierce__connector_opts),
                                         .pool = source->engine->pool,
                                         .token = from->token,
                                         .silence_ms = TIERCE__TRANSFER_LINK_SILENCE_MS,
                                         .patience_ms = source->patience_ms,
                                         .tls = tierce__peer_tls_client(source->engine->peer_tls)},
        why);
    return rc < 0 ? stop_at(out, rc, why) : 0;
}

/* One request about the offer itself, whose name is its token. */
static int call(struct tierce__source *source, struct tierce__store_req req)
{
    const struct tierce_plugin_name name = {source->from->token, strlen(source->from->token)};
    struct tierce__await await;
    req.done = answered;
    req.arg = &await;
    req.names = &name;
    req.name_count = 1;
    tierce__await_begin(&await);
    tierce__await_expect(&await);
    source->connector->ops->submit(source->connector, &req);
    (void)tierce__await_end(&await, TIERCE__DEADLINE_NEVER);
    return req.status;
}

static int read_offer(struct tierce__source *source, struct tierce__handover_pulled *out)
{
    struct tierce__store_req req = {.op = TIERCE__STORE_GET,
                                    .deadline_ns = source->wait_until_ns,
                                    .urgency = TIERCE__CONNECTOR_FETCH,
                                    .length = TIERCE__OFFER_BYTES};
    int rc = open_connector(source, out);
    if (rc < 0)
        return rc;
    req.buf = tierce__storage_alloc(source->engine, TIERCE__OFFER_BYTES);
    if (req.buf == NULL)
        return stop_at(out, TIERCE_E_FULL, "memory has no room for the chunk");
    rc = call(source, req);
    if (rc == 0)
        source->tokens = tierce__load_le64(req.buf->data);
    tierce__buf_release(req.buf);
    return rc < 0 ? stop_by_answer(source, out, rc) : 0;
}

/* Of a node's answer. */
static int note_loss(struct tierce__source *source, int status)
{
    source->is_lost |=
        status == TIERCE_E_DOWN || status == TIERCE_E_REFUSED || status == TIERCE_E_DEADLINE;
    return status;
}

int tierce__source_meet(struct tierce__source *source, uint64_t *tokens,
                        struct tierce__handover_pulled *out)
{
    *out = (struct tierce__handover_pulled){0};
    int rc = 0;
    if (!source->is_met && source->engine->level_count == 0)
        rc = note_loss(source,
                       tierce__lent_meet(source->engine, source->from, &source->tokens, out));
    else if (!source->is_met)
        rc = read_offer(source, out);
    source->is_met |= rc == 0;
    if (rc == 0)
        *tokens = source->tokens;
    return rc;
}

/* ---- one chunk ------------------------------------------------------------------------------- */

/* Pins a chunk that memory holds. False: it does not. */
static bool hold(struct pull *p, size_t index, int *rc)
{
    struct tierce__buf *buf = tierce__storage_lease(p->engine, &p->keys.keys[index]);
    *rc = 0;
    if (buf == NULL)
        return false;
    if (!tierce__session_add(p->view, p->from->session, &p->keys.keys[index], buf, 0))
        *rc = stop_at(p->out, TIERCE_E_FULL,
                      "memory.pins has no room: raise it, or memory.size, or lower the load");
    else
        p->out->blocks = tierce__keys_blocks(&p->keys, p->view, index + 1, p->to_block);
    return true;
}

/* Whether the bytes are the chunk, with all its cells. */
static int verify(const struct pull *p, const struct read *read, struct tierce__chunk_info *info)
{
    const struct tierce__shape *shape = shape_of(p, read->index);
    int rc =
        tierce__view_check_header(p->theirs, shape, read->index, tierce_chain_hash(p->chain, 0),
                                  tierce_chain_root_hash(p->chain), read->buf->data);
    if (rc == 0)
        rc = tierce__chunk_parse(info, read->buf->data, shape->extent.object_bytes);
    if (rc == 0 && tierce__chunk_verify_cells(read->buf->data, info) != 0)
        rc = TIERCE_E_CHECKSUM;
    return rc;
}

static void log_wrong(const struct pull *p, const struct read *read, int rc)
{
    char hash[2 * HASH_SHOWN + 1];
    tierce__hex_encode(hash, p->keys.keys[read->index].hash, HASH_SHOWN);
    tierce__log_repeated(TIERCE_LOG_ERROR, "pulled_chunk_dropped", "peer=%s:%u chunk=%s err=\"%s\"",
                         p->from->host, (unsigned)p->from->port, hash, tierce_strerror(rc));
}

/* Replaces the verified chunk of a prefiller with a different tensor-parallel size by that of this
 * engine. */
static void convert(struct pull *p, struct read *read, const struct tierce__storage_chunk *record,
                    uint64_t created_s)
{
    const struct tierce__other_chunk from = {read->buf->data, record->block_count, created_s};
    tierce__other_convert(&p->other, p->view, p->chain, read->index, read->made->data, &from);
    tierce__buf_release(read->buf);
    read->buf = read->made;
    read->made = NULL;
}

/* The bytes have arrived. */
static int land(struct pull *p, struct read *read)
{
    struct tierce__storage_chunk record;
    struct tierce__chunk_info info;
    uint32_t blocks = shape_of(p, read->index)->geometry.block_count;
    const struct tierce__shape shape = tierce__shape_of(p->view, blocks);
    int rc = verify(p, read, &info);
    if (rc < 0) {
        tierce__count(p->engine,
                      rc == TIERCE_E_CHECKSUM ? TIERCE__STAT_checksum_failures
                                              : TIERCE__STAT_identity_failures,
                      1);
        log_wrong(p, read, rc);
        return stop_at(p->out, rc, "the prefiller sent a wrong chunk; it was dropped");
    }
    if (!read->is_here)
        p->out->bytes += shape_of(p, read->index)->extent.object_bytes;
    tierce__view_describe(&record, p->view, &p->keys, &shape, read->index,
                          tierce_chain_hash(p->chain, 0));
    if (read->made != NULL)
        convert(p, read, &record, info.created_s);
    rc = tierce__storage_publish(p->engine, &record, read->buf);
    if (rc < 0)
        return stop_at(p->out, rc, "memory has no room for the chunk");
    if (!hold(p, read->index, &rc) && rc == 0)
        rc = stop_at(p->out, TIERCE_E_FULL, "the chunk was evicted at once: memory is too small");
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void release(struct read *read)
{
    tierce__buf_release(read->buf);
    tierce__buf_release(read->made);
    read->buf = read->made = NULL;
}

/* Room for this engine's chunk beside that of the prefiller: were it taken afterwards, the chunks
 * that are requested ahead would leave none. */
static bool reserve_made(struct pull *p, struct read *read)
{
    struct tierce__storage_chunk record;
    const struct tierce__shape shape =
        tierce__shape_of(p->view, shape_of(p, read->index)->geometry.block_count);
    if (p->theirs == p->view)
        return true;
    tierce__view_describe(&record, p->view, &p->keys, &shape, read->index,
                          tierce_chain_hash(p->chain, 0));
    read->made = tierce__storage_reserve(p->engine, &record, NULL);
    return read->made != NULL;
}

/* Room for the chunk. False: memory has none. */
static bool reserve(struct pull *p, struct read *read, const struct tierce__buf *before)
{
    struct tierce__storage_chunk record;
    const struct tierce__shape *shape = shape_of(p, read->index);
    const struct tierce__key *key = &p->keys.keys[read->index];
    tierce__view_describe(&record, p->view, &p->keys, shape, read->index,
                          tierce_chain_hash(p->chain, 0));
    int bytes = tierce__key_text_format(read->text, p->theirs->ns_digest, &key->shard, key->hash);
    TIERCE_ASSERT(bytes > 0);
    read->name = (struct tierce_plugin_name){read->text, (size_t)bytes};
    read->buf = tierce__storage_reserve(p->engine, &record, before);
    if (read->buf != NULL && reserve_made(p, read))
        return true;
    release(read);
    return false;
}

static void submit(struct pull *p, struct read *read)
{
    read->req = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                           .deadline_ns = p->source->deadline_ns,
                                           .done = answered,
                                           .arg = &read->await,
                                           .names = &read->name,
                                           .name_count = 1,
                                           .urgency = TIERCE__CONNECTOR_FETCH,
                                           .buf = read->buf,
                                           .length = shape_of(p, read->index)->extent.object_bytes};
    tierce__await_begin(&read->await);
    tierce__await_expect(&read->await);
    p->source->connector->ops->submit(p->source->connector, &read->req);
}

/* Until the request is answered, at its deadline at the latest. */
static int wait_for(struct read *read)
{
    if (read->is_here)
        return 0;
    (void)tierce__await_end(&read->await, TIERCE__DEADLINE_NEVER);
    return read->req.status;
}

/* A chunk of a prefiller with a different tensor-parallel size that memory holds, because it was
 * pushed. False: it does not. */
static bool take_pushed(struct pull *p, struct read *read)
{
    struct tierce__key key = p->theirs->key;
    if (p->theirs == p->view)
        return false;
    memcpy(key.hash, p->keys.keys[read->index].hash, TIERCE_HASH_BYTES);
    read->buf = tierce__storage_lease(p->engine, &key);
    read->is_here = read->buf != NULL &&
                    read->buf->bytes == shape_of(p, read->index)->extent.object_bytes &&
                    reserve_made(p, read);
    if (!read->is_here)
        release(read);
    return read->is_here;
}

static bool is_given_up(struct tierce__source *source)
{
    return atomic_load_explicit(&source->is_given_up, memory_order_relaxed);
}

static int begin_read(struct pull *p, struct read *read, const struct tierce__buf *before)
{
    struct tierce__source *source = p->source;
    if (is_given_up(source))
        return stop_at(p->out, TIERCE_E_CANCELLED, "the request has ended");
    if (take_pushed(p, read))
        return 0;
    int rc = source->is_met ? 0 : read_offer(source, p->out);
    if (rc < 0)
        return rc;
    source->is_met = true;
    if (!reserve(p, read, before))
        return stop_at(p->out, TIERCE_E_FULL, "memory has no room for the chunk");
    submit(p, read);
    return 0;
}

/* The oldest chunk of the window: pinned, or why not. */
static int finish_read(struct pull *p, struct read *read)
{
    int rc = 0;
    if (read->buf == NULL && (hold(p, read->index, &rc) || rc < 0))
        return rc;
    if (read->buf == NULL) /* it was evicted meanwhile */
        rc = begin_read(p, read, NULL);
    if (rc < 0)
        return rc;
    int status = wait_for(read);
    return status == 0 ? land(p, read) : stop_by_answer(p->source, p->out, status);
}

/* Requests what memory lacks, as far as the window and memory have room. */
static int fill(struct pull *p, struct window *w)
{
    const struct tierce__buf *before = NULL;
    while (w->next < p->keys.count && w->next - w->first < READS &&
           tierce__now_ns() < p->source->piece_ns) {
        struct read *read = &w->reads[w->next % READS];
        int rc = 0;
        read->index = w->next;
        read->buf = read->made = NULL;
        read->is_here = false;
        /* Memory alone is asked: the prefiller has the chunk, and another tier or store would hold
         * up the requests that follow. */
        if (tierce__storage_find(p->engine, &p->keys.keys[w->next], 1, 1, NULL) == 0)
            rc = begin_read(p, read, before);
        if (rc == TIERCE_E_FULL && w->next > w->first) {
            p->out->status = 0; /* the chunks before it free room, or fail */
            p->out->why[0] = '\0';
            return 0;
        }
        if (rc < 0)
            return rc;
        before = read->buf;
        w->next++;
    }
    return 0;
}

/* Chunks that precede the first failure are kept. */
static int pull_all(struct pull *p, uint64_t from_block)
{
    struct window *w = tierce__calloc(1, sizeof(*w));
    size_t index = (size_t)(from_block / p->view->chunk_blocks);
    if (w == NULL)
        return -ENOMEM;
    w->first = w->next = index < p->keys.count ? index : p->keys.count;
    p->out->blocks = tierce__keys_blocks(&p->keys, p->view, w->first, p->to_block);
    int rc = fill(p, w);
    while (rc == 0 && w->first < w->next) {
        struct read *read = &w->reads[w->first++ % READS];
        rc = finish_read(p, read);
        release(read);
        if (rc == 0)
            rc = fill(p, w);
    }
    if (rc == 0 && w->next < p->keys.count)
        rc = stop_at(p->out, -EAGAIN, "the read has not ended");
    for (; w->first < w->next; w->first++) {
        struct read *read = &w->reads[w->first % READS];
        if (read->buf != NULL)
            (void)wait_for(read);
        release(read);
    }
    tierce__free(w);
    return rc;
}

int tierce__source_read(struct tierce__source *source, struct tierce_view *view,
                        const struct tierce_chain *chain, uint64_t from_block, uint64_t to_block,
                        struct tierce__handover_pulled *out)
{
    *out = (struct tierce__handover_pulled){0};
    if (view->engine != source->engine || source->from->session == 0 ||
        to_block > tierce_chain_blocks(chain))
        return stop_at(out, TIERCE_E_ARGUMENT,
                       "a read needs a session, a view of the source's engine, and a chain with "
                       "all of its blocks");
    if (source->engine->level_count == 0) {
        const struct tierce__lent_blocks blocks = {chain,
                                                   from_block,
                                                   to_block,
                                                   source->deadline_ns,
                                                   source->patience_ms,
                                                   &source->is_given_up};
        (void)note_loss(source, tierce__lent_read(view, &blocks, source->from, source->other, out));
        return 0;
    }
    struct pull p = {.source = source,
                     .view = view,
                     .engine = view->engine,
                     .chain = chain,
                     .from = source->from,
                     .out = out,
                     .to_block = to_block,
                     .theirs = view};
    if (source->other != NULL) {
        int fits = tierce__other_init(&p.other, view, source->other, out->why);
        out->status = fits;
        if (fits < 0)
            return fits == TIERCE_E_UNSUPPORTED ? 0 : fits;
        p.theirs = source->other->view;
    }
    int rc = tierce__keys_init(&p.keys, view, chain, to_block, tierce_chain_blocks(chain), true);
    if (rc < 0)
        return rc;
    if (p.keys.tail_blocks > 0)
        p.tail = tierce__shape_of(p.theirs, p.keys.tail_blocks);
    rc = pull_all(&p, from_block);
    tierce__keys_fini(&p.keys);
    return rc == -ENOMEM ? rc : 0;
}

/* ---- beginning and end ----------------------------------------------------------------------- */

/* The host becomes a part of a URL, and may come from a client of a node. */
static bool is_host(const char *host)
{
    size_t bytes = strlen(host);
    static const char accepted[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:";
    return bytes > 0 && bytes <= HOST_MAX && strspn(host, accepted) == bytes;
}

int tierce__source_begin(struct tierce__source **out, struct tierce_engine *engine,
                         const struct tierce__handover_from *from)
{
    if (from->port == 0 || !is_host(from->host) || strlen(from->token) > TIERCE__HANDOVER_TOKEN_MAX)
        return TIERCE_E_ARGUMENT;
    struct tierce__source *source = tierce__calloc(1, sizeof(*source));
    if (source == NULL)
        return -ENOMEM;
    *source = (struct tierce__source){
        .engine = engine,
        .from = from,
        .deadline_ns = tierce__deadline_in_ms(from->total_ms > 0 ? from->total_ms : TOTAL_MS),
        .piece_ns =
            from->piece_ms > 0 ? tierce__deadline_in_ms(from->piece_ms) : TIERCE__DEADLINE_NEVER,
        .patience_ms = from->timeout_ms > 0 ? from->timeout_ms : 1};
    /* The rest is read, whatever the reason, for which half of the time is kept. */
    uint32_t half_ms = source->patience_ms / 2;
    uint32_t start_ms = half_ms < START_MS ? half_ms : START_MS;
    if (from->ticket != NULL && engine->level_count == 0)
        source->push_status = tierce__lent_await(engine, from, start_ms, source->deadline_ns);
    else if (from->ticket != NULL && from->inbox != NULL)
        source->push_status =
            tierce__inbox_await(from->inbox, from->ticket, start_ms, half_ms, source->deadline_ns);
    if (source->push_status == TIERCE_E_DEADLINE)
        source->patience_ms -= half_ms;
    uint64_t wait_ns = tierce__deadline_in_ms(from->wait_ms);
    source->wait_until_ns =
        from->wait_ms > 0 && wait_ns < source->deadline_ns ? wait_ns : source->deadline_ns;
    *out = source;
    return 0;
}

/* The prefiller need not hold its chunks any longer. Best effort: the offer has a deadline. */
static void end_offer(struct tierce__source *source)
{
    struct tierce__handover_pulled unused;
    struct tierce__store_req req = {.op = TIERCE__STORE_DELETE,
                                    .deadline_ns = tierce__deadline_in_ms(CLOSE_MS),
                                    .urgency = TIERCE__CONNECTOR_STORE};
    if (source->engine->level_count == 0)
        tierce__lent_end(source->engine, source->from);
    else if (open_connector(source, &unused) == 0)
        (void)call(source, req);
}

void tierce__source_other(struct tierce__source *source, const struct tierce__handover_other *other)
{
    source->other = other;
}

void tierce__source_give_up(struct tierce__source *source)
{
    atomic_store_explicit(&source->is_given_up, true, memory_order_relaxed);
}

void tierce__source_keep(struct tierce__source *source)
{
    source->is_kept = true;
}

void tierce__source_end(struct tierce__source *source, struct tierce__handover_pulled *out)
{
    if (source == NULL)
        return;
    out->push_status = source->push_status;
    if (source->from->ticket != NULL && source->engine->level_count == 0)
        out->pushed_bytes = tierce__lent_end_ticket(source->engine, source->from->ticket);
    else if (source->from->ticket != NULL && source->from->inbox != NULL)
        out->pushed_bytes = tierce__inbox_end(source->from->inbox, source->from->ticket);
    if (!source->is_lost && !source->is_kept)
        end_offer(source);
    struct tierce__connector *connector = source->connector;
    if (connector != NULL && !connector->ops->close(connector, tierce__deadline_in_ms(CLOSE_MS)))
        atomic_store(&source->engine->is_pool_lent, true);
    tierce__free(source);
}

int tierce__handover_pull(struct tierce_view *view, const struct tierce_chain *chain,
                          uint64_t from_block, uint64_t to_block,
                          const struct tierce__handover_from *from,
                          struct tierce__handover_pulled *out)
{
    struct tierce__source *source;
    *out = (struct tierce__handover_pulled){0};
    int rc = tierce__source_begin(&source, view->engine, from);
    if (rc < 0)
        return rc;
    rc = tierce__source_read(source, view, chain, from_block, to_block, out);
    tierce__source_end(source, out);
    tierce__handover_note(view, from, out);
    return rc;
}
