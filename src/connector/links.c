/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/links.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/lock.h"
#include "connector/connector_private.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define LINKS_MAGIC      0x3b1f70c4u
#define LINKS_MIN        2u
#define BYTES_KEPT       (1u << 20) /* larger copies go with their call */
#define PAGE_FIRST       4096u
#define PAGE_HEAD        2u /* the length before each name */
#define STORE_NAME_BYTES 128u
#define ABORT_MS         2000u

/* The names of a page: a length of two bytes before each. */
struct page {
    char *bytes;
    size_t used, size;
    bool no_memory;
};

/* A call of a link, with copies of all it needs: its request may be answered before it is over. */
struct call {
    enum tierce__connector_op op;
    uint64_t deadline_ns, offset, length;
    struct tierce__buf *buf; /* a reference, or NULL */
    struct tierce__store_name *names;
    size_t name_count, name_room;
    char *text; /* of the names */
    size_t text_room;
    size_t found;
    uint64_t cursor;
    struct page page;
};

struct worker {
    struct links *owner;
    struct tierce__link *link;
    pthread_t thread;
    struct tierce__cond wake;
    struct call call; /* the thread's alone */
    /* Under the lock. */
    struct tierce__connector_req *req; /* the call's, until it is answered */
    bool takes_stores, is_idle, in_call, is_connected;
    uint64_t connects;
};

struct links {
    struct tierce__connector base;
    uint32_t magic;
    struct tierce__connector_ops ops;
    const struct tierce__link_ops *link_ops;
    void *arg;
    uint32_t worker_count, waiting_max;
    struct worker *workers;
    pthread_t clock_thread;
    struct tierce__lock lock;
    /* Under the lock. */
    struct tierce__cond clock, ended;
    struct tierce__list waiting[TIERCE__CONNECTOR_URGENCIES];
    uint32_t waiting_count;
    uint32_t running;   /* threads of workers */
    uint32_t answering; /* workers that are calling done */
    uint32_t holders;   /* of this: the workers' threads, and who has not closed it */
    bool closing, clock_ends;
    uint64_t clock_ns; /* when the clock looks again */
    uint64_t connects;
    char store_name[STORE_NAME_BYTES];
    char why[TIERCE__CONNECTOR_WHY_BYTES];
};

static struct links *links_of(struct tierce__connector *connector)
{
    struct links *links = (struct links *)connector;
    TIERCE_CHECK_MAGIC(links, LINKS_MAGIC);
    return links;
}

static struct tierce__connector_req *req_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__connector_req, node);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void answer(struct tierce__connector_req *req, int status)
{
    req->status = status;
    req->done(req);
}

/* Under no lock. */
static void answer_all(struct tierce__list *reqs, int status)
{
    while (!tierce__list_empty(reqs)) {
        struct tierce__list *node = reqs->next;
        tierce__list_remove(node);
        answer(req_of(node), status);
    }
}

/* Under the lock. */
static void set_why(struct links *links, const char *why)
{
    snprintf(links->why, sizeof(links->why), "%s: %s", links->store_name, why);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static int make_room(void **array, size_t *room, size_t wanted)
{
    if (*room >= wanted)
        return 0;
    void *grown = tierce__realloc(*array, wanted);
    if (grown == NULL)
        return -ENOMEM;
    *array = grown;
    *room = wanted;
    return 0;
}

static int copy_names(struct call *call, const struct tierce__connector_req *req)
{
    size_t bytes = 0, names_bytes = req->name_count * sizeof(*req->names);
    for (size_t i = 0; i < req->name_count; i++)
        bytes += req->names[i].bytes;
    void *names = call->names, *text = call->text;
    int rc = make_room(&names, &call->name_room, names_bytes);
    if (rc == 0)
        rc = make_room(&text, &call->text_room, bytes);
    call->names = names;
    call->text = text;
    char *at = call->text;
    for (size_t i = 0; i < req->name_count && rc == 0; i++) {
        call->names[i] = (struct tierce__store_name){.text = at, .bytes = req->names[i].bytes};
        memcpy(at, req->names[i].text, req->names[i].bytes);
        at += req->names[i].bytes;
    }
    call->name_count = req->name_count;
    return rc;
}

static int prepare(struct call *call, const struct tierce__connector_req *req)
{
    call->op = req->op;
    call->deadline_ns = req->deadline_ns;
    call->offset = req->offset;
    call->length = req->length;
    call->cursor = req->cursor;
    call->found = 0;
    call->page.used = 0;
    call->page.no_memory = false;
    int rc = copy_names(call, req);
    if (rc == 0 && (req->op == TIERCE__CONNECTOR_GET || req->op == TIERCE__CONNECTOR_PUT)) {
        call->buf = req->buf;
        tierce__buf_acquire(call->buf);
    }
    return rc;
}

static void free_copies(struct call *call)
{
    tierce__free(call->names);
    tierce__free(call->text);
    tierce__free(call->page.bytes);
    call->names = NULL;
    call->text = NULL;
    call->page = (struct page){0};
    call->name_room = call->text_room = 0;
}

/* ---- pages of names -------------------------------------------------------------------------- */

static void collect(void *arg, const struct tierce__store_name *name)
{
    struct page *page = arg;
    size_t wanted = page->used + PAGE_HEAD + name->bytes;
    void *bytes = page->bytes;
    if (name->bytes == 0 || name->bytes > TIERCE__CONNECTOR_NAME_MAX)
        return; /* none of ours */
    if (wanted > page->size &&
        make_room(&bytes, &page->size, wanted > PAGE_FIRST ? 2 * wanted : PAGE_FIRST) != 0) {
        page->no_memory = true;
        return;
    }
    page->bytes = bytes;
    uint16_t length = (uint16_t)name->bytes;
    memcpy(page->bytes + page->used, &length, PAGE_HEAD);
    memcpy(page->bytes + page->used + PAGE_HEAD, name->text, name->bytes);
    page->used = wanted;
}

static void tell_page(const struct page *page, const struct tierce__connector_req *req)
{
    for (size_t at = 0; at < page->used;) {
        uint16_t length;
        memcpy(&length, page->bytes + at, PAGE_HEAD);
        req->each(req->arg, &(struct tierce__store_name){.text = page->bytes + at + PAGE_HEAD,
                                                         .bytes = length});
        at += PAGE_HEAD + length;
    }
}

/* ---- workers --------------------------------------------------------------------------------- */

/* The most urgent request that this worker takes. Under the lock. */
static struct tierce__connector_req *next_req(struct links *links, const struct worker *worker)
{
    for (size_t i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++) {
        struct tierce__list *list = &links->waiting[i];
        if (tierce__list_empty(list) || (i == TIERCE__CONNECTOR_STORE && !worker->takes_stores))
            continue;
        struct tierce__list *node = list->next;
        tierce__list_remove(node);
        links->waiting_count--;
        return req_of(node);
    }
    return NULL;
}

/* As many names at a time as the link takes, up to the first that is not there. */
static int ask_exists(const struct tierce__link_ops *ops, struct tierce__link *link,
                      struct call *call)
{
    size_t most = ops->exists_max > 0 ? ops->exists_max : SIZE_MAX, some = 0, there = 0;
    int rc = 0;
    while (rc == 0 && there == some && call->found < call->name_count) {
        some = (size_t)least(call->name_count - call->found, most);
        there = 0;
        rc = ops->exists(link, call->names + call->found, some, &there, call->deadline_ns);
        TIERCE_ASSERT(there <= some);
        call->found += rc == 0 ? there : 0;
    }
    return rc;
}

static int make_call(const struct links *links, struct tierce__link *link, struct call *call)
{
    static const struct tierce__store_name no_name = {.text = ""};
    const struct tierce__link_ops *ops = links->link_ops;
    const struct tierce__store_name *name = call->name_count > 0 ? call->names : &no_name;
    uint64_t deadline_ns = call->deadline_ns;
    switch (call->op) {
    case TIERCE__CONNECTOR_EXISTS:
        return ask_exists(ops, link, call);
    case TIERCE__CONNECTOR_GET:
        return ops->get(link, name, call->buf->data + call->offset, call->offset, call->length,
                        deadline_ns);
    case TIERCE__CONNECTOR_PUT:
        return ops->put(link, name, call->buf->data, call->length, deadline_ns);
    case TIERCE__CONNECTOR_DELETE:
        return ops->remove(link, name, deadline_ns);
    case TIERCE__CONNECTOR_LIST: {
        int rc = ops->list(link, name, &call->cursor, collect, &call->page, deadline_ns);
        return rc == 0 && call->page.no_memory ? -ENOMEM : rc;
    }
    case TIERCE__CONNECTOR_PING:
    default:
        return ops->ping(link, deadline_ns);
    }
}

/* What the call has brought, for its request. Under no lock. */
static void hand_over(struct call *call, struct tierce__connector_req *req, int rc)
{
    if (rc == 0) {
        req->found = call->found;
        req->cursor = call->cursor;
        if (call->op == TIERCE__CONNECTOR_LIST)
            tell_page(&call->page, req);
    }
    answer(req, rc);
}

/* After a call. Under the lock. */
static void note_call(struct links *links, struct worker *worker, int rc)
{
    uint64_t connects = links->link_ops->connects(worker->link);
    links->connects += connects - worker->connects;
    worker->connects = connects;
    worker->is_connected = links->link_ops->is_connected(worker->link);
    worker->in_call = false;
    if (rc == 0 || rc == TIERCE_E_MISS)
        return;
    const char *why = links->link_ops->why(worker->link);
    set_why(links, why != NULL && why[0] != '\0' ? why : tierce_strerror(rc));
}

/* One request, taken with the lock held, which is held again at the end. */
static void serve(struct links *links, struct worker *worker, struct tierce__connector_req *req)
{
    struct call *call = &worker->call;
    int rc = prepare(call, req);
    if (rc == 0) {
        worker->req = req;
        worker->in_call = true;
        tierce__lock_drop(&links->lock);
        rc = make_call(links, worker->link, call);
        tierce__lock_take(&links->lock);
        note_call(links, worker, rc);
        req = worker->req; /* NULL: it was answered at its deadline */
        worker->req = NULL;
    }
    links->answering++;
    tierce__lock_drop(&links->lock);
    tierce__buf_release(call->buf);
    call->buf = NULL;
    if (req != NULL)
        hand_over(call, req, rc);
    if (call->page.size + call->name_room + call->text_room > BYTES_KEPT)
        free_copies(call);
    tierce__lock_take(&links->lock);
    links->answering--;
    if (links->closing)
        tierce__cond_signal(&links->ended);
}

static void destroy(struct links *links)
{
    for (uint32_t i = 0; i < links->worker_count; i++) {
        struct worker *worker = &links->workers[i];
        if (worker->link != NULL)
            links->link_ops->destroy(worker->link);
        free_copies(&worker->call);
        tierce__cond_fini(&worker->wake);
    }
    links->link_ops->end(links->arg);
    tierce__cond_fini(&links->clock);
    tierce__cond_fini(&links->ended);
    tierce__lock_fini(&links->lock);
    links->magic = 0;
    tierce__free(links->workers);
    tierce__free(links);
}

/* With the lock held, which is gone with the last holder. */
static void let_go(struct links *links)
{
    bool is_last = --links->holders == 0;
    tierce__lock_drop(&links->lock);
    if (is_last)
        destroy(links);
}

/* Wakes one that is idle and may take it. Under the lock. */
static void wake_one(struct links *links, enum tierce__connector_urgency urgency)
{
    for (uint32_t i = 0; i < links->worker_count; i++) {
        struct worker *worker = &links->workers[i];
        if (worker->is_idle && (worker->takes_stores || urgency != TIERCE__CONNECTOR_STORE)) {
            worker->is_idle = false;
            tierce__cond_signal(&worker->wake);
            return;
        }
    }
}

/* Whoever takes a request may not be whom it was for: the next one needs somebody too. Under the
 * lock. */
static void wake_more(struct links *links)
{
    for (unsigned i = 0; links->waiting_count > 0 && i < TIERCE__CONNECTOR_URGENCIES; i++) {
        if (!tierce__list_empty(&links->waiting[i]))
            wake_one(links, (enum tierce__connector_urgency)i);
    }
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    struct links *links = worker->owner;
    tierce__lock_take(&links->lock);
    for (;;) {
        struct tierce__connector_req *req = next_req(links, worker);
        if (req != NULL) {
            wake_more(links);
            serve(links, worker, req);
            continue;
        }
        if (links->closing)
            break;
        worker->is_idle = true;
        tierce__cond_wait(&worker->wake, &links->lock, TIERCE__DEADLINE_NEVER);
        worker->is_idle = false;
    }
    links->running--;
    tierce__cond_signal(&links->ended);
    let_go(links);
    return NULL;
}

/* ---- the clock ------------------------------------------------------------------------------- */

/* Moves what is over to `expired`, and finds out when the next is. Under the lock. */
static void expire(struct links *links, uint64_t now, struct tierce__list *expired)
{
    uint64_t next = TIERCE__DEADLINE_NEVER;
    for (size_t i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++) {
        TIERCE__LIST_FOR_EACH_SAFE (node, after, &links->waiting[i]) {
            if (req_of(node)->deadline_ns > now) {
                next = least(next, req_of(node)->deadline_ns);
                continue;
            }
            tierce__list_remove(node);
            tierce__list_push_back(expired, node);
            links->waiting_count--;
            set_why(links, "all connections were busy until the deadline");
        }
    }
    for (uint32_t i = 0; i < links->worker_count; i++) {
        struct worker *worker = &links->workers[i];
        if (worker->req == NULL)
            continue;
        if (worker->req->deadline_ns > now) {
            next = least(next, worker->req->deadline_ns);
            continue;
        }
        tierce__list_push_back(expired, &worker->req->node);
        worker->req = NULL;
        set_why(links, "no answer by the deadline");
    }
    links->clock_ns = next;
}

static void *watch_deadlines(void *arg)
{
    struct links *links = arg;
    tierce__lock_take(&links->lock);
    while (!links->clock_ends) {
        struct tierce__list expired;
        tierce__list_init(&expired);
        expire(links, tierce__now_ns(), &expired);
        if (tierce__list_empty(&expired)) {
            tierce__cond_wait(&links->clock, &links->lock, links->clock_ns);
            continue;
        }
        tierce__lock_drop(&links->lock);
        answer_all(&expired, TIERCE_E_DEADLINE);
        tierce__lock_take(&links->lock);
    }
    tierce__lock_drop(&links->lock);
    return NULL;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Under the lock. */
static int enqueue(struct links *links, struct tierce__connector_req *req)
{
    if (links->closing)
        return TIERCE_E_CLOSED;
    if (links->waiting_count >= links->waiting_max) {
        set_why(links, "too many requests wait");
        return TIERCE_E_LIMIT;
    }
    tierce__list_push_back(&links->waiting[req->urgency], &req->node);
    links->waiting_count++;
    wake_one(links, req->urgency);
    if (req->deadline_ns < links->clock_ns)
        tierce__cond_signal(&links->clock);
    return 0;
}

static void submit(struct tierce__connector *connector, struct tierce__connector_req *req)
{
    struct links *links = links_of(connector);
    req->found = 0;
    tierce__list_init(&req->node);
    int rc = tierce__connector_check(req, links->base.caps);
    if (rc == 0 && req->deadline_ns <= tierce__now_ns())
        rc = TIERCE_E_DEADLINE;
    if (rc == 0) {
        tierce__lock_take(&links->lock);
        rc = enqueue(links, req);
        tierce__lock_drop(&links->lock);
    }
    if (rc != 0)
        answer(req, rc);
}

static void get_why(struct tierce__connector *connector, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct links *links = links_of(connector);
    tierce__lock_take(&links->lock);
    memcpy(why, links->why, sizeof(links->why));
    tierce__lock_drop(&links->lock);
}

static void get_stats(struct tierce__connector *connector, struct tierce__connector_stats *out)
{
    struct links *links = links_of(connector);
    struct tierce__connector_stats stats = {0};
    tierce__lock_take(&links->lock);
    stats.connects = links->connects;
    stats.requests_waiting = links->waiting_count;
    for (uint32_t i = 0; i < links->worker_count; i++) {
        const struct worker *worker = &links->workers[i];
        stats.connections += worker->is_connected;
        stats.requests_left_behind += worker->in_call && worker->req == NULL;
    }
    tierce__lock_drop(&links->lock);
    *out = stats;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Everything that waits. Under the lock. */
static void take_waiting(struct links *links, struct tierce__list *out)
{
    for (size_t i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++) {
        TIERCE__LIST_FOR_EACH_SAFE (node, after, &links->waiting[i]) {
            tierce__list_remove(node);
            tierce__list_push_back(out, node);
        }
    }
    links->waiting_count = 0;
}

/* Everything that is under way. Under the lock. */
static void take_running(struct links *links, struct tierce__list *out)
{
    for (uint32_t i = 0; i < links->worker_count; i++) {
        struct worker *worker = &links->workers[i];
        if (worker->req != NULL)
            tierce__list_push_back(out, &worker->req->node);
        worker->req = NULL;
    }
}

/* Until all workers have ended; false: the deadline has passed, and those that are not calling done
 * have not come back. Under the lock. */
static bool await_workers(struct links *links, uint64_t deadline_ns)
{
    bool in_time = true;
    while (links->running > 0 && in_time)
        in_time = tierce__cond_wait(&links->ended, &links->lock, deadline_ns);
    while (links->answering > 0) /* not for long: done does not block */
        tierce__cond_wait(&links->ended, &links->lock, TIERCE__DEADLINE_NEVER);
    return links->running == 0;
}

static bool close_links(struct tierce__connector *connector, uint64_t deadline_ns)
{
    struct links *links = links_of(connector);
    struct tierce__list cancelled;
    tierce__list_init(&cancelled);
    tierce__lock_take(&links->lock);
    links->closing = true;
    take_waiting(links, &cancelled);
    for (uint32_t i = 0; i < links->worker_count; i++)
        tierce__cond_signal(&links->workers[i].wake);
    tierce__lock_drop(&links->lock);
    answer_all(&cancelled, TIERCE_E_CANCELLED);

    tierce__lock_take(&links->lock);
    bool all = await_workers(links, deadline_ns);
    take_running(links, &cancelled);
    links->clock_ends = true;
    tierce__cond_signal(&links->clock);
    tierce__lock_drop(&links->lock);
    answer_all(&cancelled, TIERCE_E_CANCELLED);
    pthread_join(links->clock_thread, NULL);
    if (!all && links->link_ops->abort != NULL) {
        links->link_ops->abort(links->arg);
        tierce__lock_take(&links->lock);
        all = await_workers(links, tierce__deadline_in_ms(ABORT_MS));
        tierce__lock_drop(&links->lock);
    }
    for (uint32_t i = 0; i < links->worker_count; i++) {
        if (all)
            pthread_join(links->workers[i].thread, NULL);
        else
            pthread_detach(links->workers[i].thread);
    }
    tierce__lock_take(&links->lock);
    let_go(links);
    return all;
}

/* Links and threads. What was made is ended by close_links. */
static int start(struct links *links, uint32_t count)
{
    int rc = pthread_create(&links->clock_thread, NULL, watch_deadlines, links);
    if (rc != 0) {
        tierce__lock_take(&links->lock);
        let_go(links);
        return -rc;
    }
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        struct worker *worker = &links->workers[i];
        worker->owner = links;
        worker->takes_stores = i > 0;
        rc = links->link_ops->create(&worker->link, links->arg);
        if (rc != 0)
            break;
        tierce__cond_init(&worker->wake);
        tierce__lock_take(&links->lock);
        rc = -pthread_create(&worker->thread, NULL, work, worker);
        links->worker_count += rc == 0;
        links->running += rc == 0;
        links->holders += rc == 0;
        tierce__lock_drop(&links->lock);
        if (rc != 0) {
            tierce__cond_fini(&worker->wake);
            links->link_ops->destroy(worker->link);
        }
    }
    if (rc != 0)
        close_links(&links->base, TIERCE__DEADLINE_NEVER);
    return rc;
}

int tierce__links_create(struct tierce__connector **out, const struct tierce__links_opts *opts)
{
    TIERCE_ASSERT(opts->links >= LINKS_MIN && opts->links <= TIERCE__LINKS_MAX);
    TIERCE_ASSERT(opts->waiting_max > 0);
    struct links *links = tierce__calloc(1, sizeof(*links));
    struct worker *workers = tierce__calloc(opts->links, sizeof(*workers));
    if (links == NULL || workers == NULL) {
        tierce__free(links);
        tierce__free(workers);
        opts->ops->end(opts->arg);
        return -ENOMEM;
    }
    links->magic = LINKS_MAGIC;
    links->ops = (struct tierce__connector_ops){.scheme = opts->ops->scheme,
                                                .submit = submit,
                                                .why = get_why,
                                                .stats = get_stats,
                                                .close = close_links};
    links->base = (struct tierce__connector){.ops = &links->ops, .caps = opts->ops->caps};
    links->link_ops = opts->ops;
    links->arg = opts->arg;
    links->workers = workers;
    links->waiting_max = opts->waiting_max;
    links->holders = 1;
    links->clock_ns = TIERCE__DEADLINE_NEVER;
    snprintf(links->store_name, sizeof(links->store_name), "%s", opts->store_name);
    tierce__lock_init(&links->lock, TIERCE__LOCK_CONNECTOR);
    tierce__cond_init(&links->clock);
    tierce__cond_init(&links->ended);
    for (size_t i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++)
        tierce__list_init(&links->waiting[i]);
    int rc = start(links, opts->links);
    if (rc == 0)
        *out = &links->base;
    return rc;
}
