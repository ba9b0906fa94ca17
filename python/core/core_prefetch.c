/* SPDX-License-Identifier: Apache-2.0 */
#include "python/core/core.h"

#include <unistd.h>

/* On a thread of the library, which must not wait for the GIL. A counter that is full is not zero
 * either, so a write that fails tells nothing new. */
void tierce__core_prefetch_done(void *arg, const struct tierce_prefetch_result *result)
{
    const uint64_t one = 1;
    (void)result;
    (void)!write(((PrefetchObject *)arg)->notified, &one, sizeof(one));
}

/* Ends it, unless a poll is under way, which then does. */
static void end_prefetch(PrefetchObject *p)
{
    struct tierce_prefetch *prefetch = p->prefetch;
    if (prefetch == NULL || p->polls > 0)
        return;
    p->prefetch = NULL;
    Py_BEGIN_ALLOW_THREADS
    tierce_prefetch_end(prefetch);
    Py_END_ALLOW_THREADS
}

static void prefetch_dealloc(PyObject *self)
{
    PrefetchObject *p = (PrefetchObject *)self;
    end_prefetch(p);
    Py_XDECREF(p->view);
    tierce__core_free(self);
}

static PyObject *prefetch_poll(PyObject *self, PyObject *unused)
{
    PrefetchObject *p = (PrefetchObject *)self;
    (void)unused;
    if (p->prefetch == NULL || p->over)
        return tierce__core_raise_closed("prefetch");
    struct tierce_prefetch_result result = {.size = sizeof(result)};
    bool final;
    p->polls++;
    Py_BEGIN_ALLOW_THREADS
    final = tierce_prefetch_poll(p->prefetch, &result);
    Py_END_ALLOW_THREADS
    p->polls--;
    if (p->over)
        end_prefetch(p);
    return Py_BuildValue("(OKKO)", final ? Py_True : Py_False, (unsigned long long)result.blocks,
                         (unsigned long long)result.memory_blocks,
                         result.late ? Py_True : Py_False);
}

static PyObject *prefetch_end(PyObject *self, PyObject *unused)
{
    PrefetchObject *p = (PrefetchObject *)self;
    (void)unused;
    p->over = true;
    end_prefetch(p);
    Py_RETURN_NONE;
}

static PyMethodDef prefetch_methods[] = {
    {"poll", prefetch_poll, METH_NOARGS,
     "poll() -> (final, blocks, memory_blocks, late)\n\n"
     "Leading blocks that were found, and those of them that memory holds."},
    {"end", prefetch_end, METH_NOARGS,
     "end() -> None\n\nEnds what still runs; the pins stay with the session."},
    {NULL, NULL, 0, NULL}};

PyType_Slot tierce__core_prefetch_slots[] = {
    {Py_tp_dealloc, (void *)prefetch_dealloc},
    {Py_tp_methods, prefetch_methods},
    {Py_tp_doc, (void *)"A prefetch; made by View.prefetch_begin. One thread at a time."},
    {0, NULL}};
