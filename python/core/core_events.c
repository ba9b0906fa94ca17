/* SPDX-License-Identifier: Apache-2.0 */
#include "python/core/core.h"

#include "engine/observe/kv_batch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/*
 * Changes of an engine's memory and disk, for programs that ask for them now and then. Without
 * questions the queue fills up, and the answer to the next one says that changes were lost.
 */
enum { QUEUE_MAX = 65536, FIRST_ROOM = 1024 };

/* What Python gets: "<QBBHI32s32s". */
struct change {
    uint64_t number;
    uint8_t is_stored;
    uint8_t is_disk;
    uint16_t zero;
    uint32_t blocks;
    uint8_t ns_digest[TIERCE_HASH_BYTES];
    uint8_t hash[TIERCE_HASH_BYTES];
};
_Static_assert(sizeof(struct change) == 80, "Python reads 80 bytes");

struct changes {
    struct change *items;
    size_t count, room, count_max;
    bool has_lost;
};

struct tierce__core_queue {
    pthread_mutex_t mutex;
    struct changes changes; /* under the mutex */
};

/* Chunks of several ranks have parts with equal hashes: they are left out. */
static bool is_of_one_rank(const struct tierce_shard *s)
{
    return s->tp_size == 1 && s->pp_size == 1;
}

static void add(struct changes *c, const struct tierce_event *e)
{
    if (!tierce__kv_is_published(e) || !is_of_one_rank(&e->shard))
        return;
    if (c->count == c->room && c->room < c->count_max) {
        size_t room = c->room > 0 ? 2 * c->room : FIRST_ROOM;
        struct change *grown = realloc(c->items, room * sizeof(*grown));
        if (grown != NULL) {
            c->items = grown;
            c->room = room;
        }
    }
    if (c->count == c->room) {
        c->has_lost = true;
        return;
    }
    struct change *change = &c->items[c->count++];
    *change = (struct change){.number = e->sequence,
                              .is_stored = e->kind == TIERCE_EVENT_ADMIT,
                              .is_disk = strcmp(e->tier, "memory") != 0, /* or coded memory */
                              .blocks = e->block_count};
    memcpy(change->ns_digest, e->ns_digest, sizeof(change->ns_digest));
    memcpy(change->hash, e->hash, sizeof(change->hash));
}

static void on_events(void *arg, const struct tierce_event_batch *batch)
{
    struct tierce__core_queue *queue = arg;
    pthread_mutex_lock(&queue->mutex);
    queue->changes.has_lost |= batch->gap;
    for (size_t i = 0; i < batch->count; i++)
        add(&queue->changes, &batch->events[i]);
    pthread_mutex_unlock(&queue->mutex);
}

/* Frees the items. Other threads of Python run meanwhile: there may be millions. */
static PyObject *bytes_of(struct changes *c)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(c->count * sizeof(*c->items)));
    char *to = bytes != NULL ? PyBytes_AsString(bytes) : NULL;
    Py_BEGIN_ALLOW_THREADS
    if (to != NULL && c->count > 0)
        memcpy(to, c->items, c->count * sizeof(*c->items));
    free(c->items);
    Py_END_ALLOW_THREADS
    return bytes;
}

/* Ends it, unless a call is under way, which then does. */
static void end_events(EventsObject *o)
{
    struct tierce_subscription *subscription = o->subscription;
    if (subscription == NULL || o->calls > 0)
        return;
    o->subscription = NULL;
    Py_BEGIN_ALLOW_THREADS
    tierce_events_unsubscribe(subscription);
    Py_END_ALLOW_THREADS
    pthread_mutex_destroy(&o->queue->mutex);
    free(o->queue->changes.items);
    free(o->queue);
    o->queue = NULL;
}

static void events_dealloc(PyObject *self)
{
    EventsObject *o = (EventsObject *)self;
    end_events(o);
    tierce__core_free(self);
}

PyObject *tierce__core_events(PyObject *self, PyObject *unused)
{
    EngineObject *e = (EngineObject *)self;
    (void)unused;
    if (e->closed)
        return tierce__core_raise_closed("engine");
    EventsObject *o = tierce__core_new(tierce__core_events_type);
    if (o == NULL)
        return NULL;
    o->queue = calloc(1, sizeof(*o->queue));
    if (o->queue == NULL) {
        Py_DECREF((PyObject *)o);
        return PyErr_NoMemory();
    }
    pthread_mutex_init(&o->queue->mutex, NULL);
    o->queue->changes.count_max = QUEUE_MAX;
    const struct tierce_events_opts opts = {
        .size = sizeof(opts), .fn = on_events, .arg = o->queue, .interval_ms = 5};
    int rc = tierce_events_subscribe(&o->subscription, e->engine, &opts);
    if (rc == 0)
        return (PyObject *)o;
    pthread_mutex_destroy(&o->queue->mutex);
    free(o->queue);
    o->queue = NULL;
    Py_DECREF((PyObject *)o);
    return tierce__core_raise(rc, NULL);
}

static PyObject *events_take(PyObject *self, PyObject *unused)
{
    EventsObject *o = (EventsObject *)self;
    (void)unused;
    if (o->subscription == NULL || o->over)
        return tierce__core_raise_closed("subscription");
    pthread_mutex_lock(&o->queue->mutex);
    struct changes taken = o->queue->changes;
    o->queue->changes = (struct changes){.count_max = QUEUE_MAX};
    pthread_mutex_unlock(&o->queue->mutex);
    PyObject *bytes = bytes_of(&taken);
    if (bytes == NULL)
        return NULL;
    PyObject *answer = Py_BuildValue("(OO)", taken.has_lost ? Py_True : Py_False, bytes);
    Py_DECREF(bytes);
    return answer;
}

static void on_contents(void *arg, const struct tierce_event_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        add(arg, &batch->events[i]);
}

static PyObject *events_snapshot(PyObject *self, PyObject *unused)
{
    EventsObject *o = (EventsObject *)self;
    struct changes all = {.count_max = SIZE_MAX / 2};
    uint64_t covered = 0;
    int rc;
    (void)unused;
    if (o->subscription == NULL || o->over)
        return tierce__core_raise_closed("subscription");
    o->calls++;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce_events_snapshot(o->subscription, &covered, on_contents, &all);
    Py_END_ALLOW_THREADS
    o->calls--;
    if (o->over)
        end_events(o);
    if (rc < 0 || all.has_lost) {
        free(all.items);
        return rc < 0 ? tierce__core_raise(rc, NULL) : PyErr_NoMemory();
    }
    PyObject *bytes = bytes_of(&all);
    if (bytes == NULL)
        return NULL;
    PyObject *answer = Py_BuildValue("(KO)", (unsigned long long)covered, bytes);
    Py_DECREF(bytes);
    return answer;
}

static PyObject *events_end(PyObject *self, PyObject *unused)
{
    EventsObject *o = (EventsObject *)self;
    (void)unused;
    o->over = true;
    end_events(o);
    Py_RETURN_NONE;
}

static PyMethodDef events_methods[] = {
    {"take", events_take, METH_NOARGS,
     "take() -> (lost: bool, changes: bytes)\n\n"
     "The changes since the last call, 80 bytes each, \"<QBBHI32s32s\": number, stored or not, on "
     "disk or in memory, 0, blocks, digest of the namespace, hash. lost: some are missing; take a "
     "snapshot."},
    {"snapshot", events_snapshot, METH_NOARGS,
     "snapshot() -> (covered: int, chunks: bytes)\n\n"
     "All chunks in memory and on disk, in the form of take; it contains the effect of all changes "
     "up to that number."},
    {"end", events_end, METH_NOARGS, "end() -> None\n\nEnds the subscription."},
    {NULL, NULL, 0, NULL}};

PyType_Slot tierce__core_events_slots[] = {
    {Py_tp_dealloc, (void *)events_dealloc},
    {Py_tp_methods, events_methods},
    {Py_tp_doc,
     (void *)"Changes of an engine's memory and disk; made by Engine.events. Keeps the "
             "engine open. One thread at a time; a snapshot may be taken on another one."},
    {0, NULL}};
