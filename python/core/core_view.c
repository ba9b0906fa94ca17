/* SPDX-License-Identifier: Apache-2.0 */
#include "python/core/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/store/room_wait.h"

static void view_dealloc(PyObject *self)
{
    ViewObject *v = (ViewObject *)self;
    struct tierce_view *view = v->view;
    Py_BEGIN_ALLOW_THREADS /* closing the last view of a closed engine waits for its disk */
    tierce_view_close(view);
    Py_END_ALLOW_THREADS
    free(v->cell_bytes);
    free(v->layers);
    Py_XDECREF(v->engine);
    tierce__core_free(self);
}

static bool read_addresses(const ViewObject *v, struct tierce_paged_layer *layers, PyObject *bases,
                           PyObject *strides)
{
    for (uint32_t i = 0; i < v->layer_count; i++) {
        void *base = PyLong_AsVoidPtr(PyList_GetItem(bases, (Py_ssize_t)i));
        uint64_t stride = PyLong_AsUnsignedLongLong(PyList_GetItem(strides, (Py_ssize_t)i));
        if (PyErr_Occurred())
            return false;
        layers[i] = (struct tierce_paged_layer){base, stride, v->cell_bytes[v->first_layer + i]};
    }
    return true;
}

/* For PyArg_Parse: a device by its name. */
static int read_device(PyObject *object, void *out)
{
    static const struct {
        const char *name;
        enum tierce_device device;
    } devices[] = {{"host", TIERCE_DEVICE_HOST}, {"cuda", TIERCE_DEVICE_CUDA}};
    const char *name = PyUnicode_AsUTF8AndSize(object, NULL);
    if (name == NULL)
        return 0;
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        if (strcmp(devices[i].name, name) == 0) {
            *(enum tierce_device *)out = devices[i].device;
            return 1;
        }
    }
    PyErr_Format(PyExc_ValueError, "device %R: \"host\" or \"cuda\" is accepted", object);
    return 0;
}

static PyObject *view_set_paged(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"bases", "strides", "block_count", "device", NULL};
    ViewObject *v = (ViewObject *)self;
    PyObject *bases, *strides;
    uint32_t block_count;
    enum tierce_device device = TIERCE_DEVICE_HOST;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O&|O&", names, &PyList_Type, &bases,
                                     &PyList_Type, &strides, tierce__core_uint32, &block_count,
                                     read_device, &device))
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
    v->paged = (struct tierce_paged){.size = sizeof(v->paged),
                                     .layers = v->layers,
                                     .layer_count = v->layer_count,
                                     .block_count = block_count,
                                     .device = device};
    Py_RETURN_NONE;
}

static bool has_paged(const ViewObject *v)
{
    if (v->paged.layers == NULL)
        PyErr_SetString(PyExc_ValueError, "the view has no memory: call set_paged first");
    return v->paged.layers != NULL;
}

static PyObject *view_prepare(PyObject *self, PyObject *unused)
{
    ViewObject *v = (ViewObject *)self;
    (void)unused;
    if (!has_paged(v))
        return NULL;
    int rc;
    v->transfers++; /* the description stays meanwhile */
    Py_BEGIN_ALLOW_THREADS
    rc = tierce_view_prepare(v->view, &v->paged);
    Py_END_ALLOW_THREADS
    v->transfers--;
    if (rc < 0 && rc != -EAGAIN)
        return tierce__core_raise(rc, NULL);
    return PyBool_FromLong(rc == 0);
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
        return tierce__core_raise(rc, NULL);
    ChainObject *object = tierce__core_new(tierce__core_chain_type);
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
    if (!PyObject_TypeCheck(object, tierce__core_chain_type)) {
        PyErr_SetString(PyExc_TypeError, "expected a Chain");
        return NULL;
    }
    return (ChainObject *)object;
}

static PyObject *view_lookup(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    ViewObject *v = (ViewObject *)self;
    if (nargs != 5 && nargs != 6) {
        PyErr_SetString(PyExc_TypeError,
                        "lookup(chain, from_block, to_block, flags, session[, tag])");
        return NULL;
    }
    ChainObject *chain = chain_of(args[0]);
    struct tierce_lookup_opts opts = {.size = sizeof(opts)};
    uint64_t to_block;
    uint32_t flags;
    if (chain == NULL || !tierce__core_uint64(args[1], &opts.from_block) ||
        !tierce__core_uint64(args[2], &to_block) || !tierce__core_uint32(args[3], &flags) ||
        !tierce__core_uint64(args[4], &opts.session))
        return NULL;
    opts.flags = flags;
    if (nargs == 6 && (opts.tag = PyUnicode_AsUTF8AndSize(args[5], NULL)) == NULL)
        return NULL;
    struct tierce_found found;
    int rc;
    chain->readers++;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce_lookup(v->view, chain->chain, to_block, &opts, &found);
    Py_END_ALLOW_THREADS
    chain->readers--;
    if (rc < 0)
        return tierce__core_raise(rc, NULL);
    return Py_BuildValue("(KKO)", (unsigned long long)found.blocks,
                         (unsigned long long)found.memory_blocks,
                         found.pending ? Py_True : Py_False);
}

static PyObject *view_unpin(PyObject *self, PyObject *arg)
{
    uint64_t session;
    if (!tierce__core_uint64(arg, &session))
        return NULL;
    Py_BEGIN_ALLOW_THREADS /* a node is waited for */
    tierce_unpin(((ViewObject *)self)->view, session);
    Py_END_ALLOW_THREADS
    return Py_NewRef(Py_None);
}

static PyObject *view_clear(PyObject *self, PyObject *unused)
{
    ViewObject *v = (ViewObject *)self;
    EngineObject *e = (EngineObject *)v->engine;
    (void)unused;
    if (e->closed)
        return tierce__core_raise_closed("engine");
    int64_t chunks;
    e->flushes++; /* close leaves the engine open meanwhile */
    Py_BEGIN_ALLOW_THREADS
    chunks = tierce_engine_clear(e->engine, 0, v->view);
    Py_END_ALLOW_THREADS
    tierce__core_end_use(e);
    return chunks < 0 ? tierce__core_raise((int)chunks, NULL) : PyLong_FromLongLong(chunks);
}

/*
 * Fills the options of a transfer from Python's arguments and borrows for it the ids, the chain and
 * the view's description; false with an exception set, and nothing is borrowed.
 */
static bool begin_transfer(ViewObject *v, PyObject *chain, PyObject *ids, Py_buffer *buffer,
                           struct tierce_transfer_opts *opts)
{
    if (chain_of(chain) == NULL)
        return false;
    opts->chain = ((ChainObject *)chain)->chain;
    if (!has_paged(v))
        return false;
    if (!tierce__core_int32s(ids, buffer))
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

/* The transfer has begun, or has failed to: the description is kept only for a transfer in
 * progress. */
static void transfer_begun(ViewObject *v, PyObject *chain, Py_buffer *buffer, bool goes_on)
{
    ((ChainObject *)chain)->readers--;
    v->transfers -= !goes_on;
    PyBuffer_Release(buffer);
}

static PyObject *view_store_begin(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"chain", "to_block", "block_ids",  "tail",   "session",
                            "tag",   "write",    "from_block", "stream", NULL};
    ViewObject *v = (ViewObject *)self;
    PyObject *chain, *ids;
    uint64_t from = 0, to, session = 0, write = 0, stream = 0;
    int tail = 0;
    const char *tag = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO&O|pO&zO&O&O&", names, &chain,
                                     tierce__core_uint64, &to, &ids, &tail, tierce__core_uint64,
                                     &session, &tag, tierce__core_uint64, &write,
                                     tierce__core_uint64, &from, tierce__core_uint64, &stream))
        return NULL;
    struct tierce_transfer_opts opts = {.from_block = from,
                                        .to_block = to,
                                        .session = session,
                                        .tail = tail != 0,
                                        .tag = tag,
                                        .write = write,
                                        .stream = (void *)(uintptr_t)stream};
    Py_buffer buffer;
    if (!begin_transfer(v, chain, ids, &buffer, &opts))
        return NULL;
    struct tierce_store *store = NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce_store_begin(&store, v->view, &opts);
    Py_END_ALLOW_THREADS
    transfer_begun(v, chain, &buffer, store != NULL);
    if (rc < 0)
        return tierce__core_raise(rc, NULL);
    if (store == NULL)
        Py_RETURN_NONE;
    StoreObject *object = tierce__core_new(tierce__core_store_type);
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

static PyObject *view_store(PyObject *self, PyObject *args)
{
    ViewObject *v = (ViewObject *)self;
    PyObject *chain, *ids;
    uint64_t to;
    uint32_t wait_ms;
    if (!PyArg_ParseTuple(args, "OO&OO&", &chain, tierce__core_uint64, &to, &ids,
                          tierce__core_uint32, &wait_ms))
        return NULL;
    struct tierce_transfer_opts opts = {.to_block = to};
    Py_buffer buffer;
    if (!begin_transfer(v, chain, ids, &buffer, &opts))
        return NULL;
    int64_t blocks;
    bool is_full;
    Py_BEGIN_ALLOW_THREADS
    blocks = tierce__store_within(v->view, &opts, wait_ms, &is_full);
    Py_END_ALLOW_THREADS
    transfer_begun(v, chain, &buffer, false);
    if (blocks < 0)
        return tierce__core_raise((int)blocks, NULL);
    return Py_BuildValue("LN", (long long)blocks, PyBool_FromLong(is_full));
}

static PyObject *view_load_begin(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"chain",   "from_block", "to_block", "block_ids",
                            "session", "timeout_ms", "stream",   NULL};
    ViewObject *v = (ViewObject *)self;
    PyObject *chain, *ids;
    uint64_t from, to, session = 0, stream = 0;
    uint32_t timeout_ms = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO&O&O|O&O&O&", names, &chain,
                                     tierce__core_uint64, &from, tierce__core_uint64, &to, &ids,
                                     tierce__core_uint64, &session, tierce__core_uint32,
                                     &timeout_ms, tierce__core_uint64, &stream))
        return NULL;
    struct tierce_transfer_opts opts = {.from_block = from,
                                        .to_block = to,
                                        .session = session,
                                        .timeout_ms = timeout_ms,
                                        .stream = (void *)(uintptr_t)stream};
    Py_buffer buffer;
    if (!begin_transfer(v, chain, ids, &buffer, &opts))
        return NULL;
    struct tierce_load *load = NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce_load_begin(&load, v->view, &opts);
    Py_END_ALLOW_THREADS
    transfer_begun(v, chain, &buffer, load != NULL);
    if (rc < 0)
        return tierce__core_raise(rc, NULL);
    LoadObject *object = tierce__core_new(tierce__core_load_type);
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

static PyObject *view_computed(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    uint64_t tokens, ns;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "computed(tokens, ns)");
        return NULL;
    }
    if (!tierce__core_uint64(args[0], &tokens) || !tierce__core_uint64(args[1], &ns))
        return NULL;
    Py_BEGIN_ALLOW_THREADS /* a node is waited for */
    tierce_view_computed(((ViewObject *)self)->view, tokens, ns);
    Py_END_ALLOW_THREADS
    return Py_NewRef(Py_None);
}

static PyObject *view_hint(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    uint64_t session, hint, returns_ms = 0;
    if (nargs != 2 && nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "hint(session, hint, returns_ms=0)");
        return NULL;
    }
    if (!tierce__core_uint64(args[0], &session) || !tierce__core_uint64(args[1], &hint) ||
        (nargs == 3 && !tierce__core_uint64(args[2], &returns_ms)))
        return NULL;
    enum tierce_hint kind = hint <= TIERCE_HINT_TTL ? (enum tierce_hint)hint : TIERCE_HINT_NONE;
    if (kind != hint) {
        PyErr_SetString(PyExc_ValueError, "a hint is a number from 0 to 5");
        return NULL;
    }
    bool is_timed = returns_ms > 0 && (kind == TIERCE_HINT_SOON || kind == TIERCE_HINT_LATER);
    uint32_t in_ms = returns_ms < UINT32_MAX ? (uint32_t)returns_ms : UINT32_MAX;
    struct tierce_view *view = ((ViewObject *)self)->view;
    int rc = is_timed ? tierce_session_returns(view, session, in_ms)
                      : tierce_session_hint(view, session, kind);
    if (rc < 0 && rc != TIERCE_E_UNSUPPORTED)
        return tierce__core_raise(rc, NULL);
    return PyBool_FromLong(rc == 0);
}

static PyObject *view_prefetch_begin(PyObject *self, PyObject *args)
{
    ViewObject *v = (ViewObject *)self;
    PyObject *object;
    uint64_t from, to, session;
    uint32_t timeout_ms = 0;
    int verify = 0, notified = -1;
    if (!PyArg_ParseTuple(args, "OO&O&O&|O&pi", &object, tierce__core_uint64, &from,
                          tierce__core_uint64, &to, tierce__core_uint64, &session,
                          tierce__core_uint32, &timeout_ms, &verify, &notified))
        return NULL;
    ChainObject *chain = chain_of(object);
    PrefetchObject *p = chain != NULL ? tierce__core_new(tierce__core_prefetch_type) : NULL;
    if (p == NULL)
        return NULL;
    struct tierce_prefetch_opts opts = {
        .size = sizeof(opts),
        .flags = TIERCE_PREFETCH_PIN | (verify ? TIERCE_PREFETCH_VERIFY : 0),
        .session = session,
        .from_block = from,
        .timeout_ms = timeout_ms,
        .on_done = notified >= 0 ? tierce__core_prefetch_done : NULL,
        .arg = p};
    int rc;
    p->notified = notified;
    chain->readers++;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce_prefetch_begin(&p->prefetch, v->view, chain->chain, to, &opts);
    Py_END_ALLOW_THREADS
    chain->readers--;
    if (rc < 0) {
        Py_DECREF(p);
        return tierce__core_raise(rc, NULL);
    }
    Py_INCREF(self);
    p->view = self;
    return (PyObject *)p;
}

static PyObject *view_needs(PyObject *self, PyObject *arg)
{
    uint64_t blocks;
    if (!tierce__core_uint64(arg, &blocks))
        return NULL;
    return PyLong_FromUnsignedLongLong(tierce_view_needs(((ViewObject *)self)->view, blocks));
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
    {"set_paged", (PyCFunction)(void (*)(void))view_set_paged, METH_VARARGS | METH_KEYWORDS,
     "set_paged(bases: list[int], strides: list[int], block_count: int, device='host') -> None\n\n"
     "Describes the engine's paged memory: address of block 0 and bytes between blocks, for each "
     "layer; device 'cuda': addresses of a GPU. The memory must outlive every load and store; "
     "raises while one is in progress."},
    {"prepare", view_prepare, METH_NOARGS,
     "prepare() -> bool\n\n"
     "Opens the device of the paged memory and begins to pin Tierce's memory for it. False: the "
     "device is not ready, and nothing is stored or loaded yet. Always true for memory of the "
     "host."},
    {"chain", (PyCFunction)(void (*)(void))view_chain, METH_VARARGS | METH_KEYWORDS,
     "chain(lora=b'', salt=b'', other=b'') -> Chain"},
    {"lookup", (PyCFunction)(void (*)(void))view_lookup, METH_FASTCALL,
     "lookup(chain, from_block, to_block, flags, session, tag=...) -> (blocks, memory_blocks, "
     "pending)\n\n"
     "Leading blocks that could be loaded, and those of them in memory; whether a remote store is "
     "still being queried for more. Flags: 1 pin for the session, 2 search memory only, 4 do not "
     "wait "
     "for remote stores, 8 the lookup is repeated if it is pending."},
    {"computed", (PyCFunction)(void (*)(void))view_computed, METH_FASTCALL,
     "computed(tokens: int, ns: int) -> None\n\n"
     "The engine computed the KV of `tokens` prompt tokens in `ns` nanoseconds."},
    {"handover_pin", tierce__core_handover_pin, METH_VARARGS,
     "handover_pin(chain, to_block, token: str) -> int\n\n"
     "Pins what these blocks require until the offer ends. Returns how many blocks memory can "
     "restore."},
    {"handover_source", tierce__core_handover_source, METH_VARARGS,
     "handover_source(host, port, token, session, wait_ms, timeout_ms, ticket=None, tls=False) -> "
     "Source\n\n"
     "Begins to read an offer of another engine into memory, whose pins are the session's. Waits "
     "for what that engine writes with the ticket. Blocks."},
    {"handover_read", tierce__core_handover_read, METH_VARARGS,
     "handover_read(source, chain, from_block, to_block, theirs: View = None, heads: str = None) "
     "-> "
     "(blocks, bytes, why)\n\n"
     "Reads the blocks into memory. Returns the leading blocks that memory holds, the bytes that "
     "were read, and why it ended before the last block, or ''. `theirs`, `heads`: a view of a "
     "prefiller with a different tensor-parallel size, and how its chunks become those of this "
     "view "
     "(src/core/chunk/heads.h). Blocks."},
    {"handover_note", tierce__core_handover_note, METH_VARARGS,
     "handover_note(session, host, port, why: str, blocks=0, bytes=0, pushed_bytes=0, "
     "push_status=0) -> None\n\n"
     "Records for `tierce why` what came of the offer of a session."},
    {"push_held", tierce__core_push_held, METH_VARARGS,
     "push_held(push: Push, chain, to_block) -> int\n\n"
     "As Push.held, for chunks of this view, which may be another one of the same engine."},
    {"push_begin", tierce__core_push_begin, METH_VARARGS,
     "push_begin(host, port, ticket, wait_ms, timeout_ms) -> Push\n\n"
     "Begins to write chunks to the engine that made the ticket."},
    {"needs", view_needs, METH_O,
     "needs(blocks: int) -> int\n\n"
     "The first block that must be loaded so that the engine can continue after so many; `blocks` "
     "if "
     "nothing must be loaded."},
    {"hint", (PyCFunction)(void (*)(void))view_hint, METH_FASTCALL,
     "hint(session: int, hint: int, returns_ms: int = 0) -> bool\n\n"
     "Gives a hint about the next request after this session: 1 none, 2 one, 3 within a minute, 4 "
     "later, 5 within a limited time; 0: no hint. returns_ms, of 3 and 4: the time until it, if it "
     "is "
     "known. False: the node is of a version without hints."},
    {"unpin", view_unpin, METH_O, "unpin(session: int) -> None"},
    {"clear", view_clear, METH_NOARGS,
     "clear() -> int\n\n"
     "Removes the chunks of the namespace, of all shards, from memory and disk, and returns their "
     "number. Remote stores keep theirs."},
    {"prefetch_begin", view_prefetch_begin, METH_VARARGS,
     "prefetch_begin(chain, from_block, to_block, session, timeout_ms=0, verify=False, "
     "notified=-1) -> Prefetch\n\n"
     "Begins to bring the blocks to memory, pinned for the session; waits for nothing. verify: "
     "also "
     "verifies what it reads, for callers whose loads must not fail. notified: an eventfd that is "
     "written when the result is final; it must stay open until end()."},
    {"store_begin", (PyCFunction)(void (*)(void))view_store_begin, METH_VARARGS | METH_KEYWORDS,
     "store_begin(chain, to_block, block_ids, tail=False, session=0, tag=None, write=0, "
     "from_block=0, stream=0) -> Store | None\n\n"
     "None when nothing is missing. write: the number of a store of several parts. from_block: in "
     "a "
     "window, chunked or state group, the first block whose KV is still there. stream: the handle "
     "of the CUDA stream that computes the KV, if it is in the memory of a GPU."},
    {"store", view_store, METH_VARARGS,
     "store(chain, to_block, block_ids, wait_ms) -> tuple[int, bool]\n\n"
     "Stores memory of the host that is complete. Waits for room in memory and in the queues of "
     "the slower tiers; a node waits as it is configured. Returns the blocks stored, and whether "
     "there was no room, which a node does not report. Blocks that are held, or that another "
     "thread or process is storing, are not stored again."},
    {"load_begin", (PyCFunction)(void (*)(void))view_load_begin, METH_VARARGS | METH_KEYWORDS,
     "load_begin(chain, from_block, to_block, block_ids, session=0, timeout_ms=0, stream=0) -> "
     "Load\n\nstream: the handle of the CUDA stream that uses the KV."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef view_getset[] = {
    {"chunk_blocks", view_chunk_blocks, NULL, "Blocks of a full chunk.", NULL},
    {"namespace", view_namespace, NULL, "The canonical text of the namespace.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

PyType_Slot tierce__core_view_slots[] = {
    {Py_tp_dealloc, (void *)view_dealloc},
    {Py_tp_methods, view_methods},
    {Py_tp_getset, view_getset},
    {Py_tp_doc, (void *)"A namespace and shard of an engine; made by Engine.view. Any thread."},
    {0, NULL}};
