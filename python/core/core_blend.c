/* SPDX-License-Identifier: Apache-2.0 */
#include "python/core/core.h"

#include <stdlib.h>
#include <string.h>

#include "core/blend/segments.h"
#include "core/blend/select.h"

/* Functions of the module: src/core/blend on Python's buffers and lists. */

#define SEGMENTS_MAX 4096 /* of a prompt */

/* ---- segments -------------------------------------------------------------------------------- */

PyObject *tierce__core_split_segments(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tokens_of, *separator_of, *list = NULL;
    Py_buffer tokens, separator;
    if (!PyArg_ParseTuple(args, "OO", &tokens_of, &separator_of) ||
        !tierce__core_int32s(tokens_of, &tokens))
        return NULL;
    if (!tierce__core_int32s(separator_of, &separator)) {
        PyBuffer_Release(&tokens);
        return NULL;
    }
    struct tierce__segment *found = calloc(SEGMENTS_MAX, sizeof(*found));
    if (found == NULL) {
        PyErr_NoMemory();
        goto out;
    }
    int64_t count = tierce__segments_split(found, SEGMENTS_MAX, tokens.buf, (size_t)tokens.len / 4,
                                           separator.buf, (size_t)separator.len / 4);
    if (count < 0) {
        tierce__core_raise((int)count, NULL);
        goto out;
    }
    list = PyList_New((Py_ssize_t)count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *pair = Py_BuildValue("(II)", found[i].start, found[i].end);
        if (pair == NULL || PyList_SetItem(list, i, pair) < 0) {
            Py_DECREF(list);
            list = NULL;
        }
    }
out:
    free(found);
    PyBuffer_Release(&separator);
    PyBuffer_Release(&tokens);
    return list;
}

/* Fills *segments and *found from [(start, end, found), ...]; false with an exception set. */
static bool read_segments(PyObject *list, struct tierce__segment *segments, uint32_t *found)
{
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        PyObject *item = PyList_GetItem(list, i);
        if (item == NULL || !PyTuple_Check(item)) {
            PyErr_SetString(PyExc_TypeError, "segments: a list of (start, end, found)");
            return false;
        }
        if (!PyArg_ParseTuple(item, "O&O&O&", tierce__core_uint32, &segments[i].start,
                              tierce__core_uint32, &segments[i].end, tierce__core_uint32,
                              &found[i]))
            return false;
    }
    return true;
}

static bool is_plannable(size_t tokens, uint32_t lead, const struct tierce__segment *segments,
                         const uint32_t *found, size_t count)
{
    size_t bad = tierce__segments_check(segments, count, tokens);
    for (size_t i = 0; bad == count && i < count; i++) {
        if (found[i] > segments[i].end - segments[i].start || found[i] > UINT32_MAX - lead)
            bad = i;
    }
    if (bad < count)
        PyErr_Format(PyExc_ValueError,
                     "segment %zu is invalid: segments are not empty, follow one another and end "
                     "within the prompt",
                     bad);
    return bad == count;
}

static PyObject *spans_of(const struct tierce__blend_span *spans, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = Py_BuildValue("(IIiII)", spans[i].start, spans[i].end,
                                       (int)spans[i].source, spans[i].segment, spans[i].at);
        if (item == NULL || PyList_SetItem(list, (Py_ssize_t)i, item) < 0) {
            Py_DECREF(list);
            list = NULL;
        }
    }
    return list;
}

PyObject *tierce__core_blend_plan(PyObject *module, PyObject *args)
{
    (void)module;
    uint32_t tokens, prefix, lead;
    PyObject *list, *result = NULL;
    if (!PyArg_ParseTuple(args, "O&O&O&O!", tierce__core_uint32, &tokens, tierce__core_uint32,
                          &prefix, tierce__core_uint32, &lead, &PyList_Type, &list))
        return NULL;
    size_t count = (size_t)PyList_Size(list);
    struct tierce__segment *segments = calloc(count + 1, sizeof(*segments));
    uint32_t *found = calloc(count + 1, sizeof(*found));
    struct tierce__blend_span *spans = calloc(TIERCE__BLEND_SPANS(count), sizeof(*spans));
    if (segments == NULL || found == NULL || spans == NULL)
        PyErr_NoMemory();
    else if (read_segments(list, segments, found) &&
             is_plannable(tokens, lead, segments, found, count))
        result = spans_of(spans,
                          tierce__blend_plan(spans, tokens, prefix, lead, segments, found, count));
    free(spans);
    free(found);
    free(segments);
    return result;
}

/* ---- keys ------------------------------------------------------------------------------------ */

int tierce__core_dtype(PyObject *object, void *out)
{
    const char *name = tierce__core_text(object);
    if (name == NULL)
        return 0;
    *(enum tierce__blend_dtype *)out = tierce__blend_dtype_of(name);
    if (*(enum tierce__blend_dtype *)out != TIERCE__BLEND_DTYPES)
        return 1;
    PyErr_Format(PyExc_ValueError, "keys of %R: bfloat16, float16 and float32 are accepted",
                 object);
    return 0;
}

size_t tierce__core_rotation(struct tierce__rotation *rotation,
                             const struct tierce__core_keys *keys)
{
    const struct tierce__rope_layout layout = {.style = keys->is_neox ? TIERCE__ROPE_NEOX
                                                                      : TIERCE__ROPE_GPTJ,
                                               .row_elements = keys->row_elements,
                                               .width = keys->row_elements};
    struct tierce__rope rope;
    char why[TIERCE__ROPE_WHY_BYTES];
    int rc = tierce__rope_init(&rope, why, keys->parameters, strlen(keys->parameters), &layout);
    if (rc < 0) {
        tierce__core_raise(rc, why);
        return 0;
    }
    if (keys->delta <= -(1LL << 31) || keys->delta >= 1LL << 31) {
        tierce__core_raise(TIERCE_E_ARGUMENT, "a position is 2^31 or more");
        return 0;
    }
    tierce__rotation_init(rotation, &rope, keys->delta);
    return keys->row_elements * (size_t)tierce__blend_dtype_bytes(keys->dtype);
}

PyObject *tierce__core_rotate_keys(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *buffer_of;
    Py_buffer buffer;
    struct tierce__core_keys keys;
    if (!PyArg_ParseTuple(args, "OO&O&spL", &buffer_of, tierce__core_dtype, &keys.dtype,
                          tierce__core_uint32, &keys.row_elements, &keys.parameters, &keys.is_neox,
                          &keys.delta))
        return NULL;
    struct tierce__rotation rotation;
    size_t row_bytes = tierce__core_rotation(&rotation, &keys);
    if (row_bytes == 0 || PyObject_GetBuffer(buffer_of, &buffer, PyBUF_WRITABLE) < 0)
        return NULL;
    if ((size_t)buffer.len % row_bytes != 0) {
        PyBuffer_Release(&buffer);
        return tierce__core_raise(TIERCE_E_ARGUMENT, "the keys are not a whole number of rows");
    }
    struct tierce__key_rows rows = {buffer.buf, row_bytes, row_bytes};
    Py_BEGIN_ALLOW_THREADS
    tierce__rotate(&rotation, keys.dtype, &rows, &rows, (size_t)buffer.len / row_bytes, 1);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&buffer);
    Py_RETURN_NONE;
}

static PyObject *indices_of(const uint32_t *tokens, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *index = PyLong_FromUnsignedLong(tokens[i]);
        if (index == NULL || PyList_SetItem(list, (Py_ssize_t)i, index) < 0) {
            Py_DECREF(list);
            list = NULL;
        }
    }
    return list;
}

/* The places of a share of the greatest distances. */
static PyObject *select_greatest(const float *distances, size_t count, double share)
{
    uint32_t *tokens = calloc(count + 1, sizeof(*tokens));
    if (tokens == NULL)
        return PyErr_NoMemory();
    for (size_t i = 0; i < count; i++)
        tokens[i] = (uint32_t)i;
    PyObject *result = indices_of(
        tokens, tierce__blend_select(tokens, distances, count, tierce__blend_keep(count, share)));
    free(tokens);
    return result;
}

/* The tokens of a share whose keys differ most. */
static PyObject *select_tokens(const Py_buffer *computed, const Py_buffer *reused,
                               enum tierce__blend_dtype dtype, uint32_t elements, double share)
{
    size_t token_bytes = elements * (size_t)tierce__blend_dtype_bytes(dtype);
    if (token_bytes == 0 || computed->len != reused->len ||
        (size_t)computed->len % token_bytes != 0 || !(share >= 0 && share <= 1))
        return tierce__core_raise(TIERCE_E_ARGUMENT,
                                  "two equal buffers of whole tokens, and a share from 0 to 1");
    size_t count = (size_t)computed->len / token_bytes;
    float *distances = calloc(count + 1, sizeof(*distances));
    if (distances == NULL)
        return PyErr_NoMemory();
    struct tierce__key_rows a = {computed->buf, token_bytes, 0};
    struct tierce__key_rows b = {reused->buf, token_bytes, 0};
    Py_BEGIN_ALLOW_THREADS
    tierce__key_distances(distances, dtype, &a, &b, count, 1, elements);
    Py_END_ALLOW_THREADS
    PyObject *result = select_greatest(distances, count, share);
    free(distances);
    return result;
}

PyObject *tierce__core_differing_keys(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *computed_of, *reused_of;
    enum tierce__blend_dtype dtype;
    uint32_t elements;
    double share;
    Py_buffer computed, reused;
    if (!PyArg_ParseTuple(args, "OOO&O&d", &computed_of, &reused_of, tierce__core_dtype, &dtype,
                          tierce__core_uint32, &elements, &share) ||
        PyObject_GetBuffer(computed_of, &computed, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(reused_of, &reused, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&computed);
        return NULL;
    }
    PyObject *result = select_tokens(&computed, &reused, dtype, elements, share);
    PyBuffer_Release(&reused);
    PyBuffer_Release(&computed);
    return result;
}

PyObject *tierce__core_greatest_distances(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *distances_of, *result = NULL;
    double share;
    Py_buffer distances;
    if (!PyArg_ParseTuple(args, "Od", &distances_of, &share) ||
        PyObject_GetBuffer(distances_of, &distances, PyBUF_SIMPLE) < 0)
        return NULL;
    bool is_aligned = (uintptr_t)distances.buf % sizeof(float) == 0;
    if (!is_aligned || (size_t)distances.len % sizeof(float) != 0 || !(share >= 0 && share <= 1))
        tierce__core_raise(TIERCE_E_ARGUMENT,
                           "aligned numbers of float32, and a share from 0 to 1");
    else
        result = select_greatest(distances.buf, (size_t)distances.len / sizeof(float), share);
    PyBuffer_Release(&distances);
    return result;
}
