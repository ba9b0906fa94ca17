/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/handover/handover_push.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/threads.h"
#include "core/key/key_text.h"
#include "engine/handover/handover_filling.h"
#include "engine/handover/handover_push_lent.h"
#include "engine/peer/peer_keeper.h"
#include "engine/peer/peer_tls.h"
#include "engine/store/store_watch.h"
#include "engine/view.h"
#include "engine/waterfall.h"
#include "proto/transfer/transfer_wire.h"
#include "store/remote/transfer/transfer_link.h"

#define OPENING   8u         /* bytes of a chunk that are known before it is computed: magic */
#define RANGE_MAX (1u << 20) /* timeout_ms is for each range */
#define RETRY_MS  20u        /* a decoder without room is asked again */
#define WINDOW    TIERCE__TRANSFER_PIPELINE

enum item_state {
    ITEM_NEW,    /* the decoder has not been asked for room, or had none */
    ITEM_ASKED,  /* the answer is due */
    ITEM_OPENED, /* its bytes are sent */
    ITEM_DONE,   /* the decoder has it, or will not get it */
};

/* A chunk. */
struct item {
    struct tierce__list node;
    enum item_state state;
    char text[TIERCE__KEY_TEXT_BYTES];
    struct tierce_plugin_name name;
    struct tierce__buf *buf;
    uint64_t header_bytes;
    struct tierce__filling payload; /* a run for each rank that fills layers of it */
    bool is_sealed;                 /* the header may be sent, and the payload is filled */
    bool has_header;
    uint32_t unanswered;         /* ranges */
    uint64_t ask_ns, give_up_ns; /* without room: asked again, and until when */
};

/* The chunks of a store. */
struct push_watch {
    struct tierce__store_watch base;
    struct tierce__push *push;
    size_t count;
    struct tierce__shape *shapes; /* [count] */
    struct item **items;          /* [count] */
};

struct tierce__push {
    struct tierce__lent_push
        *lent; /* a node pushes, and nothing below is used; NULL: this process */
    struct tierce_engine *engine;
    uint32_t wait_ms, timeout_ms;
    char ticket[TIERCE__HANDOVER_TOKEN_MAX + 1];
    const char *mismatch;               /* why no connection is made; NULL if one is */
    struct tierce__transfer_link *link; /* the thread's */
    struct tierce__stopper stopper;     /* of its calls */
    pthread_t thread;
    _Atomic uint64_t end_ns; /* of the thread's calls, by give_up; relaxed */

    struct tierce__lock lock; /* PUSH: all below; an item's `unanswered` is the thread's */
    struct tierce__cond changed;
    struct tierce__list items; /* in the order in which they were added */
    struct tierce__list done;  /* ITEM_DONE */
    size_t watches;
    bool is_ended, is_given_up, is_over;
    struct tierce__pushed pushed;

    /* The thread's: ranges without an answer, in their order. */
    struct asked {
        struct item *item;
        bool is_opening;
    } window[WINDOW];
    uint32_t first, count;
    bool has_opened; /* the last range sent was an opening */
};

static void note_failure(struct tierce__push *push, int status, const char *why)
{
    tierce__lock_assert_held(&push->lock);
    if (push->pushed.status != 0)
        return;
    push->pushed.status = status;
    snprintf(push->pushed.why, sizeof(push->pushed.why), "%s", why);
}

/* It is over for a chunk. */
static void end_item(struct tierce__push *push, struct item *item, int status, const char *why)
{
    tierce__lock_assert_held(&push->lock);
    if (item->state == ITEM_DONE)
        return;
    item->state = ITEM_DONE;
    tierce__list_remove(&item->node);
    tierce__list_push_back(&push->done, &item->node);
    if (status == 0) {
        push->pushed.chunks++;
        push->pushed.bytes += item->buf->bytes;
        push->pushed.over_ns = tierce__now_ns();
    } else if (status == -EEXIST) {
        push->pushed.present++;
    } else {
        push->pushed.left_out++;
        note_failure(push, status, why);
    }
}

static void free_item(struct item *item)
{
    tierce__list_remove(&item->node);
    tierce__buf_release(item->buf);
    tierce__free(item);
}

/* Frees chunks that are done, except for those that a store still fills, or of which the thread
 * awaits an answer. */
static void free_done(struct tierce__push *push)
{
    tierce__lock_assert_held(&push->lock);
    if (push->watches > 0)
        return;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &push->done) {
        struct item *item = TIERCE__CONTAINER_OF(it, struct item, node);
        if (item->unanswered == 0 || push->is_over)
            free_item(item);
    }
}

/* ---- the chunks ------------------------------------------------------------------------------ */

static int make_item(struct item **out, const struct tierce__key *key, const uint8_t *ns_digest,
                     struct tierce__buf *buf, uint64_t header_bytes)
{
    struct item *item = tierce__calloc(1, sizeof(*item));
    if (item == NULL)
        return -ENOMEM;
    int bytes = tierce__key_text_format(item->text, ns_digest, &key->shard, key->hash);
    TIERCE_ASSERT(bytes > 0 && header_bytes > OPENING && buf->bytes > header_bytes);
    item->name = (struct tierce_plugin_name){item->text, (size_t)bytes};
    item->buf = buf;
    item->header_bytes = header_bytes;
    tierce__filling_init(&item->payload, header_bytes, buf->bytes);
    *out = item;
    return 0;
}

static void seal(struct item *item)
{
    tierce__filling_note(&item->payload, item->header_bytes, item->buf->bytes);
    item->is_sealed = true;
}

static bool is_sealed(const struct tierce__buf *buf)
{
    struct tierce__chunk_info info;
    return tierce__chunk_parse(&info, buf->data, buf->bytes) == 0;
}

int64_t tierce__push_held(struct tierce__push *push, struct tierce_view *view,
                          const struct tierce_chain *chain, uint64_t to_block)
{
    struct tierce__keys keys;
    int64_t count = 0;
    if (push->lent != NULL)
        return tierce__lent_push_held(push->lent, view, chain, to_block);
    TIERCE_ASSERT(view->engine == push->engine);
    int rc = tierce__keys_init(&keys, view, chain, to_block, to_block, true);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < keys.count; i++) {
        struct item *item;
        struct tierce__buf *buf = tierce__storage_lease(push->engine, &keys.keys[i]);
        if (buf == NULL)
            continue;
        uint64_t header_bytes = tierce__chunk_header_bytes(buf->data);
        if (header_bytes <= OPENING || header_bytes >= buf->bytes) {
            tierce__buf_release(buf); /* a client of this node has written to its header */
            continue;
        }
        rc = make_item(&item, &keys.keys[i], view->ns_digest, buf, header_bytes);
        if (rc < 0) {
            tierce__buf_release(buf);
            break;
        }
        seal(item);
        count++;
        tierce__lock_take(&push->lock);
        tierce__list_push_back(&push->items, &item->node);
        if (push->is_over) {
            end_item(push, item, TIERCE_E_CANCELLED, "the push was given up");
            free_done(push);
        }
        tierce__cond_broadcast(&push->changed);
        tierce__lock_drop(&push->lock);
    }
    tierce__keys_fini(&keys);
    return rc < 0 ? rc : count;
}

/* ---- a store --------------------------------------------------------------------------------- */

static void free_watch(struct push_watch *watch)
{
    tierce__free(watch->shapes);
    tierce__free(watch->items);
    tierce__free(watch);
}

static void filled(struct tierce__store_watch *base, uint32_t from, uint32_t to)
{
    struct push_watch *watch = TIERCE__CONTAINER_OF(base, struct push_watch, base);
    struct tierce__push *push = watch->push;
    tierce__lock_take(&push->lock);
    for (size_t i = 0; i < watch->count; i++) {
        const struct tierce__shape *shape = &watch->shapes[i];
        struct item *item = watch->items[i];
        uint32_t count = shape->geometry.layer_count;
        TIERCE_ASSERT(from < to && to <= count);
        /* The padding follows the last layer. */
        uint64_t end = to == count ? item->buf->bytes : tierce__shape_offset(shape, to);
        tierce__filling_note(&item->payload, tierce__shape_offset(shape, from), end);
    }
    tierce__cond_broadcast(&push->changed);
    tierce__lock_drop(&push->lock);
}

static void ended(struct tierce__store_watch *base, bool complete)
{
    struct push_watch *watch = TIERCE__CONTAINER_OF(base, struct push_watch, base);
    struct tierce__push *push = watch->push;
    tierce__lock_take(&push->lock);
    for (size_t i = 0; i < watch->count; i++) {
        struct item *item = watch->items[i];
        if (push->is_over) {
            end_item(push, item, TIERCE_E_CANCELLED, "the push was given up");
        } else if (complete && is_sealed(item->buf)) {
            seal(item);
        } else {
            end_item(push, item, TIERCE_E_CANCELLED, "the store of the chunk was given up");
        }
    }
    push->watches--;
    if (push->is_over)
        free_done(push);
    tierce__cond_broadcast(&push->changed);
    tierce__lock_drop(&push->lock);
    free_watch(watch);
}

/* The item of a room; its identity is that of the header, which is there already. */
static int make_of_room(struct item **out, struct tierce__shape *shape,
                        const struct tierce_view *view, const struct tierce__room *room)
{
    struct tierce__key key = view->key;
    *shape = tierce__shape_of(view, room->block_count);
    const uint8_t *hashes = tierce__chunk_block_hashes(room->object, shape->geometry.layer_count);
    memcpy(key.hash, hashes + (size_t)(room->block_count - 1) * TIERCE_HASH_BYTES,
           TIERCE_HASH_BYTES);
    int rc = make_item(out, &key, view->ns_digest, room->buf, shape->extent.header_bytes);
    if (rc == 0)
        tierce__buf_acquire(room->buf);
    return rc;
}

static struct push_watch *make_watch(struct tierce__push *push)
{
    struct push_watch *watch = tierce__calloc(1, sizeof(*watch));
    if (watch == NULL)
        return NULL;
    watch->base = (struct tierce__store_watch){filled, ended};
    watch->push = push;
    tierce__lock_take(&push->lock);
    push->watches++;
    tierce__lock_drop(&push->lock);
    return watch;
}

/* The watch ends with its store, also after an error. */
static int add_rooms(struct push_watch *watch, const struct tierce__watched *what)
{
    struct tierce__push *push = watch->push;
    /* Other threads may call `filled` meanwhile. It sees only the first watch->count chunks. */
    watch->shapes = tierce__calloc(what->count, sizeof(*watch->shapes));
    watch->items = tierce__calloc(what->count, sizeof(struct item *));
    int rc = watch->shapes != NULL && watch->items != NULL ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < what->count; i++) {
        struct item *item;
        TIERCE_ASSERT(what->rooms[i].buf != NULL);
        rc = make_of_room(&item, &watch->shapes[i], what->view, &what->rooms[i]);
        if (rc < 0)
            break;
        watch->items[i] = item;
        tierce__lock_take(&push->lock);
        watch->count++;
        tierce__list_push_back(&push->items, &item->node);
        tierce__lock_drop(&push->lock);
    }
    tierce__lock_take(&push->lock);
    tierce__cond_broadcast(&push->changed);
    tierce__lock_drop(&push->lock);
    return rc;
}

int tierce__push_watch(struct tierce__push *push, struct tierce_store *store)
{
    struct tierce__watched what;
    if (push->lent != NULL)
        return tierce__lent_push_watch(push->lent, store);
    struct push_watch *watch = make_watch(push);
    if (watch == NULL)
        return -ENOMEM;
    tierce__store_watch(store, &watch->base, &what);
    return add_rooms(watch, &what);
}

int tierce__push_reserved(struct tierce__push *push, const struct tierce_view *view,
                          struct tierce__reservation *reservation)
{
    struct tierce__watched what;
    struct push_watch *watch = make_watch(push);
    if (watch == NULL)
        return -ENOMEM;
    int rc = tierce__reserve_watch(reservation, view, &watch->base, &what);
    if (rc < 0) {
        ended(&watch->base, false);
        return rc;
    }
    rc = add_rooms(watch, &what);
    tierce__reserve_tell_watch(reservation);
    return rc;
}

/* ---- the thread: answers --------------------------------------------------------------------- */

/* The deadline of the next call. All calls after give_up have one together. */
static uint64_t soon(struct tierce__push *push)
{
    uint64_t deadline_ns = tierce__deadline_in_ms(push->timeout_ms);
    uint64_t end_ns = atomic_load_explicit(&push->end_ns, memory_order_relaxed);
    return deadline_ns < end_ns ? deadline_ns : end_ns;
}

/* The connection has failed, or the server accepts nothing: all ends. */
static void fail(struct tierce__push *push, int status)
{
    const char *why =
        push->mismatch != NULL ? push->mismatch : tierce__transfer_link_why(push->link);
    tierce__lock_take(&push->lock);
    note_failure(push, status, why[0] != '\0' ? why : tierce_strerror(status));
    push->is_given_up = true;
    tierce__lock_drop(&push->lock);
}

/* No room now. */
static bool is_busy(int status)
{
    return status == TIERCE_E_LIMIT || status == TIERCE_E_FULL || status == -ENOMEM;
}

/* The answer to a chunk's first bytes. */
static void note_opened(struct tierce__push *push, struct item *item, int status)
{
    uint64_t now_ns = tierce__now_ns();
    tierce__lock_assert_held(&push->lock);
    if (is_busy(status) && item->give_up_ns == 0)
        item->give_up_ns = tierce__deadline_in_ms(push->wait_ms);
    if (item->state != ITEM_ASKED)
        return; /* its store was given up */
    if (status == 0) {
        item->state = ITEM_OPENED;
    } else if (is_busy(status) && now_ns < item->give_up_ns) {
        item->state = ITEM_NEW;
        item->ask_ns = now_ns + RETRY_MS * TIERCE__MS_NS;
    } else {
        end_item(push, item, status,
                 is_busy(status) ? "the decoder had no room for the chunk"
                                 : tierce__transfer_link_why(push->link));
    }
}

/* The answer to other bytes. */
static void note_kept(struct tierce__push *push, struct item *item, int status)
{
    tierce__lock_assert_held(&push->lock);
    if (status != 0)
        end_item(push, item, status,
                 status == -EBADMSG ? "the decoder rejects the bytes of a chunk"
                                    : tierce__transfer_link_why(push->link));
    else if (item->has_header && item->unanswered == 0)
        end_item(push, item, 0, NULL);
}

/* Reads the oldest answer. False: the connection has failed. */
static bool read_answer(struct tierce__push *push)
{
    TIERCE_ASSERT(push->count > 0);
    const struct asked asked = push->window[push->first];
    int status = tierce__transfer_link_written(push->link, soon(push));
    push->first = (push->first + 1) % WINDOW;
    push->count--;
    asked.item->unanswered--;
    if (!tierce__transfer_link_is_open(push->link)) {
        fail(push, status);
        return false;
    }
    tierce__lock_take(&push->lock);
    if (asked.is_opening)
        note_opened(push, asked.item, status);
    else
        note_kept(push, asked.item, status);
    free_done(push);
    tierce__lock_drop(&push->lock);
    return true;
}

/* ---- the thread: ranges ---------------------------------------------------------------------- */

static bool has_bytes(const struct item *item)
{
    return item->state == ITEM_OPENED &&
           (tierce__filling_has(&item->payload) || (item->is_sealed && !item->has_header));
}

/* The next range of a chunk that has one: the payload first, then the header. */
static void take_range(struct item *item, struct tierce__link_range *range)
{
    range->total = item->buf->bytes;
    if (item->state == ITEM_NEW) {
        range->offset = 0;
        range->length = OPENING;
        item->state = ITEM_ASKED;
        return;
    }
    range->length = tierce__filling_take(&item->payload, &range->offset, RANGE_MAX);
    if (range->length == 0) {
        TIERCE_ASSERT(item->is_sealed);
        range->offset = OPENING;
        range->length = item->header_bytes - OPENING;
        item->has_header = true;
    }
}

/*
 * The bytes of the first chunk that has any, so that chunks are complete one after the other, and
 * the decoder verifies each while the next one arrives: 1.01 of a bare socket's rate at 10 Gbit/s,
 * and 0.83 if all are complete at the end (bench handover, 2026-11). The decoder is asked for room
 * in between, so that it has made some when bytes are there, and bytes are sent that make room.
 */
static struct item *next_range(struct tierce__push *push, struct tierce__link_range *range)
{
    struct item *fresh = NULL, *filled = NULL;
    uint64_t now_ns = tierce__now_ns();
    tierce__lock_take(&push->lock);
    TIERCE__LIST_FOR_EACH (it, &push->items) {
        struct item *item = TIERCE__CONTAINER_OF(it, struct item, node);
        if (push->is_given_up || (filled != NULL && (fresh != NULL || push->has_opened)))
            break;
        if (fresh == NULL && item->state == ITEM_NEW && item->ask_ns <= now_ns)
            fresh = item;
        else if (filled == NULL && has_bytes(item))
            filled = item;
    }
    push->has_opened = fresh != NULL && (filled == NULL || !push->has_opened);
    struct item *found = push->has_opened ? fresh : filled;
    if (found != NULL)
        take_range(found, range);
    tierce__lock_drop(&push->lock);
    return found;
}

static bool send_range(struct tierce__push *push, struct item *item,
                       const struct tierce__link_range *range)
{
    TIERCE_ASSERT(push->count < WINDOW);
    int rc = tierce__transfer_link_write(push->link, &item->name, range,
                                         item->buf->data + range->offset, soon(push));
    if (rc != 0) {
        fail(push, rc);
        return false;
    }
    push->window[(push->first + push->count++) % WINDOW] = (struct asked){item, push->has_opened};
    item->unanswered++;
    return true;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Nothing can be sent now, and no answer is due: waits for the store, or for the time to ask again.
 * False: it is over. */
static bool wait_for_work(struct tierce__push *push)
{
    uint64_t until_ns = TIERCE__DEADLINE_NEVER;
    TIERCE_ASSERT(push->count == 0);
    tierce__lock_take(&push->lock);
    free_done(push);
    TIERCE__LIST_FOR_EACH (it, &push->items) {
        const struct item *item = TIERCE__CONTAINER_OF(it, struct item, node);
        if (has_bytes(item))
            until_ns = 0;
        else if (item->state == ITEM_NEW && item->ask_ns < until_ns)
            until_ns = item->ask_ns;
    }
    bool is_left = !tierce__list_empty(&push->items) || push->watches > 0 || !push->is_ended;
    bool goes_on = !push->is_given_up && is_left;
    if (goes_on && until_ns > tierce__now_ns())
        (void)tierce__cond_wait(&push->changed, &push->lock, until_ns);
    goes_on = goes_on && !push->is_given_up;
    tierce__lock_drop(&push->lock);
    return goes_on;
}

static void send_all(struct tierce__push *push)
{
    struct tierce__link_range range;
    bool goes_on = true;
    while (goes_on) {
        /* Room for an answer first: reading one may free chunks. */
        struct item *item = push->count < WINDOW ? next_range(push, &range) : NULL;
        if (item != NULL)
            goes_on = send_range(push, item, &range);
        else if (push->count > 0)
            goes_on = read_answer(push);
        else
            goes_on = wait_for_work(push);
    }
}

static void *run(void *arg)
{
    struct tierce__push *push = arg;
    const struct tierce_plugin_name ticket = {push->ticket, strlen(push->ticket)};
    int rc = push->mismatch != NULL
                 ? TIERCE_E_REFUSED
                 : tierce__transfer_link_reach(push->link, push->ticket, soon(push));
    if (rc == 0) {
        send_all(push);
        if (push->count == 0 && tierce__transfer_link_is_open(push->link))
            rc = tierce__transfer_link_remove(push->link, &ticket, soon(push));
    }
    if (rc != 0)
        fail(push, rc);
    tierce__transfer_link_destroy(push->link);
    push->link = NULL;
    tierce__lock_take(&push->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &push->items)
        end_item(push, TIERCE__CONTAINER_OF(it, struct item, node), TIERCE_E_CANCELLED,
                 "the push was given up");
    push->is_over = true;
    free_done(push);
    tierce__cond_broadcast(&push->changed);
    tierce__lock_drop(&push->lock);
    return NULL;
}

/* ---- begin and end --------------------------------------------------------------------------- */

static int begin_lent(struct tierce__push **out, struct tierce__push *push,
                      struct tierce_view *view, const struct tierce__push_to *to)
{
    int rc = tierce__lent_push_begin(&push->lent, view, to);
    if (rc == 0)
        *out = push;
    else
        tierce__free(push);
    return rc;
}

int tierce__push_begin(struct tierce__push **out, struct tierce_view *view,
                       const struct tierce__push_to *to)
{
    if (strlen(to->ticket) > TIERCE__HANDOVER_TOKEN_MAX)
        return TIERCE_E_ARGUMENT;
    struct tierce__push *push = tierce__calloc(1, sizeof(*push));
    if (push == NULL)
        return -ENOMEM;
    if (view->engine->level_count == 0)
        return begin_lent(out, push, view, to);
    push->engine = view->engine;
    push->wait_ms = to->wait_ms;
    push->timeout_ms = to->timeout_ms;
    atomic_init(&push->end_ns, TIERCE__DEADLINE_NEVER);
    memcpy(push->ticket, to->ticket, strlen(to->ticket));
    tierce__lock_init(&push->lock, TIERCE__LOCK_PUSH);
    tierce__cond_init(&push->changed);
    tierce__list_init(&push->items);
    tierce__list_init(&push->done);
    push->mismatch = tierce__peer_tls_mismatch(push->engine->peer_tls, to->uses_tls);
    tierce__stopper_init(&push->stopper);
    int rc = tierce__transfer_link_create(&push->link, to->host, to->port, TIERCE__PEER_SPACE,
                                          tierce__peer_tls_client(push->engine->peer_tls));
    if (rc == 0) {
        tierce__transfer_link_stop_by(push->link, &push->stopper);
        rc = tierce__thread_start(&push->thread, run, push);
    }
    if (rc == 0) {
        *out = push;
        return 0;
    }
    tierce__transfer_link_destroy(push->link);
    tierce__stopper_fini(&push->stopper);
    tierce__cond_fini(&push->changed);
    tierce__lock_fini(&push->lock);
    tierce__free(push);
    return rc;
}

void tierce__push_end(struct tierce__push *push)
{
    if (push->lent != NULL) {
        tierce__lent_push_end(push->lent);
        return;
    }
    tierce__lock_take(&push->lock);
    push->is_ended = true;
    tierce__cond_broadcast(&push->changed);
    tierce__lock_drop(&push->lock);
}

bool tierce__push_is_over(struct tierce__push *push, struct tierce__pushed *out)
{
    if (push->lent != NULL)
        return tierce__lent_push_is_over(push->lent, out);
    uint64_t end_ns = atomic_load_explicit(&push->end_ns, memory_order_relaxed);
    tierce__lock_take(&push->lock);
    bool is_late = !push->is_over && tierce__now_ns() >= end_ns;
    bool is_over = push->is_over && push->watches == 0;
    if (out != NULL)
        *out = push->pushed;
    tierce__lock_drop(&push->lock);
    if (is_late)
        tierce__stopper_stop(&push->stopper);
    return is_over;
}

void tierce__push_give_up(struct tierce__push *push, uint32_t ms)
{
    uint64_t end_ns = tierce__deadline_in_ms(ms);
    TIERCE_ASSERT(push->lent == NULL);
    if (end_ns < atomic_load_explicit(&push->end_ns, memory_order_relaxed))
        atomic_store_explicit(&push->end_ns, end_ns, memory_order_relaxed);
    tierce__lock_take(&push->lock);
    push->is_given_up = push->is_ended = true;
    tierce__cond_broadcast(&push->changed);
    tierce__lock_drop(&push->lock);
}

/* Waits for the thread until its time is over, and then ends its connection. */
static void end_thread(struct tierce__push *push)
{
    uint64_t end_ns = atomic_load_explicit(&push->end_ns, memory_order_relaxed);
    bool is_late = false;
    tierce__lock_take(&push->lock);
    while (!push->is_over && !is_late)
        is_late = !tierce__cond_wait(&push->changed, &push->lock, end_ns);
    tierce__lock_drop(&push->lock);
    if (is_late)
        tierce__stopper_stop(&push->stopper);
    (void)pthread_join(push->thread, NULL);
}

void tierce__push_destroy(struct tierce__push *push)
{
    if (push == NULL)
        return;
    if (push->lent != NULL) {
        tierce__lent_push_destroy(push->lent);
        tierce__free(push);
        return;
    }
    tierce__push_give_up(push, push->timeout_ms);
    end_thread(push);
    TIERCE_ASSERT(push->watches == 0 && tierce__list_empty(&push->items));
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &push->done)
        free_item(TIERCE__CONTAINER_OF(it, struct item, node));
    tierce__stopper_fini(&push->stopper);
    tierce__cond_fini(&push->changed);
    tierce__lock_fini(&push->lock);
    explicit_bzero(push->ticket, sizeof(push->ticket));
    tierce__free(push);
}
