/* SPDX-License-Identifier: Apache-2.0 */
/* Writing chunks to another engine while they are computed (engine/handover/handover_push.h), and
 * the tickets for it: the type Push, and methods of Engine and View. */
#include "python/core/core.h"

#include "engine/handover/handover_inbox.h"
#include "engine/handover/handover_push.h"

#define TICKETS_MAX 256u /* of one call */

/* ---- Engine: the inbox ----------------------------------------------------------------------- */

PyObject *tierce__core_handover_accept(PyObject *self, PyObject *args)
{
    EngineObject *e = (EngineObject *)self;
    struct tierce__inbox_opts opts = {.size = sizeof(opts)};
    char why[TIERCE__HANDOVER_WHY_BYTES];
    int rc;
    if (!PyArg_ParseTuple(args, "sO&O&", &opts.hosts, tierce__core_uint32, &opts.share,
                          tierce__core_uint32, &opts.hold_ms))
        return NULL;
    if (e->closed || e->handover == NULL)
        return tierce__core_raise_closed("engine's handover");
    if (tierce__handover_inbox(e->handover) != NULL)
        return tierce__core_raise_busy("engine's inbox");
    e->flushes++; /* the engine, and its handover, stay meanwhile */
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__handover_accept(e->handover, &opts, why);
    Py_END_ALLOW_THREADS
    tierce__core_end_use(e);
    return rc < 0 ? tierce__core_raise(rc, why[0] != '\0' ? why : NULL) : Py_NewRef(Py_None);
}

PyObject *tierce__core_handover_tickets(PyObject *self, PyObject *args)
{
    EngineObject *e = (EngineObject *)self;
    uint32_t count, ms;
    const char *holder = "";
    char tickets[TICKETS_MAX][TIERCE__TICKET_BYTES];
    if (!PyArg_ParseTuple(args, "O&O&|s", tierce__core_uint32, &count, tierce__core_uint32, &ms,
                          &holder))
        return NULL;
    if (e->closed || e->handover == NULL)
        return tierce__core_raise_closed("engine's inbox");
    int made;
    e->flushes++; /* the engine, and its handover, stay meanwhile */
    Py_BEGIN_ALLOW_THREADS
    made = tierce__handover_issue(e->handover, tickets, count < TICKETS_MAX ? count : TICKETS_MAX,
                                  ms, holder);
    Py_END_ALLOW_THREADS
    tierce__core_end_use(e);
    if (made < 0)
        return tierce__core_raise(made, NULL);
    PyObject *out = PyList_New(made);
    for (int i = 0; out != NULL && i < made; i++) {
        PyObject *text = PyUnicode_FromString(tickets[i]);
        if (text == NULL || PyList_SetItem(out, i, text) < 0) /* it takes the reference */
            Py_CLEAR(out);
    }
    return out;
}

static int put_number(PyObject *dict, const char *name, uint64_t value)
{
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    int rc = number != NULL ? PyDict_SetItemString(dict, name, number) : -1;
    Py_XDECREF(number);
    return rc;
}

PyObject *tierce__core_inbox_stats(PyObject *self, PyObject *unused)
{
    EngineObject *e = (EngineObject *)self;
    struct tierce__inbox_stats s;
    (void)unused;
    struct tierce__inbox *inbox =
        e->closed || e->handover == NULL ? NULL : tierce__handover_inbox(e->handover);
    if (inbox == NULL)
        return tierce__core_raise_closed("engine's inbox");
    tierce__inbox_stats(inbox, &s);
    PyObject *out = PyDict_New();
#define TIERCE_INBOX_STAT(field, metric, label, value, is_counter, text)                           \
    if (out != NULL && put_number(out, #field, s.field) < 0)                                       \
        Py_CLEAR(out);
#include "engine/handover/inbox_stats.def"
#undef TIERCE_INBOX_STAT
    return out;
}

/* ---- Push ------------------------------------------------------------------------------------ */

PyObject *tierce__core_push_begin(PyObject *self, PyObject *args)
{
    ViewObject *v = (ViewObject *)self;
    struct tierce__push_to to = {0};
    int uses_tls = 0;
    if (!PyArg_ParseTuple(args, "sO&sO&O&|p", &to.host, tierce__core_uint16, &to.port, &to.ticket,
                          tierce__core_uint32, &to.wait_ms, tierce__core_uint32, &to.timeout_ms,
                          &uses_tls))
        return NULL;
    to.uses_tls = uses_tls != 0;
    PushObject *p = tierce__core_new(tierce__core_push_type);
    if (p == NULL)
        return NULL;
    EngineObject *e = (EngineObject *)v->engine;
    int rc;
    e->flushes++; /* the engine stays until the push is closed */
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__push_begin(&p->push, v->view, &to);
    Py_END_ALLOW_THREADS
    if (rc == 0) {
        p->view = Py_NewRef(self);
        return (PyObject *)p;
    }
    tierce__core_end_use(e);
    Py_DECREF(p);
    return tierce__core_raise(rc, NULL);
}

/* Closes it, unless a call is under way, which then does. */
static void close_push(PushObject *p)
{
    struct tierce__push *push = p->push;
    if (push == NULL || p->calls > 0)
        return;
    p->push = NULL;
    Py_BEGIN_ALLOW_THREADS
    tierce__push_destroy(push);
    Py_END_ALLOW_THREADS
    tierce__core_end_use((EngineObject *)((ViewObject *)p->view)->engine);
}

/* Begins a call without the GIL: the push stays until end_call. NULL with an exception set. */
static struct tierce__push *begin_call(PushObject *p)
{
    if (p->push == NULL || p->over) {
        (void)tierce__core_raise_closed("push");
        return NULL;
    }
    p->calls++;
    return p->push;
}

static void end_call(PushObject *p)
{
    p->calls--;
    if (p->over)
        close_push(p);
}

static void push_dealloc(PyObject *self)
{
    PushObject *p = (PushObject *)self;
    close_push(p);
    Py_XDECREF(p->view);
    tierce__core_free(self);
}

static PyObject *push_watch(PyObject *self, PyObject *object)
{
    PushObject *p = (PushObject *)self;
    if (!PyObject_TypeCheck(object, tierce__core_store_type)) {
        PyErr_SetString(PyExc_TypeError, "expected a Store");
        return NULL;
    }
    StoreObject *s = (StoreObject *)object;
    if (s->store == NULL)
        return tierce__core_raise_closed("store");
    if (s->busy || s->push != NULL)
        return tierce__core_raise_busy("store");
    struct tierce__push *push = begin_call(p);
    if (push == NULL)
        return NULL;
    int rc;
    s->push = Py_NewRef(self); /* also after a failure: it is called when the store ends */
    s->busy = true;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__push_watch(push, s->store);
    Py_END_ALLOW_THREADS
    s->busy = false;
    end_call(p);
    return rc < 0 ? tierce__core_raise(rc, NULL) : Py_NewRef(Py_None);
}

static PyObject *add_held(PushObject *p, ViewObject *v, ChainObject *chain, uint64_t to_block)
{
    struct tierce__push *push = begin_call(p);
    if (push == NULL)
        return NULL;
    int64_t rc;
    chain->readers++;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__push_held(push, v->view, chain->chain, to_block);
    Py_END_ALLOW_THREADS
    chain->readers--;
    end_call(p);
    return rc < 0 ? tierce__core_raise((int)rc, NULL) : PyLong_FromLongLong(rc);
}

static PyObject *push_held(PyObject *self, PyObject *args)
{
    PushObject *p = (PushObject *)self;
    PyObject *chain;
    uint64_t to_block;
    return PyArg_ParseTuple(args, "O!O&", tierce__core_chain_type, &chain, tierce__core_uint64,
                            &to_block)
               ? add_held(p, (ViewObject *)p->view, (ChainObject *)chain, to_block)
               : NULL;
}

PyObject *tierce__core_push_held(PyObject *self, PyObject *args)
{
    ViewObject *v = (ViewObject *)self;
    PyObject *object, *chain;
    uint64_t to_block;
    if (!PyArg_ParseTuple(args, "O!O!O&", tierce__core_push_type, &object, tierce__core_chain_type,
                          &chain, tierce__core_uint64, &to_block))
        return NULL;
    PushObject *p = (PushObject *)object;
    if (((ViewObject *)p->view)->engine != v->engine) {
        PyErr_SetString(PyExc_ValueError, "the push is of another engine");
        return NULL;
    }
    return add_held(p, v, (ChainObject *)chain, to_block);
}

static PyObject *push_end(PyObject *self, PyObject *unused)
{
    PushObject *p = (PushObject *)self;
    struct tierce__push *push = begin_call(p);
    (void)unused;
    if (push == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    tierce__push_end(push);
    Py_END_ALLOW_THREADS
    end_call(p);
    Py_RETURN_NONE;
}

static PyObject *push_poll(PyObject *self, PyObject *unused)
{
    PushObject *p = (PushObject *)self;
    struct tierce__push *push = begin_call(p);
    struct tierce__pushed out;
    (void)unused;
    if (push == NULL)
        return NULL;
    bool is_over;
    Py_BEGIN_ALLOW_THREADS
    is_over = tierce__push_is_over(push, &out);
    Py_END_ALLOW_THREADS
    end_call(p);
    return Py_BuildValue("(OKKKKsK)", is_over ? Py_True : Py_False, (unsigned long long)out.chunks,
                         (unsigned long long)out.bytes, (unsigned long long)out.present,
                         (unsigned long long)out.left_out, out.why,
                         (unsigned long long)out.over_ns);
}

static PyObject *push_close(PyObject *self, PyObject *unused)
{
    PushObject *p = (PushObject *)self;
    (void)unused;
    p->over = true;
    close_push(p);
    Py_RETURN_NONE;
}

static PyMethodDef push_methods[] = {
    {"watch", push_watch, METH_O,
     "watch(store) -> None\n\nAdds the chunks of a store, before its first layer."},
    {"held", push_held, METH_VARARGS,
     "held(chain, to_block) -> int\n\nAdds the chunks of these blocks that memory holds; returns "
     "how many."},
    {"end", push_end, METH_NOARGS,
     "end() -> None\n\nNo more chunks are added. Does not block, except for the answer of a node."},
    {"poll", push_poll, METH_NOARGS,
     "poll() -> (over, chunks, bytes, present, left_out, why, over_ns)\n\n"
     "Whether it is over; chunks that the other engine has got, had already, and has not got; the "
     "first reason; and when the last one was verified (time.monotonic_ns; 0: none)."},
    {"close", push_close, METH_NOARGS,
     "close() -> None\n\nGives up the rest. All its stores have ended."},
    {NULL, NULL, 0, NULL}};

PyType_Slot tierce__core_push_slots[] = {
    {Py_tp_dealloc, (void *)push_dealloc},
    {Py_tp_methods, push_methods},
    {Py_tp_doc, (void *)"Chunks on their way to another engine; made by View.push_begin. Any "
                        "thread."},
    {0, NULL}};
