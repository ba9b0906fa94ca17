/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PYTHON_CORE_H
#define TIERCE_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include <tierce/tierce.h>

#include "core/blend/rope.h"
#include "engine/handover/handover.h"

/*
 * Shared by the files of tierce._core: its objects, and the conversion of Python values to C.
 * core.c is the module; each other file holds the methods of one type, or of the two types that
 * copy. Thread: functions of this header are called with the GIL held.
 */

typedef struct {
    PyObject_HEAD struct tierce_engine *engine;
    struct tierce_config *config;
    bool closed;
    struct tierce__handover *handover; /* NULL: it does not serve */
    bool is_starting;                  /* a call without the GIL makes the handover */
    unsigned flushes; /* under way without the GIL; the last one lets go of a closed engine */
} EngineObject;

typedef struct {
    PyObject_HEAD PyObject *engine; /* EngineObject */
    struct tierce_view *view;
    uint32_t first_layer, layer_count; /* of a chunk: those that are here */
    uint32_t chunk_blocks;
    uint32_t *cell_bytes;
    struct tierce_paged paged;
    struct tierce_paged_layer *layers; /* NULL until set_paged */
    unsigned transfers;                /* loads and stores that borrow `paged` */
} ViewObject;

typedef struct {
    PyObject_HEAD struct tierce_chain *chain;
    unsigned readers; /* calls under way without the GIL */
} ChainObject;

typedef struct {
    PyObject_HEAD PyObject *view; /* ViewObject: keeps the paged description alive */
    struct tierce_store *store;   /* NULL: over */
    PyObject *push;               /* PushObject that watches the store, or NULL */
    bool busy;                    /* a call is under way without the GIL */
} StoreObject;

typedef struct {
    PyObject_HEAD PyObject *view; /* ViewObject: must not be closed over it */
    struct tierce__push *push;    /* NULL: closed */
    unsigned calls;               /* under way without the GIL */
    bool over;                    /* closed; the last call lets go of it */
} PushObject;

typedef struct {
    PyObject_HEAD PyObject *view; /* ViewObject of the engine that reads */
    PyObject *texts;              /* of `from` */
    struct tierce__handover_from from;
    struct tierce__source *source; /* NULL: over */
    bool busy;                     /* a call is under way without the GIL */
} SourceObject;

typedef struct {
    PyObject_HEAD PyObject *view;
    struct tierce_load *load; /* NULL: over */
    bool busy;                /* a call is under way without the GIL */
    Py_ssize_t blocks;
} LoadObject;

typedef struct {
    PyObject_HEAD PyObject *view;     /* ViewObject: must not be closed over it */
    struct tierce_prefetch *prefetch; /* NULL: over */
    unsigned polls;                   /* under way without the GIL */
    bool over;                        /* ended; the last poll lets go of it */
    int notified;                     /* an eventfd that is written when it is final, or -1 */
} PrefetchObject;

struct tierce__block_jobs;

typedef struct {
    PyObject_HEAD PyObject *views;   /* list of ViewObject and None: must not be closed over it */
    struct tierce__block_jobs *jobs; /* NULL: over */
    Py_buffer region;
    uint32_t block_bytes;
    unsigned calls; /* under way without the GIL */
} JobsObject;

struct tierce__core_queue;

typedef struct {
    PyObject_HEAD struct tierce_subscription *subscription; /* NULL: over */
    struct tierce__core_queue *queue;
    unsigned calls; /* under way without the GIL */
    bool over;      /* ended; the last call lets go of it */
} EventsObject;

/* The tierce_prefetch_done_fn of a PrefetchObject. */
void tierce__core_prefetch_done(void *arg, const struct tierce_prefetch_result *result);

extern PyTypeObject *tierce__core_prefetch_type, *tierce__core_jobs_type, *tierce__core_push_type,
    *tierce__core_source_type, *tierce__core_events_type;
extern PyType_Slot tierce__core_prefetch_slots[], tierce__core_jobs_slots[],
    tierce__core_push_slots[], tierce__core_source_slots[], tierce__core_events_slots[];

extern PyTypeObject *tierce__core_engine_type, *tierce__core_view_type, *tierce__core_chain_type,
    *tierce__core_store_type, *tierce__core_load_type;
extern PyType_Slot tierce__core_engine_slots[], tierce__core_view_slots[],
    tierce__core_chain_slots[], tierce__core_store_slots[], tierce__core_load_slots[];

/* Raises tierce._core.Error with .status and .name, and with `text` unless it is NULL or empty.
 * Always returns NULL. */
PyObject *tierce__core_raise(int status, const char *text);

/* Raises ValueError: the thing of that name is closed. Always returns NULL. */
PyObject *tierce__core_raise_closed(const char *what);

/* Raises RuntimeError: another thread uses the thing of that name. Always returns NULL. */
PyObject *tierce__core_raise_busy(const char *what);

/* A C-contiguous buffer of int32, the caller's to release; false with an exception set. */
bool tierce__core_int32s(PyObject *object, Py_buffer *view);

/* Numbers that must fit the type that *out has, nothing is cut; also for the "O&" of argument
 * formats, whose own "I" and "K" cut. 0 with an exception set. */
int tierce__core_uint16(PyObject *object, void *out);
int tierce__core_uint32(PyObject *object, void *out);
int tierce__core_uint64(PyObject *object, void *out);

/* The UTF-8 of a str without NUL, [borrow] from the object; NULL with an exception set. */
const char *tierce__core_text(PyObject *object);

/* A zeroed object of one of the types, or NULL with an exception set. */
void *tierce__core_new(PyTypeObject *type);

/* ---- core_handover.c: methods of Engine and View ---- */

PyObject *tierce__core_handover_start(PyObject *engine, PyObject *args);
PyObject *tierce__core_handover_uses_tls(PyObject *engine, PyObject *unused);
PyObject *tierce__core_handover_expect(PyObject *engine, PyObject *args);
PyObject *tierce__core_handover_open(PyObject *engine, PyObject *args);
PyObject *tierce__core_handover_withdraw(PyObject *engine, PyObject *args);
PyObject *tierce__core_handover_pin(PyObject *view, PyObject *args);
PyObject *tierce__core_handover_source(PyObject *view, PyObject *args);
PyObject *tierce__core_handover_read(PyObject *view, PyObject *args);
PyObject *tierce__core_handover_note(PyObject *view, PyObject *args);
/* ---- core_push.c: the same, and the type Push ---- */

PyObject *tierce__core_handover_accept(PyObject *engine, PyObject *args);
PyObject *tierce__core_handover_tickets(PyObject *engine, PyObject *args);
PyObject *tierce__core_inbox_stats(PyObject *engine, PyObject *unused);
PyObject *tierce__core_push_begin(PyObject *view, PyObject *args);
PyObject *tierce__core_push_held(PyObject *view, PyObject *args);

/* Of an engine that is closed. */
void tierce__core_handover_stop(EngineObject *engine);
/* core_engine.c: one of `flushes` ends. */
void tierce__core_end_use(EngineObject *engine);

/* core_events.c: a method of Engine. */
PyObject *tierce__core_events(PyObject *engine, PyObject *unused);

/* ---- core_blend.c: functions of the module ---- */

PyObject *tierce__core_split_segments(PyObject *module, PyObject *args);
PyObject *tierce__core_blend_plan(PyObject *module, PyObject *args);
PyObject *tierce__core_rotate_keys(PyObject *module, PyObject *args);
PyObject *tierce__core_differing_keys(PyObject *module, PyObject *args);
PyObject *tierce__core_greatest_distances(PyObject *module, PyObject *args);

/* The arguments of a rotation. */
struct tierce__core_keys {
    enum tierce__blend_dtype dtype;
    uint32_t row_elements;
    const char *parameters; /* of RoPE, as JSON */
    int is_neox;
    long long delta;
};

/* For PyArg_Parse: an enum tierce__blend_dtype by its name. */
int tierce__core_dtype(PyObject *object, void *out);

/* The bytes of a row; 0 with an exception set. */
size_t tierce__core_rotation(struct tierce__rotation *rotation,
                             const struct tierce__core_keys *keys);

/* The end of every dealloc. */
void tierce__core_free(PyObject *self);

#endif
