/* SPDX-License-Identifier: Apache-2.0 */
/* Offers of chunks to another engine, and reading them (engine/handover/handover.h): methods of
 * Engine and View, and the type Source. */
#include "python/core/core.h"

#include "engine/handover/handover.h"
#include "engine/handover/handover_inbox.h"

PyObject *tierce__core_handover_start(PyObject *self, PyObject *args)
{
    EngineObject *e = (EngineObject *)self;
    const char *host;
    uint16_t port;
    char why[TIERCE__HANDOVER_WHY_BYTES];
    if (!PyArg_ParseTuple(args, "sO&", &host, tierce__core_uint16, &port))
        return NULL;
    if (e->closed)
        return tierce__core_raise_closed("engine");
    if (e->handover != NULL || e->is_starting)
        return tierce__core_raise_busy("engine's handover");
    struct tierce__handover *made = NULL;
    int rc;
    e->is_starting = true;
    e->flushes++; /* the engine stays meanwhile */
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__handover_start(&made, e->engine, host, port, why);
    Py_END_ALLOW_THREADS
    e->is_starting = false;
    e->handover = made;
    uint16_t served = rc == 0 ? tierce__handover_port(made) : 0;
    tierce__core_end_use(e);
    return rc < 0 ? tierce__core_raise(rc, why) : PyLong_FromLong(served);
}

void tierce__core_handover_stop(EngineObject *e)
{
    struct tierce__handover *handover = e->handover;
    e->handover = NULL;
    Py_BEGIN_ALLOW_THREADS
    tierce__handover_stop(handover);
    Py_END_ALLOW_THREADS
}

/* `object` as a chain, or NULL with an exception set. */
static ChainObject *chain_of(PyObject *object)
{
    if (PyObject_TypeCheck(object, tierce__core_chain_type))
        return (ChainObject *)object;
    PyErr_SetString(PyExc_TypeError, "expected a Chain");
    return NULL;
}

/* ---- offers ---- */

static struct tierce__handover *handover_of(PyObject *engine)
{
    EngineObject *e = (EngineObject *)engine;
    if (e->closed || e->handover == NULL) {
        (void)tierce__core_raise_closed("engine's handover");
        return NULL;
    }
    return e->handover;
}

PyObject *tierce__core_handover_uses_tls(PyObject *self, PyObject *unused)
{
    struct tierce__handover *handover = handover_of(self);
    (void)unused;
    return handover != NULL ? PyBool_FromLong(tierce__handover_uses_tls(handover)) : NULL;
}

/* Calls about an offer: a node may take a while to answer. */
enum offer_call { EXPECT, OPEN, WITHDRAW };

static PyObject *call_offer(PyObject *self, enum offer_call what, const char *token,
                            uint64_t number)
{
    EngineObject *e = (EngineObject *)self;
    struct tierce__handover *handover = handover_of(self);
    int rc = 0;
    if (handover == NULL)
        return NULL;
    e->flushes++; /* the engine, and its handover, stay meanwhile */
    Py_BEGIN_ALLOW_THREADS
    if (what == EXPECT)
        rc = tierce__handover_expect(handover, token, (uint32_t)number);
    else if (what == OPEN)
        rc = tierce__handover_open(handover, token, number);
    else
        tierce__handover_withdraw(handover, token);
    Py_END_ALLOW_THREADS
    tierce__core_end_use(e);
    return rc < 0 ? tierce__core_raise(rc, NULL) : Py_NewRef(Py_None);
}

PyObject *tierce__core_handover_expect(PyObject *self, PyObject *args)
{
    const char *token;
    uint32_t ms;
    return PyArg_ParseTuple(args, "sO&", &token, tierce__core_uint32, &ms)
               ? call_offer(self, EXPECT, token, ms)
               : NULL;
}

PyObject *tierce__core_handover_open(PyObject *self, PyObject *args)
{
    const char *token;
    uint64_t tokens;
    return PyArg_ParseTuple(args, "sO&", &token, tierce__core_uint64, &tokens)
               ? call_offer(self, OPEN, token, tokens)
               : NULL;
}

PyObject *tierce__core_handover_withdraw(PyObject *self, PyObject *args)
{
    const char *token;
    return PyArg_ParseTuple(args, "s", &token) ? call_offer(self, WITHDRAW, token, 0) : NULL;
}

PyObject *tierce__core_handover_pin(PyObject *self, PyObject *args)
{
    ViewObject *v = (ViewObject *)self;
    EngineObject *e = (EngineObject *)v->engine;
    PyObject *object;
    uint64_t to_block;
    const char *token;
    if (!PyArg_ParseTuple(args, "OO&s", &object, tierce__core_uint64, &to_block, &token))
        return NULL;
    ChainObject *chain = chain_of(object);
    if (chain == NULL || handover_of(v->engine) == NULL)
        return NULL;
    int64_t rc;
    chain->readers++;
    e->flushes++; /* the engine, and its handover, stay meanwhile */
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__handover_pin(e->handover, v->view, chain->chain, to_block, token);
    Py_END_ALLOW_THREADS
    chain->readers--;
    tierce__core_end_use(e);
    return rc < 0 ? tierce__core_raise((int)rc, NULL) : PyLong_FromLongLong(rc);
}

/* ---- Source ---- */

PyObject *tierce__core_handover_source(PyObject *self, PyObject *args)
{
    ViewObject *v = (ViewObject *)self;
    EngineObject *e = (EngineObject *)v->engine;
    struct tierce__handover_from from = {0};
    int uses_tls = 0;
    if (!PyArg_ParseTuple(args, "sO&sO&O&O&|zp", &from.host, tierce__core_uint16, &from.port,
                          &from.token, tierce__core_uint64, &from.session, tierce__core_uint32,
                          &from.wait_ms, tierce__core_uint32, &from.timeout_ms, &from.ticket,
                          &uses_tls))
        return NULL;
    from.uses_tls = uses_tls != 0;
    if (e->closed)
        return tierce__core_raise_closed("engine");
    SourceObject *s = tierce__core_new(tierce__core_source_type);
    if (s == NULL)
        return NULL;
    from.inbox = e->handover != NULL ? tierce__handover_inbox(e->handover) : NULL;
    s->from = from;
    s->texts = Py_NewRef(args);
    s->view = Py_NewRef(self);
    e->flushes++; /* the engine, and its inbox, stay until the source has ended */
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__source_begin(&s->source, e->engine, &s->from);
    Py_END_ALLOW_THREADS
    if (rc == 0)
        return (PyObject *)s;
    tierce__core_end_use(e);
    Py_DECREF(s);
    return tierce__core_raise(rc, NULL);
}

static void end_source(SourceObject *s, struct tierce__handover_pulled *out)
{
    struct tierce__source *source = s->source;
    if (source == NULL)
        return;
    s->source = NULL;
    Py_BEGIN_ALLOW_THREADS
    tierce__source_end(source, out);
    Py_END_ALLOW_THREADS
    tierce__core_end_use((EngineObject *)((ViewObject *)s->view)->engine);
}

static void source_dealloc(PyObject *self)
{
    SourceObject *s = (SourceObject *)self;
    struct tierce__handover_pulled unused;
    end_source(s, &unused);
    Py_XDECREF(s->view);
    Py_XDECREF(s->texts);
    tierce__core_free(self);
}

/* Whether no call is under way with it; else NULL with an exception set. */
static SourceObject *source_of(PyObject *object)
{
    if (!PyObject_TypeCheck(object, tierce__core_source_type)) {
        PyErr_SetString(PyExc_TypeError, "expected a Source");
        return NULL;
    }
    SourceObject *s = (SourceObject *)object;
    if (s->source != NULL && !s->busy)
        return s;
    (void)(s->busy ? tierce__core_raise_busy("source") : tierce__core_raise_closed("source"));
    return NULL;
}

static PyObject *source_meet(PyObject *self, PyObject *unused)
{
    SourceObject *s = source_of(self);
    struct tierce__handover_pulled out;
    uint64_t tokens = 0;
    (void)unused;
    if (s == NULL)
        return NULL;
    int rc;
    s->busy = true;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__source_meet(s->source, &tokens, &out);
    Py_END_ALLOW_THREADS
    s->busy = false;
    return Py_BuildValue("(Ks)", (unsigned long long)tokens,
                         rc < 0 && out.why[0] == '\0' ? tierce_strerror(rc) : out.why);
}

static PyObject *source_end(PyObject *self, PyObject *unused)
{
    SourceObject *s = (SourceObject *)self;
    struct tierce__handover_pulled out = {0};
    (void)unused;
    if (s->busy)
        return tierce__core_raise_busy("source");
    end_source(s, &out);
    return Py_BuildValue("(Ki)", (unsigned long long)out.pushed_bytes, out.push_status);
}

static PyObject *source_give_up(PyObject *self, PyObject *unused)
{
    SourceObject *s = (SourceObject *)self;
    (void)unused;
    if (s->source != NULL) /* the end takes it with the GIL held */
        tierce__source_give_up(s->source);
    Py_RETURN_NONE;
}

static PyMethodDef source_methods[] = {
    {"meet", source_meet, METH_NOARGS,
     "meet() -> (tokens, why)\n\n"
     "Waits until the offer is open. Returns how many tokens it restores, or why it is not. "
     "Blocks."},
    {"end", source_end, METH_NOARGS,
     "end() -> (pushed_bytes, push_status)\n\n"
     "Ends the offer. Returns the bytes that the ticket has brought, and why it brought no more, "
     "or 0. Blocks."},
    {"give_up", source_give_up, METH_NOARGS,
     "give_up() -> None\n\n"
     "From any thread: a read in progress ends after the chunks that are on their way. Does not "
     "block."},
    {NULL, NULL, 0, NULL}};

PyType_Slot tierce__core_source_slots[] = {
    {Py_tp_dealloc, (void *)source_dealloc},
    {Py_tp_methods, source_methods},
    {Py_tp_doc, (void *)"An offer of another engine that is read; made by View.handover_source. "
                        "One thread at a time, except for give_up."},
    {0, NULL}};

PyObject *tierce__core_handover_read(PyObject *self, PyObject *args)
{
    ViewObject *v = (ViewObject *)self;
    PyObject *of_chain, *of_source, *theirs = NULL;
    uint64_t from_block, to_block;
    struct tierce__handover_other other = {0};
    struct tierce__handover_pulled out;
    if (!PyArg_ParseTuple(args, "OOO&O&|O!s", &of_source, &of_chain, tierce__core_uint64,
                          &from_block, tierce__core_uint64, &to_block, Py_TYPE(self), &theirs,
                          &other.heads))
        return NULL;
    if ((theirs == NULL) != (other.heads == NULL)) {
        PyErr_SetString(PyExc_TypeError, "theirs and heads must be given together");
        return NULL;
    }
    if (theirs != NULL)
        other.view = ((ViewObject *)theirs)->view;
    ChainObject *chain = chain_of(of_chain);
    SourceObject *s = chain != NULL ? source_of(of_source) : NULL;
    if (s == NULL)
        return NULL;
    int rc;
    chain->readers++;
    s->busy = true;
    Py_BEGIN_ALLOW_THREADS
    tierce__source_other(s->source, theirs != NULL ? &other : NULL);
    rc = tierce__source_read(s->source, v->view, chain->chain, from_block, to_block, &out);
    tierce__source_other(s->source, NULL);
    Py_END_ALLOW_THREADS
    s->busy = false;
    chain->readers--;
    return rc < 0 ? tierce__core_raise(rc, out.why)
                  : Py_BuildValue("(KKs)", (unsigned long long)out.blocks,
                                  (unsigned long long)out.bytes, out.why);
}

PyObject *tierce__core_handover_note(PyObject *self, PyObject *args)
{
    ViewObject *v = (ViewObject *)self;
    struct tierce__handover_from from = {0};
    struct tierce__handover_pulled out = {0};
    const char *why;
    if (!PyArg_ParseTuple(args, "O&sO&s|O&O&O&i", tierce__core_uint64, &from.session, &from.host,
                          tierce__core_uint16, &from.port, &why, tierce__core_uint64, &out.blocks,
                          tierce__core_uint64, &out.bytes, tierce__core_uint64, &out.pushed_bytes,
                          &out.push_status))
        return NULL;
    snprintf(out.why, sizeof(out.why), "%s", why);
    Py_BEGIN_ALLOW_THREADS /* a node is waited for */
    tierce__handover_note(v->view, &from, &out);
    Py_END_ALLOW_THREADS
    return Py_NewRef(Py_None);
}
