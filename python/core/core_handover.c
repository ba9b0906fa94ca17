/* SPDX-License-Identifier: Apache-2.0 */
/* Offers of chunks to another engine, and reading them (engine/handover/handover.h): methods of
 * Engine and View. */
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
    if (e->handover != NULL)
        return tierce__core_raise_busy("engine's handover");
    int rc = tierce__handover_start(&e->handover, e->engine, host, port, why);
    return rc < 0 ? tierce__core_raise(rc, why)
                  : PyLong_FromLong(tierce__handover_port(e->handover));
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

PyObject *tierce__core_handover_offer(PyObject *self, PyObject *args)
{
    ViewObject *v = (ViewObject *)self;
    EngineObject *e = (EngineObject *)v->engine;
    PyObject *object;
    uint64_t to_block;
    const char *token;
    uint32_t ms;
    if (!PyArg_ParseTuple(args, "OO&sO&", &object, tierce__core_uint64, &to_block, &token,
                          tierce__core_uint32, &ms))
        return NULL;
    ChainObject *chain = chain_of(object);
    if (chain == NULL)
        return NULL;
    if (e->closed || e->handover == NULL)
        return tierce__core_raise_closed("engine's handover");
    int64_t rc;
    chain->readers++;
    e->flushes++; /* the engine, and its handover, stay meanwhile */
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__handover_offer(e->handover, v->view, chain->chain, to_block, token, ms);
    Py_END_ALLOW_THREADS
    chain->readers--;
    tierce__core_end_use(e);
    return rc < 0 ? tierce__core_raise((int)rc, NULL) : PyLong_FromLongLong(rc);
}

PyObject *tierce__core_handover_pull(PyObject *self, PyObject *args)
{
    ViewObject *v = (ViewObject *)self;
    EngineObject *e = (EngineObject *)v->engine;
    PyObject *object;
    uint64_t to_block;
    struct tierce__handover_from from = {0};
    struct tierce__handover_pulled out;
    int uses_tls = 0;
    if (!PyArg_ParseTuple(args, "OO&O&sO&sO&O&O&|zp", &object, tierce__core_uint64,
                          &from.from_block, tierce__core_uint64, &to_block, &from.host,
                          tierce__core_uint16, &from.port, &from.token, tierce__core_uint64,
                          &from.session, tierce__core_uint32, &from.wait_ms, tierce__core_uint32,
                          &from.timeout_ms, &from.ticket, &uses_tls))
        return NULL;
    from.uses_tls = uses_tls != 0;
    ChainObject *chain = chain_of(object);
    if (chain == NULL)
        return NULL;
    if (e->closed)
        return tierce__core_raise_closed("engine");
    if (e->handover != NULL)
        from.inbox = tierce__handover_inbox(e->handover);
    int rc;
    chain->readers++;
    e->flushes++; /* the engine, and its inbox, stay meanwhile */
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__handover_pull(v->view, chain->chain, to_block, &from, &out);
    Py_END_ALLOW_THREADS
    chain->readers--;
    tierce__core_end_use(e);
    return rc < 0 ? tierce__core_raise(rc, NULL)
                  : Py_BuildValue("(KKKs)", (unsigned long long)out.blocks,
                                  (unsigned long long)out.bytes,
                                  (unsigned long long)out.pushed_bytes, out.why);
}

PyObject *tierce__core_handover_note(PyObject *self, PyObject *args)
{
    ViewObject *v = (ViewObject *)self;
    struct tierce__handover_from from = {0};
    struct tierce__handover_pulled out = {0};
    const char *why;
    if (!PyArg_ParseTuple(args, "O&sO&s", tierce__core_uint64, &from.session, &from.host,
                          tierce__core_uint16, &from.port, &why))
        return NULL;
    snprintf(out.why, sizeof(out.why), "%s", why);
    tierce__handover_note(v->view, &from, &out);
    Py_RETURN_NONE;
}
