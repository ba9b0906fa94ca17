/* SPDX-License-Identifier: Apache-2.0 */
/* tierce._core.BlockJobs: block jobs (engine/jobs/block_jobs.h) over an object with a buffer. No
 * call but drain and close waits for a tier. */
#include "python/core/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/jobs/block_jobs.h"

enum { GROUP_BYTES = 4 };

/* ---- opening and closing --------------------------------------------------------------------- */

/* Ends it, unless a call is under way without the GIL. */
static bool end_jobs(JobsObject *j)
{
    struct tierce__block_jobs *jobs = j->jobs;
    if (j->calls > 0)
        return false;
    j->jobs = NULL;
    if (jobs != NULL) {
        Py_BEGIN_ALLOW_THREADS
        tierce__block_jobs_close(jobs);
        Py_END_ALLOW_THREADS
        PyBuffer_Release(&j->region);
    }
    return true;
}

static void jobs_dealloc(PyObject *self)
{
    JobsObject *j = (JobsObject *)self;
    (void)end_jobs(j);
    Py_XDECREF(j->views);
    tierce__core_free(self);
}

static PyObject *jobs_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (!end_jobs((JobsObject *)self))
        return tierce__core_raise_busy("job queue");
    return Py_NewRef(Py_None);
}

/* The views of a list in which None stands for no view; free. NULL with an exception set. */
static struct tierce_view **views_of(PyObject *list, uint32_t *count)
{
    Py_ssize_t size = PyList_Size(list);
    struct tierce_view **views = calloc((size_t)size + 1, sizeof(struct tierce_view *));
    if (views == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *item = PyList_GetItem(list, i);
        if (item != Py_None && !PyObject_TypeCheck(item, tierce__core_view_type)) {
            PyErr_SetString(PyExc_TypeError, "views: a list of View and None");
            free(views);
            return NULL;
        }
        views[i] = item == Py_None ? NULL : ((ViewObject *)item)->view;
    }
    *count = (uint32_t)size;
    return views;
}

static int open_jobs(JobsObject *j, PyObject *region, struct tierce__block_jobs_opts *opts)
{
    if (PyObject_GetBuffer(region, &j->region, PyBUF_CONTIG) < 0)
        return TIERCE_E_ARGUMENT; /* with an exception set */
    opts->region = j->region.buf;
    opts->region_bytes = (uint64_t)j->region.len;
    j->block_bytes = opts->block_bytes;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__block_jobs_open(&j->jobs, opts);
    Py_END_ALLOW_THREADS
    if (rc < 0)
        PyBuffer_Release(&j->region);
    return rc;
}

static PyObject *jobs_open(PyObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"views",      "region",     "block_bytes", "threads",
                            "blocks_max", "timeout_ms", "lookups",     "ask_ms",
                            "answer_ms",  "failed_ms",  NULL};
    (void)type;
    PyObject *list, *region;
    uint32_t ask_ms, keep_ms, failed_ms;
    struct tierce__block_jobs_opts opts = {0};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!OO&O&O&O&O&O&O&O&", names, &PyList_Type, &list, &region,
            tierce__core_uint32, &opts.block_bytes, tierce__core_uint32, &opts.threads,
            tierce__core_uint32, &opts.blocks_max, tierce__core_uint32, &opts.timeout_ms,
            tierce__core_uint32, &opts.answers.count_max, tierce__core_uint32, &ask_ms,
            tierce__core_uint32, &keep_ms, tierce__core_uint32, &failed_ms))
        return NULL;
    opts.answers.ask_ns = ask_ms * UINT64_C(1000000);
    opts.answers.keep_ns = keep_ms * UINT64_C(1000000);
    opts.answers.failed_ns = failed_ms * UINT64_C(1000000);
    struct tierce_view **views = views_of(list, &opts.view_count);
    JobsObject *j = views != NULL ? tierce__core_new(tierce__core_jobs_type) : NULL;
    int rc = -ENOMEM;
    if (j != NULL) {
        opts.views = views;
        j->views = PyList_GetSlice(list, 0, PyList_Size(list));
        rc = j->views != NULL ? open_jobs(j, region, &opts) : -ENOMEM;
    }
    free(views);
    if (rc == 0)
        return (PyObject *)j;
    Py_XDECREF((PyObject *)j);
    return PyErr_Occurred() ? NULL : tierce__core_raise(rc, NULL);
}

static bool is_open(const JobsObject *j)
{
    if (j->jobs == NULL)
        tierce__core_raise_closed("job queue");
    return j->jobs != NULL;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* A key: up to 32 bytes of hash, padded with zeros, and the index of the view in four bytes, the
 * highest first. False with an exception set. */
static bool read_key(PyObject *object, struct tierce__block_key *key)
{
    Py_ssize_t length;
    char *bytes;
    if (PyBytes_AsStringAndSize(object, &bytes, &length) < 0)
        return false;
    if (length <= GROUP_BYTES || length > GROUP_BYTES + TIERCE_HASH_BYTES) {
        PyErr_Format(PyExc_ValueError, "a key has 5 to 36 bytes, not %zd", length);
        return false;
    }
    size_t hash_bytes = (size_t)length - GROUP_BYTES;
    *key = (struct tierce__block_key){0};
    memcpy(key->hash, bytes, hash_bytes);
    for (size_t i = 0; i < GROUP_BYTES; i++)
        key->view = key->view << 8 | (uint8_t)bytes[hash_bytes + i];
    return true;
}

/* The offset of a block of the region; false with an exception set. */
static bool read_offset(const JobsObject *j, int64_t index, uint64_t *offset)
{
    uint64_t blocks = (uint64_t)j->region.len / j->block_bytes;
    if (index < 0 || (uint64_t)index >= blocks) {
        PyErr_Format(PyExc_ValueError, "the region has no block %lld", (long long)index);
        return false;
    }
    *offset = (uint64_t)index * j->block_bytes;
    return true;
}

/* Fills blocks[0..count); false with an exception set. */
static bool read_blocks(const JobsObject *j, PyObject *keys, const int64_t *ids, Py_ssize_t count,
                        struct tierce__block *blocks)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!read_key(PyList_GetItem(keys, i), &blocks[i].key) ||
            !read_offset(j, ids[i], &blocks[i].offset))
            return false;
    }
    return true;
}

static bool is_int64(const Py_buffer *ids, Py_ssize_t count)
{
    return ids->itemsize == (Py_ssize_t)sizeof(int64_t) && ids->format != NULL &&
           (strcmp(ids->format, "q") == 0 || strcmp(ids->format, "l") == 0) &&
           ids->len / ids->itemsize == count;
}

/* The blocks of a job; free. NULL with an exception set. */
static struct tierce__block *blocks_of(const JobsObject *j, PyObject *keys, PyObject *indices)
{
    Py_buffer ids;
    Py_ssize_t count = PyList_Size(keys);
    if (PyObject_GetBuffer(indices, &ids, PyBUF_CONTIG_RO | PyBUF_FORMAT) < 0)
        return NULL;
    struct tierce__block *blocks = NULL;
    if (!is_int64(&ids, count))
        PyErr_SetString(PyExc_TypeError, "one 64-bit integer for each key expected");
    else if ((blocks = calloc((size_t)count + 1, sizeof(*blocks))) == NULL)
        PyErr_NoMemory();
    if (blocks != NULL && !read_blocks(j, keys, ids.buf, count, blocks)) {
        free(blocks);
        blocks = NULL;
    }
    PyBuffer_Release(&ids);
    return blocks;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static PyObject *jobs_lookup(PyObject *self, PyObject *arg)
{
    JobsObject *j = (JobsObject *)self;
    struct tierce__block_key key;
    if (!is_open(j) || !read_key(arg, &key))
        return NULL;
    return PyLong_FromLong(tierce__block_jobs_lookup(j->jobs, &key));
}

static PyObject *submit(PyObject *self, PyObject *args, enum tierce__block_op op)
{
    JobsObject *j = (JobsObject *)self;
    uint64_t id;
    PyObject *keys, *indices;
    if (!PyArg_ParseTuple(args, "O&O!O", tierce__core_uint64, &id, &PyList_Type, &keys, &indices) ||
        !is_open(j))
        return NULL;
    struct tierce__block *blocks = blocks_of(j, keys, indices);
    if (blocks == NULL)
        return NULL;
    int rc = TIERCE_E_CLOSED;
    if (j->jobs != NULL)
        rc = tierce__block_jobs_submit(j->jobs, id, op, blocks, (size_t)PyList_Size(keys));
    free(blocks);
    if (rc < 0 && rc != TIERCE_E_FULL)
        return tierce__core_raise(rc, NULL);
    return PyBool_FromLong(rc == 0);
}

static PyObject *jobs_store(PyObject *self, PyObject *args)
{
    return submit(self, args, TIERCE__BLOCK_STORE);
}

static PyObject *jobs_load(PyObject *self, PyObject *args)
{
    return submit(self, args, TIERCE__BLOCK_LOAD);
}

static PyObject *describe(const struct tierce__block_job *job)
{
    double seconds = (double)(job->ended_ns - job->began_ns) / 1e9;
    return Py_BuildValue("(KOy#d)", (unsigned long long)job->id,
                         job->op == TIERCE__BLOCK_LOAD ? Py_True : Py_False,
                         (const char *)job->moved, (Py_ssize_t)job->count, seconds);
}

static PyObject *jobs_poll(PyObject *self, PyObject *unused)
{
    JobsObject *j = (JobsObject *)self;
    (void)unused;
    if (!is_open(j))
        return NULL;
    struct tierce__block_job *job = tierce__block_jobs_poll(j->jobs);
    if (job == NULL)
        Py_RETURN_NONE;
    PyObject *out = describe(job);
    tierce__block_job_free(job);
    return out;
}

static PyObject *jobs_drain(PyObject *self, PyObject *arg)
{
    JobsObject *j = (JobsObject *)self;
    uint32_t timeout_ms;
    if (!tierce__core_uint32(arg, &timeout_ms) || !is_open(j))
        return NULL;
    int rc;
    j->calls++;
    Py_BEGIN_ALLOW_THREADS
    rc = tierce__block_jobs_drain(j->jobs, timeout_ms);
    Py_END_ALLOW_THREADS
    j->calls--;
    return PyBool_FromLong(rc == 0);
}

static PyObject *jobs_state(PyObject *self, PyObject *unused)
{
    JobsObject *j = (JobsObject *)self;
    (void)unused;
    if (!is_open(j))
        return NULL;
    struct tierce__block_jobs_state state;
    tierce__block_jobs_state(j->jobs, &state);
    return Py_BuildValue("{s:K,s:K,s:K}", "blocks", (unsigned long long)state.blocks,
                         "jobs_refused", (unsigned long long)state.jobs_refused, "lookups_crowded",
                         (unsigned long long)state.lookups_crowded);
}

static PyMethodDef jobs_methods[] = {
    {"open", (PyCFunction)(void (*)(void))jobs_open, METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "open(views: list[View | None], region: writable buffer, block_bytes, threads, blocks_max, "
     "timeout_ms, lookups, ask_ms, answer_ms, failed_ms) -> BlockJobs\n\n"
     "Each view has one layer of block_bytes and chunks of one block. blocks_max: of all jobs that "
     "are not finished. timeout_ms: blocks of a job that were not begun by then fail. lookups: how "
     "many answers are kept, for answer_ms each, or failed_ms after a failed load; a question "
     "without an answer is a miss after ask_ms."},
    {"lookup", jobs_lookup, METH_O,
     "lookup(key: bytes) -> int\n\n0: a miss, 1: a hit, 2: ask again. A key is the hash, and the "
     "index of the view in four bytes, the highest first."},
    {"store", jobs_store, METH_VARARGS,
     "store(id: int, keys: list[bytes], blocks: buffer of int64) -> bool\n\n"
     "Stores blocks of the region, named by number; False: too many jobs are in progress."},
    {"load", jobs_load, METH_VARARGS,
     "load(id: int, keys: list[bytes], blocks: buffer of int64) -> bool\n\nThe way back."},
    {"poll", jobs_poll, METH_NOARGS,
     "poll() -> (id, is_load, moved: bytes, seconds) | None\n\n"
     "A finished job; moved has a byte of 1 for each block that was stored or loaded, else 0."},
    {"drain", jobs_drain, METH_O,
     "drain(timeout_ms: int) -> bool\n\nWaits; True when no job is in progress."},
    {"state", jobs_state, METH_NOARGS, "state() -> dict[str, int]"},
    {"close", jobs_close, METH_NOARGS,
     "close() -> None\n\nWaits for the blocks in progress; releases the region."},
    {NULL, NULL, 0, NULL}};

PyType_Slot tierce__core_jobs_slots[] = {
    {Py_tp_dealloc, (void *)jobs_dealloc},
    {Py_tp_methods, jobs_methods},
    {Py_tp_doc, (void *)"Jobs over blocks of host memory, on threads of their own. Any thread."},
    {0, NULL}};
