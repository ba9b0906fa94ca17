/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"

#include <cufile.h>
#include <stddef.h>

/* The functions, types and numbers that src/core/device declares are those of cuFile's own header,
 * where that is installed: as test_cuda_calls.c does it. */

#define TIERCE__CU_FILE_ERROR       CUfileError_t
#define TIERCE__CU_FILE_HANDLE      CUfileHandle_t
#define TIERCE__CU_FILE_DESCRIPTION CUfileDescr_t

/* Never called: nothing is linked. */
static inline void compare_functions(void)
{
#define TIERCE_CUFILE_CALL(name, symbol, result, arguments)                                        \
    result(*of_##name) arguments = symbol;                                                         \
    (void)of_##name;
#include "core/device/cuda/cufile_calls.def"
#undef TIERCE_CUFILE_CALL
}

#undef TIERCE__CU_FILE_ERROR
#undef TIERCE__CU_FILE_HANDLE
#undef TIERCE__CU_FILE_DESCRIPTION
#include "core/device/cuda/cufile.h"

START_TEST(types_and_numbers)
{
    (void)compare_functions;
    ck_assert_uint_eq(sizeof(TIERCE__CU_FILE_ERROR), sizeof(CUfileError_t));
    ck_assert_uint_eq(offsetof(TIERCE__CU_FILE_ERROR, cuda), offsetof(CUfileError_t, cu_err));
    ck_assert_uint_eq(sizeof(TIERCE__CU_FILE_HANDLE), sizeof(CUfileHandle_t));
    ck_assert_uint_eq(sizeof(TIERCE__CU_FILE_DESCRIPTION), sizeof(CUfileDescr_t));
    ck_assert_uint_eq(offsetof(TIERCE__CU_FILE_DESCRIPTION, of), offsetof(CUfileDescr_t, handle));
    ck_assert_uint_eq(offsetof(TIERCE__CU_FILE_DESCRIPTION, functions),
                      offsetof(CUfileDescr_t, fs_ops));
    ck_assert_int_eq(TIERCE__CU_FILE_SUCCESS, CU_FILE_SUCCESS);
    ck_assert_int_eq(TIERCE__CU_FILE_CUDA_ERROR, CU_FILE_CUDA_DRIVER_ERROR);
    ck_assert_int_eq(TIERCE__CU_FILE_ALREADY_OPEN, CU_FILE_DRIVER_ALREADY_OPEN);
    ck_assert_int_eq(TIERCE__CU_FILE_PINNING_FAILED, CU_FILE_GPU_MEMORY_PINNING_FAILED);
    ck_assert_int_eq(TIERCE__CU_FILE_TYPE_FD, CU_FILE_HANDLE_TYPE_OPAQUE_FD);
}
END_TEST

CHECK_MAIN("cufile_calls", .tests = {types_and_numbers})
