/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "store_connector.h"

#include "base/clock.h"
#include "test_random.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { OPS = TIERCE__STORE_PING + 1, PAGE = 7 };

struct object {
    struct object *next;
    uint64_t number; /* in the order of the writes, from 1 */
    char *name;
    size_t name_bytes;
    uint8_t *bytes;
    uint64_t count;
};

struct store_connector {
    struct tierce__connector base;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct object *objects; /* the newest first */
    uint64_t numbers;
    struct tierce__list held, late;
    bool holds[OPS];
    struct {
        int status;
        unsigned times;
        bool after;
    } fails[OPS];
    bool repeats, connects, misses_behind;
    unsigned counts[OPS];
    enum tierce__connector_urgency urgency;
    enum tierce__tier_left left;
    unsigned late_ms;
    bool closing, has_thread;
    bool is_invalid;
    unsigned answering;
    pthread_t thread;
    struct test_random random;
};

static struct object **find(struct store_connector *store, const struct tierce_plugin_name *name)
{
    struct object **at = &store->objects;
    while (*at != NULL &&
           ((*at)->name_bytes != name->bytes || memcmp((*at)->name, name->text, name->bytes) != 0))
        at = &(*at)->next;
    return at;
}

static void drop(struct object **at)
{
    struct object *object = *at;
    *at = object->next;
    free(object->name);
    free(object->bytes);
    free(object);
}

static void *copy(const void *bytes, size_t count)
{
    void *memory = malloc(count + 1);
    ck_assert_ptr_nonnull(memory);
    memcpy(memory, bytes, count);
    return memory;
}

static void put(struct store_connector *store, struct tierce__store_req *req)
{
    struct object **at = find(store, req->names);
    if (*at != NULL && (store->base.caps & TIERCE__CONNECTOR_ASKS) != 0) {
        req->found = 1;
        return;
    }
    if (*at != NULL)
        drop(at);
    struct object *object = calloc(1, sizeof(*object));
    ck_assert_ptr_nonnull(object);
    *object = (struct object){.next = store->objects,
                              .number = ++store->numbers,
                              .name = copy(req->names->text, req->names->bytes),
                              .name_bytes = req->names->bytes,
                              .bytes = copy(req->buf->data, req->length),
                              .count = req->length};
    store->objects = object;
}

static int get(struct store_connector *store, struct tierce__store_req *req)
{
    const struct object *object = *find(store, req->names);
    if (object == NULL)
        return TIERCE_E_MISS;
    if (store->misses_behind && req->offset >= object->count)
        return TIERCE_E_MISS;
    bool has_forms = (store->base.caps & TIERCE__CONNECTOR_FORMS) != 0;
    if (has_forms && req->object_bytes != 0 && req->object_bytes != object->count)
        return TIERCE_E_MISS;
    if (req->takes_shorter) {
        if (object->count > req->length)
            return TIERCE_E_FORMAT;
        req->object_bytes = object->count;
        memcpy(req->buf->data, object->bytes, object->count);
        return 0;
    }
    if (req->offset > object->count || req->length > object->count - req->offset)
        return TIERCE_E_FORMAT;
    memcpy(req->buf->data + req->offset, object->bytes + req->offset, req->length);
    if (has_forms)
        req->object_bytes = object->count;
    return 0;
}

/* From the newest on. The cursor is the number of the object listed last, so deleting listed ones
 * skips none. */
static void list(struct store_connector *store, struct tierce__store_req *req)
{
    uint64_t from = req->cursor > 0 ? req->cursor : UINT64_MAX, told = 0, last = 0;
    req->cursor = 0;
    for (const struct object *o = store->objects; o != NULL; o = o->next) {
        struct tierce_plugin_name name = {o->name, o->name_bytes};
        if (o->number >= from)
            continue;
        if (req->name_count > 0 && (name.bytes < req->names->bytes ||
                                    memcmp(name.text, req->names->text, req->names->bytes) != 0))
            continue;
        if (told == PAGE) {
            req->cursor = last;
            return;
        }
        last = o->number;
        req->each(req->arg, &name);
        told++;
    }
}

/* Under the mutex. */
static void carry_out(struct store_connector *store, struct tierce__store_req *req)
{
    unsigned op = (unsigned)req->op;
    bool fails = store->fails[op].times > 0;
    store->fails[op].times -= fails;
    req->status = fails ? store->fails[op].status : 0;
    req->repeats = fails && store->repeats;
    req->connected = store->connects;
    if (fails && !store->fails[op].after)
        return;
    switch (req->op) {
    case TIERCE__STORE_LOOKUP:
        req->found = 0;
        while (req->found < req->name_count && *find(store, &req->names[req->found]) != NULL)
            req->found++;
        if (req->name_count == 1 && req->found == 1)
            req->object_bytes = (*find(store, req->names))->count;
        break;
    case TIERCE__STORE_GET: {
        req->guard.of = store;
        int status = get(store, req);
        req->status = fails ? req->status : status;
        break;
    }
    case TIERCE__STORE_PUT:
        put(store, req);
        break;
    case TIERCE__STORE_DELETE: {
        struct object **at = find(store, req->names);
        if ((store->base.caps & TIERCE__CONNECTOR_NO_DELETE) != 0)
            req->status = TIERCE_E_UNSUPPORTED;
        else if (*at != NULL)
            drop(at);
        break;
    }
    case TIERCE__STORE_LIST:
        list(store, req);
        break;
    case TIERCE__STORE_PING:
        break;
    case TIERCE__STORE_HIDE:
    case TIERCE__STORE_SHOW:
    case TIERCE__STORE_FLUSH:
    case TIERCE__STORE_CLEAR:
    case TIERCE__STORE_SIBLINGS:
        ck_abort_msg("a connector has no such operation");
    }
}

static struct tierce__store_req *req_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__store_req, node);
}

static void answer(struct store_connector *store, struct tierce__store_req *req)
{
    pthread_mutex_lock(&store->mutex);
    carry_out(store, req);
    pthread_mutex_unlock(&store->mutex);
    req->done(req);
}

static void submit(struct tierce__connector *base, struct tierce__store_req *req)
{
    struct store_connector *store = (struct store_connector *)base;
    pthread_mutex_lock(&store->mutex);
    store->counts[req->op]++;
    store->urgency = req->urgency;
    if (req->op == TIERCE__STORE_DELETE)
        store->left = req->left;
    bool closing = store->closing;
    bool waits = !closing && (store->holds[req->op] || store->late_ms > 0);
    if (!closing && store->holds[req->op])
        tierce__list_push_back(&store->held, &req->node);
    else if (waits)
        tierce__list_push_back(&store->late, &req->node);
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->mutex);
    if (closing) {
        req->status = TIERCE_E_CLOSED;
        req->done(req);
    } else if (!waits) {
        answer(store, req);
    }
}

static void *run_late(void *arg)
{
    struct store_connector *store = arg;
    pthread_mutex_lock(&store->mutex);
    for (;;) {
        while (tierce__list_empty(&store->late) && !store->closing)
            pthread_cond_wait(&store->changed, &store->mutex);
        if (tierce__list_empty(&store->late))
            break;
        /* Any of the first four. */
        struct tierce__list *node = store->late.next;
        for (uint32_t n = test_random_below(&store->random, 4); n > 0; n--)
            node = node->next != &store->late ? node->next : node;
        tierce__list_remove(node);
        struct timespec nap = {
            0, (long)test_random_below(&store->random, store->late_ms * 1000000u + 1)};
        pthread_mutex_unlock(&store->mutex);
        nanosleep(&nap, NULL);
        answer(store, req_of(node));
        pthread_mutex_lock(&store->mutex);
    }
    pthread_mutex_unlock(&store->mutex);
    return NULL;
}

static void why(struct tierce__connector *base, char text[TIERCE__CONNECTOR_WHY_BYTES])
{
    (void)base;
    text[0] = '\0';
}

static void stats(struct tierce__connector *base, struct tierce__tier_stats *out)
{
    (void)base;
    out->connections = 3;
    out->connects = 5;
    out->waiting = 7;
    out->calls_hanging = 1;
}

static bool close_store(struct tierce__connector *base, uint64_t deadline_ns)
{
    (void)deadline_ns;
    struct store_connector *store = (struct store_connector *)base;
    pthread_mutex_lock(&store->mutex);
    store->closing = true;
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->mutex);
    if (store->has_thread)
        pthread_join(store->thread, NULL);
    while (!tierce__list_empty(&store->held)) {
        struct tierce__store_req *req = req_of(store->held.next);
        tierce__list_remove(&req->node);
        req->status = TIERCE_E_CANCELLED;
        req->done(req);
    }
    while (store->objects != NULL)
        drop(&store->objects);
    free(store);
    return true;
}

enum tierce__connector_urgency store_connector_urgency(struct store_connector *store)
{
    pthread_mutex_lock(&store->mutex);
    enum tierce__connector_urgency urgency = store->urgency;
    pthread_mutex_unlock(&store->mutex);
    return urgency;
}

static const struct tierce__connector_ops ops = {
    .scheme = "store", .submit = submit, .why = why, .stats = stats, .close = close_store};

static bool answer_begin(struct tierce__connector *base, const struct tierce__store_guard *guard)
{
    struct store_connector *store = (struct store_connector *)base;
    ck_assert_ptr_eq(guard->of, store);
    pthread_mutex_lock(&store->mutex);
    bool may = !store->is_invalid;
    store->answering += may;
    pthread_mutex_unlock(&store->mutex);
    return may;
}

static void answer_end(struct tierce__connector *base, const struct tierce__store_guard *guard)
{
    struct store_connector *store = (struct store_connector *)base;
    ck_assert_ptr_eq(guard->of, store);
    pthread_mutex_lock(&store->mutex);
    ck_assert_uint_gt(store->answering, 0);
    store->answering--;
    pthread_mutex_unlock(&store->mutex);
}

static const struct tierce__connector_ops guarded = {.scheme = "store",
                                                     .submit = submit,
                                                     .why = why,
                                                     .stats = stats,
                                                     .answer_begin = answer_begin,
                                                     .answer_end = answer_end,
                                                     .close = close_store};

void store_connector_set_guarded(struct store_connector *store)
{
    store->base.ops = &guarded;
}

void store_connector_invalidate(struct store_connector *store)
{
    pthread_mutex_lock(&store->mutex);
    store->is_invalid = true;
    pthread_mutex_unlock(&store->mutex);
}

struct store_connector *store_connector_create(bool ranges)
{
    struct store_connector *store = calloc(1, sizeof(*store));
    ck_assert_ptr_nonnull(store);
    store->base.ops = &ops;
    store->base.caps = TIERCE__CONNECTOR_LISTS |
                       (ranges ? TIERCE__CONNECTOR_RANGES : TIERCE__CONNECTOR_TELLS_LENGTH);
    pthread_mutex_init(&store->mutex, NULL);
    pthread_cond_init(&store->changed, NULL);
    tierce__list_init(&store->held);
    tierce__list_init(&store->late);
    store->random = (struct test_random){42};
    return store;
}

struct tierce__connector *store_connector_base(struct store_connector *store)
{
    return &store->base;
}

void store_connector_set_late(struct store_connector *store, unsigned ms)
{
    store->late_ms = ms;
    store->has_thread = true;
    ck_assert_int_eq(pthread_create(&store->thread, NULL, run_late, store), 0);
}

void store_connector_mark(struct store_connector *store, bool repeats, bool connected)
{
    pthread_mutex_lock(&store->mutex);
    store->repeats = repeats;
    store->connects = connected;
    pthread_mutex_unlock(&store->mutex);
}

void store_connector_hold(struct store_connector *store, enum tierce__store_op op)
{
    pthread_mutex_lock(&store->mutex);
    store->holds[op] = true;
    pthread_mutex_unlock(&store->mutex);
}

static bool ends_with(const struct tierce_plugin_name *name, const char *ending)
{
    size_t bytes = strlen(ending);
    return name->bytes >= bytes && memcmp(name->text + name->bytes - bytes, ending, bytes) == 0;
}

bool store_connector_let_one_go(struct store_connector *store, const char *ending)
{
    struct tierce__store_req *found = NULL;
    pthread_mutex_lock(&store->mutex);
    TIERCE__LIST_FOR_EACH (it, &store->held) {
        if (found == NULL && (ending == NULL || ends_with(req_of(it)->names, ending)))
            found = req_of(it);
    }
    if (found != NULL)
        tierce__list_remove(&found->node);
    pthread_mutex_unlock(&store->mutex);
    if (found != NULL)
        answer(store, found);
    return found != NULL;
}

size_t store_connector_let_go(struct store_connector *store)
{
    size_t count = 0;
    pthread_mutex_lock(&store->mutex);
    memset(store->holds, 0, sizeof(store->holds));
    pthread_mutex_unlock(&store->mutex);
    while (store_connector_let_one_go(store, NULL))
        count++;
    return count;
}

size_t store_connector_held(struct store_connector *store)
{
    size_t count = 0;
    pthread_mutex_lock(&store->mutex);
    TIERCE__LIST_FOR_EACH (it, &store->held)
        count++;
    pthread_mutex_unlock(&store->mutex);
    return count;
}

void store_connector_fail(struct store_connector *store, enum tierce__store_op op, int status,
                          unsigned times, bool after)
{
    pthread_mutex_lock(&store->mutex);
    store->fails[op].status = status;
    store->fails[op].times = times;
    store->fails[op].after = after;
    pthread_mutex_unlock(&store->mutex);
}

void store_connector_set_asks(struct store_connector *store)
{
    store->base.caps |= TIERCE__CONNECTOR_ASKS;
}

enum tierce__tier_left store_connector_left(struct store_connector *store)
{
    pthread_mutex_lock(&store->mutex);
    enum tierce__tier_left left = store->left;
    pthread_mutex_unlock(&store->mutex);
    return left;
}

void store_connector_set_misses_behind(struct store_connector *store)
{
    store->misses_behind = true;
    store->base.caps |= TIERCE__CONNECTOR_EMPTY_MISSES;
}

void store_connector_set_forms(struct store_connector *store)
{
    store->base.caps |= TIERCE__CONNECTOR_FORMS;
}

void store_connector_set_keeps(struct store_connector *store)
{
    store->base.caps |= TIERCE__CONNECTOR_NO_DELETE;
}

size_t store_connector_objects(struct store_connector *store)
{
    size_t count = 0;
    pthread_mutex_lock(&store->mutex);
    for (const struct object *o = store->objects; o != NULL; o = o->next)
        count++;
    pthread_mutex_unlock(&store->mutex);
    return count;
}

unsigned store_connector_count(struct store_connector *store, enum tierce__store_op op)
{
    pthread_mutex_lock(&store->mutex);
    unsigned count = store->counts[op];
    pthread_mutex_unlock(&store->mutex);
    return count;
}

void store_connector_cut(struct store_connector *store, uint64_t bytes)
{
    pthread_mutex_lock(&store->mutex);
    for (struct object *o = store->objects; o != NULL; o = o->next)
        o->count = o->count < bytes ? o->count : bytes;
    pthread_mutex_unlock(&store->mutex);
}
