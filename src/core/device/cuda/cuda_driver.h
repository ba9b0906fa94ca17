/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_DRIVER_H
#define TIERCE_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The functions of CUDA's driver that Tierce calls, found in libcuda.so.1 at run time, so that
 * neither a build nor a start of Tierce needs CUDA. The types below are the few that these
 * functions take, with the layout of the driver's binary interface on 64-bit Linux.
 */

typedef int TIERCE__CU_RESULT;
typedef int TIERCE__CU_DEVICE;
typedef int TIERCE__CU_POINTER_ATTRIBUTE;
typedef int TIERCE__CU_DEVICE_ATTRIBUTE;
typedef int TIERCE__CU_CAPTURE_STATUS;
typedef int TIERCE__CU_CAPTURE_MODE;
typedef unsigned long long TIERCE__CU_ADDRESS;
typedef struct tierce__cu_context *TIERCE__CU_CONTEXT;
typedef struct tierce__cu_stream *TIERCE__CU_STREAM;
typedef struct tierce__cu_event *TIERCE__CU_EVENT;
typedef struct tierce__cu_module *TIERCE__CU_MODULE;
typedef struct tierce__cu_function *TIERCE__CU_FUNCTION;
typedef void (*TIERCE__CU_HOST_FN)(void *argument);

struct tierce__cu_location {
    int type, id;
};

struct tierce__cu_copy_attributes {
    int source_order;
    struct tierce__cu_location source, destination; /* hints, unused */
    unsigned int flags;
};
typedef struct tierce__cu_copy_attributes TIERCE__CU_COPY_ATTRIBUTES;

/* Results. */
enum {
    TIERCE__CU_SUCCESS = 0,
    TIERCE__CU_INVALID_VALUE = 1,
    TIERCE__CU_OUT_OF_MEMORY = 2,
    TIERCE__CU_NOT_INITIALIZED = 3,
    TIERCE__CU_NO_DEVICE = 100,
    TIERCE__CU_INVALID_IMAGE = 200,
    TIERCE__CU_INVALID_CONTEXT = 201,
    TIERCE__CU_OPERATING_SYSTEM = 304,
    TIERCE__CU_INVALID_HANDLE = 400,
    TIERCE__CU_NOT_FOUND = 500,
    TIERCE__CU_NOT_READY = 600,
    TIERCE__CU_ILLEGAL_ADDRESS = 700,
    TIERCE__CU_LAUNCH_OUT_OF_RESOURCES = 701,
    TIERCE__CU_ALREADY_REGISTERED = 712,
    TIERCE__CU_NOT_REGISTERED = 713,
    TIERCE__CU_LAUNCH_FAILED = 719,
    TIERCE__CU_NOT_PERMITTED = 800,
    TIERCE__CU_NOT_SUPPORTED = 801,
    TIERCE__CU_STREAM_CAPTURE_UNSUPPORTED = 900,
    TIERCE__CU_STREAM_CAPTURE_IMPLICIT = 906,
    TIERCE__CU_UNKNOWN = 999,
};

/* Attributes, flags and states. */
enum {
    TIERCE__CU_ATTRIBUTE_MEMORY_TYPE = 2,
    TIERCE__CU_ATTRIBUTE_ORDINAL = 9,
    TIERCE__CU_MEMORY_DEVICE = 2,
    TIERCE__CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    TIERCE__CU_ATTRIBUTE_HOST_POINTERS = 91, /* of registered memory: valid on the device */
    TIERCE__CU_REGISTER_PORTABLE = 1,
    TIERCE__CU_REGISTER_DEVICEMAP = 2,
    TIERCE__CU_HOST_PORTABLE = 1,
    TIERCE__CU_HOST_DEVICEMAP = 2,
    TIERCE__CU_STREAM_NON_BLOCKING = 1,
    TIERCE__CU_EVENT_DISABLE_TIMING = 2,
    TIERCE__CU_CAPTURE_NONE = 0,
    TIERCE__CU_CAPTURE_GLOBAL = 0, /* a mode */
    TIERCE__CU_CAPTURE_RELAXED = 2,
    TIERCE__CU_SOURCE_ORDER_STREAM = 1,
};

/* The oldest driver that is accepted. All required calls exist since 10.0. Tierce was not tested
 * with 11.0. */
#define TIERCE__CUDA_VERSION_MIN 11000

struct tierce__cuda_api {
#define TIERCE_CUDA_CALL(name, symbol, arguments)           TIERCE__CU_RESULT(*name) arguments;
#define TIERCE_CUDA_NEWER(name, symbol, version, arguments) TIERCE__CU_RESULT(*name) arguments;
#include "core/device/cuda/cuda_calls.def"
#undef TIERCE_CUDA_CALL
#undef TIERCE_CUDA_NEWER
    int version; /* the driver's version: 12080 is 12.8 */
};

/*
 * Loads and initialises the driver at the first call of the process; later calls return the same
 * table. [out] *out: [borrow for the life of the process]. A failure is logged, and the next call
 * tries again. Errors: TIERCE_E_UNSUPPORTED (no driver, too old, no device, or used before a fork).
 * Thread: any. Blocks for the driver's start.
 */
TIERCE_MUSTUSE int tierce__cuda_load(const struct tierce__cuda_api **out);

/* Whether this process has loaded the driver itself. False if its parent has loaded the driver
 * before a fork, because the driver does not work in such a child. Thread: any. */
bool tierce__cuda_usable(void);

/* Writes a text such as "cuEventRecord: CUDA_ERROR_INVALID_HANDLE (400)"; returns `text`.
 * Thread: any. */
#define TIERCE__CUDA_TEXT_BYTES 128u
const char *tierce__cuda_text(const struct tierce__cuda_api *api, const char *call,
                              TIERCE__CU_RESULT code, char text[TIERCE__CUDA_TEXT_BYTES]);

#endif
