/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"

#include <cuda.h>
#include <stddef.h>

/*
 * The functions, types and numbers that src/core/device declares are those of CUDA's own header,
 * where that is installed. Each function is assigned to a pointer of the type that the table gives
 * it, so that a difference does not compile.
 */

#define TIERCE__CU_RESULT            CUresult
#define TIERCE__CU_DEVICE            CUdevice
#define TIERCE__CU_POINTER_ATTRIBUTE CUpointer_attribute
#define TIERCE__CU_DEVICE_ATTRIBUTE  CUdevice_attribute
#define TIERCE__CU_CAPTURE_STATUS    CUstreamCaptureStatus
#define TIERCE__CU_CAPTURE_MODE      CUstreamCaptureMode
#define TIERCE__CU_ADDRESS           CUdeviceptr
#define TIERCE__CU_CONTEXT           CUcontext
#define TIERCE__CU_STREAM            CUstream
#define TIERCE__CU_EVENT             CUevent
#define TIERCE__CU_MODULE            CUmodule
#define TIERCE__CU_FUNCTION          CUfunction
#define TIERCE__CU_HOST_FN           CUhostFn
#define TIERCE__CU_COPY_ATTRIBUTES   CUmemcpyAttributes

/* Never called: nothing is linked. */
static inline void compare_functions(void)
{
#define TIERCE_CUDA_CALL(name, symbol, arguments)                                                  \
    CUresult(*name) arguments = symbol;                                                            \
    (void)name;
#define TIERCE_CUDA_NEWER(name, symbol, version, arguments) CUresult(*name) arguments = NULL;
#include "core/device/cuda/cuda_calls.def"
#undef TIERCE_CUDA_CALL
#undef TIERCE_CUDA_NEWER
    /* The header declares the newest form only. */
#if CUDA_VERSION >= 13000
    copy_batch_2 = cuMemcpyBatchAsync_v2;
#elif CUDA_VERSION >= 12080
    copy_batch = cuMemcpyBatchAsync;
#endif
    (void)copy_batch, (void)copy_batch_2;
}

#undef TIERCE__CU_RESULT
#undef TIERCE__CU_DEVICE
#undef TIERCE__CU_POINTER_ATTRIBUTE
#undef TIERCE__CU_DEVICE_ATTRIBUTE
#undef TIERCE__CU_CAPTURE_STATUS
#undef TIERCE__CU_CAPTURE_MODE
#undef TIERCE__CU_ADDRESS
#undef TIERCE__CU_CONTEXT
#undef TIERCE__CU_STREAM
#undef TIERCE__CU_EVENT
#undef TIERCE__CU_MODULE
#undef TIERCE__CU_FUNCTION
#undef TIERCE__CU_HOST_FN
#undef TIERCE__CU_COPY_ATTRIBUTES
#include "core/device/cuda/cuda_driver.h"

START_TEST(types_and_numbers)
{
    (void)compare_functions;
    ck_assert_uint_eq(sizeof(TIERCE__CU_RESULT), sizeof(CUresult));
    ck_assert_uint_eq(sizeof(TIERCE__CU_DEVICE), sizeof(CUdevice));
    ck_assert_uint_eq(sizeof(TIERCE__CU_POINTER_ATTRIBUTE), sizeof(CUpointer_attribute));
    ck_assert_uint_eq(sizeof(TIERCE__CU_DEVICE_ATTRIBUTE), sizeof(CUdevice_attribute));
    ck_assert_uint_eq(sizeof(TIERCE__CU_CAPTURE_STATUS), sizeof(CUstreamCaptureStatus));
    ck_assert_uint_eq(sizeof(TIERCE__CU_ADDRESS), sizeof(CUdeviceptr));
    ck_assert_int_eq(TIERCE__CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(TIERCE__CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert_int_eq(TIERCE__CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
    ck_assert_int_eq(TIERCE__CU_NOT_READY, CUDA_ERROR_NOT_READY);
    ck_assert_int_eq(TIERCE__CU_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    ck_assert_int_eq(TIERCE__CU_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    ck_assert_int_eq(TIERCE__CU_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    ck_assert_int_eq(TIERCE__CU_ATTRIBUTE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
    ck_assert_int_eq(TIERCE__CU_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);
    ck_assert_int_eq(TIERCE__CU_ATTRIBUTE_MULTIPROCESSORS,
                     CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    ck_assert_int_eq(TIERCE__CU_ATTRIBUTE_HOST_POINTERS,
                     CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
    ck_assert_int_eq(TIERCE__CU_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
    ck_assert_int_eq(TIERCE__CU_REGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP);
    ck_assert_int_eq(TIERCE__CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
    ck_assert_int_eq(TIERCE__CU_HOST_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP);
    ck_assert_int_eq(TIERCE__CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
    ck_assert_int_eq(TIERCE__CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
    ck_assert_int_eq(TIERCE__CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
    ck_assert_uint_eq(sizeof(TIERCE__CU_CAPTURE_MODE), sizeof(CUstreamCaptureMode));
    ck_assert_int_eq(TIERCE__CU_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ck_assert_int_eq(TIERCE__CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
#if CUDA_VERSION >= 12080
    ck_assert_uint_eq(sizeof(TIERCE__CU_COPY_ATTRIBUTES), sizeof(CUmemcpyAttributes));
    ck_assert_uint_eq(offsetof(TIERCE__CU_COPY_ATTRIBUTES, flags),
                      offsetof(CUmemcpyAttributes, flags));
    ck_assert_int_eq(TIERCE__CU_SOURCE_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
#endif
}
END_TEST

CHECK_MAIN("cuda_calls", .tests = {types_and_numbers})
