/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder's side: reads the chunks of a prompt from a prefiller into memory, several at a
 * time, and publishes them in the order of the prompt. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "core/key/key_text.h"
#include "engine/handover/handover.h"
#include "engine/handover/handover_inbox.h"
#include "engine/peer/peer_keeper.h"
#include "engine/peer/peer_tls.h"
#include "engine/view.h"
#include "engine/waterfall.h"
#include "store/await.h"
#include "store/remote/connector.h"

#define READS    8u /* at a time */
#define CLOSE_MS 1000u
#define RETRY_MS 5
#define START_MS 1000u /* for a push that has not begun when its prompt is requested */

struct pull {
    struct tierce_view *view;
    struct tierce_engine *engine;
    const struct tierce_chain *chain;
    const struct tierce__handover_from *from;
    struct tierce__handover_pulled *out;
    struct tierce__connector *connector; /* NULL until the first read */
    struct tierce__keys keys;
    struct tierce__shape tail;
    uint64_t to_block;
    uint64_t deadline_ns, wait_until_ns;
};

/* A chunk of the window. */
struct read {
    size_t index;            /* among the keys */
    struct tierce__buf *buf; /* NULL: memory had the chunk, and nothing was requested */
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

static const struct tierce__shape *shape_of(const struct pull *p, size_t index)
{
    TIERCE_DASSERT(index < p->keys.count);
    return index < p->keys.full_count ? &p->view->full : &p->tail;
}

static int stop_at(struct pull *p, int status, const char *why)
{
    TIERCE_DASSERT(status < 0);
    p->out->status = status;
    snprintf(p->out->why, sizeof(p->out->why), "%s", why);
    return status;
}

/* The answer to a request, in words, before the next one replaces it. */
static int stop_by_answer(struct pull *p, int status)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES] = "";
    if (status == TIERCE_E_MISS)
        return stop_at(p, status, "the prefiller does not have the chunk");
    if (status == TIERCE_E_REFUSED)
        return stop_at(p, status, "the prefiller knows no such offer: it has ended, or never was");
    if (status == TIERCE_E_LIMIT)
        return stop_at(p, status,
                       "the prefiller is busy: the chunk is not in its memory (memory.pins, "
                       "memory.size), and it reads other ones from its disk");
    p->connector->ops->why(p->connector, why);
    return stop_at(p, status, why[0] != '\0' ? why : tierce_strerror(status));
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
        *rc = stop_at(p, TIERCE_E_FULL,
                      "memory.pins has no room: raise it, or memory.size, or lower the load");
    else
        p->out->blocks = tierce__keys_blocks(&p->keys, p->view, index + 1, p->to_block);
    return true;
}

/* Whether the bytes are the chunk, with all its cells. */
static int verify(const struct pull *p, const struct read *read)
{
    struct tierce__chunk_info info;
    const struct tierce__shape *shape = shape_of(p, read->index);
    int rc = tierce__view_check_header(p->view, shape, read->index, tierce_chain_hash(p->chain, 0),
                                       tierce_chain_root_hash(p->chain), read->buf->data);
    if (rc == 0)
        rc = tierce__chunk_parse(&info, read->buf->data, shape->extent.object_bytes);
    if (rc == 0 && tierce__chunk_verify_cells(read->buf->data, &info) != 0)
        rc = TIERCE_E_CHECKSUM;
    return rc;
}

/* The bytes have arrived. */
static int land(struct pull *p, const struct read *read)
{
    struct tierce__storage_chunk record;
    const struct tierce__shape *shape = shape_of(p, read->index);
    int rc = verify(p, read);
    if (rc < 0) {
        tierce__count(p->engine,
                      rc == TIERCE_E_CHECKSUM ? TIERCE__STAT_checksum_failures
                                              : TIERCE__STAT_identity_failures,
                      1);
        return stop_at(p, rc, "the prefiller sent a wrong chunk; it was dropped");
    }
    p->out->bytes += shape->extent.object_bytes;
    tierce__view_describe(&record, p->view, &p->keys, shape, read->index,
                          tierce_chain_hash(p->chain, 0));
    rc = tierce__storage_publish(p->engine, &record, read->buf);
    if (rc < 0)
        return stop_at(p, rc, "memory has no room for the chunk");
    if (!hold(p, read->index, &rc) && rc == 0)
        rc = stop_at(p, TIERCE_E_FULL, "the chunk was evicted at once: memory is too small");
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void answered(struct tierce__store_req *req)
{
    (void)tierce__await_answer(req->arg); /* it is waited for without a limit */
}

/* Why the prefiller is not connected to, or NULL. */
static const char *mismatch_of(const struct pull *p)
{
    return tierce__peer_tls_mismatch(p->engine->peer_tls, p->from->uses_tls);
}

static int open_connector(struct pull *p)
{
    char url[320], why[TIERCE__CONNECTOR_WHY_BYTES];
    bool is_v6 = strchr(p->from->host, ':') != NULL;
    if (mismatch_of(p) != NULL) {
        snprintf(why, sizeof(why), "the prefiller: %s", mismatch_of(p));
        return stop_at(p, TIERCE_E_REFUSED, why);
    }
    snprintf(url, sizeof(url), "transfer%s://%s%.255s%s:%u/" TIERCE__PEER_SPACE "?connections=2",
             p->from->uses_tls ? "+tls" : "", is_v6 ? "[" : "", p->from->host, is_v6 ? "]" : "",
             p->from->port);
    int rc = tierce__connector_open(
        &p->connector, url,
        &(struct tierce__connector_opts){.size = sizeof(struct tierce__connector_opts),
                                         .pool = p->engine->pool,
                                         .token = p->from->token,
                                         .tls = tierce__peer_tls_client(p->engine->peer_tls)},
        why);
    return rc < 0 ? stop_at(p, rc, why) : 0;
}

/* Room for the chunk. False: memory has none. */
static bool reserve(struct pull *p, struct read *read, const struct tierce__buf *before)
{
    struct tierce__storage_chunk record;
    const struct tierce__shape *shape = shape_of(p, read->index);
    const struct tierce__key *key = &p->keys.keys[read->index];
    tierce__view_describe(&record, p->view, &p->keys, shape, read->index,
                          tierce_chain_hash(p->chain, 0));
    int bytes = tierce__key_text_format(read->text, p->view->ns_digest, &key->shard, key->hash);
    TIERCE_ASSERT(bytes > 0);
    read->name = (struct tierce_plugin_name){read->text, (size_t)bytes};
    read->buf = tierce__storage_reserve(p->engine, &record, before);
    return read->buf != NULL;
}

static void submit(struct pull *p, struct read *read)
{
    read->req = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                           .deadline_ns = p->deadline_ns,
                                           .done = answered,
                                           .arg = &read->await,
                                           .names = &read->name,
                                           .name_count = 1,
                                           .urgency = TIERCE__CONNECTOR_FETCH,
                                           .buf = read->buf,
                                           .length = shape_of(p, read->index)->extent.object_bytes};
    tierce__await_begin(&read->await);
    tierce__await_expect(&read->await);
    p->connector->ops->submit(p->connector, &read->req);
}

/* Until the request is answered, at its deadline at the latest. */
static int wait_for(struct read *read)
{
    (void)tierce__await_end(&read->await, TIERCE__DEADLINE_NEVER);
    return read->req.status;
}

static int begin_read(struct pull *p, struct read *read, const struct tierce__buf *before)
{
    int rc = p->connector != NULL ? 0 : open_connector(p);
    if (rc < 0)
        return rc;
    if (!reserve(p, read, before))
        return stop_at(p, TIERCE_E_FULL, "memory has no room for the chunk");
    submit(p, read);
    return 0;
}

/* The prefiller opens the offer when it has stored the chunks, which may be after its answer.
 * False: that was waited for. A chunk that an open offer lacks does not come. */
static bool comes_later(const struct pull *p, int status)
{
    uint64_t now_ns = tierce__now_ns();
    if (status != TIERCE_E_REFUSED || now_ns >= p->wait_until_ns || now_ns >= p->deadline_ns)
        return false;
    (void)nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000}, NULL);
    return true;
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
    while (comes_later(p, status)) {
        submit(p, read);
        status = wait_for(read);
    }
    return status == 0 ? land(p, read) : stop_by_answer(p, status);
}

/* Requests what memory lacks, as far as the window and memory have room. */
static int fill(struct pull *p, struct window *w)
{
    const struct tierce__buf *before = NULL;
    while (w->next < p->keys.count && w->next - w->first < READS) {
        struct read *read = &w->reads[w->next % READS];
        int rc = 0;
        read->index = w->next;
        read->buf = NULL;
        if (!tierce__storage_has(p->engine, &p->keys.keys[w->next]))
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
static int pull_all(struct pull *p)
{
    struct window *w = tierce__calloc(1, sizeof(*w));
    size_t index = (size_t)(p->from->from_block / p->view->chunk_blocks);
    if (w == NULL)
        return -ENOMEM;
    w->first = w->next = index < p->keys.count ? index : p->keys.count;
    p->out->blocks = tierce__keys_blocks(&p->keys, p->view, w->first, p->to_block);
    int rc = fill(p, w);
    while (rc == 0 && w->first < w->next) {
        struct read *read = &w->reads[w->first++ % READS];
        rc = finish_read(p, read);
        tierce__buf_release(read->buf);
        if (rc == 0)
            rc = fill(p, w);
    }
    for (; w->first < w->next; w->first++) {
        struct read *read = &w->reads[w->first % READS];
        if (read->buf != NULL)
            (void)wait_for(read);
        tierce__buf_release(read->buf);
    }
    tierce__free(w);
    return rc;
}

/* The prefiller need not hold its chunks any longer. Best effort: the offer has a deadline. */
static void end_offer(struct pull *p)
{
    const struct tierce_plugin_name name = {p->from->token, strlen(p->from->token)};
    struct tierce__await await;
    struct tierce__store_req req = {.op = TIERCE__STORE_DELETE,
                                    .deadline_ns = tierce__deadline_in_ms(CLOSE_MS),
                                    .done = answered,
                                    .arg = &await,
                                    .names = &name,
                                    .name_count = 1,
                                    .urgency = TIERCE__CONNECTOR_STORE};
    if (p->connector == NULL && (mismatch_of(p) != NULL || open_connector(p) < 0))
        return;
    tierce__await_begin(&await);
    tierce__await_expect(&await);
    p->connector->ops->submit(p->connector, &req);
    (void)tierce__await_end(&await, TIERCE__DEADLINE_NEVER);
}

int tierce__handover_pull(struct tierce_view *view, const struct tierce_chain *chain,
                          uint64_t to_block, const struct tierce__handover_from *from,
                          struct tierce__handover_pulled *out)
{
    *out = (struct tierce__handover_pulled){0};
    if (view->engine->level_count == 0)
        return TIERCE_E_UNSUPPORTED;
    if (from->session == 0 || from->port == 0 || to_block != tierce_chain_blocks(chain) ||
        tierce__view_is_sparse(view))
        return TIERCE_E_ARGUMENT;
    struct pull p = {.view = view,
                     .engine = view->engine,
                     .chain = chain,
                     .from = from,
                     .out = out,
                     .to_block = to_block,
                     .deadline_ns = tierce__deadline_in_ms(from->timeout_ms)};
    int rc = tierce__keys_init(&p.keys, view, chain, to_block, to_block, true);
    if (rc < 0)
        return rc;
    if (p.keys.tail_blocks > 0)
        p.tail = tierce__shape_of(view, p.keys.tail_blocks);
    bool has_ticket = from->inbox != NULL && from->ticket != NULL;
    if (has_ticket) /* the rest is read, whatever the reason, for which half of the time is kept */
        out->push_status = tierce__inbox_await(from->inbox, from->ticket, START_MS,
                                               tierce__deadline_in_ms(from->timeout_ms / 2));
    p.wait_until_ns = tierce__deadline_in_ms(from->wait_ms);
    rc = pull_all(&p);
    if (has_ticket)
        out->pushed_bytes = tierce__inbox_end(from->inbox, from->ticket);
    if (rc != TIERCE_E_DOWN && rc != TIERCE_E_REFUSED && rc != TIERCE_E_DEADLINE)
        end_offer(&p);
    if (p.connector != NULL &&
        !p.connector->ops->close(p.connector, tierce__deadline_in_ms(CLOSE_MS)))
        atomic_store(&view->engine->is_pool_lent, true);
    tierce__keys_fini(&p.keys);
    tierce__handover_note(view, from, out);
    return rc == -ENOMEM ? rc : 0;
}
