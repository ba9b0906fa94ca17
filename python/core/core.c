/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tierce._core: libtierce for Python, in the limited API (one binary for every CPython >= 3.11).
 *
 * Handles, buffers and numbers only; the docstrings are the contract. Tokens and block ids come as
 * objects with the buffer protocol (array.array('i'), numpy, torch via memoryview), never as
 * lists. Calls that copy or may wait release the GIL. A load or a store belongs to one thread at a
 * time, which the engine adapters guarantee; everything else may be called from any thread.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <tierce/tierce.h>

static PyObject *error_type;

/* Raises tierce._core.Error with .status and .name; always returns NULL. */
static PyObject *raise_status(int status, const char *text)
{
    PyObject *error = PyObject_CallFunction(
        error_type, "s", text != NULL && text[0] != '\0' ? text : tierce_strerror(status));
    if (error == NULL)
        return NULL;
    PyObject *number = PyLong_FromLong(status);
    PyObject *name = PyUnicode_FromString(tierce_error_name(status));
    if (number != NULL && name != NULL && PyObject_SetAttrString(error, "status", number) == 0 &&
        PyObject_SetAttrString(error, "name", name) == 0)
        PyErr_SetObject(error_type, error);
    Py_XDECREF(number);
    Py_XDECREF(name);
    Py_DECREF(error);
    return NULL;
}

/* A C-contiguous buffer of int32; false with an exception set. */
static bool get_int32(PyObject *object, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, PyBUF_CONTIG_RO | PyBUF_FORMAT) < 0)
        return false;
    bool int32 = view->itemsize == 4 && view->format != NULL &&
                 (strcmp(view->format, "i") == 0 || strcmp(view->format, "l") == 0 ||
                  strcmp(view->format, "<i") == 0);
    if (!int32) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_TypeError, "expected a contiguous buffer of 32-bit integers "
                                         "(array.array('i'), numpy.int32)");
    }
    return int32;
}

/* A number up to `max`; false with an exception set. Nothing is cut to fit. */
static bool get_number(PyObject *object, unsigned long long max, unsigned long long *out)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(object);
    if (number == (unsigned long long)-1 && PyErr_Occurred())
        return false;
    if (number > max) {
        PyErr_Format(PyExc_OverflowError, "expected a number up to %llu", max);
        return false;
    }
    *out = number;
    return true;
}

static bool get_uint32(PyObject *object, uint32_t *out)
{
    unsigned long long number;
    if (!get_number(object, UINT32_MAX, &number))
        return false;
    *out = (uint32_t)number;
    return true;
}

/* Converters for "O&". */
static int convert_uint64(PyObject *object, void *out)
{
    unsigned long long number;
    if (!get_number(object, UINT64_MAX, &number))
        return 0;
    *(uint64_t *)out = number;
    return 1;
}

static int convert_uint32(PyObject *object, void *out)
{
    return get_uint32(object, out);
}

static int convert_uint16(PyObject *object, void *out)
{
    unsigned long long number;
    if (!get_number(object, UINT16_MAX, &number))
        return 0;
    *(uint16_t *)out = (uint16_t)number;
    return 1;
}

/* The UTF-8 of a str, whole: a NUL inside would hide what follows. NULL with an exception set. */
static const char *get_text(PyObject *object)
{
    Py_ssize_t size;
    if (!PyUnicode_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "expected a str");
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(object, &size);
    if (text != NULL && strlen(text) != (size_t)size) {
        PyErr_SetString(PyExc_ValueError, "a text cannot contain a NUL character");
        return NULL;
    }
    return text;
}

/* ---- types -------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD struct tierce_engine *engine;
    struct tierce_engine *leaving; /* closed while a flush was under way, which closes it */
    unsigned flushes;              /* under way, without the GIL */
    struct tierce_config *config;
} EngineObject;

typedef struct {
    PyObject_HEAD PyObject *engine; /* EngineObject */
    struct tierce_view *view;
    uint32_t layer_count;
    uint32_t chunk_blocks;
    uint32_t *cell_bytes;
    struct tierce_paged paged;
    struct tierce_paged_layer *layers;
    unsigned transfers; /* loads and stores that borrow `paged` */
} ViewObject;

typedef struct {
    PyObject_HEAD struct tierce_chain *chain;
    unsigned readers; /* calls under way without the GIL */
} ChainObject;

typedef struct {
    PyObject_HEAD PyObject *view; /* ViewObject: keeps the paged description alive */
    struct tierce_store *store;   /* NULL: ended */
    bool busy;                    /* a call is under way without the GIL */
} StoreObject;

typedef struct {
    PyObject_HEAD PyObject *view;
    struct tierce_load *load; /* NULL: ended */
    bool busy;                /* a call is under way without the GIL */
    Py_ssize_t blocks;
} LoadObject;

static PyTypeObject *engine_type, *view_type, *chain_type, *store_type, *load_type;

static void *new_object(PyTypeObject *type)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0);
}

static void free_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *raise_closed(const char *what)
{
    PyErr_Format(PyExc_ValueError, "the %s is closed", what);
    return NULL;
}

static PyObject *raise_busy(const char *what)
{
    PyErr_Format(PyExc_RuntimeError, "the %s is in use by another thread", what);
    return NULL;
}

/* Whether a store or load can be used now; false with an exception set. */
static bool can_use(const void *handle, bool busy, const char *what)
{
    if (busy)
        raise_busy(what);
    else if (handle == NULL)
        raise_closed(what);
    return !busy && handle != NULL;
}

/* ---- chain -------------------------------------------------------------------------------- */

static void chain_dealloc(PyObject *self)
{
    tierce_chain_destroy(((ChainObject *)self)->chain);
    free_object(self);
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
        if (!PyArg_ParseTuple(pair, "O&y#", convert_uint64, &block, &bytes, &length))
            return false;
        items[i] = (struct tierce_chain_extra){block, bytes, (size_t)length};
    }
    return true;
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
    if (((ChainObject *)self)->readers > 0)
        return raise_busy("chain");
    Py_buffer tokens;
    if (!get_int32(args[0], &tokens))
        return NULL;
    struct tierce_chain_extras extras = {0};
    struct tierce_chain_extra *items = NULL;
    int64_t rc = TIERCE_E_ARGUMENT;
    if (nargs == 2 && args[1] != Py_None) {
        Py_ssize_t count = PyList_Size(args[1]);
        items = count >= 0 ? calloc((size_t)count + 1, sizeof(*items)) : NULL;
        if (items == NULL || !fill_extras(args[1], items, count))
            goto out;
        extras = (struct tierce_chain_extras){items, (size_t)count};
    }
    rc = tierce_chain_append(((ChainObject *)self)->chain, tokens.buf, (size_t)tokens.len / 4,
                             &extras);
out:
    free(items);
    PyBuffer_Release(&tokens);
    if (PyErr_Occurred())
        return NULL;
    return rc < 0 ? raise_status((int)rc, NULL) : PyLong_FromLongLong(rc);
}

static PyObject *chain_append_hashes(PyObject *self, PyObject *arg)
{
    Py_buffer hashes;
    if (((ChainObject *)self)->readers > 0)
        return raise_busy("chain");
    if (PyObject_GetBuffer(arg, &hashes, PyBUF_SIMPLE) < 0)
        return NULL;
    int64_t rc = TIERCE_E_ARGUMENT;
    if (hashes.len % TIERCE_HASH_BYTES == 0)
        rc = tierce_chain_append_hashes(((ChainObject *)self)->chain, hashes.buf,
                                        (size_t)hashes.len / TIERCE_HASH_BYTES);
    PyBuffer_Release(&hashes);
    return rc < 0 ? raise_status((int)rc, NULL) : PyLong_FromLongLong(rc);
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
    if (((ChainObject *)self)->readers > 0)
        return raise_busy("chain");
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

static PyType_Slot chain_slots[] = {
    {Py_tp_dealloc, (void *)chain_dealloc},
    {Py_tp_methods, chain_methods},
    {Py_tp_getset, chain_getset},
    {Py_tp_doc, (void *)"Block hashes of one request; made by View.chain. One thread at a time."},
    {0, NULL}};

/* ---- store -------------------------------------------------------------------------------- */

/* The store's handle, which the object lets go of, and with it of the view's description. */
static struct tierce_store *take_store(StoreObject *s)
{
    struct tierce_store *store = s->store;
    s->store = NULL;
    if (store != NULL)
        ((ViewObject *)s->view)->transfers--;
    return store;
}

static void store_dealloc(PyObject *self)
{
    StoreObject *s = (StoreObject *)self;
    tierce_store_abort(take_store(s));
    Py_XDECREF(s->view);
    free_object(self);
}

static PyObject *store_layer(PyObject *self, PyObject *arg)
{
    StoreObject *s = (StoreObject *)self;
    uint32_t layer;
    if (!get_uint32(arg, &layer) || !can_use(s->store, s->busy, "store"))
        return NULL;
    int rc;
    s->busy = true;
    Py_BEGIN_ALLOW_THREADS rc = tierce_store_layer(s->store, layer);
    Py_END_ALLOW_THREADS s->busy = false;
    if (rc < 0)
        return raise_status(rc, NULL);
    Py_RETURN_NONE;
}

static PyObject *store_end(PyObject *self, PyObject *unused)
{
    StoreObject *s = (StoreObject *)self;
    (void)unused;
    if (!can_use(s->store, s->busy, "store"))
        return NULL;
    struct tierce_store *store = take_store(s); /* end needs the description no more */
    int64_t blocks;
    Py_BEGIN_ALLOW_THREADS blocks = tierce_store_end(store);
    Py_END_ALLOW_THREADS return PyLong_FromLongLong(blocks);
}

static PyObject *store_abort(PyObject *self, PyObject *unused)
{
    StoreObject *s = (StoreObject *)self;
    (void)unused;
    if (s->busy)
        return raise_busy("store");
    tierce_store_abort(take_store(s));
    Py_RETURN_NONE;
}

static PyMethodDef store_methods[] = {
    {"layer", store_layer, METH_O,
     "layer(index: int) -> None\n\nCopies one layer out of the engine's memory, in order."},
    {"end", store_end, METH_NOARGS, "end() -> int\n\nPublishes; returns the blocks stored."},
    {"abort", store_abort, METH_NOARGS, "abort() -> None\n\nGives up; nothing becomes visible."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot store_slots[] = {
    {Py_tp_dealloc, (void *)store_dealloc},
    {Py_tp_methods, store_methods},
    {Py_tp_doc, (void *)"A store in progress; made by View.store_begin. One thread at a time."},
    {0, NULL}};

/* ---- load --------------------------------------------------------------------------------- */

static struct tierce_load *take_load(LoadObject *l)
{
    struct tierce_load *load = l->load;
    l->load = NULL;
    if (load != NULL)
        ((ViewObject *)l->view)->transfers--;
    return load;
}

static void load_dealloc(PyObject *self)
{
    LoadObject *l = (LoadObject *)self;
    tierce_load_abort(take_load(l));
    Py_XDECREF(l->view);
    free_object(self);
}

static PyObject *load_layer(PyObject *self, PyObject *arg)
{
    LoadObject *l = (LoadObject *)self;
    uint32_t layer;
    if (!get_uint32(arg, &layer) || !can_use(l->load, l->busy, "load"))
        return NULL;
    int rc;
    l->busy = true;
    Py_BEGIN_ALLOW_THREADS rc = tierce_load_layer(l->load, layer);
    Py_END_ALLOW_THREADS l->busy = false;
    if (rc < 0)
        return raise_status(rc, NULL);
    Py_RETURN_NONE;
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
    struct tierce_load *load = take_load(l);
    Py_BEGIN_ALLOW_THREADS tierce_load_end(load, bytes);
    Py_END_ALLOW_THREADS return origins;
}

static PyObject *load_abort(PyObject *self, PyObject *unused)
{
    LoadObject *l = (LoadObject *)self;
    (void)unused;
    if (l->busy)
        return raise_busy("load");
    tierce_load_abort(take_load(l));
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

static PyType_Slot load_slots[] = {
    {Py_tp_dealloc, (void *)load_dealloc},
    {Py_tp_methods, load_methods},
    {Py_tp_doc, (void *)"A load in progress; made by View.load_begin. One thread at a time."},
    {0, NULL}};

/* ---- view --------------------------------------------------------------------------------- */

static void view_dealloc(PyObject *self)
{
    ViewObject *v = (ViewObject *)self;
    struct tierce_view *view = v->view;
    Py_BEGIN_ALLOW_THREADS /* closing the last view of a closed engine waits for its disk */
        tierce_view_close(view);
    Py_END_ALLOW_THREADS free(v->cell_bytes);
    free(v->layers);
    Py_XDECREF(v->engine);
    free_object(self);
}

static bool read_addresses(const ViewObject *v, struct tierce_paged_layer *layers, PyObject *bases,
                           PyObject *strides)
{
    for (uint32_t i = 0; i < v->layer_count; i++) {
        void *base = PyLong_AsVoidPtr(PyList_GetItem(bases, (Py_ssize_t)i));
        uint64_t stride = PyLong_AsUnsignedLongLong(PyList_GetItem(strides, (Py_ssize_t)i));
        if (PyErr_Occurred())
            return false;
        layers[i] = (struct tierce_paged_layer){base, stride, v->cell_bytes[i]};
    }
    return true;
}

static PyObject *view_set_paged(PyObject *self, PyObject *args)
{
    ViewObject *v = (ViewObject *)self;
    PyObject *bases, *strides;
    uint32_t block_count;
    if (!PyArg_ParseTuple(args, "O!O!O&", &PyList_Type, &bases, &PyList_Type, &strides,
                          convert_uint32, &block_count))
        return NULL;
    if (v->transfers > 0) {
        PyErr_SetString(PyExc_RuntimeError, "the view has loads or stores in progress");
        return NULL;
    }
    if (PyList_Size(bases) != (Py_ssize_t)v->layer_count ||
        PyList_Size(strides) != (Py_ssize_t)v->layer_count) {
        PyErr_SetString(PyExc_ValueError, "one base and one stride for each layer");
        return NULL;
    }
    struct tierce_paged_layer *layers = calloc((size_t)v->layer_count + 1, sizeof(*layers));
    if (layers == NULL)
        return PyErr_NoMemory();
    if (!read_addresses(v, layers, bases, strides)) {
        free(layers);
        return NULL;
    }
    free(v->layers);
    v->layers = layers;
    v->paged = (struct tierce_paged){sizeof(v->paged), v->layers, v->layer_count, block_count};
    Py_RETURN_NONE;
}

static PyObject *view_chain(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"lora", "salt", "other", NULL};
    struct tierce_chain_root root = {.size = sizeof(root)};
    const char *lora = NULL, *salt = NULL, *other = NULL;
    Py_ssize_t lora_bytes = 0, salt_bytes = 0, other_bytes = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|y#y#y#", names, &lora, &lora_bytes, &salt,
                                     &salt_bytes, &other, &other_bytes))
        return NULL;
    root.lora = lora;
    root.lora_bytes = (size_t)lora_bytes;
    root.salt = salt;
    root.salt_bytes = (size_t)salt_bytes;
    root.other = other;
    root.other_bytes = (size_t)other_bytes;
    struct tierce_chain *chain;
    int rc = tierce_view_chain(&chain, ((ViewObject *)self)->view, &root);
    if (rc < 0)
        return raise_status(rc, NULL);
    ChainObject *object = new_object(chain_type);
    if (object == NULL) {
        tierce_chain_destroy(chain);
        return NULL;
    }
    object->chain = chain;
    return (PyObject *)object;
}

/* `object` as a chain, or NULL with an exception set. */
static ChainObject *chain_of(PyObject *object)
{
    if (!PyObject_TypeCheck(object, chain_type)) {
        PyErr_SetString(PyExc_TypeError, "expected a Chain");
        return NULL;
    }
    return (ChainObject *)object;
}

static PyObject *view_lookup(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    ViewObject *v = (ViewObject *)self;
    if (nargs != 5) {
        PyErr_SetString(PyExc_TypeError, "lookup(chain, from_block, to_block, flags, session)");
        return NULL;
    }
    ChainObject *chain = chain_of(args[0]);
    struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    uint64_t to_block;
    uint32_t flags;
    if (chain == NULL || !convert_uint64(args[1], &opts.from_block) ||
        !convert_uint64(args[2], &to_block) || !get_uint32(args[3], &flags) ||
        !convert_uint64(args[4], &opts.session))
        return NULL;
    opts.flags = flags;
    struct tierce_found found;
    int rc;
    chain->readers++;
    Py_BEGIN_ALLOW_THREADS rc = tierce_lookup(v->view, chain->chain, to_block, &opts, &found);
    Py_END_ALLOW_THREADS chain->readers--;
    if (rc < 0)
        return raise_status(rc, NULL);
    return Py_BuildValue("(KK)", (unsigned long long)found.blocks,
                         (unsigned long long)found.memory_blocks);
}

static PyObject *view_unpin(PyObject *self, PyObject *arg)
{
    uint64_t session;
    if (!convert_uint64(arg, &session))
        return NULL;
    tierce_unpin(((ViewObject *)self)->view, session);
    Py_RETURN_NONE;
}

/*
 * Options of a transfer from Python's arguments; the ids are in *buffer until it is released.
 * Begins a transfer, which reads the chain and the view's description: end_begin ends the former,
 * and the latter too unless there is a handle that goes on.
 */
static bool fill_transfer(ViewObject *v, PyObject *chain, PyObject *ids, Py_buffer *buffer,
                          struct tierce_transfer_opts *opts)
{
    if (chain_of(chain) == NULL)
        return false;
    opts->chain = ((ChainObject *)chain)->chain;
    if (v->paged.layers == NULL) {
        PyErr_SetString(PyExc_ValueError, "set_paged has not been called");
        return false;
    }
    if (!get_int32(ids, buffer))
        return false;
    if ((uint64_t)buffer->len / 4 < opts->to_block) {
        PyBuffer_Release(buffer);
        PyErr_SetString(PyExc_ValueError, "fewer block ids than blocks");
        return false;
    }
    opts->size = sizeof(*opts);
    opts->paged = &v->paged;
    opts->block_ids = buffer->buf;
    ((ChainObject *)chain)->readers++;
    v->transfers++;
    return true;
}

static void end_begin(ViewObject *v, PyObject *chain, Py_buffer *buffer, bool goes_on)
{
    ((ChainObject *)chain)->readers--;
    v->transfers -= !goes_on;
    PyBuffer_Release(buffer);
}

static PyObject *view_store_begin(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"chain", "to_block", "block_ids", "tail", NULL};
    ViewObject *v = (ViewObject *)self;
    PyObject *chain, *ids;
    uint64_t to;
    int tail = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO&O|p", names, &chain, convert_uint64, &to,
                                     &ids, &tail))
        return NULL;
    struct tierce_transfer_opts opts = {.to_block = to, .tail = tail != 0};
    Py_buffer buffer;
    if (!fill_transfer(v, chain, ids, &buffer, &opts))
        return NULL;
    struct tierce_store *store = NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS rc = tierce_store_begin(&store, v->view, &opts);
    Py_END_ALLOW_THREADS end_begin(v, chain, &buffer, store != NULL);
    if (rc < 0)
        return raise_status(rc, NULL);
    if (store == NULL)
        Py_RETURN_NONE;
    StoreObject *object = new_object(store_type);
    if (object == NULL) {
        tierce_store_abort(store);
        v->transfers--;
        return NULL;
    }
    object->store = store;
    Py_INCREF(self);
    object->view = self;
    return (PyObject *)object;
}

static PyObject *view_load_begin(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"chain",   "from_block", "to_block", "block_ids",
                            "session", "timeout_ms", NULL};
    ViewObject *v = (ViewObject *)self;
    PyObject *chain, *ids;
    uint64_t from, to, session = 0;
    uint32_t timeout_ms = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO&O&O|O&O&", names, &chain, convert_uint64,
                                     &from, convert_uint64, &to, &ids, convert_uint64, &session,
                                     convert_uint32, &timeout_ms))
        return NULL;
    struct tierce_transfer_opts opts = {
        .from_block = from, .to_block = to, .session = session, .timeout_ms = timeout_ms};
    Py_buffer buffer;
    if (!fill_transfer(v, chain, ids, &buffer, &opts))
        return NULL;
    struct tierce_load *load = NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS rc = tierce_load_begin(&load, v->view, &opts);
    Py_END_ALLOW_THREADS end_begin(v, chain, &buffer, load != NULL);
    if (rc < 0)
        return raise_status(rc, NULL);
    LoadObject *object = new_object(load_type);
    if (object == NULL) {
        tierce_load_abort(load);
        v->transfers--;
        return NULL;
    }
    object->load = load;
    object->blocks = (Py_ssize_t)(to - from);
    Py_INCREF(self);
    object->view = self;
    return (PyObject *)object;
}

static PyObject *view_chunk_blocks(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((ViewObject *)self)->chunk_blocks);
}

static PyObject *view_namespace(PyObject *self, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(tierce_view_namespace(((ViewObject *)self)->view));
}

static PyMethodDef view_methods[] = {
    {"set_paged", view_set_paged, METH_VARARGS,
     "set_paged(bases: list[int], strides: list[int], block_count: int) -> None\n\n"
     "Describes the engine's paged memory: address of block 0 and bytes between blocks, for each "
     "layer. The memory must outlive every load and store."},
    {"chain", (PyCFunction)(void (*)(void))view_chain, METH_VARARGS | METH_KEYWORDS,
     "chain(lora=b'', salt=b'', other=b'') -> Chain"},
    {"lookup", (PyCFunction)(void (*)(void))view_lookup, METH_FASTCALL,
     "lookup(chain, from_block, to_block, flags, session) -> (blocks, memory_blocks)\n\n"
     "Leading blocks that could be loaded, and those of them in memory. Flags: 1 pin for the "
     "session, 2 ask memory only."},
    {"unpin", view_unpin, METH_O, "unpin(session: int) -> None"},
    {"store_begin", (PyCFunction)(void (*)(void))view_store_begin, METH_VARARGS | METH_KEYWORDS,
     "store_begin(chain, to_block, block_ids, tail=False) -> Store | None\n\n"
     "None when nothing is missing."},
    {"load_begin", (PyCFunction)(void (*)(void))view_load_begin, METH_VARARGS | METH_KEYWORDS,
     "load_begin(chain, from_block, to_block, block_ids, session=0, timeout_ms=0) -> Load"},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef view_getset[] = {
    {"chunk_blocks", view_chunk_blocks, NULL, "Blocks of a full chunk.", NULL},
    {"namespace", view_namespace, NULL, "The canonical text of the namespace.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot view_slots[] = {
    {Py_tp_dealloc, (void *)view_dealloc},
    {Py_tp_methods, view_methods},
    {Py_tp_getset, view_getset},
    {Py_tp_doc, (void *)"A namespace and shard of an engine; made by Engine.view. Any thread."},
    {0, NULL}};

/* ---- engine ------------------------------------------------------------------------------- */

static void engine_release(EngineObject *e)
{
    struct tierce_engine *engine = e->engine;
    e->engine = NULL;
    if (e->flushes > 0) {
        if (engine != NULL)
            e->leaving = engine;
        return;
    }
    Py_BEGIN_ALLOW_THREADS tierce_engine_close(engine);
    Py_END_ALLOW_THREADS
}

static void engine_dealloc(PyObject *self)
{
    EngineObject *e = (EngineObject *)self;
    engine_release(e);
    tierce_config_destroy(e->config);
    free_object(self);
}

static int set_overrides(struct tierce_config *config, PyObject *overrides, char *why)
{
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(overrides, &at, &name, &value)) {
        const char *n = get_text(name);
        const char *v = n != NULL ? get_text(value) : NULL;
        if (v == NULL)
            return TIERCE_E_CONFIG; /* with an exception set */
        int rc = tierce_config_set(config, n, v, why);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static PyObject *engine_open(PyObject *type, PyObject *args)
{
    (void)type;
    const char *path;
    PyObject *overrides = NULL;
    if (!PyArg_ParseTuple(args, "z|O!", &path, &PyDict_Type, &overrides))
        return NULL;
    EngineObject *e = new_object(engine_type);
    if (e == NULL)
        return NULL;
    char why[TIERCE_CONFIG_ERROR_BYTES] = "";
    int rc = tierce_config_create(&e->config);
    if (rc == 0 && path != NULL)
        rc = tierce_config_load_file(e->config, path, why);
    if (rc == 0)
        rc = tierce_config_load_env(e->config, why);
    if (rc == 0 && overrides != NULL)
        rc = set_overrides(e->config, overrides, why);
    if (rc == 0) {
        Py_BEGIN_ALLOW_THREADS rc = tierce_engine_open(&e->engine, e->config, why);
        Py_END_ALLOW_THREADS
    }
    if (rc < 0) {
        Py_DECREF(e);
        return PyErr_Occurred() ? NULL : raise_status(rc, why);
    }
    return (PyObject *)e;
}

static PyObject *engine_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    engine_release((EngineObject *)self);
    Py_RETURN_NONE;
}

static PyObject *engine_flush(PyObject *self, PyObject *arg)
{
    EngineObject *e = (EngineObject *)self;
    uint32_t timeout_ms;
    if (!get_uint32(arg, &timeout_ms))
        return NULL;
    struct tierce_engine *engine = e->engine, *leaving = NULL;
    if (engine == NULL)
        return raise_closed("engine");
    int rc;
    e->flushes++;
    Py_BEGIN_ALLOW_THREADS rc = tierce_engine_flush(engine, timeout_ms);
    Py_END_ALLOW_THREADS if (--e->flushes == 0)
    {
        leaving = e->leaving;
        e->leaving = NULL;
    }
    Py_BEGIN_ALLOW_THREADS tierce_engine_close(leaving);
    Py_END_ALLOW_THREADS return PyBool_FromLong(rc == 0);
}

static PyObject *engine_stats(PyObject *self, PyObject *unused)
{
    EngineObject *e = (EngineObject *)self;
    (void)unused;
    if (e->engine == NULL)
        return raise_closed("engine");
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    tierce_engine_stats(e->engine, &stats);
    PyObject *dict = PyDict_New();
    if (dict == NULL)
        return NULL;
#define TIERCE_STAT(name, text)                                                                    \
    {                                                                                              \
        PyObject *value = PyLong_FromLongLong((long long)stats.name);                              \
        if (value == NULL || PyDict_SetItemString(dict, #name, value) < 0) {                       \
            Py_XDECREF(value);                                                                     \
            Py_DECREF(dict);                                                                       \
            return NULL;                                                                           \
        }                                                                                          \
        Py_DECREF(value);                                                                          \
    }
#include <tierce/stats.def>
#undef TIERCE_STAT
    return dict;
}

static PyObject *engine_param(PyObject *self, PyObject *arg)
{
    const char *name = get_text(arg);
    if (name == NULL)
        return NULL;
    const char *value = tierce_config_get(((EngineObject *)self)->config, name);
    if (value == NULL) {
        PyErr_SetObject(PyExc_KeyError, arg);
        return NULL;
    }
    return PyUnicode_FromString(value);
}

/* What a namespace is made of. All of it must be said, and nothing else: what is left out or
 * misspelled would make namespaces equal that are not. */
static const char *const namespace_keys[] = {
    "weights",     "model",      "kv_dtype",     "quantization", "layout",
    "layer_count", "cell_bytes", "block_tokens", "chunk_blocks", "algo"};

#define NAMESPACE_KEYS (sizeof(namespace_keys) / sizeof(namespace_keys[0]))

static bool check_keys(PyObject *dict)
{
    for (size_t i = 0; i < NAMESPACE_KEYS; i++) {
        if (PyDict_GetItemString(dict, namespace_keys[i]) == NULL) {
            PyErr_Format(PyExc_KeyError, "the namespace lacks \"%s\"", namespace_keys[i]);
            return false;
        }
    }
    if (PyDict_Size(dict) == (Py_ssize_t)NAMESPACE_KEYS)
        return true;
    PyErr_SetString(PyExc_KeyError, "the namespace has keys that are not known");
    return false;
}

/* The text under `name`; NULL with an exception set if it is no text. */
static const char *text_of(PyObject *dict, const char *name)
{
    return get_text(PyDict_GetItemString(dict, name));
}

static bool number_of(PyObject *dict, const char *name, uint32_t *out)
{
    return get_uint32(PyDict_GetItemString(dict, name), out);
}

static uint32_t *cells_of(PyObject *dict, uint32_t layer_count)
{
    PyObject *list = PyDict_GetItemString(dict, "cell_bytes");
    if (!PyList_Check(list) || PyList_Size(list) != (Py_ssize_t)layer_count) {
        PyErr_SetString(PyExc_ValueError, "cell_bytes: a list with one number for each layer");
        return NULL;
    }
    uint32_t *cells = calloc((size_t)layer_count + 1, sizeof(*cells));
    if (cells == NULL)
        PyErr_NoMemory();
    for (uint32_t i = 0; cells != NULL && i < layer_count; i++) {
        if (!get_uint32(PyList_GetItem(list, (Py_ssize_t)i), &cells[i]))
            break; /* the caller sees the exception */
    }
    return cells;
}

/* Fills *ns from a dict; strings are borrowed from it. False with an exception set. */
static bool fill_namespace(PyObject *dict, struct tierce_namespace *ns)
{
    const char *algo;
    ns->size = sizeof(*ns);
    if (!check_keys(dict) || (ns->weights = text_of(dict, "weights")) == NULL ||
        (ns->model = text_of(dict, "model")) == NULL ||
        (ns->kv_dtype = text_of(dict, "kv_dtype")) == NULL ||
        (ns->quantization = text_of(dict, "quantization")) == NULL ||
        (ns->layout = text_of(dict, "layout")) == NULL || (algo = text_of(dict, "algo")) == NULL)
        return false;
    if (tierce_chain_algo_parse(&ns->algo, algo) < 0) {
        PyErr_Format(PyExc_ValueError, "there is no hash algorithm \"%s\"", algo);
        return false;
    }
    return number_of(dict, "layer_count", &ns->layer_count) &&
           number_of(dict, "block_tokens", &ns->block_tokens) &&
           number_of(dict, "chunk_blocks", &ns->chunk_blocks);
}

static PyObject *engine_view(PyObject *self, PyObject *args)
{
    EngineObject *e = (EngineObject *)self;
    PyObject *dict;
    struct tierce_shard shard = {0, 1, 0, 1};
    if (!PyArg_ParseTuple(args, "O!|(O&O&O&O&)", &PyDict_Type, &dict, convert_uint16,
                          &shard.tp_rank, convert_uint16, &shard.tp_size, convert_uint16,
                          &shard.pp_rank, convert_uint16, &shard.pp_size))
        return NULL;
    if (e->engine == NULL)
        return raise_closed("engine");
    struct tierce_namespace ns = {0};
    if (!fill_namespace(dict, &ns))
        return NULL;
    ViewObject *v = new_object(view_type);
    if (v == NULL)
        return NULL;
    v->layer_count = ns.layer_count;
    v->chunk_blocks = ns.chunk_blocks;
    v->cell_bytes = cells_of(dict, ns.layer_count);
    v->layers = calloc((size_t)ns.layer_count + 1, sizeof(*v->layers));
    int rc = -ENOMEM;
    if (v->cell_bytes != NULL && v->layers != NULL && !PyErr_Occurred()) {
        ns.cell_bytes = v->cell_bytes;
        rc = tierce_view_open(&v->view, e->engine, &ns, &shard);
    }
    if (rc < 0) {
        Py_DECREF(v);
        return PyErr_Occurred() ? NULL : raise_status(rc, NULL);
    }
    Py_INCREF(self);
    v->engine = self;
    return (PyObject *)v;
}

static PyMethodDef engine_methods[] = {
    {"open", engine_open, METH_VARARGS | METH_STATIC,
     "open(config_path: str | None, overrides: dict[str, str] = {}) -> Engine\n\n"
     "File, then TIERCE_* environment, then overrides. Equal configurations share one engine."},
    {"close", engine_close, METH_NOARGS,
     "close() -> None\n\nGives the engine back; it lives on until its views are gone."},
    {"flush", engine_flush, METH_O,
     "flush(timeout_ms: int) -> bool\n\nTrue when all that was stored before is durable."},
    {"stats", engine_stats, METH_NOARGS, "stats() -> dict[str, int]"},
    {"param", engine_param, METH_O, "param(name: str) -> str\n\nThe effective configuration."},
    {"view", engine_view, METH_VARARGS,
     "view(namespace: dict, shard: tuple = (0, 1, 0, 1)) -> View\n\n"
     "Keys: weights, model, kv_dtype, quantization, layout, layer_count, cell_bytes, "
     "block_tokens, chunk_blocks, algo."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot engine_slots[] = {
    {Py_tp_dealloc, (void *)engine_dealloc},
    {Py_tp_methods, engine_methods},
    {Py_tp_doc, (void *)"The engine of a configuration, shared within the process. Any thread."},
    {0, NULL}};

/* ---- module ------------------------------------------------------------------------------- */

static PyObject *core_version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(tierce_version());
}

static PyObject *core_fingerprint(PyObject *module, PyObject *args)
{
    (void)module;
    const char *model_dir, *cache_dir = NULL;
    if (!PyArg_ParseTuple(args, "s|z", &model_dir, &cache_dir))
        return NULL;
    char text[65];
    int rc;
    struct tierce_fingerprint_opts opts = {.size = sizeof(opts), .cache_dir = cache_dir};
    Py_BEGIN_ALLOW_THREADS rc = tierce_weights_fingerprint(text, model_dir, &opts);
    Py_END_ALLOW_THREADS return rc < 0 ? raise_status(rc, NULL) : PyUnicode_FromString(text);
}

static PyMethodDef core_functions[] = {
    {"version", core_version, METH_NOARGS, "version() -> str"},
    {"fingerprint", core_fingerprint, METH_VARARGS,
     "fingerprint(model_dir: str, cache_dir: str | None = None) -> str\n\n"
     "Digest of a model's weights and configuration; reads them once."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef core_module = {.m_base = PyModuleDef_HEAD_INIT,
                                         .m_name = "tierce._core",
                                         .m_doc = "libtierce for Python.",
                                         .m_size = -1,
                                         .m_methods = core_functions};

static bool add_type(PyObject *module, const char *name, size_t size, PyType_Slot *slots,
                     PyTypeObject **out)
{
    char full[64];
    PyOS_snprintf(full, sizeof(full), "tierce._core.%s", name);
    PyType_Spec spec = {.name = full,
                        .basicsize = (int)size,
                        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                        .slots = slots};
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL)
        return false;
    *out = (PyTypeObject *)type;
    return PyModule_AddObjectRef(module, name, type) == 0;
}

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&core_module);
    if (module == NULL)
        return NULL;
    error_type = PyErr_NewExceptionWithDoc(
        "tierce._core.Error", "A failed call; .status and .name say which.", NULL, NULL);
    if (error_type == NULL || PyModule_AddObjectRef(module, "Error", error_type) < 0 ||
        !add_type(module, "Engine", sizeof(EngineObject), engine_slots, &engine_type) ||
        !add_type(module, "View", sizeof(ViewObject), view_slots, &view_type) ||
        !add_type(module, "Chain", sizeof(ChainObject), chain_slots, &chain_type) ||
        !add_type(module, "Store", sizeof(StoreObject), store_slots, &store_type) ||
        !add_type(module, "Load", sizeof(LoadObject), load_slots, &load_type)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
