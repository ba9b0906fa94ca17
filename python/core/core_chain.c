/* SPDX-License-Identifier: Apache-2.0 */
#include "python/core/core.h"

#include <stdlib.h>

static void chain_dealloc(PyObject *self)
{
    tierce_chain_destroy(((ChainObject *)self)->chain);
    tierce__core_free(self);
}

/* Fills `items` from [(block, bytes), ...]; false with an exception set. */
static bool fill_extras(PyObject *list, struct tierce_chain_extra *items, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyList_GetItem(list, i);
        if (pair == NULL || !PyTuple_Check(pair)) {
            PyErr_SetString(PyExc_TypeError, "extras: a list of (block, bytes)");
            return false;
        }
        uint64_t block;
        const char *bytes;
        Py_ssize_t length;
        if (!PyArg_ParseTuple(pair, "O&y#", tierce__core_uint64, &block, &bytes, &length))
            return false;
        items[i] = (struct tierce_chain_extra){block, bytes, (size_t)length};
    }
    return true;
}

/* False with an exception set while a call reads the chain. Asked last: reading arguments may let
 * other threads run. */
static bool can_change(PyObject *self)
{
    if (((ChainObject *)self)->readers > 0)
        tierce__core_raise_busy("chain");
    return ((ChainObject *)self)->readers == 0;
}

static PyObject *chain_append(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 1 || nargs > 2) {
        PyErr_SetString(PyExc_TypeError, "append(tokens, extras=None)");
        return NULL;
    }
    if (nargs == 2 && args[1] != Py_None && !PyList_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "extras: a list of (block, bytes)");
        return NULL;
    }
    Py_buffer tokens;
    if (!tierce__core_int32s(args[0], &tokens))
        return NULL;
    struct tierce_chain_extras extras = {0};
    struct tierce_chain_extra *items = NULL;
    int64_t rc = TIERCE_E_ARGUMENT;
    if (nargs == 2 && args[1] != Py_None) {
        Py_ssize_t count = PyList_Size(args[1]);
        items = calloc((size_t)count + 1, sizeof(*items));
        if (items == NULL)
            PyErr_NoMemory();
        if (items == NULL || !fill_extras(args[1], items, count))
            goto out;
        extras = (struct tierce_chain_extras){items, (size_t)count};
    }
    if (!can_change(self))
        goto out;
    rc = tierce_chain_append(((ChainObject *)self)->chain, tokens.buf, (size_t)tokens.len / 4,
                             &extras);
out:
    free(items);
    PyBuffer_Release(&tokens);
    if (PyErr_Occurred())
        return NULL;
    return rc < 0 ? tierce__core_raise((int)rc, NULL) : PyLong_FromLongLong(rc);
}

static PyObject *chain_append_hashes(PyObject *self, PyObject *arg)
{
    Py_buffer hashes;
    if (PyObject_GetBuffer(arg, &hashes, PyBUF_SIMPLE) < 0)
        return NULL;
    int64_t rc = TIERCE_E_ARGUMENT;
    bool free_now = can_change(self);
    if (free_now && hashes.len % TIERCE_HASH_BYTES == 0)
        rc = tierce_chain_append_hashes(((ChainObject *)self)->chain, hashes.buf,
                                        (size_t)hashes.len / TIERCE_HASH_BYTES);
    PyBuffer_Release(&hashes);
    if (!free_now)
        return NULL;
    return rc < 0 ? tierce__core_raise((int)rc, NULL) : PyLong_FromLongLong(rc);
}

static PyObject *chain_hash(PyObject *self, PyObject *arg)
{
    struct tierce_chain *chain = ((ChainObject *)self)->chain;
    size_t index = PyLong_AsSize_t(arg);
    if (PyErr_Occurred())
        return NULL;
    if (index >= tierce_chain_blocks(chain)) {
        PyErr_SetString(PyExc_IndexError, "the chain has fewer blocks");
        return NULL;
    }
    return PyBytes_FromStringAndSize((const char *)tierce_chain_hash(chain, index),
                                     TIERCE_HASH_BYTES);
}

static PyObject *chain_reset(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (!can_change(self))
        return NULL;
    tierce_chain_reset(((ChainObject *)self)->chain);
    Py_RETURN_NONE;
}

static PyObject *chain_blocks(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(tierce_chain_blocks(((ChainObject *)self)->chain));
}

static PyMethodDef chain_methods[] = {
    {"append", (PyCFunction)(void (*)(void))chain_append, METH_FASTCALL,
     "append(tokens: buffer of int32, extras: list[(block, bytes)] | None = None) -> int\n\n"
     "Appends tokens; returns the number of whole blocks."},
    {"append_hashes", chain_append_hashes, METH_O,
     "append_hashes(hashes: bytes) -> int\n\n"
     "Appends block hashes of the engine, 32 bytes each; returns the number of whole blocks."},
    {"hash", chain_hash, METH_O, "hash(index: int) -> bytes\n\nThe 32-byte hash of a block."},
    {"reset", chain_reset, METH_NOARGS, "reset() -> None\n\nForgets all blocks and tokens."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef chain_getset[] = {
    {"blocks", chain_blocks, NULL, "Number of whole blocks.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

PyType_Slot tierce__core_chain_slots[] = {
    {Py_tp_dealloc, (void *)chain_dealloc},
    {Py_tp_methods, chain_methods},
    {Py_tp_getset, chain_getset},
    {Py_tp_doc, (void *)"Block hashes of one request; made by View.chain. One thread at a time."},
    {0, NULL}};
