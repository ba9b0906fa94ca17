/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tierce._core: libtierce for Python, in the limited API (one binary for every CPython >= 3.11).
 *
 * Handles, buffers and numbers only; the docstrings are the contract. Tokens and block ids come as
 * objects with the buffer protocol (array.array('i'), numpy, torch via memoryview), never as
 * lists. Calls that copy or may wait release the GIL. A load, a store or a chain belongs to one
 * thread at a time: another that meets a call under way gets an exception. Everything else may be
 * called from any thread.
 */
#include "python/core/core.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* PyInit__core fills them once; the module is never unloaded. */
static PyObject *tierce__core_error;
PyTypeObject *tierce__core_engine_type, *tierce__core_view_type, *tierce__core_chain_type,
    *tierce__core_store_type, *tierce__core_load_type, *tierce__core_prefetch_type,
    *tierce__core_push_type, *tierce__core_source_type, *tierce__core_jobs_type,
    *tierce__core_events_type;

/* ---- what all types need ------------------------------------------------------------------ */

PyObject *tierce__core_raise(int status, const char *text)
{
    PyObject *error = PyObject_CallFunction(
        tierce__core_error, "s", text != NULL && text[0] != '\0' ? text : tierce_strerror(status));
    if (error == NULL)
        return NULL;
    PyObject *number = PyLong_FromLong(status);
    PyObject *name = PyUnicode_FromString(tierce_error_name(status));
    if (number != NULL && name != NULL && PyObject_SetAttrString(error, "status", number) == 0 &&
        PyObject_SetAttrString(error, "name", name) == 0)
        PyErr_SetObject(tierce__core_error, error);
    Py_XDECREF(number);
    Py_XDECREF(name);
    Py_DECREF(error);
    return NULL;
}

bool tierce__core_int32s(PyObject *object, Py_buffer *view)
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

static bool read_number(PyObject *object, uint64_t max, uint64_t *out)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(object);
    if (number == (unsigned long long)-1 && PyErr_Occurred())
        return false;
    if (number > max) {
        PyErr_Format(PyExc_OverflowError, "expected a number up to %llu", (unsigned long long)max);
        return false;
    }
    *out = number;
    return true;
}

int tierce__core_uint16(PyObject *object, void *out)
{
    uint64_t number;
    if (!read_number(object, UINT16_MAX, &number))
        return 0;
    *(uint16_t *)out = (uint16_t)number;
    return 1;
}

int tierce__core_uint32(PyObject *object, void *out)
{
    uint64_t number;
    if (!read_number(object, UINT32_MAX, &number))
        return 0;
    *(uint32_t *)out = (uint32_t)number;
    return 1;
}

int tierce__core_uint64(PyObject *object, void *out)
{
    return read_number(object, UINT64_MAX, out);
}

const char *tierce__core_text(PyObject *object)
{
    if (!PyUnicode_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "expected a str");
        return NULL;
    }
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(object, &length);
    if (text != NULL && strlen(text) != (size_t)length) {
        PyErr_SetString(PyExc_ValueError, "a text holds a NUL");
        return NULL;
    }
    return text;
}

void *tierce__core_new(PyTypeObject *type)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0);
}

void tierce__core_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

PyObject *tierce__core_raise_closed(const char *what)
{
    PyErr_Format(PyExc_ValueError, "the %s is closed", what);
    return NULL;
}

PyObject *tierce__core_raise_busy(const char *what)
{
    PyErr_Format(PyExc_RuntimeError, "the %s is in use by another thread", what);
    return NULL;
}

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
    Py_BEGIN_ALLOW_THREADS
    rc = tierce_weights_fingerprint(text, model_dir, &opts);
    Py_END_ALLOW_THREADS
    if (rc == 0)
        return PyUnicode_FromString(text);
    char why[512];
    snprintf(why, sizeof(why), "%.300s: %s%s", model_dir, tierce_strerror(rc),
             rc == -ENOENT ? "; pass a folder with weights: *.safetensors, *.bin, *.pt or *.gguf"
                           : "");
    return tierce__core_raise(rc, why);
}

static PyMethodDef core_functions[] = {
    {"version", core_version, METH_NOARGS, "version() -> str"},
    {"fingerprint", core_fingerprint, METH_VARARGS,
     "fingerprint(model_dir: str, cache_dir: str | None = None) -> str\n\n"
     "Digest of a model's weights and configuration; reads them once."},
    {"split_segments", tierce__core_split_segments, METH_VARARGS,
     "split_segments(tokens, separator: buffers of int32) -> list[(start, end)]\n\n"
     "The parts of a prompt between two separators."},
    {"blend_plan", tierce__core_blend_plan, METH_VARARGS,
     "blend_plan(tokens: int, prefix: int, lead: int, segments: list[(start, end, found)])"
     " -> list[(start, end, source, segment, at)]\n\n"
     "Where the KV of each token comes from; source: 0 the prefix, 1 the segment, computed at the"
     " position `at`, 2 to be computed."},
    {"rotate_keys", tierce__core_rotate_keys, METH_VARARGS,
     "rotate_keys(keys, dtype: str, row_elements: int, parameters: str, is_neox: bool,"
     " delta: int) -> None\n\n"
     "Rotates rows of a writable buffer by `delta` positions; parameters: rope_parameters of the"
     " model, as JSON. Raises Error with the reason if they cannot be rotated exactly."},
    {"differing_keys", tierce__core_differing_keys, METH_VARARGS,
     "differing_keys(computed, reused: buffers, dtype: str, token_elements: int, share: float)"
     " -> list[int]\n\n"
     "The tokens of a share, rounded up, whose keys differ most."},
    {"greatest_distances", tierce__core_greatest_distances, METH_VARARGS,
     "greatest_distances(distances: buffer, share: float) -> list[int]\n\n"
     "The places of a share, rounded up, of the greatest distances, of float32: a NaN is the "
     "greatest, and of equal ones the first are taken."},
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
    tierce__core_error = PyErr_NewExceptionWithDoc(
        "tierce._core.Error", "A failed call; .status and .name say which.", NULL, NULL);
    if (tierce__core_error == NULL ||
        PyModule_AddObjectRef(module, "Error", tierce__core_error) < 0 ||
        !add_type(module, "Engine", sizeof(EngineObject), tierce__core_engine_slots,
                  &tierce__core_engine_type) ||
        !add_type(module, "View", sizeof(ViewObject), tierce__core_view_slots,
                  &tierce__core_view_type) ||
        !add_type(module, "Chain", sizeof(ChainObject), tierce__core_chain_slots,
                  &tierce__core_chain_type) ||
        !add_type(module, "Store", sizeof(StoreObject), tierce__core_store_slots,
                  &tierce__core_store_type) ||
        !add_type(module, "Load", sizeof(LoadObject), tierce__core_load_slots,
                  &tierce__core_load_type) ||
        !add_type(module, "Push", sizeof(PushObject), tierce__core_push_slots,
                  &tierce__core_push_type) ||
        !add_type(module, "Source", sizeof(SourceObject), tierce__core_source_slots,
                  &tierce__core_source_type) ||
        !add_type(module, "Prefetch", sizeof(PrefetchObject), tierce__core_prefetch_slots,
                  &tierce__core_prefetch_type) ||
        !add_type(module, "Events", sizeof(EventsObject), tierce__core_events_slots,
                  &tierce__core_events_type) ||
        !add_type(module, "BlockJobs", sizeof(JobsObject), tierce__core_jobs_slots,
                  &tierce__core_jobs_type)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
