/* SPDX-License-Identifier: Apache-2.0 */
#include "python/core/core.h"

#include "engine/load/load_keys.h"
#include "engine/store/store_watch.h"

/* Whether this thread may use a store or a load now; false with an exception set. */
static bool can_use(const void *handle, bool busy, const char *what)
{
    if (busy)
        tierce__core_raise_busy(what);
    else if (handle == NULL)
        tierce__core_raise_closed(what);
    return !busy && handle != NULL;
}

/* A transfer has ended: its view may receive another description. */
static void return_paged(PyObject *view)
{
    ((ViewObject *)view)->transfers--;
}

/* ---- store -------------------------------------------------------------------------------- */

static void give_up_store(StoreObject *s)
{
    struct tierce_store *store = s->store;
    if (store == NULL)
        return;
    s->store = NULL;
    Py_BEGIN_ALLOW_THREADS
    tierce_store_abort(store);
    Py_END_ALLOW_THREADS
    return_paged(s->view);
    Py_CLEAR(s->push);
}

static void store_dealloc(PyObject *self)
{
    StoreObject *s = (StoreObject *)self;
    give_up_store(s);
    Py_XDECREF(s->view);
    tierce__core_free(self);
}

static PyObject *store_layer(PyObject *self, PyObject *arg)
{
    StoreObject *s = (StoreObject *)self;
    uint32_t layer;
    if (!tierce__core_uint32(arg, &layer) || !can_use(s->store, s->busy, "store"))
        return NULL;
    int rc;
    s->busy = true;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce_store_layer(s->store, layer);
    Py_END_ALLOW_THREADS
    s->busy = false;
    return rc < 0 ? tierce__core_raise(rc, NULL) : Py_NewRef(Py_None);
}

static PyObject *store_tell_layers(PyObject *self, PyObject *unused)
{
    StoreObject *s = (StoreObject *)self;
    (void)unused;
    if (!can_use(s->store, s->busy, "store"))
        return NULL;
    int rc = tierce__store_tell(s->store);
    return rc < 0 ? tierce__core_raise(rc, NULL) : Py_NewRef(Py_None);
}

static PyObject *store_end(PyObject *self, PyObject *unused)
{
    StoreObject *s = (StoreObject *)self;
    (void)unused;
    if (!can_use(s->store, s->busy, "store"))
        return NULL;
    struct tierce_store *store = s->store;
    s->store = NULL;
    int64_t blocks;
    Py_BEGIN_ALLOW_THREADS
    blocks = tierce_store_end(store);
    Py_END_ALLOW_THREADS
    return_paged(s->view);
    Py_CLEAR(s->push);
    return PyLong_FromLongLong(blocks);
}

static PyObject *store_abort(PyObject *self, PyObject *unused)
{
    StoreObject *s = (StoreObject *)self;
    (void)unused;
    if (s->busy)
        return tierce__core_raise_busy("store");
    give_up_store(s);
    Py_RETURN_NONE;
}

static PyMethodDef store_methods[] = {
    {"layer", store_layer, METH_O,
     "layer(index: int) -> None\n\nCopies one layer out of the engine's memory, in order; out of a "
     "GPU's: enqueues the copy after the stream's work."},
    {"tell_layers", store_tell_layers, METH_NOARGS,
     "tell_layers() -> None\n\nReports each layer to the node from now on, so that a push of "
     "another worker sends it at once. Does nothing without a node."},
    {"end", store_end, METH_NOARGS,
     "end() -> int\n\nPublishes; returns the blocks stored. Waits for copies out of a GPU's "
     "memory; "
     "may be called on another thread than layer."},
    {"abort", store_abort, METH_NOARGS, "abort() -> None\n\nGives up; nothing becomes visible."},
    {NULL, NULL, 0, NULL}};

PyType_Slot tierce__core_store_slots[] = {
    {Py_tp_dealloc, (void *)store_dealloc},
    {Py_tp_methods, store_methods},
    {Py_tp_doc, (void *)"A store in progress; made by View.store_begin. One thread at a time."},
    {0, NULL}};

/* ---- load --------------------------------------------------------------------------------- */

static void give_up_load(LoadObject *l)
{
    struct tierce_load *load = l->load;
    if (load == NULL)
        return;
    l->load = NULL;
    Py_BEGIN_ALLOW_THREADS
    tierce_load_abort(load);
    Py_END_ALLOW_THREADS
    return_paged(l->view);
}

static void load_dealloc(PyObject *self)
{
    LoadObject *l = (LoadObject *)self;
    give_up_load(l);
    Py_XDECREF(l->view);
    tierce__core_free(self);
}

static PyObject *load_layer(PyObject *self, PyObject *arg)
{
    LoadObject *l = (LoadObject *)self;
    uint32_t layer;
    if (!tierce__core_uint32(arg, &layer) || !can_use(l->load, l->busy, "load"))
        return NULL;
    int rc;
    l->busy = true;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce_load_layer(l->load, layer);
    Py_END_ALLOW_THREADS
    l->busy = false;
    if (rc == TIERCE_E_UNSUPPORTED)
        return tierce__core_raise(
            rc,
            "memory.size cannot hold all chunks of the load, whose layers have the same address; "
            "or the GPU's stream is being captured into a graph");
    return rc < 0 ? tierce__core_raise(rc, NULL) : Py_NewRef(Py_None);
}

static PyObject *load_end(PyObject *self, PyObject *unused)
{
    LoadObject *l = (LoadObject *)self;
    (void)unused;
    if (!can_use(l->load, l->busy, "load"))
        return NULL;
    PyObject *origins = PyBytes_FromStringAndSize(NULL, l->blocks);
    if (origins == NULL)
        return NULL;
    uint8_t *bytes = (uint8_t *)PyBytes_AsString(origins);
    struct tierce_load *load = l->load;
    l->load = NULL;
    Py_BEGIN_ALLOW_THREADS
    tierce_load_end(load, bytes);
    Py_END_ALLOW_THREADS
    return_paged(l->view);
    return origins;
}

static PyObject *load_abort(PyObject *self, PyObject *unused)
{
    LoadObject *l = (LoadObject *)self;
    (void)unused;
    if (l->busy)
        return tierce__core_raise_busy("load");
    give_up_load(l);
    Py_RETURN_NONE;
}

static PyObject *load_rotate_keys(PyObject *self, PyObject *args)
{
    LoadObject *l = (LoadObject *)self;
    struct tierce__core_keys keys;
    uint64_t address, count;
    if (!PyArg_ParseTuple(args, "O&O&O&O&spL", tierce__core_uint64, &address, tierce__core_uint64,
                          &count, tierce__core_dtype, &keys.dtype, tierce__core_uint32,
                          &keys.row_elements, &keys.parameters, &keys.is_neox, &keys.delta) ||
        !can_use(l->load, l->busy, "load"))
        return NULL;
    struct tierce__rotation rotation;
    size_t row_bytes = tierce__core_rotation(&rotation, &keys);
    if (row_bytes == 0)
        return NULL;
    if (address == 0 || count > SIZE_MAX / row_bytes)
        return tierce__core_raise(TIERCE_E_ARGUMENT, "the keys have no address, or too many rows");
    struct tierce__key_rows rows = {(uint8_t *)(uintptr_t)address, row_bytes, row_bytes};
    int rc;
    l->busy = true;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__load_rotate(l->load, &rotation, keys.dtype, &rows, (size_t)count, 1);
    Py_END_ALLOW_THREADS
    l->busy = false;
    return rc < 0 ? tierce__core_raise(rc, NULL) : Py_NewRef(Py_None);
}

static PyObject *load_key_distances(PyObject *self, PyObject *args)
{
    LoadObject *l = (LoadObject *)self;
    enum tierce__blend_dtype dtype;
    uint32_t elements;
    uint64_t to, a, b, count;
    if (!PyArg_ParseTuple(args, "O&O&O&O&O&O&", tierce__core_uint64, &to, tierce__core_uint64, &a,
                          tierce__core_uint64, &b, tierce__core_uint64, &count, tierce__core_dtype,
                          &dtype, tierce__core_uint32, &elements) ||
        !can_use(l->load, l->busy, "load"))
        return NULL;
    size_t token_bytes = elements * (size_t)tierce__blend_dtype_bytes(dtype);
    if (token_bytes > 0 && count > SIZE_MAX / token_bytes)
        return tierce__core_raise(TIERCE_E_ARGUMENT, "there are too many tokens");
    struct tierce__device_distances keys = {
        .dtype = dtype,
        .a = {(uint8_t *)(uintptr_t)a, token_bytes, token_bytes},
        .b = {(uint8_t *)(uintptr_t)b, token_bytes, token_bytes},
        .to = (float *)(uintptr_t)to,
        .tokens = (size_t)count,
        .heads = 1,
        .row_elements = elements};
    int rc;
    l->busy = true;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__load_distances(l->load, &keys);
    Py_END_ALLOW_THREADS
    l->busy = false;
    return rc < 0 ? tierce__core_raise(rc, NULL) : Py_NewRef(Py_None);
}

static PyMethodDef load_methods[] = {
    {"layer", load_layer, METH_O,
     "layer(index: int) -> None\n\n"
     "Waits for one layer (bounded), verifies it and writes it to the engine's memory, in order. "
     "For a GPU's memory it enqueues the copy, and later work on the stream waits for it; end "
     "verifies."},
    {"end", load_end, METH_NOARGS,
     "end() -> bytes\n\nOne byte a block: 0 failed (compute it), 1 from memory, 2 from disk, 3 "
     "from "
     "a remote store."},
    {"rotate_keys", load_rotate_keys, METH_VARARGS,
     "rotate_keys(address: int, rows: int, dtype: str, row_elements: int, parameters: str, "
     "is_neox: bool, delta: int) -> None\n\n"
     "Rotates contiguous rows of keys in place, as the function of the module does, in memory of "
     "the "
     "host or of the load's GPU: there after the layers and the stream's work so far, and before "
     "its "
     "later work."},
    {"key_distances", load_key_distances, METH_VARARGS,
     "key_distances(to: int, a: int, b: int, tokens: int, dtype: str, token_elements: int) -> "
     "None\n\n"
     "Writes the squared L2 distance of the keys of each token to float32 numbers at `to`. All are "
     "contiguous, in memory of the host or of the load's GPU; there it is enqueued as a rotation."},
    {"abort", load_abort, METH_NOARGS, "abort() -> None\n\nGives up."},
    {NULL, NULL, 0, NULL}};

PyType_Slot tierce__core_load_slots[] = {
    {Py_tp_dealloc, (void *)load_dealloc},
    {Py_tp_methods, load_methods},
    {Py_tp_doc, (void *)"A load in progress; made by View.load_begin. One thread at a time."},
    {0, NULL}};
