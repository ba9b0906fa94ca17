/* SPDX-License-Identifier: Apache-2.0 */
#include "python/core/core.h"

/* ---- store -------------------------------------------------------------------------------- */

static void store_dealloc(PyObject *self)
{
    StoreObject *s = (StoreObject *)self;
    tierce_store_abort(s->store);
    Py_XDECREF(s->view);
    tierce__core_free(self);
}

static PyObject *store_layer(PyObject *self, PyObject *arg)
{
    StoreObject *s = (StoreObject *)self;
    uint32_t layer;
    if (!tierce__core_uint32(arg, &layer))
        return NULL;
    if (s->store == NULL)
        return tierce__core_raise_closed("store");
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce_store_layer(s->store, layer);
    Py_END_ALLOW_THREADS
    if (rc < 0)
        return tierce__core_raise(rc, NULL);
    Py_RETURN_NONE;
}

static PyObject *store_end(PyObject *self, PyObject *unused)
{
    StoreObject *s = (StoreObject *)self;
    (void)unused;
    if (s->store == NULL)
        return tierce__core_raise_closed("store");
    struct tierce_store *store = s->store;
    s->store = NULL;
    int64_t blocks;
    Py_BEGIN_ALLOW_THREADS
    blocks = tierce_store_end(store);
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(blocks);
}

static PyObject *store_abort(PyObject *self, PyObject *unused)
{
    StoreObject *s = (StoreObject *)self;
    (void)unused;
    tierce_store_abort(s->store);
    s->store = NULL;
    Py_RETURN_NONE;
}

static PyMethodDef store_methods[] = {
    {"layer", store_layer, METH_O,
     "layer(index: int) -> None\n\nCopies one layer out of the engine's memory, in order."},
    {"end", store_end, METH_NOARGS, "end() -> int\n\nPublishes; returns the blocks stored."},
    {"abort", store_abort, METH_NOARGS, "abort() -> None\n\nGives up; nothing becomes visible."},
    {NULL, NULL, 0, NULL}};

PyType_Slot tierce__core_store_slots[] = {
    {Py_tp_dealloc, (void *)store_dealloc},
    {Py_tp_methods, store_methods},
    {Py_tp_doc, (void *)"A store in progress; made by View.store_begin. One thread at a time."},
    {0, NULL}};

/* ---- load --------------------------------------------------------------------------------- */

static void load_dealloc(PyObject *self)
{
    LoadObject *l = (LoadObject *)self;
    tierce_load_abort(l->load);
    Py_XDECREF(l->view);
    tierce__core_free(self);
}

static PyObject *load_layer(PyObject *self, PyObject *arg)
{
    LoadObject *l = (LoadObject *)self;
    uint32_t layer;
    if (!tierce__core_uint32(arg, &layer))
        return NULL;
    if (l->load == NULL)
        return tierce__core_raise_closed("load");
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce_load_layer(l->load, layer);
    Py_END_ALLOW_THREADS
    if (rc < 0)
        return tierce__core_raise(rc, NULL);
    Py_RETURN_NONE;
}

static PyObject *load_end(PyObject *self, PyObject *unused)
{
    LoadObject *l = (LoadObject *)self;
    (void)unused;
    if (l->load == NULL)
        return tierce__core_raise_closed("load");
    PyObject *origins = PyBytes_FromStringAndSize(NULL, l->blocks);
    if (origins == NULL)
        return NULL;
    uint8_t *bytes = (uint8_t *)PyBytes_AsString(origins);
    struct tierce_load *load = l->load;
    l->load = NULL;
    Py_BEGIN_ALLOW_THREADS
    tierce_load_end(load, bytes);
    Py_END_ALLOW_THREADS
    return origins;
}

static PyObject *load_abort(PyObject *self, PyObject *unused)
{
    LoadObject *l = (LoadObject *)self;
    (void)unused;
    tierce_load_abort(l->load);
    l->load = NULL;
    Py_RETURN_NONE;
}

static PyMethodDef load_methods[] = {
    {"layer", load_layer, METH_O,
     "layer(index: int) -> None\n\n"
     "Waits for one layer (bounded), verifies it and writes it to the engine's memory, in order."},
    {"end", load_end, METH_NOARGS,
     "end() -> bytes\n\nOne byte a block: 0 failed (compute it), 1 from memory, 2 from disk."},
    {"abort", load_abort, METH_NOARGS, "abort() -> None\n\nGives up."},
    {NULL, NULL, 0, NULL}};

PyType_Slot tierce__core_load_slots[] = {
    {Py_tp_dealloc, (void *)load_dealloc},
    {Py_tp_methods, load_methods},
    {Py_tp_doc, (void *)"A load in progress; made by View.load_begin. One thread at a time."},
    {0, NULL}};
