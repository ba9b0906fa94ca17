/* SPDX-License-Identifier: Apache-2.0 */
#include "python/core/core.h"
#include "engine/engine_programs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Releases a closed engine; if a flush is using it, the flush releases it at its end. */
static void engine_release(EngineObject *e)
{
    struct tierce_engine *engine = e->engine;
    if (e->flushes > 0)
        return;
    tierce__core_handover_stop(e);
    e->engine = NULL;
    Py_BEGIN_ALLOW_THREADS
    tierce_engine_close(engine);
    Py_END_ALLOW_THREADS
}

void tierce__core_end_use(EngineObject *e)
{
    e->flushes--;
    if (e->closed)
        engine_release(e);
}

static void engine_dealloc(PyObject *self)
{
    EngineObject *e = (EngineObject *)self;
    e->closed = true;
    engine_release(e);
    tierce_config_destroy(e->config);
    tierce__core_free(self);
}

static int set_overrides(struct tierce_config *config, PyObject *overrides, char *why)
{
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(overrides, &at, &name, &value)) {
        const char *n = tierce__core_text(name);
        const char *v = n != NULL ? tierce__core_text(value) : NULL;
        if (v == NULL)
            return TIERCE_E_CONFIG; /* with an exception set */
        int rc = tierce_config_set(config, n, v, why);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* File, environment, overrides. After an error, *config may exist, or an exception may be set; the
 * caller handles both. */
static int read_config(struct tierce_config **config, const char *path, PyObject *overrides,
                       char *why)
{
    int rc = tierce_config_create(config);
    if (rc == 0 && path != NULL)
        rc = tierce_config_load_file(*config, path, why);
    if (rc == 0)
        rc = tierce_config_load_env(*config, why);
    if (rc == 0 && overrides != NULL)
        rc = set_overrides(*config, overrides, why);
    return rc;
}

static PyObject *engine_setting(PyObject *type, PyObject *args)
{
    (void)type;
    const char *path, *name;
    PyObject *overrides;
    if (!PyArg_ParseTuple(args, "zO!s", &path, &PyDict_Type, &overrides, &name))
        return NULL;
    char why[TIERCE_CONFIG_ERROR_BYTES] = "";
    struct tierce_config *config = NULL;
    PyObject *out = NULL;
    int rc = read_config(&config, path, overrides, why);
    const char *value = rc == 0 ? tierce_config_get(config, name) : NULL;
    if (value != NULL)
        out = PyUnicode_FromString(value);
    else if (rc == 0)
        PyErr_SetString(PyExc_KeyError, name);
    else if (!PyErr_Occurred())
        tierce__core_raise(rc, why);
    tierce_config_destroy(config);
    return out;
}

static int add_program(void *list, const char *path, const char *nothing)
{
    (void)nothing;
    PyObject *text = PyUnicode_DecodeFSDefault(path);
    int rc = text != NULL && PyList_Append(list, text) == 0 ? 0 : TIERCE_E_CONFIG;
    Py_XDECREF(text);
    return rc;
}

static int add_setting(void *settings, const char *name, const char *value)
{
    PyObject *text = PyUnicode_FromString(value);
    int rc = text != NULL && PyDict_SetItemString(settings, name, text) == 0 ? 0 : TIERCE_E_CONFIG;
    Py_XDECREF(text);
    return rc;
}

static PyObject *engine_programs(PyObject *type, PyObject *args)
{
    (void)type;
    const char *path;
    PyObject *overrides, *list = PyList_New(0), *settings = PyDict_New(), *out = NULL;
    char why[TIERCE_CONFIG_ERROR_BYTES] = "";
    struct tierce_config *config = NULL;
    if (list != NULL && settings != NULL &&
        PyArg_ParseTuple(args, "zO!", &path, &PyDict_Type, &overrides)) {
        int rc = read_config(&config, path, overrides, why);
        if (rc == 0)
            rc = tierce__engine_programs(config, add_program, list, why);
        if (rc == 0)
            rc = tierce__engine_settings(config, add_setting, settings);
        if (rc == 0)
            out = PyTuple_Pack(2, list, settings);
        else if (!PyErr_Occurred())
            tierce__core_raise(rc, why);
    }
    tierce_config_destroy(config);
    Py_XDECREF(list);
    Py_XDECREF(settings);
    return out;
}

static PyObject *engine_set_role(PyObject *self, PyObject *arg)
{
    EngineObject *e = (EngineObject *)self;
    const char *role = tierce__core_text(arg);
    if (role == NULL)
        return NULL;
    if (e->closed)
        return tierce__core_raise_closed("engine");
    int rc = tierce_engine_set_role(e->engine, role);
    return rc < 0 ? tierce__core_raise(
                        rc, "role must have 1 to 31 characters: letters, digits, spaces, - and _")
                  : Py_NewRef(Py_None);
}

static PyObject *engine_note_request(PyObject *self, PyObject *args)
{
    EngineObject *e = (EngineObject *)self;
    struct tierce_request request = {.size = sizeof(request)};
    unsigned long long numbers[8];
    int limit, rc;
    if (!PyArg_ParseTuple(args, "sKKKKKKKKi", &request.name, &numbers[0], &numbers[1], &numbers[2],
                          &numbers[3], &numbers[4], &numbers[5], &numbers[6], &numbers[7], &limit))
        return NULL;
    if (e->closed)
        return tierce__core_raise_closed("engine");
    request.session = numbers[0];
    request.tokens = numbers[1];
    request.unit_tokens = numbers[2];
    request.local_tokens = numbers[3];
    request.looked_tokens = numbers[4];
    request.found_tokens = numbers[5];
    request.loaded_tokens = numbers[6];
    request.failed_tokens = numbers[7];
    request.limit = (enum tierce_request_limit)limit;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce_request_note(e->engine, &request);
    Py_END_ALLOW_THREADS
    return rc < 0 ? tierce__core_raise(rc, "a request's name has 1 to 128 bytes, and its limit is "
                                           "one of enum tierce_request_limit")
                  : Py_NewRef(Py_None);
}

static PyObject *engine_open(PyObject *type, PyObject *args)
{
    (void)type;
    const char *path;
    PyObject *overrides = NULL;
    if (!PyArg_ParseTuple(args, "z|O!", &path, &PyDict_Type, &overrides))
        return NULL;
    EngineObject *e = tierce__core_new(tierce__core_engine_type);
    if (e == NULL)
        return NULL;
    char why[TIERCE_CONFIG_ERROR_BYTES] = "";
    int rc = read_config(&e->config, path, overrides, why);
    if (rc == 0) {
        Py_BEGIN_ALLOW_THREADS
        rc = tierce_engine_open(&e->engine, e->config, why);
        Py_END_ALLOW_THREADS
    }
    if (rc < 0) {
        Py_DECREF(e);
        return PyErr_Occurred() ? NULL : tierce__core_raise(rc, why);
    }
    return (PyObject *)e;
}

static PyObject *engine_close(PyObject *self, PyObject *unused)
{
    EngineObject *e = (EngineObject *)self;
    (void)unused;
    e->closed = true;
    engine_release(e);
    Py_RETURN_NONE;
}

static PyObject *engine_flush(PyObject *self, PyObject *arg)
{
    EngineObject *e = (EngineObject *)self;
    uint32_t timeout_ms;
    if (!tierce__core_uint32(arg, &timeout_ms))
        return NULL;
    if (e->closed)
        return tierce__core_raise_closed("engine");
    int rc;
    e->flushes++;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce_engine_flush(e->engine, timeout_ms);
    Py_END_ALLOW_THREADS
    e->flushes--;
    if (e->closed)
        engine_release(e);
    return PyBool_FromLong(rc == 0);
}

static PyObject *engine_stats(PyObject *self, PyObject *unused)
{
    EngineObject *e = (EngineObject *)self;
    (void)unused;
    if (e->closed)
        return tierce__core_raise_closed("engine");
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
    const char *name = tierce__core_text(arg);
    if (name == NULL)
        return NULL;
    const char *value = tierce_config_get(((EngineObject *)self)->config, name);
    if (value == NULL) {
        PyErr_SetObject(PyExc_KeyError, arg);
        return NULL;
    }
    return PyUnicode_FromString(value);
}

/* The keys of a namespace. All of them are required, the last three for a group of layers only, and
 * no others are accepted: a missing or misspelt key would make different namespaces equal. */
static const char *const namespace_keys[] = {
    "weights",     "model",      "kv_dtype",     "quantization", "layout",
    "layer_count", "cell_bytes", "block_tokens", "chunk_blocks", "algo",
    "group",       "window",     "layers"};

enum { NAMESPACE_KEYS = 10, NAMESPACE_GROUP_KEYS = 13 };

static bool check_keys(PyObject *dict)
{
    bool has_group = PyDict_GetItemString(dict, "group") != NULL;
    int count = has_group ? NAMESPACE_GROUP_KEYS : NAMESPACE_KEYS;
    for (int i = 0; i < count; i++) {
        if (PyDict_GetItemString(dict, namespace_keys[i]) == NULL) {
            PyErr_Format(PyExc_KeyError, "the namespace lacks \"%s\"", namespace_keys[i]);
            return false;
        }
    }
    if (PyDict_Size(dict) != (Py_ssize_t)count) {
        PyErr_SetString(PyExc_KeyError, "the namespace has unknown keys");
        return false;
    }
    return true;
}

/* The text under a key that exists; NULL with an exception set if it is none. */
static const char *text_of(PyObject *dict, const char *name)
{
    return tierce__core_text(PyDict_GetItemString(dict, name));
}

static bool number_of(PyObject *dict, const char *name, uint32_t *out)
{
    return tierce__core_uint32(PyDict_GetItemString(dict, name), out);
}

/* The list under a key, with a number for each layer; free. NULL with an exception set. */
static uint32_t *numbers_of(PyObject *dict, const char *name, uint32_t layer_count)
{
    PyObject *list = PyDict_GetItemString(dict, name);
    if (!PyList_Check(list) || PyList_Size(list) != (Py_ssize_t)layer_count) {
        PyErr_Format(PyExc_ValueError, "%s: a list with one number for each layer", name);
        return NULL;
    }
    uint32_t *numbers = calloc((size_t)layer_count + 1, sizeof(*numbers));
    if (numbers == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (uint32_t i = 0; i < layer_count; i++) {
        if (!tierce__core_uint32(PyList_GetItem(list, (Py_ssize_t)i), &numbers[i])) {
            free(numbers);
            return NULL;
        }
    }
    return numbers;
}

/* The kind of group under its key. */
static bool group_of(PyObject *dict, struct tierce_namespace *ns)
{
    if (PyDict_GetItemString(dict, "group") == NULL)
        return true;
    const char *name = text_of(dict, "group");
    if (name == NULL)
        return false;
    for (int group = TIERCE_GROUP_FULL; group <= TIERCE_GROUP_STATE; group++) {
        if (strcmp(tierce_group_name((enum tierce_group)group), name) == 0)
            ns->group = (enum tierce_group)group;
    }
    if (ns->group == TIERCE_GROUP_ALL) {
        PyErr_Format(PyExc_ValueError,
                     "invalid group \"%s\": accepted are full, window, chunked and state", name);
        return false;
    }
    return number_of(dict, "window", &ns->window);
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
        PyErr_Format(
            PyExc_ValueError,
            "unknown hash algorithm \"%s\": accepted are sha256, xxh3-128 and vllm-sha256-cbor",
            algo);
        return false;
    }
    return number_of(dict, "layer_count", &ns->layer_count) &&
           number_of(dict, "block_tokens", &ns->block_tokens) &&
           number_of(dict, "chunk_blocks", &ns->chunk_blocks) && group_of(dict, ns);
}

static PyObject *engine_view(PyObject *self, PyObject *args)
{
    EngineObject *e = (EngineObject *)self;
    PyObject *dict;
    struct tierce_shard shard = {0, 1, 0, 1};
    struct tierce_part part = {0};
    if (!PyArg_ParseTuple(args, "O!|(O&O&O&O&)(O&O&O&O&)", &PyDict_Type, &dict, tierce__core_uint16,
                          &shard.tp_rank, tierce__core_uint16, &shard.tp_size, tierce__core_uint16,
                          &shard.pp_rank, tierce__core_uint16, &shard.pp_size, tierce__core_uint32,
                          &part.first_layer, tierce__core_uint32, &part.layer_count,
                          tierce__core_uint32, &part.index, tierce__core_uint32, &part.count))
        return NULL;
    if (e->closed)
        return tierce__core_raise_closed("engine");
    struct tierce_namespace ns = {0};
    if (!fill_namespace(dict, &ns))
        return NULL;
    ViewObject *v = tierce__core_new(tierce__core_view_type);
    if (v == NULL)
        return NULL;
    v->layer_count = part.count > 0 ? part.layer_count : ns.layer_count;
    v->first_layer = part.first_layer;
    v->chunk_blocks = ns.chunk_blocks;
    v->cell_bytes = numbers_of(dict, "cell_bytes", ns.layer_count);
    uint32_t *layers = ns.group == TIERCE_GROUP_ALL || v->cell_bytes == NULL
                           ? NULL
                           : numbers_of(dict, "layers", ns.layer_count);
    int rc = -ENOMEM;
    if (!PyErr_Occurred()) {
        ns.cell_bytes = v->cell_bytes;
        ns.layers = layers;
        rc = tierce_view_open_part(&v->view, e->engine, &ns, &shard, part.count > 0 ? &part : NULL);
    }
    free(layers);
    if (rc < 0) {
        Py_DECREF(v);
        return PyErr_Occurred() ? NULL : tierce__core_raise(rc, NULL);
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
     "close() -> None\n\nReleases the engine, which exists until its views are closed."},
    {"flush", engine_flush, METH_O,
     "flush(timeout_ms: int) -> bool\n\nTrue when all that was stored before is durable."},
    {"stats", engine_stats, METH_NOARGS, "stats() -> dict[str, int]"},
    {"param", engine_param, METH_O, "param(name: str) -> str\n\nThe effective configuration."},
    {"handover_accept", tierce__core_handover_accept, METH_VARARGS,
     "handover_accept(hosts: str, share: int, hold_ms: int) -> None\n\n"
     "From now on, engines on these hosts may write chunks to this one, with a ticket. share: of "
     "memory, in thousandths, for chunks that are arriving; 0: a quarter, and a minute."},
    {"handover_tickets", tierce__core_handover_tickets, METH_VARARGS,
     "handover_tickets(count: int, ms: int, holder: str = '') -> list[str]\n\n"
     "Tickets for a prompt each, which must be used within ms. Those of a holder that has used one "
     "are kept when there are too many."},
    {"inbox_stats", tierce__core_inbox_stats, METH_NOARGS, "inbox_stats() -> dict[str, int]"},
    {"handover_expect", tierce__core_handover_expect, METH_VARARGS,
     "handover_expect(token: str, ms: int) -> None\n\n"
     "Begins an offer to the engine that knows the token, for `ms`. A read of it waits until it "
     "is open or withdrawn."},
    {"handover_open", tierce__core_handover_open, METH_VARARGS,
     "handover_open(token: str, tokens: int) -> None\n\n"
     "Opens the offer: what was pinned for it (View.handover_pin) restores `tokens` tokens."},
    {"handover_withdraw", tierce__core_handover_withdraw, METH_VARARGS,
     "handover_withdraw(token: str) -> None\n\nReleases the offer, if there is one."},
    {"handover_start", tierce__core_handover_start, METH_VARARGS,
     "handover_start(host: str, port: int) -> int\n\n"
     "Serves offers (handover_expect) on this address until the engine is closed; port 0: a "
     "free one. Returns the port."},
    {"handover_uses_tls", tierce__core_handover_uses_tls, METH_NOARGS,
     "handover_uses_tls() -> bool\n\nWhether the server of handover_start uses TLS."},
    {"events", tierce__core_events, METH_NOARGS,
     "events() -> Events\n\nChanges of memory and disk from now on. Raises Error if a node has "
     "them."},
    {"set_role", engine_set_role, METH_O,
     "set_role(role: str) -> None\n\nSets the role that `tierce top` shows for this process."},
    {"note_request", engine_note_request, METH_VARARGS,
     "note_request(name: str, session: int, tokens: int, unit_tokens: int, local_tokens: int, "
     "looked_tokens: int, found_tokens: int, loaded_tokens: int, failed_tokens: int, limit: int) "
     "-> "
     "None\n\n"
     "Records a request that has ended, for `tierce why --request`. See struct tierce_request in "
     "tierce/why.h."},
    {"setting", engine_setting, METH_VARARGS | METH_STATIC,
     "setting(config_path: str | None, overrides: dict[str, str], name: str) -> str\n\n"
     "The value that a parameter has in an engine with this configuration."},
    {"programs", engine_programs, METH_VARARGS | METH_STATIC,
     "programs(config_path: str | None, overrides: dict[str, str]) -> tuple[list[str], dict[str, "
     "str]]\n\n"
     "The files of plugins.start, and the values of all parameters without credentials. Raises "
     "Error if another user could change a file."},
    {"view", engine_view, METH_VARARGS,
     "view(namespace: dict, shard: tuple = (0, 1, 0, 1), part: tuple = (0, 0, 0, 0)) -> View\n\n"
     "A part is first layer, layers, index, count; a count of 0: the whole chunk. "
     "Keys: weights, model, kv_dtype, quantization, layout, layer_count, cell_bytes, "
     "block_tokens, chunk_blocks, algo; of a group of layers also group (full, window, chunked or "
     "state), window (tokens, or 0) and layers (their numbers in the model)."},
    {NULL, NULL, 0, NULL}};

PyType_Slot tierce__core_engine_slots[] = {
    {Py_tp_dealloc, (void *)engine_dealloc},
    {Py_tp_methods, engine_methods},
    {Py_tp_doc, (void *)"The engine of a configuration, shared within the process. Any thread."},
    {0, NULL}};
